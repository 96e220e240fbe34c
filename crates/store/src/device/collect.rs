//! Garbage collection: moves live blocks out of mostly dead objects, so that the objects can be retired.
//!
//! Victims are chosen by the ratio of benefit to cost, weighted by age (cost-benefit). Moved blocks go into data objects, which
//! a separate slot names; this slot has nothing of the open epoch. A block that was overwritten meanwhile is left out: the map
//! decides at the moment when the slot is sent.

use super::checkpoint::CheckpointError;
use super::epoch::push_runs;
use super::{DATA_BLOCKS, Shared};
use crate::driver::Failed;
use crate::fault::DeviceFault;
use crate::map::{ObjectEntry, REGION_BLOCKS, Spot};
use crate::object::{
    CELL_HEADER, CellKind, DataName, Draft, ENVELOPE, Entry, Epoch, SlotBody, decode_slot,
    encode_epoch, open, read_cell,
};
use crate::protocol::{Full, Kind, ObjectName, Slot, SlotName};
use crate::runtime::runtime;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use steadfast_block::BLOCK_SIZE;

/// Collection begins when less than this percentage of the blocks in objects is live.
const LIVE_PERCENT: u64 = 70;
/// Most objects that are emptied at a time.
const VICTIMS: usize = 512;
/// Most objects that are read concurrently, and most bytes of them.
const READ_AT_ONCE: usize = 16;
const READ_BYTES: u64 = 64 << 20;
/// Most blocks that are moved at a time: 32 MiB, in one object at most.
pub(super) const MOVED_BLOCKS: u64 = 8192;

/// Number of these objects to read concurrently: at least one.
pub(super) fn batch_of(objects: &[(u32, ObjectEntry)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, entry): &&(u32, ObjectEntry)| {
        bytes += entry.bytes;
        bytes <= READ_BYTES
    };
    let fitting = objects.iter().take(READ_AT_ONCE).take_while(fits).count();
    fitting.clamp(1, objects.len().max(1))
}

/// A block to move, and its present place.
pub(super) struct Move {
    block: u64,
    from: Spot,
    bytes: Bytes,
}

impl Shared {
    /// After a checkpoint: collects if enough blocks are dead.
    pub(super) fn collect_if_worth(&self) -> Result<(), CheckpointError> {
        self.collect_to(LIVE_PERCENT).map(drop)
    }

    /// Empties objects until `percent` of the blocks in objects are live. Returns the number of emptied objects.
    pub(super) fn collect_to(&self, percent: u64) -> Result<u64, CheckpointError> {
        let mut emptied = 0;
        loop {
            let victims = self.victims(percent);
            if victims.is_empty() {
                break;
            }
            let mut moves = Vec::new();
            let mut rest = &victims[..];
            while !rest.is_empty() {
                let (batch, others) = rest.split_at(batch_of(rest));
                rest = others;
                self.live_blocks(batch, &mut moves)?;
            }
            for batch in moves.chunks(MOVED_BLOCKS as usize) {
                self.relocate(batch)?;
            }
            emptied += victims.len() as u64;
            self.checkpoint(false)?;
        }
        // Deletes due objects even if nothing was moved.
        self.delete_due()?;
        Ok(emptied)
    }

    /// The best victims, if less than `percent` of all blocks is live.
    fn victims(&self, percent: u64) -> Vec<(u32, ObjectEntry)> {
        let core = self.lock();
        let own = |entry: &ObjectEntry| entry.source == 0;
        let (mut live, mut held) = (0_u64, 0_u64);
        // Objects without a live block are retired anyway, or a snapshot needs them.
        for (_, entry) in core
            .map
            .objects()
            .filter(|(_, entry)| own(entry) && entry.live > 0)
        {
            live += u64::from(entry.live);
            held += u64::from(entry.blocks);
        }
        if live * 100 >= held * percent {
            return Vec::new();
        }
        // Numbers grow with time, so the distance to the newest is an age.
        let newest = u64::from(core.map.next_object);
        let worth = |id: u32, entry: &ObjectEntry| {
            let used = u64::from(entry.live) * 1000 / u64::from(entry.blocks.max(1));
            (1000 - used.min(1000)) * (newest - u64::from(id)) / (1000 + used)
        };
        let mut found: Vec<(u64, u32, ObjectEntry)> = core
            .map
            .objects()
            .filter(|(_, entry)| own(entry) && entry.live > 0 && entry.live < entry.blocks)
            .map(|(id, entry)| (worth(id, entry), id, *entry))
            .collect();
        found.sort_unstable_by_key(|(worth, id, _)| (std::cmp::Reverse(*worth), *id));
        let mut moved = 0;
        let fits = |(_, _, entry): &(u64, u32, ObjectEntry)| {
            moved += u64::from(entry.live);
            moved <= MOVED_BLOCKS
        };
        let victims = found.into_iter().take(VICTIMS).take_while(fits);
        victims.map(|(_, id, entry)| (id, entry)).collect()
    }

