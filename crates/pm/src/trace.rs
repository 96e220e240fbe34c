//! The result of a recorder: the words before, and the events.

use std::fmt;

use crate::recorder::Event;

/// The words of a region at some time, and the events after it.
///
/// A trace can be changed before it is explored: a test that leaves out a fence, by [`without`](Trace::without), shows that
/// its checks would find that.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    base: Vec<u64>,
    events: Vec<Event>,
    threads: Vec<u32>,
}

impl Trace {
    /// Nothing has happened yet to a region with these words.
    #[must_use]
    pub fn new(base: Vec<u64>) -> Trace {
        Trace {
            base,
            events: Vec::new(),
            threads: Vec::new(),
        }
    }

    /// Adds an event of a thread.
    ///
    /// # Panics
    /// If it is a store out of bounds or not aligned.
    pub fn push(&mut self, event: Event, thread: u32) {
        if let Event::Store { at, .. } | Event::Data { at, .. } = event {
            let aligned = at.is_multiple_of(8);
            assert!(aligned && at / 8 < self.base.len() as u64, "{event}");
        }
        self.events.push(event);
        self.threads.push(thread);
    }

    /// The words before the first event.
    #[must_use]
    pub fn base(&self) -> &[u64] {
        &self.base
    }

    /// The events, in the order in which they became visible.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The events with their threads.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (usize, Event, u32)> + '_ {
        let steps = self.events.iter().zip(&self.threads).enumerate();
        steps.map(|(index, (event, thread))| (index, *event, *thread))
    }

    /// The same, had the event at `index` not happened.
    ///
    /// # Panics
    /// If there is no such event.
    #[must_use]
    pub fn without(&self, index: usize) -> Trace {
        let mut less = self.clone();
        less.events.remove(index);
        less.threads.remove(index);
        less
    }
}

impl fmt::Debug for Trace {
    /// One line for each event; the words before them are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} words", self.base.len())?;
        for (index, event, thread) in self.steps() {
            writeln!(f, "{index:5} thread {thread}: {event}")?;
        }
        Ok(())
    }
}
