//! Requests to the server itself: the server's side of `control`.

use std::ops::Range;
use std::time::{Duration, Instant};

use steadfast_fuse_wire::Errno;
use steadfast_stream::wire;
use steadfast_vfs::{Shutdown, Stream};

use crate::control::{
    self, IOCTL_SHUTDOWN, IOCTL_SYNC, IOCTL_TRIM, SHUT_DOWN, XATTR_FREEZE, XATTR_HEALTH,
    XATTR_SERVER, XATTR_SHUTDOWN, XATTR_STATS, XATTR_SYNC, XATTR_SYNC_STORE, XATTR_THAW,
    XATTR_TRIM, XATTR_WRITE_BACK,
};
use crate::fileattr;
use crate::identity::Requester;
use crate::ioctl_arg;
use crate::readers::For;
use crate::scrub::{self, ScrubRequest};
use crate::server::Server;
use crate::values::Node;

/// The kernel turns EAGAIN into EOPNOTSUPP where an attribute is set: a user's limit is reported as a quota's.
fn by_attribute(set: Result<(), Errno>) -> Result<(), Errno> {
    set.map_err(|errno| match errno {
        Errno::AGAIN => Errno::DQUOT,
        other => other,
    })
}

impl Server {
    /// The value of one of the server's own attributes; `None` if the name is none of them.
    pub(crate) fn own_attribute(
        &self,
        request: &Requester,
        name: &[u8],
    ) -> Option<Result<Vec<u8>, Errno>> {
        let is = |own: &str| name == own.as_bytes();
        if is(XATTR_SYNC) {
            Some(self.sync_all().map(|()| Vec::new()))
        } else if is(XATTR_SYNC_STORE) {
            Some(self.sync_store().map(|()| Vec::new()))
        } else if is(XATTR_SERVER) {
            Some(Ok(std::process::id().to_string().into_bytes()))
        } else if is(XATTR_WRITE_BACK) {
            let on = if self.policy.write_back() {
                "on"
            } else {
                "off"
            };
            Some(Ok(on.as_bytes().to_vec()))
        } else if is(XATTR_TRIM) {
            let trimmed = self.trim(request, 0..u64::MAX, 0);
            Some(trimmed.map(|bytes| bytes.to_string().into_bytes()))
        } else if let Some(asked) = scrub::asked(name) {
            Some(self.scrub(request, &asked))
        } else if is(XATTR_STATS) {
            Some(Ok(self.stats()))
        } else if is(XATTR_THAW) {
            Some(self.thaw(request).map(|()| Vec::new()))
        } else if is(XATTR_HEALTH) {
            // The file system is not asked any more when the gate is closed.
            let health = self.shared.gate.pass(|| self.shared.fs.health());
            let text = health.map_or_else(|_| SHUT_DOWN.to_owned(), |h| control::health_text(&h));
            Some(Ok(text.into_bytes()))
        } else {
            self.stream_attribute(request, name)
        }
    }

    /// The value of an attribute about streams; `None` if the name is none of them.
    fn stream_attribute(&self, request: &Requester, name: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        let rest = name.strip_prefix(wire::XATTR_STREAM.as_bytes())?;
        let streams = self.identity.streams();
        if rest.is_empty() {
            return Some(streams.get(request));
        }
        if name == wire::XATTR_WHY_NOT.as_bytes() {
            return Some(Ok(streams.why_not().into_bytes()));
        }
        if name == wire::XATTR_SYNC.as_bytes() {
            return Some(self.sync_own_stream(request).map(|()| Vec::new()));
        }
        let number = name.strip_prefix(wire::XATTR_SYNC.as_bytes());
        if let Some(number) = number.and_then(|rest| rest.strip_prefix(b".")) {
            let number = std::str::from_utf8(number).ok()?.parse().ok()?;
            let synced = match streams.numbered(request, number) {
                Ok(Some(stream)) => self.sync_stream(stream),
                // It has ended, so everything of it is durable.
                Ok(None) => Ok(()),
                Err(errno) => Err(errno),
            };
            return Some(synced.map(|()| Vec::new()));
        }
        streams.list(request, name, self.may_administer(request).is_ok())
    }

    fn sync_own_stream(&self, request: &Requester) -> Result<(), Errno> {
        let streams = self.identity.streams();
        streams.offered()?;
        self.sync_stream(streams.own(request)?.stream)
    }

    fn sync_stream(&self, stream: Stream) -> Result<(), Errno> {
        let _waiting = self.readers.waits(For::Commit);
        self.identity.streams().commit(stream)
    }

