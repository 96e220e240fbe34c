//! The open term: objects, slots in flight, acknowledgements in order.

use super::{Event, Fault, Full, Goal, Output, Phase, Stop, Swap, Writer};
use crate::protocol::{Answer, Body, ObjectName, Request, Slot, SlotName, SlotSeen, Stamp};

/// The slots and objects that a writer has in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Log {
    /// The slot after the last acknowledged one.
    first: Slot,
    /// The slots from `first` on, in order.
    flights: Vec<Flight>,
    /// Objects that have not landed.
    uploads: Vec<(ObjectName, Stamp)>,
    /// Number of objects named so far.
    names: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    stamp: Stamp,
    /// Objects that the epoch names and that have not landed. The epoch is sent when this is empty.
    waits: Vec<ObjectName>,
    /// The slot holds this epoch.
    own: bool,
}

impl Log {
    pub(super) fn new(first: Slot) -> Log {
        Log {
            first,
            flights: Vec::new(),
            uploads: Vec::new(),
            names: 0,
        }
    }

    pub(super) fn acknowledged(&self) -> Slot {
        self.first.before()
    }

    pub(super) fn uploading(&self, name: ObjectName) -> bool {
        self.uploads.iter().any(|(other, _)| *other == name)
    }

    pub(super) fn busy(&self) -> bool {
        !self.flights.is_empty() || !self.uploads.is_empty()
    }

    fn flight(&mut self, slot: Slot) -> Option<&mut Flight> {
        let index = slot.0.checked_sub(self.first.0)?;
        self.flights.get_mut(usize::try_from(index).ok()?)
    }
}

/// The kind of an object that [`Writer::put`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bulk data.
    Data,
    /// A part of a checkpoint.
    Map,
}

impl Writer {
    /// Creates an object. [`Event::Landed`] reports that it is in the store.
    ///
    /// # Errors
    ///
    /// The term is not open.
    pub fn put(&mut self, kind: Kind, stamp: Stamp) -> Result<(ObjectName, Output), Full> {
        let term = self.claim.term;
        let Phase::Open(log) = &mut self.phase else {
            return Err(Full::NotOpen);
        };
        let number = log.names;
        log.names += 1;
        let name = match kind {
            Kind::Data => ObjectName::Data { term, number },
            Kind::Map => ObjectName::Map { term, number },
        };
        log.uploads.push((name, stamp));
        let mut out = Output::default();
        out.send(Request::PutObject { name, stamp });
        Ok((name, out))
    }

    /// Commits an epoch to the next slot. It is sent when the objects that it names have landed. [`Event::Acknowledged`]
    /// acknowledges it after all slots before it.
    ///
    /// # Errors
    ///
    /// The term is not open, the window is full, or a checkpoint is due.
    pub fn append(&mut self, stamp: Stamp, names: &[ObjectName]) -> Result<(Slot, Output), Full> {
        let (term, window, early) = (
            self.claim.term,
            self.settings.window.max(1),
            self.has(Fault::DataNamedEarly),
        );
        let spans = self.head.as_ref().map_or(0, |head| head.spans.len());
        let releasing = |swap: &Swap| matches!(swap.goal, Goal::Publish { release: true, .. });
        let released = self.head.as_ref().is_some_and(|head| head.released)
            || self.swap.as_ref().is_some_and(releasing);
        let Phase::Open(log) = &mut self.phase else {
            return Err(Full::NotOpen);
        };
        if released {
            return Err(Full::NotOpen);
        }
        if spans > self.settings.spans_max.max(1) {
            return Err(Full::Spans);
        }
        let flights = log.flights.len() as u64;
        if flights >= window {
            return Err(Full::Window);
        }
        let slot = Slot(log.first.0.saturating_add(flights));
        let waits: Vec<ObjectName> = names
            .iter()
            .copied()
            .filter(|name| !early && log.uploading(*name))
            .collect();
        let mut out = Output::default();
        if waits.is_empty() {
            out.send(Request::PutSlot {
                at: SlotName { term, slot },
                body: Body::Epoch(stamp),
            });
        }
        log.flights.push(Flight {
            stamp,
            waits,
            own: false,
        });
        Ok((slot, out))
    }

    pub(super) fn landed(&mut self, name: ObjectName, out: &mut Output) {
        let term = self.claim.term;
        let Phase::Open(log) = &mut self.phase else {
            return;
        };
        let Some(upload) = log.uploads.iter().position(|(other, _)| *other == name) else {
            return;
        };
        log.uploads.swap_remove(upload);
        out.tell(Event::Landed(name));
        for (flight, slot) in log.flights.iter_mut().zip(log.first.0..) {
            let before = flight.waits.len();
            flight.waits.retain(|other| *other != name);
            if before > 0 && flight.waits.is_empty() {
                let at = SlotName {
                    term,
                    slot: Slot(slot),
                };
                out.send(Request::PutSlot {
                    at,
                    body: Body::Epoch(flight.stamp),
                });
            }
        }
    }

    /// An object whose PUT has no clear outcome was read.
    pub(super) fn read_object(&mut self, name: ObjectName, seen: Option<Stamp>, out: &mut Output) {
        let Phase::Open(log) = &self.phase else {
            return;
        };
        let Some((_, stamp)) = log.uploads.iter().find(|(other, _)| *other == name) else {
            return;
        };
        match seen {
            None => out.send(Request::PutObject {
                name,
                stamp: *stamp,
            }),
            Some(other) if other == *stamp => self.landed(name, out),
            Some(_) => self.stop(Stop::Doubled(name), out),
        }
    }

    /// The outcome of a slot's PUT.
    pub(super) fn put_epoch(&mut self, at: SlotName, answer: &Answer, out: &mut Output) {
        match answer {
            Answer::Done => self.own(at.slot, out),
            Answer::Refused if self.has(Fault::ForeignTakenForOwn) => self.own(at.slot, out),
            Answer::Refused if self.has(Fault::OwnTakenForForeign) => {
                self.stop(Stop::Foreign(at), out);
            }
            _ => out.send(Request::ReadSlot(at)),
        }
    }

    /// A slot whose PUT has no clear outcome was read: the writer's own, absent, or foreign.
    pub(super) fn read_own_slot(&mut self, at: SlotName, seen: SlotSeen, out: &mut Output) {
        if at.term != self.claim.term {
            return; // A slot that was read ahead, after the seal: garbage.
        }
        let Phase::Open(log) = &mut self.phase else {
            return;
        };
        let Some(flight) = log.flight(at.slot).filter(|flight| !flight.own) else {
            return;
        };
        let body = Body::Epoch(flight.stamp);
        match seen {
            SlotSeen::Absent => out.send(Request::PutSlot { at, body }),
            SlotSeen::Holds(held) if held == body => self.own(at.slot, out),
            SlotSeen::Holds(_) => self.stop(Stop::Foreign(at), out),
            SlotSeen::Damaged => self.stop(Stop::Damaged(at), out),
        }
    }

    /// The slot holds this writer's epoch. Slots are acknowledged in order, so a seal in an earlier slot is met first.
    fn own(&mut self, slot: Slot, out: &mut Output) {
        let disorder = self.has(Fault::AcknowledgedOutOfOrder);
        let Phase::Open(log) = &mut self.phase else {
            return;
        };
        let Some(flight) = log.flight(slot) else {
            return;
        };
        flight.own = true;
        if disorder {
            out.tell(Event::Acknowledged(slot));
        }
        while log.flights.first().is_some_and(|flight| flight.own) {
            log.flights.remove(0);
            if !disorder {
                out.tell(Event::Acknowledged(log.first));
            }
            log.first = log.first.next();
        }
    }
}
