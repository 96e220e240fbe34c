//! POSIX ACLs: set, enforced, inherited, in step with the mode. The file system on persistent memory runs these tests, too.

use super::common::*;
use std::sync::Arc;
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, Ino, NewNode, SetAttr, XattrMode};

fn list(entries: &[(Who, u8)]) -> Vec<u8> {
    let entries = entries.iter().map(|&(who, perm)| Entry { who, perm });
    Acl::new(entries.collect()).unwrap().to_xattr()
}

/// rw-, user 5 with `perm`, r--, a mask of rw-, nothing for others.
fn for_five(perm: u8) -> Vec<u8> {
    list(&[
        (Who::Owner, 6),
        (Who::User(5), perm),
        (Who::OwningGroup, 4),
        (Who::Mask, 6),
        (Who::Other, 0),
    ])
}

fn set(v: &Volume, ino: Ino, name: &[u8], value: &[u8]) -> steadfast_vfs::Result<()> {
    v.setxattr(&root(), ino, name, value, XattrMode::Any)
}

fn get(v: &Volume, ino: Ino, name: &[u8]) -> Acl {
    let value = v.getxattr(&root(), ino, name).unwrap();
    Acl::from_xattr(&value).unwrap().unwrap()
}

fn chmod(perm: u16) -> SetAttr {
    SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    }
}

#[test]
fn an_access_acl_decides_and_the_mode_follows_it() {
    let mut v = Volume::new(16);
    let r = v.root();
    let f = v.file(r, "f");
    set(&v, f, XATTR_ACCESS, &for_five(6)).unwrap();
    assert_eq!(v.attr(f).perm, 0o660, "the group bits are the mask");
    v.remount();
    v.access(&user(5), f, 6).unwrap();
    fails(v.access(&user(5), f, 1), Errno::Access);
    fails(v.access(&user(6), f, 4), Errno::Access);
    let in_group = Caller {
        groups: Arc::from([0]),
        ..user(6)
    };
    v.access(&in_group, f, 4).unwrap();
    fails(v.access(&in_group, f, 2), Errno::Access);
    assert_eq!(v.listxattr(&user(6), f).unwrap(), [XATTR_ACCESS]);

    // chmod changes the mask, not the entries that it masks.
    v.setattr(&root(), f, &chmod(0o640)).unwrap();
    fails(v.access(&user(5), f, 2), Errno::Access);
    let acl = get(&v, f, XATTR_ACCESS);
    assert_eq!(acl.perm(Who::Mask), Some(4));
    assert_eq!(acl.perm(Who::User(5)), Some(6));
    assert_eq!(acl.perm(Who::OwningGroup), Some(4));

    // A list that says no more than the mode is not kept.
    let minimal = list(&[(Who::Owner, 6), (Who::OwningGroup, 0), (Who::Other, 4)]);
    set(&v, f, XATTR_ACCESS, &minimal).unwrap();
    assert_eq!(v.attr(f).perm, 0o604);
    fails(v.getxattr(&root(), f, XATTR_ACCESS), Errno::NoData);
    fails(v.removexattr(&root(), f, XATTR_ACCESS), Errno::NoData);
}

#[test]
fn search_and_change_of_a_directory_go_by_its_acl() {
    let v = Volume::new(16);
    let d = v.dir(v.root(), "d");
    v.file(d, "f");
    v.setattr(&root(), d, &chmod(0o700)).unwrap();
    fails(v.lookup(&user(5), d, b"f"), Errno::Access);
    let acl = list(&[
        (Who::Owner, 7),
        (Who::User(5), 7),
        (Who::OwningGroup, 0),
        (Who::Mask, 5),
        (Who::Other, 0),
    ]);
    set(&v, d, XATTR_ACCESS, &acl).unwrap();
    v.lookup(&user(5), d, b"f").unwrap();
    fails(v.file_by(&user(5), d, "g"), Errno::Access);
    v.setattr(&root(), d, &chmod(0o770)).unwrap();
    v.file_by(&user(5), d, "g").unwrap();
    v.rename(
        &user(5),
        (d, b"g"),
        (d, b"h"),
        steadfast_vfs::RenameMode::Replace,
    )
    .unwrap();
    v.unlink(&user(5), d, b"h").unwrap();
    fails(v.lookup(&user(6), d, b"f"), Errno::Access);
}

