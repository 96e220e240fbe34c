//! JUnit XML and SARIF 2.1.0.

use super::{FindingReport, Report};
use serde_json::{Value, json};
use std::fmt::Write;

/// Text for XML: what XML 1.0 has no place for becomes U+FFFD.
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

/// A test case for each model, which fails for each finding that counts.
#[must_use]
pub fn junit(report: &Report) -> String {
    let failing = |model: &str| -> Vec<&FindingReport> {
        let on = |f: &&FindingReport| !f.known && f.under.iter().any(|u| u.model == model);
        report.findings.iter().filter(on).collect()
    };
    let failures = report
        .models
        .iter()
        .filter(|m| !failing(&m.name).is_empty())
        .count();
    let tests = report.models.len();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<testsuites tests=\"{tests}\" failures=\"{failures}\" errors=\"0\">\n <testsuite name=\"steadfast crash test\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"0\">\n"
    );
    for model in &report.models {
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\">",
            xml(&report.command),
            xml(&model.name)
        );
        let findings = failing(&model.name);
        if let Some(first) = findings.first() {
            let text: Vec<String> = findings.iter().map(|f| super::explain(f)).collect();
            let _ = writeln!(
                out,
                "   <failure message=\"{}\" type=\"{}\">{}</failure>",
                xml(&first.line),
                xml(&first.kind),
                xml(&text.join("\n\n"))
            );
        }
        out.push_str("  </testcase>\n");
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

/// A result for each finding that counts, at the call that is lost.
#[must_use]
pub fn sarif(report: &Report) -> Value {
    let results: Vec<Value> = report
        .findings
        .iter()
        .filter(|f| !f.known)
        .map(result)
        .collect();
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
                ],
            } },
            "results": results,
        }],
    })
}

fn result(f: &FindingReport) -> Value {
    let first = f.under.first();
    let blamed = first
        .into_iter()
        .flat_map(|u| u.lost.iter().chain(&u.torn).chain(&u.durable));
    let locations: Vec<Value> = blamed
        .filter_map(|e| e.location.as_ref().map(|l| (e, l)))
        .map(|(e, l)| match l.line {
            Some(line) => json!({
                "physicalLocation": {
                    "artifactLocation": { "uri": uri(&l.file) },
                    "region": { "startLine": line.max(1) },
                },
                "message": { "text": e.text },
            }),
            None => json!({
                "logicalLocations": [{ "name": l.file, "kind": "function" }],
                "message": { "text": e.text },
            }),
        })
        .collect();
    let mut result = json!({
        "ruleId": if f.kind == "broken" { "broken" } else { "lost" },
        "level": "error",
        "message": { "text": super::explain(f) },
        "partialFingerprints": { "steadfast/v1": f.key },
    });
    if let Some(location) = locations.first() {
        result["locations"] = json!([location]);
        let rest = locations.get(1..).unwrap_or_default();
        if !rest.is_empty() {
            result["relatedLocations"] = json!(rest);
        }
    }
    result
}
