//! Many threads at once, with the journal's own threads running.

use super::common::*;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, MkfsOptions, mkfs};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{Handles, Snapshot};
use steadfast_vfs::FileSystem;

fn background(device: &Arc<MemDevice>) -> Arc<Fs> {
    let mut options = options();
    options.background = true;
    options.commit_interval = Duration::from_millis(5);
    Fs::mount(Arc::clone(device) as _, &options).unwrap().0
}

fn made(log_blocks: Option<u64>, contract: Contract) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(64 * 256));
    let options = MkfsOptions {
        log_blocks,
        contract,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    device
}

#[test]
fn random_operations_of_many_threads_leave_a_whole_volume() {
    let settings = [
        (None, Contract::Ordered),
        (Some(64), Contract::Ordered),
        (None, Contract::MetadataPrefix),
        (Some(64), Contract::MetadataPrefix),
        (None, Contract::Sync),
    ];
    for (round, (log_blocks, contract)) in settings.into_iter().enumerate() {
        let device = made(log_blocks, contract);
        let fs = background(&device);
        std::thread::scope(|scope| {
            let fs = &fs;
            for thread in 0..4 {
                scope.spawn(move || {
                    // The same few names for all: they get into each other's way.
                    let shape = Shape {
                        sync_every: 50,
                        ..Shape::default()
                    };
                    let seed = 100 * round as u64 + thread;
                    let mut handles = Handles::new();
                    for mut step in Workload::new(seed, shape).take(3000) {
                        step.caller.stream.0 = thread as u32;
                        let _ = step.op.run(&**fs, &step.caller, &mut handles);
                    }
                    for ino in handles.into_values() {
                        fs.release(ino);
                    }
                });
            }
        });
        assert_eq!(fs.take_warnings(), Vec::<String>::new());
        let before = Snapshot::of_fs(&*fs).unwrap();
        fs.unmount().unwrap();
        must_be_clean(&device);
        let fs = background(&device);
        let after = Snapshot::of_fs(&*fs).unwrap();
        assert!(before == after);
    }
}

#[test]
fn a_volume_that_is_dropped_without_unmount_keeps_everything() {
    let device = made(None, Contract::Ordered);
    for inline in [false, true] {
        let fs = if inline {
            mount(&device)
        } else {
            background(&device)
        };
        let name = format!("f{inline}");
        let f = fs.file(fs.root(), &name);
        fs.write(&root(), f, 0, &[7; 100_000]).unwrap();
        drop(fs);
        must_be_clean(&device);
        let fs = mount(&device);
        let f = fs.look(fs.root(), &name).unwrap().ino;
        assert_eq!(fs.content(f), vec![7; 100_000]);
    }
}

/// Story: the end of the file moved between an append's look ahead and its lock, so that the bytes met
/// one page more; the append was cut at the page, and its rest went after bytes that another thread had
/// appended meanwhile. The parts of an append too long for one operation were torn apart likewise.
#[test]
fn appends_of_many_threads_stay_whole_and_leave_no_gap() {
    for (log_blocks, contract, rounds, len) in [
        (None, Contract::Ordered, 4000, 1001),
        (Some(64), Contract::MetadataPrefix, 2000, 701),
        (Some(64), Contract::Ordered, 4, 500_000),
    ] {
        let device = made(log_blocks, contract);
        let fs = background(&device);
        let f = fs.file(fs.root(), "log");
        let record = |thread: u32, round: usize| {
            let mut record = format!("{thread} {round} ").into_bytes();
            record.resize(len, b'a' + thread as u8);
            record
        };
        let at: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let fs = &fs;
            let append = |thread: u32| {
                let appends = move || {
                    let append = |round| {
                        fs.append(&stream(thread), f, &record(thread, round))
                            .unwrap()
                            .0
                    };
                    (0..rounds).map(append).collect()
                };
                scope.spawn(appends)
            };
            let threads: Vec<_> = (0..4).map(append).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let content = fs.content(f);
        assert_eq!(content.len(), 4 * rounds * len);
        for (thread, at) in at.iter().enumerate() {
            for (round, at) in at.iter().enumerate() {
                let found = &content[*at as usize..][..len];
                assert!(
                    found == record(thread as u32, round),
                    "{thread}'s append {round} at {at}"
                );
            }
        }
        fs.unmount().unwrap();
        must_be_clean(&device);
    }
}
