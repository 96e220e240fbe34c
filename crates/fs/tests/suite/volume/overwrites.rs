//! Large overwrites out of place: their places, their contiguity, and the same bytes as a vector in any case. The journal
//! runs inline, so every run is the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{
    Contract, Fs, FsckOptions, Inspector, MkfsOptions, MountOptions, Outcome, fsck, mkfs,
};
use steadfast_vfs::{
    AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, InodeFlags, NewNode, SetAttr, Stream,
};

const PAGE: u64 = 4096;
const UNIT: u64 = 64 << 10;

struct Volume {
    device: Arc<MemDevice>,
    fs: Arc<Fs>,
    overwrite_bytes: u64,
}

fn root() -> Caller {
    Caller::root()
}

impl Volume {
    fn new(blocks: u64, log_blocks: u64) -> Volume {
        Volume::with(blocks, log_blocks, Contract::Ordered, UNIT)
    }

    fn with(blocks: u64, log_blocks: u64, contract: Contract, overwrite_bytes: u64) -> Volume {
        let device = MemDevice::new(blocks);
        let options = MkfsOptions {
            uuid: Some([3; 16]),
            seed: Some(3),
            contract,
            log_blocks: Some(log_blocks),
            ..MkfsOptions::default()
        };
        mkfs(&device, &options, &mut |_, _| {}).unwrap();
        let device = Arc::new(device);
        let fs = mount(&device, overwrite_bytes);
        Volume {
            device,
            fs,
            overwrite_bytes,
        }
    }

    fn remount(&mut self) {
        self.fs.unmount().unwrap();
        self.fs = mount(&self.device, self.overwrite_bytes);
    }

    /// The volume as a power cut leaves it now.
    fn crashed(&self) -> Volume {
        let device = Arc::new(MemDevice::from_bytes(&self.device.to_bytes()));
        let fs = mount(&device, self.overwrite_bytes);
        Volume {
            device,
            fs,
            overwrite_bytes: self.overwrite_bytes,
        }
    }

    fn create(&self, name: &str) -> Ino {
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let made = self
            .fs
            .mknod(&root(), self.fs.root(), name.as_bytes(), &node);
        made.unwrap().ino
    }

    /// A durable file of `len` bytes.
    fn file(&self, name: &str, len: u64) -> Ino {
        let ino = self.create(name);
        self.write(ino, 0, &pattern(1, len));
        self.fsync(ino);
        ino
    }

    fn find(&self, name: &str) -> Ino {
        let found = self.fs.lookup(&root(), self.fs.root(), name.as_bytes());
        found.unwrap().ino
    }

    fn write(&self, ino: Ino, at: u64, data: &[u8]) {
        let written = self.fs.write(&root(), ino, at, data).unwrap();
        assert_eq!(written, data.len());
    }

    fn fsync(&self, ino: Ino) {
        self.fs.fsync(&root(), ino, false).unwrap();
    }

    fn content(&self, ino: Ino) -> Vec<u8> {
        let size = self.fs.getattr(&root(), ino).unwrap().size;
        let mut data = vec![0xee; size as usize + 10];
        let read = self.fs.read(&root(), ino, 0, &mut data).unwrap();
        assert_eq!(read as u64, size);
        data.truncate(read);
        data
    }

    fn free(&self) -> u64 {
        self.fs.statfs().unwrap().blocks_free
    }

    /// Blocks written around the log so far.
    fn around(&self) -> u64 {
        self.fs.journal_stats().around_blocks
    }

    /// Extents of a file: logical, block, length.
    fn extents(&self, name: &str) -> Vec<(u64, u64, u64)> {
        self.fs.sync().unwrap();
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_bytes(&self.device.to_bytes()));
        let inspector = Inspector::open(device).unwrap();
        let ino = inspector.resolve(name.as_bytes()).unwrap();
        let shown = inspector.show_inode(ino).unwrap();
        let extents = shown.extents.iter();
        extents
            .map(|extent| (extent.logical, extent.block.0, extent.blocks))
            .collect()
    }

    fn finish(self) {
        self.fs.unmount().unwrap();
        let report = fsck(self.device.clone(), &FsckOptions::default()).unwrap();
        assert_eq!(report.outcome(), Outcome::Clean, "{:?}", report.findings);
    }
}

fn mount(device: &Arc<MemDevice>, overwrite_bytes: u64) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    options.overwrite_bytes = overwrite_bytes;
    Fs::mount(Arc::clone(device) as _, &options).unwrap().0
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len)
        .map(|i| ((i / 7 + seed * 31 + i * seed) % 255 + 1) as u8)
        .collect()
}

