//! Runs the writer's state machine over a store.
//!
//! Each request of the [`Writer`] becomes a task. Its outcome goes back to the machine under one lock, and the machine's next
//! requests become tasks again. The driver keeps the bytes of objects in flight until they have landed, and serves reads from
//! them. The machine alone decides which slots are durable.

use crate::cached::LagClock;
use crate::io::{Got, Io, Put, StoreError, pause};
use crate::lease::{Held, MARGIN, ServingLease};
use crate::object::{
    HeadObject, SlotBody, decode_head, decode_slot, encode_head, encode_seal, open,
};
use crate::owner::{Owner, OwnerState};
use crate::place::PlaceError;
use crate::protocol::{
    Answer, Base, Body, Event, Full, Head, Kind, LocalTime, Nonce, ObjectName, Output, Proof,
    Reference, Request, Settings, Slot, SlotName, SlotSeen, Stamp, Stop, Term, Version, Writer,
};
use crate::runtime::runtime;
use bytes::Bytes;
use object_store::{PutMode, UpdateVersion};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// ETags that are remembered: those of the newest versions of `head` seen.
const TAGS: usize = 8;
/// Interval at which a thread that waits for the lease checks the clock.
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// Reasons why a volume cannot be written any more. Sticky.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failed {
    /// The protocol stopped the writer.
    #[error("{0}")]
    Stopped(Stop),
    /// A failure of the store.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The device was closed meanwhile.
    #[error("the volume is closed")]
    Closed,
    /// An internal check failed, such as an unexpected slot number: a defect of this program.
    #[error("the writer's state is inconsistent: {0}")]
    Inconsistent(&'static str),
}

struct State {
    writer: Writer,
    /// Bytes of objects that have not landed.
    pending: HashMap<ObjectName, Bytes>,
    pending_bytes: u64,
    /// ETags by version of `head`.
    tags: VecDeque<(Version, UpdateVersion)>,
    /// Bytes of slots that recovery has read.
    found: HashMap<SlotName, Bytes>,
    events: VecDeque<Event>,
    acknowledged: Slot,
    uploads: HashSet<ObjectName>,
    /// Unanswered attempts of a PUT.
    attempts: HashMap<ObjectName, u32>,
    /// The owner in the head that was read last.
    owner_before: String,
    /// Size of the disk in `head`, or from the next swap on. 0: `head` has none.
    blocks: u64,
    /// The lease in the head that was read last.
    lease_before: u32,
    /// The last writer, from the head that this writer's claim replaces.
    predecessor: Predecessor,
    /// Time when the old term was known to be sealed.
    sealed_at: LocalTime,
    /// The lease of a writer that answers clients.
    held: Option<Held>,
    failed: Option<Failed>,
    /// Send nothing any more.
    closed: bool,
}

/// The writer that may still answer clients in the old term.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predecessor {
    pub(crate) owner: String,
    pub(crate) lease_ms: u32,
    /// The owner opened the open term. False: another machine claimed the volume, and died before it opened its term.
    pub(crate) opened: bool,
}

impl Predecessor {
    /// Whether it is a process of this machine that has ended, and so answers no client.
    pub(crate) fn has_ended(&self) -> bool {
        let owner: Owner = self.owner.parse().unwrap_or_default();
        self.opened && owner.state() == OwnerState::Ended
    }
}

