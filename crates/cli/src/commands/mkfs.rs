//! `steadfast mkfs`: makes a volume.
//!
//! All checks come before the first change. Content that is on the image (`content`) is overwritten only with
//! `--force`; an image in use never is.

mod coding;
#[cfg(feature = "flash")]
mod flash;
#[cfg(not(feature = "flash"))]
#[path = "mkfs/without_flash.rs"]
mod flash;
mod memory;
#[cfg(feature = "store")]
mod store;

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use steadfast_block::BLOCK_SIZE;

use crate::failure::{Failure, Kind as Why, notice};
use crate::progress::Meter;
use crate::volume::{self, Access, Contract, Held, Log};
use crate::{content, private, size, text};

/// Reads the name of a contract; help shows what each keeps.
pub(crate) fn contract_parser() -> impl TypedValueParser<Value = Contract> {
    let shown = |contract: Contract| PossibleValue::new(contract.name()).help(contract.about());
    PossibleValuesParser::new(Contract::ALL.map(shown))
        .try_map(|name| Contract::from_name(&name).ok_or("no such contract"))
}

/// Kind of medium of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// An image file or a block device
    Block,
    /// Raw flash, through the translation layer
    Flash,
    /// Persistent memory: a DAX device, a file on such a file system, or a file on tmpfs
    Pm,
    /// An object store: the URL alone says so
    #[value(skip)]
    Store,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the image, such as 512M or 1G; makes the file if there is none
    #[arg(long, value_parser = size::parse)]
    size: Option<u64>,
    /// What a crash may lose (default: ordered; in persistent memory sync, the only one there)
    #[arg(long, value_parser = contract_parser())]
    contract: Option<Contract>,
    /// The kind of medium; the image may follow it, as in flash:IMAGE. For an object store, its URL: s3://BUCKET/PREFIX, or
    /// file:///DIRECTORY
    #[arg(long, value_name = "KIND[:IMAGE]|URL", value_parser = OnParser, default_value = "block")]
    on: On,
    /// A name for the volume, at most 64 bytes
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Size of the log (default: a sixteenth of the volume, at most 64 MiB). Flash has no log: there this is the
    /// maximum size of an epoch, the writes from one flush to the next, at least 8M
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    log_size: Option<u64>,
    /// In persistent memory: bytes of the volume for each inode (default: 16K); fewer bytes make room for more files
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    bytes_per_inode: Option<u64>,
    /// Overwrite existing content. Without it, a file must be empty or hold only zeros; so must the first and last
    /// MiB of a block device, and 4096 places between them
    #[arg(long, short = 'f')]
    force: bool,
    /// On an object store: when a flush is durable. 'store': when the store has acknowledged it
    #[arg(long, value_enum, value_name = "WHERE", default_value = "store")]
    flush: coding::Flush,
    /// On an object store: the address of a server that speaks its protocol (by default AWS_ENDPOINT_URL,
    /// AZURE_STORAGE_ENDPOINT or GOOGLE_BASE_URL)
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    #[command(flatten)]
    coding: coding::Coding,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Image file or block device, or the URL of a volume on an object store
    #[arg(required_unless_present = "on")]
    image: Option<PathBuf>,
}

/// Kind of medium, perhaps with the image.
#[derive(Clone, Debug)]
pub(crate) struct On {
    kind: Kind,
    image: Option<PathBuf>,
}

/// Reads `KIND` and `KIND:IMAGE`.
#[derive(Clone)]
struct OnParser;

impl TypedValueParser for OnParser {
    type Value = On;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<On, clap::Error> {
        if volume::store::url(Path::new(value)).is_some() {
            return Ok(On {
                kind: Kind::Store,
                image: Some(PathBuf::from(value)),
            });
        }
        let bytes = value.as_bytes();
        let (kind, image) = match bytes.iter().position(|byte| *byte == b':') {
            Some(colon) => (&bytes[..colon], Some(&bytes[colon + 1..])),
            None => (bytes, None),
        };
        let kind =
            EnumValueParser::<Kind>::new().parse_ref(command, arg, OsStr::from_bytes(kind))?;
        let image = image.map(|image| PathBuf::from(OsStr::from_bytes(image)));
        Ok(On { kind, image })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let kinds = Kind::value_variants().iter();
        Some(Box::new(kinds.filter_map(ValueEnum::to_possible_value)))
    }
}

