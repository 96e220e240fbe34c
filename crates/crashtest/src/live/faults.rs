//! Calls that fail, or do less than they say, on a live mount.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use steadfast_vfs::Errno;

/// A rule: the calls that fail, and how they fail. `crash fail` and the socket have the same words.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// The call: `write`, `fsync`, `rename`, … ; every changing call if none is given.
    pub call: Option<String>,
    /// Paths, from the mount's root: `*` matches any characters but a slash, `**` any characters at all.
    pub path: Option<String>,
    /// The error: `EIO`, `ENOSPC`, `EROFS`, `ENOMEM`, `EACCES`.
    pub errno: Option<String>,
    /// Instead of an error: `short`, `torn` or `lost` writes, an `ignored` fsync, a `slow` call.
    pub how: Option<String>,
    /// Only the nth such call, counted from now on.
    pub nth: Option<u64>,
    /// Only calls after this many bytes were written.
    pub after: Option<u64>,
    /// What a failed fsync does with the data that is not durable: `keep` or `drop`.
    pub then: Option<String>,
    /// Duration of a slow call.
    pub milliseconds: Option<u64>,
}

/// Fate of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It goes on, with this many of its bytes.
    Short(usize),
    /// It fails.
    Fails {
        /// With this error.
        errno: Errno,
        /// Data of the file that is not durable is dropped.
        drop: bool,
    },
    /// It reports success, and its first half reaches the medium.
    Torn,
    /// It reports success, and nothing of it ever reaches the medium.
    Lost,
    /// It takes this long.
    Slow(Duration),
}

const ERRNOS: &[(&str, Errno)] = &[
    ("EIO", Errno::Io),
    ("ENOSPC", Errno::NoSpc),
    ("EROFS", Errno::RoFs),
    ("ENOMEM", Errno::NoMem),
    ("EACCES", Errno::Access),
];
const HOWS: &[&str] = &["short", "torn", "lost", "ignored", "slow"];

/// A rule in effect.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    rule: Rule,
    errno: Errno,
    /// Number of calls that matched.
    calls: u64,
    /// Bytes that these wrote.
    bytes: u64,
    /// Number of calls that it changed.
    pub(crate) struck: u64,
}

impl Fault {
    /// # Errors
    /// If the rule has no effect, or an unknown word.
    pub(crate) fn new(rule: Rule) -> Result<Fault, String> {
        let errno = match (&rule.errno, &rule.how) {
            (Some(_), Some(_)) => return Err("an error, or something else: not both".to_owned()),
            (None, None) => return Err("it needs an error or a way to fail".to_owned()),
            (None, Some(how)) if !HOWS.contains(&how.as_str()) => {
                return Err(format!("'{how}' is unknown; there are {}", HOWS.join(", ")));
            }
            (None, Some(_)) => Errno::Io,
            (Some(name), None) => {
                let known = ERRNOS.iter().find(|(n, _)| n == name);
                let names: Vec<&str> = ERRNOS.iter().map(|(n, _)| *n).collect();
                let unknown = || format!("'{name}' is unknown; there are {}", names.join(", "));
                known.map(|(_, code)| *code).ok_or_else(unknown)?
            }
        };
        if let Some(then) = &rule.then
            && !["keep", "drop"].contains(&then.as_str())
        {
            return Err(format!("'{then}' is unknown; there are keep, drop"));
        }
        if rule.nth == Some(0) {
            return Err("calls are counted from 1".to_owned());
        }
        Ok(Fault {
            rule,
            errno,
            calls: 0,
            bytes: 0,
            struck: 0,
        })
    }

