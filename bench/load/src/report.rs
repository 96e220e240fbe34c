//! Statistics over interleaved runs: medians, spreads, and the ratio of the subject to each of its peers; as a table
//! and as JSON. A row may have any number of peers, or none.
//!
//! A ratio is above 1 where the subject is better, whichever way the row counts. It is the ratio of the medians; its
//! spread is that of the pairs of runs that followed each other.

use std::fmt::Write as _;
use std::io::BufRead;

struct Options<'a> {
    json: bool,
    subject: &'a str,
    about: Vec<(&'a str, &'a str)>,
}

pub(crate) struct Row {
    pub(crate) name: String,
    unit: String,
    higher_is_better: bool,
    /// Systems in the order of their first result, each with its values in the order of the runs.
    systems: Vec<(String, Vec<f64>)>,
}

struct Ratio {
    of_medians: f64,
    min: f64,
    max: f64,
}

impl Row {
    fn values(&self, system: &str) -> &[f64] {
        self.systems
            .iter()
            .find(|(name, _)| name == system)
            .map_or(&[], |(_, values)| values)
    }

    /// The median of a system's values.
    pub(crate) fn median(&self, system: &str) -> Option<f64> {
        median(self.values(system))
    }

    /// Ratio of the subject to a peer: above 1, the subject is better.
    pub(crate) fn ratio_of_medians(&self, subject: &str, peer: &str) -> Option<f64> {
        self.ratio(subject, peer).map(|ratio| ratio.of_medians)
    }

    /// The subject against one of its peers.
    fn ratio(&self, subject: &str, peer: &str) -> Option<Ratio> {
        if subject == peer {
            return None;
        }
        let better = |s: f64, p: f64| if self.higher_is_better { s / p } else { p / s };
        let (subject, peer) = (self.values(subject), self.values(peer));
        let pairs = subject.iter().zip(peer).map(|(&s, &p)| better(s, p));
        let (min, max) = pairs.fold((f64::INFINITY, 0.0), |(min, max), r| {
            (f64::min(min, r), f64::max(max, r))
        });
        Some(Ratio {
            of_medians: better(median(subject)?, median(peer)?),
            min,
            max,
        })
    }
}

/// Reads results from `input`; returns the table, or, with `--json`, the object alone.
pub(crate) fn run(options: &[&str], input: impl BufRead) -> Result<String, String> {
    let options = parse_options(options)?;
    let rows = parse_rows(input)?;
    Ok(if options.json {
        json(&options, &rows)
    } else {
        table(&options, &rows)
    })
}

fn parse_options<'a>(words: &[&'a str]) -> Result<Options<'a>, String> {
    let mut options = Options {
        json: false,
        subject: "",
        about: Vec::new(),
    };
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "--json" => options.json = true,
            "--subject" => options.subject = words.next().ok_or("--subject needs a name")?,
            _ => options.about.push(
                word.split_once('=')
                    .ok_or_else(|| format!("unknown option '{word}'"))?,
            ),
        }
    }
    if options.subject.is_empty() {
        return Err("report needs --subject".to_owned());
    }
    Ok(options)
}

/// Reads results. A line that begins with `#` says something about them.
pub(crate) fn parse_rows(input: impl BufRead) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let number = index + 1;
        let line = line.map_err(|e| format!("results, line {number}: {e}"))?;
        if line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, unit, better, system, value] = fields.as_slice() else {
            return Err(format!(
                "results, line {number}: {} fields instead of 5",
                fields.len()
            ));
        };
        let higher_is_better = match *better {
            "higher" => true,
            "lower" => false,
            other => {
                return Err(format!(
                    "results, line {number}: '{other}' is neither 'higher' nor 'lower'"
                ));
            }
        };
        let value = match value.parse::<f64>() {
            Ok(value) if value.is_finite() && value > 0.0 => value,
            _ => {
                return Err(format!(
                    "results, line {number}: '{value}' is not a number above zero"
                ));
            }
        };
        let at = rows
            .iter()
            .position(|row| row.name == *name)
            .unwrap_or_else(|| {
                rows.push(Row {
                    name: (*name).to_owned(),
                    unit: (*unit).to_owned(),
                    higher_is_better,
                    systems: Vec::new(),
                });
                rows.len() - 1
            });
        let row = &mut rows[at];
        match row.systems.iter_mut().find(|(name, _)| name == system) {
            Some((_, values)) => values.push(value),
            None => row.systems.push(((*system).to_owned(), vec![value])),
        }
    }
    if rows.is_empty() {
        Err("no results".to_owned())
    } else {
        Ok(rows)
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

fn min_max(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(min, max), &v| {
        (f64::min(min, v), f64::max(max, v))
    })
}

