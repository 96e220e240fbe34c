//! Registration with this host's rpcbind (port mapper version 2, RFC 1833), for clients that ask it
//! for ports. Nobody needs it who names the ports when mounting.
//!
//! The port mapper knows IPv4 alone; rpcbind lets root register, and others from reserved ports.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use nfs3_types::portmap::{IPPROTO_TCP, PMAP_PORT, PMAP_PROG, PROGRAM, VERSION, mapping};
use nfs3_types::rpc::{RPC_VERSION_2, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::Pack;
use nfs3_types::{mount, nfs3};

use crate::record::mark;
use crate::xdr::Decoder;

/// How long rpcbind may take.
const TIME: Duration = Duration::from_secs(5);
/// Longest reply.
const REPLY_BYTES_MAX: u32 = 1024;

/// Programs that are registered; they are taken back when it is dropped.
#[derive(Debug)]
pub struct Registration {
    rpcbind: SocketAddr,
    programs: Vec<(u32, u32, u16)>,
}

impl Registration {
    /// Registers NFS and MOUNT.
    ///
    /// # Errors
    /// rpcbind does not answer, or refuses.
    pub fn new(nfs_port: u16, mount_port: u16) -> std::io::Result<Registration> {
        Registration::at(
            (Ipv4Addr::LOCALHOST, PMAP_PORT).into(),
            nfs_port,
            mount_port,
        )
    }

    /// The same, with an rpcbind somewhere else.
    #[doc(hidden)]
    pub fn at(
        rpcbind: SocketAddr,
        nfs_port: u16,
        mount_port: u16,
    ) -> std::io::Result<Registration> {
        let mut registration = Registration {
            rpcbind,
            programs: Vec::new(),
        };
        for (program, version, port) in [
            (nfs3::PROGRAM, nfs3::VERSION, nfs_port),
            (mount::PROGRAM, mount::VERSION, mount_port),
        ] {
            // What a server that died has left is taken over.
            call(rpcbind, PMAP_PROG::PMAPPROC_UNSET, program, version, 0)?;
            if !call(rpcbind, PMAP_PROG::PMAPPROC_SET, program, version, port)? {
                let why = "rpcbind refused; only root may register";
                return Err(std::io::Error::new(
                    std::io::ErrorKind::PermissionDenied,
                    why,
                ));
            }
            registration.programs.push((program, version, port));
        }
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        for (program, version, port) in &self.programs {
            let _ = call(
                self.rpcbind,
                PMAP_PROG::PMAPPROC_UNSET,
                *program,
                *version,
                *port,
            );
        }
    }
}

/// Calls the port mapper: what it answers.
fn call(
    rpcbind: SocketAddr,
    procedure: PMAP_PROG,
    prog: u32,
    vers: u32,
    port: u16,
) -> std::io::Result<bool> {
    let garbage = || {
        std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "rpcbind answers something else",
        )
    };
    let xid = std::process::id();
    let message = rpc_msg {
        xid,
        body: msg_body::CALL(call_body {
            rpcvers: RPC_VERSION_2,
            prog: PROGRAM,
            vers: VERSION,
            proc: procedure as u32,
            cred: opaque_auth::default(),
            verf: opaque_auth::default(),
        }),
    };
    let args = mapping {
        prog,
        vers,
        prot: IPPROTO_TCP,
        port: u32::from(port),
    };
    let mut body = Vec::new();
    let packed = message.pack(&mut body).and_then(|_| args.pack(&mut body));
    packed.map_err(|_| garbage())?;
    let mut stream = TcpStream::connect_timeout(&rpcbind, TIME)?;
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
    let mut read = || -> crate::xdr::Parsed<(u32, u32, u32, u32, bool)> {
        let (xid, kind, accepted) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        let _verifier = (decoder.u32()?, decoder.opaque(400)?);
        Ok((xid, kind, accepted, decoder.u32()?, decoder.bool()?))
    };
    match read() {
        Ok((answered, 1, 0, 0, yes)) if answered == xid => Ok(yes),
        _ => Err(garbage()),
    }
}