    pub(crate) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The fate of a call of `len` bytes.
    pub(crate) fn strikes(&mut self, call: &str, path: &str, len: usize) -> Option<Fate> {
        let rule = &self.rule;
        let only_writes = matches!(rule.how.as_deref(), Some("short" | "torn" | "lost"));
        let wanted = match (&rule.call, rule.how.as_deref()) {
            (Some(wanted), _) => wanted == call,
            (None, Some("ignored")) => matches!(call, "fsync" | "fdatasync" | "syncfs" | "sync"),
            (None, _) if only_writes || rule.after.is_some() => call == "write",
            (None, _) => true,
        };
        if !wanted || rule.path.as_ref().is_some_and(|p| !matches(p, path)) {
            return None;
        }
        self.calls += 1;
        if rule.nth.is_some_and(|n| n != self.calls) {
            return None;
        }
        let before = self.bytes;
        self.bytes = self.bytes.saturating_add(len as u64);
        if let Some(after) = rule.after {
            let room = after.saturating_sub(before);
            if room >= len as u64 {
                return None;
            }
            if room > 0 && rule.how.is_none() {
                self.struck += 1;
                return Some(Fate::Short(room as usize));
            }
        }
        self.struck += 1;
        Some(match rule.how.as_deref() {
            None => Fate::Fails {
                errno: self.errno,
                drop: rule.then.as_deref() == Some("drop"),
            },
            Some("short") => Fate::Short(len.div_ceil(2)),
            Some("torn") => Fate::Torn,
            Some("slow") => Fate::Slow(Duration::from_millis(rule.milliseconds.unwrap_or(1000))),
            Some(_) => Fate::Lost,
        })
    }
}

/// Whether a path matches a pattern.
fn matches(pattern: &str, path: &str) -> bool {
    let (p, t) = (pattern.as_bytes(), path.as_bytes());
    // The positions in the path at which each prefix of the pattern can end.
    let mut ends = vec![false; t.len() + 1];
    ends[0] = true;
    let mut i = 0;
    while i < p.len() {
        let deep = p[i..].starts_with(b"**");
        let mut next = vec![false; t.len() + 1];
        if p[i] == b'*' {
            let mut open = false;
            for j in 0..=t.len() {
                open |= ends[j];
                next[j] = open;
                if j < t.len() && t[j] == b'/' && !deep {
                    open = false;
                }
            }
            i += 1 + usize::from(deep);
        } else {
            for j in 0..t.len() {
                next[j + 1] = ends[j] && t[j] == p[i];
            }
            i += 1;
        }
        ends = next;
    }
    ends[t.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        for (pattern, path, wanted) in [
            ("wal/*", "wal/1", true),
            ("wal/*", "wal/a/b", false),
            ("wal/**", "wal/a/b", true),
            ("**", "", true),
            ("*.log", "x.log", true),
            ("*.log", "d/x.log", false),
            ("**.log", "d/x.log", true),
            ("a", "b", false),
            ("a*c*", "abcd", true),
        ] {
            assert_eq!(matches(pattern, path), wanted, "{pattern} {path}");
        }
    }

    #[test]
    fn the_third_fsync_of_a_wal_fails_once() {
        let rule = Rule {
            call: Some("fsync".to_owned()),
            path: Some("wal/*".to_owned()),
            errno: Some("EIO".to_owned()),
            nth: Some(3),
            then: Some("drop".to_owned()),
            ..Rule::default()
        };
        let mut fault = Fault::new(rule).unwrap();
        let mut told = Vec::new();
        for _ in 0..5 {
            assert_eq!(fault.strikes("fsync", "other", 0), None);
            assert_eq!(fault.strikes("write", "wal/1", 10), None);
            told.push(fault.strikes("fsync", "wal/1", 0).is_some());
        }
        assert_eq!(told, [false, false, true, false, false]);
        assert_eq!(fault.struck, 1);
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_then_nothing() {
        let rule = Rule {
            errno: Some("ENOSPC".to_owned()),
            after: Some(10),
            ..Rule::default()
        };
        let mut fault = Fault::new(rule).unwrap();
        assert_eq!(fault.strikes("write", "a", 8), None);
        assert_eq!(fault.strikes("write", "a", 8), Some(Fate::Short(2)));
        let full = Fate::Fails {
            errno: Errno::NoSpc,
            drop: false,
        };
        assert_eq!(fault.strikes("write", "a", 8), Some(full));
        assert_eq!(fault.strikes("rename", "a", 0), None);
    }

    #[test]
    fn rules_that_say_nothing_are_refused() {
        assert!(Fault::new(Rule::default()).is_err());
        for (errno, how) in [
            (Some("EWHAT"), None),
            (None, Some("odd")),
            (Some("EIO"), Some("lost")),
        ] {
            let rule = Rule {
                errno: errno.map(str::to_owned),
                how: how.map(str::to_owned),
                ..Rule::default()
            };
            assert!(Fault::new(rule).is_err());
        }
    }
}
