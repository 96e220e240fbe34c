//! Body of the fuzz target `pm`: conditions that hold for any words of a volume. A violation is a panic. Only with the
//! feature `fuzz`; no part of the public interface.
//!
//! The fuzzer's bytes are decisions: the words of a valid volume that change, their changes, and whether the superblock is
//! sealed again; then the calls. Conditions: no panic, no endless walk; a check finds what a mount for writing refuses; a
//! repair leaves a volume that a check finds in order and that can be mounted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;

use steadfast_pm::Region;
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, Ino, NewNode, RenameMode, Seek, SetAttr, XattrMode,
};

use crate::fsck::{FsckOptions, Severity, fsck};
use crate::layout::{
    Geometry, INODE_BYTES, PAGE_BYTES, PageKind, PageOffset, Place, REGION_BYTES_MIN, SLOT_BYTES,
    SLOTS_PER_PAGE, desc,
};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::superblock::{COPIES, load, reseal};
use crate::{Error, MountOptions, PmFs};

/// Words that change, calls that are made: enough to meet, few enough to be fast.
const CHANGES_MAX: usize = 16;
const CALLS_MAX: usize = 40;
/// A tree has no more inodes than this, so a cycle would be noticed.
const FOUND_MAX: usize = 10_000;
const NAMES: [&[u8]; 8] = [
    b"dir",
    b"file",
    b"holes",
    b"short",
    b"long",
    b"fifo",
    b"new",
    b"a name that takes more than one slot of a directory, as it has more bytes",
];

/// The fuzzer's bytes as a source of decisions; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn word(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        let mut word = [0; 8];
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    fn below(&mut self, n: usize) -> usize {
        self.word(2) as usize % n.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A valid volume, and the addresses of the words that it is made of.
struct Base {
    content: Vec<u8>,
    words: Vec<u64>,
}

fn options(read_only: bool) -> MountOptions {
    MountOptions {
        read_only,
        scan_threads: 1,
        ..MountOptions::default()
    }
}

fn mounted(content: &[u8], read_only: bool) -> Result<PmFs, Error> {
    PmFs::mount(
        Region::with_content(content),
        &options(read_only),
        &mut |_, _| {},
    )
}

fn populate(fs: &PmFs) {
    let (me, root) = (Caller::root(), fs.root());
    let dir = fs.mkdir(&me, root, NAMES[0], 0o755).unwrap().ino;
    let node = |kind| NewNode {
        kind,
        perm: 0o644,
        rdev: 0,
    };
    for (name, kind) in [
        (NAMES[1], FileKind::Regular),
        (NAMES[2], FileKind::Regular),
        (NAMES[5], FileKind::Fifo),
    ] {
        let ino = fs.mknod(&me, dir, name, &node(kind)).unwrap().ino;
        if kind == FileKind::Regular {
            fs.write(&me, ino, 10_000, &[7; 5000]).unwrap();
            fs.setxattr(&me, ino, b"user.x", &[1; 300], XattrMode::Any)
                .unwrap();
        }
        fs.link(&me, ino, root, name).unwrap();
    }
    fs.symlink(&me, root, NAMES[3], b"dir/file").unwrap();
    fs.symlink(&me, root, NAMES[4], &[b'/'; 500]).unwrap();
    fs.mkdir(&me, dir, NAMES[7], 0o700).unwrap();
    fs.rename(&me, (dir, NAMES[1]), (root, NAMES[6]), RenameMode::Replace)
        .unwrap();
    fs.rename(
        &me,
        (root, NAMES[3]),
        (root, NAMES[4]),
        RenameMode::Exchange,
    )
    .unwrap();
}

/// The addresses of all words that something alive is made of, and of some others beside them.
fn words_in_use(region: &Region, geometry: &Geometry) -> Vec<u64> {
    let mut all: Vec<u64> = (0..144).step_by(8).collect();
    all.extend((PAGE_BYTES..PAGE_BYTES + 128).step_by(8));
    for number in 1..=geometry.inodes() {
        let at = geometry.inode_at(number);
        if number < 3 || region.load(at) != 0 {
            all.extend((at..at + INODE_BYTES).step_by(8));
        }
    }
    for page in geometry.data_pages(0).map(crate::layout::Page) {
        let at = geometry.desc_at(page);
        if region.load(at) == 0 {
            continue;
        }
        all.extend((at..at + crate::layout::DESC_BYTES).step_by(8));
        let offset = PageOffset::from_word(region.load(at + desc::OFFSET));
        if offset.is_some_and(|offset| offset.kind == PageKind::Directory) {
            for index in 0..SLOTS_PER_PAGE {
                let at = Place::new(page, index).at();
                let words = (at..at + SLOT_BYTES).step_by(8);
                if words.clone().any(|at| region.load(at) != 0) {
                    all.extend(words);
                }
            }
        }
    }
    all
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let region = Region::recorded(vec![0; REGION_BYTES_MIN as usize]);
        let how = MkfsOptions {
            uuid: Some([7; 16]),
            ..MkfsOptions::default()
        };
        mkfs(&region, &how, &mut |_, _| {}).unwrap();
        let fs = PmFs::mount(region, &options(false), &mut |_, _| {}).unwrap();
        populate(&fs);
        let content = fs.into_region().content();
        let region = Region::with_content(&content);
        let geometry = load(&region).unwrap().superblock.geometry;
        let words = words_in_use(&region, &geometry);
        Base { content, words }
    })
}

