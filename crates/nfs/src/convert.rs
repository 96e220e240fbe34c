//! Conversions between types of the file system and of the protocol: error numbers,
//! attributes, times, kinds, device numbers.
//!
//! Invariant: no conversion panics on any input.

use nfs3_types::nfs3::{
    Nfs3Option, fattr3, ftype3, nfsstat3, nfstime3, post_op_attr, specdata3, wcc_attr, wcc_data,
};
use steadfast_vfs::{Attr, Errno, Error, FileKind, SetAttr, SetTime, Time};

use crate::xdr::{Decoder, Garbage, Parsed};

/// Permission bits of a mode.
const PERM_BITS: u32 = 0o7777;

/// The status of a failed call.
pub(crate) fn status(error: &Error) -> nfsstat3 {
    use nfsstat3 as S;
    match error.errno {
        Errno::Perm => S::NFS3ERR_PERM,
        Errno::NoEnt => S::NFS3ERR_NOENT,
        Errno::NxIo => S::NFS3ERR_NXIO,
        // The client sends the call again. A failed guard of SETATTR is `NOT_SYNC`: see `attrs`.
        Errno::Again | Errno::NoMem => S::NFS3ERR_JUKEBOX,
        Errno::Access | Errno::Busy => S::NFS3ERR_ACCES,
        Errno::Exist => S::NFS3ERR_EXIST,
        Errno::NotDir => S::NFS3ERR_NOTDIR,
        Errno::IsDir => S::NFS3ERR_ISDIR,
        Errno::Inval | Errno::Range | Errno::NoData => S::NFS3ERR_INVAL,
        Errno::FBig | Errno::Overflow => S::NFS3ERR_FBIG,
        Errno::NoSpc => S::NFS3ERR_NOSPC,
        Errno::RoFs => S::NFS3ERR_ROFS,
        Errno::MLink => S::NFS3ERR_MLINK,
        Errno::NameTooLong => S::NFS3ERR_NAMETOOLONG,
        Errno::NoSys | Errno::OpNotSupp => S::NFS3ERR_NOTSUPP,
        Errno::NotEmpty => S::NFS3ERR_NOTEMPTY,
        Errno::Stale => S::NFS3ERR_STALE,
        Errno::BadF => S::NFS3ERR_SERVERFAULT,
        Errno::Io | Errno::Uclean => S::NFS3ERR_IO,
    }
}

/// A time of the protocol: seconds from 1970 to 2106. Times outside become the nearest limit.
pub(crate) fn time(time: Time) -> nfstime3 {
    match u32::try_from(time.secs) {
        Ok(seconds) => nfstime3 {
            seconds,
            nseconds: time.nanos,
        },
        Err(_) if time.secs < 0 => nfstime3::default(),
        Err(_) => nfstime3 {
            seconds: u32::MAX,
            nseconds: 999_999_999,
        },
    }
}

/// INVAL for impossible attributes: times with a second or more of nanoseconds. The protocol can carry them, so they are not
/// garbage arguments, which would make clients retransmit the call.
pub(crate) fn settable(set: &SetAttr) -> Result<(), nfsstat3> {
    let is_time =
        |time: Option<SetTime>| !matches!(time, Some(SetTime::At(at)) if at.nanos > 999_999_999);
    match is_time(set.atime) && is_time(set.mtime) {
        true => Ok(()),
        false => Err(nfsstat3::NFS3ERR_INVAL),
    }
}

/// The protocol's type of a kind.
pub(crate) fn kind(kind: FileKind) -> ftype3 {
    match kind {
        FileKind::Regular => ftype3::NF3REG,
        FileKind::Directory => ftype3::NF3DIR,
        FileKind::Symlink => ftype3::NF3LNK,
        FileKind::CharDevice => ftype3::NF3CHR,
        FileKind::BlockDevice => ftype3::NF3BLK,
        FileKind::Fifo => ftype3::NF3FIFO,
        FileKind::Socket => ftype3::NF3SOCK,
    }
}

/// Major and minor of a device number, which has twelve and twenty bits for them as on Linux.
pub(crate) fn device(rdev: u32) -> specdata3 {
    specdata3 {
        specdata1: (rdev >> 8) & 0xfff,
        specdata2: rdev & 0xff | (rdev >> 12) & 0xf_ff00,
    }
}

