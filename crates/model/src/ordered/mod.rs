//! The contracts `ordered` and `sync`: which trees a crash may leave.
//!
//! For each stream, the tree is the result of a prefix of the stream's operations that
//! contains everything up to its last sync and everything fsynced by anyone. Streams
//! that touched related objects form one order: an operation is in the tree only
//! together with those of other streams that it builds on. Exactly:
//!
//! Let the history be the operations in the order they took effect. Choose a prefix
//! of each stream's and run the chosen ones, in the order of the history, on the
//! initial tree. The choice is *allowed* if every one of them has the result and the
//! effect that it had in the history (module `effect`), and if each prefix is at least as
//! long as the syncs demand that were answered before the cut:
//! - `sync`: everything before it, of all streams;
//! - `fsync(x)` by S: everything before it of S, and of every other stream up to its
//!   last operation on x (data, attributes, links, entries of a directory, the
//!   operation that made x).
//!
//! Under `sync` ([`Rules::sync`]) every answered call demands everything up to it, of all streams.
//!
//! A write longer than a block may be in the tree as a prefix of its blocks
//! ([`Rules::split`]).
//!
//! Operations are replayed as the [`Call`]s they made: paths were looked up at the
//! time, lookups are not ordered. Directory times are compared only while there is
//! one stream.
//!
//! Allowed states are found while the history is recorded, and indexed by digest: a
//! check is one hash lookup. See ccfs §3 (streams) and DFSCQ §3 (prefix).
//! Neighbours: [`crate::tree`] and [`crate::snapshot`] below; the crash explorer above.

mod effect;
mod explain;
#[cfg(test)]
mod simulated;
mod states;
#[cfg(test)]
mod tests;

pub use explain::{Prefix, Violation, Why};

use crate::data::PAGE_BYTES;
use crate::op::{Call, Handles, OpResult, Step};
use crate::snapshot::{Digest, Observe, Snapshot};
use crate::tree::Tree;
use states::{Piece, States};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use steadfast_vfs::{Errno, FileSystem, Ino, Stream};

/// The intermediate steps that a call may leave when it is cut: calls that do the same
/// one after the other. One call: it is atomic.
pub type Split = fn(&Tree, &Call) -> Vec<Call>;

/// Choices that the contract leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Times that are compared. Those of directories never are with several streams.
    pub observe: Observe,
    /// Calls that are not atomic; [`split_at_blocks`] or [`atomic`] or your own.
    pub split: Split,
    /// A failed call builds on the operations that made it fail, so it is in no tree without them.
    /// If false, failed calls are treated like lookups: they bind nothing.
    pub failures_bind: bool,
    /// The contract is `sync`: answered operations are durable.
    pub sync: bool,
    /// Most operations that are called and not yet answered at any time.
    pub outstanding_max: usize,
    /// Most states that are kept; beyond it [`RecordError::TooManyStates`].
    pub states_max: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            observe: Observe::CONTENT,
            split: split_at_blocks,
            failures_bind: true,
            sync: false,
            outstanding_max: 1,
            states_max: 200_000,
        }
    }
}

/// Every call is atomic.
#[must_use]
pub fn atomic(_: &Tree, call: &Call) -> Vec<Call> {
    vec![call.clone()]
}

/// A write or append may survive as a prefix of the 4 KiB blocks it touches.
#[must_use]
pub fn split_at_blocks(tree: &Tree, call: &Call) -> Vec<Call> {
    let (ino, offset, data) = match call {
        Call::Write { ino, offset, data } => (*ino, *offset, data),
        Call::Append { ino, data } => (*ino, tree.getattr(*ino).map(|a| a.size).unwrap_or(0), data),
        _ => return vec![call.clone()],
    };
    let mut parts = Vec::new();
    let mut done = 0;
    while done < data.len() {
        let at = offset.saturating_add(done as u64);
        let n = ((PAGE_BYTES - at % PAGE_BYTES) as usize).min(data.len() - done);
        let part: Arc<[u8]> = Arc::from(&data[done..done + n]);
        parts.push(match call {
            Call::Append { .. } => Call::Append { ino, data: part },
            _ => Call::Write {
                ino,
                offset: at,
                data: part,
            },
        });
        done += n;
    }
    if parts.len() > 1 {
        parts
    } else {
        vec![call.clone()]
    }
}

