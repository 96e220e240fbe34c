//! A machine: a writer, its driver, its clients; it crashes, pauses and comes back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{Either, select};
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use steadfast_store::protocol::{
    Answer, Base, Body, Collector, Edit, Editor, Event, Faults, Head, Kind, Lease, LocalTime,
    Nonce, ObjectName, Output, Reference, Request, Settings, Slot, SlotName, SlotSeen, StoreTime,
    Term, Version, Writer,
};
use steadfast_store_sim::{Clock, Random, SimStore};

use super::codec::{self, Disk, Epoch};
use super::judge::Judge;

pub(crate) const BLOCKS: usize = 12;
const MS: u64 = 1_000;
/// A request is given up after this.
const DEADLINE: u64 = 4_000 * MS;
/// Retired objects are kept, and heads used, for this long.
const KEEP_MS: u64 = 6_000;

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) store: SimStore,
    pub(crate) judge: Arc<Mutex<Judge>>,
    pub(crate) random: Arc<Mutex<Random>>,
    pub(crate) faults: Faults,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path(name: ObjectName) -> Path {
    Path::from(format!("volume/{name}"))
}

impl World {
    fn below(&self, bound: u64) -> u64 {
        locked(&self.random).below(bound)
    }

    fn between(&self, from: u64, to: u64) -> u64 {
        locked(&self.random).between(from, to)
    }

    fn nonce(&self) -> Nonce {
        let mut random = locked(&self.random);
        Nonce((u128::from(random.draw()) << 64) | u128::from(random.draw()))
    }

    /// Puts the head of a new volume into the store.
    pub(crate) async fn format(&self) {
        let head = codec::encode_head(&Head::new(Nonce(0)));
        while self.get(ObjectName::Head).await.is_none() {
            let _ = self
                .put(ObjectName::Head, head.clone(), PutMode::Create)
                .await;
        }
    }

    /// None: no answer in time.
    async fn in_time<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let late = self.clock.sleep(DEADLINE);
        match select(Box::pin(request), late).await {
            Either::Left((outcome, _)) => Some(outcome),
            Either::Right(_) => None,
        }
    }

    /// An object's bytes and its ETag, if it is there. Asks until there is an answer.
    async fn get(&self, name: ObjectName) -> Option<(Bytes, Option<String>)> {
        loop {
            let read = async {
                let result = self.store.get(&path(name)).await?;
                let tag = result.meta.e_tag.clone();
                Ok::<_, Error>((result.bytes().await?, tag))
            };
            match self.in_time(read).await {
                Some(Ok(found)) => return Some(found),
                Some(Err(Error::NotFound { .. })) => return None,
                _ => self.clock.sleep(self.between(20 * MS, 300 * MS)).await,
            }
        }
    }

    async fn put(
        &self,
        name: ObjectName,
        bytes: Vec<u8>,
        mode: PutMode,
    ) -> (Answer, Option<String>) {
        let at = path(name);
        let put = self
            .store
            .put_opts(&at, PutPayload::from(bytes), PutOptions::from(mode));
        match self.in_time(put).await {
            Some(Ok(result)) => (Answer::Done, result.e_tag),
            Some(Err(Error::AlreadyExists { .. } | Error::Precondition { .. })) => {
                (Answer::Refused, None)
            }
            _ => (Answer::Unknown, None),
        }
    }
}

/// One life of a machine.
struct Life {
    writer: Writer,
    alive: bool,
    paused_until: u64,
    bytes: HashMap<ObjectName, Vec<u8>>,
    tags: HashMap<Version, Option<String>>,
    found: Vec<(SlotName, Epoch)>,
    read: HashMap<SlotName, Epoch>,
    claimed: Option<Head>,
    /// The disk as its clients see it, and its flush.
    disk: Disk,
    tip: Option<u64>,
    open: Option<Term>,
    /// Flushes in flight, and the last acknowledged one.
    flights: Vec<(Slot, u64, Disk)>,
    durable: (Slot, u64, Disk),
    /// Data objects that epochs up to a slot name.
    data: Vec<(Slot, ObjectName)>,
    root: Option<(Reference, Slot)>,
    collector: Collector,
}

type Shared = Arc<Mutex<Life>>;

/// Lives of one machine, until the simulation ends.
pub(crate) async fn machine(world: World, lives: u64) {
    for _ in 0..lives {
        world.clock.sleep(world.between(0, 25_000 * MS)).await;
        live(&world, world.between(3_000 * MS, 40_000 * MS), true).await;
    }
}

