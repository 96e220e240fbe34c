//! Logs in which the lines of several processes are mixed.

#![allow(clippy::unwrap_used)]

use super::{Import, import};
use crate::trace::{Op, Trace};

/// The writes of a log: offset and bytes.
fn writes(log: &str) -> Vec<(u64, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let what = Import {
        log: dir.path().join("log"),
        root: "/m".into(),
        from: None,
        trace: dir.path().join("trace"),
    };
    std::fs::write(&what.log, log).unwrap();
    import(&what).unwrap();
    let trace = Trace::open(&what.trace).unwrap();
    let write = |op: &Op| match op {
        Op::Write { offset, data, .. } => Some((*offset, trace.bytes(*data).unwrap())),
        _ => None,
    };
    trace
        .calls
        .iter()
        .filter_map(|call| write(&call.op))
        .collect()
}

/// A child runs before the call that made it returns in the parent: once, a descriptor that it had opened by then was
/// forgotten, and its writes counted as output of the workload.
#[test]
fn a_child_may_act_before_its_parent_knows_of_it() {
    for (begin, end) in [
        ("clone(child_stack=NULL, flags=SIGCHLD", ") = 8"),
        ("vfork(", ") = 8"),
        (
            "clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD}",
            ", 88) = 8",
        ),
    ] {
        let call = begin.split('(').next().unwrap();
        let log = format!(
            "7 1.0 openat(AT_FDCWD<\\x2f\\x6d>, \"\\x66\", O_WRONLY|O_CREAT|O_APPEND, 0644) = 3\n\
             7 1.1 {begin} <unfinished ...>\n\
             8 1.2 dup2(3</m/f>, 1</m/f>) = 1\n\
             8 1.3 write(1</m/f>, \"\\x61\", 1) = 1\n\
             7 1.4 <... {call} resumed>{end}\n\
             8 1.5 write(1</m/f>, \"\\x62\", 1) = 1\n\
             7 1.6 write(3</m/f>, \"\\x63\", 1) = 1\n"
        );
        let expected = [(0, b"a".to_vec()), (1, b"b".to_vec()), (2, b"c".to_vec())];
        assert_eq!(writes(&log), expected, "{call}");
    }
}

/// A thread's first calls, before its creation returns, use the descriptors that it shares.
#[test]
fn a_thread_may_act_before_its_creator_knows_of_it() {
    let log = "7 1.0 openat(AT_FDCWD<\\x2f\\x6d>, \"\\x66\", O_WRONLY|O_CREAT, 0644) = 3\n\
         7 1.1 clone(child_stack=0x7, flags=CLONE_VM|CLONE_FILES|CLONE_THREAD <unfinished ...>\n\
         8 1.2 write(3</m/f>, \"\\x61\", 1) = 1\n\
         7 1.3 <... clone resumed>) = 8\n\
         8 1.4 write(3</m/f>, \"\\x62\", 1) = 1\n";
    assert_eq!(writes(log), [(0, b"a".to_vec()), (1, b"b".to_vec())]);
}

/// A log may come through a pipe, though it is read twice.
#[test]
fn a_pipe_is_a_log_too() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let dir = tempfile::tempdir().unwrap();
    let (from, mut to) = std::io::pipe().unwrap();
    let line = b"7 1.0 mkdir(\"\\x2f\\x6d\\x2f\\x64\", 0755) = 0\n";
    to.write_all(line).unwrap();
    drop(to);
    let what = Import {
        log: format!("/proc/self/fd/{}", from.as_raw_fd()).into(),
        root: "/m".into(),
        from: None,
        trace: dir.path().join("trace"),
    };
    import(&what).unwrap();
    let trace = Trace::open(&what.trace).unwrap();
    let made = |op: &Op| matches!(op, Op::Mkdir { name, .. } if name == b"d");
    assert!(trace.calls.iter().any(|call| made(&call.op)));
}
