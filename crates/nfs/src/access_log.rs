//! The access log: a line for each call and each mount. A separate thread writes it.
//!
//! ```text
//! 2026-03-01T12:00:00.123Z 10.0.0.7:801 WRITE export=/data uid=1000 handle=4711.1 status=OK us=83
//! ```
//!
//! Names are those of RFC 1813. Bytes chosen by clients are escaped, so they cannot break a line. No call waits for the log: if
//! [`LINES_MAX`] lines are waiting, further ones are dropped, and a line reports their number. [`AccessLog::reopen`] begins a
//! new file at the same path, for tools that move the old one away.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most waiting lines.
const LINES_MAX: usize = 4096;

/// Target of the lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Standard output.
    Output,
    /// The end of a file. A new file is accessible only to its owner.
    File(PathBuf),
}

enum Entry {
    Line(String),
    /// Continue in this file.
    Reopened(Box<dyn Write + Send>),
}

#[derive(Debug)]
struct Inner {
    target: Target,
    dropped: Arc<AtomicU64>,
    lines: Mutex<Option<SyncSender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// See the module's header. Clones are the same log.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<Inner>);

fn open(target: &Target) -> std::io::Result<Box<dyn Write + Send>> {
    Ok(match target {
        Target::Output => Box::new(std::io::stdout()),
        Target::File(path) => Box::new(append_to(path)?),
    })
}

fn append_to(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

impl AccessLog {
    /// Opens a log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(target: Target) -> std::io::Result<AccessLog> {
        let file = open(&target)?;
        let (lines, entries) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&dropped);
        let thread = thread::Builder::new()
            .name("nfs-access-log".to_owned())
            .spawn(move || write(file, &entries, &seen))?;
        Ok(AccessLog(Arc::new(Inner {
            target,
            dropped,
            lines: Mutex::new(Some(lines)),
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// Closes the file, and opens a new one at the same path.
    ///
    /// # Errors
    /// The new file cannot be opened: lines still go to the old one.
    pub fn reopen(&self) -> std::io::Result<()> {
        let file = open(&self.0.target)?;
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // The writer first takes the lines that wait before it.
        let lines = lines.clone();
        lines.map_or(Ok(()), |lines| {
            let sent = lines.send(Entry::Reopened(file));
            sent.map_err(|_| std::io::Error::other("the log has ended"))
        })
    }

    pub(crate) fn put(&self, line: String) {
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = &*lines
            && let Err(TrySendError::Full(_)) = lines.try_send(Entry::Line(line))
        {
            self.0.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        *lines = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes lines until the log is closed. Write errors do not stop the server.
fn write(file: Box<dyn Write + Send>, entries: &Receiver<Entry>, dropped: &AtomicU64) {
    let mut file = BufWriter::new(file);
    while let Ok(first) = entries.recv() {
        // One write for all waiting lines.
        for entry in std::iter::once(first).chain(entries.try_iter()) {
            match entry {
                Entry::Line(line) => drop(writeln!(file, "{line}")),
                Entry::Reopened(next) => {
                    let _ = file.flush();
                    file = BufWriter::new(next);
                }
            }
        }
        let missing = dropped.swap(0, Relaxed);
        if missing > 0 {
            let _ = writeln!(file, "{} dropped={missing}", stamp(SystemTime::now()));
        }
        let _ = file.flush();
    }
}

/// A time as RFC 3339 writes it, in UTC and milliseconds.
pub(crate) fn stamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (secs, ms) = (since.as_secs(), since.subsec_millis());
    let (days, of_day) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day after 1970-01-01.
fn date(mut days: u64) -> (u64, u64, u64) {
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    // Whole cycles of 400 years first.
    year += days / 146_097 * 400;
    days %= 146_097;
    loop {
        let of_year = 365 + u64::from(leap(year));
        if days < of_year {
            break;
        }
        days -= of_year;
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, length) in (1..).zip(lengths) {
        if days < length {
            return (year, month, days + 1);
        }
        days -= length;
    }
    (year, 12, 31)
}

/// Quotes and escapes bytes chosen by a client.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 2);
    let _ = write!(text, "\"{}\"", bytes.escape_ascii());
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_written_as_rfc_3339_does() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.005Z"),
            (951_782_399, "2000-02-28T23:59:59.005Z"),
            (951_782_400, "2000-02-29T00:00:00.005Z"),
            (1_709_251_200, "2024-03-01T00:00:00.005Z"),
            (4_107_542_400, "2100-03-01T00:00:00.005Z"),
            (13_574_563_200, "2400-02-29T00:00:00.005Z"),
        ] {
            let at = UNIX_EPOCH + Duration::from_secs(secs) + Duration::from_millis(5);
            assert_eq!(stamp(at), text);
        }
        assert_eq!(quoted(b"a \"b\n\xff"), "\"a \\\"b\\n\\xff\"");
    }

    #[test]
    fn lines_are_written_in_order_and_reopen_begins_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = AccessLog::open(Target::File(path.clone())).unwrap();
        log.put("one".to_owned());
        let moved = dir.path().join("old");
        std::fs::rename(&path, &moved).unwrap();
        log.put("two".to_owned());
        log.reopen().unwrap();
        log.put("three".to_owned());
        drop(log);
        assert_eq!(std::fs::read_to_string(moved).unwrap(), "one\ntwo\n");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "three\n");
    }

    /// A pipe without a reader must not make the server hold an unbounded number of lines.
    #[test]
    fn lines_that_cannot_be_written_are_dropped_and_counted() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (lines, entries) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&dropped);
        let thread = thread::spawn(move || write(Box::new(File::from(writer)), &entries, &seen));
        let log = AccessLog(Arc::new(Inner {
            target: Target::Output,
            dropped: Arc::clone(&dropped),
            lines: Mutex::new(Some(lines)),
            thread: Mutex::new(Some(thread)),
        }));
        let line = "x".repeat(1000);
        let mut put = 0;
        while dropped.load(Relaxed) < 10 {
            log.put(line.clone());
            put += 1;
            assert!(put < 100 * LINES_MAX, "all of them are kept");
        }
        let read = thread::spawn(move || std::io::read_to_string(File::from(reader)).unwrap());
        drop(log);
        let text = read.join().unwrap();
        let lost: usize = text
            .lines()
            .filter_map(|line| line.split_once(" dropped=")?.1.parse::<usize>().ok())
            .sum();
        let written = text.lines().filter(|other| **other == line).count();
        assert_eq!(written + lost, put);
        assert!(lost >= 10);
    }
}
