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

use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, fragment_header, msg_body, opaque_auth,
    rejected_reply, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use crate::failure::Failure;

/// A reply is never longer than what was asked for: 1 MiB of data, and room for the rest.
const REPLY_BYTES_MAX: usize = (1 << 20) + (64 << 10);
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Ports that a client needs privileges for, as servers want to see by default.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 512..=1023;
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const FRAGMENT_HEADER_BYTES: usize = 4;

/// Where a server is, and who asks.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether to come from a port below 1024.
    pub(crate) reserved_port: bool,
    /// How long a reply, or a connection, may take.
    pub(crate) timeout: Duration,
}

/// A program of a server in one version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) number: u32,
    pub(crate) version: u32,
}

struct Outstanding {
    /// The whole record, as it is sent.
    record: Vec<u8>,
    sent: Instant,
    resent: bool,
}

/// What came back for a call.
pub(crate) struct Reply {
    pub(crate) xid: u32,
    /// The procedure's result, without the RPC header.
    pub(crate) body: Vec<u8>,
    pub(crate) latency: Duration,
    /// It was sent more than once: an operation that cannot be repeated may say that it was done already.
    pub(crate) resent: bool,
}

pub(crate) struct Connection {
    target: Target,
    program: Program,
    /// None: lost.
    stream: Option<BufReader<TcpStream>>,
    credential: opaque_auth<'static>,
    next_xid: u32,
    outstanding: BTreeMap<u32, Outstanding>,
    /// Buffers of calls that were answered.
    spare: Vec<Vec<u8>>,
}

