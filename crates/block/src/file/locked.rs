//! An open file with the lock on it, and the meaning of a failure to get it.
//!
//! The lock goes with the descriptor until no thread uses it any more.

use crate::{DeviceError, Result};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr as retry};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// An open file and the lock on it. The lock belongs to the open file, not to the process:
/// a second open in this process is refused, too.
pub(super) struct LockedFd {
    fd: OwnedFd,
    locked: bool,
}

impl LockedFd {
    /// An open file that others may use, too.
    pub(super) fn unlocked(fd: OwnedFd) -> LockedFd {
        LockedFd { fd, locked: false }
    }

    pub(super) fn lock(fd: OwnedFd, path: &Path, shared: bool) -> Result<LockedFd> {
        let how = if shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match retry(|| rustix::fs::flock(&fd, how)) {
            Ok(()) => Ok(LockedFd { fd, locked: true }),
            Err(Errno::WOULDBLOCK) => Err(locked(path)),
            Err(errno) => {
                let what = format!("cannot be locked against other users ({errno})");
                Err(refusal(path, io::ErrorKind::Unsupported, &what))
            }
        }
    }
}

impl Drop for LockedFd {
    /// Closing alone would leave the lock to a child process that was forked meanwhile and
    /// has not yet run its program.
    fn drop(&mut self) {
        if self.locked {
            let _ = rustix::fs::flock(&self.fd, FlockOperation::Unlock);
        }
    }
}

impl AsFd for LockedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn open_error(path: &Path, errno: Errno) -> DeviceError {
    DeviceError::Open {
        path: path.display().to_string(),
        source: Arc::new(errno.into()),
    }
}

pub(super) fn refusal(path: &Path, kind: io::ErrorKind, what: &str) -> DeviceError {
    let source = Arc::new(io::Error::new(kind, what.to_owned()));
    DeviceError::Open {
        path: path.display().to_string(),
        source,
    }
}

pub(super) fn locked(path: &Path) -> DeviceError {
    DeviceError::Locked {
        path: path.display().to_string(),
    }
}
