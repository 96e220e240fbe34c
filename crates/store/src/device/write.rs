//! Writes, discards and flushes.

use super::epoch::{Target, push_runs};
use super::{
    Core, DATA_BLOCKS, DUE_BYTES, DUE_SLOTS, INLINE_BLOCKS, LATE_BYTES, LATE_SLOTS, PENDING_MOST,
    Shared, StoreDevice,
};
use crate::driver::{Driver, Failed};
use crate::fault::DeviceFault;
use crate::map::{Spot, by_region};
use crate::object::{CELL_HEADER, DataName, Draft, Entry, encode_epoch};
use crate::protocol::{Full, Kind, ObjectName, Slot, SlotName};
use bytes::Bytes;
use std::sync::{Arc, MutexGuard};
use steadfast_block::{BLOCK_SIZE, BlockNo, DeviceError, DeviceOp};

/// Reasons to refuse a write.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    #[error("{needed} more blocks do not fit the epoch of {most} blocks: flush, then write again")]
    Full { needed: u64, most: u64 },
    #[error(transparent)]
    Failed(#[from] Failed),
}

impl WriteError {
    pub(super) fn into_device(self, op: DeviceOp, at: BlockNo, count: u64) -> DeviceError {
        match self {
            WriteError::Full { .. } => DeviceError::Io {
                op,
                at,
                count,
                source: Arc::new(std::io::Error::new(
                    std::io::ErrorKind::StorageFull,
                    self.to_string(),
                )),
            },
            WriteError::Failed(failed) => StoreDevice::error(op, at, count, failed),
        }
    }
}

