//! Threads in each other's way, without any lock of the test's: removals, creations, renames and
//! lookups of a few names, whose inode numbers are reused. Each result must be an allowed one.

use super::common::*;
use std::sync::Arc;
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, MkfsOptions, mkfs};
use steadfast_model::Snapshot;
use steadfast_testkit::Random;
use steadfast_vfs::{Attr, Caller, Errno, FileKind, FileSystem, Ino, NewNode, RenameMode, Result};

/// Names of one kind. An inode with one of these names always is of that kind, and carries its mark.
#[derive(Clone, Copy)]
struct Kind {
    letter: char,
    kind: FileKind,
    perm: u16,
}

const KINDS: [Kind; 4] = [
    Kind {
        letter: 'f',
        kind: FileKind::Regular,
        perm: 0o601,
    },
    Kind {
        letter: 'g',
        kind: FileKind::Regular,
        perm: 0o602,
    },
    Kind {
        letter: 'd',
        kind: FileKind::Directory,
        perm: 0o703,
    },
    Kind {
        letter: 'p',
        kind: FileKind::Fifo,
        perm: 0o604,
    },
];

fn allowed<T>(what: &str, result: Result<T>, errors: &[Errno]) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if errors.iter().any(|errno| error == *errno) => None,
        Err(error) => panic!("{what}: {error}"),
    }
}

fn must_be(what: &str, attr: &Attr, kind: Kind) {
    assert_eq!((attr.kind, attr.perm), (kind.kind, kind.perm), "{what}");
    assert!(attr.nlink > 0, "{what} has no name");
}

fn step(fs: &Fs, caller: &Caller, dirs: [Ino; 2], random: &mut Random) {
    let kind = KINDS[random.below(4) as usize];
    let mut name = || format!("{}{}", kind.letter, random.below(3)).into_bytes();
    let (from, to) = (name(), name());
    let (dir, other) = match random.below(4) {
        0 => (dirs[0], dirs[1]),
        1 => (dirs[1], dirs[0]),
        n => (dirs[n as usize % 2], dirs[n as usize % 2]),
    };
    let is_dir = kind.kind == FileKind::Directory;
    let what = format!("{} in {dir}", String::from_utf8_lossy(&from));
    match random.below(8) {
        0 | 1 => {
            let made = if is_dir {
                fs.mkdir(caller, dir, &from, kind.perm)
            } else {
                let node = NewNode {
                    kind: kind.kind,
                    perm: kind.perm,
                    rdev: 0,
                };
                fs.mknod(caller, dir, &from, &node)
            };
            if let Some(made) = allowed(&what, made, &[Errno::Exist]) {
                must_be(&what, &made, kind);
            }
        }
        2 if is_dir => {
            allowed(&what, fs.rmdir(caller, dir, &from), &[Errno::NoEnt]);
        }
        2 => {
            allowed(&what, fs.unlink(caller, dir, &from), &[Errno::NoEnt]);
        }
        3 => {
            let mode = match random.below(3) {
                0 => RenameMode::Replace,
                1 => RenameMode::NoReplace,
                _ => RenameMode::Exchange,
            };
            let errors: &[Errno] = match mode {
                RenameMode::NoReplace => &[Errno::NoEnt, Errno::Exist],
                _ => &[Errno::NoEnt],
            };
            let renamed = fs.rename(caller, (dir, &from), (other, &to), mode);
            allowed(&what, renamed, errors);
        }
        4 if kind.kind == FileKind::Regular => {
            let Some(found) = allowed(&what, fs.lookup(caller, dir, &from), &[Errno::NoEnt]) else {
                return;
            };
            // By number: any inode may have it by now. A directory is no file to write to.
            let errors = [
                Errno::Stale,
                Errno::IsDir,
                Errno::Inval,
                Errno::NoEnt,
                Errno::Perm,
            ];
            allowed(
                &what,
                fs.write(caller, found.ino, 5000, &[7; 5000]),
                &errors,
            );
        }
        _ => {
            if let Some(found) = allowed(&what, fs.lookup(caller, dir, &from), &[Errno::NoEnt]) {
                must_be(&what, &found, kind);
            }
        }
    }
}

/// Story: a lookup could return another file, an unlink report damage, and a rename move a directory
/// without the lock of such moves, because only the inode numbers were compared, not the inodes.
#[test]
fn concurrent_threads_give_only_allowed_results() {
    for (round, contract) in [Contract::Ordered, Contract::MetadataPrefix]
        .into_iter()
        .enumerate()
    {
        let device = Arc::new(MemDevice::new(64 * 256));
        let options = MkfsOptions {
            contract,
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let fs = mount(&device);
        let top = fs.dir(fs.root(), "top");
        let dirs = [fs.dir(top, "a"), fs.dir(top, "b")];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let fs = &fs;
                scope.spawn(move || {
                    let mut random = Random::from_state(1 + thread + 100 * round as u64);
                    let caller = stream(thread as u32 % 2);
                    for _ in 0..6000 {
                        step(fs, &caller, dirs, &mut random);
                    }
                });
            }
        });
        assert_eq!(fs.take_warnings(), Vec::<String>::new());
        let before = Snapshot::of_fs(&*fs).unwrap();
        fs.unmount().unwrap();
        must_be_clean(&device);
        let fs = mount(&device);
        assert!(before == Snapshot::of_fs(&*fs).unwrap());
    }
}
