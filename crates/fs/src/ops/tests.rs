//! Changes by others between an operation's look and its locks. Inode numbers are used again at once, so
//! each story has a number that means another inode under the locks.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::walk::gap;
use crate::fsck::{FsckOptions, Outcome, fsck};
use crate::mkfs::mkfs;
use crate::mounted::Mounted;
use crate::options::MountOptions;
use std::sync::Arc;
use steadfast_block::MemDevice;
use steadfast_vfs::{
    Caller, Errno, FileKind, Ino, NewNode, RenameMode, Result, SetAttr, XattrMode,
};

struct World {
    device: Arc<MemDevice>,
    fs: Arc<Mounted>,
    root: Ino,
}

impl World {
    fn new() -> World {
        let device = Arc::new(MemDevice::new(4096));
        mkfs(&*device, &crate::testing::options(), &mut |_, _| {}).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let (fs, _) = Mounted::mount(Arc::clone(&device) as _, &options).unwrap();
        let root = fs.store.volume.root;
        World { device, fs, root }
    }

    /// Runs `call`, and `other` between its look and its locks.
    fn between<T>(
        &self,
        other: impl FnOnce(&Mounted) + 'static,
        call: impl FnOnce(&Mounted) -> T,
    ) -> T {
        let fs = Arc::clone(&self.fs);
        gap::next(move || other(&fs));
        let result = call(&self.fs);
        assert!(gap::is_over(), "no operation came between");
        result
    }

