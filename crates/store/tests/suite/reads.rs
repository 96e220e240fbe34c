//! The read cache: it survives a restart, never returns wrong blocks whatever happens to the device, and never serves another
//! volume.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, FileDevice, Geometry, MemDevice,
};
use steadfast_store::protocol::Faults;
use steadfast_store::{
    CacheOptions, CreateOptions, DeviceFault, Found, OpenError, OpenOptions, create_with,
};
use support::{Client, Random, key_file, options};

const BLOCKS: u64 = 1 << 13;

fn block(at: u64) -> Vec<u8> {
    let word = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_SIZE).collect()
}

/// A volume with its first `blocks` written, compressed and encrypted or not.
fn volume(store: &Arc<InMemory>, prefix: &str, key: Option<u8>, blocks: u64) {
    let client = Client::of(store);
    *client.key.lock().unwrap() = key.map(key_file);
    let made = CreateOptions {
        key: key.map(key_file),
        flush_cache: true,
        ..CreateOptions::default()
    };
    create_with(
        client.location(prefix),
        BLOCKS.max(blocks),
        &made,
        Duration::from_secs(5),
    )
    .unwrap();
    let disk = client.find(prefix).unwrap().open(&options()).unwrap();
    for at in 0..blocks {
        disk.write(BlockNo(at), &[&block(at)]).unwrap();
    }
    disk.flush().unwrap();
    disk.release().unwrap();
}

fn cache(device: &Arc<MemDevice>) -> CacheOptions {
    CacheOptions::new(Arc::clone(device) as Arc<dyn BlockDevice>, "the cache")
}

/// Reads these blocks through a cache, like a new process. Returns the number of GETs after the volume was open.
fn read(client: &Arc<Client>, cache: &CacheOptions, blocks: &[u64]) -> u64 {
    let found = client.volume();
    found.keep_reads(cache).unwrap();
    read_with(client, &found, blocks)
}

fn read_with(client: &Arc<Client>, found: &Found, blocks: &[u64]) -> u64 {
    read_under(None, client, found, blocks)
}

fn read_under(
    fault: Option<DeviceFault>,
    client: &Arc<Client>,
    found: &Found,
    blocks: &[u64],
) -> u64 {
    // No cache in memory: each read goes to the read cache or to the store.
    let little = OpenOptions {
        cache_bytes: 0,
        faults: (fault, Faults::default()),
        ..options()
    };
    let disk = found.look(&little).unwrap();
    let before = client.gets.load(SeqCst);
    let mut buf = vec![0; BLOCK_SIZE];
    for at in blocks {
        disk.read(BlockNo(*at), &mut buf).unwrap();
        assert!(buf == block(*at), "block {at} is wrong");
    }
    let gets = client.gets.load(SeqCst) - before;
    drop(disk);
    gets
}

fn client(store: &Arc<InMemory>, key: Option<u8>) -> Arc<Client> {
    let client = Client::of(store);
    *client.key.lock().unwrap() = key.map(key_file);
    client
}

/// One block of each unit.
fn units(blocks: u64) -> Vec<u64> {
    (0..blocks).step_by(16).collect()
}

#[test]
fn after_a_restart_cached_reads_send_no_request() {
    for key in [None, Some(7)] {
        let store = Arc::new(InMemory::new());
        volume(&store, "v", key, 2000);
        let device = Arc::new(MemDevice::new(8 << 10));
        let all = units(2000);
        let first = client(&store, key);
        let gets = read(&first, &cache(&device), &all);
        assert!(gets >= all.len() as u64, "{gets}");
        for _ in 0..2 {
            let next = client(&store, key);
            assert_eq!(read(&next, &cache(&device), &all), 0);
        }
        // The cache holds no plaintext of an encrypted volume.
        let mut bytes = vec![0; (8 << 10) * BLOCK_SIZE];
        device.read(BlockNo(0), &mut bytes).unwrap();
        let clear = block(16);
        let found = bytes.windows(64).any(|part| part == &clear[..64]);
        assert_eq!(found, key.is_none());
    }
}

