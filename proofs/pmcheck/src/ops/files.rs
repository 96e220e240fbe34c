//! Calls that change one inode: content, size, mode and owner, attributes, times.

use super::*;

impl Builder<'_> {
    /// The slot that does not count yet, and the word that makes it count.
    fn commit(&mut self, number: u64, attr: u64, size: u64, attributes: AttributePlace) {
        let old = Commit::from_word(self.image[inode(number, inode_word::COMMIT)]);
        let new = Commit {
            sequence: old.sequence + 1,
            perm: attr as u16 & 0xfff,
            attributes,
        };
        let parity = new.parity();
        let mut slot = vec![
            store(inode(number, inode_word::SIZE[parity]), size),
            store(inode(number, inode_word::OWNER[parity]), attr >> 12),
        ];
        if self.layout.times {
            slot.extend(
                [inode_word::MTIME, inode_word::CTIME]
                    .map(|byte| store(inode(number, byte), self.now)),
            );
        }
        self.put("inode.slot", slot);
        self.put(
            "inode.commit",
            vec![store(inode(number, inode_word::COMMIT), new.word())],
        );
    }

    fn mark(&mut self, label: &'static str, page: usize, at: u64, cur: PageState, next: PageState) {
        let life = Life { at, cur, next };
        self.put(label, vec![store(desc(page, desc_word::LIFE), life.word())]);
    }

    fn data_page(&self, number: u64, offset: usize) -> Option<(usize, PageState)> {
        self.view
            .pages
            .get(&(number, PageKind::Data as u8, offset as u64))
            .copied()
    }

    /// Pages of an inode, with their offsets.
    fn pages_of(&self, number: u64, kind: PageKind) -> Vec<(usize, usize, PageState)> {
        let mine = self
            .view
            .pages
            .iter()
            .filter(|(k, _)| k.0 == number && k.1 == kind as u8);
        mine.map(|(k, page)| (k.2 as usize, page.0, page.1))
            .collect()
    }

    /// A page without content.
    fn reserve(&mut self, number: u64, offset: usize, at: u64) -> Option<()> {
        let page = self.page()?;
        let life = Life {
            at,
            cur: PageState::Free,
            next: PageState::Unwritten,
        };
        self.adopt(page, self.key(number), offset as u64, PageKind::Data, life);
        Some(())
    }

    /// A call that moves the end of file up clears the bytes past it in its page.
    fn clear_tail(&mut self, number: u64, from: usize, to: usize) {
        let offset = from / PAGE_WORDS;
        if from.is_multiple_of(PAGE_WORDS) {
            return;
        }
        if let Some((page, PageState::Written)) = self.data_page(number, offset) {
            let end = to.min((offset + 1) * PAGE_WORDS);
            self.put(
                "data",
                (from..end)
                    .map(|k| stream(data(page, k % PAGE_WORDS), 0))
                    .collect(),
            );
        }
    }

    /// Every call of this module.
    pub(super) fn change(&mut self, op: &Op) -> Option<()> {
        let at = match op {
            Op::Write(at, ..)
            | Op::Overwrite(at, ..)
            | Op::Truncate(at, _)
            | Op::Chmod(at, _)
            | Op::Punch(at, ..)
            | Op::Zero(at, ..) => *at,
            Op::Falloc(at, _)
            | Op::Reserve(at, _)
            | Op::SetTimes(at)
            | Op::SetAttributes(at, _) => *at,
            _ => return None,
        };
        let number = self.view.tree.get(at)? >> 32;
        let node = self.view.tree.nodes[&self.key(number)].clone();
        let old = Commit::from_word(self.image[inode(number, inode_word::COMMIT)]);
        let next = old.sequence + 1;
        // Directories and devices keep their size word.
        let kept = self.image[inode(number, inode_word::SIZE[old.parity()])];
        let (attr, len) = (node.attr, node.words.len());
        match op {
            Op::Write(_, from, words) => {
                let size = self.write(number, &node.words, *from, words, next)?;
                self.commit(number, attr, size, old.attributes);
            }
            Op::Overwrite(_, from, words) => {
                for (k, word) in (*from..).zip(words) {
                    let (page, PageState::Written) = self.data_page(number, k / PAGE_WORDS)? else {
                        return None;
                    };
                    self.put("data", vec![stream(data(page, k % PAGE_WORDS), *word)]);
                }
                self.set_times(number, &[inode_word::MTIME, inode_word::CTIME]);
            }
            Op::Truncate(_, size) => {
                if *size > len {
                    self.clear_tail(number, len, *size);
                }
                for (offset, page, state) in self.pages_of(number, PageKind::Data) {
                    if offset * PAGE_WORDS >= *size && *size < len {
                        self.mark("old.drop", page, next, state, PageState::Free);
                    }
                }
                self.commit(number, attr, *size as u64, old.attributes);
            }
            Op::Chmod(_, attr) => self.commit(number, *attr, kept, old.attributes),
            Op::Punch(_, from, pages) => {
                for offset in *from..from + pages {
                    let Some((page, state)) = self.data_page(number, offset) else {
                        continue;
                    };
                    if self.layout.later_wins {
                        self.put("old.die", vec![store(desc(page, desc_word::LIFE), 0)]);
                    } else {
                        let seen = state == PageState::Written;
                        let label = if seen { "old.die" } else { "old.drop" };
                        self.mark(label, page, next, state, PageState::Free);
                    }
                }
                self.commit(number, attr, kept, old.attributes);
            }
            Op::Zero(_, from, pages) => {
                for offset in *from..from + pages {
                    match self.data_page(number, offset) {
                        Some((page, PageState::Written)) => {
                            let (cur, to) = (PageState::Written, PageState::Unwritten);
                            self.mark("old.clear", page, next, cur, to);
                        }
                        Some(_) => {}
                        None => self.reserve(number, offset, next)?,
                    }
                }
                self.commit(number, attr, kept, old.attributes);
            }
            Op::Falloc(_, pages) | Op::Reserve(_, pages) => {
                let grows = matches!(op, Op::Falloc(..));
                if grows {
                    self.clear_tail(number, len, pages * PAGE_WORDS);
                }
                for offset in (0..*pages)
                    .filter(|&o| self.data_page(number, o).is_none())
                    .collect::<Vec<_>>()
                {
                    self.reserve(number, offset, next)?;
                }
                self.commit(
                    number,
                    attr,
                    if grows {
                        (pages * PAGE_WORDS) as u64
                    } else {
                        kept
                    },
                    old.attributes,
                );
            }
            Op::SetTimes(_) => self.set_times(
                number,
                &[inode_word::MTIME, inode_word::CTIME, inode_word::ATIME],
            ),
            Op::SetAttributes(_, set) => {
                let place = self.attributes(number, &node, set, old)?;
                self.commit(number, attr, kept, place);
            }
            _ => return None,
        }
        Some(())
    }

    fn set_times(&mut self, number: u64, which: &[u64]) {
        if !self.layout.times {
            return;
        }
        let first = which.iter().filter(|&&byte| byte != inode_word::ATIME);
        let mut words: Vec<Store> = first
            .map(|&byte| store(inode(number, byte), self.now))
            .collect();
        if which.contains(&inode_word::ATIME) {
            let inline = self.image[inode(number, inode_word::EXTRA)] & 0xffff;
            words.extend(self.whole_line(number, Some(self.now), None, inline));
        }
        self.put("inode.times", words);
    }

    /// Stores of the second line: a time of access, inline bytes. A line that a crash cut off from its birth is made whole.
    fn whole_line(
        &self,
        number: u64,
        atime: Option<u64>,
        inline: Option<u64>,
        len: u64,
    ) -> Vec<Store> {
        let at = |byte| inode(number, byte);
        let generation = generation_of(self.image[at(inode_word::BIRTH)]);
        let whole = self.image[at(inode_word::EXTRA)] >> 32 == generation;
        let [_, _, btime, old] = self.layout.times_of(self.image, number);
        let mut words = vec![];
        if self.layout.times && !whole {
            words.push(store(at(inode_word::BTIME), btime));
        }
        if self.layout.times && (!whole || atime.is_some()) {
            words.push(store(at(inode_word::ATIME), atime.unwrap_or(old)));
        }
        words.extend(inline.map(|word| store(at(inode_word::INLINE), word)));
        if !whole || inline.is_some() {
            let len = if whole || inline.is_some() { len } else { 0 };
            words.push(store(at(inode_word::EXTRA), extra(generation, len)));
        }
        words
    }

    /// Data into fresh pages, or past the end of a page in place. The new size.
    fn write(
        &mut self,
        number: u64,
        old: &[u64],
        from: usize,
        words: &[u64],
        next: u64,
    ) -> Option<u64> {
        let end = from + words.len();
        let size = old.len().max(end);
        if from > old.len() {
            self.clear_tail(number, old.len(), from);
        }
        for offset in from / PAGE_WORDS..=(end - 1) / PAGE_WORDS {
            let range = (offset * PAGE_WORDS).max(from)..((offset + 1) * PAGE_WORDS).min(end);
            let word = |k: usize| {
                if range.contains(&k) {
                    words[k - from]
                } else {
                    old.get(k).copied().unwrap_or(0)
                }
            };
            let whole = |page: usize| {
                let all = offset * PAGE_WORDS..((offset + 1) * PAGE_WORDS).min(size);
                all.map(|k| stream(data(page, k % PAGE_WORDS), word(k)))
                    .collect::<Vec<_>>()
            };
            match self.data_page(number, offset) {
                Some((page, PageState::Written)) if range.start >= old.len() => {
                    self.put(
                        "data",
                        range
                            .clone()
                            .map(|k| stream(data(page, k % PAGE_WORDS), word(k)))
                            .collect(),
                    );
                }
                Some((page, PageState::Unwritten)) => {
                    self.put("data", whole(page));
                    self.mark(
                        "old.turn",
                        page,
                        next,
                        PageState::Unwritten,
                        PageState::Written,
                    );
                }
                was => {
                    let page = self.page()?;
                    self.put("data", whole(page));
                    let life = Life {
                        at: next,
                        cur: PageState::Free,
                        next: PageState::Written,
                    };
                    self.adopt(page, self.key(number), offset as u64, PageKind::Data, life);
                    if let (Some((gone, state)), false) = (was, self.layout.later_wins) {
                        self.mark("old.die", gone, next, state, PageState::Free);
                    }
                }
            }
        }
        Some(size as u64)
    }

    /// A whole new set: in the inode if it fits and the bytes there do not count now, else in fresh pages.
    fn attributes(
        &mut self,
        number: u64,
        node: &Node,
        set: &[u64],
        old: Commit,
    ) -> Option<AttributePlace> {
        let next = old.sequence + 1;
        let inline = set.len() == 1
            && old.attributes != AttributePlace::Inline
            && node.kind != Kind::Symlink;
        for (_, page, state) in self.pages_of(number, PageKind::Attributes) {
            self.mark("old.die", page, next, state, PageState::Free);
        }
        if set.is_empty() {
            return Some(AttributePlace::None);
        }
        if inline {
            let words = self.whole_line(number, None, Some(set[0]), 8);
            self.put("inode.inline", words);
            return Some(AttributePlace::Inline);
        }
        for (offset, part) in set.chunks(PAGE_WORDS).enumerate() {
            let page = self.page()?;
            let word = |k| part.get(k).copied().unwrap_or(0);
            self.put(
                "data",
                (0..PAGE_WORDS)
                    .map(|k| stream(data(page, k), word(k)))
                    .collect(),
            );
            let life = Life {
                at: next,
                cur: PageState::Free,
                next: PageState::Written,
            };
            self.adopt(
                page,
                self.key(number),
                offset as u64,
                PageKind::Attributes,
                life,
            );
        }
        Some(AttributePlace::Pages)
    }
}
