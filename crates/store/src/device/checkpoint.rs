//! Checkpoints: the map at a slot. Recovery begins there, and superseded objects can be deleted.
//!
//! Order: the map's changed cells are taken at one moment, when the map has all slots up to S and no part of the open epoch;
//! cells and root are sent and have landed; S is acknowledged; the swap of `head` publishes the root; then objects that neither
//! the root nor a snapshot names are retired. They are deleted when the store's clock has advanced by `keep-deleted`.

use super::{Core, Shared, relock};
use crate::driver::{Driver, Failed};
use crate::fault::DeviceFault;
use crate::map::Changed;
use crate::object::{
    CellKind, Directory, Draft, MapObject, Place, Root, encode_objects, encode_region, encode_root,
    push_cell,
};
use crate::protocol::{Base, Event, Full, Head, Kind, ObjectName, Reference, Slot, StoreTime};
use crate::runtime::runtime;
use crate::volume::OpenError;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Approximate bytes of a map object.
const MAP_BYTES: usize = 8 << 20;
/// A map object is given up if less than this percentage of it is in use.
const MAP_LIVE_PERCENT: u64 = 50;
/// Most unchanged regions in memory. A region full of runs of 64 KiB takes about 0.7 MB.
const REGIONS_KEPT: usize = 1024;

/// Reasons why a checkpoint was not published.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The volume cannot be written any more.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The list of snapshots, or one of their roots, could not be read.
    #[error("reading the snapshots: {0}")]
    Snapshots(#[source] Box<OpenError>),
}

impl CheckpointError {
    /// The sticky failure that a flush reports.
    pub(crate) fn failed(self) -> Failed {
        match self {
            CheckpointError::Failed(failed) => failed,
            CheckpointError::Snapshots(error) => match *error {
                OpenError::Store(error) => Failed::Store(error),
                _ => Failed::Inconsistent("the list of snapshots cannot be read"),
            },
        }
    }
}

type Pins = Arc<HashSet<ObjectName>>;

/// State that a checkpoint took from the core.
struct Taken {
    through: Slot,
    cells: Vec<((CellKind, u64), Changed)>,
    next_object: u32,
    directory: Directory,
    maps: Vec<MapObject>,
    retires: Vec<ObjectName>,
    kept: Vec<ObjectName>,
    waiting: Vec<ObjectName>,
    base: Base,
}

impl Shared {
    /// The background thread: checkpoints when they are due, then collection.
    pub(super) fn work(&self) {
        loop {
            {
                let mut work = relock(&self.work);
                while !work.wanted && !work.stop {
                    let waited = self.work_changed.wait(work);
                    work = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                }
                if work.stop {
                    return;
                }
                work.wanted = false;
            }
            // A failure of the writer is sticky, and flushes report it. Snapshots that cannot be read are tried again with
            // the next checkpoint; until then nothing is deleted.
            if self.checkpoint(false).is_ok() {
                let _ = self.collect_if_worth();
            }
        }
    }

    /// The names that snapshots need, as the newest known head lists them.
    fn pins(&self, head: &Head) -> Result<Pins, CheckpointError> {
        if let Some((reference, pins)) = &self.lock().pins
            && *reference == head.roots
        {
            return Ok(Arc::clone(pins));
        }
        if self.has(DeviceFault::PinsIgnored) {
            return Ok(Pins::default());
        }
        let pins = super::load_pins(&self.sources, head.roots);
        let pins = Arc::new(pins.map_err(|e| CheckpointError::Snapshots(Box::new(e)))?);
        self.lock().pins = Some((head.roots, Arc::clone(&pins)));
        Ok(pins)
    }

    pub(super) fn checkpoint(&self, release: bool) -> Result<(), CheckpointError> {
        self.checkpoint_of_size(release, None)
    }

