//! The threads of an idle cached disk sleep. This is a separate program because it checks all threads of the process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use object_store::memory::InMemory;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, MemDevice};
use steadfast_store::{CacheOptions, CreateOptions, create_with};
use support::{Client, options};

/// Number of times that the threads of the cache went to sleep.
fn sleeps() -> u64 {
    let of = |task: &Path| {
        let name = std::fs::read_to_string(task.join("comm")).ok()?;
        let status = std::fs::read_to_string(task.join("status")).ok()?;
        let count = |line: &str| {
            line.strip_prefix("voluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        };
        let count: Option<u64> = status.lines().find_map(count);
        count.filter(|_| name.starts_with("store-cache"))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| of(&task.unwrap().path())).sum()
}

/// The threads checked the clock fifty times a second, even when there was nothing to send.
#[test]
fn an_idle_disk_wakes_no_thread() {
    let store = Arc::new(InMemory::new());
    let contract = CreateOptions {
        flush_cache: true,
        ..CreateOptions::default()
    };
    let place = Client::of(&store).location("v");
    create_with(place, 1 << 12, &contract, Duration::from_secs(5)).unwrap();
    let cache: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(514));
    let cache = CacheOptions::new(cache, "/dev/cache");
    let client = Client::of(&store);
    let disk = client.volume().open_cached(&options(), &cache).unwrap();
    disk.write(BlockNo(1), &[&[1; BLOCK_SIZE]]).unwrap();
    disk.flush().unwrap();
    disk.wait_for_store().unwrap();
    assert!(sleeps() > 0, "there are no such threads");
    // The threads soon have nothing to do; on a busy machine it takes a while.
    let rests = |_| {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(200));
        sleeps() == before
    };
    assert!((0..100).any(rests), "the threads never rest");
}
