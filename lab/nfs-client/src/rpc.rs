//! One connection: ONC RPC version 2 over TCP (RFC 5531), with any number of calls outstanding.
//!
//! A call is kept until its reply is there, so that a client may outlive its server: when the connection is lost, `receive`
//! says so once, and `recover` makes a new one and sends every outstanding call again, with its old number. Replies may come
//! in any order.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::rpc::opaque_auth;
use nfs3_types::xdr_codec::Pack;

use crate::failure::Failure;
use crate::wire::{self, Program};

const READ_BUFFER_BYTES: usize = 64 << 10;
/// Ports that a client needs privileges for, as servers want to see by default.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 512..=1023;
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Address of a server, and identity of the caller.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address of the program.
    pub address: SocketAddr,
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Whether to come from a port below 1024.
    pub reserved_port: bool,
    /// Time limit for a reply, or a connection.
    pub timeout: Duration,
}

struct Outstanding {
    /// The whole record, as it is sent.
    record: Vec<u8>,
    sent: Instant,
    resent: bool,
}

/// A call as it was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    xid: u32,
    record: Vec<u8>,
}

/// Reply to a call.
pub struct Reply {
    /// The call's number.
    pub xid: u32,
    /// The procedure's result, without the RPC header.
    pub body: Vec<u8>,
    /// Since the call was sent first.
    pub latency: Duration,
    /// It was sent more than once: an operation that cannot be repeated may say that it was done already.
    pub resent: bool,
}

/// A connection to one program.
pub struct Connection {
    target: Target,
    program: Program,
    /// The connection. None: lost.
    stream: Option<BufReader<TcpStream>>,
    /// The port that later connections come from, too.
    port: Option<u16>,
    credential: opaque_auth<'static>,
    next_xid: u32,
    outstanding: BTreeMap<u32, Outstanding>,
    /// Buffers of calls that were answered.
    spare: Vec<Vec<u8>>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// [`Failure::Lost`] if there is no connection.
    pub fn open(target: &Target, program: Program) -> Result<Connection, Failure> {
        let credential = wire::credential(target.uid, target.gid, &[]);
        Ok(Connection {
            stream: Some(connect(target)?),
            port: None,
            target: target.clone(),
            program,
            credential,
            // Two connections of one run must not look like one client that repeats itself.
            next_xid: first_xid(),
            outstanding: BTreeMap::new(),
            spare: Vec::new(),
        })
    }

    /// Address of the server, and identity of the caller.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Number of calls without a reply.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Sends a call and returns its number. If the connection is lost, `receive` will say so.
    ///
    /// # Errors
    /// A call that cannot be encoded.
    pub fn submit(&mut self, procedure: u32, args: &impl Pack) -> Result<u32, Failure> {
        let xid = self.next_xid;
        self.next_xid = self.next_xid.wrapping_add(1);
        let mut record = self.spare.pop().unwrap_or_default();
        record.clear();
        wire::call(
            &mut record,
            xid,
            &self.credential,
            self.program,
            procedure,
            args,
        )?;
        if let Some(stream) = &mut self.stream
            && stream.get_mut().write_all(&record).is_err()
        {
            self.stream = None;
        }
        self.outstanding.insert(
            xid,
            Outstanding {
                record,
                sent: Instant::now(),
                resent: false,
            },
        );
        Ok(xid)
    }

