//! Group commit: replies wait until their changes are durable.
//!
//! A call that changed something *owes* a commit. Its worker leaves the finished reply here and continues with other
//! calls, so that waiting costs no thread. If there is no leader, the worker becomes the leader: it only commits, with one
//! sync for all waiting replies, and sends those replies, until none waits. While one batch is being synced, the next
//! gathers (GoJournal §3).
//!
//! Invariants: a reply is sent only after a sync that began when its change was complete; while a reply waits, there is
//! a leader, and the leader serves no calls.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use nfs3_types::nfs3::NFS_PROGRAM;
use smallvec::SmallVec;
use steadfast_vfs::Wanted;

use crate::connection::Connection;
use crate::drc::Key;
use crate::noted::Noted;

/// Yields of a leader without a new call after which it stops yielding.
const IDLE_TURNS_MAX: u32 = 8;

/// Objects that must be durable before a call is answered: at most two directories.
pub(crate) type Owed = SmallVec<[Wanted; 2]>;

/// A call with an unsent reply.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) connection: Arc<Connection>,
    pub(crate) xid: u32,
    pub(crate) procedure: NFS_PROGRAM,
    pub(crate) since: Instant,
    /// Its reply reports a failure.
    pub(crate) failed: bool,
    /// Its key in the duplicate request cache.
    pub(crate) key: Option<Key>,
    /// Its entry for counters and access log, made when it ends.
    pub(crate) noted: Noted,
}

/// A waiting, finished reply.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) call: Unanswered,
    pub(crate) wanted: Owed,
    /// The whole record.
    pub(crate) reply: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    led: bool,
}

/// The queue of one volume. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    /// Number of replies in the last batch.
    crowd: AtomicUsize,
}

impl CommitQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reply. Returns whether the caller is now the leader, which must call [`CommitQueue::next`] until there is
    /// no batch.
    pub(crate) fn push(&self, waiting: Waiting) -> bool {
        let mut state = self.state();
        state.waiting.push(waiting);
        !std::mem::replace(&mut state.led, true)
    }

    /// All waiting replies, for the leader. If there are none, the caller is no longer the leader.
    pub(crate) fn next(&self) -> Vec<Waiting> {
        self.gather();
        let mut state = self.state();
        let batch = std::mem::take(&mut state.waiting);
        state.led = !batch.is_empty();
        if state.led {
            self.crowd.store(batch.len(), Relaxed);
        }
        batch
    }

    /// Lets other workers run while calls arrive: clients that have just been answered send their next calls, which share the
    /// next flush. Without this, two halves of the clients would alternate.
    fn gather(&self) {
        let crowd = self.crowd.load(Relaxed);
        let mut here = self.state().waiting.len();
        let mut idle_turns = 0;
        while 0 < here && here < crowd && idle_turns < IDLE_TURNS_MAX {
            thread::yield_now();
            let now = self.state().waiting.len();
            idle_turns = if now > here { 0 } else { idle_turns + 1 };
            here = now;
        }
    }
}
