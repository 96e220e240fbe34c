//! Mounts and unmounts: `mount(2)` for root, `fusermount3` for others.
//!
//! A path is mounted on and unmounted as it is given: the caller resolves it, and knows whether its mount is still there.

use std::ffi::{CString, OsString};
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// A mount to make. By default it is read-write, for its owner alone, without devices and set-id programs.
#[derive(Clone, Debug, Default)]
pub struct Mount {
    /// Its source, as the kernel's list of mounts shows it.
    pub source: OsString,
    /// The type is `fuse.NAME` then, else `fuse`. Letters, digits, `.`, `_`, `-` and `+`.
    pub subtype: Option<String>,
    /// Other users get in.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// Nothing is written.
    pub read_only: bool,
    /// Device files are devices.
    pub devices: bool,
    /// Set-id bits count.
    pub set_id: bool,
    /// Programs are not executed.
    pub no_exec: bool,
    /// Access times change by reading.
    pub access_times: bool,
    /// Except those of directories.
    pub no_dir_access_times: bool,
    /// Changes of content are durable at once.
    pub sync: bool,
    /// Changes of names are durable at once.
    pub dir_sync: bool,
    /// Symbolic links are not followed.
    pub no_symlinks: bool,
}

/// Reason why there is no mount.
#[derive(Debug)]
pub enum MountFailure {
    /// The kernel's FUSE device cannot be opened.
    Device(io::Error),
    /// `fusermount3`, which mounts for users other than root, could not be run.
    Helper(io::Error),
    /// The kernel or `fusermount3` refused, in its words.
    Refused(String),
}

impl Mount {
    /// Mounts at `path`; returns the device that requests arrive at.
    ///
    /// # Errors
    /// See [`MountFailure`]; nothing is mounted then.
    pub fn make(&self, path: &Path) -> Result<OwnedFd, MountFailure> {
        match self.directly(path)? {
            Some(device) => Ok(device),
            None => self.by_helper(path),
        }
    }

    /// `mount(2)`; nothing if this user may not.
    fn directly(&self, path: &Path) -> Result<Option<OwnedFd>, MountFailure> {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && uid != 0 => return Ok(None),
            Err(e) => return Err(MountFailure::Device(e)),
        };
        let mut data = format!(
            "fd={},rootmode=40000,user_id={uid},group_id={gid}",
            device.as_raw_fd()
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        if self.default_permissions {
            data.push_str(",default_permissions");
        }
        let refused = |reason: String| MountFailure::Refused(reason);
        let data = CString::new(data).map_err(|e| refused(e.to_string()))?;
        let fs_type = match &self.subtype {
            None => "fuse".to_owned(),
            Some(name) => format!("fuse.{name}"),
        };
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, !self.devices);
        flags.set(MountFlags::NOSUID, !self.set_id);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags.set(MountFlags::NOATIME, !self.access_times);
        flags.set(MountFlags::NODIRATIME, self.no_dir_access_times);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dir_sync);
        flags.set(MountFlags::NOSYMFOLLOW, self.no_symlinks);
        match rustix::mount::mount(&self.source, path, fs_type, flags, Some(data.as_c_str())) {
            Ok(()) => Ok(Some(device.into())),
            Err(Errno::PERM) if uid != 0 => Ok(None),
            Err(Errno::NODEV) => Err(MountFailure::Device(Errno::NODEV.into())),
            Err(e) => Err(refused(e.to_string())),
        }
    }

    /// `fusermount3` opens the device, mounts, and hands the device over on a socket.
    fn by_helper(&self, path: &Path) -> Result<OwnedFd, MountFailure> {
        let (ours, theirs) = UnixStream::pair().map_err(MountFailure::Helper)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
            .map_err(|e| MountFailure::Helper(e.into()))?;
        let child = Command::new("fusermount3")
            .arg("-o")
            .arg(self.words().join(","))
            .arg("--")
            .arg(path)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(MountFailure::Helper)?;
        drop(theirs);
        let received = receive_fd(&ours);
        let output = child.wait_with_output().map_err(MountFailure::Helper)?;
        match received {
            Ok(device) if output.status.success() => Ok(device),
            received => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(MountFailure::Refused(match received {
                    Err(e) if said.is_empty() => e.to_string(),
                    _ => said,
                }))
            }
        }
    }

    /// The helper's options.
    fn words(&self) -> Vec<String> {
        // Commas separate options: the helper takes `\,` for a comma of the name.
        let source = self.source.to_string_lossy();
        let source = source.replace('\\', "\\\\").replace(',', "\\,");
        let mut words = vec![format!("fsname={source}")];
        words.extend(self.subtype.iter().map(|name| format!("subtype={name}")));
        let switches = [
            (self.read_only, "ro"),
            (self.no_exec, "noexec"),
            (!self.access_times, "noatime"),
            (self.no_dir_access_times, "nodiratime"),
            (self.sync, "sync"),
            (self.dir_sync, "dirsync"),
            (self.no_symlinks, "nosymfollow"),
            (self.devices, "dev"),
            (self.set_id, "suid"),
            (self.allow_other, "allow_other"),
            (self.default_permissions, "default_permissions"),
        ];
        let on = switches.into_iter().filter(|(on, _)| *on);
        words.extend(on.map(|(_, word)| word.to_owned()));
        words
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
