//! Persistent memory: words, lines, and the stores since the last fence that may survive a crash.
//!
//! One word here is one word of 8 bytes there. An [`Image`] carries its hash, which each store updates, so comparing
//! images costs one store.

use std::collections::BTreeMap;
use std::ops::Index;

/// Words of a cache line.
pub const LINE: usize = 8;

/// The content of a small region.
#[derive(Clone)]
pub struct Image {
    words: Vec<u64>,
    hash: u64,
}

impl Image {
    /// Zeros.
    pub fn new(len: usize) -> Image {
        Image {
            words: vec![0; len],
            hash: 0,
        }
    }

    /// Stores a word.
    pub fn set(&mut self, at: usize, word: u64) {
        self.hash ^= share(at, self.words[at]) ^ share(at, word);
        self.words[at] = word;
    }

    /// Stores the given words, in order.
    pub fn apply(&mut self, stores: &[Store]) {
        for store in stores {
            self.set(store.at, store.word);
        }
    }

    /// A number that differs between images, but for accidents of 2^-64.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl Index<usize> for Image {
    type Output = u64;

    fn index(&self, at: usize) -> &u64 {
        &self.words[at]
    }
}

/// A word's part of the hash.
fn share(at: usize, word: u64) -> u64 {
    if word == 0 {
        return 0;
    }
    let mut x = word ^ (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Stores that a crash may leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// x86: the stores to one line persist as a prefix of program order, lines are independent.
    Line,
    /// Conservative: every word on its own.
    Word,
    /// eADR: caches are persistent, so a prefix of program order over all lines. Data is stored non-temporally.
    Eadr,
    /// The same with data by ordinary stores.
    EadrStores,
}

/// One store of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Address, in words.
    pub at: usize,
    /// Value that is stored.
    pub word: u64,
    /// Non-temporal: ordered with nothing before the next fence.
    pub streaming: bool,
}

/// An ordinary store.
pub fn store(at: usize, word: u64) -> Store {
    Store {
        at,
        word,
        streaming: false,
    }
}

/// A non-temporal store.
pub fn stream(at: usize, word: u64) -> Store {
    Store {
        at,
        word,
        streaming: true,
    }
}

/// Calls `visit` with every image that a crash may leave: `base` is durable, `stores` are issued and not fenced. Any line
/// may be written back at any time, so a crash in the middle of `stores` is among them.
pub fn images(
    model: Model,
    base: &Image,
    stores: &[Store],
    visit: &mut dyn FnMut(&Image) -> Result<(), String>,
) -> Result<(), String> {
    let mut groups: BTreeMap<(bool, usize), Vec<Store>> = BTreeMap::new();
    for one in stores {
        let group = match model {
            Model::EadrStores => (false, 0),
            Model::Word => (true, one.at),
            _ if one.streaming => (true, one.at),
            Model::Line => (false, one.at / LINE),
            Model::Eadr => (false, 0),
        };
        groups.entry(group).or_default().push(*one);
    }
    // A group that stores nothing new makes no difference.
    let idle = |group: &Vec<Store>| group.iter().all(|s| base[s.at] == s.word);
    let groups: Vec<Vec<Store>> = groups.into_values().filter(|g| !idle(g)).collect();
    prefixes(&groups, &mut base.clone(), visit)
}

/// Every choice of a prefix of each group.
fn prefixes(
    groups: &[Vec<Store>],
    image: &mut Image,
    visit: &mut dyn FnMut(&Image) -> Result<(), String>,
) -> Result<(), String> {
    let Some((first, rest)) = groups.split_first() else {
        return visit(image);
    };
    prefixes(rest, image, visit)?;
    let mut undo = Vec::with_capacity(first.len());
    for one in first {
        undo.push((one.at, image[one.at]));
        image.set(one.at, one.word);
        prefixes(rest, image, visit)?;
    }
    for (at, word) in undo.into_iter().rev() {
        image.set(at, word);
    }
    Ok(())
}
