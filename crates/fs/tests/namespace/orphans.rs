//! Corner 29: inodes without names, while they are open and after a crash.

use crate::common::*;
use steadfast_vfs::{Errno, FileSystem, RenameMode, SetAttr};

#[test]
fn corner_29_an_open_file_lives_on_without_its_name() {
    let v = Volume::new(16);
    let r = v.root();
    let free = v.free();
    let f = v.file(r, "f");
    v.write(&root(), f, 0, &[7; 50_000]).unwrap();
    v.open(&root(), f).unwrap();
    v.open(&root(), f).unwrap();
    v.unlink(&root(), r, b"f").unwrap();
    assert!(v.names(r).is_empty());
    assert_eq!(v.attr(f).nlink, 0);
    v.write(&root(), f, 50_000, &[8; 10]).unwrap();
    v.sync().unwrap();
    fails(v.link(&root(), f, r, b"again"), Errno::NoEnt);
    assert_eq!(v.content(f).len(), 50_010);
    v.release(f);
    assert_eq!(v.content(f)[50_000..], [8; 10]);
    v.release(f);
    fails(v.getattr(&root(), f), Errno::Stale);
    // The orphan directory keeps its first block.
    assert!(v.free() + 1 >= free);
}

#[test]
fn corner_29_after_a_crash_the_next_mount_frees_what_was_open() {
    let mut v = Volume::new(16);
    let r = v.root();
    let warm = v.file(r, "warm");
    v.open(&root(), warm).unwrap();
    v.unlink(&root(), r, b"warm").unwrap();
    v.release(warm);
    let free = v.free();
    let mut open = Vec::new();
    for n in 0..40 {
        let name = format!("f{n}");
        let f = v.file(r, &name);
        v.write(&root(), f, 0, &vec![n as u8; 30_000]).unwrap();
        v.open(&root(), f).unwrap();
        open.push(f);
    }
    let d = v.dir(r, "d");
    v.open(&root(), d).unwrap();
    v.rmdir(&root(), r, b"d").unwrap();
    for n in 0..40 {
        if n % 2 == 0 {
            v.unlink(&root(), r, format!("f{n}").as_bytes()).unwrap();
        } else {
            let g = v.file(r, "g");
            v.rename(
                &root(),
                (r, b"g"),
                (r, format!("f{n}").as_bytes()),
                RenameMode::Replace,
            )
            .unwrap();
            assert_eq!(v.look(r, &format!("f{n}")).unwrap().ino, g);
        }
    }
    v.sync().unwrap();
    v.cut();
    for f in open {
        fails(v.getattr(&root(), f), Errno::Stale);
    }
    fails(v.getattr(&root(), d), Errno::Stale);
    for n in (1..40).step_by(2) {
        v.unlink(&root(), r, format!("f{n}").as_bytes()).unwrap();
    }
    assert_eq!(v.free(), free);
    assert_eq!(v.take_warnings(), Vec::<String>::new());
}

#[test]
fn corner_29_a_file_too_large_for_one_operation_goes_in_slices() {
    let mut v = Volume::with_log(64, Some(64));
    let r = v.root();
    let mut f = v.file(r, "f");
    let warm = v.file(r, "warm");
    v.open(&root(), warm).unwrap();
    v.unlink(&root(), r, b"warm").unwrap();
    v.release(warm);
    v.unlink(&root(), r, b"f").unwrap();
    let free = v.free();
    for round in 0..3 {
        f = v.file(r, "f");
        // Holes everywhere: one extent for each block.
        for n in 0..3000u64 {
            v.write(&root(), f, n * 8192, &[1; 4096]).unwrap();
        }
        v.sync().unwrap();
        assert!(v.free() < free - 3000);
        match round {
            0 => v.unlink(&root(), r, b"f").unwrap(),
            1 => {
                let set = SetAttr {
                    size: Some(10),
                    ..SetAttr::default()
                };
                assert_eq!(v.setattr(&root(), f, &set).unwrap().size, 10);
                assert!(v.free() > free - 5);
                v.unlink(&root(), r, b"f").unwrap();
            }
            _ => {
                v.open(&root(), f).unwrap();
                v.unlink(&root(), r, b"f").unwrap();
                v.sync().unwrap();
                v.cut();
            }
        }
        assert_eq!(v.free(), free, "round {round}");
    }
    fails(v.getattr(&root(), f), Errno::Stale);
}

#[test]
fn a_removed_directory_that_is_open_is_empty_and_takes_nothing() {
    let v = Volume::new(16);
    let r = v.root();
    let d = v.dir(r, "d");
    let e = v.dir(r, "e");
    let f = v.file(r, "f");
    v.open(&root(), d).unwrap();
    v.rmdir(&root(), r, b"d").unwrap();
    assert_eq!(v.attr(d).nlink, 0);
    fails(v.file_by(&root(), d, "x"), Errno::NoEnt);
    fails(v.link(&root(), f, d, b"x"), Errno::NoEnt);
    fails(
        v.rename(&root(), (r, b"f"), (d, b"x"), RenameMode::Replace),
        Errno::NoEnt,
    );
    fails(
        v.rename(&root(), (r, b"e"), (d, b"x"), RenameMode::Replace),
        Errno::NoEnt,
    );
    let mut count = 0;
    v.readdir(&root(), d, 0, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    assert_eq!(count, 0);
    v.release(d);
    fails(v.getattr(&root(), d), Errno::Stale);
    assert_eq!(v.attr(e).nlink, 2);
}

#[test]
fn the_orphan_directory_is_nobodys() {
    let v = Volume::new(16);
    let hidden = v.root() + 1;
    fails(v.getattr(&root(), hidden), Errno::Stale);
    fails(v.lookup(&root(), hidden, b".."), Errno::Stale);
    fails(v.readdir(&root(), hidden, 0, &mut |_| true), Errno::Stale);
    fails(v.file_by(&root(), hidden, "x"), Errno::Stale);
    fails(v.open(&root(), hidden), Errno::Stale);
}

#[test]
fn opening_and_removing_at_the_same_time_loses_nothing() {
    let v = Volume::new(32);
    let r = v.root();
    v.free();
    let free = v.free();
    std::thread::scope(|scope| {
        let v = &v;
        for n in 0..2 {
            scope.spawn(move || {
                for _ in 0..300 {
                    let name = format!("f{n}");
                    let f = v.file(r, &name);
                    let _ = v.write(&root(), f, 0, &[1; 5000]);
                    v.unlink(&root(), r, name.as_bytes()).unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..600 {
                    if let Some(attr) = v.look(r, &format!("f{n}"))
                        && v.open(&root(), attr.ino).is_ok()
                    {
                        let mut byte = [0; 1];
                        let _ = v.read(&root(), attr.ino, 0, &mut byte);
                        v.release(attr.ino);
                    }
                }
            });
        }
    });
    assert!(v.free() + 1 >= free, "{} free, before {free}", v.free());
}
