//! The one-line text form of operations and steps, and its parser.
//!
//! Words are separated by single spaces. Bytes other than letters, digits and
//! `._+~^=:,!-` are written `%XX`; an empty string is `-`. Modes are octal. A step is
//! `sSTREAM UID:GID[,GROUP…][!] SECONDS.NANOS OP`, `!` marking a checked caller.

use super::{Data, Op, Path, Step, Target};
use std::fmt::{self, Display, Formatter, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, RenameMode, SetAttr, SetTime, Stream, Time, XattrMode,
};

/// Text that is no operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The text.
    pub text: String,
    /// Fault of the text.
    pub why: String,
}

impl Display for ParseError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the operation '{}': {}", self.text, self.why)
    }
}

impl std::error::Error for ParseError {}

struct Word<'a>(&'a [u8]);

impl Display for Word<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            b"" => return f.write_str("-"),
            b"-" => return f.write_str("%2d"),
            _ => {}
        }
        for b in self.0 {
            if b.is_ascii_alphanumeric() || b"._+~^=:,!-".contains(b) {
                f.write_char(char::from(*b))?;
            } else {
                write!(f, "%{b:02x}")?;
            }
        }
        Ok(())
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|c| write!(f, "/{}", Word(c)))
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(p) => p.fmt(f),
            Target::Handle(h) => write!(f, "@{h}"),
        }
    }
}

impl Display for Data {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(b) => write!(f, "={}", Word(b)),
            Data::Pattern { seed, len } => write!(f, "#{seed}*{len}"),
        }
    }
}

const KINDS: [(&str, FileKind); 7] = [
    ("file", FileKind::Regular),
    ("dir", FileKind::Directory),
    ("symlink", FileKind::Symlink),
    ("char", FileKind::CharDevice),
    ("block", FileKind::BlockDevice),
    ("fifo", FileKind::Fifo),
    ("socket", FileKind::Socket),
];
const RENAMES: [(&str, RenameMode); 5] = [
    ("replace", RenameMode::Replace),
    ("noreplace", RenameMode::NoReplace),
    ("exchange", RenameMode::Exchange),
    ("whiteout", RenameMode::Whiteout),
    ("whiteout-noreplace", RenameMode::WhiteoutNoReplace),
];
const ALLOCATES: [(&str, AllocateMode); 5] = [
    ("allocate", AllocateMode::Allocate),
    ("keep-size", AllocateMode::KeepSize),
    ("punch", AllocateMode::PunchHole),
    ("zero", AllocateMode::ZeroRange),
    ("zero-keep-size", AllocateMode::ZeroRangeKeepSize),
];
const XATTRS: [(&str, XattrMode); 3] = [
    ("any", XattrMode::Any),
    ("create", XattrMode::Create),
    ("replace", XattrMode::Replace),
];

fn name_of<T: PartialEq + Copy>(table: &[(&'static str, T)], value: T) -> &'static str {
    table
        .iter()
        .find(|(_, v)| *v == value)
        .map_or("?", |(n, _)| n)
}

struct Stamp(Time);

impl Display for Stamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.secs, self.0.nanos)
    }
}

