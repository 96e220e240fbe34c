//! Everything that touches a volume: the only place that calls `steadfast_fs`, `steadfast_pmfs`, `steadfast_block`
//! (to open) and `steadfast_crash`, so that the commands do not depend on their interfaces.
//!
//! Each kind of medium has a module; without its feature (`features`), one of the same interface in its place.

mod check;
#[cfg(feature = "store")]
pub(crate) mod copy;
#[cfg(feature = "crash")]
mod crashes;
#[cfg(feature = "flash")]
pub(crate) mod flash;
#[cfg(not(feature = "flash"))]
#[path = "volume/without_flash.rs"]
pub(crate) mod flash;
#[cfg(feature = "pm")]
mod memory;
#[cfg(not(feature = "pm"))]
#[path = "volume/without_memory.rs"]
mod memory;
#[cfg(feature = "store")]
mod replica;
#[cfg(not(feature = "store"))]
#[path = "volume/without_replica.rs"]
mod replica;
mod settings;
#[cfg(feature = "store")]
pub(crate) mod store;
#[cfg(not(feature = "store"))]
#[path = "volume/without_store.rs"]
pub(crate) mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use steadfast_block::{BLOCK_SIZE, BlockDevice, DeviceError, Direct, FileDevice, FileOptions};
use steadfast_fs::{Fs, JournalState, MkfsOptions, TrimRange};
use steadfast_journal::{Journal, LogItem, LogSummary};
use steadfast_vfs::{FileSystem, Replica};

use crate::failure::{Failure, Kind, notice};
use crate::mount_options::Options;
use crate::private;

#[cfg(feature = "crash")]
pub(crate) use steadfast_crash::Medium;
pub(crate) use steadfast_fs::{BlockPlace, Contract, InodeShown, Inspector, LeafShown, VolumeMap};

pub(crate) use check::{Checked, Verdict, check};
#[cfg(feature = "crash")]
pub(crate) use crashes::{Explored, PutExplored, explore_crashes, explore_put};
#[cfg(feature = "pm")]
pub(crate) use memory::view::{MemoryView, words as memory_words};
pub(crate) use memory::{Region, create_memory, is_memory, make_in_memory, open_memory};

/// An open image.
pub(crate) enum Device {
    /// A file or block device, or a disk in a flash image.
    Block(Arc<dyn BlockDevice>),
    /// A file or device in persistent memory.
    Memory(Region),
}

impl Device {
    /// Its block device; an error for a volume in persistent memory.
    pub(crate) fn block(&self, image: &Path) -> Result<&Arc<dyn BlockDevice>, Failure> {
        match self {
            Device::Block(device) => Ok(device),
            Device::Memory(_) => Err(Failure::at(
                image,
                "is a volume in persistent memory, which has no log and no blocks: this does not apply to it",
            )),
        }
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Device::Block(device) => device.geometry().blocks * BLOCK_SIZE as u64,
            Device::Memory(region) => region.len(),
        }
    }
}

/// Interval of checks whether an image is free.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Purpose of opening an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Reading and writing, exclusively.
    Change,
    /// Reading, while no process writes.
    Look,
    /// Reading, even while another process writes.
    Peek,
    /// Reading most of the image, while no process writes: around the host's page cache where possible, with many
    /// requests at once.
    Scan,
}

/// Opens an image. `direct`: around the host's page cache; by default where possible.
pub(crate) fn open_device(
    image: &Path,
    access: Access,
    direct: Option<bool>,
) -> Result<Device, Failure> {
    open_device_within(image, access, direct, Duration::ZERO)
}

/// The same, with the key file of an encrypted volume on an object store.
pub(crate) fn open_device_with_key(
    image: &Path,
    access: Access,
    key_file: Option<&Path>,
) -> Result<Device, Failure> {
    match (store::url(image), key_file) {
        (Some(url), _) => store::open_with_key(&url, access, key_file),
        (None, None) => open_device(image, access, None),
        (None, Some(_)) => Err(Failure::usage(format!(
            "--key-file is for encrypted volumes on object stores, and {} is none",
            image.display()
        ))),
    }
}

