//! Devices around the devices measured: one counts, one keeps home writes from happening.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, Direct, FileDevice, FileOptions, Geometry, MemDevice, Result,
};

/// The file of a measure, around the page cache where the host can do it.
pub(crate) fn open_file(path: &Path) -> std::result::Result<FileDevice, String> {
    let options = FileOptions {
        direct: Direct::Prefer,
        ..FileOptions::default()
    };
    let device = FileDevice::open(path, &options).map_err(|e| e.to_string())?;
    if let Some(reason) = device.direct_refusal() {
        eprintln!(
            "journal: {} goes through the page cache: {reason}",
            path.display()
        );
    }
    Ok(device)
}

/// `memory`, or a file of at least `blocks` blocks.
pub(crate) fn open(name: &str, blocks: u64) -> std::result::Result<Arc<dyn BlockDevice>, String> {
    if name == "memory" {
        return Ok(Arc::new(MemDevice::new(blocks)));
    }
    let device = open_file(Path::new(name))?;
    let has = device.geometry().blocks;
    if has < blocks {
        return Err(format!(
            "{name} has {has} blocks, the measure needs {blocks}"
        ));
    }
    Ok(Arc::new(device))
}

/// Counts of a device's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) flushes: u64,
    pub(crate) writes: u64,
    /// Blocks written.
    pub(crate) blocks: u64,
    /// Number of those blocks that belong to the journal itself: log and tail headers.
    pub(crate) journal_blocks: u64,
}

/// Counts requests to a device whose blocks before `journal_end` are the journal's.
pub(crate) struct Counting {
    device: Arc<dyn BlockDevice>,
    journal_end: u64,
    flushes: AtomicU64,
    writes: AtomicU64,
    blocks: AtomicU64,
    journal_blocks: AtomicU64,
}

impl Counting {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, journal_end: u64) -> Counting {
        Counting {
            device,
            journal_end,
            flushes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            journal_blocks: AtomicU64::new(0),
        }
    }

    /// Forgets earlier requests.
    pub(crate) fn reset(&self) {
        for counter in [
            &self.flushes,
            &self.writes,
            &self.blocks,
            &self.journal_blocks,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            flushes: self.flushes.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            blocks: self.blocks.load(Ordering::Relaxed),
            journal_blocks: self.journal_blocks.load(Ordering::Relaxed),
        }
    }
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.device.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        let bytes: usize = segments.iter().map(|s| s.len()).sum();
        let blocks = (bytes / BLOCK_SIZE) as u64;
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        if at.0 < self.journal_end {
            self.journal_blocks.fetch_add(blocks, Ordering::Relaxed);
        }
        self.device.write(at, segments)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.device.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.device.discard(at, count)
    }
}

/// A device that never finishes a write after the journal's blocks: the log fills, and nothing goes home.
pub(crate) struct HomeStalled {
    pub(crate) device: FileDevice,
    pub(crate) journal_end: u64,
}

impl BlockDevice for HomeStalled {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.device.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        if at.0 >= self.journal_end {
            loop {
                std::thread::park();
            }
        }
        self.device.write(at, segments)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        self.device.discard(at, count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_segment_counts_and_the_journal_s_own_blocks_are_separate() {
        let device = Counting::new(Arc::new(MemDevice::new(20)), 10);
        let two = [1; 2 * BLOCK_SIZE];
        device
            .write(BlockNo(3), &[&two, &two[..BLOCK_SIZE]])
            .unwrap();
        device.write(BlockNo(10), &[&two]).unwrap();
        device.flush().unwrap();
        let expected = Counts {
            flushes: 1,
            writes: 2,
            blocks: 5,
            journal_blocks: 3,
        };
        assert_eq!(device.counts(), expected);
        let mut block = [0; BLOCK_SIZE];
        device.read(BlockNo(11), &mut block).unwrap();
        assert_eq!(block, [1; BLOCK_SIZE]);
    }
}
