//! The stress test of SCFTL §7.1, and more: random writes, trims and flushes over an
//! emulated memory, with power cuts at random operations, also in recovery, and failures of
//! programs, erases and reads; golden arrays have the expected content. After some cuts one bit of the memory rots in
//! a copy: no mount of that may return to an older state than the flush before the newest.
//!
//! A run is decided by its [`Plan`] and seed, and repeats exactly.

use crate::Emulated;
use crate::error::FtlError;
use crate::ftl::{DELTA, Faults, Ftl, Options, Stats};
use crate::limits::{Intervals, Limits};
use crate::policy::Tuned;
use steadfast_flash::{Address, FlashError, Geometry, Latency, MemoryStore, Nand, Rates, Rng};

/// If erases may fail, both blocks that the delta stream announces go bad at one power cut in this number.
const SPOILED_ONE_IN: u64 = 8;
/// Bits that rot after a power cut, each in a copy of its own.
const ROTS: u64 = 2;

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name, for reports.
    pub name: &'static str,
    /// The memory.
    pub geometry: Geometry,
    /// Writes of an epoch.
    pub epoch: u64,
    /// The disk's share of the largest that fits, in percent.
    pub percent: u64,
    /// Failures.
    pub rates: Rates,
    /// One operation in this many is a flush.
    pub flush_one_in: u64,
    /// A power cut is planned once in this many operations.
    pub cut_one_in: u64,
    /// One write in this many is a trim instead; 0: none.
    pub trim_one_in: u64,
    /// One trim in this many begins within the last one, or before it; 0: none but by chance.
    pub overlap_one_in: u64,
    /// Three quarters of the writes go to this share of the disk, in percent; 0: uniform.
    pub hot_percent: u64,
    /// The delta region.
    pub region: Option<u64>,
    /// One operation in this many ends gracefully, with a checkpoint; 0: none.
    pub end_one_in: u64,
}

/// The configurations.
#[must_use]
pub fn plans() -> [Plan; 5] {
    let small = Geometry {
        channels: 1,
        dies: 1,
        blocks: 96,
        pages: 16,
        sectors: 2,
        sector_bytes: 256,
        spare_bytes: 64,
    };
    let base = Plan {
        name: "uniform",
        geometry: small,
        epoch: 24,
        percent: 100,
        rates: Rates::default(),
        flush_one_in: 8,
        cut_one_in: 2000,
        trim_one_in: 0,
        overlap_one_in: 0,
        hot_percent: 0,
        region: None,
        end_one_in: 0,
    };
    [
        base.clone(),
        Plan {
            name: "parallel, hot and cold, trims",
            geometry: Geometry {
                channels: 2,
                dies: 2,
                blocks: 64,
                pages: 8,
                sectors: 4,
                sector_bytes: 128,
                ..small
            },
            epoch: 40,
            percent: 90,
            trim_one_in: 12,
            overlap_one_in: 2,
            hot_percent: 10,
            ..base.clone()
        },
        Plan {
            name: "flush after nearly every write",
            geometry: Geometry {
                channels: 2,
                dies: 1,
                blocks: 64,
                sectors: 1,
                sector_bytes: 512,
                ..small
            },
            epoch: 8,
            percent: 60,
            flush_one_in: 2,
            hot_percent: 4,
            trim_one_in: 40,
            ..base.clone()
        },
        Plan {
            name: "failing",
            geometry: Geometry {
                channels: 2,
                dies: 2,
                blocks: 64,
                ..small
            },
            epoch: 32,
            percent: 40,
            rates: Rates {
                program: 60,
                erase: 200,
                read: 0,
            },
            trim_one_in: 20,
            overlap_one_in: 3,
            ..base.clone()
        },
        Plan {
            name: "graceful ends, and a delta region of its own",
            epoch: 32,
            percent: 60,
            rates: Rates {
                program: 20,
                erase: 60,
                read: 0,
            },
            cut_one_in: 700,
            trim_one_in: 20,
            overlap_one_in: 3,
            region: Some(12),
            end_one_in: 500,
            ..base
        },
    ]
}

