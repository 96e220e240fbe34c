//! Expected content of a client's directory: the acknowledged operations, applied in order; and permitted differences
//! while an operation waits for its acknowledgement.

use std::collections::BTreeMap;
use std::fmt;

use crate::data;

/// One operation, as it stands in the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Create {
        name: String,
    },
    /// The bytes of `tag`.
    Write {
        name: String,
        offset: u64,
        len: u32,
        tag: u64,
    },
    Size {
        name: String,
        size: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Create { name } => write!(f, "create {name}"),
            Event::Write {
                name,
                offset,
                len,
                tag,
            } => write!(f, "write {name} {offset} {len} {tag}"),
            Event::Size { name, size } => write!(f, "size {name} {size}"),
            Event::Rename { from, to } => write!(f, "rename {from} {to}"),
            Event::Remove { name } => write!(f, "remove {name}"),
        }
    }
}

impl Event {
    pub(crate) fn parse(line: &str) -> Result<Event, String> {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| format!("'{text}' in '{line}' is not a number"))
        };
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words.as_slice() {
            ["create", name] => Event::Create {
                name: (*name).to_owned(),
            },
            ["write", name, offset, len, tag] => Event::Write {
                name: (*name).to_owned(),
                offset: number(offset)?,
                len: number(len)? as u32,
                tag: number(tag)?,
            },
            ["size", name, size] => Event::Size {
                name: (*name).to_owned(),
                size: number(size)?,
            },
            ["rename", from, to] => Event::Rename {
                from: (*from).to_owned(),
                to: (*to).to_owned(),
            },
            ["remove", name] => Event::Remove {
                name: (*name).to_owned(),
            },
            _ => return Err(format!("'{line}' is no operation")),
        })
    }
}

/// A directory's files.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tree(pub(crate) BTreeMap<String, Vec<u8>>);

impl Tree {
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { name } => {
                self.0.entry(name.clone()).or_default();
            }
            Event::Write {
                name,
                offset,
                len,
                tag,
            } => {
                let file = self.0.entry(name.clone()).or_default();
                let (begin, end) = (*offset as usize, *offset as usize + *len as usize);
                if file.len() < end {
                    file.resize(end, 0);
                }
                data::fill(*tag, *offset, &mut file[begin..end]);
            }
            Event::Size { name, size } => {
                self.0
                    .entry(name.clone())
                    .or_default()
                    .resize(*size as usize, 0);
            }
            Event::Rename { from, to } => {
                if let Some(file) = self.0.remove(from) {
                    self.0.insert(to.clone(), file);
                }
            }
            Event::Remove { name } => {
                self.0.remove(name);
            }
        }
    }

    /// Whether a server that has acknowledged this tree and no more may show `found` while `pending` is on its way: each of
    /// several writes may be there in any part; any other operation is there as a whole or not at all.
    pub(crate) fn explains(&self, pending: &[Event], found: &Tree) -> Result<(), String> {
        if let [Event::Write { name, .. }, ..] = pending {
            let (mut expected, mut found) = (self.clone(), found.clone());
            let (before, now) = (expected.0.remove(name), found.0.remove(name));
            expected.same(&found)?;
            return match (before, now) {
                (Some(before), Some(now)) => {
                    written_in_part(&before, pending, &now).map_err(|why| format!("{name}: {why}"))
                }
                _ => Err(format!("{name} is missing, or was never made")),
            };
        }
        let mut verdict = self.same(found);
        if verdict.is_err() && !pending.is_empty() {
            let mut after = self.clone();
            for event in pending {
                after.apply(event);
            }
            verdict = verdict.or_else(|why| {
                after
                    .same(found)
                    .map_err(|other| format!("before '{}': {why}; after it: {other}", pending[0]))
            });
        }
        verdict
    }

    fn same(&self, found: &Tree) -> Result<(), String> {
        for (name, expected) in &self.0 {
            let Some(now) = found.0.get(name) else {
                return Err(format!("{name} is missing"));
            };
            if now.len() != expected.len() {
                return Err(format!(
                    "{name} has {} bytes instead of {}",
                    now.len(),
                    expected.len()
                ));
            }
            if let Some(at) = now.iter().zip(expected).position(|(a, b)| a != b) {
                return Err(format!(
                    "{name}: the byte at {at} is not the acknowledged one"
                ));
            }
        }
        match found.0.keys().find(|name| !self.0.contains_key(*name)) {
            Some(name) => Err(format!("{name} is there, and was removed or never made")),
            None => Ok(()),
        }
    }
}

