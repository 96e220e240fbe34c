//! Orphans: inodes without names that are still open or too large to free at once, and
//! files whose truncation takes several operations. Each has an entry in the orphan
//! directory, named by its number, from the operation that makes it an orphan to the one
//! that finishes it; so a crash in between loses no space (corner 29).
//!
//! The orphan directory is a directory like others, but has no name, and its lock is taken
//! last, regardless of its number.

use crate::dir::{self, Dir};
use crate::error::{damaged, from_journal};
use crate::inode::{self, Place};
use crate::mounted::Mounted;
use crate::pages::COST_INODE;
use crate::reader::{Current, Reader};
use crate::truncate::{self, slice_bytes};
use crate::work::OWN_STREAM;
use crate::work::Work;
use crate::{btree, slots, xattr};
use steadfast_journal::{Access, Credits, Object};
use steadfast_vfs::{Errno, FileKind, Ino, Result, Stream};

/// The name of an orphan's entry.
fn entry_name(ino: Ino) -> String {
    format!("{ino:016x}")
}

fn level(fs: &Mounted) -> Result<u16> {
    btree::level(&fs.store.volume, &fs.orphan_directory()?.body)
}

/// Log bytes of [`add`].
pub(crate) fn credits(fs: &Mounted) -> Result<u64> {
    level(fs).map(dir::insert_credits)
}

/// Log bytes of [`remove`].
pub(crate) fn remove_credits(fs: &Mounted) -> Result<u64> {
    level(fs).map(dir::remove_credits)
}

/// The directory, locked by the caller. Not read through the operation: that may have looked
/// at the same inode block before the lock was taken.
fn load(fs: &Mounted) -> Result<Dir> {
    let ino = fs.store.volume.orphans;
    let disk = fs.orphan_directory()?;
    Ok(Dir {
        ino,
        place: Place::of(&fs.store.volume, ino)?,
        disk,
    })
}

/// Enters an orphan, if it is not there yet. The caller holds the orphan directory's lock.
pub(crate) fn add(fs: &Mounted, work: &mut Work<'_>, ino: Ino, kind: FileKind) -> Result<()> {
    if fs.options.faults.forget_orphan {
        return Ok(());
    }
    let mut dir = load(fs)?;
    let name = entry_name(ino);
    if dir::lookup(work, &fs.store.volume, &dir.disk, name.as_bytes())?.is_some() {
        return Ok(());
    }
    dir.insert(work, name.as_bytes(), ino, kind)
}

/// Removes an orphan's entry, if it is there. The caller holds the orphan directory's lock.
pub(crate) fn remove(fs: &Mounted, work: &mut Work<'_>, ino: Ino) -> Result<()> {
    let mut dir = load(fs)?;
    let name = entry_name(ino);
    dir::relate_name(work, dir.ino, name.as_bytes());
    match dir::lookup(work, &fs.store.volume, &dir.disk, name.as_bytes())? {
        Some(found) => dir.remove(work, &found),
        None => Ok(()),
    }
}

/// Frees an inode without names unless it is open: in slices if need be, each an operation
/// of its own. Hold no lock and no operation.
///
/// # Errors
/// EIO, EUCLEAN, EROFS; the inode is still an orphan then.
pub(crate) fn finish(fs: &Mounted, ino: Ino, stream: Stream) -> Result<()> {
    while !finish_slice(fs, ino, stream)? {}
    Ok(())
}

