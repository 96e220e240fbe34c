//! Mounting: each rule of recovery, shown by a crash that needs it.
//!
//! Every volume here goes through [`recovered`], which cuts recovery at every store, runs it again, compares a read-only
//! mount, and other numbers of threads.

#![allow(clippy::unwrap_used)]

use super::mount_volume::{ROOT_INODE, Tree, Volume, mounted, populated, recovered, tree};
use steadfast_pm::Region;
use steadfast_pmfs::fsck::Problem;
use steadfast_pmfs::layout::*;
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Caller, FileKind, FileSystem};

/// The names in the root directory.
fn names(tree: &Tree) -> Vec<&str> {
    let all = tree.keys().filter_map(|path| path.strip_prefix('/'));
    all.filter(|name| !name.is_empty()).collect()
}

/// Number of times that a mount meets a problem.
fn met(volume: &Volume, problem: Problem) -> u64 {
    let report = volume.mounted().unwrap().report;
    report.counts.get(&problem).copied().unwrap_or(0)
}

/// State of the medium after a mount for writing.
fn after_mount(volume: &Volume) -> Volume {
    volume.within(volume.mounted().unwrap().medium.into_region())
}

/// The tag of a slot.
fn tag(volume: &Volume, place: Place) -> u64 {
    Tag::from_word(volume.region.load(place.at() + slot::TAG)).tag
}

#[test]
fn a_new_volume_has_an_empty_root_that_belongs_to_its_maker() {
    let volume = Volume::new(1 << 20);
    let mount = volume.mounted().unwrap();
    assert_eq!(
        tree(&mount),
        Tree::from([("/".into(), "Directory 755 0, 2 links".into())])
    );
    assert!(mount.report.clean && mount.report.counts.is_empty());
    let free = mount.free.as_ref().unwrap();
    assert_eq!(free.free_pages(), volume.geometry.data_pages_total());
    assert_eq!(
        free.free_inodes(),
        u64::from(volume.geometry.inodes() - ROOT)
    );
}

#[test]
fn everything_in_a_volume_is_found_again() {
    let volume = populated();
    let mount = volume.mounted().unwrap();
    assert_eq!(mount.report.recovered_words, 0, "{:?}", mount.report);
    let shown = tree(&mount);
    assert_eq!(shown.len(), 13);
    for threads in [2, 5] {
        let again = mounted(volume.copy().region, false, threads).unwrap();
        assert_eq!(tree(&again), shown);
        assert_eq!(again.report, mount.report);
    }
    let read_only = mounted(volume.copy().region, true, 1).unwrap();
    assert_eq!(tree(&read_only), shown);
}

// Renames.

#[test]
fn corner_42_a_rename_that_was_cut_after_its_first_fence_is_finished() {
    // mv old new: the new slot is durable with its pointer; then the power went, before the old slot was cleared.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let (old, new) = (Place::new(page, 0), Place::new(page, 1));
    let file = v.inode(FileKind::Regular, 0);
    let tag = v.name(old, b"old", file);
    v.name(new, b"new", file);
    v.point(new, old, tag, None);
    assert_eq!(names(&recovered(&v)), ["new"]);
    assert_eq!(met(&v, Problem::RenameUnfinished), 1);
    let after = after_mount(&v);
    assert_eq!(after.region.load(old.at()), 0);
    // The pointer is left where it is.
    assert_ne!(after.region.load(new.at() + slot::POINTER), 0);
}

#[test]
fn a_rename_of_a_directory_into_another_is_finished_and_the_link_counts_follow() {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let dir = v.inode(FileKind::Directory, 0);
    v.name(Place::new(page, 0), b"to", dir);
    let moved = v.inode(FileKind::Directory, 0);
    let tag = v.name(Place::new(page, 1), b"moved", moved);
    let inner = v.dir_page(dir, 0);
    v.name(Place::new(inner, 0), b"moved", moved);
    v.point(Place::new(inner, 0), Place::new(page, 1), tag, None);
    let tree = recovered(&v);
    assert_eq!(names(&tree), ["to", "to/moved"]);
    assert!(tree["/"].ends_with("3 links") && tree["/to"].ends_with("3 links"));
}

#[test]
fn corner_67_a_pointer_to_a_slot_of_another_life_does_nothing() {
    // mv old new; ln new old: the slot of the old name was used again, by a link to the same file. Its tag is a new one.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let (old, new) = (Place::new(page, 0), Place::new(page, 1));
    let file = v.inode(FileKind::Regular, 0);
    let first = v.tag();
    v.name(new, b"new", file);
    v.point(new, old, first, None);
    v.name(old, b"old", file);
    let tree = recovered(&v);
    assert_eq!(names(&tree), ["new", "old"]);
    assert!(tree["/new"].contains("2 links") || tree["/old"].contains("2 links"));
}

