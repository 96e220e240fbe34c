//! The specification: a tree, and the effect of each call on it.

use crate::volume::{NEW, PAGE_WORDS};
use std::collections::BTreeMap;

/// A name: `At(TOP, name)` in the root, `At(dir, name)` in the directory of that name in the root, and [`OPENED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct At(pub u64, pub u64);
/// The root.
pub const TOP: u64 = 0;
/// The file that is held open, which need not have a name.
pub const OPENED: At = At(u64::MAX, 0);

/// A call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Create(At),
    /// With attributes that its directory hands down.
    CreateWith(At, Vec<u64>),
    Mkdir(At),
    /// One word fits into the inode, more go into a page.
    Symlink(At, Vec<u64>),
    /// A file without a name, held open.
    Tmpfile,
    /// Holds a file open. Nothing is stored.
    Open(At),
    Link(At, At),
    Unlink(At),
    Rmdir(At),
    Rename(At, At),
    Exchange(At, At),
    /// A rename that leaves a whiteout under the old name.
    Whiteout(At, At),
    /// Offset in words.
    Write(At, usize, Vec<u64>),
    /// In place: each word is the old or the new one after a crash.
    Overwrite(At, usize, Vec<u64>),
    Truncate(At, usize),
    Chmod(At, u64),
    /// Page and number of pages.
    Punch(At, usize, usize),
    /// The same; the space stays.
    Zero(At, usize, usize),
    /// Pages from the first one on, and the end of the file after them.
    Falloc(At, usize),
    /// The same, and the end of the file stays.
    Reserve(At, usize),
    SetTimes(At),
    /// The whole set of extended attributes.
    SetAttributes(At, Vec<u64>),
    /// Not a call: words in a setup, as if a long past had left them.
    Poke(Vec<(usize, u64)>),
}

/// Kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Whiteout,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub kind: Kind,
    /// Mode and owner in one number.
    pub attr: u64,
    /// Extended attributes.
    pub set: Vec<u64>,
    /// Names of a directory.
    pub names: BTreeMap<u64, u64>,
    /// Words of a file or symlink.
    pub words: Vec<u64>,
}

impl Node {
    fn new(kind: Kind, words: Vec<u64>, set: Vec<u64>) -> Node {
        Node {
            kind,
            attr: NEW,
            set,
            names: BTreeMap::new(),
            words,
        }
    }
}

/// All objects, by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<u64, Node>,
    pub root: u64,
    /// Object that is held open.
    pub open: Option<u64>,
}

impl Tree {
    /// The directory that a name is in.
    pub fn dir(&self, dir: u64) -> Option<u64> {
        if dir == TOP {
            return Some(self.root);
        }
        let found = *self.nodes.get(&self.root)?.names.get(&dir)?;
        self.is_dir(found).then_some(found)
    }

    /// Object that a name stands for.
    pub fn get(&self, at: At) -> Option<u64> {
        if at == OPENED {
            return self.open;
        }
        self.nodes.get(&self.dir(at.0)?)?.names.get(&at.1).copied()
    }

    fn set(&mut self, at: At, to: Option<u64>) -> Option<()> {
        if at == OPENED {
            return None;
        }
        let dir = self.dir(at.0)?;
        let names = &mut self.nodes.get_mut(&dir)?.names;
        match to {
            Some(node) => names.insert(at.1, node),
            None => names.remove(&at.1),
        };
        Some(())
    }

    /// Names of a node.
    pub fn links(&self, node: u64) -> usize {
        let names = self.nodes.values().flat_map(|n| n.names.values());
        names.filter(|&&x| x == node).count()
    }

    fn file(&mut self, at: At) -> Option<&mut Node> {
        let node = self.get(at)?;
        let node = self.nodes.get_mut(&node)?;
        (node.kind == Kind::File).then_some(node)
    }

    /// Whether a node is a directory.
    pub fn is_dir(&self, node: u64) -> bool {
        self.nodes
            .get(&node)
            .is_some_and(|n| n.kind == Kind::Directory)
    }

    fn is_empty_dir(&self, node: u64) -> bool {
        self.is_dir(node) && self.nodes[&node].names.is_empty()
    }

    /// Whether a move of `from` to `to` makes a directory its own ancestor.
    fn into_itself(from: At, to: At) -> bool {
        from.0 == TOP && to.0 == from.1
    }