    /// The next reply, whichever call it answers. `Failure::Lost` when the connection is gone: `recover` brings it back.
    ///
    /// # Errors
    /// That, and a reply that is none, or refuses the call.
    pub fn receive(&mut self) -> Result<Reply, Failure> {
        loop {
            let Some(stream) = &mut self.stream else {
                return Err(Failure::Lost("the connection is gone".to_owned()));
            };
            let mut record = Vec::new();
            if let Err(error) = wire::read_record(stream, &mut record) {
                self.stream = None;
                return Err(match error.kind() {
                    io::ErrorKind::InvalidData => Failure::Protocol(error.to_string()),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::Lost(format!(
                        "no reply within {} s",
                        self.target.timeout.as_secs()
                    )),
                    io::ErrorKind::UnexpectedEof => {
                        Failure::Lost("the server closed the connection".to_owned())
                    }
                    _ => Failure::Lost(error.to_string()),
                });
            }
            let (xid, body) = wire::reply(&record)?;
            let header = record.len() - body?.len();
            // A call that was sent twice may be answered twice.
            let Some(call) = self.outstanding.remove(&xid) else {
                continue;
            };
            self.spare.push(call.record);
            record.drain(..header);
            return Ok(Reply {
                xid,
                body: record,
                latency: call.sent.elapsed(),
                resent: call.resent,
            });
        }
    }

    /// Waits for no reply any more: unanswered calls are not sent again.
    pub fn abandon(&mut self) {
        self.outstanding.clear();
    }

    /// Connects again, as long as it takes up to `patience`, and repeats unanswered calls.
    ///
    /// # Errors
    /// [`Failure::Lost`] after that time.
    pub fn recover(&mut self, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        loop {
            match self.try_recover() {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => {
                    return Err(Failure::Lost(format!(
                        "no connection for {} s: {error}",
                        patience.as_secs()
                    )));
                }
                Err(_) => thread::sleep(RECONNECT_PAUSE),
            }
        }
    }

    /// A call that was not answered yet, as it was sent.
    ///
    /// # Errors
    /// [`Failure::Protocol`] if it was answered.
    pub fn sent(&self, xid: u32) -> Result<Sent, Failure> {
        let call = self.outstanding.get(&xid);
        let call = call.ok_or_else(|| Failure::Protocol("the call was answered".to_owned()))?;
        Ok(Sent {
            xid,
            record: call.record.clone(),
        })
    }

    /// Sends a call again, byte by byte, whether it was answered or not.
    ///
    /// # Errors
    /// [`Failure::Lost`] if there is no connection.
    pub fn send_again(&mut self, sent: &Sent) -> Result<(), Failure> {
        let lost = || Failure::Lost("the connection is gone".to_owned());
        let stream = self.stream.as_mut().ok_or_else(lost)?;
        let record = sent.record.clone();
        stream.get_mut().write_all(&record).map_err(|_| lost())?;
        let (sent_at, resent) = (Instant::now(), true);
        self.outstanding.insert(
            sent.xid,
            Outstanding {
                record,
                sent: sent_at,
                resent,
            },
        );
        Ok(())
    }

    /// From now on every connection comes from the port of the present one, as those of Linux's client do: a server knows calls
    /// that come again by it. Connections end without a farewell, so that the port is free at once.
    ///
    /// # Errors
    /// There is no connection now.
    pub fn keep_port(&mut self) -> Result<(), Failure> {
        let lost = |why: String| Failure::Lost(why);
        let stream = self.stream.as_ref().map(BufReader::get_ref);
        let stream = stream.ok_or_else(|| lost("there is no connection".to_owned()))?;
        let local = stream.local_addr().map_err(|e| lost(e.to_string()))?;
        end_at_once(stream).map_err(|e| lost(e.to_string()))?;
        self.port = Some(local.port());
        Ok(())
    }

    /// Connects to another server that has the same files, and repeats unanswered calls.
    ///
    /// # Errors
    /// [`Failure::Lost`] if there is no connection.
    pub fn move_to(&mut self, address: SocketAddr) -> Result<(), Failure> {
        self.target.address = address;
        self.try_recover()
    }

    fn try_recover(&mut self) -> Result<(), Failure> {
        // The port must be free.
        self.stream = None;
        let mut stream = match self.port {
            Some(port) => connect_from(&self.target, port)?,
            None => connect(&self.target)?,
        };
        for call in self.outstanding.values_mut() {
            stream
                .get_mut()
                .write_all(&call.record)
                .map_err(|e| Failure::Lost(e.to_string()))?;
            call.resent = true;
        }
        self.stream = Some(stream);
        Ok(())
    }
}

