//! A disk on trial, for tests of crashes: the answers to clients are recorded, the power of the
//! flash memory can be cut, and faults can be planted to see that the record shows them.
//!
//! The *record* is a file: the hash of each block at the start, then every request in the order in
//! which the disk took it, each before the disk has it; a flush once more when it has succeeded, a
//! refused write once more to take it back. The file is written by system calls alone, and so
//! survives the process. `verdict` reads it.
//!
//! The *cut*: on SIGUSR1 the power goes after a further number of operations of the flash memory,
//! which depends on a seed, or at the latest after a short time. [`Nand::cut`] leaves pages and
//! blocks that were programmed or erased since the last sync old, new, torn or as garbage; then the
//! process kills itself. No client gets an answer after the power went.
//!
//! [`Nand::cut`]: steadfast_flash::Nand::cut

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use signal_hook::consts::SIGUSR1;
use steadfast_block::{
    BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, check_segments,
};
use steadfast_flash::{FlashError, ImageError, Rng, Store};
use steadfast_ftl::{Disk, DiskError, FtlError, cause};
use xxhash_rust::xxh3::xxh3_64;

use crate::medium::{Medium, Run};

/// Begins a record. Not the magic of a journal's record.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"STDFTRIA");
/// Kinds of entries: three numbers each.
pub(crate) const WRITE: u64 = 1;
pub(crate) const DISCARD: u64 = 2;
pub(crate) const FLUSH_BEGINS: u64 = 3;
pub(crate) const FLUSHED: u64 = 4;
pub(crate) const TAKEN_BACK: u64 = 5;
pub(crate) const ROLLED_BACK: u64 = 6;

/// Operations of the flash memory after which the power may go.
const OPERATIONS: u64 = 96;
/// Time after which the power goes even without them.
const QUIET: Duration = Duration::from_millis(300);

/// A fault that a test plants. Never there otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A flush is answered, but not carried out.
    FlushIgnored,
    /// Each write is carried out when the next one comes: the last one before a flush is carried out after it.
    WriteOvertaken,
    /// The disk flushes without being asked to.
    FlushUnasked,
    /// Trims are answered, but not carried out.
    TrimIgnored,
    /// After a return to the last flush, the last write is carried out again.
    WriteAfterRollBack,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 5] = [
        Fault::FlushIgnored,
        Fault::WriteOvertaken,
        Fault::FlushUnasked,
        Fault::TrimIgnored,
        Fault::WriteAfterRollBack,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::FlushIgnored => "flush-ignored",
            Fault::WriteOvertaken => "write-overtaken",
            Fault::FlushUnasked => "flush-unasked",
            Fault::TrimIgnored => "trim-ignored",
            Fault::WriteAfterRollBack => "write-after-rollback",
        }
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let found = Fault::ALL.into_iter().find(|fault| fault.name() == text);
        found.ok_or_else(|| {
            let names = Fault::ALL.map(Fault::name).join(", ");
            format!("'{text}' is none of {names}")
        })
    }
}

/// Options of a trial.
#[derive(Clone, Debug, Default)]
pub struct TrialOptions {
    /// File of the record; an existing file is replaced.
    pub record: Option<PathBuf>,
    /// SIGUSR1 cuts the power, as this seed says.
    pub cut: Option<u64>,
    /// A planted fault.
    pub fault: Option<Fault>,
}

impl TrialOptions {
    /// Whether there is anything to try.
    pub(crate) fn is_one(&self) -> bool {
        self.record.is_some() || self.cut.is_some() || self.fault.is_some()
    }
}

/// See the module's header. Takes the disk's requests one after another; reads side by side.
pub struct Trial<S: Store> {
    /// `None` when the power is gone.
    disk: RwLock<Option<Disk<S>>>,
    geometry: Geometry,
    log: Mutex<Log>,
    cut: Option<u64>,
    fault: Option<Fault>,
}

#[derive(Default)]
struct Log {
    file: Option<File>,
    /// Changes since the last flush: for faults that need some.
    changes: u64,
    /// A change that is held back, or the last one.
    last: Option<(BlockNo, Vec<u8>)>,
}

impl Log {
    fn add(&mut self, entries: &[[u64; 3]]) -> std::io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let words = entries.iter().flatten();
        file.write_all(
            &words
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>(),
        )
    }
}

