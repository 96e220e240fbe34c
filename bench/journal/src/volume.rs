//! Layout of the device of a measure, and the journal on it.

use crate::device::Counting;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo};
use steadfast_journal::{Config, Credits, Journal, META_BYTES, Region, seal};

const VOLUME: [u8; 16] = *b"steadfast bench.";

/// Bytes of an object: an inode of the classic kind.
pub(crate) const OBJECT_BYTES: usize = 128;
/// Objects in a metadata block.
pub(crate) const OBJECTS_PER_BLOCK: u64 = (META_BYTES / OBJECT_BYTES) as u64;
/// Bits that one thread has in each bitmap; 64 threads share a block.
pub(crate) const BITS_PER_THREAD: u64 = (META_BYTES * 8 / 64) as u64;

/// Tail headers, log, then sealed metadata blocks, then data blocks.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) log_blocks: u64,
    pub(crate) meta_blocks: u64,
    pub(crate) data_blocks: u64,
}

impl Layout {
    pub(crate) fn region(&self) -> Region {
        Region {
            headers: [BlockNo(0), BlockNo(1)],
            log: BlockNo(2),
            log_blocks: self.log_blocks,
        }
    }

    /// The first block after the journal's own.
    pub(crate) fn journal_end(&self) -> u64 {
        2 + self.log_blocks
    }

    pub(crate) fn meta(&self, index: u64) -> BlockNo {
        BlockNo(self.journal_end() + index)
    }

    pub(crate) fn data(&self, index: u64) -> BlockNo {
        self.meta(self.meta_blocks + index)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.data(self.data_blocks).0
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(self.region(), VOLUME).without_workers()
    }

    /// Writes an empty journal and the metadata blocks.
    pub(crate) fn format(&self, device: &dyn BlockDevice) -> Result<(), String> {
        const STEP_BLOCKS: u64 = 256;
        Journal::format(device, &self.region(), &VOLUME).map_err(|e| e.to_string())?;
        let mut from = 0;
        while from < self.meta_blocks {
            let count = STEP_BLOCKS.min(self.meta_blocks - from);
            let mut blocks = BlockBuf::zeroed(count as usize);
            let (each, _) = blocks.as_bytes_mut().as_chunks_mut::<BLOCK_SIZE>();
            for (i, block) in each.iter_mut().enumerate() {
                seal(&VOLUME, self.meta(from + i as u64), block);
            }
            let written = device.write(self.meta(from), &[blocks.as_bytes()]);
            written.map_err(|e| e.to_string())?;
            from += count;
        }
        device.flush().map_err(|e| e.to_string())
    }

    /// Formats the device and opens the journal, workers running; nothing of that is counted.
    pub(crate) fn fresh(
        &self,
        device: Arc<dyn BlockDevice>,
    ) -> Result<(Journal, Arc<Counting>), String> {
        self.format(&*device)?;
        let device = Arc::new(Counting::new(device, self.journal_end()));
        let opened = Journal::open(Arc::<Counting>::clone(&device), self.config());
        let (journal, _) = opened.map_err(|e| e.to_string())?;
        journal.start_workers();
        device.reset();
        Ok((journal, device))
    }
}

/// Credits for `log_bytes` encoded bytes.
pub(crate) fn log_credits(log_bytes: u64) -> Credits {
    Credits {
        log_bytes,
        data_blocks: 0,
    }
}

/// Object number `index` of those that lie in the metadata blocks from `first` on: block and offset.
pub(crate) fn object(first: u64, index: u64) -> (u64, usize) {
    (
        first + index / OBJECTS_PER_BLOCK,
        (index % OBJECTS_PER_BLOCK) as usize * OBJECT_BYTES,
    )
}

/// An object's bytes at its `turn`: they differ from one turn to the next.
pub(crate) fn contents(turn: u64) -> [u8; OBJECT_BYTES] {
    let mut bytes = [turn as u8; OBJECT_BYTES];
    bytes[..8].copy_from_slice(&turn.to_le_bytes());
    bytes
}