/// Read-ahead asks for each object once, not for the end of one and the begin of the next.
#[test]
fn a_sequential_read_takes_about_one_request_for_each_object() {
    const MIB: u64 = (1 << 20) / BLOCK_SIZE as u64;
    const READ: u64 = 256;
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, READ * MIB);
    let client = client(&store, None);
    let with_room = OpenOptions {
        cache_bytes: 128 << 20,
        ..options()
    };
    let disk = client.volume().look(&with_room).unwrap();
    let before = disk.counters().gets.0;
    let mut piece = vec![0; MIB as usize * BLOCK_SIZE];
    for at in 0..READ {
        disk.read(BlockNo(at * MIB), &mut piece).unwrap();
        for (block, bytes) in piece.chunks_exact(BLOCK_SIZE).enumerate() {
            assert!(bytes == self::block(at * MIB + block as u64), "{at}");
        }
    }
    let gets = disk.counters().gets.0 - before;
    let objects = READ / 8 + 1;
    // Windows that grow to that size take one each. It was 72 requests when an object with the headers of its cells took two.
    assert!(
        gets <= objects + 10,
        "{gets} requests for {objects} objects"
    );
}

/// Read-ahead that reached into a part of the map that was not loaded left all of its range out: up to 64 MiB were read piece by
/// piece.
#[test]
fn a_sequential_read_goes_on_beyond_the_loaded_part_of_the_map() {
    const REGION: u64 = 1 << 18;
    const PIECE: u64 = 16;
    const AROUND: u64 = 2048;
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    let made = CreateOptions::default();
    let location = client.location("v");
    create_with(location, 2 * REGION, &made, Duration::from_secs(5)).unwrap();
    let disk = client.find("v").unwrap().open(&options()).unwrap();
    for at in REGION - AROUND..REGION + AROUND {
        disk.write(BlockNo(at), &[&block(at)]).unwrap();
    }
    disk.flush().unwrap();
    disk.release().unwrap();
    let with_room = OpenOptions {
        cache_bytes: 64 << 20,
        ..options()
    };
    let disk = client.find("v").unwrap().look(&with_room).unwrap();
    let before = disk.counters().gets.0;
    let mut piece = vec![0; PIECE as usize * BLOCK_SIZE];
    for at in (REGION - AROUND..REGION + AROUND).step_by(PIECE as usize) {
        disk.read(BlockNo(at), &mut piece).unwrap();
        for (i, bytes) in piece.chunks_exact(BLOCK_SIZE).enumerate() {
            assert!(bytes == block(at + i as u64), "{at}");
        }
    }
    let gets = disk.counters().gets.0 - before;
    assert!(gets <= 14, "{gets} requests for 3 objects and 2 regions");
}

/// The first change of a file after a mount reads a bitmap, an inode, a directory, ..., that one flush wrote, one after the
/// other. Each took a request.
#[test]
fn blocks_of_a_small_flush_are_read_with_one_request() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 0);
    let client = client(&store, None);
    let blocks: Vec<u64> = (0..20).map(|i| i * 300 + 7).collect();
    let disk = client.find("v").unwrap().open(&options()).unwrap();
    for (part, most) in [(&blocks[..], 1), (&blocks[3..5], 2)] {
        for at in part {
            disk.write(BlockNo(*at), &[&block(at + most)]).unwrap();
        }
        disk.flush().unwrap();
    }
    disk.release().unwrap();
    for cached in [0, 8 << 20] {
        let with_room = OpenOptions {
            cache_bytes: cached,
            ..options()
        };
        let disk = client.volume().look(&with_room).unwrap();
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockNo(0), &mut found).unwrap();
        let before = disk.counters().gets.0;
        for (i, at) in blocks.iter().enumerate() {
            disk.read(BlockNo(*at), &mut found).unwrap();
            let seed = if (3..5).contains(&i) { 2 } else { 1 };
            assert!(found == block(at + seed), "{at}");
        }
        let gets = disk.counters().gets.0 - before;
        assert_eq!(gets, if cached > 0 { 2 } else { 20 });
    }
}

