//! The states that a power cut may leave, in the order of reports: prefixes; one effect lost; one early; pairs lost;
//! one write torn; then random samples, by a seed.
//!
//! A tree is kept once, with the simplest way to it, and with the latest moment at which it can arise: that moment
//! demands the most. [`States::coverage`] says what was enumerated in full, and what was sampled.

use crate::effects::{Bits, Change, Disk, Effects};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Way in which a state came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Way {
    /// The first calls, all of them.
    Prefix,
    /// A prefix without one effect and what builds on it.
    Lost,
    /// A prefix and one later effect with what it builds on.
    Early,
    /// A prefix without two effects.
    Pair,
    /// A part of one write.
    Torn,
    /// At random.
    Sample,
}

impl Way {
    /// All, in the order of reports.
    pub const ALL: [Way; 6] = [
        Way::Prefix,
        Way::Lost,
        Way::Early,
        Way::Pair,
        Way::Torn,
        Way::Sample,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Prefix => "prefixes",
            Way::Lost => "one effect lost",
            Way::Early => "one effect early",
            Way::Pair => "two effects lost",
            Way::Torn => "one write torn",
            Way::Sample => "samples",
        }
    }
}

/// A part of an effect that is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Tear {
    /// The effect.
    pub effect: usize,
    /// The first byte that is there, and the first after it that is not.
    pub kept: (u64, u64),
}

/// One state.
#[derive(Clone, Debug)]
pub struct State {
    /// Its way.
    pub way: Way,
    /// The durable effects.
    pub bits: Bits,
    /// A durable part of one more effect.
    pub tear: Option<Tear>,
    /// Hash of the tree.
    pub digest: u128,
    /// The first and the last moment at which it can arise, in steps that returned.
    pub moments: (usize, usize),
}

/// Limits of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of states of one way.
    pub each_max: usize,
    /// Number of random states.
    pub samples: usize,
    /// Seed of random choices.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            each_max: 20_000,
            samples: 500,
            seed: 1,
        }
    }
}

/// Coverage of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of sets of effects that were formed.
    pub formed: usize,
    /// Number of trees that no earlier way gave.
    pub trees: usize,
    /// Whether nothing of this way was left out.
    pub whole: bool,
}

/// The states of a run under a model.
#[derive(Debug)]
pub struct States {
    /// Different trees, in the order of reports.
    pub all: Vec<State>,
    /// Coverage of each way.
    pub coverage: Vec<(Way, Coverage)>,
}

/// A small generator: the same seed gives the same states.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Chance {
        Chance(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as usize
    }
}

/// Forms trees from states: prefixes are kept at intervals, so that few effects are applied anew.
pub struct Former<'a> {
    effects: &'a Effects,
    every: usize,
    kept: Vec<Disk>,
}

impl<'a> Former<'a> {
    /// For the states of these effects.
    #[must_use]
    pub fn new(effects: &'a Effects) -> Former<'a> {
        let every = effects.all.len().isqrt().max(16);
        let mut disk = effects.base.clone();
        let mut kept = vec![disk.clone()];
        for (i, effect) in effects.all.iter().enumerate() {
            for change in &effect.changes {
                disk.apply(change);
            }
            if (i + 1) % every == 0 {
                kept.push(disk.clone());
            }
        }
        Former {
            effects,
            every,
            kept,
        }
    }

    /// The tree of one state, without keeping prefixes: for large files each costs a copy.
    #[must_use]
    pub fn once(effects: &'a Effects, bits: &Bits, tear: Option<Tear>) -> Disk {
        let former = Former {
            effects,
            every: usize::MAX,
            kept: vec![effects.base.clone()],
        };
        former.disk(bits, tear)
    }

    /// The tree of a state.
    #[must_use]
    pub fn disk(&self, bits: &Bits, tear: Option<Tear>) -> Disk {
        let all = &self.effects.all;
        let missing = (0..all.len()).find(|i| !bits.get(*i)).unwrap_or(all.len());
        let start = (missing / self.every).min(self.kept.len() - 1);
        let mut disk = self.kept[start].clone();
        let from = start * self.every;
        let last = bits
            .last()
            .map_or(0, |l| l + 1)
            .max(tear.map_or(0, |t| t.effect + 1));
        for (i, effect) in all.iter().enumerate().take(last).skip(from) {
            let torn = tear.filter(|t| t.effect == i);
            if !bits.get(i) && torn.is_none() {
                continue;
            }
            for change in &effect.changes {
                match torn {
                    None => disk.apply(change),
                    Some(tear) => {
                        if let Some(part) = torn_change(change, tear) {
                            disk.apply(&part);
                        }
                    }
                }
            }
        }
        disk
    }
}

fn torn_change(change: &Change, tear: Tear) -> Option<Change> {
    if let Change::Zero { ino, offset, len } = change {
        let end = offset.saturating_add(*len);
        let clip = |at: u64| at.clamp(*offset, end);
        let (from, to) = (clip(tear.kept.0), clip(tear.kept.1));
        return Some(Change::Zero {
            ino: *ino,
            offset: from,
            len: to - from,
        });
    }
    let Change::Data {
        ino,
        offset,
        bytes,
        range,
    } = change
    else {
        return None;
    };
    let clip = |at: u64| (at.saturating_sub(*offset) as usize).clamp(range.0, range.1);
    Some(Change::Data {
        ino: *ino,
        offset: *offset,
        bytes: Arc::clone(bytes),
        range: (clip(tear.kept.0), clip(tear.kept.1)),
    })
}

struct Collector<'a> {
    effects: &'a Effects,
    former: Former<'a>,
    jumps: bool,
    /// Hashes of sets that were formed.
    sets: HashSet<u64>,
    trees: HashMap<u128, usize>,
    states: Vec<State>,
    coverage: Coverage,
    way: Way,
}

