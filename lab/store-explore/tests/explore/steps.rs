//! Possible next steps of a world, and their results.

use std::collections::BTreeSet;

use steadfast_store::protocol::{
    Answer, Base, Body, Collector, Edit, Editor, Event, Fault, Faults, Full, Kind, Lease,
    LocalTime, Nonce, ObjectName, Output, Proof, Reference, Request, Slot, Stamp, StoreTime, Tail,
    TailVerdict, Term, Writer, closed_below,
};

use crate::world::{
    Bounds, Checkpoint, Content, Flight, LEASE, Life, Outer, Reader, Store, TICK_MS, Who, World,
    call_of, data_stamp, epoch,
};

/// One step. Flights and doomed objects are named by their place in the world that the step was listed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A request takes effect.
    Execute(usize),
    /// Its outcome reaches the machine.
    Deliver(usize),
    /// The machine gives up waiting.
    Lose(usize),
    /// The request may take effect once more.
    Double(usize),
    Delete(usize),
    Start,
    Data(usize),
    Append(usize),
    Checkpoint(usize),
    Edit,
    Sweep,
    /// The clock goes on.
    Tick,
    /// A writer that waited for its predecessor's lease opens its term.
    Open(usize),
    Collect(usize),
    ReadAlong,
    /// A writer reads `head`, to renew its lease.
    Look(usize),
}

impl World {
    pub(crate) fn new(bounds: &Bounds) -> World {
        let mut world = World {
            store: Store::default(),
            flights: Vec::new(),
            lives: Vec::new(),
            editor: None,
            reader: None,
            clock: 0,
            contents: Default::default(),
            doomed: BTreeSet::new(),
            acknowledged: Default::default(),
            openings: Default::default(),
            owners: Default::default(),
            answered: BTreeSet::new(),
            edits: bounds.edits,
            sweeps: bounds.sweeps,
            unknowns: bounds.unknowns,
            doubles: bounds.doubles,
            looks: bounds.looks,
            wrong: None,
        };
        if bounds.begun {
            world.apply(bounds, Step::Start);
            while let Some(step) = world.work(bounds) {
                world.apply(bounds, step);
            }
        }
        world
    }

    /// A step that brings some request on: without trouble, each machine gets its answer.
    pub(crate) fn work(&self, bounds: &Bounds) -> Option<Step> {
        let steps = self.steps(bounds);
        let waits = self.lives.iter().any(|life| life.opens.is_some());
        let next = steps.iter().find(|step| {
            matches!(
                step,
                Step::Execute(_) | Step::Deliver(_) | Step::Delete(_) | Step::Open(_)
            )
        });
        let tick = steps.iter().find(|step| waits && **step == Step::Tick);
        next.or(tick).copied()
    }

