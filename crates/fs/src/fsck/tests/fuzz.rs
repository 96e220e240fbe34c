//! Corner 35: random damage, sealed and unsealed, through check, repair, and the mounted
//! code. Seeded; `STEADFAST_FUZZ_SECONDS`, `STEADFAST_FUZZ_IMAGES` (the least number
//! of images) and `STEADFAST_FUZZ_SEED` (the first seed) make it longer and different.

use super::image::{Image, walk};
use crate::fsck::{Finding, FsckOptions, Outcome, Problem, fsck};
use crate::inspect::info;
use crate::layout::{INODE_BYTES, META_BYTES};
use crate::{Fs, MountOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, MemDevice};
use steadfast_testkit::Random;
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, NewNode, RenameMode, Seek, SetAttr, XattrMode,
};

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// Numbers that code tends to trip over.
fn hostile_number(random: &mut Random, image: &Image) -> u64 {
    match random.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => u64::MAX >> random.below(64),
        4 => 1 << random.below(64),
        5 => image.volume.groups_start + random.below(image.volume.blocks),
        6 => {
            (image.volume.groups_start + random.below(image.volume.blocks)) * 16 + random.below(16)
        }
        7 => *random.pick(&image.paths.values().copied().collect::<Vec<_>>()),
        8 => random.below(300),
        _ => random.number(),
    }
}

fn mutate(random: &mut Random, image: &mut Image, blocks: &[u64]) {
    let at = match random.below(12) {
        0 => random.below(image.volume.blocks),
        1 => *random.pick(&[0, 1, 2, 3, image.volume.blocks - 1]),
        _ => *random.pick(blocks),
    };
    let number = hostile_number(random, image);
    let source = *random.pick(blocks);
    let (kind, offset, len) = (
        random.below(8),
        random.below(META_BYTES as u64 - 8) as usize,
        random.below(64),
    );
    let other = *image.block(source);
    let value = random.below(256) as u8;
    let slot = random.below(15) as usize * INODE_BYTES;
    let change = move |block: &mut [u8; BLOCK_SIZE]| match kind {
        0 => block[offset] ^= 1 << (value % 8),
        1 => block[offset] = value,
        2 => block[offset..(offset + len as usize).min(BLOCK_SIZE)].fill(value),
        3 => block[offset & !7..][..8].copy_from_slice(&number.to_le_bytes()),
        4 => block[..16].rotate_left(value as usize % 16),
        5 => block.copy_from_slice(&other),
        // Inodes: a field, and the root of a tree.
        6 => block[slot + (offset % 30) * 8..][..8].copy_from_slice(&number.to_le_bytes()),
        _ => block[(offset % 160) * 24 + 8..][..8].copy_from_slice(&number.to_le_bytes()),
    };
    if random.below(5) == 0 {
        image.scratch(at, change);
    } else {
        image.edit(at, change);
    }
}

/// Some changes through the mounted code, with any result.
fn use_it(fs: &Fs, image: &Image, random: &mut Random) {
    let me = &Caller::root();
    let inos: Vec<u64> = image.paths.values().copied().collect();
    let names: Vec<&[u8]> = image
        .paths
        .keys()
        .map(|p| p.rsplit('/').next().unwrap().as_bytes())
        .collect();
    let file = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    for _ in 0..12 {
        let (a, b) = (*random.pick(&inos), *random.pick(&inos));
        let (x, y) = (*random.pick(&names), *random.pick(&names));
        let offset = random.below(1 << 20);
        let _ = match random.below(9) {
            0 => fs.write(me, a, offset, &[1; 5000]).map(drop),
            1 => fs
                .setattr(
                    me,
                    a,
                    &SetAttr {
                        size: Some(offset),
                        ..SetAttr::default()
                    },
                )
                .map(drop),
            2 => fs.unlink(me, a, x),
            3 => fs.rename(me, (a, x), (b, y), RenameMode::Replace),
            4 => fs.mknod(me, a, b"fresh", &file).map(drop),
            5 => fs.mkdir(me, a, b"fresh-dir", 0o755).map(drop),
            6 => fs.rmdir(me, a, x),
            7 => fs.link(me, a, b, y).map(drop),
            _ => fs.fsync(me, a, false),
        };
    }
}

/// Place of a damage, and expectation of a repair.
#[derive(Default)]
pub(super) struct Near {
    /// Paths that lead to it.
    pub(super) paths: Vec<String>,
    /// There is a volume to be repaired.
    pub(super) repairable: bool,
    /// The superblock is wrong, under a valid checksum.
    pub(super) forged: bool,
}

