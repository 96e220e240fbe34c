//! Maximum sizes of an epoch and a disk: the bounds of SCFTL §3.4, from the real
//! geometry. They are computed and enforced when a disk is made.
//!
//! With `S` sectors in a block, an epoch of `W` writes (and the rounding of a flush), and victims
//! of at most `N` valid sectors, the collector must move at most `K` victims in an epoch, with
//!
//! ```text
//!   (1)  W + K N <= K S                          moving produces what an epoch consumes
//!   (2)  U <= P - F - ceil((W + K N) / S)        at fewer than U used blocks there is room
//! ```
//!
//! where `P` are the blocks for data, `F` those open or announced or soon to be opened, and `N = L / (U - Z)` for `L`
//! sectors of the disk: the pigeonhole principle over the used blocks without the `Z` newest,
//! whose changes may not be in durable delta pages yet, so that they are no victims.

use crate::shape::Shape;
use core::ops::{Add, Mul, Sub};

/// Blocks that hold roots, in turn: the first ones, each on another die where there are enough.
pub(crate) const ANCHORS: u64 = 4;
/// No page is larger: 8 MiB.
const PAGE_WORDS_MAX: u64 = 1 << 20;
/// The spare parts: a share of the blocks for those that go bad.
const BAD_SHARE: u64 = 64;

/// Blocks announced for metadata: two of each stream.
pub(crate) const META_NEXT: u64 = 4;

/// No delta region is smaller: a checkpoint and a mount write delta pages themselves.
pub(crate) const REGION_MIN: u64 = 8;

/// Numbers of open blocks for each purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Widths {
    pub(crate) host: u64,
    pub(crate) moved: u64,
    pub(crate) map: u64,
}

impl Widths {
    /// As many as there are dies, while they are few among the blocks. The more map pages there are, the more dies they
    /// lie on: a flush waits less for those before it.
    pub(crate) fn of(shape: &Shape) -> Widths {
        let most = (shape.blocks / 64).clamp(1, 64);
        let host = shape.dies.min(most);
        Widths {
            host,
            moved: host.div_ceil(2),
            map: (shape.blocks / 256).clamp(host.div_ceil(4), host),
        }
    }
}

/// Intervals between flushes, and between checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intervals {
    /// Writes and trims of an epoch (`W`).
    pub epoch: u64,
    /// The delta region: delta pages from one checkpoint to the next, 8 or more. The fewer, the
    /// less a mount has to read, and the more often the map is written. `None`: half as many as there are map
    /// pages.
    pub region: Option<u64>,
}

impl From<u64> for Intervals {
    /// Epochs of this many writes, and the usual delta region.
    fn from(epoch: u64) -> Intervals {
        Intervals {
            epoch,
            region: None,
        }
    }
}

/// The size of a disk, and how its flash memory is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Sectors of the disk (`L`).
    pub sectors: u64,
    /// Writes and trims of an epoch (`W`).
    pub epoch: u64,
    /// Sectors of a block (`S`).
    pub block_sectors: u64,
    /// Most valid sectors of a victim (`N`).
    pub victim: u64,
    /// Victims that an epoch may need (`K`).
    pub victims: u64,
    /// Used blocks from which on the collector works (`U`).
    pub threshold: u64,
    /// Blocks that must be free for data when an epoch begins.
    pub reserve: u64,
    /// Blocks beyond the reserve from which on the collector works.
    pub margin: u64,
    /// Sectors that a flush rounds up to: a page of the host, one of the collector, those of trims.
    pub rounding: u64,
    /// Map pages.
    pub map_pages: u64,
    /// Delta pages from one checkpoint to the next: the delta region.
    pub delta_pages: u64,
    /// Pairs that wait before they go to delta pages.
    pub pairs: u64,
    /// Blocks that metadata may occupy, those announced for it included.
    pub meta_blocks: u64,
    /// Blocks kept for those that go bad.
    pub bad_blocks: u64,
}

