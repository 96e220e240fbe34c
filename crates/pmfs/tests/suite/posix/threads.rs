//! Many threads at once: the result of each call is one that some order of the calls gives, and their final state
//! is whole.
#![allow(missing_docs, unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::common::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{Handles, Snapshot};
use steadfast_vfs::{Errno, FileKind, FileSystem, RenameMode, SetAttr};

const THREADS: usize = 4;

/// Runs `run` in `threads` threads, which begin together.
fn together<T: Send>(threads: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    let (run, barrier) = (&run, &barrier);
    std::thread::scope(|scope| {
        let thread = |n| {
            scope.spawn(move || {
                barrier.wait();
                run(n)
            })
        };
        let threads: Vec<_> = (0..threads).map(thread).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn random_operations_of_many_threads_leave_a_whole_volume() {
    for round in 0..4 {
        // On the small ones everything runs out now and then.
        let bytes = [1 << 20, 8 << 20][round as usize % 2];
        let mut options = options();
        options.in_place = round >= 2;
        let v = Volume::with(made(bytes, 16 << 10), options);
        together(THREADS, |thread| {
            // The same few names for all: they get into each other's way.
            let shape = Shape {
                handles: true,
                users: true,
                ..Shape::default()
            };
            let mut handles = Handles::new();
            for step in Workload::new(100 * round + thread as u64, shape).take(2000) {
                let found = step.op.run(&*v, &step.caller, &mut handles);
                let wrong = [Errno::Uclean, Errno::Io];
                assert!(!found.is_err_and(|e| wrong.contains(&e)), "{}", step.op);
            }
            for ino in handles.into_values() {
                v.release(ino);
            }
        });
        let before = Snapshot::of_fs(&*v).unwrap();
        let again = mount(copy(&v));
        let after = Snapshot::of_fs(&again).unwrap();
        assert!(before == after);
        // Nothing is open, so the indexes agree to the last page.
        assert_eq!(v.statfs().unwrap(), again.statfs().unwrap());
    }
}

/// The one thread that succeeds. All others must fail with this error.
fn winner<T: std::fmt::Debug>(results: Vec<steadfast_vfs::Result<T>>, errno: Errno) -> usize {
    let won: Vec<usize> = (0..results.len()).filter(|n| results[*n].is_ok()).collect();
    assert_eq!(won.len(), 1, "{results:?}");
    for result in results {
        assert!(result.is_ok() || result.is_err_and(|e| e == errno));
    }
    won[0]
}

#[test]
fn one_of_several_threads_that_want_the_same_name_gets_it() {
    let v = Volume::new(4);
    let r = v.root();
    let dirs: Vec<u64> = (0..THREADS).map(|n| v.dir(r, &format!("d{n}"))).collect();
    for _ in 0..40 {
        winner(
            together(THREADS, |_| v.file_by(&root(), r, "f")),
            Errno::Exist,
        );
        let f = v.look(r, "f").unwrap().ino;
        for dir in &dirs {
            v.link(&root(), f, *dir, b"own").unwrap();
        }
        let results = together(THREADS, |n| {
            let (from, to) = ((dirs[n], &b"own"[..]), (r, &b"target"[..]));
            v.rename(&root(), from, to, RenameMode::NoReplace)
        });
        let won = winner(results, Errno::Exist);
        assert_eq!(v.attr(f).nlink as usize, THREADS + 1);
        assert!(v.look(dirs[won], "own").is_none());
        // All of them may have it, one after the other.
        together(THREADS, |n| {
            let (from, to) = ((dirs[n], &b"own"[..]), (r, &b"target"[..]));
            // Another link to the same inode: nothing happens.
            let moved = v.rename(&root(), from, to, RenameMode::Replace);
            assert_eq!(moved.is_err(), n == won);
        });
        for n in (0..THREADS).filter(|n| *n != won) {
            v.unlink(&root(), dirs[n], b"own").unwrap();
        }
        let unlink = |_| v.unlink(&root(), r, b"target");
        winner(together(THREADS, unlink), Errno::NoEnt);
        assert_eq!(v.attr(f).nlink, 1);
        winner(
            together(THREADS, |_| v.unlink(&root(), r, b"f")),
            Errno::NoEnt,
        );
        winner(
            together(THREADS, |_| v.mkdir(&root(), r, b"d", 0o755)),
            Errno::Exist,
        );
        winner(
            together(THREADS, |_| v.rmdir(&root(), r, b"d")),
            Errno::NoEnt,
        );
    }
}

#[test]
fn an_entry_and_the_removal_of_its_directory_exclude_each_other() {
    let v = Volume::new(4);
    let r = v.root();
    for _ in 0..100 {
        let d = v.dir(r, "d");
        let f = v.file(r, "f");
        let results = together(3, |n| match n {
            0 => v.rmdir(&root(), r, b"d"),
            1 => v.file_by(&root(), d, "x").map(drop),
            _ => v.rename(&root(), (r, b"f"), (d, b"f"), RenameMode::Replace),
        });
        match &results[0] {
            Ok(()) => {
                assert!(results[1].is_err() && results[2].is_err(), "{results:?}");
                fails(v.getattr(&root(), d), Errno::Stale);
                assert_eq!(v.look(r, "f").unwrap().ino, f);
                v.unlink(&root(), r, b"f").unwrap();
            }
            Err(error) => {
                assert!(*error == Errno::NotEmpty);
                assert!(results[1].is_ok() && results[2].is_ok(), "{results:?}");
                assert_eq!(v.names(d), ["f", "x"]);
                for name in [b"f", b"x"] {
                    v.unlink(&root(), d, name).unwrap();
                }
                v.rmdir(&root(), r, b"d").unwrap();
            }
        }
    }
}

#[test]
fn appends_of_many_threads_stay_whole_and_leave_no_gap() {
    for (rounds, len) in [(1000, 101), (300, 5000), (10, 200_000)] {
        let v = Volume::new(32);
        let f = v.file(v.root(), "log");
        let record = |thread: usize, round: usize| {
            let mut record = format!("{thread} {round} ").into_bytes();
            record.resize(len, b'a' + thread as u8);
            record
        };
        let at = together(THREADS, |thread| {
            let append = |round| {
                let (at, done) = v.append(&root(), f, &record(thread, round)).unwrap();
                assert_eq!(done, len);
                at
            };
            (0..rounds).map(append).collect::<Vec<u64>>()
        });
        let content = v.content(f);
        assert_eq!(content.len(), THREADS * rounds * len);
        for (thread, at) in at.iter().enumerate() {
            assert!(at.is_sorted());
            for (round, at) in at.iter().enumerate() {
                let found = &content[*at as usize..][..len];
                assert!(found == record(thread, round), "{thread}'s append {round}");
            }
        }
    }
}

/// Lets `change` run a number of times while others `look`.
fn beside(rounds: usize, change: impl Fn(usize) + Sync, look: impl Fn() + Sync) {
    let over = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    together(3, |n| match n {
        0 => {
            for round in 0..rounds {
                change(round);
            }
            while looks.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        }
        _ => {
            while !over.load(Ordering::Relaxed) {
                look();
                looks.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
}

#[test]
fn readers_see_all_of_a_write_or_nothing() {
    let v = Volume::new(4);
    let f = v.file(v.root(), "f");
    let len = 5 * 4096 + 100;
    v.write(&root(), f, 0, &vec![1; len]).unwrap();
    let change = |round| {
        let byte = (round % 200) as u8 + 1;
        assert_eq!(v.write(&root(), f, 0, &vec![byte; len]).unwrap(), len);
    };
    beside(2000, change, || {
        let mut seen = vec![0; len];
        assert_eq!(v.read(&root(), f, 0, &mut seen).unwrap(), len);
        assert!(seen.iter().all(|byte| *byte == seen[0]));
    });
}

#[test]
fn attributes_that_change_together_are_seen_together() {
    let v = Volume::new(4);
    let f = v.file(v.root(), "f");
    let change = |round| {
        let n = (round % 100) as u32;
        let set = SetAttr {
            perm: Some(n as u16),
            uid: Some(n),
            gid: Some(n),
            size: Some(u64::from(n) * 1000),
            ..SetAttr::default()
        };
        v.setattr(&root(), f, &set).unwrap();
    };
    change(0);
    beside(2000, change, || {
        for attr in [v.attr(f), v.look(v.root(), "f").unwrap()] {
            let n = attr.uid;
            let seen = (u32::from(attr.perm), attr.gid, attr.size);
            assert_eq!(seen, (n, n, u64::from(n) * 1000));
            assert_eq!(attr.mtime, attr.ctime);
        }
    });
}

#[test]
fn a_name_that_is_replaced_or_exchanged_is_always_there() {
    let v = Volume::new(4);
    let r = v.root();
    let d = v.dir(r, "d");
    v.file(r, "a");
    v.dir(d, "b");
    let change = |round: usize| {
        if round.is_multiple_of(2) {
            v.file(d, "new");
            let (from, to) = ((d, &b"new"[..]), (r, &b"a"[..]));
            v.rename(&root(), from, to, RenameMode::Replace).unwrap();
        } else {
            let (one, other) = ((r, &b"a"[..]), (d, &b"b"[..]));
            v.rename(&root(), one, other, RenameMode::Exchange).unwrap();
            v.rename(&root(), one, other, RenameMode::Exchange).unwrap();
        }
    };
    beside(1000, change, || {
        let a = v.look(r, "a").unwrap();
        let b = v.look(d, "b").unwrap();
        for found in [a, b] {
            assert_eq!(found.nlink > 1, found.kind == FileKind::Directory);
            if found.kind == FileKind::Directory
                && let Ok(above) = v.lookup(&root(), found.ino, b"..")
            {
                assert!(above.ino == r || above.ino == d);
            }
        }
        let mut seen = 0;
        v.readdir(&root(), r, 0, &mut |entry| {
            seen += usize::from(entry.name == b"a");
            true
        })
        .unwrap();
        assert_eq!(seen, 1);
    });
}

#[test]
fn many_threads_in_one_directory_make_what_they_make() {
    let mut v = Volume::new(16);
    let d = v.dir(v.root(), "d");
    together(THREADS, |thread| {
        for n in 0..500 {
            let name = format!("thread {thread} file {n}");
            let f = v.file(d, &name);
            assert_eq!(v.write(&root(), f, 0, name.as_bytes()).unwrap(), name.len());
            if n % 3 == 0 {
                v.unlink(&root(), d, name.as_bytes()).unwrap();
            }
        }
    });
    let names = v.names(d);
    assert_eq!(names.len(), THREADS * 333);
    v.cut();
    assert_eq!(v.names(d), names);
    for name in names {
        let f = v.look(d, &name).unwrap().ino;
        assert_eq!(v.content(f), name.as_bytes());
    }
}
