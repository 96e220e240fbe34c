//! A state served to a checker, and what the checker looked at.
//!
//! The kernel keeps no name and no attribute of this mount, and reads pages one by one: each look arrives. A checker that looks at the
//! same things in two states, and finds the same, does the same ([`Look`], [`View::seen`]): the second state need not be judged.
//!
//! A look is noted before it is answered, and rather too much than too little: a call that opens a file has looked at its size.

use super::calls::Calls;
use super::place::Place;
use super::server::Server;
use crate::effects::{Body, Disk, Ino, Node, ROOT};
use crate::planted::{self, Planted};
use crate::trace::{Change, Header, Kind, Op, Root, Span, TraceWriter, Wall, Who, WriteHow};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use steadfast_model::Hasher128;
use steadfast_model::data::{FileData, PAGE_BYTES};
use steadfast_vfs::FileKind;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) enum Look {
    /// What a name in a directory refers to, its kind, its owner and its permission bits.
    Name(Ino, Vec<u8>),
    /// The size, the number of links, and the same.
    Attr(Ino),
    /// The names in a directory.
    List(Ino),
    /// The target of a symbolic link.
    Link(Ino),
    /// Extended attributes.
    Xattrs(Ino),
    /// The content of one page.
    Page(Ino, u64),
    /// All of the content: where there is data and where holes.
    Content(Ino),
}

/// What was looked at so far.
#[derive(Debug, Default)]
pub(super) struct Looks {
    seen: Mutex<BTreeSet<Look>>,
    /// A planted fault: what is read is not noted.
    forget: bool,
}

impl Looks {
    pub(super) fn note(&self, look: Look) {
        if self.forget && matches!(look, Look::Page(..)) {
            return;
        }
        let mut looks = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        looks.insert(look);
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, size: u64) {
        let last = offset.saturating_add(size.max(1) - 1) / PAGE_BYTES;
        for page in offset / PAGE_BYTES..=last {
            self.note(Look::Page(ino, page));
        }
    }
}

