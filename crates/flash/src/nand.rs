//! The memory itself: rules, queues, and durability.
//!
//! The store below holds the durable content. Later programs and erases lie in an overlay
//! of *pending* blocks; reads see it, a power cut picks from it, a sync moves it to the store.

use crate::fault::{Fault, FaultOp, Faults, Rates};
use crate::store::{BlockState, Store};
use crate::time::{Clock, Latency, Nanoseconds};
use crate::{Address, Geometry, GeometryError};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A rule of NAND flash that was broken: always the caller's mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The page was programmed, or touched by a power cut, since its block was erased.
    #[error("{at} is programmed a second time since its erase")]
    ProgrammedTwice {
        /// The page.
        at: Address,
    },
    /// The page before it was not programmed yet.
    #[error("{at} is programmed before page {expected}")]
    OutOfOrder {
        /// The page.
        at: Address,
        /// The page whose turn it is.
        expected: u32,
    },
    /// There is no such page or block.
    #[error("{at} is outside the memory")]
    Outside {
        /// The page, or the block's first.
        at: Address,
    },
    /// The buffer is not one page with its spare bytes.
    #[error("a buffer of {bytes} bytes for a page of {expected}")]
    WrongLength {
        /// Its length.
        bytes: usize,
        /// A page's.
        expected: usize,
    },
}

/// Failure in a flash memory.
#[derive(Debug, thiserror::Error)]
pub enum FlashError {
    /// The power is gone (a planned cut); nothing works until [`Nand::cut`].
    #[error("the flash memory has lost power")]
    PowerLost,
    /// A rule was broken.
    #[error("flash rule broken: {0}")]
    Rule(#[from] Violation),
    /// The page's bytes cannot be read.
    #[error("{at} cannot be read")]
    Unreadable {
        /// The page.
        at: Address,
    },
    /// The geometry is impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The store failed.
    #[error("the flash memory's store failed: {0}")]
    Store(#[from] std::io::Error),
}

/// Result of a flash operation.
pub type Result<T> = std::result::Result<T, FlashError>;

/// A program that did not happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Target page.
    pub at: Address,
    /// The page with its spare bytes.
    pub bytes: Box<[u8]>,
}

/// Progress of an erase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Erase {
    /// In its die's queue.
    Pending,
    /// Done and durable, or there was none.
    Done,
    /// Failed: the block is bad for ever.
    Failed,
}

/// Counts of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Pages read.
    pub reads: u64,
    /// Syncs.
    pub syncs: u64,
}

/// An erase and programs of one block that are not durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    /// Time at which the erase is done, if there was one.
    pub(crate) erase: Option<Nanoseconds>,
    /// The erase failed: the durable bytes stay.
    pub(crate) erase_failed: bool,
    pub(crate) pages: BTreeMap<u32, Box<[u8]>>,
    /// Programs that an erase overtook before they were durable.
    pub(crate) overtaken: Vec<(u32, Box<[u8]>)>,
}

/// A flash memory over a store.
#[derive(Clone, Debug)]
pub struct Nand<S> {
    pub(crate) geometry: Geometry,
    pub(crate) store: S,
    pub(crate) states: Vec<BlockState>,
    pub(crate) pending: HashMap<u32, Pending>,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    /// Programs that failed since the last sync.
    pub(crate) failed: Vec<Failed>,
    unreadable: HashSet<Address>,
    counts: Counts,
    /// Operations until the power goes.
    pub(crate) cut_after: Option<u64>,
}

impl<S: Store> Nand<S> {
    /// A flash memory over the store's content.
    ///
    /// # Errors
    /// [`FlashError::Geometry`], [`FlashError::Store`].
    pub fn new(geometry: Geometry, latency: Latency, store: S) -> Result<Nand<S>> {
        geometry.check()?;
        let states = (0..geometry.all_blocks())
            .map(|block| store.state(block))
            .collect::<std::io::Result<_>>()?;
        Ok(Nand {
            geometry,
            clock: Clock::new(&geometry, latency),
            store,
            states,
            pending: HashMap::new(),
            faults: Faults::new(),
            failed: Vec::new(),
            unreadable: HashSet::new(),
            counts: Counts::default(),
            cut_after: None,
        })
    }

