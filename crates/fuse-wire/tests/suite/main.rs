//! The protocol on a real mount, over both transports.

mod fuzzed;
mod served;
