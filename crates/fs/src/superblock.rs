//! The superblock: reading, validating, and the volume's geometry decoded from it.
//!
//! The copy in the last block is used when the first one is unreadable. Every field of a
//! superblock is checked against the device's size before it is used, so the numbers in a
//! [`Volume`] can be computed with freely.

use crate::contract::Contract;
use crate::error::Error;
use crate::layout::{
    FEATURE_NO_LOG, FEATURES_INCOMPAT, FEATURES_RO, GROUP_BLOCKS, GROUP_META, INODE_SLOTS,
    INODES_PER_BLOCK, MAGIC, MOUNTED_AT, Superblock, VERSION,
};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{
    BLOCK_CREDIT, Config, Credits, Error as JournalError, Journal, Kind, Region, StreamId, seal,
    seal_holds,
};
use steadfast_vfs::Ino;
use zerocopy::FromBytes;

/// Smallest log that is accepted, in blocks.
pub(crate) const LOG_BLOCKS_MIN: u64 = 64;
/// First block of the log.
pub(crate) const LOG_START: u64 = 3;
/// First block of the groups where there is no log.
pub(crate) const GROUPS_START: u64 = 1;
/// Blocks that the shortest group has: its bitmaps and two more.
pub(crate) const GROUP_BLOCKS_MIN: u64 = GROUP_META + 2;

/// Checked content of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Identity.
    pub(crate) uuid: [u8; 16],
    /// Blocks, superblocks and log included.
    pub(crate) blocks: u64,
    /// First block of the log.
    pub(crate) log_start: u64,
    /// Blocks of the log; none on a device that needs no log.
    pub(crate) log_blocks: u64,
    /// First block of group 0.
    pub(crate) groups_start: u64,
    /// Number of groups, at least one.
    pub(crate) groups: u64,
    /// The root directory.
    pub(crate) root: Ino,
    /// The orphan directory.
    pub(crate) orphans: Ino,
    /// Key of the directory hash.
    pub(crate) hash_key: [u8; 16],
    /// Seconds since 1970 when it was made.
    pub(crate) made: i64,
    /// Name that people gave it.
    pub(crate) label: String,
    /// Changes that a crash may lose.
    pub(crate) contract: Contract,
    /// Features that a reader must know.
    pub(crate) features_incompat: u32,
    /// Features that a writer must know.
    pub(crate) features_ro: u32,
}

impl Volume {
    /// The group that `at` lies in.
    pub(crate) fn group_of(&self, at: BlockNo) -> Option<u64> {
        if at.0 < self.groups_start || at.0 >= self.groups_end() {
            return None;
        }
        Some((at.0 - self.groups_start) / GROUP_BLOCKS)
    }

    /// First block of a group: its block bitmap; the inode-block bitmap follows.
    pub(crate) fn group_start(&self, group: u64) -> BlockNo {
        BlockNo(self.groups_start + group * GROUP_BLOCKS)
    }

    /// Blocks of a group.
    pub(crate) fn group_len(&self, group: u64) -> u64 {
        (self.groups_end() - self.group_start(group).0).min(GROUP_BLOCKS)
    }

    /// First block after the groups: the copy of the superblock.
    pub(crate) fn groups_end(&self) -> u64 {
        self.blocks - 1
    }

    /// Whether `at` may hold metadata or data: inside a group and none of its bitmaps.
    pub(crate) fn is_data(&self, at: BlockNo) -> bool {
        self.run_is_data(at, 1)
    }

    /// Whether all of `at .. at + count` may hold data, within one group.
    pub(crate) fn run_is_data(&self, at: BlockNo, count: u64) -> bool {
        let Some(group) = self.group_of(at) else {
            return false;
        };
        let index = at.0 - self.group_start(group).0;
        count >= 1 && index >= GROUP_META && count <= self.group_len(group) - index
    }

    /// Blocks for files and metadata: without superblocks, log and bitmaps.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.groups_end() - self.groups_start - self.groups * GROUP_META
    }

    /// Region of the journal, if the volume has a log.
    pub(crate) fn region(&self) -> Option<Region> {
        (self.log_blocks > 0).then_some(Region {
            headers: [BlockNo(1), BlockNo(2)],
            log: BlockNo(self.log_start),
            log_blocks: self.log_blocks,
        })
    }

    /// Configuration of its journal. The mount starts the workers when it can be asked to place delayed pages.
    pub(crate) fn journal(&self) -> Config {
        let config = match self.region() {
            Some(region) => Config::new(region, self.uuid),
            None => Config::without_log(self.uuid),
        };
        config.without_workers()
    }
}

