//! The duplicate request cache: a call that is retransmitted, because its reply was lost, is answered
//! and not executed again.
//!
//! The key of a call is the client's address and port, its number, its procedure, its length and a checksum of its
//! beginning. The port is part of the key: clients that retransmit over a new connection reuse the port of the old one, as
//! Linux does for this very purpose. Without the port, two programs of one host with equal numbers would get
//! each other's answers, and one of them would take its call for executed although it was not.
//! While the original call is in progress, the retransmitted one waits for its reply and occupies no worker.
//!
//! Invariants:
//! * only calls of clients that an export admits, with a handle of that export, are cached (`dispatch`);
//! * a reply is dropped [`REMEMBERED_FOR`] after it was made: numbers are reused, and an old answer to a new call would
//!   report a file that does not exist;
//! * a client evicts its own replies, not those of others, and WRITEs evict only WRITEs. The oldest reply of all is evicted
//!   only when so many clients fill their shares that [`Limits::all`] is reached.
//!
//! The cache is in memory: after a restart a retransmitted call is executed again, unless the volume keeps replies (`kept`).
//! The key is the same on all machines: after a fail-over, the client must have the same address and port, and the servers must
//! see them, as with a service address.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nfs3_types::nfs3::NFS_PROGRAM;

use crate::connection::Connection;
use crate::security::Security;

/// Time that a reply is kept: longer than clients take to retransmit a call over a new connection.
pub(crate) const REMEMBERED_FOR: Duration = Duration::from_secs(120);
/// Bytes of a call under the checksum.
const COMPARED_BYTES: usize = 512;
/// Most retransmissions that wait for one call in progress.
const WAITING_MAX: usize = 4;

/// Limits of the number of kept replies.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Most replies of one client's address.
    of_client: usize,
    /// Most replies of all clients.
    all: usize,
}

/// Limits for calls that change names or attributes.
const NAMES: Limits = Limits {
    of_client: 4096,
    all: 32_768,
};
/// Limits for WRITEs.
const WRITES: Limits = Limits {
    of_client: 1024,
    all: 8192,
};

/// The key of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) peer: SocketAddr,
    pub(crate) xid: u32,
    pub(crate) procedure: u32,
    pub(crate) len: usize,
    pub(crate) sum: u64,
    /// Protection of the connection, so that a reply is never sent with less protection than its call.
    pub(crate) security: Security,
}

impl Key {
    /// The key of a complete call.
    pub(crate) fn of(
        (peer, security): (SocketAddr, Security),
        xid: u32,
        procedure: u32,
        record: &[u8],
    ) -> Key {
        let begin = &record[..record.len().min(COMPARED_BYTES)];
        Key {
            peer,
            xid,
            procedure,
            len: record.len(),
            sum: xxhash_rust::xxh3::xxh3_64(begin),
            security,
        }
    }

    fn client(&self) -> IpAddr {
        self.peer.ip().to_canonical()
    }
}

#[derive(Debug)]
enum Entry {
    InProgress { waiting: Vec<Arc<Connection>> },
    Done { at: Instant, reply: Box<[u8]> },
}

/// A class of calls that evict each other.
#[derive(Debug)]
struct Part {
    limits: Limits,
    entries: HashMap<Key, Entry, foldhash::fast::RandomState>,
    /// Finished calls by number, oldest first.
    order: BTreeMap<u64, Key>,
    /// Numbers of each client's finished calls, oldest first.
    clients: HashMap<IpAddr, VecDeque<u64>, foldhash::fast::RandomState>,
    next: u64,
}

impl Part {
    fn new(limits: Limits) -> Part {
        Part {
            limits,
            entries: HashMap::default(),
            order: BTreeMap::new(),
            clients: HashMap::default(),
            next: 0,
        }
    }

