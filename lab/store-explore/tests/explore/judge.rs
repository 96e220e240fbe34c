//! Conditions that must hold in every world.

use std::collections::BTreeSet;

use steadfast_store::protocol::{Body, LocalTime, ObjectName, Slot, SlotName, Stamp, Stop, Term};

use crate::world::{Bounds, Content, Outer, TICK_MS, World, call_of};

impl World {
    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// One life claims a term.
    pub(crate) fn judge_claim(&mut self, bounds: &Bounds, i: usize) {
        let term = self.lives[i].writer.term();
        let owner = *self.owners.entry(term).or_insert(i);
        self.require(owner == i || bounds.losses, || {
            format!(
                "writers {} and {} both claimed term {}",
                owner + 1,
                i + 1,
                term.0
            )
        });
    }

    /// The opening of a term contains all that was acknowledged in earlier terms, each call once, and openings are prefixes
    /// of one another.
    pub(crate) fn judge_opening(&mut self, i: usize, term: Term, first: Slot) {
        self.lives[i].opened = Some((term, first));
        let Some(history) = self.lives[i].history.clone() else {
            self.require(false, || {
                format!("term {} opened without its checkpoint", term.0)
            });
            return;
        };
        self.require(history.len() as u64 + 1 == first.0, || {
            format!(
                "term {} begins at slot {} after {} epochs",
                term.0,
                first.0,
                history.len()
            )
        });
        let kept = self
            .acknowledged
            .iter()
            .filter(|((other, _), _)| *other < term)
            .find(|((_, slot), stamp)| history.get(slot.0 as usize - 1) != Some(*stamp))
            .map(|((other, slot), _)| (other.0, slot.0));
        self.require(kept.is_none(), || {
            format!("term {} opened without slot {:?} of an earlier term (term, slot), which was acknowledged", term.0, kept)
        });
        let calls: Vec<u8> = history.iter().filter_map(|stamp| call_of(*stamp)).collect();
        let once = calls.iter().collect::<BTreeSet<_>>().len() == calls.len();
        self.require(once, || {
            format!("term {} opened with a call that was done twice", term.0)
        });
        let apart = self.openings.iter().find(|(other, opening)| {
            let (short, long) = if **other < term {
                (*opening, &history)
            } else {
                (&history, *opening)
            };
            !long.starts_with(short)
        });
        let apart = apart.map(|(other, _)| other.0);
        self.require(apart.is_none(), || {
            format!(
                "the openings of terms {} and {:?} are no prefixes of one another",
                term.0, apart
            )
        });
        let mixed = history.iter().enumerate().find(|(at, stamp)| {
            let maker = self.lives.iter().enumerate().find_map(|(i, life)| {
                let own = i as u128 + 1 == stamp.0 >> 16;
                let q = life.appended.iter().position(|other| other == *stamp)?;
                own.then_some((life, q))
            });
            maker.is_none_or(|(life, q)| {
                let before = life.history.iter().flatten().chain(&life.appended[..q]);
                !before.eq(&history[..*at])
            })
        });
        let mixed = mixed.map(|(at, _)| at + 1);
        self.require(mixed.is_none(), || {
            format!("term {} opened with a mixture: the writer of slot {mixed:?} had another history before it", term.0)
        });
        let again = self.openings.insert(term, history).is_some();
        self.require(!again, || format!("term {} was opened twice", term.0));
        self.judge_leases();
    }

    pub(crate) fn judge_acknowledgement(&mut self, bounds: &Bounds, i: usize, slot: Slot) {
        let life = &mut self.lives[i];
        let Some((term, first)) = life.opened else {
            return;
        };
        life.acknowledged += 1;
        let index = (slot.0 - first.0) as usize;
        let stamp = life.appended[index];
        let (first_sent, last_sent) = life.sent[index];
        let sent = if bounds.has(Outer::LeaseFromRepeat) {
            last_sent
        } else {
            first_sent
        };
        if bounds.ticks > 0 {
            life.lease
                .renewed(LocalTime(sent * TICK_MS), LocalTime(self.clock * TICK_MS));
        }
        self.answered.extend(call_of(stamp));
        let lost = self
            .openings
            .range(Term(term.0 + 1)..)
            .find(|(_, opening)| opening.get(slot.0 as usize - 1) != Some(&stamp))
            .map(|(other, _)| other.0);
        self.require(lost.is_none(), || {
            format!(
                "slot {} of term {} was acknowledged, though term {:?} opened without it",
                slot.0, term.0, lost
            )
        });
        let twice = self
            .acknowledged
            .keys()
            .any(|(other, at)| *at == slot && *other != term);
        self.require(!twice, || {
            format!("slot {} was acknowledged in two terms", slot.0)
        });
        self.acknowledged.insert((term, slot), stamp);
        self.judge_leases();
    }

