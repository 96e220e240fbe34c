//! The LRU cache of cells in memory, with cells that are being read.

use super::ahead::Ahead;
use crate::io::StoreError;
use crate::protocol::ObjectName;
use bytes::Bytes;
use futures_util::future::{BoxFuture, Shared};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// A cell: its volume, its object, its place.
pub(super) type Key = (u16, ObjectName, u32);

/// The contents of cells that are read with one request, by place. A cell may fail its check while others pass theirs.
pub(super) type Read = Arc<HashMap<u32, Result<Bytes, StoreError>>>;
pub(super) type Reading = Shared<BoxFuture<'static, Result<Read, StoreError>>>;

#[derive(Clone)]
pub(super) enum Held {
    Here(Bytes),
    Coming(Reading),
}

#[derive(Default)]
pub(crate) struct Cache {
    cells: HashMap<Key, (u64, Held)>,
    by_age: BTreeMap<u64, Key>,
    tick: u64,
    bytes: u64,
    most: u64,
    pub(super) ahead: Ahead,
}

impl Cache {
    pub(crate) fn shared(most: u64) -> Arc<Mutex<Cache>> {
        Arc::new(Mutex::new(Cache::new(most)))
    }

    pub(super) fn new(most: u64) -> Cache {
        Cache {
            most,
            ..Cache::default()
        }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Held> {
        self.tick += 1;
        let (age, held) = self.cells.get_mut(key)?;
        self.by_age.remove(age);
        *age = self.tick;
        self.by_age.insert(self.tick, *key);
        Some(held.clone())
    }

    pub(super) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.cells.contains_key(key)
    }

    pub(super) fn put(&mut self, key: Key, held: Held) {
        self.remove(&key);
        self.tick += 1;
        self.bytes += size(&held);
        self.cells.insert(key, (self.tick, held));
        self.by_age.insert(self.tick, key);
        while self.bytes > self.most {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                return;
            };
            if let Some((_, held)) = self.cells.remove(&oldest) {
                self.bytes -= size(&held);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some((age, held)) = self.cells.remove(key) {
            self.by_age.remove(&age);
            self.bytes -= size(&held);
        }
    }
}

/// Bytes of a cell. A cell that is being read counts as a full one.
fn size(held: &Held) -> u64 {
    match held {
        Held::Here(bytes) => bytes.len() as u64,
        Held::Coming(_) => 64 << 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_cell_is_evicted_first() {
        let mut cache = Cache::new(3000);
        let key = |at| (0, ObjectName::Head, at);
        let bytes = || Held::Here(Bytes::from(vec![0; 1000]));
        for at in 0..3 {
            cache.put(key(at), bytes());
        }
        assert!(cache.get(&key(0)).is_some());
        cache.put(key(3), bytes());
        assert!(cache.has(&key(0)) && !cache.has(&key(1)) && cache.has(&key(2)));
        cache.put(key(3), bytes());
        assert_eq!((cache.bytes, cache.by_age.len()), (3000, 3));
    }
}
