//! Runs a scenario on a recording device, and notes in its trace where each operation was
//! called and answered.

use crate::check::make_orphan;
use crate::page_cache::PageCache;
use crate::promise::Promise;
use crate::scenario::{SMALL_BYTES_FEW, Scenario};
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::BlockDevice;
use steadfast_fs::{Contract, Faults, Fs, MkfsOptions, MountOptions, TrimRange, mkfs};
use steadfast_model::{Handles, Op, Snapshot, Step, TestClock, Tree, ordered};
use steadfast_sim::{Image, SimDevice};
use steadfast_vfs::{Caller, Clock, FileSystem, Time};

/// Blocks of the volumes that are explored.
pub(crate) const VOLUME_BLOCKS: u64 = 1024;
/// Blocks of their logs: small, so that the log wraps.
const LOG_BLOCKS: u64 = 128;

/// Medium of the volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Medium {
    /// A simulated disk with a volatile cache; the volumes have logs.
    #[default]
    Block,
    /// The translation layer over an emulated flash memory; they have none.
    Flash,
}

/// A bug planted on purpose.
#[cfg(feature = "faults")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Commits are acknowledged without a flush.
    SkipFlush,
    /// Commits are acknowledged before their record is durable.
    AcknowledgeEarly,
    /// Data goes to its place after the record that says it is there.
    DataAfterMetadata,
    /// Records do not cover the data that is written around the log.
    DataUncovered,
    /// A large overwrite's extents are swapped one transaction before its data.
    MovedEarly,
    /// A write that the log takes as a whole is cut in two in order to go out of place.
    MovedCut,
    /// Freed blocks are reused before the freeing is durable.
    ReuseEarly,
    /// A file's size is committed before its data.
    SizeBeforeData,
    /// The mode that goes with an ACL is committed before the list.
    ModeBeforeAcl,
    /// An open file without names is not listed as an orphan.
    ForgetOrphan,
    /// Blocks with patches in the log are overwritten in place.
    InPlaceOverLogged,
    /// Blocks that an unproved record covers are overwritten in place.
    InPlaceUnproved,
    /// Overwrites go in place past the durable end of the file.
    InPlacePastEnd,
    /// Patches over data written in place do not hold their whole sectors.
    NarrowPatches,
    /// `fdatasync` flushes data without committing the metadata that leads to it.
    UnstableFdatasync,
    /// Commits carry the current image, other streams' uncommitted bytes included.
    LayCurrent,
    /// Without a log: the device is flushed in the middle of a batch.
    FlushBetween,
    /// Without a log: a mount does not forget the open epoch's writes of a dead client.
    ForgetRollback,
    /// Without a log: freed blocks are trimmed although they live again.
    TrimAgain,
    /// Without a log: blocks are trimmed in the epoch before the one that frees them.
    TrimBefore,
    /// All free space is trimmed by the bitmaps in memory, committed or not.
    TrimCurrent,
    /// An inode slot is used by another stream before its freeing is durable.
    SlotsEarly,
    /// Room in a directory is used by another stream before its freeing is durable.
    GapsEarly,
    /// The same, and the two streams are not related by it.
    GapsUnrelated,
    /// An inode freed at its last close is freed in another stream than the one that removed it.
    ReleaseElsewhere,
    /// All callers are in one stream.
    OneStream,
    /// A sync of one stream commits them all.
    CommitAll,
    /// The kernel keeps writes to a file that is closed.
    CloseKeeps,
    /// The kernel sends it after the call that follows the close.
    CloseLate,
    /// The kernel keeps writes to a file that is synced.
    FsyncKeeps,
    /// A sync of a file has its content sent, and commits nothing.
    FsyncUncommitted,
    /// The kernel keeps writes when everything is synced.
    SyncKeeps,
    /// The size of a file is sent before the content.
    SizeAhead,
    /// The kernel sends kept writes past the end of a file that was truncated.
    TruncateKeeps,
}