    /// Grows the disk. The size is in `head`; a swap publishes it, with a new root, before the device accepts a block beyond
    /// the old end. A successor or follower reads `head` before the slots, so when it reads a slot with such a block, it has
    /// the new size. A crash in between leaves a disk of either size, with nothing beyond the old end; a fenced writer swaps
    /// nothing. A disk never shrinks: each swap keeps the size that was read.
    pub(super) fn grow(&self, blocks: u64) -> Result<(), CheckpointError> {
        if blocks <= self.blocks() {
            return Ok(());
        }
        match self.has(DeviceFault::SizeUnpublished) {
            true => self.checkpoint(false)?,
            false => self.checkpoint_of_size(false, Some(blocks))?,
        }
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
        Ok(())
    }

    fn checkpoint_of_size(
        &self,
        release: bool,
        blocks: Option<u64>,
    ) -> Result<(), CheckpointError> {
        let one_at_a_time = relock(&self.checkpointing);
        let driver = self.driver()?;
        if let Some(blocks) = blocks {
            // Swaps are made only under the lock above, so none is in flight.
            driver.set_blocks(blocks);
        }
        let head = driver
            .head()
            .ok_or(Failed::Inconsistent("no head before a checkpoint"))?;
        let pins = self.pins(&head)?;
        let taken = {
            let mut core = self.lock();
            let nothing_new = core.closed == core.base.through && core.base.root.is_some();
            if nothing_new && !release && blocks.is_none() {
                return Ok(());
            }
            let mut taken = core.take(driver, &pins);
            if self.has(DeviceFault::CellLeftOut) {
                taken.cells.pop();
            }
            taken
        };
        // Nothing changed: the published root is the checkpoint.
        let same = blocks.is_none()
            && taken.cells.is_empty()
            && taken.base.root.is_some()
            && taken.through == taken.base.through
            && taken.retires.is_empty();
        let published = match same {
            true => self.release_only(driver, taken.base),
            false => {
                let cells: Vec<(CellKind, u64)> = taken.cells.iter().map(|(key, _)| *key).collect();
                let kept = taken.kept.clone();
                let written = self.write_checkpoint(driver, taken, &pins, release);
                if written.is_err() {
                    // The next checkpoint has to write these cells. Objects that were to be retired are garbage that a sweep
                    // finds.
                    let mut core = self.lock();
                    core.kept = kept;
                    for key in cells {
                        core.mark_changed(key);
                    }
                }
                written
            }
        };
        drop(one_at_a_time);
        published?;
        self.delete_due()?;
        Ok(())
    }

    /// Publishes the present checkpoint again, and marks the volume as released.
    fn release_only(&self, driver: &Arc<Driver>, base: Base) -> Result<(), CheckpointError> {
        self.publish(driver, base, Vec::new(), true).map(drop)
    }

