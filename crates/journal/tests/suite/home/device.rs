//! A device that returns to its last flush, and checks the state of each flush: amounts move between
//! blocks, so that their sum stays, and blocks name data that must be there. Several epochs can be on their way: each state
//! that a crash may leave is the end of an epoch, so the end of each epoch is looked at.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use steadfast_block::{
    BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, MemDevice, Snapshot,
    Ticket,
};
use steadfast_journal::{META_BYTES, seal, seal_holds};

pub(crate) const VOLUME: [u8; 16] = [9; 16];
/// Metadata blocks: sums and references.
pub(crate) const META: u64 = 40;
const BLOCKS: u64 = 40_000;
/// Epochs on their way.
const WINDOW: usize = 8;

/// A device that keeps the state of its last flush, and checks each such state.
pub(crate) struct Epochs {
    pub(crate) now: MemDevice,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
    bound: u64,
    pub(crate) seen: AtomicU64,
}

/// Writes of an epoch: each block as it was when the epoch was closed.
type Written = Vec<(u64, Box<Block>)>;

pub(crate) struct State {
    /// Epochs on their way, and the number of the last durable one.
    closed: VecDeque<Written>,
    last_durable: u64,
    /// No epoch becomes durable before this is over, or none ever.
    pub(crate) held: bool,
    pub(crate) epoch_fails: bool,
    durable: MemDevice,
    written: Vec<u64>,
    count: u64,
    pub(crate) trimmed: u64,
    pub(crate) broken: Option<String>,
    /// Writes until one fails.
    pub(crate) fails_after: Option<u64>,
}

impl Epochs {
    pub(crate) fn new(bound: u64) -> Arc<Epochs> {
        let (now, durable) = (MemDevice::new(BLOCKS), MemDevice::new(BLOCKS));
        for at in (0..META).map(BlockNo) {
            let mut block = [0; BLOCK_SIZE];
            seal(&VOLUME, at, &mut block);
            now.write(at, &[&block]).unwrap();
            durable.write(at, &[&block]).unwrap();
        }
        Arc::new(Epochs {
            now,
            state: Mutex::new(State {
                closed: VecDeque::new(),
                last_durable: 0,
                held: false,
                epoch_fails: false,
                durable,
                written: Vec::new(),
                count: 0,
                trimmed: 0,
                broken: None,
                fails_after: None,
            }),
            changed: Condvar::new(),
            bound,
            seen: AtomicU64::new(0),
        })
    }

    /// Changes how the device behaves.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn behave(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits until `epochs` epochs are on their way.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn wait_for_closed(&self, epochs: usize) {
        let mut state = self.state.lock().unwrap();
        while state.closed.len() < epochs {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// A block as a crash may leave it, if nothing more becomes durable.
    pub(crate) fn durable(&self, at: BlockNo) -> Block {
        let mut block = [0; BLOCK_SIZE];
        let state = self.state.lock().unwrap();
        state.durable.read(at, &mut block).unwrap();
        block
    }

    fn next_is_durable(&self, state: &mut State) -> Result<(), DeviceError> {
        for (at, block) in state.closed.pop_front().unwrap_or_default() {
            state.durable.write(BlockNo(at), &[&block[..]])?;
        }
        state.last_durable += 1;
        self.seen.fetch_add(1, Ordering::Relaxed);
        if let Err(what) = look(&state.durable) {
            state.broken.get_or_insert(what);
        }
        Ok(())
    }

    pub(crate) fn broken(&self) -> Option<String> {
        self.state.lock().unwrap().broken.clone()
    }
}

fn failed(op: DeviceOp, at: BlockNo, why: &str) -> DeviceError {
    let source = Arc::new(std::io::Error::other(why.to_owned()));
    DeviceError::Io {
        op,
        at,
        count: 1,
        source,
    }
}

impl BlockDevice for Epochs {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.now.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<(), DeviceError> {
        let blocks = segments.iter().map(|s| s.len() as u64).sum::<u64>() / BLOCK_SIZE as u64;
        let mut state = self.state.lock().unwrap();
        if let Some(left) = &mut state.fails_after {
            if *left == 0 {
                return Err(failed(DeviceOp::Write, at, "planned"));
            }
            *left -= 1;
        }
        if state.count + blocks > self.bound {
            return Err(failed(DeviceOp::Write, at, "the epoch is full"));
        }
        state.count += blocks;
        state.written.extend(at.0..at.0 + blocks);
        self.now.write(at, segments)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let closed = self.close_epoch()?;
        Snapshot::wait(self, closed)
    }

