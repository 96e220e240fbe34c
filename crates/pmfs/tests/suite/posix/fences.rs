//! The cost of each call: its fences, and for the frequent ones the lines that it writes back. A call that changes nothing has
//! neither.
#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::common::*;
use steadfast_pm::{Counts, thread_counts};
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{
    AllocateMode, Errno, FileKind, FileSystem, Ino, InodeFlags, NewNode, RenameMode, Seek, SetAttr,
    SetTime, Time, XattrMode,
};

const PAGE: u64 = 4096;

fn cost<T>(call: impl FnOnce() -> T) -> Counts {
    let before = thread_counts();
    let _ = call();
    thread_counts() - before
}

#[track_caller]
fn fences<T>(expected: u64, call: impl FnOnce() -> T) {
    assert_eq!(cost(call).fences, expected);
}

#[track_caller]
fn fences_and_lines<T>(expected: (u64, u64), call: impl FnOnce() -> T) {
    let cost = cost(call);
    assert_eq!((cost.fences, cost.lines), expected);
}

/// A volume whose root has a page with free slots, and a file of `pages` pages.
fn with_file(pages: u64) -> (Volume, Ino) {
    let v = Volume::new(4);
    let f = v.file(v.root(), "f");
    let data = vec![7; (pages * PAGE) as usize];
    assert_eq!(v.write(&root(), f, 0, &data).unwrap(), data.len());
    (v, f)
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

fn mv(v: &Volume, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) {
    let [from, to] = [from, to].map(|(dir, name)| (dir, name.as_bytes()));
    v.rename(&root(), from, to, mode).unwrap();
}

fn long(letter: char) -> String {
    String::from(letter).repeat(255)
}

#[test]
fn create_takes_one_fence_for_inode_slot_and_times() {
    let v = Volume::new(4);
    let r = v.root();
    fences_and_lines((1, 4), || v.file(r, "f"));
    let node = NewNode {
        kind: FileKind::CharDevice,
        perm: 0o600,
        rdev: 9,
    };
    fences_and_lines((1, 4), || v.mknod(&root(), r, b"c", &node).unwrap());
}

#[test]
fn mkdir_takes_one_fence() {
    let v = Volume::new(4);
    fences_and_lines((1, 4), || v.dir(v.root(), "d"));
}

#[test]
fn link_takes_one_fence() {
    let (v, f) = with_file(1);
    let r = v.root();
    fences_and_lines((1, 3), || v.link(&root(), f, r, b"g").unwrap());
}

#[test]
fn unlink_takes_one_fence_however_long_the_file() {
    let (v, f) = with_file(100);
    let r = v.root();
    v.link(&root(), f, r, b"g").unwrap();
    fences_and_lines((1, 3), || v.unlink(&root(), r, b"g").unwrap());
    fences_and_lines((1, 3), || v.unlink(&root(), r, b"f").unwrap());
    let g = v.file(r, "g");
    v.open(&root(), g).unwrap();
    fences(1, || v.unlink(&root(), r, b"g").unwrap());
    fences(0, || v.release(g));
}

#[test]
fn rmdir_takes_one_fence_also_if_the_directory_has_pages() {
    let v = Volume::new(4);
    let r = v.root();
    v.dir(r, "d");
    fences_and_lines((1, 3), || v.rmdir(&root(), r, b"d").unwrap());
    let d = v.dir(r, "d");
    v.file(d, "f");
    v.unlink(&root(), d, b"f").unwrap();
    fences_and_lines((1, 4), || v.rmdir(&root(), r, b"d").unwrap());
}

#[test]
fn setattr_takes_one_fence() {
    let (v, f) = with_file(1);
    let all = SetAttr {
        perm: Some(0o600),
        uid: Some(7),
        gid: Some(8),
        ..SetAttr::default()
    };
    fences_and_lines((1, 1), || v.setattr(&root(), f, &all).unwrap());
    let times = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Time::default())),
        ..SetAttr::default()
    };
    fences_and_lines((1, 2), || v.setattr(&root(), f, &times).unwrap());
    fences(0, || {
        v.setattr(&root(), f, &SetAttr::default()).unwrap();
    });
}

#[test]
fn truncate_takes_one_fence_unless_a_tail_must_be_cleared() {
    let (v, f) = with_file(3);
    let to = |to| v.setattr(&root(), f, &size(to)).unwrap();
    fences_and_lines((1, 2), || to(2 * PAGE));
    fences_and_lines((1, 1), || to(5 * PAGE));
    fences_and_lines((1, 1), || to(PAGE + 1));
    fences(2, || to(3 * PAGE));
    let all = SetAttr {
        perm: Some(0o600),
        uid: Some(7),
        ..size(PAGE)
    };
    fences_and_lines((1, 2), || v.setattr(&root(), f, &all).unwrap());
}

