//! The reading of a volume, and the stores of recovery.
//!
//! A mount looks at each directory that the root leads to, by unrepaired words and by the other halves of exchanges that a
//! crash cut; decides which rename pointers count; walks again; and evaluates the life of each page. It stores its repairs
//! before anything is allocated.

use crate::pm::{Image, Store, store};
use crate::spec::{Kind, Node, Tree};
use crate::volume::*;
use std::collections::{BTreeMap, BTreeSet};
use words::{
    AttributePlace, Commit, Life, PageKind, PageOffset, PageState, Pointer, Tag, desc as desc_word,
    inode as inode_word, slot as slot_word,
};

/// Pages of an inode by kind and offset.
pub type Pages = BTreeMap<(u64, u8, u64), (usize, PageState)>;

/// A mount's knowledge: the tree and its place.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub tree: Tree,
    /// Slots by directory's number and name.
    pub slots: BTreeMap<(u64, u64), Slot>,
    pub free_slots: BTreeMap<u64, Vec<Slot>>,
    pub pages: Pages,
    pub dir_pages: BTreeMap<u64, Vec<usize>>,
    /// Four times of each reachable inode, by number.
    pub times: BTreeMap<u64, [u64; 4]>,
    pub next_tag: u64,
    pub free_inodes: Vec<u64>,
    pub free_pages: Vec<usize>,
    /// Finished renames.
    pub fix_names: Vec<Store>,
    /// Pointers that did something, cleared by some kinds of recovery.
    pub fix_pointers: Vec<Store>,
    /// Everything else that a cut call left.
    pub fix_rest: Vec<Store>,
}

type DirPages = BTreeMap<u64, BTreeMap<u64, Vec<usize>>>;

/// A slot that names something.
#[derive(Clone, Copy)]
struct Named {
    key: u64,
    tag: Tag,
    pointer: Option<Pointer>,
}

impl Layout {
    /// The number of the inode that `key` means, if there is such an inode.
    fn live(&self, image: &Image, key: u64) -> Option<u64> {
        let number = key >> 32;
        if !(1..=INODES).contains(&number) {
            return None;
        }
        let birth = image[inode(number, inode_word::BIRTH)];
        let born =
            kind_of(birth) != UNBORN && (!self.generations || self.key(image, number) == key);
        (born && self.has_second_line(image, number)).then_some(number)
    }

    /// Whether an inode that needs its second line has it.
    fn has_second_line(&self, image: &Image, number: u64) -> bool {
        if self.second_line == SecondLine::Optional || self.counts(image, number) {
            return true;
        }
        let commit = Commit::from_word(image[inode(number, inode_word::COMMIT)]);
        let kind = kind_of(image[inode(number, inode_word::BIRTH)]);
        let size = image[inode(number, inode_word::SIZE[commit.parity()])];
        !(kind == SYMLINK && size <= 1 || commit.attributes == AttributePlace::Inline)
    }

    /// Whether an inode's second line counts.
    fn counts(&self, image: &Image, number: u64) -> bool {
        let birth = image[inode(number, inode_word::BIRTH)];
        image[inode(number, inode_word::EXTRA)] >> 32 == generation_of(birth)
    }

    /// Directory pages of live directories.
    fn dir_pages(&self, image: &Image) -> DirPages {
        let mut found = DirPages::new();
        for page in 0..PAGES {
            let Some(at) = PageOffset::from_word(image[desc(page, desc_word::OFFSET)]) else {
                continue;
            };
            let life = Life::from_word(image[desc(page, desc_word::LIFE)]);
            if at.kind != PageKind::Directory || life.state(0) != PageState::Written {
                continue;
            }
            let Some(owner) = self.live(image, image[desc(page, desc_word::OWNER)]) else {
                continue;
            };
            if kind_of(image[inode(owner, inode_word::BIRTH)]) == DIRECTORY {
                found
                    .entry(owner)
                    .or_default()
                    .entry(at.offset)
                    .or_default()
                    .push(page);
            }
        }
        found
    }

