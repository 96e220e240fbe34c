//! A fence, a write-back or the order of a line left out of the trace of a call: the exploration finds each.

use super::explore::{Recorded, Sequence, explore_trace, record};
use std::collections::BTreeMap;
use steadfast_model::workload::small_space;
use steadfast_pm::{Event, LINE_BYTES, Model, Trace};

/// Fault of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    /// A fence is left out.
    Fence,
    /// The write-back of a line is left out.
    WriteBack,
    /// The last store to a line comes before the others.
    LineOrder,
}

fn is_caught(recorded: &Recorded, trace: &Trace) -> bool {
    explore_trace(recorded, trace, Model::Line, 512, 1).is_err()
}

/// The trace with the stores to the line of a write-back in opposite order: the last store is first.
fn reversed(trace: &Trace, write_back: usize) -> Option<Trace> {
    let events = trace.events();
    let Event::WriteBack { line } = events[write_back] else {
        return None;
    };
    let begin = events[..write_back]
        .iter()
        .rposition(|event| matches!(event, Event::Fence | Event::Mark(_)))
        .map_or(0, |fence| fence + 1);
    let stores: Vec<usize> = (begin..write_back)
        .filter(|&index| match events[index] {
            Event::Store { at, .. } => at / LINE_BYTES == line,
            _ => false,
        })
        .collect();
    let (first, last) = (*stores.first()?, *stores.last()?);
    if first == last {
        return None;
    }
    let mut order = events.to_vec();
    let commit = order.remove(last);
    order.insert(first, commit);
    let mut changed = Trace::new(trace.base().to_vec());
    order.into_iter().for_each(|event| changed.push(event, 0));
    Some(changed)
}

/// Calls of which every fence is needed, by a later call if not by themselves: where a crash in a rename is put right by its
/// pointer, the removal of the new name would bring the old one back; where a page or a set of attributes is lost with its
/// commit, nothing happened, but two of them may not be torn apart.
const CALLS: &[&[&str]] = &[
    &["mknod /c file 600 0"],
    &["mkdir /f 755"],
    &["symlink /m d"],
    &["link /a /c"],
    &["unlink /a"],
    &["rmdir /e"],
    &["rename /a /c replace", "unlink /c"],
    &["rename /a /d/x replace", "unlink /d/x"],
    &["rename /e /d/e replace", "rmdir /d/e"],
    &["rename /a /d/x exchange", "unlink /d/x"],
    &["rename /d/x /e/x whiteout", "unlink /e/x"],
    &["write /a 100 #4*50"],
    &["write /a 3000 #5*9000"],
    &["append /a #7*300"],
    &["setattr /a size=0"],
    &["setattr /a perm=600 uid=7"],
    &["write /a 0 #1*16384", "fallocate /a punch 0 16384"],
    // The place of an older set is used again: see `BEFORE`.
    &["setxattr /d/x user.k v2 any"],
];

/// Calls before.
const BEFORE: &[&str] = &["setxattr /d/x user.k v1 any", "removexattr /d/x user.k"];

fn calls() -> Vec<Sequence> {
    let parse = |line: &&str| line.parse().unwrap();
    let (mut setup, _) = small_space();
    setup.extend(BEFORE.iter().map(parse));
    let calls = CALLS.iter().map(|calls| Sequence {
        setup: setup.clone(),
        calls: calls.iter().map(parse).collect(),
    });
    calls.collect()
}

#[test]
fn a_fence_a_write_back_or_the_order_of_a_line_left_out_is_found() {
    let mut caught: BTreeMap<Fault, [u32; 2]> = BTreeMap::new();
    let mut missed = Vec::new();
    for sequence in calls() {
        let recorded = record(&sequence);
        let mut any = false;
        for (index, event) in recorded.trace.events().iter().enumerate() {
            let mut faults = Vec::new();
            match event {
                Event::Fence => faults.push((Fault::Fence, recorded.trace.without(index))),
                Event::WriteBack { .. } => {
                    faults.push((Fault::WriteBack, recorded.trace.without(index)));
                    if let Some(trace) = reversed(&recorded.trace, index) {
                        faults.push((Fault::LineOrder, trace));
                    }
                }
                _ => {}
            }
            for (fault, trace) in faults {
                let found = is_caught(&recorded, &trace);
                caught.entry(fault).or_default()[usize::from(found)] += 1;
                any |= found;
                // Every fence is needed. A line may hold times alone, which need not be in order.
                if fault == Fault::Fence && !found {
                    missed.push(format!("{fault:?} {index} of {}", sequence));
                }
            }
        }
        if !any {
            missed.push(format!("everything of {}", sequence));
        }
    }
    println!("[missed, caught] by kind: {caught:?}");
    assert!(missed.is_empty(), "not found:\n{}", missed.join("\n"));
    assert!(
        caught[&Fault::WriteBack][1] > 20 && caught[&Fault::LineOrder][1] > 10,
        "{caught:?}"
    );
    let faults = caught.keys();
    faults.for_each(|fault| steadfast_testkit::caught_in("pm_trace", fault));
}
