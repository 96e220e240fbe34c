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
//! * [`Region::anonymous`]: plain memory, for tests and measurements;
//! * [`Region::recorded`]: plain memory that records every event, see [`Recorder`].
//!
//! # Rules for callers
//!
//! An address is a byte offset from the start of the region. Accesses out of bounds panic, like those of a slice: callers that
//! follow addresses found on the medium check them first.

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
pub use region::{Durability, Region};
pub use report::Report;
pub use trace::Trace;

/// Bytes of a cache line: the unit of write-back.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a word: the unit that never tears.
pub const WORD_BYTES: u64 = 8;
/// Bytes of a page: a region in a file is a multiple of it.
pub const PAGE_BYTES: u64 = 4096;
