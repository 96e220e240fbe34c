//! `flush=cache` through the program: a directory as the store, a file as the cache, a killed server, a take-over.
#![cfg(feature = "store")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::Write;

use crate::place;

use place::Place;

impl Place {
    fn synced(&self, name: &str) {
        let mut file = fs::File::create(self.at("mnt").join(name)).unwrap();
        file.write_all(name.as_bytes()).unwrap();
        file.sync_all().unwrap();
    }

    /// Nothing reaches the store until it is back: a file takes its place.
    fn store_goes_away(&self) {
        fs::rename(self.at("store"), self.at("away")).unwrap();
        fs::write(self.at("store"), "").unwrap();
    }

    fn store_comes_back(&self) {
        fs::remove_file(self.at("store")).unwrap();
        fs::rename(self.at("away"), self.at("store")).unwrap();
    }

    /// A server writes files, of which only the cache has the second one, and is killed.
    fn dies_with_a_tail(&self, url: &str, names: [&str; 2]) {
        let mut server = self.serve(url, "mnt", CACHED);
        self.synced(names[0]);
        self.must(&["sync", "--store", "mnt"]);
        self.store_goes_away();
        self.synced(names[1]);
        let stat = self.must(&["stat", "--json", "mnt"]);
        assert!(!stat.contains("\"store_lag_flushes_now\": 0"), "{stat}");
        server.kill().unwrap();
        server.wait().unwrap();
        let _ = self.run(&["umount", "mnt"]);
        self.store_comes_back();
    }
}

const CACHED: &str = "cache=./cache,cache_size=64M,flush=cache,lag=60s";

#[test]
fn what_only_the_cache_has_is_sent_by_the_next_mount_with_it() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "1G", "--on", &url, "--flush", "cache"]);
    let info = place.must(&["store", "info", &url]);
    assert!(info.contains("flush:      cache"), "{info}");
    place.must_refuse(
        &["mount", "-o", "flush=cache", &url, "mnt"],
        "needs a cache device",
    );
    place.dies_with_a_tail(&url, ["stored", "cached"]);
    // It cannot be a cache of reads: it holds flushes.
    place.must_refuse(
        &["mount", "-o", "cache=./cache", &url, "mnt"],
        "give 'flush=cache'",
    );
    place.must_refuse(&["mount", &url, "mnt"], "kept flushes on the cache");
    let said = place.must(&["mount", "-o", CACHED, &url, "mnt"]);
    assert!(said.contains("that the store lacks"), "{said}");
    for name in ["stored", "cached"] {
        assert_eq!(
            fs::read_to_string(place.at("mnt").join(name)).unwrap(),
            name
        );
    }
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", &url]);
    place.must_refuse(
        &[
            "store",
            "salvage",
            "--cache",
            "cache",
            &url,
            &place.url("saved"),
        ],
        "holds no flushes",
    );
}

#[test]
fn flushes_of_a_deposed_machine_are_saved_in_a_clone() {
    let Some(place) = Place::new() else { return };
    let url = place.url("store");
    place.must(&["mkfs", "--size", "1G", "--on", &url, "--flush", "cache"]);
    place.dies_with_a_tail(&url, ["stored", "cached"]);
    // Another machine goes on without the cache.
    place.must(&["mount", "-o", "take_over", &url, "mnt"]);
    assert!(place.at("mnt/stored").exists() && !place.at("mnt/cached").exists());
    place.synced("other");
    place.must(&["umount", "mnt"]);
    place.must_refuse(&["mount", "-o", CACHED, &url, "mnt"], "nothing is mixed");
    let saved = place.url("saved");
    let said = place.must(&["store", "salvage", "--cache", "cache", &url, &saved]);
    assert!(said.contains("after-term-"), "{said}");
    place.must(&["mount", &saved, "mnt"]);
    assert_eq!(
        fs::read_to_string(place.at("mnt/cached")).unwrap(),
        "cached"
    );
    assert!(!place.at("mnt/other").exists());
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", &saved]);
    // The cache is free again, and the volume is what the other machine left.
    place.must(&["mount", "-o", CACHED, &url, "mnt"]);
    assert!(place.at("mnt/other").exists() && !place.at("mnt/cached").exists());
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", &url]);
    let checked = place.must(&["store", "check", &url]);
    assert!(checked.contains("clean"), "{checked}");
}
