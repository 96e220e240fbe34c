//! Changing a file's size, and freeing file data in slices.
//!
//! Shrinking sets the size, zeroes the rest of the last block and frees the blocks after
//! it, in one operation (corner 26). If those are too many for one operation, it only sets
//! the size and enters the file in the orphan directory; slices of the freeing follow, each
//! an operation of its own, and the last takes the entry away (corner 29). Until then the
//! inode's object remembers the *cut*: no reader looks past it, and an operation that would
//! make the file longer or give it blocks finishes the slices first ([`Mounted::settle`]).
//!
//! Neighbours: `orphan`, `extents`, `ops` (setattr, unlink, release), `mount` (orphans).

use crate::data::require_file;
use crate::error::damaged;
use crate::extents::{self, BLOCKS_MAX};
use crate::in_place::Concerns;
use crate::inode::{self, Inode, Place, State};
use crate::layout::{DiskInode, FILE_BYTES_MAX};
use crate::mounted::Mounted;
use crate::orphan;
use crate::pages::{COST_INODE, PAGE};
use crate::reader::{Current, Reader};
use crate::work::{COST_BLOCK, COST_RANGE, Store, Work};
use steadfast_block::BLOCK_SIZE;
use steadfast_journal::{Access, Credits, Kind, Object};
use steadfast_vfs::{Errno, Ino, Result, Stream};

/// Log bytes of a change of size: the inode, the zeroes in the last block.
pub(crate) const RESIZE_BYTES: u64 = COST_INODE + COST_BLOCK + COST_RANGE + PAGE;

/// Most log bytes that one operation spends on freeing blocks.
pub(crate) fn slice_bytes(store: &Store) -> u64 {
    store.journal.op_bytes_max() / 4
}

/// The credits to request, besides [`RESIZE_BYTES`], to free everything past `size` in the same
/// operation; enough for an orphan entry instead if that is too much.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn free_bytes(
    store: &Store,
    reader: &mut impl Reader,
    disk: &DiskInode,
    size: u64,
) -> Result<u64> {
    let limit = slice_bytes(store);
    let first = size.div_ceil(PAGE);
    let bytes =
        extents::removal_bytes(reader, &store.volume, &disk.body, first, BLOCKS_MAX, limit)?;
    Ok(bytes.unwrap_or(0))
}

/// The change of the inode's object at a change of size, made when nothing can fail any more.
#[derive(Debug)]
#[must_use]
pub(crate) struct Resized {
    /// Pages from here on go.
    drop_from: u64,
    /// Part of a delayed page to zero: page and first byte.
    zero: Option<(u64, usize)>,
    cut: Option<u64>,
    /// Blocks past the end stay for now: the operation must enter the inode in the orphan
    /// directory, and [`Mounted::settle`] be called after it.
    pub(crate) needs_orphan: bool,
}

impl Resized {
    /// Directly before the operation's commit, under the lock that `resize` was called with.
    pub(crate) fn apply(self, store: &Store, state: &mut State) {
        if let Some((page, from)) = self.zero {
            state.pages.zero(page, from, BLOCK_SIZE);
        }
        state.pages.drop_range(self.drop_from, u64::MAX);
        if state.pages.is_empty() {
            // The credits attached to the transaction stay with it, unused.
            let reserved = state.pages.settle();
            store.alloc.unreserve(reserved);
        }
        state.pages.cut = self.cut;
    }
}

