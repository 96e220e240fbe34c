//! The words of the medium after each call, and that a refused call changes none.

use super::*;
use crate::layout::{
    Commit, DESC_BYTES, INLINE_BYTES, Life, PAGE_BYTES, Page, PageOffset, Pointer, SEQUENCE_MAX,
    Tag, birth_parts, desc, inode, name_hash, slot,
};
use smallvec::smallvec;

fn word(lab: &Lab, at: u64) -> u64 {
    lab.m.load(at)
}

fn inode_word(lab: &Lab, of: InodeRef, offset: u64) -> u64 {
    word(lab, lab.m.geometry().inode_at(of.number) + offset)
}

fn slot_word(lab: &Lab, place: Place, offset: u64) -> u64 {
    word(lab, place.at() + offset)
}

fn tag(lab: &Lab, place: Place) -> Tag {
    Tag::from_word(slot_word(lab, place, slot::TAG))
}

fn pointer(lab: &Lab, place: Place) -> Option<Pointer> {
    let words = [slot::POINTER, slot::OTHER].map(|offset| slot_word(lab, place, offset));
    Pointer::from_words(words[0], words[1])
}

fn life(lab: &Lab, page: Page) -> Life {
    Life::from_word(word(lab, lab.m.geometry().desc_at(page) + desc::LIFE))
}

fn poke(lab: &Lab, at: u64, word: u64) {
    let repair = Repair { at, word };
    let _ = recover(&lab.m, &[repair], Survey::default()).unwrap();
}

/// The bytes of a name, as a reader puts them together.
fn name_at(lab: &Lab, place: Place) -> Vec<u8> {
    let len = usize::from(tag(lab, place).len);
    let mut name = vec![0; 32];
    lab.m.read(place.at() + slot::NAME, &mut name);
    for index in 1..slots(len) {
        let mut rest = [0; 56];
        let at = Place(place.0 + index).at();
        assert_eq!(word(lab, at), 0, "a further slot names nothing");
        lab.m.read(at + slot::CONT, &mut rest);
        name.extend(rest);
    }
    assert!(name[len..].iter().all(|byte| *byte == 0), "padding");
    name.truncate(len);
    name
}

fn slots(len: usize) -> u64 {
    crate::layout::slots_of(len) as u64
}

#[test]
fn names_of_every_length_are_stored_whole() {
    let lab = Lab::new(4 << 20);
    let mut dir = Dir::new(root());
    let text: Vec<u8> = (0..255).map(|byte: u8| byte % 200 + 40).collect();
    let mut tags = std::collections::BTreeSet::new();
    for len in [1, 8, 31, 32, 33, 87, 88, 89, 144, 145, 200, 201, 255] {
        let name = &text[..len];
        // In a page that is there, and as the first name of a new one.
        for new in [false, true] {
            let room = NewName {
                dir: dir.inode,
                name,
                room: match dir.slots.take(slots(len)) {
                    Some(slots) if !new => Room::Slots(slots),
                    Some(slots) => {
                        dir.slots.give_back(slots);
                        lab.new_page(&mut dir)
                    }
                    None => lab.new_page(&mut dir),
                },
            };
            let birth = lab.birth(FileKind::Regular);
            let made = create(&lab.m, birth, room, touch(&dir)).unwrap();
            let (inode, place) = dir.placed(made.placed, made.inode);
            assert_eq!(name_at(&lab, place), name);
            assert_eq!(slot_word(&lab, place, slot::COMMIT), inode.word());
            assert_eq!(pointer(&lab, place), None);
            let tag = tag(&lab, place);
            assert_eq!(tag.hash, name_hash(name));
            assert!(tags.insert(tag.tag), "a tag is used once");
        }
    }
}

