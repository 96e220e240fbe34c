//! A recorded run: the calls of a program on a file system, in the order of effect.
//!
//! - [`call`]: one call;
//! - [`file`](mod@file): the file format, written while the program runs and read as a whole;
//! - [`replay`]: calls applied to a tree of the model;
//! - `spool`: the file while it is written, to be read at the same time;
//! - [`text`]: a line for each call.
//!
//! Invariant: only [`replay::apply`] lets a call change a tree. The recorder serves the program by it, so
//! a replay of the same calls from an empty tree gives the same tree, with the same inode numbers.

pub mod call;
pub mod file;
pub mod replay;
mod spool;
pub mod text;

pub use call::{
    AckSource, Alloc, Call, Change, Kind, Moment, Op, Outcome, Rename, Span, StackId, Wall, When,
    Who, WriteHow, XattrHow,
};
pub use file::{
    Begin, BlindSpots, Cut, End, Ended, Frame, Header, Root, Stack, Trace, TraceError, TraceWriter,
    VERSION,
};
pub(crate) use spool::Spool;
pub use text::Names;
