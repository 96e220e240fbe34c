//! The promises of a flash memory, and the operations that it refuses.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::HashSet;
use steadfast_flash::{
    Address, Erase, Fault, FaultOp, FlashError, Geometry, ImageStore, Latency, MemoryStore, Nand,
    Store, Violation,
};

fn small() -> Geometry {
    Geometry {
        channels: 2,
        dies: 2,
        blocks: 4,
        pages: 8,
        sectors: 2,
        sector_bytes: 64,
        spare_bytes: 16,
    }
}

fn memory(latency: Latency) -> Nand<MemoryStore> {
    Nand::new(small(), latency, MemoryStore::new(&small())).unwrap()
}

fn page(fill: u8) -> Box<[u8]> {
    vec![fill; small().raw_bytes()].into()
}

fn at(block: u32, page: u32) -> Address {
    Address { block, page }
}

fn read<S: Store>(nand: &mut Nand<S>, at: Address) -> Vec<u8> {
    let mut bytes = vec![0; small().raw_bytes()];
    nand.read(at, &mut bytes).unwrap();
    bytes
}

#[test]
fn programmed_pages_read_back_and_erased_ones_read_as_ones() {
    let mut nand = memory(Latency::none());
    assert_eq!(read(&mut nand, at(3, 0)), vec![0xFF; 144]);
    nand.program(at(3, 0), page(7), 0).unwrap();
    assert_eq!(read(&mut nand, at(3, 0)), vec![7; 144]);
    nand.sync().unwrap();
    nand.erase(3).unwrap();
    assert_eq!(read(&mut nand, at(3, 0)), vec![0xFF; 144]);
    nand.program(at(3, 0), page(8), 0).unwrap();
    nand.sync().unwrap();
    assert_eq!(read(&mut nand, at(3, 0)), vec![8; 144]);
}

#[test]
fn broken_rules_are_named() {
    let mut nand = memory(Latency::none());
    nand.program(at(0, 0), page(1), 0).unwrap();
    let twice = nand.program(at(0, 0), page(1), 0);
    assert!(matches!(
        twice,
        Err(FlashError::Rule(Violation::ProgrammedTwice { .. }))
    ));
    let skipped = nand.program(at(0, 2), page(1), 0);
    assert!(matches!(
        skipped,
        Err(FlashError::Rule(Violation::OutOfOrder { expected: 1, .. }))
    ));
    let outside = nand.erase(16);
    assert!(matches!(
        outside,
        Err(FlashError::Rule(Violation::Outside { .. }))
    ));
    let short = nand.program(at(0, 1), vec![0; 3].into(), 0);
    assert!(matches!(
        short,
        Err(FlashError::Rule(Violation::WrongLength { .. }))
    ));
}

#[test]
fn dies_work_side_by_side_and_channels_carry_one_page_at_a_time() {
    let latency = Latency {
        read_ns: vec![50],
        program_ns: vec![1000],
        erase_ns: 3000,
        transfer_ns: 100,
        queue_depth: 8,
    };
    let mut nand = memory(latency);
    // Blocks 0 to 3 lie on four dies, 0 and 2 on the same channel.
    for block in 0..4 {
        nand.program(at(block, 0), page(1), 0).unwrap();
    }
    assert_eq!(nand.now(), 0);
    nand.sync().unwrap();
    assert_eq!(nand.now(), 1200);
    // The same die, one after the other.
    nand.program(at(0, 1), page(1), 0).unwrap();
    nand.program(at(4, 0), page(1), 0).unwrap();
    nand.sync().unwrap();
    assert_eq!(nand.now(), 1200 + 2200);
    // A sync does not wait for an erase.
    nand.erase(1).unwrap();
    nand.sync().unwrap();
    assert_eq!(nand.now(), 3400);
    assert_eq!(nand.settle(1).unwrap(), Erase::Pending);
    assert_eq!(nand.wait_erase(1).unwrap(), Erase::Done);
    assert_eq!(nand.now(), 6400);
    let before = nand.now();
    read(&mut nand, at(1, 0));
    assert_eq!(nand.now() - before, 150);
}

