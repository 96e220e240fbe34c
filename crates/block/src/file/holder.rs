//! Processes that have a file locked: for a message that says more than "in use".
//!
//! The kernel lists locks in `/proc/locks`, by process, device and inode. Where it hides them (another pid namespace, a
//! file system that shows another device number), nothing is found, and the message says less; nothing depends on it.

use std::path::Path;

use rustix::fs::{major, minor, stat};

/// A process that holds a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its command line, words separated by spaces; empty if it may not be known.
    pub command: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "process {}", self.pid),
            command => write!(f, "'{command}' (process {})", self.pid),
        }
    }
}

/// Longest command line that is shown, in characters.
const COMMAND_MAX: usize = 200;

/// The processes that hold a lock on the file at `path`, other than this one.
#[must_use]
pub fn holders(path: &Path) -> Vec<Holder> {
    let (Ok(stat), Ok(locks)) = (stat(path), std::fs::read_to_string("/proc/locks")) else {
        return Vec::new();
    };
    let file = format!(
        "{:02x}:{:02x}:{}",
        major(stat.st_dev),
        minor(stat.st_dev),
        stat.st_ino
    );
    let mut pids: Vec<u32> = locks
        .lines()
        .filter_map(|line| owner(line, &file))
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|pid| *pid != std::process::id());
    pids.into_iter()
        .map(|pid| Holder {
            pid,
            command: command(pid),
        })
        .collect()
}

/// The process of a line such as `3: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`, if it is about this file. Lines of
/// processes that wait have an arrow in the second place, and hold nothing.
fn owner(line: &str, file: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let kind = words.next()?;
    let (pid, of) = (words.nth(2)?, words.next()?);
    if kind == "->" || of != file {
        return None;
    }
    pid.parse().ok().filter(|pid| *pid > 0)
}

/// Characters that could disturb a terminal are left out.
fn command(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let line = words.join(" ");
    line.chars()
        .filter(|c| !c.is_control())
        .take(COMMAND_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let file = "08:01:1234";
        let of = |line: &str| owner(line, file);
        assert_eq!(
            of("1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"),
            Some(4711)
        );
        assert_eq!(
            of("1: -> FLOCK  ADVISORY  WRITE 4712 08:01:1234 0 EOF"),
            None
        );
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 4711 08:01:12345 0 EOF"), None);
        // A process that is not visible from here; a lock of an open file that belongs to none.
        assert_eq!(of("1: FLOCK  ADVISORY  WRITE 0 08:01:1234 0 EOF"), None);
        assert_eq!(of("1: OFDLCK ADVISORY  WRITE -1 08:01:1234 0 EOF"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn the_process_that_holds_a_lock_is_named() -> std::io::Result<()> {
        use std::io::Read;
        use std::process::{Command, Stdio};
        let file = tempfile::NamedTempFile::new()?;
        let mut held = Command::new("flock")
            .arg(file.path())
            .args(["sh", "-c", "echo locked; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = [0; 7];
        let read = held.stdout.as_mut().map(|out| out.read_exact(&mut said));
        let found = holders(file.path());
        drop(held.stdin.take());
        held.wait()?;
        read.transpose()?;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].command.contains("flock"), "{found:?}");
        assert_eq!(holders(file.path()), Vec::new());
        Ok(())
    }
}
