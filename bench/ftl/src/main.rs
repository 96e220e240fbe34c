//! SCFTL's figures and more, in virtual time, which is the same on every machine; and the layer's own
//! work, in time of the host.
//!
//! `ftl figure5|amplification|boot|cpu|volume|deletes [--quick]` prints lines `ROW UNIT higher|lower SYSTEM VALUE`,
//! separated by tabs. `steadfast` is the snapshot-consistent layer, `async` the one that promises
//! nothing between flushes, `sync` the one whose every write is durable.

mod deletes;
mod nowhere;
mod volume;

use std::time::Instant;
use steadfast_flash::{Geometry, Latency, MemoryStore, Nand, Rng};
use steadfast_ftl::bench::{self, Kind, Load, Measured};
use steadfast_ftl::{BaselineKind, Emulated, Ftl, Intervals, Limits, Options, Shape, Tuned};

type Error = Box<dyn std::error::Error>;

/// Writes of an epoch, as in the paper.
const EPOCH: u64 = 2048;
const SECTOR: u64 = 4096;
const USAGE: &str = "usage: ftl figure5|amplification|boot|cpu|volume|deletes [--quick]";

fn record(row: &str, unit: &str, better: &str, system: &str, value: f64) {
    println!("{row}\t{unit}\t{better}\t{system}\t{value:.6}");
}

/// The paper's memory, with `blocks` blocks on each die.
fn paper(blocks: u32) -> Geometry {
    Geometry {
        blocks,
        ..Geometry::paper()
    }
}

fn shape_of(geometry: Geometry) -> Result<Shape, Error> {
    let memory = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry))?;
    Ok(Emulated::new(memory).shape())
}

const LAYERS: [(&str, Kind); 3] = [
    ("steadfast", Kind::Snapshot),
    ("async", Kind::Baseline(BaselineKind::Asynchronous)),
    ("sync", Kind::Baseline(BaselineKind::Synchronous)),
];

fn measure(kind: Kind, load: &Load) -> Result<Measured, Error> {
    Ok(bench::measure(kind, load, 1, &mut |_, _| {})?)
}

/// Figure 5: random writes of 4 KiB at four write intervals, on a disk of 4 GiB in 6 GiB of flash.
fn figure5(quick: bool) -> Result<(), Error> {
    let geometry = paper(if quick { 12 } else { 96 });
    let most = bench::largest(&geometry, EPOCH)?;
    let sectors = most.min(geometry.capacity() / SECTOR * 2 / 3);
    for interval in [1, 16, 256, 2048] {
        let writes = match (quick, interval) {
            (true, _) => 20_000,
            (false, ..16) => 100_000,
            (false, _) => 1 << 18,
        };
        let load = Load {
            geometry,
            sectors,
            live: sectors,
            hot: false,
            aging: sectors / 2,
            epoch: EPOCH,
            interval,
            writes,
        };
        for (system, kind) in LAYERS {
            let measured = measure(kind, &load)?;
            let bytes = (writes * SECTOR) as f64;
            let rate = bytes / 1e6 / (measured.nanoseconds.max(1) as f64 / 1e9);
            record(
                &format!("random-{interval}"),
                "MB/s",
                "higher",
                system,
                rate,
            );
            if measured.flush_nanoseconds == 0 {
                // Every write was waited for.
                continue;
            }
            let mean = measured.flush_nanoseconds as f64 / measured.flushes.max(1) as f64;
            let row = |what: &str| format!("flush-{interval}-{what}");
            record(&row("mean"), "ms", "lower", system, mean / 1e6);
            let worst = measured.flush_worst_nanoseconds as f64;
            record(&row("worst"), "ms", "lower", system, worst / 1e6);
        }
    }
    Ok(())
}

/// Bytes programmed for each byte written, by how full the disk is.
fn amplification(quick: bool) -> Result<(), Error> {
    let geometry = paper(if quick { 8 } else { 32 });
    let largest = bench::largest(&geometry, EPOCH)?;
    for percent in [70, 85, 95] {
        for hot in [false, true] {
            let live = largest * percent / 100;
            let load = Load {
                geometry,
                sectors: largest,
                live,
                hot,
                aging: live,
                epoch: EPOCH,
                interval: EPOCH,
                writes: live / 2,
            };
            for (system, kind) in &LAYERS[..2] {
                let measured = measure(*kind, &load)?;
                let programmed = measured.programs * geometry.page_bytes() as u64;
                let factor = programmed as f64 / (load.writes * SECTOR) as f64;
                let pattern = if hot { "80-20" } else { "uniform" };
                let row = format!("amplification-{percent}-{pattern}");
                record(&row, "bytes/byte", "lower", system, factor);
            }
        }
    }
    Ok(())
}

/// A disk on the paper's memory, and the random changes made to it.
struct Booted {
    disk: Ftl<Emulated<MemoryStore>, Tuned>,
    rng: Rng,
}

impl Booted {
    /// The largest disk that fits, with this delta region.
    fn new(geometry: Geometry, region: Option<u64>) -> Result<Booted, Error> {
        let nand = Nand::new(geometry, Latency::mlc(), MemoryStore::new(&geometry))?;
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        let intervals = Intervals {
            epoch: EPOCH,
            region,
        };
        let options = Options {
            sectors: Limits::largest(&shape, intervals)?.sectors,
            epoch: EPOCH,
            region,
            volume: 1,
        };
        Ok(Booted {
            disk: Ftl::format(platform, shape, Tuned::new(shape.dies), options)?,
            rng: Rng::new(1),
        })
    }

    /// Each sector is written once, in order. Zeros take no memory of the host.
    fn fill(&mut self) -> Result<(), Error> {
        for sector in 0..self.disk.limits().sectors {
            self.disk.write(sector, &[0; SECTOR as usize])?;
            if self.disk.room() == 0 {
                self.disk.flush()?;
            }
        }
        Ok(self.disk.flush()?)
    }

