//! Persistent replies: with them the next server, on any machine, answers a retransmitted call.
//!
//! A non-idempotent call leaves a note with its change ([`steadfast_vfs::Note`]): the key of the call, and its reply. The file
//! system makes both durable together or neither, so no server finds the change without the note. The change may become durable
//! before the reply is made, by another call's commit; then the note has no reply, and the call is answered with success and
//! without attributes, which are optional in the protocol. If a WRITE is done in parts, or an object is created and its
//! attributes are set in two operations, the last operation leaves the note.
//!
//! Not kept: error replies (nothing was changed), and unstable writes (the write verifier makes clients send them again).
//!
//! ```text
//! 0 version u8 = 1   1 security u8   2 port u16   4 xid u32   8 procedure u32   12 length of the call u32   16 its checksum u64
//! 24 seconds since 1970 i64   32 address [16], IPv4 as IPv6   48 reply without its mark, or nothing        (big endian)
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3};
use nfs3_types::rpc::accept_stat_data;

use crate::drc::Key;
use crate::record::MARK_BYTES;
use crate::reply::Reply;
use crate::rpc;
use crate::security::Security;

const VERSION: u8 = 1;
const REPLY_AT: usize = 48;
/// Older notes are not used, because clients reuse the numbers of calls. The clocks of two machines must differ by less.
const FRESH: Duration = Duration::from_secs(600);

fn now() -> u64 {
    UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()
}

/// The note of a call. `reply` is its whole record; none if it is not made yet.
pub(crate) fn encode(key: &Key, reply: Option<&[u8]>) -> Vec<u8> {
    let ip = match key.peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let reply = reply.and_then(|reply| reply.get(MARK_BYTES..));
    let mut bytes = Vec::with_capacity(REPLY_AT + reply.map_or(0, <[u8]>::len));
    bytes.extend([VERSION, key.security as u8]);
    bytes.extend(key.peer.port().to_be_bytes());
    bytes.extend(key.xid.to_be_bytes());
    bytes.extend(key.procedure.to_be_bytes());
    bytes.extend(u32::try_from(key.len).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(key.sum.to_be_bytes());
    bytes.extend(now().to_be_bytes());
    bytes.extend(ip.octets());
    bytes.extend(reply.unwrap_or_default());
    bytes
}

/// Decodes a note: the key of its call, and the whole reply. None: the note is too old, or of an unknown form.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Key, Vec<u8>)> {
    let (head, reply) = bytes.split_at_checked(REPLY_AT)?;
    let u32_at = |at: usize| Some(u32::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_be_bytes(*head.get(at..)?.first_chunk()?));
    if head[0] != VERSION || now().abs_diff(u64_at(24)?) > FRESH.as_secs() {
        return None;
    }
    let security = [Security::None, Security::Tls, Security::Mtls]
        .into_iter()
        .find(|security| *security as u8 == head[1])?;
    let ip: [u8; 16] = *head[32..].first_chunk()?;
    let key = Key {
        peer: SocketAddr::new(
            Ipv6Addr::from(ip).to_canonical(),
            u16::from_be_bytes([head[2], head[3]]),
        ),
        xid: u32_at(4)?,
        procedure: u32_at(8)?,
        len: u32_at(12)? as usize,
        sum: u64_at(16)?,
        security,
    };
    let procedure = NFS_PROGRAM::try_from(key.procedure).ok()?;
    let mut record = Reply::default();
    if reply.is_empty() {
        bare(procedure, key.xid, &mut record)?;
    } else {
        record.begin();
        let room = record.skip(reply.len());
        record.at(room).copy_from_slice(reply);
    }
    let record = record.finish().to_vec();
    Some((key, record))
}

/// The reply of a successful call without its optional parts: handle and attributes.
fn bare(procedure: NFS_PROGRAM, xid: u32, reply: &mut Reply) -> Option<()> {
    use NFS_PROGRAM as P;
    // One 'nothing follows' for each: a new object's handle, its attributes, then two for each directory or file.
    let absent = match procedure {
        P::NFSPROC3_SETATTR | P::NFSPROC3_REMOVE | P::NFSPROC3_RMDIR => 2,
        P::NFSPROC3_LINK => 3,
        P::NFSPROC3_CREATE
        | P::NFSPROC3_MKDIR
        | P::NFSPROC3_SYMLINK
        | P::NFSPROC3_MKNOD
        | P::NFSPROC3_RENAME => 4,
        // The reply of a WRITE needs the count.
        _ => return None,
    };
    rpc::accepted(reply, xid, accept_stat_data::SUCCESS);
    reply.put(&nfsstat3::NFS3_OK);
    (0..absent).for_each(|_| reply.put(&0_u32));
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use nfs3_types::nfs3::{CREATE3res, LINK3res, Nfs3Result, REMOVE3res, RENAME3res, SETATTR3res};
    use nfs3_types::xdr_codec::Unpack;

    fn key(procedure: NFS_PROGRAM) -> Key {
        let peer = ("10.1.2.3:777".parse().unwrap(), Security::Tls);
        Key::of(peer, 7, procedure as u32, b"a call")
    }

    #[test]
    fn a_call_is_known_again_with_its_reply() {
        let key = key(NFS_PROGRAM::NFSPROC3_WRITE);
        let reply = [&[0x80, 0, 0, 4][..], b"done"].concat();
        let note = encode(&key, Some(&reply));
        assert_eq!(decode(&note), Some((key, reply)));
        assert_eq!(decode(&encode(&key, None)), None, "its count is not known");
        let v6 = Key {
            peer: "[fd00::1]:900".parse().unwrap(),
            ..key
        };
        let found = decode(&encode(&v6, Some(b"\x80\0\0\x04done")));
        assert_eq!(found.map(|(key, _)| key), Some(v6));
        let mut old = note.clone();
        old[24..32].copy_from_slice(&(now() - FRESH.as_secs() - 1).to_be_bytes());
        let mut other = note.clone();
        other[0] = 2;
        let mut unknown = note.clone();
        unknown[1] = 9;
        for bad in [&old[..], &other, &unknown, &note[..REPLY_AT - 1], &[]] {
            assert_eq!(decode(bad), None);
        }
    }

    fn bare_result<T: Unpack, E: Unpack>(procedure: NFS_PROGRAM) -> T
    where
        Nfs3Result<T, E>: Unpack,
    {
        let (_, record) = decode(&encode(&key(procedure), None)).unwrap();
        let mut rest = &record[MARK_BYTES + 24..];
        let (result, _) = Nfs3Result::<T, E>::unpack(&mut rest).unwrap();
        assert!(rest.is_empty(), "{procedure:?}");
        match result {
            Nfs3Result::Ok(done) => done,
            Nfs3Result::Err(_) => panic!("{procedure:?} failed"),
        }
    }

    #[test]
    fn a_missing_reply_becomes_a_success_without_attributes() {
        fn of<T, E>(_: Option<Nfs3Result<T, E>>, procedure: NFS_PROGRAM)
        where
            T: Unpack,
            E: Unpack,
            Nfs3Result<T, E>: Unpack,
        {
            bare_result::<T, E>(procedure);
        }
        of(None::<SETATTR3res>, NFS_PROGRAM::NFSPROC3_SETATTR);
        of(None::<CREATE3res>, NFS_PROGRAM::NFSPROC3_CREATE);
        of(None::<REMOVE3res>, NFS_PROGRAM::NFSPROC3_REMOVE);
        of(None::<RENAME3res>, NFS_PROGRAM::NFSPROC3_RENAME);
        of(None::<LINK3res>, NFS_PROGRAM::NFSPROC3_LINK);
    }
}
