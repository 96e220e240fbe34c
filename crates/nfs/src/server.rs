//! The server: listeners, workers, and an orderly shutdown.
//!
//! A fixed pool of workers takes events from the reactor; the worker with an event reads one record and serves it. One more
//! thread accepts connections. While connections are turned away, this thread takes at most a quarter of a core: clients that
//! reconnect in a loop wait in the kernel's backlog, and admitted clients keep the cores. There are fewer slots for calls that
//! may wait for the device than workers (`slots`), so NULL, and calls that are answered from memory, always find a worker. Only
//! the worker that leads a commit waits for it (`commits`).
//!
//! Invariants: no worker waits for a client. After a panic in a call, the server sends no more replies and commits nothing that
//! the call may have left half done: clients resend to the next server. After [`Server::stop`] has returned, no call is in
//! progress and none begins.

mod workers;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::sockopt;
use steadfast_vfs::metrics::{Kind, Metrics as Page};

use crate::access_log::AccessLog;
use crate::clients::ClientState;
use crate::dispatch::Service;
use crate::drc::{self, Cache};
use crate::exports::{Export, ExportError, Table};
use crate::gate::Gate;
use crate::handle_key::HandleKey;
use crate::log::Log;
use crate::memory::HandshakeLimits;
use crate::metrics::Metrics;
use crate::procedures::TRANSFER_BYTES_MAX;
use crate::reactor::{Limits, Reactor, STOP};
use crate::reload::{self, Reloader};
use crate::slots::Slots;
use crate::tls::Tls;
use crate::volume::ExportedVolume;
use crate::watch::Watch;
use workers::Parked;

/// Most workers.
pub const THREADS_MAX: usize = 1024;
/// Workers by default.
pub const THREADS_DEFAULT: usize = 64;

/// Bytes of a record besides the data of a WRITE.
const RECORD_OVERHEAD: usize = 4096;
/// Least memory for records and unsent replies of clients.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Most bytes of one connection's replies in progress or unsent, if there is enough memory.
const REPLY_BYTES_MAX: u64 = 4 << 20;
/// Connections accepted between two checks whether any were turned away.
const ACCEPTED_AT_ONCE: usize = 16;
/// While connections are turned away, the thread pauses for this multiple of the time that accepting took, up to the bound. A
/// new client waits at most this factor longer.
const PAUSE_FACTOR: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Interval of the search for slow connections.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval of the check for renewed certificates.
const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// Time for clients to take their last replies.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// TCP keepalive of a silent client: idle time, and interval of probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));

/// Reasons why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be listened on.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Address to listen on.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("{attempt}: {source}")]
    System {
        /// Operation that failed.
        attempt: &'static str,
        /// Cause.
        source: std::io::Error,
    },
    /// A volume cannot be served.
    #[error("volume {name}: its key for file handles: {source}")]
    Key {
        /// Name of the volume.
        name: String,
        /// Cause.
        source: steadfast_vfs::Error,
    },
    /// The exports contradict each other.
    #[error(transparent)]
    Exports(#[from] ExportError),
}

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Addresses of NFS and MOUNT.
    pub listen: Vec<SocketAddr>,
    /// Number of workers.
    pub threads: usize,
    /// Most connections.
    pub connections_max: usize,
    /// Most connections of one address; one IPv6 network (/64) counts as one address.
    pub connections_per_address: usize,
    /// Memory that clients can make the server hold: connections, records that arrive or are served, unsent replies. Each
    /// worker uses at most 1.2 MiB in addition.
    pub memory_bytes: u64,
    /// Time for a record to arrive.
    pub record_time: Duration,
    /// Time in which a client must take 64 KiB of waiting replies, or all of them.
    pub stall_time: Duration,
    /// Time for a TLS handshake.
    pub handshake_time: Duration,
    /// Most concurrent TLS handshakes of one address.
    pub handshakes_per_address: u32,
    /// Most TLS handshakes that one address may begin within a second.
    pub handshake_rate: u32,
    /// Time that a client without an export may stay connected, in one of a few places, to learn that it is refused.
    pub guest_time: Duration,
    /// Time that replies are kept for retransmitted calls.
    pub replies_remembered: Duration,
    /// Log of calls and mounts.
    pub access_log: Option<AccessLog>,
    /// TLS settings; none: TLS is not offered.
    pub tls: Option<Tls>,
    /// Receiver of log lines about refused clients: at most some lines a minute.
    pub tell: Option<fn(&str)>,
    /// Gate that each answer must pass.
    pub gate: Option<Arc<dyn Gate>>,
    /// Key of the handles of volumes that hold none: they are read-only, or their file systems have no extended attributes.
    /// A volume that can hold a key and has none yet keeps this one. Each volume's handles depend on its name, too
    /// ([`ExportedVolume::name`]). Default: handles of such volumes end with the server, and clients mount again.
    pub handle_key: Option<HandleKey>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: Vec::new(),
            threads: THREADS_DEFAULT,
            connections_max: 16_384,
            connections_per_address: 4096,
            memory_bytes: 256 << 20,
            record_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(15),
            handshakes_per_address: 64,
            handshake_rate: 250,
            guest_time: Duration::from_secs(5),
            replies_remembered: drc::REMEMBERED_FOR,
            access_log: None,
            tls: None,
            tell: None,
            gate: None,
            handle_key: None,
        }
    }
}

