//! Mounting: from a device to a [`Fs`] and back.
//!
//! A mount reads the superblock, lets the journal recover and finishes what the orphan directory
//! lists: its time depends on these and not on the size of the volume. From then on all state lives in the
//! journal's current image, in the allocator, in the free slots and in the inode
//! table; unmounting commits and checkpoints everything.
//!
//! [`Fs`] here is the volume's state, shared by its users and by the journal, which
//! calls it to place delayed data. What users hold is [`crate::handle::Fs`].

use crate::contract::Contract;
use crate::error::{Error, from_journal};
use crate::features::{self, Features};
use crate::inode::{self, Inode, Table};
use crate::layout::{DiskInode, DiskTime};
use crate::ops::Notes;
use crate::orphan;
use crate::out_of_place::OVERWRITE_BYTES_DEFAULT;
use crate::pages::SMALL_BYTES_DEFAULT;
use crate::reader::Current;
use crate::slots::{self, Slots};
use crate::superblock;
use crate::work::Store;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{Client, Journal, Op, Recovery, Ticket, dirty_blocks_default};
use steadfast_vfs::{Clock, Errno, Ino, Result, Shutdown, Stream, SystemClock};

/// Most overwrites that wait to be written in place, in blocks (32 MiB): they are never removed again.
const IN_PLACE_BLOCKS_MAX: u64 = 8192;

/// How to mount.
#[derive(Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Nothing is written, not even a recovery: the log is applied in memory.
    pub read_only: bool,
    /// Everything is committed at least this often.
    pub commit_interval: Duration,
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
    /// Whole aligned parts of a file of so many bytes that are overwritten, or larger ones, get new blocks instead of going
    /// through the log. 0: all overwrites go through the log.
    pub overwrite_bytes: u64,
    /// Without a log: the device is told of freed space when so many bytes have gathered.
    pub trim_bytes: u64,
    /// Commit and checkpoint in threads of their own. Without it the callers do everything,
    /// in an order that depends on nothing but the calls.
    pub background: bool,
    /// Where times come from.
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
    /// Overwrites of a file go in place also behind the end that is durable.
    pub in_place_past_end: bool,
    /// Patches of data hold the bytes written, not their whole sectors.
    pub narrow_patches: bool,
    /// `fdatasync` never commits metadata.
    pub fdatasync_without_metadata: bool,
    /// What a client left that died is not forgotten.
    pub forget_rollback: bool,
    /// All free space is trimmed as the bitmaps in memory have it, whatever of that is committed.
    pub trim_current: bool,
    /// Free space is trimmed while others may take it.
    pub trim_unheld: bool,
    /// Inode slots that an operation freed are open to all streams at once.
    pub slots_early: bool,
    /// Room that an operation left in a directory is open to all streams at once.
    pub gaps_early: bool,
    /// What goes with the last close goes in the volume's own stream.
    pub release_elsewhere: bool,
    /// All callers are in one stream.
    pub one_stream: bool,
    /// A sync of one stream commits them all.
    pub commit_all: bool,
    /// Those of the journal.
    pub journal: steadfast_journal::Faults,
}
}

/// A mounted volume's state.
pub(crate) struct Fs {
    /// Journal, geometry, free space.
    pub(crate) store: Store,
    /// Free inode slots.
    pub(crate) slots: Slots,
    /// Inode objects.
    pub(crate) table: Table,
    /// Noted reads.
    pub(crate) notes: Notes,
    /// What the superblock says is in use.
    pub(crate) features: Features,
    /// Where times come from.
    pub(crate) clock: Arc<dyn Clock>,
    /// Planted bugs.
    pub(crate) faults: Faults,
    /// Nothing may be changed.
    pub(crate) read_only: bool,
    /// Data that is read stays in memory.
    pub(crate) keeps_data: bool,
    /// The front end waits for commits.
    pub(crate) defers_commits: bool,
    /// Most overwrites that wait to be written in place, in blocks.
    pub(crate) in_place_blocks_max: u64,
    /// Held by renames that move a directory to another parent: the shape of the tree
    /// above any directory stands still.
    moves: Mutex<()>,
    /// Held by a trim: one at a time.
    pub(crate) trims: Mutex<()>,
    unmounted: AtomicBool,
    /// No call is answered any more.
    closed: AtomicBool,
    warnings: Mutex<Vec<String>>,
}

