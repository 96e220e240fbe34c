//! Group commit: replies that wait until what they tell of is durable.
//!
//! A call that changed something *owes* a commit. Its worker leaves the finished reply here and goes on with other
//! calls, so that waiting costs no thread. A worker that finds nobody leading becomes the leader: it does nothing but commit, one
//! sync for all replies that wait and then those replies, until none waits. While one batch is being synced the next
//! gathers (GoJournal §3).
//!
//! Invariants: a reply leaves only after a sync that began when its change was complete; as long as a reply waits, there is
//! a leader, and it serves no calls.

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

/// Turns that a leader gives other workers without seeing a call come.
const IDLE_TURNS_MAX: u32 = 8;

/// What a call wants durable before it is answered: two directories at most.
pub(crate) type Owed = SmallVec<[Wanted; 2]>;

/// A call whose reply is not sent yet.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) connection: Arc<Connection>,
    pub(crate) xid: u32,
    pub(crate) procedure: NFS_PROGRAM,
    pub(crate) since: Instant,
    /// Its reply tells of a failure.
    pub(crate) failed: bool,
    /// What it is known by if it comes again.
    pub(crate) key: Option<Key>,
    /// What is noted of it when it ends.
    pub(crate) noted: Noted,
}

/// A finished reply that waits.
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

/// Of one volume. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    /// How many waited for the last batch.
    crowd: AtomicUsize,
}

impl CommitQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a reply. Returns whether the caller is the leader from now on: it calls [`CommitQueue::next`] until there is
    /// no batch.
    pub(crate) fn push(&self, waiting: Waiting) -> bool {
        let mut state = self.state();
        state.waiting.push(waiting);
        !std::mem::replace(&mut state.led, true)
    }

    /// All replies that wait, for the leader; if there are none, it leads no more.
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

    /// Lets other workers run as long as calls come: clients that have just been answered come again, and share the
    /// next flush. Without it two halves of the clients take turns.
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
