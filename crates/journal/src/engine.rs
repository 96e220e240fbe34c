//! The state that all threads of a journal share: the device, the cache, the core under its lock, and which threads each event
//! wakes.

use crate::cache::Cache;
use crate::core::{BATCH_PLACES, Core, Run, TxnId, batch_place};
use crate::epoch::Epoch;
use crate::in_memory::may_wait;
use crate::lanes::Lanes;
use crate::layout::Identity;
use crate::sync::{Condvar, Mutex, MutexGuard, thread, wait};
use crate::{Client, CommitMode, Config, Error, Kind, Result, seal_holds};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Weak};
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockDevice, BlockNo};

/// Most blocks that one device write of data or home blocks carries.
pub(crate) const WRITE_BLOCKS_MAX: usize = 256;

pub(crate) struct Inner {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// Blocks of the device.
    blocks: u64,
    pub(crate) config: Config,
    /// Without a log: the device's epochs.
    pub(crate) epoch: Option<Epoch>,
    /// Largest `log_bytes` that one operation may ask for.
    pub(crate) op_bytes_max: u64,
    pub(crate) identity: Identity,
    pub(crate) cache: Cache,
    pub(crate) lanes: Lanes,
    /// The core's word that it refuses everything.
    pub(crate) refuses: Arc<AtomicBool>,
    pub(crate) core: Mutex<Core>,
    /// Something in the core changed that a thread may wait for, except the end of a batch.
    pub(crate) changed: Condvar,
    /// Threads that wait for a batch wait here, by its sequence number: the end of a batch wakes exactly its own threads,
    /// and one of the next batch to carry that out.
    batches: [Condvar; BATCH_PLACES],
    /// The workers have something to do.
    pub(crate) work: Condvar,
    /// The timekeeper has something to do.
    pub(crate) tick: Condvar,
    client: Mutex<Option<Weak<dyn Client>>>,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    has_workers: AtomicBool,
    /// Closed for good: memory answers no reads any more.
    closed: AtomicBool,
}

