//! The layer over the emulated memory of `steadfast-flash`.

use crate::plain::{Bytes, Entries, Numbers};
use crate::platform::{Erase, Platform};
use crate::shape::Shape;
use steadfast_flash::{Address, FlashError, Geometry, Nand, Nanoseconds, Store};

/// A geometry in the layer's units.
pub(crate) fn shape_of(g: &Geometry) -> Shape {
    Shape {
        blocks: g.all_blocks().into(),
        pages: g.pages.into(),
        sectors: g.sectors.into(),
        page_words: g.page_bytes() as u64 / 8,
        spare_words: u64::from(g.spare_bytes) / 8,
        dies: g.all_dies().into(),
    }
}

/// A platform over an emulated memory.
#[derive(Debug)]
pub struct Emulated<S> {
    nand: Nand<S>,
    shape: Shape,
    sector_bytes: usize,
    raw_bytes: usize,
    /// Time at which all fetched pages are there; the same since the last program that used it.
    fetched: Nanoseconds,
    copied: Nanoseconds,
}

impl<S: Store> Emulated<S> {
    /// The platform on this memory.
    pub fn new(nand: Nand<S>) -> Emulated<S> {
        let g = *nand.geometry();
        Emulated {
            shape: shape_of(&g),
            sector_bytes: g.sector_bytes as usize,
            raw_bytes: g.raw_bytes(),
            fetched: 0,
            copied: 0,
            nand,
        }
    }

    /// Its geometry, in the layer's units.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The memory.
    pub fn nand(&self) -> &Nand<S> {
        &self.nand
    }

    /// The memory, to inject failures or let time pass.
    pub fn nand_mut(&mut self) -> &mut Nand<S> {
        &mut self.nand
    }

    /// Lets go of the memory, as it is without power.
    pub fn into_nand(self) -> Nand<S> {
        self.nand
    }

    fn address(&self, at: u64) -> Address {
        Address {
            block: self.shape.block_of_page(at) as u32,
            page: self.shape.index_of_page(at) as u32,
        }
    }

    fn slot(&self, slot: usize) -> std::ops::Range<usize> {
        slot * self.sector_bytes..(slot + 1) * self.sector_bytes
    }

    fn get(&mut self, at: u64) -> Result<(Option<Bytes>, Nanoseconds), FlashError> {
        let mut page = Bytes::zeroed(self.raw_bytes);
        match self.nand.fetch(self.address(at), &mut page.0) {
            Ok(done) => Ok((Some(page), done)),
            Err(FlashError::Unreadable { .. }) => Ok((None, self.nand.now())),
            Err(error) => Err(error),
        }
    }
}

impl<S: Store> Platform for Emulated<S> {
    type W = u64;
    type P = Bytes;
    type T = Entries;
    type Q = Numbers;
    type Sector = [u8];
    type Error = FlashError;

    fn blank(&mut self) -> Bytes {
        Bytes::zeroed(self.raw_bytes)
    }

    fn put(&self, page: &mut Bytes, slot: usize, sector: &[u8]) {
        page.0[self.slot(slot)].copy_from_slice(sector);
    }

    fn take(&self, page: &Bytes, slot: usize, sector: &mut [u8]) {
        sector.copy_from_slice(&page.0[self.slot(slot)]);
    }

    fn clear(&self, sector: &mut [u8]) {
        sector.fill(0);
    }

    fn copy(&self, from: &Bytes, slot: usize, to: &mut Bytes, target: usize) {
        to.0[self.slot(target)].copy_from_slice(&from.0[self.slot(slot)]);
    }

    fn read(&mut self, at: u64) -> Result<Option<Bytes>, FlashError> {
        let (page, done) = self.get(at)?;
        self.nand.wait(done);
        Ok(page)
    }

    fn fetch(&mut self, at: u64) -> Result<Option<Bytes>, FlashError> {
        let (page, done) = self.get(at)?;
        self.fetched = self.fetched.max(done);
        self.copied = self.copied.max(done);
        Ok(page)
    }

    fn arrive(&mut self) {
        self.nand.wait(self.fetched);
    }

    fn program(&mut self, at: u64, page: Bytes, fetched: bool) -> Result<(), FlashError> {
        let after = if fetched {
            std::mem::take(&mut self.copied)
        } else {
            0
        };
        self.nand.program(self.address(at), page.0, after)
    }

    fn sync(&mut self) -> Result<Vec<(u64, Bytes)>, FlashError> {
        let failed = self.nand.sync()?;
        let number = |at: Address| self.shape.page_at(u64::from(at.block), u64::from(at.page));
        Ok((failed.into_iter())
            .map(|f| (number(f.at), Bytes(f.bytes)))
            .collect())
    }

    fn erase(&mut self, block: u64) -> Result<(), FlashError> {
        self.nand.erase(block as u32)
    }

    fn erased(&mut self, block: u64, wait: bool) -> Result<Erase, FlashError> {
        let state = if wait {
            self.nand.wait_erase(block as u32)?
        } else {
            self.nand.settle(block as u32)?
        };
        Ok(match state {
            steadfast_flash::Erase::Pending => Erase::Pending,
            steadfast_flash::Erase::Done => Erase::Done,
            steadfast_flash::Erase::Failed => Erase::Failed,
        })
    }

    fn is_bad(&self, block: u64) -> bool {
        self.nand.is_bad(block as u32)
    }

    #[inline(always)]
    fn find(_: &'static str, count: u64, mut stop: impl FnMut(u64) -> bool) -> u64 {
        (0..count).find(|&i| stop(i)).unwrap_or(count)
    }

