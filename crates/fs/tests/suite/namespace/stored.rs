//! Storage of times, ACLs and flags: limits, features that announce them, and states after a cut.

use super::common::*;
use std::mem::offset_of;
use std::sync::Arc;
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_fs::layout::{FEATURE_ACL, FEATURE_RO_FLAGS, Superblock};
use steadfast_fs::{Fs, MkfsOptions, mkfs};
use steadfast_sim::{Limits, SimDevice};
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{Errno, FileSystem, Ino, InodeFlags, SetAttr, SetTime, Time, XattrMode};

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
fn five_hundred_entries_have_room_and_more_are_refused_without_a_trace() {
    let v = Volume::new(16);
    let f = v.file(v.root(), "f");
    let of = |users: u32| {
        let mut entries = vec![(Who::Owner, 6)];
        entries.extend((1..=users).map(|uid| (Who::User(uid), (uid % 8) as u8)));
        entries.extend([(Who::OwningGroup, 4), (Who::Mask, 7), (Who::Other, 0)]);
        list(&entries)
    };
    set(&v.fs, f, XATTR_ACCESS, &of(500)).unwrap();
    v.access(&user(495), f, 7).unwrap();
    fails(v.access(&user(496), f, 1), Errno::Access);
    fails(set(&v.fs, f, XATTR_ACCESS, &of(1000)), Errno::NoSpc);
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

/// Older programs would admit users that a list denies: they must refuse the volume as soon as there is a list.
#[test]
fn the_superblock_names_acls_from_the_first_one_on() {
    let mut v = Volume::new(16);
    let last = v.device.geometry().blocks - 1;
    let f = v.file(v.root(), "f");
    let minimal = list(&[(Who::Owner, 6), (Who::OwningGroup, 0), (Who::Other, 4)]);
    set(&v.fs, f, XATTR_ACCESS, &minimal).unwrap();
    v.remount();
    assert_eq!(features(&*v.device, 0), 0, "no list is there yet");
    set(&v.fs, f, XATTR_ACCESS, &for_five(6)).unwrap();
    v.cut();
    v.remount();
    assert_eq!(features(&*v.device, 0), FEATURE_ACL);
    v.remount();
    assert_eq!(features(&*v.device, last), FEATURE_ACL, "the copy as well");
}

/// After any cut, list and mode agree, and no list is there without its feature.
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

/// Older programs would write to immutable files: they must not write to the volume at all.
#[test]
fn the_superblock_names_flags_from_the_first_one_on() {
    let mut v = Volume::new(16);
    let f = v.file(v.root(), "f");
    v.set_flags(&root(), f, InodeFlags::NONE).unwrap();
    let named = |v: &Volume| {
        let mut block = [0; 4096];
        v.device.read(BlockNo(0), &mut block).unwrap();
        let at = offset_of!(Superblock, features_ro);
        u32::from_le_bytes(block[at..at + 4].try_into().unwrap())
    };
    v.remount();
    assert_eq!(named(&v), 0);
    v.set_flags(&root(), f, InodeFlags::IMMUTABLE).unwrap();
    v.remount();
    assert_eq!(named(&v), FEATURE_RO_FLAGS);
    v.set_flags(&root(), f, InodeFlags::NONE).unwrap();
}

#[test]
fn a_time_far_from_now_survives() {
    let mut v = Volume::new(16);
    let f = v.file(v.root(), "f");
    for secs in [1 << 40, -1 << 40] {
        let time = Time {
            secs,
            nanos: 999_999_999,
        };
        let set = SetAttr {
            mtime: Some(SetTime::At(time)),
            ..SetAttr::default()
        };
        v.setattr(&root(), f, &set).unwrap();
        v.remount();
        assert_eq!(v.attr(f).mtime, time);
    }
}
