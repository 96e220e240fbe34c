//! The *logical log*: the promise of a journal, as a value that runs.
//!
//! GoJournal §6.1 (figure 7) specifies a write-ahead log as a list of multiwrites and
//! a lower bound of what is durable; a crash keeps any prefix not shorter than the bound. Here
//! a multiwrite is an [`Operation`] on parts of blocks, each stream has a bound of its own
//! (ccfs), and operations of different streams may depend on each other:
//!
//! * a *cut* is a choice of operations; the disk is their changes, in the order of the log;
//! * a cut is *allowed* if it holds a prefix of each stream, not shorter than what was
//!   acknowledged, and with every operation those that it relates to;
//! * an operation relates to earlier ones that name the same object (unless both share
//!   it), that change the same bytes or bits of a block, or that begin or end its life.
//!   Additions to a counter do not relate to each other.
//!
//! [`Change::Latest`] is the exception that directory times need: if any operation of a cut
//! set such bytes, they hold its value or one that any later operation gave them, in the cut or not.
//!
//! Times are the caller's: positions in a device's trace. An operation applied at `t` may be
//! seen by cuts after `t`; an acknowledgement at `t` binds cuts at `t` and later.
//!
//! Module `check` finds the cut that explains a recovered disk, `explain` says why there is none.
//! No I/O, no knowledge of any journal.

mod check;
mod explain;
#[cfg(test)]
mod tests;

pub use check::Survivors;
pub use explain::{Violation, Why};

use check::Cells;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Contents of blocks by address. A block's life has a length of its own: bytes past it have no
/// meaning.
pub type Image = BTreeMap<u64, Arc<[u8]>>;

/// Width of a counter in bytes (little-endian).
pub const COUNTER_BYTES: usize = 8;

/// Access of an operation to an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Access {
    /// It does not relate to others that share.
    Shared,
    /// It relates to every other use.
    Exclusive,
}

/// One change of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new life with these contents, not the former ones.
    Begin {
        /// The block.
        block: u64,
        /// Its contents, whole.
        contents: Arc<[u8]>,
    },
    /// The block's life ends.
    Free {
        /// The block.
        block: u64,
    },
    /// Bytes are replaced.
    Bytes {
        /// The block.
        block: u64,
        /// The first byte.
        offset: usize,
        /// The new bytes.
        data: Arc<[u8]>,
    },
    /// Bytes are replaced; several streams may do so without relating.
    Latest {
        /// The block.
        block: u64,
        /// The first byte.
        offset: usize,
        /// The new bytes.
        data: Arc<[u8]>,
    },
    /// Bits are set or cleared; bit `i` is bit `i % 8` of byte `i / 8`.
    Bits {
        /// The block.
        block: u64,
        /// The first bit.
        first: usize,
        /// Number of bits.
        count: usize,
        /// Set or cleared.
        value: bool,
    },
    /// A counter is added to, wrapping.
    Add {
        /// The block.
        block: u64,
        /// The counter's first byte.
        offset: usize,
        /// The difference.
        delta: i64,
    },
}

impl Change {
    /// The block it concerns.
    #[must_use]
    pub fn block(&self) -> u64 {
        match self {
            Change::Begin { block, .. }
            | Change::Free { block }
            | Change::Bytes { block, .. }
            | Change::Latest { block, .. }
            | Change::Bits { block, .. }
            | Change::Add { block, .. } => *block,
        }
    }

    /// The bytes it touches; `None` if it begins or ends a life.
    fn range(&self) -> Option<Range<usize>> {
        match self {
            Change::Begin { .. } | Change::Free { .. } => None,
            Change::Bytes { offset, data, .. } | Change::Latest { offset, data, .. } => {
                Some(*offset..*offset + data.len())
            }
            Change::Bits { first, count, .. } => Some(first / 8..(first + count).div_ceil(8)),
            Change::Add { offset, .. } => Some(*offset..*offset + COUNTER_BYTES),
        }
    }

    /// Carries a change of bytes out on the contents of its block. Nothing happens to bytes
    /// outside, and nothing if the change begins or ends a life.
    pub fn carry_out(&self, contents: &mut [u8]) {
        self.patch(contents, 0);
    }

