//! The decision core: plain state and methods without I/O, threads or clocks. It decides
//! which transaction an operation joins, when it is admitted, which may enter a batch, which are durable and
//! proved, and which blocks may be written home, trimmed and reused. The engine around it
//! (`engine`, `commit`, `checkpoint`) carries the decisions out and reports back.
//!
//! Rules kept here (ARCHITECTURE.md, section 4; the counterexamples are in the crash tests):
//!
//! * a closed transaction owns its bytes: nothing is absorbed into it;
//! * one batch is in flight; the next is laid only when it is acknowledged, so a record's
//!   `flushed_seq` is always its own sequence minus one, and record N is *proved* by the
//!   acknowledgement of N + 1;
//! * a transaction enters a batch after everything it follows (`after`), and never
//!   together with a transaction whose covered blocks it patches;
//! * freed blocks leave the quarantine when their record is durable, no checkpoint that
//!   could hold an image of them is under way, and no unproved record covers them;
//! * log space is reused only before the durable tail;
//! * `free ≥ reserved`: every admitted operation fits, in any order of events.

mod close;
mod join;
mod objects;
mod room;
mod settle;
mod streams;

pub(crate) use crate::changes::{BlockMap, DataRun, OpBlock, OpChanges, Run, TxnId, keys_within};
use crate::changes::{LaneId, NoteFn, OpName};
use crate::epoch::ClosedEpoch;
use crate::patch::Patch;
use crate::probe::Probe;
use crate::record::{Covered, ENTRY_BYTES, RECORD_HEADER_BYTES};
use crate::{BLOCK_CREDIT, CommitMode, Error, Faults, Kind, Result, Stats, StreamId, Ticket};
use foldhash::fast::FixedState;
use objects::{ObjectList, Objects};
pub(crate) use room::Blocked;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
pub(crate) use streams::Request;
use streams::{Share, Streams};

/// State of a closed transaction's data blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DataState {
    /// No thread writes them yet.
    Pending,
    /// A thread is writing them.
    Writing,
    /// Written; these runs are covered by hashes (none if they were flushed).
    Ready(Vec<Covered>),
}

#[derive(PartialEq, Eq, Debug)]
enum Phase {
    Running,
    Closed(DataState),
    /// In a batch that is under way, or that is not durable yet.
    Committing,
}

pub(crate) struct TxnBlock {
    pub(crate) kind: Kind,
    pub(crate) patch: Patch,
    /// Upper bound of `patch.log_bytes()`.
    log_bytes: u64,
    /// The bound is made exact when it passes this.
    recount_at: u64,
    /// Holds of the cache entry: one for each operation.
    pub(crate) holds: u32,
    /// The stream of the newest operation.
    pub(crate) stream: StreamId,
    /// The values, once the transaction is closed.
    pub(crate) values: Option<Arc<Block>>,
    /// If no other transaction had a part in `values`: the committed image then. As long as that
    /// is the committed image, `values` is the one after this patch.
    pub(crate) alone_on: Option<Arc<Block>>,
}

impl TxnBlock {
    fn new(kind: Kind, commit_mode: CommitMode) -> TxnBlock {
        TxnBlock {
            kind,
            patch: Patch::default(),
            log_bytes: ENTRY_BYTES as u64,
            recount_at: match commit_mode {
                CommitMode::Log => BLOCK_SIZE as u64,
                CommitMode::Home => 0,
            },
            holds: 0,
            stream: StreamId::default(),
            values: None,
            alone_on: None,
        }
    }

    /// Makes the bound of the log bytes exact. It doubles before the next time, so that
    /// counting costs little per edit.
    fn recount(&mut self, commit_mode: CommitMode) {
        self.log_bytes = match commit_mode {
            CommitMode::Log => self.patch.log_bytes(),
            // One write of the epoch; none, if the block was freed.
            CommitMode::Home if self.patch.revoke => 0,
            CommitMode::Home => BLOCK_CREDIT,
        };
        self.recount_at = match commit_mode {
            CommitMode::Log => self.log_bytes * 2,
            CommitMode::Home => 0,
        };
    }
}

pub(crate) struct Txn {
    commit_mode: CommitMode,
    /// Its streams, and the share of each.
    streams: BTreeMap<StreamId, Share>,
    /// Streams that asked for its commit.
    requesters: SmallVec<[StreamId; 1]>,
    phase: Phase,
    pub(crate) blocks: BlockMap<Box<TxnBlock>>,
    pub(crate) data: Vec<DataRun>,
    pub(crate) frees: Vec<Run>,
    /// Keys of delayed work, and the log bytes reserved for each.
    attached: BTreeMap<u64, u64>,
    /// Log bytes of the patches so far.
    log_bytes: u64,
    /// Reserved beyond them until the transaction closes.
    held_bytes: u64,
    data_blocks: u64,
    objects: ObjectList,
    /// Its operations, for the trace.
    names: Vec<OpName>,
    /// Notes of the operations for the epoch that commits them.
    pub(crate) notes: Vec<NoteFn>,
    /// Transactions that must be laid before this one.
    after: BTreeSet<TxnId>,
    /// Names of transactions that merged into this one.
    merged: Vec<TxnId>,
    /// Batches that could have taken it along and did not.
    passed_over: u32,
    /// It closed because it was full.
    was_full: bool,
    /// The batch that it is in, if it is in one.
    batch: u64,
}

