//! A state served to a checker, and what the checker looked at.
//!
//! The kernel keeps no name and no attribute of this mount, and passes each read on: each look arrives. A checker that looks at the
//! same things in two states, and finds the same, does the same ([`Look`], [`View::seen`]): the second state need not be judged.
//!
//! A look is noted before it is answered, and rather too much than too little. What the checker has overwritten, and names that it has made
//! or taken away, are its own and no part of the state: they are not looked at. A program that maps a file can learn how many pages it has
//! without a request, so opening is a look at that.
//!
//! The kernel asks more than the program does. Before it looks a name up in a directory, and before it opens a file, it asks for its
//! attributes, for the permission bits alone; before it renames it looks up the target, and the program does not learn whether a file was
//! there. Since the kernel keeps nothing, it does so each time: the questions that come directly before, by the same thread, are the kernel's,
//! and earlier ones are the program's.

use super::calls::Calls;
use super::place::Place;
use super::ranges::Ranges;
use super::reply::Server;
use super::special::{ACKED_NAME, ISSUED_NAME, Special};
use super::view::{Look, View};
use crate::effects::{Ino, ROOT};
use crate::planted::{self, Planted};
use crate::trace::{Header, Root, TraceWriter, Wall};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Faults that can be planted here.
const FAULTS: [Planted; 4] = [
    Planted::LookForgotten,
    Planted::StatForgotten,
    Planted::OwnWhole,
    Planted::ListForgotten,
];

/// Most names of the checker's that a look at a directory leaves out.
const OWN_MAX: usize = 50;

/// What a thread has asked last, and what it has looked at if it was the program that asked.
#[derive(Debug, Default)]
struct Asked {
    name: Option<(Ino, Vec<u8>, Look)>,
    /// After the name: each time attributes were asked for.
    attributes: Vec<(Ino, Vec<Look>)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By thread.
    asked: HashMap<u32, Asked>,
    /// Names that the checker has made or taken away, by directory.
    own_names: HashMap<Ino, BTreeSet<Vec<u8>>>,
    looks: BTreeSet<Look>,
    read: HashMap<Ino, Ranges>,
    /// What the checker has written itself: with no end from the size to which it has truncated a file.
    own: HashMap<Ino, Ranges>,
}

impl Seen {
    fn is_sized(&self, ino: Ino) -> bool {
        self.own.get(&ino).is_some_and(Ranges::is_endless)
    }

    /// What a stat looks at: the size counts unless the checker has set it.
    fn stat(&self, ino: Ino) -> Vec<Look> {
        match self.is_sized(ino) {
            true => vec![Look::Attr(ino)],
            false => vec![Look::Attr(ino), Look::Size(ino)],
        }
    }

    /// What a thread has asked last was asked by the program, except for the very last if it is about the attributes of `kernel`.
    fn settle(&mut self, thread: u32, kernel: Option<Ino>) {
        let mut asked = self.asked.remove(&thread).unwrap_or_default();
        asked.attributes.pop_if(|(ino, _)| Some(*ino) == kernel);
        self.looks.extend(asked.name.map(|(_, _, look)| look));
        let attributes = asked.attributes.into_iter();
        self.looks.extend(attributes.flat_map(|(_, looks)| looks));
    }

    /// A thread has asked. A thread that is not known may be any.
    fn ask(&mut self, thread: u32, asked: Asked) {
        self.asked.insert(thread, asked);
        if thread == 0 {
            self.settle(thread, None);
        }
    }
}

/// What was looked at so far.
#[derive(Debug, Default)]
pub(super) struct Looks {
    seen: Mutex<Seen>,
    acked: String,
    issued: String,
    fault: Option<Planted>,
}

