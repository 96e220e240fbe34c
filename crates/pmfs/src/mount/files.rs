//! Fifth pass: each reachable inode alone. Its kind, the places of its pages, and the free pages.

use super::bitmap::Bitmap;
use super::look::Look;
use super::pages::{Doubt, Run, Spot};
use super::tree::Tree;
use crate::fsck::finding::{Location, Log, Problem};
use crate::index::file::{Extent, FileIndex};
use crate::layout::{
    FILE_BYTES_MAX, INLINE_BYTES, InodeRef, PAGE_BYTES, Page, PageState, ROOT, birth_word, inode,
};
use crate::table::{Content, State, Table};
use crate::words::Words;
use crate::xattr::PAGES_MAX;
use std::ops::Range;
use steadfast_vfs::{FileKind, SYMLINK_MAX};

/// Content of a range of inodes.
pub(crate) struct Inodes {
    pub(crate) free: Vec<Range<u32>>,
    pub(crate) log: Log,
}

/// Makes the nodes of the inodes in `numbers` that can be reached. `runs` are their pages; those that count are marked in
/// `used`. Directories get their names later.
pub(crate) fn build(
    look: &Look<'_, impl Words>,
    tree: &Tree,
    numbers: Range<u32>,
    mut runs: Vec<Run>,
    used: &Bitmap,
    table: &Table,
) -> Inodes {
    let mut found = Inodes {
        free: Vec::new(),
        log: Log::default(),
    };
    // Made of sorted pieces, which this sort merges.
    runs.sort();
    let mut rest = &runs[..];
    for number in numbers {
        let skipped = rest.partition_point(|run| run.number < number);
        rest = &rest[skipped..];
        let (mine, others) = rest.split_at(rest.partition_point(|run| run.number == number));
        rest = others;
        let names = tree.names(number);
        if names == 0 {
            match found.free.last_mut() {
                Some(last) if last.end == number => last.end += 1,
                _ => found.free.push(number..number + 1),
            }
            continue;
        }
        let (inode, kind, sound, state) = found.node(look, tree, number, names, mine, used);
        table.insert(inode, kind, !sound, state);
    }
    found
}

impl Inodes {
    /// A reachable inode: its kind, whether it is sound, and its known properties.
    fn node(
        &mut self,
        look: &Look<'_, impl Words>,
        tree: &Tree,
        number: u32,
        names: u32,
        runs: &[Run],
        used: &Bitmap,
    ) -> (InodeRef, FileKind, bool, State) {
        let (generation, told) = look.birth(number);
        let (inode, kind) = (InodeRef { number, generation }, look.kind(number));
        let wanted = birth_word(generation, kind);
        let birth = look.m.load(look.geometry.inode_at(number) + inode::BIRTH);
        if told != Some(kind) || (number == ROOT && birth != wanted) {
            let problem = match number {
                ROOT => Problem::RootDamaged,
                _ => Problem::InodeKind,
            };
            let detail = format_args!("kind {}, taken as {kind:?}", birth >> 24 & 0xff);
            self.log.add(problem, Location::inode(number), detail);
            let fix = (look.geometry.inode_at(number) + inode::BIRTH, wanted);
            self.log.fix(problem, fix);
        }
        let split = runs.partition_point(|run| !run.attributes);
        let (content, attributes) = runs.split_at(split);
        let holds_pages = matches!(kind, FileKind::Regular | FileKind::Symlink);
        let content = match holds_pages {
            true => self.index(look, content, u64::MAX, used),
            false => {
                content
                    .iter()
                    .for_each(|run| self.free(look, run, 0, run.len, Problem::PageMisplaced));
                FileIndex::new()
            }
        };
        let attributes = self.index(look, attributes, PAGES_MAX, used);
        let sound = self.check(look, inode, kind, &content, &attributes);
        let links = match (kind, tree.parents.get(&number)) {
            (FileKind::Directory, Some(family)) => family.children.saturating_add(2),
            _ => names,
        };
        let state = State {
            links,
            content: Content::Pages(content),
            attributes: (!attributes.is_empty()).then(|| Box::new(attributes)),
            ..State::default()
        };
        (inode, kind, sound, state)
    }

