//! The disk after a power cut, again and again, from a record.
//!
//! Everything flushed before the cut is there. Of the writes after the last flush there are, by the seed: all; or each with
//! probability one half; or that, and of some only some sectors. Later writes to the disk lie above, and go with the next
//! cut.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::files;
use crate::record::{Event, Reader};
use steadfast_testkit::Random;

const SECTOR: usize = 512;

struct State {
    backing: File,
    record: Reader,
    /// Events that were read.
    taken: u64,
    /// Events after the last flush.
    pending: Vec<Event>,
    last_mark: Vec<u8>,
    /// Writes above the durable content.
    above: HashMap<u64, [u8; SECTOR]>,
    counters: [u64; 4],
}

/// A disk that loses power.
pub(crate) struct Disk {
    len: u64,
    events: u64,
    begin: u64,
    state: Mutex<State>,
}

fn coin(random: &mut Random) -> bool {
    random.below(2) == 1
}

/// Selection of the pending writes that survive.
#[derive(Clone, Copy)]
enum Kind {
    All,
    Some,
    Torn,
}

impl State {
    fn put(&mut self, at: u64, bytes: &[u8], mut keep: impl FnMut() -> bool) -> io::Result<()> {
        let (sectors, rest) = bytes.as_chunks::<SECTOR>();
        if !at.is_multiple_of(SECTOR as u64) || !rest.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not whole sectors",
            ));
        }
        for (k, sector) in sectors.iter().enumerate() {
            if keep() {
                self.above.insert(at / SECTOR as u64 + k as u64, *sector);
            }
        }
        Ok(())
    }

    fn zero(&mut self, at: u64, len: u64) {
        for sector in at.div_ceil(SECTOR as u64)..(at + len) / SECTOR as u64 {
            self.above.insert(sector, [0; SECTOR]);
        }
    }

    /// Takes events up to number `until`; writes that a flush makes durable go to the backing file.
    fn advance(&mut self, until: u64) -> io::Result<()> {
        while self.taken < until {
            let Some(event) = self.record.next()? else {
                break;
            };
            self.taken += 1;
            match event {
                Event::Mark(text) => self.last_mark = text,
                Event::Flush => {
                    for event in std::mem::take(&mut self.pending) {
                        match event {
                            Event::Write(at, bytes) => self.backing.write_all_at(&bytes, at)?,
                            Event::Trim(at, len) => {
                                let zeros =
                                    vec![0; usize::try_from(len).map_err(io::Error::other)?];
                                self.backing.write_all_at(&zeros, at)?;
                            }
                            Event::Flush | Event::Mark(_) => {}
                        }
                    }
                }
                event => self.pending.push(event),
            }
        }
        Ok(())
    }

    fn cut(&mut self, at: u64, seed: u64) -> io::Result<()> {
        self.advance(at)?;
        self.above.clear();
        let mut random = Random::new(seed);
        let kind = [Kind::All, Kind::Some, Kind::Torn][(seed % 3) as usize];
        let pending = std::mem::take(&mut self.pending);
        for event in &pending {
            let survives = matches!(kind, Kind::All) || coin(&mut random);
            match event {
                Event::Write(at, bytes) if matches!(kind, Kind::Torn) && !survives => {
                    self.put(*at, bytes, || coin(&mut random))?;
                }
                Event::Write(at, bytes) if survives => self.put(*at, bytes, || true)?,
                Event::Trim(at, len) if survives => self.zero(*at, *len),
                _ => {}
            }
        }
        self.pending = pending;
        Ok(())
    }
}

