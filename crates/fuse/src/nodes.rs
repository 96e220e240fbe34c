//! The inodes that the kernel knows, each kept alive by one `open`.
//!
//! The kernel names inodes by number only. If the number of a removed inode were
//! reused while the kernel still refers to the old one (an `O_PATH` descriptor, a
//! working directory), requests meant for the old inode would reach the new one,
//! past the permission checks made on the old. So the first reference that a reply
//! gives opens the inode, and the kernel's last `FORGET` releases it. Open files
//! need nothing of their own: a file that is open is referenced.
//!
//! Invariant: an inode is in the table if and only if one `open` of it is held. As long as it is, no
//! other inode gets its number, unless others change the file system (`steadfast_vfs::Replica`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use steadfast_vfs::{Attr, Caller, FileSystem, Ino, Result, Stream};

/// Number of independently locked parts (a power of two).
const SHARDS: usize = 64;

/// An inode that the kernel knows.
#[derive(Debug)]
struct Held {
    references: u64,
    generation: u64,
    /// The directory where it was last found, made or moved to.
    parent: Ino,
    /// The stream that last changed it, while there are streams.
    last: Stream,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Nodes {
    root: Ino,
    shards: Vec<Mutex<HashMap<Ino, Held>>>,
}

impl Nodes {
    pub(crate) fn new(root: Ino) -> Nodes {
        Nodes {
            root,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, Held>> {
        // Neighbouring numbers are used together: spread them.
        let at = (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS;
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one reference that a reply gives to an inode that was looked at; the first one opens it.
    /// The root is never forgotten by the kernel and never removed: it is not counted. ESTALE if the
    /// inode has gone since, also if another has its number by now. `parent` is where it was looked for.
    pub(crate) fn remember(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        found: &Attr,
        parent: Ino,
    ) -> Result<()> {
        if found.ino == self.root {
            return Ok(());
        }
        let mut shard = self.shard(found.ino);
        if let Some(held) = shard.get_mut(&found.ino) {
            if held.generation != found.generation {
                // Of a file system that others change: the number is another file's by now, and the kernel, which compares
                // generations, too, lets go of the old one.
                fs.open_generation(caller, found.ino, found.generation)?;
                fs.release(found.ino);
                held.generation = found.generation;
            }
            held.references = held.references.saturating_add(1);
            held.parent = parent;
            return Ok(());
        }
        fs.open_generation(caller, found.ino, found.generation)?;
        shard.insert(
            found.ino,
            Held {
                references: 1,
                generation: found.generation,
                parent,
                last: Stream(0),
            },
        );
        Ok(())
    }

    /// All inodes that the kernel knows, but the root.
    pub(crate) fn known(&self) -> Vec<Ino> {
        let known = self.shards.iter().flat_map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.keys().copied().collect::<Vec<Ino>>()
        });
        known.collect()
    }

    /// The directory where the inode was last seen.
    pub(crate) fn parent(&self, ino: Ino) -> Option<Ino> {
        self.shard(ino).get(&ino).map(|held| held.parent)
    }

    /// Notes that the inode was moved to another directory.
    pub(crate) fn set_parent(&self, ino: Ino, parent: Ino) {
        if let Some(held) = self.shard(ino).get_mut(&ino) {
            held.parent = parent;
        }
    }

    /// The stream that last changed the inode.
    pub(crate) fn last_stream(&self, ino: Ino) -> Option<Stream> {
        self.shard(ino).get(&ino).map(|held| held.last)
    }

    /// Notes that this stream changes the inode.
    pub(crate) fn set_last_stream(&self, ino: Ino, stream: Stream) {
        if let Some(held) = self.shard(ino).get_mut(&ino) {
            held.last = stream;
        }
    }

    /// Takes back `count` references; the last one releases the inode.
    pub(crate) fn forget(&self, fs: &dyn FileSystem, ino: Ino, count: u64) {
        let last = {
            let mut shard = self.shard(ino);
            match shard.get_mut(&ino) {
                Some(held) if held.references > count => {
                    held.references -= count;
                    false
                }
                Some(_) => shard.remove(&ino).is_some(),
                None => false,
            }
        };
        // Outside the lock: freeing an inode may take a while.
        if last {
            fs.release(ino);
        }
    }

    /// Releases everything: the kernel sends no `FORGET` when a mount goes away.
    pub(crate) fn forget_all(&self, fs: &dyn FileSystem) {
        for shard in &self.shards {
            let held = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            for ino in held.into_keys() {
                fs.release(ino);
            }
        }
    }
}
