//! The whole look at a region: the passes in their order, and their result.
//!
//! | pass | looks at | in parallel by |
//! |---|---|---|
//! | [`pages`] | page descriptors | 16,384 pages |
//! | [`slots`] | rename pointers, by the words on the medium | 64 directory pages |
//! | [`names`] | directories | directory |
//! | [`tree`] | the walk from the root; counts of names | – ; directory |
//! | [`files`] | reachable inodes and their pages | range of inodes |
//!
//! The same passes run after a crash and after an unmount, so recovery takes no longer than a clean mount. Nothing is stored
//! here: the stores to make are in the log, as words. The result does not depend on the number of threads.
//!
//! Memory: the table of nodes remains. While the scan runs there are, besides, 4 bytes for each inode of the region, 4 bytes
//! for each name, 32 bytes for each run of pages, and two bits for each page.

use super::bitmap::Bitmap;
use super::files::{self, Inodes};
use super::look::Look;
use super::names::{self, Listing};
use super::pages::{self, Buckets, DirPage, Pages};
use super::slots;
use super::tree::{self, Tree};
use super::workers::Workers;
use crate::fsck::finding::{Location, Log, Problem};
use crate::index::dir::DirIndex;
use crate::layout::{Geometry, TAG_MAX};
use crate::table::{Content, Directory, Table};
use crate::words::Words;
use std::ops::Range;

/// Content of a region.
pub(crate) struct Scan {
    /// The reachable inodes. Directories are still empty.
    pub(crate) table: Table,
    /// Directories that have pages, by number, unreachable ones included.
    pub(crate) listings: Vec<Listing>,
    pub(crate) tree: Tree,
    /// Pages of directories, by directory and offset.
    pub(crate) dir_pages: Vec<DirPage>,
    pub(crate) free_pages: Vec<Range<u64>>,
    pub(crate) free_inodes: Vec<Range<u32>>,
    /// Above every tag of a name and of a name's pointer.
    pub(crate) next_tag: u64,
    pub(crate) log: Log,
}

/// Pieces of the page table that are looked at together: they do not cross chunks.
fn pieces(geometry: &Geometry) -> Vec<Range<u64>> {
    (0..geometry.chunks())
        .map(|chunk| geometry.data_pages(chunk))
        .flat_map(|pages| {
            let starts = pages.clone().step_by(pages::PAGES_AT_ONCE as usize);
            starts.map(move |start| start..pages.end.min(start + pages::PAGES_AT_ONCE))
        })
        .collect()
}

