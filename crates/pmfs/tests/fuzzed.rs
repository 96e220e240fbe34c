//! The body of the fuzz target `pm`, seeded and bounded (corner 35). More with `STEADFAST_LONG=1`; `STEADFAST_SEED=n` begins
//! elsewhere.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that a seed decides; short ones end in zeros.
fn bytes(seed: u64) -> Vec<u8> {
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

#[test]
fn corner_35_a_damaged_volume_is_mounted_used_and_repaired_without_a_panic() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let first = std::env::var("STEADFAST_SEED").ok();
    let first: u64 = first.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let runs = if long { 100_000 } else { 300 };
    let fails = |seed: &u64| {
        let data = bytes(*seed);
        catch_unwind(AssertUnwindSafe(|| steadfast_pmfs::fuzz::volume(&data))).is_err()
    };
    let failed: Vec<u64> = (first..first + runs).filter(fails).take(20).collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}
