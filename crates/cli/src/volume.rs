//! Everything that touches a volume: the only place that calls `steadfast_fs`,
//! `steadfast_block` (to open) and `steadfast_crash`, so that the commands know
//! nothing of their interfaces.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use steadfast_block::{BlockDevice, DeviceError, Direct, FileDevice, FileOptions};
use steadfast_fs::{Fs, MkfsOptions};
use steadfast_vfs::FileSystem;

use crate::failure::Failure;
use crate::mount_options::Options;

/// The contract of every volume that this version makes.
pub(crate) const CONTRACT_NAME: &str = "ordered";

/// What an image is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Reading and writing, alone.
    Change,
    /// Reading, while nobody writes.
    Look,
    /// Reading, even while somebody writes.
    Peek,
}

/// Opens an image. `direct`: around the host's page cache; by default where it can be.
pub(crate) fn open_device(
    image: &Path,
    access: Access,
    direct: Option<bool>,
) -> Result<FileDevice, Failure> {
    let options = FileOptions {
        read_only: access != Access::Change,
        direct: match (direct, access) {
            (Some(true), _) => Direct::Require,
            (None, Access::Change) => Direct::Prefer,
            _ => Direct::Off,
        },
        lock: access != Access::Peek,
    };
    FileDevice::open(image, &options).map_err(|e| device_failure(image, &e))
}

/// A device error, and what to do about it.
pub(crate) fn device_failure(image: &Path, error: &DeviceError) -> Failure {
    use rustix::io::Errno;
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    let advice = match error {
        DeviceError::Locked { .. } => {
            return Failure::at(
                image,
                "is in use: it is mounted or being checked; unmount it first ('steadfast umount DIR')",
            );
        }
        DeviceError::Open { .. } if is(Errno::NOENT) => "; check the name",
        DeviceError::Open { .. } if is(Errno::ROFS) || is(Errno::ACCESS) || is(Errno::PERM) => {
            "; it cannot be written: make it writable, or look at it only ('mount -o ro')"
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

/// What an image holds.
pub(crate) enum Held {
    /// No volume.
    Nothing,
    /// This one, in words.
    Volume(String),
}

/// Looks for a volume, whole or not.
pub(crate) fn held(device: &FileDevice) -> Held {
    match steadfast_fs::info(device) {
        Ok(info) if info.label.is_empty() => Held::Volume("a Steadfast volume".to_owned()),
        Ok(info) => Held::Volume(format!("the Steadfast volume '{}'", info.label)),
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

/// Makes a volume that fills a device, owned by who makes it.
pub(crate) fn make(
    device: &FileDevice,
    label: &str,
    log_blocks: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Made, Failure> {
    let options = MkfsOptions {
        label: label.to_owned(),
        log_blocks,
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
        ..MkfsOptions::default()
    };
    let made = steadfast_fs::mkfs(device, &options, progress)
        .map_err(|e| Failure::new(e.to_string()))?;
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
    fs: Arc<Fs>,
    image: std::path::PathBuf,
}

/// Recovers and opens a volume. Returns what recovery has to say, if anything.
pub(crate) fn mount(
    image: &Path,
    device: FileDevice,
    options: &Options,
) -> Result<(Volume, Option<String>), Failure> {
    let wanted = steadfast_fs::MountOptions {
        read_only: options.read_only,
        ..steadfast_fs::MountOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let (fs, recovery) = Fs::mount(device, wanted).map_err(|e| Failure::at(image, e))?;
    Ok((Volume { fs, image: image.to_owned() }, Some(recovery.to_string())))
}

impl Volume {
    pub(crate) fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as Arc<dyn FileSystem>
    }

    /// Whether it can only be read.
    pub(crate) fn read_only(&self) -> bool {
        false
    }

    /// Makes everything durable and closes the volume.
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.fs.unmount().map_err(|e| {
            Failure::at(&self.image, format!("closing failed: {e}; the next mount recovers it"))
        })
    }
}

/// One finding of a check.
#[derive(Serialize)]
pub(crate) struct Finding {
    pub(crate) kind: String,
    pub(crate) severity: String,
    pub(crate) text: String,
}

/// What a check came to.
pub(crate) struct Checked {
    pub(crate) findings: Vec<Finding>,
    /// Something was wrong.
    pub(crate) damaged: bool,
    /// Nothing is wrong any more.
    pub(crate) repaired: bool,
    /// Numbers, as the end of a sentence.
    pub(crate) summary: String,
}

/// What a volume says of itself.
pub(crate) struct Summary {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) blocks: u64,
    pub(crate) log_blocks: u64,
    pub(crate) made: i64,
    pub(crate) clean: bool,
}

/// What a crash exploration came to.
pub(crate) struct Explored {
    pub(crate) summary: String,
    pub(crate) violations: u64,
}