/// Looks at everything.
pub(crate) fn scan(m: &impl Words, geometry: &Geometry, workers: &mut Workers<'_>) -> Scan {
    let mut look = Look::new(m, *geometry);
    let mut log = Log::default();
    let buckets = Buckets::new(geometry.inodes());
    let pieces = pieces(geometry);
    let mut found: Vec<Pages> = workers.each(400, pieces.len(), |unit| {
        pages::scan(&look, pieces[unit].clone())
    });
    pages::decide_strange(&look, &mut found);
    look.kinds = pages::decide_kinds(&look, &found);

    let mut doubts = Vec::new();
    let mut dir_pages = Vec::new();
    for piece in &mut found {
        dir_pages.append(&mut piece.dir_pages);
        doubts.append(&mut piece.doubts);
        log.append(std::mem::take(&mut piece.log));
    }
    let dir_pages = pages::order_dir_pages(&look, dir_pages, &mut doubts);
    let directories = Bitmap::new(geometry.pages);
    dir_pages.iter().for_each(|page| directories.set(page.page));

    let some: Vec<&[DirPage]> = dir_pages.chunks(slots::PAGES_AT_ONCE).collect();
    let slots = workers.each(500, some.len(), |unit| {
        slots::scan(&look, some[unit], &directories)
    });
    drop(directories);
    let next_tag = slots.iter().map(|slots| slots.next_tag).max();
    let mut next_tag = next_tag.unwrap_or(0).max(1);
    let heads: Vec<u8> = slots
        .iter()
        .flat_map(|slots| &slots.heads)
        .copied()
        .collect();
    let decisions = slots::decide(&look, &slots, &mut next_tag, &mut log);
    doubts.extend(slots.iter().flat_map(|slots| slots.doubts.iter().copied()));
    let exhausted: Vec<u32> = slots
        .iter()
        .flat_map(|slots| &slots.exhausted)
        .copied()
        .collect();
    drop(slots);

    let all = names::directories(&dir_pages);
    let mut listings = workers.each(750, all.len(), |unit| {
        let (directory, pages) = (&all[unit], all[unit].pages.clone());
        names::list(
            &look,
            &decisions,
            directory,
            &dir_pages[pages.clone()],
            &heads[pages],
        )
    });
    let tree = tree::walk(&look, &mut listings, workers, 800, &mut log);
    for doubt in doubts
        .into_iter()
        .filter(|doubt| tree.names(doubt.number) > 0)
    {
        doubt.settle(&look, &mut log);
    }
    for listing in &mut listings {
        let found = std::mem::take(&mut listing.log);
        if tree.names(listing.number) > 0 {
            log.append(found);
        }
    }

    let used = Bitmap::new(geometry.pages);
    for page in &dir_pages {
        if tree.names(page.number) > 0 {
            used.set(page.page);
            continue;
        }
        // The name went and the page stayed. It is free; but the bytes of a file in it would be read as slots.
        let location = Location::page(Some(page.number), page.page);
        log.add(Problem::PageOfRemoved, location, format_args!(""));
        log.fix(Problem::PageOfRemoved, (look.life_at(page.page), 0));
    }
    let table = Table::new(*geometry);
    let inodes: Vec<Inodes> = workers.each(1000, buckets.count(), |bucket| {
        let numbers = buckets.numbers(bucket);
        let runs = found.iter().map(|piece| piece.runs_of(numbers.clone()));
        let runs = runs.collect::<Vec<_>>().concat();
        files::build(&look, &tree, numbers, runs, &used, &table)
    });
    let mut free_inodes: Vec<Range<u32>> = Vec::new();
    for found in inodes {
        log.append(found.log);
        for range in found.free {
            match free_inodes.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => free_inodes.push(range),
            }
        }
    }
    let exhausted = exhausted.iter().find(|number| tree.names(**number) > 0);
    if exhausted.is_some() || next_tag > slots::TAGS_ENOUGH {
        let location = exhausted.map_or_else(Location::default, |number| Location::inode(*number));
        log.add(
            Problem::TagsExhausted,
            location,
            format_args!("the next would be {next_tag} of {TAG_MAX}"),
        );
    }
    let free_pages = (0..geometry.chunks())
        .flat_map(|chunk| used.clear_ranges(geometry.data_pages(chunk)))
        .collect();
    Scan {
        table,
        listings,
        tree,
        dir_pages,
        free_pages,
        free_inodes,
        next_tag,
        log,
    }
}

impl Scan {
    /// Free pages.
    pub(crate) fn free_page_count(&self) -> u64 {
        self.free_pages.iter().map(|run| run.end - run.start).sum()
    }

    /// Free inodes.
    pub(crate) fn free_inode_count(&self) -> u64 {
        let all = self.free_inodes.iter();
        all.map(|range| u64::from(range.end - range.start)).sum()
    }

