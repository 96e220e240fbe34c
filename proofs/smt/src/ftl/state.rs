//! Any state of the layer: all of its tables, lists and numbers unknown, but for what its invariants say; the
//! ghosts beside it; and what every program, erase and sync must keep to.
//!
//! Ghosts are what the proof speaks of and the code does not hold: the committed map (`stable`), what the data
//! pages programmed so far lead to (`replay`), what lies in flash at each place (`listed`, `data`), how far
//! each block is programmed (`fill`), and where the pages of the two logs lie (`log`, `deltas`).
//!
//! An invariant that holds for every sector (block, page of a log) is used where a table is read, for
//! the entry that is read, and shown for an arbitrary one. So no question to the solver has a quantifier.

use crate::blocks::{BlockUse, Blocks};
use crate::checkpoint::{Checkpoint, DeltaPosition, Phase};
use crate::ftl::{DELTA, Faults, Ftl, HOST, MAPS, MOVED, Stats};
use crate::limits::{Limits, Widths};
use crate::shape::{NONE, Shape};
use crate::stream::{Buffer, Cursor, Stream};
use crate::sym::{
    Anything, Event, Flash, Memory, Page, Queue, Table, cell, change, differ, n, value,
};
use crate::tag::{self, Tag};
use smt::explore::{assume, branch, end_path, prove, reached, suppose, unknown};
use smt::term::{Term, all, any, choice, implies, not, truth};
use smt::word::Word;
use std::cell::RefCell;

use BlockUse::{Anchor, Bad, Delta, Erasable, Erasing, Free, Invalid, Map, Next, Open, Used};

/// The geometry that operations are shown for: tables are unknown functions, so only what is walked with plain
/// loops counts (the sectors of a page, the streams' open blocks).
pub const SMALL: Shape = Shape {
    blocks: 512,
    pages: 16,
    sectors: 2,
    page_words: 32,
    spare_words: 8,
    dies: 2,
};
const SECTORS: u64 = 8192;
const EPOCH: u64 = 64;
/// Numbers of pages, runs and checkpoints are below this: at a billion a second for a hundred years.
pub const COUNT_BITS: u32 = 62;

/// What a block holds pages of.
const PAGES_OF_DATA: u64 = 0;
const PAGES_OF_DELTAS: u64 = 1;
const PAGES_OF_MAPS: u64 = 2;

fn pages_of(stream: usize) -> u64 {
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
    directory: usize,
    listed: usize,
    data: usize,
    stable: usize,
    replay: usize,
    pub fill: usize,
    holds: usize,
    log: usize,
    deltas: usize,
    /// The durable root's directory.
    rooted: usize,
    /// What the counts must be, by what was done to map and uses.
    count: usize,
    pub spare: Term,
    /// The newest data page; the newest committed one; the newest that the newest delta run says, and that the newest durable one says.
    pub number: Term,
    pub flushed: Term,
    pub said: Term,
    pub covered: Term,
    pub durable_runs: Term,
    pub runs: Term,
    cycle: Term,
    volume: Term,
    incarnation: Term,
    /// Delta pages from where the durable root's replay begins, from where the next one's begins, and the next one.
    durable_from: Term,
    from: Term,
    pub delta: Term,
    /// In the state before, map and committed map are the same; so are root's and current directory.
    committed: bool,
    rooted_now: bool,
    /// A page that commits was programmed, and nothing synced since.
    pub committing: bool,
    /// The operation may commit.
    pub may_commit: bool,
    /// The directory entries from here on are older than the checkpoint.
    written: Term,
}

thread_local! {
    static GHOST: RefCell<Option<Ghost>> = const { RefCell::new(None) };
}

pub fn reset() {
    GHOST.take();
    SECTOR.take();
}

pub fn ghost() -> Ghost {
    GHOST.with_borrow(|ghost| match ghost {
        Some(ghost) => ghost.clone(),
        None => unreachable!("a state was made"),
    })
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
    /// Which stream's pages the block holds.
    pub holds: Memory,
    pub log: Memory,
    pub deltas: Memory,
    pub rooted: Memory,
    pub ghost: Ghost,
}

