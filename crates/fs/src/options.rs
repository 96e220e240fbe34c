//! Options of a mount, and the bugs that tests plant in one.

use crate::out_of_place::OVERWRITE_BYTES_DEFAULT;
use crate::pages::SMALL_BYTES_DEFAULT;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::BLOCK_SIZE;
use steadfast_journal::dirty_blocks_default;
use steadfast_vfs::{Clock, SystemClock};

/// Options of a mount.
#[derive(Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing is written, not even a recovery: the log is applied in memory.
    pub read_only: bool,
    /// Everything is committed at least this often.
    pub commit_interval: Duration,
    /// Least time between two commits for which callers wait: syncs that come in between share the second commit.
    pub commit_gap: Duration,
    /// Memory for clean cached metadata and journalled data.
    pub cache_bytes: u64,
    /// The data that is read stays in that memory, too: for front ends without a cache of their own.
    pub keep_data: bool,
    /// Under `sync`, calls return before they are durable: for front ends that answer after a sync
    /// (`FileSystem::fsync_together`), which many calls then share.
    pub defer_commits: bool,
    /// Budget of data that was written and is not committed yet: an eighth of the memory, and 1 GiB at most, unless
    /// it is set. Writers wait when it is used up.
    pub uncommitted_bytes: u64,
    /// Bytes of a small file that go through the log when it is synced; larger ones are written to their
    /// places at once.
    pub small_bytes: u64,
    /// An overwrite of a whole aligned part of a file, of this many bytes or more, gets new blocks instead of going
    /// through the log. 0: all overwrites go through the log.
    pub overwrite_bytes: u64,
    /// Without a log: freed space is trimmed when it has reached this many bytes.
    pub trim_bytes: u64,
    /// Commit and checkpoint in threads of their own. Without it the callers do everything,
    /// in an order that depends on nothing but the calls.
    pub background: bool,
    /// Source of times.
    pub clock: Arc<dyn Clock>,
    /// Inode generations derive from this number, for tests that must give the same image
    /// each time; they are random if it is absent.
    pub seed: Option<u64>,
    /// Bugs planted on purpose, for tests of the tests.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            commit_gap: Duration::ZERO,
            cache_bytes: 64 << 20,
            keep_data: false,
            defer_commits: false,
            uncommitted_bytes: dirty_blocks_default() * BLOCK_SIZE as u64,
            small_bytes: SMALL_BYTES_DEFAULT,
            overwrite_bytes: OVERWRITE_BYTES_DEFAULT,
            trim_bytes: 1 << 20,
            background: true,
            clock: Arc::new(SystemClock),
            seed: None,
            faults: Faults::default(),
        }
    }
}

steadfast_faults::planted_faults! {
/// Bugs that the crash tests plant to see that they find them.
#[doc(hidden)]
pub struct Faults {
    /// A file's size is committed one transaction before its data.
    pub size_before_data: bool,
    /// The mode that goes with an ACL is committed one transaction before the list.
    pub mode_before_acl: bool,
    /// An inode that loses its last name while open is not listed as an orphan.
    pub forget_orphan: bool,
    /// An overwrite's new extents are committed one transaction before its data.
    pub moved_early: bool,
    /// A write that the log would take is cut in two in order to go out of place.
    pub moved_cut: bool,
    /// Overwrites go in place past the durable end of a file, too.
    pub in_place_past_end: bool,
    /// Patches of data hold the bytes written, not their whole sectors.
    pub narrow_patches: bool,
    /// `fdatasync` never commits metadata.
    pub fdatasync_without_metadata: bool,
    /// Changes of a dead client are not forgotten.
    pub forget_rollback: bool,
    /// All free space is trimmed by the bitmaps in memory, committed or not.
    pub trim_current: bool,
    /// Free space is trimmed while others may take it.
    pub trim_unheld: bool,
    /// Inode slots that an operation freed are open to all streams at once.
    pub slots_early: bool,
    /// Room that an operation left in a directory is open to all streams at once.
    pub gaps_early: bool,
    /// An inode that is freed at its last close is freed in the volume's own stream.
    pub release_elsewhere: bool,
    /// All callers are in one stream.
    pub one_stream: bool,
    /// A sync of one stream commits them all.
    pub commit_all: bool,
    /// Faults of the journal.
    pub journal: steadfast_journal::Faults,
}
}