#[test]
fn a_new_page_shows_nothing_of_its_old_content() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    for name in [&b"short"[..], &[b'l'; 200]] {
        let page = lab.page().start();
        for at in (page.at()..page.at() + PAGE_BYTES).step_by(8) {
            poke(&lab, at, u64::MAX);
        }
        let room = NewName {
            dir: dir.inode,
            name,
            room: lab.new_page(&mut dir),
        };
        let birth = lab.birth(FileKind::Regular);
        let made = create(&lab.m, birth, room, touch(&dir)).unwrap();
        assert_eq!(made.placed.place.page(), page);
        let taken = slots(name.len());
        let rest = made.placed.rest.unwrap();
        assert_eq!((rest.first().index(), rest.count()), (taken, 64 - taken));
        for index in taken..64 {
            for offset in (0..64).step_by(8) {
                assert_eq!(slot_word(&lab, Place::new(page, index), offset), 0);
            }
        }
        assert_eq!(name_at(&lab, made.placed.place), name);
        let at = lab.m.geometry().desc_at(page);
        assert_eq!(word(&lab, at + desc::OWNER), root().word());
        let offset = PageOffset::from_word(word(&lab, at + desc::OFFSET)).unwrap();
        let wanted = dir.pages.len() as u64 - 1;
        assert_eq!((offset.offset, offset.kind), (wanted, PageKind::Directory));
        assert_eq!(life(&lab, page), Life::settled(PageState::Written));
        dir.slots.add(rest);
    }
}

#[test]
fn an_inode_is_born_with_the_next_generation_and_all_its_words() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    for generation in 1..4 {
        let birth = Birth {
            size_or_rdev: 0x1234,
            perm: 0o4755,
            ..lab.birth(FileKind::CharDevice)
        };
        let room = lab.room(&mut dir, b"a");
        let made = create(&lab.m, birth, room, touch(&dir)).unwrap();
        let (inode, place) = dir.placed(made.placed, made.inode);
        assert_eq!((inode.number, inode.generation), (2, generation));
        let at = |offset| inode_word(&lab, inode, offset);
        let kind = Some(FileKind::CharDevice);
        assert_eq!(birth_parts(at(inode::BIRTH)), (generation, kind));
        let commit = Commit::from_word(at(inode::COMMIT));
        assert_eq!((commit.sequence, commit.perm), (0, 0o4755));
        assert_eq!(at(inode::SIZE[0]), 0x1234);
        assert_eq!(at(inode::OWNER[0]), 7 << 32 | 8);
        for time in [inode::MTIME, inode::CTIME, inode::BTIME, inode::ATIME] {
            assert_eq!(at(time), NOW);
        }
        assert_eq!(at(inode::EXTRA), u64::from(generation) << 32);
        let gone = Remove {
            place,
            inode,
            ctime: NOW + 1,
            kills: vec![],
        };
        let removed = remove(&lab.m, gone, touch(&dir)).unwrap();
        assert_eq!(slot_word(&lab, place, slot::COMMIT), 0);
        assert_eq!(at(inode::CTIME), NOW + 1);
        dir.slots.add(removed.slots);
        let orphan = removed.unlinked.last();
        lab.space.add(orphan.dissolve(&lab.m, []));
    }
}

