//! Terms of the proof: the ghosts, and the invariants, said of all tables at one moment.

use crate::blocks::BlockUse;
use crate::ftl::{DELTA, Ftl, MAPS};
use crate::limits::{ANCHORS, Limits};
use crate::shape::{NONE, Shape};
use crate::stream::Buffer;
use crate::sym::{Anything, Flash, Memory, cell, differ, n, named, value};
use smt::term::{Term, all, any, choice, implies, truth};
use smt::word::Word;
use std::cell::RefCell;

use BlockUse::{Anchor, Bad, Delta, Erasable, Erasing, Free, Invalid, Map, Next, Open, Used};

/// The geometry that operations are shown for: tables are unknown functions, so only sizes that are walked
/// with plain loops count (the sectors of a page, the streams' open blocks).
pub const SMALL: Shape = Shape {
    blocks: 512,
    pages: 16,
    sectors: 2,
    page_words: 32,
    spare_words: 8,
    dies: 2,
};
pub const SECTORS: u64 = 8192;
pub const EPOCH: u64 = 64;
/// Numbers of pages, runs and checkpoints are below this: at a billion a second for a hundred years.
pub const COUNT_BITS: u32 = 62;

/// Kind of the pages in a block.
pub const PAGES_OF_DATA: u64 = 0;
pub const PAGES_OF_DELTAS: u64 = 1;
pub const PAGES_OF_MAPS: u64 = 2;

pub fn pages_of(stream: usize) -> u64 {
    match stream {
        DELTA => PAGES_OF_DELTAS,
        MAPS => PAGES_OF_MAPS,
        _ => PAGES_OF_DATA,
    }
}

pub fn limits() -> Limits {
    match Limits::derive(&SMALL, SECTORS, EPOCH) {
        Ok(limits) => limits,
        Err(error) => panic!("{error}"),
    }
}

pub type Layer = Ftl<Flash, Anything>;

/// The ghosts, and where the layer's tables are.
#[derive(Clone)]
pub struct Ghost {
    pub map: usize,
    pub uses: usize,
    pub valid: usize,
    pub ages: usize,
    pub directory: usize,
    pub listed: usize,
    pub data: usize,
    pub stable: usize,
    pub replay: usize,
    pub fill: usize,
    pub holds: usize,
    pub log: usize,
    pub deltas: usize,
    /// The durable root's directory.
    pub rooted: usize,
    /// Pages of directory and block table: those that the durable root names, and those for the next one.
    pub tables: usize,
    pub tables_next: usize,
    /// The latter are written; how many pages of each there are.
    pub tables_written: bool,
    pub tables_of: [u64; 2],
    /// Required counts, by the changes to map and uses.
    pub count: usize,
    pub spare: Term,
    /// The newest data page; the newest committed one; the newest that the newest delta run says, and that the newest durable one says.
    pub number: Term,
    pub flushed: Term,
    pub said: Term,
    pub covered: Term,
    pub durable_runs: Term,
    pub runs: Term,
    pub cycle: Term,
    pub volume: Term,
    pub incarnation: Term,
    /// Delta pages from where the durable root's replay begins, from where the next one's begins, and the next one.
    pub durable_from: Term,
    pub from: Term,
    pub delta: Term,
    /// In the state before, map and committed map are the same; so are root's and current directory.
    pub committed: bool,
    pub rooted_now: bool,
    /// A page that commits was programmed, and nothing synced since.
    pub committing: bool,
    /// The operation may commit.
    pub may_commit: bool,
    /// The directory entries from here on are older than the checkpoint.
    pub written: Term,
    /// Delta pages below this are durable; other metadata was programmed since the last sync; so was a root.
    pub delta_durable: Term,
    pub maps_waiting: bool,
    pub root_waiting: bool,
    /// The newest durable root's number and anchor.
    pub root: Term,
    pub anchor: Term,
    /// Place of the root that waits for a sync.
    pub root_at: Term,
    /// The durable root's page, and the page of the one that waits.
    pub root_page: Term,
    pub root_page_waiting: Term,
    /// Trims of this epoch, if they are looked at.
    pub trims: Option<Trims>,
    /// The ranges that its trim pages are made of, and how many of them pages say already.
    pub ranges: Option<Ranges>,
    pub ranges_said: Term,
    /// The page that is programmed once more.
    pub failed: Option<Returned>,
    /// A page of one of the two logs lies where a mount that begins with the durable root may not look for it; so does a
    /// delta page that the root of the checkpoint under way would need.
    pub elsewhere: bool,
    pub astray: Term,
}