impl Looks {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, look: Look) {
        self.seen().looks.insert(look);
    }

    /// The lines of a file for the checker.
    pub(super) fn lines(&self, which: Special) -> &[u8] {
        match which {
            Special::Acked => self.acked.as_bytes(),
            Special::Issued => self.issued.as_bytes(),
            Special::Stdout | Special::Command => &[],
        }
    }

    /// A name was looked up.
    pub(super) fn lookup(&self, thread: u32, dir: Ino, name: &[u8]) {
        let mut seen = self.seen();
        seen.settle(thread, Some(dir));
        let own = seen.own_names.get(&dir);
        if own.is_none_or(|names| !names.contains(name)) {
            let look = Look::Name(dir, name.to_vec());
            let asked = Asked {
                name: Some((dir, name.to_vec(), look)),
                attributes: Vec::new(),
            };
            seen.ask(thread, asked);
        }
    }

    /// Attributes were asked for: those of the directory of a name perhaps by a rename of that name.
    pub(super) fn attributes(&self, thread: u32, ino: Ino) {
        let mut seen = self.seen();
        let looks = match self.fault {
            Some(Planted::StatForgotten) => Vec::new(),
            _ => seen.stat(ino),
        };
        let mut asked = seen.asked.remove(&thread).unwrap_or_default();
        let in_dir = asked.name.as_ref().is_some_and(|(dir, ..)| *dir == ino);
        if !in_dir {
            seen.asked.insert(thread, std::mem::take(&mut asked));
            seen.settle(thread, None);
        }
        asked.attributes.push((ino, looks));
        seen.ask(thread, asked);
    }

    pub(super) fn stat(&self, ino: Ino) {
        let mut seen = self.seen();
        let looks = seen.stat(ino);
        seen.looks.extend(looks);
    }

    /// The size alone was looked at.
    pub(super) fn size(&self, ino: Ino) {
        let mut seen = self.seen();
        if !seen.is_sized(ino) {
            seen.looks.insert(Look::Size(ino));
        }
    }

    /// A file is opened: the kernel has asked for its permission bits, which belong to its name.
    pub(super) fn open(&self, thread: u32, ino: Ino, empties: bool, appends: bool) {
        let mut seen = self.seen();
        seen.settle(thread, Some(ino));
        if !empties && !seen.is_sized(ino) {
            seen.looks.insert(match appends {
                true => Look::Size(ino),
                false => Look::Pages(ino),
            });
        }
    }

    /// A name is about to be replaced: the kernel has looked it up.
    pub(super) fn replace(&self, thread: u32, dir: Ino, name: &[u8]) {
        let mut seen = self.seen();
        if let Some(asked) = seen.asked.get_mut(&thread)
            && let Some((in_dir, found, look)) = &mut asked.name
            && (*in_dir, found.as_slice()) == (dir, name)
        {
            *look = Look::Target(dir, name.to_vec());
            asked.attributes.clear();
        }
        seen.settle(thread, None);
    }

    /// A directory was listed.
    pub(super) fn list(&self, dir: Ino) {
        let mut seen = self.seen();
        let own = seen.own_names.get(&dir);
        // Rather more than many long lists.
        let own = own.filter(|names| names.len() <= OWN_MAX);
        let look = Look::List(dir, own.cloned().unwrap_or_default());
        if self.fault != Some(Planted::ListForgotten) {
            seen.looks.insert(look);
        }
    }

    /// The checker has made or taken away a name.
    pub(super) fn named(&self, dir: Ino, name: &[u8]) {
        let mut seen = self.seen();
        let own = seen.own_names.entry(dir).or_default();
        own.insert(name.to_vec());
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, size: u64) {
        if self.fault == Some(Planted::LookForgotten) {
            return;
        }
        let mut seen = self.seen();
        let (from, to) = (offset, offset.saturating_add(size.max(1)));
        let looked = match seen.own.get(&ino) {
            Some(own) => own.missing(from, to),
            None => vec![(from, to)],
        };
        let read = seen.read.entry(ino).or_default();
        looked.into_iter().for_each(|(from, to)| read.add(from, to));
    }

    /// The checker has written this.
    pub(super) fn wrote(&self, ino: Ino, offset: u64, bytes: u64) {
        let mut seen = self.seen();
        let own = seen.own.entry(ino).or_default();
        match self.fault {
            Some(Planted::OwnWhole) => own.add(0, u64::MAX),
            _ => own.add(offset, offset.saturating_add(bytes)),
        }
    }

    /// The checker has set the size.
    pub(super) fn truncated(&self, ino: Ino, size: u64) {
        self.wrote(ino, size, u64::MAX);
    }

    /// All looks, about inodes of the state alone: what the checker has made itself is no part of it.
    fn taken(&self, ours: &HashMap<Ino, Ino>) -> Vec<Look> {
        let mut seen = std::mem::take(&mut *self.seen());
        let threads: Vec<u32> = seen.asked.keys().copied().collect();
        threads.into_iter().for_each(|t| seen.settle(t, None));
        let Seen { looks, read, .. } = seen;
        let read = read.iter().flat_map(|(ino, ranges)| {
            let ranges = ranges.iter();
            ranges.map(|(from, to)| Look::Bytes(*ino, from, to))
        });
        let all = looks.into_iter().chain(read);
        all.filter_map(|look| look.about(|ino| ours.get(&ino).copied()))
            .collect()
    }
}

/// A state that is served.
pub(crate) struct ServedState<'a> {
    /// Its directory.
    pub(crate) dir: &'a Path,
    /// The file with what must be there.
    pub(crate) acked: PathBuf,
    /// The file with what may be there.
    pub(crate) issued: PathBuf,
}

/// Serves a state while `run` runs with it, and returns what it was told and what was looked at. None if there is no private mount
/// here, or none at all: then `run` has not run.
pub(crate) fn serve<R: Send>(
    view: &View<'_>,
    run: impl FnOnce(&ServedState<'_>) -> R + Send,
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
    run: impl FnOnce(&ServedState<'_>) -> R,
) -> io::Result<Option<(R, Vec<Look>)>> {
    let Ok(place) = Place::prepare(None) else {
        return Ok(None);
    };
    if !place.is_private() {
        return Ok(None);
    }
    let root = view.disk().node(ROOT);
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
        acked: lines(view.acked()),
        issued: lines(view.issued()),
        fault: FAULTS.into_iter().find(|fault| planted::is(*fault)),
        ..Looks::default()
    });
    let server = Server::looked(Arc::clone(&calls), Arc::clone(&looks));
    let Ok(mounted) = place.mount(server) else {
        return Ok(None);
    };
    let said = run(&ServedState {
        dir: mounted.path(),
        acked: mounted.path().join(ACKED_NAME),
        issued: mounted.path().join(ISSUED_NAME),
    });
    mounted.unmount().map_err(io::Error::other)?;
    Ok(Some((said, looks.taken(&ours))))
}

/// The content of a file of lines.
pub(crate) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}