#[test]
fn overwrite_in_place_takes_one_fence() {
    let mut options = options();
    options.in_place = true;
    let v = Volume::with(made(4 << 20, 4096), options);
    let f = v.file(v.root(), "f");
    fences(2, || v.append(&root(), f, &[1; 10_000]).unwrap());
    fences_and_lines((1, 1), || v.write(&root(), f, 100, &[2; 9000]).unwrap());
    fences(2, || v.write(&root(), f, 9000, &[2; 2000]).unwrap());
}

#[test]
fn append_and_atomic_write_take_two_fences() {
    let (v, f) = with_file(0);
    fences_and_lines((2, 2), || v.append(&root(), f, &[1; 10]).unwrap());
    fences_and_lines((2, 1), || v.append(&root(), f, &[1; 10]).unwrap());
    fences(2, || v.append(&root(), f, &[1; 100_000]).unwrap());
    fences(2, || v.write(&root(), f, 0, &[2; 4096]).unwrap());
    fences(2, || v.write(&root(), f, 5000, &[2; 50_000]).unwrap());
    fences(2, || v.write(&root(), f, 1 << 30, &[2; 1]).unwrap());
    fences(0, || v.write(&root(), f, 0, &[]).unwrap());
}

#[test]
fn symlink_takes_two_fences() {
    let v = Volume::new(4);
    let r = v.root();
    fences_and_lines((2, 4), || v.symlink(&root(), r, b"s", b"t").unwrap());
    fences_and_lines((2, 5), || {
        v.symlink(&root(), r, b"l", &[b't'; 4095]).unwrap();
    });
}

#[test]
fn every_rename_takes_two_fences() {
    let v = Volume::new(4);
    let r = v.root();
    let (d, e) = (v.dir(r, "d"), v.dir(r, "e"));
    for name in ["a", "b"] {
        v.file(r, name);
        v.file(d, name);
    }
    v.dir(d, "x");
    v.dir(e, "y");
    use RenameMode::{Exchange, NoReplace, Replace};
    fences_and_lines((2, 4), || mv(&v, (r, "a"), (r, "c"), Replace));
    fences(2, || mv(&v, (r, "c"), (r, "a"), NoReplace));
    fences_and_lines((2, 5), || mv(&v, (r, "a"), (r, "b"), Replace));
    fences_and_lines((2, 5), || mv(&v, (r, "b"), (d, "c"), Replace));
    fences(2, || mv(&v, (d, "c"), (d, "a"), Replace));
    fences_and_lines((2, 5), || mv(&v, (d, "a"), (d, "b"), Exchange));
    fences(2, || mv(&v, (d, "x"), (e, "x"), Replace));
    fences(2, || mv(&v, (e, "x"), (e, "y"), Replace));
    fences(2, || mv(&v, (e, "y"), (d, "a"), Exchange));
    fences(0, || mv(&v, (d, "b"), (d, "b"), Replace));
}

#[test]
fn a_whiteout_takes_three_fences() {
    let v = Volume::new(4);
    let r = v.root();
    v.file(r, "a");
    fences(3, || mv(&v, (r, "a"), (r, "b"), RenameMode::Whiteout));
    fences(3, || mv(&v, (r, "b"), (r, "a"), RenameMode::Whiteout));
}

#[test]
fn punching_takes_two_fences_and_allocating_one() {
    let (v, f) = with_file(8);
    let call = |mode, at, len| v.fallocate(&root(), f, mode, at, len).unwrap();
    use AllocateMode::{Allocate, KeepSize, PunchHole, ZeroRange};
    fences(2, || call(PunchHole, 0, 2 * PAGE));
    fences(2, || call(PunchHole, 3 * PAGE + 5, 2 * PAGE));
    fences(2, || call(ZeroRange, 6 * PAGE, 2 * PAGE));
    fences(1, || call(Allocate, 0, 20 * PAGE));
    fences(1, || call(KeepSize, 0, 40 * PAGE));
    // Unwritten pages turn.
    fences(2, || {
        v.write(&root(), f, 0, &[1; 3 * 4096]).unwrap();
    });
}

