//! JUnit XML and SARIF 2.1.0.

use super::{EffectReport, FindingReport, InsideReport, Place, Report, StepReport, text};
use serde_json::{Value, json};
use std::fmt::Write;

/// Text for XML: characters that XML 1.0 forbids become U+FFFD.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Failures of a model's test case: findings that count, and findings inside recoveries.
fn failures(report: &Report, model: &str) -> Vec<(String, String, String)> {
    let on = |f: &&FindingReport| !f.known && f.under.iter().any(|u| u.model == model);
    let findings = report.findings.iter().filter(on);
    let inside = report.recovery.iter().flat_map(|r| &r.findings);
    let inside = inside.filter(|f| f.model == model);
    let told = |line: &str, kind: &str, text| (line.to_owned(), kind.to_owned(), text);
    findings
        .map(|f| told(&f.line, &f.kind, text::explain(f)))
        .chain(inside.map(|f| told(&f.line, &f.kind, text::explain_inside(f))))
        .collect()
}

/// Remarks on the run as a whole, apart from failures: superfluous syncs, warnings, blind spots.
fn remarks(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = report.recovery.iter().map(text::recoveries).collect();
    for s in &report.superfluous {
        lines.push(text::superfluous_count(s));
        let steps = s.syncs.iter();
        lines.extend(steps.map(|step| format!("  {}", step.told())));
    }
    let warnings = report.warnings.iter();
    lines.extend(warnings.map(|w| format!("warning: {w}")));
    lines.extend(report.blind.iter().map(|b| format!("not seen: {b}")));
    lines
}

/// A test case for each model, which fails if there are findings that count. Each finding inside a recovery fails the
/// model's test case, too.
#[must_use]
pub fn junit(report: &Report) -> String {
    let models = report.models.iter();
    let all: Vec<_> = models
        .map(|m| (&m.name, failures(report, &m.name)))
        .collect();
    let failed = all.iter().filter(|(_, f)| !f.is_empty()).count();
    let tests = all.len();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<testsuites tests=\"{tests}\" failures=\"{failed}\" errors=\"0\">\n <testsuite name=\"steadfast crash test\" tests=\"{tests}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\">\n"
    );
    for (model, failures) in &all {
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\">",
            xml(&report.command),
            xml(model)
        );
        if let Some((line, kind, _)) = failures.first() {
            let text: Vec<&str> = failures.iter().map(|(_, _, t)| t.as_str()).collect();
            let _ = writeln!(
                out,
                "   <failure message=\"{}\" type=\"{}\">{}</failure>",
                xml(line),
                xml(kind),
                xml(&text.join("\n\n"))
            );
        }
        out.push_str("  </testcase>\n");
    }
    let remarks = remarks(report);
    if !remarks.is_empty() {
        let _ = writeln!(
            out,
            "  <system-out>{}</system-out>",
            xml(&remarks.join("\n"))
        );
    }
    out.push_str(" </testsuite>\n</testsuites>\n");
    out
}

/// A path as a relative or absolute URI.
fn uri(path: &str) -> String {
    let mut out = String::new();
    if path.starts_with('/') {
        out.push_str("file://");
    }
    for b in path.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                out.push(b as char);
            }
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

/// A result for each finding that counts, at the call that is lost; one for each finding inside a recovery, and a
/// note for each superfluous sync. Warnings and blind spots are notifications of the run.
#[must_use]
pub fn sarif(report: &Report) -> Value {
    let findings = report.findings.iter().filter(|f| !f.known);
    let inside = report.recovery.iter().flat_map(|r| &r.findings);
    let syncs = report.superfluous.iter();
    let syncs = syncs.flat_map(|s| s.syncs.iter().map(move |step| superfluous(&s.model, step)));
    let results: Vec<Value> = findings
        .map(result)
        .chain(inside.map(inside_result))
        .chain(syncs)
        .collect();
    let notification =
        |level: &str, text: &String| json!({ "level": level, "message": { "text": text } });
    let warnings = report.warnings.iter().map(|w| notification("warning", w));
    let blind = report.blind.iter();
    let blind = blind.map(|b| notification("note", &format!("not seen: {b}")));
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "steadfast crash test",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [
                    { "id": "broken", "shortDescription": { "text": "A power cut can leave a state that the program does not survive" } },
                    { "id": "lost", "shortDescription": { "text": "A power cut can lose what the program acknowledged" } },
                    { "id": "superfluous-sync", "shortDescription": { "text": "Without this sync no state that a power cut can leave is worse" } },
                ],
            } },
            "invocations": [{
                "executionSuccessful": true,
                "toolExecutionNotifications": warnings.chain(blind).collect::<Vec<_>>(),
            }],
            "results": results,
        }],
    })
}

/// A place in the source, or the function or address instead, with what happened there.
fn location(place: &Place, text: &str) -> Value {
    match place.line {
        Some(line) => json!({
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&place.file) },
                "region": { "startLine": line.max(1) },
            },
            "message": { "text": text },
        }),
        None => json!({
            "logicalLocations": [{ "name": place.file, "kind": "function" }],
            "message": { "text": text },
        }),
    }
}

/// Puts the places of these effects into a result: the first one is its location.
fn locate<'a>(result: &mut Value, blamed: impl Iterator<Item = &'a EffectReport>) {
    let mut all = blamed.filter_map(|e| e.location.as_ref().map(|p| location(p, &e.text)));
    if let Some(first) = all.next() {
        result["locations"] = json!([first]);
        let rest: Vec<Value> = all.collect();
        if !rest.is_empty() {
            result["relatedLocations"] = json!(rest);
        }
    }
}

fn rule(kind: &str) -> &'static str {
    match kind {
        "broken" => "broken",
        _ => "lost",
    }
}

fn result(f: &FindingReport) -> Value {
    let mut result = json!({
        "ruleId": rule(&f.kind),
        "level": "error",
        "message": { "text": text::explain(f) },
        "partialFingerprints": { "steadfast/v1": f.key },
    });
    let real = f.under.iter().filter_map(|u| u.confirmation.as_ref());
    let real: Vec<Value> = real
        .map(|c| json!({ "cuts": c.cuts, "shown": c.shown, "line": c.line }))
        .collect();
    if !real.is_empty() {
        result["properties"] = json!({ "confirmations": real });
    }
    let first = f.under.first().into_iter();
    let blamed = first.flat_map(|u| u.lost.iter().chain(&u.torn).chain(&u.durable));
    locate(&mut result, blamed);
    result
}

/// A finding inside a recovery, at the call of the recovery that is lost.
fn inside_result(f: &InsideReport) -> Value {
    let mut result = json!({
        "ruleId": rule(&f.kind),
        "level": "error",
        "message": { "text": text::explain_inside(f) },
        "partialFingerprints": { "steadfast/v1": f.key() },
        "properties": { "insideRecovery": true, "model": f.model },
    });
    let inside = f.lost.iter().chain(&f.torn).chain(&f.durable);
    locate(&mut result, inside.chain(&f.after));
    result
}

/// A superfluous sync under a model.
fn superfluous(model: &str, step: &StepReport) -> Value {
    let mut result = json!({
        "ruleId": "superfluous-sync",
        "level": "note",
        "message": { "text": format!("superfluous on {model}: {}", step.told()) },
        "properties": { "model": model },
    });
    if let Some(place) = &step.location {
        result["locations"] = json!([location(place, &step.text)]);
    }
    result
}
