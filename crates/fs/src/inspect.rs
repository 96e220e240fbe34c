//! Looks at a volume that is not mounted, for tools: where everything lies ([`VolumeMap`]), how full it is
//! ([`info`]), and single inodes and directories ([`Inspector`]). Writes nothing; a log that waits is applied in memory.
//! Reports damage together with the readable rest.

mod info;
mod map;

use crate::btree;
use crate::dir::{self, RawEntry};
use crate::error::{Error, damaged, from_journal};
use crate::extents;
use crate::inode::{self, Place};
use crate::layout::{DiskInode, INLINE_BYTES, META_BYTES, NodeHeader};
use crate::reader::{Image, Reader};
use crate::superblock;
use crate::xattr::Stored;
use std::ops::ControlFlow;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{Journal, Kind, Recovery, seal_holds};
use steadfast_vfs::{Attr, Cookie, Errno, FileKind, Ino, Result, SYMLINK_MAX};
use zerocopy::FromBytes;

pub use info::{JournalState, VolumeInfo, info};
pub use map::{BlockPlace, VolumeMap};

/// A volume that is looked at.
pub struct Inspector {
    map: VolumeMap,
    blocks: Blocks,
    /// Result of recovery, or the reason why the log could not be applied.
    recovery: std::result::Result<Recovery, String>,
    warning: Option<String>,
}

/// The volume's blocks: with the log applied, or as they lie there.
struct Blocks {
    device: Arc<dyn BlockDevice>,
    uuid: [u8; 16],
    journal: Option<Journal>,
}

impl Reader for &Blocks {
    fn meta(&mut self, at: BlockNo) -> Result<Image<'_>> {
        self.read(at, Kind::Meta).map(Image::Shared)
    }
}

impl Blocks {
    fn read(&self, at: BlockNo, kind: Kind) -> Result<Arc<Block>> {
        if let Some(journal) = &self.journal {
            return journal.read(at, kind).map_err(from_journal);
        }
        let mut block = [0; BLOCK_SIZE];
        self.device
            .read(at, &mut block)
            .map_err(|e| steadfast_vfs::Error::new(Errno::Io, e.to_string()))?;
        if kind == Kind::Meta && !seal_holds(&self.uuid, at, &block) {
            return Err(damaged(format!("block {at} fails its checksum")));
        }
        Ok(Arc::new(block))
    }

    /// Metadata blocks, together; `None` for unreadable ones.
    fn read_scattered(&self, blocks: &[BlockNo]) -> Vec<Option<Arc<Block>>> {
        match &self.journal {
            Some(journal) => {
                let read = journal.read_scattered(blocks, Kind::Meta).into_iter();
                read.map(std::result::Result::ok).collect()
            }
            None => {
                let read = |at: &BlockNo| self.read(*at, Kind::Meta).ok();
                blocks.iter().map(read).collect()
            }
        }
    }
}

