//! The commands that judge a state: the checker's contract.
//!
//! A state is laid out as a directory of its own in memory (`/dev/shm`, else the directory for temporary files) and
//! is removed after the verdict. `recover` may write, `check` judges. The state is their working directory and
//! `$CRASH_DIR`; `$CRASH_ACKED` names a file with the lines that must be there, `$CRASH_ISSUED` one with the lines
//! that may be. Exit status 0 is good, 77 no verdict, 126 and 127 our error, any other broken. The first line of
//! output groups findings. A command that runs when the exploration ends is ended, and its state has no verdict.
//!
//! If the kernel offers them (`unshare`), commands run in process and mount namespaces of their own, so that nothing
//! of theirs is left; otherwise in a process group that is killed.

mod lay;
mod run;

pub use lay::lay_out;
pub use run::Isolation;

use crate::effects::Disk;
use crate::record::looked::{self, ServedState, Stages};
use crate::record::view::{Look, View};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Exit status that gives no verdict.
const NO_VERDICT: i32 = 77;
/// Maximum length of the first line that groups findings, in characters.
const LINE_MAX: usize = 160;

/// Commands to run, with their limits.
#[derive(Clone, Debug)]
pub struct Checker {
    /// Runs first and may write.
    pub recover: Option<String>,
    /// Judges. Without it, `recover` must exit with 0 and print the same twice.
    pub check: Option<String>,
    /// Time limit of each command.
    pub time: Duration,
    /// Limit of its address space in bytes.
    pub memory: Option<u64>,
    /// Isolation of the commands.
    pub isolation: Isolation,
    /// Directory for states.
    pub scratch: PathBuf,
    /// Becomes true when commands are to end early; clones share it.
    pub stop: Arc<AtomicBool>,
    /// When commands are to end early, if ever.
    pub until: Option<Instant>,
    /// Mounts that serve states; clones share them.
    stages: Arc<Stages>,
}

/// Verdict of a checker on a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong.
    Fine,
    /// The checker could not tell.
    None,
    /// The commands were ended early, or not begun: [`Checker::stop`], [`Checker::until`].
    Unfinished,
    /// The checker could not be run.
    Error(String),
    /// Something is wrong.
    Broken {
        /// The first line of its output: findings with the same line are one.
        line: String,
        /// Its whole output, cut at 64 KiB.
        output: String,
    },
}

impl Verdict {
    /// Whether something is wrong.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, Verdict::Broken { .. })
    }
}

/// Result of one command.
struct Ran {
    end: End,
    output: String,
}

/// The end of a command.
enum End {
    /// Its exit status.
    Code(i32),
    /// It was killed, for this reason.
    Killed(String),
    /// It was ended early, or not begun.
    Early,
}

impl Checker {
    /// A checker with the usual limits.
    ///
    /// # Errors
    /// If there is no place for states.
    pub fn new(recover: Option<String>, check: Option<String>) -> io::Result<Checker> {
        Ok(Checker {
            recover,
            check,
            time: Duration::from_secs(30),
            memory: None,
            isolation: Isolation::probe(),
            scratch: scratch()?,
            stop: Arc::default(),
            until: None,
            stages: Arc::default(),
        })
    }

    /// Whether commands are to end early.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Judges a state. `acked` must be there, `issued` may be.
    ///
    /// # Errors
    /// If the state cannot be laid out.
    pub fn judge(&self, disk: &Disk, acked: &[String], issued: &[String]) -> io::Result<Verdict> {
        let place = self.place()?;
        let dir = place.path().join("state");
        lay_out(disk, &dir)?;
        let verdict = self.judge_in(place.path(), &dir, acked, issued);
        // Directories may have lost their permission bits.
        lay::make_removable(&dir);
        verdict
    }

    /// Judges a directory as it is, and leaves it. `scratch` is for the commands' files.
    ///
    /// # Errors
    /// If a command cannot be run.
    pub fn judge_in(
        &self,
        scratch: &Path,
        dir: &Path,
        acked: &[String],
        issued: &[String],
    ) -> io::Result<Verdict> {
        let lines = |name: &str, lines: &[String]| {
            let path = scratch.join(name);
            std::fs::write(&path, looked::lines(lines)).map(|()| path)
        };
        let (acked, issued) = (lines("acked", acked)?, lines("issued", issued)?);
        self.judge_at(scratch, dir, &acked, &issued)
    }

