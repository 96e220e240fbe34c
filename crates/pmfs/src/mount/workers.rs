//! Work that is split into numbered units, done by several threads; the caller's thread reports progress.
//!
//! Promise: the results are in the order of the units, so they do not depend on the number of threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Maximum number of threads that are started.
const THREADS_MAX: usize = 256;

/// Parts into which progress divides the whole.
const PARTS: u64 = 1000;

/// Threads and progress of a job of several phases.
pub(crate) struct Workers<'p> {
    threads: usize,
    progress: &'p mut dyn FnMut(u64, u64),
    /// Parts done before this phase.
    before: u64,
}

impl<'p> Workers<'p> {
    /// `threads` threads, or one for each processor if it is 0.
    pub(crate) fn new(threads: usize, progress: &'p mut dyn FnMut(u64, u64)) -> Workers<'p> {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, NonZero::get),
            some => some,
        };
        progress(0, PARTS);
        Workers {
            threads: threads.min(THREADS_MAX),
            progress,
            before: 0,
        }
    }

    /// A phase: `work` is called once for each unit. It ends when `upto` parts of all are done.
    pub(crate) fn each<T: Send>(
        &mut self,
        upto: u64,
        units: usize,
        work: impl Fn(usize) -> T + Sync,
    ) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let run = |mut told: Option<&mut dyn FnMut(usize)>| {
            let mut done = Vec::new();
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= units {
                    return done;
                }
                done.push((unit, work(unit)));
                if let Some(told) = &mut told {
                    told(unit);
                }
            }
        };
        let (before, progress) = (self.before, &mut self.progress);
        let mut told = |unit: usize| {
            let parts = (upto - before) * (unit as u64 + 1) / units as u64;
            progress(before + parts, PARTS);
        };
        let helpers = (self.threads - 1).min(units.saturating_sub(1));
        let mut done = thread::scope(|scope| {
            let started: Vec<_> = (0..helpers)
                .filter_map(|_| {
                    // A thread that cannot be started leaves its share to the others.
                    let named = thread::Builder::new().name("pmfs-scan".into());
                    named.spawn_scoped(scope, || run(None)).ok()
                })
                .collect();
            let mut done = run(Some(&mut told));
            for helper in started {
                match helper.join() {
                    Ok(more) => done.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        self.before = upto;
        (self.progress)(upto, PARTS);
        done.sort_unstable_by_key(|(unit, _)| *unit);
        done.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn results_are_in_order_whichever_thread_has_them() {
        use std::sync::mpsc::channel;
        use std::sync::{Barrier, Mutex};
        // Two threads take units 0 and 1. That with unit 0 takes unit 2 as well, because the other one waits for that.
        let (both, (send, receive)) = (Barrier::new(2), channel());
        let receive = Mutex::new(receive);
        let mut quiet = |_, _| {};
        let units = Workers::new(2, &mut quiet).each(PARTS, 3, |unit| {
            if unit < 2 {
                both.wait();
            }
            match unit {
                1 => receive.lock().unwrap().recv().unwrap(),
                2 => send.send(()).unwrap(),
                _ => {}
            }
            unit
        });
        assert_eq!(units, [0, 1, 2]);
    }

    #[test]
    fn results_are_in_order_and_progress_only_grows() {
        for threads in [1, 2, 7] {
            let mut told = Vec::new();
            let mut progress = |done, total| told.push((done, total));
            let mut workers = Workers::new(threads, &mut progress);
            let squares = workers.each(400, 100, |unit| unit * unit);
            assert!(
                squares
                    .iter()
                    .enumerate()
                    .all(|(k, square)| *square == k * k)
            );
            assert!(workers.each(PARTS, 0, |unit| unit).is_empty());
            assert!(told.is_sorted() && told.last() == Some(&(PARTS, PARTS)));
        }
    }
}
