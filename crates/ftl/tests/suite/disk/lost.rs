//! A delta log that cannot continue at its end: programs fail in the block of its end, and in both blocks announced
//! after it, and power goes before a root leads elsewhere.
//!
//! Story: each later mount refused such a disk as damaged, though nothing durable was lost.

use super::common::{Disk, bytes, disk, mount, read, write};
use std::cell::Cell;
use steadfast_flash::{Fault, FaultOp, FlashError, MemoryStore, Nand};
use steadfast_ftl::{BlockUse, Emulated, FirstFit, Ftl, FtlError, Tuned};

type Memory = Nand<MemoryStore>;

const SECTORS: u64 = 40;

fn programs(disk: &Disk) -> u64 {
    disk.platform().nand().counts().programs
}

fn inject(nand: &mut Memory, op: FaultOp, after: impl IntoIterator<Item = u64>) {
    for after in after {
        nand.inject(Fault { op, after });
    }
}

/// Writes for a flush, and the last one of all.
fn round(disk: &mut Disk, flush: u64) {
    for i in 0..20 {
        write(disk, (flush * 20 + i) % SECTORS, flush + 1);
    }
}

fn overwrite(disk: &mut Disk) {
    write(disk, 0, 1000);
}

/// Number of flushes before one that programs a delta run, position of the run's last page among that flush's programs,
/// and number of programs of the next flush.
fn rehearsal() -> (u64, u64, u64) {
    let mut disk = disk();
    for flush in 0.. {
        round(&mut disk, flush);
        let (deltas, before) = (disk.stats().delta_pages, programs(&disk));
        disk.flush().unwrap();
        if disk.stats().delta_pages > deltas {
            let (behind, data) = (programs(&disk), disk.stats().data_pages);
            overwrite(&mut disk);
            disk.flush().unwrap();
            assert_eq!(disk.stats().data_pages, data + 1);
            return (flush, behind - before - 1, programs(&disk) - behind);
        }
    }
    unreachable!("changes go to delta pages")
}

fn contents(disk: &mut Disk) -> Vec<u64> {
    disk.check().unwrap();
    (0..SECTORS).map(|sector| read(disk, sector)).collect()
}

/// The memory after a cut at this operation of a flush in which the delta log's end is lost, the contents that were
/// flushed before it and by it, and whether the flush returned.
fn lost(cut: u64) -> (Memory, [Vec<u64>; 2], bool) {
    let (flushes, last, next) = rehearsal();
    let mut disk = disk();
    for flush in 0..flushes {
        round(&mut disk, flush);
        disk.flush().unwrap();
    }
    round(&mut disk, flushes);
    // The run's last page, and after the next flush's programs the same page again, and again.
    let again = last + next + 1;
    let nand = disk.platform_mut().nand_mut();
    inject(nand, FaultOp::Program, [last, again, again + 1]);
    disk.flush().unwrap();
    let before = contents(&mut disk);
    let mut after = before.clone();
    after[0] = 1000;
    overwrite(&mut disk);
    disk.platform_mut().nand_mut().cut_after(cut);
    let done = disk.flush().is_ok();
    if done {
        assert_eq!(disk.stats().failed_blocks, 3);
    }
    let nand = disk.into_platform().into_nand().cut(cut).unwrap();
    (nand, [before, after], done)
}

/// Mounts with a cut at this operation. Returns the memory after the cut, and whether the mount succeeded.
fn cut_mount(mut nand: Memory, at: u64, seed: u64) -> (Memory, bool) {
    nand.cut_after(at);
    let mut attempt = Emulated::new(nand);
    let shape = attempt.shape();
    let result = Ftl::mount(&mut attempt, shape, Tuned::new(shape.dies)).map(drop);
    let done = match result {
        Ok(()) => true,
        Err(FtlError::Flash(FlashError::PowerLost)) => false,
        Err(error) => panic!("cut at {at}: {error}"),
    };
    (attempt.into_nand().cut(seed).unwrap(), done)
}

/// It can be mounted, is as expected, and goes on.
fn is_whole(nand: Memory, expected: &[u64]) {
    let mut disk = mount(nand).unwrap();
    assert_eq!(contents(&mut disk), expected);
    let mut expected = expected.to_vec();
    for i in 0..60 {
        let sector = (i * 7) % SECTORS;
        write(&mut disk, sector, 2000 + i);
        expected[sector as usize] = 2000 + i;
        if i % 20 == 19 {
            disk.flush().unwrap();
        }
    }
    let nand = disk.into_platform().into_nand().cut(1).unwrap();
    assert_eq!(contents(&mut mount(nand).unwrap()), expected);
}

