//! The threads around the core: admission, closing, syncing, and the two workers.
//!
//! There is no dedicated committer thread: whoever waits for a commit becomes the
//! committer if nobody is (`Core::committing`), so a lone `sync` costs no thread switch and
//! many share one record. The same holds for checkpoints. Without workers everything
//! happens inside the callers, which makes a single-threaded run deterministic.
//!
//! Order of closing and committing one transaction:
//! 1. gate: new operations are held back, open ones end; the client allocates in memory;
//!    the transaction freezes; the gate opens (memory only);
//! 2. its data blocks are written to their places, and hashed, or flushed if they are many;
//! 3. the committer lays and writes the record, flushes, acknowledges.

use crate::cache::Cache;
use crate::core::{Batch, Blocked, Core, DataRun, Limits, OpChanges, Run, TxnId};
use crate::layout::{Covered, Identity};
use crate::recover::{self, HeaderState, Recovery, Salvage};
use crate::sync::{Condvar, Mutex, MutexGuard, thread, wait};
use crate::workers::{checkpointer, flusher};
use crate::{
    COVERED_BLOCKS_MAX, Client, Config, Credits, Error, Kind, LOG_BLOCKS_MAX, LOG_BLOCKS_MIN,
    OP_LOG_SHARE, Object, Op, Region, Result, Stats, StreamId, TXN_DATA_BLOCKS_MAX, TXN_LOG_SHARE,
    Ticket, seal_holds,
};
use std::sync::{Arc, Weak};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};

/// Most blocks that one device write of data or home blocks carries.
pub(crate) const WRITE_BLOCKS_MAX: usize = 256;

/// A journal over a device. Cheap to clone; all methods may be called from any thread.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    pub(crate) cache: Cache,
    pub(crate) core: Mutex<Core>,
    /// Something in the core changed that somebody may wait for.
    pub(crate) changed: Condvar,
    /// The workers have something to do.
    pub(crate) work: Condvar,
    client: Mutex<Option<Weak<dyn Client>>>,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    has_workers: std::sync::atomic::AtomicBool,
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
    /// [`Error::BadRegion`], [`Error::Corrupt`] when the log is damaged where it is known to
    /// have been durable, or the device's error.
    pub fn open(device: Arc<dyn BlockDevice>, config: Config) -> Result<(Journal, Recovery)> {
        Journal::recover(device, config, None)
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
        check_region(&config.region, device.geometry().blocks)?;
        let identity = Identity::new(config.volume);
        let cache = Cache::new(config.cache_blocks_max);
        let (recovery, start) = recover::recover(&device, &config, &identity, &cache, salvage)?;
        let limits = Limits {
            log_blocks: config.region.log_blocks,
            txn_bytes_max: config.region.log_blocks / TXN_LOG_SHARE * BLOCK_SIZE as u64,
            txn_data_blocks_max: TXN_DATA_BLOCKS_MAX,
            uncommitted_blocks_max: config.uncommitted_blocks_max,
        };
        let core = Core::new(
            limits,
            start.epoch,
            start.generation,
            start.newer_header,
            start.pos,
            start.seq,
        );
        let inner = Inner {
            device,
            config,
            identity,
            cache,
            core: Mutex::new(core),
            changed: Condvar::new(),
            work: Condvar::new(),
            client: Mutex::new(None),
            workers: Mutex::new(Vec::new()),
            has_workers: std::sync::atomic::AtomicBool::new(false),
        };
        Ok((
            Journal {
                inner: Arc::new(inner),
            },
            recovery,
        ))
    }

    /// Names the program whose delayed work closing calls for, and who hears of released blocks.
    pub fn set_client(&self, client: Weak<dyn Client>) {
        *self.inner.client.lock() = Some(client);
    }

    /// Starts the flusher (commit interval, full transactions) and the checkpointer, once.
    pub fn start_workers(&self) {
        let order = std::sync::atomic::Ordering::AcqRel;
        if self.inner.config.read_only || self.inner.has_workers.swap(true, order) {
            return;
        }
        let mut workers = self.inner.workers.lock();
        for run in [flusher as fn(&Weak<Inner>), checkpointer] {
            let inner = Arc::downgrade(&self.inner);
            workers.push(thread::spawn(move || run(&inner)));
        }
    }

    /// Largest `log_bytes` that one operation may ask for.
    #[must_use]
    pub fn op_bytes_max(&self) -> u64 {
        self.inner.config.region.log_blocks / OP_LOG_SHARE * BLOCK_SIZE as u64
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
        if credits.data_blocks > TXN_DATA_BLOCKS_MAX {
            let block = BLOCK_SIZE as u64;
            return Err(Error::TooLarge {
                needed: credits.data_blocks * block,
                limit: TXN_DATA_BLOCKS_MAX * block,
            });
        }
        self.inner.admit(stream, credits)?;
        Ok(Op::new(&self.inner, stream, None, credits))
    }

    /// The current image of a block: everything that was committed in memory.
    ///
    /// # Errors
    /// A read error, or [`Error::BadSeal`].
    pub fn read(&self, at: BlockNo, kind: Kind) -> Result<Arc<Block>> {
        self.inner.image(at, kind, false)
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

    /// Makes durable everything uncommitted of `stream`, and of every stream with an
    /// uncommitted change to one of `objects`.
    ///
    /// # Errors
    /// The sticky failure: what was not durable before may be lost.
    pub fn sync(&self, stream: StreamId, objects: &[Object]) -> Result<()> {
        self.inner.sync(Some(stream), objects)
    }

    /// Makes durable everything uncommitted.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn sync_all(&self) -> Result<()> {
        self.inner.sync(None, &[])
    }

    /// Waits until an operation is durable.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        let closed = self.inner.close(|_| vec![ticket.0])?;
        self.inner.drive(&closed)
    }

    /// Commits and proves until nothing is in quarantine that could leave it. Returns whether
    /// there was anything to gain.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn reclaim(&self) -> Result<bool> {
        self.inner.reclaim()
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
            self.inner.shut_down()
        };
        self.inner.stop_workers();
        self.inner.core.lock().closed_for_good = true;
        result
    }

    /// The first failure, if there was one: nothing has been written since.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.inner.core.lock().failure().cloned()
    }

    /// What the journal did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.core.lock().stats
    }

    /// Log positions `(durable tail, head)` in blocks, and how many transactions are not durable.
    #[must_use]
    pub fn usage(&self) -> (u64, u64, usize) {
        let core = self.inner.core.lock();
        let (tail, head) = core.positions();
        (tail, head, core.uncommitted_transactions())
    }

    /// Writes home everything that is durable in the log, and frees its space.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn checkpoint(&self) -> Result<()> {
        self.inner.checkpoint()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Workers hold weak references: they are gone, or going, without being asked.
        self.core.lock().stopped = true;
        self.work.notify_all();
    }
}