    /// The pages of an inode as an index. Of two at one offset the one in the run that begins first counts.
    fn index(
        &mut self,
        look: &Look<'_, impl Words>,
        runs: &[Run],
        offset_max: u64,
        used: &Bitmap,
    ) -> FileIndex {
        let mut end = 0u64;
        let mut extents = Vec::with_capacity(runs.len());
        for run in runs {
            let doubled = end.saturating_sub(run.offset).min(u64::from(run.len)) as u32;
            self.free(look, run, 0, doubled, Problem::PageTwice);
            let room = offset_max
                .saturating_sub(run.offset)
                .min(u64::from(run.len)) as u32;
            let room = room.max(doubled);
            self.free(look, run, room, run.len, Problem::PageMisplaced);
            let len = u64::from(room - doubled);
            if len == 0 {
                continue;
            }
            let (offset, page) = (
                run.offset + u64::from(doubled),
                run.page.0 + u64::from(doubled),
            );
            used.set_range(page..page + len);
            extents.push(Extent {
                offset,
                page: Page(page),
                len,
                state: match run.written {
                    true => PageState::Written,
                    false => PageState::Unwritten,
                },
            });
            end = offset + len;
        }
        FileIndex::from_sorted(extents)
    }

    /// Some pages of a run do not count.
    fn free(
        &mut self,
        look: &Look<'_, impl Words>,
        run: &Run,
        from: u32,
        to: u32,
        problem: Problem,
    ) {
        for page in (from..to).map(|k| Page(run.page.0 + u64::from(k))) {
            let doubt = Doubt {
                number: run.number,
                problem,
                spot: Spot::Page(page),
                fix: Some((look.life_at(page), 0)),
            };
            doubt.settle(look, &mut self.log);
        }
    }

    /// Compares an inode's words with its kind. False if its content cannot be read.
    fn check(
        &mut self,
        look: &Look<'_, impl Words>,
        inode: InodeRef,
        kind: FileKind,
        pages: &FileIndex,
        attributes: &FileIndex,
    ) -> bool {
        let (number, at) = (inode.number, look.geometry.inode_at(inode.number));
        let owner = look.owner(inode);
        let extra = look.m.load(at + inode::EXTRA);
        let second_line = (extra >> 32) as u32 == inode.generation;
        let inline = extra & 0xffff;
        let in_pages = attributes.find(0).is_some();
        let lost = match owner.attributes {
            0 | 2 if in_pages == (owner.attributes == 2) => None,
            0 => Some("there are none, but it has pages of them"),
            1 if !second_line => Some("its second line is of another life"),
            1 if inline > INLINE_BYTES as u64 => Some("they would have more than 40 bytes"),
            1 if inline_target(kind, owner.size, pages) => Some("its target is there, too"),
            1 if in_pages => Some("they are inline, but it has pages of them"),
            1 => None,
            2 => Some("their first page is missing"),
            _ => Some("their place is unknown"),
        };
        if let Some(why) = lost {
            let location = Location::inode(number);
            self.log
                .add(Problem::InodeAttributes, location, format_args!("{why}"));
            let word = look.m.load(at + inode::COMMIT) & !(0xf << 12);
            let word = word | if in_pages { 2 << 12 } else { 0 };
            self.log
                .fix(Problem::InodeAttributes, (at + inode::COMMIT, word));
        }
        let slot = (owner.sequence & 1) as usize;
        let size = owner.size;
        match kind {
            FileKind::Regular if size > FILE_BYTES_MAX => {
                let location = Location::inode(number);
                self.log
                    .add(Problem::InodeSize, location, format_args!("{size} bytes"));
                let end = pages.end().saturating_mul(PAGE_BYTES).min(FILE_BYTES_MAX);
                self.log
                    .fix(Problem::InodeSize, (at + inode::SIZE[slot], end));
                false
            }
            FileKind::Symlink => {
                let written = pages
                    .find(0)
                    .is_some_and(|extent| extent.state == PageState::Written);
                let why = match size {
                    0 => "it has no bytes",
                    _ if size > SYMLINK_MAX as u64 => "it would be too long",
                    _ if written => return true,
                    _ if size > INLINE_BYTES as u64 => "its page is missing",
                    _ if !second_line => "the second line of its inode is of another life",
                    _ => return true,
                };
                let location = Location::inode(number);
                self.log
                    .add(Problem::SymlinkTarget, location, format_args!("{why}"));
                let birth = birth_word(inode.generation, FileKind::Regular);
                for fix in [(at + inode::SIZE[slot], 0), (at + inode::BIRTH, birth)] {
                    self.log.fix(Problem::SymlinkTarget, fix);
                }
                false
            }
            _ => true,
        }
    }
}

/// Whether the second line of an inode holds the target of a symlink.
fn inline_target(kind: FileKind, size: u64, pages: &FileIndex) -> bool {
    kind == FileKind::Symlink && size <= INLINE_BYTES as u64 && pages.find(0).is_none()
}
