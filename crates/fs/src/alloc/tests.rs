//! Free space: found once, given back, counted when it is needed, with damage and failures.
#![allow(clippy::unwrap_used)]
use super::*;
use crate::mkfs::{MkfsOptions, mkfs};
use crate::superblock;
use crate::testing::{bare, open, options};
use crate::work::Work;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice, DeviceOp, MemDevice};
use steadfast_sim::{Fault, Image, SimDevice};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn corner_30_no_block_is_allocated_twice_and_aborts_give_back(
        steps in prop::collection::vec((0u64..400, 1u64..40, 0u8..8), 1..80)
    ) {
        let bare = bare(512);
        let (alloc, volume) = (&bare.store.alloc, &bare.store.volume);
        let before = alloc.space().free;
        let mut owned: BTreeSet<u64> = BTreeSet::new();
        for (at, count, kind) in steps {
            let mut work = bare.begin(4096);
            match kind {
                0..=3 => {
                    let goal = volume.group_start(0).offset(at);
                    match work.allocate_run(goal, count) {
                        Ok((first, got)) => {
                            prop_assert!(got >= 1 && got <= count);
                            prop_assert!(volume.run_is_data(first, got));
                            prop_assert!((first.0..first.0 + got).all(|b| !owned.contains(&b)));
                            if kind == 0 {
                                drop(work);
                            } else {
                                owned.extend(first.0..first.0 + got);
                                work.commit();
                            }
                        }
                        Err(error) => {
                            prop_assert!(error == Errno::NoSpc);
                            drop(work);
                        }
                    }
                }
                4..=6 => {
                    let mut run = owned.range(at..).copied();
                    let Some(first) = run.next() else { continue };
                    let got = 1 + run
                        .enumerate()
                        .take_while(|(i, b)| *b == first + 1 + *i as u64)
                        .count() as u64;
                    let got = got.min(count);
                    work.free_run(BlockNo(first), got).unwrap();
                    if kind == 4 {
                        drop(work);
                    } else {
                        work.commit();
                        (first..first + got).for_each(|b| {
                            owned.remove(&b);
                        });
                    }
                }
                _ => {
                    drop(work);
                    bare.store.journal.sync_all().unwrap();
                }
            }
            prop_assert_eq!(alloc.space().free + owned.len() as u64, before);
        }
        // The bitmaps on disk agree with the counts.
        bare.store.journal.reclaim().unwrap();
        let again = Allocator::new(bare.store.journal.clone(), volume.clone());
        prop_assert_eq!(again.space().free, alloc.space().free);
    }
}

#[test]
fn corner_01_a_freed_block_is_not_allocated_before_the_free_is_durable() {
    let bare = bare(512);
    let take = |work: &mut Work<'_>| {
        let mut taken = Vec::new();
        while let Ok((at, count)) = work.allocate_run(BlockNo(0), 1000) {
            taken.push((at, count));
        }
        taken
    };
    let mut work = bare.begin(20_000);
    let taken = take(&mut work);
    work.commit();
    let mut work = bare.begin(20_000);
    let (at, count) = taken[0];
    work.free_run(at, count).unwrap();
    work.commit();
    assert!(take(&mut bare.begin(4096)).is_empty());
    assert!(bare.store.journal.reclaim().unwrap());
    assert_eq!(
        take(&mut bare.begin(4096))
            .iter()
            .map(|run| run.1)
            .sum::<u64>(),
        count
    );
}

#[test]
fn corner_24_reserved_blocks_are_left_to_delayed_pages() {
    let bare = bare(512);
    let alloc = &bare.store.alloc;
    let free = alloc.space().free;
    let reservation = alloc.reserve(free).unwrap();
    assert!(bare.begin(4096).allocate_block(BlockNo(0)).unwrap_err() == Errno::NoSpc);
    assert!(alloc.reserve(1).is_err_and(|error| error == Errno::NoSpc));
    let mut freeing = bare.begin(4096);
    freeing.use_emergency_space();
    assert!(freeing.allocate_block(BlockNo(0)).is_ok());
    drop(freeing);
    drop(reservation);
    assert_eq!(alloc.space().free, free);
    assert!(bare.begin(4096).allocate_block(BlockNo(0)).is_ok());
}

/// Three groups, of which the second one's block bitmap is damaged.
fn three_groups() -> (Arc<MemDevice>, Volume, u64) {
    let device = MemDevice::new(3 + 64 + 1 + 2 * GROUP_BLOCKS + 5000);
    let small = MkfsOptions {
        log_blocks: Some(64),
        ..options()
    };
    let made = mkfs(&device, &small, &mut |_, _| {}).unwrap();
    let volume = superblock::load(&device).ok().unwrap().volume;
    (Arc::new(device), volume, made.free_blocks)
}

