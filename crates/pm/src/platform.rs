//! The system's information on persistent memory: `/sys` and the kinds of file systems.

use std::fs::{canonicalize, read_dir, read_to_string};
use std::path::{Path, PathBuf};

use rustix::fs::{StatFs, major, minor};

/// Kind of a file's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    /// Of a file system in memory: the file's pages are never written to a disk, so nothing can tear.
    Ram,
    /// Of a file system on a device: persistent memory if the kernel gives a synchronous mapping.
    Mapped,
}

/// The kind of memory, and the bytes of its pages, of files on a file system.
pub(crate) fn memory(file_system: &StatFs) -> (Memory, u64) {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    const HUGETLBFS: u32 = 0x9584_58f6;
    #[allow(clippy::cast_possible_truncation)]
    match file_system.f_type as u32 {
        TMPFS | RAMFS => (Memory::Ram, crate::PAGE_BYTES),
        HUGETLBFS => (Memory::Ram, u64::try_from(file_system.f_bsize).unwrap_or(0)),
        _ => (Memory::Mapped, crate::PAGE_BYTES),
    }
}

/// A DAX character device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DaxDevice {
    pub(crate) bytes: u64,
    /// Bytes of its pages.
    pub(crate) unit: u64,
}

/// The directory of a device, `sys` being `/sys`.
fn device(sys: &Path, kind: &str, number: u64) -> PathBuf {
    let name = format!("{}:{}", major(number), minor(number));
    sys.join("dev").join(kind).join(name)
}

/// The character device `number`, if it is a DAX device.
pub(crate) fn dax_device(sys: &Path, number: u64) -> Option<DaxDevice> {
    let device = device(sys, "char", number);
    let subsystem = canonicalize(device.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let number =
        |name: &str| -> Option<u64> { read_to_string(device.join(name)).ok()?.trim().parse().ok() };
    Some(DaxDevice {
        bytes: number("size")?,
        // Kernels before 5.10 do not report it. They use the size of a large page unless configured otherwise.
        unit: number("align").unwrap_or(2 << 20),
    })
}

/// Place where a device number was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Device {
    /// A character device.
    Character(u64),
    /// The block device below a file system.
    Block(u64),
}

/// Whether the platform saves the caches of a device's memory when power fails (eADR).
///
/// The device belongs to a region of memory, which says so. If it is put together from others (device mapper), every region
/// of the platform must say so.
pub(crate) fn caches_persist(sys: &Path, found: Device) -> bool {
    let says_so = |region: &Path| {
        let domain = read_to_string(region.join("persistence_domain")).ok()?;
        Some(domain.trim() == "cpu_cache")
    };
    let device = match found {
        Device::Character(number) => device(sys, "char", number),
        Device::Block(number) => device(sys, "block", number),
    };
    if let Ok(device) = canonicalize(device)
        && let Some(answer) = device.ancestors().find_map(says_so)
    {
        return answer;
    }
    let Ok(regions) = read_dir(sys.join("bus/nd/devices")) else {
        return false;
    };
    let regions = regions.filter_map(Result::ok);
    let regions =
        regions.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"region"));
    let answers: Vec<bool> = regions
        .map(|entry| says_so(&entry.path()).unwrap_or(false))
        .collect();
    !answers.is_empty() && answers.iter().all(|answer| *answer)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::io::Result;
    use std::os::unix::fs::symlink;

    /// A `/sys` with two regions. Region 0 has the block device 259:1 and the character device 252:3; 253:0 is mapped by the
    /// device mapper.
    fn sys(domains: [&str; 2]) -> Result<tempfile::TempDir> {
        let sys = tempfile::tempdir()?;
        let root = sys.path();
        for (index, domain) in domains.iter().enumerate() {
            let region = root.join(format!("devices/acpi/ndbus0/region{index}"));
            create_dir_all(&region)?;
            write(region.join("persistence_domain"), format!("{domain}\n"))?;
            create_dir_all(root.join("bus/nd/devices"))?;
            symlink(&region, root.join(format!("bus/nd/devices/region{index}")))?;
        }
        let region = root.join("devices/acpi/ndbus0/region0");
        for name in ["pfn0.1/block/pmem0", "dax0.0/dax/dax0.0"] {
            create_dir_all(region.join(name))?;
        }
        create_dir_all(root.join("devices/virtual/block/dm-0"))?;
        create_dir_all(root.join("dev/block"))?;
        create_dir_all(root.join("dev/char"))?;
        create_dir_all(root.join("bus/dax"))?;
        let dax = region.join("dax0.0/dax/dax0.0");
        write(dax.join("size"), "4194304\n")?;
        symlink(root.join("bus/dax"), dax.join("subsystem"))?;
        symlink(dax, root.join("dev/char/252:3"))?;
        symlink(
            region.join("pfn0.1/block/pmem0"),
            root.join("dev/block/259:1"),
        )?;
        let mapped = root.join("devices/virtual/block/dm-0");
        symlink(mapped, root.join("dev/block/253:0"))?;
        Ok(sys)
    }

    fn number(major: u32, minor: u32) -> u64 {
        rustix::fs::makedev(major, minor)
    }

    #[test]
    fn the_region_of_a_device_says_whether_its_caches_persist() -> Result<()> {
        for (domains, of_region_0, of_all) in [
            (["cpu_cache", "cpu_cache"], true, true),
            (["cpu_cache", "memory_controller"], true, false),
            (["memory_controller", "cpu_cache"], false, false),
        ] {
            let sys = sys(domains)?;
            let block = Device::Block(number(259, 1));
            let character = Device::Character(number(252, 3));
            assert_eq!(
                caches_persist(sys.path(), block),
                of_region_0,
                "{domains:?}"
            );
            assert_eq!(caches_persist(sys.path(), character), of_region_0);
            // One that is put together from others, and one that is not known.
            assert_eq!(
                caches_persist(sys.path(), Device::Block(number(253, 0))),
                of_all
            );
            assert_eq!(
                caches_persist(sys.path(), Device::Block(number(1, 1))),
                of_all
            );
        }
        let empty = tempfile::tempdir()?;
        assert!(!caches_persist(empty.path(), Device::Block(number(259, 1))));
        Ok(())
    }

    #[test]
    fn a_dax_device_has_a_size_and_a_page_size() -> Result<()> {
        let sys = sys(["cpu_cache", "cpu_cache"])?;
        let found = dax_device(sys.path(), number(252, 3));
        let (bytes, unit) = (4 << 20, 2 << 20);
        assert_eq!(found, Some(DaxDevice { bytes, unit }));
        write(sys.path().join("dev/char/252:3/align"), "4096\n")?;
        let found = dax_device(sys.path(), number(252, 3));
        assert_eq!(found, Some(DaxDevice { bytes, unit: 4096 }));
        assert_eq!(dax_device(sys.path(), number(1, 3)), None);
        Ok(())
    }
}
