//! The mount of the recorded tree.
//!
//! As root, or in a user namespace, the mount is made in a mount namespace of the recording thread and of the
//! program: no other process sees it, and the kernel removes it with the namespace, however the recorder ends.
//! Otherwise users mount through `fusermount3`, visible to all, and unmount at the end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sched::CloneFlags;
use rustix::mount::MountPropagationFlags;
use steadfast_fuse_wire::{Connection, Mount, MountFailure, Threads, Unmount, unmount};

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
    served: Option<Served>,
}

/// The connection with the kernel, and the threads that serve it.
struct Served {
    connection: Arc<Connection>,
    threads: Threads,
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
        let served = self.serve(server).map_err(|source| RecordError::Mount {
            path: self.path.clone(),
            source,
        })?;
        Ok(Mounted {
            place: self,
            served: Some(served),
        })
    }

    fn serve(&self, mut server: Server) -> io::Result<Served> {
        let mount = Mount {
            source: "steadfast-crash".into(),
            subtype: Some("steadfast-crash".to_owned()),
            default_permissions: true,
            // In a namespace of its own: programs that become another user still see their files.
            allow_other: self.private || rustix::process::geteuid().is_root(),
            ..Mount::default()
        };
        let device = mount.make(&self.path).map_err(why)?;
        let serve = || {
            let connection = Connection::negotiate(device, |offer| server.terms(offer))?;
            let connection = Arc::new(connection);
            let threads = Threads::start(&connection, &Arc::new(server), THREADS, "crash-serve")?;
            Ok(Served {
                connection,
                threads,
            })
        };
        serve().inspect_err(|_| {
            let _ = unmount(&self.path, Unmount::Detach);
        })
    }
}

/// A failure with what to do about it.
fn why(failure: MountFailure) -> io::Error {
    match failure {
        MountFailure::Device(e)
            if e.kind() == io::ErrorKind::NotFound && !Path::new("/dev/fuse").exists() =>
        {
            io::Error::new(
                e.kind(),
                "there is no /dev/fuse; load the kernel module 'fuse', or give the container the device",
            )
        }
        MountFailure::Device(e) if e.kind() == io::ErrorKind::PermissionDenied => io::Error::new(
            e.kind(),
            format!("{e}; this user may not open /dev/fuse: give the user the device"),
        ),
        MountFailure::Device(e) => e,
        MountFailure::Helper(e) => io::Error::new(
            e.kind(),
            format!("{e}; this user may not mount: install fusermount3"),
        ),
        MountFailure::Refused(said) => io::Error::other(said),
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
        let served = self.served.as_ref();
        served.is_none_or(|served| served.threads.have_ended())
    }

    /// Makes the kernel drop the cached attributes of an inode that it knows.
    pub(super) fn forget_attributes(&self, ino: u64) -> io::Result<()> {
        let Some(served) = &self.served else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // Before the first byte: no content.
        served.connection.invalidate(ino, -1)
    }

    /// Makes the kernel drop its cached inodes: it asks again.
    pub(super) fn forget(&self, known: &[u64]) {
        let Some(served) = &self.served else {
            return;
        };
        for ino in known {
            // An inode that the kernel does not know is no error.
            let _ = served.connection.invalidate(*ino, 0);
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(served) = self.served.take() else {
            return Ok(());
        };
        unmount(&self.place.path, Unmount::Detach)?;
        // The threads end when the kernel releases the mount. If a process elsewhere holds it, they are left alone.
        let until = Instant::now() + END_LIMIT;
        while !served.threads.have_ended() {
            if Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        served.threads.join()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
