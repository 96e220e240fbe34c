//! The identity of a caller: AUTH_SYS as sent, AUTH_NONE as nobody, and the squashing of an export.
//!
//! AUTH_SYS is as trustworthy as the client's address: it carries a user, a group and at
//! most sixteen more groups.

use std::sync::Arc;

use nfs3_types::rpc::auth_stat;
use steadfast_vfs::{Caller, Stream};

use crate::xdr::{Decoder, Parsed};

/// `AUTH_NONE`.
pub(crate) const AUTH_NONE: u32 = 0;
/// `AUTH_SYS`.
pub(crate) const AUTH_SYS: u32 = 1;
/// `AUTH_TLS` (RFC 9289): no identity, but a request for TLS.
pub(crate) const AUTH_TLS: u32 = 7;

/// Longest name of a machine.
const MACHINE_BYTES_MAX: usize = 255;
/// Most groups besides the first.
const GROUPS_MAX: u32 = 16;

/// A decoded credential.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claimed {
    /// No identity.
    Nobody,
    /// A user and groups.
    User {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// More groups.
        groups: [u32; GROUPS_MAX as usize],
        /// Number of further groups.
        groups_len: usize,
    },
}

/// Reads a credential.
///
/// # Errors
/// The status to answer with.
pub(crate) fn read(flavor: u32, credential: &[u8]) -> Result<Claimed, auth_stat> {
    match flavor {
        AUTH_NONE => Ok(Claimed::Nobody),
        AUTH_SYS => read_sys(credential).map_err(|_| auth_stat::AUTH_BADCRED),
        _ => Err(auth_stat::AUTH_BADCRED),
    }
}

fn read_sys(credential: &[u8]) -> Parsed<Claimed> {
    let mut decoder = Decoder::new(credential);
    let _stamp = decoder.u32()?;
    let _machine = decoder.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid) = (decoder.u32()?, decoder.u32()?);
    let groups_len = decoder.u32()?;
    if groups_len > GROUPS_MAX {
        return Err(crate::xdr::Garbage);
    }
    let mut groups = [0; GROUPS_MAX as usize];
    let groups_len = groups_len as usize;
    for group in &mut groups[..groups_len] {
        *group = decoder.u32()?;
    }
    Ok(Claimed::User {
        uid,
        gid,
        groups,
        groups_len,
    })
}

/// Users that become the anonymous user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(
    feature = "options",
    derive(clap::ValueEnum, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Squash {
    /// None
    None,
    /// Root
    #[default]
    Root,
    /// All
    All,
}

/// The anonymous user: squashed users become this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anonymous {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Default for Anonymous {
    /// `nobody` and `nogroup`.
    fn default() -> Anonymous {
        Anonymous {
            uid: 65534,
            gid: 65534,
        }
    }
}

/// The caller of a credential.
pub(crate) fn caller(
    claimed: &Claimed,
    squash: Squash,
    anonymous: Anonymous,
    stream: Stream,
) -> Caller {
    let (uid, gid, groups): (u32, u32, Arc<[u32]>) = match claimed {
        Claimed::User {
            uid,
            gid,
            groups,
            groups_len,
        } if squash != Squash::All => {
            let groups = &groups[..*groups_len];
            if squash == Squash::None {
                (*uid, *gid, groups.into())
            } else {
                let of = |id: u32, other: u32| if id == 0 { other } else { id };
                let groups = groups.iter().map(|gid| of(*gid, anonymous.gid));
                (
                    of(*uid, anonymous.uid),
                    of(*gid, anonymous.gid),
                    groups.collect(),
                )
            }
        }
        _ => (anonymous.uid, anonymous.gid, [].into()),
    };
    Caller {
        uid,
        gid,
        groups,
        stream,
        checked: false,
        umask: 0,
        note: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use nfs3_types::rpc::auth_unix;
    use nfs3_types::xdr_codec::{Opaque, Pack};

    fn credential(uid: u32, gids: Vec<u32>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let auth = auth_unix {
            stamp: 1,
            machinename: Opaque::borrowed(b"host"),
            uid,
            gid: 0,
            gids,
        };
        auth.pack(&mut bytes).unwrap();
        bytes
    }

    fn become_(uid: u32, gids: Vec<u32>, squash: Squash) -> (u32, u32, Vec<u32>) {
        let claimed = read(AUTH_SYS, &credential(uid, gids)).unwrap();
        let caller = caller(&claimed, squash, Anonymous::default(), Stream(0));
        (caller.uid, caller.gid, caller.groups.to_vec())
    }

    #[test]
    fn root_and_its_group_are_squashed_unless_they_are_trusted() {
        assert_eq!(become_(0, vec![0, 5], Squash::None), (0, 0, vec![0, 5]));
        assert_eq!(
            become_(0, vec![0, 5], Squash::Root),
            (65534, 65534, vec![65534, 5])
        );
        assert_eq!(become_(7, vec![5], Squash::Root), (7, 65534, vec![5]));
        assert_eq!(become_(7, vec![5], Squash::All), (65534, 65534, vec![]));
    }

    #[test]
    fn credentials_that_say_too_much_or_too_little_are_refused() {
        assert_eq!(read(AUTH_NONE, b"").unwrap(), Claimed::Nobody);
        assert!(read(AUTH_SYS, &credential(1, vec![2; 16])).is_ok());
        assert!(read(AUTH_SYS, &credential(1, vec![2; 17])).is_err());
        let whole = credential(1, vec![2; 3]);
        for len in 0..whole.len() {
            assert!(read(AUTH_SYS, &whole[..len]).is_err(), "{len}");
        }
        assert!(read(6, b"").is_err(), "RPCSEC_GSS is not offered");
    }
}
