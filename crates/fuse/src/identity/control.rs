//! Requests about streams: set, get, settings, rules. [`steadfast_stream::wire`] has their format.
//!
//! Rights: a stream belongs to a user. Root moves any process into any stream; others move their own processes into their own
//! streams, and no set-user-id program. Rules are for root and for the user that mounted, which the caller of these functions
//! checks. A refused request has changed nothing that a process notices.

use std::sync::Arc;
use std::time::Duration;

use steadfast_fuse_wire::Errno;
use steadfast_stream::wire::{
    DEFAULT, HONOUR_FSYNC, IGNORE_FSYNC, Interval, MESSAGE_BYTES, Malformed, Message, REMOVE,
    Scope, USER_DEFAULT,
};
use steadfast_vfs::{Caller, FileKind, Stream, Streams};

use super::Requester;
use super::placed::{By, Decision, Process};
use super::process::{Held, Proc, Status};
use super::registry::{Full, Member, Named, USER_MAX};
use super::resolver::{Found, Origin, Placement, Resolver, Tables, is_alive};
use super::rules::{Below, cgroup_is_valid};

const ONE_ORDER: &str = "its contract keeps one order for the whole volume; a volume of the contract 'ordered' has streams";

/// The message that bytes are.
pub(super) fn decode(bytes: &[u8]) -> Result<Message, Errno> {
    Message::decode(bytes).map_err(|wrong| match wrong {
        Malformed::Short | Malformed::Unknown | Malformed::Name => Errno::INVAL,
    })
}

/// A process that is to be moved.
struct Target {
    process: u32,
    held: Held,
    status: Status,
}

impl Resolver {
    /// Reason why the mount has no streams; empty if it has.
    pub(crate) fn why_not(&self) -> String {
        match (self.volume(), self.proc()) {
            (None, _) => ONE_ORDER.to_owned(),
            (Some(_), Err(why)) => why.to_owned(),
            (Some(_), Ok(_)) => String::new(),
        }
    }

    /// The parts that streams need, if the mount has them.
    pub(super) fn needed(&self) -> Result<(&dyn Streams, &Arc<Proc>), Errno> {
        let volume = self.volume().ok_or(Errno::OPNOTSUPP)?;
        Ok((volume, self.proc().map_err(|_| Errno::OPNOTSUPP)?))
    }

    /// EOPNOTSUPP if the mount has no streams.
    pub(crate) fn offered(&self) -> Result<(), Errno> {
        self.needed().map(drop)
    }

    /// Sets a stream, as the bytes of a message say.
    pub(crate) fn set(&self, request: &Requester, bytes: &[u8]) -> Result<(), Errno> {
        let (volume, proc) = self.needed()?;
        let message = decode(bytes)?;
        let nameless = message.flags & DEFAULT != 0;
        let contradictory = IGNORE_FSYNC | HONOUR_FSYNC;
        if bytes.len() != MESSAGE_BYTES
            || message.name.is_empty() != nameless
            || message.flags & contradictory == contradictory
            || message.flags & REMOVE != 0
        {
            return Err(Errno::INVAL);
        }
        if message.scope == Scope::Stream {
            return self.alter(request, volume, &message);
        }
        let target = target(proc, request, &message)?;
        let user = match (message.user, message.scope) {
            (USER_DEFAULT, Scope::Pid) => target.status.users[0],
            (USER_DEFAULT, _) => request.uid,
            (user, _) => user,
        };
        may_own(request, user)?;
        if message.scope == Scope::Pid {
            may_move(proc, request, &target)?;
        }
        let mut tables = self.tables();
        let member = match nameless {
            true => None,
            false => Some(self.join(&mut tables, volume, user, &message)?),
        };
        let moved = match message.scope {
            Scope::Thread => self.set_thread(proc, &mut tables, request.thread, &target, member),
            _ => self.remembered(proc, &mut tables, &target).map(|process| {
                let by = By::Set;
                let old = process.place(Decision { member, by });
                // A child that is decided from now on follows.
                tables.sets += 1;
                old.and_then(|decision| decision.member)
            }),
        };
        let (old, result) = match moved {
            Ok(old) => (old, Ok(())),
            Err(errno) => (None, Err(errno)),
        };
        // A stream that was made and has no member goes, too.
        self.release(&mut tables, volume, old);
        result
    }