impl Inner {
    pub(crate) fn has_workers(&self) -> bool {
        self.has_workers.load(std::sync::atomic::Ordering::Acquire)
    }

    pub(crate) fn client(&self) -> Option<Arc<dyn Client>> {
        self.client.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Remembers a failure for everyone; returns it in its sticky form.
    pub(crate) fn fail(&self, error: &Error) -> Error {
        let mut core = self.core.lock();
        let error = core.fail(error);
        self.unlock(core);
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

    fn read_home(
        &self,
        at: BlockNo,
        blocks: &std::ops::Range<usize>,
        buf: &mut [u8],
    ) -> Result<()> {
        if !blocks.is_empty() {
            let bytes = blocks.start * BLOCK_SIZE..blocks.end * BLOCK_SIZE;
            self.device
                .read(at.offset(blocks.start as u64), &mut buf[bytes])?;
        }
        Ok(())
    }

    // ---- operations ------------------------------------------------------------------------

    fn admit(&self, stream: StreamId, credits: Credits) -> Result<()> {
        if !self.has_workers() && self.core.lock().wants_checkpoint() {
            self.checkpoint()?;
        }
        let mut core = self.core.lock();
        loop {
            core.check()?;
            let blocked = match core.admit(stream, credits) {
                Ok(()) => return Ok(()),
                Err(blocked) => blocked,
            };
            if blocked == Blocked::Closing {
                core = self.wait(core);
                continue;
            }
            core.stats.waits += 1;
            drop(core);
            match blocked {
                Blocked::Closing => {}
                Blocked::Full(id) => self.close_full(id)?,
                Blocked::Pages => self.relieve_pages()?,
                Blocked::Log => self.relieve_log()?,
            }
            core = self.core.lock();
        }
    }

    /// A stream's transaction is full: close it; the flusher commits it if there is one.
    fn close_full(&self, id: TxnId) -> Result<()> {
        let closed = self.close(|_| vec![id])?;
        if self.has_workers() {
            self.work.notify_all();
            Ok(())
        } else {
            self.drive(&closed)
        }
    }

    fn relieve_pages(&self) -> Result<()> {
        let oldest = self.core.lock().closed_waiting();
        match oldest {
            Some(id) => self.drive(&[id]),
            None => self.sync(None, &[]),
        }
    }

    fn relieve_log(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.can_checkpoint() {
            // Any progress of the tail is worth another attempt.
            let past = core.positions().0 + 1;
            drop(core);
            return self.checkpoint_past(past, false);
        }
        if core.uncommitted_transactions() > 0 {
            drop(core);
            return self.sync(None, &[]);
        }
        // Only other open operations, or an empty record under way, can hold the space.
        if core.open_ops > 0 || core.committing {
            core.room_waiters += 1;
            core = self.wait(core);
            core.room_waiters -= 1;
        }
        Ok(())
    }

    pub(crate) fn commit_op(&self, changes: OpChanges) -> TxnId {
        let (credits, closing) = (changes.credits, changes.closing.is_some());
        let early = if self.config.faults.reuse_early {
            changes.frees.clone()
        } else {
            Vec::new()
        };
        let halfway = Halfway {
            inner: self,
            credits: (!closing).then_some(credits),
        };
        let mut core = self.core.lock();
        let id = core.commit(changes, &self.cache);
        std::mem::forget(halfway);
        if !closing {
            core.leave(credits);
        }
        self.op_left(core);
        if !early.is_empty()
            && let Some(client) = self.client()
        {
            client.released(&early);
        }
        id
    }

    pub(crate) fn abort_op(&self, credits: Credits) {
        let mut core = self.core.lock();
        core.leave(credits);
        self.op_left(core);
    }

    /// An operation ended: closers wait for the last one, others for its reservation. Threads
    /// that wait for a commit are not disturbed.
    fn op_left(&self, core: MutexGuard<'_, Core>) {
        if (core.closing && core.open_ops == 0) || core.room_waiters > 0 {
            self.unlock(core);
        }
    }

    // ---- closing ---------------------------------------------------------------------------

    /// Closes the running ones of the chosen transactions; returns all chosen.
    fn close(&self, choose: impl Fn(&Core) -> Vec<TxnId>) -> Result<Vec<TxnId>> {
        let mut core = self.core.lock();
        loop {
            core.check()?;
            let chosen = choose(&core);
            if !core.any_running(&chosen) {
                return Ok(chosen);
            }
            if !core.closing {
                break;
            }
            core = self.wait(core);
        }
        core.closing = true;
        while core.open_ops > 0 {
            core = self.wait(core);
        }
        // Nothing is open: the choice cannot change any more but by the client's own work.
        let chosen = choose(&core);
        let result = loop {
            let Some((id, stream, keys)) = core.take_attached(&chosen) else {
                break Ok(());
            };
            drop(core);
            let result = self.close_keys(id, stream, &keys);
            core = self.core.lock();
            if let Err(error) = result {
                break Err(core.fail(&error));
            }
        };
        if result.is_ok() {
            core.freeze(&chosen, &self.cache);
        }
        core.closing = false;
        self.unlock(core);
        result.map(|()| chosen)
    }

    fn close_keys(&self, id: TxnId, stream: StreamId, keys: &[u64]) -> Result<()> {
        let Some(client) = self.client() else {
            // What the client put off is lost: the transaction can never be whole.
            return Err(Error::Closed);
        };
        let _gate = Gate(self);
        let op = Op::new(self, stream, Some(id), Credits::default());
        client.close(op, keys).map(|_| ())
    }

    // ---- syncing ---------------------------------------------------------------------------

    pub(crate) fn sync(&self, stream: Option<StreamId>, objects: &[Object]) -> Result<()> {
        if self.config.read_only {
            return Ok(());
        }
        let chosen = self.close(|core| core.concerned(stream, objects))?;
        self.drive(&chosen)
    }

    /// Works, or waits for others who work, until `ids` are durable.
    pub(crate) fn drive(&self, ids: &[TxnId]) -> Result<()> {
        let mut core = self.core.lock();
        loop {
            if core.acknowledged(ids) {
                return Ok(());
            }
            core.check()?;
            if let Some((id, data)) = core.claim_data(ids) {
                drop(core);
                self.write_data(id, &data)?;
            } else if let Some(batch) = self.lead(&mut core, false) {
                drop(core);
                self.commit_batch(batch)?;
            } else {
                core = self.wait(core);
                continue;
            }
            core = self.core.lock();
        }
    }

    /// Becomes the committer if nobody is and there is something to commit.
    pub(crate) fn lead(&self, core: &mut MutexGuard<'_, Core>, empty: bool) -> Option<Batch> {
        if core.committing {
            None
        } else {
            core.next_batch(empty)
        }
    }

    /// Writes a closed transaction's data blocks to their places. Few are hashed, to be covered
    /// by the record; many are flushed here, where only their own stream waits.
    fn write_data(&self, id: TxnId, data: &[DataRun]) -> Result<()> {
        let written = self.write_runs(data);
        match written {
            Ok(covered) => {
                let mut core = self.core.lock();
                core.data_written(id, covered);
                self.unlock(core);
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    fn write_runs(&self, data: &[DataRun]) -> Result<Vec<Covered>> {
        let mut blocks = 0;
        for (at, images) in data {
            for (i, chunk) in images.chunks(WRITE_BLOCKS_MAX).enumerate() {
                let segments: Vec<&[u8]> = chunk.iter().map(|b| &b[..]).collect();
                self.device
                    .write(at.offset((i * WRITE_BLOCKS_MAX) as u64), &segments)?;
            }
            blocks += images.len() as u64;
        }
        self.core.lock().stats.around_blocks += blocks;
        if blocks > COVERED_BLOCKS_MAX {
            self.flush()?;
            return Ok(Vec::new());
        }
        Ok(data
            .iter()
            .map(|(at, images)| Covered {
                at: *at,
                count: images.len() as u32,
                hash: self.identity.covered_hash(*at, images.iter().map(|b| &**b)),
            })
            .collect())
    }

    /// Flushes the device. A device reports a lost write once, to whichever flush comes first:
    /// so a success counts only when every flush that overlapped it has reported, too.
    pub(crate) fn flush(&self) -> Result<()> {
        let id = self.core.lock().flush_begins();
        let result = if self.config.faults.skip_flush {
            Ok(())
        } else {
            self.device.flush()
        };
        let mut core = self.core.lock();
        let newest = core.flush_ends(id);
        core.stats.flushes += 1;
        if let Err(error) = result {
            let error = core.fail(&error.into());
            self.unlock(core);
            return Err(error);
        }
        while core.flushing_since(newest) {
            core = self.wait(core);
        }
        let failed = core.failure().cloned();
        self.unlock(core);
        failed.map_or(Ok(()), Err)
    }

    fn reclaim(&self) -> Result<bool> {
        let (before, telling) = {
            let core = self.core.lock();
            (core.stats.released_blocks, core.releasing > 0)
        };
        self.sync(None, &[])?;
        let mut core = self.core.lock();
        // A checkpoint under way, or one record that proves the last, is all that can be
        // missing; then the client must have heard of it.
        while core.quarantined() || core.releasing > 0 {
            core.check()?;
            if core.releasing > 0 || core.checkpointing {
                core = self.wait(core);
            } else if let Some(batch) = self.lead(&mut core, true) {
                drop(core);
                self.commit_batch(batch)?;
                core = self.core.lock();
            } else if core.committing {
                core = self.wait(core);
            } else if core.can_checkpoint() {
                // No room for a record: the next tail header proves as well.
                drop(core);
                self.checkpoint()?;
                core = self.core.lock();
            } else {
                break;
            }
        }
        Ok(telling || core.stats.released_blocks > before)
    }

    // ---- shutting down -----------------------------------------------------------------------

    fn shut_down(&self) -> Result<()> {
        self.sync(None, &[])?;
        self.checkpoint()?;
        self.mark_clean()
    }

    fn stop_workers(&self) {
        self.core.lock().stopped = true;
        self.work.notify_all();
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

/// Opens the gate and stops the journal if the client panics in it, so that nobody waits for ever.
struct Gate<'a>(&'a Inner);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut core = self.0.core.lock();
            core.fail(&Error::Corrupt {
                what: "the storage program panicked while a transaction closed".into(),
            });
            core.closing = false;
            self.0.unlock(core);
        }
    }
}

/// Stops the journal if it panics in the middle of a commit in memory, and ends the operation,
/// so that nobody builds on half of it or waits for it.
struct Halfway<'a> {
    inner: &'a Inner,
    credits: Option<Credits>,
}

impl Drop for Halfway<'_> {
    fn drop(&mut self) {
        let mut core = self.inner.core.lock();
        core.fail(&Error::Corrupt {
            what: "the journal panicked while an operation was committed".into(),
        });
        if let Some(credits) = self.credits {
            core.leave(credits);
        }
        self.inner.unlock(core);
    }
}
