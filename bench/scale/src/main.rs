//! The driver of `bench/run scale`.
//!
//! Job: take one measure on one volume, in a process of its own so that its memory is that of the measure, and print the
//! figures as lines: `curve NAME UNIT SHARE TIME CPU MIB` for each tenth of a long load (time and processor time per operation,
//! resident memory), `value NAME UNIT VALUE` for a single number. `scale report` turns such lines into a table and one JSON
//! object. `bench/scale.sh` sets the order of the measures.

mod directory;
mod figures;
mod file;
mod growth;
mod mounted;
mod report;
mod tree;
mod volume;

use figures::Figures;
use std::env;
use std::io::{self, Write as _};
use std::path::Path;

const USAGE: &str = "\
usage: scale MEASURE
  mkfs IMAGE BYTES             makes a sparse image, and a volume in it
  mount IMAGE                  mounts it, asks for its free space, unmounts it
  directory IMAGE COUNT        files in one directory: created, looked up after a new mount, listed, removed
  tree IMAGE COUNT             inodes in directories of 1000
  file IMAGE BYTES WRITES      one sparse file: random writes and reads, holes punched, cut in half, removed
  crash IMAGE COUNT            leaves files that are durable in the log alone
  fsck IMAGE                   checks the volume
  growth IMAGE SIZE            what must not take longer with so many entries, inodes known or pages
  mounted DIR COUNT PID        files in one directory of a mount, whose server is PID
  report [--json] [KEY=VALUE…] <FIGURES
Prints one line for each figure.";

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = run(&words).and_then(|text| {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|e| format!("standard output: {e}"))
    });
    // Ends here and now, so that the files of `crash` stay as they are.
    std::process::exit(match done {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("scale: {message}");
            1
        }
    })
}

fn run(words: &[&str]) -> Result<String, String> {
    let mut figures = Figures;
    match words {
        ["mkfs", image, bytes] => volume::make(Path::new(image), number(bytes)?, &mut figures)?,
        ["mount", image] => volume::mount(Path::new(image), &mut figures)?,
        ["crash", image, count] => volume::crash(Path::new(image), number(count)?)?,
        ["fsck", image] => volume::check(Path::new(image), &mut figures)?,
        ["directory", image, count] => {
            directory::measure(Path::new(image), number(count)?, &mut figures)?;
        }
        ["tree", image, count] => tree::measure(Path::new(image), number(count)?, &mut figures)?,
        ["growth", image, size] => {
            growth::measure(Path::new(image), number(size)?, &mut figures)?;
        }
        ["file", image, bytes, writes] => {
            file::measure(
                Path::new(image),
                number(bytes)?,
                number(writes)?,
                &mut figures,
            )?;
        }
        ["mounted", dir, count, pid] => {
            mounted::measure(
                Path::new(dir),
                number(count)?,
                number(pid)? as u32,
                &mut figures,
            )?;
        }
        ["report", options @ ..] => return report::run(options, io::stdin().lock()),
        _ => return Err(USAGE.to_owned()),
    }
    Ok(String::new())
}

fn number(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a number above zero")),
    }
}
