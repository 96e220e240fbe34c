//! Volumes in persistent memory in a program without the feature `pm`: they are recognised, and refused.

use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use steadfast_vfs::FileSystem;

use super::{Access, Checked, Device, Grown, Held, Identity, Summary, Unopened};
use crate::failure::Failure;
use crate::features::Feature;
use crate::mount_options::Options;

/// The first bytes of a volume in persistent memory.
const MAGIC: &[u8; 8] = b"StdfstPM";

/// A mapped file or device. There is none.
pub(crate) enum Region {}

impl Region {
    pub(crate) fn len(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn read(&self, _at: u64, _buf: &mut [u8]) {
        match *self {}
    }

    pub(crate) fn failed(&self) -> bool {
        match *self {}
    }
}

/// Whether an image holds a volume in persistent memory. Devices that can only be mapped are not read.
pub(crate) fn is_memory(image: &Path) -> bool {
    let mut word = [0; 8];
    let readable = std::fs::metadata(image)
        .is_ok_and(|metadata| metadata.is_file() || metadata.file_type().is_block_device());
    readable
        && std::fs::File::open(image).is_ok_and(|file| file.read_exact_at(&mut word, 0).is_ok())
        && word == *MAGIC
}

fn region(image: &Path) -> Result<Region, Failure> {
    let what = format!("{}: persistent memory", image.display());
    Err(Feature::Pm.lacks(&what))
}

pub(super) fn open(image: &Path, _access: Access) -> Result<Device, Unopened> {
    region(image).map(Device::Memory).map_err(Unopened::Failed)
}

pub(crate) fn open_memory(image: &Path) -> Result<Device, Failure> {
    region(image).map(Device::Memory)
}

pub(crate) fn create_memory(
    image: &Path,
    _bytes: u64,
    _overwrite: bool,
) -> Result<Device, Failure> {
    region(image).map(Device::Memory)
}

pub(super) fn enlarge(image: &Path, _bytes: u64) -> Result<Device, Failure> {
    region(image).map(Device::Memory)
}

/// A volume that was made.
pub(crate) struct MadeInMemory {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) inodes: u64,
}

pub(crate) fn make_in_memory(
    image: &Path,
    _device: &Device,
    _label: &str,
    _bytes_per_inode: Option<u64>,
    _progress: &mut dyn FnMut(u64, u64),
) -> Result<MadeInMemory, Failure> {
    region(image).map(|region| match region {})
}

pub(super) fn held(region: &Region) -> Held {
    match *region {}
}

pub(super) fn identity(_image: &Path, region: &Region) -> Result<Identity, Failure> {
    match *region {}
}

pub(super) fn summary(_image: &Path, region: &Region) -> Result<Summary, Failure> {
    match *region {}
}

pub(super) fn grow(
    _image: &Path,
    region: Region,
    _progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown, Failure> {
    match region {}
}

pub(super) fn check(
    _image: &Path,
    region: Region,
    _repair: bool,
    _progress: impl Fn(&str, u64, u64),
) -> Result<Checked, Failure> {
    match region {}
}

/// A mounted volume. There is none.
pub(super) enum Memory {}

impl Memory {
    pub(super) fn file_system(&self) -> Arc<dyn FileSystem> {
        match *self {}
    }

    pub(super) fn read_only(&self) -> bool {
        match *self {}
    }

    pub(super) fn unmount(&self) -> Result<(), String> {
        match *self {}
    }

    #[cfg(feature = "nfs")]
    pub(super) fn limits(&self) -> steadfast_nfs::Limits {
        match *self {}
    }
}

pub(super) fn mount(
    _image: &Path,
    region: Region,
    _options: &Options,
) -> Result<(Memory, Vec<String>), Failure> {
    match region {}
}
