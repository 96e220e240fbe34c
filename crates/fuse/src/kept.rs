//! Pages that the kernel caches of a mount with a write-back cache, and how a program makes the kernel send them.
//!
//! syncfs(2) makes the kernel send all its cached pages, and returns before they have arrived: on a FUSE mount, only fsync(2) of a
//! file waits for that. But the kernel reports the number of requests of a mount that wait or are being served
//! (`/sys/fs/fuse/connections`). When there are none, everything sent before has arrived.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::control::XATTR_WRITE_BACK;

/// Longest wait for a moment without requests.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause from one look to the next.
const PAUSE: Duration = Duration::from_micros(200);

/// The outcome for the kernel's cached pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// All that was written before has arrived.
    All,
    /// All that was written before is sent, and some of it may be under way, of files that are open, for a reason that is not known.
    PerhapsUnderWay(String),
}

/// Whether the kernel keeps programs' writes to the volume mounted at (or above) `path`, and sends them later.
///
/// # Errors
/// As for [`sync`](crate::sync).
pub fn writes_back(path: &Path) -> io::Result<bool> {
    let mut value = [0u8; 8];
    let len = rustix::fs::getxattr(path, XATTR_WRITE_BACK, &mut value)?;
    Ok(value[..len.min(value.len())] == *b"on")
}

/// Makes the kernel send its cached pages of open files of the volume mounted at (or above) `path`, and waits until they have
/// arrived. They are not durable then: [`sync`](crate::sync) makes them so. Without a write-back cache there is nothing to do.
///
/// # Errors
/// The system's, of opening `path` and of syncfs(2): a write that failed since it was last reported may be among them.
pub fn send_kept(path: &Path) -> io::Result<Sent> {
    // A server of an earlier version says nothing of it, and has no such cache.
    if !writes_back(path).unwrap_or(false) {
        return Ok(Sent::All);
    }
    let there = File::open(path)?;
    rustix::fs::syncfs(&there)?;
    let mount = rustix::fs::minor(rustix::fs::fstat(&there)?.st_dev);
    let counts = match directory_of(mount) {
        Ok(counts) => counts,
        Err(e) => {
            return Ok(Sent::PerhapsUnderWay(format!(
                "the kernel's count of requests (/sys/fs/fuse/connections/{mount}/waiting) cannot be read: {e}"
            )));
        }
    };
    let begun = Instant::now();
    while begun.elapsed() < WAIT_MAX {
        if waiting(&counts)? == 0 {
            return Ok(Sent::All);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Sent::PerhapsUnderWay(format!(
        "other programs have used the mount without a pause for {} s",
        WAIT_MAX.as_secs()
    )))
}

/// Opens the directory that has the kernel's count of requests of a mount, where its file system is mounted, or by mounting that
/// nowhere, which root alone may.
fn directory_of(mount: u32) -> rustix::io::Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let usual = format!("/sys/fs/fuse/connections/{mount}");
    rustix::fs::open(&*usual, how, Mode::empty()).or_else(|usual| {
        let root = control_file_system().map_err(|_| usual)?;
        rustix::fs::openat(&root, &*mount.to_string(), how, Mode::empty())
    })
}

fn control_file_system() -> rustix::io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&fs)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Requests that wait or are being served. A file that was opened once shows the same count for ever.
fn waiting(directory: &OwnedFd) -> io::Result<u64> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(
        directory,
        "waiting",
        how,
        Mode::empty(),
    )?);
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let number = text.trim().parse();
    number.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a count of requests"))
}
