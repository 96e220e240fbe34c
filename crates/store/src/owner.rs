//! The process that owns a volume, as named in `head`. It is used in messages, and lets a restart on the same machine go on
//! without an option of the user. Durability never depends on it.

use std::fmt;
use std::str::FromStr;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Host name of the machine.
    pub host: String,
    /// Machine ID, boot ID, and PID namespace.
    machine: String,
    boot: String,
    namespace: String,
    /// Process ID, and start time of the process.
    pub pid: u32,
    start: String,
    /// The cache that holds its last flushes, under `flush=cache`.
    pub cache: Option<String>,
}

/// Whether an owner may still run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner is a process of this machine that has ended.
    Ended,
    /// The owner is a process of this machine that runs.
    Runs,
    /// The owner is on another machine: its state is unknown here.
    Elsewhere,
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().replace('|', "_")
}

/// Start time of a process, in ticks since boot; empty if there is no such process.
fn start_of(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Fields are counted after the name, which may hold any character and ends with the last ')'.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    match fields.starts_with(['Z', 'X']) {
        true => String::new(),
        false => fields.split(' ').nth(19).unwrap_or_default().to_owned(),
    }
}

impl Owner {
    /// This process.
    #[must_use]
    pub fn current() -> Owner {
        let pid = std::process::id();
        Owner {
            host: read("/proc/sys/kernel/hostname"),
            machine: read("/etc/machine-id"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            namespace: std::fs::read_link("/proc/self/ns/pid")
                .map_or_else(|_| String::new(), |link| link.display().to_string()),
            pid,
            start: start_of(pid),
            cache: None,
        }
    }

    /// Whether the owner may still run.
    #[must_use]
    pub fn state(&self) -> OwnerState {
        let here = Owner::current();
        if (&self.host, &self.machine) != (&here.host, &here.machine) || self.host.is_empty() {
            return OwnerState::Elsewhere;
        }
        if self.boot != here.boot {
            // This machine was rebooted, if it is the same machine.
            return match self.machine.is_empty() {
                true => OwnerState::Elsewhere,
                false => OwnerState::Ended,
            };
        }
        if self.namespace != here.namespace {
            // In another container, process IDs differ.
            return OwnerState::Elsewhere;
        }
        match start_of(self.pid) == self.start {
            true => OwnerState::Runs,
            false => OwnerState::Ended,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner {
            host,
            machine,
            boot,
            namespace,
            pid,
            start,
            cache,
        } = self;
        write!(f, "{host}|{machine}|{boot}|{namespace}|{pid}|{start}")?;
        // Programs that know no caches read the first six fields.
        match cache {
            Some(cache) => write!(f, "|{}", cache.replace('|', "_")),
            None => Ok(()),
        }
    }
}

/// A text that names no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it names no owner")]
pub struct NoOwner;

impl FromStr for Owner {
    type Err = NoOwner;

    fn from_str(text: &str) -> Result<Owner, NoOwner> {
        let mut parts = text.split('|');
        let mut next = || parts.next().map(str::to_owned).ok_or(NoOwner);
        Ok(Owner {
            host: next()?,
            machine: next()?,
            boot: next()?,
            namespace: next()?,
            pid: next()?.parse().map_err(|_| NoOwner)?,
            start: next()?,
            cache: next().ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_a_later_process_with_its_id_does_not_count() {
        let here = Owner::current();
        assert_eq!(here.to_string().parse(), Ok(here.clone()));
        let cached = Owner {
            cache: Some("/dev/cache".into()),
            ..here.clone()
        };
        assert_eq!(cached.to_string().parse(), Ok(cached));
        if here.host.is_empty() || here.start.is_empty() {
            return steadfast_testkit::skipped!("there is no /proc");
        }
        assert_eq!(here.state(), OwnerState::Runs);
        let later = Owner {
            start: "1".into(),
            ..here.clone()
        };
        assert_eq!(later.state(), OwnerState::Ended);
        let before_boot = Owner {
            boot: "other".into(),
            ..here.clone()
        };
        let expected = match here.machine.is_empty() {
            true => OwnerState::Elsewhere,
            false => OwnerState::Ended,
        };
        assert_eq!(before_boot.state(), expected);
        let container = Owner {
            namespace: "pid:[1]".into(),
            ..here.clone()
        };
        assert_eq!(container.state(), OwnerState::Elsewhere);
        let other = Owner {
            host: "other".into(),
            ..here
        };
        assert_eq!(other.state(), OwnerState::Elsewhere);
    }
}
