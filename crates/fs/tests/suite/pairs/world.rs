//! The volume that every pair begins with, and the visible changes of an operation.
//!
//! It has files in one directory and in several, two names of one file, inode blocks with room, full ones and
//! one whose inodes can all go, a directory without entries, one with several leaves of which one is full and
//! one has a single entry, and files without names that are open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use steadfast_fs::{Faults, Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_model::{Handles, Op, Path, Step, Tree};
use steadfast_sim::{Image, SimDevice};
use steadfast_testkit::Ticks;
use steadfast_vfs::{Attr, Caller, DirEntry, FileKind, FileSystem, Ino, Time};

/// Inode slots of a block.
const SLOTS: u64 = 15;

/// Written home before anything begins.
const SET_UP: &str = "
    mkdir /d 755
    mkdir /e 755
    mkdir /empty 755
    mkdir /p 755
    mkdir /q 755
    mkdir /p/s 755
    mkdir /q/t 755
    mknod /a file 644 0
    write /a 0 #1*20000
    mknod /b file 644 0
    write /b 0 #2*9000
    link /a /d/a2
    mknod /d/x file 644 0
    write /d/x 0 #3*100
    mknod /d/y file 644 0
    mknod /d/o file 644 0
    write /d/o 0 #4*5000
    mknod /e/z file 644 0
    write /e/z 0 #5*100
    mknod /e/o file 644 0
    symlink /e/l target
    setxattr /b user.k v any
";

/// Done again in each mount: files without names stay open.
const PRELUDE: &str = "
    open /d/o @1
    open /e/o @2
    mknod /gone1 file 644 0
    open /gone1 @3
    unlink /gone1
    mknod /gone2 file 644 0
    write @3 0 #6*5000
    open /gone2 @4
    unlink /gone2
    sync
";

pub(crate) fn op(line: &str) -> Op {
    line.parse().unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn lines(text: &str) -> impl Iterator<Item = Op> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(op)
}

/// The part that all pairs have in common.
pub(crate) struct Template {
    image: Image,
    tree: Tree,
    /// Names in `/wide` that are absent: one whose entry fits, and two whose entries split a full leaf.
    pub(crate) fits: String,
    pub(crate) splits: String,
    pub(crate) also_splits: String,
    /// A name in `/big` whose leaf has no other, and one whose leaf has.
    pub(crate) only: String,
    pub(crate) beside: String,
}

/// One mount.
pub(crate) struct World {
    pub(crate) fs: Arc<Fs>,
    /// The model's tree of the volume.
    pub(crate) tree: Tree,
    pub(crate) handles: Handles,
}

/// Changes by a stream's operations.
#[derive(Default, Debug)]
pub(crate) struct Changed {
    /// Files, symbolic links and the like, by number and generation.
    pub(crate) files: BTreeSet<(Ino, u64)>,
    /// Directories.
    pub(crate) dirs: BTreeSet<(Ino, u64)>,
    /// Directories among them whose blocks are not the same.
    pub(crate) rebuilt: BTreeSet<(Ino, u64)>,
}

fn long(n: usize) -> String {
    format!("{n:0100}")
}

fn mount(image: Image, faults: Faults) -> (Arc<Fs>, Arc<SimDevice>) {
    let device = Arc::new(SimDevice::from_image(image));
    let mut options = MountOptions::default();
    options.background = false;
    options.clock = Arc::new(Ticks::default());
    options.seed = Some(1);
    options.faults = faults;
    let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options).unwrap();
    (fs, device)
}

