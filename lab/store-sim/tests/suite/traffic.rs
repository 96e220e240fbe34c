//! Number of concurrent and repeated requests to a store, in virtual time: benefit and cost of hedges and the window, and that
//! they end with the trouble.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails says why"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use object_store::ObjectStore;
use steadfast_store::{Location, ObjectName, Requests, Term, Time, TrafficRules};
use steadfast_store_sim::{Clock, SimStore, Trouble};

const SECOND: u64 = 1_000_000;
const BYTES: usize = 4 << 10;
const OBJECTS: u64 = 16;

#[derive(Debug)]
struct Virtual(Clock);

impl Time for Virtual {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.now_us())
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.0.sleep(time.as_micros() as u64))
    }
}

fn name(number: u64) -> ObjectName {
    ObjectName::Data {
        term: Term(1),
        number,
    }
}

fn contents(number: u64) -> Bytes {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.iter().copied().cycle().take(BYTES).collect()
}

/// Figures of a store's readers.
#[derive(Debug)]
struct Figures {
    /// Duration of each read, sorted, in microseconds.
    took: Vec<u64>,
    /// End of the last read.
    until_us: u64,
    /// Requests that the store got for them, and that it refused.
    requests: u64,
    refused: u64,
    hedges: u64,
    /// Requests that may be in flight at the end.
    limit: u64,
}

impl Figures {
    fn permille(&self, at: usize) -> u64 {
        self.took[(self.took.len() - 1) * at / 1000]
    }
}

/// A simulated store with some objects, and requests to it.
struct Place {
    clock: Clock,
    store: SimStore,
    requests: Requests,
}

impl Place {
    fn new(seed: u64, rules: TrafficRules) -> Place {
        let clock = Clock::new();
        let store = SimStore::new(clock.clone(), seed, Trouble::default());
        let shared = Arc::new(store.clone()) as Arc<dyn ObjectStore>;
        let location = Location::within(shared, "v", "sim://v");
        let location = location.in_time(Arc::new(Virtual(clock.clone())), rules);
        let place = Place {
            requests: Requests::new(location),
            clock,
            store,
        };
        let requests = place.requests.clone();
        place.clock.spawn(async move {
            for number in 0..OBJECTS {
                let created = requests.create(name(number), contents(number)).await;
                assert!(created.unwrap());
            }
        });
        place.clock.run(20 * SECOND);
        assert_eq!(place.store.names().len() as u64, OBJECTS);
        place
    }

    /// `readers` readers do `reads` reads each, in some trouble.
    fn read(&self, readers: u64, reads: u64, trouble: Trouble) -> Figures {
        self.store.set_trouble(trouble);
        let (before, refused) = (self.store.requests(), self.store.refused());
        let hedges = self.requests.traffic().0;
        let begun = self.clock.now_us();
        let met = Arc::new(Mutex::new(None));
        let (tell, requests, clock) = (met.clone(), self.requests.clone(), self.clock.clone());
        self.clock.spawn(async move {
            let each = (0..readers).map(|reader| {
                let (requests, clock) = (requests.clone(), clock.clone());
                async move {
                    let mut took = Vec::new();
                    for round in 0..reads {
                        let (number, since) = ((reader + round) % OBJECTS, clock.now_us());
                        let got = requests.get(name(number), 0..BYTES as u64).await;
                        assert!(got.unwrap().unwrap() == contents(number));
                        took.push(clock.now_us() - since);
                    }
                    took
                }
            });
            let mut took: Vec<u64> = join_all(each).await.concat();
            took.sort_unstable();
            *tell.lock().unwrap() = Some((took, clock.now_us()));
        });
        self.clock.run(begun + 3600 * SECOND);
        let (took, ended) = met.lock().unwrap().take().unwrap();
        Figures {
            took,
            until_us: ended - begun,
            requests: self.store.requests() - before,
            refused: self.store.refused() - refused,
            hedges: self.requests.traffic().0 - hedges,
            limit: self.requests.traffic().2,
        }
    }
}

fn slow(permille: u64) -> Trouble {
    Trouble {
        slow: permille,
        ..Trouble::default()
    }
}

#[test]
fn a_late_get_is_sent_again_and_the_tail_is_gone() {
    for seed in 1..=3 {
        let plain = Place::new(
            seed,
            TrafficRules {
                no_hedges: true,
                ..TrafficRules::default()
            },
        );
        let hedged = Place::new(seed, TrafficRules::default());
        let (without, with) = (plain.read(8, 1000, slow(4)), hedged.read(8, 1000, slow(4)));
        assert!(without.permille(999) > SECOND, "{}", without.permille(999));
        assert!(with.permille(999) < SECOND / 5, "{}", with.permille(999));
        assert!(with.hedges > 40, "{}", with.hedges);
        assert_eq!(with.requests, 8000 + with.hedges);
        assert!(with.hedges <= 8000 / 20 + 10, "{}", with.hedges);
    }
}

/// All at once the store is slow for everything: a second request would only add to it.
#[test]
fn a_store_that_becomes_slow_gets_one_request_in_twenty_more() {
    let place = Place::new(7, TrafficRules::default());
    place.read(8, 200, Trouble::default());
    let dragged = Trouble {
        drag: 20,
        ..Trouble::default()
    };
    let met = place.read(8, 250, dragged);
    assert!(met.hedges <= 2000 / 20 + 10, "{}", met.hedges);
}

#[test]
fn a_store_that_asks_for_less_gets_less_and_more_again_afterwards() {
    let bounded = Trouble {
        in_flight_most: 20,
        ..Trouble::default()
    };
    for seed in 1..=2 {
        let fixed = Place::new(
            seed,
            TrafficRules {
                no_window: true,
                ..TrafficRules::default()
            },
        );
        let adapted = Place::new(seed, TrafficRules::default());
        let without = fixed.read(200, 50, bounded);
        let with = adapted.read(200, 50, bounded);
        // A store that answers 20 at a time, each in 30 ms, needs 15 s for 10,000.
        assert!(with.until_us < 30 * SECOND, "{}", with.until_us);
        assert!(
            with.refused * 20 < with.requests,
            "{} of {}",
            with.refused,
            with.requests
        );
        assert!(
            without.refused * 3 > without.requests,
            "{} of {}",
            without.refused,
            without.requests
        );
        assert!((8..=40).contains(&with.limit), "{}", with.limit);
        assert_eq!(with.hedges, 0, "none while the store asks for less");
        let after = adapted.read(200, 200, Trouble::default());
        assert!(after.limit >= 200, "{}", after.limit);
        assert_eq!(after.refused, 0);
    }
}

/// Nothing is lost and nothing hangs, in any trouble.
#[test]
fn reads_in_all_trouble_are_right_and_end() {
    for seed in 1..=20 {
        let place = Place::new(seed, TrafficRules::default());
        let trouble = Trouble {
            slow: 10,
            in_flight_most: 30,
            ..Trouble::plenty()
        };
        let met = place.read(60, 30, trouble);
        assert_eq!(met.took.len(), 60 * 30);
        let (.., limit) = place.requests.traffic();
        assert!(limit >= 1);
    }
}
