//! Tests of the simulated device: that it produces the states that a power cut may leave, all of them
//! and nothing else.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::image::SECTORS;
use crate::*;
use std::collections::{BTreeSet, HashSet};
use steadfast_block::{BLOCK_SIZE, BlockDevice, DeviceError, DeviceOp, SECTOR_SIZE};

const EIO: i32 = 5;

fn put(device: &dyn BlockDevice, at: u64, byte: u8) {
    device.write(BlockNo(at), &[&[byte; BLOCK_SIZE]]).unwrap();
}

/// A block whose bytes are all the same in each sector.
fn sectors(device: &dyn BlockDevice, at: u64) -> [u8; SECTORS] {
    let mut block = [0; BLOCK_SIZE];
    device.read(BlockNo(at), &mut block).unwrap();
    std::array::from_fn(|sector| {
        let bytes = &block[sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE];
        assert!(
            bytes.iter().all(|byte| *byte == bytes[0]),
            "a sector is torn"
        );
        bytes[0]
    })
}

/// The byte that a whole block holds.
fn byte(device: &dyn BlockDevice, at: u64) -> u8 {
    let sectors = sectors(device, at);
    assert_eq!(sectors, [sectors[0]; SECTORS], "block {at} is torn");
    sectors[0]
}

fn whole_blocks(exhaustive_writes: usize) -> Limits {
    Limits {
        exhaustive_writes,
        sampled: 0,
        tears: false,
        seed: 0,
    }
}

/// The contents of the first `N` blocks in every image of the cut at the end.
fn contents<const N: usize>(sim: &SimDevice, limits: &Limits) -> BTreeSet<[u8; N]> {
    let mut explorer = sim.explorer();
    let cut = explorer.cut(usize::MAX);
    let images = cut.images(limits);
    images
        .map(|image| std::array::from_fn(|at| byte(&image, at as u64)))
        .collect()
}

#[test]
fn reads_see_the_cache_and_an_image_is_frozen() {
    let sim = SimDevice::new(4);
    put(&sim, 1, 7);
    let image = sim.image();
    put(&sim, 1, 8);
    assert_eq!((byte(&sim, 0), byte(&sim, 1)), (0, 8));
    assert_eq!(image.block(BlockNo(1)), &[7; BLOCK_SIZE]);
    assert_eq!(byte(&SimDevice::from_image(image), 1), 7);
    let counts = Counts {
        reads: 2,
        writes: 2,
        blocks_written: 2,
        flushes: 0,
    };
    assert_eq!(sim.counts(), counts);
}

#[test]
fn a_flushed_write_survives_in_every_image_of_every_later_cut() {
    let sim = SimDevice::new(8);
    put(&sim, 0, 1);
    sim.flush().unwrap();
    let acknowledged = sim.mark(1);
    put(&sim, 1, 2);
    put(&sim, 2, 3);
    sim.flush().unwrap();
    put(&sim, 3, 4);
    let mut explorer = sim.explorer();
    let mut seen = 0;
    for position in acknowledged..=explorer.len() {
        let cut = explorer.cut(position);
        assert_eq!(cut.marks().is_empty(), position == acknowledged);
        for image in cut.images(&Limits::default()) {
            assert_eq!(byte(&image, 0), 1, "{image}");
            seen += 1;
        }
    }
    assert!(seen > 100);
}

#[test]
fn each_subset_of_three_unflushed_writes_is_produced_once() {
    let sim = SimDevice::new(8);
    put(&sim, 0, 9);
    sim.flush().unwrap();
    for at in 0..3 {
        put(&sim, at, 1 + at as u8);
    }
    let mut explorer = sim.explorer();
    let cut = explorer.cut(sim.trace_len());
    let images: Vec<_> = cut.images(&whole_blocks(3)).collect();
    assert_eq!(images.len(), 8);
    let got: BTreeSet<_> = images
        .iter()
        .map(|image| [0, 1, 2].map(|at| byte(image, at)))
        .collect();
    let expected: BTreeSet<[u8; 3]> = (0..8)
        .map(|set| {
            let choose = |bit: u8, new, old| if set >> bit & 1 == 1 { new } else { old };
            [choose(0, 1, 9), choose(1, 2, 0), choose(2, 3, 0)]
        })
        .collect();
    assert_eq!(got, expected);
    assert!(cut.images(&whole_blocks(3)).is_exhaustive());
    // One less, and neither blocks nor requests can be listed.
    assert_eq!(cut.images(&whole_blocks(2)).count(), 2);
    assert!(!cut.images(&whole_blocks(2)).is_exhaustive());
}

