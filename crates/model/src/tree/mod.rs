//! The in-memory POSIX tree: the meaning of every operation of
//! [`steadfast_vfs::FileSystem`], with the errors and the precedence of errors that Linux
//! and ext4 have.
//!
//! A [`Tree`] is a value. Cloning costs a few pointers; versions share unchanged parts,
//! so a contract can keep one tree per operation. Time is an argument.
//!
//! Invariants (checked by [`Tree::check`]): every entry names a live inode; link
//! counts equal the names (directories: 2 plus subdirectories); an inode without
//! names is alive only while it is open; `..` points to the directory that holds the
//! entry; no directory is its own ancestor.
//!
//! Choices where Linux leaves room, made once here:
//! - Access modes are checked by namespace calls, `setattr` and xattr calls, unless
//!   [`Caller::checked`]; `read`, `write`, `append`, `fallocate` and `readdir` act on
//!   the open inode and do not check again.
//! - Any `setattr` with a size sets mtime and ctime; reading never changes atime.
//! - Inode numbers are never reused.
//!
//! Neighbours: [`crate::op`] runs operations on it, [`crate::snapshot`] observes it,
//! [`crate::memfs`] serves it. Papers: 000 (tree as specification), CORNERS 26, 28, 33.

mod acl;
mod attrs;
mod names;
mod perm;
mod rename;
#[cfg(test)]
mod tests;

use crate::data::FileData;
use crate::pmap::PMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_vfs::{Attr, Caller, Cookie, Errno, FileKind, Ino, NAME_MAX, Seek, Time};

/// Inode number of the root of every tree.
pub const ROOT: Ino = 1;

/// Result of a tree operation.
pub type TreeResult<T> = Result<T, Errno>;

/// Names and values of extended attributes.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Limits of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest file, in bytes: beyond it EFBIG.
    pub file_bytes_max: u64,
    /// Most hard links of an inode that is no directory: beyond it EMLINK.
    pub links_max: u32,
    /// Longest value of an extended attribute, in bytes.
    pub xattr_value_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            file_bytes_max: 1 << 44,
            links_max: 65_000,
            xattr_value_bytes_max: 65_536,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) ino: Ino,
    pub(crate) cookie: Cookie,
}

/// Entries of a directory, by name and by cookie. Cookies grow and are never reused.
#[derive(Clone, Debug)]
pub(crate) struct Dir {
    pub(crate) parent: Ino,
    pub(crate) entries: BTreeMap<Arc<[u8]>, Slot>,
    pub(crate) by_cookie: BTreeMap<Cookie, Arc<[u8]>>,
    next_cookie: Cookie,
}

/// Cookies of `.` and `..`.
pub(crate) const COOKIE_DOT: Cookie = 1;
pub(crate) const COOKIE_DOTDOT: Cookie = 2;

impl Dir {
    fn new(parent: Ino) -> Dir {
        Dir {
            parent,
            entries: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: 3,
        }
    }

    /// Names `ino`; an entry that is there keeps its place.
    fn set(&mut self, name: &[u8], ino: Ino) {
        if let Some(slot) = self.entries.get_mut(name) {
            slot.ino = ino;
            return;
        }
        let name: Arc<[u8]> = Arc::from(name);
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.by_cookie.insert(cookie, Arc::clone(&name));
        self.entries.insert(name, Slot { ino, cookie });
    }

    fn unset(&mut self, name: &[u8]) {
        if let Some(slot) = self.entries.remove(name) {
            self.by_cookie.remove(&slot.cookie);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    File(FileData),
    Dir(Arc<Dir>),
    Link(Arc<[u8]>),
    Special,
}

/// One inode.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) xattrs: Arc<Xattrs>,
    pub(crate) body: Body,
}

impl Node {
    fn size(&self) -> u64 {
        match &self.body {
            Body::File(d) => d.size(),
            Body::Link(t) => t.len() as u64,
            Body::Dir(_) => 4096,
            Body::Special => 0,
        }
    }

    pub(crate) fn dir(&self) -> TreeResult<&Dir> {
        match &self.body {
            Body::Dir(d) => Ok(d),
            _ => Err(Errno::NotDir),
        }
    }

    fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The data of a regular file: EISDIR for directories, EINVAL for the rest.
    fn file(&self) -> TreeResult<&FileData> {
        match &self.body {
            Body::File(d) => Ok(d),
            Body::Dir(_) => Err(Errno::IsDir),
            _ => Err(Errno::Inval),
        }
    }
}

/// A file tree.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) nodes: PMap<Node>,
    next_ino: Ino,
    opens: Arc<BTreeMap<Ino, u32>>,
    /// Open handles of [`crate::op::Op`]s, by number.
    pub(crate) handles: Arc<BTreeMap<u32, Ino>>,
    limits: Limits,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Vec<u8>,
    /// Inode it names.
    pub ino: Ino,
    /// Kind of that inode.
    pub kind: FileKind,
    /// Its place; listing goes on after it.
    pub cookie: Cookie,
}

