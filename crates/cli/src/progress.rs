//! Progress of long work on standard error: on a terminal a line that overwrites itself, elsewhere
//! lines of their own, and only if they are asked for.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shows the progress of an operation. Dropping it removes its line.
pub(crate) struct Meter {
    shown: Option<Mutex<Shown>>,
    terminal: bool,
}

struct Shown {
    line: String,
    step: String,
    at: Instant,
}

/// Interval of changes of the line.
const TERMINAL: Duration = Duration::from_millis(100);
/// Interval of new lines where none can be overwritten.
const ELSEWHERE: Duration = Duration::from_secs(1);

impl Meter {
    /// A meter that shows on a terminal, or anywhere if it is `asked` for.
    pub(crate) fn new(asked: bool) -> Meter {
        let terminal = std::io::stderr().is_terminal();
        let shown = (terminal || asked).then(|| {
            Mutex::new(Shown {
                line: String::new(),
                step: String::new(),
                at: Instant::now(),
            })
        });
        Meter { shown, terminal }
    }

    /// `done` of `total` units of `step` are done.
    pub(crate) fn show(&self, step: &str, done: u64, total: u64) {
        let Some(Ok(mut shown)) = self.shown.as_ref().map(Mutex::lock) else {
            return;
        };
        let pause = if self.terminal { TERMINAL } else { ELSEWHERE };
        if shown.step == step && shown.at.elapsed() < pause {
            return;
        }
        let line = line(step, done, total);
        if line == shown.line {
            return;
        }
        let mut out = std::io::stderr();
        // A missing reader is no reason to stop.
        let _ = if self.terminal {
            write!(out, "\r{line}\x1b[K").and_then(|()| out.flush())
        } else {
            writeln!(out, "{line}")
        };
        *shown = Shown {
            line,
            step: step.to_owned(),
            at: Instant::now(),
        };
    }
}

fn line(step: &str, done: u64, total: u64) -> String {
    let share = u128::from(done.min(total)) * 100;
    match share.checked_div(u128::from(total)) {
        Some(percent) => format!("{step}: {percent} %"),
        None => step.to_owned(),
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.terminal && self.shown.is_some() {
            let mut out = std::io::stderr();
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_line_says_the_step_and_its_share() {
        assert_eq!(line("inodes", 1, 3), "inodes: 33 %");
        assert_eq!(line("inodes", 9, 3), "inodes: 100 %");
        assert_eq!(line("inodes", u64::MAX, u64::MAX), "inodes: 100 %");
        assert_eq!(line("inodes", 0, 0), "inodes");
    }
}
