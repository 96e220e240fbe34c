//! `steadfast mkfs --on flash`: the disk of a volume on flash.

use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;

use steadfast_block::BLOCK_SIZE;

use super::{Args, may_overwrite};
use crate::commands::ftl::{self, FormatArgs};
use crate::failure::Failure;
use crate::volume::{self, Access};

/// The epoch of a disk on flash has the size of a volume's log: this part of the disk, within these bounds.
const EPOCH_SHARE: u64 = 64;
const EPOCH_MIN: u64 = 8 << 20;
const EPOCH_MAX: u64 = 64 << 20;

/// The disk in a flash image, which is made if there is none, or if another size is asked for.
pub(super) fn open(
    args: &Args,
    image: &Path,
    before: Option<&Metadata>,
) -> Result<volume::Device, Failure> {
    let there = before.is_some_and(|metadata| metadata.len() > 0);
    if there {
        if !volume::flash::is_image(image).map_err(|e| Failure::at(image, e))? {
            return Err(Failure::at(
                image,
                "is no flash image; nothing was changed. Name a new file and give --size",
            ));
        }
        let device = volume::open_device(image, Access::Change, None)?;
        if !args.force {
            may_overwrite(args, image, &device)?;
        }
        let (size, epoch) = (args.size, args.log_size);
        let same = |bytes: u64, blocks: u64| bytes / BLOCK_SIZE as u64 == blocks;
        let fits = size.is_none_or(|size| same(size, device.bytes() / BLOCK_SIZE as u64))
            && epoch.is_none_or(|epoch| {
                (device.block(image).ok())
                    .and_then(|device| device.snapshot())
                    .is_some_and(|disk| same(epoch, disk.epoch_blocks()))
            });
        if fits {
            return Ok(device);
        }
    }
    let Some(size) = args.size else {
        let why = match there {
            true => "has another epoch size; give --size, too, to make the disk again",
            false => "does not exist; give --size to make it",
        };
        return Err(Failure::at(image, why));
    };
    if before.is_some() && !there {
        let why = "is empty, or no file; remove it, or name a new file, which is made";
        return Err(Failure::at(image, why));
    }
    let epoch = args
        .log_size
        .unwrap_or((size / EPOCH_SHARE).clamp(EPOCH_MIN, EPOCH_MAX));
    // The existing content was checked, and may be overwritten.
    let disk = FormatArgs::usual(size, epoch, there, image.to_owned());
    Ok(volume::Device::Block(Arc::new(ftl::create(&disk)?.0)))
}
