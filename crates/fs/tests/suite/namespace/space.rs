//! A full volume: operations that find no space change nothing.

use super::common::*;
use steadfast_vfs::{Errno, FileSystem, RenameMode, SetAttr, XattrMode};

/// Everything below a directory that a program can see, in one text.
fn picture(v: &Volume) -> String {
    let mut lines = Vec::new();
    let mut open = vec![(v.root(), String::new())];
    while let Some((dir, path)) = open.pop() {
        for name in v.names(dir) {
            let attr = v.look(dir, &name).unwrap();
            let path = format!("{path}/{name}");
            lines.push(format!("{path} {attr:?}"));
            if attr.kind == steadfast_vfs::FileKind::Directory {
                open.push((attr.ino, path));
            }
        }
    }
    lines.sort();
    format!("{:?}\n{}", v.attr(v.root()), lines.join("\n"))
}

fn fill(v: &Volume) {
    let r = v.root();
    let f = v.file(r, "filler");
    let mut at = 0;
    for piece in [1 << 20, 4096] {
        loop {
            match v.write(&root(), f, at, &vec![1; piece]) {
                Ok(count) => at += count as u64,
                Err(error) => {
                    assert!(error == Errno::NoSpc, "{error}");
                    break;
                }
            }
        }
        v.sync().unwrap();
    }
}

/// An attribute that takes a block of its own.
const LONG: [u8; 100] = [1; 100];

#[test]
fn corner_30_an_operation_without_space_restores_everything() {
    let mut v = Volume::with_log(4, Some(64));
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(d, "f");
    v.write(&root(), f, 0, b"content").unwrap();
    fill(&v);
    // Take the rest: the last blocks, then the inode slots.
    for n in 0.. {
        let f = v.file_by(&root(), r, &format!("{n}")).map(|attr| attr.ino);
        let full = f.and_then(|f| v.setxattr(&root(), f, b"user.a", &LONG, XattrMode::Any));
        if let Err(error) = full {
            assert!(error == Errno::NoSpc, "{error}");
            break;
        }
    }
    let slots = (0..).find_map(|n| v.mkdir(&root(), r, format!("d{n}").as_bytes(), 0o755).err());
    assert!(slots.is_some_and(|error| error == Errno::NoSpc));
    for round in 0..3 {
        let before = (picture(&v), v.free());
        let long = [b'n'; 250];
        let mut failed = 0;
        let mut refused = |result: steadfast_vfs::Result<()>| {
            if let Err(error) = result {
                assert!(error == Errno::NoSpc, "{error}");
                failed += 1;
                assert_eq!((picture(&v), v.free()), before, "round {round}");
            } else {
                panic!("there was space");
            }
        };
        refused(v.mkdir(&root(), r, &long, 0o755).map(drop));
        refused(v.symlink(&root(), r, &long, &[b't'; 3000]).map(drop));
        refused(v.setxattr(&root(), f, b"user.a", &LONG, XattrMode::Any));
        refused(v.setxattr(&root(), d, b"user.a", &LONG, XattrMode::Any));
        refused(v.write(&root(), f, 1 << 20, b"more").map(drop));
        refused(v.write(&root(), f, 4096, &[7; 9000]).map(drop));
        assert_eq!(failed, 6);
        v.remount();
        let after = (picture(&v), v.free());
        assert_eq!(after, before);
        // Operations that need no space still work, and work the same each time.
        v.setxattr(&root(), f, b"user.a", b"v", XattrMode::Any)
            .unwrap();
        v.removexattr(&root(), f, b"user.a").unwrap();
        v.write(&root(), f, 0, b"CONTENT").unwrap();
        v.setattr(
            &root(),
            f,
            &SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            },
        )
        .unwrap();
        assert_eq!(v.content(f), b"CONTENT");
    }
    // Space can always be made, also from open files.
    let filler = v.look(r, "filler").unwrap().ino;
    v.open(&root(), filler).unwrap();
    v.unlink(&root(), r, b"filler").unwrap();
    v.release(filler);
    v.mkdir(&root(), r, &[b'n'; 250], 0o755).unwrap();
    v.write(&root(), f, 1 << 20, b"more").unwrap();
}

#[test]
fn corner_01_removing_makes_room_at_once_even_before_a_commit() {
    let v = Volume::with_log(4, Some(64));
    let r = v.root();
    fill(&v);
    for round in 0..20 {
        // No sync in between: the freed blocks are in quarantine until a commit is forced.
        v.unlink(&root(), r, b"filler").unwrap();
        let f = v.file(r, "filler");
        v.write(&root(), f, 0, &vec![round; 1 << 20]).unwrap();
        let g = v.file(r, "g");
        v.write(&root(), g, 0, &vec![round; 900_000]).unwrap();
        v.rename(&root(), (r, b"g"), (r, b"filler"), RenameMode::Replace)
            .unwrap();
        assert_eq!(v.content(g), vec![round; 900_000]);
    }
}

#[test]
fn files_without_content_fill_a_volume_too_and_can_be_removed() {
    let mut v = Volume::with_log(2, Some(64));
    let r = v.root();
    let free = v.free();
    let mut made = 0;
    loop {
        match v.file_by(&root(), r, &format!("a file with a name {made}")) {
            Ok(_) => made += 1,
            Err(error) => {
                assert!(error == Errno::NoSpc, "{error}");
                break;
            }
        }
    }
    assert!(made > 3000, "{made}");
    v.remount();
    assert_eq!(v.names(r).len(), made);
    for n in 0..made {
        v.unlink(&root(), r, format!("a file with a name {n}").as_bytes())
            .unwrap();
    }
    assert_eq!(v.names(r).len(), 0);
    assert_eq!(v.free(), free);
}
