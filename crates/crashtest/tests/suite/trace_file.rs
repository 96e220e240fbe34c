//! Trace files: written, read, cut, damaged, of a newer version.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use steadfast_crashtest::trace::{
    Begin, BlindSpots, End, Ended, Header, Op, Outcome, Root, Trace, TraceError, TraceWriter, Wall,
    Who, WriteHow,
};
use steadfast_model::tree::ROOT;
use steadfast_vfs::Caller;

fn header() -> Header {
    Header {
        command: vec![b"prog".to_vec(), b"\xff".to_vec()],
        setup: None,
        mount: b"/mnt".to_vec(),
        started: Wall { secs: 1, nanos: 2 },
        recorder: "test".to_owned(),
        kernel: "6".to_owned(),
        root: Root {
            perm: 0o755,
            uid: 0,
            gid: 0,
        },
    }
}

/// A file made in the setup, and another made, written and synced in the run.
fn write(path: &Path) {
    let mut out = TraceWriter::create(path, &header()).unwrap();
    let who = Who {
        process: 7,
        thread: 8,
        uid: 5,
        gid: 6,
    };
    let create = |name: &[u8]| Op::Create {
        parent: ROOT,
        name: name.to_vec(),
        perm: 0o644,
        flags: 1,
    };
    out.call(who, (0, 1), create(b"old"), Outcome::Made(2), None)
        .unwrap();
    out.call(who, (1, 2), Op::Release { ino: 2 }, Outcome::Done, None)
        .unwrap();
    out.begin(Begin { at: 3 }).unwrap();
    out.call(who, (3, 4), create(b"n\xffw"), Outcome::Made(3), None)
        .unwrap();
    let op = Op::Write {
        ino: 3,
        offset: 2,
        data: out.data(b"hello").unwrap(),
        how: WriteHow::default(),
    };
    out.call(who, (5, 6), op, Outcome::Done, None).unwrap();
    out.call(who, (7, 7), create(b"old"), Outcome::Failed(17), None)
        .unwrap();
    out.call(who, (7, 8), Op::Fsync { ino: 3 }, Outcome::Done, None)
        .unwrap();
    out.finish(&End {
        at: 9,
        how: Ended::Exited(0),
        left_over: 0,
        blind: BlindSpots::default(),
    })
    .unwrap();
}

#[test]
fn a_trace_reads_as_it_was_written_and_replays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path);
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.header, header());
    assert_eq!((trace.setup.len(), trace.calls.len()), (2, 4));
    assert_eq!(trace.calls[0].number, 2);
    assert!(trace.cut.is_none() && trace.end.is_some());

    let mut tree = trace.initial_tree().unwrap();
    assert!(tree.lookup(&Caller::root(), ROOT, b"n\xffw").is_err());
    for call in &trace.calls {
        trace.replay(&mut tree, call).unwrap();
    }
    let ino = tree.lookup(&Caller::root(), ROOT, b"n\xffw").unwrap();
    let mut content = [9; 16];
    assert_eq!(tree.read(ino, 0, &mut content).unwrap(), 7);
    assert_eq!(&content[..7], b"\0\0hello");
    assert_eq!(tree.getattr(ino).unwrap().uid, 5);
    tree.check().unwrap();
}

#[test]
fn a_call_that_comes_out_otherwise_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path);
    let trace = Trace::open(&path).unwrap();
    let mut tree = trace.initial_tree().unwrap();
    trace.replay(&mut tree, &trace.calls[0]).unwrap();
    let again = trace.replay(&mut tree, &trace.calls[0]);
    assert!(matches!(again, Err(TraceError::Replay { number: 2, .. })));
}

#[test]
fn a_trace_that_is_cut_anywhere_reads_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path);
    let whole = std::fs::read(&path).unwrap();
    let cut = dir.path().join("cut");
    let mut calls = 0;
    for len in 0..whole.len() {
        std::fs::write(&cut, &whole[..len]).unwrap();
        match Trace::open(&cut) {
            Ok(trace) => {
                let now = trace.setup.len() + trace.calls.len();
                assert!(now >= calls, "{len}");
                calls = now;
                assert!(trace.cut.is_some_and(|c| c.bytes <= len as u64) && trace.end.is_none());
            }
            Err(TraceError::NotATrace { .. }) => assert_eq!(calls, 0, "{len}"),
            Err(e) => panic!("{len}: {e}"),
        }
    }
    assert_eq!(calls, 6);
}

#[test]
fn a_byte_that_is_changed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path);
    let whole = std::fs::read(&path).unwrap();
    let bad = dir.path().join("bad");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&bad, &bytes).unwrap();
        // A length that has become larger than the rest looks like a cut: what is read is a part.
        if let Ok(trace) = Trace::open(&bad) {
            assert!(trace.cut.is_some(), "byte {at}");
        }
    }
}

#[test]
fn a_newer_version_and_other_files_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    write(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 2;
    std::fs::write(&path, &bytes).unwrap();
    let newer = Trace::open(&path).unwrap_err();
    assert!(matches!(newer, TraceError::Newer { found: 2, .. }));
    assert!(newer.to_string().contains("version 2"));
    std::fs::write(&path, b"execve(\"/bin/sh\")").unwrap();
    assert!(matches!(
        Trace::open(&path),
        Err(TraceError::NotATrace { .. })
    ));
}
