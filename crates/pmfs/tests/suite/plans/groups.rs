//! From addresses and the layout to the groups that the plans speak of.

use std::collections::{BTreeMap, BTreeSet};
use steadfast_pm::{Event, LINE_BYTES, Trace};
use steadfast_pmfs::layout::*;
use steadfast_vfs::FileKind;

/// Kind of a call, as far as its groups depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A rename of any kind: it has a source and a target.
    Rename,
    /// Any other.
    Other,
}

impl Call {
    pub fn of(text: &str) -> Call {
        if text.starts_with("rename") {
            Call::Rename
        } else {
            Call::Other
        }
    }
}

/// The groups of a call.
pub struct Found {
    /// Between fences, in the order in which they begin.
    pub phases: Vec<Vec<&'static str>>,
    /// Of each line in each phase, or of each of the two descriptors in a line, the groups in the order of their stores.
    pub lines: Vec<(u64, Vec<&'static str>)>,
}

/// The region's content before and after a call, and the words that the call stores.
struct Words<'t> {
    geometry: Geometry,
    before: &'t [u64],
    after: Vec<u64>,
    stored: BTreeSet<u64>,
    call: Call,
}

/// The groups of a trace that has one call.
pub fn groups(trace: &Trace, call: Call) -> Result<Found, String> {
    let before = trace.base();
    let word = |at: u64| before[(at / 8) as usize];
    let geometry = Geometry {
        pages: word(superblock::PAGES),
        chunk_pages: word(superblock::CHUNK_PAGES),
        chunk_inodes: word(superblock::CHUNK_INODES),
    };
    let mut words = Words {
        geometry,
        before,
        after: before.to_vec(),
        stored: BTreeSet::new(),
        call,
    };
    for event in trace.events() {
        if let Event::Store { at, word } | Event::Data { at, word } = *event {
            words.after[(at / 8) as usize] = word;
            words.stored.insert(at);
        }
    }
    let mut found = Found {
        phases: vec![],
        lines: vec![],
    };
    let mut phase: Vec<&'static str> = vec![];
    let mut lines: BTreeMap<u64, Vec<&'static str>> = BTreeMap::new();
    // Words stored so far: a target's pointer is cleared before its tag is stored, and again when it is set.
    let mut done: BTreeSet<u64> = BTreeSet::new();
    for event in trace.events() {
        match *event {
            Event::Store { at, word } => {
                let label = words.label(at, word, &done)?;
                done.insert(at);
                if !phase.contains(&label) {
                    phase.push(label);
                }
                let line = lines.entry(words.object(at)).or_default();
                if line.last() != Some(&label) {
                    line.push(label);
                }
            }
            Event::Data { at, .. } => {
                let label = words.data_label(at)?;
                if !phase.contains(&label) {
                    phase.push(label);
                }
            }
            Event::Fence => {
                found.phases.push(std::mem::take(&mut phase));
                found.lines.extend(std::mem::take(&mut lines));
            }
            Event::WriteBack { .. } | Event::Mark(_) => {}
        }
    }
    if !phase.is_empty() {
        return Err(format!("{phase:?} is not fenced"));
    }
    Ok(found)
}

