//! Figure 5 of paper 003 and more, in virtual time: random 4 KiB writes at four write intervals,
//! over the snapshot-consistent layer and both baselines; latency of flushes; write amplification.
//!
//! `cargo run --release -p steadfast-ftl --example figures [-- figure5|amplification|boot|cpu] [--json]`

use std::time::Instant;
use steadfast_flash::{FlashError, Geometry, Latency, MemoryStore, Nand, Rng};
use steadfast_ftl::{
    Baseline, BaselineKind, Bytes, Emulated, Entries, Erase, Ftl, FtlError, Limits, Numbers,
    Options, Platform, Tuned,
};

type Error = Box<dyn std::error::Error>;
type Snapshot = Ftl<Emulated<MemoryStore>, Tuned>;

const EPOCH: u64 = 2048;
const SECTOR: usize = 4096;

/// The paper's memory (section 7), with as much of it for data as in section 3.4: a disk of 4 GiB
/// in 6 GiB.
fn geometry() -> Geometry {
    Geometry {
        blocks: 96,
        ..Geometry::paper()
    }
}

fn memory(geometry: Geometry, latency: Latency) -> Result<Emulated<MemoryStore>, FlashError> {
    let store = MemoryStore::new(&geometry);
    Ok(Emulated::new(Nand::new(geometry, latency, store)?))
}

enum Disk {
    Snapshot(Box<Snapshot>),
    Baseline(Box<Baseline<MemoryStore>>),
}