impl Txn {
    /// Whether it should close although the log would take more of it.
    fn takes_much_memory(&self) -> bool {
        self.blocks.len() >= TXN_BLOCKS_MAX || self.objects.len() >= TXN_OBJECTS_MAX
    }

    pub(crate) fn need_blocks(&self) -> u64 {
        self.commit_mode
            .need_blocks(self.log_bytes + self.held_bytes)
    }
}

impl CommitMode {
    /// Blocks of the log that these bytes may take, or writes of an epoch that they pay for.
    pub(crate) fn need_blocks(self, log_bytes: u64) -> u64 {
        match self {
            CommitMode::Log => (log_bytes + RECORD_HEADER_BYTES as u64).div_ceil(BLOCK_SIZE as u64),
            CommitMode::Home => log_bytes.div_ceil(BLOCK_CREDIT),
        }
    }

    /// Bytes that a block of the log, or a write of an epoch, is worth.
    pub(crate) fn block_bytes(self) -> u64 {
        match self {
            CommitMode::Log => BLOCK_SIZE as u64,
            CommitMode::Home => BLOCK_CREDIT,
        }
    }
}

/// A record to be laid.
pub(crate) struct Batch {
    pub(crate) seq: u64,
    pub(crate) pos: u64,
    pub(crate) flushed_seq: u64,
    pub(crate) txns: Vec<(TxnId, Txn)>,
    pub(crate) covered: Vec<Covered>,
    /// Blocks that its record, or its images, take.
    blocks: u64,
    /// Planted fault: its images, to become the committed ones when it is durable.
    late: Option<Vec<PostImage>>,
}

/// A batch that the device has taken as an epoch, and that is not durable yet.
pub(crate) struct SentBatch {
    batch: Batch,
    pub(crate) epoch: ClosedEpoch,
}

/// A block after a batch.
pub(crate) struct PostImage {
    pub(crate) at: BlockNo,
    /// Transactions of the batch that touched it.
    pub(crate) holds: u32,
    /// `None`: revoked. The seal is placed when the image goes home.
    pub(crate) image: Option<Arc<Block>>,
    /// Checksum in the record, for a metadata block.
    pub(crate) checksum: u64,
}

/// A checkpoint round.
pub(crate) struct Round {
    pub(crate) upto_seq: u64,
    pub(crate) upto_pos: u64,
    pub(crate) flushed_seq: u64,
    pub(crate) images: Vec<HomeImage>,
}

/// A committed image on its way home.
pub(crate) struct HomeImage {
    pub(crate) at: BlockNo,
    /// The checksum to be placed in its seal, if it is a metadata block.
    pub(crate) checksum: Option<u64>,
    pub(crate) image: Arc<Block>,
}

/// A block with patches in the log past the durable tail.
struct Logged {
    /// Sequence of the newest record.
    seq: u64,
    /// The checksum there, if it is a metadata block.
    checksum: Option<u64>,
}

/// Operations of one stream and lane, by their numbers there, that are in a transaction.
struct Mark {
    lane: LaneId,
    first: u64,
    last: u64,
    id: TxnId,
}

/// A run of data written around the log, by its first block.
#[derive(Clone, Copy)]
struct Around {
    blocks: u64,
    txn: TxnId,
    stream: StreamId,
}

struct Freed {
    seq: u64,
    run: Run,
    /// Covered by the record that frees it: waits for the next one.
    wants_proof: bool,
}

/// Blocks with small patches at which a transaction closes: until it is durable, each may be in memory
/// as it is now, as it was closed, and as it is committed.
const TXN_BLOCKS_MAX: usize = 16_384;
/// Number of named objects at which a transaction closes: a list takes 32 bytes for each (32 MiB), an index some
/// hundred.
const TXN_OBJECTS_MAX: usize = 1 << 20;

/// Batches that are not durable at a time, at most: the device's window, and the one that is being written.
const SENT_MAX: usize = 12;
/// Places where threads wait for batches: one for each batch that is not durable, and one for the next.
pub(crate) const BATCH_PLACES: usize = SENT_MAX + 2;

/// Index of the waiting place of a batch.
pub(crate) fn batch_place(seq: u64) -> usize {
    (seq % BATCH_PLACES as u64) as usize
}

