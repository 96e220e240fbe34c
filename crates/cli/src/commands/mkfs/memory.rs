//! `steadfast mkfs --on pm`: a volume in persistent memory.
//!
//! An existing file is only overwritten if it is empty, one hole, or all zeros, or with `--force`; a DAX device if nothing is
//! found in it, as in a block device.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use super::Args;
use crate::content;
use crate::failure::{Failure, Kind as Why};
use crate::features::Feature;
use crate::progress::Meter;
use crate::volume::{self, Access, Contract, Device, Held};
use crate::{size, text};

pub(super) fn run(args: &Args, image: &Path) -> Result<ExitCode, Failure> {
    Feature::Pm.require("mkfs --on pm")?;
    check(args)?;
    let metadata = std::fs::metadata(image).ok();
    let is_device = (metadata.as_ref()).is_some_and(|it| it.file_type().is_char_device());
    let there = is_device || metadata.is_some_and(|metadata| metadata.len() > 0);
    let device = if is_device {
        reuse_device(args, image)?
    } else if there {
        reuse(args, image)?
    } else {
        let Some(bytes) = args.size else {
            let why = "does not exist, or is empty; give --size to make it";
            return Err(Failure::at(image, why));
        };
        volume::create_memory(image, bytes, false)?
    };
    super::restrict(image);
    let meter = Meter::new(args.progress);
    let made = volume::make_in_memory(
        image,
        &device,
        &args.label,
        args.bytes_per_inode,
        &mut |done, total| meter.show("writing tables", done, total),
    );
    drop(meter);
    drop(device);
    let made = made.inspect_err(|_| {
        if !there {
            // Our own file, which holds no volume: best effort.
            let _ = std::fs::remove_file(image);
        }
    })?;
    text::print(&format!(
        "{}: volume of {} in persistent memory made, {} free, {} inodes\n  contract: {}\n  label:    {}\n  uuid:     {}",
        image.display(),
        size::show(made.bytes),
        size::show(made.free_bytes),
        made.inodes,
        Contract::Sync,
        if made.label.is_empty() {
            "(none)"
        } else {
            &made.label
        },
        text::uuid(&made.uuid),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses options that this kind of medium does not have.
fn check(args: &Args) -> Result<(), Failure> {
    if args
        .contract
        .is_some_and(|contract| contract != Contract::Sync)
    {
        return Err(Failure::usage(
            "--contract: volumes in persistent memory have the contract 'sync' alone: each call is durable when it returns",
        ));
    }
    if args.log_size.is_some() {
        return Err(Failure::usage(
            "--log-size: volumes in persistent memory have no log",
        ));
    }
    Ok(())
}

/// An image that is there, of the size asked for, if it may be overwritten.
fn reuse(args: &Args, image: &Path) -> Result<Device, Failure> {
    if !args.force {
        let held = match volume::is_memory(image) {
            true => match volume::held(&volume::open_device(image, Access::Look, None)?) {
                Held::Volume(what) => Some(what),
                Held::Nothing => None,
            },
            false => {
                let meter = Meter::new(args.progress);
                content::held_by_file(image, &mut |done, total| {
                    meter.show("looking for data", done, total);
                })
                .map_err(|e| Failure::at(image, e))?
            }
        };
        refuse(image, held)?;
    }
    match args.size {
        Some(bytes) => volume::create_memory(image, bytes, true),
        None => volume::open_memory(image),
    }
}

/// A DAX device, used whole, if it may be overwritten.
fn reuse_device(args: &Args, image: &Path) -> Result<Device, Failure> {
    if args.size.is_some() {
        return Err(Failure::usage(format!(
            "{} is a device, whose size is fixed: leave out --size",
            image.display()
        )));
    }
    let device = volume::open_memory(image)?;
    if let (false, Device::Memory(region)) = (args.force, &device) {
        let held = match volume::held(&device) {
            Held::Volume(what) => Some(what),
            Held::Nothing => {
                let meter = Meter::new(args.progress);
                content::held_by_region(region, &mut |done, total| {
                    meter.show("looking for data", done, total);
                })
                .map_err(|e| Failure::at(image, e))?
            }
        };
        refuse(image, held)?;
    }
    Ok(device)
}

/// Refuses to overwrite what an image holds.
fn refuse(image: &Path, held: Option<String>) -> Result<(), Failure> {
    let Some(what) = held else { return Ok(()) };
    let failure = Failure::at(image, format!("holds {what}; use --force to overwrite it"));
    Err(failure.of_kind(Why::HoldsData))
}
