//! Power-cut tests: workload and check as closures, over the command `steadfast crash test`.
//!
//! A test with a [`CrashTest`] is started three times over. The outer process runs the command. The command starts this test binary
//! again for the workload, whose calls it records, and once for each state that a power cut could leave, for the check. Both find
//! their way back to the same test by its name, and end there.
//!
//! ```no_run
//! # use std::{fs, path::Path};
//! # use steadfast_crash_test::{CrashTest, State};
//! let save = |dir: &Path| fs::write(dir.join("f"), "new").unwrap();
//! let check = |state: &State| assert!(!state.dir.join("f").exists() || state.acked.is_empty());
//! CrashTest::new(save, check).run().unwrap().assert_survives();
//! ```

mod live;

pub use live::LiveMount;

use serde::Deserialize;
use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sets the task of a process of this test binary: the test's name, and `workload` or `check`.
const ROLE: &str = "STEADFAST_CRASH_TEST_ROLE";
/// Names the command, if it is not `steadfast` in `PATH`.
const COMMAND: &str = "STEADFAST";

/// A state that a power cut could leave.
#[derive(Debug)]
pub struct State {
    /// The files.
    pub dir: PathBuf,
    /// Texts that the workload acknowledged before the cut: they must hold.
    pub acked: Vec<String>,
    /// These texts, and those that it may have been about to acknowledge: they may hold.
    pub issued: Vec<String>,
}

/// Reason why there is no result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{command}: {source}; install steadfast, or name the command in STEADFAST")]
    Start {
        command: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    NotRun(String),
    #[error("the answer of the command: {0}")]
    Answer(#[from] serde_json::Error),
}

/// One way in which the workload does not survive.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Finding {
    /// `V1`, `V2`, …
    pub id: String,
    /// `broken`, or `acknowledged and lost`.
    pub kind: String,
    /// The first line of the check's output.
    pub line: String,
    /// The file systems, with the calls to blame.
    pub under: Vec<Under>,
}

/// A finding on one file system.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Under {
    /// The model.
    pub model: String,
    /// The call whose effect is durable.
    pub durable: Option<Blamed>,
    /// Earlier calls whose effects are not.
    pub lost: Vec<Blamed>,
}

/// A call to blame.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Blamed {
    /// Its number.
    pub call: u64,
    /// Text of the call.
    pub text: String,
}

/// Result of a test.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Report {
    /// Findings, worst first.
    pub findings: Vec<Finding>,
    /// Limits of the result.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The report as `steadfast crash test` prints it.
    #[serde(skip)]
    pub text: String,
}

impl Report {
    /// # Panics
    /// If anything was found; the message is the report.
    #[allow(clippy::panic)]
    pub fn assert_survives(&self) {
        if !self.findings.is_empty() {
            panic!("a power cut breaks it:\n{self}");
        }
    }

    /// Whether the check said this of a state on this file system.
    #[must_use]
    pub fn has(&self, model: &str, line: &str) -> bool {
        let mut found = self.findings.iter().filter(|f| f.line.contains(line));
        found.any(|f| f.under.iter().any(|u| u.model == model))
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for finding in &self.findings {
            let on: Vec<&str> = finding.under.iter().map(|u| u.model.as_str()).collect();
            writeln!(
                f,
                "{} {} on {}: {}",
                finding.id,
                finding.kind,
                on.join(", "),
                finding.line
            )?;
            if let Some(under) = finding.under.first() {
                if let Some(durable) = &under.durable {
                    writeln!(f, "  durable  #{} {}", durable.call, durable.text)?;
                }
                for lost in &under.lost {
                    writeln!(f, "  lost     #{} {}", lost.call, lost.text)?;
                }
            }
        }
        Ok(())
    }
}

/// A workload, a check, and the file systems.
pub struct CrashTest<W, C> {
    name: String,
    workload: W,
    check: C,
    options: Vec<OsString>,
}

/// Says, in a workload, that something is done and must survive.
///
/// # Errors
/// If the recorder does not take it.
pub fn ack(text: &str) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("STEADFAST_CRASH_ACK") else {
        return Ok(());
    };
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

impl<W: Fn(&Path), C: Fn(&State)> CrashTest<W, C> {
    /// For a test function that makes both closures. The workload gets the directory that it may write to; the check fails by a panic.
    #[must_use]
    pub fn new(workload: W, check: C) -> CrashTest<W, C> {
        CrashTest {
            name: test_of(std::any::type_name::<W>()),
            workload,
            check,
            options: Vec::new(),
        }
    }

