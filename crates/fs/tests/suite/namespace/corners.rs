//! Hard corners that have no better place, by their numbers.

use super::common::*;
use super::streams::{BOTH, Sim, at, mount_sim, must, survivors};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{Contract, Fs, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_sim::SimDevice;
use steadfast_vfs::{AllocateMode, Errno, FileSystem, Ino, RenameMode, SetAttr, XattrMode};

fn mv(fs: &Fs, by: u32, from: (Ino, &str), to: (Ino, &str)) -> steadfast_vfs::Result<()> {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    fs.rename(&stream(by), from, to, RenameMode::Replace)
}

#[test]
fn corner_21_a_stream_moves_links_and_removes_another_streams_files() {
    let made_by_one = |v: &Fs| {
        let f = v.file_by(&stream(1), must(v, "d"), "f").unwrap().ino;
        v.write(&stream(1), f, 0, &[1; 9000]).unwrap();
    };
    let dirs = |v: &Fs| {
        v.dir(v.root(), "d");
        v.dir(v.root(), "e");
    };
    let whole = |v: &Fs, path: &str| at(v, path).is_some_and(|f| v.content(f) == [1; 9000]);
    let both = |happened: bool| (happened, happened);
    let result = survivors(
        dirs,
        made_by_one,
        |v| mv(v, 2, (must(v, "d"), "f"), (must(v, "e"), "g")).unwrap(),
        |v| both(whole(v, "e/g") && at(v, "d/f").is_none()),
    );
    assert_eq!(result, BOTH, "a rename across directories");
    let result = survivors(
        dirs,
        made_by_one,
        |v| {
            let f = must(v, "d/f");
            v.link(&stream(2), f, must(v, "e"), b"g").unwrap();
        },
        |v| both(whole(v, "e/g") && v.attr(must(v, "d/f")).nlink == 2),
    );
    assert_eq!(result, BOTH, "a hard link");
    // A chain: 1 makes, 3 moves, 2 moves on; 2 is synced.
    let result = survivors(
        dirs,
        made_by_one,
        |v| {
            mv(v, 3, (must(v, "d"), "f"), (must(v, "e"), "g")).unwrap();
            mv(v, 2, (must(v, "e"), "g"), (v.root(), "h")).unwrap();
        },
        |v| both(whole(v, "h") && at(v, "e/g").is_none() && at(v, "d/f").is_none()),
    );
    assert_eq!(result, BOTH, "a chain of streams");
    // Over a file that the first stream has made.
    let result = survivors(
        |v| {
            dirs(v);
            v.file(v.root(), "old");
        },
        made_by_one,
        |v| mv(v, 2, (v.root(), "old"), (must(v, "d"), "f")).unwrap(),
        |v| both(at(v, "old").is_none() && at(v, "d/f").is_some_and(|f| v.content(f).is_empty())),
    );
    assert_eq!(result, BOTH, "a rename over it");
}

/// State that survives if nothing unflushed does.
fn durable(device: &SimDevice) -> Sim {
    let mut explorer = device.explorer();
    let end = explorer.len();
    let left = Arc::new(SimDevice::from_image(explorer.cut(end).durable().clone()));
    must_be_clean(&left);
    mount_sim(left)
}

#[test]
fn corner_25_a_stream_that_never_syncs_is_committed_by_sync_unmount_and_the_interval() {
    let write = |v: &Fs, name: &str| {
        let f = v.file_by(&stream(7), v.root(), name).unwrap().ino;
        v.write(&stream(7), f, 0, name.as_bytes()).unwrap();
    };
    let there = |v: &Sim, name: &str| {
        v.look(v.root(), name)
            .is_some_and(|attr| v.content(attr.ino) == name.as_bytes())
    };
    let v = Sim::new();
    write(&v, "one");
    assert!(!there(&v.after_a_cut(), "one"));
    v.sync().unwrap();
    assert!(there(&v.after_a_cut(), "one"), "by a sync");
    write(&v, "two");
    v.fs.unmount().unwrap();
    assert!(there(&v.after_a_cut(), "two"), "by unmounting");
    let device = Arc::clone(&v.device);
    drop(v);
    let mut options = options();
    options.background = true;
    options.commit_interval = Duration::from_millis(10);
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
    write(&fs, "three");
    let end = Instant::now() + Duration::from_secs(300);
    while !there(&durable(&device), "three") {
        assert!(Instant::now() < end, "the interval passes without a commit");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn sim(contract: Contract) -> (Arc<SimDevice>, Arc<Fs>) {
    let device = Arc::new(SimDevice::new(16 * 256));
    let made = MkfsOptions {
        seed: Some(1),
        contract,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &made, &mut |_, _| {}).unwrap();
    let fs = Fs::mount(Arc::clone(&device) as _, &options()).unwrap().0;
    (device, fs)
}

#[test]
fn corner_27_fdatasync_covers_size_and_extents_and_fsync_the_name_of_a_new_file() {
    for contract in Contract::ALL {
        let (device, fs) = sim(contract);
        let f = fs.file(fs.root(), "f");
        fs.sync().unwrap();
        let mut expected = Vec::new();
        for n in 1..6u8 {
            // Within a block, over its end, and whole blocks.
            let more = vec![n; 3000 * usize::from(n)];
            fs.append(&root(), f, &more).unwrap();
            expected.extend(more);
            fs.fsync(&root(), f, true).unwrap();
            assert!(
                durable(&device).content(f) == expected,
                "{contract}, append {n}"
            );
        }
        // Behind a hole, and into preallocated blocks.
        fs.write(&root(), f, 100_000, b"far").unwrap();
        fs.fsync(&root(), f, true).unwrap();
        assert_eq!(durable(&device).content(f)[100_000..], *b"far");
        fs.fallocate(&root(), f, AllocateMode::KeepSize, 200_000, 50_000)
            .unwrap();
        fs.write(&root(), f, 210_000, b"there").unwrap();
        fs.fsync(&root(), f, true).unwrap();
        let left = durable(&device);
        assert_eq!(left.content(f)[210_000..], *b"there");
        assert!(
            left.content(f)[100_003..210_000]
                .iter()
                .all(|byte| *byte == 0)
        );
        // A new file in a new directory in a new directory.
        let d = fs.dir(fs.root(), "d");
        let e = fs.dir(d, "e");
        let g = fs.file(e, "g");
        fs.write(&root(), g, 0, b"new").unwrap();
        fs.fsync(&root(), g, false).unwrap();
        let left = durable(&device);
        assert_eq!(left.content(must(&left, "d/e/g")), b"new", "{contract}");
        // And under its new name.
        fs.rename(&root(), (e, b"g"), (fs.root(), b"h"), RenameMode::Replace)
            .unwrap();
        fs.fsync(&root(), g, false).unwrap();
        let left = durable(&device);
        assert!(at(&left, "h").is_some() && at(&left, "d/e/g").is_none());
    }
}

#[test]
fn corner_56_two_streams_change_two_inodes_of_one_block_and_its_checksum_holds() {
    let v = Sim::new();
    let (a, b) = (v.file(v.root(), "a"), v.file(v.root(), "b"));
    let mark = v.file(v.root(), "mark");
    assert_eq!(a / 16, b / 16, "in one block");
    v.sync().unwrap();
    let set = |uid| SetAttr {
        uid: Some(uid),
        perm: Some(0o600 + uid as u16),
        ..SetAttr::default()
    };
    for round in 1..6 {
        v.setattr(&stream(1), a, &set(round)).unwrap();
        v.setattr(&stream(2), b, &set(round)).unwrap();
        v.fsync(&stream(2), mark, false).unwrap();
        // The check, and every read, verifies the block's checksum.
        let left = v.after_a_cut();
        assert_eq!((left.attr(a).uid, left.attr(b).uid), (round - 1, round));
        assert_eq!(v.attr(a).uid, round);
        v.setattr(&stream(3), a, &set(40)).unwrap();
        v.setattr(&stream(3), a, &set(round)).unwrap();
        v.sync().unwrap();
        let left = v.after_a_cut();
        assert_eq!((left.attr(a).uid, left.attr(b).uid), (round, round));
        // Home, with both changes and a new checksum.
        left.fs.unmount().unwrap();
        let left = left.after_a_cut();
        assert_eq!((left.attr(a).uid, left.attr(b).uid), (round, round));
    }
}

#[test]
fn corner_57_renames_of_two_streams_that_would_form_a_cycle_survive_together() {
    // 1 moves a into b, which 2 moved out of a before: without the second, a cycle.
    let result = survivors(
        |v| {
            let a = v.dir(v.root(), "a");
            let b = v.dir(a, "b");
            v.dir(b, "c");
        },
        |v| mv(v, 1, (must(v, "a"), "b"), (v.root(), "b")).unwrap(),
        |v| mv(v, 2, (v.root(), "a"), (must(v, "b/c"), "a")).unwrap(),
        |v| (at(v, "b").is_some(), at(v, "b/c/a").is_some()),
    );
    assert_eq!(result, BOTH);
}

#[test]
fn corner_60_with_no_budget_and_a_small_log_writers_syncers_and_movers_all_end() {
    for contract in Contract::ALL {
        let device = Arc::new(MemDevice::new(32 * 256));
        let made = MkfsOptions {
            log_blocks: Some(64),
            contract,
            ..MkfsOptions::default()
        };
        mkfs(&*device, &made, &mut |_, _| {}).unwrap();
        let mut options = MountOptions::default();
        options.cache_bytes = 0;
        options.uncommitted_bytes = 0;
        options.commit_interval = Duration::from_millis(1);
        let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
        let files = [fs.file(fs.root(), "f"), fs.file(fs.root(), "g")];
        let (done, ended) = std::sync::mpsc::channel();
        let worker = Arc::clone(&fs);
        // The threads are not joined before it is known that they end.
        let all = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for n in 0..6u32 {
                    let fs = &worker;
                    scope.spawn(move || {
                        let c = stream(n);
                        for i in 0..60u64 {
                            let f = files[(i + u64::from(n)) as usize % 2];
                            let at = i * 3000 % 200_000;
                            fs.write(&c, f, at, &vec![n as u8; 30_000]).unwrap();
                            match i % 6 {
                                0 => fs.fsync(&c, f, false).unwrap(),
                                1 => fs.fsync(&c, f, true).unwrap(),
                                2 => drop(fs.append(&c, f, &[n as u8; 5000]).unwrap()),
                                3 => {
                                    let set = SetAttr {
                                        size: Some(at / 2),
                                        ..SetAttr::default()
                                    };
                                    fs.setattr(&c, f, &set).unwrap();
                                }
                                4 => {
                                    let x = (fs.root(), &b"f"[..]);
                                    let y = (fs.root(), &b"g"[..]);
                                    fs.rename(&c, x, y, RenameMode::Exchange).unwrap();
                                }
                                _ => fs.sync().unwrap(),
                            }
                        }
                    });
                }
            });
            done.send(()).unwrap();
        });
        ended
            .recv_timeout(Duration::from_secs(300))
            .expect("somebody waits for somebody for ever");
        all.join().unwrap();
        fs.unmount().unwrap();
        must_be_clean(&device);
    }
}

