//! Faults: a file that shrinks under its mapping marks its region as failed; other faults go where they went before.
//!
//! A case that ends a process runs in a child: this test, started again with the case in an environment variable.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::panic, unsafe_code)]

use std::fs::{File, OpenOptions as FileOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::ptr;

use steadfast_pm::{Error, OpenOptions, Region};
use tempfile::TempDir;

const BYTES: u64 = 64 << 10;

fn created(name: &str) -> (TempDir, PathBuf, Region) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join(name);
    let region = Region::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    (dir, path, region)
}

fn truncate(path: &PathBuf, bytes: u64) {
    let file = FileOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

#[test]
fn a_region_whose_file_shrinks_fails_and_the_process_lives() {
    let (_dir, path, region) = created("shrinks");
    let (_other_dir, _, other) = created("stays");
    for at in (0..BYTES).step_by(4096) {
        region.store(at, at + 1);
        other.store(at, 5);
    }
    truncate(&path, 8192);
    // Not noticed before it is used.
    assert!(!region.failed());
    assert_eq!(region.load(4096), 4097);
    assert!(!region.failed());
    assert_eq!(region.load(8192), 0);
    assert!(region.failed());
    // A store, data, and a read: all in pages of their own.
    region.store(12288, 1);
    region.write_data(4 * 4096 - 8, &[1; 8200]);
    region.zero_data(8 * 4096, 4096);
    let mut data = [1; 10000];
    region.read(10 * 4096 + 1, &mut data);
    assert_eq!(data, [0; 10000]);
    region.write_back(0, BYTES);
    region.fence();
    // The rest of the file is still there.
    assert_eq!(region.load(4096), 4097);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192);
    assert!(!other.failed());
    assert_eq!(other.load(8192), 5);
}

#[test]
fn a_reader_whose_file_shrinks_sees_zeros_and_a_failed_region() {
    let (_dir, path, region) = created("read");
    region.write_data(0, &[7; BYTES as usize]);
    drop(region);
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let region = Region::open(&path, &options).unwrap();
    truncate(&path, 4096);
    let mut data = vec![1; BYTES as usize];
    region.read(0, &mut data);
    assert!(data[..4096].iter().all(|byte| *byte == 7));
    assert!(data[4096..].iter().all(|byte| *byte == 0));
    assert!(region.failed());
}

#[test]
fn many_threads_may_fault_at_once() {
    let (_dir, path, region) = created("threads");
    truncate(&path, 0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for at in (0..BYTES).step_by(8) {
                    assert_eq!(region.load(at), 0);
                }
                assert!(region.failed());
            });
        }
    });
}

#[test]
fn a_region_opened_after_one_that_failed_has_not_failed() {
    for _ in 0..3 {
        let (_dir, path, region) = created("again");
        assert!(!region.failed());
        truncate(&path, 0);
        assert_eq!(region.load(0), 0);
        assert!(region.failed());
    }
}

/// Names the case in the environment of the child.
const CASE: &str = "STEADFAST_PM_SIGBUS_CASE";

fn child(case: &str) -> ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_child"])
        .env(CASE, case)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
}

/// A mapping that is no region and whose page is gone.
fn fault_elsewhere() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = File::create_new(dir.path().join("file")).unwrap();
    // SAFETY: a new mapping of a file that has no bytes; the test touches it to make it fault.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        drop(dir);
        at.cast::<u8>().read_volatile();
    }
}

extern "C" fn exit_42(_: libc::c_int) {
    // SAFETY: `_exit` may be called by a handler.
    unsafe { libc::_exit(42) }
}

extern "C" fn exit_43(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: as above; the description is the kernel's.
    unsafe {
        libc::_exit(if (*info).si_code == libc::BUS_ADRERR {
            43
        } else {
            1
        })
    }
}

fn install(handler: usize, flags: libc::c_int) {
    // SAFETY: the handler has the signature that the flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()),
            0
        );
    }
}

/// Does nothing unless it was started by another test.
#[test]
fn the_child() {
    let Ok(case) = std::env::var(CASE) else {
        return;
    };
    match case.as_str() {
        "default, fault" | "default, kill" => install(libc::SIG_DFL, 0),
        "ignored, fault" | "ignored, kill" => install(libc::SIG_IGN, 0),
        "plain handler" => install(exit_42 as extern "C" fn(libc::c_int) as usize, 0),
        "handler with description" => {
            let handler: extern "C" fn(_, _, _) = exit_43;
            install(handler as usize, libc::SA_SIGINFO);
        }
        _ => {}
    }
    let (_dir, path, region) = created("child");
    if case.ends_with("kill") {
        // SAFETY: sends a signal to this process.
        unsafe { libc::raise(libc::SIGBUS) };
    } else {
        // One of ours first: the former handler must not hear of it.
        truncate(&path, 0);
        assert_eq!(region.load(0), 0);
        assert!(region.failed());
        fault_elsewhere();
    }
    drop(region);
    std::process::exit(0);
}

#[test]
fn a_fault_elsewhere_ends_the_process_as_before() {
    for case in [
        "as found",
        "default, fault",
        "default, kill",
        "ignored, fault",
    ] {
        assert_eq!(child(case).signal(), Some(libc::SIGBUS), "{case}");
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    assert_eq!(child("ignored, kill").code(), Some(0));
}

#[test]
fn a_fault_elsewhere_goes_to_the_former_handler() {
    assert_eq!(child("plain handler").code(), Some(42));
    assert_eq!(child("handler with description").code(), Some(43));
}

/// The directories where a file system of a kind is mounted.
fn mounted(kind: &str) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mounts = mounts.filter(|words| words[2] == kind);
    mounts.map(|words| PathBuf::from(words[1])).collect()
}

#[test]
fn a_file_of_huge_pages_fails_page_by_page() {
    const HUGE: u64 = 2 << 20;
    for dir in mounted("hugetlbfs") {
        let Ok(dir) = tempfile::tempdir_in(dir) else {
            continue;
        };
        let path = dir.path().join("region");
        let uneven = Region::create(&path, HUGE + 4096, false, &OpenOptions::default());
        assert!(matches!(uneven, Err(Error::UnevenSize { unit: HUGE, .. })));
        // There may be no such pages.
        let Ok(region) = Region::create(&path, 3 * HUGE, false, &OpenOptions::default()) else {
            continue;
        };
        for at in [0, HUGE, 2 * HUGE] {
            region.store(at + 8, 5);
        }
        truncate(&path, HUGE);
        assert_eq!(region.load(HUGE + 8), 0);
        assert!(region.failed());
        region.store(3 * HUGE - 8, 1);
        assert_eq!((region.load(8), region.load(2 * HUGE + 8)), (5, 0));
    }
}

#[test]
fn a_file_on_ramfs_is_a_region() {
    for dir in mounted("ramfs") {
        let Ok(dir) = tempfile::tempdir_in(dir) else {
            continue;
        };
        let path = dir.path().join("region");
        let region = Region::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
        region.store(4096, 5);
        truncate(&path, 4096);
        assert_eq!((region.load(4096), region.failed()), (0, true));
    }
}
