//! The run for the script of the page (`page.js`): its calls, the point from which each is durable, and the findings.

use super::{EffectReport, FileReport, Place, PointReport, Report};
use crate::effects::readable;
use serde_json::{Value, json};

/// The part of the page that shows it, hidden without the script.
const SECTION: &str = "<section id=\"timeline\" hidden><h2>Crash point</h2><div class=\"fields\"><label>Model <select id=\"model\"></select></label> <label>Finding <select id=\"show\"></select></label></div><label for=\"point\">The power goes after this many calls</label><input type=\"range\" id=\"point\" min=\"0\" value=\"0\"><canvas id=\"lanes\" role=\"img\" aria-label=\"Calls by thread\"></canvas><p id=\"said\" role=\"status\"></p><p><span class=\"durable\">● durable</span> <span class=\"pending\">◌ may be lost</span> <span class=\"lost\">○ lost in the finding</span> <span class=\"torn\">◐ torn in it</span> <span class=\"after\">· not done yet</span></p><div id=\"calls\" tabindex=\"0\" role=\"group\" aria-label=\"Calls\"></div><div id=\"source\"></div><h3 id=\"taken\"></h3><div id=\"files\"></div></section>";

/// A file that differs: path, both sides in words, whether its rows are bytes, whether there are more; a row: both
/// sides, or the one that is the same on both.
fn file(f: &FileReport) -> Value {
    let rows = f.rows.iter();
    let rows = rows.map(|r| match r.same {
        true => json!([r.written]),
        false => json!([r.written, r.found]),
    });
    let rows: Vec<Value> = rows.collect();
    json!([f.path, f.written, f.found, f.bytes, f.cut, rows])
}

fn files(all: &[FileReport]) -> Vec<Value> {
    all.iter().map(file).collect()
}

fn point(p: &PointReport) -> Value {
    json!([p.after, files(&p.files), p.more])
}

fn data(report: &Report) -> Value {
    let calls = report.steps.iter().map(|s| {
        let place = s.location.as_ref().map(Place::text);
        json!([s.number, readable(s.text.as_bytes()), s.thread, place])
    });
    let models = report.models.iter();
    let models = models.map(|m| {
        let points: Vec<Value> = m.points.iter().map(point).collect();
        json!({ "name": m.name, "durable": m.durable, "points": points })
    });
    let sources = report.sources.iter();
    let sources = sources.map(|s| json!([s.place, s.line, s.first, s.lines]));
    let numbers = |effects: &mut dyn Iterator<Item = &EffectReport>| -> Vec<u64> {
        effects.map(|e| e.call).collect()
    };
    let shows = report.findings.iter().flat_map(|f| {
        f.under.iter().map(move |u| {
            json!({
                "id": f.id,
                "model": u.model,
                "at": u.state.moments.1,
                "durable": numbers(&mut u.durable.iter()),
                "lost": numbers(&mut u.lost.iter()),
                "torn": numbers(&mut u.torn.iter()),
                "files": files(&u.files),
                "more": u.more_files,
            })
        })
    });
    json!({
        "calls": calls.collect::<Vec<_>>(),
        "models": models.collect::<Vec<_>>(),
        "shows": shows.collect::<Vec<_>>(),
        "sources": sources.collect::<Vec<_>>(),
    })
}

/// The section and its data. No text of the run can end the element: `<` is written in another way.
pub(super) fn write(out: &mut String, report: &Report) {
    out.push_str(SECTION);
    out.push_str("<script type=\"application/json\" id=\"run\">");
    out.push_str(&data(report).to_string().replace('<', "\\u003c"));
    out.push_str("</script>");
}
