//! The writer: claim, seal, open; then slots, objects and checkpoints.
//!
//! Invariants:
//! * A swap is sent again unchanged until its outcome is known. A read of `head` shows the outcome: `head` holds the change; or
//!   it is still the version that the swap replaces (then the swap is sent again); or it is another version, whose ETag does
//!   not match (then the swap can never take effect, and a new one is made from the head that was read).
//! * Only a higher claim fences. Machines that change `head` for another reason keep the claim, and the writer merges.
//! * [`Stop`] is sticky: after it nothing is acknowledged and nothing is sent.

mod log;
mod open;

use super::fault::Fault;
use super::{
    Answer, Base, Body, Claim, Faults, Head, Nonce, ObjectName, Reference, Request, Slot, SlotName,
    SlotSeen, Stamp, Term,
};
pub use log::Kind;
use log::Log;
use open::Scan;

/// What a read of `head` proves to the writer of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// When the request took effect, no later term was claimed.
    Own,
    /// A later term is claimed: hand the head to the machine.
    Fenced,
    /// The head proves nothing.
    None,
}

/// Limits of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Slots in flight: sent or waiting for their data, and not acknowledged. At least 1.
    pub window: u64,
    /// Slots that recovery reads ahead. At least 1.
    pub scan_ahead: u64,
    /// Most terms with slots after the checkpoint in `head`. With more, a checkpoint must come before the next slot.
    pub spans_max: usize,
    /// Planted faults.
    pub faults: Faults,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window: 8,
            scan_ahead: 64,
            spans_max: 64,
            faults: Faults::default(),
        }
    }
}

/// The reason why a writer stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stop {
    /// A higher term was claimed.
    #[error("the volume was taken over (term {})", .0.term.0)]
    Claimed(Claim),
    /// A slot of this writer's term holds a successor's seal, or another epoch than this writer's.
    #[error("the volume was taken over: {} is not this writer's", ObjectName::Log(*.0))]
    Foreign(SlotName),
    /// An object under a name of this writer has other contents, or the term was opened by another machine: two machines share
    /// one identity, as copies of a virtual machine do.
    #[error("{0} was written by another machine under this writer's name")]
    Doubled(ObjectName),
    /// A slot that `head` names is absent, or holds a seal instead of an epoch: the store lost it, or somebody deleted it.
    #[error("{} is missing, though the history needs it", ObjectName::Log(*.0))]
    Missing(SlotName),
    /// A slot fails its checks.
    #[error("{} is damaged", ObjectName::Log(*.0))]
    Damaged(SlotName),
    /// The store shows an older `head` than before, or another one of the same version.
    #[error("the store shows another head than before: version {shown} after {seen}")]
    WentBack {
        /// The newest counter seen.
        seen: u64,
        /// The counter shown now.
        shown: u64,
    },
}

/// An event that a writer reports to its driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The claim is in this head. The driver loads the checkpoint.
    Claimed(Head),
    /// Recovery found the next epoch of the history. Each epoch is reported once, in order.
    Found {
        /// Its slot.
        at: SlotName,
        /// Its contents.
        stamp: Stamp,
    },
    /// The old term is sealed. The driver replays the epochs found, waits for the old term's lease unless `released`, then
    /// calls [`Writer::open`].
    Sealed {
        /// The term that ended.
        previous: Term,
        /// The slot of its seal, and the first slot of this writer's term.
        first: Slot,
        /// The old writer said that it serves no client.
        released: bool,
    },
    /// This writer's term is open.
    Opened {
        /// The term.
        term: Term,
        /// Its first slot.
        first: Slot,
    },
    /// An object of [`Writer::put`] is in the store.
    Landed(ObjectName),
    /// A slot is durable: every later opening has it and all slots before it.
    Acknowledged(Slot),
    /// A checkpoint is published. The driver may give the retired objects to the collector.
    Published(Vec<ObjectName>),
    /// Another machine changed the snapshots while a checkpoint was being published. The checkpoint is not published: the
    /// driver reads the new head's roots, decides again which objects to retire, and publishes again.
    Reconsider(Head),
    /// The writer stopped. Sticky.
    Stopped(Stop),
}

