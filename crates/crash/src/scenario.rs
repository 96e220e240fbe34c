//! A scenario: a set-up that is durable, and steps whose crash states are explored.

use std::fmt;
use steadfast_flash::Rng;
use steadfast_fs::MountOptions;
use steadfast_model::workload::{Shape, Workload, small_space};
use steadfast_model::{Op, Step, Target};
use steadfast_vfs::Time;

/// Time at which a pair's operations are made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Syncs {
    /// Not at all.
    Never,
    /// `fsync` of the inodes that the operation touched, after each.
    Fsync,
    /// `fdatasync` of it, after each.
    Fdatasync,
    /// `sync` after the first.
    Between,
}

/// The ways of syncing a pair.
pub(crate) const SYNCS: [Syncs; 4] = [Syncs::Never, Syncs::Fsync, Syncs::Fdatasync, Syncs::Between];

/// A workload: steps on a volume that begins with a durable set-up.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Description in words.
    pub name: String,
    /// Operations made durable before the exploration begins.
    pub setup: Vec<Op>,
    /// Steps that are cut.
    pub steps: Vec<Step>,
    /// Bytes of a small file that go through the log when it is synced.
    pub small_bytes: u64,
    /// Bytes from which on overwrites go out of place; 0: none do.
    pub overwrite_bytes: u64,
    /// Before each step whose number is a multiple of this, and after the last if their number is, all free space is
    /// trimmed, as `steadfast trim` does.
    pub trim_every: Option<usize>,
    /// The streams do not relate: after a sync of one, the operations of the others can be lost.
    pub side_by_side: bool,
}

impl Scenario {
    /// Whether all free space is trimmed before this step, or after the last.
    pub(crate) fn trims_before(&self, step: usize) -> bool {
        self.trim_every.is_some_and(|n| step.is_multiple_of(n))
    }
}

/// So few that most of the files, which are small here, are covered by the record instead.
pub(crate) const SMALL_BYTES_FEW: u64 = 4096;

/// So few that each block of a file that is overwritten whole gets a new one.
pub(crate) const OVERWRITE_BYTES_FEW: u64 = 4096;

/// Steps from one trim to the next in a random sequence that has some.
const TRIM_EVERY: usize = 7;

/// As few as that, or as a mount has it, in turn.
fn small_bytes(turn: u64) -> u64 {
    if turn.is_multiple_of(2) {
        SMALL_BYTES_FEW
    } else {
        MountOptions::default().small_bytes
    }
}

/// As few as a block has, or none, in turn.
fn overwrite_bytes(turn: u64) -> u64 {
    if turn.is_multiple_of(2) {
        OVERWRITE_BYTES_FEW
    } else {
        0
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        writeln!(
            f,
            "  up to {} bytes of a file go through the log",
            self.small_bytes
        )?;
        match self.overwrite_bytes {
            0 => writeln!(f, "  no overwrites go out of place")?,
            bytes => writeln!(f, "  overwrites of {bytes} bytes go out of place")?,
        }
        if let Some(steps) = self.trim_every {
            writeln!(f, "  free space is trimmed every {steps} steps")?;
        }
        for op in &self.setup {
            writeln!(f, "  set-up: {op}")?;
        }
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {i:3}: {step}")?;
        }
        Ok(())
    }
}

/// The sync of the inode that an operation made, changed or uncovered.
fn touched(op: &Op, syncs: Syncs) -> Op {
    let file = match op {
        Op::Mknod { path, .. } | Op::Mkdir { path, .. } | Op::Symlink { path, .. } => {
            Target::Path(path.clone())
        }
        Op::Link { to, .. } | Op::Rename { to, .. } => Target::Path(to.clone()),
        Op::Unlink { path } | Op::Rmdir { path } => {
            let mut dir = path.clone();
            dir.0.pop();
            Target::Path(dir)
        }
        Op::Write { file, .. }
        | Op::Append { file, .. }
        | Op::SetAttr { file, .. }
        | Op::Fallocate { file, .. }
        | Op::SetXattr { file, .. }
        | Op::RemoveXattr { file, .. } => file.clone(),
        _ => return Op::Sync,
    };
    if syncs == Syncs::Fdatasync {
        Op::Fdatasync { file }
    } else {
        Op::Fsync { file }
    }
}

/// The number of pairs.
pub(crate) fn pairs() -> usize {
    let (_, ops) = small_space();
    ops.len() * ops.len() * SYNCS.len()
}

