//! Streams: the counts of each, when it is due, which merged and why.

use super::*;
use steadfast_journal::{Clock, Faults, MERGES_KEPT, Merge, StreamCounts, Together};

const LARGE: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(8192),
    log_blocks: 4096,
};

fn open_with(change: impl FnOnce(&mut Config)) -> (Arc<SimDevice>, Journal) {
    let sim = fresh();
    let config = Config::new(REGION, VOLUME).without_workers().with(change);
    let (journal, _) = Journal::open(sim.clone(), config).unwrap();
    (sim, journal)
}

/// A journal with a log of 4096 blocks.
fn large() -> Journal {
    let device = Arc::new(MemDevice::new(LARGE.log.0 + LARGE.log_blocks));
    prepare(&*device, &LARGE);
    Journal::open(device, Config::new(LARGE, VOLUME).without_workers())
        .unwrap()
        .0
}

/// An operation of a stream that names objects, and changes bytes of its own.
fn name(journal: &Journal, stream: u32, objects: &[(Object, Access)]) {
    let mut op = journal.begin(StreamId(stream), small(200)).unwrap();
    for (object, access) in objects {
        op.relate(*object, *access);
    }
    let (at, offset) = (META + u64::from(stream) % 8, stream as usize / 8 % 400 * 8);
    op.write(BlockNo(at), Kind::Meta, offset, &[1; 8]).unwrap();
    let _ = op.commit();
}

fn file(number: u64) -> (Object, Access) {
    (Object::File(number), Access::Exclusive)
}

fn counts(journal: &Journal, stream: u32) -> StreamCounts {
    let all = journal.stream_counts();
    let found = all.into_iter().find(|(s, _)| *s == StreamId(stream));
    found.map(|(_, counts)| counts).unwrap_or_default()
}

#[test]
fn a_merge_changes_no_count_and_names_both_streams_and_the_cause() {
    let (_, journal) = open_with(|_| ());
    name(&journal, 1, &[file(7)]);
    name(&journal, 1, &[file(8)]);
    name(&journal, 2, &[file(9)]);
    name(&journal, 3, &[file(10)]);
    assert_eq!(journal.merges(), []);
    name(&journal, 2, &[file(8)]);
    let merge = Merge {
        streams: [StreamId(2), StreamId(1)],
        cause: Together::Object(Object::File(8)),
    };
    assert_eq!(journal.merges(), [merge]);
    let operations = |stream| {
        let counts = counts(&journal, stream);
        (counts.operations, counts.uncommitted)
    };
    assert_eq!([1, 2, 3].map(operations), [(2, 2), (2, 2), (1, 1)]);
    journal.sync_stream(StreamId(1)).unwrap();
    assert_eq!([1, 2, 3].map(operations), [(2, 0), (2, 0), (1, 1)]);
    let (one, two, three) = (
        counts(&journal, 1),
        counts(&journal, 2),
        counts(&journal, 3),
    );
    assert_eq!([one.commits, two.commits, three.commits], [1, 0, 0]);
    assert_eq!(one.waited_for, [(StreamId(2), 1)]);
    assert!(one.own_bytes > 0 && one.carried_bytes == two.own_bytes);
    assert_eq!((two.carried_bytes, three.own_bytes), (0, 0));
    assert_eq!(journal.stream_totals().merges.file, 1);
}

#[test]
fn the_bytes_of_all_streams_are_those_that_reached_the_device() {
    let (_, journal) = open_with(|_| ());
    for stream in 0..5 {
        let credits = Credits {
            log_bytes: 300,
            data_blocks: 3,
        };
        let mut op = journal.begin(StreamId(stream), credits).unwrap();
        let page = Arc::new([7; BLOCK_SIZE]);
        let pages = vec![page; 1 + stream as usize % 3];
        op.write_around(BlockNo(DATA + 8 * u64::from(stream)), pages)
            .unwrap();
        let _ = op.commit();
        name(&journal, stream, &[file(u64::from(stream / 2))]);
    }
    journal.sync_stream(StreamId(3)).unwrap();
    journal.sync_all().unwrap();
    let stats = journal.stats();
    let own: u64 = (journal.stream_counts().iter())
        .map(|(_, counts)| counts.own_bytes)
        .sum();
    assert_eq!(
        own,
        (stats.log_blocks + stats.around_blocks) * BLOCK_SIZE as u64
    );
}

