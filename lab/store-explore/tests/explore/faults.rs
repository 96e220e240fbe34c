//! Each planted fault, the world in which it is found, and the violated condition.

use steadfast_store::protocol::{Fault, Faults};

use crate::search::{self, Found};
use crate::world::{Bounds, Outer};
use crate::{clocked, everything, looking, pair, tailed};

/// Two writers with two epochs; judged by lost acknowledgements.
fn losses() -> Bounds {
    Bounds {
        losses: true,
        ..pair(2)
    }
}

/// Searches all states first, then walks.
fn found(name: &str, bounds: &Bounds) -> Found {
    let merged = Bounds {
        merged: true,
        ..*bounds
    };
    let mut seen = search::explore(&merged, 100_000);
    if seen.found.is_none() {
        let walked = Bounds {
            merged: false,
            ..*bounds
        };
        seen = search::walk(&walked, 20_000, 120);
    }
    let Some(found) = seen.found else {
        panic!("{name}: not found in {} steps", seen.states);
    };
    println!("{name}: {}\n    {}", found.what, found.steps.join("\n    "));
    found
}

/// Without the fault, the same search must find nothing: then it is the fault that was found.
fn sound(name: &str, bounds: &Bounds) {
    let sound = Bounds {
        faults: Faults::default(),
        outer: None,
        ..*bounds
    };
    let merged = Bounds {
        merged: true,
        ..sound
    };
    let walked = Bounds {
        merged: false,
        ..sound
    };
    for seen in [
        search::explore(&merged, 20_000),
        search::walk(&walked, 200, 120),
    ] {
        if let Some(found) = seen.found {
            panic!(
                "{name}: without the fault: {}\n    {}",
                found.what,
                found.steps.join("\n    ")
            );
        }
    }
}

macro_rules! planted {
    ($($test:ident: $fault:expr, $bounds:expr, $breaks:literal;)*) => {$(
        #[test]
        fn $test() {
            let bounds = $fault.plant($bounds);
            let found = found(stringify!($test), &bounds);
            assert!(found.what.contains($breaks), "{}", found.what);
            sound(stringify!($test), &bounds);
            steadfast_testkit::caught_in($fault.part(), &$fault);
        }
    )*};
}

trait Plant {
    /// Part of `docs/faults.md` that lists it.
    fn part(self) -> &'static str;
    fn plant(self, bounds: Bounds) -> Bounds;
}

impl Plant for Fault {
    fn part(self) -> &'static str {
        "protocol"
    }

    fn plant(self, bounds: Bounds) -> Bounds {
        Bounds {
            faults: Faults::only(self),
            ..bounds
        }
    }
}

impl Plant for Outer {
    fn part(self) -> &'static str {
        "explore"
    }

    fn plant(self, bounds: Bounds) -> Bounds {
        Bounds {
            outer: Some(self),
            ..bounds
        }
    }
}

planted! {
    no_seal: Fault::NoSeal, losses(), "acknowledged";
    seal_deleted: Fault::SealDeleted, losses(), "acknowledged";
    no_claim: Fault::NoClaim, losses(), "head is malformed";
    checkpoint_without_swap: Fault::CheckpointWithoutSwap, losses(), "is not there";
    slot_deleted_early: Fault::SlotDeletedEarly, losses(), "is not there";
    acknowledged_out_of_order: Fault::AcknowledgedOutOfOrder, Bounds { checkpoints: 0, ..losses() }, "acknowledged";
    foreign_taken_for_own: Fault::ForeignTakenForOwn, losses(), "acknowledged";
    own_taken_for_foreign: Fault::OwnTakenForForeign, Bounds { unknowns: 1, doubles: 1, ..pair(2) }, "stopped without reason";
    deleted_before_swap: Fault::DeletedBeforeSwap, losses(), "is not there";
    data_named_early: Fault::DataNamedEarly, Bounds { data: true, ..losses() }, "names data that has not landed";
    root_named_early: Fault::RootNamedEarly, losses(), "is not there";
    snapshot_not_pinned: Fault::SnapshotNotPinned, Bounds { edits: 1, checkpoints: 2, ..losses() }, "is not there";
    cache_tail_under_a_new_term: Fault::TailUnderNewTerm, tailed(), "mixture";
    lease_from_answer: Fault::LeaseFromAnswer, clocked(), "still serves reads";
    lease_from_repeated_attempt: Outer::LeaseFromRepeat, clocked(), "still serves reads";
    lease_waited_for_from_claim: Outer::WaitFromClaim, clocked(), "still serves reads";
    lease_not_waited_for: Outer::NotWaited, clocked(), "still serves reads";
    lease_of_a_look_from_its_answer: Fault::LeaseFromAnswer, Bounds { epochs: 0, ..looking() }, "still serves reads";
    a_look_taken_for_an_answer: Outer::LookAnswers, Bounds { ticks: 0, ..looking() }, "stopped without reason";
    reader_outlived: Fault::ReaderOutlived, Bounds { lives: 1, epochs: 2, checkpoints: 2, ..clocked() }, "while a reader may use it";
    coarse_clock_trusted: Fault::CoarseClockTrusted, Bounds { lives: 1, epochs: 2, checkpoints: 2, unknowns: 0, ticks: 3, ..clocked() }, "while a reader may use it";
    claim_known_by_term_alone: Fault::NonceRepeated, everything(), "both claimed";
    nonce_repeated: Outer::NonceShared, Bounds { lives: 3, ..losses() }, "opened twice";
    stale_list_believed: Fault::StaleListBelieved, losses(), "acknowledged";
    unconditional_put: Outer::UnconditionalPut, losses(), "acknowledged";
    etag_repeated: Outer::EtagRepeated, Bounds { checkpoints: 2, doubles: 1, ..losses() }, "is not there";
    note_lost: Outer::NoteLost, everything(), "done twice";
    sweep_takes_a_seal: Outer::SweepTakesSeal, Bounds { sweeps: 1, ..losses() }, "acknowledged";
}