    /// Carries a change of bytes out on a window of its block that starts at `start`. The
    /// window holds a counter or nothing of it.
    fn patch(&self, window: &mut [u8], start: usize) {
        let end = start + window.len();
        match self {
            Change::Begin { .. } | Change::Free { .. } => {}
            Change::Bytes { offset, data, .. } | Change::Latest { offset, data, .. } => {
                let (from, to) = ((*offset).max(start), (offset + data.len()).min(end));
                if from < to {
                    window[from - start..to - start]
                        .copy_from_slice(&data[from - offset..to - offset]);
                }
            }
            Change::Bits {
                first,
                count,
                value,
                ..
            } => {
                for bit in (*first).max(start * 8)..(first + count).min(end * 8) {
                    let byte = &mut window[bit / 8 - start];
                    *byte = *byte & !(1 << (bit % 8)) | u8::from(*value) << (bit % 8);
                }
            }
            Change::Add { offset, delta, .. } => {
                if *offset >= start && offset + COUNTER_BYTES <= end {
                    let bytes = &mut window[offset - start..offset - start + COUNTER_BYTES];
                    let mut value = [0; COUNTER_BYTES];
                    value.copy_from_slice(bytes);
                    let sum = u64::from_le_bytes(value).wrapping_add_signed(*delta);
                    bytes.copy_from_slice(&sum.to_le_bytes());
                }
            }
        }
    }

    /// Whether two changes of different operations do not commute (as the specification sees
    /// it: values do not count).
    fn relates(&self, other: &Change, mutation: Mutation) -> bool {
        if self.block() != other.block() {
            return false;
        }
        let (Some(a), Some(b)) = (self.range(), other.range()) else {
            return true;
        };
        match (self, other) {
            (Change::Add { .. }, Change::Add { .. }) if mutation != Mutation::AddsRelate => false,
            (Change::Latest { .. }, Change::Latest { .. }) => false,
            (
                Change::Bits { first, count, .. },
                Change::Bits {
                    first: other_first,
                    count: other_count,
                    ..
                },
            ) if mutation != Mutation::BitsAsBytes => {
                *first < other_first + other_count && *other_first < first + count
            }
            _ => a.start < b.end && b.start < a.end,
        }
    }
}

/// Changes that happen atomically.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Operation {
    /// Its stream.
    pub stream: u32,
    /// Its changes, in this order.
    pub changes: Vec<Change>,
    /// Objects that relate it to others, beyond bytes.
    pub objects: Vec<(u64, Access)>,
}

impl Operation {
    fn relates(&self, other: &Operation, mutation: Mutation) -> bool {
        let in_common = |(object, access): &(u64, Access)| {
            let excludes =
                |a: Access| a == Access::Exclusive || mutation == Mutation::SharedRelates;
            let mut theirs = other.objects.iter();
            theirs.any(|(o, a)| o == object && (excludes(*a) || excludes(*access)))
        };
        self.objects.iter().any(in_common)
            || self
                .changes
                .iter()
                .any(|a| other.changes.iter().any(|b| a.relates(b, mutation)))
    }
}

/// An operation that the specification gives no meaning to: the caller's mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// The block has no life that could be changed or ended.
    Dead {
        /// The block.
        block: u64,
    },
    /// The block lives already, or its end is not acknowledged yet.
    Alive {
        /// The block.
        block: u64,
    },
    /// The change leaves the block.
    Outside {
        /// The block.
        block: u64,
    },
    /// Bytes are used in two ways that do not go together: a counter overlaps another one, or
    /// [`Change::Latest`] overlaps anything but the same bytes.
    Mixed {
        /// The block.
        block: u64,
    },
    /// Times went backwards.
    Time,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::Dead { block } => write!(f, "block {block} is changed and does not live"),
            Misuse::Alive { block } => {
                write!(
                    f,
                    "block {block} begins a life before its last one ended durably"
                )
            }
            Misuse::Outside { block } => write!(f, "a change leaves block {block}"),
            Misuse::Mixed { block } => write!(
                f,
                "bytes of block {block} are used in two ways that do not go together"
            ),
            Misuse::Time => write!(f, "times went backwards"),
        }
    }
}

impl std::error::Error for Misuse {}

/// An operation in the log.
#[derive(Clone, Debug)]
struct Applied {
    op: Operation,
    stream: usize,
    /// Its number in its stream.
    index: u32,
    at: usize,
}

/// Promise of a sync that is called now: for each stream, the least number of its durable operations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    least: Vec<u32>,
}

/// Acknowledgements up to a time.
#[derive(Clone, Debug)]
struct Bound {
    at: usize,
    least: Vec<u32>,
}

