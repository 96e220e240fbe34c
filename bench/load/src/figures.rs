//! Figures: the papers' tables and figures as bars, the paper's values beside ours.
//!
//! A description (`bench/figures.toml`) names the rows of each figure and their measurement, and the paper's value of
//! each, where its text gives a number. The results are those that `bench/run` keeps: one file for each measurement.

use crate::report::{self, Row};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Width of a figure, and of the labels at its left, in pixels.
const WIDTH: u32 = 900;
const LABELS: u32 = 230;
/// Height of a bar, and of the space between groups of bars.
const BAR: u32 = 15;
const GAP: u32 = 9;
/// Height of the title and the legend, and of those with the axis.
const HEAD: u32 = 58;
const FRAME: u32 = HEAD + 52;
/// A bar of ratios shorter than this factor is drawn as long as it, so that 1.0 is seen.
const FACTOR_MIN: f64 = 1.004;

/// The paper's bars are gray; ours have colours that differ in brightness, too.
const PAPER: RGBColor = RGBColor(150, 150, 150);
const OURS: [RGBColor; 3] = [
    RGBColor(31, 94, 160),
    RGBColor(226, 126, 36),
    RGBColor(84, 160, 92),
];

/// Name of the paper's series.
const THE_PAPER: &str = "paper";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    figure: Vec<Figure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    /// Name of the file, without its ending.
    id: String,
    title: String,
    /// Quantity of a bar, with the unit.
    axis: String,
    /// The measurement, as `bench/run` calls it.
    bench: String,
    /// Systems that Steadfast is compared with, each with a series of its own: bars are ratios. Without one, bars are
    /// values.
    #[serde(default)]
    peers: Vec<String>,
    /// Scale of a value when it is drawn (values only).
    #[serde(default = "one")]
    scale: f64,
    bar: Vec<Bar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bar {
    label: String,
    /// The paper's value.
    paper: Option<f64>,
    /// The row of the measurement.
    row: Option<String>,
    /// The system whose value is drawn.
    #[serde(default = "steadfast")]
    system: String,
}

fn one() -> f64 {
    1.0
}

fn steadfast() -> String {
    "steadfast".to_owned()
}

/// One series of bars: a value or none for each label.
struct Series {
    name: String,
    color: RGBColor,
    values: Vec<Option<f64>>,
}