    /// No writer answers clients after a later one has opened its term, and may answer.
    pub(crate) fn judge_leases(&mut self) {
        let newest = self.openings.keys().next_back().copied();
        let now = LocalTime(self.clock * TICK_MS);
        let late = self.lives.iter().position(|life| {
            life.opened.is_some_and(|(term, _)| Some(term) < newest) && life.lease.holds(now)
        });
        self.require(late.is_none(), || {
            format!(
                "writer {:?} still serves reads, though a later one has opened its term",
                late.map(|i| i + 1)
            )
        });
    }

    /// A reader's objects are there as long as it may use them.
    pub(crate) fn judge_reader(&mut self, deleted: ObjectName) {
        let now = LocalTime(self.clock * TICK_MS);
        let used = self
            .reader
            .as_ref()
            .is_some_and(|reader| reader.lease.holds(now) && reader.uses.contains(&deleted));
        self.require(!used, || {
            format!("{deleted} was deleted while a reader may use it")
        });
    }

    /// A writer stops only if there is another claim. Its own epoch is no reason.
    pub(crate) fn judge_stop(&mut self, bounds: &Bounds, i: usize, why: Stop) {
        let writer = &self.lives[i].writer;
        let (term, head) = (writer.term(), &self.store.head.0);
        let alone = head.claim.term == term;
        let own = |at: SlotName| {
            let (Some(Body::Epoch(stamp)), Some((_, first))) =
                (self.store.slots.get(&at), self.lives[i].opened)
            else {
                return false;
            };
            let index = at.slot.0.checked_sub(first.0);
            index.is_some_and(|index| self.lives[i].appended.get(index as usize) == Some(stamp))
        };
        let sound = match why {
            Stop::Claimed(_) => !alone,
            Stop::Foreign(at) => !alone && !own(at),
            Stop::Doubled(_) | Stop::Missing(_) | Stop::Damaged(_) | Stop::WentBack { .. } => false,
        };
        self.require(sound || bounds.losses, || {
            format!("writer {} stopped without reason: {why}", i + 1)
        });
    }

    /// An epoch that is in the store names nothing that is not.
    pub(crate) fn judge_data(&mut self, stamp: Stamp) {
        let life = (stamp.0 >> 16) as usize - 1;
        let data = self.lives[life].data.filter(|_| (stamp.0 >> 8) & 0xff == 0);
        let there = data.is_none_or(|name| self.store.exists(name));
        self.require(there, || {
            format!(
                "an epoch of writer {} names data that has not landed",
                life + 1
            )
        });
    }

    /// Objects that `head` and the snapshots name.
    pub(crate) fn named(&self) -> BTreeSet<ObjectName> {
        let head = &self.store.head.0;
        let mut named = BTreeSet::new();
        named.extend(head.base.root.map(|root| root.name));
        if let Some(roots) = head.roots {
            named.insert(roots.name);
            if let Some(Content::Roots(pins)) = self.contents.get(&roots.stamp) {
                named.extend(pins);
            }
        }
        for span in &head.spans {
            let last = match span.last {
                Some(last) => last,
                // Acknowledged calls of the open term.
                None => {
                    let mut acknowledged = self
                        .acknowledged
                        .keys()
                        .filter(|(term, _)| *term == span.term);
                    acknowledged.next_back().map_or(Slot(0), |(_, slot)| *slot)
                }
            };
            named.extend((span.first.0..=last.0).map(|slot| {
                ObjectName::Log(SlotName {
                    term: span.term,
                    slot: Slot(slot),
                })
            }));
        }
        named
    }

    /// All that `head` and the snapshots name is there, and `head` is well formed.
    pub(crate) fn judge_named(&mut self) {
        let formed = self.store.head.0.check();
        self.require(formed.is_ok(), || format!("head is malformed: {formed:?}"));
        let missing = self
            .named()
            .into_iter()
            .find(|name| !self.store.exists(*name));
        self.require(missing.is_none(), || {
            format!(
                "head or a snapshot names {}, which is not there",
                missing.map_or(String::new(), |name| name.to_string())
            )
        });
    }
}
