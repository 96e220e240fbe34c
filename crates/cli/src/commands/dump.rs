//! `steadfast dump`: shows what lies on a volume that is not mounted: superblock, the
//! journal's tail headers and log; one inode or directory, with the log applied; or one block.
//!
//! Of a volume in persistent memory it shows the use of all pages instead of a log ([`memory`]).
//!
//! Damage is shown, not refused: the command fails only when there is no volume to read, or
//! the image cannot be read where it must be. Nothing is ever written.

mod block;
mod directory;
mod inode;
mod log;
#[cfg(feature = "pm")]
mod memory;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use steadfast_block::{BLOCK_SIZE, BlockNo};

use crate::failure::Failure;
use crate::volume::{self, Access, Device, Inspector, VolumeMap};
use crate::{size, text};

/// Bytes of a block.
const BLOCK: u64 = BLOCK_SIZE as u64;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it as one JSON object
    #[arg(long)]
    json: bool,
    /// Show only the log (persistent memory has none), with all that its records say of each block
    #[arg(long)]
    log: bool,
    /// With --log: the logged bytes, too, in hexadecimal
    #[arg(long, requires = "log")]
    bytes: bool,
    /// Show only the superblock
    #[arg(long, conflicts_with_all = ["log", "bytes"])]
    superblock: bool,
    /// Show only this inode, named by its number or its absolute path on the volume: its fields, extents, tree nodes
    /// and extended attributes
    #[arg(long, value_name = "NUMBER|PATH", conflicts_with_all = ["log", "bytes", "superblock"])]
    inode: Option<Which>,
    /// Show only this directory, named likewise: its index, its leaves and their entries
    #[arg(long, value_name = "NUMBER|PATH", conflicts_with_all = ["log", "bytes", "superblock", "inode"])]
    directory: Option<Which>,
    /// Show only this block, or page of persistent memory: its use and its bytes
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["log", "bytes", "superblock", "inode", "directory"])]
    block: Option<u64>,
    /// Image file, block device or DAX device
    image: PathBuf,
}

/// An inode, as it is named on the command line.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// By its number.
    Number(u64),
    /// By its path.
    Path(String),
}

impl std::str::FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Which, String> {
        if text.starts_with('/') {
            return Ok(Which::Path(text.to_owned()));
        }
        text.parse().map(Which::Number).map_err(|_| {
            format!("'{text}' is neither an inode number nor a path that begins with a slash")
        })
    }
}

impl Which {
    fn resolve(&self, image: &std::path::Path, inspector: &Inspector) -> Result<u64, Failure> {
        match self {
            Which::Number(ino) => Ok(*ino),
            Which::Path(path) => {
                (inspector.resolve(path.as_bytes())).map_err(|error| self.failure(image, &error))
            }
        }
    }

    fn failure(&self, image: &std::path::Path, error: &steadfast_vfs::Error) -> Failure {
        use steadfast_vfs::Errno;
        let what = match self {
            Which::Number(ino) => format!("inode {ino}"),
            Which::Path(path) => path.clone(),
        };
        let why = match *error {
            ref error if *error == Errno::NoEnt => "does not exist on the volume".to_owned(),
            ref error if *error == Errno::Stale => "is no inode of the volume".to_owned(),
            ref error if *error == Errno::NotDir => "is, or leads through, no directory".to_owned(),
            ref error => format!("cannot be read: {error}"),
        };
        Failure::at(image, format!("{what} {why}"))
    }
}

