//! Power cuts in the middle of removals and truncations that take several operations, at
//! every point: each file is whole, old or new, and no space is lost (corner 29).

use super::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use steadfast_fs::{Fs, MkfsOptions, mkfs};
use steadfast_sim::{CrashImage, SimDevice};
use steadfast_vfs::{FileSystem, SetAttr, XattrMode};

const PIECES: u64 = 2500;

fn mount_sim(device: &Arc<SimDevice>) -> Arc<Fs> {
    Fs::mount(Arc::clone(device) as _, &options()).unwrap().0
}

/// A volume with a small log and a file of many pieces, everything home and clean.
fn fragmented() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(16 * 256));
    let options = MkfsOptions {
        seed: Some(1),
        log_blocks: Some(64),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let fs = mount_sim(&device);
    let f = fs.file(fs.root(), "f");
    for n in 0..PIECES {
        fs.write(&root(), f, n * 8192, &[n as u8; 4096]).unwrap();
    }
    fs.unmount().unwrap();
    Arc::new(SimDevice::from_image(device.image()))
}

/// Runs `work` on the volume while another thread commits all the time, so that there is something to cut
/// between the operations; returns the device, and where its trace began.
fn committed_between(work: &impl Fn(&Fs)) -> (Arc<SimDevice>, usize) {
    // On a busy machine the other thread may not have its turn in time.
    for _ in 0..100 {
        let device = fragmented();
        let fs = mount_sim(&device);
        let start = device.trace_len();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    fs.sync().unwrap();
                }
            });
            work(&fs);
            done.store(true, Ordering::Release);
        });
        fs.sync().unwrap();
        if device.trace_len() > start + 4 {
            return (device, start);
        }
    }
    panic!("nothing was committed in between");
}

/// Runs `work` on the volume, cuts at every point, mounts, and lets `check` look.
fn cut_everywhere(work: impl Fn(&Fs), check: impl Fn(&Fs)) {
    let (device, start) = committed_between(&work);
    let mut explorer = device.explorer();
    let end = explorer.len();
    for position in start..=end {
        let cut = explorer.cut(position);
        let images: [CrashImage; 2] = [cut.everything(), cut.durable().clone().into()];
        for image in images {
            let device = Arc::new(SimDevice::from_image(image));
            must_be_clean(&device);
            let fs = mount_sim(&device);
            check(&fs);
            assert_eq!(fs.take_warnings(), Vec::<String>::new());
            fs.unmount().unwrap();
            must_be_clean(&device);
        }
    }
}

fn pieces_hold(fs: &Fs, size: u64) {
    let f = fs.look(fs.root(), "f").unwrap().ino;
    let content = fs.content(f);
    assert_eq!(content.len() as u64, size);
    for (n, piece) in content.chunks(8192).enumerate() {
        let data = piece.len().min(4096);
        assert!(piece[..data].iter().all(|byte| *byte == n as u8), "{n}");
        assert!(piece[data..].iter().all(|byte| *byte == 0), "{n}");
    }
}

const FULL: u64 = (PIECES - 1) * 8192 + 4096;

#[test]
fn corner_29_a_removal_in_slices_survives_a_cut_at_every_point() {
    let used = std::cell::Cell::new(None);
    cut_everywhere(
        |fs| fs.unlink(&root(), fs.root(), b"f").unwrap(),
        |fs| {
            if fs.look(fs.root(), "f").is_some() {
                return pieces_hold(fs, FULL);
            }
            // The orphan was freed by the mount: always the same space.
            fs.sync().unwrap();
            let free = fs.statfs().unwrap().blocks_free;
            assert_eq!(used.replace(Some(free)).unwrap_or(free), free);
        },
    );
}

#[test]
fn corner_29_a_truncation_in_slices_survives_a_cut_at_every_point() {
    let size = 5 * 8192 + 100;
    cut_everywhere(
        |fs| {
            let f = fs.look(fs.root(), "f").unwrap().ino;
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(&root(), f, &set).unwrap();
        },
        |fs| {
            let attr = fs.look(fs.root(), "f").unwrap();
            assert!(attr.size == FULL || attr.size == size);
            pieces_hold(fs, attr.size);
            if attr.size == size {
                assert!(attr.blocks <= 8 * 8, "the rest is freed: {}", attr.blocks);
                // Growing again shows zeros, nothing that was there before (corner 26).
                let set = SetAttr {
                    size: Some(FULL),
                    ..SetAttr::default()
                };
                fs.setattr(&root(), attr.ino, &set).unwrap();
                assert!(
                    fs.content(attr.ino)[size as usize..]
                        .iter()
                        .all(|byte| *byte == 0)
                );
            }
        },
    );
}

#[test]
fn corner_29_open_files_without_names_are_freed_after_a_cut_at_every_point() {
    cut_everywhere(
        |fs| {
            let f = fs.look(fs.root(), "f").unwrap().ino;
            fs.open(&root(), f).unwrap();
            fs.unlink(&root(), fs.root(), b"f").unwrap();
            fs.sync().unwrap();
            let g = fs.file(fs.root(), "g");
            fs.write(&root(), g, 0, &[1; 50_000]).unwrap();
            fs.sync().unwrap();
            fs.release(f);
        },
        |fs| match fs.look(fs.root(), "f") {
            Some(_) => pieces_hold(fs, FULL),
            None => {
                if let Some(g) = fs.look(fs.root(), "g") {
                    assert!(g.size == 0 || fs.content(g.ino) == vec![1; 50_000]);
                }
                fs.sync().unwrap();
                let stat = fs.statfs().unwrap();
                assert!(stat.blocks - stat.blocks_free < 150, "{stat:?}");
            }
        },
    );
}

/// Attributes grow from one block to several, change there and go: after each cut they are as after
/// one of the calls.
#[test]
fn attributes_in_several_blocks_survive_a_cut_at_every_point() {
    let names = [&b"user.1"[..], b"user.2", b"user.3", b"user.4"];
    let value = |n: usize, round: usize| vec![(16 * round + n) as u8; 2500 - 100 * round];
    let steps = |fs: &Fs, seen: &mut Vec<Vec<Option<Vec<u8>>>>| {
        let f = fs.look(fs.root(), "f").unwrap().ino;
        let mut now = vec![None; names.len()];
        seen.push(now.clone());
        for round in 0..2 {
            for (n, name) in names.iter().enumerate() {
                fs.setxattr(&root(), f, name, &value(n, round), XattrMode::Any)
                    .unwrap();
                now[n] = Some(value(n, round));
                seen.push(now.clone());
            }
            fs.fsync(&root(), f, false).unwrap();
        }
        for (n, name) in names.iter().enumerate() {
            fs.removexattr(&root(), f, name).unwrap();
            now[n] = None;
            seen.push(now.clone());
        }
        fs.fsync(&root(), f, false).unwrap();
    };
    let mut states = Vec::new();
    steps(&mount_sim(&fragmented()), &mut states);
    cut_everywhere(
        |fs| steps(fs, &mut Vec::new()),
        |fs| {
            let f = fs.look(fs.root(), "f").unwrap().ino;
            let found: Vec<_> = names
                .iter()
                .map(|name| fs.getxattr(&root(), f, name).ok())
                .collect();
            assert!(states.contains(&found), "no state of the calls");
        },
    );
}
