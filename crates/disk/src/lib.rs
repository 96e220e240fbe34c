//! Disks in flash images, and of volumes on object stores, as servers offer them. The front ends (the nbdkit plugin, the mounted
//! file) have no storage logic: this crate has their common code.
//!
//! A [`ServedDisk`] takes requests for any bytes. Order, and the state after a crash:
//!
//! * the unit below is the block of 4 KiB. A request that begins or ends inside a block reads
//!   the rest of it first, while no other write is under way, and writes whole blocks: so two
//!   clients that write parts of one block both find their bytes;
//! * a write goes to the layer as one request. A flush has all of it or nothing of it, and so has a
//!   crash, unless it is larger than an epoch;
//! * a flush makes durable everything that was answered before it came, of all clients. There is no
//!   smaller unit: the state with one write and without those before it was never the disk's. So a
//!   write with *FUA* (force unit access) is a write and a flush of the whole disk;
//! * after a crash the disk has the state of its last flush. The layer flushes on its own only
//!   with [`Full::Flush`], when an epoch is full.
//!
//! | module | job |
//! |---|---|
//! | `served` | requests for bytes, and the reasons for a refusal |
//! | `settings` | the settings of a server, and how it opens the image |
//! | `medium` | the served medium: the disk, or the disk on trial |
//! | `file` | a file system with one file, the disk |
//! | `store` | the disk of a volume on an object store (feature `store`) |
//! | `trial` | a record of promises to clients, power cuts and planted faults, for tests (feature `trial`) |
//! | `verdict` | whether an image holds what the record promises (feature `trial`) |
//! | `fuzz` | the body of the fuzz target `flash` (feature `fuzz`) |

mod file;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod medium;
mod served;
mod settings;
#[cfg(feature = "store")]
mod store;
#[cfg(feature = "trial")]
mod trial;
#[cfg(feature = "trial")]
mod verdict;

pub use file::{DISK_NAME, DiskFile};
pub use medium::{Medium, Run};
pub use served::{Refusal, ServedDisk};
pub use settings::{Full, Gone, OpenError, Settings};
#[cfg(feature = "store")]
pub use store::{StoreDisk, StoreError, StoreSettings};
#[cfg(feature = "trial")]
pub use trial::{Fault, Trial, TrialOptions};
#[cfg(feature = "trial")]
pub use verdict::{Verdict, VerdictError, verify, verify_disk};
