//! Explains why no cut matches a disk: missing operations, excess operations, or the
//! difference from the nearest cut.

use super::check::{Bounds, Survivors};
use super::{Image, Log, entry, hex};
use std::fmt;

/// Fault of a disk. Operations are named by position and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is the result of a cut, but lacks acknowledged operations.
    Lost {
        /// The operations.
        missing: Vec<String>,
    },
    /// It is the result of a cut, but has operations that were not yet applied.
    Early {
        /// The operations.
        present: Vec<String>,
    },
    /// It holds a prefix of each stream, and an operation without one that it relates to.
    Relation {
        /// The operation.
        op: String,
        /// The last operation of another stream that it needs, at least.
        without: String,
    },
    /// No choice of prefixes leads to it.
    Unknown,
}

/// A disk that a crash must not leave.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Time of the power cut.
    pub at: usize,
    /// Fault of the disk.
    pub why: Why,
    /// The allowed cut that differs least, among those that were tried: stream and length.
    pub nearest: Vec<(u32, u32)>,
    /// The cells in which the disk differs from it.
    pub differences: Vec<String>,
}

/// Cuts that are compared to find the nearest one.
const CUTS_MAX: usize = 20_000;
/// Operations and cells that are listed.
const LISTED_MAX: usize = 8;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, lines: &[String]| {
            lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
        };
        match &self.why {
            Why::Lost { missing } => {
                writeln!(f, "cut at {}: acknowledged operations are lost:", self.at)?;
                list(f, missing)?;
            }
            Why::Early { present } => {
                writeln!(f, "cut at {}: operations are there too early:", self.at)?;
                list(f, present)?;
            }
            Why::Relation { op, without } => writeln!(
                f,
                "cut at {}: an operation is there without one that it relates to:\n  {op}\n\
                 not there:\n  {without}",
                self.at
            )?,
            Why::Unknown => writeln!(f, "cut at {}: no prefixes lead to this disk", self.at)?,
        }
        write!(f, "nearest allowed cut:")?;
        for (stream, n) in &self.nearest {
            write!(f, " {n} of stream {stream}")?;
        }
        writeln!(f)?;
        list(f, &self.differences)
    }
}

impl std::error::Error for Violation {}

struct Bytes<'a>(&'a [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, self.0)
    }
}

impl Log {
    fn op_text(&self, position: usize) -> String {
        format!("{position}: {}", self.ops[position].op)
    }

    /// Operations in `(low, high]` of their streams.
    fn between(&self, low: &[u32], high: &[u32]) -> Vec<String> {
        let inside = |p: &usize| {
            let op = &self.ops[*p];
            op.index >= entry(low, op.stream) && op.index < entry(high, op.stream)
        };
        let positions = (0..self.ops.len()).filter(inside);
        positions
            .take(LISTED_MAX)
            .map(|p| self.op_text(p))
            .collect()
    }

    /// Says why no cut at `at` explains `found`.
    pub(super) fn explain(&self, found: &Image, at: usize) -> Violation {
        let bounds = self.bounds(at);
        let why = self.reason(found, &bounds).unwrap_or(Why::Unknown);
        let (nearest, differences) = self.nearest(found, &bounds);
        Violation {
            at,
            why,
            nearest: self.prefixes(&nearest),
            differences,
        }
    }

    fn reason(&self, found: &Image, bounds: &Bounds) -> Option<Why> {
        let with = |least: Vec<u32>, most: Vec<u32>, related| {
            let bounds = Bounds {
                least,
                most,
                related,
            };
            self.search(found, &bounds).map(|s| s.taken)
        };
        let nothing = vec![0; self.streams.len()];
        if let Some(taken) = with(nothing.clone(), bounds.most.clone(), true) {
            let missing = self.between(&taken, &bounds.least);
            return Some(Why::Lost { missing });
        }
        if let Some(taken) = with(bounds.least.clone(), self.promise_all().least, true) {
            let present = self.between(&bounds.most, &taken);
            return Some(Why::Early { present });
        }
        let taken = with(nothing, bounds.most.clone(), false)?;
        // The first operation whose needs are not met.
        let broken = self.ops.iter().enumerate().find_map(|(position, op)| {
            let inside = op.index < taken[op.stream];
            let needs = self.needs_at(op.stream, op.index + 1);
            let other = (0..needs.len()).find(|o| inside && needs[*o] > taken[*o])?;
            Some((position, self.of_stream[other][needs[other] as usize - 1]))
        });
        broken.map(|(op, without)| Why::Relation {
            op: self.op_text(op),
            without: self.op_text(without),
        })
    }

    /// The allowed cut, of those tried, that differs in the fewest cells, and where.
    fn nearest(&self, found: &Image, bounds: &Bounds) -> (Survivors, Vec<String>) {
        let mut taken = bounds.most.clone();
        let (mut best, mut best_count) = (bounds.least.clone(), usize::MAX);
        for _ in 0..CUTS_MAX {
            if self.is_closed(&taken) {
                let count = self.differing(found, &taken, &bounds.most).count();
                if count < best_count {
                    (best, best_count) = (taken.clone(), count);
                }
            }
            // The next cut, counting down in mixed radix.
            let Some(i) = (0..taken.len()).find(|i| taken[*i] > bounds.least[*i]) else {
                break;
            };
            taken[i] -= 1;
            taken[..i].copy_from_slice(&bounds.most[..i]);
        }
        let lines = self.differing(found, &best, &bounds.most);
        let lines = lines.take(LISTED_MAX).collect();
        (Survivors { taken: best }, lines)
    }

    fn is_closed(&self, taken: &[u32]) -> bool {
        taken.iter().enumerate().all(|(stream, n)| {
            let needs = self.needs_at(stream, *n).iter();
            needs.enumerate().all(|(other, n)| *n <= taken[other])
        })
    }

    fn differing<'a>(
        &'a self,
        found: &'a Image,
        taken: &'a [u32],
        most: &'a [u32],
    ) -> impl Iterator<Item = String> + 'a {
        let mut window = Vec::new();
        self.cells().iter().filter_map(move |cell| {
            let bytes = found
                .get(&cell.block)
                .and_then(|f| f.get(cell.range.start..));
            let expected = self.render(cell, taken, most, bytes, &mut window)?;
            let name = format!("block {} bytes {:?}", cell.block, cell.range);
            let Some(bytes) = bytes.map(|b| &b[..b.len().min(expected.len())]) else {
                return Some(format!("{name}: cannot be read"));
            };
            let (found, wanted) = (Bytes(bytes), Bytes(expected));
            (bytes != expected).then(|| format!("{name}: found {found}, the cut has {wanted}"))
        })
    }
}
