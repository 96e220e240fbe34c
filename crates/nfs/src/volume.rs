//! A served volume: its file system, its key, its write verifier, and the locks of objects ("turns").
//!
//! Invariants:
//! * the *write verifier* identifies this run of the server, or its ownership of the volume. It changes when a sync fails: then
//!   unsynced writes may be lost, and clients see a new verifier and send them again;
//! * while a change holds an object's *turn*, no other change touches the object, so the attributes before and after
//!   belong to this change alone (weak cache consistency). No thread waits for a commit meanwhile.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use nfs3_types::nfs3::writeverf3;
use steadfast_vfs::{FileSystem, Ino, Wanted};

use crate::commits::CommitQueue;
use crate::handle_key::HandleKey;
use crate::handles::{Key, Lasting};

/// Number of locks. Objects share them.
const OBJECT_LOCKS: usize = 4096;
/// Most objects of one change.
const TURN_OBJECTS_MAX: usize = 3;

/// Limits of a volume that clients see and the file system does not report.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest file.
    pub file_bytes_max: u64,
    /// Most links to a file.
    pub links_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            file_bytes_max: i64::MAX.unsigned_abs(),
            links_max: 32_000,
        }
    }
}

/// A file system to be served.
pub struct ExportedVolume {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Name in messages and metrics. Keys that are derived from [`Options::handle_key`](crate::Options::handle_key) depend on it.
    pub name: String,
    /// Limits that clients see.
    pub limits: Limits,
    /// The volume is read-only.
    pub read_only: bool,
    /// The contract `sync`: unstable writes, and partial effects of a failed call, are also durable before the reply.
    /// The file system leaves that to this server.
    pub sync: bool,
    /// The first write verifier, which identifies this period of ownership. Default: a random number.
    pub verifier: Option<u64>,
    /// Replies become durable together with their changes: the file system keeps notes.
    pub keeps_replies: bool,
    /// Notes of earlier servers, oldest first.
    pub replies: Vec<Vec<u8>>,
}

impl std::fmt::Debug for ExportedVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExportedVolume({})", self.name)
    }
}

impl ExportedVolume {
    /// A volume with default limits.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>, name: impl Into<String>) -> ExportedVolume {
        ExportedVolume {
            fs,
            name: name.into(),
            limits: Limits::default(),
            read_only: false,
            sync: false,
            verifier: None,
            keeps_replies: false,
            replies: Vec::new(),
        }
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Volume {
    served: ExportedVolume,
    pub(crate) key: Key,
    verifier: AtomicU64,
    /// The last sync failed.
    failed: AtomicBool,
    turns: Box<[Mutex<()>]>,
    pub(crate) commits: CommitQueue,
    /// Bytes written unstably since the last COMMIT, by lock index of the file.
    unstable: Box<[AtomicU32]>,
    /// Dropped with the volume.
    _in_use: mpsc::Sender<Infallible>,
    /// The other end of the channel.
    ended: Mutex<Option<mpsc::Receiver<Infallible>>>,
}

/// The locks that a change holds.
#[derive(Debug)]
pub(crate) struct ObjectLocks<'a> {
    _held: [Option<MutexGuard<'a, ()>>; TURN_OBJECTS_MAX],
}

fn random() -> u64 {
    // Without random numbers of the system, the time serves: it has changed since the last start.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        since.as_nanos() as u64
    })
}

impl Volume {
    /// Prepares a volume. Also returns the lifetime of its handles.
    pub(crate) fn open(
        served: ExportedVolume,
        given: Option<&HandleKey>,
    ) -> steadfast_vfs::Result<(Volume, Lasting)> {
        let given = given.map(|key| Key::given(key, &served.name));
        let (key, lasting) = Key::of(&*served.fs, served.read_only, given)?;
        let (in_use, ended) = mpsc::channel();
        let verifier = served.verifier.unwrap_or_else(random);
        let volume = Volume {
            served,
            key,
            verifier: AtomicU64::new(verifier),
            failed: AtomicBool::new(false),
            turns: (0..OBJECT_LOCKS).map(|_| Mutex::new(())).collect(),
            commits: CommitQueue::default(),
            unstable: (0..OBJECT_LOCKS).map(|_| AtomicU32::new(0)).collect(),
            _in_use: in_use,
            ended: Mutex::new(Some(ended)),
        };
        Ok((volume, lasting))
    }

