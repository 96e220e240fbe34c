//! Crash images: the states that a region may have after a power cut at any point of a trace.
//!
//! # Which cuts are looked at
//!
//! An image that a crash may leave after some events is also possible after more events, unless a fence has made a
//! store durable or the caller's expectation has changed. So the images of all cut points are those of the points just
//! before a fence that makes a store durable, just before a mark, and at the end. A caller whose expectation changes (a
//! call has returned, the next one begins) sets a [mark](crate::Recorder::mark), and gets all images again that are
//! possible after it.
//!
//! # Which images
//!
//! At a cut, every group of stores (see [`Model`]) contributes a prefix. If there are at most
//! [`images_max`](Exploration::images_max) combinations, all are formed. Otherwise words that recovery never reads are kept
//! together, and prefixes that differ only in these are taken as one. If that is still too many, a sample is formed:
//! nothing, everything, each line alone missing, each line alone present, everything up to each store, and seeded random
//! combinations.
//!
//! An image is formed once between two marks. Images are distinguished by 128 bits of XXH3 over the words that changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use crate::model::{Group, Model, Pending, Store, digest};
use crate::recorder::Event;
use crate::trace::Trace;
use crate::{LINE_BYTES, Region, WORD_BYTES};

/// Options of an exploration of crash images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// The platform's promise.
    pub model: Model,
    /// Most combinations at a cut that are all formed.
    pub images_max: u64,
    /// Random combinations at a cut that has more.
    pub samples: u32,
    /// Seed of the random combinations. The same seed gives the same images.
    pub seed: u64,
}

impl Default for Exploration {
    fn default() -> Exploration {
        Exploration {
            model: Model::Line,
            images_max: 4096,
            samples: 256,
            seed: 0,
        }
    }
}

/// Counts of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Explored {
    /// Images that were checked.
    pub images: u64,
    /// Images that were formed again, and not checked again.
    pub duplicates: u64,
    /// Cuts.
    pub cuts: u64,
    /// Cuts with too many combinations, of which words that recovery never reads were kept together.
    pub reduced: u64,
    /// Cuts with too many combinations even so: a sample was formed.
    pub sampled: u64,
}

/// State after a power cut.
pub struct CrashImage<'a> {
    words: &'a [u64],
    trace: &'a Trace,
    cut: usize,
    mark: Option<u64>,
    /// The stores that were not durable for certain, in order, and whether the image has them.
    pending: &'a [(Store, bool)],
}

impl CrashImage<'_> {
    /// The words.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        self.words
    }

    /// The bytes.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        let words = self.words.iter();
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A region of plain memory with this content.
    #[must_use]
    pub fn region(&self) -> Region {
        Region::with_words(self.words)
    }

    /// A region with this content that records the stores of a recovery.
    #[must_use]
    pub fn recorded(&self) -> Region {
        Region::with_words(self.words).into_recorded()
    }

    /// Number of events before the crash.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// The last mark before the crash.
    #[must_use]
    pub fn mark(&self) -> Option<u64> {
        self.mark
    }

    /// The events whose stores are lost.
    #[must_use]
    pub fn lost(&self) -> Vec<usize> {
        let lost = self.pending.iter().filter(|(_, present)| !present);
        lost.map(|(store, _)| store.event).collect()
    }
}

impl fmt::Debug for CrashImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for CrashImage<'_> {
    /// Position of the crash and the lost stores, as a test would print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.trace.events();
        write!(f, "crash after {} of {} events", self.cut, events.len())?;
        if let Some(next) = events.get(self.cut) {
            write!(f, " (next: {next})")?;
        }
        if let Some(mark) = self.mark {
            write!(f, ", after mark {mark}")?;
        }
        for (present, what) in [(false, "lost"), (true, "durable by chance")] {
            let stores = self.pending.iter().filter(|(_, kept)| *kept == present);
            for (store, _) in stores {
                write!(
                    f,
                    "\n  {what}: event {}, {}",
                    store.event, events[store.event]
                )?;
            }
        }
        Ok(())
    }
}

