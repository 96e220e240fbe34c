//! Tests of internal states: closed transactions that no thread drives, flushes under way, operations at the gate.
#![allow(clippy::unwrap_used)]

use super::HOLD_KEYS_MAX;
use crate::core::Core;
use crate::engine::Inner;
use crate::{Client, Config, Credits, Faults, Journal, Kind, Op, Region, Result, StreamId, Ticket};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use steadfast_block::{BlockNo, MemDevice};

const META: u64 = 1026;

fn journal(faults: Faults) -> Journal {
    let region = Region {
        headers: [BlockNo(0), BlockNo(1)],
        log: BlockNo(2),
        log_blocks: 1024,
    };
    let device = Arc::new(MemDevice::new(META + 600));
    Journal::format(&*device, &region, &[3; 16]).unwrap();
    let config = Config::new(region, [3; 16]).without_workers();
    let config = config.with(|config| config.faults = faults);
    Journal::open(device, config).unwrap().0
}

/// Writes `blocks` whole blocks of the log.
fn fill(journal: &Journal, stream: u32, at: u64, blocks: u64) {
    for at in at..at + blocks {
        let credits = Credits {
            log_bytes: 4200,
            data_blocks: 0,
        };
        let mut op = journal.begin(StreamId(stream), credits).unwrap();
        op.zero(BlockNo(at), Kind::Data).unwrap();
        op.write(BlockNo(at), Kind::Data, 0, &[7; 4096]).unwrap();
        let _ = op.commit();
    }
}

/// Closes a stream's transaction, and leaves its commit to others.
fn close(journal: &Journal, stream: u32) {
    let of = |core: &mut Core| core.concerned(&[StreamId(stream)], &[]);
    journal.inner().close(of).unwrap();
}

/// A checkpoint's writes may complete while a commit's flush is under way, which then says
/// nothing of them: a thread that waits for others' flushes waits for one that begins later.
#[test]
fn a_flush_that_began_before_the_writes_were_complete_does_not_count() {
    let journal = journal(Faults::default());
    let inner: &Inner = journal.inner();
    let begun = inner.core.lock().flush_begins();
    thread::scope(|scope| {
        let rider = scope.spawn(|| inner.flush_with_others());
        while inner.core.lock().waiters == 0 && !rider.is_finished() {
            thread::yield_now();
        }
        let mut core = inner.core.lock();
        core.flush_ends(begun);
        core.flushed(begun);
        inner.unlock(core);
        rider.join().unwrap().unwrap();
    });
    assert_eq!(journal.stats().flushes, 1, "a flush of its own was needed");
}

/// A mebibyte of another stream is closed: how much of the log a small sync takes, and how many of them leave it there.
fn small_syncs(faults: Faults) -> (u64, u64) {
    let journal = journal(faults);
    fill(&journal, 1, META, 200);
    close(&journal, 1);
    let syncs = |n: u64| {
        fill(&journal, 2, META + 300 + n, 1);
        journal.sync_stream(StreamId(2)).unwrap();
    };
    syncs(0);
    let small = journal.stats().log_blocks;
    let mut without = 0;
    while journal.stats().log_blocks < 200 {
        without += 1;
        syncs(without);
    }
    (small, without)
}

#[test]
fn a_small_sync_does_not_carry_the_masses_of_another_stream_but_does_not_leave_them_for_ever() {
    let (small, without) = small_syncs(Faults::default());
    assert!(small <= 2, "a sync of one block took {small} of the log");
    assert_eq!(without, 8);
    let carry_all = Faults {
        carry_all: true,
        ..Faults::default()
    };
    assert!(small_syncs(carry_all).0 > 200, "the planted fault shows");
    steadfast_testkit::caught_in("journal", &carry_all);
}

#[test]
fn small_commits_of_others_ride_along() {
    let journal = journal(Faults::default());
    for stream in 2..30 {
        fill(&journal, stream, META + u64::from(stream), 1);
        close(&journal, stream);
    }
    fill(&journal, 1, META, 1);
    journal.sync_stream(StreamId(1)).unwrap();
    assert_eq!((journal.usage().2, journal.stats().commits), (0, 1));
}

#[test]
fn a_small_sync_takes_along_the_masses_that_it_depends_on() {
    let journal = journal(Faults::default());
    fill(&journal, 1, META, 200);
    close(&journal, 1);
    // The same block: it comes after them.
    let credits = Credits {
        log_bytes: 100,
        data_blocks: 0,
    };
    let mut op = journal.begin(StreamId(2), credits).unwrap();
    op.write(BlockNo(META), Kind::Data, 5, &[1]).unwrap();
    let _ = op.commit();
    journal.sync_stream(StreamId(2)).unwrap();
    assert_eq!((journal.usage().2, journal.stats().commits), (0, 1));
}

/// Counts its calls; a call begins an operation of another stream, and the next one waits for its end.
#[derive(Default)]
struct Patient {
    calls: Mutex<Vec<usize>>,
    journal: OnceLock<Journal>,
    passed: Mutex<Option<mpsc::Receiver<()>>>,
}

impl Client for Patient {
    fn close(&self, op: Op<'_>, keys: &[u64]) -> Result<Ticket> {
        self.calls.lock().unwrap().push(keys.len());
        let mut passed = self.passed.lock().unwrap();
        if let Some(passed) = passed.take() {
            passed.recv().unwrap();
        }
        let journal = self.journal.get().unwrap().clone();
        let (done, receiver) = mpsc::channel();
        *passed = Some(receiver);
        let other = journal.clone();
        thread::spawn(move || {
            fill(&other, 2, META + 9, 1);
            let _ = done.send(());
        });
        while journal.inner().core.lock().held_back == 0 {
            thread::yield_now();
        }
        Ok(op.commit())
    }

    fn released(&self, _: &[(BlockNo, u64)]) {}
}

#[test]
fn between_two_holds_those_that_were_held_back_go_on() {
    let journal = journal(Faults::default());
    let patient = Arc::new(Patient::default());
    patient.journal.set(journal.clone()).unwrap_or_default();
    let client: Arc<dyn Client> = patient.clone();
    journal.set_client(Arc::downgrade(&client));
    let keys = 2 * HOLD_KEYS_MAX + 7;
    let credits = Credits {
        log_bytes: 100,
        data_blocks: 0,
    };
    for key in 0..keys {
        let mut op = journal.begin(StreamId(1), credits).unwrap();
        op.attach(
            key as u64,
            Credits {
                log_bytes: 64,
                ..credits
            },
        )
        .unwrap();
        let _ = op.commit();
    }
    journal.sync_stream(StreamId(1)).unwrap();
    let calls = patient.calls.lock().unwrap().clone();
    assert_eq!(calls, [HOLD_KEYS_MAX, HOLD_KEYS_MAX, 7]);
    assert_eq!(journal.stats().largest_hold, HOLD_KEYS_MAX as u64);
    let last = patient.passed.lock().unwrap().take();
    last.unwrap().recv().unwrap();
    drop(client);
}