/// Pair number `index` of [`pairs`]: two operations of the small name space.
pub(crate) fn pair(index: usize) -> Scenario {
    let (setup, ops) = small_space();
    let syncs = SYNCS[index % SYNCS.len()];
    let (a, b) = (
        index / SYNCS.len() / ops.len(),
        index / SYNCS.len() % ops.len(),
    );
    let mut list = vec![ops[a].clone()];
    match syncs {
        Syncs::Never => {}
        Syncs::Fsync | Syncs::Fdatasync => list.push(touched(&ops[a], syncs)),
        Syncs::Between => list.push(Op::Sync),
    }
    list.push(ops[b].clone());
    if matches!(syncs, Syncs::Fsync | Syncs::Fdatasync) {
        list.push(touched(&ops[b], syncs));
    }
    list.push(Op::Sync);
    let steps = list
        .into_iter()
        .enumerate()
        .map(|(i, op)| Step::new(0, op).at(time(i)));
    Scenario {
        name: format!("pair {index}: {} | {} ({syncs:?})", ops[a], ops[b]),
        setup,
        steps: steps.collect(),
        small_bytes: SMALL_BYTES_FEW,
        overwrite_bytes: overwrite_bytes(index as u64 / SYNCS.len() as u64),
        // All pairs are run as they are: a trim commits.
        trim_every: None,
        side_by_side: false,
    }
}

/// Triple number `index` of the seed: three operations of the small name space, each followed by
/// nothing, or by a sync of the touched inode, of the directory above, or of everything. In every fourth one free
/// space is trimmed between the steps.
pub(crate) fn triple(seed: u64, index: u64) -> Scenario {
    let (setup, ops) = small_space();
    let number = seed.wrapping_mul(0x3_0000_0001).wrapping_add(index);
    let mut below = numbers(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut list = Vec::new();
    for _ in 0..3 {
        let op = ops[below(ops.len() as u64) as usize].clone();
        let sync = match below(6) {
            0 => Some(touched(&op, Syncs::Fsync)),
            1 => Some(touched(&op, Syncs::Fdatasync)),
            2 => Some(match touched(&op, Syncs::Fsync) {
                Op::Fsync {
                    file: Target::Path(mut path),
                } => {
                    path.0.pop();
                    let file = Target::Path(path);
                    Op::Fsync { file }
                }
                other => other,
            }),
            3 => Some(Op::Sync),
            _ => None,
        };
        list.push(op);
        list.extend(sync);
    }
    list.push(Op::Sync);
    let steps = list.into_iter().enumerate();
    Scenario {
        name: format!("triple {index} of seed {seed}"),
        setup,
        steps: steps.map(|(i, op)| Step::new(0, op).at(time(i))).collect(),
        small_bytes: small_bytes(index),
        overwrite_bytes: overwrite_bytes(index / 2),
        trim_every: (index % 4 == 1).then_some(1 + (index / 4 % 3) as usize),
        side_by_side: false,
    }
}

/// Numbers below the given bound, the same for the same seed.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = Rng::new(seed);
    move |n| random.below(n)
}

fn time(i: usize) -> Time {
    Time {
        secs: 2000 + i as i64,
        nanos: 0,
    }
}

/// A random sequence; every third one has two to four streams, every fourth one mostly overwrites, every
/// eighth one mostly changes extended attributes; in a sixteenth free space is trimmed now and then. Every
/// second one begins with the set-up of the pairs, whose files have been written home; the others with an empty
/// volume.
pub(crate) fn random(seed: u64, index: u64) -> Scenario {
    let number = seed.wrapping_mul(0x1_0000_0001).wrapping_add(index);
    if index % 4 == 3 {
        return overwrites(seed, index, number);
    }
    if index % 8 == 5 {
        return attributes(seed, index, number);
    }
    let streams = match index % 3 {
        2 => 2 + (index / 3 % 3) as u32,
        _ => 1,
    };
    let shape = Shape {
        streams,
        names: 3,
        depth: 2,
        bytes_max: 20_000,
        sync_every: [9, 9, 6, 5, 4][streams as usize],
        ..Shape::default()
    };
    let length = if streams > 1 { 24 } else { 30 };
    let mut steps: Vec<Step> = Workload::new(number, shape).take(length).collect();
    steps.push(Step::new(0, Op::Sync).at(Time {
        secs: 5000,
        nanos: 0,
    }));
    Scenario {
        name: format!("random sequence {index} of seed {seed}, {streams} stream(s)"),
        setup: if index % 2 == 1 {
            small_space().0
        } else {
            Vec::new()
        },
        steps,
        small_bytes: small_bytes(index / 4),
        overwrite_bytes: overwrite_bytes(index / 8),
        trim_every: index.is_multiple_of(16).then_some(TRIM_EVERY),
        side_by_side: false,
    }
}

