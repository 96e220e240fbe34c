//! The memory of a process whose thread sleeps in a call.

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;

/// See the module's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    thread: Pid,
}

impl Memory {
    pub(super) fn of(thread: u32) -> Option<Memory> {
        let thread = i32::try_from(thread).ok().filter(|t| *t > 0)?;
        Some(Memory {
            thread: Pid::from_raw(thread),
        })
    }

    /// Reads as much as there is; returns how much that is.
    pub(super) fn read(&self, address: u64, buf: &mut [u8]) -> Option<usize> {
        let there = RemoteIoVec {
            base: usize::try_from(address).ok()?,
            len: buf.len(),
        };
        process_vm_readv(self.thread, &mut [IoSliceMut::new(buf)], &[there]).ok()
    }

    pub(super) fn read_exact(&self, address: u64, buf: &mut [u8]) -> Option<()> {
        (self.read(address, buf)? == buf.len()).then_some(())
    }

    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_exact(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    pub(super) fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read_exact(address, &mut bytes)?;
        Some(u32::from_le_bytes(bytes))
    }
}
