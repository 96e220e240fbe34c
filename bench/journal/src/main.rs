//! The journal's driver of `bench/run journal`.
//!
//! Job: take one measure of one system once, in a process of its own, and print the figures as lines
//! `NAME VALUE`. `bench/run` sets the order of the systems and compares the figures.
//! `bench/gojournal` is its counterpart for go-journal: same measures, same names.
//!
//! DEVICE is `memory`, or a prewritten file (opened with `O_DIRECT`); the content of the file is lost.

mod deferred;
mod device;
mod figures;
#[cfg(feature = "peers")]
mod peers;
mod recovery;
mod sequential;
mod synchronous;
mod volume;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

const USAGE: &str = "\
usage: journal MEASURE
  sync DEVICE THREADS SECONDS            synchronous create-like transactions of 3 blocks
  create COMMITS                         synchronous creations with 5 blocks, on the memory device
  deferred THREADS own|one SECONDS       deferred commits of 128 bytes; a stream each, or one for all
  sequential MIB each|end                new data in operations of 1 MiB, synced each time or at the end
  fill FILE                              leaves a full log of 256 MiB that was never written home
  recover FILE                           recovers it
  store sqlite|redb DIR THREADS SECONDS  the transactions of `sync` in an embedded store
Prints one line `NAME VALUE` for each figure.";

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = run(&words).and_then(|figures| {
        io::stdout()
            .write_all(figures.to_string().as_bytes())
            .map_err(|e| format!("standard output: {e}"))
    });
    // Ends here and now, so that the writes that `fill` holds back are never made.
    std::process::exit(match done {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("journal: {message}");
            1
        }
    })
}

fn run(words: &[&str]) -> Result<figures::Figures, String> {
    match words {
        ["sync", device, threads, time] => {
            synchronous::sync(device, number(threads)?, seconds(time)?)
        }
        ["create", commits] => synchronous::create(number(commits)?),
        ["deferred", threads, streams, time] => {
            let one_stream = either(streams, "one", "own")?;
            deferred::deferred(number(threads)?, one_stream, seconds(time)?)
        }
        ["sequential", mib, when] => {
            sequential::sequential(number(mib)?, either(when, "each", "end")?)
        }
        ["fill", path] => recovery::fill(Path::new(path)),
        ["recover", path] => recovery::recover(Path::new(path)),
        #[cfg(feature = "peers")]
        ["store", store, dir, threads, time] => {
            peers::run(store, Path::new(dir), number(threads)?, seconds(time)?)
        }
        #[cfg(not(feature = "peers"))]
        ["store", ..] => Err("built without the feature 'peers'".to_owned()),
        _ => Err(USAGE.to_owned()),
    }
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a number above zero")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1e6 => Ok(Duration::from_secs_f64(value)),
        _ => Err(format!("'{text}' is not a number of seconds above zero")),
    }
}

/// Whether `text` is `yes`; anything else but `no` is an error.
fn either(text: &str, yes: &str, no: &str) -> Result<bool, String> {
    if text == yes {
        Ok(true)
    } else if text == no {
        Ok(false)
    } else {
        Err(format!("'{text}' is neither '{yes}' nor '{no}'"))
    }
}
