//! Scattered requests carried out by io_uring.
//!
//! Each batch has a ring of its own while it lasts: threads meet at the list of idle rings
//! only, and no lock is held while the kernel works. Requests that a ring returns short,
//! interrupted or not started are finished in the caller's thread.

use super::batch::{Failure, Reads, Writes};
use super::transfer::{Medium, read_fully, write_slices_fully};
use super::uring::{Outcome, Ring};
use crate::{BLOCK_SIZE, BlockBuf};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most rings of a device. More batches than that at a time wait for one another.
const RINGS_MAX: usize = 8;
/// Most bytes of a batch that pass through aligned memory at a time.
const BOUNCE_BYTES_MAX: usize = 4 << 20;

/// Constructor of a ring.
pub(super) type MakeRing = fn() -> io::Result<Ring>;

/// The rings of a device.
pub(super) struct Rings {
    make: MakeRing,
    state: Mutex<State>,
    /// Notified of every ring that comes back.
    returned: Condvar,
}

struct State {
    idle: Vec<Ring>,
    /// Idle and lent ones.
    made: usize,
}

impl Rings {
    /// Makes the first ring; others follow when they are needed.
    ///
    /// # Errors
    /// Reason of the refusal.
    pub(super) fn new(make: MakeRing) -> io::Result<Rings> {
        let idle = vec![make()?];
        Ok(Rings {
            make,
            state: Mutex::new(State { idle, made: 1 }),
            returned: Condvar::new(),
        })
    }

    /// Writes all parts. Reports the failure of the first part, in the batch's order, that
    /// could not be written.
    pub(super) fn write(&self, medium: &Medium, writes: Writes<'_, '_>) -> Result<(), Failure> {
        let detour = |part: &(_, &[&[u8]])| bounced_bytes(medium, part.1);
        let mut done = 0;
        while done < writes.len() {
            let rest = &writes[done..];
            let round = round_len(rest.iter().map(detour));
            match round {
                0 => (medium.write(rest[0].1, rest[0].0.0 * BLOCK_SIZE as u64))
                    .map_err(|error| Failure { part: done, error })?,
                _ => (self.write_round(medium, &rest[..round]))
                    .map_err(|failure| failure.shifted(done))?,
            }
            done += round.max(1);
        }
        Ok(())
    }