    pub(crate) fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.wrong.is_some() {
            return steps;
        }
        if bounds.merged
            && let Some(flight) = self.flights.iter().position(|flight| self.settled(flight))
        {
            return vec![Step::Execute(flight)];
        }
        for (i, flight) in self.flights.iter().enumerate() {
            if flight.due > 0 {
                steps.push(Step::Execute(i));
            }
            if flight.waiting && flight.result.is_some() {
                steps.push(Step::Deliver(i));
            }
            if flight.waiting && !flight.reads() && self.unknowns > 0 {
                steps.push(Step::Lose(i));
            }
            if flight.due == 1 && !flight.reads() && self.doubles > 0 {
                steps.push(Step::Double(i));
            }
        }
        steps.extend((0..self.doomed.len()).map(Step::Delete));
        if self.lives.len() < bounds.lives {
            steps.push(Step::Start);
        }
        for (i, life) in self.lives.iter().enumerate() {
            if life.opened.is_none() || life.writer.stopped().is_some() {
                continue;
            }
            let left = life.appended.len() < usize::from(bounds.epochs) || !life.tail.is_empty();
            let open_flights = life.appended.len() as u64 - life.acknowledged;
            if left && bounds.data && life.data.is_none() {
                steps.push(Step::Data(i));
            } else if left && open_flights < bounds.window {
                steps.push(Step::Append(i));
            }
            if life.checkpoint == Checkpoint::None
                && life.checkpoints < bounds.checkpoints
                && life.acknowledged > 0
            {
                steps.push(Step::Checkpoint(i));
            }
        }
        if self.edits > 0 && self.editor.is_none() {
            steps.push(Step::Edit);
        }
        if self.sweeps > 0 && self.store.head.0.spans[0].term.0 > 1 {
            steps.push(Step::Sweep);
        }
        if self.clock < bounds.ticks {
            steps.push(Step::Tick);
            if self.reader.is_none() {
                steps.push(Step::ReadAlong);
            }
        }
        for (i, life) in self.lives.iter().enumerate() {
            if life.opens.is_some_and(|time| time <= self.clock) {
                steps.push(Step::Open(i));
            }
            if bounds.ticks > 0 && life.collector.waiting().next().is_some() {
                steps.push(Step::Collect(i));
            }
            let looking = |flight: &Flight| flight.who == Who::Keeper(i) && flight.waiting;
            if self.looks > 0
                && life.opened.is_some()
                && life.writer.stopped().is_none()
                && !self.flights.iter().any(looking)
            {
                steps.push(Step::Look(i));
            }
        }
        steps
    }

    /// A read whose answer cannot change any more: an object that exists, is not about to be deleted, and is never overwritten.
    fn settled(&self, flight: &Flight) -> bool {
        match flight.request {
            Request::ReadSlot(at) => {
                self.store.slots.contains_key(&at) && !self.doomed.contains(&at.into())
            }
            _ => false,
        }
    }

    /// Describes a step, for people.
    pub(crate) fn describe(&self, step: Step) -> String {
        let flight = |i: usize| {
            let Flight { who, request, .. } = &self.flights[i];
            format!("{} of {}", say(request), say_who(*who))
        };
        match step {
            Step::Execute(i) => format!("takes effect: {}", flight(i)),
            Step::Deliver(i) => format!("answered: {}", flight(i)),
            Step::Lose(i) => format!("answer lost: {}", flight(i)),
            Step::Double(i) => format!("sent twice: {}", flight(i)),
            Step::Delete(i) => {
                let name = self.doomed.iter().nth(i);
                format!("deleted: {}", name.map_or(String::new(), short))
            }
            Step::Start => format!("writer {} starts", self.lives.len() + 1),
            Step::Data(i) => format!("writer {} sends data", i + 1),
            Step::Append(i) => format!("writer {} appends an epoch", i + 1),
            Step::Checkpoint(i) => format!("writer {} begins a checkpoint", i + 1),
            Step::Edit => "a snapshot is begun".to_owned(),
            Step::Sweep => "a sweep lists the store".to_owned(),
            Step::Tick => format!("the clock shows {}", self.clock + 1),
            Step::Open(i) => format!("writer {} has waited for the lease", i + 1),
            Step::Collect(i) => format!("writer {} looks at the store's clock", i + 1),
            Step::ReadAlong => "a reader asks for head".to_owned(),
            Step::Look(i) => format!("writer {} looks at head for its lease", i + 1),
        }
    }

    pub(crate) fn apply(&mut self, bounds: &Bounds, step: Step) {
        match step {
            Step::Execute(i) => self.execute(bounds, i),
            Step::Deliver(i) => {
                self.flights[i].waiting = false;
                if let Some(answer) = self.flights[i].result.clone() {
                    self.deliver(bounds, i, answer);
                }
            }
            Step::Lose(i) => {
                self.unknowns -= 1;
                self.flights[i].waiting = false;
                self.deliver(bounds, i, Answer::Unknown);
            }
            Step::Double(i) => {
                self.doubles -= 1;
                self.flights[i].due += 1;
            }
            Step::Delete(i) => {
                if let Some(name) = self.doomed.iter().nth(i).copied() {
                    self.doomed.remove(&name);
                    self.store.delete(name);
                    self.judge_reader(name);
                    self.judge_named();
                }
            }
            Step::Start => self.start(bounds),
            Step::Data(i) => {
                let put = self.lives[i].writer.put(Kind::Data, data_stamp(i));
                if let Some((name, out)) = self.accepted(put) {
                    self.lives[i].data = Some(name);
                    self.handle(bounds, i, out);
                }
            }
            Step::Append(i) => self.append(bounds, i),
            Step::Checkpoint(i) => self.begin_checkpoint(bounds, i),
            Step::Edit => {
                self.edits -= 1;
                let (editor, request) = Editor::new();
                self.editor = Some(editor);
                self.send(Who::Editor, request);
            }
            Step::Sweep => self.sweep(bounds),
            Step::Tick => {
                self.clock += 1;
                self.judge_leases();
            }
            Step::Open(i) => {
                self.lives[i].opens = None;
                let out = self.lives[i].writer.open();
                self.handle(bounds, i, out);
            }
            Step::Collect(i) => {
                let collector = &mut self.lives[i].collector;
                let due = collector.tick(StoreTime(self.clock * TICK_MS / 1000 * 1000));
                due.iter().for_each(|name| collector.deleted(*name));
                self.doomed.extend(due);
            }
            Step::ReadAlong => {
                self.reader = Some(Reader {
                    lease: Lease::new(LEASE * TICK_MS, bounds.faults),
                    uses: BTreeSet::new(),
                });
                self.send(Who::Reader, Request::ReadHead);
            }
            Step::Look(i) => {
                self.looks -= 1;
                self.send(Who::Keeper(i), Request::ReadHead);
            }
        }
        self.tidy(bounds);
    }

    fn execute(&mut self, bounds: &Bounds, i: usize) {
        let request = self.flights[i].request.clone();
        let answer = self.store.execute(&request, bounds);
        let flight = &mut self.flights[i];
        flight.due -= 1;
        if flight.result.is_none() {
            flight.result = Some(answer.clone());
        }
        match &request {
            Request::SwapHead { .. } | Request::WriteHead(_) if answer == Answer::Done => {
                self.judge_named();
            }
            Request::PutSlot {
                body: Body::Epoch(stamp),
                ..
            } if answer == Answer::Done && bounds.data => self.judge_data(*stamp),
            _ => {}
        }
        if bounds.merged && self.flights[i].waiting {
            self.flights[i].waiting = false;
            self.deliver(bounds, i, answer);
        }
    }

    fn start(&mut self, bounds: &Bounds) {
        let who = self.lives.len();
        let nonce = if bounds.has(Outer::NonceShared) {
            1
        } else {
            who as u128 + 1
        };
        let (writer, out) = Writer::new(bounds.settings(), Nonce(nonce));
        self.lives.push(Life {
            writer,
            history: None,
            opened: None,
            appended: Vec::new(),
            acknowledged: 0,
            data: None,
            checkpoint: Checkpoint::None,
            checkpoints: 0,
            lease: Lease::new(LEASE * TICK_MS, bounds.faults),
            sent: Vec::new(),
            opens: None,
            collector: Collector::new(LEASE * TICK_MS, bounds.faults),
            tail: Vec::new(),
        });
        self.handle(bounds, who, out);
    }

    /// The lowest call that the client has no answer to and that the life knows of no note of.
    fn next_call(&self, bounds: &Bounds, i: usize) -> Option<u8> {
        let life = &self.lives[i];
        let recovered = life.history.iter().flatten();
        let notes = recovered.filter(|_| !bounds.has(Outer::NoteLost));
        let known: BTreeSet<u8> = notes
            .chain(&life.appended)
            .filter_map(|stamp| call_of(*stamp))
            .collect();
        (0..bounds.calls).find(|call| !known.contains(call) && !self.answered.contains(call))
    }

    fn append(&mut self, bounds: &Bounds, i: usize) {
        let stamp = match self.lives[i].tail.first() {
            Some(stamp) => *stamp,
            None => epoch(i, self.lives[i].appended.len(), self.next_call(bounds, i)),
        };
        let clock = self.clock;
        let life = &mut self.lives[i];
        let names = life.data.filter(|_| life.appended.is_empty());
        let appended = life.writer.append(stamp, names.as_slice());
        if let Some((_, out)) = self.accepted(appended) {
            let life = &mut self.lives[i];
            life.tail.retain(|other| *other != stamp);
            life.appended.push(stamp);
            life.sent.push((clock, clock));
            self.handle(bounds, i, out);
        }
    }

    /// A call that the driver only makes when it is allowed.
    fn accepted<T>(&mut self, outcome: Result<T, Full>) -> Option<T> {
        outcome
            .map_err(|full| self.wrong = Some(format!("a call was refused: {full}")))
            .ok()
    }

    fn begin_checkpoint(&mut self, bounds: &Bounds, i: usize) {
        let life = &mut self.lives[i];
        let Some((_, first)) = life.opened else {
            return;
        };
        let through = Slot(first.0 + life.acknowledged - 1);
        let mut history = life.history.clone().unwrap_or_default();
        history.extend(&life.appended[..life.acknowledged as usize]);
        let stamp = Stamp(((i as u128 + 1) << 32) | u128::from(life.checkpoints));
        life.checkpoints += 1;
        let put = life.writer.put(Kind::Map, stamp);
        self.contents.insert(stamp, Content::Root(history));
        if let Some((name, out)) = self.accepted(put) {
            self.lives[i].checkpoint = Checkpoint::Uploading(name, stamp, through);
            self.handle(bounds, i, out);
            if bounds.faults == Faults::only(Fault::RootNamedEarly) {
                self.publish(bounds, i);
            }
        }
    }

    /// Publishes a checkpoint whose root has landed. It retires the slots that it has and the root before it, unless a snapshot
    /// needs them.
    fn publish(&mut self, bounds: &Bounds, i: usize) {
        let life = &mut self.lives[i];
        let (Checkpoint::Uploading(name, stamp, through)
        | Checkpoint::Publishing(name, stamp, through)) = life.checkpoint
        else {
            return;
        };
        let Some(head) = life.writer.head() else {
            return;
        };
        let pinned = match head.roots.and_then(|roots| self.contents.get(&roots.stamp)) {
            Some(Content::Roots(pins)) => pins.clone(),
            _ => BTreeSet::new(),
        };
        let superseded = life.writer.superseded(through).into_iter();
        let retires = superseded
            .map(ObjectName::from)
            .chain(head.base.root.map(|root| root.name))
            .filter(|name| !pinned.contains(name))
            .collect();
        let root = Some(Reference { name, stamp });
        life.checkpoint = Checkpoint::Publishing(name, stamp, through);
        let published = life.writer.publish(Base { through, root }, retires, false);
        if let Some(out) = self.accepted(published) {
            self.handle(bounds, i, out);
        }
    }

    /// Deletes the epochs of closed terms that neither `head` nor a snapshot names.
    fn sweep(&mut self, bounds: &Bounds) {
        self.sweeps -= 1;
        let below = closed_below(&self.store.head.0);
        let named = self.named();
        let garbage =
            |body: &Body| matches!(body, Body::Epoch(_)) || bounds.has(Outer::SweepTakesSeal);
        let found: Vec<ObjectName> = self
            .store
            .slots
            .iter()
            .filter(|(at, body)| at.term < below && garbage(body))
            .map(|(at, _)| ObjectName::Log(*at))
            .filter(|name| !named.contains(name))
            .collect();
        self.doomed.extend(found);
    }

    pub(crate) fn send(&mut self, who: Who, request: Request) {
        self.flights.push(Flight {
            who,
            request,
            due: 1,
            result: None,
            waiting: true,
            sent: self.clock,
        });
    }

    fn deliver(&mut self, bounds: &Bounds, i: usize, answer: Answer) {
        let Flight {
            who, request, sent, ..
        } = self.flights[i].clone();
        match who {
            Who::Reader => {
                if let (Answer::Head(head), Some(reader)) = (answer, &mut self.reader) {
                    reader
                        .lease
                        .renewed(LocalTime(sent * TICK_MS), LocalTime(self.clock * TICK_MS));
                    let roots = head.base.root.map(|root| root.name);
                    let closed = head
                        .spans
                        .iter()
                        .filter_map(|span| Some((span, span.last?)));
                    let slots = closed.flat_map(|(span, last)| (span.first.0..=last.0).map(Slot));
                    let slots = slots
                        .filter_map(|slot| head.slot_name(slot))
                        .map(ObjectName::from);
                    reader.uses = roots.into_iter().chain(slots).collect();
                }
            }
            Who::Life(life) => {
                let out = self.lives[life].writer.answer(&request, answer);
                self.handle(bounds, life, out);
            }
            Who::Editor => self.edited(&request, answer),
            Who::Keeper(life) => self.looked(bounds, life, sent, answer),
        }
    }

    /// A read of `head` beside the machine's own requests: it renews the lease, or fences.
    fn looked(&mut self, bounds: &Bounds, life: usize, sent: u64, answer: Answer) {
        let Answer::Head(head) = &answer else { return };
        let writer = &mut self.lives[life].writer;
        if writer.stopped().is_some() {
            return;
        }
        let proof = writer.proof(head);
        let own = proof == Proof::Own;
        if proof == Proof::Fenced || bounds.has(Outer::LookAnswers) {
            let out = writer.answer(&Request::ReadHead, answer);
            self.handle(bounds, life, out);
        }
        if own && bounds.ticks > 0 {
            let now = LocalTime(self.clock * TICK_MS);
            self.lives[life]
                .lease
                .renewed(LocalTime(sent * TICK_MS), now);
            self.judge_leases();
        }
    }

    fn edited(&mut self, request: &Request, answer: Answer) {
        let Some(editor) = &mut self.editor else {
            return;
        };
        match editor.answer(request, answer) {
            Edit::Send(request) => self.send(Who::Editor, request),
            Edit::Read(head) => {
                // The snapshot is the published checkpoint and the slots of closed terms since.
                let old = head.roots.and_then(|roots| self.contents.get(&roots.stamp));
                let mut pins = match old {
                    Some(Content::Roots(pins)) => pins.clone(),
                    _ => BTreeSet::new(),
                };
                pins.extend(head.base.root.map(|root| root.name));
                for span in &head.spans {
                    let slots = span.first.0..=span.last.map_or(0, |last| last.0);
                    pins.extend(
                        slots
                            .filter_map(|slot| head.slot_name(Slot(slot)))
                            .map(ObjectName::from),
                    );
                }
                let stamp = Stamp((0xed << 40) | u128::from(head.version.counter));
                self.contents.insert(stamp, Content::Roots(pins));
                let nonce = Nonce(0xed00 | u128::from(head.version.counter));
                let request = editor.write(head, stamp, nonce);
                self.send(Who::Editor, request);
            }
            Edit::Done(_) => self.editor = None,
            Edit::Doubled(name) => self.wrong = Some(format!("an editor found {name} taken")),
            Edit::Nothing => {}
        }
    }

    /// The first life's machine has started again: it decides about the flushes that its cache kept and the store may not have.
    fn adopt(&mut self, bounds: &Bounds, previous: Term, first: Slot) {
        let old = &self.lives[0];
        let Some((term, begin)) = old.opened else {
            return;
        };
        let tail = Tail {
            term,
            first: Slot(begin.0 + old.acknowledged),
            last: Slot((begin.0 + old.appended.len() as u64).saturating_sub(1)),
        };
        if tail.last < tail.first {
            return;
        }
        if let TailVerdict::Resend(from) = tail.verdict(previous, first, bounds.faults) {
            let skip = from.0.saturating_sub(begin.0) as usize;
            self.lives[2].tail = old.appended.iter().skip(skip).copied().collect();
        }
    }

    /// Sends a writer's requests, and handles its events like a driver.
    fn handle(&mut self, bounds: &Bounds, i: usize, out: Output) {
        for request in out.requests {
            if let (
                Request::PutSlot {
                    at,
                    body: Body::Epoch(_),
                },
                Some((_, first)),
            ) = (&request, self.lives[i].opened)
                && let Some(sent) = self.lives[i].sent.get_mut((at.slot.0 - first.0) as usize)
            {
                sent.1 = self.clock;
            }
            self.send(Who::Life(i), request);
        }
        for event in out.events {
            match event {
                Event::Claimed(head) => {
                    if bounds.has(Outer::WaitFromClaim) {
                        self.lives[i].opens = Some(self.clock + LEASE);
                    }
                    self.judge_claim(bounds, i);
                    self.lives[i].history = match head.base.root {
                        None => Some(Vec::new()),
                        Some(root) => match self.contents.get(&root.stamp) {
                            Some(Content::Root(history)) if self.store.exists(root.name) => {
                                Some(history.clone())
                            }
                            _ => None,
                        },
                    };
                }
                Event::Found { stamp, .. } => {
                    if let Some(history) = &mut self.lives[i].history {
                        history.push(stamp);
                    }
                }
                Event::Sealed {
                    previous,
                    first,
                    released,
                } => {
                    if bounds.tail && i == 2 {
                        self.adopt(bounds, previous, first);
                    }
                    if bounds.ticks == 0 || released || bounds.has(Outer::NotWaited) {
                        let out = self.lives[i].writer.open();
                        self.handle(bounds, i, out);
                    } else if bounds.has(Outer::WaitFromClaim) {
                        self.lives[i].opens = self.lives[i].opens.or(Some(self.clock));
                    } else {
                        self.lives[i].opens = Some(self.clock + LEASE);
                    }
                }
                Event::Opened { term, first } => self.judge_opening(i, term, first),
                Event::Landed(name) => {
                    if let Checkpoint::Uploading(root, ..) = self.lives[i].checkpoint
                        && root == name
                    {
                        self.publish(bounds, i);
                    }
                }
                Event::Acknowledged(slot) => self.judge_acknowledgement(bounds, i, slot),
                Event::Published(retired) => {
                    if bounds.ticks == 0 {
                        self.doomed.extend(retired);
                    } else {
                        self.lives[i].collector.retire(retired);
                    }
                    self.lives[i].checkpoint = Checkpoint::None;
                }
                Event::Reconsider(_) => self.publish(bounds, i),
                Event::Stopped(why) => self.judge_stop(bounds, i, why),
            }
        }
    }

    /// Forgets everything that can never matter again, and puts the rest in order.
    fn tidy(&mut self, bounds: &Bounds) {
        let stopped: Vec<bool> = self
            .lives
            .iter()
            .map(|life| life.writer.stopped().is_some())
            .collect();
        for life in &mut self.lives {
            life.opens = life.opens.filter(|_| life.writer.stopped().is_none());
        }
        for flight in &mut self.flights {
            if let Who::Life(life) | Who::Keeper(life) = flight.who
                && stopped[life]
            {
                flight.waiting = false;
            }
            if flight.reads() && !flight.waiting {
                flight.due = 0;
            }
            if !flight.waiting {
                flight.result = None;
            }
        }
        let head = &self.store.head.0;
        let repeats = bounds.has(Outer::EtagRepeated);
        self.flights.retain(|flight| {
            // A swap from a version that `head` has left can never take effect: no version comes twice.
            let dead = matches!(&flight.request, Request::SwapHead { from, .. } if *from != head.version && !repeats);
            flight.waiting || (flight.due > 0 && !dead)
        });
        self.flights.sort();
        self.flights.dedup_by(|again, first| {
            let same = !first.waiting
                && !again.waiting
                && first.who == again.who
                && first.request == again.request;
            // When it was sent matters to the machine that waits for it alone.
            if same {
                first.due = (first.due + again.due).min(2);
            }
            same
        });
    }
}

