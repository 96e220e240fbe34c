//! Two streams form one order only where they must: every operation of one, uncommitted, and then every
//! operation of another.
//!
//! The model says whether the second builds on the first (`steadfast_model::History::stands_alone`). The journal's
//! count of merges must change exactly if it does, or for one of the reasons in [`Cause`]. Operations that fail,
//! and reads, relate to nothing.
//!
//! `STEADFAST_PAIRS=table cargo test -p steadfast-fs --test suite -- --nocapture pairs::` prints the table that
//! ARCHITECTURE.md shows; `STEADFAST_PAIRS=all` prints every pair that merges, with its cause.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod table;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use steadfast_fs::Faults;
use steadfast_model::{History, Op, Rules, Step, Target, ordered};
use steadfast_vfs::{FileKind, FileSystem, Ino, NewNode, Stream, Time};
use table::Class;
use world::{Changed, Template, World, changed};

/// One or several operations of a stream, as one entry of the table.
struct Script {
    class: Class,
    acts: Vec<Act>,
}

enum Act {
    Op(Op),
    /// A read that is noted.
    Read(String),
}

/// Reason why two streams form one order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Cause {
    /// The second has another result or effect without the first.
    Builds,
    /// Both change one file: its change time is one of the things that a rename and a link change.
    File,
    /// One sets attributes of a directory, the other changes the directory.
    Attributes,
    /// Both move directories to another parent.
    Topology,
    /// One changes the blocks of a directory in which the other changes something.
    Leaf,
}

/// Expected and actual result of a pair.
pub(crate) struct Verdict {
    pub(crate) cause: Option<Cause>,
    pub(crate) merged: bool,
    /// The first script merged streams, although no other stream had a transaction.
    alone: bool,
}

impl Verdict {
    /// Leaves may be different ones.
    fn is_right(&self) -> bool {
        !self.alone && (self.merged == self.cause.is_some() || self.cause == Some(Cause::Leaf))
    }
}

impl std::fmt::Display for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, act) in self.acts.iter().enumerate() {
            let comma = if n > 0 { "; " } else { "" };
            match act {
                Act::Op(op) => write!(f, "{comma}{op}")?,
                Act::Read(path) => write!(f, "{comma}read {path}")?,
            }
        }
        Ok(())
    }
}

impl Script {
    /// Parses lines such as `create mknod /d/n file 644 0; unlink /d/n`.
    fn parse(line: &str) -> Script {
        let (class, acts) = line.trim().split_once(' ').unwrap();
        let act = |text: &str| match text.strip_prefix("read ") {
            Some(path) => Act::Read(path.to_string()),
            None => Act::Op(world::op(text)),
        };
        Script {
            class: Class::parse(class),
            acts: acts.split("; ").map(act).collect(),
        }
    }
}

/// Result of one stream's part of a pair.
struct Done {
    changed: Changed,
    /// Directories whose attributes it set.
    attributes: Vec<Ino>,
    /// A directory got another parent.
    moved: bool,
}

/// Runs a script in a stream. `None`: a part of it failed.
fn run(world: &mut World, history: &mut History, script: &Script, stream: u32) -> Option<Done> {
    let mut before = world.look();
    let mut done = Done {
        changed: Changed::default(),
        attributes: Vec::new(),
        moved: false,
    };
    for (n, act) in script.acts.iter().enumerate() {
        let caller = Step::new(stream, Op::Sync).caller;
        let op = match act {
            Act::Read(path) => {
                if let Some(ino) = world.at(path) {
                    world.fs.accessed(&caller, ino).unwrap();
                }
                continue;
            }
            Act::Op(op) => op,
        };
        if let Op::SetAttr { file, .. } | Op::SetXattr { file, .. } | Op::RemoveXattr { file, .. } =
            op
            && let Target::Path(path) = file
        {
            let path = format!("{}", Target::Path(path.clone()));
            done.attributes.extend(world.at(&path));
        }
        if let Op::Rename { from, to, .. } = op
            && from.0[..from.0.len() - 1] != to.0[..to.0.len() - 1]
        {
            done.moved |= world.is_dir(from) || world.is_dir(to);
        }
        let at = Time {
            secs: 5_000_000 + i64::from(stream) * 100 + n as i64,
            nanos: 0,
        };
        let step = Step::new(stream, op.clone()).at(at);
        let result = op.run(&*world.fs, &step.caller, &mut world.handles);
        history
            .record(&step, result)
            .unwrap_or_else(|e| panic!("{script}: {e}"));
        result.ok()?;
        if matches!(op, Op::Close { .. }) {
            // An inode that is freed at its last close is freed in no stream of the caller's.
            let left = world.look();
            before.retain(|inode, _| left.contains_key(inode));
        }
    }
    done.changed = changed(&before, &world.look());
    Some(done)
}

