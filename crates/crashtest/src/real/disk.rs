//! A disk that logs writes and flushes, in order, and the images that a power cut could leave of it.
//!
//! The disk has a volatile cache, as real ones do. Everything up to the last flush is on the medium. Each sector that
//! was written since holds any of its versions: [`Pick`] chooses writes, and pieces of writes, in the order of the
//! log.

use crate::states::Chance;
use std::sync::Arc;
use steadfast_model::data::FileData;

/// Bytes that no power cut tears.
pub const SECTOR: u64 = 512;

/// One entry of the log.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// The offset.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// All earlier writes are on the medium.
    Flush,
    /// The workload has made this many calls, and the last one has returned.
    Returned(usize),
}

/// Choice among the writes since the last flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Pick {
    /// All of them.
    All,
    /// None.
    None,
    /// Each at random.
    Subset(u64),
    /// All but one.
    Without(u64),
    /// Only one.
    Only(u64),
    /// All, and one of them is torn.
    Torn(u64),
    /// Each at random, and those that are kept may be torn.
    Shreds(u64),
}

impl Pick {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Pick::All => "prefix",
            Pick::None => "flushed alone",
            Pick::Subset(_) => "subset",
            Pick::Without(_) => "one write lost",
            Pick::Only(_) => "one write early",
            Pick::Torn(_) => "one write torn",
            Pick::Shreds(_) => "subset, torn",
        }
    }
}

/// A disk with the log of its requests.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The disk before the first entry.
    pub base: FileData,
    /// The log.
    pub log: Vec<Event>,
}

/// Goes through a log and forms images; positions must not go back.
pub struct Cutter<'a> {
    recording: &'a Recording,
    /// The medium after the last flush before `at`.
    medium: FileData,
    /// The first entry after that flush.
    pending: usize,
    at: usize,
    /// Bytes that this disk does not tear.
    atom: usize,
}

impl<'a> Cutter<'a> {
    /// From the beginning of a log.
    #[must_use]
    pub fn new(recording: &'a Recording, atom: u64) -> Cutter<'a> {
        Cutter {
            recording,
            medium: recording.base.clone(),
            pending: 0,
            at: 0,
            atom: atom.max(SECTOR) as usize,
        }
    }

    /// Advances to the moment after `at` entries.
    pub fn advance(&mut self, at: usize) {
        let log = &self.recording.log;
        let at = at.min(log.len());
        for i in self.at..at {
            if matches!(log[i], Event::Flush) {
                for event in &log[self.pending..i] {
                    apply(&mut self.medium, event, self.atom, None);
                }
                self.pending = i + 1;
            }
        }
        self.at = self.at.max(at);
    }

    /// Number of writes since the last flush.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.writes().count()
    }

    fn writes(&self) -> impl Iterator<Item = &'a Event> {
        let log = &self.recording.log[self.pending.min(self.at)..self.at];
        log.iter().filter(|e| matches!(e, Event::Write { .. }))
    }

    /// The image that a power cut at this moment leaves.
    #[must_use]
    pub fn image(&self, pick: Pick) -> FileData {
        let mut image = self.medium.clone();
        let count = self.pending();
        let one = |seed: u64| Chance::new(seed).below(count);
        for (i, event) in self.writes().enumerate() {
            let chance = |seed: u64| Chance::new(seed ^ (i as u64 + 1).wrapping_mul(0x9e37));
            match pick {
                Pick::All => apply(&mut image, event, self.atom, None),
                Pick::None => {}
                Pick::Subset(seed) if chance(seed).below(2) == 0 => {}
                Pick::Without(seed) if one(seed) == i => {}
                Pick::Only(seed) if one(seed) != i => {}
                Pick::Torn(seed) if one(seed) == i => {
                    apply(&mut image, event, self.atom, Some(&mut chance(seed)));
                }
                Pick::Shreds(seed) => {
                    let mut chance = chance(seed);
                    match chance.below(3) {
                        0 => {}
                        1 => apply(&mut image, event, self.atom, None),
                        _ => apply(&mut image, event, self.atom, Some(&mut chance)),
                    }
                }
                Pick::Subset(_) | Pick::Without(_) | Pick::Only(_) | Pick::Torn(_) => {
                    apply(&mut image, event, self.atom, None);
                }
            }
        }
        image
    }
}

/// Applies a write; if it is torn, some of its atoms stay as they were.
fn apply(image: &mut FileData, event: &Event, atom: usize, torn: Option<&mut Chance>) {
    let Event::Write { offset, bytes } = event else {
        return;
    };
    let Some(chance) = torn else {
        image.write(*offset, bytes);
        return;
    };
    let whole = bytes.len().div_ceil(atom);
    // Half of the tears are simple: a first part, or a last part.
    let cut = 1 + chance.below(whole.saturating_sub(1));
    let kind = chance.below(4);
    for (i, part) in bytes.chunks(atom).enumerate() {
        let kept = match kind {
            0 => i < cut,
            1 => i >= cut,
            _ => chance.below(2) == 1,
        };
        if kept {
            image.write(offset + (i * atom) as u64, part);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn write(offset: u64, byte: u8) -> Event {
        Event::Write {
            offset,
            bytes: Arc::from(vec![byte; 1024]),
        }
    }

    fn at(image: &FileData, offset: u64) -> u8 {
        let mut byte = [0];
        image.read(offset, &mut byte);
        byte[0]
    }

    fn recording() -> Recording {
        Recording {
            base: FileData::new(),
            log: vec![
                write(0, 1),
                Event::Flush,
                write(0, 2),
                write(4096, 3),
                Event::Returned(1),
                Event::Flush,
            ],
        }
    }

    #[test]
    fn what_was_flushed_is_in_every_image() {
        let recording = recording();
        let mut cutter = Cutter::new(&recording, SECTOR);
        cutter.advance(4);
        assert_eq!(cutter.pending(), 2);
        for seed in 0..50 {
            for pick in [Pick::None, Pick::Subset(seed), Pick::Shreds(seed)] {
                let image = cutter.image(pick);
                assert!(matches!(at(&image, 0), 1 | 2), "{pick:?}");
                assert!(matches!(at(&image, 4096), 0 | 3), "{pick:?}");
            }
        }
        cutter.advance(6);
        assert_eq!(cutter.pending(), 0);
        assert_eq!(at(&cutter.image(Pick::None), 4096), 3);
    }

    #[test]
    fn a_later_write_may_be_there_without_an_earlier_one() {
        let recording = recording();
        let mut cutter = Cutter::new(&recording, SECTOR);
        cutter.advance(4);
        let seen = |pick: Pick| {
            let image = cutter.image(pick);
            (at(&image, 0), at(&image, 4096))
        };
        let all: Vec<_> = (0..32).map(|s| seen(Pick::Subset(s))).collect();
        for wanted in [(1, 0), (1, 3), (2, 0), (2, 3)] {
            assert!(all.contains(&wanted), "{wanted:?} never came");
        }
        assert!((0..32).all(|s| matches!(seen(Pick::Without(s)), (1, 3) | (2, 0))));
    }

    #[test]
    fn a_torn_write_leaves_whole_sectors() {
        let recording = recording();
        let mut cutter = Cutter::new(&recording, SECTOR);
        cutter.advance(3);
        let torn: Vec<_> = (0..32)
            .map(|s| cutter.image(Pick::Torn(s)))
            .map(|i| (at(&i, 0), at(&i, 511), at(&i, 512), at(&i, 1023)))
            .collect();
        assert!(torn.iter().all(|(a, b, c, d)| a == b && c == d));
        assert!(torn.iter().any(|(a, _, c, _)| a != c));
    }
}
