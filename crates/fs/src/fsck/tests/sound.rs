//! Volumes without damage, and devices without a volume.

use super::image::{BLOCKS, Image, format, mount, populate, walk};
use crate::fsck::{FsckOptions, Outcome, Problem, fsck};
use crate::inspect::{JournalState, info};
use crate::layout::{Superblock, VERSION};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::{Error, Fs, MountOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, MemDevice,
};
use steadfast_journal::{HeaderState, Journal};
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};
use zerocopy::FromBytes;

#[test]
fn a_fresh_volume_is_clean() {
    for blocks in [300, 1000, 40_000, 70_000] {
        let device = format(blocks);
        let report = fsck(device.clone(), &FsckOptions::default()).unwrap();
        assert!(
            report.findings.is_empty(),
            "{blocks} blocks: {:#?}",
            report.findings
        );
        assert_eq!(report.outcome(), Outcome::Clean);
        let told = info(device).unwrap();
        assert_eq!(told.map.blocks(), blocks);
        assert_eq!(told.inode_blocks, 1);
        // The inodes, and a leaf for each of the two directories.
        assert_eq!(told.free_blocks + 3, told.data_blocks);
        assert!(
            matches!(told.journal, JournalState::Clean { .. }),
            "{:?}",
            told.journal
        );
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
        progress: Some(Arc::new(move |progress| {
            sink.lock().unwrap().push(progress.step)
        })),
        ..FsckOptions::default()
    };
    let report = fsck(device.clone(), &options).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    assert_eq!((report.usage.directories, report.usage.others), (7, 4));
    assert!(steps.lock().unwrap().contains(&"directories"));
    let told = info(device).unwrap();
    assert_eq!(told.data_blocks - told.free_blocks, report.usage.used);
}

#[test]
fn a_crashed_volume_is_clean_and_a_check_writes_nothing() {
    let image = Image::crashed();
    let report = image.check();
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    assert!(report.has(Problem::LogPending) && report.has(Problem::OrphanPending));
    assert!(matches!(
        info(image.device()).unwrap().journal,
        JournalState::NeedsRecovery { .. }
    ));
    // A repair replays the log and finds nothing else to do; the next mount frees the orphan.
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    assert!(!repaired.check().has(Problem::LogPending));
    let device = repaired.device();
    let fs = mount(device.clone());
    assert!(walk(&fs).1.is_empty());
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
    assert!(
        seen > 130 && errors.is_empty(),
        "{seen} inodes, {errors:#?}"
    );
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
    let check = fsck(device.clone(), &FsckOptions::default()).expect_err("a refusal");
    let repair = FsckOptions {
        repair: true,
        ..FsckOptions::default()
    };
    assert!(fsck(device.clone(), &repair).is_err());
    assert!(info(device.clone()).is_err());
    assert!(Fs::mount(device.clone(), &MountOptions::default()).is_err());
    assert!(
        device.to_bytes() == image.bytes,
        "a refused check wrote to the device"
    );
    assert!(!check.to_string().is_empty());
    check
}