/// `first` in stream 1, uncommitted; then `second` in stream 2. `None`: one of them cannot be done.
fn judge(template: &Template, faults: Faults, first: &Script, second: &Script) -> Option<Verdict> {
    let mut world = template.world(faults);
    let rules = Rules {
        split: ordered::atomic,
        failures_bind: false,
        ..Rules::default()
    };
    let mut history = History::with_rules(world.tree.clone(), rules);
    let start = world.merges();
    let one = run(&mut world, &mut history, first, 1)?;
    let between = world.merges();
    let other = run(&mut world, &mut history, second, 2);
    let merged = world.merges() > between;
    let Some(other) = other else {
        assert!(!merged, "{first} | {second}: fails, and merges");
        return None;
    };
    let alone = between > start;
    let both = |one: &[Ino], all: &Changed| all.dirs.iter().any(|(ino, _)| one.contains(ino));
    let (a, b) = (&one.changed, &other.changed);
    let cause = if !history.stands_alone(Stream(2)) {
        Some(Cause::Builds)
    } else if a.files.intersection(&b.files).next().is_some() {
        Some(Cause::File)
    } else if both(&one.attributes, b) || both(&other.attributes, a) {
        Some(Cause::Attributes)
    } else if one.moved && other.moved {
        Some(Cause::Topology)
    } else if a.rebuilt.intersection(&b.dirs).next().is_some()
        || b.rebuilt.intersection(&a.dirs).next().is_some()
    {
        Some(Cause::Leaf)
    } else {
        None
    };
    Some(Verdict {
        cause,
        merged,
        alone,
    })
}

/// Every operation; some with earlier operations of their stream.
const SCRIPTS: &str = "
    create mknod /d/n file 644 0
    create mknod /d/m file 644 0
    create mknod /e/n file 644 0
    create mknod /empty/n file 644 0
    create mknod /empty/m file 644 0
    create mknod /d/c char 644 5
    create symlink /e/s target
    create mknod /d/t file 644 0; write /d/t 0 #1*5000; rename /d/t /d/x replace
    create mknod /e/t file 644 0; write /e/t 0 #1*5000; rename /e/t /e/z replace
    create mknod /d/u file 644 0; unlink /d/u
    mkdir mkdir /d/n 755
    mkdir mkdir /e/k 755
    mkdir mkdir /e/k 755; mknod /e/k/n file 644 0
    remove unlink /d/x
    remove unlink /d/y
    remove unlink /e/z
    remove unlink /a
    remove unlink /d/a2
    remove unlink /b
    remove unlink /lone1
    remove unlink /lone2
    remove unlink /lone1; unlink /lone2
    remove rmdir /empty
    remove rmdir /p/s
    remove unlink /d/o
    remove unlink /e/o
    rename rename /d/x /d/r replace
    rename rename /d/y /e/r replace
    rename rename /e/z /d/r replace
    rename rename /d/x /e/z replace
    rename rename /d/y /e/l exchange
    rename rename /d/y /d/v whiteout
    rename rename /p/s /p/r replace
    move rename /p/s /q/s replace
    move rename /q/t /p/t replace
    move rename /q/t /p/s exchange
    link link /a /d/n
    link link /b /e/n
    link link /d/y /e/y
    attributes setattr /a perm=600
    attributes setattr /b mtime=9.0 atime=9.0
    attributes setattr /d/x uid=7
    attributes setxattr /b user.k w any
    attributes setxattr /d/y user.k v any
    attributes removexattr /b user.k
    directory setattr /d perm=700
    directory setxattr /e user.k v any
    directory setattr /empty mtime=9.0
    data write /a 100 #7*100
    data write /d/x 0 #8*5000
    data append /a #9*5000
    data append /b #9*10
    data setattr /a size=100
    data setattr /b size=20000
    data fallocate /a punch 4096 4096
    data fallocate /b allocate 20000 8192
    data mknod /d/w file 644 0; write /d/w 0 #1*20000
    nameless write @3 0 #7*100
    nameless unlink /d/o; write @1 0 #7*100
    nameless close @3
    nameless close @4
    nameless unlink /d/o; close @1
    nameless unlink /e/o; close @2
    leaf mknod /wide/FITS file 644 0
    leaf mknod /wide/SPLITS fifo 644 0
    leaf mknod /wide/SPLITS2 fifo 644 0
    leaf unlink /big/ONLY
    leaf unlink /big/BESIDE
    read read /a
    read read /d/x
    read read /d
    read read /e/l
    read read /lone1
    read read /
