//! One sequence: its trees, its trace, and every image of it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use steadfast_model::op::{Data, Handles, Op};
use steadfast_model::{Observe, Snapshot, TestClock, Tree};
use steadfast_pm::{CrashImage, Exploration, Model, Region, Trace};
use steadfast_pmfs::fsck::{FsckOptions, Problem, fsck};
use steadfast_pmfs::layout::{Geometry, PAGE_BYTES, Page, PageKind, PageOffset, desc};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Caller, FileKind, FileSystem, Time};

/// Bytes of the volume: the smallest in which all calls find room.
const BYTES: u64 = 512 << 10;
/// One image in this number also has its recovery cut, and its later use compared.
const DEEP_EACH: u64 = 8;

/// Calls to be cut, and those before them.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub setup: Vec<Op>,
    pub calls: Vec<Op>,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |ops: &[Op]| {
            let ops: Vec<String> = ops.iter().map(ToString::to_string).collect();
            ops.join("\n    ")
        };
        write!(
            f,
            "set-up:\n    {}\n  calls:\n    {}",
            text(&self.setup),
            text(&self.calls)
        )
    }
}

impl Sequence {
    /// The shortest sequence that still fails: leaves out calls, one by one, if it then still fails.
    pub fn shrunk(mut self, fails: impl Fn(&Sequence) -> bool) -> Sequence {
        let mut index = 0;
        while index < self.setup.len() + self.calls.len() {
            let mut less = self.clone();
            match index.checked_sub(less.setup.len()) {
                None => less.setup.remove(index),
                Some(call) => less.calls.remove(call),
            };
            match !less.calls.is_empty() && fails(&less) {
                true => self = less,
                false => index += 1,
            }
        }
        self
    }
}

/// Counts of an exploration.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    pub images: u64,
    pub recoveries_cut: u64,
    pub used_afterwards: u64,
    pub sampled_cuts: u64,
}

impl Sum {
    pub fn add(&mut self, other: &Sum) {
        self.images += other.images;
        self.recoveries_cut += other.recoveries_cut;
        self.used_afterwards += other.used_afterwards;
        self.sampled_cuts += other.sampled_cuts;
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} images, {} images of recoveries that were cut, {} volumes used afterwards, {} cuts sampled",
            self.images, self.recoveries_cut, self.used_afterwards, self.sampled_cuts
        )
    }
}

/// A sequence that ran: its trace, and the trees that it went through.
pub struct Recorded {
    pub trace: Trace,
    /// The tree before the first call, and after each.
    pub trees: Vec<Tree>,
    snapshots: Vec<Snapshot>,
    /// Times that a file may have.
    times: BTreeSet<Time>,
    pub geometry: Geometry,
}

fn options(clock: &TestClock) -> MountOptions {
    let mut options = MountOptions::default();
    options.scan_threads = 1;
    options.clock = Arc::new(clock.clone());
    options
}

fn at(secs: i64) -> Time {
    Time { secs, nanos: 0 }
}

/// Runs a sequence on a volume and on the model.
pub fn record(sequence: &Sequence) -> Recorded {
    let clock = TestClock::new();
    clock.set(at(100));
    let region = Region::anonymous(BYTES);
    let made = MkfsOptions {
        bytes_per_inode: 4096,
        now: Some(at(100)),
        uuid: Some([1; 16]),
        ..MkfsOptions::default()
    };
    let geometry = mkfs(&region, &made, &mut |_, _| {}).unwrap().geometry;
    let fs = PmFs::mount(region, &options(&clock), &mut |_, _| {}).unwrap();
    let mut tree = Tree::new(at(100));
    let mut times = BTreeSet::from([at(100)]);
    let caller = Caller::root();
    let mut now = 100;
    let mut step = |fs: &PmFs, tree: &mut Tree, handles: &mut Handles, op: &Op| {
        now += 1;
        clock.set(at(now));
        times.insert(at(now));
        let expected = tree.apply(op, &caller, at(now));
        let found = op.run(fs, &caller, handles);
        assert_eq!(found, expected, "{op} in\n{sequence}");
    };
    let mut handles = Handles::new();
    for op in &sequence.setup {
        step(&fs, &mut tree, &mut handles, op);
    }
    let region = Region::recorded(fs.into_region().content());
    let fs = PmFs::mount(region, &options(&clock), &mut |_, _| {}).unwrap();
    fs.medium().restart_recorder();
    let mut trees = vec![tree.clone()];
    for (index, op) in sequence.calls.iter().enumerate() {
        fs.medium().recorder().unwrap().mark(2 * index as u64);
        step(&fs, &mut tree, &mut handles, op);
        fs.medium().recorder().unwrap().mark(2 * index as u64 + 1);
        trees.push(tree.clone());
    }
    for tree in &trees {
        times.extend(tree.snapshot().entries.values().map(|entry| entry.mtime));
    }
    Recorded {
        trace: fs.medium().recorder().unwrap().trace(),
        snapshots: trees.iter().map(Tree::snapshot).collect(),
        trees,
        times,
        geometry,
    }
}

