//! Inspects a volume that is not mounted, for tools: its parameters and use, single objects as their words say, and the
//! map of all pages. Stores nothing. Every structure has public fields, so that a tool prints it as it likes.
//!
//! Objects are reported as stored, valid or not; [`info`] and [`Inspector::map`] report how a mount would read them.

use crate::error::Error;
use crate::fsck::{Problem, Severity};
use crate::index::name;
use crate::layout::{
    Commit, Geometry, InodeRef, Life, Page, PageKind, PageOffset, PageState, Place, Pointer, Tag,
    desc, inode, name_hash, slot,
};
use crate::mount::look::Look;
use crate::mount::scan::{Scan, scan};
use crate::mount::workers::Workers;
use crate::state::Medium;
use crate::superblock::{self, Found, Hints, Superblock};
use crate::table::Content;
use std::collections::BTreeMap;
use std::ops::Range;
use steadfast_pm::Region;
use steadfast_vfs::FileKind;

/// A volume that is looked at.
pub struct Inspector {
    medium: Medium,
    found: Found,
}

/// Identity and usage of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Content of its superblock.
    pub superblock: Superblock,
    /// Hints of the last mount.
    pub hints: Hints,
    /// Faults of the superblock and of its copy.
    pub superblock_damage: [Option<String>; 2],
    /// Bytes of the region, which may be longer than the volume.
    pub region_bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Pages for files and directories.
    pub data_pages: u64,
    /// Free pages.
    pub free_pages: u64,
    /// Inodes that there are room for.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Inodes in use, by kind.
    pub kinds: BTreeMap<FileKind, u64>,
    /// Findings that the next mount will have, by kind.
    pub counts: BTreeMap<Problem, u64>,
    /// Number of those that are damage.
    pub damage: u64,
}

/// An inode, as its words say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeDump {
    /// Number.
    pub number: u32,
    /// First byte.
    pub address: u64,
    /// Generation; 0 if it was never born.
    pub generation: u32,
    /// Kind of the inode; `None` if that is unknown.
    pub kind: Option<FileKind>,
    /// Changes of this life.
    pub sequence: u64,
    /// Permission bits.
    pub perm: u16,
    /// Place of the extended attributes: 0 none, 1 inline, 2 in pages.
    pub attributes: u8,
    /// Size in bytes; of a device its number. That which counts, and that which the next change overwrites.
    pub sizes: [u64; 2],
    /// Owner and group, likewise.
    pub owners: [(u32, u32); 2],
    /// Time of the last change of content, in nanoseconds since 1970.
    pub mtime: i64,
    /// Time of the last change.
    pub ctime: i64,
    /// Time of birth.
    pub btime: i64,
    /// Time of the last access.
    pub atime: i64,
    /// The second line, from `btime` on, is of this life.
    pub second_line_counts: bool,
    /// Bytes of inline attributes.
    pub inline_len: u16,
    /// The 40 bytes for a target or for attributes.
    pub inline: Vec<u8>,
}

/// A page's descriptor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageDump {
    /// Number.
    pub page: Page,
    /// First byte.
    pub address: u64,
    /// First byte of the descriptor.
    pub descriptor: u64,
    /// Owner; `None` if the word names nothing.
    pub owner: Option<InodeRef>,
    /// The owner's generation is the one that is alive.
    pub owner_alive: bool,
    /// Offset in the owner, in pages.
    pub offset: u64,
    /// Kind of its content; `None` if that is unknown.
    pub kind: Option<PageKind>,
    /// Its life word.
    pub life: Life,
    /// Its state now, if its owner is alive: the past of the end of a file is not looked at.
    pub state: Option<PageState>,
}

/// A directory slot, as its words say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotDump {
    /// Number.
    pub place: Place,
    /// First byte.
    pub address: u64,
    /// The commit word.
    pub inode: Option<InodeRef>,
    /// The inode is alive.
    pub inode_alive: bool,
    /// The rename pointer.
    pub pointer: Option<Pointer>,
    /// The tag word.
    pub tag: Tag,
    /// The hash of the name is the one in the tag word.
    pub hash_matches: bool,
    /// The name, if it is one.
    pub name: Option<Vec<u8>>,
    /// Slots that it takes.
    pub slots: u64,
}

/// Use of some pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PageUse {
    /// Superblock and its copy; in chunks after the first: nothing.
    Superblock,
    /// Inodes and descriptors.
    Tables,
    /// Nothing.
    Free,
    /// Names of a directory.
    Directory {
        /// The directory.
        inode: u32,
    },
    /// Content of a file.
    Data {
        /// The file.
        inode: u32,
        /// Offset of the first page, in pages.
        offset: u64,
        /// They are allocated, but read as zeros.
        unwritten: bool,
    },
    /// Extended attributes.
    Attributes {
        /// The inode that has them.
        inode: u32,
    },
}