/// Changes the first of these bytes in each object. Returns the number of objects.
fn change(store: &Arc<InMemory>, part: &[u8]) -> usize {
    let mut changed = 0;
    for name in support::names(store) {
        let mut bytes = support::get(store, &name);
        let at = bytes.windows(part.len()).position(|found| found == part);
        if let Some(at) = at {
            bytes[at] ^= 1;
            support::put(store, &name, &bytes);
            changed += 1;
        }
    }
    changed
}

/// Cells that are read with one request fail their checks one by one.
#[test]
fn a_damaged_cell_does_not_hide_its_neighbours() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 0);
    let client = client(&store, None);
    let disk = client.find("v").unwrap().open(&options()).unwrap();
    let blocks = [10, 500, 900];
    for at in blocks {
        disk.write(BlockNo(at), &[&block(at)]).unwrap();
    }
    disk.flush().unwrap();
    disk.release().unwrap();
    let damaged = change(&store, &block(500)[..64]);
    assert_eq!(damaged, 1);
    for order in [[10, 500, 900], [500, 10, 900]] {
        let with_room = OpenOptions {
            cache_bytes: 8 << 20,
            ..options()
        };
        let disk = client.volume().look(&with_room).unwrap();
        let mut found = vec![0; BLOCK_SIZE];
        for at in order {
            let read = disk.read(BlockNo(at), &mut found);
            assert_eq!(read.is_ok(), at != 500, "{at}: {read:?}");
            assert!(at == 500 || found == block(at));
        }
    }
}

/// The same in order, with a cache in memory: read-ahead takes cells from the read cache.
fn read_in_order(
    fault: Option<DeviceFault>,
    client: &Arc<Client>,
    cache: &CacheOptions,
    blocks: u64,
) -> u64 {
    const PIECE: u64 = 40;
    let found = client.volume();
    found.keep_reads(cache).unwrap();
    let with_room = OpenOptions {
        cache_bytes: 4 << 20,
        faults: (fault, Faults::default()),
        ..options()
    };
    let disk = found.look(&with_room).unwrap();
    let before = client.gets.load(SeqCst);
    let mut piece = vec![0; PIECE as usize * BLOCK_SIZE];
    for at in (0..blocks).step_by(PIECE as usize) {
        disk.read(BlockNo(at), &mut piece).unwrap();
        for (block, bytes) in (at..blocks).zip(piece.chunks_exact(BLOCK_SIZE)) {
            assert!(bytes == self::block(block), "block {block} is wrong");
        }
    }
    let gets = client.gets.load(SeqCst) - before;
    drop(disk);
    gets
}

#[test]
fn damaged_cells_are_read_from_the_store_and_cached_again() {
    damage(None, false);
    damage(None, true);
}

#[test]
fn a_cache_without_checks_is_found() {
    for in_order in [false, true] {
        let fault = Some(DeviceFault::ReadsBelieved);
        let found = std::panic::catch_unwind(|| damage(fault, in_order));
        assert!(found.is_err(), "in order: {in_order}");
        steadfast_testkit::caught("store.reads_believed");
    }
}