/// Changes words of the volume.
fn damaged(choices: &mut Choices<'_>) -> Vec<u8> {
    let base = base();
    let region = Region::with_content(&base.content);
    for _ in 0..1 + choices.below(CHANGES_MAX) {
        let at = choices.pick(&base.words);
        let word = region.load(at);
        let word = match choices.below(6) {
            0 => choices.word(8),
            1 => word ^ 1 << choices.below(64),
            2 => region.load(choices.pick(&base.words)),
            3 => word.wrapping_add(choices.word(1)).wrapping_sub(128),
            4 => word ^ choices.word(2) << (16 * choices.below(4)),
            _ => choices.pick(&[0, 1, u64::MAX, 1 << 63, u64::from(u32::MAX), 1 << 32]),
        };
        region.store(at, word);
    }
    if choices.below(2) == 0 {
        for page in COPIES {
            reseal(&region, page);
        }
    }
    region.content()
}

/// Everything that is found from the root on is looked at.
fn walk(fs: &PmFs) -> Vec<(Ino, FileKind)> {
    let me = Caller::root();
    let (mut found, mut next) = (vec![(fs.root(), FileKind::Directory)], 0);
    while next < found.len() {
        assert!(found.len() < FOUND_MAX, "a cycle");
        let (ino, _) = found[next];
        next += 1;
        let _ = (fs.getattr(&me, ino), fs.flags(&me, ino));
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
    }
    found
}

fn call(fs: &PmFs, found: &[(Ino, FileKind)], choices: &mut Choices<'_>) {
    let me = Caller::root();
    let (ino, other) = (choices.pick(found).0, choices.pick(found).0);
    let (name, new) = (choices.pick(&NAMES), choices.pick(&NAMES));
    let at = choices.word(choices.0.len() % 5);
    let shorter = SetAttr {
        size: Some(at % (1 << 20)),
        perm: Some(0o600),
        ..SetAttr::default()
    };
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let _ = match choices.below(14) {
        0 => fs.write(&me, ino, at % (1 << 20), name).map(drop),
        1 => fs.setattr(&me, ino, &shorter).map(drop),
        2 => fs.mknod(&me, ino, name, &node).map(drop),
        3 => fs.mkdir(&me, ino, name, 0o755).map(drop),
        4 => fs.symlink(&me, ino, name, new).map(drop),
        5 => fs.link(&me, ino, other, name).map(drop),
        6 => fs.unlink(&me, ino, name),
        7 => fs.rmdir(&me, ino, name),
        8 => fs.rename(&me, (ino, name), (other, new), RenameMode::Replace),
        9 => fs.rename(&me, (ino, name), (other, new), RenameMode::Exchange),
        10 => fs.setxattr(&me, ino, b"user.y", new, XattrMode::Any),
        11 => fs.removexattr(&me, ino, b"user.x"),
        12 => fs.fallocate(&me, ino, AllocateMode::Allocate, at % (1 << 20), 20_000),
        _ => fs.fallocate(&me, ino, AllocateMode::PunchHole, at % (1 << 20), 20_000),
    };
}

/// One run.
pub fn volume(data: &[u8]) {
    let mut choices = Choices(data);
    let content = damaged(&mut choices);
    let checked = |content: &[u8], repair| {
        let how = FsckOptions { repair, threads: 1 };
        fsck(Region::with_content(content), &how, &mut |_, _| {})
    };
    let Ok(read_only) = mounted(&content, true) else {
        // Only the superblock can make a volume unreadable.
        assert!(checked(&content, true).is_err() && mounted(&content, false).is_err());
        return;
    };
    walk(&read_only);
    let (report, _) = checked(&content, false).unwrap();
    let damage = report.count(Severity::Damage) > 0;
    match mounted(&content, false) {
        Ok(fs) => {
            assert!(!damage, "a mount for writing takes what a check refuses");
            let found = walk(&fs);
            for _ in 0..choices.below(CALLS_MAX) {
                call(&fs, &found, &mut choices);
            }
            let after = fs.into_region().content();
            let (report, _) = checked(&after, false).unwrap();
            assert_eq!(report.count(Severity::Damage), 0, "after use: {report:#?}");
        }
        Err(error) => assert!(damage, "refused, and a check finds nothing: {error}"),
    }
    let (report, region) = checked(&content, true).unwrap();
    assert!(report.is_repaired(), "{report:#?}");
    let repaired = region.content();
    let (report, _) = checked(&repaired, false).unwrap();
    assert!(report.counts.is_empty(), "after a repair: {report:#?}");
    let fs = mounted(&repaired, false).unwrap();
    for _ in 0..choices.below(CALLS_MAX) {
        let found = walk(&fs);
        call(&fs, &found, &mut choices);
    }
}
