//! Stores of a trace that are not made durable, and its redundant write-backs and fences.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::LINE_BYTES;
use crate::recorder::Event;
use crate::trace::Trace;

/// Findings on a trace, under line write-back. Each is the index of an event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Ordinary stores whose line is never written back afterwards: a crash may lose them for ever.
    pub never_written_back: Vec<usize>,
    /// Stores that are written back, or are non-temporal, but that no fence of the same thread follows.
    pub never_fenced: Vec<usize>,
    /// Write-backs of a line that nothing was stored to since it was written back last.
    pub redundant_write_backs: Vec<usize>,
    /// Fences of a thread that had nothing to order since its last one.
    pub idle_fences: Vec<usize>,
}

impl Report {
    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Report::default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let findings = [
            (
                "stores that are never written back",
                &self.never_written_back,
            ),
            ("stores that are never fenced", &self.never_fenced),
            ("redundant write-backs", &self.redundant_write_backs),
            ("fences with nothing to order", &self.idle_fences),
        ];
        let found = findings.iter().filter(|(_, events)| !events.is_empty());
        let mut clean = true;
        for (what, events) in found {
            let separator = if clean { "" } else { "; " };
            write!(f, "{separator}{what}: events {events:?}")?;
            clean = false;
        }
        if clean {
            f.write_str("nothing missing, nothing redundant")?;
        }
        Ok(())
    }
}

/// The ordinary stores to a line that are not fenced.
#[derive(Default)]
struct Line {
    /// Stores that are not written back.
    dirty: Vec<usize>,
    /// Written back, by which thread.
    written_back: Vec<(usize, u32)>,
}

/// Stores and write-backs that a thread has to fence.
#[derive(Default)]
struct Thread {
    lines: HashSet<u64>,
    data: Vec<usize>,
}

impl Trace {
    /// Looks for stores that are not made durable, and for write-backs and fences that do nothing.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = Report::default();
        let mut lines = HashMap::<u64, Line>::new();
        let mut threads = HashMap::<u32, Thread>::new();
        for (index, event, number) in self.steps() {
            let thread = threads.entry(number).or_default();
            match event {
                Event::Store { at, .. } => {
                    let line = lines.entry(at / LINE_BYTES).or_default();
                    line.dirty.push(index);
                }
                Event::Data { .. } => thread.data.push(index),
                Event::WriteBack { line: at } => {
                    let line = lines.entry(at).or_default();
                    // This fence also makes lines durable that another thread wrote back and has not fenced.
                    let others = line.written_back.iter().filter(|(_, by)| *by != number);
                    let others: HashSet<usize> = others.map(|(store, _)| *store).collect();
                    let own = |store: &usize| line.written_back.contains(&(*store, number));
                    let new = others.into_iter().filter(|store| !own(store));
                    let new: Vec<usize> = new.chain(std::mem::take(&mut line.dirty)).collect();
                    if new.is_empty() {
                        report.redundant_write_backs.push(index);
                    } else {
                        thread.lines.insert(at);
                        line.written_back
                            .extend(new.into_iter().map(|store| (store, number)));
                    }
                }
                Event::Fence => {
                    if thread.lines.is_empty() && thread.data.is_empty() {
                        report.idle_fences.push(index);
                    }
                    thread.data.clear();
                    for at in thread.lines.drain() {
                        let line = lines.entry(at).or_default();
                        let by_this = |pair: &(usize, u32)| pair.1 == number;
                        let fenced = line.written_back.iter().copied().filter(by_this);
                        let fenced: HashSet<usize> = fenced.map(|(store, _)| store).collect();
                        line.written_back
                            .retain(|(store, _)| !fenced.contains(store));
                    }
                }
                Event::Mark(_) => {}
            }
        }
        for line in lines.into_values() {
            report.never_written_back.extend(line.dirty);
            let unfenced = line.written_back.into_iter().map(|(store, _)| store);
            report.never_fenced.extend(unfenced);
        }
        let data = threads.into_values().flat_map(|thread| thread.data);
        report.never_fenced.extend(data);
        report.never_written_back.sort_unstable();
        report.never_fenced.sort_unstable();
        report.never_fenced.dedup();
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(events: &[(Event, u32)]) -> Trace {
        let mut trace = Trace::new(vec![0; 64]);
        for (event, thread) in events {
            trace.push(*event, *thread);
        }
        trace
    }

    fn store(at: u64) -> Event {
        Event::Store { at, word: 1 }
    }

    fn data(at: u64) -> Event {
        Event::Data { at, word: 1 }
    }

    const fn line(line: u64) -> Event {
        Event::WriteBack { line }
    }

    const FENCE: Event = Event::Fence;

    fn report(events: &[(Event, u32)]) -> Report {
        trace(events).report()
    }

    #[test]
    fn stores_written_back_and_fenced_are_clean() {
        let clean = report(&[
            (store(0), 1),
            (store(72), 1),
            (line(0), 1),
            (line(1), 1),
            (FENCE, 1),
        ]);
        assert!(clean.is_clean(), "{clean}");
        let clean = report(&[(data(0), 1), (FENCE, 1)]);
        assert_eq!(clean.to_string(), "nothing missing, nothing redundant");
    }

    #[test]
    fn a_forgotten_write_back_is_reported() {
        let found = report(&[(store(0), 1), (line(0), 1), (store(8), 1), (FENCE, 1)]);
        assert_eq!(found.never_written_back, [2]);
        assert_eq!(found.never_fenced, []);
        assert!(found.to_string().contains("never written back: events [2]"));
    }

    #[test]
    fn a_forgotten_fence_is_reported_of_the_thread_that_needs_it() {
        let found = report(&[(store(0), 1), (line(0), 1), (data(64), 1), (FENCE, 2)]);
        assert_eq!(found.never_fenced, [0, 2]);
        assert_eq!(found.idle_fences, [3]);
    }

    #[test]
    fn a_write_back_of_a_clean_line_is_redundant() {
        let found = report(&[
            (store(0), 1),
            (line(0), 1),
            (line(0), 1),
            (FENCE, 1),
            (line(3), 1),
        ]);
        assert_eq!(found.redundant_write_backs, [2, 4]);
        assert!(found.idle_fences.is_empty());
    }

    #[test]
    fn a_thread_may_write_back_unfenced_stores_of_another() {
        let of = |last| report(&[(store(0), 1), (line(0), 1), (line(0), 2), (FENCE, last)]);
        assert_eq!(of(2), Report::default());
        assert_eq!(of(1), Report::default());
    }

    #[test]
    fn a_fence_after_a_fence_is_idle() {
        let found = report(&[(data(0), 1), (FENCE, 1), (FENCE, 1)]);
        assert_eq!(found.idle_fences, [2]);
    }
}
