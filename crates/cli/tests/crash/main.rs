//! The crash tester of other people's programs. A program of its own: each run makes a mount namespace, which would keep the
//! mounts of tests beside it.

mod crash_extras;
mod crash_test;
mod crash_toys;
#[path = "../common/programs.rs"]
mod programs;
