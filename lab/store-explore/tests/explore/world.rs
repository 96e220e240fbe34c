//! One state: the store, the requests on their way, the lives of writers, and the promises.

use std::collections::{BTreeMap, BTreeSet};

use steadfast_store::protocol::{
    Answer, Body, Collector, Editor, Faults, Head, Lease, Nonce, ObjectName, Request, Settings,
    Slot, SlotName, SlotSeen, Stamp, Term, Version, Writer,
};

/// Size of a world, and its kinds of trouble.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Writers, one after the other or at once. A writer that takes no more steps has crashed; one that goes on later was
    /// paused; a machine that starts again is the next life.
    pub(crate) lives: usize,
    /// The first life begins with its term open.
    pub(crate) begun: bool,
    /// Epochs that each life appends at most.
    pub(crate) epochs: u8,
    pub(crate) window: u64,
    /// Checkpoints of each life.
    pub(crate) checkpoints: u8,
    /// Each life's first epoch names a data object.
    pub(crate) data: bool,
    /// Calls of a client, each to be done once.
    pub(crate) calls: u8,
    /// Snapshots made by a machine that owns nothing.
    pub(crate) edits: u8,
    pub(crate) sweeps: u8,
    /// Answers that are lost; the request may take effect before or after, or never.
    pub(crate) unknowns: u8,
    /// Requests that take effect once more.
    pub(crate) doubles: u8,
    /// Last tick of the clock. With a clock, an old writer's reads end before a new writer's epochs, retired objects wait for
    /// readers, and one machine reads along.
    pub(crate) ticks: u64,
    /// Reads of `head` by which writers renew their leases.
    pub(crate) looks: u8,
    /// The third life is the first one's machine, with the content of its cache.
    pub(crate) tail: bool,
    /// Judge lost, deleted and mixed data alone; not claims, nor the reasons why a writer stopped.
    pub(crate) losses: bool,
    /// A request is answered when it takes effect, and a read whose answer cannot change at once.
    pub(crate) merged: bool,
    pub(crate) faults: Faults,
    pub(crate) outer: Option<Outer>,
}

impl Bounds {
    pub(crate) fn new(lives: usize, epochs: u8) -> Bounds {
        Bounds {
            lives,
            begun: true,
            epochs,
            window: 2,
            checkpoints: 0,
            data: false,
            calls: 0,
            edits: 0,
            sweeps: 0,
            unknowns: 0,
            doubles: 0,
            ticks: 0,
            looks: 0,
            tail: false,
            losses: false,
            merged: false,
            faults: Faults::default(),
            outer: None,
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            window: self.window,
            scan_ahead: 2,
            spans_max: 64,
            faults: self.faults,
        }
    }

    pub(crate) fn has(&self, outer: Outer) -> bool {
        self.outer == Some(outer)
    }
}

/// Faults outside of the protocol's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outer {
    /// The store overwrites a slot that exists.
    UnconditionalPut,
    /// The store gives one ETag to all heads that one machine wrote.
    EtagRepeated,
    /// A successor does not read the notes of earlier terms.
    NoteLost,
    /// The sweep takes a seal below the first span for garbage.
    SweepTakesSeal,
    /// All machines have one nonce.
    NonceShared,
    /// A successor waits for the old writer's lease from its claim on, not from its seal.
    WaitFromClaim,
    /// A lease counts from the last attempt of a request, not from its first.
    LeaseFromRepeat,
    /// A successor does not wait for the old writer's lease.
    NotWaited,
    /// A read of `head` that renews a lease is an answer to the machine, also if other requests are on their way.
    LookAnswers,
}

/// Ticks that a writer serves reads after a proof that it owns the volume, and that a reader uses a head.
pub(crate) const LEASE: u64 = 2;
/// Milliseconds of a tick. The store's clock shows whole seconds.
pub(crate) const TICK_MS: u64 = 500;

/// Party that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    Life(usize),
    Editor,
    Reader,
    /// The part that renews a life's lease.
    Keeper(usize),
}

/// A request on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Flight {
    pub(crate) who: Who,
    pub(crate) request: Request,
    /// Number of times that it may still take effect.
    pub(crate) due: u8,
    /// Its first outcome.
    pub(crate) result: Option<Answer>,
    /// Its machine waits for the answer.
    pub(crate) waiting: bool,
    /// Time of sending.
    pub(crate) sent: u64,
}

impl Flight {
    pub(crate) fn reads(&self) -> bool {
        matches!(
            self.request,
            Request::ReadHead | Request::ReadSlot(_) | Request::ReadObject(_)
        )
    }
}

/// Content of an object that others refer to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    /// A checkpoint: all epochs of the history so far.
    Root(Vec<Stamp>),
    /// Snapshots: the objects that they need.
    Roots(BTreeSet<ObjectName>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) head: Start,
    pub(crate) slots: BTreeMap<SlotName, Body>,
    pub(crate) objects: BTreeMap<ObjectName, Stamp>,
}

