//! Events, the registry of connections, and the closing of connections when places or memory run out.
//!
//! *Events* are those of [`crate::events`], with one token for each connection.
//!
//! *Room.* A connection that needs memory gets it: the reactor picks the address that holds most, and closes its connection
//! that holds most. Places work the same way: the reactor picks the address with most connections, and closes the one that has
//! been idle longest. Clients that no export admits are *guests*: they have a few places of their own, small records, some
//! seconds.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::connection::Connection;
use crate::ending::Ending;
use crate::events::Events;
use crate::gate::Gate;
use crate::log::Log;
use crate::memory::{Budget, HandshakeLimits, Memory, Peers, Waiter};
use crate::metrics::Metrics;
use crate::tls::Tls;

/// The token of the server's end.
pub(crate) const STOP: u64 = 0;
/// The token of the first connection.
const CONNECTIONS: u64 = 1;
/// Connections of an address with socket buffers sized by the kernel, some megabytes. Further connections have bounded buffers.
const ROOMY_CONNECTIONS: usize = 16;
const SOCKET_BYTES: usize = 128 << 10;
/// Most connections of clients that no export admits.
const GUESTS_MAX: usize = 64;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest record.
    pub(crate) record_bytes: usize,
    /// Most memory of all connections.
    pub(crate) memory_bytes: u64,
    /// Most bytes of one connection's replies in progress or unsent.
    pub(crate) reply_bytes: usize,
    /// Most connections.
    pub(crate) connections: usize,
    /// Most connections of one address.
    pub(crate) connections_per_address: usize,
    /// Most calls of one connection in progress.
    pub(crate) in_flight: u32,
    /// Time for a record to arrive.
    pub(crate) record_time: Duration,
    /// Limits of one address's TLS handshakes.
    pub(crate) handshakes: HandshakeLimits,
    /// Time for a TLS handshake.
    pub(crate) handshake_time: Duration,
    /// Time in which a client must take replies.
    pub(crate) stall_time: Duration,
    /// Time that a guest may stay.
    pub(crate) guest_time: Duration,
}

type Registry = HashMap<u64, Arc<Connection>, foldhash::fast::RandomState>;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Reactor {
    pub(crate) events: Events,
    connections: RwLock<Registry>,
    guests: AtomicUsize,
    /// Held while a connection is admitted: otherwise two could take the same place, or close the same connection.
    admission: Mutex<()>,
    next: AtomicU64,
    peers: Peers,
    pub(crate) memory: Arc<Memory>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Arc<Log>,
    /// TLS settings; none: TLS is not offered.
    pub(crate) tls: Option<Tls>,
    gate: Option<Arc<dyn Gate>>,
    aborted: AtomicBool,
}

impl Reactor {
    pub(crate) fn new(
        limits: Limits,
        metrics: Arc<Metrics>,
        log: Arc<Log>,
        tls: Option<Tls>,
        gate: Option<Arc<dyn Gate>>,
    ) -> std::io::Result<Reactor> {
        Ok(Reactor {
            events: Events::new()?,
            connections: RwLock::default(),
            guests: AtomicUsize::new(0),
            admission: Mutex::default(),
            next: AtomicU64::new(CONNECTIONS),
            peers: Peers::default(),
            memory: Arc::new(Memory::new(
                limits.memory_bytes,
                limits.record_bytes,
                Arc::clone(&metrics),
            )),
            limits,
            metrics,
            log,
            tls,
            gate,
            aborted: AtomicBool::new(false),
        })
    }

    // ---- connections ----------------------------------------------------------------------

