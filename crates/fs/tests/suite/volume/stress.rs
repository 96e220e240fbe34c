//! Many threads on one volume, all kinds of operations at once. Each thread owns a directory, in
//! which every call must give the model's answer, and works in a common directory as well, where
//! only conditions that hold for any order are checked. At the end the whole tree is the models',
//! before and after an unmount, a check and a remount. With power cuts: the state of each
//! thread's directory after a cut is one that the contract allows for that thread.
//!
//! `STEADFAST_LONG=1` runs many seeds; `STEADFAST_SEED=n` begins with another one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::common::flash_disk;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use steadfast_block::{BlockDevice, BlockNo, DeviceError, Geometry, MemDevice};
use steadfast_fs::{
    Contract, EPOCH_BLOCKS_MIN, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs,
};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{
    Below, Cut, Handles, History, Observe, Op, OpResult, PrefixHistory, Rules, Snapshot, Step,
    Tree, ordered,
};
use steadfast_sim::{CrashImage, Limits, SimDevice};
use steadfast_vfs::{
    Caller, Clock, Errno, FileKind, FileSystem, Ino, NewNode, RenameMode, Stream, Time,
};

thread_local! {
    static NOW: Cell<Time> = const { Cell::new(Time { secs: 500, nanos: 0 }) };
}

/// Each thread has a time of its own, that of its present step.
struct OwnTime;

impl Clock for OwnTime {
    fn now(&self) -> Time {
        NOW.get()
    }
}

/// The time of the models' roots.
const START: Time = Time {
    secs: 500,
    nanos: 0,
};

fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

fn first_seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

fn mount(device: Arc<dyn BlockDevice>, tight: bool) -> Arc<Fs> {
    mount_with(device, tight, false)
}

fn mount_with(device: Arc<dyn BlockDevice>, tight: bool, planted: bool) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.clock = Arc::new(OwnTime);
    options.seed = Some(1);
    options.commit_interval = Duration::from_millis(4);
    options.faults.journal.acknowledge_early = planted;
    if tight {
        options.cache_bytes = 0;
        options.uncommitted_bytes = 0;
    }
    Fs::mount(device, &options).unwrap().0
}

fn format(device: &dyn BlockDevice, contract: Contract, log_blocks: Option<u64>) {
    let options = MkfsOptions {
        contract,
        log_blocks,
        without_log: log_blocks.is_none(),
        now: Some(START),
        ..MkfsOptions::default()
    };
    mkfs(device, &options, &mut |_, _| {}).unwrap();
}

#[track_caller]
fn must_be_clean(device: Arc<dyn BlockDevice>, when: &str) {
    let report = fsck(device, &FsckOptions::default()).unwrap();
    let outcome = report.outcome();
    assert_eq!(outcome, Outcome::Clean, "{when}: {:#?}", report.findings);
}

fn dir(fs: &Fs, name: &str) -> Ino {
    let root = &Caller::root();
    match fs.lookup(root, fs.root(), name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => {
            fs.mkdir(root, fs.root(), name.as_bytes(), 0o755)
                .unwrap()
                .ino
        }
    }
}

/// In the common directory a path must name the same inode between its lookup and the call: inode
/// numbers are used again, as front ends know that keep inodes open while they name them. So removals
/// are alone.
fn run_shared(
    step: &Step,
    below: &Below<'_>,
    handles: &mut Handles,
    turn: &RwLock<()>,
) -> OpResult {
    let removes = matches!(
        step.op,
        Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } | Op::Close { .. }
    );
    let _alone = removes.then(|| turn.write().unwrap());
    let _shared = (!removes).then(|| turn.read().unwrap());
    step.op.run(below, &step.caller, handles)
}

/// The shared directory, with conditions that hold for all actions of the threads.
struct Shared {
    dir: Ino,
    /// A file that all threads append to; `appended` says which bytes lie where.
    log: Ino,
    appended: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Whether a thread holds the directory `lock`.
    locked: AtomicBool,
    /// `x` and `y` change places all the time; each is always there.
    pair: [Ino; 2],
    /// See [`run_shared`].
    turn: RwLock<()>,
}

impl Shared {
    fn new(fs: &Fs) -> Shared {
        let (root, dir) = (&Caller::root(), dir(fs, "shared"));
        let file = |name: &[u8]| {
            let node = NewNode {
                kind: FileKind::Regular,
                perm: 0o644,
                rdev: 0,
            };
            fs.mknod(root, dir, name, &node).unwrap().ino
        };
        Shared {
            dir,
            log: file(b"log"),
            appended: Mutex::default(),
            locked: AtomicBool::new(false),
            pair: [file(b"x"), file(b"y")],
            turn: RwLock::default(),
        }
    }

