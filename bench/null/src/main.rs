//! A FUSE server that keeps nothing: tables in memory with the product's front end. It answers every request at once and makes
//! nothing durable, so the cost of a call here is that of the front end. Data is copied once, into fresh memory; a volume whose
//! memory is mapped already takes it faster. The model's `MemFs` is a specification, not a limit: it needs up to 1.5 times as
//! long.
//!
//!   null DIR [--io-uring]   serves an empty file system at DIR until it is unmounted

mod content;
mod null;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use steadfast_fuse::{Ended, MountOptions, mount};

const USAGE: &str = "usage: null DIR [--io-uring]";

fn main() -> ExitCode {
    let mut options = MountOptions::new("null").subtype("null");
    options.io_uring = Some(false);
    let mut dir = None;
    for argument in std::env::args_os().skip(1) {
        match argument.to_str() {
            Some("--io-uring") => options.io_uring = Some(true),
            _ if dir.is_none() => dir = Some(PathBuf::from(argument)),
            _ => dir = None,
        }
    }
    let Some(dir) = dir else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let session = match mount(Arc::new(null::Null::new()), &dir, &options) {
        Ok(session) => session,
        Err(e) => {
            eprintln!("null: {}: {e}", dir.display());
            return ExitCode::FAILURE;
        }
    };
    match session.join() {
        Ended::Clean => ExitCode::SUCCESS,
        other => {
            eprintln!("null: {other:?}");
            ExitCode::FAILURE
        }
    }
}
