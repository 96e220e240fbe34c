//! Power cuts, crashes and failing syncs at every step of a writer, over the model of a file system. Afterwards, all
//! acknowledged objects, and all that another process has read, are still there.

#![allow(clippy::expect_used, reason = "tests")]

use super::directory::{Directory, Fault, FileError};
use super::model::Model;
use object_store::{PutMode, UpdateVersion};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

type Store = Directory<Model>;

/// The bytes that a store must still have under each name. `head` may be newer.
type Seen = BTreeMap<&'static str, u8>;

/// The objects that the writer makes, in order. Each further `head` is a swap.
const NAMES: [&str; 8] = [
    "head", "log/1/1", "head", "log/1/2", "data/1", "head", "log/2/3", "head",
];

fn store(model: &Model, fault: Option<Fault>) -> Store {
    let mut store = Directory::new(Path::new("/srv/v"), model.clone());
    store.fault = fault;
    store
}

/// One PUT, as a volume does it: if the outcome is unknown, the object is read back. None if the writer stops.
fn put(store: &Store, model: &Model, name: &'static str, value: u8, present: u8) -> Option<bool> {
    for _ in 0..3 {
        let mode = match name == "head" && present > 0 {
            true => PutMode::Update(UpdateVersion {
                e_tag: Some(super::tag(&[present; 3])),
                version: None,
            }),
            false => PutMode::Create,
        };
        if store.put(name, &[&[value; 3]], &mode).is_ok() {
            return Some(true);
        }
        if model.is_dead() {
            return None;
        }
        match store.get(name, None) {
            Ok(found) if found.bytes == [value; 3] => return Some(true),
            Ok(_) => {}
            Err(FileError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
    }
    Some(false)
}

/// Writes all objects. Returns the acknowledged ones.
fn write(store: &Store, model: &Model) -> Seen {
    let mut acknowledged = Seen::new();
    for (number, name) in NAMES.into_iter().enumerate() {
        let value = number as u8 + 1;
        let present = acknowledged.get("head").copied().unwrap_or(0);
        match put(store, model, name, value, present) {
            Some(true) => acknowledged.insert(name, value),
            _ => break,
        };
    }
    acknowledged
}

/// The objects that another process can read. A read fails while the lock is held.
fn read(store: &Store) -> Seen {
    let mut seen = Seen::new();
    for name in NAMES {
        if let Ok(found) = store.get(name, None)
            && let [value, ..] = found.bytes[..]
        {
            seen.insert(name, value);
        }
    }
    seen
}

/// Cuts the power in several ways. Returns the first loss from `seen`, if there is one.
fn lost(model: &Model, seen: &Seen) -> Option<String> {
    for seed in 0..10_u64 {
        // None, all or a part of the unsynced items survive.
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let after = model.cut(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            seed == 1 || seed > 1 && random.is_multiple_of(2)
        });
        let found = read(&store(&after, None));
        for (name, value) in seen {
            let now = found.get(name).copied().unwrap_or(0);
            if now < *value || now > *value && *name != "head" {
                return Some(format!("{name} is {now}, it was {value} (cut {seed})"));
            }
        }
    }
    None
}

/// Runs all trials with a fault. Returns the first loss.
fn trials(fault: Option<Fault>) -> Option<String> {
    let calm = Model::new();
    let all = write(&store(&calm, fault), &calm);
    let (steps, syncs) = calm.counts();
    if fault.is_none() {
        assert_eq!(all.values().copied().collect::<Vec<_>>(), [5, 8, 2, 4, 7]);
        assert!(steps > 60 && syncs > 20, "{steps} steps, {syncs} syncs");
    }
    let mut losses = Vec::new();
    let mut judge = |what: String, model: &Model, seen: &Seen| {
        if losses.is_empty()
            && let Some(loss) = lost(model, seen)
        {
            losses.push(format!("{what}: {loss}"));
        }
    };
    for step in 1..=steps + 1 {
        // The power fails at once; or the writer dies, another process reads, then the power fails.
        let model = Model::new();
        model.die_at(step);
        let acknowledged = write(&store(&model, fault), &model);
        judge(format!("power cut at step {step}"), &model, &acknowledged);
        let seen = read(&store(&model.other(), fault));
        judge(format!("death at step {step}"), &model, &seen);
        // Another process reads between two steps. The power fails at once, or much later.
        let model = Model::new();
        let between = Arc::new(Mutex::new(None));
        let (observer, result) = (model.other(), Arc::clone(&between));
        let look = move || {
            let seen = read(&store(&observer, fault));
            let loss = lost(&observer, &seen);
            if let Ok(mut result) = result.lock() {
                *result = Some((seen, loss));
            }
        };
        model.hook(step, Box::new(look));
        let acknowledged = write(&store(&model, fault), &model);
        judge(format!("a reader at step {step}"), &model, &acknowledged);
        let between = between.lock().ok().and_then(|mut between| between.take());
        if let Some((seen, loss)) = between {
            judge(format!("a reader at step {step}, later"), &model, &seen);
            if let Some(loss) = loss {
                judge(
                    format!("a reader at step {step}: {loss}"),
                    &model,
                    &Seen::from([("head", 99)]),
                );
            }
        }
    }
    for sync in 1..=syncs {
        let model = Model::new();
        model.fail_sync(sync);
        let acknowledged = write(&store(&model, fault), &model);
        judge(format!("sync {sync} fails"), &model, &acknowledged);
        let seen = read(&store(&model.other(), fault));
        judge(format!("sync {sync} fails, a reader"), &model, &seen);
        // Two PUTs of the same process and directory run together, and the sync of one of them fails.
        for step in 1..=steps {
            let model = Model::new();
            model.fail_sync(sync);
            let writer = Arc::new(store(&model, fault));
            let (second, done) = (Arc::clone(&writer), Arc::new(Mutex::new(false)));
            let result = Arc::clone(&done);
            let other = move || {
                let put = second.put("log/1/9", &[&[99; 3]], &PutMode::Create);
                if let Ok(mut result) = result.lock() {
                    *result = put.is_ok();
                }
            };
            model.hook(step, Box::new(other));
            let mut acknowledged = write(&writer, &model);
            // `read` reads only the names in the list; this one is read separately.
            if done.lock().is_ok_and(|done| *done) {
                let after = model.cut(|| false);
                if store(&after, None).get("log/1/9", None).is_err() {
                    acknowledged.insert("head", 99);
                }
            }
            judge(
                format!("sync {sync} fails, two at step {step}"),
                &model,
                &acknowledged,
            );
        }
    }
    losses.into_iter().next()
}

#[test]
fn acknowledged_and_read_objects_survive_cuts_crashes_and_failing_syncs_at_every_step() {
    assert_eq!(trials(None), None);
}

#[test]
fn every_planted_fault_is_found() {
    for fault in [
        Fault::FileUnsynced,
        Fault::CreateUnsynced,
        Fault::SwapUnsynced,
        Fault::ParentsUnsynced,
        Fault::MarkedEarly,
        Fault::UnsettledRead,
        Fault::SyncedAgain,
        Fault::FailureForgotten,
    ] {
        let loss = trials(Some(fault));
        assert!(loss.is_some(), "{fault:?} was not found");
        steadfast_testkit::caught_in("directory", &fault);
    }
}

/// The user sees the sticky failure, and nothing is written after it.
#[test]
fn a_process_writes_nothing_after_a_failed_sync_of_a_directory() {
    let model = Model::new();
    // The first sync is of the file.
    model.fail_sync(2);
    let store = store(&model, None);
    let put = |name| store.put(name, &[b"x"], &PutMode::Create);
    for name in ["data/1", "data/2"] {
        let error = put(name).expect_err("it is not durable");
        assert!(matches!(error, FileError::Sync(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("/srv/v/data failed: input/output error"),
            "{text}"
        );
        // Readers of the store learn that a retry is hopeless.
        let error = super::error_of(&name.into(), error);
        assert!(super::is_sync_failure(&error), "{error}");
    }
    for name in ["data/1", "data/2"] {
        assert!(matches!(store.get(name, None), Err(FileError::Sync(_))));
    }
}

/// On a real file system: reading an unsettled file, such as that of a dead writer, settles it.
#[test]
fn reading_a_file_settles_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("v");
    let store = Directory::new(&root, super::RealDisk);
    let put = store.put("log/1/1", &[b"a", b"b"], &PutMode::Create);
    put.expect("it is written");
    assert!(store.get("log/1/1", None).expect("it is there").settled);
    std::fs::write(root.join("log/1/2"), "left").expect("it is written");
    let range = object_store::GetRange::Bounded(1..3);
    let found = store.get("log/1/2", Some(&range)).expect("it is there");
    assert_eq!(
        (&found.bytes[..], found.range, found.length),
        (&b"ef"[..], 1..3, 4)
    );
    assert!(!found.settled);
    let found = store.get("log/1/2", Some(&range)).expect("it is there");
    assert_eq!((&found.bytes[..], found.settled), (&b"ef"[..], true));
    let mut names: Vec<_> = std::fs::read_dir(&root)
        .expect("a directory")
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort();
    assert_eq!(names, [".lock", "log"]);
}
