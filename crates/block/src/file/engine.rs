//! Choice of the engine that passes requests to the kernel.

use super::batch::{Failure, Reads, Writes};
use super::rings::{MakeRing, Rings};
use super::threads::Pool;
use super::transfer::Medium;
use crate::BLOCK_SIZE;
use rustix::io::Errno;
use std::fmt;
use std::io;

/// Threads that stand in where io_uring is refused.
const THREADS_DEFAULT: usize = 4;

/// Method of carrying out a batch of scattered requests. Single requests and flushes
/// always go straight from the caller's thread to the kernel: no way is shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// One after another in the caller's thread.
    Caller,
    /// By this number of threads that belong to the device: at least 1, at most 64.
    Threads(usize),
    /// With io_uring.
    Uring,
    /// The fastest: io_uring with direct access; the caller's thread with the page
    /// cache, which takes one write to a file at a time and copies faster than it can be asked.
    #[default]
    Auto,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Caller => f.write_str("caller's thread"),
            Engine::Threads(count) => write!(f, "{count} threads"),
            Engine::Uring => f.write_str("io_uring"),
            Engine::Auto => f.write_str("automatic"),
        }
    }
}

/// An [`Engine`] at work.
pub(super) enum Backend {
    Caller,
    Threads(Pool),
    Uring(Rings),
}

impl Backend {
    /// Starts an engine, or the next best with the reason why.
    pub(super) fn start(
        engine: Engine,
        medium: &Medium,
        make_ring: MakeRing,
    ) -> (Backend, Option<io::Error>) {
        match engine {
            Engine::Caller => (Backend::Caller, None),
            Engine::Auto if !medium.direct => (Backend::Caller, None),
            Engine::Threads(count) => match Pool::start(&medium.fd, count) {
                Ok(pool) => (Backend::Threads(pool), None),
                Err(error) => (Backend::Caller, Some(error)),
            },
            Engine::Uring | Engine::Auto => match Rings::new(make_ring) {
                Ok(rings) => (Backend::Uring(rings), None),
                Err(error) => {
                    let stand_in = Engine::Threads(THREADS_DEFAULT);
                    let (backend, _) = Backend::start(stand_in, medium, make_ring);
                    (backend, Some(explained(&error)))
                }
            },
        }
    }

    /// This engine's kind.
    pub(super) fn engine(&self) -> Engine {
        match self {
            Backend::Caller => Engine::Caller,
            Backend::Threads(pool) => Engine::Threads(pool.threads()),
            Backend::Uring(_) => Engine::Uring,
        }
    }

    /// Writes all parts, in any order. Returns when none is in flight any more.
    pub(super) fn write(&self, medium: &Medium, writes: Writes<'_, '_>) -> Result<(), Failure> {
        match self {
            Backend::Threads(pool) if writes.len() > 1 => pool.write(writes),
            Backend::Uring(rings) if writes.len() > 1 => rings.write(medium, writes),
            _ => (writes.iter().enumerate()).try_for_each(|(part, (at, segments))| {
                let outcome = medium.write(segments, at.0 * BLOCK_SIZE as u64);
                outcome.map_err(|error| Failure { part, error })
            }),
        }
    }

    /// Reads all parts, in any order. Returns when none is in flight any more.
    pub(super) fn read(&self, medium: &Medium, reads: Reads<'_, '_>) -> Result<(), Failure> {
        match self {
            Backend::Threads(pool) if reads.len() > 1 => pool.read(reads),
            Backend::Uring(rings) if reads.len() > 1 => rings.read(medium, reads),
            _ => (reads.iter_mut().enumerate()).try_for_each(|(part, (at, buf))| {
                let outcome = medium.read(buf, at.0 * BLOCK_SIZE as u64);
                outcome.map_err(|error| Failure { part, error })
            }),
        }
    }
}

/// Reason why io_uring is refused, and a remedy.
fn explained(error: &io::Error) -> io::Error {
    let advice = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSYS) => "this kernel has none, or a system call filter hides it",
        Some(Errno::PERM | Errno::ACCESS) => {
            "a system call filter or the setting kernel.io_uring_disabled forbids it"
        }
        Some(Errno::NOMEM) => "the limit on locked memory (ulimit -l) may be too low",
        Some(Errno::MFILE | Errno::NFILE) => "the limit on open files (ulimit -n) is too low",
        _ => "requests take another way",
    };
    let what = format!("io_uring is refused ({error}): {advice}");
    io::Error::new(error.kind(), what)
}
