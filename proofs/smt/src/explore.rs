//! Runs code once along every feasible path, by running it again with other decisions, and collects
//! what it has to prove. An obligation holds if everything proved on its paths does, and if the
//! paths named with it were reached: nothing holds because nothing was tried. A path's condition
//! is satisfiable at every moment, for branches and assumptions that make it impossible end it. Suppositions do not ask;
//! so each place that supposes something, and each step of a loop, must be on a path whose whole condition is satisfiable.

use crate::solver::{Answer, Solver};
use crate::term::{Term, Unknown, forget_proper, not, unknowns, variable};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::time::Instant;

/// Most paths of one obligation.
const PATHS_MAX: u32 = 5000;
/// Most lines of a counterexample.
const LINES_MAX: usize = 40;

/// Direction in which the code went on at a comparison.
struct Decision {
    taken: bool,
    /// The other way is possible, too.
    free: bool,
    /// The other way is still to be tried.
    left: bool,
}

struct Run {
    solver: Solver,
    decisions: Vec<Decision>,
    at: usize,
    path: Vec<Term>,
    /// Consequences of the path that need not be asked again.
    facts: HashSet<Term>,
    names: HashMap<String, u32>,
    reached: BTreeSet<String>,
    checks: u64,
    failure: Option<String>,
    /// The path has a supposition that the solver has not been asked about.
    supposed: bool,
    /// Places on this path that must be on a path that is possible: whether they were, by place.
    here: BTreeSet<String>,
    /// Places of the obligation that must be possible.
    possible_at: BTreeMap<String, bool>,
    held: u32,
    failed: Vec<String>,
    total: (u64, u64),
    begun: Instant,
    only: Vec<String>,
    /// End with the first obligation that is refused.
    first: bool,
    /// Number of obligations left out, because they take long.
    left_out: usize,
}

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Ends the program: the engine, not an obligation, has failed.
fn give_up(what: &dyn Display) -> ! {
    eprintln!("smt: {what}");
    std::process::exit(2)
}

fn with<T>(f: impl FnOnce(&mut Run) -> T) -> T {
    RUN.with_borrow_mut(|run| match run {
        Some(run) => f(run),
        None => give_up(&"no run was begun"),
    })
}

impl Run {
    fn possible(&mut self, more: Term) -> Answer {
        match more.as_truth() {
            Some(false) => return Answer::Unsatisfiable,
            Some(true) => return Answer::Satisfiable,
            None if self.facts.contains(&more) => return Answer::Satisfiable,
            None if self.facts.contains(&not(more)) => return Answer::Unsatisfiable,
            None => {}
        }
        let mut terms = self.path.clone();
        terms.push(more);
        self.solver
            .ask(&terms)
            .unwrap_or_else(|error| give_up(&error))
    }
}

/// Thrown when a path ends before its code does.
struct PathEnds;

/// Begins a run; `only`: parts of the names of the obligations to be tried, all if there are none;
/// `first`: none after one that is refused.
pub fn begin(solver: Solver, only: Vec<String>, first: bool) {
    let run = Run {
        solver,
        decisions: Vec::new(),
        at: 0,
        path: Vec::new(),
        facts: HashSet::new(),
        names: HashMap::new(),
        reached: BTreeSet::new(),
        checks: 0,
        failure: None,
        supposed: false,
        here: BTreeSet::new(),
        possible_at: BTreeMap::new(),
        held: 0,
        failed: Vec::new(),
        total: (0, 0),
        begun: Instant::now(),
        only,
        first,
        left_out: 0,
    };
    RUN.set(Some(run));
}

/// Prints the result of the run, and ends the solver; returns whether everything holds,
/// nothing if no obligation was tried.
pub fn end() -> Option<bool> {
    let holds = with(|run| {
        let (paths, checks) = run.total;
        println!(
            "\n{} obligations hold, {} do not: {paths} paths, {checks} checks, {} questions, {:.1} s",
            run.held,
            run.failed.len(),
            run.solver.questions,
            run.begun.elapsed().as_secs_f64()
        );
        if run.left_out > 0 {
            println!("{} left out, which take longest (--long)", run.left_out);
        }
        for name in &run.failed {
            println!("refused: {name}");
        }
        let tried = !run.failed.is_empty() || run.held > 0;
        tried.then_some(run.failed.is_empty())
    });
    RUN.set(None);
    holds
}

/// A new name on this path.
pub fn fresh(name: &str) -> String {
    with(|run| {
        let count = run.names.entry(name.to_owned()).or_default();
        *count += 1;
        match *count {
            1 => name.to_owned(),
            count => format!("{name}'{count}"),
        }
    })
}

/// A new unknown of this path; width 0 is a truth value.
pub fn unknown(name: &str, width: u32) -> Term {
    variable(&fresh(name), width)
}

