//! Accounting of memory that clients make the server hold, against one limit, and the shares of each address.
//!
//! Every connection has a [`Budget`]. Large amounts are reserved before they are allocated, small ones are counted afterwards.
//! When memory runs out, the reactor picks the address that holds most, and closes its connection that holds most.
//!
//! All large data, records and unsent replies, is in buffers of one size, which are reused: if many threads allocated and freed
//! megabytes of all sizes, the allocator would hold several times the memory in use.
//!
//! Invariants: a budget's memory is given back by [`Budget::clear`] or at the drop of the connection, whichever comes
//! first; only `Working` memory outlives a closed connection, and the calls that hold it end by themselves.

use std::collections::HashMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::Metrics;

/// The purpose of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    /// The connection itself, and its TLS session.
    Base,
    /// Records that arrive or wait for a worker, and TLS handshakes.
    Arriving,
    /// Replies that the client has not taken.
    Unsent,
    /// Records and replies of calls in progress: closing the connection does not free them.
    Working,
}

const ACCOUNTS: usize = 4;
/// Most free large buffers that are kept.
const FREE_BUFFERS: usize = 4;

/// A connection that waits for memory.
pub(crate) trait Waiter: Debug + Send + Sync {
    /// Its identity.
    fn token(&self) -> u64;
    /// Called when memory was given back: it tries again. Takes none of its locks.
    fn post(&self);
}

/// The memory of all connections.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    metrics: Arc<Metrics>,
    /// Bytes of a large buffer.
    pub(crate) buffer_bytes: usize,
    /// Free large buffers.
    free: Mutex<Vec<Vec<u8>>>,
    /// Connections that wait until calls in progress give memory back.
    waiting: Mutex<HashMap<u64, Arc<dyn Waiter>>>,
    has_waiters: AtomicBool,
}

impl Memory {
    pub(crate) fn new(limit: u64, buffer_bytes: usize, metrics: Arc<Metrics>) -> Memory {
        Memory {
            limit,
            metrics,
            buffer_bytes,
            free: Mutex::default(),
            waiting: Mutex::default(),
            has_waiters: AtomicBool::new(false),
        }
    }

    /// Bytes that must be freed for `more`.
    pub(crate) fn missing(&self, more: usize) -> u64 {
        let used = self.metrics.memory_bytes_now.load(Relaxed);
        (used + more as u64).saturating_sub(self.limit)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An empty large buffer. The caller has counted its memory.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let buffer = self.free().pop();
        buffer.unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes))
    }

    /// Takes a buffer back, if it is a large one.
    pub(crate) fn recycle(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() == self.buffer_bytes {
            buffer.clear();
            self.free().push(buffer);
        }
    }

    /// Returns most free buffers to the system.
    pub(crate) fn shrink(&self) {
        let mut free = self.free();
        let kept = free.len().min(FREE_BUFFERS);
        let surplus = free.split_off(kept);
        drop(free);
        drop(surplus);
    }

    fn gauge(&self, account: Account) -> Option<&AtomicU64> {
        match account {
            Account::Base | Account::Working => None,
            Account::Arriving => Some(&self.metrics.arriving_bytes_now),
            Account::Unsent => Some(&self.metrics.unsent_bytes_now),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Waiter>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection to be called when memory is given back.
    pub(crate) fn wait(&self, waiter: Arc<dyn Waiter>) {
        self.metrics.memory_waits.fetch_add(1, Relaxed);
        self.waiting().insert(waiter.token(), waiter);
        self.has_waiters.store(true, Relaxed);
        // Memory that was given back before the line above woke no waiting connection.
        fence(SeqCst);
        if self.missing(self.buffer_bytes) == 0 {
            self.call_waiting();
        }
    }

    /// Calls the waiting connections. Takes no lock of a connection.
    pub(crate) fn call_waiting(&self) {
        // Pairs with the fence in `wait`: this thread sees the waiting connection, or `wait` sees the memory that was given
        // back.
        fence(SeqCst);
        if self.has_waiters.swap(false, Relaxed) {
            let waiting = std::mem::take(&mut *self.waiting());
            for waiter in waiting.into_values() {
                waiter.post();
            }
        }
    }
}

/// The memory of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    memory: Arc<Memory>,
    pub(crate) peer: Arc<Peer>,
    accounts: [AtomicUsize; ACCOUNTS],
}

