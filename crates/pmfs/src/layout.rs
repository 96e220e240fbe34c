//! The bytes of a volume on persistent memory: the place of each object and the meaning of its words.
//!
//! Everything is little-endian and made of words of 8 bytes. A cache line has 8 of them. The order in which words become
//! durable is the subject of [`crate::state`]; this module only names them.
//!
//! # The region
//!
//! A region consists of pages of 4 KiB, in *chunks* of a power of two of pages. Each chunk has tables for itself, so that a
//! region grows by further chunks. The last chunk may be cut off after any page that lies past its tables.
//!
//! ```text
//! chunk:  page 0      superblock        (chunk 0; unused in others)
//!         page 1      its copy          (chunk 0; unused in others)
//!         page 2 ..   inode table       inodes_per_chunk x 128 bytes, whole pages
//!         then        descriptor table  one of 32 bytes for each page of the chunk, whole pages
//!         then        pages             file data, directory slots, attributes
//! ```
//!
//! # Superblock, 4 KiB
//!
//! | byte | content |
//! |---|---|
//! | 0 | magic `StdfstPM` |
//! | 8 | version 32, features 32 |
//! | 16, 24 | UUID |
//! | 32 – 63 | label, zero-padded UTF-8 |
//! | 64 | pages of the region |
//! | 72 | pages of a chunk |
//! | 80 | inodes of a chunk |
//! | 88 | checksum of bytes 0 – 87 and 96 – 127 (XXH3, 64 bits) |
//! | 96 – 127 | zero |
//! | 128 | 1 after a clean unmount, else 0; a hint |
//! | 136 | mounts so far; a hint |
//!
//! Lines 0 and 1 change only when the region grows: first the copy, then, after a fence, the superblock. The first of the two
//! that has its checksum counts. Hints are kept in page 0 alone.
//!
//! # Inode, 128 bytes
//!
//! | byte | content |
//! |---|---|
//! | 0 | birth: generation 32, kind 8, zero 24 (from the most significant bit down) |
//! | 8 | commit: sequence 48, mode 16 |
//! | 16, 24 | size, two slots; of devices: the device number |
//! | 32, 40 | owner {uid 32, gid 32}, two slots |
//! | 48, 56 | mtime, ctime |
//! | 64 | extra: generation 32, zero 16, bytes of inline attributes 16 |
//! | 72, 80 | btime, atime |
//! | 88 – 127 | a symlink's target of at most 40 bytes, or an inline set of attributes |
//!
//! The slot with the parity of the sequence counts. A mode is 12 permission bits and the place of the extended attributes.
//! Line 1 counts only if its generation equals that of the birth word. Times are nanoseconds since 1970 as a signed number.
//! An inode is alive if it has a name, or is open; that is nowhere stored.
//!
//! # Page descriptor, 32 bytes
//!
//! | byte | content |
//! |---|---|
//! | 0 | owner {inode 32, generation 32} |
//! | 8 | offset in pages 48, kind 8, zero 8 |
//! | 16 | life: at 60, cur 2, next 2: the state is `next` once the owner's sequence has reached `at`, before that `cur` |
//! | 24 | zero |
//!
//! A written page past the end of its file is free.
//!
//! # Directory slot, 64 bytes
//!
//! | byte | content |
//! |---|---|
//! | 0 | commit word {inode 32, generation 32}; 0 if the slot names nothing |
//! | 8 | rename pointer {tag high 16, exchange 8, place 40} |
//! | 16 | {inode of an exchange 32, tag low 32} |
//! | 24 | own tag 48, length of the name 8, hash of the name 8 |
//! | 32 – 63 | the name's first 32 bytes, zero-padded |
//!
//! A longer name goes on in the following slots of the page, 56 bytes each from byte 8 on; their first word is 0.
//! A place is the number of a slot in the region, 64 in a page, plus 1.