/// Names and targets as they are shown, with escapes for bytes that are not text.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let device = volume::open_device(&args.image, Access::Look, None)?;
    if let Device::Memory(region) = &device {
        #[cfg(feature = "pm")]
        return memory::run(args, region);
        #[cfg(not(feature = "pm"))]
        match *region {}
    }
    let map = volume::map(&args.image, &device)?;
    if let Some(at) = args.block {
        let shown = block::look(&args.image, &device, &map, BlockNo(at))?;
        if args.json {
            text::print_json(&shown)?;
        } else {
            text::print(&shown.lines())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(which) = &args.inode {
        let shown = inode::look(&args.image, &device, which)?;
        if args.json {
            text::print_json(&shown)?;
        } else {
            text::print(&shown.lines())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(which) = &args.directory {
        directory::print(&args.image, &device, which, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.superblock {
        let superblock = Superblock::of(&map);
        if args.json {
            text::print_json(&superblock)?;
        } else {
            text::print(superblock.lines(&args.image).trim_end())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let detail = log::Detail {
        entries: args.log || args.json,
        bytes: args.bytes,
    };
    let superblock = (!args.log).then(|| Superblock::of(&map));
    if args.json {
        let log = match map.journal() {
            Some(_) => Some(log::gather(&args.image, &device, &map, detail)?),
            None => None,
        };
        text::print_json(&Shown {
            image: args.image.display().to_string(),
            superblock,
            log,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(superblock) = superblock {
        text::print(&superblock.lines(&args.image))?;
    }
    if args.log || map.journal().is_some() {
        log::print(&args.image, &device, &map, detail)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The one JSON object.
#[derive(Serialize)]
struct Shown {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    superblock: Option<Superblock>,
    /// None if the volume has no log.
    log: Option<log::Log>,
}

/// Fields of the superblock.
#[derive(Serialize)]
struct Superblock {
    uuid: String,
    label: String,
    contract: &'static str,
    format_version: u32,
    read_only: bool,
    volume_blocks: u64,
    volume_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    header_blocks: Option<[u64; 2]>,
    log_start_block: u64,
    log_blocks: u64,
    log_bytes: u64,
    groups_start_block: u64,
    groups: u64,
    root_inode: u64,
    orphan_inode: u64,
    made_unix_seconds: i64,
    note: Option<String>,
}

impl Superblock {
    fn of(map: &VolumeMap) -> Superblock {
        let journal = map.journal();
        let log_blocks = journal.map_or(0, |region| region.log_blocks);
        let (groups_start, groups) = map.groups();
        Superblock {
            uuid: text::uuid(&map.uuid()),
            label: map.label().to_owned(),
            contract: map.contract().name(),
            format_version: map.version(),
            read_only: map.read_only(),
            volume_blocks: map.blocks(),
            volume_bytes: map.blocks() * BLOCK,
            header_blocks: journal.map(|region| region.headers.map(|at| at.0)),
            log_start_block: journal.map_or(0, |region| region.log.0),
            log_blocks,
            log_bytes: log_blocks * BLOCK,
            groups_start_block: groups_start.0,
            groups,
            root_inode: map.root(),
            orphan_inode: map.orphans(),
            made_unix_seconds: map.made(),
            note: map.warning().map(str::to_owned),
        }
    }

    fn lines(&self, image: &std::path::Path) -> String {
        let label = if self.label.is_empty() {
            "(none)"
        } else {
            &self.label
        };
        let mut lines = vec![
            format!("image:    {}", image.display()),
            format!("label:    {label}"),
            format!("uuid:     {}", self.uuid),
            format!("contract: {}", self.contract),
            format!(
                "size:     {} ({} blocks of {BLOCK} B)",
                size::show(self.volume_bytes),
                self.volume_blocks
            ),
            match self.header_blocks {
                Some(headers) => format!(
                    "log:      {} (blocks {} to {}, tail headers in blocks {} and {})",
                    size::show(self.log_bytes),
                    self.log_start_block,
                    self.log_start_block + self.log_blocks - 1,
                    headers[0],
                    headers[1]
                ),
                None => format!("log:      {}", text::no_log("flash")),
            },
            format!(
                "groups:   {} from block {} on",
                self.groups, self.groups_start_block
            ),
            format!(
                "inodes:   root {}, orphans {}",
                self.root_inode, self.orphan_inode
            ),
        ];
        if let Some(note) = &self.note {
            lines.push(format!("note:     {note}"));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
