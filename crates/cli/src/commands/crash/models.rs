//! `steadfast crash models`: what each model says a power cut may leave.

use std::process::ExitCode;

use steadfast_crashtest::models::Model;

use super::usage;
use crate::failure::Failure;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print this model, as a start for your own
    name: Option<String>,
    /// Print the list as JSON
    #[arg(long, conflicts_with = "name")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(name) = &args.name {
        // Loaded before it is printed, so that a user's file is checked, too.
        Model::load(name).map_err(usage)?;
        let text = match Model::text(name) {
            Some(text) => text.to_owned(),
            None => std::fs::read_to_string(name).map_err(usage)?,
        };
        text::print(text.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let models = Model::names().map(Model::shipped);
    let models = models.collect::<Result<Vec<_>, _>>().map_err(usage)?;
    if args.json {
        let one = |m: &Model| {
            serde_json::json!({
                "name": m.name, "version": m.version, "about": m.about, "options": m.options, "calibration": m.calibration(),
            })
        };
        let models: Vec<_> = models.iter().map(one).collect();
        text::print_json(&serde_json::json!({ "models": models }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = models.iter().map(|m| m.name.len()).max().unwrap_or(0);
    let line = |m: &Model| format!("{:width$}  {} ({})", m.name, m.about, m.calibration());
    let lines: Vec<String> = models.iter().map(line).collect();
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