    /// The server's own commands by ioctl(2): returns the new value of the caller's argument, if it is passed on.
    pub(crate) fn own_command(
        &self,
        request: &Requester,
        node: Node,
        command: u32,
        argument: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        match command {
            IOCTL_SYNC => self.sync_all().map(|()| Vec::new()),
            IOCTL_TRIM => {
                let (bytes, min) = control::trim_of(argument).ok_or(Errno::INVAL)?;
                let trimmed = self.trim(request, bytes, min)?;
                let mut answer = argument.to_vec();
                answer[8..16].copy_from_slice(&trimmed.to_ne_bytes());
                Ok(answer)
            }
            IOCTL_SHUTDOWN => {
                self.may_administer(request)?;
                let number = ioctl_arg::number(request.thread, command).map_err(|e| {
                    self.tell(&format!("shutdown: the caller's flags cannot be read: {e}"));
                    Errno::OPNOTSUPP
                })?;
                let how = control::shutdown_of(number).ok_or(Errno::INVAL)?;
                self.shut_down(how).map(|()| Vec::new())
            }
            wire::IOCTL_SET => {
                let set = self.identity.streams().set(request, argument);
                set.map(|()| Vec::new())
            }
            wire::IOCTL_GET => self.identity.streams().get(request),
            wire::IOCTL_SHOW => self.identity.streams().get_of(request, argument),
            wire::IOCTL_SYNC => self.sync_own_stream(request).map(|()| Vec::new()),
            wire::IOCTL_SYNC_NAMED => {
                let stream = self.identity.streams().named(request, argument)?;
                self.sync_stream(stream).map(|()| Vec::new())
            }
            _ => match fileattr::command(command, argument) {
                Some(asked) => self.flag_command(request, node, asked?),
                None => Err(Errno::NOTTY),
            },
        }
    }

    /// Sets one of the server's own attributes; `None` if the name is none of them.
    pub(crate) fn set_own_attribute(
        &self,
        request: &Requester,
        name: &[u8],
        value: &[u8],
    ) -> Option<Result<(), Errno>> {
        let is = |own: &str| name == own.as_bytes();
        if is(XATTR_SHUTDOWN) {
            Some(self.shut_down_by_name(request, value))
        } else if is(XATTR_FREEZE) {
            Some(self.freeze(request, value))
        } else if is(wire::XATTR_STREAM) {
            Some(by_attribute(self.identity.streams().set(request, value)))
        } else if is(wire::XATTR_RULE) {
            let allowed = self.may_administer(request);
            let rule = || self.identity.streams().rule(request, value);
            Some(by_attribute(allowed.and_then(|()| rule())))
        } else {
            None
        }
    }

    /// A shutdown asked for by attribute.
    fn shut_down_by_name(&self, request: &Requester, how: &[u8]) -> Result<(), Errno> {
        self.may_administer(request)?;
        self.shut_down(control::shutdown_named(how).ok_or(Errno::INVAL)?)
    }

    /// Freezes the volume for at most the seconds in `value`.
    fn freeze(&self, request: &Requester, value: &[u8]) -> Result<(), Errno> {
        self.may_administer(request)?;
        let seconds = control::freeze_of(value).ok_or(Errno::INVAL)?;
        let _waiting = self.readers.waits(For::Commit);
        let limit = Duration::from_secs(seconds);
        *self.frozen_until() = Instant::now().checked_add(limit);
        self.shared.call("freeze", |fs| fs.freeze(limit))
    }

    /// Ends a freeze. EINVAL if there is none.
    fn thaw(&self, request: &Requester) -> Result<(), Errno> {
        self.may_administer(request)?;
        let thawed = self.shared.call("thaw", |fs| Ok(fs.thaw()))?;
        *self.frozen_until() = None;
        match thawed {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }

    /// Root and the user that mounted may shut down, freeze and trim.
    fn may_administer(&self, request: &Requester) -> Result<(), Errno> {
        let owner = rustix::process::geteuid().as_raw();
        match request.uid {
            0 => Ok(()),
            uid if uid == owner => Ok(()),
            _ => Err(Errno::PERM),
        }
    }

    /// Looks at a piece of the medium.
    fn scrub(&self, request: &Requester, asked: &ScrubRequest) -> Result<Vec<u8>, Errno> {
        self.may_administer(request)?;
        let _waiting = self.readers.waits(For::Content);
        let ScrubRequest { from, blocks, data } = *asked;
        let piece = self
            .shared
            .call("scrub", |fs| fs.scrub(from, blocks, data))?;
        Ok(scrub::encode(&piece))
    }

    /// Tells the device of free space.
    fn trim(&self, request: &Requester, bytes: Range<u64>, min: u64) -> Result<u64, Errno> {
        self.may_administer(request)?;
        let _waiting = self.readers.waits(For::Commit);
        self.shared.call("trim", |fs| fs.trim(bytes.clone(), min))
    }

    /// Goes down. When this returns, no other request runs, and none will.
    fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        let _waiting = self.readers.waits(For::Commit);
        self.shared.call("shutdown", |fs| fs.shutdown(how))?;
        self.shared.gate.close();
        self.tell(&format!(
            "shut down as asked for ({how:?}): unmount, then mount again"
        ));
        Ok(())
    }

    pub(crate) fn tell(&self, message: &str) {
        if let Some(log) = &self.shared.log {
            log(message);
        }
    }

    /// Counters by line: name, space, value.
    fn stats(&self) -> Vec<u8> {
        use std::fmt::Write;
        let mut text = String::new();
        let mut add = |name: &str, value: u64| {
            let _ = writeln!(text, "{name} {value}");
        };
        // The file system is not asked any more when the gate is closed.
        let counters = self.shared.gate.pass(|| self.shared.fs.counters());
        add("shut_down_now", u64::from(counters.is_err()));
        for (name, value) in counters.unwrap_or_default() {
            add(name, value);
        }
        for (name, value) in self.identity.streams().counters() {
            add(name, value);
        }
        for (name, value) in self.counters.list() {
            add(name, value);
        }
        text.into_bytes()
    }
}
