//! Making and undoing the mount itself: `mount(2)` for root, `fusermount3` for others.
//!
//! The protocol crate could mount, too, but it unmounts *by path* once more when its
//! session ends, which would hit a mount below or a later one. Here a mount is only
//! undone while the kernel lists it at its path.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

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
    let fd = match mount_directly(path, &fs_type, options)? {
        Some(fd) => fd,
        None => mount_by_helper(path, options)?,
    };
    let id = mountinfo::mount_at(path)
        .ok()
        .flatten()
        .filter(|m| m.fs_type == fs_type)
        .map(|m| m.id);
    Ok((
        fd,
        Mounted {
            path: path.to_owned(),
            fs_type,
            id,
        },
    ))
}

/// `mount(2)`; nothing if this user may not.
fn mount_directly(
    path: &Path,
    fs_type: &str,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, MountError> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let device: File = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && uid != 0 => return Ok(None),
        Err(e) => return Err(MountError::Device(e)),
    };
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid}",
        device.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.kernel_checks() {
        data.push_str(",default_permissions");
    }
    let refused = |reason: String| MountError::Refused {
        path: path.to_owned(),
        reason,
    };
    let data = CString::new(data).map_err(|e| refused(e.to_string()))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOSUID, !options.set_id);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NOATIME, !options.relatime);
    flags.set(MountFlags::NODIRATIME, options.no_dir_atime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags.set(MountFlags::DIRSYNC, options.dir_sync);
    flags.set(MountFlags::NOSYMFOLLOW, options.no_symlinks);
    match rustix::mount::mount(&options.source, path, fs_type, flags, Some(data.as_c_str())) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) if uid != 0 => Ok(None),
        Err(Errno::NODEV) => Err(MountError::Device(Errno::NODEV.into())),
        Err(e) => Err(refused(e.to_string())),
    }
}

/// `fusermount3` opens the device, mounts, and hands the device over on a socket.
fn mount_by_helper(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Helper)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
        .map_err(|e| MountError::Helper(e.into()))?;
    // Commas separate options: the helper takes `\,` for a comma of the name.
    let source = options
        .source
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    let mut words = vec![format!("fsname={source}")];
    words.extend(options.subtype.iter().map(|name| format!("subtype={name}")));
    let mut also = |on: bool, word: &str| {
        if on {
            words.push(word.to_owned());
        }
    };
    also(options.read_only, "ro");
    also(options.no_exec, "noexec");
    also(!options.relatime, "noatime");
    also(options.no_dir_atime, "nodiratime");
    also(options.sync, "sync");
    also(options.dir_sync, "dirsync");
    also(options.no_symlinks, "nosymfollow");
    also(options.devices, "dev");
    also(options.set_id, "suid");
    also(options.allow_other, "allow_other");
    also(options.kernel_checks(), "default_permissions");
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(words.join(","))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::Helper)?;
    drop(theirs);
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(MountError::Helper)?;
    match received {
        Ok(fd) if output.status.success() => Ok(fd),
        received => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let reason = match received {
                Err(e) if said.is_empty() => e.to_string(),
                _ => said,
            };
            Err(MountError::Refused {
                path: path.to_owned(),
                reason,
            })
        }
    }
}

/// Takes one descriptor from the socket.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor came"))
}

/// Mode of an unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmount {
    /// Only if no process uses the mount.
    IfIdle,
    /// Out of the tree at once; a process that uses it may go on until done.
    Detach,
    /// As [`Unmount::IfIdle`], after every request that waits for the server has failed. Needs root.
    Force,
}

/// Unmounts the file system at `path`, as root directly, else through `fusermount3`.
///
/// # Errors
/// `ResourceBusy` if it is in use and `how` is [`Unmount::IfIdle`]; else the system's error.
pub fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::IfIdle => UnmountFlags::NOFOLLOW,
        Unmount::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => unmount_by_helper(path, how),
        done => done.map_err(io::Error::from),
    }
}

fn unmount_by_helper(path: &Path, how: Unmount) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if how == Unmount::Detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if said.contains("busy") {
        io::ErrorKind::ResourceBusy
    } else {
        io::ErrorKind::PermissionDenied
    };
    Err(io::Error::new(kind, said))
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
