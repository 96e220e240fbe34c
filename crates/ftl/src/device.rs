//! The layer as a [`BlockDevice`]: blocks of 4 KiB, any number of threads, contract *snapshot*.
//!
//! After a crash the disk has the state of its last flush, nothing older and nothing newer. So
//! an epoch (all writes between two flushes) must fit the bound that was set when the disk was
//! formatted, and a disk that flushed on its own would break its promise. The opener chooses
//! the handling of a request that does not fit ([`WhenFull`]). In each case the whole request
//! is admitted before any of it is carried out: none is carried out in part, and none dropped.
//!
//! One lock guards the layer. Order of a write: it is admitted, then written sector by sector under
//! the lock, so that a flush has all of a request or nothing. A flush returns after the layer's
//! flush; `flush.rs` describes its order. After a failure the layer has stopped: nothing more is
//! committed, and [`Disk::rollback`] returns to the last flush, as a crash would.

use crate::emulated::{Emulated, shape_of};
use crate::error::FtlError;
use crate::ftl::{Ftl, Options, Stats};
use crate::limits::{Intervals, Limits, TooSmall};
use crate::policy::Tuned;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Snapshot, Ticket,
    check_count, check_range, check_segments,
};
use steadfast_flash::{FlashError, ImageError, ImageStore, Latency, Nand, Overlay, Store};

type Layer<S> = Ftl<Emulated<S>, Tuned>;
type Failure = FtlError<FlashError>;

/// Handling of a request that the epoch has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenFull {
    /// Waits at most this time for a flush by another thread, then is refused with
    /// [`FtlError::EpochFull`]. No part of it was done; the client flushes and repeats it.
    Wait(Duration),
    /// Flushes, and goes on. For clients that expect no more of a disk than a bounded cache, and
    /// do not know of epochs: after a crash the disk has the state of the last flush, or of
    /// a later moment when an epoch was full. Writes still survive in their order, and whole if
    /// they fit an epoch.
    Flush,
}

impl Default for WhenFull {
    fn default() -> WhenFull {
        WhenFull::Wait(Duration::from_secs(5))
    }
}

/// Error of making or opening a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process, or this one, has the image open.
    #[error("{path} is in use: close it there first")]
    InUse {
        /// The image.
        path: PathBuf,
    },
    /// The image file.
    #[error(transparent)]
    Image(ImageError),
    /// The layer, or the flash memory.
    #[error(transparent)]
    Layer(#[from] Failure),
    /// Blocks are not made of whole sectors.
    #[error(
        "sectors of {bytes} bytes make no blocks of {BLOCK_SIZE}: use {BLOCK_SIZE}, or an even part of it"
    )]
    Sectors {
        /// Bytes of a sector.
        bytes: u32,
    },
}

impl From<FlashError> for DiskError {
    fn from(error: FlashError) -> DiskError {
        DiskError::Layer(FtlError::Flash(error))
    }
}

impl From<TooSmall> for DiskError {
    fn from(error: TooSmall) -> DiskError {
        DiskError::Layer(FtlError::TooSmall(error))
    }
}

