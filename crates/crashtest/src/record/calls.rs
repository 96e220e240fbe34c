//! The order of effect: one lock under which a call changes the tree and is written to the trace.
//!
//! Invariants: the trace holds the calls in the order in which they changed the tree; a call that could not be written to
//! the trace is the last one: it fails, and so does every later call that would change something. So they do after
//! [`Calls::close`].

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use steadfast_model::Tree;
use steadfast_model::data::FileData;
use steadfast_vfs::{Caller, Errno, Ino};

use super::Kept;
use super::live::{Admitted, Mark, Tap};
use super::mapped::{BeforeCalls, Writing};
use super::stacks::{Captured, Stacks};
use crate::planted::{self, Planted};
use crate::trace::{
    AckSource, Begin, BlindSpots, Call, End, Ended, Header, Moment, Op, Outcome, Root, Spool,
    StackId, TraceError, TraceWriter, Wall, Who, replay,
};

/// Maximum length of a line of output that is kept as one acknowledgement.
const LINE_BYTES_MAX: usize = 1 << 16;
/// Time for which a thread's process is remembered. Thread numbers are reused much later.
const THREAD_REMEMBERED: Duration = Duration::from_millis(500);

/// Amounts that were recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub setup: u64,
    pub calls: u64,
    pub failed: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub syncs: u64,
    pub acknowledged: u64,
    pub trace_bytes: u64,
}

/// The caller of a request, and where in its program it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester {
    pub(super) who: Who,
    stack: Option<Captured>,
}

impl From<Who> for Requester {
    fn from(who: Who) -> Requester {
        Requester { who, stack: None }
    }
}

struct State {
    tree: Tree,
    /// Taken when the trace is finished.
    writer: Option<TraceWriter>,
    error: Option<TraceError>,
    begun: bool,
    closed: bool,
    /// Files that are open, by number of opens.
    open: BTreeMap<Ino, u64>,
    lines: [Vec<u8>; 2],
    output_bytes: u64,
    counts: Counts,
    blind: BlindSpots,
    /// Stacks that are in the trace, by their keys.
    stacks: HashMap<u32, StackId>,
    /// An acknowledgement that a planted fault holds back.
    late: Vec<u8>,
}

/// See the module's header.
pub(super) struct Calls {
    state: Mutex<State>,
    released: Condvar,
    since: Instant,
    started: Wall,
    bytes_max: u64,
    threads: Mutex<HashMap<u32, (u32, Instant)>>,
    stacks: Option<Stacks>,
    tap: Option<Arc<dyn Tap>>,
    before: OnceLock<BeforeCalls>,
    /// The power is off.
    off: AtomicBool,
    kept: Kept,
    /// The trace, if the tree can refer to bytes in it.
    spool: Option<Arc<Spool>>,
    output: Mutex<Option<Box<dyn Write + Send>>>,
}

impl Calls {
    pub(super) fn new(
        writer: TraceWriter,
        header: &Header,
        bytes_max: u64,
        stacks: Option<Stacks>,
        output: Option<Box<dyn Write + Send>>,
    ) -> Calls {
        let Root { perm, uid, gid } = header.root;
        Calls {
            spool: writer.spool(),
            state: Mutex::new(State {
                tree: Tree::with_root(perm, uid, gid, header.started.into()),
                writer: Some(writer),
                error: None,
                begun: false,
                closed: false,
                open: BTreeMap::new(),
                lines: [Vec::new(), Vec::new()],
                output_bytes: 0,
                counts: Counts::default(),
                blind: BlindSpots::default(),
                stacks: HashMap::new(),
                late: Vec::new(),
            }),
            released: Condvar::new(),
            since: Instant::now(),
            started: header.started,
            bytes_max,
            threads: Mutex::default(),
            stacks,
            tap: None,
            before: OnceLock::new(),
            off: AtomicBool::new(false),
            kept: Kept::All,
            output: Mutex::new(output),
        }
    }

