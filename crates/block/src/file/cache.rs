//! The kernel's knowledge of the volatile cache under a file or a partition.

use rustix::fs::{FileType, Stat, major, minor};
use std::path::Path;

/// The kernel's view of the cache of the disk that holds a device, if it reports one.
///
/// A disk that acknowledges flushes and ignores them cannot be distinguished from an honest one. But
/// the kernel sends flushes only to disks whose cache it believes to be volatile: with
/// [`WriteThrough`](WriteCache::WriteThrough) a flush is a promise of the disk (or of the virtual
/// machine's host) that cannot be enforced. The application can only say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// The disk has a volatile cache ("write back"), and flushes are sent to it.
    WriteBack,
    /// The disk claims that completed writes are durable; flushes are not sent to it.
    WriteThrough,
    /// Nothing is known: a network or memory file system, or one on several disks.
    Unknown,
}

/// Looks the disk of an open file up in the kernel's tables below `sys` (`/sys`).
pub(super) fn write_cache(sys: &Path, stat: &Stat) -> WriteCache {
    let disk = if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        stat.st_rdev
    } else {
        stat.st_dev
    };
    let device = (sys.join("dev/block")).join(format!("{}:{}", major(disk), minor(disk)));
    // A partition has no queue of its own: its disk, the directory above, has it.
    let said = ["queue/write_cache", "../queue/write_cache"]
        .iter()
        .find_map(|name| std::fs::read_to_string(device.join(name)).ok());
    match said.as_deref().map(str::trim) {
        Some("write back") => WriteCache::WriteBack,
        Some("write through") => WriteCache::WriteThrough,
        _ => WriteCache::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn corner_17_the_kernels_word_on_the_cache_is_passed_on() {
        let sys = tempfile::tempdir().unwrap();
        let stat = rustix::fs::stat(sys.path()).unwrap();
        let number = format!("{}:{}", major(stat.st_dev), minor(stat.st_dev));
        assert_eq!(write_cache(sys.path(), &stat), WriteCache::Unknown);

        // A disk and its first partition, as the kernel lays them out.
        let disk = sys.path().join("devices/disk");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("disk1")).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        let link = sys.path().join("dev/block").join(number);
        for target in [disk.clone(), disk.join("disk1")] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            for (said, meant) in [
                ("write back\n", WriteCache::WriteBack),
                ("write through\n", WriteCache::WriteThrough),
                ("write sideways\n", WriteCache::Unknown),
            ] {
                fs::write(disk.join("queue/write_cache"), said).unwrap();
                assert_eq!(write_cache(sys.path(), &stat), meant);
            }
            fs::remove_file(&link).unwrap();
        }
    }
}
