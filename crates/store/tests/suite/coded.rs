//! Compressed and encrypted volumes: reads return the written blocks, the store sees no plaintext, tampering is refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_store::{
    Access, Compression, CreateOptions, DeviceFault, Features, Found, KeyFile, KeyFileError,
    OpenError, OpenOptions, StoreDevice, create, create_with,
};
use support::{Client, Random, get, key_file, names, options, put, wait};

const BLOCKS: u64 = 1 << 14;
const PATIENCE: Duration = Duration::from_secs(5);
/// A text in every block and in the name of a snapshot.
const SECRET: &[u8] = b"nobody shall read this";

fn coded(zstd: bool, key: Option<KeyFile>, unit_blocks: Option<u16>) -> CreateOptions {
    CreateOptions {
        compression: zstd.then_some(Compression::Zstd),
        key,
        unit_blocks,
        flush_cache: false,
    }
}

fn block(at: u64, round: u64) -> Vec<u8> {
    // Half of a block does not compress.
    let mut random = Random(at * 1000 + round);
    let mut bytes: Vec<u8> = (0..BLOCK_SIZE / 2)
        .map(|_| random.below(256) as u8)
        .collect();
    bytes.extend(SECRET.iter().cycle().take(BLOCK_SIZE / 2));
    bytes
}

/// Writes runs of several lengths, large ones in objects of their own. Adds the contents of each block to `model`.
fn fill(disk: &StoreDevice, model: &mut HashMap<u64, u64>, round: u64) {
    for (first, count) in [(0, 1), (7, 3), (100, 40), (1000, 2100), (5000, 300)] {
        let first = first + round * 11;
        let bytes: Vec<u8> = (first..first + count)
            .flat_map(|at| block(at, round))
            .collect();
        disk.write(BlockNo(first), &[&bytes]).unwrap();
        // Objects that have not landed are read, too.
        compare(disk, &HashMap::from([(first, round)]));
        disk.flush().unwrap();
        model.extend((first..first + count).map(|at| (at, round)));
    }
}

fn compare(disk: &StoreDevice, model: &HashMap<u64, u64>) {
    let mut buf = vec![0; BLOCK_SIZE];
    for (at, round) in model {
        disk.read(BlockNo(*at), &mut buf).unwrap();
        assert!(buf == block(*at, *round), "block {at}");
    }
}

/// A volume `v` with a snapshot and two rounds of writes; and the contents of the snapshot and of the volume.
fn volume(
    store: &Arc<InMemory>,
    coded: &CreateOptions,
) -> (Arc<Client>, HashMap<u64, u64>, HashMap<u64, u64>) {
    let client = Client::of(store);
    client.key.lock().unwrap().clone_from(&coded.key);
    create_with(client.location("v"), BLOCKS, coded, PATIENCE).unwrap();
    let mut model = HashMap::new();
    let disk = client.volume().open(&options()).unwrap();
    fill(&disk, &mut model, 1);
    disk.release().unwrap();
    drop(disk);
    let name = String::from_utf8_lossy(SECRET);
    client.volume().make_snapshot(&name).unwrap();
    let kept = model.clone();
    let disk = client.volume().open(&options()).unwrap();
    compare(&disk, &model);
    fill(&disk, &mut model, 2);
    disk.checkpoint().unwrap();
    fill(&disk, &mut model, 3);
    (client, kept, model)
}