impl Tree {
    /// An empty tree: a root directory with mode 755 that belongs to the superuser.
    #[must_use]
    pub fn new(at: Time) -> Tree {
        Tree::with_root(0o755, 0, 0, at)
    }

    /// An empty tree whose root has this mode and owner.
    #[must_use]
    pub fn with_root(perm: u16, uid: u32, gid: u32, at: Time) -> Tree {
        let mut nodes = PMap::new();
        let root = Node {
            kind: FileKind::Directory,
            perm: perm & 0o7777,
            uid,
            gid,
            nlink: 2,
            rdev: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            xattrs: Arc::default(),
            body: Body::Dir(Arc::new(Dir::new(ROOT))),
        };
        nodes.insert(ROOT, root);
        Tree {
            nodes,
            next_ino: ROOT + 1,
            opens: Arc::default(),
            handles: Arc::default(),
            limits: Limits::default(),
        }
    }

    /// The same tree under other limits.
    #[must_use]
    pub fn limited(mut self, limits: Limits) -> Tree {
        self.limits = limits;
        self
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Inodes alive, the root included.
    #[must_use]
    pub fn inodes(&self) -> usize {
        self.nodes.len()
    }

    /// The number that the next new inode gets.
    #[must_use]
    pub fn next_ino(&self) -> Ino {
        self.next_ino
    }

    /// The number that the next new inode gets: a history numbers inodes by operation,
    /// so that they keep their identity when other operations are left out.
    pub fn set_next_ino(&mut self, ino: Ino) {
        self.next_ino = ino;
    }

    pub(crate) fn node(&self, ino: Ino) -> TreeResult<&Node> {
        self.nodes.get(ino).ok_or(Errno::Stale)
    }

    fn node_mut(&mut self, ino: Ino) -> TreeResult<&mut Node> {
        self.nodes.get_mut(ino).ok_or(Errno::Stale)
    }

    fn dir_mut(&mut self, ino: Ino) -> TreeResult<&mut Dir> {
        match &mut self.node_mut(ino)?.body {
            Body::Dir(d) => Ok(Arc::make_mut(d)),
            _ => Err(Errno::NotDir),
        }
    }

    fn is_open(&self, ino: Ino) -> bool {
        self.opens.contains_key(&ino)
    }

    /// Forgets an inode that has neither names nor openers.
    fn reap(&mut self, ino: Ino) {
        let dead = self.nodes.get(ino).is_some_and(|n| n.nlink == 0);
        if dead && !self.is_open(ino) {
            self.nodes.remove(ino);
        }
    }

    /// Attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> TreeResult<Attr> {
        let n = self.node(ino)?;
        Ok(Attr {
            ino,
            generation: 1,
            kind: n.kind,
            perm: n.perm,
            nlink: n.nlink,
            uid: n.uid,
            gid: n.gid,
            rdev: n.rdev,
            size: n.size(),
            blocks: match &n.body {
                Body::File(d) => d.pages() * 8,
                Body::Dir(_) => 8,
                _ => 0,
            },
            atime: n.atime,
            mtime: n.mtime,
            ctime: n.ctime,
            btime: n.btime,
        })
    }

