//! Format and mount.
//!
//! A format first makes a root durable that says that there is no disk. This root is newer than all
//! others and not in the anchor of the newest: before it is durable, a crash leaves the old disk, and
//! after that no disk, until the new disk's first root is durable. Anchors whose erase fails keep
//! older roots only.
//!
//! A mount reads the newest root, its directory and block table, the delta log from the root's
//! position on, and then the data log up to its last commit. Map pages are read when a change or a
//! request needs them. So mount time grows with the changes since the last checkpoint, not with the
//! size of the disk. Before it changes anything, a mount looks past the end of the logs: see `past`.
//!
//! Then it begins an incarnation: fresh blocks for the data streams, and a delta run that records
//! the recovered state, and where the streams go on; one sync. Before that sync, only blocks that
//! nothing needs are erased and programmed, so a crash in a mount leaves the state that it found,
//! and the next mount does the same again.
//!
//! If both blocks that the delta log announces last are bad, no mount would find that run. Then its
//! stream has fresh blocks, too, and a whole checkpoint comes first: map pages, the run and the
//! tables, one sync, the root that leads to them, another sync. Only after that the run counts as
//! durable, and old metadata and the end of the data log may be erased. A crash before leaves the
//! old root and its logs, and the next mount does the same again; its incarnation has the same
//! number, which no data page has: none is programmed before. The time of such a mount, and only of
//! such a mount, grows with the map.

use crate::anchors::{Root, find_roots, no_root, vacant};
use crate::blocks::BlockUse;
use crate::checkpoint::{DeltaPosition, FAILING, NUMBERS, ROOT_WORDS, VACANT, VERSION};
use crate::error::{FtlError, Result};
use crate::ftl::{DELTA, Faults, Ftl, HOST, MAPS, MOVED, Options};
use crate::limits::{ANCHORS, Intervals, Limits, META_NEXT};
use crate::map::corrupt_at;
use crate::past::Lies;
use crate::platform::{Erase, Page, Platform, Queue, Table, Word};
use crate::policy::Policy;
use crate::shape::{NONE, Shape};
use crate::tag;
use alloc::vec::Vec;

