//! A tree as a checker sees it, and the result of each look at it.
//!
//! Inodes have numbers that follow from the paths of the tree, not from the run that made it: a file that was renamed
//! into its place looks like one that was always there. Two names of one file have the same number, the one of its
//! first path.

use super::calls::Calls;
use crate::effects::{Body, Disk, Ino, Node, ROOT};
use crate::trace::{Change, Kind, Op, Who};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use steadfast_model::Hasher128;
use steadfast_model::data::{FileData, PAGE_BYTES};
use steadfast_vfs::FileKind;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// One look. Inodes are numbers of a [`View`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Look {
    /// The lines that must be there.
    Acked,
    /// The lines that may be there.
    Issued,
    /// The inode of a name in a directory, its kind, its owner and its permission bits.
    Name(Ino, Vec<u8>),
    /// The same, and the number of links.
    Attr(Ino),
    /// The size.
    Size(Ino),
    /// The number of pages that the size takes.
    Pages(Ino),
    /// Whether a name can be replaced by a rename that does not tell whether it was there.
    Target(Ino, Vec<u8>),
    /// The names in a directory, without these.
    List(Ino, BTreeSet<Vec<u8>>),
    /// The target of a symbolic link.
    Link(Ino),
    /// Extended attributes.
    Xattrs(Ino),
    /// The bytes from one offset to before another, and whether the file ends between them.
    Bytes(Ino, u64, u64),
    /// All of the content: where there is data and where holes.
    Content(Ino),
}

impl Look {
    /// The same about another inode.
    pub(super) fn about(self, known: impl Fn(Ino) -> Option<Ino>) -> Option<Look> {
        Some(match self {
            Look::Acked => Look::Acked,
            Look::Issued => Look::Issued,
            Look::Name(dir, name) => Look::Name(known(dir)?, name),
            Look::Attr(ino) => Look::Attr(known(ino)?),
            Look::Size(ino) => Look::Size(known(ino)?),
            Look::Pages(ino) => Look::Pages(known(ino)?),
            Look::Target(dir, name) => Look::Target(known(dir)?, name),
            Look::List(ino, without) => Look::List(known(ino)?, without),
            Look::Link(ino) => Look::Link(known(ino)?),
            Look::Xattrs(ino) => Look::Xattrs(known(ino)?),
            Look::Bytes(ino, from, to) => Look::Bytes(known(ino)?, from, to),
            Look::Content(ino) => Look::Content(known(ino)?),
        })
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct View<'a> {
    disk: &'a Disk,
    acked: &'a [String],
    issued: &'a [String],
    /// Directory, name and inode of the tree, parents first.
    order: Vec<(Ino, &'a [u8], Ino)>,
    /// Numbers by inode of the tree.
    numbers: HashMap<Ino, Ino>,
    /// Inodes of the tree by number, with their names.
    inodes: HashMap<Ino, Links>,
    /// Entries that are not shown, by inode of the directory.
    hidden: HashSet<(Ino, &'a [u8])>,
    /// Results of looks, by their numbers.
    shown: Mutex<Vec<Option<u128>>>,
}

/// An inode of the tree.
#[derive(Clone, Copy, Debug)]
struct Links {
    ino: Ino,
    names: u32,
}

/// A look with its number and its result.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    look: Arc<Look>,
    number: u32,
    seen: u128,
}

/// All looks that were noted, with numbers.
#[derive(Debug, Default)]
pub(crate) struct Looked(HashMap<Arc<Look>, u32>);

impl Looked {
    /// The result of a look in a tree.
    pub(crate) fn shown(&mut self, look: Look, view: &View<'_>) -> Shown {
        let (look, number) = match self.0.get_key_value(&look) {
            Some((look, number)) => (Arc::clone(look), *number),
            None => {
                let (look, number) = (Arc::new(look), self.0.len() as u32);
                self.0.insert(Arc::clone(&look), number);
                (look, number)
            }
        };
        let seen = view.shows(&look);
        Shown { look, number, seen }
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(disk: &'a Disk, acked: &'a [String], issued: &'a [String]) -> View<'a> {
        let mut view = View {
            disk,
            acked,
            issued,
            order: Vec::new(),
            numbers: HashMap::from([(ROOT, ROOT)]),
            inodes: HashMap::from([(
                ROOT,
                Links {
                    ino: ROOT,
                    names: 0,
                },
            )]),
            hidden: HashSet::new(),
            shown: Mutex::default(),
        };
        let mut seen = BTreeSet::from([ROOT]);
        let mut todo = vec![(ROOT, ROOT)];
        while let Some((dir, above)) = todo.pop() {
            let Some(Body::Dir(entries)) = disk.node(dir).map(|n| &n.body) else {
                continue;
            };
            for (name, ino) in entries {
                let node = disk.node(*ino);
                let is_shown = node.is_some_and(|node| match &node.body {
                    Body::Dir(_) => seen.insert(*ino),
                    Body::Special => node.kind == FileKind::Fifo,
                    Body::File { .. } | Body::Link(_) => true,
                });
                if !is_shown {
                    view.hidden.insert((dir, name));
                    continue;
                }
                let number = view.number(above, name, *ino);
                if node.is_some_and(|n| matches!(n.body, Body::Dir(_))) {
                    todo.push((*ino, number));
                }
                view.order.push((dir, name, *ino));
            }
        }
        view
    }

    /// The number of an inode, which is given at its first path. It has one name more.
    fn number(&mut self, above: Ino, name: &[u8], ino: Ino) -> Ino {
        if let Some(number) = self.numbers.get(&ino) {
            if let Some(links) = self.inodes.get_mut(number) {
                links.names += 1;
            }
            return *number;
        }
        let hash = Hasher128::new(82).u64(above).bytes(name).finish();
        let mut number = hash as u64;
        while self.inodes.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.numbers.insert(ino, number);
        self.inodes.insert(number, Links { ino, names: 1 });
        number
    }

    /// The tree.
    pub(crate) fn disk(&self) -> &'a Disk {
        self.disk
    }

    /// The lines that must be there.
    pub(crate) fn acked(&self) -> &'a [String] {
        self.acked
    }

    /// The lines that may be there.
    pub(crate) fn issued(&self) -> &'a [String] {
        self.issued
    }

    fn node(&self, number: Ino) -> Option<&'a Node> {
        self.disk.node(self.inodes.get(&number)?.ino)
    }