#[test]
fn everything_and_only_the_durable_come_first() {
    let sim = SimDevice::new(8);
    put(&sim, 0, 1);
    put(&sim, 1, 2);
    put(&sim, 0, 3);
    let mut explorer = sim.explorer();
    for limits in [Limits::default(), whole_blocks(0)] {
        let cut = explorer.cut(3);
        let mut images = cut.images(&limits);
        let (first, second) = (images.next().unwrap(), images.next().unwrap());
        assert_eq!([byte(&first, 0), byte(&first, 1)], [3, 2]);
        assert_eq!([byte(&second, 0), byte(&second, 1)], [0, 0]);
        assert_eq!(first.fingerprint(), sim.image().fingerprint());
        assert_eq!(second.fingerprint(), Image::zeroed(8).fingerprint());
        assert_eq!(
            format!("{first}"),
            "cut after 3 events, survived: b0 #2, b1 #1"
        );
        assert_eq!(
            format!("{second}"),
            "cut after 3 events, only the durable survived"
        );
    }
}

#[test]
fn corner_16_an_unflushed_block_is_torn_at_every_set_of_sectors() {
    let sim = SimDevice::new(2);
    put(&sim, 1, 5);
    let mut explorer = sim.explorer();
    let cut = explorer.cut(1);
    let images = cut.images(&Limits {
        exhaustive_writes: 8,
        ..Limits::default()
    });
    assert!(images.is_exhaustive());
    let torn: HashSet<_> = images.map(|image| sectors(&image, 1)).collect();
    assert_eq!(torn.len(), 256);

    // Without tears it is there or not.
    assert_eq!(
        contents::<2>(&sim, &whole_blocks(8)),
        BTreeSet::from([[0, 0], [0, 5]])
    );
}

#[test]
fn corner_16_only_sectors_that_differ_are_distinguished() {
    let sim = SimDevice::new(2);
    let mut block = [0; BLOCK_SIZE];
    block[5 * SECTOR_SIZE..7 * SECTOR_SIZE].fill(3);
    sim.write(BlockNo(0), &[&block]).unwrap();
    let mut explorer = sim.explorer();
    assert_eq!(explorer.cut(1).images(&Limits::default()).count(), 4);
    // A write of the same content changes nothing.
    sim.flush().unwrap();
    sim.write(BlockNo(0), &[&block]).unwrap();
    let mut explorer = sim.explorer();
    let cut = explorer.cut(3);
    assert_eq!(cut.pending_blocks().count(), 1);
    assert_eq!(cut.images(&Limits::default()).count(), 1);
}

#[test]
fn corner_16_samples_hold_tears_and_losses_and_repeat_with_their_seed() {
    let sim = SimDevice::new(64);
    for at in 0..40 {
        put(&sim, at, 1);
    }
    sim.write(BlockNo(40), &[&vec![1; 8 * BLOCK_SIZE]]).unwrap();
    let mut explorer = sim.explorer();
    let cut = explorer.cut(usize::MAX);
    let sample = |seed| {
        let limits = Limits {
            exhaustive_writes: 4,
            sampled: 200,
            tears: true,
            seed,
        };
        let images = cut.images(&limits);
        assert!(!images.is_exhaustive());
        images.collect::<Vec<_>>()
    };
    let images = sample(1);
    assert_eq!(images.len(), 202);
    let prints = |images: &[CrashImage]| images.iter().map(CrashImage::fingerprint).collect();
    let (a, b, c): (Vec<_>, Vec<_>, Vec<_>) =
        (prints(&images), prints(&sample(1)), prints(&sample(2)));
    assert!(a == b && a != c);
    let count = |test: &dyn Fn(&CrashImage, u64) -> bool| {
        images
            .iter()
            .filter(|image| (0..48).any(|at| test(image, at)))
            .count()
    };
    let torn = count(&|image, at| sectors(image, at) != [sectors(image, at)[0]; SECTORS]);
    let lost = count(&|image, at| sectors(image, at) == [0; SECTORS]);
    assert!(torn > 50 && lost > 50, "{torn} torn, {lost} with losses");
    // The request of eight blocks is also torn between its blocks.
    let split = |image: &CrashImage| sectors(image, 40) != sectors(image, 47);
    assert!(images.iter().any(split));
}

