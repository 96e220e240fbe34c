//! Corner 28: rename in all its cases. The file system on persistent memory runs these tests, too.

use super::common::*;
use steadfast_vfs::{Caller, Errno, FileSystem, Ino, RenameMode, Result};

fn mv_by(
    v: &Volume,
    caller: &Caller,
    from: (Ino, &str),
    to: (Ino, &str),
    mode: RenameMode,
) -> Result<()> {
    v.rename(
        caller,
        (from.0, from.1.as_bytes()),
        (to.0, to.1.as_bytes()),
        mode,
    )
}

fn mv(v: &Volume, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
    mv_by(v, &root(), from, to, RenameMode::Replace)
}

fn swap(v: &Volume, from: (Ino, &str), to: (Ino, &str)) -> Result<()> {
    mv_by(v, &root(), from, to, RenameMode::Exchange)
}

#[test]
fn corner_28_a_file_moves_within_and_across_directories() {
    let mut v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(r, "f");
    mv(&v, (r, "f"), (r, "g")).unwrap();
    assert_eq!(v.names(r), ["d", "g"]);
    mv(&v, (r, "g"), (d, "h")).unwrap();
    v.remount();
    assert_eq!(
        (v.names(r), v.names(d)),
        (vec!["d".into()], vec!["h".to_string()])
    );
    assert_eq!(v.look(d, "h").unwrap().ino, f);
    fails(mv(&v, (r, "g"), (r, "x")), Errno::NoEnt);
    fails(mv(&v, (r, "."), (r, "x")), Errno::Busy);
    fails(mv(&v, (r, "d"), (r, "..")), Errno::Busy);
}

#[test]
fn corner_28_a_replaced_file_goes_and_its_space_comes_back() {
    let v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let a = v.file(r, "a");
    let keep = v.file(d, "keep");
    v.write(&root(), a, 0, b"new").unwrap();
    let free = v.free();
    let b = v.file(d, "b");
    v.write(&root(), b, 0, &[1; 100_000]).unwrap();
    v.sync().unwrap();
    mv(&v, (r, "a"), (d, "b")).unwrap();
    assert_eq!(v.names(d), ["b", "keep"]);
    assert_eq!(v.content(v.look(d, "b").unwrap().ino), b"new");
    fails(v.getattr(&root(), b), Errno::Stale);
    assert_eq!(v.free(), free);
    // In one directory, over a name with another link.
    v.link(&root(), keep, r, b"other").unwrap();
    mv(&v, (d, "b"), (d, "keep")).unwrap();
    assert_eq!(v.attr(keep).nlink, 1);
    assert_eq!(v.look(d, "keep").unwrap().ino, a);
}

#[test]
fn corner_28_a_directory_moves_with_its_dotdot_and_link_counts() {
    let mut v = Volume::new(16);
    let r = v.root();
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    let d = v.dir(a, "d");
    let inner = v.dir(d, "inner");
    assert_eq!(
        (v.attr(r).nlink, v.attr(a).nlink, v.attr(b).nlink),
        (4, 3, 2)
    );
    mv(&v, (a, "d"), (b, "e")).unwrap();
    v.remount();
    assert_eq!(
        (v.attr(r).nlink, v.attr(a).nlink, v.attr(b).nlink),
        (4, 2, 3)
    );
    assert_eq!(v.look(d, "..").unwrap().ino, b);
    assert_eq!(v.look(inner, "..").unwrap().ino, d);
    // Within one directory nothing but the name changes.
    mv(&v, (b, "e"), (b, "f")).unwrap();
    assert_eq!((v.attr(b).nlink, v.attr(d).nlink), (3, 3));
}

#[test]
fn corner_28_a_directory_replaces_an_empty_one_only() {
    let v = Volume::new(16);
    let r = v.root();
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    let (d, e) = (v.dir(a, "d"), v.dir(b, "e"));
    let f = v.file(e, "f");
    fails(mv(&v, (a, "d"), (b, "e")), Errno::NotEmpty);
    fails(mv(&v, (e, "f"), (b, "e")), Errno::NotEmpty);
    fails(mv(&v, (e, "f"), (r, "a")), Errno::IsDir);
    fails(mv(&v, (a, "d"), (e, "f")), Errno::NotDir);
    fails(mv(&v, (r, "a"), (r, "b")), Errno::NotEmpty);
    v.unlink(&root(), e, b"f").unwrap();
    fails(v.getattr(&root(), f), Errno::Stale);
    mv(&v, (a, "d"), (b, "e")).unwrap();
    fails(v.getattr(&root(), e), Errno::Stale);
    assert_eq!(
        (v.attr(a).nlink, v.attr(b).nlink, v.attr(r).nlink),
        (2, 3, 4)
    );
    assert_eq!(v.look(b, "e").unwrap().ino, d);
    // In the same directory.
    v.dir(r, "c");
    mv(&v, (r, "a"), (r, "c")).unwrap();
    assert_eq!(
        (v.names(r), v.attr(r).nlink),
        (vec!["b".into(), "c".to_string()], 4)
    );
}

