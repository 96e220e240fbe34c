//! `steadfast put`: replaces a file with standard input, on any file system, so that a crash
//! leaves the old content or the new one.
//!
//! A signal leaves the file as it was, and no temporary file; while the new content is put in place, the signal
//! waits.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast::Replacement;

use crate::failure::{Failure, notice};

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Replace nothing; remove the temporary files that earlier writers of FILE left when the power failed
    #[arg(long)]
    recover: bool,
    /// File to replace or make, with the content of standard input
    file: PathBuf,
}

/// The replacement under way; none before and after.
type Pending = Arc<Mutex<Option<Replacement>>>;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.recover {
        let removed = steadfast::remove_leftovers(&args.file).map_err(failure)?;
        if removed > 0 {
            notice(&format!(
                "{}: {removed} temporary files removed",
                args.file.display()
            ));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let pending = Pending::default();
    // Locked while the temporary file is made, so that no signal misses it.
    let mut update = lock(&pending);
    give_up_at_signals(Arc::clone(&pending))?;
    *update = Some(Replacement::begin(&args.file).map_err(failure)?);
    drop(update);
    let mut buffer = vec![0; READ_BYTES];
    let mut input = std::io::stdin().lock();
    loop {
        let len = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => {
                lock(&pending).take();
                return Err(Failure::new(format!(
                    "standard input: {e}; {} is as it was",
                    args.file.display()
                )));
            }
        };
        let mut update = lock(&pending);
        let written = update.as_mut().map(|update| update.write(&buffer[..len]));
        if let Some(Err(error)) = written {
            update.take();
            return Err(failure(error));
        }
    }
    let mut update = lock(&pending);
    match update.take().map(Replacement::commit) {
        Some(Err(error)) => Err(failure(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn failure(error: steadfast::ReplaceError) -> Failure {
    Failure::new(error.to_string())
}

fn lock(pending: &Pending) -> MutexGuard<'_, Option<Replacement>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a signal remove the temporary file before it ends this process.
fn give_up_at_signals(pending: Pending) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let mut update = lock(&pending);
                update.take();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        })
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
    Ok(())
}
