//! Lists of a mount's streams, of their activity, and of its rules. A list comes in pages; entries that change between
//! two pages may be missing or come twice.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::calls::{Place, check_name, explain};
use crate::error::{Error, Result};
use crate::wire::{
    Interval, NEXT, PAGE_BYTES_MAX, XATTR_LIST, XATTR_MERGES, XATTR_RULES, XATTR_SHOW, XATTR_STATS,
    unescape,
};

/// Most pages of a list that are read: a server that always has another one does not hold up its client.
const PAGES_MAX: usize = 16 << 10;

/// A stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its number.
    pub number: u32,
    /// Its user.
    pub user: u32,
    /// Its name.
    pub name: String,
    /// Syncs of its own user return at once.
    pub ignore_fsync: bool,
    /// Its commit interval.
    pub interval: Interval,
    /// Processes, threads and rules that are known to belong to it: those that have made a request, or were set. On a mount with
    /// very many, some that have ended are counted.
    pub members: u64,
}

/// The stream of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The number of the process, if a number of one of its threads was given.
    pub pid: u32,
    /// The stream's number; 0 is the default stream.
    pub number: u32,
    /// Its name and its user; `None` for the default stream.
    pub name: Option<(String, u32)>,
    /// Syncs of its own user return at once.
    pub ignore_fsync: bool,
    /// Reason of its placement, such as `process`, `ancestor 17`, `cgroup /a/b`, `environment`, `directory 12` or `default`.
    pub because: String,
}

/// Counts of a stream since the mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// The stream.
    pub stream: Partner,
    /// Operations that changed something.
    pub operations: u64,
    /// Commits that the stream asked for.
    pub commits: u64,
    /// Bytes that reached the device in its commits: its own.
    pub own_bytes: u64,
    /// Bytes of other streams, which it had to take along.
    pub carried_bytes: u64,
    /// Operations that are not durable yet.
    pub uncommitted: u64,
    /// Times that it waited for another stream, with each of them.
    pub waited_for: Vec<(u32, u64)>,
}

/// A stream that others speak of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partner {
    /// Its number.
    pub number: u32,
    /// Its name and its user; `None` for the default stream, and for one that has ended.
    pub name: Option<(String, u32)>,
}

/// Two streams that formed one order until they committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Merge {
    /// The one whose operation joined them, and the other.
    pub streams: [Partner; 2],
    /// Cause, such as `file` or `index block`.
    pub cause: String,
    /// The file or directory concerned.
    pub inode: Option<u64>,
    /// Its path within the volume.
    pub path: Option<PathBuf>,
}

/// A rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its condition.
    pub place: Place,
    /// For a directory: its inode number and its path within the volume, as far as it is known.
    pub directory: Option<(u64, Option<PathBuf>)>,
    /// The stream's name and its user; empty for [`Place::Environment`].
    pub name: String,
    /// See `name`.
    pub user: u32,
}

/// The lines of all pages of an attribute.
fn pages(path: &Path, attribute: &str, what: &'static str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut buf = vec![0u8; PAGE_BYTES_MAX];
    let mut from = "0".to_owned();
    for _ in 0..PAGES_MAX {
        let name = format!("{attribute}.{from}");
        let len = rustix::fs::getxattr(path, name, &mut buf[..]).map_err(|errno| match errno {
            Errno::PERM => Error::NotPermitted {
                what: what.to_owned(),
                rule: "it shows paths, and is for root and for the user who mounted",
            },
            errno => explain(path, what, errno),
        })?;
        let text = std::str::from_utf8(&buf[..len]).map_err(|_| Error::answer(path, what))?;
        let mut next = None;
        for line in text.lines() {
            match line.split_once('\t') {
                Some((NEXT, at)) => next = Some(at.to_owned()),
                _ => lines.push(line.to_owned()),
            }
        }
        match next {
            Some(at) if at != from => from = at,
            _ => return Ok(lines),
        }
    }
    Err(Error::answer(path, what))
}

/// The list that each line is an element of.
fn listed<T>(
    path: &Path,
    attribute: &str,
    what: &'static str,
    parse: impl Fn(&[&str]) -> Option<T>,
) -> Result<Vec<T>> {
    let lines = pages(path, attribute, what)?;
    lines
        .iter()
        .map(|line| parse(&line.split('\t').collect::<Vec<_>>()))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::answer(path, what))
}

/// All streams of the mount that the caller may see: root all, others their own.
///
/// # Errors
/// [`Error::Unavailable`], [`Error::NoServer`].
pub fn list(path: &Path) -> Result<Vec<Listed>> {
    listed(path, XATTR_LIST, "list of streams", |fields| {
        let [number, user, ignore, interval, members, name] = fields else {
            return None;
        };
        Some(Listed {
            number: number.parse().ok()?,
            user: user.parse().ok()?,
            ignore_fsync: *ignore == "1",
            interval: interval_of(interval)?,
            members: members.parse().ok()?,
            name: (*name).to_owned(),
        })
    })
}

fn interval_of(text: &str) -> Option<Interval> {
    match text {
        "-" => Some(Interval::Volume),
        ms => Some(Interval::Every(Duration::from_millis(ms.parse().ok()?))),
    }
}