use std::ops::Range;
use steadfast_vfs::FileKind;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// Bytes of an inode.
pub const INODE_BYTES: u64 = 128;
/// Bytes of a page descriptor.
pub const DESC_BYTES: u64 = 32;
/// Bytes of a directory slot.
pub const SLOT_BYTES: u64 = 64;
/// Slots of a directory page.
pub const SLOTS_PER_PAGE: u64 = PAGE_BYTES / SLOT_BYTES;
/// First bytes of a volume.
pub const MAGIC: u64 = u64::from_le_bytes(*b"StdfstPM");
/// Version of the format.
pub const VERSION: u32 = 1;
/// Features that this program knows; a volume with others is refused.
pub const FEATURES: u32 = 0;
/// Pages of a chunk, unless the region is smaller.
pub const CHUNK_PAGES: u64 = 1 << 14;
/// Bytes of region for each inode, unless chosen otherwise.
pub const BYTES_PER_INODE: u64 = 16 << 10;
/// Smallest region.
pub const REGION_BYTES_MIN: u64 = 256 << 10;
/// Largest region: slots have 40 bits.
pub const REGION_BYTES_MAX: u64 = 1 << 45;
/// Pages before the tables of a chunk.
const SUPERBLOCK_PAGES: u64 = 2;
/// Longest label in bytes.
pub const LABEL_BYTES: usize = 32;
/// Number of the root directory.
pub const ROOT: u32 = 1;
/// Bytes of a name in its first slot.
pub const NAME_HEAD: usize = 32;
/// Bytes of a name in each further slot.
pub const NAME_CONT: usize = 56;
/// Bytes in an inode for a symlink's target or attributes.
pub const INLINE_BYTES: usize = 40;
/// Largest size of a file: page offsets have 48 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 60;
/// Largest sequence of an inode.
pub const SEQUENCE_MAX: u64 = (1 << 48) - 1;
/// Largest tag of a slot.
pub const TAG_MAX: u64 = (1 << 48) - 1;

/// Byte offsets in the superblock.
pub mod superblock {
    #![allow(missing_docs)]
    pub const MAGIC: u64 = 0;
    pub const VERSION: u64 = 8;
    pub const UUID: u64 = 16;
    pub const LABEL: u64 = 32;
    pub const PAGES: u64 = 64;
    pub const CHUNK_PAGES: u64 = 72;
    pub const CHUNK_INODES: u64 = 80;
    pub const CHECKSUM: u64 = 88;
    pub const CLEAN: u64 = 128;
    pub const MOUNTS: u64 = 136;
}

/// Byte offsets in an inode.
pub mod inode {
    #![allow(missing_docs)]
    pub const BIRTH: u64 = 0;
    pub const COMMIT: u64 = 8;
    pub const SIZE: [u64; 2] = [16, 24];
    pub const OWNER: [u64; 2] = [32, 40];
    pub const MTIME: u64 = 48;
    pub const CTIME: u64 = 56;
    pub const EXTRA: u64 = 64;
    pub const BTIME: u64 = 72;
    pub const ATIME: u64 = 80;
    pub const INLINE: u64 = 88;
}

/// Byte offsets in a page descriptor.
pub mod desc {
    #![allow(missing_docs)]
    pub const OWNER: u64 = 0;
    pub const OFFSET: u64 = 8;
    pub const LIFE: u64 = 16;
}

/// Byte offsets in a directory slot.
pub mod slot {
    #![allow(missing_docs)]
    pub const COMMIT: u64 = 0;
    pub const POINTER: u64 = 8;
    pub const OTHER: u64 = 16;
    pub const TAG: u64 = 24;
    pub const NAME: u64 = 32;
    pub const CONT: u64 = 8;
}

/// An inode of one generation, which slots and descriptors name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InodeRef {
    /// Number, from 1.
    pub number: u32,
    /// Generation, from 1.
    pub generation: u32,
}

impl InodeRef {
    /// As a word; never 0.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.generation)
    }

    /// From a word; `None` if that names nothing.
    #[must_use]
    pub fn from_word(word: u64) -> Option<InodeRef> {
        let named = InodeRef {
            number: (word >> 32) as u32,
            generation: word as u32,
        };
        (named.number != 0 && named.generation != 0).then_some(named)
    }
}

/// The birth word of an inode.
#[must_use]
pub fn birth_word(generation: u32, kind: FileKind) -> u64 {
    u64::from(generation) << 32 | (kind as u64) << 24
}