fn damage(fault: Option<DeviceFault>, in_order: bool) {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 2000);
    // Room for all cells that are cached again.
    let device = Arc::new(MemDevice::new(16 << 10));
    let all = units(2000);
    read(&client(&store, None), &cache(&device), &all);
    let mut random = Random(5);
    let mut fetched = 0;
    for round in 0..40 {
        // Damages a few blocks of tables and cells: a flipped bit, zeros, or the bytes of another block.
        for _ in 0..1 + random.below(20) {
            let (at, other) = (1 + random.below(2048), 1 + random.below(2048));
            let mut one = vec![0; BLOCK_SIZE];
            device.read(BlockNo(at), &mut one).unwrap();
            match random.below(3) {
                0 => one[random.below(BLOCK_SIZE as u64) as usize] ^= 1 << random.below(8),
                1 => one.fill(0),
                _ => device.read(BlockNo(other), &mut one).unwrap(),
            }
            device.write(BlockNo(at), &[&one]).unwrap();
        }
        let next = client(&store, None);
        let cache = cache(&device);
        fetched += match in_order {
            true => read_in_order(fault, &next, &cache, 2000),
            false => {
                let found = next.volume();
                found.keep_reads(&cache).unwrap();
                read_under(fault, &next, &found, &all)
            }
        };
        let again = client(&store, None);
        assert_eq!(read(&again, &cache, &all), 0, "round {round}");
        let again = client(&store, None);
        assert_eq!(
            read_in_order(None, &again, &cache, 2000),
            0,
            "round {round}"
        );
    }
    assert!(fetched > 0);
}

#[test]
fn a_damaged_header_begins_a_new_cache_and_other_data_is_refused() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 200);
    let device = Arc::new(MemDevice::new(4 << 10));
    let all = units(200);
    read(&client(&store, None), &cache(&device), &all);
    let mut one = vec![0; BLOCK_SIZE];
    device.read(BlockNo(0), &mut one).unwrap();
    one[100] ^= 1;
    device.write(BlockNo(0), &[&one]).unwrap();
    assert!(read(&client(&store, None), &cache(&device), &all) > 0);
    assert_eq!(read(&client(&store, None), &cache(&device), &all), 0);
    one.fill(b'x');
    device.write(BlockNo(0), &[&one]).unwrap();
    let refused = client(&store, None).volume().keep_reads(&cache(&device));
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("other data"), "{why}");
    let small = Arc::new(MemDevice::new(100));
    assert!(
        client(&store, None)
            .volume()
            .keep_reads(&cache(&small))
            .is_err()
    );
}

#[test]
fn another_volumes_cache_is_refused() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 200);
    volume(&store, "w", None, 200);
    let device = Arc::new(MemDevice::new(4 << 10));
    read(&client(&store, None), &cache(&device), &units(200));
    let other = client(&store, None).find("w").unwrap();
    let why = other.keep_reads(&cache(&device)).unwrap_err();
    assert!(
        matches!(why, OpenError::Cache { .. }) && why.to_string().contains("cache of the volume")
    );
    // A cache with flushes is refused as a read cache, and vice versa.
    let flushes = Arc::new(MemDevice::new(1 << 14));
    let disk = other.open_cached(&options(), &cache(&flushes)).unwrap();
    disk.release().unwrap();
    drop(disk);
    let why = other.keep_reads(&cache(&flushes)).unwrap_err().to_string();
    assert!(why.contains("flush=cache"), "{why}");
    let why = client(&store, None).volume();
    let why = why.open_cached(&options(), &cache(&device)).unwrap_err();
    assert!(why.to_string().contains("cache of reads"), "{why}");
}

#[test]
fn a_full_cache_evicts_unused_cells() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, BLOCKS);
    // Three segments, for eight times as much.
    let device = Arc::new(MemDevice::new(1 + 3 * 1024));
    let hot: Vec<u64> = (0..16 * 16).step_by(16).collect();
    read(&client(&store, None), &cache(&device), &hot);
    let cold: Vec<u64> = units(BLOCKS).split_off(16);
    for part in cold.chunks(48) {
        let wanted: Vec<u64> = hot.iter().chain(part).copied().collect();
        let next = client(&store, None);
        let gets = read(&next, &cache(&device), &wanted);
        assert!(
            gets <= 2 * part.len() as u64 + 8,
            "{gets} for {}",
            part.len()
        );
    }
    // Cells in constant use are still cached, and of the rest at most those that fit.
    assert_eq!(read(&client(&store, None), &cache(&device), &hot), 0);
    let gets = read(&client(&store, None), &cache(&device), &cold);
    assert!(gets * 2 > cold.len() as u64, "{gets}");
}

