//! The base of the translation layer, as traits: numbers, pages, tables and the flash memory.
//! The core is written once over them: production runs it on `u64`, byte slices and vectors
//! ([`Numbers`](crate::Numbers) and [`Entries`](crate::Entries)), a verifier on a solver's terms.
//!
//! The rules that keep this possible: numbers are [`Word`]s with ordinary operators, and none may
//! overflow; comparing decides a branch; everything whose length depends on the medium or on the number
//! of operations lies in a [`Table`] or a [`Queue`], and is walked with [`Platform::each`] and
//! [`Platform::find`], where loop invariants go. Only the sectors of a page and the open blocks of a
//! stream, whose numbers are fixed when the layer is made, are walked with plain loops. Larger
//! operations are made of parts ([`Platform::part`]), of which each is verified by itself.

use crate::error::Result as Done;
use crate::ftl::Ftl;
pub use crate::word::Word;
use alloc::vec::Vec;

/// A page with its spare area, as words of 64 bits: the page's first, then the spare area's.
pub trait Page<W>: Clone {
    /// Word `at`, which is in the page or its spare area.
    fn word(&self, at: W) -> W;
    /// Changes it.
    fn set_word(&mut self, at: W, value: W);
    /// Puts the checksum of volume, the page's own number and everything else into the last word.
    fn seal(&mut self, volume: W, at: W);
    /// Whether the last word is that checksum.
    fn is_intact(&self, volume: W, at: W) -> bool;
    /// Whether all bits are ones, as an erase leaves them. Such a page has no tag.
    fn is_blank(&self) -> bool;
}

/// A table of numbers below 2^32.
pub trait Table<W> {
    /// `length` entries of this value.
    fn filled(length: W, value: W) -> Self;
    /// An entry, which is there.
    fn get(&self, at: W) -> W;
    /// Changes it.
    fn set(&mut self, at: W, value: W);
}

/// A growing list of numbers.
pub trait Queue<W>: Default {
    /// Number of entries.
    fn length(&self) -> W;
    /// An entry that exists.
    fn get(&self, at: W) -> W;
    /// Changes it.
    fn set(&mut self, at: W, value: W);
    /// Adds one at the end.
    fn push(&mut self, value: W);
    /// Forgets all from this one on.
    fn truncate(&mut self, length: W);
    /// Puts them in order, the smallest first.
    fn sort(&mut self);
}

/// Progress of an erase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Erase {
    /// Not done yet.
    Pending,
    /// Done, and durable.
    Done,
    /// Failed; the block is bad.
    Failed,
}

/// Programs that failed: where the pages were to go, and the pages.
pub type Failed<P> = Vec<(<P as Platform>::W, <P as Platform>::P)>;

/// A flash memory, and the kinds of numbers, pages and tables that go with it. Pages are
/// addressed by number: `block << page_bits | page` (see [`Shape`](crate::Shape)).
///
/// A program is durable after [`sync`](Platform::sync); until then a crash may leave anything in
/// its page. An erase is durable when [`erased`](Platform::erased) says so.
pub trait Platform: Sized {
    /// Numbers.
    type W: Word;
    /// Pages.
    type P: Page<Self::W>;
    /// Tables.
    type T: Table<Self::W>;
    /// Lists.
    type Q: Queue<Self::W>;
    /// The bytes of a sector.
    type Sector: ?Sized;
    /// Error of the platform.
    type Error;

    /// A page of zeros.
    fn blank(&mut self) -> Self::P;
    /// Puts a sector into a page.
    fn put(&self, page: &mut Self::P, slot: usize, sector: &Self::Sector);
    /// Takes a sector out of it.
    fn take(&self, page: &Self::P, slot: usize, sector: &mut Self::Sector);
    /// Fills a sector with zeros.
    fn clear(&self, sector: &mut Self::Sector);
    /// Copies a sector from a page to another.
    fn copy(&self, from: &Self::P, slot: usize, to: &mut Self::P, target: usize);

