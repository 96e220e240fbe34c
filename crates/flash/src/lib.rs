//! NAND flash as a translation layer sees it: erase a block, program its pages in order, sync.
//!
//! A [`Nand`] is a flash memory with a [`Geometry`] chosen at run time. Programs and erases are
//! *asynchronous*: they join the queue of their die and take their time there, in virtual time
//! ([`Latency`]), beside those of other dies. The contract is the weakest that a translation
//! layer can live with:
//!
//! * a page is programmed once after its block was erased, and the pages of a block in order;
//!   a caller that breaks a rule gets a [`Violation`];
//! * [`Nand::sync`] waits for every program before it and makes them durable; an erase is durable
//!   when [`Nand::settle`] says so, or with the first synced program on top of it;
//! * after a power cut ([`Nand::cut`]) every page touched since then holds its old bytes, the new
//!   ones, a torn mixture or garbage, each page on its own, as a seed decides;
//! * a failed program or erase is reported by the next sync, together with all later programs of
//!   its block, with their bytes: the layer above programs them elsewhere. Until then they
//!   read as they were programmed.
//!
//! The emulator of SCFTL §7.1 is this one without torn pages, interrupted erases
//! and failures. Neighbours: a [`Store`] below (memory or an image file), `steadfast-ftl` above.
//!
//! | module | job |
//! |---|---|
//! | `geometry` | numbers of pages, blocks, dies and channels, and the die of each block |
//! | `nand` | the memory: rules, queues, durability |
//! | `cut` | the state after a power cut |
//! | `fault` | failures on purpose |
//! | `time` | latencies, and when each die and channel is free |
//! | `store` | where the durable bytes are: memory or an image file |
//! | `overlay` | a store that is looked at and never changed |

mod cut;
mod fault;
mod geometry;
mod nand;
mod overlay;
mod store;
mod time;

pub use fault::{Fault, FaultOp, Rates};
pub use geometry::{Address, Geometry, GeometryError};
pub use nand::{Counts, Erase, Failed, FlashError, Nand, Result, Violation};
pub use overlay::Overlay;
pub use store::{BlockState, ImageError, ImageStore, MemoryStore, Store};
pub use time::{Latency, Nanoseconds};

/// A small seeded generator (`SplitMix64`): the same seed gives the same choices everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number().checked_rem(bound).unwrap_or(0)
    }
}
