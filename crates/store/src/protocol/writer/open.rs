//! Claim, scan, seal, open.

use super::{Event, Fault, Goal, Output, Phase, Stop, Writer};
use crate::protocol::{Answer, Body, Claim, Head, Request, Slot, SlotName, SlotSeen, Term};

/// A scan of the history, up to the first free slot or the seal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scan {
    /// The next slot to decide.
    at: Slot,
    /// The first slot that was not requested.
    ahead: Slot,
    /// Slots that were read ahead, from `at` on.
    seen: Vec<(Slot, SlotSeen)>,
    /// Slot `at` belongs to a closed term and holds no epoch.
    missing: bool,
}

impl Scan {
    pub(super) fn missing(&self) -> Option<Slot> {
        self.missing.then_some(self.at)
    }
}

impl Writer {
    pub(super) fn make_claim(&mut self, now: Head, out: &mut Output) {
        self.claim = Claim {
            term: Term(now.claim.term.0.saturating_add(1)),
            ..self.claim
        };
        self.head = Some(now.clone());
        if self.has(Fault::NoClaim) {
            out.tell(Event::Claimed(now));
            self.begin_scan(out);
        } else {
            self.send_swap(Goal::Claim, out);
        }
    }

    pub(super) fn begin_scan(&mut self, out: &mut Output) {
        let Some(head) = &self.head else { return };
        let at = head.base.through.next();
        self.phase = Phase::Scanning(Scan {
            at,
            ahead: at,
            seen: Vec::new(),
            missing: false,
        });
        self.scan_on(out);
    }

    /// A slot was read.
    pub(super) fn scanned(&mut self, at: Slot, seen: SlotSeen, out: &mut Output) {
        if let Phase::Scanning(scan) = &mut self.phase
            && at >= scan.at
        {
            scan.seen.retain(|(slot, _)| *slot != at);
            scan.seen.push((at, seen));
            self.scan_on(out);
        }
    }

    /// Decides the slots that are known, and requests the next ones.
    fn scan_on(&mut self, out: &mut Output) {
        let (nonce, no_seal) = (self.claim.nonce, self.has(Fault::NoSeal));
        loop {
            let (Phase::Scanning(scan), Some(head)) = (&mut self.phase, &self.head) else {
                return;
            };
            let Some(name) = head.slot_name(scan.at) else {
                return;
            };
            while scan.ahead.0 < scan.at.0.saturating_add(self.settings.scan_ahead.max(1)) {
                let Some(name) = head.slot_name(scan.ahead) else {
                    break;
                };
                out.send(Request::ReadSlot(name));
                scan.ahead = scan.ahead.next();
            }
            let Some(known) = scan.seen.iter().position(|(slot, _)| *slot == scan.at) else {
                return;
            };
            let (_, seen) = scan.seen.swap_remove(known);
            let open = head.open_term() == Some(name.term);
            match seen {
                SlotSeen::Holds(Body::Epoch(stamp)) => {
                    scan.at = scan.at.next();
                    out.tell(Event::Found { at: name, stamp });
                }
                SlotSeen::Holds(Body::Seal(_)) if open => return self.sealed(out),
                SlotSeen::Absent if open && no_seal => return self.sealed(out),
                SlotSeen::Absent if open => {
                    return out.send(Request::PutSlot {
                        at: name,
                        body: Body::Seal(nonce),
                    });
                }
                SlotSeen::Damaged => return self.stop(Stop::Damaged(name), out),
                // A slot of a closed term is gone: a successor may have collected it.
                SlotSeen::Absent | SlotSeen::Holds(_) => {
                    scan.missing = true;
                    return out.send(Request::ReadHead);
                }
            }
        }
    }

    /// The outcome of the seal's PUT. Unless the store confirms it, the slot is read: an epoch counts, any seal seals, and if
    /// the slot is free, the seal is sent again.
    pub(super) fn put_seal(&mut self, at: SlotName, answer: &Answer, out: &mut Output) {
        let Phase::Scanning(scan) = &self.phase else {
            return;
        };
        if scan.at != at.slot {
            return;
        }
        if *answer == Answer::Done
            || (*answer == Answer::Refused && self.has(Fault::StaleListBelieved))
        {
            self.sealed(out);
        } else {
            out.send(Request::ReadSlot(at));
        }
    }

    fn sealed(&mut self, out: &mut Output) {
        let (Phase::Scanning(scan), Some(head)) = (&self.phase, &self.head) else {
            return;
        };
        let first = scan.at;
        let event = Event::Sealed {
            previous: head.open_term().unwrap_or_default(),
            first,
            released: head.released,
        };
        self.phase = Phase::Sealed(first);
        out.tell(event);
    }

    /// Opens the writer's term, after [`Event::Sealed`]. At any other time it does nothing.
    pub fn open(&mut self) -> Output {
        let mut out = Output::default();
        if let Phase::Sealed(first) = self.phase
            && self.swap.is_none()
        {
            self.send_swap(Goal::Open { first }, &mut out);
        }
        out
    }
}
