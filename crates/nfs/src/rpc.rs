//! ONC RPC version 2 (RFC 5531): the header of a call, and the answers to calls that reach no
//! procedure.

use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, accepted_reply, auth_flavor, auth_stat, msg_body, msg_type,
    opaque_auth, rejected_reply, reply_body, rpc_msg,
};

use nfs3_types::nfs3::NFS_PROGRAM;
use nfs3_types::xdr_codec::Opaque;

use crate::auth::{AUTH_NONE, AUTH_TLS};
use crate::reply::Reply;
use crate::xdr::{Decoder, Garbage, Parsed};

/// Longest credential or verifier.
const AUTH_BYTES_MAX: usize = 400;

/// The header of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// Chosen by the client; the reply carries it.
    pub(crate) xid: u32,
    /// Program and version.
    pub(crate) program: u32,
    /// Its version.
    pub(crate) version: u32,
    /// Number of the procedure.
    pub(crate) procedure: u32,
    /// Kind of the credential.
    pub(crate) flavor: u32,
    /// The credential.
    pub(crate) credential: &'a [u8],
    /// The verifier is AUTH_NONE and empty.
    pub(crate) unverified: bool,
    /// The arguments.
    pub(crate) args: Decoder<'a>,
}

/// A decoded record.
#[derive(Debug)]
pub(crate) enum Message<'a> {
    /// A call.
    Call(Call<'a>),
    /// A call in another version of RPC.
    WrongVersion {
        /// Its number.
        xid: u32,
    },
}

/// Reads the header of a record.
///
/// # Errors
/// It is not a call, so there is nothing to answer.
pub(crate) fn read(record: &[u8]) -> Parsed<Message<'_>> {
    let mut decoder = Decoder::new(record);
    let xid = decoder.u32()?;
    if decoder.u32()? != msg_type::CALL as u32 {
        return Err(Garbage);
    }
    if decoder.u32()? != RPC_VERSION_2 {
        return Ok(Message::WrongVersion { xid });
    }
    let (program, version, procedure) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
    let (flavor, credential) = (decoder.u32()?, decoder.opaque(AUTH_BYTES_MAX)?);
    let (verifier, body) = (decoder.u32()?, decoder.opaque(AUTH_BYTES_MAX)?);
    Ok(Message::Call(Call {
        xid,
        program,
        version,
        procedure,
        flavor,
        credential,
        unverified: verifier == AUTH_NONE && body.is_empty(),
        args: decoder,
    }))
}

/// Offsets of the numbers of program and procedure.
const PROGRAM: std::ops::Range<usize> = 12..16;
const PROCEDURE: std::ops::Range<usize> = 20..24;
/// Offset of the credential's kind.
const FLAVOR: std::ops::Range<usize> = 24..28;
/// Most bytes of a reply with data.
const REPLY_DATA_BYTES_MAX: u32 = 1 << 20;

/// Whether a call waits for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    Never,
    /// It waits unless the requested data is in memory.
    Perhaps,
    /// It changes something, or reads much.
    Likely,
}