    /// The same on a mount, as in explorations if a mount is possible.
    ///
    /// # Errors
    /// If the state cannot be served.
    pub fn judge_served(
        &self,
        disk: &Disk,
        acked: &[String],
        issued: &[String],
    ) -> io::Result<Verdict> {
        let (verdict, _) = self.judge_looked(&View::new(disk, acked, issued))?;
        Ok(verdict)
    }

    /// The same on a mount that records looks. If no mount is possible, the state is laid out and no look is
    /// recorded.
    ///
    /// # Errors
    /// If the state cannot be served.
    pub(crate) fn judge_looked(&self, view: &View<'_>) -> io::Result<(Verdict, Option<Vec<Look>>)> {
        let place = self.place()?;
        // A process group may leave processes that still see the mount.
        let again = self.isolation != Isolation::Group;
        // A checker on a stage does not own the stages.
        let checker = Checker {
            stages: Arc::default(),
            ..self.clone()
        };
        let scratch = place.path().to_owned();
        let judge =
            move |s: &ServedState<'_>| checker.judge_at(&scratch, s.dir, &s.acked, &s.issued);
        match self.stages.serve(view, again, judge)? {
            Some((verdict, looks)) => Ok((verdict?, Some(looks))),
            None => {
                let verdict = self.judge(view.disk(), view.acked(), view.issued());
                Ok((verdict?, None))
            }
        }
    }

    fn place(&self) -> io::Result<tempfile::TempDir> {
        tempfile::Builder::new()
            .prefix("steadfast-crash.")
            .tempdir_in(&self.scratch)
    }

    fn judge_at(
        &self,
        place: &Path,
        dir: &Path,
        acked: &Path,
        issued: &Path,
    ) -> io::Result<Verdict> {
        let run = |command: &str| {
            let environment = [
                ("CRASH_DIR", dir),
                ("CRASH_ACKED", acked),
                ("CRASH_ISSUED", issued),
            ];
            let output = place.join("output");
            run::run(command, dir, &environment, &output, self)
        };
        self.judged(&run)
    }

    fn judged(&self, run: &dyn Fn(&str) -> io::Result<Ran>) -> io::Result<Verdict> {
        let mut said = None;
        if let Some(recover) = &self.recover {
            let ran = run(recover)?;
            match verdict(&ran, "recovery: ") {
                Verdict::Fine => said = Some(ran.output),
                other => return Ok(other),
            }
        }
        if let Some(check) = &self.check {
            return Ok(verdict(&run(check)?, ""));
        }
        let (Some(recover), Some(said)) = (&self.recover, said) else {
            return Ok(Verdict::Error(
                "there is neither --check nor --recover".to_owned(),
            ));
        };
        let again = run(recover)?;
        match verdict(&again, "second recovery: ") {
            Verdict::Fine if again.output != said => Ok(Verdict::Broken {
                line: "a second recovery says something else".to_owned(),
                output: format!("first:\n{said}\nsecond:\n{}", again.output),
            }),
            other => Ok(other),
        }
    }
}

fn verdict(ran: &Ran, prefix: &str) -> Verdict {
    let broken = |why: String| {
        let first = ran.output.lines().map(str::trim).find(|l| !l.is_empty());
        let line: String = first
            .map_or(why, str::to_owned)
            .chars()
            .take(LINE_MAX)
            .collect();
        Verdict::Broken {
            line: format!("{prefix}{line}"),
            output: ran.output.clone(),
        }
    };
    match &ran.end {
        End::Code(0) => Verdict::Fine,
        End::Code(NO_VERDICT) => Verdict::None,
        End::Code(126 | 127) => {
            let first = ran.output.lines().next().unwrap_or("no output");
            Verdict::Error(format!("the checker could not be run: {first}"))
        }
        End::Code(code) => broken(format!("exit status {code}")),
        End::Early => Verdict::Unfinished,
        End::Killed(why) => Verdict::Broken {
            line: format!("{prefix}{why}"),
            output: ran.output.clone(),
        },
    }
}

/// Directory for states: in memory if there is room.
fn scratch() -> io::Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let usable = |dir: &Path| {
        tempfile::Builder::new()
            .prefix("steadfast-crash.")
            .tempdir_in(dir)
            .is_ok()
    };
    if usable(memory) {
        return Ok(memory.to_owned());
    }
    let other = std::env::temp_dir();
    match usable(&other) {
        true => Ok(other),
        false => Err(io::Error::other(format!(
            "no place for states: {} cannot be written",
            other.display()
        ))),
    }
}
