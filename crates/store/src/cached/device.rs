//! The disk over a cache and the store.

use super::contents::{Contents, Look, overlay};
use super::log::{Log, Recovered};
use super::stage::{Bounds, Stage, Staged};
use super::{CacheOptions, LagClock};
use crate::cache_kind::CacheError;
use crate::device::{CheckpointError, Counters, StoreDevice, relock};
use crate::driver::Failed;
use crate::fault::DeviceFault;
use crate::opening::{OpenError, OpenOptions};
use crate::protocol::Slot;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Snapshot, Ticket,
    check_count, check_range, check_segments,
};

/// The lag of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Flushes that only the cache has.
    pub flushes: u64,
    /// Bytes that these flushes write.
    pub bytes: u64,
    /// Age of the oldest flush, in milliseconds.
    pub age_ms: u64,
}

/// Most blocks that are examined for one run.
const RUN_MOST: u64 = 1 << 14;

struct State {
    /// Contents written since the last flush, and the number of writes.
    open: Contents,
    written: u64,
    /// The flush that is being appended to the log.
    closing: Arc<Contents>,
    /// Flushes in the cache that were not handed to the disk below.
    ready: Contents,
    ready_upto: u64,
    /// The last flush in the cache.
    last: u64,
    /// Flushes that are being handed over.
    handing: Arc<Contents>,
    stage: Stage,
    /// Epochs of the disk below that are in flight, and the last flush of each.
    sent: VecDeque<(Ticket, u64)>,
    /// Threads that wait for the store.
    urgent: u32,
    failed: Option<String>,
    stop: bool,
}

struct Shared {
    disk: StoreDevice,
    log: Mutex<Log>,
    state: Mutex<State>,
    changed: Condvar,
    /// One flush at a time.
    flushing: Mutex<()>,
    bounds: Bounds,
    clock: LagClock,
    epoch_blocks: u64,
    name: String,
    flush_when_full: bool,
    release_on_drop: bool,
    released: AtomicBool,
    fault: Option<DeviceFault>,
}

/// A volume with `flush=cache`; see the module `cached`.
pub struct CachedDevice {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for CachedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedDevice")
            .field("disk", &self.shared.disk)
            .field("cache", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        relock(&self.state)
    }

