//! Corner 35: random damage, sealed and unsealed, through check, repair, and the mounted
//! code. Seeded; `STEADFAST_FUZZ_SECONDS`, `STEADFAST_FUZZ_IMAGES` (at least
//! so many) and `STEADFAST_FUZZ_SEED` (the first one) make it longer and different.

use super::image::{Image, walk};
use crate::fsck::{FsckOptions, Outcome, fsck};
use crate::info::info;
use crate::layout::{INODE_BYTES, META_BYTES};
use crate::{Fs, MountOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steadfast_block::{BLOCK_SIZE, MemDevice};
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode, RenameMode, SetAttr};

/// A small generator, good enough to choose places.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        xxhash_rust::xxh3::xxh3_64(&self.0.to_le_bytes()) % below
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len() as u64) as usize]
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// Numbers that code tends to trip over.
fn hostile_number(dice: &mut Dice, image: &Image) -> u64 {
    match dice.roll(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => u64::MAX >> dice.roll(64),
        4 => 1 << dice.roll(64),
        5 => image.volume.groups_start + dice.roll(image.volume.blocks),
        6 => (image.volume.groups_start + dice.roll(image.volume.blocks)) * 16 + dice.roll(16),
        7 => *dice.pick(&image.paths.values().copied().collect::<Vec<_>>()),
        8 => dice.roll(300),
        _ => dice.roll(u64::MAX),
    }
}

fn mutate(dice: &mut Dice, image: &mut Image, blocks: &[u64]) {
    let at = match dice.roll(12) {
        0 => dice.roll(image.volume.blocks),
        1 => *dice.pick(&[0, 1, 2, 3, image.volume.blocks - 1]),
        _ => *dice.pick(blocks),
    };
    let number = hostile_number(dice, image);
    let source = *dice.pick(blocks);
    let (kind, offset, len) = (
        dice.roll(8),
        dice.roll(META_BYTES as u64 - 8) as usize,
        dice.roll(64),
    );
    let other = *image.block(source);
    let value = dice.roll(256) as u8;
    let slot = dice.roll(15) as usize * INODE_BYTES;
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
    if dice.roll(5) == 0 {
        image.scratch(at, change);
    } else {
        image.edit(at, change);
    }
}

/// Some changes through the mounted code, whatever they come to.
fn use_it(fs: &Fs, image: &Image, dice: &mut Dice) {
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
        let (a, b) = (*dice.pick(&inos), *dice.pick(&inos));
        let (x, y) = (*dice.pick(&names), *dice.pick(&names));
        let offset = dice.roll(1 << 20);
        let _ = match dice.roll(9) {
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

fn survive(image: &Image, dice: &mut Dice) {
    let repair = FsckOptions {
        repair: true,
        findings_max: 1000,
        ..FsckOptions::default()
    };
    // The mounted code on the damaged volume: errors, never a panic.
    let device = image.device();
    let options = MountOptions {
        background: false,
        seed: Some(1),
        ..MountOptions::default()
    };
    let _ = info(device.clone());
    if let Ok((fs, _)) = Fs::mount(device.clone(), &options) {
        walk(&fs);
        use_it(&fs, image, dice);
        let _ = fs.sync();
        let _ = fs.unmount();
    }
    // What the mounted code made of it, and the damaged volume itself.
    let used = MemDevice::from_bytes(&device.to_bytes());
    for device in [Arc::new(used), image.device()] {
        let before = fsck(device.clone(), &FsckOptions::default()).map(|report| report.outcome());
        match fsck(device.clone(), &repair) {
            Err(_) => continue, // no volume any more
            Ok(report) => {
                assert_ne!(report.outcome(), Outcome::DamageLeft, "{:#?}", report);
                if matches!(before, Ok(Outcome::Clean)) {
                    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
                }
            }
        }
        let after = fsck(device.clone(), &FsckOptions::default()).unwrap();
        assert_eq!(after.outcome(), Outcome::Clean, "{:#?}", after.findings);
        let (fs, _) = Fs::mount(device.clone(), &options).expect("a repaired volume mounts");
        let (_, errors) = walk(&fs);
        assert!(
            errors.is_empty(),
            "a repaired volume reads without errors: {errors:#?}"
        );
        use_it(&fs, image, dice);
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

fn fuzz(base: &Image, blocks: &[u64], seconds: u64) {
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = from_env("STEADFAST_FUZZ_SEED", 1);
    let at_least = from_env("STEADFAST_FUZZ_IMAGES", 20);
    let mut failed = Vec::new();
    let mut seed = first;
    while (Instant::now() < end || seed < first + at_least) && failed.len() < 5 {
        let start = Instant::now();
        let run = catch_unwind(AssertUnwindSafe(|| {
            let mut dice = Dice(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
            let mut image = base.clone();
            for _ in 0..1 + dice.roll(6) {
                mutate(&mut dice, &mut image, blocks);
            }
            survive(&image, &mut dice);
        }));
        assert!(
            start.elapsed() < Duration::from_secs(20),
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
