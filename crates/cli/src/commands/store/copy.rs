//! `steadfast store copy`: moves the files of a volume to another medium.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::failure::{Failure, Kind, notice};
use crate::mount_options::Options;
use crate::progress::Meter;
use crate::volume::{self, Access, Device, Volume, copy, store};
use crate::{size, text};

/// Copies all files of a volume with their owners, permissions, times, extended attributes, ACLs, flags, holes and
/// hard links into an empty volume. 'steadfast mkfs' makes that volume, with the wanted size, contract, compression
/// and encryption. Each of the two lies on an image file, a device, a flash image, in persistent memory, or on an
/// object store. FROM must not be mounted, unless it lies on an object store: then its last acknowledged flush is
/// copied; URL@SNAPSHOT copies a snapshot. The copy has other inode numbers, and so other NFS file handles. An
/// interrupted copy leaves the file '.steadfast-copy-incomplete' in the root of TO: make TO again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address of a server that speaks the protocol of FROM's store (by default AWS_ENDPOINT_URL,
    /// AZURE_STORAGE_ENDPOINT or GOOGLE_BASE_URL)
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The same for TO's store (by default that of FROM)
    #[arg(long, value_name = "URL")]
    to_endpoint: Option<String>,
    /// The key file of FROM, if it is encrypted (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The key file of TO, if it is encrypted (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    to_key_file: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The volume
    #[arg(value_name = "FROM")]
    from: PathBuf,
    /// The empty volume
    #[arg(value_name = "TO")]
    to: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wishes = |endpoint: Option<&String>, key: &Option<PathBuf>| store::StoreSettings {
        endpoint: endpoint.cloned(),
        key_file: key.clone(),
        ..store::StoreSettings::default()
    };
    let to_endpoint = args.to_endpoint.as_ref().or(args.endpoint.as_ref());
    let from = open(
        &args.from,
        Access::Look,
        &wishes(args.endpoint.as_ref(), &args.key_file),
    )?;
    let to = open(
        &args.to,
        Access::Change,
        &wishes(to_endpoint, &args.to_key_file),
    )?;
    let (source, target) = (from.file_system(), to.file_system());
    let failed = |image: &Path, e: steadfast_vfs::Error| Failure::at(image, e);
    let copied = match copy::is_empty(&*target).map_err(|e| failed(&args.to, e))? {
        false => Err(Failure::at(
            &args.to,
            "holds files: 'steadfast mkfs' makes an empty volume to copy to",
        )
        .of_kind(Kind::HoldsData)),
        true => {
            let state = source.statfs().map_err(|e| failed(&args.from, e))?;
            let total = state.inodes.saturating_sub(state.inodes_free);
            let meter = Meter::new(args.progress);
            let copied = copy::copy(&*source, &*target, &mut |done| {
                meter.show("copying files", done, total.max(done));
            });
            copied.map_err(|e| {
                Failure::at(
                    &args.to,
                    format!("the copy is incomplete, make the volume again: {e}"),
                )
            })
        }
    };
    drop((source, target));
    let closed = to.close();
    from.close()?;
    let copied = copied?;
    for message in closed? {
        notice(&format!("{}: {message}", args.to.display()));
    }
    if copied.flags_left_out > 0 {
        notice(&format!(
            "{}: {} files had a flag (lsattr) that the new volume cannot keep",
            args.to.display(),
            copied.flags_left_out
        ));
    }
    if args.json {
        text::print_json(&serde_json::json!({
            "from": args.from.display().to_string(),
            "to": args.to.display().to_string(),
            "files": copied.inodes,
            "bytes": copied.bytes,
            "flags_left_out": copied.flags_left_out,
        }))?;
    } else {
        text::print(&format!(
            "{}: {} files, directories and others copied from {}, {} of content",
            args.to.display(),
            copied.inodes,
            args.from.display(),
            size::show(copied.bytes)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens one of the two, and mounts it within this process.
fn open(image: &Path, access: Access, wishes: &store::StoreSettings) -> Result<Volume, Failure> {
    let device: Device = match store::url(image) {
        Some(url) => store::open_for_mount(&url, access, wishes)?,
        None => volume::open_device(image, access, None)?,
    };
    let mut options = Options::default();
    options.set_read_only(access == Access::Look);
    let (volume, told) = volume::mount(image, device, &options)?;
    for message in told {
        notice(&format!("{}: {message}", image.display()));
    }
    Ok(volume)
}