#[test]
fn the_body_of_an_inode_is_where_readers_look_for_it() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let target = [b't'; 40];
    let birth = lab.birth(FileKind::Regular);
    let room = lab.room(&mut dir, b"a");
    let inline = SymlinkTarget::Inline(&target);
    let made = symlink(&lab.m, birth, inline, room, touch(&dir)).unwrap();
    let (link, _) = dir.placed(made.placed, made.inode);
    let at = lab.m.geometry().inode_at(link.number);
    let mut read = [0; INLINE_BYTES];
    lab.m.read(at + inode::INLINE, &mut read);
    assert_eq!(read, target);
    assert_eq!(inode_word(&lab, link, inode::SIZE[0]), 40);
    let kind = birth_parts(inode_word(&lab, link, inode::BIRTH)).1;
    assert_eq!(kind, Some(FileKind::Symlink));

    let page = lab.page();
    let at = page.start();
    let long = [b'u'; 100];
    let in_page = SymlinkTarget::Page {
        page,
        target: &long,
    };
    let birth = lab.birth(FileKind::Regular);
    let room = lab.room(&mut dir, b"b");
    let made = symlink(&lab.m, birth, in_page, room, touch(&dir)).unwrap();
    let mut read = [0; 100];
    lab.m.read(at.at(), &mut read);
    assert_eq!(read, long);
    let desc = lab.m.geometry().desc_at(at);
    assert_eq!(word(&lab, desc + desc::OWNER), made.inode.word());
    assert_eq!(life(&lab, at), Life::settled(PageState::Written));

    // Attributes in two runs of pages.
    let mut pages = lab.space.pages(6, None).unwrap().remove(0);
    let (one, _gap, two) = (pages.split(1), pages.split(1), pages);
    let starts = [one.start(), two.start()];
    let set: Vec<u8> = (0..9000u32).map(|byte| byte as u8).collect();
    let birth = Birth {
        attributes: Some(NewAttributes::Pages {
            pages: vec![one, two],
            set: &set,
        }),
        ..lab.birth(FileKind::Regular)
    };
    let room = lab.room(&mut dir, b"c");
    let free = lab.space.free_pages();
    let made = create(&lab.m, birth, room, touch(&dir)).unwrap();
    // Of the second run, the set needed two pages of four.
    assert_eq!(lab.space.free_pages(), free + 2);
    let commit = Commit::from_word(inode_word(&lab, made.inode, inode::COMMIT));
    assert_eq!(commit.attributes, AttributePlace::Pages);
    let mut read = vec![0; 9000];
    lab.m.read(starts[0].at(), &mut read[..4096]);
    lab.m.read(starts[1].at(), &mut read[4096..]);
    assert_eq!(read, set);
    let at = lab.m.geometry().desc_at(Page(starts[1].0 + 1));
    let offset = PageOffset::from_word(word(&lab, at + desc::OFFSET)).unwrap();
    assert_eq!((offset.offset, offset.kind), (2, PageKind::Attributes));
}

#[test]
fn a_rename_points_to_the_old_slot_with_its_tag_and_clears_it() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, from) = lab.make(&mut dir, b"a", FileKind::Regular);
    let old = tag(&lab, from);
    let moved = Rename {
        from,
        inode: a,
        ctime: NOW,
        to: Target::New(lab.room(&mut dir, b"b")),
    };
    let moved = rename(&lab.m, moved, &[touch(&dir)]).unwrap();
    let to = moved.placed.place;
    let wanted = Pointer {
        from,
        tag: old.tag,
        exchange: None,
    };
    assert_eq!(pointer(&lab, to), Some(wanted));
    assert_eq!(slot_word(&lab, to, slot::COMMIT), a.word());
    assert_eq!(slot_word(&lab, from, slot::COMMIT), 0);
    assert_eq!(name_at(&lab, to), b"b");

    // Over a name: it stays, under a new tag.
    let (c, at_c) = lab.make(&mut dir, b"c", FileKind::Regular);
    let replaced = tag(&lab, at_c);
    let moved = Rename {
        from: to,
        inode: a,
        ctime: NOW,
        to: Target::Over(Over {
            place: at_c,
            inode: c,
            ctime: NOW,
            kills: vec![],
        }),
    };
    let moved = rename(&lab.m, moved, &[touch(&dir)]).unwrap();
    assert_eq!(moved.replaced.unwrap().inode(), c);
    assert_eq!(name_at(&lab, at_c), b"c");
    assert!(tag(&lab, at_c).tag > replaced.tag);
    assert_eq!(slot_word(&lab, at_c, slot::COMMIT), a.word());
}

#[test]
fn an_exchange_leaves_no_pointer_that_could_come_to_life() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let made = [b"a", b"b", b"c"].map(|name| lab.make(&mut dir, name, FileKind::Regular));
    let mut names = made.map(|(inode, _)| inode);
    let places = made.map(|(_, place)| place);
    // Every pointer to a slot is out of date after every exchange, with any history.
    let mut x = 1u64;
    for _ in 0..200 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (one, other) = ((x >> 33) as usize % 3, (x >> 40) as usize % 3);
        if one == other {
            continue;
        }
        let swap = Exchange {
            one: (places[one], names[one], NOW),
            other: (places[other], names[other], NOW),
        };
        exchange(&lab.m, swap, &[touch(&dir)]).unwrap();
        names.swap(one, other);
        for (place, inode) in places.iter().zip(names) {
            assert_eq!(slot_word(&lab, *place, slot::COMMIT), inode.word());
            if let Some(pointer) = pointer(&lab, *place) {
                assert_ne!(pointer.tag, tag(&lab, pointer.from).tag);
            }
        }
        assert_eq!(pointer(&lab, places[one]), None);
    }
    for (place, name) in places.iter().zip([b"a", b"b", b"c"]) {
        assert_eq!(name_at(&lab, *place), name);
    }
}

