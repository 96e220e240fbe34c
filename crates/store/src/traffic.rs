//! Limit of concurrent requests to a store, and hedged GETs.
//!
//! *In flight.* A store that answers 503 or 429 gets fewer requests at a time: the limit is halved, once for all requests in
//! flight together; each success then adds a little (additive increase, multiplicative decrease). Further requests wait.
//!
//! *Hedges.* A GET that has taken longer than 99 of 100 recent ones of its size is sent a second time, and the first answer
//! counts. Both GETs began after the caller asked, so either answer is right. At most one in twenty GETs is sent twice, and
//! none while the store asks for fewer requests.
//!
//! The rules are plain state; time comes from [`Time`], so they run in virtual time as well.

use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A clock, and timers on it.
pub trait Time: Send + Sync + std::fmt::Debug {
    /// Time since a fixed moment.
    fn now(&self) -> Duration;
    /// Ready after this time.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
}

/// The clock of this machine.
#[derive(Debug)]
struct RealTime(Instant);

impl Time for RealTime {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}

/// Most requests in flight; the limit while the store does not throttle.
const MOST: f64 = 256.0;
/// Samples kept for each class of sizes, and the fewest from which a deadline is computed.
const SAMPLES: usize = 256;
const SAMPLES_LEAST: usize = 100;
/// Shortest time before a hedge.
const HEDGE_LEAST: Duration = Duration::from_millis(5);
/// GETs that pay for one hedge, and most hedges that can be saved up.
const HEDGE_COST: u64 = 20;
const HEDGES_SAVED: u64 = 10;
/// Upper bounds of the classes of sizes; larger GETs are one more class.
const SIZES: [u64; 3] = [128 << 10, 1 << 20, 4 << 20];

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The store answered.
    Answered,
    /// The store asks for fewer requests.
    Throttled,
    /// Any other end.
    Other,
}

/// Rules to leave out, for comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficRules {
    /// Send no GET twice.
    pub no_hedges: bool,
    /// Do not adapt the number of requests in flight.
    pub no_window: bool,
}

#[derive(Debug)]
struct State {
    /// Limit of requests in flight, and their number.
    limit: f64,
    flying: u64,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    /// Time when the limit was last halved.
    halved: Duration,
    /// Durations of recent GETs, by class of sizes.
    samples: [VecDeque<u64>; SIZES.len() + 1],
    /// GETs saved up to pay for hedges.
    saved: u64,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) time: Arc<dyn Time>,
    rules: TrafficRules,
    state: Mutex<State>,
    pub(crate) hedges: AtomicU64,
    pub(crate) throttled: AtomicU64,
}

/// The right to send a request. Its drop makes room for the next request.
#[derive(Debug)]
pub(crate) struct Permit {
    traffic: Option<Arc<Traffic>>,
    begun: Duration,
}

impl Permit {
    /// The request has ended.
    pub(crate) fn ended(&self, outcome: Outcome) {
        if let Some(traffic) = &self.traffic {
            traffic.ended(self.begun, outcome);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(traffic) = self.traffic.take() {
            traffic.leave();
        }
    }
}

/// Notes the duration of a GET; of an abandoned one, a lower bound.
pub(crate) struct Stopwatch<'a> {
    traffic: &'a Traffic,
    begun: Duration,
    bytes: u64,
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        let took = self.traffic.time.now().saturating_sub(self.begun);
        self.traffic.took(self.bytes, took);
    }
}

fn kind(bytes: u64) -> usize {
    SIZES.iter().filter(|most| bytes > **most).count()
}

impl Traffic {
    pub(crate) fn new() -> Arc<Traffic> {
        Traffic::within(Arc::new(RealTime(Instant::now())), TrafficRules::default())
    }

    pub(crate) fn within(time: Arc<dyn Time>, rules: TrafficRules) -> Arc<Traffic> {
        let state = State {
            limit: MOST,
            flying: 0,
            waiting: VecDeque::new(),
            halved: Duration::ZERO,
            samples: Default::default(),
            saved: 0,
        };
        Arc::new(Traffic {
            time,
            rules,
            state: Mutex::new(state),
            hedges: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(self: &Arc<Self>) -> Permit {
        Permit {
            traffic: Some(Arc::clone(self)),
            begun: self.time.now(),
        }
    }

    /// Waits until a request may be sent.
    pub(crate) async fn enter(self: &Arc<Self>) -> Permit {
        let turn = {
            let mut state = self.lock();
            if state.waiting.is_empty() && state.has_room() {
                state.flying += 1;
                drop(state);
                return self.permit();
            }
            let (tell, turn) = oneshot::channel();
            state.waiting.push_back(tell);
            turn
        };
        match turn.await {
            Ok(mut permit) => {
                permit.begun = self.time.now();
                permit
            }
            // The sender is never dropped before it sends.
            Err(_) => Permit {
                traffic: None,
                begun: self.time.now(),
            },
        }
    }

    /// A request is no longer in flight.
    fn leave(self: &Arc<Self>) {
        self.lock().flying -= 1;
        self.admit();
    }

    /// Admits waiting requests while there is room.
    fn admit(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                if !state.has_room() {
                    return;
                }
                let Some(next) = state.waiting.pop_front() else {
                    return;
                };
                state.flying += 1;
                next
            };
            // A request that no longer waits gives its permit back.
            if let Err(mut unused) = next.send(self.permit()) {
                unused.traffic = None;
                self.lock().flying -= 1;
            }
        }
    }

    fn ended(self: &Arc<Self>, begun: Duration, outcome: Outcome) {
        let mut state = self.lock();
        match outcome {
            Outcome::Answered => {
                state.limit = (state.limit + 1.0 / state.limit).min(MOST);
            }
            Outcome::Throttled => {
                self.throttled.fetch_add(1, Ordering::Relaxed);
                if begun >= state.halved && !self.rules.no_window {
                    state.limit = (state.limit.min(state.flying as f64) / 2.0).max(1.0);
                    state.halved = self.time.now();
                }
            }
            Outcome::Other => {}
        }
    }

    /// Requests that may be in flight now.
    pub(crate) fn limit(&self) -> u64 {
        self.lock().limit as u64
    }

    /// Starts a GET of this size.
    pub(crate) fn stopwatch(&self, bytes: u64) -> Stopwatch<'_> {
        Stopwatch {
            traffic: self,
            begun: self.time.now(),
            bytes,
        }
    }

