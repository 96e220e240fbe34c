//! Volumes on an object store beside raw requests of the same bytes to the same store, in turns, in one run.
//!
//! ```text
//! store commit URL COUNT          4 KiB written and flushed, COUNT times; a PUT of as many bytes in between
//! store sequential URL MIB        MIB mebibytes written in order, flushed, and read cold; as many 8 MiB PUTs and GETs, 8 at a time
//! store random URL MIB COUNT      COUNT cold reads of 4 KiB in MIB mebibytes; ranged GETs of a unit in between
//! store warm URL MIB CACHE FILE   reads from a cache device, and of a plain file of the same contents
//! store requests URL MIB          requests and bytes of flushes, of MIB mebibytes in order, and of an idle disk
//! store recovery URL               a mount after the writer died, with 16 to 1,000 slots since the checkpoint, of 1 GiB and 10 TiB
//! store overwrite URL MIB          random overwrites of 4 KiB in MIB mebibytes: bytes sent, bytes in the store
//! store map URL GIB                memory of the map with a run in each unit, measured on GIB gibibytes
//! store window URL COUNT           COUNT flushes, 8 on their way at a time; as many PUTs
//! store coded URL MIB              writes in order and cold reads with compression and encryption
//! store proxy PORT MS             relays connections to a port of this host, with MS milliseconds added to each answer
//! ```
//!
//! A line for each result: row, unit, `higher` or `lower` (which is better), system, value; separated by tabs. Each call makes a
//! volume of its own below the URL.

mod proxy;
mod sizes;

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use steadfast_block::{
    BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo, Direct, FileDevice, FileOptions,
};
use steadfast_store::{
    Access, CacheOptions, CreateOptions, Found, Location, OpenOptions, StoreDevice, create_with,
};

const USAGE: &str = "usage: store commit URL COUNT | sequential URL MIB | random URL MIB COUNT | warm URL MIB CACHE FILE | requests URL MIB | recovery URL | overwrite URL MIB | map URL GIB | window URL COUNT | coded URL MIB | proxy PORT MS";
const PATIENCE: Duration = Duration::from_secs(60);
/// A raw request of bulk data, and how many are on their way at a time.
const BULK: usize = 8 << 20;
const AT_ONCE: usize = 8;
const MIB: u64 = 1 << 20;
/// Blocks of one write or read in order: 1 MiB.
const PIECE: u64 = 256;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["commit", url, count] => commit(url, count.parse()?),
        ["sequential", url, mib] => sequential(url, mib.parse()?),
        ["random", url, mib, count] => random(url, mib.parse()?, count.parse()?),
        ["warm", url, mib, cache, file] => warm(url, mib.parse()?, cache.as_ref(), file.as_ref()),
        ["requests", url, mib] => requests(url, mib.parse()?),
        ["recovery", url] => sizes::recovery(url),
        ["overwrite", url, mib] => sizes::overwrite(url, mib.parse()?),
        ["map", url, gib] => sizes::map(url, gib.parse()?),
        ["loaded-map", url, gib] => sizes::loaded_map(url, gib.parse()?),
        ["window", url, count] => sizes::window(url, count.parse()?),
        ["coded", url, mib] => sizes::coded(url, mib.parse()?),
        ["proxy", port, ms] => {
            let both_ways = Duration::from_millis(ms.parse()?);
            Ok(proxy::serve(port.parse()?, both_ways / 2)?)
        }
        _ => Err(USAGE.into()),
    }
}

fn record(row: &str, unit: &str, better: &str, system: &str, value: f64) {
    println!("{row}\t{unit}\t{better}\t{system}\t{value}");
}