/// Makes a file without a name, writes to it, and names it `/named`: until then there is nothing to be seen.
pub fn record_nameless(size: usize) -> Recorded {
    let mut recorded = record(&Sequence {
        setup: vec![],
        calls: vec![],
    });
    let clock = TestClock::new();
    let words = recorded.trace.base().iter();
    let bytes = words.flat_map(|word| word.to_le_bytes()).collect();
    let fs = mounted(Region::recorded(bytes), &clock).unwrap();
    fs.medium().restart_recorder();
    let (caller, root) = (Caller::root(), fs.root());
    let seed = 5;
    let data = Data::Pattern {
        seed,
        len: size as u64,
    };
    let mut named = recorded.trees[0].clone();
    let make = "mknod /named file 600 0".parse().unwrap();
    let write = Op::Write {
        file: "/named".into(),
        offset: 0,
        data: data.clone(),
    };
    let mark = |mark| fs.medium().recorder().unwrap().mark(mark);
    let mut handles = Handles::new();
    for (index, now) in (201..204).enumerate() {
        clock.set(at(now));
        recorded.times.insert(at(now));
        mark(2 * index as u64);
        match index {
            0 => handles.insert(1, fs.tmpfile(&caller, root, 0o600).unwrap().ino),
            1 => fs
                .write(&caller, handles[&1], 0, &data.bytes())
                .map(|_| None)
                .unwrap(),
            _ => fs
                .link(&caller, handles[&1], root, b"named")
                .map(|_| None)
                .unwrap(),
        };
        mark(2 * index as u64 + 1);
        let before = recorded.trees[0].clone();
        recorded.trees.push(before);
    }
    for op in [make, write] {
        assert!(named.apply(&op, &caller, at(203)).is_ok());
    }
    recorded.trees[3] = named;
    recorded.snapshots = recorded.trees.iter().map(Tree::snapshot).collect();
    recorded.trace = fs.medium().recorder().unwrap().trace();
    recorded
}

/// Explores a sequence. The first violation is the error, with all that is needed to see it again.
pub fn explore(
    sequence: &Sequence,
    model: Model,
    images_max: u64,
    seed: u64,
) -> Result<Sum, String> {
    let recorded = record(sequence);
    explore_trace(&recorded, &recorded.trace, model, images_max, seed).map_err(|why| {
        format!(
            "{why}\n  {sequence}\n  (STEADFAST_SEED={seed})\n{:?}",
            recorded.trace
        )
    })
}

/// The same of a trace that may have been changed.
pub fn explore_trace(
    recorded: &Recorded,
    trace: &Trace,
    model: Model,
    images_max: u64,
    seed: u64,
) -> Result<Sum, String> {
    let exploration = Exploration {
        model,
        images_max,
        samples: 64,
        seed,
    };
    let mut sum = Sum::default();
    let first = recovery_reads(trace, &recorded.geometry);
    let explored = trace.explore(&exploration, first, |image| {
        sum.images += 1;
        let deep = sum.images % DEEP_EACH == 0;
        recorded
            .check(image, deep, model, &mut sum)
            .map_err(|why| format!("{image}: {why}"))
    })?;
    sum.sampled_cuts = explored.sampled;
    Ok(sum)
}

/// Whether recovery looks at an address: tables, and pages that are a directory's before or afterwards.
fn recovery_reads(trace: &Trace, geometry: &Geometry) -> impl Fn(u64) -> bool + use<> {
    let mut words = trace.base().to_vec();
    let mut directories = BTreeSet::new();
    let mut look = |words: &[u64]| {
        for page in geometry.data_pages(0) {
            let offset = words[((geometry.desc_at(Page(page)) + desc::OFFSET) / 8) as usize];
            if PageOffset::from_word(offset).is_some_and(|found| found.kind == PageKind::Directory)
            {
                directories.insert(page);
            }
        }
    };
    look(&words);
    for event in trace.events() {
        if let steadfast_pm::Event::Store { at, word } | steadfast_pm::Event::Data { at, word } =
            *event
        {
            words[(at / 8) as usize] = word;
        }
    }
    look(&words);
    let tables = geometry.tables(0).end;
    move |at| at < tables || directories.contains(&(at / PAGE_BYTES))
}

