//! Events, the registry of connections, and what happens when connections or memory run out.
//!
//! *Events* are those of [`crate::events`], a token for each connection.
//!
//! *Room.* A connection that needs memory gets it: the connection that holds most goes, of the address that holds most. The same goes
//! for places: the connection that has been idle longest goes, of the address that has most connections. Clients that no
//! export admits are *guests*: a few places of their own, small records, some seconds.

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

/// The token of the end of the server.
pub(crate) const STOP: u64 = 0;
/// The token of the first connection.
const CONNECTIONS: u64 = 1;
/// Connections of an address whose buffers the kernel sizes as it likes, some megabytes; those of the others are bounded.
const ROOMY_CONNECTIONS: usize = 16;
const SOCKET_BYTES: usize = 128 << 10;
/// Most connections of clients that no export admits.
const GUESTS_MAX: usize = 64;

/// The bounds of all connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest record.
    pub(crate) record_bytes: usize,
    /// Memory that all connections hold.
    pub(crate) memory_bytes: u64,
    /// Bytes of replies of one connection that are in work or not taken.
    pub(crate) reply_bytes: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// Connections of one address.
    pub(crate) connections_per_address: usize,
    /// Calls of one connection in progress.
    pub(crate) in_flight: u32,
    /// How long a record may take to arrive.
    pub(crate) record_time: Duration,
    /// TLS handshakes of one address.
    pub(crate) handshakes: HandshakeLimits,
    /// How long a TLS handshake may take.
    pub(crate) handshake_time: Duration,
    /// How long a client may take no reply.
    pub(crate) stall_time: Duration,
    /// How long a client that no export admits may stay.
    pub(crate) guest_time: Duration,
}

type Registry = HashMap<u64, Arc<Connection>, foldhash::fast::RandomState>;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Reactor {
    pub(crate) events: Events,
    connections: RwLock<Registry>,
    guests: AtomicUsize,
    /// One connection is admitted at a time: two that saw the same place, or closed the same connection, would be one too many.
    admission: Mutex<()>,
    next: AtomicU64,
    peers: Peers,
    pub(crate) memory: Arc<Memory>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Arc<Log>,
    /// What clients that want TLS get.
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

    /// Takes a new connection in. One that no export admits is a guest.
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

    /// How many connections were refused, or closed for what their clients did or for room. It only grows.
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

    /// Closes the connection that has been idle longest, of the address that has most. Returns whether there was one.
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

    /// Makes room for `more` bytes, while it can: closes the connections that hold most, but not `asker`. What a worker is
    /// still reading comes free a moment later, and calls those that wait then. The lock of no connection is held.
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

    /// The connection of a token, if it still is one.
    pub(crate) fn get(&self, token: u64) -> Option<Arc<Connection>> {
        self.registry().get(&token).cloned()
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Arc<Connection>> {
        self.registry().values().cloned().collect()
    }

    /// A connection has ended.
    pub(crate) fn remove(&self, connection: &Connection) {
        if self.change_registry().remove(&connection.token()).is_some() {
            self.metrics.connections_now.fetch_sub(1, Ordering::Relaxed);
            if connection.is_guest() {
                self.guests.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Ends connections whose time is over.
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

    /// From now on no record is taken.
    pub(crate) fn stop(&self) {
        self.events.stop();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.events.is_stopping()
    }

    /// The same, and no reply is sent any more: what calls find from now on is not true.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether an answer that is complete may leave. May wait; no lock is held.
    pub(crate) fn may_answer(&self) -> bool {
        let gate = self.gate.as_ref();
        gate.is_none_or(|gate| gate.may_answer())
    }

    /// What the gate shows.
    pub(crate) fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.gate
            .as_ref()
            .map_or_else(Vec::new, |gate| gate.gauges())
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }
}
