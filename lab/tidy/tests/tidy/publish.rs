//! `scripts/publish-metadata.sh` on a copy of the manifests, and the table of crates in docs/versions.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use super::root;

/// Folders whose packages the workspace has.
const FOLDERS: [&str; 3] = ["crates", "lab", "bench"];

/// A workspace whose manifests are copies, and whose sources are those of the repository.
fn copy_of_manifests(to: &Path) {
    for entry in fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match name.as_str() {
            "Cargo.toml" | "Cargo.lock" => {
                fs::copy(entry.path(), to.join(&name)).unwrap();
            }
            name if FOLDERS.contains(&name) => copy_folder(&entry.path(), &to.join(name)),
            _ => {}
        }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for package in fs::read_dir(from).unwrap() {
        let package = package.unwrap();
        if !package.path().join("Cargo.toml").exists() {
            continue;
        }
        let copy = to.join(package.file_name());
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(package.path()).unwrap() {
            let entry = entry.unwrap();
            let copied = copy.join(entry.file_name());
            match entry.file_name() == "Cargo.toml" {
                true => drop(fs::copy(entry.path(), copied).unwrap()),
                false => symlink(entry.path(), copied).unwrap(),
            }
        }
    }
}

/// Content of all manifests, by path.
fn manifests(below: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for folder in FOLDERS {
        for package in fs::read_dir(below.join(folder)).unwrap() {
            let path = package.unwrap().path().join("Cargo.toml");
            if !path.exists() {
                continue;
            }
            all.insert(
                path.display().to_string(),
                fs::read_to_string(&path).unwrap(),
            );
        }
    }
    all
}

fn publish(url: &str, checkout: &Path) -> Output {
    Command::new("bash")
        .arg(root().join("scripts/publish-metadata.sh"))
        .arg(url)
        .arg(checkout)
        .output()
        .unwrap()
}

fn published(url: &str, checkout: &Path) {
    let output = publish(url, checkout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The packages of a workspace, as cargo reads them.
fn packages(checkout: &Path) -> Vec<serde_json::Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(checkout)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {said}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn is_published(package: &serde_json::Value) -> bool {
    // Null: to every registry.
    package["publish"].is_null()
}

#[test]
fn an_address_is_in_the_metadata_of_each_published_crate_once_and_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    copy_of_manifests(dir.path());
    let original = manifests(dir.path());
    published("https://elsewhere.example.org/first/try", dir.path());
    let url = "https://git.example.org/owner/name";
    published(url, dir.path());
    let first = manifests(dir.path());
    published(url, dir.path());
    assert_eq!(manifests(dir.path()), first, "a second run changes nothing");

    let mut count = 0;
    for package in packages(dir.path()) {
        let name = package["name"].as_str().unwrap();
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        if !is_published(&package) {
            assert_eq!(text("repository"), None, "{name}");
            continue;
        }
        count += 1;
        assert_eq!(text("repository").as_deref(), Some(url), "{name}");
        assert_eq!(text("homepage").as_deref(), Some(url), "{name}");
        let binstall = &package["metadata"]["binstall"];
        if name == "steadfast-cli" {
            assert_eq!(text("documentation").as_deref(), Some(url));
            let place = binstall["pkg-url"].as_str().unwrap();
            assert!(place.starts_with("{ repo }/releases/download/v{ version }/"));
            assert!(binstall["bin-dir"].as_str().unwrap().contains("/bin/"));
        } else {
            let docs = format!("https://docs.rs/{name}");
            assert_eq!(text("documentation"), Some(docs));
            assert!(binstall.is_null(), "{name}");
        }
    }
    assert!(count > 15, "{count} published crates");

    // All else is as it was: without the entries, the manifests are the original ones.
    for (path, text) in &first {
        let text = text
            .split("\n\n[package.metadata.binstall]")
            .next()
            .unwrap();
        let ours = ["repository", "homepage", "documentation"].map(|key| format!("{key} = "));
        let kept = text
            .lines()
            .filter(|l| !ours.iter().any(|own| l.starts_with(own)));
        let kept: Vec<&str> = kept.collect();
        let before: Vec<&str> = original[path].lines().collect();
        assert_eq!(kept, before, "{path}");
    }
}

#[test]
fn what_is_no_address_of_a_repository_is_refused_and_nothing_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    copy_of_manifests(dir.path());
    let original = manifests(dir.path());
    for url in [
        "",
        "git.example.org/owner/name",
        "http://git.example.org/owner/name",
        "https://localhost/owner/name",
        "https://git.example.org/owner",
        "https://git.example.org/owner/name/",
        "https://git.example.org/owner/name.git",
        "https://git.example.org/owner/na me",
        "https://git.example.org/owner/name\"\nversion = \"9",
        "https://user@git.example.org/owner/name",
        "https://git.example.org/owner/../name",
        "https://git.example.org/owner/name?x=y",
        "--owner",
    ] {
        let output = publish(url, dir.path());
        assert_eq!(output.status.code(), Some(2), "{url}");
        assert!(!output.stderr.is_empty(), "{url}");
    }
    let nowhere = publish(
        "https://git.example.org/owner/name",
        &dir.path().join("crates"),
    );
    assert_eq!(nowhere.status.code(), Some(2));
    assert_eq!(manifests(dir.path()), original);
}

/// Each published crate has a row in the table, with the Rust that it needs and its features.
#[test]
fn the_table_of_crates_has_each_crate_its_rust_and_its_features() {
    let text = fs::read_to_string(root().join("docs/versions.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `steadfast")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, stability, rust, features] = cells[..] else {
            panic!("docs/versions.md: {line}");
        };
        let row = (stability, rust, features);
        assert!(
            rows.insert(name.trim_matches('`'), row).is_none(),
            "{name} twice"
        );
    }
    for package in packages(&root()) {
        let name = package["name"].as_str().unwrap();
        if !is_published(&package) || !name.starts_with("steadfast") {
            continue;
        }
        let row = rows.remove(name);
        let (stability, rust, features) =
            row.unwrap_or_else(|| panic!("docs/versions.md: no row for {name}"));
        let known = ["stable from 1.0", "experimental", "internal", "a program"];
        assert!(known.contains(&stability), "{name}: {stability}");
        assert_eq!(Some(rust), package["rust_version"].as_str(), "{name}");
        let declared = package["features"].as_object().unwrap().keys();
        let declared: BTreeSet<&str> = declared.map(String::as_str).collect();
        let declared: BTreeSet<&str> = declared.into_iter().filter(|f| *f != "default").collect();
        let named: BTreeSet<&str> = features.split('`').skip(1).step_by(2).collect();
        assert_eq!(named, declared, "{name}");
        assert_eq!(declared.is_empty(), features == "none", "{name}");
    }
    let gone: Vec<&&str> = rows.keys().collect();
    assert!(gone.is_empty(), "docs/versions.md has {gone:?}");
}
