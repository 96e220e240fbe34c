//! NFS front end: serves any [`steadfast_vfs::FileSystem`] over NFS version 3 and MOUNT version 3
//! (RFC 1813), over TCP.
//!
//! Protocol only, no storage logic. Guarantees:
//!
//! * Answered changes are durable: every change except unstable writes is committed before its reply, in the stream of the
//!   client, user or export. Concurrent calls share a flush (GoJournal §3; ccfs §3.2).
//! * `committed` and the write verifier are truthful (`procedures`, `volume`).
//! * A retransmitted call is answered and not executed again within two minutes (`drc`), also by the next server of
//!   a volume whose file system keeps the replies (`kept`).
//! * If another server may take a volume over, no reply is sent without permission of the [`Gate`].
//! * Clients cannot forge handles. A handle lives as long as its file, and never names another file (`handles`).
//! * A slow, dead or hostile client harms no other client: no worker waits for a client, memory is bounded (`connection`,
//!   `memory`, `reactor`), and all input is validated (`record`, `xdr`, `rpc`).
//! * An export that requires TLS is served only over TLS (RFC 9289; `tls`).
//! * Request bytes are borrowed only while the call lasts.
//!
//! Data flows straight down: `server` (workers) → `reactor`, `connection`, `tls`, `record` (bytes to records) → `dispatch`,
//! `rpc`, `auth`, `drc` (records to calls) → `procedures`, `mountd` → the file system.
//!
//! ```no_run
//! # fn serve(
//! #     fs: std::sync::Arc<dyn steadfast_vfs::FileSystem>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use steadfast_nfs::{Export, Options, ExportedVolume, Server};
//! let mut options = Options::default();
//! options.listen = vec!["127.0.0.1:2049".parse()?];
//! let server = Server::start(vec![ExportedVolume::new(fs, "data")], vec![Export::new()], &options)?;
//! server.wait(); // until a `Stopper` stops it
//! let how = server.stop();
//! # Ok(())
//! # }
//! ```

mod access_log;
mod admin;
mod auth;
mod clients;
mod commits;
mod connection;
mod convert;
mod dispatch;
mod drc;
mod ending;
mod events;
mod exports;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod handle_key;
mod handles;
mod kept;
mod log;
mod memory;
mod metrics;
mod mountd;
mod noted;
mod procedures;
mod reactor;
mod record;
mod reload;
mod reply;
mod rpc;
mod rpcbind;
mod security;
mod server;
mod slots;
mod subtree;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "without_tls.rs"]
mod tls;
mod volume;
mod watch;
mod xdr;

pub use access_log::{AccessLog, Target};
pub use admin::{Admin, State, read_state};
pub use auth::{Anonymous, Squash};
pub use clients::ClientState;
pub use exports::{Access, Export, ExportError, Streams, everybody, this_host};
pub use gate::Gate;
pub use handle_key::{HandleKey, HandleKeyError};
pub use ipnet::IpNet;
pub use reload::{Reloaded, Reloader, Retired, Source};
pub use rpcbind::Registration;
pub use security::Security;
pub use server::{Counters, Ended, Error, Options, Server, Stopper, THREADS_DEFAULT, THREADS_MAX};
pub use tls::{Tls, TlsError};
pub use volume::{ExportedVolume, Limits};
