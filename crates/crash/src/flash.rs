//! The whole stack on flash: a volume without a log, on the snapshot-consistent layer, in the
//! emulated memory.
//!
//! A scenario is run once to its end, for the model's history; then again and again until its end
//! comes early, at places over all of the run:
//!
//! * the power goes at some operation of the memory: every page that was programmed or erased since its
//!   last sync holds old bytes, new ones, a mixture, or garbage. The disk is mounted again;
//! * the client dies at some block of its writes, or at a flush: the disk lives on, with a part of an
//!   epoch in it, and a new client mounts it.
//!
//! Each time the tree must be one that the contract allows at that moment, and the volume sound.

use crate::Contract;
use crate::check::{self, Counts, Depth, make_orphan};
use crate::explore::Options;
use crate::page_cache::PageCache;
use crate::promise::Promise;
use crate::record::{Mutation, VOLUME_BLOCKS, mount_options};
use crate::scenario::Scenario;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result as DeviceResult,
    Snapshot, Ticket,
};
use steadfast_flash::{Latency, MemoryStore, Nand, Rng};
use steadfast_fs::{Fs, MkfsOptions, TrimRange, mkfs};
use steadfast_ftl::{Disk, WhenFull, geometry_for};
use steadfast_model::{Handles, Op, Snapshot as Shown, Step, TestClock, Tree, ordered};
use steadfast_vfs::{Caller, FileSystem, Time};

/// Blocks of an epoch: the fewest that a volume without a log needs.
const EPOCH_BLOCKS: u64 = steadfast_fs::EPOCH_BLOCKS_MIN;
/// In one run in this number, the client dies instead of the power.
const DEATHS: u64 = 4;
/// Fates of each place at most.
const FATES: u64 = 4;
/// In one run in this number, the next mount is cut, too, and the volume is used.
const DEEP_EVERY: u64 = 8;

type Memory = Nand<MemoryStore>;

/// A client's way to a disk, until the client dies.
struct Client {
    disk: Arc<Disk<MemoryStore>>,
    /// Blocks and flushes that it may still send.
    left: AtomicU64,
    dead: AtomicBool,
}

impl Client {
    fn new(disk: Arc<Disk<MemoryStore>>, left: u64) -> Arc<Client> {
        Arc::new(Client {
            disk,
            left: AtomicU64::new(left),
            dead: AtomicBool::new(false),
        })
    }

    /// Number of blocks and flushes it has sent, of `u64::MAX`.
    fn sent(&self) -> u64 {
        u64::MAX - self.left.load(Ordering::Relaxed)
    }

    /// Takes up to `wanted` of the rest.
    fn take(&self, wanted: u64) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        let granted = left.min(wanted);
        self.left.store(left - granted, Ordering::Relaxed);
        if granted < wanted {
            self.dead.store(true, Ordering::Relaxed);
        }
        granted
    }
}

fn gone(op: DeviceOp, at: BlockNo) -> DeviceError {
    DeviceError::Io {
        op,
        at,
        count: 1,
        source: Arc::new(std::io::Error::other("the client is dead")),
    }
}

impl BlockDevice for Client {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> DeviceResult<()> {
        self.disk.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> DeviceResult<()> {
        let blocks: Vec<&[u8]> = (segments.iter())
            .flat_map(|s| s.chunks(BLOCK_SIZE))
            .collect();
        let granted = self.take(blocks.len() as u64) as usize;
        self.disk.write(at, &blocks[..granted])?;
        if granted < blocks.len() {
            return Err(gone(DeviceOp::Write, at));
        }
        Ok(())
    }

    fn flush(&self) -> DeviceResult<()> {
        match self.take(1) {
            0 => Err(gone(DeviceOp::Flush, BlockNo(0))),
            _ => self.disk.flush(),
        }
    }

    fn discard(&self, at: BlockNo, count: u64) -> DeviceResult<()> {
        match self.take(1) {
            0 => Err(gone(DeviceOp::Discard, at)),
            _ => self.disk.discard(at, count),
        }
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        Some(self)
    }
}

impl Snapshot for Client {
    fn epoch_blocks(&self) -> u64 {
        Snapshot::epoch_blocks(&*self.disk)
    }

