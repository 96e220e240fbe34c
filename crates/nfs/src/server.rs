//! The server: listeners, workers, and an end that leaves nothing half done.
//!
//! A fixed number of workers wait on one epoll; whoever gets an event does all that it calls for: accepts,
//! or reads one record and serves it. Nobody waits for a commit: replies that do are left with the volume (`commits`),
//! and one worker leads: it serves what is ready, and when nothing is, commits for all who wait. There are more workers
//! than processors because reads wait for the device; they bound the work in flight, and with it the memory.
//!
//! Invariants: no worker waits for a client; a panic in a call is answered, ends the server, and nothing of
//! what it may have left half done is read or committed afterwards by this server; when [`Server::stop`] has
//! returned, no call is in progress and none begins.

use std::cell::Cell;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nfs3_types::rpc::accept_stat_data;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;
use steadfast_vfs::Shutdown;
use steadfast_vfs::metrics::{Kind, Metrics as Page};

use crate::connection::{Connection, Record, SMALL_READ_BYTES};
use crate::dispatch::{Outcome, Service};
use crate::drc::{self, Cache};
use crate::exports::{Export, ExportError, Table};
use crate::gate::Gate;
use crate::hub::{Hub, LISTENERS, Limits, STOP};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::procedures::TRANSFER_BYTES_MAX;
use crate::reload::{self, Reloader};
use crate::reply::Reply;
use crate::rpc;
use crate::tls::Tls;
use crate::volume::{Served, Volume};

/// Most workers.
pub const THREADS_MAX: usize = 1024;
/// Workers by default.
pub const THREADS_DEFAULT: usize = 64;

