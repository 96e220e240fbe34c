//! Layout of a volume's device, read from its superblock: for tools that look at blocks
//! without mounting the volume.

use crate::contract::Contract;
use crate::error::Error;
use crate::layout::VERSION;
use crate::superblock::{Found, Volume, load};
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_journal::Region;
use steadfast_vfs::Ino;

/// A volume's superblock, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMap {
    pub(super) volume: Volume,
    read_only: bool,
    warning: Option<String>,
}

/// Use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace {
    /// The superblock.
    Superblock,
    /// The superblock's copy.
    SuperblockCopy,
    /// One of the journal's two tail headers.
    TailHeader(usize),
    /// A block of the log, counted from its first one.
    Log(u64),
    /// The block bitmap of a group.
    BlockBitmap(u64),
    /// The inode-block bitmap of a group.
    InodeBitmap(u64),
    /// Metadata or data in a group, or free.
    Contents(u64),
    /// After the end of the volume.
    Beyond,
}

impl VolumeMap {
    /// Reads the superblock of a device, or its copy when the first is unreadable. Reads a
    /// few blocks and writes nothing.
    ///
    /// # Errors
    /// As for a mount: [`Error::NotAVolume`], cut short, or of a newer format.
    pub fn read(device: &dyn BlockDevice) -> Result<VolumeMap, Error> {
        load(device).map(VolumeMap::of)
    }

    pub(super) fn of(found: Found) -> VolumeMap {
        VolumeMap {
            volume: found.volume,
            read_only: found.read_only,
            warning: found.warning,
        }
    }

    /// Identity.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.volume.uuid
    }

    /// Label.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.volume.label
    }

    /// Format version.
    #[must_use]
    pub fn version(&self) -> u32 {
        VERSION
    }

    /// Contract.
    #[must_use]
    pub fn contract(&self) -> Contract {
        self.volume.contract
    }

    /// Seconds since 1970 when it was made.
    #[must_use]
    pub fn made(&self) -> i64 {
        self.volume.made
    }

    /// Blocks, superblocks and log included.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.volume.blocks
    }

    /// Region of the journal, if there is a log.
    #[must_use]
    pub fn journal(&self) -> Option<Region> {
        self.volume.region()
    }

    /// First block of the first group, and the number of groups.
    #[must_use]
    pub fn groups(&self) -> (BlockNo, u64) {
        (BlockNo(self.volume.groups_start), self.volume.groups)
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> Ino {
        self.volume.root
    }

    /// The orphan directory.
    #[must_use]
    pub fn orphans(&self) -> Ino {
        self.volume.orphans
    }

    /// Whether this version can only read the volume.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Reason why the copy of the superblock was used, if it was.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Use of block `at`. O(1).
    #[must_use]
    pub fn place(&self, at: BlockNo) -> BlockPlace {
        if at.0 == 0 {
            return BlockPlace::Superblock;
        }
        if let Some(region) = self.journal() {
            if let Some(slot) = region.headers.iter().position(|header| *header == at) {
                return BlockPlace::TailHeader(slot);
            }
            if at >= region.log && at.0 - region.log.0 < region.log_blocks {
                return BlockPlace::Log(at.0 - region.log.0);
            }
        }
        match self.volume.group_of(at) {
            Some(group) => match at.0 - self.volume.group_start(group).0 {
                0 => BlockPlace::BlockBitmap(group),
                1 => BlockPlace::InodeBitmap(group),
                _ => BlockPlace::Contents(group),
            },
            None if at.0 == self.volume.groups_end() => BlockPlace::SuperblockCopy,
            None => BlockPlace::Beyond,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::GROUP_BLOCKS;
    use crate::mkfs::mkfs;
    use crate::testing::options;
    use steadfast_block::MemDevice;

    #[test]
    fn every_block_of_a_volume_has_its_place() {
        let blocks = GROUP_BLOCKS + 3000;
        let device = MemDevice::new(blocks + 1);
        let made = mkfs(&device, &options(), &mut |_, _| {}).unwrap();
        let map = VolumeMap::read(&device).unwrap();
        assert_eq!((map.uuid(), map.blocks()), (made.uuid, made.blocks));
        let log = map.journal().unwrap().log_blocks;
        let (first, groups) = map.groups();
        assert_eq!((first.0, groups), (3 + log, 2));
        for (at, place) in [
            (0, BlockPlace::Superblock),
            (1, BlockPlace::TailHeader(0)),
            (2, BlockPlace::TailHeader(1)),
            (3, BlockPlace::Log(0)),
            (2 + log, BlockPlace::Log(log - 1)),
            (3 + log, BlockPlace::BlockBitmap(0)),
            (4 + log, BlockPlace::InodeBitmap(0)),
            (5 + log, BlockPlace::Contents(0)),
            (2 + log + GROUP_BLOCKS, BlockPlace::Contents(0)),
            (3 + log + GROUP_BLOCKS, BlockPlace::BlockBitmap(1)),
            (4 + log + GROUP_BLOCKS, BlockPlace::InodeBitmap(1)),
            (map.blocks() - 2, BlockPlace::Contents(1)),
            (map.blocks() - 1, BlockPlace::SuperblockCopy),
            (map.blocks(), BlockPlace::Beyond),
            (u64::MAX, BlockPlace::Beyond),
        ] {
            assert_eq!(map.place(BlockNo(at)), place, "block {at}");
        }
    }
}
