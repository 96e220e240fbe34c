//! A report of an outcome.

use super::{
    EffectReport, FileReport, FindingReport, InsideReport, ModelReport, Place, RecoveryReport,
    RepairReport, Report, StateReport, StepReport, SuperfluousReport, SyncReport, UnderReport,
    VERSION, WayReport,
};
use crate::effects::{Effects, Location, Run};
use crate::explore::{Finding, Outcome, Under, kin};
use crate::models::Model;
use crate::recovery::{Inside, Recoveries};
use crate::states::{Former, State};
use crate::superfluous::Superfluous;
use crate::why::{Repair, Sync, Told};
use steadfast_model::Hasher128;

/// Something that the recorder did not see.
pub type BlindSpot = String;

/// Input of a report beside the outcome.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The workload.
    pub command: String,
    /// Blind spots of the recorder.
    pub blind: Vec<BlindSpot>,
    /// Other warnings.
    pub warnings: Vec<String>,
}

fn place(location: Option<&Location>) -> Option<Place> {
    location.map(|l| Place {
        file: l.file.clone(),
        line: l.line,
    })
}

fn effect(run: &Run, told: &Told) -> EffectReport {
    let step = run.steps.get(told.step);
    EffectReport {
        call: step.map_or(0, |s| s.number),
        class: told.class.to_string(),
        text: step.map_or_else(String::new, |s| s.text.clone()),
        location: place(step.and_then(|s| s.location.as_ref())),
        bytes: told.part,
    }
}

fn sync(run: &Run, sync: &Sync) -> SyncReport {
    let of = run
        .steps
        .get(sync.of)
        .map_or_else(String::new, |s| format!("#{} {}", s.number, s.text));
    let step = run.steps.get(sync.before);
    SyncReport {
        call: if sync.data_only { "fdatasync" } else { "fsync" }.to_owned(),
        of: match sync.dir {
            true => format!("the directory of {of}"),
            false => format!("the file of {of}"),
        },
        before: EffectReport {
            call: step.map_or(0, |s| s.number),
            class: String::new(),
            text: step.map_or_else(String::new, |s| s.text.clone()),
            location: place(step.and_then(|s| s.location.as_ref())),
            bytes: None,
        },
    }
}

fn repair(run: &Run, repair: &Repair) -> RepairReport {
    match repair {
        Repair::NotTried => RepairReport::NotTried,
        Repair::Useless => RepairReport::NoSyncHelps,
        Repair::OutOfTime => RepairReport::OutOfTime,
        Repair::NotFound { tried } => RepairReport::NotFound { tried: *tried },
        Repair::Found {
            syncs,
            broken,
            states,
        } => RepairReport::Found {
            syncs: syncs.iter().map(|s| sync(run, s)).collect(),
            broken_before: *broken,
            states_after: *states,
        },
    }
}

fn under(run: &Run, model: &Model, under: &Under) -> UnderReport {
    let effects = Effects::new(run, model);
    let cause = &under.cause;
    let (files, more_files) = differing(&effects, &under.state);
    UnderReport {
        model: model.name.clone(),
        broken: under.broken,
        durable: cause.durable.as_ref().map(|t| effect(run, t)),
        lost: cause.lost.iter().map(|t| effect(run, t)).collect(),
        torn: cause.torn.as_ref().map(|(t, kept)| EffectReport {
            bytes: Some(*kept),
            ..effect(run, t)
        }),
        acknowledged: cause.acked.as_ref().map(|(text, _)| text.clone()),
        prefix: cause.is_prefix,
        repair: repair(run, &under.repair),
        state: StateReport::new(&under.state, &effects),
        files,
        more_files,
        confirmation: None,
    }
}

/// The files of a state that differ from what all calls up to its moment, and up to its last effect, had made.
fn differing(effects: &Effects, state: &State) -> (Vec<FileReport>, usize) {
    let last = state.bits.last().max(state.tear.map(|t| t.effect));
    let last = last
        .and_then(|e| effects.all.get(e))
        .map_or(0, |e| e.step + 1);
    let former = Former::new(effects);
    let written = former.disk(&effects.prefix(last.max(state.moments.1)), None);
    super::files::differing(&written, &former.disk(&state.bits, state.tear))
}

fn step_report(run: &Run, step: usize) -> Option<StepReport> {
    run.steps.get(step).map(|s| StepReport {
        number: s.number,
        text: s.text.clone(),
        location: place(s.location.as_ref()),
        thread: s.thread,
    })
}

/// For each step, the number of steps after which it is durable, whatever is lost.
fn durable(run: &Run, models: &[Model], name: &str) -> Vec<Option<i64>> {
    let Some(model) = models.iter().find(|m| m.name == name) else {
        return Vec::new();
    };
    let after = Effects::new(run, model).durable_after().into_iter();
    let number = |t: usize| i64::try_from(t).unwrap_or(i64::MAX);
    after
        .map(|step| step.map(|since| since.map_or(-1, number)))
        .collect()
}

