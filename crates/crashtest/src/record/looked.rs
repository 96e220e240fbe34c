//! Serves a state to a checker, and records what the checker looked at.
//!
//! The kernel caches no name of this mount, and passes each read on: each look arrives. It caches the attributes of an
//! inode when a look at them is recorded, since another one adds nothing. A checker that looks at the same things in two
//! states, and sees the same, does the same ([`Look`], [`View::seen`]): the second state need not be judged.
//!
//! A look is recorded before it is answered; in doubt, more is recorded. Bytes that the checker has overwritten, and
//! names that it has made or removed, are its own and no part of the state: they do not count as looked at. A program
//! that maps a file can learn how many pages it has without a request, so opening is a look at that number.
//!
//! The kernel asks more than the program does. Before it looks a name up in a directory, and before it opens a file,
//! it asks for its attributes, only for the permission bits; before it renames it looks up the target, and the
//! program does not learn whether a file was there. Since the kernel caches nothing, it does so each time: the
//! requests directly before, by the same thread, are the kernel's, and earlier ones are the program's.

use super::Kept;
use super::calls::Calls;
use super::place::{Mounted, Place};
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use steadfast_model::Tree;

/// Faults that can be planted here.
const FAULTS: [Planted; 4] = [
    Planted::LookForgotten,
    Planted::StatForgotten,
    Planted::OwnWhole,
    Planted::ListForgotten,
];

/// Maximum number of the checker's names that a look at a directory leaves out.
const OWN_MAX: usize = 50;

/// The last requests of a thread, and their looks if the program made them.
#[derive(Debug, Default)]
struct Asked {
    name: Option<(Ino, Vec<u8>, Look)>,
    /// After the name: each time attributes were asked for.
    attributes: Vec<(Ino, Vec<Look>)>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Requests by thread.
    asked: HashMap<u32, Asked>,
    /// Names that the checker has made or removed, by directory.
    own_names: HashMap<Ino, BTreeSet<Vec<u8>>>,
    looks: BTreeSet<Look>,
    read: HashMap<Ino, Ranges>,
    /// Bytes that the checker has written itself: without an end from the size to which it has truncated a file.
    own: HashMap<Ino, Ranges>,
}

impl Seen {
    fn is_sized(&self, ino: Ino) -> bool {
        self.own.get(&ino).is_some_and(Ranges::is_endless)
    }

    /// Whether the looks of a stat are recorded.
    fn has_stat(&self, ino: Ino) -> bool {
        self.stat(ino).iter().all(|look| self.looks.contains(look))
    }

    /// The looks of a stat: the size counts unless the checker has set it.
    fn stat(&self, ino: Ino) -> Vec<Look> {
        match self.is_sized(ino) {
            true => vec![Look::Attr(ino)],
            false => vec![Look::Attr(ino), Look::Size(ino)],
        }
    }

    /// Counts the last requests of a thread as the program's, except for the very last if it is about the attributes
    /// of `kernel`.
    fn settle(&mut self, thread: u32, kernel: Option<Ino>) {
        let mut asked = self.asked.remove(&thread).unwrap_or_default();
        asked.attributes.pop_if(|(ino, _)| Some(*ino) == kernel);
        self.looks.extend(asked.name.map(|(_, _, look)| look));
        let attributes = asked.attributes.into_iter();
        self.looks.extend(attributes.flat_map(|(_, looks)| looks));
    }

    /// Records a request of a thread. An unknown thread may be any.
    fn ask(&mut self, thread: u32, asked: Asked) {
        self.asked.insert(thread, asked);
        if thread == 0 {
            self.settle(thread, None);
        }
    }
}

/// The looks so far.
#[derive(Debug, Default)]
pub(super) struct Looks {
    seen: Mutex<Seen>,
    state: Mutex<OfState>,
}

/// Parts that belong to the served state.
#[derive(Debug, Default)]
struct OfState {
    acked: Arc<str>,
    issued: Arc<str>,
    fault: Option<Planted>,
}

impl Looks {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, OfState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault that is planted here, if one is.
    fn fault(&self) -> Option<Planted> {
        self.state().fault
    }

    /// Serves another state from now on, without looks.
    fn begin(&self, view: &View<'_>) {
        *self.seen() = Seen::default();
        *self.state() = OfState {
            acked: lines(view.acked()).into(),
            issued: lines(view.issued()).into(),
            fault: FAULTS.into_iter().find(|fault| planted::is(*fault)),
        };
    }

    pub(super) fn note(&self, look: Look) {
        self.seen().looks.insert(look);
    }