/// The memory in which the end is lost: the flush was cut just before its root was durable.
fn at_the_end() -> (Memory, Vec<u64>) {
    let mut found = None;
    for cut in 0.. {
        let (nand, [before, after], done) = lost(cut);
        let mut disk = mount(nand.clone()).unwrap();
        let now = contents(&mut disk);
        assert!(now == before || now == after, "cut at {cut}");
        // Such a mount needs a root.
        if disk.stats().checkpoints == 1 {
            found = Some((nand, now, after));
        }
        if done {
            break;
        }
    }
    let (nand, expected, after) = found.unwrap();
    assert_eq!(expected, after);
    (nand, expected)
}

/// Found while the obligations about a mount's first delta run were written.
#[test]
fn corner_50_a_delta_log_without_a_usable_end_goes_on_elsewhere() {
    let (nand, expected) = at_the_end();
    is_whole(nand, &expected);
}

/// Until the new root is durable, a mount leaves the state that it found, however often it is cut.
#[test]
fn corner_50_a_mount_that_moves_the_delta_log_may_be_cut_anywhere_and_again() {
    let (nand, expected) = at_the_end();
    let mut cuts = 0;
    for at in 0.. {
        let (once, done) = cut_mount(nand.clone(), at, at);
        is_whole(once.clone(), &expected);
        for second in [at / 2, at, at + 3] {
            let (twice, _) = cut_mount(once.clone(), second, !second);
            is_whole(twice, &expected);
        }
        cuts += 1;
        if done {
            break;
        }
    }
    assert!(cuts > 20, "{cuts}");
}

/// Neither do failures in that mount, alone or three in a row, nor a cut after them.
#[test]
fn corner_50_a_mount_that_moves_the_delta_log_bears_failures() {
    let (nand, expected) = at_the_end();
    let again = Cell::new(0);
    let fails = |op: FaultOp, after: &[u64], at: u64| {
        let mut nand = nand.clone();
        inject(&mut nand, op, after.iter().copied());
        let (nand, _) = cut_mount(nand, at, at);
        let disk = mount(nand.clone()).unwrap();
        again.set(again.get() + disk.stats().checkpoints);
        is_whole(nand, &expected);
    };
    let programs = {
        let mut disk = mount(nand.clone()).unwrap();
        contents(&mut disk);
        programs(&disk) - nand.counts().programs
    };
    assert!(programs > 4);
    for first in 0..programs {
        for at in [u64::MAX, 20 + first, 40 + first, 60 + first] {
            fails(FaultOp::Program, &[first], at);
            fails(FaultOp::Program, &[first, programs - 1, programs], at);
        }
    }
    for first in 0..10 {
        fails(FaultOp::Erase, &[first], u64::MAX);
        fails(FaultOp::Erase, &[first, first + 1], 40);
    }
    assert!(again.get() > 0);
}

/// Blocks that the end of the data log lies in, with no valid sector, are not erased before the new root is durable.
#[test]
fn corner_50_a_mount_that_moves_the_delta_log_keeps_the_end_of_the_data_log() {
    let mut disk = disk();
    for i in 0..80 {
        write(&mut disk, 0, i + 1);
        disk.flush().unwrap();
    }
    let blocks = disk.blocks();
    let announced: Vec<u64> = (0..blocks.count())
        .filter(|&block| blocks.is(block, BlockUse::Next))
        .collect();
    let mut nand = disk.into_platform().into_nand();
    for block in announced {
        nand.mark_bad(block as u32).unwrap();
    }
    let nand = nand.cut(1).unwrap();
    for at in 0.. {
        let mut attempt = nand.clone();
        attempt.cut_after(at);
        let mut attempt = Emulated::new(attempt);
        let shape = attempt.shape();
        // Takes the first block that will do.
        let result = Ftl::mount(&mut attempt, shape, FirstFit).map(|disk| disk.stats().checkpoints);
        let mut found = mount(attempt.into_nand().cut(at).unwrap()).unwrap();
        assert_eq!(read(&mut found, 0), 80, "cut at {at}");
        if let Ok(roots) = result {
            return assert_eq!(roots, 1);
        }
    }
}

/// An erase may fail as well: of both blocks that a sound log announces, in one mount.
#[test]
fn corner_50_announced_blocks_that_cannot_be_erased_are_left() {
    let mut disk = disk();
    for i in 0..SECTORS {
        write(&mut disk, i, i + 1);
        if i % 20 == 19 {
            disk.flush().unwrap();
        }
    }
    let expected = contents(&mut disk);
    let mut nand = disk.into_platform().into_nand().cut(1).unwrap();
    // The first two erases of a mount.
    inject(&mut nand, FaultOp::Erase, [0, 1]);
    let mut disk = mount(nand).unwrap();
    assert_eq!(disk.stats().failed_blocks, 2);
    assert_eq!(disk.stats().checkpoints, 1);
    assert_eq!(contents(&mut disk), expected);
    disk.write(0, &bytes(7)).unwrap();
    disk.flush().unwrap();
    let nand = disk.into_platform().into_nand().cut(2).unwrap();
    assert_eq!(read(&mut mount(nand).unwrap(), 0), 7);
}