/// Pages in a row with one use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapRun {
    /// The pages.
    pub pages: Range<u64>,
    /// Their use.
    pub what: PageUse,
}

/// Reports the parameters and the use of the volume in `region`. Looks at all of it.
///
/// # Errors
/// As for a mount, but damage is no error: it is reported.
pub fn info(
    region: Region,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<VolumeInfo, Error> {
    let inspector = Inspector::open(region)?;
    let scan = inspector.scan(threads, progress)?;
    let mut kinds: BTreeMap<FileKind, u64> = BTreeMap::new();
    scan.table
        .for_each(|node| *kinds.entry(node.kind).or_default() += 1);
    let geometry = *inspector.geometry();
    Ok(VolumeInfo {
        region_bytes: inspector.medium.len(),
        chunks: geometry.chunks(),
        data_pages: geometry.data_pages_total(),
        free_pages: scan.free_page_count(),
        inodes: u64::from(geometry.inodes()),
        free_inodes: scan.free_inode_count(),
        kinds,
        damage: scan.log.count(Severity::Damage),
        counts: scan.log.counts,
        hints: inspector.found.hints,
        superblock_damage: inspector.found.damage,
        superblock: inspector.found.superblock,
    })
}

impl Inspector {
    /// Opens the volume in `region`.
    ///
    /// # Errors
    /// There is no volume that this program can use.
    pub fn open(region: Region) -> Result<Inspector, Error> {
        let found = superblock::load(&region)?;
        let medium = Medium::new(region, found.superblock.geometry)?;
        Ok(Inspector { medium, found })
    }

    /// Content of the superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.found.superblock
    }

    fn geometry(&self) -> &Geometry {
        self.medium.geometry()
    }

    fn look(&self) -> Look<'_, Medium> {
        Look::new(&self.medium, *self.geometry())
    }

    fn scan(&self, threads: usize, progress: &mut dyn FnMut(u64, u64)) -> Result<Scan, Error> {
        let mut workers = Workers::new(threads, progress);
        let scan = scan(&self.medium, self.geometry(), &mut workers);
        Error::unless_failed(&self.medium, "reading the volume")?;
        Ok(scan)
    }

    /// An inode; `None` if there is none of this number.
    #[must_use]
    pub fn inode(&self, number: u32) -> Option<InodeDump> {
        if !self.geometry().is_inode(number) {
            return None;
        }
        let address = self.geometry().inode_at(number);
        let word = |at: u64| self.medium.load(address + at);
        let (generation, kind) = crate::layout::birth_parts(word(inode::BIRTH));
        let commit = Commit::from_word(word(inode::COMMIT));
        let slots = match commit.parity() {
            0 => [0, 1],
            _ => [1, 0],
        };
        let extra = word(inode::EXTRA);
        let owner = |slot: usize| {
            let word = word(inode::OWNER[slot]);
            ((word >> 32) as u32, word as u32)
        };
        Some(InodeDump {
            number,
            address,
            generation,
            kind,
            sequence: commit.sequence,
            perm: commit.perm,
            attributes: (word(inode::COMMIT) >> 12 & 0xf) as u8,
            sizes: slots.map(|slot| word(inode::SIZE[slot])),
            owners: slots.map(owner),
            mtime: word(inode::MTIME) as i64,
            ctime: word(inode::CTIME) as i64,
            btime: word(inode::BTIME) as i64,
            atime: word(inode::ATIME) as i64,
            second_line_counts: (extra >> 32) as u32 == generation,
            inline_len: extra as u16,
            inline: (0..5)
                .flat_map(|k| word(inode::INLINE + 8 * k).to_le_bytes())
                .collect(),
        })
    }

    /// A page's descriptor; `None` if it is no page for data.
    #[must_use]
    pub fn page(&self, page: Page) -> Option<PageDump> {
        if !self.geometry().is_data_page(page) {
            return None;
        }
        let look = self.look();
        let owner = look.desc(page, desc::OWNER);
        let offset = look.desc(page, desc::OFFSET);
        let life = Life::from_word(look.desc(page, desc::LIFE));
        let alive = look.reference(owner).alive();
        Some(PageDump {
            page,
            address: page.at(),
            descriptor: self.geometry().desc_at(page),
            owner: InodeRef::from_word(owner),
            owner_alive: alive.is_some(),
            offset: offset >> 16,
            kind: PageOffset::from_word(offset).map(|offset| offset.kind),
            life,
            state: alive.map(|inode| life.state(look.owner(inode).sequence)),
        })
    }

    /// A slot; `None` if it is in no page for data. Whether its page is one of a directory is not looked at.
    #[must_use]
    pub fn slot(&self, place: Place) -> Option<SlotDump> {
        if !self.geometry().is_place(place) {
            return None;
        }
        let look = self.look();
        let commit = look.commit_of(place);
        let tag = Tag::from_word(look.slot(place, slot::TAG));
        let name = name::read(&self.medium, place).ok();
        Some(SlotDump {
            place,
            address: place.at(),
            inode: InodeRef::from_word(commit),
            inode_alive: look.reference(commit).alive().is_some(),
            pointer: Pointer::from_words(
                look.slot(place, slot::POINTER),
                look.slot(place, slot::OTHER),
            ),
            tag,
            hash_matches: name.is_some_and(|name| name_hash(name.bytes()) == tag.hash),
            name: name.map(|name| name.bytes().to_vec()),
            slots: name::slots(&self.medium, place).unwrap_or(1),
        })
    }

    /// Calls `tell` with the use of each page, in order, in runs. Looks at the whole volume first.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn map(
        &self,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
        mut tell: impl FnMut(MapRun),
    ) -> Result<(), Error> {
        let scan = self.scan(threads, progress)?;
        let mut runs: Vec<MapRun> = Vec::new();
        let mut put = |start: Page, len: u64, what: PageUse| {
            let pages = start.0..start.0 + len;
            runs.push(MapRun { pages, what });
        };
        for chunk in 0..self.geometry().chunks() {
            let base = chunk * self.geometry().chunk_pages;
            let tables = self.geometry().tables(chunk);
            let first = Page(tables.start / crate::layout::PAGE_BYTES);
            put(Page(base), first.0 - base, PageUse::Superblock);
            let len = self.geometry().data_pages(chunk).start - first.0;
            put(first, len, PageUse::Tables);
        }
        for page in &scan.dir_pages {
            if scan.tree.names(page.number) > 0 {
                let inode = page.number;
                put(page.page, 1, PageUse::Directory { inode });
            }
        }
        scan.table.for_each(|node| {
            let (state, inode) = (node.read(), node.inode.number);
            if let Content::Pages(pages) = &state.content {
                for extent in pages.iter() {
                    let what = PageUse::Data {
                        inode,
                        offset: extent.offset,
                        unwritten: extent.state == PageState::Unwritten,
                    };
                    put(extent.page, extent.len, what);
                }
            }
            for extent in state.attributes.iter().flat_map(|pages| pages.iter()) {
                put(extent.page, extent.len, PageUse::Attributes { inode });
            }
        });
        for free in &scan.free_pages {
            put(Page(free.start), free.end - free.start, PageUse::Free);
        }
        runs.sort_unstable_by_key(|run| run.pages.start);
        let mut pending: Option<MapRun> = None;
        for run in runs {
            match &mut pending {
                Some(last) if last.pages.end == run.pages.start && merges(last.what, run.what) => {
                    last.pages.end = run.pages.end;
                }
                _ => {
                    if let Some(done) = pending.replace(run) {
                        tell(done);
                    }
                }
            }
        }
        pending.into_iter().for_each(tell);
        Ok(())
    }
}