fn inside(run: &Run, models: &[Model], inside: &Inside) -> InsideReport {
    let (outer, cause) = (&inside.outer_cause, &inside.cause);
    let all = |run: &Run, told: &[Told]| told.iter().map(|t| effect(run, t)).collect();
    InsideReport {
        model: models
            .get(inside.model)
            .map_or_else(String::new, |m| m.name.clone()),
        kind: inside.kind.name().to_owned(),
        line: inside.line.clone(),
        output: inside.output.clone(),
        broken: inside.broken,
        after: outer.durable.as_ref().map(|t| effect(run, t)),
        without: all(run, &outer.lost),
        durable: cause.durable.as_ref().map(|t| effect(&inside.run, t)),
        lost: all(&inside.run, &cause.lost),
        torn: cause.torn.as_ref().map(|(t, kept)| EffectReport {
            bytes: Some(*kept),
            ..effect(&inside.run, t)
        }),
    }
}

fn recovery(run: &Run, models: &[Model], found: &Recoveries) -> RecoveryReport {
    let findings = found.findings.iter();
    RecoveryReport {
        recorded: found.recorded,
        writing: found.writing,
        judged: found.judged,
        findings: findings.map(|f| inside(run, models, f)).collect(),
    }
}

fn superfluous(run: &Run, models: &[Model], found: &Superfluous) -> SuperfluousReport {
    let steps = found.steps.iter();
    SuperfluousReport {
        model: models
            .get(found.model)
            .map_or_else(String::new, |m| m.name.clone()),
        syncs: steps.filter_map(|s| step_report(run, *s)).collect(),
        of: found.of,
        tried: found.tried,
    }
}

/// A key that stays the same from run to run: kind, message without numbers, and the kinds of calls to blame.
fn key(finding: &Finding, under: &[UnderReport]) -> String {
    let mut hash = Hasher128::new(71);
    hash.bytes(finding.kind.name().as_bytes())
        .bytes(kin(&finding.line).as_bytes());
    if let Some(first) = under.first() {
        let word = |e: &EffectReport| {
            let word = e.text.split(' ').next().unwrap_or_default();
            format!("{word} {}", e.class)
        };
        for effect in first.lost.iter().chain(&first.durable) {
            hash.bytes(word(effect).as_bytes());
        }
    }
    format!("{:016x}", hash.finish() as u64)
}

/// What to do about a check that said two things of these states.
fn flaky(lines: &[String]) -> Option<String> {
    let line = lines.first()?;
    let states = match lines.len() {
        1 => "one state".to_owned(),
        n => format!("{n} states"),
    };
    Some(format!(
        "the check is flaky: judged twice, {states} got two verdicts, one of them '{line}': any verdict here may be wrong; \
         make the check depend on the files alone (not on time, chance or processes that it leaves behind) or raise \
         --check-time, then explore this trace again"
    ))
}

/// The report of an exploration of `run` under `models`.
#[must_use]
pub fn make(run: &Run, models: &[Model], outcome: &Outcome, about: About) -> Report {
    let mut warnings = about.warnings;
    warnings.extend(flaky(&outcome.flaky));
    if outcome.interrupted {
        warnings.push("interrupted: not all states were judged".to_owned());
    }
    if outcome.cut_short {
        warnings.push("the budget ended before all states were judged".to_owned());
    }
    for e in outcome.explored.iter().filter(|e| e.left_out > 0) {
        warnings.push(format!(
            "{}: the run is too long: its last {} calls were left out",
            e.model, e.left_out
        ));
    }
    let explored = |name: &str| outcome.explored.iter().any(|e| e.model == name);
    let findings = outcome.findings.iter().enumerate().map(|(i, finding)| {
        let all: Vec<UnderReport> = finding
            .under
            .iter()
            .filter_map(|u| models.get(u.model).map(|m| under(run, m, u)))
            .collect();
        let has = |name: &str| all.iter().any(|u| u.model == name);
        FindingReport {
            id: format!("V{}", i + 1),
            key: key(finding, &all),
            kind: finding.kind.name().to_owned(),
            line: finding.line.clone(),
            output: finding.output.clone(),
            known: false,
            not_on: models
                .iter()
                .map(|m| m.name.clone())
                .filter(|n| explored(n) && !has(n))
                .collect(),
            under: all,
        }
    });
    Report {
        version: VERSION,
        command: about.command,
        calls: run.steps.len(),
        acknowledged: run
            .steps
            .iter()
            .filter(|s| matches!(s.what, crate::effects::What::Ack { .. }))
            .count(),
        checks: outcome.checks,
        models: outcome
            .explored
            .iter()
            .map(|e| ModelReport {
                name: e.model.clone(),
                calibration: e.calibration.clone(),
                trees: e.trees,
                judged: e.judged,
                broken: e.broken,
                no_verdict: e.none,
                ways: e
                    .coverage
                    .iter()
                    .map(|(way, c)| WayReport {
                        way: way.name().to_owned(),
                        formed: c.formed,
                        trees: c.trees,
                        exhaustive: c.whole,
                    })
                    .collect(),
                durable: durable(run, models, &e.model),
                points: Vec::new(),
            })
            .collect(),
        findings: findings.collect(),
        recovery: outcome
            .recoveries
            .as_ref()
            .map(|r| recovery(run, models, r)),
        superfluous: outcome
            .superfluous
            .iter()
            .map(|s| superfluous(run, models, s))
            .collect(),
        blind: about.blind,
        warnings,
        basic: outcome.explored.len() == models.len() && outcome.explored.iter().all(|e| e.basic),
        interrupted: outcome.interrupted,
        steps: (0..run.steps.len())
            .filter_map(|s| step_report(run, s))
            .collect(),
        sources: Vec::new(),
    }
}