    fn slots_of(pages: &DirPages, dir: u64) -> Vec<Slot> {
        let pages = pages
            .get(&dir)
            .into_iter()
            .flat_map(|p| p.values().flatten());
        pages
            .flat_map(|&p| (0..SLOTS).map(move |s| (p, s)))
            .collect()
    }

    fn named(&self, image: &Image, slot: Slot) -> Named {
        let word = |byte| image[self.slot(slot, byte)];
        Named {
            key: word(slot_word::COMMIT),
            tag: Tag::from_word(word(slot_word::TAG)),
            pointer: Pointer::from_words(word(slot_word::POINTER), word(slot_word::OTHER)),
        }
    }

    /// The slot that `pointer`, in `slot` with `key`, renames, if that is undone.
    fn effective(
        &self,
        names: &BTreeMap<Slot, Named>,
        slot: Slot,
        named: &Named,
    ) -> Option<(Slot, Pointer)> {
        let pointer = named.pointer?;
        let from = slot_of(pointer.from)?;
        let source = names.get(&from)?;
        let same = from != slot
            && source.key == named.key
            && (!self.tags || source.tag.tag == pointer.tag);
        same.then_some((from, pointer))
    }

    /// Reads the whole region. `open`: the inode that is held open, at run time.
    pub fn scan(&self, image: &Image, open: Option<u64>) -> Result<View, String> {
        let mut v = View::default();
        let pages = self.dir_pages(image);

        // 1: the inodes that slots name, unrepaired, in all directories.
        let mut all: BTreeMap<Slot, Named> = BTreeMap::new();
        for &dir in pages.keys() {
            for slot in Layout::slots_of(&pages, dir) {
                let named = self.named(image, slot);
                if self.live(image, named.key).is_some() {
                    all.insert(slot, named);
                }
            }
        }
        // 2: the directories that the root leads to. A page of a directory that is gone may hold anything.
        let reached = self.reached(image, &pages, &all);
        let in_reach = |dir: u64| reached.contains(&dir) || !self.from_root;
        let mut names: BTreeMap<Slot, Named> = BTreeMap::new();
        let mut in_use: Vec<(u64, Slot)> = vec![];
        for (&dir, at) in &pages {
            if !in_reach(dir) {
                continue;
            }
            if reached.contains(&dir) && at.values().any(|p| p.len() > 1) {
                return Err("two directory pages at one offset".into());
            }
            for slot in Layout::slots_of(&pages, dir) {
                in_use.push((dir, slot));
                let commit = image[self.slot(slot, slot_word::COMMIT)];
                if let Some(named) = all.get(&slot) {
                    names.insert(slot, *named);
                } else if commit != 0 {
                    if !self.generations {
                        return Err("a name of an inode that was never initialised".into());
                    }
                    if self.recovery != Recovery::KeepsDangling {
                        v.fix_rest
                            .push(store(self.slot(slot, slot_word::COMMIT), 0));
                    }
                }
            }
        }
        v.next_tag = self.first_tag(&names);
        // 3: renames that a crash cut.
        let mut keys: BTreeMap<Slot, u64> = names.iter().map(|(&s, n)| (s, n.key)).collect();
        self.finish_renames(image, &names, &mut keys, &mut v)?;
        self.tidy_dead_slots(image, &in_use, &keys, &mut v);
        // 4: the reachable inodes.
        let seen = self.walk(image, &pages, &in_use, &keys, open, &mut v)?;
        self.tidy_lost_directories(&pages, &seen, &mut v);
        // 5: pages of files and of attributes.
        let mut used: BTreeSet<usize> = v.dir_pages.values().flatten().copied().collect();
        self.read_pages(image, &seen, &mut used, &mut v)?;
        self.read_contents(image, &mut v);
        v.free_pages = (0..PAGES).filter(|p| !used.contains(p)).collect();
        let retired = |i: u64| !self.wrap && self.last_generation(image, i) == u64::from(u32::MAX);
        v.free_inodes = (2..=INODES)
            .filter(|i| !seen.contains(i) && !retired(*i))
            .collect();
        self.read_links(image, &seen, &mut v)?;
        Ok(v)
    }