/// The reason why a call was refused. The call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Full {
    /// The writer does not own the volume: not yet, no longer, or it has released it.
    #[error("the writer's term is not open")]
    NotOpen,
    /// The window is full: wait for an acknowledgement.
    #[error("the window of slots in flight is full")]
    Window,
    /// `head` lists too many terms: publish a checkpoint first.
    #[error("a checkpoint is due before the next slot")]
    Spans,
    /// A checkpoint is being published, or a writer that wants to release the volume has slots in flight.
    #[error("a checkpoint is being published, or slots are in flight")]
    Busy,
    /// The checkpoint has slots that are not acknowledged, or fewer than the published one.
    #[error("the checkpoint is not between the published one and the last acknowledged slot")]
    Range,
    /// The checkpoint's root has not landed, or is the published one.
    #[error("the checkpoint's root is not new, or not in the store yet")]
    Root,
}

/// Requests to send and events to handle, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Requests to send. They may run concurrently.
    pub requests: Vec<Request>,
    /// Events to handle.
    pub events: Vec<Event>,
}

impl Output {
    fn send(&mut self, request: Request) {
        self.requests.push(request);
    }

    fn tell(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// The purpose of a swap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Goal {
    Claim,
    Open {
        first: Slot,
    },
    Publish {
        base: Base,
        retires: Vec<ObjectName>,
        release: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Swap {
    to: Head,
    goal: Goal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// `head` is being read, or the claim is in flight.
    Claiming,
    /// The history is being read.
    Scanning(Scan),
    /// The old term is sealed at this slot.
    Sealed(Slot),
    /// The term is open.
    Open(Log),
    Stopped(Stop),
}

/// One ownership of the volume, from its claim to its end. A restarted machine makes a new writer with a new nonce.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    settings: Settings,
    claim: Claim,
    phase: Phase,
    /// The newest head that this writer read or wrote.
    head: Option<Head>,
    swap: Option<Swap>,
}

impl Writer {
    /// A new writer, and its first request. The nonce must never have been used.
    #[must_use]
    pub fn new(settings: Settings, nonce: Nonce) -> (Writer, Output) {
        let claim = Claim {
            term: Term(0),
            nonce,
        };
        let writer = Writer {
            settings,
            claim,
            phase: Phase::Claiming,
            head: None,
            swap: None,
        };
        let mut out = Output::default();
        out.send(Request::ReadHead);
        (writer, out)
    }

    /// The term, once it is claimed.
    #[must_use]
    pub fn term(&self) -> Term {
        self.claim.term
    }

    /// The newest head that this writer knows.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The reason why the writer stopped, if it has.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        match self.phase {
            Phase::Stopped(why) => Some(why),
            _ => None,
        }
    }

    /// What a head proves that the driver read on its own, concurrently with the machine's requests. Such a read may show a
    /// version that a swap has replaced since, so it is passed to the machine only if it fences.
    #[must_use]
    pub fn proof(&self, seen: &Head) -> Proof {
        let open = matches!(self.phase, Phase::Open(_));
        let released = self.head.as_ref().is_some_and(|head| head.released);
        match seen.claim == self.claim {
            true if open && !seen.released && !released => Proof::Own,
            false if seen.claim.term > self.claim.term => Proof::Fenced,
            _ => Proof::None,
        }
    }

    /// Takes the outcome of a request.
    pub fn answer(&mut self, request: &Request, answer: Answer) -> Output {
        let mut out = Output::default();
        if self.stopped().is_some() {
            return out;
        }
        match (request, answer) {
            (Request::ReadHead, Answer::Head(head)) => self.read_head(head, &mut out),
            (Request::SwapHead { to, .. }, Answer::Done) => self.swapped(to, &mut out),
            (Request::SwapHead { .. }, _) => out.send(Request::ReadHead),
            #[cfg(feature = "faults")]
            (Request::WriteHead(to), Answer::Done) => self.swapped(to, &mut out),
            #[cfg(feature = "faults")]
            (Request::WriteHead(_), _) => out.send(request.clone()),
            (Request::ReadSlot(at), Answer::Slot(seen)) => self.read_slot(*at, seen, &mut out),
            (
                Request::PutSlot {
                    at,
                    body: Body::Seal(_),
                },
                answer,
            ) => self.put_seal(*at, &answer, &mut out),
            (
                Request::PutSlot {
                    at,
                    body: Body::Epoch(_),
                },
                answer,
            ) => self.put_epoch(*at, &answer, &mut out),
            (Request::PutObject { name, .. }, Answer::Done) => self.landed(*name, &mut out),
            (Request::PutObject { name, .. }, _) => out.send(Request::ReadObject(*name)),
            (Request::ReadObject(name), Answer::Object(seen)) => {
                self.read_object(*name, seen, &mut out);
            }
            // A read without an answer is sent again: reads have no effect.
            (Request::ReadHead | Request::ReadSlot(_) | Request::ReadObject(_), _) => {
                out.send(request.clone());
            }
        }
        out
    }

