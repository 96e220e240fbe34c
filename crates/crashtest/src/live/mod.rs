//! A mount whose power can be cut, and whose calls can be made to fail, while programs use it.
//!
//! Programs run under their own test driver; `crash cut` and its like, or a library, talk to the mount over a Unix
//! socket ([`socket`]): a request and its answer are a line of JSON each, and the answer comes when the request is
//! done. A cut leaves a state that the mount's model allows ([`pending`]). After it every call fails until the power
//! is on again; then the mount shows what survived.

pub mod faults;
pub mod pending;
pub mod socket;

use crate::check::lay_out;
use crate::effects::{Disk, Names, ROOT, Report, What, readable, scan, steps_of};
use crate::models::{Classes, Model};
use crate::record::RecordError;
use crate::record::live::{Admitted, LiveMount, Mark, Tap};
use crate::trace::{Call, Op};
use faults::{Fate, Fault, Rule};
use pending::{Cut, Pending, Policy, half};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use steadfast_model::Tree;
use steadfast_vfs::{Errno, Ino};

/// Interval of checks for the end of the mount.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit for sending answers when the mount has ended.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of lines of a status.
const STATUS_MAX: usize = 1000;

/// A request to a live mount.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Cut the power.
    Cut {
        /// `durable`, `random` or `worst`.
        policy: Option<String>,
        /// For `random`.
        seed: Option<u64>,
    },
    /// Switch the power on again.
    PowerOn,
    /// Make calls fail.
    Fail(Rule),
    /// End all faults.
    Heal,
    /// Report what is not durable.
    Status,
    /// Unmount.
    Stop,
}

/// One change that is not durable.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct NotDurable {
    /// The path, or the former path.
    pub path: String,
    /// `entry`, `data`, `size`, `attributes`, `truncation`.
    pub what: String,
    /// Range of data or sizes.
    pub range: Option<(u64, u64)>,
}

/// The answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Answer {
    /// Why the request failed.
    pub error: Option<String>,
    /// Whether the power is on.
    pub on: bool,
    /// The model.
    pub model: String,
    /// Power cuts so far.
    pub cuts: u64,
    /// Effects that were not durable, before a cut or now.
    pub pending: usize,
    /// Number of these that a cut has lost.
    pub lost: usize,
    /// Bytes of data among them.
    pub lost_bytes: u64,
    /// Changes that are not durable now, by file and range.
    pub not_durable: Vec<NotDurable>,
    /// Number of changes that are not listed.
    pub more: usize,
    /// Rules in effect, with the number of calls that each has changed.
    pub faults: Vec<(Rule, u64)>,
}

/// Error that ended a live mount.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LiveError {
    #[error(transparent)]
    Mount(#[from] RecordError),
    #[error("{what}: {source}")]
    System { what: String, source: io::Error },
}

struct State {
    pending: Pending,
    names: Names,
    known: BTreeSet<Ino>,
    faults: Vec<Fault>,
}

/// The tap that sees each call.
struct Live {
    state: Mutex<State>,
}

impl Live {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file that a call is about, for rules.
fn path_of(names: &Names, op: &Op) -> (String, Option<Ino>) {
    let (path, ino) = match op {
        Op::Create { parent, name, .. }
        | Op::Mknod { parent, name, .. }
        | Op::Mkdir { parent, name, .. }
        | Op::Symlink { parent, name, .. }
        | Op::Link { parent, name, .. }
        | Op::Unlink { parent, name, .. }
        | Op::Rmdir { parent, name, .. } => (names.entry(*parent, name), None),
        Op::Rename {
            new_parent,
            new_name,
            ..
        } => (names.entry(*new_parent, new_name), None),
        Op::Open { ino, .. }
        | Op::Close { ino }
        | Op::Release { ino }
        | Op::Write { ino, .. }
        | Op::Truncate { ino, .. }
        | Op::Fallocate { ino, .. }
        | Op::SetAttr { ino, .. }
        | Op::SetXattr { ino, .. }
        | Op::RemoveXattr { ino, .. }
        | Op::Fsync { ino }
        | Op::Fdatasync { ino }
        | Op::FsyncDir { ino, .. }
        | Op::SyncFileRange { ino, .. } => (names.path(*ino), Some(*ino)),
        Op::Syncfs | Op::Sync | Op::Ack { .. } => return (String::new(), None),
    };
    (path.to_string(), ino)
}

impl Tap for Live {
    fn admit(&self, op: &Op, bytes: usize) -> Result<Admitted, Errno> {
        let mut admitted = Admitted {
            bytes,
            mark: Mark::None,
        };
        // Calls of the kernel itself are not calls of the program.
        if matches!(op, Op::Release { .. } | Op::Ack { .. }) {
            return Ok(admitted);
        }
        let mut wait = None;
        {
            let mut state = self.state();
            let state = &mut *state;
            if state.faults.is_empty() {
                return Ok(admitted);
            }
            let (path, ino) = path_of(&state.names, op);
            for fault in &mut state.faults {
                match fault.strikes(op.word(), &path, admitted.bytes) {
                    None => {}
                    Some(Fate::Short(n)) => admitted.bytes = n.min(admitted.bytes),
                    Some(Fate::Torn) => admitted.mark = Mark::Torn,
                    Some(Fate::Lost) => admitted.mark = Mark::Lost,
                    Some(Fate::Slow(time)) => wait = Some(time),
                    Some(Fate::Fails { errno, drop }) => {
                        if let (true, Some(ino)) = (drop, ino) {
                            state.pending.drop_data(ino);
                        }
                        return Err(errno);
                    }
                }
            }
        }
        if let Some(time) = wait {
            std::thread::sleep(time);
        }
        Ok(admitted)
    }