/// A page that came back from a sync, and where it was to lie.
#[derive(Clone, Copy)]
pub struct Returned {
    pub at: Term,
    pub page: usize,
}

/// The epoch's trims.
#[derive(Clone, Copy)]
pub struct Trims {
    pub list: usize,
    /// The last one came with the operation.
    pub grown: bool,
}

/// Ranges of trimmed sectors, and known facts about them and a sector.
#[derive(Clone)]
pub struct Ranges {
    pub words: Memory,
    pub length: Term,
    /// Known fact for any range and sector.
    pub fact: std::rc::Rc<dyn Fn(Term, Term) -> Term>,
    /// The range that a sector lies in, if one.
    pub of: std::rc::Rc<dyn Fn(Term) -> Term>,
}

/// The sector lies in the range.
pub fn covers(range: Term, sector: Term) -> Term {
    let (first, count) = (range.shifted(32), range.part(0, 32).widened());
    all([first.at_most(sector), sector.minus(first).below(count)])
}

/// The range lies on the disk.
pub fn is_range(range: Term) -> Term {
    let (first, count) = (range.shifted(32), range.part(0, 32).widened());
    all([
        n(1).at_most(count),
        first.at_most(n(SECTORS)),
        count.at_most(n(SECTORS).minus(first)),
    ])
}

/// Of the first `length` ranges, the one with this index has the sector.
pub fn in_range(words: &Memory, length: Term, index: Term, sector: Term) -> Term {
    all([index.below(length), covers(words.get(index), sector)])
}

thread_local! {
    static GHOST: RefCell<Option<Ghost>> = const { RefCell::new(None) };
}

pub fn reset() {
    GHOST.take();
}

pub fn ghost() -> Ghost {
    GHOST.with_borrow(|ghost| match ghost {
        Some(ghost) => ghost.clone(),
        None => unreachable!("a state was made"),
    })
}

/// The ghosts of a new state.
pub fn set_ghost(ghost: Ghost) {
    GHOST.set(Some(ghost));
}

pub fn with_ghost(f: impl FnOnce(&mut Ghost)) {
    GHOST.with_borrow_mut(|ghost| {
        if let Some(ghost) = ghost {
            f(ghost);
        }
    });
}

/// All that invariants speak of, at one moment.
#[derive(Clone)]
pub struct View {
    pub map: Memory,
    pub uses: Memory,
    pub valid: Memory,
    pub ages: Memory,
    pub directory: Memory,
    pub listed: Memory,
    pub data: Memory,
    pub stable: Memory,
    pub replay: Memory,
    pub fill: Memory,
    /// Stream of the pages in the block.
    pub holds: Memory,
    pub log: Memory,
    pub deltas: Memory,
    pub rooted: Memory,
    pub tables: Memory,
    pub tables_next: Memory,
    pub ghost: Ghost,
}

/// Index of a page of the directory, or else of the block table.
pub fn table_index(directory: bool, number: Term) -> Term {
    number.plus(n(if directory { 0 } else { TABLES_MAX }))
}

/// There are fewer pages of the directory.
const TABLES_MAX: u64 = 32;

/// There is such a page.
pub fn is_table(g: &Ghost, index: Term) -> Term {
    let [directories, tables] = g.tables_of;
    let directory = index.below(n(directories));
    let table = all([
        n(TABLES_MAX).at_most(index),
        index.below(n(TABLES_MAX + tables)),
    ]);
    any([directory, table])
}

/// Index of any page of directory or block table, if it is one.
pub fn any_table() -> Term {
    Word::bits("any page of the tables", 6).0
}

pub fn block_of(place: Term) -> Term {
    SMALL.block_of(Word(place)).0
}

pub fn is_none(term: Term) -> Term {
    term.equal(n(NONE))
}