    fn end(self) {
        self.fs.store.journal.sync_all().unwrap();
        self.fs.unmount().unwrap();
        let report = fsck(self.device, &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }
}

fn me() -> Caller {
    Caller::root()
}

fn file(fs: &Mounted, dir: Ino, name: &[u8]) -> Ino {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    fs.op_mknod(&me(), dir, name, &node).unwrap().ino
}

fn dir(fs: &Mounted, parent: Ino, name: &[u8]) -> Ino {
    fs.op_mkdir(&me(), parent, name, 0o755).unwrap().ino
}

fn unlink(fs: &Mounted, dir: Ino, name: &[u8]) {
    fs.op_remove(&me(), dir, name, false).unwrap();
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, errno: Errno) {
    match result {
        Err(error) if error == errno => {}
        other => panic!("expected {errno:?}, got {other:?}"),
    }
}

/// Story: a lookup let go of the directory before it read the inode, and returned the file that had
/// got the number meanwhile.
#[test]
fn a_lookup_never_returns_the_inode_that_took_the_number() {
    let world = World::new();
    let root = world.root;
    let old = file(&world.fs, root, b"old");
    // Another thread writes to the file, so that the lookup has to wait for its lock.
    let inode: &'static _ = Box::leak(Box::new(world.fs.inode(old)));
    let writing = inode.exclusive();
    let other = move |fs: &Mounted| {
        drop(writing);
        unlink(fs, root, b"old");
        assert_eq!(file(fs, root, b"new"), old, "the number is used again");
    };
    let found = world.between(other, |fs| fs.op_lookup(&me(), root, b"old"));
    fails(found, Errno::NoEnt);
    world.end();
}

/// The same, but the name is there again.
#[test]
fn a_lookup_that_waited_returns_what_the_name_means_now() {
    let world = World::new();
    let root = world.root;
    let old = file(&world.fs, root, b"name");
    let inode: &'static _ = Box::leak(Box::new(world.fs.inode(old)));
    let writing = inode.exclusive();
    let other = move |fs: &Mounted| {
        drop(writing);
        unlink(fs, root, b"name");
        assert_eq!(dir(fs, root, b"name"), old);
    };
    let found = world.between(other, |fs| fs.op_lookup(&me(), root, b"name"));
    assert_eq!(found.unwrap().kind, FileKind::Directory);
    world.end();
}

/// Story: the plan was made for a file, and only numbers were compared: a directory with the file's
/// number moved to another parent without the lock of such moves, into itself.
#[test]
fn a_rename_that_was_planned_for_a_file_moves_no_directory_into_itself() {
    let world = World::new();
    let root = world.root;
    let from = dir(&world.fs, root, b"from");
    let to = dir(&world.fs, root, b"to");
    let planned = file(&world.fs, from, b"a");
    let other = move |fs: &Mounted| {
        unlink(fs, from, b"a");
        assert_eq!(dir(fs, from, b"a"), planned);
        fs.op_rename(&me(), (root, b"to"), (planned, b"to"), RenameMode::Replace)
            .unwrap();
    };
    let renamed = world.between(other, |fs| {
        fs.op_rename(&me(), (from, b"a"), (to, b"a"), RenameMode::Replace)
    });
    fails(renamed, Errno::Inval);
    world.end();
}

#[test]
fn a_removal_takes_what_the_name_means_under_the_locks() {
    let world = World::new();
    let root = world.root;
    let planned = file(&world.fs, root, b"a");
    let other = move |fs: &Mounted| {
        unlink(fs, root, b"a");
        assert_eq!(dir(fs, root, b"a"), planned);
    };
    let removed = world.between(other, |fs| fs.op_remove(&me(), root, b"a", false));
    fails(removed, Errno::IsDir);
    let other = move |fs: &Mounted| {
        fs.op_remove(&me(), root, b"a", true).unwrap();
        assert_eq!(file(fs, root, b"b"), planned);
    };
    let removed = world.between(other, |fs| fs.op_remove(&me(), root, b"a", true));
    fails(removed, Errno::NoEnt);
    assert!(world.fs.op_lookup(&me(), root, b"b").is_ok());
    world.end();
}

/// Story: a call names its inode by number, and changed another file that had got the number.
#[test]
fn a_call_by_number_changes_no_inode_that_took_the_number() {
    let chmod = SetAttr {
        perm: Some(0o7),
        ..SetAttr::default()
    };
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    type Call = Box<dyn Fn(&Mounted, Ino) -> Result<()>>;
    let calls: [Call; 4] = [
        Box::new(move |fs, ino| fs.op_setattr(&me(), ino, &chmod).map(drop)),
        Box::new(move |fs, ino| fs.op_setattr(&me(), ino, &cut).map(drop)),
        Box::new(|fs, ino| {
            fs.op_link(&me(), ino, fs.store.volume.root, b"link")
                .map(drop)
        }),
        Box::new(|fs, ino| {
            fs.op_setxattr(&me(), ino, b"user.a", b"1", XattrMode::Any)
                .map(drop)
        }),
    ];
    for call in calls {
        let world = World::new();
        let root = world.root;
        let old = file(&world.fs, root, b"old");
        let other = move |fs: &Mounted| {
            unlink(fs, root, b"old");
            assert_eq!(file(fs, root, b"new"), old);
            fs.write_file(&me(), old, Some(0), b"content").unwrap();
        };
        fails(world.between(other, |fs| call(fs, old)), Errno::Stale);
        let new = world.fs.op_lookup(&me(), root, b"new").unwrap();
        assert_eq!((new.perm, new.nlink, new.size), (0o644, 1, 7));
        assert!(world.fs.op_listxattr(&me(), old).unwrap().is_empty());
        world.end();
    }
}

/// The same of a directory: the new entry went into another one.
#[test]
fn a_name_is_added_to_no_directory_that_took_the_number() {
    let world = World::new();
    let root = world.root;
    let old = dir(&world.fs, root, b"old");
    let other = move |fs: &Mounted| {
        fs.op_remove(&me(), root, b"old", true).unwrap();
        assert_eq!(dir(fs, root, b"new"), old);
    };
    let made = world.between(other, |fs| fs.op_mkdir(&me(), old, b"sub", 0o755));
    fails(made, Errno::Stale);
    fails(world.fs.op_lookup(&me(), old, b"sub"), Errno::NoEnt);
    world.end();
}

/// A directory that was removed while it was open has nothing above it any more: the number
/// that it kept may be another inode.
#[test]
fn nothing_is_above_a_directory_that_was_removed() {
    let world = World::new();
    let above = dir(&world.fs, world.root, b"above");
    let below = dir(&world.fs, above, b"below");
    let fs = &world.fs;
    assert_eq!(fs.op_lookup(&me(), below, b"..").unwrap().ino, above);
    fs.op_open(below, None).unwrap();
    fs.op_remove(&me(), above, b"below", true).unwrap();
    fs.op_remove(&me(), world.root, b"above", true).unwrap();
    assert_eq!(file(fs, world.root, b"file"), above);
    fails(fs.op_lookup(&me(), below, b".."), Errno::NoEnt);
    fs.op_release(below);
    world.end();
}
