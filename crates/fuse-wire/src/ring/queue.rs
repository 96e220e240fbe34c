//! One io_uring and the buffers that the kernel fills through it: the only `unsafe` code of this crate.
//!
//! A [`Slot`] is a header and a payload in memory of its own. [`Queue::register`] and [`Queue::commit`] take it, and from then on the
//! kernel may write to it; [`Queue::next`] gives it back with a request, or for good. So no reference to a slot's memory exists while
//! the kernel may write there. The slots that the kernel still has when a queue is dropped are never freed.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, uring};

/// Bytes of the page that a slot's header lies in.
const PAGE: usize = 4096;
/// The device, as the ring knows it.
const DEVICE: types::Fixed = types::Fixed(0);
/// Completions of the event that wakes the queue carry this instead of a slot's number.
const EVENT: u64 = u64::MAX;
/// Offset of the field `len` in the kernel's `io_uring_sqe`.
const SQE_LEN: usize = 24;
/// Buffers of a slot: header, payload.
const SEGMENTS: u32 = 2;

/// An `iovec` of the kernel.
#[repr(C)]
struct Segment {
    base: NonNull<u8>,
    len: usize,
}

/// Memory for one request at a time.
pub(crate) struct Slot {
    index: usize,
    memory: NonNull<u8>,
    layout: Layout,
    /// Read by the kernel when the slot is registered.
    segments: Box<[Segment; SEGMENTS as usize]>,
}

// SAFETY: the memory belongs to the slot alone.
unsafe impl Send for Slot {}

impl Slot {
    /// With room for `bytes` of payload.
    pub(crate) fn new(index: usize, bytes: usize) -> io::Result<Slot> {
        let size = PAGE + bytes.next_multiple_of(PAGE);
        let layout = Layout::from_size_align(size, PAGE).map_err(io::Error::other)?;
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        let header = Segment {
            base: memory,
            len: PAGE,
        };
        let payload = Segment {
            // SAFETY: the memory is longer than a page.
            base: unsafe { memory.add(PAGE) },
            len: size - PAGE,
        };
        Ok(Slot {
            index,
            memory,
            layout,
            segments: Box::new([header, payload]),
        })
    }

    /// The header and the payload.
    pub(crate) fn parts(&mut self) -> (&mut abi::UringReqHeader, &mut [u8]) {
        // SAFETY: the memory is initialised, as long as its layout says, and only the slot refers to it, which is
        // borrowed. The kernel does not have it, since the slot is here.
        let whole =
            unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) };
        let (header, payload) = whole.split_at_mut(PAGE);
        match abi::UringReqHeader::mut_from_prefix(header) {
            Ok((header, _)) => (header, payload),
            // A page is longer and better aligned than a header.
            Err(_) => unreachable!(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: allocated so in `new`, and the kernel does not have it, since the slot is here.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// What the kernel has completed.
pub(crate) enum Next {
    /// A request has come.
    Request(Slot),
    /// The kernel takes no more of this slot, and why.
    Ended(Slot, Errno),
    /// The event was raised.
    Woken,
}

/// A ring whose entries are slots.
pub(crate) struct Queue {
    ring: IoUring<Entry128>,
    number: u16,
    /// The slots that the kernel has, by their numbers.
    away: Vec<Option<Slot>>,
}

impl Queue {
    /// For `slots` slots on the connection `device`, as its queue `number`.
    ///
    /// # Errors
    /// If the kernel refuses the ring.
    pub(crate) fn new(number: u16, slots: u16, device: BorrowedFd<'_>) -> io::Result<Queue> {
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun();
        // One entry for each slot, and one for the event.
        let ring: IoUring<Entry128> = builder.build(u32::from(slots) + 1)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(Queue {
            ring,
            number,
            away: (0..slots).map(|_| None).collect(),
        })
    }

    /// Gives the slot to the kernel for a first request.
    pub(crate) fn register(&mut self, slot: Slot) -> io::Result<()> {
        let segments = std::ptr::from_ref(&*slot.segments) as u64;
        let entry = opcode::UringCmd80::new(DEVICE, uring::REGISTER)
            .cmd(self.command(0))
            .addr(Some(segments));
        let mut entry = entry.build();
        // The library has no way to set the number of segments.
        let raw = std::ptr::from_mut(&mut entry).cast::<u8>();
        // SAFETY: an entry is 128 bytes in the kernel's layout, of which these four are the field `len`.
        unsafe { raw.add(SQE_LEN).cast::<u32>().write_unaligned(SEGMENTS) };
        self.push(entry, slot)
    }

    /// Gives the slot with its reply to the kernel, for the next request.
    pub(crate) fn commit(&mut self, mut slot: Slot) -> io::Result<()> {
        let id = slot.parts().0.ent.commit_id;
        let entry = opcode::UringCmd80::new(DEVICE, uring::COMMIT_AND_FETCH)
            .cmd(self.command(id))
            .build();
        self.push(entry, slot)
    }

    fn command(&self, commit_id: u64) -> [u8; 80] {
        let command = abi::UringCmdReq {
            flags: 0,
            commit_id,
            qid: self.number,
            padding: [0; 6],
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<abi::UringCmdReq>()].copy_from_slice(command.as_bytes());
        bytes
    }

    fn push(&mut self, entry: Entry128, slot: Slot) -> io::Result<()> {
        let index = slot.index;
        let place = self.away.get_mut(index).filter(|place| place.is_none());
        let place = place.ok_or_else(|| io::Error::other("a slot of another queue"))?;
        *place = Some(slot);
        // SAFETY: the slot's memory and segments live until the kernel has completed the entry: `away` keeps them.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        // Each slot has one entry at most, so that there is room.
        pushed.map_err(io::Error::other)
    }

    /// Has [`Next::Woken`] come when `event` can be read; once.
    pub(crate) fn watch(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        const READABLE: u32 = 1;
        let entry = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), READABLE);
        let entry: Entry128 = entry.build().user_data(EVENT).into();
        // SAFETY: the entry refers to no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)
    }

    /// Hands what was registered, committed and watched to the kernel, and waits for `completions` completions.
    pub(crate) fn submit(&mut self, completions: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(completions) {
            Ok(_) => Ok(()),
            // Completions that are there make room, and a signal is no reason.
            Err(e)
                if [Errno::INTR, Errno::BUSY, Errno::AGAIN]
                    .map(|e| Some(e.raw_os_error()))
                    .contains(&e.raw_os_error()) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The next completion that is there.
    pub(crate) fn next(&mut self) -> Option<Next> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == EVENT {
                return Some(Next::Woken);
            }
            let index = usize::try_from(completion.user_data()).ok()?;
            let Some(slot) = self.away.get_mut(index).and_then(Option::take) else {
                continue;
            };
            return Some(match completion.result() {
                0.. => Next::Request(slot),
                error => Next::Ended(slot, Errno::from_raw_os_error(-error)),
            });
        }
    }

    /// Number of slots that the kernel has.
    pub(crate) fn away(&self) -> usize {
        self.away.iter().flatten().count()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for slot in self.away.drain(..).flatten() {
            std::mem::forget(slot);
        }
    }
}
