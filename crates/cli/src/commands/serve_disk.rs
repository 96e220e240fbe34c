//! `steadfast serve disk`: serves the disk in a flash image, or that of a volume on an object store, until a signal
//! asks for the end: over NBD, by nbdkit with our plugin in it; or as a file in a directory of its own, through FUSE.
//!
//! Invariants: only one process has the image open, nbdkit or this one; when a signal asks for the end, or the
//! directory is unmounted, the disk is flushed and closed before this process ends, and the exit code says whether it
//! was. nbdkit ends with this process, however this one ends.

mod nbd;
#[cfg(feature = "store")]
mod store;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde::Serialize;
use steadfast_block::BlockDevice;
use steadfast_disk::{DISK_NAME, DiskFile, Full, Gone, Medium, ServedDisk, Settings};
use steadfast_flash::ImageError;
use steadfast_ftl::{Disk, DiskError};
use steadfast_fuse::{Ended, MountOptions};

use crate::commands::serve::{catch_signals, logger, serve, tell_service_manager};
use crate::failure::{Failure, notice};
use crate::{size, text};

/// Time to wait for an image that a server killed just now may still hold.
const IN_USE_PATIENCE: Duration = Duration::from_secs(3);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The explanation after the options, for `--help` and the manual.
const HELP: &str = "\
Over NBD, every client and every virtual machine has a disk of 4 KiB blocks that takes requests of any bytes. A flush by \
any client makes everything durable that was answered before it; a write with FUA is followed by a flush of the whole disk.

A crash returns the disk to its last flush. The writes between two flushes form an epoch, whose size 'steadfast ftl format \
--epoch' sets. Clients know nothing of epochs, so by default (--epoch-full flush) the disk flushes before a write that does not \
fit: a crash then returns to the last flush, or to a later moment when an epoch was full, with all writes in their order. With \
--epoch-full wait it is always the last flush: a write that does not fit waits for a flush by another client, and fails \
after 5 seconds (ENOSPC).

With --fuse DIR, the disk is the file 'disk' in that directory: losetup makes a block device of it, fsync flushes it, and a punched \
hole is a trim. Only the user who mounts it may use it.

The disk of a volume on an object store is served the same ways; it flushes by itself when 256 MiB were written without a flush. With \
-o cache=FILE,flush=cache a flush is durable on the cache device first; with -o cache=FILE alone, the cache keeps what was read.

NBD has no passwords. On an address that others can reach, use TLS; nbdkit takes -- --tls=require --tls-certificates=DIR.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(crate) struct Args {
    /// Serve over NBD at this Unix socket
    #[arg(long, value_name = "PATH", group = "place")]
    socket: Option<PathBuf>,
    /// Serve over NBD at this address and port [default: 127.0.0.1:10809]
    #[arg(long, value_name = "ADDRESS:PORT", group = "place")]
    listen: Option<SocketAddr>,
    /// Serve as the file 'disk' in this directory, which is mounted until the end
    #[arg(long, value_name = "DIR", group = "place")]
    fuse: Option<PathBuf>,
    /// When a write does not fit into the epoch: flush, wait, or wait:SECONDS
    #[arg(long, alias = "full", value_name = "ACTION", default_value = "flush")]
    epoch_full: Full,
    /// When the last client disconnects, do this with unflushed writes: keep, flush, or rollback
    #[arg(
        long,
        alias = "gone",
        value_name = "ACTION",
        default_value = "keep",
        conflicts_with = "fuse"
    )]
    on_disconnect: Gone,
    /// Refuse writes and leave the image unchanged; several servers may share it
    #[arg(long)]
    read_only: bool,
    /// Concurrent requests for each connection [default: nbdkit's]
    #[arg(long, value_name = "N", conflicts_with = "fuse", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// The plugin for nbdkit [default: found beside this program, or among nbdkit's own]
    #[arg(long, value_name = "FILE", conflicts_with = "fuse")]
    plugin: Option<PathBuf>,
    /// Print image, address and contract as a line of JSON
    #[arg(long)]
    json: bool,
    #[cfg(feature = "trial")]
    #[command(flatten)]
    trial: TrialArgs,
    /// Options of a volume on an object store, as for 'steadfast mount': take_over, store_timeout, endpoint,
    /// key_file, cache, flush, lag, lag_size, cache_size, discard_cache
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<String>,
    /// Flash image, made by 'steadfast ftl format'; or the URL of a volume on an object store
    image: PathBuf,
    /// Further options for nbdkit, such as filters or TLS
    #[arg(last = true, value_name = "NBDKIT-OPTION", conflicts_with = "fuse")]
    nbdkit: Vec<std::ffi::OsString>,
}

