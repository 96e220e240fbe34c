//! The journal as its callers see it, and what all of its threads share: the device, the
//! cache, the core under its lock, and which threads each event wakes.

use crate::cache::{Cache, Look};
use crate::checkpoint::Requester;
use crate::core::{BATCH_PLACES, Core, Limits, Request, Run, TxnId, batch_place};
use crate::home::Epoch;
use crate::in_memory::may_wait;
use crate::lanes::Lanes;
use crate::layout::Identity;
use crate::recover::{self, HeaderState, Recovery, Salvage};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, wait};
use crate::workers::{acknowledger, checkpointer, flusher, timekeeper};
use crate::{
    COMMIT_INTERVAL_MIN, Client, CommitMode, Config, Credits, EPOCH_SHARE, Error, Kind,
    LOG_BLOCKS_MAX, LOG_BLOCKS_MIN, OP_DATA_BLOCKS_MAX, OP_LOG_SHARE, Object, Op, Region, Result,
    Stats, StreamId, TXN_LOG_SHARE, Ticket, seal_holds,
};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Weak};
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockDevice, BlockNo};

/// Most blocks that one device write of data or home blocks carries.
pub(crate) const WRITE_BLOCKS_MAX: usize = 256;

/// A journal over a device. Cheap to clone; all methods may be called from any thread.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Owner>,
}

/// What the handles share; the workers go when the last of them is gone.
struct Owner(Arc<Inner>);

impl Deref for Owner {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.core.lock().stopped = true;
        self.0.work.notify_all();
        self.0.tick.notify_all();
        self.0.changed.notify_all();
    }
}

pub(crate) struct Inner {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// Blocks of the device.
    blocks: u64,
    pub(crate) config: Config,
    /// Without a log: the device's epochs.
    pub(crate) epoch: Option<Epoch>,
    /// Largest `log_bytes` that one operation may ask for.
    op_bytes_max: u64,
    pub(crate) identity: Identity,
    pub(crate) cache: Cache,
    pub(crate) lanes: Lanes,
    /// The core's word that it refuses everything.
    pub(crate) refuses: Arc<AtomicBool>,
    pub(crate) core: Mutex<Core>,
    /// Something in the core changed that a thread may wait for, but for the end of a batch.
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

fn check_region(region: &Region, blocks: u64) -> Result<()> {
    let bad = |what: String| Err(Error::BadRegion { what });
    let end = region.log.0.checked_add(region.log_blocks);
    if region.log_blocks > LOG_BLOCKS_MAX {
        return bad(format!(
            "the log has {} blocks, at most {LOG_BLOCKS_MAX} are possible",
            region.log_blocks
        ));
    }
    if region.log_blocks < LOG_BLOCKS_MIN {
        return bad(format!(
            "the log has {} blocks, at least {LOG_BLOCKS_MIN} are needed",
            region.log_blocks
        ));
    }
    if end.is_none_or(|end| end > blocks) || region.headers.iter().any(|h| h.0 >= blocks) {
        return bad(format!(
            "the log reaches beyond the device of {blocks} blocks"
        ));
    }
    let log = region.log.0..region.log.0 + region.log_blocks;
    if region.headers[0] == region.headers[1] || region.headers.iter().any(|h| log.contains(&h.0)) {
        return bad("the tail headers overlap each other or the log".into());
    }
    Ok(())
}

impl Journal {
    /// Writes an empty journal: the log's blocks for real (so that no commit waits for the
    /// host to allocate them), both tail headers, flushed.
    ///
    /// # Errors
    /// [`Error::BadRegion`], or the device's error.
    pub fn format(device: &dyn BlockDevice, region: &Region, volume: &[u8; 16]) -> Result<()> {
        check_region(region, device.geometry().blocks)?;
        recover::format(device, region, &Identity::new(*volume))
    }

    /// Opens a journal and recovers: the blocks hold the accepted prefix when this returns
    /// (with `read_only`, in memory only). O(log).
    ///
    /// # Errors
    /// [`Error::BadRegion`], [`Error::NotFormatted`], [`Error::Corrupt`] when the log is damaged where it is known to
    /// have been durable, or the device's error.
    pub fn open(device: Arc<dyn BlockDevice>, config: Config) -> Result<(Journal, Recovery)> {
        let (journal, recovery) = Journal::recover(device, config, None)?;
        if journal.inner.config.workers {
            journal.start_workers();
        }
        Ok((journal, recovery))
    }

