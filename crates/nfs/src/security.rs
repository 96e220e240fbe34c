//! The protection of a connection.

/// Protection of a connection, in the terms of Linux's exports and mounts, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(
    feature = "options",
    derive(clap::ValueEnum, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Security {
    /// None
    #[default]
    None,
    /// TLS: no third party can read or change the data
    Tls,
    /// TLS, and the client has presented a certificate
    Mtls,
}
