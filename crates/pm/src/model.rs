//! Persistence models: the stores that a crash may lose.
//!
//! Stores fall into *groups*. The stores of a group become durable in the order in which they were issued; those of different
//! groups become durable independently. So a crash leaves a prefix of each group. Stores that a fence has made durable are a
//! part of every such prefix:
//!
//! | | ordinary stores | non-temporal stores |
//! |---|---|---|
//! | [`Model::Line`] | one group for each cache line | one group for each word |
//! | [`Model::Word`] | one group for each word | one group for each word |
//! | [`Model::Eadr`] | one group | one group for each word |
//! | durable after | write-back of the line, then a fence of the same thread; eADR: the fence | a fence of the same thread |
//!
//! An image has the stores of its prefixes applied in the order in which they were issued, so a word never goes back to an older
//! value. A store that is not written back stays volatile past any fence, though it may become durable at any time.

use std::collections::{BTreeMap, HashMap};

use xxhash_rust::xxh3::xxh3_128;

use crate::recorder::Event;
use crate::{LINE_BYTES, WORD_BYTES};

/// A platform's promise for stores that are not yet fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// x86: the stores to one cache line become durable in order, those to different lines in any order.
    #[default]
    Line,
    /// Each word on its own, as if lines can tear. Every image of [`Model::Line`] is one of this model.
    Word,
    /// Caches survive a power cut: ordinary stores become durable in order, and need no write-back.
    Eadr,
}

/// A set of stores that become durable in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Group {
    Line(u64),
    /// Ordinary stores to a word.
    Word(u64),
    /// Non-temporal stores to a word. They go past the cache, so no write-back of the line concerns them.
    Data(u64),
    All,
}

/// A store that a crash may lose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    /// Index of its event.
    pub(crate) event: usize,
    /// Byte address.
    pub(crate) at: u64,
    pub(crate) word: u64,
}

/// The medium after some events: the durable words, and those that may be durable.
pub(crate) struct Pending {
    model: Model,
    /// The words that a crash certainly leaves, unless a pending store replaces them.
    durable: Vec<u64>,
    /// Sum of the digests of all words that changed; the same for the same words.
    key: u128,
    /// The stores that a crash may lose, by group, in order.
    groups: BTreeMap<Group, Vec<Store>>,
    /// Stores that the next fence of each thread makes durable: the stores of a group up to an event.
    promised: HashMap<u32, BTreeMap<Group, usize>>,
}

const WORDS_PER_LINE: u64 = LINE_BYTES / WORD_BYTES;

/// A digest of a word at an address.
pub(crate) fn digest(at: u64, word: u64) -> u128 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    xxh3_128(&bytes)
}

impl Pending {
    pub(crate) fn new(model: Model, base: &[u64]) -> Pending {
        Pending {
            model,
            durable: base.to_vec(),
            key: 0,
            groups: BTreeMap::new(),
            promised: HashMap::new(),
        }
    }

    pub(crate) fn durable(&self) -> &[u64] {
        &self.durable
    }

    pub(crate) fn key(&self) -> u128 {
        self.key
    }

    pub(crate) fn groups(&self) -> &BTreeMap<Group, Vec<Store>> {
        &self.groups
    }

    /// The group of an ordinary store.
    fn ordinary(&self, at: u64) -> Group {
        match self.model {
            Model::Line => Group::Line(at / LINE_BYTES),
            Model::Word => Group::Word(at),
            Model::Eadr => Group::All,
        }
    }

    fn promise(&mut self, thread: u32, group: Group, event: usize) {
        self.promised
            .entry(thread)
            .or_default()
            .insert(group, event);
    }

    /// Whether a fence of this thread would make anything durable.
    pub(crate) fn fence_matters(&self, thread: u32) -> bool {
        let promised = self.promised.get(&thread).into_iter().flatten();
        let mut promised =
            promised.filter_map(|(group, upto)| Some((self.groups.get(group)?, upto)));
        promised.any(|(stores, upto)| stores.first().is_some_and(|store| store.event <= *upto))
    }

    /// The next event.
    pub(crate) fn apply(&mut self, index: usize, event: Event, thread: u32) {
        match event {
            Event::Store { at, word } => {
                let group = self.ordinary(at);
                self.store(group, index, at, word);
                if self.model == Model::Eadr {
                    self.promise(thread, group, index);
                }
            }
            Event::Data { at, word } => {
                self.store(Group::Data(at), index, at, word);
                self.promise(thread, Group::Data(at), index);
            }
            Event::WriteBack { line } => match self.model {
                Model::Line => self.promise(thread, Group::Line(line), index),
                Model::Word => {
                    for word in line * WORDS_PER_LINE..(line + 1) * WORDS_PER_LINE {
                        self.promise(thread, Group::Word(word * WORD_BYTES), index);
                    }
                }
                Model::Eadr => {}
            },
            Event::Fence => self.fence(thread),
            Event::Mark(_) => {}
        }
    }

    fn store(&mut self, group: Group, event: usize, at: u64, word: u64) {
        let store = Store { event, at, word };
        self.groups.entry(group).or_default().push(store);
    }

    fn fence(&mut self, thread: u32) {
        for (group, upto) in self.promised.remove(&thread).unwrap_or_default() {
            let Some(stores) = self.groups.get_mut(&group) else {
                continue;
            };
            let count = stores.partition_point(|store| store.event <= upto);
            let durable: Vec<Store> = stores.drain(..count).collect();
            for store in &durable {
                let word = &mut self.durable[(store.at / WORD_BYTES) as usize];
                self.key ^= digest(store.at, *word) ^ digest(store.at, store.word);
                *word = store.word;
            }
            for store in durable {
                self.forget_older(self.ordinary(store.at), store);
                self.forget_older(Group::Data(store.at), store);
            }
        }
        self.groups.retain(|_, stores| !stores.is_empty());
    }

    /// Older stores to a word that is durable now do not matter any more.
    fn forget_older(&mut self, group: Group, durable: Store) {
        if let Some(stores) = self.groups.get_mut(&group) {
            stores.retain(|store| store.at != durable.at || store.event > durable.event);
        }
    }
}
