//! Finds the stream of a request (ccfs §3.2).
//!
//! The first of these applies; it is decided once for a process and kept until another is set: the thread's own setting; that
//! of its process; the nearest ancestor whose stream was set; the rule for its cgroup; `STEADFAST_STREAM` in its environment;
//! the rule of a directory below which it, or its parent before it, was the first to change something; the default stream.
//! A request without a caller (write-back of stores through mmap, a loop device, the kernel's NFS server) joins the last stream
//! of its inode.
//!
//! Invariants:
//! * while there is no stream and no rule, `/proc` is not looked at: one atomic load decides;
//! * the number of a thread or process is not trusted without evidence that it still belongs to the same one;
//! * the lock on the tables is held over no read of `/proc`, except those that show whether a process has ended;
//! * memory is bounded: [`registry`](super::registry), [`placed`](super::placed), [`threads`](super::threads).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use steadfast_stream::{ENVIRONMENT, wire};
use steadfast_vfs::{Caller, Ino, Stream, Streams};

use super::Requester;
use super::ancestors::{self, Ancestry, Seen};
use super::placed::{By, Decision, Process, Processes};
use super::process::{Handle, Held, Proc, Stat};
use super::registry::{Member, Registry};
use super::rules::Rules;
use super::threads::Threads;
use crate::shared::Shared;

/// Most threads that are remembered, each with a descriptor, and most processes with one.
const HANDLES_MAX: usize = 16 << 10;
/// Descriptors that the server may have, if the system lets it.
const DESCRIPTORS_WANTED: u64 = 64 << 10;
/// Time that reading a process's environment may take, because it holds up the server.
const LOOK_MAX: Duration = Duration::from_millis(200);
/// Directories between the one that is changed and the volume's root that are looked at.
const DEPTH_MAX: usize = 4096;

/// The decisions, under one lock.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) registry: Registry,
    pub(super) processes: Processes,
    pub(super) rules: Rules,
    /// Number of streams of processes that have been set.
    pub(super) sets: u64,
}

/// The stream that a request belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    pub(crate) stream: Stream,
    /// The stream itself, if it has a name.
    pub(crate) member: Member,
}

impl Placement {
    /// Syncs of this request return at once: its stream ignores them, and belongs to its user.
    pub(crate) fn ignores_fsync_of(&self, request: &Requester) -> bool {
        let member = self.member.as_ref();
        member.is_some_and(|named| named.ignores_fsync() && named.user == request.uid)
    }
}

impl From<Member> for Placement {
    fn from(member: Member) -> Placement {
        Placement {
            stream: member.as_ref().map_or(Stream(0), |named| named.number),
            member,
        }
    }
}

/// Origin of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) parent: u32,
    /// Start time, if that was read with its parent.
    pub(super) start: Option<u64>,
    /// A thread of the kernel.
    pub(super) kernel: bool,
}

impl From<Stat> for Origin {
    fn from(stat: Stat) -> Origin {
        Origin {
            parent: stat.parent,
            start: Some(stat.start),
            kernel: stat.kernel,
        }
    }
}

/// A thread that has made a request.
pub(super) enum Found {
    /// A thread of the kernel, one of another namespace, or one that has ended.
    Nobody,
    /// The thread has set its own stream.
    Own(Member),
    /// A process's.
    Of(Arc<Process>, Decision),
}

/// A process and its decision.
type Placed = (Arc<Process>, Decision);

/// See the module's header.
pub(crate) struct Resolver {
    pub(super) shared: Arc<Shared>,
    /// There is a stream or a rule.
    active: AtomicBool,
    /// There are rules for directories.
    directories: AtomicBool,
    proc: OnceLock<Result<Arc<Proc>, String>>,
    /// Another thread serves requests while this one waits.
    served_meanwhile: bool,
    threads: OnceLock<Threads>,
    /// Most descriptors of threads, and most of processes.
    handles_max: OnceLock<usize>,
    tables: Mutex<Tables>,
    decided: AtomicU64,
}