#[test]
fn only_the_owner_sets_acls_and_only_valid_ones() {
    let v = Volume::new(16);
    let r = v.root();
    let f = v.file(r, "f");
    let by = |who: &Caller, ino, name: &[u8], value: &[u8]| {
        v.setxattr(who, ino, name, value, XattrMode::Any)
    };
    fails(by(&user(5), f, XATTR_ACCESS, &for_five(6)), Errno::Perm);
    fails(by(&root(), f, XATTR_ACCESS, b"x"), Errno::Inval);
    fails(by(&root(), f, XATTR_ACCESS, b"xxxx"), Errno::OpNotSupp);
    fails(by(&root(), f, XATTR_DEFAULT, &for_five(6)), Errno::Access);
    fails(
        by(&root(), f, b"system.posix_acl_accessible", b""),
        Errno::OpNotSupp,
    );
    let l = v.symlink(&root(), r, b"l", b"f").unwrap().ino;
    fails(by(&root(), l, XATTR_ACCESS, &for_five(6)), Errno::OpNotSupp);
    // The empty list removes one, whether or not there was one.
    set(&v, f, XATTR_ACCESS, &for_five(6)).unwrap();
    set(&v, f, XATTR_ACCESS, &[2, 0, 0, 0]).unwrap();
    set(&v, f, XATTR_ACCESS, &[2, 0, 0, 0]).unwrap();
    assert!(v.listxattr(&root(), f).unwrap().is_empty());
    assert_eq!(v.attr(f).perm, 0o660);
    // Set-group-id does not survive an owner's list if the group is not the owner's.
    let mine = v.file_by(&user(5), v.dir(r, "d"), "mine");
    fails(mine, Errno::Access);
    let to = SetAttr {
        uid: Some(5),
        gid: Some(50),
        ..chmod(0o2755)
    };
    v.setattr(&root(), f, &to).unwrap();
    v.setattr(&root(), f, &chmod(0o2644)).unwrap();
    by(&user(5), f, XATTR_ACCESS, &for_five(6)).unwrap();
    assert_eq!(v.attr(f).perm, 0o660);
}

#[test]
fn a_default_acl_is_inherited_in_place_of_the_umask() {
    let mut v = Volume::new(16);
    let r = v.root();
    let masked = Caller {
        umask: 0o027,
        ..root()
    };
    let node = |perm| NewNode {
        kind: FileKind::Regular,
        perm,
        rdev: 0,
    };
    let plain = v.mknod(&masked, r, b"plain", &node(0o666)).unwrap();
    assert_eq!(plain.perm, 0o640);
    assert_eq!(v.mkdir(&masked, r, b"d", 0o777).unwrap().perm, 0o750);
    let d = v.look(r, "d").unwrap().ino;
    let default = list(&[
        (Who::Owner, 7),
        (Who::User(5), 7),
        (Who::OwningGroup, 5),
        (Who::Group(9), 7),
        (Who::Mask, 7),
        (Who::Other, 1),
    ]);
    set(&v, d, XATTR_DEFAULT, &default).unwrap();
    assert_eq!(
        v.attr(d).perm,
        0o750,
        "a default ACL says nothing of the directory"
    );
    // A directory keeps its first block.
    v.file(d, "first");
    v.unlink(&root(), d, b"first").unwrap();
    let free = v.free();
    let f = v.mknod(&masked, d, b"f", &node(0o666)).unwrap();
    assert_eq!(f.perm, 0o660);
    let acl = get(&v, f.ino, XATTR_ACCESS);
    assert_eq!(acl.perm(Who::Mask), Some(6));
    assert_eq!(acl.perm(Who::User(5)), Some(7));
    fails(v.getxattr(&root(), f.ino, XATTR_DEFAULT), Errno::NoData);
    let sub = v.mkdir(&masked, d, b"sub", 0o777).unwrap();
    assert_eq!(sub.perm, 0o771);
    let l = v.symlink(&masked, d, b"l", b"f").unwrap();
    assert_eq!(l.perm, 0o777);
    assert!(v.listxattr(&root(), l.ino).unwrap().is_empty());
    v.remount();
    assert_eq!(get(&v, sub.ino, XATTR_DEFAULT).to_xattr(), default);
    assert_eq!(get(&v, sub.ino, XATTR_ACCESS).perm(Who::Group(9)), Some(7));
    v.access(&user(5), f.ino, 6).unwrap();
    for name in ["f", "l"] {
        v.unlink(&root(), d, name.as_bytes()).unwrap();
    }
    v.rmdir(&root(), d, b"sub").unwrap();
    assert_eq!(v.free(), free, "blocks of attributes go with their inodes");
}
