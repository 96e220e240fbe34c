//! Loading the state of a volume: checkpoints, regions of the map, the slots after a checkpoint, lists of snapshots.

use super::{Core, Shared};
use crate::driver::Failed;
use crate::io::{Io, StoreError};
use crate::map::{Extents, Map, ObjectEntry, regions};
use crate::object::{
    Bad, CellKind, Coding, Directory, HeadObject, Keys, MapObject, Place, Roots, SlotBody,
    VolumeObject, decode_head, decode_notes, decode_objects, decode_region, decode_root,
    decode_roots, decode_slot, read_cell,
};
use crate::place::Location;
use crate::protocol::{Base, Head, ObjectName, Reference, Slot, SlotName, Stamp};
use crate::reads::Reads;
use crate::runtime::runtime;
use crate::volume::OpenError;
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Slots that are read concurrently.
const SLOTS_AHEAD: u64 = 64;
/// Attempts of a reader: it starts over if a writer has published a checkpoint meanwhile.
const BEGIN_AGAIN: u32 = 8;

/// The volume and its parents.
#[derive(Clone)]
pub(crate) struct Sources(Arc<[Arc<Io>]>);

impl Sources {
    pub(crate) fn of(
        location: Location,
        volume: &VolumeObject,
        keys: Option<Keys>,
        parents: &[Location],
        patience: Option<Duration>,
    ) -> Sources {
        let parents = volume.parents.iter().zip(parents);
        // A clone has its parent's features and key.
        let coding = |id| Coding::new(id, volume.features, keys.clone());
        let parents = parents.map(|(parent, at)| Io::new(at.clone(), coding(parent.id), patience));
        let own = std::iter::once(Io::new(location, coding(volume.id), patience));
        Sources(own.chain(parents).collect())
    }

    /// Attaches a read cache, which keeps the cells that are read from now on.
    pub(crate) fn keep(&self, reads: &Arc<Reads>) {
        for (source, io) in (0..).zip(self.all()) {
            // The first cache stays attached.
            if io.reads.set((source, Arc::clone(reads))).is_err() && source == 0 {
                reads.close();
            }
        }
    }

    /// The read cache, if one is attached.
    pub(crate) fn reads(&self) -> Option<&Arc<Reads>> {
        self.own().reads.get().map(|(_, reads)| reads)
    }

    /// Of a stand-by: keeps what its take-over will read, up to `most` bytes of each volume; or forgets it.
    pub(crate) fn keep_in_memory(&self, most: Option<u64>) {
        self.all().iter().for_each(|io| io.keep_in_memory(most));
    }

    /// Leaves out a rule of what is kept.
    #[cfg(feature = "faults")]
    pub(crate) fn plant_in_kept(&self, fault: Option<crate::DeviceFault>) {
        self.all().iter().for_each(|io| io.plant_in_kept(fault));
    }

    /// Forgets what was kept; keeps what is read from now on.
    pub(crate) fn forget_kept(&self) {
        self.all().iter().for_each(|io| io.forget_kept());
    }

    pub(crate) fn own(&self) -> &Arc<Io> {
        &self.0[0]
    }

    pub(crate) fn all(&self) -> &[Arc<Io>] {
        &self.0
    }

    pub(crate) fn get(&self, source: u16) -> Result<&Arc<Io>, StoreError> {
        self.0.get(usize::from(source)).ok_or_else(|| {
            let why = "it names a volume that is not one of the parents";
            self.own().damaged(ObjectName::Volume, Bad::Content(why))
        })
    }
}

/// A checkpoint in memory.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) map: Map,
    pub(crate) directory: Directory,
    pub(crate) maps: Vec<MapObject>,
    pub(crate) retired: Vec<ObjectName>,
    /// Map objects in the root that hold no cell of it: snapshots need them.
    pub(crate) kept: Vec<ObjectName>,
    /// The notes; empty until they are loaded.
    pub(crate) notes: Vec<Bytes>,
}

impl Loaded {
    /// Reads the notes. A clone ignores those of its parent.
    pub(super) fn load_notes(&mut self, sources: &Sources) -> Result<(), OpenError> {
        let key = (CellKind::Notes, 0);
        let Some(place) = self.directory.get(&key).copied() else {
            return Ok(());
        };
        let own = (self.maps.get(place.map as usize)).is_some_and(|map| map.source == 0);
        if !own {
            self.directory.remove(&key);
            return Ok(());
        }
        let (_, name, contents) = block_on(load_cell(sources, &self.maps, place))?;
        let notes = decode_notes(&contents);
        self.notes = notes.map_err(|why| sources.own().damaged(name, why))?;
        Ok(())
    }