/// Bytes that do not repeat, so that no store saves any of them.
fn noise(seed: u64, len: usize) -> Bytes {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// A place in a store: a volume, and raw objects beside it.
struct Place {
    location: Location,
    access: Access,
    store: Arc<dyn ObjectStore>,
    raw: Name,
    runtime: tokio::runtime::Runtime,
}

impl Place {
    /// A new volume of `mib` mebibytes.
    fn new(url: &str, what: &str, mib: u64) -> Result<Place> {
        Place::with(url, what, mib, &CreateOptions::default())
    }

    fn with(url: &str, what: &str, mib: u64, options: &CreateOptions) -> Result<Place> {
        let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let url = format!("{}/{what}-{}", url.trim_end_matches('/'), stamp.as_nanos());
        let access = Access {
            key: options.key.clone(),
            ..Access::default()
        };
        let location = Location::new(&url, &access)?;
        let blocks = mib * MIB / BLOCK_SIZE as u64;
        create_with(location.clone(), blocks, options, PATIENCE)?;
        let (store, prefix) = location.client();
        let raw = prefix.clone().join("raw");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        Ok(Place {
            location,
            access,
            store,
            raw,
            runtime,
        })
    }

    fn find(&self) -> Result<Found> {
        Ok(Found::new(self.location.clone(), &self.access, PATIENCE)?)
    }

    fn open(&self) -> Result<StoreDevice> {
        let options = OpenOptions {
            flush_when_full: true,
            ..OpenOptions::default()
        };
        Ok(self.find()?.open(&options)?)
    }

    /// The volume as a machine finds it that has read nothing of it.
    fn look(&self) -> Result<StoreDevice> {
        Ok(self.find()?.look(&OpenOptions::default())?)
    }

    fn name(&self, number: usize) -> Name {
        self.raw.clone().join(format!("{number}"))
    }

    fn put(&self, number: usize, bytes: Bytes) -> impl Future<Output = object_store::Result<()>> {
        let (store, name) = (Arc::clone(&self.store), self.name(number));
        async move {
            let create = PutOptions::from(PutMode::Create);
            store.put_opts(&name, bytes.into(), create).await.map(drop)
        }
    }

    fn get(
        &self,
        number: usize,
        range: std::ops::Range<u64>,
    ) -> impl Future<Output = object_store::Result<Bytes>> {
        let (store, name) = (Arc::clone(&self.store), self.name(number));
        async move { store.get_range(&name, range).await }
    }
}

/// Milliseconds at these parts of a thousand.
fn permille(times: &mut [Duration], at: usize) -> f64 {
    times.sort_unstable();
    let time = times.get((times.len().saturating_sub(1)) * at / 1000);
    time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
}

fn record_latency(row: &str, system: &str, mut times: Vec<Duration>) {
    record(
        &format!("{row}-p50"),
        "ms",
        "lower",
        system,
        permille(&mut times, 500),
    );
    record(
        &format!("{row}-p99"),
        "ms",
        "lower",
        system,
        permille(&mut times, 990),
    );
}

fn commit(url: &str, count: usize) -> Result<()> {
    let place = Place::new(url, "commit", 1024)?;
    let disk = place.open()?;
    let before = disk.counters().puts;
    disk.write(BlockNo(0), &[&noise(1, BLOCK_SIZE)])?;
    disk.flush()?;
    let after = disk.counters().puts;
    // As many bytes as the slot of such a flush has.
    let bytes = ((after.1 - before.1) / (after.0 - before.0).max(1)) as usize;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for i in 0..count {
        let block = noise(i as u64 + 7, BLOCK_SIZE);
        let object = noise(i as u64 + 9, bytes);
        let mut turn = |first: bool| -> Result<()> {
            let begun = Instant::now();
            if first {
                disk.write(BlockNo((i as u64 * 977) % (1 << 17)), &[&block])?;
                disk.flush()?;
                ours.push(begun.elapsed());
            } else {
                place.runtime.block_on(place.put(i, object.clone()))?;
                raw.push(begun.elapsed());
            }
            Ok(())
        };
        turn(i % 2 == 0)?;
        turn(i % 2 == 1)?;
    }
    record_latency("flush-4k", "steadfast", ours);
    record_latency("flush-4k", "raw", raw);
    disk.release()?;
    Ok(())
}

fn write_all(disk: &StoreDevice, mib: u64) -> Result<Duration> {
    let pieces: Vec<Bytes> = (0..16)
        .map(|i| noise(i + 1, PIECE as usize * BLOCK_SIZE))
        .collect();
    let begun = Instant::now();
    for piece in 0..mib {
        disk.write(BlockNo(piece * PIECE), &[&pieces[piece as usize % 16]])?;
    }
    disk.flush()?;
    Ok(begun.elapsed())
}

fn rate(mib: u64, time: Duration) -> f64 {
    mib as f64 / time.as_secs_f64()
}

fn sequential(url: &str, mib: u64) -> Result<()> {
    let place = Place::new(url, "sequential", mib * 2)?;
    let objects = (mib * MIB) as usize / BULK;
    let raw_write = || -> Result<f64> {
        let bytes: Vec<Bytes> = (0..4).map(|i| noise(i + 3, BULK)).collect();
        let begun = Instant::now();
        let puts =
            (0..objects).map(|i| Ok::<_, object_store::Error>(place.put(i, bytes[i % 4].clone())));
        let all = stream::iter(puts).try_buffer_unordered(AT_ONCE);
        place
            .runtime
            .block_on(all.try_for_each(|()| async { Ok(()) }))?;
        Ok(rate(mib, begun.elapsed()))
    };
    let raw_read = || -> Result<f64> {
        let begun = Instant::now();
        let gets = (0..objects).map(|i| place.get(i, 0..BULK as u64));
        let all = stream::iter(gets).buffer_unordered(AT_ONCE);
        place
            .runtime
            .block_on(all.try_for_each(|_| async { Ok::<_, object_store::Error>(()) }))?;
        Ok(rate(mib, begun.elapsed()))
    };
    let disk = place.open()?;
    let first = u64::from(std::process::id()) % 2 == 0;
    if first {
        record("write-sequential", "MiB/s", "higher", "raw", raw_write()?);
    }
    let ours = write_all(&disk, mib)?;
    record(
        "write-sequential",
        "MiB/s",
        "higher",
        "steadfast",
        rate(mib, ours),
    );
    if !first {
        record("write-sequential", "MiB/s", "higher", "raw", raw_write()?);
    }
    disk.release()?;
    drop(disk);
    let read = |row: &str| -> Result<()> {
        let cold = place.look()?;
        let mut buf = BlockBuf::zeroed(PIECE as usize);
        let begun = Instant::now();
        for piece in 0..mib {
            cold.read(BlockNo(piece * PIECE), buf.as_bytes_mut())?;
        }
        record(
            row,
            "MiB/s",
            "higher",
            "steadfast",
            rate(mib, begun.elapsed()),
        );
        Ok(())
    };
    if !first {
        read("read-sequential-cold")?;
    }
    record(
        "read-sequential-cold",
        "MiB/s",
        "higher",
        "raw",
        raw_read()?,
    );
    if first {
        read("read-sequential-cold")?;
    }
    Ok(())
}

fn random(url: &str, mib: u64, count: u64) -> Result<()> {
    let place = Place::new(url, "random", mib * 2)?;
    let disk = place.open()?;
    write_all(&disk, mib)?;
    disk.release()?;
    drop(disk);
    let objects = (mib * MIB) as usize / BULK;
    for i in 0..objects {
        place
            .runtime
            .block_on(place.put(i, noise(i as u64, BULK)))?;
    }
    let cold = place.look()?;
    // The map is not compared.
    let mut buf = BlockBuf::zeroed(1);
    cold.read(BlockNo(0), buf.as_bytes_mut())?;
    let unit = 16 * BLOCK_SIZE as u64;
    let units = mib * MIB / unit;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for i in 0..count.min(units - 1) {
        // Each unit once, out of order: an odd factor visits all of a power of two.
        let at = 1 + (i * 0x9e37_79b1) % (units - 1);
        let begun = Instant::now();
        cold.read(BlockNo(at * 16 + i % 16), buf.as_bytes_mut())?;
        ours.push(begun.elapsed());
        let begun = Instant::now();
        let from = (at * unit) % (BULK as u64 - unit);
        place
            .runtime
            .block_on(place.get(i as usize % objects, from..from + unit + 32))?;
        raw.push(begun.elapsed());
    }
    record_latency("read-4k-cold", "steadfast", ours);
    record_latency("read-4k-cold", "raw", raw);
    Ok(())
}

fn warm(url: &str, mib: u64, cache: &Path, file: &Path) -> Result<()> {
    let place = Place::new(url, "warm", mib * 2)?;
    let disk = place.open()?;
    write_all(&disk, mib)?;
    disk.release()?;
    drop(disk);
    let plain = FileDevice::create(file, mib * PIECE, true)?;
    for piece in 0..mib {
        plain.write(
            BlockNo(piece * PIECE),
            &[&noise(piece + 1, PIECE as usize * BLOCK_SIZE)],
        )?;
    }
    plain.flush()?;
    drop(plain);
    let direct = FileOptions {
        direct: Direct::Prefer,
        read_only: true,
        ..FileOptions::default()
    };
    let plain = FileDevice::open(file, &direct)?;
    let open = |cache_bytes: u64| -> Result<StoreDevice> {
        let options = OpenOptions {
            cache_bytes,
            ..OpenOptions::default()
        };
        let found = place.find()?;
        found.keep_reads(&CacheOptions::open(cache, Some(mib * MIB * 2))?)?;
        Ok(found.look(&options)?)
    };
    let read_all = |device: &dyn BlockDevice, piece: u64| -> Result<Duration> {
        let mut buf = BlockBuf::zeroed(piece as usize);
        let begun = Instant::now();
        for at in (0..mib * PIECE).step_by(piece as usize) {
            device.read(BlockNo(at), buf.as_bytes_mut())?;
        }
        Ok(begun.elapsed())
    };
    // In memory nothing is found, and read-ahead has no room: the cache device keeps up.
    let filling = open(0)?;
    read_all(&filling, PIECE)?;
    drop(filling);
    let mut gets = 0;
    for (row, piece) in [("read-1m-warm", PIECE), ("read-64k-warm", 16)] {
        record(
            row,
            "MiB/s",
            "higher",
            "file",
            rate(mib, read_all(&plain, piece)?),
        );
        // Each byte is read once.
        let disk = open(16 << 20)?;
        let before = disk.counters().gets.0;
        record(
            row,
            "MiB/s",
            "higher",
            "steadfast",
            rate(mib, read_all(&disk, piece)?),
        );
        gets += disk.counters().gets.0 - before;
    }
    record("warm-gets", "GETs", "lower", "steadfast", gets as f64);
    Ok(())
}

fn requests(url: &str, mib: u64) -> Result<()> {
    let place = Place::new(url, "requests", mib * 2)?;
    let disk = place.open()?;
    let begun = disk.counters().puts;
    const FLUSHES: u64 = 200;
    for i in 0..FLUSHES {
        disk.write(BlockNo(i * 31), &[&noise(i, BLOCK_SIZE)])?;
        disk.flush()?;
    }
    let flushed = disk.counters().puts;
    let each = (flushed.0 - begun.0) as f64 / FLUSHES as f64;
    record("puts-per-flush", "PUTs", "lower", "steadfast", each);
    write_all(&disk, mib)?;
    disk.checkpoint()?;
    let written = disk.counters().puts;
    let puts = (written.0 - flushed.0) as f64 * 1024.0 / mib as f64;
    record("puts-per-gib", "PUTs", "lower", "steadfast", puts);
    let bytes = (written.1 - flushed.1) as f64 / (mib * MIB) as f64;
    record("bytes-per-byte", "bytes", "lower", "steadfast", bytes);
    let all = || {
        let counters = disk.counters();
        counters.gets.0 + counters.puts.0 + counters.deletes
    };
    let before = all();
    std::thread::sleep(Duration::from_secs(5));
    let requests = all() - before;
    record(
        "idle-requests-5s",
        "requests",
        "lower",
        "steadfast",
        requests as f64,
    );
    disk.release()?;
    Ok(())
}
