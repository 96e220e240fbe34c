//! Search for a cut that explains a recovered disk.
//!
//! Blocks fall into *cells*: the finest ranges that no change divides. A cell's content
//! depends only on those operations that touch it. The prefixes of the streams are chosen one
//! stream after another; a cell is compared as soon as all streams that leave it open are
//! chosen. Where each operation leaves a trace of its own in some cell, that finds the
//! prefixes one by one, without trying their combinations.

use super::{Change, Image, Log, Mutation, Violation, entry, raise};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A cut that explains a disk: for each stream, the length of its prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survivors {
    pub(super) taken: Vec<u32>,
}

/// A range of a block that is changed as a whole, except bits and counters in it.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) block: u64,
    pub(super) range: Range<usize>,
    /// Positions of operations and of their changes that touch it, in order.
    touched: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cells(pub(super) Vec<Cell>);

/// Choices of a check.
pub(super) struct Bounds {
    pub(super) least: Vec<u32>,
    pub(super) most: Vec<u32>,
    /// Whether operations need those that they relate to.
    pub(super) related: bool,
}

struct Search<'a> {
    log: &'a Log,
    found: &'a Image,
    bounds: &'a Bounds,
    /// Cells that are decided when a stream is chosen, by stream.
    cells: Vec<Vec<&'a Cell>>,
    taken: Vec<u32>,
    window: Vec<u8>,
}

impl Cells {
    fn of(log: &Log) -> Cells {
        let mut edges: BTreeMap<u64, (BTreeSet<usize>, Vec<Range<usize>>)> = BTreeMap::new();
        let mut touched: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for (block, contents) in &log.base {
            edges
                .entry(*block)
                .or_default()
                .0
                .extend([0, contents.len()]);
        }
        for (position, applied) in log.ops.iter().enumerate() {
            for (number, change) in applied.op.changes.iter().enumerate() {
                let block = change.block();
                touched.entry(block).or_default().push((position, number));
                let (edges, whole) = edges.entry(block).or_default();
                if let Change::Begin { contents, .. } = change {
                    edges.extend([0, contents.len()]);
                }
                if let Some(range) = change.range() {
                    edges.extend([range.start, range.end]);
                    if matches!(change, Change::Add { .. } | Change::Latest { .. }) {
                        whole.push(range);
                    }
                }
            }
        }
        let mut cells = Vec::new();
        for (block, (mut edges, whole)) in edges {
            edges.retain(|e| !whole.iter().any(|w| w.start < *e && *e < w.end));
            let touched = touched.get(&block).map(Vec::as_slice).unwrap_or_default();
            let edges: Vec<usize> = edges.into_iter().collect();
            for pair in edges.windows(2) {
                let range = pair[0]..pair[1];
                let touches = |(op, change): &&(usize, usize)| {
                    let at = log.ops[*op].op.changes[*change].range();
                    at.is_none_or(|at| at.start < range.end && range.start < at.end)
                };
                cells.push(Cell {
                    block,
                    touched: touched.iter().filter(touches).copied().collect(),
                    range,
                });
            }
        }
        Cells(cells)
    }
}

