//! Names: making, finding, linking, removing. The file system on persistent memory runs these tests, too.

use super::common::*;
use steadfast_vfs::{Errno, FileKind, FileSystem, NAME_MAX, NewNode, SYMLINK_MAX};

#[test]
fn new_names_are_found_and_survive_a_remount() {
    let mut v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(d, "f");
    let kinds = [
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ];
    for kind in kinds {
        let node = NewNode {
            kind,
            perm: 0o600,
            rdev: 0x1234_5678,
        };
        v.mknod(&root(), d, format!("{kind:?}").as_bytes(), &node)
            .unwrap();
    }
    let short = v.symlink(&root(), d, b"short", b"f").unwrap();
    let target = vec![b'x'; SYMLINK_MAX];
    v.symlink(&root(), d, b"long", &target).unwrap();
    assert_eq!(
        (short.kind, short.size, short.perm),
        (FileKind::Symlink, 1, 0o777)
    );
    for _ in 0..2 {
        assert_eq!(v.look(r, "d").map(|a| (a.ino, a.nlink)), Some((d, 2)));
        assert_eq!(v.look(d, "f").map(|a| a.ino), Some(f));
        assert_eq!(v.look(d, "..").map(|a| a.ino), Some(r));
        assert_eq!(v.look(r, "..").map(|a| a.ino), Some(r));
        assert_eq!(v.look(d, ".").map(|a| a.ino), Some(d));
        assert_eq!(v.attr(r).nlink, 3);
        for kind in kinds {
            let attr = v.look(d, &format!("{kind:?}")).unwrap();
            let rdev = match kind {
                FileKind::CharDevice | FileKind::BlockDevice => 0x1234_5678,
                _ => 0,
            };
            assert_eq!((attr.kind, attr.perm, attr.rdev), (kind, 0o600, rdev));
        }
        let link = |name| v.readlink(&root(), v.look(d, name).unwrap().ino).unwrap();
        assert_eq!(link("short"), b"f");
        assert_eq!(link("long"), target);
        fails(v.readlink(&root(), f), Errno::Inval);
        v.remount();
    }
}

#[test]
fn corner_33_names_may_have_any_byte_but_nul_and_slash_up_to_255() {
    let v = Volume::new(16);
    let r = v.root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let make = |name: &[u8]| v.mknod(&root(), r, name, &node).map(|attr| attr.ino);
    let longest = vec![0xff; NAME_MAX];
    let mut made = vec![(longest.clone(), make(&longest).unwrap())];
    for byte in (1..=255u8).filter(|byte| *byte != b'/' && *byte != b'.') {
        made.push((vec![byte], make(&[byte]).unwrap()));
    }
    for (name, ino) in &made {
        assert_eq!(v.lookup(&root(), r, name).unwrap().ino, *ino);
        fails(make(name), Errno::Exist);
    }
    fails(make(&[b'x'; NAME_MAX + 1]), Errno::NameTooLong);
    fails(
        v.lookup(&root(), r, &[b'x'; NAME_MAX + 1]),
        Errno::NameTooLong,
    );
    fails(make(b""), Errno::NoEnt);
    fails(make(b"a/b"), Errno::Inval);
    fails(make(b"a\0b"), Errno::Inval);
    fails(make(b"."), Errno::Exist);
    fails(make(b".."), Errno::Exist);
    fails(
        v.symlink(&root(), r, b"s", &[b'x'; SYMLINK_MAX + 1]),
        Errno::NameTooLong,
    );
    fails(v.symlink(&root(), r, b"s", b""), Errno::NoEnt);
    fails(v.rmdir(&root(), r, b"."), Errno::Inval);
    fails(v.rmdir(&root(), r, b".."), Errno::NotEmpty);
    for (name, _) in &made {
        v.unlink(&root(), r, name).unwrap();
    }
    assert!(v.names(r).is_empty());
}