impl Resolver {
    /// With `environment`, processes are looked at even while there is no stream: their environment may name one.
    /// `served_meanwhile`: while a thread of the server waits for long, another one serves requests.
    pub(crate) fn new(shared: Arc<Shared>, environment: bool, served_meanwhile: bool) -> Resolver {
        let offered = shared.fs.streams().is_some();
        let mut tables = Tables::default();
        tables.rules.environment = environment && offered;
        Resolver {
            shared,
            active: AtomicBool::new(tables.rules.environment),
            directories: AtomicBool::new(false),
            proc: OnceLock::new(),
            served_meanwhile,
            threads: OnceLock::new(),
            handles_max: OnceLock::new(),
            tables: Mutex::new(tables),
            decided: AtomicU64::new(0),
        }
    }

    fn active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// The streams of the volume.
    pub(super) fn volume(&self) -> Option<&dyn Streams> {
        self.shared.fs.streams()
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `/proc`, opened when it is first needed.
    pub(super) fn proc(&self) -> Result<&Arc<Proc>, &str> {
        let opened = self.proc.get_or_init(|| {
            let opened = Proc::open().map(Arc::new);
            if let (Err(why), Some(log)) = (&opened, &self.shared.log) {
                log(&format!("streams are off: {why}"));
            }
            opened
        });
        opened.as_ref().map_err(String::as_str)
    }

    pub(super) fn threads(&self) -> &Threads {
        self.threads
            .get_or_init(|| Threads::new(self.handles_max()))
    }

    fn handles_max(&self) -> usize {
        *self.handles_max.get_or_init(|| {
            let now = getrlimit(Resource::Nofile);
            let wanted = now.maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_WANTED);
            let mut most = now.current.unwrap_or(u64::MAX);
            if most < wanted {
                let raised = Rlimit {
                    current: Some(wanted),
                    ..now
                };
                if setrlimit(Resource::Nofile, raised).is_ok() {
                    most = wanted;
                }
            }
            let quarter = usize::try_from(most / 4).unwrap_or(usize::MAX);
            quarter.min(HANDLES_MAX)
        })
    }

    /// The stream of a request that changes or syncs something.
    pub(crate) fn of(&self, request: &Requester) -> Placement {
        if !self.active() {
            return Placement::default();
        }
        let placement: Placement = match self.find(request.thread) {
            Found::Nobody => return self.of_inode(request.ino),
            Found::Own(member) => member.into(),
            Found::Of(process, decision) => {
                let movable = decision.by == By::Nothing && request.asked.changes();
                match self.directories.load(Ordering::Acquire) && movable {
                    true => self.moved_below(&process, request.ino).into(),
                    false => decision.member.into(),
                }
            }
        };
        if request.asked.changes() {
            self.shared
                .nodes
                .set_last_stream(request.ino, placement.stream);
        }
        placement
    }

    /// Notes which process has made or opened an inode.
    pub(crate) fn note(&self, ino: Ino, stream: Stream) {
        if self.active() {
            self.shared.nodes.set_last_stream(ino, stream);
        }
    }

    /// A request that changes `ino` moves its process, if a rule says so.
    pub(crate) fn changes_below(&self, request: &Requester, ino: Ino) {
        if !self.directories.load(Ordering::Acquire) {
            return;
        }
        if let Found::Of(process, decision) = self.find(request.thread)
            && decision.by == By::Nothing
        {
            self.moved_below(&process, ino);
        }
    }

    /// Whether there are rules for directories.
    pub(crate) fn has_directories(&self) -> bool {
        self.directories.load(Ordering::Acquire)
    }

