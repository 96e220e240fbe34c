//! The body of the fuzz target `pm`, seeded and bounded (corner 35). More with `STEADFAST_LONG=1`; `STEADFAST_SEED=n` begins
//! elsewhere.

use steadfast_testkit::each_input;

#[test]
fn corner_35_a_damaged_volume_is_mounted_used_and_repaired_without_a_panic() {
    each_input(300, steadfast_pmfs::fuzz::volume);
}
