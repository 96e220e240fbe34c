//! Volumes as they lie in memory: made, mounted, recovered, damaged, checked.
#![allow(missing_docs, unreachable_pub)]

mod fsck;
mod fuzzed;
mod hostile;
mod mount;
mod mount_measure;
mod mount_mkfs;
mod mount_volume;
