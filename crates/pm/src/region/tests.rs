//! Regions of plain memory.

use super::*;
use crate::{Counts, thread_counts};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Store(u64, u64),
    /// The same through the line.
    StoreInLine(u64, u64),
    Write(u64, Vec<u8>),
    Zero(u64, u64),
    WriteBack(u64, u64),
    Fence,
}

const BYTES: u64 = 1024;

fn step() -> impl Strategy<Value = Step> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    prop_oneof![
        (0..BYTES / 8, any::<u64>()).prop_map(|(word, value)| Step::Store(word * 8, value)),
        (0..BYTES / 8, any::<u64>()).prop_map(|(word, value)| Step::StoreInLine(word * 8, value)),
        (0..BYTES - 200, bytes).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        (0..BYTES / 2, 0..BYTES / 2).prop_map(|(at, len)| Step::Zero(at, len)),
        (0..BYTES / 2, 0..BYTES / 2).prop_map(|(at, len)| Step::WriteBack(at, len)),
        Just(Step::Fence),
    ]
}

fn run(region: &Region, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Store(at, word) => region.store(*at, *word),
            Step::StoreInLine(at, word) => {
                let line = region.line(*at);
                line.store(*at, *word);
                assert_eq!((line.load(*at), region.load(*at)), (*word, *word));
            }
            Step::Write(at, bytes) => region.write_data(*at, bytes),
            Step::Zero(at, len) => region.zero_data(*at, *len),
            Step::WriteBack(at, len) => region.write_back(*at, *len),
            Step::Fence => region.fence(),
        }
    }
}

/// The same on a vector of bytes.
fn expected(steps: &[Step]) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    for step in steps {
        match step {
            Step::Store(at, word) | Step::StoreInLine(at, word) => {
                bytes[*at as usize..][..8].copy_from_slice(&word.to_le_bytes());
            }
            Step::Write(at, data) => bytes[*at as usize..][..data.len()].copy_from_slice(data),
            Step::Zero(at, len) => bytes[*at as usize..][..*len as usize].fill(0),
            Step::WriteBack(..) | Step::Fence => {}
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 500 })
    })]

    #[test]
    fn a_region_holds_the_stores_recorded_or_not(
        steps in proptest::collection::vec(step(), 0..40),
        at in 0..BYTES, len in 0..300_usize,
    ) {
        let (plain, recorded) = (Region::anonymous(BYTES), Region::recorded(vec![0; BYTES as usize]));
        let expected = expected(&steps);
        for region in [&plain, &recorded] {
            run(region, &steps);
            prop_assert_eq!(&region.content(), &expected);
            let mut part = vec![0xaa; len.min((BYTES - at) as usize)];
            region.read(at, &mut part);
            prop_assert_eq!(&part[..], &expected[at as usize..][..part.len()]);
        }
    }
}

#[test]
fn the_thread_counts_its_work() {
    let region = Region::anonymous(4096);
    let before = thread_counts();
    region.store(8, 1);
    region.store(64, 1);
    region.write_data(130, &[1; 7]);
    region.zero_data(1, 4000);
    region.write_back(8, 57);
    region.fence();
    let counts = thread_counts() - before;
    assert_eq!(
        counts,
        Counts {
            stores: 2,
            data_bytes: 4007,
            lines: 2,
            fences: 1
        }
    );
    let elsewhere = std::thread::spawn(thread_counts).join();
    assert_eq!(elsewhere.ok(), Some(Counts::default()));
}

#[test]
fn events_are_recorded_in_order() {
    let region = Region::recorded(vec![7; 100]);
    assert_eq!(region.len(), 128);
    region.store(64, 5);
    region.write_data(4, &[1; 8]);
    region.write_back(60, 8);
    region.fence();
    let recorder = region.recorder().map(Recorder::events);
    assert_eq!(
        recorder,
        Some(vec![
            Event::Store { at: 64, word: 5 },
            Event::Data {
                at: 0,
                word: 0x0101_0101_0707_0707
            },
            Event::Data {
                at: 8,
                word: 0x0707_0707_0101_0101
            },
            Event::WriteBack { line: 0 },
            Event::WriteBack { line: 1 },
            Event::Fence,
        ])
    );
}

