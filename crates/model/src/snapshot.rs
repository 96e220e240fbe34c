//! The observable state of a file system, in one canonical form.
//!
//! A [`Snapshot`] maps every path to its entry. Two of them are equal if no program could
//! tell the trees apart by names, attributes, contents and links (inode numbers aside).
//! Times are compared if asked for ([`Observe`]); atime, ctime, the size of directories
//! and the space used never are.
//!
//! [`Digest`] is a 128-bit summary: a sum over the paths, so the parts that a
//! comparison may leave out are kept apart.

mod diff;
mod walk;

pub use diff::Diff;
pub use walk::WalkError;

use crate::data::FileData;
use crate::hash::Hasher128;
use crate::tree::{Body, ROOT, Tree, Xattrs};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use steadfast_vfs::{FileKind, Ino, Time};

/// Times that are compared. Content, names and other attributes always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Observe {
    /// mtime of everything but directories.
    pub file_times: bool,
    /// mtime of directories.
    pub dir_times: bool,
}

impl Observe {
    /// No times.
    pub const CONTENT: Observe = Observe {
        file_times: false,
        dir_times: false,
    };
    /// All times.
    pub const ALL: Observe = Observe {
        file_times: true,
        dir_times: true,
    };
}

/// Entry of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of the inode.
    pub kind: FileKind,
    /// Mode.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Size of a file or symbolic link in bytes, else 0.
    pub size: u64,
    /// Device number of a device, else 0.
    pub rdev: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Content of a regular file, else empty.
    pub data: FileData,
    /// Target of a symbolic link, else empty.
    pub target: Arc<[u8]>,
    /// Extended attributes.
    pub xattrs: Arc<Xattrs>,
    /// The first path (in byte order) that names the same inode, if that is another one.
    pub same_as: Option<Arc<[u8]>>,
}

impl Entry {
    /// Whether the two differ at most in the content of a regular file, its size included, and in times.
    pub(crate) fn same_but_content(&self, other: &Entry) -> bool {
        let sized = |entry: &Entry| match entry.kind {
            FileKind::Regular => 0,
            _ => entry.size,
        };
        self.kind == other.kind
            && (self.perm, self.uid, self.gid) == (other.perm, other.uid, other.gid)
            && (self.nlink, self.rdev) == (other.nlink, other.rdev)
            && sized(self) == sized(other)
            && self.target == other.target
            && self.xattrs == other.xattrs
            && self.same_as == other.same_as
    }
}

/// Summary of a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Digest {
    /// Everything but times.
    pub content: u128,
    /// mtimes of everything but directories.
    pub file_times: u128,
    /// mtimes of directories.
    pub dir_times: u128,
}

impl Digest {
    /// Whether the two agree in the observed fields.
    #[must_use]
    pub fn agrees(&self, other: &Digest, observe: Observe) -> bool {
        self.content == other.content
            && (!observe.file_times || self.file_times == other.file_times)
            && (!observe.dir_times || self.dir_times == other.dir_times)
    }
}

/// A tree as observed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Entry of each path; `/` is the root.
    pub entries: BTreeMap<Vec<u8>, Entry>,
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + name.len() + 1);
    if dir != b"/" {
        path.extend_from_slice(dir);
    }
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// Groups paths by inode and fills in `same_as`.
fn link_up(entries: &mut BTreeMap<Vec<u8>, Entry>, inos: &BTreeMap<Vec<u8>, Ino>) {
    let mut first: HashMap<Ino, Arc<[u8]>> = HashMap::new();
    for (path, ino) in inos {
        let Some(entry) = entries.get_mut(path) else {
            continue;
        };
        match first.get(ino) {
            Some(p) => entry.same_as = Some(Arc::clone(p)),
            None => {
                first.insert(*ino, Arc::from(path.as_slice()));
            }
        }
    }
}

impl Snapshot {
    /// Everything observable of a tree (open inodes without names cannot be observed).
    #[must_use]
    pub fn of_tree(tree: &Tree) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut inos = BTreeMap::new();
        let mut todo = vec![(b"/".to_vec(), ROOT)];
        while let Some((path, ino)) = todo.pop() {
            let Some(node) = tree.nodes.get(ino) else {
                continue;
            };
            let mut entry = Entry {
                kind: node.kind,
                perm: node.perm,
                uid: node.uid,
                gid: node.gid,
                nlink: node.nlink,
                size: 0,
                rdev: node.rdev,
                mtime: node.mtime,
                data: FileData::new(),
                target: Arc::default(),
                xattrs: Arc::clone(&node.xattrs),
                same_as: None,
            };
            match &node.body {
                Body::File(d) => entry.data = d.clone(),
                Body::Link(t) => entry.target = Arc::clone(t),
                Body::Dir(dir) => {
                    todo.extend(dir.entries.iter().map(|(n, s)| (join(&path, n), s.ino)));
                }
                Body::Special => {}
            }
            entry.size = entry.data.size() + entry.target.len() as u64;
            if node.nlink > 1 && node.kind != FileKind::Directory {
                inos.insert(path.clone(), ino);
            }
            snapshot.entries.insert(path, entry);
        }
        link_up(&mut snapshot.entries, &inos);
        snapshot
    }

    /// The summary.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut sum = Digest::default();
        for (path, e) in &self.entries {
            let mut h = Hasher128::new(21);
            h.bytes(path)
                .u64(u64::from(e.kind as u8) << 32 | u64::from(e.perm));
            h.u64(u64::from(e.uid) << 32 | u64::from(e.gid));
            h.u64(u64::from(e.nlink) << 32 | u64::from(e.rdev))
                .u64(e.size);
            h.u128(e.data.digest())
                .bytes(&e.target)
                .u64(e.xattrs.len() as u64);
            for (k, v) in e.xattrs.iter() {
                h.bytes(k).bytes(v);
            }
            h.bytes(e.same_as.as_deref().unwrap_or_default());
            sum.content = sum.content.wrapping_add(h.finish());
            let mut h = Hasher128::new(22);
            h.bytes(path)
                .u64(e.mtime.secs as u64)
                .u64(u64::from(e.mtime.nanos));
            let times = if e.kind == FileKind::Directory {
                &mut sum.dir_times
            } else {
                &mut sum.file_times
            };
            *times = times.wrapping_add(h.finish());
        }
        sum
    }
}

impl Tree {
    /// The inode that a path of a snapshot names.
    pub(crate) fn ino_at(&self, path: &[u8]) -> Option<Ino> {
        let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |dir, name| {
            let entries = &self.node(dir).ok()?.dir().ok()?.entries;
            entries.get(name).map(|slot| slot.ino)
        })
    }

    /// Everything observable of this tree.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of_tree(self)
    }

    /// Summary of the observable state.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.snapshot().digest()
    }
}
