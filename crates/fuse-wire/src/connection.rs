//! A connection with the kernel: the handshake, requests that come through `/dev/fuse`, notifications.
//!
//! Invariants:
//! * no request is read before the handshake, and every one that was read is served;
//! * a thread reads until the kernel says that the mount has gone (`ENODEV`); any other error that is not about a single request
//!   ends it, too, and is reported.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{self, init, notify, op};
use crate::exchange::Exchange;

/// What a mount needs to serve.
pub trait Serve: Send + Sync + 'static {
    /// Serves one request and replies. An [`Operation::Interrupt`](crate::Operation) or one that it does not know is to fail with
    /// `ENOSYS`; then the kernel does not send its kind again.
    fn serve(&self, exchange: Exchange<'_>);

    /// Whether this request may wait for long: over io_uring, another thread than its queue's then serves it.
    fn may_wait(&self, _exchange: &Exchange<'_>) -> bool {
        false
    }
}

/// The handshake's offer, from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Longest read-ahead, in bytes.
    pub readahead_bytes_max: u32,
    /// Features ([`init`]).
    pub features: u64,
}

/// What the server makes of it.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Features that it wants; one that the kernel does not offer is left out.
    pub features: u64,
    /// Longest read-ahead, in bytes; more than offered is cut.
    pub readahead_bytes_max: u32,
    /// Longest write in one request: whole pages.
    pub write_bytes_max: u32,
    /// Read-ahead and other background requests in flight.
    pub background_max: u16,
}

/// Bytes of a page, as the protocol counts them.
const PAGE: usize = 4096;
/// Header and arguments of WRITE, whose data then begins at a page.
const WRITE_HEAD: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
/// Names, extended attributes and answers are shorter.
const ROOM_MIN: usize = 128 << 10;

/// See the module's header.
#[derive(Debug)]
pub struct Connection {
    device: OwnedFd,
    features: u64,
    write_bytes_max: usize,
}