#[test]
fn a_pointer_in_a_slot_without_a_name_does_nothing() {
    // The rename's slot is written, but its commit word was lost.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 0);
    let tag = v.name(Place::new(page, 0), b"old", file);
    v.body(Place::new(page, 1), b"new");
    v.point(Place::new(page, 1), Place::new(page, 0), tag, None);
    assert_eq!(names(&recovered(&v)), ["old"]);
}

#[test]
fn an_exchange_that_was_cut_is_finished_and_its_slot_gets_a_new_tag() {
    // exchange a b: b's slot names a's file and says that a's slot is to name b's.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let (a, b) = (Place::new(page, 0), Place::new(page, 1));
    let one = v.inode(FileKind::Regular, 0);
    let other = v.inode(FileKind::Directory, 0);
    let old = v.name(a, b"a", one);
    v.name(b, b"b", one);
    v.point(b, a, old, Some(other.number));
    let tree = recovered(&v);
    assert!(tree["/a"].starts_with("Directory") && tree["/b"].starts_with("Regular"));
    let after = after_mount(&v);
    // Else the pointer would be effective again if a later exchange brought the file back to this slot.
    assert!(tag(&after, a) > old);
}

#[test]
fn corner_67_an_exchange_that_was_cut_before_its_last_tag_gets_it() {
    // The last two stores of an exchange go to one line: the inode, then the tag. Only the first of them is durable.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let (a, b) = (Place::new(page, 0), Place::new(page, 1));
    let one = v.inode(FileKind::Regular, 0);
    let other = v.inode(FileKind::Directory, 0);
    let old = v.name(a, b"a", other);
    v.name(b, b"b", one);
    v.point(b, a, old, Some(other.number));
    assert_eq!(names(&recovered(&v)), ["a", "b"]);
    let after = after_mount(&v);
    assert_eq!(met(&v, Problem::TagOutlived), 1);
    assert!(tag(&after, a) > old);
    // exchange a c, where c is a link to the file of b: a names it now, and stays.
    after.region.store(a.at(), one.word());
    assert_eq!(names(&recovered(&after)), ["a", "b"]);
}

#[test]
fn corner_67_a_replacement_that_was_cut_before_its_commit_word_leaves_no_pointer_that_could_wake() {
    // mv from over: in the line of `over` the pointer is durable, the commit word is not. The rename did not happen. Later
    // `over` is exchanged with a second link of the file `from`; the slot keeps its pointer, and now names that file. If the
    // pointer still had the tag of `from`, the next mount would take that name away.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let (from, over) = (Place::new(page, 0), Place::new(page, 1));
    let file = v.inode(FileKind::Regular, 0);
    let other = v.inode(FileKind::Regular, 0);
    let old = v.name(from, b"from", file);
    v.name(over, b"over", other);
    v.point(over, from, old, None);
    assert_eq!(names(&recovered(&v)), ["from", "over"]);
    let mut after = after_mount(&v);
    assert!(tag(&after, from) > old);
    after.word(over.at(), file.word());
    let link = Place::new(page, 2);
    after.name(link, b"link", other);
    assert_eq!(names(&recovered(&after)), ["from", "link", "over"]);
}

#[test]
fn tags_start_above_those_of_names_and_of_their_pointers_and_no_others() {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 0);
    let place = Place::new(page, 0);
    v.name(place, b"name", file);
    v.point(place, Place::new(page, 40), 1 << 33, None);
    // A dead slot whose bytes are those of a name: they are no tag.
    v.word(Place::new(page, 9).at() + slot::TAG, u64::MAX);
    let left = v.mounted().unwrap().medium.tags_left();
    assert_eq!(left, TAG_MAX - (1 << 33) - 1);
}

#[test]
fn the_slot_of_a_finished_rename_is_used_again() {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 0);
    // The page is full except for the old name.
    for k in 2..64 {
        v.name(Place::new(page, k), format!("{k}").as_bytes(), file);
    }
    let tag = v.name(Place::new(page, 0), b"old", file);
    v.name(Place::new(page, 1), b"new", file);
    v.point(Place::new(page, 1), Place::new(page, 0), tag, None);
    let options = MountOptions::default();
    let fs = PmFs::mount(v.copy().region, &options, &mut |_, _| {}).unwrap();
    let me = Caller::root();
    let made = fs.mkdir(&me, fs.root(), b"third", 0o755).unwrap();
    assert_eq!(fs.lookup(&me, fs.root(), b"third").unwrap().ino, made.ino);
    let mut listed = Vec::new();
    let list = fs.readdir(&me, fs.root(), 2, &mut |entry| {
        listed.push(entry.name.to_vec());
        true
    });
    list.unwrap();
    assert_eq!(
        (&listed[0][..], &listed[1][..], listed.len()),
        (&b"third"[..], &b"new"[..], 64)
    );
}