    /// Waits until something changes. The sender and the acknowledger notice a failure of the disk below, and wake all others.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Like `wait`, but at most for `ms` milliseconds of the clock.
    fn wait_ms<'a>(&self, state: MutexGuard<'a, State>, ms: u64) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, self.clock.sleep(ms));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn blocks(&self) -> u64 {
        self.disk.geometry().blocks
    }

    fn has(&self, fault: DeviceFault) -> bool {
        self.fault == Some(fault)
    }

    fn check(&self, state: &State) -> Result<(), String> {
        match (&state.failed, self.disk.failed()) {
            (Some(failed), _) => Err(failed.clone()),
            (None, Some(failed)) => Err(failed.to_string()),
            (None, None) => Ok(()),
        }
    }

    fn fail(&self, error: &dyn std::fmt::Display) -> String {
        let mut state = self.lock();
        let failed = state.failed.get_or_insert_with(|| error.to_string());
        let failed = failed.clone();
        drop(state);
        self.changed.notify_all();
        failed
    }

    fn cache_failed(&self, error: &CacheError) -> String {
        self.fail(&format!("the cache {} {error}", self.name))
    }

    /// Waits until a condition holds. While a thread waits here, the sender does not delay flushes.
    fn wait_until(&self, holds: impl Fn(&State) -> bool) -> Result<(), String> {
        let mut state = self.lock();
        if holds(&state) {
            return self.check(&state);
        }
        state.urgent += 1;
        self.changed.notify_all();
        let end = loop {
            if let Err(failed) = self.check(&state) {
                break Err(failed);
            }
            if holds(&state) {
                break Ok(());
            }
            state = self.wait(state);
        };
        state.urgent -= 1;
        end
    }

    /// Makes the open epoch durable on the cache, as one flush. Returns its number, or the last one if nothing was written.
    fn close_epoch(&self) -> Result<u64, String> {
        let one_at_a_time = relock(&self.flushing);
        self.wait_until(|state| state.stage.has_room(self.bounds))?;
        let contents = {
            let mut state = self.lock();
            state.written = 0;
            if state.open.is_empty() {
                return Ok(state.last);
            }
            state.closing = Arc::new(std::mem::take(&mut state.open));
            Arc::clone(&state.closing)
        };
        let weight = contents.weight();
        // A record leaves the log before its flush leaves the stage. So if the log has no room after this look at the stage,
        // the stage changes when there is more room.
        loop {
            let oldest = self.lock().stage.oldest();
            if relock(&self.log).has_room(weight) {
                break;
            }
            self.wait_until(|state| state.stage.oldest() != oldest)?;
        }
        let at_ms = self.clock.now_ms();
        let (number, end) = relock(&self.log)
            .append(&contents)
            .map_err(|error| self.cache_failed(&error))?;
        let mut state = self.lock();
        state.closing = Arc::default();
        state.ready.append(&contents);
        (state.ready_upto, state.last) = (number, number);
        state.stage.push(Staged {
            number,
            at_ms,
            weight,
            end,
        });
        drop(state);
        drop(one_at_a_time);
        self.changed.notify_all();
        Ok(number)
    }

    /// Waits until a flush may be acknowledged.
    fn wait_for_lag(&self, number: u64) -> Result<(), String> {
        if self.has(DeviceFault::LagUnbounded) {
            return self.check(&self.lock());
        }
        self.wait_until(|state| {
            let now = self.clock.now_ms();
            state.stage.may_acknowledge(number, self.bounds, now)
        })
    }

    /// Waits until the store has every flush that the cache has.
    fn wait_for_store(&self) -> Result<(), String> {
        let last = self.lock().last;
        self.wait_until(|state| state.stage.is_stored(last))
    }

    /// The sender thread: writes the gathered flushes to the disk below and closes its epoch.
    fn send(&self) {
        loop {
            let (contents, upto) = {
                let mut state = self.lock();
                loop {
                    if state.stop {
                        return;
                    }
                    if let Err(failed) = self.check(&state) {
                        drop(state);
                        self.fail(&failed);
                        return;
                    }
                    let due_in = state.stage.due_in(self.bounds, self.clock.now_ms());
                    state = match due_in {
                        None => self.wait(state),
                        Some(ms) if ms > 0 && state.urgent == 0 => self.wait_ms(state, ms),
                        Some(_) => break,
                    };
                }
                state.handing = Arc::new(std::mem::take(&mut state.ready));
                let upto = state.ready_upto;
                state.stage.sent(upto);
                (Arc::clone(&state.handing), upto)
            };
            let sent = contents.write_to(&self.disk);
            match sent.and_then(|()| Snapshot::close_epoch(&self.disk)) {
                Ok(ticket) => {
                    let mut state = self.lock();
                    state.handing = Arc::default();
                    state.sent.push_back((ticket, upto));
                }
                Err(error) => drop(self.fail(&error)),
            }
            self.changed.notify_all();
        }
    }

    /// The acknowledger thread: waits for the store, and drops records.
    fn acknowledge(&self) {
        loop {
            let (ticket, upto) = {
                let mut state = self.lock();
                loop {
                    if let Some(sent) = state.sent.front() {
                        break *sent;
                    }
                    if state.stop {
                        return;
                    }
                    state = self.wait(state);
                }
            };
            if let Err(error) = Snapshot::wait(&self.disk, ticket) {
                self.fail(&error);
                return;
            }
            let last = self.lock().stage.last_upto(upto);
            let dropped = last.map(|last| {
                let mut log = relock(&self.log);
                log.stored(last.number, last.end, Slot(ticket.0))
            });
            if let Some(Err(error)) = dropped {
                self.cache_failed(&error);
                return;
            }
            let mut state = self.lock();
            state.sent.pop_front();
            state.stage.stored(upto);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        let missing = {
            let state = self.lock();
            let newest_first = [&state.open, &state.closing, &state.ready, &state.handing];
            overlay(&newest_first, at.0, buf)
        };
        missing
            .into_iter()
            .try_for_each(|(at, range)| self.disk.read(BlockNo(at), &mut buf[range]))
    }

    /// The run of blocks from `first` on that all have contents, or all have none.
    fn run(&self, first: u64, count: u64) -> steadfast_block::Result<(u64, bool)> {
        // Examines a bounded part: a short answer is allowed.
        let end = first + count.min(RUN_MOST);
        let looks: Vec<Option<bool>> = {
            let state = self.lock();
            let newest_first = [&state.open, &state.closing, &state.ready, &state.handing];
            let above = |block| {
                let looks = newest_first.iter().map(|epoch| epoch.look(block));
                let found = looks.into_iter().find(|look| *look != Look::Untouched)?;
                Some(found != Look::Hole)
            };
            (first..end).map(above).collect()
        };
        // The answer of the disk below, and the block up to which it holds.
        let (mut below, mut until) = (false, first);
        let mut run: Option<bool> = None;
        for (block, above) in (first..end).zip(looks) {
            let has = match above {
                Some(has) => has,
                None => {
                    if block >= until {
                        let (blocks, mapped) = self.disk.run(BlockNo(block), end - block)?;
                        (below, until) = (mapped, block + blocks.max(1));
                    }
                    below
                }
            };
            if *run.get_or_insert(has) != has {
                return Ok((block - first, !has));
            }
        }
        Ok((end - first, run.unwrap_or(false)))
    }

    /// The locked state, with room for this many writes in the epoch.
    fn admit(&self, count: u64) -> Result<MutexGuard<'_, State>, Refused> {
        let state = self.lock();
        self.check(&state).map_err(Refused::Failed)?;
        if state.written + count <= self.epoch_blocks {
            return Ok(state);
        }
        drop(state);
        if self.flush_when_full && count <= self.epoch_blocks {
            self.close_epoch().map_err(Refused::Failed)?;
            let state = self.lock();
            if state.written + count <= self.epoch_blocks {
                return Ok(state);
            }
        }
        Err(Refused::Full)
    }
}

