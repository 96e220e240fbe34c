//! A mount and the threads that serve it, from the first request to the last.
//!
//! Invariants: a [`Session`] that is dropped leaves no mount; when it has ended,
//! no request is running, none will, and the kernel's references are released, so that
//! the file system can be closed. The end may come from outside (`umount`, the kernel's
//! connection aborted) or through [`Session::shutdown`].

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use steadfast_fuse_wire::{Connection, RINGS_OFF, Rings, Threads};
use steadfast_vfs::FileSystem;

use crate::convert::NodeNumbers;
use crate::counters::Counters;
use crate::dispatch::Front;
use crate::gate::Gate;
use crate::identity::{Identity, Resolver};
use crate::kept;
use crate::mount::{self, MountError, Mounted, Unmount};
use crate::nodes::Nodes;
use crate::options::{MountOptions, THREADS_MAX};
use crate::readers::Readers;
use crate::server::{Server, WRITE_BYTES_MAX};
use crate::shared::{Policy, Shared};
use crate::trace::Trace;

/// End of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request has been answered and the kernel has let go.
    Clean,
    /// The mount is out of the tree, but programs still hold files of it; they get
    /// errors from now on.
    Abandoned,
    /// A request panicked; everything after it was refused. The file system's state in
    /// memory cannot be trusted: do not commit it, let recovery decide.
    Failed(String),
    /// The conversation with the kernel broke.
    Broken(String),
}

#[derive(Default)]
struct Finish {
    ended: Mutex<Option<Result<(), String>>>,
    changed: Condvar,
}

