//! A trace for readers: a line for each call, with paths in place of inode numbers.

use std::collections::HashMap;

use super::call::{Call, Op, Outcome};
use steadfast_model::tree::ROOT;
use steadfast_vfs::Ino;

/// Maximum depth of a path: a damaged trace may hold a circle.
const DEPTH_MAX: usize = 4096;

/// The last known path of each inode, as calls go by.
#[derive(Clone, Debug, Default)]
pub struct Names {
    places: HashMap<Ino, (Ino, Vec<u8>)>,
}

impl Names {
    /// Only the root is known.
    #[must_use]
    pub fn new() -> Names {
        Names::default()
    }

    /// Records a call's changes of names. Calls must come in the order of the trace.
    pub fn note(&mut self, call: &Call) {
        if !call.outcome.is_done() {
            return;
        }
        match (&call.op, call.outcome) {
            (
                Op::Create { parent, name, .. }
                | Op::Mknod { parent, name, .. }
                | Op::Mkdir { parent, name, .. }
                | Op::Symlink { parent, name, .. },
                Outcome::Made(ino),
            ) => self.set(ino, *parent, name),
            (
                Op::Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    mode,
                    ino,
                    replaced,
                },
                _,
            ) => {
                if let Some(ino) = ino {
                    self.set(*ino, *new_parent, new_name);
                }
                if let (super::Rename::Exchange, Some(other)) = (mode, replaced) {
                    self.set(*other, *parent, name);
                }
            }
            _ => {}
        }
    }

    fn set(&mut self, ino: Ino, parent: Ino, name: &[u8]) {
        self.places.insert(ino, (parent, name.to_vec()));
    }

    /// The path of an inode from the root, without a slash in front: `.` for the root.
    #[must_use]
    pub fn path(&self, ino: Ino) -> Vec<u8> {
        if ino == ROOT {
            return b".".to_vec();
        }
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while let Some((parent, name)) = self.places.get(&at)
            && names.len() < DEPTH_MAX
        {
            names.push(name);
            at = *parent;
        }
        if names.is_empty() {
            return format!("inode {ino}").into_bytes();
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The path of a name in a directory.
    #[must_use]
    pub fn join(&self, parent: Ino, name: &[u8]) -> Vec<u8> {
        match parent {
            ROOT => name.to_vec(),
            _ => [&self.path(parent), name].join(&b'/'),
        }
    }

    /// What a call asks for, in one line of printable ASCII; taken before [`Names::note`].
    #[must_use]
    pub fn describe(&self, call: &Call) -> String {
        let word = call.op.word();
        let at = |parent: &Ino, name: &[u8]| escaped(&self.join(*parent, name));
        let of = |ino: &Ino| escaped(&self.path(*ino));
        let what = match &call.op {
            Op::Create { parent, name, .. }
            | Op::Mknod { parent, name, .. }
            | Op::Mkdir { parent, name, .. }
            | Op::Unlink { parent, name, .. }
            | Op::Rmdir { parent, name, .. } => at(parent, name),
            Op::Symlink {
                parent,
                name,
                target,
            } => format!("{} → {}", at(parent, name), escaped(target)),
            Op::Link { ino, parent, name } => format!("{} → {}", of(ino), at(parent, name)),
            Op::Rename {
                parent,
                name,
                new_parent,
                new_name,
                mode,
                ..
            } => {
                let mode = match mode {
                    super::Rename::Replace => "",
                    super::Rename::NoReplace => " (no replace)",
                    super::Rename::Exchange => " (exchange)",
                    super::Rename::Whiteout => " (whiteout)",
                    super::Rename::WhiteoutNoReplace => " (whiteout, no replace)",
                };
                format!("{} → {}{mode}", at(parent, name), at(new_parent, new_name))
            }
            Op::Open { ino, truncate, .. } => {
                format!("{}{}", of(ino), if *truncate { " (truncated)" } else { "" })
            }
            Op::Write {
                ino,
                offset,
                data,
                how,
            } => {
                let mut line = format!("{}, {} bytes at {offset}", of(ino), data.len);
                for (on, word) in [
                    (how.append, " (append)"),
                    (how.direct, " (direct)"),
                    (how.by_kernel, " (mmap)"),
                    (how.dsync && !how.sync, " (dsync)"),
                    (how.sync, " (sync)"),
                ] {
                    line.push_str(if on { word } else { "" });
                }
                line
            }
            Op::Truncate { ino, size } => format!("{} to {size} bytes", of(ino)),
            Op::Fallocate {
                ino,
                mode,
                offset,
                len,
            } => format!("{}, {len} bytes at {offset} ({mode:?})", of(ino)),
            Op::SetXattr { ino, name, .. } | Op::RemoveXattr { ino, name } => {
                format!("{} {}", of(ino), escaped(name))
            }
            Op::SyncFileRange {
                ino, offset, len, ..
            } => format!("{}, {len} bytes at {offset}", of(ino)),
            Op::Close { ino }
            | Op::Release { ino }
            | Op::SetAttr { ino, .. }
            | Op::Fsync { ino }
            | Op::Fdatasync { ino }
            | Op::FsyncDir { ino, .. } => of(ino),
            Op::Syncfs | Op::Sync => String::new(),
            Op::Ack { text, .. } => format!("\"{}\"", escaped(text)),
        };
        let failed = match call.outcome {
            Outcome::Failed(errno) => format!(" = error {errno}"),
            _ => String::new(),
        };
        format!("{word} {what}{failed}").trim_end().to_owned()
    }
}

/// Bytes as printable ASCII.
fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