/// Error of the layer, if it was the layer that refused or failed.
#[must_use]
pub fn cause(error: &DeviceError) -> Option<&FtlError<FlashError>> {
    match error {
        DeviceError::Io { source, .. } => source.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// A number for [`Options::volume`] that no other disk is likely to have.
#[must_use]
pub fn random_volume() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// The geometry for a disk of `sectors` sectors: that of `like`, with as many blocks on each die
/// as the disk needs, and `spare_percent` of its size beside it, as far as places can be numbered.
/// The more there is to spare, the less is moved.
///
/// # Errors
/// [`TooSmall`] if no number of blocks will do.
pub fn geometry_for(
    like: steadfast_flash::Geometry,
    sectors: u64,
    intervals: impl Into<Intervals>,
    spare_percent: u64,
) -> Result<steadfast_flash::Geometry, TooSmall> {
    let intervals = intervals.into();
    let with = |blocks: u32| steadfast_flash::Geometry { blocks, ..like };
    let wanted =
        u128::from(sectors) * u128::from(like.sector_bytes) * u128::from(100 + spare_percent) / 100;
    let fits = |blocks: u32| {
        let geometry = with(blocks);
        u128::from(geometry.capacity()) >= wanted
            && Limits::derive(&shape_of(&geometry), sectors, intervals).is_ok()
    };
    let checked = |geometry: steadfast_flash::Geometry| {
        let wrong = |e: steadfast_flash::GeometryError| TooSmall::Geometry {
            what: e.what,
            value: e.value,
            must: e.must,
        };
        geometry.check().map_err(wrong)
    };
    checked(with(1))?;
    let mut enough = 1;
    while !fits(enough) {
        let twice = with(enough * 2);
        if checked(twice).is_err() || shape_of(&twice).place_bits() > 31 {
            return Limits::derive(&shape_of(&with(enough)), sectors, intervals)
                .map(|_| with(enough));
        }
        enough *= 2;
    }
    let mut short = enough / 2;
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Ok(with(enough))
}

/// A snapshot-consistent disk over an emulated flash memory. See the module's header. Dropped, it
/// flushes nothing: only the client's flushes decide what survives.
pub struct Disk<S: Store> {
    /// `None` only when a rollback failed.
    layer: Mutex<Option<Box<Layer<S>>>>,
    /// Notified after each flush.
    flushed: Condvar,
    blocks: u64,
    epoch_blocks: u64,
    sector_bytes: usize,
    when_full: WhenFull,
    read_only: bool,
}

impl Disk<ImageStore> {
    /// Makes an image file with a new, empty disk in it; an existing file is refused.
    ///
    /// # Errors
    /// [`DiskError`]; no file is left.
    pub fn create(
        path: &Path,
        geometry: steadfast_flash::Geometry,
        options: Options,
        when_full: WhenFull,
    ) -> Result<Disk<ImageStore>, DiskError> {
        geometry.check().map_err(FlashError::Geometry)?;
        check_sectors(&geometry)?;
        Limits::derive(&shape_of(&geometry), options.sectors, options.intervals())?;
        let store = ImageStore::create(path, geometry).map_err(image_error)?;
        let made = Nand::new(geometry, Latency::none(), store)
            .map_err(DiskError::from)
            .and_then(|nand| Disk::format(nand, options, when_full));
        if made.is_err() {
            // Our own file, which holds no disk: best effort.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Opens an image file, alone, and returns to the last flush of the disk in it.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(path: &Path, when_full: WhenFull) -> Result<Disk<ImageStore>, DiskError> {
        let store = ImageStore::open(path).map_err(image_error)?;
        let nand = Nand::new(store.geometry(), Latency::none(), store)?;
        Disk::mount(nand, when_full)
    }
}

impl Disk<Overlay<ImageStore>> {
    /// Opens an image file to look at the disk in it, together with others that do the same.
    /// The mount's programs stay in memory: the file is not changed. Writes are refused.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open_read_only(path: &Path) -> Result<Disk<Overlay<ImageStore>>, DiskError> {
        Disk::look_at(ImageStore::open_read_only(path).map_err(image_error)?)
    }

    /// The same, also while another process writes: the pages read may then be of different moments, so
    /// that errors mean nothing.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn peek(path: &Path) -> Result<Disk<Overlay<ImageStore>>, DiskError> {
        Disk::look_at(ImageStore::peek(path).map_err(image_error)?)
    }

    fn look_at(
        (store, geometry): (Overlay<ImageStore>, steadfast_flash::Geometry),
    ) -> Result<Disk<Overlay<ImageStore>>, DiskError> {
        let nand = Nand::new(geometry, Latency::none(), store)?;
        let mut disk = Disk::mount(nand, WhenFull::default())?;
        disk.read_only = true;
        Ok(disk)
    }
}

impl<S: Store> Disk<S> {
    /// Makes a new, empty disk; the content of the memory is lost.
    ///
    /// # Errors
    /// [`DiskError::Sectors`], and those of [`Ftl::format`].
    pub fn format(
        nand: Nand<S>,
        options: Options,
        when_full: WhenFull,
    ) -> Result<Disk<S>, DiskError> {
        check_sectors(nand.geometry())?;
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        let layer = Ftl::format(platform, shape, Tuned::new(shape.dies), options)?;
        Ok(Disk::over(layer, when_full))
    }

    /// Returns to the last flush of the disk that the memory holds.
    ///
    /// # Errors
    /// [`DiskError::Sectors`], and those of [`Ftl::mount`].
    pub fn mount(nand: Nand<S>, when_full: WhenFull) -> Result<Disk<S>, DiskError> {
        check_sectors(nand.geometry())?;
        Ok(Disk::over(mounted(nand)?, when_full))
    }

    fn over(layer: Layer<S>, when_full: WhenFull) -> Disk<S> {
        let sector_bytes = layer.platform().nand().geometry().sector_bytes as usize;
        let per_block = (BLOCK_SIZE / sector_bytes) as u64;
        Disk {
            blocks: layer.limits().sectors / per_block,
            epoch_blocks: layer.limits().epoch / per_block,
            layer: Mutex::new(Some(Box::new(layer))),
            flushed: Condvar::new(),
            sector_bytes,
            when_full,
            read_only: false,
        }
    }

    /// Limits of the disk. `None` after a rollback that failed.
    pub fn limits(&self) -> Option<Limits> {
        self.look(|layer| *layer.limits())
    }

    /// Counts since the disk was opened, or rolled back.
    pub fn stats(&self) -> Option<Stats> {
        self.look(|layer| layer.stats())
    }

    /// Blocks that this epoch still has room for. A client that makes atomic changes asks before
    /// each, and flushes first if it does not fit.
    pub fn room(&self) -> u64 {
        let sectors = self.look(|layer| layer.room()).unwrap_or(0);
        sectors / self.per_block()
    }

    /// The run of blocks from `at` on, `count` at most, that all are mapped, or all are not (and read
    /// as zeros): how many, and which.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], and those of [`Ftl::is_mapped`].
    pub fn run(&self, at: BlockNo, count: u64) -> steadfast_block::Result<(u64, bool)> {
        check_count(DeviceOp::Read, at, count, self.blocks)?;
        let request = Request::new(DeviceOp::Read, at, count);
        let mut entered = self.enter(request)?;
        let layer = entered.layer(request)?;
        let per_block = self.per_block();
        let mut mapped = |block: u64| {
            for sector in block * per_block..(block + 1) * per_block {
                if layer.is_mapped(sector).map_err(|e| request.failed(e))? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        if count == 0 {
            return Ok((0, false));
        }
        let kind = mapped(at.0)?;
        for next in 1..count {
            if mapped(at.0 + next)? != kind {
                return Ok((next, kind));
            }
        }
        Ok((count, kind))
    }

    /// Looks at the layer, while no other thread works on it.
    pub fn look<T>(&self, look: impl FnOnce(&mut Ftl<Emulated<S>, Tuned>) -> T) -> Option<T> {
        let mut layer = self.layer.lock().ok()?;
        layer.as_mut().map(|layer| look(layer))
    }

    /// Forgets all writes since the last flush, as a crash would: for a client that begins
    /// where another has died. Operations that the memory had begun are completed first, so that no
    /// failed program of the forgotten epoch is reported to the next.
    ///
    /// # Errors
    /// Those of [`Ftl::mount`]; the disk is then of no use any more.
    pub fn rollback(&self) -> Result<(), DiskError> {
        let mut guard = self.layer.lock().map_err(|_| Failure::Stopped)?;
        let layer = guard.take().ok_or(Failure::Stopped)?;
        let mut nand = layer.into_platform().into_nand();
        nand.sync()?;
        *guard = Some(Box::new(mounted(nand)?));
        self.flushed.notify_all();
        Ok(())
    }

    /// Releases the flash memory; unflushed writes are lost. `None` after a rollback that
    /// failed.
    pub fn into_nand(self) -> Option<Nand<S>> {
        let layer = self.layer.into_inner().ok().flatten();
        layer.map(|layer| layer.into_platform().into_nand())
    }

    fn per_block(&self) -> u64 {
        (BLOCK_SIZE / self.sector_bytes) as u64
    }

    /// The layer, for one request. A thread that panicked with it left it in an unknown state.
    fn enter(&self, request: Request) -> steadfast_block::Result<Entered<'_, S>> {
        match self.layer.lock() {
            Ok(guard) if guard.is_some() => Ok(Entered(guard)),
            _ => Err(request.failed(Failure::Stopped)),
        }
    }

    /// The layer, with room for `sectors` more writes and trims.
    fn admit(&self, request: Request, sectors: u64) -> steadfast_block::Result<Entered<'_, S>> {
        let mut entered = self.enter(request)?;
        let WhenFull::Wait(patience) = self.when_full else {
            // A request that fits an epoch is not split by the end of one.
            let layer = entered.layer(request)?;
            let split = layer.room() < sectors && sectors <= layer.limits().epoch;
            if split && layer.unflushed() > 0 {
                layer.flush().map_err(|error| request.failed(error))?;
            }
            return Ok(entered);
        };
        let begun = Instant::now();
        loop {
            let layer = entered.layer(request)?;
            if layer.is_stopped() {
                return Err(request.failed(Failure::Stopped));
            }
            if layer.room() >= sectors {
                return Ok(entered);
            }
            let bound = layer.room() + layer.unflushed();
            // With nothing to flush, or more than an epoch's worth, no flush would help.
            let hopeless = layer.unflushed() == 0 || sectors > layer.limits().epoch;
            let left = patience.saturating_sub(begun.elapsed());
            if hopeless || left.is_zero() {
                return Err(request.failed(Failure::EpochFull { bound }));
            }
            let waited = self.flushed.wait_timeout(entered.0, left);
            let (guard, _) = waited.map_err(|_| request.failed(Failure::Stopped))?;
            entered = Entered(guard);
        }
    }

    fn refuse_if_read_only(&self, op: DeviceOp) -> steadfast_block::Result<()> {
        if self.read_only {
            return Err(DeviceError::ReadOnly { op });
        }
        Ok(())
    }

    /// Before a sector of a request is written: where epochs end on their own, this one may.
    fn make_room(&self, layer: &mut Layer<S>) -> Result<(), Failure> {
        if self.when_full == WhenFull::Flush && layer.room() == 0 {
            layer.flush()?;
        }
        Ok(())
    }
}

impl<S: Store + Send + 'static> BlockDevice for Disk<S> {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            volatile_cache: true,
            read_only: self.read_only,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        let count = check_range(DeviceOp::Read, at, buf.len(), self.blocks)?;
        let request = Request::new(DeviceOp::Read, at, count);
        let mut entered = self.enter(request)?;
        let layer = entered.layer(request)?;
        let first = at.0 * self.per_block();
        for (sector, bytes) in (first..).zip(buf.chunks_exact_mut(self.sector_bytes)) {
            (layer.read(sector, bytes)).map_err(|error| request.failed(error))?;
        }
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.write_scattered(&[(at, segments)])
    }

    /// All parts are admitted together: a batch that does not fit the epoch is refused whole.
    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        self.refuse_if_read_only(DeviceOp::Write)?;
        let mut count = 0;
        for (at, segments) in writes {
            count += check_segments(*at, segments, self.blocks)?;
        }
        let Some(&(first, _)) = writes.first().filter(|_| count > 0) else {
            return Ok(());
        };
        let request = Request::new(DeviceOp::Write, first, count);
        let mut entered = self.admit(request, count * self.per_block())?;
        let layer = entered.layer(request)?;
        for (at, segments) in writes {
            let sectors = (segments.iter()).flat_map(|s| s.chunks_exact(self.sector_bytes));
            for (sector, bytes) in (at.0 * self.per_block()..).zip(sectors) {
                self.make_room(layer)
                    .and_then(|()| layer.write(sector, bytes))
                    .map_err(|error| request.failed(error))?;
            }
        }
        Ok(())
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        let request = Request::new(DeviceOp::Flush, BlockNo(0), self.blocks);
        let mut entered = self.enter(request)?;
        let flushed = entered.layer(request)?.flush();
        drop(entered);
        // After a failure, too: otherwise threads would wait for ever.
        self.flushed.notify_all();
        flushed.map_err(|error| request.failed(error))
    }

    /// Discarded blocks read as zeros; a crash before the next flush brings them back. A request
    /// of any length counts as one write of the epoch.
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.refuse_if_read_only(DeviceOp::Discard)?;
        check_count(DeviceOp::Discard, at, count, self.blocks)?;
        if count == 0 {
            return Ok(());
        }
        let request = Request::new(DeviceOp::Discard, at, count);
        let mut entered = self.admit(request, 1)?;
        let layer = entered.layer(request)?;
        let (first, sectors) = (at.0 * self.per_block(), count * self.per_block());
        self.make_room(layer)
            .and_then(|()| layer.trim(first, sectors))
            .map_err(|error| request.failed(error))
    }

    /// Writes a checkpoint, if it spares the next mount more than a few pages; not if there is anything that the
    /// client has not flushed. After a failure the disk has stopped; the next mount finds the last flush.
    fn finish(&self) {
        let Ok(mut guard) = self.layer.lock() else {
            return;
        };
        if let Some(layer) = guard.as_deref_mut().filter(|_| !self.read_only)
            && layer.unflushed() == 0
            && layer.is_far_from_checkpoint()
        {
            let _ = layer.checkpoint();
        }
    }

    /// `None` where epochs end on their own.
    fn snapshot(&self) -> Option<&dyn Snapshot> {
        (self.when_full != WhenFull::Flush).then_some(self)
    }
}