    fn room(&self) -> u64 {
        Snapshot::room(&*self.disk)
    }

    fn close_epoch(&self) -> DeviceResult<Ticket> {
        self.flush().map(|()| Ticket::default())
    }

    fn wait(&self, _: Ticket) -> DeviceResult<()> {
        Ok(())
    }

    fn rollback(&self) -> DeviceResult<()> {
        Snapshot::rollback(&*self.disk)
    }
}

/// End of a run.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The power goes after this number of operations of the memory since the mount.
    Power(u64),
    /// The client dies after it has sent this number of blocks and flushes since the mount.
    Death(u64),
}

/// An empty volume in a flash memory.
pub(crate) struct Chip {
    contract: Contract,
    empty: Memory,
    empty_free: u64,
}

/// A run to the end.
struct Whole {
    history: Promise,
    /// Operations of the memory, and blocks and flushes of the client, since the mount.
    operations: u64,
    sent: u64,
}

fn disk_of(memory: Memory) -> Result<Arc<Disk<MemoryStore>>, String> {
    let patience = WhenFull::Wait(std::time::Duration::ZERO);
    let disk = Disk::mount(memory, patience).map_err(|e| format!("mounting the disk: {e}"))?;
    Ok(Arc::new(disk))
}

fn memory_of(disk: Arc<Disk<MemoryStore>>) -> Result<Memory, String> {
    let disk = Arc::into_inner(disk).ok_or("another thread still has the disk")?;
    disk.into_nand()
        .ok_or_else(|| "the disk is gone after a rollback".into())
}

fn with_memory<T>(
    disk: &Disk<MemoryStore>,
    look: impl FnOnce(&mut Memory) -> T,
) -> Result<T, String> {
    disk.look(|layer| look(layer.platform_mut().nand_mut()))
        .ok_or_else(|| "the disk is gone after a rollback".into())
}

fn operations_of(disk: &Disk<MemoryStore>) -> Result<u64, String> {
    with_memory(disk, |memory| {
        let counts = memory.counts();
        counts.programs + counts.erases + counts.reads + counts.syncs
    })
}

