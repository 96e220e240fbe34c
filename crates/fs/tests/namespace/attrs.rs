//! Attributes: permissions, owners, times, sizes; extended attributes.

use crate::common::*;
use std::sync::Arc;
use steadfast_vfs::{
    Attr, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Result, SetAttr, SetTime, Time,
    XattrMode,
};

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
            secs: 1 << 40,
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
    assert_eq!((found.atime, found.mtime.secs), (time, 1 << 40));
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
fn times_follow_what_is_done() {
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
    // A front end that has checked is believed.
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

#[test]
fn extended_attributes_come_and_go_with_their_block() {
    let mut v = Volume::new(16);
    let r = v.root();
    let free = v.free();
    let f = v.file(r, "f");
    let d = v.dir(r, "d");
    for ino in [f, d] {
        let put = |name: &[u8], value: &[u8]| v.setxattr(&root(), ino, name, value, XattrMode::Any);
        let blocks = v.attr(ino).blocks;
        put(b"user.a", b"1").unwrap();
        assert_eq!(v.attr(ino).blocks, blocks);
        put(b"user.b", &[2; 1000]).unwrap();
        assert_eq!(v.attr(ino).blocks, blocks + 8);
        put(b"trusted.c", b"").unwrap();
        put(b"user.a", b"one").unwrap();
        fails(put(b"user.big", &[0; 5000]), Errno::NoSpc);
        fails(put(b"system.posix_acl_access", b"x"), Errno::Inval);
        fails(put(b"user.", b"x"), Errno::Inval);
        fails(
            v.setxattr(&root(), ino, b"user.a", b"", XattrMode::Create),
            Errno::Exist,
        );
        fails(
            v.setxattr(&root(), ino, b"user.n", b"", XattrMode::Replace),
            Errno::NoData,
        );
    }
    v.remount();
    for ino in [f, d] {
        assert_eq!(v.getxattr(&root(), ino, b"user.a").unwrap(), b"one");
        assert_eq!(v.getxattr(&root(), ino, b"user.b").unwrap(), [2; 1000]);
        fails(v.getxattr(&root(), ino, b"user.none"), Errno::NoData);
        let mut names = v.listxattr(&root(), ino).unwrap();
        names.sort();
        assert_eq!(names, [&b"trusted.c"[..], b"user.a", b"user.b"]);
        assert_eq!(v.listxattr(&user(5), ino).unwrap().len(), 2);
        // Found on a mount with allow_other: who may not read trusted names was shown that they are there.
        let checked = Caller {
            checked: true,
            ..user(5)
        };
        assert_eq!(v.listxattr(&checked, ino).unwrap().len(), 2);
        fails(v.getxattr(&user(5), ino, b"trusted.c"), Errno::NoData);
        fails(
            v.setxattr(&user(5), ino, b"trusted.c", b"", XattrMode::Any),
            Errno::Perm,
        );
        fails(
            v.setxattr(&user(5), ino, b"user.x", b"", XattrMode::Any),
            Errno::Access,
        );
        for name in [&b"trusted.c"[..], b"user.a", b"user.b"] {
            v.removexattr(&root(), ino, name).unwrap();
        }
        fails(v.removexattr(&root(), ino, b"user.a"), Errno::NoData);
        assert!(v.listxattr(&root(), ino).unwrap().is_empty());
        v.setxattr(&root(), ino, b"user.last", b"x", XattrMode::Any)
            .unwrap();
    }
    let node = NewNode {
        kind: FileKind::Fifo,
        perm: 0o644,
        rdev: 0,
    };
    let p = v.mknod(&root(), r, b"p", &node).unwrap().ino;
    fails(
        v.setxattr(&root(), p, b"user.a", b"", XattrMode::Any),
        Errno::Perm,
    );
    v.setxattr(&root(), p, b"trusted.a", b"", XattrMode::Any)
        .unwrap();
    v.unlink(&root(), r, b"p").unwrap();
    v.unlink(&root(), r, b"f").unwrap();
    v.rmdir(&root(), r, b"d").unwrap();
    assert_eq!(v.free(), free, "their blocks go with them");
}

#[test]
fn attributes_take_a_block_only_while_they_do_not_fit_into_their_inode() {
    let mut v = Volume::new(16);
    let r = v.root();
    let f = v.file(r, "f");
    v.write(&root(), f, 0, b"content").unwrap();
    let d = v.dir(r, "d");
    let l = v.symlink(&root(), r, b"l", &[b't'; 80]).unwrap().ino;
    v.sync().unwrap();
    for ino in [f, d, l] {
        let put = |v: &Volume, name: &[u8], len: usize| {
            let before = v.statfs().unwrap().blocks_free;
            let value = vec![len as u8; len];
            v.setxattr(&root(), ino, name, &value, XattrMode::Any)
                .unwrap();
            v.sync().unwrap();
            before as i64 - v.statfs().unwrap().blocks_free as i64
        };
        let free = v.statfs().unwrap().blocks_free;
        let blocks = v.attr(ino).blocks;
        let content = |v: &Volume| {
            let mut names = v.listxattr(&root(), ino).unwrap();
            names.sort();
            let get = |name: Vec<u8>| (v.getxattr(&root(), ino, &name).unwrap().len(), name);
            names.into_iter().map(get).collect::<Vec<_>>()
        };
        // File capabilities, an empty value, a label: each fits.
        for (name, len) in [
            (&b"security.capability"[..], 20),
            (b"security.capability", 24),
            (b"trusted.k", 0),
            (b"security.capability", 20),
        ] {
            assert_eq!(put(&v, name, len), 0);
            assert_eq!(v.attr(ino).blocks, blocks);
        }
        v.removexattr(&root(), ino, b"security.capability").unwrap();
        v.removexattr(&root(), ino, b"trusted.k").unwrap();
        assert_eq!(put(&v, b"security.selinux", 42), 0);
        v.remount();
        assert_eq!(content(&v), [(42, b"security.selinux".to_vec())]);
        assert_eq!(v.attr(ino).blocks, blocks);
        // One byte more takes a block; one less gives it back.
        assert_eq!(put(&v, b"security.selinux", 43), 1);
        assert_eq!(v.attr(ino).blocks, blocks + 8);
        assert_eq!(put(&v, b"trusted.k", 1), 0);
        v.remount();
        let both = [
            (43, b"security.selinux".to_vec()),
            (1, b"trusted.k".to_vec()),
        ];
        assert_eq!(content(&v), both);
        assert_eq!(put(&v, b"security.selinux", 38), 0);
        assert_eq!(v.attr(ino).blocks, blocks + 8, "one byte too many");
        assert_eq!(put(&v, b"security.selinux", 37), -1);
        assert_eq!(v.attr(ino).blocks, blocks);
        assert_eq!(put(&v, b"security.selinux", 3000), 1);
        v.removexattr(&root(), ino, b"security.selinux").unwrap();
        v.sync().unwrap();
        assert_eq!(v.attr(ino).blocks, blocks);
        assert_eq!(v.statfs().unwrap().blocks_free, free);
        v.remount();
        assert_eq!(content(&v), [(1, b"trusted.k".to_vec())]);
        v.removexattr(&root(), ino, b"trusted.k").unwrap();
        assert_eq!(content(&v), []);
    }
    assert_eq!(v.readlink(&root(), l).unwrap(), [b't'; 80]);
    assert_eq!(v.attr(l).blocks, 0, "80 bytes of a target are inline");
    let long = v.symlink(&root(), r, b"m", &[b't'; 81]).unwrap();
    assert_eq!(long.blocks, 8);
}

#[test]
fn a_read_only_mount_shows_everything_and_changes_nothing() {
    let v = Volume::new(16);
    let r = v.root();
    let f = v.file(r, "f");
    v.write(&root(), f, 0, b"hello").unwrap();
    v.sync().unwrap();
    // The log holds what is not checkpointed; it is applied in memory only.
    let image = v.device.to_bytes();
    let device = Arc::new(steadfast_block::MemDevice::from_bytes(&image));
    let mut read_only = options();
    read_only.read_only = true;
    let (fs, _) = steadfast_fs::Fs::mount(device.clone(), &read_only).unwrap();
    assert_eq!(fs.content(fs.look(r, "f").unwrap().ino), b"hello");
    let c = root();
    fails(fs.file_by(&c, r, "g"), Errno::RoFs);
    fails(fs.mkdir(&c, r, b"g", 0o755), Errno::RoFs);
    fails(fs.symlink(&c, r, b"g", b"x"), Errno::RoFs);
    fails(fs.link(&c, f, r, b"g"), Errno::RoFs);
    fails(fs.unlink(&c, r, b"f"), Errno::RoFs);
    fails(
        fs.rename(&c, (r, b"f"), (r, b"g"), Default::default()),
        Errno::RoFs,
    );
    fails(fs.write(&c, f, 0, b"x"), Errno::RoFs);
    fails(fs.append(&c, f, b"x"), Errno::RoFs);
    fails(fs.setattr(&c, f, &perm(0)), Errno::RoFs);
    fails(
        fs.setxattr(&c, f, b"user.a", b"", XattrMode::Any),
        Errno::RoFs,
    );
    fails(fs.access(&c, f, 2), Errno::RoFs);
    fs.open(&c, f).unwrap();
    fs.release(f);
    fs.fsync(&c, f, false).unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
    assert!(device.to_bytes() == image, "nothing was written");
}

/// Story: xfstests generic/020 sets a thousand attributes, which had to lie in one block.
#[test]
fn a_thousand_attributes_come_and_go_with_their_blocks() {
    let mut v = Volume::new(16);
    let r = v.root();
    let (f, d) = (v.file(r, "f"), v.dir(r, "d"));
    let free = v.free();
    let name = |n: usize| format!("user.attribute_{n}").into_bytes();
    let value = |n: usize| format!("value_{n}").into_bytes();
    for ino in [f, d] {
        let blocks = v.attr(ino).blocks;
        for n in 0..1000 {
            v.setxattr(&root(), ino, &name(n), &value(n), XattrMode::Create)
                .unwrap();
        }
        // 31 bytes each: 8 blocks and their index.
        assert_eq!(v.attr(ino).blocks, blocks + 9 * 8);
    }
    v.remount();
    for ino in [f, d] {
        assert_eq!(v.listxattr(&root(), ino).unwrap().len(), 1000);
        for n in 0..1000 {
            assert_eq!(v.getxattr(&root(), ino, &name(n)).unwrap(), value(n));
        }
        // To the limit, where nothing is lost.
        let full = (1000..).find(|n| {
            let set = v.setxattr(&root(), ino, &name(*n), &value(*n), XattrMode::Any);
            set.map_err(|error| assert!(error == Errno::NoSpc)).is_err()
        });
        let full = full.unwrap();
        assert!(full > 2000, "{full} attributes fit");
        assert_eq!(v.listxattr(&root(), ino).unwrap().len(), full);
        for n in (0..full).rev() {
            v.removexattr(&root(), ino, &name(n)).unwrap();
        }
        assert_eq!(v.listxattr(&root(), ino).unwrap().len(), 0);
    }
    assert_eq!(v.free(), free);
    // They go with their inode, also if that is open.
    for (ino, open) in [(f, false), (d, true)] {
        for n in 0..500 {
            v.setxattr(&root(), ino, &name(n), &value(n), XattrMode::Any)
                .unwrap();
        }
        if open {
            v.open(&root(), ino).unwrap();
            v.rmdir(&root(), r, b"d").unwrap();
            v.release(ino);
        } else {
            v.unlink(&root(), r, b"f").unwrap();
        }
    }
    // The orphan directory keeps its first block.
    assert!(v.free() + 1 >= free);
}