fn block_of(place: Term) -> Term {
    SMALL.block_of(Word(place)).0
}

fn is_none(term: Term) -> Term {
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

    fn is_page(&self, at: Term, uses: &[BlockUse], holds: u64) -> Term {
        let block = SMALL.block_of_page(Word(at)).0;
        all([
            self.holds.get(block).equal(n(holds)),
            block.below(n(SMALL.blocks)),
            SMALL.index_of_page(Word(at)).0.below(self.fill.get(block)),
            self.used_as(block, uses),
        ])
    }

    /// An open block holds pages of its stream alone.
    fn is_of(&self, stream: usize, block: Term, page: Term) -> Term {
        let holds = self.holds.get(block).equal(n(pages_of(stream)));
        any([page.equal(n(0)), holds])
    }

    fn page_age(&self, at: Term) -> Term {
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

    /// What recovery would find if all were committed is what the map says, or the sector was trimmed.
    pub fn replay_holds(&self, sector: Term) -> Term {
        let (now, after) = (self.map.get(sector), self.replay.get(sector));
        any([now.equal(after), is_none(now)])
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

    /// So are map pages: those the root names, and those written for the next.
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
            implies(index.below(self.ghost.written), new),
        ])
    }

    /// A sector's content: what waits in the host's buffer, else what lies where the map says.
    pub fn content(&self, buffer: &Buffered, sector: Term) -> Term {
        let place = self.map.get(sector);
        let mapped = choice(is_none(place), n(0), self.data.get(place));
        let waits = buffer.sectors.iter().zip(&buffer.contents);
        waits.fold(mapped, |other, (&waiting, &content)| {
            choice(waiting.equal(sector), content, other)
        })
    }
}

/// What a buffer holds.
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

/// The state before, as unknown functions of which no invariant was used.
fn bare(g: &Ghost) -> View {
    // Entries are named by as many bits as places in the table have.
    let f = |name: &'static str, width: u32| {
        let bits = match name {
            "map" | "stable" | "replay" => SECTORS.ilog2(),
            "listed" | "data" => SMALL.place_bits(),
            "log" | "deltas" => 64,
            _ => SMALL.blocks.ilog2(),
        };
        Memory::of(move |at| value(name, width, &[at.part(0, bits)]))
    };
    View {
        map: f("map", 32),
        uses: f("uses", 32),
        valid: f("valid", 32),
        ages: f("ages", 32),
        directory: f("directory", 32),
        listed: f("listed", 32),
        data: f("data", 64),
        stable: f("stable", 32),
        replay: f("replay", 32),
        fill: f("fill", 32),
        holds: f("holds", 32),
        log: f("log", 32),
        deltas: f("deltas", 32),
        rooted: f("rooted", 32),
        ghost: g.clone(),
    }
}

