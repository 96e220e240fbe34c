//! The NFS server over loopback.

mod admin;
mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod fuzzed;
mod killed;
mod power_cut;
mod procedures;
mod regressions;
mod tls;
mod waiting;
