//! The fencing protocol as a state machine: no I/O, no clock, no randomness.
//!
//! A driver sends the [`Request`]s that a machine returns and reports exactly one [`Answer`] to each. If an answer does not
//! come in time, the driver reports [`Answer::Unknown`] and drops a later answer. The same machines run in the exploration, in
//! the simulator and on the network.
//!
//! Order of a take-over ([`Writer`]):
//! 1. *Claim*: swap `head` to a new term. From now on no swap of the old writer succeeds, so no slot above the published
//!    checkpoint is ever deleted.
//! 2. *Seal*: read the open term's slots from the checkpoint on. Create a seal in the first free one. If an epoch is there
//!    first, it counts and the scan goes on.
//! 3. *Open*: swap `head`: the old term ends before the seal, the new term begins there, under names of its own.
//!
//! A writer acknowledges slot *n* when all slots of its term up to *n* hold its own epochs. A seal is never deleted. So a late,
//! repeated or resumed PUT meets the seal, or lies above it, where no machine reads.
//!
//! Each rule has a planted fault (`Fault`, feature `faults`), which the exploration finds.

mod collect;
mod editor;
mod fault;
mod lease;
mod message;
mod tail;
mod types;
mod writer;

pub use collect::{Collector, StoreTime, closed_below};
pub use editor::{Edit, Editor};
#[cfg(feature = "faults")]
pub use fault::Fault;
pub use fault::Faults;
pub use lease::{Lease, LocalTime};
pub use message::{Answer, Body, Request, SlotSeen};
pub use tail::{Tail, TailVerdict};
pub use types::{
    Base, Claim, Head, Nonce, ObjectName, ParseName, Reference, Slot, SlotName, Span, Stamp, Term,
    Version,
};
pub use writer::{Event, Full, Kind, Output, Proof, Settings, Stop, Writer};
