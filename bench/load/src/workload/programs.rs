//! Other people's programs: git, tar, rm, SQLite.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Clones the repository at `source` into the new directory `dest`, objects copied, work tree checked out.
pub(crate) fn clone(source: &Path, dest: &Path) -> Result<f64, String> {
    timed(
        Command::new("git")
            .args(["clone", "--quiet", "--no-hardlinks"])
            .arg(source)
            .arg(dest),
    )
}

/// Checks a revision out in the work tree `repository`.
pub(crate) fn checkout(repository: &Path, revision: &str) -> Result<f64, String> {
    timed(
        Command::new("git")
            .arg("-C")
            .arg(repository)
            .args(["checkout", "--quiet", "--detach", revision]),
    )
}

/// Unpacks an archive into `dir`.
pub(crate) fn untar(archive: &Path, dir: &Path) -> Result<f64, String> {
    timed(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(dir),
    )
}

/// Removes a tree.
pub(crate) fn remove(tree: &Path) -> Result<f64, String> {
    timed(Command::new("rm").arg("-rf").arg(tree))
}

/// Inserts `count` rows of 100 bytes into a new database in `dir`, each in a transaction of its own that is durable
/// (`synchronous=FULL`), with this journal mode.
pub(crate) fn sqlite(dir: &Path, mode: &str, count: u32) -> Result<f64, String> {
    let database = dir.join("database");
    let setup = format!(
        "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL; CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT);"
    );
    run_sql(&database, &setup)?;
    let mut script = format!("PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n");
    for i in 0..count {
        let _ = writeln!(
            script,
            "INSERT INTO t(text) VALUES('{i:020}{:080}');",
            u64::from(i) * 7919
        );
    }
    let start = Instant::now();
    run_sql(&database, &script)?;
    let seconds = start.elapsed().as_secs_f64();
    let there = run_sql(&database, "SELECT count(*) FROM t;")?;
    if there.trim() == count.to_string() {
        Ok(seconds)
    } else {
        Err(format!("{} rows are there, not {count}", there.trim()))
    }
}

fn run_sql(database: &Path, script: &str) -> Result<String, String> {
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("could not start sqlite3: {e}"))?;
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(script.as_bytes())
            .map_err(|e| format!("sqlite3: {e}"))?;
    }
    let output = child
        .wait_with_output()
        .map_err(|e| format!("sqlite3: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!(
            "sqlite3 on {}: {}",
            database.display(),
            output.status
        ))
    }
}

fn timed(command: &mut Command) -> Result<f64, String> {
    let start = Instant::now();
    let status = command
        .status()
        .map_err(|e| format!("could not start {command:?}: {e}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if status.success() {
        Ok(seconds)
    } else {
        Err(format!("{command:?}: {status}"))
    }
}