    /// The geometry.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Nanoseconds {
        self.clock.now
    }

    /// Lets virtual time pass, as a host does that thinks.
    pub fn advance(&mut self, by: Nanoseconds) {
        self.clock.now += by;
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Erases of a block so far.
    #[must_use]
    pub fn erases_of(&self, block: u32) -> u32 {
        self.states.get(block as usize).map_or(0, |s| s.erases)
    }

    /// Whether programs and erases of the block fail: from the factory, or since.
    #[must_use]
    pub fn is_bad(&self, block: u32) -> bool {
        self.states.get(block as usize).is_none_or(|s| s.bad)
    }

    /// Makes a block bad, as the factory would.
    ///
    /// # Errors
    /// [`Violation::Outside`], [`FlashError::Store`].
    pub fn mark_bad(&mut self, block: u32) -> Result<()> {
        self.check(Address { block, page: 0 })?;
        self.states[block as usize].bad = true;
        Ok(self.store.set_state(block, self.states[block as usize])?)
    }

    /// Plans a failure.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.inject(fault);
    }

    /// Lets operations fail at random from now on.
    pub fn set_rates(&mut self, rates: Rates, seed: u64) {
        self.faults.set_rates(rates, seed);
    }

    /// Makes a page unreadable until its block is erased.
    pub fn make_unreadable(&mut self, at: Address) {
        self.unreadable.insert(at);
    }

    /// Lets the power go after this many more programs, erases, reads and syncs.
    pub fn cut_after(&mut self, operations: u64) {
        self.cut_after = Some(operations);
    }

    /// Whether a planned cut has not come yet.
    #[must_use]
    pub fn has_power(&self) -> bool {
        self.cut_after != Some(0)
    }

    /// Changes the durable bytes of a page (page, then spare): a medium that rots.
    ///
    /// # Errors
    /// [`Violation::Outside`], [`FlashError::Store`].
    pub fn damage(&mut self, at: Address, change: impl FnOnce(&mut [u8])) -> Result<()> {
        self.check(at)?;
        let mut bytes = vec![0; self.geometry.raw_bytes()];
        self.store.load(at, &mut bytes)?;
        change(&mut bytes);
        Ok(self.store.store(at, &bytes)?)
    }

    /// Queues a program of one page with its spare bytes, which are there at `after` (see
    /// [`fetch`](Nand::fetch); 0 for bytes that the host has).
    ///
    /// # Errors
    /// [`FlashError::Rule`], [`FlashError::PowerLost`]. A program that fails is reported by
    /// [`sync`](Nand::sync).
    pub fn program(&mut self, at: Address, bytes: Box<[u8]>, after: Nanoseconds) -> Result<()> {
        self.tick()?;
        self.check(at)?;
        self.check_length(bytes.len())?;
        self.counts.programs += 1;
        let die = self.geometry.die_of(at.block);
        let channel = self.geometry.channel_of(die);
        let struck = self.faults.strike(FaultOp::Program);
        let state = &mut self.states[at.block as usize];
        if state.bad {
            self.failed.push(Failed { at, bytes });
            return Ok(());
        }
        if at.page < state.used {
            return Err(Violation::ProgrammedTwice { at }.into());
        }
        if at.page > state.used {
            let expected = state.used;
            return Err(Violation::OutOfOrder { at, expected }.into());
        }
        state.used += 1;
        self.clock.program(die, channel, at.page, after);
        let pending = self.pending.entry(at.block).or_default();
        if struck {
            state.bad = true;
            let rubbish = bytes.iter().map(|byte| byte & 0xA5).collect();
            pending.pages.insert(at.page, rubbish);
            self.failed.push(Failed { at, bytes });
        } else {
            pending.pages.insert(at.page, bytes);
        }
        Ok(())
    }

    /// Queues an erase.
    ///
    /// # Errors
    /// [`FlashError::Rule`], [`FlashError::PowerLost`].
    pub fn erase(&mut self, block: u32) -> Result<()> {
        self.tick()?;
        self.check(Address { block, page: 0 })?;
        self.counts.erases += 1;
        let done = self.clock.erase(self.geometry.die_of(block));
        let struck = self.faults.strike(FaultOp::Erase);
        let state = &mut self.states[block as usize];
        let pending = self.pending.entry(block).or_default();
        pending.erase = Some(done);
        if struck || state.bad {
            state.bad = true;
            pending.erase_failed = true;
            return Ok(());
        }
        state.used = 0;
        // An image may say anything of its past.
        state.erases = state.erases.saturating_add(1);
        let pages = std::mem::take(&mut pending.pages);
        pending.overtaken.extend(pages);
        self.unreadable.retain(|at| at.block != block);
        Ok(())
    }

    /// Progress of the block's erase. `Done` also says that it is durable.
    ///
    /// # Errors
    /// [`FlashError::Store`].
    pub fn settle(&mut self, block: u32) -> Result<Erase> {
        let Some(pending) = self.pending.get(&block) else {
            return Ok(if self.is_bad(block) {
                Erase::Failed
            } else {
                Erase::Done
            });
        };
        match pending.erase {
            Some(done) if done > self.clock.now => return Ok(Erase::Pending),
            None => return Ok(Erase::Done),
            Some(_) => {}
        }
        self.store_erase(block)?;
        Ok(if self.is_bad(block) {
            Erase::Failed
        } else {
            Erase::Done
        })
    }

    /// Waits for the block's erase.
    ///
    /// # Errors
    /// [`FlashError::PowerLost`], [`FlashError::Store`].
    pub fn wait_erase(&mut self, block: u32) -> Result<Erase> {
        self.tick()?;
        if let Some(done) = self.pending.get(&block).and_then(|p| p.erase) {
            self.clock.wait(done);
        }
        self.settle(block)
    }

    /// Reads a page with its spare bytes, and waits for it.
    ///
    /// # Errors
    /// [`FlashError::Unreadable`], [`FlashError::Rule`], [`FlashError::PowerLost`].
    pub fn read(&mut self, at: Address, bytes: &mut [u8]) -> Result<()> {
        let done = self.fetch(at, bytes)?;
        self.clock.wait(done);
        Ok(())
    }

    /// Reads a page without waiting; says when the bytes are there in virtual time.
    ///
    /// # Errors
    /// As for [`read`](Nand::read).
    pub fn fetch(&mut self, at: Address, bytes: &mut [u8]) -> Result<Nanoseconds> {
        self.tick()?;
        self.check(at)?;
        self.check_length(bytes.len())?;
        self.counts.reads += 1;
        let die = self.geometry.die_of(at.block);
        let done = (self.clock).read(die, self.geometry.channel_of(die), at.page);
        if self.unreadable.contains(&at) || self.faults.strike(FaultOp::Read) {
            return Err(FlashError::Unreadable { at });
        }
        // A page that failed is kept for the sync that gives it back.
        if let Some(failed) = self.failed.iter().rfind(|failed| failed.at == at) {
            bytes.copy_from_slice(&failed.bytes);
            return Ok(done);
        }
        match self.pending.get(&at.block) {
            Some(pending) => match pending.pages.get(&at.page) {
                Some(page) => bytes.copy_from_slice(page),
                None if pending.erase.is_some() => bytes.fill(0xFF),
                None => self.store.load(at, bytes)?,
            },
            None => self.store.load(at, bytes)?,
        }
        Ok(done)
    }

    /// Waits until a fetch is there.
    pub fn wait(&mut self, until: Nanoseconds) {
        self.clock.wait(until);
    }

    /// Waits for all programs and makes them durable, with the erases below them. Returns those
    /// that failed, in the order in which they were issued; they must be programmed elsewhere.
    ///
    /// # Errors
    /// [`FlashError::PowerLost`], [`FlashError::Store`].
    pub fn sync(&mut self) -> Result<Vec<Failed>> {
        self.tick()?;
        self.counts.syncs += 1;
        self.clock.wait(self.clock.programs_done);
        let mut blocks: Vec<u32> = (self.pending.iter())
            .filter(|(_, pending)| !pending.pages.is_empty())
            .map(|(&block, _)| block)
            .collect();
        blocks.sort_unstable();
        for block in blocks {
            let pages = match self.pending.get_mut(&block) {
                Some(pending) => std::mem::take(&mut pending.pages),
                None => continue,
            };
            self.store_erase(block)?;
            self.store.set_state(block, self.states[block as usize])?;
            for (page, bytes) in pages {
                self.store.store(Address { block, page }, &bytes)?;
            }
        }
        self.store.sync()?;
        Ok(std::mem::take(&mut self.failed))
    }

    /// Waits for everything, erases too.
    ///
    /// # Errors
    /// As for [`sync`](Nand::sync).
    pub fn sync_all(&mut self) -> Result<Vec<Failed>> {
        let failed = self.sync()?;
        let blocks: Vec<u32> = self.pending.keys().copied().collect();
        for block in blocks {
            self.wait_erase(block)?;
        }
        Ok(failed)
    }

    /// Components of virtual time.
    #[must_use]
    pub fn latency(&self) -> &Latency {
        self.clock.latency()
    }

    /// Moves a pending erase to the store and forgets the pending programs of the block.
    fn store_erase(&mut self, block: u32) -> Result<()> {
        let Some(pending) = self.pending.remove(&block) else {
            return Ok(());
        };
        let state = self.states[block as usize];
        if pending.erase.is_some() && !pending.erase_failed {
            let used = self.geometry.pages;
            self.store.set_state(block, BlockState { used, ..state })?;
            self.store.erase(block)?;
        }
        self.store.set_state(block, state)?;
        if !pending.pages.is_empty() {
            let pages = pending.pages;
            self.pending.entry(block).or_default().pages = pages;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        match &mut self.cut_after {
            Some(0) => Err(FlashError::PowerLost),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn check(&self, at: Address) -> Result<()> {
        if self.geometry.contains(at) {
            Ok(())
        } else {
            Err(Violation::Outside { at }.into())
        }
    }

    fn check_length(&self, bytes: usize) -> Result<()> {
        let expected = self.geometry.raw_bytes();
        if bytes == expected {
            Ok(())
        } else {
            Err(Violation::WrongLength { bytes, expected }.into())
        }
    }
}
