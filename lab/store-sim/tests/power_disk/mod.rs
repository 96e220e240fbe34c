//! A disk whose power can be cut: any sectors of unflushed writes survive. It can also fail, for good.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result, check_count,
    check_range, check_segments,
};
use steadfast_store_sim::Random;

const SECTOR: usize = 512;

struct State {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks that were written since the last flush.
    pending: Vec<usize>,
    /// Writes and flushes until one fails, and all after it.
    left: Option<u64>,
}

impl State {
    fn count(&mut self, op: DeviceOp, at: BlockNo) -> Result<()> {
        match &mut self.left {
            Some(0) => Err(DeviceError::Io {
                op,
                at,
                count: 1,
                source: Arc::new(std::io::Error::other("the disk has failed")),
            }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// See the module's header.
pub(crate) struct PowerDisk(Mutex<State>);

impl PowerDisk {
    pub(crate) fn new(bytes: Vec<u8>) -> PowerDisk {
        PowerDisk(Mutex::new(State {
            durable: bytes.clone(),
            now: bytes,
            pending: Vec::new(),
            left: None,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().now.clone()
    }

    pub(crate) fn fail_after(&self, requests: u64) {
        self.lock().left = Some(requests);
    }

    /// State after a power cut: of some blocks all or nothing, of others each sector by itself.
    pub(crate) fn cut(&self, random: &mut Random) -> Vec<u8> {
        let state = self.lock();
        let mut left = state.durable.clone();
        for block in &state.pending {
            let whole = random.permille(500).then(|| random.permille(500));
            for sector in 0..BLOCK_SIZE / SECTOR {
                if whole.unwrap_or_else(|| random.permille(500)) {
                    let at = block * BLOCK_SIZE + sector * SECTOR;
                    left[at..at + SECTOR].copy_from_slice(&state.now[at..at + SECTOR]);
                }
            }
        }
        left
    }
}

impl BlockDevice for PowerDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: (self.lock().now.len() / BLOCK_SIZE) as u64,
            volatile_cache: true,
            read_only: false,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        check_range(DeviceOp::Read, at, buf.len(), self.geometry().blocks)?;
        let from = at.0 as usize * BLOCK_SIZE;
        buf.copy_from_slice(&self.lock().now[from..from + buf.len()]);
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        check_segments(at, segments, self.geometry().blocks)?;
        let mut state = self.lock();
        state.count(DeviceOp::Write, at)?;
        let blocks = segments.iter().flat_map(|s| s.chunks_exact(BLOCK_SIZE));
        for (block, bytes) in (at.0 as usize..).zip(blocks) {
            state.now[block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE].copy_from_slice(bytes);
            state.pending.push(block);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.lock();
        state.count(DeviceOp::Flush, BlockNo(0))?;
        for block in std::mem::take(&mut state.pending) {
            let range = block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE;
            let State { now, durable, .. } = &mut *state;
            durable[range.clone()].copy_from_slice(&now[range]);
        }
        Ok(())
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        check_count(DeviceOp::Discard, at, count, self.geometry().blocks)
    }
}
