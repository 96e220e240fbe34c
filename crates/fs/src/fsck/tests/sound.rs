//! Volumes without damage, and devices without a volume.

use super::image::{BLOCKS, Image, format, mount, populate, walk};
use crate::fsck::{FsckOptions, Outcome, Problem, fsck};
use crate::info::{JournalState, info};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::layout::Superblock;
use crate::{Error, Fs, MountOptions};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, Geometry, MemDevice};
use steadfast_vfs::{Caller, FileSystem};
use zerocopy::FromBytes;

#[test]
fn a_fresh_volume_is_clean() {
    for blocks in [300, 1000, 40_000, 70_000] {
        let device = format(blocks);
        let report = fsck(device.clone(), &FsckOptions::default()).unwrap();
        assert!(report.findings.is_empty(), "{blocks} blocks: {:#?}", report.findings);
        assert_eq!(report.outcome(), Outcome::Clean);
        let told = info(device).unwrap();
        assert_eq!(told.blocks, blocks);
        assert_eq!(told.inode_blocks, 1);
        assert_eq!(told.free_blocks + 1, told.data_blocks);
        assert!(matches!(told.journal, JournalState::Clean { .. }), "{:?}", told.journal);
    }
}

#[test]
fn a_populated_volume_is_clean_after_unmount() {
    let device = format(BLOCKS);
    let fs = mount(device.clone());
    populate(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let sink = steps.clone();
    let options = FsckOptions {
        progress: Some(Arc::new(move |progress| sink.lock().unwrap().push(progress.step))),
        ..FsckOptions::default()
    };
    let report = fsck(device.clone(), &options).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!((report.usage.directories, report.usage.others), (6, 4));
    assert!(steps.lock().unwrap().contains(&"directories"));
    let told = info(device).unwrap();
    assert_eq!(told.data_blocks - told.free_blocks + told.groups * 2, report.usage.used);
}

#[test]
fn a_crashed_volume_is_clean_and_a_check_writes_nothing() {
    let image = Image::crashed();
    let report = image.check();
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    assert!(report.has(Problem::LogPending) && report.has(Problem::OrphanPending));
    assert!(matches!(info(image.device()).unwrap().journal, JournalState::NeedsRecovery { .. }));
    // A repair replays the log and finds nothing else to do; the next mount frees the orphan.
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    assert!(!repaired.check().has(Problem::LogPending));
    let device = repaired.device();
    let fs = mount(device.clone());
    assert_eq!(walk(&fs).1, 0);
    fs.unmount().unwrap();
    drop(fs);
    let report = Image::of(&device, BTreeMap::new()).check();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn a_populated_volume_reads_without_errors() {
    let device = Image::populated().device();
    let fs = mount(device);
    let (seen, errors) = walk(&fs);
    assert!(seen > 130 && errors == 0, "{seen} inodes, {errors} errors");
}

/// Both superblocks, changed and resealed.
fn with_superblock(change: impl Fn(&mut Superblock)) -> Image {
    let mut image = Image::of(&format(BLOCKS), BTreeMap::new());
    for at in [0, BLOCKS - 1] {
        image.edit(at, |block| {
            let (sb, _) = Superblock::mut_from_prefix(block).unwrap();
            change(sb);
        });
    }
    image
}

fn refused(image: &Image) -> Error {
    let device = image.device();
    let check = fsck(device.clone(), &FsckOptions::default()).err().expect("a refusal");
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    assert!(fsck(device.clone(), &repair).is_err());
    assert!(info(device.clone()).is_err());
    assert!(Fs::mount(device.clone(), &MountOptions::default()).is_err());
    assert!(device.to_bytes() == image.bytes, "who refuses writes nothing");
    assert!(!check.to_string().is_empty());
    check
}

#[test]
fn corner_34_newer_formats_and_features_are_refused() {
    for change in [
        |sb: &mut Superblock| sb.version = 2.into(),
        |sb: &mut Superblock| sb.features_incompat = 1.into(),
        |sb: &mut Superblock| sb.contract = 9.into(),
    ] {
        let error = refused(&with_superblock(change));
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    // A feature that only forbids writing: a check is possible, a repair is not.
    let image = with_superblock(|sb| sb.features_ro = 1.into());
    assert_eq!(image.check().outcome(), Outcome::Clean);
    let repair = FsckOptions { repair: true, ..FsckOptions::default() };
    assert!(matches!(fsck(image.device(), &repair), Err(Error::Unsupported { .. })));
}

#[test]
fn corner_34_wrong_sizes_are_refused_or_tolerated() {
    let image = Image::populated();
    let mut short = image.clone();
    short.bytes.truncate((BLOCKS as usize - 100) * BLOCK_SIZE);
    assert!(matches!(refused(&short), Error::Truncated { volume: BLOCKS, .. }));
    for blocks in [0, 1, 3, 70] {
        short.bytes.truncate(blocks * BLOCK_SIZE);
        refused(&short);
    }
    let mut grown = image.clone();
    grown.bytes.resize((BLOCKS as usize + 100) * BLOCK_SIZE, 0);
    assert_eq!(grown.check().outcome(), Outcome::Clean);
    let nothing = Image { bytes: vec![0; image.bytes.len()], ..image.clone() };
    assert!(matches!(refused(&nothing), Error::NotAVolume));
    let mut foreign = image;
    foreign.scratch(0, |block| block[0] ^= 1);
    foreign.scratch(BLOCKS - 1, |block| block[0] ^= 1);
    assert!(matches!(refused(&foreign), Error::NotAVolume));
}

#[test]
fn corner_34_superblocks_that_contradict_the_device_are_refused() {
    let changes: [fn(&mut Superblock); 8] = [
        |sb| sb.blocks = u64::MAX.into(),
        |sb| sb.blocks = 0.into(),
        |sb| sb.log_start = 0.into(),
        |sb| sb.log_blocks = u64::MAX.into(),
        |sb| sb.groups_start = u64::MAX.into(),
        |sb| sb.groups = 0.into(),
        |sb| sb.groups = u64::MAX.into(),
        |sb| sb.root_ino = u64::MAX.into(),
    ];
    for change in changes {
        refused(&with_superblock(change));
    }
}

/// A device that stops writing after a number of blocks.
struct Cut {
    inner: MemDevice,
    left: Mutex<u64>,
}

impl BlockDevice for Cut {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<(), DeviceError> {
        let mut at = at;
        for block in segments.iter().flat_map(|segment| segment.chunks(BLOCK_SIZE)) {
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Err(DeviceError::ReadOnly { op: steadfast_block::DeviceOp::Write });
            }
            *left -= 1;
            self.inner.write(at, &[block])?;
            at = at.offset(1);
        }
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> Result<(), DeviceError> {
        self.inner.discard(at, count)
    }
}

#[test]
fn corner_34_an_interrupted_mkfs_leaves_no_volume_or_a_whole_one() {
    let old = Image::populated();
    let options = MkfsOptions { log_blocks: Some(64), ..MkfsOptions::default() };
    for cut in (0..80).chain([1000]) {
        let device = Arc::new(Cut { inner: MemDevice::from_bytes(&old.bytes), left: Mutex::new(cut) });
        let made = mkfs(&*device, &options, &mut |_, _| {}).is_ok();
        match fsck(device.clone(), &FsckOptions::default()) {
            Ok(report) => assert!(cut == 0 || made || report.has(Problem::SuperblockDamaged), "{cut}: {:#?}", report.findings),
            Err(error) => assert!(!made && matches!(error, Error::NotAVolume), "{cut}: {error}"),
        }
    }
}

#[test]
fn an_interrupted_repair_can_be_started_again() {
    let mut image = Image::populated();
    let leaf = image.tree(image.ino("/many")).0[1].block.get();
    image.scratch(leaf, |block| block[5] ^= 1);
    let node = image.tree(image.ino("/big")).1[0];
    image.scratch(node, |block| block[5] ^= 1);
    let root = image.ino("/");
    image.wipe_entry(root, b"a");
    let options = FsckOptions { repair: true, ..FsckOptions::default() };
    let mut cut = 0;
    loop {
        let inner = MemDevice::from_bytes(&image.bytes);
        let device = Arc::new(Cut { inner, left: Mutex::new(cut) });
        let done = fsck(device.clone(), &options).is_ok_and(|report| {
            assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.left);
            true
        });
        *device.left.lock().unwrap() = u64::MAX;
        let again = fsck(device.clone(), &options).unwrap();
        assert_ne!(again.outcome(), Outcome::DamageLeft, "cut at {cut}: {:#?}", again.left);
        let device = Arc::new(MemDevice::from_bytes(&device.inner.to_bytes()));
        assert_eq!(fsck(device.clone(), &FsckOptions::default()).unwrap().outcome(), Outcome::Clean);
        let fs = mount(device);
        let hard = fs.lookup(&Caller::root(), fs.root(), b"lost+found").and_then(|found| {
            let name = format!("#{}", image.ino("/a"));
            let a = fs.lookup(&Caller::root(), found.ino, name.as_bytes())?;
            fs.lookup(&Caller::root(), a.ino, b"hard")
        });
        let hard = hard.unwrap_or_else(|e| panic!("cut at {cut}: {e}: {again:#?}"));
        assert_eq!(hard.size, 5, "cut at {cut}");
        if done {
            break;
        }
        cut += 1;
    }
    assert!(cut > 5);
}
