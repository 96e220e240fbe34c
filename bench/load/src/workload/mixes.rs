//! Mixes of file operations, after three of filebench's personalities: a file server, a web server, a web proxy. None calls
//! fsync. The parameters are filebench's own; the numbers of files and threads are the caller's, because filebench's need a
//! larger machine.
//!
//! Each thread has files of its own, as filebench hands a file to one thread at a time; the web server's log is shared. The
//! size of a file is gamma-distributed with shape 1.5, as filebench chooses it.

use super::spool::{create_new, side_by_side};
use super::{Random, failed, pattern};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

const KIB: u64 = 1 << 10;
/// Largest single read or write.
const PIECE_BYTES: u64 = 1 << 20;
/// Maximum size of an append; the minimum is 1 byte.
const APPEND_BYTES_MAX: u64 = 16 * KIB;
/// Files of a directory, where a personality has directories.
const DIRECTORY_WIDTH: u32 = 20;
/// Percent of the files that are there when the run begins, where some are not.
const PRESENT_PERCENT: usize = 80;
const WEB_SERVER_READS: u32 = 10;
const WEB_PROXY_READS: u32 = 5;

/// The personality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mix {
    /// A round: make and write a file; append to one; read one; delete one; stat one. Mean size 128 KiB.
    FileServer,
    /// A round: read ten files, append to the log. Mean size 16 KiB.
    WebServer,
    /// A round: delete a file; make one and append to it; read five. Mean size 16 KiB, one directory.
    WebProxy,
}

impl Mix {
    pub(crate) fn named(name: &str) -> Option<Mix> {
        match name {
            "fileserver" => Some(Mix::FileServer),
            "webserver" => Some(Mix::WebServer),
            "webproxy" => Some(Mix::WebProxy),
            _ => None,
        }
    }

    fn mean_bytes(self) -> u64 {
        match self {
            Mix::FileServer => 128 * KIB,
            Mix::WebServer | Mix::WebProxy => 16 * KIB,
        }
    }

    fn path(self, dir: &Path, file: u32) -> PathBuf {
        match self {
            Mix::WebProxy => dir.join(format!("file-{file:06}")),
            _ => dir.join(format!("dir-{:04}/file-{file:06}", file / DIRECTORY_WIDTH)),
        }
    }
}

/// Runs `rounds` rounds in all, on `files` files, on `threads` threads.
pub(crate) fn mix(
    kind: Mix,
    dir: &Path,
    files: u32,
    rounds: u32,
    threads: u32,
) -> Result<f64, String> {
    if files / threads < DIRECTORY_WIDTH {
        return Err(format!(
            "a thread needs {DIRECTORY_WIDTH} files, so {files} are too few for {threads} threads"
        ));
    }
    let mut shares = Vec::new();
    for thread in 0..threads {
        let share = Share::prepare(kind, dir, files, thread, threads);
        shares.push(share.map_err(|e| failed("prepare files in", dir, &e))?);
    }
    let mut shares = shares.into_iter();
    let log = dir.join("log");
    File::create(&log).map_err(|e| failed("make", &log, &e))?;
    side_by_side(
        threads,
        |_| shares.next(),
        |share| {
            let Some(share) = share else {
                return Err("a thread has no files".to_owned());
            };
            for _ in 0..rounds / threads {
                share
                    .round(kind, &log)
                    .map_err(|e| failed("work in", dir, &e))?;
            }
            Ok(())
        },
    )
}

/// One thread's files.
struct Share {
    random: Random,
    mean_bytes: u64,
    present: Vec<PathBuf>,
    absent: Vec<PathBuf>,
    data: Vec<u8>,
    buffer: Vec<u8>,
}

