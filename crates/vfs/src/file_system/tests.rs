//! The defaults, on a file system that has the calls without one.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, FileKind, FileSystem, Health, Ino,
    InodeFlags, NewNode, RenameMode, Result, ScrubCursor, Seek, SetAttr, Shutdown, StatFs, Stream,
    Time, Wanted, XattrMode,
};

/// The root, and one file of ten bytes; `sync` fails on demand.
#[derive(Default)]
struct Smallest {
    sync_fails: bool,
}

const ROOT: Ino = 1;
const FILE: Ino = 2;
const GENERATION: u64 = 5;
const BYTES: &[u8; 10] = b"0123456789";

impl FileSystem for Smallest {
    fn root(&self) -> Ino {
        ROOT
    }
    fn lookup(&self, caller: &Caller, _: Ino, name: &[u8]) -> Result<Attr> {
        match name {
            b"file" => self.getattr(caller, FILE),
            _ => Err(Errno::NoEnt.into()),
        }
    }
    fn getattr(&self, _: &Caller, ino: Ino) -> Result<Attr> {
        let (kind, size) = match ino {
            ROOT => (FileKind::Directory, 0),
            FILE => (FileKind::Regular, BYTES.len() as u64),
            _ => return Err(Errno::Stale.into()),
        };
        let [atime, mtime, ctime, btime] = [Time::default(); 4];
        Ok(Attr {
            ino,
            generation: GENERATION,
            kind,
            perm: 0o444,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 1,
            atime,
            mtime,
            ctime,
            btime,
        })
    }
    fn access(&self, _: &Caller, _: Ino, _: u8) -> Result<()> {
        Ok(())
    }
    fn readlink(&self, _: &Caller, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::Inval.into())
    }
    fn read(&self, _: &Caller, _: Ino, _: u64, buf: &mut [u8]) -> Result<usize> {
        let len = BYTES.len().min(buf.len());
        buf[..len].copy_from_slice(&BYTES[..len]);
        Ok(len)
    }
    fn readdir(
        &self,
        _: &Caller,
        _: Ino,
        _: Cookie,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(())
    }
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs::default())
    }
    fn sync(&self) -> Result<()> {
        match self.sync_fails {
            true => Err(Errno::Io.into()),
            false => Ok(()),
        }
    }
}

fn me() -> Caller {
    Caller::root()
}

#[test]
fn changes_are_refused_as_on_a_read_only_mount() {
    let fs = Smallest::default();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let refusals = [
        fs.setattr(&me(), FILE, &SetAttr::default()).err(),
        fs.mknod(&me(), ROOT, b"new", &node).err(),
        fs.mkdir(&me(), ROOT, b"new", 0o700).err(),
        fs.symlink(&me(), ROOT, b"new", b"to").err(),
        fs.link(&me(), FILE, ROOT, b"new").err(),
        fs.unlink(&me(), ROOT, b"file").err(),
        fs.rmdir(&me(), ROOT, b"dir").err(),
        fs.rename(&me(), (ROOT, b"file"), (ROOT, b"new"), RenameMode::Replace)
            .err(),
        fs.write(&me(), FILE, 0, b"x").err(),
        fs.append(&me(), FILE, b"x").err(),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        assert!(refusal.unwrap() == Errno::RoFs, "{number}");
    }
}

#[test]
fn what_is_optional_is_not_offered() {
    let fs = Smallest::default();
    let refusals = [
        fs.fallocate(&me(), FILE, AllocateMode::KeepSize, 0, 1)
            .err(),
        fs.setxattr(&me(), FILE, b"user.a", b"", XattrMode::Any)
            .err(),
        fs.removexattr(&me(), FILE, b"user.a").err(),
        fs.flags(&me(), FILE).err(),
        fs.set_flags(&me(), FILE, InodeFlags::NONE).err(),
        fs.trim(0..1, 0).err(),
        fs.freeze(Duration::ZERO).err(),
        fs.scrub(ScrubCursor::default(), 1, true).err(),
        fs.shutdown(Shutdown::Everything).err(),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        assert!(refusal.unwrap() == Errno::OpNotSupp, "{number}");
    }
    assert!(fs.streams().is_none() && !fs.thaw() && fs.counters().is_empty());
    assert_eq!(fs.health(), Health::default());
    assert!(fs.accessed(&me(), FILE).is_ok());
}

#[test]
fn an_inode_has_no_extended_attributes() {
    let fs = Smallest::default();
    assert!(fs.getxattr(&me(), FILE, b"user.a").unwrap_err() == Errno::NoData);
    assert!(fs.listxattr(&me(), FILE).unwrap().is_empty());
}

#[test]
fn an_inode_that_is_there_can_be_opened_and_another_is_stale() {
    let fs = Smallest::default();
    assert!(fs.open(&me(), FILE).is_ok());
    assert!(fs.open(&me(), 3).unwrap_err() == Errno::Stale);
    assert!(fs.open_generation(&me(), FILE, GENERATION).is_ok());
    let other = fs.open_generation(&me(), FILE, GENERATION + 1);
    assert!(other.unwrap_err() == Errno::Stale);
    fs.release(FILE);
}

#[test]
fn a_file_is_data_up_to_its_size() {
    let fs = Smallest::default();
    let end = BYTES.len() as u64;
    for at in [0, 4, end - 1] {
        assert_eq!(fs.seek(&me(), FILE, at, Seek::Data).unwrap(), at);
        assert_eq!(fs.seek(&me(), FILE, at, Seek::Hole).unwrap(), end);
    }
    for whence in [Seek::Data, Seek::Hole] {
        assert!(fs.seek(&me(), FILE, end, whence).unwrap_err() == Errno::NxIo);
    }
}

#[test]
fn everything_is_in_memory() {
    let mut looks = 0;
    assert!(Smallest::default().in_memory(&mut || looks += 1));
    assert_eq!(looks, 1);
}

#[test]
fn each_way_to_sync_is_a_sync_of_everything() {
    let wanted = [Wanted {
        stream: Stream(1),
        ino: FILE,
        data_only: false,
    }];
    for sync_fails in [false, true] {
        let fs = Smallest { sync_fails };
        let outcomes = [
            fs.fsync(&me(), FILE, true),
            fs.fsync_together(&wanted),
            fs.sync_store(),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.is_err(), sync_fails);
            assert!(outcome.err().is_none_or(|e| e == Errno::Io));
        }
    }
}