impl View {
    pub fn now() -> View {
        let g = ghost();
        let words = |id: usize| cell(id).words;
        View {
            map: words(g.map),
            uses: words(g.uses),
            valid: words(g.valid),
            ages: words(g.ages),
            directory: words(g.directory),
            listed: words(g.listed),
            data: words(g.data),
            stable: words(g.stable),
            replay: words(g.replay),
            fill: words(g.fill),
            holds: words(g.holds),
            log: words(g.log),
            deltas: words(g.deltas),
            rooted: words(g.rooted),
            tables: words(g.tables),
            tables_next: words(g.tables_next),
            ghost: g,
        }
    }

    pub fn used_as(&self, block: Term, uses: &[BlockUse]) -> Term {
        let is = self.uses.get(block);
        any(uses.iter().map(|what| is.equal(what.number::<Word>().0)))
    }

    /// The place is one of a data page, and that page is programmed.
    pub fn is_place(&self, place: Term) -> Term {
        let page = SMALL.page_of(Word(place));
        let block = block_of(place);
        let index = SMALL.index_of_page(page).0;
        all([
            block.below(n(SMALL.blocks)),
            index.below(n(SMALL.data_pages())),
            SMALL.slot_of(Word(place)).0.below(n(SMALL.sectors)),
            index.below(self.fill.get(block)),
            self.holds.get(block).equal(n(PAGES_OF_DATA)),
        ])
    }

    pub fn is_page(&self, at: Term, uses: &[BlockUse], holds: u64) -> Term {
        let block = SMALL.block_of_page(Word(at)).0;
        all([
            self.holds.get(block).equal(n(holds)),
            block.below(n(SMALL.blocks)),
            SMALL.index_of_page(Word(at)).0.below(self.fill.get(block)),
            self.used_as(block, uses),
        ])
    }

    /// An open block holds pages of its stream alone.
    pub fn is_of(&self, stream: usize, block: Term, page: Term) -> Term {
        let holds = self.holds.get(block).equal(n(pages_of(stream)));
        any([page.equal(n(0)), holds])
    }

    pub fn page_age(&self, at: Term) -> Term {
        self.ages.get(SMALL.block_of_page(Word(at)).0)
    }

    /// A sector is nowhere, or where its page lists it, in a block of data; so no two share a place.
    pub fn map_holds(&self, sector: Term) -> Term {
        let place = self.map.get(sector);
        let there = [
            self.is_place(place),
            self.listed.get(place).equal(sector),
            self.used_as(block_of(place), &[Open, Used, Bad]),
        ];
        any([is_none(place), all(there)])
    }

    /// So is a committed sector; its block may be invalid, but not erasable.
    pub fn stable_holds(&self, sector: Term) -> Term {
        let place = self.stable.get(sector);
        let there = [
            self.is_place(place),
            self.listed.get(place).equal(sector),
            self.used_as(block_of(place), &[Open, Used, Invalid, Bad]),
        ];
        any([is_none(place), all(there)])
    }

    /// Recovery with everything committed would find the map's place, or the sector was trimmed.
    pub fn replay_holds(&self, sector: Term) -> Term {
        let (now, after) = (self.map.get(sector), self.replay.get(sector));
        any([
            now.equal(after),
            all([is_none(now), self.was_trimmed(sector)]),
        ])
    }

    /// The epoch trimmed it: with the range that had it before the operation, or with a new one.
    pub fn was_trimmed(&self, sector: Term) -> Term {
        let Some(Trims { list, grown }) = self.ghost.trims else {
            return truth(true);
        };
        let trims = cell(list);
        let trimmed = |index| in_range(&trims.words, trims.length, index, sector);
        let earlier = value(&named("trim of"), 32, &[sector.part(0, SECTORS.ilog2())]);
        let last = trims.length.minus(n(1));
        any([
            trimmed(earlier),
            all([truth(grown), differ(trims.length, n(0)), trimmed(last)]),
        ])
    }

    pub fn block_holds(&self, block: Term) -> Term {
        let without = [Free, Erasing, Erasable, Next, Invalid, Delta, Map, Anchor];
        all([
            self.uses.get(block).at_most(Bad.number::<Word>().0),
            self.valid.get(block).at_most(n(SMALL.block_sectors())),
            (self.valid.get(block)).at_most(self.fill.get(block).times(SMALL.sectors)),
            implies(
                self.used_as(block, &without),
                self.valid.get(block).equal(n(0)),
            ),
            any([
                self.holds.get(block).equal(n(PAGES_OF_DATA)),
                self.valid.get(block).equal(n(0)),
            ]),
            implies(
                self.used_as(block, &[Free, Next]),
                self.fill.get(block).equal(n(0)),
            ),
            self.fill.get(block).at_most(n(SMALL.pages)),
            block
                .below(n(ANCHORS))
                .equal(self.used_as(block, &[Anchor])),
        ])
    }

