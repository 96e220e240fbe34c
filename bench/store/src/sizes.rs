//! What depends on the size of a volume or on the number of its slots: recovery, collection, memory of the map; and flushes
//! that are on their way at the same time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::stream::{self, TryStreamExt};
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo, Snapshot};
use steadfast_store::{
    Access, Compression, CreateOptions, Found, KeyFile, Location, OpenOptions, StoreDevice,
};

use super::{AT_ONCE, MIB, PATIENCE, PIECE, Place, Result, noise, permille, rate, record};

/// Slots since the last checkpoint, in the background of which the next one begins after 1,024.
const SLOTS: [u64; 3] = [16, 256, 1000];
/// Blocks of a unit, and units of 1 GiB.
const UNIT: u64 = 16;
const UNITS: u64 = 1 << 14;
/// Sizes of volumes in GiB.
const SIZES: [u64; 2] = [1, 10 << 10];

fn ours(row: &str, unit: &str, better: &str, value: f64) {
    record(row, unit, better, "steadfast", value);
}

fn seconds(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64()
}

/// Another machine opens a volume that its writer has not released.
fn take_over(place: &Place) -> Result<StoreDevice> {
    let options = OpenOptions {
        take_over: true,
        ..OpenOptions::default()
    };
    Ok(place.find()?.open(&options)?)
}

/// Times and GETs of opening a volume after its writer died, by slots since the checkpoint and by size; and the requests of a
/// snapshot and of opening after a release.
pub(crate) fn recovery(url: &str) -> Result<()> {
    for (slots, gib) in [
        (SLOTS[0], 1),
        (SLOTS[1], 1),
        (SLOTS[2], 1),
        (SLOTS[1], SIZES[1]),
    ] {
        let place = Place::new(url, "recovery", gib << 10)?;
        let disk = place.open()?;
        disk.checkpoint()?;
        for i in 0..slots {
            disk.write(BlockNo(i * 977 % (1 << 17)), &[&noise(i, BLOCK_SIZE)])?;
            disk.flush()?;
        }
        // It stays in memory, and sends nothing more.
        std::mem::forget(disk);
        let begun = Instant::now();
        let next = take_over(&place)?;
        let row = match gib {
            1 => format!("recovery-{slots}"),
            _ => format!("recovery-{slots}-{gib}g"),
        };
        ours(&row, "ms", "lower", seconds(begun) * 1000.0);
        let gets = next.counters().gets.0;
        ours(&format!("{row}-gets"), "GETs", "lower", gets as f64);
        next.release()?;
        drop(next);
        let begun = Instant::now();
        let clean = place.open()?;
        let counters = clean.counters();
        if slots == SLOTS[1] {
            let row = row.replace("recovery", "clean");
            ours(&row, "ms", "lower", seconds(begun) * 1000.0);
            ours(
                &format!("{row}-gets"),
                "GETs",
                "lower",
                counters.gets.0 as f64,
            );
            ours(
                &format!("{row}-puts"),
                "PUTs",
                "lower",
                counters.puts.0 as f64,
            );
        }
        clean.release()?;
    }
    Ok(())
}

/// Random overwrites of 4 KiB in a volume of which 70 % is written: bytes sent for each byte, and bytes in the store.
pub(crate) fn overwrite(url: &str, mib: u64) -> Result<()> {
    let place = Place::new(url, "overwrite", mib * 10 / 7)?;
    let options = OpenOptions {
        keep_deleted: Duration::ZERO,
        flush_when_full: true,
        ..OpenOptions::default()
    };
    let disk = place.find()?.open(&options)?;
    super::write_all(&disk, mib)?;
    disk.checkpoint()?;
    let blocks = mib * PIECE;
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % blocks
    };
    let mut written = 0;
    let mut measured = None;
    // Twice all of it before the measurement, and twice in it.
    for i in 0..4 * blocks {
        if i == 2 * blocks {
            measured = Some(disk.counters().puts.1);
        }
        disk.write(BlockNo(next()), &[&noise(i, BLOCK_SIZE)])?;
        written += u64::from(measured.is_some());
        if i % 256 == 255 {
            disk.flush()?;
        }
    }
    disk.flush()?;
    let sent = disk.counters().puts.1 - measured.unwrap_or_default();
    let each = sent as f64 / (written * BLOCK_SIZE as u64) as f64;
    ours("overwrite-bytes", "bytes", "lower", each);
    // As the disk does by itself after a checkpoint. Objects that are retired are deleted with the next ones.
    disk.checkpoint()?;
    disk.collect(70)?;
    for i in 0..3 {
        // The store's clock counts, in seconds.
        std::thread::sleep(Duration::from_millis(1100));
        disk.write(BlockNo(0), &[&noise(i, BLOCK_SIZE)])?;
        disk.flush()?;
        disk.checkpoint()?;
    }
    let (store, prefix) = place.location.client();
    let all = store.list(Some(&prefix)).map_ok(|object| object.size);
    let sum = all.try_fold(0, |sum, size| async move { Ok(sum + size) });
    let kept = place.runtime.block_on(sum)?;
    let space = kept as f64 / (mib * MIB) as f64;
    ours("overwrite-space", "bytes", "lower", space);
    disk.release()?;
    Ok(())
}

fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/statm")?;
    let pages = status.split_whitespace().nth(1).unwrap_or("0");
    Ok(pages.parse::<u64>()? * 4096)
}

/// Memory of the map: `gib` regions of 1 GiB with a run in each unit of 64 KiB; that of 1 TiB follows. A process of its own
/// loads them, so that nothing but the map grows in it.
pub(crate) fn map(url: &str, gib: u64) -> Result<()> {
    let place = Place::new(url, "map", 1 << 20)?;
    let options = OpenOptions {
        flush_when_full: true,
        cache_bytes: 0,
        ..OpenOptions::default()
    };
    let disk = place.find()?.open(&options)?;
    let block = noise(5, BLOCK_SIZE);
    for unit in 0..gib * UNITS {
        disk.write(BlockNo(unit * UNIT), &[&block])?;
    }
    disk.flush()?;
    disk.checkpoint()?;
    disk.release()?;
    let loaded = std::process::Command::new(std::env::current_exe()?)
        .args(["loaded-map", &place.location.url, &gib.to_string()])
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let bytes: u64 = String::from_utf8(loaded.stdout)?.trim().parse()?;
    let whole = (bytes * 1024 / gib) as f64 / MIB as f64;
    ours("map-of-1t", "MiB", "lower", whole);
    Ok(())
}

/// Prints how much this process grows when it loads the regions of a volume.
pub(crate) fn loaded_map(url: &str, gib: u64) -> Result<()> {
    let location = Location::new(url, &Access::default())?;
    let options = OpenOptions {
        cache_bytes: 0,
        ..OpenOptions::default()
    };
    let disk = Found::new(location, &Access::default(), PATIENCE)?.look(&options)?;
    let load = |region: u64| disk.run(BlockNo(region * UNITS * UNIT), 1);
    // Buffers of a request have their size after the first regions.
    let first = gib / 8;
    for region in 0..first {
        load(region)?;
    }
    let before = resident()?;
    for region in first..gib {
        load(region)?;
    }
    println!("{}", (resident()? - before) * gib / (gib - first));
    Ok(())
}

/// Flushes that are on their way at the same time, and as many raw PUTs of as many bytes.
pub(crate) fn window(url: &str, count: usize) -> Result<()> {
    let place = Place::new(url, "window", 1024)?;
    let disk = place.open()?;
    let puts = disk.counters().puts;
    let flushes = |count: usize| -> Result<Duration> {
        let begun = Instant::now();
        let mut coming = VecDeque::new();
        for i in 0..count {
            let at = BlockNo(i as u64 * 977 % (1 << 17));
            disk.write(at, &[&noise(i as u64, BLOCK_SIZE)])?;
            coming.push_back(disk.close_epoch()?);
            if coming.len() == AT_ONCE
                && let Some(first) = coming.pop_front()
            {
                disk.wait(first)?;
            }
        }
        for epoch in coming {
            disk.wait(epoch)?;
        }
        Ok(begun.elapsed())
    };
    flushes(AT_ONCE)?;
    let sent = disk.counters().puts;
    let bytes = (sent.1 - puts.1) / (sent.0 - puts.0).max(1);
    let object = noise(3, bytes as usize);
    let part = count / 4;
    let (mut flushed, mut raw) = (Vec::new(), Vec::new());
    for turn in 0..4 {
        flushed.push(flushes(part)?);
        let begun = Instant::now();
        let all = (turn * part..(turn + 1) * part)
            .map(|i| Ok::<_, object_store::Error>(place.put(i, object.clone())));
        let all = stream::iter(all).try_buffer_unordered(AT_ONCE);
        place
            .runtime
            .block_on(all.try_for_each(|()| async { Ok(()) }))?;
        raw.push(begun.elapsed());
    }
    for (system, times) in [("steadfast", &mut flushed), ("raw", &mut raw)] {
        let a_second = part as f64 * 1000.0 / permille(times, 500);
        record("window-8", "PUTs/s", "higher", system, a_second);
    }
    disk.release()?;
    Ok(())
}

/// Writes in order and cold reads of a volume that compresses and encrypts.
pub(crate) fn coded(url: &str, mib: u64) -> Result<()> {
    let options = CreateOptions {
        compression: Some(Compression::Zstd),
        key: Some(KeyFile::new(
            b"contents of a benchmark's key file, and no secret",
        )?),
        ..CreateOptions::default()
    };
    let place = Place::with(url, "coded", mib * 2, &options)?;
    let disk = place.open()?;
    let time = super::write_all(&disk, mib)?;
    ours("write-sequential-coded", "MiB/s", "higher", rate(mib, time));
    disk.release()?;
    drop(disk);
    let cold = place.look()?;
    let mut buf = BlockBuf::zeroed(PIECE as usize);
    let begun = Instant::now();
    for piece in 0..mib {
        cold.read(BlockNo(piece * PIECE), buf.as_bytes_mut())?;
    }
    let row = "read-sequential-cold-coded";
    ours(row, "MiB/s", "higher", rate(mib, begun.elapsed()));
    Ok(())
}
