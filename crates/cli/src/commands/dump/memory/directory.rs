//! One directory of a volume in persistent memory: its pages, and the slots that name something.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use steadfast_vfs::{Errno, FileKind};

use super::super::inode::kind_name;
use super::super::{Which, name};
use super::inode::number;
use crate::failure::Failure;
use crate::volume::MemoryView;
use crate::volume::memory_words::{Page, PageUse, Place, SLOTS_PER_PAGE, SlotDump};

#[derive(Serialize)]
pub(super) struct Shown {
    image: String,
    inode: u32,
    /// Slots whose inode is alive.
    entries: u64,
    pages: Vec<DirPage>,
    damage: Vec<String>,
}

#[derive(Serialize)]
struct DirPage {
    page: u64,
    offset: u64,
    slots: Vec<Slot>,
}

/// A slot that names something.
#[derive(Serialize)]
struct Slot {
    place: u64,
    byte: u64,
    name: Option<String>,
    inode: u32,
    generation: u32,
    /// Whether that inode was born in that generation; if not, the slot names nothing.
    alive: bool,
    kind: Option<&'static str>,
    /// Slots that the name takes.
    slots: u64,
    tag: u64,
    hash_matches: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<Pointer>,
}

/// A rename pointer. It has effect only while the slot that it points to has that tag and is in use.
#[derive(Serialize)]
struct Pointer {
    from_place: u64,
    from_tag: u64,
    exchange_inode: Option<u32>,
}

/// Reads one directory.
pub(super) fn look(image: &Path, view: &MemoryView, which: &Which) -> Result<Shown, Failure> {
    let number = number(image, view, which)?;
    let attr = view.attr(u64::from(number));
    match attr.map_err(|e| which.failure(image, &e))?.kind {
        FileKind::Directory => {}
        _ => return Err(which.failure(image, &Errno::NotDir.into())),
    }
    let mut pages = Vec::new();
    view.map(image, |run| {
        if run.what == (PageUse::Directory { inode: number }) {
            pages.extend(run.pages.map(Page));
        }
    })?;
    let mut pages: Vec<DirPage> = pages
        .into_iter()
        .map(|page| DirPage::of(view, page))
        .collect();
    pages.sort_by_key(|page| page.offset);
    let slots = pages.iter().flat_map(|page| &page.slots);
    Ok(Shown {
        image: image.display().to_string(),
        inode: number,
        entries: slots.filter(|slot| slot.alive).count() as u64,
        pages,
        damage: view.damage(),
    })
}

impl DirPage {
    fn of(view: &MemoryView, page: Page) -> DirPage {
        let mut slots = Vec::new();
        let mut index = 0;
        while index < SLOTS_PER_PAGE {
            let slot = view.words.slot(Place::new(page, index));
            let slot = slot.and_then(|slot| Slot::of(view, &slot));
            // Slots that continue a name are not slots of their own.
            index += slot
                .as_ref()
                .filter(|slot| slot.alive)
                .map_or(1, |slot| slot.slots.max(1));
            slots.extend(slot);
        }
        DirPage {
            page: page.0,
            offset: view.words.page(page).map_or(0, |page| page.offset),
            slots,
        }
    }
}

impl Slot {
    fn of(view: &MemoryView, slot: &SlotDump) -> Option<Slot> {
        let inode = slot.inode?;
        let kind = view.words.inode(inode.number).and_then(|inode| inode.kind);
        Some(Slot {
            place: slot.place.0,
            byte: slot.address,
            name: slot.name.as_deref().map(name),
            inode: inode.number,
            generation: inode.generation,
            alive: slot.inode_alive,
            kind: kind.filter(|_| slot.inode_alive).map(kind_name),
            slots: slot.slots,
            tag: slot.tag.tag,
            hash_matches: slot.hash_matches,
            pointer: slot.pointer.map(|pointer| Pointer {
                from_place: pointer.from.0,
                from_tag: pointer.tag,
                exchange_inode: pointer.exchange,
            }),
        })
    }

    fn line(&self) -> String {
        let mut line = format!(
            "  place {:<10} inode {:<10} {:<9} {}",
            self.place,
            self.inode,
            self.kind.unwrap_or("(dead)"),
            self.name.as_deref().unwrap_or("(no name)")
        );
        if let Some(pointer) = &self.pointer {
            let _ = write!(
                line,
                "  (came from place {}, tag {}{})",
                pointer.from_place,
                pointer.from_tag,
                match pointer.exchange_inode {
                    Some(inode) => format!(", in exchange for inode {inode}"),
                    None => String::new(),
                }
            );
        }
        if self.alive && !self.hash_matches {
            line.push_str("  (the hash of the name is wrong)");
        }
        line
    }
}

impl Shown {
    pub(super) fn lines(&self) -> String {
        let mut text = format!("directory {}: {} entries", self.inode, self.entries);
        for page in &self.pages {
            let slots = page.slots.len();
            let _ = write!(
                text,
                "\npage {}: page {} of it, {slots} slots in use",
                page.page, page.offset
            );
            for slot in &page.slots {
                let _ = write!(text, "\n{}", slot.line());
            }
        }
        for why in &self.damage {
            let _ = write!(text, "\ndamage: {why}");
        }
        text
    }
}