/// Uses of a life's bytes so far.
#[derive(Clone, Debug, Default)]
struct Usage {
    counters: BTreeSet<usize>,
    latest: BTreeSet<(usize, usize)>,
    /// Ranges of all other changes, counters included.
    plain: BTreeSet<(usize, usize)>,
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Usage {
    fn admits(&self, change: &Change) -> bool {
        let Some(range) = change.range() else {
            return true;
        };
        let range = (range.start, range.end);
        let others =
            |set: &BTreeSet<(usize, usize)>| set.iter().any(|r| *r != range && overlap(*r, range));
        match change {
            Change::Latest { .. } => {
                !others(&self.latest) && !self.plain.iter().any(|r| overlap(*r, range))
            }
            Change::Add { offset, .. } => {
                let clash = |c: &usize| *c != *offset && c.abs_diff(*offset) < COUNTER_BYTES;
                !self.counters.iter().any(clash) && !self.latest.iter().any(|r| overlap(*r, range))
            }
            _ => !self.latest.iter().any(|r| overlap(*r, range)),
        }
    }

    fn note(&mut self, change: &Change) {
        let Some(range) = change.range() else {
            return;
        };
        let range = (range.start, range.end);
        match change {
            Change::Latest { .. } => {
                self.latest.insert(range);
            }
            Change::Add { offset, .. } => {
                self.counters.insert(*offset);
                self.plain.insert(range);
            }
            _ => {
                self.plain.insert(range);
            }
        }
    }
}

/// The state of a journal as its callers may think of it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The disk before the first operation; durable.
    base: Image,
    /// The disk after the last one.
    current: Image,
    ops: Vec<Applied>,
    /// Names of the streams; everywhere else a stream is its position here.
    streams: Vec<u32>,
    /// Positions in `ops` of each stream's operations.
    of_stream: Vec<Vec<usize>>,
    /// For each stream and each length of its prefix: the prefixes of others that it needs.
    needs: Vec<Vec<Vec<u32>>>,
    /// Acknowledgements, growing.
    bounds: Vec<Bound>,
    /// Blocks whose lives ended, and by which operation.
    freed: BTreeMap<u64, usize>,
    usage: BTreeMap<u64, Usage>,
    cells: OnceLock<Cells>,
    mutation: Mutation,
}

/// Faults in the specification, planted by its own tests alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Mutation {
    #[default]
    None,
    /// An operation survives without the operations that it relates to.
    Unrelated,
    /// Additions relate.
    AddsRelate,
    /// Shared uses of an object relate.
    SharedRelates,
    /// Bits of one byte relate.
    BitsAsBytes,
    /// Acknowledged operations may be lost.
    Unbound,
    /// A sync acknowledges all streams.
    BindsAll,
    /// A sync ignores the objects.
    IgnoresObjects,
    /// Operations that were not yet applied may be there.
    Future,
    /// Latest bytes have the value of the last operation of the cut.
    LatestIsLast,
    /// Latest bytes may have an earlier value.
    LatestIsAny,
    /// The last change of an operation may be missing.
    Torn,
    /// A freed block keeps its contents.
    Undead,
}

/// Entry `i` of a vector in which absent entries are 0.
fn entry(of: &[u32], i: usize) -> u32 {
    of.get(i).copied().unwrap_or(0)
}

/// Raises entry `i` to at least `to`.
fn raise(of: &mut Vec<u32>, i: usize, to: u32) {
    if of.len() <= i {
        of.resize(i + 1, 0);
    }
    of[i] = of[i].max(to);
}

impl Log {
    /// An empty log over a durable disk.
    #[must_use]
    pub fn new(disk: Image) -> Log {
        Log {
            current: disk.clone(),
            base: disk,
            ..Log::default()
        }
    }

    /// Operations in the log.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The block's contents after all operations; `None`: it does not live.
    #[must_use]
    pub fn read(&self, block: u64) -> Option<&[u8]> {
        self.current.get(&block).map(|b| &**b)
    }

    /// The blocks that live after all operations.
    #[must_use]
    pub fn current(&self) -> &Image {
        &self.current
    }

    fn stream_index(&mut self, stream: u32) -> usize {
        match self.streams.iter().position(|s| *s == stream) {
            Some(i) => i,
            None => {
                self.streams.push(stream);
                self.of_stream.push(Vec::new());
                self.needs.push(vec![Vec::new()]);
                self.streams.len() - 1
            }
        }
    }

