//! `steadfast trim`: gives back the free space of a volume, mounted or not, to its device.
//!
//! Free space becomes holes in an image file, is unmapped on a block device, and is no longer moved in flash memory.
//! On a mount the server does this, beside its other work; fstrim(8) asks for the same. A mounted volume without a
//! log does so by itself when files are deleted.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;

use crate::commands::sync::mount_of;
use crate::failure::Failure;
use crate::progress::Meter;
use crate::volume::{self, Access, LogState};
use crate::{size, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Image file, flash image, block device, or a directory of a mount
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let image = &args.image;
    if image.is_dir() {
        return trim_mounted(args);
    }
    let device = volume::open_device(image, Access::Change, None)?;
    let before = volume::summary(image, &device)?;
    // Blocks that only seem free would be lost.
    if let LogState::Damaged(why) = &before.log {
        let advice = "run 'steadfast fsck --repair' first; nothing was changed";
        return Err(Failure::at(image, format!("{why}; {advice}")));
    }
    if let Some(why) = &before.warning {
        return Err(Failure::at(image, format!("{why}; nothing was changed")));
    }
    let meter = Meter::new(args.progress);
    let trimmed = volume::trim(image, &device, &mut |done, total| {
        meter.show("block groups", done, total);
    })?;
    drop(meter);
    let bytes = trimmed.blocks * BLOCK_SIZE as u64;
    if args.json {
        text::print_json(&serde_json::json!({
            "image": image.display().to_string(),
            "trimmed_bytes": bytes,
            "runs": trimmed.runs,
            "replayed_records": trimmed.replayed,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let replayed = match trimmed.replayed {
        0 => String::new(),
        records => format!("; its log was replayed first: {records} records"),
    };
    text::print(&format!(
        "{}: {} of free space given back in {} {}{replayed}",
        image.display(),
        size::show(bytes),
        trimmed.runs,
        if trimmed.runs == 1 { "piece" } else { "pieces" },
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The mount's server trims.
fn trim_mounted(args: &Args) -> Result<ExitCode, Failure> {
    let dir = &args.image;
    mount_of(dir)?;
    let bytes =
        steadfast_fuse::trim(dir).map_err(|e| Failure::at(dir, format!("trim failed: {e}")))?;
    if args.json {
        text::print_json(&serde_json::json!({
            "mount": dir.display().to_string(),
            "trimmed_bytes": bytes,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    text::print(&format!(
        "{}: {} of free space given back",
        dir.display(),
        size::show(bytes)
    ))?;
    Ok(ExitCode::SUCCESS)
}