/// A device that fails from a given request on.
struct Failing {
    device: MemDevice,
    left: AtomicU64,
    failed: AtomicBool,
}

impl Failing {
    fn check(&self, op: DeviceOp) -> steadfast_block::Result<()> {
        let left = self.left.load(SeqCst);
        if left == 0 {
            self.failed.store(true, SeqCst);
            return Err(DeviceError::Io {
                op,
                at: BlockNo(0),
                count: 1,
                source: Arc::new(std::io::Error::other("it is broken")),
            });
        }
        self.left.store(left - 1, SeqCst);
        Ok(())
    }
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.check(DeviceOp::Read)?;
        self.device.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.check(DeviceOp::Write)?;
        self.device.write(at, segments)
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        self.check(DeviceOp::Flush)
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device.discard(at, count)
    }
}

#[test]
fn a_failing_cache_only_costs_requests() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", None, 2000);
    let mut failed = 0;
    for left in [8, 9, 10, 12, 20, 40] {
        let device = Arc::new(Failing {
            device: MemDevice::new(4 << 10),
            left: AtomicU64::new(left),
            failed: AtomicBool::new(false),
        });
        let options = CacheOptions::new(Arc::clone(&device) as Arc<dyn BlockDevice>, "the cache");
        for _ in 0..3 {
            let next = client(&store, None);
            let found = next.volume();
            // A mount with a cache that cannot be opened is refused.
            if found.keep_reads(&options).is_ok() {
                read_with(&next, &found, &units(2000));
            }
        }
        failed += u64::from(device.failed.load(SeqCst));
    }
    assert!(failed > 3, "{failed}");
}

/// With `flush=cache`, log and read cache share the device.
#[test]
fn a_cache_of_flushes_keeps_reads_as_well() {
    let store = Arc::new(InMemory::new());
    volume(&store, "v", Some(3), 2000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let gets = |write: u64| {
        let next = client(&store, Some(3));
        let cache = CacheOptions::open(&path, Some(256 << 20)).unwrap();
        let little = OpenOptions {
            cache_bytes: 0,
            ..options()
        };
        let disk = next.volume().open_cached(&little, &cache).unwrap();
        let before = next.gets.load(SeqCst);
        let mut buf = vec![0; BLOCK_SIZE];
        for at in units(2000) {
            disk.read(BlockNo(at), &mut buf).unwrap();
            assert!(buf == block(at), "block {at} is wrong");
        }
        let gets = next.gets.load(SeqCst) - before;
        disk.write(BlockNo(4000 + write), &[&block(write)]).unwrap();
        disk.flush().unwrap();
        disk.release().unwrap();
        gets
    };
    assert!(gets(1) > 100);
    // Except for the part of the map that the write changed.
    assert!(gets(2) <= 1);
    // The log's flushes are found as well: the machine dies, and the next opening sends the flush.
    {
        let next = client(&store, Some(3));
        let cache = CacheOptions::open(&path, None).unwrap();
        let disk = next.volume().open_cached(&options(), &cache).unwrap();
        disk.write(BlockNo(5000), &[&block(9)]).unwrap();
        next.dead.store(true, SeqCst);
        disk.flush().unwrap();
    }
    let next = client(&store, Some(3));
    let cache = CacheOptions::open(&path, None).unwrap();
    let disk = next.volume().open_cached(&options(), &cache).unwrap();
    let mut buf = vec![0; BLOCK_SIZE];
    disk.read(BlockNo(5000), &mut buf).unwrap();
    assert!(buf == block(9));
    disk.release().unwrap();
    drop(disk);
    drop(cache);
    // A device that was cut is refused.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(200 << 20).unwrap();
    let cache = CacheOptions::new(
        Arc::new(FileDevice::open(&path, &Default::default()).unwrap()),
        "the cache",
    );
    let cut = next.volume().open_cached(&options(), &cache).unwrap_err();
    assert!(cut.to_string().contains("was cut"), "{cut}");
}