fn written_in_part(before: &[u8], writes: &[Event], now: &[u8]) -> Result<(), String> {
    let pieces: Vec<(usize, Vec<u8>)> = writes
        .iter()
        .filter_map(|event| match event {
            Event::Write {
                offset, len, tag, ..
            } => {
                let mut bytes = vec![0; *len as usize];
                data::fill(*tag, *offset, &mut bytes);
                Some((*offset as usize, bytes))
            }
            _ => None,
        })
        .collect();
    // A process that is killed leaves the write that it is in half done.
    let ends = pieces.iter().map(|(offset, bytes)| offset + bytes.len());
    let size_max = ends.max().unwrap_or(0).max(before.len());
    if !(before.len()..=size_max).contains(&now.len()) {
        return Err(format!(
            "{} bytes, had {} before the writes",
            now.len(),
            before.len()
        ));
    }
    for (at, byte) in now.iter().enumerate() {
        let old = before.get(at).copied().unwrap_or(0);
        let new = pieces.iter().any(|(offset, bytes)| {
            at.checked_sub(*offset).and_then(|i| bytes.get(i)) == Some(byte)
        });
        if *byte != old && !new {
            return Err(format!(
                "the byte at {at} is neither the old nor the new one"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn create(name: &str) -> Event {
        Event::Create {
            name: name.to_owned(),
        }
    }

    fn write(name: &str, offset: u64, len: u32, tag: u64) -> Event {
        Event::Write {
            name: name.to_owned(),
            offset,
            len,
            tag,
        }
    }

    fn tree(events: &[Event]) -> Tree {
        let mut tree = Tree::default();
        for event in events {
            tree.apply(event);
        }
        tree
    }

    fn rename(from: &str, to: &str) -> Event {
        Event::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        }
    }

    #[test]
    fn every_event_is_read_back_as_it_was_recorded() {
        for event in [
            create("a"),
            write("a", 7, 9, u64::MAX),
            Event::Size {
                name: "a".to_owned(),
                size: 3,
            },
            rename("a", "b"),
            Event::Remove {
                name: "b".to_owned(),
            },
        ] {
            assert_eq!(Event::parse(&event.to_string()), Ok(event));
        }
        assert!(
            Event::parse("write a 1 2")
                .unwrap_err()
                .contains("no operation")
        );
        assert!(
            Event::parse("size a b")
                .unwrap_err()
                .contains("not a number")
        );
    }

    #[test]
    fn acknowledged_operations_must_be_there_and_nothing_else() {
        let expected = tree(&[create("a"), write("a", 0, 10, 1), create("b")]);
        expected.explains(&[], &expected).unwrap();
        let lost = tree(&[create("a"), create("b")]);
        assert!(
            expected
                .explains(&[], &lost)
                .unwrap_err()
                .contains("0 bytes")
        );
        let other = tree(&[create("a"), write("a", 0, 10, 2), create("b")]);
        assert!(
            expected
                .explains(&[], &other)
                .unwrap_err()
                .contains("byte at 0")
        );
        let gone = tree(&[create("a"), write("a", 0, 10, 1)]);
        assert!(
            expected
                .explains(&[], &gone)
                .unwrap_err()
                .contains("b is missing")
        );
        assert!(
            gone.explains(&[], &expected)
                .unwrap_err()
                .contains("b is there")
        );
    }

    #[test]
    fn a_rename_on_its_way_is_seen_before_or_after_but_never_between() {
        let before = tree(&[
            create("a"),
            write("a", 0, 10, 1),
            create("b"),
            write("b", 0, 5, 2),
        ]);
        let pending = [rename("a", "b")];
        let mut after = before.clone();
        after.apply(&pending[0]);
        before.explains(&pending, &before).unwrap();
        before.explains(&pending, &after).unwrap();
        let mut both = after.clone();
        both.apply(&create("a"));
        before.explains(&pending, &both).unwrap_err();
        let mut neither = before.clone();
        neither.0.remove("a");
        before.explains(&pending, &neither).unwrap_err();
    }

    #[test]
    fn writes_on_their_way_may_show_old_and_new_bytes_but_no_others() {
        let before = tree(&[create("a"), write("a", 0, 100, 1)]);
        let pending = [write("a", 50, 100, 2), write("a", 150, 50, 2)];
        // The second without the first leaves zeros between.
        let mut found = before.clone();
        found.apply(&pending[1]);
        before.explains(&pending, &found).unwrap();
        found.apply(&pending[0]);
        before.explains(&pending, &found).unwrap();
        found.0.get_mut("a").unwrap()[10] ^= 1;
        assert!(
            before
                .explains(&pending, &found)
                .unwrap_err()
                .contains("byte at 10")
        );
        let mut half = before.clone();
        half.apply(&write("a", 50, 70, 2));
        before.explains(&pending, &half).unwrap();
        let mut long = before.clone();
        long.apply(&write("a", 50, 200, 2));
        assert!(
            before
                .explains(&pending, &long)
                .unwrap_err()
                .contains("250 bytes")
        );
        let mut short = before.clone();
        short.0.get_mut("a").unwrap().truncate(99);
        assert!(
            before
                .explains(&pending, &short)
                .unwrap_err()
                .contains("99 bytes")
        );
        let mut stale = before.clone();
        stale.apply(&write("a", 50, 100, 3));
        assert!(
            before
                .explains(&pending, &stale)
                .unwrap_err()
                .contains("neither")
        );
        before.explains(&pending, &tree(&[])).unwrap_err();
    }
}
