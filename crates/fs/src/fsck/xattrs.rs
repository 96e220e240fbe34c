//! Extended attributes, in inodes and in blocks of their own: checks them, and claims the blocks.

use super::check::Check;
use super::finding::{Place, Problem};
use crate::layout::{
    DiskInode, FEATURE_ACL, FEATURE_XATTR_BLOCKS, INLINE_XATTR_BYTES, META_BYTES, XATTR_BLOCKS_MAX,
    XATTR_INDEX_MAGIC, XATTR_MAGIC, XattrHeader, XattrIndex,
};
use crate::xattr::decode_index;
use std::collections::BTreeSet;
use std::rc::Rc;
use steadfast_block::{Block, BlockNo};
use steadfast_vfs::{FileKind, Ino, NAME_MAX};
use zerocopy::FromBytes;

impl Check<'_> {
    /// Compares the permission bits of `inode` with its access ACL.
    pub(super) fn check_acls(&mut self, ino: Ino, acls: Acls, inode: &mut DiskInode) {
        if acls.any {
            self.features |= FEATURE_ACL;
        }
        let mode = inode.mode.get();
        if let Some(bits) = acls.access
            && bits != mode & 0o777
        {
            let detail = format!("its mode is {mode:#o}, but its access ACL says {bits:#o}");
            self.log.add(Problem::AclMode, Place::ino(ino), detail);
            inode.mode = (mode & !0o777 | bits).into();
        }
    }

    /// Claims the blocks of an inode's attributes, if it has any. Attributes in the inode itself have
    /// been checked with its fields; those in blocks take precedence, if all blocks can be read.
    pub(super) fn check_xattr(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        let at = inode.xattr_block.get();
        let (1.., Some(kind)) = (at, self.kind(ino)) else {
            return;
        };
        let mut others = Vec::new();
        let Some(acls) = self.xattr_block_acls(ino, at, kind, &mut others) else {
            let lost = 1 + self.retire_index(at);
            self.edit(ino, |inode| {
                inode.xattr_block = 0.into();
                inode.blocks = inode.blocks.get().saturating_sub(lost).into();
            });
            return;
        };
        let mut edited = inode;
        self.check_acls(ino, acls, &mut edited);
        if edited.mode != inode.mode {
            self.edit(ino, |inode| inode.mode = edited.mode);
        }
        self.used.insert(at);
        for other in &others {
            self.used.insert(*other);
        }
        if !others.is_empty() {
            self.features |= FEATURE_XATTR_BLOCKS;
            self.xattr_blocks.insert(ino, others);
        }
        if inode.xattrs.iter().any(|byte| *byte != 0) {
            let detail = "it has extended attributes in itself and in a block";
            self.log
                .add(Problem::XattrInline, Place::both(ino, at), detail);
            self.edit(ino, |inode| inode.xattrs.fill(0));
        }
    }

    /// Number of blocks of an inode's attributes that were checked.
    pub(super) fn xattr_blocks_of(&self, ino: Ino, inode: &DiskInode) -> u64 {
        if inode.xattr_block.get() == 0 {
            return 0;
        }
        let others = self.xattr_blocks.get(&ino).map_or(0, Vec::len);
        1 + others as u64
    }

    /// Looks at the block that an inode names: the ACLs there, if it is good. Blocks that it names in
    /// turn go to `others`.
    fn xattr_block_acls(
        &mut self,
        ino: Ino,
        at: u64,
        kind: FileKind,
        others: &mut Vec<u64>,
    ) -> Option<Acls> {
        let block = self.xattr_block(ino, at, &[])?;
        let records = match decode_index(&block[..META_BYTES]) {
            None => match block_acls(&block, kind) {
                Ok(acls) => return Some(acls),
                Err(why) => return self.xattr_fault(ino, at, &why),
            },
            Some(Err(why)) => return self.xattr_fault(ino, at, &format!("as an index, {why}")),
            Some(Ok(records)) => records,
        };
        let (mut acls, mut names) = (Acls::default(), BTreeSet::new());
        for BlockNo(record) in records {
            let earlier = [&[at][..], &others[..]].concat();
            let Some(block) = self.xattr_block(ino, record, &earlier) else {
                self.retired.insert(at);
                return None;
            };
            others.push(record);
            let found = block_acls(&block, kind).and_then(|found| {
                if names_in(&block).all(|name| names.insert(name.to_vec())) {
                    Ok(found)
                } else {
                    Err("a name is in another block, too".into())
                }
            });
            match found {
                Ok(found) => {
                    acls.any |= found.any;
                    acls.access = acls.access.or(found.access);
                }
                Err(why) => {
                    self.retired.insert(at);
                    return self.xattr_fault(ino, record, &why);
                }
            }
        }
        Some(acls)
    }

    /// Reads a block of attributes that is not claimed, nor among `earlier` ones of this inode.
    fn xattr_block(&mut self, ino: Ino, at: u64, earlier: &[u64]) -> Option<Rc<Block>> {
        if !self.vol.is_data(BlockNo(at)) {
            self.log.add(
                Problem::XattrInvalid,
                Place::ino(ino),
                format!("its extended attributes are said to lie in block {at}, where none can be"),
            );
            return None;
        }
        if self.used.get(at) || earlier.contains(&at) {
            self.twice(ino, at, 1, "a block of extended attributes");
            return None;
        }
        match self.source.meta(at) {
            Ok(block) => Some(block),
            Err(bad) => {
                let detail = format!("its block of extended attributes {bad}");
                self.log
                    .add(Problem::XattrUnreadable, Place::both(ino, at), detail);
                self.retired.insert(at);
                None
            }
        }
    }

    fn xattr_fault(&mut self, ino: Ino, at: u64, why: &str) -> Option<Acls> {
        let detail = format!("its block of extended attributes is malformed: {why}");
        self.log
            .add(Problem::XattrInvalid, Place::both(ino, at), detail);
        self.retired.insert(at);
        None
    }

    /// Gives up the blocks that belong to an index that is given up. Returns how many it names.
    fn retire_index(&mut self, at: u64) -> u64 {
        if !self.vol.is_data(BlockNo(at)) || self.used.get(at) {
            return 0;
        }
        let Ok(block) = self.source.meta(at) else {
            return 0;
        };
        let Ok((header, rest)) = XattrIndex::ref_from_prefix(&block[..META_BYTES]) else {
            return 0;
        };
        if header.magic.get() != XATTR_INDEX_MAGIC {
            return 0;
        }
        let numbers = rest.chunks_exact(8).take(XATTR_BLOCKS_MAX);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let numbers: Vec<u64> = match usize::from(header.count.get()) {
            count @ 2..=XATTR_BLOCKS_MAX => numbers.take(count).map(number).collect(),
            _ => numbers.map(number).take_while(|at| *at != 0).collect(),
        };
        for at in &numbers {
            let free = self.vol.is_data(BlockNo(*at)) && !self.used.get(*at);
            let magic = XATTR_MAGIC.to_le_bytes();
            if free && self.source.meta(*at).is_ok_and(|block| block[..4] == magic) {
                self.retired.insert(*at);
            }
        }
        numbers.len() as u64
    }
}