/// Attributes of files and a directory that grow out of their inodes and back, and go.
fn attributes(seed: u64, index: u64, number: u64) -> Scenario {
    let mut below = numbers(number);
    let mut lines = Vec::new();
    for n in 0..30 {
        let file = ["/a", "/d", "/d/x"][below(3) as usize];
        let name = ["user.k", "user.n"][below(2) as usize];
        lines.push(match below(20) {
            0..10 => {
                let len = [1, 20, 44, 48, 49, 100, 900][below(7) as usize];
                format!("setxattr {file} {name} {} any", "v".repeat(len))
            }
            10..14 => format!("removexattr {file} {name}"),
            14 => format!("append /a #{}*{}", 100 + n, below(5000) + 1),
            15 => format!("mknod /d/x{n} file 644 0"),
            16 => "rename /a /d/x exchange".to_string(),
            17 => "sync".to_string(),
            _ => format!("fsync {file}"),
        });
    }
    lines.push("sync".to_string());
    let ops = lines.iter().filter_map(|line| line.parse().ok());
    let steps = ops.enumerate().map(|(i, op)| Step::new(0, op).at(time(i)));
    Scenario {
        name: format!("random sequence {index} of seed {seed}, mostly attributes"),
        steps: steps.collect(),
        setup: small_space().0,
        small_bytes: small_bytes(index / 4),
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: false,
    }
}

/// Two to four streams that make, write, rename, link and remove files of their own in the same directories, some of
/// which are open meanwhile, and sync: room in directories, inode numbers and blocks come free in one stream while another
/// wants some, and all change the same counters.
pub(crate) fn side_by_side(seed: u64, index: u64) -> Scenario {
    let mut below = numbers(seed.wrapping_mul(0x5_0000_0001).wrapping_add(index));
    let streams = 2 + below(3);
    let mut setup = vec!["mkdir /d 755".to_string(), "mkdir /e 755".to_string()];
    for s in 0..streams {
        setup.push(format!("mknod /mark{s} file 644 0"));
        setup.push(format!("mknod /d/a{s} file 644 0"));
        setup.push(format!("write /d/a{s} 0 #{s}*2000"));
        setup.push(format!("mknod /e/b{s} file 644 0"));
    }
    let mut open = vec![false; streams as usize];
    let mut lines = Vec::new();
    for n in 0.. {
        if lines.len() >= 28 {
            break;
        }
        let s = below(streams);
        let mut file = || {
            let dir = ["", "/d", "/e"][below(3) as usize];
            format!("{dir}/{}{s}", ["a", "b", "c"][below(3) as usize])
        };
        let (one, other) = (file(), file());
        let is_open = &mut open[s as usize];
        let mut push = |line: String| lines.push((s, line));
        match below(24) {
            0..5 => push(format!("mknod {one} file 644 0")),
            5 | 6 => push(format!("write {one} 0 #{}*{}", 100 + n, below(3000) + 1)),
            7..11 => push(format!("unlink {one}")),
            11..13 => push(format!("rename {one} {other} replace")),
            13 => push(format!("link {one} {other}")),
            14 => push(format!("mkdir /d/k{s} 755")),
            15 => push(format!("rmdir /d/k{s}")),
            16 => push(format!("mknod /d/k{s}/f file 644 0")),
            17 => push(format!("setxattr {one} user.k {} any", "v".repeat(60))),
            // It loses its name while it is open, and goes with the last close.
            18..21 if *is_open => {
                *is_open = false;
                push(format!("close @{s}"));
            }
            18..21 => {
                *is_open = true;
                push(format!("mknod {one} file 644 0"));
                push(format!("open {one} @{s}"));
                push(format!("unlink {one}"));
            }
            _ => push(format!("fsync /mark{s}")),
        }
    }
    lines.push((0, "sync".to_string()));
    let parsed = lines
        .iter()
        .filter_map(|(s, line)| Some((*s, line.parse().ok()?)));
    let steps = parsed
        .enumerate()
        .map(|(i, (s, op))| Step::new(s as u32, op).at(time(i)));
    Scenario {
        name: format!("sequence {index} of seed {seed}, {streams} streams side by side"),
        steps: steps.collect(),
        setup: setup.iter().filter_map(|line| line.parse().ok()).collect(),
        small_bytes: small_bytes(index),
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: true,
    }
}