    /// Reads a page and waits for it. `None`: the medium cannot. A page programmed since the last
    /// sync reads as it was programmed, even if that failed.
    ///
    /// # Errors
    /// The platform's, for anything but one bad page.
    fn read(&mut self, at: Self::W) -> Result<Option<Self::P>, Self::Error>;
    /// Reads a page without waiting, to look at many, or to program its sectors elsewhere.
    ///
    /// # Errors
    /// As for [`read`](Platform::read).
    fn fetch(&mut self, at: Self::W) -> Result<Option<Self::P>, Self::Error>;
    /// Waits for all that was fetched.
    fn arrive(&mut self);
    /// Programs a page; `fetched`: its bytes are those of pages just fetched.
    ///
    /// # Errors
    /// The platform's. A program that fails comes back from [`sync`](Platform::sync).
    fn program(&mut self, at: Self::W, page: Self::P, fetched: bool) -> Result<(), Self::Error>;
    /// Waits for all programs and makes them durable. Those that failed come back, in order, with
    /// all later ones of their blocks.
    ///
    /// # Errors
    /// The platform's.
    fn sync(&mut self) -> Result<Failed<Self>, Self::Error>;
    /// Erases a block.
    ///
    /// # Errors
    /// The platform's.
    fn erase(&mut self, block: Self::W) -> Result<(), Self::Error>;
    /// Progress of the erase, after waiting for it if asked to.
    ///
    /// # Errors
    /// The platform's.
    fn erased(&mut self, block: Self::W, wait: bool) -> Result<Erase, Self::Error>;
    /// Whether the block is known to be bad.
    fn is_bad(&self, block: Self::W) -> bool;

    /// The first number below `count` at which `stop` holds, or `count`. `loop_name` names the
    /// loop for a verifier.
    fn find(loop_name: &'static str, count: Self::W, stop: impl FnMut(Self::W) -> bool) -> Self::W;
    /// Does `step` for each number below `count`, until one fails.
    ///
    /// # Errors
    /// The step's.
    fn each<E>(
        loop_name: &'static str,
        count: Self::W,
        step: impl FnMut(Self::W) -> Result<(), E>,
    ) -> Result<(), E>;
    /// Does a part of a larger operation. `name` is for a verifier, which puts in its place the effect that was shown
    /// of it.
    ///
    /// # Errors
    /// The part's.
    #[inline(always)]
    fn part<Y>(
        ftl: &mut Ftl<Self, Y>,
        name: &'static str,
        work: impl FnOnce(&mut Ftl<Self, Y>) -> Done<(), Self::Error>,
    ) -> Done<(), Self::Error> {
        let _ = name;
        work(ftl)
    }
}

/// A borrowed platform: the lender has it back when the layer is gone.
impl<P: Platform> Platform for &mut P {
    type W = P::W;
    type P = P::P;
    type T = P::T;
    type Q = P::Q;
    type Sector = P::Sector;
    type Error = P::Error;

    fn blank(&mut self) -> P::P {
        P::blank(self)
    }

    fn put(&self, page: &mut P::P, slot: usize, sector: &P::Sector) {
        P::put(self, page, slot, sector);
    }

    fn take(&self, page: &P::P, slot: usize, sector: &mut P::Sector) {
        P::take(self, page, slot, sector);
    }

    fn clear(&self, sector: &mut P::Sector) {
        P::clear(self, sector);
    }

    fn copy(&self, from: &P::P, slot: usize, to: &mut P::P, target: usize) {
        P::copy(self, from, slot, to, target);
    }

    fn read(&mut self, at: P::W) -> Result<Option<P::P>, P::Error> {
        P::read(self, at)
    }

    fn fetch(&mut self, at: P::W) -> Result<Option<P::P>, P::Error> {
        P::fetch(self, at)
    }

    fn arrive(&mut self) {
        P::arrive(self);
    }

    fn program(&mut self, at: P::W, page: P::P, fetched: bool) -> Result<(), P::Error> {
        P::program(self, at, page, fetched)
    }

    fn sync(&mut self) -> Result<Failed<P>, P::Error> {
        P::sync(self)
    }

    fn erase(&mut self, block: P::W) -> Result<(), P::Error> {
        P::erase(self, block)
    }

    fn erased(&mut self, block: P::W, wait: bool) -> Result<Erase, P::Error> {
        P::erased(self, block, wait)
    }

    fn is_bad(&self, block: P::W) -> bool {
        P::is_bad(self, block)
    }

    fn find(loop_name: &'static str, count: P::W, stop: impl FnMut(P::W) -> bool) -> P::W {
        P::find(loop_name, count, stop)
    }

    fn each<E>(
        loop_name: &'static str,
        count: P::W,
        step: impl FnMut(P::W) -> Result<(), E>,
    ) -> Result<(), E> {
        P::each(loop_name, count, step)
    }
}
