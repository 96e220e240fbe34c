//! The check: every kind of finding is met, explained and repaired, and nothing that could be reached is lost.

#![allow(clippy::unwrap_used)]

use super::mount_volume::{ROOT_INODE, Tree, Volume, mounted, populated_in, recovered, tree};
use std::collections::BTreeSet;
use steadfast_pm::{Exploration, Region};
use steadfast_pmfs::error::Error;
use steadfast_pmfs::fsck::{FsckOptions, FsckReport, Problem, Severity, fsck};
use steadfast_pmfs::layout::*;
use steadfast_vfs::FileKind;

fn checked(region: Region, repair: bool) -> (FsckReport, Region) {
    let options = FsckOptions { repair, threads: 1 };
    fsck(region, &options, &mut |_, _| {}).unwrap()
}

/// A volume with one file, `file`, of three pages, in slot 0 of the page that is returned.
fn small() -> (Volume, Page, InodeRef) {
    let mut v = Volume::new(REGION_BYTES_MIN);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 3 * PAGE_BYTES);
    v.name(Place::new(page, 0), b"file", file);
    for offset in 0..3 {
        v.data(file, offset, 1 + offset as u8);
    }
    (v, page, file)
}

fn inode_word(v: &Volume, inode: InodeRef, word: u64, value: u64) {
    v.word(v.geometry.inode_at(inode.number) + word, value);
}

/// The page of an inode at an offset.
fn page_of(v: &Volume, inode: InodeRef, offset: u64) -> Page {
    let mut pages = v.geometry.data_pages(0).map(Page);
    let found = pages.find(|page| {
        let at = v.geometry.desc_at(*page);
        v.region.load(at + desc::OWNER) == inode.word()
            && v.region.load(at + desc::OFFSET) >> 16 == offset
    });
    found.unwrap()
}

/// A way to bring a problem about, and the names that are left after the repair.
type Case = (
    Problem,
    fn(&mut Volume, Page, InodeRef),
    &'static [&'static str],
);

