//! Visits all states, or walks at random; shortens the path to a violation.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashSet;

use crate::steps::Step;
use crate::world::{Bounds, World};

/// A violation and the steps that lead to it.
pub(crate) struct Found {
    pub(crate) what: String,
    pub(crate) steps: Vec<String>,
}

/// Counts of a search.
pub(crate) struct Seen {
    pub(crate) states: u64,
    /// All states were visited.
    pub(crate) all: bool,
    pub(crate) found: Option<Found>,
}

fn fingerprint(state: &FixedState, world: &World) -> u64 {
    state.hash_one(world)
}

/// Depth first. A state is known by 64 bits of its hash: among 10^8 states, two are taken for one with probability 3 in 10,000.
pub(crate) fn explore(bounds: &Bounds, limit: u64) -> Seen {
    let hasher = FixedState::with_seed(23);
    let world = World::new(bounds);
    let mut visited: HashSet<u64, FixedState> = HashSet::with_hasher(FixedState::with_seed(0));
    visited.insert(fingerprint(&hasher, &world));
    let steps = world.steps(bounds);
    let mut stack = vec![(world, steps, None)];
    while let Some((world, steps, _)) = stack.last_mut() {
        let Some(step) = steps.pop() else {
            stack.pop();
            continue;
        };
        let mut next = world.clone();
        next.apply(bounds, step);
        if let Some(what) = next.wrong.take() {
            let path: Vec<Step> = stack
                .iter()
                .filter_map(|(_, _, by)| *by)
                .chain([step])
                .collect();
            return Seen {
                states: visited.len() as u64,
                all: false,
                found: Some(shorten(bounds, what, path)),
            };
        }
        if visited.insert(fingerprint(&hasher, &next)) {
            if visited.len() as u64 >= limit {
                return Seen {
                    states: limit,
                    all: false,
                    found: None,
                };
            }
            let steps = next.steps(bounds);
            stack.push((next, steps, Some(step)));
        }
    }
    Seen {
        states: visited.len() as u64,
        all: true,
        found: None,
    }
}

/// A small generator: the same seed, the same walk.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound.max(1) as u64) as usize
    }
}

/// One of the steps. In each walk, some requests are slow: so long delays come up, not only orders of neighbours.
fn choose(world: &World, random: &mut Random, steps: Vec<Step>, seed: u64) -> Option<Step> {
    let slow = |step: Step| match step {
        Step::Execute(i) | Step::Deliver(i) => {
            let hash = FixedState::with_seed(seed).hash_one(&world.flights[i].request);
            hash.is_multiple_of(4)
        }
        _ => false,
    };
    for _ in 0..8 {
        let step = *steps.get(random.below(steps.len()))?;
        if !slow(step) {
            return Some(step);
        }
    }
    steps.get(random.below(steps.len())).copied()
}

/// Random walks. After each, the network recovers and one more writer starts: it must open with all that was acknowledged.
pub(crate) fn walk(bounds: &Bounds, walks: u64, length: usize) -> Seen {
    let mut states = 0;
    for seed in 1..=walks {
        let mut random = Random::new(seed);
        let mut world = World::new(bounds);
        let mut path = Vec::new();
        let drained = Bounds {
            lives: bounds.lives + 1,
            ticks: bounds.ticks * 3,
            ..*bounds
        };
        let mut healed = false;
        loop {
            let step = if path.len() < length {
                choose(&world, &mut random, world.steps(bounds), seed)
            } else {
                None
            };
            let step = match step {
                Some(step) => step,
                None => match world.work(&drained) {
                    Some(step) => step,
                    None if !healed => {
                        healed = true;
                        Step::Start
                    }
                    None => break,
                },
            };
            world.apply(&drained, step);
            path.push(step);
            states += 1;
            if path.len() > length + 2000 {
                world.wrong.get_or_insert_with(|| {
                    "the network recovered, and the writers do not come to rest".to_owned()
                });
            }
            if let Some(what) = world.wrong.take() {
                return Seen {
                    states,
                    all: false,
                    found: Some(shorten(&drained, what, path)),
                };
            }
            if healed
                && path.len() > length
                && world.lives.last().is_some_and(|life| life.opened.is_some())
                && world.work(&drained).is_none()
            {
                break;
            }
        }
        if world.lives.last().is_none_or(|life| life.opened.is_none()) {
            let what = "the network recovered, and the last writer did not open".to_owned();
            return Seen {
                states,
                all: false,
                found: Some(shorten(&drained, what, path)),
            };
        }
    }
    Seen {
        states,
        all: false,
        found: None,
    }
}

/// Leaves out steps as long as the violation stays.
fn shorten(bounds: &Bounds, what: String, path: Vec<Step>) -> Found {
    let mut world = World::new(bounds);
    let mut steps = Vec::new();
    for step in path {
        steps.push(world.describe(step));
        world.apply(bounds, step);
    }
    let mut best = Found { what, steps };
    let mut at = best.steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = best.steps.clone();
        fewer.remove(at);
        if let Some(found) = replay(bounds, &fewer) {
            at = at.min(found.steps.len());
            best = found;
        }
    }
    best
}

/// Takes those of the steps that are possible. None if nothing goes wrong.
fn replay(bounds: &Bounds, wanted: &[String]) -> Option<Found> {
    let mut world = World::new(bounds);
    let mut taken = Vec::new();
    for text in wanted {
        let steps = world.steps(bounds);
        let Some(step) = steps
            .into_iter()
            .find(|step| world.describe(*step) == *text)
        else {
            continue;
        };
        taken.push(text.clone());
        world.apply(bounds, step);
        if let Some(what) = world.wrong.take() {
            return Some(Found { what, steps: taken });
        }
    }
    None
}