    /// The file systems, separated by commas: names of `steadfast crash models`, or files.
    #[must_use]
    pub fn on(self, models: &str) -> CrashTest<W, C> {
        self.option("--fs").option(models)
    }

    /// An option of `steadfast crash test`.
    #[must_use]
    pub fn option(mut self, option: impl Into<OsString>) -> CrashTest<W, C> {
        self.options.push(option.into());
        self
    }

    /// Records the workload and judges every state.
    ///
    /// # Errors
    /// If the command is not there or cannot run the workload.
    pub fn run(self) -> Result<Report, Error> {
        match std::env::var(ROLE).ok().and_then(|r| role(&r, &self.name)) {
            Some(Role::Workload) => self.be_workload(),
            Some(Role::Check) => self.be_check(),
            None => self.run_command(),
        }
    }

    fn be_workload(&self) -> ! {
        let dir = std::env::var_os("CRASH_DIR").unwrap_or_else(|| ".".into());
        (self.workload)(Path::new(&dir));
        std::process::exit(0)
    }

    fn be_check(&self) -> ! {
        let lines = |variable: &str| -> Vec<String> {
            let path = std::env::var_os(variable).unwrap_or_default();
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        };
        let state = State {
            dir: std::env::var_os("CRASH_DIR").unwrap_or_default().into(),
            acked: lines("CRASH_ACKED"),
            issued: lines("CRASH_ISSUED"),
        };
        // The first line groups findings: the message alone.
        std::panic::set_hook(Box::new(|info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            eprintln!("{}", text.unwrap_or_else(|| info.to_string()));
        }));
        let judged = catch_unwind(AssertUnwindSafe(|| (self.check)(&state)));
        std::process::exit(i32::from(judged.is_err()))
    }

    fn run_command(&self) -> Result<Report, Error> {
        let binary = std::env::current_exe().map_err(|source| Error::Start {
            command: "this test binary".to_owned(),
            source,
        })?;
        let program = command();
        let failed = |source| Error::Start {
            command: program.to_string_lossy().into_owned(),
            source,
        };
        // Output of the test harness is no acknowledgement, and no part of a verdict.
        let again = |role: &str, output: &str| {
            let words = [
                format!("{ROLE}={role}:{}", self.name),
                binary.to_string_lossy().into_owned(),
                self.name.clone(),
                "--exact".to_owned(),
                "--nocapture".to_owned(),
            ];
            let quoted: Vec<String> = words.iter().map(|w| quote(w)).collect();
            format!("exec env {} {output}", quoted.join(" "))
        };
        let mut command = Command::new(&program);
        command
            .args(["crash", "test", "--json"])
            .args(&self.options);
        let check = again("check", "2>&1 >/dev/null");
        command.arg("--check").arg(check);
        let workload = again("workload", ">/dev/null");
        command.args(["--", "sh", "-c", &workload]);
        let output = command.output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0 | 1 | 4) if !text.trim().is_empty() => {
                let mut report: Report = serde_json::from_str(&text)?;
                report.text = text;
                Ok(report)
            }
            _ => Err(Error::NotRun(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            )),
        }
    }
}

enum Role {
    Workload,
    Check,
}

/// Role of this process, if it belongs to this test.
fn role(text: &str, name: &str) -> Option<Role> {
    match text.split_once(':') {
        Some(("workload", of)) if of == name => Some(Role::Workload),
        Some(("check", of)) if of == name => Some(Role::Check),
        _ => None,
    }
}

pub(crate) fn command() -> OsString {
    std::env::var_os(COMMAND).unwrap_or_else(|| "steadfast".into())
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The test that a closure is of: `crate::module::test::{{closure}}` is `module::test`.
fn test_of(closure: &str) -> String {
    let function = closure.split("::{{closure}}").next().unwrap_or(closure);
    let inside = function.split_once("::").map_or(function, |(_, rest)| rest);
    inside.to_owned()
}

#[cfg(test)]
mod tests {
    use super::{quote, test_of};

    #[test]
    fn a_closure_names_its_test() {
        assert_eq!(test_of("krate::a::b::{{closure}}"), "a::b");
        assert_eq!(test_of("krate::b::{{closure}}::{{closure}}"), "b");
        let here = || ();
        fn name<T>(_: &T) -> &'static str {
            std::any::type_name::<T>()
        }
        assert_eq!(test_of(name(&here)), "tests::a_closure_names_its_test");
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quote("it's"), "'it'\\''s'");
    }
}
