//! One file: appended to, overwritten, read.

use super::spool::create_new;
use super::{Random, failed, pattern};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const APPEND_PIECE_BYTES: usize = 1 << 20;
/// A record of a log.
const RECORD_BYTES: usize = 1 << 10;
const OVERWRITTEN_MIB: u32 = 16;
const READ_PIECE_BYTES: usize = 64 << 10;
/// Bytes overwritten between two fsyncs.
const SYNC_EVERY_BYTES: u64 = 10 * MIB;

/// Appends `mib` mebibytes to a new file in `dir`, in pieces of 1 MiB, then makes it durable.
pub(crate) fn append(dir: &Path, mib: u32) -> Result<f64, String> {
    append_in(dir, mib, APPEND_PIECE_BYTES)
}

/// The same in pieces of 4 KiB.
pub(crate) fn append_pages(dir: &Path, mib: u32) -> Result<f64, String> {
    append_in(dir, mib, PAGE)
}

fn append_in(dir: &Path, mib: u32, piece_bytes: usize) -> Result<f64, String> {
    let data = pattern(piece_bytes);
    let path = dir.join("append");
    let start = Instant::now();
    let written = create_new(&path).and_then(|mut file| {
        for _ in 0..u64::from(mib) * MIB / piece_bytes as u64 {
            file.write_all(&data)?;
        }
        file.sync_all()
    });
    written.map_err(|e| failed("append to", &path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Overwrites a file of `mib` mebibytes, which is durable, in pieces of 4 KiB, with an fsync for each 10 MiB.
pub(crate) fn largefile(dir: &Path, mib: u32) -> Result<f64, String> {
    let path = dir.join("large");
    let (file, _) = written(&path, mib)?;
    let data = pattern(PAGE);
    let start = Instant::now();
    let overwritten = || -> io::Result<()> {
        let end = u64::from(mib) * MIB;
        for at in (0..end).step_by(PAGE) {
            file.write_all_at(&data, at)?;
            if (at + PAGE as u64).is_multiple_of(SYNC_EVERY_BYTES) {
                file.sync_all()?;
            }
        }
        file.sync_all()
    };
    overwritten().map_err(|e| failed("overwrite", &path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Appends 1 KiB to a new file in `dir` and makes it durable, `count` times.
pub(crate) fn log(dir: &Path, count: u32) -> Result<f64, String> {
    let data = pattern(RECORD_BYTES);
    let path = dir.join("log");
    let start = Instant::now();
    let written = create_new(&path).and_then(|mut file| {
        for _ in 0..count {
            file.write_all(&data)?;
            file.sync_data()?;
        }
        Ok(())
    });
    written.map_err(|e| failed("append to", &path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Overwrites `count` blocks of 4 KiB anywhere in a file of 16 MiB, each made durable before the next.
pub(crate) fn overwrites(dir: &Path, count: u32) -> Result<f64, String> {
    let path = dir.join("blocks");
    let (file, _) = written(&path, OVERWRITTEN_MIB)?;
    let data = pattern(PAGE);
    let mut random = Random::new(2);
    let pages = u64::from(OVERWRITTEN_MIB) * MIB / PAGE as u64;
    let start = Instant::now();
    for _ in 0..count {
        let at = random.below(pages) * PAGE as u64;
        file.write_all_at(&data, at)
            .and_then(|()| file.sync_data())
            .map_err(|e| failed("overwrite", &path, &e))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Reads a file of `mib` mebibytes, which the kernel has not cached, from its beginning to its end.
pub(crate) fn sequential_reads(dir: &Path, mib: u32) -> Result<f64, String> {
    let path = dir.join("read");
    let (mut file, piece) = written(&path, mib)?;
    forget(&file, &path)?;
    let mut buffer = vec![0; READ_PIECE_BYTES];
    let mut read = 0_u64;
    let start = Instant::now();
    loop {
        let count = file
            .read(&mut buffer)
            .map_err(|e| failed("read", &path, &e))?;
        if count == 0 {
            break;
        }
        let at = (read % piece.len() as u64) as usize;
        if buffer[0] != piece[at] {
            return Err(format!("{}: wrong byte at {read}", path.display()));
        }
        read += count as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    if read == u64::from(mib) * MIB {
        Ok(seconds)
    } else {
        Err(format!("{}: {read} bytes were read", path.display()))
    }
}

/// Reads `count` blocks of 4 KiB anywhere in a file of `mib` mebibytes, which the kernel has not cached.
pub(crate) fn random_reads(dir: &Path, mib: u32, count: u32) -> Result<f64, String> {
    let path = dir.join("read");
    let (file, piece) = written(&path, mib)?;
    forget(&file, &path)?;
    // Nothing is to be read that was not asked for.
    fadvise(&file, 0, None, Advice::Random).map_err(|e| failed("advise", &path, &e.into()))?;
    let mut random = Random::new(1);
    let mut buffer = [0; PAGE];
    let pages = u64::from(mib) * MIB / PAGE as u64;
    let start = Instant::now();
    for _ in 0..count {
        let at = random.below(pages) * PAGE as u64;
        file.read_exact_at(&mut buffer, at)
            .map_err(|e| failed("read", &path, &e))?;
        if buffer[..] != piece[(at % piece.len() as u64) as usize..][..PAGE] {
            return Err(format!("{}: wrong bytes at {at}", path.display()));
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A durable file of `mib` mebibytes, and the piece that it repeats.
fn written(path: &Path, mib: u32) -> Result<(File, Vec<u8>), String> {
    let piece = pattern(APPEND_PIECE_BYTES);
    let prepare = || -> io::Result<File> {
        let mut file = File::create(path)?;
        for _ in 0..mib {
            file.write_all(&piece)?;
        }
        file.sync_all()?;
        File::options().read(true).write(true).open(path)
    };
    let file = prepare().map_err(|e| failed("prepare", path, &e))?;
    Ok((file, piece))
}

/// The kernel's page cache forgets the file.
fn forget(file: &File, path: &Path) -> Result<(), String> {
    fadvise(file, 0, None, Advice::DontNeed).map_err(|e| failed("uncache", path, &e.into()))
}