/// Every kind of call on the inodes of these paths and on the names that lead to them.
fn use_near(fs: &Fs, image: &Image, paths: &[String]) {
    let me = &Caller::root();
    let file = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let mut buf = vec![0; 30_000];
    for path in paths {
        let Some(ino) = image.paths.get(path).copied() else {
            continue;
        };
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = image.paths.get(if above.is_empty() { "/" } else { above });
        let (parent, name) = (parent.copied().unwrap_or(fs.root()), name.as_bytes());
        let end = fs.getattr(me, ino).map_or(0, |attr| attr.size);
        let mut results = vec![
            fs.open(me, ino),
            fs.read(me, ino, 0, &mut buf).map(drop),
            fs.read(me, ino, end.saturating_sub(10), &mut buf).map(drop),
            fs.seek(me, ino, 0, Seek::Hole).map(drop),
            fs.seek(me, ino, 4096, Seek::Data).map(drop),
            fs.readlink(me, ino).map(drop),
            fs.lookup(me, ino, b"..").map(drop),
            fs.write(me, ino, 100, &[1; 9000]).map(drop),
            fs.write(me, ino, end, b"more").map(drop),
            fs.append(me, ino, &[2; 5000]).map(drop),
            fs.fsync(me, ino, true),
            fs.fallocate(me, ino, AllocateMode::PunchHole, 3000, 9000),
            fs.fallocate(me, ino, AllocateMode::ZeroRange, 20_000, 9000),
            fs.fallocate(me, ino, AllocateMode::KeepSize, 0, 60_000),
            fs.setxattr(me, ino, b"user.k", &[3; 9], XattrMode::Any),
            fs.setxattr(me, ino, b"user.new", &[3; 300], XattrMode::Any),
            fs.removexattr(me, ino, b"user.new"),
            fs.removexattr(me, ino, b"user.colour"),
            fs.mknod(me, ino, b"made", &file).map(drop),
            fs.mkdir(me, ino, b"made-too", 0o755).map(drop),
            fs.symlink(me, ino, b"made-three", &[b'x'; 500]).map(drop),
            fs.link(me, ino, fs.root(), b"linked").map(drop),
            fs.rename(
                me,
                (ino, b"made"),
                (fs.root(), b"moved"),
                RenameMode::Replace,
            ),
            fs.rename(
                me,
                (parent, name),
                (fs.root(), b"moved-too"),
                RenameMode::NoReplace,
            ),
            fs.rename(
                me,
                (fs.root(), b"moved-too"),
                (parent, name),
                RenameMode::Replace,
            ),
            fs.rename(
                me,
                (parent, name),
                (fs.root(), b"moved"),
                RenameMode::Exchange,
            ),
            fs.sync(),
            fs.statfs().map(drop),
            fs.setattr(me, ino, &size(5000)).map(drop),
            fs.setattr(me, ino, &size(1 << 30)).map(drop),
            fs.setattr(me, ino, &size(3)).map(drop),
            fs.unlink(me, fs.root(), b"moved"),
            fs.unlink(me, parent, name),
            fs.rmdir(me, ino, b"made-too"),
            fs.rmdir(me, parent, name),
            fs.fsync(me, ino, false),
        ];
        fs.release(ino);
        results.retain(|result| result.is_err());
    }
}