/// A disk that does not fit its flash memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooSmall {
    /// The geometry itself is not supported.
    #[error("unsupported flash geometry: {what} is {value}, but must be {must}")]
    Geometry {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Permitted values.
        must: &'static str,
    },
    /// Checkpoints would never end.
    #[error("a delta region of {pages} pages is too small: at least {least} are needed")]
    Region {
        /// Delta pages asked for.
        pages: u64,
        /// The least number that works.
        least: u64,
    },
    /// The constraints of SCFTL §3.4 cannot be met.
    #[error(
        "a disk of {sectors} sectors with epochs of {epoch} writes{} does not fit a flash memory of \
         {capacity} sectors: make it smaller; at most {fits} sectors fit",
        region.map_or_else(Default::default, |pages| alloc::format!(" and a delta region of {pages} pages"))
    )]
    Disk {
        /// Sectors asked for.
        sectors: u64,
        /// Writes of an epoch.
        epoch: u64,
        /// Delta pages from one checkpoint to the next, if asked for.
        region: Option<u64>,
        /// Sectors of the memory, metadata included.
        capacity: u64,
        /// Sectors that fit, with the same intervals.
        fits: u64,
    },
}

impl Limits {
    /// The bounds for a disk of `sectors` sectors and these intervals. A number alone stands for epochs of this many
    /// writes and the usual delta region.
    ///
    /// # Errors
    /// [`TooSmall`], with the size that would fit.
    pub fn derive(
        shape: &Shape,
        sectors: u64,
        intervals: impl Into<Intervals>,
    ) -> Result<Limits, TooSmall> {
        let intervals = intervals.into();
        check(shape)?;
        if let Some(pages) = intervals.region.filter(|&pages| pages < REGION_MIN) {
            let least = REGION_MIN;
            return Err(TooSmall::Region { pages, least });
        }
        if let Some(limits) = Limits::solve(shape, sectors, intervals) {
            return Ok(limits);
        }
        let capacity = shape.blocks * shape.block_sectors();
        let (mut fits, mut fails) = (0, capacity.min(sectors));
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            match Limits::solve(shape, middle, intervals) {
                Some(_) => fits = middle,
                None => fails = middle,
            }
        }
        Err(TooSmall::Disk {
            sectors,
            epoch: intervals.epoch,
            region: intervals.region,
            capacity,
            fits,
        })
    }

    /// The largest disk with these intervals.
    ///
    /// # Errors
    /// [`TooSmall`] if there is none.
    pub fn largest(shape: &Shape, intervals: impl Into<Intervals>) -> Result<Limits, TooSmall> {
        let intervals = intervals.into();
        check(shape)?;
        match Limits::derive(shape, shape.blocks * shape.block_sectors(), intervals) {
            Err(TooSmall::Disk { fits, .. }) if fits > 0 => Limits::derive(shape, fits, intervals),
            other => other,
        }
    }

    /// Bytes of memory that the tables take: the map, the state of its pages, and the blocks'.
    #[must_use]
    pub fn memory_bytes(&self, shape: &Shape) -> u64 {
        let entries = self.map_pages << shape.entry_bits();
        4 * (entries + 2 * self.map_pages + 5 * shape.blocks) + 8 * (self.pairs + 2 * self.epoch)
    }

    fn solve(shape: &Shape, sectors: u64, intervals: Intervals) -> Option<Limits> {
        let Intervals { epoch, region } = intervals;
        let most = sectors.max(epoch).max(region.unwrap_or(0));
        if sectors == 0 || epoch == 0 || most >= crate::shape::TRIMMED {
            return None;
        }
        let widths = Widths::of(shape);
        let tables = table_pages(shape, sectors.div_ceil(1 << shape.entry_bits()));
        if crate::checkpoint::ROOT_WORDS + tables.div_ceil(2) > shape.page_words {
            return None;
        }
        let block_sectors = shape.block_sectors();
        let map_pages = sectors.div_ceil(1 << shape.entry_bits());
        let delta_pages = region.unwrap_or((map_pages / 2).max(REGION_MIN));
        let delta_blocks = (delta_pages * 3).div_ceil(shape.pages) + 3;
        // Blocks that the older map ends in, those that a mount begins with, and those that the newer one ends in.
        let map_blocks = ((map_pages + tables) * 2).div_ceil(shape.pages) + 3 * widths.map;
        let meta_blocks = delta_blocks + map_blocks;
        let bad_blocks = shape.blocks / BAD_SHARE + 1;
        // Open, needed at once when all that are open are full, and announced.
        let open = 2 * (widths.host + widths.moved) + 4;
        let pairs = 2 * pair_capacity(shape);
        let rounding = shape.sectors * (2 + epoch.div_ceil(shape.page_words));
        // Besides, a page of the collector's may wait when the epoch begins.
        let rounded = epoch + rounding + shape.sectors;
        // The collector begins early enough, also for the pages that a flush programs after it.
        let margin = (shape.blocks / 128)
            .clamp(2, 16)
            .max((2 * (rounded - epoch)).div_ceil(block_sectors));
        let fixed = ANCHORS + bad_blocks + meta_blocks + open + margin;
        let most = shape.blocks.checked_sub(fixed)?;
        let with_threshold = |threshold: u64| {
            let mut newest =
                (pairs + 2 * epoch).div_ceil(shape.data_pages()) + widths.host + widths.moved;
            // Sectors moved in an epoch are as new as those written.
            for _ in 0..8 {
                let victim = sectors / threshold.checked_sub(newest).filter(|&b| b > 0)?;
                let gain = block_sectors.checked_sub(victim).filter(|&g| g > 0)?;
                let victims = rounded.div_ceil(gain);
                let moved_blocks = (2 * victims * victim).div_ceil(block_sectors);
                let wanted = (pairs + 2 * epoch).div_ceil(shape.data_pages())
                    + moved_blocks
                    + widths.host
                    + widths.moved;
                if wanted <= newest {
                    // After a crash two blocks are opened, and a victim is moved with the rest.
                    let first =
                        2 + (rounded - epoch + shape.sectors + victim).div_ceil(block_sectors);
                    let reserve =
                        ((rounded + victims * victim).div_ceil(block_sectors) + 1).max(first);
                    let limits = Limits {
                        sectors,
                        epoch,
                        block_sectors,
                        victim,
                        victims,
                        threshold,
                        reserve,
                        margin,
                        rounding,
                        map_pages,
                        delta_pages,
                        pairs,
                        meta_blocks,
                        bad_blocks,
                    };
                    return Some(limits).filter(|limits| limits.hold(rounded, newest, most));
                }
                newest = wanted;
            }
            None
        };
        // The later the collector begins, the less it moves.
        (1..most).rev().find_map(with_threshold)
    }
}