    /// Evicts the oldest reply of a client.
    fn forget_oldest_of(&mut self, client: IpAddr) {
        let Some(numbers) = self.clients.get_mut(&client) else {
            return;
        };
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.clients.remove(&client);
        }
        if let Some(key) = number.and_then(|number| self.order.remove(&number)) {
            self.entries.remove(&key);
        }
    }

    /// Drops replies older than `age`.
    fn expire(&mut self, now: Instant, age: Duration) {
        while let Some((_, key)) = self.order.first_key_value() {
            let old = match self.entries.get(key) {
                Some(Entry::Done { at, .. }) => now.saturating_duration_since(*at) >= age,
                _ => true,
            };
            if !old {
                return;
            }
            // The oldest of all is also the oldest of its client.
            self.forget_oldest_of(key.client());
        }
    }

    fn remember(&mut self, key: Key, reply: &[u8], now: Instant) -> Option<Entry> {
        let number = self.next;
        self.next += 1;
        let client = key.client();
        let of_client = self.clients.get(&client).map_or(0, VecDeque::len);
        if of_client >= self.limits.of_client {
            self.forget_oldest_of(client);
        } else if self.order.len() >= self.limits.all
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            self.forget_oldest_of(oldest.client());
        }
        self.order.insert(number, key);
        self.clients.entry(client).or_default().push_back(number);
        let done = Entry::Done {
            at: now,
            reply: reply.into(),
        };
        self.entries.insert(key, done)
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Cache {
    names: Mutex<Part>,
    writes: Mutex<Part>,
    age: Duration,
}

/// The decision on a call.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is new: execute it, and report the reply ([`Cache::done`]).
    New,
    /// It was executed before, with this reply.
    Again(Box<[u8]>),
    /// It is in progress: its reply will be sent later.
    InProgress,
}

impl Cache {
    /// An empty cache that keeps replies for `age`.
    pub(crate) fn new(age: Duration) -> Cache {
        Cache {
            names: Mutex::new(Part::new(NAMES)),
            writes: Mutex::new(Part::new(WRITES)),
            age,
        }
    }

    fn part(&self, key: &Key) -> MutexGuard<'_, Part> {
        let part = match key.procedure == NFS_PROGRAM::NFSPROC3_WRITE as u32 {
            true => &self.writes,
            false => &self.names,
        };
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides on a call from a connection.
    pub(crate) fn ask(&self, key: Key, connection: &Arc<Connection>, now: Instant) -> Verdict {
        let mut part = self.part(&key);
        part.expire(now, self.age);
        match part.entries.get_mut(&key) {
            Some(Entry::Done { reply, .. }) => return Verdict::Again(reply.clone()),
            Some(Entry::InProgress { waiting }) => {
                if waiting.len() < WAITING_MAX {
                    waiting.push(Arc::clone(connection));
                }
                return Verdict::InProgress;
            }
            None => {}
        }
        let waiting = Vec::new();
        part.entries.insert(key, Entry::InProgress { waiting });
        Verdict::New
    }

    /// Adds a reply that an earlier server has left.
    pub(crate) fn inherit(&self, key: Key, reply: &[u8], now: Instant) {
        let mut part = self.part(&key);
        if !part.entries.contains_key(&key) {
            part.remember(key, reply, now);
        }
    }

    /// Adds the reply of a call. Returns the connections that also wait for it.
    pub(crate) fn done(&self, key: Key, reply: &[u8], now: Instant) -> Vec<Arc<Connection>> {
        let mut part = self.part(&key);
        part.expire(now, self.age);
        match part.remember(key, reply, now) {
            Some(Entry::InProgress { waiting }) => waiting,
            _ => Vec::new(),
        }
    }
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::new(REMEMBERED_FOR)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CREATE: u32 = NFS_PROGRAM::NFSPROC3_CREATE as u32;
    const WRITE: u32 = NFS_PROGRAM::NFSPROC3_WRITE as u32;

    fn key_of(host: u8, port: u16, xid: u32, procedure: u32) -> Key {
        let peer = (([127, 0, 0, host], port).into(), Security::None);
        Key::of(peer, xid, procedure, b"call")
    }

    fn key(port: u16, xid: u32) -> Key {
        key_of(1, port, xid, CREATE)
    }

    fn held(cache: &Cache) -> (usize, usize) {
        let len = |part: &Mutex<Part>| {
            let part = part.lock().unwrap();
            let of_clients: usize = part.clients.values().map(VecDeque::len).sum();
            assert_eq!(part.entries.len(), part.order.len());
            assert_eq!(part.entries.len(), of_clients);
            part.entries.len()
        };
        (len(&cache.names), len(&cache.writes))
    }

