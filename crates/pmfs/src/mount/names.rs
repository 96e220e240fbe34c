//! Third pass: each directory alone. Its names, and the use of its slots.
//!
//! Every directory that is alive by its generation is listed, also one that turns out to be unreachable; its findings are then
//! dropped.

use super::look::{Look, Reference};
use super::pages::DirPage;
use super::slots::Decisions;
use crate::fsck::finding::{Location, Log, Problem};
use crate::index::dir::DirIndex;
use crate::index::name;
use crate::layout::{InodeRef, NAME_HEAD, Place, ROOT, SLOTS_PER_PAGE, Tag, name_hash, slot};
use crate::words::Words;
use std::ops::Range;
use steadfast_vfs::FileKind;

/// A directory and where its pages are in the list of all.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) number: u32,
    pub(crate) pages: Range<usize>,
}

/// Splits the ordered list of directory pages.
pub(crate) fn directories(pages: &[DirPage]) -> Vec<Directory> {
    let mut all: Vec<Directory> = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        match all.last_mut() {
            Some(last) if last.number == page.number => last.pages.end = at + 1,
            _ => all.push(Directory {
                number: page.number,
                pages: at..at + 1,
            }),
        }
    }
    all
}

/// Content of a directory.
pub(crate) struct Listing {
    pub(crate) number: u32,
    pub(crate) names: DirIndex,
    /// Used slots of each page.
    pub(crate) used: Vec<u64>,
    /// The inode of each name.
    pub(crate) targets: Vec<u32>,
    /// The directories in it.
    pub(crate) children: Vec<(u32, Place)>,
    pub(crate) log: Log,
}

/// State of a directory's listing.
struct Lister<'l, 'a, M> {
    look: &'l Look<'a, M>,
    decisions: &'l Decisions,
    list: Listing,
    /// Entries that need another name.
    renamed: Vec<Place>,
}

/// Lists a directory. `heads` are the numbers of commit words in its pages.
pub(crate) fn list(
    look: &Look<'_, impl Words>,
    decisions: &Decisions,
    directory: &Directory,
    pages: &[DirPage],
    heads: &[u8],
) -> Listing {
    let names = heads.iter().map(|heads| usize::from(*heads)).sum();
    let mut lister = Lister {
        look,
        decisions,
        list: Listing {
            number: directory.number,
            names: DirIndex::with_capacity(names),
            used: Vec::with_capacity(pages.len()),
            targets: Vec::with_capacity(names),
            children: Vec::new(),
            log: Log::default(),
        },
        renamed: Vec::new(),
    };
    for page in pages {
        lister.list.names.add_page(page.offset, page.page);
        let mut used = 0;
        for index in 0..SLOTS_PER_PAGE {
            let place = Place::new(page.page, index);
            if let Some(slots) = lister.slot(place) {
                used |= (u64::MAX >> (64 - slots)) << index;
            }
        }
        lister.list.used.push(used);
    }
    lister.rename();
    lister.list
}

impl<M: Words> Lister<'_, '_, M> {
    /// Meaning of a slot: the decision about it, or else its commit word.
    fn word(&self, place: Place) -> u64 {
        match self.decisions.get(&place) {
            Some(meaning) => meaning.map_or(0, InodeRef::word),
            None => self.look.commit_of(place),
        }
    }

    fn finding(&mut self, problem: Problem, place: Place, detail: std::fmt::Arguments<'_>) {
        let location = Location::slot(self.list.number, place);
        self.list.log.add(problem, location, detail);
    }

    /// The name of a slot counts no more.
    fn remove(&mut self, problem: Problem, place: Place) {
        let word = self.look.commit_of(place);
        let detail = format_args!("it names inode {} generation {}", word >> 32, word as u32);
        self.finding(problem, place, detail);
        self.list.log.fix(problem, (place.at() + slot::COMMIT, 0));
        self.list.names.correct(place, None);
    }

