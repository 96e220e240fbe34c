//! Stands for `ring` in programs that are linked with musl: the crate of the protocol over io_uring does not compile there.
//! Requests come through `/dev/fuse`, and a mount that was to use io_uring says why it cannot.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::server::Server;

/// Message when requests were to come over io_uring.
pub(crate) const OFF: &str = "this program has no FUSE over io_uring, because it is linked with musl: use a program that is \
    linked with the GNU C library, such as the one of the Debian package";

/// Whether the kernel offers FUSE over io_uring to this program: it has no use for it.
#[must_use]
pub fn kernel_offers_io_uring() -> Option<bool> {
    None
}

/// Queues that are never there.
pub(crate) enum Rings {}

impl Rings {
    /// # Errors
    /// Always: requests come through the device.
    pub(crate) fn new(_device: &impl AsFd, _requests: usize) -> io::Result<Rings> {
        Err(io::Error::new(io::ErrorKind::Unsupported, OFF))
    }

    /// Starts nothing, as there is no value of this type.
    ///
    /// # Errors
    /// None.
    pub(crate) fn start(self, _server: &Arc<Server>) -> io::Result<()> {
        match self {}
    }
}