fn tables(bare: &View) -> Ghost {
    let with = |read: Memory, fact: Box<dyn Fn(Term) -> Term>, limit: u64| {
        let base = Memory::of(move |at| {
            if at.below(n(limit)).as_truth() != Some(false) {
                suppose(implies(at.below(n(limit)), fact(at)));
            }
            read.get(at)
        });
        Table::new(base, limit).0
    };
    let of_block = |read: &Memory| {
        let view = bare.clone();
        with(
            read.clone(),
            Box::new(move |block| view.block_holds(block)),
            SMALL.blocks,
        )
    };
    let (a, b, c, d, e) = (
        bare.clone(),
        bare.clone(),
        bare.clone(),
        bare.clone(),
        bare.clone(),
    );
    let of_sector = move |sector| {
        let committed = a.stable.get(sector).equal(a.map.get(sector));
        let committed = any([committed, truth(!a.ghost.committed)]);
        all([a.map_holds(sector), a.replay_holds(sector), committed])
    };
    let places = 1 << SMALL.place_bits();
    let plain = |read: &Memory, limit: u64| Table::new(read.clone(), limit).0;
    let of_replay = bare.clone();
    let of_directory = bare.clone();
    Ghost {
        map: with(bare.map.clone(), Box::new(of_sector), SECTORS),
        uses: of_block(&bare.uses),
        valid: of_block(&bare.valid),
        ages: of_block(&bare.ages),
        directory: with(
            bare.directory.clone(),
            Box::new(move |index| of_directory.directory_holds(index)),
            limits().map_pages,
        ),
        listed: plain(&bare.listed, places),
        data: plain(&bare.data, places),
        stable: with(
            bare.stable.clone(),
            Box::new(move |sector| {
                let committed = b.stable.get(sector).equal(b.map.get(sector));
                let committed = any([committed, truth(!b.ghost.committed)]);
                all([b.stable_holds(sector), b.map_holds(sector), committed])
            }),
            SECTORS,
        ),
        replay: with(
            bare.replay.clone(),
            Box::new(move |sector| of_replay.replay_holds(sector)),
            SECTORS,
        ),
        fill: of_block(&bare.fill),
        holds: of_block(&bare.holds),
        log: with(
            bare.log.clone(),
            Box::new(move |number| c.log_holds(number)),
            u64::MAX,
        ),
        deltas: with(
            bare.deltas.clone(),
            Box::new(move |number| d.delta_holds(number)),
            u64::MAX,
        ),
        rooted: with(
            bare.rooted.clone(),
            Box::new(move |index| {
                let rooted = e.rooted.get(index).equal(e.directory.get(index));
                let rooted = any([rooted, truth(!e.ghost.rooted_now)]);
                all([e.directory_holds(index), rooted])
            }),
            limits().map_pages,
        ),
        count: plain(&bare.valid, SMALL.blocks),
        ..bare.ghost.clone()
    }
}

/// What a state begins with.
#[derive(Clone, Copy)]
pub struct Begin {
    /// Sectors that wait in the buffers.
    pub host: usize,
    pub moved: usize,
    /// Open blocks of each stream; none of the host's: as many as there can be.
    pub open: [usize; 4],
    /// The open block whose turn it is in this stream is full.
    pub full: Option<usize>,
    pub phase: Phase,
    /// A flush has just committed everything.
    pub committed: bool,
    /// The root of the checkpoint under way is durable.
    pub rooted: bool,
}

impl Default for Begin {
    fn default() -> Begin {
        Begin {
            host: 0,
            moved: 0,
            open: [1, 0, 0, 0],
            full: None,
            phase: Phase::Idle,
            committed: false,
            rooted: false,
        }
    }
}

/// A state, and how it was when the operation began.
pub struct State {
    pub ftl: Layer,
    pub before: View,
    pub buffer: Buffered,
}

fn count(name: &str) -> Word {
    Word::bits(name, COUNT_BITS)
}

fn blocks(g: &Ghost) -> Blocks<Flash> {
    Blocks {
        uses: Table(g.uses),
        valid: Table(g.valid),
        ages: Table(g.ages),
        erases: Table::new(
            Memory::of(|block| {
                let erases = value("erases", 32, &[block]);
                suppose(erases.below(n(NONE)));
                erases
            }),
            SMALL.blocks,
        ),
        failing: Table::new(Memory::any("failing", 32), SMALL.blocks),
        count: Word::of(SMALL.blocks),
        durable_runs: Word(g.durable_runs),
        spare: Word(g.spare),
        invalid: Queue::any("invalid"),
        erasing: Queue::any("erasing"),
        forget_age: false,
    }
}

/// A data page with these sectors waits, with these contents.
fn host(begin: Begin) -> Buffer<Flash> {
    let sectors: Vec<Word> = (0..begin.host).map(|_| Word::bits("waiting", 32)).collect();
    for (i, sector) in sectors.iter().enumerate() {
        let others = sectors[..i].iter().map(|other| differ(other.0, sector.0));
        suppose(all(others.chain([sector.0.below(n(SECTORS))])));
    }
    Buffer {
        page: (begin.host > 0).then(|| Page::any("host's page")),
        sectors,
        places: Vec::new(),
    }
}

