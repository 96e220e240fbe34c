//! The contract `relaxed`: which trees a crash may leave.
//!
//! Metadata is that of a prefix of the calls, one order for all callers, which holds everything up to the last answered sync.
//! A write to a file is *kept* (by the kernel, in its page cache) and may become durable later than its place until the
//! file is closed or synced; at that call, all of it is in the order. Exactly:
//!
//! - a write changes the tree that programs see, and adds to the kept pages of the file (module `kept`);
//! - each page of a file that is kept may be in the tree with any content that it had since the file was last closed or synced,
//!   that from before included, whatever other pages have; the file reaches to the farthest byte of
//!   what is there, or to where a call about its size has put its end;
//! - `close` of any descriptor of a file, `fsync` and `fdatasync` of it, and `sync`, leave nothing kept;
//! - truncation, holes and allocation are calls in the order, and do the same to everything kept;
//! - all other calls are in the order at their place, atomic.
//!
//! So a rename over a file after a close is as safe as under `ordered`, and no file shows bytes that were not
//! written to it: a page that has not arrived has its old content, or zeros.
//!
//! An answered `fsync` of anything makes durable everything in the order up to it. A refused call binds nothing. Times are
//! not compared. Neighbours: [`crate::ordered`], [`crate::prefix`], [`crate::tree`], [`crate::snapshot`].

mod kept;
#[cfg(test)]
mod tests;

use crate::op::{Call, OpResult, Step};
use crate::ordered::{Cut, RecordError, is_refused};
use crate::snapshot::{Diff, Observe, Snapshot};
use crate::tree::{Body, Tree};
use kept::Kept;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use steadfast_vfs::{AllocateMode, Ino};

/// History of a volume, and the states that a crash may therefore leave.
#[derive(Clone, Debug)]
pub struct RelaxedHistory {
    ops: Vec<(Step, Option<OpResult>)>,
    /// The state before each operation, and the present one.
    states: Vec<State>,
    /// First state that a crash may still leave, after each operation.
    least: Vec<usize>,
}

/// A tree as programs see it, and the parts of it that may not have arrived.
#[derive(Clone, Debug)]
struct State {
    tree: Tree,
    kept: BTreeMap<Ino, Arc<Kept>>,
    snapshot: OnceLock<Arc<Snapshot>>,
}

/// A tree that a crash must not leave.
#[derive(Clone, Debug)]
pub struct RelaxedViolation {
    /// Time of the power cut.
    pub cut: Cut,
    /// The least and the greatest length of a prefix that may be there.
    pub prefixes: (usize, usize),
    /// The prefix whose tree differs least, everything kept in it arrived.
    pub nearest: usize,
    /// Difference from it.
    pub diff: Diff,
    /// Files kept in the nearest tree with content that no prefix explains.
    pub strange: Vec<String>,
}

impl fmt::Display for RelaxedViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { acked, issued } = self.cut;
        writeln!(
            f,
            "contract 'relaxed' violated, {issued} operations called, {acked} answered:"
        )?;
        for file in &self.strange {
            writeln!(f, "{file}")?;
        }
        writeln!(
            f,
            "nearest allowed state (the first {} operations, of {} to {}, all content arrived):",
            self.nearest, self.prefixes.0, self.prefixes.1
        )?;
        write!(f, "{}", self.diff)
    }
}

impl std::error::Error for RelaxedViolation {}

impl State {
    fn new(tree: Tree) -> State {
        State {
            tree,
            kept: BTreeMap::new(),
            snapshot: OnceLock::new(),
        }
    }

    fn snapshot(&self) -> &Arc<Snapshot> {
        self.snapshot
            .get_or_init(|| Arc::new(Snapshot::of_tree(&self.tree)))
    }

    /// The state after a call that succeeded.
    fn after(&self, call: &Call, step: &Step) -> State {
        let mut next = State::new(self.tree.clone());
        next.kept.clone_from(&self.kept);
        // The outcome was compared already.
        let _ = next.tree.call(call, &step.caller, step.at);
        match call {
            Call::Write { ino, offset, data } => next.written(self, *ino, *offset, data.len()),
            Call::Append { ino, data } => {
                let offset = self.tree.getattr(*ino).map_or(0, |attr| attr.size);
                next.written(self, *ino, offset, data.len());
            }
            Call::SetAttr { ino, set } => {
                if let Some(size) = set.size {
                    next.change(*ino, |kept| kept.resize(size));
                }
            }
            Call::Fallocate {
                ino,
                mode,
                offset,
                len,
            } => next.change(*ino, |kept| {
                let bytes = *offset..offset.saturating_add(*len);
                if !matches!(mode, AllocateMode::Allocate | AllocateMode::KeepSize) {
                    kept.zero(&bytes);
                }
                if matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange) {
                    kept.reach(bytes.end);
                }
            }),
            Call::Close { ino, .. } | Call::Fsync { ino, .. } => drop(next.kept.remove(ino)),
            Call::Sync => next.kept.clear(),
            _ => {}
        }
        let nodes = &next.tree.nodes;
        next.kept.retain(|ino, _| nodes.get(*ino).is_some());
        next
    }

    /// Bytes of a file were written.
    fn written(&mut self, before: &State, ino: Ino, offset: u64, len: usize) {
        let content = |state: &State| match state.tree.node(ino).map(|node| &node.body) {
            Ok(Body::File(data)) => Some(data.clone()),
            _ => None,
        };
        if let (Some(old), Some(new)) = (content(before), content(self)) {
            let kept = self.kept.entry(ino).or_default();
            Arc::make_mut(kept).write(&old, &new, offset..offset + len as u64);
        }
    }

    fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Kept)) {
        if let Some(kept) = self.kept.get_mut(&ino) {
            change(Arc::make_mut(kept));
        }
    }

    /// Pages kept of the file that a path of the snapshot names.
    fn kept_of(&self, path: &[u8]) -> Option<&Kept> {
        let ino = self.tree.ino_at(path)?;
        self.kept.get(&ino).map(|kept| &**kept)
    }

    /// Whether a crash may leave this state as `found`.
    fn may_be(&self, found: &Snapshot) -> bool {
        let expected = self.snapshot();
        expected.entries.len() == found.entries.len()
            && expected
                .entries
                .iter()
                .zip(&found.entries)
                .all(|((path, entry), (at, found))| {
                    path == at
                        && entry.same_but_content(found)
                        && match self.kept_of(path) {
                            None => entry.size == found.size && entry.data == found.data,
                            Some(kept) => kept.may_be(&entry.data, &found.data).is_ok(),
                        }
                })
    }

    /// Files that are kept, and cannot be as they were found.
    fn strange(&self, found: &Snapshot) -> Vec<String> {
        let files = self.snapshot().entries.iter().filter_map(|(path, entry)| {
            let found = found.entries.get(path)?;
            let why = self.kept_of(path)?.may_be(&entry.data, &found.data).err()?;
            Some(format!("{}: {why}", path.escape_ascii()))
        });
        files.collect()
    }
}

