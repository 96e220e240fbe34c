//! A simulated device that misbehaves on purpose, and the disks that a power cut leaves.
//!
//! [`SimDevice`] is a disk with a *volatile cache*: it records every request in a trace,
//! and fails where a [`Fault`] says so. From the trace, an [`Explorer`] makes the [`Cut`] at
//! any position, and a cut makes [`CrashImage`]s: disk contents that a power cut there could
//! leave. A crash image is a device itself, or becomes a new [`SimDevice`], whose own trace
//! can be cut again (a power cut during recovery).
//!
//! The states that a cut may leave, for each 512-byte sector on its own:
//!
//! * its *durable* value: the newest one written before a flush was called that has
//!   completed without error, or
//! * the value of any *pending* write to it, that is of any later one. That covers lost
//!   writes, writes that overtake each other, and torn blocks.
//!
//! A write promises nothing before it has returned, so a flush covers only the writes that
//! had returned when it was called. After a *failed* flush the writes it should have
//! covered stay pending for ever, as Linux loses them: only writing them again helps.
//!
//! ```
//! use steadfast_sim::{Limits, SimDevice};
//! use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
//!
//! # fn main() -> Result<(), steadfast_block::DeviceError> {
//! let disk = SimDevice::new(16);
//! disk.write(BlockNo(0), &[&[1; BLOCK_SIZE]])?;
//! disk.flush()?;
//! disk.mark(1); // the harness: "operation 1 was acknowledged"
//! disk.write(BlockNo(0), &[&[2; BLOCK_SIZE]])?;
//!
//! let mut explorer = disk.explorer();
//! for position in 0..=explorer.len() {
//!     let cut = explorer.cut(position);
//!     for image in cut.images(&Limits::default()) {
//!         let mut block = [0; BLOCK_SIZE];
//!         image.read(BlockNo(0), &mut block)?;
//!         assert!(cut.marks().is_empty() || block[0] != 0, "{image}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Cheap by construction: contents are shared blocks; the durable state is a persistent
//! tree that advances with the cut; an image is that tree plus a small map of the writes that
//! survived. Opening one copies nothing.
//!
//! Neighbours: only `steadfast-block` below; the crash harness and the journal's tests
//! above. The contract is that of DFSCQ §3 (asynchronous disk with barriers),
//! with sectors as the unit of atomicity.

mod crash;
mod device;
mod explore;
mod fault;
mod image;
mod rng;
#[cfg(test)]
mod tests;

pub use crash::{CrashImage, CrashImages, Limits};
pub use device::{Counts, Phase, SimDevice};
pub use explore::{Cut, Explorer};
pub use fault::Fault;
pub use image::Image;

use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo};

/// Contents by block number. The hash has no key, and is the same in every run, so that runs repeat: no adversary chooses numbers.
type BlockMap<V> = HashMap<u64, V, FixedState>;

/// Something that happened to a [`SimDevice`]. Its position in the trace is its time.
#[derive(Clone)]
pub enum TraceEvent {
    /// Blocks were written. Recorded when the device took the data, before the call
    /// returned. A write that failed is recorded with the mixture that it left.
    Write {
        /// First block written.
        at: BlockNo,
        /// The new contents, one block after another.
        data: Arc<[Arc<Block>]>,
    },
    /// A flush completed.
    Flush {
        /// Length of the trace when the flush was called: it covers only earlier writes.
        began: usize,
        /// Positions of earlier writes that had not yet returned then: not covered.
        in_flight: Vec<usize>,
        /// Its outcome.
        outcome: FlushOutcome,
    },
    /// The harness noted something, such as "operation `n` was acknowledged".
    Mark(u64),
}

/// Outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// The writes it covers are durable.
    Done,
    /// It was acknowledged and did nothing: [`SimDevice::ignore_flushes`].
    Ignored,
    /// It reported an error: no earlier pending write will ever be made durable.
    Failed,
}

impl std::fmt::Debug for TraceEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceEvent::Write { at, data } => write!(f, "write {at:?}+{}", data.len()),
            TraceEvent::Flush {
                began,
                in_flight,
                outcome,
            } => {
                write!(f, "flush of events before {began} {outcome:?}")?;
                if in_flight.is_empty() {
                    Ok(())
                } else {
                    write!(f, " except {in_flight:?}")
                }
            }
            TraceEvent::Mark(n) => write!(f, "mark {n}"),
        }
    }
}