/// The same; waits for an image in use up to this time: the kernel closes the files of a killed process a moment
/// after its end.
pub(crate) fn open_device_within(
    image: &Path,
    access: Access,
    direct: Option<bool>,
    patience: Duration,
) -> Result<Device, Failure> {
    let options = FileOptions {
        read_only: access != Access::Change,
        direct: match (direct, access) {
            (Some(true), _) => Direct::Require,
            (None, Access::Change | Access::Scan) => Direct::Prefer,
            _ => Direct::Off,
        },
        lock: access != Access::Peek,
        ..FileOptions::default()
    };
    let begun = Instant::now();
    let mut told = false;
    let flash = flash::is_image(image).unwrap_or(false);
    let memory = is_memory(image);
    loop {
        let opened = if let Some(url) = store::url(image) {
            store::open(&url, access, &store::StoreSettings::default())
        } else if memory {
            memory::open(image, access)
        } else if flash {
            flash::open(image, access)
        } else {
            open_file(image, &options)
        };
        match opened {
            Err(Unopened::InUse(_)) if begun.elapsed() < patience => {
                if !std::mem::replace(&mut told, true) {
                    notice(&format!(
                        "{}: is in use; waiting up to {} seconds for that to end",
                        image.display(),
                        patience.as_secs()
                    ));
                }
                std::thread::sleep(LOOK_AGAIN_AFTER);
            }
            Err(Unopened::InUse(why) | Unopened::Failed(why)) => return Err(why),
            Ok(device) => return Ok(device),
        }
    }
}

/// Kind of medium of an image, as `mkfs --on` names it.
pub(crate) fn medium(image: &Path) -> &'static str {
    if store::url(image).is_some() {
        "store"
    } else if is_memory(image) {
        "pm"
    } else if flash::is_image(image).unwrap_or(false) {
        "flash"
    } else {
        "block"
    }
}

/// The path of an image as programs in other directories find it; of a URL, the URL.
pub(crate) fn canonical(image: &Path) -> Result<PathBuf, Failure> {
    if store::url(image).is_some() {
        return Ok(image.to_owned());
    }
    image.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::absent(image),
        _ => Failure::at(image, e),
    })
}

/// The reason why an image could not be opened.
enum Unopened {
    InUse(Failure),
    Failed(Failure),
}

impl Unopened {
    fn failure(self) -> Failure {
        match self {
            Unopened::InUse(failure) | Unopened::Failed(failure) => failure,
        }
    }
}

fn open_file(image: &Path, options: &FileOptions) -> Result<Device, Unopened> {
    let device = FileDevice::open(image, options).map_err(|e| match e {
        DeviceError::Locked { .. } => Unopened::InUse(device_failure(image, &e)),
        e => Unopened::Failed(device_failure(image, &e)),
    })?;
    if let Some(refusal) = device.engine_refusal() {
        eprintln!("steadfast: note: {}: {refusal}", image.display());
    }
    Ok(Device::Block(Arc::new(device)))
}

/// A process that holds an image exclusively.
#[derive(Serialize)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) command: String,
}

/// The processes that hold an image exclusively, as far as this user may know.
pub(crate) fn holders(image: &Path) -> Vec<Holder> {
    let holders = steadfast_block::holders(image).into_iter();
    let known = |holder: steadfast_block::Holder| Holder {
        pid: holder.pid,
        command: holder.command,
    };
    holders.map(known).collect()
}