fn connect(target: &Target) -> Result<BufReader<TcpStream>, Failure> {
    let stream = if target.reserved_port {
        from_reserved_port(target)
    } else {
        TcpStream::connect_timeout(&target.address, target.timeout)
    };
    prepared(target, stream)
}

fn connect_from(target: &Target, port: u16) -> Result<BufReader<TcpStream>, Failure> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let connected = || {
        let (family, any): (AddressFamily, std::net::IpAddr) = match target.address {
            SocketAddr::V4(_) => (AddressFamily::INET, std::net::Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (AddressFamily::INET6, std::net::Ipv6Addr::UNSPECIFIED.into()),
        };
        let fd = socket(family, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        bind(&fd, &SocketAddr::new(any, port))?;
        connect(&fd, &target.address)?;
        let stream = TcpStream::from(fd);
        end_at_once(&stream)?;
        Ok(stream)
    };
    prepared(target, connected())
}

/// Closing it leaves nothing that waits for late packets.
fn end_at_once(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_linger(
        stream,
        Some(Duration::ZERO),
    )?)
}

fn prepared(
    target: &Target,
    stream: io::Result<TcpStream>,
) -> Result<BufReader<TcpStream>, Failure> {
    let stream = stream.and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(target.timeout))?;
        stream.set_write_timeout(Some(target.timeout))?;
        Ok(stream)
    });
    match stream {
        Ok(stream) => Ok(BufReader::with_capacity(READ_BUFFER_BYTES, stream)),
        Err(error) => Err(Failure::Lost(format!(
            "cannot connect to {}: {error}",
            target.address
        ))),
    }
}

fn from_reserved_port(target: &Target) -> io::Result<TcpStream> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let (family, any): (AddressFamily, std::net::IpAddr) = if target.address.is_ipv4() {
        (AddressFamily::INET, std::net::Ipv4Addr::UNSPECIFIED.into())
    } else {
        (AddressFamily::INET6, std::net::Ipv6Addr::UNSPECIFIED.into())
    };
    // Where the search begins differs, so that clients do not try the same ports in turn.
    let count = RESERVED_PORTS.end() - RESERVED_PORTS.start() + 1;
    let begin = (first_xid() % u32::from(count)) as u16;
    for i in 0..count {
        let port = RESERVED_PORTS.start() + (begin + i) % count;
        let fd = socket(family, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        match bind(&fd, &SocketAddr::new(any, port)) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => continue,
            Err(error) => return Err(error.into()),
        }
        match connect(&fd, &target.address) {
            Ok(()) => return Ok(TcpStream::from(fd)),
            // The port still waits for late packets of an earlier connection.
            Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "every port between 512 and 1023 is taken",
    ))
}

fn first_xid() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(()) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::wire::NFS;

    /// A read cut off by the server's death was sent again with the writes after it, and its reply taken for one to them.
    #[test]
    fn a_call_that_was_given_up_is_not_sent_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target {
            address: listener.local_addr().unwrap(),
            uid: 0,
            gid: 0,
            reserved_port: false,
            timeout: Duration::from_secs(10),
        };
        let server = thread::spawn(move || {
            let mut calls = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut record = Vec::new();
                wire::read_record(&mut stream, &mut record).unwrap();
                calls.push(record[..4].to_vec());
            }
            calls
        });
        let mut connection = Connection::open(&target, NFS).unwrap();
        connection.submit(6, &0_u32).unwrap();
        assert!(matches!(connection.receive(), Err(Failure::Lost(_))));
        connection.abandon();
        let xid = connection.submit(7, &0_u32).unwrap();
        connection.recover(Duration::from_secs(10)).unwrap();
        assert_eq!(server.join().unwrap()[1], xid.to_be_bytes());
    }
}
