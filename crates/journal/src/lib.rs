//! A crash-consistent, concurrent redo journal over any block device.
//!
//! An [`Op`] collects byte-range patches of blocks and becomes visible atomically. It joins
//! the *running transaction* of its stream; transactions that touched related objects
//! merge. A transaction closes when a caller syncs it, when it is full, or when the commit
//! interval ends; closed transactions are laid together as one *record*, made durable by
//! one device flush. The checkpointer writes committed images home and moves the tail.
//!
//! After a crash, [`Journal::open`] returns the blocks to the state of a prefix of the
//! operations of every stream that contains everything synced (DFSCQ, GoJournal and ccfs
//! together; the argument is in ARCHITECTURE.md).
//!
//! ```
//! use std::sync::Arc;
//! use steadfast_block::{BlockNo, MemDevice};
//! use steadfast_journal::{Config, Credits, Journal, Kind, Region, StreamId};
//!
//! # fn main() -> steadfast_journal::Result<()> {
//! let region = Region { headers: [BlockNo(0), BlockNo(1)], log: BlockNo(2), log_blocks: 64 };
//! let config = Config::new(region, [7; 16]);
//! let (journal, _) = Journal::open_or_create(Arc::new(MemDevice::new(100)), config)?;
//! let mut op = journal.begin(StreamId(1), Credits { log_bytes: 100, data_blocks: 0 })?;
//! op.write(BlockNo(70), Kind::Data, 0, b"both")?;
//! op.write(BlockNo(80), Kind::Data, 0, b"or none")?;
//! let ticket = op.commit();
//! journal.wait(ticket)?;
//! assert_eq!(&journal.read(BlockNo(80), Kind::Data)?[..7], b"or none");
//! journal.close()
//! # }
//! ```
//!
//! A store with keys is in `examples/store.rs`.
//!
//! | module | job |
//! |---|---|
//! | `layout`, `record` | tail headers and records, byte by byte |
//! | `codec` | their codecs, and the scan's decisions, as `proofs/smt` reads them, too |
//! | `seal` | checksums of metadata blocks |
//! | `memory` | the default budget of uncommitted data |
//! | `patch`, `mask` | an operation's changes of a block |
//! | `cache` | current and committed images |
//! | `lanes` | where operations begin and end without the core's lock |
//! | `core` | every decision; no I/O, no threads |
//! | `streams`, `clock` | counts of streams; the time by which they are due |
//! | `op` | the open operation |
//! | `around` | the data that it writes around the log |
//! | `handle` | the journal's calls |
//! | `engine` | the threads' shared state, and the events that wake them |
//! | `admit` | admission, commit in memory |
//! | `drive` | closing, syncing, flushing |
//! | `commit` | the committer: one record, one flush |
//! | `changes` | the changes that an operation brings to its transaction |
//! | `checkpoint` | home writes, tail headers, trimming |
//! | `home`, `epoch` | without a log: a batch is written home and its epoch is closed |
//! | `discards` | freed blocks that are not trimmed yet |
//! | `workers` | commit interval and checkpoints in the background |
//! | `place` | data written in place, outside of transactions |
//! | `recover`, `replay` | scan, verdict, replay |
//! | `probe`, `trace` | the core's decisions and the device's requests, as the proved checker reads them |
//! | `dump` | shows headers and log, changes nothing |
//! | `lockmap` | locks for callers |

mod admit;
mod around;
mod cache;
mod changes;
mod checkpoint;
mod clock;
mod codec;
mod commit;
mod core;
mod discards;
mod drive;
mod dump;
mod engine;
mod epoch;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod handle;
mod home;
mod in_memory;
mod lanes;
mod layout;
mod lockmap;
mod mask;
mod memory;
mod op;
mod patch;
mod place;
mod policy;
mod probe;
mod record;
mod recover;
mod replay;
mod scrub;
mod seal;
mod streams;
mod sync;
#[cfg(feature = "trace")]
#[doc(hidden)]
pub mod trace;
mod workers;

pub use changes::NoteFn;
pub use clock::Clock;
pub use dump::{
    CoveredItem, CoveredState, EntryItem, HeaderFound, HeaderItem, LogEnd, LogItem, LogSummary,
    RecordItem,
};
pub use error::{Error, Result};
pub use handle::Journal;
pub use in_memory::in_memory;
pub use layout::{Refusal, TailHeader};
pub use lockmap::{Access, LockSet, Lockmap};
pub use memory::dirty_blocks_default;
pub use op::Op;
pub use probe::Probe;
pub use recover::{HeaderState, Recovery, Salvage};
pub use scrub::AtHome;
pub use seal::{META_BYTES, SEAL_BYTES, seal, seal_holds};
pub use streams::{
    COMMIT_INTERVAL_MIN, MERGES_KEPT, Merge, MergeCounts, StreamCounts, StreamTotals, Together,
};

