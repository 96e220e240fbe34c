//! Types of the protocol: terms, slots, names and the contents of `head`.

use std::{fmt, str::FromStr};

/// A fencing token: the number of one ownership of the volume. Each claim of `head` takes the next number; none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// The position of an epoch in the volume's history. Numbers continue across terms; the first is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u64);

impl Slot {
    /// The slot after this one.
    #[must_use]
    pub fn next(self) -> Slot {
        Slot(self.0.saturating_add(1))
    }

    /// The slot before this one. The one before the first is 0, which no epoch has.
    #[must_use]
    pub fn before(self) -> Slot {
        Slot(self.0.saturating_sub(1))
    }
}

/// A random number of 128 bits, which a machine draws from the system when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

/// Identifies the contents of an object: the first 16 bytes of its hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u128);

/// A slot object: `log/TERM/SLOT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotName {
    /// The term whose writer alone puts epochs there.
    pub term: Term,
    /// The slot.
    pub slot: Slot,
}

/// The name of an object below the volume's prefix. Only `head` and `key` are ever written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// `volume`: the immutable properties.
    Volume,
    /// `head`: the present writer, and the places of the history.
    Head,
    /// `log/TERM/SLOT`: an epoch or a seal.
    Log(SlotName),
    /// `data/TERM-N`: bulk data.
    Data {
        /// The term of its writer.
        term: Term,
        /// A number that the term uses once.
        number: u64,
    },
    /// `map/TERM-N`: a part of a checkpoint.
    Map {
        /// The term of its writer.
        term: Term,
        /// A number that the term uses once.
        number: u64,
    },
    /// `roots/TERM-NONCE`: snapshots and pins. Machines other than the writer put them, hence the nonce.
    Roots {
        /// The highest claimed term when it was made.
        term: Term,
        /// The nonce of the machine that made it. A machine makes one list for each nonce.
        nonce: Nonce,
    },
    /// `reader/ID`: a reader's lease.
    Reader(Nonce),
    /// `key`: the wrapped key of an encrypted volume. It is overwritten when the key file changes; the protocol does not use
    /// it.
    Key,
}

impl From<SlotName> for ObjectName {
    fn from(name: SlotName) -> ObjectName {
        ObjectName::Log(name)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectName::Volume => f.write_str("volume"),
            ObjectName::Head => f.write_str("head"),
            ObjectName::Log(SlotName { term, slot }) => {
                write!(f, "log/{:016x}/{:016x}", term.0, slot.0)
            }
            ObjectName::Data { term, number } => write!(f, "data/{:016x}-{number:016x}", term.0),
            ObjectName::Map { term, number } => write!(f, "map/{:016x}-{number:016x}", term.0),
            ObjectName::Roots { term, nonce } => {
                write!(f, "roots/{:016x}-{:032x}", term.0, nonce.0)
            }
            ObjectName::Reader(id) => write!(f, "reader/{:032x}", id.0),
            ObjectName::Key => f.write_str("key"),
        }
    }
}

/// A text that is not the name of a volume's object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no name of a volume's object")]
pub struct ParseName(String);

impl FromStr for ObjectName {
    type Err = ParseName;

    fn from_str(text: &str) -> Result<ObjectName, ParseName> {
        let parsed = parse(text);
        // One spelling for each name: capitals, signs and missing zeros are refused.
        parsed
            .filter(|name| name.to_string() == text)
            .ok_or_else(|| ParseName(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<ObjectName> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let wide = |text: &str| u128::from_str_radix(text, 16).ok().map(Nonce);
    match text {
        "volume" => return Some(ObjectName::Volume),
        "head" => return Some(ObjectName::Head),
        "key" => return Some(ObjectName::Key),
        _ => {}
    }
    let (kind, rest) = text.split_once('/')?;
    if kind == "reader" {
        return Some(ObjectName::Reader(wide(rest)?));
    }
    let (term, number) = rest.split_once(if kind == "log" { '/' } else { '-' })?;
    let term = Term(hex(term)?);
    match kind {
        "log" => Some(ObjectName::Log(SlotName {
            term,
            slot: Slot(hex(number)?),
        })),
        "data" => Some(ObjectName::Data {
            term,
            number: hex(number)?,
        }),
        "map" => Some(ObjectName::Map {
            term,
            number: hex(number)?,
        }),
        "roots" => Some(ObjectName::Roots {
            term,
            nonce: wide(number)?,
        }),
        _ => None,
    }
}

/// An object and its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Name of the object.
    pub name: ObjectName,
    /// Stamp that its contents must have.
    pub stamp: Stamp,
}

/// One version of `head`. It is part of the contents, so no two versions have the same bytes or the same ETag.
///
/// A machine never gives two contents the same version: it resends a swap unchanged until it knows the outcome, and a
/// version that another machine wrote has a higher counter than the version that the swap replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Number of versions before this one.
    pub counter: u64,
    /// The nonce of the machine that wrote it.
    pub nonce: Nonce,
}

/// The last claim of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The highest term that was ever claimed.
    pub term: Term,
    /// The nonce of the machine that claimed it.
    pub nonce: Nonce,
}

