//! The store as it ships, with simulated time, failures and machines.

mod cache;
mod device;
mod failover;
mod files;
#[path = "../power_disk/mod.rs"]
mod power_disk;
mod simulate;
mod store;
mod traffic;