/// The error for an image in use: where it is mounted, or which process has it, and what to do.
pub(crate) fn in_use(image: &Path) -> Failure {
    let source = image.canonicalize().unwrap_or_else(|_| image.to_owned());
    let mounts = steadfast_fuse::mountinfo::mounts().unwrap_or_default();
    let mount = mounts
        .into_iter()
        .find(|m| m.is_ours() && m.source == source);
    let holders = steadfast_block::holders(image);
    let by = match holders.first() {
        Some(holder) => format!(" by {holder}"),
        None => String::new(),
    };
    let why = match (mount, holders.is_empty()) {
        (Some(mount), _) => {
            let dir = mount.mount_point.display();
            format!(
                "is in use: it is mounted at {dir}{by}; unmount it first ('steadfast umount {dir}')"
            )
        }
        (None, false) => format!("is in use{by}; end that first"),
        (None, true) => {
            "is in use by another process; unmount it ('steadfast umount DIR'), or end the server \
             or the check that has it, first"
                .to_owned()
        }
    };
    Failure::at(image, why).of_kind(Kind::InUse)
}

/// A failure of the file system, with its kind.
fn fs_failure(image: &Path, error: &steadfast_fs::Error) -> Failure {
    let failure = Failure::at(image, error);
    match error {
        steadfast_fs::Error::NotAVolume => failure.of_kind(Kind::NotAVolume),
        _ => failure,
    }
}

/// A device error, with advice.
pub(crate) fn device_failure(image: &Path, error: &DeviceError) -> Failure {
    use rustix::io::Errno;
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    let advice = match error {
        DeviceError::Open { .. } if is(Errno::NOENT) => {
            return Failure::absent(image);
        }
        DeviceError::Locked { .. } => {
            return in_use(image);
        }
        DeviceError::Open { .. } if is(Errno::ACCESS) && std::fs::File::open(image).is_err() => {
            "; this user may not read it"
        }
        DeviceError::Open { .. } if is(Errno::ROFS) || is(Errno::ACCESS) || is(Errno::PERM) => {
            "; it cannot be written: make it writable, or only look at it ('mount -o ro', 'fsck' without '--repair')"
        }
        _ => "",
    };
    let text = error.to_string();
    if text.contains(&*image.to_string_lossy()) {
        Failure::new(format!("{text}{advice}"))
    } else {
        Failure::at(image, format!("{text}{advice}"))
    }
}

/// Result of growing a volume.
pub(crate) struct Grown {
    pub(crate) blocks_before: u64,
    pub(crate) blocks: u64,
    pub(crate) groups: u64,
    /// Log records that were replayed first.
    pub(crate) replayed: u64,
}

/// Grows a volume to the size of its device, which it closes.
pub(crate) fn grow(
    image: &Path,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown, Failure> {
    let device = match device {
        Device::Block(device) => device,
        Device::Memory(region) => return memory::grow(image, region, progress),
    };
    let grown = steadfast_fs::grow(device, progress).map_err(|e| fs_failure(image, &e))?;
    Ok(Grown {
        blocks_before: grown.blocks_before,
        blocks: grown.blocks,
        groups: grown.groups,
        replayed: grown.recovery.records,
    })
}

/// Result of giving back free space.
pub(crate) struct Trimmed {
    pub(crate) runs: u64,
    pub(crate) blocks: u64,
    /// Log records that were replayed first.
    pub(crate) replayed: u64,
}

/// Gives a volume's free space back to the device.
pub(crate) fn trim(
    image: &Path,
    device: &Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Trimmed, Failure> {
    let mut options = steadfast_fs::MountOptions::default();
    options.background = false;
    let (fs, recovery) =
        Fs::mount(Arc::clone(device.block(image)?), &options).map_err(|e| fs_failure(image, &e))?;
    if fs.is_read_only() {
        let why = "can only be read by this version; nothing was changed";
        return Err(Failure::at(image, why));
    }
    let trimmed = fs
        .trim(&TrimRange::default(), progress)
        .map_err(|e| Failure::at(image, e))?;
    fs.unmount().map_err(|e| Failure::at(image, e))?;
    Ok(Trimmed {
        runs: trimmed.runs,
        blocks: trimmed.blocks,
        replayed: recovery.records,
    })
}

/// Opens a volume for a look at its inodes.
pub(crate) fn inspect(image: &Path, device: &Device) -> Result<Inspector, Failure> {
    Inspector::open(Arc::clone(device.block(image)?)).map_err(|e| fs_failure(image, &e))
}

/// Content of an image.
pub(crate) enum Held {
    /// No volume.
    Nothing,
    /// This volume, in words.
    Volume(String),
}

/// Makes an image file of this size, or gives an existing one this size (its content is lost if `overwrite`, else it
/// must hold none), and opens it exclusively.
pub(crate) fn create_device(image: &Path, blocks: u64, overwrite: bool) -> Result<Device, Failure> {
    let made = FileDevice::create(image, blocks, overwrite);
    let made = made.map_err(|e| device_failure(image, &e))?;
    Ok(Device::Block(Arc::new(made)))
}

/// Looks for a volume, intact or damaged.
pub(crate) fn held(device: &Device) -> Held {
    let device = match device {
        Device::Block(device) => device,
        Device::Memory(region) => return memory::held(region),
    };
    match steadfast_fs::info(Arc::clone(device)) {
        Ok(info) if info.map.label().is_empty() => Held::Volume("a Steadfast volume".to_owned()),
        Ok(info) => Held::Volume(format!("the Steadfast volume '{}'", info.map.label())),
        Err(steadfast_fs::Error::NotAVolume) => Held::Nothing,
        Err(e) => Held::Volume(format!("a Steadfast volume ({e})")),
    }
}

/// A volume that was made.
pub(crate) struct Made {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) blocks: u64,
    pub(crate) log_blocks: u64,
    pub(crate) free_blocks: u64,
}

/// Log of a new volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Log {
    /// Size that fits the volume's size.
    Usual,
    /// Number of blocks.
    Blocks(u64),
    /// None: the device returns to its last flush after a crash.
    None,
}

