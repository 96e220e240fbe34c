//! An inode's words on the medium, read under its lock, and their consequences: attributes, permission, its extended
//! attributes.

use crate::fs::PmFs;
use crate::layout::{
    AttributePlace, Commit, INLINE_BYTES, InodeRef, PAGE_BYTES, inode, time_parts,
};
use crate::table::{Node, State};
use crate::xattr::{self, Attributes, BadAttributes, HEADER_BYTES, RECORD_BYTES_MAX};
use smallvec::SmallVec;
use steadfast_vfs::acl::Acl;
use steadfast_vfs::policy::{self, Subject};
use steadfast_vfs::{Attr, Caller, Errno, Error, FileKind, InodeFlags, Result, Time};

/// Bytes of a record of flags at most: code, length, 32 bits.
const FLAGS_BYTES: usize = 6;

/// The records of an inode's extended attributes.
pub(super) type Records = SmallVec<[u8; 64]>;

/// Content of an inode's words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    /// Number and generation.
    pub(super) inode: InodeRef,
    /// Kind of the inode.
    pub(super) kind: FileKind,
    /// Permission bits and where the extended attributes are.
    pub(super) commit: Commit,
    /// Owner.
    pub(super) uid: u32,
    /// Group.
    pub(super) gid: u32,
    /// Size in bytes; of a device: its number.
    pub(super) size: u64,
}

impl Disk {
    /// Whether it is a directory.
    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// A structure that cannot be right.
pub(super) fn damaged(node: &Node<'_>, what: impl std::fmt::Display) -> Error {
    let number = node.inode.number;
    Error::new(
        Errno::Uclean,
        format!("inode {number}: {what}; run 'steadfast fsck' on the volume"),
    )
}

fn bad<'a>(node: &'a Node<'_>) -> impl Fn(BadAttributes) -> Error + 'a {
    |wrong| damaged(node, wrong)
}

/// A stored time.
pub(super) fn time(word: u64) -> Time {
    let (secs, nanos) = time_parts(word);
    Time { secs, nanos }
}

impl PmFs {
    /// EUCLEAN for a file or symbolic link whose content is damaged: it is mounted read-only then.
    pub(super) fn sound(&self, node: &Node<'_>) -> Result<()> {
        match node.damaged {
            true => Err(damaged(node, "its content is damaged")),
            false => Ok(()),
        }
    }

    /// The inode of a node, whose lock the caller holds.
    #[inline]
    pub(super) fn disk(&self, node: &Node<'_>) -> Disk {
        const WORDS: [u64; 5] = [
            inode::COMMIT,
            inode::OWNER[0],
            inode::OWNER[1],
            inode::SIZE[0],
            inode::SIZE[1],
        ];
        let [commit, owner @ .., size0, size1] = self.medium().words(node.at, WORDS);
        let commit = Commit::from_word(commit);
        let owner = owner[commit.parity()];
        Disk {
            inode: node.inode,
            kind: node.kind,
            commit,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            size: [size0, size1][commit.parity()],
        }
    }

    /// A word of an inode.
    pub(super) fn word(&self, node: &Node<'_>, word: u64) -> u64 {
        self.medium().load(node.at + word)
    }

    /// When an inode was made and last read. Its second line says so if it is of this inode; if a crash left an earlier one
    /// there, both are the time of its last change.
    fn second_line(&self, node: &Node<'_>) -> Option<(u64, u64)> {
        let words = [inode::EXTRA, inode::BTIME, inode::ATIME];
        let [header, btime, atime] = self.medium().words(node.at + inode::EXTRA, words);
        (header >> 32 == u64::from(node.inode.generation)).then_some((btime, atime))
    }

    /// Time of an inode's last read.
    pub(super) fn atime(&self, node: &Node<'_>) -> Time {
        let times = self.second_line(node);
        time(times.map_or_else(|| self.word(node, inode::MTIME), |(_, atime)| atime))
    }