    /// The stream of a request without a caller: that with an uncommitted change of the inode, else the last one that changed
    /// it, while it is there.
    pub(crate) fn of_inode(&self, ino: Ino) -> Placement {
        if !self.active() {
            return Placement::default();
        }
        let uncommitted = self.volume().and_then(|streams| streams.of_inode(ino));
        let last = || self.shared.nodes.last_stream(ino);
        let number = uncommitted.or_else(last).unwrap_or_default();
        let member = self.tables().registry.numbered(number.0).cloned();
        match (&member, uncommitted) {
            (None, Some(stream)) => Placement {
                stream,
                member: None,
            },
            _ => member.into(),
        }
    }

    /// The thread, as far as it is known; else it is looked at.
    pub(super) fn find(&self, thread: u32) -> Found {
        if thread == 0 {
            return Found::Nobody;
        }
        if let Some(known) = self.threads().get(thread) {
            if known.tidy {
                self.tidy(&mut self.tables(), 4);
            }
            if let Some(own) = known.own {
                return Found::Own(own);
            }
            if known.process.kernel {
                return Found::Nobody;
            }
            if let Some(decision) = known.process.decision() {
                return Found::Of(known.process, decision);
            }
        }
        self.look_at(thread).unwrap_or(Found::Nobody)
    }

    fn look_at(&self, thread: u32) -> Option<Found> {
        let proc = self.proc().ok()?;
        let known = self.tables().processes.added();
        let (handle, (process, decision)) = match proc.first_thread(thread) {
            Some(held) => {
                let handle = held.handle.clone()?;
                let origin = || proc.stat(thread).map(Origin::from);
                (handle, self.process(proc, held, known, origin)?)
            }
            None => self.look_at_other(proc, thread, known)?,
        };
        // The handle shows that the data read is that thread's.
        if !handle.alive() {
            return None;
        }
        self.threads().add(thread, handle, &process);
        Some(match process.kernel {
            true => Found::Nobody,
            false => Found::Of(process, decision),
        })
    }

    /// A thread that is not its process's first, or on a kernel that does not tell.
    fn look_at_other(
        &self,
        proc: &Arc<Proc>,
        thread: u32,
        known: u64,
    ) -> Option<(Arc<Handle>, Placed)> {
        let handle = Arc::new(proc.thread(thread)?);
        let status = proc.status(thread)?;
        let number = status.process;
        if let Some(process) = self.held_since(number, known)
            && let Some(decision) = process.decision()
        {
            return Some((handle, (process, decision)));
        }
        let origin = || match status.kernel {
            Some(kernel) => Some(Origin {
                parent: status.parent,
                start: None,
                kernel,
            }),
            None => proc.stat(number).map(Origin::from),
        };
        let placed = self.process(proc, proc.hold(number)?, known, origin)?;
        Some((handle, placed))
    }

    /// The process with this number, if the server has held it since the table's count was `known` and it has not ended.
    fn held_since(&self, number: u32, known: u64) -> Option<Arc<Process>> {
        let held = self.tables().processes.held_since(number, known).cloned();
        held.filter(|process| process.alive() == Some(true))
    }

    /// A process, decided now if it was not. `known` is the table's count before `origin` is read.
    pub(super) fn process(
        &self,
        proc: &Arc<Proc>,
        held: Held,
        known: u64,
        origin: impl FnOnce() -> Option<Origin>,
    ) -> Option<Placed> {
        let process = self.tables().processes.get(held.number, held.id).cloned();
        if let Some(process) = &process
            && let Some(decision) = process.decision()
        {
            return Some((Arc::clone(process), decision));
        }
        let origin = origin()?;
        let decision = match origin.kernel {
            true => Decision::nothing(),
            false => self.decide(proc, (held.number, origin), known),
        };
        self.decided.fetch_add(1, Ordering::Relaxed);
        let mut tables = self.tables();
        let process = self.in_tables(proc, &mut tables, held, origin.kernel);
        // It may have been set meanwhile.
        let decision = process.place_first(decision);
        self.tidy(&mut tables, 1);
        Some((process, decision))
    }