#[test]
fn two_names_of_one_inode_are_exchanged_by_leaving_them() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, one) = lab.make(&mut dir, b"a", FileKind::Regular);
    let again = Link {
        inode: a,
        ctime: NOW,
    };
    let room = lab.room(&mut dir, b"b");
    let other = link(&lab.m, again, room, touch(&dir)).unwrap().place;
    let swap = Exchange {
        one: (one, a, NOW),
        other: (other, a, NOW),
    };
    let (done, cost) = lab.cost(|| exchange(&lab.m, swap, &[touch(&dir)]));
    assert!(done.is_ok());
    assert_eq!((cost.fences, cost.lines), (0, 0));
}

#[test]
fn a_whiteout_takes_the_old_name() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, from) = lab.make(&mut dir, b"a", FileKind::Regular);
    let left = Whiteout {
        rename: Rename {
            from,
            inode: a,
            ctime: NOW,
            to: Target::New(lab.room(&mut dir, b"b")),
        },
        birth: lab.birth(FileKind::CharDevice),
    };
    let moved = rename_whiteout(&lab.m, left, &[touch(&dir)]).unwrap();
    assert_eq!(slot_word(&lab, from, slot::COMMIT), moved.whiteout.word());
    let to = moved.placed.place;
    assert_eq!(slot_word(&lab, to, slot::COMMIT), a.word());
    assert_eq!(
        (name_at(&lab, from), name_at(&lab, to)),
        (b"a".to_vec(), b"b".to_vec())
    );
    let pointer = pointer(&lab, to).unwrap();
    assert_eq!(pointer.exchange, Some(moved.whiteout.number));
    assert_ne!(pointer.tag, tag(&lab, from).tag);
    assert!(moved.replaced.is_none());
}

#[test]
fn a_change_takes_the_other_slots_and_marks_pages_with_its_sequence() {
    let lab = Lab::new(4 << 20);
    let mut dir = Dir::new(root());
    let (file, run) = lab.file(&mut dir, b"a", 3);
    let free = lab.page();
    let new_page = free.start();
    let new = Change {
        attributes: Attributes {
            perm: 0o600,
            uid: 1,
            gid: 2,
            size: 3 * 4096,
            place: AttributePlace::None,
        },
        pages: smallvec![
            adopt(free, 1, PageState::Written),
            PageChange::Die {
                pages: PageRun {
                    start: Page(run.start.0 + 1),
                    len: 1,
                },
                offset: 1,
                kind: PageKind::Data,
                state: PageState::Written,
            },
        ],
        data: smallvec![DataStore {
            at: new_page.at(),
            bytes: Bytes::Zeros(4096),
        }],
        ..change_of(file, 0)
    };
    let freed = change(&lab.m, new).unwrap();
    let commit = Commit::from_word(inode_word(&lab, file, inode::COMMIT));
    assert_eq!((commit.sequence, commit.perm), (2, 0o600));
    assert_eq!(inode_word(&lab, file, inode::SIZE[0]), 3 * 4096);
    assert_eq!(inode_word(&lab, file, inode::OWNER[0]), 1 << 32 | 2);
    assert_eq!(inode_word(&lab, file, inode::OWNER[1]), 7 << 32 | 8);
    let born = Life {
        at: 2,
        cur: PageState::Free,
        next: PageState::Written,
    };
    let died = Life {
        at: 2,
        cur: PageState::Written,
        next: PageState::Free,
    };
    assert_eq!(life(&lab, new_page), born);
    assert_eq!(life(&lab, Page(run.start.0 + 1)), died);
    // The free space gets the page back, and only then hands it out.
    let before = lab.space.free_pages();
    lab.space.add(freed);
    assert_eq!(lab.space.free_pages(), before + 1);
    let again = lab.space.pages(1, Some(Page(run.start.0 + 1))).unwrap();
    assert_eq!(again[0].start().0, run.start.0 + 1);
}