    /// One thing that all do at once.
    fn work(&self, fs: &Fs, caller: &Caller, mut step: Step, handles: &mut Handles, number: u64) {
        match number % 5 {
            0 => {
                let text = format!("{}:{number};", caller.stream.0).into_bytes();
                let (at, _) = fs.append(caller, self.log, &text).unwrap();
                let before = self.appended.lock().unwrap().insert(at, text);
                assert_eq!(before, None, "two appends went to {at}");
            }
            1 => match fs.mkdir(caller, self.dir, b"lock", 0o755) {
                Ok(_) => {
                    assert!(!self.locked.swap(true, Ordering::SeqCst), "locked twice");
                    assert!(self.locked.swap(false, Ordering::SeqCst));
                    fs.rmdir(caller, self.dir, b"lock").unwrap();
                }
                Err(error) => assert!(error == Errno::Exist, "{error}"),
            },
            2 => {
                let (x, y) = ((self.dir, &b"x"[..]), (self.dir, &b"y"[..]));
                fs.rename(caller, x, y, RenameMode::Exchange).unwrap();
            }
            3 => {
                for name in [b"x", b"y"] {
                    let found = fs.lookup(caller, self.dir, name).unwrap().ino;
                    assert!(self.pair.contains(&found));
                }
            }
            _ => {
                // Anything else, in a corner of its own.
                let corner = dir(fs, "all");
                step.caller = caller.clone();
                let result = run_shared(&step, &Below::new(fs, corner), handles, &self.turn);
                let broken = [Errno::Io, Errno::RoFs, Errno::NoSpc];
                assert!(
                    !matches!(result, Err(error) if broken.contains(&error)),
                    "{}: {result:?}",
                    step.op
                );
            }
        }
    }

    /// After everything: nothing appended is lost or torn.
    fn check(&self, fs: &Fs) {
        let root = &Caller::root();
        let appended = self.appended.lock().unwrap();
        let mut end = 0;
        for (at, text) in appended.iter() {
            assert_eq!(*at, end, "appends leave no gap");
            end += text.len() as u64;
            let mut found = vec![0; text.len()];
            fs.read(root, self.log, *at, &mut found).unwrap();
            assert_eq!(&found, text);
        }
        assert_eq!(fs.getattr(root, self.log).unwrap().size, end);
        let mut found = [b"x", b"y"].map(|name| fs.lookup(root, self.dir, name).unwrap().ino);
        found.sort_unstable();
        let mut pair = self.pair;
        pair.sort_unstable();
        assert_eq!(found, pair);
    }
}

fn shape() -> Shape {
    Shape {
        names: 4,
        depth: 3,
        sync_every: 40,
        handles: true,
        users: true,
        odd_names: true,
        ..Shape::default()
    }
}