    /// The lines of a file for the checker.
    pub(super) fn lines(&self, which: Special) -> Arc<str> {
        let state = self.state();
        match which {
            Special::Acked => Arc::clone(&state.acked),
            Special::Issued => Arc::clone(&state.issued),
            Special::Stdout | Special::Command => Arc::default(),
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
        let fault = self.fault();
        let mut seen = self.seen();
        let looks = match fault {
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

    /// Whether the kernel may answer what is asked about attributes from now on: the looks are recorded, and it knows
    /// of all changes since each of them is made through it.
    pub(super) fn may_cache(&self, ino: Ino) -> bool {
        self.seen().has_stat(ino)
    }

    pub(super) fn stat(&self, ino: Ino) {
        let mut seen = self.seen();
        let looks = seen.stat(ino);
        seen.looks.extend(looks);
    }

    /// Only the size was looked at.
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
        // Record more, rather than many long lists.
        let own = own.filter(|names| names.len() <= OWN_MAX);
        let look = Look::List(dir, own.cloned().unwrap_or_default());
        if self.fault() != Some(Planted::ListForgotten) {
            seen.looks.insert(look);
        }
    }

    /// The checker has made or removed a name.
    pub(super) fn named(&self, dir: Ino, name: &[u8]) {
        let mut seen = self.seen();
        let own = seen.own_names.entry(dir).or_default();
        own.insert(name.to_vec());
    }

    pub(super) fn read(&self, ino: Ino, offset: u64, size: u64) {
        if self.fault() == Some(Planted::LookForgotten) {
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
        match self.fault() {
            Some(Planted::OwnWhole) => own.add(0, u64::MAX),
            _ => own.add(offset, offset.saturating_add(bytes)),
        }
    }

    /// The checker has set the size.
    pub(super) fn truncated(&self, ino: Ino, size: u64) {
        self.wrote(ino, size, u64::MAX);
    }

    /// All looks at inodes of the state: files that the checker has made itself are no part of it.
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

/// Mounts that stay: each serves one state after the other, since making a mount and its namespace takes longer than
/// most checks.
///
/// Invariants: a mount is used by one check at a time, and by another one only when no process of the last one is
/// left; no two states share an inode number except that of the root, which the kernel forgets between them, so that
/// nothing cached of one serves the other.
#[derive(Debug, Default)]
pub(crate) struct Stages {
    idle: Mutex<Vec<Stage>>,
    /// Whether no private mount is possible here.
    unable: AtomicBool,
}

type Job = Box<dyn FnOnce(&Mounted) + Send>;

/// A mount with the thread in whose namespace it is.
struct Stage {
    calls: Arc<Calls>,
    looks: Arc<Looks>,
    /// Taken when it ends.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stage").field(&self.looks).finish()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has unmounted by then.
            let _ = thread.join();
        }
    }
}

impl Stage {
    /// None if no private mount, or no mount at all, is possible here.
    fn begin() -> io::Result<Option<Stage>> {
        let header = header();
        let writer = TraceWriter::create(Path::new("/dev/null"), &header);
        let writer = writer.map_err(io::Error::other)?;
        let mut calls = Calls::new(writer, &header, u64::MAX, None, None);
        calls.keep(Kept::Nothing);
        let calls = Arc::new(calls);
        let looks = Arc::new(Looks::default());
        let server = Server::looked(Arc::clone(&calls), Arc::clone(&looks));
        let (jobs, queue) = mpsc::channel::<Job>();
        let (mounted, is_mounted) = mpsc::channel();
        let thread = std::thread::Builder::new().name("crash-looked".to_owned());
        let thread = thread.spawn(move || {
            let place = Place::prepare(None).ok().filter(Place::is_private);
            let Some(mount) = place.and_then(|place| place.mount(server).ok()) else {
                return;
            };
            if mounted.send(()).is_ok() {
                for job in queue {
                    job(&mount);
                }
            }
            // A mount that cannot be unmounted ends with the namespace.
            let _ = mount.unmount();
        })?;
        let stage = Stage {
            calls,
            looks,
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok(is_mounted.recv().is_ok().then_some(stage))
    }

    /// Serves a state while `run` runs with it; returns its result, and the looks.
    fn serve<R: Send + 'static>(
        &self,
        view: &View<'_>,
        run: impl FnOnce(&ServedState<'_>) -> R + Send + 'static,
    ) -> io::Result<(R, Vec<Look>)> {
        let node = view.disk().node(ROOT);
        let now = super::convert::time(std::time::SystemTime::now());
        self.calls.replace(|last| {
            let (uid, gid) = node.map_or((0, 0), |n| (n.uid, n.gid));
            let mut tree = Tree::with_root(node.map_or(0o755, |n| n.perm), uid, gid, now);
            tree.set_next_ino(last.next_ino());
            tree
        });
        let ours = view.make(&self.calls)?;
        let fault = planted::here();
        self.looks.begin(view);
        let (tell, told) = mpsc::channel();
        let job = move |mount: &Mounted| {
            planted::plant_here(fault);
            let dir = mount.path();
            let said = mount.forget_attributes(ROOT).map(|()| {
                run(&ServedState {
                    dir,
                    acked: dir.join(ACKED_NAME),
                    issued: dir.join(ISSUED_NAME),
                })
            });
            // The receiver is gone if the exploration has ended.
            let _ = tell.send(said);
        };
        let gone = || io::Error::other("a thread that serves states has ended");
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(Box::new(job)).map_err(|_| gone())?;
        let said = told.recv().map_err(|_| gone())??;
        Ok((said, self.looks.taken(&ours)))
    }
}

fn header() -> Header {
    Header {
        command: Vec::new(),
        setup: None,
        mount: Vec::new(),
        started: Wall::from(super::convert::time(std::time::SystemTime::now())),
        recorder: String::new(),
        kernel: String::new(),
        root: Root {
            perm: 0o755,
            uid: 0,
            gid: 0,
        },
    }
}

impl Stages {
    /// Serves a state while `run` runs with it, and returns its result and the looks. None if no private mount, or no
    /// mount at all, is possible here: then `run` has not run. `again`: no process of `run` is left when it has
    /// returned, so that the mount can serve another state.
    pub(crate) fn serve<R: Send + 'static>(
        &self,
        view: &View<'_>,
        again: bool,
        run: impl FnOnce(&ServedState<'_>) -> R + Send + 'static,
    ) -> io::Result<Option<(R, Vec<Look>)>> {
        if self.unable.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let Some(stage) = known.map_or_else(Stage::begin, |s| Ok(Some(s)))? else {
            self.unable.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        // A stage that fails is not used again.
        let served = stage.serve(view, run)?;
        if again {
            idle().push(stage);
        }
        Ok(Some(served))
    }
}

/// The content of a file of lines.
pub(crate) fn lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}
