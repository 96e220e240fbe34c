//! The duplicate-request cache: a call that comes again, because its reply was lost, is answered
//! and not carried out again.
//!
//! A call is known by the client's address and port, its number, its procedure, its length and a checksum of its
//! beginning. The port is a part of it: clients that send again over a new connection take the port of the old one, as
//! Linux does for this very purpose; without it, two programs of one host that number their calls alike would get
//! each other's answers, and one of them would believe that something was done which was not.
//! While the first is in progress, the second waits for its reply and occupies nobody. Replies are remembered for
//! the last [`REMEMBERED`] calls; those in progress always.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::Connection;
use crate::tls::Security;

/// Calls whose replies are remembered.
pub(crate) const REMEMBERED: usize = 32_768;
/// Parts of the cache, each with a lock.
const PARTS: usize = 16;
/// Bytes of a call that are compared.
const COMPARED_BYTES: usize = 512;
/// Most repetitions that wait for one call in progress.
const WAITING_MAX: usize = 4;

/// What a call is known by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    peer: SocketAddr,
    xid: u32,
    procedure: u32,
    len: usize,
    sum: u64,
    /// What was asked under protection is answered under no less.
    security: Security,
}

impl Key {
    /// Of a whole call.
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
}

#[derive(Debug)]
enum Entry {
    InProgress { waiting: Vec<Arc<Connection>> },
    Done(Box<[u8]>),
}

#[derive(Debug, Default)]
struct Part {
    entries: HashMap<Key, Entry, foldhash::fast::RandomState>,
    /// Finished calls, oldest first.
    order: VecDeque<Key>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    parts: [Mutex<Part>; PARTS],
    hasher: foldhash::fast::RandomState,
}

/// What is to be done with a call.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is new: carry it out, and tell of the reply ([`Cache::done`]) or that there is none ([`Cache::forget`]).
    New,
    /// This is its reply.
    Again(Box<[u8]>),
    /// It is in progress: the reply will come.
    InProgress,
}

impl Cache {
    fn part(&self, key: &Key) -> MutexGuard<'_, Part> {
        let part = &self.parts[self.hasher.hash_one(key) as usize % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks what is to be done with a call that came over a connection.
    pub(crate) fn ask(&self, key: Key, connection: &Arc<Connection>) -> Verdict {
        let mut part = self.part(&key);
        match part.entries.get_mut(&key) {
            Some(Entry::Done(reply)) => return Verdict::Again(reply.clone()),
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

    /// Remembers the reply of a call; who waits for it.
    pub(crate) fn done(&self, key: Key, reply: &[u8]) -> Vec<Arc<Connection>> {
        let mut part = self.part(&key);
        let before = part.entries.insert(key, Entry::Done(reply.into()));
        part.order.push_back(key);
        if part.order.len() > REMEMBERED / PARTS
            && let Some(oldest) = part.order.pop_front()
        {
            part.entries.remove(&oldest);
        }
        match before {
            Some(Entry::InProgress { waiting }) => waiting,
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(port: u16, xid: u32) -> Key {
        let peer = (([127, 0, 0, 1], port).into(), Security::None);
        Key::of(peer, xid, 12, b"call")
    }

    #[test]
    fn a_call_is_carried_out_once_and_the_last_are_remembered() {
        let cache = Cache::default();
        let connection = Connection::for_tests();
        assert_eq!(cache.ask(key(1, 1), &connection), Verdict::New);
        let again = cache.ask(key(1, 1), &connection);
        assert!(matches!(again, Verdict::InProgress));
        let waiting = cache.done(key(1, 1), b"reply");
        assert!(waiting.len() == 1 && Arc::ptr_eq(&waiting[0], &connection));
        let again = cache.ask(key(1, 1), &connection);
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
            assert_eq!(cache.ask(other, &connection), Verdict::New);
            cache.done(other, b"x");
        }
        for xid in 3..3 + 2 * REMEMBERED as u32 {
            assert_eq!(cache.ask(key(1, xid), &connection), Verdict::New);
            cache.done(key(1, xid), b"x");
        }
        let parts = cache.parts.iter().map(|part| part.lock().unwrap());
        let held: usize = parts.map(|part| part.entries.len()).sum();
        assert!(held <= REMEMBERED, "{held}");
        assert_eq!(cache.ask(key(1, 1), &connection), Verdict::New, "long ago");
    }
}
