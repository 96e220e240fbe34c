//! Programs side by side on one mount: appends, locks, a database in WAL mode (whose index is shared memory), watching,
//! and every way past the page cache.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::Place;
use rustix::fs::{FlockOperation, Mode, OFlags, inotify};

fn shell(dir: &Path, script: &str, name: &str) -> Child {
    let mut command = Command::new("timeout");
    command.args(["60", "sh", "-ec", script, name]);
    command.current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn must(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", common::said(&output));
    common::said(&output)
}

#[test]
fn two_writers_that_append_lose_no_line() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let script = "exec >>log; i=0; while [ $i -lt 1500 ]; do echo \"$0 $i\"; i=$((i + 1)); done";
    let writers = ["one", "two"].map(|name| shell(&place.mnt(), script, name));
    for writer in writers {
        must(writer);
    }
    let log = fs::read_to_string(place.mnt().join("log")).unwrap();
    for name in ["one", "two"] {
        let of_one: Vec<&str> = log.lines().filter(|line| line.starts_with(name)).collect();
        let expected: Vec<String> = (0..1500).map(|i| format!("{name} {i}")).collect();
        assert_eq!(of_one, expected);
    }
    assert_eq!(log.lines().count(), 3000);
    place.end();
}

#[test]
fn locks_hold_between_processes() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let path = place.mnt().join("file");
    fs::write(&path, "x").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let flock = || {
        shell(&place.mnt(), "flock -n file true", "")
            .wait()
            .unwrap()
            .success()
    };
    // struct flock of 64-bit Linux: type, whence, start, length, owner.
    let perl = "perl -e 'use Fcntl qw(:DEFAULT :seek); open F, \"+<\", \"file\" or exit 9;
        my $lock = pack(\"s s x4 q q i x4\", F_WRLCK, SEEK_SET, 0, 0, 0);
        exit(fcntl(F, F_SETLK, $lock) ? 0 : 1)'";
    let fcntl = || shell(&place.mnt(), perl, "").wait().unwrap().code();
    assert!(flock());
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    assert!(!flock(), "held by another process");
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    assert!(flock());
    assert_eq!(fcntl(), Some(0));
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    assert_eq!(fcntl(), Some(1), "held by another process");
    drop(file);
    assert_eq!(fcntl(), Some(0), "closing lets go");
    place.end();
}

#[test]
fn two_processes_write_one_database_in_wal_mode() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let make = "sqlite3 db 'PRAGMA journal_mode = WAL; CREATE TABLE t (who TEXT, n INTEGER)'";
    let output = shell(
        &place.mnt(),
        &format!("command -v sqlite3 || exit 77; {make}"),
        "",
    );
    if output.wait_with_output().unwrap().status.code() == Some(77) {
        return steadfast_testkit::skipped!("sqlite3 is missing");
    }
    let script = "i=0; while [ $i -lt 60 ]; do echo \"INSERT INTO t VALUES ('$0', $i);\"; i=$((i + 1)); done |
        sqlite3 -bail -cmd '.timeout 30000' db";
    let writers = ["one", "two", "three"].map(|name| shell(&place.mnt(), script, name));
    for writer in writers {
        must(writer);
    }
    let asked =
        "sqlite3 db 'PRAGMA integrity_check; SELECT count(*), count(DISTINCT who || n) FROM t'";
    assert_eq!(must(shell(&place.mnt(), asked, "")), "ok\n180|180\n");
    place.end();
}

#[test]
fn a_watcher_of_a_directory_sees_the_changes_of_others() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let watch =
        inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    let wanted = inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::MOVE
        | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, place.mnt(), wanted).unwrap();
    must(shell(&place.mnt(), "echo x >a; mv a b; rm b", ""));
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event.file_name().unwrap().to_string_lossy().into_owned();
        seen.push((event.events(), name));
    }
    use inotify::ReadFlags as R;
    let expected = [
        (R::CREATE, "a"),
        (R::MODIFY, "a"),
        (R::MOVED_FROM, "a"),
        (R::MOVED_TO, "b"),
        (R::DELETE, "b"),
    ];
    assert_eq!(seen, expected.map(|(what, name)| (what, name.to_owned())));
    place.end();
}

