//! One file per command.

pub(crate) mod completions;
pub(crate) mod crash;
pub(crate) mod dump;
pub(crate) mod freeze;
pub(crate) mod fsck;
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
pub(crate) mod serve_disk;
pub(crate) mod serve_nfs;
pub(crate) mod shutdown;
pub(crate) mod stat;
pub(crate) mod stream;
pub(crate) mod sync;
pub(crate) mod trim;
pub(crate) mod umount;
pub(crate) mod watch;
