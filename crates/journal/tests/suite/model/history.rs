//! Random histories as values. Their references are resolved when they are carried out
//! ("the third block that lives"), so that any part of a history is a history.

use super::disk::{LARGE_POOL, POOL, STARTS};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

/// Kind of histories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) streams: u32,
    /// Whether histories are longer, on more blocks, and operations change whole blocks more
    /// often than a few bytes.
    pub(crate) large: bool,
}

/// One change of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Bytes of a fixed metadata block.
    Bytes { block: u8, offset: u8, len: u8 },
    /// The newest value of a fixed slot.
    Latest { block: u8, slot: u8 },
    /// Adds to a counter.
    Add { block: u8, slot: u8, delta: i8 },
    /// Sets a counter.
    Set { block: u8, slot: u8 },
    /// Bits of a bitmap.
    Bits {
        block: u8,
        first: u8,
        count: u8,
        value: bool,
    },
    /// Blocks of the pool, written around the log.
    Around { pick: u8, count: u8 },
    /// A block of the pool begins with zeros.
    Zero { pick: u8, meta: bool, fill: bool },
    /// Bytes of a block of the pool that lives.
    Patch { pick: u8, offset: u16, len: u16 },
    /// A block of the pool is freed.
    Free { pick: u8 },
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Op {
        stream: u32,
        acts: Vec<Act>,
        objects: Vec<(u8, bool)>,
        commit: bool,
    },
    Sync {
        stream: u32,
        objects: Vec<u8>,
    },
    SyncAll,
    /// For the operation that was committed `back` before the last.
    Wait {
        back: u8,
    },
    Checkpoint,
    Reclaim,
    /// Closes and opens again.
    Reopen,
    /// Goes on from the state after a crash; `kill`: of the process, with the device's cache alive.
    Crash {
        kill: bool,
        choice: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Index of the initial disk.
    pub(crate) start: usize,
    /// Blocks that it allocates and frees.
    pub(crate) pool: Range<u64>,
    /// Bound of uncommitted data blocks.
    pub(crate) pages_max: u64,
    /// Decides which cuts are looked at.
    pub(crate) choice: u64,
    pub(crate) steps: Vec<Step>,
}

fn act(shape: Shape) -> impl Strategy<Value = Act> {
    let large = if shape.large { 12 } else { 1 };
    let block = 0..4u8;
    prop_oneof![
        6 => (block.clone(), 0..120u8, 1..12u8)
            .prop_map(|(block, offset, len)| Act::Bytes { block, offset, len }),
        2 => (block.clone(), 0..3u8).prop_map(|(block, slot)| Act::Latest { block, slot }),
        2 => (block.clone(), 0..3u8, any::<i8>())
            .prop_map(|(block, slot, delta)| Act::Add { block, slot, delta }),
        1 => (block.clone(), 0..3u8).prop_map(|(block, slot)| Act::Set { block, slot }),
        2 => (block, 0..60u8, 1..5u8, any::<bool>())
            .prop_map(|(block, first, count, value)| Act::Bits { block, first, count, value }),
        4 => (any::<u8>(), 1..4u8).prop_map(|(pick, count)| Act::Around { pick, count }),
        2 + large => (any::<u8>(), any::<bool>(), prop::bool::weighted(if shape.large { 0.9 } else { 0.5 }))
            .prop_map(|(pick, meta, fill)| Act::Zero { pick, meta, fill }),
        3 => (any::<u8>(), 0..4000u16, 1..100u16)
            .prop_map(|(pick, offset, len)| Act::Patch { pick, offset, len }),
        large => any::<u8>().prop_map(|pick| Act::Patch { pick, offset: 0, len: 4096 }),
        4 => any::<u8>().prop_map(|pick| Act::Free { pick }),
    ]
}

fn step(shape: Shape) -> impl Strategy<Value = Step> {
    let streams = 0..shape.streams;
    // The log fills only if little happens in between.
    let rare = |often| if shape.large { 1 } else { often };
    let objects = vec((0..6u8, any::<bool>()), 0..2);
    let named = vec(0..6u8, 0..2);
    let acts = if shape.large { 3..8 } else { 1..5 };
    prop_oneof![
        if shape.large { 50 } else { 20 } => (streams.clone(), vec(act(shape), acts), objects, prop::bool::weighted(0.93))
            .prop_map(|(stream, acts, objects, commit)| Step::Op { stream, acts, objects, commit }),
        rare(6) => (streams, named).prop_map(|(stream, objects)| Step::Sync { stream, objects }),
        if shape.large { 3 } else { 1 } => Just(Step::SyncAll),
        rare(2) => (0..6u8).prop_map(|back| Step::Wait { back }),
        rare(3) => Just(Step::Checkpoint),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Reopen),
        rare(2) => (prop::bool::weighted(0.4), any::<u64>())
            .prop_map(|(kill, choice)| Step::Crash { kill, choice }),
    ]
}

/// Histories; they shrink by leaving out and simplifying steps.
pub(crate) fn histories(shape: Shape) -> impl Strategy<Value = History> {
    let pages = prop_oneof![Just(1000u64), Just(4u64)];
    let steps = vec(step(shape), 1..if shape.large { 70 } else { 40 });
    let pool = if shape.large { LARGE_POOL } else { POOL };
    (0..STARTS.len(), pages, any::<u64>(), steps).prop_map(
        move |(start, pages_max, choice, steps)| History {
            start,
            pool: pool.clone(),
            pages_max,
            choice,
            steps,
        },
    )
}
