//! The states that a power cut may leave, in the order of reports: prefixes; one effect lost; one early; pairs lost;
//! one write torn; then random samples, by a seed.
//!
//! A tree is kept once, with the simplest way to it, and with the latest moment at which it can arise: that moment
//! demands the most. [`States::coverage`] says what was enumerated in full, and what was sampled.

use crate::effects::{Bits, Change, Disk, Effects, Ino};
use std::collections::{BTreeSet, HashMap, HashSet};
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
    /// The way in which the time was over: nothing was enumerated after that.
    pub ended: Option<Way>,
}

/// Of a run with more states of one way than this, each effect is lost, early or torn in fewer ways, whatever was asked for.
const LONG: usize = 20_000;
/// Most boundaries at which one write is torn.
const CUTS_MAX: usize = 8;

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

/// Forms trees from states: prefixes are kept at intervals, so that few effects are applied anew. Where a state lacks
/// little of a prefix, it is that prefix with the names and files made anew that the missing effects change: nothing else
/// depends on them.
pub struct Former<'a> {
    effects: &'a Effects,
    every: usize,
    kept: Vec<Disk>,
    /// The effects on each name, and on each inode beside its names; without prefixes there are none.
    names: HashMap<Name<'a>, Vec<usize>>,
    inodes: HashMap<Ino, Vec<usize>>,
}

/// A name in a directory.
type Name<'a> = (Ino, &'a [u8]);

/// What a change acts on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target<'a> {
    Name(Name<'a>),
    Inode(Ino),
}

fn target(change: &Change) -> Target<'_> {
    match change {
        Change::Set { dir, name, .. } | Change::Unset { dir, name, .. } => {
            Target::Name((*dir, name))
        }
        Change::Grow { ino, .. }
        | Change::Resize { ino, .. }
        | Change::Data { ino, .. }
        | Change::Zero { ino, .. }
        | Change::Attr { ino, .. }
        | Change::Xattr { ino, .. } => Target::Inode(*ino),
    }
}