/// Overwrites `from .. to` in order in pieces of `piece` bytes.
fn overwrite(v: &Volume, ino: Ino, from: u64, to: u64, piece: u64, seed: u64) {
    let data = pattern(seed, to);
    for at in (from..to).step_by(piece as usize) {
        let end = (at + piece).min(to);
        v.write(ino, at, &data[at as usize..end as usize]);
    }
}

#[test]
fn a_file_that_is_overwritten_whole_stays_one_extent_and_is_written_once() {
    for piece in [PAGE, 3 * PAGE, UNIT, 1 << 20] {
        let v = Volume::new(8192, 1024);
        let len = 2 << 20;
        let ino = v.file("file", len);
        let (old, free) = (v.extents("file"), v.free());
        assert_eq!(old.len(), 1);
        let (around, log) = (v.around(), v.fs.journal_stats().log_blocks);
        overwrite(&v, ino, 0, len, piece, 2);
        assert_eq!(v.around(), around, "nothing is written before the sync");
        assert_eq!(
            v.fs.getattr(&root(), ino).unwrap().blocks,
            len / 512,
            "delayed overwrites add no blocks"
        );
        v.fsync(ino);
        assert_eq!(v.around() - around, len / PAGE, "pieces of {piece}");
        let logged = v.fs.journal_stats().log_blocks - log;
        assert!(logged < 8, "{logged} blocks of log for pieces of {piece}");
        let new = v.extents("file");
        assert_eq!(new.len(), 1, "{new:?}");
        assert_ne!(new[0].1, old[0].1);
        assert_eq!(v.content(ino), pattern(2, len));
        assert_eq!(v.fs.getattr(&root(), ino).unwrap().blocks, len / 512);
        v.fs.sync().unwrap();
        assert_eq!(v.free(), free, "the old blocks are free");
        let after = v.crashed();
        assert_eq!(after.content(after.find("file")), pattern(2, len));
        after.finish();
        v.finish();
    }
}

#[test]
fn a_file_that_is_overwritten_with_a_sync_now_and_then_stays_in_few_pieces() {
    let v = Volume::new(16_384, 1024);
    let len = 8 << 20;
    let ino = v.file("file", len);
    for turn in 2..6 {
        for start in (0..len).step_by(1 << 20) {
            overwrite(&v, ino, start, start + (1 << 20), PAGE, turn);
            v.fsync(ino);
        }
        let extents = v.extents("file");
        assert!(extents.len() <= 8, "turn {turn}: {extents:?}");
    }
    v.finish();
}

#[test]
fn small_and_scattered_overwrites_stay_in_place() {
    let v = Volume::new(8192, 1024);
    let len = 4 << 20;
    let ino = v.file("file", len);
    let (old, around) = (v.extents("file"), v.around());
    let mut model = pattern(1, len);
    let mut state = 7u64;
    for turn in 0..600 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = (state >> 33) % (len / PAGE);
        let data = pattern(turn, PAGE);
        v.write(ino, page * PAGE, &data);
        model[(page * PAGE) as usize..][..PAGE as usize].copy_from_slice(&data);
        if turn % 10 == 0 {
            v.fsync(ino);
        }
    }
    // Less than a unit, and a range that crosses two without filling one.
    v.write(ino, 0, &model[..UNIT as usize - 1]);
    v.write(ino, UNIT / 2, &model[UNIT as usize / 2..][..UNIT as usize]);
    v.fsync(ino);
    assert_eq!(v.extents("file"), old);
    assert_eq!(v.around(), around);
    assert_eq!(v.content(ino), model);
    v.finish();
}

#[test]
fn units_overwritten_at_random_cut_a_file_into_no_more_pieces_than_it_has_units() {
    let v = Volume::new(16_384, 1024);
    let len = 8 << 20;
    let ino = v.file("file", len);
    let units = len / UNIT;
    let mut state = 7u64;
    for turn in 0..3 * units {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let unit = (state >> 33) % units;
        v.write(ino, unit * UNIT, &pattern(turn, UNIT));
        v.fsync(ino);
    }
    let extents = v.extents("file");
    assert!(extents.len() > 8, "they went out of place");
    assert!(extents.len() as u64 <= units, "{} extents", extents.len());
    let whole = |(logical, _, len): &(u64, u64, u64)| {
        logical % (UNIT / PAGE) == 0 && len % (UNIT / PAGE) == 0
    };
    assert!(extents.iter().all(whole), "{extents:?}");
    v.finish();
}

