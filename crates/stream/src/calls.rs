//! Requests about one stream: set, get, sync, rules.

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::lists;
use crate::wire::{
    DEFAULT, HONOUR_FSYNC, IGNORE_FSYNC, Interval, MESSAGE_BYTES, Message, REMOVE, Scope,
    USER_DEFAULT, XATTR_RULE, XATTR_STREAM, XATTR_SYNC, XATTR_WHY_NOT, name_is_valid,
};

/// Longest reason that a server gives.
const REASON_BYTES_MAX: usize = 4 << 10;

/// Threads that are moved into a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The calling thread alone.
    Thread,
    /// The calling process, except for threads that have set their own stream.
    Process,
    /// Another process, by its number as the *server* sees it.
    Pid(u32),
}

/// Settings of a stream. By default, an existing stream keeps its settings, and a new one commits at a sync and at the
/// volume's commit interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Whether fsync(2) and its like return at once. They still commit for users that do not own the stream.
    pub ignore_fsync: Option<bool>,
    /// Maximum age of the stream's first uncommitted operation.
    pub interval: Interval,
    /// The owner of the stream. By default the user of the process that moves, and for a rule the caller. Only root may name
    /// another than itself.
    pub user: Option<u32>,
}

impl Settings {
    fn message(&self, scope: Scope, name: &str) -> Message {
        Message {
            scope,
            user: self.user.unwrap_or(USER_DEFAULT),
            flags: match self.ignore_fsync {
                None => 0,
                Some(true) => IGNORE_FSYNC,
                Some(false) => HONOUR_FSYNC,
            },
            interval: self.interval,
            name: name.to_owned(),
            ..Message::default()
        }
    }
}

/// The stream of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// Its number; 0 is the default stream. Numbers are not used twice.
    pub number: u32,
    /// Its name and its user; `None` for the default stream.
    pub name: Option<(String, u32)>,
    /// Syncs of its own user return at once.
    pub ignore_fsync: bool,
    /// Its commit interval.
    pub interval: Interval,
}

/// Condition of a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The cgroup (version 2) of the process and those below it, as `/proc/PID/cgroup` has its path. The longest path decides.
    Cgroup(String),
    /// The directory that the request is made on: the process that first changes something below it.
    Directory,
    /// `STEADFAST_STREAM` in the environment of the process names the stream.
    Environment,
}

/// Checks a stream's name without asking a server.
///
/// # Errors
/// [`Error::Name`].
pub fn check_name(name: &str) -> Result<()> {
    match name_is_valid(name) {
        true => Ok(()),
        false => Err(Error::Name {
            name: name.to_owned(),
        }),
    }
}

/// Whether the mount at (or above) `path` has streams.
///
/// # Errors
/// [`Error::Unavailable`] with the server's reason; [`Error::NoServer`] if `path` is on no mount of ours.
pub fn available(path: &Path) -> Result<()> {
    let mut buf = vec![0u8; REASON_BYTES_MAX];
    match rustix::fs::getxattr(path, XATTR_WHY_NOT, &mut buf[..]) {
        Ok(0) => Ok(()),
        Ok(len) => Err(Error::Unavailable {
            path: path.to_owned(),
            reason: String::from_utf8_lossy(&buf[..len]).into_owned(),
        }),
        Err(Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS) => Err(Error::NoServer {
            path: path.to_owned(),
        }),
        Err(errno) => Err(Error::io(path.display().to_string(), errno)),
    }
}

/// EOPNOTSUPP has a reason of its own.
pub(crate) fn explain(path: &Path, what: &str, errno: Errno) -> Error {
    match errno {
        Errno::OPNOTSUPP | Errno::NODATA => match available(path) {
            Err(reason) => reason,
            Ok(()) => Error::io(what, errno),
        },
        // An attribute cannot be set with EAGAIN: the kernel makes EOPNOTSUPP of it.
        Errno::AGAIN | Errno::DQUOT => Error::TooMany {
            what: what.to_owned(),
        },
        errno => Error::io(what, errno),
    }
}