use std::time::Duration;
use steadfast_block::BlockNo;

/// Fewest blocks that a log may have.
pub const LOG_BLOCKS_MIN: u64 = 64;
/// Most blocks that a log may have (1 GiB): a record may fill the log, and its lengths fit their fields.
pub const LOG_BLOCKS_MAX: u64 = record::RECORD_BLOCKS_MAX;
/// Fewest blocks that an epoch of a snapshot-consistent device must have for a journal without a log.
pub const EPOCH_BLOCKS_MIN: u64 = 2048;
/// Freed blocks that gather before they are trimmed: a page of trims costs as much as one of data (1 MiB).
const TRIM_BLOCKS: u64 = 256;
/// Least number of bytes of credits that each changed block is charged. Without a log, this number of bytes
/// pays for one write of the epoch.
pub const BLOCK_CREDIT: u64 = 64;
/// Without a log, one operation may use this part of the epoch, and a running transaction closes at it (its
/// reciprocal): credits are only bounds, so a running transaction counts its blocks.
pub const EPOCH_SHARE: u64 = 2;
/// Part of the log that one operation may use (its reciprocal).
pub const OP_LOG_SHARE: u64 = 8;
/// A running transaction closes at this part of the log (its reciprocal).
pub const TXN_LOG_SHARE: u64 = 4;
/// A batch with more data blocks than this flushes them first instead of covering them by hashes.
pub const COVERED_BLOCKS_MAX: u64 = 256;
/// Most data blocks that one operation may bring (32 MiB).
pub const OP_DATA_BLOCKS_MAX: u64 = 8192;
/// The default budget of uncommitted data is this part of the memory (its reciprocal) …
pub const DIRTY_MEMORY_SHARE: u64 = 8;
/// … but at most this number of blocks (1 GiB).
pub const DIRTY_BLOCKS_DEFAULT_MAX: u64 = 1 << 18;
/// A running transaction closes when its data takes this part of the budget (its reciprocal), so that the device
/// has something to do before a thread waits for it …
pub const TXN_DIRTY_SHARE: u64 = 8;
/// … but not before it has this number of blocks (128 MiB), if that is no more than half of the budget: data that is
/// soon removed or overwritten is never written.
pub const TXN_DIRTY_BLOCKS_MIN: u64 = 1 << 15;
/// The next transaction of a stream whose last one closed for that reason, and is not durable, closes at this number of
/// blocks (8 MiB), if no other waits to be written: then the device writes one while the next grows.
pub const TXN_PIPELINED_BLOCKS: u64 = 2048;

const _: () = {
    assert!(
        OP_LOG_SHARE > TXN_LOG_SHARE,
        "an operation fits an empty transaction"
    );
    assert!(
        LOG_BLOCKS_MIN / OP_LOG_SHARE >= 8,
        "the smallest log takes real operations"
    );
    assert!(
        EPOCH_BLOCKS_MIN / EPOCH_SHARE * BLOCK_CREDIT
            >= LOG_BLOCKS_MIN / OP_LOG_SHARE * steadfast_block::BLOCK_SIZE as u64,
        "the smallest epoch takes what the smallest log takes"
    );
};

/// A stream of operations whose order a crash keeps (ccfs §3.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StreamId(pub u32);

/// Kind of a block's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Metadata: the last [`SEAL_BYTES`] belong to the journal.
    Meta,
    /// File data: all bytes are the caller's.
    Data,
}

/// Object that operations of different streams may have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Object {
    /// A file: data, size, attributes, link count.
    File(u64),
    /// A name in a directory, there or not: (directory, hash of the name).
    Name(u64, u64),
    /// A directory's existence.
    Directory(u64),
    /// A block whose contents are moved or whose life begins or ends.
    Block(u64),
    /// The ancestor relation of directories.
    Topology,
    /// A key of a store: (table, hash of the key), or any object with two numbers.
    Key(u64, u64),
}

/// Upper bounds of an operation's use of resources.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Encoded bytes in the log: for each block changed, or freed while the log has patches of it,
    /// 24 bytes, and 4 for each range of changed bytes besides the bytes; 8 for each call that
    /// sets bits; 48 for each run written around the log. Without a log, [`BLOCK_CREDIT`] for each block
    /// changed, and nothing else. A call that would use more is refused with
    /// [`Error::OverCredits`].
    pub log_bytes: u64,
    /// Data blocks that stay uncommitted in memory.
    pub data_blocks: u64,
}

impl Credits {
    /// Credits of an operation that brings no data: this many bytes in the log.
    #[must_use]
    pub const fn log(log_bytes: u64) -> Credits {
        Credits {
            log_bytes,
            data_blocks: 0,
        }
    }
}