#[test]
fn every_coding_returns_the_written_blocks() {
    for (zstd, encrypted, unit) in [
        (true, false, None),
        (false, true, None),
        (true, true, Some(1)),
        (true, true, Some(64)),
        (false, false, Some(4)),
    ] {
        let store = Arc::new(InMemory::new());
        let coded = coded(zstd, encrypted.then(|| key_file(1)), unit);
        let (client, kept, model) = volume(&store, &coded);
        let found = client.volume();
        let expected = Features {
            compression: coded.compression,
            encrypted,
            unit_blocks: unit.unwrap_or(16),
            flush_cache: false,
        };
        assert_eq!(found.object().features, expected);
        // Replay, then checkpoint, collection and a look.
        let disk = found.open(&options()).unwrap();
        compare(&disk, &model);
        disk.collect(95).unwrap();
        compare(&disk, &model);
        disk.release().unwrap();
        drop(disk);
        compare(&found.look(&options()).unwrap(), &model);
        let name = String::from_utf8_lossy(SECRET);
        compare(&found.look_at(&name, &options()).unwrap(), &kept);
        let checked = found.check(&mut |_, _| {}).unwrap();
        assert_eq!(checked.findings, [], "{expected:?}");
        // A clone has the same features and key; its key file is its own.
        let place = client.location("w");
        let other = encrypted.then(|| key_file(2));
        found
            .clone_to(&name, place, other.as_ref(), PATIENCE)
            .unwrap();
        let access = Access {
            key: other,
            ..Access::default()
        };
        let parents = [client.location("v")];
        let clone = Found::with_parents(client.location("w"), &access, &parents, PATIENCE);
        let clone = clone.unwrap();
        let disk = clone.open(&options()).unwrap();
        let mut model = kept.clone();
        compare(&disk, &model);
        fill(&disk, &mut model, 4);
        compare(&disk, &model);
        drop(disk);
        assert_eq!(clone.check(&mut |_, _| {}).unwrap().findings, []);
        let usage = client.volume().usage().unwrap();
        if zstd && unit != Some(1) {
            assert!(usage.object_bytes < usage.held_bytes * 7 / 10, "{usage:?}");
        }
    }
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

#[test]
fn a_store_sees_nothing_of_an_encrypted_volume() {
    for (key, zstd) in [
        (Some(key_file(1)), false),
        (Some(key_file(1)), true),
        (None, false),
    ] {
        let store = Arc::new(InMemory::new());
        let encrypted = key.is_some();
        let (client, ..) = volume(&store, &coded(zstd, key, None));
        let disk = client.volume().open(&options()).unwrap();
        disk.collect(95).unwrap();
        drop(disk);
        let listed = names(&store);
        assert!(listed.len() > 15, "{listed:?}");
        let seen = listed
            .iter()
            .filter(|name| holds(&get(&store, name), SECRET));
        // In a volume without a key, the same search finds blocks and the snapshot's name: so the search works.
        assert_eq!(seen.count() == 0, encrypted);
    }
}

/// The offsets of all cells of an encrypted volume's objects, with their salts: they determine key and nonce.
fn nonces(store: &Arc<InMemory>) -> Vec<([u8; 16], u32)> {
    let mut found = Vec::new();
    for name in names(store) {
        let bytes = get(store, &name);
        let u32_at = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word) as usize
        };
        let mut at = match &name[2..5] {
            "log" if bytes[128] == 1 => 136,
            "dat" | "map" | "roo" => 128,
            _ => continue,
        };
        while at < bytes.len() {
            let mut salt = [0; 16];
            salt.copy_from_slice(&bytes[at + 48..at + 64]);
            found.push((salt, at as u32));
            at += 64 + u32_at(at + 28);
        }
        assert_eq!(at, bytes.len(), "{name}");
    }
    found
}

/// Two runs of a machine; the second one starts with a copy of the first one's memory.
fn repeated_nonces(fault: Option<DeviceFault>) -> usize {
    let store = Arc::new(InMemory::new());
    let client = Client::with_key(&store, key_file(1));
    create_with(
        client.location("v"),
        BLOCKS,
        &coded(true, Some(key_file(1)), None),
        PATIENCE,
    )
    .unwrap();
    for round in 0..2 {
        let options = OpenOptions {
            faults: (fault, Default::default()),
            ..options()
        };
        let disk = client.volume().open(&options).unwrap();
        fill(&disk, &mut HashMap::new(), round);
        disk.collect(95).unwrap();
        drop(disk);
    }
    client.volume().make_snapshot("one").unwrap();
    let nonces = nonces(&store);
    assert!(nonces.len() > 150, "{} cells", nonces.len());
    let different: HashSet<_> = nonces.iter().collect();
    nonces.len() - different.len()
}

#[test]
fn no_nonce_is_used_twice_with_a_key() {
    assert_eq!(repeated_nonces(None), 0);
    assert!(repeated_nonces(Some(DeviceFault::SaltsCounted)) > 0);
    steadfast_testkit::caught("store.salts_counted");
}