/// Line 1 of an inode can be older than its birth, if a crash cut the birth.
#[test]
fn a_second_line_of_an_older_life_is_made_whole_when_it_is_needed() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    for inline in [false, true] {
        let name: &[u8] = if inline { b"b" } else { b"a" };
        let (a, _) = lab.make(&mut dir, name, FileKind::Regular);
        let at = lab.m.geometry().inode_at(a.number);
        for offset in (inode::EXTRA..128).step_by(8) {
            poke(&lab, at + offset, 0xbad);
        }
        let (set, atime): (&[u8], u64) = if inline {
            let mut new = change_of(a, 0);
            new.attributes.place = AttributePlace::Inline;
            new.inline = Some(b"user.x=y");
            let _ = change(&lab.m, new).unwrap();
            (b"user.x=y", NOW)
        } else {
            let times = Times {
                atime: Some(NOW + 5),
                ..Times::default()
            };
            set_times(&lab.m, a, times).unwrap();
            (b"", NOW + 5)
        };
        let header = u64::from(a.generation) << 32 | set.len() as u64;
        assert_eq!(word(&lab, at + inode::EXTRA), header);
        assert_eq!(word(&lab, at + inode::BTIME), NOW);
        assert_eq!(word(&lab, at + inode::ATIME), atime);
        let mut read = vec![0; set.len()];
        lab.m.read(at + inode::INLINE, &mut read);
        assert_eq!(read, set);
    }
}

#[test]
fn the_pages_of_a_removed_directory_hold_no_slots_any_more() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (sub, place) = lab.directory(&mut dir, b"sub");
    let page = sub.pages[0].start;
    assert_eq!(life(&lab, page), Life::settled(PageState::Written));
    let gone = Remove {
        place,
        inode: sub.inode,
        ctime: NOW,
        kills: sub.pages.clone(),
    };
    let removed = remove(&lab.m, gone, touch(&dir)).unwrap();
    assert_eq!(life(&lab, page), Life::settled(PageState::Free));
    let freed = removed.unlinked.last().dissolve(&lab.m, sub.pages);
    assert_eq!(freed.pages(), 1);
}

