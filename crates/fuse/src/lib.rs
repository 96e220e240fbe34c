//! FUSE front end: mounts any [`steadfast_vfs::FileSystem`].
//!
//! Protocol only, no storage logic. Its assumptions and promises:
//!
//! * No write-back cache unless [`MountOptions::write_back`] asks for it: every write(2) arrives at once, in order, with its
//!   caller. Stores through mmap arrive at msync, fsync, munmap or close, without one. With it, writes do as these stores.
//! * The kernel is the only front end, so names (absent ones, too) and attributes are
//!   cached for long, page and directory caches survive `open`, and `OPEN`, `FLUSH` and
//!   `RELEASE` are not asked for at all where they decide nothing.
//! * A file that is created for writing alone is written past the page cache (see `data`); where
//!   `O_SYNC` or `O_DSYNC` asks for it, it is then synced here.
//! * Threads follow one rule (`readers`). Where the kernel offers it, requests come over io_uring, and
//!   each processor has a queue and a thread of its own ([`steadfast_fuse_wire::Rings`]).
//! * An inode that the kernel knows stays alive: see `nodes`.
//! * `allow_other` implies `default_permissions`; else only the mounting user's
//!   processes get in, and the file system checks permissions.
//! * A request belongs to the stream of its process (see `identity`), which programs set with the crate `steadfast-stream`.
//!   While none is set, that costs nothing.
//! * The file system clears set-id bits on write, truncate and chown by unprivileged callers
//!   (`FUSE_HANDLE_KILLPRIV_V2`, except under overlayfs): otherwise the kernel would ask for `security.capability` before each
//!   write. The kernel removes that attribute itself, except at direct writes, before which the server removes it.
//! * A panic in a request is answered with EIO, and so is everything after it; the
//!   session reports it at its end ([`Ended::Failed`]).
//!
//! ```no_run
//! # fn serve(
//! #     fs: std::sync::Arc<dyn steadfast_vfs::FileSystem>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use steadfast_fuse::{MountOptions, mount};
//! let session = mount(fs, "/mnt/volume".as_ref(), &MountOptions::new("/srv/volume.img"))?;
//! let how = session.join(); // returns after `umount /mnt/volume`
//! # Ok(())
//! # }
//! ```

mod control;
mod convert;
mod counters;
mod data;
mod dispatch;
mod fileattr;
mod gate;
mod identity;
mod ioctl_arg;
mod kept;
mod listing;
mod mount;
pub mod mountinfo;
mod names;
mod nodes;
mod options;
mod readers;
mod requests;
mod scrub;
mod server;
mod session;
mod shared;
mod trace;
mod values;

pub use control::{
    FREEZE_SECONDS_MAX, IOCTL_SHUTDOWN, IOCTL_SYNC, IOCTL_TRIM, XATTR_FREEZE, XATTR_HEALTH,
    XATTR_SERVER, XATTR_SHUTDOWN, XATTR_STATS, XATTR_SYNC, XATTR_SYNC_STORE, XATTR_THAW,
    XATTR_TRIM, XATTR_WRITE_BACK, freeze, health, server_pid, shut_down, stats, sync, sync_store,
    thaw, trim,
};
pub use kept::{Sent, send_kept, writes_back};
pub use mount::{MountError, Unmount, check_mount_point, unmount};
pub use options::{LogHook, MountOptions, SUBTYPE_BYTES_MAX, THREADS_MAX};
pub use scrub::scrub;
pub use session::{Ended, Invalidator, Session, Unmounter, Watch, mount};
pub use steadfast_fuse_wire::kernel_offers_io_uring;