    /// Reads these objects concurrently, and finds the blocks in them that the map still has.
    pub(super) fn live_blocks(
        &self,
        objects: &[(u32, ObjectEntry)],
        moves: &mut Vec<Move>,
    ) -> Result<(), CheckpointError> {
        let reads = objects.iter().map(|(_, entry)| self.object_bytes(entry));
        let runtime = runtime().map_err(|_| Failed::Inconsistent("no threads for requests"))?;
        let found = runtime.block_on(futures_util::future::join_all(reads));
        for ((id, entry), bytes) in objects.iter().zip(found) {
            self.live_blocks_of(*id, entry, &bytes?, moves)?;
        }
        Ok(())
    }

    /// The bytes of an object of this volume, or of a parent.
    async fn object_bytes(&self, entry: &ObjectEntry) -> Result<Bytes, Failed> {
        if entry.source == 0
            && let Some(bytes) = self.driver()?.pending(entry.name)
        {
            return Ok(bytes);
        }
        let io = self.sources.get(entry.source)?;
        let got = io.get(entry.name, None).await?;
        Ok(got.ok_or_else(|| io.missing(entry.name))?.bytes)
    }

    /// Finds the blocks in an object that the map still has.
    fn live_blocks_of(
        &self,
        id: u32,
        entry: &ObjectEntry,
        bytes: &Bytes,
        moves: &mut Vec<Move>,
    ) -> Result<(), CheckpointError> {
        let io = self.sources.get(entry.source).map_err(Failed::Store)?;
        let damaged = |why| Failed::Store(io.damaged(entry.name, why));
        open(&io.coding, entry.name, bytes).map_err(damaged)?;
        let (mut at, end) = match entry.name {
            ObjectName::Log(slot) => {
                let (body, _) = decode_slot(&io.coding, slot, bytes).map_err(damaged)?;
                let SlotBody::Epoch(epoch) = body else {
                    return Err(Failed::Inconsistent("a seal has blocks").into());
                };
                let own = epoch.entries.iter().filter(|entry| entry.object == 0);
                let end = own.map(|entry| (entry.at + entry.len) as usize).max();
                (ENVELOPE + 8, end.unwrap_or(0))
            }
            _ => (ENVELOPE, bytes.len()),
        };
        while at < end {
            let cell = read_cell(&io.coding, entry.name, at as u32, &bytes.slice(at..));
            let cell = cell.map_err(damaged)?;
            if cell.kind == CellKind::Blocks {
                let count = (cell.contents.len() / BLOCK_SIZE) as u64;
                self.still_live(id, at as u32, cell.index, count, &cell.contents, moves)?;
            }
            at += cell.len;
        }
        Ok(())
    }

    fn still_live(
        &self,
        id: u32,
        at: u32,
        block: u64,
        count: u64,
        contents: &Bytes,
        moves: &mut Vec<Move>,
    ) -> Result<(), Failed> {
        let core = loop {
            let core = self.lock();
            match core.missing(block, count) {
                Some(region) => {
                    drop(core);
                    self.load_region(region)?;
                }
                None => break core,
            }
        };
        for (first, run, spot) in core.map.over(block, count) {
            if spot.object != id || spot.at != at {
                continue;
            }
            for i in 0..run {
                let skip = spot.skip.wrapping_add(i as u16);
                let from = usize::from(skip) * BLOCK_SIZE;
                let why = "a cell is shorter than the map says";
                let bytes = contents.get(from..from + BLOCK_SIZE);
                let bytes = bytes.ok_or(Failed::Inconsistent(why))?;
                moves.push(Move {
                    block: first + u64::from(i),
                    from: Spot { skip, ..spot },
                    // A copy: a slice would keep all of the object in memory.
                    bytes: Bytes::copy_from_slice(bytes),
                });
            }
        }
        Ok(())
    }