impl Share {
    fn prepare(kind: Mix, dir: &Path, files: u32, thread: u32, threads: u32) -> io::Result<Share> {
        let mut share = Share {
            random: Random::new(u64::from(thread) + 1),
            mean_bytes: kind.mean_bytes(),
            present: Vec::new(),
            absent: Vec::new(),
            data: pattern(PIECE_BYTES as usize),
            buffer: Vec::new(),
        };
        // Whole directories, so that two threads never work in one where there are several.
        let mine = |file: &u32| file / DIRECTORY_WIDTH % threads == thread;
        for file in (0..files).filter(mine) {
            let path = kind.path(dir, file);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            share.absent.push(path);
        }
        let present = match kind {
            Mix::WebServer => share.absent.len(),
            _ => share.absent.len() * PRESENT_PERCENT / 100,
        };
        while share.present.len() < present {
            share.create(0)?;
        }
        Ok(share)
    }

    fn round(&mut self, kind: Mix, log: &Path) -> io::Result<()> {
        match kind {
            Mix::FileServer => {
                self.create(0)?;
                let path = self.any().clone();
                self.append(&path)?;
                self.read()?;
                self.delete()?;
                fs::metadata(self.any())?;
            }
            Mix::WebServer => {
                for _ in 0..WEB_SERVER_READS {
                    self.read()?;
                }
                self.append(log)?;
            }
            Mix::WebProxy => {
                self.delete()?;
                let bytes = self.append_bytes();
                self.create(bytes)?;
                for _ in 0..WEB_PROXY_READS {
                    self.read()?;
                }
            }
        }
        Ok(())
    }

    /// A file that is there.
    fn any(&mut self) -> &PathBuf {
        let chosen = self.random.below(self.present.len() as u64);
        &self.present[chosen as usize]
    }

    /// Creates a file of `bytes` bytes, or of a size of the distribution if that is 0.
    fn create(&mut self, bytes: u64) -> io::Result<()> {
        let chosen = self.random.below(self.absent.len() as u64);
        let path = self.absent.swap_remove(chosen as usize);
        let mut left = match bytes {
            0 => gamma_bytes(&mut self.random, self.mean_bytes),
            bytes => bytes,
        };
        let mut file = create_new(&path)?;
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            file.write_all(&self.data[..piece as usize])?;
            left -= piece;
        }
        self.present.push(path);
        Ok(())
    }

    fn append_bytes(&mut self) -> u64 {
        1 + self.random.below(APPEND_BYTES_MAX)
    }

    fn append(&mut self, path: &Path) -> io::Result<()> {
        let bytes = self.append_bytes() as usize;
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(&self.data[..bytes])
    }

    fn read(&mut self) -> io::Result<()> {
        let path = self.any().clone();
        self.buffer.clear();
        File::open(&path)?.read_to_end(&mut self.buffer)?;
        if self.data.first() == self.buffer.first() {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "{}: not what was written",
                path.display()
            )))
        }
    }

    fn delete(&mut self) -> io::Result<()> {
        let chosen = self.random.below(self.present.len() as u64);
        let path = self.present.swap_remove(chosen as usize);
        fs::remove_file(&path)?;
        self.absent.push(path);
        Ok(())
    }
}

/// A number of bytes, at least 1, gamma-distributed with shape 1.5: an exponential and half a squared normal variable.
fn gamma_bytes(random: &mut Random, mean: u64) -> u64 {
    // Never 0, which has no logarithm.
    let mut unit = || (1 + random.below(1 << 53)) as f64 / (1_u64 << 53) as f64;
    let (first, second, angle) = (unit(), unit(), unit());
    let cosine = (std::f64::consts::TAU * angle).cos();
    let gamma = -first.ln() - second.ln() * cosine * cosine;
    (gamma * mean as f64 / 1.5) as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_that_was_asked_for() {
        let mut random = Random::new(3);
        let sum: u64 = (0..20_000).map(|_| gamma_bytes(&mut random, 16_384)).sum();
        let mean = sum as f64 / 20_000.0;
        assert!((15_900.0..16_900.0).contains(&mean), "{mean}");
    }
}