#[cfg(feature = "faults")]
impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 34] = [
        Mutation::SkipFlush,
        Mutation::AcknowledgeEarly,
        Mutation::DataAfterMetadata,
        Mutation::DataUncovered,
        Mutation::MovedEarly,
        Mutation::MovedCut,
        Mutation::ReuseEarly,
        Mutation::SizeBeforeData,
        Mutation::ModeBeforeAcl,
        Mutation::ForgetOrphan,
        Mutation::InPlaceOverLogged,
        Mutation::InPlaceUnproved,
        Mutation::InPlacePastEnd,
        Mutation::NarrowPatches,
        Mutation::UnstableFdatasync,
        Mutation::LayCurrent,
        Mutation::FlushBetween,
        Mutation::ForgetRollback,
        Mutation::TrimAgain,
        Mutation::TrimBefore,
        Mutation::TrimCurrent,
        Mutation::SlotsEarly,
        Mutation::GapsEarly,
        Mutation::GapsUnrelated,
        Mutation::ReleaseElsewhere,
        Mutation::OneStream,
        Mutation::CommitAll,
        Mutation::CloseKeeps,
        Mutation::CloseLate,
        Mutation::FsyncKeeps,
        Mutation::FsyncUncommitted,
        Mutation::SyncKeeps,
        Mutation::SizeAhead,
        Mutation::TruncateKeeps,
    ];

    /// Mutations of a kernel that keeps writes; only `relaxed` lets it.
    const OF_PAGE_CACHE: [Mutation; 7] = [
        Mutation::CloseKeeps,
        Mutation::CloseLate,
        Mutation::FsyncKeeps,
        Mutation::FsyncUncommitted,
        Mutation::SyncKeeps,
        Mutation::SizeAhead,
        Mutation::TruncateKeeps,
    ];

    /// Those that let streams build on each other; only `ordered` distinguishes streams.
    const OF_STREAMS: [Mutation; 6] = [
        Mutation::SlotsEarly,
        Mutation::GapsEarly,
        Mutation::GapsUnrelated,
        Mutation::ReleaseElsewhere,
        Mutation::OneStream,
        Mutation::CommitAll,
    ];

    /// Whether it breaks anything on this medium.
    #[must_use]
    pub fn concerns_medium(self, medium: Medium) -> bool {
        use Mutation::{
            AcknowledgeEarly, DataUncovered, FlushBetween, ForgetRollback, InPlaceOverLogged,
            InPlaceUnproved, MovedCut, MovedEarly, NarrowPatches, TrimAgain, TrimBefore,
        };
        match medium {
            // The exploration on flash does not check the durable state.
            Medium::Flash if Mutation::OF_STREAMS.contains(&self) => false,
            Medium::Block => ![FlushBetween, ForgetRollback, TrimAgain, TrimBefore].contains(&self),
            // No record, no replay.
            Medium::Flash => ![
                AcknowledgeEarly,
                DataUncovered,
                MovedEarly,
                MovedCut,
                InPlaceOverLogged,
                InPlaceUnproved,
                NarrowPatches,
            ]
            .contains(&self),
        }
    }

    /// Whether it breaks anything under this contract.
    #[must_use]
    pub fn concerns(self, contract: Contract) -> bool {
        use Mutation::{
            InPlaceOverLogged, InPlacePastEnd, InPlaceUnproved, NarrowPatches, UnstableFdatasync,
        };
        let in_place = [
            InPlaceOverLogged,
            InPlaceUnproved,
            InPlacePastEnd,
            NarrowPatches,
            UnstableFdatasync,
        ];
        if Mutation::OF_PAGE_CACHE.contains(&self) {
            return contract.allows_write_back();
        }
        match contract {
            Contract::MetadataPrefix => {
                ![Mutation::MovedEarly, Mutation::MovedCut].contains(&self)
                    && !Mutation::OF_STREAMS.contains(&self)
            }
            Contract::Ordered => !in_place.contains(&self),
            _ => !in_place.contains(&self) && !Mutation::OF_STREAMS.contains(&self),
        }
    }

    fn faults(mutation: Option<Mutation>) -> Faults {
        let mut faults = Faults::default();
        match mutation {
            None => {}
            Some(Mutation::SkipFlush) => faults.journal.skip_flush = true,
            Some(Mutation::AcknowledgeEarly) => faults.journal.acknowledge_early = true,
            Some(Mutation::DataAfterMetadata) => faults.journal.data_late = true,
            Some(Mutation::DataUncovered) => faults.journal.data_uncovered = true,
            Some(Mutation::MovedEarly) => faults.moved_early = true,
            Some(Mutation::MovedCut) => faults.moved_cut = true,
            Some(Mutation::ReuseEarly) => faults.journal.reuse_early = true,
            Some(Mutation::SizeBeforeData) => faults.size_before_data = true,
            Some(Mutation::ModeBeforeAcl) => faults.mode_before_acl = true,
            Some(Mutation::ForgetOrphan) => faults.forget_orphan = true,
            Some(Mutation::InPlaceOverLogged) => faults.journal.in_place_over_logged = true,
            Some(Mutation::InPlaceUnproved) => faults.journal.in_place_unproved = true,
            Some(Mutation::InPlacePastEnd) => faults.in_place_past_end = true,
            Some(Mutation::NarrowPatches) => faults.narrow_patches = true,
            Some(Mutation::UnstableFdatasync) => faults.fdatasync_without_metadata = true,
            Some(Mutation::LayCurrent) => faults.journal.lay_current = true,
            Some(Mutation::FlushBetween) => faults.journal.flush_between = true,
            Some(Mutation::ForgetRollback) => faults.forget_rollback = true,
            Some(Mutation::TrimAgain) => faults.journal.trim_again = true,
            Some(Mutation::TrimBefore) => faults.journal.trim_before = true,
            Some(Mutation::TrimCurrent) => faults.trim_current = true,
            Some(Mutation::SlotsEarly) => faults.slots_early = true,
            Some(Mutation::GapsEarly) => faults.gaps_early = true,
            Some(Mutation::GapsUnrelated) => {
                faults.gaps_early = true;
                faults.journal.bytes_unrelated = true;
            }
            Some(Mutation::ReleaseElsewhere) => faults.release_elsewhere = true,
            Some(Mutation::OneStream) => faults.one_stream = true,
            Some(Mutation::CommitAll) => faults.commit_all = true,
            // Planted in the kernel that stands before the volume.
            Some(
                Mutation::CloseKeeps
                | Mutation::CloseLate
                | Mutation::FsyncKeeps
                | Mutation::FsyncUncommitted
                | Mutation::SyncKeeps
                | Mutation::SizeAhead
                | Mutation::TruncateKeeps,
            ) => {}
        }
        faults
    }
}

