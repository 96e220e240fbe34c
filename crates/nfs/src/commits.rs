//! Group commit: replies that wait until what they tell of is durable.
//!
//! A call that changed something *owes* a commit. Its worker leaves the finished reply here and goes on with other
//! calls, so that waiting costs no thread. Whoever finds nobody at it leads: one sync for all who wait, then their replies,
//! again and again until nobody waits; while one batch is being synced the next gathers (paper 001, section 3).
//!
//! Invariants: a reply leaves only after a sync that began when its change was complete; as long as somebody waits,
//! somebody leads; no more wait than [`WAITING_MAX`] and one for each worker that leads.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nfs3_types::nfs3::NFS_PROGRAM;
use smallvec::SmallVec;
use steadfast_vfs::Wanted;

use crate::connection::Connection;
use crate::drc::Key;

/// Most replies that wait.
const WAITING_MAX: usize = 1024;

/// What a call wants durable before it is answered: two directories at most.
pub(crate) type Owed = SmallVec<[Wanted; 2]>;

/// A call whose reply is not sent yet.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) connection: Arc<Connection>,
    pub(crate) xid: u32,
    pub(crate) procedure: NFS_PROGRAM,
    pub(crate) since: Instant,
    /// What it is known by if it comes again.
    pub(crate) key: Option<Key>,
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
pub(crate) struct Commits {
    state: Mutex<State>,
    room: Condvar,
    /// How many waited for the last batch.
    crowd: AtomicUsize,
}

impl Commits {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a reply. Returns whether the caller must lead. Who leads nothing (`may_wait`) waits for room first.
    pub(crate) fn push(&self, waiting: Waiting, may_wait: bool) -> bool {
        let mut state = self.state();
        while may_wait && state.led && state.waiting.len() >= WAITING_MAX {
            let woken = self.room.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.push(waiting);
        !std::mem::replace(&mut state.led, true)
    }

    /// All who wait, for the one who leads; nobody leads any more if there are none.
    pub(crate) fn next(&self) -> Vec<Waiting> {
        let mut state = self.state();
        let batch = std::mem::take(&mut state.waiting);
        state.led = !batch.is_empty();
        if state.led {
            self.crowd.store(batch.len(), Relaxed);
        }
        drop(state);
        self.room.notify_all();
        batch
    }

    /// How many wait, and how many of those who waited for the last batch have not come again.
    pub(crate) fn gathered(&self) -> (usize, usize) {
        let here = self.state().waiting.len();
        (here, self.crowd.load(Relaxed).saturating_sub(here))
    }
}
