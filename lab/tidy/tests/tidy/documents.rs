//! The documents: their links lead somewhere, and `mdbook` finds each of them.

use super::{files, named, numbered, report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The README's first screens are all that it has.
const README_LINES_MAX: usize = 100;

/// The lines of a text that are not in a block of code.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let lines = numbered(text).filter(|(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect()
}

/// Anchor of a heading: lower case, blanks as hyphens, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    let mut found = BTreeSet::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, line) in prose(&text) {
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let name = anchor(heading);
            let count = counts.entry(name.clone()).or_default();
            found.insert(match *count {
                0 => name.clone(),
                n => format!("{name}-{n}"),
            });
            *count += 1;
        }
    }
    found
}

/// The links of a document: line, file (the document itself if none is named), heading.
fn links(path: &Path) -> Vec<(usize, String, PathBuf, String)> {
    let text = fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    for (number, line) in prose(&text) {
        for (at, _) in line.match_indices("](") {
            let target = line[at + 2..].split(')').next().unwrap_or_default();
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if !target.contains("://") {
                let file = match file {
                    "" => path.to_owned(),
                    file => path.parent().unwrap().join(file),
                };
                found.push((number, target.to_owned(), file, heading.to_owned()));
            }
        }
    }
    found
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    let mut known = BTreeMap::new();
    for path in files(&root(), &[".md"]) {
        for (number, target, file, heading) in links(&path) {
            let place = format!("{}:{number}: {target}", named(&path));
            if !file.exists() {
                findings.push(format!("{place} is not there"));
            } else if !heading.is_empty() && file.extension().is_some_and(|e| e == "md") {
                let file = file.canonicalize().unwrap();
                let there = known.entry(file.clone()).or_insert_with(|| anchors(&file));
                if !there.contains(&heading) {
                    findings.push(format!("{place}: there is no such heading"));
                }
            }
        }
    }
    report(&findings);
}

/// `mdbook` makes the book of the summary: it lists each document once, and nothing else.
#[test]
fn the_summary_of_the_book_lists_each_document_once() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let mut listed = BTreeMap::new();
    for (_, _, file, _) in links(&summary) {
        *listed.entry(file).or_insert(0) += 1;
    }
    let mut findings = Vec::new();
    for path in files(&docs, &[".md"]) {
        match listed.remove(&path) {
            Some(1) => {}
            None if path == summary => {}
            times => findings.push(format!(
                "{} is in the summary {} times",
                named(&path),
                times.unwrap_or(0)
            )),
        }
    }
    let gone = listed.into_keys();
    findings.extend(gone.map(|path| format!("{} is no document", path.display())));
    report(&findings);
    let book: toml::Table = fs::read_to_string(root().join("book.toml"))
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("docs"));
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = lines.lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "README.md: {lines} lines, at most {README_LINES_MAX}"
    );
}

#[test]
fn headings_become_anchors_as_readers_of_markdown_make_them() {
    assert_eq!(
        anchor(" 4. The ordering argument"),
        "4-the-ordering-argument"
    );
    assert_eq!(anchor(" `fsck`, and *repair*"), "fsck-and-repair");
    let text = "# One\n```sh\n# no heading\n```\n[a](b)\n";
    assert_eq!(prose(text), [(1, "# One"), (5, "[a](b)")]);
}