fn send(path: &Path, attribute: &str, message: &Message, place: &str) -> rustix::io::Result<()> {
    let mut value = message.encode().to_vec();
    value.extend_from_slice(place.as_bytes());
    rustix::fs::setxattr(path, attribute, &value, XattrFlags::empty())
}

fn move_into(path: &Path, who: Who, mut message: Message) -> Result<()> {
    let what = match (&who, message.name.is_empty()) {
        (Who::Thread, false) => format!("setting this thread's stream to {:?}", message.name),
        (Who::Process, false) => format!("setting this process's stream to {:?}", message.name),
        (Who::Pid(pid), false) => format!("setting the stream of {pid} to {:?}", message.name),
        (_, true) => "setting the default stream".to_owned(),
    };
    let pid = match who {
        Who::Thread | Who::Process => std::process::id(),
        Who::Pid(pid) => pid,
    };
    if let Who::Pid(pid) = who {
        message.pid = pid;
    }
    let gone = |why| Error::Process { pid, why };
    if pid == 0 {
        return Err(gone("0 is not the number of a process"));
    }
    send(path, XATTR_STREAM, &message, "").map_err(|errno| match errno {
        Errno::SRCH => gone(
            "there is no such process, or the server is in another process namespace and does not see it",
        ),
        Errno::INVAL => gone("it has no stream of its own: it is a thread of the kernel"),
        Errno::PERM => Error::NotPermitted {
            what: what.clone(),
            rule: "a stream belongs to its user, and only root moves processes of others or set-user-id programs",
        },
        errno => explain(path, &what, errno),
    })
}

/// Moves a thread or process into the stream of this name, which is made if its user has none. Its earlier operations stay in
/// the stream where it did it.
///
/// # Errors
/// [`Error::Name`], [`Error::Unavailable`], [`Error::NoServer`]; [`Error::Process`] if there is no such process;
/// [`Error::NotPermitted`] if it is another user's or runs a set-user-id program, or if the stream is another user's;
/// [`Error::TooMany`] at the limit of streams.
pub fn set(path: &Path, who: Who, name: &str, settings: &Settings) -> Result<()> {
    check_name(name)?;
    move_into(path, who, settings.message(scope_of(who), name))
}

/// Moves a thread or process into the default stream, where it stays.
///
/// # Errors
/// As for [`set`].
pub fn leave(path: &Path, who: Who) -> Result<()> {
    let message = Message {
        flags: DEFAULT,
        scope: scope_of(who),
        ..Message::default()
    };
    move_into(path, who, message)
}

fn scope_of(who: Who) -> Scope {
    match who {
        Who::Thread => Scope::Thread,
        Who::Process => Scope::Process,
        Who::Pid(_) => Scope::Pid,
    }
}

/// Changes the settings of a stream that is there. By default the caller's own.
///
/// # Errors
/// [`Error::NoStream`]; [`Error::NotPermitted`] if it is another user's; else as for [`available`].
pub fn alter(path: &Path, name: &str, settings: &Settings) -> Result<()> {
    check_name(name)?;
    let message = settings.message(Scope::Stream, name);
    let what = format!("settings of stream {name:?}");
    send(path, XATTR_STREAM, &message, "").map_err(|errno| match errno {
        Errno::NOENT => Error::NoStream {
            name: name.to_owned(),
            user: settings.user,
        },
        Errno::PERM => Error::NotPermitted {
            what: what.clone(),
            rule: "the stream is another user's",
        },
        errno => explain(path, &what, errno),
    })
}

