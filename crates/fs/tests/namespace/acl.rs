//! POSIX ACLs: set, enforced, inherited, in step with the mode, stored and checked.

use crate::common::*;
use std::mem::offset_of;
use std::sync::Arc;
use steadfast_block::sim::{Limits, SimDevice};
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_fs::layout::{FEATURE_ACL, Superblock};
use steadfast_fs::{Fs, MkfsOptions, mkfs};
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

fn set(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) -> steadfast_vfs::Result<()> {
    fs.setxattr(&root(), ino, name, value, XattrMode::Any)
}

fn get(fs: &Fs, ino: Ino, name: &[u8]) -> Acl {
    let value = fs.getxattr(&root(), ino, name).unwrap();
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

    // chmod changes the mask, not what is behind it.
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

#[test]
fn five_hundred_entries_have_room_and_more_are_refused_without_a_trace() {
    let v = Volume::new(16);
    let f = v.file(v.root(), "f");
    let of = |users: u32| {
        let mut entries = vec![(Who::Owner, 6)];
        entries.extend((1..=users).map(|uid| (Who::User(uid), (uid % 8) as u8)));
        entries.extend([(Who::OwningGroup, 4), (Who::Mask, 7), (Who::Other, 0)]);
        list(&entries)
    };
    set(&v, f, XATTR_ACCESS, &of(500)).unwrap();
    v.access(&user(495), f, 7).unwrap();
    fails(v.access(&user(496), f, 1), Errno::Access);
    fails(set(&v, f, XATTR_ACCESS, &of(1000)), Errno::NoSpc);
    assert_eq!(get(&v, f, XATTR_ACCESS).entries().len(), 504);
    v.setattr(&root(), f, &chmod(0o600)).unwrap();
    fails(v.access(&user(495), f, 4), Errno::Access);
}

fn features(device: &dyn BlockDevice, at: u64) -> u32 {
    let mut block = [0; 4096];
    device.read(BlockNo(at), &mut block).unwrap();
    let at = offset_of!(Superblock, features_incompat);
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

/// Older programs would let in whom a list keeps out: they must refuse the volume as soon as there is one.
#[test]
fn the_superblock_names_acls_from_the_first_one_on() {
    let mut v = Volume::new(16);
    let last = v.device.geometry().blocks - 1;
    let f = v.file(v.root(), "f");
    let minimal = list(&[(Who::Owner, 6), (Who::OwningGroup, 0), (Who::Other, 4)]);
    set(&v, f, XATTR_ACCESS, &minimal).unwrap();
    v.remount();
    assert_eq!(features(&*v.device, 0), 0, "no list is there yet");
    set(&v, f, XATTR_ACCESS, &for_five(6)).unwrap();
    v.cut();
    v.remount();
    assert_eq!(features(&*v.device, 0), FEATURE_ACL);
    v.remount();
    assert_eq!(features(&*v.device, last), FEATURE_ACL, "the copy as well");
}

/// Whatever a cut leaves, list and mode agree, and no list is there without its feature.
#[test]
fn list_and_mode_change_together_wherever_the_power_goes() {
    let device = Arc::new(SimDevice::new(16 * 256));
    let mkfs_options = MkfsOptions {
        seed: Some(1),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &mkfs_options, &mut |_, _| {}).unwrap();
    let mount = |device: &Arc<SimDevice>| Fs::mount(Arc::clone(device) as _, &options()).unwrap().0;
    let fs = mount(&device);
    let r = fs.root();
    let f = fs.file(r, "f");
    let d = fs.dir(r, "d");
    fs.sync().unwrap();
    let start = device.trace_len();
    let sync = || fs.sync().unwrap();
    set(&fs, f, XATTR_ACCESS, &for_five(6)).unwrap();
    sync();
    fs.setattr(&root(), f, &chmod(0o604)).unwrap();
    sync();
    set(&fs, d, XATTR_DEFAULT, &for_five(6)).unwrap();
    fs.dir(d, "sub");
    sync();
    fs.setattr(&root(), f, &chmod(0o640)).unwrap();
    fs.unmount().unwrap();
    let limits = Limits {
        exhaustive_writes: 4,
        sampled: 8,
        ..Limits::default()
    };
    let mut explorer = device.explorer();
    for position in start..=explorer.len() {
        let cut = explorer.cut(position);
        for image in cut.images(&limits) {
            let device = Arc::new(SimDevice::from_image(image));
            // Compares lists with modes, and with the superblock.
            must_be_clean(&device);
            let fs = mount(&device);
            let perm = fs.look(r, "f").unwrap().perm;
            let listed = fs.getxattr(&root(), f, XATTR_ACCESS);
            assert_eq!(listed.is_ok(), perm != 0o644, "{perm:o}");
            fs.unmount().unwrap();
            must_be_clean(&device);
        }
    }
}
