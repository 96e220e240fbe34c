//! The parts of the page that show content: differing files side by side, and source lines. The script of the page
//! builds the same.

use super::html::esc;
use super::{EffectReport, FileReport, Place, SourceReport};
use std::fmt::Write;

/// Number or offset of a row.
fn at(file: &FileReport, at: u64) -> String {
    match file.bytes {
        true => format!("{at:06x}"),
        false => at.to_string(),
    }
}

fn cell(
    out: &mut String,
    file: &FileReport,
    side: Option<&(u64, String)>,
    class: &str,
    sign: &str,
) {
    let Some((number, text)) = side else {
        out.push_str("<td class=\"void\"></td>");
        return;
    };
    let _ = write!(
        out,
        "<td class=\"{class}\"><span class=\"at\">{} {sign}</span> {}</td>",
        at(file, *number),
        esc(text)
    );
}

fn file(out: &mut String, file: &FileReport) {
    let word = |side: &Option<String>, none: &str| esc(side.as_deref().unwrap_or(none));
    let _ = write!(
        out,
        "<table class=\"sides\"><caption>{}</caption><thead><tr><th scope=\"col\">written: {}</th><th scope=\"col\">after the cut: {}</th></tr></thead><tbody>",
        esc(&file.path),
        word(&file.written, "no such file"),
        word(&file.found, "missing")
    );
    for row in &file.rows {
        out.push_str("<tr>");
        let (gone, new) = match row.same {
            true => (("", " "), ("", " ")),
            false => (("lost", "−"), ("found", "+")),
        };
        cell(out, file, row.written.as_ref(), gone.0, gone.1);
        cell(out, file, row.found.as_ref(), new.0, new.1);
        out.push_str("</tr>");
    }
    if file.cut {
        out.push_str("<tr><td>…</td><td>…</td></tr>");
    }
    out.push_str("</tbody></table>");
}

/// The files of a state that differ from what the calls had made.
pub(super) fn files(out: &mut String, files: &[FileReport], more: usize) {
    if files.is_empty() {
        return;
    }
    out.push_str("<details open><summary>Files that differ, as they were written and after the cut</summary>");
    files.iter().for_each(|f| file(out, f));
    if more > 0 {
        let _ = write!(out, "<p>And {more} more.</p>");
    }
    out.push_str("</details>");
}

fn source(out: &mut String, source: &SourceReport) {
    let _ = write!(
        out,
        "<figure class=\"source\"><figcaption>{}</figcaption><pre>",
        esc(&source.place)
    );
    for (number, line) in (source.first..).zip(&source.lines) {
        let text = format!("{number:>5}  {line}");
        match number == source.line {
            true => {
                let _ = writeln!(out, "<strong>{}</strong>", esc(&text));
            }
            false => {
                let _ = writeln!(out, "{}", esc(&text));
            }
        }
    }
    out.push_str("</pre></figure>");
}

/// The source lines of effects, each once, where they are known.
pub(super) fn sources<'a>(
    out: &mut String,
    known: &[SourceReport],
    effects: impl Iterator<Item = &'a EffectReport>,
) {
    let mut places: Vec<String> = effects
        .filter_map(|e| e.location.as_ref().map(Place::text))
        .collect();
    places.sort();
    places.dedup();
    let shown: Vec<&SourceReport> = places
        .iter()
        .filter_map(|p| known.iter().find(|s| s.place == *p))
        .collect();
    if shown.is_empty() {
        return;
    }
    out.push_str("<details open><summary>Source of these calls</summary>");
    shown.into_iter().for_each(|s| source(out, s));
    out.push_str("</details>");
}