impl Finish {
    fn ended(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the threads have ended, at most so long.
    fn wait(&self, limit: Option<Duration>) -> Option<Result<(), String>> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut ended = self.ended();
        loop {
            if ended.is_some() {
                return ended.clone();
            }
            ended = match until {
                None => self
                    .changed
                    .wait(ended)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let woken = self.changed.wait_timeout(ended, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Announces the end of the threads, however it comes about.
struct Announce(Arc<Finish>);

impl Announce {
    fn with(&self, result: Result<(), String>) {
        self.0.ended().get_or_insert(result);
        self.0.changed.notify_all();
    }
}

impl Drop for Announce {
    fn drop(&mut self) {
        self.with(Err("a protocol thread panicked".to_owned()));
    }
}

/// Callback at the end of a session.
type EndCallback = Box<dyn FnOnce(&Ended) + Send>;

/// A served mount.
pub struct Session {
    mounted: Arc<Mounted>,
    shared: Arc<Shared>,
    readers: Arc<Readers>,
    through_device: Option<String>,
    write_back: bool,
    finish: Arc<Finish>,
    threads: Option<JoinHandle<()>>,
    on_end: Option<EndCallback>,
}

/// Unmounts a session from another thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mounted: Arc<Mounted>,
}

impl Unmounter {
    /// Unmounts; the session then ends. Nothing to do if the mount has gone.
    ///
    /// # Errors
    /// `ResourceBusy` if it is in use and `how` is [`Unmount::IfIdle`].
    pub fn unmount(&self, how: Unmount) -> io::Result<()> {
        self.mounted.unmount(how)
    }
}

/// Tells the kernel that others have changed the file system.
#[derive(Clone)]
pub struct Invalidator {
    shared: Arc<Shared>,
}

impl Invalidator {
    /// Has the kernel forget contents, listings and attributes of all inodes that it knows. Names are not forgotten: the mount's
    /// [`entry_timeout`](MountOptions::entry_timeout) is to be zero. O(inodes that the kernel knows). Not from a call of the file
    /// system: the kernel waits for calls in progress.
    pub fn invalidate(&self) {
        let numbers = NodeNumbers::new(self.shared.fs.root());
        let root = std::iter::once(self.shared.fs.root());
        for ino in root.chain(self.shared.nodes.known()) {
            self.shared.content_changed(numbers.node(ino));
        }
    }
}

/// Waits for the end of a session from another thread.
#[derive(Clone)]
pub struct Watch {
    finish: Arc<Finish>,
}

impl Watch {
    /// Waits until the kernel has let go of the mount.
    pub fn wait(&self) {
        let _ = self.finish.wait(None);
    }
}

/// Mounts `fs` at `dir` and serves it on threads of its own. When this returns, the
/// mount answers.
///
/// # Errors
/// If the mount point cannot be used or the kernel refuses; nothing is left mounted.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    let path = mount::check_mount_point(dir, options.over)?;
    let root = fs.root();
    let threads = options.threads.clamp(1, THREADS_MAX);
    let shared = Arc::new(Shared {
        fs,
        gate: Gate::default(),
        nodes: Nodes::new(root),
        log: options.log.clone(),
        connection: OnceLock::new(),
    });
    let readers = Readers::new(threads, options.poll);
    // The last requests, which no process waits for, may wait for the end of a freeze.
    let frozen = Arc::clone(&shared);
    readers.on_leave(move || {
        frozen.fs.thaw();
    });
    // Only the owner is let in without `allow_other`; the superuser needs no check at open.
    let superuser = rustix::process::geteuid().is_root();
    let server = Arc::new(Server {
        shared: Arc::clone(&shared),
        numbers: NodeNumbers::new(root),
        identity: Identity::new(
            options.kernel_checks(),
            options.relatime,
            Resolver::new(Arc::clone(&shared), options.stream_environment, threads > 1),
        ),
        policy: Policy {
            entry_timeout: options.entry_timeout,
            attr_timeout: options.attr_timeout,
            direct: AtomicBool::new(false),
            acl: AtomicBool::new(options.acl.unwrap_or(options.kernel_checks())),
            write_back: AtomicBool::new(options.write_back),
            io_uring: AtomicBool::new(false),
            stateless_open: AtomicBool::new(
                (options.kernel_checks() || superuser) && !options.relatime,
            ),
            relatime: options.relatime,
            no_dir_atime: options.no_dir_atime,
            sync: options.sync,
            dir_sync: options.dir_sync,
            upper_layer: options.upper_layer,
        },
        readers: Arc::clone(&readers),
        counters: Counters::default(),
        trace: options.trace.clone().map(Trace::new),
        frozen_until: Mutex::new(None),
    });
    let front = |in_place| {
        Arc::new(Front {
            server: Arc::clone(&server),
            in_place,
        })
    };
    let (device, mounted) = mount::mount(&path, options)?;
    let mut through_device = None;
    let start = || -> Result<(Arc<Finish>, JoinHandle<()>), MountError> {
        let rings = match options.io_uring {
            Some(false) => None,
            _ => Rings::new(&device, threads, WRITE_BYTES_MAX as usize)
                .map_err(|e| through_device = Some(e))
                .ok(),
        };
        server
            .policy
            .io_uring
            .store(rings.is_some(), Ordering::Relaxed);
        insist(options, &mut through_device)?;
        let connection = Connection::negotiate(device, |offer| Ok(server.terms(offer)))
            .map_err(MountError::Handshake)?;
        let connection = Arc::new(connection);
        let _ = shared.connection.set(Arc::clone(&connection));
        match rings {
            Some(rings) if server.policy.io_uring() => {
                rings.start(&front(true)).map_err(MountError::Handshake)?;
            }
            Some(_) => through_device = Some(io::Error::other(RINGS_OFF)),
            None => {}
        }
        insist(options, &mut through_device)?;
        let finish = Arc::new(Finish::default());
        let announce = Announce(Arc::clone(&finish));
        let serving = Threads::start(&connection, &front(false), threads, "fuse")
            .map_err(MountError::Handshake)?;
        let handle = thread::Builder::new()
            .name("fuse-session".to_owned())
            .spawn(move || announce.with(serving.join().map_err(|e| e.to_string())))
            .map_err(MountError::Handshake)?;
        Ok((finish, handle))
    };
    match start() {
        Ok((finish, handle)) => Ok(Session {
            mounted: Arc::new(mounted),
            shared,
            readers,
            through_device: through_device.map(|why| why.to_string()),
            write_back: server.policy.write_back(),
            finish,
            threads: Some(handle),
            on_end: None,
        }),
        Err(e) => {
            readers.stop();
            let _ = mounted.unmount(Unmount::Detach);
            Err(e)
        }
    }
}

/// Fails if requests were to come over io_uring in any case and do not.
fn insist(options: &MountOptions, why_not: &mut Option<io::Error>) -> Result<(), MountError> {
    match why_not.take_if(|_| options.io_uring == Some(true)) {
        Some(why) => Err(MountError::NoIoUring(why)),
        None => Ok(()),
    }
}

impl Session {
    /// Mount point: absolute, free of symbolic links.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mounted.path
    }

    /// Reason why requests come through `/dev/fuse`, if they should come over io_uring where it is available.
    #[must_use]
    pub fn why_not_io_uring(&self) -> Option<&str> {
        self.through_device.as_deref()
    }

    /// A handle that unmounts from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            mounted: Arc::clone(&self.mounted),
        }
    }

