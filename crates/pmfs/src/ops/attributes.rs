//! Storing the extended attributes of an inode: the whole set anew, in its second line or in pages.
//!
//! The line has room for one set. So a set goes there only if the present one is elsewhere, and two short sets alternate
//! between line and page: the old one is whole until the new one counts.

use super::edit::run;
use super::name::full;
use crate::fs::PmFs;
use crate::index::file::{Extent, FileIndex};
use crate::layout::{AttributePlace, INLINE_BYTES, PAGE_BYTES, PageKind, PageState};
use crate::state::{Bytes, Change, DataStore, FreePages, NewAttributes, PageChange};
use crate::table::State;
use crate::xattr::{Attributes, HEADER_BYTES, RECORD_BYTES_MAX};
use steadfast_vfs::{Errno, Error, Result};

/// A set on its way to the medium.
pub(super) struct NewSet<'f> {
    /// The records, in pages with their length before them.
    pub(super) bytes: Vec<u8>,
    /// Their place.
    pub(super) form: Form<'f>,
}

/// Place of a set.
pub(super) enum Form<'f> {
    /// Nowhere: it is empty.
    None,
    /// Into the inode.
    Inline,
    /// Into these pages.
    Pages(Vec<FreePages<'f>>),
}

impl<'f> Form<'f> {
    /// The place that the inode's mode word names.
    fn place(&self) -> AttributePlace {
        match self {
            Form::None => AttributePlace::None,
            Form::Inline => AttributePlace::Inline,
            Form::Pages(_) => AttributePlace::Pages,
        }
    }

    /// The index of its pages.
    pub(super) fn index(&self) -> Option<Box<FileIndex>> {
        let Form::Pages(runs) = self else {
            return None;
        };
        let mut offset = 0;
        let extents = runs.iter().map(|run| {
            let extent = Extent {
                offset,
                page: run.start(),
                len: run.len(),
                state: PageState::Written,
            };
            offset = extent.end();
            extent
        });
        Some(Box::new(FileIndex::from_sorted(extents)))
    }

    /// The attributes that an inode is born with.
    pub(super) fn newborn<'a>(self, bytes: &'a [u8]) -> Option<NewAttributes<'a, 'f>> {
        match self {
            Form::None => None,
            Form::Inline => Some(NewAttributes::Inline(bytes)),
            Form::Pages(pages) => Some(NewAttributes::Pages { pages, set: bytes }),
        }
    }

    /// Makes the set that of an inode with the change. Returns the index of its pages, for the inode's state when the change
    /// is made.
    pub(super) fn put<'a>(
        self,
        bytes: &'a [u8],
        state: &State,
        change: &mut Change<'a, 'f>,
    ) -> Option<Box<FileIndex>> {
        change.attributes.place = self.place();
        for extent in state.attributes.iter().flat_map(|pages| pages.iter()) {
            change.pages.push(PageChange::Die {
                pages: run(&extent),
                offset: extent.offset,
                kind: PageKind::Attributes,
                state: PageState::Written,
            });
        }
        let index = self.index();
        match self {
            Form::None => {}
            Form::Inline => change.inline = Some(bytes),
            Form::Pages(runs) => {
                let mut rest = bytes;
                let mut offset = 0;
                for pages in runs {
                    let len = (pages.len() * PAGE_BYTES).min(rest.len() as u64);
                    let (part, behind) = rest.split_at(len as usize);
                    rest = behind;
                    change.data.push(DataStore {
                        at: pages.start().at(),
                        bytes: Bytes::Data(part),
                    });
                    let next = offset + pages.len();
                    change.pages.push(PageChange::Adopt {
                        pages,
                        offset,
                        kind: PageKind::Attributes,
                        state: PageState::Written,
                    });
                    offset = next;
                }
            }
        }
        index
    }
}

impl PmFs {
    /// A set to be stored, with the pages that it needs. It may go into the inode if `inline`. ENOSPC.
    pub(super) fn new_set(&self, set: &Attributes, inline: bool) -> Result<NewSet<'_>> {
        let mut bytes = set.encode();
        let form = match bytes.len() {
            0 => Form::None,
            len if len <= INLINE_BYTES && inline => Form::Inline,
            len if len > RECORD_BYTES_MAX => {
                return Err(Error::new(
                    Errno::NoSpc,
                    "the inode has as many extended attributes as fit",
                ));
            }
            len => {
                let header = (len as u32).to_le_bytes();
                bytes.splice(0..0, header);
                let count = ((HEADER_BYTES + len) as u64).div_ceil(PAGE_BYTES);
                let pages = self.free()?.pages(count, None).ok_or_else(full)?;
                Form::Pages(pages.into_vec())
            }
        };
        Ok(NewSet { bytes, form })
    }
}