    #[test]
    fn a_call_is_executed_once_and_answered_again() {
        let (cache, now) = (Cache::default(), Instant::now());
        let connection = Connection::for_tests();
        assert_eq!(cache.ask(key(1, 1), &connection, now), Verdict::New);
        let again = cache.ask(key(1, 1), &connection, now);
        assert!(matches!(again, Verdict::InProgress));
        let waiting = cache.done(key(1, 1), b"reply", now);
        assert!(waiting.len() == 1 && Arc::ptr_eq(&waiting[0], &connection));
        let again = cache.ask(key(1, 1), &connection, now);
        assert!(matches!(again, Verdict::Again(r) if *r == *b"reply"));
        let longer = Key {
            len: 12,
            ..key(1, 1)
        };
        let protected = Key {
            security: Security::Tls,
            ..key(1, 1)
        };
        for other in [key(2, 1), key(1, 2), longer, protected] {
            assert_eq!(cache.ask(other, &connection, now), Verdict::New);
            cache.done(other, b"x", now);
        }
        assert_eq!(held(&cache), (5, 0));
    }

    /// A CREATE with a number that was reused hours later was answered OK, but the file did not exist: it had been removed
    /// since.
    #[test]
    fn an_answer_is_forgotten_after_two_minutes() {
        let (cache, start) = (Cache::default(), Instant::now());
        let connection = Connection::for_tests();
        assert_eq!(cache.ask(key(1, 1), &connection, start), Verdict::New);
        // The age counts from the reply, not from the call.
        let answered = start + REMEMBERED_FOR * 3;
        let again = cache.ask(key(1, 1), &connection, answered);
        assert!(matches!(again, Verdict::InProgress), "never while it runs");
        cache.done(key(1, 1), b"reply", answered);
        let late = answered + REMEMBERED_FOR - Duration::from_millis(1);
        let again = cache.ask(key(1, 1), &connection, late);
        assert!(matches!(again, Verdict::Again(_)));
        let over = answered + REMEMBERED_FOR;
        assert_eq!(cache.ask(key(1, 1), &connection, over), Verdict::New);
        cache.done(key(1, 1), b"reply", over);
        assert_eq!(held(&cache), (1, 0));
    }

    /// The writes of one client evicted the replies of all others.
    #[test]
    fn a_client_evicts_its_own_replies_and_writes_evict_only_writes() {
        let (cache, now) = (Cache::default(), Instant::now());
        let connection = Connection::for_tests();
        let call = |key: Key| {
            assert_eq!(cache.ask(key, &connection, now), Verdict::New);
            cache.done(key, b"x", now);
        };
        let known = |key: Key| {
            let again = cache.ask(key, &connection, now);
            if again == Verdict::New {
                cache.done(key, b"x", now);
            }
            again != Verdict::New
        };
        call(key_of(1, 1, 1, CREATE));
        call(key_of(2, 1, 1, CREATE));
        for xid in 2..2 + 2 * WRITES.all as u32 {
            call(key_of(1, 1, xid, WRITE));
        }
        assert_eq!(held(&cache), (2, WRITES.of_client));
        assert!(known(key_of(1, 1, 1, CREATE)), "writes do not push it out");
        for xid in 2..1 + NAMES.of_client as u32 {
            call(key_of(1, 1, xid, CREATE));
        }
        assert!(known(key_of(1, 1, 1, CREATE)), "its last place");
        call(key_of(1, 9, 1, CREATE));
        assert!(
            !known(key_of(1, 1, 1, CREATE)),
            "another port is no other client"
        );
        assert!(known(key_of(2, 1, 1, CREATE)), "nobody else pays");
        for host in 3..40 {
            for xid in 0..NAMES.of_client as u32 {
                call(key_of(host, 1, xid, CREATE));
            }
        }
        assert_eq!(held(&cache).0, NAMES.all);
        assert!(!known(key_of(2, 1, 1, CREATE)), "the oldest of too many");
    }
}
