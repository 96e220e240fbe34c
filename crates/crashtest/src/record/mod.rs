//! Runs a program on a mount that records every call.
//!
//! The tree is kept in memory; the bytes of writes are only in the trace, to which the tree refers. FUSE serves the
//! tree without write-back cache, so each call arrives when it takes effect, with its caller. If permitted (as root,
//! or in a user namespace), the mount has a mount namespace of its own: no other process sees it, and it ends with
//! the last process in it.
//!
//! - [`calls`](self): the lock under which a call changes the tree and is recorded;
//! - `watch`: calls that FUSE does not see, by a seccomp filter (`filter`); `stacks`: the place in the program that a
//!   call comes from;
//! - `import`: a log of strace in place of a recording;
//! - `mapped`: stores through mmap, written back if that is asked for;
//! - `looked`: the same server for a checker, with its looks (`view`: what they show);
//! - `server`: the protocol; `place`: the mount; `program`: the program and what it leaves behind; `source`: the initial tree.
//!
//! Promises: when [`record`] has returned, nothing is mounted and no process that the program started is left. A trace is
//! kept whatever happened to the program.

mod calls;
mod convert;
mod filter;
mod import;
pub(crate) mod live;
pub(crate) mod looked;
mod mapped;
mod place;
mod program;
mod ranges;
mod reply;
mod server;
mod source;
mod special;
#[cfg(target_arch = "x86_64")]
mod stacks;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_stacks.rs"]
mod stacks;
mod tap;
mod user;
pub(crate) mod view;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::trace::{End, Ended, Header, Root, TraceError, TraceWriter};
use calls::Calls;
pub use calls::Counts;
pub use import::{Import, Imported, import};
pub use user::enter_user_namespace;

/// The environment variable that names the file for `steadfast crash ack`.
pub const ACK_VARIABLE: &str = "STEADFAST_CRASH_ACK";

/// When stores through mmap are written back, so that they are in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mapped {
    /// When the kernel does it: at the latest with the next sync of the file, or its last close.
    #[default]
    ByKernel,
    /// At this interval.
    Every(Duration),
    /// Before each call that changes or syncs names, or acknowledges.
    EveryCall,
}

/// Parts of a run that are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kept {
    /// Each call.
    #[default]
    All,
    /// Only the tree, for a server that records nothing.
    Nothing,
}

/// Subject and settings of a recording.
pub struct Options {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The trace, made anew.
    pub trace: PathBuf,
    /// The initial tree is a copy of this directory.
    pub from: Option<PathBuf>,
    /// A shell command that makes the initial tree, after `from`.
    pub setup: Option<OsString>,
    /// Path at which the program sees the tree; by default a new directory.
    pub at: Option<PathBuf>,
    /// Time limit of the program.
    pub time_limit: Duration,
    /// Whether to record the place in the program that each call comes from (on x86_64).
    pub stacks: bool,
    /// When stores through mmap are written back.
    pub mapped: Mapped,
    /// Maximum number of bytes of the trace.
    pub trace_bytes_max: u64,
    /// Becomes true when the recording is to end.
    pub interrupted: Arc<AtomicBool>,
    /// Parts of the run that are kept.
    pub kept: Kept,
    /// Receiver of the program's standard output.
    pub output: Option<Box<dyn Write + Send>>,
}

impl Options {
    /// Records `command` to `trace`, with the defaults: an empty tree, ten minutes, 8 GiB.
    #[must_use]
    pub fn new(command: Vec<OsString>, trace: PathBuf) -> Options {
        Options {
            command,
            trace,
            from: None,
            setup: None,
            at: None,
            time_limit: Duration::from_secs(600),
            stacks: true,
            mapped: Mapped::ByKernel,
            trace_bytes_max: 8 << 30,
            interrupted: Arc::default(),
            kept: Kept::All,
            output: None,
        }
    }
}