#[test]
fn a_full_volume_takes_large_overwrites_through_the_log() {
    for filled_to in [0u64, 1, 5, 40] {
        let v = Volume::new(2048, 256);
        let len = 1 << 20;
        let ino = v.file("file", len);
        let filler = v.create("filler");
        let mut at = 0;
        while v.free() > filled_to
            && let Ok(written) = v.fs.write(&root(), filler, at, &pattern(2, PAGE))
        {
            at += written as u64;
        }
        v.fs.sync().unwrap();
        let (old, free) = (v.extents("file"), v.free());
        for (turn, piece) in [(3, 1 << 20), (4, UNIT), (5, PAGE)] {
            overwrite(&v, ino, 0, len, piece, turn);
            assert_eq!(v.content(ino), pattern(turn, len));
            v.fsync(ino);
        }
        assert_eq!(v.extents("file"), old);
        assert_eq!(v.free(), free);
        let after = v.crashed();
        assert_eq!(after.content(after.find("file")), pattern(5, len));
        after.finish();
        // With room again, they go out of place again.
        v.fs.unlink(&root(), v.fs.root(), b"filler").unwrap();
        v.fs.sync().unwrap();
        overwrite(&v, ino, 0, len, UNIT, 6);
        assert_ne!(v.extents("file"), old);
        v.finish();
    }
}

#[test]
fn a_volume_that_fills_up_while_overwrites_wait_syncs_them() {
    let v = Volume::new(1200, 256);
    let len = 1 << 20;
    let ino = v.file("file", len);
    let filler = v.create("filler");
    overwrite(&v, ino, 0, len - PAGE, PAGE, 2);
    let mut at = 0;
    let full = loop {
        match v.fs.write(&root(), filler, at, &pattern(2, PAGE)) {
            Ok(written) => at += written as u64,
            Err(error) => break error,
        }
    };
    assert!(full == Errno::NoSpc, "{full}");
    // Waiting changes were committed before any write was refused.
    assert!(
        v.free() <= 8,
        "{} blocks are free on a full volume",
        v.free()
    );
    overwrite(&v, ino, len - PAGE, len, PAGE, 2);
    v.fsync(ino);
    assert_eq!(v.content(ino), pattern(2, len));
    v.finish();
}

#[test]
fn chattr_c_keeps_a_file_in_place_and_new_files_of_a_directory() {
    let mut v = Volume::new(8192, 1024);
    let len = 1 << 20;
    let ino = v.file("file", len);
    v.fs.set_flags(&root(), ino, InodeFlags::NOCOW).unwrap();
    let old = v.extents("file");
    for piece in [PAGE, 1 << 20] {
        overwrite(&v, ino, 0, len, piece, piece);
        v.fsync(ino);
        assert_eq!(v.extents("file"), old);
        assert_eq!(v.content(ino), pattern(piece, len));
        v.remount();
    }
    v.fs.set_flags(&root(), ino, InodeFlags::NONE).unwrap();
    overwrite(&v, ino, 0, len, UNIT, 9);
    assert_ne!(v.extents("file"), old);
    v.fs.set_flags(&root(), v.fs.root(), InodeFlags::NOCOW)
        .unwrap();
    let born = v.file("born", len);
    assert_eq!(v.fs.flags(&root(), born).unwrap(), InodeFlags::NOCOW);
    let old = v.extents("born");
    overwrite(&v, born, 0, len, UNIT, 9);
    assert_eq!(v.extents("born"), old);
    v.finish();
}

#[test]
fn two_streams_that_overwrite_halves_of_units_become_one() {
    let v = Volume::new(8192, 1024);
    let len = 1 << 20;
    let ino = v.file("file", len);
    let mark = v.create("mark");
    v.fs.sync().unwrap();
    let caller = |stream| Caller {
        stream: Stream(stream),
        ..root()
    };
    let new = pattern(2, len);
    let around = v.around();
    for at in (0..len).step_by(PAGE as usize) {
        let stream = 1 + (at / (UNIT / 2) % 2) as u32;
        let data = &new[at as usize..][..PAGE as usize];
        v.fs.write(&caller(stream), ino, at, data).unwrap();
    }
    v.fs.write(&caller(2), mark, 0, b"mark").unwrap();
    // One stream's sync takes both along, and their order is kept.
    v.fs.fsync(&caller(2), mark, false).unwrap();
    assert!(v.around() - around >= len / PAGE);
    let after = v.crashed();
    assert_eq!(after.content(after.find("file")), new);
    after.finish();
    v.finish();
}

