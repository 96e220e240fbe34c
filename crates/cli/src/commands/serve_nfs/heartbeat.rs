//! The heartbeat between two servers: lines of text over TCP, several a second.
//!
//! The server that listens sends its identity, then its role, again and again. No line decides about data: after a
//! false or missing line, a stand-by takes over too early or too late, and then the store still fences, and the lease
//! is still waited out.
//!
//! ```text
//! STEADFAST-HEARTBEAT 1 <16 hexadecimal digits: which volumes>
//! standby <number>     serves nothing; of two that stand by, the one with the higher number takes over
//! active <ms>          serves, and may do so for that long if nothing renews its lease
//! released             serves nothing any more, and has released its volumes
//! ```

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, notice};

/// Interval between two lines.
const BEAT: Duration = Duration::from_millis(250);
/// Time limit of a connection attempt, and of receiving or sending a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of connected peers: one is usual.
const PEERS_MAX: usize = 8;
/// Maximum length of a line in bytes.
const LINE_MAX: u64 = 128;
const GREETING: &str = "STEADFAST-HEARTBEAT 1 ";

/// Role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Serves nothing, and would take over.
    StandingBy(u64),
    /// Serves, at least for this time.
    Active(Duration),
    /// Served, and has released its volumes.
    Released,
}

impl Role {
    fn line(self) -> String {
        match self {
            Role::StandingBy(number) => format!("standby {number}\n"),
            Role::Active(left) => format!("active {}\n", left.as_millis()),
            Role::Released => "released\n".to_owned(),
        }
    }

    fn read(line: &str) -> Option<Role> {
        match line.split_once(' ') {
            Some(("standby", number)) => number.parse().ok().map(Role::StandingBy),
            Some(("active", left)) => {
                let left = left.parse().ok()?;
                Some(Role::Active(Duration::from_millis(left)))
            }
            None if line == "released" => Some(Role::Released),
            _ => None,
        }
    }
}

struct Told {
    role: Box<dyn Fn() -> Role + Send + Sync>,
    /// Number of changes, so that each is sent at once.
    changes: u64,
}

struct Speaker {
    identity: u64,
    told: Mutex<Told>,
    changed: Condvar,
    listeners: AtomicUsize,
}

impl Speaker {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends lines to one peer until it disconnects.
    fn speak(&self, mut peer: TcpStream) -> std::io::Result<()> {
        peer.set_write_timeout(Some(PATIENCE))?;
        peer.set_nodelay(true)?;
        writeln!(peer, "{GREETING}{:016x}", self.identity)?;
        loop {
            let (line, seen) = {
                let told = self.told();
                ((told.role)().line(), told.changes)
            };
            peer.write_all(line.as_bytes())?;
            let told = self.told();
            if told.changes == seen {
                drop(self.changed.wait_timeout(told, BEAT));
            }
        }
    }
}

/// Sends this server's role to peers. When dropped, it sends the last line to connected peers.
pub(crate) struct Heartbeat(Arc<Speaker>);