impl Log {
    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells.get_or_init(|| Cells::of(self)).0
    }

    fn change(&self, (op, change): (usize, usize)) -> &Change {
        &self.ops[op].op.changes[change]
    }

    fn survives(&self, op: usize, taken: &[u32]) -> bool {
        let applied = &self.ops[op];
        applied.index < entry(taken, applied.stream)
    }

    fn ends_or_begins(&self, change: &Change) -> bool {
        match change {
            Change::Free { .. } => !self.is(Mutation::Undead),
            Change::Begin { .. } => true,
            _ => false,
        }
    }

    /// Content of a cell in a cut; `None` if the block does not live that far. Bytes that may
    /// have several values take over the one found, if it is one of them.
    pub(super) fn render<'a>(
        &'a self,
        cell: &Cell,
        taken: &[u32],
        most: &[u32],
        found: Option<&[u8]>,
        window: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let lives = |(op, change): &(usize, usize)| {
            self.survives(*op, taken) && self.ends_or_begins(self.change((*op, *change)))
        };
        let life = cell.touched.iter().rposition(lives);
        let origin = match life.map(|i| self.change(cell.touched[i])) {
            Some(Change::Begin { contents, .. }) => contents,
            Some(_) => return None,
            None => self.base.get(&cell.block)?,
        };
        let start = cell.range.start;
        let origin = origin.get(start..cell.range.end.min(origin.len()))?;
        let patches = &cell.touched[life.map_or(0, |i| i + 1)..];
        if !patches.iter().any(|(op, _)| self.survives(*op, taken)) {
            return Some(origin);
        }
        window.clear();
        window.extend_from_slice(origin);
        for (i, touch) in patches.iter().enumerate() {
            let last = touch.1 + 1 == self.ops[touch.0].op.changes.len();
            let torn = last && touch.1 > 0 && self.is(Mutation::Torn);
            if torn || !self.survives(touch.0, taken) {
                continue;
            }
            let change = self.change(*touch);
            change.patch(window, start);
            if let (Change::Latest { offset, data, .. }, Some(found)) = (change, found) {
                let slot = offset - start..offset - start + data.len();
                let value = found.get(slot.clone());
                let mut newer = self.newer_values(patches, i, most, change);
                if newer.any(|v| Some(v) == value) {
                    window[slot].copy_from_slice(value.unwrap_or_default());
                }
            }
        }
        Some(window)
    }

    /// The values that the bytes of `change` had from then (number `at` of `patches`) on in
    /// this life.
    fn newer_values<'a>(
        &'a self,
        patches: &'a [(usize, usize)],
        at: usize,
        most: &'a [u32],
        change: &'a Change,
    ) -> impl Iterator<Item = &'a [u8]> {
        let from = if self.is(Mutation::LatestIsAny) {
            0
        } else {
            at
        };
        let last = self.is(Mutation::LatestIsLast);
        patches[from..]
            .iter()
            .take_while(|t| !self.ends_or_begins(self.change(**t)))
            .filter(move |t| !last && self.survives(t.0, most))
            .filter_map(move |t| match self.change(*t) {
                Change::Latest { data, .. } if self.change(*t).range() == change.range() => {
                    Some(&**data)
                }
                _ => None,
            })
    }

    /// The bounds of a cut at a time, made tighter by the needs of acknowledged operations.
    pub(super) fn bounds(&self, at: usize) -> Bounds {
        let (mut least, most) = (self.least(at), self.most(at));
        loop {
            let before = least.clone();
            for (stream, n) in before.iter().enumerate() {
                let needs = self.needs_at(stream, *n);
                (0..needs.len()).for_each(|other| raise(&mut least, other, needs[other]));
            }
            if least == before {
                break;
            }
        }
        Bounds {
            least,
            most,
            related: true,
        }
    }

    pub(super) fn needs_at(&self, stream: usize, taken: u32) -> &[u32] {
        self.needs[stream].get(taken as usize).map_or(&[], |n| n)
    }

    /// Looks for a cut that explains `found`, the longest prefixes first.
    pub(super) fn search(&self, found: &Image, bounds: &Bounds) -> Option<Survivors> {
        let mut search = Search {
            log: self,
            found,
            bounds,
            cells: vec![Vec::new(); self.streams.len()],
            taken: bounds.least.clone(),
            window: Vec::new(),
        };
        for cell in self.cells() {
            let open = |(op, _): &(usize, usize)| {
                let applied = &self.ops[*op];
                let range = bounds.least[applied.stream]..bounds.most[applied.stream];
                range.contains(&applied.index).then_some(applied.stream)
            };
            match cell.touched.iter().filter_map(open).max() {
                Some(stream) => search.cells[stream].push(cell),
                None if search.fits(cell) => {}
                None => return None,
            }
        }
        search.choose(0).then_some(Survivors {
            taken: search.taken,
        })
    }

    /// Whether a crash at `at` may leave `found`, and the survivors then (one such cut, if
    /// several look the same). Blocks that do not live are not looked at.
    ///
    /// # Errors
    /// [`Violation`] names the fault.
    pub fn check(&self, found: &Image, at: usize) -> Result<Survivors, Box<Violation>> {
        self.search(found, &self.bounds(at))
            .ok_or_else(|| Box::new(self.explain(found, at)))
    }

    /// The blocks that live in a cut, and how long they are.
    #[must_use]
    pub fn live(&self, survivors: &Survivors) -> Vec<(u64, usize)> {
        let mut live: BTreeMap<u64, usize> = self.base.iter().map(|(b, c)| (*b, c.len())).collect();
        for (position, applied) in self.ops.iter().enumerate() {
            if !self.survives(position, &survivors.taken) {
                continue;
            }
            for change in &applied.op.changes {
                match change {
                    Change::Begin { block, contents } => {
                        live.insert(*block, contents.len());
                    }
                    Change::Free { block } => {
                        live.remove(block);
                    }
                    _ => {}
                }
            }
        }
        live.into_iter().collect()
    }

    /// Number of operations of each stream in a cut.
    #[must_use]
    pub fn prefixes(&self, survivors: &Survivors) -> Vec<(u32, u32)> {
        let taken = survivors.taken.iter().copied();
        self.streams.iter().copied().zip(taken).collect()
    }

    /// The positions of the operations in a cut.
    #[must_use]
    pub fn survived(&self, survivors: &Survivors) -> Vec<usize> {
        (0..self.ops.len())
            .filter(|op| self.survives(*op, &survivors.taken))
            .collect()
    }
}

impl Search<'_> {
    fn fits(&mut self, cell: &Cell) -> bool {
        let found = self
            .found
            .get(&cell.block)
            .and_then(|f| f.get(cell.range.start..));
        let (taken, most) = (&self.taken, &self.bounds.most);
        let expected = self.log.render(cell, taken, most, found, &mut self.window);
        expected.is_none_or(|e| found.is_some_and(|f| f.starts_with(e)))
    }

    /// Whether the chosen prefixes up to `stream` meet each other's needs.
    fn has_needs(&self, stream: usize) -> bool {
        let needs = self.log.needs_at(stream, self.taken[stream]);
        let could_have = |(other, n): (usize, &u32)| match other < stream {
            true => *n <= self.taken[other],
            false => *n <= self.bounds.most[other],
        };
        needs.iter().enumerate().all(could_have)
            && (0..stream).all(|other| {
                let needs = self.log.needs_at(other, self.taken[other]);
                entry(needs, stream) <= self.taken[stream]
            })
    }

    fn choose(&mut self, stream: usize) -> bool {
        if stream == self.cells.len() {
            return true;
        }
        let cells = std::mem::take(&mut self.cells[stream]);
        let (least, most) = (self.bounds.least[stream], self.bounds.most[stream]);
        let chosen = (least..=most).rev().any(|n| {
            self.taken[stream] = n;
            (!self.bounds.related || self.has_needs(stream))
                && cells.iter().all(|cell| self.fits(cell))
                && self.choose(stream + 1)
        });
        if !chosen {
            self.taken[stream] = least;
        }
        self.cells[stream] = cells;
        chosen
    }
}