    /// Opens a journal, or formats one where headers and log hold nothing but zeros. Reads the whole log before that.
    ///
    /// # Errors
    /// As for [`Journal::open`] and [`Journal::format`]. What holds anything else is not written over.
    pub fn open_or_create(
        device: Arc<dyn BlockDevice>,
        config: Config,
    ) -> Result<(Journal, Recovery)> {
        match Journal::open(Arc::clone(&device), config.clone()) {
            Err(Error::NotFormatted) if !config.read_only => {
                Journal::format(&*device, &config.region, &config.volume)?;
                Journal::open(device, config)
            }
            opened => opened,
        }
    }

    /// Like [`Journal::open`], but goes on past damage, for a repair: a damaged record ends the
    /// log although it is known to have been durable, and a metadata block that does not lead to
    /// its logged checksum is left without a valid seal. Says what was lost by that.
    ///
    /// # Errors
    /// As for `open`; [`Error::Corrupt`] only when no tail header can be believed.
    pub fn salvage(
        device: Arc<dyn BlockDevice>,
        config: Config,
    ) -> Result<(Journal, Recovery, Salvage)> {
        let mut salvage = Salvage::default();
        let (journal, recovery) = Journal::recover(device, config, Some(&mut salvage))?;
        Ok((journal, recovery, salvage))
    }

    /// What the two tail headers hold. Reads two blocks.
    ///
    /// # Errors
    /// [`Error::BadRegion`], or the device's error.
    pub fn tail_headers(
        device: &dyn BlockDevice,
        region: &Region,
        volume: &[u8; 16],
    ) -> Result<[HeaderState; 2]> {
        check_region(region, device.geometry().blocks)?;
        recover::read_headers(device, region, &Identity::new(*volume))
    }

    fn recover(
        device: Arc<dyn BlockDevice>,
        config: Config,
        salvage: Option<&mut Salvage>,
    ) -> Result<(Journal, Recovery)> {
        let identity = Identity::new(config.volume);
        let cache = Cache::new(config.cache_blocks_max);
        let (epoch, log_blocks, (recovery, start)) = match config.commit_mode {
            CommitMode::Log => {
                check_region(&config.region, device.geometry().blocks)?;
                let found = recover::recover(&device, &config, &identity, &cache, salvage)?;
                (None, config.region.log_blocks, found)
            }
            CommitMode::Home => {
                let epoch = Epoch::of(&*device)?;
                let blocks = epoch.blocks();
                (Some(epoch), blocks, recover::nothing())
            }
        };
        let commit_mode = config.commit_mode;
        let (op_share, txn_share) = match commit_mode {
            CommitMode::Log => (OP_LOG_SHARE, TXN_LOG_SHARE),
            CommitMode::Home => (EPOCH_SHARE, EPOCH_SHARE),
        };
        let op_bytes_max = log_blocks / op_share * commit_mode.block_bytes();
        let boundless = commit_mode == CommitMode::Home && config.faults.ignore_epoch;
        let limits = Limits {
            commit_mode,
            log_blocks: if boundless { 1 << 40 } else { log_blocks },
            txn_bytes_max: match boundless {
                true => u64::MAX / 2,
                false => log_blocks / txn_share * commit_mode.block_bytes(),
            },
            dirty_blocks: config.dirty_blocks,
            // Without workers no thread would write it meanwhile.
            pipelines: false,
            commit_interval: config.commit_interval.max(COMMIT_INTERVAL_MIN),
            faults: config.faults,
        };
        let core = Core::new(
            config.probe.clone(),
            limits,
            start.epoch,
            start.generation,
            start.newer_header,
            start.pos,
            start.seq,
        );
        let inner = Inner {
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
        };
        Ok((
            Journal {
                inner: Arc::new(Owner(Arc::new(inner))),
            },
            recovery,
        ))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Names the program whose delayed work closing calls for, and that hears of released blocks.
    pub fn set_client(&self, client: Weak<dyn Client>) {
        *self.inner.client.lock() = Some(client);
    }

    /// Starts the flusher (full transactions), the timekeeper (commit intervals) and the checkpointer, or without a log the
    /// acknowledger, once, where [`Config::workers`] has not.
    pub fn start_workers(&self) {
        if self.inner.config.read_only || self.inner.has_workers.swap(true, AcqRel) {
            return;
        }
        self.inner.core.lock().limits.pipelines = true;
        let mut workers = self.inner.workers.lock();
        let last = match self.inner.epoch {
            Some(_) => acknowledger,
            None => checkpointer,
        };
        let runs = [flusher as fn(&Inner), timekeeper, last];
        for run in runs {
            let inner = Arc::clone(&self.inner.0);
            workers.push(thread::spawn(move || run(&inner)));
        }
    }

    /// Largest `log_bytes` that one operation may ask for.
    #[must_use]
    pub fn op_bytes_max(&self) -> u64 {
        self.inner.op_bytes_max
    }

    /// Admits an operation of `stream`. Waits for log space and memory; the caller holds no
    /// lock that an open operation or [`Client::close`] could want.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::ReadOnly`], [`Error::Closed`], or the sticky failure.
    pub fn begin(&self, stream: StreamId, credits: Credits) -> Result<Op<'_>> {
        let limit = self.op_bytes_max();
        if self.inner.config.read_only {
            return Err(Error::ReadOnly);
        }
        if credits.log_bytes > limit {
            return Err(Error::TooLarge {
                needed: credits.log_bytes,
                limit,
            });
        }
        if credits.data_blocks > OP_DATA_BLOCKS_MAX {
            let block = BLOCK_SIZE as u64;
            return Err(Error::TooLarge {
                needed: credits.data_blocks * block,
                limit: OP_DATA_BLOCKS_MAX * block,
            });
        }
        let lane = self.inner.admit(stream, credits)?;
        Ok(Op::new(&self.inner, stream, Ok(lane), credits))
    }