/// Generation and kind of a birth word. An inode that was never born has generation 0 and no kind.
#[must_use]
pub fn birth_parts(word: u64) -> (u32, Option<FileKind>) {
    let kind = match word >> 24 & 0xff {
        1 => Some(FileKind::Regular),
        2 => Some(FileKind::Directory),
        3 => Some(FileKind::Symlink),
        4 => Some(FileKind::CharDevice),
        5 => Some(FileKind::BlockDevice),
        6 => Some(FileKind::Fifo),
        7 => Some(FileKind::Socket),
        _ => None,
    };
    ((word >> 32) as u32, kind)
}

/// The last generation that a birth may have been stored of, in either line of an inode: its birth word, and the header of its
/// second line. A crash may have kept one line of a birth and lost the other.
#[must_use]
pub fn last_generation(birth: u64, header: u64) -> u32 {
    (birth >> 32).max(header >> 32) as u32
}

/// A page of the region, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Page(pub u64);

impl Page {
    /// Its first byte.
    #[must_use]
    pub fn at(self) -> u64 {
        self.0 * PAGE_BYTES
    }
}

/// A directory slot of the region, by number: 64 in a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(pub u64);

impl Place {
    /// The slot `index` of a page.
    #[must_use]
    pub fn new(page: Page, index: u64) -> Place {
        Place(page.0 * SLOTS_PER_PAGE + index)
    }

    /// Its page.
    #[must_use]
    pub fn page(self) -> Page {
        Page(self.0 / SLOTS_PER_PAGE)
    }

    /// Its number in the page.
    #[must_use]
    pub fn index(self) -> u64 {
        self.0 % SLOTS_PER_PAGE
    }

    /// Its first byte.
    #[must_use]
    pub fn at(self) -> u64 {
        self.0 * SLOT_BYTES
    }
}

/// The hash of a name in its slot's tag word: the low byte of XXH3.
#[must_use]
pub fn name_hash(name: &[u8]) -> u8 {
    xxhash_rust::xxh3::xxh3_64(name) as u8
}

/// Slots that a name of this length takes.
#[must_use]
pub fn slots_of(name_len: usize) -> usize {
    1 + name_len.saturating_sub(NAME_HEAD).div_ceil(NAME_CONT)
}

/// State of a page in the life of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageState {
    /// The page is no part of an inode.
    Free = 0,
    /// Allocated, reads as zeros.
    Unwritten = 1,
    /// Part of the content.
    Written = 2,
}

impl PageState {
    fn from_bits(bits: u64) -> PageState {
        match bits & 3 {
            1 => PageState::Unwritten,
            2 => PageState::Written,
            _ => PageState::Free,
        }
    }
}

/// The life word of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Sequence of the owner from which on `next` counts.
    pub at: u64,
    /// State before that.
    pub cur: PageState,
    /// State from then on.
    pub next: PageState,
}

impl Life {
    /// A state that no commit changes.
    #[must_use]
    pub fn settled(state: PageState) -> Life {
        Life {
            at: 0,
            cur: state,
            next: state,
        }
    }

    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.at << 4 | (self.cur as u64) << 2 | self.next as u64
    }

    /// From a word.
    #[must_use]
    pub fn from_word(word: u64) -> Life {
        Life {
            at: word >> 4,
            cur: PageState::from_bits(word >> 2),
            next: PageState::from_bits(word),
        }
    }

    /// The state when the owner's sequence is `sequence`.
    #[must_use]
    pub fn state(self, sequence: u64) -> PageState {
        if sequence >= self.at {
            self.next
        } else {
            self.cur
        }
    }
}

/// Kind of a page's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// Content of a file, or a symlink's long target.
    Data = 1,
    /// Directory slots.
    Directory = 2,
    /// Extended attributes.
    Attributes = 3,
}

/// The offset word of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageOffset {
    /// Offset in its object, in pages.
    pub offset: u64,
    /// Kind of the page's content.
    pub kind: PageKind,
}

