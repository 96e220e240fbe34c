//! Limits on resources that a server inherits from the shell or service that starts it, and that would end it in the
//! middle of its work, without a message.
//!
//! The limits on file size, processor time and open files are lifted, as far as this user may: they are meant for a
//! user's own files and time. Signals that announce a limit must not end the server: a refused write is an error of
//! the device.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGXCPU, SIGXFSZ};

use crate::size;

/// Lifts the limits that it can; returns a line for each that stays.
pub(crate) fn lift() -> Vec<String> {
    for signal in [SIGXFSZ, SIGXCPU] {
        // A handler that does nothing: the system call then fails with its error.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    raise(Resource::Fsize, true);
    raise(Resource::Cpu, true);
    raise(Resource::Nofile, false);
    let left = [
        (
            Resource::Cpu,
            "processor seconds (ulimit -t)",
            "the server is killed when it has used them",
        ),
        (
            Resource::As,
            "bytes of address space (ulimit -v)",
            "the server ends when it needs more",
        ),
        (
            Resource::Data,
            "bytes of data (ulimit -d)",
            "the server ends when it needs more",
        ),
    ];
    let left = left.into_iter().filter_map(|(limit, what, so)| {
        let limit = getrlimit(limit).current?;
        Some(format!("the server is limited to {limit} {what}: {so}"))
    });
    left.collect()
}

/// Removes a limit if it may be `unbounded`, or raises it as far as this user may.
fn raise(resource: Resource, unbounded: bool) {
    let now = getrlimit(resource);
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    let highest = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if !unbounded || setrlimit(resource, none).is_err() {
        let _ = setrlimit(resource, highest);
    }
}

/// The reason why a file of this length cannot be written whole, if a remaining limit forbids it.
pub(crate) fn forbids(file_bytes: u64) -> Option<String> {
    let limit = getrlimit(Resource::Fsize).current?;
    (limit < file_bytes).then(|| {
        format!(
            "this user may only write files up to {} (ulimit -f), and it is {} long: what lies beyond could not be written; \
             raise the limit, or mount it with '-o ro'",
            size::show(limit),
            size::show(file_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_every_file_may_be_written() {
        if getrlimit(Resource::Fsize).current.is_none() {
            assert_eq!(forbids(u64::MAX), None);
        }
    }
}