enum Refused {
    Full,
    Failed(String),
}

impl CachedDevice {
    /// Makes a disk over a store and a log; the flushes of the log are sent again.
    pub(super) fn new(
        disk: StoreDevice,
        log: Log,
        flushes: Vec<Recovered>,
        cache: &CacheOptions,
        options: &OpenOptions,
    ) -> Result<CachedDevice, OpenError> {
        let (mut stage, mut ready, mut ready_upto) = (Stage::default(), Contents::default(), 0);
        let (at_ms, last) = (cache.clock.now_ms(), log.next() - 1);
        for flush in flushes {
            stage.push(Staged {
                number: flush.number,
                at_ms,
                weight: flush.contents.weight(),
                end: flush.end,
            });
            ready_upto = flush.number;
            ready.append(&flush.contents);
        }
        stage.mark_overdue();
        let shared = Arc::new(Shared {
            epoch_blocks: log.flush_blocks(),
            disk,
            log: Mutex::new(log),
            state: Mutex::new(State {
                open: Contents::default(),
                written: 0,
                closing: Arc::default(),
                ready,
                ready_upto,
                last,
                handing: Arc::default(),
                stage,
                sent: VecDeque::new(),
                urgent: 0,
                failed: None,
                stop: false,
            }),
            changed: Condvar::new(),
            flushing: Mutex::new(()),
            bounds: cache.bounds(),
            clock: cache.clock.clone(),
            name: cache.name.clone(),
            flush_when_full: options.flush_when_full,
            release_on_drop: options.release_on_drop,
            released: AtomicBool::new(false),
            fault: options.device_fault(),
        });
        let mut device = CachedDevice {
            shared,
            workers: Vec::new(),
        };
        let threads = [
            ("store-cache-send", Shared::send as fn(&Shared)),
            ("store-cache-ack", Shared::acknowledge),
        ];
        for (name, run) in threads {
            let shared = Arc::clone(&device.shared);
            let thread = std::thread::Builder::new().name(name.to_owned());
            let worker = thread.spawn(move || run(&shared));
            let worker = worker.map_err(crate::place::PlaceError::Threads)?;
            device.workers.push(worker);
        }
        Ok(device)
    }

    /// The disk over the store, without the cache.
    #[must_use]
    pub fn store(&self) -> &StoreDevice {
        &self.shared.disk
    }

    /// Requests since the device was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.disk.counters()
    }

    /// The run of blocks from `at` on, `count` at most, that all have contents, or all have none; as of [`StoreDevice::run`].
    ///
    /// # Errors
    /// As of [`StoreDevice::run`].
    pub fn run(&self, at: BlockNo, count: u64) -> steadfast_block::Result<(u64, bool)> {
        check_count(DeviceOp::Read, at, count, self.shared.blocks())?;
        self.shared.run(at.0, count)
    }

    /// The present lag of the store.
    #[must_use]
    pub fn lag(&self) -> Lag {
        let state = self.shared.lock();
        let (flushes, blocks, age_ms) = state.stage.lag(self.shared.clock.now_ms());
        Lag {
            flushes,
            bytes: blocks * BLOCK_SIZE as u64,
            age_ms,
        }
    }

    /// Waits until the store has every flush that was acknowledged.
    ///
    /// # Errors
    /// The store's or the cache's failure, which is sticky.
    pub fn wait_for_store(&self) -> steadfast_block::Result<()> {
        self.shared
            .wait_for_store()
            .map_err(|e| self.flush_error(&e))
    }

    /// The failure that ended flushing, if there is one.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        self.shared.check(&self.shared.lock()).err()
    }

    /// Ends the ownership, after the store has everything that was flushed.
    ///
    /// # Errors
    /// As of [`StoreDevice::release`]. The next opening with the cache sends the flushes that only the cache has.
    pub fn release(&self) -> Result<(), CheckpointError> {
        if self.is_released() {
            return Ok(());
        }
        let behind = || Failed::Inconsistent("the store lacks flushes that the cache has");
        if self.shared.wait_for_store().is_err() {
            return Err(self.shared.disk.failed().unwrap_or_else(behind).into());
        }
        self.shared.disk.release()?;
        self.shared.released.store(true, Ordering::Release);
        Ok(())
    }

    fn is_released(&self) -> bool {
        self.shared.released.load(Ordering::Acquire)
    }

    fn error(op: DeviceOp, at: BlockNo, count: u64, error: &str) -> DeviceError {
        StoreDevice::error(op, at, count, error)
    }

    fn flush_error(&self, error: &str) -> DeviceError {
        CachedDevice::error(DeviceOp::Flush, BlockNo(0), self.shared.blocks(), error)
    }

    fn refused(&self, op: DeviceOp, at: BlockNo, count: u64, why: Refused) -> DeviceError {
        match why {
            Refused::Failed(failed) => CachedDevice::error(op, at, count, &failed),
            Refused::Full => DeviceError::Io {
                op,
                at,
                count,
                source: Arc::new(std::io::Error::new(
                    std::io::ErrorKind::StorageFull,
                    format!(
                        "{count} more blocks do not fit the epoch of {} blocks: flush, then write again",
                        self.shared.epoch_blocks
                    ),
                )),
            },
        }
    }
}

