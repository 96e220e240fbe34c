//! A volume in persistent memory with wrong words: mounted, used, checked, repaired.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_pmfs::fuzz::volume(data));
