//! Runs the program under test and others, for a minute each at most, and returns their output.
#![allow(dead_code, reason = "no program of tests uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_steadfast");

/// Runs a program in a directory.
pub(crate) fn run(dir: &Path, program: &str, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(args);
    command.current_dir(dir).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a program, again while it finds the mount or the image in use.
pub(crate) fn run_when_free(run: impl FnMut() -> Output) -> Output {
    let in_use = |output: &Output| {
        let said = said(output);
        !output.status.success()
            && (said.contains(": is in use") || said.contains("target is busy"))
    };
    steadfast_testkit::retry_while(in_use, run)
}

/// The whole output of a program.
pub(crate) fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Runs a program that must succeed; returns its output.
pub(crate) fn must(dir: &Path, program: &str, args: &[&str]) -> String {
    let output = run(dir, program, args);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the program under test, which must fail with this exit code; returns its output.
pub(crate) fn refused(dir: &Path, code: i32, args: &[&str]) -> String {
    let output = run(dir, PROGRAM, args);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{args:?}: {}",
        said(&output)
    );
    said(&output)
}

/// A program that runs during the test and ends with it.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Sends a signal that asks for the end; returns the exit code. The limit ends a test whose program hangs.
    pub(crate) fn end(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(300),
                "it does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