    /// A data page that durable delta pages do not say yet lies in a block that is neither victim nor erasable.
    pub fn log_holds(&self, number: Term) -> Term {
        let g = &self.ghost;
        let at = self.log.get(number);
        let kept = all([
            self.is_page(at, &[Open, Used, Invalid, Bad], PAGES_OF_DATA),
            g.durable_runs.at_most(self.page_age(at)),
            implies(g.said.below(number), g.runs.at_most(self.page_age(at))),
        ]);
        implies(
            all([g.covered.below(number), number.at_most(g.number)]),
            kept,
        )
    }

    /// A delta page that recovery needs is there; one that the next root needs is of its checkpoint.
    pub fn delta_holds(&self, number: Term) -> Term {
        let g = &self.ghost;
        let at = self.deltas.get(number);
        let kept = all([
            self.is_page(at, &[Open, Delta], PAGES_OF_DELTAS),
            implies(g.from.at_most(number), g.cycle.at_most(self.page_age(at))),
        ]);
        implies(
            all([g.durable_from.at_most(number), number.below(g.delta)]),
            kept,
        )
    }

    /// So are map pages: those the root names, and those written for the next. One that has no place is empty.
    pub fn directory_holds(&self, index: Term) -> Term {
        let (root, now) = (self.rooted.get(index), self.directory.get(index));
        let new = all([
            self.is_page(now, &[Open, Map], PAGES_OF_MAPS),
            self.ghost.cycle.at_most(self.page_age(now)),
        ]);
        all([
            any([
                is_none(root),
                self.is_page(root, &[Open, Map], PAGES_OF_MAPS),
            ]),
            implies(index.below(self.ghost.written), any([is_none(now), new])),
        ])
    }

    /// So are the pages of directory and block table.
    pub fn tables_hold(&self, index: Term) -> Term {
        let g = &self.ghost;
        let (root, next) = (self.tables.get(index), self.tables_next.get(index));
        let there = |at: Term| self.is_page(at, &[Open, Map], PAGES_OF_MAPS);
        let new = |at: Term| all([there(at), g.cycle.at_most(self.page_age(at))]);
        let kept = if g.rooted_now { new(root) } else { there(root) };
        let next = any([truth(!g.tables_written), new(next)]);
        implies(is_table(g, index), all([kept, next]))
    }

    /// A sector's content: that waiting in the host's buffer, else that at the place in the map.
    pub fn content(&self, buffer: &Buffered, sector: Term) -> Term {
        let place = self.map.get(sector);
        let mapped = choice(is_none(place), n(0), self.data.get(place));
        let waits = buffer.sectors.iter().zip(&buffer.contents);
        waits.fold(mapped, |other, (&waiting, &content)| {
            choice(waiting.equal(sector), content, other)
        })
    }
}

/// Content of a buffer.
#[derive(Clone)]
pub struct Buffered {
    pub sectors: Vec<Term>,
    pub contents: Vec<Term>,
}

impl Buffered {
    pub fn of(buffer: &Buffer<Flash>) -> Buffered {
        let content = |slot: usize| match &buffer.page {
            Some(page) => page.sector(slot as u64),
            None => n(0),
        };
        Buffered {
            sectors: buffer.sectors.iter().map(|sector| sector.0).collect(),
            contents: (0..buffer.sectors.len()).map(content).collect(),
        }
    }
}

impl View {
    /// A sector that waits to be moved has the content of its place, whose block was not erased since; or it was dropped.
    pub fn waiting_holds(&self, sector: Term, place: Term, content: Term) -> Term {
        let here = [
            sector.below(n(SECTORS)),
            self.is_place(place),
            self.listed.get(place).equal(sector),
            self.data.get(place).equal(content),
            self.used_as(block_of(place), &[Used, Invalid, Erasable, Bad]),
        ];
        any([all([is_none(sector), is_none(place)]), all(here)])
    }
}