/// Draws every figure whose results are there: `--describe FILE --out DIR RESULTS…`; names those that were drawn, with
/// their sources, and those that were not. A later directory of results supplies results that the ones before lack.
pub(crate) fn run(words: &[&str]) -> Result<String, String> {
    let (mut describe, mut out, mut results) = (None, None, Vec::new());
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--describe" => describe = words.next(),
            "--out" => out = words.next(),
            dir => results.push(PathBuf::from(dir)),
        }
    }
    let describe = describe.ok_or("figures needs --describe FILE")?;
    let out = Path::new(out.ok_or("figures needs --out DIR")?);
    let text = read(Path::new(describe))?;
    let described: Described = toml::from_str(&text).map_err(|e| format!("{describe}: {e}"))?;
    fs::create_dir_all(out).map_err(|e| format!("{}: {e}", out.display()))?;
    let mut said = String::new();
    let mut known = HashMap::new();
    let mut drawn = 0;
    for figure in &described.figure {
        if !known.contains_key(&figure.bench) {
            known.insert(figure.bench.clone(), results_of(&results, &figure.bench)?);
        }
        let Some((from, rows)) = &known[&figure.bench] else {
            let (id, bench) = (&figure.id, &figure.bench);
            let _ = writeln!(said, "{id}: no results; 'bench/run {bench}' makes them");
            continue;
        };
        let series = figure.series(rows);
        let ours = series.iter().filter(|one| one.name != THE_PAPER);
        if ours.flat_map(|one| &one.values).all(Option::is_none) {
            let _ = writeln!(
                said,
                "{}: none of its rows is in {}",
                figure.id,
                from.display()
            );
            continue;
        }
        let svg = draw(figure, &series).map_err(|e| format!("figure {}: {e}", figure.id))?;
        let path = out.join(format!("{}.svg", figure.id));
        fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        let _ = writeln!(said, "{}: from {}", path.display(), from.display());
        drawn += 1;
    }
    match drawn {
        0 => Err(format!("no figure could be drawn:\n{said}")),
        _ => Ok(said),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The results of a measurement, from the first directory that has some.
fn results_of(dirs: &[PathBuf], bench: &str) -> Result<Option<(PathBuf, Vec<Row>)>, String> {
    let files = dirs.iter().map(|dir| dir.join(format!("{bench}.tsv")));
    let Some(file) = files.into_iter().find(|file| file.exists()) else {
        return Ok(None);
    };
    let rows = report::parse_rows(read(&file)?.as_bytes());
    rows.map(|rows| Some((file.clone(), rows)))
        .map_err(|e| format!("{}: {e}", file.display()))
}

impl Figure {
    fn is_ratio(&self) -> bool {
        !self.peers.is_empty()
    }

    fn series(&self, rows: &[Row]) -> Vec<Series> {
        let find = |bar: &Bar| rows.iter().find(|row| Some(&row.name) == bar.row.as_ref());
        let ours = |name: String, color, value: &dyn Fn(&Row, &Bar) -> Option<f64>| Series {
            name,
            color,
            values: (self.bar.iter())
                .map(|bar| find(bar).and_then(|row| value(row, bar)))
                .collect(),
        };
        let mut all = Vec::new();
        if self.bar.iter().any(|bar| bar.paper.is_some()) {
            let values = self.bar.iter().map(|bar| bar.paper).collect();
            all.push(Series {
                name: THE_PAPER.to_owned(),
                color: PAPER,
                values,
            });
        }
        for (peer, color) in self.peers.iter().zip(OURS) {
            all.push(ours(
                format!("Steadfast to {peer}"),
                color,
                &|row: &Row, bar: &Bar| row.ratio_of_medians(&bar.system, peer),
            ));
        }
        if !self.is_ratio() {
            all.push(ours(
                "measured here".to_owned(),
                OURS[0],
                &|row: &Row, bar: &Bar| Some(row.median(&bar.system)? * self.scale),
            ));
        }
        all
    }
}

/// The ends of the axis: room for the values beside the bars, and 1 inside it for ratios.
fn range(figure: &Figure, series: &[Series]) -> (f64, f64) {
    let values = series.iter().flat_map(|s| s.values.iter().flatten());
    let (mut low, mut high) = values.fold((f64::INFINITY, 0.0), |(low, high), &v| {
        (f64::min(low, v), f64::max(high, v))
    });
    if figure.is_ratio() {
        (low, high) = (low.min(0.8), high.max(1.25));
    }
    let room = (high / low).powf(0.12).max(1.15);
    (low / room, high * room)
}

fn draw(figure: &Figure, series: &[Series]) -> Result<String, String> {
    let group = series.len() as u32 * BAR + GAP;
    let height = FRAME + figure.bar.len() as u32 * group;
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    paint(figure, series, &root).map_err(|e| e.to_string())?;
    root.present().map_err(|e| e.to_string())?;
    drop(root);
    Ok(svg)
}

fn paint(
    figure: &Figure,
    series: &[Series],
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    let title = ("sans-serif", 20).into_text_style(&head);
    head.draw(&Text::new(figure.title.as_str(), (12, 8), title))?;
    legend(series, &head)?;
    let (low, high) = range(figure, series);
    let group = f64::from(series.len() as u32 * BAR + GAP);
    let groups = figure.bar.len() as f64;
    // From the top down, in pixels.
    let rows: std::ops::Range<f64> = groups * group..0.0;
    let mut chart = ChartBuilder::on(&body)
        .margin_right(16)
        .x_label_area_size(48)
        .y_label_area_size(LABELS)
        .build_cartesian_2d((low..high).log_scale(), rows)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_desc(&figure.axis)
        .label_style(("sans-serif", 15))
        .x_label_formatter(&|value| label(*value))
        .draw()?;
    let base = if figure.is_ratio() { 1.0 } else { low };
    for (number, one) in series.iter().enumerate() {
        let bars = one.values.iter().enumerate();
        let bars = bars.filter_map(|(at, value)| Some((at, (*value)?)));
        let top = move |at: usize| at as f64 * group + f64::from(GAP / 2 + number as u32 * BAR);
        let (color, bar) = (one.color, f64::from(BAR - 2));
        let shapes = bars.clone().map(|(at, value)| {
            let short = (value / base).max(base / value) < FACTOR_MIN;
            let end = if short { base * FACTOR_MIN } else { value };
            Rectangle::new([(base, top(at)), (end, top(at) + bar)], color.filled())
        });
        chart.draw_series(shapes)?;
        for (at, value) in bars {
            let left = value < base;
            let style = ("sans-serif", 14).into_text_style(root);
            let side = if left { HPos::Right } else { HPos::Left };
            let style = style.pos(Pos::new(side, VPos::Center));
            let (x, y) = chart.backend_coord(&(value, top(at) + bar / 2.0));
            let x = if left { x - 4 } else { x + 4 };
            root.draw(&Text::new(label(value), (x, y), style))?;
        }
    }
    names(figure, root, &chart, low, group)?;
    if figure.is_ratio() {
        let line = [(1.0, 0.0), (1.0, groups * group)];
        chart.draw_series(LineSeries::new(line, BLACK))?;
    }
    Ok(())
}

/// Meaning of each colour, in one row under the title.
fn legend(
    series: &[Series],
    head: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut x = 12;
    let style = ("sans-serif", 15).into_text_style(head);
    for one in series {
        let square = [(x, 36), (x + 12, 48)];
        head.draw(&Rectangle::new(square, one.color.filled()))?;
        head.draw(&Text::new(one.name.as_str(), (x + 18, 36), style.clone()))?;
        x += 44 + 7 * one.name.len() as i32;
    }
    Ok(())
}

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, RangedCoordf64>>;

/// The label of each group, at its left.
fn names(
    figure: &Figure,
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    chart: &Plot<'_, '_>,
    low: f64,
    group: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = ("sans-serif", 15).into_text_style(root);
    let style = style.pos(Pos::new(HPos::Right, VPos::Center));
    for (at, bar) in figure.bar.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(low, (at as f64 + 0.5) * group));
        root.draw(&Text::new(bar.label.clone(), (x - 8, y), style.clone()))?;
    }
    Ok(())
}

