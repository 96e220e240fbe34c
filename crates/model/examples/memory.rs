//! Tests a program's code on a file system in memory: no mount, no disk, and a clock that the test moves.
//!
//! Run it with `cargo run -p steadfast-model --example memory`.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use steadfast_model::memfs::{MemFs, TestClock};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode, RenameMode, Result, Time};

/// The code under test: replaces a file. It takes any file system: a volume in production, the model here.
fn replace(fs: &dyn FileSystem, me: &Caller, name: &[u8], content: &[u8]) -> Result<()> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let new = fs.mknod(me, fs.root(), b"new", &node)?.ino;
    let written = fs.write(me, new, 0, content)?;
    if written < content.len() {
        return Err(Errno::NoSpc.into());
    }
    fs.rename(
        me,
        (fs.root(), b"new"),
        (fs.root(), name),
        RenameMode::Replace,
    )?;
    fs.fsync(me, new, false)
}

fn main() -> Result<()> {
    let clock = TestClock::new();
    clock.set(Time {
        secs: 1000,
        nanos: 0,
    });
    let fs = MemFs::new(Arc::new(clock.clone()));
    let me = Caller::root();

    replace(&fs, &me, b"settings", b"first")?;
    clock.set(Time {
        secs: 2000,
        nanos: 0,
    });
    replace(&fs, &me, b"settings", b"second")?;

    let file = fs.lookup(&me, fs.root(), b"settings")?;
    let mut found = vec![0; file.size as usize];
    let len = fs.read(&me, file.ino, 0, &mut found)?;
    println!("{}", String::from_utf8_lossy(&found));
    assert_eq!(&found[..len], b"second");
    assert_eq!(file.mtime.secs, 2000, "the time is the test's");
    let left = fs.lookup(&me, fs.root(), b"new");
    assert!(left.is_err_and(|e| e == Errno::NoEnt));

    // Permissions are those of POSIX: another user may not even look for the file that it wants to replace.
    let other = Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::root()
    };
    let refused = replace(&fs, &other, b"settings", b"third");
    assert!(refused.is_err_and(|e| e == Errno::Access));
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<()> {
    main()
}