impl RelaxedHistory {
    /// A history that starts with a durable tree.
    #[must_use]
    pub fn new(initial: Tree) -> RelaxedHistory {
        RelaxedHistory {
            ops: Vec::new(),
            states: vec![State::new(initial)],
            least: Vec::new(),
        }
    }

    /// Operations recorded.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The tree after all operations, as programs see it.
    #[must_use]
    pub fn current(&self) -> &Tree {
        &self.present().tree
    }

    fn present(&self) -> &State {
        // There is always one more than operations.
        &self.states[self.ops.len()]
    }

    /// Required result of the next operation.
    pub fn expected(&self, step: &Step) -> OpResult {
        self.current().clone().step(step)
    }

    /// Records an operation that was answered; returns its position. A refusal for want of
    /// resources counts as no effect.
    ///
    /// # Errors
    /// [`RecordError::Mismatch`].
    pub fn record(&mut self, step: &Step, result: OpResult) -> Result<usize, RecordError> {
        let (step, result) = step.as_done(result);
        self.add(&step, Some(result))
    }

    /// Records an operation that was called and never answered; returns its position.
    ///
    /// # Errors
    /// None today.
    pub fn in_flight(&mut self, step: &Step) -> Result<usize, RecordError> {
        self.add(step, None)
    }

    fn add(&mut self, step: &Step, found: Option<OpResult>) -> Result<usize, RecordError> {
        let position = self.ops.len();
        let expected = self.expected(step);
        let refused = is_refused(position, step, expected, found)? || expected.is_err();
        let mut least = self.least.last().copied().unwrap_or(0);
        let call = self.current().resolve(&step.op, &step.caller);
        let next = match call {
            Ok(call) if !refused => {
                if matches!(call, Call::Fsync { .. } | Call::Sync) && found.is_some() {
                    least = position + 1;
                }
                self.present().after(&call, step)
            }
            _ => self.present().clone(),
        };
        self.ops.push((step.clone(), found));
        self.states.push(next);
        self.least.push(least);
        Ok(position)
    }

    /// The states that a crash at `cut` chooses from, by number; none if the cut does not fit.
    fn choice(&self, cut: Cut) -> std::ops::RangeInclusive<usize> {
        let fits = cut.acked <= cut.issued && cut.issued <= self.ops.len();
        let answered = cut.acked.checked_sub(1);
        let least = answered.and_then(|last| self.least.get(last).copied());
        match fits {
            true => least.unwrap_or(0)..=cut.issued,
            false => std::ops::RangeInclusive::new(1, 0),
        }
    }

    /// Whether a crash at `cut` may leave the observed state. Returns the number of operations
    /// that are there (the most, if several prefixes look the same).
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, found: &Snapshot, cut: Cut) -> Result<usize, Box<RelaxedViolation>> {
        let mut choice = self.choice(cut).rev();
        choice
            .find(|n| self.states[*n].may_be(found))
            .ok_or_else(|| Box::new(self.explain(found, cut)))
    }

    fn explain(&self, found: &Snapshot, cut: Cut) -> RelaxedViolation {
        let choice = self.choice(cut);
        let prefixes = (*choice.start(), *choice.end());
        let diffs = choice.map(|n| {
            let diff = self.states[n].snapshot().diff(found, Observe::CONTENT);
            (n, diff)
        });
        let nearest = diffs.min_by_key(|(n, diff)| (diff.lines.len(), usize::MAX - n));
        let Some((nearest, diff)) = nearest else {
            let lines = vec![format!(
                "the cut does not fit the history of {} operations",
                self.ops.len()
            )];
            return RelaxedViolation {
                cut,
                prefixes,
                nearest: 0,
                diff: Diff { lines },
                strange: Vec::new(),
            };
        };
        RelaxedViolation {
            cut,
            prefixes,
            nearest,
            diff,
            strange: self.states[nearest].strange(found),
        }
    }
}

impl fmt::Display for RelaxedHistory {
    /// One line per operation, each readable as a [`Step`] up to the arrow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, result) in &self.ops {
            match result {
                Some(Ok(_)) => writeln!(f, "{step} -> ok")?,
                Some(Err(e)) => writeln!(f, "{step} -> {e:?}")?,
                None => writeln!(f, "{step} -> in flight")?,
            }
        }
        Ok(())
    }
}
