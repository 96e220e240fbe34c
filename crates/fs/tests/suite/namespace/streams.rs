//! Streams: the changes that one fsync makes durable, and those that it leaves alone.

use super::common::*;
use std::sync::Arc;
use steadfast_fs::{Fs, MkfsOptions, mkfs};
use steadfast_sim::SimDevice;
use steadfast_vfs::{Errno, FileSystem, Ino, RenameMode, XattrMode};

/// A volume on a device that keeps its writes in a volatile cache.
pub struct Sim {
    pub device: Arc<SimDevice>,
    pub fs: Arc<Fs>,
}

impl std::ops::Deref for Sim {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

pub fn mount_sim(device: Arc<SimDevice>) -> Sim {
    let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options()).unwrap();
    Sim { device, fs }
}

impl Sim {
    pub fn new() -> Sim {
        let device = Arc::new(SimDevice::new(16 * 256));
        let options = MkfsOptions {
            seed: Some(1),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        mount_sim(device)
    }

    /// State after a power cut at this moment, if nothing unflushed survives.
    pub fn after_a_cut(&self) -> Sim {
        let mut explorer = self.device.explorer();
        let end = explorer.len();
        let cut = explorer.cut(end);
        let device = Arc::new(SimDevice::from_image(cut.durable().clone()));
        must_be_clean(&device);
        mount_sim(device)
    }
}

/// Does `first` in stream 1 and `second` in stream 2, fsyncs the root's *stream 2* through an
/// untouched file, and tells which of the two survive.
pub fn survivors(
    set_up: impl Fn(&Fs),
    first: impl Fn(&Fs),
    second: impl Fn(&Fs),
    happened: impl Fn(&Fs) -> (bool, bool),
) -> (bool, bool) {
    let v = Sim::new();
    let mark = v.file(v.root(), "mark");
    set_up(&v);
    v.sync().unwrap();
    first(&v);
    second(&v);
    assert_eq!(happened(&v), (true, true), "before the cut");
    v.fsync(&stream(2), mark, false).unwrap();
    happened(&v.after_a_cut())
}

pub const ALONE: (bool, bool) = (false, true);
pub const BOTH: (bool, bool) = (true, true);

pub fn at(fs: &Fs, path: &str) -> Option<Ino> {
    let mut ino = fs.root();
    for name in path.split('/') {
        ino = fs.look(ino, name)?.ino;
    }
    Some(ino)
}

pub fn must(fs: &Fs, path: &str) -> Ino {
    at(fs, path).unwrap()
}

#[test]
fn corner_20_an_fsync_leaves_other_streams_uncommitted() {
    // In one directory, one directory block, one inode block.
    let result = survivors(
        |v| {
            v.file(v.root(), "warm");
        },
        |v| {
            v.file_by(&stream(1), v.root(), "a").unwrap();
        },
        |v| {
            v.file_by(&stream(2), v.root(), "b").unwrap();
        },
        |v| (at(v, "a").is_some(), at(v, "b").is_some()),
    );
    assert_eq!(result, ALONE);
    // Making and removing next to each other.
    let result = survivors(
        |v| {
            v.file(v.root(), "b");
        },
        |v| {
            v.mkdir(&stream(1), v.root(), b"a", 0o755).unwrap();
        },
        |v| v.unlink(&stream(2), v.root(), b"b").unwrap(),
        |v| (at(v, "a").is_some(), at(v, "b").is_none()),
    );
    assert_eq!(result, ALONE);
    // Attributes of two files in one inode block.
    let result = survivors(
        |v| {
            v.file(v.root(), "a");
            v.file(v.root(), "b");
        },
        |v| {
            let a = must(v, "a");
            v.setxattr(&stream(1), a, b"user.x", b"1", XattrMode::Any)
                .unwrap();
            v.write(&stream(1), a, 0, &[1; 10_000]).unwrap();
        },
        |v| {
            v.write(&stream(2), must(v, "b"), 0, b"b").unwrap();
        },
        |v| (v.attr(must(v, "a")).size > 0, v.attr(must(v, "b")).size > 0),
    );
    assert_eq!(result, ALONE);
}

#[test]
fn corner_22_the_counters_of_a_directory_are_right_whichever_stream_survives() {
    let v = Sim::new();
    let r = v.root();
    let d = v.dir(r, "d");
    v.dir(d, "old");
    let mark = v.file(r, "mark");
    v.sync().unwrap();
    for n in 0..3 {
        v.mkdir(&stream(1), d, format!("one {n}").as_bytes(), 0o755)
            .unwrap();
        v.mkdir(&stream(2), d, format!("two {n}").as_bytes(), 0o755)
            .unwrap();
    }
    v.rmdir(&stream(1), d, b"old").unwrap();
    assert_eq!(v.attr(d).nlink, 8);
    v.fsync(&stream(2), mark, false).unwrap();
    let after = v.after_a_cut();
    assert_eq!(after.names(d), ["old", "two 0", "two 1", "two 2"]);
    assert_eq!(after.attr(d).nlink, 6);
    assert!(after.attr(d).mtime <= v.attr(d).mtime);
    for name in after.names(d) {
        after.rmdir(&root(), d, name.as_bytes()).unwrap();
    }
    after.rmdir(&root(), r, b"d").unwrap();
}

#[test]
fn corner_57_a_dependent_change_takes_the_other_stream_along() {
    // Two links of one file.
    let result = survivors(
        |v| {
            let f = v.file(v.root(), "a");
            v.link(&root(), f, v.root(), b"b").unwrap();
        },
        |v| v.unlink(&stream(1), v.root(), b"a").unwrap(),
        |v| v.unlink(&stream(2), v.root(), b"b").unwrap(),
        |v| (at(v, "a").is_none(), at(v, "b").is_none()),
    );
    assert_eq!(result, BOTH, "two links unlinked");
    let result = survivors(
        |v| {
            v.file(v.root(), "a");
        },
        |v| {
            v.link(&stream(1), must(v, "a"), v.root(), b"b").unwrap();
        },
        |v| v.unlink(&stream(2), v.root(), b"a").unwrap(),
        |v| (at(v, "b").is_some(), at(v, "a").is_none()),
    );
    assert_eq!(result, BOTH, "link, then unlink of the other name");
    let set_up = |v: &Fs| {
        let d = v.dir(v.root(), "d");
        v.file(d, "x");
    };
    let result = survivors(
        set_up,
        |v| v.unlink(&stream(1), must(v, "d"), b"x").unwrap(),
        |v| v.rmdir(&stream(2), v.root(), b"d").unwrap(),
        |v| (at(v, "d/x").is_none(), at(v, "d").is_none()),
    );
    assert_eq!(result, BOTH, "unlink, then rmdir");
    let result = survivors(
        set_up,
        |v| v.unlink(&stream(1), must(v, "d"), b"x").unwrap(),
        |v| {
            v.mkdir(&stream(2), must(v, "d"), b"x", 0o755).unwrap();
        },
        |v| {
            let kind = v.look(must(v, "d"), "x").map(|attr| attr.kind);
            let done = kind == Some(steadfast_vfs::FileKind::Directory);
            (done, done)
        },
    );
    assert_eq!(result, BOTH, "unlink, then create of the same name");
    let result = survivors(
        |_| {},
        |v| {
            v.mkdir(&stream(1), v.root(), b"d", 0o755).unwrap();
        },
        |v| {
            v.file_by(&stream(2), must(v, "d"), "x").unwrap();
        },
        |v| {
            (
                at(v, "d").is_some(),
                at(v, "d").is_some_and(|d| v.look(d, "x").is_some()),
            )
        },
    );
    assert_eq!(result, BOTH, "mkdir, then create inside");
    let result = survivors(
        |v| {
            v.dir(v.root(), "a");
            v.dir(v.root(), "b");
        },
        |v| {
            v.rename(
                &stream(1),
                (v.root(), b"a"),
                (must(v, "b"), b"a"),
                RenameMode::Replace,
            )
            .unwrap();
        },
        |v| {
            v.mkdir(&stream(2), v.root(), b"c", 0o755).unwrap();
            v.rename(
                &stream(2),
                (v.root(), b"c"),
                (must(v, "b"), b"c"),
                RenameMode::Replace,
            )
            .unwrap();
        },
        |v| {
            (
                at(v, "b/a").is_some(),
                at(v, "b").is_some_and(|b| v.look(b, "c").is_some()),
            )
        },
    );
    assert_eq!(result, BOTH, "two renames of directories");
    // A dirty file of one stream, unlinked by another.
    let result = survivors(
        |v| {
            v.file(v.root(), "a");
        },
        |v| {
            v.write(&stream(1), must(v, "a"), 0, &[1; 5000]).unwrap();
            v.link(&stream(1), must(v, "a"), v.root(), b"keep").unwrap();
        },
        |v| v.unlink(&stream(2), v.root(), b"a").unwrap(),
        |v| {
            let kept = at(v, "keep").is_some_and(|f| v.content(f) == vec![1; 5000]);
            (kept, at(v, "a").is_none())
        },
    );
    assert_eq!(result, BOTH, "unlink of a dirty file");
}

#[test]
fn corner_57_a_split_of_a_directory_block_takes_the_entries_in_it_along() {
    let v = Sim::new();
    let r = v.root();
    let d = v.dir(r, "d");
    let mark = v.file(r, "mark");
    for n in 0..20 {
        v.file(d, &format!("old {n:0100}"));
    }
    v.sync().unwrap();
    // Stream 1 makes a few entries; stream 2 makes enough that blocks split.
    for n in 0..3 {
        v.file_by(&stream(1), d, &format!("one {n}")).unwrap();
    }
    for n in 0..100 {
        v.file_by(&stream(2), d, &format!("two {n:0100}")).unwrap();
    }
    let names = v.names(d);
    v.fsync(&stream(2), mark, false).unwrap();
    let after = v.after_a_cut();
    // All of stream 2, and the part of stream 1 that it took along: here everything or nothing.
    let found = after.names(d);
    let mine = |names: &[String], who: &str| names.iter().filter(|n| n.starts_with(who)).count();
    assert_eq!((mine(&found, "old"), mine(&found, "two")), (20, 100));
    assert_eq!(mine(&found, "one"), 3);
    assert_eq!(found, names);
    for name in found {
        assert!(after.look(d, &name).is_some(), "{name}");
        after.unlink(&root(), d, name.as_bytes()).unwrap();
    }
    after.rmdir(&root(), r, b"d").unwrap();
}

#[test]
fn corner_59_fsync_of_a_file_takes_along_the_streams_that_changed_or_made_it() {
    let v = Sim::new();
    let r = v.root();
    let f = v.file_by(&stream(1), r, "f").unwrap().ino;
    v.write(&stream(1), f, 0, b"data").unwrap();
    v.file_by(&stream(3), r, "g").unwrap();
    v.fsync(&stream(2), f, true).unwrap();
    let after = v.after_a_cut();
    assert_eq!(after.content(f), b"data");
    assert_eq!(after.look(r, "f").map(|attr| attr.ino), Some(f));
    // fsync of a directory takes along the streams that changed its entries.
    let d = v.mkdir(&stream(1), r, b"d", 0o755).unwrap().ino;
    v.file_by(&stream(3), d, "x").unwrap();
    v.fsync(&stream(2), d, false).unwrap();
    assert_eq!(v.after_a_cut().names(d), ["x"]);
    fails(v.fsync(&stream(2), 16 * 2000, false), Errno::Stale);
}
