//! The code issues the plans that were searched: the stores of each call, in groups between fences, are those of
//! `proofs/pmcheck/plans.txt`. No write-back is redundant or missing, and a call that fails stores nothing.
#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "plans/groups.rs"]
mod groups;
#[path = "plans/table.rs"]
mod table;

use super::crash::sequences;
use groups::{Call, groups};
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_model::TestClock;
use steadfast_model::op::{Handles, Op};
use steadfast_pm::{Event, Region, Trace};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Caller, FileSystem, Time};
use table::Table;

const BYTES: u64 = 512 << 10;

fn options(clock: &TestClock, in_place: bool) -> MountOptions {
    let mut options = MountOptions::default();
    options.scan_threads = 1;
    options.in_place = in_place;
    options.clock = Arc::new(clock.clone());
    options
}

/// A volume after some calls, in a region that records.
struct Recorded {
    fs: PmFs,
    clock: TestClock,
    now: i64,
}

impl Recorded {
    fn after(setup: &[Op], in_place: bool) -> Recorded {
        let clock = TestClock::new();
        clock.set(Time { secs: 9, nanos: 0 });
        let region = Region::anonymous(BYTES);
        let made = MkfsOptions {
            bytes_per_inode: 4096,
            ..MkfsOptions::default()
        };
        mkfs(&region, &made, &mut |_, _| {}).unwrap();
        let fs = PmFs::mount(region, &options(&clock, in_place), &mut |_, _| {}).unwrap();
        let mut handles = Handles::new();
        for op in setup {
            let done = op.run(&fs, &Caller::root(), &mut handles);
            assert!(done.is_ok(), "{op}: {done:?}");
        }
        let region = Region::recorded(fs.into_region().content());
        let fs = PmFs::mount(region, &options(&clock, in_place), &mut |_, _| {}).unwrap();
        Recorded { fs, clock, now: 10 }
    }

    /// Trace of a call on the region, and its result if it succeeds.
    fn trace<T, E>(&mut self, call: impl FnOnce(&PmFs) -> Result<T, E>) -> (Trace, Option<T>) {
        self.now += 1;
        self.clock.set(Time {
            secs: self.now,
            nanos: 0,
        });
        self.fs.medium().restart_recorder();
        let done = call(&self.fs);
        let trace = self.fs.medium().recorder().unwrap().trace();
        (trace, done.ok())
    }
}

/// The plans that a call may follow.
fn plans_of(op: &Op) -> &'static [&'static str] {
    let text = op.to_string();
    match text.split_whitespace().next().unwrap_or_default() {
        "mknod" => &["create", "create, attributes inherited"],
        "mkdir" => &["mkdir", "create, attributes inherited"],
        "symlink" => &["symlink"],
        "link" => &["link"],
        "unlink" => &["unlink"],
        "rmdir" => &["rmdir"],
        "rename" if text.ends_with("exchange") => &["exchange"],
        "rename" if text.ends_with("whiteout") => &["whiteout"],
        "rename" => &["rename"],
        "write" | "append" => &["write"],
        "setattr" => &["set times", "chmod"],
        "fallocate" => &["fallocate"],
        "setxattr" | "removexattr" => &["set attributes"],
        other => panic!("no plan for {other}"),
    }
}

/// The events of a trace without data.
fn short(trace: &Trace) -> String {
    let events = trace.events().iter();
    let events = events.filter(|event| !matches!(event, Event::Data { .. }));
    events.map(|event| format!("\n  {event}")).collect()
}

/// Compares a call with the plans it may follow; returns its groups.
fn follows(trace: &Trace, call: Call, plans: &[&str], what: &str) -> Vec<Vec<&'static str>> {
    let table = Table::read();
    let report = trace.report();
    assert!(report.is_clean(), "{what}: {report}{}", short(trace));
    let found = groups(trace, call).unwrap_or_else(|why| panic!("{what}: {why}{}", short(trace)));
    let mut complaints = Vec::new();
    for plan in plans {
        match table.compare(plan, &found) {
            Ok(()) => return found.phases,
            Err(why) => complaints.push(format!("{plan}: {why}")),
        }
    }
    panic!(
        "{what}: {}\nfound {:?}{}",
        complaints.join("; "),
        found.phases,
        short(trace)
    );
}

