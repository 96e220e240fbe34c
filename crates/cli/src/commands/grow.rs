//! `steadfast grow`: enlarges a volume that is not mounted.
//!
//! An image file grows first, durably; so does the disk of a volume on an object store, by a swap of `head`. Then the
//! volume takes the space of the image or device. Both steps can be cut and started again. All checks come before the
//! first change.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;

use crate::failure::Failure;
use crate::progress::Meter;
use crate::volume::{self, Access, Device, LogState};
use crate::{size, text};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// New size of the image file, or of the volume on an object store, such as 2T. Default: the size that the image
    /// or the block device has now
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The key file of an encrypted volume on an object store (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Image file, block device, or URL of a volume on an object store
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let image = &args.image;
    let url = volume::store::url(image);
    let is_disk = match &url {
        Some(_) => false,
        None => {
            let metadata = std::fs::metadata(image).map_err(|e| Failure::at(image, e))?;
            metadata.file_type().is_block_device()
        }
    };
    if is_disk && args.size.is_some() {
        return Err(Failure::usage(format!(
            "{} is a block device, whose size is fixed: leave out --size",
            image.display()
        )));
    }
    let key_file = args.key_file.as_deref();
    let disk = match &url {
        Some(url) => Some(volume::store::open_to_grow(url, key_file)?),
        None => None,
    };
    let mut device = match &disk {
        Some(disk) => disk.device(),
        None => volume::open_device_with_key(image, Access::Change, key_file)?,
    };
    let before = volume::summary(image, &device)?;
    if let LogState::Damaged(why) = &before.log {
        let advice = "run 'steadfast fsck --repair' first; nothing was changed";
        return Err(Failure::at(image, format!("{why}; {advice}")));
    }
    if let Some(why) = &before.warning {
        return Err(Failure::at(image, format!("{why}; nothing was changed")));
    }
    if let Some(bytes) = args.size {
        let (blocks, there) = (bytes / BLOCK, device.bytes() / BLOCK);
        let refuse = |what: &str, blocks: u64, advice: &str| {
            let (asked, has) = (size::show(bytes), size::show(blocks * BLOCK));
            let what = format!("--size {asked} is less than the {has} that {what}: {advice}");
            Err(Failure::at(image, what))
        };
        if blocks < before.blocks {
            let advice = "a volume cannot shrink; copy its files to a smaller one";
            return refuse("the volume has", before.blocks, advice);
        }
        if blocks < there {
            let what = if disk.is_some() {
                "its disk has"
            } else {
                "the image has"
            };
            return refuse(what, there, "leave out --size to use all of it");
        }
        let on_flash = matches!(&device, Device::Block(device) if device.snapshot().is_some());
        if blocks > there && on_flash && disk.is_none() {
            let advice = "make a larger one and copy its files; nothing was changed";
            let what = format!("is a disk in flash memory, which keeps its size: {advice}");
            return Err(Failure::at(image, what));
        }
        match &disk {
            Some(disk) => disk.grow(image, blocks)?,
            None if blocks > there => device = volume::enlarge(image, device, blocks)?,
            None => {}
        }
    }
    let meter = Meter::new(args.progress);
    let grown = volume::grow(image, device, &mut |done, total| {
        meter.show("writing bitmaps", done, total);
    })?;
    drop(meter);
    if let Some(disk) = disk {
        disk.release(image)?;
    }
    let now = volume::open_device_with_key(image, Access::Look, key_file)
        .and_then(|device| volume::summary(image, &device))?;
    if args.json {
        text::print_json(&serde_json::json!({
            "image": image.display().to_string(),
            "bytes_before": grown.blocks_before * BLOCK,
            "bytes": grown.blocks * BLOCK,
            "data_bytes": now.data_blocks * BLOCK,
            "free_bytes": now.free_blocks * BLOCK,
            "groups": grown.groups,
            "replayed_records": grown.replayed,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let replayed = match grown.replayed {
        0 => String::new(),
        records => format!("; its log was replayed first: {records} records"),
    };
    let has = size::show(grown.blocks * BLOCK);
    text::print(&if grown.blocks == grown.blocks_before {
        format!(
            "{}: the volume fills its {} of {has} already{replayed}",
            image.display(),
            match (is_disk, &url) {
                (true, _) => "device",
                (_, Some(_)) => "disk",
                _ => "image",
            }
        )
    } else {
        format!(
            "{}: grown from {} to {has}, {} free{replayed}",
            image.display(),
            size::show(grown.blocks_before * BLOCK),
            size::show(now.free_blocks * BLOCK),
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