#[test]
fn wrong_missing_and_needless_keys_give_different_errors() {
    let store = Arc::new(InMemory::new());
    let (client, _, model) = volume(&store, &coded(false, Some(key_file(1)), None));
    let with = |key: Option<KeyFile>| {
        client.key.lock().unwrap().clone_from(&key);
        client.find("v")
    };
    assert!(matches!(with(None), Err(OpenError::KeyNeeded(_))));
    assert!(matches!(
        with(Some(key_file(2))),
        Err(OpenError::WrongKey(_))
    ));
    let found = with(Some(key_file(1))).unwrap();
    // Another key file: the old one no longer opens the volume, and nothing else was written.
    let before = names(&store).len();
    found.rekey(&key_file(2), PATIENCE).unwrap();
    assert_eq!(names(&store).len(), before);
    assert!(matches!(
        with(Some(key_file(1))),
        Err(OpenError::WrongKey(_))
    ));
    let found = with(Some(key_file(2))).unwrap();
    compare(&found.open(&options()).unwrap(), &model);
    create(client.location("plain"), BLOCKS, PATIENCE).unwrap();
    assert!(matches!(
        client.find("plain"),
        Err(OpenError::NotEncrypted(_))
    ));
    client.key.lock().unwrap().take();
    let plain = client.find("plain").unwrap();
    assert!(matches!(
        plain.rekey(&key_file(1), PATIENCE),
        Err(OpenError::NotEncrypted(_))
    ));
    assert!(matches!(KeyFile::new(b"short"), Err(KeyFileError::Size(5))));
    let long = vec![0; (1 << 20) + 1];
    assert!(matches!(KeyFile::new(&long), Err(KeyFileError::Size(_))));
}

/// Any change of an object is refused: a flipped bit, a cut, a deletion, or another object of the same volume.
#[test]
fn tampered_and_swapped_objects_are_refused() {
    let store = Arc::new(InMemory::new());
    let (client, _, _) = volume(&store, &coded(true, Some(key_file(1)), None));
    client.volume().open(&options()).unwrap().release().unwrap();
    let whole: Vec<(String, Vec<u8>)> = names(&store)
        .into_iter()
        .map(|name| (name.clone(), get(&store, &name)))
        .collect();
    let access = Access {
        key: Some(key_file(1)),
        ..Access::default()
    };
    // Whether opening or checking the volume fails.
    let finds = || {
        let patience = Duration::from_millis(50);
        let found = Found::new(client.location("v"), &access, patience);
        let checked = found.and_then(|found| found.check(&mut |_, _| {}));
        checked.map_or(true, |checked| !checked.findings.is_empty())
    };
    assert!(!finds());
    // A check does not read objects that nothing needs.
    let needed: Vec<_> = whole
        .iter()
        .filter(|(name, bytes)| {
            wait(store.delete(&Path::from(name.as_str()))).unwrap();
            let needed = finds();
            put(&store, name, bytes);
            needed
        })
        .collect();
    assert!(needed.len() > 8, "{} of {}", needed.len(), whole.len());
    for (number, (name, bytes)) in needed.iter().enumerate() {
        for at in [0, 70, 100, 140, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            put(&store, name, &flipped);
            assert!(finds(), "{name}, flipped at {at}");
        }
        put(&store, name, &bytes[..bytes.len() - 1]);
        assert!(finds(), "{name}, cut");
        for step in [1, 2, 5] {
            let (other, others) = needed[(number + step) % needed.len()];
            put(&store, name, others);
            assert!(finds(), "{other} instead of {name}");
        }
        put(&store, name, bytes);
    }
    assert!(!finds());
}

/// A plain volume in the place of an encrypted one, and a changed object `volume`, are detected.
#[test]
fn the_object_volume_cannot_be_changed_without_the_key() {
    let store = Arc::new(InMemory::new());
    let (client, ..) = volume(&store, &coded(false, Some(key_file(1)), None));
    // The same volume, twice as large: the hash of `volume` needs no key.
    let larger = Arc::new(InMemory::new());
    let other = Client::with_key(&larger, key_file(1));
    let options = coded(false, Some(key_file(1)), None);
    create_with(other.location("v"), 2 * BLOCKS, &options, PATIENCE).unwrap();
    let whole = get(&store, "v/volume");
    put(&store, "v/volume", &get(&larger, "v/volume"));
    let error = client.find("v").unwrap_err();
    assert!(matches!(error, OpenError::Store(_)), "{error}");
    put(&store, "v/key", &get(&larger, "v/key"));
    // Now `volume` and `key` fit each other, but the rest belongs to the other volume.
    assert!(client.volume().state().is_err());
    let plain = Client::of(&larger);
    create(plain.location("plain"), BLOCKS, PATIENCE).unwrap();
    put(&store, "v/volume", &get(&larger, "plain/volume"));
    assert!(matches!(client.find("v"), Err(OpenError::NotEncrypted(_))));
    put(&store, "v/volume", &whole);
}
