//! `steadfast put`: on the host's file system and on a mounted volume.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::programs;
use programs::PROGRAM;

/// Far more than a sound run takes: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

fn start(program: &Path, args: &[&str], dir: &Path, uid: Option<u32>) -> Child {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    command.spawn().unwrap()
}

fn put(dir: &Path, file: &str, data: &[u8]) -> Output {
    let mut child = start(Path::new(PROGRAM), &["put", file], dir, None);
    let _ = child.stdin.take().unwrap().write_all(data);
    child.wait_with_output().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn standard_input_becomes_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = vec![3; 5_000_000];
    for content in [&b"first"[..], &data, b""] {
        let output = put(dir.path(), "file", content);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), content);
    }
    assert_eq!(names(dir.path()), ["file"]);
    fs::create_dir(dir.path().join("sub")).unwrap();
    for (file, word) in [("sub", "not a regular file"), ("none/file", "No such file")] {
        let output = put(dir.path(), file, b"x");
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(word), "{}", said(&output));
    }
}

#[test]
fn a_signal_leaves_the_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "old").unwrap();
    let mut child = start(Path::new(PROGRAM), &["put", "file"], dir.path(), None);
    let mut input = child.stdin.take().unwrap();
    // More than a pipe holds: a part of it has been read when this returns.
    input.write_all(&vec![1; 300_000]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => panic!("it hangs"),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(status.signal(), Some(15));
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["file"]);
    drop(input);
}

#[test]
fn leftovers_are_removed_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".file.1-0.steadfast"), "half").unwrap();
    fs::write(dir.path().join("file"), "old").unwrap();
    let child = start(
        Path::new(PROGRAM),
        &["put", "--recover", "file"],
        dir.path(),
        None,
    );
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("1 temporary files removed"));
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_file_that_would_change_its_owner_or_may_not_be_written_is_refused() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("acting as another user needs root");
        return;
    }
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A path where every user may run it. Another process copies it: a child that a thread beside this one starts meanwhile
    // would inherit the descriptor that writes, and the copy could not be executed (ETXTBSY).
    let copied = Command::new("cp").arg(PROGRAM).arg(at("program")).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (file, mode) in [("writable", 0o666), ("not", 0o644)] {
        fs::write(at(file), "old").unwrap();
        fs::set_permissions(at(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (file, word) in [
        ("writable", "belongs to user 0"),
        ("not", "Permission denied"),
    ] {
        let mut child = start(&at("program"), &["put", file], dir.path(), Some(NOBODY));
        let _ = child.stdin.take().unwrap().write_all(b"new");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(word), "{}", said(&output));
        assert_eq!(fs::read(at(file)).unwrap(), b"old");
    }
    assert_eq!(names(dir.path()), ["not", "program", "writable"]);
}

/// A mounted volume; it is unmounted when this is dropped.
struct Volume {
    dir: tempfile::TempDir,
    mnt: PathBuf,
}

impl Volume {
    fn mounted(size: &str) -> Option<Volume> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mnt = dir.path().join("mnt");
        fs::create_dir(&mnt).unwrap();
        let volume = Volume { dir, mnt };
        volume.run(&["mkfs", "--size", size, "img"]);
        volume.run(&["mount", "img", "mnt"]);
        Some(volume)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) {
        let output = programs::run_when_free(|| programs::run(self.dir.path(), PROGRAM, args));
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    }

    fn file(&self) -> PathBuf {
        self.mnt.join("file")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = steadfast_fuse::unmount(&self.mnt, steadfast_fuse::Unmount::Detach);
    }
}

#[test]
fn what_does_not_fit_leaves_the_file_as_it_was_and_no_other() {
    let Some(volume) = Volume::mounted("16M") else {
        return;
    };
    assert!(put(&volume.mnt, "file", b"old").status.success());
    let output = put(&volume.mnt, "file", &vec![1; 32 << 20]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(
        said.contains("No space left") && said.contains("as it was"),
        "{said}"
    );
    assert_eq!(fs::read(volume.file()).unwrap(), b"old");
    assert_eq!(names(&volume.mnt), ["file"]);
    // The space is back.
    let fits = put(&volume.mnt, "file", &vec![2; 4 << 20]);
    assert!(fits.status.success());
    volume.run(&["umount", "mnt"]);
}

#[test]
fn of_concurrent_writers_on_a_volume_one_wins_whole() {
    let Some(volume) = Volume::mounted("64M") else {
        return;
    };
    let path = volume.file();
    steadfast::atomic_replace(&path, &[0; 9000]).unwrap();
    std::thread::scope(|scope| {
        for n in 1..=4_u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..10 {
                    steadfast::atomic_replace(path, &[n; 9000]).unwrap();
                    let seen = fs::read(path).unwrap();
                    assert_eq!(seen.len(), 9000);
                    assert!(seen.iter().all(|byte| *byte == seen[0]));
                }
            });
        }
    });
    assert_eq!(names(&volume.mnt), ["file"]);
    volume.run(&["umount", "mnt"]);
    volume.run(&["fsck", "img"]);
}

#[test]
fn on_a_volume_what_was_put_survives_the_server_being_killed() {
    let Some(volume) = Volume::mounted("64M") else {
        return;
    };
    fs::write(volume.file(), "old").unwrap();
    fs::set_permissions(volume.file(), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(put(&volume.mnt, "file", b"new").status.success());
    assert_eq!(names(&volume.mnt), ["file"]);
    let server = steadfast_fuse::server_pid(&volume.mnt).unwrap();
    let server = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    let begun = Instant::now();
    while rustix::process::test_kill_process(server).is_ok() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    steadfast_fuse::unmount(&volume.mnt, steadfast_fuse::Unmount::Detach).unwrap();
    volume.run(&["mount", "img", "mnt"]);
    assert_eq!(fs::read(volume.file()).unwrap(), b"new");
    let mode = fs::metadata(volume.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    volume.run(&["umount", "mnt"]);
    volume.run(&["fsck", "img"]);
}