impl Inner {
    /// The shared state, before any worker runs. One operation may ask for `op_bytes_max`.
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        config: Config,
        epoch: Option<Epoch>,
        op_bytes_max: u64,
        identity: Identity,
        cache: Cache,
        core: Core,
    ) -> Inner {
        Inner {
            blocks: device.geometry().blocks,
            device,
            config,
            epoch,
            op_bytes_max,
            identity,
            cache,
            lanes: Lanes::new(core.lane_credit()),
            refuses: Arc::clone(&core.refuses),
            core: Mutex::new(core),
            changed: Condvar::new(),
            batches: std::array::from_fn(|_| Condvar::new()),
            work: Condvar::new(),
            tick: Condvar::new(),
            client: Mutex::new(None),
            workers: Mutex::new(Vec::new()),
            has_workers: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_workers(&self) -> bool {
        self.has_workers.load(Acquire)
    }

    pub(crate) fn set_client(&self, client: Weak<dyn Client>) {
        *self.client.lock() = Some(client);
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client>> {
        self.client.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Remembers a failure for everyone; returns it in its sticky form.
    pub(crate) fn fail(&self, error: &Error) -> Error {
        let mut core = self.core.lock();
        let error = core.fail(error);
        self.wake_everybody(core);
        error
    }

    /// Waits for a change of the core.
    pub(crate) fn wait<'a>(&self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        core.waiters += 1;
        let mut core = wait(&self.changed, core);
        core.waiters -= 1;
        core
    }

    /// Lets go of the core, which has changed.
    pub(crate) fn unlock(&self, core: MutexGuard<'_, Core>) {
        let anyone = core.waiters > 0;
        drop(core);
        if anyone {
            self.changed.notify_all();
        }
    }

    /// The device has taken a batch: the next one can be led.
    pub(crate) fn batch_taken(&self, core: MutexGuard<'_, Core>, seq: u64) {
        let (this, next) = (batch_place(seq), batch_place(core.batch_to_come()));
        let waiting = core.batch_waiters;
        let left_out = core.closed_waiting().is_some();
        self.unlock(core);
        if waiting[next] > 0 {
            self.batches[next].notify_one();
        } else if left_out && waiting[this] > 0 {
            // Some of those that hoped for this batch have to lead the next.
            self.batches[this].notify_all();
        }
    }

    /// A batch ended: its threads go on, and one of those that wait for the next leads it.
    pub(crate) fn batch_ended(&self, core: MutexGuard<'_, Core>, seq: u64) {
        let (this, next) = (batch_place(seq), batch_place(core.batch_to_come()));
        let waiting = core.batch_waiters;
        let may_lead = core.may_lead();
        self.unlock(core);
        if waiting[this] > 0 {
            self.batches[this].notify_all();
        }
        if waiting[next] > 0 && may_lead {
            self.batches[next].notify_one();
        }
    }

    /// All waiting threads look again: a failure, or data that a batch waited for.
    pub(crate) fn wake_everybody(&self, core: MutexGuard<'_, Core>) {
        let waiting = core.batch_waiters;
        drop(core);
        self.changed.notify_all();
        for (batch, _) in self.batches.iter().zip(waiting).filter(|(_, n)| *n > 0) {
            batch.notify_all();
        }
    }

    /// Waits until the batch that is to hold `ids` ends, or a thread must lead it.
    pub(crate) fn wait_for_batch<'a>(
        &self,
        mut core: MutexGuard<'a, Core>,
        ids: &[TxnId],
    ) -> MutexGuard<'a, Core> {
        let place = batch_place(core.batch_of(ids));
        core.batch_waiters[place] += 1;
        let mut core = wait(&self.batches[place], core);
        core.batch_waiters[place] -= 1;
        core
    }

    /// Reports the blocks that left the quarantine to the client (`Core::releasing` counts them until then).
    pub(crate) fn released(&self, runs: &[Run]) {
        if runs.is_empty() {
            return;
        }
        if let Some(client) = self.client() {
            client.released(runs);
        }
        let mut core = self.core.lock();
        core.releasing -= 1;
        self.unlock(core);
    }

    /// Refuses changes of blocks that belong to the journal or lie outside the device.
    pub(crate) fn check_run(&self, at: BlockNo, count: u64) -> Result<()> {
        let end = at.0.saturating_add(count);
        if end > self.blocks {
            let blocks = self.blocks;
            return Err(Error::OutOfRange {
                at: BlockNo(at.0.max(blocks)),
                blocks,
            });
        }
        if self.config.commit_mode == CommitMode::Home {
            return Ok(());
        }
        let region = &self.config.region;
        let [first, second] = region.headers.map(|at| (at.0, at.0 + 1));
        let log = (region.log.0, region.log.0 + region.log_blocks);
        let mut own = [first, second, log].into_iter();
        match own.find(|own| own.0 < end && at.0 < own.1) {
            Some(own) => Err(Error::JournalBlock {
                at: BlockNo(at.0.max(own.0)),
            }),
            None => Ok(()),
        }
    }

    /// From now on every call is refused.
    pub(crate) fn close_for_good(&self) {
        self.core.lock().close_for_good();
        self.closed.store(true, Release);
    }

    /// Refuses reads of a journal that was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Acquire) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    // ---- images --------------------------------------------------------------------------

    pub(crate) fn image(&self, at: BlockNo, kind: Kind, hold: bool) -> Result<Arc<Block>> {
        self.cache.get(at, kind, hold, |block| {
            self.device.read(at, block)?;
            if kind == Kind::Meta && !seal_holds(&self.config.volume, at, block) {
                return Err(Error::BadSeal { at });
            }
            Ok(())
        })
    }

    pub(crate) fn images(&self, at: &[BlockNo], kind: Kind) -> Vec<Result<Arc<Block>>> {
        let known = |at: &BlockNo| {
            self.cache.with(*at, |entry| match entry.kind == kind {
                true => Ok(Arc::clone(&entry.current)),
                false => Err(Error::WrongKind { at: *at, kind }),
            })
        };
        let mut images: Vec<Option<Result<Arc<Block>>>> = at.iter().map(known).collect();
        let missing: Vec<usize> = (0..at.len()).filter(|i| images[*i].is_none()).collect();
        let mut buffer = BlockBuf::zeroed(missing.len());
        let (blocks, _) = buffer.as_bytes_mut().as_chunks_mut::<BLOCK_SIZE>();
        let mut reads: Vec<(BlockNo, &mut [u8])> = (missing.iter().zip(blocks))
            .map(|(i, block)| (at[*i], &mut block[..]))
            .collect();
        if self.device.read_scattered(&mut reads).is_ok() {
            for (i, (at, bytes)) in missing.into_iter().zip(reads) {
                let mut image = Arc::new([0u8; BLOCK_SIZE]);
                Arc::make_mut(&mut image).copy_from_slice(bytes);
                let sound = kind == Kind::Data || seal_holds(&self.config.volume, at, &image);
                images[i] = Some(if sound {
                    Ok(image)
                } else {
                    Err(Error::BadSeal { at })
                });
            }
        }
        // After a failure each on its own: one bad block says nothing of the others.
        let each = images.into_iter().zip(at);
        each.map(|(image, at)| image.unwrap_or_else(|| self.image(*at, kind, false)))
            .collect()
    }

    /// Holds a block in memory for an operation that changes it.
    pub(crate) fn hold(&self, at: BlockNo, kind: Kind) -> Result<()> {
        self.image(at, kind, true).map(drop)
    }

    /// Reads a run of blocks from their homes, and keeps those whose load is the caller's.
    pub(crate) fn load(
        &self,
        at: BlockNo,
        missing: &mut std::ops::Range<usize>,
        loads: &mut Vec<(usize, u64)>,
        blocks: &mut [Block],
    ) -> Result<()> {
        let run = std::mem::take(missing);
        let result = self.read_home(at, &run, blocks.as_flattened_mut());
        for (i, load_no) in loads.drain(..) {
            let image = result.is_ok().then_some(&blocks[i]);
            let at = at.offset(i as u64);
            self.cache.loaded(at, load_no, Kind::Data, image);
        }
        result
    }

    pub(crate) fn read_home(
        &self,
        at: BlockNo,
        blocks: &std::ops::Range<usize>,
        buf: &mut [u8],
    ) -> Result<()> {
        if !blocks.is_empty() {
            may_wait()?;
            let bytes = blocks.start * BLOCK_SIZE..blocks.end * BLOCK_SIZE;
            self.device
                .read(at.offset(blocks.start as u64), &mut buf[bytes])?;
        }
        Ok(())
    }

    // ---- workers -----------------------------------------------------------------------------

    /// Starts the background threads, once.
    pub(crate) fn start_workers(self: &Arc<Inner>, runs: [fn(&Inner); 3]) {
        if self.config.read_only || self.has_workers.swap(true, AcqRel) {
            return;
        }
        self.core.lock().limits.pipelines = true;
        let mut workers = self.workers.lock();
        for run in runs {
            let inner = Arc::clone(self);
            workers.push(thread::spawn(move || run(&inner)));
        }
    }

    /// Tells them to end.
    pub(crate) fn dismiss_workers(&self) {
        self.core.lock().stopped = true;
        self.work.notify_all();
        self.tick.notify_all();
        self.changed.notify_all();
    }

    pub(crate) fn stop_workers(&self) {
        self.dismiss_workers();
        let workers = std::mem::take(&mut *self.workers.lock());
        for worker in workers {
            // A worker that panicked has nothing to tell; its failure shows in the core.
            let _ = worker.join();
        }
    }

    pub(crate) fn wake_workers(&self) {
        if self.has_workers() {
            self.work.notify_all();
        }
    }
}