    /// Directories that the root leads to through unrepaired names, or through the other name of an exchange under way.
    fn reached(
        &self,
        image: &Image,
        pages: &DirPages,
        all: &BTreeMap<Slot, Named>,
    ) -> BTreeSet<u64> {
        let mut reached: BTreeSet<u64> = [words::ROOT.into()].into();
        let mut queue = vec![u64::from(words::ROOT)];
        while let Some(dir) = queue.pop() {
            for slot in Layout::slots_of(pages, dir) {
                let Some(named) = all.get(&slot) else {
                    continue;
                };
                let other = self
                    .effective(all, slot, named)
                    .and_then(|(_, p)| p.exchange);
                for number in [Some(named.key >> 32), other.map(u64::from)]
                    .into_iter()
                    .flatten()
                {
                    let is_inode = (1..=INODES).contains(&number);
                    if is_inode
                        && kind_of(image[inode(number, inode_word::BIRTH)]) == DIRECTORY
                        && reached.insert(number)
                    {
                        queue.push(number);
                    }
                }
            }
        }
        reached
    }

    fn first_tag(&self, names: &BTreeMap<Slot, Named>) -> u64 {
        let own = names.values().map(|n| n.tag.tag);
        let pointers = names.values().filter_map(|n| n.pointer).map(|p| p.tag);
        let highest = match self.above {
            TagsAbove::Live => own.chain(pointers).max(),
            TagsAbove::LiveOwn => own.max(),
            TagsAbove::LivePointers => pointers.max(),
        };
        highest.unwrap_or(0) + 1
    }

    fn finish_renames(
        &self,
        image: &Image,
        names: &BTreeMap<Slot, Named>,
        keys: &mut BTreeMap<Slot, u64>,
        v: &mut View,
    ) -> Result<(), String> {
        let mut armed = vec![];
        for (&slot, named) in names {
            let Some(pointer) = named.pointer else {
                continue;
            };
            if self.recovery != Recovery::Right {
                v.fix_pointers
                    .push(store(self.slot(slot, slot_word::POINTER), 0));
            }
            let Some((from, pointer)) = self.effective(names, slot, named) else {
                // It does nothing now, but would if the source came to name the same inode.
                let source = slot_of(pointer.from).filter(|s| *s != slot);
                armed.extend(source.filter(|s| {
                    let source = names.get(s);
                    self.tags && source.is_some_and(|s| s.tag.tag == pointer.tag)
                }));
                continue;
            };
            let to = match pointer.exchange {
                Some(other) if !(1..=INODES).contains(&u64::from(other)) => {
                    return Err("an exchange with no inode".into());
                }
                Some(other) => self.key(image, other.into()),
                None => 0,
            };
            v.fix_names
                .push(store(self.slot(from, slot_word::COMMIT), to));
            match self.live(image, to) {
                Some(_) => keys.insert(from, to),
                None => keys.remove(&from),
            };
            if to != 0 && self.bump.source() {
                armed.push(from);
            }
        }
        armed.sort_unstable();
        armed.dedup();
        for slot in armed {
            if !self.bump.source()
                || self.recovery == Recovery::KeepsTags
                || !keys.contains_key(&slot)
            {
                continue;
            }
            let tag = Tag {
                tag: v.next_tag,
                ..names[&slot].tag
            };
            v.next_tag += 1;
            // After the commit word of the same line, if that is stored, too.
            v.fix_names
                .push(store(self.slot(slot, slot_word::TAG), tag.word()));
        }
        Ok(())
    }

    /// The pages of directories that the root does not lead to: their next content must not be read as slots.
    fn tidy_lost_directories(&self, pages: &DirPages, seen: &BTreeSet<u64>, v: &mut View) {
        if !self.kills || self.recovery == Recovery::KeepsDirPages {
            return;
        }
        let lost = pages.iter().filter(|(dir, _)| !seen.contains(dir));
        for &page in lost.flat_map(|(_, at)| at.values().flatten()) {
            v.fix_rest.push(store(desc(page, desc_word::LIFE), 0));
        }
    }

