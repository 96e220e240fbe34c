//! The tables. Nothing is checked that the kernel has checked already, and nothing that only costs time.
//!
//! Lock order: the lock of renames, the nodes of directories by number, the node of the named inode, the table.

use crate::content::Content;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Clock, Cookie, DirEntry, Errno, FileKind, FileSystem, Ino, NewNode,
    RenameMode, Result, Seek, SetAttr, SetTime, StatFs, SystemClock, XattrMode,
};

const ROOT: Ino = 1;
const NAME_MAX: u32 = 255;
/// Entries that are listed at a time.
const BATCH: usize = 64;
/// The first cookie after those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// An entry as it is listed.
type Listed = (Cookie, Ino, FileKind, Arc<[u8]>);

#[derive(Clone, Copy)]
struct Entry {
    cookie: Cookie,
    ino: Ino,
    kind: FileKind,
}

/// The names of a directory.
struct Names {
    parent: Ino,
    entries: Map<Arc<[u8]>, Entry>,
    order: BTreeMap<Cookie, Arc<[u8]>>,
    next: Cookie,
}

impl Names {
    fn new(parent: Ino) -> Names {
        Names {
            parent,
            entries: Map::default(),
            order: BTreeMap::new(),
            next: FIRST_COOKIE,
        }
    }

    fn add(&mut self, name: &[u8], ino: Ino, kind: FileKind) {
        let (name, cookie) = (Arc::<[u8]>::from(name), self.next);
        self.next += 1;
        self.order.insert(cookie, Arc::clone(&name));
        self.entries.insert(name, Entry { cookie, ino, kind });
    }

    fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        self.order.remove(&entry.cookie);
        Some(entry)
    }
}

enum Body {
    File(Content),
    Directory(Names),
    Symlink(Vec<u8>),
    Other,
}

struct State {
    attr: Attr,
    body: Body,
    opens: u64,
}

impl State {
    fn names(&mut self) -> Result<&mut Names> {
        match &mut self.body {
            Body::Directory(names) => Ok(names),
            _ => Err(Errno::NotDir.into()),
        }
    }

    fn content(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Errno::IsDir.into()),
            _ => Err(Errno::Inval.into()),
        }
    }

    /// The content has changed.
    fn changed(&mut self) {
        if let Body::File(content) = &self.body {
            self.attr.size = content.size();
            self.attr.blocks = content.size().div_ceil(512);
        }
        self.attr.mtime = SystemClock.now();
        self.attr.ctime = self.attr.mtime;
    }
}

struct Node(Mutex<State>);

impl Node {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module's header.
pub(crate) struct Null {
    nodes: RwLock<Map<Ino, Arc<Node>>>,
    next: AtomicU64,
    /// Held while two directories change.
    renames: Mutex<()>,
}

impl Null {
    pub(crate) fn new() -> Null {
        let null = Null {
            nodes: RwLock::default(),
            next: AtomicU64::new(ROOT),
            renames: Mutex::default(),
        };
        let names = Body::Directory(Names::new(ROOT));
        null.make(&Caller::root(), FileKind::Directory, (0o755, 0), names);
        null
    }

    fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&ino).cloned().ok_or(Errno::Stale.into())
    }

    fn make(&self, caller: &Caller, kind: FileKind, (perm, rdev): (u16, u32), body: Body) -> Attr {
        let now = SystemClock.now();
        let size = match &body {
            Body::Symlink(target) => target.len() as u64,
            _ => 0,
        };
        let attr = Attr {
            ino: self.next.fetch_add(1, Relaxed),
            generation: 1,
            kind,
            perm: perm & !caller.umask,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev,
            size,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let state = State {
            attr,
            body,
            opens: 0,
        };
        let node = Arc::new(Node(Mutex::new(state)));
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(attr.ino, node);
        attr
    }

    /// Makes a node with a name.
    fn make_named(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        kind: FileKind,
        (perm, rdev): (u16, u32),
        body: Body,
    ) -> Result<Attr> {
        let parent = self.node(parent)?;
        let mut parent = parent.state();
        if parent.names()?.entries.contains_key(name) {
            return Err(Errno::Exist.into());
        }
        let attr = self.make(caller, kind, (perm, rdev), body);
        parent.names()?.add(name, attr.ino, kind);
        if kind == FileKind::Directory {
            parent.attr.nlink += 1;
        }
        parent.changed();
        Ok(attr)
    }

    /// Takes a name, and the node with its last.
    fn remove(&self, parent: Ino, name: &[u8], is_dir: bool) -> Result<()> {
        let parent = self.node(parent)?;
        let mut parent = parent.state();
        let entry = parent.names()?.entries.get(name).copied();
        let entry = entry.ok_or(Errno::NoEnt)?;
        match (is_dir, entry.kind == FileKind::Directory) {
            (true, false) => return Err(Errno::NotDir.into()),
            (false, true) => return Err(Errno::IsDir.into()),
            _ => {}
        }
        self.drop_name(&mut parent, entry)?;
        parent.names()?.remove(name);
        parent.changed();
        Ok(())
    }

    /// A node has a name less; its directory is locked.
    fn drop_name(&self, parent: &mut State, entry: Entry) -> Result<()> {
        let node = self.node(entry.ino)?;
        let mut state = node.state();
        if let Body::Directory(names) = &state.body {
            if !names.entries.is_empty() {
                return Err(Errno::NotEmpty.into());
            }
            parent.attr.nlink -= 1;
            state.attr.nlink = 0;
        } else {
            state.attr.nlink -= 1;
            state.attr.ctime = SystemClock.now();
        }
        self.forget_if_gone(&state);
        Ok(())
    }

    fn forget_if_gone(&self, state: &State) {
        if state.attr.nlink == 0 && state.opens == 0 {
            let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
            nodes.remove(&state.attr.ino);
        }
    }

    /// Moves a name within one directory or, with its second one locked, to that.
    fn rename_locked(
        &self,
        from: &mut State,
        mut to: Option<&mut State>,
        (old, new): (&[u8], &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) {
            return Err(Errno::Inval.into());
        }
        let moved = from.names()?.entries.get(old).copied();
        let moved = moved.ok_or(Errno::NoEnt)?;
        let target = to.as_deref_mut().unwrap_or(&mut *from);
        let replaced = target.names()?.entries.get(new).copied();
        if let Some(replaced) = replaced {
            if mode.is_no_replace() {
                return Err(Errno::Exist.into());
            }
            if replaced.ino == moved.ino {
                return Ok(());
            }
            self.drop_name(target, replaced)?;
            target.names()?.remove(new);
        }
        from.names()?.remove(old);
        from.changed();
        let target = to.as_deref_mut().unwrap_or(&mut *from);
        target.names()?.add(new, moved.ino, moved.kind);
        target.changed();
        let ino = target.attr.ino;
        if moved.kind == FileKind::Directory && to.is_some() {
            from.attr.nlink -= 1;
            if let Some(to) = to {
                to.attr.nlink += 1;
            }
            self.node(moved.ino)?.state().names()?.parent = ino;
        }
        Ok(())
    }
}

/// Some entries of a directory after a cookie.
fn listed(state: &mut State, cookie: Cookie) -> Result<Vec<Listed>> {
    let ino = state.attr.ino;
    let names = state.names()?;
    let dots = [(1, ino, &b"."[..]), (2, names.parent, &b".."[..])];
    let dots = dots.into_iter().filter(|(next, ..)| *next > cookie);
    let dots = dots.map(|(next, ino, name)| (next, ino, FileKind::Directory, Arc::from(name)));
    let named = names
        .order
        .range(cookie + 1..)
        .filter_map(|(cookie, name)| {
            let entry = names.entries.get(name)?;
            Some((*cookie, entry.ino, entry.kind, Arc::clone(name)))
        });
    Ok(dots.chain(named).take(BATCH).collect())
}

impl FileSystem for Null {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, _caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        let parent = self.node(parent)?;
        let mut parent = parent.state();
        let ino = match name {
            b"." => parent.attr.ino,
            b".." => parent.names()?.parent,
            name => {
                let entry = parent.names()?.entries.get(name);
                entry.ok_or(Errno::NoEnt)?.ino
            }
        };
        drop(parent);
        self.getattr(&Caller::root(), ino)
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> Result<Attr> {
        Ok(self.node(ino)?.state().attr)
    }

    fn setattr(&self, _caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        let mut state = node.state();
        let now = SystemClock.now();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if let Some(size) = set.size {
            state.content()?.resize(size);
            state.changed();
        }
        let attr = &mut state.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        Ok(*attr)
    }

