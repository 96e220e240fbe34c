//! One function for each change of a volume: exactly the stores, write-backs and fences of its plan.
//!
//! A plan in one line names the stores between fences (`|`). Everything is checked and reserved before the first store; from
//! there on nothing fails. The code here cannot store a word itself: it composes transitions, and the compiler checks their
//! order.
//!
//! | call | fences | lines written back, without times |
//! |---|---|---|
//! | [`create`] (also directories, devices), [`nameless`] | 1 | inode, slot |
//! | [`link`], [`remove`] | 1 | slot |
//! | [`symlink`], [`create`] with inherited attributes | 2 | inode (2), slot; descriptors of pages |
//! | [`rename`], [`exchange`] | 2 | both slots |
//! | [`rename_whiteout`] | 3 | inode, both slots |
//! | a long name, or a new page for the name | + 1 (not with [`symlink`] and [`rename_whiteout`]) | its further slots; descriptor |
//! | [`change`] | 1 or 2 | inode, descriptors |
//! | [`set_times`], [`overwrite`] | 1 | |
//!
//! Times are one more line for each inode touched. Under eADR one fence is enough, or two if non-temporal stores (data, zeros of
//! a new page) must be durable before the rest.

mod change;
mod create;
mod link;
mod remove;
mod rename;
mod room;

pub use change::{Change, DataStore, PageChange, change, make, overwrite, set_times};
pub use create::{Birth, Created, NewAttributes, SymlinkTarget, create, nameless, symlink};
pub use link::{Link, link};
pub use remove::{Remove, Removed, remove};
pub use rename::{
    Exchange, Over, Rename, Renamed, RenamedWhiteout, Target, Whiteout, exchange, rename,
    rename_whiteout,
};
pub use room::{NewName, Placed, Room, Touch};