impl Connection {
    pub(crate) fn open(target: &Target, program: Program) -> Result<Connection, Failure> {
        let credential = opaque_auth::auth_unix(&auth_unix {
            stamp: 0,
            machinename: Opaque::borrowed(b"steadfast-bench"),
            uid: target.uid,
            gid: target.gid,
            gids: Vec::new(),
        });
        Ok(Connection {
            stream: Some(connect(target)?),
            target: target.clone(),
            program,
            credential,
            // Two connections of one run must not look like one client that repeats itself.
            next_xid: first_xid(),
            outstanding: BTreeMap::new(),
            spare: Vec::new(),
        })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Sends a call and returns its number. If the connection is lost, `receive` will say so.
    pub(crate) fn submit(&mut self, procedure: u32, args: &impl Pack) -> Result<u32, Failure> {
        let xid = self.next_xid;
        self.next_xid = self.next_xid.wrapping_add(1);
        let mut record = self.spare.pop().unwrap_or_default();
        record.clear();
        let call = rpc_msg {
            xid,
            body: msg_body::CALL(call_body {
                rpcvers: RPC_VERSION_2,
                prog: self.program.number,
                vers: self.program.version,
                proc: procedure,
                cred: self.credential.borrow(),
                verf: opaque_auth::default(),
            }),
        };
        encode(&mut record, &call, args)?;
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
    pub(crate) fn receive(&mut self) -> Result<Reply, Failure> {
        loop {
            let Some(stream) = &mut self.stream else {
                return Err(Failure::Lost("the connection is gone".to_owned()));
            };
            let mut record = Vec::new();
            if let Err(error) = read_record(stream, &mut record) {
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
            let (xid, header) = reply_header(&record)?;
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

    /// Waits for no reply any more: what was not answered is not sent again.
    pub(crate) fn abandon(&mut self) {
        self.outstanding.clear();
    }

    /// Connects again, as long as it takes up to `patience`, and repeats what was not answered.
    pub(crate) fn recover(&mut self, patience: Duration) -> Result<(), Failure> {
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

    fn try_recover(&mut self) -> Result<(), Failure> {
        let mut stream = connect(&self.target)?;
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

/// Frames a message as one record of one fragment.
fn encode(
    record: &mut Vec<u8>,
    message: &rpc_msg<'_, '_>,
    args: &impl Pack,
) -> Result<(), Failure> {
    record.extend_from_slice(&[0; FRAGMENT_HEADER_BYTES]);
    message
        .pack(record)
        .and_then(|_| args.pack(record))
        .map_err(|e| Failure::Protocol(format!("a call cannot be encoded: {e}")))?;
    let len = u32::try_from(record.len() - FRAGMENT_HEADER_BYTES)
        .ok()
        .filter(|len| *len <= fragment_header::MASK)
        .ok_or_else(|| Failure::Protocol("a call is too long".to_owned()))?;
    record[..FRAGMENT_HEADER_BYTES]
        .copy_from_slice(&fragment_header::new(len, true).into_xdr_buf());
    Ok(())
}

/// Reads one record, of however many fragments.
fn read_record(stream: &mut impl io::Read, record: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut header = [0; FRAGMENT_HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let header = fragment_header::from(header);
        let len = header.fragment_length() as usize;
        let begin = record.len();
        if begin + len > REPLY_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a reply of {} bytes or more", begin + len),
            ));
        }
        record.resize(begin + len, 0);
        stream.read_exact(&mut record[begin..])?;
        if header.eof() {
            return Ok(());
        }
    }
}

/// The number of the call that a reply answers, and the length of its header; or why the call was not even tried.
fn reply_header(record: &[u8]) -> Result<(u32, usize), Failure> {
    let (message, len) = rpc_msg::unpack(&mut &*record)
        .map_err(|e| Failure::Protocol(format!("a reply cannot be decoded: {e}")))?;
    let refused = |why: String| Err(Failure::Protocol(format!("the server refuses: {why}")));
    match message.body {
        msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) => match accepted.reply_data {
            accept_stat_data::SUCCESS => Ok((message.xid, len)),
            accept_stat_data::PROG_UNAVAIL => refused("PROG_UNAVAIL".to_owned()),
            accept_stat_data::PROG_MISMATCH { low, high } => {
                refused(format!("PROG_MISMATCH, it has versions {low} to {high}"))
            }
            accept_stat_data::PROC_UNAVAIL => refused("PROC_UNAVAIL".to_owned()),
            accept_stat_data::GARBAGE_ARGS => refused("GARBAGE_ARGS".to_owned()),
            accept_stat_data::SYSTEM_ERR => refused("SYSTEM_ERR".to_owned()),
        },
        msg_body::REPLY(reply_body::MSG_DENIED(rejected_reply::RPC_MISMATCH { low, high })) => {
            refused(format!("RPC_MISMATCH, it has versions {low} to {high}"))
        }
        msg_body::REPLY(reply_body::MSG_DENIED(rejected_reply::AUTH_ERROR(why))) => {
            refused(format!("AUTH_ERROR {why}"))
        }
        msg_body::CALL(_) => Err(Failure::Protocol("a call instead of a reply".to_owned())),
    }
}

fn connect(target: &Target) -> Result<BufReader<TcpStream>, Failure> {
    let stream = if target.reserved_port {
        from_reserved_port(target)
    } else {
        TcpStream::connect_timeout(&target.address, target.timeout)
    };
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

    #[test]
    fn a_call_is_one_record_whose_header_counts_its_bytes() {
        let mut record = Vec::new();
        let call = rpc_msg {
            xid: 7,
            body: msg_body::CALL(call_body {
                rpcvers: RPC_VERSION_2,
                prog: 100_003,
                vers: 3,
                proc: 6,
                cred: opaque_auth::default(),
                verf: opaque_auth::default(),
            }),
        };
        encode(&mut record, &call, &0x0102_0304_u32).unwrap();
        let expected: Vec<u8> = [
            0x8000_002c_u32,
            7,
            0,
            2,
            100_003,
            3,
            6,
            0,
            0,
            0,
            0,
            0x0102_0304,
        ]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
        assert_eq!(record, expected);
    }

    #[test]
    fn a_record_of_three_fragments_is_read_as_one() {
        let mut wire = Vec::new();
        for (text, last) in [("ab", false), ("", false), ("cde", true)] {
            wire.extend(fragment_header::new(text.len() as u32, last).into_xdr_buf());
            wire.extend(text.as_bytes());
        }
        wire.extend(b"next");
        let mut record = Vec::new();
        let mut rest = wire.as_slice();
        read_record(&mut rest, &mut record).unwrap();
        assert_eq!((record.as_slice(), rest), (&b"abcde"[..], &b"next"[..]));
    }

    #[test]
    fn a_reply_that_claims_a_gigabyte_is_refused_before_it_is_read() {
        let wire = fragment_header::new(1 << 30, true).into_xdr_buf();
        let error = read_record(&mut wire.as_slice(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_refused_call_is_reported_by_its_name() {
        let words = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        };
        let header = |record: &[u8]| reply_header(record);
        assert_eq!(header(&words(&[9, 1, 0, 0, 0, 0])).unwrap(), (9, 24));
        for (record, name) in [
            (words(&[9, 1, 0, 0, 0, 2, 3, 4]), "versions 3 to 4"),
            (words(&[9, 1, 0, 0, 0, 4]), "GARBAGE_ARGS"),
            (words(&[9, 1, 1, 1, 5]), "AUTH_TOOWEAK"),
            (words(&[9, 1]), "cannot be decoded"),
        ] {
            let error = header(&record).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    /// A read that was cut off by the server's death was sent again with the writes behind it, and its reply taken for one to them.
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
        let program = Program {
            number: 100_003,
            version: 3,
        };
        let server = thread::spawn(move || {
            let mut calls = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut record = Vec::new();
                read_record(&mut stream, &mut record).unwrap();
                calls.push(record[..4].to_vec());
            }
            calls
        });
        let mut connection = Connection::open(&target, program).unwrap();
        connection.submit(6, &0_u32).unwrap();
        assert!(matches!(connection.receive(), Err(Failure::Lost(_))));
        connection.abandon();
        let xid = connection.submit(7, &0_u32).unwrap();
        connection.recover(Duration::from_secs(10)).unwrap();
        assert_eq!(server.join().unwrap()[1], xid.to_be_bytes());
    }
}
