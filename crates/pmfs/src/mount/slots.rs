//! Second pass: directory slots alone. It finds the renames that were cut, and the largest tags.
//!
//! A rename stores the new name with a pointer to the old one, fences, and clears the old one. A pointer from slot D to slot S
//! is *effective* if D's inode is alive, S is another slot of a live directory page, S names the same inode, and S has the tag
//! that the pointer carries. Then S counts as cleared, or, in an exchange, as naming the other inode. All this is decided on
//! the words on the medium, before anything is repaired. Pointers are left where they are: tags make them harmless.
//!
//! A pointer that has the tag of S while S names *another* inode than D is not effective, but it could become so: if the other
//! slot is later given that inode by an exchange, it keeps its pointer. Two cuts leave such a pointer: in the line of D, between
//! pointer and commit word, when D is replaced; and in the line of S, between commit word and new tag, when an exchange ends.
//! Then S gets a new tag, and so it does when an exchange is finished here.

use super::bitmap::Bitmap;
use super::look::Look;
use super::pages::{DirPage, Doubt, Spot};
use crate::fsck::finding::{Location, Log, Named, Problem};
use crate::layout::{InodeRef, Place, Pointer, SLOTS_PER_PAGE, TAG_MAX, Tag, slot};
use crate::words::Words;
use std::collections::{BTreeMap, BTreeSet};

/// Directory pages that are looked at in one piece of work.
pub(crate) const PAGES_AT_ONCE: usize = 64;

/// Meanings of slots where they differ from the slots' words.
pub(crate) type Decisions = BTreeMap<Place, Option<InodeRef>>;

/// A rename that was cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    directory: u32,
    /// The slot of the new name.
    to: Place,
    /// The slot of the old name, and its meaning.
    from: Place,
    meaning: Option<InodeRef>,
}

/// Tags from here on are taken as used up, long before they are: no volume gets there in years.
pub(crate) const TAGS_ENOUGH: u64 = TAG_MAX - TAG_MAX / 4;

/// Content of some directory pages.
#[derive(Default)]
pub(crate) struct Slots {
    /// Above all tags of names and of their pointers below [`TAGS_ENOUGH`].
    pub(crate) next_tag: u64,
    /// Directories with larger ones.
    pub(crate) exhausted: Vec<u32>,
    /// Slots with a commit word, for each page.
    pub(crate) heads: Vec<u8>,
    pub(crate) unfinished: Vec<Unfinished>,
    /// Slots that need a new tag, because of a pointer in a directory.
    pub(crate) outlived: Vec<(u32, Place)>,
    pub(crate) doubts: Vec<Doubt>,
}

/// Looks at the slots of some directory pages. `directories` are the pages of all live directories.
pub(crate) fn scan(look: &Look<'_, impl Words>, pages: &[DirPage], directories: &Bitmap) -> Slots {
    let mut found = Slots::default();
    for page in pages {
        let mut heads = 0;
        for place in (0..SLOTS_PER_PAGE).map(|index| Place::new(page.page, index)) {
            let commit = look.commit_of(place);
            // The words of a slot without a name may be bytes of one: they are no tags.
            if commit == 0 {
                continue;
            }
            heads += 1;
            let tag = Tag::from_word(look.slot(place, slot::TAG)).tag;
            found.tag(look, page.number, commit, tag);
            let pointer = look.slot(place, slot::POINTER);
            if pointer == 0 {
                continue;
            }
            let Some(pointer) = Pointer::from_words(pointer, look.slot(place, slot::OTHER)) else {
                continue;
            };
            // A slot that names nothing alive is cleared; its words may belong to the name before it.
            if look.reference(commit).alive().is_some() {
                found.tag(look, page.number, commit, pointer.tag);
                found.pointer(look, page.number, place, pointer, directories);
            }
        }
        found.heads.push(heads);
    }
    found
}

impl Slots {
    fn tag(&mut self, look: &Look<'_, impl Words>, directory: u32, commit: u64, tag: u64) {
        if tag < TAGS_ENOUGH {
            self.next_tag = self.next_tag.max(tag + 1);
        } else if look.reference(commit).alive().is_some() {
            self.exhausted.push(directory);
        }
    }

    fn pointer(
        &mut self,
        look: &Look<'_, impl Words>,
        directory: u32,
        place: Place,
        pointer: Pointer,
        directories: &Bitmap,
    ) {
        let mut wild = || {
            self.doubts.push(Doubt {
                number: directory,
                problem: Problem::PointerWild,
                spot: Spot::Slot(place),
                fix: Some((place.at() + slot::POINTER, 0)),
            });
        };
        let from = pointer.from;
        if !look.geometry.is_place(from) {
            return wild();
        }
        let commit = look.commit_of(place);
        let matches = from != place
            && directories.contains(from.page())
            && look.commit_of(from) != 0
            && Tag::from_word(look.slot(from, slot::TAG)).tag == pointer.tag;
        if !matches {
            return;
        }
        if look.commit_of(from) != commit {
            return self.outlived.push((directory, from));
        }
        let meaning = match pointer.exchange {
            None => None,
            Some(number) if look.geometry.is_inode(number) && look.birth(number).0 > 0 => {
                let (generation, _) = look.birth(number);
                Some(InodeRef { number, generation })
            }
            Some(_) => return wild(),
        };
        self.unfinished.push(Unfinished {
            directory,
            to: place,
            from,
            meaning,
        });
    }
}

/// Turns cut renames into decisions, and gives out new tags from `next_tag` on. Of several renames for one slot the first
/// counts: no crash leaves more.
pub(crate) fn decide(
    look: &Look<'_, impl Words>,
    found: &[Slots],
    next_tag: &mut u64,
    log: &mut Log,
) -> Decisions {
    let mut decisions = Decisions::new();
    let mut retagged = BTreeSet::new();
    let mut tag = |from: Place| {
        let fresh = *next_tag;
        *next_tag += 1;
        let old = Tag::from_word(look.slot(from, slot::TAG));
        (from.at() + slot::TAG, Tag { tag: fresh, ..old }.word())
    };
    for rename in found.iter().flat_map(|slots| &slots.unfinished) {
        let Unfinished { from, meaning, .. } = *rename;
        if decisions.contains_key(&from) {
            continue;
        }
        decisions.insert(from, meaning);
        let location = Location::slot(rename.directory, rename.to);
        let problem = Problem::RenameUnfinished;
        let at = from.at() + slot::COMMIT;
        match meaning {
            None => {
                log.add(
                    problem,
                    location,
                    format_args!("slot {} has the old name", from.0),
                );
                log.fix(problem, (at, 0));
            }
            Some(other) => {
                let detail =
                    format_args!("an exchange: slot {} is to name {}", from.0, Named(other));
                log.add(problem, location, detail);
                // In this order, in one line: the tag keeps the pointer alive until the slot names the other inode.
                log.fix(problem, (at, other.word()));
                log.fix(problem, tag(from));
                retagged.insert(from);
            }
        }
    }
    for (directory, from) in found.iter().flat_map(|slots| &slots.outlived) {
        if retagged.insert(*from) && !decisions.contains_key(from) {
            let location = Location::slot(*directory, *from);
            log.add(Problem::TagOutlived, location, format_args!(""));
            log.fix(Problem::TagOutlived, tag(*from));
        }
    }
    decisions
}