impl<S: Store + Send + 'static> Snapshot for Disk<S> {
    fn epoch_blocks(&self) -> u64 {
        self.epoch_blocks
    }

    fn room(&self) -> u64 {
        Disk::room(self)
    }

    /// Closes one epoch at a time: it is durable when this returns.
    fn close_epoch(&self) -> steadfast_block::Result<Ticket> {
        self.flush().map(|()| Ticket::default())
    }

    fn wait(&self, _: Ticket) -> steadfast_block::Result<()> {
        Ok(())
    }

    fn rollback(&self) -> steadfast_block::Result<()> {
        let request = Request::new(DeviceOp::Flush, BlockNo(0), self.blocks);
        Disk::rollback(self).map_err(|error| match error {
            DiskError::Layer(failure) => request.failed(failure),
            _ => request.failed(Failure::Stopped),
        })
    }
}

impl<S: Store> std::fmt::Debug for Disk<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("blocks", &self.blocks)
            .field("sector_bytes", &self.sector_bytes)
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}

/// The layer, locked.
struct Entered<'a, S: Store>(MutexGuard<'a, Option<Box<Layer<S>>>>);

impl<S: Store> Entered<'_, S> {
    fn layer(&mut self, request: Request) -> steadfast_block::Result<&mut Layer<S>> {
        self.0
            .as_deref_mut()
            .ok_or_else(|| request.failed(Failure::Stopped))
    }
}

