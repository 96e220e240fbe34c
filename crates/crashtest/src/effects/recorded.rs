//! A trace as a [`Run`].

use super::{Body, Bytes, Disk, Ino, Location, Node, ROOT, Run, Step, What};
use crate::trace::{Alloc, Call, Op, Rename, Stack, Trace, TraceError};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use steadfast_model::Tree;
use steadfast_vfs::Caller;

/// Directories of libraries, whose frames say less than their callers'.
const LIBRARIES: &[&str] = &["/libc.so", "/libc-", "/ld-", "/libpthread", "/libstdc++"];
/// Most bytes that the writes of a run hold in memory: those of a longer run stay in its trace.
const HELD_MAX: u64 = 64 << 20;
/// Number of entries that are listed at a time.
const BATCH: usize = 1024;

/// Names of inodes, for reports.
#[derive(Default)]
pub(crate) struct Names(HashMap<Ino, (Ino, Vec<u8>)>);

/// Bytes as text: control characters and what is not UTF-8 are escaped.
#[must_use]
pub fn readable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() {
                true => text.extend(c.escape_default()),
                false => text.push(c),
            }
        }
        for b in chunk.invalid() {
            text.push_str(&format!("\\x{b:02x}"));
        }
    }
    text
}

impl Names {
    /// The path of an inode, as text.
    pub(crate) fn path(&self, ino: Ino) -> Path<'_> {
        Path {
            names: self,
            dir: ino,
            name: None,
        }
    }

    /// The path of a name in a directory, as text.
    pub(crate) fn entry<'a>(&'a self, parent: Ino, name: &'a [u8]) -> Path<'a> {
        Path {
            names: self,
            dir: parent,
            name: Some(name),
        }
    }
}

/// A path that becomes text when it is shown.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    names: &'a Names,
    dir: Ino,
    name: Option<&'a [u8]>,
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.name.into_iter().map(readable).collect();
        let mut at = self.dir;
        // A bound: names of removed directories may be stale.
        while at != ROOT && parts.len() < 64 {
            let Some((parent, name)) = self.names.0.get(&at) else {
                parts.push(format!("#{at}"));
                break;
            };
            parts.push(readable(name));
            at = *parent;
        }
        if parts.is_empty() {
            return f.write_str(".");
        }
        parts.reverse();
        f.write_str(&parts.join("/"))
    }
}

/// The tree of a model as a disk, with the same inode numbers.
#[must_use]
pub fn disk_of(tree: &Tree) -> Disk {
    let mut names = Names(HashMap::new());
    scan(tree, &mut names)
}

pub(crate) fn scan(tree: &Tree, names: &mut Names) -> Disk {
    let mut disk = Disk::default();
    let mut todo = vec![ROOT];
    while let Some(dir) = todo.pop() {
        let mut node = node_of(tree, dir);
        let mut entries = std::collections::BTreeMap::new();
        let mut cookie = 0;
        while let Ok(listed) = tree.readdir(dir, cookie, BATCH) {
            let Some(last) = listed.last() else {
                break;
            };
            cookie = last.cookie;
            for e in listed {
                if e.name == b"." || e.name == b".." {
                    continue;
                }
                names.0.insert(e.ino, (dir, e.name.clone()));
                entries.insert(Arc::from(e.name.as_slice()), e.ino);
                match e.kind {
                    steadfast_vfs::FileKind::Directory => todo.push(e.ino),
                    _ => disk.add(e.ino, node_of(tree, e.ino)),
                }
            }
        }
        node.body = Body::Dir(entries);
        disk.add(dir, node);
    }
    disk
}

fn node_of(tree: &Tree, ino: Ino) -> Node {
    let Ok(attr) = tree.getattr(ino) else {
        return Node::new(steadfast_vfs::FileKind::Regular, 0o644);
    };
    let root = Caller::root();
    let mut node = Node::new(attr.kind, attr.perm);
    (node.uid, node.gid, node.rdev) = (attr.uid, attr.gid, attr.rdev);
    for name in tree.listxattr(&root, ino).unwrap_or_default() {
        if let Ok(value) = tree.getxattr(&root, ino, &name) {
            node.xattrs.insert(name, value.to_vec());
        }
    }
    match &mut node.body {
        Body::File { size, data } => {
            *size = attr.size;
            *data = tree.data(ino).cloned().unwrap_or_default();
        }
        Body::Link(target) => *target = Arc::from(tree.readlink(ino).unwrap_or_default()),
        Body::Dir(_) | Body::Special => {}
    }
    node
}

/// Source files of the language's library: their callers say more.
fn is_of_library(file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/go/src/") || file.contains("/sysdeps/")
}

/// Files of the library of Python or Node, but not of packages that were installed.
fn is_of_interpreter(file: &str) -> bool {
    let of_python = file.contains("/lib/python3.") && !file.contains("-packages/");
    of_python || file.starts_with("<frozen ") || file.starts_with("node:")
}

