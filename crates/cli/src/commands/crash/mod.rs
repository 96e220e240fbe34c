//! `steadfast crash`: what crashes can do, to this stack and to programs. One file per command.

mod own;
mod put;

use std::process::ExitCode;

use crate::failure::Failure;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Explore this stack itself: cut its power everywhere, recover, compare with the model
    #[command(name = "self")]
    Own(own::Args),
    /// Explore how a file is replaced ('steadfast put'): all disks that a crash may leave, and
    /// the trees that recovery makes of them; then the same with steps left out
    Put(put::Args),
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Own(args) => own::run(args),
        Command::Put(args) => put::run(args),
    }
}
