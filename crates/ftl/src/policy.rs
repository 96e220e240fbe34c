//! Choices that make the layer fast and even, and on which nothing else depends.
//!
//! A policy *proposes*; the core checks the proposal (a block to open must be free, one to erase
//! erasable, a victim full and settled) and takes the plain choice, the first block that will do,
//! if it does not hold (SCFTL §6.1). So a wrong policy costs time, never data.

use crate::blocks::{BlockUse, Blocks};
use crate::limits::Limits;
use crate::platform::Platform;

/// Purpose of a block when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Writes of the host: likely to change soon.
    Host,
    /// Sectors moved by the collector: likely to stay.
    Moved,
    /// Delta pages.
    Delta,
    /// Map pages.
    Map,
}

/// Proposes blocks. Each method may propose nothing.
pub trait Policy<P: Platform> {
    /// A free block to open, beside the stream's `others`.
    fn next(&mut self, purpose: Purpose, blocks: &Blocks<P>, others: &[P::W]) -> Option<P::W>;
    /// An erasable block to erase.
    fn erase(&mut self, blocks: &Blocks<P>) -> Option<P::W>;
    /// A block for the collector to empty.
    fn victim(&mut self, blocks: &Blocks<P>, limits: &Limits) -> Option<P::W>;
    /// A full block of cold data to empty for its wear alone, while there is room.
    fn level(&mut self, blocks: &Blocks<P>) -> Option<P::W>;
    /// Sectors to move now, after the streams consumed `consumed` sectors' places; `valid` of the
    /// victim's were valid when it was chosen, and `room` blocks are free beyond the reserve.
    fn pace(&mut self, limits: &Limits, consumed: u64, valid: u64, room: i64) -> u64;
    /// Erased blocks to keep in stock.
    fn stock(&self) -> u64;
}

/// Proposes nothing: the core's own choices, without regard to wear and dies.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstFit;

impl<P: Platform> Policy<P> for FirstFit {
    fn next(&mut self, _: Purpose, _: &Blocks<P>, _: &[P::W]) -> Option<P::W> {
        None
    }

    fn erase(&mut self, _: &Blocks<P>) -> Option<P::W> {
        None
    }

    fn victim(&mut self, _: &Blocks<P>, _: &Limits) -> Option<P::W> {
        None
    }

    fn level(&mut self, _: &Blocks<P>) -> Option<P::W> {
        None
    }

    fn pace(&mut self, limits: &Limits, consumed: u64, valid: u64, room: i64) -> u64 {
        pace(limits, consumed, valid, room, &mut 0)
    }

    fn stock(&self) -> u64 {
        4
    }
}

/// Moves as many sectors as keep the free space where it is, more when it comes near to the
/// reserve, and never more at a time than the worst victim asks for; `debt` carries the rest.
fn pace(limits: &Limits, consumed: u64, valid: u64, room: i64, debt: &mut u64) -> u64 {
    let gain = limits.block_sectors.saturating_sub(valid).max(1);
    let worst = limits.victim / limits.block_sectors.saturating_sub(limits.victim).max(1) + 1;
    let factor = match room {
        ..0 => 4,
        r if r < limits.margin as i64 / 2 => 2,
        _ => 1,
    };
    *debt += factor * consumed * valid.max(1);
    let now = (*debt / gain).min(factor * consumed * worst);
    *debt %= gain;
    now
}

/// The production policy: wear, dies, hot and cold.
///
/// * Streams take turns over dies, so the next block of a stream is on a die that it is not open on.
/// * Hot data goes to the blocks with the fewest erases, cold data to those with the most.
/// * Victims are those with the fewest valid sectors, failing blocks first.
/// * Once in a while the least worn full block is emptied, if it lags far behind: cold data must
///   not keep it from its share of erases.
#[derive(Clone, Debug)]
pub struct Tuned {
    dies: u64,
    /// Since wear was looked at.
    erases: u64,
    debt: u64,
}

/// Erases after which wear is looked at.
const LEVEL_EVERY: u64 = 16;
/// Minimum lag of a block behind the most worn one.
const LEVEL_LAG: u64 = 12;

impl Tuned {
    /// The policy for a memory of this many dies.
    #[must_use]
    pub fn new(dies: u64) -> Tuned {
        Tuned {
            dies: dies.max(1),
            erases: 0,
            debt: 0,
        }
    }
}

/// The block of a use with the smallest key.
fn smallest<P: Platform<W = u64>, K: Ord>(
    blocks: &Blocks<P>,
    what: BlockUse,
    key: impl Fn(u64) -> K,
) -> Option<u64> {
    (0..blocks.count())
        .filter(|&block| blocks.is(block, what))
        .min_by_key(|&block| key(block))
}

impl<P: Platform<W = u64>> Policy<P> for Tuned {
    fn next(&mut self, purpose: Purpose, blocks: &Blocks<P>, others: &[u64]) -> Option<u64> {
        let shared = |block: u64| {
            let die = block % self.dies;
            others.iter().filter(|&&o| o % self.dies == die).count()
        };
        smallest(blocks, BlockUse::Free, |block| {
            let erases = blocks.erases(block);
            let worn = match purpose {
                Purpose::Moved => u64::MAX - erases,
                _ => erases,
            };
            (shared(block), worn)
        })
    }

    fn erase(&mut self, blocks: &Blocks<P>) -> Option<u64> {
        self.erases += 1;
        let mut ready = alloc::vec![0u32; self.dies as usize];
        for block in 0..blocks.count() {
            if blocks.is(block, BlockUse::Free) || blocks.is(block, BlockUse::Erasing) {
                ready[(block % self.dies) as usize] += 1;
            }
        }
        smallest(blocks, BlockUse::Erasable, |block| {
            (ready[(block % self.dies) as usize], blocks.erases(block))
        })
    }

    fn victim(&mut self, blocks: &Blocks<P>, _: &Limits) -> Option<u64> {
        (0..blocks.count())
            .filter(|&b| blocks.is_victim(b))
            .min_by_key(|&b| (!blocks.is_failing(b), blocks.valid(b)))
    }

    fn level(&mut self, blocks: &Blocks<P>) -> Option<u64> {
        if self.erases < LEVEL_EVERY {
            return None;
        }
        self.erases = 0;
        let worn = (0..blocks.count()).map(|b| blocks.erases(b)).max()?;
        (0..blocks.count())
            .filter(|&b| blocks.is_victim(b) && blocks.erases(b) + LEVEL_LAG < worn)
            .min_by_key(|&b| blocks.erases(b))
    }

    fn pace(&mut self, limits: &Limits, consumed: u64, valid: u64, room: i64) -> u64 {
        pace(limits, consumed, valid, room, &mut self.debt)
    }

    fn stock(&self) -> u64 {
        self.dies + 4
    }
}

/// Checks a proposal: returns the block, if it is in range and has this use.
pub(crate) fn checked<P: Platform>(
    proposal: Option<P::W>,
    blocks: &Blocks<P>,
    what: BlockUse,
) -> Option<P::W> {
    proposal.filter(|&block| block < blocks.count() && blocks.is(block, what))
}

/// The first block of a use.
pub(crate) fn first<P: Platform>(blocks: &Blocks<P>, what: BlockUse) -> Option<P::W> {
    let found = P::find("a block of a use", blocks.count(), |b| blocks.is(b, what));
    (found < blocks.count()).then_some(found)
}