/// Each problem once, in the volume of [`small`].
const CASES: &[Case] = &[
    (
        Problem::SuperblockDamaged,
        |v, _, _| v.word(superblock::LABEL, 7),
        &["/file"],
    ),
    (
        Problem::SuperblockCopyDamaged,
        |v, _, _| v.word(PAGE_BYTES, 7),
        &["/file"],
    ),
    (
        Problem::SuperblocksDiffer,
        |v, _, _| {
            // A volume with another label.
            let other = Region::anonymous(REGION_BYTES_MIN);
            let mut options = super::mount_volume::options();
            options.label = "other".into();
            steadfast_pmfs::mkfs::mkfs(&other, &options, &mut |_, _| {}).unwrap();
            for at in (0..128).step_by(8) {
                v.word(PAGE_BYTES + at, other.load(at));
            }
        },
        &["/file"],
    ),
    (
        Problem::NotUnmounted,
        |v, _, _| v.word(superblock::CLEAN, 0),
        &["/file"],
    ),
    (
        Problem::RenameUnfinished,
        |v, page, file| {
            let old = Place::new(page, 1);
            let tag = v.name(old, b"old", file);
            v.point(Place::new(page, 0), old, tag, None);
        },
        &["/file"],
    ),
    (
        Problem::TagOutlived,
        |v, page, _| {
            let other = v.inode(FileKind::Fifo, 0);
            let place = Place::new(page, 1);
            let tag = v.name(place, b"fifo", other);
            v.point(Place::new(page, 0), place, tag, None);
        },
        &["/fifo", "/file"],
    ),
    (
        Problem::NameOfUnborn,
        |v, page, _| {
            let unborn = v.number();
            v.name(Place::new(page, 1), b"unborn", unborn);
        },
        &["/file"],
    ),
    (
        Problem::LifeUncommitted,
        |v, _, file| {
            let page = v.data(file, 9, 9);
            let (cur, next) = (PageState::Free, PageState::Unwritten);
            v.describe_page(page, file, 9, PageKind::Data, Life { at: 5, cur, next });
        },
        &["/file"],
    ),
    (
        Problem::PageOfUnborn,
        |v, _, _| {
            let unborn = v.number();
            v.data(unborn, 0, 1);
        },
        &["/file"],
    ),
    (
        Problem::PageOfRemoved,
        |v, _, _| {
            let removed = v.inode(FileKind::Directory, 0);
            v.dir_page(removed, 0);
        },
        &["/file"],
    ),
    (
        Problem::PagePastEnd,
        |v, _, file| {
            v.data(file, 3, 1);
        },
        &["/file"],
    ),
    (
        Problem::OwnerImpossible,
        |v, _, _| {
            let (number, generation) = (v.geometry.inodes() + 1, 1);
            v.data(InodeRef { number, generation }, 3, 1);
        },
        &["/file"],
    ),
    (
        Problem::PointerWild,
        |v, page, _| v.point(Place::new(page, 0), Place(1 << 39), 1, None),
        &["/file"],
    ),
    (
        Problem::NameHash,
        |v, page, _| {
            let at = Place::new(page, 0).at() + slot::TAG;
            v.word(at, v.region.load(at) ^ 1);
        },
        &["/file"],
    ),
    (
        Problem::TagsExhausted,
        |v, page, file| {
            let at = Place::new(page, 0).at() + slot::TAG;
            v.word(at, v.region.load(at) | TAG_MAX << 16);
            v.name(Place::new(page, 1), b"link", file);
            v.point(Place::new(page, 1), Place::new(page, 5), TAG_MAX, Some(7));
        },
        &["/file", "/link"],
    ),
    (
        Problem::RootDamaged,
        |v, _, _| inode_word(v, ROOT_INODE, inode::BIRTH, 77 << 32),
        &["/file"],
    ),
    (
        Problem::NameDangling,
        |v, page, file| {
            let past = InodeRef {
                generation: 7,
                ..file
            };
            v.name(Place::new(page, 1), b"gone", past);
        },
        &["/file"],
    ),
    (
        Problem::NameOfRoot,
        |v, page, _| {
            v.name(Place::new(page, 1), b"root", ROOT_INODE);
        },
        &["/file"],
    ),
    (
        Problem::NameMalformed,
        |v, page, _| v.word(Place::new(page, 0).at() + slot::NAME, 0x2f2f),
        &["/fsck-%"],
    ),
    (
        Problem::NameTwice,
        |v, page, file| {
            let fifo = v.inode(FileKind::Fifo, 0);
            v.name(Place::new(page, 1), b"file", fifo);
            v.name(Place::new(page, 2), b"file", file);
        },
        &["/file", "/fsck-%"],
    ),
    (
        Problem::DirectoryTwice,
        |v, page, _| {
            let dir = v.inode(FileKind::Directory, 0);
            v.name(Place::new(page, 1), b"dir", dir);
            let inner = v.inode(FileKind::Directory, 0);
            let below = v.dir_page(dir, 0);
            v.name(Place::new(below, 0), b"inner", inner);
            let below = v.dir_page(inner, 0);
            v.name(Place::new(below, 0), b"self", inner);
            v.name(Place::new(below, 1), b"up", dir);
            v.name(Place::new(page, 2), b"second", inner);
        },
        // Of a directory's names the one nearest to the root counts.
        &["/dir", "/file", "/second"],
    ),
    (
        Problem::DirectoryPageTwice,
        |v, _, file| {
            let page = v.dir_page(ROOT_INODE, 0);
            v.name(Place::new(page, 0), b"link", file);
        },
        &["/file", "/link"],
    ),
    (
        Problem::DirectoryPageOffset,
        |v, _, file| {
            for offset in [1 << 47, 1 << 33] {
                let page = v.dir_page(ROOT_INODE, offset);
                let name = format!("link{offset}");
                v.name(Place::new(page, 0), name.as_bytes(), file);
            }
        },
        &["/file", "/link140737488355328", "/link8589934592"],
    ),
    (
        Problem::LifeImpossible,
        |v, _, file| {
            let (at, state) = (1 << 40, PageState::Written);
            let life = Life {
                at,
                cur: PageState::Free,
                next: state,
            };
            let page = page_of(v, file, 1);
            v.describe_page(page, file, 1, PageKind::Data, life);
        },
        &["/file"],
    ),
    (
        Problem::PageState,
        |v, page, _| v.word(v.geometry.desc_at(page) + desc::LIFE, 0xf),
        &["/file"],
    ),
    (
        Problem::PageKind,
        |v, page, _| v.word(v.geometry.desc_at(page) + desc::OFFSET, 9 << 8),
        &["/file"],
    ),
    (
        Problem::PageMisplaced,
        |v, _, file| {
            v.dir_page(file, 0);
        },
        &["/file"],
    ),
    (
        Problem::PageTwice,
        |v, _, file| {
            v.data(file, 1, 9);
        },
        &["/file"],
    ),
    (
        Problem::InodeKind,
        |v, _, file| inode_word(v, file, inode::BIRTH, 1 << 32 | 99 << 24),
        &["/file"],
    ),
    (
        Problem::InodeSize,
        |v, _, file| inode_word(v, file, inode::SIZE[0], u64::MAX),
        &["/file"],
    ),
    (
        Problem::InodeAttributes,
        |v, _, file| {
            inode_word(v, file, inode::COMMIT, 4 << 16 | 3 << 12 | 0o640);
        },
        &["/file"],
    ),
    (
        Problem::SymlinkTarget,
        |v, page, _| {
            let link = v.inode(FileKind::Symlink, 100);
            v.name(Place::new(page, 1), b"link", link);
        },
        &["/file", "/link"],
    ),
];

