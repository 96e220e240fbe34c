//! Noted reads that wait in memory: see `ops::accessed`.

use crate::layout::{DiskInode, DiskTime};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_vfs::Ino;

/// Most notes that wait.
const NOTES_MAX: usize = 1024;
/// Noted reads that wait to be written.
#[derive(Default)]
pub(crate) struct Notes {
    waiting: Mutex<HashMap<Ino, Note>>,
    /// Number of waiting notes: while it is 0, no thread takes the lock.
    count: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) generation: u64,
    pub(crate) atime: DiskTime,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ino, Note>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether none waits; takes no lock.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The note of an inode, if there is one.
    pub(crate) fn of(&self, ino: Ino, disk: &DiskInode) -> Option<Note> {
        if self.is_empty() {
            return None;
        }
        let note = self.lock().get(&ino).copied();
        note.filter(|note| note.generation == disk.generation.get())
    }

    /// Adds a note; whether too many wait now.
    pub(crate) fn add(&self, ino: Ino, note: Note) -> bool {
        let mut waiting = self.lock();
        waiting.insert(ino, note);
        self.count.store(waiting.len(), Ordering::Release);
        waiting.len() >= NOTES_MAX
    }

    /// Takes a note away, if it is still this one or any will do.
    pub(crate) fn remove(&self, ino: Ino, note: Option<Note>) {
        if self.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        if note.is_none() || waiting.get(&ino).copied() == note {
            waiting.remove(&ino);
        }
        self.count.store(waiting.len(), Ordering::Release);
    }

    pub(crate) fn all(&self) -> Vec<(Ino, Note)> {
        let waiting = self.lock();
        waiting.iter().map(|(ino, note)| (*ino, *note)).collect()
    }
}
