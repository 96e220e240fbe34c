//! A volume image that tests look into and damage on purpose.

use crate::fsck::dirs::{Raw, entries};
use crate::fsck::inodes::inode_at;
use crate::fsck::{FsckOptions, FsckReport, Outcome, fsck};
use crate::layout::{
    DIR_UNIT, DiskInode, INODE_BYTES, INODE_SLOTS, Item, META_BYTES, NODE_MAGIC, NodeHeader,
};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::superblock::{Volume, load};
use crate::{Fs, MountOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo, MemDevice};
use steadfast_journal::seal;
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Result, XattrMode,
};
use zerocopy::{FromBytes, IntoBytes};

/// Blocks of a test volume.
pub(super) const BLOCKS: u64 = 1500;

/// The bytes of a volume, and the inodes of its paths.
#[derive(Clone)]
pub(super) struct Image {
    pub(super) bytes: Vec<u8>,
    pub(super) volume: Volume,
    pub(super) paths: Arc<BTreeMap<String, Ino>>,
}

pub(super) fn format(blocks: u64) -> Arc<MemDevice> {
    let device = MemDevice::new(blocks);
    let options = MkfsOptions {
        log_blocks: Some(128),
        seed: Some(7),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options, &mut |_, _| {}).expect("mkfs");
    Arc::new(device)
}

pub(super) fn mount(device: Arc<MemDevice>) -> Arc<Fs> {
    let options = MountOptions {
        background: false,
        seed: Some(3),
        ..MountOptions::default()
    };
    Fs::mount(device, &options).expect("mount").0
}

/// Something of every kind.
pub(super) fn populate(fs: &Fs) -> BTreeMap<String, Ino> {
    let (me, root) = (&Caller::root(), fs.root());
    let mut paths = BTreeMap::from([("/".to_owned(), root)]);
    let mut note = |path: &str, attr: Attr| {
        paths.insert(path.to_owned(), attr.ino);
        attr.ino
    };
    let node = |kind, rdev| NewNode {
        kind,
        perm: 0o644,
        rdev,
    };
    let file = node(FileKind::Regular, 0);
    let a = note("/a", fs.mkdir(me, root, b"a", 0o755).unwrap());
    let b = note("/a/b", fs.mkdir(me, a, b"b", 0o755).unwrap());
    note("/a/c", fs.mkdir(me, a, b"c", 0o755).unwrap());
    let small = note("/a/b/small", fs.mknod(me, b, b"small", &file).unwrap());
    fs.write(me, small, 0, b"hello").unwrap();
    fs.link(me, small, a, b"hard").unwrap();
    let flat = note("/flat", fs.mknod(me, root, b"flat", &file).unwrap());
    fs.write(me, flat, 0, &[1; 4096]).unwrap();
    fs.write(me, flat, 8192, &[2; 4096]).unwrap();
    let big = note("/big", fs.mknod(me, root, b"big", &file).unwrap());
    for i in 0..200 {
        fs.write(me, big, i * 8192, &[i as u8; 4096]).unwrap();
        if i % 50 == 0 {
            fs.sync().unwrap();
        }
    }
    let pre = note("/pre", fs.mknod(me, root, b"pre", &file).unwrap());
    fs.write(me, pre, 0, b"x").unwrap();
    fs.fallocate(me, pre, AllocateMode::KeepSize, 0, 40960)
        .unwrap();
    let many = note("/many", fs.mkdir(me, root, b"many", 0o755).unwrap());
    for i in 0..120 {
        let name = format!("{i:0>150}");
        let attr = fs.mknod(me, many, name.as_bytes(), &file).unwrap();
        if i % 10 == 0 {
            fs.write(me, attr.ino, 0, name.as_bytes()).unwrap();
        }
        note(&format!("/many/{name}"), attr);
    }
    note("/short", fs.symlink(me, root, b"short", b"a/b").unwrap());
    note(
        "/long",
        fs.symlink(me, root, b"long", &[b'l'; 300]).unwrap(),
    );
    note(
        "/fifo",
        fs.mknod(me, root, b"fifo", &node(FileKind::Fifo, 0))
            .unwrap(),
    );
    note(
        "/null",
        fs.mknod(me, root, b"null", &node(FileKind::CharDevice, 0x103))
            .unwrap(),
    );
    note("/empty", fs.mknod(me, root, b"empty", &file).unwrap());
    let attrs = note("/attrs", fs.mknod(me, root, b"attrs", &file).unwrap());
    fs.setxattr(me, attrs, b"user.colour", b"green", XattrMode::Any)
        .unwrap();
    fs.setxattr(me, attrs, b"user.size", &[7; 500], XattrMode::Any)
        .unwrap();
    let few = note("/few", fs.mknod(me, root, b"few", &file).unwrap());
    fs.setxattr(me, few, b"user.k", b"value", XattrMode::Any)
        .unwrap();
    fs.setxattr(me, few, b"security.capability", &[1; 20], XattrMode::Any)
        .unwrap();
    let acl = note("/acl", fs.mknod(me, root, b"acl", &file).unwrap());
    fs.setxattr(me, acl, XATTR_ACCESS, &list(), XattrMode::Any)
        .unwrap();
    let acls = note("/acls", fs.mkdir(me, root, b"acls", 0o755).unwrap());
    for name in [XATTR_ACCESS, XATTR_DEFAULT] {
        fs.setxattr(me, acls, name, &list(), XattrMode::Any)
            .unwrap();
    }
    let wide = note("/wide", fs.mknod(me, root, b"wide", &file).unwrap());
    for name in [&b"user.1"[..], b"user.2", b"user.3"] {
        fs.setxattr(me, wide, name, &[name[5]; 3000], XattrMode::Any)
            .unwrap();
    }
    let gone = note("/gone", fs.mknod(me, root, b"gone", &file).unwrap());
    fs.write(me, gone, 0, &[9; 10_000]).unwrap();
    paths
}