impl PageOffset {
    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.offset << 16 | (self.kind as u64) << 8
    }

    /// From a word; `None` if the kind is unknown.
    #[must_use]
    pub fn from_word(word: u64) -> Option<PageOffset> {
        let kind = match word >> 8 & 0xff {
            1 => PageKind::Data,
            2 => PageKind::Directory,
            3 => PageKind::Attributes,
            _ => return None,
        };
        Some(PageOffset {
            offset: word >> 16,
            kind,
        })
    }
}

/// Place of an inode's extended attributes; part of its mode word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum AttributePlace {
    /// There are none.
    #[default]
    None = 0,
    /// In the inode's second line.
    Inline = 1,
    /// In pages of kind [`PageKind::Attributes`].
    Pages = 2,
}

/// The commit word of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Counts the changes of this life.
    pub sequence: u64,
    /// Permission bits, 12.
    pub perm: u16,
    /// Place of the extended attributes.
    pub attributes: AttributePlace,
}

impl Commit {
    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.sequence << 16 | (self.attributes as u64) << 12 | u64::from(self.perm & 0o7777)
    }

    /// From a word.
    #[must_use]
    pub fn from_word(word: u64) -> Commit {
        Commit {
            sequence: word >> 16,
            perm: (word & 0o7777) as u16,
            attributes: match word >> 12 & 3 {
                1 => AttributePlace::Inline,
                2 => AttributePlace::Pages,
                _ => AttributePlace::None,
            },
        }
    }

    /// Index of the slot that counts, of two.
    #[must_use]
    pub fn parity(self) -> usize {
        (self.sequence & 1) as usize
    }
}

/// A rename pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pointer {
    /// The slot that the name comes from.
    pub from: Place,
    /// That slot's tag at the time.
    pub tag: u64,
    /// Number of the inode that the other slot is to name, in an exchange.
    pub exchange: Option<u32>,
}

impl Pointer {
    /// As the two words of a slot.
    #[must_use]
    pub fn words(self) -> (u64, u64) {
        let exchange = u64::from(self.exchange.is_some());
        (
            self.tag >> 32 << 48 | exchange << 40 | (self.from.0 + 1),
            u64::from(self.exchange.unwrap_or(0)) << 32 | self.tag & 0xffff_ffff,
        )
    }

    /// From the two words; `None` if there is none.
    #[must_use]
    pub fn from_words(pointer: u64, other: u64) -> Option<Pointer> {
        let place = (pointer & ((1 << 40) - 1)).checked_sub(1)?;
        Some(Pointer {
            from: Place(place),
            tag: pointer >> 48 << 32 | other & 0xffff_ffff,
            exchange: (pointer >> 40 & 0xff != 0).then_some((other >> 32) as u32),
        })
    }
}

/// The tag word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Distinguishes the lives of a slot.
    pub tag: u64,
    /// Bytes of the name.
    pub len: u8,
    /// Hash of the name.
    pub hash: u8,
}

impl Tag {
    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        self.tag << 16 | u64::from(self.len) << 8 | u64::from(self.hash)
    }

    /// From a word.
    #[must_use]
    pub fn from_word(word: u64) -> Tag {
        Tag {
            tag: word >> 16,
            len: (word >> 8) as u8,
            hash: word as u8,
        }
    }
}

/// Places of a region's objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Pages of the region.
    pub pages: u64,
    /// Pages of a chunk, a power of two.
    pub chunk_pages: u64,
    /// Inodes of a chunk.
    pub chunk_inodes: u64,
}

impl Geometry {
    /// The geometry of a new volume of this size, with an inode for each `bytes_per_inode`. `None` if the size is
    /// outside [`REGION_BYTES_MIN`] and [`REGION_BYTES_MAX`], or not even one page would be left.
    #[must_use]
    pub fn new(bytes: u64, bytes_per_inode: u64) -> Option<Geometry> {
        if !(REGION_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes) || bytes_per_inode < INODE_BYTES
        {
            return None;
        }
        let pages = bytes / PAGE_BYTES;
        let chunk_pages = CHUNK_PAGES.min(pages.next_power_of_two());
        // Whole pages of inodes, and at least 32 inodes.
        let per_page = PAGE_BYTES / INODE_BYTES;
        let wanted = (chunk_pages * PAGE_BYTES / bytes_per_inode).max(1);
        Geometry {
            pages,
            chunk_pages,
            chunk_inodes: wanted.next_multiple_of(per_page),
        }
        .checked()
    }

