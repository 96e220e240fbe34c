//! Corner 29: inodes without names, while they are open. The file system on persistent memory runs these tests, too.

use super::common::*;
use steadfast_vfs::{Errno, FileSystem, RenameMode};

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
