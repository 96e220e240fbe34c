//! The memory of `in_place`: overwrites that wait, and changes that are not durable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_journal::Ticket;
use steadfast_vfs::Ino;

/// The last changes of a file, as long as they are not durable.
#[derive(Clone, Copy, Default)]
pub(crate) struct Changes {
    /// Last change of its size.
    pub(crate) size: Option<Ticket>,
    /// Last change of anything that `fdatasync` must commit: size, allocation, patches of its data.
    pub(crate) any: Option<Ticket>,
}

/// Files with waiting overwrites, and files with changes that are not durable. A file's part
/// changes only under its inode's exclusive lock.
#[derive(Default)]
pub(crate) struct InPlaceLedger(Mutex<Entries>);

#[derive(Default)]
pub(crate) struct Entries {
    /// Blocks that wait.
    pub(crate) waiting: BTreeMap<Ino, u64>,
    pub(crate) blocks: u64,
    pub(crate) changes: HashMap<Ino, Changes>,
    pub(crate) sweep_at: usize,
}

impl InPlaceLedger {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of waiting blocks of a file.
    pub(crate) fn set_waiting(&self, ino: Ino, blocks: u64) {
        let mut entries = self.lock();
        let before = if blocks == 0 {
            entries.waiting.remove(&ino)
        } else {
            entries.waiting.insert(ino, blocks)
        };
        entries.blocks = entries.blocks + blocks - before.unwrap_or(0);
    }

    /// Blocks that wait, of all files.
    pub(crate) fn blocks(&self) -> u64 {
        self.lock().blocks
    }

    pub(crate) fn waits(&self, ino: Ino) -> bool {
        self.lock().waiting.contains_key(&ino)
    }
}