    /// The stream of this name, which takes the message's settings.
    fn join(
        &self,
        tables: &mut Tables,
        volume: &dyn Streams,
        user: u32,
        message: &Message,
    ) -> Result<Arc<Named>, Errno> {
        let forget = |stream| volume.forget(stream);
        let mut joined = tables.registry.join(user, &message.name);
        if joined.is_err() {
            // Some may have lost their last process a moment ago.
            self.tidy(tables, USER_MAX / 16);
            tables.registry.tidy(USER_MAX, forget);
            joined = tables.registry.join(user, &message.name);
        }
        let stream = joined.map_err(|Full| Errno::AGAIN)?;
        settle(volume, &stream, message);
        Ok(stream)
    }

    fn alter(
        &self,
        request: &Requester,
        volume: &dyn Streams,
        message: &Message,
    ) -> Result<(), Errno> {
        let user = match message.user {
            USER_DEFAULT => request.uid,
            user => user,
        };
        may_own(request, user)?;
        let tables = self.tables();
        let stream = tables
            .registry
            .named(user, &message.name)
            .ok_or(Errno::NOENT)?;
        settle(volume, stream, message);
        Ok(())
    }

    fn set_thread(
        &self,
        proc: &Proc,
        tables: &mut Tables,
        thread: u32,
        target: &Target,
        member: Member,
    ) -> Result<Member, Errno> {
        let handle = Arc::new(proc.thread(thread).ok_or(Errno::SRCH)?);
        // The process is decided when another thread of it asks: it is only remembered.
        let process = self.remembered(proc, tables, target)?;
        let old = self.threads().set_own(thread, handle, &process, member);
        Ok(old.map_err(|Full| Errno::AGAIN)?.flatten())
    }

    /// The process in the tables. EAGAIN if there is no room.
    fn remembered(
        &self,
        proc: &Proc,
        tables: &mut Tables,
        target: &Target,
    ) -> Result<Arc<Process>, Errno> {
        if let Some(known) = tables.processes.get(target.process, target.held.id) {
            return Ok(Arc::clone(known));
        }
        let new = self.new_process(tables, target.held.clone(), false);
        let fits = tables
            .processes
            .add(&new, |process| is_alive(proc, process));
        match fits {
            true => Ok(new),
            false => Err(Errno::AGAIN),
        }
    }

    /// Cleans up after a member has left a stream, or joined one.
    fn release(&self, tables: &mut Tables, volume: &dyn Streams, old: Member) {
        if let Some(number) = old.map(|named| named.number.0) {
            let forget = |stream| volume.forget(stream);
            tables.registry.drop_if_idle(number, forget);
        }
        self.tidy(tables, 2);
    }

    /// The stream of the calling thread, as the bytes of a message.
    pub(crate) fn get(&self, request: &Requester) -> Result<Vec<u8>, Errno> {
        self.needed()?;
        let placement = self.own(request)?;
        Ok(answer(&placement.member).encode().to_vec())
    }

    /// The stream of the calling thread; that decides it, if it was not.
    pub(crate) fn own(&self, request: &Requester) -> Result<Placement, Errno> {
        if self.tables().registry.is_empty() && self.tables().rules.is_empty() {
            return Ok(Placement::default());
        }
        match self.find(request.thread) {
            Found::Nobody => Err(Errno::SRCH),
            Found::Own(member) => Ok(member.into()),
            Found::Of(_, decision) => Ok(decision.member.into()),
        }
    }

