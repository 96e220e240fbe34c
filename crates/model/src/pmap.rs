//! A persistent map from inode numbers: a clone costs one pointer, a change copies
//! only the way down to it, and two versions are compared in time proportional to
//! their difference.
//!
//! Invariant: a branch at depth `d` splits by bits `4d..4d+4` of the key, and no
//! branch or leaf is ever changed while another version shares it.

use std::sync::Arc;

const FAN: usize = 16;

#[derive(Debug)]
enum Slot<T> {
    Empty,
    Leaf(u64, Arc<T>),
    Branch(Arc<[Slot<T>; FAN]>),
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        match self {
            Slot::Empty => Slot::Empty,
            Slot::Leaf(k, v) => Slot::Leaf(*k, Arc::clone(v)),
            Slot::Branch(b) => Slot::Branch(Arc::clone(b)),
        }
    }
}

fn digit(key: u64, depth: u32) -> usize {
    ((key >> (4 * depth)) & 15) as usize
}

/// The map.
#[derive(Debug)]
pub struct PMap<T> {
    root: Slot<T>,
    len: usize,
}

impl<T> Clone for PMap<T> {
    fn clone(&self) -> PMap<T> {
        PMap {
            root: self.root.clone(),
            len: self.len,
        }
    }
}

/// Difference at one key between two versions of a map.
pub(crate) struct Change<'a, T> {
    pub(crate) key: u64,
    pub(crate) before: Option<&'a T>,
    pub(crate) after: Option<&'a T>,
}

impl<T: Clone> Default for PMap<T> {
    fn default() -> PMap<T> {
        PMap::new()
    }
}

impl<T: Clone> PMap<T> {
    /// An empty map.
    #[must_use]
    pub fn new() -> PMap<T> {
        PMap {
            root: Slot::Empty,
            len: 0,
        }
    }

    /// How many keys it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<&T> {
        let mut slot = &self.root;
        let mut depth = 0;
        loop {
            match slot {
                Slot::Empty => return None,
                Slot::Leaf(k, v) => return (*k == key).then_some(v),
                Slot::Branch(b) => slot = &b[digit(key, depth)],
            }
            depth += 1;
        }
    }

    /// The value of a key, copied first if another version shares it.
    pub fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        // First look, so that a miss copies nothing.
        self.get(key)?;
        let mut slot = &mut self.root;
        let mut depth = 0;
        loop {
            match slot {
                Slot::Empty => return None,
                Slot::Leaf(_, v) => return Some(Arc::make_mut(v)),
                Slot::Branch(b) => slot = &mut Arc::make_mut(b)[digit(key, depth)],
            }
            depth += 1;
        }
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: u64, value: T) {
        let mut slot = &mut self.root;
        let mut depth = 0;
        loop {
            match slot {
                Slot::Empty => {
                    *slot = Slot::Leaf(key, Arc::new(value));
                    self.len += 1;
                    return;
                }
                Slot::Leaf(k, v) if *k == key => {
                    *v = Arc::new(value);
                    return;
                }
                Slot::Leaf(k, v) => {
                    let mut branch = [const { Slot::Empty }; FAN];
                    branch[digit(*k, depth)] = Slot::Leaf(*k, Arc::clone(v));
                    *slot = Slot::Branch(Arc::new(branch));
                }
                Slot::Branch(b) => {
                    slot = &mut Arc::make_mut(b)[digit(key, depth)];
                    depth += 1;
                }
            }
        }
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: u64) {
        if self.get(key).is_none() {
            return;
        }
        let mut slot = &mut self.root;
        let mut depth = 0;
        while let Slot::Branch(b) = slot {
            slot = &mut Arc::make_mut(b)[digit(key, depth)];
            depth += 1;
        }
        *slot = Slot::Empty;
        self.len -= 1;
    }

    /// Keys whose values differ between `self` and `after`, in ascending order.
    pub(crate) fn changes<'a>(&'a self, after: &'a PMap<T>) -> Vec<Change<'a, T>> {
        let mut out = Vec::new();
        diff(&self.root, &after.root, &mut out);
        out.sort_by_key(|c| c.key);
        out
    }
}

fn leaves<'a, T>(slot: &'a Slot<T>, out: &mut Vec<(u64, &'a Arc<T>)>) {
    match slot {
        Slot::Empty => {}
        Slot::Leaf(k, v) => out.push((*k, v)),
        Slot::Branch(b) => b.iter().for_each(|s| leaves(s, out)),
    }
}

fn diff<'a, T>(a: &'a Slot<T>, b: &'a Slot<T>, out: &mut Vec<Change<'a, T>>) {
    if let (Slot::Branch(x), Slot::Branch(y)) = (a, b) {
        if !Arc::ptr_eq(x, y) {
            x.iter().zip(y.iter()).for_each(|(s, t)| diff(s, t, out));
        }
        return;
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    leaves(a, &mut before);
    leaves(b, &mut after);
    for (key, v) in &before {
        match after.iter().find(|(k, _)| k == key) {
            Some((_, w)) if Arc::ptr_eq(v, w) => {}
            Some((_, w)) => out.push(Change {
                key: *key,
                before: Some(*v),
                after: Some(*w),
            }),
            None => out.push(Change {
                key: *key,
                before: Some(*v),
                after: None,
            }),
        }
    }
    for (key, w) in &after {
        if !before.iter().any(|(k, _)| k == key) {
            out.push(Change {
                key: *key,
                before: None,
                after: Some(*w),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_behaves_like_a_btreemap_and_old_versions_never_change() {
        let mut seed = 7u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        let (mut map, mut plain) = (PMap::new(), BTreeMap::new());
        let mut kept: Vec<(PMap<u64>, BTreeMap<u64, u64>)> = Vec::new();
        for _ in 0..5000 {
            let key = match next() % 3 {
                0 => next() % 40,
                1 => (next() % 40) << 36,
                _ => u64::MAX - next() % 40,
            };
            match next() % 4 {
                0 => {
                    map.remove(key);
                    plain.remove(&key);
                }
                1 => {
                    if let Some(v) = map.get_mut(key) {
                        *v += 1;
                    }
                    if let Some(v) = plain.get_mut(&key) {
                        *v += 1;
                    }
                }
                _ => {
                    let v = next();
                    map.insert(key, v);
                    plain.insert(key, v);
                }
            }
            assert_eq!(map.len(), plain.len());
            if next() % 50 == 0 {
                kept.push((map.clone(), plain.clone()));
            }
        }
        for (old, plain_old) in &kept {
            assert!(plain_old.iter().all(|(k, v)| old.get(*k) == Some(v)));
            let mut want = BTreeMap::new();
            for k in plain_old.keys().chain(plain.keys()) {
                if plain_old.get(k) != plain.get(k) {
                    want.insert(*k, (plain_old.get(k), plain.get(k)));
                }
            }
            let got: BTreeMap<_, _> = old
                .changes(&map)
                .into_iter()
                .filter(|c| c.before != c.after)
                .map(|c| (c.key, (c.before, c.after)))
                .collect();
            assert_eq!(got, want);
        }
    }
}
