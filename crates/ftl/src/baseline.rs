//! The layers that promise less, from the same parts: the peers of SCFTL §7.2.
//!
//! Both keep no checkpoints and no tags, and erase a victim as soon as it is empty. *Asynchronous*:
//! a flush syncs, and between flushes anything may be lost. *Synchronous*: every page is waited
//! for, and the page being filled survives (a battery), so that a flush has nothing to do. They
//! exist to be measured; they cannot be mounted.

use crate::blocks::{BlockUse, Blocks};
use crate::emulated::Emulated;
use crate::limits::{Limits, Widths};
use crate::plain::{Bytes, Entries};
use crate::platform::{Platform, Table};
use crate::policy::{Policy, Purpose, Tuned};
use crate::shape::{NONE, Shape};
use steadfast_flash::{FlashError, Store};

/// The promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BaselineKind {
    /// Every write survives once its page is programmed; pages are waited for.
    Synchronous,
    /// Writes survive once flushed.
    Asynchronous,
}

/// Blocks that stay free, for the collector's own needs.
const RESERVE: u64 = 8;

struct Open {
    block: u64,
    page: u64,
}

#[derive(Default)]
struct Filling {
    page: Option<Bytes>,
    sectors: Vec<u64>,
}

/// A translation layer without snapshots.
pub struct Baseline<S: Store> {
    platform: Emulated<S>,
    kind: BaselineKind,
    shape: Shape,
    limits: Limits,
    map: Entries,
    /// The sector at each place.
    reverse: Entries,
    blocks: Blocks<Emulated<S>>,
    policy: Tuned,
    /// Open blocks for the host, and for moved sectors.
    open: [Vec<Open>; 2],
    widths: [usize; 2],
    turns: [usize; 2],
    filling: [Filling; 2],
    victim: Option<(u64, u64, u64)>,
    pages: u64,
    moved: u64,
}

impl<S: Store> Baseline<S> {
    /// A new, empty disk of the same size and geometry as a snapshot-consistent one.
    #[must_use]
    pub fn new(platform: Emulated<S>, kind: BaselineKind, limits: Limits) -> Baseline<S> {
        let shape = platform.shape();
        let widths = Widths::of(&shape);
        let mut blocks = Blocks::new(shape.blocks);
        // Every full block is a victim at once.
        blocks.durable_runs = 1;
        Baseline {
            kind,
            map: Entries::filled(limits.sectors, NONE),
            reverse: Entries::filled(1 << shape.place_bits(), NONE),
            blocks,
            policy: Tuned::new(shape.dies),
            open: [Vec::new(), Vec::new()],
            widths: [widths.host as usize, widths.moved as usize],
            turns: [0, 0],
            filling: [Filling::default(), Filling::default()],
            victim: None,
            pages: 0,
            moved: 0,
            shape,
            limits,
            platform,
        }
    }

    /// The flash memory.
    pub fn platform(&self) -> &Emulated<S> {
        &self.platform
    }

    /// Pages programmed, and sectors moved.
    pub fn programmed(&self) -> (u64, u64) {
        (self.pages, self.moved)
    }

    /// Writes a sector of the disk.
    ///
    /// # Errors
    /// The flash memory's.
    pub fn write(&mut self, sector: u64, data: &[u8]) -> Result<(), FlashError> {
        let slot = self.filling[0].sectors.iter().position(|&s| s == sector);
        let slot = slot.unwrap_or_else(|| {
            self.filling[0].sectors.push(sector);
            self.filling[0].sectors.len() - 1
        });
        let mut page = match self.filling[0].page.take() {
            Some(page) => page,
            None => self.platform.blank(),
        };
        self.platform.put(&mut page, slot, data);
        self.filling[0].page = Some(page);
        if self.filling[0].sectors.len() as u64 == self.shape.sectors {
            self.program(0)?;
            self.balance()?;
        }
        Ok(())
    }

    /// Reads a sector of the disk.
    ///
    /// # Errors
    /// The flash memory's.
    pub fn read(&mut self, sector: u64, data: &mut [u8]) -> Result<(), FlashError> {
        let filling = &self.filling[0];
        let slot = filling.sectors.iter().position(|&s| s == sector);
        if let (Some(slot), Some(page)) = (slot, &filling.page) {
            self.platform.take(page, slot, data);
            return Ok(());
        }
        let place = self.map.get(sector);
        let page = if place == NONE {
            None
        } else {
            self.platform.read(self.shape.page_of(place))?
        };
        match page {
            Some(page) => {
                let slot = self.shape.slot_of(place) as usize;
                self.platform.take(&page, slot, data);
            }
            None => data.fill(0),
        }
        Ok(())
    }

    /// Asynchronous: waits until everything written is durable.
    ///
    /// # Errors
    /// The flash memory's.
    pub fn flush(&mut self) -> Result<(), FlashError> {
        if self.kind == BaselineKind::Synchronous {
            return Ok(());
        }
        if !self.filling[0].sectors.is_empty() {
            self.program(0)?;
            self.platform.sync()?;
            return self.balance();
        }
        self.platform.sync().map(drop)
    }

