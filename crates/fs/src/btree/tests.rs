//! Trees against a sorted map, and against hostile nodes.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::reader::Current;
use crate::testing::{Bare, bare};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    /// Insert `count` items from `key` on, `stride` apart.
    Insert { key: u64, count: u64, stride: u64 },
    /// Remove the items whose keys lie in a range.
    Remove { key: u64, span: u64, backward: bool },
    /// Change an item, moving its key up a little.
    Replace { key: u64, by: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..20_000, 1u64..200, 1u64..40)
            .prop_map(|(key, count, stride)| Step::Insert { key, count, stride }),
        2 => (0u64..20_000, 1u64..8_000, any::<bool>())
            .prop_map(|(key, span, backward)| Step::Remove { key, span, backward }),
        1 => (0u64..20_000, 0u64..4).prop_map(|(key, by)| Step::Replace { key, by }),
    ]
}

/// A tree beside its model; keys are four apart at least, runs up to four long.
struct Both<'a> {
    bare: &'a Bare,
    body: Body,
    model: BTreeMap<u64, Item>,
    nodes: u64,
    goal: BlockNo,
}

fn item(key: u64, goal: BlockNo) -> Item {
    Item {
        key: key.into(),
        block: (goal.0 + key % 100).into(),
        len: (1 + (key / 4) as u32 % 4).into(),
        flags: 0.into(),
    }
}

impl<'a> Both<'a> {
    fn new(bare: &'a Bare) -> Both<'a> {
        let goal = bare.store.volume.group_start(0).offset(50);
        Both {
            bare,
            body: empty(),
            model: BTreeMap::new(),
            nodes: 0,
            goal,
        }
    }

    fn volume(&self) -> &'a Volume {
        &self.bare.store.volume
    }