#[test]
fn a_full_queue_makes_the_host_wait() {
    let mut nand = memory(Latency {
        read_ns: vec![0],
        program_ns: vec![10],
        erase_ns: 10,
        transfer_ns: 0,
        queue_depth: 2,
    });
    for n in 0..4 {
        nand.program(at(0, n), page(1), 0).unwrap();
    }
    assert_eq!(nand.now(), 20);
}

#[test]
fn after_a_cut_synced_pages_are_there_and_others_are_anything() {
    let mut seen = HashSet::new();
    for seed in 0..400 {
        let mut nand = memory(Latency::none());
        nand.program(at(0, 0), page(1), 0).unwrap();
        nand.program(at(1, 0), page(2), 0).unwrap();
        nand.sync().unwrap();
        nand.program(at(0, 1), page(3), 0).unwrap();
        nand.erase(1).unwrap();
        let mut nand = nand.cut(seed).unwrap();
        assert_eq!(read(&mut nand, at(0, 0)), vec![1; 144]);
        let kind = |bytes: &[u8]| match bytes {
            b if b.iter().all(|&x| x == b[0]) => b[0],
            b if [2, 3].contains(&b[0]) || b[0] == 0xFF => 100, // torn
            _ => 200,
        };
        seen.insert((0, kind(&read(&mut nand, at(0, 1)))));
        seen.insert((1, kind(&read(&mut nand, at(1, 0)))));
        // An interrupted erase is none: whatever can be read, nothing may be programmed.
        assert!(nand.program(at(1, 0), page(9), 0).is_err());
        assert!(nand.program(at(0, 1), page(9), 0).is_err());
    }
    for value in [
        (0, 0xFF),
        (0, 3),
        (0, 100),
        (0, 200),
        (1, 2),
        (1, 0xFF),
        (1, 100),
        (1, 200),
    ] {
        assert!(seen.contains(&value), "{value:?} of {seen:?}");
    }
}

#[test]
fn a_planned_cut_stops_everything_at_its_operation() {
    let mut nand = memory(Latency::none());
    nand.cut_after(2);
    nand.program(at(0, 0), page(1), 0).unwrap();
    nand.sync().unwrap();
    let lost = nand.program(at(0, 1), page(1), 0);
    assert!(matches!(lost, Err(FlashError::PowerLost)));
    assert!(matches!(nand.sync(), Err(FlashError::PowerLost)));
    let mut nand = nand.cut(1).unwrap();
    assert_eq!(read(&mut nand, at(0, 0)), vec![1; 144]);
}

#[test]
fn a_failed_program_comes_back_with_all_later_ones_of_its_block() {
    let mut nand = memory(Latency::none());
    nand.program(at(0, 0), page(1), 0).unwrap();
    nand.inject(Fault {
        op: FaultOp::Program,
        after: 0,
    });
    nand.program(at(0, 1), page(2), 0).unwrap();
    nand.program(at(1, 0), page(3), 0).unwrap();
    nand.program(at(0, 2), page(4), 0).unwrap();
    let failed = nand.sync().unwrap();
    assert_eq!(failed.len(), 2);
    assert_eq!((failed[0].at, &*failed[0].bytes), (at(0, 1), &*page(2)));
    assert_eq!((failed[1].at, &*failed[1].bytes), (at(0, 2), &*page(4)));
    assert!(nand.is_bad(0) && !nand.is_bad(1));
    assert_eq!(read(&mut nand, at(0, 0)), vec![1; 144]);
    assert!(nand.sync().unwrap().is_empty());
}

#[test]
fn a_failed_erase_is_seen_when_it_settles_and_the_block_stays_readable() {
    let mut nand = memory(Latency::none());
    nand.program(at(0, 0), page(1), 0).unwrap();
    nand.sync().unwrap();
    nand.inject(Fault {
        op: FaultOp::Erase,
        after: 0,
    });
    nand.erase(0).unwrap();
    assert_eq!(nand.wait_erase(0).unwrap(), Erase::Failed);
    nand.program(at(0, 1), page(1), 0).unwrap();
    assert_eq!(nand.sync().unwrap().len(), 1);
}

