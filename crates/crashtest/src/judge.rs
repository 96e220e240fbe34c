//! Verdicts on states, at most one run of the checker for states that look the same to it.
//!
//! Verdicts are kept by tree and number of acknowledgements, so that a tree that several models or repairs allow is
//! judged once. A state that differs from a judged one only where the checker never looked has the same verdict
//! ([`Judge::counting`]): its acknowledgements count as looked at when the checker looks up their file.

use crate::check::{Checker, Verdict};
use crate::effects::{Effects, Run};
use crate::models::Model;
use crate::planted::{self, Planted};
use crate::record::view::{Look, Looked, Shown, View};
use crate::states::{Former, Limits, State, States, enumerate_until};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One verdict in this many is asked for twice, and so is the first of each kind.
const TWICE: usize = 50;
/// Maximum number of states that are judged in the order of reports.
const IN_ORDER_MAX: usize = 4000;
/// Most looks of checkers that are remembered.
const LOOKS_MAX: usize = 1 << 21;

/// Subject and limits of an exploration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The models.
    pub models: Vec<Model>,
    /// Limits of the states.
    pub limits: Limits,
    /// Time limit.
    pub budget: Duration,
    /// Number of checks at a time.
    pub jobs: usize,
    /// Whether repairs are tried.
    pub repair: bool,
    /// Whether trees and verdicts are shared (off: each state is judged by itself).
    pub prune: bool,
    /// Number of states with a good verdict, for each model, whose recovery is recorded and cut.
    pub recovery_cuts: usize,
    /// Whether to look for superfluous syncs.
    pub superfluous: bool,
}

impl Options {
    /// These models, with the usual limits: with repairs, without cuts inside recoveries and without superfluous
    /// syncs.
    #[must_use]
    pub fn new(models: Vec<Model>) -> Options {
        Options {
            models,
            limits: Limits::default(),
            budget: Duration::from_secs(600),
            jobs: 1,
            repair: true,
            prune: true,
            recovery_cuts: 0,
            superfluous: false,
        }
    }
}

/// Whether an acknowledgement is lost, or the state is bad in itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// No program should find its files like this.
    Broken,
    /// The state is good, but lacks something that was acknowledged.
    Lost,
}

impl Kind {
    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Broken => "broken",
            Kind::Lost => "acknowledged and lost",
        }
    }
}

/// Tree, acknowledgements that must be there, and those that may be.
type Key = (u128, usize, usize);
/// Verdicts by position of the state.
type Judged = Vec<(usize, Option<Verdict>)>;

/// The looks of a checker, what they showed, and its verdict.
struct Footprint {
    looks: Vec<Shown>,
    verdict: Verdict,
    /// The look by which the last tree differed: the next one may, too.
    telling: AtomicUsize,
}

impl Footprint {
    /// Whether a checker sees the same in this tree.
    fn fits(&self, view: &View<'_>) -> bool {
        let hint = self.telling.load(Ordering::Relaxed);
        match view.differs(&self.looks, hint) {
            Some(at) => {
                self.telling.store(at, Ordering::Relaxed);
                false
            }
            None => true,
        }
    }
}

/// The last footprints, up to a number of looks.
#[derive(Default)]
struct Footprints {
    all: VecDeque<Arc<Footprint>>,
    looks: usize,
    looked: Looked,
}

/// Judges states, and remembers verdicts.
pub struct Judge<'a> {
    checker: Checker,
    known: Mutex<HashMap<Key, Verdict>>,
    footprints: Mutex<Footprints>,
    checks: AtomicUsize,
    flaky: Mutex<Vec<String>>,
    lines: Mutex<BTreeSet<String>>,
    prune: bool,
    told: Option<(String, &'a Progress<'a>)>,
}

/// Called with the work in progress, the part of it that is done, and the whole.
pub type Progress<'a> = dyn Fn(&str, usize, usize) + Sync + 'a;