#[test]
fn overlapping_writes_appear_in_either_order() {
    let sim = SimDevice::new(3);
    sim.write(BlockNo(0), &[&[1; BLOCK_SIZE], &[1; BLOCK_SIZE]])
        .unwrap();
    sim.write(BlockNo(1), &[&[2; BLOCK_SIZE], &[2; BLOCK_SIZE]])
        .unwrap();
    let by_block = contents::<3>(&sim, &whole_blocks(4));
    assert_eq!(by_block.len(), 2 * 3 * 2);
    // Four bits are needed for the blocks, three for the requests and their order.
    let by_request = contents::<3>(&sim, &whole_blocks(3));
    let expected = [[0, 0, 0], [1, 1, 0], [0, 2, 2], [1, 2, 2], [1, 1, 2]];
    assert_eq!(by_request, BTreeSet::from(expected));
    assert!(by_request.is_subset(&by_block));
}

#[test]
fn images_are_distinguished_by_content_only() {
    let sim = SimDevice::new(4);
    put(&sim, 0, 1);
    put(&sim, 0, 2);
    put(&sim, 0, 1);
    put(&sim, 3, 0);
    let mut explorer = sim.explorer();
    let cut = explorer.cut(4);
    let images: Vec<_> = cut.images(&whole_blocks(10)).collect();
    assert_eq!(images.len(), 3);
    for image in &images {
        assert_eq!(
            image.fingerprint(),
            Image::from_bytes(&image.image().to_bytes()).fingerprint()
        );
    }

    // The same content at another time, on another device, has the same fingerprint.
    let other = SimDevice::new(4);
    put(&other, 0, 1);
    other.flush().unwrap();
    let mut explorer = other.explorer();
    let durable = explorer.cut(2).images(&Limits::default()).next().unwrap();
    assert_eq!(durable.fingerprint(), images[0].fingerprint());
    // The same block elsewhere is another content.
    let moved = SimDevice::new(4);
    put(&moved, 1, 1);
    assert_ne!(moved.image().fingerprint(), images[0].fingerprint());
}

#[test]
fn cuts_may_be_visited_in_any_order() {
    let sim = SimDevice::new(8);
    for n in 0..30_u8 {
        put(&sim, u64::from(n % 8), n);
        sim.mark(u64::from(n));
        if n % 5 == 4 {
            sim.flush().unwrap();
        }
    }
    let mut forth = sim.explorer();
    let all: Vec<_> = (0..=forth.len())
        .map(|position| forth.cut(position))
        .collect();
    let mut jumping = sim.explorer();
    for position in (0..=forth.len()).map(|i| i * 37 % (forth.len() + 1)) {
        let cut = jumping.cut(position);
        let expected = &all[position];
        assert_eq!(cut.position(), position);
        assert_eq!(cut.marks(), expected.marks());
        let prints = |cut: &Cut| -> Vec<u128> {
            let images = cut.images(&whole_blocks(5));
            images.map(|image| image.fingerprint()).collect()
        };
        assert_eq!(prints(&cut), prints(expected));
    }
}

#[test]
fn maximal_cuts_allow_every_image_of_every_cut() {
    let sim = SimDevice::new(4);
    for n in 1..=12_u8 {
        put(&sim, u64::from(n % 4), n);
        if n % 4 == 0 {
            sim.flush().unwrap();
        }
        if n == 6 {
            sim.ignore_flushes(true);
            sim.flush().unwrap();
            sim.ignore_flushes(false);
        }
    }
    let mut explorer = sim.explorer();
    let mut images = |position| -> BTreeSet<u128> {
        let cut = explorer.cut(position);
        let images = cut.images(&whole_blocks(8));
        assert!(images.is_exhaustive());
        images.map(|image| image.fingerprint()).collect()
    };
    let every: BTreeSet<_> = (0..=sim.trace_len()).flat_map(&mut images).collect();
    let cuts = sim.explorer().maximal_cuts();
    assert_eq!(cuts, [4, 10, 15, 16]);
    assert_eq!(
        cuts.into_iter().flat_map(images).collect::<BTreeSet<_>>(),
        every
    );
}

