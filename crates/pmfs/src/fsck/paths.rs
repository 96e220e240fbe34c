//! Names for the inodes that findings concern.

use super::Finding;
use crate::index::name;
use crate::layout::{Place, ROOT};
use crate::table::Table;
use crate::words::Words;
use std::collections::{BTreeMap, BTreeSet};

/// Longest path that is shown, in names.
const DEPTH_MAX: usize = 64;

/// Fills in a path where the finding's inode has one.
pub(super) fn fill_in(m: &impl Words, table: &Table, findings: &mut [Finding]) {
    let mut wanted: BTreeSet<u32> = BTreeSet::new();
    wanted.extend(findings.iter().filter_map(|finding| finding.location.inode));
    if wanted.is_empty() {
        return;
    }
    // Files first: they lead to directories, whose parents are known.
    let mut names = one_name_each(m, table, &wanted);
    let mut directories = BTreeSet::new();
    let starts = names.values().map(|(parent, _)| *parent);
    for start in starts.chain(wanted.iter().copied()) {
        let mut at = start;
        for _ in 0..DEPTH_MAX {
            let Some(parent) = parent_of(table, at).filter(|_| at != ROOT) else {
                break;
            };
            directories.insert(at);
            at = parent;
        }
    }
    names.extend(one_name_each(m, table, &directories));
    for finding in findings {
        let number = finding.location.inode;
        finding.location.path = number.and_then(|number| path(m, number, &names));
    }
}

fn parent_of(table: &Table, number: u32) -> Option<u32> {
    let node = table.get(number)?;
    let state = node.read();
    state.directory().map(|directory| directory.parent)
}

/// For each of these inodes the directory of one of its names, and that name's slot.
fn one_name_each(
    m: &impl Words,
    table: &Table,
    wanted: &BTreeSet<u32>,
) -> BTreeMap<u32, (u32, Place)> {
    let mut names: BTreeMap<u32, (u32, Place)> = BTreeMap::new();
    table.for_each(|node| {
        let state = node.read();
        let entries = state.directory().into_iter();
        for listed in entries.flat_map(|directory| directory.names.entries(m, 0)) {
            if wanted.contains(&listed.inode.number) {
                let name = (node.inode.number, listed.place);
                let first = names.entry(listed.inode.number).or_insert(name);
                // The same one for any order of the table.
                *first = (*first).min(name);
            }
        }
    });
    names
}

/// A path from the root on; `…` stands for the part that is too deep, or not known.
fn path(m: &impl Words, number: u32, names: &BTreeMap<u32, (u32, Place)>) -> Option<String> {
    if number == ROOT {
        return Some("/".into());
    }
    let mut parts = Vec::new();
    let mut at = number;
    while at != ROOT && parts.len() < DEPTH_MAX {
        let Some((parent, place)) = names.get(&at) else {
            break;
        };
        let name = name::read(m, *place).ok()?;
        parts.push(String::from_utf8_lossy(name.bytes()).into_owned());
        at = *parent;
    }
    if parts.is_empty() {
        return None;
    }
    if at != ROOT {
        parts.push("…".into());
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}