impl Trace {
    /// Calls `check` with every image that a power cut may leave, as far as `options` allows, and returns its first error.
    ///
    /// `first` says whether recovery reads the word at an address: such words are varied first. It may say so of all words.
    /// [`Recorder::was_read`](crate::Recorder::was_read) helps to find out.
    ///
    /// # Errors
    /// Those of `check`.
    pub fn explore<E>(
        &self,
        options: &Exploration,
        first: impl Fn(u64) -> bool,
        check: impl FnMut(&CrashImage<'_>) -> Result<(), E>,
    ) -> Result<Explored, E> {
        let mut explorer = Explorer {
            trace: self,
            options,
            first,
            check,
            seen: HashSet::new(),
            words: self.base().to_vec(),
            mark: None,
            explored: Explored::default(),
        };
        let mut pending = Pending::new(options.model, self.base());
        for (index, event, thread) in self.steps() {
            match event {
                Event::Fence if pending.fence_matters(thread) => explorer.cut(index, &pending)?,
                Event::Mark(mark) => {
                    explorer.cut(index, &pending)?;
                    explorer.mark = Some(mark);
                    explorer.seen.clear();
                }
                _ => {}
            }
            pending.apply(index, event, thread);
        }
        explorer.cut(self.events().len(), &pending)?;
        Ok(explorer.explored)
    }
}

struct Explorer<'a, F, C> {
    trace: &'a Trace,
    options: &'a Exploration,
    first: F,
    check: C,
    /// The images since the last mark.
    seen: HashSet<u128>,
    /// The image that is being formed; between two images, the durable words.
    words: Vec<u64>,
    mark: Option<u64>,
    explored: Explored,
}