/// Result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Writes.
    pub writes: u64,
    /// Trims.
    pub trims: u64,
    /// Flushes that returned.
    pub flushes: u64,
    /// Graceful ends that returned.
    pub ends: u64,
    /// Power cuts, those in recovery included.
    pub crashes: u64,
    /// Power cuts in recovery.
    pub recovery_crashes: u64,
    /// Power cuts in a flush, which took place.
    pub flushed_crashes: u64,
    /// Sectors compared.
    pub compared: u64,
    /// Disks made: one that wears out is followed by another.
    pub disks: u64,
    /// Sectors that the layer moved, over all mounts.
    pub moved: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Blocks that failed.
    pub failed_blocks: u64,
    /// Commits added when the reserve was short.
    pub extra_commits: u64,
    /// Power cuts with which the delta stream's announced blocks went bad.
    pub spoiled: u64,
    /// Bits that rotted, each in a copy of its own.
    pub rotted: u64,
    /// Mounts that refused such a copy.
    pub refused: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.writes += other.writes;
        self.trims += other.trims;
        self.flushes += other.flushes;
        self.ends += other.ends;
        self.crashes += other.crashes;
        self.recovery_crashes += other.recovery_crashes;
        self.flushed_crashes += other.flushed_crashes;
        self.compared += other.compared;
        self.disks += other.disks;
        self.moved += other.moved;
        self.checkpoints += other.checkpoints;
        self.failed_blocks += other.failed_blocks;
        self.extra_commits += other.extra_commits;
        self.spoiled += other.spoiled;
        self.rotted += other.rotted;
        self.refused += other.refused;
    }
}

/// A promise that was broken, and where.
#[derive(Debug, thiserror::Error)]
#[error("{plan}, seed {seed}, operation {operation}: {what}")]
pub struct Broken {
    /// Name of the plan.
    pub plan: &'static str,
    /// The run's seed.
    pub seed: u64,
    /// Number of the operation.
    pub operation: u64,
    /// Description.
    pub what: String,
}

type Disk = Ftl<Emulated<MemoryStore>, Tuned>;
type Failure = FtlError<FlashError>;

struct Run<'a> {
    plan: &'a Plan,
    rng: Rng,
    /// Chooses the bits that rot, so that the history does not depend on them.
    rot: Rng,
    faults: Faults,
    sectors: u64,
    /// As of the flush before the last, of the last, and now.
    older: Vec<u64>,
    stable: Vec<u64>,
    volatile: Vec<u64>,
    stamp: u64,
    volume: u64,
    last_trim: u64,
    buffer: Vec<u8>,
    report: Report,
}

