//! A tree as a checker sees it, and the result of each look at it.
//!
//! Inodes have numbers that follow from the paths of the tree, not from the run that made it: a file that was renamed
//! into its place looks like one that was always there. Two names of one file have the same number, the one of its
//! first path.

use super::calls::Calls;
use crate::effects::{Body, Disk, Ino, Node, ROOT};
use crate::trace::{Change, Kind, Op, Span, Who, WriteHow};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Mutex, PoisonError};
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
    /// Inodes of the tree by number.
    inodes: HashMap<Ino, Ino>,
    /// Names and numbers by number of the directory.
    dirs: HashMap<Ino, BTreeMap<&'a [u8], Ino>>,
    links: HashMap<Ino, u32>,
    files: HashMap<Ino, FileData>,
    /// Results of looks so far.
    shown: Mutex<HashMap<Look, u128>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(disk: &'a Disk, acked: &'a [String], issued: &'a [String]) -> View<'a> {
        let mut view = View {
            disk,
            acked,
            issued,
            order: Vec::new(),
            numbers: HashMap::from([(ROOT, ROOT)]),
            inodes: HashMap::from([(ROOT, ROOT)]),
            dirs: HashMap::new(),
            links: HashMap::new(),
            files: HashMap::new(),
            shown: Mutex::default(),
        };
        let mut seen = BTreeSet::from([ROOT]);
        let mut todo = vec![(ROOT, ROOT)];
        while let Some((dir, above)) = todo.pop() {
            view.dirs.entry(above).or_default();
            let Some(Body::Dir(entries)) = disk.node(dir).map(|n| &n.body) else {
                continue;
            };
            for (name, ino) in entries {
                let Some(node) = disk.node(*ino) else {
                    continue;
                };
                match (&node.body, node.kind) {
                    (Body::Dir(_), _) if !seen.insert(*ino) => continue,
                    (Body::Special, kind) if kind != FileKind::Fifo => continue,
                    _ => {}
                }
                let number = view.number(above, name, *ino);
                match &node.body {
                    Body::Dir(_) => todo.push((*ino, number)),
                    Body::File { size, data } => {
                        view.files.entry(number).or_insert_with(|| {
                            let mut data = data.clone();
                            data.resize(*size);
                            data
                        });
                    }
                    Body::Link(_) | Body::Special => {}
                }
                view.dirs.entry(above).or_default().insert(name, number);
                *view.links.entry(number).or_insert(0) += 1;
                view.order.push((dir, name, *ino));
            }
        }
        view
    }

    /// The number of an inode, which is given at its first path.
    fn number(&mut self, above: Ino, name: &[u8], ino: Ino) -> Ino {
        if let Some(number) = self.numbers.get(&ino) {
            return *number;
        }
        let hash = Hasher128::new(82).u64(above).bytes(name).finish();
        let mut number = hash as u64;
        while self.inodes.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.numbers.insert(ino, number);
        self.inodes.insert(number, ino);
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
        self.disk.node(*self.inodes.get(&number)?)
    }

    /// A hash of what a look shows, computed once.
    pub(crate) fn seen(&self, look: &Look) -> u128 {
        let shown = || self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shown().get(look) {
            return *known;
        }
        let hash = self.shows(look);
        shown().insert(look.clone(), hash);
        hash
    }

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
                let number = self.dirs.get(dir).and_then(|d| d.get(name.as_slice()));
                if let Some((number, node)) = number.and_then(|n| Some((*n, self.node(*n)?))) {
                    hash.u64(number);
                    owner(&mut hash, node);
                }
            }
            Look::Attr(number) => {
                if let Some(node) = self.node(*number) {
                    owner(&mut hash, node);
                    hash.u64(u64::from(self.links.get(number).copied().unwrap_or(0)));
                    let below = self.dirs.get(number).into_iter().flat_map(BTreeMap::values);
                    let dirs = below.filter(|i| self.dirs.contains_key(i)).count();
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
                let number = self.dirs.get(dir).and_then(|d| d.get(name.as_slice()));
                if let Some((number, node)) = number.and_then(|n| Some((*n, self.node(*n)?))) {
                    let sticky = self.node(*dir).is_some_and(|d| d.perm & 0o1000 != 0);
                    let linked = self.links.get(&number) != Some(&1);
                    // A rename over such a file acts as if the file had not been there.
                    if node.kind == FileKind::Directory || linked || sticky {
                        hash.u64(number);
                        owner(&mut hash, node);
                    }
                }
            }
            Look::List(dir, without) => {
                let names = self.dirs.get(dir).into_iter().flatten();
                for (name, number) in names.filter(|(name, _)| !without.contains(**name)) {
                    let kind = self.node(*number).map_or(0, |n| n.kind as u64);
                    hash.bytes(name).u64(*number).u64(kind);
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
                hash.u128(self.files.get(number).map_or(0, FileData::digest));
            }
        }
        hash.finish()
    }

    fn size(&self, number: Ino) -> u64 {
        let ino = self.inodes.get(&number);
        ino.map_or(0, |ino| self.disk.size(*ino))
    }

    /// The bytes of a range that the file has, and how many they are.
    fn bytes(&self, hash: &mut Hasher128, number: Ino, (from, to): (u64, u64)) {
        let file = self.files.get(&number);
        let to = to.min(file.map_or(0, FileData::size));
        let mut buffer = vec![0; PIECE.min(to.saturating_sub(from) as usize)];
        let mut at = from;
        while let (Some(file), true) = (file, at < to) {
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
            let call = |op: Op, bytes: &[u8]| {
                let who = Who {
                    uid: node.uid,
                    gid: node.gid,
                    ..Who::default()
                };
                let done = calls.perform(who.into(), calls.now(), op, bytes);
                done.map_err(|e| io::Error::from_raw_os_error(e.code()))
            };
            if let Some(ino) = made.get(ino) {
                let ino = *ino;
                call(Op::Link { ino, parent, name }, &[])?;
                continue;
            }
            let perm = node.perm;
            let outcome = match &node.body {
                Body::Dir(_) => call(Op::Mkdir { parent, name, perm }, &[])?,
                Body::Link(target) => {
                    let target = target.to_vec();
                    let op = Op::Symlink {
                        parent,
                        name,
                        target,
                    };
                    call(op, &[])?
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
                    call(op, &[])?
                }
            };
            let Some(new) = outcome.made() else {
                continue;
            };
            made.insert(*ino, new);
            let number = self.numbers.get(ino).copied().unwrap_or(*ino);
            ours.insert(new, number);
            if let Some(data) = self.files.get(&number) {
                fill(data, new, &call)?;
            }
            for (name, value) in &node.xattrs {
                let op = Op::SetXattr {
                    ino: new,
                    name: name.clone(),
                    value: value.clone(),
                    how: crate::trace::XattrHow::Any,
                };
                // One that this mount does not offer is not there, as in a directory that is laid out.
                let _ = call(op, &[]);
            }
            // A write clears set-id bits.
            if node.kind == FileKind::Regular && perm & 0o6000 != 0 {
                let change = Change {
                    perm: Some(perm),
                    ..Change::default()
                };
                call(Op::SetAttr { ino: new, change }, &[])?;
            }
        }
        Ok(ours)
    }
}

fn owner(hash: &mut Hasher128, node: &Node) {
    hash.u64((node.kind as u64) << 32 | u64::from(node.perm));
    hash.u64(u64::from(node.uid) << 32 | u64::from(node.gid));
}

fn fill(
    data: &FileData,
    ino: Ino,
    call: &dyn Fn(Op, &[u8]) -> io::Result<crate::trace::Outcome>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while let Some(from) = data.next_data(at) {
        let until = data.next_hole(from).min(from + PIECE as u64);
        let len = until.saturating_sub(from) as usize;
        let read = data.read(from, &mut buffer[..len]);
        if read == 0 {
            break;
        }
        let op = Op::Write {
            ino,
            offset: from,
            data: Span::default(),
            how: WriteHow::default(),
        };
        call(op, &buffer[..read])?;
        at = from + read as u64;
    }
    let size = data.size();
    call(Op::Truncate { ino, size }, &[]).map(|_| ())
}