";

fn scripts(template: &Template) -> Vec<Script> {
    let text = SCRIPTS
        .replace("FITS", &template.fits)
        .replace("SPLITS2", &template.also_splits)
        .replace("SPLITS", &template.splits)
        .replace("ONLY", &template.only)
        .replace("BESIDE", &template.beside);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(Script::parse).collect()
}

/// Verdicts of all pairs, by the classes of both.
pub(crate) type Table = BTreeMap<(Class, Class), Vec<Verdict>>;

#[test]
fn streams_merge_exactly_where_one_builds_on_the_other_or_the_layout_has_it() {
    let template = Template::new();
    let scripts = scripts(&template);
    let shown = std::env::var("STEADFAST_PAIRS").unwrap_or_default();
    let mut table = Table::new();
    let mut wrong = Vec::new();
    for first in &scripts {
        for second in &scripts {
            let Some(verdict) = judge(&template, Faults::default(), first, second) else {
                continue;
            };
            let line = format!(
                "{first} | {second}: merged {}, {:?}{}",
                verdict.merged,
                verdict.cause,
                if verdict.alone {
                    ", the first alone"
                } else {
                    ""
                }
            );
            if !verdict.is_right() {
                wrong.push(line);
            } else if shown == "all" && verdict.merged {
                println!("{line}");
            }
            table
                .entry((first.class, second.class))
                .or_default()
                .push(verdict);
        }
    }
    if shown == "table" {
        println!("{}", table::text(&table));
    }
    assert!(
        wrong.is_empty(),
        "{} pairs:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let judged: usize = table.values().map(Vec::len).sum();
    assert!(judged > 4000, "{judged} pairs could be judged");
}

/// The table distinguishes a file system that relates too much, or nothing, from the right one.
#[test]
fn each_planted_fault_shows_in_the_table() {
    let template = Template::new();
    let scripts = scripts(&template);
    let fault = |plant: fn(&mut Faults)| {
        let mut faults = Faults::default();
        plant(&mut faults);
        faults
    };
    let planted = [
        ("slots_early", fault(|f| f.slots_early = true)),
        ("gaps_early", fault(|f| f.gaps_early = true)),
        ("release_elsewhere", fault(|f| f.release_elsewhere = true)),
        ("one_stream", fault(|f| f.one_stream = true)),
        (
            "bytes_unrelated",
            fault(|f| f.journal.bytes_unrelated = true),
        ),
    ];
    for (name, faults) in planted {
        let mut pairs = scripts
            .iter()
            .flat_map(|one| scripts.iter().map(move |other| (one, other)));
        let shows = pairs.any(|(one, other)| {
            let verdict = judge(&template, faults, one, other);
            verdict.is_some_and(|verdict| !verdict.is_right())
        });
        // Objects relate what the bytes would have related: that fault is found by cuts.
        assert_eq!(shows, name != "bytes_unrelated", "{name}");
        if shows {
            steadfast_testkit::caught_in("fs", &faults);
        }
    }
}

fn make(world: &World, stream: u32, dir: &str, name: &str) -> Ino {
    let caller = Step::new(stream, Op::Sync).caller;
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let dir = world.at(dir).unwrap();
    world
        .fs
        .mknod(&caller, dir, name.as_bytes(), &node)
        .unwrap()
        .ino
}

/// The block that an inode lies in.
fn block_of(ino: Ino) -> Ino {
    ino / 16
}

#[test]
fn a_stream_keeps_what_it_made_and_freed_to_itself_until_that_is_durable() {
    let template = Template::new();
    let world = template.world(Faults::default());
    let caller = Step::new(1, Op::Sync).caller;
    let before = world.merges();
    let made: Vec<Ino> = (0..60)
        .map(|n| make(&world, 1, "/d", &format!("m{n}")))
        .collect();
    let blocks: BTreeSet<Ino> = made.iter().copied().map(block_of).collect();
    assert!(blocks.len() >= 4, "several blocks are made");
    // One is left in each block.
    let mut kept = BTreeSet::new();
    let d = world.at("/d").unwrap();
    for (n, ino) in made.iter().enumerate() {
        if !kept.insert(block_of(*ino)) {
            world
                .fs
                .unlink(&caller, d, format!("m{n}").as_bytes())
                .unwrap();
        }
    }
    let other = |n: usize| make(&world, 2, "/e", &format!("n{n}"));
    let shared: Vec<Ino> = (0..60)
        .map(other)
        .filter(|ino| made.contains(ino))
        .collect();
    assert_eq!(
        shared, [0; 0],
        "another stream's slots are used before they are durably free"
    );
    assert_eq!(world.merges(), before);
    // Its own are used again, at once.
    assert!(blocks.contains(&block_of(make(&world, 1, "/d", "again"))));
    world.fs.fsync(&caller, d, false).unwrap();
    let used: Vec<Ino> = (100..160).map(other).collect();
    assert!(
        used.iter().any(|ino| made.contains(ino)),
        "what is durably free is not used"
    );
    assert_eq!(world.merges(), before);
    world.fs.unmount().unwrap();
}

#[test]
fn room_in_a_directory_is_everybodys_when_its_freeing_is_durable() {
    let template = Template::new();
    for durable in [false, true] {
        let world = template.world(Faults::default());
        let caller = Step::new(1, Op::Sync).caller;
        let wide = world.at("/wide").unwrap();
        for n in 0..50 {
            let name = format!("{n:0100}");
            world.fs.unlink(&caller, wide, name.as_bytes()).unwrap();
        }
        if durable {
            world.fs.fsync(&caller, wide, false).unwrap();
        }
        let blocks = || world.fs.getattr(&caller, wide).unwrap().blocks;
        let before = blocks();
        make(&world, 2, "/wide", &template.splits);
        assert_eq!(blocks() == before, durable);
    }
}

/// Two streams remove the last inodes of a block side by side: neither frees it, but it goes when both are durable.
#[test]
fn an_inode_block_that_two_streams_empty_goes_with_the_next_sync() {
    let template = Template::new();
    let free_after = |streams: [u32; 2]| {
        let world = template.world(Faults::default());
        let root = world.fs.root();
        for (stream, name) in streams.into_iter().zip(["lone1", "lone2"]) {
            let caller = Step::new(stream, Op::Sync).caller;
            world.fs.unlink(&caller, root, name.as_bytes()).unwrap();
        }
        assert_eq!(world.merges(), 0);
        world.fs.sync().unwrap();
        world.fs.statfs().unwrap().blocks_free
    };
    assert_eq!(free_after([1, 1]), free_after([1, 2]));
}
