//! The tree that effects act on.
//!
//! Unlike a file system's tree it may be in states that no call leaves: data beyond the size, a file with a link
//! count that its names do not match, a directory that nothing names. [`Disk::observe`] and [`Disk::digest`] see what
//! recovery would leave: the part that can be reached from the root, with content cut at the size.

use super::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use steadfast_model::data::FileData;
use steadfast_model::{Hasher128, PMap};
use steadfast_vfs::FileKind;

/// Number of an inode.
pub type Ino = u64;
/// The root's number.
pub const ROOT: Ino = 1;

/// Content of an inode.
#[derive(Clone, Debug)]
pub enum Body {
    /// A file; `data` may go beyond `size`.
    File {
        /// The size on the medium.
        size: u64,
        /// The written data.
        data: FileData,
    },
    /// A directory.
    Dir(BTreeMap<Arc<[u8]>, Ino>),
    /// A symbolic link.
    Link(Arc<[u8]>),
    /// A device, pipe or socket.
    Special,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content.
    pub body: Body,
}

impl Node {
    /// An empty inode of this kind.
    #[must_use]
    pub fn new(kind: FileKind, perm: u16) -> Node {
        Node {
            kind,
            perm,
            uid: 0,
            gid: 0,
            rdev: 0,
            xattrs: BTreeMap::new(),
            body: match kind {
                FileKind::Regular => Body::File {
                    size: 0,
                    data: FileData::new(),
                },
                FileKind::Directory => Body::Dir(BTreeMap::new()),
                FileKind::Symlink => Body::Link(Arc::from([])),
                _ => Body::Special,
            },
        }
    }
}

/// One change of a [`Disk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A name in a directory refers to an inode.
    Set {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Arc<[u8]>,
        /// The inode.
        ino: Ino,
    },
    /// A name is removed, if it refers to this inode.
    Unset {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Arc<[u8]>,
        /// The inode.
        ino: Ino,
    },
    /// The size grows to at least this.
    Grow {
        /// The file.
        ino: Ino,
        /// The size.
        size: u64,
    },
    /// The size is set; content beyond it is dropped from the next multiple of `unit` on: the rest of that unit shows
    /// again if the size grows.
    Resize {
        /// The file.
        ino: Ino,
        /// The size.
        size: u64,
        /// 1: all content beyond the size is dropped.
        unit: u64,
    },
    /// Bytes are written.
    Data {
        /// The file.
        ino: Ino,
        /// Its offset.
        offset: u64,
        /// All bytes of the call.
        bytes: Bytes,
        /// Range of the written bytes.
        range: (usize, usize),
    },
    /// A range reads as zeros.
    Zero {
        /// The file.
        ino: Ino,
        /// Its offset.
        offset: u64,
        /// Its length.
        len: u64,
    },
    /// Attributes are set.
    Attr {
        /// The inode.
        ino: Ino,
        /// Permission bits.
        perm: Option<u16>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// An extended attribute is set or removed.
    Xattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: Vec<u8>,
        /// Its value; None removes it.
        value: Option<Vec<u8>>,
    },
}

impl Change {
    /// Whether it changes neither names nor sizes.
    pub(super) fn is_content(&self) -> bool {
        matches!(
            self,
            Change::Data { .. } | Change::Zero { .. } | Change::Attr { .. } | Change::Xattr { .. }
        )
    }
}

/// One path as it is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Content of a file, cut at its size.
    pub data: FileData,
    /// Target of a symbolic link.
    pub target: Arc<[u8]>,
}

/// A tree, cheap to clone.
#[derive(Clone, Debug)]
pub struct Disk {
    nodes: PMap<Node>,
}

impl Default for Disk {
    fn default() -> Disk {
        let mut nodes = PMap::new();
        nodes.insert(ROOT, Node::new(FileKind::Directory, 0o755));
        Disk { nodes }
    }
}

impl Disk {
    /// An inode.
    #[must_use]
    pub fn node(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(ino)
    }