    /// Gives the directories their names. `done` is called for each that has pages, with the slots of each page that are used.
    pub(crate) fn name_directories(&mut self, mut done: impl FnMut(&mut Directory, &[u64])) {
        let put = |number, directory: Directory| {
            if let Some(node) = self.table.get(number) {
                node.write().content = Content::Directory(Box::new(directory));
            }
        };
        for listing in std::mem::take(&mut self.listings) {
            if let Some(family) = self.tree.parents.remove(&listing.number) {
                let mut directory = Directory::new(family.parent, listing.names);
                done(&mut directory, &listing.used);
                put(listing.number, directory);
            }
        }
        for (number, family) in self.tree.parents.drain() {
            put(number, Directory::new(family.parent, DirIndex::default()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::layout::{
        InodeRef, Life, Page, PageKind, PageOffset, PageState, Place, Pointer, Tag, birth_word,
        desc, inode, name_hash, slot,
    };
    use crate::mkfs::{MkfsOptions, mkfs};
    use std::sync::atomic::{AtomicU64, Ordering};
    use steadfast_pm::Region;
    use steadfast_vfs::FileKind;

    /// Counts reads.
    struct Counting<'a>(&'a Region, AtomicU64);

    impl Words for Counting<'_> {
        fn load(&self, at: u64) -> u64 {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.load(at)
        }
    }

    fn loads(region: &Region, geometry: &Geometry) -> (u64, Scan) {
        let counting = Counting(region, AtomicU64::new(0));
        let mut quiet = |_, _| {};
        let seen = scan(&counting, geometry, &mut Workers::new(1, &mut quiet));
        (counting.1.into_inner(), seen)
    }

    #[test]
    fn a_scan_after_a_crash_reads_little_more_than_one_after_an_unmount() {
        let region = Region::anonymous(16 << 20);
        let made = mkfs(&region, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
        let geometry = made.geometry;
        let pages: Vec<u64> = geometry.data_pages(0).collect();
        let describe = |page: u64, owner: InodeRef, offset: u64, kind: PageKind, life: Life| {
            let at = geometry.desc_at(Page(page));
            region.store(at + desc::OWNER, owner.word());
            region.store(at + desc::OFFSET, PageOffset { offset, kind }.word());
            region.store(at + desc::LIFE, life.word());
        };
        let written = Life::settled(PageState::Written);
        let root = crate::mount::look::ROOT_INODE;
        let file = |number| InodeRef {
            number,
            generation: 1,
        };
        let name = |place: Place, text: &str, inode: InodeRef| {
            let tag = Tag {
                tag: place.0,
                len: text.len() as u8,
                hash: name_hash(text.as_bytes()),
            };
            region.store(place.at() + slot::TAG, tag.word());
            region.write_data(place.at() + slot::NAME, text.as_bytes());
            region.store(place.at(), inode.word());
        };
        // 500 files with two pages each.
        for k in 0..500 {
            let (page, inode) = (Page(pages[k / 32]), file(k as u32 + 2));
            if k % 32 == 0 {
                describe(page.0, root, k as u64 / 32, PageKind::Directory, written);
            }
            let at = geometry.inode_at(inode.number);
            region.store(at + inode::BIRTH, birth_word(1, FileKind::Regular));
            region.store(at + inode::SIZE[0], 8192);
            name(Place::new(page, k as u64 % 32), &format!("file {k}"), inode);
            for offset in 0..2 {
                let page = pages[100 + 2 * k + offset];
                describe(page, inode, offset as u64, PageKind::Data, written);
            }
        }
        let (clean, seen) = loads(&region, &geometry);
        assert!(seen.log.counts.is_empty());
        // Each thread of a large machine was in a call: 20 renames, 20 creates, 20 writes of 4 pages.
        for k in 0..20 {
            let page = Page(pages[k / 32]);
            let (from, to) = (Place::new(page, k as u64), Place::new(page, 32 + k as u64));
            name(to, &format!("renamed {k}"), file(k as u32 + 2));
            let (one, two) = Pointer {
                from,
                tag: from.0,
                exchange: None,
            }
            .words();
            region.store(to.at() + slot::POINTER, one);
            region.store(to.at() + slot::OTHER, two);
            let unborn = Place::new(Page(pages[1]), 32 + k as u64);
            name(unborn, &format!("unborn {k}"), file(600 + k as u32));
            for offset in 0..4 {
                let life = Life {
                    at: 1,
                    cur: PageState::Free,
                    next: PageState::Written,
                };
                let page = pages[2000 + 4 * k + offset];
                describe(
                    page,
                    file(k as u32 + 2),
                    offset as u64,
                    PageKind::Data,
                    life,
                );
            }
        }
        let (crashed, seen) = loads(&region, &geometry);
        assert_eq!(seen.log.counts[&Problem::RenameUnfinished], 20);
        assert_eq!(seen.log.counts[&Problem::NameOfUnborn], 20);
        assert_eq!(seen.log.counts[&Problem::LifeUncommitted], 80);
        assert!(crashed * 10 <= clean * 13, "{crashed} and {clean}");
    }
}
