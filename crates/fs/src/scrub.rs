//! Scrub: compares the checksum of every metadata block on the medium, piece by piece, while the volume is in use.
//!
//! Looked at are both superblocks, the bitmaps of all groups, inode blocks, tree nodes, directory leaves and
//! blocks of extended attributes. File content has no checksums: it is read, if that is asked for, to see whether the
//! medium gives it back. The log is not looked at: recovery verifies it, and it is written anew all the time.
//!
//! The blocks of an inode are listed under its lock and looked at without it. A block that fails counts only if a second
//! list still has it: else it was freed, and something else may lie there.

use crate::btree;
use crate::extents;
use crate::inode;
use crate::layout::{DiskInode, GROUP_META, INODE_SLOTS, INODES_PER_BLOCK};
use crate::mounted::Mounted;
use crate::ops::has_extents;
use crate::reader::{Current, Image, Reader};
use crate::superblock::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::AtHome;
use steadfast_vfs::{Errno, Ino, Result, ScrubCursor, ScrubFinding, ScrubPiece};

/// Most findings of one piece.
const FINDINGS_MAX: usize = 64;
/// Maximum blocks of a piece (64 MiB).
const BLOCKS_MAX: u64 = 1 << 14;
/// Most items of a tree that are walked in one piece.
const ITEMS_MAX: u64 = 1 << 14;
/// Most blocks of content that one inode adds to a piece (16 MiB).
const CONTENT_MAX: u64 = 1 << 12;
/// Most blocks of content that are read at a time.
const READ_BLOCKS: u64 = 256;

/// Reads metadata, and notes its places.
struct Noting<'a> {
    current: Current<'a>,
    seen: BTreeSet<BlockNo>,
}

impl Reader for Noting<'_> {
    fn meta(&mut self, at: BlockNo) -> Result<Image<'_>> {
        self.seen.insert(at);
        self.current.meta(at)
    }
}

/// Blocks that an inode owns from some key of its tree on.
#[derive(Default)]
struct Owned {
    meta: BTreeMap<BlockNo, &'static str>,
    data: Vec<(BlockNo, u64)>,
    /// Key to go on from; none at the end.
    next: Option<u64>,
    /// Reason why the rest could not be listed.
    error: Option<steadfast_vfs::Error>,
}

/// A piece under way.
struct Piece {
    out: ScrubPiece,
    left: u64,
    data: bool,
}

impl Piece {
    fn find(&mut self, block: BlockNo, ino: Option<Ino>, what: String) {
        if self.out.findings.len() < FINDINGS_MAX {
            let block = block.0;
            self.out.findings.push(ScrubFinding { block, ino, what });
        }
    }

    fn is_full(&self) -> bool {
        self.left == 0 || self.out.findings.len() >= FINDINGS_MAX
    }
}

