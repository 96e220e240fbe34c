//! What a request asks for: its structure of arguments and the names and bytes that follow it, decoded in place.
//!
//! Any bytes are an operation or [`Operation::Malformed`]: the kernel is trusted with the machine, but a decoder that reads past a
//! request would answer with another request's bytes.

use zerocopy::FromBytes;

use crate::abi::{self, op};

/// A request's operation. Names have no NUL; they may be empty or hold a slash, which the kernel does not send.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// LOOKUP: a name in the directory.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// FORGET and BATCH_FORGET: no reply.
    Forget(Forgets<'a>),
    /// GETATTR.
    Getattr(abi::GetattrIn),
    /// STATX.
    Statx(abi::StatxIn),
    /// SETATTR.
    Setattr(abi::SetattrIn),
    /// READLINK.
    Readlink,
    /// SYMLINK.
    Symlink {
        /// The name of the link.
        name: &'a [u8],
        /// Its content.
        target: &'a [u8],
    },
    /// MKNOD.
    Mknod {
        /// The name.
        name: &'a [u8],
        /// Mode and device.
        new: abi::MknodIn,
    },
    /// MKDIR.
    Mkdir {
        /// The name.
        name: &'a [u8],
        /// The mode.
        new: abi::MkdirIn,
    },
    /// UNLINK.
    Unlink {
        /// The name.
        name: &'a [u8],
    },
    /// RMDIR.
    Rmdir {
        /// The name.
        name: &'a [u8],
    },
    /// RENAME and RENAME2.
    Rename {
        /// The old name, in the node.
        name: &'a [u8],
        /// The new directory.
        new_parent: u64,
        /// The new name.
        new_name: &'a [u8],
        /// [`abi::rename`].
        flags: u32,
    },
    /// LINK: a new name in the node.
    Link {
        /// The node that gets the name.
        node: u64,
        /// The name.
        name: &'a [u8],
    },
    /// OPEN.
    Open(abi::OpenIn),
    /// CREATE: makes a file and opens it.
    Create {
        /// The name.
        name: &'a [u8],
        /// Mode and flags.
        new: abi::CreateIn,
    },
    /// TMPFILE: makes a file without a name and opens it.
    Tmpfile(abi::CreateIn),
    /// READ.
    Read(abi::ReadIn),
    /// WRITE.
    Write {
        /// Offset and flags.
        how: abi::WriteIn,
        /// The bytes.
        data: &'a [u8],
    },
    /// STATFS.
    Statfs,
    /// RELEASE.
    Release(abi::ReleaseIn),
    /// FSYNC.
    Fsync(abi::FsyncIn),
    /// FLUSH.
    Flush(abi::FlushIn),
    /// OPENDIR.
    Opendir(abi::OpenIn),
    /// READDIR.
    Readdir(abi::ReadIn),
    /// READDIRPLUS.
    Readdirplus(abi::ReadIn),
    /// RELEASEDIR.
    Releasedir(abi::ReleaseIn),
    /// FSYNCDIR.
    Fsyncdir(abi::FsyncIn),
    /// SETXATTR.
    Setxattr {
        /// The name.
        name: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// `XATTR_CREATE`, `XATTR_REPLACE`.
        flags: u32,
    },
    /// GETXATTR: its length if `size` is 0.
    Getxattr {
        /// The name.
        name: &'a [u8],
        /// Room for the value.
        size: u32,
    },
    /// LISTXATTR: the length if `size` is 0.
    Listxattr {
        /// Room for the names.
        size: u32,
    },
    /// REMOVEXATTR.
    Removexattr {
        /// The name.
        name: &'a [u8],
    },
    /// ACCESS.
    Access(abi::AccessIn),
    /// INTERRUPT: a client does not want to wait any more.
    Interrupt(abi::InterruptIn),
    /// IOCTL.
    Ioctl {
        /// The command.
        how: abi::IoctlIn,
        /// The bytes that the command passes.
        data: &'a [u8],
    },
    /// FALLOCATE.
    Fallocate(abi::FallocateIn),
    /// LSEEK: `SEEK_DATA` and `SEEK_HOLE`.
    Lseek(abi::LseekIn),
    /// COPY_FILE_RANGE.
    CopyFileRange(abi::CopyFileRangeIn),
    /// SYNCFS.
    Syncfs,
    /// DESTROY: the mount ends.
    Destroy,
    /// An opcode that this version does not serve.
    Unknown(u32),
    /// Bytes that are no request of their opcode.
    Malformed,
}

/// References that the kernel gives up.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a> {
    one: Option<abi::ForgetOne>,
    rest: &'a [u8],
}

impl Iterator for Forgets<'_> {
    type Item = abi::ForgetOne;

    fn next(&mut self) -> Option<abi::ForgetOne> {
        if let Some(one) = self.one.take() {
            return Some(one);
        }
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.rest).ok()?;
        self.rest = rest;
        Some(one)
    }
}