#[test]
fn corner_28_onto_itself_or_another_link_of_itself_nothing_happens() {
    let v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(r, "f");
    v.link(&root(), f, d, b"g").unwrap();
    for to in [(r, "f"), (d, "g")] {
        mv(&v, (r, "f"), to).unwrap();
        swap(&v, (r, "f"), to).unwrap();
        fails(
            mv_by(&v, &root(), (r, "f"), to, RenameMode::NoReplace),
            Errno::Exist,
        );
    }
    mv(&v, (r, "d"), (r, "d")).unwrap();
    assert_eq!(
        (v.attr(f).nlink, v.attr(d).nlink, v.attr(r).nlink),
        (2, 2, 3)
    );
    assert_eq!(
        (v.names(r), v.names(d)),
        (vec!["d".into(), "f".to_string()], vec!["g".to_string()])
    );
}

#[test]
fn corner_28_a_directory_does_not_move_below_itself() {
    let v = Volume::new(16);
    let r = v.root();
    let a = v.dir(r, "a");
    let b = v.dir(a, "b");
    let c = v.dir(b, "c");
    v.file(c, "f");
    fails(mv(&v, (r, "a"), (a, "x")), Errno::Inval);
    fails(mv(&v, (r, "a"), (c, "x")), Errno::Inval);
    fails(mv(&v, (r, "a"), (c, "f")), Errno::Inval);
    fails(mv(&v, (b, "c"), (r, "a")), Errno::NotEmpty);
    fails(swap(&v, (r, "a"), (b, "c")), Errno::Inval);
    fails(swap(&v, (b, "c"), (r, "a")), Errno::Inval);
    fails(swap(&v, (c, "f"), (r, "a")), Errno::Inval);
    assert_eq!(v.names(c), ["f"]);
}

#[test]
fn corner_28_exchange_swaps_whatever_there_is() {
    let mut v = Volume::new(16);
    let r = v.root();
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    let d = v.dir(a, "d");
    let f = v.file(b, "f");
    fails(swap(&v, (a, "d"), (b, "none")), Errno::NoEnt);
    swap(&v, (a, "d"), (b, "f")).unwrap();
    v.remount();
    assert_eq!(
        (v.look(a, "d").unwrap().ino, v.look(b, "f").unwrap().ino),
        (f, d)
    );
    assert_eq!((v.attr(a).nlink, v.attr(b).nlink), (2, 3));
    assert_eq!(v.look(d, "..").unwrap().ino, b);
    // Two directories; in one directory.
    swap(&v, (r, "a"), (r, "b")).unwrap();
    assert_eq!(
        (v.look(r, "a").unwrap().ino, v.look(r, "b").unwrap().ino),
        (b, a)
    );
    let e = v.dir(a, "e");
    swap(&v, (a, "e"), (b, "f")).unwrap();
    assert_eq!(
        (v.look(d, "..").unwrap().ino, v.look(e, "..").unwrap().ino),
        (a, b)
    );
    assert_eq!(
        (v.attr(a).nlink, v.attr(b).nlink, v.attr(r).nlink),
        (3, 3, 4)
    );
}

#[test]
fn corner_28_no_replace_refuses_any_target() {
    let v = Volume::new(16);
    let r = v.root();
    v.file(r, "f");
    v.file(r, "g");
    let no = |from, to| mv_by(&v, &root(), (r, from), (r, to), RenameMode::NoReplace);
    fails(no("f", "g"), Errno::Exist);
    no("f", "h").unwrap();
    assert_eq!(v.names(r), ["g", "h"]);
}

#[test]
fn corner_28_permissions_and_the_sticky_rule_hold() {
    let v = Volume::new(16);
    let r = v.root();
    let chmod = |ino, perm| {
        let set = steadfast_vfs::SetAttr {
            perm: Some(perm),
            ..Default::default()
        };
        v.setattr(&root(), ino, &set).unwrap();
    };
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    let me = user(5);
    let by = |from, to| mv_by(&v, &me, from, to, RenameMode::Replace);
    chmod(a, 0o777);
    v.file_by(&me, a, "mine").unwrap();
    fails(by((a, "mine"), (b, "x")), Errno::Access);
    chmod(b, 0o777);
    by((a, "mine"), (b, "x")).unwrap();
    v.file(b, "roots");
    chmod(b, 0o1777);
    fails(by((b, "roots"), (a, "x")), Errno::Perm);
    fails(by((b, "x"), (b, "roots")), Errno::Perm);
    by((b, "x"), (a, "x")).unwrap();
    // A directory that gets another parent is written to.
    v.dir(a, "d");
    fails(by((a, "d"), (b, "d")), Errno::Access);
    by((a, "d"), (a, "e")).unwrap();
}

