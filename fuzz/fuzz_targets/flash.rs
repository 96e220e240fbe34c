//! A damaged flash image: opened, looked at, used and opened again.
#![no_main]

use std::sync::OnceLock;

static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let dir = DIR.get_or_init(|| tempfile::tempdir().expect("a scratch directory"));
    let _ = steadfast_disk::fuzz::open_and_use(dir.path(), data);
});
