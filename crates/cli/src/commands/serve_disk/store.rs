//! The bare disk of a volume on an object store, as a file.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use steadfast_block::{BlockDevice, BlockNo, DeviceError, Geometry, Snapshot};
use steadfast_disk::{Full, Medium, Run};
use steadfast_flash::FlashError;
use steadfast_ftl::{DiskError, FtlError};
use steadfast_store::{OpenOptions, StoreDevice};

use super::{Args, serve_fuse};
use crate::failure::Failure;
use crate::volume::{Access, store};

/// The disk, as servers want it.
struct StoreDisk(StoreDevice);

impl BlockDevice for StoreDisk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.0.read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.0.write(at, segments)
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        self.0.write_scattered(writes)
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        self.0.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.0.discard(at, count)
    }

    fn finish(&self) {
        self.0.finish();
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        self.0.snapshot()
    }
}

impl Medium for StoreDisk {
    fn epoch_blocks(&self) -> u64 {
        Snapshot::epoch_blocks(&self.0)
    }

    fn run(&self, range: Range<BlockNo>) -> steadfast_block::Result<Run> {
        let count = range.end.0.saturating_sub(range.start.0);
        let (blocks, mapped) = self.0.run(range.start, count)?;
        Ok(Run {
            blocks,
            hole: !mapped,
        })
    }

    fn roll_back(&self) -> Result<(), DiskError> {
        self.0.rollback().map_err(|error: DeviceError| {
            let error = std::io::Error::other(error.to_string());
            DiskError::Layer(FtlError::Flash(FlashError::Store(error)))
        })
    }
}

pub(super) fn run(args: &Args, url: &store::Url) -> Result<ExitCode, Failure> {
    let Some(dir) = &args.fuse else {
        return Err(Failure::usage(
            "the disk of a volume on an object store is served as a file: give --fuse DIR",
        ));
    };
    if args.epoch_full != Full::Flush {
        return Err(Failure::usage(
            "--epoch-full: the disk of a volume on an object store flushes when 256 MiB were written without a flush",
        ));
    }
    let dir =
        steadfast_fuse::check_mount_point(dir, false).map_err(|e| Failure::new(e.to_string()))?;
    let access = match args.read_only {
        true => Access::Look,
        false => Access::Change,
    };
    let options = OpenOptions {
        flush_when_full: true,
        ..store::options(&store::Wishes::default())?
    };
    let disk = StoreDisk(store::open_disk(url, access, &options)?);
    serve_fuse(args, &args.image, &dir, Arc::new(disk), args.epoch_full)
}