    fn done(&self, call: &Call, bytes: &[u8], mark: Mark, tree: &Tree) {
        let mut state = self.state();
        let state = &mut *state;
        state.known.extend(call.outcome.made());
        let mut steps = Vec::new();
        steps_of(
            call,
            bytes.into(),
            Report::None,
            tree,
            &mut state.names,
            &mut steps,
        );
        for step in steps {
            let what = match (mark, step.what) {
                (Mark::Lost, What::Write { .. } | What::Fsync { .. } | What::Sync) => continue,
                (Mark::Torn, what) => half(what),
                (_, what) => what,
            };
            if !matches!(what, What::Ack { .. }) {
                state.pending.push(what);
            }
        }
    }
}

struct Power {
    mount: Option<LiveMount>,
    /// The result of the last cut, while the power is off.
    next: Option<Cut>,
    cuts: u64,
}

/// A live mount and its requests.
pub struct Session {
    at: PathBuf,
    model: Model,
    live: Arc<Live>,
    power: Mutex<Power>,
    stop: AtomicBool,
    /// Requests whose answers are not sent yet.
    open: AtomicUsize,
}

impl Session {
    /// Mounts a copy of `from` at `at`: writes are kept in memory, and lost with the mount.
    ///
    /// # Errors
    /// If it cannot be mounted or copied.
    pub fn mount(from: &Path, at: &Path, model: Model) -> Result<Session, LiveError> {
        let pending = Pending::new(model.clone(), Disk::default());
        let session = Session {
            at: at.to_owned(),
            model,
            live: Arc::new(Live {
                state: Mutex::new(State {
                    pending,
                    names: Names::default(),
                    known: BTreeSet::new(),
                    faults: Vec::new(),
                }),
            }),
            power: Mutex::new(Power {
                mount: None,
                next: None,
                cuts: 0,
            }),
            stop: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        };
        let mount = session.up(from)?;
        session.power().mount = Some(mount);
        Ok(session)
    }

    fn power(&self) -> MutexGuard<'_, Power> {
        self.power.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self, from: &Path) -> Result<LiveMount, LiveError> {
        let tap: Arc<dyn Tap> = Arc::<Live>::clone(&self.live);
        let ready = |tree: &Tree| {
            let mut state = self.live.state();
            state.names = Names::default();
            let base = scan(tree, &mut state.names);
            state.known = base.observe().values().map(|seen| seen.ino).collect();
            state.pending = Pending::new(self.model.clone(), base);
        };
        Ok(LiveMount::mount(from, &self.at, tap, ready)?)
    }