    /// As a flash disk: zeros, one write of the epoch.
    fn discard(&self, at: BlockNo, count: u64) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        if state.count + 1 > self.bound {
            return Err(failed(DeviceOp::Discard, at, "the epoch is full"));
        }
        state.count += 1;
        state.trimmed += count;
        state.written.extend(at.0..at.0 + count);
        self.now.discard(at, count)
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        Some(self)
    }
}

impl Snapshot for Epochs {
    fn epoch_blocks(&self) -> u64 {
        self.bound
    }

    fn room(&self) -> u64 {
        self.bound - self.state.lock().unwrap().count
    }

    fn close_epoch(&self) -> Result<Ticket, DeviceError> {
        let mut state = self.state.lock().unwrap();
        state.count = 0;
        let mut written = std::mem::take(&mut state.written);
        written.sort_unstable();
        written.dedup();
        let mut epoch = Written::with_capacity(written.len());
        for at in written {
            let mut block = Box::new([0; BLOCK_SIZE]);
            self.now.read(BlockNo(at), &mut block[..])?;
            epoch.push((at, block));
        }
        state.closed.push_back(epoch);
        if state.closed.len() > WINDOW {
            self.next_is_durable(&mut state)?;
        }
        self.changed.notify_all();
        Ok(Ticket(state.last_durable + state.closed.len() as u64))
    }

    fn wait(&self, epoch: Ticket) -> Result<(), DeviceError> {
        // Others close epochs meanwhile.
        #[cfg(feature = "shuttle")]
        shuttle::thread::yield_now();
        let mut state = self.state.lock().unwrap();
        while state.held && state.last_durable < epoch.0 {
            state = self.changed.wait(state).unwrap();
        }
        if state.epoch_fails {
            return Err(failed(DeviceOp::Flush, BlockNo(0), "planned"));
        }
        while state.last_durable < epoch.0 {
            self.next_is_durable(&mut state)?;
        }
        Ok(())
    }

    /// As after a crash: epochs in flight are durable.
    fn rollback(&self) -> Result<(), DeviceError> {
        let mut state = self.state.lock().unwrap();
        while !state.closed.is_empty() {
            self.next_is_durable(&mut state)?;
        }
        state.count = 0;
        for at in std::mem::take(&mut state.written) {
            let mut block = [0; BLOCK_SIZE];
            state.durable.read(BlockNo(at), &mut block)?;
            self.now.write(BlockNo(at), &[&block])?;
        }
        Ok(())
    }
}

pub(crate) fn copies(block: Block, count: u64) -> Vec<Arc<Block>> {
    (0..count).map(|_| Arc::new(block)).collect()
}

pub(crate) fn number(block: &Block, offset: usize) -> u64 {
    u64::from_le_bytes(block[offset..offset + 8].try_into().unwrap())
}

/// Whether a state is one that operations leave: each adds to one block the amount that it takes
/// from another, so the sum over all is zero; and each reference leads to the data that it names.
pub(crate) fn look(disk: &MemDevice) -> Result<(), String> {
    let mut sum = 0u64;
    for at in (0..META).map(BlockNo) {
        let mut block = [0; BLOCK_SIZE];
        disk.read(at, &mut block).unwrap();
        if !seal_holds(&VOLUME, at, &block) {
            return Err(format!("the seal of block {at} is broken"));
        }
        for thread in 0..8 {
            sum = sum.wrapping_add(number(&block, thread * 8));
        }
        let (named, stamp) = (
            number(&block, META_BYTES - 16),
            number(&block, META_BYTES - 8),
        );
        if named > 0 {
            let mut data = [0; BLOCK_SIZE];
            disk.read(BlockNo(named), &mut data).unwrap();
            if number(&data, 0) != stamp || number(&data, 2048) != stamp {
                return Err(format!(
                    "block {at} names block {named}, which holds other data"
                ));
            }
        }
    }
    match sum {
        0 => Ok(()),
        sum => Err(format!("the sum is {sum}")),
    }
}
