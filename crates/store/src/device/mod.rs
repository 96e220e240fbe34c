//! The disk: blocks of 4 KiB over the objects of a volume, contract *snapshot*.
//!
//! Writes gather in the *open epoch*. A flush closes it and sends it as one slot object. If the epoch has more than 1 MiB, its
//! blocks are in data objects instead, which are sent while the epoch is still being written. The flush returns when the slot
//! is acknowledged. The map has all closed epochs; the open one is an overlay, so [`rollback`](Snapshot::rollback) only drops
//! it, and a checkpoint never has a part of it.
//!
//! Order of locks: the device's core before the driver's state. No thread waits for a request under the core's lock.

mod ahead;
mod cache;
mod checkpoint;
mod collect;
mod epoch;
mod load;
mod notes;
mod promote;
mod read;
mod write;

pub(crate) use cache::Cache;
pub use checkpoint::CheckpointError;
pub(crate) use load::{
    Loaded, Sources, catch_up, load_pins, load_root, read_head, read_history, read_roots,
};

use crate::driver::{Driver, Failed};
use crate::fault::DeviceFault;
use crate::io::Io;
use crate::lease::{Held, ServingLease};
use crate::map::Map;
use crate::object::{Coding, Directory, MapObject, Salt};
use crate::protocol::{
    Base, Collector, Event, Faults, Nonce, ObjectName, Reference, Settings, Slot, Term,
};
use crate::volume::{OpenError, OpenOptions};
use epoch::OpenEpoch;
use notes::Notes;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Snapshot, Ticket,
    check_count, check_range, check_segments,
};

/// Most blocks of an epoch: 256 MiB.
pub(crate) const EPOCH_BLOCKS: u64 = 1 << 16;
/// Most blocks in a slot object: 1 MiB. An epoch with more puts all its blocks into data objects.
pub(crate) const INLINE_BLOCKS: usize = 256;
/// Blocks of a data object: 8 MiB.
pub(crate) const DATA_BLOCKS: usize = 2048;
/// Bytes in flight to the store at which writers wait.
const PENDING_MOST: u64 = 64 << 20;
/// Slots and bytes after which a checkpoint is due; at the LATE numbers, flushes wait for it.
const DUE_SLOTS: u64 = 1024;
const DUE_BYTES: u64 = 256 << 20;
const LATE_SLOTS: u64 = 4096;
const LATE_BYTES: u64 = 1 << 30;

/// The device's state of the volume.
pub(crate) struct Core {
    pub(crate) map: Map,
    /// The places of the last checkpoint's cells.
    pub(crate) directory: Directory,
    pub(crate) maps: Vec<MapObject>,
    open: OpenEpoch,
    /// The last slot that was sent. The map has all slots up to it.
    closed: Slot,
    /// The last published checkpoint.
    base: Base,
    bytes_since: u64,
    /// Slots after the checkpoint without blocks of their own. The next checkpoint supersedes them.
    plain: Vec<(Slot, ObjectName)>,
    /// Data objects of epochs that were rolled back.
    orphans: Vec<ObjectName>,
    /// Map objects that only a snapshot needs.
    kept: Vec<ObjectName>,
    /// The names that snapshots need, and the list of snapshots from which they were read.
    pins: Option<(Option<Reference>, Arc<HashSet<ObjectName>>)>,
    collector: Collector,
    /// The newest notes of all closed epochs.
    notes: Notes,
}

/// Instructions for the background thread.
#[derive(Default)]
struct Work {
    wanted: bool,
    stop: bool,
}

/// Counters of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// GET and HEAD requests, and the bytes that they received.
    pub gets: (u64, u64),
    /// PUT requests, and the bytes that they sent.
    pub puts: (u64, u64),
    /// DELETE requests.
    pub deletes: u64,
    /// Epochs that recovery replayed.
    pub replayed: u64,
    /// Checkpoints that were published.
    pub checkpoints: u64,
    /// Blocks that collection moved.
    pub moved_blocks: u64,
}

