//! Looks past the end of the logs that recovery found. A log ends at the first page that is missing. A crash
//! leaves such an end, and so does a medium that rots. Later pages show which of the two it is.
//!
//! **What proves damage.** The state that recovery found ends with a commit and an incarnation.
//!
//! * A page that names a newer commit as durable: it was, and no mount returns to an older state.
//! * A data page of a later incarnation: none is programmed before the delta run that begins the incarnation
//!   is durable.
//! * A root whose block table goes with a missing delta run: the run was durable before the root.
//! * An erased block in which sectors of that state should lie: it was erased after a newer commit.
//!
//! Then the mount fails before it has changed anything, and names the damaged page. Without such a
//! proof the missing page belongs to the newest flush, and counts as torn.
//!
//! **Where the proof lies.** Suppose that one page is damaged.
//!
//! * A data page after the newest delta run. No block with data pages after that run is settled, so all
//!   others are there: in the blocks where the log goes on, and in those that pages found there
//!   announce. Each page announces two blocks, so one missing page breaks no chain. These blocks are always
//!   looked at, each up to two erased pages in a row: after a clean end, two reads for each. If the page is of the newest
//!   flush, blocks that this flush emptied may be erased, and nothing else says so.
//! * A delta page or a root. The blocks that it led to may be anywhere, and those of the state before may be erased.
//!
//! So when a damaged page lies where a log ends, or after the roots, the first page of each block
//! is read, and the whole block if it was opened after the delta run that recovery ended with.
//! A crash in the middle of such a page costs the next mount these reads, too.

use crate::error::{FtlError, Result};
use crate::follow::{DeltaPlaces, Frontier, Head};
use crate::ftl::Ftl;
use crate::limits::ANCHORS;
use crate::platform::{Page, Platform, Queue, Table, Word};
use crate::tag::{self, Tag, Tagged};
use alloc::vec::Vec;

/// Content of a page.
pub(crate) enum Lies<P: Platform> {
    /// Nothing since the last erase.
    Erased,
    /// It cannot be read, is torn, rotted, or of another volume.
    Damaged(Claim<P::W>),
    Whole(Tagged<P>),
}

/// The claim of a page that is not whole. Garbage claims nothing; a page in which one bit rotted, or that cannot be
/// read at all, has the claim of the whole page.
#[derive(Clone, Copy)]
pub(crate) enum Claim<W> {
    Unreadable,
    /// Its tag, and whether it has the layer's mark.
    Tag(Tag<W>, bool),
}

impl<W: Word> Claim<W> {
    /// Whether the page may be this, by its first word or its number.
    fn may_be(&self, kind: impl Fn(&Tag<W>) -> bool, number: impl Fn(W) -> bool) -> bool {
        match self {
            Claim::Unreadable => true,
            Claim::Tag(tag, marked) => (*marked && kind(tag)) || number(tag.number),
        }
    }
}

/// A page that may have been a later delta page.
#[derive(Clone, Copy)]
pub(crate) struct Suspect<W> {
    pub(crate) at: W,
    /// It is of the mount that wrote the page before it, and no later one is there.
    torn: bool,
}

/// Data pages of an epoch have numbers that are no farther from its commit than this.
const NEAR: u64 = 1 << 32;

/// Result of the mount, and the places where it found nothing more.
pub(crate) struct Ends<P: Platform> {
    pub(crate) frontier: Frontier<P::W>,
    /// Possible places of the next delta page.
    pub(crate) deltas: DeltaPlaces<P::W>,
    pub(crate) heads: Vec<Head<P>>,
    /// A damaged page that may have been a newer root.
    pub(crate) root: Option<P::W>,
}

/// Blocks to look at, each once.
struct Walk<P: Platform> {
    blocks: P::Q,
    seen: P::T,
}

impl<P: Platform> Walk<P> {
    /// Notes this block from this page on, unless it was noted before.
    fn note(&mut self, count: u64, block: P::W, page: P::W) {
        let n = P::W::of;
        if block < n(count) && self.seen.get(block) == n(0) {
            self.seen.set(block, n(1));
            self.blocks.push(P::W::pack(block, page));
        }
    }
}