impl Recorded {
    /// Whether a mount of an image leads to an allowed state.
    fn check(
        &self,
        image: &CrashImage<'_>,
        deep: bool,
        model: Model,
        sum: &mut Sum,
    ) -> Result<(), String> {
        // Nothing has been called before the first mark.
        let mark = image.mark().unwrap_or(1) as usize;
        let (call, returned) = match image.mark() {
            None => (0, true),
            Some(_) => (mark / 2 + mark % 2, mark % 2 == 1),
        };
        let allowed: &[usize] = if returned { &[call] } else { &[call, call + 1] };
        let clock = TestClock::new();
        clock.set(at(100));
        let region = match deep {
            true => image.recorded(),
            false => image.region(),
        };
        let fs = mounted(region, &clock)?;
        let which = self.matching(&fs, allowed)?;
        all_is_reachable(&fs)?;
        let trace = fs.medium().recorder().map(steadfast_pm::Recorder::trace);
        let region = settled(fs, &clock)?;
        let Some(trace) = trace else { return Ok(()) };
        self.cut_recovery(&trace, which, model, sum)?;
        self.use_afterwards(region, which, &clock)?;
        sum.used_afterwards += 1;
        Ok(())
    }

    /// The volume that recovery makes of an image in which it finds `problem`, and the effect of `calls` on it: a trace
    /// that begins with the recovery, and the number of events before the first call.
    pub fn continued(
        &self,
        image: &CrashImage<'_>,
        problem: Problem,
        calls: &[Op],
    ) -> Result<Option<(Recorded, usize)>, String> {
        let clock = TestClock::new();
        clock.set(at(100));
        let fs = mounted(image.recorded(), &clock)?;
        if !fs.report().counts.contains_key(&problem) {
            return Ok(None);
        }
        let which = self.matching(&fs, &[0, 1])?;
        let recorder = || fs.medium().recorder().ok_or("the region is recorded");
        let first = recorder()?.trace().events().len();
        let mut tree = self.trees[which].clone();
        let mut trees = vec![tree.clone()];
        let mut times = self.times.clone();
        let mut handles = Handles::new();
        for (index, op) in calls.iter().enumerate() {
            let now = at(1000 + index as i64);
            clock.set(now);
            times.insert(now);
            recorder()?.mark(2 * index as u64);
            let expected = tree.apply(op, &Caller::root(), now);
            let found = op.run(&fs, &Caller::root(), &mut handles);
            if found.is_ok() != expected.is_ok() {
                return Err(format!("{op} answers {found:?} instead of {expected:?}"));
            }
            recorder()?.mark(2 * index as u64 + 1);
            trees.push(tree.clone());
        }
        let run = Recorded {
            trace: recorder()?.trace(),
            snapshots: trees.iter().map(Tree::snapshot).collect(),
            trees,
            times,
            geometry: self.geometry,
        };
        Ok(Some((run, first)))
    }

    /// The tree that a volume has, of those that it may have.
    fn matching(&self, fs: &PmFs, allowed: &[usize]) -> Result<usize, String> {
        let found = Snapshot::of_fs(fs).map_err(|e| format!("the tree cannot be read: {e:?}"))?;
        let digest = found.digest();
        for (path, entry) in &found.entries {
            if !self.times.contains(&entry.mtime) {
                let path = path.escape_ascii();
                return Err(format!(
                    "{path}: no call gave it the time {:?}",
                    entry.mtime
                ));
            }
        }
        let fits = |index: &&usize| {
            let expected = self.snapshots[**index].digest();
            digest.agrees(&expected, Observe::CONTENT)
        };
        if let Some(index) = allowed.iter().find(fits) {
            return Ok(*index);
        }
        let mut why = String::from("the tree is none of those that may be");
        for index in allowed {
            let diff = self.snapshots[*index].diff(&found, Observe::CONTENT);
            why += &format!("\n  after {index} calls it would be different so: {diff}");
        }
        Err(why)
    }

