//! The fencing protocol, explored as it ships: `steadfast_store::protocol` under a store and a network that delay, repeat,
//! reorder and lose requests as they may.
//!
//! `all_states` visits every state within some sizes; `walks` goes on at random with everything at once. Each planted fault is
//! found, and the steps that lead to it are printed: `cargo test -p steadfast-store-explore -- --nocapture`.
//! `STEADFAST_LONG=1` raises the sizes to two writers with three epochs and three writers with two, up to 10^8 states each,
//! and the walks to 10^8 steps.
//!
//! Reductions of the searches that visit all states. Walks do without them.
//! * *A crash is no step.* A writer that takes no more steps has crashed, one that takes them later was paused. The machine that
//!   starts again is the next writer, with a new nonce.
//! * *Symmetry.* Writers start in order: before they start they are the same.
//! * *Effect and answer are one step.* Acknowledgements are held against all openings, earlier and later ones, so their moment
//!   does not matter. Lost answers are steps of their own.
//! * *A read whose answer cannot change is answered at once*: that of a slot which exists and is not about to be deleted.
//! * *Dead requests are forgotten*: a swap from a version that `head` has left.
//! * *Hashes for states*: 64 bits each.

#![allow(clippy::panic, reason = "a test that fails says why")]

mod faults;
mod judge;
mod search;
mod steps;
mod world;

use search::Seen;
use world::Bounds;

fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

/// Fails with the steps that lead to a violation.
fn holds(name: &str, seen: &Seen) {
    println!(
        "{name}: {} states{}",
        seen.states,
        if seen.all { ", all" } else { "" }
    );
    if let Some(found) = &seen.found {
        panic!("{name}: {}\n    {}", found.what, found.steps.join("\n    "));
    }
}

/// Two writers, with a checkpoint of each and its collection.
fn pair(epochs: u8) -> Bounds {
    Bounds {
        checkpoints: 1,
        merged: true,
        ..Bounds::new(2, epochs)
    }
}

/// Three writers, and all there is but clocks and caches.
fn everything() -> Bounds {
    Bounds {
        checkpoints: 1,
        data: true,
        calls: 2,
        edits: 1,
        sweeps: 1,
        unknowns: 2,
        doubles: 1,
        ..Bounds::new(3, 2)
    }
}

/// Leases, and readers of retired objects.
fn clocked() -> Bounds {
    Bounds {
        unknowns: 1,
        ticks: 8,
        ..Bounds::new(2, 1)
    }
}

/// Leases that are renewed by reads of `head` as well, beside checkpoints.
fn looking() -> Bounds {
    Bounds {
        checkpoints: 1,
        looks: 2,
        ..clocked()
    }
}

/// A machine with a cache that comes back, maybe after somebody else.
fn tailed() -> Bounds {
    Bounds {
        tail: true,
        ..Bounds::new(3, 2)
    }
}

#[test]
fn all_states_of_two_writers() {
    let trouble = |unknowns, doubles, bounds| Bounds {
        unknowns,
        doubles,
        ..bounds
    };
    for (name, bounds) in [
        (
            "one epoch, two lost answers, one repetition",
            trouble(2, 1, pair(1)),
        ),
        ("two epochs, one lost answer", trouble(1, 0, pair(2))),
        ("two epochs, one repetition", trouble(0, 1, pair(2))),
        ("three epochs", pair(3)),
        (
            "a snapshot meanwhile",
            Bounds {
                edits: 1,
                ..pair(1)
            },
        ),
        (
            "data, calls, a sweep",
            Bounds {
                data: true,
                calls: 2,
                sweeps: 1,
                ..pair(2)
            },
        ),
    ] {
        let seen = search::explore(&bounds, u64::MAX);
        holds(name, &seen);
        assert!(seen.all);
    }
}

#[test]
fn all_states_of_three_writers() {
    for (name, bounds) in [
        (
            "one epoch, checkpoints",
            Bounds {
                lives: 3,
                ..pair(1)
            },
        ),
        (
            "the first machine returns with its cache",
            Bounds {
                merged: true,
                ..tailed()
            },
        ),
    ] {
        let seen = search::explore(&bounds, u64::MAX);
        holds(name, &seen);
        assert!(seen.all);
    }
}

#[test]
fn walks_with_everything_at_once() {
    let clocks = Bounds {
        checkpoints: 1,
        ..clocked()
    };
    let readers = Bounds {
        epochs: 2,
        checkpoints: 2,
        ..clocked()
    };
    for (name, bounds) in [
        ("three writers", everything()),
        ("leases", clocks),
        ("leases of idle writers", looking()),
        ("readers", readers),
        ("caches", tailed()),
    ] {
        let walks = if long() { 500_000 } else { 1_500 };
        holds(name, &search::walk(&bounds, walks, 120));
    }
}

/// The long tier: sizes that the short one has no time for, up to 10^8 states each.
fn larger(name: &str, bounds: &Bounds) {
    if long() {
        holds(name, &search::explore(bounds, 100_000_000));
    } else {
        steadfast_testkit::skipped!("STEADFAST_LONG=1 visits up to 10^8 states");
    }
}

#[test]
fn larger_two_writers_three_epochs() {
    let bounds = Bounds {
        unknowns: 1,
        doubles: 1,
        ..pair(3)
    };
    larger("two writers, three epochs", &bounds);
}

#[test]
fn larger_three_writers_two_epochs() {
    let bounds = Bounds {
        lives: 3,
        unknowns: 1,
        doubles: 1,
        ..pair(2)
    };
    larger("three writers, two epochs", &bounds);
}

#[test]
fn larger_a_snapshot_and_lost_answers() {
    let bounds = Bounds {
        edits: 1,
        unknowns: 2,
        ..pair(2)
    };
    larger("a snapshot, lost answers", &bounds);
}

#[test]
fn larger_a_clock() {
    let bounds = Bounds {
        merged: true,
        checkpoints: 1,
        ..clocked()
    };
    larger("a clock", &bounds);
}