fn word(record: &[u8], at: std::ops::Range<usize>) -> Option<u32> {
    let bytes = record.get(at)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Whether a record's call waits for the device, by its program and procedure.
pub(crate) fn waits(record: &[u8]) -> Waits {
    use NFS_PROGRAM as P;
    let procedure = word(record, PROCEDURE);
    match word(record, PROGRAM) {
        Some(nfs3_types::nfs3::PROGRAM) => match procedure.map(P::try_from) {
            Some(Ok(P::NFSPROC3_NULL) | Err(_)) | None => Waits::Never,
            Some(Ok(
                P::NFSPROC3_GETATTR
                | P::NFSPROC3_LOOKUP
                | P::NFSPROC3_ACCESS
                | P::NFSPROC3_READLINK
                | P::NFSPROC3_READ
                | P::NFSPROC3_FSSTAT
                | P::NFSPROC3_FSINFO
                | P::NFSPROC3_PATHCONF,
            )) => Waits::Perhaps,
            Some(Ok(_)) => Waits::Likely,
        },
        Some(nfs3_types::mount::PROGRAM) if procedure == Some(MOUNT_MNT) => Waits::Likely,
        _ => Waits::Never,
    }
}

/// The only procedure of MOUNT that reads a file system.
const MOUNT_MNT: u32 = 1;

/// Most bytes of data in the reply to a record's call; 0 if they are few.
pub(crate) fn reply_bytes_max(record: &[u8]) -> usize {
    use NFS_PROGRAM as P;
    // Bytes between the handle and the requested number of bytes.
    let skipped = match word(record, PROCEDURE).map(P::try_from) {
        Some(Ok(P::NFSPROC3_READ)) => 8,
        Some(Ok(P::NFSPROC3_READDIR)) => 16,
        Some(Ok(P::NFSPROC3_READDIRPLUS)) => 20,
        _ => return 0,
    };
    let wanted = || {
        let Ok(Message::Call(mut call)) = read(record) else {
            return Err(Garbage);
        };
        call.args.opaque(AUTH_BYTES_MAX)?;
        for _ in 0..skipped / 4 {
            call.args.u32()?;
        }
        call.args.u32()
    };
    wanted().map_or(0, |bytes| bytes.min(REPLY_DATA_BYTES_MAX) as usize)
}

/// Whether TLS may begin after this record. It never misses such a record.
pub(crate) fn may_begin_tls(record: &[u8]) -> bool {
    record.get(FLAVOR) == Some(&AUTH_TLS.to_be_bytes()[..])
}

fn put(reply: &mut Reply, xid: u32, body: reply_body<'_>) {
    reply.begin();
    reply.put(&rpc_msg {
        xid,
        body: msg_body::REPLY(body),
    });
}

/// Begins the reply to an accepted call, with this outcome. After a success the
/// result follows.
pub(crate) fn accepted(reply: &mut Reply, xid: u32, reply_data: accept_stat_data) {
    let verf = opaque_auth::default();
    put(
        reply,
        xid,
        reply_body::MSG_ACCEPTED(accepted_reply { verf, reply_data }),
    );
}

/// The reply after which the client begins TLS.
pub(crate) fn start_tls(reply: &mut Reply, xid: u32) {
    let verf = opaque_auth {
        flavor: auth_flavor::AUTH_NULL,
        body: Opaque::borrowed(b"STARTTLS"),
    };
    let reply_data = accept_stat_data::SUCCESS;
    put(
        reply,
        xid,
        reply_body::MSG_ACCEPTED(accepted_reply { verf, reply_data }),
    );
}

/// The reply to a call with a rejected credential.
pub(crate) fn not_authentic(reply: &mut Reply, xid: u32, why: auth_stat) {
    put(
        reply,
        xid,
        reply_body::MSG_DENIED(rejected_reply::auth_error(why)),
    );
}

/// The reply to a call in another version of RPC.
pub(crate) fn wrong_version(reply: &mut Reply, xid: u32) {
    let only = rejected_reply::rpc_mismatch(RPC_VERSION_2, RPC_VERSION_2);
    put(reply, xid, reply_body::MSG_DENIED(only));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(procedure: NFS_PROGRAM, rest: &[u32]) -> Vec<u8> {
        // Number, call, RPC 2, program, version, procedure, two empty AUTH_NONE, a handle of four bytes.
        let head = [7, 0, 2, nfs3_types::nfs3::PROGRAM, 3, procedure as u32];
        let words = [&head[..], &[0; 4], &[4, 9], rest].concat();
        words.into_iter().flat_map(u32::to_be_bytes).collect()
    }

    #[test]
    fn a_call_says_how_much_it_asks_for() {
        use NFS_PROGRAM as P;
        let max = |procedure, rest: &[u32]| reply_bytes_max(&call(procedure, rest));
        assert_eq!(max(P::NFSPROC3_READ, &[1, 2, 3000]), 3000);
        assert_eq!(max(P::NFSPROC3_READ, &[1, 2, u32::MAX]), 1 << 20);
        assert_eq!(max(P::NFSPROC3_READ, &[1, 2]), 0, "cut off");
        assert_eq!(max(P::NFSPROC3_READDIR, &[1, 2, 3, 4, 5000]), 5000);
        assert_eq!(max(P::NFSPROC3_READDIRPLUS, &[1, 2, 3, 4, 5, 6000]), 6000);
        assert_eq!(max(P::NFSPROC3_GETATTR, &[1, 2, 3000]), 0);
        assert_eq!(reply_bytes_max(b"x"), 0);
        assert_eq!(waits(b"x"), Waits::Never);
        assert_eq!(waits(&call(P::NFSPROC3_NULL, &[])), Waits::Never);
        assert_eq!(waits(&call(P::NFSPROC3_READ, &[])), Waits::Perhaps);
        assert_eq!(waits(&call(P::NFSPROC3_WRITE, &[])), Waits::Likely);
    }
}