impl Chip {
    pub(crate) fn new(contract: Contract) -> Result<Chip, String> {
        let like = steadfast_flash::Geometry {
            channels: 2,
            dies: 1,
            blocks: 1,
            pages: 16,
            sectors: 2,
            sector_bytes: BLOCK_SIZE as u32,
            spare_bytes: 128,
        };
        let made = |e: &dyn std::fmt::Display| format!("making a disk: {e}");
        let geometry = geometry_for(like, VOLUME_BLOCKS, EPOCH_BLOCKS, 10).map_err(|e| made(&e))?;
        let memory = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry))
            .map_err(|e| made(&e))?;
        let options = steadfast_ftl::Options {
            sectors: VOLUME_BLOCKS,
            epoch: EPOCH_BLOCKS,
            region: None,
            volume: 7,
        };
        let disk = Disk::format(memory, options, WhenFull::default()).map_err(|e| made(&e))?;
        let disk = Arc::new(disk);
        let options = MkfsOptions {
            contract,
            uuid: Some([7; 16]),
            without_log: true,
            now: Some(Time::default()),
            ..MkfsOptions::default()
        };
        mkfs(&*disk, &options, &mut |_, _| {}).map_err(|e| format!("mkfs: {e}"))?;
        let empty = with_memory(&disk, |memory| memory.clone())?;
        let clock = Arc::new(TestClock::default());
        let (fs, _) = Fs::mount(disk.clone(), &mount_options(clock, None))
            .map_err(|e| format!("mount: {e}"))?;
        let call = |e: steadfast_vfs::Error| format!("using an empty volume: {e}");
        make_orphan(&fs).map_err(call)?;
        fs.sync().map_err(call)?;
        let empty_free = fs.statfs().map_err(call)?.blocks_free;
        Ok(Chip {
            contract,
            empty,
            empty_free,
        })
    }

    /// Runs the scenario to its end, and then up to `budget` times to an early one.
    pub(crate) fn try_scenario(
        &self,
        scenario: &Scenario,
        options: &Options,
        budget: u64,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let (memory, tree) = self.set_up(scenario)?;
        let whole = self.run_whole(&memory, tree, scenario, options.mutation)?;
        let mut rng = Rng::new(options.seed ^ whole.operations.rotate_left(32) ^ whole.sent);
        // Each place, with a few fates of unsynced pages, if the budget allows.
        let all = FATES * (whole.operations + whole.sent + 2);
        let left = budget.saturating_sub(counts.images).min(all);
        for n in 0..left {
            let end = if n % DEATHS == DEATHS - 1 {
                End::Death(rng.below(whole.sent + 1))
            } else if left == all {
                End::Power(n * (whole.operations + 2) / all)
            } else {
                End::Power(rng.below(whole.operations + 2))
            };
            let seed = rng.number();
            self.run_short(&memory, scenario, options, &whole, (end, seed), counts)
                .map_err(|what| format!("{end:?}, seed {seed}: {what}"))?;
        }
        Ok(())
    }

    fn mount(
        &self,
        device: Arc<dyn BlockDevice>,
        clock: Arc<TestClock>,
        scenario: &Scenario,
        mutation: Option<Mutation>,
    ) -> Result<Arc<Fs>, String> {
        let mut options = mount_options(clock, mutation);
        options.small_bytes = scenario.small_bytes;
        options.overwrite_bytes = scenario.overwrite_bytes;
        // Trims come with each batch that frees, or gather while blocks live again.
        options.trim_bytes = match scenario.steps.len() % 2 {
            0 => BLOCK_SIZE as u64,
            _ => 6 * BLOCK_SIZE as u64,
        };
        let (fs, _) = Fs::mount(device, &options).map_err(|e| format!("mount: {e}"))?;
        Ok(fs)
    }

    /// The memory after the set-up, and the tree.
    fn set_up(&self, scenario: &Scenario) -> Result<(Memory, Tree), String> {
        let mut tree = Tree::new(Time::default());
        if scenario.setup.is_empty() {
            return Ok((self.empty.clone(), tree));
        }
        let disk = disk_of(self.empty.clone())?;
        let fs = self.mount(disk.clone(), Arc::default(), scenario, None)?;
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
        drop(fs);
        Ok((memory_of(disk)?, tree))
    }

    fn run_whole(
        &self,
        memory: &Memory,
        tree: Tree,
        scenario: &Scenario,
        mutation: Option<Mutation>,
    ) -> Result<Whole, String> {
        let disk = disk_of(memory.clone())?;
        let client = Client::new(disk.clone(), u64::MAX);
        let clock = Arc::new(TestClock::default());
        let fs = self.mount(client.clone(), clock.clone(), scenario, mutation)?;
        let (operations, sent) = (operations_of(&disk)?, client.sent());
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
            let result = step.op.run(&kernel, &step.caller, &mut handles);
            history.record(step, result)?;
        }
        if scenario.trims_before(scenario.steps.len()) {
            trim()?;
        }
        for step in closing(&handles) {
            let result = step.op.run(&kernel, &step.caller, &mut handles);
            history.record(&step, result)?;
        }
        let found = Shown::of_fs(&kernel).map_err(|e| e.to_string())?;
        let live = Shown::of_tree(history.current());
        if found.digest().content != live.digest().content {
            let diff = live.diff(&found, Default::default());
            return Err(format!("without any crash the tree is wrong: {diff}"));
        }
        kernel.finish().map_err(|e| format!("write-back: {e}"))?;
        fs.unmount().map_err(|e| format!("unmount: {e}"))?;
        Ok(Whole {
            history,
            operations: operations_of(&disk)? - operations,
            sent: client.sent() - sent,
        })
    }

    /// A run to an early end, and the check of the disk then.
    fn run_short(
        &self,
        memory: &Memory,
        scenario: &Scenario,
        options: &Options,
        whole: &Whole,
        (end, seed): (End, u64),
        counts: &mut Counts,
    ) -> Result<(), String> {
        let disk = disk_of(memory.clone())?;
        let client = Client::new(disk.clone(), u64::MAX);
        let clock = Arc::new(TestClock::default());
        let fs = self.mount(client.clone(), clock.clone(), scenario, options.mutation)?;
        match end {
            End::Power(n) => with_memory(&disk, |memory| memory.cut_after(n))?,
            End::Death(n) => client.left.store(n, Ordering::Relaxed),
        }
        let kernel = PageCache::new(fs.clone(), self.contract, scenario, options.mutation);
        let moment = run_until_end((&fs, &kernel), &disk, &client, &clock, scenario)?;
        drop((kernel, fs, client));
        let deep = counts.images.is_multiple_of(DEEP_EVERY);
        counts.images += 1;
        let depth = Depth {
            cut_recovery: deep,
            trim: false,
            use_volume: deep,
        };
        let disk = match end {
            End::Power(_) => {
                let memory = memory_of(disk)?.cut(seed).map_err(|e| e.to_string())?;
                disk_of(memory)?
            }
            End::Death(_) => {
                // Before anything else looks: the new client itself must forget the old one's part.
                let fs = self.mount(disk.clone(), clock, scenario, options.mutation)?;
                whole.history.check(&check::observe(&fs)?, moment)?;
                drop(fs);
                disk
            }
        };
        let disk = match depth.cut_recovery {
            true => cut_mount(disk, seed, counts)?,
            false => disk,
        };
        let history = &whole.history;
        check::recovered(
            &disk,
            history,
            self.empty_free,
            moment,
            depth,
            counts,
            || {},
        )?;
        Ok(())
    }
}

