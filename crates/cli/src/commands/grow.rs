//! `steadfast grow`: makes a volume that is not mounted longer.
//!
//! An image file is lengthened first, durably; then the volume takes what the image or the
//! device has. Both steps can be cut and started again. Nothing is touched before everything that can be
//! wrong has been looked at.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;

use crate::failure::Failure;
use crate::progress::Meter;
use crate::volume::{self, Access, LogState};
use crate::{size, text};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// New size of the image file, such as 2T; without it the volume takes the size that the
    /// image or the block device has now
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// Show progress also where standard error is no terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Image file or block device
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let image = &args.image;
    let metadata = std::fs::metadata(image).map_err(|e| Failure::at(image, e))?;
    let is_disk = metadata.file_type().is_block_device();
    if is_disk && args.size.is_some() {
        return Err(Failure::usage(format!(
            "{} is a block device, whose size is fixed: leave out --size",
            image.display()
        )));
    }
    let mut device = volume::open_device(image, Access::Change, None)?;
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
            return refuse("the image has", there, "leave out --size to use all of it");
        }
        let on_flash =
            matches!(&device, volume::Device::Block(device) if device.snapshot().is_some());
        if blocks > there && on_flash {
            let advice = "make a larger one and copy its files; nothing was changed";
            let what = format!("is a disk in flash memory, which keeps its size: {advice}");
            return Err(Failure::at(image, what));
        }
        if blocks > there {
            device = volume::enlarge(image, device, blocks)?;
        }
    }
    let meter = Meter::new(args.progress);
    let grown = volume::grow(image, device, &mut |done, total| {
        meter.show("writing bitmaps", done, total);
    })?;
    drop(meter);
    let now = volume::open_device(image, Access::Look, None)
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
            if is_disk { "device" } else { "image" }
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
