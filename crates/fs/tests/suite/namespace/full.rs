//! Volumes filled to the last block in many ways (corners 24 and 30): an operation that finds no space leaves
//! no trace, syncs of accepted changes never fail, space can always be made, and the counted free
//! blocks are those that the check counts.

use super::common::*;
use std::sync::Arc;
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, FsckOptions, MkfsOptions, Outcome, fsck, mkfs};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{Handles, Observe, Op, Snapshot, TestClock, Tree};
use steadfast_vfs::{
    AllocateMode, Errno, FileSystem, Ino, RenameMode, Result, SetAttr, Time, XattrMode,
};

fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

/// The free blocks that the mount counts are those that the check counts.
#[track_caller]
fn counts_agree(fs: &Fs, device: &MemDevice, when: &str) -> u64 {
    fs.sync().unwrap();
    let stat = fs.statfs().unwrap();
    let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    let report = fsck(copy, &FsckOptions::default()).unwrap();
    assert_eq!(
        report.outcome(),
        Outcome::Clean,
        "{when}: {:#?}",
        report.findings
    );
    // One block in 64 is kept back for removals.
    let free = report.usage.blocks - report.usage.used;
    let expected = free.saturating_sub((report.usage.blocks / 64).min(64));
    assert_eq!(
        (stat.blocks, stat.blocks_free),
        (report.usage.blocks, expected),
        "{when}"
    );
    stat.blocks_free
}

fn size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// Something of everything, and a file of single blocks that takes all the rest.
fn full_volume() -> (Arc<MemDevice>, Ino) {
    let v = Volume::with_log(4, Some(64));
    let (r, c) = (v.root(), &root());
    let d = v.dir(r, "d");
    for n in 0..20 {
        v.file(d, &format!("{n:0200}"));
    }
    let f = v.file(r, "f");
    for n in 0..4 {
        v.write(c, f, n * 8192, &[1; 4096]).unwrap();
        v.sync().unwrap();
    }
    v.setxattr(c, f, b"user.a", &[1; 100], XattrMode::Any)
        .unwrap();
    v.setxattr(c, d, b"user.in", b"1", XattrMode::Any).unwrap();
    v.file(r, "g");
    v.dir(r, "e");
    let filler = v.file(r, "filler");
    let mut at = 0;
    while v.write(c, filler, at, &[2; 4096]).is_ok() {
        at += 4096;
    }
    v.sync().unwrap();
    while v.write(c, filler, at, &[2; 4096]).is_ok() {
        at += 4096;
    }
    v.sync().unwrap();
    let device = Arc::clone(&v.device);
    v.unmount().unwrap();
    drop(v);
    (device, filler)
}

type Call = fn(&Fs, Ino, Ino, Ino) -> Result<()>;

