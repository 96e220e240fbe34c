//! A flash memory that takes everything and keeps nothing, at once.

use steadfast_flash::{FlashError, MemoryStore};
use steadfast_ftl::{Bytes, Emulated, Entries, Erase, Numbers, Platform, Shape};

/// A memory that keeps no data pages: only the layer's own work is measured.
pub(crate) struct Nowhere {
    platform: Emulated<MemoryStore>,
}

impl Nowhere {
    pub(crate) fn new(platform: Emulated<MemoryStore>) -> Nowhere {
        Nowhere { platform }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.platform.shape()
    }
}

impl Platform for Nowhere {
    type W = u64;
    type P = Bytes;
    type T = Entries;
    type Q = Numbers;
    type Sector = [u8];
    type Error = FlashError;

    fn blank(&mut self) -> Bytes {
        self.platform.blank()
    }
    fn put(&self, page: &mut Bytes, slot: usize, sector: &[u8]) {
        self.platform.put(page, slot, sector);
    }
    fn take(&self, page: &Bytes, slot: usize, sector: &mut [u8]) {
        self.platform.take(page, slot, sector);
    }
    fn clear(&self, sector: &mut [u8]) {
        self.platform.clear(sector);
    }
    fn copy(&self, from: &Bytes, slot: usize, to: &mut Bytes, target: usize) {
        self.platform.copy(from, slot, to, target);
    }
    fn read(&mut self, _: u64) -> Result<Option<Bytes>, FlashError> {
        Ok(None)
    }
    fn fetch(&mut self, _: u64) -> Result<Option<Bytes>, FlashError> {
        Ok(None)
    }
    fn arrive(&mut self) {}
    fn program(&mut self, _: u64, page: Bytes, _: bool) -> Result<(), FlashError> {
        std::hint::black_box(&page);
        Ok(())
    }
    fn sync(&mut self) -> Result<Vec<(u64, Bytes)>, FlashError> {
        Ok(Vec::new())
    }
    fn erase(&mut self, _: u64) -> Result<(), FlashError> {
        Ok(())
    }
    fn erased(&mut self, _: u64, _: bool) -> Result<Erase, FlashError> {
        Ok(Erase::Done)
    }
    fn is_bad(&self, _: u64) -> bool {
        false
    }
    fn find(_: &'static str, count: u64, mut stop: impl FnMut(u64) -> bool) -> u64 {
        (0..count).find(|&i| stop(i)).unwrap_or(count)
    }
    fn each<E>(
        _: &'static str,
        count: u64,
        step: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        (0..count).try_for_each(step)
    }
}