impl Args {
    /// The image, which must be named once.
    fn image(&self) -> Result<&Path, Failure> {
        match (&self.on.image, &self.image) {
            (Some(image), None) | (None, Some(image)) => Ok(image),
            (Some(_), Some(_)) => Err(Failure::usage(
                "the image is named twice: after the kind of medium, and at the end",
            )),
            (None, None) => Err(Failure::usage("the image is missing")),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let image = args.image()?;
    if let Some(url) = volume::store::url(image) {
        #[cfg(feature = "store")]
        return store::run(args, image, &url);
        #[cfg(not(feature = "store"))]
        return Err(volume::store::refusal(&url));
    }
    if args.coding.is_given() {
        return Err(Failure::usage(
            "--compress, --encrypt and --unit are for volumes on an object store ('--on s3://BUCKET/PREFIX')",
        ));
    }
    if args.on.kind != Kind::Pm && args.bytes_per_inode.is_some() {
        return Err(Failure::usage(
            "--bytes-per-inode is for '--on pm': volumes on blocks make inodes as they are needed",
        ));
    }
    let contract = args.contract.unwrap_or_default();
    let before = match std::fs::metadata(image) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Failure::at(image, e)),
    };
    let (device, log) = match args.on.kind {
        Kind::Flash => (flash::open(args, image, before.as_ref())?, Log::None),
        Kind::Block => {
            let log = args.log_size.map(|bytes| bytes / BLOCK_SIZE as u64);
            let device = open(args, image, before.as_ref())?;
            (device, log.map_or(Log::Usual, Log::Blocks))
        }
        Kind::Pm => return memory::run(args, image),
        Kind::Store => return Err(Failure::usage("the URL is missing")),
    };
    restrict(image);
    let meter = Meter::new(args.progress);
    let made = volume::make(
        &**device.block(image)?,
        &args.label,
        contract,
        log,
        &mut |done, total| {
            meter.show("writing log and bitmaps", done, total);
        },
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
    show(image, &made, contract)
}

/// Before the first file of the volume: no other user may read them in the image.
fn restrict(image: &Path) {
    if let Some(line) = private::restrict(image) {
        notice(&format!("{}: {line}", image.display()));
    }
}

/// Says what was made.
fn show(image: &Path, made: &volume::Made, contract: Contract) -> Result<ExitCode, Failure> {
    text::print(&format!(
        "{}: volume of {} made, {} free, {}\n  contract: {}\n  label:    {}\n  uuid:     {}",
        image.display(),
        size::show(made.blocks * BLOCK_SIZE as u64),
        size::show(made.free_blocks * BLOCK_SIZE as u64),
        match made.log_blocks {
            0 => "no log".to_owned(),
            blocks => format!("log of {}", size::show(blocks * BLOCK_SIZE as u64)),
        },
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

/// The image, of the size asked for, exclusively locked, and free to be overwritten.
fn open(args: &Args, image: &Path, before: Option<&Metadata>) -> Result<volume::Device, Failure> {
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
    if volume::flash::is_image(image).unwrap_or(false) {
        return Err(Failure::at(
            image,
            "holds a disk in flash memory; make the volume with '--on flash', or remove the image first",
        ));
    }
    let device = volume::open_device(image, Access::Change, None)?;
    if !args.force {
        may_overwrite(args, image, &device)?;
    }
    let Some(blocks) = blocks else {
        return Ok(device);
    };
    if device.bytes() / BLOCK_SIZE as u64 == blocks {
        return Ok(device);
    }
    drop(device);
    volume::create_device(image, blocks, true)
}

/// Whether an image, which is open and locked as `device`, holds nothing that would be lost.
fn may_overwrite(args: &Args, image: &Path, device: &volume::Device) -> Result<(), Failure> {
    let what = match volume::held(device) {
        Held::Volume(what) => what,
        Held::Nothing => {
            let meter = Meter::new(args.progress);
            let mut show = |done, total| meter.show("looking for data", done, total);
            let held = match args.on.kind {
                // The page cache has a file whole, to its last byte; the device ends with a whole block.
                Kind::Block | Kind::Pm | Kind::Store => {
                    content::held_by_file(image, &mut show).map_err(|e| Failure::at(image, e))
                }
                Kind::Flash => content::held_by_disk(&**device.block(image)?, &mut show)
                    .map_err(|e| volume::device_failure(image, &e)),
            };
            match held? {
                Some(what) => what,
                None => return Ok(()),
            }
        }
    };
    let failure = Failure::at(image, format!("holds {what}; use --force to overwrite it"));
    Err(failure.of_kind(Why::HoldsData))
}
