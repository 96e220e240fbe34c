//! The file system on persistent memory: what compiles, every crash, plans, calls, and volumes.

mod alloy;
mod compile_fail;
mod crash;
mod plans;
mod posix;
mod volume;
