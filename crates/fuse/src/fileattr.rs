//! Flags of files and directories: the four commands of `chattr`, `lsattr` and `xfs_io`, which the kernel
//! passes on as ioctl(2) requests with their arguments. It has checked that the caller owns
//! the inode, and that only a caller with `CAP_LINUX_IMMUTABLE` changes flags that restrict the owner.

use steadfast_fuse_wire::Errno;
use steadfast_vfs::{Caller, InodeFlags};

use crate::identity::Requester;
use crate::server::Server;
use crate::values::Node;

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// `struct fsxattr`: flags, extent size hint, extents, project, another hint, nothing.
const FSXATTR_BYTES: usize = 28;

/// Our flags, and as `struct fsxattr` has them.
const XFLAGS: [(InodeFlags, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x08),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
];
/// The inode has extended attributes: shown by others, and nothing to set.
const HAS_XATTRS: u32 = 0x8000_0000;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// The flags as one number.
    Get,
    /// The flags as a `struct fsxattr`.
    GetStruct,
    /// These flags, from now on.
    Set(InodeFlags),
    /// The same; those that a `struct fsxattr` has no bit for stay as they are.
    SetStruct(InodeFlags),
}

/// The command, if it is one of these.
pub(crate) fn command(number: u32, data: &[u8]) -> Option<Result<Command, Errno>> {
    match number {
        GET_FLAGS => Some(Ok(Command::Get)),
        GET_XATTR => Some(Ok(Command::GetStruct)),
        SET_FLAGS => Some(flags_of(data).map(Command::Set)),
        SET_XATTR => Some(struct_of(data).map(Command::SetStruct)),
        _ => None,
    }
}

fn flags_of(data: &[u8]) -> Result<InodeFlags, Errno> {
    let (bits, _) = data.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
    InodeFlags::from_bits(u32::from_ne_bytes(*bits)).ok_or(Errno::OPNOTSUPP)
}

fn struct_of(data: &[u8]) -> Result<InodeFlags, Errno> {
    let data: &[u8; FSXATTR_BYTES] = data.try_into().map_err(|_| Errno::INVAL)?;
    let word = |at: usize| u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    // The number of extents is not to be set.
    let others = [4, 12, 16, 20, 24].into_iter().any(|at| word(at) != 0);
    let mut left = word(0) & !HAS_XATTRS;
    let mut flags = InodeFlags::NONE;
    for (flag, bit) in XFLAGS {
        if left & bit != 0 {
            flags = flags | flag;
        }
        left &= !bit;
    }
    match others || left != 0 {
        true => Err(Errno::OPNOTSUPP),
        false => Ok(flags),
    }
}

impl Server {
    /// Carries it out; returns the answer.
    pub(crate) fn flag_command(
        &self,
        request: &Requester,
        node: Node,
        command: Command,
    ) -> Result<Vec<u8>, Errno> {
        let ino = self.ino(node);
        let caller = match command {
            Command::Set(_) | Command::SetStruct(_) => self.identity.caller(request),
            Command::Get | Command::GetStruct => self.identity.reader(request),
        };
        let flags = |fs: &dyn steadfast_vfs::FileSystem| fs.flags(&caller, ino);
        match command {
            Command::Get => {
                let flags = self.shared.call("getflags", flags)?;
                Ok(flags.bits().to_ne_bytes().to_vec())
            }
            Command::GetStruct => {
                let flags = self.shared.call("getflags", flags)?;
                let set = XFLAGS.iter().filter(|(flag, _)| flags.has(*flag));
                let bits = set.fold(0, |all, (_, bit)| all | bit);
                let mut out = vec![0; FSXATTR_BYTES];
                out[..4].copy_from_slice(&u32::to_ne_bytes(bits));
                Ok(out)
            }
            Command::Set(flags) | Command::SetStruct(flags) => {
                let flags = match command {
                    Command::SetStruct(_) => {
                        let now = self.shared.call("getflags", |fs| fs.flags(&caller, ino))?;
                        flags | now.both(InodeFlags::NOCOW)
                    }
                    _ => flags,
                };
                let caller = Caller {
                    checked: true,
                    ..caller.clone()
                };
                let set = self
                    .shared
                    .call("setflags", |fs| fs.set_flags(&caller, ino, flags));
                set.map(|()| {
                    // The kernel does not know that this changes the ctime.
                    self.shared.attributes_changed(node);
                    Vec::new()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn known_flags_are_taken_and_all_others_refused() {
        let set = |number, data: &[u8]| command(number, data).unwrap();
        let both = InodeFlags::IMMUTABLE | InodeFlags::NOATIME;
        assert_eq!(
            set(SET_FLAGS, &0x90u32.to_ne_bytes()),
            Ok(Command::Set(both))
        );
        let refused = Err(Errno::OPNOTSUPP);
        assert_eq!(
            set(SET_FLAGS, &0x80_0000u32.to_ne_bytes()),
            Ok(Command::Set(InodeFlags::NOCOW))
        );
        // Inline data, compressed, synchronous.
        for bits in [0x1000_0000u32, 0x4, 0x8] {
            assert_eq!(set(SET_FLAGS, &bits.to_ne_bytes()), refused);
        }
        assert_eq!(set(SET_FLAGS, &[1, 2]), Err(Errno::INVAL));
        let mut data = [0; FSXATTR_BYTES];
        data[0] = 0x48;
        data[8] = 7;
        assert_eq!(set(SET_XATTR, &data), Ok(Command::SetStruct(both)));
        data[12] = 1;
        assert_eq!(set(SET_XATTR, &data), refused, "a project");
        assert_eq!(set(SET_XATTR, &data[1..]), Err(Errno::INVAL));
        assert!(command(0x5301, &[]).is_none());
    }
}
