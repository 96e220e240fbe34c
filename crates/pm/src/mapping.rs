//! The memory of a region: a slice of atomic words that is given back when it is dropped.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::PAGE_BYTES;

/// Memory of whole lines, aligned to a page.
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    layout: Layout,
}

// SAFETY: a mapping owns its memory, and hands it out as atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of the process. Runs out of memory like a `Vec`.
    pub(crate) fn anonymous(bytes: usize) -> Mapping {
        let layout = Layout::from_size_align(bytes.max(8), PAGE_BYTES as usize)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u64; 8]>()));
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start.cast::<AtomicU64>()) else {
            handle_alloc_error(layout)
        };
        Mapping {
            start,
            words: bytes / 8,
            layout,
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` words from `start` are allocated, initialised and aligned until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and no reference to it outlives `self`.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) }
    }
}
