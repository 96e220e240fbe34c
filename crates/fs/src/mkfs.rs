//! Makes a volume: lays out log and groups, the root and the orphan directory, and the
//! superblocks.
//!
//! Order (corner 34): existing superblocks are destroyed first; the superblock is written
//! last, after a flush of everything else, its copy before it. An interrupted mkfs leaves
//! no volume, or a whole one. The log region is written for real, so that a commit never
//! waits for a sparse image's host file system to allocate.

use crate::btree;
use crate::contract::Contract;
use crate::dir;
use crate::error::Error;
use crate::inode::Place;
use crate::layout::{
    DiskInode, FEATURE_NO_LOG, GROUP_BLOCKS, GROUP_META, INODE_BYTES, MAGIC, Superblock, VERSION,
};
use crate::superblock::{GROUP_BLOCKS_MIN, GROUPS_START, LOG_BLOCKS_MIN, LOG_START, Volume};
use std::ops::Range;
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockDevice, BlockNo};
use steadfast_journal::{EPOCH_BLOCKS_MIN, Journal, seal};
use steadfast_vfs::policy::STICKY;
use steadfast_vfs::{Clock, FileKind, SystemClock, Time};
use zerocopy::{FromZeros, IntoBytes};

/// Largest default log: 64 MiB.
const LOG_BLOCKS_DEFAULT_MAX: u64 = 16_384;
/// The default log is this part of the device.
const LOG_SHARE: u64 = 16;
/// Blocks for files and directories that a volume has at least.
const DATA_BLOCKS_MIN: u64 = 16;
/// Blocks in use from the start: the first inodes, the leaves of the root and of the orphan directory.
const FIRST_BLOCKS: u64 = 3;
/// Groups whose bitmaps are written together.
const GROUPS_AT_ONCE: u64 = 128;
/// Bytes of a label.
const LABEL_BYTES: usize = 64;

/// Options for making a volume. The default suits most.
#[derive(Clone, Debug)]
pub struct MkfsOptions {
    /// Name of the volume, at most 64 bytes.
    pub label: String,
    /// Changes that a crash may lose.
    pub contract: Contract,
    /// Identity; random if not given.
    pub uuid: Option<[u8; 16]>,
    /// No log: for a device that a crash returns to its last flush.
    pub without_log: bool,
    /// Blocks of the log; by default a sixteenth of the device, at most 64 MiB.
    pub log_blocks: Option<u64>,
    /// Permission bits of the root directory.
    pub root_perm: u16,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// The time that it is made; now if not given.
    pub now: Option<Time>,
    /// Makes everything else that is random follow from this number, for tests that must
    /// give the same image each time. Leaves the directory hash predictable.
    pub seed: Option<u64>,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: String::new(),
            contract: Contract::default(),
            uuid: None,
            without_log: false,
            log_blocks: None,
            root_perm: 0o755,
            root_uid: 0,
            root_gid: 0,
            now: None,
            seed: None,
        }
    }
}

/// Result of making a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Name of the volume.
    pub label: String,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Block groups.
    pub groups: u64,
    /// Blocks free for files and directories.
    pub free_blocks: u64,
}

