//! One file per command; `without_*` in the place of those whose feature is not built.

pub(crate) mod completions;
#[cfg(feature = "crash")]
pub(crate) mod crash;
#[cfg(not(feature = "crash"))]
#[path = "without_crash.rs"]
pub(crate) mod crash;
pub(crate) mod dump;
pub(crate) mod freeze;
pub(crate) mod fsck;
#[cfg(feature = "flash")]
pub(crate) mod ftl;
#[cfg(not(feature = "flash"))]
#[path = "without_ftl.rs"]
pub(crate) mod ftl;
pub(crate) mod grow;
pub(crate) mod helper;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod metrics;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod put;
pub(crate) mod remount;
pub(crate) mod scrub;
pub(crate) mod serve;
#[cfg(feature = "flash")]
pub(crate) mod serve_disk;
#[cfg(not(feature = "flash"))]
#[path = "without_serve_disk.rs"]
pub(crate) mod serve_disk;
#[cfg(feature = "nfs")]
pub(crate) mod serve_nfs;
#[cfg(not(feature = "nfs"))]
#[path = "without_nfs.rs"]
pub(crate) mod serve_nfs;
pub(crate) mod shutdown;
pub(crate) mod stat;
#[cfg(feature = "store")]
pub(crate) mod store;
#[cfg(not(feature = "store"))]
#[path = "without_store.rs"]
pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod trim;
pub(crate) mod umount;
pub(crate) mod watch;
#[cfg(any(
    test,
    not(feature = "crash"),
    not(feature = "flash"),
    not(feature = "nfs"),
    not(feature = "store")
))]
pub(crate) mod without_feature;