/// Direction in which the code goes on: both, one after the other, if both are possible.
pub fn branch(condition: Term) -> bool {
    if let Some(value) = condition.as_truth() {
        return value;
    }
    with(|run| {
        if run.at == run.decisions.len() {
            let taken = run.possible(condition) != Answer::Unsatisfiable;
            // The path is possible, so one of both is.
            let free = taken && run.possible(not(condition)) != Answer::Unsatisfiable;
            run.decisions.push(Decision {
                taken,
                free,
                left: free,
            });
        }
        let Decision { taken, free, .. } = run.decisions[run.at];
        run.at += 1;
        let condition = if taken { condition } else { not(condition) };
        run.facts.insert(condition);
        if free {
            run.path.push(condition);
        }
        taken
    })
}

/// Restricts the path to states that fulfil the condition; the path ends if there are none.
pub fn assume(condition: Term) {
    if condition.as_truth() == Some(true) {
        return;
    }
    let possible = with(|run| {
        let answer = run.possible(condition);
        run.path.push(condition);
        run.facts.insert(condition);
        answer
    });
    if possible == Answer::Unsatisfiable {
        end_path();
    }
}

/// Restricts the path to states that fulfil the condition, which is known to hold in every possible state: the
/// solver is not asked whether one does. If none does, no place that the path comes to counts as reached; and if
/// no path that comes here can be fulfilled to its end, the obligation does not hold.
#[track_caller]
pub fn suppose(condition: Term) {
    if condition.as_truth() == Some(true) {
        return;
    }
    let place = Location::caller();
    let place = format!(
        "what is supposed at {}:{}",
        tidy(place.file()),
        place.line()
    );
    must_be_possible(place);
    with(|run| {
        if run.facts.insert(condition) {
            run.path.push(condition);
            run.supposed = true;
        }
    });
}

/// This place must be on some path that can be fulfilled to its end.
pub fn must_be_possible(what: String) {
    with(|run| {
        run.possible_at.entry(what.clone()).or_insert(false);
        run.here.insert(what);
    });
}

/// At the end of a path: its events were possible if all its conditions together are.
fn note_possible(run: &mut Run) {
    let new = run.here.iter().any(|what| !run.possible_at[what]);
    if !new || run.failure.is_some() {
        return;
    }
    let path = run.path.clone();
    let answer = (run.solver.ask(&path)).unwrap_or_else(|error| give_up(&error));
    if answer == Answer::Satisfiable {
        for what in &run.here {
            run.possible_at.insert(what.clone(), true);
        }
    }
}

/// Ends this path: all that it had to show was shown.
pub fn end_path() -> ! {
    resume_unwind(Box::new(PathEnds))
}

/// The goal must be true here, for all values of the unknowns.
#[track_caller]
pub fn prove(what: &str, goal: Term) {
    let place = Location::caller();
    with(|run| {
        run.checks += 1;
        if goal.as_truth() == Some(true) || run.failure.is_some() {
            return;
        }
        let answer = run.possible(not(goal));
        if answer == Answer::Unsatisfiable {
            run.facts.insert(goal);
            return;
        }
        let mut report = format!("{what} ({}:{})", tidy(place.file()), place.line());
        match answer {
            Answer::Satisfiable => report.push_str(&counterexample(run, not(goal))),
            _ => report.push_str("\n    the solver does not know"),
        }
        run.failure = Some(report);
    });
    if with(|run| run.failure.is_some()) {
        end_path();
    }
}

fn tidy(file: &str) -> &str {
    file.rfind("crates/").map_or(file, |at| &file[at..])
}

/// The unknowns' values, bytes by their places.
fn counterexample(run: &mut Run, wrong: Term) -> String {
    let mut terms = run.path.clone();
    terms.push(wrong);
    let unknowns = unknowns(&terms);
    let mut wanted = Vec::new();
    for unknown in &unknowns {
        match unknown {
            Unknown::Variable(_, term) => wanted.push(*term),
            Unknown::Byte(_, at, byte) => wanted.extend([*at, *byte]),
            Unknown::Value(_, to, value) => wanted.extend(to.iter().chain([value])),
        }
    }
    let values = match run.solver.values(&terms, &wanted) {
        Ok(values) => values,
        Err(error) => give_up(&error),
    };
    let mut values = values.into_iter();
    let mut numbers = BTreeMap::new();
    let mut bytes: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    let parse = |text: String| u64::from_str_radix(text.trim_start_matches("#x"), 16);
    for unknown in unknowns {
        let mut value = || values.next().unwrap_or_default();
        match unknown {
            Unknown::Variable(name, _) => {
                let value = value();
                numbers.insert(
                    name,
                    parse(value.clone()).map_or(value, |n| format!("{n} ({n:#x})")),
                );
            }
            Unknown::Byte(sequence, _, _) => {
                let (at, byte) = (parse(value()).unwrap_or(0), value());
                bytes
                    .entry(sequence)
                    .or_default()
                    .insert(at, byte.trim_start_matches("#x").into());
            }
            Unknown::Value(function, to, _) => {
                let text = |value: String| parse(value.clone()).map_or(value, |n| n.to_string());
                let places: Vec<String> = to.iter().map(|_| text(value())).collect();
                numbers.insert(format!("{function}[{}]", places.join(", ")), text(value()));
            }
        }
    }
    let mut lines: Vec<String> = numbers
        .into_iter()
        .map(|(name, n)| format!("{name} = {n}"))
        .collect();
    for (sequence, bytes) in bytes {
        let mut next = None;
        for (at, byte) in bytes {
            match lines.last_mut() {
                Some(line) if next == Some(at) => line.push_str(&format!(" {byte}")),
                _ => lines.push(format!("{sequence}[{at}..] = {byte}")),
            }
            next = at.checked_add(1);
        }
    }
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    let mut text: String = lines.iter().map(|line| format!("\n    {line}")).collect();
    if more > 0 {
        text.push_str(&format!("\n    and {more} more"));
    }
    text
}

