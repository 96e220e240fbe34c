//! Cycles of modules: computed, for each crate, from the `use` lines of its sources.
//!
//! A module is a file. It depends on the modules that define its imports: a name that another module only
//! re-exports leads to the defining module, and a re-export alone is no dependency. Modules of tests do not count.

use super::{files, named, report, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Maximum number of modules that know of each other, directly or through others.
const CYCLE_MAX: usize = 3;

/// A module's path below the crate's root; none for the root itself.
type Module = Vec<String>;

/// A path in a `use` line: where it starts, and the names from there on.
#[derive(Clone)]
struct UsePath {
    from: Module,
    names: Vec<String>,
}

#[derive(Default)]
struct Source {
    /// Imports by the name that the line gives them.
    imports: BTreeMap<String, UsePath>,
    /// Those that are no re-exports.
    used: Vec<UsePath>,
}

struct Sources(BTreeMap<Module, Source>);

fn module_of(src: &Path, path: &Path) -> Module {
    let relative = path.strip_prefix(src).unwrap().with_extension("");
    let mut names: Module = (relative.iter())
        .map(|name| name.to_str().unwrap().to_owned())
        .collect();
    if (names.last()).is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    names
}

/// Without comments, and without a module of tests at the end.
fn code_of(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of `a::{b, c::d as e}`, each with the name that it gets.
fn expanded(tree: &str) -> Vec<(String, String)> {
    let Some((before, rest)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = path.trim();
        let last = path.rsplit("::").next().unwrap();
        let name = if name.is_empty() { last } else { name.trim() };
        return vec![(path.to_owned(), name.to_owned())];
    };
    let inner = &rest[..rest.rfind('}').unwrap()];
    let mut depth = 0;
    let parts = inner.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty());
    (parts.flat_map(expanded))
        .map(|(path, name)| (format!("{}{path}", before.trim()), name))
        .collect()
}

/// The statements `use …;` of a source, and whether each is a re-export.
fn use_lines(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        // Behind the end of the item before it, on a line of its own.
        let Some(at) = ["\nuse ", " use ", ") use "]
            .iter()
            .filter_map(|key| statement.rfind(key).map(|at| at + key.len()))
            .max()
        else {
            continue;
        };
        let line = statement[..at].lines().last().unwrap_or_default().trim();
        let tests_only = statement[..at].trim_end().rsplit('\n').nth(1);
        let is_use = line == "use" || line.starts_with("pub") && line.ends_with("use");
        if is_use && tests_only.is_none_or(|line| line.trim() != "#[cfg(test)]") {
            let tree = statement[at..].split_whitespace();
            found.push((line.starts_with("pub"), tree.collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

impl Sources {
    fn of(src: &Path) -> Sources {
        let mut texts = Vec::new();
        for path in files(src, &[".rs"]) {
            let relative = path.strip_prefix(src).unwrap();
            let is_test = (relative.iter()).any(|name| name == "tests" || name == "tests.rs");
            if !is_test {
                let text = fs::read_to_string(&path).unwrap();
                texts.push((module_of(src, &path), text));
            }
        }
        Sources::of_texts(&texts)
    }

    fn of_texts(texts: &[(Module, String)]) -> Sources {
        let modules = texts.iter().map(|(module, _)| module.clone());
        let mut sources = Sources(modules.map(|module| (module, Source::default())).collect());
        for (module, text) in texts {
            for (again, tree) in use_lines(&format!("\n{}", code_of(text))) {
                for (path, name) in expanded(&tree) {
                    let Some(path) = sources.start(module, &path) else {
                        continue;
                    };
                    let source = sources.0.get_mut(module).unwrap();
                    if !again {
                        source.used.push(path.clone());
                    }
                    if name != "*" {
                        source.imports.insert(name, path);
                    }
                }
            }
        }
        sources
    }

    /// Start of a path that stays in this crate.
    fn start(&self, module: &Module, path: &str) -> Option<UsePath> {
        let mut names: Vec<String> = path
            .split("::")
            .map(|name| name.trim().to_owned())
            .collect();
        names.retain(|name| name != "*");
        if names.last().is_some_and(|last| last == "self") {
            names.pop();
        }
        let mut from = module.clone();
        match names.first().map(String::as_str)? {
            "crate" => {
                from.clear();
                names.remove(0);
            }
            "super" => {
                while names.first().is_some_and(|name| name == "super") {
                    from.pop()?;
                    names.remove(0);
                }
            }
            first => {
                from.push(first.to_owned());
                if !self.0.contains_key(&from) {
                    return None;
                }
                from.pop();
            }
        }
        Some(UsePath { from, names })
    }

    /// The module that defines the path's target.
    fn defining(&self, path: &UsePath, steps: usize) -> Module {
        let mut at = path.from.clone();
        for (index, name) in path.names.iter().enumerate() {
            at.push(name.clone());
            if self.0.contains_key(&at) {
                continue;
            }
            at.pop();
            if let Some(further) = self.0.get(&at).and_then(|source| source.imports.get(name))
                && steps > 0
            {
                let mut further = further.clone();
                further.names.extend_from_slice(&path.names[index + 1..]);
                return self.defining(&further, steps - 1);
            }
            break;
        }
        at
    }

    fn dependencies(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let of = |module: &Module, source: &Source| {
            let used = source.used.iter().map(|path| self.defining(path, 8));
            used.filter(|other| other != module && self.0.contains_key(other))
                .collect()
        };
        (self.0.iter())
            .map(|(module, source)| (module, of(module, source)))
            .collect()
    }
}

/// Sets of modules that reach each other.
fn cycles(edges: &BTreeMap<&Module, BTreeSet<Module>>) -> Vec<BTreeSet<Module>> {
    let reach = |from: &Module| {
        let mut seen = BTreeSet::new();
        let mut left = vec![from];
        while let Some(module) = left.pop() {
            for next in edges.get(module).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = edges
        .keys()
        .map(|module| (*module, reach(module)))
        .collect();
    let mut found = BTreeSet::new();
    for (module, others) in &reached {
        let cycle: BTreeSet<Module> = (others.iter())
            .filter(|other| {
                reached
                    .get(other)
                    .is_some_and(|back| back.contains(*module))
            })
            .cloned()
            .collect();
        if cycle.len() > 1 {
            found.insert(cycle);
        }
    }
    found.into_iter().collect()
}

#[test]
fn modules_form_no_large_cycles() {
    let mut findings = Vec::new();
    for manifest in files(&root().join("crates"), &["Cargo.toml"]) {
        let src = manifest.with_file_name("src");
        let name = src.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let sources = Sources::of(&src);
        let edges = sources.dependencies();
        let count: usize = edges.values().map(BTreeSet::len).sum();
        assert!(
            edges.len() < 4 || count > 0,
            "{}: no imports were found",
            named(&src)
        );
        let largest = (cycles(&edges).into_iter())
            .max_by_key(BTreeSet::len)
            .unwrap_or_default();
        if largest.len() > CYCLE_MAX {
            let names = largest.iter().map(|module| match module.is_empty() {
                true => "the root".to_owned(),
                false => module.join("::"),
            });
            findings.push(format!(
                "crate {name}: {} modules in one cycle, at most {CYCLE_MAX}: {}",
                largest.len(),
                names.collect::<Vec<_>>().join(", ")
            ));
        }
    }
    report(&findings);
}

#[test]
fn cycles_are_found_through_re_exports_and_nested_imports() {
    let path = |names: &[&str]| -> Module { names.iter().map(|name| (*name).to_owned()).collect() };
    let texts: [(&[&str], &str); 5] = [
        (
            &[],
            "mod a;\nmod b;\nmod c;\npub use a::One;\npub use c::{Three, deep::Four};",
        ),
        (
            &["a"],
            "//! Of crate::c.\nuse crate::{b::Two as Other, Three};\nuse std::fmt;\n",
        ),
        (&["b"], "use super::Four; fn f() { let used = 1; }"),
        (
            &["c"],
            "pub mod deep;\n#[cfg(test)]\nmod tests { use crate::a::One; }",
        ),
        (
            &["c", "deep"],
            "pub(crate) use crate::b::Two;\nuse crate::\n    One;",
        ),
    ];
    let texts = texts.map(|(module, text)| (path(module), text.to_owned()));
    let found = Sources::of_texts(&texts);
    let edges = found.dependencies();
    assert_eq!(
        edges[&path(&["a"])],
        BTreeSet::from([path(&["b"]), path(&["c"])])
    );
    assert_eq!(edges[&path(&["b"])], BTreeSet::from([path(&["c", "deep"])]));
    assert!(edges[&path(&["c"])].is_empty() && edges[&path(&[])].is_empty());
    let cycle = BTreeSet::from([path(&["a"]), path(&["b"]), path(&["c", "deep"])]);
    assert_eq!(cycles(&edges), [cycle]);
}
