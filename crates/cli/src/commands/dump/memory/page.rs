//! One page of a volume in persistent memory: what it is, its descriptor, and its bytes.

use std::path::Path;

use serde::Serialize;

use super::super::block::hex_lines;
use super::BLOCK;
use crate::failure::Failure;
use crate::text;
use crate::volume::memory_words::{Life, Page, PageDump, PageKind, PageState};
use crate::volume::{MemoryView, Region};

/// What is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    image: String,
    block: u64,
    what: String,
    descriptor: Option<Descriptor>,
    bytes: String,
    #[serde(skip)]
    raw: Vec<u8>,
}

/// A descriptor's words.
#[derive(Serialize)]
struct Descriptor {
    byte: u64,
    inode: Option<u32>,
    generation: Option<u32>,
    /// The inode is alive, in this generation.
    alive: bool,
    offset: u64,
    kind: Option<&'static str>,
    life_at: u64,
    life_cur: &'static str,
    life_next: &'static str,
    /// Present meaning of the life word.
    state: Option<&'static str>,
}

fn state(state: PageState) -> &'static str {
    match state {
        PageState::Free => "free",
        PageState::Unwritten => "unwritten",
        PageState::Written => "written",
    }
}

impl Descriptor {
    fn of(page: &PageDump) -> Descriptor {
        let Life { at, cur, next } = page.life;
        Descriptor {
            byte: page.descriptor,
            inode: page.owner.map(|owner| owner.number),
            generation: page.owner.map(|owner| owner.generation),
            alive: page.owner_alive,
            offset: page.offset,
            kind: page.kind.map(|kind| match kind {
                PageKind::Data => "content",
                PageKind::Directory => "directory",
                PageKind::Attributes => "attributes",
            }),
            life_at: at,
            life_cur: state(cur),
            life_next: state(next),
            state: page.state.map(state),
        }
    }

    /// The page's use in words.
    fn what(&self) -> String {
        match (self.inode, self.alive, self.state, self.kind) {
            (Some(inode), true, Some(state @ ("written" | "unwritten")), Some(kind)) => {
                format!(
                    "{kind} of inode {inode}, page {} of it, {state}",
                    self.offset
                )
            }
            _ => "a free page".to_owned(),
        }
    }

    fn line(&self) -> String {
        let owner = match (self.inode, self.generation) {
            (Some(inode), Some(generation)) => {
                let alive = if self.alive { "alive" } else { "not alive" };
                format!("inode {inode}, generation {generation} ({alive})")
            }
            _ => "no inode".to_owned(),
        };
        format!(
            "descriptor at byte {:#x}: {owner}; {}, offset {}; {} until change {}, then {}",
            self.byte,
            self.kind.unwrap_or("of no kind"),
            self.offset,
            self.life_cur,
            self.life_at,
            self.life_next
        )
    }
}

/// Reads one page.
pub(super) fn look(
    image: &Path,
    region: &Region,
    view: &MemoryView,
    number: u64,
) -> Result<Shown, Failure> {
    let geometry = view.words.superblock().geometry;
    let end = region.len() / BLOCK;
    if number >= end {
        let why = format!("page {number} is beyond its end: it has {end} pages");
        return Err(Failure::at(image, why));
    }
    let page = Page(number);
    let descriptor = view.words.page(page).map(|page| Descriptor::of(&page));
    let (chunk, index) = (number / geometry.chunk_pages, number % geometry.chunk_pages);
    let what = match (&descriptor, number) {
        (Some(descriptor), _) => descriptor.what(),
        (None, 0) => "the superblock".to_owned(),
        (None, 1) => "the copy of the superblock".to_owned(),
        (None, _) if number >= geometry.pages => "after the end of the volume".to_owned(),
        (None, _) if index < 2 => format!("unused, in chunk {chunk}"),
        (None, _) if page.at() < geometry.desc_at(Page(chunk * geometry.chunk_pages)) => {
            format!("inodes of chunk {chunk}")
        }
        (None, _) => format!("descriptors of chunk {chunk}"),
    };
    let mut raw = vec![0; BLOCK as usize];
    region.read(page.at(), &mut raw);
    if region.failed() {
        return Err(Failure::at(
            image,
            format!("page {number} cannot be read: the memory failed"),
        ));
    }
    Ok(Shown {
        image: image.display().to_string(),
        block: number,
        what,
        descriptor,
        bytes: text::hex(&raw),
        raw,
    })
}

impl Shown {
    pub(super) fn lines(&self) -> String {
        let mut text = format!("page {}: {}", self.block, self.what);
        if let Some(descriptor) = &self.descriptor {
            text.push('\n');
            text.push_str(&descriptor.line());
        }
        hex_lines(&self.raw, &mut text);
        text
    }
}
