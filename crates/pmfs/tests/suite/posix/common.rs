//! A volume in plain memory that tests mount, use, cut and check.

use std::sync::Arc;
use steadfast_pm::Region;
use steadfast_pmfs::fsck::{FsckOptions, fsck};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_testkit::Ticks;
pub use steadfast_testkit::calls::*;
use steadfast_vfs::FileSystem;

/// Options with such a clock.
pub fn options() -> MountOptions {
    let mut options = MountOptions::default();
    options.clock = Arc::new(Ticks::default());
    options.scan_threads = 1;
    options
}

/// A region with an empty volume.
pub fn made(bytes: u64, bytes_per_inode: u64) -> Region {
    let region = Region::anonymous(bytes);
    let options = MkfsOptions {
        bytes_per_inode,
        uuid: Some([7; 16]),
        ..MkfsOptions::default()
    };
    mkfs(&region, &options, &mut |_, _| {}).unwrap();
    region
}

/// Mounts.
pub fn mount(region: Region) -> PmFs {
    mount_with(region, &options())
}

/// Mounts with other options.
pub fn mount_with(region: Region, options: &MountOptions) -> PmFs {
    PmFs::mount(region, options, &mut |_, _| {}).unwrap()
}

/// State of a mounted volume after a crash that loses nothing.
pub fn copy(fs: &PmFs) -> Region {
    Region::with_content(&fs.medium().content())
}

/// Checks a volume that is not mounted. Notes, which a crash leaves, are allowed.
#[track_caller]
pub fn must_be_sound(region: Region) {
    let (report, _) = fsck(region, &FsckOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{:#?}", report.findings);
}

/// Pages that a directory keeps when its last name goes.
pub const BLOCKS_OF_EMPTY: u64 = 1;

/// A volume and its present mount.
pub struct Volume {
    fs: Option<PmFs>,
    options: MountOptions,
}

impl std::ops::Deref for Volume {
    type Target = PmFs;

    fn deref(&self) -> &PmFs {
        self.fs.as_ref().unwrap()
    }
}

impl Volume {
    /// A volume of `mib` MiB.
    pub fn new(mib: u64) -> Volume {
        Volume::with(made(mib << 20, 4096), options())
    }

    /// The volume in a region.
    pub fn with(region: Region, options: MountOptions) -> Volume {
        let fs = mount_with(region, &options);
        // A directory keeps its first page: the root shall have it from the start.
        fs.file(fs.root(), "first");
        fs.unlink(&root(), fs.root(), b"first").unwrap();
        Volume {
            fs: Some(fs),
            options,
        }
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        let region = self.fs.take().unwrap().into_region();
        self.fs = Some(mount_with(region, &self.options));
        assert!(self.report().clean);
        assert_eq!(self.report().recovered_words, 0);
    }

    /// Cuts the power after everything has arrived, and mounts the result.
    pub fn cut(&mut self) {
        let region = copy(self);
        self.fs = Some(mount_with(region, &self.options));
        assert!(!self.report().clean);
    }

    /// Free pages.
    pub fn free(&self) -> u64 {
        self.statfs().unwrap().blocks_free
    }
}

/// Every test ends with a volume that is whole, and whose indexes agree with a mount.
impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        must_be_sound(copy(self));
        let stat = self.statfs().unwrap();
        let again = mount(copy(self));
        let found = again.statfs().unwrap();
        // An open inode without a name is free after a crash.
        assert!(found.blocks_free >= stat.blocks_free && found.inodes_free >= stat.inodes_free);
    }
}
