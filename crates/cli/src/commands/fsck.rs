//! `steadfast fsck`: checks a volume that is not mounted.
//!
//! Exit codes: 0 clean, 1 damage was found and repaired, 4 damage is left, 8 could not run.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;

use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::volume::{self, Access, Checked, LogState, Verdict};
use crate::{size, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repair what is found (without it, nothing is written)
    #[arg(long, short = 'y', conflicts_with_all = ["no", "preen"])]
    repair: bool,
    /// Write nothing (the default)
    #[arg(short = 'n')]
    no: bool,
    /// As at boot: skip a volume that is clean, or that the next mount recovers from its log (unless -f is given);
    /// check any other, and repair it if that changes no content
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "no")]
    preen: bool,
    /// With -p: check the volume in any case
    #[arg(short = 'f')]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// The key file of an encrypted volume on an object store (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Image file, block device, or URL of a volume on an object store
    image: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let could_not_run = |failure: Failure| failure.with_code(Code::CouldNotRun);
    if args.preen && !args.force && needs_no_check(args).map_err(could_not_run)? {
        return Ok(ExitCode::SUCCESS);
    }
    let checked = check(args).map_err(could_not_run)?;
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
    let access = if args.repair || args.preen {
        Access::Change
    } else {
        Access::Scan
    };
    let once = |repair| {
        let device = volume::open_device_with_key(&args.image, access, args.key_file.as_deref())?;
        let meter = Meter::new(args.progress);
        volume::check(&args.image, device, repair, move |step, done, total| {
            meter.show(&format!("checking {step}"), done, total);
        })
    };
    if !args.preen {
        return once(args.repair);
    }
    let found = once(false)?;
    match found.verdict {
        Verdict::DamageLeft if !found.concerns_content() => once(true),
        _ => Ok(found),
    }
}

/// Whether a mount can use the volume as it is: it is clean, or its log can be replayed. Prints the reason.
fn needs_no_check(args: &Args) -> Result<bool, Failure> {
    let image = args.image.display();
    let device = volume::open_device_with_key(&args.image, Access::Look, args.key_file.as_deref())?;
    let summary = volume::summary(&args.image, &device)?;
    let (state, why) = match (&summary.log, &summary.warning) {
        (LogState::Clean, None) => ("clean", "it was unmounted cleanly"),
        (LogState::NeedsRecovery, None) => ("needs-recovery", "the next mount recovers it"),
        _ => return Ok(false),
    };
    if args.json {
        text::print_json(&serde_json::json!({
            "image": image.to_string(),
            "result": "not-checked",
            "state": state,
        }))?;
    } else {
        text::print(&format!(
            "{image}: not checked: {why}; -f checks it all the same"
        ))?;
    }
    Ok(true)
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
        (Verdict::DamageLeft, false) if args.preen => format!(
            "{image}: damaged, and a repair may change content: run 'steadfast fsck --repair {image}' by hand"
        ),
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