// Births.

#[test]
fn a_name_whose_inode_was_not_born_goes() {
    // touch name: the slot's line was written back early, the inode's was not.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let fresh = v.number();
    let used = v.inode(FileKind::Regular, 0);
    let place = Place::new(page, 3);
    v.name(place, b"never", fresh);
    let next = InodeRef {
        generation: 2,
        ..used
    };
    v.name(Place::new(page, 4), b"again", next);
    assert!(names(&recovered(&v)).is_empty());
    assert_eq!(met(&v, Problem::NameOfUnborn), 2);
    let after = after_mount(&v);
    // The next file in its place does not get the name.
    after.bear(fresh, FileKind::Regular, 0);
    after.bear(next, FileKind::Regular, 0);
    assert!(names(&recovered(&after)).is_empty());
}

#[test]
fn a_name_of_a_birth_after_a_birth_that_was_cut_is_dropped() {
    // touch, cut: only the second line of the inode is on the medium. touch, cut: only the name is, of the generation after.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let first = v.number();
    let header = v.geometry.inode_at(first.number) + inode::EXTRA;
    v.word(header, u64::from(first.generation) << 32);
    let second = InodeRef {
        generation: first.generation + 1,
        ..first
    };
    v.name(Place::new(page, 3), b"never", second);
    assert!(names(&recovered(&v)).is_empty());
    assert_eq!(met(&v, Problem::NameOfUnborn), 1);
}

#[test]
fn corner_68_a_page_of_an_inode_that_was_not_born_is_free_and_stays_so() {
    // ln -s: the descriptor of the target's page was written back early, the inode was not.
    let mut v = Volume::new(1 << 20);
    let fresh = v.number();
    v.data(fresh, 0, 9);
    recovered(&v);
    assert_eq!(met(&v, Problem::PageOfUnborn), 1);
    let mut after = after_mount(&v);
    let page = after.dir_page(ROOT_INODE, 0);
    after.bear(fresh, FileKind::Regular, 100);
    after.name(Place::new(page, 0), b"file", fresh);
    let tree = recovered(&after);
    assert!(tree["/file"].ends_with("100 bytes"), "{tree:?}");
}

#[test]
fn a_page_of_a_directory_whose_removal_was_cut_is_not_read_as_names_by_the_next_mount() {
    // rmdir: the name went, and the crash came before the page's descriptor was written back.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 0);
    let place = Place::new(page, 0);
    let tag = v.name(place, b"file", file);
    let removed = v.inode(FileKind::Directory, 0);
    let lost = v.dir_page(removed, 0);
    recovered(&v);
    assert_eq!(met(&v, Problem::PageOfRemoved), 1);
    // Then a file takes the page, and is cut when its content is there and its descriptor is not. The content looks like a
    // rename of the other file.
    let mut after = after_mount(&v);
    let forged = Place::new(lost, 0);
    after.name(forged, b"forged", file);
    after.point(forged, place, tag, None);
    assert_eq!(names(&recovered(&after)), ["file"]);
}

#[test]
fn a_file_without_a_name_is_gone_and_nothing_is_stored_for_that() {
    // rm of an open file, or a file made with O_TMPFILE: it has no name, and its descriptors still say whose they are.
    let mut v = Volume::new(1 << 20);
    let file = v.inode(FileKind::Regular, 9000);
    v.data(file, 0, 1);
    v.data(file, 1, 2);
    v.inode(FileKind::Directory, 0);
    let mount = v.mounted().unwrap();
    assert_eq!(mount.report.recovered_words, 0);
    assert_eq!(mount.report.free_pages, v.geometry.data_pages_total());
    assert_eq!(mount.report.free_inodes, u64::from(v.geometry.inodes()) - 1);
    recovered(&v);
    // The number is used again: the pages belong to the life before.
    let next = InodeRef {
        generation: 2,
        ..file
    };
    v.bear(next, FileKind::Regular, 9000);
    let page = v.dir_page(ROOT_INODE, 0);
    v.name(Place::new(page, 0), b"file", next);
    assert!(recovered(&v)["/file"].ends_with("9000 bytes"));
}

