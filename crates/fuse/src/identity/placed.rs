//! Processes whose stream is decided, and the reason.
//!
//! A decision is kept until another is set, or until the process ends. For the processes on the way to an ancestor,
//! the result is kept that there is no ancestor with a stream.
//!
//! Invariants: there are at most [`CAPACITY`] entries; one that was set, or that a directory has moved, is only given
//! up when its process has ended. Ended processes are found a few at a time, with each new one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steadfast_vfs::Ino;

use super::process::{Handle, Held, Id};
use super::registry::Member;

/// Most processes that are remembered, about 200 bytes each.
pub(crate) const CAPACITY: usize = 1 << 16;
/// Entries that are looked at with each new one. One that is removed is followed by the newest, which lives: with two, the
/// table would grow without bound.
const TIDIED: usize = 3;
/// Entries that are looked at for room when there is none.
const SEARCHED: usize = 64;

/// Reason why a process belongs to its stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// It was set for the process itself.
    Set,
    /// That of this ancestor was set.
    Ancestor(u32),
    /// The rule for this cgroup.
    Cgroup(String),
    /// Its environment.
    Environment,
    /// It, or an ancestor, changed something below this directory.
    Directory(Ino),
    /// Nothing: it is in the default stream.
    Nothing,
}

/// The stream of a process, and why.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) member: Member,
    pub(crate) by: By,
}

