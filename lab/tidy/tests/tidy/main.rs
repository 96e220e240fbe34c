//! Each test reads the files of the repository and names file and line of each finding.

#![allow(clippy::unwrap_used, clippy::panic)]

mod dependencies;
mod documents;
mod modules;
mod publish;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Longer files are split.
const LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Files of the repository below `from` with one of these endings, builds left out.
fn files(from: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![from.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" && name != "out" {
                    left.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{} has no such files", from.display());
    found
}

fn named(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn report(findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{} findings:\n{}",
        findings.len(),
        findings.join("\n")
    );
}

/// The lines of a text, with their numbers from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// First cells of the rows of a document's tables.
fn first_cells(document: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    cells.map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn no_file_is_longer_than_a_reader_bears() {
    let mut findings = Vec::new();
    for path in files(&root(), &[".rs", ".sh", ".py", ".go"]) {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        if lines > LINES_MAX {
            findings.push(format!(
                "{}: {lines} lines, at most {LINES_MAX}",
                named(&path)
            ));
        }
    }
    report(&findings);
}

/// "SCFTL §7.2" needs SCFTL in docs/references.md; ARCHITECTURE.md's own sections are cited as such.
#[test]
fn cited_papers_are_in_the_list_of_references() {
    let known = first_cells("docs/references.md");
    assert!(known.contains("SCFTL"));
    let mut findings = Vec::new();
    for path in files(&root(), &[".rs", ".md", ".sh", ".v", ".als"]) {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in numbered(&text) {
            for (at, _) in line.match_indices(" §") {
                let before = line[..at].trim_end_matches([',', ')']);
                let word = before
                    .rsplit([' ', '(', '"', '`', '[', ','])
                    .next()
                    .unwrap_or_default();
                // "§5.3 to §5.5", "§5.4, §6" and "(§4)" go on with the paper that was named before.
                let goes_on = word.is_empty()
                    || word.contains('§')
                    || ["to", "and"].contains(&word)
                    || word == "|";
                let is_year = word
                    .chars()
                    .all(|c| c.is_ascii_digit() || c == '\'' || c.is_ascii_uppercase());
                if !goes_on
                    && !known.contains(word)
                    && !is_year
                    && word.chars().next().is_some_and(char::is_alphabetic)
                    && !line[..at].ends_with(')')
                {
                    findings.push(format!(
                        "{}:{number}: '{word} §' is not in docs/references.md",
                        named(&path)
                    ));
                }
            }
            if line.to_lowercase().contains(concat!("paper", " 00")) {
                findings.push(format!(
                    "{}:{number}: a paper cited by a number",
                    named(&path)
                ));
            }
        }
    }
    report(&findings);
}

#[test]
fn cited_corners_are_in_the_list_of_hard_cases() {
    let known = first_cells("docs/corners.md");
    assert!(known.contains("1") && known.contains("72"));
    let mut findings = Vec::new();
    for path in files(&root(), &[".rs", ".md", ".sh"]) {
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        for (number, line) in numbered(&text) {
            for key in ["corner ", "corner_", "corners ", "corners_"] {
                for (at, _) in line.match_indices(key) {
                    let digits: String = line[at + key.len()..]
                        .chars()
                        .take_while(char::is_ascii_digit)
                        .collect();
                    let cited = digits.trim_start_matches('0');
                    if !digits.is_empty() && !known.contains(cited) {
                        findings.push(format!(
                            "{}:{number}: corner {digits} is not in docs/corners.md",
                            named(&path)
                        ));
                    }
                }
            }
        }
    }
    report(&findings);
}

#[test]
fn published_crates_have_the_metadata_that_a_registry_shows() {
    let mut findings = Vec::new();
    let mut names = BTreeMap::new();
    for path in files(&root().join("crates"), &["Cargo.toml"]) {
        let manifest: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
        let package = manifest["package"].as_table().unwrap();
        let name = package["name"].as_str().unwrap().to_owned();
        if let Some(other) = names.insert(name.clone(), named(&path)) {
            findings.push(format!(
                "{name} is the name of {other} and {}",
                named(&path)
            ));
        }
        if package.get("publish").and_then(toml::Value::as_bool) == Some(false) {
            continue;
        }
        for key in ["description", "keywords", "categories", "readme"] {
            if !package.contains_key(key) {
                findings.push(format!("{}: no {key}", named(&path)));
            }
        }
        if let Some(readme) = package.get("readme").and_then(toml::Value::as_str)
            && !path.parent().unwrap().join(readme).exists()
        {
            findings.push(format!("{}: {readme} is not there", named(&path)));
        }
        for (key, most) in [("keywords", 5), ("categories", 5)] {
            let count = package
                .get(key)
                .and_then(toml::Value::as_array)
                .map_or(0, Vec::len);
            if count > most {
                findings.push(format!("{}: {count} {key}, at most {most}", named(&path)));
            }
        }
    }
    report(&findings);
}
