//! A run as steps, and the effect of each step on the medium under a model.
//!
//! A [`Step`] is one call that had an effect, a sync, or an acknowledgement. [`Effects::new`] turns steps into
//! effects with their order (what must be durable before) and into demands (what a returned sync made durable).
//!
//! Every model keeps the order of effects on one *cell* (a name in a directory, a unit of a file, a size, an inode's
//! attributes), since a medium holds one value of each. The rest are rules of the model.

mod bits;
mod build;
mod bytes;
mod disk;
mod recorded;

#[cfg(test)]
mod tests;

pub use bits::Bits;
#[cfg(test)]
pub(crate) use build::Fault;
pub(crate) use build::garbage;
pub use bytes::Bytes;
pub use disk::{Body, Change, Disk, Ino, Node, ROOT, Seen};
pub(crate) use recorded::{Names, Report, scan, steps_of};
pub use recorded::{disk_of, readable};

use crate::models::{Classes, Model};
use std::sync::Arc;
use steadfast_vfs::FileKind;

/// A name in a directory.
pub type Entry = (Ino, Arc<[u8]>);

/// Operation of a step.
#[derive(Clone, Debug)]
pub enum What {
    /// A new inode with a name. Its attributes, and a link's target, come with it.
    Make {
        /// The name.
        at: Entry,
        /// Its number, never used before.
        ino: Ino,
        /// The inode.
        node: Node,
    },
    /// Another name.
    Link {
        /// The inode.
        ino: Ino,
        /// The name.
        at: Entry,
    },
    /// A name is removed.
    Remove {
        /// The name.
        at: Entry,
    },
    /// A name moves, over another if there is one; or two are exchanged.
    Rename {
        /// The old name.
        from: Entry,
        /// The new name.
        to: Entry,
        /// Whether the two are exchanged.
        exchange: bool,
    },
    /// Bytes are written.
    Write {
        /// The file.
        ino: Ino,
        /// The offset.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// The size is set.
    Truncate {
        /// The file.
        ino: Ino,
        /// The new size.
        size: u64,
    },
    /// Space is allocated, and the size grows.
    Allocate {
        /// The file.
        ino: Ino,
        /// The new size.
        size: u64,
    },
    /// A range becomes zeros.
    Zero {
        /// The file.
        ino: Ino,
        /// The offset.
        offset: u64,
        /// The length.
        len: u64,
    },
    /// Attributes change.
    Attr {
        /// The inode.
        ino: Ino,
        /// Permission bits.
        perm: Option<u16>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// An extended attribute is set or removed.
    Xattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: Vec<u8>,
        /// Its value; None removes it.
        value: Option<Vec<u8>>,
    },
    /// A file is closed.
    Close {
        /// The file.
        ino: Ino,
    },
    /// fsync or fdatasync of a file or directory.
    Fsync {
        /// The file or directory.
        ino: Ino,
        /// Whether it is fdatasync.
        data_only: bool,
    },
    /// sync or syncfs.
    Sync,
    /// sync_file_range that waits.
    SyncRange {
        /// The file.
        ino: Ino,
    },
    /// An acknowledgement of the workload.
    Ack {
        /// Its text.
        text: String,
    },
}

/// One call of a run.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its number in the recorded run.
    pub number: u64,
    /// Its operation.
    pub what: What,
    /// Its text in reports: `rename a -> b`.
    pub text: String,
    /// File and line of the caller, if known.
    pub location: Option<Location>,
    /// Thread of the call; 0: unknown.
    pub thread: u32,
    /// Calls of the same stack are one behaviour; 0: unknown.
    pub stack: u64,
}

/// A place in a source; in a program without source lines, a function or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The file; without a line, `function+0x12 (program)` or `program+0x1234`.
    pub file: String,
    /// The line, from 1.
    pub line: Option<u32>,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A run: what was durable before it, and its steps in the order of effect.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The initial tree. Inodes that steps make are added to it, nameless.
    pub base: Disk,
    /// The steps.
    pub steps: Vec<Step>,
}

/// One change that is durable or not.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Position of its step.
    pub step: usize,
    /// Its kind.
    pub class: Classes,
    /// The inode that it changes, or whose name it changes.
    pub file: Option<Ino>,
    /// The directory that it changes.
    pub dir: Option<Ino>,
    /// Its changes.
    pub changes: Vec<Change>,
    /// Range of bytes of a write, for reports.
    pub part: Option<(u64, u64)>,
    /// Whether a cut may leave a part of it.
    pub tears: bool,
    /// All effects that are durable if it is, without itself.
    pub before: Bits,
    /// The same by the order of cells alone.
    pub cells: Bits,
}