fn record_failed(source: std::io::Error) -> DeviceError {
    DeviceError::Open {
        path: "the trial's record".to_owned(),
        source: Arc::new(source),
    }
}

/// The hash of a block in records.
pub(crate) fn hash(block: &[u8]) -> u64 {
    xxh3_64(block)
}

/// The hashes of all blocks of a disk.
pub(crate) fn hashes(disk: &dyn BlockDevice) -> steadfast_block::Result<Vec<u64>> {
    const STEP: u64 = 256;
    let blocks = disk.geometry().blocks;
    let mut hashes = Vec::new();
    let mut buffer = vec![0; STEP as usize * BLOCK_SIZE];
    for first in (0..blocks).step_by(STEP as usize) {
        let bytes = &mut buffer[..STEP.min(blocks - first) as usize * BLOCK_SIZE];
        disk.read(BlockNo(first), bytes)?;
        hashes.extend(bytes.chunks_exact(BLOCK_SIZE).map(hash));
    }
    Ok(hashes)
}

impl<S: Store + Send + Sync + 'static> Trial<S> {
    /// Puts a disk on trial. `exact`: it never flushes on its own.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn new(
        disk: Disk<S>,
        exact: bool,
        options: &TrialOptions,
    ) -> Result<Arc<Trial<S>>, DiskError> {
        let mut log = Log::default();
        if let Some(path) = &options.record {
            let begin = || -> std::io::Result<File> {
                let mut options = File::options();
                let options = options.write(true).create(true).truncate(true);
                let mut file = options.mode(0o600).open(path)?;
                let hashes = hashes(&disk).map_err(std::io::Error::other)?;
                let head = [MAGIC, exact.into(), hashes.len() as u64];
                let words = head.iter().chain(&hashes);
                let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
                file.write_all(&bytes).map(|()| file)
            };
            let file = begin().map_err(|source| {
                let path = path.clone();
                DiskError::Image(ImageError::Io { path, source })
            })?;
            log.file = Some(file);
        }
        Ok(Arc::new(Trial {
            geometry: disk.geometry(),
            disk: RwLock::new(Some(disk)),
            log: Mutex::new(log),
            cut: options.cut,
            fault: options.fault,
        }))
    }

    /// Waits for the signal that cuts the power, on a thread of its own.
    ///
    /// # Errors
    /// If there can be no such thread.
    pub fn listen(self: &Arc<Trial<S>>) -> Result<(), DiskError> {
        let trial = Arc::clone(self);
        let mut signals =
            signal_hook::iterator::Signals::new([SIGUSR1]).map_err(FlashError::Store)?;
        std::thread::Builder::new()
            .name("power".to_owned())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    let seed = trial.cut.unwrap_or(0);
                    trial.plan_cut(Rng::new(seed).below(OPERATIONS));
                    std::thread::sleep(QUIET);
                    trial.power_off();
                }
            })
            .map_err(FlashError::Store)?;
        Ok(())
    }

    /// The disk again. `None` if the power is gone, or others still have it.
    #[must_use]
    pub fn into_disk(self: Arc<Trial<S>>) -> Option<Disk<S>> {
        let disk = Arc::into_inner(self)?.disk.into_inner();
        disk.unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power after `operations` further operations of the flash memory.
    pub fn plan_cut(&self, operations: u64) {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(disk) = &*disk {
            disk.look(|layer| layer.platform_mut().nand_mut().cut_after(operations));
        }
    }

    /// Leaves the image as the cut leaves it, and ends the process at once.
    fn power_off(&self) -> ! {
        let mut disk = self.disk.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(nand) = disk.take().and_then(Disk::into_nand) {
            let cut = nand.cut(self.cut.unwrap_or(0));
            if let Err(error) = &cut {
                let _ = writeln!(std::io::stderr(), "cutting the power: {error}");
            }
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
        // Another thread has done it.
        loop {
            std::thread::park();
        }
    }

    /// Carries out one request, unless the power is gone: then no thread returns from here.
    fn request<T>(
        &self,
        request: impl FnOnce(&Disk<S>) -> steadfast_block::Result<T>,
    ) -> steadfast_block::Result<T> {
        let outcome = {
            let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
            disk.as_ref().map(request)
        };
        let dark = |error: &DeviceError| {
            let lost = |e: &FtlError<_>| {
                matches!(
                    e,
                    FtlError::Flash(FlashError::PowerLost) | FtlError::Stopped
                )
            };
            self.cut.is_some() && cause(error).is_some_and(lost)
        };
        match outcome {
            Some(Err(error)) if dark(&error) => self.power_off(),
            Some(outcome) => outcome,
            None => self.power_off(),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        log: &mut Log,
        entries: &[[u64; 3]],
        change: impl FnOnce(&Disk<S>) -> steadfast_block::Result<()>,
    ) -> steadfast_block::Result<()> {
        log.add(entries).map_err(record_failed)?;
        log.changes += 1;
        let outcome = self.request(change);
        // After any other error some of it may have been done.
        let refused = |e: &DeviceError| matches!(cause(e), Some(FtlError::EpochFull { .. }));
        if outcome.as_ref().is_err_and(refused) {
            (log.add(&[[TAKEN_BACK, entries.len() as u64, 0]])).map_err(record_failed)?;
        }
        if self.fault == Some(Fault::FlushUnasked) && log.changes.is_multiple_of(7) {
            self.request(Disk::flush)?;
        }
        outcome
    }
}

impl<S: Store + Send + Sync + 'static> BlockDevice for Trial<S> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.request(|disk| disk.read(at, buf))
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        let count = check_segments(at, segments, self.geometry.blocks)?;
        let blocks = segments.iter().flat_map(|s| s.chunks_exact(BLOCK_SIZE));
        let entries: Vec<[u64; 3]> = (at.0..at.0 + count)
            .zip(blocks)
            .map(|(block, bytes)| [WRITE, block, hash(bytes)])
            .collect();
        let mut log = self.log();
        if matches!(
            self.fault,
            Some(Fault::WriteOvertaken | Fault::WriteAfterRollBack)
        ) {
            // A write that was held back is carried out before the next.
            let held = log.last.replace((at, segments.concat()));
            if self.fault == Some(Fault::WriteOvertaken) {
                log.add(&entries).map_err(record_failed)?;
                return held.map_or(Ok(()), |(at, data)| {
                    self.request(|disk| disk.write(at, &[&data]))
                });
            }
        }
        self.change(&mut log, &entries, |disk| disk.write(at, segments))
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        let mut log = self.log();
        log.add(&[[FLUSH_BEGINS, 0, 0]]).map_err(record_failed)?;
        if self.fault != Some(Fault::FlushIgnored) {
            self.request(Disk::flush)?;
        }
        log.changes = 0;
        log.add(&[[FLUSHED, 0, 0]]).map_err(record_failed)
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        steadfast_block::check_count(DeviceOp::Discard, at, count, self.geometry.blocks)?;
        let mut log = self.log();
        self.change(&mut log, &[[DISCARD, at.0, count]], |disk| {
            match self.fault {
                Some(Fault::TrimIgnored) => Ok(()),
                _ => disk.discard(at, count),
            }
        })
    }
}

