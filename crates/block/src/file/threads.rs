//! Scattered requests carried out by a pool of threads.
//!
//! A batch is cut into jobs of at most [`JOB_BLOCKS_MAX`] blocks. A job owns its buffer, so
//! no other thread ever holds a caller's memory; and being aligned, that buffer suits direct
//! access for any caller's buffer. The caller carries out jobs itself whenever the queue is
//! full, and the last one always: the queue is bounded, and a busy pool never blocks a
//! caller. It returns when it holds the outcomes of all its jobs.

use super::batch::{Failure, Reads, Writes};
use super::locked::LockedFd;
use super::transfer::{read_fully, write_fully};
use crate::{BLOCK_SIZE, BlockBuf};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Most threads of a pool.
pub(super) const THREADS_MAX: usize = 64;
/// Most blocks in a job (256 KiB).
const JOB_BLOCKS_MAX: usize = 64;
/// Buffers kept for the next jobs.
const BUFFERS_MAX: usize = 16;
/// Jobs that may wait for each thread.
const QUEUED_PER_THREAD: usize = 2;

/// Threads that serve one file.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    fd: Arc<LockedFd>,
    queue: Mutex<Queue>,
    /// Notified of every new job and of the end.
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Job, Sender<Job>)>,
    /// Buffers for the next jobs.
    buffers: Vec<BlockBuf>,
    closed: bool,
}

/// Some stretches of a batch and the memory for them.
struct Job {
    writing: bool,
    buffer: BlockBuf,
    stretches: Vec<Stretch>,
    outcome: Result<(), Failure>,
}

/// Consecutive bytes of one part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// Index of the part in the batch.
    part: usize,
    /// Offset in that part.
    from: usize,
    /// Offset on the medium, in bytes.
    offset: u64,
    /// Range in the job's buffer.
    place: Range<usize>,
}

