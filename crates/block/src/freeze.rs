//! A device that can be held still: while it is *frozen*, nothing writes to it, so that it can be copied.
//!
//! * When [`Freezer::freeze`] returns, no write, discard or flush is in flight, and none begins before [`Freezer::thaw`].
//!   A thread that wants one waits. Reads go on. So the device's content stands still; it is a state that a crash at that moment
//!   could leave, and has all flushed writes.
//! * A freeze ends by itself at its limit: the program that asked for it may have died. [`Freezer::thaw`] says whether
//!   it still held, so that the copying program knows whether the copy is of one moment.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result, Snapshot, Ticket};

#[derive(Default)]
struct State {
    /// Writes, discards and flushes in flight.
    busy: usize,
    /// Time at which the freeze ends by itself, if there is one.
    until: Option<Instant>,
}

impl State {
    /// Time left of the freeze, if there is one.
    fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// See the module's header.
pub struct Freezer {
    device: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A request in flight.
struct Busy<'a>(&'a Freezer);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.busy -= 1;
        if state.busy == 0 && state.until.is_some() {
            self.0.changed.notify_all();
        }
    }
}

impl Freezer {
    /// The device, not frozen.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Freezer {
        Freezer {
            device,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Holds the device still, at most for `limit`. Returns when nothing is in flight any more: false if it was frozen
    /// already.
    pub fn freeze(&self, limit: Duration) -> bool {
        let mut state = self.lock();
        if state.left().is_some() {
            return false;
        }
        state.until = Instant::now().checked_add(limit);
        while state.busy > 0 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Ends the freeze: false if there is none, or if its limit has passed.
    pub fn thaw(&self) -> bool {
        let mut state = self.lock();
        let held = state.left().is_some();
        state.until = None;
        self.changed.notify_all();
        held
    }

    /// Whether the device is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.lock().left().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a freeze, then counts a request.
    fn enter(&self) -> Busy<'_> {
        let mut state = self.lock();
        while let Some(left) = state.left() {
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.busy += 1;
        Busy(self)
    }
}

impl BlockDevice for Freezer {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        self.device.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        let _busy = self.enter();
        self.device.write(at, segments)
    }

    fn read_scattered(&self, reads: &mut [(BlockNo, &mut [u8])]) -> Result<()> {
        self.device.read_scattered(reads)
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> Result<()> {
        let _busy = self.enter();
        self.device.write_scattered(writes)
    }

    fn flush(&self) -> Result<()> {
        let _busy = self.enter();
        self.device.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        let _busy = self.enter();
        self.device.discard(at, count)
    }

    fn finish(&self) {
        let _busy = self.enter();
        self.device.finish();
    }

    fn settle(&self) -> Result<()> {
        self.device.settle()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        self.device.statistics()
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        self.device.snapshot().map(|_| self as &dyn Snapshot)
    }
}

impl Freezer {
    fn epochs(&self, op: DeviceOp) -> Result<&dyn Snapshot> {
        let none = || DeviceError::Io {
            op,
            at: BlockNo(0),
            count: 0,
            source: Arc::new(std::io::Error::other("the device has no epochs")),
        };
        self.device.snapshot().ok_or_else(none)
    }
}

impl Snapshot for Freezer {
    fn epoch_blocks(&self) -> u64 {
        self.device.snapshot().map_or(0, Snapshot::epoch_blocks)
    }

    fn room(&self) -> u64 {
        self.device.snapshot().map_or(0, Snapshot::room)
    }

    fn close_epoch(&self) -> Result<Ticket> {
        let _busy = self.enter();
        self.epochs(DeviceOp::Flush)?.close_epoch()
    }

    fn wait(&self, epoch: Ticket) -> Result<()> {
        let _busy = self.enter();
        self.epochs(DeviceOp::Flush)?.wait(epoch)
    }

    fn note(&self, note: &[u8]) {
        if let Some(snapshot) = self.device.snapshot() {
            snapshot.note(note);
        }
    }

    /// Rolled back is before the first request alone, when nothing is frozen.
    fn rollback(&self) -> Result<()> {
        self.epochs(DeviceOp::Flush)?.rollback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK_SIZE, MemDevice};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn nothing_is_written_from_freeze_to_thaw() {
        let device = Arc::new(MemDevice::new(4));
        let freezer = Arc::new(Freezer::new(device.clone()));
        assert!(freezer.freeze(LONG));
        assert!(!freezer.freeze(LONG), "it is frozen already");
        let (tell, told) = channel();
        let writer = Arc::clone(&freezer);
        let thread = thread::spawn(move || {
            let written = writer.write(BlockNo(1), &[&[7; BLOCK_SIZE]]);
            let _ = tell.send(());
            written
        });
        // Enough for one that does not wait; one that waits cannot be seen otherwise.
        let early = told.recv_timeout(Duration::from_millis(100));
        assert_eq!(early, Err(RecvTimeoutError::Timeout));
        let mut block = [1; BLOCK_SIZE];
        assert!(freezer.read(BlockNo(1), &mut block).is_ok());
        assert_eq!(block, [0; BLOCK_SIZE]);
        assert!(freezer.thaw());
        assert!(thread.join().is_ok_and(|written| written.is_ok()));
        assert!(device.read(BlockNo(1), &mut block).is_ok());
        assert_eq!(block, [7; BLOCK_SIZE]);
        assert!(!freezer.thaw(), "it is not frozen any more");
    }

    #[test]
    fn a_freeze_ends_by_itself_and_says_so_afterwards() {
        let freezer = Freezer::new(Arc::new(MemDevice::new(4)));
        assert!(freezer.freeze(Duration::from_millis(1)));
        // It waits for the limit, and no longer.
        assert!(freezer.flush().is_ok());
        assert!(!freezer.is_frozen());
        assert!(!freezer.thaw(), "a copy would not be of one moment");
    }
}
