//! Replacing files on a real file system.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr};
use steadfast::{ReplaceError, Replacement, Step, atomic_replace, remove_leftovers};

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_file_is_made_and_replaced_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    atomic_replace(&path, b"first").unwrap();
    let made = fs::File::create(dir.path().join("beside")).unwrap();
    let usual = made.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(
        mode(&path),
        usual,
        "a new file has the mode that the umask leaves"
    );
    atomic_replace(&path, b"").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    let long = vec![7; 3_000_000];
    atomic_replace(&path, &long).unwrap();
    assert_eq!(fs::read(&path).unwrap(), long);
    assert_eq!(names(dir.path()), ["beside", "file"]);
}

#[test]
fn mode_owner_and_extended_attributes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "old").unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6751)).unwrap();
    let marked = setxattr(&path, "user.note", b"kept", XattrFlags::empty()).is_ok();
    let before = fs::metadata(&path).unwrap();
    atomic_replace(&path, b"new").unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_ne!(before.ino(), after.ino());
    assert_eq!(
        (before.mode(), before.uid(), before.gid()),
        (after.mode(), after.uid(), after.gid())
    );
    if marked {
        let mut value = [0; 8];
        let len = getxattr(&path, "user.note", &mut value).unwrap();
        assert_eq!(&value[..len], b"kept");
    }
}

#[test]
fn links_are_followed_and_other_names_keep_the_old_content() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), "old").unwrap();
    fs::hard_link(at("sub/file"), at("other name")).unwrap();
    symlink("sub/file", at("link")).unwrap();
    symlink(at("link"), at("link to link")).unwrap();
    symlink("sub/absent", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    atomic_replace(at("link to link"), b"new").unwrap();
    atomic_replace(at("dangling"), b"made").unwrap();
    assert_eq!(fs::read(at("sub/file")).unwrap(), b"new");
    assert_eq!(fs::read(at("other name")).unwrap(), b"old");
    assert_eq!(fs::read(at("sub/absent")).unwrap(), b"made");
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert!(matches!(
        atomic_replace(at("loop"), b"x"),
        Err(ReplaceError::Failed {
            step: Step::Find,
            ..
        })
    ));
}

#[test]
fn other_files_than_regular_ones_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for path in [
        dir.path().join("sub"),
        dir.path().join("sub/"),
        dir.path().join(".."),
        "/dev/null".into(),
        "/".into(),
    ] {
        let refused = atomic_replace(&path, b"x");
        assert!(
            matches!(refused, Err(ReplaceError::NotRegular { .. })),
            "{path:?}: {refused:?}"
        );
    }
    let absent = atomic_replace(dir.path().join("none/file"), b"x");
    assert!(matches!(
        absent,
        Err(ReplaceError::Failed {
            step: Step::Find,
            ..
        })
    ));
    assert_eq!(names(dir.path()), ["sub"]);
}

#[test]
fn a_dropped_or_failed_replacement_leaves_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "old").unwrap();
    let mut given_up = Replacement::begin(&path).unwrap();
    Write::write_all(&mut given_up, b"new").unwrap();
    drop(given_up);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let mut fails = Replacement::begin(&path).unwrap();
    fails.write(b"new").unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = fails.commit().unwrap_err();
    assert!(matches!(error, ReplaceError::Failed { .. }), "{error}");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn of_writers_at_a_time_one_wins_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    atomic_replace(&path, &[0; 10_000]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=4_u8)
            .map(|n| {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..25 {
                        atomic_replace(path, &[n; 10_000]).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let seen = fs::read(&path).unwrap();
                assert_eq!(seen.len(), 10_000);
                assert!(seen.iter().all(|byte| *byte == seen[0]));
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn leftovers_go_and_files_of_living_writers_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let kept = [
        ".file.12-1.steadfast.x",
        ".file.12.steadfast",
        ".file.12-x.steadfast",
        ".other.12-1.steadfast",
        ".file.77-3.steadfast",
        "file",
    ];
    for name in kept
        .iter()
        .chain(&[".file.12-1.steadfast", ".file.4-0.steadfast"])
    {
        fs::write(at(name), "x").unwrap();
    }
    let living = fs::File::open(at(".file.77-3.steadfast")).unwrap();
    flock(&living, FlockOperation::LockExclusive).unwrap();
    assert_eq!(remove_leftovers(at("file")).unwrap(), 2);
    let mut expected = kept.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(names(dir.path()), expected);
    drop(living);
    assert_eq!(remove_leftovers(at("file")).unwrap(), 1);
    assert_eq!(remove_leftovers(at("file")).unwrap(), 0);
}

#[test]
fn the_longest_name_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n".repeat(255));
    atomic_replace(&path, b"x").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"x");
}
