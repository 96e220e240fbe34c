//! Export of counters: over a Unix socket to `steadfast stat`, over HTTP to Prometheus.
//!
//! One thread serves both, one client at a time. A client has one deadline for its whole request and answer, and the
//! end of the server disconnects it. A user who may connect to the socket may read the counters. HTTP is offered only on
//! this host, and answers only `GET /metrics`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::clients::ClientState;
use crate::server::Counters;

/// Deadline of a client.
const TIME: Duration = Duration::from_secs(2);
/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Most bytes of counters.
const STATE_BYTES_MAX: u64 = 1 << 20;

/// Offers counters. Its drop ends that.
#[derive(Debug)]
pub struct Admin {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
    metrics: Option<SocketAddr>,
}

impl Admin {
    /// Offers counters at a path, a port of this host, or both. The socket of a dead server at the path is replaced.
    ///
    /// # Errors
    /// The path or the port cannot be used, or the address is not a loopback address.
    pub fn start(
        counters: Counters,
        socket: Option<&Path>,
        metrics: Option<SocketAddr>,
    ) -> std::io::Result<Admin> {
        if metrics.is_some_and(|address| !address.ip().is_loopback()) {
            let why =
                "metrics are offered to this host alone: take an address such as 127.0.0.1:9049";
            return Err(std::io::Error::new(ErrorKind::InvalidInput, why));
        }
        let http = metrics.map(TcpListener::bind).transpose()?;
        let metrics = http.as_ref().map(TcpListener::local_addr).transpose()?;
        let local = socket.map(bind).transpose()?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let seen = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("nfs-admin".to_owned())
            .spawn(move || serve(&counters, local.as_ref(), http.as_ref(), &seen))?;
        Ok(Admin {
            stop,
            thread: Some(thread),
            socket: socket.map(Path::to_owned),
            metrics,
        })
    }

    /// Address of HTTP.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind(path: &Path) -> std::io::Result<UnixListener> {
    match private_listener(path) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            match UnixStream::connect(path) {
                Ok(_) => return Err(e),
                // The server that made the socket has died.
                Err(dead) if dead.kind() == ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                }
                Err(_) => return Err(e),
            }
            private_listener(path)
        }
        bound => bound,
    }
}

/// A socket that only its owner may connect to, from the creation of its path on: Linux takes the path's mode
/// from the socket's.
fn private_listener(path: &Path) -> std::io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    const BACKLOG: i32 = 128;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

fn serve(
    counters: &Counters,
    local: Option<&UnixListener>,
    http: Option<&TcpListener>,
    stop: &OwnedFd,
) {
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(local.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(http.map(|listener| PollFd::new(listener, PollFlags::IN)));
        if poll(&mut fds, None).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        // A client that is gone or too slow gets no answer.
        if let Some(listener) = local.filter(|_| ready[1]) {
            let _ = listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                tell(Observer::new(stream, stop), counters)
            });
        }
        if let Some(listener) = http.filter(|_| ready[ready.len() - 1]) {
            let _ = listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                answer(Observer::new(stream, stop), counters)
            });
        }
    }
}

/// A client that reads counters. Reads and writes end at its deadline, and at the end of the server.
struct Observer<'a, S> {
    stream: S,
    stop: &'a OwnedFd,
    deadline: Instant,
}

impl<'a, S: Read + Write + AsFd> Observer<'a, S> {
    /// Its stream is non-blocking.
    fn new(stream: S, stop: &'a OwnedFd) -> Observer<'a, S> {
        Observer {
            stream,
            stop,
            deadline: Instant::now() + TIME,
        }
    }

    /// Repeats an operation until it succeeds, and waits for `ready` in between.
    fn attempt<T>(
        &mut self,
        ready: PollFlags,
        mut attempt: impl FnMut(&mut S) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        loop {
            // Checked before each attempt, because a client that is always ready must also meet its deadline.
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match attempt(&mut self.stream) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                done => return done,
            }
            let mut fds = [
                PollFd::new(self.stop, PollFlags::IN),
                PollFd::new(&self.stream, ready),
            ];
            let left = Timespec::try_from(left).map_err(std::io::Error::other)?;
            if let Err(e) = poll(&mut fds, Some(&left))
                && e != rustix::io::Errno::INTR
            {
                return Err(e.into());
            }
            if !fds[0].revents().is_empty() {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let len = self.attempt(PollFlags::OUT, |stream| stream.write(bytes))?;
            bytes = &bytes[len..];
        }
        Ok(())
    }
}

fn tell(mut client: Observer<'_, UnixStream>, counters: &Counters) -> std::io::Result<()> {
    let lines = counters.list().into_iter();
    let mut text: String = lines
        .map(|(name, value)| format!("{name} {value}\n"))
        .collect();
    for one in counters.clients() {
        for (name, value) in &one.counters {
            text.push_str(&format!("client {} {name} {value}\n", one.address));
        }
    }
    client.write_all(text.as_bytes())
}

/// The counters of a server.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct State {
    /// Its counters by name.
    pub counters: Vec<(String, u64)>,
    /// Its clients by address.
    pub clients: Vec<ClientState>,
}

impl State {
    /// Adds a line: `NAME VALUE`, or `client ADDRESS NAME VALUE`. None if it is neither.
    fn take(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [name, value] => self.counters.push((name.to_owned(), value.parse().ok()?)),
            ["client", address, name, value] => {
                let address = address.parse().ok()?;
                let same = |last: &ClientState| last.address == address;
                if !self.clients.last().is_some_and(same) {
                    self.clients.push(ClientState {
                        address,
                        counters: Vec::new(),
                    });
                }
                let counter = (name.to_owned(), value.parse().ok()?);
                self.clients.last_mut()?.counters.push(counter);
            }
            _ => return None,
        }
        Some(())
    }
}

/// Reads the state of the server at this socket.
///
/// # Errors
/// There is no server at the path, or it sends something else.
pub fn read_state(path: &Path) -> std::io::Result<State> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIME))?;
    let mut text = String::new();
    stream.take(STATE_BYTES_MAX).read_to_string(&mut text)?;
    let mut state = State::default();
    let all = text.lines().all(|line| state.take(line).is_some());
    if all && !state.counters.is_empty() {
        return Ok(state);
    }
    let why = "no counters come from this socket";
    Err(std::io::Error::new(ErrorKind::InvalidData, why))
}

/// Answers one request of HTTP.
fn answer(
    mut client: Observer<'_, std::net::TcpStream>,
    counters: &Counters,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let len = client.attempt(PollFlags::IN, |stream| stream.read(&mut buffer))?;
        if len == 0 || request.len() + len > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..len]);
    }
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next(), words.next());
    let (status, body) = match (method, target) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", counters.prometheus()),
        (Some(b"GET"), _) => ("404 Not Found", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET, nothing else\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}
