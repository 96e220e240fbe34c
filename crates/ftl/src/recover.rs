//! Format and mount.
//!
//! A mount reads the newest root, its directory and block table, the delta log from the root's
//! position on, and the data log behind that up to its last commit. Map pages are read when a
//! change or a request needs them. So it takes as long as there are changes since the last
//! checkpoint, whatever the size of the disk.
//!
//! Then it begins an incarnation: fresh blocks for the data streams, and a delta run that says
//! what was found, and where the streams go on; one sync. Until then only blocks that nothing
//! needs are erased and programmed, so a crash in a mount leaves what it found, and the next
//! mount does the same again.

use crate::blocks::BlockUse;
use crate::checkpoint::{DeltaPosition, FAILING, NUMBERS, ROOT_SEAL, ROOT_WORDS, VERSION};
use crate::error::{FtlError, Result};
use crate::ftl::{DELTA, Faults, Ftl, HOST, MAPS, MOVED, Options};
use crate::limits::{ANCHORS, Limits};
use crate::map::corrupt_at;
use crate::platform::{Erase, Page, Platform, Queue, Table, Word};
use crate::policy::Policy;
use crate::shape::{NONE, Shape};
use crate::tag::{self, Tag};

/// Blocks erased at once when a mount begins.
const FIRST_STOCK: usize = 8;

