//! Makes a volume as long as its region, by further chunks.
//!
//! Order (each step is durable before the next):
//!
//! 1. The tables of the new chunks are zeroed: no inode in them is alive, and no page belongs to an inode.
//! 2. The copy of the superblock gets the new size.
//! 3. The superblock gets it.
//!
//! Before step 3 the superblock says the old size, and it counts. While its two lines are on their way to the medium it may
//! fail its checksum; then the copy counts, which says the new size, and step 1 is durable. So a cut anywhere leaves the old
//! volume or the new one. The last chunk may have been cut short: the descriptors of its missing pages have been there from
//! the start, as zeros.
//!
//! The volume need not be recovered before: growing touches none of its content.

use crate::error::Error;
use crate::layout::{Geometry, PAGE_BYTES, REGION_BYTES_MAX};
use crate::mkfs::zero_tables;
use crate::superblock::{self, COPIES, Superblock};
use steadfast_pm::Region;

/// Result of growing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grown {
    /// The volume before.
    pub before: Superblock,
    /// The volume now; the same if there is no room for more.
    pub after: Superblock,
}

/// Makes the volume in `region` as long as the region. `progress` gets the number of new chunks done so far. A cut may
/// come anywhere; then it can be started again.
///
/// # Errors
/// There is no volume that this program can use, or the region is read-only; [`Error::Memory`].
pub fn grow(region: &Region, progress: &mut dyn FnMut(u64, u64)) -> Result<Grown, Error> {
    if region.read_only() {
        let text = "growing needs a region that can be written";
        return Err(Error::Option(text.into()));
    }
    let found = superblock::load(region)?;
    let before = found.superblock;
    let after = longer(&before, region.len());
    if found.damage[0].is_some() {
        // Until it is whole again only the copy counts, and the growth changes that first.
        superblock::store(region, COPIES[0], &before);
    }
    if after != before {
        let first = before.geometry.chunks();
        zero_tables(region, &after.geometry, first, progress);
        region.fence();
        let failed = || match region.failed() {
            true => Err(Error::Memory {
                attempt: "growing the volume",
            }),
            false => Ok(()),
        };
        failed()?;
        superblock::store(region, COPIES[1], &after);
        superblock::store(region, COPIES[0], &after);
        failed()?;
    }
    Ok(Grown { before, after })
}

/// The volume that fills a region of `bytes` bytes; `old` if it cannot be longer.
fn longer(old: &Superblock, bytes: u64) -> Superblock {
    let wanted = Geometry {
        pages: bytes.min(REGION_BYTES_MAX) / PAGE_BYTES,
        ..old.geometry
    };
    let fitting = wanted.checked().or_else(|| {
        // This number of chunks would have more inodes than there are inode numbers.
        let chunks = u64::from(u32::MAX - 1) / wanted.chunk_inodes;
        let fewer = Geometry {
            pages: chunks * wanted.chunk_pages,
            ..wanted
        };
        fewer.checked()
    });
    let mut new = old.clone();
    if let Some(geometry) = fitting
        && geometry.pages > old.geometry.pages
    {
        new.geometry = geometry;
    }
    new
}
