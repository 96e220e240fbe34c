//! An object store in virtual time, for simulations that repeat exactly.
//!
//! [`Clock`] runs tasks on one thread. When none is ready, its time jumps to the next timer; there is no other time. [`SimStore`]
//! is an [`ObjectStore`](object_store::ObjectStore) whose requests take effect after a while, late, twice, or never, and whose
//! answers get lost, as its [`Trouble`] and its seed say. The same seed gives the same run.

mod clock;
mod random;
mod store;

pub use clock::{Clock, Pace, Sleep};
pub use random::Random;
pub use store::{SimStore, Trouble};