/// Makes a volume that fills `device`; the device's old content is lost. `progress` gets the number
/// of blocks written so far, and of all.
///
/// # Errors
/// [`Error::TooSmall`], [`Error::Option`] before anything is written; [`Error::Device`].
pub fn mkfs(
    device: &dyn BlockDevice,
    options: &MkfsOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Made, Error> {
    if options.without_log {
        may_go_without_log(device)?;
    }
    let volume = plan(device.geometry().blocks, options)?;
    let total = volume.log_blocks + volume.groups * GROUP_META;
    let write = |at: BlockNo, blocks: &[&[u8]]| {
        device
            .write(at, blocks)
            .map_err(Error::device("writing the new volume"))
    };
    let flush = || {
        device
            .flush()
            .map_err(Error::device("flushing the new volume"))
    };
    progress(0, total);

    let nothing = [0u8; BLOCK_SIZE];
    write(BlockNo(0), &[&nothing])?;
    write(BlockNo(volume.blocks - 1), &[&nothing])?;
    flush()?;

    if let Some(region) = volume.region() {
        Journal::format(device, &region, &volume.uuid)
            .map_err(Error::journal("writing the log"))?;
    }
    progress(volume.log_blocks, total);

    write_bitmaps(device, &volume, 0..volume.groups, &mut |groups| {
        progress(volume.log_blocks + groups * GROUP_META, total);
    })?;
    // The first inodes, and a leaf for each of the two directories.
    let at = inode_block(&volume);
    let mut blocks = [
        first_inodes(&volume, options)?,
        [0; BLOCK_SIZE],
        [0; BLOCK_SIZE],
    ];
    for (n, block) in blocks.iter_mut().enumerate() {
        seal(&volume.uuid, at.offset(n as u64), block);
    }
    write(at, &blocks.each_ref().map(|block| &block[..]))?;
    flush()?;

    let last = BlockNo(volume.blocks - 1);
    for at in [last, BlockNo(0)] {
        write(at, &[&superblock(&volume, at)])?;
        flush()?;
    }
    Ok(Made {
        uuid: volume.uuid,
        label: volume.label.clone(),
        blocks: volume.blocks,
        log_blocks: volume.log_blocks,
        groups: volume.groups,
        free_blocks: volume.data_blocks() - FIRST_BLOCKS,
    })
}

/// Refuses a device that needs a log.
fn may_go_without_log(device: &dyn BlockDevice) -> Result<(), Error> {
    let epoch = device.snapshot().map(|snapshot| snapshot.epoch_blocks());
    match epoch {
        Some(blocks) if blocks >= EPOCH_BLOCKS_MIN => Ok(()),
        Some(blocks) => Err(Error::Option(format!(
            "the device takes {blocks} blocks from one flush to the next, a volume without a log needs \
             {EPOCH_BLOCKS_MIN}: make the disk with a larger epoch"
        ))),
        None => Err(Error::Option(
            "a volume without a log needs a device that a crash returns to its last flush".into(),
        )),
    }
}

/// The geometry for a device of `blocks`.
fn plan(blocks: u64, options: &MkfsOptions) -> Result<Volume, Error> {
    if options.label.len() > LABEL_BYTES || options.label.contains('\0') {
        return Err(Error::Option(format!(
            "the label has {} bytes or a NUL; at most {LABEL_BYTES} bytes without NUL are possible",
            options.label.len()
        )));
    }
    if options.log_blocks.is_some_and(|log| log < LOG_BLOCKS_MIN) {
        return Err(Error::Option(format!(
            "a log of {} blocks is too small: {LOG_BLOCKS_MIN} are needed at least",
            options.log_blocks.unwrap_or(0)
        )));
    }
    if options.without_log && options.log_blocks.is_some() {
        return Err(Error::Option(
            "a volume without a log has no log of that size".into(),
        ));
    }
    let by_default = (blocks / LOG_SHARE).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_DEFAULT_MAX);
    let mut log_blocks = options.log_blocks.unwrap_or(by_default);
    let needed = log_blocks.saturating_add(LOG_START + GROUP_META + DATA_BLOCKS_MIN + 1);
    if blocks < needed {
        return Err(Error::TooSmall {
            blocks,
            needed,
            with_log: options.log_blocks.is_some(),
        });
    }
    // A last group too short to be one goes to the log.
    let rest = (blocks - 1 - LOG_START - log_blocks) % GROUP_BLOCKS;
    if rest < GROUP_BLOCKS_MIN {
        log_blocks += rest;
    }
    let mut blocks = blocks;
    let (log_start, log_blocks) = if options.without_log {
        // A last group too short to be one is left out.
        let rest = (blocks - 1 - GROUPS_START) % GROUP_BLOCKS;
        if rest < GROUP_BLOCKS_MIN {
            blocks -= rest;
        }
        (GROUPS_START, 0)
    } else {
        (LOG_START, log_blocks)
    };
    let groups_start = log_start + log_blocks;
    let mut random = Random::new(options.seed);
    let mut volume = Volume {
        uuid: match options.uuid {
            Some(uuid) => uuid,
            None => random.uuid()?,
        },
        blocks,
        log_start,
        log_blocks,
        groups_start,
        groups: (blocks - 1 - groups_start).div_ceil(GROUP_BLOCKS),
        root: 0,
        orphans: 0,
        hash_key: random.bytes()?,
        made: options.now.unwrap_or_else(|| SystemClock.now()).secs,
        label: options.label.clone(),
        contract: options.contract,
        features_incompat: match options.without_log {
            true => FEATURE_NO_LOG,
            false => 0,
        },
        features_ro: 0,
    };
    let block = inode_block(&volume);
    volume.root = Place { block, slot: 0 }.ino();
    volume.orphans = Place { block, slot: 1 }.ino();
    Ok(volume)
}