    /// The current image of a block: everything that was committed in memory.
    ///
    /// # Errors
    /// A read error, or [`Error::BadSeal`].
    pub fn read(&self, at: BlockNo, kind: Kind) -> Result<Arc<Block>> {
        self.inner.check_open()?;
        self.inner.image(at, kind, false)
    }

    /// The current images of scattered blocks that no operation changes meanwhile, for a look at very many:
    /// those not in memory are read from the device all at once, and do not stay. An answer for each.
    pub fn read_scattered(&self, at: &[BlockNo], kind: Kind) -> Vec<Result<Arc<Block>>> {
        if let Err(error) = self.inner.check_open() {
            return at.iter().map(|_| Err(error.clone())).collect();
        }
        self.inner.images(at, kind)
    }

    /// Reads consecutive data blocks: current images where they are in memory, else from
    /// the device, in runs.
    ///
    /// # Errors
    /// A read error.
    ///
    /// # Panics
    /// If `buf` is no whole number of blocks: a bug of the caller.
    pub fn read_data(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        assert!(
            buf.len().is_multiple_of(BLOCK_SIZE),
            "a buffer of whole blocks"
        );
        self.inner.check_open()?;
        let blocks = buf.len() / BLOCK_SIZE;
        let mut missing = 0..0;
        for i in 0..blocks {
            if let Some(image) = self.inner.cache.peek(at.offset(i as u64)) {
                self.inner.read_home(at, &missing, buf)?;
                missing = 0..0;
                buf[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE].copy_from_slice(&image[..]);
            } else if missing.is_empty() {
                missing = i..i + 1;
            } else {
                missing.end = i + 1;
            }
        }
        self.inner.read_home(at, &missing, buf)
    }

    /// Like [`Journal::read_data`], but what comes from the device stays in memory as long as there is room: for
    /// readers without a cache of their own.
    ///
    /// # Errors
    /// A read error.
    ///
    /// # Panics
    /// If `buf` is no whole number of blocks: a bug of the caller.
    pub fn read_data_kept(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let (blocks, rest) = buf.as_chunks_mut::<BLOCK_SIZE>();
        assert!(rest.is_empty(), "a buffer of whole blocks");
        self.inner.check_open()?;
        let mut missing = 0..0;
        let mut loads = Vec::new();
        for i in 0..blocks.len() {
            match self.inner.cache.look(at.offset(i as u64)) {
                Look::Here(image) => {
                    blocks[i] = *image;
                    self.inner.load(at, &mut missing, &mut loads, blocks)?;
                    continue;
                }
                Look::Load(load_no) => loads.push((i, load_no)),
                Look::Elsewhere => {}
            }
            missing = match missing.is_empty() {
                true => i..i + 1,
                false => missing.start..i + 1,
            };
        }
        self.inner.load(at, &mut missing, &mut loads, blocks)
    }

