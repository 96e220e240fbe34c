//! The plugin in a real nbdkit, and its layout beside the C header.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod layout;
