//! Making and undoing the mount itself: checks of the mount point, and a mount that is only undone while the kernel lists it at its path.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use steadfast_fuse_wire::{Mount, MountFailure};
pub use steadfast_fuse_wire::{Unmount, unmount};

use crate::mountinfo;
use crate::options::MountOptions;

/// Error of a mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("mount point {}: {source}", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The mount point is not there.
    #[error("mount point {} does not exist; make it first (mkdir)", path.display())]
    Absent {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", path.display())]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// Something is mounted there.
    #[error("mount point {} is in use: {} ({fs_type}) is mounted there", path.display(), holder.display())]
    InUse {
        /// The mount point.
        path: PathBuf,
        /// Source of the mount that is there.
        holder: PathBuf,
        /// Its type.
        fs_type: String,
    },
    /// The server of a mount that is still there has gone.
    #[error(
        "mount point {path} is held by a mount whose server is gone; run 'steadfast umount {path}' first",
        path = path.display()
    )]
    Dead {
        /// The mount point.
        path: PathBuf,
    },
    /// The subtype cannot be shown in the kernel's list of mounts.
    #[error(
        "{name:?} is no subtype of a mount; it has 1 to {} letters, digits, '.', '_', '-' and '+'",
        crate::options::SUBTYPE_BYTES_MAX
    )]
    Subtype {
        /// The name.
        name: String,
    },
    /// The kernel's FUSE device cannot be opened.
    #[error(
        "/dev/fuse: {0}; is the kernel module 'fuse' loaded, and may this user open the device?"
    )]
    Device(io::Error),
    /// `fusermount3`, which mounts for users other than root, could not be run.
    #[error("fusermount3: {0}; install the package 'fuse3', or mount as root")]
    Helper(io::Error),
    /// The kernel or `fusermount3` refused.
    #[error("mounting at {} failed: {reason}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// Reason, in the words of the program that refused.
        reason: String,
    },
    /// Requests were to come over io_uring, and cannot.
    #[error("{0}")]
    NoIoUring(io::Error),
    /// The first exchange with the kernel failed.
    #[error("the kernel did not accept the server: {0}")]
    Handshake(io::Error),
}

/// A mount that has been made.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// Absolute, free of symbolic links.
    pub(crate) path: PathBuf,
    /// Type as the kernel shows it.
    fs_type: String,
    /// The kernel's number for it; unknown if `/proc` does not show it.
    pub(crate) id: Option<u64>,
}

/// Checks that `dir` can be mounted on (if `over`, even where something is mounted);
/// returns its path, absolute and free of symbolic links.
///
/// # Errors
/// What stands in the way.
pub fn check_mount_point(dir: &Path, over: bool) -> Result<PathBuf, MountError> {
    let wrong = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MountError::Absent {
            path: dir.to_owned(),
        },
        _ => MountError::MountPoint {
            path: dir.to_owned(),
            source,
        },
    };
    let path = mountinfo::resolve(dir).map_err(wrong)?;
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(e) if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return Err(MountError::Dead { path });
        }
        Err(source) => return Err(wrong(source)),
    };
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory { path });
    }
    if !over && let Ok(Some(there)) = mountinfo::mount_at(&path) {
        return Err(MountError::InUse {
            path,
            holder: there.source,
            fs_type: there.fs_type,
        });
    }
    Ok(path)
}

/// Mounts at `path` (checked); returns the device that requests arrive at.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted), MountError> {
    let fs_type = options.fs_type()?;
    let mount = Mount {
        source: options.source.clone().into(),
        subtype: options.subtype.clone(),
        allow_other: options.allow_other,
        default_permissions: options.kernel_checks(),
        read_only: options.read_only,
        devices: options.devices,
        set_id: options.set_id,
        no_exec: options.no_exec,
        access_times: options.relatime,
        no_dir_access_times: options.no_dir_atime,
        sync: options.sync,
        dir_sync: options.dir_sync,
        no_symlinks: options.no_symlinks,
    };
    let device = mount.make(path).map_err(|failure| match failure {
        MountFailure::Device(e) => MountError::Device(e),
        MountFailure::Helper(e) => MountError::Helper(e),
        MountFailure::Refused(reason) => MountError::Refused {
            path: path.to_owned(),
            reason,
        },
    })?;
    let id = mountinfo::mount_at(path)
        .ok()
        .flatten()
        .filter(|m| m.fs_type == fs_type)
        .map(|m| m.id);
    Ok((
        device,
        Mounted {
            path: path.to_owned(),
            fs_type,
            id,
        },
    ))
}

impl Mounted {
    /// Whether this very mount is still the topmost at its path.
    pub(crate) fn listed(&self) -> bool {
        match (self.id, mountinfo::mount_at(&self.path)) {
            (Some(id), Ok(there)) => there.is_some_and(|m| m.id == id),
            (None, Ok(there)) => there.is_some_and(|m| m.fs_type == self.fs_type),
            (_, Err(_)) => false,
        }
    }

    /// Unmounts this mount; nothing to do if it has gone.
    pub(crate) fn unmount(&self, how: Unmount) -> io::Result<()> {
        if self.listed() {
            unmount(&self.path, how)
        } else {
            Ok(())
        }
    }
}
