//! Corner 29: inodes without names, on the medium and after a crash.

use super::common::*;
use steadfast_vfs::{Errno, FileSystem, RenameMode, SetAttr};

#[test]
fn corner_29_after_a_crash_the_next_mount_frees_files_that_were_open() {
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
fn the_orphan_directory_has_no_owner() {
    let v = Volume::new(16);
    let hidden = v.root() + 1;
    fails(v.getattr(&root(), hidden), Errno::Stale);
    fails(v.lookup(&root(), hidden, b".."), Errno::Stale);
    fails(v.readdir(&root(), hidden, 0, &mut |_| true), Errno::Stale);
    fails(v.file_by(&root(), hidden, "x"), Errno::Stale);
    fails(v.open(&root(), hidden), Errno::Stale);
}