impl Fs {
    /// Mounts the volume on `device`: recovers it, frees its orphans.
    ///
    /// # Errors
    /// See [`Error`]; nothing was written when there is no volume that can be used.
    pub(crate) fn mount(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
    ) -> std::result::Result<(Arc<Fs>, Recovery), Error> {
        if !options.faults.forget_rollback {
            superblock::begin(&*device)?;
        }
        let found = superblock::load(&*device)?;
        let geometry = device.geometry();
        let read_only = options.read_only || found.read_only || geometry.read_only;
        let uncommitted_blocks = options.uncommitted_bytes.div_ceil(BLOCK_SIZE as u64);
        let config = found.volume.journal().with(|config| {
            config.read_only = read_only;
            config.commit_interval = options.commit_interval;
            config.dirty_blocks = uncommitted_blocks.max(16);
            config.cache_blocks_max = (options.cache_bytes / BLOCK_SIZE as u64).max(64) as usize;
            config.trim_blocks = (options.trim_bytes / BLOCK_SIZE as u64).max(1);
            config.faults = options.faults.journal;
            config.one_stream = found.volume.contract != Contract::Ordered;
        });
        let (journal, mut recovery) = Journal::open(Arc::clone(&device), config)
            .map_err(Error::journal("opening the journal"))?;
        let found = superblock::reload(&journal, geometry.blocks, found)?;
        let volume = found.volume;
        recovery.clean &= !superblock::is_mounted(&journal, &volume)?;
        if !read_only && found.warning.is_none() {
            features::update_copy(&*device, &journal, &volume)?;
        }
        let mut seed = [0; 16];
        match options.seed {
            Some(number) => seed[..8].copy_from_slice(&number.to_le_bytes()),
            None => getrandom::fill(&mut seed).map_err(|e| Error::Random(e.to_string()))?,
        }
        // What is written in place could overtake what is read.
        let keeps_data = options.keep_data && volume.contract != Contract::MetadataPrefix;
        let (small, overwrite) = (options.small_bytes, options.overwrite_bytes);
        let mut store = Store::new(journal, volume, small, overwrite);
        store.one_stream = options.faults.one_stream;
        store.gaps.ignored = options.faults.gaps_early;
        let fs = Arc::new(Fs {
            features: Features::of(&store.volume),
            store,
            slots: Slots::new(seed),
            table: Table::new(),
            notes: Notes::default(),
            clock: Arc::clone(&options.clock),
            faults: options.faults,
            read_only,
            keeps_data,
            defers_commits: options.defer_commits,
            in_place_blocks_max: uncommitted_blocks.min(IN_PLACE_BLOCKS_MAX),
            moves: Mutex::new(()),
            trims: Mutex::new(()),
            unmounted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            warnings: Mutex::new(found.warning.into_iter().collect()),
        });
        fs.directory(fs.store.volume.root)
            .map_err(Error::call("reading the root directory"))?;
        fs.orphan_directory()
            .map_err(Error::call("reading the orphan directory"))?;
        let client: Weak<dyn Client> = Arc::<Fs>::downgrade(&fs);
        fs.store.journal.set_client(client);
        if !read_only {
            orphan::prepare(&fs)
                .and_then(|()| orphan::recover(&fs))
                .map_err(Error::call("finishing interrupted deletions"))?;
            slots::reap(&fs);
            if fs.store.volume.region().is_none() {
                let journal = &fs.store.journal;
                superblock::set_mounted(journal, true)
                    .and_then(|()| journal.sync_all())
                    .map_err(Error::journal("marking the volume as mounted"))?;
            }
            if options.background {
                fs.store.journal.start_workers();
            }
        }
        Ok((fs, recovery))
    }

    /// Commits and checkpoints everything and leaves a clean volume. Every later call fails.
    ///
    /// # Errors
    /// Something could not be written; the volume recovers at its next mount.
    pub(crate) fn unmount(&self) -> std::result::Result<(), Error> {
        self.closed.store(true, Ordering::Release);
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // A failure stops the journal, which says so.
        let _ = self.write_out_all();
        if !self.read_only {
            let _ = self.write_last_notes();
            if self.slots.some_are_emptied_by_several() {
                let _ = self.store.journal.sync_all();
                self.slots.settle(&self.store);
            }
            slots::reap(self);
        }
        if !self.read_only && self.store.volume.region().is_none() {
            // With everything that is committed last; if that fails, it still says that it is mounted.
            let _ = superblock::set_mounted(&self.store.journal, false);
        }
        self.store
            .journal
            .close()
            .map_err(Error::journal("unmounting"))
    }

    /// Makes everything durable. Inode blocks that streams have emptied together are freed then.
    ///
    /// # Errors
    /// The volume's failure.
    pub(crate) fn sync(&self) -> Result<()> {
        self.write_out_all()?;
        self.write_notes(false)?;
        let journal = &self.store.journal;
        journal.sync_all().map_err(from_journal)?;
        journal.flush_in_place().map_err(from_journal)?;
        self.slots.settle(&self.store);
        slots::reap(self);
        Ok(())
    }

    /// Goes down now; what is durable in the log goes to its place first if `how` says so.
    /// Unmounting then has nothing to do.
    pub(crate) fn shut_down(&self, how: Shutdown) -> Result<()> {
        let journal = &self.store.journal;
        if how == Shutdown::Everything && !self.read_only {
            journal.checkpoint().map_err(from_journal)?;
        }
        if !self.unmounted.swap(true, Ordering::AcqRel) {
            journal.abandon();
        }
        Ok(())
    }

