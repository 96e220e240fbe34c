//! Extended attributes, in inodes and in blocks of their own: checks them, and claims the blocks.

use super::check::Check;
use super::finding::{Place, Problem};
use crate::layout::{
    DiskInode, FEATURE_ACL, INLINE_XATTR_BYTES, META_BYTES, XATTR_MAGIC, XattrHeader,
};
use std::collections::BTreeSet;
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

    /// Claims the block of an inode's attributes, if it has one. What lies in the inode itself has been
    /// checked with its fields; the block goes before it, if it can be read.
    pub(super) fn check_xattr(&mut self, ino: Ino) {
        let inode = self.inode(ino);
        let at = inode.xattr_block.get();
        let (1.., Some(kind)) = (at, self.kind(ino)) else {
            return;
        };
        let place = Place::both(ino, at);
        let kept = if !self.vol.is_data(BlockNo(at)) {
            self.log.add(
                Problem::XattrInvalid,
                Place::ino(ino),
                format!("its extended attributes are said to lie in block {at}, where none can be"),
            );
            false
        } else if self.used.get(at) {
            self.twice(ino, at, 1, "a block of extended attributes");
            false
        } else {
            match self.source.meta(at).map(|block| block_acls(&block, kind)) {
                Ok(Ok(acls)) => {
                    let mut edited = inode;
                    self.check_acls(ino, acls, &mut edited);
                    if edited.mode != inode.mode {
                        self.edit(ino, |inode| inode.mode = edited.mode);
                    }
                    true
                }
                Ok(Err(why)) => {
                    let detail = format!("its block of extended attributes is malformed: {why}");
                    self.log.add(Problem::XattrInvalid, place, detail);
                    self.retired.insert(at);
                    false
                }
                Err(bad) => {
                    let detail = format!("its block of extended attributes {bad}");
                    self.log.add(Problem::XattrUnreadable, place, detail);
                    self.retired.insert(at);
                    false
                }
            }
        };
        if kept {
            self.used.insert(at);
            if inode.xattrs.iter().any(|byte| *byte != 0) {
                let detail = "it has extended attributes in itself and in a block";
                self.log
                    .add(Problem::XattrInline, Place::both(ino, at), detail);
                self.edit(ino, |inode| inode.xattrs.fill(0));
            }
        } else {
            self.edit(ino, |inode| {
                inode.xattr_block = 0.into();
                inode.blocks = inode.blocks.get().saturating_sub(1).into();
            });
        }
    }
}

/// What an inode has for ACLs.
#[derive(Clone, Copy, Default)]
pub(super) struct Acls {
    /// Any at all.
    any: bool,
    /// The permission bits that its access ACL says.
    access: Option<u32>,
}

impl Acls {
    /// Takes in one attribute. The error is what is wrong with it.
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

/// What names begin with; in an inode their number, from 1 on, stands for them. Nothing follows
/// the last two.
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

/// What is wrong with the attributes in an inode.
pub(crate) fn inline_fault(area: &[u8; INLINE_XATTR_BYTES], kind: FileKind) -> Option<String> {
    inline_acls(area, kind).err()
}

/// The ACLs among the attributes in an inode. The error is what is wrong with these.
pub(super) fn inline_acls(area: &[u8; INLINE_XATTR_BYTES], kind: FileKind) -> Result<Acls, String> {
    let mut acls = Acls::default();
    let mut names = BTreeSet::new();
    let mut rest = &area[..];
    for index in 0.. {
        let (namespace, name, value, tail) = match rest {
            [] => break,
            [0, ..] if rest.iter().all(|byte| *byte == 0) => break,
            [0, ..] => return Err("the bytes behind its records are not zero".into()),
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

/// What is wrong with a block of extended attributes.
#[cfg(test)]
pub(crate) fn block_fault(block: &Block, kind: FileKind) -> Option<String> {
    block_acls(block, kind).err()
}

/// The ACLs in a block of extended attributes. The error is what is wrong with it.
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
        return Err("the bytes behind its records are not zero".into());
    }
    Ok(acls)
}