impl Mounted {
    /// See the module's header and [`steadfast_vfs::FileSystem::scrub`].
    pub(crate) fn scrub(&self, from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> {
        let volume = &self.store.volume;
        let mut piece = Piece {
            out: ScrubPiece {
                total: volume.blocks,
                ..ScrubPiece::default()
            },
            left: blocks.clamp(1, BLOCKS_MAX),
            data,
        };
        let mut at = from;
        if at == ScrubCursor::default() {
            for (block, what) in [
                (0, "the superblock"),
                (volume.blocks - 1, "the copy of the superblock"),
            ] {
                self.look(&mut piece, BlockNo(block), None, what, || true);
            }
            at.ino = volume.groups_start * INODE_SLOTS;
        }
        while let Some(group) = volume.group_of(BlockNo(at.ino / INODE_SLOTS)) {
            let start = volume.group_start(group);
            if piece.is_full() {
                piece.out.done = at.ino / INODE_SLOTS;
                piece.out.next = Some(at);
                return Ok(piece.out);
            }
            if at.ino == start.0 * INODE_SLOTS {
                self.look(&mut piece, start, None, "a block bitmap", || true);
                let bitmap = start.offset(1);
                self.look(&mut piece, bitmap, None, "an inode-block bitmap", || true);
                at.ino = start.offset(GROUP_META).0 * INODE_SLOTS;
            }
            let end = start.0 + volume.group_len(group);
            let Some(block) = self.inode_block_from(group, at.ino / INODE_SLOTS) else {
                at.ino = end * INODE_SLOTS;
                continue;
            };
            if block > at.ino / INODE_SLOTS {
                at = ScrubCursor {
                    ino: block * INODE_SLOTS,
                    key: 0,
                };
            }
            at = self.scrub_inode_block(&mut piece, at);
        }
        piece.out.done = volume.blocks;
        Ok(piece.out)
    }

    /// The first inode block of a group at or after `from`. A bitmap that cannot be read has been found by then.
    fn inode_block_from(&self, group: u64, from: u64) -> Option<u64> {
        let volume = &self.store.volume;
        let start = volume.group_start(group).0;
        let mut reader = Current(&self.store.journal);
        let bitmap = reader.meta(BlockNo(start + 1)).ok()?;
        let is_set = |index: &u64| bitmap[(*index / 8) as usize] >> (*index % 8) & 1 == 1;
        let index =
            (from.saturating_sub(start).max(GROUP_META)..volume.group_len(group)).find(is_set);
        index.map(|index| start + index)
    }

    /// Looks at an inode block and the blocks of its inodes, from the inode `at` on, as far as there is room.
    fn scrub_inode_block(&self, piece: &mut Piece, mut at: ScrubCursor) -> ScrubCursor {
        let block = BlockNo(at.ino / INODE_SLOTS);
        if at.ino.is_multiple_of(INODE_SLOTS) && at.key == 0 {
            let used = || {
                let volume = &self.store.volume;
                let mut reader = Current(&self.store.journal);
                inode::is_inode_block(volume, &mut reader, block).unwrap_or(true)
            };
            self.look(piece, block, None, "an inode block", used);
        }
        while at.ino % INODE_SLOTS < INODES_PER_BLOCK {
            match self.scrub_inode(piece, at.ino, at.key) {
                Some(key) => at.key = key,
                None => {
                    at = ScrubCursor {
                        ino: at.ino + 1,
                        key: 0,
                    };
                }
            }
            if piece.is_full() {
                break;
            }
        }
        if at.ino % INODE_SLOTS >= INODES_PER_BLOCK {
            at.ino = block.offset(1).0 * INODE_SLOTS;
        }
        at
    }

    /// Looks at the blocks of an inode from `key` on; returns where to go on.
    fn scrub_inode(&self, piece: &mut Piece, ino: Ino, key: u64) -> Option<u64> {
        let owned = match self.owned(ino, key, piece.data) {
            Ok(owned) => owned,
            Err(error) if error == Errno::Stale => return None,
            Err(error) => {
                // Once, if its whole block is damaged.
                let block = BlockNo(ino / INODE_SLOTS);
                if piece
                    .out
                    .findings
                    .iter()
                    .all(|found| found.block != block.0)
                {
                    piece.find(block, Some(ino), error.to_string());
                }
                return None;
            }
        };
        let (found, reads) = (piece.out.findings.len(), piece.data);
        for (at, what) in &owned.meta {
            let still = || {
                let again = self.owned(ino, key, reads);
                again.is_ok_and(|again| again.meta.contains_key(at))
            };
            self.look(piece, *at, Some(ino), what, still);
        }
        for (at, len) in &owned.data {
            self.read_content(piece, ino, *at, *len);
        }
        if let Some(error) = owned.error {
            // Else the block that could not be read is among the findings.
            if piece.out.findings.len() == found {
                piece.find(BlockNo(ino / INODE_SLOTS), Some(ino), error.to_string());
            }
            return None;
        }
        owned.next
    }

    /// Lists the blocks of an inode from `key` on: all of them, or as many as one piece looks at.
    fn owned(&self, ino: Ino, key: u64, data: bool) -> Result<Owned> {
        let volume = &self.store.volume;
        self.read_inode(ino)?;
        let inode = self.inode(ino);
        let _lock = inode.shared();
        let disk = self.read_inode(ino)?;
        let mut owned = Owned::default();
        let xattrs = disk.xattr_block.get();
        if key == 0 && xattrs != 0 {
            owned
                .meta
                .insert(BlockNo(xattrs), "a block of extended attributes");
        }
        if !disk.is_dir() && !has_extents(&disk) {
            return Ok(owned);
        }
        let mut noting = Noting {
            current: Current(&self.store.journal),
            seen: BTreeSet::new(),
        };
        let walked = if data && !disk.is_dir() {
            content(&mut noting, volume, &disk, key, &mut owned)
        } else {
            let mut items = 0;
            btree::for_each(&mut noting, volume, &disk.body, key, |item| {
                if disk.is_dir() {
                    owned
                        .meta
                        .insert(BlockNo(item.block.get()), "a directory leaf");
                }
                items += 1;
                if items < ITEMS_MAX {
                    return ControlFlow::Continue(());
                }
                owned.next = item.key.get().checked_add(1);
                ControlFlow::Break(())
            })
        };
        owned.error = walked.err();
        let nodes = noting.seen.into_iter().map(|at| (at, "a tree node"));
        owned.meta.extend(nodes);
        Ok(owned)
    }

    /// Compares the checksum of a block at its home. `still` says whether the block still has the expected use.
    fn look(
        &self,
        piece: &mut Piece,
        at: BlockNo,
        ino: Option<Ino>,
        what: &str,
        still: impl Fn() -> bool,
    ) {
        piece.left = piece.left.saturating_sub(1);
        match self.store.journal.check_home(at) {
            Ok(AtHome::Sound) => piece.out.metadata_blocks += 1,
            Ok(AtHome::Older) => piece.out.older_blocks += 1,
            Ok(AtHome::Damaged) if still() => {
                piece.find(at, ino, format!("{what} fails its checksum"));
            }
            Ok(AtHome::Damaged) => {}
            Err(error) => piece.find(at, ino, format!("{what} cannot be read: {error}")),
        }
    }

    /// Reads blocks of content.
    fn read_content(&self, piece: &mut Piece, ino: Ino, at: BlockNo, len: u64) {
        let journal = &self.store.journal;
        let mut buffer = vec![0; (len.min(READ_BLOCKS) as usize) * BLOCK_SIZE];
        let mut from = 0;
        while from < len {
            let count = (len - from).min(READ_BLOCKS);
            let first = at.offset(from);
            let bytes = &mut buffer[..count as usize * BLOCK_SIZE];
            if journal.read_home(first, bytes).is_err() {
                // One bad block says nothing of the others.
                for index in 0..count {
                    let one = &mut buffer[..BLOCK_SIZE];
                    if let Err(error) = journal.read_home(first.offset(index), one) {
                        let what = format!("content cannot be read: {error}");
                        piece.find(first.offset(index), Some(ino), what);
                    }
                }
            }
            piece.out.data_blocks += count;
            piece.left = piece.left.saturating_sub(count);
            from += count;
        }
    }
}

/// Lists a file's written blocks from its block `from` on.
fn content(
    reader: &mut impl Reader,
    volume: &Volume,
    disk: &DiskInode,
    from: u64,
    owned: &mut Owned,
) -> Result<()> {
    let (mut at, mut blocks, mut items) = (from, 0, 0);
    while let Some(extent) = extents::at_or_over(reader, volume, &disk.body, at)? {
        let first = at.max(extent.logical);
        let len = (extent.end() - first).min(CONTENT_MAX - blocks);
        if !extent.unwritten {
            let start = extent.block.offset(first - extent.logical);
            owned.data.push((start, len));
            blocks += len;
        }
        at = first + len;
        items += 1;
        if blocks == CONTENT_MAX || items == ITEMS_MAX {
            owned.next = Some(at);
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::handle;
    use crate::mkfs::mkfs;
    use crate::options::MountOptions;
    use std::sync::Arc;
    use steadfast_block::{BlockDevice, MemDevice};
    use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode, XattrMode};

    fn mounted(device: &Arc<MemDevice>) -> Arc<handle::Fs> {
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        handle::Fs::mount(Arc::clone(device) as _, &options)
            .unwrap()
            .0
    }

    /// A directory with a leaf of its own, a file with a tree node and content, attributes in a block.
    fn populated() -> (Arc<MemDevice>, Ino, Ino) {
        let device = Arc::new(MemDevice::new(4096));
        mkfs(&*device, &crate::testing::options(), &mut |_, _| {}).unwrap();
        let fs = mounted(&device);
        let me = &Caller::root();
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let d = fs.mkdir(me, fs.root(), b"d", 0o755).unwrap().ino;
        let f = fs.mknod(me, d, b"f", &node).unwrap().ino;
        for page in 0..40 {
            fs.write(me, f, page * 8192, &[7; 4096]).unwrap();
        }
        fs.setxattr(me, f, b"user.k", &[1; 300], XattrMode::Any)
            .unwrap();
        fs.unmount().unwrap();
        (device, d, f)
    }

    /// All pieces together, each as small as can be.
    fn scrub(fs: &handle::Fs, data: bool) -> ScrubPiece {
        let mut sum = ScrubPiece::default();
        let mut at = ScrubCursor::default();
        loop {
            let piece = fs.scrub(at, 1, data).unwrap();
            assert!(piece.done >= sum.done && piece.done <= piece.total);
            sum.done = piece.done;
            sum.metadata_blocks += piece.metadata_blocks;
            sum.older_blocks += piece.older_blocks;
            sum.data_blocks += piece.data_blocks;
            sum.findings.extend(piece.findings);
            match piece.next {
                Some(next) => assert!(next > at, "it goes on"),
                None => return sum,
            }
            at = piece.next.unwrap();
        }
    }

    fn flip(device: &MemDevice, at: u64) {
        let mut block = [0; BLOCK_SIZE];
        device.read(BlockNo(at), &mut block).unwrap();
        block[100] ^= 1;
        device.write(BlockNo(at), &[&block]).unwrap();
    }

    #[test]
    fn a_sound_volume_is_read_whole_and_nothing_is_found() {
        let (device, ..) = populated();
        let fs = mounted(&device);
        let sum = scrub(&fs, false);
        assert_eq!(sum.findings, []);
        assert!(sum.metadata_blocks >= 9 && sum.data_blocks == 0, "{sum:?}");
        let sum = scrub(&fs, true);
        assert_eq!((sum.data_blocks, sum.findings.len()), (40, 0));
        let all = fs.scrub(ScrubCursor::default(), 1 << 14, true).unwrap();
        assert_eq!((all.next, all.data_blocks), (None, 40));
        fs.unmount().unwrap();
    }

    /// Also blocks in memory, whose damage would not be noticed before the next mount.
    #[test]
    fn each_damaged_block_is_found_by_name_while_the_volume_is_mounted() {
        let (device, d, f) = populated();
        let fs = mounted(&device);
        let sound = scrub(&fs, false);
        assert_eq!(sum_of(&fs, d, f).len(), 4);
        for (what, at, ino) in sum_of(&fs, d, f) {
            flip(&device, at);
            let sum = scrub(&fs, false);
            let found: Vec<_> = (sum.findings.iter())
                .map(|found| (found.block, found.ino))
                .collect();
            assert_eq!(found, [(at, ino)], "{what}: {:?}", sum.findings);
            assert!(sum.findings[0].what.contains(what), "{:?}", sum.findings);
            flip(&device, at);
            assert_eq!(scrub(&fs, false).findings, []);
        }
        assert_eq!(scrub(&fs, false).metadata_blocks, sound.metadata_blocks);
        fs.unmount().unwrap();
    }

    fn sum_of(fs: &handle::Fs, d: Ino, f: Ino) -> Vec<(&'static str, u64, Option<Ino>)> {
        let mut all = vec![("an inode block", f / INODE_SLOTS, None)];
        for ino in [d, f] {
            let owned = fs.mounted().owned(ino, 0, false).unwrap();
            all.extend(
                owned
                    .meta
                    .into_iter()
                    .map(|(at, what)| (what, at.0, Some(ino))),
            );
        }
        all
    }

    /// A block's content in the log is newer than at its home; that is no damage.
    #[test]
    fn blocks_that_are_newer_in_the_log_are_passed_over() {
        let (device, d, _) = populated();
        let fs = mounted(&device);
        let me = &Caller::root();
        let sub = fs.mkdir(me, d, b"sub", 0o755).unwrap().ino;
        for name in [b"a", b"b"] {
            fs.mkdir(me, sub, name, 0o755).unwrap();
        }
        fs.sync().unwrap();
        let sum = scrub(&fs, true);
        assert_eq!(sum.findings, []);
        assert!(sum.older_blocks >= 2, "{sum:?}");
        fs.unmount().unwrap();
        let fs = mounted(&device);
        assert_eq!(scrub(&fs, true).older_blocks, 0);
        fs.unmount().unwrap();
    }
}
