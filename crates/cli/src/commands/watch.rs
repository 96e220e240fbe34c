//! The watcher of a background server. It passes the server's messages on to the system's log. When something kills
//! the server (a signal, or the kernel for lack of memory), the watcher says so there: a killed process cannot.
//!
//! It holds nothing of the volume. If it is killed itself, only messages are lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::OFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use steadfast_fuse::Unmount;

use crate::commands::serve;
use crate::failure::Failure;
use crate::mount_options::Options;
use crate::syslog::{self, Level};

/// Starts the server by this command and stays until the server ends. The server uses the starter's standard output
/// and error until the mount answers; then it writes to its standard input.
pub(crate) fn run(
    mut server: Command,
    image: &Path,
    dir: &Path,
    options: &Options,
) -> Result<ExitCode, Failure> {
    // Detached from the terminal and its signals: the server decides when it ends.
    let _ = rustix::process::setsid();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let failed = |what: &str, e: std::io::Error| Failure::new(format!("{what}: {e}"));
    let (said, saying) =
        std::io::pipe().map_err(|e| failed("a pipe for the server's messages", e))?;
    // A server does not wait for its log.
    let _ = rustix::fs::fcntl_setfl(&saying, OFlags::NONBLOCK);
    let mut child = server
        .stdin(Stdio::from(saying))
        .spawn()
        .map_err(|e| failed("starting the server", e))?;
    // The command holds the pipe, too.
    drop(server);
    let pid = child.id();
    serve::let_go(None).map_err(|e| failed("leaving the terminal", e))?;
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        let line = line.strip_prefix("steadfast: ").unwrap_or(&line);
        syslog::send(Level::Warning, line);
    }
    let status = child
        .wait()
        .map_err(|e| failed("waiting for the server", e))?;
    if let Some(signal) = status.signal() {
        killed(
            &format!(
                "{}: the server of {} (process {pid}) was killed by {}: what was not durable is lost; \
             'steadfast umount {}' says more",
                image.display(),
                dir.display(),
                name_of(signal),
                dir.display()
            ),
            options,
        );
        if options.auto_unmount {
            let _ = steadfast_fuse::unmount(dir, Unmount::Detach);
        }
    }
    Ok(exit_code(status))
}

fn killed(message: &str, options: &Options) {
    syslog::send(Level::Error, message);
    if let Some(log) = &options.log
        && let Ok(mut file) = File::options().append(true).open(log)
    {
        let _ = writeln!(file, "steadfast: {message}");
    }
}

/// As in shells.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
        .into()
}

/// The signal that an exit code stands for, in words.
pub(crate) fn signal_of(code: u8) -> Option<String> {
    code.checked_sub(128)
        .filter(|&signal| signal > 0)
        .map(|signal| name_of(i32::from(signal)))
}

fn name_of(signal: i32) -> String {
    match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal} ({name})"),
        None if signal == 9 => "signal 9 (SIGKILL)".to_owned(),
        None => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_and_exit_codes_are_not_signals() {
        assert_eq!(name_of(9), "signal 9 (SIGKILL)");
        assert_eq!(signal_of(128 + 11).as_deref(), Some("signal 11 (SIGSEGV)"));
        for code in [0, 1, 2, 32, 128] {
            assert_eq!(signal_of(code), None);
        }
    }
}
