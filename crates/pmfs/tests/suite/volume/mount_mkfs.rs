//! Making and growing volumes, cut anywhere.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::mount_volume::{Volume, mounted, options, populated_in, tree};
use steadfast_pm::{Exploration, Model, Region};
use steadfast_pmfs::error::Error;
use steadfast_pmfs::grow::grow;
use steadfast_pmfs::inspect::{Inspector, PageUse};
use steadfast_pmfs::layout::*;
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::superblock::load;

fn quiet() -> impl FnMut(u64, u64) {
    |_, _| {}
}

/// Words that say whether there is a volume; others are kept together where there are too many images.
fn of_superblock(at: u64) -> bool {
    at < 2 * PAGE_BYTES && at % PAGE_BYTES < 144
}

fn exploration(model: Model) -> Exploration {
    Exploration {
        model,
        images_max: 1024,
        samples: 512,
        ..Exploration::default()
    }
}

#[test]
fn corner_34_an_mkfs_that_is_cut_leaves_the_old_volume_or_none_or_the_new_one() {
    let old = populated_in(REGION_BYTES_MIN);
    let before = old.tree();
    let region = Region::recorded(old.region.content());
    let mut options = options();
    options.label = "new".into();
    mkfs(&region, &options, &mut quiet()).unwrap();
    for model in [Model::Line, Model::Word, Model::Eadr] {
        let (mut kept, mut none, mut new) = (0, 0, 0);
        let trace = region.recorder().unwrap().trace();
        let check = |image: &steadfast_pm::CrashImage<'_>| {
            match mounted(image.region(), false, 1) {
                Ok(mount) if mount.superblock.label == "new" => {
                    assert_eq!(tree(&mount).len(), 1, "{image}");
                    assert_eq!(mount.report.free_pages, old.geometry.data_pages_total());
                    new += 1;
                }
                Ok(mount) => {
                    assert_eq!(tree(&mount), before, "{image}");
                    kept += 1;
                }
                Err(Error::NotAVolume | Error::Superblock { .. }) => none += 1,
                Err(other) => return Err(format!("{other}: {image}")),
            }
            Ok(())
        };
        trace
            .explore(&exploration(model), of_superblock, check)
            .unwrap();
        assert!(kept > 0 && none > 0 && new > 0, "{kept} {none} {new}");
    }
}

#[test]
fn nothing_of_an_older_volume_comes_alive_in_a_newer_one() {
    // The same inodes are born again, in the same generations, beside the old volume's pages.
    let old = populated_in(REGION_BYTES_MIN);
    let region = Region::with_content(&old.region.content());
    mkfs(&region, &options(), &mut quiet()).unwrap();
    let new = old.within(region);
    assert_eq!(new.tree().len(), 1);
    for number in 2..20 {
        let generation = 1;
        new.bear(
            InodeRef { number, generation },
            steadfast_vfs::FileKind::Directory,
            0,
        );
    }
    assert_eq!(new.tree().len(), 1);
}

#[test]
fn sizes_and_options_that_cannot_be_are_refused_before_anything_is_stored() {
    let old = populated_in(REGION_BYTES_MIN);
    let content = old.region.content();
    for change in [
        |options: &mut MkfsOptions| options.label = "x".repeat(33),
        |options: &mut MkfsOptions| options.label = "a\0b".into(),
        |options: &mut MkfsOptions| options.bytes_per_inode = 0,
        |options: &mut MkfsOptions| options.bytes_per_inode = 128,
    ] {
        let mut options = options();
        change(&mut options);
        mkfs(&old.region, &options, &mut quiet()).unwrap_err();
        assert!(old.region.content() == content);
    }
    let small = Region::anonymous(REGION_BYTES_MIN - 1 - 4096);
    let error = mkfs(&small, &options(), &mut quiet()).unwrap_err();
    assert!(matches!(error, Error::Size { .. }), "{error}");
}

#[test]
fn a_volume_has_the_options_of_mkfs() {
    let region = Region::anonymous(1 << 20);
    let options = MkfsOptions {
        root_perm: 0o1777,
        root_uid: 5,
        root_gid: 6,
        bytes_per_inode: 4096,
        ..options()
    };
    let mut told = Vec::new();
    let mut progress = |done, total| told.push((done, total));
    let made = mkfs(&region, &options, &mut progress).unwrap();
    assert_eq!(told.last(), Some(&(1, 1)));
    assert_eq!((made.uuid, made.label.as_str()), ([7; 16], "test"));
    assert!(made.geometry.inodes() >= 256);
    let inspector = Inspector::open(region).unwrap();
    let root = inspector.inode(ROOT).unwrap();
    assert_eq!(
        (root.perm, root.owners[0], root.mtime),
        (0o1777, (5, 6), 1_000_000_000)
    );
    // Without a given UUID, two volumes differ.
    let random = || {
        let made = mkfs(
            &Region::anonymous(1 << 20),
            &MkfsOptions::default(),
            &mut quiet(),
        );
        made.unwrap().uuid
    };
    assert_ne!(random(), random());
}