    /// Finds `name` in `parent`; `.` and `..` are understood.
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> TreeResult<Ino> {
        let dir = self.search(caller, parent)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(dir.parent),
            _ => {
                check_name(name)?;
                dir.entries.get(name).map(|s| s.ino).ok_or(Errno::NoEnt)
            }
        }
    }

    /// The directory `ino`, which the caller may search.
    fn search(&self, caller: &Caller, ino: Ino) -> TreeResult<&Dir> {
        let node = self.node(ino)?;
        let dir = node.dir()?;
        node.may(caller, perm::EXEC)?;
        Ok(dir)
    }

    /// Whether the caller may read (4), write (2), execute or search (1).
    pub fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> TreeResult<()> {
        if self.node(ino)?.permits(caller, u16::from(mask)) {
            Ok(())
        } else {
            Err(Errno::Access)
        }
    }

    /// The target of a symbolic link; EINVAL for anything else.
    pub fn readlink(&self, ino: Ino) -> TreeResult<&[u8]> {
        match &self.node(ino)?.body {
            Body::Link(t) => Ok(t),
            _ => Err(Errno::Inval),
        }
    }

    /// Reads file data; short only at the end.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> TreeResult<usize> {
        Ok(self.node(ino)?.file()?.read(offset, buf))
    }

    /// The content of a regular file; none of anything else.
    #[must_use]
    pub fn data(&self, ino: Ino) -> Option<&FileData> {
        self.node(ino).ok()?.file().ok()
    }

    /// Gives a regular file this content; its times and permission bits stay. Nothing happens to anything else.
    pub fn set_data(&mut self, ino: Ino, data: FileData) {
        if let Ok(node) = self.node_mut(ino)
            && let Body::File(old) = &mut node.body
        {
            *old = data;
        }
    }

    /// Finds data or a hole at or after `offset`; ENXIO beyond the end.
    pub fn seek(&self, ino: Ino, offset: u64, whence: Seek) -> TreeResult<u64> {
        let data = self.node(ino)?.file()?;
        if offset >= data.size() {
            return Err(Errno::NxIo);
        }
        match whence {
            Seek::Data => data.next_data(offset).ok_or(Errno::NxIo),
            Seek::Hole => Ok(data.next_hole(offset)),
        }
    }

    /// Lists at most `max` entries that come after `cookie` (0: from the start).
    pub fn readdir(&self, ino: Ino, cookie: Cookie, max: usize) -> TreeResult<Vec<Listed>> {
        let dir = self.node(ino)?.dir()?;
        let mut out = Vec::new();
        let dots = [
            (COOKIE_DOT, &b"."[..], ino),
            (COOKIE_DOTDOT, &b".."[..], dir.parent),
        ];
        for (at, name, of) in dots {
            if cookie < at && out.len() < max {
                let kind = FileKind::Directory;
                out.push(Listed {
                    name: name.to_vec(),
                    ino: of,
                    kind,
                    cookie: at,
                });
            }
        }
        for (at, name) in dir.by_cookie.range(cookie.saturating_add(1)..) {
            if out.len() >= max {
                break;
            }
            let Some(slot) = dir.entries.get(name) else {
                continue;
            };
            let kind = self.node(slot.ino)?.kind;
            out.push(Listed {
                name: name.to_vec(),
                ino: slot.ino,
                kind,
                cookie: *at,
            });
        }
        Ok(out)
    }

    /// Keeps an inode alive while it is open. Pairs with [`Tree::release`].
    pub fn open(&mut self, ino: Ino) -> TreeResult<()> {
        self.node(ino)?;
        *Arc::make_mut(&mut self.opens).entry(ino).or_insert(0) += 1;
        Ok(())
    }

    /// Ends one [`Tree::open`]; frees an inode that has no names left.
    pub fn release(&mut self, ino: Ino) {
        let opens = Arc::make_mut(&mut self.opens);
        if let Some(count) = opens.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                opens.remove(&ino);
                self.reap(ino);
            }
        }
    }

    /// The tree as a crash leaves it: nothing is open, inodes without names are gone.
    #[must_use]
    pub fn closed(&self) -> Tree {
        let mut tree = self.clone();
        let open: Vec<Ino> = tree.opens.keys().copied().collect();
        tree.opens = Arc::default();
        tree.handles = Arc::default();
        for ino in open {
            tree.reap(ino);
        }
        tree
    }

    /// Checks the invariants of the tree itself; says which one fails where.
    pub fn check(&self) -> Result<(), String> {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut dirs = vec![ROOT];
        let mut seen = 0usize;
        while let Some(ino) = dirs.pop() {
            let node = self
                .node(ino)
                .map_err(|_| format!("inode {ino} is named but gone"))?;
            let dir = node
                .dir()
                .map_err(|_| format!("inode {ino} is no directory"))?;
            seen += 1;
            if seen > self.nodes.len() {
                return Err("the directories form a cycle".into());
            }
            if dir.entries.len() != dir.by_cookie.len() {
                return Err(format!("directory {ino}: names and cookies disagree"));
            }
            let mut subdirs = 0;
            for (name, slot) in &dir.entries {
                *names.entry(slot.ino).or_insert(0) += 1;
                let child = self.node(slot.ino).map_err(|_| {
                    format!(
                        "{:?} in directory {ino} is gone",
                        String::from_utf8_lossy(name)
                    )
                })?;
                if let Ok(d) = child.dir() {
                    subdirs += 1;
                    dirs.push(slot.ino);
                    if d.parent != ino {
                        return Err(format!("directory {}: '..' is {}", slot.ino, d.parent));
                    }
                }
            }
            if node.nlink != 2 + subdirs {
                return Err(format!(
                    "directory {ino}: {} links, {subdirs} below",
                    node.nlink
                ));
            }
        }
        for change in PMap::new().changes(&self.nodes) {
            let Some(node) = change.after else { continue };
            let n = names.get(&change.key).copied().unwrap_or(0);
            if node.is_dir() && n > 1 {
                return Err(format!("directory {} has {n} names", change.key));
            }
            if !node.is_dir() && node.nlink != n {
                return Err(format!(
                    "inode {}: {} links, {n} names",
                    change.key, node.nlink
                ));
            }
            if n == 0 && change.key != ROOT && !self.is_open(change.key) {
                return Err(format!("inode {} has no name and is not open", change.key));
            }
        }
        Ok(())
    }
}

/// Whether a string can name an entry. `.` and `..` pass: each call decides on them.
fn check_name(name: &[u8]) -> TreeResult<()> {
    if name.is_empty() {
        return Err(Errno::NoEnt);
    }
    if name.len() > NAME_MAX {
        return Err(Errno::NameTooLong);
    }
    if name.contains(&0) || name.contains(&b'/') {
        return Err(Errno::Inval);
    }
    Ok(())
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