impl Disk {
    pub(crate) fn open(record: &Path, backing: &Path) -> Result<Disk, String> {
        let named = |e: io::Error, path: &Path| format!("{}: {e}", path.display());
        let (events, begin) = Reader::survey(record).map_err(|e| named(e, record))?;
        let file = File::options()
            .read(true)
            .write(true)
            .open(backing)
            .map_err(|e| named(e, backing))?;
        Ok(Disk {
            len: file.metadata().map_err(|e| named(e, backing))?.len(),
            events,
            begin,
            state: Mutex::new(State {
                backing: file,
                record: Reader::open(record).map_err(|e| named(e, record))?,
                taken: 0,
                pending: Vec::new(),
                last_mark: Vec::new(),
                above: HashMap::new(),
                counters: [0; 4],
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl files::Disk for Disk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        state.backing.read_exact_at(bytes, at)?;
        if state.above.is_empty() {
            return Ok(());
        }
        let end = at + bytes.len() as u64;
        for sector in at / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let Some(content) = state.above.get(&sector) else {
                continue;
            };
            let from = sector * SECTOR as u64;
            for (k, byte) in content.iter().enumerate() {
                let place = from + k as u64;
                if (at..end).contains(&place) {
                    bytes[(place - at) as usize] = *byte;
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.counters[0] += 1;
        state.counters[1] += bytes.len() as u64;
        state.put(at, bytes, || true)
    }

    fn flush(&self) -> io::Result<()> {
        self.state().counters[2] += 1;
        Ok(())
    }

    fn trim(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.counters[3] += 1;
        state.zero(at, len);
        Ok(())
    }

    fn command(&self) -> &'static str {
        "control"
    }

    fn commanded(&self, text: &[u8]) -> Result<(), String> {
        let numbers: Option<Vec<u64>> = (std::str::from_utf8(text).ok()).and_then(|text| {
            text.split_ascii_whitespace()
                .map(|word| word.parse().ok())
                .collect()
        });
        let (k, n, seed) = match numbers.as_deref() {
            Some([k, n, seed]) if k <= n && *n > 0 => (*k, *n, *seed),
            _ => return Err("a cut is 'K N SEED', K at most N".to_owned()),
        };
        let span = u128::from(self.events - self.begin);
        let at =
            self.begin + u64::try_from(span * u128::from(k) / u128::from(n)).unwrap_or(u64::MAX);
        let mut state = self.state();
        if at < state.taken {
            return Err(format!("event {at} has passed: {} were taken", state.taken));
        }
        state
            .cut(at, seed)
            .map_err(|e| format!("cut at event {at}: {e}"))
    }

    fn answer(&self) -> String {
        let mark = self.state().last_mark.clone();
        format!("{}\n", String::from_utf8_lossy(&mark))
    }

    fn counters(&self) -> [u64; 4] {
        self.state().counters
    }

    fn end(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::files::Disk as _;
    use crate::record::Writer;

    #[test]
    fn a_cut_keeps_flushed_writes_and_some_of_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let (record, backing) = (dir.path().join("record"), dir.path().join("backing"));
        std::fs::write(&backing, vec![0; 8 * SECTOR]).unwrap();
        let mut writer = Writer::create(&record).unwrap();
        writer.write(0, &[1; 2 * SECTOR]).unwrap();
        writer.mark(b"begin").unwrap();
        writer.flush().unwrap();
        writer.write(0, &[2; 2 * SECTOR]).unwrap();
        writer.mark(b"two").unwrap();
        writer.end().unwrap();
        let disk = Disk::open(&record, &backing).unwrap();
        let sector = |k: u64| {
            let mut bytes = [0; SECTOR];
            disk.read(k * SECTOR as u64, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0]
        };
        // After the flush nothing is pending.
        disk.commanded(b"1 3 0").unwrap();
        assert_eq!([sector(0), sector(1), sector(2)], [1, 1, 0]);
        assert_eq!(disk.answer(), "begin\n");
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            disk.commanded(format!("3 3 {seed}").as_bytes()).unwrap();
            seen.insert([sector(0), sector(1)]);
            assert_eq!(disk.answer(), "two\n");
            // Later writes go with the next cut.
            disk.write(0, &[9; SECTOR]).unwrap();
            assert_eq!(sector(0), 9);
        }
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            [[1, 1], [1, 2], [2, 1], [2, 2]]
        );
        assert!(disk.commanded(b"1 3 0").is_err(), "backwards");
        assert!(disk.commanded(b"four").is_err());
    }
}
