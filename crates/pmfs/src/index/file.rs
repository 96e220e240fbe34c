//! Places of a file's pages: extents by offset.
//!
//! Promise: extents do not overlap, and neighbours that continue each other (offset, page and state) are one extent. Finding,
//! inserting and removing cost O(log n) for each extent that is touched. A file of one extent needs no allocation; others need
//! 16 bytes and a tree node's overhead for each extent, however long it is.
//!
//! The index is volatile: a mount builds it from the page descriptors. Page offsets are below [`OFFSET_MAX`].

use crate::layout::{Page, PageState};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Offsets are smaller than this: descriptors have 48 bits for them.
pub const OFFSET_MAX: u64 = 1 << 48;

/// Bits of a length in a [`Run`].
const LEN_BITS: u32 = 28;
const LEN_MAX: u64 = (1 << LEN_BITS) - 1;

/// Consecutive pages of the region at consecutive offsets of a file, all in one state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First offset, in pages.
    pub offset: u64,
    /// First page.
    pub page: Page,
    /// Pages, at least one.
    pub len: u64,
    /// `Written` or `Unwritten`.
    pub state: PageState,
}

impl Extent {
    /// The offset after its last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The part of it from `from` up to `to`, if there is one.
    fn clipped(self, from: u64, to: u64) -> Option<Extent> {
        let (start, end) = (self.offset.max(from), self.end().min(to));
        (start < end).then(|| Extent {
            offset: start,
            page: Page(self.page.0 + (start - self.offset)),
            len: end - start,
            state: self.state,
        })
    }

    /// Whether `next` continues this one, so that both are one.
    fn continues(&self, next: &Extent) -> bool {
        self.end() == next.offset
            && self.page.0 + self.len == next.page.0
            && self.state == next.state
            && self.len + next.len <= LEN_MAX
    }
}

/// An extent without its offset in one word: page 35 bits, length 28, whether written 1.
#[derive(Clone, Copy, Debug)]
struct Run(u64);

impl Run {
    fn new(extent: &Extent) -> Run {
        debug_assert!((1..=LEN_MAX).contains(&extent.len) && extent.page.0 < 1 << 35);
        debug_assert!(extent.state != PageState::Free);
        let written = u64::from(extent.state == PageState::Written);
        Run(extent.page.0 << (LEN_BITS + 1) | extent.len << 1 | written)
    }

    fn extent(self, offset: u64) -> Extent {
        Extent {
            offset,
            page: Page(self.0 >> (LEN_BITS + 1)),
            len: self.0 >> 1 & LEN_MAX,
            state: if self.0 & 1 == 1 {
                PageState::Written
            } else {
                PageState::Unwritten
            },
        }
    }
}

#[derive(Debug)]
enum Shape {
    Empty,
    One(u64, Run),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
struct Many {
    runs: BTreeMap<u64, Run>,
    pages: u64,
}

/// Extents that a call took out of an index.
pub type Removed = SmallVec<[Extent; 2]>;

/// The extents of a file.
#[derive(Debug)]
pub struct FileIndex(Shape);

impl Default for FileIndex {
    fn default() -> FileIndex {
        FileIndex(Shape::Empty)
    }
}

impl FileIndex {
    /// An index of no page.
    #[must_use]
    pub fn new() -> FileIndex {
        FileIndex::default()
    }

    /// An index of extents in ascending order that do not overlap.
    #[must_use]
    pub fn from_sorted(extents: impl IntoIterator<Item = Extent>) -> FileIndex {
        let mut pages = 0;
        let mut last: Option<Extent> = None;
        let mut runs: Vec<(u64, Run)> = Vec::new();
        for extent in extents {
            pages += extent.len;
            match &mut last {
                Some(last) if last.continues(&extent) => last.len += extent.len,
                last => {
                    debug_assert!(last.is_none_or(|last| last.end() <= extent.offset));
                    if let Some(done) = last.replace(extent) {
                        runs.push((done.offset, Run::new(&done)));
                    }
                }
            }
        }
        FileIndex(match last {
            None => Shape::Empty,
            Some(only) if runs.is_empty() => Shape::One(only.offset, Run::new(&only)),
            Some(last) => {
                runs.push((last.offset, Run::new(&last)));
                Shape::Many(Box::new(Many {
                    // Collecting a sorted sequence fills the tree's nodes.
                    runs: runs.into_iter().collect(),
                    pages,
                }))
            }
        })
    }

    /// Pages of the file, unwritten ones included.
    #[must_use]
    pub fn pages(&self) -> u64 {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(offset, run) => run.extent(*offset).len,
            Shape::Many(many) => many.pages,
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages() == 0
    }

    /// Number of extents.
    #[must_use]
    pub fn extents(&self) -> usize {
        match &self.0 {
            Shape::Empty => 0,
            Shape::One(..) => 1,
            Shape::Many(many) => many.runs.len(),
        }
    }

