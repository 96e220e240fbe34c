//! Each call as labelled groups of stores, in program order in a group. A plan says which groups share a fence.
//!
//! Names are here, files in [`files`].

mod files;

use crate::mount::View;
use crate::pm::*;
use crate::spec::*;
use crate::volume::*;
use words::{
    AttributePlace, Commit, Life, PageKind, PageState, Pointer, Tag, desc as desc_word,
    inode as inode_word, slot as slot_word,
};

/// Labelled stores.
pub type Groups = Vec<(&'static str, Vec<Store>)>;

/// Choice of objects, and granularity of the groups of stores.
#[derive(Clone, Copy, Default)]
pub struct Choice<'a> {
    /// Index among the free objects.
    pub pick: usize,
    /// Descriptors in three groups.
    pub fine: bool,
    /// Beside a call that is not yet durable: only objects that were free before it, too, may be allocated.
    pub before: Option<&'a View>,
}

struct Builder<'a> {
    layout: Layout,
    image: &'a Image,
    view: View,
    choice: Choice<'a>,
    groups: Groups,
    taken: Vec<usize>,
    now: u64,
}

/// The stores of `op`, or `None` if something is full: then nothing is stored.
pub fn groups(
    layout: Layout,
    image: &Image,
    open: Option<u64>,
    op: &Op,
    choice: Choice<'_>,
) -> Option<Groups> {
    let mut view = layout
        .scan(image, open)
        .expect("the state of a running system is sound");
    if let Some(before) = choice.before {
        view.free_pages.retain(|p| before.free_pages.contains(p));
        view.free_inodes.retain(|i| before.free_inodes.contains(i));
    }
    let now = 1 + view.times.values().flatten().copied().max().unwrap_or(0);
    let mut b = Builder {
        layout,
        image,
        view,
        choice,
        groups: vec![],
        taken: vec![],
        now,
    };
    match op {
        Op::Create(at) => b.create(*at, FILE, &[], &[])?,
        Op::CreateWith(at, set) => b.create(*at, FILE, &[], set)?,
        Op::Mkdir(at) => b.create(*at, DIRECTORY, &[], &[])?,
        Op::Symlink(at, target) => b.create(*at, SYMLINK, target, &[])?,
        Op::Tmpfile => {
            b.inode(FILE, &[], &[])?;
        }
        Op::Open(_) => {}
        Op::Link(from, to) => b.link(*from, *to)?,
        Op::Unlink(at) | Op::Rmdir(at) => b.remove(*at, matches!(op, Op::Rmdir(_)))?,
        Op::Rename(from, to) | Op::Exchange(from, to) | Op::Whiteout(from, to) => {
            b.rename(*from, *to, op)?
        }
        Op::Poke(words) => b.put("poke", words.iter().map(|w| store(w.0, w.1)).collect()),
        _ => b.change(op)?,
    }
    Some(b.groups)
}