    /// Takes objects that snapshots need off the list of retired ones. A root is written before its checkpoint is published; if
    /// a snapshot was made in between, the root lists objects as retired that the snapshot needs.
    pub(super) fn keep_pinned(
        &mut self,
        sources: &Sources,
        roots: Option<Reference>,
    ) -> Result<(), OpenError> {
        if roots.is_none() || self.retired.is_empty() {
            return Ok(());
        }
        let pins = load_pins(sources, roots)?;
        let (pinned, retired) = std::mem::take(&mut self.retired)
            .into_iter()
            .partition::<Vec<_>, _>(|name| pins.contains(name));
        self.retired = retired;
        let kept: HashSet<ObjectName> = self.kept.iter().copied().collect();
        let missing = pinned.into_iter().filter(|name| !kept.contains(name));
        self.kept.extend(missing);
        Ok(())
    }
}

fn block_on<T>(future: impl Future<Output = Result<T, StoreError>>) -> Result<T, OpenError> {
    Ok(runtime()?.block_on(future)?)
}

/// Reads an object that must exist.
async fn need(io: &Io, reference: Reference) -> Result<Bytes, StoreError> {
    let got = io.get(reference.name, None).await?;
    got.map(|got| got.bytes)
        .ok_or_else(|| io.missing(reference.name))
}

/// Reads the root of a checkpoint, and the table of objects.
pub(crate) fn load_root(
    sources: &Sources,
    base: Base,
    first_base: Option<Base>,
) -> Result<Loaded, OpenError> {
    // A clone begins with a checkpoint of its parent.
    let (source, root) = match (base.root, first_base.and_then(|base| base.root)) {
        (Some(root), _) => (0, Some(root)),
        (None, root) => (1, root),
    };
    let Some(reference) = root else {
        return Ok(Loaded::default());
    };
    let io = sources.get(source)?;
    let bytes = block_on(need(io, reference))?;
    let damaged = |why| -> OpenError { io.damaged(reference.name, why).into() };
    let (root, stamp) = decode_root(&io.coding, reference.name, &bytes).map_err(damaged)?;
    if stamp != reference.stamp {
        return Err(damaged(Bad::Content(
            "it is not the one that was referred to",
        )));
    }
    io.keep(reference.name, None, &bytes);
    let mut loaded = Loaded {
        directory: root.directory,
        ..Loaded::default()
    };
    loaded.map.next_object = root.next_object;
    loaded.maps = root.maps;
    for map in &mut loaded.maps {
        map.source = map.source.saturating_add(source);
    }
    if source == 0 {
        loaded.retired = root.retired;
        let named: HashSet<u32> = loaded.directory.values().map(|place| place.map).collect();
        let maps = loaded.maps.iter().enumerate();
        loaded.kept = maps
            .filter(|(index, map)| map.source == 0 && !named.contains(&(*index as u32)))
            .map(|(_, map)| map.reference.name)
            .collect();
    }
    let parts = loaded.directory.iter();
    let parts: Vec<Place> = parts
        .filter(|((kind, _), _)| *kind == CellKind::Objects)
        .map(|(_, place)| *place)
        .collect();
    for place in parts {
        let entries = block_on(load_objects(sources, &loaded.maps, place))?;
        loaded.map.load_objects(entries);
    }
    Ok(loaded)
}