/// For tests of crashes.
#[cfg(feature = "trial")]
#[derive(Debug, clap::Args)]
struct TrialArgs {
    /// Record the answers to clients
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Cut the power of the flash memory on SIGUSR1
    #[arg(long, value_name = "SEED")]
    cut: Option<u64>,
    /// Plant a fault
    #[arg(long, value_name = "FAULT")]
    fault: Option<steadfast_disk::Fault>,
    /// Serve nothing; print whether the image holds what a record promises
    #[arg(long, value_name = "RECORD")]
    judge: Option<PathBuf>,
}

/// The served disk and its addresses.
#[derive(Serialize)]
struct Announced {
    image: PathBuf,
    /// Over NBD.
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    /// Through FUSE.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    bytes: u64,
    contract: &'static str,
    epoch_bytes: u64,
    full: String,
    read_only: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(url) = crate::volume::store::url(&args.image) {
        #[cfg(feature = "store")]
        return store::run(args, &url);
        #[cfg(not(feature = "store"))]
        return Err(crate::volume::store::refusal(&url));
    }
    if !args.options.is_empty() {
        return Err(Failure::usage(
            "-o: these options are for the URL of a volume on an object store",
        ));
    }
    let image = args.image.canonicalize().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => absent(&args.image),
        _ => Failure::at(&args.image, e),
    })?;
    if let Some(line) = crate::private::warning(&image, "every sector of the disk") {
        notice(&line);
    }
    #[cfg(feature = "trial")]
    if let Some(record) = &args.trial.judge {
        return judge(record, &image);
    }
    let settings = Settings {
        image: Some(image.clone()),
        full: args.epoch_full,
        gone: args.on_disconnect,
        read_only: args.read_only,
        #[cfg(feature = "trial")]
        trial: steadfast_disk::TrialOptions {
            record: args.trial.record.clone(),
            cut: args.trial.cut,
            fault: args.trial.fault,
        },
        ..Settings::default()
    };
    match &args.fuse {
        Some(dir) => run_fuse(args, &image, dir, &settings),
        None => run_nbd(args, &image, settings),
    }
}

/// Prints one word (`flushed`, `flushing`, `later` or `wrong`) and a number.
#[cfg(feature = "trial")]
fn judge(record: &Path, image: &Path) -> Result<ExitCode, Failure> {
    use crate::failure::Code;
    use steadfast_disk::Verdict;

    let verdict = steadfast_disk::verify(record, image);
    let verdict = verdict.map_err(|e| Failure::at(image, e).with_code(Code::Usage))?;
    let (word, number, code) = match verdict {
        Verdict::LastFlush => ("flushed", 0, ExitCode::SUCCESS),
        Verdict::FlushUnderWay => ("flushing", 0, ExitCode::SUCCESS),
        Verdict::Later(requests) => ("later", requests, ExitCode::SUCCESS),
        Verdict::Wrong(blocks) => ("wrong", blocks, Code::Failed.into()),
    };
    text::print(&format!("{word} {number}"))?;
    Ok(code)
}

/// The address for clients.
fn place(args: &Args) -> Result<nbd::Place, Failure> {
    match (&args.socket, args.listen) {
        (Some(path), _) => nbd::Place::socket(path),
        (None, Some(address)) if address.port() == 0 => Err(Failure::usage(format!(
            "--listen {address}: name a port, or serve at a Unix socket (--socket)"
        ))),
        (None, Some(address)) => Ok(nbd::Place::Address(address)),
        (None, None) => Ok(nbd::Place::Address(nbd::DEFAULT)),
    }
}

fn run_nbd(args: &Args, image: &Path, settings: Settings) -> Result<ExitCode, Failure> {
    // Opened here, so that an error is reported in our words, before nbdkit starts.
    let disk = patiently(image, || Disk::open_read_only(image))?;
    let announced = |place: &nbd::Place| Announced {
        image: args.image.clone(),
        uri: Some(place.uri()),
        file: None,
        bytes: disk.geometry().blocks * steadfast_block::BLOCK_SIZE as u64,
        contract: "snapshot",
        epoch_bytes: Medium::epoch_blocks(&disk) * steadfast_block::BLOCK_SIZE as u64,
        full: settings.full.to_string(),
        read_only: settings.read_only,
    };
    let place = place(args)?;
    let announced = announced(&place);
    drop(disk);
    let options = nbd::Options {
        plugin: args.plugin.as_deref(),
        threads: args.threads,
        more: &args.nbdkit,
    };
    nbd::serve(image, &place, settings, &options, |_| {
        announce(&announced, args.json, &place.clients())
    })
}