/// There is none without the feature `faults`.
#[cfg(not(feature = "faults"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {}

#[cfg(not(feature = "faults"))]
impl Mutation {
    fn faults(_: Option<Mutation>) -> Faults {
        Faults::default()
    }
}

/// A run whose trace can be cut.
pub(crate) struct Recording {
    pub(crate) sim: Arc<SimDevice>,
    pub(crate) history: Promise,
    /// Free blocks of the volume when it was empty.
    pub(crate) empty_free: u64,
}

/// Options that make a run repeat exactly: no threads, no clock, no randomness.
pub(crate) fn mount_options(clock: Arc<dyn Clock>, mutation: Option<Mutation>) -> MountOptions {
    let mut options = MountOptions::default();
    options.background = false;
    options.commit_interval = Duration::from_secs(3600);
    options.cache_bytes = 1 << 20;
    options.small_bytes = SMALL_BYTES_FEW;
    options.clock = clock;
    options.seed = Some(1);
    options.faults = Mutation::faults(mutation);
    options
}

/// An empty volume.
pub(crate) struct Template {
    contract: Contract,
    empty: Image,
    empty_free: u64,
}

impl Template {
    pub(crate) fn new(contract: Contract) -> Result<Template, String> {
        let sim = Arc::new(SimDevice::new(VOLUME_BLOCKS));
        let options = MkfsOptions {
            contract,
            uuid: Some([7; 16]),
            log_blocks: Some(LOG_BLOCKS),
            now: Some(Time::default()),
            ..MkfsOptions::default()
        };
        mkfs(&*sim, &options, &mut |_, _| {}).map_err(|e| format!("mkfs: {e}"))?;
        let device: Arc<dyn BlockDevice> = sim.clone();
        let clock = Arc::new(TestClock::default());
        let (fs, _) =
            Fs::mount(device, &mount_options(clock, None)).map_err(|e| format!("mount: {e}"))?;
        let empty = sim.image();
        // Measured after use, as the check does.
        let call = |e: steadfast_vfs::Error| format!("using an empty volume: {e}");
        make_orphan(&fs).map_err(call)?;
        fs.sync().map_err(call)?;
        let empty_free = fs.statfs().map_err(call)?.blocks_free;
        Ok(Template {
            contract,
            empty,
            empty_free,
        })
    }