#[test]
fn corner_14_failures_come_as_planned() {
    let sim = SimDevice::new(8);
    let mut block = [0; BLOCK_SIZE];
    sim.inject(Fault::nth(DeviceOp::Read, 2));
    sim.read(BlockNo(0), &mut block).unwrap();
    let error = sim.read(BlockNo(3), &mut block).unwrap_err();
    assert!(matches!(
        error,
        DeviceError::Io {
            op: DeviceOp::Read,
            at: BlockNo(3),
            count: 1,
            ..
        }
    ));
    assert_eq!(error.raw_os_error(), Some(EIO));
    assert_ne!(
        block, [0; BLOCK_SIZE],
        "a failed read must not look like zeros"
    );
    sim.read(BlockNo(3), &mut block).unwrap();

    sim.inject(Fault::at(DeviceOp::Read, BlockNo(5)).sticky());
    sim.inject(Fault::at(DeviceOp::Write, BlockNo(6)).with_errno(28));
    for _ in 0..3 {
        sim.read(BlockNo(0), &mut [0; 5 * BLOCK_SIZE]).unwrap();
        sim.read(BlockNo(4), &mut [0; 3 * BLOCK_SIZE]).unwrap_err();
        sim.read(BlockNo(6), &mut block).unwrap();
    }
    let error = sim.write(BlockNo(5), &[&[1; 2 * BLOCK_SIZE]]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28));
    sim.write(BlockNo(5), &[&[1; 2 * BLOCK_SIZE]]).unwrap();

    sim.inject(Fault::nth(DeviceOp::Flush, 1).sticky());
    sim.flush().unwrap_err();
    sim.flush().unwrap_err();
    sim.clear_faults();
    sim.flush().unwrap();
    sim.read(BlockNo(5), &mut block).unwrap();
}

#[test]
fn corner_14_a_failed_write_leaves_old_and_new_sectors() {
    let mut outcomes = HashSet::new();
    for seed in 0..64 {
        let sim = SimDevice::new(4);
        put(&sim, 1, 1);
        sim.flush().unwrap();
        sim.set_seed(seed);
        sim.inject(Fault::nth(DeviceOp::Write, 1));
        sim.write(BlockNo(1), &[&[2; BLOCK_SIZE]]).unwrap_err();
        let left = sectors(&sim, 1);
        assert!(left.iter().all(|byte| [1, 2].contains(byte)));
        outcomes.insert(left);
        // The content of the cache may be lost as well.
        let durable = CrashImage::from(sim.explorer().cut(2).durable().clone());
        assert_eq!(sectors(&durable, 1), [1; SECTORS]);
    }
    assert!(outcomes.contains(&[1; SECTORS]) && outcomes.contains(&[2; SECTORS]));
    assert!(outcomes.len() > 10);
}

#[test]
fn corner_14_no_later_flush_brings_back_the_losses_of_a_failed_one() {
    let sim = SimDevice::new(4);
    put(&sim, 0, 1);
    put(&sim, 1, 1);
    sim.inject(Fault::nth(DeviceOp::Flush, 1));
    sim.flush().unwrap_err();
    put(&sim, 1, 2);
    put(&sim, 2, 2);
    sim.flush().unwrap();
    // Block 1 was written again and is durable; block 0 was not and may be lost.
    let survived = BTreeSet::from([[0, 2, 2], [1, 2, 2]]);
    assert_eq!(contents::<3>(&sim, &whole_blocks(4)), survived);
    // So it is for the next process, whose flushes do not help either.
    let next = sim.explorer().cut(usize::MAX).killed();
    next.flush().unwrap();
    assert_eq!(contents::<3>(&next, &whole_blocks(4)), survived);
    assert_eq!(byte(&next, 0), 1, "the cache still shows it");
}

