//! Messages to the administrator of the server: why a client was refused, and how to fix it.
//!
//! Clients determine how often there is a message. So the same line is written at most once a minute, and at most
//! [`LINES_MAX`] lines in that time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which a line is not repeated.
const QUIET: Duration = Duration::from_secs(60);
/// Most lines in this time.
const LINES_MAX: usize = 32;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Log {
    tell: Option<fn(&str)>,
    said: Mutex<VecDeque<(Instant, String)>>,
}

impl Log {
    /// Without a receiver, it drops all lines.
    pub(crate) fn new(tell: Option<fn(&str)>) -> Log {
        Log {
            tell,
            said: Mutex::default(),
        }
    }

    /// Sends a line to the receiver, unless it was sent recently.
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
    fn a_repeated_line_is_sent_once_and_lines_are_limited() {
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
