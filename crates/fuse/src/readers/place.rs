//! Keeps the thread that reads requests where its client runs.
//!
//! A request and its reply are two switches between client and server. On one processor each costs a
//! context switch; between two it wakes an idle one, which takes many times as long on virtual
//! machines. The scheduler leaves two threads apart once they are apart; so from time to time the
//! reader asks where its client ran last, and moves there. It is moved once and never bound:
//! afterwards it may run anywhere that it might before.

use std::cell::Cell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Requests of one client after which the reader looks again where it runs.
const LOOK_EVERY: u32 = 32;
/// The same for a client, or a reader, that is new.
const LOOK_FIRST: u32 = 2;

thread_local! {
    /// The client of this thread's last requests, and how many more until the next look.
    static NEXT: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// Called by a thread that has received a request of the thread `client`.
pub(crate) fn follow(client: u32) {
    if client == 0 {
        return; // the kernel itself
    }
    let left = match NEXT.get() {
        (last, left) if last == client => left,
        _ => LOOK_FIRST,
    };
    if left > 0 {
        return NEXT.set((client, left - 1));
    }
    NEXT.set((client, LOOK_EVERY));
    let Some(theirs) = processor(client) else {
        return;
    };
    if theirs != sched_getcpu() {
        move_to(theirs);
    }
}

/// Called by a thread that begins to read again.
pub(crate) fn look_soon() {
    NEXT.set((0, 0));
}

/// Moves this thread to a processor that it may run on.
fn move_to(processor: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    if processor < CpuSet::MAX_CPU && allowed.is_set(processor) {
        let mut there = CpuSet::new();
        there.set(processor);
        if sched_setaffinity(None, &there).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

/// The processor that a thread ran on last.
fn processor(thread: u32) -> Option<usize> {
    parse(&std::fs::read(format!("/proc/{thread}/stat")).ok()?)
}

/// Field 39 of `/proc/TID/stat`; the second one, a name in brackets, may hold anything.
fn parse(stat: &[u8]) -> Option<usize> {
    let behind = stat.iter().rposition(|&b| b == b')')? + 1;
    let field = stat[behind..]
        .split(|b| b.is_ascii_whitespace())
        .filter(|f| !f.is_empty())
        .nth(36)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn the_processor_is_found_after_any_name() {
        // From the third field on, each holds its own number.
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        let rest = format!("S {}", rest.join(" "));
        for name in ["(x)", "(a) b) (c)", "(\n)"] {
            assert_eq!(parse(format!("7 {name} {rest}\n").as_bytes()), Some(39));
        }
        assert_eq!(parse(b"7 (x) S 1"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn a_reader_moves_to_its_client_and_stays_free() {
        let allowed = sched_getaffinity(None).unwrap();
        for processor in (0..CpuSet::MAX_CPU).filter(|&p| allowed.is_set(p)) {
            let (tell, told) = mpsc::channel();
            let (leave, left) = mpsc::channel::<()>();
            let client = thread::spawn(move || {
                let mut there = CpuSet::new();
                there.set(processor);
                sched_setaffinity(None, &there).unwrap();
                tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32)
                    .unwrap();
                let _ = left.recv();
            });
            let client_id = told.recv().unwrap();
            // The machine may move this thread away again at any moment: but not always.
            let moved = (0..100).any(|_| {
                (0..=LOOK_EVERY).for_each(|_| follow(client_id));
                sched_getcpu() == processor
            });
            assert!(moved, "never on processor {processor}");
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            drop(leave);
            client.join().unwrap();
        }
    }
}
