//! Recovery follows the logs: the delta log, page by page, and then the data log.
//!
//! Both are numbered without gaps. A log ends at the first number that is in none of its possible
//! places: the next page of an open block, or the first page of an announced one. `past` decides whether
//! that is the end or damage.

use crate::blocks::BlockUse;
use crate::checkpoint::{DeltaPosition, NUMBERS};
use crate::error::{FtlError, Result};
use crate::ftl::{DELTA, Ftl, HOST, MOVED};
use crate::limits::{Widths, delta_head_words, pair_capacity};
use crate::map::corrupt_at;
use crate::past::{Claim, Ends, Lies};
use crate::platform::{Page, Platform, Queue, Word};
use crate::shape::{NONE, Shape, TRIMMED};
use crate::tag::{self, Tag, Tagged};
use alloc::vec::Vec;

/// State of the data streams by the last committed delta page.
pub(crate) struct Frontier<W> {
    /// The newest data page that delta pages cover.
    pub(crate) number: W,
    pub(crate) incarnation: W,
    /// Places where the next data page may be.
    pub(crate) heads: Vec<Place<W>>,
    pub(crate) next: [[W; 2]; 2],
}

/// A place where the next page of a stream may be.
#[derive(Clone, Copy)]
pub(crate) struct Place<W> {
    pub(crate) stream: usize,
    pub(crate) block: W,
    pub(crate) page: W,
    pub(crate) announced: bool,
}

/// A possible place of the next page, and its content.
pub(crate) struct Head<P: Platform> {
    pub(crate) place: Place<P::W>,
    pub(crate) found: Option<Tagged<P>>,
    /// Nothing was programmed here.
    pub(crate) erased: bool,
    /// Claim of a page that is not whole.
    pub(crate) damaged: Option<Claim<P::W>>,
}

impl<P: Platform> Head<P> {
    pub(crate) fn at(&self, shape: &Shape) -> P::W {
        shape.page_at(self.place.block, self.place.page)
    }
}

/// Possible places of the next delta page: blocks and pages.
pub(crate) type DeltaPlaces<W> = [(W, W); 3];

/// Position up to which the delta log has been followed.
pub(crate) struct DeltaLog<P: Platform> {
    /// Possible places of the next page.
    pub(crate) places: DeltaPlaces<P::W>,
    /// The blocks that the last page announces.
    pub(crate) next: [P::W; 2],
    /// The changes of the pages after the last commit.
    pub(crate) pairs: P::Q,
    pub(crate) frontier: Option<Frontier<P::W>>,
}

/// The next page of an open block, or the first of an announced one.
fn next_places<W: Word>(block: W, page: W, next: [W; 2]) -> [(W, W); 3] {
    [(block, page), (next[0], W::of(0)), (next[1], W::of(0))]
}

/// A page, and the block and index where it lies.
type Lying<P> = (Tagged<P>, <P as Platform>::W, <P as Platform>::W);

impl<P: Platform, Y> Ftl<P, Y> {
    /// Follows both logs from where a root says. `counted`: the last page of the delta run that its block
    /// table goes with: changes from there on are counted. `root`: a damaged page that may be a newer one. Leaves
    /// the announced blocks in the delta stream.
    pub(crate) fn follow_logs(
        &mut self,
        from: &DeltaPosition<P::W>,
        counted: P::W,
        root: Option<P::W>,
    ) -> Result<Ends<P>, P::Error> {
        self.delta = from.number;
        let mut log = DeltaLog {
            places: next_places(from.block, from.page, from.next),
            next: from.next,
            pairs: P::Q::default(),
            frontier: None,
        };
        while self.follow_delta(&mut log, counted)? {}
        self.streams[DELTA].next = log.next;
        // The run that the table goes with was durable before the root.
        let short = self.delta <= counted && !self.faults.trust_the_end;
        let Some(frontier) = log.frontier.filter(|_| !short) else {
            let at = self.broken(&log.places)?;
            return Err(self.corrupt("delta page", at));
        };
        let heads = self.follow_data(&frontier)?;
        Ok(Ends {
            frontier,
            deltas: log.places,
            heads,
            root,
        })
    }

