//! Streams of a mounted Steadfast volume, for programs (ccfs §3.2, §3.5).
//!
//! After a crash, a volume of the contract `ordered` shows, for each *stream*, the result of a prefix of its operations. Two
//! streams have no order between them, unless they changed related things: a sync in one does not write the other's changes.
//! Every process belongs to one stream. The default stream is the volume's own.
//!
//! The functions take the path of any file or directory of the mount. [`set`] makes a stream, if there is none of that name,
//! and moves a thread or a process into it. A name belongs to a user and a mount: two users may have a stream of one name.
//! A stream ends with its last process, when nothing of it is uncommitted.
//!
//! Differences from the paper: a new thread starts with the stream of its *process*, and a child process gets its parent's
//! stream at the child's first change, not at fork. As in the paper, reads relate nothing. A program that reads another
//! stream's uncommitted changes, and acts on them, may survive a crash without them.
//!
//! ```no_run
//! use steadfast_stream::{Settings, Who};
//!
//! # fn main() -> Result<(), steadfast_stream::Error> {
//! let volume = "/mnt/volume".as_ref();
//! let settings = Settings { ignore_fsync: Some(true), ..Settings::default() };
//! steadfast_stream::set(volume, Who::Process, "mail", &settings)?;
//! // From here on, fsync(2) returns at once; this process's operations survive a crash in their order.
//! steadfast_stream::sync_own(volume)?; // And now it is durable.
//! # Ok(())
//! # }
//! ```
//!
//! C programs include `steadfast/stream.h`, which has the same as inline functions.

mod calls;
mod error;
mod lists;
pub mod wire;

pub use calls::{
    Membership, Place, Settings, Who, add_rule, alter, available, check_name, get, leave,
    remove_rule, set, sync, sync_own,
};
pub use error::{Error, Result};
pub use lists::{
    Listed, Merge, Partner, Rule, Shown, Stats, list, merges, rules, show, stats, stream_of_name,
};

/// The environment variable that names the stream of a process, where a mount looks at it.
pub const ENVIRONMENT: &str = "STEADFAST_STREAM";