impl Words<'_> {
    fn was(&self, at: u64) -> u64 {
        self.before[(at / 8) as usize]
    }

    fn now(&self, at: u64) -> u64 {
        self.after[(at / 8) as usize]
    }

    fn is_stored(&self, at: u64) -> bool {
        self.stored.contains(&at)
    }

    /// First byte of the line, or of the descriptor.
    fn object(&self, at: u64) -> u64 {
        let chunk = at / PAGE_BYTES / self.geometry.chunk_pages;
        let descriptors = self
            .geometry
            .desc_at(Page(chunk * self.geometry.chunk_pages));
        let described = descriptors..self.geometry.tables(chunk).end;
        at - at
            % if described.contains(&at) {
                DESC_BYTES
            } else {
                LINE_BYTES
            }
    }

    /// The group of an ordinary store.
    fn label(&self, at: u64, word: u64, done: &BTreeSet<u64>) -> Result<&'static str, String> {
        let page = Page(at / PAGE_BYTES);
        if self.geometry.is_data_page(page) {
            return self.slot_label(at, word, done);
        }
        let chunk = page.0 / self.geometry.chunk_pages;
        let tables = self.geometry.tables(chunk);
        let descriptors = self
            .geometry
            .desc_at(Page(chunk * self.geometry.chunk_pages));
        match at {
            _ if !tables.contains(&at) => Err(format!("a store to the superblock at {at:#x}")),
            _ if at < descriptors => {
                let index = (at - tables.start) / INODE_BYTES;
                let number = chunk * self.geometry.chunk_inodes + index + 1;
                self.inode_label(number as u32, (at - tables.start) % INODE_BYTES)
            }
            _ => {
                let index = (at - descriptors) / DESC_BYTES;
                self.desc_label(Page(chunk * self.geometry.chunk_pages + index))
            }
        }
    }

    fn inode_label(&self, number: u32, byte: u64) -> Result<&'static str, String> {
        let at = self.geometry.inode_at(number);
        if self.is_stored(at + inode::BIRTH) {
            return Ok(if byte == inode::BIRTH {
                "inode.birth"
            } else if byte < LINE_BYTES {
                "inode.body"
            } else {
                "inode.extra"
            });
        }
        let commits = self.is_stored(at + inode::COMMIT);
        let inline = (inode::INLINE..INODE_BYTES).step_by(8);
        let inline = commits && inline.chain([inode::EXTRA]).any(|b| self.is_stored(at + b));
        let (_, kind) = birth_parts(self.was(at + inode::BIRTH));
        Ok(match byte {
            inode::COMMIT => "inode.commit",
            _ if commits && byte < LINE_BYTES => "inode.slot",
            _ if inline && byte >= LINE_BYTES => "inode.inline",
            _ if kind == Some(FileKind::Directory) => "touch",
            _ => "inode.times",
        })
    }

    fn desc_label(&self, page: Page) -> Result<&'static str, String> {
        let at = self.geometry.desc_at(page);
        let offset = PageOffset::from_word(self.now(at + desc::OFFSET));
        let offset = offset.ok_or(format!("page {} has no kind", page.0))?;
        let life = Life::from_word(self.now(at + desc::LIFE));
        if self.is_stored(at + desc::OWNER) {
            return Ok(match (offset.kind, life.next) {
                (PageKind::Directory, _) => "dirpage",
                (_, PageState::Unwritten) => "reserve",
                _ => "desc",
            });
        }
        if self.now(at + desc::LIFE) == 0 {
            return Ok("olddir.die");
        }
        let owner =
            InodeRef::from_word(self.now(at + desc::OWNER)).ok_or("a page without an owner")?;
        let inode_at = self.geometry.inode_at(owner.number);
        let commit = Commit::from_word(self.now(inode_at + inode::COMMIT));
        let size = self.now(inode_at + inode::SIZE[commit.parity()]);
        let past = offset.offset >= size.div_ceil(PAGE_BYTES);
        Ok(match (life.cur, life.next) {
            (PageState::Unwritten, PageState::Written) => "old.turn",
            (PageState::Written, PageState::Unwritten) => "old.clear",
            (cur, PageState::Free) if offset.kind == PageKind::Data => {
                if cur == PageState::Unwritten || past {
                    "old.drop"
                } else {
                    "old.die"
                }
            }
            (_, PageState::Free) => "old.die",
            _ => return Err(format!("page {} gets the life {life:?}", page.0)),
        })
    }

    /// Whether the call adopts the page.
    fn is_new(&self, page: Page) -> bool {
        self.is_stored(self.geometry.desc_at(page) + desc::OWNER)
    }

    fn is_directory(&self, page: Page) -> bool {
        let offset = self.now(self.geometry.desc_at(page) + desc::OFFSET);
        PageOffset::from_word(offset).is_some_and(|offset| offset.kind == PageKind::Directory)
    }

    fn slot_label(&self, at: u64, word: u64, done: &BTreeSet<u64>) -> Result<&'static str, String> {
        let page = Page(at / PAGE_BYTES);
        if !self.is_directory(page) {
            return Err(format!("an ordinary store to data at {at:#x}"));
        }
        let (slot_at, byte) = (at / SLOT_BYTES * SLOT_BYTES, at % SLOT_BYTES);
        let commit = slot_at + slot::COMMIT;
        // In a new page, old bytes in the commit word of a continuation are cleared.
        let named = self.now(commit) != 0 || (self.was(commit) != 0 && !self.is_new(page));
        if !self.is_stored(commit) || !named {
            return Ok("dentry.cont");
        }
        if self.call == Call::Other {
            return Ok(if byte == slot::COMMIT {
                "dentry.ino"
            } else {
                "dentry.body"
            });
        }
        let pointer = slot_at + slot::POINTER;
        let target = self.is_stored(pointer) && self.now(pointer) != 0;
        let over = self.was(commit) != 0 && !self.is_new(page);
        let tagged = done.contains(&(slot_at + slot::TAG));
        Ok(match (target, byte) {
            (true, slot::COMMIT) => "D.ino",
            (true, slot::POINTER) if word == 0 && !over && !tagged => "D.body",
            (true, slot::POINTER | slot::OTHER) => "D.rptr",
            (true, slot::TAG) if over => "D.tag",
            (true, _) => "D.body",
            (false, slot::COMMIT) => "S.ino",
            (false, slot::POINTER) => "S.ptr",
            (false, slot::TAG) => "S.tag",
            _ => return Err(format!("a store to the source's slot at {at:#x}")),
        })
    }

    /// The group of a non-temporal store.
    fn data_label(&self, at: u64) -> Result<&'static str, String> {
        let page = Page(at / PAGE_BYTES);
        if !self.geometry.is_data_page(page) {
            return Err(format!("data in a table at {at:#x}"));
        }
        Ok(if self.is_new(page) && self.is_directory(page) {
            "page.zero"
        } else {
            "data"
        })
    }
}
