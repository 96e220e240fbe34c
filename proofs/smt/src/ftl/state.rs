//! Any state of the layer: all of its tables, lists and numbers unknown, but for its invariants; the ghosts
//! beside it; and the conditions of every program, erase and sync.
//!
//! Ghosts are values of the proof that the code does not hold: the committed map (`stable`), the result of the
//! data pages programmed so far (`replay`), the content of flash at each place (`listed`, `data`), the number
//! of programmed pages of each block (`fill`), and the places of the pages of the two logs (`log`, `deltas`).
//!
//! An invariant that holds for every sector (block, page of a log) is used where a table is read, for
//! the entry that is read, and shown for an arbitrary one. So no question to the solver has a quantifier.

use crate::blocks::{BlockUse, Blocks};
use crate::checkpoint::{DeltaPosition, Phase};
pub use crate::events::{any_block, any_sector};
use crate::events::{happens, map_is_set, use_is_set};
use crate::ftl::{Checkpoint, DELTA, Faults, Ftl, HOST, MAPS, MOVED};
use crate::limits::Widths;
use crate::shape::NONE;
use crate::stream::{Buffer, Cursor, Stream};
use crate::sym::{Anything, Flash, Memory, Page, Queue, Table, cell, differ, n, named, value};
use crate::view;
pub use crate::view::*;
use smt::explore::{assume, branch, end_path, prove, reached, suppose, unknown};
use smt::term::{Term, all, any, choice, implies, truth};
use smt::word::Word;
use std::cell::RefCell;

use BlockUse::Open;
/// The state before, as unknown functions of which no invariant was used.
fn bare(g: &Ghost) -> View {
    // Entries are named by as many bits as places in the table have.
    let f = |name: &'static str, width: u32| {
        let bits = match name {
            "map" | "stable" | "replay" => SECTORS.ilog2(),
            "listed" | "data" => SMALL.place_bits(),
            "log" | "deltas" => 64,
            "tables" | "tables next" => 6,
            _ => SMALL.blocks.ilog2(),
        };
        let name = named(name);
        Memory::of(move |at| value(&name, width, &[at.part(0, bits)]))
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
        tables: f("tables", 32),
        tables_next: f("tables next", 32),
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
    let of_table = |read: &Memory| {
        let view = bare.clone();
        with(
            read.clone(),
            Box::new(move |index| view.tables_hold(index)),
            64,
        )
    };
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
        tables: of_table(&bare.tables),
        tables_next: of_table(&bare.tables_next),
        count: plain(&bare.valid, SMALL.blocks),
        ..bare.ghost.clone()
    }
}

/// Start of a state.
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
    /// The epoch trimmed something, which is looked at.
    pub trims: bool,
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
            trims: false,
        }
    }
}

/// A state, and how it was when the operation began.
pub struct State {
    pub ftl: Layer,
    pub before: View,
    pub buffer: Buffered,
}

/// Place of the newest root.
const ANCHOR: u64 = 1;

fn count(name: &str) -> Word {
    Word::bits(name, COUNT_BITS)
}