    fn stop(&mut self, why: Stop, out: &mut Output) {
        self.phase = Phase::Stopped(why);
        self.swap = None;
        out.tell(Event::Stopped(why));
    }

    fn has(&self, fault: Fault) -> bool {
        self.settings.faults.has(fault)
    }

    fn read_slot(&mut self, at: SlotName, seen: SlotSeen, out: &mut Output) {
        match &self.phase {
            Phase::Scanning(_) => self.scanned(at.slot, seen, out),
            Phase::Open(_) => self.read_own_slot(at, seen, out),
            // A slot that was read ahead, after the seal: garbage.
            _ => {}
        }
    }

    /// `head` was read: at the start, after a swap with an unknown outcome, because a slot is missing, or because the driver
    /// checked the ownership.
    fn read_head(&mut self, now: Head, out: &mut Output) {
        let known = self.head.as_ref().map(|head| head.version);
        let seen = known.map_or(0, |version| version.counter);
        let forked = now.version.counter == seen && known.is_some_and(|known| known != now.version);
        if now.version.counter < seen || forked {
            return self.stop(
                Stop::WentBack {
                    seen,
                    shown: now.version.counter,
                },
                out,
            );
        }
        let Some(swap) = self.swap.take() else {
            return self.look_at_head(now, out);
        };
        if !matches!(swap.goal, Goal::Claim) && now.claim != self.claim && !self.has(Fault::NoClaim)
        {
            return self.stop(Stop::Claimed(now.claim), out);
        }
        let done = match &swap.goal {
            Goal::Claim if self.has(Fault::NonceRepeated) => now.claim.term == self.claim.term,
            Goal::Claim => now.claim == self.claim,
            Goal::Open { .. } => now.open_term() == Some(self.claim.term),
            Goal::Publish { base, release, .. } => now.base == *base && now.released == *release,
        };
        if done {
            return self.reached(swap, now, out);
        }
        if self
            .head
            .as_ref()
            .is_some_and(|head| head.version == now.version)
        {
            out.send(Request::SwapHead {
                from: now.version,
                to: swap.to.clone(),
            });
            self.swap = Some(swap);
            return;
        }
        match swap.goal {
            Goal::Claim => self.make_claim(now, out),
            Goal::Publish { ref retires, .. }
                if now.roots != swap.to.roots
                    && !retires.is_empty()
                    && !self.has(Fault::SnapshotNotPinned) =>
            {
                self.head = Some(now.clone());
                out.tell(Event::Reconsider(now));
            }
            goal => {
                self.head = Some(now);
                self.send_swap(goal, out);
            }
        }
    }

    /// `head` was read while no swap is in flight.
    fn look_at_head(&mut self, now: Head, out: &mut Output) {
        if self.phase == Phase::Claiming {
            return self.make_claim(now, out);
        }
        if now.claim != self.claim {
            return self.stop(Stop::Claimed(now.claim), out);
        }
        // A slot of the history is gone, and no successor has collected it: the store lost it.
        if let (Phase::Scanning(scan), Some(head)) = (&self.phase, &self.head)
            && let Some(missing) = scan.missing().and_then(|slot| head.slot_name(slot))
        {
            return self.stop(Stop::Missing(missing), out);
        }
        if !matches!(self.phase, Phase::Scanning(_)) {
            self.head = Some(now);
        }
    }

    fn swapped(&mut self, to: &Head, out: &mut Output) {
        if let Some(swap) = self.swap.take_if(|swap| swap.to.version == to.version) {
            self.reached(swap, to.clone(), out);
        }
    }

    /// A swap's change is in `head`.
    fn reached(&mut self, swap: Swap, now: Head, out: &mut Output) {
        self.head = Some(now.clone());
        match swap.goal {
            // Only a machine with the same nonce can have opened a term that was claimed just now.
            Goal::Claim if now.open_term() == Some(self.claim.term) => {
                self.stop(Stop::Doubled(ObjectName::Head), out);
            }
            Goal::Claim => {
                out.tell(Event::Claimed(now));
                self.begin_scan(out);
            }
            Goal::Open { first } => {
                self.phase = Phase::Open(Log::new(first));
                out.tell(Event::Opened {
                    term: self.claim.term,
                    first,
                });
            }
            Goal::Publish { retires, .. } => out.tell(Event::Published(retires)),
        }
    }