/// Found while reading the code: a block that failed its second program after an erase kept, after that page, the
/// bytes from before the erase.
#[test]
fn a_block_that_fails_after_its_erase_was_erased() {
    let mut nand = memory(Latency::none());
    for n in 0..3 {
        nand.program(at(0, n), page(1), 0).unwrap();
    }
    nand.sync().unwrap();
    nand.erase(0).unwrap();
    nand.program(at(0, 0), page(2), 0).unwrap();
    nand.inject(Fault {
        op: FaultOp::Program,
        after: 0,
    });
    nand.program(at(0, 1), page(3), 0).unwrap();
    assert_eq!(nand.sync().unwrap().len(), 1);
    assert_eq!(read(&mut nand, at(0, 0)), vec![2; 144]);
    assert_eq!(read(&mut nand, at(0, 2)), vec![0xFF; 144]);
}

#[test]
fn unreadable_pages_are_typed_errors() {
    let mut nand = memory(Latency::none());
    nand.program(at(0, 0), page(1), 0).unwrap();
    nand.make_unreadable(at(0, 0));
    let mut bytes = vec![0; 144];
    let error = nand.read(at(0, 0), &mut bytes);
    assert!(matches!(error, Err(FlashError::Unreadable { .. })));
}

#[test]
fn an_image_file_keeps_pages_rules_and_bad_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash.img");
    let store = ImageStore::create(&path, small()).unwrap();
    assert!(ImageStore::open(&path).is_err(), "it is open already");
    let mut nand = Nand::new(small(), Latency::none(), store).unwrap();
    nand.program(at(5, 0), page(0), 0).unwrap();
    nand.program(at(5, 1), page(0xFF), 0).unwrap();
    nand.mark_bad(6).unwrap();
    nand.sync().unwrap();
    nand.program(at(5, 2), page(1), 0).unwrap(); // not synced
    drop(nand);
    let store = ImageStore::open(&path).unwrap();
    assert_eq!(store.geometry(), small());
    let mut nand = Nand::new(small(), Latency::none(), store).unwrap();
    assert_eq!(read(&mut nand, at(5, 0)), vec![0; 144]);
    assert_eq!(read(&mut nand, at(5, 1)), vec![0xFF; 144]);
    assert_eq!(read(&mut nand, at(5, 2)), vec![0xFF; 144]);
    assert!(nand.is_bad(6));
    assert!(nand.program(at(5, 1), page(1), 0).is_err());
    nand.erase(5).unwrap();
    assert_eq!(nand.wait_erase(5).unwrap(), Erase::Done);
    nand.program(at(5, 0), page(9), 0).unwrap();
    nand.sync().unwrap();
    assert_eq!(nand.erases_of(5), 1);
    assert_eq!(read(&mut nand, at(5, 1)), vec![0xFF; 144]);
}

/// Story: the fuzzer made an image whose block had been erased as often as can be counted. One more erase was an overflow.
#[test]
fn a_block_that_was_erased_as_often_as_can_be_counted_can_be_erased() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash.img");
    drop(ImageStore::create(&path, small()).unwrap());
    let mut image = std::fs::read(&path).unwrap();
    // The second word of the block's entry, after the header.
    let erases = 4096 + 12 * 5 + 4;
    image[erases..erases + 4].fill(0xFF);
    std::fs::write(&path, &image).unwrap();
    let store = ImageStore::open(&path).unwrap();
    let mut nand = Nand::new(small(), Latency::none(), store).unwrap();
    nand.erase(5).unwrap();
    assert_eq!(nand.wait_erase(5).unwrap(), Erase::Done);
    assert_eq!(nand.erases_of(5), u32::MAX);
}

#[test]
fn truncated_and_foreign_images_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flash.img");
    drop(ImageStore::create(&path, small()).unwrap());
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 100, 4095, 4096, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = ImageStore::open(&path).unwrap_err().to_string();
        assert!(error.contains("is no flash image"), "{error}");
    }
    for position in 0..48 {
        let mut other = whole.clone();
        other[position] ^= 4;
        std::fs::write(&path, other).unwrap();
        assert!(ImageStore::open(&path).is_err(), "byte {position}");
    }
    let mut wrong = small();
    wrong.sector_bytes = 12;
    let error = ImageStore::create(&dir.path().join("b"), wrong).unwrap_err();
    assert!(error.to_string().contains("sector bytes is 12"), "{error}");
}