/// Bytes of a record beside the data of a WRITE.
const RECORD_OVERHEAD: usize = 4096;
/// Events that a worker which leads a commit serves before it.
const SERVED_BETWEEN_COMMITS: u32 = 64;
/// Turns that a worker which leads a commit gives others without seeing a call come.
const IDLE_TURNS_MAX: u32 = 8;
/// Connections that one event accepts at most.
const ACCEPTED_AT_ONCE: usize = 16;
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
    /// Nobody could reach it.
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
    /// Memory for records that are arriving, and as much again for replies that are not taken.
    pub memory_bytes: u64,
    /// How long a record may take to arrive.
    pub record_time: Duration,
    /// How long a client may take no byte of a reply.
    pub stall_time: Duration,
    /// How long a handshake of TLS may take.
    pub handshake_time: Duration,
    /// How long replies are remembered for calls that come again.
    pub replies_remembered: Duration,
    /// What clients that want TLS get.
    pub tls: Option<Tls>,
    /// Who is told what clients were refused for: some lines a minute at most.
    pub tell: Option<fn(&str)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: Vec::new(),
            threads: THREADS_DEFAULT,
            connections_max: 16_384,
            memory_bytes: 256 << 20,
            record_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(60),
            handshake_time: Duration::from_secs(15),
            replies_remembered: drc::REMEMBERED_FOR,
            tls: None,
            tell: None,
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
    hub: Arc<Hub>,
    service: Arc<Service>,
    listeners: Vec<TcpListener>,
    stop: OwnedFd,
    gate: Gate,
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
        volumes: Vec<Served>,
        exports: Vec<Export>,
        options: &Options,
    ) -> Result<Server, Error> {
        let mut notes = Vec::new();
        let mut opened = Vec::new();
        for served in volumes {
            opened.push(reload::open(served, &mut notes)?);
        }
        let table = Table::new(opened, exports)?;
        table.check_security(options.tls.as_ref())?;
        let threads = options.threads.clamp(1, THREADS_MAX);
        let limits = Limits {
            record_bytes: TRANSFER_BYTES_MAX as usize + RECORD_OVERHEAD,
            arriving_bytes: options.memory_bytes.max(4 << 20),
            unsent_bytes: options.memory_bytes.max(4 << 20),
            connections: options.connections_max.max(1),
            // One client leaves workers for others.
            in_flight: u32::try_from(threads / 2).unwrap_or(1).max(1),
            record_time: options.record_time,
            handshake_time: options.handshake_time,
            stall_time: options.stall_time,
        };
        let metrics = Arc::new(Metrics::default());
        let log = Arc::new(Log::new(options.tell));
        let hub = Hub::new(
            limits,
            Arc::clone(&metrics),
            Arc::clone(&log),
            options.tls.clone(),
        );
        let hub = Arc::new(hub.map_err(system("making an epoll"))?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| system("making an eventfd")(e.into()))?;
        hub.add(&stop, STOP, EventFlags::IN)
            .map_err(system("waiting on an eventfd"))?;
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (token, address) in (LISTENERS..).zip(&options.listen) {
            let failed = |source| Error::Listen {
                address: *address,
                source,
            };
            let listener = listen(*address).map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            hub.add(&listener, token, flags).map_err(failed)?;
            listeners.push(listener);
        }
        let shared = Arc::new(Shared {
            hub,
            service: Arc::new(Service::new(
                table,
                metrics,
                log,
                Cache::new(options.replies_remembered),
            )),
            listeners,
            stop,
            gate: Gate::new(width()),
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

    /// Counters, for whoever shows them.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters(Arc::clone(&self.shared))
    }

    /// Something that exchanges the exports.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            service: Arc::clone(&self.shared.service),
            tls: self.shared.hub.tls.clone(),
        }
    }

    /// Something that ends the server from elsewhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until somebody wants the server to end, or a call has panicked.
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
        shared.hub.stop();
        shared.want_end(None);
        for listener in &shared.listeners {
            shared.hub.forget(listener);
        }
        // Every worker sees it: it stays readable, and is armed for all.
        shared.gate.shut();
        let _ = rustix::io::write(&shared.stop, &1_u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let deadline = Instant::now() + DRAIN_TIME;
        let mut left = shared.hub.all();
        loop {
            left.retain(|connection| !connection.drained());
            if left.is_empty() || Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        for connection in shared.hub.all() {
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
        list
    }

    /// All in the text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let service = &self.0.service;
        let mut page = Page::default();
        service.metrics.add_to(&mut page);
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

/// Workers that run at a time.
fn width() -> usize {
    thread::available_parallelism().map_or(2, |cpus| cpus.get().max(2))
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

/// What a worker keeps from one event to the next.
struct Worker {
    buffer: Vec<u8>,
    reply: Reply,
    /// Volumes whose commits it carries out.
    leads: Vec<Arc<Volume>>,
    /// Inside the gate.
    inside: bool,
}

/// How long a worker that leads a commit lets others run, so that their calls can join.
#[derive(Default)]
struct Patience {
    here: usize,
    idle_turns: u32,
}

impl Patience {
    /// Whether it waits another turn, with so many calls in the batch.
    fn lasts(&mut self, here: usize) -> bool {
        if here > self.here {
            *self = Patience {
                here,
                idle_turns: 0,
            };
        }
        self.idle_turns += 1;
        self.idle_turns <= IDLE_TURNS_MAX
    }
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
        while !self.hub.is_stopping() {
            let waited = self.changed.wait_timeout(self.ending(), LOOK_EVERY);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            let now = Instant::now();
            self.hub.look_after(now);
            if now.saturating_duration_since(renewed_at) >= RENEWED_EVERY {
                self.hub.renew();
                renewed_at = now;
            }
        }
    }

    /// A worker.
    fn work(&self) {
        let mut worker = Worker {
            buffer: Vec::with_capacity(SMALL_READ_BYTES),
            reply: Reply::default(),
            leads: Vec::new(),
            inside: false,
        };
        // One at a time: what is ready at the same time goes to others.
        let mut events = Vec::with_capacity(1);
        let (mut stopping, mut served, mut patience) = (false, 0, Patience::default());
        while !worker.leads.is_empty() || !(stopping || self.hub.is_stopping()) {
            if !worker.inside {
                worker.inside = match worker.leads.is_empty() {
                    true => self.gate.enter(),
                    false => self.gate.try_enter(),
                };
            }
            events.clear();
            if worker.inside && !stopping && served < SERVED_BETWEEN_COMMITS {
                self.hub.wait(&mut events, !worker.leads.is_empty());
                if events.is_empty() && self.expects_more(&worker, &mut patience) {
                    thread::yield_now();
                    continue;
                }
            }
            let Some(event) = events.pop() else {
                // Nothing else is to be done before the commits that this worker leads.
                self.commit(&mut worker);
                (served, patience) = (0, Patience::default());
                continue;
            };
            served += u32::from(!worker.leads.is_empty());
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                STOP => stopping = true,
                token if token < LISTENERS + self.listeners.len() as u64 => {
                    self.accept((token - LISTENERS) as usize);
                }
                token => {
                    if let Some(connection) = self.hub.get(token) {
                        self.serve(&connection, flags, &mut worker);
                    }
                }
            }
        }
        self.step_out(&mut worker);
    }

    /// Before a worker waits for the device.
    fn step_out(&self, worker: &mut Worker) {
        if std::mem::replace(&mut worker.inside, false) {
            self.gate.leave();
        }
    }

    /// Whether others will probably join the commits that a worker leads, if it lets them run.
    fn expects_more(&self, worker: &Worker, patience: &mut Patience) -> bool {
        let (mut here, mut missing) = (0, 0);
        for volume in &worker.leads {
            let gathered = volume.commits.gathered();
            (here, missing) = (here + gathered.0, missing + gathered.1);
        }
        here > 0 && missing > 0 && patience.lasts(here)
    }

    /// Carries out the commits that a worker leads, one batch each.
    fn commit(&self, worker: &mut Worker) {
        if worker.leads.is_empty() {
            return;
        }
        self.step_out(worker);
        for volume in std::mem::take(&mut worker.leads) {
            let batch = volume.commits.next();
            if batch.is_empty() {
                continue;
            }
            let reply = &mut worker.reply;
            let committed = catch_unwind(AssertUnwindSafe(|| {
                self.service.commit(&volume, batch, reply);
            }));
            worker.leads.push(volume);
            if let Err(payload) = committed {
                self.fail(&*payload);
            }
        }
    }

    fn accept(&self, listener: usize) {
        let token = LISTENERS + listener as u64;
        let listener = &self.listeners[listener];
        for _ in 0..ACCEPTED_AT_ONCE {
            match listener.accept() {
                Ok((stream, peer)) => {
                    // Who cannot be served is hung up on.
                    let _ = prepare(&stream).and_then(|()| self.hub.admit(stream, peer));
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) if is_shortage(&e) => {
                    if !self.hub.drop_idlest() {
                        thread::sleep(Duration::from_millis(10));
                    }
                    break;
                }
                // The client has gone before it was met.
                Err(_) => {}
            }
        }
        if !self.hub.is_stopping() {
            self.hub.arm(listener, token, EventFlags::IN);
        }
    }

    fn serve(&self, connection: &Arc<Connection>, flags: EventFlags, worker: &mut Worker) {
        let Worker {
            buffer,
            reply,
            leads,
            inside,
        } = worker;
        let Some(record) = connection.ready(flags, buffer) else {
            return;
        };
        let inside = Cell::from_mut(inside);
        let waits = || {
            if inside.replace(false) {
                self.gate.leave();
            }
        };
        if rpc::may_wait(record.as_ref()) {
            waits();
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.service
                .answer(connection, record.as_ref(), &waits, reply)
        }));
        match outcome {
            Ok(Outcome::Reply) => connection.finish(1, reply.finish()),
            Ok(Outcome::Owes(volume, waiting)) => {
                if volume.commits.push(waiting, leads.is_empty()) {
                    leads.push(volume);
                }
            }
            Ok(Outcome::BeginTls) => connection.begin_tls(reply.finish()),
            Ok(Outcome::Later) => connection.finish(1, &[]),
            Ok(Outcome::Close) => {
                connection.end(crate::connection::Ending::Garbage);
                connection.finish(1, &[]);
            }
            Err(payload) => {
                self.fail(&*payload);
                self.answer_failed(connection, &record, reply);
            }
        }
        if rpc::may_begin_tls(record.as_ref()) {
            connection.read_on();
        }
    }

    /// Ends the server after a panic.
    fn fail(&self, payload: &(dyn std::any::Any + Send)) {
        let said = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        self.hub.stop();
        // What it left half done must not be committed, by whomever.
        for volume in &self.service.table().volumes {
            let _ = volume.fs().shutdown(Shutdown::Nothing);
        }
        self.want_end(Some(said));
    }

    /// The reply to a call that panicked.
    fn answer_failed(&self, connection: &Connection, record: &Record<'_>, reply: &mut Reply) {
        match rpc::read(record.as_ref()) {
            Ok(rpc::Message::Call(call)) => {
                rpc::accepted(reply, call.xid, accept_stat_data::SYSTEM_ERR);
                connection.finish(1, reply.finish());
            }
            _ => connection.finish(1, &[]),
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

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE.1)?;
    Ok(())
}
