//! Running the program under test and others: at most a minute each, and what they said.
#![allow(dead_code, reason = "no program of tests uses all of it")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_steadfast");

/// Runs a program in a directory.
pub(crate) fn run(dir: &Path, program: &str, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(args);
    command.current_dir(dir).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a program, again for as long as it finds the mount or the image in use: a child of a neighbouring test holds all
/// files of this process until it executes its program. The limit ends a test whose mount stays in use.
pub(crate) fn run_when_free(mut run: impl FnMut() -> Output) -> Output {
    let begun = Instant::now();
    loop {
        let output = run();
        let said = said(&output);
        let in_use = said.contains(": is in use") || said.contains("target is busy");
        if output.status.success() || !in_use || begun.elapsed() > Duration::from_secs(300) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All that it said.
pub(crate) fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Runs a program that must succeed; its output.
pub(crate) fn must(dir: &Path, program: &str, args: &[&str]) -> String {
    let output = run(dir, program, args);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the program under test, which must fail with this exit code; what it said.
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