/// Changes the size in `disk`, which the caller stores, related and locked exclusively.
/// Frees the blocks past it, if that takes no more than `free_bytes` of the operation's log
/// bytes. `None`: a truncation is under way, give the operation up and [`Mounted::settle`] first.
///
/// # Errors
/// EISDIR, EINVAL, EFBIG; EIO, EUCLEAN.
pub(crate) fn resize(
    work: &mut Work<'_>,
    state: &State,
    disk: &mut DiskInode,
    size: u64,
    free_bytes: u64,
) -> Result<Option<Resized>> {
    require_file(disk)?;
    if size > FILE_BYTES_MAX {
        return Err(Errno::FBig.into());
    }
    let old = disk.size.get();
    let mut resized = Resized {
        drop_from: BLOCKS_MAX,
        zero: None,
        cut: state.pages.cut,
        needs_orphan: false,
    };
    if size > old {
        // The rest of the last block is zero already.
        if state.pages.cut.is_some() {
            return Ok(None);
        }
        disk.size = size.into();
        return Ok(Some(resized));
    }
    let volume = work.volume();
    let first = size.div_ceil(PAGE);
    let (page, from) = (size / PAGE, (size % PAGE) as usize);
    if from > 0 && old > size {
        if state.pages.get(page).is_some() {
            resized.zero = Some((page, from));
        } else if page < state.pages.cut.unwrap_or(u64::MAX) {
            let to = (old - page * PAGE).min(PAGE) as usize;
            zero_written(work, disk, page, from, to)?;
        }
    }
    disk.size = size.into();
    resized.drop_from = first;
    if let Some(cut) = state.pages.cut {
        resized.cut = Some(cut.min(first));
        return Ok(Some(resized));
    }
    let body = disk.body;
    let fits = extents::removal_bytes(work, volume, &body, first, BLOCKS_MAX, free_bytes)?;
    if let Some(bytes) = fits {
        free_from(work, disk, first, bytes)?;
    } else if extents::at_or_over(work, volume, &body, first)?.is_some() {
        resized.cut = Some(first);
        resized.needs_orphan = true;
    }
    Ok(Some(resized))
}

/// Zeroes a part of a page that lies in a written block, if it does.
pub(crate) fn zero_written(
    work: &mut Work<'_>,
    disk: &DiskInode,
    page: u64,
    from: usize,
    to: usize,
) -> Result<()> {
    static ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
    let volume = work.volume();
    let runs = extents::runs(work, volume, &disk.body, page, page + 1)?;
    if let Some(run) = runs.first().filter(|run| !run.unwritten && from < to) {
        work.write(run.block, Kind::Data, from, &ZEROS[from..to])?;
    }
    Ok(())
}

/// Frees blocks from the end down to block `first` of the file, as far as `log_bytes` go.
/// Returns whether all are freed.
fn free_from(
    work: &mut Work<'_>,
    disk: &mut DiskInode,
    first: u64,
    log_bytes: u64,
) -> Result<bool> {
    let level = crate::btree::level(work.volume(), &disk.body)?;
    let log_bytes = log_bytes.saturating_sub(extents::remove_credits(level, true));
    let (change, done) = extents::remove(work, &mut disk.body, first, BLOCKS_MAX, log_bytes)?;
    if !done && change == extents::Change::default() {
        return Err(damaged(
            "a file's block tree too deep to free one block of it",
        ));
    }
    disk.blocks = change.apply(disk.blocks.get()).into();
    Ok(done)
}

/// Frees all file data of an inode that goes away in this operation, which has `free_bytes`
/// log bytes for it. False: that is too little, nothing was done. [`forget`] goes with it.
///
/// # Errors
/// EIO, EUCLEAN.
pub(crate) fn free_all(work: &mut Work<'_>, disk: &mut DiskInode, free_bytes: u64) -> Result<bool> {
    let volume = work.volume();
    let body = disk.body;
    match extents::removal_bytes(work, volume, &body, 0, BLOCKS_MAX, free_bytes)? {
        Some(bytes) => free_from(work, disk, 0, bytes),
        None => Ok(false),
    }
}

/// Frees a slice of an orphan's file data from the end on, with [`slice_bytes`] log bytes.
/// Returns whether nothing is left. The caller stores `disk`.
///
/// # Errors
/// EIO, EUCLEAN.
pub(crate) fn free_slice(work: &mut Work<'_>, disk: &mut DiskInode) -> Result<bool> {
    let log_bytes = slice_bytes(work.store());
    free_from(work, disk, 0, log_bytes)
}

/// Drops everything delayed of an inode that goes away; directly before the commit.
pub(crate) fn forget(fs: &Mounted, ino: Ino, state: &mut State) {
    state.pages.drop_range(0, u64::MAX);
    let reserved = state.pages.settle();
    fs.store.alloc.unreserve(reserved);
    fs.forget_places(ino, &mut state.pages);
    state.pages.cut = None;
}

