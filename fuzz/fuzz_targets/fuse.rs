//! Bytes as a request of the kernel's FUSE protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_fuse_wire::fuzz::request(data));
