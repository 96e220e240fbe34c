//! Output of a measure, and the clocks it reads.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::time::{Duration, Instant};

/// Named values in the order in which they were added; displays as one line each.
#[derive(Default)]
pub(crate) struct Figures(Vec<(&'static str, f64)>);

impl Figures {
    /// Adds a figure.
    pub(crate) fn with(mut self, name: &'static str, value: f64) -> Figures {
        self.0.push((name, value));
        self
    }

    #[cfg(test)]
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(f64::NAN, |(_, value)| *value)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.0 {
            writeln!(f, "{name} {value:.6}")?;
        }
        Ok(())
    }
}

/// Processor time of all threads of this process, user and system.
pub(crate) fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(spent.tv_sec).unwrap_or(0),
        u32::try_from(spent.tv_nsec).unwrap_or(0),
    )
}

/// Wall-clock and processor time since it was started.
pub(crate) struct Clocks {
    wall: Instant,
    cpu: Duration,
}

impl Clocks {
    pub(crate) fn start() -> Clocks {
        Clocks {
            wall: Instant::now(),
            cpu: cpu_time(),
        }
    }

    pub(crate) fn wall(&self) -> Duration {
        self.wall.elapsed()
    }

    pub(crate) fn wall_seconds(&self) -> f64 {
        self.wall().as_secs_f64()
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        (cpu_time() - self.cpu).as_secs_f64()
    }
}