/// Calls that need space, on the directory `d`, the file `f` with holes, and the root.
const CALLS: &[(&str, Call)] = &[
    ("create", |fs, d, _, _| {
        fs.file_by(&root(), d, "new").map(drop)
    }),
    ("a name that needs a block", |fs, d, _, _| {
        fs.file_by(&root(), d, &"n".repeat(250)).map(drop)
    }),
    ("mkdir", |fs, d, _, _| {
        fs.mkdir(&root(), d, b"newdir", 0o755).map(drop)
    }),
    ("mkdir, and a file in it", |fs, d, _, _| {
        let made = fs.mkdir(&root(), d, b"newdir", 0o755)?.ino;
        match fs.file_by(&root(), made, "x") {
            Ok(_) => Ok(()),
            Err(error) => {
                fs.rmdir(&root(), d, b"newdir").unwrap();
                Err(error)
            }
        }
    }),
    ("a long symbolic link", |fs, d, _, _| {
        fs.symlink(&root(), d, b"s", &[b't'; 3000]).map(drop)
    }),
    ("a hard link", |fs, d, f, _| {
        fs.link(&root(), f, d, &[b'l'; 255]).map(drop)
    }),
    ("rename to a long name", |fs, d, _, r| {
        fs.rename(&root(), (r, b"g"), (d, &[b'm'; 255]), RenameMode::Replace)
    }),
    ("exchange", |fs, d, _, r| {
        let old = format!("{:0200}", 3);
        fs.rename(
            &root(),
            (r, b"g"),
            (d, old.as_bytes()),
            RenameMode::Exchange,
        )
    }),
    ("an attribute", |fs, d, _, _| {
        fs.setxattr(&root(), d, b"user.a", &[1; 1000], XattrMode::Any)
    }),
    ("a larger attribute", |fs, _, f, _| {
        fs.setxattr(&root(), f, b"user.b", &[1; 3000], XattrMode::Any)
    }),
    ("a write into a hole", |fs, _, f, _| {
        fs.write(&root(), f, 4096, &[3; 4096]).map(drop)
    }),
    ("a write over holes and blocks", |fs, _, f, _| {
        fs.write(&root(), f, 100, &[3; 20_000]).map(drop)
    }),
    ("an append", |fs, _, f, _| {
        fs.append(&root(), f, &[4; 9000]).map(drop)
    }),
    ("a write far away", |fs, _, f, _| {
        fs.write(&root(), f, 1 << 40, b"far").map(drop)
    }),
    ("preallocation", |fs, _, f, _| {
        fs.fallocate(&root(), f, AllocateMode::Allocate, 0, 60_000)
    }),
    ("preallocation past the end", |fs, _, f, _| {
        fs.fallocate(&root(), f, AllocateMode::KeepSize, 1 << 20, 30_000)
    }),
    ("zeroes", |fs, _, f, _| {
        fs.fallocate(&root(), f, AllocateMode::ZeroRange, 2000, 40_000)
    }),
    ("a punched hole", |fs, _, f, _| {
        fs.fallocate(&root(), f, AllocateMode::PunchHole, 100, 20_000)
    }),
    ("growing", |fs, _, f, _| {
        fs.setattr(&root(), f, &size(1 << 30)).map(drop)
    }),
    ("shrinking within a block", |fs, _, f, _| {
        fs.setattr(&root(), f, &size(8200)).map(drop)
    }),
];

#[test]
fn corner_30_with_any_number_of_blocks_left_a_call_is_done_or_leaves_no_trace() {
    let (full, filler) = full_volume();
    let (mut done, mut refused) = (0, 0);
    for left in 0..if long() { 40 } else { 9 } {
        let fs = mount(&full);
        if left > 0 {
            fs.fallocate(&root(), filler, AllocateMode::PunchHole, 8192 * left, 4096)
                .unwrap();
        }
        counts_agree(&fs, &full, &format!("{left} blocks made free"));
        fs.unmount().unwrap();
        for (what, call) in CALLS {
            let when = format!("{what} with {left} more blocks free");
            let device = Arc::new(MemDevice::from_bytes(&full.to_bytes()));
            let fs = mount(&device);
            let r = fs.root();
            let (d, f) = (fs.look(r, "d").unwrap().ino, fs.look(r, "f").unwrap().ino);
            let before = Snapshot::of_fs(&*fs).unwrap();
            let free = counts_agree(&fs, &device, &when);
            match call(&fs, d, f, r) {
                Ok(()) => done += 1,
                Err(error) => {
                    refused += 1;
                    assert!(error == Errno::NoSpc, "{when}: {error}");
                    let after = Snapshot::of_fs(&*fs).unwrap();
                    let diff = before.diff(&after, Observe::CONTENT);
                    // Undone by hand, it leaves the directory's times.
                    assert!(
                        before.digest().content == after.digest().content,
                        "{when}: {diff}"
                    );
                    assert_eq!(counts_agree(&fs, &device, &when), free, "{when}");
                    // And again: nothing of the first time is in the way.
                    let again = call(&fs, d, f, r);
                    assert!(again.is_err_and(|e| e == Errno::NoSpc), "{when}, again");
                }
            }
            fs.fsync(&root(), f, false).unwrap();
            counts_agree(&fs, &device, &when);
            fs.unmount().unwrap();
            must_be_clean(&device);
        }
    }
    assert!(done > 30 && refused > 30, "{done} done, {refused} refused");
}