/// Three significant digits, or all digits before the point.
fn short(value: f64) -> String {
    let digits = match value {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// Three digits after the point, or more where they would say nothing.
fn exact(value: f64) -> String {
    let digits = if value < 1.0 { 6 } else { 3 };
    format!("{value:.digits$}")
}

fn table(options: &Options<'_>, rows: &[Row]) -> String {
    let mut out = String::new();
    let about: Vec<String> = options
        .about
        .iter()
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    let _ = writeln!(out, "{}", about.join(", "));
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let units = rows
        .iter()
        .map(|row| row.unit.len())
        .max()
        .unwrap_or(0)
        .max(4);
    let _ = writeln!(
        out,
        "{:<width$} {:<units$} {:<10} {:>9} {:>21}  ratio of {}",
        "row", "unit", "system", "median", "min .. max", options.subject
    );
    for row in rows {
        for (system, values) in &row.systems {
            let (min, max) = min_max(values);
            let ratio = row
                .ratio(options.subject, system)
                .map_or_else(String::new, |r| {
                    format!("{:.2} ({:.2} .. {:.2})", r.of_medians, r.min, r.max)
                });
            let line = format!(
                "{:<width$} {:<units$} {:<10} {:>9} {:>21}  {}",
                row.name,
                row.unit,
                system,
                median(values).map_or_else(String::new, short),
                format!("{} .. {}", short(min), short(max)),
                ratio,
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    let _ = writeln!(
        out,
        "A ratio above 1 means: {} is better than the system in that line.",
        options.subject
    );
    out
}

fn json(options: &Options<'_>, rows: &[Row]) -> String {
    let about: Vec<String> = options
        .about
        .iter()
        .map(|(key, value)| format!("{}:{}", quoted(key), quoted(value)))
        .collect();
    let mut members = vec![format!("\"about\":{{{}}}", about.join(","))];
    for row in rows {
        let mut fields = vec![
            format!("\"unit\":{}", quoted(&row.unit)),
            format!(
                "\"better\":\"{}\"",
                if row.higher_is_better {
                    "higher"
                } else {
                    "lower"
                }
            ),
        ];
        for (system, values) in &row.systems {
            let (min, max) = min_max(values);
            let runs: Vec<String> = values.iter().map(|v| exact(*v)).collect();
            let ratio = row
                .ratio(options.subject, system)
                .map_or_else(String::new, |r| {
                    format!(
                        ",\"ratio\":{:.3},\"ratio_min\":{:.3},\"ratio_max\":{:.3}",
                        r.of_medians, r.min, r.max
                    )
                });
            fields.push(format!(
                "{}:{{\"median\":{},\"min\":{},\"max\":{},\"runs\":[{}]{ratio}}}",
                quoted(system),
                exact(median(values).unwrap_or(0.0)),
                exact(min),
                exact(max),
                runs.join(","),
            ));
        }
        members.push(format!("{}:{{{}}}", quoted(&row.name), fields.join(",")));
    }
    format!("{{{}}}\n", members.join(","))
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const RESULTS: &str = "clone\tms\tlower\text4\t30\nclone\tms\tlower\tours\t60\n\
                           clone\tms\tlower\text4\t50\nclone\tms\tlower\tours\t50\n\
                           clone\tms\tlower\text4\t40\nclone\tms\tlower\tours\t80\n";
    const NAMES: [&str; 2] = ["--subject", "ours"];

    #[test]
    fn a_slower_subject_has_a_ratio_below_one_if_lower_is_better() {
        let json = run(
            &[&["--json", "kernel=\"x\""], &NAMES[..]].concat(),
            RESULTS.as_bytes(),
        )
        .unwrap();
        assert!(
            json.starts_with("{\"about\":{\"kernel\":\"\\\"x\\\"\"},\"clone\":{\"unit\":\"ms\""),
            "{json}"
        );
        assert!(
            json.contains("\"ext4\":{\"median\":40.000,\"min\":30.000,\"max\":50.000,"),
            "{json}"
        );
        assert!(
            json.contains("\"ratio\":0.667,\"ratio_min\":0.500,\"ratio_max\":1.000"),
            "{json}"
        );
    }

    #[test]
    fn each_peer_has_its_own_ratio_and_a_row_without_peers_has_none() {
        let results = "commit\t1/s\thigher\ta\t10\ncommit\t1/s\thigher\tours\t40\n\
                       commit\t1/s\thigher\tb\t80\nrecover\ts\tlower\tours\t0.0125\n";
        let json = run(&[&["--json"], &NAMES[..]].concat(), results.as_bytes()).unwrap();
        assert!(json.contains("\"runs\":[10.000],\"ratio\":4.000"), "{json}");
        assert!(json.contains("\"runs\":[80.000],\"ratio\":0.500"), "{json}");
        assert!(
            json.ends_with("\"recover\":{\"unit\":\"s\",\"better\":\"lower\",\"ours\":{\"median\":0.012500,\"min\":0.012500,\"max\":0.012500,\"runs\":[0.012500]}}}\n"),
            "{json}"
        );
        let table = run(&NAMES, results.as_bytes()).unwrap();
        assert!(table.contains("4.00 (4.00 .. 4.00)"), "{table}");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_result_that_is_no_number_is_an_error_with_its_line() {
        let error = run(
            &NAMES,
            "a\tms\tlower\text4\t3\na\tms\tlower\text4\tfast\n".as_bytes(),
        )
        .unwrap_err();
        assert!(
            error.contains("line 2") && error.contains("fast"),
            "{error}"
        );
        assert!(run(&NAMES, "".as_bytes()).is_err());
    }
}
