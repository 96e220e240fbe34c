//! The contract `metadata-prefix`: the trees that a crash may leave.
//!
//! The state is a *tree sequence* (module `sequence`; DFSCQ §5.3 to §5.5): the
//! tree on the disk, and one more for each change of metadata that is not durable. Data
//! written in place is in every tree that has the inode. A crash leaves one of the trees,
//! with one value of its history in each sector.
//!
//! Exactly, for an answered call:
//! - a write inside the file overwrites the file in every tree that has it, as far as the
//!   file reaches there (figure 6);
//! - a write that makes the file longer is that, for the part inside, and a new tree with the
//!   rest: size and appended data appear together;
//! - `fdatasync(x)` leaves x the newest value of each sector in every tree (figure 7). If x was
//!   made, or its size changed, or it was truncated, punched or preallocated since the first tree,
//!   metadata is committed first up to there: older trees go, in which x is not *block stable*
//!   (section 6.1), and an append is covered;
//! - `fsync(x)`, and `fdatasync` of an inode that is no regular file, also leave the last tree only
//!   (figure 4), whatever x is; `sync` does so for all files;
//! - every other call that changes the tree adds a tree (figure 3).
//!
//! A call that was not answered may have happened or not: a change, as if it had been answered
//! (the sequence only grows by it, figures 3 and 6); a sync, as if it had not been called
//! (it only shrinks, figures 4 and 7).
//!
//! A refused call binds nothing. Times are not compared: they follow from writes that are
//! outside the order. Neighbours: [`crate::ordered`], [`crate::tree`], [`crate::snapshot`].

mod sequence;
#[cfg(test)]
mod tests;

pub use sequence::{SECTOR_BYTES, TreeSequence};

use crate::op::{Call, Handles, OpResult, Step};
use crate::ordered::{Cut, RecordError, is_refused};
use crate::snapshot::{Diff, Observe, Snapshot};
use crate::tree::Tree;
use std::fmt;
use steadfast_vfs::FileSystem;

/// History of a volume, and the states that a crash may therefore leave.
#[derive(Clone, Debug)]
pub struct PrefixHistory {
    ops: Vec<(Step, Option<OpResult>)>,
    /// The sequence before each operation, and the present one.
    sequences: Vec<TreeSequence>,
    /// Whether each operation only shrinks the sequence.
    shrinks: Vec<bool>,
}

/// A tree that a crash must not leave.
#[derive(Clone, Debug)]
pub struct PrefixViolation {
    /// Time of the power cut.
    pub cut: Cut,
    /// Number of trees that a crash could have left, values of sectors aside.
    pub trees: usize,
    /// The one that differs least, counted from the oldest.
    pub nearest: usize,
    /// Difference from it, with the newest value in each sector.
    pub diff: Diff,
    /// Files whose names and sizes are as they should be, with a value that no sector had.
    pub strange: Vec<String>,
}

impl fmt::Display for PrefixViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { acked, issued } = self.cut;
        writeln!(
            f,
            "contract 'metadata-prefix' violated, {issued} operations called, {acked} answered:"
        )?;
        for file in &self.strange {
            writeln!(f, "{file}")?;
        }
        writeln!(
            f,
            "nearest allowed state (tree {} of {}, newest data):",
            self.nearest + 1,
            self.trees
        )?;
        write!(f, "{}", self.diff)
    }
}

impl std::error::Error for PrefixViolation {}

impl PrefixHistory {
    /// A history that starts with a durable tree.
    #[must_use]
    pub fn new(initial: Tree) -> PrefixHistory {
        PrefixHistory {
            ops: Vec::new(),
            sequences: vec![TreeSequence::new(initial)],
            shrinks: Vec::new(),
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

    /// The tree after all operations.
    #[must_use]
    pub fn current(&self) -> &Tree {
        self.present().latest()
    }

    fn present(&self) -> &TreeSequence {
        // There is always one more than operations.
        &self.sequences[self.ops.len()]
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

    /// Runs an operation on a file system and records it; returns its position.
    ///
    /// # Errors
    /// [`RecordError::Mismatch`].
    pub fn drive(
        &mut self,
        fs: &dyn FileSystem,
        step: &Step,
        handles: &mut Handles,
    ) -> Result<usize, RecordError> {
        let result = step.op.run(fs, &step.caller, handles);
        self.record(step, result)
    }

    fn add(&mut self, step: &Step, found: Option<OpResult>) -> Result<usize, RecordError> {
        let position = self.ops.len();
        let expected = self.expected(step);
        let refused = is_refused(position, step, expected, found)? || expected.is_err();
        let mut next = self.present().clone();
        let call = next.latest().resolve(&step.op, &step.caller);
        let mut shrinks = false;
        if let Ok(call) = call
            && !refused
        {
            shrinks = matches!(call, Call::Fsync { .. } | Call::Sync);
            next.call(&call, &step.caller, step.at);
        }
        self.ops.push((step.clone(), found));
        self.sequences.push(next);
        self.shrinks.push(shrinks);
        Ok(position)
    }

    /// The sequence that a crash at `cut` chooses from. `None`: the cut does not fit the
    /// history, or more than one operation was under way.
    fn at(&self, cut: Cut) -> Option<&TreeSequence> {
        let outstanding = cut.issued.checked_sub(cut.acked)?;
        if outstanding > 1 || cut.issued > self.ops.len() {
            return None;
        }
        let shrinks = outstanding == 1 && self.shrinks[cut.acked];
        self.sequences
            .get(if shrinks { cut.acked } else { cut.issued })
    }

    /// Whether a crash at `cut` may leave the observed state. Returns the number of the
    /// tree that was found, counted from the oldest (the newest, if several look the
    /// same).
    ///
    /// # Errors
    /// It may not.
    pub fn check(&self, found: &Snapshot, cut: Cut) -> Result<usize, Box<PrefixViolation>> {
        let Some(sequence) = self.at(cut) else {
            let lines = vec![format!(
                "the cut does not fit the history of {} operations",
                self.ops.len()
            )];
            return Err(Box::new(PrefixViolation {
                cut,
                trees: 0,
                nearest: 0,
                diff: Diff { lines },
                strange: Vec::new(),
            }));
        };
        sequence
            .find(found)
            .ok_or_else(|| Box::new(explain(sequence, found, cut)))
    }

    /// A state that a crash at `cut` may leave: `choose(n)` answers with a number below n, for
    /// the tree and for each sector that has more than one value.
    #[must_use]
    pub fn pick(&self, cut: Cut, choose: &mut dyn FnMut(usize) -> usize) -> Option<Snapshot> {
        Some(self.at(cut)?.pick(choose))
    }
}

impl fmt::Display for PrefixHistory {
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

fn explain(sequence: &TreeSequence, found: &Snapshot, cut: Cut) -> PrefixViolation {
    let diffs = sequence
        .snapshots()
        .map(|tree| tree.diff(found, Observe::CONTENT));
    let nearest = diffs
        .enumerate()
        .min_by_key(|(index, diff)| (diff.lines.len(), usize::MAX - index));
    let (nearest, diff) = nearest.unwrap_or_default();
    PrefixViolation {
        cut,
        trees: sequence.len(),
        nearest,
        diff,
        strange: sequence.strange(nearest, found),
    }
}