/// The names in a block that has no fault.
fn names_in(block: &Block) -> impl Iterator<Item = &[u8]> {
    let mut rest = match XattrHeader::ref_from_prefix(&block[..META_BYTES]) {
        Ok((header, records)) => &records[..usize::from(header.bytes.get()).min(records.len())],
        Err(_) => &[],
    };
    std::iter::from_fn(move || {
        let [len, _, low, high, tail @ ..] = rest else {
            return None;
        };
        let (name, after) = tail.split_at_checked(usize::from(*len))?;
        rest = after.get(usize::from(u16::from_le_bytes([*low, *high]))..)?;
        Some(name)
    })
}

/// ACLs of an inode.
#[derive(Clone, Copy, Default)]
pub(super) struct Acls {
    /// Any at all.
    any: bool,
    /// The permission bits that its access ACL says.
    access: Option<u32>,
}

impl Acls {
    /// Takes in one attribute. The error is its fault.
    fn take(&mut self, name: &[u8], value: &[u8], kind: FileKind) -> Result<(), &'static str> {
        if name != ACCESS && name != DEFAULT {
            return Ok(());
        }
        let bits = acl_bits(value).ok_or("is no valid ACL")?;
        self.any = true;
        match kind {
            FileKind::Symlink => return Err("is an ACL of a symbolic link"),
            FileKind::Directory => {}
            _ if name == DEFAULT => return Err("is a default ACL, but of no directory"),
            _ => {}
        }
        if name == ACCESS {
            self.access = Some(bits);
        }
        Ok(())
    }
}