impl Collector<'_> {
    fn add(&mut self, bits: Bits, tear: Option<Tear>) {
        let mut hasher = DefaultHasher::new();
        (&bits, tear).hash(&mut hasher);
        if !self.sets.insert(hasher.finish()) {
            return;
        }
        let Some(mut moments) = self.effects.moments(&bits) else {
            return;
        };
        if let Some(tear) = tear {
            moments.0 = moments.0.max(self.effects.all[tear.effect].step);
            if moments.1 < moments.0 {
                return;
            }
        }
        self.coverage.formed += 1;
        let digest = self.former.disk(&bits, tear).digest();
        if let Some(known) = self.trees.get(&digest) {
            let known = &mut self.states[*known];
            // The latest moment demands the most; it is kept with the way to it.
            if known.moments.1 < moments.1 {
                known.moments.1 = moments.1;
                (known.bits, known.tear) = (bits, tear);
                known.moments.0 = known.moments.0.min(moments.0);
            }
            return;
        }
        self.trees.insert(digest, self.states.len());
        self.coverage.trees += 1;
        let way = self.way;
        self.states.push(State {
            way,
            bits,
            tear,
            digest,
            moments,
        });
    }

    /// A prefix without these effects and what builds on them; effects that syncs write ahead of the order stay.
    fn without(&self, steps: usize, lost: &[usize]) -> Option<Bits> {
        let mut bits = self.effects.prefix(steps);
        let count = self.effects.upto[steps];
        let demanded = &self.effects.demanded[steps.saturating_sub(1)];
        // A sync in flight has written all that it names, or nothing: its log becomes valid at once.
        let named = &self.effects.demanded[steps];
        let named = match lost.iter().any(|e| named.get(*e)) {
            true => demanded,
            false => named,
        };
        for e in lost {
            if *e >= count || demanded.get(*e) {
                return None;
            }
            bits.remove(*e);
            for f in e + 1..count {
                let effect = &self.effects.all[f];
                let jumped = self.jumps && named.get(f) && !effect.cells.get(*e);
                if effect.before.get(*e) && !jumped {
                    bits.remove(f);
                }
            }
        }
        Some(bits)
    }

    fn finish_way(&mut self, whole: bool, out: &mut Vec<(Way, Coverage)>) {
        self.coverage.whole = whole;
        out.push((self.way, std::mem::take(&mut self.coverage)));
    }
}

/// Prefix lengths after which an effect that begins at `from` may still be lost: those where the prefix changes, or
/// the effects that syncs write ahead of the order.
fn lengths(effects: &Effects, jumps: bool, from: usize, lost: usize) -> Vec<usize> {
    let synced = |t: usize| jumps && !Arc::ptr_eq(&effects.demanded[t], &effects.demanded[t - 1]);
    let all = from + 1..=effects.steps();
    all.take_while(|t| !effects.demanded[t - 1].get(lost))
        .filter(|t| effects.upto[*t] != effects.upto[t - 1] || synced(*t))
        .collect()
}

/// At most `max` of them, the first half from the beginning, the others evenly spread.
fn thin(all: Vec<usize>, max: usize) -> (Vec<usize>, bool) {
    if all.len() <= max {
        return (all, true);
    }
    let near = max / 2;
    let rest = all.len() - near;
    let far = max - near;
    let mut kept = all[..near].to_vec();
    kept.extend((0..far).map(|i| all[near + i * rest / far]));
    if let (Some(last), Some(slot)) = (all.last(), kept.last_mut()) {
        *slot = *last;
    }
    (kept, false)
}