    /// The process's entry, made if there is room.
    fn in_tables(
        &self,
        proc: &Proc,
        tables: &mut Tables,
        held: Held,
        kernel: bool,
    ) -> Arc<Process> {
        if let Some(known) = tables.processes.get(held.number, held.id) {
            return Arc::clone(known);
        }
        let new = self.new_process(tables, held, kernel);
        tables
            .processes
            .add(&new, |process| is_alive(proc, process));
        new
    }

    /// An entry that is to be added. It keeps the descriptor while there are few.
    pub(super) fn new_process(&self, tables: &Tables, held: Held, kernel: bool) -> Arc<Process> {
        let few = tables.processes.len() < self.handles_max();
        let handle = held.handle.filter(|_| few);
        Arc::new(Process::new(Held { handle, ..held }, kernel))
    }

    fn decide(&self, proc: &Arc<Proc>, (number, origin): (u32, Origin), known: u64) -> Decision {
        let sets = self.tables().sets;
        let held = |parent| match Ancestry::of(&*self.held_since(parent, known)?, sets) {
            Seen::Decided(ancestry) => Some(ancestry),
            Seen::Unknown => None,
        };
        let look = |parent: &Held| match self.tables().processes.get(parent.number, parent.id) {
            Some(process) => Ancestry::of(process, sets),
            None => Seen::Unknown,
        };
        let (ancestry, passed) = ancestors::walk(proc, (number, origin), held, look);
        if let Ancestry::Set(ancestor, member) = ancestry {
            return Decision {
                member,
                by: By::Ancestor(ancestor),
            };
        }
        // The next child of one of them need not go up again.
        if matches!(ancestry, Ancestry::Nothing) {
            let mut tables = self.tables();
            for held in passed {
                self.in_tables(proc, &mut tables, held, false)
                    .set_clear_at(sets);
            }
        }
        if let Some(decision) = self.by_cgroup(proc, number) {
            return decision;
        }
        if let Some(decision) = self.by_environment(proc, number) {
            return decision;
        }
        match ancestry {
            Ancestry::Directory(by, member) => Decision { member, by },
            _ => Decision::nothing(),
        }
    }

    fn by_cgroup(&self, proc: &Proc, number: u32) -> Option<Decision> {
        if !self.tables().rules.has_cgroups() {
            return None;
        }
        let cgroup = proc.cgroup(number)?;
        let tables = self.tables();
        let (path, stream) = tables.rules.cgroup(&cgroup)?;
        Some(Decision {
            member: Some(Arc::clone(stream)),
            by: By::Cgroup(path.to_owned()),
        })
    }

    /// The environment of a set-user-id program is that of the user that started it, and decides nothing.
    fn by_environment(&self, proc: &Arc<Proc>, number: u32) -> Option<Decision> {
        let name = String::from_utf8(self.variable(proc, number)?).ok()?;
        if !wire::name_is_valid(&name) {
            return None;
        }
        let user = proc.status(number)?.plain_user()?;
        let joined = self.tables().registry.join(user, &name);
        match joined {
            Ok(stream) => Some(Decision {
                member: Some(stream),
                by: By::Environment,
            }),
            Err(_) => {
                if let Some(log) = &self.shared.log {
                    log(&format!(
                        "process {number} stays in the default stream: user {user} has too many streams"
                    ));
                }
                None
            }
        }
    }

    /// The environment lies in the memory of the process, whose lock one of its threads may hold while it waits for this
    /// server. Where no other thread would serve that one, the look is given up after a while.
    fn variable(&self, proc: &Arc<Proc>, number: u32) -> Option<Vec<u8>> {
        if self.served_meanwhile {
            return proc.variable(number, ENVIRONMENT);
        }
        let (tell, told) = mpsc::channel();
        let looking = Arc::clone(proc);
        let look = move || {
            let _ = tell.send(looking.variable(number, ENVIRONMENT));
        };
        thread::Builder::new()
            .name("fuse-environ".to_owned())
            .spawn(look)
            .ok()?;
        told.recv_timeout(LOOK_MAX).unwrap_or_else(|_| {
            if let Some(log) = &self.shared.log {
                log(&format!(
                    "process {number} stays in the default stream: its environment cannot be read now"
                ));
            }
            None
        })
    }

