//! Times of inodes: ordinary words, in the fence of the call that sets them. Nothing is ordered by them.

use smallvec::SmallVec;
use std::marker::PhantomData;

use super::line::LineWriter;
use super::medium::Medium;
use super::persist::{Clean, Dirty, Fenced, FencedSealed, InFlight, Witness};
use super::second_line::SecondLine;
use crate::layout::{InodeRef, LINE_BYTES, inode};
use crate::state::Result;

/// Times to set; `None` leaves one alone. Nanoseconds since 1970 as in [`time_word`](crate::layout::time_word).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Time of the last access.
    pub atime: Option<u64>,
    /// Time of the last change of the content.
    pub mtime: Option<u64>,
    /// Time of the last change.
    pub ctime: Option<u64>,
}

/// Times of the inodes that a call touches, each inode once.
#[must_use]
pub struct Stamps<'m, P> {
    m: &'m Medium,
    /// Address of each line, once.
    lines: SmallVec<[u64; 4]>,
    _state: PhantomData<P>,
}

/// Times that are to be stored: their inodes exist.
#[must_use]
pub struct Touches<'m> {
    m: &'m Medium,
    of: SmallVec<[(InodeRef, u64, Times); 4]>,
}

impl<'m> Touches<'m> {
    /// A set without times.
    #[inline]
    pub fn new(m: &'m Medium) -> Touches<'m> {
        Touches {
            m,
            of: SmallVec::new(),
        }
    }

    /// Adds an inode; of two entries for one inode the later one counts, time by time.
    ///
    /// # Errors
    /// [`Error::Stale`](crate::state::Error::Stale) if it is not there any more.
    #[inline]
    pub fn add(&mut self, inode: InodeRef, times: Times) -> Result<()> {
        let at = self.m.live_inode(inode)?;
        let known = self.of.iter_mut().find(|entry| entry.0 == inode);
        if let Some((_, _, known)) = known {
            known.atime = times.atime.or(known.atime);
            known.mtime = times.mtime.or(known.mtime);
            known.ctime = times.ctime.or(known.ctime);
        } else {
            self.of.push((inode, at, times));
        }
        Ok(())
    }

    /// Adds a directory whose names change.
    ///
    /// # Errors
    /// As [`add`](Touches::add).
    #[inline]
    pub fn directory(&mut self, dir: InodeRef, now: u64) -> Result<()> {
        let times = Times {
            atime: None,
            mtime: Some(now),
            ctime: Some(now),
        };
        self.add(dir, times)
    }

    /// Adds an inode whose number of links changes.
    ///
    /// # Errors
    /// As [`add`](Touches::add).
    #[inline]
    pub fn changed(&mut self, inode: InodeRef, now: u64) -> Result<()> {
        let times = Times {
            ctime: Some(now),
            ..Times::default()
        };
        self.add(inode, times)
    }

    /// Adds the time of an access.
    ///
    /// # Errors
    /// As [`add`](Touches::add).
    #[inline]
    pub fn accessed(&mut self, inode: InodeRef, atime: u64) -> Result<()> {
        let times = Times {
            atime: Some(atime),
            ..Times::default()
        };
        self.add(inode, times)
    }

    /// Stores the times.
    #[inline]
    pub fn stamp(self) -> Stamps<'m, Dirty> {
        let (m, mut lines) = (self.m, SmallVec::new());
        for (of, at, times) in &self.of {
            let mut line = LineWriter::new(m, *at);
            if let Some(mtime) = times.mtime {
                line.word(inode::MTIME, mtime);
            }
            if let Some(ctime) = times.ctime {
                line.word(inode::CTIME, ctime);
            }
            if times.mtime.or(times.ctime).is_some() {
                lines.push(*at);
            }
            if times.atime.is_some() {
                let line = SecondLine {
                    m,
                    at: *at,
                    generation: of.generation,
                };
                line.rewrite(times.atime, None);
                lines.push(at + inode::EXTRA);
            }
        }
        Stamps {
            m,
            lines,
            _state: PhantomData,
        }
    }
}

impl<'m> Stamps<'m, Dirty> {
    /// Writes each line back once.
    #[inline]
    pub fn flush(self) -> Stamps<'m, InFlight> {
        for at in &self.lines {
            self.m.region.write_back(*at, LINE_BYTES);
        }
        Stamps {
            m: self.m,
            lines: SmallVec::new(),
            _state: PhantomData,
        }
    }
}

impl FencedSealed for Stamps<'_, InFlight> {}
impl<'m> Fenced for Stamps<'m, InFlight> {
    type Clean = Stamps<'m, Clean>;
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        Stamps {
            m: self.m,
            lines: self.lines,
            _state: PhantomData,
        }
    }
}
