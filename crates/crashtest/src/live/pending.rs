//! Changes of a live mount that a power cut may still undo.
//!
//! Invariants: `base` is durable; `run.steps` is every call since, in the order of effect. When a sync leaves nothing that is
//! not durable, or more is pending than can be kept, the steps move to the base: a kernel writes old changes back by
//! itself, too.
//!
//! The cost of a cut grows with the number of pending effects, which is bounded; the bytes are not touched before the
//! power is on again. When much is pending, adjacent writes become one, and their parts become larger
//! ([`Effects::coarse`]).

use crate::effects::{Bits, Disk, Effects, Ino, Run, Step, What};
use crate::models::{Classes, Model};
use crate::states::{Chance, Former, Tear};
use std::sync::Arc;

/// Maximum number of pending effects, by an estimate.
const EFFECTS_MAX: usize = 9_000;
/// Maximum number of bytes of pending writes.
const BYTES_MAX: u64 = 2 << 30;
/// Upper limit of the smallest part of a write.
const PART_MAX: u64 = 1 << 20;
/// Maximum length of a write that adjacent ones become.
const WRITE_MAX: usize = 1 << 20;

/// Choice of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Only durable changes.
    Durable,
    /// Durable changes, and a random part of the others.
    Random,
    /// Durable changes, and all names and sizes that may be there without their data.
    Worst,
}

impl Policy {
    /// The policy of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Policy> {
        Some(match name {
            "durable" => Policy::Durable,
            "random" => Policy::Random,
            "worst" => Policy::Worst,
            _ => return None,
        })
    }
}

/// Result of a cut.
#[derive(Clone, Debug)]
pub struct Cut {
    effects: Effects,
    bits: Bits,
    tear: Option<Tear>,
    /// Number of effects that were pending.
    pub pending: usize,
    /// Number of these that are lost.
    pub lost: usize,
    /// Bytes of data among them.
    pub lost_bytes: u64,
}

impl Cut {
    /// The tree.
    #[must_use]
    pub fn disk(&self) -> Disk {
        Former::once(&self.effects, &self.bits, self.tear)
    }
}

/// One change that is not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volatile {
    /// The inode that is changed, or named.
    pub ino: Option<Ino>,
    /// The kind of change.
    pub class: Classes,
    /// Range of data or sizes.
    pub part: Option<(u64, u64)>,
    /// The step that made it.
    pub step: usize,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Pending {
    model: Model,
    run: Run,
    /// Number of their effects, by an estimate.
    effects: usize,
    /// Bytes of their writes.
    bytes: u64,
    /// Smallest part of a write; 0: the model's unit.
    part: u64,
    /// Number of steps at which to check next whether all is durable.
    ask_at: usize,
    /// Calls since the beginning.
    number: u64,
}

impl Pending {
    /// All of `base` is durable.
    #[must_use]
    pub fn new(model: Model, base: Disk) -> Pending {
        Pending {
            model,
            run: Run {
                base,
                steps: Vec::new(),
            },
            effects: 0,
            bytes: 0,
            part: 0,
            ask_at: 0,
            number: 0,
        }
    }