#[test]
fn corner_17_a_disk_that_ignores_flushes_never_gets_on() {
    let sim = SimDevice::new(4);
    put(&sim, 0, 1);
    sim.flush().unwrap();
    sim.ignore_flushes(true);
    for at in 0..4 {
        put(&sim, at, 2);
        sim.flush().unwrap();
    }
    let mut explorer = sim.explorer();
    let start = explorer.cut(2).durable().fingerprint();
    for position in 2..=explorer.len() {
        assert_eq!(explorer.cut(position).durable().fingerprint(), start);
    }
    assert_eq!(contents::<4>(&sim, &whole_blocks(4)).len(), 16);
    sim.ignore_flushes(false);
    sim.flush().unwrap();
    assert_eq!(
        contents::<4>(&sim, &whole_blocks(4)),
        BTreeSet::from([[2; 4]])
    );
}

#[test]
fn corner_13_a_recovery_can_be_cut_again() {
    let sim = SimDevice::new(16);
    put(&sim, 0, 1);
    put(&sim, 1, 1);
    let mut explorer = sim.explorer();
    let mut ends = BTreeSet::new();
    let mut durable_before = HashSet::new();
    for image in explorer.cut(2).images(&whole_blocks(8)) {
        let fingerprint = image.fingerprint();
        // "Recovery" copies block 0 to 2 and 1 to 3, with a flush in between.
        let recovery = SimDevice::from_image(image);
        assert_eq!(recovery.image().fingerprint(), fingerprint);
        put(&recovery, 2, byte(&recovery, 0) + 10);
        recovery.flush().unwrap();
        put(&recovery, 3, byte(&recovery, 1) + 10);
        let mut cuts = recovery.explorer();
        for position in 0..=cuts.len() {
            let cut = cuts.cut(position);
            if position == 0 {
                durable_before.insert(cut.durable().fingerprint());
                assert_eq!(cut.durable().fingerprint(), fingerprint);
            }
            for image in cut.images(&whole_blocks(8)) {
                ends.insert([0, 1, 2, 3].map(|at| byte(&image, at)));
            }
        }
    }
    assert_eq!(durable_before.len(), 4);
    // Per first image: nothing yet, the first copy, both.
    assert_eq!(ends.len(), 12);
    assert!(
        ends.iter().all(|end| end[3] == 0 || end[2] == end[0] + 10),
        "{ends:?}"
    );
}

#[test]
fn corner_52_a_killed_processs_writes_in_the_cache_can_still_be_lost() {
    let sim = SimDevice::new(4);
    put(&sim, 0, 1);
    sim.flush().unwrap();
    put(&sim, 1, 1);
    put(&sim, 1, 2);
    let next = sim.explorer().cut(usize::MAX).killed();
    assert_eq!((byte(&next, 0), byte(&next, 1)), (1, 2));
    put(&next, 2, 3);
    let expected = [
        [1, 0, 0],
        [1, 1, 0],
        [1, 2, 0],
        [1, 0, 3],
        [1, 1, 3],
        [1, 2, 3],
    ];
    assert_eq!(
        contents::<3>(&next, &whole_blocks(4)),
        BTreeSet::from(expected)
    );
    next.flush().unwrap();
    assert_eq!(
        contents::<3>(&next, &whole_blocks(4)),
        BTreeSet::from([[1, 2, 3]])
    );
}

#[test]
fn a_crash_image_is_a_device_of_its_own() {
    let sim = SimDevice::new(4);
    put(&sim, 0, 1);
    let mut explorer = sim.explorer();
    let cut = explorer.cut(1);
    let images: Vec<_> = cut.images(&whole_blocks(1)).collect();
    let copy = images[0].clone();
    put(&images[0], 0, 9);
    images[0].flush().unwrap();
    images[0].discard(BlockNo(0), 4).unwrap();
    assert!(images[0].discard(BlockNo(0), 5).is_err());
    assert!(images[0].write(BlockNo(4), &[&[0; BLOCK_SIZE]]).is_err());
    assert_eq!(
        [byte(&images[0], 0), byte(&images[1], 0), byte(&copy, 0)],
        [9, 0, 1]
    );
    assert_eq!(images[0].fingerprint(), copy.fingerprint());
    assert_ne!(images[0].image().fingerprint(), copy.image().fingerprint());
}

