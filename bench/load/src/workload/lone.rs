//! One client that sends one request after the other: the latency of a call.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::failed;

/// Bytes of a write.
const BLOCK: usize = 4096;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 256;

/// Overwrites a block of 4 KiB of a file that was opened for writing alone, `count` times.
pub(crate) fn writes(dir: &Path, count: u32) -> Result<f64, String> {
    let path = dir.join("lone");
    let wrong = |e| failed("write", &path, &e);
    let file = File::create(&path).map_err(wrong)?;
    file.write_all_at(&vec![1; BLOCK * BLOCKS as usize], 0)
        .map_err(wrong)?;
    let (block, start) = ([2; BLOCK], Instant::now());
    for i in 0..u64::from(count) {
        let at = i % BLOCKS * BLOCK as u64;
        file.write_all_at(&block, at).map_err(wrong)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Looks `count` names up that are not there.
pub(crate) fn lookups(dir: &Path, count: u32) -> Result<f64, String> {
    let names: Vec<_> = (0..count).map(|i| dir.join(format!("{i}"))).collect();
    let start = Instant::now();
    for name in &names {
        match fs::symlink_metadata(name) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("look up", name, &e)),
            Ok(_) => return Err(format!("{}: is there", name.display())),
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Asks for a file's attributes `count` times, not to be answered from a cache.
pub(crate) fn attributes(dir: &Path, count: u32) -> Result<f64, String> {
    let path = dir.join("lone");
    let file = File::create(&path).map_err(|e| failed("make", &path, &e))?;
    let (flags, wanted) = (
        AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    );
    let start = Instant::now();
    for _ in 0..count {
        statx(&file, "", flags, wanted).map_err(|e| failed("ask for", &path, &e.into()))?;
    }
    Ok(start.elapsed().as_secs_f64())
}