/// An ACL with a user and a mask: mode 660.
fn list() -> Vec<u8> {
    let entry = |(who, perm)| Entry { who, perm };
    let entries = [
        (Who::Owner, 6),
        (Who::User(7), 4),
        (Who::OwningGroup, 4),
        (Who::Mask, 6),
        (Who::Other, 0),
    ];
    Acl::new(entries.map(entry).to_vec()).unwrap().to_xattr()
}

/// Reads everything that can be reached, through the mounted code. Returns the number of
/// inodes, and the failures.
pub(super) fn walk(fs: &Fs) -> (usize, Vec<String>) {
    let me = &Caller::root();
    let (mut seen, mut errors) = (0, Vec::new());
    let mut stack = vec![(fs.root(), FileKind::Directory, 0)];
    let mut buf = vec![0; 65536];
    while let Some((ino, kind, depth)) = stack.pop() {
        seen += 1;
        if seen > 20_000 {
            break;
        }
        let mut ok = |result: Result<()>| {
            errors.extend(
                result
                    .err()
                    .map(|error| format!("inode {ino} ({kind:?}): {error}")),
            );
        };
        ok(fs.getattr(me, ino).map(drop));
        match fs.listxattr(me, ino) {
            Ok(names) => names
                .iter()
                .for_each(|name| ok(fs.getxattr(me, ino, name).map(drop))),
            Err(error) => ok(Err(error)),
        }
        match kind {
            FileKind::Directory if depth < 12 => {
                let mut children = Vec::new();
                ok(fs.readdir(me, ino, 0, &mut |entry| {
                    if entry.name != b"." && entry.name != b".." {
                        children.push((entry.ino, entry.kind, depth + 1, entry.name.to_vec()));
                    }
                    children.len() < 5000
                }));
                for (child, kind, depth, name) in children {
                    ok(fs.lookup(me, ino, &name).map(drop));
                    stack.push((child, kind, depth));
                }
            }
            FileKind::Regular => {
                let size = fs.getattr(me, ino).map_or(0, |attr| attr.size);
                for offset in (0..size.min(4 << 20)).step_by(buf.len()) {
                    ok(fs.read(me, ino, offset, &mut buf).map(drop));
                }
                ok(match fs.seek(me, ino, 0, steadfast_vfs::Seek::Data) {
                    Err(error) if error == Errno::NxIo => Ok(()),
                    other => other.map(drop),
                });
            }
            FileKind::Symlink => ok(fs.readlink(me, ino).map(drop)),
            _ => {}
        }
    }
    (seen, errors)
}

impl Image {
    pub(super) fn of(device: &MemDevice, paths: BTreeMap<String, Ino>) -> Image {
        let volume = load(device).expect("a volume").volume;
        Image {
            bytes: device.to_bytes(),
            volume,
            paths: Arc::new(paths),
        }
    }

    /// A populated volume, unmounted except for an open file without a name: its log is empty,
    /// and the orphan directory lists that file.
    pub(super) fn populated() -> Image {
        Image::populated_on(BLOCKS)
    }

    pub(super) fn populated_on(blocks: u64) -> Image {
        let crashed = Image::crashed_on(blocks);
        let (image, report) = crashed.repair();
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
        image
    }

    /// The same, with everything since mkfs still in the log where it fits.
    pub(super) fn crashed() -> Image {
        Image::crashed_on(BLOCKS)
    }

    fn crashed_on(blocks: u64) -> Image {
        let device = format(blocks);
        let fs = mount(device.clone());
        let paths = populate(&fs);
        fs.open(&Caller::root(), paths["/gone"]).unwrap();
        fs.unlink(&Caller::root(), fs.root(), b"gone").unwrap();
        fs.sync().unwrap();
        let image = Image::of(&device, paths);
        drop(fs);
        image
    }

