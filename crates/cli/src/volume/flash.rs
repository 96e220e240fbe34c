//! Disks in flash images.

use std::path::Path;
use std::sync::Arc;

use steadfast_block::BlockDevice;
use steadfast_flash::ImageStore;
use steadfast_ftl::{Disk, DiskError, WhenFull};

use super::{Access, Device, Unopened, in_use};
use crate::commands::ftl;

/// Whether a file is a flash image.
pub(crate) fn is_image(image: &Path) -> std::io::Result<bool> {
    ImageStore::is_image(image)
}

/// Opens the disk in an image; a volume on it flushes before an epoch is full.
pub(super) fn open(image: &Path, access: Access) -> Result<Device, Unopened> {
    let device: Result<Arc<dyn BlockDevice>, DiskError> = match access {
        Access::Change => Disk::open(image, WhenFull::default())
            .map(|disk| Arc::new(disk) as Arc<dyn BlockDevice>),
        Access::Look | Access::Scan => {
            Disk::open_read_only(image).map(|disk| Arc::new(disk) as Arc<dyn BlockDevice>)
        }
        Access::Peek => Disk::peek(image).map(|disk| Arc::new(disk) as Arc<dyn BlockDevice>),
    };
    device.map(Device::Block).map_err(|e| match e {
        DiskError::InUse { .. } => Unopened::InUse(in_use(image)),
        e => Unopened::Failed(ftl::failure(image, e)),
    })
}