/// Reason for the end of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was stopped.
    Stopped,
    /// A call panicked with this message. The file system's memory must not be committed.
    Failed(String),
}

#[derive(Debug, Default)]
struct Ending {
    wanted: bool,
    failure: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    reactor: Arc<Reactor>,
    slots: Slots<Parked>,
    /// Number of next changing calls that are expected to wait for the device.
    waits: AtomicU32,
    service: Arc<Service>,
    listeners: Vec<TcpListener>,
    stop: OwnedFd,
    handle_key: Option<HandleKey>,
    ending: Mutex<Ending>,
    changed: Condvar,
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    notes: Vec<String>,
}

fn system(attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { attempt, source }
}

impl Server {
    /// Starts serving.
    ///
    /// # Errors
    /// See [`Error`]; nothing is served then.
    pub fn start(
        volumes: Vec<ExportedVolume>,
        exports: Vec<Export>,
        options: &Options,
    ) -> Result<Server, Error> {
        let mut notes = Vec::new();
        let mut opened = Vec::new();
        let drc = Cache::new(options.replies_remembered);
        for served in volumes {
            let given = options.handle_key.as_ref();
            opened.push(reload::open(served, given, &drc, &mut notes)?);
        }
        let table = Table::new(opened, exports)?;
        table.check_security(options.tls.as_ref())?;
        let threads = options.threads.clamp(1, THREADS_MAX);
        let limits = Limits {
            record_bytes: TRANSFER_BYTES_MAX as usize + RECORD_OVERHEAD,
            memory_bytes: options.memory_bytes.max(MEMORY_BYTES_MIN),
            reply_bytes: (options.memory_bytes / 4).min(REPLY_BYTES_MAX) as usize,
            connections: options.connections_max.max(1),
            connections_per_address: options.connections_per_address.max(1),
            // One client must leave workers for others.
            in_flight: u32::try_from(threads / 2).unwrap_or(1).max(1),
            record_time: options.record_time,
            handshakes: HandshakeLimits {
                now: options.handshakes_per_address,
                per_second: options.handshake_rate,
            },
            handshake_time: options.handshake_time,
            stall_time: options.stall_time,
            guest_time: options.guest_time,
        };
        let metrics = Arc::new(Metrics::default());
        let log = Arc::new(Log::new(options.tell));
        let reactor = Reactor::new(
            limits,
            Arc::clone(&metrics),
            Arc::clone(&log),
            options.tls.clone(),
            options.gate.clone(),
        );
        let reactor = Arc::new(reactor.map_err(system("making an epoll"))?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("making an eventfd")(e.into()))?;
        reactor
            .events
            .add(&stop, STOP, EventFlags::IN)
            .map_err(system("waiting on an eventfd"))?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in &options.listen {
            let failed = |source| Error::Listen {
                address: *address,
                source,
            };
            let listener = listen(*address).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        let shared = Arc::new(Shared {
            reactor,
            slots: Slots::new(threads),
            waits: AtomicU32::new(0),
            service: Arc::new(Service::new(
                table,
                metrics,
                log,
                drc,
                Watch::new(options.access_log.clone()),
            )),
            listeners,
            stop,
            handle_key: options.handle_key.clone(),
            ending: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut server = Server {
            shared,
            threads: Vec::new(),
            addresses,
            notes,
        };
        server.spawn("nfs-look", |shared| shared.look())?;
        server.spawn("nfs-accept", |shared| shared.accept_all())?;
        server.spawn("nfs-relief", |shared| shared.reactor.events.relieve())?;
        for _ in 0..threads {
            server.spawn("nfs", |shared| shared.work())?;
        }
        Ok(server)
    }

    fn spawn(&mut self, name: &str, run: fn(&Shared)) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&shared));
        self.threads
            .push(spawned.map_err(system("starting a thread"))?);
        Ok(())
    }

