//! The table of pairs, by classes of operations.

use super::{Cause, Table};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Rough kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Class {
    Create,
    Mkdir,
    Remove,
    Rename,
    Move,
    Link,
    Attributes,
    Directory,
    Data,
    Nameless,
    Leaf,
    Read,
}

const CLASSES: [(Class, &str, &str); 12] = [
    (Class::Create, "create", "create"),
    (Class::Mkdir, "mkdir", "mkdir"),
    (Class::Remove, "remove", "remove"),
    (Class::Rename, "rename", "rename"),
    (Class::Move, "move", "move a directory"),
    (Class::Link, "link", "link"),
    (Class::Attributes, "attributes", "attributes of a file"),
    (Class::Directory, "directory", "attributes of a directory"),
    (Class::Data, "data", "write, truncate, allocate"),
    (Class::Nameless, "nameless", "use and close without a name"),
    (Class::Leaf, "leaf", "in a directory of several leaves"),
    (Class::Read, "read", "read"),
];

impl Class {
    pub(crate) fn parse(word: &str) -> Class {
        let found = CLASSES.iter().find(|(_, key, _)| *key == word);
        found.unwrap_or_else(|| panic!("no class '{word}'")).0
    }
}

fn letter(cause: Cause) -> char {
    match cause {
        Cause::Builds => 'b',
        Cause::File => 'f',
        Cause::Attributes => 'a',
        Cause::Topology => 't',
        Cause::Leaf => 'l',
    }
}

/// Markdown: a row for the first operation, a column for the second, the causes of merges in between, and the number
/// of pairs that merge.
pub(crate) fn text(table: &Table) -> String {
    let mut out = String::from("| first, uncommitted |");
    for n in 1..=CLASSES.len() {
        let _ = write!(out, " {n} |");
    }
    out += "\n|---|";
    out += &"---|".repeat(CLASSES.len());
    for (n, (row, _, name)) in CLASSES.iter().enumerate() {
        let _ = write!(out, "\n| {} {name} |", n + 1);
        for (column, ..) in &CLASSES {
            let pairs = table.get(&(*row, *column)).map_or(&[][..], Vec::as_slice);
            let merged: Vec<_> = pairs.iter().filter(|pair| pair.merged).collect();
            let causes: BTreeSet<char> = merged
                .iter()
                .filter_map(|pair| pair.cause.map(letter))
                .collect();
            match merged.is_empty() {
                true => out += " |",
                false => {
                    let causes: String = causes.into_iter().collect();
                    let _ = write!(out, " {causes} {}/{} |", merged.len(), pairs.len());
                }
            }
        }
    }
    out
}
