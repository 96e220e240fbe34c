//! Mounts of real file systems: a mount namespace of the calling thread, so that none is left, however the program
//! ends; disks on a [`Shelf`]; loop devices over them.

use super::RealError;
use super::kinds::Kind;
use super::shelf::{Handle, Shelf};
use nix::sched::CloneFlags;
use rustix::fs::Mode;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use steadfast_fuse_wire::Threads;
use steadfast_model::data::FileData;

/// Time limit of the wait for a busy mount.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// The place of one thread.
pub(super) struct Stage {
    place: tempfile::TempDir,
    shelf: Shelf,
    serving: Option<Threads>,
    mounted: u32,
}

/// A mounted file system; unmounted when it is dropped.
pub(super) struct Mounted {
    path: PathBuf,
    up: bool,
}

/// The reason why real file systems cannot be mounted here; `None` if they can.
#[must_use]
pub fn unable(fs: Kind) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a real file system needs root".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return Some(format!("there is no {device}"));
        }
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let name = fs.name();
    if !known.split_whitespace().any(|w| w == name) {
        // The kernel loads a module when it is asked to mount; asking for it is cheaper here.
        let mut load = Command::new("modprobe");
        let loaded = load.arg(name).stderr(Stdio::null()).status();
        if !loaded.is_ok_and(|s| s.success()) {
            return Some(format!("this kernel has no {name}"));
        }
    }
    let mkfs = fs.mkfs();
    let there = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
    if !there.iter().any(|dir| Path::new(dir).join(mkfs).exists()) {
        return Some(format!("there is no {mkfs}; install {}", fs.package()));
    }
    None
}

impl Stage {
    /// For a thread of its own: it gets its own mount namespace and an umask of 0.
    pub(super) fn new() -> Result<Stage, RealError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source: io::Error| RealError::System { what, source }
        };
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        nix::sched::unshare(CloneFlags::CLONE_NEWNS)
            .map_err(io::Error::from)
            .and_then(|()| Ok(rustix::mount::mount_change("/", private)?))
            .map_err(failed("a mount namespace"))?;
        // The umask was unshared with the namespace: it is this thread's alone.
        rustix::process::umask(Mode::empty());
        let place = tempfile::Builder::new()
            .prefix("steadfast-crash-real.")
            .tempdir()
            .map_err(failed("a directory for temporary files"))?;
        let disks = place.path().join("disks");
        std::fs::create_dir(&disks).map_err(failed("a directory for disks"))?;
        let shelf = Shelf::default();
        let serving = shelf
            .serve(&disks)
            .map_err(failed("serving disks by FUSE"))?;
        Ok(Stage {
            place,
            shelf,
            serving: Some(serving),
            mounted: 0,
        })
    }

    /// A new disk.
    pub(super) fn disk(&self, image: FileData, record: bool) -> Handle {
        self.shelf.add(image, record)
    }

    /// Mounts a disk; the file system recovers if it has to.
    pub(super) fn mount(
        &mut self,
        disk: &Handle,
        fs: Kind,
        options: &str,
    ) -> Result<Mounted, RealError> {
        self.mounted += 1;
        let path = self.place.path().join(format!("mount{}", self.mounted));
        let failed = |what: String| move |source: io::Error| RealError::System { what, source };
        std::fs::create_dir(&path).map_err(failed(path.display().to_string()))?;
        let file = self.place.path().join("disks").join(&disk.name);
        let device = attach(&file).map_err(failed("a loop device".to_owned()))?;
        let all = fs.mount_options(options);
        let text = CString::new(all.as_str()).unwrap_or_default();
        let flags = MountFlags::NOATIME | MountFlags::NODEV | MountFlags::NOSUID;
        let mounted = rustix::mount::mount(&device, &path, fs.name(), flags, text.as_c_str());
        // A device in use is detached when the file system is unmounted; else at once.
        let detached = detach(&device);
        if let Err(errno) = mounted {
            let _ = std::fs::remove_dir(&path);
            return Err(RealError::Mount {
                fs: fs.name(),
                options: all,
                source: errno.into(),
            });
        }
        let mounted = Mounted { path, up: true };
        detached.map_err(failed(format!("detaching {device}")))?;
        Ok(mounted)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let disks = self.place.path().join("disks");
        let _ = rustix::mount::unmount(&disks, UnmountFlags::DETACH);
        if let Some(serving) = self.serving.take() {
            let until = Instant::now() + BUSY_LIMIT;
            while !serving.have_ended() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if serving.have_ended() {
                let _ = serving.join();
            }
        }
    }
}

fn attach(file: &Path) -> io::Result<String> {
    let mut command = Command::new("losetup");
    let output = command.args(["--find", "--show"]).arg(file).output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() && text.starts_with("/dev/") {
        true => Ok(text),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

fn detach(device: &str) -> io::Result<()> {
    let status = Command::new("losetup")
        .args(["--detach", device])
        .stderr(Stdio::null())
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other("losetup --detach failed")),
    }
}

impl Mounted {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts, and waits until the disk is no longer used.
    pub(super) fn unmount(mut self) -> Result<(), RealError> {
        self.end().map_err(|source| RealError::System {
            what: format!("unmounting {}", self.path.display()),
            source,
        })
    }

    fn end(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.up) {
            return Ok(());
        }
        let until = Instant::now() + BUSY_LIMIT;
        loop {
            match rustix::mount::unmount(&self.path, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(rustix::io::Errno::BUSY) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(errno) => {
                    let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
                    return Err(errno.into());
                }
            }
        }
        std::fs::remove_dir(&self.path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
