//! `steadfast info`: shows what a volume is, mounted or not.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use steadfast_block::BLOCK_SIZE;
use steadfast_fuse::mountinfo;

use crate::commands::sync;
use crate::failure::Failure;
use crate::volume::{self, Access, Holder, LogState, Summary};
use crate::{size, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// Print the properties that udev(7) keeps of a volume, as KEY=VALUE; reads only the superblock, and locks
    /// nothing
    #[arg(long, conflicts_with = "json")]
    udev: bool,
    /// The key file of an encrypted volume on an object store (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Image file, block device, URL of a volume on an object store, or a directory of a mounted volume
    #[arg(value_name = "IMAGE|DIR")]
    target: PathBuf,
}

/// What is shown.
#[derive(Serialize)]
struct Shown {
    image: PathBuf,
    mounted_at: Option<PathBuf>,
    uuid: String,
    label: String,
    contract: &'static str,
    /// `block`, `flash`, `pm` or `store`.
    medium: &'static str,
    format_version: u32,
    block_bytes: u64,
    volume_bytes: u64,
    log_bytes: u64,
    data_bytes: u64,
    free_bytes: u64,
    /// Number of inodes that fit, and of free ones; None if inodes are made on demand.
    inodes: Option<u64>,
    free_inodes: Option<u64>,
    made_unix_seconds: i64,
    /// `mounted`, `failed` (and mounted), `in-use`, `clean`, `needs-recovery` or `damaged`.
    state: &'static str,
    /// Whether it can only be read: mounted read-only, or failed. None if it is not mounted.
    read_only: Option<bool>,
    /// Failure after which nothing is written.
    failed: Option<String>,
    /// Processes that hold the image open exclusively.
    held_by: Vec<Holder>,
    note: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.udev {
        text::print(&udev(&args.target, args.key_file.as_deref())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let key_file = args.key_file.as_deref();
    if volume::store::url(&args.target).is_some() {
        let mounts = mountinfo::mounts().unwrap_or_default();
        let mount = mounts
            .into_iter()
            .find(|m| m.is_ours() && m.source == args.target);
        let shown = gather(args.target.clone(), mount.map(|m| m.mount_point), key_file)?;
        return show(args, &shown);
    }
    let metadata = std::fs::metadata(&args.target).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::absent(&args.target),
        ErrorKind::NotConnected => Failure::at(
            &args.target,
            "is held by a mount whose server is gone; run 'steadfast umount' on it first",
        ),
        _ => Failure::at(&args.target, e),
    })?;
    let (image, mounted_at) = if metadata.is_dir() {
        let mount = sync::mount_of(&args.target)?;
        (mount.source, Some(mount.mount_point))
    } else {
        let image = args
            .target
            .canonicalize()
            .map_err(|e| Failure::at(&args.target, e))?;
        let mounts = mountinfo::mounts().unwrap_or_default();
        let mount = mounts
            .into_iter()
            .find(|m| m.is_ours() && m.source == image);
        (image, mount.map(|m| m.mount_point))
    };
    show(args, &gather(image, mounted_at, key_file)?)
}

fn show(args: &Args, shown: &Shown) -> Result<ExitCode, Failure> {
    if args.json {
        text::print_json(shown)?;
    } else {
        text::print(&lines(shown))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The properties by which udev and systemd know a file system. A device that has only the superblock copy at its end
/// now holds something else.
fn udev(image: &Path, key_file: Option<&Path>) -> Result<String, Failure> {
    let device = volume::open_device_with_key(image, Access::Peek, key_file)?;
    let identity = volume::identity(image, &device)?;
    let uuid = text::uuid(&identity.uuid);
    let mut lines = vec![
        "ID_FS_TYPE=steadfast".to_owned(),
        "ID_FS_USAGE=filesystem".to_owned(),
        format!("ID_FS_VERSION={}", identity.version),
        format!("ID_FS_UUID={uuid}"),
        format!("ID_FS_UUID_ENC={uuid}"),
    ];
    if !identity.label.is_empty() {
        lines.push(format!("ID_FS_LABEL={}", safe(&identity.label)));
        lines.push(format!("ID_FS_LABEL_ENC={}", encoded(&identity.label)));
    }
    Ok(lines.join("\n"))
}

/// Whether udev takes a character as it is.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() && !c.is_control()
}

/// A label without what could confuse a reader of the properties.
fn safe(label: &str) -> String {
    label
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .collect()
}

/// A label as it is in the names of links: every other byte as two hexadecimal digits.
fn encoded(label: &str) -> String {
    let encode = |c: char| match is_plain(c) {
        true => c.to_string(),
        false => {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes)
                .bytes()
                .map(|byte| format!("\\x{byte:02x}"))
                .collect()
        }
    };
    label.chars().map(encode).collect()
}

