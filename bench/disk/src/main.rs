//! A disk in a file, which counts, delays and records a file system's requests.
//!
//! Job: the same disk below every system that is measured, the kernel's through a loop device and Steadfast directly. It
//! knows nothing about file systems.
//!
//! ```text
//! disk serve BACKING DIR [--flush-ms N] [--record FILE]
//!     DIR/disk      the disk: reads and writes go to BACKING; each flush takes N milliseconds longer
//!     DIR/counters  writes, bytes written, flushes, trims, since the start; by line
//!     DIR/mark      what is written here is recorded as a mark between the writes
//! disk cuts RECORD BACKING DIR
//!     BACKING has the content from before the record. It is changed.
//!     DIR/control   `K N SEED` written here makes a power cut at event K of N, K only growing; read: the last mark before it
//!     DIR/disk      what the cut left; what is written to it is gone with the next cut
//! ```
//!
//! Both go on until SIGTERM or SIGINT, then unmount DIR.

mod cuts;
mod files;
mod record;
mod serve;

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str =
    "usage: disk serve BACKING DIR [--flush-ms N] [--record FILE] | disk cuts RECORD BACKING DIR";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("disk: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", backing, dir, options @ ..] => {
            let (mut delay, mut record) = (Duration::ZERO, None);
            for pair in options.chunks(2) {
                match pair {
                    ["--flush-ms", ms] => {
                        delay = Duration::from_millis(
                            ms.parse()
                                .map_err(|_| format!("--flush-ms {ms}: no number"))?,
                        );
                    }
                    ["--record", file] => record = Some(Path::new(file)),
                    _ => return Err(USAGE.to_owned()),
                }
            }
            let disk = serve::Disk::open(Path::new(backing), delay, record)?;
            files::serve(disk, Path::new(dir))
        }
        ["cuts", record, backing, dir] => {
            let disk = cuts::Disk::open(Path::new(record), Path::new(backing))?;
            files::serve(disk, Path::new(dir))
        }
        _ => Err(USAGE.to_owned()),
    }
}
