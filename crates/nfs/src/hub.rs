//! Where connections meet: epoll, the registry, and the memory that they share.
//!
//! Every descriptor is armed for one event at a time: who gets it owns it until it is armed again. Memory for
//! records that are arriving is reserved before it is filled, and for replies that clients do not take, counted; a
//! connection that gets none is not read until there is some again.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connection::{Connection, Ending};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::tls::Tls;

/// What stands for all workers to stop.
pub(crate) const STOP: u64 = 0;
/// What stands for the first listener; connections come behind the last.
pub(crate) const LISTENERS: u64 = 1;
/// What stands for the first connection.
const CONNECTIONS: u64 = 1 << 16;

/// How much, how many, how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest record.
    pub(crate) record_bytes: usize,
    /// Bytes reserved for records that are arriving, in all.
    pub(crate) arriving_bytes: u64,
    /// Bytes of replies that were not taken, in all.
    pub(crate) unsent_bytes: u64,
    /// Connections.
    pub(crate) connections: usize,
    /// Calls of one connection in progress.
    pub(crate) in_flight: u32,
    /// How long a record may take to arrive.
    pub(crate) record_time: Duration,
    /// How long a handshake of TLS may take.
    pub(crate) handshake_time: Duration,
    /// How long a client may take no byte of a reply.
    pub(crate) stall_time: Duration,
}

/// The same while others wait for the memory.
const CROWDED_TIME: Duration = Duration::from_secs(3);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Hub {
    epoll: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>, foldhash::fast::RandomState>>,
    next: AtomicU64,
    /// Connections that wait for memory.
    starved: Mutex<VecDeque<Weak<Connection>>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Arc<Log>,
    /// What clients that want TLS get.
    pub(crate) tls: Option<Tls>,
    stopping: AtomicBool,
}

impl Hub {
    pub(crate) fn new(
        limits: Limits,
        metrics: Arc<Metrics>,
        log: Arc<Log>,
        tls: Option<Tls>,
    ) -> std::io::Result<Hub> {
        Ok(Hub {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Mutex::default(),
            next: AtomicU64::new(CONNECTIONS),
            starved: Mutex::default(),
            limits,
            metrics,
            log,
            tls,
            stopping: AtomicBool::new(false),
        })
    }

    fn registry(
        &self,
    ) -> MutexGuard<'_, HashMap<u64, Arc<Connection>, foldhash::fast::RandomState>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event, or only looks for one.
    pub(crate) fn wait(&self, events: &mut Vec<epoll::Event>, only_look: bool) {
        events.clear();
        let at_once = Timespec::default();
        let timeout = only_look.then_some(&at_once);
        // Only a signal interrupts it.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout);
    }

    /// Adds a descriptor.
    pub(crate) fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token),
            flags,
        )?)
    }

    /// Arms a descriptor for its next event.
    pub(crate) fn arm(&self, fd: impl AsFd, token: u64, flags: EventFlags) {
        let flags = flags | EventFlags::ONESHOT;
        // It was added, and is open as long as its owner is borrowed.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags);
    }

    /// Takes a descriptor out.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Takes a new connection in; the one that has been idle longest goes if there are too many.
    pub(crate) fn admit(
        self: &Arc<Hub>,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> std::io::Result<()> {
        while self.registry().len() >= self.limits.connections && self.drop_idlest() {}
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(Arc::clone(self), token, stream, peer);
        self.registry().insert(token, Arc::clone(&connection));
        self.metrics
            .connections_accepted
            .fetch_add(1, Ordering::Relaxed);
        self.metrics.connections_now.fetch_add(1, Ordering::Relaxed);
        let armed = self.add(
            connection.stream(),
            token,
            EventFlags::IN | EventFlags::ONESHOT,
        );
        if armed.is_err() {
            connection.close();
        }
        armed
    }

    /// Closes the connection that has been idle longest. Returns whether there was one.
    pub(crate) fn drop_idlest(&self) -> bool {
        let all = self.all();
        let idlest = all.iter().min_by_key(|connection| connection.last_used());
        let Some(idlest) = idlest else { return false };
        idlest.end(Ending::Crowded);
        true
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
    pub(crate) fn remove(&self, token: u64) {
        if self.registry().remove(&token).is_some() {
            self.metrics.connections_now.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reserves memory for a record that is arriving.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let (used, limit) = (&self.metrics.arriving_bytes_now, self.limits.arriving_bytes);
        let reserve = |used: u64| used.checked_add(bytes as u64).filter(|sum| *sum <= limit);
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .is_ok()
    }

    /// Gives it back.
    pub(crate) fn unreserve(&self, bytes: usize) {
        self.metrics
            .arriving_bytes_now
            .fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Gives it back, and lets one of those who wait go on. No connection's lock is held.
    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.unreserve(bytes);
        let next = self.waiting().pop_front();
        if let Some(connection) = next.and_then(|weak| weak.upgrade()) {
            connection.resume();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Weak<Connection>>> {
        self.starved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection waits for memory.
    pub(crate) fn starve(&self, connection: &Arc<Connection>) {
        self.metrics.memory_waits.fetch_add(1, Ordering::Relaxed);
        self.waiting().push_back(Arc::downgrade(connection));
    }

    /// Counts bytes of a reply that were not taken. False if there are too many.
    pub(crate) fn keep_unsent(&self, bytes: usize) -> bool {
        let before = self
            .metrics
            .unsent_bytes_now
            .fetch_add(bytes as u64, Ordering::Relaxed);
        before + bytes as u64 <= self.limits.unsent_bytes
    }

    /// They were taken, or never will be.
    pub(crate) fn unsent_gone(&self, bytes: usize) {
        self.metrics
            .unsent_bytes_now
            .fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Ends connections whose clients are too slow, and lets those who wait for memory try again.
    pub(crate) fn look_after(&self, now: Instant) {
        let starved: Vec<_> = self.waiting().drain(..).collect();
        let crowded = |crowded: bool, time: Duration| {
            if crowded {
                time.min(CROWDED_TIME)
            } else {
                time
            }
        };
        let record_time = self.limits.record_time;
        let starving = !starved.is_empty();
        let record_times = (record_time, crowded(starving, record_time));
        let handshake_time = crowded(starving, self.limits.handshake_time);
        let unsent = self.metrics.unsent_bytes_now.load(Ordering::Relaxed);
        let stall_time = crowded(
            unsent > self.limits.unsent_bytes / 2,
            self.limits.stall_time,
        );
        for connection in self.all() {
            connection.look_after(now, record_times, handshake_time, stall_time);
        }
        for connection in starved.iter().filter_map(Weak::upgrade) {
            connection.resume();
        }
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

    /// From now on no record is taken.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
