//! Requests to the server itself, made on any file or directory of a mount.
//!
//! `sync(2)` and `syncfs(2)` do not reach a FUSE server, so the server offers its
//! own: an ioctl without data, for C programs, and the same as an extended
//! attribute, which a program without `ioctl` (or without `unsafe`) can ask for.

use std::io;
use std::path::Path;

/// `_IO('S', 1)`: commits every stream of the volume; returns when that is durable.
pub const IOCTL_SYNC: u32 = 0x5301;

/// Reading this attribute commits every stream of the volume; its value is empty.
pub const XATTR_SYNC: &str = "system.steadfast.sync";

/// Its value is the decimal process id of the server, as the server sees itself.
pub const XATTR_SERVER: &str = "system.steadfast.server";

/// Commits every stream of the volume mounted at (or above) `path`; returns when
/// that is durable.
///
/// # Errors
/// EOPNOTSUPP or ENODATA if `path` is on no Steadfast mount; else the volume's error.
pub fn sync(path: &Path) -> io::Result<()> {
    let mut buf = [0u8; 8];
    rustix::fs::getxattr(path, XATTR_SYNC, &mut buf)?;
    Ok(())
}

/// Process id of the server behind the mount at (or above) `path`.
///
/// # Errors
/// As for [`sync`].
pub fn server_pid(path: &Path) -> io::Result<u32> {
    let mut buf = [0u8; 16];
    let len = rustix::fs::getxattr(path, XATTR_SERVER, &mut buf)?;
    std::str::from_utf8(&buf[..len])
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no process id"))
}
