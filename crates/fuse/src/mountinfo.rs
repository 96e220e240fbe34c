//! The kernel's list of mounts, `/proc/self/mountinfo`.
//!
//! Mounts are looked up by their path here and never by asking the mounted file
//! system, which may be dead or be this very process.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Subtype of the mounts that the command serves ([`MountOptions::subtype`](crate::MountOptions::subtype)).
pub const SUBTYPE: &str = "steadfast";
/// Type of these mounts as the kernel shows it.
pub const FS_TYPE: &str = "fuse.steadfast";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Identifies the mount while it exists.
    pub id: u64,
    /// Device number, `major:minor`.
    pub device: String,
    /// Mount point.
    pub mount_point: PathBuf,
    /// File system type, with subtype.
    pub fs_type: String,
    /// Source: for mounts that the command serves the image's path.
    pub source: PathBuf,
    /// The file system as a whole takes no changes.
    pub read_only: bool,
}

impl MountEntry {
    /// Whether both show the same file system.
    #[must_use]
    pub fn is_same_file_system(&self, other: &MountEntry) -> bool {
        (&self.device, &self.fs_type, &self.source)
            == (&other.device, &other.fs_type, &other.source)
    }

    /// Whether the command serves it: it has a volume, or a disk, of Steadfast. Mounts of embedders have their own types.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// All mounts that this process sees, in mount order.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// All mounts that another process sees, in mount order.
///
/// # Errors
/// If the process has ended, or is another user's.
pub fn mounts_of(process: u32) -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(format!("/proc/{process}/mountinfo"))?))
}

/// The topmost mount exactly at `path` (absolute, without symbolic links).
///
/// # Errors
/// If `/proc` cannot be read.
pub fn mount_at(path: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rev().find(|m| m.mount_point == path))
}

/// `path` made absolute and free of symbolic links without touching what is mounted
/// *at* it: only its parent is resolved, so a dead mount does not stand in the way.
///
/// # Errors
/// If the parent does not exist or cannot be searched.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_symlink());
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if !is_link => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => path.canonicalize(),
    }
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let _parent = fields.next()?;
    let device = String::from_utf8_lossy(fields.next()?).into_owned();
    let _root = fields.next()?;
    let mount_point = unescape(fields.next()?);
    let mut fields = fields.skip_while(|&f| f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let options = fields.next().unwrap_or_default();
    let read_only = options.split(|&b| b == b',').any(|word| word == b"ro");
    Some(MountEntry {
        id,
        device,
        mount_point,
        fs_type,
        source,
        read_only,
    })
}

/// Undoes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .first_chunk::<3>()
            .filter(|_| first == b'\\')
            .and_then(|digits| {
                let text = std::str::from_utf8(digits).ok()?;
                u8::from_str_radix(text, 8).ok()
            });
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_escapes_and_optional_fields_is_understood() {
        let text = b"36 35 0:98 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.steadfast \
            /tmp/x\\134y rw,user_id=0\n\ngarbage\n1 2 8:1 / / rw - ext4 /dev/sda1 noacl,ro\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].mount_point, Path::new("/mnt/a b"));
        assert_eq!(mounts[0].source, Path::new("/tmp/x\\y"));
        assert!(mounts[0].is_ours());
        assert_eq!((mounts[0].id, mounts[0].device.as_str()), (36, "0:98"));
        assert!(!mounts[1].is_ours());
        assert!(!mounts[0].read_only && mounts[1].read_only);
        assert_eq!(unescape(b"a\\9"), Path::new("a\\9"));
    }
}