/// Integers, large enough for products of two numbers of 64 bits and their sums; a verifier's have no bounds.
pub(crate) trait Number:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// This number.
    fn of(value: u64) -> Self;
}

impl Number for u128 {
    fn of(value: u64) -> u128 {
        value.into()
    }
}

/// The constraints themselves, for any proposed bounds: others are refused.
pub(crate) struct Constraints<N> {
    /// `W`, rounded up, and the additions.
    pub(crate) writes: N,
    pub(crate) added: N,
    /// `L`, `S`, `N`, `K`, `U`.
    pub(crate) sectors: N,
    pub(crate) block: N,
    pub(crate) victim: N,
    pub(crate) victims: N,
    pub(crate) threshold: N,
    /// `Z`.
    pub(crate) newest: N,
    pub(crate) reserve: N,
    pub(crate) margin: N,
    /// `P - F`.
    pub(crate) blocks: N,
}

impl<N: Number> Constraints<N> {
    pub(crate) fn hold(&self) -> bool {
        let taken = self.writes + self.victims * self.victim;
        let produced = taken <= self.victims * self.block;
        let room = taken <= self.reserve * self.block
            && self.threshold + self.reserve <= self.blocks
            && self.added <= self.margin * self.block;
        // If all of `U - Z` blocks held more than `N` sectors, they would hold more than there are.
        let pigeons = self.newest < self.threshold
            && self.sectors < (self.threshold - self.newest) * (self.victim + N::of(1));
        produced && room && pigeons
    }
}