#[test]
fn bytes_and_lives_of_blocks_are_causes_of_merges() {
    let (_, journal) = open_with(|_| ());
    put(&journal, 1, META, 0, 1).unwrap();
    put(&journal, 2, META, 4, 1).unwrap();
    let credits = Credits {
        log_bytes: 300,
        data_blocks: 1,
    };
    let mut op = journal.begin(StreamId(3), credits).unwrap();
    op.write_around(BlockNo(DATA), vec![Arc::new([1; BLOCK_SIZE])])
        .unwrap();
    let _ = op.commit();
    let mut op = journal.begin(StreamId(2), small(200)).unwrap();
    op.free(BlockNo(DATA), 1).unwrap();
    let _ = op.commit();
    let merge = |streams: [u32; 2], cause| Merge {
        streams: streams.map(StreamId),
        cause,
    };
    assert_eq!(
        journal.merges(),
        [
            merge([2, 1], Together::Bytes(BlockNo(META))),
            merge([2, 3], Together::Life(BlockNo(DATA))),
        ]
    );
}

#[test]
fn the_newest_merges_are_kept_and_all_are_counted() {
    let journal = large();
    let merges = MERGES_KEPT as u64 + 50;
    for n in 0..=merges {
        name(&journal, n as u32, &[file(n), file(n + 1)]);
    }
    let kept = journal.merges();
    assert_eq!(kept.len(), MERGES_KEPT);
    let last = Together::Object(Object::File(merges));
    assert_eq!(kept.last().map(|merge| merge.cause), Some(last));
    assert_eq!(journal.stream_totals().merges.file, merges);
}

#[test]
fn the_stream_of_an_object_is_the_newest_that_changed_it() {
    let (_, journal) = open_with(|_| ());
    assert_eq!(journal.stream_of(Object::File(7)), None);
    name(&journal, 1, &[file(7)]);
    assert_eq!(journal.stream_of(Object::File(7)), Some(StreamId(1)));
    name(&journal, 2, &[file(7)]);
    assert_eq!(journal.stream_of(Object::File(7)), Some(StreamId(2)));
    name(&journal, 1, &[file(7)]);
    assert_eq!(journal.stream_of(Object::File(7)), Some(StreamId(1)));
    assert_eq!(journal.stream_of(Object::File(8)), None);
    // A directory that many share: the newest of them; one that has it alone comes first.
    let shared = |stream| name(&journal, stream, &[(Object::Directory(9), Access::Shared)]);
    shared(4);
    shared(3);
    assert_eq!(journal.stream_of(Object::Directory(9)), Some(StreamId(3)));
    journal.sync_all().unwrap();
    assert_eq!(journal.stream_of(Object::File(7)), None);
}

#[test]
fn a_stream_is_forgotten_only_when_it_is_durable() {
    let (_, journal) = open_with(|_| ());
    name(&journal, 1, &[file(7)]);
    assert!(!journal.forget(StreamId(1)));
    journal.sync_all().unwrap();
    assert_eq!(counts(&journal, 1).operations, 1);
    assert!(journal.forget(StreamId(1)));
    assert_eq!(journal.stream_counts(), []);
    assert!(journal.forget(StreamId(2)));
}

/// A front end may have a stream for each file.
#[test]
fn streams_that_are_never_forgotten_take_bounded_memory() {
    let (_, journal) = open_with(|_| ());
    journal.set_commit_interval(StreamId(7), Some(Duration::from_secs(1)));
    for stream in 0..20_000 {
        name(&journal, stream, &[]);
        journal.sync_stream(StreamId(stream)).unwrap();
    }
    let counts = journal.stream_counts();
    assert!((2000..=4096).contains(&counts.len()), "{}", counts.len());
    // The newest are kept, and those that have a setting.
    assert_eq!(counts.first().map(|(stream, _)| stream.0), Some(7));
    assert_eq!(counts.last().map(|(stream, _)| stream.0), Some(19_999));
    assert_eq!(journal.stream_totals().commits, 20_000);
}