    /// One operation with the credits that the functions promise to keep to.
    fn work(&self) -> Work<'a> {
        self.bare
            .begin(change_credits(level(self.volume(), &self.body).unwrap()))
    }

    fn insert(&mut self, key: u64) {
        let item = item(key, self.goal);
        let end = key + u64::from(item.len.get());
        if self.model.range(key + 1..end).next().is_some() {
            return;
        }
        let mut work = self.work();
        let mut body = self.body;
        let result = insert(&mut work, &mut body, self.goal, item);
        if self.model.contains_key(&key) {
            assert!(result.is_err());
            return;
        }
        self.nodes += result.unwrap();
        work.commit();
        self.body = body;
        self.model.insert(key, item);
    }

    fn remove(&mut self, key: u64) {
        let mut work = self.work();
        self.nodes -= remove(&mut work, &mut self.body, key).unwrap();
        work.commit();
        self.model.remove(&key);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Insert { key, count, stride } => {
                for index in 0..count {
                    self.insert((key + index * stride) * 4);
                }
            }
            Step::Remove {
                key,
                span,
                backward,
            } => {
                let mut keys: Vec<u64> = self
                    .model
                    .range(key * 4..(key + span) * 4)
                    .map(|(key, _)| *key)
                    .collect();
                if backward {
                    keys.reverse();
                }
                for key in keys {
                    self.remove(key);
                }
            }
            Step::Replace { key, by } => {
                let Some((&key, &old)) = self.model.range(key * 4..).next() else {
                    return;
                };
                let by = by.min(u64::from(old.len.get()) - 1);
                if key % 4 != 0 {
                    return;
                }
                let new = Item {
                    key: (key + by).into(),
                    len: (old.len.get() - by as u32).into(),
                    ..old
                };
                let mut work = self.work();
                replace(&mut work, &mut self.body, key, new).unwrap();
                work.commit();
                self.model.remove(&key);
                self.model.insert(key + by, new);
            }
        }
    }

    fn check(&self) {
        let mut reader = Current(&self.bare.store.journal);
        let volume = self.volume();
        let mut all = Vec::new();
        for_each(&mut reader, volume, &self.body, 0, |item| {
            all.push(*item);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(all, self.model.values().copied().collect::<Vec<_>>());
        let mut nodes = 0;
        for_each_node(&mut reader, volume, &self.body, |_| {
            nodes += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(nodes, self.nodes);
        for key in (0..80_000).step_by(1_111) {
            let le = self.model.range(..=key).next_back().map(|(_, item)| *item);
            let ge = self.model.range(key..).next().map(|(_, item)| *item);
            assert_eq!(find_le(&mut reader, volume, &self.body, key).unwrap(), le);
            assert_eq!(find_ge(&mut reader, volume, &self.body, key).unwrap(), ge);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_tree_behaves_like_a_sorted_map(steps in prop::collection::vec(step(), 1..40)) {
        let bare = bare(2048);
        let before = bare.store.alloc.space().free;
        let mut both = Both::new(&bare);
        for step in &steps {
            both.run(step);
        }
        both.check();
        let keys: Vec<u64> = both.model.keys().copied().collect();
        for key in keys {
            both.remove(key);
        }
        prop_assert_eq!(both.body, empty());
        prop_assert_eq!(both.nodes, 0);
        bare.store.journal.sync_all().unwrap();
        prop_assert_eq!(bare.store.alloc.space().free, before);
    }

    #[test]
    fn corner_35_a_hostile_node_is_an_error_and_never_a_panic(
        bytes in prop::collection::vec((0usize..4064, any::<u8>()), 1..6),
        header in any::<Option<u64>>(),
        key in 0u64..20_000,
    ) {
        let bare = bare(2048);
        let mut both = Both::new(&bare);
        both.run(&Step::Insert { key: 0, count: 900, stride: 1 });
        let mut nodes = Vec::new();
        let volume = both.volume();
        for_each_node(&mut Current(&bare.store.journal), volume, &both.body, |at| {
            nodes.push(at);
            Ok(())
        })
        .unwrap();
        let mut work = bare.begin(20_000);
        let at = nodes[key as usize % nodes.len()];
        for (offset, byte) in bytes {
            work.write(at, Kind::Meta, offset, &[byte]).unwrap();
        }
        if let Some(header) = header {
            work.write(at, Kind::Meta, 0, &header.to_le_bytes()).unwrap();
        }
        work.commit();
        let mut reader = Current(&bare.store.journal);
        let mut seen = 0;
        let _ = for_each(&mut reader, volume, &both.body, 0, |_| {
            seen += 1;
            ControlFlow::Continue(())
        });
        prop_assert!(seen < 100_000);
        let _ = find_le(&mut reader, volume, &both.body, key);
        let mut body = both.body;
        let _ = insert(&mut bare.begin(30_000), &mut body, both.goal, item(key, both.goal));
        let mut body = both.body;
        let _ = remove(&mut bare.begin(30_000), &mut body, key / 4 * 4);
    }

    #[test]
    fn corner_35_a_hostile_root_is_an_error_and_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), INLINE_BYTES),
        level in 0u8..9,
        count in 0u8..5,
    ) {
        let bare = bare(512);
        let volume = &bare.store.volume;
        let mut body: Body = bytes.try_into().unwrap();
        body[..8].copy_from_slice(&[0x7e, 0x5f, level, 0, count, 0, 0, 0]);
        // Point at blocks that exist, so that the walk goes on to them.
        for item in 0..ROOT_ITEMS {
            let block = volume.group_start(0).0 + 2 + u64::from(body[16 + item * 24]) % 100;
            body[16 + item * 24..24 + item * 24].copy_from_slice(&block.to_le_bytes());
            body[8 + item * 24 + 2..16 + item * 24].fill(0);
        }
        let mut reader = Current(&bare.store.journal);
        let _ = for_each(&mut reader, volume, &body, 0, |_| ControlFlow::Continue(()));
        let _ = for_each_node(&mut reader, volume, &body, |_| Ok(()));
        let goal = volume.group_start(0).offset(50);
        let _ = insert(&mut bare.begin(30_000), &mut body.clone(), goal, item(400, goal));
        let _ = remove(&mut bare.begin(30_000), &mut body, 0);
    }
}

#[test]
fn items_inserted_in_order_fill_their_nodes() {
    let bare = bare(2048);
    let mut both = Both::new(&bare);
    let count = 10 * NODE_ITEMS as u64;
    both.run(&Step::Insert {
        key: 0,
        count,
        stride: 1,
    });
    both.check();
    assert!(both.nodes <= 12, "{} nodes for {count} items", both.nodes);
}