impl Budget {
    pub(crate) fn new(memory: Arc<Memory>, peer: Arc<Peer>) -> Budget {
        Budget {
            memory,
            peer,
            accounts: Default::default(),
        }
    }

    /// Counts bytes if there is room for them.
    pub(crate) fn try_add(&self, account: Account, bytes: usize) -> bool {
        let (used, limit) = (&self.memory.metrics.memory_bytes_now, self.memory.limit);
        let add = |used: u64| used.checked_add(bytes as u64).filter(|sum| *sum <= limit);
        let added = used.fetch_update(Relaxed, Relaxed, add).is_ok();
        if added {
            self.note(account, bytes);
        }
        added
    }

    /// Counts bytes that are allocated already.
    pub(crate) fn add(&self, account: Account, bytes: usize) {
        let used = &self.memory.metrics.memory_bytes_now;
        used.fetch_add(bytes as u64, Relaxed);
        self.note(account, bytes);
    }

    fn note(&self, account: Account, bytes: usize) {
        self.accounts[account as usize].fetch_add(bytes, Relaxed);
        if let Some(gauge) = self.memory.gauge(account) {
            gauge.fetch_add(bytes as u64, Relaxed);
        }
        if account != Account::Working {
            self.peer.held.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Gives bytes back, at most those that the account has.
    pub(crate) fn sub(&self, account: Account, bytes: usize) {
        let mut given = 0;
        let sub = |held: usize| {
            given = bytes.min(held);
            Some(held - given)
        };
        let _ = self.accounts[account as usize].fetch_update(Relaxed, Relaxed, sub);
        self.give_back(account, given);
    }

    /// Gives back all that the account has.
    pub(crate) fn clear(&self, account: Account) {
        let given = self.accounts[account as usize].swap(0, Relaxed);
        self.give_back(account, given);
    }

    fn give_back(&self, account: Account, given: usize) {
        if given == 0 {
            return;
        }
        if let Some(gauge) = self.memory.gauge(account) {
            gauge.fetch_sub(given as u64, Relaxed);
        }
        if account != Account::Working {
            self.peer.held.fetch_sub(given as u64, Relaxed);
        }
        let used = &self.memory.metrics.memory_bytes_now;
        used.fetch_sub(given as u64, Relaxed);
        self.memory.call_waiting();
    }

    /// Bytes that closing the connection frees, besides those of the connection itself.
    pub(crate) fn releasable(&self) -> usize {
        let held = |account: Account| self.accounts[account as usize].load(Relaxed);
        held(Account::Arriving) + held(Account::Unsent)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        for account in [
            Account::Base,
            Account::Arriving,
            Account::Unsent,
            Account::Working,
        ] {
            self.clear(account);
        }
        self.peer.connections.fetch_sub(1, Relaxed);
    }
}

/// Limits of one address's TLS handshakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandshakeLimits {
    /// Most concurrent handshakes.
    pub(crate) now: u32,
    /// Most handshakes begun within a second.
    pub(crate) per_second: u32,
}

#[derive(Debug)]
struct Handshakes {
    now: u32,
    begun: u32,
    second: Instant,
}

/// An address, with all its connections.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) connections: AtomicUsize,
    /// Bytes that its connections hold.
    pub(crate) held: AtomicU64,
    handshakes: Mutex<Handshakes>,
}

/// Period in which the handshakes of an address are counted.
const SECOND: Duration = Duration::from_secs(1);

impl Peer {
    fn handshakes(&self) -> MutexGuard<'_, Handshakes> {
        self.handshakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a TLS handshake, unless the address has too many.
    pub(crate) fn begin_handshake(&self, now: Instant, limits: HandshakeLimits) -> bool {
        let mut handshakes = self.handshakes();
        if now.saturating_duration_since(handshakes.second) >= SECOND {
            (handshakes.second, handshakes.begun) = (now, 0);
        }
        let may = handshakes.now < limits.now && handshakes.begun < limits.per_second;
        if may {
            handshakes.now += 1;
            handshakes.begun += 1;
        }
        may
    }

