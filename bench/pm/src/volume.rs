//! Volumes in memory: how they are made, opened and recorded.

use crate::Result;
use std::path::{Path, PathBuf};
use steadfast_pm::{OpenOptions, Region};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};

/// Bytes of the region that latencies are measured on.
pub(crate) const REGION_BYTES: u64 = 96 << 20;
/// Bytes of memory that are read to empty the processor's caches: more than they hold.
const CACHE_BYTES: usize = 64 << 20;

/// A file in memory, removed when it is dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(dir: &Path, name: &str) -> Scratch {
        Scratch(dir.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Every page is there and mapped, so that no page fault is measured.
fn populated() -> OpenOptions {
    OpenOptions {
        populate: true,
        ..OpenOptions::default()
    }
}

fn small_inodes() -> MkfsOptions {
    MkfsOptions {
        bytes_per_inode: 4096,
        ..MkfsOptions::default()
    }
}

/// A new volume in a file, mounted.
pub(crate) fn in_file(scratch: &Scratch) -> Result<PmFs> {
    let region = Region::create(&scratch.0, REGION_BYTES, true, &populated())?;
    made(region)
}

/// A region in a file with this content.
pub(crate) fn region_of(scratch: &Scratch, content: &[u8]) -> Result<Region> {
    std::fs::write(&scratch.0, content)?;
    Ok(Region::open(&scratch.0, &populated())?)
}

/// A new volume whose stores are recorded.
pub(crate) fn recorded() -> Result<PmFs> {
    made(Region::recorded(vec![0; REGION_BYTES as usize]))
}

fn made(region: Region) -> Result<PmFs> {
    mkfs(&region, &small_inodes(), &mut |_, _| {})?;
    Ok(PmFs::mount(
        region,
        &MountOptions::default(),
        &mut |_, _| {},
    )?)
}

/// Memory to read when the caches shall hold nothing of a region.
pub(crate) struct Evictor(Vec<u64>);

impl Evictor {
    pub(crate) fn new() -> Evictor {
        Evictor((0..CACHE_BYTES as u64 / 8).collect())
    }

    pub(crate) fn evict(&self) {
        let sum = self.0.iter().step_by(8).fold(0, |a, b| a ^ b);
        std::hint::black_box(sum);
    }
}