    /// Makes the next version of the newest known head for this goal, and sends the swap.
    fn send_swap(&mut self, goal: Goal, out: &mut Output) {
        let Some(head) = &self.head else { return };
        let mut to = head.successor(self.claim.nonce);
        match &goal {
            Goal::Claim => to.claim = self.claim,
            Goal::Open { first } => {
                to.claim = self.claim;
                to.released = false;
                if let Some(old) = to
                    .spans
                    .pop_if(|old| old.first >= *first || old.last.is_none())
                {
                    // The old term ends before its seal. Without a slot after the checkpoint, it is left out.
                    if old.first < *first {
                        to.spans.push(super::Span {
                            last: Some(first.before()),
                            ..old
                        });
                    }
                }
                to.spans.push(super::Span {
                    term: self.claim.term,
                    first: *first,
                    last: None,
                });
            }
            Goal::Publish { base, release, .. } => {
                to.base = *base;
                to.released = *release;
                to.spans
                    .retain(|span| span.last.is_none_or(|last| last > base.through));
                if let Some(oldest) = to.spans.first_mut() {
                    oldest.first = oldest.first.max(base.through.next());
                }
            }
        }
        #[cfg(feature = "faults")]
        if matches!(goal, Goal::Publish { .. }) && self.has(Fault::CheckpointWithoutSwap) {
            out.send(Request::WriteHead(to.clone()));
            self.swap = Some(Swap { to, goal });
            return;
        }
        out.send(Request::SwapHead {
            from: head.version,
            to: to.clone(),
        });
        self.swap = Some(Swap { to, goal });
    }

    /// Publishes a checkpoint by a swap of `head`. It contains all slots up to `base.through`, and its root has landed.
    ///
    /// `retires` are the objects that neither this checkpoint nor any root in the newest known [`head`](Self::head) names.
    /// [`Event::Published`] returns them, and they may be deleted from then on. `release`: this writer writes no more and
    /// serves no client.
    ///
    /// # Errors
    ///
    /// The term is not open, another checkpoint is being published, or this one is out of range.
    pub fn publish(
        &mut self,
        base: Base,
        retires: Vec<ObjectName>,
        release: bool,
    ) -> Result<Output, Full> {
        let (Phase::Open(log), Some(head)) = (&self.phase, &self.head) else {
            return Err(Full::NotOpen);
        };
        if self.swap.is_some() || (release && log.busy()) {
            return Err(Full::Busy);
        }
        // A successor may already rely on the release.
        if head.released {
            return Err(Full::NotOpen);
        }
        if base.through > log.acknowledged() || base.through < head.base.through {
            return Err(Full::Range);
        }
        // Retiring needs a new root: with the old one, a read of `head` could not show whether the swap took effect.
        if base.root == head.base.root && !(release && base == head.base && retires.is_empty()) {
            return Err(Full::Root);
        }
        let uploading = |root: Reference| log.uploading(root.name);
        if base.root.is_some_and(uploading) && !self.has(Fault::RootNamedEarly) {
            return Err(Full::Root);
        }
        let mut out = Output::default();
        let goal = if self.has(Fault::DeletedBeforeSwap) {
            out.tell(Event::Published(retires));
            Goal::Publish {
                base,
                retires: Vec::new(),
                release,
            }
        } else {
            Goal::Publish {
                base,
                retires,
                release,
            }
        };
        self.send_swap(goal, &mut out);
        Ok(out)
    }

    /// The slots that a checkpoint up to `through` supersedes, unless a root names them. A term's seal lies after its last
    /// slot, so it is never among them: seals are never deleted.
    #[must_use]
    pub fn superseded(&self, through: Slot) -> Vec<SlotName> {
        let Some(head) = &self.head else {
            return Vec::new();
        };
        let through = if self.has(Fault::SlotDeletedEarly) {
            through.next()
        } else {
            through
        };
        let mut names = Vec::new();
        for span in &head.spans {
            let mut last = span.last.unwrap_or(through);
            if span.last.is_some() && self.has(Fault::SealDeleted) {
                last = last.next();
            }
            let slots = span.first.0
                ..=last.0.min(
                    through
                        .0
                        .max(last.0 * u64::from(self.has(Fault::SealDeleted))),
                );
            names.extend(slots.map(|slot| SlotName {
                term: span.term,
                slot: Slot(slot),
            }));
        }
        names
    }
}
