//! The workloads against a server that is right, and against servers that are wrong in one point each.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::fake::{Fake, Fault};

fn run(fake: &Fake, clients: u32) -> Run {
    Run {
        export: fake.mount(),
        clients,
        server_pid: Some(std::process::id()),
        window: 4,
    }
}

fn wrong_by<T>(fault: Fault, load: impl FnOnce(&Run) -> Result<T, Failure>) -> String {
    let fake = Fake::start(fault);
    match load(&run(&fake, 1)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_client_does_its_share_and_every_operation_has_a_latency() {
    let fake = Fake::start(Fault::None);
    let run = run(&fake, 3);
    assert_eq!([0, 1, 2].map(|client| run.share(client, 8)), [3, 3, 2]);
    for commit in [false, true] {
        let figures = smallfile(&run, 8, commit).unwrap();
        assert_eq!(figures.operations, 8);
        assert!(figures.seconds > 0.0 && figures.server_cpu.is_some());
    }
    assert_eq!(metadata(&run, 70).unwrap().operations, 70);
    let figures = sequential(&run, 3).unwrap();
    assert_eq!((figures.bytes, figures.operations), (3 << 20, 48));
    assert_eq!(random(&run, 3, 20).unwrap().operations, 20);
    assert_eq!(lookup(&run, 30, 50).unwrap().operations, 50);
}

#[test]
fn a_large_file_is_written_whole_also_when_each_write_is_done_in_part() {
    let fake = Fake::start(Fault::None);
    let run = run(&fake, 2);
    let figures = largefile(&run, 5, false).unwrap();
    assert_eq!((figures.bytes, figures.operations), (5 << 20, 80));
    largefile(&run, 5, true).unwrap();
    fake.writes_at_most(50_000);
    assert_eq!(largefile(&run, 4, true).unwrap().operations, 128);
}

#[test]
fn a_directory_is_shown_in_tenths_and_left_empty() {
    let fake = Fake::start(Fault::None);
    let lines = directory(&run(&fake, 1), 100).unwrap();
    for name in [
        "create-1-seconds",
        "lookup-10-per-second",
        "list-operations",
        "remove-10-latency-p50-us",
    ] {
        assert!(lines.contains(name), "{name} in {lines}");
    }
    assert!(lines.contains("remove-5-operations 10."), "{lines}");
}

#[test]
fn bytes_that_come_back_differently_are_reported() {
    let fault = Fault::ChangesAByte;
    assert!(wrong_by(fault, |run| smallfile(run, 1, false)).contains("other bytes"));
    assert!(wrong_by(fault, |run| largefile(run, 1, false)).contains("byte at 65535"));
    assert!(wrong_by(fault, |run| sequential(run, 1)).contains("byte at 65535"));
    assert!(wrong_by(fault, |run| random(run, 1, 1)).contains("is not the one"));
    steadfast_testkit::caught_in("nfs_server", &fault);
}

#[test]
fn a_lookup_that_finds_another_file_is_reported() {
    assert!(
        wrong_by(Fault::FindsAnotherFile, |run| lookup(run, 50, 50))
            .contains("finds a file of mode")
    );
    assert!(
        wrong_by(Fault::FindsAnotherFile, |run| directory(run, 50))
            .contains("finds a file of mode")
    );
    steadfast_testkit::caught("nfs_server.finds_another_file");
}

#[test]
fn a_stable_write_that_is_answered_as_unstable_is_reported() {
    let error = wrong_by(Fault::AdmitsItIsNotStable, |run| smallfile(run, 1, false));
    assert!(
        error.contains("FILE_SYNC is answered with UNSTABLE"),
        "{error}"
    );
    steadfast_testkit::caught("nfs_server.admits_it_is_not_stable");
}

#[test]
fn an_error_of_a_procedure_is_reported_by_its_name() {
    let fake = Fake::start(Fault::None);
    let mut client = Client::connect(&run(&fake, 1).export.target).unwrap();
    let error = client.remove(&fake.mount().root, "nothing").unwrap_err();
    assert_eq!(error.to_string(), "nothing: NFS3ERR_NOENT");
}

#[test]
fn a_lone_call_is_measured_beside_its_echo() {
    let fake = Fake::start(Fault::None);
    let lines = idle(&run(&fake, 1), 20).unwrap();
    for name in [
        "call-latency-p50-us ",
        "echo-latency-p50-us ",
        "above-echo-us ",
    ] {
        let values = lines.lines().filter_map(|line| line.strip_prefix(name));
        let values: Vec<f64> = values.map(|value| value.parse().unwrap()).collect();
        assert_eq!(values.len(), 1, "{lines}");
    }
}