    /// All attributes.
    pub(super) fn attr_of(&self, node: &Node<'_>, state: &State, disk: &Disk) -> Attr {
        let times = [inode::MTIME, inode::CTIME];
        let [mtime, ctime] = self.medium().words(node.at, times);
        let (btime, atime) = self.second_line(node).unwrap_or((mtime, mtime));
        let held = state.pages_held();
        let device = matches!(disk.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Attr {
            ino: node.inode.number.into(),
            generation: node.inode.generation.into(),
            kind: disk.kind,
            perm: disk.commit.perm,
            nlink: state.links,
            uid: disk.uid,
            gid: disk.gid,
            rdev: if device { disk.size as u32 } else { 0 },
            size: match disk.kind {
                FileKind::Directory => held.max(1).saturating_mul(PAGE_BYTES),
                FileKind::Regular | FileKind::Symlink => disk.size,
                _ => 0,
            },
            blocks: held.saturating_mul(PAGE_BYTES / 512),
            atime: time(atime),
            mtime: time(mtime),
            ctime: time(ctime),
            btime: time(btime),
        }
    }

    /// The same.
    pub(super) fn attr(&self, node: &Node<'_>, state: &State) -> Attr {
        self.attr_of(node, state, &self.disk(node))
    }

    /// Subject of permission checks.
    #[inline]
    pub(super) fn subject(&self, node: &Node<'_>, state: &State, disk: &Disk) -> Result<Subject> {
        Ok(Subject {
            kind: disk.kind,
            perm: disk.commit.perm,
            uid: disk.uid,
            gid: disk.gid,
            flags: self.flags_of(node, state, disk)?,
            size: disk.size,
        })
    }

    /// The flags of `chattr`.
    #[inline]
    pub(super) fn flags_of(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
    ) -> Result<InodeFlags> {
        if disk.commit.attributes == AttributePlace::None {
            return Ok(InodeFlags::NONE);
        }
        let records = self.records(node, state, disk, FLAGS_BYTES)?;
        xattr::flags_of(&records).map_err(bad(node))
    }

    /// The ACL of this name.
    #[inline]
    pub(super) fn acl_of(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        name: &[u8],
    ) -> Result<Option<Acl>> {
        if disk.commit.attributes == AttributePlace::None {
            return Ok(None);
        }
        let records = self.records(node, state, disk, usize::MAX)?;
        xattr::acl_of(&records, name).map_err(bad(node))
    }

    /// All extended attributes, flags and ACLs among them.
    pub(super) fn attributes(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
    ) -> Result<Attributes> {
        let records = self.records(node, state, disk, usize::MAX)?;
        Attributes::decode(&records).map_err(bad(node))
    }

    /// The first bytes of the records of an inode's extended attributes, at most `bytes_max`.
    fn records(
        &self,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        bytes_max: usize,
    ) -> Result<Records> {
        match disk.commit.attributes {
            AttributePlace::None => Ok(Records::new()),
            AttributePlace::Inline => {
                let len = (self.word(node, inode::EXTRA) & 0xffff) as usize;
                if len > INLINE_BYTES {
                    return Err(damaged(node, BadAttributes::Length));
                }
                let mut bytes = [0; INLINE_BYTES];
                let len = len.min(bytes_max);
                let at = self.medium().geometry().inode_at(node.inode.number);
                self.load_bytes(at + inode::INLINE, &mut bytes[..len]);
                Ok(Records::from_slice(&bytes[..len]))
            }
            AttributePlace::Pages => {
                let mut header = [0; HEADER_BYTES];
                self.read_attributes(node, state, 0, &mut header)?;
                let len = u32::from_le_bytes(header) as usize;
                if len > RECORD_BYTES_MAX {
                    return Err(damaged(node, BadAttributes::Length));
                }
                let mut records = Records::from_elem(0, len.min(bytes_max));
                self.read_attributes(node, state, HEADER_BYTES, &mut records)?;
                Ok(records)
            }
        }
    }

    fn read_attributes(
        &self,
        node: &Node<'_>,
        state: &State,
        at: usize,
        to: &mut [u8],
    ) -> Result<()> {
        let short = || damaged(node, BadAttributes::Short);
        let pages = state.attributes.as_deref().ok_or_else(short)?;
        let mut done = 0;
        while done < to.len() {
            let (offset, from) = (
                (at + done) as u64 / PAGE_BYTES,
                (at + done) as u64 % PAGE_BYTES,
            );
            let found = pages.find(offset).ok_or_else(short)?;
            let room = (found.len * PAGE_BYTES - from) as usize;
            let len = room.min(to.len() - done);
            self.medium()
                .read(found.page.at() + from, &mut to[done..done + len]);
            done += len;
        }
        Ok(())
    }

    /// Bytes that were stored as words, from a multiple of 8 on.
    pub(super) fn load_bytes(&self, at: u64, bytes: &mut [u8]) {
        for (piece, at) in bytes.chunks_mut(8).zip((at..).step_by(8)) {
            let word = self.medium().load(at).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }

    /// EACCES unless the caller has all of `mask`.
    #[inline]
    pub(super) fn require(
        &self,
        caller: &Caller,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        mask: u8,
    ) -> Result<()> {
        // Most callers: the kernel has checked, or root, which may do everything with a directory.
        if caller.checked || caller.uid == 0 && disk.is_dir() {
            return Ok(());
        }
        self.allowed(caller, node, state, disk, mask)
    }

    /// EACCES unless the caller's identity has all of `mask`, also if the kernel checked before.
    pub(super) fn allowed(
        &self,
        caller: &Caller,
        node: &Node<'_>,
        state: &State,
        disk: &Disk,
        mask: u8,
    ) -> Result<()> {
        let subject = Subject {
            kind: disk.kind,
            perm: disk.commit.perm,
            uid: disk.uid,
            gid: disk.gid,
            // They have no say here.
            flags: InodeFlags::NONE,
            size: disk.size,
        };
        let acl = match policy::asks_acl(caller, &subject) {
            true => self.acl_of(node, state, disk, steadfast_vfs::acl::XATTR_ACCESS)?,
            false => None,
        };
        policy::access(caller, &subject, acl.as_ref(), mask)
    }
}