impl Mounted {
    /// Finishes a truncation of the inode, if one is under way. Hold no lock and no operation.
    ///
    /// # Errors
    /// EIO, EUCLEAN, EROFS.
    pub(crate) fn settle(&self, stream: Stream, ino: Ino) -> Result<()> {
        let inode = self.table.get(ino);
        while inode.shared().pages.cut.is_some() {
            self.cut_slice(stream, &inode)?;
        }
        Ok(())
    }

    /// Finishes a truncation that a crash interrupted.
    ///
    /// # Errors
    /// As for [`Mounted::settle`].
    pub(crate) fn resume_truncation(&self, ino: Ino) -> Result<()> {
        let inode = self.table.get(ino);
        {
            let mut state = inode.exclusive();
            let mut reader = Current(&self.store.journal);
            let disk = inode::read(&self.store.volume, &mut reader, ino)?;
            require_file(&disk)?;
            state.pages.cut = Some(disk.size.get().div_ceil(PAGE));
        }
        self.settle(Stream::default(), ino)
    }

    /// One slice; the last one ends the truncation.
    fn cut_slice(&self, stream: Stream, inode: &Inode) -> Result<()> {
        let store = &self.store;
        let ino = inode.ino;
        let slice = slice_bytes(store);
        let log_bytes = slice + COST_INODE + orphan::remove_credits(self)?;
        let mut work = store.begin(stream, Credits::log(log_bytes))?;
        work.use_emergency_space();
        work.relate(Object::File(ino), Access::Exclusive);
        let orphans = self.table.get(store.volume.orphans);
        let mut state = inode.exclusive();
        // The orphan directory is always the last one locked.
        let _orphans = orphans.exclusive();
        let Some(cut) = state.pages.cut else {
            return Ok(());
        };
        let old = match inode::read(&store.volume, &mut work, ino) {
            Ok(old) => old,
            Err(error) if error == Errno::Stale => {
                state.pages.cut = None;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut new = old;
        let done = free_from(&mut work, &mut new, cut, slice)?;
        inode::patch(&mut work, Place::of(&store.volume, ino)?, &old, &new)?;
        if done {
            // Without names it stays in there, to be freed.
            if new.nlink.get() > 0 {
                orphan::remove(self, &mut work, ino)?;
            }
            state.pages.cut = None;
        }
        let ticket = work.commit();
        self.note_change(ino, Concerns::Size, ticket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fsck::{FsckOptions, Outcome, fsck};
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::options::MountOptions;
    use std::sync::Arc;
    use steadfast_block::MemDevice;
    use steadfast_sim::{Limits, SimDevice};
    use steadfast_vfs::{AllocateMode, Caller, FileKind, NewNode, Seek};

    fn mount(device: &Arc<MemDevice>) -> Arc<Mounted> {
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        Mounted::mount(Arc::clone(device) as _, &options).unwrap().0
    }

    /// The first operation of a long truncation, and nothing after it.
    fn begin_truncation(fs: &Mounted, ino: Ino, size: u64) {
        let store = &fs.store;
        let credits = Credits::log(store.journal.op_bytes_max());
        let mut work = store.begin(Stream(0), credits).unwrap();
        let inode = fs.table.get(ino);
        let orphans = fs.table.get(store.volume.orphans);
        let mut state = inode.exclusive();
        let _orphans = orphans.exclusive();
        work.relate(Object::File(ino), Access::Exclusive);
        let old = fs.read_inode(ino).unwrap();
        let mut new = old;
        let resized = resize(&mut work, &state, &mut new, size, 0)
            .unwrap()
            .unwrap();
        assert!(resized.needs_orphan);
        inode::patch(
            &mut work,
            Place::of(&store.volume, ino).unwrap(),
            &old,
            &new,
        )
        .unwrap();
        orphan::add(fs, &mut work, ino, FileKind::Regular).unwrap();
        resized.apply(store, &mut state);
        work.commit();
    }

    #[test]
    fn corner_29_a_truncation_that_a_cut_interrupted_is_finished_at_mount() {
        let device = MemDevice::new(4096);
        mkfs(&device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
        let device = Arc::new(device);
        let fs = mount(&device);
        let caller = Caller::root();
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let ino = fs
            .op_mknod(&caller, fs.store.volume.root, b"file", &node)
            .unwrap()
            .ino;
        let free = fs.store.alloc.space().free;
        for page in 0..700 {
            fs.write_file(&caller, ino, Some(page * 8192), &[7; 4096])
                .unwrap();
        }
        fs.store.journal.sync_all().unwrap();
        begin_truncation(&fs, ino, 8192 + 100);
        // No reader sees the cut blocks, whether or not they are freed already.
        assert!(fs.seek_file(ino, 8292, Seek::Data).is_err());
        fs.store.journal.sync_all().unwrap();
        let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
        let again = mount(&copy);
        assert_eq!(again.attr(ino).unwrap().blocks, 16);
        // Two blocks of the file.
        assert_eq!(again.store.alloc.space().free, free - 2);
        again.unmount().unwrap();
        let report = fsck(copy, &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
        // An operation that makes the file longer finishes it first.
        fs.write_file(&caller, ino, Some(1 << 20), b"end").unwrap();
        assert_eq!(fs.attr(ino).unwrap().blocks, 24);
        let mut found = vec![1; 1 << 20];
        fs.read_file(ino, 0, &mut found).unwrap();
        assert!(found[..4096].iter().all(|byte| *byte == 7));
        assert!(found[4096..8192].iter().all(|byte| *byte == 0));
        assert!(found[8192..8292].iter().all(|byte| *byte == 7));
        assert!(found[8292..].iter().all(|byte| *byte == 0));
        fs.unmount().unwrap();
        let report = fsck(device, &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
    }

    /// Story: a file was removed while a truncation of it was under way in another thread. Its inode
    /// was freed in one operation, its orphan entry stayed, and at the next mount cut the file that
    /// had got the number: here, blocks that were allocated past its end.
    #[test]
    fn an_inode_keeps_its_number_until_a_truncation_under_way_has_ended() {
        let device = Arc::new(SimDevice::new(2048));
        let options = MkfsOptions {
            log_blocks: Some(512),
            ..crate::testing::options()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let mount = |device: Arc<SimDevice>| {
            let options = MountOptions {
                background: false,
                ..MountOptions::default()
            };
            Mounted::mount(device as _, &options).unwrap().0
        };
        let caller = Caller::root();
        let fs = mount(Arc::clone(&device));
        let root = fs.store.volume.root;
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let make = |name: &[u8]| fs.op_mknod(&caller, root, name, &node).unwrap().ino;
        let cut = make(b"cut");
        for page in 0..8 {
            fs.write_file(&caller, cut, Some(page * 8192), &[7; 4096])
                .unwrap();
        }
        fs.store.journal.sync_all().unwrap();
        let start = device.trace_len();
        begin_truncation(&fs, cut, 0);
        fs.op_remove(&caller, root, b"cut", false).unwrap();
        assert_eq!(
            orphan::list(&fs, &mut Current(&fs.store.journal)).unwrap(),
            [0; 0]
        );
        let next = make(b"next");
        assert_eq!(next, cut, "the number is used again");
        fs.allocate_file(&caller, next, AllocateMode::KeepSize, 0, 8 * PAGE)
            .unwrap();
        // The truncating caller goes on.
        fs.settle(caller.stream, cut).unwrap();
        fs.store.journal.sync_all().unwrap();
        let mut explorer = device.explorer();
        for position in start..=explorer.len() {
            for image in explorer.cut(position).images(&Limits::default()) {
                let name = image.to_string();
                let device = Arc::new(SimDevice::from_image(image));
                let fs = mount(Arc::clone(&device));
                assert_eq!(fs.take_warnings(), Vec::<String>::new(), "{name}");
                if let Ok(next) = fs.op_lookup(&caller, root, b"next")
                    && next.blocks > 0
                {
                    assert_eq!(next.blocks, 64, "{name}");
                }
                fs.unmount().unwrap();
                let report = fsck(device, &FsckOptions::default()).unwrap();
                assert_eq!(report.outcome(), Outcome::Clean, "{name}: {report:?}");
            }
        }
        let after = fs.op_lookup(&caller, root, b"next").unwrap();
        assert_eq!(after.blocks, 64);
    }
}