/// A populated volume in the first part of a longer region. In the rest there are remains of volumes: the place of later tables
/// is full of inodes and of descriptors that name live inodes.
fn before_growth(bytes: u64) -> (Volume, Region) {
    let volume = populated_in(REGION_BYTES_MIN);
    let content = volume.region.content();
    let content: Vec<u8> = content
        .iter()
        .copied()
        .cycle()
        .take(bytes as usize)
        .collect();
    (volume, Region::recorded(content))
}

#[test]
fn corner_34_a_growth_that_is_cut_leaves_the_old_size_or_the_new_one_and_the_same_tree() {
    let (volume, region) = before_growth(3 * REGION_BYTES_MIN + 5 * PAGE_BYTES);
    let shown = volume.tree();
    let grown = grow(&region, &mut quiet()).unwrap();
    let (old, new) = (grown.before.geometry, grown.after.geometry);
    assert_eq!((old.chunks(), new.chunks()), (1, 4));
    let (mut small, mut large) = (0, 0);
    let trace = region.recorder().unwrap().trace();
    let check = |image: &steadfast_pm::CrashImage<'_>| {
        let mount = mounted(image.region(), false, 1).map_err(|e| format!("{e}: {image}"))?;
        assert_eq!(tree(&mount), shown, "{image}");
        assert!(mount.report.counts.is_empty(), "{image}");
        let geometry = mount.superblock.geometry;
        let used = volume.mounted().unwrap().report.free_pages;
        let used = volume.geometry.data_pages_total() - used;
        assert_eq!(mount.report.free_pages, geometry.data_pages_total() - used);
        match geometry {
            geometry if geometry == old => small += 1,
            geometry if geometry == new => large += 1,
            other => panic!("{other:?}"),
        }
        // It can be started again.
        let region = mount.medium.into_region();
        assert_eq!(grow(&region, &mut quiet()).unwrap().after.geometry, new);
        Ok::<(), String>(())
    };
    trace
        .explore(&exploration(Model::Line), of_superblock, check)
        .unwrap();
    assert!(small > 0 && large > 0);
    // All of it is there now, and a second growth has nothing to do.
    let events = region.recorder().unwrap().events().len();
    let again = grow(&region, &mut quiet()).unwrap();
    assert_eq!(again.before, again.after);
    assert_eq!(region.recorder().unwrap().events().len(), events);
}

#[test]
fn a_growth_of_a_volume_whose_superblock_is_damaged_repairs_it_first() {
    // Only the copy counts, and a growth changes the copy first.
    let (volume, region) = before_growth(2 * REGION_BYTES_MIN);
    region.store(superblock::UUID, 1);
    region.restart_recorder();
    grow(&region, &mut quiet()).unwrap();
    let trace = region.recorder().unwrap().trace();
    let check = |image: &steadfast_pm::CrashImage<'_>| {
        let mount = mounted(image.region(), false, 1).map_err(|e| format!("{e}: {image}"))?;
        assert_eq!(tree(&mount), volume.tree());
        Ok::<(), String>(())
    };
    trace
        .explore(&exploration(Model::Line), of_superblock, check)
        .unwrap();
    let found = load(&region).unwrap();
    assert!(found.damage == [None, None] && !found.differ);
}

#[test]
fn a_growth_fills_up_a_last_chunk_that_was_cut_short() {
    // 20 pages of data in the last chunk, then all of it.
    let short = Region::anonymous(REGION_BYTES_MIN + 24 * PAGE_BYTES);
    let made = mkfs(&short, &options(), &mut quiet()).unwrap();
    assert_eq!(made.geometry.chunks(), 1);
    let mut content = short.content();
    content.resize(2 * REGION_BYTES_MIN as usize, 0xa5);
    let region = Region::with_content(&content);
    let grown = grow(&region, &mut quiet()).unwrap();
    assert_eq!(grown.after.geometry.pages, 128);
    let mount = mounted(region, false, 1).unwrap();
    assert_eq!(
        mount.report.free_pages,
        grown.after.geometry.data_pages_total()
    );
}

#[test]
fn the_map_of_a_volume_names_the_use_of_each_page() {
    let volume = populated_in(REGION_BYTES_MIN);
    let inspector = Inspector::open(volume.copy().region).unwrap();
    let (mut next, mut directories, mut data, mut free, mut attributes) = (0, 0, 0, 0, 0);
    let told = inspector.map(1, &mut quiet(), |run| {
        assert_eq!(run.pages.start, next);
        next = run.pages.end;
        let len = run.pages.end - run.pages.start;
        match run.what {
            PageUse::Directory { .. } => directories += len,
            PageUse::Data { .. } => data += len,
            PageUse::Attributes { .. } => attributes += len,
            PageUse::Free => free += len,
            PageUse::Superblock | PageUse::Tables => {}
        }
    });
    told.unwrap();
    assert_eq!(next, volume.geometry.pages);
    assert_eq!((directories, data, attributes), (4, 5, 1));
    assert_eq!(free, volume.mounted().unwrap().report.free_pages);
}