impl Limits {
    fn hold(&self, rounded: u64, newest: u64, most: u64) -> bool {
        let n = u128::of;
        let constraints = Constraints {
            writes: n(rounded),
            added: n(rounded - self.epoch),
            sectors: n(self.sectors),
            block: n(self.block_sectors),
            victim: n(self.victim),
            victims: n(self.victims),
            threshold: n(self.threshold),
            newest: n(newest),
            reserve: n(self.reserve),
            margin: n(self.margin),
            blocks: n(most),
        };
        constraints.hold()
    }
}

/// Pages of directory and block table.
fn table_pages(shape: &Shape, map_pages: u64) -> u64 {
    map_pages.div_ceil(shape.page_words * 2) + shape.blocks.div_ceil(shape.page_words)
}

/// Words of a delta page before its pairs.
pub(crate) fn delta_head_words(shape: &Shape) -> u64 {
    let widths = Widths::of(shape);
    3 + 2 * 2 + widths.host + widths.moved
}

/// Pairs that a delta page holds.
pub(crate) fn pair_capacity(shape: &Shape) -> u64 {
    shape.page_words.saturating_sub(delta_head_words(shape))
}

fn check(shape: &Shape) -> Result<(), TooSmall> {
    let wrong = |what, value, must| Err(TooSmall::Geometry { what, value, must });
    if shape.place_bits() > 31 {
        let must = "at most 31: fewer blocks, pages or sectors";
        return wrong(
            "number of bits of a sector's place",
            shape.place_bits().into(),
            must,
        );
    }
    if shape.sectors == 0 || shape.sectors > 16 {
        return wrong("number of sectors in a page", shape.sectors, "1 to 16");
    }
    if shape.spare_words < shape.tag_words() {
        let must = "enough for a tag: 6 words and one for two sectors";
        return wrong("number of spare words", shape.spare_words, must);
    }
    if shape.dies == 0 {
        return wrong("number of dies", shape.dies, "1 or more");
    }
    if shape.page_words > PAGE_WORDS_MAX {
        let must = "2^20 or fewer";
        return wrong("number of words in a page", shape.page_words, must);
    }
    if pair_capacity(shape) < 8 || shape.page_words < crate::checkpoint::ROOT_WORDS + 2 {
        let must = "enough for a root and a delta page: 64 and twice the dies will do";
        return wrong("number of words in a page", shape.page_words, must);
    }
    if shape.pages < shape.summary_pages() + 2 {
        return wrong("number of pages in a block", shape.pages, "larger");
    }
    if shape.blocks < 32 {
        return wrong("number of blocks", shape.blocks, "32 or more");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without dies there were streams without blocks, and a division by their number; pages and counts
    /// near 2^64 overflowed before anything was refused.
    #[test]
    fn geometries_that_make_no_sense_are_refused() {
        let good = Shape {
            blocks: 512,
            pages: 16,
            sectors: 2,
            page_words: 32,
            spare_words: 8,
            dies: 2,
        };
        assert!(Limits::largest(&good, 64).is_ok());
        let extreme = [0, 1 << 62, 1 << 63, u64::MAX];
        for value in extreme {
            for field in 0..5 {
                let mut shape = good;
                match field {
                    0 => shape.blocks = value,
                    1 => shape.pages = value,
                    2 => shape.sectors = value,
                    3 => shape.page_words = value,
                    _ => shape.spare_words = value,
                }
                let fine = field == 4 && value > 0;
                assert_eq!(Limits::largest(&shape, 64).is_ok(), fine, "{shape:?}");
                assert_eq!(Limits::derive(&shape, 64, 64).is_ok(), fine, "{shape:?}");
            }
        }
        let shape = Shape { dies: 0, ..good };
        assert!(Limits::derive(&shape, 64, 64).is_err());
        for (sectors, epoch) in [(0, 64), (64, 0), (u64::MAX, 64), (64, u64::MAX)] {
            assert!(Limits::derive(&good, sectors, epoch).is_err());
        }
    }
}
