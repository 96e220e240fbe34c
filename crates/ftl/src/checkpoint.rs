//! Full checkpoints, in slices: after each flush a few map pages are written, then the tables,
//! then a root, and no flush of its own is spent on any of it.
//!
//! | phase | after a flush … | why that is safe |
//! |---|---|---|
//! | idle | enough delta pages: note the delta log's position, begin | |
//! | maps | write some map pages, as committed now | replaying from the noted position over newer map pages ends at the same map: the last change of a sector wins |
//! | named | all map pages durable: write a delta run, the directory, the block table | the counts in the table are those after this run |
//! | rooted | all that durable: write the root | an older root stays valid until this one is whole |
//! | idle | the root durable: delta and map blocks older than the checkpoint are erasable | |
//!
//! Roots lie in the *anchors*, the first blocks, page after page; the next anchor is erased when
//! one is full, failed, or may have been touched by a crash. The newest root is never in it.

use crate::blocks::BlockUse;
use crate::error::{FtlError, Result};
use crate::ftl::{DELTA, Ftl, MAPS};
pub(crate) use crate::ftl::{DeltaPosition, Phase};
use crate::limits::{ANCHORS, pair_capacity};
use crate::platform::{Erase, Page, Platform, Queue, Table, Word};
use crate::policy::Policy;
use crate::shape::NONE;
use crate::tag::{self, Tag};

