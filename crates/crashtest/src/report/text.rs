//! The report for a terminal: 40 lines at most, worst first.

use super::{
    EffectReport, FindingReport, InsideReport, RecoveryReport, RepairReport, Report, StepReport,
    SuperfluousReport, UnderReport,
};
use crate::effects::readable;

/// Maximum number of lines.
const LINES_MAX: usize = 40;
/// Longest line of a checker that is shown.
const SHOWN_MAX: usize = 100;

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn shown(line: &str) -> String {
    let mut text = readable(line.as_bytes());
    if text.chars().count() > SHOWN_MAX {
        text = text.chars().take(SHOWN_MAX).collect::<String>() + "…";
    }
    text
}

fn effect(e: &EffectReport) -> String {
    let bytes = match e.bytes {
        Some((from, to)) => format!(" [{} of bytes {from}..{to}]", e.class),
        None => format!(" [{}]", e.class),
    };
    let place = e.location.as_ref();
    let place = place.map_or_else(String::new, |l| format!("   {}", l.text()));
    format!("#{} {}{bytes}{place}", e.call, e.text)
}

fn repair(under: &UnderReport) -> Vec<String> {
    match &under.repair {
        RepairReport::NotTried => Vec::new(),
        RepairReport::NoSyncHelps => {
            vec!["   repair   no fsync helps: 'kill -9' does it".to_owned()]
        }
        RepairReport::OutOfTime => {
            vec!["   repair   the budget ended before one was found".to_owned()]
        }
        RepairReport::NotFound { tried } => {
            vec![format!(
                "   repair   none found; {tried} sets of syncs were tried out"
            )]
        }
        RepairReport::Found {
            syncs,
            broken_before,
            states_after,
        } => {
            let mut lines: Vec<String> = syncs
                .iter()
                .map(|s| {
                    format!(
                        "   repair   {} of {}, before #{} {}",
                        s.call, s.of, s.before.call, s.before.text
                    )
                })
                .collect();
            if let Some(last) = lines.last_mut() {
                last.push_str(&format!(
                    ": 0 of {states_after} states broken (now {broken_before})"
                ));
            }
            lines
        }
    }
}

fn cause(under: &UnderReport, lost_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(text) = &under.acknowledged {
        lines.push(format!("   told     '{}'", shown(text)));
    }
    if let Some(e) = &under.durable {
        lines.push(format!("   durable  {}", effect(e)));
    }
    for e in under.lost.iter().take(lost_max) {
        lines.push(format!("   lost     {}", effect(e)));
    }
    if under.lost.len() > lost_max {
        lines.push(format!(
            "   lost     and {} more",
            under.lost.len() - lost_max
        ));
    }
    if let Some(e) = &under.torn {
        lines.push(format!(
            "   torn     {}; only these bytes are durable",
            effect(e)
        ));
    }
    if under.prefix && under.durable.is_some() {
        lines.push("            everything before it is durable, nothing after it".to_owned());
    }
    lines
}

fn head(f: &FindingReport) -> String {
    let on: Vec<&str> = f.under.iter().map(|u| u.model.as_str()).collect();
    let mut line = format!("{} {} on {}", f.id, f.kind, on.join(", "));
    if !f.not_on.is_empty() {
        line.push_str(&format!("; not on {}", f.not_on.join(", ")));
    }
    if f.known {
        line.push_str(" (known)");
    }
    line
}

fn finding(f: &FindingReport) -> Vec<String> {
    let mut lines = vec![head(f), format!("   \"{}\"", shown(&f.line))];
    if let Some(first) = f.under.first() {
        lines.extend(cause(first, 2));
        lines.extend(repair(first));
    }
    let real = f.under.iter().filter_map(|u| u.confirmation.as_ref());
    lines.extend(real.map(|c| format!("   real     {}", c.line)));
    lines
}

/// A finding inside a recovery, with this many lost effects at most.
fn inside(f: &InsideReport, lost_max: usize) -> Vec<String> {
    let mut lines = vec![
        format!(
            "{} on {}, after a power cut inside the recovery",
            f.kind, f.model
        ),
        format!("   \"{}\"", shown(&f.line)),
    ];
    match &f.after {
        Some(e) => lines.push(format!("   state    after {}", effect(e))),
        None => lines.push("   state    as before the first call".to_owned()),
    }
    let without = f.without.iter().take(lost_max);
    lines.extend(without.map(|e| format!("   without  {}", effect(e))));
    match &f.durable {
        Some(e) => lines.push(format!("   durable  recovery {}", effect(e))),
        None => lines.push("   durable  nothing of the recovery".to_owned()),
    }
    let lost = f.lost.iter().take(lost_max);
    lines.extend(lost.map(|e| format!("   lost     recovery {}", effect(e))));
    let torn = f.torn.iter();
    lines.extend(torn.map(|e| format!("   torn     recovery {}", effect(e))));
    lines
}