    /// If only a slot of zeros counts as free, dead ones are wiped; some kinds of recovery clear their pointers.
    fn tidy_dead_slots(
        &self,
        image: &Image,
        in_use: &[(u64, Slot)],
        keys: &BTreeMap<Slot, u64>,
        v: &mut View,
    ) {
        for &(_, slot) in in_use {
            if keys.contains_key(&slot) || self.generations {
                continue;
            }
            let words = [
                slot_word::COMMIT,
                slot_word::POINTER,
                slot_word::TAG,
                slot_word::NAME,
            ];
            if [slot_word::COMMIT, slot_word::NAME]
                .iter()
                .any(|&w| image[self.slot(slot, w)] != 0)
            {
                v.fix_rest
                    .extend(words.map(|w| store(self.slot(slot, w), 0)));
            }
        }
    }

    /// The tree from the root, and the inode that is held open. Returns the numbers of the inodes in it.
    fn walk(
        &self,
        image: &Image,
        pages: &DirPages,
        in_use: &[(u64, Slot)],
        keys: &BTreeMap<Slot, u64>,
        open: Option<u64>,
        v: &mut View,
    ) -> Result<BTreeSet<u64>, String> {
        v.tree.root = self.key(image, words::ROOT.into());
        v.tree.open = open.map(|i| self.key(image, i));
        let mut queue: Vec<u64> = [Some(words::ROOT.into()), open]
            .into_iter()
            .flatten()
            .collect();
        let mut seen: BTreeSet<u64> = queue.iter().copied().collect();
        while let Some(number) = queue.pop() {
            let key = self.key(image, number);
            let mut node = self.node(image, number, v);
            if node.kind == Kind::Directory {
                let mut rest = 0;
                for slot in in_use.iter().filter(|x| x.0 == number).map(|x| x.1) {
                    if rest > 0 && slot.1 > 0 {
                        rest -= 1;
                        continue;
                    }
                    let Some(&child) = keys.get(&slot) else {
                        let wiped = [slot_word::COMMIT, slot_word::NAME]
                            .iter()
                            .all(|&w| image[self.slot(slot, w)] == 0);
                        if self.generations || wiped {
                            v.free_slots.entry(number).or_default().push(slot);
                        }
                        continue;
                    };
                    let tag = Tag::from_word(image[self.slot(slot, slot_word::TAG)]);
                    rest = words::slots_of(tag.len.into()) - 1;
                    let mut name = image[self.slot(slot, slot_word::NAME)];
                    if rest > 0 {
                        name |= image[self.slot((slot.0, slot.1 + 1), slot_word::CONT)] << 8;
                    }
                    let child_number = child >> 32;
                    if node.names.insert(name, child).is_some() {
                        return Err(format!(
                            "the name {} twice in one directory",
                            crate::spec::name(name)
                        ));
                    }
                    v.slots.insert((number, name), slot);
                    if seen.insert(child_number) {
                        queue.push(child_number);
                    } else if kind_of(image[inode(child_number, inode_word::BIRTH)]) == DIRECTORY {
                        return Err("a directory has two names".into());
                    }
                }
                let mine = pages
                    .get(&number)
                    .into_iter()
                    .flat_map(|p| p.values().flatten());
                v.dir_pages.insert(number, mine.copied().collect());
            }
            v.tree.nodes.insert(key, node);
        }
        Ok(seen)
    }

