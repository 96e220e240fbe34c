//! nbdkit with the plugin, and a client that speaks NBD by hand.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::PathBuf;

/// The plugin, as it was built for these tests.
pub(crate) fn plugin() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.join("libsteadfast_nbdkit.so")
}