/// The published checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base {
    /// The last slot in the checkpoint.
    pub through: Slot,
    /// Its root; none before the first checkpoint.
    pub root: Option<Reference>,
}

/// The slots after the checkpoint that one term wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The term.
    pub term: Term,
    /// Its first slot after the checkpoint.
    pub first: Slot,
    /// Its last slot; none while the term is open. Only the last span is open.
    pub last: Option<Slot>,
}

/// The contents of `head`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head {
    /// The version of this head.
    pub version: Version,
    /// The last claim of the volume.
    pub claim: Claim,
    /// The published checkpoint.
    pub base: Base,
    /// The terms with slots after the checkpoint, oldest first. The last is open.
    pub spans: Vec<Span>,
    /// The list of snapshots and pins; none before the first one.
    pub roots: Option<Reference>,
    /// The open term's writer has written its last slot and serves no client: a successor need not wait for its lease.
    pub released: bool,
}

impl Head {
    /// The head of a new volume. Term 1 is open and has no writer.
    #[must_use]
    pub fn new(nonce: Nonce) -> Head {
        let term = Term(1);
        Head {
            version: Version { counter: 1, nonce },
            claim: Claim { term, nonce },
            base: Base::default(),
            spans: vec![Span {
                term,
                first: Slot(1),
                last: None,
            }],
            roots: None,
            released: true,
        }
    }

    /// The open term, if the head is well formed.
    #[must_use]
    pub fn open_term(&self) -> Option<Term> {
        self.spans.last().map(|span| span.term)
    }

    /// Checks that the spans are in order and without gap, begin after the checkpoint, and that only the last one is open.
    ///
    /// # Errors
    ///
    /// The violated rule. A decoder refuses such a head.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut at = self.base.through.next();
        let mut term = Term(0);
        for (i, span) in self.spans.iter().enumerate() {
            if span.term <= term || span.term > self.claim.term {
                return Err("its terms are out of order");
            }
            if span.first != at {
                return Err("its terms leave a gap in the log");
            }
            term = span.term;
            match span.last {
                Some(last) if last >= at && i + 1 < self.spans.len() => at = last.next(),
                None if i + 1 == self.spans.len() => {}
                _ => return Err("its last term alone must be open"),
            }
        }
        if self.spans.is_empty() {
            Err("no term is open")
        } else {
            Ok(())
        }
    }

    /// The object that holds `slot`, if it lies after the checkpoint.
    #[must_use]
    pub fn slot_name(&self, slot: Slot) -> Option<SlotName> {
        let holds = |span: &&Span| span.first <= slot && span.last.is_none_or(|last| slot <= last);
        self.spans.iter().find(holds).map(|span| SlotName {
            term: span.term,
            slot,
        })
    }

    /// The version that follows this one, written by `nonce`.
    pub(super) fn successor(&self, nonce: Nonce) -> Head {
        let version = Version {
            counter: self.version.counter.saturating_add(1),
            nonce,
        };
        Head {
            version,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let term = Term(3);
        for name in [
            ObjectName::Volume,
            ObjectName::Head,
            ObjectName::Log(SlotName {
                term,
                slot: Slot(70),
            }),
            ObjectName::Data { term, number: 0 },
            ObjectName::Map {
                term,
                number: u64::MAX,
            },
            ObjectName::Roots {
                term,
                nonce: Nonce(u128::MAX),
            },
            ObjectName::Reader(Nonce(1)),
        ] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        for text in [
            "",
            "heads",
            "log/1/2",
            "data/+000000000000001-0000000000000000",
            "map/",
            "reader/1",
            "log/0000000000000001",
        ] {
            assert!(text.parse::<ObjectName>().is_err(), "{text}");
        }
        let capitals = "data/000000000000000A-0000000000000000";
        assert!(capitals.parse::<ObjectName>().is_err());
    }

    #[test]
    fn a_head_with_a_gap_in_its_log_is_refused() {
        let mut head = Head::new(Nonce(1));
        assert_eq!(head.check(), Ok(()));
        head.claim.term = Term(2);
        head.spans = vec![
            Span {
                term: Term(1),
                first: Slot(1),
                last: Some(Slot(4)),
            },
            Span {
                term: Term(2),
                first: Slot(5),
                last: None,
            },
        ];
        assert_eq!(head.check(), Ok(()));
        assert_eq!(head.slot_name(Slot(4)).map(|name| name.term), Some(Term(1)));
        assert_eq!(head.slot_name(Slot(9)).map(|name| name.term), Some(Term(2)));
        for wrong in [
            |head: &mut Head| head.spans[1].first = Slot(6),
            |head: &mut Head| head.spans[0].last = None,
            |head: &mut Head| head.spans[1].last = Some(Slot(9)),
            |head: &mut Head| head.claim.term = Term(1),
            |head: &mut Head| head.spans.clear(),
            |head: &mut Head| head.base.through = Slot(3),
        ] {
            let mut bad = head.clone();
            wrong(&mut bad);
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