/// One life: until it crashes after `us`, or is stopped. True if it opened its term.
pub(crate) async fn live(world: &World, us: u64, pauses: bool) -> bool {
    let settings = Settings {
        window: world.between(1, 4),
        scan_ahead: 4,
        spans_max: 8,
        faults: world.faults,
    };
    let (writer, out) = Writer::new(settings, world.nonce());
    let life = Arc::new(Mutex::new(Life {
        writer,
        alive: true,
        paused_until: 0,
        bytes: HashMap::new(),
        tags: HashMap::new(),
        found: Vec::new(),
        read: HashMap::new(),
        claimed: None,
        disk: vec![0; BLOCKS],
        tip: None,
        open: None,
        flights: Vec::new(),
        durable: (Slot(0), 0, vec![0; BLOCKS]),
        data: Vec::new(),
        root: None,
        collector: Collector::new(KEEP_MS, world.faults),
    }));
    pump(world, &life, out);
    let end = world.clock.now_us() + us;
    let mut looks = world.clock.now_us();
    while world.clock.now_us() < end {
        world.clock.sleep(world.between(20 * MS, 400 * MS)).await;
        let now = world.clock.now_us();
        let mut held = locked(&life);
        if held.writer.stopped().is_some() {
            break;
        }
        if now < held.paused_until {
            continue;
        }
        if pauses && world.below(150) == 0 {
            held.paused_until = now + world.between(1_000 * MS, 60_000 * MS);
            continue;
        }
        if held.open.is_some() {
            let out = work(world, &mut held);
            drop(held);
            pump(world, &life, out);
            if now >= looks {
                looks = now + 2_000 * MS;
                world.clock.spawn(collect(world.clone(), life.clone()));
            }
        }
    }
    let mut held = locked(&life);
    held.alive = false;
    held.open.is_some()
}

/// Clients write some blocks and flush; now and then a checkpoint.
fn work(world: &World, life: &mut Life) -> Output {
    let mut all = Output::default();
    if world.below(12) == 0 && life.root.is_none() {
        let (slot, flush, disk) = life.durable.clone();
        let newer = life
            .writer
            .head()
            .is_some_and(|head| slot > head.base.through);
        if newer {
            let bytes = codec::encode_root(flush, &disk);
            let stamp = codec::stamp(&bytes);
            if let Ok((name, out)) = life.writer.put(Kind::Map, stamp) {
                life.bytes.insert(name, bytes);
                life.root = Some((Reference { name, stamp }, slot));
                all.requests.extend(out.requests);
            }
        }
    }
    let writes: Vec<(u64, u64)> = (0..world.between(1, 4))
        .map(|_| (world.below(BLOCKS as u64), world.between(1, u64::MAX - 1)))
        .collect();
    let mut disk = life.disk.clone();
    writes
        .iter()
        .for_each(|(block, value)| disk[*block as usize] = *value);
    let mut data = None;
    if world.below(4) == 0 {
        let bytes = codec::encode_writes(&writes);
        let stamp = codec::stamp(&bytes);
        if let Ok((name, out)) = life.writer.put(Kind::Data, stamp) {
            life.bytes.insert(name, bytes);
            data = Some(Reference { name, stamp });
            all.requests.extend(out.requests);
        }
    }
    let slot = life
        .flights
        .last()
        .map_or(life.durable.0, |(slot, ..)| *slot)
        .next();
    let (Some(term), Some(tip)) = (life.open, life.tip) else {
        return all;
    };
    let flush = locked(&world.judge).flush(tip, disk.clone());
    let epoch = Epoch {
        flush,
        writes: if data.is_some() { Vec::new() } else { writes },
        data,
    };
    let bytes = codec::encode_epoch(term, slot, &epoch);
    let names: Vec<ObjectName> = data.iter().map(|data| data.name).collect();
    if let Ok((at, out)) = life.writer.append(codec::stamp(&bytes), &names) {
        if at != slot {
            locked(&world.judge).fail(format!("slot {} was expected, and is {}", slot.0, at.0));
        }
        life.bytes.insert(SlotName { term, slot }.into(), bytes);
        life.data.extend(data.map(|data| (slot, data.name)));
        life.flights.push((slot, flush, disk.clone()));
        (life.disk, life.tip) = (disk, Some(flush));
        all.requests.extend(out.requests);
    }
    all
}

