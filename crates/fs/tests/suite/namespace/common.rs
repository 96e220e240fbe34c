//! A volume in memory that tests mount, use, cut and check.

use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_testkit::Ticks;
pub use steadfast_testkit::calls::*;
use steadfast_vfs::FileSystem;

/// Everything in the callers' threads.
pub fn options() -> MountOptions {
    let mut options = MountOptions::default();
    options.background = false;
    options.clock = Arc::new(Ticks::default());
    options.seed = Some(1);
    options
}

/// Blocks that a directory keeps when its last name goes.
pub const BLOCKS_OF_EMPTY: u64 = 0;

/// A volume and its present mount.
pub struct Volume {
    pub device: Arc<MemDevice>,
    pub fs: Arc<Fs>,
}

impl std::ops::Deref for Volume {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        &self.fs
    }
}

impl Volume {
    pub fn new(mib: u64) -> Volume {
        Volume::with_log(mib, None)
    }

    pub fn with_log(mib: u64, log_blocks: Option<u64>) -> Volume {
        let device = Arc::new(MemDevice::new(mib * 256));
        let options = MkfsOptions {
            seed: Some(1),
            log_blocks,
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let fs = mount(&device);
        Volume { device, fs }
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        self.fs.unmount().unwrap();
        self.fs = mount(&self.device);
    }

    /// Takes the device away as a power cut would after everything written so far arrived,
    /// and mounts it.
    pub fn cut(&mut self) {
        let image = self.device.to_bytes();
        self.device = Arc::new(MemDevice::from_bytes(&image));
        self.fs = mount(&self.device);
    }

    pub fn free(&self) -> u64 {
        self.fs.sync().unwrap();
        self.fs.statfs().unwrap().blocks_free
    }
}

/// Every test ends with a volume that is whole.
impl Drop for Volume {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.fs.unmount().unwrap();
            must_be_clean(&self.device);
        }
    }
}

/// Checks a volume that is not mounted.
#[track_caller]
pub fn must_be_clean<D: BlockDevice>(device: &Arc<D>) {
    let device: Arc<dyn BlockDevice> = Arc::clone(device) as Arc<dyn BlockDevice>;
    let report = fsck(device, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
}

pub fn mount(device: &Arc<MemDevice>) -> Arc<Fs> {
    let device: Arc<dyn BlockDevice> = Arc::clone(device) as Arc<dyn BlockDevice>;
    let (fs, _) = Fs::mount(device, &options()).unwrap();
    fs
}
