//! A volume in memory that tests mount, use, cut and check.

use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_testkit::Ticks;
use steadfast_vfs::{Attr, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Result, Stream};

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
    /// and mounts what is there.
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

pub fn root() -> Caller {
    Caller::root()
}

pub fn user(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        ..Caller::root()
    }
}

pub fn stream(number: u32) -> Caller {
    Caller {
        stream: Stream(number),
        ..Caller::root()
    }
}

/// What tests do all the time, by name.
pub trait Handy: FileSystem {
    fn file(&self, dir: Ino, name: &str) -> Ino {
        self.file_by(&root(), dir, name).unwrap().ino
    }

    fn file_by(&self, caller: &Caller, dir: Ino, name: &str) -> Result<Attr> {
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        self.mknod(caller, dir, name.as_bytes(), &node)
    }

    fn dir(&self, dir: Ino, name: &str) -> Ino {
        self.mkdir(&root(), dir, name.as_bytes(), 0o755)
            .unwrap()
            .ino
    }

    fn look(&self, dir: Ino, name: &str) -> Option<Attr> {
        match self.lookup(&root(), dir, name.as_bytes()) {
            Ok(attr) => Some(attr),
            Err(error) if error == Errno::NoEnt => None,
            Err(error) => panic!("lookup {name}: {error}"),
        }
    }

    fn attr(&self, ino: Ino) -> Attr {
        self.getattr(&root(), ino).unwrap()
    }

    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.readdir(&root(), dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
        assert_eq!(&names[..2], [".", ".."]);
        let mut names = names.split_off(2);
        names.sort();
        names
    }

    fn content(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = vec![0; self.attr(ino).size as usize];
        let got = self.read(&root(), ino, 0, &mut bytes).unwrap();
        assert_eq!(got, bytes.len());
        bytes
    }
}

impl<T: FileSystem + ?Sized> Handy for T {}

/// The error number of a call that must fail.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: Result<T>, errno: Errno) {
    match result {
        Err(error) if error == errno => {}
        other => panic!("expected {errno:?}, got {other:?}"),
    }
}