/// The first inode block: the first block after the bitmaps of the first group.
fn inode_block(volume: &Volume) -> BlockNo {
    volume.group_start(0).offset(GROUP_META)
}

/// Writes the bitmaps of new groups, many at once; `progress` gets the number written so far.
pub(crate) fn write_bitmaps(
    device: &dyn BlockDevice,
    volume: &Volume,
    groups: Range<u64>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let mut buffer = BlockBuf::zeroed((GROUPS_AT_ONCE * GROUP_META) as usize);
    for first in groups.clone().step_by(GROUPS_AT_ONCE as usize) {
        let together = first..(first + GROUPS_AT_ONCE).min(groups.end);
        let (blocks, _) = buffer.as_bytes_mut().as_chunks_mut::<BLOCK_SIZE>();
        for (group, pair) in together.clone().zip(blocks.chunks_exact_mut(2)) {
            let at = volume.group_start(group);
            let (used, inodes) = bitmaps(volume, group);
            pair.copy_from_slice(&[used, inodes]);
            seal(&volume.uuid, at, &mut pair[0]);
            seal(&volume.uuid, at.offset(1), &mut pair[1]);
        }
        let pairs = buffer.as_bytes().chunks_exact(2 * BLOCK_SIZE);
        let runs: Vec<(BlockNo, [&[u8]; 1])> = (together.clone().zip(pairs))
            .map(|(group, pair)| (volume.group_start(group), [pair]))
            .collect();
        let writes: Vec<(BlockNo, &[&[u8]])> = runs.iter().map(|r| (r.0, &r.1[..])).collect();
        device
            .write_scattered(&writes)
            .map_err(Error::device("writing the bitmaps"))?;
        if device.snapshot().is_some() {
            // An epoch takes at least this many blocks; nothing leads to the bitmaps yet.
            device
                .flush()
                .map_err(Error::device("flushing the bitmaps"))?;
        }
        progress(together.end - groups.start);
    }
    Ok(())
}

/// Block bitmap and inode-block bitmap of a new group. Bits past a short group's end are
/// set in the first one.
pub(crate) fn bitmaps(volume: &Volume, group: u64) -> (Block, Block) {
    let mut used = [0; BLOCK_SIZE];
    let mut inodes = [0; BLOCK_SIZE];
    let mut set = |bit: u64| used[bit as usize / 8] |= 1 << (bit % 8);
    (0..GROUP_META).for_each(&mut set);
    (volume.group_len(group)..GROUP_BLOCKS).for_each(&mut set);
    if group == 0 {
        (GROUP_META..GROUP_META + FIRST_BLOCKS).for_each(&mut set);
        inodes[GROUP_META as usize / 8] |= 1 << (GROUP_META % 8);
    }
    (used, inodes)
}

/// The inode block with the root and the orphan directory. Both are empty and have a leaf, so that no two streams have
/// to make it.
fn first_inodes(volume: &Volume, options: &MkfsOptions) -> Result<Block, Error> {
    let mut random = Random::new(options.seed.map(|seed| !seed));
    let now = options.now.unwrap_or_else(|| SystemClock.now()).into();
    let mut block = [0; BLOCK_SIZE];
    for (n, (ino, perm, uid, gid)) in (0..).zip([
        (
            volume.root,
            u32::from(options.root_perm),
            options.root_uid,
            options.root_gid,
        ),
        (volume.orphans, 0o700, 0, 0),
    ]) {
        let mut disk = DiskInode::new_zeroed();
        disk.mode = (FileKind::Directory.mode_bits() | (perm & (0o777 | u32::from(STICKY)))).into();
        disk.uid = uid.into();
        disk.gid = gid.into();
        disk.nlink = 2.into();
        disk.generation = (u64::from_le_bytes(random.bytes()?) | 1).into();
        (disk.mtime, disk.ctime, disk.atime, disk.btime) = (now, now, now, now);
        disk.parent = ino.into();
        disk.body = btree::of(&dir::first_leaf(inode_block(volume).offset(1 + n)));
        disk.blocks = 1.into();
        let slot = (ino - volume.root) as usize;
        block[slot * INODE_BYTES..(slot + 1) * INODE_BYTES].copy_from_slice(disk.as_bytes());
    }
    Ok(block)
}

