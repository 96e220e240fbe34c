//! Attributes: permissions, owners, times, sizes. The file system on persistent memory runs these tests, too.

use super::common::*;
use std::sync::Arc;
use steadfast_vfs::{Attr, Caller, Errno, FileSystem, Ino, Result, SetAttr, SetTime, Time};

fn set(v: &Volume, caller: &Caller, ino: Ino, set: SetAttr) -> Result<Attr> {
    v.setattr(caller, ino, &set)
}

fn perm(perm: u16) -> SetAttr {
    SetAttr {
        perm: Some(perm),
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
fn all_attributes_change_at_once_and_survive() {
    let mut v = Volume::new(16);
    let f = v.file(v.root(), "f");
    let before = v.attr(f);
    let time = Time {
        secs: -5,
        nanos: 999_999_999,
    };
    let all = SetAttr {
        perm: Some(0o4711),
        uid: Some(3),
        gid: Some(4),
        size: Some(10_000),
        atime: Some(SetTime::At(time)),
        mtime: Some(SetTime::At(Time {
            secs: 1 << 33,
            nanos: 1,
        })),
        guard: Some(before.ctime),
        by_handle: false,
    };
    let after = set(&v, &root(), f, all).unwrap();
    fails(set(&v, &root(), f, all), Errno::Again);
    v.remount();
    let found = v.attr(f);
    assert_eq!(found, after);
    assert_eq!(
        (found.perm, found.uid, found.gid, found.size),
        (0o711, 3, 4, 10_000)
    );
    assert_eq!((found.atime, found.mtime.secs), (time, 1 << 33));
    assert!(found.ctime > before.ctime && found.btime == before.btime);
    assert_eq!(v.content(f), vec![0; 10_000]);
}

#[test]
fn a_failed_change_of_several_attributes_changes_none() {
    let v = Volume::new(16);
    let d = v.dir(v.root(), "d");
    let f = v.file(d, "f");
    let (dir, file) = (v.attr(d), v.attr(f));
    fails(
        set(
            &v,
            &root(),
            d,
            SetAttr {
                perm: Some(0),
                ..size(3)
            },
        ),
        Errno::IsDir,
    );
    fails(
        set(
            &v,
            &root(),
            f,
            SetAttr {
                perm: Some(0),
                ..size(u64::MAX)
            },
        ),
        Errno::FBig,
    );
    fails(
        set(
            &v,
            &user(9),
            f,
            SetAttr {
                mtime: Some(SetTime::Now),
                ..perm(0o777)
            },
        ),
        Errno::Perm,
    );
    assert_eq!((v.attr(d), v.attr(f)), (dir, file));
    set(&v, &root(), f, SetAttr::default()).unwrap();
    assert_eq!(v.attr(f), file);
}

#[test]
fn times_follow_the_calls() {
    let v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let mut last = v.attr(d);
    let mut changed = |what: &str| {
        let now = v.attr(d);
        assert!(
            now.mtime > last.mtime && now.ctime > last.ctime,
            "after {what}"
        );
        last = now;
    };
    let f = v.file(d, "f");
    changed("create");
    v.link(&root(), f, d, b"g").unwrap();
    changed("link");
    v.rename(&root(), (d, b"g"), (d, b"h"), Default::default())
        .unwrap();
    changed("rename");
    v.unlink(&root(), d, b"h").unwrap();
    changed("unlink");
    v.dir(d, "e");
    changed("mkdir");
    v.rmdir(&root(), d, b"e").unwrap();
    changed("rmdir");
    v.symlink(&root(), d, b"s", b"t").unwrap();
    changed("symlink");
    let a = v.attr(f);
    let b = set(&v, &root(), f, perm(0o600)).unwrap();
    assert!(b.ctime > a.ctime && b.mtime == a.mtime);
    let c = set(&v, &root(), f, size(0)).unwrap();
    assert!(c.ctime > b.ctime && c.mtime > b.mtime);
    v.write(&root(), f, 0, b"x").unwrap();
    assert!(v.attr(f).mtime > c.mtime);
    let e = v.attr(f);
    v.link(&root(), f, d, b"l").unwrap();
    assert!(v.attr(f).ctime > e.ctime && v.attr(f).mtime == e.mtime);
}

#[test]
fn permissions_are_asked_for() {
    let v = Volume::new(16);
    let r = v.root();
    let me = user(5);
    let d = v.dir(r, "d");
    let f = v.file(d, "f");
    fails(v.file_by(&me, d, "x"), Errno::Access);
    fails(v.unlink(&me, d, b"f"), Errno::Access);
    fails(v.access(&me, f, 2), Errno::Access);
    v.access(&me, f, 4).unwrap();
    fails(set(&v, &me, f, perm(0o777)), Errno::Perm);
    fails(set(&v, &me, f, size(0)), Errno::Access);
    set(
        &v,
        &me,
        f,
        SetAttr {
            by_handle: true,
            ..size(0)
        },
    )
    .unwrap();
    set(&v, &root(), d, perm(0o711)).unwrap();
    v.lookup(&me, d, b"f").unwrap();
    fails(v.readdir(&me, d, 0, &mut |_| true), Errno::Access);
    set(&v, &root(), d, perm(0o744)).unwrap();
    fails(v.lookup(&me, d, b"f"), Errno::Access);
    v.readdir(&me, d, 0, &mut |_| true).unwrap();
    // Checks of a front end are trusted.
    v.lookup(
        &Caller {
            checked: true,
            ..me.clone()
        },
        d,
        b"f",
    )
    .unwrap();
    set(&v, &root(), d, perm(0o1777)).unwrap();
    fails(v.unlink(&me, d, b"f"), Errno::Perm);
    v.file_by(&me, d, "mine").unwrap();
    fails(v.unlink(&user(6), d, b"mine"), Errno::Perm);
    v.unlink(&me, d, b"mine").unwrap();
}

#[test]
fn set_id_bits_and_groups_follow_linux() {
    let v = Volume::new(16);
    let r = v.root();
    let me = Caller {
        groups: Arc::from([7]),
        ..user(5)
    };
    let d = v.dir(r, "d");
    set(
        &v,
        &root(),
        d,
        SetAttr {
            gid: Some(50),
            ..perm(0o2777)
        },
    )
    .unwrap();
    let f = v.file_by(&me, d, "f").unwrap();
    assert_eq!((f.uid, f.gid), (5, 50));
    let sub = v.mkdir(&me, d, b"sub", 0o755).unwrap();
    assert_eq!((sub.gid, sub.perm), (50, 0o2755));
    set(&v, &root(), f.ino, perm(0o6775)).unwrap();
    v.write(&me, f.ino, 0, b"x").unwrap();
    assert_eq!(v.attr(f.ino).perm, 0o775);
    set(&v, &root(), f.ino, perm(0o6775)).unwrap();
    v.write(&root(), f.ino, 0, b"x").unwrap();
    assert_eq!(v.attr(f.ino).perm, 0o6775);
    // Only a member may set the group's bit; a change of owner clears both.
    assert_eq!(set(&v, &me, f.ino, perm(0o2775)).unwrap().perm, 0o775);
    set(
        &v,
        &me,
        f.ino,
        SetAttr {
            gid: Some(7),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(set(&v, &me, f.ino, perm(0o6775)).unwrap().perm, 0o6775);
    let to = SetAttr {
        uid: Some(9),
        ..SetAttr::default()
    };
    assert_eq!(set(&v, &root(), f.ino, to).unwrap().perm, 0o775);
}
