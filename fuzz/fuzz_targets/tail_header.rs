//! Any bytes and any fields as a tail header of the journal.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_journal::fuzz::tail_header(data));
