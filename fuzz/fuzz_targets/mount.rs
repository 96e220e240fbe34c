//! Mounting and using a volume that was damaged, and sealed again or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_fs::fuzz::mount(data));
