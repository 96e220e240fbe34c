//! Directories: their leaves, their entries, and the walk from the root directory.

use super::check::{Changes, Check};
use super::finding::{Place, Problem};
use super::source::AHEAD_BLOCKS;
use super::table::Slot;
use super::tree::Tree;
use crate::layout::{
    COOKIE_MAX, COOKIE_SPARE_BITS, DIR_UNIT, DIR_UNITS, DirEntryHeader, INODE_SLOTS, Item,
    META_BYTES,
};
use siphasher::sip::SipHasher24;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use steadfast_block::{Block, BlockNo};
use steadfast_vfs::{FileKind, Ino, NAME_MAX};
use zerocopy::FromBytes;

const HEADER: usize = size_of::<DirEntryHeader>();
/// Directories that are looked at together, so that their blocks can be read ahead.
const DIRECTORIES_AT_ONCE: usize = 256;
/// Cookies that tell entries with one hash apart.
pub(super) const COOKIE_SPARE: u64 = 1 << COOKIE_SPARE_BITS;
/// The directory for inodes that have lost their names.
pub(super) const LOST_FOUND: &[u8] = b"lost+found";

/// First cookie of a name's entries: its hash without the spare bits, never zero.
pub(super) fn cookie_base(key: &[u8; 16], name: &[u8]) -> u64 {
    let hash = SipHasher24::new_with_key(key).hash(name) >> 1;
    (hash & !(COOKIE_SPARE - 1)).max(COOKIE_SPARE)
}

/// Units that an entry with a name of `len` bytes takes.
pub(super) fn units(len: usize) -> usize {
    (HEADER + len).div_ceil(DIR_UNIT)
}

/// The kind that a number stands for.
pub(super) fn kind_of_number(number: u8) -> Option<FileKind> {
    Some(match number {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::CharDevice,
        5 => FileKind::BlockDevice,
        6 => FileKind::Fifo,
        7 => FileKind::Socket,
        _ => return None,
    })
}

/// An entry as it lies in a leaf.
pub(super) struct Raw<'a> {
    pub(super) unit: usize,
    pub(super) ino: Ino,
    pub(super) cookie: u64,
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    /// Its padding is zero.
    pub(super) tidy: bool,
}

/// Reason why a name is invalid.
pub(super) fn name_fault(name: &[u8]) -> Option<&'static str> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Some("is empty");
    }
    if name.contains(&0) || name.contains(&b'/') {
        return Some("contains a zero byte or a slash");
    }
    (name == b"." || name == b"..").then_some("is '.' or '..'")
}

/// The entries of a leaf; malformed ones are given to `bad` (their unit, their fault).
pub(super) fn entries<'a>(leaf: &'a Block, mut bad: impl FnMut(usize, String)) -> Vec<Raw<'a>> {
    let mut found = Vec::new();
    let mut unit = 0;
    while unit < DIR_UNITS {
        let bytes = &leaf[unit * DIR_UNIT..META_BYTES];
        let here = &bytes[..DIR_UNIT];
        if here[..8].iter().all(|byte| *byte == 0) {
            if here[8..].iter().any(|byte| *byte != 0) {
                bad(unit, "a free unit is not all zero".into());
            }
            unit += 1;
            continue;
        }
        let Ok((header, rest)) = DirEntryHeader::ref_from_prefix(bytes) else {
            bad(unit, "an entry has no room for its name".into());
            break;
        };
        let (len, taken) = (usize::from(header.len), units(header.len.into()));
        if len == 0 || unit + taken > DIR_UNITS {
            bad(unit, format!("an entry has a name of {len} bytes"));
            unit += 1;
            continue;
        }
        found.push(Raw {
            unit,
            ino: header.ino.get(),
            cookie: header.cookie.get(),
            kind: header.kind,
            name: &rest[..len],
            tidy: rest[len..taken * DIR_UNIT - HEADER]
                .iter()
                .all(|byte| *byte == 0),
        });
        unit += taken;
    }
    found
}

/// A name as messages show it.
pub(super) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}

/// Counts of a directory's content, from its walk.
#[derive(Default)]
struct Counts {
    entries: u64,
    directories: u64,
}