#[test]
fn an_unnamed_directory_and_its_content_are_gone() {
    // rmdir needs an empty directory, so no crash leaves names in one without a name. If there are any, they do not count.
    let mut v = Volume::new(1 << 20);
    let dir = v.inode(FileKind::Directory, 0);
    let page = v.dir_page(dir, 0);
    let file = v.inode(FileKind::Regular, 0);
    v.name(Place::new(page, 0), b"file", file);
    v.name(Place::new(page, 1), b"self", dir);
    v.name(Place::new(page, 2), b"self", dir);
    let tree = recovered(&v);
    assert_eq!(tree.len(), 1);
    assert_eq!(
        v.mounted().unwrap().report.free_pages,
        v.geometry.data_pages_total()
    );
}

// Lives of pages.

/// A file of two pages, and the words of a cut write: a new page for offset 0, the old one to die.
fn half_written() -> (Volume, InodeRef, [Page; 3]) {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 2 * PAGE_BYTES);
    v.name(Place::new(page, 0), b"file", file);
    let (old, second) = (v.data(file, 0, 1), v.data(file, 1, 2));
    let new = v.data(file, 0, 3);
    let (at, free, written) = (5, PageState::Free, PageState::Written);
    let born = Life {
        at,
        cur: free,
        next: written,
    };
    v.describe_page(new, file, 0, PageKind::Data, born);
    let dying = Life {
        at,
        cur: written,
        next: free,
    };
    v.describe_page(old, file, 0, PageKind::Data, dying);
    (v, file, [old, second, new])
}

#[test]
fn corner_68_a_write_that_did_not_commit_did_not_happen_and_a_later_change_does_not_commit_it() {
    let (v, file, [old, _, new]) = half_written();
    let tree = recovered(&v);
    assert_eq!(met(&v, Problem::LifeUncommitted), 2);
    let after = after_mount(&v);
    let life = |page| Life::from_word(after.region.load(after.geometry.desc_at(page) + desc::LIFE));
    assert_eq!(life(old), Life::settled(PageState::Written));
    assert_eq!(life(new), Life::settled(PageState::Free));
    // chmod: the sequence that the write would have had.
    after.commit(file, 5, AttributePlace::None);
    after.word(
        after.geometry.inode_at(file.number) + inode::SIZE[1],
        2 * PAGE_BYTES,
    );
    after.word(
        after.geometry.inode_at(file.number) + inode::OWNER[1],
        5 << 32 | 6,
    );
    assert_eq!(recovered(&after)["/file"], tree["/file"]);
}

#[test]
fn a_write_that_committed_is_there_and_costs_recovery_nothing() {
    let (v, file, [old, ..]) = half_written();
    let before = recovered(&v);
    v.commit(file, 5, AttributePlace::None);
    v.word(
        v.geometry.inode_at(file.number) + inode::SIZE[1],
        2 * PAGE_BYTES,
    );
    // The other slot of the size is free for the next change, with any content.
    v.word(v.geometry.inode_at(file.number) + inode::SIZE[0], 0);
    let mount = v.mounted().unwrap();
    assert_eq!(mount.report.recovered_words, 0);
    let node = mount.table.get(file.number).unwrap();
    assert!(
        node.read()
            .pages()
            .unwrap()
            .iter()
            .all(|extent| extent.page != old)
    );
    assert_ne!(recovered(&v)["/file"], before["/file"]);
}

#[test]
fn corner_69_pages_past_the_end_are_free_and_do_not_come_back_when_the_file_grows() {
    // truncate: the size is durable, the marks of the pages are not. Then truncate up: the range reads as zeros.
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 5000);
    v.name(Place::new(page, 0), b"file", file);
    for (offset, byte) in [(0, 1), (1, 2), (2, 3), (9, 4)] {
        v.data(file, offset, byte);
    }
    let reserved = v.page();
    v.describe_page(
        reserved,
        file,
        12,
        PageKind::Data,
        Life::settled(PageState::Unwritten),
    );
    let tree = recovered(&v);
    assert!(tree["/file"].ends_with("12:-") && !tree["/file"].contains(", 2:"));
    assert_eq!(met(&v, Problem::PagePastEnd), 2);
    let after = after_mount(&v);
    after.word(
        after.geometry.inode_at(file.number) + inode::SIZE[0],
        90_000,
    );
    let tree = recovered(&after);
    assert!(
        !tree["/file"].contains(", 2:") && !tree["/file"].contains(", 9:"),
        "{tree:?}"
    );
}

