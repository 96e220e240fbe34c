//! The report as one HTML file: nothing loaded from elsewhere, all text escaped, and a policy that permits only its
//! own script and style. Sections fold by mouse and keyboard (`details`); it is dark if the reader's system is, and
//! fits 400 pixels. Its script shows a crash point that can be moved (`timeline`); everything else works without it.

use super::{
    EffectReport, FindingReport, InsideReport, RecoveryReport, RepairReport, Report,
    SuperfluousReport, UnderReport, html_files,
};
use crate::effects::readable;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Maximum number of calls that the list of calls shows around those to blame.
const NEAR: usize = 3;

/// A test says what these must be.
const STYLE: &str = include_str!("page.css");
const STYLE_HASH: &str = "sha256-nmqUaCz2vgzA6QJ0cBp2kERkJ+XIhGrzdhKBKoQyB50=";
const SCRIPT: &str = include_str!("page.js");
const SCRIPT_HASH: &str = "sha256-YsxPqmM6px684gdIjyWSpvzdhtQoJLOwQ9bsXyzFj5w=";

/// Text for HTML.
pub(super) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn effect(out: &mut String, word: &str, sign: &str, e: &EffectReport) {
    let bytes = e
        .bytes
        .map_or_else(String::new, |(a, b)| format!(", bytes {a}..{b}"));
    let place = e
        .location
        .as_ref()
        .map_or_else(String::new, super::Place::text);
    let _ = write!(
        out,
        "<tr class=\"{word}\"><th scope=\"row\">{sign} {word}</th><td>#{}</td><td class=\"call\">{}</td><td>{}{}</td><td class=\"call\">{}</td></tr>",
        e.call,
        esc(&e.text),
        esc(&e.class),
        bytes,
        esc(&place)
    );
}

fn repair(out: &mut String, under: &UnderReport) {
    let text = match &under.repair {
        RepairReport::NotTried => return,
        RepairReport::NoSyncHelps => "No fsync helps: killing the process does it.".to_owned(),
        RepairReport::OutOfTime => "The budget ended before a repair was found.".to_owned(),
        RepairReport::NotFound { tried } => {
            format!("No repair found; {tried} sets of syncs were tried out.")
        }
        RepairReport::Found {
            syncs,
            broken_before,
            states_after,
        } => {
            let syncs: Vec<String> = syncs
                .iter()
                .map(|s| {
                    format!(
                        "{} of {}, before #{} {}",
                        s.call, s.of, s.before.call, s.before.text
                    )
                })
                .collect();
            format!(
                "Repair: {}. 0 of {states_after} states are broken then (now {broken_before}).",
                syncs.join("; and ")
            )
        }
    };
    let _ = write!(out, "<p>{}</p>", esc(&text));
}

/// The effects to blame, as a table.
fn effects<'a>(
    out: &mut String,
    durable: Option<&'a EffectReport>,
    lost: impl IntoIterator<Item = &'a EffectReport>,
    torn: Option<&'a EffectReport>,
) {
    out.push_str("<div class=\"scroll\"><table>");
    if let Some(e) = durable {
        effect(out, "durable", "●", e);
    }
    for e in lost {
        effect(out, "lost", "○", e);
    }
    if let Some(e) = torn {
        effect(out, "torn", "◐", e);
    }
    out.push_str("</table></div>");
}

fn under(out: &mut String, report: &Report, u: &UnderReport) {
    let _ = write!(
        out,
        "<h3>{}: {} broken states</h3>",
        esc(&u.model),
        u.broken
    );
    if let Some(text) = &u.acknowledged {
        let _ = write!(
            out,
            "<p>Acknowledged: <code>{}</code></p>",
            esc(&readable(text.as_bytes()))
        );
    }
    effects(out, u.durable.as_ref(), &u.lost, u.torn.as_ref());
    if u.prefix {
        out.push_str("<p>Everything before it is durable, nothing after it.</p>");
    }
    repair(out, u);
    if let Some(real) = &u.confirmation {
        let _ = write!(out, "<p>On the real file system: {}.</p>", esc(&real.line));
    }
    let blamed = u.lost.iter().chain(&u.torn).chain(&u.durable);
    html_files::files(out, &u.files, u.more_files);
    html_files::sources(out, &report.sources, blamed);
    near(out, report, u);
}

/// The calls around those to blame.
fn near(out: &mut String, report: &Report, u: &UnderReport) {
    let blamed = |n: u64| {
        let is = |e: &&EffectReport| e.call == n;
        if u.durable.iter().any(|e| is(&e)) {
            Some(("durable", "●"))
        } else if u.lost.iter().any(|e| is(&e)) {
            Some(("lost", "○"))
        } else {
            u.torn.iter().any(|e| is(&e)).then_some(("torn", "◐"))
        }
    };
    let mut shown = BTreeSet::new();
    for (i, step) in report.steps.iter().enumerate() {
        if blamed(step.number).is_some() {
            shown.extend(i.saturating_sub(NEAR)..(i + NEAR + 1).min(report.steps.len()));
        }
    }
    if shown.is_empty() {
        return;
    }
    out.push_str("<details><summary>The calls around them</summary><div class=\"scroll\"><table>");
    let mut last = None;
    for i in shown {
        let Some(step) = report.steps.get(i) else {
            continue;
        };
        if last.is_some_and(|l| l + 1 != i) {
            out.push_str("<tr><td></td><td></td><td>…</td></tr>");
        }
        last = Some(i);
        let (class, sign) = blamed(step.number).unwrap_or(("", ""));
        let _ = write!(
            out,
            "<tr class=\"{class}\"><td>{sign}</td><td>#{}</td><td class=\"call\">{}</td></tr>",
            step.number,
            esc(&step.text)
        );
    }
    out.push_str("</table></div></details>");
}