impl Shared {
    /// The locked core, with room for this many writes in the epoch.
    fn admit(&self, count: u64) -> Result<MutexGuard<'_, Core>, WriteError> {
        let driver = self.driver()?;
        if let Some(failed) = driver.failed() {
            return Err(failed.into());
        }
        // Before the lock, so that reads go on while the store catches up.
        driver.wait_pending(PENDING_MOST)?;
        let core = self.lock();
        if core.open.written + count <= self.epoch_blocks {
            return Ok(core);
        }
        if self.flush_when_full && count <= self.epoch_blocks {
            drop(core);
            self.flush()?;
            let core = self.lock();
            if core.open.written + count <= self.epoch_blocks {
                return Ok(core);
            }
        }
        Err(WriteError::Full {
            needed: count,
            most: self.epoch_blocks,
        })
    }

    pub(super) fn write<'a>(
        &self,
        count: u64,
        blocks: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<(), WriteError> {
        let mut core = self.admit(count)?;
        for (block, bytes) in blocks {
            core.open
                .buffer
                .insert(block, Bytes::copy_from_slice(bytes));
        }
        core.open.written += count;
        while core.open.buffer.len() >= DATA_BLOCKS {
            self.spill(&mut core)?;
        }
        Ok(())
    }

    pub(super) fn discard(&self, block: u64, count: u64) -> Result<(), WriteError> {
        let mut core = self.admit(1)?;
        core.open.written += 1;
        let end = block.saturating_add(count);
        let gone: Vec<u64> = core
            .open
            .buffer
            .range(block..end)
            .map(|(b, _)| *b)
            .collect();
        for block in gone {
            core.open.buffer.remove(&block);
        }
        for (block, count) in by_region(block, count) {
            core.open
                .placed
                .insert(block, count as u32, Target::Hole, |_, _, _| {});
        }
        Ok(())
    }

    /// Sends buffered blocks of the open epoch as a data object.
    fn spill(&self, core: &mut Core) -> Result<(), Failed> {
        let driver = self.driver()?;
        let (coding, salt) = (self.coding(), self.salt()?);
        let runs = core.open.take_runs(DATA_BLOCKS, self.unit_blocks());
        let blocks: usize = runs.iter().map(|(_, run)| run.len()).sum();
        if blocks == 0 {
            return Ok(());
        }
        let index = core.open.data.len() as u32;
        let mut placed = Vec::with_capacity(runs.len());
        let mut bytes = 0;
        let reference = driver.put(Kind::Data, |name| {
            let bytes_most = blocks * BLOCK_SIZE + runs.len() * CELL_HEADER;
            let mut draft = Draft::with_cells(coding, salt, bytes_most);
            push_runs(&mut draft, coding, name, &runs, |block, count, at, len| {
                placed.push((block, count, at, len));
            });
            bytes = draft.len() as u64;
            draft.finish(coding, name)
        })?;
        let ObjectName::Data { number, .. } = reference.name else {
            return Err(Failed::Inconsistent("a data object has another kind"));
        };
        core.open.data.push((
            reference.name,
            DataName {
                number,
                stamp: reference.stamp,
                bytes,
                blocks: blocks as u32,
            },
        ));
        for (block, count, at, len) in placed {
            let spot = Spot {
                object: index,
                at,
                len,
                skip: 0,
            };
            core.open
                .placed
                .insert(block, count, Target::Data(spot), |_, _, _| {});
        }
        Ok(())
    }

    /// Keeps a note with the open epoch.
    pub(super) fn note(&self, note: &[u8]) {
        let mut core = self.lock();
        if self.has(DeviceFault::NoteEarly) {
            let open = std::mem::take(&mut core.open);
            core.open.notes.push(Bytes::copy_from_slice(note));
            if let Ok(driver) = self.driver() {
                let _ = self.append(&mut core, driver);
            }
            core.open = open;
            return;
        }
        core.open.notes.push(Bytes::copy_from_slice(note));
    }

    /// Closes the open epoch and waits until it is durable.
    pub(super) fn flush(&self) -> Result<(), Failed> {
        let slot = self.close_epoch()?;
        self.wait_epoch(slot)
    }

    /// Waits until a slot, and all before it, are durable.
    pub(super) fn wait_epoch(&self, slot: Slot) -> Result<(), Failed> {
        if self.has(DeviceFault::FlushUnacknowledged) {
            return Ok(());
        }
        self.driver()?.wait_acknowledged(slot)
    }

    /// Closes the open epoch: sends it as the next slot. Returns this slot, or the last one if nothing was written. Waits while
    /// the window is full.
    pub(super) fn close_epoch(&self) -> Result<Slot, Failed> {
        let driver = self.driver()?;
        loop {
            let mut core = self.lock();
            if let Some(failed) = driver.failed() {
                return Err(failed);
            }
            if core.open.is_empty() {
                core.open.written = 0;
                return Ok(core.closed);
            }
            let late = core.slots_since() >= LATE_SLOTS || core.bytes_since >= LATE_BYTES;
            if late {
                drop(core);
                self.checkpoint(false).map_err(|error| error.failed())?;
                continue;
            }
            let touches = core.open.touches();
            let missing = touches
                .into_iter()
                .find_map(|(block, count)| core.missing(block, count));
            if let Some(region) = missing {
                drop(core);
                self.load_region(region)?;
                continue;
            }
            match self.append(&mut core, driver)? {
                Ok(slot) => {
                    let due = core.slots_since() >= DUE_SLOTS || core.bytes_since >= DUE_BYTES;
                    drop(core);
                    if due {
                        self.ask_for_checkpoint();
                    }
                    return Ok(slot);
                }
                Err(Full::Window) => {
                    let first = core.closed;
                    drop(core);
                    driver.wait_window(first)?;
                }
                Err(Full::Spans) => {
                    drop(core);
                    self.checkpoint(false).map_err(|error| error.failed())?;
                }
                Err(_) => return Err(Failed::Inconsistent("a flush after the end")),
            }
        }
    }

    /// Sends the open epoch as the next slot, and applies it to the map.
    pub(super) fn append(
        &self,
        core: &mut Core,
        driver: &Arc<Driver>,
    ) -> Result<Result<Slot, Full>, Failed> {
        if core.open.buffer.len() > INLINE_BLOCKS {
            while !core.open.buffer.is_empty() {
                self.spill(core)?;
            }
        }
        // The buffer is emptied only when the slot is sent.
        let blocks = core.open.buffer.clone();
        let runs = core.open.take_runs(usize::MAX, self.unit_blocks());
        core.open.buffer = blocks;
        let mut epoch = core.open.tables();
        epoch.own_blocks = core.open.buffer.len() as u32;
        epoch.notes = core.open.notes.clone().take();
        if self.has(DeviceFault::NoteLost) {
            epoch.notes.clear();
        }
        let at = SlotName {
            term: driver.term(),
            slot: core.next_slot(),
        };
        let (coding, salt) = (self.coding(), self.salt()?);
        let (bytes, stamp, epoch) = encode_epoch(coding, salt, at, epoch, |draft, epoch| {
            let name = ObjectName::Log(at);
            push_runs(draft, coding, name, &runs, |block, count, at, len| {
                epoch.entries.push(Entry {
                    block,
                    count: count as u16,
                    skip: 0,
                    object: 0,
                    at,
                    len,
                });
            });
        });
        let names: Vec<ObjectName> = core.open.data.iter().map(|(name, _)| *name).collect();
        let length = bytes.len() as u64;
        if let Err(full) = driver.append(at.slot, bytes, stamp, &names)? {
            return Ok(Err(full));
        }
        core.apply(at, stamp, length, &epoch)?;
        core.open = super::OpenEpoch::default();
        Ok(Ok(at.slot))
    }

    /// Drops all writes since the last flush.
    pub(super) fn rollback(&self) -> Result<(), Failed> {
        let Ok(driver) = self.driver() else {
            return Ok(());
        };
        let closed = self.lock().closed;
        driver.wait_acknowledged(closed)?;
        let mut core = self.lock();
        let open = std::mem::take(&mut core.open);
        if self.has(DeviceFault::RollbackPartial) {
            core.open.buffer = open.buffer;
        }
        core.orphans.extend(open.data.iter().map(|(name, _)| *name));
        Ok(())
    }
}
