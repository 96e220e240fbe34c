//! Locks on numbered objects (GoJournal §4): striped, shared and exclusive, with an
//! ordered acquisition of several that cannot deadlock against another such acquisition.

use crate::sync::{Condvar, Mutex, wait};
use std::collections::HashMap;

const STRIPES: usize = 64;

/// Access mode of an object's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Together with others that share.
    Shared,
    /// Alone.
    Exclusive,
}

#[derive(Default)]
struct State {
    sharers: u32,
    exclusive: bool,
    waiting_exclusive: u32,
}

/// A map of locks that exist while a thread holds or awaits them.
pub struct Lockmap {
    stripes: Vec<(Mutex<HashMap<u64, State>>, Condvar)>,
}

impl Default for Lockmap {
    fn default() -> Self {
        Lockmap::new()
    }
}

impl Lockmap {
    /// A map without locks.
    #[must_use]
    pub fn new() -> Lockmap {
        Lockmap {
            stripes: (0..STRIPES).map(|_| Default::default()).collect(),
        }
    }

    fn stripe(&self, key: u64) -> &(Mutex<HashMap<u64, State>>, Condvar) {
        &self.stripes[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % STRIPES]
    }

    /// Locks all `wanted` objects, in ascending order of their keys; a key given twice is
    /// locked once, in the stronger mode. Waits without bound. A thread that holds a set must not
    /// acquire another one.
    pub fn acquire(&self, wanted: &[(u64, Access)]) -> LockSet<'_> {
        let mut keys = wanted.to_vec();
        // Exclusive sorts last, so that it is the one kept of equal keys.
        keys.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        keys.dedup_by_key(|k| k.0);
        for &(key, access) in &keys {
            self.lock(key, access);
        }
        LockSet { map: self, keys }
    }

    fn lock(&self, key: u64, access: Access) {
        let (lock, freed) = self.stripe(key);
        let mut map = lock.lock();
        match access {
            Access::Shared => loop {
                let state = map.entry(key).or_default();
                // Waiting writers go first: readers cannot starve them.
                if !state.exclusive && state.waiting_exclusive == 0 {
                    state.sharers += 1;
                    return;
                }
                map = wait(freed, map);
            },
            Access::Exclusive => {
                map.entry(key).or_default().waiting_exclusive += 1;
                loop {
                    let state = map.entry(key).or_default();
                    if !state.exclusive && state.sharers == 0 {
                        state.waiting_exclusive -= 1;
                        state.exclusive = true;
                        return;
                    }
                    map = wait(freed, map);
                }
            }
        }
    }

    fn unlock(&self, key: u64, access: Access) {
        let (lock, freed) = self.stripe(key);
        let mut map = lock.lock();
        if let Some(state) = map.get_mut(&key) {
            match access {
                Access::Shared => state.sharers -= 1,
                Access::Exclusive => state.exclusive = false,
            }
            if state.sharers == 0 && !state.exclusive && state.waiting_exclusive == 0 {
                map.remove(&key);
            }
        }
        freed.notify_all();
    }
}

/// Locks held until this is dropped.
#[must_use = "the locks are released when the set is dropped"]
pub struct LockSet<'a> {
    map: &'a Lockmap,
    keys: Vec<(u64, Access)>,
}

impl Drop for LockSet<'_> {
    fn drop(&mut self) {
        for &(key, access) in self.keys.iter().rev() {
            self.map.unlock(key, access);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn corner_40_opposite_orders_do_not_deadlock_and_exclusive_excludes() {
        let map = Lockmap::new();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (map, inside) = (&map, &inside);
                scope.spawn(move || {
                    for i in 0..2_000u64 {
                        let (a, b) = (i % 3, (i + 1 + t % 2) % 3);
                        let keys = if t % 2 == 0 { [a, b] } else { [b, a] };
                        let _set = map.acquire(&[
                            (keys[0], Access::Exclusive),
                            (keys[1], Access::Exclusive),
                            (keys[0], Access::Shared),
                        ]);
                        let bit = 1u64 << (8 * a);
                        assert_eq!(inside.fetch_add(bit, Ordering::SeqCst) >> (8 * a) & 0xff, 0);
                        inside.fetch_sub(bit, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn sharers_are_inside_together_and_locks_vanish_when_unused() {
        let map = Lockmap::new();
        let a = map.acquire(&[(1, Access::Shared)]);
        let b = map.acquire(&[(1, Access::Shared)]);
        drop((a, b));
        assert!(map.stripes.iter().all(|s| s.0.lock().is_empty()));
    }
}
