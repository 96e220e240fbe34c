//! The NFS version 3 client of `bench/run nfs`, and of the tests that kill the server.
//!
//! Job: run one workload once against a server that is there, and print its figures; or work on while the server dies and
//! comes back, and compare everything that was acknowledged. It knows nothing about servers: scripts start those.
//!
//! ```text
//! nfs [OPTION...] smallfile COUNT              CREATE, WRITE 100 bytes FILE_SYNC, REMOVE
//! nfs [OPTION...] smallfile-commit COUNT       the same with WRITE UNSTABLE and COMMIT
//! nfs [OPTION...] metadata COUNT               rounds of CREATE, LOOKUP, GETATTR, SETATTR, RENAME, READDIR, REMOVE
//! nfs [OPTION...] largefile MIB                a new file: WRITE UNSTABLE of 64 KiB, a COMMIT for each 10 MiB
//! nfs [OPTION...] overwrite MIB                the same over a file that is there
//! nfs [OPTION...] read-sequential MIB          READ of 64 KiB from the beginning to the end
//! nfs [OPTION...] read-random MIB COUNT        READ of 4 KiB anywhere, one at a time
//! nfs [OPTION...] lookup ENTRIES COUNT         LOOKUP of names in random order in one directory, one at a time
//! nfs [OPTION...] idle COUNT                   GETATTR on an idle server, beside an echo server of the driver's own
//! nfs [OPTION...] directory ENTRIES            create, look up, list and remove, with figures for each tenth
//! nfs [OPTION...] crash SECONDS RECORD         work for this time, also if the server dies; RECORD is a directory
//! nfs [OPTION...] verify RECORD                compare the server's files with the record
//! nfs [OPTION...] wait SECONDS                 until the export can be mounted
//! ```
//!
//! Counts and sizes are those of all clients together. The output is lines `NAME VALUE`, the unit being the name's end.

mod crash;
mod data;
#[cfg(test)]
mod fake;
mod figures;
mod options;
mod uncommitted;
mod workload;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use figures::Figures;
use options::{Options, USAGE};
use steadfast_nfs_client::Failure;
use steadfast_nfs_client::client::Export;
use workload::Run;

const WAIT_PAUSE: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args).and_then(|text| {
        io::stdout()
            .write_all(text.as_bytes())
            .map_err(|e| format!("standard output: {e}"))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("nfs: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (options, words) = options::parse(&words)?;
    let says = |what: &str| {
        let what = what.to_owned();
        move |e: Failure| format!("{what}: {e}")
    };
    let load = || -> Result<Run, String> {
        Ok(Run {
            export: options.mount().map_err(says("mount"))?,
            clients: options.clients,
            server_pid: options.server_pid,
            window: options.window,
        })
    };
    let name = words.first().copied().unwrap_or_default();
    let figures = |result: Result<Figures, Failure>| {
        result.map(|figures| figures.lines("")).map_err(says(name))
    };
    match words {
        ["smallfile", count] => figures(workload::smallfile(&load()?, number(count)?, false)),
        ["smallfile-commit", count] => figures(workload::smallfile(&load()?, number(count)?, true)),
        ["metadata", count] => figures(workload::metadata(&load()?, number(count)?)),
        ["largefile", mib] => figures(workload::largefile(&load()?, number(mib)?, false)),
        ["overwrite", mib] => figures(workload::largefile(&load()?, number(mib)?, true)),
        ["read-sequential", mib] => figures(workload::sequential(&load()?, number(mib)?)),
        ["read-random", mib, count] => {
            figures(workload::random(&load()?, number(mib)?, number(count)?))
        }
        ["lookup", entries, count] => {
            figures(workload::lookup(&load()?, number(entries)?, number(count)?))
        }
        ["idle", count] => workload::idle(&load()?, number(count)?).map_err(says(name)),
        ["directory", entries] => {
            workload::directory(&load()?, number(entries)?).map_err(says(name))
        }
        ["crash", seconds, record] => {
            let export = options.mount().map_err(says("mount"))?;
            let load = crash::Load {
                clients: options.clients,
                seed: options.seed,
                duration: Duration::from_secs(number(seconds)?),
                exclusive: options.exclusive,
            };
            crash::run(&export, load, Path::new(record))
                .map(|statistics| statistics.lines())
                .map_err(says(name))
        }
        ["verify", record] => {
            let export = options.mount().map_err(says("mount"))?;
            crash::verify(&export, Path::new(record))
                .map(|statistics| statistics.lines())
                .map_err(says(name))
        }
        ["wait", seconds] => wait(&options, Duration::from_secs(number(seconds)?))
            .map(|_| String::new())
            .map_err(says(name)),
        _ => Err(USAGE.to_owned()),
    }
}

fn wait(options: &Options, patience: Duration) -> Result<Export, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        match options.mount() {
            Err(_) if Instant::now() < deadline => thread::sleep(WAIT_PAUSE),
            outcome => return outcome,
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("'{text}' is not a number above zero")),
    }
}