#[test]
fn a_reserved_page_that_was_to_be_written_stays_reserved() {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 5000);
    v.name(Place::new(page, 0), b"file", file);
    let target = v.data(file, 0, 1);
    let turning = Life {
        at: 5,
        cur: PageState::Unwritten,
        next: PageState::Written,
    };
    v.describe_page(target, file, 0, PageKind::Data, turning);
    assert!(recovered(&v)["/file"].ends_with("0:-"));
}

#[test]
fn a_directory_page_that_was_adopted_without_its_first_name_is_empty() {
    // touch in a full directory: page and descriptor are durable, the name is not.
    let mut v = Volume::new(1 << 20);
    v.dir_page(ROOT_INODE, 0);
    recovered(&v);
    let mount = v.mounted().unwrap();
    let root = mount.table.get(ROOT).unwrap();
    assert_eq!(
        root.read().directory().unwrap().slots.free(),
        SLOTS_PER_PAGE
    );
    assert_eq!(mount.report.free_pages, v.geometry.data_pages_total() - 1);
}

// Everything together, and words that a mount does not judge.

#[test]
fn corner_44_many_cut_calls_at_once_are_recovered_at_once() {
    let mut v = populated();
    let page = v.dir_page(ROOT_INODE, 2);
    let (file, unborn) = (v.inode(FileKind::Regular, 0), v.number());
    let tag = v.name(Place::new(page, 0), b"old", file);
    v.name(Place::new(page, 1), b"new", file);
    v.point(Place::new(page, 1), Place::new(page, 0), tag, None);
    v.name(Place::new(page, 2), b"unborn", unborn);
    v.data(unborn, 0, 1);
    v.data(file, 3, 7);
    let later = v.data(file, 0, 7);
    let life = Life {
        at: 5,
        cur: PageState::Free,
        next: PageState::Unwritten,
    };
    v.describe_page(later, file, 0, PageKind::Data, life);
    let shown = recovered(&v);
    assert!(shown.contains_key("/new") && !shown.contains_key("/old"));
    assert_eq!(shown.len(), 14);
}

#[test]
fn the_content_of_dead_objects_does_not_matter() {
    // Freed pages and inodes keep their words; a mount reads none of them, however odd they are.
    let mut v = populated();
    let shown = v.tree();
    let dead = v.inode(FileKind::Regular, u64::MAX);
    let at = v.geometry.inode_at(dead.number);
    v.word(at + inode::COMMIT, u64::MAX);
    let page = v.data(dead, (1 << 48) - 1, 1);
    v.word(v.geometry.desc_at(page) + desc::LIFE, u64::MAX);
    let page = v.data(dead, 3, 1);
    v.data(dead, 3, 1);
    v.word(v.geometry.desc_at(page) + desc::OFFSET, 0xff00);
    for page in v.geometry.data_pages(0).rev().take(20) {
        for word in 0..512 {
            v.word(Page(page).at() + 8 * word, 0x0505_0505 * word);
        }
    }
    assert_eq!(recovered(&v), shown);
    assert!(v.mounted().unwrap().report.counts.is_empty());
}

#[test]
fn a_mount_is_distinguished_from_the_next_by_its_hints() {
    let v = populated();
    let mount = v.mounted().unwrap();
    assert_eq!((mount.report.clean, mount.report.mounts), (true, 1));
    let mount = mounted(mount.medium.into_region(), false, 1).unwrap();
    assert_eq!((mount.report.clean, mount.report.mounts), (false, 2));
    let fs = PmFs::mount(
        mount.medium.into_region(),
        &MountOptions::default(),
        &mut |_, _| {},
    );
    let fs = fs.unwrap();
    fs.unmount().unwrap();
    let content = fs.medium().content();
    let mount = mounted(Region::with_content(&content), true, 1).unwrap();
    assert_eq!((mount.report.clean, mount.report.mounts), (true, 3));
    assert!(mount.medium.content() == content);
}

#[test]
fn corner_70_slots_that_no_name_takes_are_free() {
    let mut v = Volume::new(1 << 20);
    let page = v.dir_page(ROOT_INODE, 0);
    let file = v.inode(FileKind::Regular, 0);
    for (slot, len) in [(0, 255), (5, 33), (7, 32), (59, 255)] {
        v.name(Place::new(page, slot), &vec![b'a' + slot as u8; len], file);
    }
    let mount = v.mounted().unwrap();
    let root = mount.table.get(ROOT).unwrap();
    assert_eq!(
        root.read().directory().unwrap().slots.free(),
        64 - 5 - 2 - 1 - 5
    );
    assert_eq!(root.read().directory().unwrap().names.len(), 4);
}
