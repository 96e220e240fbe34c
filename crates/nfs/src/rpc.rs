//! ONC RPC version 2 (RFC 5531): the header of a call, and what is answered to calls that no
//! procedure sees.

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

/// What a record is.
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
/// It is no call at all: there is nothing to answer to.
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

/// Where the number of the procedure is.
const PROCEDURE: std::ops::Range<usize> = 20..24;
/// Where the kind of the credential is.
const FLAVOR: std::ops::Range<usize> = 24..28;
/// A record that takes a while, whatever it asks for.
const LARGE_RECORD_BYTES: usize = 64 << 10;

/// Whether a call may wait for the device: a guess that costs nothing. A READ finds out.
pub(crate) fn may_wait(record: &[u8]) -> bool {
    use NFS_PROGRAM as P;
    let long = [
        P::NFSPROC3_READDIR,
        P::NFSPROC3_READDIRPLUS,
        P::NFSPROC3_COMMIT,
    ];
    let procedure = record
        .get(PROCEDURE)
        .and_then(|bytes| bytes.try_into().ok());
    let procedure = procedure.map(u32::from_be_bytes);
    record.len() > LARGE_RECORD_BYTES || long.iter().any(|p| procedure == Some(*p as u32))
}

/// Whether a record may be the one behind which TLS begins: all that can be are seen.
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

/// Begins the reply to a call that was accepted, with this outcome; after a success the
/// result follows.
pub(crate) fn accepted(reply: &mut Reply, xid: u32, reply_data: accept_stat_data) {
    let verf = opaque_auth::default();
    put(
        reply,
        xid,
        reply_body::MSG_ACCEPTED(accepted_reply { verf, reply_data }),
    );
}

/// The reply behind which the client begins TLS.
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

/// The reply to a call whose caller is not believed.
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