    /// Limits what is kept of the calls.
    pub(super) fn keep(&mut self, kept: Kept) {
        self.kept = kept;
    }

    /// Puts something between the program and the tree.
    pub(super) fn tap(&mut self, tap: Arc<dyn Tap>) {
        self.tap = Some(tap);
    }

    /// Serves another tree from now on, as if there had been no call.
    pub(super) fn replace(&self, make: impl FnOnce(&Tree) -> Tree) {
        let mut state = self.state();
        state.tree = make(&state.tree);
        state.open.clear();
        state.lines = [Vec::new(), Vec::new()];
    }

    /// Gives a file its content at once, which it shares with what it was taken from.
    pub(super) fn fill(&self, ino: Ino, data: FileData) {
        self.state().tree.set_data(ino, data);
    }

    /// Whether something is between the program and the tree.
    pub(super) fn is_live(&self) -> bool {
        self.tap.is_some()
    }

    /// From now on pages that were stored to through mmap are written back before calls.
    pub(super) fn write_back_before(&self, before: BeforeCalls) {
        let _ = self.before.set(before);
    }

    fn admit(&self, op: &Op, bytes: usize) -> Result<Admitted, Errno> {
        match &self.tap {
            Some(tap) => tap.admit(op, bytes),
            None => Ok(Admitted {
                bytes,
                mark: Mark::None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the recording began.
    pub(super) fn now(&self) -> Moment {
        self.since.elapsed().as_nanos() as Moment
    }

    /// The tree as it is now.
    pub(super) fn tree(&self) -> Tree {
        self.state().tree.clone()
    }

    /// Whether bytes that the tree refers to could not be read: nothing can be trusted any more.
    pub(super) fn is_damaged(&self) -> bool {
        self.spool.as_ref().is_some_and(|s| s.is_damaged())
    }

    /// The same for requests: after a power cut they fail.
    pub(super) fn seen(&self) -> Result<Tree, Errno> {
        match self.off.load(Ordering::Relaxed) {
            true => Err(Errno::Io),
            false => Ok(self.tree()),
        }
    }

    /// A short look at the tree, which is not copied for it: the next change would copy what it changes.
    pub(super) fn look<T>(&self, f: impl FnOnce(&Tree) -> Result<T, Errno>) -> Result<T, Errno> {
        match self.off.load(Ordering::Relaxed) {
            true => Err(Errno::Io),
            false => f(&self.state().tree),
        }
    }

    /// The power is off: every later request fails.
    pub(super) fn power_off(&self) {
        self.close();
        self.off.store(true, Ordering::Relaxed);
    }

    /// The caller of a waiting request: its thread is known, its process and its stack are looked up.
    pub(super) fn requester(&self, thread: u32, uid: u32, gid: u32) -> Requester {
        if self.kept == Kept::Nothing {
            let who = Who {
                uid,
                gid,
                ..Who::default()
            };
            return who.into();
        }
        let process = self.process_of(thread);
        let stacks = self.stacks.as_ref();
        Requester {
            who: Who {
                process,
                thread,
                uid,
                gid,
            },
            stack: stacks.and_then(|s| s.of(thread, process)),
        }
    }

    fn process_of(&self, thread: u32) -> u32 {
        if thread == 0 {
            return 0;
        }
        let now = Instant::now();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, at)) = threads.get(&thread)
            && now.duration_since(*at) < THREAD_REMEMBERED
        {
            return *process;
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
        let process = status.ok().and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?;
            line.trim().parse().ok()
        });
        // A caller that was killed while it waited may be gone.
        let process = process.unwrap_or(thread);
        if threads.len() > 4096 {
            threads.clear();
        }
        threads.insert(thread, (process, now));
        process
    }

    /// Carries out a call and records it. `bytes` are those of a write, whose span is filled in here.
    pub(super) fn perform(
        &self,
        from: Requester,
        begin: Moment,
        op: Op,
        bytes: &[u8],
    ) -> Result<Outcome, Errno> {
        let admitted = self.admit(&op, bytes.len())?;
        let mut state = self.state();
        state.perform(self, &from, begin, op, bytes, admitted.mark)
    }

    /// Marks a write of the kernel in progress, until the result is dropped.
    pub(super) fn writing_back(&self) -> Option<Writing<'_>> {
        self.before.get().map(BeforeCalls::writing)
    }