fn blocks(g: &Ghost) -> Blocks<Flash> {
    let name = named("erases");
    Blocks {
        uses: Table(g.uses),
        valid: Table(g.valid),
        ages: Table(g.ages),
        erases: Table::new(
            Memory::of(move |block| {
                let erases = value(&name, 32, &[block]);
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

/// The layer becomes any that there can be.
pub fn any_state<Y>(ftl: &mut Ftl<Flash, Y>, begin: Begin) {
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
    let (delta_durable, root) = (count("durable delta"), count("root"));
    let written = Word::bits("written", 32);
    let spare = Word::bits("spare", 32);
    let steps = [
        (covered, said),
        (said, flushed),
        (flushed, number),
        (durable_runs, runs),
    ];
    let deltas = [(durable_from, from), (from, delta), (delta_durable, delta)];
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
    let trims = if begin.trims {
        Queue::any("trims")
    } else {
        Queue::default()
    };
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
        tables: 0,
        tables_next: 0,
        tables_written: !begin.rooted && matches!(begin.phase, Phase::Named | Phase::Rooted),
        tables_of: [
            limits.map_pages.div_ceil(SMALL.page_words * 2),
            SMALL.blocks.div_ceil(SMALL.page_words),
        ],
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
        volume: ftl.volume.0,
        incarnation: ftl.incarnation.0,
        durable_from: durable_from.0,
        from: from.0,
        delta: delta.0,
        committing: false,
        may_commit: false,
        written: written.0,
        trims: begin.trims.then_some(Trims {
            list: trims.0,
            grown: false,
        }),
        delta_durable: delta_durable.0,
        maps_waiting: false,
        root_waiting: false,
        root: root.0,
        anchor: n(ANCHOR),
        root_at: n(ANCHOR),
        root_page: n(0),
        root_page_waiting: n(0),
        ranges: None,
        ranges_said: n(0),
        failed: None,
        elsewhere: false,
        astray: truth(false),
    };
    let g = tables(&bare(&ghost));
    set_ghost(g.clone());
    let before = View::now();

    ftl.map = Table(g.map);
    ftl.loaded = Table::new(Memory::of(|_| n(1)), limits.map_pages);
    ftl.directory = Table(g.directory);
    ftl.blocks = blocks(&g);
    ftl.streams = streams(begin, &before);
    ftl.host = host(begin);
    ftl.moved = moved(begin, &before);
    ftl.victim = None;
    ftl.meta_used = Word::bits("metadata blocks", 32);
    ftl.bad = Word::bits("bad blocks", 32);
    ftl.number = number;
    ftl.flushed = flushed;
    ftl.pairs = Queue::any("pairs");
    ftl.trims = trims;
    ftl.delta = delta;
    ftl.runs = runs;
    ftl.checkpoint = Checkpoint {
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
        root,
        anchor: Word::of(ANCHOR),
        durable_anchor: Word::of(ANCHOR),
        anchor_page: Word::bits("anchor page", 5),
        vacant: false,
    };
    ftl.writes = Word::bits("writes", 32);
    ftl.budget = Word::bits("budget", 32);
    ftl.dirty = true;
    ftl.stopped = false;
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
}

impl State {
    pub fn any(begin: Begin) -> State {
        let volume = Word::any("volume");
        let mut ftl = Layer::empty(Flash, Anything, SMALL, limits(), volume, Faults::default());
        ftl.incarnation = Word::bits("incarnation", 32);
        ftl.dirty = true;
        any_state(&mut ftl, begin);
        let buffer = Buffered::of(&ftl.host);
        State {
            before: View::now(),
            ftl,
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

/// A new path begins.
pub fn reset() {
    view::reset();
    SECTOR.take();
}

/// Something more that is known of every sector that is looked at from now on.
pub fn always(fact: impl Fn(Term) -> Term + 'static) {
    SECTOR.with_borrow_mut(|facts| facts.push(std::rc::Rc::new(fact)));
}

type Fact = std::rc::Rc<dyn Fn(Term) -> Term>;

/// Further facts about it.
pub fn any_more(sector: Term) {
    for fact in SECTOR.with_borrow(Clone::clone) {
        suppose(fact(sector));
    }
}

thread_local! {
    static SECTOR: RefCell<Vec<Fact>> = const { RefCell::new(Vec::new()) };
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
    prove(
        "a page of the tables is lost",
        view.tables_hold(any_table()),
    );
}

impl State {
    /// The open block whose turn it is has room: `turn` is shown by itself, and leads there from
    /// any state.
    pub fn with_room(self, stream: usize) -> State {
        self.with_pages(stream, 1)
    }

    /// The stream has room for `pages` pages.
    pub fn with_pages(mut self, stream: usize, pages: u64) -> State {
        let s = &mut self.ftl.streams[stream];
        s.width = s.open.len();
        let turn = (s.turn + 1) % s.open.len();
        assume(s.open[turn].page.0.at_most(n(s.pages - pages)));
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
            ("where replay begins", ftl.checkpoint.from.number, g.from),
            ("the checkpoint", ftl.checkpoint.cycle, g.cycle),
            ("the number of map pages", ftl.checkpoint.written, g.written),
            (
                "where replay begins for the durable root",
                ftl.checkpoint.durable_from,
                g.durable_from,
            ),
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

    /// A crash returns to the earlier content of every sector.
    pub fn check_committed(&self) {
        let (sector, after) = (any_sector(), View::now());
        let place = after.stable.get(sector);
        let found = choice(is_none(place), n(0), after.data.get(place));
        let expected = self.before.content(&self.buffer, sector);
        prove("a crash returns to something else", found.equal(expected));
    }

    /// A crash returns to the same state as before.
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