/// A moment at which the power fails, counted in operations of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Operations answered before the cut.
    pub acked: usize,
    /// Operations called before the cut.
    pub issued: usize,
}

impl Cut {
    /// Between two operations: `n` called and answered.
    #[must_use]
    pub fn after(n: usize) -> Cut {
        Cut {
            acked: n,
            issued: n,
        }
    }

    /// In the middle of operation `n` (counted from 0).
    #[must_use]
    pub fn during(n: usize) -> Cut {
        Cut {
            acked: n,
            issued: n + 1,
        }
    }
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The operations with their callers and times.
    pub step: Step,
    /// Reported result; `None` if it was never answered.
    pub result: Option<OpResult>,
    stream: usize,
    /// Pieces of its stream up to and including this operation.
    pieces_end: u32,
}

/// Reason why an operation could not be recorded.
#[derive(Clone, Debug)]
pub enum RecordError {
    /// File system and model report different results.
    Mismatch {
        /// Position in the history.
        position: usize,
        /// The operation.
        step: Box<Step>,
        /// The model's result.
        expected: OpResult,
        /// Reported result.
        found: OpResult,
    },
    /// There are more allowed states than [`Rules::states_max`]: sync more often, or
    /// use fewer streams.
    TooManyStates {
        /// Position in the history.
        position: usize,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Mismatch {
                position,
                step,
                expected,
                found,
            } => write!(
                f,
                "operation {position} ({step}): expected {expected:?}, the file system reported {found:?}"
            ),
            RecordError::TooManyStates { position } => write!(
                f,
                "operation {position}: too many states are allowed; sync more often or use fewer streams"
            ),
        }
    }
}

impl std::error::Error for RecordError {}

/// Errors with which a file system may refuse an operation that succeeds in the model.
fn is_refusal(errno: Errno) -> bool {
    use Errno::{Io, NoMem, NoSpc, OpNotSupp, RoFs};
    matches!(errno, Io | NoMem | NoSpc | OpNotSupp | RoFs)
}

/// Whether the reported result refuses an operation that succeeds in the model; an error if it is neither that nor
/// the model's result.
pub(crate) fn is_refused(
    position: usize,
    step: &Step,
    expected: OpResult,
    result: Option<OpResult>,
) -> Result<bool, RecordError> {
    match result {
        Some(found) if found != expected => {
            if found.err().is_some_and(is_refusal) {
                return Ok(true);
            }
            let step = Box::new(step.clone());
            Err(RecordError::Mismatch {
                position,
                step,
                expected,
                found,
            })
        }
        _ => Ok(false),
    }
}

/// The least prefixes that the first syncs demand, in pieces per stream.
#[derive(Clone, Debug)]
struct Floor {
    position: usize,
    least: Vec<u32>,
}

/// History of a volume, and the states that a crash may therefore leave.
#[derive(Clone, Debug)]
pub struct History {
    rules: Rules,
    initial: Tree,
    current: Tree,
    streams: Vec<Stream>,
    ops: Vec<Recorded>,
    states: States,
    floors: Vec<Floor>,
    /// Inode → per stream, the pieces up to its last one that changed the inode.
    touched: HashMap<Ino, Vec<u32>>,
}

/// Raises `of[index]` to at least `to`, growing the vector with zeros.
fn raise(of: &mut Vec<u32>, index: usize, to: u32) {
    if of.len() <= index {
        of.resize(index + 1, 0);
    }
    of[index] = of[index].max(to);
}

