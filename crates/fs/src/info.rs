//! What a volume is and how full it is, without mounting it: superblock, journal, bitmaps.
//! Reads only, and only a few blocks per group; a log that waits is applied in memory.

use crate::contract::Contract;
use crate::error::Error;
use crate::layout::{GROUP_META, META_BYTES, VERSION};
use crate::superblock::{is_mounted, load, reload};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{Journal, Kind, Recovery};

/// State of a volume's journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalState {
    /// The volume was unmounted: the log is empty.
    Clean {
        /// Epoch of the last mount.
        epoch: u64,
        /// Sequence number of the last record.
        sequence: u64,
    },
    /// The volume is mounted, or was not unmounted: the next mount recovers it.
    NeedsRecovery {
        /// Epoch of the last mount.
        epoch: u64,
        /// Sequence number of the last record that recovery accepts.
        sequence: u64,
        /// Records to replay.
        records: u64,
        /// Blocks that they change.
        blocks: u64,
    },
    /// It cannot be recovered.
    Damaged(String),
}

/// What [`info`] tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Identity.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// Format version.
    pub version: u32,
    /// Contract.
    pub contract: Contract,
    /// Seconds since 1970 when it was made.
    pub made: i64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks, superblocks and log included.
    pub blocks: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Block groups.
    pub groups: u64,
    /// Blocks for files and metadata.
    pub data_blocks: u64,
    /// Those of them that are free.
    pub free_blocks: u64,
    /// Blocks that hold inodes.
    pub inode_blocks: u64,
    /// Groups whose bitmaps cannot be read; their blocks count as used.
    pub groups_unreadable: u64,
    /// The volume may only be read by this version.
    pub read_only: bool,
    /// Why the copy of the superblock had to serve, if it had to.
    pub warning: Option<String>,
    /// State of the journal.
    pub journal: JournalState,
}

/// Tells what the volume on `device` is and how full it is. O(log + groups).
///
/// # Errors
/// As for a mount: [`Error::NotAVolume`], cut short, or of a newer format.
pub fn info(device: Arc<dyn BlockDevice>) -> Result<VolumeInfo, Error> {
    let mut found = load(&*device)?;
    let config = found.volume.journal().with(|config| {
        config.read_only = true;
        config.cache_blocks_max = 64;
    });
    let (journal, state) = match Journal::open(device.clone(), config) {
        Ok((journal, recovery)) => {
            found = reload(&journal, device.geometry().blocks, found)?;
            let mut recovery = recovery;
            recovery.clean &= !is_mounted(&journal, &found.volume)?;
            (Some(journal), state(&recovery))
        }
        Err(error) => (None, JournalState::Damaged(error.to_string())),
    };
    let volume = &found.volume;
    let mut info = VolumeInfo {
        uuid: volume.uuid,
        label: volume.label.clone(),
        version: VERSION,
        contract: volume.contract,
        made: volume.made,
        block_size: BLOCK_SIZE as u32,
        blocks: volume.blocks,
        log_blocks: volume.log_blocks,
        groups: volume.groups,
        data_blocks: volume.data_blocks(),
        free_blocks: 0,
        inode_blocks: 0,
        groups_unreadable: 0,
        read_only: found.read_only,
        warning: found.warning,
        journal: state,
    };
    let read = |blocks: &[BlockNo]| -> Vec<Option<Arc<Block>>> {
        match &journal {
            Some(journal) => journal
                .read_scattered(blocks, Kind::Meta)
                .into_iter()
                .map(Result::ok)
                .collect(),
            None => {
                let sound = |at: &BlockNo| {
                    let mut block = [0; BLOCK_SIZE];
                    let whole = device.read(*at, &mut block).is_ok()
                        && steadfast_journal::seal_holds(&volume.uuid, *at, &block);
                    whole.then(|| Arc::new(block))
                };
                blocks.iter().map(sound).collect()
            }
        }
    };
    for first in (0..volume.groups).step_by(GROUPS_AT_ONCE as usize) {
        let groups = first..(first + GROUPS_AT_ONCE).min(volume.groups);
        let bitmaps = |group| [0, 1].map(|bitmap| volume.group_start(group).offset(bitmap));
        let blocks: Vec<BlockNo> = groups.clone().flat_map(bitmaps).collect();
        for (group, found) in groups.zip(read(&blocks).chunks_exact(2)) {
            let len = volume.group_len(group);
            let [Some(used), Some(inodes)] = found else {
                info.groups_unreadable += 1;
                continue;
            };
            info.free_blocks += len.saturating_sub(ones(&used[..META_BYTES], len).max(GROUP_META));
            info.inode_blocks += ones(&inodes[..META_BYTES], len);
        }
    }
    Ok(info)
}

/// Groups whose bitmaps are read together.
const GROUPS_AT_ONCE: u64 = 128;

fn state(recovery: &Recovery) -> JournalState {
    // Recovery names the epoch that a mount would begin.
    let epoch = recovery.epoch.saturating_sub(1);
    let sequence = recovery.last_seq;
    if recovery.clean {
        return JournalState::Clean { epoch, sequence };
    }
    let (records, blocks) = (recovery.records, recovery.home_blocks);
    JournalState::NeedsRecovery {
        epoch,
        sequence,
        records,
        blocks,
    }
}

/// Bits set among the first `len`.
fn ones(bitmap: &[u8], len: u64) -> u64 {
    let whole = (len / 8) as usize;
    let full: u32 = bitmap[..whole].iter().map(|byte| byte.count_ones()).sum();
    let rest = bitmap
        .get(whole)
        .map_or(0, |byte| byte & ((1 << (len % 8)) - 1));
    u64::from(full + rest.count_ones())
}