    /// Addresses that it listens on, in the order of [`Options::listen`].
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Warnings for the user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters(Arc::clone(&self.shared))
    }

    /// A handle that replaces the exports.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            service: Arc::clone(&self.shared.service),
            tls: self.shared.reactor.tls.clone(),
            handle_key: self.shared.handle_key.clone(),
        }
    }

    /// A handle that stops the server.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until a [`Stopper`] stops the server, or a call panics.
    pub fn wait(&self) {
        let mut ending = self.shared.ending();
        while !ending.wanted {
            ending = self
                .shared
                .changed
                .wait(ending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stops taking calls, finishes those in progress, gives clients a moment to take their replies, and closes.
    #[must_use]
    pub fn stop(mut self) -> Ended {
        self.end();
        match self.shared.ending().failure.take() {
            Some(said) => Ended::Failed(said),
            None => Ended::Stopped,
        }
    }

    fn end(&mut self) {
        let shared = &self.shared;
        shared.reactor.stop();
        shared.want_end(None);
        // It stays readable: each worker that it wakes wakes the next one.
        let _ = rustix::io::write(&shared.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let deadline = Instant::now() + DRAIN_TIME;
        let mut left = shared.reactor.all();
        while !shared.reactor.is_aborted() {
            left.retain(|connection| !connection.drained());
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        for connection in shared.reactor.all() {
            connection.close();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.end();
        }
    }
}

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Requests the shutdown: [`Server::wait`] returns.
    pub fn stop(&self) {
        self.0.want_end(None);
    }

    /// Like [`Stopper::stop`], and no reply is sent any more: results of calls may be wrong from now on.
    pub fn abort(&self) {
        self.0.reactor.abort();
        self.0.want_end(None);
    }
}

/// The counters of a server.
#[derive(Clone, Debug)]
pub struct Counters(Arc<Shared>);

impl Counters {
    /// All counters by name: those of the server, then the sums of the volumes'. A name that ends in `_now` is a gauge.
    #[must_use]
    pub fn list(&self) -> Vec<(String, u64)> {
        let service = &self.0.service;
        let mut list = service.metrics.list();
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for volume in &service.table().volumes {
            for (name, value) in volume.fs().counters() {
                match sums.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += value,
                    None => sums.push((name, value)),
                }
            }
            if let Ok(state) = volume.fs().statfs() {
                let bytes = |blocks: u64| blocks.saturating_mul(u64::from(state.block_size));
                for (name, value) in [
                    ("volume_bytes_now", bytes(state.blocks)),
                    ("free_bytes_now", bytes(state.blocks_free)),
                ] {
                    match sums.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, sum)) => *sum += value,
                        None => sums.push((name, value)),
                    }
                }
            }
        }
        list.extend(
            sums.into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        let gauges = self.0.reactor.gauges().into_iter();
        list.extend(gauges.map(|(name, _, value)| (format!("{name}_now"), value)));
        list
    }

    /// The counters of each client, by address; the last thousand clients.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientState> {
        let connections = self.0.reactor.all();
        let addresses = connections.iter().map(|connection| connection.peer().ip());
        let watch = &self.0.service.watch;
        watch.clients.list(addresses, Instant::now())
    }

    /// All counters in the text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let service = &self.0.service;
        let mut page = Page::default();
        service.metrics.add_to(&mut page);
        for (name, help, value) in self.0.reactor.gauges() {
            let name = format!("steadfast_nfs_{name}");
            page.add((&name, Kind::Gauge, help), &[], value);
        }
        let table = service.table();
        for volume in &table.volumes {
            let space = volume.fs().statfs().ok();
            let labels = [("volume", volume.name())];
            page.volume(&labels, volume.fs().counters(), space.as_ref());
        }
        let up = (
            "steadfast_nfs_export_up",
            Kind::Gauge,
            "1 if the export is served and its volume works",
        );
        let failed = (
            "steadfast_nfs_export_failed",
            Kind::Gauge,
            "1 if the export's volume failed: it can be read, not written",
        );
        for (export, volume) in table.served() {
            let labels = [("export", export.path.as_str()), ("volume", volume.name())];
            let is_failed = volume.has_failed();
            page.add(up, &labels, u64::from(!is_failed));
            page.add(failed, &labels, u64::from(is_failed));
        }
        page.text()
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    // The standard library binds an IPv6 address as the system is set, mostly for IPv4, too. Here it means IPv6 only.
    let family = match address {
        SocketAddr::V4(_) => rustix::net::AddressFamily::INET,
        SocketAddr::V6(_) => rustix::net::AddressFamily::INET6,
    };
    let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, rustix::net::SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(TcpListener::from(socket))
}