/// Files that are written through handles, which close and sync them, and that are renamed, truncated and removed: they test
/// the pages that a kernel may keep.
pub(crate) fn kept(seed: u64, index: u64) -> Scenario {
    let mut below = numbers(seed.wrapping_mul(0x7_0000_0001).wrapping_add(index));
    let setup = [
        "mkdir /d 755",
        "mknod /a file 644 0",
        "write /a 0 #1*9000",
        "mknod /d/b file 644 0",
        "write /d/b 0 #2*300",
    ];
    let mut open = [false; 3];
    let mut lines = Vec::new();
    for n in 0..30u64 {
        let path = ["/a", "/d/b", "/c", "/d/e"][below(4) as usize];
        let handle = below(3);
        let is_open = &mut open[handle as usize];
        let file = match *is_open {
            true => format!("@{handle}"),
            false => path.to_string(),
        };
        let (at, len) = (below(12_000), below(6000) + 1);
        let line = match below(32) {
            0..6 => format!("write {file} {at} #{}*{len}", 100 + n),
            6..9 => format!("append {file} #{}*{len}", 100 + n),
            9..15 if *is_open => {
                *is_open = false;
                format!("close @{handle}")
            }
            9..15 => {
                lines.push(format!("mknod {path} file 644 0"));
                *is_open = true;
                format!("open {path} @{handle}")
            }
            15..18 => format!("rename {path} /a replace"),
            18 => format!("rename /c {path} replace"),
            19..22 => format!("setattr {file} size={at}"),
            22 => format!("fallocate {file} punch {at} {len}"),
            23 => format!("fallocate {file} zero {at} {len}"),
            24 => format!("fallocate {file} allocate {at} {len}"),
            25 => format!("unlink {path}"),
            26 => format!("mkdir /d{n} 755"),
            27 => format!("link {path} /c"),
            28 => "sync".to_string(),
            29 => format!("fdatasync {file}"),
            _ => format!("fsync {file}"),
        };
        lines.push(line);
    }
    lines.push("sync".to_string());
    let ops = lines.iter().filter_map(|line| line.parse().ok());
    let steps = ops.enumerate().map(|(i, op)| Step::new(0, op).at(time(i)));
    Scenario {
        name: format!("sequence {index} of seed {seed}, files that are kept and closed"),
        steps: steps.collect(),
        setup: setup.iter().filter_map(|line| line.parse().ok()).collect(),
        small_bytes: small_bytes(index),
        overwrite_bytes: overwrite_bytes(index / 8),
        trim_every: None,
        side_by_side: false,
    }
}

/// Two files that are overwritten, made longer and shorter, punched, renamed and synced.
fn overwrites(seed: u64, index: u64, number: u64) -> Scenario {
    let mut below = numbers(number);
    let setup = [
        "mknod /a file 644 0",
        "write /a 0 #1*20000",
        "mknod /b file 644 0",
        "write /b 0 #2*9000",
    ];
    let mut lines = Vec::new();
    for n in 0..30 {
        let file = if below(3) == 0 { "/b" } else { "/a" };
        let (at, len) = (below(20_000), below(3000) + 1);
        lines.push(match below(20) {
            0..9 => format!("write {file} {at} #{}*{len}", 100 + n),
            9 => format!("write {file} {} #{}*4096", at / 4096 * 4096, 100 + n),
            10 => format!("append {file} #{}*{}", 100 + n, len / 4 + 1),
            11 => format!("setattr {file} size={at}"),
            12 => format!("fallocate {file} punch {at} {len}"),
            13 => "rename /a /b exchange".to_string(),
            14 => format!("mkdir /d{n} 755"),
            15 => "sync".to_string(),
            16 => format!("fsync {file}"),
            _ => format!("fdatasync {file}"),
        });
    }
    lines.push("sync".to_string());
    let ops = lines.iter().filter_map(|line| line.parse().ok());
    let steps = ops.enumerate().map(|(i, op)| Step::new(0, op).at(time(i)));
    Scenario {
        name: format!("random sequence {index} of seed {seed}, mostly overwrites"),
        steps: steps.collect(),
        setup: setup.iter().filter_map(|line| line.parse().ok()).collect(),
        small_bytes: small_bytes(index / 4),
        overwrite_bytes: overwrite_bytes(index / 8),
        trim_every: None,
        side_by_side: false,
    }
}