fn short(name: &ObjectName) -> String {
    match name {
        ObjectName::Log(at) => format!("log/{}/{}", at.term.0, at.slot.0),
        ObjectName::Map { term, number } => format!("map/{}-{number}", term.0),
        ObjectName::Data { term, number } => format!("data/{}-{number}", term.0),
        other => other.to_string(),
    }
}

fn say_who(who: Who) -> String {
    match who {
        Who::Life(life) => format!("writer {}", life + 1),
        Who::Editor => "the snapshot's machine".to_owned(),
        Who::Reader => "the reader".to_owned(),
        Who::Keeper(life) => format!("writer {}'s lease", life + 1),
    }
}

fn say(request: &Request) -> String {
    match request {
        Request::ReadHead => "read head".to_owned(),
        Request::SwapHead { from, to } => format!(
            "swap head {} to {} (term {} claimed, {:?} open, checkpoint through {})",
            from.counter,
            to.version.counter,
            to.claim.term.0,
            to.open_term().map(|term| term.0),
            to.base.through.0
        ),
        Request::WriteHead(to) => format!(
            "write head {} (checkpoint through {})",
            to.version.counter, to.base.through.0
        ),
        Request::ReadSlot(at) => format!("read {}", short(&(*at).into())),
        Request::PutSlot { at, body } => match body {
            Body::Epoch(_) => format!("put an epoch to {}", short(&(*at).into())),
            Body::Seal(_) => format!("put a seal to {}", short(&(*at).into())),
        },
        Request::PutObject { name, .. } => format!("put {}", short(name)),
        Request::ReadObject(name) => format!("read {}", short(name)),
    }
}