/// Version of everything in flash.
pub(crate) const VERSION: u64 = 2;
/// Value in a root instead of the version: there is no disk yet, or no more.
pub(crate) const VACANT: u64 = 0;
/// Roots are sealed with this number: a reader of one does not know the volume's yet.
pub(crate) const ROOT_SEAL: u64 = 0x7374_6561_6466_6173;
/// Words of a root before the places of directory and tables.
pub(crate) const ROOT_WORDS: u64 = 12;
/// Set in the block table for a block in which a program failed.
pub(crate) const FAILING: u64 = 1 << 31;
/// Pages, delta pages and roots have numbers below this, for ever.
pub(crate) const NUMBERS: u64 = 1 << 62;
/// Checkpoints that may be tried one after the other, while blocks go on failing.
const MENDS: u64 = 16;
/// Map pages after one flush, while there is time; more where the delta region is small for the map.
const SLICE: u64 = 4;
/// Delta pages that a mount may have to follow after a graceful end: those of some earlier mounts.
const FEW: u64 = 4;

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// The next step of the checkpoint. The current map is the committed one.
    pub(crate) fn advance_checkpoint(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        match self.checkpoint.phase {
            Phase::Idle => {
                let since = self.delta - self.checkpoint.durable_from;
                if since >= n(self.limits.delta_pages) {
                    self.begin_checkpoint();
                }
                Ok(())
            }
            Phase::Maps if self.checkpoint.written < n(self.limits.map_pages) => {
                self.write_maps(self.slice())
            }
            Phase::Maps => {
                self.write_tables()?;
                if self.faults.root_early {
                    self.write_root()?;
                    self.checkpoint.phase = Phase::Rooted;
                }
                if self.faults.free_old_checkpoint {
                    self.release();
                }
                Ok(())
            }
            Phase::Named => {
                self.write_root()?;
                self.checkpoint.phase = Phase::Rooted;
                Ok(())
            }
            Phase::Rooted => {
                self.release();
                self.checkpoint.phase = Phase::Idle;
                self.stats.checkpoints += 1;
                Ok(())
            }
        }
    }

    /// A whole checkpoint at once: when a disk is made, when a program failed, and when crashes
    /// have left many delta blocks. Nothing is uncommitted.
    pub(crate) fn checkpoint_whole(&mut self) -> Result<(), P::Error> {
        for _ in 0..MENDS {
            if self.checkpoint_now()? {
                return Ok(());
            }
        }
        Err(FtlError::WornOut)
    }

    /// Tries a whole checkpoint; says whether it has its root. It gets none if a page of its delta run
    /// had to go to another place: a mount that begins with that root might not find it there.
    pub(crate) fn checkpoint_now(&mut self) -> Result<bool, P::Error> {
        self.checkpoint_from(0)
    }

    /// The same without the first `clean` map pages: these are the same in flash and in memory.
    pub(crate) fn checkpoint_from(&mut self, clean: u64) -> Result<bool, P::Error> {
        self.begin_checkpoint();
        self.checkpoint.written = P::W::of(clean);
        self.checkpoint_rest()
    }

    /// Brings a checkpoint under way, if there is one, to its end. Its tables and root are written again if they were.
    /// Without a root of its own (see `checkpoint_now`) it is for the next one to replace.
    pub(crate) fn finish_checkpoint(&mut self) -> Result<(), P::Error> {
        if self.checkpoint.phase != Phase::Idle {
            self.checkpoint_rest()?;
        }
        Ok(())
    }

    /// All that is left of a checkpoint.
    fn checkpoint_rest(&mut self) -> Result<bool, P::Error> {
        P::part(self, "all maps", |ftl| ftl.write_maps(ftl.limits.map_pages))?;
        self.sync()?;
        P::part(self, "tables", Self::write_tables)?;
        if self.sync()? && !self.faults.root_astray {
            return Ok(false);
        }
        P::part(self, "root", Self::write_root)?;
        self.sync()?;
        self.release();
        self.checkpoint.phase = Phase::Idle;
        self.stats.checkpoints += 1;
        Ok(true)
    }

    pub(crate) fn begin_checkpoint(&mut self) {
        let n = P::W::of;
        let stream = &self.streams[DELTA];
        let (block, page) = match stream.open.first() {
            Some(cursor) => (cursor.block, cursor.page),
            None => (n(NONE), n(0)),
        };
        self.checkpoint.from = DeltaPosition {
            number: self.delta,
            block,
            page,
            next: stream.next,
        };
        self.checkpoint.cycle = self.checkpoint.cycle + n(1);
        self.checkpoint.written = n(0);
        self.checkpoint.phase = Phase::Maps;
    }

    /// Whether a checkpoint would spare the next mount more than a few pages.
    pub fn is_far_from_checkpoint(&self) -> bool {
        let n = P::W::of;
        self.delta - self.checkpoint.durable_from > n(FEW)
            || self.pairs.length() >= n(pair_capacity(&self.shape))
    }

    /// Whether the newest root is complete: no change waits, and no delta page comes after the root's position.
    pub(crate) fn is_at_rest(&self) -> bool {
        let n = P::W::of;
        let newest = self.delta == self.checkpoint.counted + n(1);
        !self.dirty && self.pairs.length() == n(0) && self.checkpoint.phase == Phase::Idle && newest
    }

    /// Number of map pages to write now: in step with the changes, done after half as many
    /// delta pages as there are between checkpoints; at once if that was missed.
    fn slice(&self) -> u64 {
        let limits = &self.limits;
        let written = self.checkpoint.written.value();
        let since = (self.delta - self.checkpoint.from.number).value();
        if since >= limits.delta_pages {
            return limits.map_pages;
        }
        let capacity = pair_capacity(&self.shape);
        let pairs = since * capacity + self.pairs.length().value();
        let due = limits.map_pages * pairs / (limits.delta_pages * capacity / 2).max(1);
        let most = SLICE.max(2 * limits.map_pages / limits.delta_pages);
        (due + 1).saturating_sub(written).min(most)
    }

    pub(crate) fn write_maps(&mut self, count: u64) -> Result<(), P::Error> {
        let n = P::W::of;
        let left = n(self.limits.map_pages) - self.checkpoint.written;
        let count = if n(count) < left { n(count) } else { left };
        P::each("map pages", count, |_| {
            let index = self.checkpoint.written;
            if self.loaded.get(index) == n(0) {
                self.load(index)?;
            }
            let mut page = self.platform.blank();
            let first = index << self.shape.entry_bits();
            let words = n(1 << (self.shape.entry_bits() - 1));
            P::each("entries of a map page", words, |word| {
                let entry = first + (word << 1);
                let pair = P::W::pack(self.map.get(entry + n(1)), self.map.get(entry));
                page.set_word(word, pair);
                Ok::<_, FtlError<P::Error>>(())
            })?;
            let at = self.append_map(page, tag::MAP, index, n(0))?;
            self.directory.set(index, at);
            self.checkpoint.written = index + n(1);
            Ok(())
        })
    }

    fn append_map(
        &mut self,
        page: P::P,
        kind: u64,
        number: P::W,
        count: P::W,
    ) -> Result<P::W, P::Error> {
        self.stats.map_pages += 1;
        let tag = self.tag(kind, number, count);
        self.append(MAPS, page, tag, &[])
    }

    /// A delta run, and the directory and the block table as they are after it.
    fn write_tables(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        self.write_deltas()?;
        self.checkpoint.counted = self.delta - n(1);
        self.checkpoint.directories.truncate(n(0));
        self.checkpoint.tables.truncate(n(0));
        let words = self.shape.page_words;
        for index in 0..self.limits.map_pages.div_ceil(words * 2) {
            let mut page = self.platform.blank();
            for word in 0..words {
                let half = |parity: u64| {
                    let at = (index * words + word) * 2 + parity;
                    if at < self.limits.map_pages {
                        self.directory.get(n(at))
                    } else {
                        n(NONE)
                    }
                };
                let pair = P::W::pack(half(1), half(0));
                page.set_word(n(word), pair);
            }
            let at = self.append_map(page, tag::DIRECTORY, n(index), n(0))?;
            self.checkpoint.directories.push(at);
        }
        for index in 0..self.shape.blocks.div_ceil(words) {
            let mut page = self.platform.blank();
            for word in 0..words.min(self.shape.blocks - index * words) {
                page.set_word(n(word), self.table_entry(n(index * words + word)));
            }
            let at = self.append_map(page, tag::TABLE, n(index), n(0))?;
            self.checkpoint.tables.push(at);
        }
        self.checkpoint.phase = Phase::Named;
        Ok(())
    }

    /// Entry of a block in the block table.
    pub(crate) fn table_entry(&self, block: P::W) -> P::W {
        let mut valid = self.blocks.valid.get(block);
        if self.blocks.is_failing(block) {
            valid = valid + P::W::of(FAILING);
        }
        P::W::pack(valid, self.blocks.erases.get(block))
    }

    /// A page of the checkpoint went to another place.
    pub(crate) fn checkpoint_moved(&mut self, tag: &Tag<P::W>, old: P::W, new: P::W) {
        if tag.is(tag::MAP) {
            if self.directory.get(tag.number) == old {
                self.directory.set(tag.number, new);
            }
            return;
        }
        let list = if tag.is(tag::DIRECTORY) {
            &mut self.checkpoint.directories
        } else {
            &mut self.checkpoint.tables
        };
        if tag.number < list.length() && list.get(tag.number) == old {
            list.set(tag.number, new);
        }
    }

    pub(crate) fn root_failed(&mut self) -> Result<(), P::Error> {
        self.checkpoint.anchor_page = P::W::of(self.shape.pages);
        self.write_root()
    }

    pub(crate) fn write_root(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let pack = P::W::pack;
        if self.checkpoint.anchor_page >= n(self.shape.pages) {
            self.next_anchor()?;
        }
        self.checkpoint.root = self.checkpoint.root + n(1);
        let (shape, c) = (self.shape, &self.checkpoint);
        let head = [
            n(if c.vacant { VACANT } else { VERSION }),
            self.volume,
            pack(n(shape.blocks), n(shape.pages)),
            pack(n(shape.sectors), n(shape.page_words)),
            pack(n(shape.spare_words), n(shape.dies)),
            n(self.limits.sectors),
            pack(n(self.limits.delta_pages), n(self.limits.epoch)),
            c.from.number,
            pack(c.from.block, c.from.page),
            pack(c.from.next[1], c.from.next[0]),
            c.counted,
            pack(c.directories.length(), c.tables.length()),
        ];
        let mut page = self.platform.blank();
        for (at, word) in head.into_iter().enumerate() {
            page.set_word(n(at as u64), word);
        }
        let mut at = 0;
        for list in [&c.directories, &c.tables] {
            for i in 0..list.length().value() {
                let word = n(ROOT_WORDS + at / 2);
                let pair = tag::with_half(page.word(word), at, list.get(n(i)));
                page.set_word(word, pair);
                at += 1;
            }
        }
        let tag = self.tag(tag::ROOT, c.root, n(0));
        tag.write(&shape, &mut page);
        let place = shape.page_at(c.anchor, c.anchor_page);
        page.seal(n(ROOT_SEAL), place);
        self.checkpoint.anchor_page = self.checkpoint.anchor_page + n(1);
        self.stats.map_pages += 1;
        (self.platform.program(place, page, false)).map_err(FtlError::Flash)
    }

    /// Erases the next anchor that is not bad; the durable root is in another one, however many have failed since.
    fn next_anchor(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let newest = self.checkpoint.anchor;
        for step in 1..ANCHORS {
            let sum = newest.value() + step;
            let anchor = n(sum % ANCHORS);
            if self.blocks.is_failing(anchor) || anchor == self.checkpoint.durable_anchor {
                continue;
            }
            self.platform.erase(anchor).map_err(FtlError::Flash)?;
            let state = (self.platform.erased(anchor, true)).map_err(FtlError::Flash)?;
            if state == Erase::Done {
                let erases = self.blocks.erases.get(anchor);
                self.blocks.erases.set(anchor, erases + n(1));
                self.checkpoint.anchor = anchor;
                self.checkpoint.anchor_page = n(0);
                return Ok(());
            }
            self.blocks.failing.set(anchor, n(1));
        }
        Err(FtlError::WornOut)
    }

    /// The root is durable: the pages of older roots are not needed any more.
    fn release(&mut self) {
        let _ = P::each("delta and map blocks", self.blocks.count, |block| {
            self.release_one(block);
            Ok::<_, core::convert::Infallible>(())
        });
        self.checkpoint.durable_from = self.checkpoint.from.number;
        self.checkpoint.durable_anchor = self.checkpoint.anchor;
    }

    pub(crate) fn release_one(&mut self, block: P::W) {
        let meta = self.blocks.is(block, BlockUse::Delta) || self.blocks.is(block, BlockUse::Map);
        if meta && self.blocks.ages.get(block) < self.checkpoint.cycle {
            self.meta_used = self.meta_used - P::W::of(1);
            if self.blocks.is_failing(block) {
                self.blocks.set(block, BlockUse::Bad);
            } else {
                self.blocks.set(block, BlockUse::Erasable);
            }
        }
    }
}
