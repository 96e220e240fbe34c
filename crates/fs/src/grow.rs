//! Makes a volume longer: as long as its device is now. The log keeps its size.
//!
//! Order, and why it suffices:
//!
//! 1. The volume is recovered, as by a mount.
//! 2. The bitmaps of the new groups and the new copy of the superblock are written, past the
//!    volume's end, and flushed. A reader sees the old volume now.
//! 3. *One operation of the journal* changes the superblock, sets the last group's new blocks
//!    free, and makes the one bitmap that lies where the old copy lies, if there is one.
//!    Its record decides between the old volume and the new one, like that of any change.
//! 4. When the record is durable everything goes home, and the journal is closed.
//!
//! So a cut leaves the old volume, or a new one with a log to replay: opening a volume reads
//! its superblock again when the log is applied ([`superblock::reload`]). A write of the superblock that
//! is torn on its way home leaves block 0 without a seal; then the new copy serves, which is
//! durable since step 2, and replay repairs block 0.

use crate::error::Error;
use crate::layout::{GROUP_BLOCKS, GROUP_META, Superblock};
use crate::mkfs::{bitmaps, write_bitmaps};
use crate::superblock::{self, GROUP_BLOCKS_MIN, Volume};
use std::mem::offset_of;
use std::sync::Arc;
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_journal::{Credits, Journal, Kind, Recovery, StreamId, seal};

/// Log bytes of the operation: a few fields, bit runs and block headers.
const LOG_BYTES: u64 = 1024;
const FAILED: &str = "growing the volume";

/// Result of growing.
#[derive(Clone, Debug)]
pub struct Grown {
    /// Blocks of the volume before.
    pub blocks_before: u64,
    /// Blocks of the volume now; as many as before if there is no room for more.
    pub blocks: u64,
    /// Block groups now.
    pub groups: u64,
    /// Result of its recovery.
    pub recovery: Recovery,
}

/// Makes the volume on `device` as long as the device, and replays its log. `progress` gets the number
/// of new groups written so far. A cut may come anywhere; then it can be started again.
///
/// # Errors
/// There is no volume, it is longer than the device, of a newer format, or its superblock is
/// damaged; the journal cannot be recovered; the device fails.
pub fn grow(
    device: Arc<dyn BlockDevice>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown, Error> {
    superblock::begin(&*device)?;
    let found = superblock::load(&*device)?;
    let geometry = device.geometry();
    if geometry.read_only {
        return Err(Error::Option(
            "growing needs a device that can be written".into(),
        ));
    }
    if found.read_only {
        let what = "features that forbid writing to this version".into();
        return Err(Error::Unsupported { what });
    }
    let config = found.volume.journal().with(|config| {
        config.cache_blocks_max = 1024;
    });
    let (journal, recovery) = Journal::open(Arc::clone(&device), config)
        .map_err(Error::journal("recovering the volume"))?;
    let found = superblock::reload(&journal, geometry.blocks, found)?;
    if let Some(warning) = found.warning {
        return Err(Error::Option(warning));
    }
    let (old, new) = (&found.volume, longer(&found.volume, geometry.blocks));
    if let Some(new) = &new {
        lay_behind(&*device, &journal, old, new, progress)?;
        switch(&journal, old, new).map_err(Error::journal(FAILED))?;
    }
    journal.close().map_err(Error::journal(FAILED))?;
    let now = new.as_ref().unwrap_or(old);
    Ok(Grown {
        blocks_before: old.blocks,
        blocks: now.blocks,
        groups: now.groups,
        recovery,
    })
}

/// The volume that fills `device_blocks` blocks; `None` if it is not longer than `old`. A remainder too
/// short for a group is left out.
fn longer(old: &Volume, device_blocks: u64) -> Option<Volume> {
    let mut blocks = device_blocks;
    let rest = blocks.checked_sub(old.groups_start + 1)? % GROUP_BLOCKS;
    if rest < GROUP_BLOCKS_MIN {
        blocks -= rest;
    }
    (blocks > old.blocks).then(|| Volume {
        blocks,
        groups: (blocks - 1 - old.groups_start).div_ceil(GROUP_BLOCKS),
        ..old.clone()
    })
}

/// Step 2: the structures past the old volume's end.
fn lay_behind(
    device: &dyn BlockDevice,
    journal: &Journal,
    old: &Volume,
    new: &Volume,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let device_error = || Error::device(FAILED);
    let mut first = old.groups;
    if new.group_start(first).0 == old.groups_end() && first < new.groups {
        // Its block bitmap lies where the old copy lies: only the other one is past the end.
        let at = new.group_start(first).offset(1);
        let (_, mut inodes) = bitmaps(new, first);
        seal(&new.uuid, at, &mut inodes);
        device.write(at, &[&inodes]).map_err(device_error())?;
        first += 1;
    }
    let total = new.groups - first.min(new.groups);
    write_bitmaps(device, new, first..new.groups, &mut |done| {
        progress(done, total);
    })?;
    let block = journal.read(BlockNo(0), Kind::Meta);
    let mut copy = *block.map_err(Error::journal(FAILED))?;
    let at = BlockNo(new.blocks - 1);
    for (field, value) in fields(new) {
        copy[field..field + 8].copy_from_slice(&value);
    }
    seal(&new.uuid, at, &mut copy);
    device.write(at, &[&copy]).map_err(device_error())?;
    device.flush().map_err(device_error())
}

/// Step 3: the operation that makes the volume longer, durable when this returns.
fn switch(journal: &Journal, old: &Volume, new: &Volume) -> steadfast_journal::Result<()> {
    let credits = Credits::log(LOG_BYTES);
    let mut op = journal.begin(StreamId(0), credits)?;
    for (field, value) in fields(new) {
        op.write(BlockNo(0), Kind::Meta, field, &value)?;
    }
    let set = |op: &mut steadfast_journal::Op<'_>, group: u64, from: u64, to: u64, value| {
        let (at, count) = (new.group_start(group), to.saturating_sub(from) as usize);
        match count {
            0 => Ok(()),
            count => op.set_bits(at, from as usize, count, value),
        }
    };
    let last = old.groups - 1;
    set(
        &mut op,
        last,
        old.group_len(last),
        new.group_len(last),
        false,
    )?;
    if new.groups > old.groups && new.group_start(old.groups).0 == old.groups_end() {
        op.zero(new.group_start(old.groups), Kind::Meta)?;
        set(&mut op, old.groups, 0, GROUP_META, true)?;
        let len = new.group_len(old.groups);
        set(&mut op, old.groups, len, GROUP_BLOCKS, true)?;
    }
    let ticket = op.commit();
    journal.wait(ticket)
}

/// Changed fields of the superblock: offset and new value.
fn fields(new: &Volume) -> [(usize, [u8; 8]); 2] {
    [
        (offset_of!(Superblock, blocks), new.blocks.to_le_bytes()),
        (offset_of!(Superblock, groups), new.groups.to_le_bytes()),
    ]
}