impl<P: Platform, Y> Ftl<P, Y> {
    /// Fails if more was durable than was found.
    pub(crate) fn look_past(&mut self, ends: &Ends<P>) -> Result<(), P::Error> {
        if self.faults.trust_the_end {
            return Ok(());
        }
        let data = self
            .next_data(&ends.heads)
            .map(|at| ("data page of a flush", at));
        let delta = self.past_deltas(&ends.deltas)?;
        // A torn one was written for the pairs that were found: they reach as far as it did.
        let said = self.pairs.length() >= P::W::of(self.limits.pairs);
        let harmless = delta.as_ref().is_none_or(|delta| delta.torn && said);
        let delta = delta.map(|found| ("delta page", found.at));
        let suspicious = data.is_some() || ends.root.is_some() || !harmless;
        let proof = self.past_heads(&ends.heads)?;
        if proof.is_none() && !(suspicious && self.past_all(&ends.frontier)?) {
            return Ok(());
        }
        // A log that an older root leads to may end with a page that a crash tore.
        let suspect = data.or(ends.root.map(|at| ("root", at))).or(delta);
        let proven = proof.map(|at| ("page before this one", at));
        let damaged = ends.heads.iter().find(|head| head.damaged.is_some());
        let damaged = damaged.map(|head| ("data page of a flush", head.at(&self.shape)));
        match suspect.or(damaged).or(proven) {
            Some((what, at)) => Err(self.corrupt(what, at)),
            None => Ok(()),
        }
    }

    /// A damaged page that says that it is the next one of the data log.
    fn next_data(&self, heads: &[Head<P>]) -> Option<P::W> {
        let kind = |tag: &Tag<P::W>| tag.is_data() && tag.incarnation == self.incarnation;
        let last = self.number + P::W::of(NEAR);
        let number = |number: P::W| number > self.number && number < last;
        let head = (heads.iter()).find(|head| head.damaged.is_some_and(|c| c.may_be(kind, number)));
        head.map(|head| head.at(&self.shape))
    }

    /// Whether a whole page says that more was durable than was found.
    pub(crate) fn proves_more(&self, tag: &Tag<P::W>) -> bool {
        let later = tag.is_data() && tag.incarnation > self.incarnation;
        tag.flushed > self.number || later
    }

    pub(crate) fn look_at(&mut self, at: P::W) -> Result<Lies<P>, P::Error> {
        let Some(page) = self.platform.fetch(at).map_err(FtlError::Flash)? else {
            return Ok(Lies::Damaged(Claim::Unreadable));
        };
        Ok(match Tag::read(&self.shape, self.volume, at, &page) {
            Some(tag) => Lies::Whole((tag, page)),
            None if page.is_blank() => Lies::Erased,
            None => Lies::Damaged(Claim::Tag(
                Tag::parse(&self.shape, &page),
                Tag::is_marked(&self.shape, &page),
            )),
        })
    }

    /// Looks at the pages of a block from this one on; `each` says whether to stop. Pages are programmed
    /// in order: two erased ones in a row, of which `erased` were seen before, end the block.
    pub(crate) fn look_through(
        &mut self,
        block: P::W,
        from: P::W,
        mut erased: u64,
        mut each: impl FnMut(&Self, P::W, &Lies<P>) -> bool,
    ) -> Result<bool, P::Error> {
        let n = P::W::of;
        let mut index = from;
        while index < n(self.shape.pages) && erased < 2 {
            let at = self.shape.page_at(block, index);
            let lies = self.look_at(at)?;
            erased = if matches!(lies, Lies::Erased) {
                erased + 1
            } else {
                0
            };
            if each(self, at, &lies) {
                return Ok(true);
            }
            index = index + n(1);
        }
        Ok(false)
    }

