//! The bodies of the fuzz targets `mount` and `fsck`, seeded and bounded (corner 35). More with
//! `STEADFAST_LONG=1`; `STEADFAST_SEED=n` begins elsewhere.

use steadfast_testkit::each_input;

#[test]
fn corner_35_a_damaged_volume_is_mounted_and_used_without_a_panic() {
    each_input(150, steadfast_fs::fuzz::mount);
}

#[test]
fn corner_35_a_damaged_volume_is_repaired_and_whole() {
    each_input(150, steadfast_fs::fuzz::check);
}