impl Template {
    pub(crate) fn new() -> Template {
        let device = Arc::new(SimDevice::new(8 * 256));
        let options = MkfsOptions {
            uuid: Some([7; 16]),
            seed: Some(1),
            log_blocks: Some(256),
            now: Some(Time::default()),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let mut template = Template {
            image: device.image(),
            tree: Tree::new(Time::default()),
            fits: String::new(),
            splits: String::new(),
            also_splits: String::new(),
            only: String::new(),
            beside: long(99),
        };
        template.build(|world| {
            lines(SET_UP).for_each(|op| world.must(&op));
            world.must(&op("mkdir /fill 755"));
            let mut fill = (0..).map(|n| {
                world.must(&op(&format!("mknod /fill/{n} file 644 0")));
                world.at(&format!("/fill/{n}")).unwrap()
            });
            fill.find(|ino| ino % 16 == SLOTS - 1);
            world.must(&op("mknod /lone1 file 644 0"));
            world.must(&op("mknod /lone2 file 644 0"));
            // The rest of their block goes again.
            let mut rest = (0..).map(|n| {
                world.must(&op(&format!("mknod /rest{n} file 644 0")));
                (n, world.at(&format!("/rest{n}")).unwrap())
            });
            let (last, _) = rest.find(|(_, ino)| ino % 16 == SLOTS - 1).unwrap();
            world.must(&op("mkdir /big 755"));
            for n in 0..100 {
                world.must(&op(&format!("mknod /big/{} fifo 644 0", long(n))));
            }
            for n in 0..=last {
                world.must(&op(&format!("unlink /rest{n}")));
            }
            let block = |path| world.at(path).unwrap() / 16;
            assert_eq!(block("/lone1"), block("/lone2"));
        });
        // Removes entries until the leaf of the next one has no other.
        let mut trial = template.world(Faults::default());
        let shrinks = (0..100).find(|n| {
            let before = trial.attr("/big").blocks;
            trial.must(&op(&format!("unlink /big/{}", long(*n))));
            trial.attr("/big").blocks < before
        });
        let shrinks = shrinks.expect("a leaf goes with its last entry");
        template.build(|world| {
            for n in 0..shrinks {
                world.must(&op(&format!("unlink /big/{}", long(n))));
            }
        });
        template.only = long(shrinks);
        // Adds entries until one splits a leaf.
        let wide = |n: usize| op(&format!("mknod /wide/{} fifo 644 0", long(n)));
        template.build(|world| {
            world.must(&op("mkdir /wide 755"));
            (0..100).for_each(|n| world.must(&wide(n)));
        });
        let mut trial = template.world(Faults::default());
        let splits = (100..).find(|n| {
            let before = trial.attr("/wide").blocks;
            trial.must(&wide(*n));
            trial.attr("/wide").blocks > before
        });
        let splits = splits.expect("a leaf is full some time");
        template.build(|world| (100..splits).for_each(|n| world.must(&wide(n))));
        template.splits = long(splits);
        for name in (splits + 1..).map(long) {
            let mut trial = template.world(Faults::default());
            let before = trial.attr("/wide").blocks;
            trial.must(&op(&format!("mknod /wide/{name} fifo 644 0")));
            let of = match trial.attr("/wide").blocks == before {
                true => &mut template.fits,
                false => &mut template.also_splits,
            };
            if of.is_empty() {
                *of = name;
            }
            if !template.fits.is_empty() && !template.also_splits.is_empty() {
                break;
            }
        }
        template
    }

    /// Goes on with the volume, and unmounts it.
    fn build(&mut self, run: impl FnOnce(&mut World)) {
        let (fs, device) = mount(self.image.clone(), Faults::default());
        let tree = self.tree.clone();
        let mut world = World {
            fs,
            tree,
            handles: Handles::new(),
        };
        run(&mut world);
        world.fs.unmount().unwrap();
        self.tree = world.tree;
        self.image = device.image();
    }

    /// A mount in which nothing is uncommitted.
    pub(crate) fn world(&self, faults: Faults) -> World {
        let (fs, _) = mount(self.image.clone(), faults);
        let mut world = World {
            fs,
            tree: self.tree.clone(),
            handles: Handles::new(),
        };
        lines(PRELUDE).for_each(|op| world.must(&op));
        world
    }
}

impl World {
    /// An operation of no particular stream, which must succeed.
    fn must(&mut self, op: &Op) {
        let step = Step::new(0, op.clone());
        let found = op.run(&*self.fs, &step.caller, &mut self.handles);
        assert_eq!(found, self.tree.step(&step), "{op}");
        found.unwrap();
    }

    pub(crate) fn at(&self, path: &str) -> Option<Ino> {
        let me = Caller::root();
        let mut names = Path::new(path).0.into_iter();
        names.try_fold(self.fs.root(), |dir, name| {
            Some(self.fs.lookup(&me, dir, &name).ok()?.ino)
        })
    }

    pub(crate) fn is_dir(&self, path: &Path) -> bool {
        let ino = self.at(&path.to_string());
        let attr = ino.and_then(|ino| self.fs.getattr(&Caller::root(), ino).ok());
        attr.is_some_and(|attr| attr.kind == FileKind::Directory)
    }

    fn attr(&self, path: &str) -> Attr {
        let ino = self.at(path).unwrap();
        self.fs.getattr(&Caller::root(), ino).unwrap()
    }

    /// Everything that has a name or is open.
    pub(crate) fn look(&self) -> BTreeMap<(Ino, u64), Attr> {
        let me = Caller::root();
        let mut found = BTreeMap::new();
        let mut todo = vec![self.fs.root()];
        todo.extend(self.handles.values());
        while let Some(ino) = todo.pop() {
            let attr = self.fs.getattr(&me, ino).unwrap();
            let new = found.insert((ino, attr.generation), attr).is_none();
            if new && attr.kind == FileKind::Directory {
                let all = &mut |entry: DirEntry<'_>| {
                    if entry.name != b"." && entry.name != b".." {
                        todo.push(entry.ino);
                    }
                    true
                };
                self.fs.readdir(&me, ino, 0, all).unwrap();
            }
        }
        found
    }

    /// Merges so far.
    pub(crate) fn merges(&self) -> u64 {
        self.fs.journal_stats().merges
    }
}

/// Differences between two looks. Times of access do not count.
pub(crate) fn changed(
    before: &BTreeMap<(Ino, u64), Attr>,
    after: &BTreeMap<(Ino, u64), Attr>,
) -> Changed {
    let mut changed = Changed::default();
    let both: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    for key in both {
        let (old, new) = (before.get(&key), after.get(&key));
        let what = |attr: &Attr| (attr.ctime, attr.nlink, attr.size);
        if old.map(what) == new.map(what) {
            continue;
        }
        let is_dir = old
            .or(new)
            .is_some_and(|attr| attr.kind == FileKind::Directory);
        if !is_dir {
            changed.files.insert(key);
            continue;
        }
        changed.dirs.insert(key);
        if old
            .zip(new)
            .is_some_and(|(old, new)| old.blocks != new.blocks)
        {
            changed.rebuilt.insert(key);
        }
    }
    changed
}