impl Pool {
    /// Starts `count` threads, at least one and at most [`THREADS_MAX`].
    ///
    /// # Errors
    /// The system's, if it starts no thread at all; fewer than asked for will do.
    pub(super) fn start(fd: &Arc<LockedFd>, count: usize) -> io::Result<Pool> {
        let mut pool = Pool {
            shared: Arc::new(Shared {
                fd: fd.clone(),
                queue: Mutex::default(),
                arrived: Condvar::new(),
            }),
            threads: Vec::new(),
        };
        for _ in 0..count.clamp(1, THREADS_MAX) {
            let shared = pool.shared.clone();
            let thread = Builder::new().name("block-io".into());
            match thread.spawn(move || shared.serve()) {
                Ok(thread) => pool.threads.push(thread),
                Err(error) if pool.threads.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn write(&self, writes: Writes<'_, '_>) -> Result<(), Failure> {
        let lengths = writes.iter().map(|(at, segments)| {
            let bytes = segments.iter().map(|segment| segment.len()).sum();
            (at.0 * BLOCK_SIZE as u64, bytes)
        });
        let fill = |stretches: &[Stretch], buffer: &mut [u8]| {
            for stretch in stretches {
                gather(
                    writes[stretch.part].1,
                    stretch.from,
                    &mut buffer[stretch.place.clone()],
                );
            }
        };
        self.run(true, self.cut(lengths), fill, |_| ())
    }

    pub(super) fn read(&self, reads: Reads<'_, '_>) -> Result<(), Failure> {
        let lengths = reads
            .iter()
            .map(|(at, buf)| (at.0 * BLOCK_SIZE as u64, buf.len()));
        let jobs = self.cut(lengths);
        self.run(
            false,
            jobs,
            |_, _| (),
            |job| {
                for stretch in &job.stretches {
                    let part = &mut reads[stretch.part].1;
                    part[stretch.from..][..stretch.place.len()]
                        .copy_from_slice(&job.buffer.as_bytes()[stretch.place.clone()]);
                }
            },
        )
    }

    /// Shares a batch out evenly between the threads and the caller.
    fn cut(&self, parts: impl Iterator<Item = (u64, usize)> + Clone) -> Vec<Vec<Stretch>> {
        let bytes: usize = parts.clone().map(|(_, bytes)| bytes).sum();
        let share = (bytes / BLOCK_SIZE).div_ceil(self.threads.len() + 1);
        cut(parts, share.clamp(1, JOB_BLOCKS_MAX) * BLOCK_SIZE)
    }

    /// Carries out the jobs and hands each that succeeded to `finish`. Reports the failure of
    /// the first part in the batch's order.
    fn run(
        &self,
        writing: bool,
        jobs: Vec<Vec<Stretch>>,
        fill: impl Fn(&[Stretch], &mut [u8]),
        mut finish: impl FnMut(&Job),
    ) -> Result<(), Failure> {
        let (reply, replies) = channel();
        let mut failure: Option<Failure> = None;
        let mut collect = |mut job: Job| {
            match std::mem::replace(&mut job.outcome, Ok(())) {
                Ok(()) => finish(&job),
                Err(new) => {
                    if failure.as_ref().is_none_or(|old| new.part < old.part) {
                        failure = Some(new);
                    }
                }
            }
            self.shared.keep(job.buffer);
        };
        let last = jobs.len().saturating_sub(1);
        let mut sent = 0;
        for (number, stretches) in jobs.into_iter().enumerate() {
            let mut buffer = self.shared.buffer();
            fill(&stretches, buffer.as_bytes_mut());
            let job = Job {
                writing,
                buffer,
                stretches,
                outcome: Ok(()),
            };
            let own = if number == last {
                Some(job)
            } else {
                self.offer(job, &reply)
            };
            match own {
                None => sent += 1,
                Some(mut job) => {
                    job.carry_out(&self.shared.fd);
                    collect(job);
                }
            }
        }
        drop(reply);
        // Ends when every job has come back, or died with its thread.
        for job in replies {
            sent -= 1;
            collect(job);
        }
        match failure {
            None if sent == 0 => Ok(()),
            None => Err(Failure {
                part: 0,
                error: io::Error::other("a thread that carried out a part of it ended early"),
            }),
            Some(failure) => Err(failure),
        }
    }

    /// Queues a job, or gives it back if too many are waiting.
    fn offer(&self, job: Job, reply: &Sender<Job>) -> Option<Job> {
        let mut queue = self.shared.queue();
        if queue.jobs.len() >= QUEUED_PER_THREAD * self.threads.len() {
            return Some(job);
        }
        queue.jobs.push_back((job, reply.clone()));
        drop(queue);
        self.shared.arrived.notify_one();
        None
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer(&self) -> BlockBuf {
        let kept = self.queue().buffers.pop();
        kept.unwrap_or_else(|| BlockBuf::zeroed(JOB_BLOCKS_MAX))
    }

    fn keep(&self, buffer: BlockBuf) {
        let mut queue = self.queue();
        if queue.buffers.len() < BUFFERS_MAX {
            queue.buffers.push(buffer);
        }
    }

    /// A thread's life.
    fn serve(&self) {
        let mut queue = self.queue();
        loop {
            if let Some((mut job, reply)) = queue.jobs.pop_front() {
                drop(queue);
                job.carry_out(&self.fd);
                // Fails only if the caller has unwound: then the outcome is not needed.
                let _ = reply.send(job);
                queue = self.queue();
            } else if queue.closed {
                return;
            } else {
                let woken = self.arrived.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Job {
    fn carry_out(&mut self, fd: &LockedFd) {
        let bytes = self.buffer.as_bytes_mut();
        self.outcome = self.stretches.iter().try_for_each(|stretch| {
            let place = &mut bytes[stretch.place.clone()];
            let outcome = if self.writing {
                write_fully(fd, &[place], stretch.offset).map(drop)
            } else {
                read_fully(fd, place, stretch.offset)
            };
            outcome.map_err(|error| Failure {
                part: stretch.part,
                error,
            })
        });
    }
}

/// Cuts parts, given by offset and length in bytes, into jobs of at most `limit` bytes.
fn cut(parts: impl Iterator<Item = (u64, usize)>, limit: usize) -> Vec<Vec<Stretch>> {
    let mut jobs = Vec::new();
    let mut job = Vec::new();
    let mut filled = 0;
    for (part, (offset, bytes)) in parts.enumerate() {
        let mut from = 0;
        while from < bytes {
            let len = (bytes - from).min(limit - filled);
            job.push(Stretch {
                part,
                from,
                offset: offset + from as u64,
                place: filled..filled + len,
            });
            from += len;
            filled += len;
            if filled == limit {
                jobs.push(std::mem::take(&mut job));
                filled = 0;
            }
        }
    }
    if !job.is_empty() {
        jobs.push(job);
    }
    jobs
}

/// Copies the bytes of consecutive segments, from the `from`-th on, until `to` is full.
fn gather(segments: &[&[u8]], mut from: usize, mut to: &mut [u8]) {
    for segment in segments {
        let rest = segment.get(from..).unwrap_or_default();
        from -= segment.len() - rest.len();
        let len = rest.len().min(to.len());
        let (now, later) = to.split_at_mut(len);
        now.copy_from_slice(&rest[..len]);
        to = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_into_jobs_that_cover_it_once() {
        let parts = [(0, 5), (100, 0), (200, 12), (300, 3)];
        for limit in 1..25 {
            let jobs = cut(parts.iter().copied(), limit);
            let mut seen = Vec::new();
            for (number, job) in jobs.iter().enumerate() {
                let bytes: usize = job.iter().map(|stretch| stretch.place.len()).sum();
                assert!(bytes == limit || number + 1 == jobs.len() && (1..limit).contains(&bytes));
                let mut place = 0;
                for stretch in job {
                    assert_eq!(stretch.place.start, place);
                    place = stretch.place.end;
                    let (offset, _) = parts[stretch.part];
                    assert_eq!(stretch.offset, offset + stretch.from as u64);
                    seen.extend((0..stretch.place.len() as u64).map(|i| stretch.offset + i));
                }
            }
            let all: Vec<u64> = (0..5).chain(200..212).chain(300..303).collect();
            assert_eq!(seen, all, "limit {limit}");
        }
    }

    #[test]
    fn gathering_starts_and_ends_anywhere() {
        let all = b"abcdefghij";
        let segments: [&[u8]; 5] = [&all[..3], &[], &all[3..4], &all[4..], &[]];
        for from in 0..=all.len() {
            for len in 0..=all.len() - from {
                let mut to = vec![0; len];
                gather(&segments, from, &mut to);
                assert_eq!(to, all[from..from + len]);
            }
        }
    }
}