/// One run: threads, steps of each.
fn run(seed: u64, contract: Contract, threads: u32, steps: usize, on: On) {
    let tight = seed % 3 == 1;
    let device: Arc<dyn BlockDevice> = match on {
        On::Block => Arc::new(MemDevice::new(64 * 256)),
        On::Flash => flash_disk(64 * 256, EPOCH_BLOCKS_MIN),
    };
    let log_blocks = match on {
        On::Flash => None,
        On::Block if seed.is_multiple_of(2) => Some(64),
        On::Block => Some(1024),
    };
    format(&*device, contract, log_blocks);
    let fs = mount(device.clone(), tight);
    let shared = Shared::new(&fs);
    dir(&fs, "all");
    let own: Vec<Ino> = (0..threads).map(|n| dir(&fs, &format!("own{n}"))).collect();
    let trees: Vec<Tree> = std::thread::scope(|scope| {
        let (fs, shared) = (&fs, &shared);
        let work = own.iter().enumerate().map(|(n, own)| {
            scope.spawn(move || {
                let below = Below::new(&**fs, *own);
                let stream = Stream(n as u32);
                let (mut handles, mut others) = (Handles::new(), Handles::new());
                let mut tree = Tree::new(START);
                let mine = Workload::new(1000 * seed + n as u64, shape()).take(steps);
                let mut theirs = Workload::new(1000 * seed + 500 + n as u64, shape());
                for (number, mut step) in mine.enumerate() {
                    step.caller.stream = stream;
                    NOW.set(step.at);
                    let found = step.op.run(&below, &step.caller, &mut handles);
                    let expected = tree.step(&step);
                    assert!(
                        found == expected,
                        "seed {seed}, thread {n}, step {number}: {} by {:?}: {found:?}, the model says {expected:?}",
                        step.op,
                        step.caller
                    );
                    if number % 200 == 199 {
                        compare(&tree, &below, &format!("seed {seed}, thread {n}, step {number}"));
                    }
                    let caller = Caller { stream, ..Caller::root() };
                    let step = theirs.next().unwrap();
                    shared.work(fs, &caller, step, &mut others, number as u64 * 7 + n as u64);
                }
                for (_, ino) in others {
                    fs.release(ino);
                }
                for handle in handles.keys().copied().collect::<Vec<_>>() {
                    let close = Step::new(0, Op::Close { handle });
                    let found = close.op.run(&below, &close.caller, &mut handles);
                    assert_eq!(found, tree.step(&close));
                }
                compare(&tree, &below, &format!("seed {seed}, thread {n}"));
                tree
            })
        });
        let work: Vec<_> = work.collect();
        work.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(fs.take_warnings(), Vec::<String>::new());
    shared.check(&fs);
    let before = Snapshot::of_fs(&*fs).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    must_be_clean(device.clone(), "after the load");
    let fs = mount(device.clone(), tight);
    shared.check(&fs);
    let after = Snapshot::of_fs(&*fs).unwrap();
    assert!(before == after, "{}", before.diff(&after, Observe::ALL));
    for (n, tree) in trees.iter().enumerate() {
        compare(
            tree,
            &Below::new(&*fs, own[n]),
            &format!("seed {seed}, thread {n}, remounted"),
        );
    }
    // Everything can be removed, and gives back its space.
    empty(&fs, fs.root());
    fs.unmount().unwrap();
    must_be_clean(device, "emptied");
}

fn compare(tree: &Tree, below: &Below<'_>, when: &str) {
    let found = Snapshot::of_fs(below).unwrap_or_else(|error| panic!("{when}: {error}"));
    let expected = Snapshot::of_tree(tree);
    let diff = expected.diff(&found, Observe::ALL);
    assert!(found == expected, "{when}: {diff}");
}

fn empty(fs: &Fs, dir: Ino) {
    let root = &Caller::root();
    let mut names = Vec::new();
    fs.readdir(root, dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    })
    .unwrap();
    for (name, ino, kind) in names {
        if kind == FileKind::Directory {
            empty(fs, ino);
            fs.rmdir(root, dir, &name).unwrap();
        } else {
            fs.unlink(root, dir, &name).unwrap();
        }
    }
}

#[test]
fn threads_do_what_their_models_do_and_agree_on_what_they_share() {
    let (seeds, threads, steps) = if long() { (24, 6, 6000) } else { (6, 4, 1000) };
    for seed in first_seed()..first_seed() + seeds {
        run(
            seed,
            Contract::ALL[seed as usize % 3],
            threads,
            steps,
            On::Block,
        );
    }
}

/// The same without a log, on flash. The epoch is as small as it may be.
#[test]
fn corner_47_threads_do_what_their_models_do_without_a_log() {
    let (seeds, threads, steps) = if long() { (12, 6, 6000) } else { (3, 4, 600) };
    for seed in first_seed()..first_seed() + seeds {
        run(
            seed,
            Contract::ALL[seed as usize % 3],
            threads,
            steps,
            On::Flash,
        );
    }
}

/// A history under one of the contracts.
enum Promise {
    Ordered(Box<History>),
    Prefix(PrefixHistory),
}

impl Promise {
    fn new(contract: Contract) -> Promise {
        let tree = Tree::new(START);
        if contract == Contract::MetadataPrefix {
            return Promise::Prefix(PrefixHistory::new(tree));
        }
        let rules = Rules {
            split: ordered::atomic,
            failures_bind: false,
            sync: contract == Contract::Sync,
            ..Rules::default()
        };
        Promise::Ordered(Box::new(History::with_rules(tree, rules)))
    }

    fn record(&mut self, step: &Step, result: OpResult) {
        let recorded = match self {
            Promise::Ordered(history) => history.record(step, result),
            Promise::Prefix(history) => history.record(step, result),
        };
        recorded.unwrap_or_else(|error| panic!("{error}"));
    }

    fn check(&self, found: &Snapshot, cut: Cut) -> Result<(), String> {
        match self {
            Promise::Ordered(history) => match history.check(found, cut) {
                Ok(_) => Ok(()),
                Err(violation) => Err(format!("{violation}\n{history}")),
            },
            Promise::Prefix(history) => match history.check(found, cut) {
                Ok(_) => Ok(()),
                Err(violation) => Err(format!("{violation}\n{history}")),
            },
        }
    }
}

/// A note in the trace: thread, and one more for each call and each answer.
fn mark(thread: usize, count: usize) -> u64 {
    (thread as u64) << 32 | count as u64
}

/// The moment of a cut for one thread.
fn moment(marks: &[u64], thread: usize) -> Cut {
    let mine = marks.iter().filter(|mark| (*mark >> 32) as usize == thread);
    match mine.map(|mark| (*mark as u32) as usize).max() {
        None => Cut::after(0),
        Some(count) if count % 2 == 1 => Cut::during(count / 2),
        Some(count) => Cut::after(count / 2),
    }
}

/// Medium of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    Block,
    /// Without a log, on a device that returns to its last flush.
    Flash,
}