    fn registry(&self) -> RwLockReadGuard<'_, Registry> {
        self.connections
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn change_registry(&self) -> RwLockWriteGuard<'_, Registry> {
        self.connections
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. A client that no export admits is a guest.
    pub(crate) fn admit(
        self: &Arc<Reactor>,
        stream: TcpStream,
        address: SocketAddr,
        guest: bool,
    ) -> std::io::Result<()> {
        if guest && self.guests.fetch_add(1, Ordering::Relaxed) >= GUESTS_MAX {
            self.guests.fetch_sub(1, Ordering::Relaxed);
            let refused = &self.metrics.connections_refused;
            refused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let _admission = self
            .admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let peer = self.peers.join(address.ip(), Instant::now());
        if !guest && peer.connections.load(Ordering::Relaxed) > self.limits.connections_per_address
        {
            self.drop_idlest_where(|other| Arc::ptr_eq(&other.budget.peer, &peer));
        }
        if peer.connections.load(Ordering::Relaxed) > ROOMY_CONNECTIONS {
            sockopt::set_socket_recv_buffer_size(&stream, SOCKET_BYTES)?;
            sockopt::set_socket_send_buffer_size(&stream, SOCKET_BYTES)?;
        }
        while !guest && self.has_no_place() && self.drop_idlest() {}
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let budget = Budget::new(Arc::clone(&self.memory), peer);
        let connection = Connection::new(Arc::clone(self), token, stream, (address, guest), budget);
        self.change_registry()
            .insert(token, Arc::clone(&connection));
        self.metrics
            .connections_accepted
            .fetch_add(1, Ordering::Relaxed);
        self.metrics.connections_now.fetch_add(1, Ordering::Relaxed);
        let added = self
            .events
            .add(connection.stream(), token, Connection::EVENTS);
        if added.is_err() {
            connection.close();
        }
        added
    }

    /// Number of connections that were refused, or closed for their client's behaviour or to make room. It only grows.
    pub(crate) fn turned_away(&self) -> u64 {
        let metrics = &self.metrics;
        let counters = [
            &metrics.connections_refused,
            &metrics.connections_closed_garbage,
            &metrics.connections_closed_slow,
            &metrics.connections_closed_crowded,
        ];
        counters.map(|n| n.load(Ordering::Relaxed)).iter().sum()
    }

    fn has_no_place(&self) -> bool {
        let guests = self.guests.load(Ordering::Relaxed);
        self.registry().len() >= self.limits.connections + guests
    }

    /// Closes the longest idle connection of the address with most connections. Returns whether there was one.
    pub(crate) fn drop_idlest(&self) -> bool {
        let most = |connection: &Arc<Connection>| {
            let peer = &connection.budget.peer;
            peer.connections.load(Ordering::Relaxed)
        };
        let all = self.all();
        let Some(most) = all.iter().map(most).max() else {
            return false;
        };
        self.drop_idlest_where(|connection| {
            connection.budget.peer.connections.load(Ordering::Relaxed) >= most
        })
    }

    fn drop_idlest_where(&self, of: impl Fn(&Connection) -> bool) -> bool {
        let all = self.all();
        let candidates = all.iter().filter(|connection| of(connection));
        let idlest = candidates.min_by_key(|connection| connection.last_used());
        let Some(idlest) = idlest else { return false };
        idlest.end(Ending::Crowded);
        true
    }

    /// Makes room for `more` bytes, if it can: closes the connections that hold most, except `asker`. Input of a reading worker
    /// is freed a moment later, which then calls the waiting connections. The caller holds no connection's lock.
    pub(crate) fn make_room(&self, more: usize, asker: &Connection) {
        let mut coming = 0;
        while self.memory.missing(more) > coming {
            let largest = {
                let registry = self.registry();
                let others = registry.values().filter(|connection| {
                    connection.token() != asker.token() && connection.budget.releasable() > 0
                });
                let size = |connection: &&Arc<Connection>| {
                    let budget = &connection.budget;
                    let of_peer = budget.peer.held.load(Ordering::Relaxed);
                    (
                        of_peer,
                        budget.releasable(),
                        std::cmp::Reverse(connection.token()),
                    )
                };
                others.max_by_key(size).cloned()
            };
            match largest {
                Some(connection) => {
                    connection.end(Ending::Crowded);
                    coming += connection.budget.releasable() as u64;
                }
                None => return,
            }
        }
    }

    /// The connection of a token, if it is still registered.
    pub(crate) fn get(&self, token: u64) -> Option<Arc<Connection>> {
        self.registry().get(&token).cloned()
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.registry().values().cloned().collect()
    }

    /// Unregisters a closed connection.
    pub(crate) fn remove(&self, connection: &Connection) {
        if self.change_registry().remove(&connection.token()).is_some() {
            self.metrics.connections_now.fetch_sub(1, Ordering::Relaxed);
            if connection.is_guest() {
                self.guests.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Closes connections whose deadline has passed.
    pub(crate) fn look_after(&self, now: Instant) {
        for connection in self.all() {
            connection.look_after(now);
        }
        self.peers.forget_gone(now);
        self.memory.shrink();
        self.memory.call_waiting();
    }

    /// Reads the certificates again if they have changed.
    pub(crate) fn renew(&self) {
        match self.tls.as_ref().map(Tls::refresh) {
            Some(Ok(true)) => self.log.say("the certificates were read again".to_owned()),
            Some(Err(e)) => self
                .log
                .say(format!("the certificates stay as they were: {e}")),
            Some(Ok(false)) | None => {}
        }
    }

    // ---- the end --------------------------------------------------------------------------

    /// Stops taking records.
    pub(crate) fn stop(&self) {
        self.events.stop();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.events.is_stopping()
    }

    /// Stops taking records and sending replies: results of calls may be wrong from now on.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether a complete answer may be sent. May wait; the caller holds no lock.
    pub(crate) fn may_answer(&self) -> bool {
        let gate = self.gate.as_ref();
        gate.is_none_or(|gate| gate.may_answer())
    }

    /// Gauges of the gate.
    pub(crate) fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.gate
            .as_ref()
            .map_or_else(Vec::new, |gate| gate.gauges())
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}
