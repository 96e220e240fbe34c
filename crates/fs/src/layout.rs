//! The on-disk format: every structure, its byte map and its codec. Shared by mkfs,
//! the mounted file system, fsck and the dump tools. No I/O here.
//!
//! All integers are little endian. Metadata blocks end in a 16-byte seal that the
//! journal places and verifies (`steadfast_journal::seal`), so structures have
//! [`META_BYTES`] bytes. File data blocks have no seal.
//!
//! ```text
//! block 0                superblock
//! block 1, 2             the journal's two tail headers
//! block 3 .. 3+L         the log (L blocks)
//! block 3+L .. N-1       block groups of GROUP_BLOCKS blocks; the last one may be short
//! block N-1              copy of the superblock
//!
//! without a log ([`FEATURE_NO_LOG`]) the groups begin at block 1, and block 0 says after the
//! superblock whether the volume is mounted ([`MOUNTED_AT`])
//!
//! group:  +0  block bitmap        bit i = block i of the group in use (the two bitmaps themselves included)
//!         +1  inode-block bitmap  bit i = block i of the group holds inodes
//!         +2… metadata and data blocks
//! ```
//!
//! An inode number *is* an address: `ino = block * 16 + slot`, slot 0 to 14. The root
//! directory is slot 0 and the orphan directory slot 1 of the first group's first inode block.

use steadfast_block::BLOCK_SIZE;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a metadata block that carry structure; the rest is the journal's seal.
pub const META_BYTES: usize = steadfast_journal::META_BYTES;

/// First bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"STEADFST";
/// Format version that this code writes.
pub const VERSION: u32 = 2;
/// Incompatible feature: there is no log, the volume needs a device that a crash returns to its last flush.
pub const FEATURE_NO_LOG: u32 = 1;
/// Incompatible feature: inodes may have ACLs, by which access is decided. Set before the first one.
pub const FEATURE_ACL: u32 = 2;
/// Incompatible features that this code knows.
pub const FEATURES_INCOMPAT: u32 =
    FEATURE_NO_LOG | FEATURE_ACL | FEATURE_XATTR_BLOCKS | FEATURE_NOCOW;
/// Incompatible feature: extended attributes lie in several blocks ([`XattrIndex`]).
pub const FEATURE_XATTR_BLOCKS: u32 = 0x100;
/// Incompatible feature: inodes may have the flag that keeps overwrites in place. Set before the first one.
pub const FEATURE_NOCOW: u32 = 0x200;
/// Feature that a writer must know: inodes may have flags, which forbid changes. Set before the first one.
pub const FEATURE_RO_FLAGS: u32 = 1;
/// Features that this code knows and a writer must know.
pub const FEATURES_RO: u32 = FEATURE_RO_FLAGS;
/// Offset of the mounted mark in block 0 of a volume without a log: 1 while mounted, else 0.
/// With a log, its tail header has the mark.
pub const MOUNTED_AT: usize = size_of::<Superblock>();
/// Blocks in a group: as many as one sealed bitmap block has bits.
pub const GROUP_BLOCKS: u64 = (META_BYTES * 8) as u64;
/// Bitmap blocks at the start of each group.
pub const GROUP_META: u64 = 2;
/// Bytes of an inode.
pub const INODE_BYTES: usize = 256;
/// Inodes in an inode block.
pub const INODES_PER_BLOCK: u64 = (META_BYTES / INODE_BYTES) as u64;
/// Slots that an inode number's low bits can name (a power of two ≥ [`INODES_PER_BLOCK`]).
pub const INODE_SLOTS: u64 = 16;
/// Largest file: 2^32 blocks.
pub const FILE_BYTES_MAX: u64 = (1 << 32) * BLOCK_SIZE as u64;
/// Most hard links to one inode.
pub const LINK_MAX: u32 = 65_000;
/// Bytes of the records of extended attributes in a block of their own.
pub const XATTR_BYTES_MAX: usize = META_BYTES - size_of::<XattrHeader>();

/// Most blocks with records of extended attributes of one inode.
pub const XATTR_BLOCKS_MAX: usize = 16;