impl<'a> Judge<'a> {
    /// A judge that stops at `until`, or when [`Checker::stop`] is set.
    #[must_use]
    pub fn new(checker: &Checker, until: Instant, prune: bool) -> Judge<'a> {
        let mut checker = checker.clone();
        checker.until = Some(until);
        Judge {
            checker,
            known: Mutex::default(),
            footprints: Mutex::default(),
            checks: AtomicUsize::new(0),
            flaky: Mutex::default(),
            lines: Mutex::default(),
            prune,
            told: None,
        }
    }

    /// Sets the time at which it stops.
    pub(crate) fn stop_at(&mut self, until: Instant) {
        self.checker.until = Some(until);
    }

    /// Reports progress from now on.
    pub fn tell(&mut self, what: String, progress: &'a Progress<'a>) {
        self.told = Some((what, progress));
    }

    /// Number of runs of the checker, and its output for states with two different verdicts.
    pub(crate) fn end(self) -> (usize, Vec<String>) {
        let flaky = self.flaky.into_inner();
        (
            self.checks.into_inner(),
            flaky.unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Whether there is no time left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.checker.is_over()
    }

    /// The verdict at a moment; None if there is no time for it.
    ///
    /// # Errors
    /// If the state cannot be laid out.
    pub fn at(
        &self,
        effects: &Effects,
        former: &Former<'_>,
        state: &State,
        moment: usize,
    ) -> io::Result<Option<Verdict>> {
        let acked = effects.acked_at(moment);
        let may = (acked + 1).min(effects.acks.len());
        self.counting(effects, former, state, (acked, may))
    }

    /// The verdict when the first `acked` acknowledgements must be there, and the first `may` of them may be.
    ///
    /// # Errors
    /// If the state cannot be laid out.
    pub fn counting(
        &self,
        effects: &Effects,
        former: &Former<'_>,
        state: &State,
        (acked, may): (usize, usize),
    ) -> io::Result<Option<Verdict>> {
        let key = match planted::is(Planted::LookAlike) {
            true => (state.digest, 0, 0),
            false => (state.digest, acked, may),
        };
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if self.prune
            && let Some(verdict) = lock().get(&key)
        {
            return Ok(Some(verdict.clone()));
        }
        if self.is_over() {
            return Ok(None);
        }
        let disk = former.disk(&state.bits, state.tear);
        let (must, may) = (&effects.acks[..acked], &effects.acks[..may]);
        let verdict = match self.prune {
            false => self.checker.judge(&disk, must, may)?,
            true => {
                let view = View::new(&disk, must, may);
                if let Some(verdict) = self.look_alike(&view) {
                    lock().insert(key, verdict.clone());
                    return Ok(Some(verdict));
                }
                let (verdict, looks) = self.checker.judge_looked(&view)?;
                let counts = !matches!(verdict, Verdict::Error(_) | Verdict::Unfinished);
                if let (Some(looks), true) = (looks, counts) {
                    self.remember(&view, looks, &verdict);
                }
                verdict
            }
        };
        if verdict == Verdict::Unfinished {
            return Ok(None);
        }
        let count = self.checks.fetch_add(1, Ordering::Relaxed);
        if self.is_new(&verdict) || count.is_multiple_of(TWICE) {
            let again = self.checker.judge(&disk, must, may)?;
            self.checks.fetch_add(1, Ordering::Relaxed);
            let differs = again != Verdict::Unfinished && again.is_broken() != verdict.is_broken();
            if differs && !planted::is(Planted::FlakyUnsaid) {
                let line = match (&verdict, &again) {
                    (Verdict::Broken { line, .. }, _) | (_, Verdict::Broken { line, .. }) => {
                        line.clone()
                    }
                    _ => String::new(),
                };
                self.flaky
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        }
        lock().insert(key, verdict.clone());
        Ok(Some(verdict))
    }

    fn footprints(&self) -> MutexGuard<'_, Footprints> {
        self.footprints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The verdict of a state that looks the same to the checker.
    fn look_alike(&self, view: &View<'_>) -> Option<Verdict> {
        let known = self.footprints().all.clone();
        // Neighbours in the order of states are alike: the last first.
        let fits = known.iter().rev().find(|f| f.fits(view));
        fits.map(|f| f.verdict.clone())
    }

    fn remember(&self, view: &View<'_>, looks: Vec<Look>, verdict: &Verdict) {
        let mut footprints = self.footprints();
        let looked = &mut footprints.looked;
        let looks: Vec<Shown> = looks.into_iter().map(|l| looked.shown(l, view)).collect();
        footprints.looks += looks.len();
        footprints.all.push_back(Arc::new(Footprint {
            looks,
            verdict: verdict.clone(),
            telling: AtomicUsize::new(0),
        }));
        while footprints.looks > LOOKS_MAX
            && footprints.all.len() > 1
            && let Some(oldest) = footprints.all.pop_front()
        {
            footprints.looks -= oldest.looks.len();
        }
    }

    /// Whether this verdict is new.
    fn is_new(&self, verdict: &Verdict) -> bool {
        let Verdict::Broken { line, .. } = verdict else {
            return false;
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.insert(kin(line))
    }

    /// Judges all at their latest moment, `jobs` at a time, in order.
    ///
    /// # Errors
    /// If a state cannot be laid out.
    pub fn all(
        &self,
        effects: &Effects,
        states: &[State],
        jobs: usize,
    ) -> io::Result<Vec<Option<Verdict>>> {
        let former = Former::new(effects);
        let order = order(effects, states, IN_ORDER_MAX);
        let next = AtomicUsize::new(0);
        let fault = planted::here();
        let work = || -> io::Result<Judged> {
            planted::plant_here(fault);
            let mut mine = Vec::new();
            loop {
                let done = next.fetch_add(1, Ordering::Relaxed);
                let Some((i, state)) = order.get(done).and_then(|i| Some((*i, states.get(*i)?)))
                else {
                    return Ok(mine);
                };
                if let Some((what, progress)) = &self.told {
                    progress(what, done, states.len());
                }
                let moment = match planted::is(Planted::FirstMoment) {
                    true => state.moments.0,
                    false => state.moments.1,
                };
                let verdict = self.at(effects, &former, state, moment)?;
                if matches!(verdict, Some(Verdict::Error(_))) {
                    next.store(states.len(), Ordering::Relaxed);
                }
                mine.push((i, verdict));
            }
        };
        let parts: Vec<io::Result<Judged>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            let joined = threads.into_iter().map(|t| t.join());
            joined
                .map(|r| {
                    r.unwrap_or_else(|_| {
                        Err(io::Error::other("a thread that judges states panicked"))
                    })
                })
                .collect()
        });
        let mut verdicts = vec![None; states.len()];
        for part in parts {
            for (i, verdict) in part? {
                verdicts[i] = verdict;
            }
        }
        Ok(verdicts)
    }
}