#[test]
fn corner_34_other_formats_and_features_are_refused() {
    for change in [
        |sb: &mut Superblock| sb.version = (VERSION + 1).into(),
        |sb: &mut Superblock| sb.version = (VERSION - 1).into(),
        |sb: &mut Superblock| sb.features_incompat = (1 << 31).into(),
        |sb: &mut Superblock| sb.contract = 9.into(),
    ] {
        let error = refused(&with_superblock(change));
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    // A feature that only forbids writing: a check is possible, a repair is not.
    let image = with_superblock(|sb| sb.features_ro = (1 << 30).into());
    assert_eq!(image.check().outcome(), Outcome::Clean);
    let repair = FsckOptions {
        repair: true,
        ..FsckOptions::default()
    };
    assert!(matches!(
        fsck(image.device(), &repair),
        Err(Error::Unsupported { .. })
    ));
}

#[test]
fn corner_34_wrong_sizes_are_refused_or_tolerated() {
    let image = Image::populated();
    let mut short = image.clone();
    short.bytes.truncate((BLOCKS as usize - 100) * BLOCK_SIZE);
    assert!(matches!(
        refused(&short),
        Error::Truncated { volume: BLOCKS, .. }
    ));
    for blocks in [0, 1, 3, 70] {
        short.bytes.truncate(blocks * BLOCK_SIZE);
        refused(&short);
    }
    let mut grown = image.clone();
    grown.bytes.resize((BLOCKS as usize + 100) * BLOCK_SIZE, 0);
    assert_eq!(grown.check().outcome(), Outcome::Clean);
    let nothing = Image {
        bytes: vec![0; image.bytes.len()],
        ..image.clone()
    };
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

/// A device that stops writing after a number of blocks, and does not return some.
struct Broken {
    inner: MemDevice,
    left: Mutex<u64>,
    unreadable: Mutex<BTreeSet<u64>>,
}

impl Broken {
    fn new(image: &Image, left: u64) -> Arc<Broken> {
        Arc::new(Broken {
            inner: MemDevice::from_bytes(&image.bytes),
            left: Mutex::new(left),
            unreadable: Mutex::default(),
        })
    }
}

impl BlockDevice for Broken {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = at.0..at.0 + (buf.len() / BLOCK_SIZE) as u64;
        if self
            .unreadable
            .lock()
            .unwrap()
            .range(blocks)
            .next()
            .is_some()
        {
            let source = Arc::new(std::io::Error::from_raw_os_error(5));
            return Err(DeviceError::Io {
                op: DeviceOp::Read,
                at,
                count: 1,
                source,
            });
        }
        self.inner.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<(), DeviceError> {
        let mut at = at;
        for block in segments
            .iter()
            .flat_map(|segment| segment.chunks(BLOCK_SIZE))
        {
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Err(DeviceError::ReadOnly {
                    op: DeviceOp::Write,
                });
            }
            *left -= 1;
            self.inner.write(at, &[block])?;
            self.unreadable.lock().unwrap().remove(&at.0);
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
fn blocks_that_the_device_does_not_return_are_findings() {
    let image = Image::populated();
    let home = image.volume.groups_start;
    let cases = [
        (0, Problem::SuperblockDamaged),
        (BLOCKS - 1, Problem::SuperblockCopyDamaged),
        (image.volume.log_start, Problem::JournalDamaged),
        (home, Problem::BlockBitmapUnreadable),
        (home + 1, Problem::InodeBitmapUnreadable),
        (image.volume.root / 16, Problem::InodeBlockUnreadable),
        (
            image.tree(image.ino("/big")).1[0],
            Problem::TreeNodeUnreadable,
        ),
        (
            image.tree(image.ino("/many")).0[1].block.get(),
            Problem::LeafUnreadable,
        ),
        (
            image.tree(image.ino("/long")).0[0].block.get(),
            Problem::SymlinkInvalid,
        ),
        (
            image.inode(image.ino("/attrs")).xattr_block.get(),
            Problem::XattrUnreadable,
        ),
    ];
    for (at, problem) in cases {
        let device = Broken::new(&image, u64::MAX);
        device.unreadable.lock().unwrap().insert(at);
        let report = fsck(device.clone(), &FsckOptions::default()).unwrap();
        // An empty log is not read.
        if problem != Problem::JournalDamaged {
            assert!(report.has(problem), "{problem}: {:#?}", report.findings);
        }
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let report = fsck(device.clone(), &options).unwrap();
        assert_ne!(
            report.outcome(),
            Outcome::DamageLeft,
            "{problem}: {:#?}",
            report.left
        );
        let after = fsck(device, &FsckOptions::default()).unwrap();
        assert_eq!(
            after.outcome(),
            Outcome::Clean,
            "{problem}: {:#?}",
            after.findings
        );
    }
}

#[test]
fn corner_34_an_interrupted_mkfs_leaves_no_volume_or_a_whole_one() {
    let old = Image::populated();
    let options = MkfsOptions {
        log_blocks: Some(64),
        ..MkfsOptions::default()
    };
    for cut in (0..80).chain([1000]) {
        let device = Broken::new(&old, cut);
        let made = mkfs(&*device, &options, &mut |_, _| {}).is_ok();
        match fsck(device.clone(), &FsckOptions::default()) {
            Ok(report) => assert!(
                cut == 0 || made || report.has(Problem::SuperblockDamaged),
                "{cut}: {:#?}",
                report.findings
            ),
            Err(error) => assert!(
                !made && matches!(error, Error::NotAVolume),
                "{cut}: {error}"
            ),
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
    let options = FsckOptions {
        repair: true,
        ..FsckOptions::default()
    };
    let mut cut = 0;
    loop {
        let device = Broken::new(&image, cut);
        let done = fsck(device.clone(), &options).is_ok_and(|report| {
            assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.left);
            true
        });
        *device.left.lock().unwrap() = u64::MAX;
        let again = fsck(device.clone(), &options).unwrap();
        assert_ne!(
            again.outcome(),
            Outcome::DamageLeft,
            "cut at {cut}: {:#?}",
            again.left
        );
        let device = Arc::new(MemDevice::from_bytes(&device.inner.to_bytes()));
        assert_eq!(
            fsck(device.clone(), &FsckOptions::default())
                .unwrap()
                .outcome(),
            Outcome::Clean
        );
        let fs = mount(device);
        let hard = fs
            .lookup(&Caller::root(), fs.root(), b"lost+found")
            .and_then(|found| {
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

/// A volume with a few files, all in the log; its names.
fn all_in_the_log() -> (Image, Vec<String>) {
    let device = format(BLOCKS);
    let fs = mount(device.clone());
    let me = &Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let names: Vec<String> = (0..6).map(|i| format!("file-{i}")).collect();
    for name in &names {
        let attr = fs.mknod(me, fs.root(), name.as_bytes(), &node).unwrap();
        fs.write(me, attr.ino, 0, name.as_bytes()).unwrap();
        fs.sync().unwrap();
    }
    (Image::of(&device, BTreeMap::new()), names)
}

fn names_of(image: &Image) -> Vec<String> {
    let fs = mount(image.device());
    let mut names = Vec::new();
    fs.readdir(&Caller::root(), fs.root(), 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    })
    .unwrap();
    names.retain(|name| name.starts_with("file"));
    names.sort();
    names
}

#[test]
fn corner_12_a_damaged_record_costs_the_records_after_it_and_nothing_else() {
    let (mut image, names) = all_in_the_log();
    assert_eq!(names_of(&image), names);
    let log = image.volume.log_start..image.volume.log_start + image.volume.log_blocks;
    let records: Vec<u64> = log
        .filter(|at| image.block(*at).starts_with(b"STDFRECD"))
        .collect();
    image.scratch(records[records.len() / 2], |block| block[200] ^= 1);
    assert!(Fs::mount(image.device(), &MountOptions::default()).is_err());
    assert!(image.check().has(Problem::JournalDamaged));
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.left);
    assert_eq!(repaired.check().findings, []);
    let kept = names_of(&repaired);
    assert!(!kept.is_empty() && kept.len() < names.len(), "{kept:?}");
    assert_eq!(kept, names[..kept.len()]);
}

#[test]
fn corner_12_losing_the_newer_tail_header_is_noticed() {
    let (image, names) = all_in_the_log();
    let region = image.volume.region().unwrap();
    let states = Journal::tail_headers(&*image.device(), &region, &image.volume.uuid).unwrap();
    let generation = |state: &HeaderState| match state {
        HeaderState::Valid(header) => header.generation,
        _ => 0,
    };
    let newer = usize::from(generation(&states[1]) > generation(&states[0]));
    let older = *image.block(region.headers[1 - newer].0);
    let mut rotten = *image.block(region.headers[newer].0);
    rotten[60] ^= 1;
    for content in [rotten, [0; BLOCK_SIZE], older] {
        let mut damaged = image.clone();
        damaged.scratch(region.headers[newer].0, |block| *block = content);
        // The older header knows of an empty log: going on with it would forget everything.
        assert!(Fs::mount(damaged.device(), &MountOptions::default()).is_err());
        assert!(damaged.check().has(Problem::JournalDamaged));
        let (repaired, report) = damaged.repair();
        assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.left);
        assert_eq!(repaired.check().findings, []);
    }
    // The older one is not needed.
    let mut damaged = image;
    damaged.scratch(region.headers[1 - newer].0, |block| block[60] ^= 1);
    let report = damaged.check();
    assert!(report.has(Problem::JournalHeader) && !report.has(Problem::JournalDamaged));
    assert_eq!(names_of(&damaged), names);
    let (repaired, _) = damaged.repair();
    assert_eq!(names_of(&repaired), names);
    assert_eq!(repaired.check().findings, []);
}
