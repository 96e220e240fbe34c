//! Explains why a tree is not allowed: missing operations, excess operations, or the
//! nearest tree.

use super::states::put;
use super::{Cut, History, covers};
use crate::snapshot::{Diff, Digest, Snapshot};
use crate::tree::Tree;
use std::fmt;
use steadfast_vfs::Stream;

/// Part of one stream in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The stream.
    pub stream: Stream,
    /// Number of its first operations that are there.
    pub ops: usize,
    /// Whether a part of the next one is there, too.
    pub partial: bool,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partial = if self.partial {
            " and a part of the next"
        } else {
            ""
        };
        write!(
            f,
            "stream {}: {} operations{partial}",
            self.stream.0, self.ops
        )
    }
}

/// Fault of a tree. Operations are named by position and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is a state of the history, without operations that were durable.
    Lost {
        /// The operations.
        missing: Vec<String>,
    },
    /// It is a state of the history, with operations that were not yet called.
    NotCalled {
        /// The operations.
        present: Vec<String>,
    },
    /// It is a prefix of each stream, but an operation is there that builds on one of
    /// another stream that is not.
    Relation {
        /// The operation.
        op: String,
        /// Operations left out that changed the same objects, or all if none did.
        without: Vec<String>,
    },
    /// It is no prefix at all.
    Unknown,
    /// The cut does not fit the history: the caller's mistake.
    BadCut,
}

/// A tree that a crash must not leave.
#[derive(Clone, Debug)]
pub struct Violation {
    /// `ordered` or `sync`.
    pub contract: &'static str,
    /// Time of the power cut.
    pub cut: Cut,
    /// Fault of the tree.
    pub why: Why,
    /// The allowed state that differs least.
    pub nearest: Vec<Prefix>,
    /// Difference of the tree from it.
    pub diff: Diff,
}

impl Violation {
    pub(super) fn bad_cut(contract: &'static str, cut: Cut, ops: usize) -> Violation {
        let lines = vec![format!("the history has {ops} operations")];
        Violation {
            contract,
            cut,
            why: Why::BadCut,
            nearest: Vec::new(),
            diff: Diff { lines },
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { acked, issued } = self.cut;
        writeln!(
            f,
            "contract '{}' violated, {issued} operations called, {acked} answered:",
            self.contract
        )?;
        let list = |f: &mut fmt::Formatter<'_>, ops: &[String]| {
            ops.iter().try_for_each(|o| writeln!(f, "  {o}"))
        };
        match &self.why {
            Why::Lost { missing } => {
                writeln!(f, "durable operations are lost:")?;
                list(f, missing)?;
            }
            Why::NotCalled { present } => {
                writeln!(f, "operations are there that were not yet called:")?;
                list(f, present)?;
            }
            Why::Relation { op, without } => {
                writeln!(
                    f,
                    "an operation is there without one that it builds on:\n  {op}"
                )?;
                writeln!(f, "not there:")?;
                list(f, without)?;
            }
            Why::Unknown => writeln!(f, "the tree is no prefix of the history")?,
            Why::BadCut => writeln!(f, "the cut does not fit the history")?,
        }
        if !self.nearest.is_empty() {
            let near: Vec<String> = self.nearest.iter().map(ToString::to_string).collect();
            writeln!(f, "nearest allowed state ({}):", near.join("; "))?;
        }
        write!(f, "{}", self.diff)
    }
}

impl std::error::Error for Violation {}

/// Choices that are tried to explain a violation.
const CHOICES_MAX: u64 = 20_000;
/// Allowed states that a tree is compared with in full.
const NEAREST_MAX: usize = 400;
/// Operations that are listed.
const LISTED_MAX: usize = 8;