    /// A receiver that ends when the last user of this volume is gone. Only the first call returns it.
    pub(crate) fn retire(&self) -> Option<mpsc::Receiver<Infallible>> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.take()
    }

    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.served.fs
    }

    /// Whether the volume can make nothing durable: the file system has failed, or the last sync failed.
    pub(crate) fn has_failed(&self) -> bool {
        let failed = ("failed_now", 1);
        self.failed.load(Ordering::Acquire) || self.fs().counters().contains(&failed)
    }

    pub(crate) fn name(&self) -> &str {
        &self.served.name
    }

    pub(crate) fn limits(&self) -> Limits {
        self.served.limits
    }

    pub(crate) fn read_only(&self) -> bool {
        self.served.read_only
    }

    /// Whether replies become durable with their changes.
    pub(crate) fn keeps_replies(&self) -> bool {
        self.served.keeps_replies
    }

    /// Whether every effect is durable before its reply.
    pub(crate) fn sync_always(&self) -> bool {
        self.served.sync
    }

    /// The present write verifier.
    pub(crate) fn verifier(&self) -> writeverf3 {
        writeverf3(self.verifier.load(Ordering::Acquire).to_be_bytes())
    }

    /// Commits all these objects together. The first failure changes the verifier. Further failures do not: while
    /// syncs keep failing, no write is lost that clients do not know of.
    pub(crate) fn sync(&self, wanted: &[Wanted]) -> steadfast_vfs::Result<()> {
        let synced = self.fs().fsync_together(wanted);
        match &synced {
            Ok(()) => self.failed.store(false, Ordering::Release),
            Err(_) => {
                if !self.failed.swap(true, Ordering::AcqRel) {
                    let old = self.verifier.load(Ordering::Acquire);
                    let new = loop {
                        let new = random();
                        if new != old {
                            break new;
                        }
                    };
                    self.verifier.store(new, Ordering::Release);
                }
            }
        }
        synced
    }

    /// Counts bytes that were written and not synced.
    pub(crate) fn wrote_unstably(&self, ino: Ino, bytes: u32) {
        let all = &self.unstable[place(ino)];
        let _ = all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| {
            Some(sum.saturating_add(bytes))
        });
    }

    /// Takes the count of these bytes. It is an estimate, because files share locks.
    pub(crate) fn take_unstable(&self, ino: Ino) -> u32 {
        self.unstable[place(ino)].swap(0, Ordering::Relaxed)
    }

    /// Locks these objects.
    pub(crate) fn lock_objects<const N: usize>(&self, inos: [Ino; N]) -> ObjectLocks<'_> {
        const { assert!(N <= TURN_OBJECTS_MAX) };
        let mut held = [const { None }; TURN_OBJECTS_MAX];
        // In the order of their locks, each once, so that two changes never wait for each other.
        let mut places = inos.map(place);
        places.sort_unstable();
        let mut last = None;
        for (slot, place) in held.iter_mut().zip(places) {
            if last.replace(place) != Some(place) {
                *slot = Some(
                    self.turns[place]
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
        ObjectLocks { _held: held }
    }

    /// A volume for tests.
    #[cfg(any(test, feature = "fuzz"))]
    #[allow(clippy::unwrap_used)]
    pub(crate) fn for_tests() -> Volume {
        let fs = Arc::new(steadfast_model::memfs::MemFs::default());
        Volume::open(ExportedVolume::new(fs, "test"), None)
            .unwrap()
            .0
    }
}

/// Index of an object's lock.
fn place(ino: Ino) -> usize {
    // Inode numbers are addresses: neighbours should get different locks.
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % OBJECT_LOCKS
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn corner_40_turns_in_opposite_orders_do_not_wait_for_each_other() {
        let volume = Volume::for_tests();
        // A thread that waits for a lock holds none with a higher index.
        let (low, high) = match place(1) < place(2) {
            true => (1, 2),
            false => (2, 1),
        };
        for wanted in [[low, high], [high, low]] {
            let held = volume.lock_objects([low]);
            std::thread::scope(|scope| {
                let (volume, held) = (&volume, held);
                let waiting = scope.spawn(move || drop(volume.lock_objects(wanted)));
                std::thread::sleep(Duration::from_millis(50));
                assert!(!waiting.is_finished());
                let free = volume.turns[place(high)].try_lock().is_ok();
                drop(held);
                assert!(free, "{wanted:?}");
            });
        }
        // A change of two objects with the same lock must not wait for itself.
        let twin = (1..).find(|ino| place(*ino + 1) == place(1)).unwrap() + 1;
        drop(volume.lock_objects([1, twin, 1]));
        std::thread::scope(|scope| {
            for order in [
                [1, 2, 3],
                [3, 2, 1],
                [2, 1, 3],
                [2, 3, 1],
                [3, 1, 2],
                [1, 3, 2],
            ] {
                let volume = &volume;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        drop(volume.lock_objects(order));
                    }
                });
            }
        });
    }
}