impl Disk {
    fn new(kind: &str, geometry: Geometry, sectors: u64) -> Result<Disk, Error> {
        let platform = memory(geometry, Latency::mlc())?;
        let shape = platform.shape();
        let options = Options {
            sectors,
            epoch: EPOCH,
            volume: 1,
        };
        let limits = Limits::derive(&shape, sectors, EPOCH)?;
        Ok(match kind {
            "ftl" => {
                let policy = Tuned::new(shape.dies);
                Disk::Snapshot(Box::new(Ftl::format(platform, shape, policy, options)?))
            }
            kind => {
                let kind = if kind == "async" {
                    BaselineKind::Asynchronous
                } else {
                    BaselineKind::Synchronous
                };
                Disk::Baseline(Box::new(Baseline::new(platform, kind, limits)))
            }
        })
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), Error> {
        match self {
            Disk::Snapshot(disk) => disk.write(sector, data)?,
            Disk::Baseline(disk) => disk.write(sector, data)?,
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self {
            Disk::Snapshot(disk) => disk.flush()?,
            Disk::Baseline(disk) => disk.flush()?,
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        match self {
            Disk::Snapshot(disk) => disk.platform().nand().now(),
            Disk::Baseline(disk) => disk.platform().nand().now(),
        }
    }

    fn programs(&self) -> u64 {
        match self {
            Disk::Snapshot(disk) => disk.platform().nand().counts().programs,
            Disk::Baseline(disk) => disk.platform().nand().counts().programs,
        }
    }
}

/// Throughput, flushes and programs of a phase.
#[derive(Default, Clone, Copy)]
struct Phase {
    writes: u64,
    nanoseconds: u64,
    flushes: u64,
    flush_total: u64,
    flush_worst: u64,
    programs: u64,
}

impl Phase {
    fn rate(&self) -> f64 {
        self.writes as f64 * SECTOR as f64 / 1e6 / (self.nanoseconds as f64 / 1e9)
    }

    fn flush_mean_ms(&self) -> f64 {
        self.flush_total as f64 / self.flushes.max(1) as f64 / 1e6
    }

    fn flush_worst_ms(&self) -> f64 {
        self.flush_worst as f64 / 1e6
    }
}

fn drive(
    disk: &mut Disk,
    writes: u64,
    interval: u64,
    mut next: impl FnMut(u64) -> u64,
) -> Result<Phase, Error> {
    let mut data = vec![0; SECTOR];
    let (start, programs) = (disk.now(), disk.programs());
    let mut phase = Phase {
        writes,
        ..Phase::default()
    };
    for i in 1..=writes {
        data[..8].copy_from_slice(&i.to_le_bytes());
        disk.write(next(i), &data)?;
        if i % interval == 0 {
            let before = disk.now();
            disk.flush()?;
            let took = disk.now() - before;
            phase.flushes += 1;
            phase.flush_total += took;
            phase.flush_worst = phase.flush_worst.max(took);
        }
    }
    disk.flush()?;
    phase.nanoseconds = disk.now() - start;
    phase.programs = disk.programs() - programs;
    Ok(phase)
}

/// Fills the disk in order, then overwrites a half of it at random: a steady state.
fn aged(kind: &str, sectors: u64) -> Result<Disk, Error> {
    let mut disk = Disk::new(kind, geometry(), sectors)?;
    drive(&mut disk, sectors, EPOCH, |i| i - 1)?;
    let mut rng = Rng::new(7);
    drive(&mut disk, sectors / 2, EPOCH, |_| rng.below(sectors))?;
    Ok(disk)
}

fn figure5(json: bool) -> Result<(), Error> {
    let shape = memory(geometry(), Latency::none())?.shape();
    let sectors = (1 << 20).min(Limits::largest(&shape, EPOCH)?.sectors);
    println!(
        "random 4 KiB writes, {} sectors of 4 KiB in 8 GiB of flash, MB/s in virtual time",
        sectors
    );
    println!(
        "{:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>14} {:>14}",
        "interval", "ftl", "async", "sync", "ftl/async", "ftl/sync", "flush ms", "async flush ms"
    );
    for interval in [1, 16, 256, 2048] {
        let mut rates = Vec::new();
        for kind in ["ftl", "async", "sync"] {
            let mut disk = aged(kind, sectors)?;
            let mut rng = Rng::new(interval);
            let writes = if interval < 16 { 100_000 } else { 1 << 18 };
            rates.push(drive(&mut disk, writes, interval, |_| rng.below(sectors))?);
            if let Disk::Snapshot(disk) = &disk {
                eprintln!("{:?}", disk.stats());
            }
        }
        let [ftl, asynchronous, synchronous] = rates[..] else {
            continue;
        };
        let (to_async, to_sync) = (
            ftl.rate() / asynchronous.rate(),
            ftl.rate() / synchronous.rate(),
        );
        println!(
            "{interval:>9} {:>9.2} {:>9.2} {:>9.2} {to_async:>10.3} {to_sync:>9.2} {:>6.2} / {:>5.1} {:>6.2} / {:>5.1}",
            ftl.rate(),
            asynchronous.rate(),
            synchronous.rate(),
            ftl.flush_mean_ms(),
            ftl.flush_worst_ms(),
            asynchronous.flush_mean_ms(),
            asynchronous.flush_worst_ms(),
        );
        if json {
            println!(
                "{{\"figure\":5,\"interval\":{interval},\"ftl_mb_s\":{:.3},\"async_mb_s\":{:.3},\"sync_mb_s\":{:.3},\"flush_mean_ms\":{:.3},\"flush_worst_ms\":{:.3}}}",
                ftl.rate(),
                asynchronous.rate(),
                synchronous.rate(),
                ftl.flush_mean_ms(),
                ftl.flush_worst_ms(),
            );
        }
    }
    Ok(())
}

fn amplification(json: bool) -> Result<(), Error> {
    let small = Geometry {
        blocks: 32,
        ..geometry()
    };
    let shape = memory(small, Latency::none())?.shape();
    let largest = Limits::largest(&shape, EPOCH)?.sectors;
    println!(
        "pages programmed for each two sectors written; the disk has {largest} sectors in 2 GiB of flash"
    );
    println!("{:>6} {:>9} {:>8} {:>8}", "full", "pattern", "ftl", "async");
    for percent in [70, 85, 95] {
        let live = largest * percent / 100;
        for hot in [false, true] {
            let mut factors = Vec::new();
            for kind in ["ftl", "async"] {
                let mut disk = Disk::new(kind, small, largest)?;
                drive(&mut disk, live, EPOCH, |i| i - 1)?;
                let mut rng = Rng::new(percent);
                let mut next = |_| {
                    if hot && rng.below(5) > 0 {
                        rng.below(live / 5)
                    } else {
                        rng.below(live)
                    }
                };
                drive(&mut disk, live, EPOCH, &mut next)?;
                let phase = drive(&mut disk, live / 2, EPOCH, &mut next)?;
                factors.push(phase.programs as f64 * 2.0 / phase.writes as f64);
            }
            let pattern = if hot { "80/20" } else { "uniform" };
            println!(
                "{percent:>5}% {pattern:>9} {:>8.2} {:>8.2}",
                factors[0], factors[1]
            );
            if json {
                println!(
                    "{{\"figure\":\"amplification\",\"full\":{percent},\"pattern\":\"{pattern}\",\"ftl\":{:.3},\"async\":{:.3}}}",
                    factors[0], factors[1]
                );
            }
        }
    }
    Ok(())
}

/// Mount in virtual time: the same changes on disks of different sizes.
fn boot() -> Result<(), Error> {
    println!(
        "{:>12} {:>10} {:>12} {:>8}",
        "device GiB", "changes", "mount ms", "reads"
    );
    for blocks in [32, 128, 512] {
        for changes in [1_000, 10_000, 100_000] {
            let geometry = Geometry {
                blocks,
                ..Geometry::paper()
            };
            let nand = Nand::new(geometry, Latency::mlc(), MemoryStore::new(&geometry))?;
            let platform = Emulated::new(nand);
            let shape = platform.shape();
            let sectors = Limits::largest(&shape, EPOCH)?.sectors;
            let options = Options {
                sectors,
                epoch: EPOCH,
                volume: 1,
            };
            let mut disk = Ftl::format(platform, shape, Tuned::new(shape.dies), options)?;
            let (mut rng, data) = (Rng::new(1), vec![1; SECTOR]);
            for i in 0..changes {
                disk.write(rng.below(sectors), &data)?;
                if i % 1000 == 999 {
                    disk.flush()?;
                }
            }
            let nand = disk.into_platform().into_nand().cut(1)?;
            let (before, reads) = (nand.now(), nand.counts().reads);
            let disk: Result<Snapshot, FtlError<_>> =
                Ftl::mount(Emulated::new(nand), shape, Tuned::new(shape.dies));
            let disk = disk?;
            let nand = disk.platform().nand();
            println!(
                "{:>12} {changes:>10} {:>12.1} {:>8}",
                geometry.capacity() >> 30,
                (nand.now() - before) as f64 / 1e6,
                nand.counts().reads - reads,
            );
        }
    }
    Ok(())
}

/// A memory that keeps no data pages: what is left is the layer's own work.
struct Nowhere {
    platform: Emulated<MemoryStore>,
    programs: u64,
}

impl Platform for Nowhere {
    type W = u64;
    type P = Bytes;
    type T = Entries;
    type Q = Numbers;
    type Sector = [u8];
    type Error = FlashError;

    fn blank(&mut self) -> Bytes {
        self.platform.blank()
    }
    fn put(&self, page: &mut Bytes, slot: usize, sector: &[u8]) {
        self.platform.put(page, slot, sector);
    }
    fn take(&self, page: &Bytes, slot: usize, sector: &mut [u8]) {
        self.platform.take(page, slot, sector);
    }
    fn clear(&self, sector: &mut [u8]) {
        self.platform.clear(sector);
    }
    fn copy(&self, from: &Bytes, slot: usize, to: &mut Bytes, target: usize) {
        self.platform.copy(from, slot, to, target);
    }
    fn read(&mut self, _: u64) -> Result<Option<Bytes>, FlashError> {
        Ok(None)
    }
    fn fetch(&mut self, _: u64) -> Result<Option<Bytes>, FlashError> {
        Ok(None)
    }
    fn arrive(&mut self) {}
    fn program(&mut self, _: u64, page: Bytes, _: bool) -> Result<(), FlashError> {
        std::hint::black_box(&page);
        self.programs += 1;
        Ok(())
    }
    fn sync(&mut self) -> Result<Vec<(u64, Bytes)>, FlashError> {
        Ok(Vec::new())
    }
    fn erase(&mut self, _: u64) -> Result<(), FlashError> {
        Ok(())
    }
    fn erased(&mut self, _: u64, _: bool) -> Result<Erase, FlashError> {
        Ok(Erase::Done)
    }
    fn is_bad(&self, _: u64) -> bool {
        false
    }
    fn find(_: &'static str, count: u64, mut stop: impl FnMut(u64) -> bool) -> u64 {
        (0..count).find(|&i| stop(i)).unwrap_or(count)
    }
    fn each<E>(
        _: &'static str,
        count: u64,
        step: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        (0..count).try_for_each(step)
    }
}

/// Host time for each write: random sectors, a flush every 2048, no collection. The small sectors
/// leave out most of the copying and hashing of data, which is what a controller's hardware does.
fn cpu() -> Result<(), Error> {
    println!(
        "{:>12} {:>14} {:>12}",
        "sector bytes", "writes/s", "ns/write"
    );
    for sector_bytes in [256, 4096] {
        // As many sectors in a page of metadata as fit: 2 of 4 KiB, or 16 of 256 bytes.
        let sectors = if sector_bytes == 4096 { 2 } else { 16 };
        let flash = Geometry {
            sector_bytes,
            sectors,
            spare_bytes: 128,
            pages: 1024 / sectors,
            ..Geometry::paper()
        };
        let platform = Emulated::new(Nand::new(flash, Latency::none(), MemoryStore::new(&flash))?);
        let shape = platform.shape();
        let nowhere = Nowhere {
            platform,
            programs: 0,
        };
        let disk_sectors = 1 << 19;
        let options = Options {
            sectors: disk_sectors,
            epoch: EPOCH,
            volume: 1,
        };
        let mut disk = Ftl::format(nowhere, shape, Tuned::new(shape.dies), options)?;
        let data = vec![7; sector_bytes as usize];
        let (mut rng, writes) = (Rng::new(1), 1 << 20);
        let mut best = f64::MAX;
        let begun = Instant::now();
        for _ in 0..8 {
            let begun = Instant::now();
            for i in 0..writes / 8 {
                disk.write(rng.below(disk_sectors), &data)?;
                if i % EPOCH == EPOCH - 1 {
                    disk.flush()?;
                }
            }
            best = best.min(begun.elapsed().as_secs_f64() / (writes / 8) as f64);
            disk.flush()?;
        }
        let mean = begun.elapsed().as_secs_f64() / writes as f64;
        println!(
            "{sector_bytes:>12} {:>14.0} {:>12.0}   best of 8; mean {:.0} ns",
            1.0 / best,
            best * 1e9,
            mean * 1e9
        );
    }
    let shape = memory(geometry(), Latency::none())?.shape();
    let limits = Limits::largest(&shape, EPOCH)?;
    let bytes = limits.memory_bytes(&shape);
    println!(
        "tables: {bytes} bytes for {} sectors of 4 KiB, {:.2} MB for each GiB",
        limits.sectors,
        bytes as f64 / 1e6 / (limits.sectors as f64 * 4096.0 / (1u64 << 30) as f64)
    );
    Ok(())
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|a| a == "--json");
    let wants =
        |name: &str| arguments.iter().all(|a| a == "--json") || arguments.iter().any(|a| a == name);
    let begun = Instant::now();
    if wants("figure5") {
        figure5(json)?;
    }
    if wants("amplification") {
        amplification(json)?;
    }
    if wants("boot") {
        boot()?;
    }
    if wants("cpu") {
        cpu()?;
    }
    eprintln!("{:.0} s of host time", begun.elapsed().as_secs_f64());
    Ok(())
}
