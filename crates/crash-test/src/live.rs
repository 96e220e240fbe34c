//! A mount whose power can be cut while programs use it: `steadfast crash mount` and its like.

use super::{Error, command};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A live mount; unmounted when it is dropped.
#[derive(Debug)]
pub struct LiveMount {
    mnt: PathBuf,
}

impl LiveMount {
    /// Mounts a copy of `dir` at `mnt`, with the model of a file system.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub fn mount(model: &str, dir: &Path, mnt: &Path) -> Result<LiveMount, Error> {
        let mut words = Command::new(command());
        words.args(["crash", "mount", "--fs", model, "--"]);
        done(words.arg(dir).arg(mnt))?;
        Ok(LiveMount {
            mnt: mnt.to_owned(),
        })
    }

    fn ask(&self, what: &str, options: &[&str]) -> Result<serde_json::Value, Error> {
        let mut words = Command::new(command());
        words.args(["crash", what, "--json"]).args(options);
        let text = done(words.arg("--").arg(&self.mnt))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Cuts the power: `durable`, `random` or `worst`. Every later call fails until [`LiveMount::power_on`].
    ///
    /// # Errors
    /// If the mount does not answer.
    pub fn cut(&self, policy: &str, seed: u64) -> Result<serde_json::Value, Error> {
        self.ask("cut", &["--policy", policy, "--seed", &seed.to_string()])
    }

    /// Shows the surviving state.
    ///
    /// # Errors
    /// If the power is on, or the mount does not answer.
    pub fn power_on(&self) -> Result<serde_json::Value, Error> {
        self.ask("power-on", &[])
    }

    /// Makes calls fail: the options of `steadfast crash fail`.
    ///
    /// # Errors
    /// If an option is wrong, or the mount does not answer.
    pub fn fail(&self, options: &[&str]) -> Result<serde_json::Value, Error> {
        self.ask("fail", options)
    }

    /// Changes that are not durable.
    ///
    /// # Errors
    /// If the mount does not answer.
    pub fn status(&self) -> Result<serde_json::Value, Error> {
        self.ask("status", &[])
    }
}

impl Drop for LiveMount {
    fn drop(&mut self) {
        let mut words = Command::new(command());
        let _ = done(words.args(["crash", "stop", "--"]).arg(&self.mnt));
    }
}

fn done(command: &mut Command) -> Result<String, Error> {
    let output = command.output().map_err(|source| Error::Start {
        command: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Error::NotRun(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}
