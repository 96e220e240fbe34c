//! `steadfast mkfs --on URL`: a volume on an object store.
//!
//! The store is tried first. One that breaks a rule, or lets several writers win a race, is refused.

use std::path::Path;
use std::process::ExitCode;

use steadfast_block::{BLOCK_SIZE, BlockDevice};
use steadfast_store::{
    Compression, CreateOptions, Features, OpenOptions, ProbeOptions, create_with, exists,
};

use super::coding::{Coding, Compress, Flush};
use super::{Args, show};
use crate::commands::store::{self as command, refusal};
use crate::failure::{Failure, Kind as Why};
use crate::progress::Meter;
use crate::volume::{self, Access, Log, store};

impl Coding {
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