fn run_fuse(
    args: &Args,
    image: &Path,
    dir: &Path,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let dir =
        steadfast_fuse::check_mount_point(dir, false).map_err(|e| Failure::new(e.to_string()))?;
    let medium = patiently(image, || settings.open())?;
    serve_fuse(args, image, &dir, medium, settings.full)
}

/// Serves a medium as a file, and closes it.
fn serve_fuse(
    args: &Args,
    image: &Path,
    dir: &Path,
    medium: Arc<dyn Medium>,
    full: Full,
) -> Result<ExitCode, Failure> {
    // From here on a signal must not cut the closing short.
    let (tell, told) = channel();
    let signals = catch_signals(tell.clone())?;
    let served = Arc::new(ServedDisk::new(medium));
    let file = Arc::new(DiskFile::new(Arc::clone(&served)));
    let mut options = MountOptions::new(image).subtype(steadfast_fuse::mountinfo::SUBTYPE);
    options.read_only = args.read_only;
    options.log = Some(logger(image));
    let session = steadfast_fuse::mount(file, dir, &options);
    let session = session.map_err(|e| Failure::new(e.to_string()))?;
    let path = session.mount_point().join(DISK_NAME);
    let announced = Announced {
        image: args.image.clone(),
        uri: None,
        file: Some(path.clone()),
        bytes: served.bytes(),
        contract: "snapshot",
        epoch_bytes: served.epoch_bytes(),
        full: full.to_string(),
        read_only: args.read_only,
    };
    let shown = path.display();
    let lines = [
        format!("losetup --find --show {shown}"),
        format!("mkfs.ext4 {shown}"),
    ];
    let told_all = announce(&announced, args.json, &lines);
    let ended = match &told_all {
        Ok(()) => serve(session, tell, &told),
        // The process that asked for it is gone: no user would know of it.
        Err(_) => session.shutdown(Duration::ZERO),
    };
    signals.close();
    close(image, &served, &ended)?;
    told_all.map(|()| ExitCode::SUCCESS)
}

/// Opens an image, which a server killed just now may still hold.
fn patiently<T>(image: &Path, open: impl Fn() -> Result<T, DiskError>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(DiskError::InUse { .. }) if begun.elapsed() < IN_USE_PATIENCE => {
                std::thread::sleep(LOOK_AGAIN_AFTER);
            }
            opened => return opened.map_err(|e| failure(image, e)),
        }
    }
}

/// The last flush. After a panic in a request nothing is committed.
fn close(image: &Path, served: &ServedDisk, ended: &Ended) -> Result<(), Failure> {
    if let Ended::Failed(said) = ended {
        let why = format!(
            "a request failed inside the server ({said}); the disk was not closed, a crash returned it to its last flush"
        );
        return Err(Failure::at(image, why));
    }
    if !served.read_only() {
        served.flush().map_err(|e| not_flushed(image, e))?;
        served.finish();
    }
    match ended {
        Ended::Broken(said) => Err(Failure::at(
            image,
            format!("the kernel's connection broke: {said}; the disk was closed cleanly"),
        )),
        _ => Ok(()),
    }
}

fn not_flushed(image: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::at(
        image,
        format!("the last flush failed: {why}; the disk is as it was at the one before"),
    )
}

fn absent(image: &Path) -> Failure {
    Failure::at(
        image,
        "does not exist; check the name, or make it with 'steadfast ftl format --size SIZE IMAGE'",
    )
}

/// The error of an image, with advice.
fn failure(image: &Path, error: DiskError) -> Failure {
    match &error {
        DiskError::Image(ImageError::NotAnImage { .. }) => Failure::new(format!(
            "{error}; make one with 'steadfast ftl format', or serve a plain file or block device with 'nbdkit file'"
        )),
        _ => crate::commands::ftl::failure(image, error),
    }
}

/// Reports that clients can connect, and how.
fn announce(announced: &Announced, json: bool, clients: &[String]) -> Result<(), Failure> {
    if json {
        text::print_json_line(announced)?;
    } else {
        let file = announced.file.as_ref().map(|f| f.display().to_string());
        let place = announced.uri.clone().or(file).unwrap_or_default();
        let later = match announced.full == Full::Flush.to_string() && !announced.read_only {
            true => ", or to a later moment when an epoch was full",
            false => "",
        };
        let mut lines = vec![
            format!(
                "{}: disk of {} served at {place}",
                announced.image.display(),
                size::show(announced.bytes)
            ),
            format!(
                "  a crash returns it to its last flush{later}; at most {} from one flush to the next",
                size::show(announced.epoch_bytes)
            ),
        ];
        lines.extend(clients.iter().map(|line| format!("  {line}")));
        text::print(&lines.join("\n"))?;
    }
    if announced.read_only {
        notice("the disk is served read-only: the image is not changed");
    }
    tell_service_manager();
    Ok(())
}
