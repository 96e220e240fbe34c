//! `steadfast fsck`: checks a volume that is not mounted.
//!
//! Exit codes: 0 clean, 1 damage was found and repaired, 4 damage is left, 8 could not run.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;

use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::volume::{self, Access, Checked, Verdict};
use crate::{size, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repair what is found (without it, nothing is written)
    #[arg(long)]
    repair: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Show progress also where standard error is no terminal
    #[arg(long)]
    progress: bool,
    /// Image file or block device
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let checked = check(args).map_err(|failure| failure.with_code(Code::CouldNotRun))?;
    let shown = if args.json {
        show_json(args, &checked)
    } else {
        show(args, &checked)
    };
    shown.map_err(|failure| failure.with_code(Code::CouldNotRun))?;
    Ok(ExitCode::from(match checked.verdict {
        Verdict::Clean => 0,
        Verdict::Repaired => 1,
        Verdict::DamageLeft => 4,
    }))
}

fn check(args: &Args) -> Result<Checked, Failure> {
    let access = if args.repair {
        Access::Change
    } else {
        Access::Scan
    };
    let device = volume::open_device(&args.image, access, None)?;
    let meter = Meter::new(args.progress);
    volume::check(
        &args.image,
        &device,
        args.repair,
        move |step, done, total| {
            meter.show(&format!("checking {step}"), done, total);
        },
    )
}

fn show(args: &Args, checked: &Checked) -> Result<(), Failure> {
    let image = args.image.display();
    let mut lines: Vec<String> = checked
        .findings
        .iter()
        .map(|finding| format!("{image}: {}", finding.text))
        .collect();
    if checked.left_out > 0 {
        lines.push(format!("{image}: {} findings more", checked.left_out));
    }
    lines.extend(
        checked
            .left
            .iter()
            .map(|finding| format!("{image}: left: {}", finding.text)),
    );
    let used = checked.used_blocks * BLOCK_SIZE as u64;
    let held = format!(
        "{} files, {} directories, {} others, {} of {} used",
        checked.files,
        checked.directories,
        checked.others,
        size::show(used),
        size::show(checked.blocks * BLOCK_SIZE as u64),
    );
    lines.push(match (checked.verdict, args.repair) {
        (Verdict::Clean, _) => format!("{image}: clean: {held}"),
        (Verdict::Repaired, _) => format!("{image}: damage was found and repaired: {held}"),
        (Verdict::DamageLeft, false) => {
            format!("{image}: damaged; run 'steadfast fsck --repair {image}' to repair it")
        }
        (Verdict::DamageLeft, true) => {
            format!("{image}: damage is left that a repair cannot undo; restore from a backup")
        }
    });
    text::print(&lines.join("\n"))
}

fn show_json(args: &Args, checked: &Checked) -> Result<(), Failure> {
    text::print_json(&serde_json::json!({
        "image": args.image.display().to_string(),
        "result": match checked.verdict {
            Verdict::Clean => "clean",
            Verdict::Repaired => "repaired",
            Verdict::DamageLeft => "damaged",
        },
        "findings": checked.findings,
        "findings_left_out": checked.left_out,
        "left": checked.left,
        "files": checked.files,
        "directories": checked.directories,
        "others": checked.others,
        "used_bytes": checked.used_blocks * BLOCK_SIZE as u64,
        "data_bytes": checked.blocks * BLOCK_SIZE as u64,
    }))
}
