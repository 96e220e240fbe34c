//! Extended attributes and the blocks that they take; a read-only mount.

use super::common::*;
use std::sync::Arc;
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode, SetAttr, XattrMode};

fn perm(perm: u16) -> SetAttr {
    SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    }
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
        // Found on a mount with allow_other: a caller that may not read trusted names saw that they exist.
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
    // The log holds changes that are not checkpointed; it is applied in memory only.
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