    /// Appends an operation; returns its position. O(operations that are not acknowledged).
    ///
    /// # Errors
    /// [`Misuse`]; the log is as it was.
    pub fn apply(&mut self, op: Operation, at: usize) -> Result<usize, Misuse> {
        if self.ops.last().is_some_and(|last| at < last.at) {
            return Err(Misuse::Time);
        }
        let mut scratch = Scratch::default();
        for change in &op.changes {
            scratch.carry_out(self, change)?;
        }
        let position = self.ops.len();
        let stream = self.stream_index(op.stream);
        let needs = self.needs_of(&op, stream);
        self.needs[stream].push(needs);
        for (block, (contents, usage)) in scratch.blocks {
            self.usage.insert(block, usage);
            match contents {
                Some(contents) => {
                    self.current.insert(block, contents.into());
                    self.freed.remove(&block);
                }
                None => {
                    self.current.remove(&block);
                    self.freed.insert(block, position);
                }
            }
        }
        let index = self.of_stream[stream].len() as u32;
        self.of_stream[stream].push(position);
        self.ops.push(Applied {
            op,
            stream,
            index,
            at,
        });
        self.cells = OnceLock::new();
        Ok(position)
    }

    /// Operations of other streams that a stream's prefix needs once `op` is its last operation.
    fn needs_of(&self, op: &Operation, stream: usize) -> Vec<u32> {
        let mut needs = self.needs[stream].last().cloned().unwrap_or_default();
        for (other, positions) in self.of_stream.iter().enumerate() {
            if other == stream || self.is(Mutation::Unrelated) {
                continue;
            }
            // The newest related one counts: a stream keeps prefixes.
            let least = self.bounds.last().map_or(0, |b| entry(&b.least, other));
            let related = positions
                .iter()
                .skip(least.max(entry(&needs, other)) as usize)
                .rev()
                .find(|p| op.relates(&self.ops[**p].op, self.mutation));
            if let Some(position) = related {
                raise(&mut needs, other, self.ops[*position].index + 1);
            }
        }
        needs
    }

    /// Promise of a sync of a stream and objects that is called now: everything of the stream,
    /// and of every other stream everything up to its last use of one of the objects.
    #[must_use]
    pub fn promise(&self, stream: u32, objects: &[u64]) -> Promise {
        let mut promise = Promise::default();
        for (s, positions) in self.of_stream.iter().enumerate() {
            let uses = |p: &&usize| {
                let named = &self.ops[**p].op.objects;
                !self.is(Mutation::IgnoresObjects) && named.iter().any(|(o, _)| objects.contains(o))
            };
            let last = if self.streams[s] == stream || self.is(Mutation::BindsAll) {
                positions.last()
            } else {
                positions.iter().rev().find(uses)
            };
            if let Some(last) = last {
                raise(&mut promise.least, s, self.ops[*last].index + 1);
            }
        }
        promise
    }

    /// Promise that makes everything durable.
    #[must_use]
    pub fn promise_all(&self) -> Promise {
        Promise {
            least: self.of_stream.iter().map(|s| s.len() as u32).collect(),
        }
    }

    /// Promise of waiting for the operation at `position`.
    #[must_use]
    pub fn promise_of(&self, position: usize) -> Promise {
        let mut promise = Promise::default();
        if let Some(op) = self.ops.get(position) {
            raise(&mut promise.least, op.stream, op.index + 1);
        }
        promise
    }

    /// A promise was kept: it survives every later event after `at`.
    pub fn acknowledge(&mut self, promise: &Promise, at: usize) {
        let mut least = self
            .bounds
            .last()
            .map(|b| b.least.clone())
            .unwrap_or_default();
        for (stream, n) in promise.least.iter().enumerate() {
            raise(&mut least, stream, *n);
        }
        self.bounds.push(Bound { at, least });
    }

    /// A freed block may begin a new life: the operation that freed it is durable. Returns
    /// whether the block was waiting for that.
    pub fn release(&mut self, block: u64, at: usize) -> bool {
        let Some(position) = self.freed.remove(&block) else {
            return false;
        };
        self.acknowledge(&self.promise_of(position), at);
        true
    }

    /// Freed blocks that were not released yet.
    pub fn freed(&self) -> impl Iterator<Item = u64> {
        self.freed.keys().copied()
    }

    /// The power failed, and `survivors` explain `found`: they are the log's new, durable
    /// beginning. Times start anew.
    pub fn crash(&mut self, survivors: &Survivors, found: &Image) {
        let mut disk = Image::new();
        for (block, len) in self.live(survivors) {
            if let Some(bytes) = found.get(&block).and_then(|b| b.get(..len)) {
                disk.insert(block, bytes.into());
            }
        }
        *self = Log {
            mutation: self.mutation,
            ..Log::new(disk)
        };
    }