impl<P: Platform, Y: Policy<P>> Ftl<P, Y> {
    /// Makes a new, empty disk; whatever the memory holds is lost.
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
        let n = P::W::of;
        let limits =
            Limits::derive(&shape, options.sectors, options.epoch).map_err(FtlError::TooSmall)?;
        let volume = n(options.volume);
        let mut ftl = Ftl::empty(platform, policy, shape, limits, volume, Faults::default());
        // No root of an earlier disk may be left.
        for anchor in 0..ANCHORS {
            ftl.platform.erase(n(anchor)).map_err(FtlError::Flash)?;
        }
        for anchor in 0..ANCHORS {
            let state = (ftl.platform.erased(n(anchor), true)).map_err(FtlError::Flash)?;
            if state == Erase::Failed {
                ftl.blocks.failing.set(n(anchor), n(1));
            }
        }
        ftl.checkpoint.anchor_page = n(shape.pages);
        ftl.classify()?;
        ftl.begin_streams()?;
        for index in 0..limits.map_pages {
            ftl.loaded.set(n(index), n(1));
        }
        ftl.checkpoint_now()?;
        ftl.blocks.durable_runs = ftl.runs;
        Ok(ftl)
    }

    /// Returns to the last flush of the disk that the memory holds.
    ///
    /// # Errors
    /// [`FtlError::NotFormatted`], [`FtlError::OtherGeometry`], [`FtlError::OtherVersion`],
    /// [`FtlError::Corrupt`] if what was durable is damaged, [`FtlError::Flash`].
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
        let found = newest_root(&mut platform, &shape)?;
        let Some((anchor, tag, root)) = found else {
            return Err(FtlError::NotFormatted);
        };
        let word = |at: u64| root.word(n(at));
        check_root(&shape, &word)?;
        if tag.number >= n(NUMBERS) || word(7) >= n(NUMBERS) {
            return Err(corrupt_at(&shape, "root", shape.page_at(anchor, n(0))));
        }
        let limits =
            Limits::derive(&shape, word(5).value(), word(6).value()).map_err(FtlError::TooSmall)?;
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
        ftl.read_tables(&root)?;
        let frontier = ftl.follow_deltas(&from, word(10))?;
        ftl.follow_data(&frontier)?;
        ftl.platform.arrive();
        ftl.recovering = false;
        ftl.flushed = ftl.number;
        ftl.checkpoint.durable_from = from.number;
        ftl.classify()?;
        ftl.begin_incarnation()?;
        Ok(ftl)
    }

    /// Directory and block table, as the root names them.
    fn read_tables(&mut self, root: &P::P) -> Result<(), P::Error> {
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
            let at = listed(index);
            let page = self.metadata(at, tag::DIRECTORY, n(index), "directory")?;
            self.claim(at);
            for entry in 0..(words * 2).min(self.limits.map_pages - index * words * 2) {
                let at = tag::half(page.word(n(entry / 2)), entry);
                self.directory.set(n(index * words * 2 + entry), at);
                if at != n(NONE) {
                    if self.shape.block_of_page(at) >= n(self.shape.blocks) {
                        return Err(self.corrupt("place of a map page", at));
                    }
                    self.claim(at);
                }
            }
        }
        for index in 0..tables {
            let at = listed(directories + index);
            let page = self.metadata(at, tag::TABLE, n(index), "block table")?;
            self.claim(at);
            for word in 0..words.min(self.shape.blocks - index * words) {
                let block = n(index * words + word);
                self.read_entry(block, page.word(n(word)), at)?;
            }
        }
        Ok(())
    }

    /// What page `at` of the block table says of a block.
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
    fn claim(&mut self, at: P::W) {
        let block = self.shape.block_of_page(at);
        self.blocks.set(block, BlockUse::Map);
    }

    /// What each block is used for, from what recovery has found.
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
    /// to, in blocks erased anew.
    fn begin_streams(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        let announced = self.streams[DELTA].next;
        let mut goes_on = false;
        for block in announced {
            if self.blocks.is(block, BlockUse::Erasable) {
                goes_on = true;
                self.platform.erase(block).map_err(FtlError::Flash)?;
                self.blocks.set(block, BlockUse::Next);
            }
        }
        for _ in 0..FIRST_STOCK {
            self.begin_erase()?;
        }
        for block in announced {
            if self.blocks.is(block, BlockUse::Next) {
                let state = (self.platform.erased(block, true)).map_err(FtlError::Flash)?;
                if state == Erase::Failed {
                    self.retire(block);
                }
            }
        }
        if !goes_on {
            if announced[0] != n(NONE) {
                let at = self.shape.page_at(announced[0], n(0));
                return Err(self.corrupt("announced block", at));
            }
            for i in 0..2 {
                self.streams[DELTA].next[i] = self.choose_next(DELTA)?;
            }
            self.checkpoint.from.next = self.streams[DELTA].next;
        }
        for stream in [HOST, MOVED, MAPS] {
            for i in 0..2 {
                self.streams[stream].next[i] = self.choose_next(stream)?;
            }
        }
        Ok(())
    }

    fn begin_incarnation(&mut self) -> Result<(), P::Error> {
        let n = P::W::of;
        self.begin_streams()?;
        self.incarnation = self.incarnation + n(1);
        self.write_deltas()?;
        self.settle()?;
        self.blocks.durable_runs = self.runs;
        // Crashes in a row leave a delta block each.
        if self.meta_used >= n(self.limits.meta_blocks) {
            self.checkpoint_now()?;
        }
        // The run says what the end of the log said.
        self.blocks.settle_invalid();
        self.restock()?;
        self.make_room()
    }
}

/// A root, and the anchor that it lies in.
type Root<P> = (
    <P as Platform>::W,
    Tag<<P as Platform>::W>,
    <P as Platform>::P,
);

/// The newest whole root and the anchor that it lies in. Roots lie in the first pages of their
/// anchor; one behind the first damaged page is not the newest.
fn newest_root<P: Platform>(platform: &mut P, shape: &Shape) -> Result<Option<Root<P>>, P::Error> {
    let n = P::W::of;
    let mut newest: Option<Root<P>> = None;
    for anchor in 0..ANCHORS {
        let anchor = n(anchor);
        for index in 0..shape.pages {
            let at = shape.page_at(anchor, n(index));
            let page = platform.fetch(at).map_err(FtlError::Flash)?;
            let tagged = page.and_then(|page| {
                let tag = Tag::read(shape, n(ROOT_SEAL), &page)?;
                tag.is(tag::ROOT).then_some((tag, page))
            });
            let Some((tag, page)) = tagged else {
                break;
            };
            if (newest.as_ref()).is_none_or(|(_, other, _)| tag.number > other.number) {
                newest = Some((anchor, tag, page));
            }
        }
    }
    platform.arrive();
    Ok(newest)
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