/// A damaged image through the mounted code, the check and the repair: errors, no panic, and a
/// volume that works afterwards.
pub(super) fn survive(image: &Image, near: &Near, seed: u64) {
    let random = &mut Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let repair = FsckOptions {
        repair: true,
        findings_max: 1000,
        ..FsckOptions::default()
    };
    let options = MountOptions {
        background: false,
        seed: Some(1),
        ..MountOptions::default()
    };
    let device = image.device();
    let _ = info(device.clone());
    let read_only = MountOptions {
        read_only: true,
        ..options.clone()
    };
    if let Ok((fs, _)) = Fs::mount(device.clone(), &read_only) {
        walk(&fs);
        use_near(&fs, image, &near.paths);
        let _ = fs.unmount();
    }
    assert!(
        device.to_bytes() == image.bytes,
        "a read-only mount writes nothing"
    );
    // The mounted code on the damaged volume: errors, never a panic.
    if let Ok((fs, _)) = Fs::mount(device.clone(), &options) {
        walk(&fs);
        use_near(&fs, image, &near.paths);
        use_it(&fs, image, random);
        let _ = fs.sync();
        let _ = fs.unmount();
    }
    // The volume after the mounted code, and the damaged volume itself.
    let used = MemDevice::from_bytes(&device.to_bytes());
    for device in [Arc::new(used), image.device()] {
        let before = fsck(device.clone(), &FsckOptions::default()).map(|report| report.outcome());
        match fsck(device.clone(), &repair) {
            Err(error) => {
                assert!(!near.repairable, "no repair: {error}");
                continue; // no volume any more
            }
            // A superblock that is consistent in itself is trusted: blocks that it leaves out are no volume's.
            Ok(report) if report.outcome() == Outcome::DamageLeft && near.forged => continue,
            Ok(report) => {
                assert_ne!(report.outcome(), Outcome::DamageLeft, "{:#?}", report);
                if matches!(before, Ok(Outcome::Clean)) {
                    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
                }
            }
        }
        let mut after = fsck(device.clone(), &FsckOptions::default()).unwrap();
        let of_journal = |finding: &Finding| finding.problem == Problem::JournalDamaged;
        if after.outcome() == Outcome::DamageLeft && after.findings.iter().all(of_journal) {
            // A forged header hid records of the epoch that the repair itself began.
            fsck(device.clone(), &repair).expect("a second repair");
            after = fsck(device.clone(), &FsckOptions::default()).unwrap();
        }
        assert_eq!(after.outcome(), Outcome::Clean, "{:#?}", after.findings);
        let (fs, _) = Fs::mount(device.clone(), &options).expect("a repaired volume mounts");
        let (_, errors) = walk(&fs);
        assert!(
            errors.is_empty(),
            "a repaired volume reads without errors: {errors:#?}"
        );
        // The old files may fill the volume.
        let room = fs.statfs().expect("statfs").blocks_free > 64;
        if room && !fs.is_read_only() {
            works(&fs);
        }
        use_it(&fs, image, random);
        fs.unmount().expect("a repaired volume unmounts");
        drop(fs);
        let after = fsck(device, &FsckOptions::default()).unwrap();
        assert_eq!(
            after.outcome(),
            Outcome::Clean,
            "after use: {:#?}",
            after.findings
        );
    }
}

/// A file can be made, written, read and removed.
fn works(fs: &Fs) {
    let me = &Caller::root();
    let file = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let name = b"a file that nothing else has";
    let made = fs.mknod(me, fs.root(), name, &file).expect("mknod");
    fs.write(me, made.ino, 0, &[8; 5000]).expect("write");
    fs.fsync(me, made.ino, false).expect("fsync");
    let mut found = [0; 5000];
    fs.read(me, made.ino, 0, &mut found).expect("read");
    assert!(found == [8; 5000]);
    fs.unlink(me, fs.root(), name).expect("unlink");
}

fn fuzz(base: &Image, blocks: &[u64], seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = from_env("STEADFAST_FUZZ_SEED", 1);
    let at_least = from_env("STEADFAST_FUZZ_IMAGES", 20);
    let mut failed = Vec::new();
    let mut seed = first;
    while (Instant::now() < end || seed < first + at_least) && failed.len() < 5 {
        let start = Instant::now();
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut random = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
            let mut image = base.clone();
            for _ in 0..1 + random.below(6) {
                mutate(&mut random, &mut image, blocks);
            }
            survive(&image, &Near::default(), seed);
        }));
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "seed {seed} takes forever"
        );
        if run.is_err() {
            eprintln!("seed {seed} fails");
            failed.push(seed);
        }
        seed += 1;
    }
    eprintln!("{} images", seed - first);
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[test]
fn corner_35_hostile_images_give_errors_and_can_be_repaired() {
    let base = Image::populated();
    let blocks = base.metadata();
    fuzz(&base, &blocks, from_env("STEADFAST_FUZZ_SECONDS", 10));
}

#[test]
fn corner_35_hostile_images_with_a_log_to_replay() {
    let base = Image::crashed();
    let log = base.volume.log_start..base.volume.log_start + base.volume.log_blocks;
    let used = |at: &u64| base.block(*at).iter().any(|byte| *byte != 0);
    let mut blocks: Vec<u64> = log.filter(used).collect();
    blocks.extend([1, 2]);
    blocks.extend(base.metadata());
    fuzz(&base, &blocks, from_env("STEADFAST_FUZZ_SECONDS", 10));
}