    pub(crate) fn end_handshake(&self) {
        let mut handshakes = self.handshakes();
        handshakes.now = handshakes.now.saturating_sub(1);
    }

    /// Whether its state can be dropped.
    fn is_gone(&self, now: Instant) -> bool {
        self.connections.load(Relaxed) == 0
            && now.saturating_duration_since(self.handshakes().second) >= SECOND
    }
}

/// All addresses.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<IpAddr, Arc<Peer>, foldhash::fast::RandomState>>);

/// One IPv6 network counts as one address, because its hosts choose the other bits.
fn share_of(address: IpAddr) -> IpAddr {
    const HOST_BITS: u32 = 64;
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> HOST_BITS << HOST_BITS).into()),
        v4 => v4,
    }
}

impl Peers {
    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Peer>, foldhash::fast::RandomState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a new connection, which is counted until its budget is dropped.
    pub(crate) fn join(&self, address: IpAddr, now: Instant) -> Arc<Peer> {
        let new = || {
            Arc::new(Peer {
                connections: AtomicUsize::new(0),
                held: AtomicU64::new(0),
                handshakes: Mutex::new(Handshakes {
                    now: 0,
                    begun: 0,
                    second: now,
                }),
            })
        };
        let mut all = self.all();
        let peer = all.entry(share_of(address)).or_insert_with(new);
        peer.connections.fetch_add(1, Relaxed);
        Arc::clone(peer)
    }

    /// Drops addresses without connections.
    pub(crate) fn forget_gone(&self, now: Instant) {
        self.all().retain(|_, peer| !peer.is_gone(now));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn budget(memory: &Arc<Memory>, peers: &Peers, address: &str) -> Budget {
        let peer = peers.join(address.parse().unwrap(), Instant::now());
        Budget::new(Arc::clone(memory), peer)
    }

    #[test]
    fn counted_memory_is_given_back_once() {
        let metrics = Arc::new(Metrics::default());
        let memory = Arc::new(Memory::new(100, 10, Arc::clone(&metrics)));
        let peers = Peers::default();
        let used = || metrics.memory_bytes_now.load(Relaxed);
        let one = budget(&memory, &peers, "10.0.0.1");
        assert!(one.try_add(Account::Arriving, 60));
        assert!(!one.try_add(Account::Working, 41), "beyond the limit");
        one.add(Account::Unsent, 41);
        assert_eq!((used(), memory.missing(0)), (101, 1));
        assert_eq!((one.releasable(), one.peer.held.load(Relaxed)), (101, 101));
        one.clear(Account::Arriving);
        one.sub(Account::Arriving, 60);
        assert_eq!(used(), 41, "it was cleared before");
        drop(one);
        assert_eq!(used(), 0);
    }

    #[test]
    fn handshakes_of_an_address_have_a_share_and_a_rate() {
        let (peers, now) = (Peers::default(), Instant::now());
        let limits = HandshakeLimits {
            now: 2,
            per_second: 3,
        };
        let one = peers.join("2001:db8::1".parse().unwrap(), now);
        let same = peers.join("2001:db8::2".parse().unwrap(), now);
        assert!(Arc::ptr_eq(&one, &same), "one network is one address");
        assert!(one.begin_handshake(now, limits) && one.begin_handshake(now, limits));
        assert!(!one.begin_handshake(now, limits), "two at a time");
        one.end_handshake();
        assert!(one.begin_handshake(now, limits));
        one.end_handshake();
        assert!(!one.begin_handshake(now, limits), "three within a second");
        assert!(one.begin_handshake(now + SECOND, limits));
        peers.forget_gone(now + SECOND * 9);
        one.connections.store(0, Relaxed);
        peers.forget_gone(now + SECOND * 9);
        let new = peers.join("2001:db8::1".parse().unwrap(), now);
        assert!(!Arc::ptr_eq(&one, &new));
    }
}