impl History {
    pub(super) fn contract(&self) -> &'static str {
        if self.rules.sync { "sync" } else { "ordered" }
    }

    fn op_text(&self, position: usize) -> String {
        format!("{position}: {}", self.ops[position].step)
    }

    /// Operations with pieces in `(low, high]` of their stream.
    fn between(&self, low: &[u32], high: &[u32]) -> Vec<String> {
        let at = |v: &[u32], s: usize| v.get(s).copied().unwrap_or(0);
        let mut ops: Vec<usize> = self
            .states
            .pieces()
            .filter(|p| p.index >= at(low, p.stream) && p.index < at(high, p.stream))
            .map(|p| p.op)
            .collect();
        ops.dedup();
        ops.iter()
            .take(LISTED_MAX)
            .map(|op| self.op_text(*op))
            .collect()
    }

    /// Says why `found` is not allowed at `cut`.
    pub(super) fn explain(&self, found: &Snapshot, cut: Cut) -> Violation {
        let (least, most) = (self.least(cut.acked), self.most(cut.issued));
        let digest = found.digest();
        let known = self.states.with_digest(&digest, self.observe());
        // The one that lacks least.
        let known = known.max_by_key(|t| {
            let whole = covers(t, &least);
            (whole, t.iter().map(|n| u64::from(*n)).sum::<u64>())
        });
        let why = match known {
            Some(taken) if !covers(taken, &least) => Why::Lost {
                missing: self.between(taken, &least),
            },
            Some(taken) => Why::NotCalled {
                present: self.between(&most, taken),
            },
            None => self.relation(&digest, &most).unwrap_or(Why::Unknown),
        };
        let (nearest, diff) = self.nearest(found, &least, &most);
        Violation {
            contract: self.contract(),
            cut,
            why,
            nearest,
            diff,
        }
    }

    /// Looks for the tree among the choices that break a relation.
    fn relation(&self, digest: &Digest, most: &[u32]) -> Option<Why> {
        let choices: u64 = most
            .iter()
            .try_fold(1u64, |n, m| n.checked_mul(u64::from(*m) + 1))?;
        if most.len() < 2 || choices > CHOICES_MAX {
            return None;
        }
        let mut taken = vec![0u32; most.len()];
        loop {
            let tree = self.states.replay(&self.initial, &taken);
            if tree.digest().agrees(digest, self.observe()) {
                return self.broken(&taken);
            }
            // The next choice, counting in mixed radix.
            let i = (0..taken.len()).find(|i| taken[*i] < most[*i])?;
            taken[i] += 1;
            taken[..i].fill(0);
        }
    }

    /// The first operation of a choice whose effect would differ.
    fn broken(&self, taken: &[u32]) -> Option<Why> {
        let mut tree: Tree = self.initial.clone();
        let mut out = Vec::new();
        for p in self.states.pieces() {
            if p.index >= taken[p.stream] {
                out.push(p);
                continue;
            }
            if put(&mut tree, p) {
                continue;
            }
            let meets = |q: &&&super::Piece| q.touched.iter().any(|i| p.touched.contains(i));
            let mut without: Vec<usize> = out.iter().filter(meets).map(|q| q.op).collect();
            if without.is_empty() {
                without = out.iter().map(|q| q.op).collect();
            }
            without.dedup();
            let without = without
                .iter()
                .rev()
                .take(LISTED_MAX)
                .map(|op| self.op_text(*op));
            return Some(Why::Relation {
                op: self.op_text(p.op),
                without: without.collect(),
            });
        }
        None
    }

    fn nearest(&self, found: &Snapshot, least: &[u32], most: &[u32]) -> (Vec<Prefix>, Diff) {
        let inside = self
            .states
            .all()
            .rev()
            .filter(|t| covers(t, least) && covers(most, t));
        let mut best: Option<(&[u32], Diff)> = None;
        for taken in inside.take(NEAREST_MAX) {
            let tree = self.states.replay(&self.initial, taken);
            let diff = tree.snapshot().diff(found, self.observe());
            if best
                .as_ref()
                .is_none_or(|(_, b)| diff.lines.len() < b.lines.len())
            {
                best = Some((taken, diff));
            }
        }
        best.map(|(t, d)| (self.prefixes(t), d)).unwrap_or_default()
    }
}