impl On {
    fn device(self, sim: &Arc<SimDevice>) -> Arc<dyn BlockDevice> {
        match self {
            On::Block => sim.clone(),
            On::Flash => Arc::new(Epochs {
                sim: sim.clone(),
                written: Mutex::new(0),
            }),
        }
    }
}

/// A simulated device whose epochs are bounded. That a cut leaves its last flush is the explorer's work.
struct Epochs {
    sim: Arc<SimDevice>,
    written: Mutex<u64>,
}

impl BlockDevice for Epochs {
    fn geometry(&self) -> Geometry {
        self.sim.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.sim.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<(), DeviceError> {
        let mut written = self.written.lock().unwrap();
        *written += segments.iter().map(|s| s.len() as u64).sum::<u64>() / 4096;
        assert!(*written <= EPOCH_BLOCKS_MIN, "the epoch is full");
        self.sim.write(at, segments)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut written = self.written.lock().unwrap();
        *written = 0;
        self.sim.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<(), DeviceError> {
        let mut written = self.written.lock().unwrap();
        *written += 1;
        assert!(*written <= EPOCH_BLOCKS_MIN, "the epoch is full");
        self.sim.discard(at, count)
    }

    fn snapshot(&self) -> Option<&dyn steadfast_block::Snapshot> {
        Some(self)
    }
}

impl steadfast_block::Snapshot for Epochs {
    fn epoch_blocks(&self) -> u64 {
        EPOCH_BLOCKS_MIN
    }

    fn room(&self) -> u64 {
        EPOCH_BLOCKS_MIN - *self.written.lock().unwrap()
    }

    fn close_epoch(&self) -> Result<steadfast_block::Ticket, DeviceError> {
        self.flush().map(|()| steadfast_block::Ticket::default())
    }

    fn wait(&self, _: steadfast_block::Ticket) -> Result<(), DeviceError> {
        Ok(())
    }

    fn rollback(&self) -> Result<(), DeviceError> {
        // Each mount here finds the device as a crash or an unmount left it.
        assert_eq!(*self.written.lock().unwrap(), 0);
        Ok(())
    }
}

/// One load that is cut: its seed, and a bug that is planted or not.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    contract: Contract,
    threads: usize,
    steps: usize,
    cuts: usize,
    planted: bool,
    on: On,
}

/// Runs a load and cuts it; returns the number of images checked, or the fault of one of them.
fn cut(load: Load) -> Result<usize, String> {
    let Load {
        seed,
        contract,
        threads,
        steps,
        cuts,
        planted,
        on,
    } = load;
    let blank = Arc::new(SimDevice::new(8 * 256));
    let log_blocks = match on {
        On::Flash => None,
        On::Block if seed.is_multiple_of(2) => Some(64),
        On::Block => Some(256),
    };
    format(&*on.device(&blank), contract, log_blocks);
    let prepared = Arc::new(SimDevice::from_image(blank.image()));
    let fs = mount(on.device(&prepared), false);
    let own: Vec<Ino> = (0..threads).map(|n| dir(&fs, &format!("own{n}"))).collect();
    let all = dir(&fs, "all");
    fs.unmount().unwrap();
    drop(fs);
    let device = Arc::new(SimDevice::from_image(prepared.image()));
    let fs = mount_with(on.device(&device), seed % 3 == 1, planted);
    let started = device.trace_len();
    let turn = RwLock::new(());
    let promises: Vec<Promise> = std::thread::scope(|scope| {
        let (fs, device, turn) = (&fs, &device, &turn);
        let work = own.iter().enumerate().map(|(n, own)| {
            scope.spawn(move || {
                let below = Below::new(&**fs, *own);
                let mut promise = Promise::new(contract);
                let (mut handles, mut others) = (Handles::new(), Handles::new());
                let shape = Shape {
                    sync_every: 9,
                    depth: 2,
                    bytes_max: 20_000,
                    ..Shape::default()
                };
                let mine = Workload::new(2000 * seed + n as u64, shape).take(steps);
                let mut theirs = Workload::new(2000 * seed + 700 + n as u64, shape);
                for (i, mut step) in mine.enumerate() {
                    step.caller.stream = Stream(n as u32);
                    NOW.set(step.at);
                    device.mark(mark(n, 2 * i + 1));
                    let result = step.op.run(&below, &step.caller, &mut handles);
                    device.mark(mark(n, 2 * i + 2));
                    promise.record(&step, result);
                    let mut step = theirs.next().unwrap();
                    if i % 3 == 0 {
                        step.caller.stream = Stream(n as u32);
                        let _ = run_shared(&step, &Below::new(&**fs, all), &mut others, turn);
                    }
                }
                for ino in handles.into_values().chain(others.into_values()) {
                    fs.release(ino);
                }
                promise
            })
        });
        let work: Vec<_> = work.collect();
        work.into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    fs.unmount().unwrap();
    drop(fs);
    let mut explorer = device.explorer();
    let end = explorer.len();
    let limits = Limits {
        exhaustive_writes: 2,
        sampled: 3,
        tears: true,
        seed,
    };
    let mut images = 0;
    for n in 0..cuts {
        let position = started + (end - started) * (n + 1) / cuts;
        let cut = explorer.cut(position);
        // Handles were closed and the volume unmounted at the end: only the tree counts.
        let moments: Vec<Cut> = (0..threads).map(|n| moment(cut.marks(), n)).collect();
        let mut found: Vec<CrashImage> = vec![cut.durable().clone().into()];
        if on == On::Block {
            found.push(cut.everything());
            found.extend(cut.images(&limits));
        }
        for image in found {
            images += 1;
            let name = format!("seed {seed}, '{contract}', cut at event {position}: {image}");
            let left = Arc::new(SimDevice::from_image(image));
            if !planted {
                must_be_clean(on.device(&left), &name);
            }
            let fs = mount(on.device(&left), false);
            for (n, promise) in promises.iter().enumerate() {
                let below = Below::new(&*fs, own[n]);
                let found = Snapshot::of_fs(&below).unwrap_or_else(|e| panic!("{name}: {e}"));
                promise
                    .check(&found, moments[n])
                    .map_err(|what| format!("{name}, thread {n}: {what}"))?;
            }
            fs.unmount().unwrap();
            must_be_clean(on.device(&left), &name);
        }
    }
    Ok(images)
}

fn load(seed: u64, steps: usize, cuts: usize) -> Load {
    Load {
        seed,
        contract: Contract::ALL[seed as usize % 3],
        threads: 3,
        steps,
        cuts,
        planted: false,
        on: On::Block,
    }
}

#[test]
fn a_power_cut_under_load_leaves_each_thread_what_its_contract_allows() {
    let (seeds, steps, cuts) = if long() { (100, 60, 60) } else { (9, 50, 24) };
    let mut images = 0;
    for seed in first_seed()..first_seed() + seeds {
        images += cut(load(seed, steps, cuts)).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{images} images of {seeds} loads");
    assert!(images > 100, "{images}");
}

/// Without a log, a cut leaves the state of the device's last flush, whichever thread flushed.
#[test]
fn without_a_log_each_flush_under_load_is_what_each_threads_contract_allows() {
    let (seeds, steps, cuts) = if long() { (100, 60, 200) } else { (9, 50, 60) };
    let mut images = 0;
    for seed in first_seed()..first_seed() + seeds {
        let load = Load {
            on: On::Flash,
            ..load(seed, steps, cuts)
        };
        images += cut(load).unwrap_or_else(|what| panic!("{what}"));
    }
    assert!(images > 100, "{images}");
}

#[test]
fn an_early_acknowledgement_under_load_is_found() {
    let found = (0..30).any(|seed| {
        let planted = Load {
            planted: true,
            ..load(3 * seed, 60, 60)
        };
        let found = cut(planted).err();
        found.is_some_and(|what| what.contains("durable operations are lost"))
    });
    assert!(found, "30 loads do not show it");
    steadfast_testkit::caught("journal.acknowledge_early");
}
