//! The probe refuses stores that break a rule.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_store::{
    Access, Found, Location, OpenError, OpenOptions, ProbeOptions, ProbeReport, Rule, create,
    is_url, probe,
};
use support::{Client, names, options};

const OPTIONS: ProbeOptions = ProbeOptions {
    writers: 8,
    rounds: 10,
};

fn tried(client: Client) -> ProbeReport {
    let client = Arc::new(client);
    let report = probe(&[client.location("p")], OPTIONS, &mut |_, _| {}).unwrap();
    assert_eq!(
        names(&client.store),
        [] as [String; 0],
        "it leaves nothing there"
    );
    report
}

#[test]
fn memory_and_a_directory_keep_the_rules() {
    let report = tried(Client::default());
    assert!(report.is_good(), "{:?}", report.broken);
    assert_eq!((report.rounds, report.lost_races), (10, (0, 0)));
    let dir = tempfile::tempdir().unwrap();
    let place = Location::new(
        &format!("file://{}", dir.path().display()),
        &Access::default(),
    );
    let report = probe(&[place.unwrap()], OPTIONS, &mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{:?}", report.broken);
    // The probe removes the directories that it made.
    let new = format!("file://{}/new/place", dir.path().display());
    let place = Location::new(&new, &Access::default()).unwrap();
    let report = probe(std::slice::from_ref(&place), OPTIONS, &mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{:?}", report.broken);
    assert!(!dir.path().join("new").exists());
    // A volume can still be made there.
    create(place.clone(), 5000, Duration::from_secs(5)).unwrap();
    let report = probe(&[place], OPTIONS, &mut |_, _| {}).unwrap();
    assert!(report.is_good(), "{:?}", report.broken);
    let mut left: Vec<_> = std::fs::read_dir(dir.path().join("new/place"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, [".lock", "head", "volume"]);
}

/// The store checks the condition and writes in two steps: right in sequence, wrong when writers race.
#[test]
fn a_store_whose_conditions_race_is_refused() {
    let report = tried(Client {
        racy: true,
        ..Client::default()
    });
    let rules: Vec<Rule> = report.broken.iter().map(|(rule, _)| *rule).collect();
    assert!(
        rules.contains(&Rule::CreateRace) && rules.contains(&Rule::SwapRace),
        "{rules:?}"
    );
    assert!(
        !rules.contains(&Rule::Create) && !rules.contains(&Rule::Swap),
        "{rules:?}"
    );
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let report = tried(Client {
        careless: true,
        ..Client::default()
    });
    let rules: Vec<Rule> = report.broken.iter().map(|(rule, _)| *rule).collect();
    assert!(
        rules.contains(&Rule::Create) && rules.contains(&Rule::Swap),
        "{rules:?}"
    );
}

/// A mount was refused with "a PUT of a name that is taken was answered: connection closed", because the network had cut that one
/// connection. What has no clear answer is tried again; what never has one counts.
#[test]
fn a_lost_request_is_no_broken_rule() {
    for first in 94..=99 {
        for lost in [false, true] {
            let client = Client::default();
            let every = if lost {
                &client.lose_every
            } else {
                &client.fail_every
            };
            every.store(100, SeqCst);
            client.puts.store(first, SeqCst);
            let report = tried(client);
            assert!(report.is_good(), "{first}, {lost}: {:?}", report.broken);
        }
    }
    let client = Client::default();
    client.fail_every.store(1, SeqCst);
    let report = tried(client);
    assert_eq!(report.broken.len(), 1);
    assert_eq!(report.broken[0].0, Rule::Answers);
}

/// A volume in a directory, over two runs; a check names the damage in it.
#[test]
fn a_volume_in_a_directory_is_found_again_and_damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/v", dir.path().display());
    assert!(is_url(&url));
    let place = || Location::new(&url, &Access::default()).unwrap();
    let patience = Duration::from_secs(5);
    let find = || Found::new(place(), &Access::default(), patience);
    assert!(matches!(find(), Err(OpenError::Absent(_))));
    create(place(), 5000, patience).unwrap();
    assert!(matches!(
        create(place(), 1, patience),
        Err(OpenError::Exists(_))
    ));
    let disk = find().unwrap().open(&OpenOptions::default()).unwrap();
    disk.write(BlockNo(4999), &[&[7; BLOCK_SIZE]]).unwrap();
    disk.flush().unwrap();
    // A second opening in this process, or another, is refused while the first lives.
    let second = find().unwrap().open(&OpenOptions::default());
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
    disk.release().unwrap();
    drop(disk);
    let look = find().unwrap().look(&options()).unwrap();
    let mut buf = [0; BLOCK_SIZE];
    look.read(BlockNo(4999), &mut buf).unwrap();
    assert_eq!(buf, [7; BLOCK_SIZE]);
    assert_eq!(find().unwrap().check(&mut |_, _| {}).unwrap().findings, []);
    // One byte of the slot that holds the block.
    let terms = std::fs::read_dir(dir.path().join("v/log")).unwrap();
    let slots = terms.flat_map(|term| std::fs::read_dir(term.unwrap().path()).unwrap());
    let slot = slots.map(|slot| slot.unwrap().path());
    let slot = slot
        .max_by_key(|path| path.metadata().unwrap().len())
        .unwrap();
    let mut bytes = std::fs::read(&slot).unwrap();
    bytes[3000] ^= 4;
    // Settled files cannot be written.
    std::fs::remove_file(&slot).unwrap();
    std::fs::write(&slot, &bytes).unwrap();
    let checked = find().unwrap().check(&mut |_, _| {}).unwrap();
    assert_eq!(checked.findings.len(), 1);
    assert!(checked.findings[0].what.contains("checksum"), "{checked:?}");
    let look = find().unwrap().look(&options()).unwrap();
    let error = look.read(BlockNo(4999), &mut buf).unwrap_err().to_string();
    assert!(
        error.contains("checksum") && error.contains("log/"),
        "{error}"
    );
    std::fs::remove_file(&slot).unwrap();
    let error = look.read(BlockNo(4999), &mut buf).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}

/// A sweep finds the objects of a machine that died, and leaves the seal of its term.
#[test]
fn a_sweep_finds_objects_that_nothing_names() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), 20_000, Duration::from_secs(5)).unwrap();
    let disk = client.volume().open(&options()).unwrap();
    disk.write(BlockNo(0), &[&vec![1; 2100 * BLOCK_SIZE]])
        .unwrap();
    // Its data object lands, and no slot names it.
    drop(disk);
    for _ in 0..100 {
        if names(&store).iter().any(|name| name.contains("data/")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Two terms later the first is closed, and none of its slots is needed.
    for _ in 0..2 {
        let disk = client.volume().open(&options()).unwrap();
        disk.write(BlockNo(9), &[&[2; BLOCK_SIZE]]).unwrap();
        disk.flush().unwrap();
        disk.release().unwrap();
    }
    let volume = client.volume();
    let seals = |store| {
        names(store)
            .iter()
            .filter(|name| name.contains("log/"))
            .count()
    };
    let before = seals(&store);
    let swept = volume.sweep(false).unwrap();
    assert_eq!(
        (swept.garbage, swept.deleted),
        (1, 0),
        "{:?}",
        names(&store)
    );
    assert_eq!(volume.sweep(true).unwrap().deleted, 1);
    assert_eq!(seals(&store), before);
    assert_eq!(volume.sweep(true).unwrap().garbage, 0);
    assert_eq!(volume.check(&mut |_, _| {}).unwrap().findings, []);
}