impl std::fmt::Display for Credits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Credits {
            log_bytes,
            data_blocks,
        } = self;
        write!(f, "{log_bytes} bytes of log and {data_blocks} data blocks")
    }
}

/// Place of the journal on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The two tail headers.
    pub headers: [BlockNo; 2],
    /// First block of the log.
    pub log: BlockNo,
    /// Blocks of the log, at least [`LOG_BLOCKS_MIN`].
    pub log_blocks: u64,
}

/// Method of making a batch durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitMode {
    /// As a record in the log; its blocks go home later. Any device will do.
    #[default]
    Log,
    /// Its blocks are written home and flushed. The device must be snapshot-consistent
    /// ([`BlockDevice::snapshot`](steadfast_block::BlockDevice::snapshot)), with
    /// [`EPOCH_BLOCKS_MIN`] blocks of an epoch at least, which take the log's place: credits
    /// are writes of an epoch. There is no log; a crash leaves the last batch. Before the first read the caller calls
    /// [`Snapshot::rollback`](steadfast_block::Snapshot::rollback): half a batch may wait there.
    Home,
}

/// Configuration of a journal: [`Config::new`], and [`Config::with`] for settings that differ from the defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Method of making batches durable.
    pub commit_mode: CommitMode,
    /// Place of the journal; means nothing without a log.
    pub region: Region,
    /// Identity of the volume; keys every hash.
    pub volume: [u8; 16],
    /// Recover in memory and refuse changes.
    pub read_only: bool,
    /// Commits and checkpoints in threads of their own, which [`Journal::open`] starts. Without them callers do everything,
    /// in an order that depends on nothing but the calls, and nothing is committed before a caller asks for it.
    pub workers: bool,
    /// Age of a stream's first uncommitted operation at which the workers commit the stream, if it has no interval of
    /// its own.
    pub commit_interval: Duration,
    /// Least time between the begins of two batches for which callers wait: calls that come in between share the second. 0: a
    /// batch begins as soon as a caller waits for one.
    pub batch_gap: Duration,
    /// Clock of the commit interval and of the gap.
    pub clock: Clock,
    /// All operations are of one stream, also if they name others: they relate to nothing.
    pub one_stream: bool,
    /// Budget of uncommitted data blocks in memory ([`dirty_blocks_default`]). Operations wait when it is used up; the last
    /// eighth is for streams that hold little.
    pub dirty_blocks: u64,
    /// Budget of clean cached blocks.
    pub cache_blocks_max: usize,
    /// Without a log: freed blocks are trimmed when this number has gathered.
    pub trim_blocks: u64,
    /// Planted faults, for the crash harness alone.
    pub faults: Faults,
    /// Receives the core's decisions.
    pub probe: Probe,
}

impl Config {
    /// The defaults: workers, commits within 5 s, uncommitted data in an eighth of the memory, 64 MiB of cache.
    #[must_use]
    pub fn new(region: Region, volume: [u8; 16]) -> Config {
        Config {
            commit_mode: CommitMode::Log,
            region,
            volume,
            read_only: false,
            workers: true,
            commit_interval: Duration::from_secs(5),
            batch_gap: Duration::ZERO,
            clock: Clock::system(),
            one_stream: false,
            dirty_blocks: dirty_blocks_default(),
            cache_blocks_max: 16384,
            trim_blocks: TRIM_BLOCKS,
            faults: Faults::default(),
            probe: Probe::default(),
        }
    }

    /// This configuration with a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }

    /// Without threads of its own, for simulators and for callers of [`Journal::start_workers`] later.
    #[must_use]
    pub fn without_workers(self) -> Config {
        self.with(|config| config.workers = false)
    }

    /// The same without a log; see [`CommitMode::Home`].
    #[must_use]
    pub fn without_log(volume: [u8; 16]) -> Config {
        let nowhere = Region {
            headers: [BlockNo(0); 2],
            log: BlockNo(0),
            log_blocks: 0,
        };
        Config {
            commit_mode: CommitMode::Home,
            ..Config::new(nowhere, volume)
        }
    }
}

