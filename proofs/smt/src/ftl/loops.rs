//! Loops whose length the medium or the number of operations gives: one arbitrary step, a whole induction, or the results
//! of another obligation about the steps. The README lists the trusted part of each rule.

use crate::sym::{self, Cell, Memory, cell, change, n, set_rule};
use smt::explore::{assume, branch, end_path, prove, reached, unknown};
use smt::term::{Term, implies, truth};
use smt::word::Word;
use std::rc::Rc;

/// Loops of a known length up to this are run step by step.
const STEPS_MAX: u64 = 64;
/// Places in tables and lists.
const PLACE_BITS: u32 = 40;

/// The effect of a loop: the facts before an arbitrary step, the condition to prove after it, and the facts
/// after all steps.
#[derive(Clone)]
pub enum Rule {
    /// Another obligation is about the steps: where it ends.
    Shown(Told),
    Step {
        before: Told,
        behind: Told,
        done: Told,
    },
    /// An induction: some cells, and their content after a number of steps.
    Kept(Rc<dyn Fn() -> Vec<usize>>, Held),
}

pub type Told = Rc<dyn Fn(Term)>;
/// From the cells' content when a loop begins: their words and lengths after a number of steps.
pub type Held = Rc<dyn Fn(&[Cell], Term) -> Vec<(Memory, Term)>>;

/// A loop whose steps are tried here.
pub fn loop_of(
    name: &'static str,
    before: impl Fn(Term) + 'static,
    behind: impl Fn(Term) + 'static,
    done: impl Fn(Term) + 'static,
) {
    let rule = Rule::Step {
        before: Rc::new(before),
        behind: Rc::new(behind),
        done: Rc::new(done),
    };
    set_rule(name, rule);
}

/// A loop that is shown here, whole, by induction: after `i` steps these cells hold `after(i)`, computed from their content
/// when it began. The engine shows that `after(0)` holds when the loop begins, and that a step leads from `after(i)` to
/// `after(i + 1)` and changes no other cell and no flash; after the loop the cells hold `after` of all steps.
pub fn loop_kept(
    name: &'static str,
    cells: impl Fn() -> Vec<usize> + 'static,
    after: impl Fn(&[Cell], Term) -> Vec<(Memory, Term)> + 'static,
) {
    let rule = Rule::Kept(Rc::new(cells), Rc::new(after));
    set_rule(name, rule);
}

/// The induction's state after a number of steps.
struct Induction {
    ids: Vec<usize>,
    begun: Vec<Cell>,
    after: Held,
}

impl Induction {
    fn new(cells: &dyn Fn() -> Vec<usize>, after: Held) -> Induction {
        let ids = cells();
        let begun = ids.iter().map(|&id| cell(id)).collect();
        Induction { ids, begun, after }
    }

    fn set(&self, steps: Term) {
        for (&id, (words, length)) in self.ids.iter().zip((self.after)(&self.begun, steps)) {
            change(id, |cell| (cell.words, cell.length) = (words, length));
        }
    }

    fn holds(&self, steps: Term, when: &str) {
        for (&id, (words, length)) in self.ids.iter().zip((self.after)(&self.begun, steps)) {
            let now = cell(id);
            let at = Word::bits("any place", PLACE_BITS).0;
            let same = now.words.get(at).equal(words.get(at));
            prove(&format!("another length {when}"), now.length.equal(length));
            let inside = at.below(length);
            prove(&format!("something else {when}"), implies(inside, same));
        }
    }

    /// That nothing else has changed since these were all cells.
    fn frame(&self, before: &[Cell], programs: usize) {
        let now = sym::cells();
        let same = |(id, was): (usize, &Cell)| {
            let kept = now[id].words.is(&was.words) && now[id].slots.is(&was.slots);
            self.ids.contains(&id) || kept && now[id].length == was.length
        };
        let kept = sym::programs().len() == programs && before.iter().enumerate().all(same);
        prove("a step changes something else", truth(kept));
    }
}

/// A loop whose steps are shown elsewhere: all that is said here is where it ends.
pub fn loop_shown(name: &'static str, done: impl Fn(Term) + 'static) {
    let rule = Rule::Shown(Rc::new(done));
    set_rule(name, rule);
}

/// Runs a loop step by step, or by its rule.
pub fn run<E>(
    name: &'static str,
    count: Word,
    mut step: impl FnMut(Word) -> Result<(), E>,
) -> Result<(), E> {
    let Some(rule) = sym::rule(name) else {
        return match count.0.as_number() {
            Some(steps) if steps <= STEPS_MAX => (0..steps).try_for_each(|i| step(Word::of(i))),
            _ => panic!("no rule says what the loop over '{name}' does"),
        };
    };
    let one_of = || branch(unknown("one of the steps", 0));
    let any_step = || {
        let i = Word::any("step");
        assume(i.0.below(count.0));
        i
    };
    let possible = |what: &str| {
        smt::explore::must_be_possible(format!("{what} of the loop over '{name}'"));
    };
    match rule {
        Rule::Shown(done) => done(count.0),
        Rule::Step {
            before,
            behind,
            done,
        } => {
            if one_of() {
                let i = any_step();
                before(i.0);
                possible("a step");
                step(i)?;
                behind(i.0);
                reached(name);
                end_path();
            }
            done(count.0);
        }
        Rule::Kept(cells, after) => {
            let induction = Induction::new(&*cells, after);
            induction.holds(n(0), "when the loop begins");
            if one_of() {
                let i = any_step();
                induction.set(i.0);
                possible("a step");
                let all_of_them = sym::cells();
                let programs = sym::programs().len();
                step(i)?;
                induction.holds(i.0.plus(n(1)), "behind a step");
                induction.frame(&all_of_them, programs);
                reached(name);
                end_path();
            }
            induction.set(count.0);
        }
    }
    possible("the end");
    Ok(())
}