#[test]
fn pages_pending_at_a_sync_are_patched_and_small_syncs_stop_delaying() {
    let v = Volume::new(8192, 1024);
    let len = 1 << 20;
    let ino = v.file("file", len);
    let (old, around) = (v.extents("file"), v.around());
    let mut model = pattern(1, len);
    // As a database's log is: in order, an fsync for every few pages.
    let mut at = 0;
    for turn in 0..200 {
        let data = pattern(turn, 3 * PAGE);
        v.write(ino, at, &data);
        model[at as usize..][..data.len()].copy_from_slice(&data);
        v.fsync(ino);
        at = (at + 3 * PAGE) % (len - 3 * PAGE);
    }
    assert_eq!(v.extents("file"), old);
    assert_eq!(v.around(), around);
    assert_eq!(v.content(ino), model);
    // Long stretches without a sync are seen again.
    overwrite(&v, ino, 0, len, PAGE, 3);
    v.fsync(ino);
    assert!(v.around() - around > len / PAGE / 2);
    v.finish();
}

#[test]
fn other_contracts_and_volumes_without_it_keep_their_ways() {
    let len = 1 << 20;
    for (contract, bytes, moves) in [
        (Contract::Sync, UNIT, true),
        (Contract::MetadataPrefix, UNIT, false),
        (Contract::Ordered, 0, false),
    ] {
        let v = Volume::with(8192, 1024, contract, bytes);
        let ino = v.file("file", len);
        let old = v.extents("file");
        overwrite(&v, ino, 0, len, UNIT, 2);
        v.fsync(ino);
        assert_eq!(v.extents("file") != old, moves, "{contract}");
        assert_eq!(v.content(ino), pattern(2, len));
        v.finish();
    }
}

