//! Tools that tests and measurements of several crates share. Nothing that ships depends on it.
//!
//! * [`Random`]: numbers that a seed repeats, on every machine;
//! * [`Ticks`]: a clock that goes on by itself and repeats, too;
//! * [`each_input`]: seeded inputs for the body of a fuzz target;
//! * [`calls`]: calls of a file system, by name;
//! * [`skipped!`], [`caught`] and [`caught_in`]: notes for the scripts that count tests and planted faults;
//! * [`retry_while`]: retries of calls that fail as long as a mount is in use.
//!
//! A clock that stands until it is set is `steadfast_model::TestClock`; the products' own generators (of simulated devices, of
//! the exploration) are theirs, because a user repeats a run by its seed.

pub mod calls;
pub mod notes;

pub use notes::{caught, caught_in};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use steadfast_vfs::{Clock, Time};

/// Numbers that look random and follow from a seed: Marsaglia's xorshift.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed. Seeds that are neighbours have nothing else in common.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The sequence that goes on from a state; 0 is none.
    #[must_use]
    pub fn from_state(state: u64) -> Random {
        Random(state.max(1))
    }

    /// The next number. Its low bits are its worst ones.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 11) % bound.max(1)
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// A clock that ticks at each look: no two looks see the same time, and each run sees the same ones.
#[derive(Debug, Default)]
pub struct Ticks(AtomicI64);

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time {
            secs: 1_000_000 + self.0.fetch_add(1, Ordering::Relaxed),
            nanos: 7,
        }
    }
}

/// Runs `attempt` again while its result says that a mount or an image is in use: a child of a neighbouring test holds all
/// files of this process until it executes its program. The limit of five minutes ends a test whose mount stays in use.
pub fn retry_while<T>(in_use: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    let begun = Instant::now();
    loop {
        let result = attempt();
        if !in_use(&result) || begun.elapsed() > Duration::from_secs(300) {
            return result;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether tests are to run their long form (`STEADFAST_LONG`).
#[must_use]
pub fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

/// First seed: `STEADFAST_SEED`, or else `otherwise`.
#[must_use]
pub fn first_seed(otherwise: u64) -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok();
    seed.and_then(|seed| seed.parse().ok()).unwrap_or(otherwise)
}

/// Seeds of an exploration without planted faults: `count` of them from [`first_seed`] on, or from 1.
///
/// `scripts/test.sh` derives `STEADFAST_SEED` from the commit, so that each commit tries others. A failure names its seed.
#[must_use]
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = first_seed(1);
    first..first + count
}

/// The name of a test for libtest's `--exact`: a test that starts its own program again passes `module_path!()`. With a wrong
/// name, libtest runs nothing and succeeds.
#[must_use]
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_program, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Bytes that a seed decides, some hundred; a fuzz target reads zeros after them.
#[must_use]
pub fn input(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let len = 40 + usize::from(next()) * 3;
    (0..len).map(|_| next()).collect()
}

/// Runs the body of a fuzz target on `runs` inputs, many more in the long form.
///
/// # Panics
/// If the body does, for any of them: names their seeds.
pub fn each_input(runs: u64, body: impl Fn(&[u8])) {
    let runs = if long() { 100_000 } else { runs };
    let first = first_seed(0);
    let fails = |seed: &u64| catch_unwind(AssertUnwindSafe(|| body(&input(*seed)))).is_err();
    let failed: Vec<u64> = (first..first + runs).filter(fails).take(20).collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_finds_itself_by_its_name() {
        let name = test_name(module_path!(), "a_test_finds_itself_by_its_name");
        assert_eq!(std::thread::current().name(), Some(&*name));
        assert_eq!(test_name("program", "a"), "a");
    }

    #[test]
    fn a_seed_repeats_its_numbers_and_has_its_own() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [(); 8].map(|()| random.below(1000))
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        assert_ne!(Random::from_state(0).number(), 0, "a sequence of zeros");
        assert_eq!(Random::new(1).below(0), 0);
    }

    #[test]
    fn a_mount_in_use_is_tried_again_until_it_is_free() {
        let mut tries = 0;
        let attempt = || {
            tries += 1;
            tries
        };
        assert_eq!(retry_while(|tries| *tries < 3, attempt), 3);
    }

    #[test]
    fn a_body_that_panics_is_reported_with_its_seed() {
        let runs = |broken: u64| {
            let bad = input(broken);
            catch_unwind(|| each_input(5, |bytes| assert!(bytes != bad)))
        };
        if !long() && first_seed(0) == 0 {
            let said = runs(3).err().and_then(|e| e.downcast::<String>().ok());
            assert_eq!(said.as_deref().map(String::as_str), Some("seeds [3]"));
            assert!(runs(5).is_ok(), "not among the inputs");
        }
    }
}