    fn took(&self, bytes: u64, time: Duration) {
        let mut state = self.lock();
        let samples = &mut state.samples[kind(bytes)];
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(time.as_micros() as u64);
    }

    /// Time after which a GET of this size is late; none if that is not known yet.
    pub(crate) fn late_after(&self, bytes: u64) -> Option<Duration> {
        let mut state = self.lock();
        state.saved = (state.saved + 1).min(HEDGES_SAVED * HEDGE_COST);
        let samples = &state.samples[kind(bytes)];
        if samples.len() < SAMPLES_LEAST || self.rules.no_hedges {
            return None;
        }
        let mut sorted: Vec<u64> = samples.iter().copied().collect();
        let at = sorted.len() * 99 / 100;
        let (_, late, _) = sorted.select_nth_unstable(at);
        Some(Duration::from_micros(*late).max(HEDGE_LEAST))
    }

    /// Whether a late GET may be sent again.
    pub(crate) fn may_hedge(&self) -> bool {
        let mut state = self.lock();
        let busy = state.limit < MOST / 2.0 || !state.has_room();
        if busy || state.saved < HEDGE_COST {
            return false;
        }
        state.saved -= HEDGE_COST;
        self.hedges.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl State {
    fn has_room(&self) -> bool {
        (self.flying as f64) < self.limit.floor().max(1.0)
    }
}

/// Whether the store's answer asks for fewer requests.
pub(crate) fn is_throttling(error: &object_store::Error) -> bool {
    let object_store::Error::Generic { source, .. } = error else {
        return false;
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source.as_ref());
    while let Some(error) = cause {
        let text = error.to_string();
        let words = [
            "503",
            "429",
            "SlowDown",
            "Slow Down",
            "TooManyRequests",
            "ServerBusy",
        ];
        let is_word = |word: &&str| {
            text.match_indices(*word).any(|(at, _)| {
                let digit = |c: char| c.is_ascii_digit();
                !text[..at].ends_with(digit) && !text[at + word.len()..].starts_with(digit)
            })
        };
        if words.iter().any(is_word) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Still(Mutex<Duration>);

    impl Time for Still {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn error(text: &'static str) -> object_store::Error {
        object_store::Error::Generic {
            store: "S3",
            source: text.into(),
        }
    }

    #[test]
    fn an_answer_that_asks_for_less_is_known() {
        for text in [
            "status 503 Service Unavailable",
            "429",
            "<Code>SlowDown</Code>",
        ] {
            assert!(is_throttling(&error(text)), "{text}");
        }
        for text in [
            "500 Internal",
            "connection to 10.0.0.1:4290 failed",
            "15032 bytes",
        ] {
            assert!(!is_throttling(&error(text)), "{text}");
        }
    }

    #[test]
    fn requests_that_were_on_their_way_together_halve_the_limit_once() {
        let time = Arc::new(Still::default());
        let traffic = Traffic::within(Arc::clone(&time) as _, TrafficRules::default());
        let permits: Vec<Permit> = (0..64)
            .map(|_| {
                traffic.lock().flying += 1;
                traffic.permit()
            })
            .collect();
        if let Ok(mut now) = time.0.lock() {
            *now += Duration::from_millis(10);
        }
        permits
            .iter()
            .for_each(|permit| permit.ended(Outcome::Throttled));
        assert_eq!(traffic.limit(), 32);
        assert!(!traffic.may_hedge());
        drop(permits);
        assert_eq!(traffic.lock().flying, 0);
        for _ in 0..40_000 {
            traffic.ended(Duration::ZERO, Outcome::Answered);
        }
        assert_eq!(traffic.limit(), MOST as u64);
    }

    #[test]
    fn one_in_twenty_is_sent_twice_at_most() {
        let traffic = Traffic::within(Arc::new(Still::default()), TrafficRules::default());
        assert_eq!(traffic.late_after(1), None);
        (0..200).for_each(|i| traffic.took(1, Duration::from_millis(i)));
        assert_eq!(traffic.late_after(1), Some(Duration::from_millis(198)));
        assert_eq!(traffic.late_after(8 << 20), None, "another size");
        let mut hedges = 0;
        for _ in 0..2000 {
            traffic.late_after(1);
            hedges += u64::from(traffic.may_hedge());
        }
        assert!((90..=102).contains(&hedges), "{hedges}");
    }
}
