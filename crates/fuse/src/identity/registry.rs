//! The streams of a mount, by user and name.
//!
//! A stream is held by its members: processes and threads that belong to it, and rules that name it. One without members,
//! of which nothing is uncommitted, is forgotten: a million short streams leave nothing. Its number is not used again.
//!
//! Invariants: a stream is in both maps or in none; no user has more than [`USER_MAX`]; no number is above [`NUMBER_MAX`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfast_stream::wire::Interval;
use steadfast_vfs::Stream;

/// Most streams of a user.
pub(crate) const USER_MAX: usize = 4096;
/// Most streams of all users.
const ALL_MAX: usize = 16 * USER_MAX;
/// The greatest number of a stream. The one above it is the volume's own, for the times of reads that it notes.
const NUMBER_MAX: u32 = u32::MAX - 1;
/// The interval that is the volume's.
const OF_VOLUME: u64 = u64::MAX;
/// References that the registry itself holds to a stream.
const OWN_REFERENCES: usize = 2;

/// A stream with a name.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) number: Stream,
    pub(crate) user: u32,
    pub(crate) name: String,
    ignore_fsync: AtomicBool,
    interval_ms: AtomicU64,
}

/// The stream that something belongs to; `None` is the volume's default stream.
pub(crate) type Member = Option<Arc<Named>>;

impl Named {
    /// Syncs of its user return at once.
    pub(crate) fn ignores_fsync(&self) -> bool {
        self.ignore_fsync.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ignore_fsync(&self, ignore: bool) {
        self.ignore_fsync.store(ignore, Ordering::Relaxed);
    }

    pub(crate) fn interval(&self) -> Interval {
        match self.interval_ms.load(Ordering::Relaxed) {
            OF_VOLUME => Interval::Volume,
            ms => Interval::Every(Duration::from_millis(ms)),
        }
    }

    pub(crate) fn set_interval(&self, interval: Option<Duration>) {
        let ms = interval.map_or(OF_VOLUME, |time| {
            u64::try_from(time.as_millis()).unwrap_or(OF_VOLUME)
        });
        self.interval_ms.store(ms, Ordering::Relaxed);
    }

    /// Processes, threads and rules that belong to it.
    pub(crate) fn members(self: &Arc<Named>) -> usize {
        Arc::strong_count(self).saturating_sub(OWN_REFERENCES)
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    by_name: HashMap<(u32, String), Arc<Named>>,
    by_number: BTreeMap<u32, Arc<Named>>,
    of_user: HashMap<u32, usize>,
    /// The number given last.
    last: u32,
    /// Position of the search for idle streams.
    hand: u32,
}

/// No stream can be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl Registry {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(crate) fn named(&self, user: u32, name: &str) -> Option<&Arc<Named>> {
        self.by_name.get(&(user, name.to_owned()))
    }

    pub(crate) fn numbered(&self, number: u32) -> Option<&Arc<Named>> {
        self.by_number.get(&number)
    }

    /// Those from a number on, in their order.
    pub(crate) fn from(&self, number: u32) -> impl Iterator<Item = &Arc<Named>> {
        self.by_number.range(number..).map(|(_, named)| named)
    }

    /// The stream of this name, made if there is none.
    pub(crate) fn join(&mut self, user: u32, name: &str) -> Result<Arc<Named>, Full> {
        if let Some(named) = self.named(user, name) {
            return Ok(Arc::clone(named));
        }
        if self.last >= NUMBER_MAX || self.by_number.len() >= ALL_MAX {
            return Err(Full);
        }
        let number = self.last + 1;
        let count = self.of_user.entry(user).or_default();
        if *count >= USER_MAX {
            return Err(Full);
        }
        *count += 1;
        self.last = number;
        let named = Arc::new(Named {
            number: Stream(number),
            user,
            name: name.to_owned(),
            ignore_fsync: AtomicBool::new(false),
            interval_ms: AtomicU64::new(OF_VOLUME),
        });
        self.by_number.insert(number, Arc::clone(&named));
        self.by_name
            .insert((user, name.to_owned()), Arc::clone(&named));
        Ok(named)
    }