fn gather(
    image: PathBuf,
    mounted_at: Option<PathBuf>,
    key_file: Option<&Path>,
) -> Result<Shown, Failure> {
    const BLOCK: u64 = BLOCK_SIZE as u64;
    let (summary, in_use) = look(&image, key_file)?;
    let space = mounted_at.as_deref().map(rustix::fs::statvfs);
    let dead = matches!(space, Some(Err(rustix::io::Errno::NOTCONN)));
    let space = space.and_then(Result::ok);
    let health = mounted_at.as_deref().filter(|_| !dead);
    let health = health.and_then(|dir| steadfast_fuse::health(dir).ok());
    let failed = health.as_ref().and_then(|health| health.failed.clone());
    let mut note = summary.warning;
    let state = match (&mounted_at, in_use, summary.log) {
        (Some(dir), ..) if dead => {
            note = Some(format!(
                "the server of the mount at {dir} is gone: run 'steadfast umount {dir}'; the next mount recovers the volume",
                dir = dir.display()
            ));
            "mounted"
        }
        (Some(_), ..) if failed.is_some() => "failed",
        (Some(_), ..) => "mounted",
        (None, true, _) => "in-use",
        (None, false, LogState::Clean) => "clean",
        (None, false, LogState::NeedsRecovery) => {
            note.get_or_insert("it was not unmounted; the next mount recovers it".to_owned());
            "needs-recovery"
        }
        (None, false, LogState::Damaged(why)) => {
            note = Some(format!("{why}; run 'steadfast fsck'"));
            "damaged"
        }
    };
    let medium = volume::medium(&image);
    let held_by = if in_use {
        volume::holders(&image)
    } else {
        Vec::new()
    };
    let inodes = summary.inodes.map(|known| match &space {
        Some(space) => (space.f_files, space.f_ffree),
        None => known,
    });
    Ok(Shown {
        image,
        mounted_at,
        uuid: text::uuid(&summary.uuid),
        label: summary.label,
        contract: summary.contract,
        medium,
        format_version: summary.version,
        block_bytes: BLOCK,
        volume_bytes: summary.blocks * BLOCK,
        log_bytes: summary.log_blocks * BLOCK,
        data_bytes: space
            .as_ref()
            .map_or(summary.data_blocks * BLOCK, |s| s.f_blocks * s.f_frsize),
        free_bytes: space.map_or(summary.free_blocks * BLOCK, |s| s.f_bfree * s.f_frsize),
        inodes: inodes.map(|(all, _)| all),
        free_inodes: inodes.map(|(_, free)| free),
        made_unix_seconds: summary.made,
        state,
        read_only: health.map(|health| health.read_only),
        failed,
        held_by,
        note,
    })
}

/// Reads the summary of the volume, and whether it is open for writing.
fn look(image: &Path, key_file: Option<&Path>) -> Result<(Summary, bool), Failure> {
    match volume::open_device_with_key(image, Access::Look, key_file) {
        Ok(device) => Ok((volume::summary(image, &device)?, false)),
        Err(first) => match volume::open_device_with_key(image, Access::Peek, key_file) {
            Ok(device) => Ok((volume::summary(image, &device)?, true)),
            Err(_) => Err(first),
        },
    }
}

fn lines(shown: &Shown) -> String {
    let mut lines = vec![
        format!("image:    {}", shown.image.display()),
        format!("state:    {}", shown.state),
    ];
    if let Some(dir) = &shown.mounted_at {
        lines.push(format!("mounted:  {}", dir.display()));
    }
    if let Some(why) = &shown.failed {
        lines.push(format!("failed:   {why}"));
    } else if shown.read_only == Some(true) {
        lines.push("read-only: yes".to_owned());
    }
    let holders = shown.held_by.iter();
    lines.extend(
        holders.map(|holder| format!("held by:  process {}: {}", holder.pid, holder.command)),
    );
    let label = if shown.label.is_empty() {
        "(none)"
    } else {
        &shown.label
    };
    lines.extend([
        format!("label:    {label}"),
        format!("uuid:     {}", shown.uuid),
        format!("contract: {}", shown.contract),
        format!("size:     {}", size::show(shown.volume_bytes)),
        match shown.log_bytes {
            0 => format!("log:      {}", text::no_log(shown.medium)),
            bytes => format!("log:      {}", size::show(bytes)),
        },
        format!(
            "free:     {} of {}",
            size::show(shown.free_bytes),
            size::show(shown.data_bytes)
        ),
    ]);
    if let (Some(all), Some(free)) = (shown.inodes, shown.free_inodes) {
        lines.push(format!("inodes:   {free} of {all} free"));
    }
    if let Some(note) = &shown.note {
        lines.push(format!("note:     {note}"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_written_as_udev_wants_them() {
        let label = "my data/1\n\"x\" é";
        assert_eq!(safe(label), "my_data_1__x__é");
        assert_eq!(encoded(label), "my\\x20data\\x2f1\\x0a\\x22x\\x22\\x20é");
    }
}