/// Reads a cell of a map object. Also returns the index of the volume that wrote it.
async fn load_cell(
    sources: &Sources,
    maps: &[MapObject],
    place: Place,
) -> Result<(u16, ObjectName, Bytes), StoreError> {
    let unnamed = || {
        let why = Bad::Content("a cell is in no object of the checkpoint");
        sources.own().damaged(ObjectName::Head, why)
    };
    let map = maps.get(place.map as usize).ok_or_else(unnamed)?;
    let io = sources.get(map.source)?;
    let name = map.reference.name;
    let (from, to) = (
        u64::from(place.at),
        u64::from(place.at) + u64::from(place.len),
    );
    let key = (map.source, name, place.at);
    if let Some(reads) = sources.reads()
        && let Some((_, bytes)) = reads.get(&[(key, place.len)]).pop()
    {
        if let Ok(cell) = read_cell(&io.coding, name, place.at, &bytes) {
            reads.hits.fetch_add(1, Ordering::Relaxed);
            return Ok((map.source, name, cell.contents));
        }
        reads.forget(&key);
    }
    let got = io.get(name, Some(from..to)).await?;
    let got = got.ok_or_else(|| io.missing(name))?;
    let cell = read_cell(&io.coding, name, place.at, &got.bytes);
    let cell = cell.map_err(|why| io.damaged(name, why))?;
    io.keep(name, Some(from..to), &got.bytes);
    if let Some(reads) = sources.reads() {
        reads.misses.fetch_add(1, Ordering::Relaxed);
        reads.put(key, &got.bytes);
    }
    Ok((map.source, name, cell.contents))
}

async fn load_objects(
    sources: &Sources,
    maps: &[MapObject],
    place: Place,
) -> Result<Vec<(u32, ObjectEntry)>, StoreError> {
    let (source, name, contents) = load_cell(sources, maps, place).await?;
    let entries = decode_objects(&contents);
    let mut entries = entries.map_err(|why| sources.own().damaged(name, why))?;
    for (_, entry) in &mut entries {
        entry.source = entry.source.saturating_add(source);
    }
    Ok(entries)
}

pub(super) async fn read_region(
    sources: &Sources,
    maps: &[MapObject],
    place: Place,
) -> Result<Extents<crate::map::Spot>, StoreError> {
    let (_, name, contents) = load_cell(sources, maps, place).await?;
    let extents = decode_region(&sources.own().coding, &contents);
    let extents = extents.map_err(|why| sources.own().damaged(name, why))?;
    Ok(Extents(extents.into_iter().collect()))
}

impl Core {
    /// A region of these blocks that is not in memory.
    pub(super) fn missing(&self, block: u64, count: u64) -> Option<u64> {
        regions(block, count).find(|region| {
            let key = (CellKind::Region, *region);
            !self.map.is_loaded(key) && self.directory.contains_key(&key)
        })
    }