pub(crate) struct Shared {
    pub(crate) sources: Sources,
    /// None: the device is read-only.
    driver: Option<Arc<Driver>>,
    /// Blocks of the disk. It only grows.
    blocks: AtomicU64,
    /// Most blocks of an epoch.
    epoch_blocks: u64,
    core: Mutex<Core>,
    /// Objects do not change, so all states of one volume can share a cache.
    cache: Arc<Mutex<Cache>>,
    work: Mutex<Work>,
    work_changed: Condvar,
    /// One checkpoint or collection at a time.
    checkpointing: Mutex<()>,
    released: AtomicBool,
    flush_when_full: bool,
    release_on_drop: bool,
    #[cfg(feature = "faults")]
    fault: Option<DeviceFault>,
    replayed: u64,
    checkpoints: AtomicU64,
    moved_blocks: AtomicU64,
}

/// Parameters of opening a volume for writing.
pub(crate) struct Opening {
    pub(crate) blocks: u64,
    /// For a clone: its first checkpoint.
    pub(crate) first_base: Option<Base>,
    /// The last writer has released it.
    pub(crate) after_release: bool,
    /// This writer's name for `head`.
    pub(crate) owner: String,
    pub(crate) epoch_blocks: u64,
    /// Of a stand-by: what it has read.
    pub(crate) cache: Option<Arc<Mutex<Cache>>>,
}

/// Called before a term is opened, with this writer's term, the sealed term, and the slot of its seal.
pub(crate) type Sealed<'a> = dyn FnMut(Term, Term, Slot) -> Result<(), OpenError> + 'a;

/// See the module's header.
pub struct StoreDevice {
    shared: Arc<Shared>,
    worker: Option<std::thread::JoinHandle<()>>,
    /// Renews the lease.
    keeper: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for StoreDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreDevice")
            .field("url", &self.shared.sources.own().location.url)
            .field("blocks", &self.shared.blocks())
            .finish_non_exhaustive()
    }
}

pub(crate) fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        relock(&self.core)
    }

    fn driver(&self) -> Result<&Arc<Driver>, Failed> {
        self.driver.as_ref().ok_or(Failed::Inconsistent(
            "a device for reading is asked to write",
        ))
    }

    #[cfg(feature = "faults")]
    fn has(&self, fault: DeviceFault) -> bool {
        self.fault == Some(fault)
    }

    #[cfg(not(feature = "faults"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    const fn has(&self, _: DeviceFault) -> bool {
        false
    }

    fn coding(&self) -> &Coding {
        &self.sources.own().coding
    }

    fn salt(&self) -> Result<Salt, Failed> {
        let salt = self.coding().salt();
        salt.map_err(|_| Failed::Inconsistent("the system gives no random numbers"))
    }

    /// Blocks of a cell.
    fn unit_blocks(&self) -> usize {
        usize::from(self.coding().features.unit_blocks)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn ask_for_checkpoint(&self) {
        relock(&self.work).wanted = true;
        self.work_changed.notify_all();
    }
}