    /// The process of a number and its decision, for a caller that may know.
    pub(super) fn shown(&self, request: &Requester, number: u32) -> Result<(u32, Decision), Errno> {
        let (_, proc) = self.needed()?;
        in_same_namespace(proc, request)?;
        let target = process_of(proc, number)?;
        if request.uid != 0 && request.uid != target.status.users[0] {
            return Err(Errno::PERM);
        }
        let tables = self.tables();
        let idle = tables.registry.is_empty() && tables.rules.is_empty();
        let known = tables.processes.added();
        drop(tables);
        if idle {
            return Ok((target.process, Decision::nothing()));
        }
        // Read again, after the known streams were counted.
        let origin = || proc.stat(target.process).map(Origin::from);
        let decided = self.process(proc, target.held, known, origin);
        let (process, decision) = decided.ok_or(Errno::SRCH)?;
        Ok((process.number, decision))
    }

    /// The stream of the process `pid` of a message, as the bytes of a message.
    pub(crate) fn get_of(&self, request: &Requester, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
        let message = decode(bytes)?;
        let (process, decision) = self.shown(request, message.pid)?;
        let answer = Message {
            pid: process,
            ..answer(&decision.member)
        };
        Ok(answer.encode().to_vec())
    }

    /// The stream that a message names, for a caller that may sync it.
    pub(crate) fn named(&self, request: &Requester, bytes: &[u8]) -> Result<Stream, Errno> {
        self.needed()?;
        let message = decode(bytes)?;
        let user = match message.user {
            USER_DEFAULT => request.uid,
            user => user,
        };
        may_own(request, user)?;
        let tables = self.tables();
        let named = tables.registry.named(user, &message.name);
        named.map(|named| named.number).ok_or(Errno::NOENT)
    }

    /// The stream of this number, for a caller that may sync it; `None` if it has ended.
    pub(crate) fn numbered(
        &self,
        request: &Requester,
        number: u32,
    ) -> Result<Option<Stream>, Errno> {
        self.needed()?;
        match self.tables().registry.numbered(number) {
            Some(named) if request.uid == 0 || request.uid == named.user => Ok(Some(named.number)),
            Some(_) => Err(Errno::PERM),
            None if number == 0 => Ok(Some(Stream(0))),
            None => Ok(None),
        }
    }

    /// Commits a stream; returns when that is durable.
    pub(crate) fn commit(&self, stream: Stream) -> Result<(), Errno> {
        self.shared.call("stream sync", |fs| match fs.streams() {
            Some(streams) => streams.sync(stream),
            None => Err(steadfast_vfs::Errno::OpNotSupp.into()),
        })
    }

    /// Adds or removes a rule, for a caller that may.
    pub(crate) fn rule(&self, request: &Requester, bytes: &[u8]) -> Result<(), Errno> {
        let (volume, _) = self.needed()?;
        let message = decode(bytes)?;
        let place = bytes.get(MESSAGE_BYTES..).unwrap_or_default();
        let cgroup = std::str::from_utf8(place).map_err(|_| Errno::INVAL)?;
        let is_cgroup = message.scope == Scope::Cgroup;
        if is_cgroup != cgroup_is_valid(cgroup) || (!is_cgroup && !cgroup.is_empty()) {
            return Err(Errno::INVAL);
        }
        let generation = match message.scope {
            Scope::Directory => self.directory(request)?,
            Scope::Cgroup | Scope::Environment => 0,
            _ => return Err(Errno::INVAL),
        };
        let mut tables = self.tables();
        let remove = message.flags & REMOVE != 0;
        if remove || message.scope == Scope::Environment {
            let was = match message.scope {
                Scope::Cgroup => tables.rules.remove_cgroup(cgroup),
                Scope::Directory => tables.rules.remove_directory(request.ino),
                _ => std::mem::replace(&mut tables.rules.environment, !remove) || !remove,
            };
            self.tidy(&mut tables, 2);
            return match was {
                true => Ok(()),
                false => Err(Errno::NOENT),
            };
        }
        let user = match message.user {
            USER_DEFAULT => request.uid,
            user => user,
        };
        may_own(request, user)?;
        if message.name.is_empty() {
            return Err(Errno::INVAL);
        }
        let stream = self.join(&mut tables, volume, user, &message)?;
        let added = match is_cgroup {
            true => tables.rules.add_cgroup(cgroup, stream),
            false => {
                let below = Below { generation, stream };
                tables.rules.add_directory(request.ino, below)
            }
        };
        self.tidy(&mut tables, 2);
        added.map_err(|Full| Errno::AGAIN)
    }