/// Makes a volume that fills a device, owned by the user that makes it.
pub(crate) fn make(
    device: &dyn BlockDevice,
    label: &str,
    contract: Contract,
    log: Log,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Made, Failure> {
    let options = MkfsOptions {
        label: label.to_owned(),
        contract,
        without_log: log == Log::None,
        log_blocks: match log {
            Log::Blocks(blocks) => Some(blocks),
            Log::Usual | Log::None => None,
        },
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        ..MkfsOptions::default()
    };
    let made =
        steadfast_fs::mkfs(device, &options, progress).map_err(|e| Failure::new(e.to_string()))?;
    Ok(Made {
        uuid: made.uuid,
        label: made.label,
        blocks: made.blocks,
        log_blocks: made.log_blocks,
        free_blocks: made.free_blocks,
    })
}

/// A mounted volume.
pub(crate) struct Volume {
    fs: Mounted,
    image: PathBuf,
}

/// Its file system.
enum Mounted {
    Block(Arc<Fs>),
    Replica(replica::Following),
    Memory(memory::Memory),
}

/// Mounts a volume that another machine writes, and follows it. `tell` receives errors that occur meanwhile.
pub(crate) fn mount_replica(
    image: &Path,
    follower: store::Follower,
    device: &Device,
    interval: Duration,
    options: &Options,
    tell: impl Fn(&str) + Send + 'static,
) -> Result<Volume, Failure> {
    let device = Arc::clone(device.block(image)?);
    let (fs, _) = Fs::mount(device, &options.volume).map_err(|e| fs_failure(image, &e))?;
    let following =
        replica::Following::start(fs, follower, interval, options.volume.clone(), tell)?;
    Ok(Volume {
        fs: Mounted::Replica(following),
        image: image.to_owned(),
    })
}

/// Recovers and opens a volume. Also returns notes for the user, by lines.
pub(crate) fn mount(
    image: &Path,
    device: Device,
    options: &Options,
) -> Result<(Volume, Vec<String>), Failure> {
    if let Some(contract) = &options.contract {
        let found = summary(image, &device)?.contract;
        if found != contract {
            return Err(Failure::at(
                image,
                format!(
                    "runs under the contract '{found}', not '{contract}': a volume's contract is chosen when it is made"
                ),
            ));
        }
    }
    let device = match device {
        Device::Block(_) if options.in_place => {
            return Err(Failure::at(
                image,
                "the mount option 'in_place' is for volumes in persistent memory; 'mkfs --contract metadata-prefix' makes one that overwrites in place",
            ));
        }
        Device::Block(device) => device,
        Device::Memory(region) => {
            let (fs, mut told) = memory::mount(image, region, options)?;
            told.extend(private::warning(image, private::EVERY_FILE));
            let volume = Volume {
                fs: Mounted::Memory(fs),
                image: image.to_owned(),
            };
            return Ok((volume, told));
        }
    };
    let (fs, recovery) = Fs::mount(device, &options.volume).map_err(|e| fs_failure(image, &e))?;
    let mut told = fs.take_warnings();
    told.extend(private::warning(image, private::EVERY_FILE));
    let cache = options.store.cache.as_deref();
    told.extend(
        cache.and_then(|cache| private::warning(cache, "what it keeps of the volume's files")),
    );
    if !recovery.clean && recovery.records == 0 {
        told.push("it was not unmounted; it is what its last commit left".to_owned());
    } else if !recovery.clean {
        told.push(format!(
            "recovered: {} log records, {} blocks brought up to date",
            recovery.records, recovery.home_blocks
        ));
    }
    if fs.is_read_only() && !options.read_only() {
        told.push("mounted read-only: this version can only read the volume".to_owned());
    }
    Ok((
        Volume {
            fs: Mounted::Block(fs),
            image: image.to_owned(),
        },
        told,
    ))
}

impl Volume {
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        match &self.fs {
            Mounted::Block(fs) => Arc::clone(fs) as Arc<dyn FileSystem>,
            Mounted::Replica(following) => Arc::clone(&following.replica) as Arc<dyn FileSystem>,
            Mounted::Memory(fs) => fs.file_system(),
        }
    }

    /// The volume, for serving over NFS.
    #[cfg(feature = "nfs")]
    pub(crate) fn served(&self, image: &Path) -> steadfast_nfs::ExportedVolume {
        let mut served =
            steadfast_nfs::ExportedVolume::new(self.file_system(), image.display().to_string());
        served.limits = match &self.fs {
            Mounted::Block(_) | Mounted::Replica(_) => steadfast_nfs::Limits {
                file_bytes_max: steadfast_fs::layout::FILE_BYTES_MAX,
                links_max: steadfast_fs::layout::LINK_MAX,
            },
            Mounted::Memory(fs) => fs.limits(),
        };
        served.read_only = self.read_only();
        served.sync = match &self.fs {
            Mounted::Block(fs) => fs.contract() == Contract::Sync,
            Mounted::Replica(_) => false,
            Mounted::Memory(_) => true,
        };
        served
    }

    /// Whether the kernel may cache writes and send them later.
    pub(crate) fn allows_write_back(&self) -> bool {
        match &self.fs {
            Mounted::Block(fs) => fs.contract().allows_write_back(),
            Mounted::Replica(_) | Mounted::Memory(_) => false,
        }
    }

    /// Whether it can only be read.
    pub(crate) fn read_only(&self) -> bool {
        match &self.fs {
            Mounted::Block(fs) => fs.is_read_only(),
            Mounted::Replica(_) => true,
            Mounted::Memory(fs) => fs.read_only(),
        }
    }

    /// The volume, if another machine writes it.
    pub(crate) fn replica(&self) -> Option<&Replica> {
        match &self.fs {
            Mounted::Replica(following) => Some(&*following.replica),
            Mounted::Block(_) | Mounted::Memory(_) => None,
        }
    }

    /// Makes everything durable and closes the volume. Also returns notes for the user.
    pub(crate) fn close(self) -> Result<Vec<String>, Failure> {
        let closing = |why: String| {
            Failure::at(
                &self.image,
                format!("closing failed: {why}; the next mount recovers it"),
            )
        };
        match self.fs {
            Mounted::Replica(following) => {
                let newest = following.newest();
                following.end();
                (newest.unmount()).map_err(|e| closing(e.to_string()))?;
                Ok(Vec::new())
            }
            Mounted::Block(fs) => {
                let closed = fs.unmount();
                let told = fs.take_warnings();
                closed.map(|()| told).map_err(|e| closing(e.to_string()))
            }
            Mounted::Memory(fs) => {
                fs.unmount().map_err(closing)?;
                Ok(Vec::new())
            }
        }
    }
}

