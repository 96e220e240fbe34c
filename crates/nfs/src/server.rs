//! The server: listeners, workers, and an end that leaves nothing half done.
//!
//! A fixed pool of workers takes events from the reactor; the worker that gets one reads one record and serves it. One more
//! thread accepts connections. While connections are turned away, it takes a quarter of a core at most: clients that come
//! again and again wait in the kernel's backlog, and admitted clients keep the cores. Calls that may wait for the device have fewer places than there are workers (`slots`), so
//! NULL, and what is answered from memory, always finds a worker. No worker waits for a commit but the one that leads it
//! (`commits`).
//!
//! Invariants: no worker waits for a client; after a panic in a call no reply leaves any more, and nothing of what the call
//! may have left half done is committed by this server: clients send again to the next one; when [`Server::stop`] has
//! returned, no call is in progress and none begins.

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

/// Bytes of a record beside the data of a WRITE.
const RECORD_OVERHEAD: usize = 4096;
/// Least memory for what clients send and do not take.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Bytes of replies of one connection that may be in work or not taken, where there is memory enough.
const REPLY_BYTES_MAX: u64 = 4 << 20;
/// Connections that are accepted before it is looked whether any were turned away.
const ACCEPTED_AT_ONCE: usize = 16;
/// While connections are turned away, accepting pauses for so many times the time that it took, but not for longer than the
/// bound. A new client waits longer by this factor, no more.
const PAUSE_FACTOR: u32 = 3;
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// How often slow connections are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often certificates are looked at, whether they were renewed.
const RENEWED_EVERY: Duration = Duration::from_secs(1);
/// How long clients have to take their last replies.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// A client that does not answer is asked for so long, every so often.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No client could reach it.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("{attempt}: {source}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A volume cannot be served.
    #[error("volume {name}: its key for file handles: {source}")]
    Key {
        /// Its name.
        name: String,
        /// Why not.
        source: steadfast_vfs::Error,
    },
    /// The exports contradict each other.
    #[error(transparent)]
    Exports(#[from] ExportError),
}

/// How to serve.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where NFS and MOUNT are offered.
    pub listen: Vec<SocketAddr>,
    /// Workers.
    pub threads: usize,
    /// Most connections.
    pub connections_max: usize,
    /// Most connections of one address; one network of IPv6 (/64) is as one address.
    pub connections_per_address: usize,
    /// Memory that clients can make the server hold: connections, records that arrive or are served, replies that are not
    /// taken. Each worker has 1.2 MiB besides, at most.
    pub memory_bytes: u64,
    /// How long a record may take to arrive.
    pub record_time: Duration,
    /// How long a client may take no reply, or less than 64 KiB of what it has asked for.
    pub stall_time: Duration,
    /// How long a TLS handshake may take.
    pub handshake_time: Duration,
    /// TLS handshakes of one address at a time.
    pub handshakes_per_address: u32,
    /// TLS handshakes that one address may begin within a second.
    pub handshake_rate: u32,
    /// How long a client that no export admits may stay, in one of a few places. It learns that it is refused.
    pub guest_time: Duration,
    /// How long replies are remembered for calls that come again.
    pub replies_remembered: Duration,
    /// Where calls and mounts are logged.
    pub access_log: Option<AccessLog>,
    /// What clients that want TLS get.
    pub tls: Option<Tls>,
    /// What hears why clients were refused: some lines a minute at most.
    pub tell: Option<fn(&str)>,
    /// Asked before each answer.
    pub gate: Option<Arc<dyn Gate>>,
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
        }
    }
}

/// How a server ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was stopped.
    Stopped,
    /// A call panicked, and said this; what the file system holds in memory must not be committed.
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
    /// How many of the next calls that change something are expected to wait for the device.
    waits: AtomicU32,
    service: Arc<Service>,
    listeners: Vec<TcpListener>,
    stop: OwnedFd,
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
            opened.push(reload::open(served, &drc, &mut notes)?);
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
            // One client leaves workers for others.
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

    /// Where it listens, in the order of [`Options::listen`].
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What its user should know.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters(Arc::clone(&self.shared))
    }

    /// Something that exchanges the exports.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            service: Arc::clone(&self.shared.service),
            tls: self.shared.reactor.tls.clone(),
        }
    }

    /// Something that ends the server from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until the server is asked to end, or a call has panicked.
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

    /// Takes no more calls, finishes those in progress, gives clients a moment to take their replies, and closes.
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
        // It stays readable: the worker that it calls calls the next one.
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

/// Ends a server from elsewhere.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks for the end: [`Server::wait`] returns.
    pub fn stop(&self) {
        self.0.want_end(None);
    }

    /// The same, and no answer leaves any more: what calls find from now on need not be true.
    pub fn abort(&self) {
        self.0.reactor.abort();
        self.0.want_end(None);
    }
}

/// What a server has counted.
#[derive(Clone, Debug)]
pub struct Counters(Arc<Shared>);

impl Counters {
    /// All by name, those of the volumes (their sums) behind those of the server. What ends in `_now` goes up and down.
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

    /// What each client has asked for, by address; the last thousand.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientState> {
        let connections = self.0.reactor.all();
        let addresses = connections.iter().map(|connection| connection.peer().ip());
        let watch = &self.0.service.watch;
        watch.clients.list(addresses, Instant::now())
    }

    /// All in the text format of Prometheus, version 0.0.4.
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
    // The standard library binds IPv6 as the system says, mostly for IPv4, too: an address means what it says.
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

    /// A thread that looks for slow connections, and for certificates that were renewed.
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
            // Only a signal interrupts it.
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

    /// Accepts some of the connections that wait.
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
                // The client has gone before it was met.
                Err(_) => {}
            }
        }
    }
}

/// There are no more descriptors, or no memory for them.
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

/// The kernel's memory for a client that no export admits, in each direction.
const GUEST_BUFFER_BYTES: usize = 8 << 10;