/// What follows the structure of arguments.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// A name up to its NUL.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(name)
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Operation<'a> {
    /// Decodes a request: its header, its structure of arguments, and what follows. O(length of names).
    #[must_use]
    pub fn decode(header: &abi::InHeader, arguments: &[u8], rest: &'a [u8]) -> Operation<'a> {
        match abi::arguments_bytes(header.opcode) {
            None => Operation::Unknown(header.opcode),
            Some(_) => known(header, arguments, rest).unwrap_or(Operation::Malformed),
        }
    }
}

fn known<'a>(header: &abi::InHeader, arguments: &[u8], rest: &'a [u8]) -> Option<Operation<'a>> {
    fn get<T: FromBytes>(arguments: &[u8]) -> Option<T> {
        T::read_from_prefix(arguments).ok().map(|(value, _)| value)
    }
    let mut rest = Rest(rest);
    Some(match header.opcode {
        op::LOOKUP => Operation::Lookup { name: rest.name()? },
        op::FORGET => {
            let forget: abi::ForgetIn = get(arguments)?;
            let (nodeid, nlookup) = (header.nodeid, forget.nlookup);
            Operation::Forget(Forgets {
                one: Some(abi::ForgetOne { nodeid, nlookup }),
                rest: &[],
            })
        }
        op::BATCH_FORGET => {
            let batch: abi::BatchForgetIn = get(arguments)?;
            let bytes = batch
                .count
                .checked_mul(size_of::<abi::ForgetOne>() as u32)?;
            let rest = rest.bytes(bytes)?;
            Operation::Forget(Forgets { one: None, rest })
        }
        op::GETATTR => Operation::Getattr(get(arguments)?),
        op::STATX => Operation::Statx(get(arguments)?),
        op::SETATTR => Operation::Setattr(get(arguments)?),
        op::READLINK => Operation::Readlink,
        op::SYMLINK => Operation::Symlink {
            name: rest.name()?,
            target: rest.name()?,
        },
        op::MKNOD => Operation::Mknod {
            new: get(arguments)?,
            name: rest.name()?,
        },
        op::MKDIR => Operation::Mkdir {
            new: get(arguments)?,
            name: rest.name()?,
        },
        op::UNLINK => Operation::Unlink { name: rest.name()? },
        op::RMDIR => Operation::Rmdir { name: rest.name()? },
        op::RENAME => Operation::Rename {
            new_parent: get::<abi::RenameIn>(arguments)?.newdir,
            name: rest.name()?,
            new_name: rest.name()?,
            flags: 0,
        },
        op::RENAME2 => {
            let how: abi::Rename2In = get(arguments)?;
            Operation::Rename {
                new_parent: how.newdir,
                name: rest.name()?,
                new_name: rest.name()?,
                flags: how.flags,
            }
        }
        op::LINK => Operation::Link {
            node: get::<abi::LinkIn>(arguments)?.oldnodeid,
            name: rest.name()?,
        },
        op::OPEN => Operation::Open(get(arguments)?),
        op::CREATE => Operation::Create {
            new: get(arguments)?,
            name: rest.name()?,
        },
        op::TMPFILE => Operation::Tmpfile(get(arguments)?),
        op::READ => Operation::Read(get(arguments)?),
        op::WRITE => {
            let how: abi::WriteIn = get(arguments)?;
            let data = rest.bytes(how.size)?;
            Operation::Write { how, data }
        }
        op::STATFS => Operation::Statfs,
        op::RELEASE => Operation::Release(get(arguments)?),
        op::FSYNC => Operation::Fsync(get(arguments)?),
        op::FLUSH => Operation::Flush(get(arguments)?),
        op::OPENDIR => Operation::Opendir(get(arguments)?),
        op::READDIR => Operation::Readdir(get(arguments)?),
        op::READDIRPLUS => Operation::Readdirplus(get(arguments)?),
        op::RELEASEDIR => Operation::Releasedir(get(arguments)?),
        op::FSYNCDIR => Operation::Fsyncdir(get(arguments)?),
        op::SETXATTR => {
            let how: abi::SetxattrIn = get(arguments)?;
            Operation::Setxattr {
                name: rest.name()?,
                value: rest.bytes(how.size)?,
                flags: how.flags,
            }
        }
        op::GETXATTR => Operation::Getxattr {
            size: get::<abi::GetxattrIn>(arguments)?.size,
            name: rest.name()?,
        },
        op::LISTXATTR => Operation::Listxattr {
            size: get::<abi::GetxattrIn>(arguments)?.size,
        },
        op::REMOVEXATTR => Operation::Removexattr { name: rest.name()? },
        op::ACCESS => Operation::Access(get(arguments)?),
        op::INTERRUPT => Operation::Interrupt(get(arguments)?),
        op::IOCTL => {
            let how: abi::IoctlIn = get(arguments)?;
            let data = rest.bytes(how.in_size)?;
            Operation::Ioctl { how, data }
        }
        op::FALLOCATE => Operation::Fallocate(get(arguments)?),
        op::LSEEK => Operation::Lseek(get(arguments)?),
        op::COPY_FILE_RANGE => Operation::CopyFileRange(get(arguments)?),
        op::SYNCFS => Operation::Syncfs,
        op::DESTROY => Operation::Destroy,
        other => Operation::Unknown(other),
    })
}