    fn write_round(&self, medium: &Medium, writes: Writes<'_, '_>) -> Result<(), Failure> {
        let bytes: usize = (writes.iter())
            .map(|part| bounced_bytes(medium, part.1))
            .sum();
        let mut bounce = BlockBuf::zeroed(bytes / BLOCK_SIZE);
        let mut spare = bounce.as_bytes_mut();
        let mut slices = Vec::with_capacity(writes.iter().map(|part| part.1.len()).sum());
        let mut counts = Vec::with_capacity(writes.len());
        for (_, segments) in writes {
            let before = slices.len();
            let bytes = bounced_bytes(medium, segments);
            if bytes == 0 {
                let used = segments.iter().filter(|segment| !segment.is_empty());
                slices.extend(used.map(|segment| IoSlice::new(segment)));
            } else {
                let place = spare.split_off_mut(..bytes).unwrap_or_default();
                let mut filled = 0;
                for segment in *segments {
                    place[filled..filled + segment.len()].copy_from_slice(segment);
                    filled += segment.len();
                }
                slices.push(IoSlice::new(place));
            }
            counts.push(slices.len() - before);
        }
        let mut left = &mut slices[..];
        let mut parts: Vec<(u64, &mut [IoSlice<'_>])> = (writes.iter().zip(counts))
            .map(|((at, _), count)| {
                let own = left.split_off_mut(..count).unwrap_or_default();
                (at.0 * BLOCK_SIZE as u64, own)
            })
            .collect();
        let mut loan = self.lend();
        let outcomes = match &mut loan.ring {
            Some(ring) => ring.write(&medium.fd, &parts),
            None => vec![Err(Errno::AGAIN); parts.len()],
        };
        drop(loan);
        for (part, ((offset, slices), outcome)) in parts.iter_mut().zip(outcomes).enumerate() {
            let finished = moved(outcome).and_then(|moved| {
                let mut slices = std::mem::take(slices);
                IoSlice::advance_slices(&mut slices, moved);
                write_slices_fully(&medium.fd, slices, *offset + moved as u64)
            });
            finished.map_err(|error| Failure { part, error })?;
        }
        Ok(())
    }

    /// Reads all parts; reports as `write`.
    pub(super) fn read(&self, medium: &Medium, reads: Reads<'_, '_>) -> Result<(), Failure> {
        let detour = |buf: &[u8]| bounced_bytes(medium, &[buf]);
        let mut done = 0;
        while done < reads.len() {
            let rest = &mut reads[done..];
            let round = round_len(rest.iter().map(|part| detour(part.1)));
            match round {
                0 => (medium.read(rest[0].1, rest[0].0.0 * BLOCK_SIZE as u64))
                    .map_err(|error| Failure { part: done, error })?,
                _ => (self.read_round(medium, &mut rest[..round]))
                    .map_err(|failure| failure.shifted(done))?,
            }
            done += round.max(1);
        }
        Ok(())
    }

    fn read_round(&self, medium: &Medium, reads: Reads<'_, '_>) -> Result<(), Failure> {
        let bytes: usize = (reads.iter())
            .map(|part| bounced_bytes(medium, &[part.1]))
            .sum();
        let mut bounce = BlockBuf::zeroed(bytes / BLOCK_SIZE);
        let mut spare = bounce.as_bytes_mut();
        let mut parts: Vec<(u64, IoSliceMut<'_>)> = (reads.iter_mut())
            .map(|(at, buf)| {
                let own = if medium.needs_bounce(buf) {
                    spare.split_off_mut(..buf.len()).unwrap_or_default()
                } else {
                    &mut **buf
                };
                (at.0 * BLOCK_SIZE as u64, IoSliceMut::new(own))
            })
            .collect();
        let mut loan = self.lend();
        let outcomes = match &mut loan.ring {
            Some(ring) => ring.read(&medium.fd, &mut parts),
            None => vec![Err(Errno::AGAIN); parts.len()],
        };
        drop(loan);
        for (part, ((offset, buf), outcome)) in parts.iter_mut().zip(outcomes).enumerate() {
            let finished = moved(outcome).and_then(|moved| {
                let rest = buf.get_mut(moved..).unwrap_or_default();
                read_fully(&medium.fd, rest, *offset + moved as u64)
            });
            finished.map_err(|error| Failure { part, error })?;
        }
        let mut from = bounce.as_bytes();
        for (_, buf) in reads {
            if medium.needs_bounce(buf) {
                buf.copy_from_slice(from.split_off(..buf.len()).unwrap_or_default());
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ring for one batch; without one if none can be made.
    fn lend(&self) -> Loan<'_> {
        let mut state = self.state();
        while state.idle.is_empty() && state.made == RINGS_MAX {
            state = (self.returned.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        let idle = state.idle.pop();
        if idle.is_none() {
            state.made += 1;
        }
        drop(state);
        let mut loan = Loan {
            rings: self,
            ring: idle,
        };
        if loan.ring.is_none() {
            loan.ring = (self.make)().ok();
        }
        loan
    }
}

/// A place among the rings in use, free again when dropped.
struct Loan<'a> {
    rings: &'a Rings,
    ring: Option<Ring>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut state = self.rings.state();
        match self.ring.take() {
            Some(ring) if !ring.is_stale() => state.idle.push(ring),
            _ => state.made -= 1,
        }
        drop(state);
        self.rings.returned.notify_one();
    }
}

/// Number of bytes moved; 0 if the caller shall try itself.
fn moved(outcome: Outcome) -> io::Result<usize> {
    match outcome {
        Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => Ok(0),
        outcome => outcome.map_err(Into::into),
    }
}

/// Bytes of aligned memory that these segments, together, need.
fn bounced_bytes(medium: &Medium, segments: &[&[u8]]) -> usize {
    if segments.iter().any(|segment| medium.needs_bounce(segment)) {
        segments.iter().map(|segment| segment.len()).sum()
    } else {
        0
    }
}

/// Number of parts that together stay within the limit of aligned memory; none if the first
/// alone exceeds it.
fn round_len(bounced: impl Iterator<Item = usize>) -> usize {
    let mut total = 0;
    bounced
        .take_while(|bytes| {
            total += bytes;
            total <= BOUNCE_BYTES_MAX
        })
        .count()
}