/// Files that one or two streams overwrite in large pieces or in order, make longer and shorter, punch, allocate and sync,
/// while others are made and removed, so that blocks that were left are soon wanted.
pub(crate) fn large_overwrites(seed: u64, index: u64) -> Scenario {
    let mut below = numbers(seed.wrapping_mul(0x7_0000_0001).wrapping_add(index));
    let streams = 1 + below(2);
    let setup = [
        "mknod /a file 644 0",
        "write /a 0 #1*65536",
        "mknod /b file 644 0",
        "write /b 0 #2*36000",
    ];
    let mut lines: Vec<(u64, String)> = Vec::new();
    for n in 0..24 {
        let s = below(streams);
        let file = ["/a", "/a", "/b"][below(3) as usize];
        let data = 100 + n;
        let page = below(14);
        match below(20) {
            0..6 => {
                let len = (1 + below(6)) * 4096;
                lines.push((s, format!("write {file} {} #{data}*{len}", page * 4096)));
            }
            6..10 => {
                // In order, and now and then each by another stream.
                for i in 0..2 + below(4) {
                    let s = if below(4) == 0 { below(streams) } else { s };
                    let at = (page / 4 * 4 + i) * 4096;
                    lines.push((s, format!("write {file} {at} #{}*4096", data + i)));
                }
            }
            10 => lines.push((s, format!("write {file} {} #{data}*9000", below(50_000)))),
            11 => lines.push((s, format!("append {file} #{data}*{}", below(6000) + 1))),
            12 => lines.push((s, format!("setattr {file} size={}", below(60_000)))),
            13 => {
                let mode = ["punch", "allocate", "zero"][below(3) as usize];
                let (at, len) = (below(50_000), below(16_000) + 1);
                lines.push((s, format!("fallocate {file} {mode} {at} {len}")));
            }
            14 => lines.push((s, format!("unlink /f{}", below(3)))),
            15 | 16 => {
                let name = below(3);
                lines.push((s, format!("mknod /f{name} file 644 0")));
                lines.push((s, format!("write /f{name} 0 #{data}*{}", below(20_000) + 1)));
            }
            17 => lines.push((s, "sync".to_string())),
            _ => lines.push((s, format!("fsync {file}"))),
        }
    }
    lines.push((0, "sync".to_string()));
    let parsed = lines
        .iter()
        .filter_map(|(s, line)| Some((*s, line.parse().ok()?)));
    let steps = parsed
        .enumerate()
        .map(|(i, (s, op))| Step::new(s as u32, op).at(time(i)));
    Scenario {
        name: format!("sequence {index} of seed {seed}, {streams} stream(s), large overwrites"),
        steps: steps.collect(),
        setup: setup.iter().filter_map(|line| line.parse().ok()).collect(),
        small_bytes: small_bytes(index),
        overwrite_bytes: OVERWRITE_BYTES_FEW << (index % 3),
        trim_every: (index % 8 == 5).then_some(TRIM_EVERY),
        side_by_side: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triples_repeat_and_sync_in_every_way() {
        let text = |n| triple(7, n).to_string();
        let all: Vec<String> = (0..200).map(text).collect();
        assert!((0..200).map(text).eq(all.iter().cloned()));
        for sync in [" fsync /d\n", " fsync /\n", " fdatasync /a\n", " sync\n"] {
            assert!(all.iter().any(|triple| triple.contains(sync)), "{sync}");
        }
    }

    #[test]
    fn every_line_of_large_overwrites_parses() {
        for index in 0..50 {
            let text = large_overwrites(3, index).to_string();
            assert_eq!(text, large_overwrites(3, index).to_string());
            assert!(large_overwrites(3, index).steps.len() >= 25, "{text}");
        }
    }

    #[test]
    fn every_line_of_streams_side_by_side_parses() {
        for index in 0..50 {
            let scenario = side_by_side(1, index);
            assert_eq!((scenario.setup.len() - 2) % 4, 0);
            assert!((29..=31).contains(&scenario.steps.len()), "{scenario}");
        }
    }

    #[test]
    fn every_line_of_the_kept_files_parses() {
        for index in 0..50 {
            let scenario = kept(1, index);
            assert_eq!(scenario.setup.len(), 5);
            let made = scenario.steps.iter();
            let made = made
                .filter(|step| matches!(step.op, Op::Open { .. }))
                .count();
            assert_eq!(scenario.steps.len(), 31 + made, "{scenario}");
        }
    }

    #[test]
    fn every_line_of_the_overwrites_parses() {
        for index in 0..50 {
            let scenario = overwrites(1, index, index);
            assert_eq!((scenario.setup.len(), scenario.steps.len()), (4, 31));
        }
    }
}