#[test]
fn corner_28_concurrent_renames_in_opposite_directions_end_and_make_no_cycle() {
    let v = Volume::new(32);
    let r = v.root();
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    v.dir(a, "x");
    v.dir(b, "y");
    v.file(a, "f");
    std::thread::scope(|scope| {
        let v = &v;
        for n in 0..4 {
            scope.spawn(move || {
                for _ in 0..300 {
                    let _ = match n {
                        0 => mv(v, (a, "x"), (b, "x")),
                        1 => mv(v, (b, "x"), (a, "x")),
                        2 => mv(v, (r, "a"), (b, "a")).and_then(|()| mv(v, (b, "a"), (r, "a"))),
                        _ => mv(v, (r, "b"), (a, "b")).and_then(|()| mv(v, (a, "b"), (r, "b"))),
                    };
                    let _ = swap(v, (a, "f"), (b, "y"));
                }
            });
        }
    });
    // Everything is still reachable from the root.
    let mut found = 0;
    let mut open = vec![r];
    while let Some(dir) = open.pop() {
        for name in v.names(dir) {
            found += 1;
            let attr = v.look(dir, &name).unwrap();
            if attr.kind == steadfast_vfs::FileKind::Directory {
                assert_eq!(v.look(attr.ino, "..").unwrap().ino, dir);
                open.push(attr.ino);
            }
        }
    }
    assert_eq!(found, 5);
}

/// Overlay file systems ask it of the file system of their upper layer.
#[test]
fn a_rename_leaves_a_whiteout_in_the_same_operation() {
    let mut v = Volume::new(16);
    let r = v.root();
    let out = |v: &Volume, who: &Caller, from: (Ino, &str), to: (Ino, &str)| {
        mv_by(v, who, from, to, RenameMode::Whiteout)
    };
    let is_whiteout = |attr: Option<steadfast_vfs::Attr>| {
        let attr = attr.unwrap();
        (attr.kind, attr.rdev, attr.perm) == (steadfast_vfs::FileKind::CharDevice, 0, 0)
    };
    let (a, b) = (v.dir(r, "a"), v.dir(r, "b"));
    let free = v.free();
    let f = v.file(a, "f");
    let g = v.file(b, "g");
    out(&v, &root(), (a, "f"), (b, "g")).unwrap();
    assert_eq!(v.look(b, "g").unwrap().ino, f);
    assert!(v.getattr(&root(), g).is_err(), "what was replaced is gone");
    let d = v.dir(a, "d");
    out(&v, &root(), (a, "d"), (b, "d")).unwrap();
    out(&v, &root(), (b, "d"), (b, "e")).unwrap();
    assert_eq!(v.look(b, "e").unwrap().ino, d);
    assert_eq!((v.attr(a).nlink, v.attr(b).nlink), (2, 3));
    fails(
        mv_by(
            &v,
            &root(),
            (b, "e"),
            (b, "g"),
            RenameMode::WhiteoutNoReplace,
        ),
        Errno::Exist,
    );
    fails(out(&v, &user(5), (b, "e"), (b, "h")), Errno::Access);
    v.remount();
    assert_eq!(v.names(a), ["d", "f"]);
    assert_eq!(v.names(b), ["d", "e", "g"]);
    for (dir, name) in [(a, "f"), (a, "d"), (b, "d")] {
        assert!(is_whiteout(v.look(dir, name)), "{name}");
        v.unlink(&root(), dir, name.as_bytes()).unwrap();
    }
    v.unlink(&root(), b, b"g").unwrap();
    v.rmdir(&root(), b, b"e").unwrap();
    assert_eq!(v.attr(b).nlink, 2);
    assert_eq!(v.free() + 2 * BLOCKS_OF_EMPTY, free);
    // A whiteout is no device: any user may make one in a directory that it may write to.
    let node = steadfast_vfs::NewNode {
        kind: steadfast_vfs::FileKind::CharDevice,
        perm: 0,
        rdev: 0,
    };
    let open = steadfast_vfs::SetAttr {
        perm: Some(0o777),
        ..Default::default()
    };
    v.setattr(&root(), a, &open).unwrap();
    v.mknod(&user(5), a, b"w", &node).unwrap();
    let null = steadfast_vfs::NewNode {
        rdev: 0x103,
        ..node
    };
    fails(v.mknod(&user(5), a, b"n", &null), Errno::Perm);
}