/// The superblock as it lies at `at`.
fn superblock(volume: &Volume, at: BlockNo) -> Block {
    let mut label = [0; LABEL_BYTES];
    label[..volume.label.len()].copy_from_slice(volume.label.as_bytes());
    let sb = Superblock {
        magic: MAGIC,
        version: VERSION.into(),
        features_incompat: volume.features_incompat.into(),
        features_ro: volume.features_ro.into(),
        features_compat: 0.into(),
        uuid: volume.uuid,
        blocks: volume.blocks.into(),
        log_start: volume.log_start.into(),
        log_blocks: volume.log_blocks.into(),
        groups_start: volume.groups_start.into(),
        groups: volume.groups.into(),
        root_ino: volume.root.into(),
        orphan_ino: volume.orphans.into(),
        hash_key: volume.hash_key,
        contract: volume.contract.number().into(),
        reserved: 0.into(),
        made: volume.made.into(),
        label,
    };
    let mut block = [0; BLOCK_SIZE];
    block[..size_of::<Superblock>()].copy_from_slice(sb.as_bytes());
    seal(&volume.uuid, at, &mut block);
    block
}

/// Random bytes: the system's, or a sequence that follows from a seed.
struct Random {
    seed: Option<u64>,
}

impl Random {
    fn new(seed: Option<u64>) -> Random {
        Random { seed }
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        match &mut self.seed {
            Some(seed) => {
                for chunk in bytes.chunks_mut(8) {
                    *seed = seed.wrapping_add(1);
                    let hash = xxhash_rust::xxh3::xxh3_64(&seed.to_le_bytes());
                    chunk.copy_from_slice(&hash.to_le_bytes()[..chunk.len()]);
                }
            }
            None => getrandom::fill(&mut bytes).map_err(|e| Error::Random(e.to_string()))?,
        }
        Ok(bytes)
    }

    /// A version 4 UUID.
    fn uuid(&mut self) -> Result<[u8; 16], Error> {
        let mut uuid: [u8; 16] = self.bytes()?;
        uuid[6] = (uuid[6] & 0x0f) | 0x40;
        uuid[8] = (uuid[8] & 0x3f) | 0x80;
        Ok(uuid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::superblock;
    use crate::testing::{bare, open, options};
    use std::sync::Arc;
    use steadfast_block::MemDevice;

    #[test]
    fn every_size_is_a_volume_or_refused() {
        let log = LOG_BLOCKS_MIN;
        let group = LOG_START + log + 1 + GROUP_BLOCKS;
        for blocks in (0..100).chain([255, 256, 4096]).chain(group - 3..group + 8) {
            let device = MemDevice::new(blocks);
            let small = MkfsOptions {
                log_blocks: Some(log),
                ..options()
            };
            match mkfs(&device, &small, &mut |_, _| {}) {
                Ok(made) => {
                    let volume = superblock::load(&device).ok().unwrap().volume;
                    assert_eq!(made.blocks, blocks);
                    assert_eq!(volume.log_blocks, made.log_blocks);
                    let bare = open(Arc::new(device));
                    let alloc = &bare.store.alloc;
                    let all = alloc.reserve(alloc.allocatable()).unwrap();
                    assert!(all.keep() + 64 >= made.free_blocks, "{blocks} blocks");
                }
                Err(error) => {
                    let refused = matches!(error, Error::TooSmall { with_log: true, .. });
                    assert!(refused && blocks < 100, "{blocks} blocks: {error}");
                }
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_image_each_time() {
        let image = || {
            let device = MemDevice::new(300);
            mkfs(&device, &options(), &mut |_, _| {}).unwrap();
            device.to_bytes()
        };
        assert!(image() == image());
    }

    #[test]
    fn the_superblock_survives_in_its_copy() {
        let device = MemDevice::new(512);
        mkfs(&device, &options(), &mut |_, _| {}).unwrap();
        device.write(BlockNo(0), &[&[0xff; BLOCK_SIZE]]).unwrap();
        let found = superblock::load(&device).ok().unwrap();
        assert!(found.warning.is_some());
        assert_eq!(found.volume, bare(512).store.volume);
    }

    #[test]
    fn impossible_options_are_refused_before_anything_is_written() {
        let device = MemDevice::new(512);
        for bad in [
            MkfsOptions {
                label: "x".repeat(65),
                ..options()
            },
            MkfsOptions {
                log_blocks: Some(10),
                ..options()
            },
            MkfsOptions {
                log_blocks: Some(500),
                ..options()
            },
            MkfsOptions {
                log_blocks: Some(u64::MAX),
                ..options()
            },
        ] {
            assert!(mkfs(&device, &bad, &mut |_, _| {}).is_err());
        }
        assert!(device.to_bytes().iter().all(|byte| *byte == 0));
    }
}