    /// Programs the page being filled, for the host (0) or the collector (1).
    fn program(&mut self, stream: usize) -> Result<(), FlashError> {
        let Filling { page, sectors } = std::mem::take(&mut self.filling[stream]);
        let Some(page) = page else {
            return Ok(());
        };
        let turn = self.turn(stream)?;
        let open = &mut self.open[stream][turn];
        let at = self.shape.page_at(open.block, open.page);
        open.page += 1;
        self.platform.program(at, page, stream == 1)?;
        self.pages += 1;
        for (slot, sector) in sectors.into_iter().enumerate() {
            let place = self.shape.place(at, slot as u64);
            let old = self.map.get(sector);
            self.map.set(sector, place);
            self.reverse.set(place, sector);
            self.blocks.gain(self.shape.block_of(place));
            if old != NONE {
                let block = self.shape.block_of(old);
                self.blocks.lose(block);
                if self.blocks.is(block, BlockUse::Invalid) {
                    self.blocks.set(block, BlockUse::Erasable);
                }
            }
        }
        if self.kind == BaselineKind::Synchronous {
            self.platform.sync()?;
        }
        Ok(())
    }

    fn turn(&mut self, stream: usize) -> Result<usize, FlashError> {
        let mut turn = 0;
        if self.open[stream].len() == self.widths[stream] {
            turn = (self.turns[stream] + 1) % self.open[stream].len();
            self.turns[stream] = turn;
            if self.open[stream][turn].page < self.shape.pages {
                return Ok(turn);
            }
            let full = self.open[stream].remove(turn);
            self.blocks.set(full.block, BlockUse::Used);
            self.blocks.vacate(full.block);
            if self.blocks.is(full.block, BlockUse::Invalid) {
                self.blocks.set(full.block, BlockUse::Erasable);
            }
        }
        let others: Vec<u64> = self.open[stream].iter().map(|open| open.block).collect();
        let purpose = [Purpose::Host, Purpose::Moved][stream];
        self.restock()?;
        let next = Policy::<Emulated<S>>::next(&mut self.policy, purpose, &self.blocks, &others);
        let Some(block) = next else {
            return Err(FlashError::Store(std::io::Error::other("no free block")));
        };
        self.blocks.set(block, BlockUse::Open);
        self.open[stream].insert(turn, Open { block, page: 0 });
        Ok(turn)
    }

    /// Erases ahead; a program waits for the erase in its die's queue.
    fn restock(&mut self) -> Result<(), FlashError> {
        let stock = Policy::<Emulated<S>>::stock(&self.policy);
        let count = (0..self.shape.blocks)
            .filter(|&b| self.blocks.is(b, BlockUse::Free))
            .count();
        let mut free = count as u64;
        while free < stock {
            let chosen = Policy::<Emulated<S>>::erase(&mut self.policy, &self.blocks);
            let Some(block) = chosen else {
                break;
            };
            self.platform.erase(block)?;
            self.blocks.set(block, BlockUse::Free);
            let erases = self.blocks.erases.get(block);
            self.blocks.erases.set(block, erases + 1);
            free += 1;
        }
        Ok(())
    }

    fn balance(&mut self) -> Result<(), FlashError> {
        let reserve = RESERVE + Policy::<Emulated<S>>::stock(&self.policy);
        // Blocks filled at the same time are replaced at the same time, as in the other layer.
        let pages = |open: &Open| self.shape.pages - open.page;
        let left: u64 = self.open.iter().flatten().map(pages).sum();
        let open = (self.widths[0] + self.widths[1]) as u64;
        let needed = open - (left / self.shape.pages).min(open);
        let spare = self.blocks.spare.saturating_sub(needed);
        if spare >= reserve + self.limits.margin || (self.victim.is_none() && !self.next_victim()) {
            return Ok(());
        }
        let valid = self.victim.map_or(0, |(_, _, valid)| valid);
        let limits = Limits {
            block_sectors: self.shape.pages * self.shape.sectors,
            ..self.limits
        };
        let room = spare as i64 - reserve as i64;
        let consumed = self.shape.sectors;
        let mut left =
            Policy::<Emulated<S>>::pace(&mut self.policy, &limits, consumed, valid, room);
        while left > 0 && (self.victim.is_some() || self.next_victim()) {
            if self.relocate_next()? {
                left -= 1;
            }
        }
        Ok(())
    }

    fn next_victim(&mut self) -> bool {
        let waiting: Vec<u64> = (self.filling[1].sectors.iter())
            .map(|&sector| self.shape.block_of(self.map.get(sector)))
            .collect();
        let block = (0..self.shape.blocks)
            .filter(|&b| self.blocks.is_victim(b) && !waiting.contains(&b))
            .min_by_key(|&b| self.blocks.valid(b));
        self.victim = block.map(|b| (b, 0, self.blocks.valid(b)));
        block.is_some()
    }

    fn relocate_next(&mut self) -> Result<bool, FlashError> {
        let Some((block, index, valid)) = self.victim else {
            return Ok(false);
        };
        let sectors = self.shape.sectors;
        if index >= self.shape.pages * sectors || !self.blocks.is(block, BlockUse::Used) {
            self.victim = None;
            return Ok(false);
        }
        self.victim = Some((block, index + 1, valid));
        let at = self.shape.page_at(block, index / sectors);
        let place = self.shape.place(at, index % sectors);
        let sector = self.reverse.get(place);
        if sector == NONE || self.map.get(sector) != place {
            return Ok(false);
        }
        let Some(page) = self.platform.fetch(at)? else {
            return Ok(false);
        };
        let mut target = match self.filling[1].page.take() {
            Some(target) => target,
            None => self.platform.blank(),
        };
        let to = self.filling[1].sectors.len();
        self.platform
            .copy(&page, (index % sectors) as usize, &mut target, to);
        self.filling[1].page = Some(target);
        self.filling[1].sectors.push(sector);
        self.moved += 1;
        if self.filling[1].sectors.len() as u64 == sectors {
            self.program(1)?;
        }
        Ok(true)
    }
}
