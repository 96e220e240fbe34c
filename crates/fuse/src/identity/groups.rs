//! Supplementary groups of a caller, which the protocol does not carry.
//!
//! They are read from `/proc` when they decide something. Where other users are let in, afresh each time: a privileged thread
//! may change them between two calls. Where only the owner's own processes are let in, they are remembered for a moment.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Requester;

/// Time for which the groups of an owner's thread are remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

/// A caller, the groups it had, and when.
type Remembered = ((u32, u32, u32), Arc<[u32]>, Instant);

pub(super) fn remembered(request: &Requester) -> Arc<[u32]> {
    thread_local! {
        static LAST: RefCell<Option<Remembered>> = const { RefCell::new(None) };
    }
    let who = (request.thread, request.uid, request.gid);
    LAST.with_borrow_mut(|last| match last {
        Some((caller, groups, since)) if *caller == who && since.elapsed() < REMEMBERED => {
            Arc::clone(groups)
        }
        _ => {
            let groups = of_thread(who.0);
            *last = Some((who, Arc::clone(&groups), Instant::now()));
            groups
        }
    })
}

/// Supplementary groups of a thread; none if it cannot be asked (gone, or of another
/// process namespace): a caller then has fewer rights, not more.
pub(super) fn of_thread(tid: u32) -> Arc<[u32]> {
    let status = match tid {
        0 => return Arc::from([]),
        tid => std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default(),
    };
    parse(&status).into()
}

fn parse(status: &[u8]) -> Vec<u32> {
    status
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .and_then(|list| std::str::from_utf8(list).ok())
        .map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|g| g.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_thread() {
        assert_eq!(
            parse(b"Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"),
            [4, 24, 1000]
        );
        assert_eq!(parse(b"Groups:\t\n"), [0u32; 0]);
        assert_eq!(parse(b"garbage \xff"), [0u32; 0]);
        assert_eq!(*of_thread(0), [0u32; 0]);
        assert_eq!(*of_thread(u32::MAX), [0u32; 0]);
    }
}