impl Check<'_> {
    /// Claims the leaves that an index names; takes out those that cannot be used.
    pub(super) fn check_leaves(&mut self, dir: Ino, tree: &mut Tree) {
        let mut kept: Vec<Item> = Vec::with_capacity(tree.items.len());
        for (index, item) in tree.items.iter().enumerate() {
            if index % AHEAD_BLOCKS == 0 {
                let next = tree.items[index..].iter().take(AHEAD_BLOCKS);
                self.read_ahead(next.map(|item| item.block.get()).collect());
            }
            let at = item.block.get();
            if !self.vol.is_data(BlockNo(at)) || item.len.get() != 1 || item.flags.get() != 0 {
                self.log.add(
                    Problem::TreePointer,
                    Place::ino(dir),
                    format!("its index names block {at}, where no directory block can be"),
                );
                tree.damaged = true;
                continue;
            }
            if self.used.get(at) {
                self.twice(dir, at, 1, "a directory block");
                tree.damaged = true;
                continue;
            }
            if let Err(bad) = self.source.meta(at) {
                self.log.add(
                    Problem::LeafUnreadable,
                    Place::both(dir, at),
                    format!("a directory block {bad}"),
                );
                self.retired.insert(at);
                tree.damaged = true;
                continue;
            }
            self.used.insert(at);
            kept.push(*item);
        }
        if let Some(first) = kept.first_mut()
            && first.key.get() != 0
        {
            if !tree.damaged {
                self.log.add(
                    Problem::TreeItem,
                    Place::ino(dir),
                    format!("its index starts at {}, not at zero", first.key.get()),
                );
            }
            first.key = 0.into();
            tree.damaged = true;
        }
        tree.items = kept;
    }

    /// The leaves of a directory: block, and the cookies that belong there.
    pub(super) fn leaves(&mut self, dir: Ino) -> Vec<(u64, u64, u64)> {
        let inode = self.inode(dir);
        let items = self.tree_of(dir, &inode).items;
        let ends = items
            .iter()
            .skip(1)
            .map(|item| item.key.get())
            .chain([COOKIE_MAX]);
        items
            .iter()
            .zip(ends)
            .map(|(item, end)| (item.block.get(), item.key.get(), end))
            .collect()
    }

    /// Step 3: the entries of the orphan directory.
    pub(super) fn read_orphans(&mut self) {
        let dir = self.vol.orphans;
        let mut counts = Counts::default();
        for (at, low, high) in self.leaves(dir) {
            let Ok(leaf) = self.source.meta(at) else {
                continue;
            };
            for entry in self.well_formed(dir, at, &leaf, (low, high)) {
                let expected = format!("{:016x}", entry.ino);
                let block = entry.ino / INODE_SLOTS;
                if self.slot(entry.ino).is_none() && self.marked(block) != Some(false) {
                    self.adopt_inodes(block);
                }
                let kind = self.kind(entry.ino);
                let fault = if entry.name != expected.as_bytes() {
                    Some(format!(
                        "the name '{}' for inode {}",
                        show(entry.name),
                        entry.ino
                    ))
                } else if self.is_special(entry.ino) || kind.is_none() {
                    Some(format!(
                        "an entry for inode {}, which cannot be one",
                        entry.ino
                    ))
                } else {
                    None
                };
                if let Some(what) = fault {
                    self.log.add(
                        Problem::OrphanEntry,
                        Place::both(dir, at),
                        format!("the orphan directory has {what}"),
                    );
                    self.dirs
                        .entry(dir)
                        .or_default()
                        .drop
                        .insert((at, entry.unit));
                    continue;
                }
                if let Some(kind) = kind {
                    self.check_entry_kind(dir, at, &entry, kind);
                }
                self.orphans.insert(entry.ino, (at, entry.unit));
                counts.entries += 1;
            }
        }
        self.compare_directory(dir, &counts);
    }

    /// The entries of a leaf that can be used; the others are reported.
    fn well_formed<'b>(
        &mut self,
        dir: Ino,
        at: u64,
        leaf: &'b Rc<Block>,
        (low, high): (u64, u64),
    ) -> Vec<Raw<'b>> {
        let place = Place::both(dir, at);
        let mut bad = Vec::new();
        let raw = entries(leaf, |unit, why| bad.push((unit, why)));
        if low > 0 && raw.is_empty() && bad.is_empty() {
            self.log.add(
                Problem::LeafEmpty,
                place.clone(),
                "a directory block is empty",
            );
            self.dirs.entry(dir).or_default();
        }
        for (unit, why) in bad {
            let detail = format!("unit {unit} of a directory block is malformed: {why}");
            self.log.add(Problem::EntryMalformed, place.clone(), detail);
            self.dirs.entry(dir).or_default();
        }
        let (mut names, mut cookies) = (BTreeSet::new(), BTreeSet::new());
        let mut good = Vec::with_capacity(raw.len());
        for entry in raw {
            let name = show(entry.name);
            if let Some(why) = name_fault(entry.name) {
                self.bad_entry(
                    dir,
                    at,
                    Problem::EntryName,
                    format!("the name '{name}' {why}"),
                )
                .drop
                .insert((at, entry.unit));
                continue;
            }
            if !names.insert(entry.name) {
                self.bad_entry(
                    dir,
                    at,
                    Problem::EntryDuplicate,
                    format!("the name '{name}' is there twice"),
                )
                .drop
                .insert((at, entry.unit));
                continue;
            }
            if !entry.tidy {
                let detail = format!("the padding of the entry '{name}' is not zero");
                self.bad_entry(dir, at, Problem::EntryMalformed, detail);
            }
            let base = cookie_base(&self.vol.hash_key, entry.name);
            if entry.cookie & !(COOKIE_SPARE - 1) != base {
                let detail = format!("the entry '{name}' has the cookie of another name");
                self.bad_entry(dir, at, Problem::EntryCookie, detail);
            } else if entry.cookie < low || entry.cookie >= high {
                let detail = format!("the entry '{name}' is in the wrong directory block");
                self.bad_entry(dir, at, Problem::EntryCookie, detail);
            } else if !cookies.insert(entry.cookie) {
                let detail = format!("the entry '{name}' has the cookie of another entry");
                self.bad_entry(dir, at, Problem::EntryDuplicate, detail);
            }
            good.push(entry);
        }
        good
    }

    /// Something is wrong with an entry: its directory is to be written anew.
    fn bad_entry(&mut self, dir: Ino, at: u64, problem: Problem, detail: String) -> &mut Changes {
        self.log.add(problem, Place::both(dir, at), detail);
        self.dirs.entry(dir).or_default()
    }

    fn check_entry_kind(&mut self, dir: Ino, at: u64, entry: &Raw<'_>, kind: FileKind) {
        if kind_of_number(entry.kind) != Some(kind) {
            self.log.add(
                Problem::EntryKind,
                Place::both(dir, at),
                format!(
                    "the entry '{}' says kind {}, but inode {} is of kind {}",
                    show(entry.name),
                    entry.kind,
                    entry.ino,
                    kind as u8
                ),
            );
            self.dirs
                .entry(dir)
                .or_default()
                .kinds
                .insert((at, entry.unit), kind);
        }
    }

    /// Step 6: every directory that can be reached, from the root on.
    pub(super) fn walk_directories(&mut self) {
        let all = self.table.slots_from(0);
        let directories = all.filter(|(_, slot)| slot.kind == Some(FileKind::Directory));
        self.directories = directories.count() as u64;
        self.reach(self.vol.orphans);
        self.walk_from(self.vol.root, self.vol.root);
    }

    fn reach(&mut self, dir: Ino) {
        self.table.update(dir, |slot| slot.named = true);
    }

    /// Walks from `top`, whose parent is to be `parent`.
    pub(super) fn walk_from(&mut self, top: Ino, parent: Ino) {
        self.reach(top);
        let mut stack = vec![(top, parent)];
        while !stack.is_empty() {
            self.step("directories", self.walked, self.directories);
            let next = stack.split_off(stack.len().saturating_sub(DIRECTORIES_AT_ONCE));
            let dirs: Vec<Ino> = next.iter().map(|(dir, _)| *dir).collect();
            self.read_ahead_for(&dirs);
            for (dir, parent) in next.into_iter().rev() {
                self.walked += 1;
                self.walk_directory(dir, parent, &mut stack);
            }
        }
    }

    fn walk_directory(&mut self, dir: Ino, parent: Ino, stack: &mut Vec<(Ino, Ino)>) {
        let said = self.inode(dir).parent.get();
        if said != parent {
            self.log.add(
                Problem::ParentWrong,
                Place::ino(dir),
                format!("it says that inode {said} is its parent, but {parent} names it"),
            );
            self.edit(dir, |inode| inode.parent = parent.into());
        }
        let mut counts = Counts::default();
        let leaves = self.leaves(dir);
        for (index, (at, low, high)) in leaves.iter().copied().enumerate() {
            if index % AHEAD_BLOCKS == 0 {
                let next = leaves[index..].iter().take(AHEAD_BLOCKS);
                self.read_ahead(next.map(|(at, ..)| *at).collect());
            }
            let Ok(leaf) = self.source.meta(at) else {
                continue;
            };
            for entry in self.well_formed(dir, at, &leaf, (low, high)) {
                match self.follow(dir, at, &entry) {
                    Some(kind) => {
                        counts.entries += 1;
                        if kind == FileKind::Directory {
                            counts.directories += 1;
                            stack.push((entry.ino, dir));
                        }
                    }
                    None => {
                        self.dirs
                            .entry(dir)
                            .or_default()
                            .drop
                            .insert((at, entry.unit));
                    }
                }
            }
        }
        self.compare_directory(dir, &counts);
    }

    /// Follows an entry to its inode; `None` if the entry cannot stay.
    fn follow(&mut self, dir: Ino, at: u64, entry: &Raw<'_>) -> Option<FileKind> {
        let ino = entry.ino;
        if self.slot(ino).is_none() {
            let block = ino / INODE_SLOTS;
            if self.marked(block) != Some(false) {
                self.adopt(block);
            }
        }
        let place = Place::both(dir, at);
        let name = show(entry.name);
        let Some(Slot {
            kind: Some(kind),
            named,
            ..
        }) = self.slot(ino)
        else {
            let detail = format!("the entry '{name}' names inode {ino}, which does not exist");
            self.log.add(Problem::EntryDangling, place, detail);
            return None;
        };
        if kind == FileKind::Directory && (named || self.is_special(ino)) {
            let detail =
                format!("the entry '{name}' is a second name of the directory with inode {ino}");
            self.log.add(Problem::DirectoryTwice, place, detail);
            return None;
        }
        self.check_entry_kind(dir, at, entry, kind);
        if dir == self.vol.root && entry.name == LOST_FOUND {
            self.lost_found = (kind == FileKind::Directory).then_some(ino);
            self.lost_found_taken = kind != FileKind::Directory;
        }
        self.table.update(ino, |slot| {
            slot.named = true;
            slot.links = slot.links.saturating_add(1);
        });
        Some(kind)
    }

    fn compare_directory(&mut self, dir: Ino, counts: &Counts) {
        let inode = self.inode(dir);
        let links = counts.directories + 2;
        if self.dirs.contains_key(&dir) {
            return; // both are set when it is written anew
        }
        if inode.entries.get() != counts.entries {
            self.log.add(
                Problem::EntryCount,
                Place::ino(dir),
                format!(
                    "it claims {} entries and has {}",
                    inode.entries.get(),
                    counts.entries
                ),
            );
            self.edit(dir, |inode| inode.entries = counts.entries.into());
        }
        if inode.nlink.get() != links {
            self.log.add(
                Problem::LinkCount,
                Place::ino(dir),
                format!(
                    "its link count is {}, its name and subdirectories make {links}",
                    inode.nlink.get()
                ),
            );
            self.edit(dir, |inode| inode.nlink = links.into());
        }
    }

    /// Step 7: inodes that no walk has reached. Directories with entries come first:
    /// their contents are reached through them.
    pub(super) fn find_unreachable(&mut self) {
        let lost = self.inodes_where(|s| !s.named && s.kind == Some(FileKind::Directory));
        let full: Vec<Ino> = lost
            .into_iter()
            .filter(|dir| self.has_entries(*dir))
            .collect();
        self.lose_directories(&full);
        for ino in self.inodes_where(|slot| !slot.named) {
            let inode = self.inode(ino);
            let Some(kind) = self.kind(ino) else { continue };
            let (links, listed) = (inode.nlink.get(), self.orphans.contains_key(&ino));
            if links == 0 && listed {
                self.log.add(
                    Problem::OrphanPending,
                    Place::ino(ino),
                    "it has no name any more and is freed by the next mount",
                );
            } else if links == 0 {
                self.log.add(
                    Problem::OrphanUnlisted,
                    Place::ino(ino),
                    "it has no name, and the orphan directory does not list it",
                );
                self.free_inode(ino);
            } else {
                let empty = kind != FileKind::Symlink && inode.size.get() == 0;
                self.lose(ino, kind, empty && !listed);
            }
        }
        let waiting: Vec<(Ino, (u64, usize))> =
            self.orphans.iter().map(|(ino, at)| (*ino, *at)).collect();
        for (ino, (at, unit)) in waiting {
            let Some(slot) = self.slot(ino).filter(|slot| slot.named) else {
                continue;
            };
            if slot.kind == Some(FileKind::Regular) {
                self.log.add(
                    Problem::OrphanPending,
                    Place::ino(ino),
                    "its truncation is finished by the next mount",
                );
                continue;
            }
            let dir = self.vol.orphans;
            self.log.add(
                Problem::OrphanEntry,
                Place::both(dir, at),
                format!(
                    "the orphan directory lists inode {ino}, which has a name and nothing to be cut"
                ),
            );
            let changes = self.dirs.entry(dir).or_default();
            changes.drop.insert((at, unit));
        }
    }

    /// An inode without a name: freed, or named in the lost-and-found directory.
    fn lose(&mut self, ino: Ino, kind: FileKind, empty: bool) {
        self.log.add(
            Problem::Unreachable,
            Place::ino(ino),
            if empty {
                "no directory names it, and it is empty"
            } else {
                "no directory names it"
            },
        );
        if empty {
            return self.free_inode(ino);
        }
        self.attach.push((ino, kind));
        self.table.update(ino, |slot| {
            slot.named = true;
            slot.links = 1;
        });
    }

    /// Lost directories: the topmost ones get a name, the others are reached from them.
    fn lose_directories(&mut self, lost: &[Ino]) {
        let mut below = BTreeSet::new();
        let members: BTreeSet<Ino> = lost.iter().copied().collect();
        for dir in lost {
            for (at, ..) in self.leaves(*dir) {
                let Ok(leaf) = self.source.meta(at) else {
                    continue;
                };
                let inos = entries(&leaf, |_, _| {}).into_iter().map(|entry| entry.ino);
                below.extend(inos.filter(|ino| ino != dir && members.contains(ino)));
            }
        }
        let tops = lost.iter().filter(|dir| !below.contains(dir));
        // A directory that is left after the tops is part of a cycle.
        for dir in tops.chain(lost) {
            if self.slot(*dir).is_some_and(|slot| !slot.named) {
                self.lose(*dir, FileKind::Directory, false);
                let parent = self
                    .lost_found
                    .unwrap_or_else(|| self.inode(*dir).parent.get());
                self.edit(*dir, |inode| inode.parent = parent.into());
                self.walk_from(*dir, parent);
            }
        }
    }

    fn has_entries(&mut self, dir: Ino) -> bool {
        self.leaves(dir).into_iter().any(|(at, ..)| {
            self.source
                .meta(at)
                .is_ok_and(|leaf| !entries(&leaf, |_, _| {}).is_empty())
        })
    }

    /// Step 8: the link counts of everything that is no directory.
    pub(super) fn compare_links(&mut self) {
        // Most have one name and say so: they need no second look.
        let wanted = |slot: &Slot| {
            let plain = slot.single && slot.links == 1;
            slot.kind != Some(FileKind::Directory) && slot.named && !plain
        };
        self.for_inodes("links", wanted, |check, ino| {
            let names = check.slot(ino).map_or(0, |slot| u64::from(slot.links));
            let links = check.inode(ino).nlink.get();
            if names != links {
                check.log.add(
                    Problem::LinkCount,
                    Place::ino(ino),
                    format!("its link count is {links}, and it has {names} names"),
                );
                check.edit(ino, |inode| inode.nlink = names.into());
            }
        });
    }

    /// Last step: finds a name for every inode that something was found about. Silent.
    pub(super) fn resolve_names(&mut self) {
        struct Name {
            parent: Option<Rc<Name>>,
            name: Box<[u8]>,
        }
        fn path(name: &Rc<Name>) -> String {
            let mut parts = Vec::new();
            let mut at = Some(name);
            while let Some(name) = at {
                parts.push(show(&name.name));
                at = name.parent.as_ref();
            }
            parts.iter().rev().map(|part| format!("/{part}")).collect()
        }
        if !self.log.concerns_any() {
            return;
        }
        self.log.name(self.vol.root, || "/".into());
        let mut seen = BTreeSet::from([self.vol.root]);
        let mut stack: Vec<(Ino, Option<Rc<Name>>)> = vec![(self.vol.root, None)];
        let attached: BTreeMap<Ino, FileKind> = self.attach.iter().copied().collect();
        while let Some((dir, parent)) = stack.pop() {
            for (at, ..) in self.leaves(dir) {
                let Ok(leaf) = self.source.meta(at) else {
                    continue;
                };
                for entry in entries(&leaf, |_, _| {}) {
                    let directory = self.kind(entry.ino) == Some(FileKind::Directory);
                    let wanted = self.log.concerns(entry.ino);
                    let dropped = self
                        .dirs
                        .get(&dir)
                        .is_some_and(|changes| changes.drop.contains(&(at, entry.unit)));
                    if dropped || attached.contains_key(&entry.ino) || !(directory || wanted) {
                        continue;
                    }
                    let name = Rc::new(Name {
                        parent: parent.clone(),
                        name: entry.name.into(),
                    });
                    if wanted {
                        self.log.name(entry.ino, || path(&name));
                    }
                    if directory && seen.insert(entry.ino) {
                        stack.push((entry.ino, Some(name)));
                    }
                }
            }
        }
    }
}