/// A node of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeNode {
    /// Block of the inode.
    pub block: BlockNo,
    /// Its level; 0 for leaves.
    pub level: u16,
    /// Its items.
    pub items: u16,
}

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentAt {
    /// First block of the file.
    pub logical: u64,
    /// First block of the device.
    pub block: BlockNo,
    /// Number of blocks.
    pub blocks: u64,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

/// An inode, as it lies on the volume.
#[derive(Clone, Debug)]
pub struct InodeShown {
    /// The block and the slot that its number is the address of.
    pub place: (BlockNo, u64),
    /// Attributes that a mount would report.
    pub attr: Attr,
    /// Its fields as they are stored.
    pub disk: DiskInode,
    /// Of a symbolic link: its target.
    pub target: Option<Vec<u8>>,
    /// Node blocks of its tree, children before their parents.
    pub nodes: Vec<TreeNode>,
    /// Of a file or a long symbolic link: its extents.
    pub extents: Vec<ExtentAt>,
    /// Its extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Structures that could not be read.
    pub damage: Vec<String>,
}

/// A leaf of a directory.
#[derive(Clone, Debug)]
pub struct LeafShown {
    /// Block of the entry.
    pub block: BlockNo,
    /// The smallest cookie that belongs there.
    pub from: Cookie,
    /// Bytes that no entry takes.
    pub free_bytes: usize,
    /// Its entries, by their cookies.
    pub entries: Vec<EntryShown>,
    /// Reason why it could not be read.
    pub damage: Option<String>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryShown {
    /// Its name.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: Ino,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Its position.
    pub cookie: Cookie,
}

impl Inspector {
    /// Opens the volume on `device` for a look.
    ///
    /// # Errors
    /// As for a mount: [`Error::NotAVolume`], cut short, or of a newer format.
    pub fn open(device: Arc<dyn BlockDevice>) -> std::result::Result<Inspector, Error> {
        let mut found = superblock::load(&*device)?;
        let config = found.volume.journal().with(|config| {
            config.read_only = true;
            config.cache_blocks_max = 1024;
        });
        let (journal, recovery) = match Journal::open(Arc::clone(&device), config) {
            Ok((journal, recovery)) => {
                found = superblock::reload(&journal, device.geometry().blocks, found)?;
                (Some(journal), Ok(recovery))
            }
            Err(error) => (None, Err(error.to_string())),
        };
        let warning = match &recovery {
            Ok(_) => found.warning.clone(),
            Err(why) => Some(format!("the log could not be applied: {why}")),
        };
        Ok(Inspector {
            blocks: Blocks {
                device,
                uuid: found.volume.uuid,
                journal,
            },
            map: VolumeMap::of(found),
            recovery,
            warning,
        })
    }

    /// Warning that concerns everything shown.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The inode at the end of a path from the root directory; symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EUCLEAN, EIO.
    pub fn resolve(&self, path: &[u8]) -> Result<Ino> {
        let mut ino = self.map.volume.root;
        for name in path.split(|byte| *byte == b'/') {
            if name.is_empty() || name == b"." {
                continue;
            }
            let disk = self.directory_inode(ino)?;
            let found = match name {
                b".." => Some(disk.parent.get()),
                _ => dir::lookup(&mut &self.blocks, &self.map.volume, &disk, name)?.map(|f| f.ino),
            };
            ino = found.ok_or(Errno::NoEnt)?;
        }
        Ok(ino)
    }

    fn inode(&self, ino: Ino) -> Result<DiskInode> {
        inode::read(&self.map.volume, &mut &self.blocks, ino)
    }

    fn directory_inode(&self, ino: Ino) -> Result<DiskInode> {
        let disk = self.inode(ino)?;
        if disk.is_dir() {
            Ok(disk)
        } else {
            Err(Errno::NotDir.into())
        }
    }

    /// Shows an inode.
    ///
    /// # Errors
    /// ESTALE if there is none, EUCLEAN if it makes no sense, EIO.
    pub fn show_inode(&self, ino: Ino) -> Result<InodeShown> {
        let disk = self.inode(ino)?;
        let place = Place::of(&self.map.volume, ino)?;
        let kind = disk.kind();
        let mut shown = InodeShown {
            place: (place.block, place.slot),
            attr: disk.attr(ino, 0),
            disk,
            target: None,
            nodes: Vec::new(),
            extents: Vec::new(),
            xattrs: Vec::new(),
            damage: Vec::new(),
        };
        let mut damage = Vec::new();
        let mut note = |result: Result<()>| damage.extend(result.err().map(|e| e.to_string()));
        let long = disk.size.get() > INLINE_BYTES as u64;
        let data = kind == FileKind::Regular || kind == FileKind::Symlink && long;
        if data || disk.is_dir() {
            note(self.nodes(&disk, &mut shown.nodes));
        }
        if data {
            note(self.extents(&disk, &mut shown.extents));
        }
        if kind == FileKind::Symlink {
            note(
                self.target(&disk, &shown.extents)
                    .map(|target| shown.target = Some(target)),
            );
        }
        let xattrs = Stored::of(&self.map.volume, &mut &self.blocks, ino, &disk);
        note(xattrs.map(|xattrs| shown.xattrs = xattrs.into_all().into_pairs()));
        shown.damage = damage;
        Ok(shown)
    }

    fn nodes(&self, disk: &DiskInode, nodes: &mut Vec<TreeNode>) -> Result<()> {
        btree::for_each_node(&mut &self.blocks, &self.map.volume, &disk.body, |block| {
            let image = self.blocks.read(block, Kind::Meta)?;
            let header = NodeHeader::read_from_prefix(&image[..]);
            let (header, _) = header.map_err(|_| damaged(format!("tree node in block {block}")))?;
            nodes.push(TreeNode {
                block,
                level: header.level.get(),
                items: header.count.get(),
            });
            Ok(())
        })
    }

    fn extents(&self, disk: &DiskInode, found: &mut Vec<ExtentAt>) -> Result<()> {
        let (volume, mut at) = (&self.map.volume, 0);
        while let Some(extent) = extents::at_or_over(&mut &self.blocks, volume, &disk.body, at)? {
            found.push(ExtentAt {
                logical: extent.logical,
                block: extent.block,
                blocks: extent.len,
                unwritten: extent.unwritten,
            });
            at = extent.end();
        }
        Ok(())
    }

    fn target(&self, disk: &DiskInode, extents: &[ExtentAt]) -> Result<Vec<u8>> {
        let size = usize::try_from(disk.size.get()).unwrap_or(usize::MAX);
        if size <= INLINE_BYTES {
            return Ok(disk.body[..size].to_vec());
        }
        match extents {
            [extent] if size <= SYMLINK_MAX => {
                let block = self.blocks.read(extent.block, Kind::Data)?;
                Ok(block[..size].to_vec())
            }
            _ => Err(damaged("the target of a symbolic link")),
        }
    }

    /// Shows a directory leaf by leaf, in the order of their cookies.
    ///
    /// # Errors
    /// ESTALE, ENOTDIR; EUCLEAN or EIO for an index that cannot be followed to its end.
    pub fn show_directory(&self, ino: Ino, each: &mut dyn FnMut(LeafShown)) -> Result<()> {
        let disk = self.directory_inode(ino)?;
        btree::for_each(&mut &self.blocks, &self.map.volume, &disk.body, 0, |item| {
            let (block, from) = (BlockNo(item.block.get()), item.key.get());
            let mut leaf = LeafShown {
                block,
                from,
                free_bytes: 0,
                entries: Vec::new(),
                damage: None,
            };
            match self.leaf(block) {
                Ok((free_bytes, entries)) => {
                    leaf.free_bytes = free_bytes;
                    leaf.entries = entries;
                }
                Err(error) => leaf.damage = Some(error.to_string()),
            }
            each(leaf);
            ControlFlow::Continue(())
        })
    }

    fn leaf(&self, at: BlockNo) -> Result<(usize, Vec<EntryShown>)> {
        let image = self.blocks.read(at, Kind::Meta)?;
        let mut raw = dir::entries(&self.map.volume, at, &image[..META_BYTES])?;
        raw.sort_unstable_by_key(|entry| entry.cookie);
        let used: usize = raw.iter().map(|entry| entry.space.len()).sum();
        let shown = |entry: &RawEntry| EntryShown {
            name: image[entry.name.clone()].to_vec(),
            ino: entry.ino,
            kind: entry.kind,
            cookie: entry.cookie,
        };
        Ok((META_BYTES - used, raw.iter().map(shown).collect()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::handle::Fs;
    use crate::mkfs::mkfs;
    use crate::options::MountOptions;
    use crate::testing::options;
    use steadfast_block::MemDevice;
    use steadfast_vfs::{Caller, FileSystem, NewNode, XattrMode};

    /// A volume that was not unmounted: everything is in its log.
    fn volume() -> Arc<MemDevice> {
        let device = Arc::new(MemDevice::new(1024));
        mkfs(&*device, &options(), &mut |_, _| {}).unwrap();
        let mount = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let (fs, _) = Fs::mount(Arc::clone(&device) as _, &mount).unwrap();
        let me = &Caller::root();
        let dir = fs.mkdir(me, fs.root(), b"dir", 0o755).unwrap().ino;
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o640,
            rdev: 0,
        };
        for number in 0..200 {
            let name = format!("{number:0>40}");
            let ino = fs.mknod(me, dir, name.as_bytes(), &node).unwrap().ino;
            if number == 0 {
                for page in 0..9 {
                    fs.write(me, ino, page * 8192, &[1; 4096]).unwrap();
                }
                fs.setxattr(me, ino, b"user.a", b"b", XattrMode::Any)
                    .unwrap();
            }
            if number == 1 {
                fs.setxattr(me, ino, b"user.a", &[2; 300], XattrMode::Any)
                    .unwrap();
            }
        }
        fs.symlink(me, dir, b"link", b"else/where").unwrap();
        fs.sync().unwrap();
        std::mem::forget(fs);
        device
    }

    #[test]
    fn the_content_of_the_log_is_shown_and_nothing_is_written() {
        let device = volume();
        let before = device.to_bytes();
        let inspector = Inspector::open(Arc::clone(&device) as _).unwrap();
        assert_eq!(inspector.warning(), None);
        let path = format!("/dir/./../dir/{:0>40}", 0);
        let file = inspector.resolve(path.as_bytes()).unwrap();
        let shown = inspector.show_inode(file).unwrap();
        assert_eq!((shown.attr.perm, shown.attr.size), (0o640, 8 * 8192 + 4096));
        assert_eq!(shown.extents.len(), 9);
        assert_eq!(shown.extents[1].logical, 2);
        assert!(!shown.nodes.is_empty() && shown.nodes[0].level == 0);
        assert_eq!(shown.disk.blocks.get() as usize, 9 + shown.nodes.len());
        assert_eq!(shown.disk.xattr_block.get(), 0);
        assert_eq!(shown.xattrs, [(b"user.a".to_vec(), b"b".to_vec())]);
        let other = inspector.resolve(format!("dir/{:0>40}", 1).as_bytes());
        let shown = inspector.show_inode(other.unwrap()).unwrap();
        assert!(shown.disk.xattr_block.get() != 0 && shown.disk.blocks.get() == 1);
        assert_eq!(shown.xattrs, [(b"user.a".to_vec(), vec![2; 300])]);
        assert_eq!(shown.damage, [""; 0]);
        let link = inspector.resolve(b"dir/link").unwrap();
        let target = inspector.show_inode(link).unwrap().target;
        assert_eq!(target.as_deref(), Some(&b"else/where"[..]));

        let dir = inspector.resolve(b"dir").unwrap();
        let shown = inspector.show_inode(dir).unwrap();
        assert_eq!(shown.disk.entries.get(), 201);
        let (mut leaves, mut entries) = (Vec::new(), 0);
        inspector
            .show_directory(dir, &mut |leaf| {
                assert_eq!(leaf.damage, None);
                entries += leaf.entries.len();
                let used: usize = leaf
                    .entries
                    .iter()
                    .map(|e| (18 + e.name.len()).div_ceil(16) * 16)
                    .sum();
                assert_eq!(leaf.free_bytes + used, META_BYTES);
                leaves.push(leaf.from);
            })
            .unwrap();
        assert_eq!(entries, 201);
        assert!(leaves.len() > 1 && leaves.is_sorted() && leaves[0] == 0);
        assert!(device.to_bytes() == before);

        assert!(inspector.resolve(b"dir/none").unwrap_err() == Errno::NoEnt);
        assert!(inspector.resolve(b"dir/link/x").unwrap_err() == Errno::NotDir);
        assert!(inspector.show_inode(7).unwrap_err() == Errno::Stale);
        assert!(inspector.show_directory(file, &mut |_| {}).unwrap_err() == Errno::NotDir);
    }
}
