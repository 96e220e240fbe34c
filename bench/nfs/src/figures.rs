//! Figures of a run: wall clock, latencies, and the server's processor time.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

/// Latency of each operation.
#[derive(Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(crate) fn merge(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    /// Their percentiles, as [`Figures::lines`].
    pub(crate) fn lines(&self, prefix: &str) -> String {
        let sorted = self.sorted();
        let mut out = String::new();
        if sorted.is_empty() {
            return out;
        }
        for (name, percent) in [
            ("latency-p50-us", 50),
            ("latency-p95-us", 95),
            ("latency-p99-us", 99),
            ("latency-max-us", 100),
        ] {
            let value = micros(percentile(&sorted, percent));
            let _ = writeln!(out, "{prefix}{name} {value:.6}");
        }
        out
    }

    pub(crate) fn median_us(&self) -> f64 {
        micros(percentile(&self.sorted(), 50))
    }

    fn sorted(&self) -> Vec<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted
    }
}

/// The least value that `percent` percent of the values do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// One run, or one part of it.
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) latencies: Latencies,
    /// Processor time of all threads of the server.
    pub(crate) server_cpu: Option<Duration>,
}

impl Figures {
    /// Lines `NAME VALUE`, each name with `prefix` before it; the unit is the last word of the name.
    pub(crate) fn lines(&self, prefix: &str) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: f64| {
            let _ = writeln!(out, "{prefix}{name} {value:.6}");
        };
        line("seconds", self.seconds);
        line("operations", self.operations as f64);
        line("per-second", self.operations as f64 / self.seconds);
        if self.bytes > 0 {
            line(
                "mib-per-second",
                self.bytes as f64 / f64::from(1 << 20) / self.seconds,
            );
        }
        out += &self.latencies.lines(prefix);
        let mut line = |name: &str, value: f64| {
            let _ = writeln!(out, "{prefix}{name} {value:.6}");
        };
        if let Some(cpu) = self.server_cpu {
            line("server-cpu-us", micros(cpu) / self.operations as f64);
        }
        out
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Processor time of a process so far, its ended threads included.
pub(crate) fn processor_time(pid: u32) -> Result<Duration, String> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let ticks = stat_ticks(&text).ok_or_else(|| format!("{path} is not as expected: {text}"))?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// User and system time: the 14th and 15th field. The second, the program's name, may contain anything.
fn stat_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<Duration> = (1..=10).map(Duration::from_micros).collect();
        let of = |percent| percentile(&sorted, percent).as_micros();
        assert_eq!((of(50), of(95), of(99), of(100)), (5, 10, 10, 10));
        assert_eq!(percentile(&sorted[..1], 50).as_micros(), 1);
    }

    #[test]
    fn processor_time_is_read_after_a_name_with_parentheses() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194304 5 0 0 0 130 25 0 0 20 0 3 0 9 1 2";
        assert_eq!(stat_ticks(stat), Some(155));
        assert_eq!(stat_ticks("7 (a) S 1"), None);
        processor_time(std::process::id()).unwrap();
        assert!(processor_time(u32::MAX).unwrap_err().contains("/proc/"));
    }

    #[test]
    fn the_lines_carry_rates_and_time_per_operation() {
        let figures = Figures {
            seconds: 2.0,
            operations: 1000,
            bytes: 4 << 20,
            latencies: Latencies(vec![Duration::from_micros(3)]),
            server_cpu: Some(Duration::from_millis(50)),
        };
        let lines = figures.lines("a-");
        for line in [
            "a-per-second 500.000000",
            "a-mib-per-second 2.000000",
            "a-latency-p50-us 3.000000",
            "a-server-cpu-us 50.000000",
        ] {
            assert!(lines.lines().any(|l| l == line), "{lines}");
        }
    }
}