/// Runs calls that are refused: none of them may store anything.
#[test]
fn a_refused_call_stores_nothing_and_keeps_nothing() {
    let lab = Lab::new(4 << 20);
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let (a, at_a) = lab.make(&mut dir, b"a", FileKind::Regular);
    let (b, at_b) = lab.make(&mut dir, b"b", FileKind::Regular);
    let (file, run) = lab.file(&mut dir, b"c", 2);
    let room = lab.room(&mut dir, b"l");
    let target = SymlinkTarget::Inline(b"t");
    let birth = lab.birth(FileKind::Regular);
    let made = symlink(m, birth, target, room, touch(&dir)).unwrap();
    let (link_inode, _) = dir.placed(made.placed, made.inode);
    let stale = InodeRef { generation: 9, ..a };
    let outside = InodeRef {
        number: u32::MAX,
        ..a
    };
    let counts = (lab.space.free_pages(), lab.space.free_inodes());

    let refused = |call: &dyn Fn() -> Error, wanted: Error| {
        lab.m.restart_recorder();
        assert_eq!(call(), wanted);
        let trace = lab.m.recorder().unwrap().trace();
        assert!(!trace.events().iter().any(steadfast_pm::Event::is_store));
        assert_eq!((lab.space.free_pages(), lab.space.free_inodes()), counts);
    };
    let fails = |call: Change<'_, '_>| change(m, call).err().unwrap();
    refused(&|| fails(change_of(stale, 0)), Error::Stale(stale));
    refused(&|| fails(change_of(outside, 0)), Error::Stale(outside));
    refused(
        &|| set_times(m, stale, Times::default()).err().unwrap(),
        Error::Stale(stale),
    );

    // Names.
    let name = |name: &'static [u8]| NewName {
        dir: root(),
        name,
        room: Room::NewPage {
            page: lab.page(),
            offset: 9,
        },
    };
    let new = |kind, text| {
        let birth = lab.birth(kind);
        create(m, birth, name(text), touch(&Dir::new(root())))
            .err()
            .unwrap()
    };
    refused(&|| new(FileKind::Symlink, b"x"), Error::WrongKind);
    refused(&|| new(FileKind::Regular, b""), Error::TooLong(0));
    refused(&|| new(FileKind::Regular, &[1; 256]), Error::TooLong(256));
    let long = || {
        let birth = Birth {
            attributes: Some(NewAttributes::Inline(&[0; 41])),
            ..lab.birth(FileKind::Regular)
        };
        nameless(m, birth).err().unwrap()
    };
    refused(&long, Error::TooLong(41));
    let long = || {
        let birth = Birth {
            attributes: Some(NewAttributes::Pages {
                pages: vec![lab.page()],
                set: &[0; 4097],
            }),
            ..lab.birth(FileKind::Regular)
        };
        nameless(m, birth).err().unwrap()
    };
    refused(&long, Error::TooLong(1));
    let gone = |place, inode, kills: &[PageRun]| {
        let gone = Remove {
            place,
            inode,
            ctime: 0,
            kills: kills.to_vec(),
        };
        remove(m, gone, touch(&Dir::new(root()))).err().unwrap()
    };
    refused(&|| gone(at_b, a, &[]), Error::NotThere(at_b));
    refused(&|| gone(Place(1), a, &[]), Error::NotThere(Place(1)));
    let past = Place(u64::MAX / 64);
    refused(&|| gone(past, a, &[]), Error::NotThere(past));
    let moved = |from, to: &dyn Fn() -> Target<'static, 'static>| {
        let moved = Rename {
            from,
            inode: a,
            ctime: 0,
            to: to(),
        };
        rename(m, moved, &[]).err().unwrap()
    };
    let over = |place, inode, kills: &[PageRun]| {
        Target::Over(Over {
            place,
            inode,
            ctime: 0,
            kills: kills.to_vec(),
        })
    };
    refused(
        &|| moved(at_b, &|| over(at_a, b, &[])),
        Error::NotThere(at_b),
    );
    refused(
        &|| moved(at_a, &|| over(at_a, a, &[])),
        Error::NotThere(at_a),
    );
    refused(
        &|| moved(at_a, &|| over(at_a, b, &[])),
        Error::NotThere(at_a),
    );

    // Pages.
    let foreign = Error::ForeignPage(run.start);
    let one = PageRun { len: 1, ..run };
    let die = |pages: PageRun, offset, state| PageChange::Die {
        pages,
        offset,
        kind: PageKind::Data,
        state,
    };
    let pages = |of, change| {
        fails(Change {
            pages: smallvec![change],
            ..change_of(of, 8192)
        })
    };
    let written = PageState::Written;
    refused(&|| pages(a, die(one, 0, written)), foreign);
    refused(&|| pages(file, die(one, 1, written)), foreign);
    refused(&|| pages(file, die(one, 0, PageState::Unwritten)), foreign);
    let turn = || PageChange::Turn {
        pages: one,
        offset: 0,
    };
    refused(&|| pages(file, turn()), foreign);
    let none = PageRun { len: 0, ..run };
    refused(&|| pages(file, die(none, 0, written)), foreign);
    for (start, len) in [(0, 1), (u64::MAX, 2), (run.start.0, u64::MAX), (1 << 40, 1)] {
        let wild = PageRun {
            start: Page(start),
            len,
        };
        let error = Error::ForeignPage(Page(start));
        refused(&|| pages(file, die(wild, 0, written)), error);
        refused(&|| gone(at_a, a, &[wild]), error);
    }
    refused(&|| gone(at_a, a, &[one]), foreign);

    // Data: over bytes that the file shows, into metadata, past the region.
    let data = |of, at, len| {
        fails(Change {
            data: smallvec![DataStore {
                at,
                bytes: Bytes::Zeros(len),
            }],
            ..change_of(of, 8192)
        })
    };
    refused(&|| data(file, run.start.at(), 8), foreign);
    refused(&|| data(a, run.start.at(), 8), foreign);
    refused(&|| data(file, 0, 8), Error::ForeignPage(Page(0)));
    let end = Page(run.start.0 + 2);
    let last = run.start.at() + 8192 - 8;
    refused(
        &|| data(file, last, 16),
        Error::ForeignPage(Page(end.0 - 1)),
    );
    refused(
        &|| data(file, u64::MAX - 7, 16),
        Error::Outside { at: u64::MAX - 7 },
    );
    let beyond = m.len() * 2;
    let page = Page(beyond / PAGE_BYTES);
    refused(&|| data(file, beyond, 16), Error::ForeignPage(page));
    let place = || {
        let store = [DataStore {
            at: run.start.at(),
            bytes: Bytes::Zeros(8),
        }];
        overwrite(m, a, &store, Times::default()).err().unwrap()
    };
    refused(&place, foreign);

    // Attributes.
    let inline = |of, place, inline| {
        let mut new = change_of(of, 0);
        new.attributes.place = place;
        new.inline = inline;
        fails(new)
    };
    let in_inode = AttributePlace::Inline;
    refused(&|| inline(a, in_inode, None), Error::InlineTaken(a));
    refused(&|| inline(a, in_inode, Some(&[0; 41])), Error::TooLong(41));
    let taken = Error::InlineTaken(link_inode);
    refused(&|| inline(link_inode, in_inode, Some(b"x")), taken);
}

