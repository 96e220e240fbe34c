//! The base of the layer, as terms: tables, queues, pages and a flash memory with unknown
//! contents, loops, and a policy that may propose anything.

use crate::blocks::Blocks;
use crate::error::{self, FtlError};
use crate::ftl::Ftl;
use crate::limits::Limits;
use crate::loops::Rule;
pub use crate::loops::{loop_kept, loop_of, loop_shown};
use crate::platform::{self, Erase, Failed, Platform};
use crate::policy::{Policy, Purpose};
use crate::state::SMALL;
use crate::tag;
use smt::explore::{branch, end_path, fresh, prove, suppose, unknown};
use smt::term::{Term, all, apply, choice, implies, not, number};
use smt::word::Word;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Queues are shorter than this.
const LENGTH_BITS: u32 = 40;

pub fn n(value: u64) -> Term {
    number(64, value)
}

/// The value of an unknown function, as a number of 64 bits.
pub fn value(function: &str, width: u32, to: &[Term]) -> Term {
    apply(function, width, to).widened()
}

impl platform::Word for Word {
    fn of(value: u64) -> Word {
        Word::of(value)
    }

    /// Slots are tried one after the other. Else correctness does not rest on the number: one
    /// or another.
    fn value(self) -> u64 {
        let most = self.0.most();
        match self.0.as_number() {
            Some(value) => value,
            None if most < SMALL.sectors => (0..most)
                .find(|&slot| branch(self.0.equal(n(slot))))
                .unwrap_or(most),
            None if branch(unknown("some number", 0)) => SOME.get(),
            None => 0,
        }
    }

    #[track_caller]
    fn times(self, factor: u64) -> Word {
        // Numbers of blocks and pages: 16 bits, so that a product's bound is known from its form.
        prove("a product may overflow", self.0.at_most(n(0xFFFF)));
        assert!(factor < 1 << 32);
        Word(self.0.part(0, 16).widened().times(factor))
    }
}

/// Values by place, with all changes so far. Cloning keeps a state.
#[derive(Clone)]
pub struct Memory(Rc<Change>);

enum Change {
    Base(Box<dyn Fn(Term) -> Term>),
    Set(Memory, Term, Term),
    /// This value, if the condition holds.
    Where(Memory, Box<dyn Fn(Term) -> (Term, Term)>),
}

impl Memory {
    pub fn of(base: impl Fn(Term) -> Term + 'static) -> Memory {
        Memory(Rc::new(Change::Base(Box::new(base))))
    }

    /// Nothing is known of it.
    pub fn any(name: &str, width: u32) -> Memory {
        let name = fresh(name);
        Memory::of(move |at| value(&name, width, &[at]))
    }

    pub fn get(&self, at: Term) -> Term {
        match &*self.0 {
            Change::Base(base) => base(at),
            Change::Set(before, place, value) => {
                let here = place.equal(at);
                match here.as_truth() {
                    Some(true) => *value,
                    Some(false) => before.get(at),
                    None => choice(here, *value, before.get(at)),
                }
            }
            Change::Where(before, change) => {
                let (here, value) = change(at);
                match here.as_truth() {
                    Some(true) => value,
                    Some(false) => before.get(at),
                    None => choice(here, value, before.get(at)),
                }
            }
        }
    }

    /// Whether nothing was changed since it was this one.
    pub fn is(&self, other: &Memory) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    pub fn set(&mut self, at: Term, value: Term) {
        *self = Memory(Rc::new(Change::Set(self.clone(), at, value)));
    }

    pub fn set_where(&mut self, change: impl Fn(Term) -> (Term, Term) + 'static) {
        *self = Memory(Rc::new(Change::Where(self.clone(), Box::new(change))));
    }
}

/// Places and pages that a sync gives back.
type Returned = Vec<(Term, usize)>;
type Watcher = Rc<dyn Fn(&Event)>;
type Hook = Rc<dyn Fn(Term, Term)>;

/// A table's, a queue's or a page's state.
#[derive(Clone)]
pub struct Cell {
    pub words: Memory,
    pub length: Term,
    /// Sectors' contents, for pages.
    pub slots: Memory,
    pub seal: Seal,
    /// Notified of a place and its new value, before it is set.
    hook: Option<Hook>,
}

/// Whether a page's last word is its checksum.
#[derive(Clone)]
pub enum Seal {
    /// For the volume and the place it was sealed for, and for no other (see the README).
    By(Term, Term),
    /// As the medium at this place says.
    Medium(Term),
    /// It was changed since.
    Broken,
}

