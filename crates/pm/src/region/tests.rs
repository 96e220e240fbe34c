//! Regions of plain memory.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Store(u64, u64),
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
            Step::Store(at, word) => {
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
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 500 }))]

    #[test]
    fn a_region_holds_what_was_stored_recorded_or_not(
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
fn the_thread_counts_what_it_does() {
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

use crate::{Counts, thread_counts};

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