#[test]
fn each_call_issues_its_plan() {
    let mut shapes: BTreeMap<String, u32> = BTreeMap::new();
    let mut labels: BTreeMap<&str, u32> = BTreeMap::new();
    for sequence in sequences::singles() {
        let op = &sequence.calls[0];
        let mut volume = Recorded::after(&sequence.setup, false);
        let mut handles = Handles::new();
        let run = |fs: &PmFs| {
            let done = op.run(fs, &Caller::root(), &mut handles);
            if done.is_ok() { Ok(()) } else { Err(done) }
        };
        let (trace, done) = volume.trace(run);
        if done.is_none() {
            let stores = trace.events().iter().filter(|event| event.is_store());
            assert_eq!(stores.count(), 0, "{op} fails and stores:\n{trace:?}");
            continue;
        }
        let call = Call::of(&op.to_string());
        let found = follows(&trace, call, plans_of(op), &op.to_string());
        found
            .iter()
            .flatten()
            .for_each(|label| *labels.entry(label).or_default() += 1);
        let shape: Vec<String> = found.iter().map(|phase| phase.join(" ")).collect();
        *shapes.entry(shape.join(" | ")).or_default() += 1;
    }
    for (shape, count) in &shapes {
        println!("{count:4}  {shape}");
    }
    let all = Table::read().labels;
    let missing: Vec<&String> = all
        .iter()
        .map(|l| &l.0)
        .filter(|l| !labels.contains_key(l.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "no call has {missing:?}: the comparison shows nothing about them"
    );
}

#[test]
fn calls_one_after_another_issue_their_plans() {
    for sequence in sequences::pairs(sequences::Choice::Sample(60), 7) {
        let mut volume = Recorded::after(&sequence.setup, false);
        let mut handles = Handles::new();
        for op in &sequence.calls {
            let run = |fs: &PmFs| {
                let done = op.run(fs, &Caller::root(), &mut handles);
                if done.is_ok() { Ok(()) } else { Err(done) }
            };
            let (trace, done) = volume.trace(run);
            if done.is_some() {
                follows(
                    &trace,
                    Call::of(&op.to_string()),
                    plans_of(op),
                    &op.to_string(),
                );
            }
        }
    }
}

#[test]
fn a_file_without_a_name_issues_its_plan_and_so_do_its_name_and_its_content() {
    let mut volume = Recorded::after(&[], false);
    let root = volume.fs.root();
    let caller = Caller::root();
    let (trace, made) = volume.trace(|fs| fs.tmpfile(&caller, root, 0o600));
    follows(&trace, Call::Other, &["nameless"], "tmpfile");
    let ino = made.unwrap().ino;
    let (trace, _) = volume.trace(|fs| fs.write(&caller, ino, 0, &[7; 5000]));
    follows(&trace, Call::Other, &["write"], "write to it");
    let (trace, _) = volume.trace(|fs| fs.link(&caller, ino, root, b"name"));
    follows(&trace, Call::Other, &["link"], "link of it");
}

#[test]
fn writes_in_place_issue_their_plan() {
    let setup: Vec<Op> = ["mknod /a file 600 0", "write /a 0 #1*9000"]
        .iter()
        .map(|line| line.parse().unwrap())
        .collect();
    let mut volume = Recorded::after(&setup, true);
    let op: Op = "write /a 100 #2*5000".parse().unwrap();
    let mut handles = Handles::new();
    let run = |fs: &PmFs| {
        let done = op.run(fs, &Caller::root(), &mut handles);
        if done.is_ok() { Ok(()) } else { Err(done) }
    };
    let (trace, _) = volume.trace(run);
    let found = follows(&trace, Call::Other, &["overwrite"], "write in place");
    assert_eq!(found.len(), 1);
}

/// A comparison that accepts everything shows nothing: the trace of a call with an event left out, or two stores exchanged,
/// is not its plan.
#[test]
fn a_call_that_leaves_out_a_fence_or_stores_its_commit_word_early_does_not_follow_its_plan() {
    let parse = |line: &str| line.parse::<Op>().unwrap();
    let setup = [
        "mknod /a file 600 0",
        "write /a 0 #1*5000",
        "mknod /b file 600 0",
    ]
    .map(parse);
    let table = Table::read();
    for line in [
        "mknod /c file 600 0",
        "rename /a /b replace",
        "rename /a /b exchange",
        "write /a 10 #2*9000",
        "rename /a /c replace",
    ] {
        let op = parse(line);
        let mut volume = Recorded::after(&setup, false);
        let mut handles = Handles::new();
        let run = |fs: &PmFs| {
            let done = op.run(fs, &Caller::root(), &mut handles);
            if done.is_ok() { Ok(()) } else { Err(done) }
        };
        let (trace, _) = volume.trace(run);
        let agrees = |trace: &Trace| {
            let found = groups(trace, Call::of(line));
            found.is_ok_and(|found| {
                plans_of(&op)
                    .iter()
                    .any(|plan| table.compare(plan, &found).is_ok())
            })
        };
        assert!(agrees(&trace), "{line}");
        let events = trace.events();
        for (index, event) in events.iter().enumerate() {
            if *event == Event::Fence {
                assert!(
                    !agrees(&trace.without(index)),
                    "{line} without event {index}"
                );
            }
        }
        // A line's last word is its commit word, but where it holds times alone. Stored first, it is too early.
        let mut refused = 0;
        for (last, event) in events.iter().enumerate() {
            let Event::Store { at, .. } = *event else {
                continue;
            };
            let same = |event: &Event| matches!(event, Event::Store { at: other, .. } if other / 64 == at / 64);
            let begin = events[..last].iter().rposition(|e| *e == Event::Fence);
            let begin = begin.map_or(0, |fence| fence + 1);
            if let Some(first) = events[begin..last].iter().position(same) {
                let mut order = events.to_vec();
                let commit = order.remove(last);
                order.insert(begin + first, commit);
                let mut changed = Trace::new(trace.base().to_vec());
                order.into_iter().for_each(|event| changed.push(event, 0));
                refused += u32::from(!agrees(&changed));
            }
        }
        assert!(refused > 0, "{line} in any order");
    }
    steadfast_testkit::caught("pm_plan.fence");
    steadfast_testkit::caught("pm_plan.commit_word");
}