/// Sends requests and handles events.
fn pump(world: &World, life: &Shared, out: Output) {
    for request in out.requests {
        world
            .clock
            .spawn(perform(world.clone(), life.clone(), request));
    }
    for event in out.events {
        let mut held = locked(life);
        match event {
            Event::Claimed(head) => held.claimed = Some(head),
            Event::Found { at, .. } => {
                if let Some(epoch) = held.read.remove(&at) {
                    held.found.push((at, epoch));
                }
            }
            Event::Sealed { first, .. } => {
                drop(held);
                world
                    .clock
                    .spawn(recover(world.clone(), life.clone(), first));
            }
            Event::Opened { term, .. } => {
                held.open = Some(term);
                let mut judge = locked(&world.judge);
                match held.tip {
                    Some(tip) => judge.opened(term, tip, &held.disk),
                    None => judge.fail(format!("term {} opened without its checkpoint", term.0)),
                }
            }
            Event::Landed(name) => {
                held.bytes.remove(&name);
                let root = held.root.is_some_and(|(root, _)| root.name == name);
                drop(held);
                if root {
                    world.clock.spawn(publish(world.clone(), life.clone()));
                }
            }
            Event::Acknowledged(slot) => {
                let (at, flush, disk) = held.flights.remove(0);
                let term = held.open.unwrap_or_default();
                held.bytes.remove(&SlotName { term, slot }.into());
                held.durable = (at, flush, disk);
                locked(&world.judge).acknowledged(term, flush);
            }
            Event::Published(names) => {
                held.root = None;
                held.collector.retire(names);
            }
            Event::Reconsider(_) => {
                drop(held);
                world.clock.spawn(publish(world.clone(), life.clone()));
            }
            Event::Stopped(_) => {}
        }
    }
}

/// One request, its answer, and the machine's next requests.
async fn perform(world: World, life: Shared, request: Request) {
    let answer = ask(&world, &life, &request).await;
    loop {
        let until = locked(&life).paused_until;
        let now = world.clock.now_us();
        if now >= until {
            break;
        }
        world.clock.sleep(until - now).await;
    }
    let out = {
        let mut held = locked(&life);
        if !held.alive {
            return;
        }
        held.writer.answer(&request, answer)
    };
    pump(&world, &life, out);
}

async fn ask(world: &World, life: &Shared, request: &Request) -> Answer {
    match request {
        Request::ReadHead => {
            let Some((bytes, tag)) = world.get(ObjectName::Head).await else {
                locked(&world.judge).fail("head is gone".to_owned());
                return Answer::Unknown;
            };
            let Some(head) = codec::decode_head(&bytes) else {
                locked(&world.judge).fail("head is malformed".to_owned());
                return Answer::Unknown;
            };
            locked(life).tags.insert(head.version, tag);
            Answer::Head(head)
        }
        Request::SwapHead { from, to } => {
            let e_tag = locked(life).tags.get(from).cloned().flatten();
            let version = UpdateVersion {
                e_tag,
                version: None,
            };
            let (answer, tag) = world
                .put(
                    ObjectName::Head,
                    codec::encode_head(to),
                    PutMode::Update(version),
                )
                .await;
            if answer == Answer::Done {
                locked(life).tags.insert(to.version, tag);
            }
            answer
        }
        Request::WriteHead(to) => {
            let (answer, tag) = world
                .put(ObjectName::Head, codec::encode_head(to), PutMode::Overwrite)
                .await;
            locked(life).tags.insert(to.version, tag);
            answer
        }
        Request::ReadSlot(at) => match world.get((*at).into()).await {
            None => Answer::Slot(SlotSeen::Absent),
            Some((bytes, _)) => match codec::decode_slot(*at, &bytes) {
                Some((body, epoch)) => {
                    locked(life).read.extend(epoch.map(|epoch| (*at, epoch)));
                    Answer::Slot(SlotSeen::Holds(body))
                }
                None => Answer::Slot(SlotSeen::Damaged),
            },
        },
        Request::PutSlot { at, body } => {
            let bytes = match body {
                Body::Seal(nonce) => Some(codec::encode_seal(*at, *nonce)),
                Body::Epoch(_) => locked(life).bytes.get(&(*at).into()).cloned(),
            };
            match bytes {
                Some(bytes) => world.put((*at).into(), bytes, PutMode::Create).await.0,
                None => Answer::Unknown,
            }
        }
        Request::PutObject { name, .. } => {
            let bytes = locked(life).bytes.get(name).cloned();
            match bytes {
                Some(bytes) => world.put(*name, bytes, PutMode::Create).await.0,
                None => Answer::Unknown,
            }
        }
        Request::ReadObject(name) => {
            let found = world.get(*name).await;
            Answer::Object(found.map(|(bytes, _)| codec::stamp(&bytes)))
        }
    }
}

