//! Options of a mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Receives one line for each event that a caller's error number does not tell all of.
pub type LogHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Most threads that serve requests.
pub const THREADS_MAX: usize = 64;

/// Time for which the kernel may trust names and attributes: no limit in practice, since
/// every change comes through it.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Options of a mount. [`MountOptions::new`] gives the defaults.
#[derive(Clone)]
pub struct MountOptions {
    /// Source that `mount` and `df` show: the image's path.
    pub source: PathBuf,
    /// The kernel refuses every change.
    pub read_only: bool,
    /// Lets other users in; the kernel then checks permissions (`default_permissions`).
    pub allow_other: bool,
    /// Device nodes work. Needs root.
    pub devices: bool,
    /// Set-id bits work when programs are executed. Needs root.
    pub set_id: bool,
    /// The kernel keeps programs' writes in its page cache, and sends them when a file is closed or synced, or at another
    /// time, in any order (`FUSE_WRITEBACK_CACHE`). Only for volumes whose contract allows it. The kernel then
    /// decides sizes and modification times of files, and checks permissions.
    pub write_back: bool,
    /// Programs are not executed.
    pub no_exec: bool,
    /// Reading changes access times, as `relatime` has it. The kernel then asks at each open,
    /// and forgets its cached pages of the file: it would not report reads that it
    /// answers by itself. Without this, the mount says that there are no access times.
    pub relatime: bool,
    /// POSIX ACLs can be read and set, and the kernel checks permissions by them. By default as
    /// `allow_other`, with which the kernel checks anyway: to check, it asks for the attributes of a directory
    /// after each change of it.
    pub acl: Option<bool>,
    /// Access times of directories are not kept.
    pub no_dir_atime: bool,
    /// Every change of content and attributes is durable before its reply.
    pub sync: bool,
    /// Every change of names is.
    pub dir_sync: bool,
    /// Symbolic links are not followed.
    pub no_symlinks: bool,
    /// The mount is an upper layer of overlayfs. That writes with the identity of the user that mounted it, for all writers, and the
    /// kernel does not pass on that set-id bits are to go where the server is said to clear them. So the kernel does it, which
    /// costs a request for `security.capability` before each write.
    pub upper_layer: bool,
    /// Whether it may cover another mount.
    pub over: bool,
    /// Requests that may be in progress at a time, 1 to [`THREADS_MAX`]: as many may wait
    /// for the medium, less one.
    pub threads: usize,
    /// Requests come over io_uring, with a queue for each processor that takes `threads` requests at a time:
    /// quicker for several clients, no slower for one. By default where the kernel offers it.
    pub io_uring: Option<bool>,
    /// While requests of a lone client follow one another closely, idle processors are kept from halting, at the lowest
    /// priority: it takes longer to wake one up than to serve a request.
    pub poll: bool,
    /// Time for which the kernel may trust a name. Zero if there is another front end.
    pub entry_timeout: Duration,
    /// Time for which the kernel may trust attributes. Zero if there is another front end.
    pub attr_timeout: Duration,
    /// The variable `STEADFAST_STREAM` of a process names its stream, unless one was set here: the first change of
    /// each process costs a look at it.
    pub stream_environment: bool,
    /// Hears of errors that carry an explanation.
    pub log: Option<LogHook>,
    /// Hears of each request as it arrives.
    pub trace: Option<LogHook>,
}

impl MountOptions {
    /// The defaults: read-write, owner only, 16 threads.
    #[must_use]
    pub fn new(source: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            source: source.into(),
            read_only: false,
            allow_other: false,
            devices: false,
            set_id: false,
            write_back: false,
            no_exec: false,
            relatime: false,
            acl: None,
            no_dir_atime: false,
            sync: false,
            dir_sync: false,
            no_symlinks: false,
            upper_layer: false,
            over: false,
            threads: 16,
            io_uring: None,
            poll: true,
            entry_timeout: TIMEOUT,
            attr_timeout: TIMEOUT,
            stream_environment: false,
            log: None,
            trace: None,
        }
    }

    /// Whether the kernel checks permissions. It must with a write-back cache: it sends the times of a file, which
    /// their owner alone may set, in the name of anyone that writes. Root alone needs no check.
    pub(crate) fn kernel_checks(&self) -> bool {
        self.allow_other || (self.write_back && !rustix::process::geteuid().is_root())
    }
}