#[test]
fn every_problem_has_a_case() {
    let cases: BTreeSet<Problem> = CASES.iter().map(|case| case.0).collect();
    let all: BTreeSet<Problem> = Problem::ALL.iter().copied().collect();
    assert_eq!(cases, all);
}

#[test]
fn each_problem_is_found_explained_and_repaired() {
    for (problem, damage, left) in CASES {
        let (mut v, page, file) = small();
        damage(&mut v, page, file);
        let before = v.region.content();
        let (report, region) = checked(Region::recorded(before.clone()), false);
        assert!(
            region.recorder().unwrap().events().is_empty(),
            "a check stores nothing"
        );
        assert!(
            report.counts.contains_key(problem),
            "{problem}: {report:#?}"
        );
        let finding = report
            .findings
            .iter()
            .find(|f| f.problem == *problem)
            .unwrap();
        let text = finding.to_string();
        for part in [
            problem.what(),
            problem.consequence(),
            problem.repair(),
            problem.name(),
        ] {
            assert!(text.contains(part), "{text}");
        }
        // A mount for writing carries out the repairs of notes, and refuses damage.
        let mount = mounted(Region::with_content(&before), false, 1);
        let damaged = report.count(Severity::Damage) > 0;
        assert_eq!(mount.is_err(), damaged, "{problem}");
        match problem.severity() {
            Severity::Damage => assert!(matches!(mount, Err(Error::Damaged { .. }))),
            Severity::Note if *problem != Problem::NotUnmounted => {
                recovered(&v);
            }
            _ => {}
        }
        let (report, region) = checked(Region::with_content(&before), true);
        assert!(
            report.is_repaired() && report.stored_words < 1000,
            "{problem}: {report:#?}"
        );
        let (again, region) = checked(region, false);
        assert!(
            again.counts.is_empty() && again.is_sound(),
            "{problem}: {again:#?}"
        );
        let tree = tree(&mounted(region, false, 1).unwrap());
        let names = tree
            .keys()
            .filter(|path| path.matches('/').count() == 1 && *path != "/");
        let matches = |(name, left): (&String, &&str)| match left.strip_suffix('%') {
            Some(start) => name.starts_with(start),
            None => name == *left,
        };
        assert_eq!(names.clone().count(), left.len(), "{problem}: {tree:#?}");
        assert!(names.zip(*left).all(matches), "{problem}: {tree:#?}");
    }
}