#[test]
fn discarded_blocks_read_as_anything_but_their_old_content() {
    let sim = SimDevice::new(4);
    put(&sim, 1, 1);
    sim.flush().unwrap();
    sim.discard(BlockNo(0), 2).unwrap();
    let garbage = byte(&sim, 1);
    assert!(![0, 1].contains(&garbage));
    let either = [[0, 1], [garbage, 1], [0, garbage], [garbage, garbage]];
    assert_eq!(
        contents::<2>(&sim, &whole_blocks(4)),
        BTreeSet::from(either)
    );
}

#[test]
fn a_flush_covers_only_writes_that_had_returned() {
    use std::sync::mpsc::{channel, sync_channel};
    let (reached, wait_reached) = channel();
    let (go_on, wait_go_on) = sync_channel::<()>(0);
    let wait_go_on = std::sync::Mutex::new(wait_go_on);
    let sim = Arc::new(SimDevice::new(4).with_hook(move |op, phase| {
        if (op, phase) == (DeviceOp::Write, Phase::InFlight) {
            reached.send(()).unwrap();
            wait_go_on.lock().unwrap().recv().unwrap();
        }
    }));
    let writer = std::thread::spawn({
        let sim = sim.clone();
        move || put(&*sim, 0, 1)
    });
    wait_reached.recv().unwrap();
    assert_eq!(byte(&*sim, 0), 1, "the cache has it");
    sim.flush().unwrap();
    let left = contents::<1>(&sim, &whole_blocks(4));
    go_on.send(()).unwrap();
    writer.join().unwrap();
    assert_eq!(
        left,
        BTreeSet::from([[0], [1]]),
        "but no one was promised anything"
    );
    assert_eq!(contents::<1>(&sim, &whole_blocks(4)), left);
    sim.flush().unwrap();
    assert_eq!(contents::<1>(&sim, &whole_blocks(4)), BTreeSet::from([[1]]));
}

/// Writes whole blocks of the given bytes as one batch.
fn put_scattered(device: &dyn BlockDevice, blocks: &[(u64, u8)]) -> steadfast_block::Result<()> {
    let data: Vec<[u8; BLOCK_SIZE]> = blocks.iter().map(|(_, byte)| [*byte; BLOCK_SIZE]).collect();
    let segments: Vec<[&[u8]; 1]> = data.iter().map(|block| [&block[..]]).collect();
    let writes: Vec<(BlockNo, &[&[u8]])> = (blocks.iter().zip(&segments))
        .map(|((at, _), segments)| (BlockNo(*at), &segments[..]))
        .collect();
    device.write_scattered(&writes)
}

#[test]
fn corner_18_the_parts_of_a_batch_survive_in_any_subset() {
    let sim = SimDevice::new(4);
    put_scattered(&sim, &[(2, 1), (0, 1), (1, 1)]).unwrap();
    assert_eq!(sim.counts().writes, 3);
    assert_eq!(contents::<3>(&sim, &whole_blocks(3)).len(), 8);
    sim.flush().unwrap();
    assert_eq!(
        contents::<3>(&sim, &whole_blocks(3)),
        BTreeSet::from([[1, 1, 1]])
    );
}

#[test]
fn corner_18_a_flush_during_a_batch_covers_no_part_of_it() {
    use std::sync::OnceLock;
    let flushed: Arc<OnceLock<Arc<SimDevice>>> = Arc::default();
    let sim = Arc::new(SimDevice::new(4).with_hook({
        let flushed = flushed.clone();
        move |op, phase| {
            if (op, phase) == (DeviceOp::Write, Phase::InFlight) {
                flushed.get().unwrap().flush().unwrap();
            }
        }
    }));
    flushed.set(sim.clone()).unwrap();
    put_scattered(&*sim, &[(0, 1), (1, 1)]).unwrap();
    assert_eq!(sim.counts().flushes, 2);
    assert_eq!(contents::<2>(&sim, &whole_blocks(2)).len(), 4);
    sim.flush().unwrap();
    assert_eq!(
        contents::<2>(&sim, &whole_blocks(2)),
        BTreeSet::from([[1, 1]])
    );
}

