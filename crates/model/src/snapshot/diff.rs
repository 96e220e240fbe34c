//! Difference of two snapshots, in words.

use super::{Entry, Observe, Snapshot};
use std::fmt;
use steadfast_vfs::{FileKind, Time};

/// The differences between two snapshots, one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// `PATH: difference`, in the order of the paths.
    pub lines: Vec<String>,
}

/// Lines that are printed; the rest is counted.
const LINES_MAX: usize = 12;

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines.is_empty() {
            return f.write_str("  (no difference)");
        }
        for line in self.lines.iter().take(LINES_MAX) {
            writeln!(f, "  {line}")?;
        }
        match self.lines.len().checked_sub(LINES_MAX) {
            Some(n) if n > 0 => writeln!(f, "  and {n} more differences"),
            _ => Ok(()),
        }
    }
}

impl Snapshot {
    /// Difference of `found` from `self`, which was expected.
    #[must_use]
    pub fn diff(&self, found: &Snapshot, observe: Observe) -> Diff {
        let mut diff = Diff::default();
        for (path, e) in &self.entries {
            let path_text = path.escape_ascii();
            match found.entries.get(path) {
                None => diff
                    .lines
                    .push(format!("{path_text}: missing ({})", describe(e))),
                Some(f) => {
                    for line in compare(e, f, observe) {
                        diff.lines.push(format!("{path_text}: {line}"));
                    }
                }
            }
        }
        for (path, e) in &found.entries {
            if !self.entries.contains_key(path) {
                let path = path.escape_ascii();
                diff.lines
                    .push(format!("{path}: not expected ({})", describe(e)));
            }
        }
        diff
    }
}

fn describe(e: &Entry) -> String {
    match e.kind {
        FileKind::Regular => format!("file of {} bytes, {} links", e.size, e.nlink),
        FileKind::Symlink => format!("symbolic link to '{}'", e.target.escape_ascii()),
        kind => format!("{kind:?}"),
    }
}

fn time(t: Time) -> String {
    format!("{}.{:09}", t.secs, t.nanos)
}

fn link_text(e: &Entry) -> String {
    match &e.same_as {
        Some(p) => format!("the inode of '{}'", p.escape_ascii()),
        None => "an inode of its own".into(),
    }
}

fn compare(e: &Entry, f: &Entry, observe: Observe) -> Vec<String> {
    let mut out = Vec::new();
    if e.kind != f.kind {
        out.push(format!("expected {}, found {}", describe(e), describe(f)));
        return out;
    }
    let numbers = [
        ("user", u64::from(e.uid), u64::from(f.uid)),
        ("group", u64::from(e.gid), u64::from(f.gid)),
        ("links", u64::from(e.nlink), u64::from(f.nlink)),
        ("device", u64::from(e.rdev), u64::from(f.rdev)),
        ("size", e.size, f.size),
    ];
    for (what, a, b) in numbers {
        if a != b {
            out.push(format!("{what}: expected {a}, found {b}"));
        }
    }
    if e.perm != f.perm {
        out.push(format!("mode: expected {:o}, found {:o}", e.perm, f.perm));
    }
    if e.target != f.target {
        let (a, b) = (e.target.escape_ascii(), f.target.escape_ascii());
        out.push(format!("target: expected '{a}', found '{b}'"));
    }
    if e.same_as != f.same_as {
        out.push(format!(
            "links: expected {}, found {}",
            link_text(e),
            link_text(f)
        ));
    }
    if e.xattrs != f.xattrs {
        let name = |n: &Vec<u8>| n.escape_ascii().to_string();
        let lost: Vec<_> = e
            .xattrs
            .iter()
            .filter(|(k, v)| f.xattrs.get(*k) != Some(v))
            .map(|x| name(x.0))
            .collect();
        let new: Vec<_> = f
            .xattrs
            .iter()
            .filter(|(k, v)| e.xattrs.get(*k) != Some(v))
            .map(|x| name(x.0))
            .collect();
        out.push(format!(
            "extended attributes: expected {lost:?}, found {new:?}"
        ));
    }
    if let Some(at) = e.data.first_difference(&f.data) {
        let (mut a, mut b) = ([0u8; 8], [0u8; 8]);
        let (n, m) = (e.data.read(at, &mut a), f.data.read(at, &mut b));
        if n > 0 && m > 0 {
            out.push(format!(
                "content at {at}: expected {:02x?}…, found {:02x?}…",
                &a[..n],
                &b[..m]
            ));
        }
    }
    let timed = if e.kind == FileKind::Directory {
        observe.dir_times
    } else {
        observe.file_times
    };
    if timed && e.mtime != f.mtime {
        out.push(format!(
            "mtime: expected {}, found {}",
            time(e.mtime),
            time(f.mtime)
        ));
    }
    out
}