/// Reason why a block is no usable superblock.
pub(crate) enum Refusal {
    /// It does not look like one, or its seal is broken.
    NotOne(String),
    /// It is one, and says why it cannot be used.
    Unusable(Error),
}

/// Decodes and checks one superblock that lies at `at` on a device of `device_blocks`.
/// Returns the volume and whether it may only be read.
pub(crate) fn decode(
    block: &Block,
    at: BlockNo,
    device_blocks: u64,
) -> Result<(Volume, bool), Refusal> {
    let Ok((sb, _)) = Superblock::ref_from_prefix(block) else {
        return Err(Refusal::NotOne("it is too short".into()));
    };
    if sb.magic != MAGIC {
        return Err(Refusal::NotOne("it has no magic number".into()));
    }
    if !seal_holds(&sb.uuid, at, block) {
        return Err(Refusal::NotOne("its checksum is wrong".into()));
    }
    check(sb, at, device_blocks).map_err(Refusal::Unusable)
}

fn check(sb: &Superblock, at: BlockNo, device_blocks: u64) -> Result<(Volume, bool), Error> {
    let unsupported = |what: String| Err(Error::Unsupported { what });
    if sb.version.get() != VERSION {
        return unsupported(format!("format version {}", sb.version));
    }
    let features = sb.features_incompat.get();
    if features & !FEATURES_INCOMPAT != 0 {
        let unknown = features & !FEATURES_INCOMPAT;
        return unsupported(format!("features {unknown:#x}"));
    }
    let Some(contract) = Contract::from_number(sb.contract.get()) else {
        return unsupported(format!("contract number {}", sb.contract));
    };
    let damaged = |why: String| {
        Err(Error::Damaged {
            what: "superblock",
            at,
            why,
        })
    };
    let blocks = sb.blocks.get();
    if blocks > device_blocks {
        return Err(Error::Truncated {
            volume: blocks,
            device: device_blocks,
        });
    }
    if blocks > u64::MAX / BLOCK_SIZE as u64 || blocks > u64::MAX / INODE_SLOTS {
        return damaged(format!("{blocks} blocks are more than there can be"));
    }
    let (log_start, log_blocks) = (sb.log_start.get(), sb.log_blocks.get());
    let wrong = match features & FEATURE_NO_LOG {
        0 => log_start != LOG_START || log_blocks < LOG_BLOCKS_MIN || log_blocks >= blocks,
        _ => (log_start, log_blocks) != (GROUPS_START, 0),
    };
    if wrong {
        return damaged(format!(
            "a log of {log_blocks} blocks from block {log_start} on"
        ));
    }
    let (groups_start, groups) = (sb.groups_start.get(), sb.groups.get());
    if groups_start != log_start + log_blocks || groups_start + GROUP_BLOCKS_MIN >= blocks {
        return damaged(format!("block groups start at block {groups_start}"));
    }
    let length = blocks - 1 - groups_start;
    if groups != length.div_ceil(GROUP_BLOCKS)
        || length - (groups - 1) * GROUP_BLOCKS < GROUP_BLOCKS_MIN
    {
        return damaged(format!("{groups} block groups in {length} blocks"));
    }
    let label = sb.label.split(|byte| *byte == 0).next().unwrap_or_default();
    let volume = Volume {
        uuid: sb.uuid,
        blocks,
        log_start,
        log_blocks,
        groups_start,
        groups,
        root: sb.root_ino.get(),
        orphans: sb.orphan_ino.get(),
        hash_key: sb.hash_key,
        made: sb.made.get(),
        label: String::from_utf8_lossy(label).into_owned(),
        contract,
        features_incompat: features,
        features_ro: sb.features_ro.get(),
    };
    for ino in [volume.root, volume.orphans] {
        if !volume.is_data(BlockNo(ino / INODE_SLOTS)) || ino % INODE_SLOTS >= INODES_PER_BLOCK {
            return damaged(format!(
                "inode number {ino} of the root or orphan directory"
            ));
        }
    }
    if volume.root == volume.orphans {
        return damaged("root and orphan directory are the same inode".into());
    }
    let read_only = volume.features_ro & !FEATURES_RO != 0;
    Ok((volume, read_only))
}

