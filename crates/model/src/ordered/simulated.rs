//! An implementation in the small, honest or with a planted fault, that the checker
//! must accept or find out.
#![allow(clippy::unwrap_used)]
use super::tests::tree;
use super::*;
use crate::workload::{Shape, Workload};
use std::collections::HashSet;
use steadfast_vfs::Caller;

/// Bug of the implementation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    None,
    /// Two streams that change one file do not relate.
    NoFile,
    /// Two streams that change one name do not relate.
    NoName,
    /// The removal of a directory does not relate to the streams that used it.
    NoRmdir,
    /// An fsync commits its own stream, not the others that changed the file.
    FsyncOwnOnly,
    /// A commit leaves out the second operation of a transaction.
    LostTail,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Object {
    File(Ino),
    Exists(Ino),
    Topology,
}

#[derive(Default, Clone)]
struct Running {
    streams: HashSet<usize>,
    ops: Vec<usize>,
    exclusive: HashSet<Object>,
    shared: HashSet<Object>,
    names: HashSet<(Ino, Vec<u8>)>,
    touched: HashSet<Ino>,
}

/// Running transactions by stream, related by the objects they touch, merged until they
/// commit.
struct Sim {
    bug: Bug,
    running: Vec<Running>,
    committed: HashSet<usize>,
}

impl Sim {
    fn objects(&self, before: &Tree, after: &Tree, call: &Call) -> Running {
        let mut r = Running::default();
        let root = Caller::root();
        let node = |r: &mut Running, tree: &Tree, ino: Ino| {
            let dir = tree.node(ino).is_ok_and(|n| n.dir().is_ok());
            r.exclusive.insert(if dir {
                Object::Exists(ino)
            } else {
                Object::File(ino)
            });
        };
        let name = |r: &mut Running, parent: Ino, name: &[u8]| {
            r.shared.insert(Object::Exists(parent));
            r.names.insert((parent, name.to_vec()));
            before.lookup(&root, parent, name).ok()
        };
        match call {
            Call::Mknod {
                parent, name: n, ..
            }
            | Call::Mkdir {
                parent, name: n, ..
            }
            | Call::Symlink {
                parent, name: n, ..
            } => {
                name(&mut r, *parent, n);
                let made = after.lookup(&root, *parent, n).unwrap();
                node(&mut r, after, made);
            }
            Call::Link {
                ino,
                parent,
                name: n,
            } => {
                name(&mut r, *parent, n);
                node(&mut r, before, *ino);
            }
            Call::Unlink { parent, name: n } | Call::Rmdir { parent, name: n } => {
                let victim = name(&mut r, *parent, n).unwrap();
                node(&mut r, before, victim);
                if self.bug == Bug::NoRmdir && matches!(call, Call::Rmdir { .. }) {
                    r.exclusive.clear();
                }
            }
            Call::Rename { from, to, mode } => {
                let source = name(&mut r, from.0, &from.1).unwrap();
                let target = name(&mut r, to.0, &to.1);
                let is_dir = |i: Ino| before.node(i).unwrap().dir().is_ok();
                let dirs = is_dir(source) || target.is_some_and(is_dir);
                if dirs && from.0 != to.0 {
                    r.exclusive.insert(Object::Topology);
                }
                if let Some(t) = target
                    && t != source
                    && *mode != steadfast_vfs::RenameMode::Exchange
                {
                    node(&mut r, before, t);
                }
            }
            Call::Write { ino, .. }
            | Call::Append { ino, .. }
            | Call::SetAttr { ino, .. }
            | Call::Fallocate { ino, .. }
            | Call::SetXattr { ino, .. }
            | Call::RemoveXattr { ino, .. } => node(&mut r, before, *ino),
            _ => {}
        }
        match self.bug {
            Bug::NoFile => r.exclusive.retain(|o| !matches!(o, Object::File(_))),
            Bug::NoName => r.names.clear(),
            _ => {}
        }
        r.touched = effect::effect(before, after).touched.into_iter().collect();
        r
    }

    fn run(&mut self, op: usize, stream: usize, mut new: Running) {
        new.streams.insert(stream);
        new.ops.push(op);
        let (related, rest): (Vec<_>, Vec<_>) = self.running.drain(..).partition(|r| {
            r.streams.contains(&stream)
                || !r.names.is_disjoint(&new.names)
                || !r.exclusive.is_disjoint(&new.exclusive)
                || !r.exclusive.is_disjoint(&new.shared)
                || !r.shared.is_disjoint(&new.exclusive)
        });
        self.running = rest;
        for r in related {
            new.streams.extend(r.streams);
            new.ops.extend(r.ops);
            new.exclusive.extend(r.exclusive);
            new.shared.extend(r.shared);
            new.names.extend(r.names);
            new.touched.extend(r.touched);
        }
        self.running.push(new);
    }