/// An operation of the layer on the flash memory; the watcher gets it before it happens.
pub enum Event<'a> {
    Program {
        at: Term,
        page: &'a Page,
    },
    Erase {
        block: Term,
    },
    Erased {
        block: Term,
    },
    Sync,
    /// A sync that says that programs failed.
    Failed,
}

#[derive(Default)]
struct World {
    cells: Vec<Cell>,
    watcher: Option<Watcher>,
    rules: HashMap<&'static str, Rule>,
    programs: Vec<(Term, Page)>,
    /// Results of the next syncs, the last one first.
    failing: Vec<Returned>,
    /// A number that a search which finds nothing has looked at.
    looked_at: Option<Term>,
    /// Result of the last search.
    found: Option<Term>,
    /// Result of the last sort.
    sorted: Option<Sorted>,
    /// States before this one on the path.
    states: u32,
    /// The page made last.
    blank: Option<usize>,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(f)
}

/// A new path begins.
pub fn reset() {
    drop(WORLD.take());
    PROPOSES.set(true);
    SOME.set(3);
}

pub fn watch(watcher: impl Fn(&Event) + 'static) {
    with(|world| world.watcher = Some(Rc::new(watcher)));
}

pub fn last_blank() -> Page {
    Page(with(|world| world.blank).unwrap_or_else(|| unreachable!("a page was made")))
}

/// The table made last, or the one before.
pub fn table_made(before_last: usize) -> usize {
    with(|world| world.cells.len() - 1 - before_last)
}

pub fn programs() -> Vec<(Term, Page)> {
    with(|world| {
        world
            .programs
            .iter()
            .map(|(at, page)| (*at, Page(page.0)))
            .collect()
    })
}

/// The next syncs give these pages back, one list each.
pub fn fail(lists: Vec<Returned>) {
    with(|world| world.failing = lists.into_iter().rev().collect());
}

/// Searches that find nothing have looked at this number, too.
pub fn look_at(number: Term) {
    with(|world| world.looked_at = Some(number));
}

/// Result of the last search.
pub fn found() -> Option<Term> {
    with(|world| world.found)
}

pub fn set_rule(name: &'static str, rule: Rule) {
    with(|world| world.rules.insert(name, rule));
}

pub fn rule(name: &str) -> Option<Rule> {
    with(|world| world.rules.get(name).cloned())
}

/// All cells that there are.
pub fn cells() -> Vec<Cell> {
    with(|world| world.cells.clone())
}

fn tell(event: &Event) {
    if let Some(watcher) = with(|world| world.watcher.clone()) {
        watcher(event);
    }
}

fn allocate(cell: Cell) -> usize {
    with(|world| {
        world.cells.push(cell);
        world.cells.len() - 1
    })
}

pub fn cell(id: usize) -> Cell {
    with(|world| world.cells[id].clone())
}

pub fn change(id: usize, f: impl FnOnce(&mut Cell)) {
    let mut cell = cell(id);
    f(&mut cell);
    with(|world| world.cells[id] = cell);
}

fn fresh_cell(words: Memory, length: Term) -> usize {
    allocate(Cell {
        words,
        length,
        slots: Memory::of(|_| n(0)),
        seal: Seal::Broken,
        hook: None,
    })
}

/// A table; see [`Cell`].
pub struct Table(pub usize);

impl Table {
    pub fn new(words: Memory, length: u64) -> Table {
        Table(fresh_cell(words, n(length)))
    }

    pub fn on_set(&self, hook: impl Fn(Term, Term) + 'static) {
        change(self.0, |cell| cell.hook = Some(Rc::new(hook)));
    }
}

impl platform::Table<Word> for Table {
    fn filled(length: Word, value: Word) -> Table {
        Table(fresh_cell(Memory::of(move |_| value.0), length.0))
    }

    #[track_caller]
    fn get(&self, at: Word) -> Word {
        let cell = cell(self.0);
        prove(
            "an entry of a table is out of range",
            at.0.below(cell.length),
        );
        Word(cell.words.get(at.0))
    }

    #[track_caller]
    fn set(&mut self, at: Word, value: Word) {
        let before = cell(self.0);
        prove(
            "an entry of a table is out of range",
            at.0.below(before.length),
        );
        prove("a number does not fit a table", value.0.below(n(1 << 32)));
        if let Some(hook) = before.hook {
            hook(at.0, value.0);
        }
        change(self.0, |cell| cell.words.set(at.0, value.0));
    }
}