/// A number as it stands beside a bar: three digits.
fn label(value: f64) -> String {
    let digits = match value {
        v if v >= 99.5 => 0,
        v if v >= 9.95 => 1,
        v if v >= 0.095 => 2,
        v if v >= 0.0095 => 3,
        v if v >= 0.00095 => 4,
        _ => 5,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure ends the test")]
mod tests {
    use super::*;

    const ABOUT: &str = r#"
        [[figure]]
        id = "one"
        title = "A title"
        axis = "ratio"
        bench = "ftl"
        peers = ["async", "sync"]
        [[figure.bar]]
        label = "first"
        paper = 0.5
        row = "random-1"
        [[figure.bar]]
        label = "not measured"
        row = "absent"
        [[figure]]
        id = "two"
        title = "Another"
        axis = "s"
        bench = "absent"
        [[figure.bar]]
        label = "x"
        row = "x"
    "#;
    const RESULTS: &str = "# a comment\n\
        random-1\tMB/s\thigher\tsteadfast\t2\n\
        random-1\tMB/s\thigher\tsteadfast\t4\n\
        random-1\tMB/s\thigher\tasync\t1\n";

    #[test]
    fn a_figure_has_the_papers_value_ours_and_the_label() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("about.toml"), ABOUT).unwrap();
        fs::write(at("ftl.tsv"), RESULTS).unwrap();
        let words = ["--describe", "D", "--out", "O", "absent directory", "R"];
        let (about, out) = (at("about.toml"), at("out"));
        let words = words.map(|word| match word {
            "D" => about.to_str().unwrap(),
            "O" => out.to_str().unwrap(),
            "R" => dir.path().to_str().unwrap(),
            other => other,
        });
        let said = run(&words).unwrap();
        assert!(
            said.contains("two: no results; 'bench/run absent'"),
            "{said}"
        );
        let svg = read(&at("out/one.svg")).unwrap();
        for word in [
            "A title",
            "first",
            "not measured",
            "paper",
            "Steadfast to async",
        ] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        // The paper's 0.5, and the median 3 of Steadfast to the 1 of async; to sync there is none.
        let numbers = |text: &str| svg.lines().filter(|line| line.trim() == text).count();
        assert!(numbers("0.5") >= 1 && numbers("3") >= 1, "{svg}");
        assert!(!at("out/two.svg").exists());
    }

    #[test]
    fn a_figure_that_cannot_be_drawn_is_an_error_that_names_the_missing_part() {
        let dir = tempfile::tempdir().unwrap();
        let about = dir.path().join("about.toml");
        fs::write(&about, ABOUT).unwrap();
        let (about, dir) = (about.to_str().unwrap(), dir.path().to_str().unwrap());
        let said = run(&["--describe", about, "--out", dir, dir]).unwrap_err();
        assert!(said.contains("one: no results; 'bench/run ftl'"), "{said}");
        fs::write(about, "figure = 3").unwrap();
        assert!(run(&["--describe", about, "--out", dir]).is_err());
        assert!(run(&["--out", dir]).is_err());
    }

    #[test]
    fn numbers_have_three_digits() {
        let all = [0.0123, 0.5, 1.0, 2.25, 12.34, 685.0].map(label);
        assert_eq!(all, ["0.012", "0.5", "1", "2.25", "12.3", "685"]);
    }
}