    /// Runs the scenario. An error says where file system and model differ.
    pub(crate) fn run(
        &self,
        scenario: &Scenario,
        mutation: Option<Mutation>,
    ) -> Result<Recording, String> {
        let clock = Arc::new(TestClock::default());
        let (image, tree) = self.set_up(scenario)?;
        let sim = Arc::new(SimDevice::from_image(image));
        let fs = self.mount(sim.clone(), clock.clone(), scenario, mutation)?;
        let kernel = PageCache::new(fs.clone(), self.contract, scenario, mutation);
        let mut history = Promise::new(self.contract, tree);
        let mut handles = Handles::default();
        let trim = || {
            fs.trim(&TrimRange::default(), &mut |_, _| {})
                .map_err(|e| format!("trim: {e}"))
        };
        for (i, step) in scenario.steps.iter().enumerate() {
            clock.set(step.at);
            if scenario.trims_before(i) {
                trim()?;
            }
            kernel.pass_time();
            sim.mark(called(i));
            let result = step.op.run(&kernel, &step.caller, &mut handles);
            sim.mark(answered(i));
            history.record(step, result)?;
        }
        if scenario.trims_before(scenario.steps.len()) {
            trim()?;
        }
        // Handles that are still open are closed, as a dying process's are; then the clean end
        // is cut as well.
        let close = |handle| Step::new(0, Op::Close { handle });
        for handle in handles.keys().copied().collect::<Vec<_>>() {
            let step = close(handle);
            let i = history.len();
            sim.mark(called(i));
            let result = step.op.run(&kernel, &step.caller, &mut handles);
            sim.mark(answered(i));
            history.record(&step, result)?;
        }
        let found = Snapshot::of_fs(&kernel).map_err(|e| e.to_string())?;
        let live = Snapshot::of_tree(history.current());
        if found.digest().content != live.digest().content {
            let diff = live.diff(&found, Default::default());
            return Err(format!("without any crash the tree is wrong: {diff}"));
        }
        kernel.finish().map_err(|e| format!("write-back: {e}"))?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        Ok(Recording {
            sim,
            history,
            empty_free: self.empty_free,
        })
    }

    /// The volume after the set-up, and its tree.
    pub(crate) fn set_up(&self, scenario: &Scenario) -> Result<(Image, Tree), String> {
        let mut tree = Tree::new(Time::default());
        if scenario.setup.is_empty() {
            return Ok((self.empty.clone(), tree));
        }
        let sim = Arc::new(SimDevice::from_image(self.empty.clone()));
        let fs = self.mount(sim.clone(), Arc::default(), scenario, None)?;
        let mut handles = Handles::default();
        for op in &scenario.setup {
            let found = op.run(&*fs, &Caller::root(), &mut handles);
            let expected = tree.apply(op, &Caller::root(), Time::default());
            if found != expected {
                return Err(format!(
                    "set-up {op}: expected {expected:?}, found {found:?}"
                ));
            }
        }
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        Ok((sim.image(), tree))
    }

    /// The contract of the volumes.
    #[cfg(test)]
    pub(crate) fn contract(&self) -> Contract {
        self.contract
    }

    pub(crate) fn mount(
        &self,
        sim: Arc<SimDevice>,
        clock: Arc<TestClock>,
        scenario: &Scenario,
        mutation: Option<Mutation>,
    ) -> Result<Arc<Fs>, String> {
        let mut options = mount_options(clock, mutation);
        options.small_bytes = scenario.small_bytes;
        options.overwrite_bytes = scenario.overwrite_bytes;
        let (fs, _) = Fs::mount(sim, &options).map_err(|e| format!("mount: {e}"))?;
        Ok(fs)
    }
}

/// The mark that says operation `i` was called.
fn called(i: usize) -> u64 {
    2 * i as u64 + 1
}

/// The mark that says operation `i` was answered.
fn answered(i: usize) -> u64 {
    2 * i as u64 + 2
}

/// The moment of a cut after this mark.
pub(crate) fn moment(mark: Option<u64>) -> ordered::Cut {
    match mark {
        None => ordered::Cut::after(0),
        Some(m) if m % 2 == 1 => ordered::Cut::during((m as usize - 1) / 2),
        Some(m) => ordered::Cut::after(m as usize / 2),
    }
}
