//! Requests over io_uring (`FUSE_OVER_IO_URING`, Linux 6.14): a queue and a thread for each processor, where
//! the kernel puts requests there. A request is answered in the same place, and the answer
//! fetches the next one with the same system call.
//!
//! The protocol crate of `/dev/fuse` still makes the handshake, reads the kernel's messages that still come there (FORGET), and
//! receives the end.
//!
//! Everything that may be refused (rings, buffers) is made before the handshake, because afterwards the kernel
//! holds all requests back until every queue is there.
//!
//! A queue's thread serves requests that do not wait. Another thread serves those that do, by the estimate of the rule of
//! `readers` ([`gives_away`]), and the queue goes on. An unexpected wait, such as a device that hangs for the first time,
//! holds its processor's queue up until it is over; the other processors' queues go on.
//!
//! Invariants:
//! * every possible processor has its queue: a request on one without would wait for ever;
//! * every request passes the gate, in `shared`, and is counted; a reply that gives the kernel references
//!   holds exactly the entries that were counted;
//! * a queue's buffers live as long as its ring.

mod serve;
mod untold;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use compio_runtime::{Runtime, register_files, spawn, spawn_blocking, submit};
use fractal_fuse::dispatch::dispatch;
use fractal_fuse::ring::{FuseCommitAndFetch, FuseRegister, RingEntry, allocate_ring_entries};

use crate::server::{Server, WRITE_BYTES_MAX};
use serve::Ring;
use untold::{gives_away, serve_untold, untold};

/// Requests that may be in progress at a time on all processors, as far as each has two: every one has
/// a buffer of [`WRITE_BYTES_MAX`]. More wait in the kernel.
const REQUESTS_MAX: u16 = 64;
const QUEUE_DEPTH_MIN: u16 = 2;

/// The kernel's list of processors that may ever be there, such as `0-3`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Whether the kernel offers the transport.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Message when the kernel does not offer the transport.
pub(crate) const OFF: &str = "the kernel does not offer FUSE over io_uring: that takes Linux 6.14 and, as root, \
    'echo 1 > /sys/module/fuse/parameters/enable_uring'";

/// Whether this kernel offers FUSE over io_uring; `None` if it cannot.
#[must_use]
pub fn kernel_offers_io_uring() -> Option<bool> {
    let on = std::fs::read(SWITCH).ok()?;
    Some(on.starts_with(b"Y") || on.starts_with(b"1"))
}

/// Queues that are ready to take requests. Dropped without [`Rings::start`], they go.
pub(crate) struct Rings {
    start: Vec<mpsc::Sender<Arc<Server>>>,
    told: mpsc::Receiver<io::Result<()>>,
}

impl Rings {
    /// Makes a queue for each processor on the connection `device`, for `requests` at a time each, if that is not too
    /// many for all.
    ///
    /// # Errors
    /// If the kernel does not offer it or refuses: requests can still come through the device.
    pub(crate) fn new(device: &impl AsFd, requests: usize) -> io::Result<Rings> {
        if kernel_offers_io_uring() != Some(true) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, OFF));
        }
        let queues = count(std::fs::read_to_string(POSSIBLE)?.trim())?;
        let depth = (REQUESTS_MAX / queues)
            .min(u16::try_from(requests).unwrap_or(u16::MAX))
            .max(QUEUE_DEPTH_MIN);
        let (tell, told) = mpsc::channel();
        let mut rings = Rings {
            start: Vec::new(),
            told,
        };
        for queue in 0..queues {
            let device = device.as_fd().try_clone_to_owned()?;
            let (tell, (start, started)) = (tell.clone(), mpsc::channel());
            thread::Builder::new()
                .name(format!("fuse-ring-{queue}"))
                .spawn(move || {
                    if let Err(e) = run_queue(queue, depth, &device, &started, &tell) {
                        // No thread listens any more if it has been running.
                        let _ = tell.send(Err(e));
                    }
                })?;
            rings.start.push(start);
        }
        rings.all_told()?;
        Ok(rings)
    }

    /// Serves requests until the connection ends. Called after the handshake.
    ///
    /// # Errors
    /// If the kernel does not take the buffers: then it takes no requests on this connection.
    pub(crate) fn start(self, server: &Arc<Server>) -> io::Result<()> {
        for start in &self.start {
            // A thread that has ended has reported why.
            let _ = start.send(Arc::clone(server));
        }
        self.all_told()
    }

    /// Waits until each queue has reported that it is ready.
    fn all_told(&self) -> io::Result<()> {
        for _ in &self.start {
            let told = self.told.recv();
            told.map_err(|_| io::Error::other("io_uring: a queue's thread ended"))?
                .map_err(|e| io::Error::new(e.kind(), format!("io_uring cannot be used: {e}")))?;
        }
        Ok(())
    }
}