/// Notes that this place was reached; an obligation can ask for it.
pub fn reached(label: &str) {
    with(|run| {
        if run.reached.contains(label) {
            return;
        }
        let possible = !run.supposed || {
            let path = run.path.clone();
            let answer = run
                .solver
                .ask(&path)
                .unwrap_or_else(|error| give_up(&error));
            answer == Answer::Satisfiable
        };
        if possible {
            run.reached.insert(label.to_owned());
        }
    });
}

/// Those that take longest, and together as long as all others: tried by `--long`, or when a part of their name is given.
/// Each has a sibling among the others about the same step.
const LONG: &[&str] = &[
    "call: behind a graceful end a crash returns to all that was written",
    "commit: all or nothing, of an epoch with trims, 1 sectors waiting",
    "failure: a data page of 1 sectors lies elsewhere, and they follow",
    "scan: a delta page of exactly the next number, at one of three places",
    "space: a victim is begun only with room for the rest of the epoch",
    "space: budget: whole only when the reserve is there",
    "stream: the moved stream comes to a place with room",
    "trims: a page says the ranges that are next, the last one commits",
];

/// Tries one obligation: `body` runs along every path. `must_reach`: labels without which it would
/// say nothing.
pub fn obligation(name: &str, must_reach: &[&str], mut body: impl FnMut()) {
    if with(|run| run.first && !run.failed.is_empty()) {
        return;
    }
    let wanted = with(|run| run.only.is_empty() || run.only.iter().any(|part| name.contains(part)));
    if !wanted {
        return;
    }
    let by_name = with(|run| !run.only.is_empty());
    if !by_name && !crate::run::is_long() && LONG.contains(&name) {
        with(|run| run.left_out += 1);
        return;
    }
    let begun = Instant::now();
    with(|run| {
        run.decisions.clear();
        run.reached.clear();
        run.possible_at.clear();
        run.checks = 0;
        run.failure = None;
    });
    let mut paths = 0;
    loop {
        with(|run| {
            run.at = 0;
            run.path.clear();
            run.facts.clear();
            run.names.clear();
            run.supposed = false;
            run.here.clear();
        });
        forget_proper();
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(&mut body))
            && !thrown.is::<PathEnds>()
        {
            resume_unwind(thrown);
        }
        paths += 1;
        let more = with(|run| {
            note_possible(run);
            if paths >= PATHS_MAX {
                run.failure = Some(format!("it has more than {PATHS_MAX} paths"));
            }
            run.failure.is_none() && next_decisions(&mut run.decisions)
        });
        if !more {
            break;
        }
    }
    with(|run| {
        let missing = must_reach
            .iter()
            .find(|label| !run.reached.contains(**label));
        if let (None, Some(label)) = (&run.failure, missing) {
            run.failure = Some(format!("it says nothing: '{label}' is never reached"));
        }
        let never = run.possible_at.iter().find(|(_, possible)| !**possible);
        if let (None, Some((what, _))) = (&run.failure, never) {
            run.failure = Some(format!("it says nothing: {what} is possible on no path"));
        }
        if run.failure.is_none() && run.checks == 0 {
            run.failure = Some("it says nothing: there was nothing to check".to_owned());
        }
        let verdict = if run.failure.is_none() {
            "holds"
        } else {
            "REFUSED"
        };
        println!(
            "{verdict:8}{name:66}{paths:5} paths {:6} checks {:6.2} s",
            run.checks,
            begun.elapsed().as_secs_f64()
        );
        run.total.0 += u64::from(paths);
        run.total.1 += run.checks;
        match run.failure.take() {
            None => run.held += 1,
            Some(failure) => {
                println!("  {failure}");
                run.failed.push(name.to_owned());
            }
        }
    });
}

/// Turns to the last decision whose other side was not tried; false if there is none.
fn next_decisions(decisions: &mut Vec<Decision>) -> bool {
    while decisions.last().is_some_and(|last| !last.left) {
        decisions.pop();
    }
    if let Some(last) = decisions.last_mut() {
        last.taken = !last.taken;
        last.left = false;
    }
    !decisions.is_empty()
}