/// Fields of the superblock; block 0 and the last block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// Features that a reader must know, or refuse the volume.
    pub features_incompat: U32,
    /// Features that a writer must know, or mount read-only.
    pub features_ro: U32,
    /// Features that anyone may ignore.
    pub features_compat: U32,
    /// Identity of the volume; part of every log record's hash and of every seal.
    pub uuid: [u8; 16],
    /// Blocks of the device that belong to the volume. This and `groups` change when it grows.
    pub blocks: U64,
    /// First block of the log.
    pub log_start: U64,
    /// Blocks of the log.
    pub log_blocks: U64,
    /// First block of the first group.
    pub groups_start: U64,
    /// Number of groups.
    pub groups: U64,
    /// The root directory.
    pub root_ino: U64,
    /// The orphan directory: inodes without names, and truncations to finish.
    pub orphan_ino: U64,
    /// Key of the directory hash.
    pub hash_key: [u8; 16],
    /// The contract: 1 = `ordered`, 2 = `metadata-prefix`, 3 = `sync`, 4 = `relaxed`.
    pub contract: U32,
    /// Zero.
    pub reserved: U32,
    /// Time of creation, seconds since 1970.
    pub made: I64,
    /// Label, UTF-8, padded with zeros.
    pub label: [u8; 64],
}

/// A point in time on disk: 12 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct DiskTime {
    /// Seconds since 1970.
    pub secs: I64,
    /// Nanoseconds.
    pub nanos: U32,
}

/// An inode on disk: 256 bytes. `mode == 0` means the slot is free, and then every byte is zero.
///
/// Fields that several streams may change without relating have fixed places of
/// their own: a directory's `nlink` and `entries` (`Add`) and `mtime`/`ctime` (latest).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskInode {
    /// File type and permission bits as in `st_mode`.
    pub mode: U32,
    /// Flags as `FS_IOC_GETFLAGS` has them: 0x10 immutable, 0x20 append only, 0x40 no dump, 0x80 no access
    /// time ([`FEATURE_RO_FLAGS`]), 0x800000 overwrites in place ([`FEATURE_NOCOW`]). Others are zero.
    pub flags: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Hard links; a directory counts `.`, its name, and each child's `..`.
    pub nlink: U64,
    /// Bytes; of a directory: zero (reported from `blocks`).
    pub size: U64,
    /// Blocks allocated to it: data, tree nodes, extended attributes.
    pub blocks: U64,
    /// Random, never zero: distinguishes uses of the slot.
    pub generation: U64,
    /// Modification.
    pub mtime: DiskTime,
    /// Attribute change. Directly after `mtime`: both are patched as one range.
    pub ctime: DiskTime,
    /// Access.
    pub atime: DiskTime,
    /// Creation.
    pub btime: DiskTime,
    /// Device number of device inodes.
    pub rdev: U32,
    /// The extended attributes, if all of them fit; records {namespace u8, name length u8, value length u8,
    /// name without its namespace, value} with zeros after them. Namespaces: 1 `user.`, 2 `trusted.`,
    /// 3 `security.`, and of ACLs, whose names end there, 4 `system.posix_acl_access`,
    /// 5 `system.posix_acl_default`. All zero if `xattr_block` is not.
    pub xattrs: [u8; INLINE_XATTR_BYTES],
    /// Block of the extended attributes, 0 if they are inline or there are none.
    pub xattr_block: U64,
    /// Of a directory: the parent directory. Else zero.
    pub parent: U64,
    /// Of a directory: number of entries without `.` and `..`. Else zero.
    pub entries: U64,
    /// Root of the extent tree (regular files, long symlinks), of the directory index,
    /// or the target of a symlink of at most [`INLINE_BYTES`] bytes.
    pub body: [u8; INLINE_BYTES],
}

/// Bytes of an inode's body.
pub const INLINE_BYTES: usize = 80;
/// Bytes of the extended attributes in an inode: enough for a file's capabilities (at most 24 bytes
/// in `security.capability`), or for a label of 42 bytes in `security.selinux`.
pub const INLINE_XATTR_BYTES: usize = 52;

/// A node of a B+tree: 8-byte header and sorted items of 24 bytes. The root lies in the
/// inode's body with up to [`ROOT_ITEMS`] items, the others fill a metadata block with up
/// to [`NODE_ITEMS`]. Level 0 items are the tree's values, higher items point to nodes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NodeHeader {
    /// [`NODE_MAGIC`] in blocks and in roots.
    pub magic: U16,
    /// 0 for leaves.
    pub level: U16,
    /// Items in use; the bytes after them are zero.
    pub count: U16,
    /// Zero.
    pub reserved: U16,
}