/// Whether runs side by side are one. Runs of content are whole extents already.
fn merges(one: PageUse, next: PageUse) -> bool {
    one == next && !matches!(one, PageUse::Data { .. })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::{PAGE_BYTES, ROOT};
    use crate::mkfs::{MkfsOptions, mkfs};

    fn region() -> Region {
        let region = Region::anonymous(3 << 20);
        mkfs(&region, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
        region
    }

    #[test]
    fn a_new_volume_is_described() {
        let info = info(region(), 1, &mut |_, _| {}).unwrap();
        assert_eq!(info.kinds, BTreeMap::from([(FileKind::Directory, 1)]));
        assert_eq!(info.free_pages, info.data_pages);
        assert_eq!(info.free_inodes + 1, info.inodes);
        assert!(info.hints.clean && info.damage == 0 && info.counts.is_empty());
    }

    #[test]
    fn the_map_covers_every_page_once() {
        let inspector = Inspector::open(region()).unwrap();
        let mut next = 0;
        let told = inspector.map(2, &mut |_, _| {}, |run| {
            assert_eq!(run.pages.start, next);
            next = run.pages.end;
        });
        told.unwrap();
        assert_eq!(next, inspector.superblock().geometry.pages);
    }

    #[test]
    fn free_objects_are_not_described() {
        let inspector = Inspector::open(region()).unwrap();
        let inodes = inspector.geometry().inodes();
        assert!(inspector.inode(0).is_none() && inspector.inode(inodes + 1).is_none());
        let root = inspector.inode(ROOT).unwrap();
        assert_eq!((root.kind, root.perm), (Some(FileKind::Directory), 0o755));
        assert!(root.second_line_counts && root.inline.len() == 40);
        for page in [0, 2, (3 << 20) / PAGE_BYTES, u64::MAX / 64] {
            assert!(inspector.page(Page(page)).is_none());
            assert!(inspector.slot(Place(page * 64)).is_none());
        }
        let last = Page((3 << 20) / PAGE_BYTES - 1);
        assert!(!inspector.page(last).unwrap().owner_alive);
        assert!(!inspector.slot(Place::new(last, 63)).unwrap().inode_alive);
    }
}