/// The stream of this name. Without `user` it is the caller's own; for root, if it has none of that name, the only one of that
/// name.
///
/// # Errors
/// [`Error::NoStream`], [`Error::Ambiguous`]; else as for [`list`].
pub fn stream_of_name(path: &Path, name: &str, user: Option<u32>) -> Result<Listed> {
    check_name(name)?;
    let mut found = list(path)?;
    found.retain(|one| one.name == name && user.is_none_or(|user| one.user == user));
    let own = rustix::process::geteuid().as_raw();
    let at = found.iter().position(|one| one.user == own);
    match (at, found.len()) {
        (Some(at), _) => Ok(found.swap_remove(at)),
        (None, 1) => Ok(found.swap_remove(0)),
        (None, 0) => Err(Error::NoStream {
            name: name.to_owned(),
            user,
        }),
        (None, _) => Err(Error::Ambiguous {
            name: name.to_owned(),
        }),
    }
}

/// The stream of a process, by its number as the server sees it, and why it belongs there. It is decided now, if it was not.
///
/// # Errors
/// [`Error::Process`] if there is no such process, or if it is a thread of the kernel; [`Error::NotPermitted`] if it is
/// another user's.
pub fn show(path: &Path, pid: u32) -> Result<Shown> {
    let what = "a process's stream";
    let mut buf = vec![0u8; PAGE_BYTES_MAX];
    let name = format!("{XATTR_SHOW}.{pid}");
    let len = rustix::fs::getxattr(path, name, &mut buf[..]).map_err(|errno| match errno {
        Errno::SRCH => Error::Process {
            pid,
            why: "there is no such process, or the server is in another process namespace and does not see it",
        },
        Errno::INVAL => Error::Process {
            pid,
            why: "it has no stream of its own: it is a thread of the kernel, or no process",
        },
        Errno::PERM => Error::NotPermitted {
            what: format!("stream of process {pid}"),
            rule: "it is another user's",
        },
        errno => explain(path, what, errno),
    })?;
    let parse = |text: &str| {
        let fields: Vec<_> = text.trim_end_matches('\n').split('\t').collect();
        let [pid, number, user, ignore, because, name] = fields[..] else {
            return None;
        };
        let partner = partner(number, user, name)?;
        Some(Shown {
            pid: pid.parse().ok()?,
            number: partner.number,
            name: partner.name,
            ignore_fsync: ignore == "1",
            because: String::from_utf8(unescape(because)?).ok()?,
        })
    };
    let text = std::str::from_utf8(&buf[..len]).ok();
    text.and_then(parse)
        .ok_or_else(|| Error::answer(path, what))
}

/// Counts of the caller's streams since the mount, the default stream among them; for root all.
///
/// # Errors
/// As for [`list`].
pub fn stats(path: &Path) -> Result<Vec<Stats>> {
    listed(path, XATTR_STATS, "what streams did", |fields| {
        let [
            number,
            user,
            operations,
            commits,
            own,
            carried,
            uncommitted,
            waited,
            name,
        ] = fields
        else {
            return None;
        };
        let waits = waited.split(',').filter(|wait| !wait.is_empty());
        let waited_for = waits.map(|wait| {
            let (stream, times) = wait.split_once(':')?;
            Some((stream.parse().ok()?, times.parse().ok()?))
        });
        Some(Stats {
            stream: partner(number, user, name)?,
            operations: operations.parse().ok()?,
            commits: commits.parse().ok()?,
            own_bytes: own.parse().ok()?,
            carried_bytes: carried.parse().ok()?,
            uncommitted: uncommitted.parse().ok()?,
            waited_for: waited_for.collect::<Option<_>>()?,
        })
    })
}

fn partner(number: &str, user: &str, name: &str) -> Option<Partner> {
    let name = match name {
        "" => None,
        name => Some((name.to_owned(), user.parse().ok()?)),
    };
    Some(Partner {
        number: number.parse().ok()?,
        name,
    })
}

/// The newest merges, oldest first.
///
/// # Errors
/// [`Error::NotPermitted`] unless the caller is root or the user that mounted: paths are private. Else as for [`list`].
pub fn merges(path: &Path) -> Result<Vec<Merge>> {
    listed(path, XATTR_MERGES, "merges of streams", |fields| {
        let [
            number,
            user,
            name,
            other,
            other_user,
            other_name,
            cause,
            inode,
            at,
        ] = fields
        else {
            return None;
        };
        let at = match *at {
            "-" => None,
            at => Some(path_of(at)?),
        };
        Some(Merge {
            streams: [
                partner(number, user, name)?,
                partner(other, other_user, other_name)?,
            ],
            cause: (*cause).to_owned(),
            inode: match *inode {
                "-" => None,
                inode => Some(inode.parse().ok()?),
            },
            path: at,
        })
    })
}

fn path_of(field: &str) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Some(std::ffi::OsString::from_vec(unescape(field)?).into())
}

/// The rules of the mount.
///
/// # Errors
/// As for [`merges`].
pub fn rules(path: &Path) -> Result<Vec<Rule>> {
    listed(path, XATTR_RULES, "rules of streams", |fields| {
        let [kind, user, name, inode, place] = fields else {
            return None;
        };
        let (place, directory) = match *kind {
            "cgroup" => {
                let cgroup = String::from_utf8(unescape(place)?).ok()?;
                (Place::Cgroup(cgroup), None)
            }
            "directory" => {
                let known = match *place {
                    "-" => None,
                    place => Some(path_of(place)?),
                };
                (Place::Directory, Some((inode.parse().ok()?, known)))
            }
            "environment" => (Place::Environment, None),
            _ => return None,
        };
        Some(Rule {
            place,
            directory,
            name: (*name).to_owned(),
            user: user.parse().ok()?,
        })
    })
}