#[test]
fn each_stream_commits_when_its_own_interval_has_passed() {
    let clock = Clock::by_hand();
    let (sim, journal) = open_with(|config| {
        config.clock = clock.clone();
        config.commit_interval = Duration::from_secs(5);
    });
    let second = Duration::from_secs(1);
    let durable = || {
        let after = cut(&sim);
        [1u64, 2, 3].map(|stream| get(&after, META + stream, 0))
    };
    journal.set_commit_interval(StreamId(2), Some(3 * second));
    put(&journal, 1, META + 1, 0, 1).unwrap();
    clock.advance(second);
    assert_eq!(journal.commit_due().unwrap(), Some(4 * second));
    put(&journal, 2, META + 2, 0, 1).unwrap();
    put(&journal, 3, META + 3, 0, 1).unwrap();
    // Later operations do not put it off.
    clock.advance(2 * second);
    put(&journal, 2, META + 2, 0, 2).unwrap();
    assert_eq!(journal.commit_due().unwrap(), Some(second));
    assert_eq!(durable(), [0, 0, 0]);
    clock.advance(second);
    // Stream 2 after 3 of its own, without those of the others.
    assert_eq!(journal.commit_due().unwrap(), Some(second));
    assert_eq!(durable(), [0, 2, 0]);
    clock.advance(second);
    assert_eq!(journal.commit_due().unwrap(), Some(second));
    assert_eq!(durable(), [1, 2, 0]);
    // It can be made longer while it runs, and shorter.
    journal.set_commit_interval(StreamId(3), Some(60 * second));
    clock.advance(2 * second);
    assert_eq!(journal.commit_due().unwrap(), Some(54 * second));
    journal.set_commit_interval(StreamId(3), None);
    assert_eq!(journal.commit_due().unwrap(), None);
    assert_eq!(durable(), [1, 2, 1]);
    assert_eq!(journal.stats().commits, 3);
    assert_eq!([1, 2, 3].map(|s| counts(&journal, s).commits), [1, 1, 1]);
}

#[test]
fn the_interval_of_merged_streams_is_that_of_the_first_that_is_due() {
    let clock = Clock::by_hand();
    let (sim, journal) = open_with(|config| config.clock = clock.clone());
    journal.set_commit_interval(StreamId(1), Some(Duration::from_secs(1)));
    journal.set_commit_interval(StreamId(2), Some(Duration::from_secs(60)));
    put(&journal, 2, META, 0, 5).unwrap();
    put(&journal, 1, META, 0, 6).unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(journal.commit_due().unwrap(), None);
    assert_eq!(get(&cut(&sim), META, 0), 6);
}