    /// What is shown in a directory: names and numbers.
    fn entries(&self, number: Ino) -> impl Iterator<Item = (&'a [u8], Ino)> {
        let dir = self.inodes.get(&number).map(|l| l.ino);
        let entries = self.node(number).and_then(|n| match &n.body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        });
        let all = entries.into_iter().flatten().zip(dir.into_iter().cycle());
        all.filter(|((name, _), dir)| !self.hidden.contains(&(*dir, name)))
            .filter_map(|((name, ino), _)| Some((name.as_ref(), *self.numbers.get(ino)?)))
    }

    /// What a name in a directory refers to.
    fn named(&self, number: Ino, name: &[u8]) -> Option<(Ino, &'a Node)> {
        let dir = self.inodes.get(&number)?.ino;
        if self.hidden.contains(&(dir, name)) {
            return None;
        }
        let ino = self.disk.lookup(dir, name)?;
        Some((*self.numbers.get(&ino)?, self.disk.node(ino)?))
    }

    /// The content of a file, cut at its size.
    fn file(&self, number: Ino) -> Option<FileData> {
        let Body::File { size, data } = &self.node(number)?.body else {
            return None;
        };
        let mut data = data.clone();
        data.resize(*size);
        Some(data)
    }

    /// The first of these looks that shows something else here, by its position; `hint` is looked at first.
    pub(crate) fn differs(&self, looks: &[Shown], hint: usize) -> Option<usize> {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut same = |look: &Shown| {
            let at = look.number as usize;
            if shown.len() <= at {
                shown.resize(at + 1, None);
            }
            *shown[at].get_or_insert_with(|| self.shows(&look.look)) == look.seen
        };
        let hinted = looks.get(hint).is_some_and(|look| !same(look));
        match hinted {
            true => Some(hint),
            false => looks.iter().position(|look| !same(look)),
        }
    }

    /// A hash of what a look shows.
    fn shows(&self, look: &Look) -> u128 {
        let mut hash = Hasher128::new(83);
        match look {
            Look::Acked | Look::Issued => {
                let lines = match look {
                    Look::Acked => self.acked,
                    _ => self.issued,
                };
                for line in lines {
                    hash.bytes(line.as_bytes());
                }
            }
            Look::Name(dir, name) => {
                if let Some((number, node)) = self.named(*dir, name) {
                    hash.u64(number);
                    owner(&mut hash, node);
                }
            }
            Look::Attr(number) => {
                if let Some(node) = self.node(*number) {
                    owner(&mut hash, node);
                    hash.u64(u64::from(self.inodes.get(number).map_or(0, |l| l.names)));
                    let is_dir = |(_, number): &(&[u8], Ino)| {
                        let node = self.node(*number);
                        node.is_some_and(|n| matches!(n.body, Body::Dir(_)))
                    };
                    let dirs = self.entries(*number).filter(is_dir).count();
                    hash.u64(dirs as u64);
                }
            }
            Look::Size(number) => {
                hash.u64(self.size(*number));
            }
            Look::Pages(number) => {
                hash.u64(self.size(*number).div_ceil(PAGE_BYTES));
            }
            Look::Target(dir, name) => {
                if let Some((number, node)) = self.named(*dir, name) {
                    let sticky = self.node(*dir).is_some_and(|d| d.perm & 0o1000 != 0);
                    let linked = self.inodes.get(&number).is_none_or(|l| l.names != 1);
                    // A rename over such a file acts as if the file had not been there.
                    if node.kind == FileKind::Directory || linked || sticky {
                        hash.u64(number);
                        owner(&mut hash, node);
                    }
                }
            }
            Look::List(dir, without) => {
                let names = self.entries(*dir);
                for (name, number) in names.filter(|(name, _)| !without.contains(*name)) {
                    let kind = self.node(number).map_or(0, |n| n.kind as u64);
                    hash.bytes(name).u64(number).u64(kind);
                }
            }
            Look::Link(number) => {
                if let Some(Body::Link(target)) = self.node(*number).map(|n| &n.body) {
                    hash.bytes(target);
                }
            }
            Look::Xattrs(number) => {
                for (name, value) in self.node(*number).into_iter().flat_map(|n| &n.xattrs) {
                    hash.bytes(name).bytes(value);
                }
            }
            Look::Bytes(number, from, to) => self.bytes(&mut hash, *number, (*from, *to)),
            Look::Content(number) => {
                hash.u128(self.file(*number).map_or(0, |f| f.digest()));
            }
        }
        hash.finish()
    }

    fn size(&self, number: Ino) -> u64 {
        let links = self.inodes.get(&number);
        links.map_or(0, |links| self.disk.size(links.ino))
    }

    /// The bytes of a range that the file has, and how many they are.
    fn bytes(&self, hash: &mut Hasher128, number: Ino, (from, to): (u64, u64)) {
        let file = self.file(number);
        let to = to.min(file.as_ref().map_or(0, FileData::size));
        let mut buffer = vec![0; PIECE.min(to.saturating_sub(from) as usize)];
        let mut at = from;
        while let (Some(file), true) = (&file, at < to) {
            let room = buffer.len().min((to - at) as usize);
            let read = file.read(at, &mut buffer[..room]);
            if read == 0 {
                break;
            }
            hash.bytes(&buffer[..read]);
            at += read as u64;
        }
        hash.u64(at - from);
    }

    /// The tree as calls on an empty one. Returns the inodes of that tree with the numbers of this.
    pub(super) fn make(&self, calls: &Calls) -> io::Result<HashMap<Ino, Ino>> {
        let mut made: HashMap<Ino, Ino> = HashMap::from([(ROOT, ROOT)]);
        let mut ours = made.clone();
        for (dir, name, ino) in &self.order {
            let (Some(parent), Some(node)) = (made.get(dir).copied(), self.disk.node(*ino)) else {
                continue;
            };
            let name = name.to_vec();
            let call = |op: Op| {
                let who = Who {
                    uid: node.uid,
                    gid: node.gid,
                    ..Who::default()
                };
                let done = calls.perform(who.into(), calls.now(), op, &[]);
                done.map_err(|e| io::Error::from_raw_os_error(e.code()))
            };
            if let Some(ino) = made.get(ino) {
                let ino = *ino;
                call(Op::Link { ino, parent, name })?;
                continue;
            }
            let perm = node.perm;
            let outcome = match &node.body {
                Body::Dir(_) => call(Op::Mkdir { parent, name, perm })?,
                Body::Link(target) => {
                    let target = target.to_vec();
                    let op = Op::Symlink {
                        parent,
                        name,
                        target,
                    };
                    call(op)?
                }
                Body::File { .. } | Body::Special => {
                    let kind = Kind::from(node.kind);
                    let op = Op::Mknod {
                        parent,
                        name,
                        kind,
                        perm,
                        rdev: 0,
                    };
                    call(op)?
                }
            };
            let Some(new) = outcome.made() else {
                continue;
            };
            made.insert(*ino, new);
            let number = self.numbers.get(ino).copied().unwrap_or(*ino);
            ours.insert(new, number);
            if let Some(data) = self.file(number) {
                calls.fill(new, data);
            }
            for (name, value) in &node.xattrs {
                let op = Op::SetXattr {
                    ino: new,
                    name: name.clone(),
                    value: value.clone(),
                    how: crate::trace::XattrHow::Any,
                };
                // One that this mount does not offer is not there, as in a directory that is laid out.
                let _ = call(op);
            }
            // A write clears set-id bits.
            if node.kind == FileKind::Regular && perm & 0o6000 != 0 {
                let change = Change {
                    perm: Some(perm),
                    ..Change::default()
                };
                call(Op::SetAttr { ino: new, change })?;
            }
        }
        Ok(ours)
    }
}

fn owner(hash: &mut Hasher128, node: &Node) {
    hash.u64((node.kind as u64) << 32 | u64::from(node.perm));
    hash.u64(u64::from(node.uid) << 32 | u64::from(node.gid));
}