pub(crate) struct Limits {
    pub(crate) commit_mode: CommitMode,
    /// Blocks of the log; without one, of an epoch.
    pub(crate) log_blocks: u64,
    pub(crate) txn_bytes_max: u64,
    /// Budget of uncommitted data.
    pub(crate) dirty_blocks: u64,
    /// A background thread writes one transaction while the next grows.
    pub(crate) pipelines: bool,
    /// Age at which a running transaction is committed.
    pub(crate) commit_interval: Duration,
    pub(crate) faults: Faults,
}

pub(crate) struct Core {
    pub(crate) probe: Probe,
    pub(crate) limits: Limits,
    next_txn: u64,
    txns: BTreeMap<TxnId, Txn>,
    /// The live transaction that a merged one became part of.
    merged_into: HashMap<TxnId, TxnId>,
    running: BTreeMap<StreamId, TxnId>,
    last_closed: BTreeMap<StreamId, TxnId>,
    /// Operations of each stream that are not durable, oldest first.
    marks: HashMap<StreamId, Vec<Mark>, FixedState>,
    /// Closed transactions in the order in which they closed.
    closed: VecDeque<TxnId>,
    objects: Objects,
    pub(crate) streams: Streams,
    /// Unacknowledged transactions that touch a block.
    dirty: BlockMap<SmallVec<[TxnId; 2]>>,
    /// Runs of data written around the log by unacknowledged transactions, disjoint.
    around: BTreeMap<u64, Around>,
    /// Blocks with patches in the log past the durable tail.
    logged: BTreeMap<u64, Logged>,
    freed: Vec<Freed>,
    /// Runs covered by the newest acknowledged record, which is not proved yet.
    unproved: Vec<Run>,
    /// Records up to here are proved by a durable tail header.
    proved_seq: u64,
    /// Releases that the client has not received yet.
    pub(crate) releasing: u32,
    /// Flushes under way, in the order in which they began.
    flushing: BTreeSet<u64>,
    next_flush: u64,
    /// The newest flush that made everything before it durable.
    flushed_upto: u64,
    /// The newest flush that had begun when something was last written in place.
    in_place_after: Option<u64>,
    /// Threads that wait for the end of a batch, by its sequence number ([`batch_place`]).
    pub(crate) batch_waiters: [u32; BATCH_PLACES],
    /// Estimated number of threads that commit side by side.
    pub(crate) crowd: u32,
    /// Sequence of the newest batch that was begun, and the blocks that its record, or its images, take.
    in_flight: u64,
    laid_blocks: u64,
    /// Without a log: batches that are not durable, in their order. The next one is laid beside them.
    sent: VecDeque<SentBatch>,
    /// The newest batch for which no thread waits: the acknowledger does.
    unattended_seq: u64,
    /// Threads that cannot go on before the checkpoint under way ends.
    pub(crate) hurry: u32,
    /// Threads that wait for a change of the core, and those of them that wait for an
    /// operation to end.
    pub(crate) waiters: u32,
    pub(crate) room_waiters: u32,
    /// Operations that are held back because a transaction with delayed work closes.
    pub(crate) held_back: u32,
    pub(crate) closing: bool,
    pub(crate) committing: bool,
    /// Begin of the last batch, if batches keep a gap.
    pub(crate) batch_began: Option<Duration>,
    pub(crate) checkpointing: bool,
    pub(crate) stopped: bool,
    closed_for_good: bool,
    /// Failed or closed for good, for threads that do not lock the core.
    pub(crate) refuses: Arc<AtomicBool>,
    failed: Option<Error>,
    reserved_blocks: u64,
    uncommitted_blocks: u64,
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) newer_header: usize,
    head_pos: u64,
    next_seq: u64,
    acked_seq: u64,
    acked_pos: u64,
    durable_tail_pos: u64,
    pub(crate) stats: Stats,
}

impl Core {
    /// A core with an empty log at `pos`, the next record being `seq`.
    pub(crate) fn new(
        probe: Probe,
        limits: Limits,
        epoch: u64,
        generation: u64,
        newer_header: usize,
        pos: u64,
        seq: u64,
    ) -> Core {
        let streams = Streams::new(limits.commit_interval);
        Core {
            probe,
            limits,
            next_txn: 1,
            txns: BTreeMap::new(),
            merged_into: HashMap::new(),
            running: BTreeMap::new(),
            last_closed: BTreeMap::new(),
            marks: HashMap::default(),
            closed: VecDeque::new(),
            objects: Objects::default(),
            streams,
            dirty: BlockMap::default(),
            around: BTreeMap::new(),
            logged: BTreeMap::new(),
            freed: Vec::new(),
            unproved: Vec::new(),
            proved_seq: 0,
            releasing: 0,
            flushing: BTreeSet::new(),
            next_flush: 0,
            flushed_upto: 0,
            in_place_after: None,
            batch_waiters: [0; BATCH_PLACES],
            crowd: 0,
            in_flight: 0,
            laid_blocks: 0,
            sent: VecDeque::new(),
            unattended_seq: 0,
            hurry: 0,
            waiters: 0,
            room_waiters: 0,
            held_back: 0,
            closing: false,
            committing: false,
            batch_began: None,
            checkpointing: false,
            stopped: false,
            closed_for_good: false,
            refuses: Arc::default(),
            failed: None,
            reserved_blocks: 0,
            uncommitted_blocks: 0,
            epoch,
            generation,
            newer_header,
            head_pos: pos,
            next_seq: seq,
            acked_seq: seq - 1,
            acked_pos: pos,
            durable_tail_pos: pos,
            stats: Stats::default(),
        }
    }