steadfast_faults::planted_faults! {
/// Faults that a test can plant, to see that its harness catches them. Never set otherwise.
pub struct Faults {
    /// Commits are acknowledged without the flush.
    pub skip_flush: bool,
    /// Commits are acknowledged before their record is written.
    pub acknowledge_early: bool,
    /// Blocks with patches in the log may be written in place.
    pub in_place_over_logged: bool,
    /// Blocks that an unproved record covers may be written in place.
    pub in_place_unproved: bool,
    /// Zeros for an unwritten extent are not flushed before the record that lets them be read.
    pub zeros_unflushed: bool,
    /// Data goes to its place after the record that says it is there.
    pub data_late: bool,
    /// Records do not cover the data that is written around the log.
    pub data_uncovered: bool,
    /// Freed blocks may be reused at once.
    pub reuse_early: bool,
    /// Recovery believes records without checking the blocks they cover.
    pub skip_covered_check: bool,
    /// A record takes every closed transaction along.
    pub carry_all: bool,
    /// Records carry the current image, other streams' uncommitted bytes included.
    pub lay_current: bool,
    /// Freed blocks are not revoked in the log.
    pub drop_revoke: bool,
    /// Log space is reused before the tail header is durable.
    pub trim_early: bool,
    /// Checkpoints move the tail without flushing the home writes.
    pub skip_home_flush: bool,
    /// Recovery replays before its verdict is durable.
    pub replay_before_verdict: bool,
    /// Checkpoints write patches of covered blocks home before the covering record is proved.
    pub install_unproved: bool,
    /// Recovery goes on after a record that it could not accept.
    pub replay_past_bad: bool,
    /// Operations are absorbed into transactions that are closed and not laid yet.
    pub absorb_frozen: bool,
    /// Newest values are those when the record is laid, of the life that the bytes have by then.
    pub newest_when_laid: bool,
    /// Objects that transactions named before a second stream came are not indexed then.
    pub relations_unindexed: bool,
    /// Two streams that change the same bytes of a block do not relate by it.
    pub bytes_unrelated: bool,
    /// A transaction that another one overtook lays its own newest values over the newer ones.
    pub keep_overtaken: bool,
    /// Transactions freeze while operations are being applied, or wait in their lanes.
    pub freeze_beside_applying: bool,
    /// Without a log, the device is flushed between the halves of a batch.
    pub flush_between: bool,
    /// Without a log, a batch is acknowledged when its epoch is closed.
    pub acknowledge_closed: bool,
    /// Without a log, the images of a batch become the committed ones when it is durable, though the next is laid before.
    pub settle_late: bool,
    /// Without a log, it is not asked whether an epoch has room.
    pub ignore_epoch: bool,
    /// Without a log, freed blocks are trimmed although they were written since.
    pub trim_again: bool,
    /// Without a log, blocks are trimmed in the epoch before the one that frees them.
    pub trim_before: bool,
}
}

/// An operation's ticket: wait for it until the operation is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(crate) stream: StreamId,
    /// Lane of the operation, and its number there; `None`: all of its stream so far.
    pub(crate) operation: Option<(lanes::LaneId, u64)>,
}

/// Counts of a journal since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Operations committed in memory.
    pub operations: u64,
    /// Running transactions merged because their operations related.
    pub merges: u64,
    /// Items that merges moved from one transaction to another: blocks, objects, streams, runs of data.
    pub merged_parts: u64,
    /// Transactions closed.
    pub transactions: u64,
    /// Most keys of delayed work that were closed while new operations were held back once.
    pub largest_hold: u64,
    /// Records made durable.
    pub commits: u64,
    /// Transactions in them.
    pub batched_transactions: u64,
    /// Most transactions in one of them.
    pub largest_batch: u64,
    /// Bytes that operations changed: bytes written, bits rounded up, eight for each addition.
    /// Data written around the log does not count.
    pub changed_bytes: u64,
    /// Bytes of the records, without the filling of their last blocks.
    pub record_bytes: u64,
    /// Device flushes, all causes.
    pub flushes: u64,
    /// Blocks written to the log.
    pub log_blocks: u64,
    /// Data blocks written around the log.
    pub around_blocks: u64,
    /// Data blocks written in place, outside of transactions.
    pub in_place_blocks: u64,
    /// Checkpoint rounds.
    pub checkpoints: u64,
    /// Blocks written home by them.
    pub home_blocks: u64,
    /// Blocks that left the quarantine.
    pub released_blocks: u64,
    /// Runs of freed blocks that were trimmed.
    pub trims: u64,
    /// Blocks in them.
    pub trimmed_blocks: u64,
    /// Times an operation waited for log space or memory.
    pub waits: u64,
}

/// Calls of the journal to the storage program above it.
pub trait Client: Send + Sync {
    /// A running transaction is about to close: no operation is open, new ones are held back. Adds
    /// what was put off for `keys` (see [`Op::attach`]) to `op`, and commits it (the
    /// ticket is the witness). With many keys there are several calls, and operations between them: under the client's own locks, for readers under those
    /// must find the old state or the new.
    /// Memory work and cold metadata reads only; must not begin operations.
    ///
    /// # Errors
    /// Any error stops the journal for good.
    fn close(&self, op: Op<'_>, keys: &[u64]) -> Result<Ticket>;

    /// These runs of freed blocks left the quarantine: they may be allocated again.
    fn released(&self, runs: &[(BlockNo, u64)]);

    /// The commit interval has passed: the client should write in place now the data that it
    /// keeps outside of transactions. Called by the flusher alone.
    fn interval_passed(&self) {}
}