    /// The page in the blocks where the data log may go on that proves that more was durable.
    fn past_heads(&mut self, heads: &[Head<P>]) -> Result<Option<P::W>, P::Error> {
        let n = P::W::of;
        let count = self.shape.blocks;
        let mut walk = Walk::<P> {
            blocks: P::Q::default(),
            seen: P::T::filled(n(count), n(0)),
        };
        let mut proof = None;
        for head in heads {
            let place = &head.place;
            // A block that is full leads on in those that it announces.
            if place.page < n(self.shape.data_pages()) {
                walk.note(count, place.block, place.page);
            }
        }
        let mut next = n(0);
        while next < walk.blocks.length() && proof.is_none() {
            let entry = walk.blocks.get(next);
            next = next + n(1);
            let (block, page) = (entry.high(), entry.low());
            let head = (heads.iter()).find(|h| h.place.block == block && h.place.page == page);
            // Pages read before are not read again.
            let (from, erased) = match head {
                Some(head) if head.erased => (page + n(1), 1),
                _ => (page, 0),
            };
            self.look_through(block, from, erased, |ftl, at, lies| {
                let Lies::Whole((tag, _)) = lies else {
                    return false;
                };
                if ftl.proves_more(tag) {
                    proof = Some(at);
                }
                if tag.is_data() && tag.number > ftl.number {
                    for block in tag.next {
                        walk.note(count, block, n(0));
                    }
                }
                proof.is_some()
            })?;
        }
        Ok(proof)
    }

    /// A damaged page where the delta log may go on, or a place after which later delta pages lie. Crashes tear
    /// pages, too: of several, one that says that it is the next one.
    pub(crate) fn past_deltas(
        &mut self,
        places: &DeltaPlaces<P::W>,
    ) -> Result<Option<Suspect<P::W>>, P::Error> {
        let n = P::W::of;
        let (mut damaged, mut sure, mut later) = (None, false, None);
        for (place, &(block, page)) in places.iter().enumerate() {
            if block >= n(self.shape.blocks) {
                continue;
            }
            self.look_through(block, page, 0, |ftl, at, lies| {
                let delta = |tag: &Tag<P::W>| tag.is(tag::DELTA) && tag.number >= ftl.delta;
                match lies {
                    Lies::Damaged(claim) if !sure => {
                        sure = claim.may_be(delta, |number| number == ftl.delta);
                        if sure || damaged.is_none() {
                            damaged = Some((at, place));
                        }
                    }
                    Lies::Whole((tag, _)) if delta(tag) => {
                        later = later.or(Some(ftl.shape.page_at(block, page)));
                    }
                    _ => {}
                }
                false
            })?;
        }
        // Every mount begins in an announced block.
        let torn = later.is_none() && damaged.is_some_and(|(_, place)| place == 0);
        let at = damaged.map(|(at, _)| at).or(later);
        Ok(at.map(|at| Suspect { at, torn }))
    }

    /// Whether any page that was programmed after the frontier's run, or an erased block, proves that more was durable.
    fn past_all(&mut self, frontier: &Frontier<P::W>) -> Result<bool, P::Error> {
        let n = P::W::of;
        for block in ANCHORS..self.shape.blocks {
            let tag = match self.look_at(self.shape.page_at(n(block), n(0)))? {
                Lies::Whole((tag, _)) => tag,
                Lies::Erased if self.blocks.valid(n(block)) > n(0) => return Ok(true),
                Lies::Erased | Lies::Damaged(_) => continue,
            };
            // A block that was opened after the frontier's run was written.
            let newer = tag.flushed >= frontier.number;
            let proves = self.proves_more(&tag)
                || newer
                    && self.look_through(
                        n(block),
                        n(1),
                        0,
                        |ftl, _, lies| matches!(lies, Lies::Whole((tag, _)) if ftl.proves_more(tag)),
                    )?;
            if proves {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The damaged page among the places where the delta log must go on, or the first place that there is.
    pub(crate) fn broken(&mut self, places: &DeltaPlaces<P::W>) -> Result<P::W, P::Error> {
        if let Some(suspect) = self.past_deltas(places)? {
            return Ok(suspect.at);
        }
        let n = P::W::of;
        let inside = (places.iter())
            .find(|(block, page)| *block < n(self.shape.blocks) && *page < n(self.shape.pages));
        let root = (self.checkpoint.anchor, n(0));
        let &(block, page) = inside.unwrap_or(&root);
        Ok(self.shape.page_at(block, page))
    }
}