    /// The tree after `op`, or `None` if the call fails, which is decided before anything is stored.
    pub fn apply(&self, op: &Op) -> Option<Tree> {
        let mut t = self.clone();
        let new = 1 + t.nodes.keys().max()?;
        match op {
            Op::Create(at) => t.insert(*at, new, Node::new(Kind::File, vec![], vec![]))?,
            Op::CreateWith(at, set) => {
                t.insert(*at, new, Node::new(Kind::File, vec![], set.clone()))?
            }
            Op::Mkdir(at) => t.insert(*at, new, Node::new(Kind::Directory, vec![], vec![]))?,
            Op::Symlink(at, to) => {
                t.insert(*at, new, Node::new(Kind::Symlink, to.clone(), vec![]))?
            }
            Op::Tmpfile => {
                t.nodes.insert(new, Node::new(Kind::File, vec![], vec![]));
                t.open = Some(new);
            }
            Op::Open(at) => {
                t.file(*at)?;
                t.open = t.get(*at);
            }
            Op::Link(from, to) => {
                let node = t.get(*from)?;
                if t.get(*to).is_some() || t.is_dir(node) {
                    return None;
                }
                t.set(*to, Some(node))?;
            }
            Op::Unlink(at) => {
                if t.is_dir(t.get(*at)?) {
                    return None;
                }
                t.set(*at, None)?;
            }
            Op::Rmdir(at) => {
                if !t.is_empty_dir(t.get(*at)?) {
                    return None;
                }
                t.set(*at, None)?;
            }
            Op::Rename(from, to) | Op::Whiteout(from, to) => {
                let node = t.get(*from)?;
                if t.is_dir(node) && Tree::into_itself(*from, *to) {
                    return None;
                }
                t.dir(to.0)?;
                if let Some(old) = t.get(*to) {
                    if node == old {
                        return Some(t); // two names of one file: nothing happens
                    }
                    if t.is_dir(node) != t.is_dir(old) || (t.is_dir(old) && !t.is_empty_dir(old)) {
                        return None;
                    }
                }
                t.set(*to, Some(node))?;
                if matches!(op, Op::Whiteout(..)) {
                    t.nodes
                        .insert(new, Node::new(Kind::Whiteout, vec![], vec![]));
                    t.set(*from, Some(new))?;
                } else {
                    t.set(*from, None)?;
                }
            }
            Op::Exchange(from, to) => {
                let (i, j) = (t.get(*from)?, t.get(*to)?);
                if i == j {
                    return Some(t);
                }
                if (t.is_dir(i) && Tree::into_itself(*from, *to))
                    || (t.is_dir(j) && Tree::into_itself(*to, *from))
                {
                    return None;
                }
                t.set(*to, Some(i))?;
                t.set(*from, Some(j))?;
            }
            Op::Write(at, from, words) | Op::Overwrite(at, from, words) => {
                let node = &mut t.file(*at)?.words;
                let end = from + words.len();
                if matches!(op, Op::Overwrite(..)) && node.len() < end {
                    return None;
                }
                if node.len() < end {
                    node.resize(end, 0);
                }
                node[*from..end].copy_from_slice(words);
            }
            Op::Truncate(at, size) => {
                let node = &mut t.file(*at)?.words;
                if node.len() == *size {
                    return None;
                }
                node.resize(*size, 0);
            }
            Op::Chmod(at, attr) => {
                let node = t.get(*at)?;
                let node = t.nodes.get_mut(&node)?;
                if node.attr == *attr {
                    return None;
                }
                node.attr = *attr;
            }
            Op::Punch(at, page, pages) | Op::Zero(at, page, pages) => {
                let node = &mut t.file(*at)?.words;
                if node.is_empty() {
                    return None;
                }
                let end = ((page + pages) * PAGE_WORDS).min(node.len());
                let start = (page * PAGE_WORDS).min(end);
                node[start..end].fill(0);
            }
            Op::Falloc(at, pages) => {
                let node = &mut t.file(*at)?.words;
                if node.len() >= pages * PAGE_WORDS {
                    return None;
                }
                node.resize(pages * PAGE_WORDS, 0);
            }
            Op::Reserve(at, _) => {
                t.file(*at)?;
            }
            Op::SetTimes(at) => {
                t.get(*at)?;
            }
            Op::SetAttributes(at, set) => {
                let node = t.get(*at)?;
                let node = t.nodes.get_mut(&node)?;
                if node.set == *set {
                    return None;
                }
                node.set.clone_from(set);
            }
            Op::Poke(_) => {}
        }
        Some(t)
    }

    fn insert(&mut self, at: At, number: u64, node: Node) -> Option<()> {
        if self.get(at).is_some() {
            return None;
        }
        self.set(at, Some(number))?;
        self.nodes.insert(number, node);
        Some(())
    }

    /// Every tree that a crash in `op` may leave.
    pub fn outcomes(&self, op: &Op, after: &Tree) -> Vec<String> {
        let mut all = vec![self.text()];
        if let Op::Overwrite(at, from, words) = op {
            // Each word on its own.
            for chosen in 1..1usize << words.len() {
                let mut t = self.clone();
                if let Some(node) = t.file(*at) {
                    for (k, word) in words.iter().enumerate() {
                        if chosen >> k & 1 == 1 {
                            node.words[from + k] = *word;
                        }
                    }
                }
                all.push(t.text());
            }
        }
        all.push(after.text());
        all
    }

    /// As text, objects numbered as they are met: trees are compared up to the numbers of objects.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(self.root, &mut vec![], &mut text);
        text
    }

    fn write(&self, node: u64, seen: &mut Vec<u64>, out: &mut String) {
        if let Some(k) = seen.iter().position(|&x| x == node) {
            out.push_str(&format!("={k}"));
            return;
        }
        seen.push(node);
        let n = &self.nodes[&node];
        let set = if n.set.is_empty() {
            String::new()
        } else {
            format!("+{:x?}", n.set)
        };
        match n.kind {
            Kind::Directory => {
                out.push_str(&format!("dir({:x}){set}{{", n.attr));
                for (at, child) in &n.names {
                    out.push_str(&format!("{}:", name(*at)));
                    self.write(*child, seen, out);
                    out.push(' ');
                }
                out.push('}');
            }
            Kind::File => out.push_str(&format!("file({:x}){set}{:x?}", n.attr, n.words)),
            Kind::Symlink => out.push_str(&format!("symlink({:x}){set}{:x?}", n.attr, n.words)),
            Kind::Whiteout => out.push_str(&format!("whiteout({:x}){set}", n.attr)),
        }
    }
}

/// A name of two characters is a long one: it takes two slots.
pub fn is_long(name: u64) -> bool {
    name > 0xff
}

/// A name as it reads.
pub fn name(name: u64) -> String {
    let text: String = name
        .to_le_bytes()
        .iter()
        .filter(|b| **b != 0)
        .map(|&b| b as char)
        .collect();
    if text.bytes().all(|b| b.is_ascii_graphic()) {
        text
    } else {
        format!("#{name:x}")
    }
}
