//! Arguments that know their procedure (RFC 1813), and the results that replies carry.

use nfs3_types::nfs3::{
    self as n, NFS_PROGRAM, Nfs3Option, Nfs3Result, createhow3, diropargs3, filename3, nfs_fh3,
    nfsstat3, sattr3, stable_how,
};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};

use crate::failure::Failure;

/// Arguments that know their procedure.
pub trait Call: Pack {
    /// The procedure.
    const PROCEDURE: NFS_PROGRAM;
    /// Result of a success.
    type Ok: Unpack;
    /// Result of an error.
    type Fail: Unpack;
}

macro_rules! calls {
    ($($args:ty => $procedure:ident, $ok:ty, $fail:ty;)*) => {$(
        impl Call for $args {
            /// The procedure.
    const PROCEDURE: NFS_PROGRAM = NFS_PROGRAM::$procedure;
            type Ok = $ok;
            type Fail = $fail;
        }
    )*};
}

calls! {
    n::GETATTR3args => NFSPROC3_GETATTR, n::GETATTR3resok, Void;
    n::SETATTR3args => NFSPROC3_SETATTR, n::SETATTR3resok, n::SETATTR3resfail;
    n::LOOKUP3args<'_> => NFSPROC3_LOOKUP, n::LOOKUP3resok, n::LOOKUP3resfail;
    n::READ3args => NFSPROC3_READ, n::READ3resok<'static>, n::READ3resfail;
    n::WRITE3args<'_> => NFSPROC3_WRITE, n::WRITE3resok, n::WRITE3resfail;
    n::CREATE3args<'_> => NFSPROC3_CREATE, n::CREATE3resok, n::CREATE3resfail;
    n::MKDIR3args<'_> => NFSPROC3_MKDIR, n::MKDIR3resok, n::MKDIR3resfail;
    n::REMOVE3args<'_> => NFSPROC3_REMOVE, n::REMOVE3resok, n::REMOVE3resfail;
    n::RMDIR3args<'_> => NFSPROC3_RMDIR, n::RMDIR3resok, n::RMDIR3resfail;
    n::ACCESS3args => NFSPROC3_ACCESS, n::ACCESS3resok, n::ACCESS3resfail;
    n::SYMLINK3args<'_> => NFSPROC3_SYMLINK, n::SYMLINK3resok, n::SYMLINK3resfail;
    n::MKNOD3args<'_> => NFSPROC3_MKNOD, n::MKNOD3resok, n::MKNOD3resfail;
    n::LINK3args<'_> => NFSPROC3_LINK, n::LINK3resok, n::LINK3resfail;
    n::READDIRPLUS3args => NFSPROC3_READDIRPLUS, n::READDIRPLUS3resok<'static>, n::READDIRPLUS3resfail;
    n::RENAME3args<'_, '_> => NFSPROC3_RENAME, n::RENAME3resok, n::RENAME3resfail;
    n::READDIR3args => NFSPROC3_READDIR, n::READDIR3resok<'static>, n::READDIR3resfail;
    n::FSINFO3args => NFSPROC3_FSINFO, n::FSINFO3resok, n::FSINFO3resfail;
    n::COMMIT3args => NFSPROC3_COMMIT, n::COMMIT3resok, n::COMMIT3resfail;
}

/// The result that a reply carries.
///
/// # Errors
/// One that cannot be decoded, or is followed by more bytes: one of the two sides has counted wrongly.
pub fn decode<C: Call>(body: &[u8]) -> Result<Result<C::Ok, nfsstat3>, Failure> {
    let mut rest = body;
    let (result, _) = Nfs3Result::<C::Ok, C::Fail>::unpack(&mut rest)
        .map_err(|e| Failure::Protocol(format!("{:?}'s result: {e}", C::PROCEDURE)))?;
    if !rest.is_empty() {
        return Err(Failure::Protocol(format!(
            "{:?}'s result has {} bytes too many",
            C::PROCEDURE,
            rest.len()
        )));
    }
    Ok(match result {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    })
}

/// A name in a directory.
#[must_use]
pub fn entry<'a>(dir: &nfs_fh3, name: &'a (impl AsRef<[u8]> + ?Sized)) -> diropargs3<'a> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3::from(name.as_ref()),
    }
}

/// Attributes of something new: its mode alone.
#[must_use]
pub fn mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

/// CREATE as clients send it for `O_CREAT`.
#[must_use]
pub fn unchecked<'a>(
    dir: &nfs_fh3,
    name: &'a (impl AsRef<[u8]> + ?Sized),
    bits: u32,
) -> n::CREATE3args<'a> {
    n::CREATE3args {
        where_: entry(dir, name),
        how: createhow3::UNCHECKED(mode(bits)),
    }
}

/// READ.
#[must_use]
pub fn read_args(file: &nfs_fh3, offset: u64, count: u32) -> n::READ3args {
    n::READ3args {
        file: file.clone(),
        offset,
        count,
    }
}

/// WRITE.
#[must_use]
pub fn write_args<'a>(
    file: &nfs_fh3,
    offset: u64,
    stable: stable_how,
    data: &'a [u8],
) -> n::WRITE3args<'a> {
    n::WRITE3args {
        file: file.clone(),
        offset,
        count: data.len() as u32,
        stable,
        data: Opaque::borrowed(data),
    }
}
