//! The served medium: a block device that can go back to its last flush, and knows its holes.

use std::ops::Range;

use steadfast_block::{BlockDevice, BlockNo};
use steadfast_flash::Store;
use steadfast_ftl::{Disk, DiskError};

/// Blocks of one kind, one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of blocks.
    pub blocks: u64,
    /// They were never written, or trimmed since: they read as zeros and take no room.
    pub hole: bool,
}

/// See the module's header.
pub trait Medium: BlockDevice {
    /// Blocks that can be written from one flush to the next.
    fn epoch_blocks(&self) -> u64;

    /// The run of blocks that begins at `range.start`, and ends with the range at the latest.
    ///
    /// # Errors
    /// The layer's, where it has to read its map.
    fn run(&self, range: Range<BlockNo>) -> steadfast_block::Result<Run>;

    /// Forgets the writes since the last flush.
    ///
    /// # Errors
    /// Those of a mount; the disk is then of no use any more.
    fn roll_back(&self) -> Result<(), DiskError>;
}

impl<S: Store + Send + 'static> Medium for Disk<S> {
    fn epoch_blocks(&self) -> u64 {
        let sectors = self.limits().map_or(0, |limits| limits.epoch);
        let bytes = self.look(|layer| layer.platform().nand().geometry().sector_bytes);
        sectors * u64::from(bytes.unwrap_or(0)) / steadfast_block::BLOCK_SIZE as u64
    }

    fn run(&self, range: Range<BlockNo>) -> steadfast_block::Result<Run> {
        let (blocks, mapped) = self.run(range.start, range.end.0.saturating_sub(range.start.0))?;
        Ok(Run {
            blocks,
            hole: !mapped,
        })
    }

    fn roll_back(&self) -> Result<(), DiskError> {
        self.rollback()
    }
}