/// Bytes that differ everywhere.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 4096 + i) as u8 ^ seed).collect()
}

/// A buffer for direct input and output: memory aligned to 4 KiB.
fn aligned(space: &mut Vec<u8>, len: usize) -> &mut [u8] {
    space.resize(len + 4096, 0);
    let skip = space.as_ptr().align_offset(4096);
    &mut space[skip..skip + len]
}

#[test]
fn direct_and_cached_access_to_one_file_agree() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    mix_direct_and_cached(&place);
    place.end();
}

fn mix_direct_and_cached(place: &Place) {
    const LEN: usize = 1 << 20;
    let path = place.mnt().join("file");
    let direct = |flags| {
        File::from(
            rustix::fs::open(
                &path,
                flags | OFlags::DIRECT | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .unwrap(),
        )
    };
    let mut expected = pattern(LEN, 0);
    fs::write(&path, &expected).unwrap();
    let cached = File::options().read(true).write(true).open(&path).unwrap();
    let (mut space, mut read) = (Vec::new(), vec![0; LEN]);
    // Cached, then read directly.
    let got = aligned(&mut space, LEN);
    direct(OFlags::RDONLY).read_exact_at(got, 0).unwrap();
    assert!(got == expected);
    // Now the cache holds all of it; a direct write must be visible through it.
    cached.read_exact_at(&mut read, 0).unwrap();
    let new = aligned(&mut space, 64 << 10);
    new.copy_from_slice(&pattern(64 << 10, 0x55));
    expected[128 << 10..192 << 10].copy_from_slice(new);
    direct(OFlags::WRONLY).write_all_at(new, 128 << 10).unwrap();
    cached.read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected, "the cache is old");
    // And a cached write must be visible to a direct read.
    cached.write_all_at(b"cached", 130 << 10).unwrap();
    expected[130 << 10..][..6].copy_from_slice(b"cached");
    let got = aligned(&mut space, LEN);
    direct(OFlags::RDONLY).read_exact_at(got, 0).unwrap();
    assert!(got == expected);
}

#[test]
fn bytes_that_the_kernel_moves_arrive() {
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    move_in_the_kernel(&place);
    place.end();
}

fn move_in_the_kernel(place: &Place) {
    const LEN: usize = 3 << 20;
    let bytes = pattern(LEN, 0x11);
    fs::write(place.mnt().join("from"), &bytes).unwrap();
    let from = File::open(place.mnt().join("from")).unwrap();

    let to = File::create(place.mnt().join("copied")).unwrap();
    let (mut at, mut at_to) = (0, 0);
    while rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut at_to), LEN).unwrap() > 0
    {
    }
    assert!(fs::read(place.mnt().join("copied")).unwrap() == bytes);

    let to = File::create(place.mnt().join("sent")).unwrap();
    let mut at = 0;
    while rustix::fs::sendfile(&to, &from, Some(&mut at), LEN).unwrap() > 0 {}
    assert!(fs::read(place.mnt().join("sent")).unwrap() == bytes);

    // Spliced out to a pipe, and in from one.
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let flags = rustix::pipe::SpliceFlags::empty();
    let got = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut got = Vec::new();
            File::from(out).read_to_end(&mut got).unwrap();
            got
        });
        let mut at = 0;
        while rustix::pipe::splice(&from, Some(&mut at), &into, None, LEN, flags).unwrap() > 0 {}
        drop(into);
        reader.join().unwrap()
    });
    assert!(got == bytes);
    let to = File::create(place.mnt().join("spliced")).unwrap();
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| File::from(into).write_all(&bytes).unwrap());
        while rustix::pipe::splice(&out, None, &to, None, LEN, flags).unwrap() > 0 {}
    });
    assert!(fs::read(place.mnt().join("spliced")).unwrap() == bytes);
}