/// See the module's header.
pub(crate) struct Driver {
    pub(crate) io: Arc<Io>,
    owner: String,
    nonce: Nonce,
    clock: LagClock,
    /// The number of the next object. Locked while an object is made, so that names and numbers have the same order.
    numbers: Mutex<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Driver {
    /// Starts to claim the volume.
    pub(crate) fn start(
        io: Arc<Io>,
        settings: Settings,
        nonce: Nonce,
        owner: String,
        held: Option<Held>,
        clock: LagClock,
    ) -> Result<Arc<Driver>, PlaceError> {
        runtime()?;
        let (writer, output) = Writer::new(settings, nonce);
        let driver = Arc::new(Driver {
            io,
            owner,
            nonce,
            clock,
            numbers: Mutex::new(0),
            state: Mutex::new(State {
                writer,
                pending: HashMap::new(),
                pending_bytes: 0,
                tags: VecDeque::new(),
                found: HashMap::new(),
                events: VecDeque::new(),
                acknowledged: Slot(0),
                uploads: HashSet::new(),
                attempts: HashMap::new(),
                owner_before: String::new(),
                blocks: 0,
                lease_before: 0,
                predecessor: Predecessor::default(),
                sealed_at: LocalTime(0),
                held,
                failed: None,
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let mut state = driver.lock();
        driver.dispatch(&mut state, output);
        drop(state);
        Ok(driver)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the machine's output.
    fn dispatch(self: &Arc<Self>, state: &mut State, output: Output) {
        for event in output.events {
            match &event {
                Event::Landed(name) => {
                    state.uploads.remove(name);
                    state.forget(*name);
                }
                Event::Acknowledged(slot) => {
                    state.acknowledged = state.acknowledged.max(*slot);
                    let now = self.now();
                    if let Some(held) = &mut state.held {
                        held.acknowledged(*slot, now);
                    }
                    let term = state.writer.term();
                    state.forget(ObjectName::Log(SlotName { term, slot: *slot }));
                }
                Event::Opened { first, .. } => {
                    state.acknowledged = first.before();
                    state.found.clear();
                    state.events.push_back(event);
                }
                Event::Sealed { .. } => {
                    state.sealed_at = self.now();
                    state.events.push_back(event);
                }
                Event::Stopped(stop) => state.fail(Failed::Stopped(*stop)),
                _ => state.events.push_back(event),
            }
        }
        self.changed.notify_all();
        if state.closed || state.failed.is_some() {
            return;
        }
        let Ok(runtime) = runtime() else { return };
        for request in output.requests {
            let attempt = state.attempts.get(&target(&request)).copied().unwrap_or(0);
            let driver = Arc::clone(self);
            runtime.spawn(async move { driver.carry_out(request, attempt).await });
        }
    }

    /// Sends a request, and reports its outcome to the machine.
    async fn carry_out(self: Arc<Self>, request: Request, attempt: u32) {
        if attempt > 0 && is_put(&request) {
            tokio::time::sleep(pause(attempt)).await;
        }
        if let Request::PutSlot {
            at,
            body: Body::Epoch(_),
        } = &request
            && let Some(held) = &mut self.lock().held
        {
            held.sends(at.slot, self.now());
        }
        let answer = self.execute(&request).await;
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(failed) => {
                state.fail(failed);
                self.changed.notify_all();
                return;
            }
        };
        if is_put(&request) {
            match answer {
                Answer::Unknown => *state.attempts.entry(target(&request)).or_default() += 1,
                _ => {
                    state.attempts.remove(&target(&request));
                }
            }
        }
        let output = state.writer.answer(&request, answer);
        self.dispatch(&mut state, output);
    }

    async fn execute(&self, request: &Request) -> Result<Answer, Failed> {
        let io = &self.io;
        Ok(match request {
            Request::ReadHead => {
                let got = io.get(ObjectName::Head, None).await?;
                let got = got.ok_or_else(|| io.missing(ObjectName::Head))?;
                let object = decode_head(&io.coding, &got.bytes)
                    .map_err(|why| io.damaged(ObjectName::Head, why))?;
                let mut state = self.lock();
                state.remember(object.head.version, got.version);
                if object.head.claim.nonce != self.nonce {
                    state.predecessor = Predecessor {
                        owner: object.owner.clone(),
                        lease_ms: object.lease_ms,
                        opened: object.head.open_term() == Some(object.head.claim.term),
                    };
                }
                state.owner_before = object.owner;
                // Only the owner makes it larger; other machines that swap `head` keep it.
                state.blocks = state.blocks.max(object.blocks);
                state.lease_before = object.lease_ms;
                Answer::Head(object.head)
            }
            Request::SwapHead { from, to } => self.swap_head(*from, to).await,
            #[cfg(feature = "faults")]
            Request::WriteHead(to) => {
                let bytes = self.encode_head(to);
                match io.put(ObjectName::Head, bytes, PutMode::Overwrite).await {
                    Put::Done(_) => Answer::Done,
                    _ => Answer::Unknown,
                }
            }
            Request::ReadSlot(at) => Answer::Slot(self.read_slot(*at).await?),
            Request::PutSlot { at, body } => {
                let bytes = match body {
                    Body::Seal(nonce) => Some(encode_seal(&io.coding, *at, *nonce).0),
                    Body::Epoch(_) => self.pending(ObjectName::Log(*at)),
                };
                let bytes = bytes.ok_or(Failed::Inconsistent("a slot has no bytes"))?;
                self.create(ObjectName::Log(*at), bytes).await
            }
            Request::PutObject { name, .. } => {
                let bytes = self.pending(*name);
                let bytes = bytes.ok_or(Failed::Inconsistent("an object has no bytes"))?;
                self.create(*name, bytes).await
            }
            Request::ReadObject(name) => {
                let got = io.get(*name, None).await?;
                // An object that fails its checks has contents that this writer cannot have written.
                let stamp =
                    |got: Got| open(&io.coding, *name, &got.bytes).map_or(Stamp(0), |(_, s)| s);
                Answer::Object(got.map(stamp))
            }
        })
    }

    async fn create(&self, name: ObjectName, bytes: Bytes) -> Answer {
        match self.io.put(name, bytes, PutMode::Create).await {
            Put::Done(_) => Answer::Done,
            Put::Refused => Answer::Refused,
            Put::Unknown(_) => Answer::Unknown,
        }
    }

    fn encode_head(&self, to: &Head) -> Bytes {
        let state = self.lock();
        // A machine that changes `head` without a claim keeps the owner's name, too.
        let owner = match to.claim.term == state.writer.term() {
            true => self.owner.clone(),
            false => state.owner_before.clone(),
        };
        // The lease belongs to the open term: a claim alone does not end it.
        let lease_ms = match to.open_term() == Some(state.writer.term()) {
            true => state.held.as_ref().map_or(0, Held::duration_ms),
            false => state.lease_before,
        };
        encode_head(
            &self.io.coding,
            &HeadObject {
                head: to.clone(),
                owner,
                blocks: state.blocks,
                lease_ms,
            },
        )
    }

    async fn swap_head(&self, from: Version, to: &Head) -> Answer {
        let tag = self.lock().tag(from);
        // Without an ETag, the machine reads `head` again, which shows the ETag.
        let Some(tag) = tag else {
            return Answer::Refused;
        };
        let bytes = self.encode_head(to);
        match self
            .io
            .put(ObjectName::Head, bytes, PutMode::Update(tag))
            .await
        {
            Put::Done(version) => {
                self.lock().remember(to.version, version);
                Answer::Done
            }
            Put::Refused => Answer::Refused,
            Put::Unknown(_) => Answer::Unknown,
        }
    }

    async fn read_slot(&self, at: SlotName) -> Result<SlotSeen, Failed> {
        // A body may have been cut in transfer: a slot that fails its checks is read once more.
        for last in [false, true] {
            let Some(got) = self.io.get(ObjectName::Log(at), None).await? else {
                return Ok(SlotSeen::Absent);
            };
            match decode_slot(&self.io.coding, at, &got.bytes) {
                Ok((SlotBody::Seal(nonce), _)) => return Ok(SlotSeen::Holds(Body::Seal(nonce))),
                Ok((SlotBody::Epoch(_), stamp)) => {
                    let mut state = self.lock();
                    if at.term != state.writer.term() {
                        state.found.insert(at, got.bytes);
                    }
                    return Ok(SlotSeen::Holds(Body::Epoch(stamp)));
                }
                Err(_) if !last => {}
                Err(_) => return Ok(SlotSeen::Damaged),
            }
        }
        Ok(SlotSeen::Damaged)
    }

    /// The bytes of an object that has not landed.
    pub(crate) fn pending(&self, name: ObjectName) -> Option<Bytes> {
        self.lock().pending.get(&name).cloned()
    }

    /// The next event of an opening or a checkpoint.
    pub(crate) fn next_event(&self) -> Result<Event, Failed> {
        let mut state = self.lock();
        loop {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            match state.events.pop_front() {
                Some(event) => return Ok(event),
                None => state = self.wait(state),
            }
        }
    }

    /// The bytes of a slot that recovery found.
    pub(crate) fn take_found(&self, at: SlotName) -> Option<Bytes> {
        self.lock().found.remove(&at)
    }

    /// Opens the term, after [`Event::Sealed`].
    pub(crate) fn open(self: &Arc<Self>) {
        let mut state = self.lock();
        let output = state.writer.open();
        self.dispatch(&mut state, output);
    }

    pub(crate) fn term(&self) -> Term {
        self.lock().writer.term()
    }

    /// The newest head that the writer knows.
    pub(crate) fn head(&self) -> Option<Head> {
        self.lock().writer.head().cloned()
    }

    /// Size of the disk in `head`; 0 if the disk has never grown.
    pub(crate) fn blocks(&self) -> u64 {
        self.lock().blocks
    }

    /// Sets the size for the next swap of `head`. No swap may be in flight.
    pub(crate) fn set_blocks(&self, blocks: u64) {
        let mut state = self.lock();
        state.blocks = state.blocks.max(blocks);
    }

    /// The failure that ended writing, if there is one.
    pub(crate) fn failed(&self) -> Option<Failed> {
        self.lock().failed.clone()
    }

    fn check(state: &State) -> Result<(), Failed> {
        match &state.failed {
            Some(failed) => Err(failed.clone()),
            None => Ok(()),
        }
    }

    /// Sends an object; `make` encodes it for its name.
    pub(crate) fn put(
        self: &Arc<Self>,
        kind: Kind,
        make: impl FnOnce(ObjectName) -> (Bytes, Stamp),
    ) -> Result<Reference, Failed> {
        let mut next = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let (term, number) = (self.term(), *next);
        let expected = match kind {
            Kind::Data => ObjectName::Data { term, number },
            Kind::Map => ObjectName::Map { term, number },
        };
        let (bytes, stamp) = make(expected);
        let mut state = self.lock();
        Driver::check(&state)?;
        let (name, output) = (state.writer.put(kind, stamp))
            .map_err(|_| Failed::Inconsistent("an object before the term is open"))?;
        if name != expected {
            return Err(Failed::Inconsistent("an object has another number"));
        }
        *next += 1;
        state.pending_bytes += bytes.len() as u64;
        state.pending.insert(name, bytes);
        state.uploads.insert(name);
        self.dispatch(&mut state, output);
        Ok(Reference { name, stamp })
    }

    /// Commits a slot; the caller knows its number. `Ok(Err(_))`: the writer refused it, and nothing was sent.
    pub(crate) fn append(
        self: &Arc<Self>,
        slot: Slot,
        bytes: Bytes,
        stamp: Stamp,
        names: &[ObjectName],
    ) -> Result<Result<(), Full>, Failed> {
        let mut state = self.lock();
        Driver::check(&state)?;
        let term = state.writer.term();
        let name = ObjectName::Log(SlotName { term, slot });
        // The request takes its bytes from `pending`.
        state.pending_bytes += bytes.len() as u64;
        state.pending.insert(name, bytes);
        match state.writer.append(stamp, names) {
            Ok((got, _)) if got != slot => Err(Failed::Inconsistent("a slot has another number")),
            Ok((_, output)) => {
                self.dispatch(&mut state, output);
                Ok(Ok(()))
            }
            Err(full) => {
                state.forget(name);
                Ok(Err(full))
            }
        }
    }

    /// Waits until a slot and all before it are durable.
    pub(crate) fn wait_acknowledged(&self, slot: Slot) -> Result<(), Failed> {
        let mut state = self.lock();
        while state.acknowledged < slot {
            Driver::check(&state)?;
            state = self.wait(state);
        }
        Ok(())
    }

    /// Waits until the window has room for the slot after `closed`.
    pub(crate) fn wait_window(&self, closed: Slot) -> Result<(), Failed> {
        let mut state = self.lock();
        while closed.0.saturating_sub(state.acknowledged.0) >= Settings::default().window {
            Driver::check(&state)?;
            state = self.wait(state);
        }
        Ok(())
    }

    /// Waits until at most this many bytes are in flight.
    pub(crate) fn wait_pending(&self, most: u64) -> Result<(), Failed> {
        let mut state = self.lock();
        while state.pending_bytes > most {
            Driver::check(&state)?;
            state = self.wait(state);
        }
        Ok(())
    }

    /// Waits until these objects have landed.
    pub(crate) fn wait_landed(&self, names: &[ObjectName]) -> Result<(), Failed> {
        let mut state = self.lock();
        while names.iter().any(|name| state.uploads.contains(name)) {
            Driver::check(&state)?;
            state = self.wait(state);
        }
        Ok(())
    }

    /// Whether an object is still in flight.
    pub(crate) fn is_uploading(&self, name: ObjectName) -> bool {
        self.lock().uploads.contains(&name)
    }

    /// Starts to publish a checkpoint. An event has the outcome.
    pub(crate) fn publish(
        self: &Arc<Self>,
        base: Base,
        retires: Vec<ObjectName>,
        release: bool,
    ) -> Result<Result<(), Full>, Failed> {
        let mut state = self.lock();
        Driver::check(&state)?;
        match state.writer.publish(base, retires, release) {
            Ok(output) => {
                self.dispatch(&mut state, output);
                Ok(Ok(()))
            }
            Err(full) => Ok(Err(full)),
        }
    }

    fn now(&self) -> LocalTime {
        LocalTime(self.clock.now_ms())
    }

    /// The lease for threads that answer clients, if this writer has one.
    pub(crate) fn serving_lease(self: &Arc<Self>, unheeded: bool) -> Option<ServingLease> {
        let state = self.lock();
        let held = state.held.as_ref()?;
        Some(ServingLease::of(self, held, self.clock.clone(), unheeded))
    }

    /// After [`Event::Sealed`]: waits until the last writer can answer no client any more. `over`: whether that writer is known
    /// to have ended.
    pub(crate) fn wait_out_lease(
        &self,
        over: impl FnOnce(&Predecessor) -> bool,
    ) -> Result<(), Failed> {
        let (predecessor, sealed_at) = {
            let state = self.lock();
            (state.predecessor.clone(), state.sealed_at)
        };
        let lease = u64::from(predecessor.lease_ms);
        if lease == 0 || over(&predecessor) {
            return Ok(());
        }
        let until = sealed_at.0 + lease + lease.div_ceil(MARGIN) + 1;
        let mut state = self.lock();
        loop {
            Driver::check(&state)?;
            let left = until.saturating_sub(self.now().0);
            if left == 0 {
                return Ok(());
            }
            let waited = self.changed.wait_timeout(state, self.clock.sleep(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until `look` returns an answer: the lease was renewed, or has ended.
    pub(crate) fn wait_for_lease(&self, look: &dyn Fn() -> Option<bool>) -> bool {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() || state.closed {
                return false;
            }
            if let Some(may) = look() {
                return may;
            }
            let waited = self.changed.wait_timeout(state, LEASE_LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a failure, at most for this time.
    pub(crate) fn wait_for_failure(&self, most: Duration) -> Option<Failed> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if state.failed.is_some() {
                return state.failed.clone();
            }
            let left = most.checked_sub(begun.elapsed())?;
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the lease before a hand-over of the volume.
    pub(crate) fn end_lease(&self) {
        if let Some(held) = &self.lock().held {
            held.end();
        }
        self.changed.notify_all();
    }

    /// The thread that renews the lease while no slots do: reads `head` when half of the lease has passed without a proof.
    pub(crate) fn keep_lease(self: &Arc<Self>) {
        let Ok(runtime) = runtime() else { return };
        let mut failures = 0;
        loop {
            let patience = {
                let mut state = self.lock();
                loop {
                    if state.closed || state.failed.is_some() {
                        return;
                    }
                    let Some(held) = &state.held else { return };
                    let idle = held.idle_ms(self.now());
                    if idle == 0 {
                        break held.patience();
                    }
                    let waited = (self.changed).wait_timeout(state, self.clock.sleep(idle));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            };
            match runtime.block_on(self.prove(patience)) {
                true => failures = 0,
                false => {
                    std::thread::sleep(pause(failures).min(patience));
                    failures += 1;
                }
            }
        }
    }

    /// Reads `head` to renew the lease. Returns whether it shows this writer's claim.
    async fn prove(self: &Arc<Self>, patience: Duration) -> bool {
        let sent = self.now();
        let Ok(Some(got)) = self.io.get_within(ObjectName::Head, patience).await else {
            return false;
        };
        let Ok(object) = decode_head(&self.io.coding, &got.bytes) else {
            return false;
        };
        let mut state = self.lock();
        match state.writer.proof(&object.head) {
            Proof::Own => {
                let now = self.now();
                if let Some(held) = &mut state.held {
                    held.renewed(sent, now);
                }
                self.changed.notify_all();
                true
            }
            Proof::Fenced => {
                let answer = Answer::Head(object.head);
                let output = state.writer.answer(&Request::ReadHead, answer);
                self.dispatch(&mut state, output);
                false
            }
            Proof::None => false,
        }
    }

    /// Sends nothing any more, and ends all waiting. Requests in flight may still take effect.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.fail(Failed::Closed);
        drop(state);
        self.changed.notify_all();
    }
}

fn is_put(request: &Request) -> bool {
    !matches!(
        request,
        Request::ReadHead | Request::ReadSlot(_) | Request::ReadObject(_)
    )
}

/// The object of a request.
fn target(request: &Request) -> ObjectName {
    match request {
        Request::ReadSlot(at) | Request::PutSlot { at, .. } => ObjectName::Log(*at),
        Request::PutObject { name, .. } | Request::ReadObject(name) => *name,
        _ => ObjectName::Head,
    }
}

impl State {
    fn fail(&mut self, failed: Failed) {
        if let Some(held) = &self.held {
            held.end();
        }
        // The first failure is the one reported.
        self.failed.get_or_insert(failed);
    }

    fn forget(&mut self, name: ObjectName) {
        if let Some(bytes) = self.pending.remove(&name) {
            self.pending_bytes -= bytes.len() as u64;
        }
    }

    fn remember(&mut self, version: Version, tag: UpdateVersion) {
        if tag.e_tag.is_none() && tag.version.is_none() {
            return;
        }
        self.tags.retain(|(other, _)| *other != version);
        self.tags.push_back((version, tag));
        if self.tags.len() > TAGS {
            self.tags.pop_front();
        }
    }

    fn tag(&self, version: Version) -> Option<UpdateVersion> {
        let found = self.tags.iter().find(|(other, _)| *other == version);
        found.map(|(_, tag)| tag.clone())
    }
}