/// A list.
pub struct Queue(pub usize);

impl Queue {
    pub fn any(name: &str) -> Queue {
        let length = Word::bits(&format!("{name}.length"), LENGTH_BITS).0;
        Queue(fresh_cell(Memory::any(name, 64), length))
    }

    pub fn new(words: Memory, length: Term) -> Queue {
        Queue(fresh_cell(words, length))
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue(fresh_cell(Memory::of(|_| n(0)), n(0)))
    }
}

impl platform::Queue<Word> for Queue {
    fn length(&self) -> Word {
        Word(cell(self.0).length)
    }

    #[track_caller]
    fn get(&self, at: Word) -> Word {
        let cell = cell(self.0);
        prove(
            "an entry of a list is out of range",
            at.0.below(cell.length),
        );
        Word(cell.words.get(at.0))
    }

    #[track_caller]
    fn set(&mut self, at: Word, value: Word) {
        change(self.0, |cell| {
            prove(
                "an entry of a list is out of range",
                at.0.below(cell.length),
            );
            cell.words.set(at.0, value.0);
        });
    }

    fn push(&mut self, value: Word) {
        change(self.0, |cell| {
            cell.words.set(cell.length, value.0);
            cell.length = cell.length.plus(n(1));
        });
    }

    #[track_caller]
    fn truncate(&mut self, length: Word) {
        change(self.0, |cell| {
            prove("a list is made longer", length.0.at_most(cell.length));
            cell.length = length.0;
        });
    }

    /// Another list: each of its numbers is one of the old one's. The rest is in [`Sorted`].
    fn sort(&mut self) {
        let Cell { words, length, .. } = cell(self.0);
        let [name, from, to] = ["sorted", "sorted from", "sorted to"].map(fresh);
        let (before, source_of) = (words.clone(), from.clone());
        let after = Memory::of(move |at| {
            let number = value(&name, 64, &[at]);
            let source = value(&source_of, LENGTH_BITS, &[at]);
            let same = number.equal(words.get(source));
            suppose(implies(at.below(length), all([source.below(length), same])));
            number
        });
        let list = self.0;
        *self = Queue::new(after.clone(), length);
        let sorted = Sorted {
            list,
            before,
            after,
            length,
            from,
            to,
        };
        with(|world| world.sorted = Some(sorted));
    }
}

/// Result of the last sort. For any of the old numbers its new place is known, and any two of the new ones are
/// known to be in order; like an invariant, for those that are asked for.
#[derive(Clone)]
pub struct Sorted {
    list: usize,
    before: Memory,
    after: Memory,
    length: Term,
    from: String,
    to: String,
}

impl Sorted {
    /// If this list, as it was, was sorted last.
    pub fn of(list: usize) -> Option<Sorted> {
        with(|world| world.sorted.clone()).filter(|sorted| sorted.list == list)
    }

    /// New place of the number at this place of the old list.
    pub fn to(&self, at: Term) -> Term {
        let to = value(&self.to, LENGTH_BITS, &[at]);
        let same = self.after.get(to).equal(self.before.get(at));
        let there = all([to.below(self.length), same]);
        suppose(implies(at.below(self.length), there));
        to
    }

    /// Old place of the number at this place of the new list.
    pub fn from(&self, at: Term) -> Term {
        self.after.get(at);
        value(&self.from, LENGTH_BITS, &[at])
    }

    /// Two of the new ones.
    pub fn in_order(&self, first: Term, second: Term) {
        let order = self.after.get(first).at_most(self.after.get(second));
        let there = [first.below(second), second.below(self.length)];
        suppose(implies(all(there), order));
    }
}

/// A page with its spare area.
pub struct Page(pub usize);

impl Clone for Page {
    fn clone(&self) -> Page {
        Page(allocate(cell(self.0)))
    }
}

/// The name of an unknown function of this state: another state has others.
pub fn named(what: &str) -> String {
    match with(|world| world.states) {
        0 => what.to_owned(),
        later => format!("{what} of state {later}"),
    }
}

/// The unknowns of the state are new from here on.
pub fn next_state() {
    with(|world| world.states += 1);
}

/// Value of a ghost for a place.
pub fn of_place(what: &str, width: u32, place: Term) -> Term {
    value(what, width, &[place.part(0, SMALL.place_bits())])
}