/// Why nothing was recorded, or not everything.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RecordError {
    #[error("no command to record")]
    NoCommand,
    #[error("{}: {source}", path.display())]
    Mount { path: PathBuf, source: io::Error },
    #[error("{}: it cannot be the place of the recording: this system offers users no namespaces, and a mount there would be seen by all; run it as root", path.display())]
    NoNamespace { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Source { path: PathBuf, source: io::Error },
    #[error("{}: {source}", command.to_string_lossy())]
    Start {
        command: OsString,
        source: io::Error,
    },
    #[error("the setup failed: {0}")]
    Setup(String),
    #[error("{0}")]
    System(String),
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The end of the program.
    pub end: End,
    /// The amounts.
    pub counts: Counts,
}

/// One recording at a time: processes that a program leaves behind become children of this process.
static ONE: Mutex<()> = Mutex::new(());

/// Records a run. For a process without other children and threads that change its working directory.
///
/// # Errors
/// If the program could not be started or the trace not be written.
pub fn record(options: Options) -> Result<Recorded, RecordError> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // A thread of its own: its mount namespace is not that of the process, and ends with the thread.
    let thread = std::thread::Builder::new().name("crash-record".to_owned());
    let running = thread
        .spawn(move || record_here(options))
        .map_err(|e| RecordError::System(e.to_string()))?;
    running
        .join()
        .unwrap_or_else(|_| Err(RecordError::System("the recorder failed".to_owned())))
}

fn record_here(mut options: Options) -> Result<Recorded, RecordError> {
    let Some(name) = options.command.first().cloned() else {
        return Err(RecordError::NoCommand);
    };
    let place = place::Place::prepare(options.at.as_deref())?;
    let root = Root {
        perm: 0o755,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    };
    let started = convert::time(std::time::SystemTime::now());
    let header = Header {
        command: options
            .command
            .iter()
            .map(|w| w.as_bytes().to_vec())
            .collect(),
        setup: options.setup.as_ref().map(|s| s.as_bytes().to_vec()),
        mount: place.path().as_os_str().as_bytes().to_vec(),
        started: started.into(),
        recorder: format!("steadfast {}", env!("CARGO_PKG_VERSION")),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        root,
    };
    let writer = TraceWriter::create(&options.trace, &header)?;
    let mut calls = Calls::new(
        writer,
        &header,
        options.trace_bytes_max,
        options.stacks.then(stacks::Stacks::new),
        options.output.take(),
    );
    calls.keep(options.kept);
    let calls = Arc::new(calls);
    if let Some(from) = &options.from {
        source::copy(from, &calls)?;
    }
    let mounted = place.mount(reply::Server::new(calls.clone()))?;
    // Held until no process is left whose calls could wait.
    let mut watched = None;
    let ended = mapped::begin(options.mapped, mounted.path(), &calls)
        .map_err(|e| RecordError::System(format!("writing mapped pages back: {e}")))
        .and_then(|writing_back| {
            let ended = run(&options, &name, mounted.path(), &calls, &mut watched);
            drop(writing_back);
            ended
        });
    // Nothing counts after the end: first the rest of the program is ended, then the mount.
    calls.close();
    let left_over = program::end_descendants();
    drop(watched);
    let unmounted = mounted.unmount();
    let how = ended?;
    let (end, counts) = calls.finish(how, left_over)?;
    unmounted?;
    Ok(Recorded { end, counts })
}

fn run(
    options: &Options,
    name: &OsString,
    mount: &std::path::Path,
    calls: &Arc<Calls>,
    watched: &mut Option<watch::Watch>,
) -> Result<Ended, RecordError> {
    let program = program::Program {
        mount,
        interrupted: &options.interrupted,
    };
    if let Some(setup) = &options.setup {
        program.set_up(setup, options.time_limit)?;
        // The kernel reports the last close a little later.
        calls.settle(Duration::from_secs(1));
    }
    if options.interrupted.load(Ordering::Relaxed) {
        return Ok(Ended::Interrupted);
    }
    // If it is not available, the trace says so.
    *watched = match options.kept {
        Kept::All => watch::watch(mount, calls).ok(),
        Kept::Nothing => None,
    };
    let device = std::fs::metadata(mount).map(|m| m.dev());
    calls.begin(device.unwrap_or(0))?;
    program
        .run(&options.command, options.time_limit)
        .map_err(|source| RecordError::Start {
            command: name.clone(),
            source,
        })
}