/// Functions of the language's library.
const LIBRARY_FUNCTIONS: &[&str] = &[
    "std::",
    "<std::",
    "<&std::",
    "core::",
    "<core::",
    "alloc::",
    "<alloc::",
    "rustix::",
    "os.",
    "syscall.",
    "internal/",
    "runtime.",
    "runtime/",
];

/// The innermost frame that is the program's own: its source line, else its function, else its address.
fn location(stack: Option<&Stack>) -> Option<Location> {
    let own = |f: &&crate::trace::Frame| {
        let object = String::from_utf8_lossy(&f.object);
        let function = f.function.as_deref().unwrap_or_default();
        let in_library = f.line.as_ref().is_some_and(|(file, _)| is_of_library(file))
            || LIBRARY_FUNCTIONS.iter().any(|l| function.starts_with(l));
        !in_library && !LIBRARIES.iter().any(|l| object.contains(l))
    };
    let frames = &stack?.frames;
    let lines = || frames.iter().filter(own).filter_map(|f| f.line.clone());
    // The library of Python or Node is named only if there is nothing else.
    let mut all = lines()
        .filter(|(file, _)| !is_of_interpreter(file))
        .chain(lines());
    if let Some((file, line)) = all.next() {
        let line = Some(line);
        return Some(Location { file, line });
    }
    let frame = frames.iter().find(own).or(frames.first())?;
    let name = frame.object.rsplit(|&b| b == b'/').next();
    let program = readable(name.unwrap_or_default());
    let file = match &frame.function {
        Some(function) => format!("{function} ({program})"),
        None => format!("{program}+{:#x}", frame.address),
    };
    Some(Location { file, line: None })
}

impl Run {
    /// The run that a trace recorded.
    ///
    /// # Errors
    /// If the trace cannot be read or does not replay.
    pub fn of_trace(trace: &Trace) -> Result<Run, TraceError> {
        let mut tree = trace.initial_tree()?;
        let mut names = Names(HashMap::new());
        let mut run = Run {
            base: scan(&tree, &mut names),
            steps: Vec::new(),
        };
        let written = |call: &Call| match &call.op {
            Op::Write { data, .. } => data.len,
            _ => 0,
        };
        let held = trace.calls.iter().map(written).sum::<u64>() <= HELD_MAX;
        for call in &trace.calls {
            if !call.outcome.is_done() {
                continue;
            }
            trace.replay(&mut tree, call)?;
            let bytes = match &call.op {
                Op::Write { data, .. } if held => trace.bytes(*data)?.into(),
                Op::Write { data, .. } => Bytes::kept(trace.kept(*data), data.len as usize),
                _ => Bytes::from(Vec::new()),
            };
            let report = Report::From(location(trace.stack(call)));
            steps_of(call, bytes, report, &tree, &mut names, &mut run.steps);
        }
        trace.check()?;
        Ok(run)
    }
}

/// Use of steps in reports.
pub(crate) enum Report {
    /// They are in no report.
    None,
    /// They have a text, and the place in the program, if known.
    From(Option<Location>),
}

