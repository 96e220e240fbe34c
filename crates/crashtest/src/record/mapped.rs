//! Stores through mmap reach the trace when the kernel writes their pages back. Here the kernel is made to do so, at
//! intervals or before calls.
//!
//! The kernel does not pass `syncfs` on to FUSE: it writes back, and makes nothing durable in the trace. It sends the
//! pages and does not wait for the answers. `statfs` is requested and served after them; then no write of the kernel
//! may be in progress. For root the kernel itself reports how many requests it waits for (`fusectl`), which leaves no
//! gap between a request that was read and its handler.
//!
//! Before a call: the caller waits for its reply, while other threads of the server write the pages. Calls that hold
//! pages or stop the write-back of their file (writes, truncations) would wait for themselves: they are left out.

use super::Mapped;
use super::calls::Calls;
use std::fs::File;
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

/// Maximum number of calls that wait for a write-back: fewer than threads that serve, so that one is left to do it.
const WAITING_MAX: usize = super::place::THREADS - 1;

/// Time limit of the wait for a write-back: calls of other threads may keep the server busy all the time.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// Writes back before calls.
#[derive(Debug)]
pub(super) struct BeforeCalls {
    mount: File,
    /// Calls that wait for a write-back.
    waiting: AtomicUsize,
    /// Writes by the kernel that are being served.
    writing: AtomicUsize,
    /// Reports how many requests the kernel waits for.
    requests: Option<File>,
}

/// A write by the kernel that is being served.
pub(super) struct Writing<'a>(&'a AtomicUsize);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl BeforeCalls {
    /// Writes back, unless too many calls wait for that: then the order of this call and of stores by other threads
    /// is not known.
    pub(super) fn call(&self) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX {
            // It fails if the mount is going away: then the call fails, too.
            let _ = rustix::fs::syncfs(&self.mount);
            self.drain();
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a write by the kernel until it is dropped.
    pub(super) fn writing(&self) -> Writing<'_> {
        self.writing.fetch_add(1, Ordering::AcqRel);
        Writing(&self.writing)
    }

    /// Waits until everything that the kernel has sent is served.
    fn drain(&self) {
        let until = Instant::now() + DRAIN_LIMIT;
        while Instant::now() < until {
            let _ = rustix::fs::fstatfs(&self.mount);
            let idle = match self.requests() {
                // These are the calls that wait here.
                Some(requests) => requests <= self.waiting.load(Ordering::Acquire),
                None => self.writing.load(Ordering::Acquire) == 0,
            };
            if idle {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn requests(&self) -> Option<usize> {
        let mut text = [0; 20];
        let n = self.requests.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..n)?).ok()?;
        text.trim().parse().ok()
    }
}

/// A thread that writes back until this is dropped.
#[derive(Debug, Default)]
pub(super) struct WritingBack(Option<(Sender<()>, JoinHandle<()>)>);

impl Drop for WritingBack {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

/// Writes mapped pages of this mount back from now on.
pub(super) fn begin(mapped: Mapped, mount: &Path, calls: &Arc<Calls>) -> io::Result<WritingBack> {
    match mapped {
        Mapped::ByKernel => Ok(WritingBack(None)),
        Mapped::EveryCall => {
            calls.write_back_before(BeforeCalls {
                mount: File::open(mount)?,
                waiting: AtomicUsize::new(0),
                writing: AtomicUsize::new(0),
                requests: requests(mount).ok(),
            });
            Ok(WritingBack(None))
        }
        Mapped::Every(time) => every(time, File::open(mount)?),
    }
}

/// The kernel's count of requests that wait for an answer. Its file system is mounted in the mount namespace of the
/// recording and unmounted at once.
fn requests(mount: &Path) -> io::Result<File> {
    let device = std::fs::metadata(mount)?.st_dev();
    let place = tempfile::tempdir()?;
    let (flags, none) = (MountFlags::empty(), None::<&std::ffi::CStr>);
    rustix::mount::mount("fusectl", place.path(), "fusectl", flags, none)?;
    let minor = rustix::fs::minor(device).to_string();
    let file = File::open(place.path().join(minor).join("waiting"));
    rustix::mount::unmount(place.path(), UnmountFlags::DETACH)?;
    file
}

fn every(time: Duration, mount: File) -> io::Result<WritingBack> {
    let (stop, stopped) = channel();
    let thread = std::thread::Builder::new()
        .name("crash-mapped".to_owned())
        .spawn(move || {
            while stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                let _ = rustix::fs::syncfs(&mount);
            }
        })?;
    Ok(WritingBack(Some((stop, thread))))
}