    /// A handle that reports changes to the kernel.
    #[must_use]
    pub fn invalidator(&self) -> Invalidator {
        Invalidator {
            shared: Arc::clone(&self.shared),
        }
    }

    /// A handle that waits for the end from another thread.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            finish: Arc::clone(&self.finish),
        }
    }

    /// Has `callback` called once when the session has ended and no request runs any more.
    pub fn on_end(&mut self, callback: impl FnOnce(&Ended) + Send + 'static) {
        self.on_end = Some(Box::new(callback));
    }

    /// Whether the kernel has let go of the mount.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.finish.ended().is_some()
    }

    /// Waits at most `limit` for the kernel to let go of the mount.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        self.finish.wait(Some(limit)).is_some()
    }

    /// Waits until the mount has been unmounted, and cleans up.
    #[must_use]
    pub fn join(mut self) -> Ended {
        let result = self.finish.wait(None).unwrap_or(Ok(()));
        self.end(Some(result))
    }

    /// Ends the session: unmounts; if the mount is in use, takes it out of the tree and
    /// gives its users `grace` to finish. In every case no request runs afterwards.
    #[must_use]
    pub fn shutdown(mut self, grace: Duration) -> Ended {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> Ended {
        // Requests that wait for the end of a freeze would be waited for.
        self.shared.fs.thaw();
        self.send_kept(grace);
        if self.mounted.unmount(Unmount::IfIdle).is_err() {
            let _ = self.mounted.unmount(Unmount::Detach);
        }
        let result = self.finish.wait(Some(grace));
        self.end(result)
    }

    /// Makes the kernel send its cached pages of files that are still open: nothing is accepted after the end.
    fn send_kept(&self, limit: Duration) {
        if !self.write_back || !self.mounted.listed() {
            return;
        }
        let path = self.mounted.path.clone();
        let (tell, told) = mpsc::channel();
        let sending = thread::Builder::new()
            .name("fuse-send-kept".to_owned())
            .spawn(move || {
                let _ = kept::send_kept(&path);
                let _ = tell.send(());
            });
        if sending.is_ok() {
            let _ = told.recv_timeout(limit);
        }
    }

    fn end(&mut self, result: Option<Result<(), String>>) -> Ended {
        self.shared.gate.close();
        self.readers.stop();
        let ended = match (self.shared.gate.failure(), result) {
            (Some(said), _) => Ended::Failed(said),
            (None, None) => Ended::Abandoned,
            (None, Some(Ok(()))) => Ended::Clean,
            (None, Some(Err(said))) => Ended::Broken(said),
        };
        if !matches!(ended, Ended::Failed(_)) {
            self.shared.nodes.forget_all(&*self.shared.fs);
        }
        if matches!(ended, Ended::Broken(_)) {
            // The threads are gone: leave no dead mount.
            let _ = self.mounted.unmount(Unmount::Detach);
        }
        // The closed gate holds threads that have not ended.
        if let Some(threads) = self.threads.take()
            && self.has_ended()
        {
            let _ = threads.join();
        }
        if let Some(callback) = self.on_end.take() {
            callback(&ended);
        }
        ended
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.threads.is_some() {
            let _ = self.stop(Duration::from_secs(2));
        }
    }
}