    /// Waits until the mount is gone, or `stop` is set.
    ///
    /// # Errors
    /// If it cannot be unmounted.
    pub fn wait(&self, stop: &AtomicBool) -> Result<(), LiveError> {
        loop {
            let gone = {
                let power = self.power();
                power.next.is_none() && power.mount.as_ref().is_none_or(LiveMount::is_gone)
            };
            let asked = self.stop.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed);
            if gone || asked {
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let mount = self.power().mount.take();
        let ended = match mount {
            Some(mount) if !mount.is_gone() => mount.unmount(),
            _ => Ok(()),
        };
        // The process ends next: answers are sent first.
        let until = Instant::now() + ANSWER_LIMIT;
        while self.open.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(ended?)
    }

    /// Carries out a request, and sends the answer; the mount's process does not end in between.
    pub(crate) fn serve(
        &self,
        request: Request,
        send: impl FnOnce(&Answer) -> io::Result<()>,
    ) -> io::Result<()> {
        self.open.fetch_add(1, Ordering::AcqRel);
        let sent = send(&self.answer(request));
        self.open.fetch_sub(1, Ordering::AcqRel);
        sent
    }

    /// Carries out a request.
    #[must_use]
    pub fn answer(&self, request: Request) -> Answer {
        let done = match request {
            Request::Cut { policy, seed } => self.cut(policy.as_deref(), seed),
            Request::PowerOn => self.power_on(),
            Request::Fail(rule) => self.fail(rule),
            Request::Heal => {
                self.live.state().faults.clear();
                Ok(Answer::default())
            }
            Request::Status => Ok(self.status()),
            Request::Stop => self.end(),
        };
        let mut answer = done.unwrap_or_else(|why| Answer {
            error: Some(why),
            ..Answer::default()
        });
        let power = self.power();
        (answer.on, answer.cuts) = (power.next.is_none(), power.cuts);
        answer.model.clone_from(&self.model.name);
        answer
    }

    fn cut(&self, policy: Option<&str>, seed: Option<u64>) -> Result<Answer, String> {
        let name = policy.unwrap_or("durable");
        let policy = Policy::named(name)
            .ok_or_else(|| format!("'{name}' is no policy; there are durable, random, worst"))?;
        let mut power = self.power();
        let Some(mount) = power.mount.as_ref().filter(|_| power.next.is_none()) else {
            return Err("the power is off; 'power-on' switches it on".to_owned());
        };
        let known: Vec<Ino> = {
            let state = self.live.state();
            state.known.iter().copied().chain([ROOT]).collect()
        };
        mount.cut(&known);
        let seed = seed.unwrap_or(power.cuts + 1);
        let cut = self.live.state().pending.cut(policy, seed);
        let answer = Answer {
            pending: cut.pending,
            lost: cut.lost,
            lost_bytes: cut.lost_bytes,
            ..Answer::default()
        };
        power.next = Some(cut);
        power.cuts += 1;
        Ok(answer)
    }

    fn power_on(&self) -> Result<Answer, String> {
        let mut power = self.power();
        let Some(disk) = power.next.as_ref().map(Cut::disk) else {
            return Err("the power is on".to_owned());
        };
        let place = tempfile::Builder::new()
            .prefix("steadfast-crash-live.")
            .tempdir()
            .map_err(|e| format!("a directory for what survived: {e}"))?;
        let from = place.path().join("tree");
        lay_out(&disk, &from).map_err(|e| format!("laying out what survived: {e}"))?;
        if let Some(mount) = power.mount.take() {
            mount.unmount().map_err(|e| e.to_string())?;
        }
        power.mount = Some(self.up(&from).map_err(|e| e.to_string())?);
        power.next = None;
        Ok(Answer::default())
    }

    fn end(&self) -> Result<Answer, String> {
        let mount = self.power().mount.take();
        self.stop.store(true, Ordering::Relaxed);
        match mount.map(LiveMount::unmount) {
            Some(Err(e)) => Err(e.to_string()),
            _ => Ok(Answer::default()),
        }
    }

    fn fail(&self, rule: Rule) -> Result<Answer, String> {
        let fault = Fault::new(rule)?;
        self.live.state().faults.push(fault);
        Ok(Answer::default())
    }

    fn status(&self) -> Answer {
        let state = self.live.state();
        let pending = state.pending.status();
        let mut lines: BTreeMap<(String, String), Option<(u64, u64)>> = BTreeMap::new();
        for v in &pending {
            let path = match (state.pending.name_of(v.step), v.class.meets(Classes::ENTRY)) {
                (Some((dir, name)), true) => state.names.entry(*dir, name).to_string(),
                _ => v
                    .ino
                    .map_or_else(String::new, |ino| state.names.path(ino).to_string()),
            };
            let range = lines.entry((path, v.class.to_string())).or_insert(v.part);
            if let (Some(range), Some(part)) = (range, v.part) {
                *range = (range.0.min(part.0), range.1.max(part.1));
            }
        }
        let all = lines.len();
        let lines = lines.into_iter().take(STATUS_MAX);
        let faults = state.faults.iter();
        Answer {
            pending: pending.len(),
            not_durable: lines
                .map(|((path, what), range)| NotDurable {
                    path: readable(path.as_bytes()),
                    what,
                    range,
                })
                .collect(),
            more: all.saturating_sub(STATUS_MAX),
            faults: faults.map(|f| (f.rule().clone(), f.struck)).collect(),
            ..Answer::default()
        }
    }
}