    /// Writes blocks to new data objects, and commits a slot with their new places.
    pub(super) fn relocate(&self, moves: &[Move]) -> Result<(), Failed> {
        let driver = self.driver()?;
        let coding = self.coding();
        let mut sorted: Vec<&Move> = moves.iter().collect();
        sorted.sort_unstable_by_key(|one| one.block);
        let mut epoch = Epoch::default();
        let mut names = Vec::new();
        for part in sorted.chunks(DATA_BLOCKS * 4) {
            let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
            for one in part {
                match runs.last_mut() {
                    Some((first, run))
                        if *first + run.len() as u64 == one.block
                            && run.len() < self.unit_blocks()
                            && !one.block.is_multiple_of(REGION_BLOCKS) =>
                    {
                        run.push(one.bytes.clone());
                    }
                    _ => runs.push((one.block, vec![one.bytes.clone()])),
                }
            }
            let object = epoch.data.len() as u32 + 1;
            let mut bytes = 0;
            let salt = self.salt()?;
            let reference = driver.put(Kind::Data, |name| {
                let bytes_most = part.len() * BLOCK_SIZE + runs.len() * CELL_HEADER;
                let mut draft = Draft::with_cells(coding, salt, bytes_most);
                push_runs(&mut draft, coding, name, &runs, |block, count, at, len| {
                    epoch.entries.push(Entry {
                        block,
                        count: count as u16,
                        skip: 0,
                        object,
                        at,
                        len,
                    });
                });
                bytes = draft.len() as u64;
                draft.finish(coding, name)
            })?;
            let ObjectName::Data { number, .. } = reference.name else {
                return Err(Failed::Inconsistent("a data object has another kind"));
            };
            epoch.data.push(DataName {
                number,
                stamp: reference.stamp,
                bytes,
                blocks: part.len() as u32,
            });
            names.push(reference.name);
        }
        if self.has(DeviceFault::MoveFlushes) {
            self.flush()?;
        }
        let slot = self.append_moves(&sorted, &epoch, &names)?;
        driver.wait_acknowledged(slot)?;
        self.moved_blocks
            .fetch_add(moves.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a slot with the moves of those blocks whose place has not changed.
    fn append_moves(
        &self,
        moves: &[&Move],
        epoch: &Epoch,
        names: &[ObjectName],
    ) -> Result<Slot, Failed> {
        let driver = self.driver()?;
        loop {
            let mut core = self.lock();
            let missing = moves.iter().find_map(|one| core.missing(one.block, 1));
            if let Some(region) = missing {
                drop(core);
                self.load_region(region)?;
                continue;
            }
            let unmoved = |one: &&&Move| {
                let now = core.map.over(one.block, 1);
                matches!(now.first(), Some((_, _, spot)) if *spot == one.from)
            };
            let valid: std::collections::HashSet<u64> =
                moves.iter().filter(unmoved).map(|one| one.block).collect();
            let mut still = Epoch {
                data: epoch.data.clone(),
                ..Epoch::default()
            };
            for entry in &epoch.entries {
                let mut skip = 0;
                while skip < entry.count {
                    let first = skip;
                    while skip < entry.count && valid.contains(&(entry.block + u64::from(skip))) {
                        skip += 1;
                    }
                    if skip > first {
                        still.entries.push(Entry {
                            block: entry.block + u64::from(first),
                            count: skip - first,
                            skip: first,
                            ..*entry
                        });
                    }
                    skip += u16::from(skip < entry.count);
                }
            }
            let at = SlotName {
                term: driver.term(),
                slot: core.next_slot(),
            };
            let (coding, salt) = (self.coding(), self.salt()?);
            let (bytes, stamp, still) = encode_epoch(coding, salt, at, still, |_, _| {});
            let length = bytes.len() as u64;
            match driver.append(at.slot, bytes, stamp, names)? {
                Ok(()) => {
                    core.apply(at, stamp, length, &still)?;
                    return Ok(at.slot);
                }
                Err(Full::Window) => {
                    let closed = core.closed;
                    drop(core);
                    driver.wait_window(closed)?;
                }
                Err(_) => return Err(Failed::Inconsistent("a move after the end")),
            }
        }
    }
}