impl Builder<'_> {
    fn put(&mut self, label: &'static str, stores: Vec<Store>) {
        if stores.is_empty() {
            return;
        }
        match self.groups.iter_mut().find(|g| g.0 == label) {
            Some(group) => group.1.extend(stores),
            None => self.groups.push((label, stores)),
        }
    }

    fn page(&mut self) -> Option<usize> {
        let free: Vec<usize> = self
            .view
            .free_pages
            .iter()
            .copied()
            .filter(|p| !self.taken.contains(p))
            .collect();
        let page = *free.get(self.choice.pick % free.len().max(1))?;
        self.taken.push(page);
        Some(page)
    }

    /// A descriptor for a page without an owner. Its old words belong to another life: neutral first, alive last.
    fn adopt(&mut self, page: usize, owner: u64, offset: u64, kind: PageKind, life: Life) {
        let [one, kill, body, alive] = if kind == PageKind::Directory {
            ["dirpage", "dirpage.kill", "dirpage.body", "dirpage.life"]
        } else if life.next == PageState::Unwritten {
            ["reserve", "desc.kill", "desc.body", "desc.life"]
        } else {
            ["desc", "desc.kill", "desc.body", "desc.life"]
        };
        let neutral = store(desc(page, desc_word::LIFE), 0);
        let words = page_of(page, owner, offset, kind, life);
        if self.choice.fine {
            self.put(kill, vec![neutral]);
            self.put(body, words[..2].to_vec());
            self.put(alive, words[2..].to_vec());
        } else {
            self.put(one, [&[neutral], &words[..]].concat());
        }
    }

    /// A free slot of a directory, two for a long name; in a new page if there is none.
    fn room(&mut self, dir: u64, name: u64) -> Option<Slot> {
        let free = self.view.free_slots.get(&dir).cloned().unwrap_or_default();
        let fits = |s: &Slot| !is_long(name) || self.layout.wide || free.contains(&(s.0, s.1 + 1));
        let heads: Vec<Slot> = free.iter().copied().filter(fits).collect();
        if !heads.is_empty() {
            return Some(heads[self.choice.pick % heads.len()]);
        }
        let page = self.page()?;
        let offset = self.view.dir_pages[&dir].len() as u64;
        let words = [
            slot_word::COMMIT,
            slot_word::POINTER,
            slot_word::OTHER,
            slot_word::TAG,
            slot_word::NAME,
        ];
        let zeros =
            (0..SLOTS).flat_map(|s| words.map(|w| stream(self.layout.slot((page, s), w), 0)));
        let zeros = zeros.collect();
        self.put("page.zero", zeros);
        let key = self.layout.key(self.image, dir);
        self.adopt(
            page,
            key,
            offset,
            PageKind::Directory,
            Life::settled(PageState::Written),
        );
        Some((page, self.choice.pick % (SLOTS - 1)))
    }

    /// All of a slot but commit word and, in a rename, pointer.
    fn head(&mut self, label: &'static str, slot: Slot, name: u64) {
        let l = self.layout;
        let long = is_long(name);
        let tag = Tag {
            tag: self.view.next_tag,
            len: if long { 40 } else { 1 },
            hash: name as u8,
        };
        self.view.next_tag += 1;
        let mut words = vec![
            store(l.slot(slot, slot_word::TAG), tag.word()),
            store(l.slot(slot, slot_word::NAME), name & 0xff),
        ];
        if label == "dentry.body" {
            words.insert(0, store(l.slot(slot, slot_word::POINTER), 0));
        }
        self.put(label, words);
        if long {
            let rest = l.slot((slot.0, slot.1 + 1), slot_word::CONT);
            self.put("dentry.cont", vec![store(rest, name >> 8)]);
        }
    }

    /// A new inode: its number and key.
    fn inode(&mut self, kind: u64, target: &[u64], set: &[u64]) -> Option<(u64, u64)> {
        let free = &self.view.free_inodes;
        let number = *free.get(self.choice.pick % free.len().max(1))?;
        let old = self.layout.last_generation(self.image, number);
        let generation = match (self.layout.generations, old == u64::from(u32::MAX)) {
            (false, _) | (true, true) => 1,
            (true, false) => old + 1,
        };
        let key = number << 32
            | if self.layout.generations {
                generation
            } else {
                0
            };
        let inline = [target, set]
            .into_iter()
            .find(|x| x.len() == 1)
            .map(|x| x[0]);
        for (content, pages) in [(target, PageKind::Data), (set, PageKind::Attributes)] {
            if content.len() > 1 {
                let page = self.page()?;
                self.put(
                    "data",
                    content
                        .iter()
                        .enumerate()
                        .map(|(k, w)| stream(data(page, k), *w))
                        .collect(),
                );
                self.adopt(page, key, 0, pages, Life::settled(PageState::Written));
            }
        }
        let commit = Commit {
            sequence: 0,
            perm: NEW as u16 & 0xfff,
            attributes: match set.len() {
                0 => AttributePlace::None,
                1 => AttributePlace::Inline,
                _ => AttributePlace::Pages,
            },
        };
        let at = |byte| inode(number, byte);
        let mut body = vec![
            store(at(inode_word::COMMIT), commit.word()),
            store(at(inode_word::SIZE[0]), target.len() as u64),
            store(at(inode_word::OWNER[0]), NEW >> 12),
        ];
        let mut extra_line = vec![];
        if self.layout.kill_extra {
            extra_line.push(store(at(inode_word::EXTRA), 0));
        }
        if self.layout.times {
            body.extend(
                [inode_word::MTIME, inode_word::CTIME].map(|byte| store(at(byte), self.now)),
            );
            extra_line.extend(
                [inode_word::BTIME, inode_word::ATIME].map(|byte| store(at(byte), self.now)),
            );
        } else if self.layout.links != Links::Derived {
            body.push(store(at(LINKS), if kind == DIRECTORY { 2 } else { 1 }));
        }
        if let Some(word) = inline {
            extra_line.push(store(at(inode_word::INLINE), word));
        }
        if self.layout.times || inline.is_some() {
            let len = if set.len() == 1 { 8 } else { 0 };
            extra_line.push(store(at(inode_word::EXTRA), extra(generation, len)));
            self.put("inode.extra", extra_line);
        }
        self.put("inode.body", body);
        self.put(
            "inode.birth",
            vec![store(at(inode_word::BIRTH), birth(generation, kind))],
        );
        Some((number, key))
    }

    fn count(&mut self, label: &'static str, number: u64, by: i64) {
        if self.layout.links != Links::Derived {
            let at = inode(number, LINKS);
            self.put(label, vec![store(at, (self.image[at] as i64 + by) as u64)]);
        }
    }

    fn touch(&mut self, dir: u64) {
        if self.layout.times {
            let words = [inode_word::MTIME, inode_word::CTIME]
                .map(|byte| store(inode(dir, byte), self.now));
            self.put("touch", words.to_vec());
        }
    }

    fn changed(&mut self, number: u64) {
        if self.layout.times {
            self.put(
                "inode.times",
                vec![store(inode(number, inode_word::CTIME), self.now)],
            );
        }
    }

    fn dir_of(&self, at: At) -> u64 {
        self.view.tree.dir(at.0).expect("the call was checked") >> 32
    }

    fn slot_at(&self, at: At) -> Slot {
        self.view.slots[&(self.dir_of(at), at.1)]
    }

    fn key(&self, number: u64) -> u64 {
        self.layout.key(self.image, number)
    }

    /// One name of an inode goes. With generations an inode without names is free at once.
    fn drop_link(&mut self, number: u64) {
        let key = self.key(number);
        if !self.view.tree.is_dir(key) && self.view.tree.links(key) > 1 {
            return self.count("inode.nlink", number, -1);
        }
        if self.layout.generations {
            return;
        }
        let words = (0..words::INODE_BYTES).step_by(8);
        self.put(
            "inode.zero",
            words.map(|byte| store(inode(number, byte), 0)).collect(),
        );
        for page in (0..PAGES).filter(|&p| self.image[desc(p, desc_word::OWNER)] == key) {
            let words = [desc_word::OWNER, desc_word::OFFSET, desc_word::LIFE];
            self.put(
                "desc.zero",
                words.map(|byte| store(desc(page, byte), 0)).to_vec(),
            );
        }
    }

    /// The pages of a directory that loses its name.
    fn kill(&mut self, number: u64) {
        if self.layout.kills && self.layout.generations {
            let pages = self
                .view
                .dir_pages
                .get(&number)
                .cloned()
                .unwrap_or_default();
            let lives = pages.iter().map(|&p| store(desc(p, desc_word::LIFE), 0));
            self.put("olddir.die", lives.collect());
        }
    }

    fn wipe(&mut self, label: &'static str, slot: Slot) {
        if !self.layout.generations {
            let words = [slot_word::POINTER, slot_word::TAG, slot_word::NAME];
            self.put(
                label,
                words
                    .map(|byte| store(self.layout.slot(slot, byte), 0))
                    .to_vec(),
            );
        }
    }

    fn create(&mut self, at: At, kind: u64, target: &[u64], set: &[u64]) -> Option<()> {
        let dir = self.dir_of(at);
        let slot = self.room(dir, at.1)?;
        let (_, key) = self.inode(kind, target, set)?;
        self.head("dentry.body", slot, at.1);
        if kind == DIRECTORY {
            self.count("parent.nlink", dir, 1);
        }
        self.put(
            "dentry.ino",
            vec![store(self.layout.slot(slot, slot_word::COMMIT), key)],
        );
        self.touch(dir);
        Some(())
    }

    fn link(&mut self, from: At, to: At) -> Option<()> {
        let key = self.view.tree.get(from)?;
        let dir = self.dir_of(to);
        let slot = self.room(dir, to.1)?;
        self.head("dentry.body", slot, to.1);
        self.put(
            "dentry.ino",
            vec![store(self.layout.slot(slot, slot_word::COMMIT), key)],
        );
        self.count("inode.nlink", key >> 32, 1);
        self.touch(dir);
        self.changed(key >> 32);
        Some(())
    }

    fn remove(&mut self, at: At, is_dir: bool) -> Option<()> {
        let (slot, number) = (self.slot_at(at), self.view.tree.get(at)? >> 32);
        let dir = self.dir_of(at);
        self.put(
            "dentry.ino",
            vec![store(self.layout.slot(slot, slot_word::COMMIT), 0)],
        );
        self.wipe("dentry.zero", slot);
        self.drop_link(number);
        if is_dir {
            self.kill(number);
            self.count("parent.nlink", dir, -1);
        }
        self.touch(dir);
        self.changed(number);
        Some(())
    }

    /// Rename, exchange, and the rename that leaves a whiteout.
    fn rename(&mut self, from: At, to: At, op: &Op) -> Option<()> {
        let l = self.layout;
        let (source, key) = (self.slot_at(from), self.view.tree.get(from)?);
        let old = self.view.tree.get(to);
        if old == Some(key) {
            return Some(()); // two names of one file
        }
        let (from_dir, to_dir) = (self.dir_of(from), self.dir_of(to));
        let other = match op {
            Op::Exchange(..) => old,
            Op::Whiteout(..) => Some(self.inode(WHITEOUT, &[], &[])?.1),
            _ => None,
        };
        let target = match old {
            Some(_) => self.slot_at(to),
            None => {
                let slot = self.room(to_dir, to.1)?;
                self.head("D.body", slot, to.1);
                slot
            }
        };
        let word = |slot, byte| l.slot(slot, byte);
        let tag_of = |slot| Tag::from_word(self.image[word(slot, slot_word::TAG)]);
        let (source_tag, target_tag) = (tag_of(source), tag_of(target));
        let pointer = Pointer {
            from: place(source),
            tag: if l.tags { source_tag.tag } else { 0 },
            exchange: other.map(|o| (o >> 32) as u32),
        };
        let (pointer, second) = pointer.words();
        let mut words = vec![
            store(word(target, slot_word::OTHER), second),
            store(word(target, slot_word::POINTER), pointer),
        ];
        if old.is_some() && l.clear_first && l.tags {
            words.insert(0, store(word(target, slot_word::POINTER), 0));
        }
        self.put("D.rptr", words);
        if old.is_some() && l.tags && l.bump.target() {
            let tag = Tag {
                tag: self.view.next_tag,
                ..target_tag
            };
            self.view.next_tag += 1;
            self.put(
                "D.tag",
                vec![store(word(target, slot_word::TAG), tag.word())],
            );
        }
        self.put("D.ino", vec![store(word(target, slot_word::COMMIT), key)]);
        if other.is_some() && l.tags && l.swap_clears {
            self.put("S.ptr", vec![store(word(source, slot_word::POINTER), 0)]);
        }
        self.put(
            "S.ino",
            vec![store(word(source, slot_word::COMMIT), other.unwrap_or(0))],
        );
        if other.is_some() && l.tags && l.bump.source() {
            let tag = Tag {
                tag: self.view.next_tag,
                ..source_tag
            };
            self.put(
                "S.tag",
                vec![store(word(source, slot_word::TAG), tag.word())],
            );
        }
        if !l.tags {
            self.put("D.unptr", vec![store(word(target, slot_word::POINTER), 0)]);
        }
        self.touch(from_dir);
        if to_dir != from_dir {
            self.touch(to_dir);
        }
        self.changed(key >> 32);
        if let Some(old) = old {
            self.changed(old >> 32);
        }
        if matches!(op, Op::Exchange(..)) {
            return Some(());
        }
        self.wipe("S.zero", source);
        if self.view.tree.is_dir(key) && (from_dir != to_dir || old.is_some()) {
            if from_dir == to_dir {
                self.count("old.nlink", to_dir, -1);
            } else {
                if old.is_none() {
                    self.count("new.nlink", to_dir, 1);
                }
                self.count("old.nlink", from_dir, -1);
            }
        }
        if let Some(old) = old {
            if self.view.tree.is_dir(old) {
                self.kill(old >> 32);
            }
            self.drop_link(old >> 32);
        }
        Some(())
    }
}