#[test]
fn hard_links_share_an_inode_until_the_last_one_goes() {
    let mut v = Volume::new(16);
    let r = v.root();
    let free = v.free();
    let f = v.file(r, "a");
    v.write(&root(), f, 0, b"hello").unwrap();
    let d = v.dir(r, "d");
    assert_eq!(v.link(&root(), f, d, b"b").unwrap().nlink, 2);
    fails(v.link(&root(), f, d, b"b"), Errno::Exist);
    fails(v.link(&root(), d, r, b"dd"), Errno::Perm);
    v.unlink(&root(), r, b"a").unwrap();
    assert_eq!(v.attr(f).nlink, 1);
    v.remount();
    assert_eq!(v.content(v.look(d, "b").unwrap().ino), b"hello");
    v.unlink(&root(), d, b"b").unwrap();
    fails(v.getattr(&root(), f), Errno::Stale);
    v.rmdir(&root(), r, b"d").unwrap();
    v.remount();
    assert_eq!(v.free(), free);
}

#[test]
fn corner_33_the_link_count_has_a_limit() {
    let v = Volume::new(64);
    let r = v.root();
    let f = v.file(r, "f");
    let d = v.dir(r, "d");
    for n in 1..65_000 {
        v.link(&root(), f, d, format!("{n}").as_bytes()).unwrap();
    }
    assert_eq!(v.attr(f).nlink, 65_000);
    fails(v.link(&root(), f, d, b"more"), Errno::MLink);
    v.unlink(&root(), d, b"1").unwrap();
    v.link(&root(), f, d, b"more").unwrap();
}

#[test]
fn a_directory_is_removed_only_when_empty_and_only_by_rmdir() {
    let v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(d, "f");
    fails(v.rmdir(&root(), r, b"d"), Errno::NotEmpty);
    fails(v.unlink(&root(), r, b"d"), Errno::IsDir);
    fails(v.rmdir(&root(), d, b"f"), Errno::NotDir);
    fails(v.unlink(&root(), r, b"none"), Errno::NoEnt);
    fails(v.lookup(&root(), f, b"x"), Errno::NotDir);
    fails(v.file_by(&root(), f, "x"), Errno::NotDir);
    v.unlink(&root(), d, b"f").unwrap();
    v.rmdir(&root(), r, b"d").unwrap();
    assert_eq!(v.attr(r).nlink, 2);
    fails(v.getattr(&root(), d), Errno::Stale);
    fails(v.file_by(&root(), d, "x"), Errno::Stale);
}

#[test]
fn corner_32_a_reused_inode_number_has_another_generation() {
    let v = Volume::new(16);
    let r = v.root();
    let mut seen = std::collections::HashSet::new();
    let mut numbers = std::collections::HashSet::new();
    for _ in 0..100 {
        let attr = v.file_by(&root(), r, "f").unwrap();
        assert_ne!(attr.generation, 0);
        assert!(seen.insert((attr.ino, attr.generation)));
        numbers.insert(attr.ino);
        v.unlink(&root(), r, b"f").unwrap();
    }
    assert!(numbers.len() < 100, "numbers are reused");
}

#[test]
fn space_of_many_files_comes_back_when_they_are_removed() {
    let mut v = Volume::new(32);
    let free = v.free();
    let r = v.root();
    let d = v.dir(r, "d");
    for n in 0..3000 {
        let f = v.file(d, &format!("file number {n}"));
        if n % 3 == 0 {
            v.write(&root(), f, 0, &[n as u8; 5000]).unwrap();
        }
    }
    v.remount();
    assert_eq!(v.names(d).len(), 3000);
    for n in 0..3000 {
        v.unlink(&root(), d, format!("file number {n}").as_bytes())
            .unwrap();
    }
    v.rmdir(&root(), r, b"d").unwrap();
    assert_eq!(v.free(), free);
    v.remount();
    assert_eq!(v.free(), free);
}
