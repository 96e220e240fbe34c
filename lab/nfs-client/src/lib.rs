//! A client of NFS version 3 (RFC 1813) over ONC RPC (RFC 5531) and TCP, for tests and measurements. It encodes with the types of
//! `nfs3_types`, which the server's decoder does not share. Nothing that ships depends on it.
//!
//! * [`wire`]: calls and replies as bytes, for tests that send bytes that no client sends;
//! * [`calls`]: arguments that know their procedure, and their results;
//! * [`rpc`]: a connection with any number of calls outstanding, which may outlive its server;
//! * [`client`]: an export that is mounted, and calls that must succeed.

pub mod calls;
pub mod client;
mod failure;
pub mod rpc;
pub mod wire;

pub use failure::{Failure, wrong};
