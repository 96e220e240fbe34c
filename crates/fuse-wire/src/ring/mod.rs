//! Requests over io_uring (`FUSE_OVER_IO_URING`, Linux 6.14): a queue and a thread for each processor, where the kernel puts
//! requests there. A request is answered in the same place, and the answer fetches the next one with the same system call.
//!
//! The handshake, FORGET and the end of the mount come through the device.
//!
//! Everything that may be refused (rings, memory) is made before the handshake, because afterwards the kernel holds all
//! requests back until every queue is there.
//!
//! A queue's thread serves requests that do not wait. A thread of the pool serves those that may ([`Serve::may_wait`]), and the queue
//! goes on. An unexpected wait, such as a device that hangs for the first time, holds its processor's queue up until it is over; the
//! other processors' queues go on.
//!
//! Invariants:
//! * every possible processor has its queue: a request on one without would wait for ever;
//! * a slot is with the kernel, with its queue's thread, or with the pool, which always gives it back;
//! * the pool has as many threads as there are slots, if need be: no request waits for another one's thread.

mod pool;
mod queue;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use zerocopy::IntoBytes;

use crate::abi;
use crate::connection::Serve;
use crate::exchange::{Exchange, Outcome};
use pool::Pool;
use queue::{Next, Queue, Slot};

/// Requests that may be in progress at a time on all processors, as far as each has two. More wait in the kernel.
const REQUESTS_MAX: u16 = 64;
const QUEUE_DEPTH_MIN: u16 = 2;

/// The kernel's list of processors that may ever be there, such as `0-3`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// Whether the kernel offers the transport.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Message when the kernel does not offer the transport.
pub const RINGS_OFF: &str = "the kernel does not offer FUSE over io_uring: that takes Linux 6.14 and, as root, \
    'echo 1 > /sys/module/fuse/parameters/enable_uring'";

/// Whether this kernel offers FUSE over io_uring; `None` if it cannot.
#[must_use]
pub fn kernel_offers_io_uring() -> Option<bool> {
    let on = std::fs::read(SWITCH).ok()?;
    Some(on.starts_with(b"Y") || on.starts_with(b"1"))
}

/// Starts a queue's thread, with its server.
type Start<S> = mpsc::Sender<Arc<S>>;

/// Queues that are ready to take requests. Dropped without [`Rings::start`], they go.
pub struct Rings<S> {
    start: Vec<Start<S>>,
    ready: mpsc::Receiver<io::Result<()>>,
}

impl<S: Serve> Rings<S> {
    /// Makes a queue for each processor on the connection `device`, for at most `requests` at a time each, with `bytes` of payload.
    ///
    /// # Errors
    /// If the kernel does not offer it or refuses: requests can still come through the device.
    pub fn new(device: &impl AsFd, requests: usize, bytes: usize) -> io::Result<Rings<S>> {
        if kernel_offers_io_uring() != Some(true) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, RINGS_OFF));
        }
        let queues = count(std::fs::read_to_string(POSSIBLE)?.trim())?;
        let depth = (REQUESTS_MAX / queues)
            .min(u16::try_from(requests).unwrap_or(u16::MAX))
            .max(QUEUE_DEPTH_MIN);
        let (report, ready) = mpsc::channel();
        let pool = Arc::new(Pool::new(usize::from(queues) * usize::from(depth)));
        let mut rings = Rings {
            start: Vec::new(),
            ready,
        };
        for number in 0..queues {
            let device = device.as_fd().try_clone_to_owned()?;
            let (report, (start, started)) = (report.clone(), mpsc::channel());
            let pool = Arc::clone(&pool);
            thread::Builder::new()
                .name(format!("fuse-ring-{number}"))
                .spawn(move || {
                    let made = Thread::new(number, depth, bytes, &device, pool);
                    let _ = match made {
                        Ok(thread) => thread.run(&started, &report),
                        // No thread listens any more if it has been running.
                        Err(e) => report.send(Err(e)).map_err(io::Error::other),
                    };
                })?;
            rings.start.push(start);
        }
        rings.all_ready()?;
        Ok(rings)
    }

    /// Serves requests until the connection ends. Called after the handshake.
    ///
    /// # Errors
    /// If the kernel does not take the slots: then it takes no requests on this connection.
    pub fn start(self, server: &Arc<S>) -> io::Result<()> {
        for start in &self.start {
            // A thread that has ended has reported why.
            let _ = start.send(Arc::clone(server));
        }
        self.all_ready()
    }

    /// Waits until each queue has reported that it is ready.
    fn all_ready(&self) -> io::Result<()> {
        for _ in &self.start {
            let ready = self.ready.recv();
            ready
                .map_err(|_| io::Error::other("io_uring: a queue's thread ended"))?
                .map_err(|e| io::Error::new(e.kind(), format!("io_uring cannot be used: {e}")))?;
        }
        Ok(())
    }
}

/// Slots that the pool has answered, and the event that wakes their queue.
struct Answered {
    slots: Mutex<VecDeque<(Slot, Outcome)>>,
    event: OwnedFd,
}

impl Answered {
    fn put(&self, slot: Slot, outcome: Outcome) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.push_back((slot, outcome));
        drop(slots);
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Option<(Slot, Outcome)> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.pop_front()
    }
}

