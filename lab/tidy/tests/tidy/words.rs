//! Words that need a second reading, in texts for users: documents, manual pages, `--help`.

use super::{files, named, numbered, report, root};
use std::fs;
use std::path::PathBuf;

/// Words to avoid, and their replacements. Add what a review finds.
const WORDS: [(&str, &str); 11] = [
    ("whoever", "name the user or the program"),
    ("so many", "say which number, or use a placeholder"),
    ("hung up", "'the connection is closed'"),
    ("is told", "'is notified', or say what is written where"),
    ("whose word", "'user squashing'"),
    ("wakeful", "'idle polling'"),
    ("goes by what", "'grows with', 'depends on'"),
    ("wait for nobody", "say what is always running"),
    ("does not do", "'unsupported', with what is supported"),
    ("who ends gracefully", "'a clean shutdown'"),
    ("so soon", "give the time"),
];

/// Documents that users and contributors read.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found = vec![];
    for folder in ["docs", "crates"] {
        found.extend(files(&root.join(folder), &[".md", ".7", ".8"]));
    }
    for name in [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "ARCHITECTURE.md",
        "bench/README.md",
    ] {
        found.push(root.join(name));
    }
    found
}

fn findings_in(place: &str, text: &str, is_read: impl Fn(&str) -> bool) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in numbered(text).filter(|(_, line)| is_read(line)) {
        let line = line.to_lowercase();
        for (words, better) in WORDS {
            let inside = |c: char| c.is_alphanumeric();
            let found = line.match_indices(words).any(|(at, _)| {
                !line[..at].ends_with(inside) && !line[at + words.len()..].starts_with(inside)
            });
            if found {
                findings.push(format!("{place}:{number}: '{words}': {better}"));
            }
        }
    }
    findings
}

#[test]
fn texts_for_users_are_plain() {
    let mut findings = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        findings.extend(findings_in(&named(&path), &text, |_| true));
    }
    // Help comes from the comments of options, which are indented, and of commands.
    for path in files(&root().join("crates/cli/src/commands"), &[".rs"]) {
        let text = fs::read_to_string(&path).unwrap();
        let has_help = text.contains("clap::");
        let is_help = |line: &str| has_help && line.starts_with("    /// ");
        findings.extend(findings_in(&named(&path), &text, is_help));
    }
    report(&findings);
}

#[test]
fn words_are_found_as_words() {
    let text = "It reads so many bytes.\nAlso manyfold; whoever.\nSo manyfold.";
    let found = findings_in("x", text, |line| !line.starts_with("Also"));
    assert_eq!(
        found,
        ["x:1: 'so many': say which number, or use a placeholder"]
    );
}
