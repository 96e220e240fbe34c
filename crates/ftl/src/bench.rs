//! Random writes of 4 KiB in virtual time (SCFTL §7.2): the snapshot-consistent layer
//! beside the layers that promise less, over the same memory with the same latencies.

use crate::baseline::{Baseline, BaselineKind};
use crate::emulated::{Emulated, shape_of};
use crate::error::FtlError;
use crate::ftl::{Ftl, Options};
use crate::limits::{Limits, TooSmall};
use crate::policy::Tuned;
use steadfast_flash::{FlashError, Geometry, Latency, MemoryStore, Nand, Rng};

/// The layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Snapshot-consistent: [`Ftl`].
    Snapshot,
    /// Without snapshots.
    Baseline(BaselineKind),
}

/// Load of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The memory.
    pub geometry: Geometry,
    /// Sectors of the disk.
    pub sectors: u64,
    /// Sectors in use.
    pub live: u64,
    /// Four writes of five go to a fifth of them.
    pub hot: bool,
    /// Random writes before the measurement, when all sectors are in use.
    pub aging: u64,
    /// Writes of an epoch.
    pub epoch: u64,
    /// Writes from one flush to the next.
    pub interval: u64,
    /// Writes that are measured.
    pub writes: u64,
}

/// Result, in virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Time from the first write until the last flush returned.
    pub nanoseconds: u64,
    /// Flushes.
    pub flushes: u64,
    /// Time in them.
    pub flush_nanoseconds: u64,
    /// The longest one.
    pub flush_worst_nanoseconds: u64,
    /// Pages programmed.
    pub programs: u64,
}

enum Disk {
    Snapshot(Box<Ftl<Emulated<MemoryStore>, Tuned>>),
    Baseline(Box<Baseline<MemoryStore>>),
}

impl Disk {
    fn new(kind: Kind, load: &Load) -> Result<Disk, FtlError<FlashError>> {
        let store = MemoryStore::new(&load.geometry);
        let nand = Nand::new(load.geometry, Latency::mlc(), store).map_err(FtlError::Flash)?;
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        let options = Options {
            sectors: load.sectors,
            epoch: load.epoch,
            region: None,
            volume: 1,
        };
        Ok(match kind {
            Kind::Snapshot => {
                let policy = Tuned::new(shape.dies);
                Disk::Snapshot(Box::new(Ftl::format(platform, shape, policy, options)?))
            }
            Kind::Baseline(kind) => {
                let limits =
                    Limits::derive(&shape, load.sectors, load.epoch).map_err(FtlError::TooSmall)?;
                Disk::Baseline(Box::new(Baseline::new(platform, kind, limits)))
            }
        })
    }

    fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), FtlError<FlashError>> {
        match self {
            Disk::Snapshot(disk) => disk.write(sector, data),
            Disk::Baseline(disk) => disk.write(sector, data).map_err(FtlError::Flash),
        }
    }

    fn flush(&mut self) -> Result<(), FtlError<FlashError>> {
        match self {
            Disk::Snapshot(disk) => disk.flush(),
            Disk::Baseline(disk) => disk.flush().map_err(FtlError::Flash),
        }
    }

    /// Virtual time, and pages programmed.
    fn gauges(&self) -> (u64, u64) {
        let nand = match self {
            Disk::Snapshot(disk) => disk.platform().nand(),
            Disk::Baseline(disk) => disk.platform().nand(),
        };
        (nand.now(), nand.counts().programs)
    }
}

/// The largest load's disk that fits a memory.
///
/// # Errors
/// [`TooSmall`] if none does.
pub fn largest(geometry: &Geometry, epoch: u64) -> Result<u64, TooSmall> {
    Limits::largest(&shape_of(geometry), epoch).map(|limits| limits.sectors)
}

/// Uses sectors in order, ages the disk, and then measures. `progress` gets the
/// writes done so far, and their number.
///
/// # Errors
/// [`FtlError::TooSmall`], and errors of the layer.
pub fn measure(
    kind: Kind,
    load: &Load,
    seed: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Measured, FtlError<FlashError>> {
    let mut disk = Disk::new(kind, load)?;
    let mut rng = Rng::new(seed);
    let aging = load.live + load.aging;
    let total = aging + load.writes;
    let mut data = vec![0; load.geometry.sector_bytes as usize];
    let mut measured = Measured::default();
    let mut begun = disk.gauges();
    for i in 0..total {
        let sector = if i < load.live {
            i
        } else if load.hot && rng.below(5) > 0 {
            rng.below(load.live.div_ceil(5))
        } else {
            rng.below(load.live)
        };
        data[..8].copy_from_slice(&i.to_le_bytes());
        disk.write(sector, &data)?;
        let (done, interval) = if i < aging {
            (i + 1, load.epoch)
        } else {
            (i + 1 - aging, load.interval)
        };
        if done.is_multiple_of(interval) || i + 1 == aging || i + 1 == total {
            let before = disk.gauges().0;
            disk.flush()?;
            let took = disk.gauges().0 - before;
            measured.flushes += 1;
            measured.flush_nanoseconds += took;
            measured.flush_worst_nanoseconds = measured.flush_worst_nanoseconds.max(took);
        }
        if i + 1 == aging {
            measured = Measured::default();
            begun = disk.gauges();
        }
        if i % 4096 == 0 {
            progress(i, total);
        }
    }
    let ended = disk.gauges();
    measured.nanoseconds = ended.0 - begun.0;
    measured.programs = ended.1 - begun.1;
    Ok(measured)
}
