//! The FUSE protocol as the Linux kernel speaks it: requests decoded in place, replies, and both ways that they travel.
//!
//! * [`abi`]: the numbers and structures of the kernel's header.
//! * [`Operation`]: a request, decoded without a copy. Any bytes are an operation or malformed.
//! * [`Exchange`]: a request and its one reply.
//! * [`Connection`]: the handshake, requests through `/dev/fuse`, notifications.
//! * [`Rings`]: requests over io_uring.
//! * [`Mount`]: makes the mount itself.
//!
//! A server implements [`Serve`]. No file system is known here: names are bytes, and nodes are numbers.

pub mod abi;
mod connection;
mod exchange;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod listing;
mod mount;
mod operation;
mod ring;

pub use connection::{Connection, Offer, Serve, Terms, Threads};
pub use exchange::{Body, Exchange};
pub use listing::Listing;
pub use mount::{Mount, MountFailure, Unmount, unmount};
pub use operation::{Forgets, Operation};
pub use ring::{RINGS_OFF, Rings, kernel_offers_io_uring};
pub use rustix::io::Errno;