impl StoreDevice {
    /// Takes the volume over and recovers it. `sealed` is called before the new term is opened.
    pub(crate) fn open(
        sources: Sources,
        how: Opening,
        options: &OpenOptions,
        sealed: &mut Sealed<'_>,
    ) -> Result<StoreDevice, OpenError> {
        let nonce = Nonce(crate::place::random()?);
        let io: Arc<Io> = Arc::clone(sources.own());
        let mut settings = Settings::default();
        #[cfg(feature = "faults")]
        {
            settings.faults = options.faults.1;
            if options.faults.0 == Some(DeviceFault::SaltsCounted) {
                io.coding.count_salts();
            }
        }
        if how.after_release {
            // Nothing follows the checkpoint.
            settings.scan_ahead = 1;
        }
        let faults = options.protocol_faults();
        let held = options.lease.map(|lease| Held::new(lease, faults));
        let clock = options.clock.clone();
        let driver = Driver::start(io, settings, nonce, how.owner, held, clock)?;
        let opened = Self::recover(&sources, &driver, how.first_base, options, sealed);
        let (core, replayed) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                driver.close();
                return Err(error);
            }
        };
        sources.own().set_patience(options.store_timeout);
        let due = replayed >= DUE_SLOTS;
        let size = (how.blocks.max(driver.blocks()), how.epoch_blocks);
        let cache = how
            .cache
            .unwrap_or_else(|| Cache::shared(options.cache_bytes));
        let device = Self::make(sources, Some(driver), size, core, cache, replayed, options)?;
        if due {
            device.shared.ask_for_checkpoint();
        }
        Ok(device)
    }

    fn recover(
        sources: &Sources,
        driver: &Arc<Driver>,
        first_base: Option<Base>,
        options: &OpenOptions,
        sealed: &mut Sealed<'_>,
    ) -> Result<(Core, u64), OpenError> {
        let mut core = None;
        let mut replayed = 0;
        loop {
            match driver.next_event()? {
                Event::Claimed(head) => {
                    let mut loaded = load_root(sources, head.base, first_base)?;
                    loaded.keep_pinned(sources, head.roots)?;
                    loaded.load_notes(sources)?;
                    core = Some(Core::of(loaded, head.base, options.keep_deleted));
                }
                Event::Found { at, stamp } => {
                    let core = core.as_mut().ok_or(Failed::Inconsistent("no checkpoint"))?;
                    let bytes = driver.take_found(at);
                    let bytes = bytes.ok_or(Failed::Inconsistent("a found slot is gone"))?;
                    core.replay(sources, at, stamp, &bytes)?;
                    replayed += 1;
                }
                Event::Sealed {
                    previous,
                    first,
                    released,
                } => {
                    sealed(driver.term(), previous, first)?;
                    if !released && options.device_fault() != Some(DeviceFault::LeaseNotAwaited) {
                        driver.wait_out_lease(|predecessor| {
                            !options.wait_for_dead && predecessor.has_ended()
                        })?;
                    }
                    driver.open();
                }
                Event::Opened { first, .. } => {
                    let mut core = core.ok_or(Failed::Inconsistent("no checkpoint"))?;
                    core.closed = first.before();
                    return Ok((core, replayed));
                }
                _ => {}
            }
        }
    }

    /// Makes a read-only device of the volume's present state, or of a checkpoint, without a claim.
    pub(crate) fn look(
        sources: Sources,
        blocks: u64,
        core: Core,
        cache: Arc<Mutex<Cache>>,
        options: &OpenOptions,
    ) -> Result<StoreDevice, OpenError> {
        let size = (blocks, EPOCH_BLOCKS);
        Self::make(sources, None, size, core, cache, 0, options)
    }

    fn make(
        sources: Sources,
        driver: Option<Arc<Driver>>,
        (blocks, epoch_blocks): (u64, u64),
        core: Core,
        cache: Arc<Mutex<Cache>>,
        replayed: u64,
        options: &OpenOptions,
    ) -> Result<StoreDevice, OpenError> {
        let writes = driver.is_some();
        let shared = Arc::new(Shared {
            sources,
            driver,
            blocks: AtomicU64::new(blocks),
            epoch_blocks,
            core: Mutex::new(core),
            cache,
            work: Mutex::default(),
            work_changed: Condvar::new(),
            checkpointing: Mutex::new(()),
            released: AtomicBool::new(false),
            flush_when_full: options.flush_when_full,
            release_on_drop: options.release_on_drop,
            #[cfg(feature = "faults")]
            fault: options.faults.0,
            replayed,
            checkpoints: AtomicU64::new(0),
            moved_blocks: AtomicU64::new(0),
        });
        let worker = writes.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("store-checkpoint".to_owned())
                .spawn(move || shared.work())
        });
        let worker = worker
            .transpose()
            .map_err(crate::place::PlaceError::Threads)?;
        let keeper = (shared.driver.as_ref())
            .filter(|_| options.lease.is_some())
            .map(Arc::clone)
            .map(|driver| {
                std::thread::Builder::new()
                    .name("store-lease".to_owned())
                    .spawn(move || driver.keep_lease())
            });
        let mut device = StoreDevice {
            shared,
            worker,
            keeper: None,
        };
        device.keeper = keeper
            .transpose()
            .map_err(crate::place::PlaceError::Threads)?;
        Ok(device)
    }

    /// Counters since the device was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = Counters {
            replayed: self.shared.replayed,
            checkpoints: self.shared.checkpoints.load(Ordering::Relaxed),
            moved_blocks: self.shared.moved_blocks.load(Ordering::Relaxed),
            ..Counters::default()
        };
        for io in self.shared.sources.all() {
            let load = |tally: &crate::io::Tally| {
                (
                    tally.requests.load(Ordering::Relaxed),
                    tally.bytes.load(Ordering::Relaxed),
                )
            };
            let add = |sum: &mut (u64, u64), (requests, bytes): (u64, u64)| {
                sum.0 += requests;
                sum.1 += bytes;
            };
            add(&mut counters.gets, load(&io.counters.gets));
            add(&mut counters.puts, load(&io.counters.puts));
            counters.deletes += load(&io.counters.deletes).0;
        }
        counters
    }

    /// The failure that ended writing, if there is one.
    #[must_use]
    pub fn failed(&self) -> Option<Failed> {
        self.shared.driver.as_ref()?.failed()
    }

    /// Promotes a clone: copies all blocks that it reads from its parents into objects of its own, and publishes a checkpoint.
    /// Returns the number of copied blocks; `progress` gets that number as it grows, and the total. The open epoch is not
    /// flushed.
    ///
    /// # Errors
    /// [`CheckpointError`]. Blocks copied until then stay copied, and the next call copies the rest.
    pub fn promote(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<u64, CheckpointError> {
        self.shared.promote(progress)
    }

    /// The newest notes ([`Snapshot::note`]) of all recovered and closed epochs, oldest first.
    #[must_use]
    pub fn notes(&self) -> Vec<Vec<u8>> {
        self.shared.lock().notes.to_vec()
    }

    /// The term that this device writes; none if it is read-only.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        self.shared.driver.as_ref().map(|driver| driver.term())
    }

    /// The lease for the server that answers clients, if the volume was opened with one.
    #[must_use]
    pub fn lease(&self) -> Option<ServingLease> {
        let unheeded = self.shared.has(DeviceFault::LeaseUnheeded);
        self.shared.driver.as_ref()?.serving_lease(unheeded)
    }

    /// Publishes a checkpoint of all flushed epochs. The next opening begins with it.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.shared.checkpoint(false)
    }

    /// Moves live blocks out of mostly dead objects, until `percent` of the blocks in objects are live or nothing is left to
    /// gain; then deletes the objects that are due. Returns the number of emptied objects.
    ///
    /// # Errors
    /// [`CheckpointError`].
    pub fn collect(&self, percent: u64) -> Result<u64, CheckpointError> {
        self.shared.collect_to(percent)
    }

    /// The run of at most `count` blocks from `at` on that are all mapped, or all unmapped (they read as zeros): its length,
    /// and whether it is mapped.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], or the store's if a part of the map has to be read.
    pub fn run(&self, at: BlockNo, count: u64) -> steadfast_block::Result<(u64, bool)> {
        check_count(DeviceOp::Read, at, count, self.shared.blocks())?;
        (self.shared.run(at.0, count)).map_err(|e| StoreDevice::error(DeviceOp::Read, at, count, e))
    }

    /// Grows the disk to this number of blocks. The new size is durable when this returns. A disk that is as large already
    /// stays as it is.
    ///
    /// # Errors
    /// [`CheckpointError`]. The disk then has its old size, or the new one.
    pub fn grow(&self, blocks: u64) -> Result<(), CheckpointError> {
        self.shared.grow(blocks)
    }

    /// Ends the ownership: publishes a checkpoint, and marks the volume as released in `head`. Writes that were not flushed are
    /// lost. Nothing can be written afterwards.
    ///
    /// # Errors
    /// [`CheckpointError`]. A successor then has to replay what the last checkpoint lacks.
    pub fn release(&self) -> Result<(), CheckpointError> {
        let Some(driver) = &self.shared.driver else {
            return Ok(());
        };
        if self.shared.released.load(Ordering::Acquire) {
            return Ok(());
        }
        driver.end_lease();
        self.shared.checkpoint(true)?;
        if let Some(reads) = self.shared.sources.reads() {
            reads.write_out();
        }
        self.shared.released.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn error(
        op: DeviceOp,
        at: BlockNo,
        count: u64,
        error: impl std::fmt::Display,
    ) -> DeviceError {
        DeviceError::Io {
            op,
            at,
            count,
            source: Arc::new(std::io::Error::other(error.to_string())),
        }
    }

    /// Sends nothing any more, and ends all waiting.
    pub(crate) fn close(&self) {
        if let Some(driver) = &self.shared.driver {
            driver.close();
        }
    }

    fn refuse_if_read_only(&self, op: DeviceOp) -> steadfast_block::Result<()> {
        let released = self.shared.released.load(Ordering::Acquire);
        if self.shared.driver.is_none() || released {
            return Err(DeviceError::ReadOnly { op });
        }
        Ok(())
    }
}

