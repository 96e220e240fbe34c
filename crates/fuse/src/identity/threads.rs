//! Threads that have made a request: the process of each, and the stream that it has set for itself.
//!
//! Each is kept with a handle that dies with the thread, and checked before it is trusted. That costs one system call.
//!
//! Invariants: there are at most as many as were allowed, each with a descriptor; a thread that has set its own stream is only
//! given up when it has ended, others when they have not been seen for longest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::placed::Process;
use super::process::Handle;
use super::registry::{Full, Member};

/// Number of independently locked parts.
const SHARDS: usize = 16;
/// A shard says so often that something should be tidied.
const TIDY_EVERY: u64 = 1024;

#[derive(Debug)]
struct Known {
    thread: u32,
    handle: Arc<Handle>,
    process: Arc<Process>,
    /// Stream that it has set for itself.
    own: Option<Member>,
    /// Whether the thread was seen since the hand last passed.
    seen: bool,
}

#[derive(Debug, Default)]
struct Shard {
    known: Vec<Known>,
    at: HashMap<u32, usize>,
    hand: usize,
    lookups: u64,
    /// Number of threads that have set their own stream.
    own: usize,
}

/// A thread that is known.
#[derive(Clone, Debug)]
pub(crate) struct Thread {
    pub(crate) process: Arc<Process>,
    pub(crate) own: Option<Member>,
    /// It is time to tidy.
    pub(crate) tidy: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Threads {
    shards: Vec<Mutex<Shard>>,
    per_shard: usize,
    hand: AtomicUsize,
}

impl Threads {
    /// A table with room for `capacity` threads.
    pub(crate) fn new(capacity: usize) -> Threads {
        Threads {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: (capacity / SHARDS).max(2),
            hand: AtomicUsize::new(0),
        }
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[at % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        (0..SHARDS).map(|at| self.shard(at).known.len()).sum()
    }

    /// The thread, if it is known and has not ended.
    pub(crate) fn get(&self, thread: u32) -> Option<Thread> {
        let mut shard = self.shard(thread as usize);
        let at = *shard.at.get(&thread)?;
        if !shard.known[at].handle.alive() {
            shard.remove(at);
            return None;
        }
        shard.lookups += 1;
        let tidy = shard.lookups.is_multiple_of(TIDY_EVERY);
        let known = &mut shard.known[at];
        known.seen = true;
        Some(Thread {
            process: Arc::clone(&known.process),
            own: known.own.clone(),
            tidy,
        })
    }

    /// Remembers a thread, if there is room. If it is known, its process has been looked up again.
    pub(crate) fn add(&self, thread: u32, handle: Arc<Handle>, process: &Arc<Process>) {
        let mut shard = self.shard(thread as usize);
        if let Some(&at) = shard.at.get(&thread)
            && shard.known[at].handle.alive()
        {
            shard.known[at].process = Arc::clone(process);
        } else if shard.replace_or_fit(thread, self.per_shard) {
            shard.push(thread, handle, process, None);
        }
    }

    /// Sets the thread's own stream, and returns the one that it had set before.
    pub(crate) fn set_own(
        &self,
        thread: u32,
        handle: Arc<Handle>,
        process: &Arc<Process>,
        member: Member,
    ) -> Result<Option<Member>, Full> {
        let mut shard = self.shard(thread as usize);
        if let Some(&at) = shard.at.get(&thread)
            && shard.known[at].handle.alive()
        {
            let new = shard.known[at].own.is_none();
            if new && shard.own >= self.per_shard / 2 {
                return Err(Full);
            }
            shard.own += usize::from(new);
            return Ok(shard.known[at].own.replace(member));
        }
        if !shard.replace_or_fit(thread, self.per_shard) || shard.own >= self.per_shard / 2 {
            return Err(Full);
        }
        shard.push(thread, handle, process, Some(member));
        Ok(None)
    }

    /// Looks at `count` threads, different ones each time, and removes those that have ended.
    pub(crate) fn tidy(&self, count: usize) {
        for _ in 0..count {
            let mut shard = self.shard(self.hand.fetch_add(1, Ordering::Relaxed));
            if shard.known.is_empty() {
                continue;
            }
            shard.hand = (shard.hand + 1) % shard.known.len();
            let at = shard.hand;
            if !shard.known[at].handle.alive() {
                shard.remove(at);
            }
        }
    }

    /// Keeps only those that have set their own.
    pub(crate) fn forget_derived(&self) {
        for at in 0..SHARDS {
            let mut shard = self.shard(at);
            shard.known.retain(|known| known.own.is_some());
            let threads = shard.known.iter().map(|known| known.thread);
            shard.at = threads.zip(0..).collect();
            shard.hand = 0;
        }
    }
}

impl Shard {
    /// Makes room: removes an ended thread with this number, and, if need be, one that was not seen for long.
    fn replace_or_fit(&mut self, thread: u32, capacity: usize) -> bool {
        if let Some(&at) = self.at.get(&thread) {
            self.remove(at);
        }
        for _ in 0..2 * self.known.len() {
            if self.known.len() < capacity {
                break;
            }
            self.hand = (self.hand + 1) % self.known.len();
            let at = self.hand;
            let known = &mut self.known[at];
            let keep = match known.own {
                Some(_) => known.handle.alive(),
                None => std::mem::take(&mut known.seen),
            };
            if !keep {
                self.remove(at);
            }
        }
        self.known.len() < capacity
    }

    fn push(
        &mut self,
        thread: u32,
        handle: Arc<Handle>,
        process: &Arc<Process>,
        own: Option<Member>,
    ) {
        self.own += usize::from(own.is_some());
        self.at.insert(thread, self.known.len());
        self.known.push(Known {
            thread,
            handle,
            process: Arc::clone(process),
            own,
            seen: true,
        });
    }

    fn remove(&mut self, at: usize) {
        let gone = self.known.swap_remove(at);
        self.at.remove(&gone.thread);
        self.own -= usize::from(gone.own.is_some());
        if let Some(moved) = self.known.get(at) {
            self.at.insert(moved.thread, at);
        }
    }
}