    /// An inode without its names and pages.
    fn node(&self, image: &Image, number: u64, v: &mut View) -> Node {
        let word = |byte| image[inode(number, byte)];
        let commit = Commit::from_word(word(inode_word::COMMIT));
        let parity = commit.parity();
        let counts = self.counts(image, number);
        let kind = match kind_of(word(inode_word::BIRTH)) {
            DIRECTORY => Kind::Directory,
            SYMLINK => Kind::Symlink,
            WHITEOUT => Kind::Whiteout,
            _ => Kind::File,
        };
        let size = word(inode_word::SIZE[parity]) as usize;
        let content = match kind {
            Kind::Directory | Kind::Whiteout => vec![],
            Kind::Symlink if size <= 1 => vec![if counts {
                word(inode_word::INLINE)
            } else {
                0xdead
            }],
            _ => vec![0; size],
        };
        let set = match commit.attributes {
            AttributePlace::Inline if counts && word(inode_word::EXTRA) & 0xffff > 0 => {
                vec![word(inode_word::INLINE)]
            }
            AttributePlace::Inline => vec![0xdead],
            _ => vec![],
        };
        if self.times {
            let times = self.times_of(image, number);
            v.times.insert(number, times);
        }
        Node {
            kind,
            attr: word(inode_word::OWNER[parity]) << 12 | u64::from(commit.perm),
            set,
            names: BTreeMap::new(),
            words: content,
        }
    }

    /// The times of an inode; the later two are guessed if its second line does not count.
    pub fn times_of(&self, image: &Image, number: u64) -> [u64; 4] {
        let words = [
            inode_word::MTIME,
            inode_word::CTIME,
            inode_word::BTIME,
            inode_word::ATIME,
        ];
        let [mtime, ctime, btime, atime] = words.map(|byte| image[inode(number, byte)]);
        if self.counts(image, number) {
            [mtime, ctime, btime, atime]
        } else {
            [mtime, ctime, ctime, mtime]
        }
    }

    /// Pages of files, symlinks and attributes: their use by their owners, and recovery's changes of their lives.
    fn read_pages(
        &self,
        image: &Image,
        seen: &BTreeSet<u64>,
        used: &mut BTreeSet<usize>,
        v: &mut View,
    ) -> Result<(), String> {
        let mut ages: BTreeMap<(u64, u8, u64), u64> = BTreeMap::new();
        for page in 0..PAGES {
            let [owner, offset, life] = [desc_word::OWNER, desc_word::OFFSET, desc_word::LIFE]
                .map(|byte| image[desc(page, byte)]);
            let Some(number) = self.live(image, owner).filter(|i| seen.contains(i)) else {
                self.tidy_foreign(image, page, used.contains(&page), v);
                continue;
            };
            let Some(at) = PageOffset::from_word(offset) else {
                continue;
            };
            let is_dir = kind_of(image[inode(number, inode_word::BIRTH)]) == DIRECTORY;
            if at.kind == PageKind::Directory || (at.kind == PageKind::Data && is_dir) {
                continue;
            }
            let commit = Commit::from_word(image[inode(number, inode_word::COMMIT)]);
            let parsed = Life::from_word(life);
            let mut state = parsed.state(commit.sequence);
            let size = image[inode(number, inode_word::SIZE[commit.parity()])] as usize;
            if at.kind == PageKind::Data {
                if state == PageState::Written
                    && self.past_end
                    && at.offset as usize * PAGE_WORDS >= size
                {
                    state = PageState::Free;
                }
            } else if commit.attributes != AttributePlace::Pages && state != PageState::Free {
                if !self.attributes_by_mode {
                    return Err(format!(
                        "inode {number} has pages of attributes and a mode that denies it"
                    ));
                }
                state = PageState::Free;
            }
            let tidy = match state {
                PageState::Free => 0,
                _ if self.later_wins && commit.sequence >= parsed.at => life,
                _ => Life::settled(state).word(),
            };
            if tidy != life && self.recovery != Recovery::KeepsMarks {
                v.fix_rest.push(store(desc(page, desc_word::LIFE), tidy));
            }
            if state == PageState::Free {
                continue;
            }
            let key = (number, at.kind as u8, at.offset);
            if let Some(&(other, _)) = v.pages.get(&key) {
                if !self.later_wins {
                    return Err(format!("two pages at one offset of inode {number}"));
                }
                let later = parsed.at > ages[&key];
                v.fix_rest.push(store(
                    desc(if later { other } else { page }, desc_word::LIFE),
                    0,
                ));
                if !later {
                    continue;
                }
                used.remove(&other);
            }
            ages.insert(key, parsed.at);
            used.insert(page);
            v.pages.insert(key, (page, state));
        }
        for &number in seen {
            let commit = Commit::from_word(image[inode(number, inode_word::COMMIT)]);
            let first = (number, PageKind::Attributes as u8, 0);
            if commit.attributes == AttributePlace::Pages && !v.pages.contains_key(&first) {
                return Err(format!(
                    "inode {number} has no pages of attributes and a mode that promises them"
                ));
            }
        }
        Ok(())
    }