impl Drop for StoreDevice {
    fn drop(&mut self) {
        if self.shared.release_on_drop && self.failed().is_none() {
            // If it fails, the next opening replays.
            let _ = self.release();
        }
        relock(&self.shared.work).stop = true;
        self.shared.work_changed.notify_all();
        if let Some(driver) = &self.shared.driver {
            driver.close();
        }
        for thread in [self.worker.take(), self.keeper.take()] {
            let _ = thread.map(std::thread::JoinHandle::join);
        }
        if let Some(reads) = self.shared.sources.reads() {
            reads.close();
        }
    }
}

impl BlockDevice for StoreDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.shared.blocks(),
            volatile_cache: true,
            read_only: self.shared.driver.is_none(),
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        let count = check_range(DeviceOp::Read, at, buf.len(), self.shared.blocks())?;
        self.shared
            .read(at.0, buf)
            .map_err(|e| StoreDevice::error(DeviceOp::Read, at, count, e))
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.write_scattered(&[(at, segments)])
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        self.refuse_if_read_only(DeviceOp::Write)?;
        let mut count = 0;
        for (at, segments) in writes {
            count += check_segments(*at, segments, self.shared.blocks())?;
        }
        let Some((first, _)) = writes.first().filter(|_| count > 0) else {
            return Ok(());
        };
        let blocks = writes.iter().flat_map(|(at, segments)| {
            let blocks = segments.iter().flat_map(|s| s.chunks_exact(BLOCK_SIZE));
            (at.0..).zip(blocks)
        });
        self.shared
            .write(count, blocks)
            .map_err(|e| e.into_device(DeviceOp::Write, *first, count))
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        if self.shared.driver.is_none() || self.shared.released.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared
            .flush()
            .map_err(|e| StoreDevice::error(DeviceOp::Flush, BlockNo(0), self.shared.blocks(), e))
    }

    /// Discarded blocks read as zeros. A request of any length counts as one write of the epoch.
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.refuse_if_read_only(DeviceOp::Discard)?;
        check_count(DeviceOp::Discard, at, count, self.shared.blocks())?;
        if count == 0 {
            return Ok(());
        }
        self.shared
            .discard(at.0, count)
            .map_err(|e| e.into_device(DeviceOp::Discard, at, count))
    }

    fn finish(&self) {
        // If it fails, the next opening replays.
        let _ = self.release();
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let counters = self.counters();
        let mut statistics = vec![
            ("store_gets", counters.gets.0),
            ("store_get_bytes", counters.gets.1),
            ("store_puts", counters.puts.0),
            ("store_put_bytes", counters.puts.1),
            ("store_deletes", counters.deletes),
            ("store_checkpoints", counters.checkpoints),
            ("store_moved_blocks", counters.moved_blocks),
        ];
        let traffic = &self.shared.sources.own().location.traffic;
        statistics.extend([
            ("store_hedged_gets", traffic.hedges.load(Ordering::Relaxed)),
            (
                "store_throttled_requests",
                traffic.throttled.load(Ordering::Relaxed),
            ),
            ("store_requests_allowed_now", traffic.limit()),
        ]);
        if let Some(reads) = self.shared.sources.reads() {
            statistics.extend([
                ("store_cached_reads", reads.hits.load(Ordering::Relaxed)),
                ("store_uncached_reads", reads.misses.load(Ordering::Relaxed)),
                ("store_cached_bytes_now", reads.held_bytes()),
            ]);
        }
        statistics
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        (!self.shared.flush_when_full).then_some(self)
    }
}

