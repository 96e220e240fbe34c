//! The clients that outlive their server, against one that dies often; and against servers that forget, each of which must be
//! found out.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::fake::{Fake, Fault};
use std::path::PathBuf;
use std::sync::Arc;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("steadfast-nfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Three clients at work for a second, while the server dies every few milliseconds.
fn run_and_kill(fake: &Arc<Fake>, record: &Scratch) -> Result<Statistics, Failure> {
    let running = Arc::new(AtomicBool::new(true));
    let killer = thread::spawn({
        let (fake, running) = (Arc::clone(fake), Arc::clone(&running));
        move || {
            while running.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(30));
                fake.restart();
            }
        }
    });
    let outcome = run(&fake.mount(), 3, 7, Duration::from_secs(1), &record.0);
    running.store(false, Ordering::Relaxed);
    killer.join().unwrap();
    outcome
}

#[test]
fn clients_go_on_over_many_deaths_of_a_server_that_keeps_its_word() {
    let fake = Arc::new(Fake::start(Fault::None));
    let record = Scratch::new("right");
    let statistics = run_and_kill(&fake, &record).unwrap();
    assert!(statistics.reconnections > 3, "{}", statistics.lines());
    assert!(
        statistics.resent_calls > 0 && statistics.rewritten_pieces > 0,
        "{}",
        statistics.lines()
    );
    fake.restart();
    let verified = verify(&fake.mount(), &record.0).unwrap();
    assert!(verified.compared_files > 0 && verified.compared_directories == 3);
}

#[test]
fn a_server_that_forgets_stable_writes_is_found_out() {
    let fake = Arc::new(Fake::start(Fault::ForgetsStableWrites));
    let error = run_and_kill(&fake, &Scratch::new("stable")).err().unwrap();
    assert!(error.to_string().starts_with("client "), "{error}");
}

#[test]
fn a_server_whose_verifier_stays_the_same_is_found_out() {
    let fake = Arc::new(Fake::start(Fault::KeepsItsVerifier));
    run_and_kill(&fake, &Scratch::new("verifier"))
        .err()
        .unwrap();
}

#[test]
fn a_server_that_forgets_removals_is_found_out() {
    let fake = Arc::new(Fake::start(Fault::ForgetsRemovals));
    let error = run_and_kill(&fake, &Scratch::new("removals"))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("is there, and was removed"),
        "{error}"
    );
}

#[test]
fn what_is_lost_after_the_clients_have_gone_is_found_by_the_record() {
    let fake = Fake::start(Fault::ForgetsStableWrites);
    let record = Scratch::new("record");
    run(&fake.mount(), 2, 1, Duration::from_millis(300), &record.0).unwrap();
    verify(&fake.mount(), &record.0).unwrap();
    fake.restart();
    verify(&fake.mount(), &record.0).err().unwrap();
}
