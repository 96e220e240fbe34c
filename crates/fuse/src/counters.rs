//! Counts of the kernel's requests by kind, and of the bytes in each direction.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! requests {
    ($($name:ident = $text:literal;)*) => {
        /// Kind of a request of the kernel.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum RequestKind { $($name,)* }

        const NAMES: &[&str] = &[$($text,)*];

        impl RequestKind {
            /// The protocol's word for it.
            pub(crate) fn name(self) -> String {
                let text = NAMES[self as usize];
                text.strip_prefix("requests_").unwrap_or(text).to_uppercase()
            }
        }
    };
}

requests! {
    Lookup = "requests_lookup";
    Forget = "requests_forget";
    Getattr = "requests_getattr";
    Statx = "requests_statx";
    Setattr = "requests_setattr";
    Readlink = "requests_readlink";
    Mknod = "requests_mknod";
    Mkdir = "requests_mkdir";
    Unlink = "requests_unlink";
    Rmdir = "requests_rmdir";
    Symlink = "requests_symlink";
    Rename = "requests_rename";
    Link = "requests_link";
    Open = "requests_open";
    Create = "requests_create";
    Read = "requests_read";
    Write = "requests_write";
    Flush = "requests_flush";
    Fsync = "requests_fsync";
    Release = "requests_release";
    Opendir = "requests_opendir";
    Readdir = "requests_readdir";
    Readdirplus = "requests_readdirplus";
    Fsyncdir = "requests_fsyncdir";
    Releasedir = "requests_releasedir";
    Statfs = "requests_statfs";
    Setxattr = "requests_setxattr";
    Getxattr = "requests_getxattr";
    Listxattr = "requests_listxattr";
    Removexattr = "requests_removexattr";
    Access = "requests_access";
    Ioctl = "requests_ioctl";
    Fallocate = "requests_fallocate";
    Lseek = "requests_lseek";
    // Not requests: bytes.
    BytesRead = "bytes_read";
    BytesWritten = "bytes_written";
    // Those of them that come from the page cache, without a caller.
    BytesWrittenBack = "bytes_written_back";
    // Syncs that a stream ignores.
    IgnoredSyncs = "stream_ignored_syncs";
}

impl RequestKind {
    /// Whether the request changes content, names or attributes.
    pub(crate) fn changes(self) -> bool {
        use RequestKind::{
            Create, Fallocate, Ioctl, Link, Mkdir, Mknod, Open, Removexattr, Rename, Rmdir,
            Setattr, Setxattr, Symlink, Unlink, Write,
        };
        // An OPEN that truncates, an IOCTL that sets flags: others have no use for the caller's stream.
        matches!(
            self,
            Setattr
                | Mknod
                | Mkdir
                | Unlink
                | Rmdir
                | Symlink
                | Rename
                | Link
                | Create
                | Write
                | Setxattr
                | Removexattr
                | Fallocate
                | Open
                | Ioctl
        )
    }
}

/// A number for each of them, since the mount.
#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; NAMES.len()]);

impl Default for Counters {
    fn default() -> Counters {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn add(&self, asked: RequestKind, n: u64) {
        self.0[asked as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// All by name.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let values = self.0.iter().map(|value| value.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(values)
    }
}
