//! Stores through mmap reach the trace when the kernel writes their pages back. Here it is made to do so, at intervals or before calls.
//!
//! The kernel does not pass `syncfs` on to FUSE: it writes back, and makes nothing durable in the trace.
//!
//! Before a call: the caller waits for its reply meanwhile, and the pages are written by other threads of the server. Calls that hold pages
//! or stop the write-back of their file (writes, truncations) would wait for themselves: they are left out.

use super::Mapped;
use super::calls::Calls;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most calls that wait for a write-back: fewer than threads that serve, so that one is left to do it.
const WAITING_MAX: usize = super::place::THREADS - 1;

/// Writes back before calls.
#[derive(Debug)]
pub(super) struct BeforeCalls {
    mount: File,
    waiting: AtomicUsize,
}

impl BeforeCalls {
    /// Writes back, unless too many calls wait for that: then the order of this one and of stores by other threads is not known.
    pub(super) fn call(&self) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) < WAITING_MAX {
            // It fails if the mount is going away: then the call fails, too.
            let _ = rustix::fs::syncfs(&self.mount);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
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
            });
            Ok(WritingBack(None))
        }
        Mapped::Every(time) => every(time, File::open(mount)?),
    }
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