    /// Counters by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let journal = &self.store.journal;
        let stats = journal.stats();
        let (tail, head, uncommitted) = journal.usage();
        let mut counters = vec![
            ("operations", stats.operations),
            ("changed_bytes", stats.changed_bytes),
            ("transactions", stats.transactions),
            ("merges", stats.merges),
            ("commits", stats.commits),
            ("batched_transactions", stats.batched_transactions),
            ("largest_batch_now", stats.largest_batch),
            ("record_bytes", stats.record_bytes),
            ("log_blocks", stats.log_blocks),
            ("data_blocks", stats.around_blocks),
            ("in_place_blocks", stats.in_place_blocks),
            ("flushes", stats.flushes),
            ("checkpoints", stats.checkpoints),
            ("home_blocks", stats.home_blocks),
            ("released_blocks", stats.released_blocks),
            ("trims", stats.trims),
            ("trimmed_blocks", stats.trimmed_blocks),
            ("waits", stats.waits),
            ("log_blocks_used_now", head.saturating_sub(tail)),
            ("log_capacity_blocks_now", self.store.volume.log_blocks),
            ("failed_now", u64::from(journal.failed().is_some())),
            (
                "read_only_now",
                u64::from(self.read_only || journal.failed().is_some()),
            ),
            ("uncommitted_transactions_now", uncommitted as u64),
        ];
        counters.extend(self.stream_counters());
        counters
    }

    /// What was found wrong on the way, in words; each is told once.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        if let Some(error) = self.store.alloc.take_unusable() {
            self.warn(format!("some free space cannot be used: {error}"));
        }
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes something that the user should know.
    pub(crate) fn warn(&self, warning: String) {
        const WARNINGS_MAX: usize = 64;
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < WARNINGS_MAX {
            warnings.push(warning);
        }
    }

    /// The time now.
    pub(crate) fn now(&self) -> DiskTime {
        self.clock.now().into()
    }

    /// EIO when it is unmounted.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(steadfast_vfs::Error::new(
                Errno::Io,
                "the volume is unmounted",
            ));
        }
        Ok(())
    }

    /// EROFS if nothing may be changed.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only {
            Err(Errno::RoFs.into())
        } else {
            Ok(())
        }
    }

    /// The current image of an inode. ESTALE. The orphan directory belongs to the file system alone.
    pub(crate) fn read_inode(&self, ino: Ino) -> Result<DiskInode> {
        if ino == self.store.volume.orphans {
            return Err(Errno::Stale.into());
        }
        let mut reader = Current(&self.store.journal);
        inode::read(&self.store.volume, &mut reader, ino)
    }

    /// The current image of the orphan directory.
    pub(crate) fn orphan_directory(&self) -> Result<DiskInode> {
        let volume = &self.store.volume;
        let disk = inode::read(volume, &mut Current(&self.store.journal), volume.orphans)?;
        if disk.is_dir() {
            Ok(disk)
        } else {
            Err(Errno::NotDir.into())
        }
    }

    /// The same, of a directory. ENOTDIR.
    pub(crate) fn directory(&self, ino: Ino) -> Result<DiskInode> {
        let disk = self.read_inode(ino)?;
        if disk.is_dir() {
            Ok(disk)
        } else {
            Err(Errno::NotDir.into())
        }
    }

    /// The object of an inode number.
    pub(crate) fn inode(&self, ino: Ino) -> Arc<Inode> {
        self.table.get(ino)
    }

    /// See [`Fs::moves`].
    pub(crate) fn lock_moves(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change: refused when read-only, tried again when space could be released.
    pub(crate) fn change<T>(&self, run: impl FnMut() -> Result<T>) -> Result<T> {
        self.writable()?;
        let result = self.store.with_space(run);
        slots::reap(self);
        result
    }
}

impl Client for Fs {
    fn close(&self, op: Op<'_>, keys: &[u64]) -> steadfast_journal::Result<Ticket> {
        self.close_delayed(op, keys)
            .map_err(|error| closing_failed(self, &error))
    }

    fn released(&self, runs: &[(BlockNo, u64)]) {
        self.store.alloc.released(runs);
    }

    fn interval_passed(&self) {
        // A failure stops the journal, and reaches the next caller.
        let _ = self.write_out_all();
    }
}

/// Why the journal cannot commit: delayed data found no place. Space and log were kept for
/// it, so that this is damage or a failed read.
fn closing_failed(fs: &Fs, error: &steadfast_vfs::Error) -> steadfast_journal::Error {
    let what = format!("placing delayed data failed: {error}");
    fs.warn(what.clone());
    steadfast_journal::Error::Corrupt { what }
}

/// The stream of work that no caller asked for: releases, orphans.
pub(crate) const OWN_STREAM: Stream = Stream(0);