/// Closes of all open handles.
fn closing(handles: &Handles) -> Vec<Step> {
    let close = |handle: &u32| Step::new(0, Op::Close { handle: *handle });
    handles.keys().map(close).collect()
}

/// Runs the steps until the end has come; returns the moment.
fn run_until_end(
    (fs, kernel): (&Fs, &PageCache),
    disk: &Disk<MemoryStore>,
    client: &Client,
    clock: &TestClock,
    scenario: &Scenario,
) -> Result<ordered::Cut, String> {
    let ended = || {
        let power = with_memory(disk, |memory| memory.has_power())?;
        Ok::<bool, String>(!power || client.dead.load(Ordering::Relaxed))
    };
    let mut handles = Handles::default();
    for (i, step) in scenario.steps.iter().enumerate() {
        clock.set(step.at);
        if scenario.trims_before(i) {
            let _ = fs.trim(&TrimRange::default(), &mut |_, _| {});
            if ended()? {
                return Ok(ordered::Cut::after(i));
            }
        }
        kernel.pass_time();
        if ended()? {
            return Ok(ordered::Cut::after(i));
        }
        // The history has the answer; after a loss of power or the client's death, no caller gets one.
        let _ = step.op.run(kernel, &step.caller, &mut handles);
        if ended()? {
            return Ok(ordered::Cut::during(i));
        }
    }
    let mut done = scenario.steps.len();
    if scenario.trims_before(done) {
        let _ = fs.trim(&TrimRange::default(), &mut |_, _| {});
        if ended()? {
            return Ok(ordered::Cut::after(done));
        }
    }
    for step in closing(&handles) {
        let _ = step.op.run(kernel, &step.caller, &mut handles);
        if ended()? {
            return Ok(ordered::Cut::during(done));
        }
        done += 1;
    }
    let _ = kernel.finish();
    let _ = fs.unmount();
    Ok(ordered::Cut::after(done))
}

/// Mounts the volume and trims its free space, as `steadfast trim` does, cuts the power somewhere in that, and
/// mounts the disk again.
fn cut_mount(
    disk: Arc<Disk<MemoryStore>>,
    seed: u64,
    counts: &mut Counts,
) -> Result<Arc<Disk<MemoryStore>>, String> {
    counts.recoveries += 1;
    let mut rng = Rng::new(!seed);
    // The mount returns the disk to its last flush, which takes the planned cut away: it is the
    // volume's own work that is cut here.
    let options = mount_options(Arc::new(TestClock::default()), None);
    let client = Client::new(disk.clone(), rng.below(40));
    if let Ok((fs, _)) = Fs::mount(client, &options) {
        let _ = fs.trim(&TrimRange::default(), &mut |_, _| {});
    }
    let memory = memory_of(disk)?;
    disk_of(memory.cut(rng.number()).map_err(|e| e.to_string())?)
}
