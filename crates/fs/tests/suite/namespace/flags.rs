//! Flags of files and directories: kept, enforced for every caller, root included, and inherited.
//! The file system on persistent memory runs these tests, too.

use super::common::*;
use steadfast_vfs::{
    AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, InodeFlags, NewNode, RenameMode,
    SetAttr, SetTime, Time, XattrMode,
};

const IMMUTABLE: InodeFlags = InodeFlags::IMMUTABLE;
const APPEND: InodeFlags = InodeFlags::APPEND;

fn flag(v: &Volume, ino: Ino, flags: InodeFlags) {
    v.set_flags(&root(), ino, flags).unwrap();
    assert_eq!(v.flags(&root(), ino).unwrap(), flags);
}

fn refused<T: std::fmt::Debug>(result: steadfast_vfs::Result<T>) {
    fails(result, Errno::Perm);
}

fn mtime(time: SetTime) -> SetAttr {
    SetAttr {
        mtime: Some(time),
        ..SetAttr::default()
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

#[test]
fn an_immutable_file_stays_as_it_is() {
    let mut v = Volume::new(16);
    let (r, me) = (v.root(), &root());
    let f = v.file(r, "f");
    v.write(me, f, 0, b"content").unwrap();
    flag(&v, f, IMMUTABLE);
    v.sync().unwrap();
    v.cut();
    let before = v.attr(f);
    let checked = Caller {
        checked: true,
        ..root()
    };
    for me in [&root(), &checked] {
        refused(v.write(me, f, 0, b"x"));
        refused(v.append(me, f, b"x"));
        refused(v.setattr(me, f, &size(0)));
        refused(v.setattr(me, f, &mtime(SetTime::Now)));
        refused(v.setattr(me, f, &mtime(SetTime::At(Time::default()))));
        let chmod = SetAttr {
            perm: Some(0o777),
            ..SetAttr::default()
        };
        refused(v.setattr(me, f, &chmod));
        refused(v.fallocate(me, f, AllocateMode::Allocate, 0, 9000));
        refused(v.fallocate(me, f, AllocateMode::PunchHole, 0, 4096));
        refused(v.setxattr(me, f, b"user.k", b"v", XattrMode::Any));
        refused(v.unlink(me, r, b"f"));
        refused(v.link(me, f, r, b"g"));
        refused(v.rename(me, (r, b"f"), (r, b"g"), RenameMode::Replace));
        let g = v.file(r, "g");
        refused(v.rename(me, (r, b"g"), (r, b"f"), RenameMode::Replace));
        refused(v.rename(me, (r, b"g"), (r, b"f"), RenameMode::Exchange));
        v.unlink(me, r, b"g").unwrap();
        assert!(v.getattr(me, g).is_err());
        refused(v.access(me, f, 2));
        v.access(me, f, 4).unwrap();
    }
    assert_eq!(v.attr(f), before);
    assert_eq!(v.content(f), b"content");
    flag(&v, f, InodeFlags::NONE);
    v.write(me, f, 0, b"x").unwrap();
    v.unlink(me, r, b"f").unwrap();
}

#[test]
fn an_append_only_file_takes_more_and_gives_nothing_back() {
    let v = Volume::new(16);
    let (r, me) = (v.root(), &root());
    let f = v.file(r, "log");
    v.write(me, f, 0, b"one ").unwrap();
    flag(&v, f, APPEND);
    assert_eq!(v.append(me, f, b"two ").unwrap().0, 4);
    v.write(me, f, 8, b"three").unwrap();
    refused(v.write(me, f, 12, b"x"));
    refused(v.setattr(me, f, &size(20)));
    refused(v.fallocate(me, f, AllocateMode::ZeroRange, 0, 4));
    v.fallocate(me, f, AllocateMode::KeepSize, 0, 9000).unwrap();
    v.setattr(me, f, &mtime(SetTime::Now)).unwrap();
    refused(v.setattr(me, f, &mtime(SetTime::At(Time::default()))));
    refused(v.unlink(me, r, b"log"));
    assert_eq!(v.content(f), b"one two three");

    let d = v.dir(r, "d");
    v.file(d, "old");
    flag(&v, d, APPEND);
    v.file(d, "new");
    refused(v.unlink(me, d, b"old"));
    refused(v.rename(me, (d, b"old"), (d, b"older"), RenameMode::Replace));
    refused(v.rename(me, (d, b"old"), (r, b"old"), RenameMode::Replace));
    let g = v.file(r, "g");
    v.rename(me, (r, b"g"), (d, b"g"), RenameMode::Replace)
        .unwrap();
    assert_eq!(v.look(d, "g").unwrap().ino, g);
    flag(&v, d, IMMUTABLE);
    refused(v.file_by(me, d, "more"));
    refused(v.mkdir(me, d, b"more", 0o755));
    refused(v.symlink(me, d, b"more", b"x"));
    refused(v.link(me, g, d, b"more"));
    refused(v.rmdir(me, r, b"d"));
    // Files inside can be changed all the same.
    v.write(me, g, 0, b"x").unwrap();
    for (ino, dir) in [(d, true), (f, false)] {
        flag(&v, ino, InodeFlags::NONE);
        assert_eq!(v.attr(ino).kind == FileKind::Directory, dir);
    }
}

#[test]
fn owners_set_what_does_not_bind_them_and_new_inodes_inherit_that() {
    let v = Volume::new(16);
    let (r, me) = (v.root(), &root());
    let open = SetAttr {
        perm: Some(0o777),
        ..SetAttr::default()
    };
    v.setattr(me, r, &open).unwrap();
    let mine = user(5);
    let d = v.mkdir(&mine, r, b"d", 0o755).unwrap().ino;
    let quiet = InodeFlags::NODUMP | InodeFlags::NOATIME;
    v.set_flags(&mine, d, quiet).unwrap();
    refused(v.set_flags(&mine, d, quiet | IMMUTABLE));
    refused(v.set_flags(&user(6), d, InodeFlags::NONE));
    flag(&v, d, quiet | APPEND);
    refused(v.set_flags(&mine, d, quiet));
    let f = v.file(d, "f");
    assert_eq!(
        v.flags(me, f).unwrap(),
        quiet,
        "inherited: only flags that restrict no caller"
    );
    assert_eq!(v.flags(me, v.dir(d, "sub")).unwrap(), quiet);
    let before = v.attr(f).atime;
    v.accessed(me, f).unwrap();
    assert_eq!(v.attr(f).atime, before);
    let l = v.symlink(me, r, b"l", b"x").unwrap().ino;
    fails(v.flags(me, l), Errno::OpNotSupp);
    let fifo = NewNode {
        kind: FileKind::Fifo,
        perm: 0o644,
        rdev: 0,
    };
    let p = v.mknod(me, r, b"p", &fifo).unwrap().ino;
    fails(v.set_flags(me, p, IMMUTABLE), Errno::OpNotSupp);
    flag(&v, d, InodeFlags::NONE);
}