    /// The run since everything was durable.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn effects(&self) -> Effects {
        Effects::coarse(&self.run, &self.model, self.part)
    }

    /// Number of effects of a step, by an estimate, and of bytes that it writes.
    fn weight(&self, what: &What) -> (usize, u64) {
        let What::Write { bytes, .. } = what else {
            return (2, 0);
        };
        let len = bytes.len() as u64;
        let parts = len.div_ceil(self.part.max(self.model.unit)).min(64) as usize;
        (1 + parts + parts.min(16), len)
    }

    /// Adds a call.
    pub fn push(&mut self, what: What) {
        self.number += 1;
        let (effects, bytes) = self.weight(&what);
        self.effects += effects;
        self.bytes += bytes;
        let is_sync = matches!(
            what,
            What::Fsync { .. } | What::Sync | What::SyncRange { .. }
        );
        self.run.steps.push(Step {
            number: self.number,
            what,
            text: String::new(),
            location: None,
            thread: 0,
            stack: 0,
        });
        let steps = self.run.steps.len();
        if self.effects > EFFECTS_MAX || self.bytes > BYTES_MAX {
            self.shrink();
        } else if (is_sync || !self.model.call.is_empty()) && steps >= self.ask_at {
            self.settle();
        }
    }

    /// Reduces the number of effects by larger parts; if that is not enough, all become durable.
    fn shrink(&mut self) {
        self.merge();
        while self.bytes <= BYTES_MAX {
            let weights = self.run.steps.iter().map(|s| self.weight(&s.what).0);
            self.effects = weights.sum();
            // Half, so that the cost of this stays in proportion.
            if self.effects <= EFFECTS_MAX / 2 {
                return;
            }
            if self.part >= PART_MAX {
                break;
            }
            self.part = (self.part.max(self.model.unit) * 4).min(PART_MAX);
        }
        self.write_back();
    }

    /// Merges writes that begin where the one before has ended.
    fn merge(&mut self) {
        let mut merged: Vec<Step> = Vec::new();
        let mut joined: Vec<u8> = Vec::new();
        let flush = |merged: &mut Vec<Step>, joined: &mut Vec<u8>| {
            if let Some(Step {
                what: What::Write { bytes, .. },
                ..
            }) = merged.last_mut()
                && !joined.is_empty()
            {
                *bytes = joined.as_slice().into();
            }
            joined.clear();
        };
        for step in self.run.steps.drain(..) {
            if let (
                What::Write { ino, offset, bytes },
                Some(What::Write {
                    ino: of,
                    offset: from,
                    bytes: before,
                }),
            ) = (&step.what, merged.last().map(|s| &s.what))
            {
                let len = before.len().max(joined.len());
                let follows = ino == of && *offset == from.saturating_add(len as u64);
                if follows && len + bytes.len() <= WRITE_MAX {
                    if joined.is_empty() {
                        joined.extend_from_slice(&before.all());
                    }
                    joined.extend_from_slice(&bytes.all());
                    continue;
                }
            }
            flush(&mut merged, &mut joined);
            merged.push(step);
        }
        flush(&mut merged, &mut joined);
        self.run.steps = merged;
    }

    /// Makes everything durable.
    pub fn write_back(&mut self) {
        let effects = self.effects();
        self.run.base = effects.disk(&Bits::first(effects.all.len()));
        self.run.steps.clear();
        (self.effects, self.bytes, self.part, self.ask_at) = (0, 0, 0, 0);
    }

    fn settle(&mut self) {
        let effects = self.effects();
        let durable = effects.demanded.last().map_or(0, |d| d.len());
        if durable == effects.all.len() {
            self.write_back();
        } else {
            // Asked again after as many steps: the cost stays in proportion.
            self.ask_at = self.run.steps.len() * 2;
        }
    }

    /// Drops the data of a file that is not durable: it never will be.
    pub fn drop_data(&mut self, ino: Ino) {
        let effects = self.effects();
        let durable = effects.demanded.last().cloned().unwrap_or_default();
        let is_durable = |step: usize| {
            let of_step = effects
                .all
                .iter()
                .enumerate()
                .filter(|(_, e)| e.step == step);
            let mut data = of_step.filter(|(_, e)| e.class.meets(Classes::DATA));
            data.all(|(i, _)| durable.get(i))
        };
        let steps = std::mem::take(&mut self.run.steps);
        let kept = steps.into_iter().enumerate().filter(|(i, step)| {
            !matches!(&step.what, What::Write { ino: of, .. } if *of == ino) || is_durable(*i)
        });
        self.run.steps = kept.map(|(_, step)| step).collect();
    }

    /// Result of a power cut now. A call in flight counts as not made.
    #[must_use]
    pub fn cut(&self, policy: Policy, seed: u64) -> Cut {
        let effects = self.effects();
        let floor: Arc<Bits> = effects.demanded.last().cloned().unwrap_or_default();
        let mut bits = floor.as_ref().clone();
        let mut tear = None;
        let mut chance = Chance::new(seed);
        let likely = [1, 3, 6, 9][chance.below(4)];
        for (i, effect) in effects.all.iter().enumerate() {
            if floor.get(i) || !bits.contains(&effect.before) {
                continue;
            }
            let kept = match policy {
                Policy::Durable => false,
                Policy::Random => chance.below(10) < likely,
                Policy::Worst => !effect.class.meets(Classes::DATA),
            };
            if kept {
                bits.insert(i);
            } else if policy == Policy::Random
                && effect.tears
                && tear.is_none()
                && chance.below(4) == 0
                && let Some((from, to)) = effect.part
            {
                let first = (from / self.model.tear + 1) * self.model.tear;
                let inside = to.saturating_sub(first).div_ceil(self.model.tear);
                if inside > 0 {
                    let at = first + chance.below(inside as usize) as u64 * self.model.tear;
                    tear = Some(Tear {
                        effect: i,
                        kept: (from, at),
                    });
                }
            }
        }
        let all = effects.all.iter().enumerate();
        let lost: Vec<_> = all.filter(|(i, _)| !bits.get(*i)).collect();
        let data = lost.iter().filter(|(_, e)| e.class.meets(Classes::DATA));
        Cut {
            pending: effects.all.len() - floor.len(),
            lost: lost.len(),
            lost_bytes: data.filter_map(|(_, e)| e.part).map(|(a, b)| b - a).sum(),
            effects,
            bits,
            tear,
        }
    }

    /// Changes that are not durable, in the order of the calls.
    #[must_use]
    pub fn status(&self) -> Vec<Volatile> {
        let effects = self.effects();
        let floor = effects.demanded.last().cloned().unwrap_or_default();
        let all = effects.all.iter().enumerate();
        all.filter(|(i, _)| !floor.get(*i))
            .map(|(_, e)| Volatile {
                ino: e.file,
                class: e.class,
                part: e.part,
                step: e.step,
            })
            .collect()
    }

    /// The name that a step gave or took, for reports.
    #[must_use]
    pub fn name_of(&self, step: usize) -> Option<&crate::effects::Entry> {
        match &self.run.steps.get(step)?.what {
            What::Make { at, .. } | What::Link { at, .. } | What::Remove { at } => Some(at),
            What::Rename { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// A write of which only the first half reaches the medium, whatever is synced.
#[must_use]
pub fn half(what: What) -> What {
    match what {
        What::Write { ino, offset, bytes } => {
            let half = (bytes.len() / 2).next_multiple_of(512).min(bytes.len());
            let bytes = bytes.get(0..half).unwrap_or_default().into_owned().into();
            What::Write { ino, offset, bytes }
        }
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::effects::{Bytes, Node, ROOT};
    use crate::real::allow::{Answer, Moment, allowed, describe};
    use steadfast_vfs::FileKind;

    /// A random workload on four names.
    fn step(pending: &Pending, chance: &mut Chance, next: &mut Ino) -> What {
        let effects = Effects::new(pending.run(), pending.model());
        let now = effects.disk(&Bits::first(effects.all.len()));
        let name = |n: usize| -> Arc<[u8]> { Arc::from(vec![b'a' + n as u8]) };
        let at = (ROOT, name(chance.below(4)));
        let Some(ino) = now.lookup(ROOT, &at.1) else {
            *next += 1;
            let node = Node::new(FileKind::Regular, 0o644);
            return What::Make {
                at,
                ino: *next,
                node,
            };
        };
        let bytes = Bytes::from(vec![b'A' + chance.below(26) as u8; 6000]);
        match chance.below(9) {
            0 => What::Remove { at },
            1 => What::Rename {
                from: at,
                to: (ROOT, name(chance.below(4))),
                exchange: false,
            },
            2 => What::Truncate {
                ino,
                size: chance.below(9000) as u64,
            },
            3 => What::Attr {
                ino,
                perm: Some(0o600 + chance.below(8) as u16),
                uid: None,
                gid: None,
            },
            4 => What::Fsync {
                ino,
                data_only: chance.below(2) == 0,
            },
            5 => What::Fsync {
                ino: ROOT,
                data_only: false,
            },
            _ => What::Write {
                ino,
                offset: chance.below(8000) as u64,
                bytes,
            },
        }
    }

    #[test]
    fn a_thousand_cuts_leave_states_that_the_model_allows() {
        let mut cuts = 0;
        for name in ["ext4", "xfs", "btrfs", "posix"] {
            let model = Model::shipped(name).unwrap();
            for seed in 0..14 {
                let mut chance = Chance::new(seed);
                let mut pending = Pending::new(model.clone(), Disk::default());
                let mut next = ROOT;
                for _ in 0..6 {
                    let what = step(&pending, &mut chance, &mut next);
                    pending.push(what);
                    let effects = Effects::new(pending.run(), &model);
                    let returned = effects.steps();
                    for policy in [Policy::Durable, Policy::Random, Policy::Worst] {
                        let disk = pending.cut(policy, seed + returned as u64).disk();
                        let answer = allowed(&effects, &model, Moment { returned }, &disk);
                        assert!(
                            matches!(answer, Answer::Allowed(_)),
                            "{name}, seed {seed}, {policy:?}: {}: {answer:?}\n{:?}",
                            describe(&disk),
                            pending.run().steps
                        );
                        cuts += 1;
                    }
                }
            }
        }
        assert!(cuts >= 1000, "{cuts}");
    }

    #[test]
    fn merged_writes_and_larger_parts_leave_states_that_the_model_allows() {
        for name in ["ext4", "xfs", "btrfs", "posix"] {
            let model = Model::shipped(name).unwrap();
            for seed in 0..10 {
                let mut chance = Chance::new(seed);
                let mut fine = Pending::new(model.clone(), Disk::default());
                fine.ask_at = usize::MAX;
                let mut next = ROOT;
                for _ in 0..7 {
                    let what = step(&fine, &mut chance, &mut next);
                    if let What::Write { ino, offset, bytes } = &what {
                        // In two pieces.
                        let half = bytes.len() / 2;
                        for (from, to) in [(0, half), (half, bytes.len())] {
                            let (ino, offset) = (*ino, offset + from as u64);
                            let bytes = bytes.get(from..to).unwrap().into_owned().into();
                            fine.push(What::Write { ino, offset, bytes });
                        }
                    } else {
                        fine.push(what);
                    }
                }
                let effects = fine.effects();
                let returned = effects.steps();
                let mut coarse = fine.clone();
                coarse.merge();
                coarse.part = 16_384;
                assert!(coarse.run.steps.len() <= fine.run.steps.len());
                assert!(coarse.effects().all.len() <= effects.all.len());
                let whole = |p: &Pending| {
                    let effects = p.effects();
                    describe(&effects.disk(&Bits::first(effects.all.len())))
                };
                assert_eq!(whole(&fine), whole(&coarse));
                for round in 0..20 {
                    let disk = coarse.cut(Policy::Random, seed * 100 + round).disk();
                    let answer = allowed(&effects, &model, Moment { returned }, &disk);
                    assert!(
                        matches!(answer, Answer::Allowed(_)),
                        "{name}, seed {seed}: {}: {answer:?}\n{:?}",
                        describe(&disk),
                        fine.run().steps
                    );
                }
            }
        }
    }

    #[test]
    fn a_gibibyte_may_be_pending_and_a_cut_takes_no_byte_of_it() {
        let mut pending = Pending::new(Model::shipped("ext4").unwrap(), Disk::default());
        let at = (ROOT, Arc::<[u8]>::from(b"a".as_slice()));
        let node = Node::new(FileKind::Regular, 0o644);
        pending.push(What::Make { at, ino: 2, node });
        // One buffer stands for all: what counts is how many effects they are.
        let bytes = Bytes::from(vec![1; 1 << 20]);
        for i in 0..1024 {
            let (offset, bytes) = (i << 20, bytes.clone());
            pending.push(What::Write {
                ino: 2,
                offset,
                bytes,
            });
        }
        assert_eq!(pending.run().steps.len(), 1025, "none became durable");
        assert!(pending.effects().all.len() <= EFFECTS_MAX);
        let cut = pending.cut(Policy::Durable, 1);
        assert_eq!(cut.lost_bytes, 1 << 30);
        // Small adjacent writes count as one.
        let mut small = Pending::new(Model::shipped("ext4").unwrap(), Disk::default());
        let bytes = Bytes::from(vec![1; 4096]);
        for i in 0..20_000 {
            let (offset, bytes) = (i << 12, bytes.clone());
            small.push(What::Write {
                ino: 2,
                offset,
                bytes,
            });
        }
        let pending: u64 = small
            .run()
            .steps
            .iter()
            .map(|s| small.weight(&s.what).1)
            .sum();
        assert_eq!(pending, 20_000 << 12, "none became durable");
    }

    #[test]
    fn synced_changes_survive_and_the_policy_chooses_among_the_others() {
        let mut pending = Pending::new(Model::shipped("ext4").unwrap(), Disk::default());
        let at = |n: &str| (ROOT, Arc::<[u8]>::from(n.as_bytes()));
        let make = |n: &str, ino: Ino| What::Make {
            at: at(n),
            ino,
            node: Node::new(FileKind::Regular, 0o644),
        };
        let write = |ino: Ino| What::Write {
            ino,
            offset: 0,
            bytes: Bytes::from(vec![b'x'; 100]),
        };
        pending.push(make("a", 2));
        pending.push(write(2));
        pending.push(What::Fsync {
            ino: 2,
            data_only: false,
        });
        assert_eq!(pending.status(), [], "all is durable");
        pending.push(make("b", 3));
        pending.push(write(3));
        assert!(pending.status().iter().any(|v| v.ino == Some(3)));
        let durable = pending.cut(Policy::Durable, 1).disk();
        assert_eq!(describe(&durable), "a 100 xx1");
        let worst = pending.cut(Policy::Worst, 1).disk();
        assert_eq!(describe(&worst), "a 100 xx1, b 100 0x1");
    }

    #[test]
    fn data_that_a_failed_fsync_dropped_is_lost_although_the_next_one_succeeds() {
        let mut pending = Pending::new(Model::shipped("ext4").unwrap(), Disk::default());
        let at = (ROOT, Arc::<[u8]>::from(b"a".as_slice()));
        let node = Node::new(FileKind::Regular, 0o644);
        let fsync = || What::Fsync {
            ino: 2,
            data_only: false,
        };
        pending.push(What::Make { at, ino: 2, node });
        pending.push(fsync());
        pending.push(What::Write {
            ino: 2,
            offset: 0,
            bytes: Bytes::from(vec![b'x'; 100]),
        });
        pending.drop_data(2);
        pending.push(fsync());
        assert_eq!(describe(&pending.cut(Policy::Worst, 1).disk()), "a 0");
    }
}
