//! One stream's large writes beside another's small fsync (ccfs §4.3, table 3 and figure 4), and other measurements in two
//! processes: each function is the part of one of them.

use super::{Random, failed, pattern};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PIECE_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;

/// A file that is there or not, and keeps its content.
fn opened(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Writes `mib` mebibytes from the beginning of a file on, without an fsync.
pub(crate) fn fill(path: &Path, mib: u32) -> Result<f64, String> {
    let data = pattern(PIECE_BYTES);
    let start = Instant::now();
    let written = opened(path).and_then(|file| {
        (0..u64::from(mib)).try_for_each(|piece| file.write_all_at(&data, piece * MIB))
    });
    written.map_err(|e| failed("write", path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Makes a file empty, without an fsync.
pub(crate) fn truncate(path: &Path) -> Result<f64, String> {
    let start = Instant::now();
    opened(path)
        .and_then(|file| file.set_len(0))
        .map_err(|e| failed("truncate", path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Appends a byte to a file, and takes the time of the fsync.
pub(crate) fn byte(path: &Path) -> Result<f64, String> {
    let mut start = Instant::now();
    let synced = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| {
            file.write_all(&[1])?;
            start = Instant::now();
            file.sync_all()
        });
    synced.map_err(|e| failed("append to", path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Appends `mib_per_second` for `seconds` seconds, in pieces of 1 MiB, without an fsync. Returns the seconds that it took:
/// more than asked for, if the system cannot keep pace.
pub(crate) fn paced(path: &Path, mib_per_second: u32, seconds: u32) -> Result<f64, String> {
    let data = pattern(PIECE_BYTES);
    let start = Instant::now();
    let appended = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut file| {
            for piece in 0..mib_per_second * seconds {
                let due = Duration::from_secs(1) * piece / mib_per_second;
                thread::sleep(due.saturating_sub(start.elapsed()));
                file.write_all(&data)?;
            }
            Ok(())
        });
    appended.map_err(|e| failed("append to", path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Appends a byte and calls fsync, `count` times, one each `interval` milliseconds; the seconds of each fsync, by line.
pub(crate) fn bytes(path: &Path, count: u32, interval: u32) -> Result<String, String> {
    let mut lines = String::new();
    let start = Instant::now();
    for turn in 0..count {
        let due = Duration::from_millis(u64::from(interval)) * turn;
        thread::sleep(due.saturating_sub(start.elapsed()));
        lines.push_str(&format!("{:.6}\n", byte(path)?));
    }
    Ok(lines)
}

/// Overwrites `count` blocks of 4 KiB anywhere in a file of `mib` mebibytes, which is durable, with an fsync for each hundred
/// (ccfs figure 5's randwrite).
pub(crate) fn randwrite(path: &Path, mib: u32, count: u32) -> Result<f64, String> {
    let file = opened(path).map_err(|e| failed("open", path, &e))?;
    let len = file.metadata().map_err(|e| failed("stat", path, &e))?.len();
    if len < u64::from(mib) * MIB {
        fill(path, mib)?;
    }
    let data = pattern(PAGE);
    let mut random = Random::new(3);
    let pages = u64::from(mib) * MIB / PAGE as u64;
    let mut overwrite = || {
        file.sync_all()?;
        let start = Instant::now();
        for turn in 1..=count {
            file.write_all_at(&data, random.below(pages) * PAGE as u64)?;
            if turn % 100 == 0 {
                file.sync_all()?;
            }
        }
        io::Result::Ok(start.elapsed().as_secs_f64())
    };
    overwrite().map_err(|e| failed("overwrite", path, &e))
}
