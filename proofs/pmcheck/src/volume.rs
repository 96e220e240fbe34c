//! A small volume: places of its objects. The words and their meanings are those of the layout that ships, which is
//! compiled here; only the numbers of objects differ.
//!
//! [`Layout`] has the differences of the layouts and rules under test.

use crate::pm::{Image, LINE, Store, store};

#[path = "../../../crates/pmfs/src/layout.rs"]
#[allow(dead_code)]
pub mod words;

use words::{
    Commit, DESC_BYTES, INODE_BYTES, Life, PageKind, PageOffset, PageState, Place,
    inode as inode_word,
};

/// Inodes, numbered from 1, the root.
pub const INODES: u64 = 7;
/// Pages; even, so that their descriptors fill lines.
pub const PAGES: usize = 8;
/// Slots of a directory page.
pub const SLOTS: usize = 4;
/// Words of data in a page. They lie over the first words of its first slot: data can be made to look like a name.
pub const PAGE_WORDS: usize = 2;

const DESCS_AT: usize = INODES as usize * INODE_BYTES as usize / 8;
const PAGES_AT: usize = DESCS_AT + PAGES * DESC_BYTES as usize / 8;
const STRIDE: usize = SLOTS * 2 * LINE;
/// Words of the region.
pub const WORDS: usize = PAGES_AT + PAGES * STRIDE;

/// Kind in a birth word: nothing was ever born here.
pub const UNBORN: u64 = 0;
/// Kind in a birth word.
pub const FILE: u64 = 1;
/// Kind in a birth word.
pub const DIRECTORY: u64 = 2;
/// Kind in a birth word.
pub const SYMLINK: u64 = 3;
/// Kind in a birth word: the device 0:0, which hides a name.
pub const WHITEOUT: u64 = 4;

/// The birth word.
pub fn birth(generation: u64, kind: u64) -> u64 {
    generation << 32 | kind << 24
}

/// Its generation.
pub fn generation_of(birth: u64) -> u64 {
    birth >> 32
}

/// Its kind.
pub fn kind_of(birth: u64) -> u64 {
    birth >> 24 & 0xff
}

/// The first word of an inode's second line.
pub fn extra(generation: u64, inline_len: u64) -> u64 {
    generation << 32 | inline_len
}

/// A slot: page and number in it.
pub type Slot = (usize, usize);

/// Address of a word of inode `number`.
pub fn inode(number: u64, byte: u64) -> usize {
    ((number - 1) * INODE_BYTES + byte) as usize / 8
}

/// Address of a word of a page's descriptor.
pub fn desc(page: usize, byte: u64) -> usize {
    DESCS_AT + (page as u64 * DESC_BYTES + byte) as usize / 8
}

/// Address of a word of data.
pub fn data(page: usize, word: usize) -> usize {
    PAGES_AT + page * STRIDE + word
}

/// The number of a slot, as rename pointers have it.
pub fn place(slot: Slot) -> Place {
    Place((slot.0 * SLOTS + slot.1) as u64)
}

/// The slot of that number, if there is one.
pub fn slot_of(place: Place) -> Option<Slot> {
    let slot = (place.0 as usize / SLOTS, place.0 as usize % SLOTS);
    (slot.0 < PAGES).then_some(slot)
}

/// Slot that gets a new tag when a name comes to stand for another inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bump {
    /// Both of the following.
    Both,
    /// The source of an exchange, after its commit word.
    Source,
    /// The target that a rename or an exchange takes over.
    Target,
    /// Nothing.
    Never,
}

impl Bump {
    /// Whether the source of an exchange gets one.
    pub fn source(self) -> bool {
        matches!(self, Bump::Both | Bump::Source)
    }

    /// Whether a target that is taken over gets one.
    pub fn target(self) -> bool {
        matches!(self, Bump::Both | Bump::Target)
    }
}

/// Link counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// Counted at mount.
    Derived,
    /// Stored, and recounted at mount.
    Recounted,
    /// Stored and trusted.
    Trusted,
}

/// Tags that a mount looks at to find the first unused tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagsAbove {
    /// Every slot that names something: its own tag and that of its pointer.
    Live,
    /// The same without the pointers' tags.
    LiveOwn,
    /// The same without the slots' own tags.
    LivePointers,
}

/// An inode whose second line was lost in a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecondLine {
    /// The inode counts, without the content of that line.
    Optional,
    /// A symlink's inode, or one with inline attributes, was never born without it.
    Needed,
}

/// Recovery: the right one and mutations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// Finishes renames, tidies; one fence. Rename pointers stay.
    Right,
    /// Also clears rename pointers, after a fence.
    ClearsPointers,
    /// Clears them in the same fence.
    ClearsInOneFence,
    /// Clears them first.
    ClearsFirst,
    /// Leaves its tag to a slot that a pointer could bring back to its old inode.
    KeepsTags,
    /// Leaves names of inodes that do not exist.
    KeepsDangling,
    /// Leaves marks of changes that did not commit.
    KeepsMarks,
    /// Leaves descriptors of inodes that were never born.
    KeepsFuture,
    /// Leaves the pages of directories that the root does not lead to.
    KeepsDirPages,
}

