//! The state that all protocol threads share: the file system and its gate, and how the
//! server answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use steadfast_fuse_wire::{Connection, Errno, abi};
use steadfast_vfs::{FileKind, FileSystem};

use crate::convert;
use crate::gate::Gate;
use crate::nodes::Nodes;
use crate::options::LogHook;
use crate::values::Node;

/// State that the session shares with the protocol threads.
pub(crate) struct Shared {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) gate: Gate,
    pub(crate) nodes: Nodes,
    pub(crate) log: Option<LogHook>,
    /// Reports changes made without the kernel's knowledge to it; there after the session has started.
    pub(crate) connection: OnceLock<Arc<Connection>>,
}

impl Shared {
    /// Has the kernel ask for the attributes of an inode before it uses them again.
    pub(crate) fn attributes_changed(&self, node: Node) {
        if let Some(connection) = self.connection.get() {
            // ENOENT if the kernel has forgotten the inode: then it asks anyway.
            let _ = connection.invalidate(node.0, -1);
        }
    }

    /// The same, and for its content, too.
    pub(crate) fn content_changed(&self, node: Node) {
        if let Some(connection) = self.connection.get() {
            let _ = connection.invalidate(node.0, 0);
        }
    }

    /// Runs one call of the file system and maps its error.
    pub(crate) fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&dyn FileSystem) -> steadfast_vfs::Result<T>,
    ) -> Result<T, Errno> {
        match self.gate.pass(|| call(&*self.fs)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if let (Some(log), Some(detail)) = (&self.log, &error.detail) {
                    log(&format!("{what}: {}: {detail}", error.errno.text()));
                }
                Err(convert::errno(&error))
            }
            Err(shut) => {
                if let (Some(log), Some(said)) = (&self.log, self.gate.failure()) {
                    log(&format!(
                        "{what}: refused ({shut:?}) after a failed request: {said}"
                    ));
                }
                Err(Errno::IO)
            }
        }
    }
}

/// The server's policy, decided once at mount, at the latest in the handshake.
pub(crate) struct Policy {
    pub(crate) entry_timeout: Duration,
    pub(crate) attr_timeout: Duration,
    /// `open` has nothing to decide (the kernel checks permissions, or only the
    /// superuser is let in): the server tells the kernel to stop asking.
    pub(crate) stateless_open: AtomicBool,
    /// Files that are created for writing alone are written directly.
    pub(crate) direct: AtomicBool,
    /// The kernel keeps writes, and sends them later.
    pub(crate) write_back: AtomicBool,
    /// POSIX ACLs are offered.
    pub(crate) acl: AtomicBool,
    /// Requests come over io_uring.
    pub(crate) io_uring: AtomicBool,
    /// Reads are noted, and so the kernel must not answer them by itself.
    pub(crate) relatime: bool,
    /// Access times of directories are not kept.
    pub(crate) no_dir_atime: bool,
    /// Every change of content and attributes is durable before its reply. The kernel sees to that itself
    /// after a write through its page cache.
    pub(crate) sync: bool,
    /// Every change of names is durable before its reply.
    pub(crate) dir_sync: bool,
    /// overlayfs writes here: the kernel takes set-id bits away itself.
    pub(crate) upper_layer: bool,
}

impl Policy {
    pub(crate) fn stateless_open(&self) -> bool {
        self.stateless_open.load(Ordering::Relaxed)
    }

    /// Time for which the kernel may trust these attributes. A write's reply does not tell it that set-id bits
    /// were cleared, and it would go on executing with them: where there are any, it asks before each use.
    /// Directories keep theirs.
    pub(crate) fn attr_timeout(&self, attr: &abi::Attr) -> Duration {
        const SET_ID: u32 = 0o6000;
        if FileKind::of_mode(attr.mode) != Some(FileKind::Directory) && attr.mode & SET_ID != 0 {
            Duration::ZERO
        } else {
            self.attr_timeout
        }
    }

    pub(crate) fn io_uring(&self) -> bool {
        self.io_uring.load(Ordering::Relaxed)
    }

    pub(crate) fn acl(&self) -> bool {
        self.acl.load(Ordering::Relaxed)
    }

    pub(crate) fn direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    pub(crate) fn write_back(&self) -> bool {
        self.write_back.load(Ordering::Relaxed)
    }

    /// Flags of a file's open reply: caches that the kernel may keep.
    pub(crate) fn keep(&self, cached: u32) -> u32 {
        match self.relatime {
            true => 0,
            false => cached,
        }
    }
}