    /// The acknowledged prefixes at a time.
    fn least(&self, at: usize) -> Vec<u32> {
        let n = self.bounds.partition_point(|b| b.at <= at);
        let mut least = vec![0; self.streams.len()];
        if let Some(bound) = n.checked_sub(1).and_then(|n| self.bounds.get(n))
            && !self.is(Mutation::Unbound)
        {
            for (stream, n) in bound.least.iter().enumerate() {
                raise(&mut least, stream, *n);
            }
        }
        least
    }

    /// The prefixes of the operations applied before a time.
    fn most(&self, at: usize) -> Vec<u32> {
        let before = |p: &usize| self.ops[*p].at < at || self.is(Mutation::Future);
        self.of_stream
            .iter()
            .map(|s| s.partition_point(before) as u32)
            .collect()
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }
}

/// Effect of an operation on the current disk, before it is known to be valid.
#[derive(Default)]
struct Scratch {
    blocks: BTreeMap<u64, (Option<Vec<u8>>, Usage)>,
}

impl Scratch {
    fn carry_out(&mut self, log: &Log, change: &Change) -> Result<(), Misuse> {
        let block = change.block();
        let fresh = !self.blocks.contains_key(&block);
        let (contents, usage) = self.blocks.entry(block).or_insert_with(|| {
            let usage = log.usage.get(&block).cloned().unwrap_or_default();
            (log.read(block).map(<[u8]>::to_vec), usage)
        });
        match (change, &mut *contents) {
            (Change::Begin { contents: new, .. }, None)
                if fresh && !log.freed.contains_key(&block) =>
            {
                *contents = Some(new.to_vec());
                *usage = Usage::default();
            }
            (Change::Begin { .. }, _) => return Err(Misuse::Alive { block }),
            (_, None) => return Err(Misuse::Dead { block }),
            (Change::Free { .. }, Some(_)) => *contents = None,
            (_, Some(bytes)) => {
                if change.range().is_some_and(|r| r.end > bytes.len()) {
                    return Err(Misuse::Outside { block });
                }
                if !usage.admits(change) {
                    return Err(Misuse::Mixed { block });
                }
                usage.note(change);
                change.patch(bytes, 0);
            }
        }
        Ok(())
    }
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const SHOWN_MAX: usize = 16;
    match bytes {
        [first, rest @ ..] if rest.len() >= SHOWN_MAX && rest.iter().all(|b| b == first) => {
            write!(f, "{first:02x}...")
        }
        _ => {
            for byte in bytes.iter().take(SHOWN_MAX) {
                write!(f, "{byte:02x}")?;
            }
            f.write_str(if bytes.len() > SHOWN_MAX { "..." } else { "" })
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Begin { block, contents } => {
                write!(f, "begin {block} = ")?;
                hex(f, contents)
            }
            Change::Free { block } => write!(f, "free {block}"),
            Change::Bytes {
                block,
                offset,
                data,
            } => {
                write!(f, "{block}[{offset}..{}] = ", offset + data.len())?;
                hex(f, data)
            }
            Change::Latest {
                block,
                offset,
                data,
            } => {
                write!(f, "{block}[{offset}..{}] latest ", offset + data.len())?;
                hex(f, data)
            }
            Change::Bits {
                block,
                first,
                count,
                value,
            } => write!(
                f,
                "{block} bits {first}..{} = {}",
                first + count,
                u8::from(*value)
            ),
            Change::Add {
                block,
                offset,
                delta,
            } => write!(f, "{block}[{offset}] += {delta}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}:", self.stream)?;
        for (i, change) in self.changes.iter().enumerate() {
            write!(f, "{} {change}", if i == 0 { "" } else { "," })?;
        }
        for (object, access) in &self.objects {
            let access = match access {
                Access::Shared => "shares",
                Access::Exclusive => "owns",
            };
            write!(f, "; {access} object {object}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Log {
    /// One line for each operation and each acknowledgement, with their times.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bounds = self.bounds.iter().peekable();
        let mut acknowledged = |f: &mut fmt::Formatter<'_>, before: usize| -> fmt::Result {
            while let Some(bound) = bounds.next_if(|b| b.at < before) {
                write!(f, "    at {}: acknowledged", bound.at)?;
                for (stream, n) in self.streams.iter().zip(&bound.least) {
                    write!(f, " {n} of stream {stream}")?;
                }
                writeln!(f)?;
            }
            Ok(())
        };
        for (position, applied) in self.ops.iter().enumerate() {
            acknowledged(f, applied.at)?;
            writeln!(f, "{position:>3} at {}: {}", applied.at, applied.op)?;
        }
        acknowledged(f, usize::MAX)
    }
}