    /// The page at `offset`, with the rest of its extent; `None` in a hole.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Extent> {
        self.at_or_before(offset)?.clipped(offset, u64::MAX)
    }

    /// The extents from `from` up to `to`, in order; the first and the last are cut to that range.
    pub fn range(&self, from: u64, to: u64) -> impl Iterator<Item = Extent> + '_ {
        let first = self.at_or_before(from);
        let rest = match &self.0 {
            Shape::Many(many) => Some(many),
            _ => None,
        };
        // An extent that begins at `from` is `first`; the others begin later.
        let next = from.saturating_add(1);
        let one = match &self.0 {
            Shape::One(offset, run) if *offset >= next => Some(run.extent(*offset)),
            _ => None,
        };
        let rest = rest
            .into_iter()
            .flat_map(move |many| many.runs.range(next..to.max(next)))
            .map(|(offset, run)| run.extent(*offset));
        let all = first.into_iter().chain(one).chain(rest);
        all.filter_map(move |extent| extent.clipped(from, to))
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.range(0, u64::MAX)
    }

    /// The offset after the last page; 0 if there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at_or_before(u64::MAX).map_or(0, |last| last.end())
    }

    /// Adds pages at offsets that have none.
    pub fn insert(&mut self, extent: Extent) {
        debug_assert!(self.range(extent.offset, extent.end()).next().is_none());
        let (mut whole, mut absorbed) = (extent, None);
        if let Some(next) = self.starting_at(extent.end())
            && whole.continues(&next)
        {
            whole.len += next.len;
            absorbed = Some(next);
        }
        let before = match extent.offset {
            0 => None,
            offset => self.at_or_before(offset - 1),
        };
        if let Some(before) = before
            && before.continues(&whole)
        {
            whole = Extent {
                len: before.len + whole.len,
                ..before
            };
        }
        match &mut self.0 {
            Shape::Empty => self.0 = Shape::One(whole.offset, Run::new(&whole)),
            Shape::One(offset, run) if absorbed.is_some() || whole.offset == *offset => {
                (*offset, *run) = (whole.offset, Run::new(&whole));
            }
            Shape::One(offset, run) => {
                let one = run.extent(*offset);
                let runs = [one, whole].map(|extent| (extent.offset, Run::new(&extent)));
                self.0 = Shape::Many(Box::new(Many {
                    runs: runs.into(),
                    pages: one.len + whole.len,
                }));
            }
            Shape::Many(many) => {
                if let Some(absorbed) = absorbed {
                    many.runs.remove(&absorbed.offset);
                }
                many.runs.insert(whole.offset, Run::new(&whole));
                many.pages += extent.len;
            }
        }
    }

    /// Takes out the pages from `from` up to `to`.
    pub fn punch(&mut self, from: u64, to: u64) -> Removed {
        let mut removed = Removed::new();
        while let Some(extent) = self.overlapping(from, to) {
            self.take(extent.offset);
            let kept = [extent.clipped(0, from), extent.clipped(to, u64::MAX)];
            for kept in kept.into_iter().flatten() {
                self.insert(kept);
            }
            removed.extend(extent.clipped(from, to));
        }
        removed.sort_unstable_by_key(|extent| extent.offset);
        removed
    }

    /// Puts pages at their offsets, and returns the replaced ones.
    pub fn replace(&mut self, extent: Extent) -> Removed {
        let removed = self.punch(extent.offset, extent.end());
        self.insert(extent);
        removed
    }

    /// Marks the pages from `from` up to `to` as written.
    pub fn set_written(&mut self, from: u64, to: u64) {
        let unwritten: Removed = self
            .range(from, to)
            .filter(|extent| extent.state == PageState::Unwritten)
            .collect();
        for extent in unwritten {
            self.replace(Extent {
                state: PageState::Written,
                ..extent
            });
        }
    }

    /// The last extent that begins at or before `offset`, whole.
    fn at_or_before(&self, offset: u64) -> Option<Extent> {
        match &self.0 {
            Shape::Empty => None,
            Shape::One(start, run) => (*start <= offset).then(|| run.extent(*start)),
            Shape::Many(many) => {
                let (start, run) = many.runs.range(..=offset).next_back()?;
                Some(run.extent(*start))
            }
        }
    }

    /// The extent that begins at `offset`, whole.
    fn starting_at(&self, offset: u64) -> Option<Extent> {
        match &self.0 {
            Shape::Empty => None,
            Shape::One(start, run) => (*start == offset).then(|| run.extent(offset)),
            Shape::Many(many) => many.runs.get(&offset).map(|run| run.extent(offset)),
        }
    }

    /// The last extent with a page from `from` up to `to`, whole.
    fn overlapping(&self, from: u64, to: u64) -> Option<Extent> {
        let last = self.at_or_before(to.checked_sub(1)?)?;
        (from < to && last.end() > from).then_some(last)
    }

    /// Forgets the extent that begins at `offset`.
    fn take(&mut self, offset: u64) {
        match &mut self.0 {
            Shape::Empty => {}
            Shape::One(..) => self.0 = Shape::Empty,
            Shape::Many(many) => {
                if let Some(run) = many.runs.remove(&offset) {
                    many.pages -= run.extent(offset).len;
                }
                if many.runs.is_empty() {
                    self.0 = Shape::Empty;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, page: u64, len: u64, state: PageState) -> Extent {
        Extent {
            offset,
            page: Page(page),
            len,
            state,
        }
    }

    #[test]
    fn pages_that_continue_each_other_are_one_extent() {
        let mut index = FileIndex::new();
        for offset in [3, 1, 0, 2] {
            index.insert(extent(offset, 100 + offset, 1, PageState::Written));
        }
        assert_eq!(
            index.iter().collect::<Vec<_>>(),
            [extent(0, 100, 4, PageState::Written)]
        );
        assert!(matches!(index.0, Shape::Many(_)));
        index.insert(extent(4, 104, 1, PageState::Unwritten));
        index.insert(extent(5, 7, 1, PageState::Unwritten));
        assert_eq!((index.extents(), index.pages(), index.end()), (3, 6, 6));
    }

    #[test]
    fn an_extent_of_a_whole_region_fits() {
        let index = FileIndex::from_sorted([
            extent(OFFSET_MAX - LEN_MAX, 1 << 33, LEN_MAX, PageState::Written),
            extent(OFFSET_MAX, (1 << 33) + LEN_MAX, 1, PageState::Written),
        ]);
        // They continue each other, but would be too long for one.
        assert_eq!(index.extents(), 2);
        assert_eq!(
            index.find(OFFSET_MAX - 1).map(|found| found.page.0),
            Some((1 << 33) + LEN_MAX - 1)
        );
    }

    /// Operation that is tried: on the index and on an array of pages.
    #[derive(Clone, Debug)]
    enum Step {
        Replace(u64, u64, u64, PageState),
        Punch(u64, u64),
        Write(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let state = prop_oneof![Just(PageState::Written), Just(PageState::Unwritten)];
        let step = prop_oneof![
            3 => (0..40u64, 1..9u64, 1..60u64, state).prop_map(|(at, len, page, state)| Step::Replace(at, len, page, state)),
            2 => (0..48u64, 0..12u64).prop_map(|(at, len)| Step::Punch(at, len)),
            1 => (0..48u64, 0..12u64).prop_map(|(at, len)| Step::Write(at, len)),
        ];
        prop::collection::vec(step, 0..40)
    }

    proptest! {
        #[test]
        fn an_index_answers_as_an_array_of_pages_does(steps in steps()) {
            let mut array = [None; 64];
            let mut index = FileIndex::new();
            for step in steps {
                match step {
                    Step::Replace(at, len, page, state) => {
                        let removed = index.replace(extent(at, page, len, state));
                        let was = array[at as usize..(at + len) as usize].iter().flatten().count();
                        prop_assert_eq!(removed.iter().map(|r| r.len).sum::<u64>(), was as u64);
                        for k in 0..len {
                            array[(at + k) as usize] = Some((page + k, state));
                        }
                    }
                    Step::Punch(at, len) => {
                        let expected: Vec<_> = (at..at + len).filter_map(|k| array[k as usize].take().map(|p| (k, p))).collect();
                        let removed = index.punch(at, at + len);
                        let got: Vec<_> = removed.iter().flat_map(|r| (0..r.len).map(move |k| (r.offset + k, (r.page.0 + k, r.state)))).collect();
                        prop_assert_eq!(got, expected);
                    }
                    Step::Write(at, len) => {
                        index.set_written(at, at + len);
                        for (_, state) in array[at as usize..(at + len) as usize].iter_mut().flatten() {
                            *state = PageState::Written;
                        }
                    }
                }
                let all: Vec<_> = index.iter().collect();
                prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].offset && !pair[0].continues(&pair[1])));
                prop_assert_eq!(index.pages(), array.iter().flatten().count() as u64);
                prop_assert_eq!(index.extents(), all.len());
                prop_assert_eq!(index.end(), array.iter().rposition(Option::is_some).map_or(0, |at| at as u64 + 1));
                for (k, page) in array.iter().enumerate() {
                    let found = index.find(k as u64).map(|found| (found.page.0, found.state));
                    prop_assert_eq!(found, *page);
                }
                for (from, to) in [(0, 64), (5, 20), (7, 7), (30, 31)] {
                    let got: Vec<_> = index.range(from, to).flat_map(|r| (0..r.len).map(move |k| (r.offset + k, (r.page.0 + k, r.state)))).collect();
                    let expected: Vec<_> = (from..to).filter_map(|k| array[k as usize].map(|p| (k, p))).collect();
                    prop_assert_eq!(got, expected);
                }
                let again = FileIndex::from_sorted(index.iter());
                prop_assert_eq!(again.iter().collect::<Vec<_>>(), all);
            }
        }
    }
}