    /// Lists the name that begins in a slot. Returns how many slots it takes.
    fn slot(&mut self, place: Place) -> Option<u64> {
        let word = self.word(place);
        if let Some(meaning) = self.decisions.get(&place) {
            self.list.names.correct(place, *meaning);
        }
        if word == 0 {
            return None;
        }
        let inode = match self.look.reference(word) {
            Reference::Alive(inode) if inode.number == ROOT => {
                self.remove(Problem::NameOfRoot, place);
                return None;
            }
            Reference::Alive(inode) => inode,
            Reference::Next(_) => {
                self.remove(Problem::NameOfUnborn, place);
                return None;
            }
            Reference::Later(_) | Reference::Past(_) | Reference::Nothing => {
                self.remove(Problem::NameDangling, place);
                return None;
            }
        };
        let slots = self.name(place, inode)?;
        self.list.targets.push(inode.number);
        if self.look.kind(inode.number) == FileKind::Directory {
            self.list.children.push((inode.number, place));
        }
        Some(slots)
    }

    /// Indexes the name of a slot. Returns how many slots it takes, or `None` if it does not count.
    fn name(&mut self, place: Place, inode: InodeRef) -> Option<u64> {
        let m = self.look.m;
        let name = match name::read(m, place) {
            Ok(name) => name,
            Err(why) => {
                self.finding(Problem::NameMalformed, place, format_args!("{why}"));
                self.renamed.push(place);
                return Some(1);
            }
        };
        let slots = name::slots(m, place).unwrap_or(1);
        let alive = |place| self.look.reference(self.word(place)).alive();
        let next = (1..slots).map(|k| Place(place.0 + k));
        if let Some(other) = next.clone().find(|place| alive(*place).is_some()) {
            let detail = format_args!("it runs into the name of slot {}", other.0);
            self.finding(Problem::NameMalformed, place, detail);
            self.renamed.push(place);
            return Some(1);
        }
        if let Some(first) = self.list.names.find(m, name.bytes()) {
            let detail = format_args!("{name:?} is in slot {}, too", first.place.0);
            self.finding(Problem::NameTwice, place, detail);
            if first.inode == inode {
                let fix = (place.at() + slot::COMMIT, 0);
                self.list.log.fix(Problem::NameTwice, fix);
                self.list.names.correct(place, None);
                return None;
            }
            self.renamed.push(place);
            return Some(slots);
        }
        let tag = Tag::from_word(self.look.slot(place, slot::TAG));
        let hash = name_hash(name.bytes());
        if tag.hash != hash {
            self.finding(Problem::NameHash, place, format_args!("{name:?}"));
            let fix = (place.at() + slot::TAG, Tag { hash, ..tag }.word());
            self.list.log.fix(Problem::NameHash, fix);
        }
        self.list.names.insert(name.bytes(), place);
        Some(slots)
    }

    /// New names for the entries that need one. They are repairs: until then the entries are left out.
    fn rename(&mut self) {
        for place in std::mem::take(&mut self.renamed) {
            let taken = |name: &str| self.list.names.find(self.look.m, name.as_bytes());
            let names = (0..u64::MAX).map(|k| match k {
                0 => format!("fsck-{:x}", place.0),
                k => format!("fsck-{:x}-{k:x}", place.0),
            });
            // A directory has fewer names than there are to choose from.
            let Some(name) = names.into_iter().find(|name| taken(name).is_none()) else {
                continue;
            };
            let mut head = [0; NAME_HEAD];
            head[..name.len()].copy_from_slice(name.as_bytes());
            let (words, _) = head.as_chunks::<8>();
            for (k, word) in words.iter().enumerate() {
                let at = place.at() + slot::NAME + 8 * k as u64;
                let fix = (at, u64::from_le_bytes(*word));
                self.list.log.fix(Problem::NameMalformed, fix);
            }
            let tag = Tag {
                tag: Tag::from_word(self.look.slot(place, slot::TAG)).tag,
                len: name.len() as u8,
                hash: name_hash(name.as_bytes()),
            };
            let fix = (place.at() + slot::TAG, tag.word());
            self.list.log.fix(Problem::NameMalformed, fix);
            self.list.names.correct(place, None);
        }
    }
}
