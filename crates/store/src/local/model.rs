//! A model of a file system that loses everything that was not synced.
//!
//! Bytes of a file and names in a directory are durable once they were synced. After a power cut, any subset of the other names
//! remains, and a file whose bytes were not synced may be empty. A failed sync drops the bytes or names that it was to make
//! durable, and the next sync succeeds without them, as Linux does with pages of a file; it then syncs only new bytes and
//! names. A directory of directories is one block, so a change of it writes all its names again.

use super::disk::{Contents, Disk, part_of};
use object_store::GetRange;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File(usize),
    Dir,
}

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    durable: bool,
    marked: bool,
}

#[derive(Clone, Debug, Default)]
struct Dir {
    names: BTreeMap<String, Entry>,
    /// Names that the next sync makes durable.
    dirty: BTreeSet<String>,
    durable: BTreeMap<String, Entry>,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    files: Vec<File>,
    dirs: BTreeMap<PathBuf, Dir>,
    lock: Option<u32>,
    /// Steps that process 1 has taken, and the step at which it dies.
    steps: u64,
    dies_at: Option<u64>,
    /// Syncs that process 1 has requested, and the one that fails.
    syncs: u64,
    fails_at: Option<u64>,
    /// Function that runs after process 1 has taken this step.
    hook: Option<(u64, Hook)>,
}

/// The file system in the view of one process.
#[derive(Clone)]
pub(super) struct Model {
    state: Arc<Mutex<State>>,
    process: u32,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a model, process {}", self.process)
    }
}

/// A lock; its drop unlocks.
pub(super) struct Lock(Model);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.lock_state().lock = None;
    }
}

fn split(path: &Path) -> (PathBuf, String) {
    let dir = path.parent().unwrap_or(path).to_owned();
    let name = path.file_name().unwrap_or_default();
    (dir, name.to_string_lossy().into_owned())
}

impl State {
    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or(ErrorKind::NotFound.into())
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let (dir, name) = split(path);
        match self.dirs.get(&dir).and_then(|dir| dir.names.get(&name)) {
            Some(Entry::File(file)) => Ok(*file),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn set(&mut self, path: &Path, entry: Option<Entry>) -> io::Result<()> {
        let (dir, name) = split(path);
        let dir = self.dir(&dir)?;
        match entry {
            Some(entry) => dir.names.insert(name.clone(), entry),
            None => dir.names.remove(&name),
        };
        dir.dirty.insert(name);
        let dirs = dir.names.iter().filter(|(_, entry)| **entry == Entry::Dir);
        let dirs: Vec<String> = dirs.map(|(name, _)| name.clone()).collect();
        dir.dirty.extend(dirs);
        Ok(())
    }
}

impl Model {
    pub(super) fn new() -> Model {
        let model = Model {
            state: Arc::default(),
            process: 1,
        };
        let mut state = model.lock_state();
        let mut top = Dir::default();
        top.names.insert("srv".to_owned(), Entry::Dir);
        top.durable.clone_from(&top.names);
        state.dirs.insert("/".into(), top);
        state.dirs.insert("/srv".into(), Dir::default());
        drop(state);
        model
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A second process on the same file system. Its syncs succeed, and it does not die.
    pub(super) fn other(&self) -> Model {
        Model {
            state: Arc::clone(&self.state),
            process: 2,
        }
    }

    pub(super) fn die_at(&self, step: u64) {
        self.lock_state().dies_at = Some(step);
    }

    pub(super) fn fail_sync(&self, sync: u64) {
        self.lock_state().fails_at = Some(sync);
    }

    /// Runs `hook` after process 1 has taken this step, unless the process then holds the lock of its directory's names.
    pub(super) fn hook(&self, step: u64, hook: Hook) {
        self.lock_state().hook = Some((step, hook));
    }

    pub(super) fn is_dead(&self) -> bool {
        let state = self.lock_state();
        state.dies_at.is_some_and(|at| state.steps >= at)
    }

    /// Steps and syncs of process 1 so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.lock_state();
        (state.steps, state.syncs)
    }

    /// One step of a process. From the step of its death on, steps have no effect.
    fn step<T>(&self, act: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.lock_state();
        if self.process != 1 {
            return act(&mut state);
        }
        state.steps += 1;
        if state.dies_at.is_some_and(|at| state.steps >= at) {
            // A lock ends with its process.
            state.lock = state.lock.filter(|holder| *holder != 1);
            return Err(io::Error::other("the process is dead"));
        }
        act(&mut state)
    }

    fn run_hook(&self) {
        let mut state = self.lock_state();
        let steps = state.steps;
        let due = state
            .hook
            .take_if(|(at, _)| self.process == 1 && *at == steps);
        drop(state);
        if let Some((_, hook)) = due {
            hook();
        }
    }