    /// Loads the regions of these blocks.
    pub(crate) fn load_regions(
        &mut self,
        sources: &Sources,
        block: u64,
        count: u64,
    ) -> Result<(), OpenError> {
        while let Some(region) = self.missing(block, count) {
            if let Some(place) = self.directory.get(&(CellKind::Region, region)) {
                let extents = block_on(read_region(sources, &self.maps, *place))?;
                self.map.load_region(region, extents);
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Loads a region. The core is not locked meanwhile.
    pub(super) fn load_region(&self, region: u64) -> Result<(), Failed> {
        let found = {
            let core = self.lock();
            let place = core.directory.get(&(CellKind::Region, region)).copied();
            place.map(|place| (place, core.maps.clone()))
        };
        let Some((place, maps)) = found else {
            return Ok(());
        };
        let runtime = runtime().map_err(|_| Failed::Inconsistent("no threads for requests"))?;
        let extents = runtime.block_on(read_region(&self.sources, &maps, place))?;
        let mut core = self.lock();
        core.map.load_region(region, extents);
        Ok(())
    }
}

/// Reads the checkpoint and the slots after it, as of one version of `head`, without a claim.
pub(crate) fn read_history(
    sources: &Sources,
    first_base: Option<Base>,
    keep: Duration,
) -> Result<(HeadObject, Core), OpenError> {
    let mut last = None;
    for _ in 0..BEGIN_AGAIN {
        let head = read_head(sources.own())?;
        match read_slots(sources, &head.head, first_base, keep) {
            Ok(core) => return Ok((head, core)),
            // A writer may have published a checkpoint, and deleted superseded objects.
            Err(error) if last.as_ref() != Some(&head.head) => {
                last = Some(head.head);
                drop(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(OpenError::Restless(sources.own().location.url.clone()))
}

pub(crate) fn read_head(io: &Io) -> Result<HeadObject, OpenError> {
    let got = block_on(io.get(ObjectName::Head, None))?;
    let got = got.ok_or_else(|| io.missing(ObjectName::Head))?;
    let object = decode_head(&io.coding, &got.bytes);
    Ok(object.map_err(|why| io.damaged(ObjectName::Head, why))?)
}

fn read_slots(
    sources: &Sources,
    head: &Head,
    first_base: Option<Base>,
    keep: Duration,
) -> Result<Core, OpenError> {
    let mut loaded = load_root(sources, head.base, first_base)?;
    if sources.own().keeps() {
        // As a take-over does.
        loaded.keep_pinned(sources, head.roots)?;
        loaded.load_notes(sources)?;
    }
    let mut core = Core::of(loaded, head.base, keep);
    catch_up(sources, head, &mut core, SLOTS_AHEAD)?;
    Ok(core)
}

/// Replays the slots that the map lacks. `head` has the checkpoint with which the map began. Asks for `ahead` slots at first, then
/// for twice as many each time.
pub(crate) fn catch_up(
    sources: &Sources,
    head: &Head,
    core: &mut Core,
    mut ahead: u64,
) -> Result<(), OpenError> {
    let io = sources.own();
    let mut next = core.last_slot().next();
    loop {
        let batch: Vec<SlotName> = (next.0..next.0 + ahead)
            .filter_map(|slot| head.slot_name(Slot(slot)))
            .collect();
        let reads = batch.iter().map(|at| io.get(ObjectName::Log(*at), None));
        let found = block_on(async { Ok(futures_util::future::join_all(reads).await) })?;
        for (at, got) in batch.into_iter().zip(found) {
            let open = head.open_term() == Some(at.term);
            let name = ObjectName::Log(at);
            let Some(got) = got? else {
                match open {
                    true => return Ok(()),
                    false => return Err(io.missing(name).into()),
                }
            };
            match decode_slot(&io.coding, at, &got.bytes) {
                Ok((SlotBody::Seal(_), _)) if open => return Ok(()),
                Ok((SlotBody::Epoch(_), stamp)) => {
                    core.replay(sources, at, stamp, &got.bytes)?;
                    io.keep(name, None, &got.bytes);
                }
                Ok(_) => return Err(io.missing(name).into()),
                Err(why) => return Err(io.damaged(name, why).into()),
            }
            next = at.slot.next();
        }
        ahead = (ahead * 2).min(SLOTS_AHEAD);
    }
}

/// Reads a list of snapshots.
pub(crate) fn read_roots(io: &Io, reference: Option<Reference>) -> Result<Roots, OpenError> {
    let Some(reference) = reference else {
        return Ok(Roots::default());
    };
    let bytes = block_on(need(io, reference))?;
    let (roots, _): (Roots, Stamp) = decode_roots(&io.coding, reference.name, &bytes)
        .map_err(|why| io.damaged(reference.name, why))?;
    io.keep(reference.name, None, &bytes);
    Ok(roots)
}

/// The names of all objects of this volume that snapshots and clones need.
pub(crate) fn load_pins(
    sources: &Sources,
    reference: Option<Reference>,
) -> Result<HashSet<ObjectName>, OpenError> {
    let roots = read_roots(sources.own(), reference)?;
    let mut names = HashSet::new();
    for pin in &roots.pins {
        let Some(root) = pin.base.root else { continue };
        names.insert(root.name);
        let loaded = load_root(sources, pin.base, None)?;
        let named: HashSet<u32> = loaded.directory.values().map(|place| place.map).collect();
        for (index, map) in loaded.maps.iter().enumerate() {
            if map.source == 0 && named.contains(&(index as u32)) {
                names.insert(map.reference.name);
            }
        }
        for (_, entry) in loaded.map.objects() {
            if entry.source == 0 && entry.live > 0 {
                names.insert(entry.name);
            }
        }
    }
    Ok(names)
}

impl Core {
    /// The last slot in the map.
    pub(crate) fn last_slot(&self) -> Slot {
        self.closed
    }

    /// Number of objects that are retired and not yet deleted.
    pub(crate) fn retired(&self) -> usize {
        self.collector.waiting().count()
    }

    /// Further names of this volume's objects: slots without blocks, retired objects, and map objects that snapshots need.
    pub(crate) fn other_names(&self) -> impl Iterator<Item = ObjectName> + '_ {
        let plain = self.plain.iter().map(|(_, name)| *name);
        plain
            .chain(self.collector.waiting())
            .chain(self.kept.iter().copied())
    }
}
