//! The mount of the recorded tree.
//!
//! As root, or in a user namespace, the mount is made in a mount namespace of the recording thread and of the
//! program: no other process sees it, and the kernel removes it with the namespace, however the recorder ends.
//! Otherwise users mount through `fusermount3`, visible to all, and unmount at the end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use nix::sched::CloneFlags;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use super::RecordError;
use super::reply::Server;

/// Threads that serve: readers need not wait for one another.
pub(super) const THREADS: usize = 4;
/// Time limit of the wait for the end of the threads.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A directory to mount on.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Whether it was made here, and is to be removed.
    ours: bool,
    /// Whether it has a mount namespace of its own.
    private: bool,
}

/// A mount that is served.
pub(super) struct Mounted {
    place: Place,
    session: Option<BackgroundSession>,
}

impl Place {
    pub(super) fn prepare(at: Option<&Path>) -> Result<Place, RecordError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let wrong = |path: &Path, source| RecordError::Mount {
            path: path.to_owned(),
            source,
        };
        // Not permitted to users outside of a user namespace of theirs.
        let private = nix::sched::unshare(CloneFlags::CLONE_NEWNS).is_ok();
        if private {
            let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", flags)
                .map_err(|e| RecordError::System(format!("a mount namespace: {e}")))?;
        }
        let (path, ours) = match at {
            Some(at) if !private => {
                return Err(RecordError::NoNamespace {
                    path: at.to_owned(),
                });
            }
            Some(at) => {
                let path = at.canonicalize().map_err(|e| wrong(at, e))?;
                if !path.is_dir() {
                    return Err(wrong(&path, io::ErrorKind::NotADirectory.into()));
                }
                if path == Path::new("/") {
                    let what = "the root directory cannot be the place of a recording";
                    return Err(wrong(
                        &path,
                        io::Error::new(io::ErrorKind::InvalidInput, what),
                    ));
                }
                (path, false)
            }
            None => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("steadfast-crash.{}.{number}", std::process::id());
                let path = std::env::temp_dir().join(name);
                std::fs::create_dir(&path).map_err(|e| wrong(&path, e))?;
                (path, true)
            }
        };
        Ok(Place {
            path,
            ours,
            private,
        })
    }

    /// In the mount namespace of this process.
    pub(super) fn seen_by_all(at: &Path) -> Result<Place, RecordError> {
        let wrong = |source| RecordError::Mount {
            path: at.to_owned(),
            source,
        };
        // The last part may be a mount that does not answer any more.
        let above = at.parent().filter(|p| !p.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        let name = at
            .file_name()
            .ok_or_else(|| wrong(io::ErrorKind::InvalidInput.into()))?;
        let path = above.canonicalize().map_err(wrong)?.join(name);
        if !std::fs::metadata(&path).map_err(wrong)?.is_dir() {
            return Err(wrong(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Place {
            path,
            ours: false,
            private: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no other process sees a mount here.
    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// Mounts, and serves on threads of their own.
    pub(super) fn mount(self, server: Server) -> Result<Mounted, RecordError> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("steadfast-crash".to_owned()),
            MountOption::Subtype("steadfast-crash".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        // In a namespace of its own: programs that become another user still see their files.
        config.acl = match self.private || rustix::process::geteuid().is_root() {
            true => SessionACL::All,
            false => SessionACL::Owner,
        };
        config.n_threads = Some(THREADS);
        let served = Session::new(server, &self.path, &config).and_then(Session::spawn);
        match served {
            Ok(session) => Ok(Mounted {
                place: self,
                session: Some(session),
            }),
            Err(e) => {
                let why = match e.kind() {
                    io::ErrorKind::NotFound if !Path::new("/dev/fuse").exists() => io::Error::new(
                        e.kind(),
                        "there is no /dev/fuse; load the kernel module 'fuse', or give the container the device",
                    ),
                    io::ErrorKind::PermissionDenied => io::Error::new(
                        e.kind(),
                        format!(
                            "{e}; this user may not open /dev/fuse, or not mount: give the user the device, or install fusermount3"
                        ),
                    ),
                    _ => e,
                };
                Err(RecordError::Mount {
                    path: self.path.clone(),
                    source: why,
                })
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

impl Mounted {
    pub(super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// Unmounts; a mount that is still in use is detached at once.
    pub(super) fn unmount(mut self) -> Result<(), RecordError> {
        self.end().map_err(|source| RecordError::Mount {
            path: self.place.path.clone(),
            source,
        })
    }

    /// Whether the kernel has released it.
    pub(super) fn is_gone(&self) -> bool {
        let session = self.session.as_ref();
        session.is_none_or(|s| s.guard.is_finished())
    }

    /// Makes the kernel drop the cached attributes of an inode that it knows.
    pub(super) fn forget_attributes(&self, ino: u64) -> io::Result<()> {
        let Some(session) = &self.session else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // Before the first byte: no content.
        session.notifier().inval_inode(fuser::INodeNo(ino), -1, 0)
    }

    /// Makes the kernel drop its cached inodes: it asks again.
    pub(super) fn forget(&self, known: &[u64]) {
        let Some(session) = &self.session else {
            return;
        };
        let notifier = session.notifier();
        for ino in known {
            // An inode that the kernel does not know is no error.
            let _ = notifier.inval_inode(fuser::INodeNo(*ino), 0, 0);
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let path = &self.place.path;
        let ended_before = session.guard.is_finished();
        if self.place.private || rustix::process::geteuid().is_root() {
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            rustix::mount::unmount(path, flags)?;
        } else {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-z", "--"]).arg(path);
            let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
            if !quiet.status()?.success() {
                return Err(io::Error::other("fusermount3 could not unmount it"));
            }
        }
        // The threads end when the kernel releases the mount. If a process elsewhere holds it, they are left alone.
        let until = Instant::now() + END_LIMIT;
        while !session.guard.is_finished() {
            if Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match session.join() {
            // Seen once in some dozens of runs, after a workload that ended well: a reader of the device got this
            // instead of ENODEV. The cause is not known; the mount is gone, as wanted.
            Err(e) if !ended_before && e.kind() == io::ErrorKind::ConnectionAborted => Ok(()),
            ended => ended,
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
