//! Counters of each client, by its address.
//!
//! Only clients that an export admits are counted. There are [`CLIENTS_MAX`] entries; when all are taken, the client that has
//! been idle longest loses its entry.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// Most listed clients.
pub(crate) const CLIENTS_MAX: usize = 1024;

/// The counters of one client.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) calls: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) mounts: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    /// Milliseconds from the server's start to its last call.
    last_ms: AtomicU64,
}

impl Client {
    /// Notes a call and its outcome.
    pub(crate) fn called(&self, failed: bool) {
        self.calls.fetch_add(1, Relaxed);
        self.errors.fetch_add(u64::from(failed), Relaxed);
    }
}

/// Public view of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClientState {
    /// Its address.
    pub address: IpAddr,
    /// Its counters by name. A name that ends in `_now` is a gauge.
    pub counters: Vec<(String, u64)>,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Clients {
    start: Instant,
    known: RwLock<HashMap<IpAddr, Arc<Client>, foldhash::fast::RandomState>>,
}

impl Default for Clients {
    fn default() -> Clients {
        Clients {
            start: Instant::now(),
            known: RwLock::default(),
        }
    }
}

impl Clients {
    fn ms(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.start);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The counters of a client that makes a call now; none if it has no entry and is not `admitted`.
    pub(crate) fn of(
        &self,
        ip: IpAddr,
        now: Instant,
        admitted: impl FnOnce() -> bool,
    ) -> Option<Arc<Client>> {
        let ip = ip.to_canonical();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(&ip).map(Arc::clone);
        drop(known);
        let client = match found {
            Some(client) => client,
            None if admitted() => self.add(ip),
            None => return None,
        };
        client.last_ms.store(self.ms(now), Relaxed);
        Some(client)
    }

    fn add(&self, ip: IpAddr) -> Arc<Client> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= CLIENTS_MAX && !known.contains_key(&ip) {
            let idlest = known.iter().min_by_key(|(_, c)| c.last_ms.load(Relaxed));
            if let Some(idlest) = idlest.map(|(ip, _)| *ip) {
                known.remove(&idlest);
            }
        }
        Arc::clone(known.entry(ip).or_default())
    }

    /// All clients by address. `connections` are the addresses of the connected ones.
    pub(crate) fn list(
        &self,
        connections: impl Iterator<Item = IpAddr>,
        now: Instant,
    ) -> Vec<ClientState> {
        let mut connected: HashMap<IpAddr, u64> = HashMap::new();
        for ip in connections {
            *connected.entry(ip.to_canonical()).or_default() += 1;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let state = |(ip, client): (&IpAddr, &Arc<Client>)| {
            let idle_ms = self.ms(now).saturating_sub(client.last_ms.load(Relaxed));
            let connections = connected.get(ip).copied().unwrap_or_default();
            let counters = [
                ("connections_now", connections),
                ("idle_ms_now", idle_ms),
                ("calls", client.calls.load(Relaxed)),
                ("errors", client.errors.load(Relaxed)),
                ("mounts", client.mounts.load(Relaxed)),
                ("bytes_read", client.bytes_read.load(Relaxed)),
                ("bytes_written", client.bytes_written.load(Relaxed)),
            ];
            ClientState {
                address: *ip,
                counters: counters
                    .map(|(name, value)| (name.to_owned(), value))
                    .to_vec(),
            }
        };
        let mut list: Vec<ClientState> = known.iter().map(state).collect();
        list.sort_by_key(|client| client.address);
        list
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn clients_are_counted_by_address_and_the_idlest_makes_room() {
        let clients = Clients::default();
        let ip = |number: u32| IpAddr::from(std::net::Ipv4Addr::from(number));
        let at = |ms: u64| clients.start + Duration::from_millis(ms);
        assert!(clients.of(ip(1), at(0), || false).is_none());
        for number in 0..CLIENTS_MAX as u32 {
            let client = clients.of(ip(number), at(u64::from(number)), || true);
            client.unwrap().called(number == 3);
        }
        // The first client was used again, so the second loses its entry; IPv4 through IPv6 counts as IPv4.
        let mapped: IpAddr = "::ffff:0.0.0.0".parse().unwrap();
        clients.of(mapped, at(9000), || false).unwrap().called(true);
        clients.of(ip(5000), at(9001), || true).unwrap();
        let list = clients.list([ip(3), mapped, mapped].into_iter(), at(9002));
        assert_eq!(list.len(), CLIENTS_MAX);
        assert!(!list.iter().any(|client| client.address == ip(1)));
        let get = |address: IpAddr, name: &str| {
            let client = list.iter().find(|client| client.address == address);
            let mut counters = client.unwrap().counters.iter();
            counters.find(|(known, _)| known == name).unwrap().1
        };
        assert_eq!(get(ip(0), "connections_now"), 2);
        assert_eq!((get(ip(0), "calls"), get(ip(0), "errors")), (2, 1));
        assert_eq!(get(ip(0), "idle_ms_now"), 2);
        assert_eq!(
            (get(ip(3), "connections_now"), get(ip(3), "errors")),
            (1, 1)
        );
    }
}