fn write_set(f: &mut Formatter<'_>, set: &SetAttr) -> fmt::Result {
    if let Some(v) = set.perm {
        write!(f, " perm={v:o}")?;
    }
    if let Some(v) = set.uid {
        write!(f, " uid={v}")?;
    }
    if let Some(v) = set.gid {
        write!(f, " gid={v}")?;
    }
    if let Some(v) = set.size {
        write!(f, " size={v}")?;
    }
    for (name, t) in [("atime", set.atime), ("mtime", set.mtime)] {
        match t {
            Some(SetTime::Now) => write!(f, " {name}=now")?,
            Some(SetTime::At(t)) => write!(f, " {name}={}", Stamp(t))?,
            None => {}
        }
    }
    if let Some(t) = set.guard {
        write!(f, " guard={}", Stamp(t))?;
    }
    if set.by_handle {
        f.write_str(" by-handle")?;
    }
    Ok(())
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Op::Mknod {
                path,
                kind,
                perm,
                rdev,
            } => {
                write!(f, "mknod {path} {} {perm:o} {rdev}", name_of(&KINDS, *kind))
            }
            Op::Mkdir { path, perm } => write!(f, "mkdir {path} {perm:o}"),
            Op::Symlink { path, target } => write!(f, "symlink {path} {}", Word(target)),
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { path } => write!(f, "unlink {path}"),
            Op::Rmdir { path } => write!(f, "rmdir {path}"),
            Op::Rename { from, to, mode } => {
                write!(f, "rename {from} {to} {}", name_of(&RENAMES, *mode))
            }
            Op::Write { file, offset, data } => write!(f, "write {file} {offset} {data}"),
            Op::Append { file, data } => write!(f, "append {file} {data}"),
            Op::SetAttr { file, set } => {
                write!(f, "setattr {file}")?;
                write_set(f, set)
            }
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => {
                write!(
                    f,
                    "fallocate {file} {} {offset} {len}",
                    name_of(&ALLOCATES, *mode)
                )
            }
            Op::SetXattr {
                file,
                name,
                value,
                mode,
            } => {
                let mode = name_of(&XATTRS, *mode);
                write!(f, "setxattr {file} {} {} {mode}", Word(name), Word(value))
            }
            Op::RemoveXattr { file, name } => write!(f, "removexattr {file} {}", Word(name)),
            Op::Open { path, handle } => write!(f, "open {path} @{handle}"),
            Op::Close { handle } => write!(f, "close @{handle}"),
            Op::Fsync { file } => write!(f, "fsync {file}"),
            Op::Fdatasync { file } => write!(f, "fdatasync {file}"),
            Op::Sync => f.write_str("sync"),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let c = &self.caller;
        write!(f, "s{} {}:{}", c.stream.0, c.uid, c.gid)?;
        c.groups.iter().try_for_each(|g| write!(f, ",{g}"))?;
        write!(
            f,
            "{} {} {}",
            if c.checked { "!" } else { "" },
            Stamp(self.at),
            self.op
        )
    }
}

