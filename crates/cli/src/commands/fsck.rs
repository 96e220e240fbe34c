//! `steadfast fsck`: checks a volume that is not mounted.
//!
//! Exit codes: 0 clean, 1 damage was found and repaired, 4 damage is left, 8 could not run.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::{Code, Failure};
use crate::text;
use crate::volume::{self, Access, Checked};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repair what is found (without it, nothing is written)
    #[arg(long)]
    repair: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Image file or block device
    image: PathBuf,
}

/// The exit codes of a check that ran.
const CLEAN: u8 = 0;
const REPAIRED: u8 = 1;
const DAMAGE_LEFT: u8 = 4;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let checked = check(args).map_err(|failure| failure.with_code(Code::CouldNotRun))?;
    let code = match (checked.damaged, checked.repaired) {
        (false, _) => CLEAN,
        (true, true) => REPAIRED,
        (true, false) => DAMAGE_LEFT,
    };
    let shown = if args.json { show_json(args, &checked, code) } else { show(args, &checked) };
    shown.map_err(|failure| failure.with_code(Code::CouldNotRun))?;
    Ok(ExitCode::from(code))
}

fn check(args: &Args) -> Result<Checked, Failure> {
    let access = if args.repair { Access::Change } else { Access::Look };
    let device = volume::open_device(&args.image, access, None)?;
    volume::check(&args.image, device, args.repair)
}

fn show(args: &Args, checked: &Checked) -> Result<(), Failure> {
    let image = args.image.display();
    let mut lines: Vec<String> =
        checked.findings.iter().map(|finding| format!("{image}: {}", finding.text)).collect();
    lines.push(match (checked.damaged, checked.repaired, args.repair) {
        (false, _, _) => format!("{image}: clean{}", checked.summary),
        (true, true, _) => format!("{image}: damage was found and repaired{}", checked.summary),
        (true, false, false) => {
            format!("{image}: damaged; run 'steadfast fsck --repair {image}' to repair it{}", checked.summary)
        }
        (true, false, true) => {
            format!("{image}: damage is left that cannot be repaired; restore from a backup{}", checked.summary)
        }
    });
    text::print(&lines.join("\n"))
}

fn show_json(args: &Args, checked: &Checked, code: u8) -> Result<(), Failure> {
    let result = match code {
        CLEAN => "clean",
        REPAIRED => "repaired",
        _ => "damaged",
    };
    text::print_json(&serde_json::json!({
        "image": args.image.display().to_string(),
        "result": result,
        "findings": checked.findings,
    }))
}
