//! A volume on an object store, with one writer at a time.
//!
//! The log is a row of numbered objects, each created once: a commit is one PUT. `head` is the only object that is ever
//! overwritten, and only by compare-and-swap. [`protocol`] decides who may write, what is acknowledged and what may be
//! deleted. It does no I/O: it takes answers and returns requests.

pub mod protocol;

pub use protocol::{ObjectName, Slot, SlotName, Term};