/// Marks a tree node.
pub const NODE_MAGIC: u16 = 0x5f7e;
/// Items in a root.
pub const ROOT_ITEMS: usize = (INLINE_BYTES - size_of::<NodeHeader>()) / size_of::<Item>();
/// Items in a node block.
pub const NODE_ITEMS: usize = (META_BYTES - size_of::<NodeHeader>()) / size_of::<Item>();
/// Deepest tree that is accepted (root at this level).
pub const TREE_LEVEL_MAX: u16 = 7;

/// An item of a B+tree node.
///
/// * inner node: `key` = smallest key below (0 in the leftmost), `block` = the child node;
/// * extent: `key` = first logical block of the file, `block` = first device block, `len` = blocks, `flags`;
/// * directory index: `key` = smallest cookie of the leaf (0 in the leftmost), `block` = the leaf, `len` = 1.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Item {
    /// Sort key.
    pub key: U64,
    /// Device block.
    pub block: U64,
    /// Length in blocks.
    pub len: U32,
    /// [`EXTENT_UNWRITTEN`] or 0.
    pub flags: U32,
}

/// The extent is allocated but reads as zeros.
pub const EXTENT_UNWRITTEN: u32 = 1;

/// Directory leaves hand out space in units of this many bytes.
pub const DIR_UNIT: usize = 16;
/// Units of a directory leaf.
pub const DIR_UNITS: usize = META_BYTES / DIR_UNIT;

/// Start of a directory entry; the name follows. An entry occupies whole units from a unit
/// boundary on, and is all zero beyond its name. A unit whose first eight bytes are zero is
/// free. No entry says anything about another: streams add and remove them on their own.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirEntryHeader {
    /// Inode; never zero.
    pub ino: U64,
    /// Stable position: the name's hash with its low [`COOKIE_SPARE_BITS`] bits replaced by a
    /// number that makes it unique in the directory. Sorts the index.
    pub cookie: U64,
    /// Bytes of the name.
    pub len: u8,
    /// `FileKind` as a number.
    pub kind: u8,
}

/// Low bits of a cookie that tell equal hashes apart.
pub const COOKIE_SPARE_BITS: u32 = 4;
/// Cookies are below this, so that they are positive as signed offsets.
pub const COOKIE_MAX: u64 = i64::MAX as u64;

/// Start of an extended-attribute block; records follow: {name length u8, zero u8, value length u16, name, value}.
/// The value of an ACL is a u32 1, then for each entry {tag u16, permissions u16, and of users and groups id u32}.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XattrHeader {
    /// [`XATTR_MAGIC`].
    pub magic: U32,
    /// Number of records.
    pub count: U16,
    /// Bytes of all records.
    pub bytes: U16,
}

/// Marks an extended-attribute block.
pub const XATTR_MAGIC: u32 = 0x5f7e_a77a;

/// Start of an index of extended-attribute blocks; their numbers follow: u64 each, at least two.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XattrIndex {
    /// [`XATTR_INDEX_MAGIC`].
    pub magic: U32,
    /// Number of blocks.
    pub count: U16,
    /// Zero.
    pub zero: U16,
}

/// Marks an index of extended-attribute blocks.
pub const XATTR_INDEX_MAGIC: u32 = 0x5f7e_a77b;

const _: () = {
    assert!(size_of::<Superblock>() <= META_BYTES);
    assert!(size_of::<DiskInode>() == INODE_BYTES);
    assert!(std::mem::offset_of!(DiskInode, xattrs) == 100);
    assert!(std::mem::offset_of!(DiskInode, body) == 176);
    assert!(size_of::<Item>() == 24);
    assert!(size_of::<NodeHeader>() == 8);
    assert!(size_of::<DirEntryHeader>() == 18);
    assert!(ROOT_ITEMS == 3);
    assert!(NODE_ITEMS == 169);
    assert!(INODES_PER_BLOCK == 15 && INODES_PER_BLOCK <= INODE_SLOTS);
    assert!(DIR_UNITS == 255);
};