/// One operation of it; true if nothing is left to do.
fn finish_slice(fs: &Mounted, ino: Ino, stream: Stream) -> Result<bool> {
    let store = &fs.store;
    let inode = fs.inode(ino);
    let count_xattrs = || -> Result<u64> {
        let mut reader = Current(&store.journal);
        let disk = fs.read_inode(ino)?;
        Ok(xattr::known_blocks(&store.volume, &mut reader, ino, &disk)?.count())
    };
    let counted = {
        let _lock = inode.shared();
        count_xattrs()
    };
    let xattrs = match counted {
        Err(error) if error == Errno::Stale => return Ok(true),
        counted => counted?,
    };
    let attributes = xattrs * xattr::COST_FREE_BLOCK;
    let own = COST_INODE + slots::COST_SLOT + attributes + remove_credits(fs)?;
    let log_bytes = own + slice_bytes(store);
    let mut work = store.begin(stream, Credits::log(log_bytes))?;
    work.use_emergency_space();
    let orphans = fs.inode(store.volume.orphans);
    let mut state = inode.exclusive();
    let _orphans = orphans.exclusive();
    let mut node = match fs.node(ino) {
        Ok(node) => node,
        Err(error) if error == Errno::Stale => return Ok(true),
        Err(error) => return Err(error),
    };
    if node.old.nlink.get() > 0 || inode.is_open() {
        return Ok(true);
    }
    if count_xattrs()? > xattrs {
        return Ok(false);
    }
    node.relate(&mut work);
    truncate::forget(fs, ino, &mut state);
    let done = if node.old.is_dir() {
        dir::free_all(&mut work, ino, &node.old)?;
        true
    } else if crate::ops::has_extents(&node.old) {
        truncate::free_slice(&mut work, &mut node.new)?
    } else {
        true
    };
    if done {
        fs.free_slot(&mut work, &node)?;
        remove(fs, &mut work, ino)?;
    } else {
        node.store(&mut work)?;
    }
    work.commit();
    if done {
        inode.freed();
    }
    Ok(done)
}

/// Gives the orphan directory of an older volume the first leaf that mkfs makes now: the first orphans of two streams
/// would form one order by it. Does without on a full volume.
///
/// # Errors
/// EIO, EUCLEAN, EROFS.
pub(crate) fn prepare(fs: &Mounted) -> Result<()> {
    let mut dir = load(fs)?;
    let volume = &fs.store.volume;
    if btree::find_le(&mut Current(&fs.store.journal), volume, &dir.disk.body, 0)?.is_some() {
        return Ok(());
    }
    let mut work = fs.store.begin(OWN_STREAM, Credits::log(credits(fs)?))?;
    match dir.add_first_leaf(&mut work) {
        Ok(()) => work.commit(),
        Err(full) if full == Errno::NoSpc => return Ok(()),
        Err(error) => return Err(error),
    };
    fs.store.journal.sync_all().map_err(from_journal)
}

/// All orphans that are listed.
pub(crate) fn list(fs: &Mounted, reader: &mut impl Reader) -> Result<Vec<Ino>> {
    let volume = &fs.store.volume;
    let disk = inode::read(volume, reader, volume.orphans)?;
    let mut found = Vec::new();
    let mut from = 0;
    loop {
        let listing = dir::list(reader, volume, &disk, from)?;
        for entry in &listing.entries {
            if &listing.block[entry.name.clone()] != entry_name(entry.ino).as_bytes() {
                return Err(damaged(format!(
                    "the orphan entry of inode {} has a wrong name",
                    entry.ino
                )));
            }
            found.push(entry.ino);
        }
        match listing.next {
            Some(next) => from = next,
            None => return Ok(found),
        }
    }
}

/// Finishes, at mount, the removals and truncations of the last mount.
///
/// # Errors
/// EIO, EUCLEAN in the orphan directory itself. An orphan that is damaged stays, with a warning.
pub(crate) fn recover(fs: &Mounted) -> Result<()> {
    let listed = list(fs, &mut Current(&fs.store.journal))?;
    for ino in listed {
        let result = match fs.read_inode(ino) {
            Ok(disk) if disk.nlink.get() == 0 => finish(fs, ino, OWN_STREAM),
            Ok(_) => fs.resume_truncation(ino),
            Err(error) if error == Errno::Stale => forget_entry(fs, ino),
            Err(error) => Err(error),
        };
        match result {
            Err(error) if error == Errno::Io || error == Errno::RoFs => return Err(error),
            Err(error) => fs.warn(format!("orphan inode {ino} cannot be freed: {error}")),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Removes an entry whose inode does not exist.
fn forget_entry(fs: &Mounted, ino: Ino) -> Result<()> {
    fs.warn(format!(
        "the orphan directory listed inode {ino}, which does not exist"
    ));
    let credits = Credits::log(remove_credits(fs)?);
    let mut work = fs.store.begin(OWN_STREAM, credits)?;
    work.relate(Object::File(ino), Access::Exclusive);
    let orphans = fs.inode(fs.store.volume.orphans);
    let _lock = orphans.exclusive();
    remove(fs, &mut work, ino)?;
    work.commit();
    Ok(())
}
