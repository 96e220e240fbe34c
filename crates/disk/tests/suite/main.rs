//! Disks over a flash memory: power cuts, files, damaged images.

mod cuts;
mod file;
mod fuzzed;