#[test]
fn reads_of_a_recorded_region_are_known() {
    let region = Region::recorded(vec![0; 256]);
    let read = || -> Vec<u64> {
        let recorder = region.recorder();
        let was_read = |word: &u64| recorder.is_some_and(|recorder| recorder.was_read(word * 8));
        (0..100).filter(was_read).collect()
    };
    assert_eq!(read(), []);
    let _ = region.load(8);
    region.read(30, &mut [0; 12]);
    region.read(64, &mut []);
    region.read(67, &mut []);
    region.read(256, &mut []);
    // Merged with the rest of its word.
    region.write_data(131, &[1]);
    region.store(200, 1);
    assert_eq!(read(), [1, 3, 4, 5, 16]);
    if let Some(recorder) = region.recorder() {
        recorder.forget_reads();
    }
    assert_eq!(read(), []);
}

#[test]
fn a_restarted_recorder_starts_from_the_current_content() {
    let region = Region::recorded(vec![0; 64]);
    region.store(0, 3);
    region.restart_recorder();
    region.store(8, 4);
    let trace = region.recorder().map(Recorder::trace);
    let found = trace.map(|trace| (trace.base().to_vec(), trace.events().to_vec()));
    let events = vec![Event::Store { at: 8, word: 4 }];
    assert_eq!(found, Some((vec![3, 0, 0, 0, 0, 0, 0, 0], events)));
}

#[test]
fn sizes_are_rounded_up_to_lines() {
    for (bytes, rounded) in [(0, 64), (1, 64), (64, 64), (65, 128), (4 << 20, 4 << 20)] {
        let region = Region::anonymous(bytes);
        assert_eq!(region.len(), rounded);
        assert_eq!(region.load(rounded - 8), 0);
    }
    assert_eq!(
        Region::with_words(&[1, 2]).content()[..9],
        [1, 0, 0, 0, 0, 0, 0, 0, 2]
    );
    assert_eq!(
        Region::with_content(&[9; 65]).content()[60..70],
        [9, 9, 9, 9, 9, 0, 0, 0, 0, 0]
    );
}

fn panics(attempt: impl FnOnce(&Region) + std::panic::UnwindSafe) -> bool {
    let attempt = || attempt(&Region::anonymous(128));
    std::panic::catch_unwind(attempt).is_err()
}

#[test]
fn accesses_out_of_bounds_panic() {
    assert!(panics(|region| assert_eq!(region.load(128), 0)));
    assert!(panics(|region| assert_eq!(region.load(4), 0)));
    assert!(panics(|region| assert_eq!(region.load(u64::MAX - 7), 0)));
    assert!(panics(|region| region.store(128, 0)));
    assert!(panics(|region| region.read(121, &mut [0; 8])));
    assert!(panics(|region| region.read(u64::MAX, &mut [0; 8])));
    assert!(panics(|region| region.write_data(127, &[0; 2])));
    assert!(panics(|region| region.zero_data(1, u64::MAX)));
    assert!(panics(|region| region.write_back(64, 65)));
    assert!(!panics(|region| region.write_back(128, 0)));
    assert!(!panics(|region| region.write_data(128, &[])));
}

const ROUNDS: u64 = if cfg!(miri) { 5 } else { 2000 };

#[test]
fn the_order_of_events_is_the_order_of_stores() {
    let region = Region::recorded(vec![0; 128]);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let region = &region;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let word = round << 8 | thread;
                    region.store(round % 4 * 8, word);
                    region.write_data(64, &word.to_le_bytes());
                    region.write_back(0, 64);
                    region.fence();
                }
            });
        }
    });
    let events = region.recorder().map(Recorder::events).unwrap_or_default();
    assert_eq!(events.len() as u64, 4 * 4 * ROUNDS);
    let mut words = [0; 16];
    for event in events {
        if let Event::Store { at, word } | Event::Data { at, word } = event {
            words[(at / 8) as usize] = word;
        }
    }
    assert_eq!(region.content(), Region::with_words(&words).content());
}

#[test]
fn racing_threads_see_whole_words_and_everything_fenced_before_a_store() {
    const DATA: usize = 4096;
    const FLAG: u64 = DATA as u64;
    let region = Region::anonymous(FLAG + 64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                // The same in each quarter of each word.
                let word = (round * 0x0001_0001_0001_0001).to_le_bytes();
                region.write_data(0, &word.repeat(DATA / 8));
                region.fence();
                region.store(FLAG, round);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut data = [0; DATA];
                let mut published = 0;
                while published < ROUNDS {
                    published = region.load(FLAG);
                    region.read(0, &mut data);
                    let (words, _) = data.as_chunks::<8>();
                    for word in words.iter().map(|word| u64::from_le_bytes(*word)) {
                        let round = word & 0xffff;
                        assert_eq!(word, round * 0x0001_0001_0001_0001, "torn");
                        assert!(round >= published, "{round} after {published}");
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
}