    /// A page of no reachable inode is free. One of an inode that was never born would come alive with the next in its place.
    fn tidy_foreign(&self, image: &Image, page: usize, used: bool, v: &mut View) {
        let [owner, offset, life] = [desc_word::OWNER, desc_word::OFFSET, desc_word::LIFE]
            .map(|byte| image[desc(page, byte)]);
        let number = owner >> 32;
        let future = self.generations
            && (1..=INODES).contains(&number)
            && owner & 0xffff_ffff > generation_of(image[inode(number, inode_word::BIRTH)]);
        if future && life != 0 && self.recovery != Recovery::KeepsFuture {
            v.fix_rest.push(store(desc(page, desc_word::LIFE), 0));
        }
        if !self.generations && owner | offset | life != 0 && !used {
            let words = [desc_word::OWNER, desc_word::OFFSET, desc_word::LIFE];
            v.fix_rest
                .extend(words.map(|byte| store(desc(page, byte), 0)));
        }
    }

    /// Reads the content of the pages.
    fn read_contents(&self, image: &Image, v: &mut View) {
        for (&(number, kind, offset), &(page, state)) in &v.pages {
            let Some(node) = v.tree.nodes.get_mut(&self.key(image, number)) else {
                continue;
            };
            if state != PageState::Written {
                continue;
            }
            for k in 0..PAGE_WORDS {
                let (word, at) = (image[data(page, k)], offset as usize * PAGE_WORDS + k);
                if kind == PageKind::Attributes as u8 {
                    node.set.push(word);
                } else if at < node.words.len() {
                    node.words[at] = word;
                }
            }
        }
        for node in v.tree.nodes.values_mut() {
            while node.set.last() == Some(&0) {
                node.set.pop();
            }
        }
    }

    /// Stored link counts, and inodes without names in layouts without generations.
    fn read_links(&self, image: &Image, seen: &BTreeSet<u64>, v: &mut View) -> Result<(), String> {
        for number in 1..=INODES {
            if !seen.contains(&number) {
                let all = (0..words::INODE_BYTES)
                    .step_by(8)
                    .map(|byte| inode(number, byte));
                if !self.generations && all.clone().any(|at| image[at] != 0) {
                    v.fix_rest.extend(all.map(|at| store(at, 0)));
                }
                continue;
            }
            if self.links == Links::Derived {
                continue;
            }
            let key = self.key(image, number);
            let node = &v.tree.nodes[&key];
            let links = if node.kind == Kind::Directory {
                2 + node.names.values().filter(|n| v.tree.is_dir(**n)).count()
            } else {
                v.tree.links(key)
            };
            let stored = image[inode(number, LINKS)];
            if self.links == Links::Trusted && stored < links as u64 {
                return Err(format!(
                    "inode {number}: link count {stored} below {links} links"
                ));
            }
            if stored != links as u64 {
                v.fix_rest.push(store(inode(number, LINKS), links as u64));
            }
        }
        Ok(())
    }

    /// Recovery's stores, in phases with a fence after each.
    pub fn recovery_of(&self, v: &View) -> Vec<Vec<Store>> {
        let (names, pointers, rest) = (
            v.fix_names.clone(),
            v.fix_pointers.clone(),
            v.fix_rest.clone(),
        );
        let phases = match self.recovery {
            Recovery::ClearsInOneFence => vec![[names, pointers, rest].concat()],
            Recovery::ClearsFirst => vec![[pointers, rest].concat(), names],
            Recovery::ClearsPointers => vec![names, [pointers, rest].concat()],
            _ => vec![[names, rest].concat()],
        };
        phases.into_iter().filter(|p| !p.is_empty()).collect()
    }
}