    /// Takes in the delta page of the next number; says whether there was one. The pages of a run
    /// are applied with the last of them, which commits it.
    pub(crate) fn follow_delta(
        &mut self,
        log: &mut DeltaLog<P>,
        counted: P::W,
    ) -> Result<bool, P::Error> {
        let n = P::W::of;
        let Some(((tag, page), block, index)) = self.find_delta(log.places)? else {
            return Ok(false);
        };
        self.blocks.set(block, BlockUse::Delta);
        let at = self.shape.page_at(block, index);
        log.places = next_places(block, index + n(1), tag.next);
        log.next = tag.next;
        if tag.count > n(pair_capacity(&self.shape)) {
            return Err(self.corrupt("delta page", at));
        }
        let head = n(delta_head_words(&self.shape));
        P::each("pairs of a page", tag.count, |i| {
            log.pairs.push(page.word(head + i));
            Ok::<_, FtlError<P::Error>>(())
        })?;
        if tag.commits() {
            P::each("pairs of a run", log.pairs.length(), |i| {
                self.apply(log.pairs.get(i), self.delta > counted, at)
            })?;
            log.pairs.truncate(n(0));
            log.frontier = Some(self.read_frontier(&page, at)?);
        }
        self.delta = self.delta + n(1);
        Ok(true)
    }

    /// The next delta page, and the block and index where it lies, the first place that has it.
    pub(crate) fn find_delta(
        &mut self,
        places: DeltaPlaces<P::W>,
    ) -> Result<Option<Lying<P>>, P::Error> {
        let n = P::W::of;
        for (block, index) in places {
            if block < n(self.shape.blocks) && index < n(self.shape.pages) {
                let found = self.fetch(self.shape.page_at(block, index))?;
                if let Some((tag, page)) = found
                    && tag.is(tag::DELTA)
                    && tag.number == self.delta
                {
                    return Ok(Some(((tag, page), block, index)));
                }
            }
        }
        Ok(None)
    }

    pub(crate) fn read_frontier(&self, page: &P::P, at: P::W) -> Result<Frontier<P::W>, P::Error> {
        let n = P::W::of;
        let widths = Widths::of(&self.shape);
        let mut frontier = Frontier {
            number: page.word(n(0)),
            incarnation: page.word(n(1)),
            heads: Vec::new(),
            next: [[n(NONE); 2]; 2],
        };
        if frontier.number >= n(NUMBERS) || frontier.incarnation >= n(NONE) {
            return Err(self.corrupt("delta page", at));
        }
        let mut word = 3;
        for (stream, width) in [(HOST, widths.host), (MOVED, widths.moved)] {
            let next = page.word(n(word));
            frontier.next[stream] = [next.low(), next.high()];
            let count = page.word(n(word + 1));
            if count > n(width) {
                return Err(self.corrupt("delta page", at));
            }
            for i in 0..width {
                let open = page.word(n(word + 2 + i));
                if n(i) < count {
                    frontier.heads.push(Place {
                        stream,
                        block: open.high(),
                        page: open.low(),
                        announced: false,
                    });
                }
            }
            word += 2 + width;
        }
        Ok(frontier)
    }

    /// Applies the data pages after the frontier, up to the last commit before the log's end.
    /// Their changes wait in `pairs`. Returns the places where the log may go on.
    fn follow_data(&mut self, frontier: &Frontier<P::W>) -> Result<Vec<Head<P>>, P::Error> {
        let n = P::W::of;
        self.number = frontier.number;
        self.incarnation = frontier.incarnation;
        let mut heads = Vec::new();
        for &place in &frontier.heads {
            heads.push(self.head(place)?);
        }
        for stream in [HOST, MOVED] {
            self.announce(&mut heads, stream, frontier.next[stream])?;
        }
        let mut changes = P::Q::default();
        let mut expected = frontier.number + n(1);
        let mut skipped = 0;
        loop {
            if self.follow_one(&mut heads, &mut changes, expected)? {
                skipped = 0;
            } else if self.faults.skip_gap && skipped < 4 {
                skipped += 1;
            } else {
                break;
            }
            expected = expected + n(1);
        }
        Ok(heads)
    }

    /// Takes in the data page of this number, if it is at one of the heads; says whether it was.
    pub(crate) fn follow_one(
        &mut self,
        heads: &mut Vec<Head<P>>,
        changes: &mut P::Q,
        expected: P::W,
    ) -> Result<bool, P::Error> {
        let n = P::W::of;
        let here = heads
            .iter()
            .position(|head| (head.found.as_ref()).is_some_and(|(tag, _)| tag.number == expected));
        let Some(here) = here else {
            return Ok(false);
        };
        let mut head = heads.swap_remove(here);
        let Some((tag, page)) = head.found.take() else {
            return Ok(false);
        };
        let Place {
            block,
            page: index,
            stream,
            ..
        } = head.place;
        let at = self.shape.page_at(block, index);
        self.collect_changes(&tag, &page, at, changes)?;
        // Until a delta run has this page's changes, its block stays, with valid sectors or without.
        if self.blocks.is(block, BlockUse::Erasable) && !self.faults.free_tail {
            self.blocks.set(block, BlockUse::Invalid);
        }
        head.place.announced = false;
        head.place.page = index + n(1);
        heads.push(self.head(head.place)?);
        self.announce(heads, stream, tag.next)?;
        if tag.commits() || self.faults.accept_uncommitted {
            P::each("changes of a flush", changes.length(), |i| {
                self.apply(changes.get(i), true, at)?;
                self.pairs.push(changes.get(i));
                Ok(())
            })?;
            changes.truncate(n(0));
            self.number = expected;
        }
        Ok(true)
    }

