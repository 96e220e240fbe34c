//! `steadfast mkfs --on URL`: a volume on an object store.
//!
//! The store is tried first. One that breaks a rule, or lets several writers win a race, is refused.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use steadfast_block::{BLOCK_SIZE, BlockDevice};
use steadfast_store::{
    Compression, CreateOptions, Features, OpenOptions, ProbeOptions, create_with, exists,
};

use super::{Args, show};
use crate::commands::store::{self as command, refusal};
use crate::failure::{Failure, Kind as Why};
use crate::progress::Meter;
use crate::size;
use crate::volume::{self, Access, Log, store};

/// When a flush is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flush {
    /// When the store has acknowledged it: what a flush acknowledged survives the loss of the machine; after any crash the disk
    /// is a flush that includes it
    Store,
    /// When it is durable on the cache device that a mount names ('-o cache=FILE,flush=cache'). If process or power
    /// fails, the disk is exactly the last flush. If machine or cache is lost, or another machine takes over, the
    /// disk is exactly some earlier flush, at most 'lag' behind. A mount without a cache keeps the promise of 'store'
    Cache,
}

/// Compression of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    /// Not at all
    None,
    /// Zstandard, at level 1; data that does not shrink stays as it is
    Zstd,
}

/// Encoding of objects.
#[derive(Debug, clap::Args)]
pub(crate) struct Coding {
    /// On an object store: compress all data
    #[arg(long, value_enum, value_name = "METHOD", default_value = "none")]
    compress: Compress,
    /// On an object store: encrypt all data (AES-256-GCM), with a key that the key file wraps
    #[arg(long)]
    encrypt: bool,
    /// With --encrypt: a file with 32 random bytes or more (by default STEADFAST_KEY_FILE). Without the file no
    /// program can read the volume: keep a copy elsewhere
    #[arg(long, value_name = "FILE", requires = "encrypt")]
    key_file: Option<PathBuf>,
    /// On an object store: size of the unit that is read, compressed and encrypted, 4K to 256K [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    unit: Option<u64>,
}

impl Coding {
    /// Whether one of the options for object stores is given.
    pub(super) fn is_given(&self) -> bool {
        self.compress != Compress::None || self.encrypt || self.unit.is_some()
    }

    fn options(&self, flush: Flush) -> Result<CreateOptions, Failure> {
        let unit_blocks = match self.unit {
            None => None,
            Some(bytes) => Some(
                u16::try_from(bytes / BLOCK_SIZE as u64)
                    .ok()
                    .filter(|blocks| Features::UNITS.contains(blocks))
                    .filter(|_| bytes.is_multiple_of(BLOCK_SIZE as u64))
                    .ok_or_else(|| {
                        Failure::usage("--unit: a multiple of 4K from 4K to 256K is needed")
                    })?,
            ),
        };
        let key = match self.encrypt {
            false => None,
            true => Some(store::key_file_of(self.key_file.as_deref())?.ok_or_else(|| {
                Failure::usage(
                    "--encrypt needs a key file: 'head -c 32 /dev/urandom > FILE' makes one; then give '--key-file FILE'",
                )
            })?),
        };
        Ok(CreateOptions {
            compression: (self.compress == Compress::Zstd).then_some(Compression::Zstd),
            key,
            unit_blocks,
            flush_cache: flush == Flush::Cache,
        })
    }
}

pub(super) fn run(args: &Args, image: &Path, url: &store::Url) -> Result<ExitCode, Failure> {
    if url.snapshot.is_some() {
        return Err(Failure::usage(
            "'@' names a snapshot; a new volume has none",
        ));
    }
    let Some(bytes) = args.size else {
        return Err(Failure::usage("--size is missing: a store has no size"));
    };
    if args.log_size.is_some() || args.bytes_per_inode.is_some() {
        return Err(Failure::usage(
            "--log-size and --bytes-per-inode are for other media: a volume on an object store has no log, and makes inodes as \
             they are needed",
        ));
    }
    if args.force {
        return Err(Failure::usage(
            "--force does not overwrite a volume on an object store: choose another prefix, or delete its objects first",
        ));
    }
    let coding = args.coding.options(args.flush)?;
    let blocks = bytes / BLOCK_SIZE as u64;
    let endpoint = args.endpoint.as_deref();
    let place = store::location(&url.url, endpoint)?;
    check_prefix(&url.url, endpoint)?;
    let meter = Meter::new(args.progress);
    let places = std::slice::from_ref(&place);
    let options = ProbeOptions::default();
    let report = steadfast_store::probe(places, options, &mut |done, total| {
        meter.show("trying the store, races", done, total);
    });
    let report = report.map_err(|e| Failure::new(e.to_string()))?;
    if !report.is_good() {
        return Err(refusal(&url.url, &report));
    }
    command::notes(&report);
    create_with(place, blocks, &coding, store::PATIENCE).map_err(store::failure)?;
    let wishes = store::StoreSettings {
        endpoint: args.endpoint.clone(),
        key_file: args.coding.key_file.clone(),
        ..store::StoreSettings::default()
    };
    let mut options: OpenOptions = store::options(&wishes)?;
    // A key file in the environment has no effect on a volume without encryption.
    options.access.key = coding.key;
    let device = store::open_disk(url, Access::Change, &options)?;
    let contract = args.contract.unwrap_or_default();
    let made = volume::make(
        &device,
        &args.label,
        contract,
        Log::None,
        &mut |done, total| {
            meter.show("writing bitmaps", done, total);
        },
    );
    drop(meter);
    let made = made.map_err(|why| Failure::at(image, why.message))?;
    device.finish();
    show(image, &made, contract)
}

/// A volume must not lie inside another one.
fn check_prefix(url: &str, endpoint: Option<&str>) -> Result<(), Failure> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    // A directory above may be anything: only the directory itself is checked.
    if scheme == "file" {
        return look(url, endpoint);
    }
    let mut prefix = rest;
    loop {
        look(&format!("{scheme}://{prefix}"), endpoint)?;
        match prefix.rsplit_once('/') {
            Some((above, _)) => prefix = above,
            None => return Ok(()),
        }
    }
}

fn look(url: &str, endpoint: Option<&str>) -> Result<(), Failure> {
    let place = store::location(url, endpoint)?;
    if exists(&place, store::PATIENCE).map_err(store::failure)? {
        let why = format!(
            "{url}: a volume is there already; choose another prefix, which is not inside of it, or delete its objects first"
        );
        return Err(Failure::new(why).of_kind(Why::HoldsData));
    }
    Ok(())
}