impl<'a> Former<'a> {
    /// For the states of these effects.
    #[must_use]
    pub fn new(effects: &'a Effects) -> Former<'a> {
        let every = effects.all.len().isqrt().max(16);
        let mut disk = effects.base.clone();
        let mut former = Former {
            effects,
            every,
            kept: vec![disk.clone()],
            names: HashMap::new(),
            inodes: HashMap::new(),
        };
        for (i, effect) in effects.all.iter().enumerate() {
            for change in &effect.changes {
                disk.apply(change);
                let on = match target(change) {
                    Target::Name(name) => former.names.entry(name).or_default(),
                    Target::Inode(ino) => former.inodes.entry(ino).or_default(),
                };
                if on.last() != Some(&i) {
                    on.push(i);
                }
            }
            if (i + 1) % every == 0 {
                former.kept.push(disk.clone());
            }
        }
        former
    }

    /// The tree of one state, without keeping prefixes: for large files each costs a copy.
    #[must_use]
    pub fn once(effects: &'a Effects, bits: &Bits, tear: Option<Tear>) -> Disk {
        let former = Former {
            effects,
            every: usize::MAX,
            kept: vec![effects.base.clone()],
            names: HashMap::new(),
            inodes: HashMap::new(),
        };
        former.disk(bits, tear)
    }

    /// The tree of a state.
    #[must_use]
    pub fn disk(&self, bits: &Bits, tear: Option<Tear>) -> Disk {
        let all = &self.effects.all;
        let missing = bits.first_missing().min(all.len());
        let last = bits
            .last()
            .map_or(0, |l| l + 1)
            .max(tear.map_or(0, |t| t.effect + 1));
        let start = (missing / self.every).min(self.kept.len() - 1);
        let gaps = (missing..last).filter(|i| !bits.get(*i)).count();
        if self.names.len() + self.inodes.len() > 0 && gaps * 2 < last.saturating_sub(missing) {
            return self.mended(bits, tear, (start, missing, last));
        }
        let mut disk = self.kept[start].clone();
        for i in start * self.every..last {
            self.apply(&mut disk, i, bits, tear, None);
        }
        disk
    }

    /// Applies what a state has of an effect, or of that what acts on `target`.
    fn apply(
        &self,
        disk: &mut Disk,
        i: usize,
        bits: &Bits,
        tear: Option<Tear>,
        on: Option<Target<'_>>,
    ) {
        let torn = tear.filter(|t| t.effect == i);
        if !bits.get(i) && torn.is_none() {
            return;
        }
        let changes = self.effects.all.get(i).map_or(&[][..], |e| &e.changes);
        for change in changes {
            if on.is_some_and(|on| on != target(change)) {
                continue;
            }
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

    /// The prefix of the first `last` effects, with everything made anew that a missing effect acts on: from the kept
    /// prefix `start` on, where none is missing.
    fn mended(
        &self,
        bits: &Bits,
        tear: Option<Tear>,
        (start, missing, last): (usize, usize, usize),
    ) -> Disk {
        let all = &self.effects.all;
        let near = (last / self.every).min(self.kept.len() - 1);
        let mut disk = self.kept[near].clone();
        for effect in &all[near * self.every..last] {
            effect.changes.iter().for_each(|c| disk.apply(c));
        }
        let before = &self.kept[start];
        let mut done = BTreeSet::new();
        let whole = |i: usize| bits.get(i) && tear.is_none_or(|t| t.effect != i);
        let gaps = (missing..last).filter(|i| !whole(*i));
        for change in gaps.flat_map(|i| &all[i].changes) {
            let on = target(change);
            if !done.insert(on) {
                continue;
            }
            let effects = match on {
                Target::Name(name) => {
                    disk.name(name, before.lookup(name.0, name.1));
                    self.names.get(&name)
                }
                Target::Inode(ino) => {
                    disk.restore(ino, before);
                    self.inodes.get(&ino)
                }
            };
            let effects = effects.map_or(&[][..], Vec::as_slice);
            let first = effects.partition_point(|i| *i < start * self.every);
            for i in effects[first..].iter().take_while(|i| **i < last) {
                self.apply(&mut disk, *i, bits, tear, Some(on));
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
        bytes: bytes.clone(),
        range: (clip(tear.kept.0), clip(tear.kept.1)),
    })
}

struct Collector<'a> {
    effects: &'a Effects,
    former: Former<'a>,
    jumps: bool,
    /// Numbers of steps at which the prefix changes.
    grown: Vec<usize>,
    /// And those at which syncs put something out beyond the order.
    changed: Vec<usize>,
    /// Hashes of sets that were formed.
    sets: HashSet<u64>,
    trees: HashMap<u128, usize>,
    states: Vec<State>,
    coverage: Coverage,
    way: Way,
    over: &'a dyn Fn() -> bool,
    /// The time was over in this way.
    ended: Option<Way>,
}

impl Collector<'_> {
    /// Whether there is no time left.
    fn is_over(&mut self) -> bool {
        if self.ended.is_none() && (self.over)() {
            self.ended = Some(self.way);
        }
        self.ended.is_some()
    }

    fn add(&mut self, bits: Bits, tear: Option<Tear>) {
        if self.is_over() {
            return;
        }
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

    /// Prefix lengths after which an effect that begins at `from` may still be lost: those where the prefix changes, or what
    /// syncs put out beyond the order.
    fn lengths(&self, from: usize, lost: usize) -> &[usize] {
        // Demands only grow.
        let open = |t: &usize| !self.effects.demanded[*t - 1].get(lost);
        let after = self.changed.partition_point(|t| *t <= from);
        let after = &self.changed[after..];
        &after[..after.partition_point(open)]
    }

    fn finish_way(&mut self, whole: bool, out: &mut Vec<(Way, Coverage)>) {
        self.coverage.whole = whole && self.ended.is_none();
        out.push((self.way, std::mem::take(&mut self.coverage)));
    }
}

/// At most `max` of them, the first half from the beginning, the others evenly spread; and whether that is all.
fn thin<T: Copy>(all: &[T], max: usize) -> (Vec<T>, bool) {
    if all.len() <= max {
        return (all.to_vec(), true);
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
    enumerate_until(effects, jumps, tear, limits, &|| false)
}

/// The same until the time is over.
pub(crate) fn enumerate_until(
    effects: &Effects,
    jumps: bool,
    tear: u64,
    limits: Limits,
    over: &dyn Fn() -> bool,
) -> States {
    told(effects, (jumps, tear), limits, LONG, over)
}

/// The same for runs that are long from so many states of one way on.
fn told(
    effects: &Effects,
    (jumps, tear): (bool, u64),
    limits: Limits,
    long: usize,
    over: &dyn Fn() -> bool,
) -> States {
    let grows = |t: &usize| *t == 0 || effects.upto[*t] != effects.upto[*t - 1];
    let synced = |t: &usize| {
        jumps && *t > 0 && !Arc::ptr_eq(&effects.demanded[*t], &effects.demanded[*t - 1])
    };
    let steps = 0..=effects.steps();
    let mut c = Collector {
        effects,
        former: Former::new(effects),
        jumps,
        grown: steps.clone().filter(grows).collect(),
        changed: steps.filter(|t| grows(t) || synced(t)).collect(),
        sets: HashSet::new(),
        trees: HashMap::new(),
        states: Vec::new(),
        coverage: Coverage::default(),
        way: Way::Prefix,
        over,
        ended: None,
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
    // Of a long run each effect is lost at fewer moments.
    let most = limits.each_max.max(long);
    let share = (limits.each_max / n.max(1)).max(3);
    let share = share.min((most / n.max(1)).max(1));
    let mut whole = true;
    for e in 0..n {
        if c.is_over() {
            break;
        }
        let (at, all) = thin(c.lengths(effects.all[e].step, e), share);
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
        if c.is_over() {
            break;
        }
        let effect = &effects.all[e];
        let before = c.grown.partition_point(|t| *t <= effect.step);
        let from: Vec<usize> = c.grown[..before].iter().rev().copied().collect();
        let (at, all) = thin(&from, share);
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
            let (at, all) = thin(c.lengths(effects.all[f].step, f), 8);
            whole &= all;
            for t in at {
                formed += 1;
                if formed > limits.each_max || c.is_over() {
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
    whole = tears(&mut c, tear, share, most);
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
        ended: c.ended,
    }
}

/// Each write torn at each boundary, in the prefix before it and in those after it; of many writes, `most` states.
fn tears(c: &mut Collector<'_>, tear: u64, share: usize, most: usize) -> bool {
    let effects = c.effects;
    let all = effects.all.iter().enumerate();
    let writes = all.filter_map(|(e, effect)| Some((e, effect.part.filter(|_| effect.tears)?)));
    let writes: Vec<(usize, (u64, u64))> = writes.collect();
    let each = most / writes.len().max(1);
    // Each cut gives two states before the write and two at each moment after it.
    let (cuts_max, moments) = match each >= CUTS_MAX * 2 * 3 {
        true => (CUTS_MAX, (share / CUTS_MAX).max(2)),
        false => ((each / 4).clamp(1, CUTS_MAX), 1),
    };
    let (writes, mut whole) = thin(&writes, (most / 4).max(1));
    for (e, (from, to)) in writes {
        if c.is_over() {
            break;
        }
        let effect = &effects.all[e];
        let first = (from / tear + 1) * tear;
        let inside: Vec<u64> = (first..to).step_by(tear.max(1) as usize).collect();
        let (cuts, all) = thin(&inside, cuts_max);
        whole &= all;
        let (at, all) = thin(c.lengths(effect.step, e), moments);
        whole &= all;
        for cut in cuts {
            for kept in [(from, cut), (cut, to)] {
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

#[cfg(test)]
mod tests;
