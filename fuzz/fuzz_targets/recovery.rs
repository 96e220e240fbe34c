//! Recovery, salvage and dump of a log that was damaged, and sealed again or not.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    steadfast_journal::fuzz::recovery(data);
});
