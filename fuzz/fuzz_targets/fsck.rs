//! Check and repair of a volume that was damaged, and sealed again or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_fs::fuzz::check(data));
