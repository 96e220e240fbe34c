//! The journal as its callers see it: opening, operations, reads, syncs, the streams and their counts, the end.

use crate::cache::{Cache, Look};
use crate::checkpoint::Requester;
use crate::core::{Core, Limits, Request};
use crate::engine::Inner;
use crate::epoch::Epoch;
use crate::layout::Identity;
use crate::recover::{self, HeaderState, Recovery, Salvage};
use crate::streams::{COMMIT_INTERVAL_MIN, Merge, StreamCounts, StreamTotals};
use crate::workers::{acknowledger, checkpointer, flusher, timekeeper};
use crate::{
    Client, CommitMode, Config, Credits, EPOCH_SHARE, Error, Kind, LOG_BLOCKS_MAX, LOG_BLOCKS_MIN,
    OP_DATA_BLOCKS_MAX, OP_LOG_SHARE, Object, Op, Region, Result, Stats, StreamId, TXN_LOG_SHARE,
    Ticket,
};
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};

/// A journal over a device. Cheap to clone; all methods may be called from any thread.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Owner>,
}

/// State that the handles share; the workers end with the last handle.
struct Owner(Arc<Inner>);

impl Deref for Owner {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.dismiss_workers();
    }
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
    /// As for [`Journal::open`] and [`Journal::format`]. A region with any other content is not overwritten.
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
    /// its logged checksum is left without a valid seal. Returns the losses.
    ///
    /// # Errors
    /// As for `open`; [`Error::Corrupt`] only when no tail header is valid.
    pub fn salvage(
        device: Arc<dyn BlockDevice>,
        config: Config,
    ) -> Result<(Journal, Recovery, Salvage)> {
        let mut salvage = Salvage::default();
        let (journal, recovery) = Journal::recover(device, config, Some(&mut salvage))?;
        Ok((journal, recovery, salvage))
    }

    /// Content of the two tail headers. Reads two blocks.
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
        let inner = Inner::new(device, config, epoch, op_bytes_max, identity, cache, core);
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

    /// Sets the client: closing a transaction requests its delayed work, and released blocks are reported to it.
    pub fn set_client(&self, client: Weak<dyn Client>) {
        self.inner.set_client(client);
    }

    /// Starts the flusher (full transactions), the timekeeper (commit intervals) and the checkpointer, or without a log the
    /// acknowledger, once, where [`Config::workers`] has not.
    pub fn start_workers(&self) {
        let last = match self.inner.epoch {
            Some(_) => acknowledger,
            None => checkpointer,
        };
        self.inner.0.start_workers([flusher, timekeeper, last]);
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

    /// Like [`Journal::read_data`], but blocks from the device stay in memory as long as there is room: for
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
    /// The sticky failure: changes that were not durable before may be lost.
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
        self.inner.close_for_good();
        result
    }

    /// Stops at once, as if the power had failed: changes that are not durable are lost, and every later
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

    /// Counts of the journal so far.
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

    // ---- streams ---------------------------------------------------------------------------

    /// Makes all uncommitted changes of a stream durable, and those that they depend on.
    ///
    /// # Errors
    /// The sticky failure: changes that were not durable before may be lost.
    pub fn sync_stream(&self, stream: StreamId) -> Result<()> {
        self.sync(stream, &[])
    }

    /// A stream with an uncommitted change of the object: of several the newest. One that names it exclusively comes
    /// before those that share it.
    #[must_use]
    pub fn stream_of(&self, object: Object) -> Option<StreamId> {
        self.inner().told().1.stream_of(object)
    }

    /// The counts of each stream, by number. Streams without activity are left out.
    #[must_use]
    pub fn stream_counts(&self) -> Vec<(StreamId, StreamCounts)> {
        self.inner().told().1.streams.counts()
    }

    /// The newest merges, oldest first, at most [`MERGES_KEPT`](crate::MERGES_KEPT).
    #[must_use]
    pub fn merges(&self) -> Vec<Merge> {
        self.inner().told().1.streams.merges()
    }

    /// Totals of all streams, forgotten ones included.
    #[must_use]
    pub fn stream_totals(&self) -> StreamTotals {
        self.inner().told().1.streams.totals()
    }

    /// Forgets counts and interval of a stream. False, and nothing is forgotten, while it has uncommitted operations.
    #[must_use]
    pub fn forget(&self, stream: StreamId) -> bool {
        self.inner().told().1.streams.forget(stream)
    }

    /// Sets how long the first uncommitted operation of a stream may stay so; `None`: as long as the
    /// configuration says.
    pub fn set_commit_interval(&self, stream: StreamId, interval: Option<Duration>) {
        let interval = interval.map(|interval| interval.max(COMMIT_INTERVAL_MIN));
        self.inner().told().1.streams.set_interval(stream, interval);
        // It may be due earlier than the timekeeper thinks.
        self.inner().tick.notify_all();
    }

    /// Commits the streams whose commit interval has passed, as the workers do; returns how long it is until the next
    /// one has passed. For those that run a journal without workers.
    ///
    /// # Errors
    /// The sticky failure.
    pub fn commit_due(&self) -> Result<Option<Duration>> {
        self.inner().commit_due(false)
    }
}

impl Inner {
    fn shut_down(&self) -> Result<()> {
        self.sync(Request::Housekeeping, Core::everything)?;
        if self.epoch.is_some() {
            self.flush_in_place()?;
            return self.trim_rest().map_err(|error| self.fail(&error));
        }
        self.checkpoint(Requester::Caller)?;
        self.mark_clean()
    }
}