impl Heartbeat {
    pub(crate) fn listen(at: SocketAddr, identity: u64, role: Role) -> Result<Heartbeat, Failure> {
        let listener = TcpListener::bind(at)
            .map_err(|e| Failure::new(format!("--heartbeat: listening on {at}: {e}")))?;
        let speaker = Arc::new(Speaker {
            identity,
            told: Mutex::new(Told {
                role: Box::new(move || role),
                changes: 0,
            }),
            changed: Condvar::new(),
            listeners: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&speaker);
        let spawned = thread::Builder::new()
            .name("heartbeat".to_owned())
            .spawn(move || accept(&listener, &accepting));
        spawned.map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
        Ok(Heartbeat(speaker))
    }

    /// Sends another role from now on.
    pub(crate) fn say(&self, role: impl Fn() -> Role + Send + Sync + 'static) {
        let mut told = self.0.told();
        told.role = Box::new(role);
        told.changes += 1;
        drop(told);
        self.0.changed.notify_all();
    }
}

fn accept(listener: &TcpListener, speaker: &Arc<Speaker>) {
    loop {
        let Ok((peer, _)) = listener.accept() else {
            thread::sleep(BEAT);
            continue;
        };
        if speaker.listeners.fetch_add(1, Ordering::Relaxed) >= PEERS_MAX {
            speaker.listeners.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let speaking = Arc::clone(speaker);
        let spawned = thread::Builder::new()
            .name("heartbeat-peer".to_owned())
            .spawn(move || {
                // A peer that does not take its lines connects again.
                let _ = speaking.speak(peer);
                speaking.listeners.fetch_sub(1, Ordering::Relaxed);
            });
        if spawned.is_err() {
            speaker.listeners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// State of the peer, as far as known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// Last role, and when it came.
    pub(crate) last: Option<(Role, Instant)>,
    /// Last time at which the peer was known to serve.
    pub(crate) served: Option<Instant>,
}

struct Ear {
    peer: String,
    identity: u64,
    heard: Mutex<Heard>,
    ended: AtomicBool,
}

/// Receives from the peer until dropped.
pub(crate) struct Listening(Arc<Ear>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

impl Listening {
    pub(crate) fn to(peer: &str, identity: u64) -> Result<Listening, Failure> {
        let ear = Arc::new(Ear {
            peer: peer.to_owned(),
            identity,
            heard: Mutex::new(Heard {
                last: None,
                served: None,
            }),
            ended: AtomicBool::new(false),
        });
        let listening = Arc::clone(&ear);
        let spawned = thread::Builder::new()
            .name("peer".to_owned())
            .spawn(move || listening.listen());
        spawned.map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
        Ok(Listening(ear))
    }

    pub(crate) fn heard(&self) -> Heard {
        *self.0.heard()
    }
}

impl Ear {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self) {
        let mut warned = false;
        while !self.ended.load(Ordering::Relaxed) {
            if let Err(why) = self.listen_once()
                && why.kind() == std::io::ErrorKind::InvalidData
                && !std::mem::replace(&mut warned, true)
            {
                notice(&format!("peer {}: {why}", self.peer));
            }
            thread::sleep(BEAT);
        }
    }

    fn listen_once(&self) -> std::io::Result<()> {
        let wrong = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        let mut addresses = self.peer.to_socket_addrs()?;
        let address = addresses
            .next()
            .ok_or_else(|| wrong("has no address".to_owned()))?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut lines = BufReader::new(stream);
        let greeting = line(&mut lines)?;
        let identity = greeting
            .strip_prefix(GREETING)
            .and_then(|rest| u64::from_str_radix(rest, 16).ok());
        match identity {
            None => {
                return Err(wrong(
                    "is no server's --heartbeat of this version".to_owned(),
                ));
            }
            Some(identity) if identity != self.identity => {
                return Err(wrong(
                    "serves other volumes: its heartbeat does not count".to_owned(),
                ));
            }
            Some(_) => {}
        }
        while !self.ended.load(Ordering::Relaxed) {
            let line = line(&mut lines)?;
            let role = Role::read(&line).ok_or_else(|| wrong(format!("says '{line}'")))?;
            let now = Instant::now();
            let mut heard = self.heard();
            heard.last = Some((role, now));
            if matches!(role, Role::Active(left) if left > Duration::ZERO) {
                heard.served = Some(now);
            }
        }
        Ok(())
    }
}

fn line(lines: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    lines.take(LINE_MAX).read_until(b'\n', &mut bytes)?;
    match bytes.pop() {
        Some(b'\n') => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn until(what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn free_port() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    }

    #[test]
    fn a_peer_hears_what_a_server_does_and_each_change_at_once() {
        let at = free_port();
        let heartbeat = Heartbeat::listen(at, 7, Role::StandingBy(9)).unwrap();
        let listening = Listening::to(&at.to_string(), 7).unwrap();
        let last = || listening.heard().last.map(|(role, _)| role);
        until("standing by", || last() == Some(Role::StandingBy(9)));
        assert!(listening.heard().served.is_none());
        heartbeat.say(|| Role::Active(Duration::ZERO));
        until("active", || last() == Some(Role::Active(Duration::ZERO)));
        assert!(listening.heard().served.is_none(), "its lease is out");
        heartbeat.say(|| Role::Active(Duration::from_secs(3)));
        until("serving", || listening.heard().served.is_some());
        heartbeat.say(|| Role::Released);
        until("released", || last() == Some(Role::Released));
    }

    #[test]
    fn the_heartbeat_of_a_server_of_other_volumes_does_not_count() {
        let at = free_port();
        let _heartbeat = Heartbeat::listen(at, 7, Role::Active(PATIENCE)).unwrap();
        let listening = Listening::to(&at.to_string(), 8).unwrap();
        thread::sleep(BEAT * 3);
        assert!(listening.heard().last.is_none());
    }

    #[test]
    fn a_line_is_read_as_it_was_written_and_others_are_refused() {
        for role in [
            Role::StandingBy(u64::MAX),
            Role::Active(Duration::from_millis(4321)),
            Role::Released,
        ] {
            assert_eq!(Role::read(role.line().trim_end()), Some(role));
        }
        for line in ["", "active", "active x", "standby -1", "released 1"] {
            assert_eq!(Role::read(line), None, "{line}");
        }
    }
}