/// The order in which states are judged. Of a long run there may be no time for all: each behaviour has its turn, which is
/// a kind of effect that is missing, the place in the program that made it, and for how long it has been missing, in powers
/// of two.
fn order(effects: &Effects, states: &[State], in_order_max: usize) -> Vec<usize> {
    if states.len() <= in_order_max {
        return (0..states.len()).collect();
    }
    let mut turns = HashMap::new();
    let turn = |state: &State| {
        let missing = state.bits.first_missing();
        let last = state.bits.last().and_then(|e| effects.all.get(e));
        let lost = effects.all.get(missing).zip(last).map(|(lost, last)| {
            let since = last.step.checked_sub(lost.step);
            let stack = effects.stacks.get(lost.step).copied();
            (lost.class, stack, since.map(|s| s.checked_ilog2()))
        });
        let turn = turns.entry((state.way, lost)).or_insert(0usize);
        *turn += 1;
        *turn
    };
    let turns: Vec<usize> = states.iter().map(turn).collect();
    let mut order: Vec<usize> = (0..states.len()).collect();
    order.sort_by_key(|i| turns[*i]);
    order
}

/// The states of a run under one model, as far as there is time for them.
pub(crate) fn states_of(
    judge: &Judge<'_>,
    effects: &Effects,
    model: &Model,
    limits: Limits,
) -> States {
    enumerate_until(effects, model.sync_jumps, model.tear, limits, &|| {
        judge.is_over()
    })
}

/// The output of a checker without the parts that differ from run to run: words with a digit in them are numbers,
/// hashes and random names.
#[must_use]
pub fn kin(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut word = String::new();
    for c in line.chars().chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        match word.contains(|c: char| c.is_ascii_digit()) {
            true => plain.push('#'),
            false => plain.push_str(&word),
        }
        word.clear();
        plain.push(c);
    }
    plain.pop();
    plain
}