/// Words of a page and its spare area; `listed`: pages are those of a state.
pub fn page_length(words: u64, listed: bool) {
    LENGTH.set(words);
    LISTED.set(listed);
}

thread_local! {
    static LISTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    static LENGTH: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Page {
    /// Any bytes.
    pub fn any(name: &str) -> Page {
        let at = Word::any(&format!("where {name} lies")).0;
        Page(allocate(Cell {
            words: Memory::any(name, 64),
            length: n(LENGTH.get()),
            slots: Memory::any(&format!("sectors of {name}"), 64),
            seal: Seal::Medium(at),
            hook: None,
        }))
    }

    /// Content of a place.
    pub fn medium(at: Term) -> Page {
        let [flash, list, data] = ["flash", "listed", "data"].map(named);
        let mut words = Memory::of(move |word| value(&flash, 64, &[at, word]));
        let place = move |slot: Term| SMALL.place(Word(at), 0).0.plus(slot);
        // The ghosts of a state know the content of its sectors.
        if LISTED.get() {
            let listed = |slot: u64| of_place(&list, 32, place(n(slot)));
            let both = listed(1).raised(32).filled(listed(0));
            words.set(n(SMALL.page_words + tag::FIXED_WORDS), both);
        }
        Page(allocate(Cell {
            words,
            length: n(LENGTH.get()),
            slots: Memory::of(move |slot| of_place(&data, 64, place(slot))),
            seal: Seal::Medium(at),
            hook: None,
        }))
    }

    pub fn at(&self, word: Term) -> Term {
        cell(self.0).words.get(word)
    }

    pub fn sector(&self, slot: u64) -> Term {
        cell(self.0).slots.get(n(slot))
    }
}

impl platform::Page<Word> for Page {
    #[track_caller]
    fn word(&self, at: Word) -> Word {
        let cell = cell(self.0);
        prove("a word is beyond the page", at.0.below(cell.length));
        Word(cell.words.get(at.0))
    }

    #[track_caller]
    fn set_word(&mut self, at: Word, value: Word) {
        change(self.0, |cell| {
            let last = cell.length.minus(n(1));
            prove("a word is beyond the page", at.0.below(last));
            cell.words.set(at.0, value.0);
            cell.seal = Seal::Broken;
        });
    }

    fn seal(&mut self, volume: Word, at: Word) {
        change(self.0, |cell| cell.seal = Seal::By(volume.0, at.0));
    }

    fn is_intact(&self, volume: Word, at: Word) -> bool {
        match cell(self.0).seal {
            Seal::By(by, there) => branch(by.equal(volume.0)) && branch(there.equal(at.0)),
            Seal::Medium(lies) => {
                branch(lies.equal(at.0)) && branch(apply(&named("intact"), 0, &[at.0, volume.0]))
            }
            Seal::Broken => false,
        }
    }

    fn is_blank(&self) -> bool {
        match cell(self.0).seal {
            Seal::Medium(lies) => branch(apply(&named("blank"), 0, &[lies])),
            Seal::By(..) | Seal::Broken => false,
        }
    }
}

/// A sector's content: a number that stands for its bytes; zeros are 0.
pub struct Sector(pub Term);

/// The flash memory.
pub struct Flash;

impl Platform for Flash {
    type W = Word;
    type P = Page;
    type T = Table;
    type Q = Queue;
    type Sector = Sector;
    type Error = ();

    fn blank(&mut self) -> Page {
        let page = allocate(Cell {
            words: Memory::of(|_| n(0)),
            length: n(LENGTH.get()),
            slots: Memory::of(|_| n(0)),
            seal: Seal::Broken,
            hook: None,
        });
        with(|world| world.blank = Some(page));
        Page(page)
    }

    fn put(&self, page: &mut Page, slot: usize, sector: &Sector) {
        change(page.0, |cell| {
            cell.slots.set(n(slot as u64), sector.0);
            cell.seal = Seal::Broken;
        });
    }

    fn take(&self, page: &Page, slot: usize, sector: &mut Sector) {
        sector.0 = page.sector(slot as u64);
    }

    fn clear(&self, sector: &mut Sector) {
        sector.0 = n(0);
    }

    fn copy(&self, from: &Page, slot: usize, to: &mut Page, target: usize) {
        let content = Sector(from.sector(slot as u64));
        self.put(to, target, &content);
    }

    fn read(&mut self, at: Word) -> Result<Option<Page>, ()> {
        for (place, page) in programs().into_iter().rev() {
            if branch(place.equal(at.0)) {
                return Ok(Some(page.clone()));
            }
        }
        Ok(branch(apply(&named("readable"), 0, &[at.0])).then(|| Page::medium(at.0)))
    }

    fn fetch(&mut self, at: Word) -> Result<Option<Page>, ()> {
        self.read(at)
    }

    fn arrive(&mut self) {}

    fn program(&mut self, at: Word, page: Page, _: bool) -> Result<(), ()> {
        tell(&Event::Program {
            at: at.0,
            page: &page,
        });
        with(|world| world.programs.push((at.0, page)));
        Ok(())
    }

    fn sync(&mut self) -> Result<Failed<Flash>, ()> {
        let failed = with(|world| world.failing.pop()).unwrap_or_default();
        tell(if failed.is_empty() {
            &Event::Sync
        } else {
            &Event::Failed
        });
        let returned = failed.into_iter().map(|(at, page)| (Word(at), Page(page)));
        Ok(returned.collect())
    }

    fn erase(&mut self, block: Word) -> Result<(), ()> {
        tell(&Event::Erase { block: block.0 });
        Ok(())
    }

    fn erased(&mut self, block: Word, wait: bool) -> Result<Erase, ()> {
        if !wait && branch(unknown("the erase is under way", 0)) {
            return Ok(Erase::Pending);
        }
        if branch(unknown("the erase failed", 0)) {
            return Ok(Erase::Failed);
        }
        tell(&Event::Erased { block: block.0 });
        Ok(Erase::Done)
    }

    fn is_bad(&self, block: Word) -> bool {
        branch(apply("known to be bad", 0, &[block.0]))
    }

    /// A number at which it stops, if there is one: that none before it does is not used; if there is none, it does
    /// not stop at the one number that is looked at.
    fn find(_: &'static str, count: Word, mut stop: impl FnMut(Word) -> bool) -> Word {
        let found = Word::any("found");
        if branch(found.0.below(count.0)) {
            if !stop(found) {
                end_path();
            }
            with(|world| world.found = Some(found.0));
            found
        } else {
            with(|world| world.found = None);
            if let Some(at) = with(|world| world.looked_at)
                && branch(at.below(count.0))
                && stop(Word(at))
            {
                end_path();
            }
            count
        }
    }

    fn each<E>(
        name: &'static str,
        count: Word,
        step: impl FnMut(Word) -> Result<(), E>,
    ) -> Result<(), E> {
        crate::loops::run(name, count, step)
    }

    /// The part, or its shown effect.
    fn part<Y>(
        ftl: &mut Ftl<Flash, Y>,
        name: &'static str,
        work: impl FnOnce(&mut Ftl<Flash, Y>) -> error::Result<(), ()>,
    ) -> error::Result<(), ()> {
        match crate::calls::part(name, ftl) {
            None => work(ftl),
            Some(true) => Ok(()),
            Some(false) => Err(FtlError::Flash(())),
        }
    }
}

/// Proposes any block, or none.
pub struct Anything;

thread_local! {
    static SOME: std::cell::Cell<u64> = const { std::cell::Cell::new(3) };
    static PROPOSES: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// The value, besides 0, of a number that correctness does not rest on.
pub fn some_number(value: u64) {
    SOME.set(value);
}

/// From here on nothing is proposed.
pub fn no_proposals() {
    PROPOSES.set(false);
}

fn proposal(what: &str) -> Option<Word> {
    if !PROPOSES.get() {
        return None;
    }
    branch(unknown(&format!("a {what} is proposed"), 0)).then(|| Word::any(what))
}

impl Policy<Flash> for Anything {
    fn next(&mut self, _: Purpose, _: &Blocks<Flash>, _: &[Word]) -> Option<Word> {
        proposal("block to open")
    }

    fn erase(&mut self, _: &Blocks<Flash>) -> Option<Word> {
        proposal("block to erase")
    }

    fn victim(&mut self, _: &Blocks<Flash>, _: &Limits) -> Option<Word> {
        proposal("victim")
    }

    fn level(&mut self, _: &Blocks<Flash>) -> Option<Word> {
        proposal("block to level")
    }

    fn pace(&mut self, _: &Limits, _: u64, _: u64, _: i64) -> u64 {
        1
    }

    fn stock(&self) -> u64 {
        1
    }
}

pub fn differ(a: Term, b: Term) -> Term {
    not(a.equal(b))
}