    /// The same if it is one that a volume may have, with its unusable rest cut off.
    #[must_use]
    pub fn checked(mut self) -> Option<Geometry> {
        let sound = self.chunk_pages.is_power_of_two()
            && (64..=CHUNK_PAGES).contains(&self.chunk_pages)
            && self.pages <= REGION_BYTES_MAX / PAGE_BYTES
            && self.chunk_inodes > 0
            && self.chunk_inodes.is_multiple_of(PAGE_BYTES / INODE_BYTES)
            && self.chunk_inodes <= self.chunk_pages * PAGE_BYTES / INODE_BYTES;
        if !sound || self.first_page() >= self.chunk_pages {
            return None;
        }
        // A last chunk without a page for data is no chunk.
        let rest = self.pages % self.chunk_pages;
        if rest <= self.first_page() {
            self.pages -= rest;
        }
        let inodes = self.chunks() * self.chunk_inodes;
        (self.pages > 0 && inodes < u64::from(u32::MAX)).then_some(self)
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.pages.div_ceil(self.chunk_pages)
    }

    fn inode_pages(&self) -> u64 {
        self.chunk_inodes * INODE_BYTES / PAGE_BYTES
    }

    fn desc_pages(&self) -> u64 {
        (self.chunk_pages * DESC_BYTES).div_ceil(PAGE_BYTES)
    }

    /// First page in a chunk past its tables.
    fn first_page(&self) -> u64 {
        SUPERBLOCK_PAGES + self.inode_pages() + self.desc_pages()
    }

    /// The pages of a chunk that hold data.
    #[must_use]
    pub fn data_pages(&self, chunk: u64) -> Range<u64> {
        let base = chunk * self.chunk_pages;
        base + self.first_page()..(base + self.chunk_pages).min(self.pages)
    }

    /// Pages for data in the whole region.
    #[must_use]
    pub fn data_pages_total(&self) -> u64 {
        (0..self.chunks())
            .map(|chunk| self.data_pages(chunk))
            .map(|pages| pages.end - pages.start)
            .sum()
    }

    /// Whether a page is one for data.
    #[must_use]
    pub fn is_data_page(&self, page: Page) -> bool {
        page.0 < self.pages && page.0 & (self.chunk_pages - 1) >= self.first_page()
    }

    /// The tables of a chunk, in bytes of the region: inodes, then descriptors.
    #[must_use]
    pub fn tables(&self, chunk: u64) -> Range<u64> {
        let base = chunk * self.chunk_pages;
        (base + SUPERBLOCK_PAGES) * PAGE_BYTES..(base + self.first_page()) * PAGE_BYTES
    }

    /// Number of inodes; they are numbered from 1 to this.
    #[must_use]
    pub fn inodes(&self) -> u32 {
        (self.chunks() * self.chunk_inodes) as u32
    }

    /// Whether there is an inode of this number.
    #[must_use]
    #[inline]
    pub fn is_inode(&self, number: u32) -> bool {
        (1..=self.inodes()).contains(&number)
    }

    /// First byte of an inode. The number must be one: [`Geometry::is_inode`].
    #[must_use]
    #[inline]
    pub fn inode_at(&self, number: u32) -> u64 {
        // Of 32 bits, because that division is the faster one.
        let (index, chunk_inodes) = (number - 1, self.chunk_inodes as u32);
        let (chunk, index) = (index / chunk_inodes, index % chunk_inodes);
        (u64::from(chunk) * self.chunk_pages + SUPERBLOCK_PAGES) * PAGE_BYTES
            + u64::from(index) * INODE_BYTES
    }

    /// First byte of a page's descriptor.
    #[must_use]
    #[inline]
    pub fn desc_at(&self, page: Page) -> u64 {
        let index = page.0 & (self.chunk_pages - 1);
        let table = (page.0 - index) + SUPERBLOCK_PAGES + self.inode_pages();
        table * PAGE_BYTES + index * DESC_BYTES
    }

