//! The load generator of `bench/run`.
//!
//! Job: run one workload once on a directory and print the seconds it took; and turn many such results into a table
//! and one JSON object. It knows nothing about mounts and file systems: `bench/run` prepares those.
//!
//! ```text
//! load smallfile DIR COUNT THREADS    create, write 100 bytes, fsync, close; COUNT times
//! load varmail DIR ROUNDS THREADS     delete; create, write, fsync; read, append, fsync; read: 16 KiB each
//! load fileserver|webserver|webproxy DIR FILES ROUNDS THREADS
//!                                     filebench's mixes, without fsync
//! load log DIR COUNT                  append 1 KiB to a new file, fdatasync; COUNT times
//! load overwrites DIR COUNT           overwrite 4 KiB anywhere in a file of 16 MiB, fdatasync; COUNT times
//! load append DIR MIB                 append MIB mebibytes in pieces of 1 MiB to a new file, then one fsync
//! load append-4k DIR MIB              the same in pieces of 4 KiB
//! load largefile DIR MIB              overwrite MIB mebibytes in pieces of 4 KiB, an fsync for each 10 MiB
//! load read-sequential DIR MIB        read a file that is not cached, from the beginning to the end
//! load read-random DIR MIB COUNT      read COUNT blocks of 4 KiB anywhere in it
//! load sqlite DIR MODE COUNT          COUNT transactions of one insert each, journal MODE delete or wal
//! load untar ARCHIVE DIR              unpack an archive
//! load remove TREE                    rm -rf
//! load clone SOURCE DEST              git clone of a local repository
//! load checkout TREE REVISION         git checkout of a revision in a work tree
//! load createfiles DIR FILES THREADS  make files of 16 KiB in directories of 100
//! load randwrite FILE MIB COUNT       overwrite 4 KiB anywhere in a file of MIB mebibytes, an fsync for each hundred
//! load mail DIR COUNT HOW             deliver mails as qmail does; HOW: safe, data-first, once or never
//! load fill FILE MIB                  write MIB mebibytes from the beginning of a file on
//! load truncate FILE                  make it empty
//! load byte FILE                      append a byte; the seconds are those of the fsync alone
//! load bytes FILE COUNT MS            the same COUNT times, one each MS milliseconds; a line for each
//! load paced FILE RATE SECONDS        append RATE mebibytes each second
//! load lone-getattr|lone-lookup|lone-write DIR COUNT
//!                                     one client's calls, one after the other: attributes, absent names, 4 KiB
//! load report [--json] --subject NAME [KEY=VALUE…] <RESULTS
//! load figures --describe FILE --out DIR RESULTS-DIRECTORY...
//! ```
//!
//! `RESULTS` has one line per run: row, unit, `higher` or `lower` (which is better), system, value; separated by tabs. Lines that
//! begin with `#` say something about them.

mod figures;
mod report;
mod workload;

use std::env;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use workload::{Delivery, Mix};

const USAGE: &str = "usage: load WORKLOAD ARGUMENTS... | report [--json] --subject NAME [KEY=VALUE...] | \
                     figures --describe FILE --out DIR RESULTS-DIRECTORY...; \
                     WORKLOAD: smallfile, varmail, fileserver, webserver, webproxy, log, overwrites, append, append-4k, \
                     largefile, read-sequential, read-random, sqlite, untar, remove, clone, checkout, \
                     createfiles, randwrite, mail, fill, truncate, byte, bytes, paced, lone-getattr, lone-lookup, \
                     lone-write";

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
        ["smallfile", dir, count, threads] => {
            workload::smallfile(Path::new(dir), number(count)?, number(threads)?)?
        }
        ["varmail", dir, rounds, threads] => {
            workload::varmail(Path::new(dir), number(rounds)?, number(threads)?)?
        }
        [
            name @ ("fileserver" | "webserver" | "webproxy"),
            dir,
            files,
            rounds,
            threads,
        ] => {
            let mix = Mix::named(name).ok_or(USAGE)?;
            workload::mix(
                mix,
                Path::new(dir),
                number(files)?,
                number(rounds)?,
                number(threads)?,
            )?
        }
        ["log", dir, count] => workload::log(Path::new(dir), number(count)?)?,
        ["overwrites", dir, count] => workload::overwrites(Path::new(dir), number(count)?)?,
        ["append", dir, mib] => workload::append(Path::new(dir), number(mib)?)?,
        ["append-4k", dir, mib] => workload::append_pages(Path::new(dir), number(mib)?)?,
        ["largefile", dir, mib] => workload::largefile(Path::new(dir), number(mib)?)?,
        ["read-sequential", dir, mib] => workload::sequential_reads(Path::new(dir), number(mib)?)?,
        ["read-random", dir, mib, count] => {
            workload::random_reads(Path::new(dir), number(mib)?, number(count)?)?
        }
        ["sqlite", dir, mode @ ("delete" | "wal"), count] => {
            workload::sqlite(Path::new(dir), mode, number(count)?)?
        }
        ["untar", archive, dir] => workload::untar(Path::new(archive), Path::new(dir))?,
        ["remove", tree] => workload::remove(Path::new(tree))?,
        ["clone", source, dest] => workload::clone(Path::new(source), Path::new(dest))?,
        ["checkout", tree, revision] => workload::checkout(Path::new(tree), revision)?,
        ["createfiles", dir, files, threads] => {
            workload::create_files(Path::new(dir), number(files)?, number(threads)?)?
        }
        ["randwrite", file, mib, count] => {
            workload::randwrite(Path::new(file), number(mib)?, number(count)?)?
        }
        ["mail", dir, count, how] => {
            let how = Delivery::named(how).ok_or(USAGE)?;
            workload::mail(Path::new(dir), number(count)?, how)?
        }
        ["fill", file, mib] => workload::fill(Path::new(file), number(mib)?)?,
        ["truncate", file] => workload::truncate(Path::new(file))?,
        ["byte", file] => workload::byte(Path::new(file))?,
        ["bytes", file, count, interval] => {
            return workload::bytes(Path::new(file), number(count)?, number(interval)?);
        }
        ["lone-getattr", dir, count] => workload::attributes(Path::new(dir), number(count)?)?,
        ["lone-lookup", dir, count] => workload::lookups(Path::new(dir), number(count)?)?,
        ["lone-write", dir, count] => workload::writes(Path::new(dir), number(count)?)?,
        ["paced", file, rate, seconds] => {
            workload::paced(Path::new(file), number(rate)?, number(seconds)?)?
        }
        ["figures", options @ ..] => return figures::run(options),
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