/// A queue's thread.
struct Thread {
    queue: Queue,
    slots: Vec<Slot>,
    answered: Arc<Answered>,
    pool: Arc<Pool>,
    /// Slots that the pool has.
    given: usize,
}

impl Thread {
    fn new(
        number: u16,
        depth: u16,
        bytes: usize,
        device: &OwnedFd,
        pool: Arc<Pool>,
    ) -> io::Result<Thread> {
        let mut here = CpuSet::new();
        here.set(usize::from(number));
        // A processor that is not there now, or not for this process, is served from another one.
        let _ = sched_setaffinity(None, &here);
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Thread {
            queue: Queue::new(number, depth, device.as_fd())?,
            slots: (0..usize::from(depth))
                .map(|index| Slot::new(index, bytes))
                .collect::<io::Result<_>>()?,
            answered: Arc::new(Answered {
                slots: Mutex::default(),
                event,
            }),
            pool,
            given: 0,
        })
    }

    /// Waits for the server, serves until the connection ends.
    fn run<S: Serve>(
        mut self,
        started: &mpsc::Receiver<Arc<S>>,
        report: &mpsc::Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let _ = report.send(Ok(()));
        let Ok(server) = started.recv() else {
            return Ok(()); // not wanted after all
        };
        let begun = self.begin();
        let failed = begun.is_err();
        let _ = report.send(begun);
        if failed {
            return Ok(());
        }
        // Requests that came while the slots were given.
        for slot in std::mem::take(&mut self.slots) {
            self.completed(Next::Request(slot), &server)?;
        }
        while self.queue.away() + self.given > 0 {
            self.queue.submit(1)?;
            while let Some(next) = self.queue.next() {
                self.completed(next, &server)?;
            }
            self.commit_answered()?;
        }
        Ok(())
    }

    /// Gives all slots to the kernel.
    fn begin(&mut self) -> io::Result<()> {
        self.queue.watch(self.answered.event.as_fd())?;
        for slot in std::mem::take(&mut self.slots) {
            self.queue.register(slot)?;
        }
        // A slot that the kernel refuses is completed at once.
        self.queue.submit(0)?;
        while self.queue.away() > 0
            && let Some(next) = self.queue.next()
        {
            match next {
                Next::Ended(_, errno) if self.queue.away() == 0 => return Err(errno.into()),
                Next::Ended(..) | Next::Woken => {}
                // Served when all queues have reported.
                Next::Request(slot) => self.slots.push(slot),
            }
        }
        Ok(())
    }

    fn completed<S: Serve>(&mut self, next: Next, server: &Arc<S>) -> io::Result<()> {
        match next {
            Next::Request(mut slot) => {
                if may_wait(&**server, &mut slot) {
                    self.given += 1;
                    let (server, answered) = (Arc::clone(server), Arc::clone(&self.answered));
                    self.pool.run(Box::new(move || {
                        let outcome = serve(&*server, &mut slot);
                        answered.put(slot, outcome);
                    }));
                    return Ok(());
                }
                let outcome = serve(&**server, &mut slot);
                self.give_back(slot, outcome)
            }
            Next::Woken => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.answered.event, &mut count);
                self.queue.watch(self.answered.event.as_fd())
            }
            // The request was given up before it was answered; the slot takes another one.
            Next::Ended(slot, Errno::INTR | Errno::AGAIN | Errno::NOENT) => {
                self.queue.register(slot)
            }
            Next::Ended(..) => Ok(()),
        }
    }

    fn commit_answered(&mut self) -> io::Result<()> {
        while let Some((slot, outcome)) = self.answered.take() {
            self.given -= 1;
            self.give_back(slot, outcome)?;
        }
        Ok(())
    }

    /// Gives a slot with its reply to the kernel.
    fn give_back(&mut self, mut slot: Slot, outcome: Outcome) -> io::Result<()> {
        let (error, len) = match outcome {
            Outcome::Silent => return self.queue.register(slot),
            Outcome::Bytes(len) => (0, len),
            Outcome::Failed(error) => (error, 0),
        };
        let (header, _) = slot.parts();
        let request = request_of(header);
        let reply = abi::OutHeader {
            len: (size_of::<abi::OutHeader>() + len) as u32,
            error: -error,
            unique: request.unique,
        };
        header.in_out[..size_of::<abi::OutHeader>()].copy_from_slice(reply.as_bytes());
        header.ent.payload_sz = len as u32;
        self.queue.commit(slot)
    }
}

fn request_of(header: &abi::UringReqHeader) -> abi::InHeader {
    use zerocopy::FromBytes;
    abi::InHeader::read_from_prefix(&header.in_out)
        .map(|(request, _)| request)
        .unwrap_or_default()
}

fn may_wait(server: &impl Serve, slot: &mut Slot) -> bool {
    let (header, payload) = slot.parts();
    server.may_wait(&Exchange::over_ring(
        header,
        payload,
        &mut Outcome::default(),
    ))
}

/// Serves the request in this slot.
fn serve(server: &impl Serve, slot: &mut Slot) -> Outcome {
    let mut outcome = Outcome::default();
    let (header, payload) = slot.parts();
    // A panic would take the slot, and what waits for it, along: the exchange that it drops is answered with an error.
    let exchange = Exchange::over_ring(header, payload, &mut outcome);
    let _ = catch_unwind(AssertUnwindSafe(|| server.serve(exchange)));
    outcome
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
