//! Tests of the free space.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::layout::{InodeRef, Page, birth_word, inode};

fn taken(pages: &[FreePages<'_>]) -> Vec<(u64, u64)> {
    pages.iter().map(|run| (run.start().0, run.len())).collect()
}

#[test]
fn all_pages_of_a_volume_can_be_taken_once() {
    let lab = Lab::new(40 << 20);
    let all = lab.space.free_pages();
    assert_eq!(all, lab.m.geometry().data_pages_total());
    let runs = lab.space.pages(all, None).unwrap();
    let mut pages = BTreeSet::new();
    for (start, len) in taken(&runs) {
        for page in start..start + len {
            assert!(lab.m.geometry().is_data_page(Page(page)));
            assert!(pages.insert(page), "page {page} twice");
        }
    }
    assert_eq!(pages.len() as u64, all);
    assert!(lab.space.pages(1, None).is_none());
    drop(runs);
    assert_eq!(lab.space.free_pages(), all);
    // The freed pages merged: one run again.
    assert_eq!(lab.space.pages(3000, None).unwrap().len(), 1);
}

#[test]
fn nothing_is_taken_if_there_is_not_enough() {
    let lab = Lab::new(1 << 20);
    let all = lab.space.free_pages();
    assert!(lab.space.pages(all + 1, None).is_none());
    assert_eq!(lab.space.free_pages(), all);
    assert!(lab.space.pages(0, None).unwrap().is_empty());
}

#[test]
fn pages_come_from_where_the_file_ends_if_they_are_free_there() {
    let lab = Lab::new(4 << 20);
    let first = lab.space.pages(3, None).unwrap();
    let end = first[0].start().0 + 3;
    let hole = lab.space.pages(2, Some(Page(end + 10))).unwrap();
    assert_eq!(taken(&hole), [(end + 10, 2)]);
    let next = lab.space.pages(12, Some(Page(end))).unwrap();
    assert_eq!(taken(&next), [(end, 10), (end + 12, 2)]);
    let near_taken = lab.space.pages(1, Some(Page(end))).unwrap();
    assert_eq!(taken(&near_taken), [(end + 14, 1)]);
}

#[test]
fn a_token_that_is_not_used_goes_back() {
    let lab = Lab::new(1 << 20);
    let (pages, inodes) = (lab.space.free_pages(), lab.space.free_inodes());
    let mut run = lab.space.pages(5, None).unwrap().remove(0);
    let part = run.split(2);
    assert_eq!((part.len(), run.len()), (2, 3));
    drop(part);
    assert_eq!(lab.space.free_pages(), pages - 3);
    drop(run);
    let inode = lab.space.inode(&lab.m).unwrap();
    assert_eq!(lab.space.free_inodes(), inodes - 1);
    drop(inode);
    let counts = (lab.space.free_pages(), lab.space.free_inodes());
    assert_eq!(counts, (pages, inodes));
}

#[test]
fn runs_are_as_long_as_the_free_space_allows() {
    let lab = Lab::new(1 << 20);
    let all = lab.space.pages(lab.space.free_pages(), None).unwrap();
    let start = all[0].start().0;
    let mut all = all.into_iter().next().unwrap();
    // Holes of 1, 2, 4 and 8 pages.
    let mut kept = Vec::new();
    let mut holes = BTreeMap::new();
    for len in [4, 1, 8, 2] {
        kept.push(all.split(1));
        holes.insert(len, all.start().0 - start);
        drop(all.split(len));
    }
    let take = |count| taken(&lab.space.pages(count, None).unwrap())[0].0 - start;
    // The tokens went back, so the smallest hole that is large enough is always the same.
    assert_eq!(
        [take(1), take(3), take(8)],
        [holes[&1], holes[&4], holes[&8]]
    );
    let many = lab.space.pages(14, None).unwrap();
    let lens: Vec<u64> = many.iter().map(FreePages::len).collect();
    assert_eq!(lens, [8, 4, 2]);
}

#[test]
fn an_inode_in_its_last_generation_is_never_used_again() {
    let lab = Lab::new(1 << 20);
    let at = |number: u32, generation: u32| {
        let repair = Repair {
            at: lab.m.geometry().inode_at(number) + inode::BIRTH,
            word: birth_word(generation, FileKind::Regular),
        };
        let _ = recover(&lab.m, &[repair], Survey::default()).unwrap();
    };
    at(2, u32::MAX);
    at(3, u32::MAX - 1);
    let inode = lab.space.inode(&lab.m).unwrap();
    let last = InodeRef {
        number: 3,
        generation: u32::MAX,
    };
    assert_eq!(inode.inode(), last);
    let next = lab.space.inode(&lab.m).unwrap();
    assert_eq!((next.inode().number, next.inode().generation), (4, 1));
}

/// A crash may keep the second line of a birth and lose the first one, which has the generation. If the next birth had the
/// same generation, another crash could take that line for one of its own.
#[test]
fn a_line_of_a_birth_that_was_cut_belongs_to_no_later_birth() {
    let lab = Lab::new(1 << 20);
    for (number, birth, header) in [
        (2, 0, 1u64),
        (3, 4, 4),
        (4, 4, 5),
        (5, 0, u64::from(u32::MAX)),
    ] {
        let at = lab.m.geometry().inode_at(number);
        let word = |at, word| Repair { at, word };
        let repairs = [
            word(at + inode::BIRTH, birth_word(birth, FileKind::Regular)),
            word(at + inode::EXTRA, header << 32),
        ];
        let _ = recover(&lab.m, &repairs, Survey::default()).unwrap();
    }
    let taken = [(); 4].map(|()| lab.space.inode(&lab.m).unwrap());
    let taken = taken
        .each_ref()
        .map(|inode| (inode.inode().number, inode.inode().generation));
    assert_eq!(taken, [(2, 2), (3, 5), (4, 6), (6, 1)]);
}

#[test]
fn threads_never_get_the_same_page() {
    let lab = Lab::new(40 << 20);
    let all = lab.space.free_pages();
    let owned = std::sync::Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (lab, owned) = (&lab, &owned);
            scope.spawn(move || {
                let mut x = thread;
                for _ in 0..500 {
                    x = x
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(thread);
                    let near = (x >> 63 == 0).then_some(Page(x >> 40 & 0x1fff));
                    let count = 1 + (x >> 33) % 40;
                    let runs = lab.space.pages(count, near).unwrap();
                    let numbers: Vec<u64> = taken(&runs)
                        .into_iter()
                        .flat_map(|(start, len)| start..start + len)
                        .collect();
                    assert_eq!(numbers.len() as u64, count);
                    for number in &numbers {
                        assert!(owned.lock().unwrap().insert(*number), "twice");
                    }
                    for number in &numbers {
                        owned.lock().unwrap().remove(number);
                    }
                }
            });
        }
    });
    assert_eq!(lab.space.free_pages(), all);
}

/// All of them ask for the last pages at once: each gets all it asked for, or nothing.
#[test]
fn a_promise_is_kept_when_threads_compete_for_the_last_pages() {
    let lab = Lab::new(40 << 20);
    let all = lab.space.free_pages();
    let rest = lab.space.pages(all - 100, None).unwrap();
    let got = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    if let Some(runs) = lab.space.pages(40, None) {
                        let sum: u64 = runs.iter().map(FreePages::len).sum();
                        assert_eq!(sum, 40);
                        got.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(got.into_inner() > 0);
    drop(rest);
    assert_eq!(lab.space.free_pages(), all);
}