/// A head, of a new volume by default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Start(pub(crate) Head);

impl Default for Start {
    fn default() -> Start {
        Start(Head::new(Nonce(0)))
    }
}

/// Progress of a life's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Checkpoint {
    None,
    Uploading(ObjectName, Stamp, Slot),
    Publishing(ObjectName, Stamp, Slot),
}

/// One writer and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) writer: Writer,
    /// History that recovery found. None: the checkpoint was gone when the life wanted to load it.
    pub(crate) history: Option<Vec<Stamp>>,
    pub(crate) opened: Option<(Term, Slot)>,
    pub(crate) appended: Vec<Stamp>,
    pub(crate) acknowledged: u64,
    pub(crate) data: Option<ObjectName>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) checkpoints: u8,
    pub(crate) lease: Lease,
    /// Send times of each epoch's first and last request.
    pub(crate) sent: Vec<(u64, u64)>,
    /// Time from which the life may open its term.
    pub(crate) opens: Option<u64>,
    pub(crate) collector: Collector,
    /// Epochs of the cache that are to be appended first.
    pub(crate) tail: Vec<Stamp>,
}

/// A machine that reads along without owning anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) lease: Lease,
    pub(crate) uses: BTreeSet<ObjectName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) flights: Vec<Flight>,
    pub(crate) lives: Vec<Life>,
    pub(crate) editor: Option<Editor>,
    pub(crate) reader: Option<Reader>,
    pub(crate) clock: u64,
    pub(crate) contents: BTreeMap<Stamp, Content>,
    /// Retired objects whose deletion is on its way.
    pub(crate) doomed: BTreeSet<ObjectName>,
    /// Acknowledged calls, by term and slot.
    pub(crate) acknowledged: BTreeMap<(Term, Slot), Stamp>,
    /// Opening of each term.
    pub(crate) openings: BTreeMap<Term, Vec<Stamp>>,
    /// Life that claimed each term.
    pub(crate) owners: BTreeMap<Term, usize>,
    pub(crate) answered: BTreeSet<u8>,
    pub(crate) edits: u8,
    pub(crate) sweeps: u8,
    pub(crate) unknowns: u8,
    pub(crate) doubles: u8,
    pub(crate) looks: u8,
    /// Violation. A world with a violation takes no more steps.
    pub(crate) wrong: Option<String>,
}

/// An epoch's contents: the life, its number in that life, and the client's call that it carries.
pub(crate) fn epoch(life: usize, index: usize, call: Option<u8>) -> Stamp {
    Stamp(
        ((life as u128 + 1) << 16)
            | ((index as u128) << 8)
            | call.map_or(0, |call| u128::from(call) + 1),
    )
}

/// The call that an epoch carries.
pub(crate) fn call_of(stamp: Stamp) -> Option<u8> {
    u8::try_from(stamp.0 & 0xff).ok()?.checked_sub(1)
}

/// The data object that an epoch names: that of its life's first.
pub(crate) fn data_stamp(life: usize) -> Stamp {
    Stamp((life as u128 + 1) << 24)
}

impl Store {
    /// Lets a request take effect.
    pub(crate) fn execute(&mut self, request: &Request, bounds: &Bounds) -> Answer {
        match request {
            Request::ReadHead => Answer::Head(self.head.0.clone()),
            Request::SwapHead { from, to } => {
                if self.matches(*from, bounds) {
                    self.head.0 = to.clone();
                    Answer::Done
                } else {
                    Answer::Refused
                }
            }
            Request::WriteHead(to) => {
                self.head.0 = to.clone();
                Answer::Done
            }
            Request::ReadSlot(at) => Answer::Slot(
                self.slots
                    .get(at)
                    .map_or(SlotSeen::Absent, |body| SlotSeen::Holds(*body)),
            ),
            Request::PutSlot { at, body } => {
                if self.slots.contains_key(at) && !bounds.has(Outer::UnconditionalPut) {
                    Answer::Refused
                } else {
                    self.slots.insert(*at, *body);
                    Answer::Done
                }
            }
            Request::PutObject { name, stamp } => {
                if self.objects.contains_key(name) {
                    Answer::Refused
                } else {
                    self.objects.insert(*name, *stamp);
                    Answer::Done
                }
            }
            Request::ReadObject(name) => Answer::Object(self.objects.get(name).copied()),
        }
    }

    fn matches(&self, from: Version, bounds: &Bounds) -> bool {
        let now = self.head.0.version;
        now == from || (bounds.has(Outer::EtagRepeated) && now.nonce == from.nonce)
    }

    pub(crate) fn exists(&self, name: ObjectName) -> bool {
        match name {
            ObjectName::Log(at) => self.slots.contains_key(&at),
            other => self.objects.contains_key(&other),
        }
    }

    pub(crate) fn delete(&mut self, name: ObjectName) {
        match name {
            ObjectName::Log(at) => {
                self.slots.remove(&at);
            }
            other => {
                self.objects.remove(&other);
            }
        }
    }
}