    /// Sends cells and root, and publishes the checkpoint.
    fn write_checkpoint(
        &self,
        driver: &Arc<Driver>,
        taken: Taken,
        pins: &Pins,
        release: bool,
    ) -> Result<(), CheckpointError> {
        let Taken {
            through,
            cells,
            mut directory,
            maps: old,
            mut retires,
            mut kept,
            ..
        } = taken;
        // Cells that are written now leave their objects.
        for (key, _) in &cells {
            directory.remove(key);
        }
        let mut used: Vec<bool> = vec![false; old.len()];
        for place in directory.values() {
            used[place.map as usize] = true;
        }
        let listed: HashSet<ObjectName> = retires.iter().chain(&kept).copied().collect();
        let mut maps = Vec::new();
        let mut renumbered = HashMap::new();
        for (index, map) in old.iter().enumerate() {
            if used[index] {
                renumbered.insert(index as u32, maps.len() as u32);
                maps.push(*map);
            } else if map.source == 0 && !listed.contains(&map.reference.name) {
                let list = match pins.contains(&map.reference.name) {
                    true => &mut kept,
                    false => &mut retires,
                };
                list.push(map.reference.name);
            }
        }
        for place in directory.values_mut() {
            place.map = renumbered.get(&place.map).copied().unwrap_or(u32::MAX);
        }
        if let Some(root) = taken.base.root {
            let list = match pins.contains(&root.name) {
                true => &mut kept,
                false => &mut retires,
            };
            list.push(root.name);
        }
        let mut sent = self.send_cells(driver, &cells, &mut directory, &mut maps)?;
        drop(cells);
        // Map objects that only a snapshot needs are listed, although no cell of this checkpoint is in them.
        for name in &kept {
            let known = old.iter().find(|map| map.reference.name == *name);
            let reference = Reference {
                name: *name,
                stamp: known.map_or_else(Default::default, |map| map.reference.stamp),
            };
            maps.push(MapObject {
                source: 0,
                reference,
                bytes: known.map_or(0, |map| map.bytes),
            });
        }
        let root = Root {
            next_object: taken.next_object,
            through,
            maps,
            directory,
            retired: (taken.waiting.iter().chain(&retires)).copied().collect(),
        };
        let (coding, salt) = (self.coding(), self.salt()?);
        let root_of = |name| encode_root(coding, salt, name, &root);
        let reference = driver.put(Kind::Map, root_of)?;
        sent.push(reference.name);
        driver.wait_landed(&sent)?;
        driver.wait_acknowledged(through)?;
        if release {
            driver.wait_pending(0)?;
        }
        let base = Base {
            through,
            root: Some(reference),
        };
        let (retired, rescued) = self.publish(driver, base, retires, release)?;
        kept.extend(rescued);
        let mut core = self.lock();
        core.directory = root.directory;
        core.maps = root.maps;
        core.kept = kept;
        core.base = base;
        core.collector.retire(retired);
        core.map.shrink(REGIONS_KEPT);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Packs cells into map objects, sends them, and records their places.
    fn send_cells(
        &self,
        driver: &Arc<Driver>,
        cells: &[((CellKind, u64), Changed)],
        directory: &mut Directory,
        maps: &mut Vec<MapObject>,
    ) -> Result<Vec<ObjectName>, Failed> {
        let coding = self.coding();
        let encoded = cells.iter().filter_map(|(key, changed)| {
            let bytes = match changed {
                Changed::Region(region) if region.0.is_empty() => return None,
                Changed::Objects(part) if part.is_empty() => return None,
                Changed::Notes(notes) => notes.clone(),
                Changed::Region(region) => encode_region(region.0.iter()),
                Changed::Objects(part) => encode_objects(part.iter()),
            };
            Some((*key, bytes))
        });
        let mut encoded = encoded.peekable();
        let mut sent = Vec::new();
        while encoded.peek().is_some() {
            let map = maps.len() as u32;
            let mut places = Vec::new();
            let mut length = 0;
            let salt = self.salt()?;
            let reference = driver.put(Kind::Map, |name| {
                let mut draft = Draft::with_cells(coding, salt, 1 << 16);
                while draft.len() < MAP_BYTES
                    && let Some((key, bytes)) = encoded.next()
                {
                    let (at, len) = push_cell(&mut draft, coding, name, key.0, key.1, &[&bytes]);
                    places.push((key, Place { map, at, len }));
                }
                length = draft.len() as u64;
                draft.finish(coding, name)
            })?;
            directory.extend(places);
            maps.push(MapObject {
                source: 0,
                reference,
                bytes: length,
            });
            sent.push(reference.name);
            driver.wait_pending(super::PENDING_MOST)?;
        }
        Ok(sent)
    }

    /// Publishes a checkpoint. Objects that new snapshots need are not retired; they are returned separately.
    fn publish(
        &self,
        driver: &Arc<Driver>,
        base: Base,
        mut retires: Vec<ObjectName>,
        release: bool,
    ) -> Result<(Vec<ObjectName>, Vec<ObjectName>), CheckpointError> {
        let mut rescued = Vec::new();
        loop {
            match driver.publish(base, retires.clone(), release)? {
                Ok(()) => {}
                Err(Full::Busy) if release => {
                    driver.wait_pending(0)?;
                    continue;
                }
                Err(_) => return Err(Failed::Inconsistent("a checkpoint was refused").into()),
            }
            loop {
                match driver.next_event()? {
                    Event::Published(retired) => return Ok((retired, rescued)),
                    Event::Reconsider(head) => {
                        let pins = self.pins(&head)?;
                        let (needed, rest) =
                            retires.into_iter().partition(|name| pins.contains(name));
                        rescued.extend::<Vec<ObjectName>>(needed);
                        retires = rest;
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Deletes retired objects that are due by the store's clock. The next checkpoint retries failed deletions.
    pub(super) fn delete_due(&self) -> Result<(), Failed> {
        if self.lock().collector.waiting().next().is_none() {
            return Ok(());
        }
        let io = self.sources.own();
        let runtime = runtime().map_err(|_| Failed::Inconsistent("no threads for requests"))?;
        let Ok(now) = runtime.block_on(io.written_at(ObjectName::Head)) else {
            return Ok(());
        };
        let due = self.lock().collector.tick(StoreTime(now));
        for batch in due.chunks(64) {
            let deletes = batch.iter().map(|name| io.delete(*name));
            let results = runtime.block_on(futures_util::future::join_all(deletes));
            let mut core = self.lock();
            for (name, result) in batch.iter().zip(results) {
                if result.is_ok() {
                    core.collector.deleted(*name);
                }
            }
        }
        Ok(())
    }
}

impl Core {
    /// Takes the state for a checkpoint, at one moment.
    fn take(&mut self, driver: &Driver, pins: &Pins) -> Taken {
        let through = self.closed;
        let mut retires = Vec::new();
        for id in self.map.dead() {
            let Some(entry) = self.map.object(id).copied() else {
                continue;
            };
            if entry.source == 0 && pins.contains(&entry.name) {
                continue;
            }
            self.map.forget_object(id);
            if entry.source == 0 {
                retires.push(entry.name);
            }
        }
        retires.extend(self.plain.drain(..).map(|(_, name)| name));
        let (landed, flying) = std::mem::take(&mut self.orphans)
            .into_iter()
            .partition::<Vec<_>, _>(|name| !driver.is_uploading(*name));
        self.orphans = flying;
        retires.extend(landed);
        let (kept, freed) = std::mem::take(&mut self.kept)
            .into_iter()
            .partition::<Vec<_>, _>(|name| pins.contains(name));
        retires.extend(freed);
        self.give_up_sparse_maps();
        self.bytes_since = 0;
        let mut cells = self.map.take_changed();
        if std::mem::take(&mut self.notes.changed) {
            cells.push(((CellKind::Notes, 0), Changed::Notes(self.notes.encode())));
        }
        Taken {
            through,
            cells,
            next_object: self.map.next_object,
            directory: self.directory.clone(),
            maps: self.maps.clone(),
            retires,
            kept,
            waiting: self.collector.waiting().collect(),
            base: self.base,
        }
    }

    /// Marks cells of mostly unused map objects as changed, so that the objects can be retired.
    fn give_up_sparse_maps(&mut self) {
        let mut used = vec![0; self.maps.len()];
        for place in self.directory.values() {
            used[place.map as usize] += u64::from(place.len);
        }
        let sparse = |map: u32| {
            let (used, whole) = (used[map as usize], self.maps[map as usize].bytes);
            used * 100 < whole * MAP_LIVE_PERCENT
        };
        let cells: Vec<(CellKind, u64)> = self
            .directory
            .iter()
            .filter(|(key, place)| sparse(place.map) && self.is_loaded(**key))
            .map(|(key, _)| *key)
            .collect();
        for key in cells {
            self.mark_changed(key);
        }
    }

    /// Marks a cell as changed: see [`crate::map::Map::mark_changed`].
    fn mark_changed(&mut self, key: (CellKind, u64)) {
        match key.0 {
            CellKind::Notes => self.notes.changed = true,
            _ => self.map.mark_changed(key),
        }
    }

    fn is_loaded(&self, key: (CellKind, u64)) -> bool {
        key.0 == CellKind::Notes || self.map.is_loaded(key)
    }
}