/// State of a volume's journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LogState {
    /// Unmounted cleanly.
    Clean,
    /// Mounted, or not unmounted cleanly.
    NeedsRecovery,
    /// It cannot be recovered.
    Damaged(String),
}

/// Summary of a volume.
pub(crate) struct Summary {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) version: u32,
    pub(crate) contract: &'static str,
    pub(crate) made: i64,
    pub(crate) blocks: u64,
    pub(crate) log_blocks: u64,
    pub(crate) data_blocks: u64,
    pub(crate) free_blocks: u64,
    /// Number of inodes that fit, and of free ones. None if inodes take space from files, on demand.
    pub(crate) inodes: Option<(u64, u64)>,
    pub(crate) log: LogState,
    pub(crate) warning: Option<String>,
}

/// Reads the summary of a volume.
pub(crate) fn summary(image: &Path, device: &Device) -> Result<Summary, Failure> {
    let device = match device {
        Device::Block(device) => device,
        Device::Memory(region) => return memory::summary(image, region),
    };
    let info = steadfast_fs::info(Arc::clone(device)).map_err(|e| fs_failure(image, &e))?;
    let map = &info.map;
    Ok(Summary {
        uuid: map.uuid(),
        label: map.label().to_owned(),
        version: map.version(),
        contract: map.contract().name(),
        made: map.made(),
        blocks: map.blocks(),
        log_blocks: map.journal().map_or(0, |region| region.log_blocks),
        data_blocks: info.data_blocks,
        free_blocks: info.free_blocks,
        inodes: None,
        log: match info.journal {
            JournalState::Clean { .. } => LogState::Clean,
            JournalState::NeedsRecovery { .. } => LogState::NeedsRecovery,
            JournalState::Damaged(why) => LogState::Damaged(why),
        },
        warning: map.warning().map(str::to_owned),
    })
}