/// A run under a model.
#[derive(Clone, Debug)]
pub struct Effects {
    /// The tree before, with all inodes.
    pub base: Disk,
    /// The effects, in the order of the calls.
    pub all: Vec<Effect>,
    /// For each number of steps that returned: the effects that are durable at least.
    pub demanded: Vec<Arc<Bits>>,
    /// For each number of steps: the number of effects.
    pub upto: Vec<usize>,
    /// For each number of steps: the number of acknowledgements.
    pub acked: Vec<usize>,
    /// The acknowledgements, in order.
    pub acks: Vec<String>,
    /// For each step: calls of the same stack are one behaviour.
    pub stacks: Vec<u64>,
    /// Steps that were left out because the run is too long.
    pub left_out: usize,
}

/// Maximum number of effects that are explored: the set of effects before each takes a bit per effect.
pub const EFFECTS_MAX: usize = 24_000;

impl Effects {
    /// The effects of a run under a model.
    #[must_use]
    pub fn new(run: &Run, model: &Model) -> Effects {
        build::build(run, model, 0, None)
    }

    /// The same with writes in parts of at least `unit` bytes: fewer effects, and fewer of the states that the model
    /// allows.
    #[must_use]
    pub fn coarse(run: &Run, model: &Model, unit: u64) -> Effects {
        build::build(run, model, unit, None)
    }

    /// The same with a planted fault, which tests of this crate must notice.
    #[cfg(test)]
    pub(crate) fn with_fault(run: &Run, model: &Model, fault: Option<Fault>) -> Effects {
        build::build(run, model, 0, fault)
    }

    /// The tree that a set of effects leaves.
    #[must_use]
    pub fn disk(&self, state: &Bits) -> Disk {
        let mut disk = self.base.clone();
        for i in state.iter() {
            if let Some(effect) = self.all.get(i) {
                for change in &effect.changes {
                    disk.apply(change);
                }
            }
        }
        disk
    }

    /// The effects of the first `steps` steps.
    #[must_use]
    pub fn prefix(&self, steps: usize) -> Bits {
        Bits::first(self.upto.get(steps).copied().unwrap_or(self.all.len()))
    }

    /// Acknowledgements among the first `steps` steps.
    #[must_use]
    pub fn acked_at(&self, steps: usize) -> usize {
        self.acked.get(steps).copied().unwrap_or(self.acks.len())
    }

    /// Number of steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.upto.len().saturating_sub(1)
    }

    /// The first and the last moment, in steps that returned, at which a state can arise; `None` if there is none.
    #[must_use]
    pub fn moments(&self, state: &Bits) -> Option<(usize, usize)> {
        let first = match state.last() {
            Some(e) => self.all.get(e)?.step + 1,
            None => 0,
        };
        // A call in flight may have had its effects: the call before has returned, this one has not.
        let earliest = first.saturating_sub(1);
        // Demands only grow.
        let allowed = |t: usize| self.demanded.get(t).is_some_and(|d| state.contains(d));
        if !allowed(earliest) {
            return None;
        }
        let (mut low, mut high) = (earliest, self.steps());
        while low < high {
            let middle = (low + high).div_ceil(2);
            match allowed(middle) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        Some((earliest, low))
    }

    /// For each step, the number of steps after which it is durable in any state: `None` if it has no effect, and
    /// `Some(None)` if no sync demands it.
    #[must_use]
    pub fn durable_after(&self) -> Vec<Option<Option<usize>>> {
        let mut since: Vec<Option<usize>> = vec![None; self.all.len()];
        let mut last: Option<&Arc<Bits>> = None;
        for (t, demanded) in self.demanded.iter().enumerate() {
            if last.is_some_and(|l| Arc::ptr_eq(l, demanded)) {
                continue;
            }
            last = Some(demanded);
            for i in demanded.iter() {
                if let Some(since) = since.get_mut(i) {
                    since.get_or_insert(t);
                }
            }
        }
        let mut steps = vec![None; self.steps()];
        for (effect, since) in self.all.iter().zip(since) {
            let Some(step) = steps.get_mut(effect.step) else {
                continue;
            };
            *step = match (*step, since) {
                (None, since) => Some(since),
                (Some(Some(all)), Some(since)) => Some(Some(since.max(all))),
                (Some(_), _) => Some(None),
            };
        }
        steps
    }

    /// Whether a state has everything that is ordered before its effects.
    #[must_use]
    pub fn is_closed(&self, state: &Bits, jumped: Option<&Bits>) -> bool {
        state.iter().all(|i| {
            self.all.get(i).is_some_and(|e| {
                let needs = match jumped.is_some_and(|j| j.get(i)) {
                    true => &e.cells,
                    false => &e.before,
                };
                state.contains(needs)
            })
        })
    }
}

/// Whether an inode is a directory.
pub(crate) fn is_dir(disk: &Disk, ino: Ino) -> bool {
    disk.node(ino)
        .is_some_and(|n| n.kind == FileKind::Directory)
}

/// Whether an inode of a run is a directory, made in it or before.
pub(crate) fn is_dir_of(run: &Run, ino: Ino) -> bool {
    let made = run.steps.iter().find_map(|s| match &s.what {
        What::Make { ino: i, node, .. } if *i == ino => Some(node.kind == FileKind::Directory),
        _ => None,
    });
    made.unwrap_or_else(|| is_dir(&run.base, ino))
}
