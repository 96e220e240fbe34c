//! Sequences of calls to cut: each call alone in several volumes, pairs, triples.

use super::explore::Sequence;
use steadfast_model::op::Op;
use steadfast_model::workload::small_space;
use steadfast_testkit::Random;
use steadfast_vfs::acl::XATTR_DEFAULT;

/// Choice of sequences.
#[derive(Clone, Copy)]
pub enum Choice {
    All,
    /// This number of them, chosen by the seed.
    Sample(usize),
}

fn parse(lines: &[String]) -> Vec<Op> {
    let parse = |line: &String| line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
    lines.iter().map(parse).collect()
}

fn lines(text: &[&str]) -> Vec<String> {
    text.iter().map(|line| (*line).to_owned()).collect()
}

/// Names of these lengths, at the edges of slots.
fn name(letter: &str, len: usize) -> String {
    letter.repeat(len)
}

/// A volume where names are long, slots are used again, and the pages of files and directories have had owners before.
fn aged() -> Vec<String> {
    let mut all = lines(&[
        "mknod /old file 644 0",
        "write /old 0 #11*9000",
        "mkdir /gone 755",
        "mknod /gone/x file 644 0",
        "unlink /gone/x",
        "rmdir /gone",
        "unlink /old",
        "mkdir /d 755",
        "mknod /a file 644 0",
        "write /a 0 #12*10000",
        "setattr /a size=5000",
        "mknod /h file 600 0",
        "write /h 12000 #13*300",
        "fallocate /h keep-size 20000 9000",
        "mknod /d/moved file 644 0",
        "rename /d/moved /d/back replace",
        "rename /d/back /d/moved replace",
        "mkdir /emptied 755",
        "mknod /emptied/x file 644 0",
        "unlink /emptied/x",
        "mkdir /other 755",
    ]);
    for len in [32, 33, 88, 255] {
        all.push(format!("mknod /d/{} file 644 0", name("n", len)));
    }
    all.push(format!("setxattr /a user.big {} any", "x".repeat(3000)));
    all.push("setxattr /h user.s small any".to_owned());
    all
}

/// Calls for it.
fn aged_calls() -> Vec<String> {
    let mut all = Vec::new();
    for len in [32, 33, 88, 255] {
        let (old, new) = (name("n", len), name("m", len));
        all.push(format!("mknod /d/{new} file 600 0"));
        all.push(format!("mkdir /{new} 700"));
        all.push(format!("link /a /d/{new}"));
        all.push(format!("unlink /d/{old}"));
        all.push(format!("rename /d/{old} /{new} replace"));
        all.push(format!("rename /a /d/{old} replace"));
        all.push(format!("rename /d/{old} /h exchange"));
        all.push(format!("rename /d/{old} /d/{new} whiteout"));
        all.push(format!("symlink /{new} {}", name("t", len)));
    }
    all.push(format!("symlink /s {}", name("u", 2000)));
    all.push(format!("symlink /s {}", name("u", 40)));
    all.extend(lines(&[
        "mknod /dev char 600 1234",
        "rename /d/moved /d/again replace",
        "rmdir /emptied",
        "rename /other /emptied replace",
        "rename /other /emptied whiteout",
        "write /a 4000 #21*3000",
        "write /a 0 #22*20000",
        "write /a 30000 #23*10",
        "write /h 4096 #24*8192",
        "write /h 20500 #25*100",
        "append /a #26*100",
        "append /h #27*6000",
        "setattr /a size=9000",
        "setattr /a size=4096",
        "setattr /a size=100 ",
        "setattr /h size=25000",
        "setattr /a perm=400 uid=3 gid=4 size=8192",
        "setattr /h size=0 mtime=9.000000001",
        "fallocate /a punch 0 4096",
        "fallocate /a punch 100 6000",
        "fallocate /h punch 0 30000",
        "fallocate /h allocate 0 30000",
        "fallocate /a keep-size 0 30000",
        "fallocate /a zero 1000 9000",
        "setxattr /a user.big short any",
        "removexattr /a user.big",
        "setxattr /h user.s other any",
        "removexattr /h user.s",
        "setxattr /d user.new value any",
        "unlink /a",
        "unlink /h",
    ]));
    all.push(format!("setxattr /a user.two {} any", "y".repeat(5000)));
    all.push(format!("setxattr /h user.two {} any", "y".repeat(500)));
    all
}

/// A directory with no free slot in its first page.
fn full() -> Vec<String> {
    let mut all = lines(&["mkdir /d 755", "mknod /a file 644 0", "mkdir /e 755"]);
    for index in 0..64 {
        all.push(format!("mknod /d/f{index} file 644 0"));
    }
    all
}

fn full_calls() -> Vec<String> {
    let long = name("l", 200);
    let mut all = lines(&[
        "mknod /d/new file 600 0",
        "mkdir /d/new 700",
        "link /a /d/new",
        "symlink /d/new target",
        "rename /a /d/new replace",
        "rename /e /d/new replace",
        "rename /a /d/f3 replace",
        "rename /d/f3 /d/new replace",
        "rename /d/f3 /a exchange",
        "rename /d/f3 /d/new whiteout",
        "unlink /d/f3",
        "append /d/f0 #5*5000",
    ]);
    all.push(format!("mknod /d/{long} file 600 0"));
    all.push(format!("rename /a /d/{long} replace"));
    all
}

/// Each call alone, on each of three volumes.
pub fn singles() -> Vec<Sequence> {
    let (setup, ops) = small_space();
    let mut all = Vec::new();
    let mut add = |setup: &[Op], ops: Vec<Op>| {
        all.extend(ops.into_iter().map(|op| Sequence {
            setup: setup.to_vec(),
            calls: vec![op],
        }));
    };
    add(&setup, ops);
    add(&parse(&aged()), parse(&aged_calls()));
    add(&parse(&full()), parse(&full_calls()));
    // New inodes inherit attributes.
    let (mut setup, ops) = small_space();
    let hands_down = |op: &&Op| matches!(op, Op::SetXattr { name, .. } if name == XATTR_DEFAULT);
    setup.extend(ops.iter().find(hands_down).cloned());
    let heirs = [
        "mknod /d/y file 600 0",
        "mkdir /d/g 700",
        "mknod /d/p fifo 600 0",
    ];
    add(&setup, parse(&lines(&heirs)));
    all
}

/// Every call after every call.
pub fn pairs(choice: Choice, seed: u64) -> Vec<Sequence> {
    let (setup, ops) = small_space();
    let mut all = Vec::new();
    let mut spaces = vec![(setup, ops)];
    spaces.push((parse(&aged()), parse(&aged_calls())));
    for (setup, ops) in spaces {
        for first in &ops {
            for second in &ops {
                all.push(Sequence {
                    setup: setup.clone(),
                    calls: vec![first.clone(), second.clone()],
                });
            }
        }
    }
    match choice {
        Choice::All => all,
        Choice::Sample(count) => sample(&all, count, seed),
    }
}

/// Some triples.
pub fn triples(count: usize, seed: u64) -> Vec<Sequence> {
    let (setup, ops) = small_space();
    let mut random = Random::new(seed ^ 0x7777);
    let one = |random: &mut Random| random.pick(&ops).clone();
    (0..count)
        .map(|_| Sequence {
            setup: setup.clone(),
            calls: (0..3).map(|_| one(&mut random)).collect(),
        })
        .collect()
}

fn sample(all: &[Sequence], count: usize, seed: u64) -> Vec<Sequence> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.pick(all).clone()).collect()
}
