//! The bare disk of a volume on an object store: as a file, or over NBD.

use std::process::ExitCode;
use std::sync::Arc;

use steadfast_block::BLOCK_SIZE;
use steadfast_disk::{Full, OpenError, Settings, StoreError};

use super::{Announced, Args, announce, nbd, serve_fuse};
use crate::failure::{Failure, notice};
use crate::mount_options;
use crate::size;
use crate::volume::store::{self, StoreSettings};

/// The options of `mount` for opening a volume on an object store.
const OPTIONS: [&str; 10] = [
    "take_over",
    "store_timeout",
    "endpoint",
    "key_file",
    "cache",
    "flush",
    "lag",
    "lag_size",
    "cache_size",
    "discard_cache",
];

/// The settings of the words after `-o`.
fn wishes(arguments: &[String]) -> Result<StoreSettings, Failure> {
    let words = arguments.iter().flat_map(|argument| argument.split(','));
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if !OPTIONS.contains(&name) {
            return Err(Failure::usage(format!(
                "unknown option '{name}'; known are: {}",
                OPTIONS.join(", ")
            )));
        }
        if name == "cache" && !value.contains('/') {
            return Err(Failure::usage(
                "the option 'cache' takes a path here: 'cache=/dev/nvme0n1p3', 'cache=./FILE'",
            ));
        }
    }
    let options = mount_options::parse(arguments).map_err(Failure::usage)?;
    store::check(&options.store)?;
    Ok(options.store)
}

/// The same for the server.
fn settings(args: &Args, wishes: &StoreSettings) -> Settings {
    Settings {
        image: Some(args.image.clone()),
        full: args.epoch_full,
        gone: args.on_disconnect,
        read_only: args.read_only,
        store: steadfast_disk::StoreSettings {
            take_over: wishes.take_over,
            timeout: wishes.timeout,
            endpoint: wishes.endpoint.clone(),
            key_file: (wishes.key_file.clone()).or_else(store::key_file_variable),
            cache: wishes.cache.clone(),
            flush_cache: wishes.flush_cache,
            lag: wishes.lag,
            lag_bytes: wishes.lag_bytes,
            cache_size: wishes.cache_size,
            discard_cache: wishes.discard_cache,
        },
        ..Settings::default()
    }
}

fn failure(error: OpenError) -> Failure {
    match error {
        OpenError::Store(StoreError::Open(error)) => store::failure(error),
        error => Failure::new(error.to_string()),
    }
}

pub(super) fn run(args: &Args, url: &store::Url) -> Result<ExitCode, Failure> {
    if args.epoch_full != Full::Flush {
        return Err(Failure::usage(
            "--epoch-full: the disk of a volume on an object store flushes when its epoch is full, after 256 MiB without a flush",
        ));
    }
    #[cfg(feature = "trial")]
    if args.trial.record.is_some() || args.trial.cut.is_some() || args.trial.fault.is_some() {
        return Err(Failure::usage("trials are for flash images"));
    }
    if url.snapshot.is_some() && !args.read_only {
        return Err(Failure::usage(format!(
            "{}: a snapshot can only be looked at (--read-only)",
            args.image.display()
        )));
    }
    store::check_reachable(&url.url)?;
    let wishes = wishes(&args.options)?;
    let settings = settings(args, &wishes);
    let dir = match &args.fuse {
        Some(dir) => Some(
            steadfast_fuse::check_mount_point(dir, false)
                .map_err(|e| Failure::new(e.to_string()))?,
        ),
        None => None,
    };
    if !args.read_only {
        store::try_store(url, &wishes)?;
    }
    let Some(dir) = dir else {
        return run_nbd(args, url, settings, &wishes);
    };
    let disk = (settings
        .store
        .open(&args.image.to_string_lossy(), args.read_only))
    .map_err(|error| failure(error.into()))?;
    let (flushes, bytes) = disk.behind();
    if flushes > 0 {
        notice(&format!(
            "{}: the cache has {flushes} flushes ({}) that the store lacks; they are sent now",
            url.url,
            size::show(bytes)
        ));
    }
    serve_fuse(args, &args.image, &dir, Arc::new(disk), args.epoch_full)
}

/// Over NBD. nbdkit's process opens the volume; errors are found here, before it starts.
fn run_nbd(
    args: &Args,
    url: &store::Url,
    settings: Settings,
    wishes: &StoreSettings,
) -> Result<ExitCode, Failure> {
    let options = store::options(wishes)?;
    let found = store::find(&url.url, &options.access)?;
    let blocks = found.state().map_err(store::failure)?.blocks;
    let place = super::place(args)?;
    let (full, read_only) = (settings.full.to_string(), settings.read_only);
    let announced = |epoch_bytes: u64| Announced {
        image: args.image.clone(),
        uri: Some(place.uri()),
        file: None,
        bytes: blocks * BLOCK_SIZE as u64,
        contract: "snapshot",
        epoch_bytes,
        full: full.clone(),
        read_only,
    };
    let options = nbd::Options {
        plugin: args.plugin.as_deref(),
        threads: args.threads,
        more: &args.nbdkit,
    };
    nbd::serve(&args.image, &place, settings, &options, |epoch_bytes| {
        announce(&announced(epoch_bytes), args.json, &place.clients())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_of_a_store_are_taken_and_those_of_a_file_system_refused() {
        let parse = |text: &str| wishes(&[text.to_owned()]).map_err(|failure| failure.message);
        let taken = parse("cache=./c,flush=cache,lag=2s,take_over").unwrap();
        assert!(taken.take_over && taken.flush_cache && taken.cache.is_some());
        for (text, why) in [
            ("commit=5", "unknown option 'commit'"),
            ("follow=2", "unknown option 'follow'"),
            ("cache=64M", "takes a path"),
            ("flush=cache", "needs a cache"),
            ("lag=5s", "need 'cache=FILE,flush=cache'"),
            ("flush=disk", "neither"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
