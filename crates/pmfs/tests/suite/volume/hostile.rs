//! Volumes with any wrong words: no panic, no hang, no access out of bounds; a read-only mount shows the rest; a repair keeps
//! all of that, and leaves a volume that can be mounted for writing and that a check finds in order.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::mount_volume::{Volume, mounted, numbered_tree, populated_in, tree};
use proptest::prelude::*;
use std::collections::BTreeSet;
use steadfast_pm::{OpenOptions, Region};
use steadfast_pmfs::error::Error;
use steadfast_pmfs::fsck::{FsckOptions, FsckReport, Severity, fsck};
use steadfast_pmfs::inspect::info;
use steadfast_pmfs::layout::*;
use steadfast_pmfs::mkfs::mkfs;
use steadfast_pmfs::mount::Mount;
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, RenameMode, Seek, SetAttr, XattrMode,
};

fn checked(region: Region, repair: bool) -> Result<(FsckReport, Region), Error> {
    let options = FsckOptions { repair, threads: 1 };
    fsck(region, &options, &mut |_, _| {})
}

fn inodes(mount: &Mount) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    mount.table.for_each(|node| {
        all.insert(node.inode.number);
    });
    all
}

/// Everything that must hold for a volume, however its words are. Returns whether a mount for writing takes it.
fn endures(volume: &Volume) -> bool {
    let content = || volume.copy().region;
    let Ok(read_only) = mounted(content(), true, 1) else {
        // Only the superblock can make a volume unreadable.
        assert!(checked(content(), true).is_err() && mounted(content(), false, 1).is_err());
        return false;
    };
    let (left, numbers) = numbered_tree(&read_only);
    let (report, _) = checked(content(), false).unwrap();
    let damage = report.count(Severity::Damage) > 0;
    let concerned: BTreeSet<u32> = report
        .findings
        .iter()
        .filter(|finding| finding.severity() == Severity::Damage)
        .filter_map(|finding| finding.location.inode)
        .collect();
    let writable = match mounted(content(), false, 1) {
        Ok(mount) => {
            assert!(!damage);
            assert_eq!(tree(&mount), left);
            used(content(), false);
            true
        }
        Err(Error::Damaged { count, first }) => {
            assert_eq!(count, report.count(Severity::Damage));
            assert!(first.is_some());
            used(content(), true);
            false
        }
        Err(other) => panic!("{other}"),
    };
    let (report, region) = checked(content(), true).unwrap();
    assert!(report.is_repaired(), "{report:#?}");
    let (report, region) = checked(region, false).unwrap();
    assert!(report.counts.is_empty(), "{report:#?}");
    let repaired = mounted(region, false, 1).unwrap();
    assert!(inodes(&read_only).is_subset(&inodes(&repaired)));
    let (after, numbers_after) = numbered_tree(&repaired);
    for (number, path) in numbers {
        // Parts without a finding are as they were.
        if !concerned.contains(&number) {
            assert_eq!(after[&numbers_after[&number]], left[&path], "{path}");
        }
    }
    for path in left.keys() {
        assert!(
            after.contains_key(path),
            "{path} is lost: {left:#?}, {after:#?}"
        );
    }
    writable
}

/// Makes all possible calls, on everything that is found. Errors are right; anything else that does not end is not.
fn used(region: Region, read_only: bool) {
    let mut options = MountOptions::default();
    options.read_only = read_only;
    options.scan_threads = 1;
    let fs = PmFs::mount(region, &options, &mut |_, _| {}).unwrap();
    let (me, root) = (Caller::root(), fs.root());
    let mut found = vec![(root, FileKind::Directory)];
    let mut next = 0;
    // A tree has no more directories than this, so a cycle would be noticed.
    while next < found.len() && found.len() < 10_000 {
        let (ino, kind) = found[next];
        next += 1;
        let _ = (fs.getattr(&me, ino), fs.open(&me, ino), fs.flags(&me, ino));
        for name in fs.listxattr(&me, ino).unwrap_or_default() {
            let _ = fs.getxattr(&me, ino, &name);
        }
        let mut buf = [0; 9000];
        let _ = (fs.read(&me, ino, 1, &mut buf), fs.readlink(&me, ino));
        let _ = (
            fs.seek(&me, ino, 0, Seek::Data),
            fs.seek(&me, ino, 0, Seek::Hole),
        );
        let _ = fs.readdir(&me, ino, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                found.push((entry.ino, entry.kind));
            }
            true
        });
        if kind == FileKind::Directory {
            let _ = (fs.lookup(&me, ino, b"file"), fs.lookup(&me, ino, b".."));
        }
    }
    assert!(found.len() < 10_000);
    for (ino, _) in &found {
        let _ = fs.write(&me, *ino, 5000, b"some bytes");
        let _ = fs.setxattr(&me, *ino, b"user.x", &[7; 100], XattrMode::Any);
        let shorter = SetAttr {
            size: Some(1),
            perm: Some(0o600),
            ..SetAttr::default()
        };
        let _ = fs.setattr(&me, *ino, &shorter);
        let _ = fs.fallocate(&me, *ino, AllocateMode::Allocate, 0, 20_000);
        let _ = fs.mkdir(&me, *ino, b"new directory", 0o755);
        let _ = fs.link(&me, *ino, root, format!("link {ino}").as_bytes());
        let _ = fs.rename(&me, (root, b"file"), (*ino, b"moved"), RenameMode::Replace);
        let _ = fs.rename(&me, (root, b"long"), (root, b"short"), RenameMode::Exchange);
        let _ = fs.unlink(&me, *ino, b"moved");
        let _ = fs.rmdir(&me, *ino, b"empty");
        fs.release(*ino);
    }
    let _ = (fs.statfs(), fs.sync(), fs.unmount());
}