/// The words of a line, taken one by one.
struct Words<'a> {
    text: &'a str,
    rest: std::str::Split<'a, char>,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words {
            text,
            rest: text.trim().split(' '),
        }
    }

    fn wrong(&self, why: impl Into<String>) -> ParseError {
        ParseError {
            text: self.text.to_string(),
            why: why.into(),
        }
    }

    fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        let next = self.rest.next();
        next.ok_or_else(|| self.wrong(format!("{what} is missing")))
    }

    fn end(&mut self) -> Result<(), ParseError> {
        match self.rest.next() {
            None => Ok(()),
            Some(w) => Err(self.wrong(format!("'{w}' is too much"))),
        }
    }

    fn parse<T: FromStr>(&self, word: &str, what: &str) -> Result<T, ParseError> {
        word.parse()
            .map_err(|_| self.wrong(format!("'{word}' is no {what}")))
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let w = self.word(what)?;
        self.parse(w, what)
    }

    fn octal(&self, word: &str) -> Result<u16, ParseError> {
        u16::from_str_radix(word, 8).map_err(|_| self.wrong(format!("'{word}' is no octal mode")))
    }

    fn perm(&mut self) -> Result<u16, ParseError> {
        let w = self.word("a mode")?;
        self.octal(w)
    }

    fn choice<T: Copy>(&mut self, table: &[(&str, T)]) -> Result<T, ParseError> {
        let w = self.word("a choice")?;
        let found = table.iter().find(|(n, _)| *n == w);
        found
            .map(|(_, v)| *v)
            .ok_or_else(|| self.wrong(format!("'{w}' is unknown")))
    }

    fn unescape(&self, word: &str) -> Result<Vec<u8>, ParseError> {
        if word == "-" {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        let mut bytes = word.bytes();
        while let Some(b) = bytes.next() {
            if b != b'%' {
                out.push(b);
                continue;
            }
            let mut nibble = || bytes.next().and_then(|b| char::from(b).to_digit(16));
            match (nibble(), nibble()) {
                (Some(hi), Some(lo)) => out.push((hi * 16 + lo) as u8),
                _ => return Err(self.wrong("'%' wants two hexadecimal digits")),
            }
        }
        Ok(out)
    }

    fn bytes(&mut self, what: &str) -> Result<Vec<u8>, ParseError> {
        let w = self.word(what)?;
        self.unescape(w)
    }

    fn path_in(&self, word: &str) -> Result<Path, ParseError> {
        let Some(rest) = word.strip_prefix('/') else {
            return Err(self.wrong(format!("'{word}' is no absolute path")));
        };
        if rest.is_empty() {
            return Ok(Path::default());
        }
        rest.split('/')
            .map(|c| self.unescape(c))
            .collect::<Result<_, _>>()
            .map(Path)
    }

    fn path(&mut self) -> Result<Path, ParseError> {
        let w = self.word("a path")?;
        self.path_in(w)
    }

    fn handle_in(&self, word: &str) -> Result<Option<u32>, ParseError> {
        word.strip_prefix('@')
            .map(|n| self.parse(n, "handle"))
            .transpose()
    }

    fn handle(&mut self) -> Result<u32, ParseError> {
        let w = self.word("a handle")?;
        self.handle_in(w)?
            .ok_or_else(|| self.wrong(format!("'{w}' is no handle")))
    }

    fn target(&mut self) -> Result<Target, ParseError> {
        let w = self.word("a path or handle")?;
        match self.handle_in(w)? {
            Some(h) => Ok(Target::Handle(h)),
            None => self.path_in(w).map(Target::Path),
        }
    }

    fn data(&mut self) -> Result<Data, ParseError> {
        let w = self.word("data")?;
        if let Some(text) = w.strip_prefix('=') {
            return Ok(Data::Bytes(self.unescape(text)?));
        }
        match w.strip_prefix('#').and_then(|p| p.split_once('*')) {
            Some((seed, len)) => Ok(Data::Pattern {
                seed: self.parse(seed, "seed")?,
                len: self.parse(len, "length")?,
            }),
            None => Err(self.wrong(format!("'{w}' is no data"))),
        }
    }

    fn time_in(&self, word: &str) -> Result<Time, ParseError> {
        let (secs, nanos) = word.split_once('.').unwrap_or((word, "0"));
        Ok(Time {
            secs: self.parse(secs, "time")?,
            nanos: self.parse(nanos, "time")?,
        })
    }

    fn set(&mut self) -> Result<SetAttr, ParseError> {
        let mut set = SetAttr::default();
        while let Some(word) = self.rest.next() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let when = |w: &Words<'_>| match value {
                "now" => Ok(SetTime::Now),
                _ => w.time_in(value).map(SetTime::At),
            };
            match key {
                "perm" => set.perm = Some(self.octal(value)?),
                "uid" => set.uid = Some(self.parse(value, "user")?),
                "gid" => set.gid = Some(self.parse(value, "group")?),
                "size" => set.size = Some(self.parse(value, "size")?),
                "atime" => set.atime = Some(when(self)?),
                "mtime" => set.mtime = Some(when(self)?),
                "guard" => set.guard = Some(self.time_in(value)?),
                "by-handle" => set.by_handle = true,
                _ => return Err(self.wrong(format!("'{word}' is no attribute"))),
            }
        }
        Ok(set)
    }

    fn op(&mut self) -> Result<Op, ParseError> {
        Ok(match self.word("an operation")? {
            "mknod" => {
                let (path, kind) = (self.path()?, self.choice(&KINDS)?);
                Op::Mknod {
                    path,
                    kind,
                    perm: self.perm()?,
                    rdev: self.number("device")?,
                }
            }
            "mkdir" => Op::Mkdir {
                path: self.path()?,
                perm: self.perm()?,
            },
            "symlink" => Op::Symlink {
                path: self.path()?,
                target: self.bytes("a target")?,
            },
            "link" => Op::Link {
                from: self.target()?,
                to: self.path()?,
            },
            "unlink" => Op::Unlink { path: self.path()? },
            "rmdir" => Op::Rmdir { path: self.path()? },
            "rename" => {
                let (from, to) = (self.path()?, self.path()?);
                Op::Rename {
                    from,
                    to,
                    mode: self.choice(&RENAMES)?,
                }
            }
            "write" => {
                let (file, offset) = (self.target()?, self.number("offset")?);
                Op::Write {
                    file,
                    offset,
                    data: self.data()?,
                }
            }
            "append" => Op::Append {
                file: self.target()?,
                data: self.data()?,
            },
            "setattr" => Op::SetAttr {
                file: self.target()?,
                set: self.set()?,
            },
            "fallocate" => {
                let (file, mode) = (self.target()?, self.choice(&ALLOCATES)?);
                let (offset, len) = (self.number("offset")?, self.number("length")?);
                Op::Fallocate {
                    file,
                    mode,
                    offset,
                    len,
                }
            }
            "setxattr" => {
                let (file, name) = (self.target()?, self.bytes("a name")?);
                let value = self.bytes("a value")?;
                Op::SetXattr {
                    file,
                    name,
                    value,
                    mode: self.choice(&XATTRS)?,
                }
            }
            "removexattr" => Op::RemoveXattr {
                file: self.target()?,
                name: self.bytes("a name")?,
            },
            "open" => Op::Open {
                path: self.path()?,
                handle: self.handle()?,
            },
            "close" => Op::Close {
                handle: self.handle()?,
            },
            "fsync" => Op::Fsync {
                file: self.target()?,
            },
            "fdatasync" => Op::Fdatasync {
                file: self.target()?,
            },
            "sync" => Op::Sync,
            other => return Err(self.wrong(format!("'{other}' is no operation"))),
        })
    }

    fn caller(&mut self) -> Result<Caller, ParseError> {
        let stream = self.word("a stream")?;
        let Some(stream) = stream.strip_prefix('s') else {
            return Err(self.wrong(format!("'{stream}' is no stream")));
        };
        let stream = Stream(self.parse(stream, "stream")?);
        let who = self.word("a user")?;
        let (who, checked) = who.strip_suffix('!').map_or((who, false), |w| (w, true));
        let Some((uid, groups)) = who.split_once(':') else {
            return Err(self.wrong(format!("'{who}' names no group")));
        };
        let uid = self.parse(uid, "user")?;
        let all: Vec<u32> = groups
            .split(',')
            .map(|g| self.parse(g, "group"))
            .collect::<Result<_, _>>()?;
        let Some((gid, more)) = all.split_first() else {
            return Err(self.wrong("a group is missing"));
        };
        Ok(Caller {
            uid,
            gid: *gid,
            groups: Arc::from(more),
            stream,
            checked,
            umask: 0,
            note: None,
        })
    }
}

