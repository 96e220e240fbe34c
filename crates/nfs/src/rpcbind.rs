//! Registration with this host's rpcbind (version 4, RFC 1833), for clients that ask it for ports.
//! It is unnecessary if the mount options name the ports.
//!
//! The server calls rpcbind over its Unix socket, where rpcbind knows the calling user: only root may register.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nfs3_types::rpc::{RPC_VERSION_2, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::{Opaque, Pack};
use nfs3_types::{mount, nfs3, portmap};

use crate::record::mark;
use crate::xdr::{Decoder, Parsed};

/// Socket of rpcbind.
const SOCKET: &str = "/run/rpcbind.sock";
/// Time for a call.
const TIME: Duration = Duration::from_secs(5);
/// Longest reply.
const REPLY_BYTES_MAX: u32 = 1024;
const VERSION: u32 = 4;
const SET: u32 = 1;
const UNSET: u32 = 2;

/// A program at an address.
#[derive(Clone, Copy, Debug)]
struct Place {
    program: u32,
    version: u32,
    address: SocketAddr,
}

impl Place {
    /// The transport, and the address as RFC 1833 writes it.
    fn names(&self) -> (&'static str, String) {
        let transport = match self.address {
            SocketAddr::V4(_) => "tcp",
            SocketAddr::V6(_) => "tcp6",
        };
        let [high, low] = self.address.port().to_be_bytes();
        (transport, format!("{}.{high}.{low}", self.address.ip()))
    }
}

/// Registered programs. Its drop unregisters them.
#[derive(Debug)]
pub struct Registration {
    rpcbind: PathBuf,
    places: Vec<Place>,
}

impl Registration {
    /// Registers NFS and MOUNT at the first IPv4 and the first IPv6 address of these.
    ///
    /// # Errors
    /// rpcbind does not answer, or refuses.
    pub fn new(addresses: &[SocketAddr], mount_port: Option<u16>) -> Result<Registration> {
        Registration::at(Path::new(SOCKET), addresses, mount_port)
    }

    /// The same with another socket of rpcbind.
    #[doc(hidden)]
    pub fn at(
        rpcbind: &Path,
        addresses: &[SocketAddr],
        mount_port: Option<u16>,
    ) -> Result<Registration> {
        let mut registration = Registration {
            rpcbind: rpcbind.to_owned(),
            places: Vec::new(),
        };
        let first = |is: fn(&SocketAddr) -> bool| addresses.iter().copied().find(is);
        let nowhere = |ip: IpAddr| SocketAddr::new(ip, 0);
        for (address, nowhere) in [
            (
                first(SocketAddr::is_ipv4),
                nowhere(Ipv4Addr::UNSPECIFIED.into()),
            ),
            (
                first(SocketAddr::is_ipv6),
                nowhere(Ipv6Addr::UNSPECIFIED.into()),
            ),
        ] {
            let mount_at = |nfs_at: SocketAddr| {
                SocketAddr::new(nfs_at.ip(), mount_port.unwrap_or(nfs_at.port()))
            };
            for (program, version, address) in [
                (nfs3::PROGRAM, nfs3::VERSION, address),
                (mount::PROGRAM, mount::VERSION, address.map(mount_at)),
            ] {
                let place = Place {
                    program,
                    version,
                    address: address.unwrap_or(nowhere),
                };
                // An entry of a server that died is taken over or removed.
                call(rpcbind, UNSET, &place)?;
                if address.is_none() {
                    continue;
                }
                if !call(rpcbind, SET, &place)? {
                    let why = "it refused: only root may register";
                    return Err(Error::new(ErrorKind::PermissionDenied, why));
                }
                registration.places.push(place);
            }
        }
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        for place in &self.places {
            let _ = call(&self.rpcbind, UNSET, place);
        }
    }
}

/// Calls rpcbind. Returns its answer.
fn call(rpcbind: &Path, procedure: u32, place: &Place) -> Result<bool> {
    let garbage = || Error::new(ErrorKind::InvalidData, "it answers something else");
    let xid = std::process::id();
    let message = rpc_msg {
        xid,
        body: msg_body::CALL(call_body {
            rpcvers: RPC_VERSION_2,
            prog: portmap::PROGRAM,
            vers: VERSION,
            proc: procedure,
            cred: opaque_auth::default(),
            verf: opaque_auth::default(),
        }),
    };
    let (transport, address) = place.names();
    let mut body = Vec::new();
    let mut pack = || {
        message.pack(&mut body)?;
        place.program.pack(&mut body)?;
        place.version.pack(&mut body)?;
        // rpcbind determines the owner itself.
        for text in [transport, &address, ""] {
            Opaque::borrowed(text.as_bytes()).pack(&mut body)?;
        }
        Ok::<_, nfs3_types::xdr_codec::Error>(())
    };
    pack().map_err(|_| garbage())?;
    let mut stream = UnixStream::connect(rpcbind)?;
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    stream.write_all(&[&mark(body.len())[..], &body].concat())?;
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes(head) & (u32::MAX >> 1);
    if len > REPLY_BYTES_MAX {
        return Err(garbage());
    }
    let mut reply = vec![0; len as usize];
    stream.read_exact(&mut reply)?;
    let mut decoder = Decoder::new(&reply);
    let mut read = || -> Parsed<(u32, u32, u32, u32, bool)> {
        let (xid, kind, accepted) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        let _verifier = (decoder.u32()?, decoder.opaque(400)?);
        Ok((xid, kind, accepted, decoder.u32()?, decoder.bool()?))
    };
    match read() {
        Ok((answered, 1, 0, 0, yes)) if answered == xid => Ok(yes),
        _ => Err(garbage()),
    }
}