    fn commit(&mut self, which: impl Fn(&Running) -> bool) {
        let (now, rest): (Vec<_>, Vec<_>) = self.running.drain(..).partition(which);
        self.running = rest;
        for r in now {
            let mut ops = r.ops;
            ops.sort_unstable();
            if self.bug == Bug::LostTail && ops.len() > 3 {
                ops.remove(1);
            }
            self.committed.extend(ops);
        }
    }
}

/// Operations that meet in one directory.
const MEETING: [&str; 12] = [
    "mknod /a/a file 644 0",
    "mknod /a/b file 644 0",
    "unlink /a/a",
    "unlink /a/b",
    "rmdir /a",
    "mkdir /a 755",
    "mkdir /c 755",
    "rmdir /c",
    "append /a/a #5*100",
    "link /a/a /b",
    "unlink /b",
    "rename /a /c/a replace",
];

/// One stream empties a directory, another removes it and goes on.
const EMPTYING: [(u32, &str); 4] = [
    (0, "unlink /a/a"),
    (1, "rmdir /a"),
    (1, "mkdir /c 755"),
    (2, "mkdir /d 755"),
];

fn steps(seed: u64) -> Vec<Step> {
    let shape = Shape {
        streams: 3,
        names: 2,
        depth: 2,
        sync_every: 10,
        ..Shape::default()
    };
    let mut steps: Vec<Step> = Workload::new(seed, shape).take(24).collect();
    if seed % 4 >= 2 {
        for (i, s) in steps.iter_mut().enumerate() {
            let n = (seed / 4 + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(i as u32 * 5);
            s.op = MEETING[n as usize % MEETING.len()].parse().unwrap();
        }
    }
    if seed % 8 == 7 {
        for (s, (stream, line)) in steps.iter_mut().zip(EMPTYING) {
            s.op = line.parse().unwrap();
            s.caller.stream = Stream(stream);
        }
    }
    steps
}

/// Runs random histories on the small implementation and checks each crash; returns
/// the violations.
fn simulate(bug: Bug, seeds: std::ops::Range<u64>) -> usize {
    let mut violations = 0;
    for seed in seeds {
        let strict = seed % 2 == 0;
        let rules = Rules {
            failures_bind: strict,
            ..Rules::default()
        };
        let setup = ["mkdir /a 755", "mknod /b file 644 0", "link /b /a/a"];
        let mut h = History::with_rules(tree(&setup), rules);
        let mut sim = Sim {
            bug,
            running: Vec::new(),
            committed: HashSet::new(),
        };
        let mut calls: Vec<Option<(Step, Call, Ino)>> = Vec::new();
        let mut random = seed.wrapping_mul(77);
        for step in steps(seed) {
            let before = h.current().clone();
            let call = before.resolve(&step.op, &step.caller);
            let ino = h.initial.next_ino() + h.len() as Ino;
            let result = h.expected(&step);
            let op = h.record(&step, result).unwrap();
            let stream = step.caller.stream.0 as usize;
            calls.push(call.clone().ok().map(|c| (step.clone(), c, ino)));
            match (call, result) {
                (Ok(call), Ok(_)) => {
                    if !call.keeps_the_tree() {
                        let objects = sim.objects(&before, h.current(), &call);
                        sim.run(op, stream, objects);
                    }
                    match call {
                        Call::Sync => sim.commit(|_| true),
                        Call::Fsync { ino, .. } => sim.commit(|r| {
                            r.streams.contains(&stream)
                                || (bug != Bug::FsyncOwnOnly && r.touched.contains(&ino))
                        }),
                        Call::Open { .. } | Call::Close { .. } => {
                            sim.committed.insert(op);
                        }
                        _ => {}
                    }
                }
                // A failure builds on its causes: here, on everything.
                (Ok(_), Err(_)) if strict => sim.commit(|_| true),
                _ => {}
            }
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if random >> 61 == 0 {
                let lucky = (random >> 40) as usize % 3;
                sim.commit(|r| r.streams.contains(&lucky));
            }
            // The power fails now: committed operations are there, in their order.
            let mut tree = h.initial.clone();
            for (i, c) in calls.iter().enumerate() {
                if let Some((s, call, ino)) = c
                    && sim.committed.contains(&i)
                {
                    tree.set_next_ino(*ino);
                    let _ = tree.call(call, &s.caller, s.at);
                }
            }
            if let Err(v) = h.check(&tree.snapshot(), Cut::after(h.len())) {
                assert!(bug != Bug::None, "seed {seed}\n{h}{v}");
                violations += 1;
                break;
            }
        }
    }
    violations
}

#[test]
fn an_implementation_that_merges_related_streams_never_violates_the_contract() {
    assert_eq!(simulate(Bug::None, 0..400), 0);
}

#[test]
fn every_fault_planted_in_an_implementation_is_found() {
    for bug in [
        Bug::NoFile,
        Bug::NoName,
        Bug::NoRmdir,
        Bug::FsyncOwnOnly,
        Bug::LostTail,
    ] {
        assert!(simulate(bug, 0..400) > 0, "{bug:?} is never found");
        steadfast_testkit::caught_in("ordered", &bug);
    }
}
