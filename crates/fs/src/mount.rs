//! Mounting: from a device to a [`Mounted`] and back; syncing all of it; the journal's client.
//!
//! A mount reads the superblock, lets the journal recover and finishes the work that the orphan directory
//! lists: its time depends on these and not on the size of the volume. From then on all state lives in the
//! journal's current image, in the allocator, in the free slots and in the inode
//! table; unmounting commits and checkpoints everything.

use crate::contract::Contract;
use crate::error::{Error, from_journal};
use crate::features::{self, Features};
use crate::inode::Table;
use crate::mounted::Mounted;
use crate::notes::Notes;
use crate::options::MountOptions;
use crate::orphan;
use crate::slots::Slots;
use crate::superblock;
use crate::work::Store;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{Client, Journal, Op, Recovery, Ticket};
use steadfast_vfs::{Result, Shutdown};

/// Most overwrites that wait to be written in place, in blocks (32 MiB): they are never removed again.
const IN_PLACE_BLOCKS_MAX: u64 = 8192;

impl Mounted {
    /// Mounts the volume on `device`: recovers it, frees its orphans.
    ///
    /// # Errors
    /// See [`Error`]; nothing was written when there is no volume that can be used.
    pub(crate) fn mount(
        device: Arc<dyn BlockDevice>,
        options: &MountOptions,
    ) -> std::result::Result<(Arc<Mounted>, Recovery), Error> {
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
            config.batch_gap = options.commit_gap;
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
        // A write in place could overtake a read.
        let keeps_data = options.keep_data && volume.contract != Contract::MetadataPrefix;
        let (small, overwrite) = (options.small_bytes, options.overwrite_bytes);
        let mut store = Store::new(journal, volume, small, overwrite);
        store.one_stream = options.faults.one_stream;
        store.gaps.ignored = options.faults.gaps_early;
        let fs = Arc::new(Mounted {
            features: Features::of(&store.volume),
            store,
            slots: Slots::new(seed, options.faults.slots_early),
            table: Table::new(),
            notes: Notes::default(),
            options: options.clone(),
            read_only,
            keeps_data,
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
        let client: Weak<dyn Client> = Arc::<Mounted>::downgrade(&fs);
        fs.store.journal.set_client(client);
        if !read_only {
            orphan::prepare(&fs)
                .and_then(|()| orphan::recover(&fs))
                .map_err(Error::call("finishing interrupted deletions"))?;
            fs.reap();
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
            self.reap();
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
        self.reap();
        Ok(())
    }

    /// Goes down now; durable changes in the log go home first if `how` says so.
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
}

impl Client for Mounted {
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
fn closing_failed(fs: &Mounted, error: &steadfast_vfs::Error) -> steadfast_journal::Error {
    let what = format!("placing delayed data failed: {error}");
    fs.warn(what.clone());
    steadfast_journal::Error::Corrupt { what }
}