/// Number of superfluous syncs under one model.
pub(super) fn superfluous_count(s: &SuperfluousReport) -> String {
    let tried = match s.tried == s.of {
        true => String::new(),
        false => format!(", {} of them tried", s.tried),
    };
    format!(
        "superfluous on {}: {} of {}{tried}",
        s.model,
        s.syncs.len(),
        counted(s.of, "sync")
    )
}

/// Superfluous syncs, under one model.
fn superfluous(s: &SuperfluousReport) -> String {
    const SHOWN: usize = 3;
    let mut line = superfluous_count(s);
    let told = s.syncs.iter().take(SHOWN);
    let told: Vec<String> = told.map(StepReport::told).collect();
    if !told.is_empty() {
        line.push_str(&format!(": {}", told.join("; ")));
    }
    if s.syncs.len() > SHOWN {
        line.push_str(&format!("; and {} more", s.syncs.len() - SHOWN));
    }
    line
}

/// Summary of cuts inside recoveries.
pub(super) fn recoveries(r: &RecoveryReport) -> String {
    format!(
        "recoveries: {} of {} change something; {} inside them, {} broken for {}",
        r.writing,
        r.recorded,
        counted(r.judged, "tree"),
        r.findings.iter().map(|f| f.broken).sum::<usize>(),
        counted(r.findings.len(), "reason"),
    )
}

/// The report, in 40 lines at most.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut tail = Vec::new();
    for m in &report.models {
        let whole: Vec<&str> = m
            .ways
            .iter()
            .filter(|w| w.exhaustive)
            .map(|w| w.way.as_str())
            .collect();
        let part: Vec<&str> = m
            .ways
            .iter()
            .filter(|w| !w.exhaustive && w.formed > 0)
            .map(|w| w.way.as_str())
            .collect();
        let sampled = if part.is_empty() {
            String::new()
        } else {
            format!("; sampled: {}", part.join(", "))
        };
        tail.push(format!(
            "{}: {} of {} trees broken, {} judged{}; all of: {}{sampled} ({})",
            m.name,
            m.broken,
            m.trees,
            m.judged,
            if m.no_verdict > 0 {
                format!(", {} without a verdict", m.no_verdict)
            } else {
                String::new()
            },
            whole.join(", "),
            m.calibration,
        ));
    }
    tail.extend(report.superfluous.iter().map(superfluous));
    tail.extend(report.recovery.iter().map(recoveries));
    let warnings = report.warnings.iter();
    tail.extend(warnings.map(|w| format!("warning: {}", readable(w.as_bytes()))));
    if !report.blind.is_empty() {
        tail.push(format!("not seen: {}", report.blind.join("; ")));
    }
    let (calls, acks) = (report.calls, report.acknowledged);
    tail.push(format!(
        "{}; {}, {}, {}",
        counted(report.findings.len(), "finding"),
        counted(calls, "call"),
        counted(acks, "acknowledgement"),
        counted(report.checks, "check"),
    ));
    tail.truncate(LINES_MAX / 2);
    let room = LINES_MAX - tail.len();
    let mut lines = Vec::new();
    for (i, f) in report.findings.iter().enumerate() {
        let next = finding(f);
        let left = report.findings.len() - i;
        // One line is kept for the number of findings that are not shown.
        if lines.len() + next.len() + usize::from(left > 1) > room {
            lines.push(format!("{left} more findings: see --json or --html"));
            break;
        }
        lines.extend(next);
    }
    for f in report.recovery.iter().flat_map(|r| &r.findings) {
        let next = inside(f, 2);
        if lines.len() + next.len() > room {
            break;
        }
        lines.extend(next);
    }
    lines.extend(tail);
    lines.join("\n")
}

fn quoted(output: &str) -> impl Iterator<Item = String> {
    let lines = output.lines();
    lines.map(|l| format!("   | {}", readable(l.as_bytes())))
}

/// One finding inside a recovery, in full.
pub(super) fn explain_inside(f: &InsideReport) -> String {
    let mut lines = inside(f, 20);
    lines.extend(quoted(&f.output));
    lines.push(format!(
        "   {} inside recoveries",
        counted(f.broken, "broken state")
    ));
    lines.join("\n")
}

/// One finding in full, under each model.
#[must_use]
pub fn explain(f: &FindingReport) -> String {
    let mut lines = vec![head(f)];
    lines.extend(quoted(&f.output));
    for under in &f.under {
        lines.push(format!("{}: {} broken states", under.model, under.broken));
        lines.extend(cause(under, 20));
        lines.extend(repair(under));
        let real = under.confirmation.iter();
        lines.extend(real.map(|c| format!("   real     {}", c.line)));
        let (first, last) = under.state.moments;
        lines.push(format!(
            "   moment   between call {first} and call {last} of the run"
        ));
    }
    lines.join("\n")
}