#[test]
fn corner_18_where_one_part_of_a_batch_fails_the_others_are_anything() {
    let mut outcomes = HashSet::new();
    for seed in 0..200 {
        let sim = SimDevice::new(4);
        sim.set_seed(seed);
        sim.inject(Fault::at(DeviceOp::Write, BlockNo(1)).with_errno(28));
        sim.inject(Fault::at(DeviceOp::Write, BlockNo(2)));
        let error = put_scattered(&sim, &[(0, 1), (1, 1), (2, 1)]).unwrap_err();
        let DeviceError::Io { at, count, .. } = &error else {
            panic!("{error}");
        };
        // The first in the order of the batch.
        assert_eq!(
            (*at, *count, error.raw_os_error()),
            (BlockNo(1), 1, Some(28))
        );
        let whole = |at| match sectors(&sim, at) {
            all if all == [0; SECTORS] => 'o',
            all if all == [1; SECTORS] => 'n',
            _ => 't',
        };
        outcomes.insert((whole(0), whole(2)));
        put_scattered(&sim, &[(0, 2), (2, 2)]).unwrap();
    }
    assert_eq!(outcomes.len(), 9, "{outcomes:?}");
}

#[test]
fn a_batch_that_cannot_be_written_whole_is_not_begun() {
    let sim = SimDevice::new(4);
    let error = put_scattered(&sim, &[(0, 1), (4, 1)]).unwrap_err();
    assert!(matches!(
        error,
        DeviceError::OutOfRange { at: BlockNo(4), .. }
    ));
    assert_eq!(sim.trace_len(), 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "overlap")]
fn a_batch_whose_parts_overlap_is_a_bug_of_the_caller() {
    let _ = put_scattered(&SimDevice::new(4), &[(0, 1), (1, 1), (0, 2)]);
}

#[test]
fn several_threads_may_use_the_device() {
    let sim = SimDevice::new(64);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let sim = &sim;
            scope.spawn(move || {
                for n in 1..=50_u8 {
                    put(sim, thread * 16 + u64::from(n % 16), n);
                    assert_eq!(byte(sim, thread * 16 + u64::from(n % 16)), n);
                    if n % 10 == 0 {
                        sim.flush().unwrap();
                        sim.mark(thread);
                    }
                }
            });
        }
    });
    sim.flush().unwrap();
    let mut explorer = sim.explorer();
    let cut = explorer.cut(usize::MAX);
    assert_eq!(cut.marks().len(), 20);
    assert_eq!(cut.images(&Limits::default()).count(), 1);
    assert_eq!(cut.durable().fingerprint(), sim.image().fingerprint());
}

#[test]
fn an_image_of_any_size_holds_its_first_and_last_block() {
    for blocks in [1, 2, 15, 16, 17, 255, 256, 257, 4096, 1 << 40, u64::MAX] {
        let mut image = Image::zeroed(blocks);
        let empty = image.fingerprint();
        for at in [0, blocks / 2, blocks - 1] {
            let block = [(at % 251) as u8 + 1; BLOCK_SIZE];
            image.set(at, image::share(&block));
            assert_eq!(image.block(BlockNo(at)), &block);
        }
        assert_ne!(image.fingerprint(), empty);
        for at in [0, blocks / 2, blocks - 1] {
            image.set(at, image::share(&[0; BLOCK_SIZE]));
        }
        assert_eq!(image.fingerprint(), empty);
        assert_eq!(image.block(BlockNo(u64::MAX)), &[0; BLOCK_SIZE]);
    }
}

/// A loose bound that a full copy of the volume would break by orders of magnitude.
#[test]
fn an_image_of_a_large_volume_costs_no_copy_of_it() {
    let volume: Vec<u8> = (0..16 << 20).map(|i| (i >> 9) as u8 | 1).collect();
    let sim = SimDevice::from_image(Image::from_bytes(&volume));
    for at in 0..10 {
        put(&sim, at * 400, 0);
    }
    let mut explorer = sim.explorer();
    let cut = explorer.cut(usize::MAX);
    let limits = Limits {
        exhaustive_writes: 10,
        sampled: 0,
        tears: true,
        seed: 0,
    };
    // All of them at a time: copies would take 16 GiB.
    let before = resident_mib();
    let devices: Vec<SimDevice> = cut.images(&limits).map(SimDevice::from_image).collect();
    assert_eq!(devices.len(), 1024);
    assert!(devices.iter().all(|device| device.trace_len() == 0));
    let grown = resident_mib() - before;
    assert!(grown < 256, "{grown} MiB for {} images", devices.len());
}

/// Memory of this process that is there, in MiB.
fn resident_mib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: i64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib >> 10
}