    /// The stream of a process that changes `ino` and was in the default stream.
    fn moved_below(&self, process: &Process, ino: Ino) -> Member {
        let (directory, stream) = self.rule_above(ino)?;
        let decision = Decision {
            member: Some(stream),
            by: By::Directory(directory),
        };
        process.place_from_default(decision).member
    }

    /// The rule of the nearest directory that has one, from an inode upwards.
    fn rule_above(&self, ino: Ino) -> Option<(Ino, Arc<super::registry::Named>)> {
        let root = Caller {
            checked: true,
            ..Caller::root()
        };
        let fs = &*self.shared.fs;
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            let rule = self.tables().rules.directory(at).cloned();
            if let Some(rule) = rule {
                let there = self.shared.gate.pass(|| fs.getattr(&root, at));
                match there {
                    Ok(Ok(attr)) if attr.generation == rule.generation => {
                        return Some((at, rule.stream));
                    }
                    _ => {
                        // Another inode has the directory's number by now.
                        self.tables().rules.remove_directory(at);
                    }
                }
            }
            let up = self.shared.gate.pass(|| fs.lookup(&root, at, b".."));
            let above = match up {
                Ok(Ok(attr)) => attr.ino,
                Ok(Err(error)) if error == steadfast_vfs::Errno::NotDir => {
                    self.shared.nodes.parent(at)?
                }
                _ => return None,
            };
            if above == at {
                return None;
            }
            at = above;
        }
        None
    }

    /// Looks at `count` processes and `count` threads, and forgets those that have ended.
    pub(super) fn miss(&self, tables: &mut Tables, count: usize) {
        if let Ok(proc) = self.proc() {
            tables
                .processes
                .tidy(count, |process| is_alive(proc, process));
        }
        self.threads().tidy(count);
    }

    /// Removes a few ended processes and threads, and goes to rest when nothing is left.
    pub(super) fn tidy(&self, tables: &mut Tables, count: usize) {
        self.miss(tables, count);
        let volume = self.volume();
        tables.registry.tidy(count, |stream| {
            volume.is_none_or(|streams| streams.forget(stream))
        });
        self.settle(tables);
    }

    /// Updates the fields that requests look at first from the tables.
    pub(super) fn settle(&self, tables: &mut Tables) {
        let active = !tables.registry.is_empty() || !tables.rules.is_empty();
        self.directories
            .store(tables.rules.has_directories(), Ordering::Release);
        if self.active.swap(active, Ordering::AcqRel) && !active {
            tables.processes.forget_derived();
            self.threads().forget_derived();
        }
    }

    /// Counters by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        let looks = match self.proc.get() {
            Some(Ok(proc)) => proc.looks(),
            _ => 0,
        };
        let tables = self.tables();
        let count = |n: usize| n as u64;
        vec![
            ("stream_streams_now", count(tables.registry.len())),
            ("stream_rules_now", count(tables.rules.len())),
            ("stream_processes_now", count(tables.processes.len())),
            (
                "stream_threads_now",
                self.threads.get().map_or(0, |threads| count(threads.len())),
            ),
            ("stream_decisions", self.decided.load(Ordering::Relaxed)),
            ("stream_proc_looks", looks),
        ]
    }
}

/// Whether the process has not ended.
pub(super) fn is_alive(proc: &Proc, process: &Process) -> bool {
    let told = process.alive();
    told.unwrap_or_else(|| proc.is_alive(process.number, process.id))
}