/// Broken states of one model, by kind and line.
pub(crate) type Groups = BTreeMap<(Kind, String), Vec<usize>>;

pub(crate) fn groups(
    judge: &Judge<'_>,
    effects: &Effects,
    states: &[State],
    verdicts: &[Option<Verdict>],
) -> io::Result<Groups> {
    let former = Former::new(effects);
    let mut groups = Groups::new();
    let mut kinds: HashMap<String, Kind> = HashMap::new();
    for (i, verdict) in verdicts.iter().enumerate() {
        let Some(Verdict::Broken { line, .. }) = verdict else {
            continue;
        };
        let line = kin(line);
        let kind = match kinds.get(&line) {
            Some(kind) => *kind,
            None => {
                // Would it be fine if nothing had been acknowledged?
                let acked = effects.acked_at(states[i].moments.1);
                let may = (acked + 1).min(effects.acks.len());
                let alone = match acked {
                    0 => verdict.clone(),
                    _ => judge.counting(effects, &former, &states[i], (0, may))?,
                };
                let kind = match alone {
                    Some(Verdict::Fine) => Kind::Lost,
                    _ => Kind::Broken,
                };
                kinds.insert(line.clone(), kind);
                kind
            }
        };
        groups.entry((kind, line)).or_default().push(i);
    }
    Ok(groups)
}

/// The broken states of a run under a model that belong to a finding.
///
/// # Errors
/// If states cannot be laid out.
pub(crate) fn still_broken(
    judge: &Judge<'_>,
    run: &Run,
    model: &Model,
    options: &Options,
    (kind, kin): (Kind, &str),
) -> io::Result<Option<(usize, usize)>> {
    let effects = Effects::new(run, model);
    let states = states_of(judge, &effects, model, options.limits);
    if planted::is(Planted::RepairBelieved) {
        return Ok(Some((0, states.all.len())));
    }
    let verdicts = judge.all(&effects, &states.all, options.jobs)?;
    if states.ended.is_some() || verdicts.iter().any(Option::is_none) {
        return Ok(None);
    }
    let groups = groups(judge, &effects, &states.all, &verdicts)?;
    let broken = groups.get(&(kind, kin.to_owned())).map_or(0, Vec::len);
    Ok(Some((broken, states.all.len())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::effects::What;
    use crate::script::Script;

    #[test]
    fn of_many_alike_the_one_that_forgets_its_sync_has_an_early_turn() {
        const ODD: usize = 140;
        let mut script = Script::new();
        let mut odd = 0;
        for i in 0..150 {
            let name = format!("f{i}");
            script = script.make("t").write("t", 0, &[b'x'; 100]);
            match i == ODD {
                true => odd = script.ino("t"),
                false => script = script.fsync("t"),
            }
            script = script.rename("t", &name);
        }
        let mut run = script.run();
        for step in &mut run.steps {
            // All of a kind are made at one place of the program.
            step.stack = match step.what {
                What::Make { .. } => 1,
                What::Write { .. } => 2,
                What::Fsync { .. } => 3,
                _ => 4,
            };
        }
        let model = Model::shipped("ext4").unwrap();
        let effects = Effects::new(&run, &model);
        let states = enumerate_until(
            &effects,
            model.sync_jumps,
            model.tear,
            Limits::default(),
            &|| false,
        );
        // It has its last name, and no content.
        let shows = |state: &State| {
            let disk = Former::once(&effects, &state.bits, state.tear);
            let named = disk.lookup(crate::effects::ROOT, format!("f{ODD}").as_bytes());
            named == Some(odd) && disk.size(odd) == 0
        };
        let turn = |order: Vec<usize>| order.iter().position(|i| shows(&states.all[*i])).unwrap();
        let told = turn(order(&effects, &states.all, usize::MAX));
        let taken = turn(order(&effects, &states.all, 0));
        assert!(told > 500 && taken < 100, "{told}, {taken}");
        let mut all = order(&effects, &states.all, 0);
        all.sort_unstable();
        assert_eq!(all, order(&effects, &states.all, usize::MAX));
    }
}
