//! Parameters and use of a volume, without mounting it: superblock, journal, bitmaps.
//! Reads only, and only a few blocks per group; a log that waits is applied in memory.

use super::{Inspector, VolumeMap};
use crate::error::Error;
use crate::layout::{GROUP_META, META_BYTES};
use crate::superblock::is_mounted;
use std::sync::Arc;
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_journal::Recovery;

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

/// The result of [`info`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Content of its superblock.
    pub map: VolumeMap,
    /// Blocks for files and metadata.
    pub data_blocks: u64,
    /// Free ones among them.
    pub free_blocks: u64,
    /// Blocks that hold inodes.
    pub inode_blocks: u64,
    /// Groups whose bitmaps cannot be read; their blocks count as used.
    pub groups_unreadable: u64,
    /// State of the journal.
    pub journal: JournalState,
}

/// Reports the parameters and the use of the volume on `device`. O(log + groups).
///
/// # Errors
/// As for a mount: [`Error::NotAVolume`], cut short, or of a newer format.
pub fn info(device: Arc<dyn BlockDevice>) -> Result<VolumeInfo, Error> {
    let Inspector {
        map,
        blocks,
        recovery,
        ..
    } = Inspector::open(device)?;
    let volume = &map.volume;
    let state = match (recovery, &blocks.journal) {
        (Ok(mut recovery), Some(journal)) => {
            recovery.clean &= !is_mounted(journal, volume)?;
            state(&recovery)
        }
        (Ok(recovery), None) => state(&recovery),
        (Err(why), _) => JournalState::Damaged(why),
    };
    let (mut free_blocks, mut inode_blocks, mut groups_unreadable) = (0, 0, 0);
    for first in (0..volume.groups).step_by(GROUPS_AT_ONCE as usize) {
        let groups = first..(first + GROUPS_AT_ONCE).min(volume.groups);
        let bitmaps = |group| [0, 1].map(|bitmap| volume.group_start(group).offset(bitmap));
        let wanted: Vec<BlockNo> = groups.clone().flat_map(bitmaps).collect();
        for (group, found) in groups.zip(blocks.read_scattered(&wanted).chunks_exact(2)) {
            let len = volume.group_len(group);
            let [Some(used), Some(inodes)] = found else {
                groups_unreadable += 1;
                continue;
            };
            free_blocks += len.saturating_sub(ones(&used[..META_BYTES], len).max(GROUP_META));
            inode_blocks += ones(&inodes[..META_BYTES], len);
        }
    }
    Ok(VolumeInfo {
        data_blocks: volume.data_blocks(),
        free_blocks,
        inode_blocks,
        groups_unreadable,
        journal: state,
        map,
    })
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
