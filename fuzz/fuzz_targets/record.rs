//! Any bytes, any sealed body and any entries as a log record.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_journal::fuzz::record(data));