/// Reads the layout of a volume.
pub(crate) fn map(image: &Path, device: &Device) -> Result<VolumeMap, Failure> {
    VolumeMap::read(&**device.block(image)?).map_err(|e| fs_failure(image, &e))
}

/// Identity of a volume.
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) version: u32,
}

/// Reads the identity of a volume from the superblock. A device with only the copy holds no volume: it is used for
/// something else.
pub(crate) fn identity(image: &Path, device: &Device) -> Result<Identity, Failure> {
    if let Device::Memory(region) = device {
        return memory::identity(image, region);
    }
    let map = map(image, device)?;
    match map.warning() {
        Some(why) => Err(Failure::at(image, why)),
        None => Ok(Identity {
            uuid: map.uuid(),
            label: map.label().to_owned(),
            version: map.version(),
        }),
    }
}

/// Shows a volume's log to `each`, item by item.
pub(crate) fn dump_log(
    image: &Path,
    device: &Device,
    map: &VolumeMap,
    each: &mut dyn FnMut(LogItem<'_>),
) -> Result<LogSummary, Failure> {
    let Some(region) = map.journal() else {
        return Err(Failure::at(
            image,
            "has no log: its device returns to the last flush after a crash",
        ));
    };
    Journal::dump(device.block(image)?, &region, &map.uuid(), each)
        .map_err(|e| Failure::at(image, e))
}

/// Opens an image again, enlarged to this many blocks.
pub(crate) fn enlarge(image: &Path, device: Device, blocks: u64) -> Result<Device, Failure> {
    let in_memory = matches!(device, Device::Memory(_));
    drop(device);
    match in_memory {
        true => memory::enlarge(image, blocks * BLOCK_SIZE as u64),
        false => create_device(image, blocks, true),
    }
}
