//! Extended attributes, in inodes and in blocks of their own: checks them, and claims the blocks.

use super::check::Check;
use super::finding::{Place, Problem};
use crate::layout::{INLINE_XATTR_BYTES, META_BYTES, XATTR_MAGIC, XattrHeader};
use std::collections::BTreeSet;
use steadfast_block::{Block, BlockNo};
use steadfast_vfs::{FileKind, Ino, NAME_MAX};
use zerocopy::FromBytes;

impl Check<'_> {
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
            match self.source.meta(at).map(|block| block_fault(&block, kind)) {
                Ok(None) => true,
                Ok(Some(why)) => {
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

/// What names begin with; in an inode their number, from 1 on, stands for them.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Whether an inode of this kind may have an attribute of this name in this namespace.
fn name_is_good(namespace: &[u8], name: &[u8], kind: FileKind) -> bool {
    let holder = matches!(kind, FileKind::Regular | FileKind::Directory);
    !name.is_empty()
        && name.len() + namespace.len() <= NAME_MAX
        && !name.contains(&0)
        && (holder || namespace != b"user.")
}

/// What is wrong with the attributes in an inode.
pub(crate) fn inline_fault(area: &[u8; INLINE_XATTR_BYTES], kind: FileKind) -> Option<String> {
    let mut names = BTreeSet::new();
    let mut rest = &area[..];
    for index in 0.. {
        let (namespace, name, value, tail) = match rest {
            [] => break,
            [0, ..] if rest.iter().all(|byte| *byte == 0) => break,
            [0, ..] => return Some("the bytes behind its records are not zero".into()),
            [namespace, name, value, tail @ ..] => (namespace, name, value, tail),
            _ => return Some(format!("record {index} reaches beyond its area")),
        };
        let (name, value) = (usize::from(*name), usize::from(*value));
        if name + value > tail.len() {
            return Some(format!("record {index} reaches beyond its area"));
        }
        let (name, after) = tail.split_at(name);
        let Some(prefix) = NAMESPACES.get(usize::from(*namespace) - 1) else {
            return Some(format!("record {index} is in namespace {namespace}"));
        };
        if !name_is_good(prefix, name, kind) {
            return Some(format!("record {index} has a name that cannot be one"));
        }
        if !names.insert((namespace, name)) {
            return Some(format!("record {index} has the name of an earlier one"));
        }
        rest = &after[value..];
    }
    None
}

/// What is wrong with a block of extended attributes.
pub(crate) fn block_fault(block: &Block, kind: FileKind) -> Option<String> {
    let Ok((header, records)) = XattrHeader::ref_from_prefix(&block[..META_BYTES]) else {
        return Some("it is too short".into());
    };
    if header.magic.get() != XATTR_MAGIC {
        return Some(format!("its magic number is {:#x}", header.magic.get()));
    }
    let bytes = usize::from(header.bytes.get());
    if bytes > records.len() {
        return Some(format!("it claims {bytes} bytes of records"));
    }
    let (mut rest, unused) = records.split_at(bytes);
    let mut names = BTreeSet::new();
    for index in 0..header.count.get() {
        let [len, zero, low, high, tail @ ..] = rest else {
            return Some(format!("record {index} reaches beyond the others"));
        };
        let (name, value) = (
            usize::from(*len),
            usize::from(u16::from_le_bytes([*low, *high])),
        );
        if name == 0 || *zero != 0 || name + value > tail.len() {
            return Some(format!("record {index} is malformed"));
        }
        let (name, after) = tail.split_at(name);
        let namespace = NAMESPACES.iter().find(|prefix| name.starts_with(prefix));
        let good = |prefix: &&[u8]| name_is_good(prefix, &name[prefix.len()..], kind);
        if !namespace.is_some_and(good) {
            return Some(format!("record {index} has a name that cannot be one"));
        }
        if !names.insert(name) {
            return Some(format!("record {index} has the name of an earlier one"));
        }
        rest = &after[value..];
    }
    if names.is_empty() || !rest.is_empty() {
        return Some(format!(
            "its {} records do not fill its {bytes} bytes",
            names.len()
        ));
    }
    unused
        .iter()
        .any(|byte| *byte != 0)
        .then(|| "the bytes behind its records are not zero".into())
}