/// The states of a run. `jumps`: see [`crate::models::Model::sync_jumps`].
#[must_use]
pub fn enumerate(effects: &Effects, jumps: bool, tear: u64, limits: Limits) -> States {
    let mut c = Collector {
        effects,
        former: Former::new(effects),
        jumps,
        sets: HashSet::new(),
        trees: HashMap::new(),
        states: Vec::new(),
        coverage: Coverage::default(),
        way: Way::Prefix,
    };
    let n = effects.all.len();
    let mut coverage = Vec::new();
    for t in 0..=effects.steps() {
        c.add(effects.prefix(t), None);
    }
    // A call with several effects is cut inside, too.
    for i in 0..n {
        c.add(Bits::first(i), None);
    }
    c.finish_way(true, &mut coverage);

    c.way = Way::Lost;
    let share = (limits.each_max / n.max(1)).max(3);
    let mut whole = true;
    for e in 0..n {
        let (at, all) = thin(lengths(effects, jumps, effects.all[e].step, e), share);
        whole &= all;
        for t in at {
            if let Some(bits) = c.without(t, &[e]) {
                c.add(bits, None);
            }
        }
    }
    c.finish_way(whole, &mut coverage);

    c.way = Way::Early;
    whole = true;
    for e in 0..n {
        let effect = &effects.all[e];
        let from = (0..=effect.step).filter(|t| *t == 0 || effects.upto[*t] != effects.upto[t - 1]);
        let (at, all) = thin(from.rev().collect(), share);
        whole &= all;
        for t in at {
            let mut bits = effects.prefix(t);
            bits.add(&effect.before);
            bits.insert(e);
            c.add(bits, None);
        }
    }
    c.finish_way(whole, &mut coverage);

    c.way = Way::Pair;
    whole = true;
    let mut formed = 0;
    'pairs: for e in 0..n {
        for f in e + 1..n {
            if effects.all[f].before.get(e) {
                continue;
            }
            let (at, all) = thin(lengths(effects, jumps, effects.all[f].step, f), 8);
            whole &= all;
            for t in at {
                formed += 1;
                if formed > limits.each_max {
                    whole = false;
                    break 'pairs;
                }
                if let Some(bits) = c.without(t, &[e, f]) {
                    c.add(bits, None);
                }
            }
        }
    }
    c.finish_way(whole, &mut coverage);

    c.way = Way::Torn;
    whole = tears(&mut c, tear, share);
    c.finish_way(whole, &mut coverage);

    c.way = Way::Sample;
    let mut chance = Chance::new(limits.seed);
    for _ in 0..if n > 2 { limits.samples } else { 0 } {
        let t = 1 + chance.below(effects.steps());
        let count = effects.upto[t];
        let lost: Vec<usize> = (0..2 + chance.below(6))
            .map(|_| chance.below(count))
            .collect();
        let open = |e: &usize| *e < count && !effects.demanded[t - 1].get(*e);
        let lost: Vec<usize> = lost.into_iter().filter(open).collect();
        if let Some(bits) = c.without(t, &lost) {
            c.add(bits, None);
        }
    }
    c.finish_way(false, &mut coverage);
    States {
        all: c.states,
        coverage,
    }
}

/// Each write torn at each boundary, in the prefix before it and in those after it.
fn tears(c: &mut Collector<'_>, tear: u64, share: usize) -> bool {
    let effects = c.effects;
    let mut whole = true;
    for (e, effect) in effects.all.iter().enumerate() {
        let Some((from, to)) = effect.part.filter(|_| effect.tears) else {
            continue;
        };
        let first = (from / tear + 1) * tear;
        let inside: Vec<usize> = (first..to)
            .step_by(tear.max(1) as usize)
            .map(|b| b as usize)
            .collect();
        let (cuts, all) = thin(inside, 8);
        whole &= all;
        let (at, all) = thin(
            lengths(effects, c.jumps, effect.step, e),
            (share / 8).max(2),
        );
        whole &= all;
        for cut in cuts {
            for kept in [(from, cut as u64), (cut as u64, to)] {
                let tear = Some(Tear { effect: e, kept });
                let mut before = effects.prefix(effect.step);
                before.add(&effect.before);
                c.add(before, tear);
                for t in &at {
                    if let Some(bits) = c.without(*t, &[e]) {
                        c.add(bits, tear);
                    }
                }
            }
        }
    }
    whole
}