impl Decision {
    pub(crate) fn nothing() -> Decision {
        Decision {
            member: None,
            by: By::Nothing,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    decision: Option<Decision>,
    /// No ancestor had a stream when this many had been set.
    clear_at: Option<u64>,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) id: Id,
    /// A thread of the kernel: it works for others.
    pub(crate) kernel: bool,
    handle: Option<Arc<Handle>>,
    /// Number of processes added to the table until this one, itself included.
    added: AtomicU64,
    state: Mutex<State>,
}

impl Process {
    pub(crate) fn new(held: Held, kernel: bool) -> Process {
        Process {
            number: held.number,
            id: held.id,
            kernel,
            handle: held.handle,
            added: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Whether it has not ended; `None` if it has no descriptor to check.
    pub(crate) fn alive(&self) -> Option<bool> {
        self.handle.as_ref().map(|handle| handle.alive())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn decision(&self) -> Option<Decision> {
        self.state().decision.clone()
    }

    /// Sets its placement; returns the former one.
    pub(crate) fn place(&self, decision: Decision) -> Option<Decision> {
        self.state().decision.replace(decision)
    }

    /// The same unless it is decided; returns the placement that counts.
    pub(crate) fn place_first(&self, decision: Decision) -> Decision {
        self.state().decision.get_or_insert(decision).clone()
    }

    /// Moves it if only the default has been decided; returns the placement that counts.
    pub(crate) fn place_from_default(&self, decision: Decision) -> Decision {
        let mut state = self.state();
        match &state.decision {
            Some(old) if old.by != By::Nothing => old.clone(),
            _ => state.decision.insert(decision).clone(),
        }
    }

    pub(crate) fn clear_at(&self) -> Option<u64> {
        self.state().clear_at
    }

    pub(crate) fn set_clear_at(&self, sets: u64) {
        self.state().clear_at = Some(sets);
    }

    /// The process has ended: it belongs to nothing any more.
    fn end(&self) {
        *self.state() = State::default();
    }

    /// Whether a new decision could differ.
    fn to_keep(&self) -> bool {
        let state = self.state();
        let decision = state.decision.as_ref();
        decision.is_some_and(|decision| matches!(decision.by, By::Set | By::Directory(_)))
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    entries: Vec<Arc<Process>>,
    at: HashMap<u32, usize>,
    /// Position of the search for ended processes.
    hand: usize,
    /// Number of processes ever added.
    added: u64,
}

impl Processes {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The process, unless the number was another's.
    pub(crate) fn get(&self, number: u32, id: Id) -> Option<&Arc<Process>> {
        let entry = self.entries.get(*self.at.get(&number)?)?;
        (entry.id == id).then_some(entry)
    }

    /// Number of processes ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// The process with this number, if it was in the table, with a descriptor, when the table's count was `added`. If it has
    /// not ended, no other process has had the number since then.
    pub(crate) fn held_since(&self, number: u32, added: u64) -> Option<&Arc<Process>> {
        let entry = self.entries.get(*self.at.get(&number)?)?;
        let held = entry.handle.is_some() && entry.added.load(Ordering::Relaxed) <= added;
        held.then_some(entry)
    }

    /// Adds a process in place of any that had its number. False if there is no room; then it is not remembered.
    pub(crate) fn add(&mut self, process: &Arc<Process>, alive: impl Fn(&Process) -> bool) -> bool {
        self.added += 1;
        process.added.store(self.added, Ordering::Relaxed);
        if let Some(at) = self.at.get(&process.number) {
            let old = std::mem::replace(&mut self.entries[*at], Arc::clone(process));
            old.end();
            return true;
        }
        self.tidy(TIDIED, &alive);
        if self.entries.len() >= CAPACITY && !self.make_room(&alive) {
            return false;
        }
        self.at.insert(process.number, self.entries.len());
        self.entries.push(Arc::clone(process));
        true
    }

    /// Looks at `count` processes, different ones each time, and removes those that have ended.
    pub(crate) fn tidy(&mut self, count: usize, alive: impl Fn(&Process) -> bool) {
        for _ in 0..count.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            match self.entries.get(self.hand) {
                Some(entry) if !alive(entry) => self.remove(self.hand),
                _ => self.hand += 1,
            }
        }
    }

    fn make_room(&mut self, alive: impl Fn(&Process) -> bool) -> bool {
        self.tidy(SEARCHED, alive);
        for _ in 0..SEARCHED {
            if self.entries.len() < CAPACITY {
                return true;
            }
            self.hand = (self.hand + 1) % self.entries.len();
            if !self.entries[self.hand].to_keep() {
                self.remove(self.hand);
            }
        }
        self.entries.len() < CAPACITY
    }

    fn remove(&mut self, at: usize) {
        if at >= self.entries.len() {
            return;
        }
        let gone = self.entries.swap_remove(at);
        self.at.remove(&gone.number);
        gone.end();
        if let Some(moved) = self.entries.get(at) {
            self.at.insert(moved.number, at);
        }
    }

    /// Keeps only placements that would not be decided the same way again.
    pub(crate) fn forget_derived(&mut self) {
        self.entries.retain(|entry| entry.to_keep());
        let numbers = self.entries.iter().map(|entry| entry.number);
        self.at = numbers.zip(0..).collect();
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::process::Proc;

    fn ids() -> Option<[Id; 2]> {
        let proc = Proc::open().ok()?;
        Some([proc.process(std::process::id())?, proc.process(1)?])
    }

    fn process(number: u32, id: Id) -> Process {
        let held = Held {
            number,
            id,
            handle: None,
        };
        Process::new(held, false)
    }

    #[test]
    fn only_processes_known_before_are_held_since_then() {
        let Ok(proc) = Proc::open() else { return };
        let Some(held) = proc.hold(std::process::id()) else {
            return;
        };
        let number = held.number;
        let mut table = Processes::default();
        let before = table.added();
        let with_descriptor = held.handle.is_some();
        let own = Arc::new(Process::new(held.clone(), false));
        assert!(table.add(&own, |_| true));
        assert!(table.held_since(number, before).is_none());
        let after = table.added();
        assert_eq!(table.held_since(number, after).is_some(), with_descriptor);
        assert_eq!(own.alive(), with_descriptor.then_some(true));
        // Another one gets the number.
        assert!(table.add(&Arc::new(Process::new(held, false)), |_| true));
        assert!(table.held_since(number, after).is_none());
        let without = process(number + 1, own.id);
        assert!(table.add(&Arc::new(without), |_| true));
        assert!(table.held_since(number + 1, table.added()).is_none());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let Some([a, b]) = ids() else { return };
        let mut table = Processes::default();
        let first = Arc::new(process(7, a));
        assert!(table.add(&first, |_| true));
        first.place(Decision::nothing());
        assert!(table.get(7, a).is_some());
        assert!(table.get(7, b).is_none());
        let second = Arc::new(process(7, b));
        assert!(table.add(&second, |_| true));
        assert!(table.get(7, a).is_none());
        assert_eq!(table.len(), 1);
        assert!(first.decision().is_none(), "it has ended");
    }

    #[test]
    fn many_short_processes_leave_as_many_entries_as_live_at_a_time() {
        let Some([id, _]) = ids() else { return };
        let mut table = Processes::default();
        for number in 0..100_000 {
            let process = Arc::new(process(number, id));
            assert!(table.add(&process, |old| old.number + 10 > number));
            assert!(table.len() < 64, "{}", table.len());
        }
    }

    #[test]
    fn a_full_table_gives_up_decisions_that_can_be_made_again_and_nothing_else() {
        let Some([id, _]) = ids() else { return };
        let mut table = Processes::default();
        let add = |table: &mut Processes, number, by| {
            let process = Arc::new(process(number, id));
            process.place(Decision { member: None, by });
            table.add(&process, |_| true)
        };
        for number in 0..CAPACITY as u32 {
            let by = match number {
                5 => By::Nothing,
                _ => By::Set,
            };
            assert!(add(&mut table, number, by));
        }
        let mut added = 0;
        for number in 0..CAPACITY as u32 {
            added += u32::from(add(&mut table, CAPACITY as u32 + number, By::Set));
        }
        assert_eq!(added, 1);
        assert!(table.get(5, id).is_none() && table.get(6, id).is_some());
        assert_eq!(table.len(), CAPACITY);
    }
}
