//! A file system on the disk as it ships, over the simulated store: machines take the volume from one another. Everything
//! synced before a mount began is there, whole, and the checker finds nothing.

#![allow(clippy::panic, reason = "a test that fails says why")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_store::{Access, Found, Location, OpenOptions, StoreDevice, create};
use steadfast_store_sim::{Clock, Pace, Random, SimStore, Trouble};
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

const BLOCKS: u64 = 1 << 14;
const PATIENCE: Duration = Duration::from_secs(60);

fn place(store: &SimStore) -> Location {
    Location::within(Arc::new(store.clone()), "volume", "memory://volume")
}

fn open(store: &SimStore) -> Option<Arc<StoreDevice>> {
    let options = OpenOptions {
        take_over: true,
        patience: PATIENCE,
        keep_deleted: Duration::ZERO,
        ..OpenOptions::default()
    };
    let found = Found::new(place(store), &Access::default(), PATIENCE).ok()?;
    found.open(&options).ok().map(Arc::new)
}

/// Content of a file, which follows from its name.
fn contents(name: &str, bytes: usize) -> Vec<u8> {
    name.bytes().cycle().take(bytes).collect()
}

fn look_for(fs: &Fs, files: &[(String, usize)]) -> Option<String> {
    let root = Caller::root();
    files.iter().find_map(|(name, bytes)| {
        let mut found = vec![0; bytes + 1];
        let read = fs
            .lookup(&root, fs.root(), name.as_bytes())
            .and_then(|attr| fs.read(&root, attr.ino, 0, &mut found));
        match read {
            Ok(read) if found[..read] == contents(name, *bytes) => None,
            other => Some(format!("{name}, which was synced: {other:?}")),
        }
    })
}

/// One ownership: returns a fault, if any.
fn live(
    store: &SimStore,
    random: &mut Random,
    who: &str,
    synced: &Mutex<Vec<(String, usize)>>,
) -> Option<String> {
    let before = synced
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let disk = open(store)?;
    let options = MountOptions::default();
    let fs = match Fs::mount(disk.clone(), &options) {
        Ok((fs, _)) => fs,
        // Fenced while it was mounting.
        Err(_) if disk.failed().is_some() => return None,
        Err(error) => return Some(format!("{who}: {error}")),
    };
    let lost = look_for(&fs, &before);
    if lost.is_some() && disk.failed().is_none() {
        return lost;
    }
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    // Three threads: their commits are on their way at the same time.
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let sizes: Vec<u64> = (0..random.between(2, 6))
                .map(|_| random.between(1, 30_000))
                .collect();
            let (fs, node) = (&fs, &node);
            scope.spawn(move || {
                for (n, bytes) in sizes.into_iter().enumerate() {
                    let (name, bytes) = (format!("{who}-{thread}-{n}"), bytes as usize);
                    let root = Caller::root();
                    let written =
                        fs.mknod(&root, fs.root(), name.as_bytes(), node)
                            .and_then(|attr| {
                                fs.write(&root, attr.ino, 0, &contents(&name, bytes))?;
                                fs.fsync(&root, attr.ino, false)
                            });
                    if written.is_err() {
                        return;
                    }
                    synced
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((name, bytes));
                }
            });
        }
    });
    // Half of the machines leave without notice: their unsynced changes may be lost.
    if random.permille(500) {
        let _ = fs.unmount();
    }
    None
}

#[test]
fn synced_files_are_there_after_every_take_over() {
    let seeds = if std::env::var_os("STEADFAST_LONG").is_some() {
        500
    } else {
        3
    };
    for seed in steadfast_testkit::seeds(seeds) {
        let clock = Clock::new();
        let store = SimStore::new(clock.clone(), seed, Trouble::default());
        let _pace = Pace::start(clock, 500);
        if let Err(error) = create(place(&store), BLOCKS, PATIENCE) {
            panic!("seed {seed}: {error}");
        }
        let Some(disk) = open(&store) else {
            panic!("seed {seed}: the new volume does not open");
        };
        let options = MkfsOptions {
            without_log: true,
            ..MkfsOptions::default()
        };
        if let Err(error) = mkfs(&*disk, &options, &mut |_, _| {}) {
            panic!("seed {seed}: {error}");
        }
        drop(disk);
        store.set_trouble(Trouble {
            resets: true,
            ..Trouble::plenty()
        });
        let synced = Mutex::new(Vec::new());
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let machine = |number: u64| {
                let (store, synced) = (&store, &synced);
                let mut random = Random::new(seed * 100 + number);
                scope.spawn(move || {
                    let lives = (0..3).filter_map(|life| {
                        live(store, &mut random, &format!("{number}-{life}"), synced)
                    });
                    lives.collect::<Vec<_>>()
                })
            };
            let machines = [machine(1), machine(2)];
            let ends = machines.into_iter().map(|machine| machine.join());
            ends.flat_map(|end| end.unwrap_or_else(|_| vec!["a machine panicked".to_owned()]))
                .collect()
        });
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        store.set_trouble(Trouble::default());
        let synced = synced.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert!(synced.len() > 3, "seed {seed}: nothing was tried");
        let Some(disk) = open(&store) else {
            panic!("seed {seed}: the volume does not open any more");
        };
        match Fs::mount(disk.clone(), &MountOptions::default()) {
            Ok((fs, _)) => {
                assert_eq!(look_for(&fs, &synced), None, "seed {seed}");
                assert!(fs.unmount().is_ok());
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
        match fsck(disk, &FsckOptions::default()) {
            Ok(report) => assert_eq!(
                report.outcome(),
                Outcome::Clean,
                "seed {seed}: {:?}",
                report.findings
            ),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        println!(
            "seed {seed}: {} files synced, {} requests",
            synced.len(),
            store.requests()
        );
    }
}