/// Blocks erased at once when a mount begins.
const FIRST_STOCK: u64 = 8;

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// Makes a new, empty disk; the content of the memory is lost.
    ///
    /// # Errors
    /// [`FtlError::TooSmall`] before anything is changed; [`FtlError::WornOut`] if too many
    /// blocks are bad; [`FtlError::Flash`].
    pub fn format(
        platform: P,
        shape: Shape,
        policy: Y,
        options: Options,
    ) -> Result<Self, P::Error> {
        Ftl::format_with(platform, shape, policy, options, Faults::default())
    }

    /// A format with planted faults, for the harness's own tests.
    ///
    /// # Errors
    /// As for [`format`](Ftl::format).
    #[doc(hidden)]
    pub fn format_with(
        mut platform: P,
        shape: Shape,
        policy: Y,
        options: Options,
        faults: Faults,
    ) -> Result<Self, P::Error> {
        let n = P::W::of;
        let limits = Limits::derive(&shape, options.sectors, options.intervals())
            .map_err(FtlError::TooSmall)?;
        let old = find_roots(&mut platform, &shape, &faults)?.newest;
        let volume = n(options.volume);
        let mut ftl = Ftl::empty(platform, policy, shape, limits, volume, faults);
        ftl.classify()?;
        ftl.clear(old)?;
        ftl.begin_streams()?;
        for index in 0..limits.map_pages {
            ftl.loaded.set(n(index), n(1));
        }
        // A map page without a place says that no sector of it has one.
        if !ftl.checkpoint_from(limits.map_pages)? {
            ftl.checkpoint_whole()?;
        }
        ftl.blocks.durable_runs = ftl.runs;
        Ok(ftl)
    }

    /// No disk is here any more: a root says so, and older ones, of which `old` is the newest, are
    /// erased.
    pub(crate) fn clear(&mut self, old: Option<Root<P>>) -> Result<(), P::Error> {
        let n = P::W::of;
        if let Some((anchor, tag, _)) = old {
            self.checkpoint.root = tag.number;
            self.checkpoint.anchor = anchor;
            self.checkpoint.durable_anchor = anchor;
        }
        self.checkpoint.anchor_page = n(self.shape.pages);
        self.checkpoint.vacant = true;
        self.write_root()?;
        if !self.faults.vacant_unsynced {
            self.sync()?;
        }
        self.checkpoint.vacant = false;
        self.checkpoint.durable_anchor = self.checkpoint.anchor;
        let others = (0..ANCHORS).map(n);
        let others: Vec<P::W> = others
            .filter(|&anchor| {
                anchor != self.checkpoint.durable_anchor && !self.blocks.is_failing(anchor)
            })
            .collect();
        for &anchor in &others {
            self.platform.erase(anchor).map_err(FtlError::Flash)?;
        }
        for anchor in others {
            let state = (self.platform.erased(anchor, true)).map_err(FtlError::Flash)?;
            if state == Erase::Failed {
                self.blocks.failing.set(anchor, n(1));
                self.bad = self.bad + n(1);
            }
        }
        Ok(())
    }

    /// Returns to the last flush of the disk that the memory holds. If a page of the newest flush is damaged and no
    /// later page knows of that flush, it counts as torn by a crash: the disk returns to the flush before.
    ///
    /// # Errors
    /// [`FtlError::NotFormatted`], [`FtlError::OtherGeometry`], [`FtlError::OtherVersion`],
    /// [`FtlError::Corrupt`] if durable data is damaged, and then nothing was changed;
    /// [`FtlError::Flash`].
    pub fn mount(platform: P, shape: Shape, policy: Y) -> Result<Self, P::Error> {
        Ftl::mount_with(platform, shape, policy, Faults::default())
    }

    /// A mount with planted faults, for the harness's own tests.
    ///
    /// # Errors
    /// As for [`mount`](Ftl::mount).
    #[doc(hidden)]
    pub fn mount_with(
        mut platform: P,
        shape: Shape,
        policy: Y,
        faults: Faults,
    ) -> Result<Self, P::Error> {
        let n = P::W::of;
        let found = find_roots(&mut platform, &shape, &faults)?;
        let Some((anchor, tag, root)) = found.newest else {
            return Err(no_root(&mut platform, &shape, found.damaged)?);
        };
        let word = |at: u64| root.word(n(at));
        if word(0) == n(VACANT) {
            return Err(vacant(&mut platform, &shape, word(1), found.damaged)?);
        }
        check_root(&shape, &word)?;
        if word(7) >= n(NUMBERS) {
            return Err(corrupt_at(&shape, "root", shape.page_at(anchor, n(0))));
        }
        let intervals = Intervals {
            epoch: word(6).low().value(),
            region: Some(word(6).high().value()),
        };
        let limits =
            Limits::derive(&shape, word(5).value(), intervals).map_err(FtlError::TooSmall)?;
        let mut ftl = Ftl::empty(platform, policy, shape, limits, word(1), faults);
        ftl.checkpoint.root = tag.number;
        ftl.checkpoint.anchor = anchor;
        ftl.checkpoint.durable_anchor = anchor;
        // A crash may have touched the next page: the next root goes to another anchor.
        ftl.checkpoint.anchor_page = n(shape.pages);
        let place = word(8);
        let next = word(9);
        let from = DeltaPosition {
            number: word(7),
            block: place.high(),
            page: place.low(),
            next: [next.low(), next.high()],
        };
        ftl.recovering = true;
        if let Err(error) = ftl.follow_root(&root, &from, word(10), found.damaged) {
            return Err(ftl.blame(error, found.damaged)?);
        }
        ftl.platform.arrive();
        ftl.recovering = false;
        ftl.checkpoint.durable_from = from.number;
        ftl.classify()?;
        ftl.begin_incarnation()?;
        Ok(ftl)
    }

    /// Reads all that a root leads to, and looks past its end. `damaged`: a page that may have been a newer root.
    fn follow_root(
        &mut self,
        root: &P::P,
        from: &DeltaPosition<P::W>,
        counted: P::W,
        damaged: Option<P::W>,
    ) -> Result<(), P::Error> {
        self.read_tables(root)?;
        let ends = self.follow_logs(from, counted, damaged)?;
        self.look_past(&ends)?;
        // Pages found after the run are durable with the first sync (`say_found`): a memory that kept its power
        // may not have them on the medium yet.
        self.flushed = ends.frontier.number;
        Ok(())
    }

    /// Pages that an older root needs may have been erased: then the damaged page is the newest root. A page of its
    /// tables that is damaged itself is named.
    fn blame(
        &mut self,
        error: FtlError<P::Error>,
        damaged: Option<P::W>,
    ) -> Result<FtlError<P::Error>, P::Error> {
        let n = P::W::of;
        let (Some(root), FtlError::Corrupt { what, block, page }) = (damaged, &error) else {
            return Ok(error);
        };
        let inside = *block < self.shape.blocks && *page < self.shape.pages;
        let at = self.shape.page_at(n(*block), n(*page));
        if *what != "delta page" && inside && matches!(self.look_at(at)?, Lies::Damaged(_)) {
            return Ok(error);
        }
        Ok(self.corrupt("root", root))
    }

    /// Directory and block table, as the root names them.
    pub(crate) fn read_tables(&mut self, root: &P::P) -> Result<(), P::Error> {
        let n = P::W::of;
        let words = self.shape.page_words;
        let counts = root.word(n(11));
        let directories = self.limits.map_pages.div_ceil(words * 2);
        let tables = self.shape.blocks.div_ceil(words);
        if counts.high() != n(directories) || counts.low() != n(tables) {
            return Err(self.corrupt("root", self.shape.page_at(self.checkpoint.anchor, n(0))));
        }
        let listed = |at: u64| tag::half(root.word(n(ROOT_WORDS + at / 2)), at);
        for index in 0..directories {
            self.read_directory(index, listed(index))?;
        }
        for index in 0..tables {
            self.read_table(index, listed(directories + index))?;
        }
        Ok(())
    }

    /// Page `at`, which is this one of the directory.
    pub(crate) fn read_directory(&mut self, index: u64, at: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        let page = self.metadata(at, tag::DIRECTORY, n(index), "directory")?;
        self.claim(at);
        let entries = self.shape.page_words * 2;
        let first = index * entries;
        let words = entries.min(self.limits.map_pages - first).div_ceil(2);
        P::each("words of a directory", n(words), |word| {
            let (pair, entry) = (page.word(word), n(first) + (word << 1));
            self.read_place(entry, pair.low())?;
            if entry + n(1) < n(self.limits.map_pages) {
                self.read_place(entry + n(1), pair.high())?;
            }
            Ok(())
        })
    }

    /// Takes in the place of a map page, as the directory has it.
    pub(crate) fn read_place(&mut self, index: P::W, at: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        self.directory.set(index, at);
        if at != n(NONE) {
            if self.shape.block_of_page(at) >= n(self.shape.blocks) {
                return Err(self.corrupt("place of a map page", at));
            }
            self.claim(at);
        }
        Ok(())
    }

    /// Page `at`, which is this one of the block table.
    pub(crate) fn read_table(&mut self, index: u64, at: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        let page = self.metadata(at, tag::TABLE, n(index), "block table")?;
        self.claim(at);
        let words = self.shape.page_words;
        let first = index * words;
        let count = words.min(self.shape.blocks - first);
        P::each("words of a block table", n(count), |word| {
            self.read_entry(n(first) + word, page.word(word), at)
        })
    }

    /// Takes in the entry of a block, from page `at` of the block table.
    pub(crate) fn read_entry(
        &mut self,
        block: P::W,
        entry: P::W,
        at: P::W,
    ) -> Result<(), P::Error> {
        let n = P::W::of;
        let mut valid = entry.high();
        if valid >= n(FAILING) {
            valid = valid - n(FAILING);
            self.blocks.failing.set(block, n(1));
        }
        if valid > n(self.shape.block_sectors()) {
            return Err(self.corrupt("block table", at));
        }
        self.blocks.valid.set(block, valid);
        self.blocks.erases.set(block, entry.low());
        Ok(())
    }

    /// The root needs the block that a page lies in.
    pub(crate) fn claim(&mut self, at: P::W) {
        let block = self.shape.block_of_page(at);
        self.blocks.set(block, BlockUse::Map);
    }

    /// Determines the use of each block from the results of recovery.
    fn classify(&mut self) -> Result<(), P::Error> {
        P::each("blocks", self.blocks.count, |block| {
            self.classify_one(block)
        })
    }

    pub(crate) fn classify_one(&mut self, block: P::W) -> Result<(), P::Error> {
        let n = P::W::of;
        if self.platform.is_bad(block) {
            self.blocks.failing.set(block, n(1));
        }
        let valid = self.blocks.valid(block);
        let failing = self.blocks.is_failing(block);
        if block < n(ANCHORS) {
            self.blocks.set(block, BlockUse::Anchor);
        } else if self.blocks.is(block, BlockUse::Delta) || self.blocks.is(block, BlockUse::Map) {
            if valid != n(0) {
                let at = self.shape.page_at(block, n(0));
                return Err(self.corrupt("count of valid sectors", at));
            }
            self.meta_used = self.meta_used + n(1);
        } else if valid != n(0) {
            self.blocks.set(block, BlockUse::Used);
        } else if self.blocks.is(block, BlockUse::Invalid) {
            self.blocks.invalid.push(block);
        } else if failing {
            self.blocks.set(block, BlockUse::Bad);
        }
        if failing {
            self.bad = self.bad + n(1);
        }
        Ok(())
    }

    /// Announces fresh blocks for all streams; the delta stream goes on where it has announced
    /// to, in blocks erased anew. Says whether it can.
    fn begin_streams(&mut self) -> Result<bool, P::Error> {
        let announced = self.streams[DELTA].next;
        self.erase_announced(announced)?;
        P::each("first blocks", P::W::of(FIRST_STOCK), |_| {
            self.begin_erase().map(|_| ())
        })?;
        self.await_announced(announced)?;
        self.announce_all()
    }

    pub(crate) fn erase_announced(&mut self, announced: [P::W; 2]) -> Result<(), P::Error> {
        for block in announced {
            if self.blocks.is(block, BlockUse::Erasable) {
                self.platform.erase(block).map_err(FtlError::Flash)?;
                self.blocks.set(block, BlockUse::Erasing);
            }
        }
        Ok(())
    }

    pub(crate) fn await_announced(&mut self, announced: [P::W; 2]) -> Result<(), P::Error> {
        for block in announced {
            if self.blocks.is(block, BlockUse::Erasing) {
                let state = (self.platform.erased(block, true)).map_err(FtlError::Flash)?;
                if state == Erase::Failed {
                    self.retire(block);
                } else {
                    self.blocks.set(block, BlockUse::Next);
                }
            }
        }
        Ok(())
    }

    /// The delta stream keeps the blocks that it announced if one of them is erased; says so.
    pub(crate) fn announce_all(&mut self) -> Result<bool, P::Error> {
        let announced = self.streams[DELTA].next;
        let goes_on = (announced.iter()).any(|&block| self.blocks.is(block, BlockUse::Next));
        for stream in [DELTA, HOST, MOVED, MAPS] {
            if stream == DELTA && goes_on {
                continue;
            }
            for i in 0..2 {
                self.streams[stream].next[i] = self.choose_next(stream)?;
            }
        }
        Ok(goes_on)
    }

    pub(crate) fn begin_incarnation(&mut self) -> Result<(), P::Error> {
        let goes_on = self.begin_streams()?;
        self.say_found(goes_on)?;
        // Crashes in a row leave a delta block each: data's share is not theirs.
        let short = self.meta_used + P::W::of(META_NEXT) > P::W::of(self.limits.meta_blocks);
        if short && !self.faults.skip_mount_checkpoint {
            P::part(self, "checkpoint", Self::checkpoint_whole)?;
        }
        // The run has the changes of the log's end.
        self.blocks.settle_invalid();
        self.restock()?;
        self.make_room()
    }

    /// A delta run records the recovered state, and where the streams go on; then it is durable, and found
    /// by the next mount: where the log announced it, or where a new root leads to.
    pub(crate) fn say_found(&mut self, goes_on: bool) -> Result<(), P::Error> {
        self.incarnation = self.incarnation + P::W::of(1);
        if goes_on {
            self.write_deltas()?;
            self.settle()?;
        } else {
            P::part(self, "checkpoint", Self::checkpoint_whole)?;
        }
        self.blocks.durable_runs = self.runs;
        self.flushed = self.number;
        Ok(())
    }
}

pub(crate) fn check_root<W: Word, E>(shape: &Shape, word: &impl Fn(u64) -> W) -> Result<(), E> {
    if word(0) != W::of(VERSION) {
        return Err(FtlError::OtherVersion {
            found: word(0).value(),
            expected: VERSION,
        });
    }
    for (what, found, expected) in [
        ("number of blocks", word(2).high(), shape.blocks),
        ("number of pages in a block", word(2).low(), shape.pages),
        ("number of sectors in a page", word(3).high(), shape.sectors),
        ("number of words in a page", word(3).low(), shape.page_words),
        ("number of spare words", word(4).high(), shape.spare_words),
        ("number of dies", word(4).low(), shape.dies),
    ] {
        if found != W::of(expected) {
            return Err(FtlError::OtherGeometry {
                what,
                found: found.value(),
                expected,
            });
        }
    }
    Ok(())
}