#[test]
fn a_long_name_or_a_new_directory_page_takes_one_fence_more_and_both_no_second() {
    let v = Volume::new(4);
    let r = v.root();
    let f = v.file(r, "f");
    fences(2, || v.file(r, &long('a')));
    fences(2, || v.link(&root(), f, r, long('b').as_bytes()).unwrap());
    fences(3, || {
        mv(&v, (r, &long('a')), (r, &long('c')), RenameMode::Replace);
    });
    fences(2, || {
        mv(&v, (r, &long('c')), (r, &long('b')), RenameMode::Replace);
    });
    fences(1, || v.unlink(&root(), r, long('b').as_bytes()).unwrap());
    // Their first names.
    let dirs: Vec<Ino> = (0..4).map(|n| v.dir(r, &format!("d{n}"))).collect();
    fences(2, || v.file(dirs[0], "f"));
    fences(2, || v.file(dirs[1], &long('f')));
    fences(3, || {
        mv(&v, (dirs[0], "f"), (dirs[2], "f"), RenameMode::Replace);
    });
    // A symlink has a fence for its target that serves both.
    fences(2, || {
        let name = long('s');
        v.symlink(&root(), dirs[3], name.as_bytes(), b"t").unwrap();
    });
}

fn list() -> Vec<u8> {
    let entries = [
        (Who::Owner, 6),
        (Who::User(5), 6),
        (Who::OwningGroup, 4),
        (Who::Mask, 6),
        (Who::Other, 0),
    ];
    let entry = |(who, perm)| Entry { who, perm };
    Acl::new(entries.map(entry).to_vec()).unwrap().to_xattr()
}

#[test]
fn attributes_take_two_fences_and_so_do_inodes_that_inherit_them() {
    let (v, f) = with_file(1);
    let r = v.root();
    let set = |ino, name: &[u8], value: &[u8]| {
        v.setxattr(&root(), ino, name, value, XattrMode::Any)
            .unwrap();
    };
    fences(2, || set(f, b"user.a", b"1"));
    fences(2, || set(f, b"user.a", b"2"));
    fences(2, || set(f, b"user.b", &[1; 10_000]));
    fences(2, || set(f, XATTR_ACCESS, &list()));
    let chmod = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fences(2, || v.setattr(&root(), f, &chmod).unwrap());
    fences(2, || v.set_flags(&root(), f, InodeFlags::NODUMP).unwrap());
    // Overwrites get new pages here: a flag that forbids that is refused.
    let refused = |flags| v.set_flags(&root(), f, flags).unwrap_err();
    fences(0, || {
        assert!(refused(InodeFlags::NOCOW) == Errno::OpNotSupp);
    });
    let d = v.dir(r, "d");
    v.file(d, "first");
    set(d, XATTR_DEFAULT, &list());
    fences(2, || v.file(d, "f"));
    fences(2, || v.dir(d, "d"));
    // Nothing has to be durable before an empty set.
    let g = v.file(r, "g");
    set(g, b"user.a", b"1");
    fences(1, || v.removexattr(&root(), g, b"user.a").unwrap());
}

#[test]
fn a_nameless_file_takes_one_fence_and_one_more_for_its_name() {
    let v = Volume::new(4);
    let r = v.root();
    let mut ino = 0;
    fences(1, || ino = v.tmpfile(&root(), r, 0o600).unwrap().ino);
    fences(1, || v.link(&root(), ino, r, b"f").unwrap());
    fences(0, || v.release(ino));
}

#[test]
fn a_noted_read_takes_one_fence() {
    let (v, f) = with_file(1);
    fences_and_lines((1, 1), || v.accessed(&root(), f).unwrap());
    fences(0, || v.accessed(&root(), f).unwrap());
}

#[test]
fn a_call_without_a_change_stores_nothing() {
    let (v, f) = with_file(3);
    let r = v.root();
    let s = v.symlink(&root(), r, b"s", b"t").unwrap().ino;
    let cost = cost(|| {
        let c = &root();
        v.lookup(c, r, b"f").unwrap();
        v.getattr(c, f).unwrap();
        v.access(c, f, 6).unwrap();
        v.readlink(c, s).unwrap();
        v.open(c, f).unwrap();
        v.read(c, f, 0, &mut [0; 5000]).unwrap();
        v.seek(c, f, 0, Seek::Hole).unwrap();
        v.fsync(c, f, false).unwrap();
        v.release(f);
        v.readdir(c, r, 0, &mut |_| true).unwrap();
        v.listxattr(c, f).unwrap();
        v.getxattr(c, f, b"user.a").unwrap_err();
        v.flags(c, f).unwrap();
        v.statfs().unwrap();
        v.sync().unwrap();
        v.unlink(c, r, b"none").unwrap_err();
        v.mkdir(c, r, b"f", 0o755).unwrap_err();
    });
    assert_eq!(cost, Counts::default());
}
