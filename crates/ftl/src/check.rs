//! A check of the whole map, for tests and tools: no two sectors share a
//! place, every place is in a block of data, and the counts of valid sectors are right.

use crate::blocks::BlockUse;
use crate::error::Result;
use crate::ftl::Ftl;
use crate::platform::{Platform, Table, Word};
use crate::shape::NONE;

impl<P: Platform, Y> Ftl<P, Y> {
    /// Checks the map, all of which is read if it was not. Linear in the size of the disk.
    ///
    /// # Errors
    /// [`crate::FtlError::Corrupt`] names the contradiction.
    pub fn check(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let shape = self.shape;
        let mut counts = P::T::filled(n(shape.blocks), n(0));
        let mut taken = P::T::filled(n(1 << shape.place_bits()), n(0));
        P::each("sectors of the disk", n(self.limits.sectors), |sector| {
            let place = self.lookup(sector)?;
            if place == n(NONE) {
                return Ok(());
            }
            let at = shape.page_of(place);
            if taken.get(place) != n(0) {
                return Err(self.corrupt("place of one sector alone", at));
            }
            taken.set(place, n(1));
            let block = shape.block_of(place);
            counts.set(block, counts.get(block) + n(1));
            Ok(())
        })?;
        P::each("blocks", n(shape.blocks), |block| {
            let at = shape.page_at(block, n(0));
            if counts.get(block) != self.blocks.valid(block) {
                return Err(self.corrupt("count of valid sectors", at));
            }
            let data = [BlockUse::Used, BlockUse::Open, BlockUse::Bad]
                .iter()
                .any(|&what| self.blocks.is(block, what));
            if counts.get(block) != n(0) && !data {
                return Err(self.corrupt("block of data", at));
            }
            Ok(())
        })
    }
}