#[test]
fn nothing_is_read_before_it_is_needed_and_then_everything_is_counted() {
    let (device, volume, free) = three_groups();
    let bare = open(device);
    let alloc = &bare.store.alloc;
    assert_eq!(alloc.lock().uncounted, 3);
    let (at, _) = alloc
        .claim(volume.group_start(1), 4, Purpose::Normal)
        .unwrap();
    assert_eq!(volume.group_of(at), Some(1));
    let known = |group: usize| alloc.lock().available_in[group] != UNKNOWN;
    assert!(
        known(0) && known(1),
        "all small volumes are counted in one step"
    );
    alloc.unclaim(at, 4);
    assert_eq!(alloc.space().free, free - EMERGENCY_MAX);
    assert_eq!(alloc.allocatable(), free - EMERGENCY_MAX);
    assert!(alloc.has_free(free - EMERGENCY_MAX) && !alloc.has_free(free));
}

#[test]
fn corner_35_a_damaged_bitmap_costs_its_groups_free_space_and_nothing_else() {
    let (device, volume, free) = three_groups();
    let bitmap = volume.group_start(1);
    device.write(bitmap, &[&[0x5f; BLOCK_SIZE]]).unwrap();
    let bare = open(device);
    let alloc = &bare.store.alloc;
    let mut left = free - (GROUP_BLOCKS - GROUP_META);
    assert_eq!(alloc.space().free, left - EMERGENCY_MAX);
    assert!(
        alloc
            .take_unusable()
            .is_some_and(|why| why == Errno::Uclean)
    );
    // All the rest can be allocated, at any goal.
    while let Ok((at, count)) = alloc.claim(bitmap, u64::MAX, Purpose::Freeing) {
        assert_ne!(volume.group_of(at), Some(1));
        left -= count;
    }
    assert_eq!(left, 0);
    assert!(
        alloc
            .ensure_loaded(bitmap)
            .is_err_and(|why| why == Errno::Uclean)
    );
}

#[test]
fn a_bitmap_that_could_not_be_read_once_is_read_when_space_runs_out() {
    let (device, volume, free) = three_groups();
    let device = Arc::new(SimDevice::from_image(Image::from_bytes(&device.to_bytes())));
    let bare = open(Arc::clone(&device) as _);
    let alloc = &bare.store.alloc;
    let bitmap = volume.group_start(0);
    device.inject(Fault::at(DeviceOp::Read, bitmap).sticky());
    assert!(alloc.space().free < free - 20_000);
    assert!(alloc.reserve(free - 200).is_err_and(|why| why == Errno::Io));
    assert_eq!(alloc.take_unusable().map(|why| why.to_string()), None);
    device.clear_faults();
    assert_eq!(alloc.reserve(free - 200).unwrap().keep(), free - 200);
}

#[test]
fn runs_are_found_across_words_and_from_the_goal_on() {
    let mut map = [0u64; WORDS];
    set(&mut map, 60, 10, true);
    set(&mut map, 200, 300, true);
    assert_eq!(longest(&map, 0, 8), Some((60, 8)));
    assert_eq!(longest(&map, 0, 64), Some((200, 64)));
    assert_eq!(longest(&map, 65, 5), Some((65, 5)));
    assert_eq!(longest(&map, 490, 1000), Some((200, 300)));
    assert_eq!(run_at(&map, 450, 100), 50);
    assert_eq!(run_at(&map, 500, 100), 0);
    set(&mut map, 0, WORDS * 64, false);
    assert_eq!(longest(&map, 7, 1), None);
}

/// Reserved space stays reserved while a trim holds it: an allocation that finds no other block waits for the device,
/// and then gets it. Story: a closing transaction found no place instead, and the journal stopped.
#[test]
fn an_allocation_that_finds_only_blocks_held_for_a_trim_waits_for_them() {
    let bare = bare(512);
    let alloc = &bare.store.alloc;
    let free = alloc.space().free;
    let reserved = alloc.reserve(free).unwrap().keep();
    let look = TrimLook {
        from: 0,
        to: GROUP_BLOCKS as usize,
        min: 1,
        max: GROUP_BLOCKS,
        cut: false,
    };
    let (at, count) = alloc.begin_trim(0, &look).unwrap().unwrap();
    assert!(count >= free, "all of it is held");
    assert_eq!(alloc.space(), Space { free: 0, reserved });
    std::thread::scope(|scope| {
        let claim = scope.spawn(|| alloc.claim(at, count, Purpose::Delayed));
        while alloc.waiting() == 0 {
            assert!(!claim.is_finished(), "it does not wait");
            std::thread::yield_now();
        }
        alloc.end_trim();
        assert_eq!(claim.join().unwrap().unwrap(), (at, count));
    });
    // Nothing is held any more: no thread waits.
    assert!(alloc.claim(at, 1, Purpose::Delayed).unwrap_err() == Errno::NoSpc);
}
