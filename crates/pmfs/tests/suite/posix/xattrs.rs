//! Extended attributes: in the inode or in pages, with every size, and gone with their inode.

use super::common::*;
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Errno, FileKind, FileSystem, Ino, NewNode, SetAttr, XattrMode};

fn put(v: &Volume, ino: Ino, name: &[u8], value: &[u8]) -> steadfast_vfs::Result<()> {
    v.setxattr(&root(), ino, name, value, XattrMode::Any)
}

#[test]
fn a_short_set_takes_no_page_if_the_inode_has_room_for_it() {
    let mut v = Volume::new(2);
    let r = v.root();
    let (f, d) = (v.file(r, "f"), v.dir(r, "d"));
    let p = NewNode {
        kind: FileKind::Fifo,
        perm: 0o600,
        rdev: 0,
    };
    let p = v.mknod(&root(), r, b"p", &p).unwrap().ino;
    let free = v.free();
    for ino in [f, d, p] {
        let blocks = v.attr(ino).blocks;
        // The line of the inode holds the old set until the new one counts: they alternate.
        for round in 0..6u8 {
            put(&v, ino, b"security.capability", &[round; 20]).unwrap();
            let in_page = round % 2;
            assert_eq!(v.attr(ino).blocks, blocks + 8 * u64::from(in_page));
            v.cut();
            let value = v.getxattr(&root(), ino, b"security.capability");
            assert_eq!(value.unwrap(), [round; 20]);
        }
        v.removexattr(&root(), ino, b"security.capability").unwrap();
        assert_eq!(v.attr(ino).blocks, blocks);
        assert!(v.listxattr(&root(), ino).unwrap().is_empty());
    }
    assert_eq!(v.free(), free);
}

#[test]
fn attributes_of_a_symlink_are_beside_its_target() {
    let mut v = Volume::new(2);
    let r = v.root();
    for target in [&b"short"[..], &[b't'; 40], &[b't'; 41], &[b't'; 4095]] {
        let l = v.symlink(&root(), r, b"l", target).unwrap().ino;
        fails(put(&v, l, b"user.a", b"1"), Errno::Perm);
        put(&v, l, b"trusted.a", b"1").unwrap();
        put(&v, l, b"security.b", &[2; 5000]).unwrap();
        put(&v, l, b"trusted.a", b"2").unwrap();
        v.cut();
        assert_eq!(v.readlink(&root(), l).unwrap(), target);
        assert_eq!(v.getxattr(&root(), l, b"trusted.a").unwrap(), b"2");
        assert_eq!(v.getxattr(&root(), l, b"security.b").unwrap(), [2; 5000]);
        v.removexattr(&root(), l, b"security.b").unwrap();
        v.removexattr(&root(), l, b"trusted.a").unwrap();
        assert_eq!(v.readlink(&root(), l).unwrap(), target);
        v.unlink(&root(), r, b"l").unwrap();
    }
}

#[test]
fn values_of_every_size_are_kept_up_to_the_largest() {
    let mut v = Volume::new(4);
    let r = v.root();
    let f = v.file(r, "f");
    let free = v.free();
    let value = |len: usize| (0..len).map(|at| at as u8).collect::<Vec<u8>>();
    for len in [
        0, 1, 30, 31, 127, 128, 4000, 4083, 4084, 4085, 16_383, 16_384, 65_536,
    ] {
        put(&v, f, b"user.k", &value(len)).unwrap();
        v.cut();
        assert_eq!(v.getxattr(&root(), f, b"user.k").unwrap(), value(len));
    }
    fails(put(&v, f, b"user.k", &value(65_537)), Errno::Range);
    put(&v, f, b"user.l", &value(3000)).unwrap();
    fails(put(&v, f, b"user.m", &value(3000)), Errno::NoSpc);
    assert_eq!(v.listxattr(&root(), f).unwrap(), [b"user.k", b"user.l"]);
    assert_eq!(v.getxattr(&root(), f, b"user.k").unwrap(), value(65_536));
    v.unlink(&root(), r, b"f").unwrap();
    assert_eq!(v.free(), free);
}

#[test]
fn a_thousand_attributes_come_and_go() {
    let mut v = Volume::new(4);
    let r = v.root();
    let name = |n: usize| format!("user.attribute_{n}").into_bytes();
    let value = |n: usize| format!("value_{n}").into_bytes();
    let (f, d) = (v.file(r, "f"), v.dir(r, "d"));
    let free = v.free();
    for ino in [f, d] {
        for n in 0..1000 {
            let set = v.setxattr(&root(), ino, &name(n), &value(n), XattrMode::Create);
            set.unwrap();
        }
    }
    v.remount();
    for ino in [f, d] {
        assert_eq!(v.listxattr(&root(), ino).unwrap().len(), 1000);
        for n in 0..1000 {
            assert_eq!(v.getxattr(&root(), ino, &name(n)).unwrap(), value(n));
            v.removexattr(&root(), ino, &name(n)).unwrap();
        }
    }
    assert_eq!(v.free(), free);
}

fn list(users: u32, perm: u8) -> Vec<u8> {
    let mut entries = vec![(Who::Owner, 6)];
    entries.extend((1..=users).map(|uid| (Who::User(uid), perm)));
    entries.extend([(Who::OwningGroup, 4), (Who::Mask, 7), (Who::Other, 0)]);
    let entry = |(who, perm)| Entry { who, perm };
    let acl = Acl::new(entries.into_iter().map(entry).collect());
    acl.unwrap().to_xattr()
}

#[test]
fn acls_of_all_sizes_decide_and_are_inherited() {
    let mut v = Volume::new(4);
    let r = v.root();
    for users in [1, 5, 400, 3000] {
        let d = v.dir(r, "d");
        put(&v, d, XATTR_ACCESS, &list(users, 7)).unwrap();
        put(&v, d, XATTR_DEFAULT, &list(users, 6)).unwrap();
        put(&v, d, b"user.other", b"kept").unwrap();
        v.cut();
        v.access(&user(users), d, 7).unwrap();
        fails(v.access(&user(users + 1), d, 1), Errno::Access);
        let f = v.file(d, "f");
        assert_eq!(
            v.getxattr(&root(), f, XATTR_ACCESS).unwrap().len() as u32,
            4 + 8 * (users + 4)
        );
        // The part of the mask that a file with mode 644 gives to a group.
        v.access(&user(users), f, 4).unwrap();
        fails(v.access(&user(users), f, 2), Errno::Access);
        fails(v.access(&user(users + 1), f, 4), Errno::Access);
        let chmod = SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        };
        assert_eq!(v.setattr(&root(), f, &chmod).unwrap().perm, 0o600);
        v.cut();
        fails(v.access(&user(users), f, 4), Errno::Access);
        let sub = v.dir(d, "sub");
        assert_eq!(
            v.getxattr(&root(), sub, XATTR_DEFAULT).unwrap(),
            list(users, 6)
        );
        assert_eq!(v.getxattr(&root(), d, b"user.other").unwrap(), b"kept");
        v.unlink(&root(), d, b"f").unwrap();
        v.rmdir(&root(), d, b"sub").unwrap();
        v.rmdir(&root(), r, b"d").unwrap();
    }
    let f = v.file(r, "f");
    fails(put(&v, f, XATTR_ACCESS, &list(9000, 7)), Errno::Range);
}
