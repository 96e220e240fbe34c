//! `steadfast mkfs`: makes a volume.
//!
//! Nothing is touched before everything that can be wrong has been checked. What is on
//! the image already is only overwritten with `--force`; an image in use never is.

use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, FileDevice};

use crate::failure::Failure;
use crate::progress::Meter;
use crate::volume::{self, Access, Held};
use crate::{size, text};

/// Blocks at the start and end of an image that are looked at for foreign data (128 KiB:
/// every common file system and partition table has a mark in there).
const LOOKED_AT: u64 = 32;

/// What a crash may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contract {
    /// For each stream, the newest of its requests: always a prefix survives, data included
    Ordered,
    /// Metadata is a prefix of the requests, data written in place may be torn
    MetadataPrefix,
    /// Nothing: each call is durable when it returns
    Sync,
}

/// What kind of medium the volume is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// An image file or a block device
    Block,
    /// Raw flash, through the translation layer
    Flash,
    /// Persistent memory
    Pm,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the image, such as 512M or 1G; makes the file if there is none
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// What a crash may lose
    #[arg(long, value_enum, default_value_t = Contract::Ordered)]
    contract: Contract,
    /// The kind of medium
    #[arg(long, value_enum, default_value_t = Kind::Block)]
    on: Kind,
    /// A name for the volume, at most 64 bytes
    #[arg(long, default_value = "")]
    label: String,
    /// Size of the log (by default a sixteenth of the volume, at most 64 MiB)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Show progress also where standard error is no terminal
    #[arg(long)]
    progress: bool,
    /// Image file or block device
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let contract = offered(args.on, args.contract)?;
    let image = &args.image;
    let before = match std::fs::metadata(image) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Failure::at(image, e)),
    };
    let device = open(args, before.as_ref())?;
    let meter = Meter::new(args.progress);
    let made = volume::make(
        &device,
        &args.label,
        contract,
        args.log_size.map(|bytes| bytes / BLOCK_SIZE as u64),
        &mut |done, total| meter.show("writing log and bitmaps", done, total),
    );
    drop(meter);
    drop(device);
    let made = match made {
        Ok(made) => made,
        Err(why) => {
            if before.is_none() {
                // Our own file, which holds no volume: best effort.
                let _ = std::fs::remove_file(image);
            }
            return Err(Failure::at(image, why.message));
        }
    };
    text::print(&format!(
        "{}: volume of {} made, {} free, log of {}\n  contract: {}\n  label:    {}\n  uuid:     {}",
        image.display(),
        size::show(made.blocks * BLOCK_SIZE as u64),
        size::show(made.free_blocks * BLOCK_SIZE as u64),
        size::show(made.log_blocks * BLOCK_SIZE as u64),
        contract,
        if made.label.is_empty() {
            "(none)"
        } else {
            &made.label
        },
        text::uuid(&made.uuid),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what this version does not have, before anything is touched.
pub(crate) fn offered(kind: Kind, contract: Contract) -> Result<volume::Contract, Failure> {
    match (kind, contract) {
        (Kind::Block, Contract::Ordered) => Ok(volume::Contract::Ordered),
        (Kind::Block, Contract::MetadataPrefix) => Ok(volume::Contract::MetadataPrefix),
        (Kind::Block, Contract::Sync) => Ok(volume::Contract::Sync),
        (kind, _) => Err(Failure::new(format!(
            "volumes on '{}' are not available in this version, on 'block' they are; nothing was changed",
            name_of(&kind)
        ))),
    }
}

fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |v| v.get_name().to_owned())
}

/// The image, of the size asked for, exclusively locked, and free to be overwritten.
fn open(args: &Args, before: Option<&Metadata>) -> Result<Arc<FileDevice>, Failure> {
    let image = &args.image;
    let blocks = args.size.map(|bytes| bytes / BLOCK_SIZE as u64);
    if blocks == Some(0) {
        return Err(Failure::usage(format!(
            "--size: at least {BLOCK_SIZE} bytes are needed"
        )));
    }
    let Some(before) = before else {
        let Some(blocks) = blocks else {
            return Err(Failure::at(image, "does not exist; give --size to make it"));
        };
        return volume::create_device(image, blocks, false);
    };
    let is_disk = before.file_type().is_block_device();
    if is_disk && blocks.is_some() {
        return Err(Failure::usage(format!(
            "{} is a block device, whose size is fixed: leave out --size",
            image.display()
        )));
    }
    if !is_disk && blocks.is_none() && before.len() < BLOCK_SIZE as u64 {
        return Err(Failure::at(image, "is empty; give --size to set its size"));
    }
    let device = volume::open_device(image, Access::Change, None)?;
    if !args.force {
        may_overwrite(image, &device)?;
    }
    let Some(blocks) = blocks else {
        return Ok(device);
    };
    if device.geometry().blocks == blocks {
        return Ok(device);
    }
    drop(device);
    volume::create_device(image, blocks, true)
}

/// Whether an image holds nothing that would be lost.
fn may_overwrite(image: &Path, device: &Arc<FileDevice>) -> Result<(), Failure> {
    let what = match volume::held(device) {
        Held::Volume(what) => what,
        Held::Nothing if has_data(image, device)? => "data that is no Steadfast volume".to_owned(),
        Held::Nothing => return Ok(()),
    };
    Err(Failure::at(
        image,
        format!("holds {what}; use --force to overwrite it"),
    ))
}

/// Whether the first or last blocks hold anything but zeros.
fn has_data(image: &Path, device: &FileDevice) -> Result<bool, Failure> {
    let blocks = device.geometry().blocks;
    let count = LOOKED_AT.min(blocks);
    let mut buffer = vec![0u8; count as usize * BLOCK_SIZE];
    for at in [0, blocks - count] {
        device
            .read(BlockNo(at), &mut buffer)
            .map_err(|e| volume::device_failure(image, &e))?;
        if buffer.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
