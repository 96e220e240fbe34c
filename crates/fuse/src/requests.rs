//! Requests to the server itself: the server's side of `control`.

use fuser::Errno;
use steadfast_vfs::Shutdown;

use crate::control::{self, IOCTL_SHUTDOWN, IOCTL_SYNC, XATTR_SERVER, XATTR_STATS, XATTR_SYNC};
use crate::identity::Asker;
use crate::pointed;
use crate::server::Server;
use crate::turns::For;

impl Server {
    /// The value of one of the server's own attributes; `None` if the name is none of them.
    pub(crate) fn own_attribute(&self, name: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
        let is = |own: &str| name == own.as_bytes();
        if is(XATTR_SYNC) {
            Some(self.sync_all().map(|()| Vec::new()))
        } else if is(XATTR_SERVER) {
            Some(Ok(std::process::id().to_string().into_bytes()))
        } else if is(XATTR_STATS) {
            Some(Ok(self.stats()))
        } else {
            None
        }
    }

    /// The server's own commands by ioctl(2).
    pub(crate) fn own_command(&self, request: &Asker, command: u32) -> Result<(), Errno> {
        match command {
            IOCTL_SYNC => self.sync_all(),
            IOCTL_SHUTDOWN => {
                self.may_shut_down(request)?;
                let number = pointed::number(request.thread, command).map_err(|e| {
                    self.tell(&format!("shutdown: the caller's flags cannot be read: {e}"));
                    Errno::EOPNOTSUPP
                })?;
                let how = control::shutdown_of(number).ok_or(Errno::EINVAL)?;
                self.shut_down(how)
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    /// A shutdown asked for by attribute.
    pub(crate) fn shut_down_by_name(&self, request: &Asker, how: &[u8]) -> Result<(), Errno> {
        self.may_shut_down(request)?;
        self.shut_down(control::shutdown_named(how).ok_or(Errno::EINVAL)?)
    }

    /// Root and the user who mounted may shut down.
    fn may_shut_down(&self, request: &Asker) -> Result<(), Errno> {
        let owner = rustix::process::geteuid().as_raw();
        match request.uid {
            0 => Ok(()),
            uid if uid == owner => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }

    /// Goes down. When this returns, no other request runs, and none will.
    fn shut_down(&self, how: Shutdown) -> Result<(), Errno> {
        let _waiting = self.turns.waits(For::Commit);
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
        for (name, value) in self.counters.list() {
            add(name, value);
        }
        text.into_bytes()
    }
}