/// Differences of layouts and rules under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Slots and descriptors carry the inode's generation. Otherwise free means all zero.
    pub generations: bool,
    /// Rename pointers carry their source's tag. Otherwise they must be cleared.
    pub tags: bool,
    /// Slot that gets a new tag.
    pub bump: Bump,
    /// The pointer is cleared before its second word changes.
    pub clear_first: bool,
    /// The source of an exchange loses its own pointer.
    pub swap_clears: bool,
    /// The pages of a directory die with its name. Otherwise they are free as they are.
    pub kills: bool,
    /// Rename pointers count only in directories that the root leads to. Otherwise in all that were born last.
    pub from_root: bool,
    /// Slots of 128 bytes: the name in one line, commit word and pointer in the next.
    pub wide: bool,
    /// Link counts.
    pub links: Links,
    /// A written page past the end of its file is free.
    pub past_end: bool,
    /// A page of attributes is free if the mode does not say that there are any.
    pub attributes_by_mode: bool,
    /// No death marks: of two pages at one offset the later one counts.
    pub later_wins: bool,
    /// Tags that a mount looks at to find the first unused tag.
    pub above: TagsAbove,
    /// An inode whose second line was lost.
    pub second_line: SecondLine,
    /// A new generation is above those of both lines. Otherwise above that of the first.
    pub above_both: bool,
    /// The second line is invalidated before it is written.
    pub kill_extra: bool,
    /// After the last generation comes the first again. Otherwise the inode is never used again.
    pub wrap: bool,
    /// Times are stored and compared.
    pub times: bool,
    /// Recovery.
    pub recovery: Recovery,
}

/// The layout and the rules of the file system.
pub const RECOMMENDED: Layout = Layout {
    generations: true,
    tags: true,
    bump: Bump::Both,
    clear_first: true,
    swap_clears: true,
    kills: true,
    from_root: false,
    wide: false,
    links: Links::Derived,
    past_end: true,
    attributes_by_mode: false,
    later_wins: false,
    above: TagsAbove::Live,
    second_line: SecondLine::Optional,
    above_both: false,
    kill_extra: false,
    wrap: false,
    times: false,
    recovery: Recovery::Right,
};

/// As published: SquirrelFS §3.1 and §3.4.
pub const PUBLISHED: Layout = Layout {
    generations: false,
    tags: false,
    bump: Bump::Never,
    wide: true,
    links: Links::Trusted,
    recovery: Recovery::ClearsPointers,
    ..RECOMMENDED
};

/// Place of link counts in layouts that do not derive them: they have no times.
pub const LINKS: u64 = inode_word::MTIME;
/// Attributes of a new object: owner 7, mode 644.
pub const NEW: u64 = 0x7644;

impl Layout {
    /// Address of a word of a slot.
    pub fn slot(&self, slot: Slot, byte: u64) -> usize {
        let word = byte as usize / 8;
        if !self.wide {
            return PAGES_AT + slot.0 * STRIDE + slot.1 * LINE + word;
        }
        // Commit word and pointer share the second line.
        let line = if word < 3 { LINE } else { 0 };
        PAGES_AT + slot.0 * STRIDE + slot.1 * 2 * LINE + line + word
    }

    /// Content of a slot or descriptor that means inode `number`.
    pub fn key(&self, image: &Image, number: u64) -> u64 {
        let birth = image[inode(number, inode_word::BIRTH)];
        number << 32
            | if self.generations {
                generation_of(birth)
            } else {
                0
            }
    }

    /// The generation of an inode's last life, born or not. The next one is above it.
    pub fn last_generation(&self, image: &Image, number: u64) -> u64 {
        let born = generation_of(image[inode(number, inode_word::BIRTH)]);
        let tried = image[inode(number, inode_word::EXTRA)] >> 32;
        if self.above_both {
            born.max(tried)
        } else {
            born
        }
    }

    /// A new volume: the root, with one page.
    pub fn mkfs(&self) -> Image {
        let mut image = Image::new(WORDS);
        let commit = Commit {
            sequence: 0,
            perm: NEW as u16 & 0xfff,
            attributes: words::AttributePlace::None,
        };
        image.apply(&[
            store(inode(1, inode_word::BIRTH), birth(1, DIRECTORY)),
            store(inode(1, inode_word::COMMIT), commit.word()),
            store(inode(1, inode_word::OWNER[0]), NEW >> 12),
        ]);
        if self.times {
            image.apply(&[
                store(inode(1, inode_word::MTIME), 1),
                store(inode(1, inode_word::CTIME), 1),
                store(inode(1, inode_word::BTIME), 1),
                store(inode(1, inode_word::ATIME), 1),
                store(inode(1, inode_word::EXTRA), extra(1, 0)),
            ]);
        } else if self.links != Links::Derived {
            image.set(inode(1, LINKS), 2);
        }
        let key = self.key(&image, 1);
        image.apply(&page_of(
            0,
            key,
            0,
            PageKind::Directory,
            Life::settled(PageState::Written),
        ));
        image
    }
}

/// The words that give a page to an object.
pub fn page_of(page: usize, key: u64, offset: u64, kind: PageKind, life: Life) -> [Store; 3] {
    [
        store(desc(page, words::desc::OWNER), key),
        store(
            desc(page, words::desc::OFFSET),
            PageOffset { offset, kind }.word(),
        ),
        store(desc(page, words::desc::LIFE), life.word()),
    ]
}