    /// Looks at up to `count` streams, a different one each time, and removes those without members that `forget` lets go.
    pub(crate) fn tidy(&mut self, count: usize, forget: impl Fn(Stream) -> bool) {
        for _ in 0..count.min(self.by_number.len()) {
            let mut next = self.by_number.range(self.hand..).map(|(number, _)| *number);
            let Some(number) = next.next() else {
                self.hand = 0;
                continue;
            };
            self.hand = number.saturating_add(1);
            self.drop_if_idle(number, &forget);
        }
    }

    /// Removes the stream if nothing belongs to it and `forget` lets it go.
    pub(crate) fn drop_if_idle(&mut self, number: u32, forget: impl Fn(Stream) -> bool) {
        let Some(named) = self.by_number.get(&number) else {
            return;
        };
        if named.members() > 0 || !forget(named.number) {
            return;
        }
        let key = (named.user, named.name.clone());
        self.by_number.remove(&number);
        self.by_name.remove(&key);
        if let Some(count) = self.of_user.get_mut(&key.0) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_user.remove(&key.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_belongs_to_its_user() {
        let mut streams = Registry::default();
        let (a, b) = (streams.join(1, "x").unwrap(), streams.join(2, "x").unwrap());
        assert_ne!(a.number, b.number);
        assert_eq!(streams.join(1, "x").unwrap().number, a.number);
        assert_eq!(streams.named(2, "x").unwrap().number, b.number);
        assert!(streams.named(3, "x").is_none());
    }

    #[test]
    fn a_stream_goes_with_its_last_member_once_nothing_is_uncommitted() {
        let mut streams = Registry::default();
        let member = streams.join(1, "x").unwrap();
        streams.tidy(10, |_| true);
        assert_eq!(streams.len(), 1, "it has a member");
        drop(member);
        streams.tidy(10, |_| false);
        assert_eq!(streams.len(), 1, "something is uncommitted");
        streams.tidy(10, |_| true);
        assert!(streams.is_empty() && streams.by_name.is_empty() && streams.of_user.is_empty());
        assert_eq!(
            streams.join(1, "x").unwrap().number,
            Stream(2),
            "a new number"
        );
    }

    #[test]
    fn a_million_short_streams_leave_nothing() {
        let mut streams = Registry::default();
        let mut member = None;
        for i in 0..1_000_000 {
            let old: Member = member.replace(streams.join(7, &i.to_string()).unwrap());
            let number = old.as_ref().map(|named| named.number.0);
            drop(old);
            if let Some(number) = number {
                streams.drop_if_idle(number, |_| true);
            }
            assert!(streams.len() <= 1);
        }
    }

    #[test]
    fn a_user_at_the_limit_gets_no_more_and_others_do() {
        let mut streams = Registry::default();
        for i in 0..USER_MAX {
            streams.join(1, &i.to_string()).unwrap();
        }
        assert_eq!(streams.join(1, "more").unwrap_err(), Full);
        assert!(streams.join(1, "0").is_ok(), "one that is there");
        assert!(streams.join(2, "more").is_ok());
        streams.tidy(USER_MAX + 2, |_| true);
        assert!(streams.is_empty());
    }

    #[test]
    fn no_user_has_the_number_of_the_volumes_own_stream() {
        let mut streams = Registry {
            last: NUMBER_MAX - 1,
            ..Registry::default()
        };
        let last = streams.join(1, "last").unwrap();
        assert_eq!(last.number, Stream(u32::MAX - 1));
        assert_eq!(streams.join(1, "one more").unwrap_err(), Full);
        assert_eq!(streams.join(2, "one more").unwrap_err(), Full);
        assert_eq!(streams.len(), 1, "a refusal leaves nothing");
        assert_eq!(streams.join(1, "last").unwrap().number, last.number);
    }
}
