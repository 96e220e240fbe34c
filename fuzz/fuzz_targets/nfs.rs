//! Bytes from a client of the NFS server: records, and arguments of calls with a valid header.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| steadfast_nfs::fuzz::serve(data));
