//! The load generator of `bench/run`.
//!
//! Job: run one workload once on a directory and print the seconds it took; and turn many such results into a table
//! and one JSON object. It knows nothing about mounts and file systems: `bench/run` prepares those.
//!
//! ```text
//! load smallfile DIR COUNT     create, write 100 bytes, fsync, close; COUNT times, one thread
//! load append DIR MIB          append MIB mebibytes in pieces of 1 MiB to a new file, then one fsync
//! load clone SOURCE DEST       git clone of a local repository
//! load report [--json] --subject NAME [KEY=VALUE…] <RESULTS
//! ```
//!
//! `RESULTS` has one line per run: row, unit, `higher` or `lower` (which is better), system, value; separated by tabs.

mod report;
mod workload;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: load smallfile DIR COUNT | append DIR MIB | clone SOURCE DEST | \
                     report [--json] --subject NAME [KEY=VALUE...]";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args).and_then(|text| {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|e| format!("standard output: {e}"))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("load: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let seconds = match words.as_slice() {
        ["smallfile", dir, count] => workload::smallfile(Path::new(dir), number(count)?)?,
        ["append", dir, mib] => workload::append(Path::new(dir), number(mib)?)?,
        ["clone", source, dest] => workload::clone(Path::new(source), Path::new(dest))?,
        ["report", options @ ..] => return report::run(options, io::stdin().lock()),
        _ => return Err(USAGE.to_owned()),
    };
    Ok(format!("{seconds:.9}\n"))
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a number above zero")),
    }
}
