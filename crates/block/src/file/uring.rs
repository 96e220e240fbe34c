//! One io_uring and the requests in it: the only `unsafe` code of this crate.
//!
//! The kernel reads and writes the buffers of a request from its submission to its
//! completion, whatever the program does meanwhile. So [`Flight`] never ends, not even by a
//! panic, while the kernel holds an entry: its destructor waits for the completions. The
//! entries that the kernel holds are counted from the queues themselves (pushed, less still
//! queued, less completed), never from the return values of calls.
//!
//! Completions come in any order and may report an interrupted or a short transfer; the
//! caller finishes those.
#![allow(unsafe_code)]

use super::transfer::IOV_MAX;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

/// Requests in flight in one ring.
const ENTRIES: u32 = 128;
/// Pause when the kernel refuses to be waited for.
const PAUSE: Duration = Duration::from_micros(200);

/// Bytes moved, or why the kernel moved none. `EAGAIN` if the request never started.
pub(super) type Outcome = Result<usize, Errno>;

/// A submission queue and a completion queue, used by one thread at a time.
pub(super) struct Ring {
    ring: IoUring,
    /// Entries were left in the submission queue: another use would submit them.
    stale: bool,
}

impl Ring {
    /// Sets up a ring and sends one empty request through it.
    ///
    /// # Errors
    /// Reason of the system's refusal: no support (`ENOSYS`), policy (`EPERM`), or limits.
    pub(super) fn new() -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        // Without interrupts for completions, which are waited for anyway (since Linux 5.19).
        builder.setup_coop_taskrun();
        let ring = match builder.build(ENTRIES) {
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                IoUring::new(ENTRIES)?
            }
            ring => ring?,
        };
        let mut ring = Ring { ring, stale: false };
        // SAFETY: the entry refers to no memory.
        let outcome = unsafe { ring.run(1, |_| opcode::Nop::new().build()) };
        match outcome[0] {
            Ok(_) => Ok(ring),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the ring must not be used again.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Writes each list of slices at its byte offset, all lists at once; of a long list only
    /// the first [`IOV_MAX`] slices. Returns the outcome of each when none is in flight any more.
    pub(super) fn write(
        &mut self,
        fd: impl AsFd,
        writes: &[(u64, &mut [IoSlice<'_>])],
    ) -> Vec<Outcome> {
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let entry = |n: usize| {
            let (offset, iov) = &writes[n];
            // An `IoSlice` is an `iovec` by its documentation.
            let count = iov.len().min(IOV_MAX) as u32;
            let entry = opcode::Writev::new(fd, iov.as_ptr().cast(), count);
            entry.offset(*offset).build()
        };
        // SAFETY: the descriptor, the lists and the buffers they name are borrowed until
        // `run` returns, the buffers shared, and the kernel only reads them.
        unsafe { self.run(writes.len(), entry) }
    }

    /// Reads into each buffer from its byte offset on, all at once; otherwise as `write`.
    pub(super) fn read(
        &mut self,
        fd: impl AsFd,
        reads: &mut [(u64, IoSliceMut<'_>)],
    ) -> Vec<Outcome> {
        let fd = types::Fd(fd.as_fd().as_raw_fd());
        let entry = |n: usize| {
            let (offset, buf) = &reads[n];
            // An `IoSliceMut` is an `iovec` by its documentation: a list of one.
            let entry = opcode::Readv::new(fd, std::ptr::from_ref(buf).cast(), 1);
            entry.offset(*offset).build()
        };
        // SAFETY: the descriptor is borrowed, and the buffers are borrowed exclusively, until
        // `run` returns; being distinct `&mut`, they do not overlap.
        unsafe { self.run(reads.len(), entry) }
    }

    /// Carries out `total` requests, at most [`ENTRIES`] of them at a time.
    ///
    /// # Safety
    /// What the entries refer to stays valid, and unused by others as the operation demands,
    /// until this returns or unwinds.
    unsafe fn run(&mut self, total: usize, entry: impl Fn(usize) -> Entry) -> Vec<Outcome> {
        let mut flight = Flight {
            outcomes: vec![Err(Errno::AGAIN); total],
            pushed: 0,
            reaped: 0,
            ring: self,
        };
        while flight.reaped < total {
            while flight.pushed < total && flight.pushed - flight.reaped < ENTRIES as usize {
                let entry = entry(flight.pushed).user_data(flight.pushed as u64);
                // SAFETY: valid until it completes, by this function's contract, because
                // `flight` is dropped before this function is left and waits for it.
                if unsafe { flight.ring.ring.submission().push(&entry) }.is_err() {
                    break;
                }
                flight.pushed += 1;
            }
            // All of the last ones, or else enough to make the next submission worth a call.
            let outstanding = flight.pushed - flight.reaped;
            let want = if flight.pushed == total {
                outstanding
            } else {
                outstanding.div_ceil(2)
            };
            if flight.wait(want).is_err() && flight.in_kernel() == 0 {
                break;
            }
        }
        flight.land()
    }
}

/// The requests of one `run`.
struct Flight<'a> {
    ring: &'a mut Ring,
    outcomes: Vec<Outcome>,
    /// Entries put into the submission queue.
    pushed: usize,
    /// Completions seen.
    reaped: usize,
}

impl Flight<'_> {
    /// Submits the queued entries, waits for `want` completions or an interruption, and takes
    /// the completions.
    fn wait(&mut self, want: usize) -> io::Result<()> {
        let before = self.reaped;
        let outcome = match self.ring.ring.submit_and_wait(want) {
            Err(error) if error.raw_os_error() != Some(Errno::INTR.raw_os_error()) => Err(error),
            _ => Ok(()),
        };
        for completion in self.ring.ring.completion() {
            self.reaped += 1;
            if let Some(outcome) = self.outcomes.get_mut(completion.user_data() as usize) {
                *outcome = match completion.result() {
                    moved @ 0.. => Ok(moved as usize),
                    error => Err(Errno::from_raw_os_error(-error)),
                };
            }
        }
        if outcome.is_err() && self.reaped == before {
            thread::sleep(PAUSE);
        }
        outcome
    }

    /// Entries that the kernel has taken and not completed, as far as completions were seen.
    fn in_kernel(&mut self) -> usize {
        let queued = self.ring.ring.submission().len();
        self.pushed - queued - self.reaped
    }

    /// Waits until the kernel holds nothing more of this flight.
    fn drain(&mut self) {
        loop {
            match self.in_kernel() {
                0 => break,
                // An error is no excuse: the buffers are still the kernel's.
                n => drop(self.wait(n)),
            }
        }
        self.ring.stale |= !self.ring.ring.submission().is_empty();
    }

    fn land(mut self) -> Vec<Outcome> {
        self.drain();
        std::mem::take(&mut self.outcomes)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.drain();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use std::io::{Read, Write};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn ring() -> Option<Ring> {
        let ring = Ring::new();
        if let Err(error) = &ring {
            steadfast_testkit::skipped!("{error}");
        }
        ring.ok()
    }

    /// Reads from a pipe. Unsafe to run unless `into` outlives the run.
    fn read_pipe(pipe: &impl AsFd, into: &mut [u8]) -> Entry {
        let fd = types::Fd(pipe.as_fd().as_raw_fd());
        opcode::Read::new(fd, into.as_mut_ptr(), into.len() as u32).build()
    }

    #[test]
    fn corner_18_completions_in_any_order_find_their_requests() {
        let Some(mut ring) = ring() else { return };
        let (from_a, mut to_a) = io::pipe().unwrap();
        let (from_b, mut to_b) = io::pipe().unwrap();
        let (mut a, mut b) = ([0; 8], [0; 8]);
        let entries = [read_pipe(&from_a, &mut a), read_pipe(&from_b, &mut b)];
        let writer = thread::spawn(move || {
            to_b.write_all(b"last").unwrap();
            thread::sleep(Duration::from_millis(30));
            to_a.write_all(b"it").unwrap();
        });
        // SAFETY: `a` and `b` live longer, and are used only afterwards.
        let outcomes = unsafe { ring.run(2, |n| entries[n].clone()) };
        assert_eq!(outcomes, [Ok(2), Ok(4)]);
        assert_eq!((&a[..2], &b[..4]), (&b"it"[..], &b"last"[..]));
        writer.join().unwrap();
    }

    #[test]
    fn corner_18_a_panic_waits_for_what_the_kernel_still_writes_to() {
        let Some(mut ring) = ring() else { return };
        let (from, mut to) = io::pipe().unwrap();
        let mut buf = [0; 4];
        let pipe = read_pipe(&from, &mut buf);
        let writer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            to.write_all(b"late").unwrap();
        });
        // The first ring full is submitted; the panic comes when the next is prepared.
        let entry = |n: usize| match n as u32 {
            0 => pipe.clone(),
            ENTRIES.. => panic!("as planned"),
            _ => opcode::Nop::new().build(),
        };
        // SAFETY: `buf` lives longer, and is used only afterwards.
        let run = AssertUnwindSafe(|| unsafe { ring.run(2 * ENTRIES as usize, entry) });
        catch_unwind(run).unwrap_err();
        assert_eq!(&buf, b"late");
        assert!(!ring.is_stale());
        // SAFETY: the entry refers to no memory.
        let outcomes = unsafe { ring.run(300, |_| opcode::Nop::new().build()) };
        assert!(outcomes.len() == 300 && outcomes.iter().all(Result::is_ok));
        writer.join().unwrap();
    }

    #[test]
    fn corner_18_entries_left_by_a_panic_are_never_submitted() {
        let Some(mut ring) = ring() else { return };
        let (mut from, mut to) = io::pipe().unwrap();
        let mut buf = [0; 4];
        let pipe = read_pipe(&from, &mut buf);
        let entry = |n: usize| match n {
            0 => pipe.clone(),
            _ => panic!("as planned"),
        };
        // SAFETY: `buf` lives longer, and is used only afterwards.
        let run = AssertUnwindSafe(|| unsafe { ring.run(2, entry) });
        catch_unwind(run).unwrap_err();
        assert!(ring.is_stale());
        drop(ring);
        to.write_all(b"left").unwrap();
        let mut read = [0; 4];
        from.read_exact(&mut read).unwrap();
        assert_eq!((&read, buf), (b"left", [0; 4]));
    }

    #[test]
    fn a_request_that_fails_says_why_and_leaves_the_others_alone() {
        let Some(mut ring) = ring() else { return };
        let (from, _to) = io::pipe().unwrap();
        let none: [IoSlice<'_>; 1] = [IoSlice::new(b"x")];
        let mut lists = [none, none];
        let mut writes = Vec::new();
        for list in &mut lists {
            writes.push((0, &mut list[..]));
        }
        // The reading end of a pipe cannot be written.
        let outcomes = ring.write(&from, &writes);
        assert_eq!(outcomes, [Err(Errno::BADF), Err(Errno::BADF)]);
    }
}