impl<E, F, C> Explorer<'_, F, C>
where
    F: Fn(u64) -> bool,
    C: FnMut(&CrashImage<'_>) -> Result<(), E>,
{
    fn cut(&mut self, index: usize, pending: &Pending) -> Result<(), E> {
        self.explored.cuts += 1;
        self.words.copy_from_slice(pending.durable());
        let cut = Cut::new(index, pending);
        let all = cut.units(|_| true);
        if combinations(&all) <= self.options.images_max {
            return self.every(&cut, &all);
        }
        self.explored.reduced += 1;
        let reduced = cut.units(&self.first);
        if combinations(&reduced) <= self.options.images_max {
            return self.every(&cut, &reduced);
        }
        self.explored.sampled += 1;
        self.some(&cut, &reduced)
    }

    /// All combinations.
    fn every(&mut self, cut: &Cut, units: &[Unit]) -> Result<(), E> {
        let mut chosen = vec![0; units.len()];
        let mut prefixes = vec![0; cut.lengths.len()];
        loop {
            for (unit, choice) in units.iter().zip(&chosen) {
                unit.choose(*choice, &mut prefixes);
            }
            self.image(cut, &prefixes)?;
            // The next number, whose digits have as many values as their units have choices.
            let mut more = false;
            for (digit, unit) in chosen.iter_mut().zip(units) {
                *digit += 1;
                if *digit < unit.choices.len() {
                    more = true;
                    break;
                }
                *digit = 0;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// A sample.
    fn some(&mut self, cut: &Cut, units: &[Unit]) -> Result<(), E> {
        let nothing = vec![0; cut.lengths.len()];
        let everything = cut.lengths.clone();
        self.image(cut, &nothing)?;
        self.image(cut, &everything)?;
        for groups in cut.lines.values() {
            for (all, line) in [(&everything, &nothing), (&nothing, &everything)] {
                let mut prefixes = all.clone();
                for group in groups {
                    prefixes[*group] = line[*group];
                }
                self.image(cut, &prefixes)?;
            }
        }
        // Everything up to each store. Of data, up to the end of each line, because its words have no order.
        let mut prefixes = nothing;
        for (index, (group, store)) in cut.stores.iter().enumerate() {
            prefixes[*group] += 1;
            let next = cut.stores.get(index + 1);
            let is_data = |at: usize| matches!(self.trace.events()[at], Event::Data { .. });
            let goes_on = next.is_some_and(|(_, next)| {
                let same_line = next.at / LINE_BYTES == store.at / LINE_BYTES;
                same_line && is_data(store.event) && is_data(next.event)
            });
            if !goes_on {
                self.image(cut, &prefixes)?;
            }
        }
        let mut random = SplitMix(self.options.seed ^ (cut.index as u64).wrapping_mul(0x9e37_79b9));
        for sample in 0..self.options.samples {
            // Of the combinations, few have almost all stores or almost none: these get a third of the samples each.
            let extreme = sample % 3;
            for unit in units {
                let last = unit.choices.len() - 1;
                let any = random.below(unit.choices.len());
                let rare = random.below(8) == 0;
                let choice = match extreme {
                    1 if !rare => last,
                    2 if !rare => 0,
                    _ => any,
                };
                unit.choose(choice, &mut prefixes);
            }
            self.image(cut, &prefixes)?;
        }
        Ok(())
    }

    /// Forms the image that has a prefix of each group, and checks it unless it was seen.
    fn image(&mut self, cut: &Cut, prefixes: &[usize]) -> Result<(), E> {
        let mut place = vec![0; prefixes.len()];
        let pending = cut.stores.iter().map(|(group, store)| {
            place[*group] += 1;
            (*store, place[*group] <= prefixes[*group])
        });
        let pending: Vec<(Store, bool)> = pending.collect();
        for (store, _) in pending.iter().filter(|(_, present)| *present) {
            self.words[(store.at / WORD_BYTES) as usize] = store.word;
        }
        let mut key = cut.key;
        for (at, word, before) in &cut.touched {
            let now = self.words[(*at / WORD_BYTES) as usize];
            if now != *word {
                key ^= before ^ digest(*at, now);
            }
        }
        let outcome = if self.seen.insert(key) {
            self.explored.images += 1;
            (self.check)(&CrashImage {
                words: &self.words,
                trace: self.trace,
                cut: cut.index,
                mark: self.mark,
                pending: &pending,
            })
        } else {
            self.explored.duplicates += 1;
            Ok(())
        };
        for (at, word, _) in &cut.touched {
            self.words[(*at / WORD_BYTES) as usize] = *word;
        }
        outcome
    }
}

/// Stores that may be lost at a cut.
struct Cut {
    index: usize,
    key: u128,
    /// Stores in each group.
    lengths: Vec<usize>,
    /// All stores in the order of their events, with their groups.
    stores: Vec<(usize, Store)>,
    /// The groups of each cache line; those that span lines are a line of their own.
    lines: BTreeMap<u64, Vec<usize>>,
    /// The words that may change: address, durable word, and its digest.
    touched: Vec<(u64, u64, u128)>,
}

impl Cut {
    fn new(index: usize, pending: &Pending) -> Cut {
        let groups = pending.groups();
        let mut lines = BTreeMap::<u64, Vec<usize>>::new();
        for (number, group) in groups.keys().enumerate() {
            let line = match group {
                Group::Line(line) => *line,
                Group::Word(at) | Group::Data(at) => at / LINE_BYTES,
                Group::All => u64::MAX,
            };
            lines.entry(line).or_default().push(number);
        }
        let stores = groups.values().enumerate();
        let stores = stores.flat_map(|(number, stores)| stores.iter().map(move |s| (number, *s)));
        let mut stores: Vec<(usize, Store)> = stores.collect();
        stores.sort_by_key(|(_, store)| store.event);
        let touched: BTreeSet<u64> = stores.iter().map(|(_, store)| store.at).collect();
        let touched = touched.into_iter().map(|at| {
            let word = pending.durable()[(at / WORD_BYTES) as usize];
            (at, word, digest(at, word))
        });
        Cut {
            index,
            key: pending.key(),
            lengths: groups.values().map(Vec::len).collect(),
            lines,
            touched: touched.collect(),
            stores,
        }
    }

    /// Units that are varied independently, if only words that are `read` matter.
    fn units(&self, read: impl Fn(u64) -> bool) -> Vec<Unit> {
        let mut groups = vec![Vec::new(); self.lengths.len()];
        for (group, store) in &self.stores {
            groups[*group].push(read(store.at));
        }
        let mut units = Vec::new();
        let mut unread = Unit::default();
        for (group, reads) in groups.iter().enumerate() {
            if reads.contains(&true) {
                // A prefix that ends before a store that is read, or with the last store.
                let ends = reads.iter().enumerate().filter(|(_, read)| **read);
                let ends = ends.map(|(end, _)| end).chain([reads.len()]);
                units.push(Unit {
                    groups: vec![group],
                    choices: ends.map(|end| vec![end]).collect(),
                });
            } else {
                unread.groups.push(group);
            }
        }
        if !unread.groups.is_empty() {
            let all = unread.groups.iter().map(|group| self.lengths[*group]);
            unread.choices = vec![vec![0; unread.groups.len()], all.collect()];
            units.push(unread);
        }
        units
    }
}

/// Groups that are varied together.
#[derive(Default)]
struct Unit {
    groups: Vec<usize>,
    /// Each choice is a prefix of each of the groups. The first is the least, the last is all.
    choices: Vec<Vec<usize>>,
}

impl Unit {
    fn choose(&self, choice: usize, prefixes: &mut [usize]) {
        for (group, prefix) in self.groups.iter().zip(&self.choices[choice]) {
            prefixes[*group] = *prefix;
        }
    }
}

fn combinations(units: &[Unit]) -> u64 {
    let choices = units.iter().map(|unit| unit.choices.len() as u64);
    choices.fold(1, u64::saturating_mul)
}

/// SplitMix64: random enough for a sample, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ (mixed >> 31);
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests;