/// The volume after the replay of the log: growing it is an operation, too. `found` is the
/// earlier result of [`load`]. The superblock's copy stays in use if block 0 cannot be
/// repaired by the log.
///
/// # Errors
/// As for [`load`]; the device fails.
pub(crate) fn reload(journal: &Journal, device_blocks: u64, found: Found) -> Result<Found, Error> {
    let at = BlockNo(0);
    let mut block = match journal.read(at, Kind::Meta) {
        Ok(block) => *block,
        Err(JournalError::BadSeal { .. }) => return Ok(found),
        Err(error) => return Err(Error::journal("reading the superblock")(error)),
    };
    // In memory the seal is void.
    seal(&found.volume.uuid, at, &mut block);
    match decode(&block, at, device_blocks) {
        Ok((volume, read_only)) => Ok(Found {
            volume,
            read_only,
            warning: None,
        }),
        Err(Refusal::Unusable(error)) => Err(error),
        Err(Refusal::NotOne(_)) => Ok(found),
    }
}

/// Whether a volume without a log was mounted, and not unmounted since.
///
/// # Errors
/// The device fails. A damaged block says nothing.
pub(crate) fn is_mounted(journal: &Journal, volume: &Volume) -> Result<bool, Error> {
    if volume.region().is_some() {
        return Ok(false);
    }
    match journal.read(BlockNo(0), Kind::Meta) {
        Ok(block) => Ok(block[MOUNTED_AT] != 0),
        Err(JournalError::BadSeal { .. }) => Ok(false),
        Err(error) => Err(Error::journal("reading the superblock")(error)),
    }
}

/// Says in a volume without a log whether it is mounted; durable with the next commit.
///
/// # Errors
/// The journal's. A damaged superblock is left alone.
pub(crate) fn set_mounted(journal: &Journal, mounted: bool) -> steadfast_journal::Result<()> {
    let credits = Credits::log(BLOCK_CREDIT);
    let mut op = journal.begin(StreamId(0), credits)?;
    match op.write(BlockNo(0), Kind::Meta, MOUNTED_AT, &[u8::from(mounted)]) {
        Ok(()) => {
            let _ = op.commit();
            Ok(())
        }
        Err(JournalError::BadSeal { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Possible places of a copy: a volume may end a few blocks before its device. A copy counts
/// only at its own place: an earlier volume of another size leaves old ones.
pub(crate) fn copy_places(device_blocks: u64) -> impl Iterator<Item = BlockNo> {
    let first = device_blocks.saturating_sub(GROUP_BLOCKS_MIN + 1);
    (first..device_blocks).rev().map(BlockNo)
}

/// Returns a device with the contract *snapshot* to its last flush, before anything is read: a client that died
/// may have left half a batch there.
///
/// # Errors
/// The device fails.
pub(crate) fn begin(device: &dyn BlockDevice) -> Result<(), Error> {
    match device.snapshot() {
        Some(snapshot) if !device.geometry().read_only => {
            (snapshot.rollback()).map_err(Error::device("returning the device to its last flush"))
        }
        _ => Ok(()),
    }
}

/// A superblock that was found.
pub(crate) struct Found {
    /// Content of the superblock.
    pub(crate) volume: Volume,
    /// It names features that forbid writing to this version.
    pub(crate) read_only: bool,
    /// Reason why the copy was used, if it was.
    pub(crate) warning: Option<String>,
}

/// Reads the superblock of a device, or its copy when the first is unreadable.
///
/// # Errors
/// [`Error::NotAVolume`] when there is none; else why it cannot be used.
pub(crate) fn load(device: &dyn BlockDevice) -> Result<Found, Error> {
    let device_blocks = device.geometry().blocks;
    if device_blocks < LOG_START + LOG_BLOCKS_MIN {
        return Err(Error::NotAVolume);
    }
    let read = |at: BlockNo| {
        let mut block = [0; BLOCK_SIZE];
        match device.read(at, &mut block) {
            Ok(()) => decode(&block, at, device_blocks),
            Err(e) => Err(Refusal::NotOne(e.to_string())),
        }
    };
    let why = match read(BlockNo(0)) {
        Ok((volume, read_only)) => {
            return Ok(Found {
                volume,
                read_only,
                warning: None,
            });
        }
        Err(Refusal::Unusable(error)) => return Err(error),
        Err(Refusal::NotOne(why)) => why,
    };
    for at in copy_places(device_blocks) {
        match read(at) {
            Ok((volume, read_only)) if volume.blocks == at.0 + 1 => {
                let warning = format!(
                    "the superblock in block 0 cannot be used ({why}); its copy in block {at} \
                     served: run 'steadfast fsck --repair' to restore it"
                );
                return Ok(Found {
                    volume,
                    read_only,
                    warning: Some(warning),
                });
            }
            Err(Refusal::Unusable(error)) => return Err(error),
            Ok(_) | Err(Refusal::NotOne(_)) => {}
        }
    }
    Err(Error::NotAVolume)
}