/// A small volume under a random load that fills it again and again, beside the model.
fn fill_and_use(seed: u64, contract: Contract, steps: usize) -> usize {
    let start = Time {
        secs: 500,
        nanos: 0,
    };
    let clock = TestClock::new();
    clock.set(start);
    let device = Arc::new(MemDevice::new(64 + 4 + 90 + 12 * (seed % 5)));
    let made = MkfsOptions {
        seed: Some(seed),
        now: Some(start),
        log_blocks: Some(64),
        contract,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &made, &mut |_, _| {}).unwrap();
    let mut options = options();
    options.clock = Arc::new(clock.clone());
    let mount = || Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
    let mut fs = mount();
    let mut tree = Tree::new(start);
    let mut handles = Handles::new();
    // Most of it is taken from the start.
    let mut both = |line: String| {
        let op: Op = line.parse().unwrap();
        let found = op.run(&*fs, &root(), &mut handles);
        let full = found == Err(Errno::NoSpc);
        assert!(full || found == tree.apply(&op, &root(), start), "{line}");
        !full
    };
    both("mknod /filler file 644 0".into());
    let pages = (0..).take_while(|n| both(format!("write /filler {} #{n}*4096", n * 4096)));
    let pages = pages.count() as u64;
    both(format!(
        "setattr /filler size={}",
        (pages - seed % 12) * 4096
    ));
    let shape = Shape {
        names: 6 + (seed % 20) as u32,
        depth: 1 + (seed % 3) as u32,
        bytes_max: [20_000, 150_000, 2_000][(seed % 3) as usize],
        sync_every: [0, 7, 30][(seed / 3 % 3) as usize],
        ..Shape::default()
    };
    let mut refused = 0;
    for (index, step) in Workload::new(seed, shape).take(steps).enumerate() {
        clock.set(step.at);
        let found = step.op.run(&*fs, &step.caller, &mut handles);
        let when = format!("seed {seed} under '{contract}', step {index}: {}", step.op);
        if found == Err(Errno::NoSpc) {
            refused += 1;
            let makes_room = matches!(
                step.op,
                Op::Unlink { .. }
                    | Op::Rmdir { .. }
                    | Op::Fsync { .. }
                    | Op::Fdatasync { .. }
                    | Op::Sync
                    | Op::Close { .. }
            );
            assert!(!makes_room, "{when} finds no space");
            if refused % 8 == 0 {
                let after = Snapshot::of_fs(&*fs).unwrap();
                let expected = Snapshot::of_tree(&tree);
                let diff = expected.diff(&after, Observe::ALL);
                assert!(expected == after, "{when} was refused: {diff}");
            }
        } else {
            // Of a write a part may fit.
            let (done, found) = step.as_done(found);
            let expected = tree.step(&done);
            assert!(
                found == expected,
                "{when}: {found:?}, the model says {expected:?}"
            );
        }
        if index % 50 == 49 {
            counts_agree(&fs, &device, &when);
        }
        if index % 200 == 199 && handles.is_empty() {
            fs.unmount().unwrap();
            fs = mount();
        }
    }
    let found = Snapshot::of_fs(&*fs).unwrap();
    let expected = Snapshot::of_tree(&tree);
    let diff = expected.diff(&found, Observe::ALL);
    assert!(expected == found, "seed {seed}: {diff}");
    for ino in handles.into_values() {
        fs.release(ino);
    }
    fs.unmount().unwrap();
    must_be_clean(&device);
    refused
}

#[test]
fn corner_30_a_full_volume_does_what_the_model_does_or_refuses() {
    let (seeds, steps) = if long() { (600, 3000) } else { (9, 900) };
    let mut refused = 0;
    for seed in 0..seeds {
        let contract = Contract::ALL[seed as usize % 3];
        refused += fill_and_use(seed, contract, steps);
    }
    println!("{refused} calls found no space");
    assert!(refused > 100, "{refused}");
}