#[test]
fn a_repair_that_is_cut_anywhere_is_gone_on_with_by_the_next() {
    for (problem, damage, _) in CASES {
        let (mut v, page, file) = small();
        damage(&mut v, page, file);
        let (_, region) = checked(Region::recorded(v.region.content()), true);
        let trace = region.recorder().unwrap().trace();
        let repaired = tree(&mounted(region, false, 1).unwrap());
        let options = Exploration {
            images_max: 1024,
            ..Exploration::default()
        };
        let explored = trace.explore(
            &options,
            |_| true,
            |image| {
                let (report, region) = checked(image.region(), true);
                assert!(report.is_repaired(), "{problem}: {image}");
                let shown = tree(&mounted(region, false, 1).unwrap());
                assert_eq!(
                    without_made_up_names(&shown),
                    without_made_up_names(&repaired),
                    "{problem}: {image}"
                );
                Ok::<(), ()>(())
            },
        );
        assert!(explored.unwrap().images > 1, "{problem}");
    }
}

/// A name that the repair makes up can be cut between its words; the remaining bytes are a name, or get another.
fn without_made_up_names(tree: &Tree) -> Vec<&String> {
    let known = ["/file", "/link", "/dir", "/second", "/fifo"];
    let kept = tree
        .iter()
        .filter(|(path, _)| known.contains(&path.as_str()));
    kept.map(|(_, text)| text).collect()
}

#[test]
fn a_finding_names_the_path_of_its_inode() {
    let mut v = populated_in(REGION_BYTES_MIN);
    // The last inode of the populated volume's deepest directory.
    let shown = v.mounted().unwrap();
    let deep = (1..20)
        .filter_map(|number| shown.table.get(number))
        .find(|node| {
            node.read().pages().is_some_and(|pages| pages.pages() == 1)
                && node.kind == FileKind::Regular
                && node.read().attributes.is_none()
        })
        .unwrap();
    v.data(deep.inode, 0, 9);
    inode_word(&v, ROOT_INODE, inode::BIRTH, 0);
    let (report, _) = checked(v.copy().region, false);
    let path = |problem| {
        let of = report
            .findings
            .iter()
            .find(|finding| finding.problem == problem);
        of.unwrap().location.path.clone().unwrap()
    };
    assert_eq!(path(Problem::RootDamaged), "/");
    assert_eq!(
        path(Problem::PageTwice),
        format!("/dir/deep/{}", "n".repeat(255))
    );
}

#[test]
fn a_check_counts_inodes_and_pages_in_use() {
    let (v, ..) = small();
    let (report, _) = checked(v.copy().region, false);
    assert_eq!((report.inodes, report.pages), (2, 4));
    assert_eq!(
        report.pages + report.free_pages,
        v.geometry.data_pages_total()
    );
    assert_eq!(
        report.inodes + report.free_inodes,
        u64::from(v.geometry.inodes())
    );
    assert_eq!(report.superblock.label, "test");
    assert!(report.hints.clean && report.counts.is_empty());
}

#[test]
fn findings_beyond_a_thousand_are_counted_only() {
    let mut v = Volume::new(16 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 5);
    v.name(Place::new(page, 0), b"file", file);
    for offset in 0..1500 {
        v.data(file, 1 + offset, 1);
    }
    let (report, _) = checked(v.copy().region, false);
    assert_eq!(report.findings.len(), 1000);
    assert_eq!(report.count(Severity::Note), 1500);
    let (report, _) = checked(v.copy().region, true);
    assert!(report.is_repaired() && report.stored_words == 1500);
}