/// The permission bits that a stored ACL says; none if it is malformed.
fn acl_bits(value: &[u8]) -> Option<u32> {
    let mut rest = value.strip_prefix(&[1, 0, 0, 0])?;
    let (mut last, mut named, mut seen) = (0, false, 0);
    // The permissions of owner, owning group, mask and others.
    let mut perms = [0; 4];
    while let [tag, 0, perm @ 0..=7, 0, tail @ ..] = rest {
        rest = tail;
        match tag {
            0x02 | 0x08 => {
                let (id, tail) = rest.split_first_chunk::<4>()?;
                if *id == [0xff; 4] || last > *tag {
                    return None;
                }
                (rest, named) = (tail, true);
            }
            0x01 | 0x04 | 0x10 | 0x20 if last < *tag => {
                let place = [0x01, 0x04, 0x10, 0x20].iter().position(|t| t == tag)?;
                perms[place] = u32::from(*perm);
            }
            _ => return None,
        }
        (last, seen) = (*tag, seen | tag);
    }
    let masked = seen & 0x10 != 0;
    if !rest.is_empty() || seen & 0x25 != 0x25 || named && !masked {
        return None;
    }
    let [owner, group, mask, other] = perms;
    Some(owner << 6 | (if masked { mask } else { group }) << 3 | other)
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Prefixes of names; in an inode their number, from 1 on, stands for them. Nothing follows the
/// last two.
const NAMESPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", ACCESS, DEFAULT];

/// Whether an inode of this kind may have an attribute of this name in this namespace.
fn name_is_good(namespace: &[u8], name: &[u8], kind: FileKind) -> bool {
    let holder = matches!(kind, FileKind::Regular | FileKind::Directory);
    if namespace.starts_with(b"system.") {
        return name.is_empty();
    }
    !name.is_empty()
        && name.len() + namespace.len() <= NAME_MAX
        && !name.contains(&0)
        && (holder || namespace != b"user.")
}

/// Fault of the attributes in an inode.
pub(crate) fn inline_fault(area: &[u8; INLINE_XATTR_BYTES], kind: FileKind) -> Option<String> {
    inline_acls(area, kind).err()
}

/// The ACLs among the attributes in an inode. The error is their fault.
pub(super) fn inline_acls(area: &[u8; INLINE_XATTR_BYTES], kind: FileKind) -> Result<Acls, String> {
    let mut acls = Acls::default();
    let mut names = BTreeSet::new();
    let mut rest = &area[..];
    for index in 0.. {
        let (namespace, name, value, tail) = match rest {
            [] => break,
            [0, ..] if rest.iter().all(|byte| *byte == 0) => break,
            [0, ..] => return Err("the bytes after its records are not zero".into()),
            [namespace, name, value, tail @ ..] => (namespace, name, value, tail),
            _ => return Err(format!("record {index} reaches beyond its area")),
        };
        let (name, value) = (usize::from(*name), usize::from(*value));
        if name + value > tail.len() {
            return Err(format!("record {index} reaches beyond its area"));
        }
        let (name, after) = tail.split_at(name);
        let Some(prefix) = NAMESPACES.get(usize::from(*namespace) - 1) else {
            return Err(format!("record {index} is in namespace {namespace}"));
        };
        if !name_is_good(prefix, name, kind) {
            return Err(format!("record {index} has a name that cannot be one"));
        }
        if !names.insert((namespace, name)) {
            return Err(format!("record {index} has the name of an earlier one"));
        }
        let (value, behind) = after.split_at(value);
        let full = [prefix, name].concat();
        acls.take(&full, value, kind)
            .map_err(|why| format!("record {index} {why}"))?;
        rest = behind;
    }
    Ok(acls)
}

/// Fault of a block of extended attributes.
#[cfg(test)]
pub(crate) fn block_fault(block: &Block, kind: FileKind) -> Option<String> {
    block_acls(block, kind).err()
}

/// The ACLs in a block of extended attributes. The error is its fault.
fn block_acls(block: &Block, kind: FileKind) -> Result<Acls, String> {
    let mut acls = Acls::default();
    let Ok((header, records)) = XattrHeader::ref_from_prefix(&block[..META_BYTES]) else {
        return Err("it is too short".into());
    };
    if header.magic.get() != XATTR_MAGIC {
        return Err(format!("its magic number is {:#x}", header.magic.get()));
    }
    let bytes = usize::from(header.bytes.get());
    if bytes > records.len() {
        return Err(format!("it claims {bytes} bytes of records"));
    }
    let (mut rest, unused) = records.split_at(bytes);
    let mut names = BTreeSet::new();
    for index in 0..header.count.get() {
        let [len, zero, low, high, tail @ ..] = rest else {
            return Err(format!("record {index} reaches beyond the others"));
        };
        let (name, value) = (
            usize::from(*len),
            usize::from(u16::from_le_bytes([*low, *high])),
        );
        if name == 0 || *zero != 0 || name + value > tail.len() {
            return Err(format!("record {index} is malformed"));
        }
        let (name, after) = tail.split_at(name);
        let namespace = NAMESPACES.iter().find(|prefix| name.starts_with(prefix));
        let good = |prefix: &&[u8]| name_is_good(prefix, &name[prefix.len()..], kind);
        if !namespace.is_some_and(good) {
            return Err(format!("record {index} has a name that cannot be one"));
        }
        if !names.insert(name) {
            return Err(format!("record {index} has the name of an earlier one"));
        }
        let (value, behind) = after.split_at(value);
        acls.take(name, value, kind)
            .map_err(|why| format!("record {index} {why}"))?;
        rest = behind;
    }
    if names.is_empty() || !rest.is_empty() {
        return Err(format!(
            "its {} records do not fill its {bytes} bytes",
            names.len()
        ));
    }
    if unused.iter().any(|byte| *byte != 0) {
        return Err("the bytes after its records are not zero".into());
    }
    Ok(acls)
}