/// Sectors that wait to be moved: as their places hold them, in blocks that were not erased since.
fn moved(begin: Begin, view: &View) -> Buffer<Flash> {
    let page = Page::any("moved page");
    let (mut sectors, mut places) = (Vec::new(), Vec::new());
    for slot in 0..begin.moved {
        let (sector, place) = (Word::bits("moved", 32), Word::bits("moved from", 32));
        suppose(view.waiting_holds(sector.0, place.0, page.sector(slot as u64)));
        sectors.push(sector);
        places.push(place);
    }
    Buffer {
        page: (begin.moved > 0).then_some(page),
        sectors,
        places,
    }
}

impl View {
    /// What waits to be moved is what its place holds, whose block was not erased since; or it was dropped.
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

impl State {
    pub fn any(begin: Begin) -> State {
        crate::sym::page_length(SMALL.page_words + SMALL.spare_words, true);
        let limits = limits();
        let (number, flushed, said, covered) = (
            count("number"),
            count("flushed"),
            count("said"),
            count("covered"),
        );
        let (runs, durable_runs) = (Word::bits("runs", 31), Word::bits("durable runs", 31));
        let (delta, from, durable_from) = (count("delta"), count("from"), count("durable from"));
        let cycle = Word::bits("cycle", 31);
        let written = Word::bits("written", 32);
        let spare = Word::bits("spare", 32);
        let steps = [
            (covered, said),
            (said, flushed),
            (flushed, number),
            (durable_runs, runs),
        ];
        let deltas = [(durable_from, from), (from, delta)];
        let steps = steps.iter().chain(&deltas).map(|(a, b)| a.0.at_most(b.0));
        let bounds = [
            spare.0.at_most(n(SMALL.blocks)),
            written.0.at_most(n(limits.map_pages)),
        ];
        assume(all(steps.chain(bounds)));
        if begin.committed {
            assume(flushed.0.equal(number.0));
        }
        if begin.phase == Phase::Idle || begin.rooted {
            assume(all([
                durable_from.0.equal(from.0),
                written.0.equal(n(limits.map_pages)),
            ]));
        }
        let ghost = Ghost {
            map: 0,
            uses: 0,
            valid: 0,
            ages: 0,
            directory: 0,
            listed: 0,
            data: 0,
            stable: 0,
            replay: 0,
            fill: 0,
            holds: 0,
            log: 0,
            deltas: 0,
            rooted: 0,
            count: 0,
            spare: spare.0,
            number: number.0,
            flushed: flushed.0,
            said: said.0,
            covered: covered.0,
            durable_runs: durable_runs.0,
            runs: runs.0,
            cycle: cycle.0,
            committed: begin.committed,
            rooted_now: begin.rooted,
            volume: Word::any("volume").0,
            incarnation: Word::bits("incarnation", 32).0,
            durable_from: durable_from.0,
            from: from.0,
            delta: delta.0,
            committing: false,
            may_commit: false,
            written: written.0,
        };
        let g = tables(&bare(&ghost));
        GHOST.set(Some(g.clone()));
        let before = View::now();
        let ftl = Layer {
            platform: Flash,
            policy: Anything,
            shape: SMALL,
            faults: Faults::default(),
            volume: Word(g.volume),
            incarnation: Word(g.incarnation),
            map: Table(g.map),
            loaded: Table::new(Memory::of(|_| n(1)), limits.map_pages),
            directory: Table(g.directory),
            blocks: blocks(&g),
            streams: streams(begin, &before),
            host: host(begin),
            moved: moved(begin, &before),
            victim: None,
            meta_used: Word::bits("metadata blocks", 32),
            bad: Word::bits("bad blocks", 32),
            number,
            flushed,
            pairs: Queue::any("pairs"),
            trims: Queue::default(),
            delta,
            runs,
            checkpoint: Checkpoint {
                phase: begin.phase,
                cycle,
                from: DeltaPosition {
                    number: from,
                    block: Word::bits("from block", 32),
                    page: Word::bits("from page", 32),
                    next: [Word::bits("from next", 32), Word::bits("from next", 32)],
                },
                durable_from,
                written,
                counted: count("counted"),
                directories: Queue::any("directories"),
                tables: Queue::any("tables"),
                root: count("root"),
                anchor: Word::of(1),
                anchor_page: Word::bits("anchor page", 5),
            },
            writes: Word::bits("writes", 32),
            budget: Word::bits("budget", 32),
            moves: Word::bits("moves", 32),
            dirty: true,
            stopped: false,
            recovering: false,
            stats: Stats::default(),
            limits,
        };
        Table(g.map).on_set(map_is_set);
        Table(g.uses).on_set(use_is_set);
        crate::sym::watch(happens);
        // Waiting for a block (`poll_one` is shown by itself) leads to another state of which the
        // same is known, and there the choice begins again.
        crate::sym::loop_shown("erasing blocks", |_| {
            check_all(&View::now());
            reached("waits");
            end_path();
        });
        let buffer = Buffered::of(&ftl.host);
        State {
            ftl,
            before,
            buffer,
        }
    }
}

fn streams(begin: Begin, view: &View) -> [Stream<Flash>; 4] {
    let widths = Widths::of(&SMALL);
    let width = [widths.host, widths.moved, 1, widths.map];
    let mut taken: Vec<Term> = Vec::new();
    [HOST, MOVED, DELTA, MAPS].map(|stream| {
        let pages = if stream == HOST || stream == MOVED {
            SMALL.data_pages()
        } else {
            SMALL.pages
        };
        let turn = 1 % begin.open[stream].max(1);
        let open = (0..begin.open[stream]).map(|index| {
            let block = Word::bits("open block", 32);
            let page = match begin.full {
                Some(full) if full == stream && index == turn => Word::of(pages),
                _ => Word::bits("open page", 8),
            };
            let other = taken.iter().map(|&other| differ(other, block.0));
            suppose(all(other.chain([
                block.0.below(n(SMALL.blocks)),
                view.used_as(block.0, &[Open]),
                view.fill.get(block.0).equal(page.0),
                view.is_of(stream, block.0, page.0),
                page.0.at_most(n(pages)),
            ])));
            taken.push(block.0);
            Cursor {
                block,
                page,
                sectors: Queue::new(
                    Memory::any("block's sectors", 32),
                    page.0.times(SMALL.sectors),
                ),
            }
        });
        Stream {
            width: width[stream] as usize,
            pages,
            open: open.collect(),
            turn: 0,
            next: [Word::bits("next", 32), Word::bits("next", 32)],
        }
    })
}

/// The map changes: so do the numbers of sectors that lie in blocks. A number is not zero if there
/// is one.
fn map_is_set(sector: Term, place: Term) {
    let g = ghost();
    let old = cell(g.map).words.get(sector);
    let counted = cell(g.count).words.get(block_of(old));
    suppose(any([is_none(old), n(1).at_most(counted)]));
    for (place, up) in [(place, true), (old, false)] {
        let block = block_of(place);
        let have = cell(g.count).words.get(block);
        let new = if up {
            have.plus(n(1))
        } else {
            have.minus(n(1))
        };
        change(g.count, |cell| {
            cell.words.set(block, choice(is_none(place), have, new));
        });
    }
}

/// A block's use changes: so does the number of spare ones, which is not zero if there is one, and
/// not all if there is another.
fn use_is_set(block: Term, what: Term) {
    let view = View::now();
    let spare = [Free, Erasing, Erasable, Invalid];
    let is = any(spare.map(|use_| what.equal(use_.number::<Word>().0)));
    let was = view.used_as(block, &spare);
    let have = view.ghost.spare;
    suppose(all([
        any([not(was), n(1).at_most(have)]),
        any([was, have.below(n(SMALL.blocks))]),
    ]));
    let one = |is: Term| choice(is, n(1), n(0));
    let change = one(is).minus(one(was));
    with_ghost(|g| g.spare = g.spare.plus(change));
}

/// What every change of the flash memory keeps to, whatever a crash then leaves of it.
fn happens(event: &Event) {
    match *event {
        Event::Program { at, page } => program(at, page),
        Event::Erase { block } => {
            needs_nothing(&View::now(), block);
            let g = ghost();
            let unknown = Word::bits("interrupted erase", 5).0;
            suppose(unknown.at_most(n(SMALL.pages)));
            change(g.fill, |cell| cell.words.set(block, unknown));
            reached("erase");
        }
        Event::Erased { block } => change(ghost().fill, |cell| cell.words.set(block, n(0))),
        Event::Sync => {
            let g = ghost();
            if g.committing {
                let view = View::now();
                let sector = any_sector();
                let same = view.map.get(sector).equal(view.replay.get(sector));
                prove("what is committed is not what the map says", same);
                let replay = cell(g.replay).words;
                change(g.stable, |cell| cell.words = replay);
                with_ghost(|g| {
                    g.flushed = g.number;
                    g.committing = false;
                });
                reached("commit");
            }
        }
    }
}

pub fn any_sector() -> Term {
    let sector = unknown("any sector", 32).widened();
    suppose(sector.below(n(SECTORS)));
    if let Some(fact) = SECTOR.with_borrow(Clone::clone) {
        suppose(fact(sector));
    }
    sector
}

pub fn any_block() -> Term {
    let block = unknown("any block", 32).widened();
    suppose(block.below(n(SMALL.blocks)));
    block
}

/// Nothing that recovery reads, or that the map names, lies in the block.
fn needs_nothing(view: &View, block: Term) {
    prove(
        "a block is erased that is not erasable",
        view.used_as(block, &[Erasable]),
    );
    let sector = any_sector();
    let in_block = |place: Term| all([not(is_none(place)), block_of(place).equal(block)]);
    prove(
        "an erase takes a committed sector",
        not(in_block(view.stable.get(sector))),
    );
    prove(
        "an erase takes a sector",
        not(in_block(view.map.get(sector))),
    );
    let of_page = |at: Term| SMALL.block_of_page(Word(at)).0.equal(block);
    let number = Word::any("any data page").0;
    let g = &view.ghost;
    let needed = all([g.covered.below(number), number.at_most(g.number)]);
    let taken = all([needed, of_page(view.log.get(number))]);
    prove(
        "an erase takes a data page that no delta page says",
        not(taken),
    );
    let number = Word::any("any delta page").0;
    let needed = all([g.durable_from.at_most(number), number.below(g.delta)]);
    let taken = all([needed, of_page(view.deltas.get(number))]);
    prove("an erase takes a delta page", not(taken));
    let index = Word::bits("any map page", 32).0;
    suppose(index.below(n(limits().map_pages)));
    let root = view.rooted.get(index);
    prove(
        "an erase takes a map page",
        not(all([not(is_none(root)), of_page(root)])),
    );
}

/// A page goes to the next place of an open block, where nothing lay; if it is one of a log, it has
/// the next number. It commits only where that is meant, and last.
fn program(at: Term, page: &Page) {
    let g = ghost();
    let view = View::now();
    let (block, index) = (
        SMALL.block_of_page(Word(at)).0,
        SMALL.index_of_page(Word(at)).0,
    );
    prove(
        "a page is programmed outside",
        all([block.below(n(SMALL.blocks)), index.below(n(SMALL.pages))]),
    );
    prove(
        "a page is not the next of its block",
        view.fill.get(block).equal(index),
    );
    prove(
        "a page goes to a block that is not open",
        view.used_as(block, &[Open]),
    );
    change(g.fill, |cell| cell.words.set(block, index.plus(n(1))));
    let Some(tag) = Tag::read(&SMALL, Word(g.volume), page) else {
        prove("a page without a tag is programmed", truth(false));
        return;
    };
    let holds = if tag.is(tag::DATA) || tag.is(tag::TRIM) || tag.is(tag::SUMMARY) {
        PAGES_OF_DATA
    } else if tag.is(tag::DELTA) {
        PAGES_OF_DELTAS
    } else {
        PAGES_OF_MAPS
    };
    let first = index.equal(n(0));
    let same = view.holds.get(block).equal(n(holds));
    prove("a block holds pages of two streams", any([first, same]));
    change(g.holds, |cell| cell.words.set(block, n(holds)));
    prove(
        "a page is of another mount",
        tag.incarnation.0.equal(g.incarnation),
    );
    prove(
        "a page says that more is durable than is",
        tag.flushed.0.at_most(g.flushed),
    );
    if tag.is(tag::DATA) || tag.is(tag::TRIM) {
        data_page(at, page, &tag);
    } else if tag.is(tag::SUMMARY) {
        prove(
            "a summary lies among data",
            n(SMALL.data_pages()).at_most(index),
        );
    } else {
        prove(
            "metadata is written before it is committed",
            g.flushed.equal(g.number),
        );
        prove("metadata is written before the sync", truth(!g.committing));
        if tag.is(tag::DELTA) {
            prove(
                "a delta page's number is not the next",
                tag.number.0.equal(g.delta),
            );
            change(g.deltas, |cell| cell.words.set(g.delta, at));
            with_ghost(|g| g.delta = g.delta.plus(n(1)));
        }
    }
}

fn data_page(at: Term, page: &Page, tag: &Tag<Word>) {
    let g = ghost();
    prove(
        "a data page's number is not the next",
        tag.number.0.equal(g.number.plus(n(1))),
    );
    prove(
        "a data page follows the one that commits",
        truth(!g.committing),
    );
    let index = SMALL.index_of_page(Word(at)).0;
    prove(
        "a data page lies where summaries do",
        index.below(n(SMALL.data_pages())),
    );
    change(g.log, |cell| cell.words.set(tag.number.0, at));
    with_ghost(|g| g.number = g.number.plus(n(1)));
    if tag.is(tag::DATA) {
        for slot in 0..SMALL.sectors {
            let place = SMALL.place(Word(at), slot).0;
            let listed = tag::sector(&SMALL, page, slot).0;
            let sector = choice(n(slot).below(tag.count.0), listed, n(NONE));
            prove(
                "a page lists a sector beyond the disk",
                any([is_none(sector), sector.below(n(SECTORS))]),
            );
            change(g.listed, |cell| cell.words.set(place, sector));
            change(g.data, |cell| cell.words.set(place, page.sector(slot)));
            change(g.replay, |cell| {
                cell.words
                    .set_where(move |x| (all([not(is_none(sector)), x.equal(sector)]), place));
            });
        }
    }
    if tag.commits() {
        prove("a page commits that must not", truth(g.may_commit));
        with_ghost(|g| g.committing = true);
    } else {
        prove(
            "a page has a flag that nobody knows",
            tag.flags.0.equal(n(0)),
        );
    }
}

/// Something more that is known of every sector that is looked at from now on.
pub fn always(fact: impl Fn(Term) -> Term + 'static) {
    SECTOR.set(Some(std::rc::Rc::new(fact)));
}

thread_local! {
    static SECTOR: RefCell<Option<std::rc::Rc<dyn Fn(Term) -> Term>>> = const { RefCell::new(None) };
}

/// The counts are right, of any block.
pub fn check_counts(view: &View) {
    let counted = cell(view.ghost.count).words;
    let block = any_block();
    prove(
        "a count of valid sectors is wrong",
        view.valid.get(block).equal(counted.get(block)),
    );
}

/// The invariants, of any sector, block, and page of a log.
pub fn check_all(view: &View) {
    let counted = cell(view.ghost.count).words;
    let block = any_block();
    prove("a block's state makes no sense", view.block_holds(block));
    let right = |block: Term| view.valid.get(block).equal(counted.get(block));
    prove("a count of valid sectors is wrong", right(block));
    let sector = any_sector();
    // So it is for the block of this sector, which holds one at least.
    let place = view.map.get(sector);
    let of_block = all([
        right(block_of(place)),
        n(1).at_most(counted.get(block_of(place))),
    ]);
    suppose(any([is_none(place), of_block]));
    prove("the map is unsound", view.map_holds(sector));
    prove("the committed map is unsound", view.stable_holds(sector));
    prove("replay leads elsewhere", view.replay_holds(sector));
    prove(
        "a page of the data log is lost",
        view.log_holds(Word::any("any data page").0),
    );
    prove(
        "a page of the delta log is lost",
        view.delta_holds(Word::any("any delta page").0),
    );
    let index = Word::bits("any map page", 32).0;
    suppose(index.below(n(limits().map_pages)));
    prove("a map page is lost", view.directory_holds(index));
}

impl State {
    /// The open block whose turn it is has room: `turn` is shown by itself, and leads there from
    /// any state.
    pub fn with_room(mut self, stream: usize) -> State {
        let s = &mut self.ftl.streams[stream];
        s.width = s.open.len();
        let turn = (s.turn + 1) % s.open.len();
        assume(s.open[turn].page.0.below(n(s.pages)));
        self
    }

