//! The rule by which requests get threads, as pure code; `readers` carries it out for both transports.
//!
//! *One thread serves as long as it can go on*: it receives a request, answers it, and receives the next. Another thread takes
//! its place only while it sleeps: before it waits for the medium, if there are other clients and most of the last
//! such waits put a thread to sleep for longer than it takes to wake one; and, whatever the reason, when one request has kept it
//! for too long. *A lone client is served where it runs, by processors that do not halt*: the thread moves to the client's processor, and idle
//! processors poll as long as requests follow closely. A second client among the last [`COMPANY`] requests ends
//! both: then processors have enough to do, and a thread that spins is in the way.
//!
//! The gain of each part, through `/dev/fuse` on two processors, volume in memory, loads of `bench/load`. Medians of five runs in
//! turns: with the thread not moved, `smallfile-1` makes 4,500 files/s instead of 12,000 (three runs of five; the other two hit the
//! client's processor by chance). Calling a thread only for waits that sleep, together with no polling beside a second client: `varmail-4`
//! 3,070 rounds/s instead of 2,630. Polling, on an idle machine: `smallfile-1` 15,700 files/s instead of 6,000; on a busy one no
//! difference.

use std::time::Duration;

/// Other clients count as being there for this many requests after the last sign of them.
pub(crate) const COMPANY: u64 = 64;
/// A thread that sleeps for this long is worth another thread's waking.
pub(crate) const LONG: Duration = Duration::from_micros(60);
/// Waits that sleep for long count up to this, others down to zero: from the middle on, the next one is expected to.
const VOTES_MAX: u8 = 7;
const VOTES_LONG: u8 = 4;
/// Requests of a lone client follow closely if this is the longest time between them.
pub(crate) const CLOSE: Duration = Duration::from_millis(1);
/// This many close requests in a row begin the polling.
pub(crate) const CLOSE_TOGETHER: u32 = 8;

/// Reason for which a request may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// Content that it reads.
    Content,
    /// Durability of changes.
    Commit,
}

/// State of the rule. Every call is O(1).
#[derive(Debug)]
pub(crate) struct Rule {
    /// Requests begun.
    begun: u64,
    /// The client of the last one; 0 if there is none.
    client: u32,
    /// Number of begun requests until which more than one client is there.
    company_until: u64,
    /// Whether waits put threads to sleep for long, by their reason.
    votes: [u8; 2],
    /// Start of the last request.
    last: Duration,
    /// Close requests in a row.
    close: u32,
}

impl Rule {
    pub(crate) fn new() -> Rule {
        Rule {
            begun: 0,
            client: 0,
            company_until: 0,
            votes: [VOTES_MAX; 2],
            last: Duration::ZERO,
            close: 0,
        }
    }

    /// A request of the thread `client` begins (0: of none, as RELEASE and FORGET are).
    pub(crate) fn begin(&mut self, client: u32) {
        self.begun = self.begun.wrapping_add(1);
        if client != 0 && client != self.client {
            if self.client != 0 {
                self.company_until = self.begun.wrapping_add(COMPANY);
                self.close = 0;
            }
            self.client = client;
        }
    }

    /// Requests begun so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// More than one client is there.
    pub(crate) fn company(&self) -> bool {
        self.begun < self.company_until
    }

    /// Whether to poll from now on, if no thread does: after each [`Rule::begin`], with the time.
    pub(crate) fn polls(&mut self, now: Duration) -> bool {
        let close = !self.company() && now.saturating_sub(self.last) <= CLOSE;
        self.last = now;
        self.close = if close { self.close + 1 } else { 0 };
        if self.close < CLOSE_TOGETHER {
            return false;
        }
        self.close = 0;
        true
    }

    /// Whether a wait that begins will probably put the thread to sleep for long.
    pub(crate) fn sleeps(&self, what: For) -> bool {
        self.votes[what as usize] >= VOTES_LONG
    }

    /// A wait is over, for which the thread has slept so long.
    pub(crate) fn slept(&mut self, what: For, asleep: Duration) {
        let votes = &mut self.votes[what as usize];
        *votes = match asleep >= LONG {
            true => (*votes + 1).min(VOTES_MAX),
            false => votes.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_client_is_company_for_a_while() {
        let mut rule = Rule::new();
        let mut company_after = |client| {
            rule.begin(client);
            rule.company()
        };
        assert!((0..100).all(|_| !company_after(7)), "alone");
        assert!(!company_after(0), "the kernel itself is no other client");
        assert!(company_after(8));
        assert!((1..COMPANY).all(|_| company_after(8)));
        assert!(!company_after(8), "it is alone by now");
        assert!(company_after(7));
    }

    #[test]
    fn waits_are_long_if_most_of_the_last_ones_were() {
        let mut rule = Rule::new();
        assert!(rule.sleeps(For::Commit), "until it is known");
        for _ in 0..VOTES_MAX {
            rule.slept(For::Commit, LONG / 2);
        }
        assert!(!rule.sleeps(For::Commit));
        assert!(rule.sleeps(For::Content), "each kind by itself");
        for _ in 0..1000 {
            rule.slept(For::Commit, LONG * 100);
            rule.slept(For::Commit, LONG / 2);
            assert!(!rule.sleeps(For::Commit), "the odd long one does not count");
        }
        for _ in 0..VOTES_LONG {
            rule.slept(For::Commit, LONG);
        }
        assert!(rule.sleeps(For::Commit));
    }

    #[test]
    fn processors_poll_for_a_lone_client_whose_requests_come_closely() {
        let mut rule = Rule::new();
        let mut now = CLOSE * 2;
        let mut polls = |client, after| {
            now += after;
            rule.begin(client);
            rule.polls(now)
        };
        for _ in 0..2 * CLOSE_TOGETHER {
            assert!(!polls(7, CLOSE * 2), "requests far apart");
        }
        for _ in 1..CLOSE_TOGETHER {
            assert!(!polls(7, CLOSE / 4));
        }
        assert!(polls(7, CLOSE / 4));
        assert!((0..COMPANY).all(|_| !polls(8, CLOSE / 4)), "two clients");
        let until = (0..2 * CLOSE_TOGETHER).find(|_| polls(8, CLOSE / 4));
        assert_eq!(until, Some(CLOSE_TOGETHER - 1), "alone again");
    }
}
