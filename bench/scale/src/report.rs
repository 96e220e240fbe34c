//! Figures as a table, and as one JSON object.

use std::fmt::Write as _;
use std::io::BufRead;

struct Curve {
    name: String,
    unit: String,
    /// Share of the load that is done in per cent, time and processor time per operation, resident memory.
    points: Vec<[f64; 4]>,
}

#[derive(Default)]
struct Taken {
    curves: Vec<Curve>,
    values: Vec<(String, String, f64)>,
}

/// Reads figures from `input`; returns the table and the object, or, with `--json`, the object alone.
pub(crate) fn run(words: &[&str], input: impl BufRead) -> Result<String, String> {
    let mut json_only = false;
    let mut about = Vec::new();
    for word in words {
        match (*word, word.split_once('=')) {
            ("--json", _) => json_only = true,
            (_, Some(pair)) => about.push(pair),
            _ => return Err(format!("unknown option '{word}'")),
        }
    }
    let taken = parse(input)?;
    let mut out = String::new();
    if !json_only {
        table(&taken, &mut out);
    }
    json(&about, &taken, &mut out);
    Ok(out)
}

fn parse(input: impl BufRead) -> Result<Taken, String> {
    let mut taken = Taken::default();
    for line in input.lines() {
        let line = line.map_err(|e| format!("figures: {e}"))?;
        let number = |text: &str| -> Result<f64, String> {
            let parsed = text.parse::<f64>().ok().filter(|value| value.is_finite());
            parsed.ok_or_else(|| format!("'{text}' is not a number: {line}"))
        };
        match line.split('\t').collect::<Vec<_>>().as_slice() {
            ["value", name, unit, value] => {
                let value = number(value)?;
                taken
                    .values
                    .push(((*name).to_owned(), (*unit).to_owned(), value));
            }
            ["curve", name, unit, share, wall, cpu, memory] => {
                let point = [number(share)?, number(wall)?, number(cpu)?, number(memory)?];
                match taken.curves.iter_mut().find(|curve| curve.name == *name) {
                    Some(curve) => curve.points.push(point),
                    None => taken.curves.push(Curve {
                        name: (*name).to_owned(),
                        unit: (*unit).to_owned(),
                        points: vec![point],
                    }),
                }
            }
            _ => return Err(format!("no figure: {line}")),
        }
    }
    if taken.curves.is_empty() && taken.values.is_empty() {
        return Err("no figures".to_owned());
    }
    Ok(taken)
}

/// The last tenth over the first, in one of the columns.
fn growth(curve: &Curve, column: usize) -> f64 {
    match (curve.points.first(), curve.points.last()) {
        (Some(first), Some(last)) if first[column] > 0.0 => last[column] / first[column],
        _ => f64::NAN,
    }
}

fn table(taken: &Taken, out: &mut String) {
    for curve in &taken.curves {
        let _ = writeln!(
            out,
            "{}, {} per operation; last tenth / first: {:.2}, of CPU {:.2}",
            curve.name,
            curve.unit,
            growth(curve, 1),
            growth(curve, 2)
        );
        let rows = [("done %", 0), (&curve.unit, 2), ("of CPU", 2), ("MiB", 0)];
        for (column, (row, digits)) in rows.into_iter().enumerate() {
            let _ = write!(out, "  {row:<7}");
            for point in &curve.points {
                let _ = write!(out, " {:>8.digits$}", point[column]);
            }
            out.push('\n');
        }
    }
    let width = taken.values.iter().map(|(name, ..)| name.len()).max();
    let width = width.unwrap_or(0);
    for (name, unit, value) in &taken.values {
        let digits = if *value < 10.0 { 3 } else { 0 };
        let _ = writeln!(out, "{name:<width$} {value:>12.digits$} {unit}");
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn json(about: &[(&str, &str)], taken: &Taken, out: &mut String) {
    out.push('{');
    for (key, value) in about {
        let plain = value.parse::<f64>().is_ok_and(f64::is_finite) && !value.starts_with('+');
        let value = if plain {
            (*value).to_owned()
        } else {
            quoted(value)
        };
        let _ = write!(out, "{}: {value}, ", quoted(key));
    }
    out.push_str("\"curves\": {");
    for (index, curve) in taken.curves.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(
            out,
            "{comma}{}: {{\"unit\": {}, \"points\": [",
            quoted(&curve.name),
            quoted(&curve.unit)
        );
        for (index, [share, wall, cpu, memory]) in curve.points.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            let _ = write!(
                out,
                "{comma}{{\"done_percent\": {share}, \"wall\": {wall}, \"cpu\": {cpu}, \"memory_mib\": {memory}}}"
            );
        }
        out.push_str("]}");
    }
    out.push_str("}, \"values\": {");
    for (index, (name, unit, value)) in taken.values.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(
            out,
            "{comma}{}: {{\"unit\": {}, \"value\": {value}}}",
            quoted(name),
            quoted(unit)
        );
    }
    out.push_str("}}\n");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FIGURES: &str = "value\tmkfs\ts\t0.5\ncurve\tcreate\tus\t10\t2.0\t1.5\t30.5\ncurve\tcreate\tus\t20\t3.0\t1.5\t31\n";

    #[test]
    fn the_object_has_every_figure() {
        let text = run(&["--json", "bench=scale", "cpus=2"], FIGURES.as_bytes()).unwrap();
        assert_eq!(
            text,
            "{\"bench\": \"scale\", \"cpus\": 2, \"curves\": {\"create\": {\"unit\": \"us\", \"points\": \
             [{\"done_percent\": 10, \"wall\": 2, \"cpu\": 1.5, \"memory_mib\": 30.5}, \
             {\"done_percent\": 20, \"wall\": 3, \"cpu\": 1.5, \"memory_mib\": 31}]}}, \
             \"values\": {\"mkfs\": {\"unit\": \"s\", \"value\": 0.5}}}\n"
        );
    }

    #[test]
    fn the_table_says_how_much_a_curve_grew() {
        let text = run(&[], FIGURES.as_bytes()).unwrap();
        assert!(
            text.starts_with("create, us per operation; last tenth / first: 1.50, of CPU 1.00\n")
        );
    }

    #[test]
    fn a_line_that_is_no_figure_is_refused() {
        for bad in ["", "nonsense\n", "value\tmkfs\ts\tinf\n"] {
            assert!(run(&[], bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