    /// Whether a slot may hold a name: it lies in a page for data.
    #[must_use]
    pub fn is_place(&self, place: Place) -> bool {
        self.is_data_page(place.page())
    }
}

/// A time as it is stored, from seconds and nanoseconds; one that does not fit becomes the nearest that does.
#[must_use]
pub fn time_word(secs: i64, nanos: u32) -> u64 {
    let exact = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
    exact.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64 as u64
}

/// Seconds and nanoseconds of a stored time.
#[must_use]
pub fn time_parts(word: u64) -> (i64, u32) {
    let nanos = word as i64;
    (
        nanos.div_euclid(1_000_000_000),
        nanos.rem_euclid(1_000_000_000) as u32,
    )
}

const _: () = {
    assert!(SLOTS_PER_PAGE == 64);
    assert!(NAME_HEAD + 4 * NAME_CONT >= 255);
    assert!(REGION_BYTES_MAX / SLOT_BYTES < 1 << 40);
    assert!(inode::INLINE + INLINE_BYTES as u64 == INODE_BYTES);
    assert!(slot::CONT + NAME_CONT as u64 == SLOT_BYTES);
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_come_back_as_they_were() {
        let life = Life {
            at: 77,
            cur: PageState::Unwritten,
            next: PageState::Written,
        };
        assert_eq!(Life::from_word(life.word()), life);
        assert_eq!(
            (life.state(76), life.state(77)),
            (PageState::Unwritten, PageState::Written)
        );
        let commit = Commit {
            sequence: SEQUENCE_MAX,
            perm: 0o7654,
            attributes: AttributePlace::Pages,
        };
        assert_eq!(Commit::from_word(commit.word()), commit);
        for exchange in [None, Some(5)] {
            let pointer = Pointer {
                from: Place((1 << 39) + 3),
                tag: TAG_MAX - 5,
                exchange,
            };
            let (one, two) = pointer.words();
            assert_eq!(Pointer::from_words(one, two), Some(pointer));
        }
        assert_eq!(Pointer::from_words(0, 9), None);
        let tag = Tag {
            tag: TAG_MAX,
            len: 255,
            hash: 9,
        };
        assert_eq!(Tag::from_word(tag.word()), tag);
        for time in [(0, 0), (-1, 999_999_999), (1_700_000_000, 5)] {
            assert_eq!(time_parts(time_word(time.0, time.1)), time);
        }
        assert_eq!(time_word(i64::MAX, 0), i64::MAX as u64);
    }

    #[test]
    fn objects_of_a_region_do_not_overlap() {
        for (bytes, per_inode) in [
            (256 << 10, 16 << 10),
            (3 << 20, 4096),
            (200 << 20, 16 << 10),
        ] {
            let geometry = Geometry::new(bytes, per_inode).unwrap();
            assert!(geometry.pages * PAGE_BYTES <= bytes);
            for chunk in 0..geometry.chunks() {
                let (tables, data) = (geometry.tables(chunk), geometry.data_pages(chunk));
                assert!(tables.end <= data.start * PAGE_BYTES && !data.is_empty());
                let last = ((chunk + 1) * geometry.chunk_inodes) as u32;
                let first = (chunk * geometry.chunk_inodes + 1) as u32;
                assert_eq!(geometry.inode_at(first), tables.start);
                let descs = geometry.desc_at(Page(chunk * geometry.chunk_pages));
                assert_eq!(geometry.inode_at(last) + INODE_BYTES, descs);
                assert!(geometry.desc_at(Page(data.end - 1)) + DESC_BYTES <= tables.end);
                assert!(
                    geometry.is_data_page(Page(data.start))
                        && !geometry.is_data_page(Page(data.start - 1))
                );
            }
        }
        assert!(Geometry::new(REGION_BYTES_MIN - 1, 16 << 10).is_none());
    }

    #[test]
    fn names_take_as_many_slots_as_they_need() {
        assert_eq!([1, 32, 33, 88, 89, 255].map(slots_of), [1, 1, 2, 2, 3, 5]);
    }
}