/// The stream of the calling thread.
///
/// # Errors
/// [`Error::Unavailable`], [`Error::NoServer`]; [`Error::Process`] if the server does not see this process.
pub fn get(path: &Path) -> Result<Membership> {
    let mut bytes = [0u8; MESSAGE_BYTES];
    let len =
        rustix::fs::getxattr(path, XATTR_STREAM, &mut bytes).map_err(|errno| match errno {
            Errno::SRCH => Error::Process {
                pid: std::process::id(),
                why: "the server is in another process namespace and does not see it",
            },
            errno => explain(path, "this thread's stream", errno),
        })?;
    let answer = Message::decode(&bytes[..len]).map_err(|_| Error::answer(path, "a stream"))?;
    Ok(Membership {
        number: answer.number,
        ignore_fsync: answer.flags & IGNORE_FSYNC != 0,
        interval: answer.interval,
        name: (answer.number != 0).then_some((answer.name, answer.user)),
    })
}

/// Commits the stream of the calling thread; returns when that is durable. Works in a stream that ignores fsync(2).
///
/// # Errors
/// As for [`get`], and the volume's failure.
pub fn sync_own(path: &Path) -> Result<()> {
    commit(path, XATTR_SYNC, "sync of this thread's stream")
}

/// Commits the stream of this name; returns when that is durable. Without `user` it is the caller's own; for root, if it has
/// none of that name, the only one of that name.
///
/// # Errors
/// [`Error::NoStream`]; [`Error::Ambiguous`] if it takes a `user`; the volume's failure.
pub fn sync(path: &Path, name: &str, user: Option<u32>) -> Result<()> {
    let stream = lists::stream_of_name(path, name, user)?;
    // A stream that has gone since has nothing to commit.
    let attribute = format!("{XATTR_SYNC}.{}", stream.number);
    commit(path, &attribute, &format!("sync of stream {name:?}"))
}

fn commit(path: &Path, attribute: &str, what: &str) -> Result<()> {
    let mut buf = [0u8; 8];
    rustix::fs::getxattr(path, attribute, &mut buf)
        .map(drop)
        .map_err(|errno| match errno {
            Errno::PERM => Error::NotPermitted {
                what: what.to_owned(),
                rule: "the stream is another user's",
            },
            errno => explain(path, what, errno),
        })
}

/// Has new processes of a place belong to the stream of this name; replaces the rule that is there for that place. For
/// [`Place::Directory`], `path` is the directory, and for [`Place::Environment`] the name is empty.
///
/// # Errors
/// [`Error::NotPermitted`] unless the caller is root or the user that mounted; [`Error::TooMany`] at the limit of rules; else
/// as for [`set`].
pub fn add_rule(path: &Path, place: &Place, name: &str, settings: &Settings) -> Result<()> {
    let scope = match place {
        Place::Environment => Scope::Environment,
        Place::Cgroup(_) => Scope::Cgroup,
        Place::Directory => Scope::Directory,
    };
    if scope != Scope::Environment {
        check_name(name)?;
    }
    send_rule(path, place, settings.message(scope, name))
}

/// Removes the rule of a place. Processes that it moved stay where they are.
///
/// # Errors
/// ENOENT if there is no such rule; else as for [`add_rule`].
pub fn remove_rule(path: &Path, place: &Place) -> Result<()> {
    let scope = match place {
        Place::Environment => Scope::Environment,
        Place::Cgroup(_) => Scope::Cgroup,
        Place::Directory => Scope::Directory,
    };
    let message = Message {
        scope,
        flags: REMOVE,
        ..Message::default()
    };
    send_rule(path, place, message)
}

fn send_rule(path: &Path, place: &Place, message: Message) -> Result<()> {
    let (cgroup, what) = match place {
        Place::Cgroup(cgroup) => (cgroup.as_str(), format!("rule for cgroup {cgroup:?}")),
        Place::Directory => ("", format!("rule for directory {}", path.display())),
        Place::Environment => ("", "rule for the environment".to_owned()),
    };
    send(path, XATTR_RULE, &message, cgroup).map_err(|errno| match errno {
        Errno::PERM => Error::NotPermitted {
            what: what.clone(),
            rule: "rules are for root and for the user who mounted",
        },
        errno => explain(path, &what, errno),
    })
}
