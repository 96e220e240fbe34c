//! First pass: every page descriptor alone. The pages of each inode, and their state.
//!
//! The state of a page depends on its owner's sequence and size, not on whether the owner can be reached: that is not known
//! yet. So a defect of a page is kept as a [`Doubt`], which becomes a finding if the page's owner turns out to be reachable. A
//! page of an inode that is not reachable is free, with any descriptor.

use super::look::{Look, Owner, Reference, past_end, settled};
use crate::fsck::finding::{Fix, Location, Log, Problem};
use crate::index::dir::DIR_OFFSET_MAX;
use crate::layout::{Life, Page, PageKind, PageOffset, PageState, Place, desc};
use crate::words::Words;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use steadfast_vfs::FileKind;

/// Pages that are looked at in one piece of work.
pub(crate) const PAGES_AT_ONCE: u64 = 1 << 14;

/// A page of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct DirPage {
    pub(crate) number: u32,
    pub(crate) offset: u64,
    pub(crate) page: Page,
}

/// Consecutive pages at consecutive offsets of one inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Run {
    pub(crate) number: u32,
    /// Extended attributes, not content.
    pub(crate) attributes: bool,
    pub(crate) offset: u64,
    pub(crate) page: Page,
    pub(crate) len: u32,
    pub(crate) written: bool,
}

/// Something odd, if the inode can be reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    pub(crate) number: u32,
    pub(crate) problem: Problem,
    pub(crate) spot: Spot,
    pub(crate) fix: Option<Fix>,
}

/// A page that holds attributes by its kind, of an inode that says it has none in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strange {
    run: Run,
    size: u64,
}

/// Place of a doubt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    Page(Page),
    Slot(Place),
}

impl Doubt {
    /// Makes it a finding.
    pub(crate) fn settle(self, look: &Look<'_, impl Words>, log: &mut Log) {
        match self.spot {
            Spot::Page(page) => {
                let location = Location::page(Some(self.number), page);
                let offset = look.desc(page, desc::OFFSET);
                let life = Life::from_word(look.desc(page, desc::LIFE));
                let detail = format_args!(
                    "offset {}, kind {}, {:?} before change {}, then {:?}",
                    offset >> 16,
                    offset >> 8 & 0xff,
                    life.cur,
                    life.at,
                    life.next
                );
                log.add(self.problem, location, detail);
            }
            Spot::Slot(place) => {
                let location = Location::slot(self.number, place);
                log.add(self.problem, location, format_args!(""));
            }
        }
        if let Some(fix) = self.fix {
            log.fix(self.problem, fix);
        }
    }
}

/// Inode numbers in ranges, so that their pages are collected range by range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    each: u32,
    count: usize,
    inodes: u32,
}

