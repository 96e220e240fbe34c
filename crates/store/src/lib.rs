//! A volume on an object store, with one writer at a time.
//!
//! The log is a sequence of numbered objects, each created once: a commit is one PUT. `head` is the only object that is ever
//! overwritten, and only by compare-and-swap. [`protocol`] decides which machine may write, which slots are acknowledged and
//! which objects may be deleted. It does no I/O: it takes answers and returns requests. [`StoreDevice`] is the disk over it: a
//! [`BlockDevice`](steadfast_block::BlockDevice) with the contract *snapshot*.
//!
//! ```
//! use steadfast_block::{BlockDevice, BlockNo, BLOCK_SIZE};
//! use steadfast_store::{Access, Found, Location, OpenOptions, create};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = OpenOptions::default();
//! let place = Location::new("memory://example", &Access::default())?;
//! create(place.clone(), 1024, options.patience)?;
//! let disk = Found::new(place, &Access::default(), options.patience)?.open(&options)?;
//! disk.write(BlockNo(7), &[&[1; BLOCK_SIZE]])?;
//! disk.flush()?;
//! # Ok(())
//! # }
//! ```

pub mod protocol;

mod cache_kind;
mod cached;
mod check;
mod device;
mod driver;
mod fault;
mod follow;
mod io;
mod kept;
mod keys;
mod lease;
mod local;
mod map;
mod memory;
mod object;
mod opening;
mod owner;
mod place;
mod probe;
mod reads;
mod runtime;
mod snapshots;
mod traffic;
mod volume;

pub use cache_kind::CacheError;
pub use cached::{CacheOptions, CachedDevice, Lag, LagClock, Salvaged};
pub use check::{Checked, Finding, Swept};
pub use device::{CheckpointError, Counters, StoreDevice};
pub use driver::Failed;
#[cfg(feature = "faults")]
pub use fault::DeviceFault;
pub use follow::{Follower, Successor};
#[cfg(feature = "faults")]
pub use io::Requests;
pub use io::StoreError;
pub use keys::{KeyFile, KeyFileError};
pub use lease::{LEASE_LEAST, ServingLease};
pub use object::{
    Bad, Compression, FORMAT_VERSION, Features, Parent, Pin, PinKind, Roots, VolumeId, VolumeObject,
};
pub use owner::{NoOwner, Owner, OwnerState};
pub use place::{Access, Location, PlaceError, is_url};
pub use probe::{ProbeOptions, ProbeReport, Rule, probe};
pub use protocol::{ObjectName, Slot, SlotName, Term};
pub use traffic::{Time, TrafficRules};
pub use volume::{
    CreateOptions, Found, OpenError, OpenOptions, State, Usage, create, create_with, exists,
    kept_name,
};
