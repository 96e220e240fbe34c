//! The medium: a region with the geometry of a volume on it, readable by all modules, stored to by `state` alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfast_pm::{Durability, Recorder, Region};

use super::persist::Brand;
use crate::layout::{Geometry, InodeRef, TAG_MAX, inode};
use crate::state::{Error, Result};
use crate::threads::Padded;
use crate::words::Words;

/// A volume's region, its geometry, and the counter of slot tags.
///
/// The methods that store are private to `state`: a holder of a `Medium` can look at every word and change none.
pub struct Medium {
    pub(super) region: Region,
    geometry: Geometry,
    /// Number of inodes.
    inodes: u32,
    tags: Padded<Tags>,
}

/// Tags that a thread takes at once.
const TAGS_AT_ONCE: u64 = 64;

/// Source of new tags.
struct Tags {
    /// Tells blocks of this medium from those of others, and from those that were taken before tags began anew.
    id: AtomicU64,
    next: AtomicU64,
}

thread_local! {
    /// A block of tags of the medium that the thread used last: id, next, end.
    static BLOCK: Cell<(u64, u64, u64)> = const { Cell::new((0, 0, 0)) };
}

fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Medium {
    /// A volume of this geometry on this region. Tags start at 1 until [`recover`](crate::state::recover) says better.
    ///
    /// # Errors
    /// [`Error::Outside`] if the region is smaller than the geometry.
    #[inline]
    pub fn new(region: Region, geometry: Geometry) -> Result<Medium> {
        let bytes = geometry.pages * crate::layout::PAGE_BYTES;
        if region.len() < bytes {
            return Err(Error::Outside { at: bytes });
        }
        Ok(Medium {
            region,
            geometry,
            inodes: geometry.inodes(),
            tags: Padded(Tags {
                id: AtomicU64::new(new_id()),
                next: AtomicU64::new(1),
            }),
        })
    }

    /// Places of the objects.
    #[must_use]
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The word at `at`, a multiple of 8 within the region: [`Region::load`].
    #[must_use]
    #[inline]
    pub fn load(&self, at: u64) -> u64 {
        self.region.load(at)
    }

    /// Words of the line at `at`, at these bytes of it.
    #[must_use]
    #[inline]
    pub fn words<const N: usize>(&self, at: u64, offsets: [u64; N]) -> [u64; N] {
        let line = self.region.line(at);
        offsets.map(|offset| line.load(offset))
    }

    /// Reads bytes: [`Region::read`].
    #[inline]
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        self.region.read(at, buf);
    }

    /// Bytes of the region.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Whether the memory has failed: [`Region::failed`].
    #[must_use]
    #[inline]
    pub fn failed(&self) -> bool {
        self.region.failed()
    }

    /// Persistence of stores.
    #[must_use]
    #[inline]
    pub fn durability(&self) -> Durability {
        self.region.durability()
    }

    /// The recorder, if the region has one.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.region.recorder()
    }

    /// All bytes, for tests and dumps.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.region.content()
    }

    /// Forgets the recorded events: [`Region::restart_recorder`].
    pub fn restart_recorder(&self) {
        self.region.restart_recorder();
    }

    /// Gives the region back.
    #[must_use]
    pub fn into_region(self) -> Region {
        self.region
    }

    /// Tags that no thread has taken. A tag is 48 bits, so a volume sees the end of them only if it is damaged.
    #[must_use]
    #[inline]
    pub fn tags_left(&self) -> u64 {
        TAG_MAX.saturating_sub(self.tags.0.next.load(Ordering::Relaxed))
    }

    /// A tag that no slot and no rename pointer has had.
    #[inline]
    pub(super) fn new_tag(&self) -> Result<u64> {
        let id = self.tags.0.id.load(Ordering::Relaxed);
        let (block, tag, end) = BLOCK.get();
        if block == id && tag < end {
            BLOCK.set((id, tag + 1, end));
            return Ok(tag);
        }
        let tag = self.tags.0.next.fetch_add(TAGS_AT_ONCE, Ordering::Relaxed);
        if tag > TAG_MAX {
            return Err(Error::TagsExhausted);
        }
        BLOCK.set((id, tag + 1, (tag + TAGS_AT_ONCE).min(TAG_MAX + 1)));
        Ok(tag)
    }

    #[inline]
    pub(super) fn set_next_tag(&self, next: u64) {
        self.tags.0.next.fetch_max(next, Ordering::Relaxed);
        self.tags.0.id.store(new_id(), Ordering::Relaxed);
    }

    /// Runs `f` with a brand that no other object has.
    #[inline]
    pub fn brand<R>(&self, f: impl for<'a> FnOnce(Brand<'a>) -> R) -> R {
        f(Brand::new(self))
    }

    /// Runs `f` with two brands.
    #[inline]
    pub fn brands2<R>(&self, f: impl for<'a, 'b> FnOnce(Brand<'a>, Brand<'b>) -> R) -> R {
        f(Brand::new(self), Brand::new(self))
    }

    /// Runs `f` with three brands.
    #[inline]
    pub fn brands3<R>(
        &self,
        f: impl for<'a, 'b, 'c> FnOnce(Brand<'a>, Brand<'b>, Brand<'c>) -> R,
    ) -> R {
        f(Brand::new(self), Brand::new(self), Brand::new(self))
    }

    /// Runs `f` with four brands.
    #[inline]
    pub fn brands4<R>(
        &self,
        f: impl for<'a, 'b, 'c, 'd> FnOnce(Brand<'a>, Brand<'b>, Brand<'c>, Brand<'d>) -> R,
    ) -> R {
        f(
            Brand::new(self),
            Brand::new(self),
            Brand::new(self),
            Brand::new(self),
        )
    }

    /// First byte of an inode, if its birth word has this generation.
    #[inline]
    pub(super) fn live_inode(&self, wanted: InodeRef) -> Result<u64> {
        if wanted.number == 0 || wanted.number > self.inodes {
            return Err(Error::Stale(wanted));
        }
        let at = self.geometry.inode_at(wanted.number);
        if self.load(at + inode::BIRTH) >> 32 == u64::from(wanted.generation) {
            Ok(at)
        } else {
            Err(Error::Stale(wanted))
        }
    }
}

impl Words for Medium {
    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.region.load(at)
    }
}