impl Buckets {
    pub(crate) fn new(inodes: u32) -> Buckets {
        let each = inodes.div_ceil(256).max(1024);
        Buckets {
            each,
            count: inodes.div_ceil(each) as usize,
            inodes,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The numbers of a bucket.
    pub(crate) fn numbers(&self, bucket: usize) -> Range<u32> {
        let start = bucket as u32 * self.each;
        start + 1..self.inodes.min(start.saturating_add(self.each)) + 1
    }
}

/// Content of a piece of the descriptor table.
pub(crate) struct Pages {
    pub(crate) dir_pages: Vec<DirPage>,
    /// Runs in order.
    pub(crate) runs: Vec<Run>,
    pub(crate) doubts: Vec<Doubt>,
    /// Pages that hold attributes of inodes that have none in pages.
    pub(crate) strange: Vec<Strange>,
    /// Inodes with pages that do not fit their kind, or with a kind that is unknown.
    pub(crate) odd: Vec<u32>,
    pub(crate) log: Log,
}

/// Looks at the descriptors of some pages for data.
pub(crate) fn scan(look: &Look<'_, impl Words>, pages: Range<u64>) -> Pages {
    let mut found = Pages {
        dir_pages: Vec::new(),
        runs: Vec::new(),
        doubts: Vec::new(),
        strange: Vec::new(),
        odd: Vec::new(),
        log: Log::default(),
    };
    // Neighbours mostly have one owner.
    let mut last: Option<(u64, Option<Owner>)> = None;
    let mut run: Option<Run> = None;
    for page in pages.map(Page) {
        let life = look.desc(page, desc::LIFE);
        if life == 0 {
            continue;
        }
        let word = look.desc(page, desc::OWNER);
        let owner = match last {
            Some((of, owner)) if of == word && owner.is_some() => owner,
            _ => found.owner(look, word, page),
        };
        last = Some((word, owner));
        let Some(owner) = owner else {
            continue;
        };
        let Some(page) = found.page(look, &owner, page, Life::from_word(life), life) else {
            continue;
        };
        match &mut run {
            Some(run) if run.takes(&page) => run.len += 1,
            _ => {
                found.runs.extend(run.replace(page));
            }
        }
    }
    found.runs.extend(run);
    found.runs.sort_unstable();
    found
}

impl Run {
    /// Whether `next`, a run of one page, continues it.
    fn takes(&self, next: &Run) -> bool {
        let len = u64::from(self.len);
        self.page.0 + len == next.page.0
            && self.offset + len == next.offset
            && (self.number, self.attributes, self.written)
                == (next.number, next.attributes, next.written)
    }
}

impl Pages {
    /// The runs of some inodes.
    pub(crate) fn runs_of(&self, numbers: Range<u32>) -> &[Run] {
        let from = self.runs.partition_point(|run| run.number < numbers.start);
        let to = self.runs.partition_point(|run| run.number < numbers.end);
        &self.runs[from..to]
    }

    /// The owner of a page, if it is alive.
    fn owner(&mut self, look: &Look<'_, impl Words>, word: u64, page: Page) -> Option<Owner> {
        let problem = match look.reference(word) {
            Reference::Alive(inode) => return Some(look.owner(inode)),
            // The remains of an ended life do not count.
            Reference::Past(_) => return None,
            // It would come alive with the inode.
            Reference::Next(_) | Reference::Later(_) => Problem::PageOfUnborn,
            Reference::Nothing => Problem::OwnerImpossible,
        };
        let detail = format_args!("owner {} generation {}", word >> 32, word as u32);
        self.log.add(problem, Location::page(None, page), detail);
        self.log.fix(problem, (look.life_at(page), 0));
        None
    }

    /// Decides the use of a page of a live inode. Returns it as a run if it holds data or attributes.
    fn page(
        &mut self,
        look: &Look<'_, impl Words>,
        owner: &Owner,
        page: Page,
        life: Life,
        word: u64,
    ) -> Option<Run> {
        let number = owner.inode.number;
        let mut doubt = |problem, fix| {
            self.doubts.push(Doubt {
                number,
                problem,
                spot: Spot::Page(page),
                fix,
            });
        };
        let offset_word = look.desc(page, desc::OFFSET);
        let offset = PageOffset::from_word(offset_word).unwrap_or_else(|| PageOffset {
            offset: offset_word >> 16,
            kind: match look.kind(number) {
                FileKind::Directory => PageKind::Directory,
                _ => PageKind::Data,
            },
        });
        // The state, and why the life word has to be stored anew, if it has to.
        let (bits, mut why) = match life.at {
            at if at <= owner.sequence => (word & 3, None),
            at if at == owner.sequence + 1 => (word >> 2 & 3, Some(Problem::LifeUncommitted)),
            _ => (word & 3, Some(Problem::LifeImpossible)),
        };
        let mut state = match bits {
            0 => PageState::Free,
            1 => PageState::Unwritten,
            2 => PageState::Written,
            _ => {
                why = Some(Problem::PageState);
                PageState::Unwritten
            }
        };
        let directory = offset.kind == PageKind::Directory;
        if directory && state == PageState::Unwritten {
            (state, why) = (PageState::Written, Some(Problem::PageState));
        }
        let sized = matches!(owner.kind, Some(FileKind::Regular | FileKind::Symlink));
        let unused = match offset.kind {
            PageKind::Data if sized && state == PageState::Written => {
                past_end(offset.offset, owner.size).then_some(Problem::PagePastEnd)
            }
            _ => None,
        };
        if unused.is_some() {
            (state, why) = (PageState::Free, why.or(unused));
        }
        if let Some(why) = why {
            doubt(why, Some((look.life_at(page), settled(state))));
        }
        if state == PageState::Free {
            return None;
        }
        if PageOffset::from_word(offset_word).is_none() {
            let fix = (look.offset_at(page), offset.word());
            doubt(Problem::PageKind, Some(fix));
        }
        let fits = match offset.kind {
            PageKind::Directory => owner.kind == Some(FileKind::Directory),
            PageKind::Data => sized,
            PageKind::Attributes => true,
        };
        if !fits {
            self.odd.push(number);
        }
        if directory {
            self.dir_pages.push(DirPage {
                number,
                offset: offset.offset,
                page,
            });
            return None;
        }
        let run = Run {
            number,
            attributes: offset.kind == PageKind::Attributes,
            offset: offset.offset,
            page,
            len: 1,
            written: state == PageState::Written,
        };
        if run.attributes && owner.attributes <= 1 {
            let size = owner.size;
            self.strange.push(Strange { run, size });
            return None;
        }
        Some(run)
    }
}

/// Decides the content of pages whose inodes have no attributes in pages. If the inode has no other page at the offset, the page's
/// kind is wrong: it holds names or content. If it has one, the inode is wrong.
pub(crate) fn decide_strange(look: &Look<'_, impl Words>, found: &mut [Pages]) {
    let mut strange: BTreeMap<u32, Vec<Strange>> = BTreeMap::new();
    for page in found.iter_mut().flat_map(|piece| piece.strange.drain(..)) {
        strange.entry(page.run.number).or_default().push(page);
    }
    for (number, pages) in strange {
        let directory = look.kind(number) == FileKind::Directory;
        let mut taken: BTreeSet<u64> = match directory {
            true => found
                .iter()
                .flat_map(|piece| &piece.dir_pages)
                .filter(|page| page.number == number)
                .map(|page| page.offset)
                .collect(),
            false => found
                .iter()
                .flat_map(|piece| piece.runs_of(number..number + 1))
                .filter(|run| !run.attributes)
                .flat_map(|run| run.offset..run.offset + u64::from(run.len))
                .collect(),
        };
        let Some(piece) = found.first_mut() else {
            return;
        };
        for Strange { run, size } in pages {
            let Run { offset, page, .. } = run;
            if !taken.insert(offset) {
                piece.runs.push(run);
                continue;
            }
            let kind = match directory {
                true => PageKind::Directory,
                false => PageKind::Data,
            };
            let past = !directory && run.written && past_end(offset, size);
            let fix = match past {
                true => (look.life_at(page), 0),
                false => (look.offset_at(page), PageOffset { offset, kind }.word()),
            };
            piece.doubts.push(Doubt {
                number,
                problem: Problem::PageKind,
                spot: Spot::Page(page),
                fix: Some(fix),
            });
            match directory {
                _ if past => {}
                true => piece.dir_pages.push(DirPage {
                    number,
                    offset,
                    page,
                }),
                false => piece.runs.push(Run {
                    attributes: false,
                    ..run
                }),
            }
        }
        piece.runs.sort_unstable();
    }
}

/// Decides the kind of inodes whose pages do not fit it: the kind that all their pages show, or else the stored one.
pub(crate) fn decide_kinds(
    look: &Look<'_, impl Words>,
    found: &[Pages],
) -> BTreeMap<u32, FileKind> {
    let mut votes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for number in found.iter().flat_map(|piece| &piece.odd) {
        votes.entry(*number).or_default();
    }
    if votes.is_empty() {
        return BTreeMap::new();
    }
    for page in found.iter().flat_map(|piece| &piece.dir_pages) {
        if let Some((directory, _)) = votes.get_mut(&page.number) {
            *directory += 1;
        }
    }
    for (number, (_, data)) in &mut votes {
        let runs = found
            .iter()
            .flat_map(|piece| piece.runs_of(*number..*number + 1));
        let mine = runs.filter(|run| !run.attributes);
        *data = mine.map(|run| u64::from(run.len)).sum();
    }
    let decide = |(number, (directory, data)): (u32, (u64, u64))| {
        let told = look.birth(number).1;
        let kind = match told {
            Some(FileKind::Directory) if directory == 0 => FileKind::Regular,
            Some(kind) if kind != FileKind::Directory && data == 0 && directory > 0 => {
                FileKind::Directory
            }
            Some(FileKind::CharDevice | FileKind::BlockDevice) if directory == 0 => {
                FileKind::Regular
            }
            Some(FileKind::Fifo | FileKind::Socket) if directory == 0 => FileKind::Regular,
            Some(kind) => kind,
            None if directory > data => FileKind::Directory,
            None => FileKind::Regular,
        };
        // The root is a directory regardless of its pages.
        (Some(kind) != told && number != crate::layout::ROOT).then_some((number, kind))
    };
    votes.into_iter().filter_map(decide).collect()
}

/// The pages of all directories, by directory and offset. Of two at one offset, and where an offset cannot be, the later page
/// gets the smallest offset that is free.
pub(crate) fn order_dir_pages(
    look: &Look<'_, impl Words>,
    mut pages: Vec<DirPage>,
    doubts: &mut Vec<Doubt>,
) -> Vec<DirPage> {
    pages.retain(|page| {
        let fits = look.kind(page.number) == FileKind::Directory;
        if !fits {
            doubts.push(Doubt {
                number: page.number,
                problem: Problem::PageMisplaced,
                spot: Spot::Page(page.page),
                fix: Some((look.life_at(page.page), 0)),
            });
        }
        fits
    });
    pages.sort_unstable();
    let mut last: Option<DirPage> = None;
    let mut moved: Vec<(usize, Problem)> = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        let same =
            last.is_some_and(|last| (last.number, last.offset) == (page.number, page.offset));
        if page.offset >= DIR_OFFSET_MAX {
            moved.push((at, Problem::DirectoryPageOffset));
        } else if same {
            moved.push((at, Problem::DirectoryPageTwice));
        } else {
            last = Some(*page);
        }
    }
    if moved.is_empty() {
        return pages;
    }
    // The smallest offsets that are free, of the directories concerned.
    let mut taken: BTreeMap<u32, (u64, BTreeSet<u64>)> = BTreeMap::new();
    for (at, _) in &moved {
        taken.entry(pages[*at].number).or_default();
    }
    for page in &pages {
        if let Some((_, offsets)) = taken.get_mut(&page.number) {
            offsets.insert(page.offset);
        }
    }
    for (at, problem) in moved {
        let page = &mut pages[at];
        let (next, offsets) = taken.entry(page.number).or_default();
        while offsets.contains(next) {
            *next += 1;
        }
        page.offset = *next;
        *next += 1;
        let word = PageOffset {
            offset: page.offset,
            kind: PageKind::Directory,
        };
        doubts.push(Doubt {
            number: page.number,
            problem,
            spot: Spot::Page(page.page),
            fix: Some((look.offset_at(page.page), word.word())),
        });
    }
    pages.sort_unstable();
    pages
}