    /// The file system after a power cut. `keeps` decides for each unsynced item whether it survives.
    pub(super) fn cut(&self, mut keeps: impl FnMut() -> bool) -> Model {
        let state = self.lock_state();
        let mut after = State {
            files: state.files.clone(),
            ..State::default()
        };
        for file in after.files.iter_mut().filter(|file| !file.durable) {
            if !keeps() {
                file.bytes.clear();
            }
            file.durable = true;
        }
        for file in &mut after.files {
            file.marked = file.marked && keeps();
        }
        // A directory comes after the one that contains it.
        for (path, dir) in &state.dirs {
            let (above, name) = split(path);
            let named = after
                .dirs
                .get(&above)
                .map(|dir| dir.names.contains_key(&name));
            if named == Some(false) || named.is_none() && path != Path::new("/") {
                continue;
            }
            let mut names = dir.durable.clone();
            let changed = dir.names.keys().chain(dir.durable.keys());
            for name in changed.collect::<BTreeSet<_>>() {
                let (now, before) = (dir.names.get(name), dir.durable.get(name));
                if now == before || !keeps() {
                    continue;
                }
                match now {
                    Some(entry) => names.insert(name.clone(), *entry),
                    None => names.remove(name),
                };
            }
            let dir = Dir {
                durable: names.clone(),
                names,
                dirty: BTreeSet::new(),
            };
            after.dirs.insert(path.clone(), dir);
        }
        Model {
            state: Arc::new(Mutex::new(after)),
            process: 2,
        }
    }
}

impl Disk for Model {
    type Lock = Lock;

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        let mut dirs: Vec<&Path> = dir.ancestors().collect();
        dirs.reverse();
        self.step(|state| {
            for dir in dirs {
                if !state.dirs.contains_key(dir) {
                    state.dirs.insert(dir.to_owned(), Dir::default());
                    state.set(dir, Some(Entry::Dir))?;
                }
            }
            Ok(())
        })
    }

    fn write_new(&self, path: &Path, parts: &[&[u8]], sync: bool) -> io::Result<()> {
        self.step(|state| {
            state.files.push(File {
                bytes: parts.concat(),
                ..File::default()
            });
            let file = state.files.len() - 1;
            state.set(path, Some(Entry::File(file)))
        })?;
        match sync {
            true => self.sync(path),
            false => Ok(()),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|state| match (state.find(from)?, state.find(to)) {
            (_, Ok(_)) => Err(ErrorKind::AlreadyExists.into()),
            (file, Err(_)) => state.set(to, Some(Entry::File(file))),
        })?;
        self.run_hook();
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|state| {
            let file = state.find(from)?;
            state.set(to, Some(Entry::File(file)))?;
            state.set(from, None)
        })?;
        self.run_hook();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|state| {
            state.find(path)?;
            state.set(path, None)
        })
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        self.step(|state| {
            let mut fails = false;
            if self.process == 1 {
                state.syncs += 1;
                fails = state.fails_at == Some(state.syncs);
            }
            if let Ok(file) = state.find(path) {
                // The bytes of a file whose sync failed look clean; they are never durable.
                state.files[file].durable |= !fails;
            } else {
                let dir = state.dir(path)?;
                for name in std::mem::take(&mut dir.dirty) {
                    match dir.names.get(&name).filter(|_| !fails) {
                        Some(entry) => dir.durable.insert(name, *entry),
                        None if fails => continue,
                        None => dir.durable.remove(&name),
                    };
                }
            }
            match fails {
                true => Err(io::Error::other("input/output error")),
                false => Ok(()),
            }
        })
    }

    fn mark(&self, path: &Path) -> io::Result<()> {
        self.step(|state| {
            let file = state.find(path)?;
            state.files[file].marked = true;
            Ok(())
        })?;
        self.run_hook();
        Ok(())
    }

    fn read(&self, path: &Path, range: Option<&GetRange>) -> io::Result<Contents> {
        self.step(|state| {
            let file = &state.files[state.find(path)?];
            let length = file.bytes.len() as u64;
            let range = part_of(range, length)?;
            Ok(Contents {
                bytes: file.bytes[range.start as usize..range.end as usize].to_vec(),
                range,
                length,
                modified: UNIX_EPOCH,
                settled: file.marked,
            })
        })
    }

    fn lock(&self, _: &Path) -> io::Result<Lock> {
        self.step(|state| match state.lock {
            // Waiting would never end: there is one thread.
            Some(_) => Err(ErrorKind::WouldBlock.into()),
            None => {
                state.lock = Some(self.process);
                Ok(())
            }
        })?;
        Ok(Lock(self.clone()))
    }
}