impl<S: Store + Send + Sync + 'static> Medium for Trial<S> {
    fn epoch_blocks(&self) -> u64 {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
        disk.as_ref().map_or(0, Medium::epoch_blocks)
    }

    fn run(&self, range: Range<BlockNo>) -> steadfast_block::Result<Run> {
        self.request(|disk| Medium::run(disk, range))
    }

    fn roll_back(&self) -> Result<(), DiskError> {
        let mut log = self.log();
        {
            let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner);
            disk.as_ref().map_or(Ok(()), Disk::rollback)?;
        }
        let recorded = log.add(&[[ROLLED_BACK, 0, 0]]);
        recorded.map_err(FlashError::Store)?;
        if self.fault == Some(Fault::WriteAfterRollBack)
            && let Some((at, data)) = log.last.take()
        {
            let again = self.request(|disk| disk.write(at, &[&data]));
            again.map_err(|e| FlashError::Store(std::io::Error::other(e)))?;
        }
        Ok(())
    }
}

impl<S: Store> std::fmt::Debug for Trial<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trial")
            .field("geometry", &self.geometry)
            .field("cut", &self.cut)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// The hash of a block of zeros.
pub(crate) fn hash_of_zeros() -> u64 {
    const ZEROS: Block = [0; BLOCK_SIZE];
    hash(&ZEROS)
}