    #[inline(always)]
    fn each<E>(
        _: &'static str,
        count: u64,
        step: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        (0..count).try_for_each(step)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Emulated;
    use crate::platform::{Queue, Word};
    use crate::shape::TRIMMED;
    use crate::{Ftl, FtlError, Limits, Options, Tuned};
    use std::collections::BTreeSet;
    use steadfast_flash::{Fault, FaultOp, Geometry, Latency, MemoryStore, Nand, Rng};

    /// A small disk, just mounted.
    fn small() -> Ftl<Emulated<MemoryStore>, Tuned> {
        disk(48, 24)
    }

    fn disk(blocks: u32, epoch: u64) -> Ftl<Emulated<MemoryStore>, Tuned> {
        let geometry = Geometry {
            channels: 2,
            dies: 1,
            blocks,
            pages: 16,
            sectors: 2,
            sector_bytes: 256,
            spare_bytes: 64,
        };
        let nand = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap();
        let platform = Emulated::new(nand);
        let shape = platform.shape();
        let options = Options {
            sectors: Limits::largest(&shape, epoch).unwrap().sectors,
            epoch,
            region: None,
            volume: 7,
        };
        let policy = || Tuned::new(shape.dies);
        let disk = Ftl::format(platform, shape, policy(), options).unwrap();
        Ftl::mount(disk.into_platform(), shape, policy()).unwrap()
    }

    /// Found by an obligation in `proofs/smt`: after a mount, roots failed in three anchors in a row, and the
    /// fourth, with the only durable root, was erased for the next try. A crash there lost the disk.
    #[test]
    fn corner_50_the_durable_root_stays_when_all_other_anchors_fail() {
        let mut disk = small();
        let shape = disk.shape;
        let durable = disk.checkpoint.anchor;
        for _ in 0..3 {
            disk.root_failed().unwrap();
            let failed = disk.checkpoint.anchor;
            assert_ne!(failed, durable);
            disk.abandon(shape.page_at(failed, 0)).unwrap();
        }
        assert!(matches!(disk.root_failed(), Err(FtlError::WornOut)));
    }

    /// Found by an obligation in `proofs/smt`: a whole checkpoint's delta page failed, and failed again in both
    /// blocks announced after it. The checkpoint's root was durable nevertheless, and a mount that began with this root
    /// did not find the page: a new disk, or one just mounted, was lost at the next mount.
    #[test]
    fn corner_50_a_root_waits_for_a_delta_run_that_is_found() {
        let mut disk = small();
        disk.write(3, &[7; 256]).unwrap();
        disk.flush().unwrap();
        let (shape, limits) = (disk.shape, disk.limits);
        let words = shape.page_words;
        let tables = limits.map_pages.div_ceil(words * 2) + shape.blocks.div_ceil(words);
        let again = limits.map_pages + 1 + tables;
        for after in [limits.map_pages, again, again + 1] {
            let fault = Fault {
                op: FaultOp::Program,
                after,
            };
            disk.platform.nand_mut().inject(fault);
        }
        let (root, anchor) = (disk.checkpoint.root, disk.checkpoint.anchor_page);
        assert!(!disk.checkpoint_now().unwrap());
        assert_eq!(disk.stats().failed_blocks, 3);
        assert_eq!(disk.checkpoint.root, root);
        assert_eq!(disk.checkpoint.anchor_page, anchor);
        disk.checkpoint_whole().unwrap();
        let nand = disk.into_platform().into_nand().cut(1).unwrap();
        let mut disk = Ftl::mount(Emulated::new(nand), shape, Tuned::new(shape.dies)).unwrap();
        let mut data = [0; 256];
        disk.read(3, &mut data).unwrap();
        assert_eq!(data, [7; 256]);
    }

    /// Against sets: equal, nested, chained and touching trims, between writes of the same few sectors.
    #[test]
    fn an_epochs_ranges_are_disjoint_and_hold_exactly_the_trimmed_sectors() {
        let (mut disk, mut most) = (disk(120, 200), 0);
        let (epoch, sectors) = (disk.limits.epoch, disk.limits.sectors);
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (few, longest) = (2 + rng.below(sectors - 2), 1 << rng.below(6));
            let (mut trimmed, mut noted, mut again) = (BTreeSet::new(), 0, BTreeSet::new());
            for _ in 0..1 + rng.below(epoch) {
                let first = rng.below(few);
                if rng.below(2) == 0 {
                    disk.write(first, &[1; 256]).unwrap();
                    if trimmed.remove(&first) {
                        again.insert(first);
                    }
                } else {
                    let count = 1 + rng.below((few - first).min(longest));
                    disk.trim(first, count).unwrap();
                    trimmed.extend(first..first + count);
                    again.retain(|sector| !(first..first + count).contains(sector));
                    noted += 1;
                }
            }
            let (before, pages) = (disk.pairs.length(), disk.stats().trim_pages);
            disk.commit().unwrap();
            let mut said = BTreeSet::new();
            let mut ranges = 0;
            for i in before..disk.pairs.length() {
                let (first, place) = (disk.pairs.get(i).high(), disk.pairs.get(i).low());
                if place >= TRIMMED {
                    ranges += 1;
                    for sector in first..first + (place - TRIMMED) {
                        assert!(
                            said.insert(sector),
                            "seed {seed}: {sector} is in two ranges"
                        );
                    }
                }
            }
            assert_eq!(said, trimmed, "seed {seed}");
            let bound = noted + again.len() as u64;
            assert!(ranges <= bound, "seed {seed}: {ranges} of {bound}");
            let pages = disk.stats().trim_pages - pages;
            let kept = disk.limits.rounding / disk.shape.sectors - 2;
            assert!(pages <= kept, "seed {seed}: {pages} pages of trims");
            most = most.max(ranges);
            // Further work of a flush.
            disk.dirty = true;
            disk.flush().unwrap();
        }
        assert!(most > 64, "never more than a page: {most}");
    }
}
