//! Dependencies of the crates: all of them used, under licences that `deny.toml` allows, and in one version each.

use super::{files, named, report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Dependencies that no source names, and why they are there.
const UNNAMED: [(&str, &str, &str); 2] = [
    (
        "crates/cli/Cargo.toml",
        "steadfast-nbdkit",
        "builds the plugin that the tests of served disks load",
    ),
    (
        "crates/store/Cargo.toml",
        "reqwest",
        "named for its features: TLS with ring",
    ),
];

fn toml_of(path: &Path) -> toml::Table {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

/// All sources of a package in these folders, in one text.
fn sources(package: &Path, folders: &[&str]) -> String {
    let there = folders.iter().map(|folder| package.join(folder));
    let there = there.filter(|folder| folder.exists());
    let paths = there.flat_map(|folder| files(&folder, &[".rs"]));
    paths
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// Whether a name stands in the text as a whole word.
fn names(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part)
    })
}

#[test]
fn each_dependency_is_used() {
    let mut findings = Vec::new();
    let mut unnamed: BTreeSet<(String, String)> = (UNNAMED.iter())
        .map(|(manifest, name, _)| ((*manifest).to_owned(), (*name).to_owned()))
        .collect();
    for folder in ["crates", "lab", "bench"] {
        for path in files(&root().join(folder), &["Cargo.toml"]) {
            let manifest = toml_of(&path);
            let own = manifest["package"]["name"].as_str().unwrap().to_owned();
            let package = path.parent().unwrap();
            let product = sources(package, &["src", "build.rs"]);
            let tests = product.clone() + &sources(package, &["tests", "examples", "benches"]);
            for (table, text) in [("dependencies", &product), ("dev-dependencies", &tests)] {
                let entries = manifest.get(table).and_then(toml::Value::as_table);
                for name in entries.into_iter().flat_map(toml::Table::keys) {
                    // A package depends on itself to test with features.
                    let used = names(text, &name.replace('-', "_")) || *name == own;
                    let excused = unnamed.remove(&(named(&path), name.clone()));
                    if !used && !excused {
                        findings.push(format!("{}: {name} is not used ({table})", named(&path)));
                    }
                }
            }
        }
    }
    findings.extend(unnamed.iter().map(|(manifest, name)| {
        format!("UNNAMED has {name} of {manifest}, which does not depend on it")
    }));
    report(&findings);
}

/// The packages that the lock file holds for this platform, with licence and source.
fn packages() -> Vec<(String, String, String, Option<String>)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--frozen", "--format-version", "1"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            (
                text(&package["name"]).unwrap(),
                text(&package["version"]).unwrap(),
                text(&package["license"]).unwrap_or_default(),
                text(&package["source"]),
            )
        })
        .collect()
}

/// Whether a licence expression can be met with these licences alone.
fn is_met(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let expression = expression.replace('/', " OR ");
    // `AND` binds closer than `OR`; parentheses stand around whole alternatives only.
    let parts = |text: &str, word: &str| -> Vec<String> {
        let (mut parts, mut depth) = (vec![String::new()], 0);
        for token in text.split_whitespace() {
            if token == word && depth == 0 {
                parts.push(String::new());
                continue;
            }
            depth += token.matches('(').count();
            depth -= token.matches(')').count();
            let last = parts.last_mut().unwrap();
            *last += if last.is_empty() { "" } else { " " };
            *last += token;
        }
        parts
    };
    let bare = |text: &str| -> Option<String> {
        Some(text.strip_prefix('(')?.strip_suffix(')')?.to_owned())
    };
    let alternatives = parts(&expression, "OR");
    alternatives.iter().any(|alternative| {
        let all = parts(alternative, "AND");
        all.iter().all(|part| match bare(part) {
            Some(inner) => is_met(&inner, allowed),
            None => allowed.contains(part.as_str()),
        })
    })
}

#[test]
fn licences_are_allowed_versions_are_single_and_sources_are_the_registry() {
    let deny = toml_of(&root().join("deny.toml"));
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: BTreeSet<&str> = allowed.iter().map(|name| name.as_str().unwrap()).collect();
    let skipped = deny["bans"]["skip"].as_array().unwrap();
    let mut skipped: BTreeSet<&str> = (skipped.iter())
        .map(|entry| entry["crate"].as_str().unwrap())
        .collect();
    let mut findings = Vec::new();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version, licence, source) in packages() {
        if !is_met(&licence, &allowed) {
            findings.push(format!(
                "{name} {version}: the licence '{licence}' is not allowed"
            ));
        }
        if source.is_some_and(|source| !source.starts_with("registry+")) {
            findings.push(format!("{name} {version} does not come from the registry"));
        }
        versions.entry(name).or_default().insert(version);
    }
    for (name, versions) in &versions {
        if versions.len() > 1 && !skipped.remove(name.as_str()) {
            let list = versions.iter().map(String::as_str).collect::<Vec<_>>();
            findings.push(format!(
                "{name} is there in the versions {}",
                list.join(", ")
            ));
        }
    }
    // cargo-deny takes all features into account, and so has packages that are not in this list.
    let lock = toml_of(&root().join("Cargo.lock"));
    let locked = lock["package"].as_array().unwrap();
    for name in skipped {
        let is = |package: &&toml::Value| package["name"].as_str() == Some(name);
        if locked.iter().filter(is).count() < 2 {
            findings.push(format!(
                "deny.toml skips {name}, which is there in one version"
            ));
        }
    }
    report(&findings);
}

#[test]
fn licence_expressions_are_read() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    let met = [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "MIT AND ISC",
        "(MIT OR GPL-3.0) AND ISC",
        "GPL-3.0 OR Apache-2.0 WITH LLVM-exception",
    ];
    assert_eq!(met.map(|text| is_met(text, &allowed)), [true; 6]);
    let not = [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(GPL-3.0 OR LGPL-3.0) AND MIT",
        "Apache-2.0",
    ];
    assert_eq!(not.map(|text| is_met(text, &allowed)), [false; 5]);
}