    // ---- failure ---------------------------------------------------------------------

    /// Keeps the first failure; it is reported from now on.
    pub(crate) fn fail(&mut self, error: &Error) -> Error {
        self.refuses.store(true, Release);
        self.failed.get_or_insert_with(|| error.sticky()).clone()
    }

    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Refuses everything from now on.
    pub(crate) fn close_for_good(&mut self) {
        self.refuses.store(true, Release);
        self.closed_for_good = true;
    }

    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.closed_for_good => Err(Error::Closed),
            None => Ok(()),
        }
    }

    // ---- flushes -----------------------------------------------------------------------

    pub(crate) fn flush_begins(&mut self) -> u64 {
        self.next_flush += 1;
        self.flushing.insert(self.next_flush);
        self.next_flush
    }

    /// Without a log: an epoch is closed; returns its number. Epochs are durable in order, so none waits for others.
    pub(crate) fn epoch_closes(&mut self) -> u64 {
        self.next_flush += 1;
        self.next_flush
    }

    /// Ends a flush; returns the newest one that it may have overlapped.
    pub(crate) fn flush_ends(&mut self, id: u64) -> u64 {
        self.flushing.remove(&id);
        self.next_flush
    }

    /// The flush succeeded, and so did those that it overlapped.
    pub(crate) fn flushed(&mut self, id: u64) {
        self.flushed_upto = self.flushed_upto.max(id);
    }

    /// Everything written before this flush began is durable.
    pub(crate) fn flushed_upto(&self) -> u64 {
        self.flushed_upto
    }

    /// Notes runs that were written in place, outside of transactions.
    pub(crate) fn written_in_place(&mut self, runs: &[Run]) {
        self.in_place_after = Some(self.next_flush);
        self.stats.in_place_blocks += runs.iter().map(|run| run.1).sum::<u64>();
    }

    /// Whether no flush that began since has made it durable.
    pub(crate) fn wants_place_flush(&self) -> bool {
        self.in_place_after
            .is_some_and(|after| self.flushed_upto <= after)
    }

    /// The newest flush that has begun.
    pub(crate) fn newest_flush(&self) -> u64 {
        self.next_flush
    }

    /// Threads that commit: those that wait for a batch, and the one that leads.
    pub(crate) fn committers(&self) -> u32 {
        self.batch_waiters.iter().sum::<u32>() + 1
    }

    /// Whether a flush that began as `newest` or earlier has not reported yet.
    pub(crate) fn flushing_since(&self, newest: u64) -> bool {
        self.flushing.first().is_some_and(|id| *id <= newest)
    }

    /// The transaction of an operation, if it is not durable yet.
    pub(crate) fn transaction_of(&self, ticket: Ticket) -> Option<TxnId> {
        let Some((lane, number)) = ticket.operation else {
            let last = || self.last_closed.get(&ticket.stream);
            return self.running.get(&ticket.stream).or_else(last).copied();
        };
        let marks = self.marks.get(&ticket.stream)?;
        let mut marks = marks
            .iter()
            .filter(|mark| mark.lane == lane && (mark.first..=mark.last).contains(&number));
        marks.next().map(|mark| self.resolve(mark.id))
    }

    pub(crate) fn resolve(&self, id: TxnId) -> TxnId {
        self.merged_into.get(&id).copied().unwrap_or(id)
    }

    fn is_running(&self, id: TxnId) -> bool {
        self.txns
            .get(&id)
            .is_some_and(|t| t.phase == Phase::Running)
    }

    pub(crate) fn acked_pos(&self) -> u64 {
        self.acked_pos
    }

    pub(crate) fn acked_seq(&self) -> u64 {
        self.acked_seq
    }

    pub(crate) fn positions(&self) -> (u64, u64) {
        (self.durable_tail_pos, self.head_pos)
    }

    pub(crate) fn uncommitted_transactions(&self) -> usize {
        self.txns.len()
    }
}