/// The timekeeper closes it and leaves it to the flusher.
#[test]
fn much_data_becomes_durable_by_itself_too() {
    let device = Arc::new(MemDevice::new(DATA + 1024));
    prepare(&*device, &REGION);
    let config = Config::new(REGION, VOLUME)
        .without_workers()
        .with(|config| config.commit_interval = Duration::from_millis(10));
    let (journal, _) = Journal::open(device, config).unwrap();
    let credits = Credits {
        log_bytes: 300,
        data_blocks: 1024,
    };
    let mut op = journal.begin(StreamId(1), credits).unwrap();
    let page = Arc::new([1; BLOCK_SIZE]);
    op.write_around(BlockNo(DATA), vec![page; 1024]).unwrap();
    let _ = op.commit();
    put(&journal, 2, META, 0, 7).unwrap();
    journal.start_workers();
    let deadline = Instant::now() + PATIENCE;
    while journal.usage().2 > 0 {
        assert!(Instant::now() < deadline, "no thread commits");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!([1, 2].map(|s| counts(&journal, s).commits), [1, 1]);
    journal.close().unwrap();
}

/// Objects of a lone stream are only listed; a second stream must find them all the same.
fn second_stream(faults: Faults) -> u64 {
    let (sim, journal) = open_with(|config| config.faults = faults);
    let mut op = journal.begin(StreamId(1), small(200)).unwrap();
    op.relate(Object::File(7), Access::Exclusive);
    op.write(BlockNo(META), Kind::Meta, 0, &5u64.to_le_bytes())
        .unwrap();
    let _ = op.commit();
    let mut op = journal.begin(StreamId(2), small(200)).unwrap();
    op.relate(Object::File(7), Access::Exclusive);
    op.write(BlockNo(META + 1), Kind::Meta, 0, &6u64.to_le_bytes())
        .unwrap();
    let _ = op.commit();
    journal.sync_stream(StreamId(2)).unwrap();
    get(&cut(&sim), META, 0)
}

#[test]
fn relations_of_a_lone_stream_are_indexed_when_a_second_one_comes() {
    assert_eq!(second_stream(Faults::default()), 5);
    let unindexed = Faults {
        relations_unindexed: true,
        ..Faults::default()
    };
    assert_eq!(second_stream(unindexed), 0, "the planted fault shows");
    steadfast_testkit::caught_in("journal", &unindexed);
}

/// Two streams write bytes that overlap; only the second one is synced, and the power goes. Without the relation, bytes of the
/// second would be there without those of the first below them.
fn overlapping_bytes(faults: Faults) -> [u64; 2] {
    let (sim, journal) = open_with(|config| config.faults = faults);
    for (stream, offset, bytes) in [(1, 0, [5u64, 5]), (2, 8, [6, 6])] {
        let mut op = journal.begin(StreamId(stream), small(200)).unwrap();
        let bytes: Vec<u8> = bytes.iter().flat_map(|n| n.to_le_bytes()).collect();
        op.write(BlockNo(META), Kind::Meta, offset, &bytes).unwrap();
        let _ = op.commit();
    }
    journal.sync_stream(StreamId(2)).unwrap();
    let image = cut(&sim);
    [get(&image, META, 0), get(&image, META, 8)]
}

#[test]
fn streams_that_write_the_same_bytes_are_one_order() {
    assert_eq!(overlapping_bytes(Faults::default()), [5, 6]);
    let unrelated = Faults {
        bytes_unrelated: true,
        ..Faults::default()
    };
    assert_eq!(
        overlapping_bytes(unrelated),
        [0, 6],
        "the planted fault shows"
    );
    steadfast_testkit::caught_in("journal", &unrelated);
}

#[test]
fn a_stream_that_was_alone_again_is_found_by_the_next_one() {
    let (_, journal) = open_with(|_| ());
    // Two streams, so that their objects are indexed; then stream 1 alone, with an old and a new object.
    name(&journal, 1, &[file(1)]);
    name(&journal, 2, &[file(2)]);
    journal.sync_stream(StreamId(2)).unwrap();
    name(&journal, 1, &[file(3), file(1)]);
    for known in [1, 3] {
        assert_eq!(journal.stream_of(Object::File(known)), Some(StreamId(1)));
    }
    name(&journal, 3, &[file(1)]);
    assert_eq!(journal.stats().merges, 1);
    name(&journal, 4, &[file(3)]);
    assert_eq!(journal.stats().merges, 2);
}

#[test]
fn much_that_a_lone_stream_named_is_found_moved_by_merges_and_forgotten() {
    let journal = large();
    for n in 0..5000 {
        name(
            &journal,
            1,
            &[file(n * 7 % 5000), (Object::Directory(n), Access::Shared)],
        );
    }
    name(
        &journal,
        2,
        &[file(5000), (Object::Directory(17), Access::Shared)],
    );
    assert_eq!(journal.stats().merges, 0);
    name(&journal, 3, &[(Object::Directory(18), Access::Exclusive)]);
    assert_eq!(journal.stats().merges, 1);
    assert_eq!(journal.stream_of(Object::File(4999)), Some(StreamId(1)));
    // More than stream 1 has: its transaction moves, and is found where it is then.
    for n in 0..6000 {
        name(&journal, 2, &[file(6000 + n)]);
    }
    name(&journal, 2, &[file(3)]);
    name(&journal, 4, &[file(4)]);
    assert_eq!(journal.stats().merges, 3);
    journal.sync_stream(StreamId(4)).unwrap();
    assert_eq!(journal.usage().2, 0);
    name(&journal, 5, &[file(9)]);
    name(&journal, 6, &[file(10)]);
    assert_eq!(journal.stream_of(Object::File(4999)), None);
    name(&journal, 5, &[file(4999)]);
    name(&journal, 6, &[file(4998)]);
    assert_eq!(journal.stats().merges, 3);
}

#[test]
fn a_sync_of_an_object_finds_a_lone_streams_changes_of_it() {
    let (sim, journal) = open_with(|_| ());
    name(&journal, 1, &[file(7)]);
    put(&journal, 1, META + 9, 0, 3).unwrap();
    journal.sync(StreamId(2), &[Object::File(8)]).unwrap();
    assert_eq!(get(&cut(&sim), META + 9, 0), 0);
    journal.sync(StreamId(2), &[Object::File(7)]).unwrap();
    assert_eq!(get(&cut(&sim), META + 9, 0), 3);
}

#[test]
fn with_one_stream_there_are_no_relations() {
    let (_, journal) = open_with(|config| config.one_stream = true);
    name(&journal, 1, &[file(7)]);
    name(&journal, 2, &[file(7)]);
    assert_eq!(journal.stats().merges, 0);
    assert_eq!(journal.stream_of(Object::File(7)), None);
}

#[test]
fn ten_thousand_merges_move_little() {
    const STREAMS: u64 = 10_000;
    // Each newcomer joins all that came before, in one block that all of them change.
    let ring = large();
    for n in 0..STREAMS {
        for object in [n + 1, n] {
            let mut op = ring.begin(StreamId(n as u32), small(200)).unwrap();
            op.relate(Object::File(object % STREAMS), Access::Exclusive);
            op.set_bits(BlockNo(META), n as usize, 1, true).unwrap();
            let _ = op.commit();
        }
    }
    assert_eq!(ring.stats().merges, STREAMS - 1);
    let moved = ring.stats().merged_parts;
    assert!(moved < 8 * STREAMS, "the ring moves {moved} parts");
    ring.sync_all().unwrap();
}

#[test]
fn merges_of_equals_move_each_part_a_few_times() {
    const LEVELS: u32 = 10;
    const STREAMS: u64 = 1 << LEVELS;
    let tree = large();
    for level in 0..=LEVELS {
        for n in 0..STREAMS >> level {
            let meeting = (u64::from(level) << 32) + n / 2;
            name(&tree, (n << level) as u32, &[file(meeting)]);
        }
    }
    assert_eq!(tree.stats().merges, STREAMS - 1);
    let moved = tree.stats().merged_parts;
    let bound = 4 * STREAMS * u64::from(LEVELS);
    assert!(moved < bound, "the tree moves {moved} parts");
    tree.sync_all().unwrap();
}

/// With a gap between batches, calls that come in between share one; the first call after a break does not wait.
#[test]
fn calls_that_come_within_the_gap_share_a_batch() {
    const STREAMS: u32 = 6;
    let clock = Clock::by_hand();
    let gap = Duration::from_millis(20);
    let (sim, journal) = open_with(|config| {
        config.clock = clock.clone();
        config.batch_gap = gap;
    });
    let sync = |stream: u32| {
        put(&journal, stream, META + u64::from(stream), 0, 1).unwrap();
        journal.sync_stream(StreamId(stream)).unwrap();
    };
    sync(0);
    assert_eq!(journal.stats().commits, 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=STREAMS)
            .map(|stream| scope.spawn(move || sync(stream)))
            .collect();
        // All have closed their transactions, and none begins a batch before the gap has passed.
        let begun = Instant::now();
        while journal.stats().transactions < u64::from(1 + STREAMS) {
            assert!(begun.elapsed() < PATIENCE, "a transaction is never closed");
            std::thread::yield_now();
        }
        std::thread::sleep(3 * gap);
        assert_eq!(journal.stats().commits, 1);
        assert!(threads.iter().all(|thread| !thread.is_finished()));
        clock.advance(gap);
    });
    assert_eq!(journal.stats().commits, 2);
    let after = cut(&sim);
    assert!((0..=STREAMS).all(|stream| get(&after, META + u64::from(stream), 0) == 1));
    clock.advance(gap);
    sync(1);
    assert_eq!(journal.stats().commits, 3);
}