/// The addresses of all words that something alive is made of, and of some others beside them.
fn words_in_use(volume: &Volume) -> Vec<u64> {
    let (geometry, mut all) = (&volume.geometry, Vec::new());
    all.extend((0..144).step_by(8));
    all.extend((PAGE_BYTES..PAGE_BYTES + 128).step_by(8));
    for number in 1..=geometry.inodes() {
        let at = geometry.inode_at(number);
        if number < 3 || volume.region.load(at) != 0 {
            all.extend((at..at + INODE_BYTES).step_by(8));
        }
    }
    let pages = geometry.data_pages(0);
    for page in pages.clone().map(Page) {
        let at = geometry.desc_at(page);
        if page.0 == pages.end - 1 || volume.region.load(at) != 0 {
            all.extend((at..at + DESC_BYTES).step_by(8));
        }
        let offset = volume.region.load(at + desc::OFFSET);
        if PageOffset::from_word(offset).is_some_and(|o| o.kind == PageKind::Directory) {
            for index in 0..SLOTS_PER_PAGE {
                let at = Place::new(page, index).at();
                let words = (at..at + SLOT_BYTES).step_by(8);
                if words.clone().any(|at| volume.region.load(at) != 0) {
                    all.extend(words);
                }
            }
        }
    }
    all
}

fn volume() -> Volume {
    populated_in(REGION_BYTES_MIN)
}

#[test]
fn corner_35_a_volume_with_one_wrong_bit_in_any_word_is_mounted_or_refused_and_can_be_repaired() {
    let volume = volume();
    assert!(endures(&volume));
    let (mut taken, mut refused) = (0, 0);
    for at in words_in_use(&volume) {
        let word = volume.region.load(at);
        // A third of the bits, others for the next word.
        for bit in (at / 8 % 3..64).step_by(3) {
            volume.word(at, word ^ 1 << bit);
            match endures(&volume) {
                true => taken += 1,
                false => refused += 1,
            }
        }
        volume.word(at, word);
    }
    assert!(
        taken > 1000 && refused > 500,
        "{taken} taken, {refused} refused"
    );
}

#[test]
fn corner_35_a_volume_with_an_extreme_word_anywhere_is_mounted_or_refused_and_can_be_repaired() {
    let volume = volume();
    let geometry = &volume.geometry;
    let all = words_in_use(&volume);
    // Values that mean something elsewhere: the values of other words, and the limits of valid values.
    let mut values: BTreeSet<u64> = all.iter().map(|at| volume.region.load(*at)).collect();
    values.extend([0, 1, u64::MAX, 1 << 63, u64::from(u32::MAX), 1 << 32]);
    let number = u64::from(geometry.inodes());
    values.extend([
        number << 32 | 1,
        (number + 1) << 32 | 1,
        geometry.pages * 64 + 1,
    ]);
    for at in all.iter().step_by(3) {
        let word = volume.region.load(*at);
        for value in &values {
            volume.word(*at, *value);
            endures(&volume);
        }
        volume.word(*at, word);
    }
}

/// A populated volume in a file that is cut to `bytes` once it is mapped.
fn cut_short(bytes: u64) -> (tempfile::TempDir, Region) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("volume");
    std::fs::write(&path, volume().region.content()).unwrap();
    let region = Region::open(&path, &OpenOptions::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(bytes).unwrap();
    (dir, region)
}

#[test]
fn a_file_that_is_cut_short_while_it_is_looked_at_is_an_error_and_not_an_empty_volume() {
    let memory = |error| assert!(matches!(error, Error::Memory { .. }), "{error}");
    for read_only in [false, true] {
        memory(mounted(cut_short(8192).1, read_only, 2).unwrap_err());
        memory(checked(cut_short(8192).1, !read_only).unwrap_err());
    }
    memory(info(cut_short(8192).1, 1, &mut |_, _| {}).unwrap_err());
    let options = super::mount_volume::options();
    memory(mkfs(&cut_short(8192).1, &options, &mut |_, _| {}).unwrap_err());
    // It is not said to be no volume, either.
    memory(mounted(cut_short(0).1, false, 1).unwrap_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn corner_35_a_volume_with_many_wrong_words_can_be_repaired(
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..4u8), 1..40)
    ) {
        let volume = volume();
        let all = words_in_use(&volume);
        for (index, value, how) in wrong {
            // The superblocks are left out: without them there is nothing to look at.
            let at = all[34..][index.index(all.len() - 34)];
            let word = match how {
                0 => value,
                1 => volume.region.load(at) ^ 1 << (value % 64),
                2 => volume.region.load(all[value as usize % all.len()]),
                _ => value >> (value % 64),
            };
            volume.word(at, word);
        }
        endures(&volume);
    }

    #[test]
    fn corner_35_a_region_of_noise_after_a_good_superblock_is_looked_at_to_its_end(seed in any::<u64>()) {
        let volume = volume();
        let mut x = seed | 1;
        for at in (2 * PAGE_BYTES..volume.region.len()).step_by(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Small numbers are likelier to mean something.
            volume.word(at, x >> (x & 63));
        }
        endures(&volume);
    }
}

/// The number of mounts is a hint under no checksum. Once, a mount of a volume that claims the largest number overflowed.
#[test]
fn any_number_of_mounts_is_taken() {
    const MOUNTS: u64 = 136;
    let volume = populated_in(1 << 20);
    volume.word(MOUNTS, u64::MAX);
    let mount = mounted(volume.copy().region, false, 1).unwrap();
    assert_eq!(mount.report.mounts, u64::MAX);
    assert!(endures(&volume));
}
