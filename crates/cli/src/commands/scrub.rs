//! `steadfast scrub`: reads the medium of a volume, mounted or not, and compares its checksums.
//!
//! On a mount the server scrubs, piece by piece, beside its other work; it keeps no state between two pieces, so the
//! command can be interrupted at any time.
//!
//! Exit codes: 0 nothing wrong, 4 damage was found, 8 could not run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use steadfast_block::BLOCK_SIZE;
use steadfast_fs::{Fs, MountOptions};
use steadfast_vfs::{FileSystem, ScrubCursor, ScrubFinding, ScrubPiece};

use crate::commands::sync::mount_of;
use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::volume::{self, Access};
use crate::{size, text};

/// Blocks of a piece (4 MiB): a second's work of the slowest disks.
const PIECE_BLOCKS: u64 = 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Read the content of files, too: it has no checksums, but the medium may fail to return it
    #[arg(long)]
    data: bool,
    /// Limit of the reading rate in bytes per second, such as 100M
    #[arg(long, value_name = "SIZE")]
    rate: Option<String>,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Image file, flash image, block device, or a directory of a mount
    image: PathBuf,
}

/// Sum over all pieces.
#[derive(Default)]
struct Sum {
    metadata_blocks: u64,
    older_blocks: u64,
    data_blocks: u64,
    findings: Vec<ScrubFinding>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let sum = scrub(args).map_err(|failure| match failure.code {
        Code::Usage => failure,
        _ => failure.with_code(Code::CouldNotRun),
    })?;
    let shown = match args.json {
        true => show_json(args, &sum),
        false => show(args, &sum),
    };
    shown.map_err(|failure| failure.with_code(Code::CouldNotRun))?;
    Ok(ExitCode::from(if sum.findings.is_empty() { 0 } else { 4 }))
}

fn scrub(args: &Args) -> Result<Sum, Failure> {
    let rate = args.rate.as_deref().map(size::parse).transpose();
    let rate = rate.map_err(|e| Failure::usage(format!("--rate: {e}")))?;
    if rate == Some(0) {
        return Err(Failure::usage("--rate: must be more than 0"));
    }
    let image = &args.image;
    if image.is_dir() {
        mount_of(image)?;
        return pieces(args, rate, |from| {
            steadfast_fuse::scrub(image, from, PIECE_BLOCKS, args.data)
                .map_err(|e| Failure::at(image, format!("scrub failed: {e}")))
        });
    }
    let device = volume::open_device(image, Access::Scan, None)?;
    let mut options = MountOptions::default();
    options.read_only = true;
    options.background = false;
    let (fs, _) =
        Fs::mount(Arc::clone(device.block(image)?), &options).map_err(|e| Failure::at(image, e))?;
    pieces(args, rate, |from| {
        fs.scrub(from, PIECE_BLOCKS, args.data)
            .map_err(|e| Failure::at(image, e))
    })
}

/// Scrubs from the beginning to the end, no quicker than `rate` bytes a second.
fn pieces(
    args: &Args,
    rate: Option<u64>,
    mut piece: impl FnMut(ScrubCursor) -> Result<ScrubPiece, Failure>,
) -> Result<Sum, Failure> {
    let meter = Meter::new(args.progress);
    let mut sum = Sum::default();
    let mut at = ScrubCursor::default();
    loop {
        let begun = Instant::now();
        let found = piece(at)?;
        meter.show("blocks", found.done, found.total);
        sum.metadata_blocks += found.metadata_blocks;
        sum.older_blocks += found.older_blocks;
        sum.data_blocks += found.data_blocks;
        sum.findings.extend(found.findings);
        match found.next {
            None => return Ok(sum),
            Some(next) if next <= at => {
                return Err(Failure::at(&args.image, "the scrub makes no progress"));
            }
            Some(next) => at = next,
        }
        if let Some(rate) = rate {
            let bytes = (found.metadata_blocks + found.data_blocks) * BLOCK_SIZE as u64;
            let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

fn show(args: &Args, sum: &Sum) -> Result<(), Failure> {
    let image = args.image.display();
    let bytes = |blocks: u64| size::show(blocks * BLOCK_SIZE as u64);
    let mut lines: Vec<String> = sum
        .findings
        .iter()
        .map(|found| {
            let inode = found
                .ino
                .map_or(String::new(), |ino| format!("inode {ino}, "));
            format!("{image}: {inode}block {}: {}", found.block, found.what)
        })
        .collect();
    let verdict = match sum.findings.len() {
        0 => "nothing wrong".to_owned(),
        1 => "1 block is damaged; unmount and run 'steadfast fsck'".to_owned(),
        n => format!("{n} blocks are damaged; unmount and run 'steadfast fsck'"),
    };
    let data = match args.data {
        true => format!(" and {} of content", bytes(sum.data_blocks)),
        false => String::new(),
    };
    let older = match sum.older_blocks {
        0 => String::new(),
        n => format!(" ({n} blocks that are newer in the log were passed over)"),
    };
    lines.push(format!(
        "{image}: read {} of metadata{data}{older}: {verdict}",
        bytes(sum.metadata_blocks)
    ));
    text::print(&lines.join("\n"))
}

fn show_json(args: &Args, sum: &Sum) -> Result<(), Failure> {
    let findings: Vec<_> = sum
        .findings
        .iter()
        .map(|found| {
            serde_json::json!({
                "block": found.block,
                "inode": found.ino,
                "text": found.what,
            })
        })
        .collect();
    text::print_json(&serde_json::json!({
        "image": args.image.display().to_string(),
        "clean": findings.is_empty(),
        "metadata_blocks": sum.metadata_blocks,
        "older_blocks": sum.older_blocks,
        "data_blocks": sum.data_blocks,
        "findings": findings,
    }))
}
