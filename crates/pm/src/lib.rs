//! Persistent memory: a region of words that survive a power cut once they are written back and fenced.
//!
//! # The medium
//!
//! A [`Region`] is an array of 8-byte words, grouped into cache lines of 64 bytes. A word is the unit that never tears. Three
//! kinds of store exist:
//!
//! * [`Region::store`]: an ordinary store of one word. It becomes durable once its line is written back
//!   ([`Region::write_back`]) and the calling thread fences ([`Region::fence`]). The cache may also evict the line at any
//!   earlier time, but it keeps the order within the line: a crash leaves a prefix of the stores to each line.
//! * [`Region::write_data`] and [`Region::zero_data`]: non-temporal stores, for bulk data. They need no write-back. Each word
//!   is on its own until the next fence.
//!
//! On a platform whose caches survive a power cut (eADR) every ordinary store is durable in program order, and
//! [`Region::write_back`] does nothing. Fences are still needed for non-temporal stores.
//!
//! # Backings
//!
//! * [`Region::open`], [`Region::create`]: a file on tmpfs, ramfs or hugetlbfs, a file on a file system mounted with DAX, or a
//!   DAX device. Other files are refused, because the kernel writes their pages back by itself and may tear a line;
//! * [`Region::anonymous`], [`Region::with_content`]: plain memory, for tests and measurements;
//! * [`Region::recorded`]: plain memory that records every event, see [`Recorder`].
//!
//! Memory of the machine (tmpfs) behaves like persistent memory until the machine stops.
//!
//! # Rules for callers
//!
//! * An address is a byte offset from the start of the region. Accesses out of bounds panic, like those of a slice: callers
//!   that follow addresses found on the medium check them first.
//! * A region can fail while it is used: its file shrinks, or the medium reports an error. Accesses then go on, to zeros, and
//!   [`Region::failed`] is true. A caller looks at it before it reports success, or believes what it has read.
//! * Non-temporal stores reach other threads in order only after a fence. A caller fences before it releases the lock that
//!   protects the data.
//!
//! # Crash images
//!
//! A recorded region shows what a power cut may leave. [`Trace::explore`] forms these images under a [`Model`], and
//! [`Trace::report`] lists stores that are never written back and write-backs and fences that do nothing.
//!
//! ```
//! use steadfast_pm::{CrashImage, Exploration, Region};
//!
//! /// Stores a record in line 1, and then, in line 0, the word that makes it valid.
//! fn publish(region: &Region) {
//!     region.store(64, 42);
//!     region.write_back(64, 8);
//!     region.fence();
//!     region.store(0, 1);
//!     region.write_back(0, 8);
//!     region.fence();
//! }
//!
//! /// What is valid is there.
//! fn check(image: &CrashImage<'_>) -> Result<(), String> {
//!     let region = image.region();
//!     match (region.load(0), region.load(64)) {
//!         (0, _) | (1, 42) => Ok(()),
//!         _ => Err(image.to_string()),
//!     }
//! }
//!
//! let region = Region::recorded(vec![0; 128]);
//! publish(&region);
//! let trace = region.recorder().map(|recorder| recorder.trace()).ok_or("not recorded")?;
//! assert!(trace.report().is_clean());
//! let all = |_| true;
//! trace.explore(&Exploration::default(), all, check)?;
//!
//! // Without the first write-back, the record may be lost though it is valid.
//! let careless = trace.without(1);
//! assert!(careless.explore(&Exploration::default(), all, check).is_err());
//! assert_eq!(careless.report().never_written_back, [0]);
//! # Ok::<(), String>(())
//! ```

mod counts;
mod error;
mod images;
mod instructions;
mod mapping;
mod model;
mod open;
mod platform;
mod recorder;
mod region;
mod report;
mod signal;
mod trace;

pub use counts::{Counts, thread_counts};
pub use error::{Error, Result};
pub use images::{CrashImage, Exploration, Explored};
pub use instructions::Instruction;
pub use model::Model;
pub use open::{Eadr, OpenOptions};
pub use recorder::{Event, Recorder};
pub use region::{Durability, Line, Region};
pub use report::Report;
pub use trace::Trace;

/// Bytes of a cache line: the unit of write-back.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a word: the unit that never tears.
pub const WORD_BYTES: u64 = 8;
/// Bytes of a page: a region in a file is a multiple of it.
pub const PAGE_BYTES: u64 = 4096;