impl Connection {
    /// Makes the handshake on the device of a new mount.
    ///
    /// # Errors
    /// If the kernel's version is not served, or the device fails.
    pub fn negotiate(
        device: OwnedFd,
        choose: impl FnOnce(&Offer) -> io::Result<Terms>,
    ) -> io::Result<Connection> {
        let mut buffer = vec![0; PAGE + ROOM_MIN];
        let mut offered = receive_init(&device, &mut buffer)?;
        if offered.1.major > abi::MAJOR {
            // A newer kernel is told the version, and begins again with it.
            let ours = abi::InitOut {
                major: abi::MAJOR,
                minor: abi::MINOR,
                ..abi::InitOut::default()
            };
            reply(&device, offered.0.unique, 0, ours.as_bytes())?;
            offered = receive_init(&device, &mut buffer)?;
        }
        let (header, theirs) = offered;
        if theirs.major != abi::MAJOR || theirs.minor < abi::MINOR_MIN {
            let error = Errno::PROTO.raw_os_error();
            let _ = reply(&device, header.unique, error, &[]);
            return Err(io::Error::other(format!(
                "the kernel speaks version {}.{} of the FUSE protocol: {}.{} is needed (Linux 5.4)",
                theirs.major,
                theirs.minor,
                abi::MAJOR,
                abi::MINOR_MIN
            )));
        }
        let mut offer = Offer {
            minor: theirs.minor,
            readahead_bytes_max: theirs.max_readahead,
            features: u64::from(theirs.flags),
        };
        if offer.features & init::INIT_EXT != 0 {
            offer.features |= u64::from(theirs.flags2) << 32;
        }
        let terms = choose(&offer).inspect_err(|_| {
            let error = Errno::PROTO.raw_os_error();
            let _ = reply(&device, header.unique, error, &[]);
        })?;
        let always = init::BIG_WRITES | init::ASYNC_READ | init::MAX_PAGES | init::INIT_EXT;
        let features = (terms.features | always) & offer.features;
        let pages = (terms.write_bytes_max as usize).div_ceil(PAGE).max(1);
        let pages = u16::try_from(pages).unwrap_or(u16::MAX);
        let ours = abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(theirs.minor),
            max_readahead: terms.readahead_bytes_max.min(offer.readahead_bytes_max),
            flags: features as u32,
            flags2: (features >> 32) as u32,
            max_background: terms.background_max,
            congestion_threshold: terms.background_max / 4 * 3,
            max_write: u32::from(pages) * PAGE as u32,
            time_gran: 1,
            max_pages: pages,
            ..abi::InitOut::default()
        };
        reply(&device, header.unique, 0, ours.as_bytes())?;
        Ok(Connection {
            device,
            features,
            write_bytes_max: usize::from(pages) * PAGE,
        })
    }

    /// The features that both sides have.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Has the kernel drop the attributes that it caches of a node, and its content from `from` on (none if that is
    /// negative).
    ///
    /// # Errors
    /// `ENOENT` if the kernel does not know the node; the device's.
    pub fn invalidate(&self, node: u64, from: i64) -> io::Result<()> {
        let body = abi::NotifyInvalInodeOut {
            ino: node,
            off: from,
            len: 0,
        };
        self.notify(notify::INVAL_INODE, &body)
    }

    fn notify(&self, code: i32, body: &(impl IntoBytes + Immutable)) -> io::Result<()> {
        Ok(write(self.device.as_fd(), 0, code, body.as_bytes())?)
    }

    /// Serves the requests that come through the device, until the mount has gone.
    ///
    /// # Errors
    /// The device's.
    pub fn run(&self, server: &impl Serve) -> io::Result<()> {
        let device = self.device.as_fd();
        let longest = WRITE_HEAD + self.write_bytes_max.max(ROOM_MIN);
        let mut received = vec![0; longest + 2 * PAGE];
        // The data of a WRITE begins at a page.
        let first = received.as_ptr().align_offset(PAGE).min(PAGE - 1) + PAGE - WRITE_HEAD;
        let received = &mut received[first..][..longest];
        let mut room = vec![0; self.write_bytes_max.max(ROOM_MIN)];
        while let Some(len) = read(device, received)? {
            let Some(exchange) = Exchange::through_device(&received[..len], &mut room, device)
            else {
                return Err(io::Error::other(
                    "the kernel's request is shorter than it says",
                ));
            };
            server.serve(exchange);
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Threads that serve a connection.
#[derive(Debug)]
pub struct Threads(Vec<JoinHandle<io::Result<()>>>);

impl Threads {
    /// Starts `count` threads, named after `name`.
    ///
    /// # Errors
    /// If the system refuses a thread. Those before it serve.
    pub fn start<S: Serve>(
        connection: &Arc<Connection>,
        server: &Arc<S>,
        count: usize,
        name: &str,
    ) -> io::Result<Threads> {
        let one = |n| {
            let (connection, server) = (Arc::clone(connection), Arc::clone(server));
            let thread = thread::Builder::new().name(format!("{name}-{n}"));
            thread.spawn(move || connection.run(&*server))
        };
        (0..count).map(one).collect::<io::Result<_>>().map(Threads)
    }

    /// Whether all have ended.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// The first error of a thread.
    pub fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.0 {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        result
    }
}

/// Reads one request; `None` if the mount has gone.
fn read(device: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(len) => return Ok(Some(len)),
            // The request was given up before it was read.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn receive_init(device: &OwnedFd, buffer: &mut [u8]) -> io::Result<(abi::InHeader, abi::InitIn)> {
    let gone = || io::Error::other("the mount went away before it was served");
    let len = read(device.as_fd(), buffer)?.ok_or_else(gone)?;
    let wrong = || io::Error::other("the kernel does not begin with INIT");
    let (header, rest) = abi::InHeader::read_from_prefix(&buffer[..len]).map_err(|_| wrong())?;
    if header.opcode != op::INIT {
        return Err(wrong());
    }
    // Kernels before 7.36 send the first fields.
    let mut theirs = abi::InitIn::default();
    let known = rest.len().min(size_of::<abi::InitIn>());
    theirs.as_mut_bytes()[..known].copy_from_slice(&rest[..known]);
    Ok((header, theirs))
}

fn reply(device: &OwnedFd, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    Ok(write(device.as_fd(), unique, -error, body)?)
}

/// Writes a message: a reply with a negative error or none, or a notification with its code.
pub(crate) fn write(
    device: BorrowedFd<'_>,
    unique: u64,
    error: i32,
    body: &[u8],
) -> Result<(), Errno> {
    let header = abi::OutHeader {
        len: (size_of::<abi::OutHeader>() + body.len()) as u32,
        error,
        unique,
    };
    let parts = [io::IoSlice::new(header.as_bytes()), io::IoSlice::new(body)];
    rustix::io::retry_on_intr(|| rustix::io::writev(device, &parts)).map(drop)
}