/// The steps of a successful call; `tree` is the one after it, `bytes` are those of a write. Only steps for reports have a text.
pub(crate) fn steps_of(
    call: &Call,
    bytes: Bytes,
    report: Report,
    tree: &Tree,
    names: &mut Names,
    steps: &mut Vec<Step>,
) {
    let word = call.op.word();
    let mut add = |what: What, text: fmt::Arguments<'_>| {
        steps.push(Step {
            number: call.number,
            what,
            text: match &report {
                Report::None => String::new(),
                Report::From(_) => text.to_string(),
            },
            location: match &report {
                Report::None => None,
                Report::From(location) => location.clone(),
            },
            thread: call.who.thread,
            stack: call.stack.map_or(0, |s| u64::from(s.0) + 1),
        });
    };
    let at = |parent: Ino, name: &[u8]| (parent, Arc::<[u8]>::from(name));
    match &call.op {
        Op::Create { parent, name, .. }
        | Op::Mknod { parent, name, .. }
        | Op::Mkdir { parent, name, .. }
        | Op::Symlink { parent, name, .. } => {
            let Some(ino) = call.outcome.made() else {
                return;
            };
            names.0.insert(ino, (*parent, name.clone()));
            let node = node_of(tree, ino);
            add(
                What::Make {
                    at: at(*parent, name),
                    ino,
                    node,
                },
                format_args!("{word} {}", names.entry(*parent, name)),
            );
        }
        Op::Link { ino, parent, name } => {
            add(
                What::Link {
                    ino: *ino,
                    at: at(*parent, name),
                },
                format_args!("link {} → {}", names.path(*ino), names.entry(*parent, name)),
            );
            names.0.insert(*ino, (*parent, name.clone()));
        }
        Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. } => {
            add(
                What::Remove {
                    at: at(*parent, name),
                },
                format_args!("{word} {}", names.entry(*parent, name)),
            );
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
            ino,
            replaced,
        } => {
            let exchange = *mode == Rename::Exchange;
            let (from, to) = (at(*parent, name), at(*new_parent, new_name));
            add(
                What::Rename { from, to, exchange },
                format_args!(
                    "rename {} → {}",
                    names.entry(*parent, name),
                    names.entry(*new_parent, new_name)
                ),
            );
            if let Some(ino) = ino {
                names.0.insert(*ino, (*new_parent, new_name.clone()));
            }
            if let (Some(other), true) = (replaced, exchange) {
                names.0.insert(*other, (*parent, name.clone()));
            }
        }
        Op::Open { ino, truncate, .. } if *truncate => {
            add(
                What::Truncate { ino: *ino, size: 0 },
                format_args!("open with O_TRUNC {}", names.path(*ino)),
            );
        }
        Op::Open { .. } | Op::Release { .. } => {}
        Op::Close { ino } => {
            add(
                What::Close { ino: *ino },
                format_args!("close {}", names.path(*ino)),
            );
        }
        Op::Write {
            ino,
            offset,
            data,
            how,
        } => {
            add(
                What::Write {
                    ino: *ino,
                    offset: *offset,
                    bytes,
                },
                format_args!("write {}, {} bytes at {offset}", names.path(*ino), data.len),
            );
            if how.dsync || how.sync {
                let kind = if how.sync { "" } else { "D" };
                add(
                    What::Fsync {
                        ino: *ino,
                        data_only: !how.sync,
                    },
                    format_args!("O_{kind}SYNC of {}", names.path(*ino)),
                );
            }
        }
        Op::Truncate { ino, size } => {
            add(
                What::Truncate {
                    ino: *ino,
                    size: *size,
                },
                format_args!("truncate {} to {size}", names.path(*ino)),
            );
        }
        Op::Fallocate {
            ino,
            mode,
            offset,
            len,
        } => {
            let end = offset.saturating_add(*len);
            let path = names.path(*ino);
            if matches!(
                mode,
                Alloc::PunchHole | Alloc::ZeroRange | Alloc::ZeroRangeKeepSize
            ) {
                add(
                    What::Zero {
                        ino: *ino,
                        offset: *offset,
                        len: *len,
                    },
                    format_args!("fallocate {path}, {len} bytes at {offset}"),
                );
            }
            if matches!(mode, Alloc::Allocate | Alloc::ZeroRange) {
                add(
                    What::Allocate {
                        ino: *ino,
                        size: end,
                    },
                    format_args!("fallocate {path}, {len} bytes at {offset}"),
                );
            }
        }
        Op::SetAttr { ino, change } => {
            let path = names.path(*ino);
            if let Some(size) = change.size {
                add(
                    What::Truncate { ino: *ino, size },
                    format_args!("truncate {path} to {size}"),
                );
            }
            if change.perm.is_some() || change.uid.is_some() || change.gid.is_some() {
                let (perm, uid, gid) = (change.perm, change.uid, change.gid);
                let word = if perm.is_some() { "chmod" } else { "chown" };
                add(
                    What::Attr {
                        ino: *ino,
                        perm,
                        uid,
                        gid,
                    },
                    format_args!("{word} {path}"),
                );
            }
        }
        Op::SetXattr {
            ino, name, value, ..
        } => {
            let value = Some(value.clone());
            add(
                What::Xattr {
                    ino: *ino,
                    name: name.clone(),
                    value,
                },
                format_args!("setxattr {} of {}", readable(name), names.path(*ino)),
            );
        }
        Op::RemoveXattr { ino, name } => {
            add(
                What::Xattr {
                    ino: *ino,
                    name: name.clone(),
                    value: None,
                },
                format_args!("removexattr {} of {}", readable(name), names.path(*ino)),
            );
        }
        Op::Fsync { ino } | Op::Fdatasync { ino } | Op::FsyncDir { ino, .. } => {
            let data_only = matches!(call.op, Op::Fdatasync { .. });
            add(
                What::Fsync {
                    ino: *ino,
                    data_only,
                },
                format_args!("{word} {}", names.path(*ino)),
            );
        }
        Op::Sync | Op::Syncfs => add(What::Sync, format_args!("{word}")),
        Op::SyncFileRange { ino, flags, .. } => {
            // It makes durable only what it waits for: SYNC_FILE_RANGE_WRITE and _WAIT_AFTER.
            if flags & 6 == 6 {
                add(
                    What::SyncRange { ino: *ino },
                    format_args!("{word} {}", names.path(*ino)),
                );
            }
        }
        Op::Ack { text, .. } => {
            let text = String::from_utf8_lossy(text).into_owned();
            add(
                What::Ack { text: text.clone() },
                format_args!("acknowledge '{}'", readable(text.as_bytes())),
            );
        }
    }
}
