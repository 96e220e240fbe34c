//! `steadfast crash ack`: says, while a program is recorded, that something is done and must survive.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_crashtest::record::ACK_VARIABLE;

use crate::failure::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Text of the acknowledgement: a line of $CRASH_ACKED for the check
    text: OsString,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(path) = std::env::var_os(ACK_VARIABLE).map(PathBuf::from) else {
        return Err(Failure::new(format!(
            "{ACK_VARIABLE} is not set: 'crash ack' is for programs that run under 'steadfast crash test' or 'crash record'"
        )));
    };
    let written = OpenOptions::new().append(true).open(&path);
    written
        .and_then(|mut file| file.write_all(&[args.text.as_bytes(), b"\n"].concat()))
        .map_err(|e| Failure::at(&path, e))?;
    Ok(ExitCode::SUCCESS)
}
