//! The use of each block, and when it may be erased.
//!
//! ```text
//!   Erasable ──erase──► Erasing ──► Free ──announced──► Next ──► Open ──full──► Used, Delta, Map
//!      ▲                                                                          │
//!      └──── committed, and said by durable delta pages ──── Invalid ◄── no valid sector
//! ```
//!
//! An *invalid* block has no sector that the current map names; the committed state may name
//! some, so it becomes erasable only after the next flush (two-phase collection). A block's
//! *age* is the number of delta runs written when its last page was programmed: the block is a
//! victim, or erasable, only if a later run is durable.

use crate::platform::{Platform, Queue, Table, Word};

/// Use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// Erased.
    Free,
    /// Being erased.
    Erasing,
    /// Nothing in it is needed.
    Erasable,
    /// Erased, and announced as the next of a stream.
    Next,
    /// Being filled.
    Open,
    /// Full of data.
    Used,
    /// Without valid sectors, but perhaps with committed ones.
    Invalid,
    /// Holds delta pages.
    Delta,
    /// Holds map pages and tables.
    Map,
    /// Holds roots.
    Anchor,
    /// Bad: never programmed or erased again.
    Bad,
}

impl BlockUse {
    pub(crate) fn number<W: Word>(self) -> W {
        W::of(self as u64)
    }
}

/// The blocks' tables.
pub struct Blocks<P: Platform> {
    pub(crate) uses: P::T,
    /// Sectors that the current map names.
    pub(crate) valid: P::T,
    /// Of data: delta runs at the last program. Of delta and map blocks: the checkpoint.
    pub(crate) ages: P::T,
    pub(crate) erases: P::T,
    /// A program failed here: emptied, then bad.
    pub(crate) failing: P::T,
    pub(crate) count: P::W,
    /// Delta runs that are durable.
    pub(crate) durable_runs: P::W,
    /// Free, erasing, erasable and invalid blocks.
    pub(crate) spare: P::W,
    /// Invalid blocks, in the order in which they became so.
    pub(crate) invalid: P::Q,
    pub(crate) erasing: P::Q,
    /// A planted fault.
    pub(crate) forget_age: bool,
}

impl<P: Platform> Blocks<P> {
    pub(crate) fn new(count: P::W) -> Self {
        let zero = P::W::of(0);
        Blocks {
            uses: P::T::filled(count, BlockUse::Erasable.number()),
            valid: P::T::filled(count, zero),
            ages: P::T::filled(count, zero),
            erases: P::T::filled(count, zero),
            failing: P::T::filled(count, zero),
            count,
            durable_runs: zero,
            spare: count,
            invalid: P::Q::default(),
            erasing: P::Q::default(),
            forget_age: false,
        }
    }

    /// Number of blocks.
    pub fn count(&self) -> P::W {
        self.count
    }

    /// Whether there is such a block and it is used like this. Announcements come from the medium.
    pub fn is(&self, block: P::W, what: BlockUse) -> bool {
        block < self.count && self.uses.get(block) == what.number()
    }

    /// Valid sectors of a block.
    pub fn valid(&self, block: P::W) -> P::W {
        self.valid.get(block)
    }

    /// Erases of a block, as far as they are recorded.
    pub fn erases(&self, block: P::W) -> P::W {
        self.erases.get(block)
    }

    /// Whether the collector may empty the block: it is full, and its pages' changes are in
    /// durable delta pages.
    pub fn is_victim(&self, block: P::W) -> bool {
        self.is(block, BlockUse::Used) && self.is_settled(block)
    }

    /// A program failed in the block: it should be emptied before others.
    pub fn is_failing(&self, block: P::W) -> bool {
        self.failing.get(block) != P::W::of(0)
    }

    /// Whether an invalid block is erasable when this epoch is committed.
    pub(crate) fn will_settle(&self, block: P::W) -> bool {
        self.is_settled(block) && !self.is_failing(block)
    }

    pub(crate) fn is_settled(&self, block: P::W) -> bool {
        self.ages.get(block) < self.durable_runs || self.forget_age
    }

    /// Changes a block's use, and counts it among the spare ones or not.
    pub(crate) fn set(&mut self, block: P::W, what: BlockUse) {
        let (was, one) = (self.is_spare(block), P::W::of(1));
        self.uses.set(block, what.number());
        match (was, self.is_spare(block)) {
            (true, false) => self.spare = self.spare - one,
            (false, true) => self.spare = self.spare + one,
            _ => {}
        }
    }

    fn is_spare(&self, block: P::W) -> bool {
        use BlockUse::{Erasable, Erasing, Free, Invalid};
        [Free, Erasing, Erasable, Invalid]
            .iter()
            .any(|&what| self.is(block, what))
    }

    /// Counts one more valid sector.
    pub(crate) fn gain(&mut self, block: P::W) {
        self.valid.set(block, self.valid.get(block) + P::W::of(1));
    }

    /// Counts one valid sector less; a full block without any is invalid from now on.
    pub(crate) fn lose(&mut self, block: P::W) {
        self.valid.set(block, self.valid.get(block) - P::W::of(1));
        self.vacate(block);
    }

    pub(crate) fn vacate(&mut self, block: P::W) {
        if self.is(block, BlockUse::Used) && self.valid.get(block) == P::W::of(0) {
            self.set(block, BlockUse::Invalid);
            self.invalid.push(block);
        }
    }

    /// After a flush: invalid blocks that nothing durable needs become erasable.
    pub(crate) fn settle_invalid(&mut self) {
        let mut kept = P::W::of(0);
        let length = self.invalid.length();
        let _ = P::each("invalid blocks", length, |i| {
            kept = self.settle_one(i, kept);
            Ok::<_, core::convert::Infallible>(())
        });
        self.invalid.truncate(kept);
    }

    /// Looks at one invalid block, `kept` of those before it being still in the list; how many are
    /// then.
    pub(crate) fn settle_one(&mut self, i: P::W, kept: P::W) -> P::W {
        let block = self.invalid.get(i);
        if !self.is(block, BlockUse::Invalid) {
            return kept;
        }
        if !self.is_settled(block) {
            self.invalid.set(kept, block);
            return kept + P::W::of(1);
        }
        if self.is_failing(block) {
            self.set(block, BlockUse::Bad);
        } else {
            self.set(block, BlockUse::Erasable);
        }
        kept
    }
}