#[test]
fn a_pending_unit_is_cut_punched_and_allocated_over() {
    let len = 4 * UNIT;
    for unit_whole in [false, true] {
        for what in 0..6 {
            let v = Volume::new(8192, 1024);
            let ino = v.file("file", len);
            let mut model = pattern(1, len);
            let to = if unit_whole {
                2 * UNIT
            } else {
                2 * UNIT - PAGE
            };
            let data = pattern(2, to);
            overwrite(&v, ino, UNIT, to, PAGE, 2);
            model[UNIT as usize..to as usize].copy_from_slice(&data[UNIT as usize..]);
            let (at, count) = (UNIT + 5000, 20_000);
            let mode = match what {
                0 | 1 => {
                    let size = if what == 0 { UNIT + 5000 } else { 0 };
                    let set = SetAttr {
                        size: Some(size),
                        ..SetAttr::default()
                    };
                    v.fs.setattr(&root(), ino, &set).unwrap();
                    model.truncate(size as usize);
                    None
                }
                2 => Some(AllocateMode::PunchHole),
                3 => Some(AllocateMode::ZeroRange),
                4 => Some(AllocateMode::KeepSize),
                _ => None,
            };
            if let Some(mode) = mode {
                v.fs.fallocate(&root(), ino, mode, at, count).unwrap();
                if mode != AllocateMode::KeepSize {
                    model[at as usize..(at + count) as usize].fill(0);
                }
            }
            assert_eq!(v.content(ino), model, "{what}");
            v.fsync(ino);
            assert_eq!(v.content(ino), model, "{what}");
            let after = v.crashed();
            assert_eq!(after.content(after.find("file")), model, "{what}");
            after.finish();
            v.finish();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: u64 },
    InOrder { from: u64, pages: u64, each: u64 },
    Append { len: u64 },
    Truncate { size: u64 },
    Allocate { mode: u8, at: u64, len: u64 },
    Fsync,
    Other { at: u64, len: u64 },
    Flag { on: bool },
    Remount,
    Crash,
}

fn step(span: u64) -> impl Strategy<Value = Step> {
    let pages = span / PAGE;
    prop_oneof![
        4 => (0..span, 1..20_000u64).prop_map(|(at, len)| Step::Write { at, len }),
        8 => (0..pages, 1u64..24)
            .prop_map(|(page, count)| Step::Write { at: page * PAGE, len: count * PAGE }),
        6 => (0..pages, 1u64..40, 1u64..5)
            .prop_map(|(from, pages, each)| Step::InOrder { from, pages, each }),
        2 => (1..30_000u64).prop_map(|len| Step::Append { len }),
        2 => (0..span).prop_map(|size| Step::Truncate { size }),
        3 => (0u8..5, 0..span, 1..span / 2)
            .prop_map(|(mode, at, len)| Step::Allocate { mode, at, len }),
        3 => Just(Step::Fsync),
        2 => (0..span, 1..20_000u64).prop_map(|(at, len)| Step::Other { at, len }),
        1 => any::<bool>().prop_map(|on| Step::Flag { on }),
        1 => Just(Step::Remount),
        1 => Just(Step::Crash),
    ]
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if model.len() < end {
        model.resize(end, 0);
    }
    model[at as usize..end].copy_from_slice(data);
}

/// Runs steps on a file and beside it on its model, compares after each.
fn run(steps: &[Step], mut v: Volume) {
    let start = v.free();
    let len = 600_000;
    let mut ino = v.file("file", len);
    let mut model = pattern(1, len);
    v.fs.sync().unwrap();
    let other = Caller {
        stream: Stream(9),
        ..root()
    };
    let mut seed = 1;
    for step in steps {
        seed += 1;
        match *step {
            Step::Write { at, len } => {
                let data = pattern(seed, len);
                v.write(ino, at, &data);
                put(&mut model, at, &data);
            }
            Step::InOrder { from, pages, each } => {
                for page in (from..from + pages).step_by(each as usize) {
                    let data = pattern(seed + page, each * PAGE);
                    v.write(ino, page * PAGE, &data);
                    put(&mut model, page * PAGE, &data);
                }
            }
            Step::Append { len } => {
                let data = pattern(seed, len);
                v.fs.append(&root(), ino, &data).unwrap();
                model.extend(data);
            }
            Step::Truncate { size } => {
                let set = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                v.fs.setattr(&root(), ino, &set).unwrap();
                model.resize(size as usize, 0);
            }
            Step::Allocate { mode, at, len } => {
                let modes = [
                    AllocateMode::Allocate,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange,
                    AllocateMode::ZeroRangeKeepSize,
                ];
                let mode_now = modes[usize::from(mode)];
                v.fs.fallocate(&root(), ino, mode_now, at, len).unwrap();
                let end = (at + len) as usize;
                if matches!(mode, 0 | 3) && model.len() < end {
                    model.resize(end, 0);
                }
                if mode >= 2 {
                    let (from, to) = ((at as usize).min(model.len()), end.min(model.len()));
                    model[from..to].fill(0);
                }
            }
            Step::Fsync => v.fsync(ino),
            Step::Other { at, len } => {
                let data = pattern(seed, len);
                v.fs.write(&other, ino, at, &data).unwrap();
                put(&mut model, at, &data);
            }
            Step::Flag { on } => {
                let flags = if on {
                    InodeFlags::NOCOW
                } else {
                    InodeFlags::NONE
                };
                v.fs.set_flags(&root(), ino, flags).unwrap();
            }
            Step::Remount => {
                v.remount();
                ino = v.find("file");
            }
            Step::Crash => {
                v.fs.sync().unwrap();
                let before = v.free();
                v = v.crashed();
                ino = v.find("file");
                assert_eq!(v.free(), before, "free blocks after a crash");
            }
        }
        let found = v.content(ino);
        let differs = found.iter().zip(&model).position(|(a, b)| a != b);
        assert!(
            found == model,
            "after {step:?}: {} bytes, expected {}, first difference at {differs:?}",
            found.len(),
            model.len()
        );
        let blocks = v.fs.getattr(&root(), ino).unwrap().blocks;
        assert!(
            blocks <= (model.len() as u64 + (2 << 20)) / 512 + 200,
            "{blocks}"
        );
    }
    v.fs.sync().unwrap();
    let after = v.crashed();
    assert_eq!(after.content(after.find("file")), model, "after a crash");
    after.finish();
    v.fs.unlink(&root(), v.fs.root(), b"file").unwrap();
    v.fs.sync().unwrap();
    assert!(start - v.free() <= 2, "{} of {start} are free", v.free());
    v.finish();
}

fn cases() -> u32 {
    match std::env::var_os("STEADFAST_LONG") {
        Some(_) => 1500,
        None => 60,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_file_behaves_like_a_vector_of_bytes(
        steps in prop::collection::vec(step(800_000), 1..50), unit in 0u64..5, sync in any::<bool>(),
    ) {
        let contract = if sync { Contract::Sync } else { Contract::Ordered };
        run(&steps, Volume::with(4096, 512, contract, PAGE << unit));
    }

    #[test]
    fn a_file_behaves_like_a_vector_of_bytes_with_little_log_and_space(
        steps in prop::collection::vec(step(600_000), 1..50), unit in 0u64..5,
    ) {
        run(&steps, Volume::with(1000, 64, Contract::Ordered, PAGE << unit));
    }
}