    pub(crate) fn collect_changes(
        &self,
        tag: &Tag<P::W>,
        page: &P::P,
        at: P::W,
        changes: &mut P::Q,
    ) -> Result<(), P::Error> {
        let n = P::W::of;
        if tag.is(tag::TRIM) {
            if tag.count > n(self.shape.page_words) {
                return Err(self.corrupt("page of trims", at));
            }
            return P::each("ranges of a page", tag.count, |i| {
                let range = page.word(i);
                // As a pair's lower half it has to have room beside the mark.
                if range.low() >= n(TRIMMED) {
                    return Err(self.corrupt("page of trims", at));
                }
                changes.push(P::W::pack(range.high(), n(TRIMMED) + range.low()));
                Ok(())
            });
        }
        for slot in 0..self.shape.sectors {
            let sector = self.listed(page, tag, slot);
            if sector != n(NONE) {
                changes.push(P::W::pack(sector, self.shape.place(at, slot)));
            }
        }
        Ok(())
    }

    /// Replaces the announced blocks of a stream.
    pub(crate) fn announce(
        &mut self,
        heads: &mut Vec<Head<P>>,
        stream: usize,
        next: [P::W; 2],
    ) -> Result<(), P::Error> {
        let n = P::W::of;
        let known = |heads: &Vec<Head<P>>, block: P::W| {
            heads
                .iter()
                .any(|h| h.place.stream == stream && h.place.block == block && h.place.page == n(0))
        };
        heads.retain(|h| {
            !(h.place.announced && h.place.stream == stream) || next.contains(&h.place.block)
        });
        for block in next {
            if !known(heads, block) {
                heads.push(self.head(Place {
                    stream,
                    block,
                    page: n(0),
                    announced: true,
                })?);
            }
        }
        Ok(())
    }

    pub(crate) fn head(&mut self, place: Place<P::W>) -> Result<Head<P>, P::Error> {
        let n = P::W::of;
        let inside = place.block < n(self.shape.blocks) && place.page < n(self.shape.data_pages());
        let mut head = Head {
            place,
            found: None,
            erased: false,
            damaged: None,
        };
        if inside {
            let incarnation = self.incarnation;
            match self.look_at(self.shape.page_at(place.block, place.page))? {
                Lies::Whole((tag, page)) if tag.is_data() && tag.incarnation == incarnation => {
                    head.found = Some((tag, page));
                }
                Lies::Whole(_) => {}
                Lies::Erased => head.erased = true,
                Lies::Damaged(claim) => head.damaged = Some(claim),
            }
        }
        Ok(head)
    }

    /// A page that is whole, with its tag.
    pub(crate) fn fetch(&mut self, at: P::W) -> Result<Option<Tagged<P>>, P::Error> {
        Ok(match self.look_at(at)? {
            Lies::Whole(tagged) => Some(tagged),
            Lies::Erased | Lies::Damaged(_) => None,
        })
    }

    /// Applies a change that page `at` holds.
    pub(crate) fn apply(&mut self, pair: P::W, counted: bool, at: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        let (sector, place) = (pair.high(), pair.low());
        let sectors = n(self.limits.sectors);
        let shape = self.shape;
        let wrong = || corrupt_at(&shape, "change of the map", at);
        if sector >= sectors {
            return Err(wrong());
        }
        if place >= n(TRIMMED) {
            let count = place - n(TRIMMED);
            if count > sectors - sector {
                return Err(wrong());
            }
            return P::each("trimmed sectors", count, |i| {
                self.point(sector + i, n(NONE), counted).map(|_| ())
            });
        }
        let index = shape.index_of_page(shape.page_of(place));
        if shape.block_of(place) >= n(shape.blocks)
            || index >= n(shape.data_pages())
            || shape.slot_of(place) >= n(shape.sectors)
        {
            return Err(wrong());
        }
        self.point(sector, place, counted).map(|_| ())
    }
}