fn finding(out: &mut String, report: &Report, f: &FindingReport) {
    let on: Vec<&str> = f.under.iter().map(|u| u.model.as_str()).collect();
    let open = if f.id == "V1" { " open" } else { "" };
    let not = if f.not_on.is_empty() {
        String::new()
    } else {
        format!("; not on {}", f.not_on.join(", "))
    };
    let _ = write!(
        out,
        "<details{open}><summary><strong>{}</strong> {} on {}{}: <code>{}</code></summary><pre>{}</pre>",
        esc(&f.id),
        esc(&f.kind),
        esc(&on.join(", ")),
        esc(&not),
        esc(&readable(f.line.as_bytes())),
        esc(&f.output)
    );
    for u in &f.under {
        under(out, report, u);
    }
    out.push_str("</details>");
}

/// A finding inside a recovery.
fn inside(out: &mut String, f: &InsideReport) {
    let _ = write!(
        out,
        "<details open><summary>{} on {}, after a power cut inside the recovery: <code>{}</code></summary><pre>{}</pre>",
        esc(&f.kind),
        esc(&f.model),
        esc(&readable(f.line.as_bytes())),
        esc(&f.output)
    );
    out.push_str("<h3>The state that is recovered</h3>");
    if f.after.is_none() {
        out.push_str("<p>As before the first call.</p>");
    }
    effects(out, f.after.as_ref(), &f.without, None);
    let _ = write!(
        out,
        "<h3>The recovery, cut: {} broken states</h3>",
        f.broken
    );
    if f.durable.is_none() {
        out.push_str("<p>Nothing of the recovery is durable.</p>");
    }
    effects(out, f.durable.as_ref(), &f.lost, f.torn.as_ref());
    out.push_str("</details>");
}

/// Cuts inside recoveries, if they were asked for.
fn recovery(out: &mut String, r: &RecoveryReport) {
    let _ = write!(
        out,
        "<h2>Power cuts inside the recovery</h2><p>{}.</p>",
        esc(&super::text::recoveries(r))
    );
    for f in &r.findings {
        inside(out, f);
    }
}

/// Superfluous syncs, by model.
fn superfluous(out: &mut String, all: &[SuperfluousReport]) {
    if all.is_empty() {
        return;
    }
    out.push_str("<h2>Syncs that can go</h2><p>All that one model names can go together.</p><ul>");
    for s in all {
        let _ = write!(out, "<li>{}<ul>", esc(&super::text::superfluous_count(s)));
        for step in &s.syncs {
            let _ = write!(out, "<li><code>{}</code></li>", esc(&step.told()));
        }
        out.push_str("</ul></li>");
    }
    out.push_str("</ul>");
}

/// The report as a page.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src '{SCRIPT_HASH}'; style-src '{STYLE_HASH}'\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Power cuts: {0}</title><style>{STYLE}</style></head><body><main><h1>What power cuts leave of <code>{0}</code></h1>",
        esc(&report.command)
    );
    let _ = write!(
        out,
        "<p>{} findings; {} calls, {} acknowledgements, {} runs of the checker.</p>",
        report.findings.len(),
        report.calls,
        report.acknowledged,
        report.checks
    );
    for w in &report.warnings {
        let _ = write!(out, "<p class=\"lost\">Warning: {}</p>", esc(w));
    }
    super::timeline::write(&mut out, report);
    for f in &report.findings {
        finding(&mut out, report, f);
    }
    if let Some(r) = &report.recovery {
        recovery(&mut out, r);
    }
    superfluous(&mut out, &report.superfluous);
    out.push_str("<h2>Models</h2><div class=\"scroll\"><table><tr><th>model</th><th>trees</th><th>broken</th><th>exhaustive</th><th>sampled</th><th>calibration</th></tr>");
    for m in &report.models {
        let names = |whole: bool| -> String {
            let ways = m
                .ways
                .iter()
                .filter(|w| w.exhaustive == whole && w.formed > 0);
            ways.map(|w| w.way.as_str()).collect::<Vec<_>>().join(", ")
        };
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            esc(&m.name),
            m.trees,
            m.broken,
            names(true),
            names(false),
            esc(&m.calibration)
        );
    }
    out.push_str("</table></div>");
    if !report.blind.is_empty() {
        out.push_str("<h2>Not seen</h2><ul>");
        for b in &report.blind {
            let _ = write!(out, "<li>{}</li>", esc(b));
        }
        out.push_str("</ul>");
    }
    let _ = write!(out, "</main><script>{SCRIPT}</script></body></html>");
    out.push('\n');
    out
}