impl FromStr for Op {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Op, ParseError> {
        let mut words = Words::new(text);
        let op = words.op()?;
        words.end()?;
        Ok(op)
    }
}

impl FromStr for Step {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Step, ParseError> {
        let mut words = Words::new(text);
        let caller = words.caller()?;
        let time = words.word("a time")?;
        let at = words.time_in(time)?;
        let op = words.op()?;
        words.end()?;
        Ok(Step { caller, at, op })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::workload::{Shape, Workload};

    #[test]
    fn every_step_that_is_printed_reads_back_as_itself() {
        let shape = Shape {
            streams: 3,
            users: true,
            odd_names: true,
            ..Shape::default()
        };
        for step in Workload::new(5, shape).take(5000) {
            let text = step.to_string();
            let back: Step = text.parse().unwrap();
            assert_eq!(back.to_string(), text);
            assert_eq!((&back.op, back.at), (&step.op, step.at), "{text}");
            assert_eq!(back.caller.groups, step.caller.groups);
            assert_eq!(back.caller.stream, step.caller.stream);
        }
    }

    #[test]
    fn names_with_any_byte_survive_and_nonsense_is_refused_with_a_reason() {
        let path = Path(vec![vec![1, b' ', 255, b'%'], b"-".to_vec(), b"@".to_vec()]);
        let op = Op::Symlink {
            path,
            target: vec![0xff, 0, b' '],
        };
        assert_eq!(op.to_string().parse::<Op>(), Ok(op));
        let op = Op::Append {
            file: Target::Handle(3),
            data: Data::Bytes(vec![]),
        };
        assert_eq!(op.to_string(), "append @3 =-");
        assert_eq!(op.to_string().parse::<Op>(), Ok(op));
        for bad in [
            "",
            "fly /a",
            "unlink",
            "unlink a",
            "mkdir /a 9",
            "sync now",
            "write /a x =a",
            "unlink /%f",
        ] {
            assert!(!bad.parse::<Op>().unwrap_err().why.is_empty(), "{bad}");
        }
        assert!("s0 0 0.0 sync".parse::<Step>().is_err());
    }
}