    /// The generation of the directory that a request is made on.
    fn directory(&self, request: &Requester) -> Result<u64, Errno> {
        let root = Caller {
            checked: true,
            ..Caller::root()
        };
        let attr = self
            .shared
            .call("getattr", |fs| fs.getattr(&root, request.ino))?;
        match attr.kind {
            FileKind::Directory => Ok(attr.generation),
            _ => Err(Errno::NOTDIR),
        }
    }
}

/// A stream as a message.
fn answer(member: &Member) -> Message {
    member.as_ref().map_or_else(
        || Message {
            flags: DEFAULT,
            interval: Interval::Volume,
            ..Message::default()
        },
        |named| Message {
            user: named.user,
            flags: match named.ignores_fsync() {
                true => IGNORE_FSYNC,
                false => HONOUR_FSYNC,
            },
            interval: named.interval(),
            number: named.number.0,
            name: named.name.clone(),
            ..Message::default()
        },
    )
}

/// Gives a stream the settings of a message.
fn settle(volume: &dyn Streams, stream: &Named, message: &Message) {
    if message.flags & (IGNORE_FSYNC | HONOUR_FSYNC) != 0 {
        stream.set_ignore_fsync(message.flags & IGNORE_FSYNC != 0);
    }
    let interval: Option<Duration> = match message.interval {
        Interval::Keep => return,
        Interval::Volume => None,
        Interval::Every(time) => Some(time),
    };
    stream.set_interval(interval);
    volume.set_commit_interval(stream.number, interval);
}

/// Only root speaks of streams of others.
fn may_own(request: &Requester, user: u32) -> Result<(), Errno> {
    match request.uid == 0 || request.uid == user {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Root moves every process; others those that run with their rights alone, and that they may look into.
fn may_move(proc: &Proc, request: &Requester, target: &Target) -> Result<(), Errno> {
    if request.uid == 0 {
        return Ok(());
    }
    let own = target.status.plain_user() == Some(request.uid)
        && proc.owner(target.process) == Some(request.uid);
    match own {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// The numbers that the caller knows are those that the server knows.
fn in_same_namespace(proc: &Proc, request: &Requester) -> Result<(), Errno> {
    let status = proc.status(request.thread).filter(|_| request.thread != 0);
    match status {
        Some(status) if status.same_namespace => Ok(()),
        _ => Err(Errno::SRCH),
    }
}

fn target(proc: &Proc, request: &Requester, message: &Message) -> Result<Target, Errno> {
    match message.scope {
        Scope::Thread | Scope::Process if request.thread == 0 => Err(Errno::SRCH),
        Scope::Thread | Scope::Process => process_of(proc, request.thread),
        Scope::Pid => {
            in_same_namespace(proc, request)?;
            process_of(proc, message.pid)
        }
        _ => Err(Errno::INVAL),
    }
}

/// The process that a number, or that of one of its threads, is. EINVAL for the kernel's.
fn process_of(proc: &Proc, number: u32) -> Result<Target, Errno> {
    if number == 0 {
        return Err(Errno::INVAL);
    }
    let process = proc.status(number).ok_or(Errno::SRCH)?.process;
    let held = proc.hold(process).ok_or(Errno::SRCH)?;
    let stat = proc.stat(process).ok_or(Errno::SRCH)?;
    if stat.kernel {
        return Err(Errno::INVAL);
    }
    let status = proc.status(process).ok_or(Errno::SRCH)?;
    // All of that was read of one process.
    match held.alive(proc) {
        true => Ok(Target {
            process,
            held,
            status,
        }),
        false => Err(Errno::SRCH),
    }
}