/// A tree as a checker sees it.
#[derive(Debug)]
pub(crate) struct View<'a> {
    disk: &'a Disk,
    /// Directory, name and inode, parents first.
    order: Vec<(Ino, &'a [u8], Ino)>,
    dirs: HashMap<Ino, BTreeMap<&'a [u8], Ino>>,
    links: HashMap<Ino, u32>,
    files: HashMap<Ino, FileData>,
    pages: Mutex<HashMap<(Ino, u64), u128>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(disk: &'a Disk) -> View<'a> {
        let mut view = View {
            disk,
            order: Vec::new(),
            dirs: HashMap::new(),
            links: HashMap::new(),
            files: HashMap::new(),
            pages: Mutex::default(),
        };
        let mut seen = BTreeSet::from([ROOT]);
        let mut todo = vec![ROOT];
        while let Some(dir) = todo.pop() {
            let names = view.dirs.entry(dir).or_default();
            let Some(Body::Dir(entries)) = disk.node(dir).map(|n| &n.body) else {
                continue;
            };
            for (name, ino) in entries {
                let Some(node) = disk.node(*ino) else {
                    continue;
                };
                match (&node.body, node.kind) {
                    (Body::Dir(_), _) if !seen.insert(*ino) => continue,
                    (Body::Dir(_), _) => todo.push(*ino),
                    (Body::Special, kind) if kind != FileKind::Fifo => continue,
                    (Body::File { size, data }, _) => {
                        view.files.entry(*ino).or_insert_with(|| {
                            let mut data = data.clone();
                            data.resize(*size);
                            data
                        });
                    }
                    _ => {}
                }
                names.insert(name, *ino);
                *view.links.entry(*ino).or_insert(0) += 1;
                view.order.push((dir, name, *ino));
            }
        }
        view
    }

    /// The tree.
    pub(crate) fn disk(&self) -> &'a Disk {
        self.disk
    }

    /// A hash of what a look shows.
    pub(crate) fn seen(&self, look: &Look) -> u128 {
        let mut hash = Hasher128::new(83);
        match look {
            Look::Name(dir, name) => {
                let ino = self.dirs.get(dir).and_then(|d| d.get(name.as_slice()));
                if let Some(node) = ino.and_then(|ino| self.disk.node(*ino)) {
                    hash.u64(ino.copied().unwrap_or(0));
                    owner(&mut hash, node);
                }
            }
            Look::Attr(ino) => {
                if let Some(node) = self.disk.node(*ino) {
                    owner(&mut hash, node);
                    hash.u64(self.disk.size(*ino));
                    hash.u64(u64::from(self.links.get(ino).copied().unwrap_or(0)));
                    let below = self.dirs.get(ino).into_iter().flat_map(BTreeMap::values);
                    let dirs = below.filter(|i| self.dirs.contains_key(i)).count();
                    hash.u64(dirs as u64);
                }
            }
            Look::List(dir) => {
                for (name, ino) in self.dirs.get(dir).into_iter().flatten() {
                    let kind = self.disk.node(*ino).map_or(0, |n| n.kind as u64);
                    hash.bytes(name).u64(*ino).u64(kind);
                }
            }
            Look::Link(ino) => {
                if let Some(Body::Link(target)) = self.disk.node(*ino).map(|n| &n.body) {
                    hash.bytes(target);
                }
            }
            Look::Xattrs(ino) => {
                for (name, value) in self.disk.node(*ino).into_iter().flat_map(|n| &n.xattrs) {
                    hash.bytes(name).bytes(value);
                }
            }
            Look::Page(ino, page) => {
                hash.u128(self.page(*ino, *page));
            }
            Look::Content(ino) => {
                hash.u128(self.files.get(ino).map_or(0, FileData::digest));
            }
        }
        hash.finish()
    }

    /// A hash of a page of a file, computed once.
    fn page(&self, ino: Ino, page: u64) -> u128 {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        *pages.entry((ino, page)).or_insert_with(|| {
            let mut bytes = [0; PAGE_BYTES as usize];
            let at = page.saturating_mul(PAGE_BYTES);
            if let Some(file) = self.files.get(&ino) {
                file.read(at, &mut bytes);
            }
            Hasher128::new(84).bytes(&bytes).finish()
        })
    }

    /// The tree as calls on an empty one. Returns the inodes of that tree with those of this.
    fn make(&self, calls: &Calls) -> io::Result<HashMap<Ino, Ino>> {
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
            ours.insert(new, *ino);
            if let Some(data) = self.files.get(ino) {
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
            // What is written loses its set-id bits.
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

/// Serves a state while `run` runs with its path, and returns what it was told and what was looked at. None if there is no private mount
/// here, or none at all: then `run` has not run.
pub(crate) fn serve<R: Send>(
    view: &View<'_>,
    run: impl FnOnce(&Path) -> R + Send,
) -> io::Result<Option<(R, Vec<Look>)>> {
    let fault = planted::here();
    std::thread::scope(|scope| {
        // A thread of its own: its mount namespace goes with it.
        std::thread::Builder::new()
            .name("crash-looked".to_owned())
            .spawn_scoped(scope, || {
                planted::plant_here(fault);
                serve_here(view, run)
            })?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread that serves a state panicked")))
    })
}

fn serve_here<R>(
    view: &View<'_>,
    run: impl FnOnce(&Path) -> R,
) -> io::Result<Option<(R, Vec<Look>)>> {
    let Ok(place) = Place::prepare(None) else {
        return Ok(None);
    };
    if !place.is_private() {
        return Ok(None);
    }
    let root = view.disk.node(ROOT);
    let header = Header {
        command: Vec::new(),
        setup: None,
        mount: Vec::new(),
        started: Wall::from(super::convert::time(std::time::SystemTime::now())),
        recorder: String::new(),
        kernel: String::new(),
        root: Root {
            perm: root.map_or(0o755, |n| n.perm),
            uid: root.map_or(0, |n| n.uid),
            gid: root.map_or(0, |n| n.gid),
        },
    };
    let writer = TraceWriter::create(Path::new("/dev/null"), &header).map_err(io::Error::other)?;
    let calls = Arc::new(Calls::new(writer, &header, u64::MAX, None, None));
    let ours = view.make(&calls)?;
    let looks = Arc::new(Looks {
        forget: planted::is(Planted::LookForgotten),
        ..Looks::default()
    });
    let server = Server::looked(Arc::clone(&calls), Arc::clone(&looks));
    let Ok(mounted) = place.mount(server) else {
        return Ok(None);
    };
    let said = run(mounted.path());
    mounted.unmount().map_err(io::Error::other)?;
    let looks = std::mem::take(&mut *looks.seen.lock().unwrap_or_else(PoisonError::into_inner));
    // What the checker made itself is no part of the state.
    let known = looks.into_iter().filter_map(|look| {
        let ours = |ino: Ino| ours.get(&ino).copied();
        Some(match look {
            Look::Name(dir, name) => Look::Name(ours(dir)?, name),
            Look::Attr(ino) => Look::Attr(ours(ino)?),
            Look::List(ino) => Look::List(ours(ino)?),
            Look::Link(ino) => Look::Link(ours(ino)?),
            Look::Xattrs(ino) => Look::Xattrs(ours(ino)?),
            Look::Page(ino, page) => Look::Page(ours(ino)?, page),
            Look::Content(ino) => Look::Content(ours(ino)?),
        })
    });
    Ok(Some((said, known.collect())))
}
