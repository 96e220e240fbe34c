//! Fourth pass: the tree. It finds the directories that can be reached from the root, their parents, and the number of names of
//! each inode.
//!
//! The walk is breadth-first and in the order of places, so that of two names of one directory the same one counts each time.
//! Each directory is visited once; no cycle can hold it up.

use super::look::Look;
use super::names::Listing;
use super::workers::Workers;
use crate::fsck::finding::{Location, Log, Named, Problem};
use crate::index::name;
use crate::layout::{InodeRef, Place, ROOT, slot};
use crate::words::Words;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

/// The reachable part of a volume.
pub(crate) struct Tree {
    /// The parent of each reachable directory, and the number of directories in it.
    pub(crate) parents: HashMap<u32, Family, foldhash::fast::RandomState>,
    /// The number of names of each inode, from number 1 on; of the root 1.
    links: Vec<AtomicU32>,
}

/// A directory's parent and children.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Family {
    pub(crate) parent: u32,
    pub(crate) children: u32,
}

impl Tree {
    /// Number of names of an inode; 0 if it cannot be reached.
    pub(crate) fn names(&self, number: u32) -> u32 {
        let index = (number as usize).wrapping_sub(1);
        self.links
            .get(index)
            .map_or(0, |links| links.load(Ordering::Relaxed))
    }
}

/// The listing of a directory, if it has a page.
pub(crate) fn listing(listings: &[Listing], number: u32) -> Option<usize> {
    listings
        .binary_search_by_key(&number, |listing| listing.number)
        .ok()
}

/// Walks from the root, and counts names.
pub(crate) fn walk(
    look: &Look<'_, impl Words>,
    listings: &mut [Listing],
    workers: &mut Workers<'_>,
    upto: u64,
    log: &mut Log,
) -> Tree {
    let mut parents = HashMap::<u32, Family, _>::default();
    let mut queue = VecDeque::from([ROOT]);
    let root = Family {
        parent: ROOT,
        children: 0,
    };
    parents.insert(ROOT, root);
    while let Some(number) = queue.pop_front() {
        let Some(at) = listing(listings, number) else {
            continue;
        };
        let mut children = 0;
        let mut twice = Vec::new();
        for (child, place) in &listings[at].children {
            if parents.contains_key(child) {
                twice.push((*child, *place));
                continue;
            }
            let family = Family {
                parent: number,
                children: 0,
            };
            parents.insert(*child, family);
            queue.push_back(*child);
            children += 1;
        }
        if let Some(family) = parents.get_mut(&number) {
            family.children = children;
        }
        for (child, place) in twice {
            drop_second_name(look, &mut listings[at], child, place, log);
        }
    }
    let links: Vec<AtomicU32> = (0..look.geometry.inodes())
        .map(|index| AtomicU32::new(u32::from(index + 1 == ROOT)))
        .collect();
    let reachable: Vec<&Listing> = listings
        .iter()
        .filter(|listing| parents.contains_key(&listing.number))
        .collect();
    workers.each(upto, reachable.len(), |unit| {
        for number in &reachable[unit].targets {
            if let Some(links) = links.get((*number as usize).wrapping_sub(1)) {
                // A count that would overflow stays at its maximum.
                if links.fetch_add(1, Ordering::Relaxed) == u32::MAX {
                    links.store(u32::MAX, Ordering::Relaxed);
                }
            }
        }
    });
    Tree { parents, links }
}

/// A directory has been met by another name before: this one does not count.
fn drop_second_name(
    look: &Look<'_, impl Words>,
    listing: &mut Listing,
    child: u32,
    place: Place,
    log: &mut Log,
) {
    let inode = InodeRef::from_word(look.commit_of(place));
    let location = Location::slot(listing.number, place);
    match inode {
        Some(inode) => log.add(
            Problem::DirectoryTwice,
            location,
            format_args!("{}", Named(inode)),
        ),
        None => log.add(
            Problem::DirectoryTwice,
            location,
            format_args!("inode {child}"),
        ),
    }
    log.fix(Problem::DirectoryTwice, (place.at() + slot::COMMIT, 0));
    if let Ok(name) = name::read(look.m, place) {
        listing.names.remove(name.bytes(), place);
    }
    listing.names.correct(place, None);
    if let Some(at) = listing.targets.iter().position(|number| *number == child) {
        listing.targets.swap_remove(at);
    }
}
