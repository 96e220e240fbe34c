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

fn load(clients: u32, milliseconds: u64) -> Load {
    Load {
        clients,
        seed: 7,
        duration: Duration::from_millis(milliseconds),
        exclusive: true,
    }
}

/// Three clients at work while the server dies every few milliseconds. A server that is wrong ends it early.
fn run_and_kill(
    fake: &Arc<Fake>,
    milliseconds: u64,
    record: &Scratch,
) -> Result<Statistics, Failure> {
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
    let outcome = run(&fake.mount(), load(3, milliseconds), &record.0);
    running.store(false, Ordering::Relaxed);
    killer.join().unwrap();
    outcome
}

#[test]
fn clients_go_on_over_many_deaths_of_a_server_that_keeps_its_word() {
    let fake = Arc::new(Fake::start(Fault::None));
    let record = Scratch::new("right");
    let statistics = run_and_kill(&fake, 1000, &record).unwrap();
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
    let error = run_and_kill(&fake, 20_000, &Scratch::new("stable"))
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("client "), "{error}");
    steadfast_testkit::caught("nfs_server.forgets_stable_writes");
}

#[test]
fn a_server_whose_verifier_stays_the_same_is_found_out() {
    let fake = Arc::new(Fake::start(Fault::KeepsItsVerifier));
    run_and_kill(&fake, 20_000, &Scratch::new("verifier"))
        .err()
        .unwrap();
    steadfast_testkit::caught("nfs_server.keeps_its_verifier");
}

#[test]
fn a_server_that_forgets_removals_is_found_out() {
    let fake = Arc::new(Fake::start(Fault::ForgetsRemovals));
    let error = run_and_kill(&fake, 20_000, &Scratch::new("removals"))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("is there, and was removed"),
        "{error}"
    );
    steadfast_testkit::caught("nfs_server.forgets_removals");
}

#[test]
fn losses_after_the_clients_have_gone_are_found_by_the_record() {
    let fake = Fake::start(Fault::None);
    let record = Scratch::new("record");
    run(&fake.mount(), load(2, 500), &record.0).unwrap();
    fake.restart();
    assert!(verify(&fake.mount(), &record.0).unwrap().compared_files > 0);
    fake.forget_names();
    let error = verify(&fake.mount(), &record.0).err().unwrap();
    assert!(error.to_string().contains("is missing"), "{error}");
}