    /// Makes durable everything uncommitted of `stream`, and of every stream with an
    /// uncommitted change to one of `objects`.
    ///
    /// # Errors
    /// The sticky failure: what was not durable before may be lost.
    pub fn sync(&self, stream: StreamId, objects: &[Object]) -> Result<()> {
        self.sync_together(&[stream], objects)
    }

    /// [`Journal::sync`] for several streams and objects at once: one record can hold them all.
    ///
    /// # Errors
    /// As for `sync`.
    pub fn sync_together(&self, streams: &[StreamId], objects: &[Object]) -> Result<()> {
        (self.inner).sync(Request::Sync(streams), |core| {
            core.concerned(streams, objects)
        })
    }

    /// Makes durable everything uncommitted.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn sync_all(&self) -> Result<()> {
        self.inner.sync(Request::Housekeeping, Core::everything)
    }

    /// Waits until an operation is durable.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        let of = |core: &mut Core| core.transaction_of(ticket).into_iter().collect();
        let closed = self.inner.close(of)?;
        self.inner.drive(Request::Sync(&[ticket.stream]), &closed)
    }

    /// Commits and proves until nothing is in quarantine that could leave it. Returns whether
    /// there was anything to gain.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn reclaim(&self) -> Result<bool> {
        self.inner.reclaim()
    }

    /// Commits the transaction that holds most blocks, freed ones and those of delayed data. False, and nothing is
    /// committed, if none holds any. Some of them may stay in quarantine.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn reclaim_most(&self) -> Result<bool> {
        let Some(holder) = self.inner.told().1.holding_most() else {
            return Ok(false);
        };
        self.inner
            .sync(Request::Housekeeping, |_| vec![holder])
            .map(|()| true)
    }

    /// Commits everything, writes everything home, and marks the journal clean. Afterwards
    /// every call fails with [`Error::Closed`]. Must be called with no operation open.
    ///
    /// # Errors
    /// The sticky failure; the volume then recovers at its next opening.
    pub fn close(&self) -> Result<()> {
        let result = if self.inner.config.read_only {
            Ok(())
        } else {
            (self.inner.shut_down()).inspect(|()| self.inner.device.finish())
        };
        self.inner.stop_workers();
        self.inner.core.lock().close_for_good();
        self.inner.closed.store(true, Release);
        result
    }

    /// Stops at once, as if the power had failed: what is not durable is lost, and every later
    /// call fails with [`Error::Closed`]. When this returns, the background threads have
    /// ended; calls of other threads that are under way may still write.
    pub fn abandon(&self) {
        self.inner.fail(&Error::Closed);
        self.inner.stop_workers();
    }

    /// The first failure, if there was one: nothing has been written since.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.inner.core.lock().failure().cloned()
    }

    /// What the journal did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.told().1.stats
    }

    /// Log positions `(durable tail, head)` in blocks, and how many transactions are not durable.
    #[must_use]
    pub fn usage(&self) -> (u64, u64, usize) {
        let (_lanes, core) = self.inner.told();
        let (tail, head) = core.positions();
        (tail, head, core.uncommitted_transactions())
    }

    /// Writes home everything that is durable in the log, and frees its space.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.checkpoint(Requester::Caller)
    }
}

impl Inner {
    pub(crate) fn has_workers(&self) -> bool {
        self.has_workers.load(Acquire)
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

    /// Tells the client of what left the quarantine (`Core::releasing` counts it until then).
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

    /// Refuses reads of a journal that was closed.
    fn check_open(&self) -> Result<()> {
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

    fn images(&self, at: &[BlockNo], kind: Kind) -> Vec<Result<Arc<Block>>> {
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
    fn load(
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

    fn read_home(
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

    // ---- shutting down -----------------------------------------------------------------------

    fn shut_down(&self) -> Result<()> {
        self.sync(Request::Housekeeping, Core::everything)?;
        if self.epoch.is_some() {
            self.flush_in_place()?;
            return self.trim_rest().map_err(|error| self.fail(&error));
        }
        self.checkpoint(Requester::Caller)?;
        self.mark_clean()
    }

    fn stop_workers(&self) {
        self.core.lock().stopped = true;
        self.work.notify_all();
        self.tick.notify_all();
        self.changed.notify_all();
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
