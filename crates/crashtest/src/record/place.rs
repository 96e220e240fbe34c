//! Where the recorded tree is mounted.
//!
//! As root, or in a user namespace, the mount is made in a mount namespace of the recording thread and of the program: no
//! other process sees it, and the kernel undoes it with the namespace, whatever ends the recorder. Elsewhere users mount
//! through `fusermount3`, for all to see, and unmount at the end.

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
/// How long the end of the threads is waited for.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A directory to mount on.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// Made by us, and removed.
    ours: bool,
    /// In a mount namespace of its own.
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
        // The last part may be a mount that answers no longer.
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

    /// Unmounts; if somebody still uses the mount, it goes out of the tree at once.
    pub(super) fn unmount(mut self) -> Result<(), RecordError> {
        self.end().map_err(|source| RecordError::Mount {
            path: self.place.path.clone(),
            source,
        })
    }

    /// Whether the kernel has let go of it.
    pub(super) fn is_gone(&self) -> bool {
        let session = self.session.as_ref();
        session.is_none_or(|s| s.guard.is_finished())
    }

    /// Has the kernel forget what it remembers of inodes: it asks again.
    pub(super) fn forget(&self, known: &[u64]) {
        let Some(session) = &self.session else {
            return;
        };
        let notifier = session.notifier();
        for ino in known {
            // One that the kernel does not know is no error to mind.
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
        // The threads end when the kernel lets go. Should a process elsewhere hold on to the mount, they are left alone.
        let until = Instant::now() + END_LIMIT;
        while !session.guard.is_finished() {
            if Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match session.join() {
            // Seen once in some dozens of runs, after a workload that ended well: a reader of the device got this in the place of
            // ENODEV. Why is not known; the mount is gone, which is what was asked for.
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
