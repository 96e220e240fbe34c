//! A region to the last page and the last inode, then used in every way.

use super::common::*;
use steadfast_vfs::{AllocateMode, Errno, FileSystem, Ino, RenameMode, SetAttr, XattrMode};

const PAGE: u64 = 4096;

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// A volume with a file of all free pages, and some names.
fn full_volume() -> (Volume, Ino) {
    let v = Volume::with(made(1 << 20, 4096), options());
    let r = v.root();
    let d = v.dir(r, "d");
    v.file(d, "x");
    v.dir(r, "e");
    v.symlink(&root(), r, b"l", &[b't'; 100]).unwrap();
    let f = v.file(r, "f");
    let free = v.free();
    let data = vec![5; (free * PAGE) as usize + 1];
    // The part that fits is written: the call returns its length.
    assert_eq!(v.write(&root(), f, 0, &data).unwrap(), data.len() - 1);
    assert_eq!(v.free(), 0);
    (v, f)
}

#[test]
fn with_no_page_left_every_call_is_done_or_leaves_no_trace() {
    let (v, f) = full_volume();
    let r = v.root();
    let [d, e] = ["d", "e"].map(|name| v.look(r, name).unwrap().ino);
    let before = (v.attr(f), v.attr(r), v.attr(d), v.attr(e), v.names(r));
    let inodes = v.statfs().unwrap().inodes_free;
    let c = &root();
    let n = Errno::NoSpc;
    fails(v.append(c, f, b"x"), n);
    fails(v.write(c, f, 0, b"x"), n);
    fails(v.write(c, f, 9 << 20, b"x"), n);
    fails(v.file_by(c, e, "first"), n);
    fails(v.mkdir(c, e, b"first", 0o755), n);
    fails(v.symlink(c, r, b"m", &[b't'; 41]), n);
    fails(v.link(c, f, e, b"first"), n);
    let mv = |from: (Ino, &str), to: (Ino, &str), mode| {
        v.rename(
            c,
            (from.0, from.1.as_bytes()),
            (to.0, to.1.as_bytes()),
            mode,
        )
    };
    fails(mv((r, "f"), (e, "f"), RenameMode::Replace), n);
    fails(mv((r, "f"), (e, "f"), RenameMode::Whiteout), n);
    fails(v.fallocate(c, f, AllocateMode::KeepSize, 0, 9 << 20), n);
    fails(v.fallocate(c, f, AllocateMode::PunchHole, 1, 10), n);
    let big = vec![0; 100];
    fails(v.setxattr(c, f, b"user.a", &big, XattrMode::Any), n);
    let after = (v.attr(f), v.attr(r), v.attr(d), v.attr(e), v.names(r));
    assert_eq!(before, after);
    assert_eq!((v.free(), v.statfs().unwrap().inodes_free), (0, inodes));

    // All that needs no page is done.
    v.file(r, "g");
    v.link(c, f, r, b"h").unwrap();
    v.symlink(c, r, b"s", b"f").unwrap();
    mv((r, "g"), (d, "g"), RenameMode::Replace).unwrap();
    mv((d, "g"), (d, "x"), RenameMode::Replace).unwrap();
    mv((d, "x"), (r, "h"), RenameMode::Exchange).unwrap();
    mv((d, "x"), (r, "h"), RenameMode::Whiteout).unwrap();
    v.setattr(
        c,
        f,
        &SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        },
    )
    .unwrap();
    v.setxattr(c, f, b"user.a", b"1", XattrMode::Any).unwrap();
    v.fallocate(c, f, AllocateMode::ZeroRange, 0, PAGE).unwrap();
    // A page that is there, though unwritten.
    assert_eq!(v.write(c, f, 0, &[6; 4096]).unwrap(), 4096);
    v.setattr(c, f, &size(9 << 20)).unwrap();
    v.fallocate(c, f, AllocateMode::PunchHole, PAGE, PAGE)
        .unwrap();
    assert_eq!(v.free(), 1);
    // Now one page at a time.
    assert_eq!(v.write(c, f, 0, &[7; 9000]).unwrap(), 4096);
    assert_eq!(v.free(), 1);
    assert_eq!(v.write(c, f, PAGE, &[7; 9000]).unwrap(), 4096);
    assert_eq!(v.free(), 0);
    v.unlink(c, r, b"l").unwrap();
    assert_eq!(v.free(), 1);
    v.file(e, "first");
    v.rmdir(c, r, b"e").unwrap_err();
    v.unlink(c, e, b"first").unwrap();
    v.rmdir(c, r, b"e").unwrap();
    assert_eq!(v.free(), 1);
    v.setattr(c, f, &size(0)).unwrap();
    assert!(v.free() > 200);
}

#[test]
fn corner_71_preallocated_space_is_written_on_a_full_volume_in_any_order() {
    let mut v = Volume::new(1);
    let r = v.root();
    let f = v.file(r, "f");
    let pages = 40;
    v.fallocate(&root(), f, AllocateMode::KeepSize, 0, pages * PAGE)
        .unwrap();
    let g = v.file(r, "g");
    let rest = vec![1; (v.free() * PAGE) as usize];
    assert_eq!(v.write(&root(), g, 0, &rest).unwrap(), rest.len());
    for n in 0..pages {
        let page = n * 17 % pages;
        let at = page * PAGE;
        assert_eq!(v.write(&root(), f, at, &[page as u8; 4096]).unwrap(), 4096);
    }
    v.cut();
    let content = v.content(f);
    assert_eq!(content.len() as u64, pages * PAGE);
    for (at, byte) in content.iter().enumerate() {
        assert_eq!(u64::from(*byte), at as u64 / PAGE);
    }
    assert_eq!(v.free(), 0);
    fails(v.write(&root(), f, 0, b"x"), Errno::NoSpc);
}

#[test]
fn the_last_inode_can_be_used_and_comes_back() {
    let mut v = Volume::with(made(1 << 20, 64 << 10), options());
    let r = v.root();
    let free = v.statfs().unwrap().inodes_free;
    let mut made = Vec::new();
    let error = loop {
        match v.file_by(&root(), r, &format!("f{}", made.len())) {
            Ok(attr) => made.push(attr.ino),
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno, Errno::NoSpc);
    assert_eq!(made.len() as u64, free);
    assert_eq!(v.statfs().unwrap().inodes_free, 0);
    let c = &root();
    let before = v.attr(r);
    fails(v.mkdir(c, r, b"d", 0o755), Errno::NoSpc);
    fails(v.symlink(c, r, b"s", b"t"), Errno::NoSpc);
    fails(v.tmpfile(c, r, 0o600), Errno::NoSpc);
    fails(
        v.rename(c, (r, b"f0"), (r, b"g"), RenameMode::Whiteout),
        Errno::NoSpc,
    );
    assert_eq!(v.attr(r), before);
    v.link(c, made[0], r, b"link").unwrap();
    v.rename(c, (r, b"f0"), (r, b"f1"), RenameMode::Replace)
        .unwrap();
    assert_eq!(v.statfs().unwrap().inodes_free, 1);
    // It is in use as long as it is open.
    v.open(c, made[2]).unwrap();
    v.unlink(c, r, b"f2").unwrap();
    v.dir(r, "d");
    fails(v.mkdir(c, r, b"e", 0o755), Errno::NoSpc);
    v.release(made[2]);
    v.dir(r, "e");
    v.cut();
    assert_eq!(v.statfs().unwrap().inodes_free, 0);
}