/// Number of processors that a list such as `0-2,5` names.
fn count(list: &str) -> io::Result<u16> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{POSSIBLE}: {list}"));
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    let mut ranges = list.split(',').map(range);
    ranges
        .try_fold(0u16, |sum, one| sum.checked_add(one?))
        .filter(|&sum| sum > 0)
        .ok_or_else(wrong)
}

/// Makes a queue, waits for the server, serves until the connection ends.
fn run_queue(
    queue: u16,
    depth: u16,
    device: &OwnedFd,
    started: &mpsc::Receiver<Arc<Server>>,
    tell: &mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    let here = HashSet::from([usize::from(queue)]);
    let runtime = Runtime::builder().thread_affinity(here).build()?;
    runtime.block_on(async {
        register_files(&[device.as_raw_fd()])?;
        let entries = allocate_ring_entries(depth, WRITE_BYTES_MAX as usize)?;
        let _ = tell.send(Ok(()));
        let Ok(server) = started.recv() else {
            return Ok(()); // not wanted after all
        };
        let alive = Rc::new(());
        let serve = |entry| {
            let ring = Arc::new(Ring {
                server: Arc::clone(&server),
                untold: AtomicU32::new(0),
            });
            let alive = Rc::clone(&alive);
            spawn(async move {
                let _alive = alive;
                serve_entry(queue, entry, ring).await
            })
        };
        let tasks: Vec<_> = entries.into_iter().map(serve).collect();
        // Each task has handed its buffer to the kernel before this one, the last, gets its turn.
        let _ = spawn(async {}).await;
        if Rc::strong_count(&alive) <= tasks.len() {
            return Err(io::Error::other("the kernel takes no buffer"));
        }
        let _ = tell.send(Ok(()));
        let mut buffers = Vec::new();
        for task in tasks {
            match task.await {
                Ok(entry) => buffers.push(entry),
                Err(e) => server.tell(&format!("io_uring, queue {queue}: {e}")),
            }
        }
        Ok(())
    })
}

/// Serves the requests that come in one buffer, until the connection ends. Gives the buffer back.
async fn serve_entry(queue: u16, mut entry: RingEntry, ring: Arc<Ring>) -> Option<RingEntry> {
    let mut fetched = submit(FuseRegister::new(&entry, queue)).await.0;
    while fetched.is_ok() {
        let answered;
        if gives_away(&ring.server, &entry) {
            let ring = Arc::clone(&ring);
            let served = spawn_blocking(move || {
                let answered = serve_request(&ring, &mut entry);
                (entry, answered)
            });
            // A panic, which the gate and the protocol crate both catch, would lose the buffer: the kernel then
            // uses the others.
            (entry, answered) = served.await.ok()?;
        } else {
            answered = serve_request(&ring, &mut entry);
        }
        fetched = match answered {
            true => {
                let commit = entry.commit_id();
                submit(FuseCommitAndFetch::new(queue, commit)).await.0
            }
            false => submit(FuseRegister::new(&entry, queue)).await.0,
        };
    }
    Some(entry)
}

/// Serves the request in this buffer. Whether the kernel waits for an answer.
fn serve_request(ring: &Ring, entry: &mut RingEntry) -> bool {
    if serve_untold(ring, entry) {
        return true;
    }
    ring.untold
        .store(untold(entry.header()), std::sync::atomic::Ordering::Relaxed);
    let dispatched = pin!(dispatch(ring, entry));
    match dispatched.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready((answered, _)) => answered.is_some(),
        // No handler waits (see `serve`).
        Poll::Pending => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_processor_that_may_be_there_is_counted() {
        for (list, sum) in [("0", 1), ("0-3", 4), ("0-1,4-5,9", 5)] {
            assert_eq!(count(list).unwrap(), sum);
        }
        for list in ["", "x", "3-1", "0-99999", "0-65535"] {
            assert!(count(list).is_err(), "{list}");
        }
    }
}