impl Snapshot for StoreDevice {
    fn epoch_blocks(&self) -> u64 {
        self.shared.epoch_blocks
    }

    fn room(&self) -> u64 {
        self.shared.epoch_blocks - self.shared.lock().open.written
    }

    /// Sends the epoch as the next slot. Up to 8 slots may be in flight; if there are 8, this waits for the first.
    fn close_epoch(&self) -> steadfast_block::Result<Ticket> {
        if self.shared.driver.is_none() || self.shared.released.load(Ordering::Acquire) {
            return Ok(Ticket::default());
        }
        let closed = self.shared.close_epoch().map(|slot| Ticket(slot.0));
        closed.map_err(|e| StoreDevice::error(DeviceOp::Flush, BlockNo(0), self.shared.blocks(), e))
    }

    fn note(&self, note: &[u8]) {
        self.shared.note(note);
    }

    fn wait(&self, epoch: Ticket) -> steadfast_block::Result<()> {
        if self.shared.driver.is_none() || self.shared.released.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared
            .wait_epoch(Slot(epoch.0))
            .map_err(|e| StoreDevice::error(DeviceOp::Flush, BlockNo(0), self.shared.blocks(), e))
    }

    fn rollback(&self) -> steadfast_block::Result<()> {
        self.shared
            .rollback()
            .map_err(|e| StoreDevice::error(DeviceOp::Flush, BlockNo(0), self.shared.blocks(), e))
    }
}

impl Core {
    pub(crate) fn of(loaded: Loaded, base: Base, keep: Duration) -> Core {
        // The store's clock is read in whole seconds.
        let keep_ms = keep.as_millis() as u64 + 2000;
        let mut collector = Collector::new(keep_ms, Faults::default());
        collector.retire(loaded.retired);
        Core {
            map: loaded.map,
            directory: loaded.directory,
            maps: loaded.maps,
            open: OpenEpoch::default(),
            closed: base.through,
            base,
            bytes_since: 0,
            plain: Vec::new(),
            orphans: Vec::new(),
            kept: loaded.kept,
            pins: None,
            collector,
            notes: Notes::loaded(loaded.notes),
        }
    }

    /// The present state, for reads. Regions are shared until they change.
    pub(crate) fn state(&self) -> Core {
        let loaded = Loaded {
            map: self.map.clone(),
            directory: self.directory.clone(),
            maps: self.maps.clone(),
            ..Loaded::default()
        };
        Core {
            closed: self.closed,
            ..Core::of(loaded, self.base, Duration::ZERO)
        }
    }
}