/// A request, for messages.
#[derive(Clone, Copy)]
struct Request {
    op: DeviceOp,
    at: BlockNo,
    count: u64,
}

impl Request {
    fn new(op: DeviceOp, at: BlockNo, count: u64) -> Request {
        Request { op, at, count }
    }

    fn failed(self, error: Failure) -> DeviceError {
        let Request { op, at, count } = self;
        let kind = match &error {
            FtlError::EpochFull { .. } => io::ErrorKind::StorageFull,
            FtlError::WornOut => io::ErrorKind::ReadOnlyFilesystem,
            FtlError::Damaged { .. } | FtlError::Corrupt { .. } => io::ErrorKind::InvalidData,
            FtlError::Flash(FlashError::Store(error)) => error.kind(),
            _ => io::ErrorKind::Other,
        };
        let source = Arc::new(io::Error::new(kind, error));
        DeviceError::Io {
            op,
            at,
            count,
            source,
        }
    }
}

fn mounted<S: Store>(nand: Nand<S>) -> Result<Layer<S>, Failure> {
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    Ftl::mount(platform, shape, Tuned::new(shape.dies))
}

fn check_sectors(geometry: &steadfast_flash::Geometry) -> Result<(), DiskError> {
    let bytes = geometry.sector_bytes;
    if bytes > 0 && BLOCK_SIZE.is_multiple_of(bytes as usize) {
        return Ok(());
    }
    Err(DiskError::Sectors { bytes })
}

fn image_error(error: ImageError) -> DiskError {
    match error {
        ImageError::Io { path, source } if source.kind() == io::ErrorKind::ResourceBusy => {
            DiskError::InUse { path }
        }
        error => DiskError::Image(error),
    }
}
