//! A snapshot-consistent flash translation layer: after a crash the disk has the state of the last
//! flush that returned or, if one was under way, of that one (SCFTL).
//!
//! An [`Ftl`] maps logical sectors to places in flash. [`Ftl::write`] and [`Ftl::trim`] change
//! the map; [`Ftl::flush`] makes all changes since the last flush durable in one step.
//!
//! **Content of the flash.** Data pages name their sectors in the spare area, and are numbered
//! without gaps over both data streams (host writes, and sectors moved by the collector). The
//! last page of a flush says *commit*. The pages' changes of the map are gathered into *delta pages*, in a
//! stream of their own, when they fill a page. A *full checkpoint* writes all map pages
//! anew, a few after each flush, then the tables, then a *root* that names them. Nothing but roots
//! has a fixed place, and a root is written once in thousands of flushes.
//!
//! **Why a crash is safe.** The state of flash is: the newest root's map, changed by the committed
//! delta pages from the root's position on, changed by the data pages after the last one, up to
//! the last commit before the first number that is missing or damaged.
//!
//! 1. A flush programs its pages, the commit last, and returns after one sync. Before the sync,
//!    the commit counts only if every page before it is whole; so the flush is there or not.
//! 2. Delta pages, map pages and tables are written only when a flush has just committed, and
//!    say nothing that is not committed; whether they survive a crash makes no difference.
//! 3. A block is erased only when a committed state has stopped naming its sectors (two-phase
//!    collection, SCFTL §3.4), and the delta pages with the changes of its own pages
//!    are durable. Delta and map blocks are erased when a newer root is durable.
//! 4. Streams go on in announced blocks only, which are durably erased before, and a mount begins
//!    with fresh ones. So a page that a crash left never counts as a new one; besides,
//!    it carries another *incarnation*, which every mount changes.
//! 5. Every page names the newest commit that was durable when it was programmed. A page that names
//!    a newer commit than a mount has found proves that the medium lost a page, and the mount
//!    refuses the disk (`past`). So rot does not pass for the end of a log; only the newest flush,
//!    of which no later page knows, counts as torn if its pages are damaged.
//!
//! Evidence, by machine and by hand: `proofs/coq` proves the ordering argument of a model, without page
//! search and failed programs; `proofs/smt` checks this source method by method, for all values of states of given
//! shapes at one geometry.
//!
//! The core is generic over [`Platform`]; policies (wear, hot and cold, victims) only propose,
//! and the layer checks each proposal ([`Policy`]).
//!
//! | module | job |
//! |---|---|
//! | `word` | numbers |
//! | `platform` | the base of the layer: words, pages, tables, flash |
//! | `shape`, `limits` | geometry and address bits; how large an epoch and a disk can be |
//! | `tag` | the content of the spare area of every page |
//! | `blocks` | the use of each block |
//! | `stream` | where the next page of each kind goes |
//! | `map` | logical to physical, loaded page by page |
//! | `write` | write, read, trim |
//! | `flush` | commit, failed programs, delta pages |
//! | `collect` | moving sectors, erasing blocks |
//! | `checkpoint` | map pages, tables, roots |
//! | `recover`, `anchors`, `follow` | format and mount; the newest root; how logs are followed |
//! | `past` | pages past the end of a log: distinguishes damage from an end |
//! | `check` | map and counts agree; no two sectors share a place |
//! | `policy` | which block next, which victim, how fast |
//! | `stress` | random histories with crashes against golden arrays (feature `std`) |
//! | `device` | a [`steadfast_block::BlockDevice`] (feature `std`) |
//! | `bench` | random writes in virtual time, beside the layers that promise less (feature `std`) |
//! | `emulated`, `baseline` | over `steadfast-flash`; the layers that promise less (feature `std`) |

#![cfg_attr(not(feature = "std"), no_std)]
extern crate alloc;

mod anchors;
#[cfg(feature = "std")]
mod baseline;
#[cfg(feature = "std")]
pub mod bench;
mod blocks;
mod check;
mod checkpoint;
mod collect;
#[cfg(feature = "std")]
mod device;
#[cfg(feature = "std")]
mod emulated;
mod error;
mod flush;
mod follow;
mod ftl;
mod limits;
mod map;
mod past;
mod plain;
mod platform;
mod policy;
mod recover;
mod shape;
mod stream;
#[cfg(feature = "std")]
pub mod stress;
mod tag;
mod word;
mod write;

#[cfg(feature = "std")]
pub use baseline::{Baseline, BaselineKind};
pub use blocks::{BlockUse, Blocks};
#[cfg(feature = "std")]
pub use device::{Disk, DiskError, WhenFull, cause, geometry_for, random_volume};
#[cfg(feature = "std")]
pub use emulated::Emulated;
pub use error::{FtlError, Result};
pub use ftl::{Faults, Ftl, Options, Stats};
pub use limits::{Intervals, Limits, TooSmall};
pub use plain::{Bytes, Entries, Numbers};
pub use platform::{Erase, Failed, Page, Platform, Queue, Table, Word};
pub use policy::{FirstFit, Policy, Purpose, Tuned};
pub use shape::Shape;
