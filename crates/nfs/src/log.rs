//! Lines for the administrator of the server: what a client was refused for, and what to do about it.
//!
//! Clients decide how often there would be something to say: the same is said once a minute, and no more than
//! [`LINES_MAX`] lines in that time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long nothing is said again.
const QUIET: Duration = Duration::from_secs(60);
/// Most lines in that time.
const LINES_MAX: usize = 32;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Log {
    tell: Option<fn(&str)>,
    said: Mutex<VecDeque<(Instant, String)>>,
}

impl Log {
    /// Says nothing if there is no listener.
    pub(crate) fn new(tell: Option<fn(&str)>) -> Log {
        Log {
            tell,
            said: Mutex::default(),
        }
    }

    /// Says a line, unless it was said just now.
    pub(crate) fn say(&self, line: String) {
        let Some(tell) = self.tell else { return };
        let now = Instant::now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        while said
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= QUIET)
        {
            said.pop_front();
        }
        if said.len() >= LINES_MAX || said.iter().any(|(_, known)| *known == line) {
            return;
        }
        tell(&line);
        said.push_back((now, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    static LINES: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn what_clients_repeat_is_said_once_and_never_too_much() {
        let log = Log::new(Some(|_| {
            LINES.fetch_add(1, SeqCst);
        }));
        for _ in 0..3 {
            log.say("one".to_owned());
        }
        assert_eq!(LINES.load(SeqCst), 1);
        for i in 0..1000 {
            log.say(format!("line {i}"));
        }
        assert_eq!(LINES.load(SeqCst), LINES_MAX);
    }
}
