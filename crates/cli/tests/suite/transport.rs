//! The transport of a mount's requests: io_uring if the kernel offers it and lets this process use it, else
//! `/dev/fuse`, which the log reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::programs;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const FALLEN_BACK: &str = "requests come through /dev/fuse";

/// Runs a program for which io_uring_setup(2) fails with EPERM, as under the profiles of many containers.
const REFUSED: &str = "import ctypes,os,struct,sys\n\
    def op(code,yes,no,k): return struct.pack('HBBI',code,yes,no,k)\n\
    code=op(0x20,0,0,0)+op(0x15,0,1,425)+op(6,0,0,0x50001)+op(6,0,0,0x7fff0000)\n\
    buf=ctypes.create_string_buffer(code)\n\
    prog=ctypes.create_string_buffer(struct.pack('HxxxxxxP',4,ctypes.addressof(buf)))\n\
    libc=ctypes.CDLL(None,use_errno=True)\n\
    assert libc.prctl(38,1,0,0,0)==0 and libc.prctl(22,2,prog)==0\n\
    os.execv(sys.argv[1],sys.argv[1:])\n";

fn offered() -> bool {
    fs::read(SWITCH).is_ok_and(|on| on.starts_with(b"Y"))
}

/// A formatted image and a mount point, where mounts can be made.
fn place() -> Option<tempfile::TempDir> {
    if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let made = run(dir.path(), &["mkfs", "--size", "64M", "img"]);
    assert!(made.status.success(), "{made:?}");
    Some(dir)
}

fn run(dir: &Path, args: &[&str]) -> Output {
    programs::run(dir, programs::PROGRAM, args)
}

/// Mounts, writes and reads a file, unmounts; returns the server's log.
fn served(dir: &Path, mut mount: Command) -> String {
    let mounted = mount.current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert!(mounted.status.success(), "{said}");
    let file = dir.join("mnt/file");
    fs::write(&file, "content").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"content");
    let gone = programs::run_when_free(|| run(dir, &["umount", "mnt"]));
    assert!(gone.status.success(), "{gone:?}");
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let _ = fs::remove_file(dir.join("log"));
    assert!(!said.contains(FALLEN_BACK), "not for the starter: {said}");
    log
}

fn mount(program: &str, options: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["mount", "-o", options, "img", "mnt"]);
    command
}

#[test]
fn the_log_tells_if_the_kernel_does_not_offer_io_uring() {
    let Some(dir) = place() else { return };
    let (before, log) = (offered(), format!("log={}/log", dir.path().display()));
    let said = served(dir.path(), mount(programs::PROGRAM, &log));
    let told = said.matches(FALLEN_BACK).count();
    let without = format!("{log},noio_uring");
    let said = served(dir.path(), mount(programs::PROGRAM, &without));
    assert_eq!(said.matches(FALLEN_BACK).count(), 0, "not asked for");
    // Others may change the setting meanwhile.
    if before == offered() {
        assert_eq!(told, usize::from(!before));
    }
}

#[test]
fn io_uring_that_was_asked_for_and_cannot_be_had_fails_the_mount() {
    let Some(dir) = place() else { return };
    let mounted = run(dir.path(), &["mount", "-o", "io_uring", "img", "mnt"]);
    let said = String::from_utf8_lossy(&mounted.stderr);
    if mounted.status.success() {
        let gone = programs::run_when_free(|| run(dir.path(), &["umount", "mnt"]));
        assert!(gone.status.success(), "{gone:?}");
        return steadfast_testkit::skipped!("the kernel offers it");
    }
    assert!(said.contains("enable_uring"), "{said}");
    assert_eq!(fs::read_dir(dir.path().join("mnt")).unwrap().count(), 0);
}

#[test]
fn a_process_that_may_not_use_io_uring_serves_through_the_device() {
    let Some(dir) = place() else { return };
    if !offered() {
        return steadfast_testkit::skipped!("the kernel does not offer FUSE over io_uring");
    }
    let log = format!("log={}/log", dir.path().display());
    let mut python = Command::new("python3");
    python.args(["-c", REFUSED, programs::PROGRAM]);
    python.args(["mount", "-o", &log, "img", "mnt"]);
    let said = served(dir.path(), python);
    assert_eq!(said.matches(FALLEN_BACK).count(), 1, "{said}");
    assert!(said.contains("not permitted"), "{said}");
}
