//! The counters of a server over NFS.

use std::path::Path;

use serde_json::{Map, Value};
use steadfast_nfs::ClientState;

use crate::failure::Failure;
use crate::size;

/// The requests of a client.
pub(super) struct Client(ClientState);

/// The counters of a server by name, and its clients.
pub(super) type Counters = (Vec<(String, u64)>, Vec<Client>);

/// Asks a server at its control socket.
pub(super) fn counters(path: &Path) -> Result<Counters, Failure> {
    let state = steadfast_nfs::read_state(path)
        .map_err(|e| Failure::at(path, format!("asking the server for its counters: {e}")))?;
    let clients = state.clients.into_iter().map(Client).collect();
    Ok((state.counters, clients))
}

impl Client {
    pub(super) fn object(&self) -> Value {
        let mut object = Map::new();
        object.insert("address".into(), self.0.address.to_string().into());
        let counters = self.0.counters.iter();
        object.extend(counters.map(|(name, value)| (name.clone(), Value::from(*value))));
        object.into()
    }

    /// One line of text.
    pub(super) fn line(&self) -> String {
        let get = |wanted: &str| {
            let mut counters = self.0.counters.iter();
            counters
                .find(|(name, _)| name == wanted)
                .map_or(0, |(_, value)| *value)
        };
        let connections = match get("connections_now") {
            0 => "not connected".to_owned(),
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        };
        format!(
            "\n  client {}: {connections}, {} calls, {} errors, {} read, {} written, last call {} s ago",
            self.0.address,
            get("calls"),
            get("errors"),
            size::show(get("bytes_read")),
            size::show(get("bytes_written")),
            get("idle_ms_now") / 1000
        )
    }
}