    /// Called before a call that changes or syncs names, or acknowledges: writes stores through mmap back first, if
    /// that was asked for.
    pub(super) fn before_names(&self) {
        if let Some(before) = self.before.get() {
            before.call();
        }
    }

    /// Writes; returns how many bytes were written.
    pub(super) fn write(
        &self,
        from: Requester,
        begin: Moment,
        op: Op,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let admitted = self.admit(&op, bytes.len())?;
        let bytes = bytes.get(..admitted.bytes).unwrap_or(bytes);
        let mut state = self.state();
        state.perform(self, &from, begin, op, bytes, admitted.mark)?;
        Ok(bytes.len())
    }

    /// As [`Calls::perform`], with the call made from the tree of the moment.
    pub(super) fn perform_with<T>(
        &self,
        from: Requester,
        begin: Moment,
        bytes: &[u8],
        make: impl FnOnce(&Tree) -> Op,
        look: impl FnOnce(&Tree, Outcome) -> T,
    ) -> Result<T, Errno> {
        let mut state = self.state();
        let op = make(&state.tree);
        let admitted = self.admit(&op, bytes.len())?;
        let outcome = state.perform(self, &from, begin, op, bytes, admitted.mark)?;
        Ok(look(&state.tree, outcome))
    }

    /// The inode of a name, for the record.
    pub(super) fn named(tree: &Tree, parent: Ino, name: &[u8]) -> Option<Ino> {
        tree.lookup(&Caller::root(), parent, name).ok()
    }

    /// Counts a call that is not offered.
    pub(super) fn refused(&self) {
        self.state().blind.refused += 1;
    }

    /// The program has written to its standard output, or `crash ack` to its file.
    pub(super) fn output(
        &self,
        from: Requester,
        begin: Moment,
        source: AckSource,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        self.before_names();
        let copy = {
            let mut state = self.state();
            state.ready()?;
            if source == AckSource::Stdout {
                state.output_bytes += bytes.len() as u64;
            }
            let mut rest = bytes;
            while let Some(end) = rest.iter().position(|&b| b == b'\n') {
                let (line, after) = rest.split_at(end);
                state.keep(source, line);
                rest = after.get(1..).unwrap_or_default();
                state.acknowledge(self, &from, begin, source)?;
            }
            state.keep(source, rest);
            source == AckSource::Stdout
        };
        if copy {
            let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
            let written = output
                .as_mut()
                .map(|o| o.write_all(bytes).and_then(|()| o.flush()));
            if let Some(Err(_)) = written {
                // The reader is gone; the recording goes on.
                *output = None;
            }
        }
        Ok(())
    }

    /// The output of `crash ack` is complete when it closes the file.
    pub(super) fn acknowledged(&self, from: Requester, begin: Moment) -> Result<(), Errno> {
        let mut state = self.state();
        if state.lines[AckSource::Command as usize].is_empty() {
            return Ok(());
        }
        state.acknowledge(self, &from, begin, AckSource::Command)
    }

    /// Bytes of standard output so far.
    pub(super) fn output_bytes(&self) -> u64 {
        self.state().output_bytes
    }