    /// Random writes to the first `among` sectors.
    fn change(&mut self, changes: u64, among: u64) -> Result<(), Error> {
        let among = among.min(self.disk.limits().sectors);
        for i in 0..changes {
            let sector = self.rng.below(among);
            self.disk.write(sector, &[0; SECTOR as usize])?;
            if i % 1000 == 999 {
                self.disk.flush()?;
            }
        }
        Ok(())
    }

    /// Power cut and mount: the time it takes, and the pages that it reads.
    fn mount(self, row: &str) -> Result<Booted, Error> {
        let shape = *self.disk.shape();
        let nand = self.disk.into_platform().into_nand().cut(1)?;
        let (before, reads) = (nand.now(), nand.counts().reads);
        let disk = Ftl::mount(Emulated::new(nand), shape, Tuned::new(shape.dies))?;
        let nand = disk.platform().nand();
        let took = (nand.now() - before) as f64 / 1e6;
        let reads = (nand.counts().reads - reads) as f64;
        let name = |what| format!("boot-{row}-{what}");
        record(&name("time"), "ms", "lower", "steadfast", took);
        record(&name("reads"), "pages", "lower", "steadfast", reads);
        Ok(Booted { disk, ..self })
    }
}

/// Figure 6: the time of a mount after a power cut, by the device's size and the changes since the last
/// checkpoint, and by the size of the delta region.
fn boot(quick: bool) -> Result<(), Error> {
    const ALL: u64 = u64::MAX;
    const NEAR: u64 = (256 << 20) / SECTOR;
    let sizes: &[u32] = if quick { &[8, 32] } else { &[32, 128, 512] };
    let region = if quick { 16 } else { 64 };
    for &blocks in sizes {
        let geometry = paper(blocks);
        let size = format!("{}MiB", geometry.capacity() >> 20);
        for changes in [1_000, 10_000, 100_000] {
            let mut disk = Booted::new(geometry, None)?;
            disk.change(changes, ALL)?;
            disk.mount(&format!("{size}-new-{changes}"))?;
        }
        let mut disk = Booted::new(geometry, None)?;
        disk.fill()?;
        for (near, among) in [("", ALL), ("near-", NEAR)] {
            for changes in [1_000, 10_000, 100_000] {
                disk.disk.checkpoint()?;
                disk.change(changes, among)?;
                disk = disk.mount(&format!("{size}-used-{near}{changes}"))?;
            }
        }
        disk.change(100_000, ALL)?;
        disk.disk.checkpoint()?;
        disk.mount(&format!("{size}-ended"))?;
        // Wherever in the region the power goes.
        let mut disk = Booted::new(geometry, Some(region))?;
        disk.fill()?;
        for changes in [1_000, 10_000, 100_000] {
            disk.change(changes, ALL)?;
            disk = disk.mount(&format!("{size}-region-{region}-{changes}"))?;
        }
    }
    let geometry = paper(if quick { 8 } else { 128 });
    let size = format!("{}MiB", geometry.capacity() >> 20);
    for region in if quick { [8, 16, 32] } else { [64, 256, 1024] } {
        let mut disk = Booted::new(geometry, Some(region))?;
        disk.fill()?;
        disk.disk.checkpoint()?;
        // Delta pages that say 1,000 changes each.
        disk.change((region - 2) * 1000, ALL)?;
        disk.mount(&format!("{size}-full-{region}"))?;
    }
    Ok(())
}

/// The host's time for each write: random sectors, a flush every 2048, no collection. Small sectors
/// leave out most of copying and hashing of data, which is the hardware's work in a controller.
fn cpu(quick: bool) -> Result<(), Error> {
    for (row, sector_bytes, sectors) in [("map-work", 256, 16), ("with-data", 4096, 2)] {
        let geometry = Geometry {
            sector_bytes,
            sectors,
            spare_bytes: 128,
            pages: 1024 / sectors,
            ..Geometry::paper()
        };
        let memory = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry))?;
        let platform = nowhere::Nowhere::new(Emulated::new(memory));
        let shape = platform.shape();
        let options = Options {
            sectors: 1 << 19,
            epoch: EPOCH,
            region: None,
            volume: 1,
        };
        let mut disk = Ftl::format(platform, shape, Tuned::new(shape.dies), options)?;
        let data = vec![7; sector_bytes as usize];
        let mut rng = Rng::new(1);
        let writes = if quick { 1 << 14 } else { 1 << 17 };
        let mut best = f64::MAX;
        for _ in 0..8 {
            let begun = Instant::now();
            for i in 1..=writes {
                disk.write(rng.below(options.sectors), &data)?;
                if i % EPOCH == 0 {
                    disk.flush()?;
                }
            }
            best = best.min(begun.elapsed().as_secs_f64() / writes as f64);
        }
        let row = format!("cpu-{row}");
        record(&row, "writes/s", "higher", "steadfast", 1.0 / best);
    }
    let shape = shape_of(paper(96))?;
    let limits = Limits::largest(&shape, EPOCH)?;
    let gib = limits.sectors as f64 * SECTOR as f64 / f64::from(1 << 30);
    let kib = limits.memory_bytes(&shape) as f64 / 1024.0 / gib;
    record("memory", "KiB/GiB", "lower", "steadfast", kib);
    Ok(())
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    match arguments.first().map(String::as_str) {
        Some("figure5") => figure5(quick),
        Some("amplification") => amplification(quick),
        Some("boot") => boot(quick),
        Some("cpu") => cpu(quick),
        Some("volume") => volume::measure(quick),
        Some("deletes") => deletes::measure(quick),
        _ => Err(USAGE.into()),
    }
}