#[test]
fn an_inline_set_is_not_overwritten_while_it_counts() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, _) = lab.make(&mut dir, b"a", FileKind::Regular);
    let set = |place, inline: Option<&'static [u8]>| {
        let mut new = change_of(a, 0);
        new.attributes.place = place;
        new.inline = inline;
        change(&lab.m, new).map(|_| ())
    };
    set(AttributePlace::Inline, Some(b"one")).unwrap();
    let again = set(AttributePlace::Inline, Some(b"two"));
    assert_eq!(again, Err(Error::InlineTaken(a)));
    // It stays while other things change, and can be written anew once it no longer counts.
    set(AttributePlace::Inline, None).unwrap();
    set(AttributePlace::None, None).unwrap();
    set(AttributePlace::Inline, Some(b"two")).unwrap();
}

#[test]
fn an_inode_at_the_end_of_its_sequence_changes_no_more() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, _) = lab.make(&mut dir, b"a", FileKind::Regular);
    let at = lab.m.geometry().inode_at(a.number) + inode::COMMIT;
    let last = |sequence| Commit {
        sequence,
        ..Commit::from_word(word(&lab, at))
    };
    poke(&lab, at, last(SEQUENCE_MAX - 1).word());
    let _ = change(&lab.m, change_of(a, 5)).unwrap();
    assert_eq!(Commit::from_word(word(&lab, at)).sequence, SEQUENCE_MAX);
    let (refused, cost) = lab.cost(|| change(&lab.m, change_of(a, 6)).err());
    assert_eq!(refused, Some(Error::SequenceExhausted(a)));
    assert_eq!((cost.fences, cost.lines), (0, 0));
}

#[test]
fn a_volume_without_tags_takes_no_new_names() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (a, at_a) = lab.make(&mut dir, b"a", FileKind::Regular);
    let survey = Survey {
        next_tag: crate::layout::TAG_MAX + 1,
        ..Survey::default()
    };
    let _ = recover(&lab.m, &[], survey).unwrap();
    assert_eq!(lab.m.tags_left(), 0);
    let room = lab.room(&mut dir, b"b");
    let birth = lab.birth(FileKind::Regular);
    let made = create(&lab.m, birth, room, touch(&dir));
    assert_eq!(made.err(), Some(Error::TagsExhausted));
    // A name can still go.
    let gone = Remove {
        place: at_a,
        inode: a,
        ctime: NOW,
        kills: vec![],
    };
    let _ = remove(&lab.m, gone, touch(&dir)).unwrap();
}

#[test]
fn repairs_outside_of_the_region_are_refused() {
    let lab = Lab::new(1 << 20);
    let end = lab.m.len();
    for at in [end, 4, u64::MAX - 7] {
        let repairs = [Repair { at: 4096, word: 1 }, Repair { at, word: 1 }];
        let (refused, cost) = lab.cost(|| recover(&lab.m, &repairs, Survey::default()).err());
        assert_eq!(refused, Some(Error::Outside { at }));
        assert_eq!((cost.fences, cost.lines), (0, 0));
    }
    assert_eq!(DESC_BYTES * 2, 64, "two descriptors share a line");
}
