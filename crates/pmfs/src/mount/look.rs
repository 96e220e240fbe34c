//! Single objects as the medium has them, read with care: for any words, no address is computed from a number that the
//! geometry does not have.

use crate::layout::{
    Commit, Geometry, InodeRef, Life, PAGE_BYTES, Page, PageState, Place, ROOT, birth_parts, desc,
    inode, last_generation, slot,
};
use crate::words::Words;
use std::collections::BTreeMap;
use steadfast_vfs::FileKind;

/// The root directory: it is born once, by mkfs.
pub(crate) const ROOT_INODE: InodeRef = InodeRef {
    number: ROOT,
    generation: 1,
};

/// A word that refers to an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reference {
    /// To one that is born.
    Alive(InodeRef),
    /// To the next life of an inode: a birth that a crash cut. It is above all generations that the inode's lines have, by 1
    /// at most.
    Next(InodeRef),
    /// To a life after the next one.
    Later(InodeRef),
    /// To a life that is over.
    Past(InodeRef),
    /// To nothing that can be.
    Nothing,
}

impl Reference {
    pub(crate) fn alive(self) -> Option<InodeRef> {
        match self {
            Reference::Alive(inode) => Some(inode),
            _ => None,
        }
    }
}

/// Fields of a page's owner that the state of the page depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) inode: InodeRef,
    pub(crate) kind: Option<FileKind>,
    pub(crate) sequence: u64,
    pub(crate) size: u64,
    /// The bits of the mode that tell the place of the attributes.
    pub(crate) attributes: u64,
}

/// Looks at a volume.
pub(crate) struct Look<'a, M> {
    pub(crate) m: &'a M,
    pub(crate) geometry: Geometry,
    /// Kinds of inodes whose own word is contradicted by their pages.
    pub(crate) kinds: BTreeMap<u32, FileKind>,
}

impl<'a, M: Words> Look<'a, M> {
    pub(crate) fn new(m: &'a M, geometry: Geometry) -> Look<'a, M> {
        Look {
            m,
            geometry,
            kinds: BTreeMap::new(),
        }
    }

    /// Generation and kind of an inode. The number must be one. Of the root they are known.
    pub(crate) fn birth(&self, number: u32) -> (u32, Option<FileKind>) {
        if number == ROOT {
            return (ROOT_INODE.generation, Some(FileKind::Directory));
        }
        birth_parts(self.m.load(self.geometry.inode_at(number) + inode::BIRTH))
    }

    /// The object that a word refers to.
    pub(crate) fn reference(&self, word: u64) -> Reference {
        let Some(inode) = InodeRef::from_word(word) else {
            return Reference::Nothing;
        };
        if !self.geometry.is_inode(inode.number) {
            return Reference::Nothing;
        }
        let (born, _) = self.birth(inode.number);
        match inode.generation.cmp(&born) {
            std::cmp::Ordering::Equal => Reference::Alive(inode),
            std::cmp::Ordering::Less => Reference::Past(inode),
            std::cmp::Ordering::Greater => {
                let at = self.geometry.inode_at(inode.number);
                let [birth, header] =
                    [inode::BIRTH, inode::EXTRA].map(|word| self.m.load(at + word));
                match inode.generation - 1 <= last_generation(birth, header).max(born) {
                    true => Reference::Next(inode),
                    false => Reference::Later(inode),
                }
            }
        }
    }

    /// The kind of a live inode.
    pub(crate) fn kind(&self, number: u32) -> FileKind {
        let decided = self.kinds.get(&number).copied();
        decided
            .or_else(|| self.birth(number).1)
            .unwrap_or(FileKind::Regular)
    }

    /// State of a live inode, by its own words.
    pub(crate) fn owner(&self, inode: InodeRef) -> Owner {
        let at = self.geometry.inode_at(inode.number);
        let word = self.m.load(at + inode::COMMIT);
        let commit = Commit::from_word(word);
        Owner {
            inode,
            kind: self.birth(inode.number).1,
            sequence: commit.sequence,
            size: self.m.load(at + inode::SIZE[commit.parity()]),
            attributes: word >> 12 & 0xf,
        }
    }

    /// A word of a slot.
    pub(crate) fn slot(&self, place: Place, word: u64) -> u64 {
        self.m.load(place.at() + word)
    }

    /// The commit word of a slot.
    pub(crate) fn commit_of(&self, place: Place) -> u64 {
        self.slot(place, slot::COMMIT)
    }

    /// A word of a page's descriptor.
    pub(crate) fn desc(&self, page: Page, word: u64) -> u64 {
        self.m.load(self.geometry.desc_at(page) + word)
    }

    /// Address of a page's life word.
    pub(crate) fn life_at(&self, page: Page) -> u64 {
        self.geometry.desc_at(page) + desc::LIFE
    }

    /// Address of a page's offset word.
    pub(crate) fn offset_at(&self, page: Page) -> u64 {
        self.geometry.desc_at(page) + desc::OFFSET
    }
}

/// The life word of a page that stays in `state`.
pub(crate) fn settled(state: PageState) -> u64 {
    match state {
        PageState::Free => 0,
        state => Life::settled(state).word(),
    }
}

/// Whether a written page at `offset` lies past the end of a file of `size` bytes.
pub(crate) fn past_end(offset: u64, size: u64) -> bool {
    offset.saturating_mul(PAGE_BYTES) >= size
}