/// Whether `a` is at least `b` everywhere; an absent entry is 0.
fn covers(a: &[u32], b: &[u32]) -> bool {
    b.iter()
        .enumerate()
        .all(|(i, n)| a.get(i).copied().unwrap_or(0) >= *n)
}

impl History {
    /// A history that starts with a durable tree, under the default rules.
    #[must_use]
    pub fn new(initial: Tree) -> History {
        History::with_rules(initial, Rules::default())
    }

    /// A history that starts with a durable tree.
    #[must_use]
    pub fn with_rules(initial: Tree, rules: Rules) -> History {
        History {
            rules,
            current: initial.clone(),
            streams: Vec::new(),
            ops: Vec::new(),
            states: States::new(&initial),
            floors: Vec::new(),
            touched: HashMap::new(),
            initial,
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

    /// The operations, in order.
    #[must_use]
    pub fn ops(&self) -> &[Recorded] {
        &self.ops
    }

    /// The tree after all operations.
    #[must_use]
    pub fn current(&self) -> &Tree {
        &self.current
    }

    /// States that some cut allows; those that no later cut can reach included.
    #[must_use]
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Required result of the next operation.
    pub fn expected(&self, step: &Step) -> OpResult {
        self.current.clone().step(step)
    }

    /// Records an operation that was answered; returns its position.
    ///
    /// Operations are recorded in the order they took effect. A refusal for want of
    /// resources (ENOSPC, EIO, EROFS, …) counts as no effect.
    pub fn record(&mut self, step: &Step, result: OpResult) -> Result<usize, RecordError> {
        let (step, result) = step.as_done(result);
        self.add(&step, Some(result))
    }

    /// Records an operation that was called and never answered: a crash may leave it
    /// done, not done, or done in part. Returns its position.
    pub fn in_flight(&mut self, step: &Step) -> Result<usize, RecordError> {
        self.add(step, None)
    }

    /// Runs an operation on a file system and records it; returns its position.
    pub fn drive(
        &mut self,
        fs: &dyn FileSystem,
        step: &Step,
        handles: &mut Handles,
    ) -> Result<usize, RecordError> {
        let result = step.op.run(fs, &step.caller, handles);
        self.record(step, result)
    }

    fn stream_index(&mut self, stream: Stream) -> usize {
        match self.streams.iter().position(|s| *s == stream) {
            Some(i) => i,
            None => {
                self.streams.push(stream);
                self.streams.len() - 1
            }
        }
    }

    fn add(&mut self, step: &Step, result: Option<OpResult>) -> Result<usize, RecordError> {
        let position = self.ops.len();
        let ino = self.initial.next_ino() + position as Ino;
        self.current.set_next_ino(ino);
        let call = self.current.resolve(&step.op, &step.caller);
        let mut whole = self.current.clone();
        let expected = match &call {
            Ok(call) => whole.call(call, &step.caller, step.at),
            Err(e) => Err(*e),
        };
        let refused = is_refused(position, step, expected, result)?;
        let stream = self.stream_index(step.caller.stream);
        if let Some(answered) = position.checked_sub(self.rules.outstanding_max) {
            let least = self.least(answered + 1);
            self.states.retire(&least);
        }
        match call {
            Ok(call) if !refused && call.keeps_the_tree() => {
                // Opening and closing bind nothing, and happen in every state.
                self.current = whole;
                self.states.keep_alive(&call);
                if expected.is_ok() && result.is_some() {
                    self.raise_floor(position, stream, &call);
                }
            }
            Ok(call) if !refused && (expected.is_ok() || self.rules.failures_bind) => {
                for (part, atomic) in self.parts(&call, expected) {
                    let outcome = atomic.unwrap_or_else(|| {
                        let mut tree = self.current.clone();
                        tree.call(&part, &step.caller, step.at)
                    });
                    let before = self.current.clone();
                    if expected.is_ok() {
                        let _ = self.current.call(&part, &step.caller, step.at);
                    }
                    let change = effect::effect(&before, &self.current);
                    let end = self.states.pieces_of(stream) + 1;
                    for ino in &change.touched {
                        raise(self.touched.entry(*ino).or_default(), stream, end);
                    }
                    let piece = Piece {
                        op: position,
                        stream,
                        index: end - 1,
                        call: part,
                        caller: step.caller.clone(),
                        at: step.at,
                        ino,
                        outcome,
                        effect: change.digest,
                        touched: change.touched,
                    };
                    if !self.states.extend(piece, self.rules.states_max) {
                        return Err(RecordError::TooManyStates { position });
                    }
                }
            }
            _ => {}
        }
        if self.rules.sync && result.is_some() {
            self.raise_floor(position, stream, &Call::Sync);
        }
        let pieces_end = self.states.pieces_of(stream);
        self.ops.push(Recorded {
            step: step.clone(),
            result,
            stream,
            pieces_end,
        });
        Ok(position)
    }

    /// The parts of a call; with the result, if the call is one part.
    fn parts(&self, call: &Call, expected: OpResult) -> Vec<(Call, Option<OpResult>)> {
        let parts = if expected.is_ok() {
            (self.rules.split)(&self.current, call)
        } else {
            Vec::new()
        };
        if parts.len() < 2 {
            return vec![(call.clone(), Some(expected))];
        }
        parts.into_iter().map(|p| (p, None)).collect()
    }

    fn raise_floor(&mut self, position: usize, stream: usize, call: &Call) {
        let mut least = self
            .floors
            .last()
            .map(|f| f.least.clone())
            .unwrap_or_default();
        match call {
            Call::Sync => {
                for s in 0..self.streams.len() {
                    raise(&mut least, s, self.states.pieces_of(s));
                }
            }
            Call::Fsync { ino, .. } => {
                raise(&mut least, stream, self.states.pieces_of(stream));
                for (s, n) in self.touched.get(ino).into_iter().flatten().enumerate() {
                    raise(&mut least, s, *n);
                }
            }
            _ => return,
        }
        self.floors.push(Floor { position, least });
    }

    /// Least state when the first `acked` operations were answered.
    fn least(&self, acked: usize) -> Vec<u32> {
        let n = self.floors.partition_point(|f| f.position < acked);
        n.checked_sub(1)
            .map(|i| self.floors[i].least.clone())
            .unwrap_or_default()
    }

    /// Greatest state when the first `issued` operations were called.
    fn most(&self, issued: usize) -> Vec<u32> {
        let mut most = vec![0; self.streams.len()];
        let mut left = self.streams.len();
        let mut seen = vec![false; left];
        for op in self.ops[..issued].iter().rev() {
            if !seen[op.stream] {
                seen[op.stream] = true;
                most[op.stream] = op.pieces_end;
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        most
    }

    fn observe(&self) -> Observe {
        let dir_times = self.rules.observe.dir_times && self.streams.len() < 2;
        Observe {
            dir_times,
            ..self.rules.observe
        }
    }

    /// Whether a crash at `cut` may leave the observed state. Returns the prefix of each
    /// stream that was found (one of them, if several look the same).
    pub fn check(&self, found: &Snapshot, cut: Cut) -> Result<Vec<Prefix>, Box<Violation>> {
        self.check_digest(&found.digest(), cut)
            .unwrap_or_else(|| Err(Box::new(self.explain(found, cut))))
    }

    /// The same for a snapshot that was summarised before; `None`: not allowed.
    #[allow(clippy::type_complexity, reason = "shares the shape of check")]
    fn check_digest(
        &self,
        found: &Digest,
        cut: Cut,
    ) -> Option<Result<Vec<Prefix>, Box<Violation>>> {
        let outstanding = cut.issued.checked_sub(cut.acked);
        if cut.issued > self.ops.len() || outstanding.is_none_or(|n| n > self.rules.outstanding_max)
        {
            return Some(Err(Box::new(Violation::bad_cut(
                self.contract(),
                cut,
                self.ops.len(),
            ))));
        }
        let (least, most) = (self.least(cut.acked), self.most(cut.issued));
        let observe = self.observe();
        let state = self
            .states
            .with_digest(found, observe)
            .find(|taken| covers(taken, &least) && covers(&most, taken))?;
        Some(Ok(self.prefixes(state)))
    }

    /// Whether a crash at `cut` may leave a tree with this digest.
    #[must_use]
    pub fn allows(&self, found: &Digest, cut: Cut) -> bool {
        matches!(self.check_digest(found, cut), Some(Ok(_)))
    }

    /// Every tree that a crash at `cut` may leave; for small histories.
    #[must_use]
    pub fn allowed(&self, cut: Cut) -> Vec<Tree> {
        let issued = cut.issued.min(self.ops.len());
        let (least, most) = (self.least(cut.acked), self.most(issued));
        let states = self.states.all();
        let inside = states.filter(|t| covers(t, &least) && covers(&most, t));
        inside
            .map(|taken| self.states.replay(&self.initial, taken).closed())
            .collect()
    }

    /// Whether no operation of `stream` builds on another stream's: with every choice of the others' operations that
    /// is allowed without the stream, all of its own are allowed, too. Syncs are left out of account.
    #[must_use]
    pub fn stands_alone(&self, stream: Stream) -> bool {
        let Some(index) = self.streams.iter().position(|s| *s == stream) else {
            return true;
        };
        let all = self.states.pieces_of(index);
        let of = |taken: &[u32], s: usize| taken.get(s).copied().unwrap_or(0);
        let others = |taken: &[u32]| -> Vec<u32> {
            let counts = (0..self.streams.len()).filter(|s| *s != index);
            counts.map(|s| of(taken, s)).collect()
        };
        let having = |count: u32| -> HashSet<Vec<u32>> {
            let states = self.states.all();
            let states = states.filter(|taken| of(taken, index) == count);
            states.map(others).collect()
        };
        having(0).is_subset(&having(all))
    }

    /// The tree with the fewest operations that a crash at `cut` may leave: those that syncs demand, and their
    /// prerequisites. A file system that keeps streams apart leaves it, if nothing is written that need not be.
    #[must_use]
    pub fn weakest(&self, cut: Cut) -> Option<Tree> {
        let least = self.least(cut.acked);
        let most = self.most(cut.issued.min(self.ops.len()));
        let states = self.states.all();
        let inside = states.filter(|taken| covers(taken, &least) && covers(&most, taken));
        let fewest = inside.min_by_key(|taken| taken.iter().map(|n| u64::from(*n)).sum::<u64>())?;
        Some(self.states.replay(&self.initial, fewest).closed())
    }

    /// Number of operations of each stream in a state, by pieces.
    fn prefixes(&self, taken: &[u32]) -> Vec<Prefix> {
        let mut out = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            let n = taken.get(index).copied().unwrap_or(0);
            let mine = self.ops.iter().filter(|o| o.stream == index);
            let ops = mine.clone().take_while(|o| o.pieces_end <= n).count();
            let end = mine.take(ops).last().map_or(0, |o| o.pieces_end);
            out.push(Prefix {
                stream: *stream,
                ops,
                partial: n > end,
            });
        }
        out
    }
}

impl fmt::Display for History {
    /// One line per operation, each readable as a [`Step`] up to the arrow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.ops {
            match &op.result {
                Some(Ok(_)) => writeln!(f, "{} -> ok", op.step)?,
                Some(Err(e)) => writeln!(f, "{} -> {e:?}", op.step)?,
                None => writeln!(f, "{} -> in flight", op.step)?,
            }
        }
        Ok(())
    }
}