    /// Every image of a recovery that is cut recovers to the same tree.
    fn cut_recovery(
        &self,
        trace: &Trace,
        which: usize,
        model: Model,
        sum: &mut Sum,
    ) -> Result<(), String> {
        let exploration = Exploration {
            model,
            images_max: 32,
            samples: 4,
            seed: 0,
        };
        let clock = TestClock::new();
        let check = |image: &CrashImage<'_>| {
            sum.recoveries_cut += 1;
            let fs = mounted(image.region(), &clock)?;
            self.matching(&fs, &[which])?;
            settled(fs, &clock).map(drop)
        };
        let cut = trace.explore(&exploration, |_| true, check);
        cut.map(drop)
            .map_err(|why: String| format!("recovery cut: {why}"))
    }

    /// The remains of a cut call do not come alive in later calls.
    fn use_afterwards(
        &self,
        region: Region,
        which: usize,
        clock: &TestClock,
    ) -> Result<(), String> {
        let fs = mounted(region, clock)?;
        // The model has room for everything.
        if fs.statfs().map_err(|e| e.to_string())?.blocks_free < 16 {
            return Ok(());
        }
        let mut tree = self.trees[which].clone();
        // Open files do not outlive a crash.
        let mut handles = Handles::new();
        let after = [
            "mknod /after file 600 0",
            "setattr /after size=9000",
            "mkdir /after-dir 700",
            "mknod /after-dir/x file 600 0",
            "setattr /a size=20000",
            "setattr /d/x size=9000",
            "link /a /again",
            "rename /again /c replace",
            "unlink /c",
            "mknod /d/again file 600 0",
            "mknod /b file 600 0",
            "append /b #99*5000",
            "setxattr /b user.z 1 any",
        ];
        for line in after {
            let op: Op = line.parse().map_err(|e| format!("{line}: {e}"))?;
            let expected = tree.apply(&op, &Caller::root(), at(100));
            let found = op.run(&fs, &Caller::root(), &mut handles);
            if found.is_ok() != expected.is_ok() {
                return Err(format!(
                    "afterwards {line} answers {found:?} instead of {expected:?}"
                ));
            }
        }
        let compare = |fs: &PmFs, when: &str| {
            let found = Snapshot::of_fs(fs).map_err(|e| format!("{when}: {e:?}"))?;
            let diff = tree.snapshot().diff(&found, Observe::CONTENT);
            match tree
                .snapshot()
                .digest()
                .agrees(&found.digest(), Observe::CONTENT)
            {
                true => Ok(()),
                false => Err(format!("{when}: {diff}")),
            }
        };
        compare(&fs, "used afterwards")?;
        let fs = mounted(fs.into_region(), clock)?;
        compare(&fs, "used afterwards and mounted again")
    }
}

fn mounted(region: Region, clock: &TestClock) -> Result<PmFs, String> {
    PmFs::mount(region, &options(clock), &mut |_, _| {}).map_err(|e| format!("mount: {e}"))
}

/// Unmounts; a check finds nothing, and the next mount has nothing to do.
fn settled(fs: PmFs, clock: &TestClock) -> Result<Region, String> {
    let region = fs.into_region();
    let (report, region) = fsck(
        region,
        &FsckOptions {
            repair: false,
            threads: 1,
        },
        &mut |_, _| {},
    )
    .map_err(|e| format!("fsck: {e}"))?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("after recovery fsck finds: {finding}"));
    }
    let fs = mounted(region, clock)?;
    match fs.report().recovered_words {
        0 => Ok(fs.into_region()),
        words => Err(format!("recovery leaves {words} words to the next one")),
    }
}

/// The space in use is that of reachable objects: nothing is leaked, nothing is given out twice.
fn all_is_reachable(fs: &PmFs) -> Result<(), String> {
    let stat = fs.statfs().map_err(|e| e.to_string())?;
    let caller = Caller::root();
    let (mut pages, mut inodes) = (0, BTreeSet::new());
    let mut directories = vec![fs.root()];
    while let Some(directory) = directories.pop() {
        let mut found = Vec::new();
        fs.readdir(&caller, directory, 0, &mut |entry| {
            if entry.name != b".." {
                found.push((entry.ino, entry.kind, entry.name == b"."));
            }
            true
        })
        .map_err(|e| e.to_string())?;
        for (ino, kind, is_self) in found {
            if kind == FileKind::Directory && !is_self {
                directories.push(ino);
            } else if inodes.insert(ino) {
                let attr = fs.getattr(&caller, ino).map_err(|e| e.to_string())?;
                pages += attr.blocks * 512 / PAGE_BYTES;
            }
        }
    }
    let used = (
        stat.blocks - stat.blocks_free,
        stat.inodes - stat.inodes_free,
    );
    let reachable = (pages, inodes.len() as u64);
    match used == reachable {
        true => Ok(()),
        false => Err(format!(
            "(pages, inodes) in use: {used:?}, reachable: {reachable:?}"
        )),
    }
}