    fn access(&self, _caller: &Caller, _ino: Ino, _mask: u8) -> Result<()> {
        Ok(())
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let body = match node.kind {
            FileKind::Regular => Body::File(Content::default()),
            _ => Body::Other,
        };
        let place = (parent, name);
        self.make_named(caller, place, node.kind, (node.perm, node.rdev), body)
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let (place, body) = ((parent, name), Body::Directory(Names::new(parent)));
        self.make_named(caller, place, FileKind::Directory, (perm, 0), body)
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let (place, body) = ((parent, name), Body::Symlink(target.to_vec()));
        self.make_named(caller, place, FileKind::Symlink, (0o777, 0), body)
    }

    fn readlink(&self, _caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        match &self.node(ino)?.state().body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::Inval.into()),
        }
    }

    fn link(&self, _caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let (node, parent) = (self.node(ino)?, self.node(parent)?);
        let mut parent = parent.state();
        if parent.names()?.entries.contains_key(name) {
            return Err(Errno::Exist.into());
        }
        let mut state = node.state();
        state.attr.nlink += 1;
        state.attr.ctime = SystemClock.now();
        parent.names()?.add(name, ino, state.attr.kind);
        parent.changed();
        Ok(state.attr)
    }

    fn unlink(&self, _caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    fn rmdir(&self, _caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn rename(
        &self,
        _caller: &Caller,
        (from, old): (Ino, &[u8]),
        (to, new): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let source = self.node(from)?;
        if from == to {
            return self.rename_locked(&mut source.state(), None, (old, new), mode);
        }
        let target = self.node(to)?;
        let _renames = self.renames.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut source, mut target) = match from < to {
            true => {
                let source = source.state();
                (source, target.state())
            }
            false => {
                let target = target.state();
                (source.state(), target)
            }
        };
        self.rename_locked(&mut source, Some(&mut target), (old, new), mode)
    }

    fn open(&self, _caller: &Caller, ino: Ino) -> Result<()> {
        self.node(ino)?.state().opens += 1;
        Ok(())
    }

    fn release(&self, ino: Ino) {
        if let Ok(node) = self.node(ino) {
            let mut state = node.state();
            state.opens = state.opens.saturating_sub(1);
            self.forget_if_gone(&state);
        }
    }

    fn read(&self, _caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.node(ino)?.state().content()?.read(offset, buf))
    }

    fn write(&self, _caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let mut state = node.state();
        state.content()?.write(offset, data);
        state.changed();
        Ok(data.len())
    }

    fn append(&self, _caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let node = self.node(ino)?;
        let mut state = node.state();
        let content = state.content()?;
        let at = content.size();
        content.write(at, data);
        state.changed();
        Ok((at, data.len()))
    }

    fn fsync(&self, _caller: &Caller, _ino: Ino, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn fallocate(
        &self,
        _caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let node = self.node(ino)?;
        let mut state = node.state();
        let content = state.content()?;
        match mode {
            AllocateMode::KeepSize => {}
            AllocateMode::Allocate => content.resize(content.size().max(offset + len)),
            AllocateMode::PunchHole | AllocateMode::ZeroRangeKeepSize => content.clear(offset, len),
            AllocateMode::ZeroRange => {
                content.clear(offset, len);
                content.resize(content.size().max(offset + len));
            }
        }
        state.changed();
        Ok(())
    }

    fn seek(&self, _caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let size = self.node(ino)?.state().content()?.size();
        match whence {
            _ if offset >= size => Err(Errno::NxIo.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn readdir(
        &self,
        _caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(dir)?;
        let mut last = cookie;
        loop {
            // The sink may look up the inodes that it gets.
            let batch = listed(&mut node.state(), last)?;
            for (next, ino, kind, name) in &batch {
                let entry = DirEntry {
                    ino: *ino,
                    kind: *kind,
                    next: *next,
                    name,
                };
                if !sink(entry) {
                    return Ok(());
                }
                last = *next;
            }
            if batch.is_empty() {
                return Ok(());
            }
        }
    }

    fn getxattr(&self, _caller: &Caller, _ino: Ino, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NoData.into())
    }

    fn setxattr(
        &self,
        _caller: &Caller,
        _ino: Ino,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> Result<()> {
        Err(Errno::OpNotSupp.into())
    }

    fn listxattr(&self, _caller: &Caller, _ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn removexattr(&self, _caller: &Caller, _ino: Ino, _name: &[u8]) -> Result<()> {
        Err(Errno::NoData.into())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1 << 24,
            blocks_free: 1 << 23,
            inodes: 1 << 24,
            inodes_free: 1 << 23,
            name_max: NAME_MAX,
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
