//! The tables: scenarios, recommended plans, and plans and rules that look right.

mod families;
mod plans;
mod tempting;

pub use families::{Family, families, followers, name_calls, pair_calls, pair_setups};
pub use plans::{call, plan_of, searches, word_skips};
pub use tempting::tempting;

use crate::spec::{At, Op, TOP};

pub const A: At = At(TOP, b'a' as u64);
pub const B: At = At(TOP, b'b' as u64);
pub const C: At = At(TOP, b'c' as u64);
pub const D: At = At(TOP, b'd' as u64);
pub const E: At = At(TOP, b'e' as u64);
pub const DX: At = At(b'd' as u64, b'x' as u64);
pub const DE: At = At(b'd' as u64, b'e' as u64);
/// Two slots.
pub const LONG: At = At(TOP, b'l' as u64 | (b'm' as u64) << 8);
pub const LONG2: At = At(TOP, b'k' as u64 | (b'n' as u64) << 8);

/// A write.
fn w(at: At, from: usize, words: &[u64]) -> Op {
    Op::Write(at, from, words.to_vec())
}

/// Data that looks like a name of inode 2 in its first generation, were it ever read as a slot's commit word.
pub const FORGED: u64 = 2 << 32 | 1;