impl Shared {
    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want_end(&self, failure: Option<String>) {
        let mut ending = self.ending();
        ending.wanted = true;
        if let Some(said) = failure {
            ending.failure.get_or_insert(said);
        }
        drop(ending);
        self.changed.notify_all();
    }

    /// The thread that looks for slow connections and renewed certificates.
    fn look(&self) {
        let mut renewed_at = Instant::now();
        while !self.reactor.is_stopping() {
            let waited = self.changed.wait_timeout(self.ending(), LOOK_EVERY);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            let now = Instant::now();
            self.reactor.look_after(now);
            if now.saturating_duration_since(renewed_at) >= RENEWED_EVERY {
                self.reactor.renew();
                renewed_at = now;
            }
        }
    }

    /// The thread that accepts connections.
    fn accept_all(&self) {
        let mut turned_away = 0;
        loop {
            let stop = std::iter::once(PollFd::new(&self.stop, PollFlags::IN));
            let listeners = self.listeners.iter();
            let listeners = listeners.map(|listener| PollFd::new(listener, PollFlags::IN));
            // The only failure is an interruption by a signal.
            let _ = poll(&mut stop.chain(listeners).collect::<Vec<_>>(), None);
            if self.reactor.is_stopping() {
                return;
            }
            let since = Instant::now();
            for listener in &self.listeners {
                self.accept(listener);
            }
            let before = std::mem::replace(&mut turned_away, self.reactor.turned_away());
            if turned_away != before {
                thread::sleep((since.elapsed() * PAUSE_FACTOR).min(PAUSE_MAX));
            }
        }
    }

    /// Accepts some of the waiting connections.
    fn accept(&self, listener: &TcpListener) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match listener.accept() {
                Ok((stream, peer)) => {
                    let guest = !self.service.table().admits(peer);
                    // A connection that cannot be served is closed.
                    let _ = prepare(&stream, guest)
                        .and_then(|()| self.reactor.admit(stream, peer, guest));
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e) if is_shortage(&e) => {
                    if !self.reactor.drop_idlest() {
                        thread::sleep(PAUSE_MAX);
                    }
                    return;
                }
                // The client has disconnected before the accept.
                Err(_) => {}
            }
        }
    }
}

/// Whether descriptors, or memory for them, have run out.
fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    shortage
        .iter()
        .any(|e| error.raw_os_error() == Some(e.raw_os_error()))
}

fn prepare(stream: &TcpStream, guest: bool) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    if guest {
        sockopt::set_socket_recv_buffer_size(stream, GUEST_BUFFER_BYTES)?;
        sockopt::set_socket_send_buffer_size(stream, GUEST_BUFFER_BYTES)?;
        return Ok(());
    }
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE.1)?;
    Ok(())
}

/// The kernel's buffer for a client that no export admits, in each direction.
const GUEST_BUFFER_BYTES: usize = 8 << 10;
