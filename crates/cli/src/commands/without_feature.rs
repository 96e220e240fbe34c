//! A command that is not in this program: it takes any arguments, and fails with a message that names the feature.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::features::Feature;
use crate::text;

/// Any arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true, num_args = 0..)]
    given: Vec<OsString>,
}

/// The line of such a command in help.
pub(crate) fn about(feature: Feature, what: &str) -> String {
    let name = feature.name();
    format!("{what} (not in this program: built without the feature `{name}`)")
}

/// Fails; after a further word, clap leaves `--help` among the arguments.
pub(crate) fn run(args: &Args, feature: Feature, command: &str) -> Result<ExitCode, Failure> {
    let mut options = args.given.iter().take_while(|given| *given != "--");
    if options.any(|given| given == "--help" || given == "-h") {
        text::print(&about(feature, &format!("steadfast {command}")))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(feature.lacks(command))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn stand_in() -> Command {
        Args::augment_args(Command::new("nfs")).about(about(Feature::Nfs, "Serve volumes"))
    }

    #[test]
    fn the_help_names_the_feature() {
        let help = stand_in().render_help().to_string();
        let wanted = "Serve volumes (not in this program: built without the feature `nfs`)";
        assert!(help.contains(wanted), "{help}");
        let shown = stand_in()
            .try_get_matches_from(["nfs", "--help"])
            .unwrap_err();
        assert_eq!(shown.kind(), clap::error::ErrorKind::DisplayHelp);
    }

    #[test]
    fn a_run_fails_unless_help_is_wanted() {
        let run = |line: &str| {
            let matches = stand_in().try_get_matches_from(line.split(' ')).unwrap();
            run(
                &Args::from_arg_matches(&matches).unwrap(),
                Feature::Nfs,
                "serve nfs",
            )
        };
        for line in ["nfs", "nfs IMAGE --threads 0", "nfs IMAGE -- --help"] {
            assert_eq!(run(line), Err(Feature::Nfs.lacks("serve nfs")), "{line}");
        }
        assert_eq!(run("nfs IMAGE --help"), Ok(ExitCode::SUCCESS));
    }

    #[test]
    fn any_arguments_are_taken() {
        for line in [
            "nfs",
            "nfs IMAGE",
            "nfs --threads 0 IMAGE:/EXPORT --listen=127.0.0.1",
            "nfs -o ro -- --x",
            "nfs test --check C -- W --option",
        ] {
            let taken = stand_in().try_get_matches_from(line.split(' '));
            assert!(taken.is_ok(), "{line}: {taken:?}");
        }
    }
}