    /// Waits until no file is open, at most for `limit`.
    pub(super) fn settle(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut state = self.state();
        while !state.open.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self
                .released
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Records that calls that FUSE does not see are watched.
    pub(super) fn watched(&self) {
        self.state().blind.syncs_watched = true;
    }

    /// Counts a call of `io_uring_setup`.
    pub(super) fn io_uring(&self) {
        self.state().blind.io_urings += 1;
    }

    /// The setup is done: the next calls are the program's. `device` is that of the mount.
    pub(super) fn begin(&self, device: u64) -> Result<(), TraceError> {
        if let Some(stacks) = &self.stacks {
            stacks.begin(device);
        }
        let mut state = self.state();
        let at = self.now();
        state.begun = true;
        state.lines = [Vec::new(), Vec::new()];
        match (state.error.take(), &mut state.writer) {
            (Some(error), _) => Err(error),
            (None, Some(writer)) => writer.begin(Begin { at }),
            (None, None) => Ok(()),
        }
    }

    /// Allows no more changes.
    pub(super) fn close(&self) {
        self.state().closed = true;
    }

    /// Ends the trace.
    pub(super) fn finish(&self, how: Ended, left_over: u32) -> Result<(End, Counts), TraceError> {
        let mut state = self.state();
        state.closed = true;
        let mut blind = state.blind;
        blind.unfinished_line = state.lines[AckSource::Stdout as usize].len() as u64;
        let end = End {
            at: self.now(),
            how,
            left_over,
            blind,
        };
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if let Some(writer) = state.writer.take() {
            state.counts.trace_bytes = writer.bytes();
            writer.finish(&end)?;
        }
        Ok((end, state.counts))
    }
}

impl State {
    /// EIO once nothing may change any more.
    fn ready(&self) -> Result<(), Errno> {
        match self.closed || self.error.is_some() || self.writer.is_none() {
            true => Err(Errno::Io),
            false => Ok(()),
        }
    }

    fn perform(
        &mut self,
        calls: &Calls,
        from: &Requester,
        begin: Moment,
        mut op: Op,
        bytes: &[u8],
        mark: Mark,
    ) -> Result<Outcome, Errno> {
        self.ready()?;
        if self.begun && forgotten(&op) {
            return Ok(Outcome::Done);
        }
        if calls.kept == Kept::Nothing {
            let end = calls.now();
            let at = calls.started.after(end);
            let outcome = replay::apply(&mut self.tree, &from.who, at, &op, (bytes, None))?;
            if let Some(tap) = &calls.tap {
                let call = Call {
                    number: 0,
                    who: from.who,
                    begin,
                    end,
                    op,
                    outcome,
                    stack: None,
                };
                tap.done(&call, bytes, mark, &self.tree);
            }
            return Ok(outcome);
        }
        let Some(writer) = &mut self.writer else {
            return Err(Errno::Io);
        };
        let end = calls.now().max(writer.last()).max(begin);
        if writer.bytes().saturating_add(bytes.len() as u64) > calls.bytes_max {
            self.error = Some(writer.full(calls.bytes_max));
            return Err(Errno::Io);
        }
        // The tree refers to bytes that are about to be in the trace: those of a write that is not stored are in no tree.
        let kept = calls.spool.as_ref().map(|spool| steadfast_model::Kept {
            store: Arc::clone(spool) as _,
            offset: writer.next_data(),
        });
        let at = calls.started.after(end);
        let done = replay::apply(&mut self.tree, &from.who, at, &op, (bytes, kept.as_ref()));
        let outcome = match done {
            Ok(outcome) => outcome,
            Err(errno) => Outcome::Failed(errno.code()),
        };
        let mut written = Ok(());
        if calls.is_damaged() {
            written = Err(writer.unreadable());
        } else if let Op::Write { data, .. } = &mut op
            && outcome.is_done()
        {
            written = writer.data(bytes).map(|span| *data = span);
        }
        let kind = op.counted();
        let stacks = &mut self.stacks;
        let written = written
            .and_then(|()| stack_id(stacks, writer, from))
            .and_then(|stack| writer.call(from.who, (begin, end), op, outcome, stack));
        if let Err(error) = written {
            self.error = Some(error);
            return Err(Errno::Io);
        }
        self.count(kind, outcome, bytes.len() as u64);
        if outcome.is_done() {
            self.note_open(calls, kind, outcome);
        }
        done
    }

