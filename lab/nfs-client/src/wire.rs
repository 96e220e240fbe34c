//! Calls and replies as bytes: ONC RPC version 2 (RFC 5531), in records of one fragment or more.

use std::fmt;
use std::io;

use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, auth_unix, call_body, fragment_header, msg_body, opaque_auth,
    rejected_reply, reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use nfs3_types::{mount, nfs3, portmap};

use crate::failure::Failure;

/// Maximum length of a reply: 1 MiB of data, and room for the rest.
const REPLY_BYTES_MAX: usize = (1 << 20) + (64 << 10);
const FRAGMENT_HEADER_BYTES: usize = 4;

/// A program of a server in one version.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its number.
    pub number: u32,
    /// Its version.
    pub version: u32,
}

/// NFS, version 3.
pub const NFS: Program = Program {
    number: nfs3::PROGRAM,
    version: nfs3::VERSION,
};
/// MOUNT, version 3.
pub const MOUNT: Program = Program {
    number: mount::PROGRAM,
    version: mount::VERSION,
};
/// The port mapper.
pub const PORTMAP: Program = Program {
    number: portmap::PROGRAM,
    version: portmap::VERSION,
};

/// Reason why a server did not try a call.
#[derive(Debug)]
pub enum Refusal {
    /// It took the call, and says why it cannot be carried out. Never `SUCCESS`.
    Accepted(accept_stat_data),
    /// It did not take the call.
    Denied(rejected_reply),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Accepted(accept_stat_data::SUCCESS) => f.write_str("SUCCESS"),
            Refusal::Accepted(accept_stat_data::PROG_UNAVAIL) => f.write_str("PROG_UNAVAIL"),
            Refusal::Accepted(accept_stat_data::PROG_MISMATCH { low, high }) => {
                write!(f, "PROG_MISMATCH, it has versions {low} to {high}")
            }
            Refusal::Accepted(accept_stat_data::PROC_UNAVAIL) => f.write_str("PROC_UNAVAIL"),
            Refusal::Accepted(accept_stat_data::GARBAGE_ARGS) => f.write_str("GARBAGE_ARGS"),
            Refusal::Accepted(accept_stat_data::SYSTEM_ERR) => f.write_str("SYSTEM_ERR"),
            Refusal::Denied(rejected_reply::RPC_MISMATCH { low, high }) => {
                write!(f, "RPC_MISMATCH, it has versions {low} to {high}")
            }
            Refusal::Denied(rejected_reply::AUTH_ERROR(why)) => write!(f, "AUTH_ERROR {why}"),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Protocol(format!("the server refuses: {refusal}"))
    }
}

/// The credential of a user (AUTH_SYS).
#[must_use]
pub fn credential(uid: u32, gid: u32, gids: &[u32]) -> opaque_auth<'static> {
    opaque_auth::auth_unix(&auth_unix {
        stamp: 0,
        machinename: Opaque::borrowed(b"steadfast-test"),
        uid,
        gid,
        gids: gids.to_vec(),
    })
}

/// Appends a call to a record without its mark.
///
/// # Errors
/// Arguments that cannot be encoded.
pub fn message(
    bytes: &mut Vec<u8>,
    xid: u32,
    credential: &opaque_auth<'static>,
    program: Program,
    procedure: u32,
    args: &impl Pack,
) -> Result<(), Failure> {
    let message = rpc_msg {
        xid,
        body: msg_body::CALL(call_body {
            rpcvers: RPC_VERSION_2,
            prog: program.number,
            vers: program.version,
            proc: procedure,
            cred: credential.borrow(),
            verf: opaque_auth::default(),
        }),
    };
    let packed = message.pack(bytes).and_then(|_| args.pack(bytes));
    packed.map_err(|e| Failure::Protocol(format!("a call cannot be encoded: {e}")))?;
    Ok(())
}

/// Appends a call as one record of one fragment.
///
/// # Errors
/// A call that cannot be encoded, or is longer than a fragment may be.
pub fn call(
    record: &mut Vec<u8>,
    xid: u32,
    credential: &opaque_auth<'static>,
    program: Program,
    procedure: u32,
    args: &impl Pack,
) -> Result<(), Failure> {
    let begin = record.len();
    record.extend_from_slice(&[0; FRAGMENT_HEADER_BYTES]);
    let body = record.len();
    message(record, xid, credential, program, procedure, args)?;
    let len = u32::try_from(record.len() - body)
        .ok()
        .filter(|len| *len <= fragment_header::MASK)
        .ok_or_else(|| Failure::Protocol("a call is too long".to_owned()))?;
    record[begin..body].copy_from_slice(&fragment_header::new(len, true).into_xdr_buf());
    Ok(())
}

/// Reads one record, of however many fragments.
///
/// # Errors
/// Those of the stream, and `InvalidData` for a record that is longer than any reply.
pub fn read_record(stream: &mut impl io::Read, record: &mut Vec<u8>) -> io::Result<()> {
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

/// The number of the call that a reply answers, and its result's bytes; or why the call was not even tried.
///
/// # Errors
/// What is no reply.
pub fn reply(record: &[u8]) -> Result<(u32, Result<&[u8], Refusal>), Failure> {
    let mut rest = record;
    let (message, _) = rpc_msg::unpack(&mut rest)
        .map_err(|e| Failure::Protocol(format!("a reply cannot be decoded: {e}")))?;
    let answer = match message.body {
        msg_body::REPLY(reply_body::MSG_ACCEPTED(accepted)) => match accepted.reply_data {
            accept_stat_data::SUCCESS => Ok(rest),
            other => Err(Refusal::Accepted(other)),
        },
        msg_body::REPLY(reply_body::MSG_DENIED(denied)) => Err(Refusal::Denied(denied)),
        msg_body::CALL(_) => {
            return Err(Failure::Protocol("a call instead of a reply".to_owned()));
        }
    };
    Ok((message.xid, answer))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_call_is_one_record_whose_header_counts_its_bytes() {
        let mut record = Vec::new();
        call(
            &mut record,
            7,
            &opaque_auth::default(),
            NFS,
            6,
            &0x0102_0304_u32,
        )
        .unwrap();
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
        let header = |record: &[u8]| {
            let (xid, rest) = reply(record)?;
            Ok::<_, Failure>((xid, record.len() - rest?.len()))
        };
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
}