    /// Inodes, whether a name refers to them or not.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.nodes.len()
    }

    /// The inode that a name refers to.
    #[must_use]
    pub fn lookup(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        match &self.node(dir)?.body {
            Body::Dir(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    /// The size of a file; 0 for everything else.
    #[must_use]
    pub fn size(&self, ino: Ino) -> u64 {
        match self.node(ino).map(|n| &n.body) {
            Some(Body::File { size, .. }) => *size,
            _ => 0,
        }
    }

    /// Adds an inode; it is seen once a name refers to it.
    pub fn add(&mut self, ino: Ino, node: Node) {
        self.nodes.insert(ino, node);
    }

    fn change(&mut self, ino: Ino, f: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(ino) {
            f(node);
        }
    }

    fn file(&mut self, ino: Ino, f: impl FnOnce(&mut u64, &mut FileData)) {
        self.change(ino, |node| {
            if let Body::File { size, data } = &mut node.body {
                f(size, data);
            }
        });
    }

    fn dir(&mut self, ino: Ino, f: impl FnOnce(&mut BTreeMap<Arc<[u8]>, Ino>)) {
        self.change(ino, |node| {
            if let Body::Dir(entries) = &mut node.body {
                f(entries);
            }
        });
    }

    /// Lets a name refer to an inode, or to none.
    pub(crate) fn name(&mut self, (dir, name): (Ino, &[u8]), ino: Option<Ino>) {
        self.dir(dir, |entries| {
            match ino {
                Some(ino) => entries.insert(Arc::from(name), ino),
                None => entries.remove(name),
            };
        });
    }

    /// Lets an inode be what it is in another version, but for the names in it.
    pub(crate) fn restore(&mut self, ino: Ino, of: &Disk) {
        if let Some(old) = of.node(ino) {
            self.change(ino, |node| {
                let body = std::mem::replace(&mut node.body, Body::Special);
                *node = old.clone();
                if let Body::Dir(_) = body {
                    node.body = body;
                }
            });
        }
    }

    /// Applies a change. Inodes and names that do not exist are skipped.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Set { dir, name, ino } => self.dir(*dir, |entries| {
                entries.insert(Arc::clone(name), *ino);
            }),
            Change::Unset { dir, name, ino } => self.dir(*dir, |entries| {
                if entries.get(name) == Some(ino) {
                    entries.remove(name);
                }
            }),
            Change::Grow { ino, size: to } => self.file(*ino, |size, _| *size = (*size).max(*to)),
            Change::Resize {
                ino,
                size: to,
                unit,
            } => self.file(*ino, |size, data| {
                let kept = to.checked_next_multiple_of(*unit).unwrap_or(*to);
                if data.size() > kept {
                    data.resize(kept);
                }
                *size = *to;
            }),
            Change::Data {
                ino,
                offset,
                bytes,
                range,
            } => {
                let at = offset.saturating_add(range.0 as u64);
                self.file(*ino, |_, data| bytes.write(range.0..range.1, data, at));
            }
            Change::Zero { ino, offset, len } => {
                self.file(*ino, |_, data| data.zero(*offset, *len));
            }
            Change::Attr {
                ino,
                perm,
                uid,
                gid,
            } => self.change(*ino, |node| {
                node.perm = perm.unwrap_or(node.perm);
                node.uid = uid.unwrap_or(node.uid);
                node.gid = gid.unwrap_or(node.gid);
            }),
            Change::Xattr { ino, name, value } => self.change(*ino, |node| {
                match value {
                    Some(value) => node.xattrs.insert(name.clone(), value.clone()),
                    None => node.xattrs.remove(name),
                };
            }),
        }
    }

    /// Calls `f` for each path that can be reached from the root, parents first. A directory is shown at the first
    /// name that leads to it: recovery does not keep two.
    fn walk(&self, f: &mut dyn FnMut(&[u8], Ino, &Node)) {
        let mut dirs = BTreeSet::from([ROOT]);
        let mut path = Vec::new();
        let Some(root) = self.node(ROOT) else {
            return;
        };
        f(&path, ROOT, root);
        // Of each directory on the way: the length of its path, and the entries that are still to come, the next one last.
        let mut todo = vec![(0, self.shown(root, &mut dirs))];
        while let Some((len, entries)) = todo.last_mut() {
            path.truncate(*len);
            let Some((name, ino, node)) = entries.pop() else {
                todo.pop();
                continue;
            };
            path.push(b'/');
            path.extend_from_slice(name);
            f(&path, ino, node);
            if node.kind == FileKind::Directory {
                todo.push((path.len(), self.shown(node, &mut dirs)));
            }
        }
    }

    /// The entries of a directory, the last name first, without directories that are shown elsewhere.
    fn shown<'a>(
        &'a self,
        dir: &'a Node,
        dirs: &mut BTreeSet<Ino>,
    ) -> Vec<(&'a [u8], Ino, &'a Node)> {
        let Body::Dir(entries) = &dir.body else {
            return Vec::new();
        };
        let all = entries.iter().rev().filter_map(|(name, ino)| {
            let node = self.node(*ino)?;
            let elsewhere = node.kind == FileKind::Directory && !dirs.insert(*ino);
            (!elsewhere).then_some((name.as_ref(), *ino, node))
        });
        all.collect()
    }

    /// The visible tree by path; the root's path is empty.
    #[must_use]
    pub fn observe(&self) -> BTreeMap<Vec<u8>, Seen> {
        let mut all = BTreeMap::new();
        self.walk(&mut |path, ino, node| {
            let mut seen = Seen {
                ino,
                kind: node.kind,
                perm: node.perm,
                data: FileData::new(),
                target: Arc::from([]),
            };
            match &node.body {
                Body::File { size, data } => {
                    seen.data = data.clone();
                    seen.data.resize(*size);
                }
                Body::Link(target) => seen.target = Arc::clone(target),
                Body::Dir(_) | Body::Special => {}
            }
            all.insert(path.to_vec(), seen);
        });
        all
    }

    /// A hash of the visible tree, without times.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let mut sum = 0u128;
        let mut first: HashMap<Ino, u128> = HashMap::with_capacity(self.nodes.len());
        self.walk(&mut |path, ino, node| {
            let mut h = Hasher128::new(31);
            h.bytes(path);
            let place = h.finish();
            h.u64((node.kind as u64) << 32 | u64::from(node.perm));
            h.u64(u64::from(node.uid) << 32 | u64::from(node.gid));
            h.u64(u64::from(node.rdev));
            for (name, value) in &node.xattrs {
                h.bytes(name).bytes(value);
            }
            match &node.body {
                Body::File { size, data } => {
                    h.u128(match data.size() == *size {
                        true => data.digest(),
                        false => {
                            let mut data = data.clone();
                            data.resize(*size);
                            data.digest()
                        }
                    });
                }
                Body::Link(target) => {
                    h.bytes(target);
                }
                Body::Dir(_) | Body::Special => {}
            }
            // Two names of one inode differ from two files.
            if node.kind != FileKind::Directory {
                h.u128(*first.entry(ino).or_insert(place));
            }
            sum = sum.wrapping_add(h.finish());
        });
        sum
    }
}