/// Runs a plan until `operations` are done.
///
/// # Errors
/// [`Broken`]: the first promise that did not hold.
pub fn run(plan: &Plan, seed: u64, operations: u64, faults: Faults) -> Result<Report, Broken> {
    let mut operation = 0;
    let broken = |operation, what| Broken {
        plan: plan.name,
        seed,
        operation,
        what,
    };
    let mut run = Run::new(plan, seed, faults).map_err(|what| broken(0, what))?;
    let mut disk = run.fresh().map_err(|what| broken(0, what))?;
    while operation < operations {
        operation += 1;
        disk = (run.step(disk)).map_err(|what| broken(operation, what))?;
    }
    run.compare(&mut disk, &run.volatile.clone())
        .map_err(|what| broken(operation, what))?;
    run.count(disk.stats());
    Ok(run.report)
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, seed: u64, faults: Faults) -> Result<Run<'a>, String> {
        let nand = memory(plan).map_err(|e| e.to_string())?;
        let shape = Emulated::new(nand).shape();
        let intervals = Intervals {
            epoch: plan.epoch,
            region: plan.region,
        };
        let limits = Limits::largest(&shape, intervals).map_err(|e| e.to_string())?;
        let most = limits.sectors;
        let sectors = (most * plan.percent / 100).max(1);
        Ok(Run {
            plan,
            rng: Rng::new(seed),
            rot: Rng::new(seed ^ 0x726F_7400),
            faults,
            sectors,
            older: vec![0; sectors as usize],
            stable: vec![0; sectors as usize],
            volatile: vec![0; sectors as usize],
            stamp: 0,
            volume: 0,
            last_trim: 0,
            buffer: vec![0; plan.geometry.sector_bytes as usize],
            report: Report::default(),
        })
    }

    fn fresh(&mut self) -> Result<Disk, String> {
        self.report.disks += 1;
        self.volume += 1;
        let mut nand = memory(self.plan).map_err(|e| e.to_string())?;
        nand.set_rates(self.plan.rates, self.rng.number());
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        let options = Options {
            sectors: self.sectors,
            epoch: self.plan.epoch,
            region: self.plan.region,
            volume: self.volume,
        };
        for golden in [&mut self.older, &mut self.stable, &mut self.volatile] {
            golden.fill(0);
        }
        let disk = Ftl::format(platform, shape, Tuned::new(shape.dies), options)
            .map_err(|e| format!("format: {e}"))?;
        // Mounting plants the faults.
        self.mount(disk.into_platform().into_nand())
            .map_err(|e| format!("first mount: {e}"))
    }

    fn mount(&self, nand: Nand<MemoryStore>) -> Result<Disk, Failure> {
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        Ftl::mount_with(platform, shape, Tuned::new(shape.dies), self.faults)
    }

    /// One operation, and its effects.
    fn step(&mut self, mut disk: Disk) -> Result<Disk, String> {
        if self.rng.below(self.plan.cut_one_in) == 0 {
            let operations = match self.rng.below(3) {
                0 => self.rng.below(4),
                1 => self.rng.below(60),
                _ => self.rng.below(1000),
            };
            disk.platform_mut().nand_mut().cut_after(operations);
        }
        let choice = self.rng.below(self.plan.flush_one_in);
        let ending = self.plan.end_one_in > 0 && self.rng.below(self.plan.end_one_in) == 0;
        let mut flushing = false;
        let result = if ending {
            flushing = true;
            self.end(&mut disk)
        } else if choice == 0 || disk.room() == 0 {
            flushing = true;
            self.flush(&mut disk)
        } else if self.rng.below(64) == 0 {
            self.read_one(&mut disk)?;
            Ok(())
        } else if self.plan.trim_one_in > 0 && self.rng.below(self.plan.trim_one_in) == 0 {
            self.trim(&mut disk)
        } else {
            self.write(&mut disk)
        };
        if self.rng.below(20_000) == 0 && result.is_ok() {
            self.compare(&mut disk, &self.volatile.clone())?;
        }
        match result {
            Ok(()) => Ok(disk),
            Err(FtlError::Flash(FlashError::PowerLost)) => self.crash(disk, flushing),
            Err(FtlError::WornOut) if self.plan.rates != Rates::default() => {
                // Nothing may be lost: the disk still has its content, also after a mount.
                let disk = self.crash(disk, flushing)?;
                self.count(disk.stats());
                self.fresh()
            }
            Err(error) => Err(format!("unexpected error: {error}")),
        }
    }

    fn pick(&mut self) -> u64 {
        let hot = self.sectors * self.plan.hot_percent / 100;
        if hot > 0 && self.rng.below(4) > 0 {
            self.rng.below(hot)
        } else {
            self.rng.below(self.sectors)
        }
    }

    fn write(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let sector = self.pick();
        self.stamp += 1;
        fill(&mut self.buffer, sector, self.stamp);
        disk.write(sector, &self.buffer)?;
        self.volatile[sector as usize] = self.stamp;
        self.report.writes += 1;
        Ok(())
    }

    fn trim(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let one_in = self.plan.overlap_one_in;
        let first = if one_in > 0 && self.rng.below(one_in) == 0 {
            (self.last_trim + self.rng.below(9)).saturating_sub(4) % self.sectors
        } else {
            self.pick()
        };
        let count = 1 + self.rng.below((self.sectors - first).min(9));
        disk.trim(first, count)?;
        self.last_trim = first;
        self.volatile[first as usize..(first + count) as usize].fill(0);
        self.report.trims += 1;
        Ok(())
    }

    fn flush(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        disk.flush()?;
        self.advance();
        self.report.flushes += 1;
        Ok(())
    }

    fn end(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        disk.checkpoint()?;
        self.advance();
        self.report.ends += 1;
        Ok(())
    }

    /// A flush has taken place, perhaps with nothing to do.
    fn advance(&mut self) {
        if self.stable != self.volatile {
            self.older.copy_from_slice(&self.stable);
            self.stable.copy_from_slice(&self.volatile);
        }
    }

    /// One bit of a copy of the memory rots. A mount refuses it, or the disk has the state of its newest flush or of the
    /// one before, except sectors that are named as lost.
    fn rot(&mut self, nand: &Nand<MemoryStore>, flushing: bool) -> Result<(), String> {
        let geometry = *nand.geometry();
        let at = Address {
            block: self.rot.below(geometry.all_blocks().into()) as u32,
            page: self.rot.below(geometry.pages.into()) as u32,
        };
        let bit = self.rot.below(8 * geometry.raw_bytes() as u64) as usize;
        let mut nand = nand.clone();
        nand.damage(at, |page| page[bit / 8] ^= 1 << (bit % 8))
            .map_err(|e| e.to_string())?;
        self.report.rotted += 1;
        let mut disk = match self.mount(nand) {
            Ok(disk) => disk,
            Err(FtlError::Corrupt { .. }) => {
                self.report.refused += 1;
                return Ok(());
            }
            Err(FtlError::WornOut) if self.plan.rates != Rates::default() => return Ok(()),
            Err(error) => return Err(format!("mount with a bit of {at} changed: {error}")),
        };
        let mut is = [true, true, flushing];
        for sector in 0..self.sectors {
            let found = match self.stamp_of(&mut disk, sector) {
                Ok(found) => found,
                Err(FtlError::Damaged { .. } | FtlError::Corrupt { .. }) => continue,
                Err(error) => return Err(format!("a bit of {at} changed: {error}")),
            };
            let golden = [&self.older, &self.stable, &self.volatile];
            for (is, golden) in is.iter_mut().zip(golden) {
                *is &= golden[sector as usize] == found;
            }
        }
        if is.contains(&true) {
            return Ok(());
        }
        Err(format!(
            "with a bit of {at} changed the disk is an older one"
        ))
    }

    fn read_one(&mut self, disk: &mut Disk) -> Result<(), String> {
        let sector = self.pick();
        match self.stamp_of(disk, sector) {
            Ok(found) if found == self.volatile[sector as usize] => Ok(()),
            Ok(found) => Err(format!(
                "sector {sector} reads as write {found}, not {}",
                self.volatile[sector as usize]
            )),
            Err(FtlError::Flash(FlashError::PowerLost)) => Ok(()),
            Err(error) => Err(format!("reading sector {sector}: {error}")),
        }
    }

    /// The write whose bytes a sector holds.
    fn stamp_of(&mut self, disk: &mut Disk, sector: u64) -> Result<u64, Failure> {
        let mut bytes = vec![0; self.buffer.len()];
        disk.read(sector, &mut bytes)?;
        self.report.compared += 1;
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[..8]);
        let stamp = u64::from_le_bytes(word);
        if stamp != 0 {
            fill(&mut self.buffer, sector, stamp);
            if bytes != self.buffer {
                return Ok(u64::MAX);
            }
        }
        Ok(stamp)
    }

    fn compare(&mut self, disk: &mut Disk, golden: &[u64]) -> Result<(), String> {
        disk.platform_mut().nand_mut().cut_after(u64::MAX);
        for sector in 0..self.sectors {
            let found = (self.stamp_of(disk, sector))
                .map_err(|e| format!("reading sector {sector}: {e}"))?;
            if found != golden[sector as usize] {
                return Err(format!(
                    "sector {sector} reads as write {found}, not {}",
                    golden[sector as usize]
                ));
            }
        }
        disk.check().map_err(|e| format!("check: {e}"))
    }

    /// Power cut, mount (with more cuts), and the comparison with the states that a crash may leave.
    fn crash(&mut self, disk: Disk, flushing: bool) -> Result<Disk, String> {
        self.count(disk.stats());
        let announced = disk.streams[DELTA].next;
        let mut nand = disk.into_platform().into_nand();
        if self.plan.rates.erase > 0 && self.rng.below(SPOILED_ONE_IN) == 0 {
            self.report.spoiled += 1;
            for block in announced {
                (nand.mark_bad(block as u32)).map_err(|e| e.to_string())?;
            }
        }
        loop {
            self.report.crashes += 1;
            nand = nand.cut(self.rng.number()).map_err(|e| e.to_string())?;
            if self.rng.below(2) == 0 {
                break;
            }
            // A cut in recovery; or a mount that is not used.
            nand.cut_after(self.rng.below(400));
            let mut platform = Emulated::new(nand);
            let shape = platform.shape();
            let policy = Tuned::new(shape.dies);
            let attempt = Ftl::mount_with(&mut platform, shape, policy, self.faults);
            match attempt.map(drop) {
                Ok(()) => {}
                Err(FtlError::Flash(FlashError::PowerLost)) => self.report.recovery_crashes += 1,
                Err(FtlError::WornOut) if self.plan.rates != Rates::default() => {}
                Err(error) => return Err(format!("mount: {error}")),
            }
            nand = platform.into_nand();
        }
        for _ in 0..ROTS {
            self.rot(&nand, flushing)?;
        }
        let mut disk = match self.mount(nand) {
            Ok(disk) => disk,
            Err(FtlError::WornOut) if self.plan.rates != Rates::default() => return self.fresh(),
            Err(error) => return Err(format!("mount: {error}")),
        };
        let (stable, volatile) = (self.stable.clone(), self.volatile.clone());
        let back = self.compare(&mut disk, &stable);
        if let Err(what) = back {
            if !flushing {
                return Err(format!("after a crash: {what}"));
            }
            self.compare(&mut disk, &volatile)
                .map_err(|also| format!("after a crash in a flush: {what}; {also}"))?;
            self.report.flushed_crashes += 1;
            self.advance();
        }
        self.volatile.copy_from_slice(&self.stable);
        Ok(disk)
    }

    fn count(&mut self, stats: Stats) {
        self.report.moved += stats.moved;
        self.report.checkpoints += stats.checkpoints;
        self.report.failed_blocks += stats.failed_blocks;
        self.report.extra_commits += stats.extra_commits;
    }
}

fn memory(plan: &Plan) -> Result<Nand<MemoryStore>, FlashError> {
    let store = MemoryStore::new(&plan.geometry);
    Nand::new(plan.geometry, Latency::none(), store)
}

/// A sector's bytes say which write they are of, from end to end.
fn fill(bytes: &mut [u8], sector: u64, stamp: u64) {
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = if i == 0 {
            stamp
        } else {
            (stamp << 20) ^ (sector << 8) ^ i as u64
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}
