//! Reads the medium of a running journal: the blocks at their homes, not in memory.
//!
//! A block that an operation, a transaction or the log still holds may be newer in memory than at home, or
//! just be on its way there: it is passed over. Its checkpoint writes all of it. A block without holds equals its
//! home (`cache`), so bytes without a valid seal are damage; that no write of it began meanwhile is
//! looked at after each read.

use crate::engine::Inner;
use crate::handle::Journal;
use crate::{Result, seal_holds};
use steadfast_block::{BLOCK_SIZE, BlockNo};

/// Reads before a block counts as damaged. One is not enough if the block is written during the read.
const READS: usize = 3;

/// Content of a metadata block's home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtHome {
    /// A block with a valid checksum.
    Sound,
    /// An older state than the one in memory and in the log; not looked at.
    Older,
    /// Bytes that fail their checksum.
    Damaged,
}

impl Journal {
    /// Reads the home of a metadata block and compares its checksum.
    ///
    /// # Errors
    /// The device's.
    pub fn check_home(&self, at: BlockNo) -> Result<AtHome> {
        let inner = self.inner();
        let mut block = [0; BLOCK_SIZE];
        for _ in 0..READS {
            if inner.is_held(at) {
                return Ok(AtHome::Older);
            }
            inner.device.read(at, &mut block)?;
            if seal_holds(&inner.config.volume, at, &block) {
                return Ok(AtHome::Sound);
            }
        }
        Ok(match inner.is_held(at) {
            true => AtHome::Older,
            false => AtHome::Damaged,
        })
    }

    /// Reads blocks of data from their homes, not from memory: to see whether they can be read.
    ///
    /// # Errors
    /// The device's.
    pub fn read_home(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        Ok(self.inner().device.read(at, buf)?)
    }
}

impl Inner {
    fn is_held(&self, at: BlockNo) -> bool {
        self.cache.with(at, |entry| entry.holds > 0) == Some(true)
    }
}