impl Drop for CachedDevice {
    fn drop(&mut self) {
        if self.shared.release_on_drop && !self.is_released() && self.failed().is_none() {
            // If it fails, the next opening sends and replays.
            let _ = self.release();
        }
        self.shared.lock().stop = true;
        self.shared.disk.close();
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl BlockDevice for CachedDevice {
    fn geometry(&self) -> Geometry {
        self.shared.disk.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        check_range(DeviceOp::Read, at, buf.len(), self.shared.blocks())?;
        self.shared.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.write_scattered(&[(at, segments)])
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        let op = DeviceOp::Write;
        if self.is_released() {
            return Err(DeviceError::ReadOnly { op });
        }
        let mut count = 0;
        for (at, segments) in writes {
            count += check_segments(*at, segments, self.shared.blocks())?;
        }
        let Some((first, _)) = writes.first().filter(|_| count > 0) else {
            return Ok(());
        };
        let state = self.shared.admit(count);
        let mut state = state.map_err(|why| self.refused(op, *first, count, why))?;
        state.written += count;
        for (at, segments) in writes {
            let blocks = segments.iter().flat_map(|s| s.chunks_exact(BLOCK_SIZE));
            for (block, bytes) in (at.0..).zip(blocks) {
                state.open.write(block, Bytes::copy_from_slice(bytes));
            }
        }
        Ok(())
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        let ticket = Snapshot::close_epoch(self)?;
        Snapshot::wait(self, ticket)
    }

    /// Discarded blocks read as zeros. A request of any length counts as one write of the epoch.
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        let op = DeviceOp::Discard;
        if self.is_released() {
            return Err(DeviceError::ReadOnly { op });
        }
        check_count(op, at, count, self.shared.blocks())?;
        if count == 0 {
            return Ok(());
        }
        let state = self.shared.admit(1);
        let mut state = state.map_err(|why| self.refused(op, at, count, why))?;
        state.written += 1;
        state.open.discard(at.0, count);
        Ok(())
    }

    fn finish(&self) {
        // If it fails, the next opening sends and replays.
        let _ = self.release();
    }

    fn settle(&self) -> steadfast_block::Result<()> {
        self.wait_for_store()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let lag = self.lag();
        let mut counters = self.shared.disk.statistics();
        counters.extend([
            ("store_lag_flushes_now", lag.flushes),
            ("store_lag_bytes_now", lag.bytes),
            ("store_lag_ms_now", lag.age_ms),
        ]);
        counters
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        (!self.shared.flush_when_full).then_some(self)
    }
}

impl Snapshot for CachedDevice {
    fn epoch_blocks(&self) -> u64 {
        self.shared.epoch_blocks
    }

    fn room(&self) -> u64 {
        self.shared.epoch_blocks - self.shared.lock().written
    }

    /// The epoch is durable on the cache when this returns.
    fn close_epoch(&self) -> steadfast_block::Result<Ticket> {
        if self.is_released() {
            return Ok(Ticket::default());
        }
        let closed = self.shared.close_epoch();
        closed.map(Ticket).map_err(|e| self.flush_error(&e))
    }

    /// Waits while the store lags too far behind.
    fn wait(&self, epoch: Ticket) -> steadfast_block::Result<()> {
        if self.is_released() {
            return Ok(());
        }
        let waited = self.shared.wait_for_lag(epoch.0);
        waited.map_err(|e| self.flush_error(&e))
    }

    fn rollback(&self) -> steadfast_block::Result<()> {
        let mut state = self.shared.lock();
        state.written = 0;
        state.open = Contents::default();
        Ok(())
    }
}