/// Loads the checkpoint and the slots after it, then opens the term.
async fn recover(world: World, life: Shared, first: Slot) {
    let (head, found) = {
        let held = locked(&life);
        (held.claimed.clone(), held.found.clone())
    };
    let Some(head) = head else { return };
    let loaded = replay(&world, &head, &found).await;
    let mut held = locked(&life);
    // If it cannot be loaded, a successor has collected it: then the swap that would open the term fails.
    if let Ok((tip, disk)) = loaded {
        held.data = found
            .iter()
            .filter_map(|(at, epoch)| Some((at.slot, epoch.data?.name)))
            .collect();
        held.durable = (first.before(), tip, disk.clone());
        (held.tip, held.disk) = (Some(tip), disk);
    }
    let out = held.writer.open();
    drop(held);
    pump(&world, &life, out);
}

/// The disk that a checkpoint and epochs lead to. The error is the object that is missing or damaged.
async fn replay(
    world: &World,
    head: &Head,
    epochs: &[(SlotName, Epoch)],
) -> Result<(u64, Disk), ObjectName> {
    let (mut tip, mut disk) = match head.base.root {
        None => (0, vec![0; BLOCKS]),
        Some(root) => {
            let (bytes, _) = world.get(root.name).await.ok_or(root.name)?;
            let sound = codec::stamp(&bytes) == root.stamp;
            codec::decode_root(&bytes)
                .filter(|_| sound)
                .ok_or(root.name)?
        }
    };
    for (_, epoch) in epochs {
        let mut writes = epoch.writes.clone();
        if let Some(data) = epoch.data {
            let (bytes, _) = world.get(data.name).await.ok_or(data.name)?;
            let sound = codec::stamp(&bytes) == data.stamp;
            writes = codec::decode_writes(&bytes)
                .filter(|_| sound)
                .ok_or(data.name)?;
        }
        writes
            .iter()
            .for_each(|(block, value)| disk[*block as usize] = *value);
        tip = epoch.flush;
    }
    Ok((tip, disk))
}

/// Publishes the checkpoint whose root has landed.
async fn publish(world: World, life: Shared) {
    loop {
        let head = locked(&life).writer.head().cloned();
        let pins = match head.as_ref().and_then(|head| head.roots) {
            None => Vec::new(),
            Some(roots) => match world.get(roots.name).await {
                Some((bytes, _)) => codec::decode_roots(&bytes).unwrap_or_default(),
                None => {
                    locked(&world.judge)
                        .fail(format!("{} is gone, though head names it", roots.name));
                    return;
                }
            },
        };
        let mut held = locked(&life);
        if !held.alive || held.writer.stopped().is_some() {
            return;
        }
        if held.writer.head() != head.as_ref() {
            continue;
        }
        let (Some((root, through)), Some(head)) = (held.root, head) else {
            return;
        };
        let slots = held
            .writer
            .superseded(through)
            .into_iter()
            .map(ObjectName::from);
        let old = head.base.root.map(|root| root.name);
        let data = held
            .data
            .iter()
            .filter(|(slot, _)| *slot <= through)
            .map(|(_, name)| *name);
        let retires: Vec<ObjectName> = slots
            .chain(old)
            .chain(data)
            .filter(|name| pins.iter().all(|pin| pin.name != *name))
            .collect();
        let base = Base {
            through,
            root: Some(root),
        };
        match held.writer.publish(base, retires, false) {
            Ok(out) => {
                held.data.retain(|(slot, _)| *slot > through);
                drop(held);
                pump(&world, &life, out);
            }
            Err(full) => locked(&world.judge).fail(format!("a checkpoint was refused: {full}")),
        }
        return;
    }
}

/// Looks at the store's clock, and deletes retired objects that are due.
async fn collect(world: World, life: Shared) {
    let name = ObjectName::Reader(Nonce(u128::from(world.between(0, 3))));
    let (answer, _) = world.put(name, vec![0], PutMode::Overwrite).await;
    if answer != Answer::Done {
        return;
    }
    let Some(Ok(meta)) = world.in_time(world.store.head(&path(name))).await else {
        return;
    };
    let now = StoreTime(u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0));
    let due = {
        let mut held = locked(&life);
        if !held.alive {
            return;
        }
        held.collector.tick(now)
    };
    for name in due {
        if let Some(Ok(())) = world.in_time(world.store.delete(&path(name))).await {
            locked(&life).collector.deleted(name);
        }
    }
}

