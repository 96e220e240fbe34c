//! One run under several models: states, verdicts ([`Judge`]), findings.
//!
//! Findings are broken states with the same first line of output; each is then reduced and repaired ([`crate::why`]).

use crate::check::{Checker, Verdict};
use crate::effects::{Effects, Run};
use crate::judge::{groups, states_of};
use crate::recovery::{self, Recoveries};
use crate::states::{Coverage, State, Way};
use crate::superfluous::{self, Superfluous};
use crate::why::{self, Cause, Repair};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub use crate::judge::{Judge, Kind, Options, Progress, kin};

/// One finding under one model.
#[derive(Clone, Debug)]
pub struct Under {
    /// Position of the model.
    pub model: usize,
    /// Broken states.
    pub broken: usize,
    /// The reduced state that represents it.
    pub state: State,
    /// Durable and lost effects.
    pub cause: Cause,
    /// Result of the repair.
    pub repair: Repair,
}

/// One way in which the run does not survive.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// The first line of the checker's output.
    pub line: String,
    /// The whole output, for one state.
    pub output: String,
    /// By model.
    pub under: Vec<Under>,
}

/// Result of one model.
#[derive(Clone, Debug)]
pub struct Explored {
    /// Name of the model.
    pub model: String,
    /// How far it is calibrated.
    pub calibration: String,
    /// Number of different trees.
    pub trees: usize,
    /// Number of judged trees.
    pub judged: usize,
    /// Number of broken trees.
    pub broken: usize,
    /// Number of trees without a verdict.
    pub none: usize,
    /// Coverage of each way.
    pub coverage: Vec<(Way, Coverage)>,
    /// Whether all prefixes, and all states with one effect lost, were judged.
    pub basic: bool,
    /// Number of steps that were left out.
    pub left_out: usize,
}

/// Result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The findings, worst first.
    pub findings: Vec<Finding>,
    /// Coverage by model.
    pub explored: Vec<Explored>,
    /// Cuts inside recoveries, if they were asked for.
    pub recoveries: Option<Recoveries>,
    /// Superfluous syncs, by model, if they were asked for.
    pub superfluous: Vec<Superfluous>,
    /// Number of runs of the checker.
    pub checks: usize,
    /// Broken states whose second verdict was different.
    pub flaky: Vec<String>,
    /// Why the checker could not be run.
    pub error: Option<String>,
    /// Whether the budget ended first.
    pub cut_short: bool,
    /// Whether a signal ended it.
    pub interrupted: bool,
}

/// Explores a run. It ends early, with what was found until then, at the end of the budget, or when [`Checker::stop`]
/// is set.
///
/// # Errors
/// If states cannot be laid out.
pub fn explore(run: &Run, checker: &Checker, options: &Options) -> io::Result<Outcome> {
    explore_watched(run, checker, options, &|_, _, _| ())
}

/// As [`explore`], with reports of progress.
///
/// # Errors
/// If states cannot be laid out.
pub fn explore_watched(
    run: &Run,
    checker: &Checker,
    options: &Options,
    progress: &Progress<'_>,
) -> io::Result<Outcome> {
    let end = Instant::now() + options.budget;
    let mut judge = Judge::new(checker, end, options.prune);
    let mut outcome = Outcome::default();
    let mut found: BTreeMap<(Kind, String), Finding> = BTreeMap::new();
    let recover = checker.recover.as_deref();
    let mut recoveries = recover
        .filter(|_| options.recovery_cuts > 0)
        .map(|r| recovery::Recorder::new(r, checker));
    outcome.recoveries = recoveries.as_ref().map(|_| Recoveries::default());
    for (m, model) in options.models.iter().enumerate() {
        // Each model gets an equal part of the time that is left.
        let left = end.saturating_duration_since(Instant::now());
        let models = u32::try_from(options.models.len() - m).unwrap_or(1);
        judge.stop_at(Instant::now() + left / models);
        let effects = Effects::new(run, model);
        let states = states_of(&judge, &effects, model, options.limits);
        outcome.cut_short |= states.ended.is_some();
        judge.tell(format!("states on {}", model.name), progress);
        let verdicts = judge.all(&effects, &states.all, options.jobs)?;
        judge.tell(format!("repairs on {}", model.name), progress);
        if let Some(Some(Verdict::Error(error))) = verdicts
            .iter()
            .find(|v| matches!(v, Some(Verdict::Error(_))))
        {
            outcome.error = Some(error.clone());
            break;
        }
        let count = |f: &dyn Fn(&Option<Verdict>) -> bool| verdicts.iter().filter(|v| f(v)).count();
        let basic = states.all.iter().zip(&verdicts);
        outcome.explored.push(Explored {
            model: model.name.clone(),
            calibration: model.calibration().to_owned(),
            trees: states.all.len(),
            judged: count(&Option::is_some),
            broken: count(&|v| v.as_ref().is_some_and(Verdict::is_broken)),
            none: count(&|v| matches!(v, Some(Verdict::None))),
            coverage: states.coverage.clone(),
            basic: states.ended.is_none_or(|way| way > Way::Lost)
                && basic
                    .into_iter()
                    .all(|(s, v)| s.way > Way::Lost || v.is_some()),
            left_out: effects.left_out,
        });
        for ((kind, kin), broken) in groups(&judge, &effects, &states.all, &verdicts)? {
            let Some((first, Some(Verdict::Broken { line, output }))) =
                broken.first().map(|i| (i, &verdicts[*i]))
            else {
                continue;
            };
            let (state, cause) =
                why::reduce(&judge, &effects, model, &states.all[*first], kind, &kin)?;
            let repair = match options.repair {
                true => why::repair(
                    &judge,
                    run,
                    model,
                    options,
                    &why::Target {
                        kind,
                        kin: &kin,
                        cause: &cause,
                        broken: broken.len(),
                        hint: found.get(&(kind, kin.clone())),
                    },
                )?,
                false => Repair::NotTried,
            };
            let finding = found.entry((kind, kin)).or_insert_with(|| Finding {
                kind,
                line: line.clone(),
                output: output.clone(),
                under: Vec::new(),
            });
            finding.under.push(Under {
                model: m,
                broken: broken.len(),
                state,
                cause,
                repair,
            });
        }
        if let (Some(recorder), Some(into)) = (&mut recoveries, &mut outcome.recoveries) {
            judge.tell(format!("recoveries on {}", model.name), progress);
            let judged = (states.all.as_slice(), verdicts.as_slice());
            recovery::explore(
                &judge,
                recorder,
                &effects,
                (m, model),
                judged,
                options,
                into,
            )?;
        }
        if options.superfluous {
            judge.tell(format!("syncs on {}", model.name), progress);
            let found = superfluous::find(&judge, run, (m, model), options)?;
            outcome.superfluous.push(found);
        }
    }
    outcome.interrupted = checker.stop.load(Ordering::Relaxed);
    outcome.cut_short |= outcome.explored.iter().any(|e| e.judged < e.trees);
    outcome.cut_short &= !outcome.interrupted;
    outcome.findings = found.into_values().collect();
    // Worst first: broken before lost, then what most models allow.
    outcome
        .findings
        .sort_by_key(|f| (f.kind, std::cmp::Reverse(f.under.len())));
    (outcome.checks, outcome.flaky) = judge.end();
    Ok(outcome)
}
