//! Options of a mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::mount::MountError;

/// Receives one line for each event that a caller's error number does not tell all of.
pub type LogHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Most threads that serve requests.
pub const THREADS_MAX: usize = 64;

/// Longest subtype of a mount.
pub const SUBTYPE_BYTES_MAX: usize = 64;

/// Time for which the kernel may trust names and attributes: no limit in practice, since
/// every change comes through it.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Options of a mount. [`MountOptions::new`] gives the defaults.
#[derive(Clone)]
pub struct MountOptions {
    /// Source that `mount` and `df` show: the image's path.
    pub source: PathBuf,
    /// The mount's type is `fuse.SUBTYPE`, or plain `fuse` without one: see [`MountOptions::subtype`].
    pub subtype: Option<String>,
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
    /// The defaults: read-write, owner only, 16 threads, the type `fuse`.
    #[must_use]
    pub fn new(source: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            source: source.into(),
            subtype: None,
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

    /// The kernel's list of mounts shows the type `fuse.NAME`: `findmnt -t fuse.NAME` finds the mounts of one file system. 1 to
    /// [`SUBTYPE_BYTES_MAX`] letters, digits, `.`, `_`, `-` and `+`; [`mount`](crate::mount()) refuses other names. The name
    /// `steadfast` is taken: the command takes mounts of that type for its own, in `steadfast metrics` for example.
    #[must_use]
    pub fn subtype(mut self, name: impl Into<String>) -> MountOptions {
        self.subtype = Some(name.into());
        self
    }

    /// The mount's type as the kernel shows it.
    pub(crate) fn fs_type(&self) -> Result<String, MountError> {
        let Some(name) = &self.subtype else {
            return Ok("fuse".to_owned());
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
        match (1..=SUBTYPE_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed) {
            true => Ok(format!("fuse.{name}")),
            false => Err(MountError::Subtype { name: name.clone() }),
        }
    }

    /// Whether the kernel checks permissions. It must with a write-back cache: it sends the times of a file, which
    /// their owner alone may set, in the name of anyone that writes. Root alone needs no check.
    pub(crate) fn kernel_checks(&self) -> bool {
        self.allow_other || (self.write_back && !rustix::process::geteuid().is_root())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_type_is_fuse_with_the_name_that_the_embedder_gives() {
        let of = |name: &str| MountOptions::new("x").subtype(name).fs_type();
        assert_eq!(MountOptions::new("x").fs_type().unwrap(), "fuse");
        assert_eq!(of("steadfast").unwrap(), crate::mountinfo::FS_TYPE);
        let longest = "a".repeat(SUBTYPE_BYTES_MAX);
        for name in ["my-fs_2.0+x", &longest] {
            assert_eq!(of(name).unwrap(), format!("fuse.{name}"));
        }
        let longer = "a".repeat(SUBTYPE_BYTES_MAX + 1);
        for name in ["", "a,ro", "a b", "a/b", "a\n", "a\0", "é", &longer] {
            let refused = of(name).unwrap_err().to_string();
            assert!(refused.contains(&format!("{name:?}")), "{refused}");
        }
    }
}