/// A machine without ownership: makes snapshots of the published checkpoint, and reads along.
pub(crate) async fn visitor(world: World, rounds: u64) {
    for _ in 0..rounds {
        world.clock.sleep(world.between(500 * MS, 8_000 * MS)).await;
        if world.below(2) == 0 {
            snapshot(&world).await;
        } else {
            read_along(&world).await;
        }
    }
}

async fn snapshot(world: &World) {
    let (mut editor, mut request) = Editor::new();
    let mut wanted = None;
    let mut list = Vec::new();
    for _ in 0..60 {
        let answer = match &request {
            Request::ReadHead => match world.get(ObjectName::Head).await {
                Some((bytes, tag)) => match codec::decode_head(&bytes) {
                    Some(head) => {
                        wanted = tag.or(wanted);
                        Answer::Head(head)
                    }
                    None => Answer::Unknown,
                },
                None => Answer::Unknown,
            },
            Request::SwapHead { to, .. } => {
                let version = UpdateVersion {
                    e_tag: wanted.clone(),
                    version: None,
                };
                world
                    .put(
                        ObjectName::Head,
                        codec::encode_head(to),
                        PutMode::Update(version),
                    )
                    .await
                    .0
            }
            Request::PutObject { name, .. } => {
                world
                    .put(*name, codec::encode_roots(&list), PutMode::Create)
                    .await
                    .0
            }
            Request::ReadObject(name) => {
                let found = world.get(*name).await;
                Answer::Object(found.map(|(bytes, _)| codec::stamp(&bytes)))
            }
            _ => Answer::Unknown,
        };
        match editor.answer(&request, answer) {
            Edit::Send(next) => request = next,
            Edit::Read(head) => {
                let old = match head.roots {
                    None => Vec::new(),
                    Some(roots) => match world.get(roots.name).await {
                        Some((bytes, _)) => codec::decode_roots(&bytes).unwrap_or_default(),
                        // The list was replaced meanwhile, and collected.
                        None => return,
                    },
                };
                let Some(root) = head.base.root.filter(|root| !old.contains(root)) else {
                    return;
                };
                list = old;
                list.push(root);
                let bytes = codec::encode_roots(&list);
                request = editor.write(head, codec::stamp(&bytes), world.nonce());
            }
            Edit::Done(_) => {
                let made = list.last().copied();
                locked(&world.judge).snapshots.extend(made);
                return;
            }
            Edit::Doubled(_) | Edit::Nothing => return,
        }
    }
}

/// Reads head and the objects that it names. Within its lease, all of them must be there, and be exactly some flush.
async fn read_along(world: &World) {
    let mut lease = Lease::new(KEEP_MS, world.faults);
    let sent = LocalTime(world.clock.now_us() / MS);
    let Some((bytes, _)) = world.get(ObjectName::Head).await else {
        return;
    };
    let Some(head) = codec::decode_head(&bytes) else {
        return;
    };
    lease.renewed(sent, LocalTime(world.clock.now_us() / MS));
    let mut epochs = Vec::new();
    let mut slot = head.base.through.next();
    let mut missing = None;
    while let Some(at) = head.slot_name(slot) {
        let closed = head
            .spans
            .iter()
            .any(|span| span.term == at.term && span.last.is_some());
        match world
            .get(at.into())
            .await
            .and_then(|(bytes, _)| codec::decode_slot(at, &bytes))
        {
            Some((_, Some(epoch))) => epochs.push((at, epoch)),
            _ if closed => {
                missing = Some(at.into());
                break;
            }
            _ => break,
        }
        slot = slot.next();
    }
    let outcome = match missing {
        Some(name) => Err(name),
        None => replay(world, &head, &epochs).await,
    };
    if !lease.holds(LocalTime(world.clock.now_us() / MS)) {
        return;
    }
    let mut judge = locked(&world.judge);
    match outcome {
        Ok((tip, disk)) => judge.is_flush("a reader read", tip, &disk),
        Err(name) => judge.fail(format!("{name} was deleted while a reader may use it")),
    }
}

/// All snapshots are there and are exactly some flush.
pub(crate) fn look_at_snapshots(world: &World) {
    let snapshots = locked(&world.judge).snapshots.clone();
    for root in snapshots {
        let bytes = world.store.peek(&path(root.name));
        let found = bytes.filter(|bytes| codec::stamp(bytes) == root.stamp);
        let mut judge = locked(&world.judge);
        match found.and_then(|bytes| codec::decode_root(&bytes)) {
            Some((flush, disk)) => judge.is_flush("a snapshot was found", flush, &disk),
            None => judge.fail(format!("the snapshot {} is gone", root.name)),
        }
    }
}