#[test]
fn corner_61_a_small_fsync_does_not_wait_for_another_streams_big_data() {
    let device = Arc::new(SimDevice::new(64 * 256));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let mut options = options();
    options.uncommitted_bytes = 1 << 30;
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
    let (big, small) = (fs.file(fs.root(), "big"), fs.file(fs.root(), "small"));
    fs.sync().unwrap();
    for n in 0..20 {
        fs.write(&stream(1), big, n << 20, &vec![7; 1 << 20])
            .unwrap();
    }
    fs.write(&stream(2), small, 0, &[8; 100]).unwrap();
    let before = device.counts().blocks_written;
    fs.fsync(&stream(2), small, false).unwrap();
    let written = device.counts().blocks_written - before;
    assert!(written < 20, "{written} blocks are written for 100 bytes");
    let left = durable(&device);
    assert_eq!(left.content(small), [8; 100]);
    assert_eq!(left.attr(big).size, 0);
    fs.fsync(&stream(1), big, false).unwrap();
    assert!(device.counts().blocks_written - before > 20 * 256);
    assert_eq!(durable(&device).attr(big).size, 20 << 20);
}

#[test]
fn corner_65_a_log_to_replay_is_read_but_not_written_by_a_read_only_mount_and_a_check() {
    for contract in Contract::ALL {
        let (device, fs) = sim(contract);
        let f = fs.file(fs.root(), "f");
        fs.write(&root(), f, 0, &[1; 9000]).unwrap();
        fs.setxattr(&root(), f, b"user.a", b"1", XattrMode::Any)
            .unwrap();
        let gone = fs.file(fs.root(), "gone");
        fs.open(&root(), gone).unwrap();
        fs.unlink(&root(), fs.root(), b"gone").unwrap();
        fs.sync().unwrap();
        // As a power cut leaves it: all in the log, an orphan to be freed.
        let left = Arc::new(MemDevice::from_bytes(&bytes(&device)));
        let before = left.to_bytes();
        let report = fsck(Arc::clone(&left) as _, &Default::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
        assert!(left.to_bytes() == before, "{contract}: the check wrote");
        let mut options = options();
        options.read_only = true;
        for _ in 0..2 {
            let (ro, recovery) = Fs::mount(Arc::clone(&left) as _, &options).unwrap();
            assert!(
                recovery.records > 0,
                "{contract}: there was something to replay"
            );
            assert_eq!(ro.content(f), [1; 9000]);
            assert_eq!(ro.getxattr(&root(), f, b"user.a").unwrap(), b"1");
            assert!(ro.look(ro.root(), "gone").is_none());
            fails(ro.write(&root(), f, 0, b"x"), Errno::RoFs);
            fails(ro.file_by(&root(), ro.root(), "new"), Errno::RoFs);
            fails(ro.unlink(&root(), ro.root(), b"f"), Errno::RoFs);
            ro.sync().unwrap();
            ro.unmount().unwrap();
        }
        assert!(
            left.to_bytes() == before,
            "{contract}: the read-only mount wrote"
        );
        let rw = mount(&left);
        assert_eq!(rw.content(f), [1; 9000]);
        rw.unmount().unwrap();
        must_be_clean(&left);
    }
}

fn bytes(device: &SimDevice) -> Vec<u8> {
    let blocks = device.geometry().blocks as usize;
    let mut bytes = vec![0; blocks * steadfast_block::BLOCK_SIZE];
    device
        .read(steadfast_block::BlockNo(0), &mut bytes)
        .unwrap();
    bytes
}