    pub(super) fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::from_bytes(&self.bytes))
    }

    pub(super) fn check(&self) -> FsckReport {
        let device = self.device();
        let report = fsck(device.clone(), &FsckOptions::default()).expect("check");
        assert!(device.to_bytes() == self.bytes, "a check writes nothing");
        report
    }

    pub(super) fn repair(&self) -> (Image, FsckReport) {
        let device = self.device();
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = fsck(device.clone(), &options).expect("repair");
        (
            Image {
                bytes: device.to_bytes(),
                ..self.clone()
            },
            report,
        )
    }

    pub(super) fn ino(&self, path: &str) -> Ino {
        self.paths[path]
    }

    pub(super) fn block(&self, at: u64) -> &Block {
        self.bytes[at as usize * BLOCK_SIZE..][..BLOCK_SIZE]
            .try_into()
            .unwrap()
    }

    /// Changes a block without resealing it.
    pub(super) fn scratch(&mut self, at: u64, change: impl FnOnce(&mut Block)) {
        let bytes = &mut self.bytes[at as usize * BLOCK_SIZE..][..BLOCK_SIZE];
        change(bytes.try_into().unwrap());
    }

    /// Changes a block and reseals it.
    pub(super) fn edit(&mut self, at: u64, change: impl FnOnce(&mut Block)) {
        let uuid = self.volume.uuid;
        self.scratch(at, |block| {
            change(block);
            seal(&uuid, BlockNo(at), block);
        });
    }

    pub(super) fn inode(&self, ino: Ino) -> DiskInode {
        inode_at(self.block(ino / INODE_SLOTS), (ino % INODE_SLOTS) as usize)
    }

    pub(super) fn edit_inode(&mut self, ino: Ino, change: impl FnOnce(&mut DiskInode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        let at = (ino % INODE_SLOTS) as usize * INODE_BYTES;
        self.edit(ino / INODE_SLOTS, |block| {
            block[at..at + INODE_BYTES].copy_from_slice(inode.as_bytes());
        });
    }

    /// Items and node blocks of an inode's tree.
    pub(super) fn tree(&self, ino: Ino) -> (Vec<Item>, Vec<u64>) {
        fn below(image: &Image, bytes: &[u8], items: &mut Vec<Item>, nodes: &mut Vec<u64>) {
            let (header, rest) = NodeHeader::ref_from_prefix(bytes).unwrap();
            assert_eq!(header.magic.get(), NODE_MAGIC);
            for chunk in rest.chunks_exact(24).take(header.count.get().into()) {
                let item = Item::read_from_bytes(chunk).unwrap();
                if header.level.get() == 0 {
                    items.push(item);
                } else {
                    nodes.push(item.block.get());
                    below(
                        image,
                        &image.block(item.block.get())[..META_BYTES],
                        items,
                        nodes,
                    );
                }
            }
        }
        let (mut items, mut nodes) = (Vec::new(), Vec::new());
        below(self, &self.inode(ino).body, &mut items, &mut nodes);
        (items, nodes)
    }

    /// Changes item `index` in the tree node that the bytes begin with.
    pub(super) fn change_item(bytes: &mut [u8], index: usize, change: impl FnOnce(&mut Item)) {
        let at = 8 + index * 24;
        let mut item = Item::read_from_bytes(&bytes[at..at + 24]).unwrap();
        change(&mut item);
        bytes[at..at + 24].copy_from_slice(item.as_bytes());
    }

    /// Block, unit and content of an entry.
    pub(super) fn entry<R>(&self, dir: Ino, name: &[u8], look: impl Fn(u64, &Raw<'_>) -> R) -> R {
        for item in self.tree(dir).0 {
            let at = item.block.get();
            for raw in entries(self.block(at), |unit, why| panic!("unit {unit}: {why}")) {
                if raw.name == name {
                    return look(at, &raw);
                }
            }
        }
        panic!("no such entry")
    }

    /// Changes the bytes of an entry, from its start on.
    pub(super) fn edit_entry(&mut self, dir: Ino, name: &[u8], change: impl FnOnce(&mut [u8])) {
        let (at, unit) = self.entry(dir, name, |at, raw| (at, raw.unit));
        self.edit(at, |block| change(&mut block[unit * DIR_UNIT..]));
    }

    /// Removes an entry without a trace in the counts.
    pub(super) fn wipe_entry(&mut self, dir: Ino, name: &[u8]) {
        let units = (18 + name.len()).div_ceil(DIR_UNIT);
        self.edit_entry(dir, name, |bytes| bytes[..units * DIR_UNIT].fill(0));
    }

    /// Sets bit `index` of a bitmap.
    pub(super) fn set_bit(&mut self, bitmap: u64, index: u64, value: bool) {
        self.edit(bitmap, |block| {
            let byte = &mut block[(index / 8) as usize];
            *byte = (*byte & !(1 << (index % 8))) | (u8::from(value) << (index % 8));
        });
    }

    pub(super) fn bit(&self, bitmap: u64, index: u64) -> bool {
        self.block(bitmap)[(index / 8) as usize] >> (index % 8) & 1 == 1
    }

    /// The first free block of group 0.
    pub(super) fn free_block(&self) -> u64 {
        let start = self.volume.groups_start;
        start + (0..).find(|index| !self.bit(start, *index)).unwrap()
    }

    /// Blocks of metadata that are in use, superblocks and journal excepted.
    pub(super) fn metadata(&self) -> Vec<u64> {
        let from = self.volume.groups_start;
        (from..self.volume.groups_end())
            .filter(|at| {
                steadfast_journal::seal_holds(&self.volume.uuid, BlockNo(*at), self.block(*at))
            })
            .collect()
    }
}
