//! The memory of a region: a slice of atomic words, given back when it is dropped.
//!
//! Memory of the process comes from the allocator if it is small (crash exploration makes many small regions), otherwise from
//! the kernel, which zeroes pages when they are first used. A mapped file is shared with the file, and its faults are caught
//! (see [`crate::signal`]).

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::signal::Registration;
use crate::{LINE_BYTES, PAGE_BYTES};

/// Largest memory that is taken from the allocator.
const HEAP_BYTES_MAX: usize = if cfg!(miri) { usize::MAX } else { 1 << 20 };

/// Memory that consists of whole lines and starts at a line.
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
    origin: Origin,
}

enum Origin {
    Heap(Layout),
    Kernel,
    File(Registration),
}

// SAFETY: a mapping owns its memory, and hands it out as atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of at least `bytes` bytes, rounded up to whole lines. Running out of memory ends the process, as it does
    /// for a `Vec`.
    pub(crate) fn zeroed(bytes: usize) -> Mapping {
        let layout = lines(bytes);
        if layout.size() <= HEAP_BYTES_MAX {
            return Mapping::heap(&[], layout);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), layout.size(), protection, flags) };
        let Some(start) = mapped.ok().and_then(|at| NonNull::new(at.cast())) else {
            handle_alloc_error(layout)
        };
        let mapping = Mapping {
            start,
            words: layout.size() / 8,
            origin: Origin::Kernel,
        };
        mapping.advise_huge_pages();
        mapping
    }

    /// Memory that holds `content`, padded with zeros to whole lines.
    pub(crate) fn with_content(content: &[u8]) -> Mapping {
        Mapping::heap(content, lines(content.len()))
    }

    /// Memory that holds `words`, little-endian, padded with zeros to whole lines.
    pub(crate) fn with_words(words: &[u64]) -> Mapping {
        if cfg!(target_endian = "little") {
            // SAFETY: the words are as many bytes, in the order that is asked for, and bytes need no alignment.
            let bytes =
                unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) };
            return Mapping::with_content(bytes);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Mapping::with_content(&bytes)
    }

    /// Memory of the allocator that holds `content` and then zeros.
    fn heap(content: &[u8], layout: Layout) -> Mapping {
        debug_assert!(content.len() <= layout.size());
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            handle_alloc_error(layout)
        }
        // SAFETY: `memory` has `layout.size()` bytes that nothing else knows of. All of them are initialised here.
        let start = unsafe {
            memory.copy_from_nonoverlapping(content.as_ptr(), content.len());
            let rest = memory.add(content.len());
            rest.write_bytes(0, layout.size() - content.len());
            NonNull::new_unchecked(memory.cast())
        };
        Mapping {
            start,
            words: layout.size() / 8,
            origin: Origin::Heap(layout),
        }
    }

    /// Maps the first `bytes` bytes of a file, whose memory comes in pages of `unit` bytes. With `synchronous`, the kernel must
    /// promise that a store needs no more than a write-back of its line (`MAP_SYNC`).
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        bytes: usize,
        unit: usize,
        writable: bool,
        synchronous: bool,
    ) -> Result<Mapping, MapError> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        let flags = if synchronous {
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC
        } else {
            MapFlags::SHARED
        };
        // SAFETY: a new mapping at an address of the kernel's choice. Its bytes may change at any time; they are only used as
        // atomic words.
        let start = match unsafe { mmap(ptr::null_mut(), bytes, protection, flags, fd, 0) } {
            Ok(start) => start,
            // The second is the answer of a kernel before 4.15.
            Err(Errno::OPNOTSUPP | Errno::INVAL) if synchronous => {
                return Err(MapError::NotSynchronous);
            }
            Err(errno) => return Err(MapError::Io(errno.into())),
        };
        let Some(words) = NonNull::new(start.cast()) else {
            return Err(MapError::Io(io::Error::other("mapped at address 0")));
        };
        let mut mapping = Mapping {
            start: words,
            words: bytes / 8,
            origin: Origin::Kernel,
        };
        let range = start.addr()..start.addr() + bytes;
        let registration = Registration::new(range, unit, writable).map_err(MapError::Io)?;
        mapping.origin = Origin::File(registration);
        mapping.advise_huge_pages();
        Ok(mapping)
    }

    /// Asks for large pages where the kernel has them. A refusal costs only time.
    fn advise_huge_pages(&self) {
        let (at, bytes) = (self.start.as_ptr().cast(), self.words * 8);
        // SAFETY: the range is mapped by `self`; the advice changes nothing that a program can observe.
        let _ = unsafe { madvise(at, bytes, Advice::LinuxHugepage) };
    }

    /// Touches every page, so that later stores do not fault.
    pub(crate) fn populate(&self, writable: bool) -> io::Result<()> {
        let advice = if writable {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        let (at, bytes) = (self.start.as_ptr().cast(), self.words * 8);
        // SAFETY: the range is mapped by `self`; its bytes do not change.
        match unsafe { madvise(at, bytes, advice) } {
            // A kernel before 5.14 does not know the advice.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether an access faulted.
    #[inline]
    pub(crate) fn failed(&self) -> bool {
        match &self.origin {
            Origin::File(registration) => registration.failed(),
            Origin::Heap(_) | Origin::Kernel => false,
        }
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` words from `start` are mapped, initialised and aligned until `self` is dropped. On a read-only
        // mapping, atomic loads of 8 bytes are fine; `Region` does not store to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (at, bytes) = (self.start.as_ptr(), self.words * 8);
        let origin = std::mem::replace(&mut self.origin, Origin::Kernel);
        if let Origin::Heap(layout) = origin {
            // SAFETY: `start` was allocated with this layout, and no reference to it outlives `self`.
            return unsafe { std::alloc::dealloc(at.cast(), layout) };
        }
        // Forgotten by the signal handler first: another mapping may get the same address.
        drop(origin);
        // SAFETY: `self` mapped the range, and no reference to it outlives `self`.
        let _ = unsafe { munmap(at.cast(), bytes) };
    }
}

/// Reason why a file is not mapped.
pub(crate) enum MapError {
    /// The kernel gives no synchronous mapping of it.
    NotSynchronous,
    /// A call failed.
    Io(io::Error),
}

/// Whole lines for `bytes` bytes, at least one, aligned to a page so that addresses in memory end like those in the region.
fn lines(bytes: usize) -> Layout {
    let lines = bytes.max(1).checked_next_multiple_of(LINE_BYTES as usize);
    let layout = lines.and_then(|lines| Layout::from_size_align(lines, PAGE_BYTES as usize).ok());
    layout.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u64; 8]>()))
}