    fn count(&mut self, kind: Counted, outcome: Outcome, bytes: u64) {
        if !self.begun {
            self.counts.setup += 1;
            return;
        }
        self.counts.calls += 1;
        self.counts.failed += u64::from(!outcome.is_done());
        match kind {
            Counted::Write { by_kernel } => {
                self.counts.writes += 1;
                self.counts.bytes_written += bytes;
                if by_kernel {
                    self.blind.mapped_writes += 1;
                    self.blind.mapped_bytes += bytes;
                }
            }
            Counted::Sync => self.counts.syncs += 1,
            Counted::Ack => self.counts.acknowledged += 1,
            _ => {}
        }
    }

    fn note_open(&mut self, calls: &Calls, kind: Counted, outcome: Outcome) {
        match (kind, outcome.made()) {
            (Counted::Create, Some(ino)) | (Counted::Open(ino), None) => {
                *self.open.entry(ino).or_insert(0) += 1;
            }
            (Counted::Release(ino), _) => {
                if let Some(count) = self.open.get_mut(&ino) {
                    *count -= 1;
                    if *count == 0 {
                        self.open.remove(&ino);
                        calls.released.notify_all();
                    }
                }
            }
            _ => {}
        }
    }

    fn keep(&mut self, source: AckSource, bytes: &[u8]) {
        let line = &mut self.lines[source as usize];
        let room = LINE_BYTES_MAX.saturating_sub(line.len()).min(bytes.len());
        line.extend_from_slice(bytes.get(..room).unwrap_or_default());
    }

    fn acknowledge(
        &mut self,
        calls: &Calls,
        from: &Requester,
        begin: Moment,
        source: AckSource,
    ) -> Result<(), Errno> {
        let text = std::mem::take(&mut self.lines[source as usize]);
        if !self.begun {
            return Ok(());
        }
        let late = planted::is(Planted::LateAcknowledgement);
        let text = match late {
            true => std::mem::replace(&mut self.late, text),
            false => text,
        };
        let op = Op::Ack { source, text };
        self.perform(calls, from, begin, op, &[], Mark::None)?;
        Ok(())
    }
}

/// Calls that a planted fault leaves out.
fn forgotten(op: &Op) -> bool {
    match op {
        Op::Write { .. } => planted::is(Planted::LostReply),
        Op::Close { .. } => planted::is(Planted::CloseForgotten),
        Op::Sync | Op::Syncfs => planted::is(Planted::SyncUnseen),
        _ => false,
    }
}

/// The number of a stack in the trace, which it is written to if it is new.
fn stack_id(
    known: &mut HashMap<u32, StackId>,
    writer: &mut TraceWriter,
    from: &Requester,
) -> Result<Option<StackId>, TraceError> {
    let Some(captured) = &from.stack else {
        return Ok(None);
    };
    if let Some(id) = known.get(&captured.key) {
        return Ok(Some(*id));
    }
    let id = writer.stack(&captured.stack)?;
    known.insert(captured.key, id);
    Ok(Some(id))
}

/// Kind of a call, for the counters.
#[derive(Clone, Copy)]
enum Counted {
    Create,
    Open(Ino),
    Release(Ino),
    Write { by_kernel: bool },
    Sync,
    Ack,
    Other,
}

impl Op {
    fn counted(&self) -> Counted {
        match self {
            Op::Create { .. } => Counted::Create,
            Op::Open { ino, .. } => Counted::Open(*ino),
            Op::Release { ino } => Counted::Release(*ino),
            Op::Write { how, .. } => Counted::Write {
                by_kernel: how.by_kernel,
            },
            Op::Ack { .. } => Counted::Ack,
            op if op.is_sync() => Counted::Sync,
            _ => Counted::Other,
        }
    }
}