/// The device number; none if major or minor are too large for one.
pub(crate) fn device_from(major: u32, minor: u32) -> Option<u32> {
    (major <= 0xfff && minor <= 0xf_ffff)
        .then_some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// Attributes of an inode, in the file system with this `fsid`.
pub(crate) fn attributes(attr: &Attr, fsid: u64) -> fattr3 {
    fattr3 {
        type_: kind(attr.kind),
        mode: u32::from(attr.perm) & PERM_BITS,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.blocks.saturating_mul(512),
        rdev: device(attr.rdev),
        fsid,
        fileid: attr.ino,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

/// Attributes of an inode, if there are any.
pub(crate) fn post_op(attr: Option<&Attr>, fsid: u64) -> post_op_attr {
    match attr {
        Some(attr) => Nfs3Option::Some(attributes(attr, fsid)),
        None => Nfs3Option::None,
    }
}

/// Attributes before and after a change.
pub(crate) fn change(before: Option<&Attr>, after: Option<&Attr>, fsid: u64) -> wcc_data {
    wcc_data {
        before: match before {
            Some(attr) => Nfs3Option::Some(wcc_attr {
                size: attr.size,
                mtime: time(attr.mtime),
                ctime: time(attr.ctime),
            }),
            None => Nfs3Option::None,
        },
        after: post_op(after, fsid),
    }
}

/// Decodes a time, which may be invalid.
pub(crate) fn read_time(args: &mut Decoder<'_>) -> Parsed<Time> {
    Ok(Time {
        secs: i64::from(args.u32()?),
        nanos: args.u32()?,
    })
}

fn read_set_time(args: &mut Decoder<'_>) -> Parsed<Option<SetTime>> {
    match args.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => Ok(Some(SetTime::At(read_time(args)?))),
        _ => Err(Garbage),
    }
}

/// Decodes attributes to set (`sattr3`). [`settable`] checks them.
pub(crate) fn read_set(args: &mut Decoder<'_>) -> Parsed<SetAttr> {
    let mode = args.optional(Decoder::u32)?;
    Ok(SetAttr {
        perm: mode.map(|mode| (mode & PERM_BITS) as u16),
        uid: args.optional(Decoder::u32)?,
        gid: args.optional(Decoder::u32)?,
        size: args.optional(Decoder::u64)?,
        atime: read_set_time(args)?,
        mtime: read_set_time(args)?,
        guard: None,
        by_handle: false,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A write that lost too often against other changes was answered with NOT_SYNC, which is valid only for a guard of
    /// SETATTR: clients reported an I/O error. After JUKEBOX they wait and send again.
    #[test]
    fn a_call_that_may_succeed_later_is_sent_again() {
        for errno in [Errno::Again, Errno::NoMem] {
            assert_eq!(status(&errno.into()), nfsstat3::NFS3ERR_JUKEBOX);
        }
    }
    use nfs3_types::xdr_codec::Pack;

    #[test]
    fn times_out_of_range_become_the_nearest() {
        let shown = |secs, nanos| time(Time { secs, nanos });
        assert_eq!((shown(-1, 5).seconds, shown(-1, 5).nseconds), (0, 0));
        assert_eq!(shown(1 << 32, 0).seconds, u32::MAX);
        assert_eq!((shown(7, 8).seconds, shown(7, 8).nseconds), (7, 8));
        let at = |nanos| SetAttr {
            mtime: Some(SetTime::At(Time { secs: 0, nanos })),
            ..SetAttr::default()
        };
        assert_eq!(settable(&at(999_999_999)), Ok(()));
        assert_eq!(settable(&at(1_000_000_000)), Err(nfsstat3::NFS3ERR_INVAL));
    }

    #[test]
    fn device_numbers_survive_a_round_trip() {
        for (major, minor) in [(1, 3), (0xfff, 0xf_ffff), (8, 0x1_2345), (0, 0)] {
            let rdev = device_from(major, minor).unwrap();
            let shown = device(rdev);
            assert_eq!((shown.specdata1, shown.specdata2), (major, minor));
        }
        assert_eq!(device_from(0x1000, 0), None);
        assert_eq!(device_from(0, 0x10_0000), None);
    }

    #[test]
    fn attributes_to_set_are_read_as_the_types_write_them() {
        use nfs3_types::nfs3::{sattr3, set_atime, set_mtime};
        let sent = sattr3 {
            mode: Nfs3Option::Some(0o104_755),
            uid: Nfs3Option::None,
            gid: Nfs3Option::Some(5),
            size: Nfs3Option::Some(1 << 40),
            atime: set_atime::SET_TO_SERVER_TIME,
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 {
                seconds: 1,
                nseconds: 2,
            }),
        };
        let mut bytes = Vec::new();
        sent.pack(&mut bytes).unwrap();
        let mut args = Decoder::new(&bytes);
        let set = read_set(&mut args).unwrap();
        assert!(args.rest().is_empty());
        let expected = SetAttr {
            perm: Some(0o4755),
            gid: Some(5),
            size: Some(1 << 40),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time { secs: 1, nanos: 2 })),
            ..SetAttr::default()
        };
        assert_eq!(set, expected);
    }
}