    /// The invariants hold again.
    pub fn check(&self) {
        let ftl = &self.ftl;
        let view = View::now();
        let g = &view.ghost;
        for (what, word, ghost) in [
            ("the number of the newest page", ftl.number, g.number),
            ("the number of spare blocks", ftl.blocks.spare, g.spare),
            ("the number of the next delta page", ftl.delta, g.delta),
            ("the number of runs", ftl.runs, g.runs),
            (
                "the number of durable runs",
                ftl.blocks.durable_runs,
                g.durable_runs,
            ),
        ] {
            prove(what, word.0.equal(ghost));
        }
        check_all(&view);
        let mut taken: Vec<Term> = Vec::new();
        for (index, stream) in ftl.streams.iter().enumerate() {
            prove(
                "a stream is wider than it may be",
                truth(stream.open.len() <= stream.width),
            );
            for cursor in &stream.open {
                let (block, page) = (cursor.block.0, cursor.page.0);
                let other = taken.iter().map(|&other| differ(other, block));
                let open = [
                    block.below(n(SMALL.blocks)),
                    view.used_as(block, &[Open]),
                    view.fill.get(block).equal(page),
                    view.is_of(index, block, page),
                    page.at_most(n(stream.pages)),
                ];
                prove(
                    "an open block is not as its stream has it",
                    all(other.chain(open)),
                );
                taken.push(block);
            }
        }
        let waiting = Buffered::of(&ftl.moved);
        let places = ftl.moved.places.iter();
        for ((&sector, place), &content) in
            waiting.sectors.iter().zip(places).zip(&waiting.contents)
        {
            let holds = view.waiting_holds(sector, place.0, content);
            prove("what waits to be moved is not what its place holds", holds);
        }
    }

    /// Every sector reads as before, but for `changed`, which reads as this.
    pub fn check_contents(&self, changed: Option<(Term, Term)>) {
        let (before, after) = (&self.before, View::now());
        let sector = any_sector();
        let mut expected = before.content(&self.buffer, sector);
        if let Some((at, content)) = changed {
            expected = choice(sector.equal(at), content, expected);
        }
        let found = after.content(&Buffered::of(&self.ftl.host), sector);
        prove("a sector reads as something else", found.equal(expected));
    }

    /// What a crash returns to is as before.
    pub fn check_stable(&self) {
        let sector = any_sector();
        let after = View::now();
        let same = after
            .stable
            .get(sector)
            .equal(self.before.stable.get(sector));
        prove("what a crash returns to has changed", same);
        let place = self.before.stable.get(sector);
        let kept = after.data.get(place).equal(self.before.data.get(place));
        prove(
            "a committed sector was overwritten",
            any([is_none(place), kept]),
        );
    }
}

pub fn chosen(name: &str) -> bool {
    branch(unknown(name, 0))
}
