//! What a measure prints: curves over the tenths of a load, single values; and the memory of processes.

use std::fmt::{self, Write as _};
use std::time::Instant;

/// Points of a curve.
const POINTS: u64 = 10;

/// Lines of figures in the order in which they were taken.
#[derive(Default)]
pub(crate) struct Figures(String);

impl Figures {
    /// One number.
    pub(crate) fn value(&mut self, name: &str, unit: &str, value: f64) {
        let _ = writeln!(self.0, "value\t{name}\t{unit}\t{value:.6}");
    }

    /// Runs `step` for 0 to `total`, and notes for each tenth the microseconds per step and the memory of `process`
    /// behind it.
    pub(crate) fn curve(
        &mut self,
        name: &str,
        total: u64,
        process: Process,
        mut step: impl FnMut(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let points = POINTS.min(total);
        for point in 0..points {
            let (from, to) = (total * point / points, total * (point + 1) / points);
            let begun = Instant::now();
            for index in from..to {
                step(index).map_err(|why| format!("{name}, step {index}: {why}"))?;
            }
            let micros = begun.elapsed().as_secs_f64() * 1e6 / (to - from) as f64;
            self.point(name, to * 100 / total, micros, process)?;
        }
        Ok(())
    }

    /// One point of a curve, timed elsewhere.
    pub(crate) fn point(
        &mut self,
        name: &str,
        share: u64,
        micros: f64,
        process: Process,
    ) -> Result<(), String> {
        let resident = process.resident_mib()?;
        let _ = writeln!(self.0, "curve\t{name}\tus\t{share}\t{micros:.3}\t{resident:.1}");
        Ok(())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose memory is looked at.
#[derive(Clone, Copy)]
pub(crate) enum Process {
    /// This one.
    Own,
    /// Another one.
    Other(u32),
}

impl Process {
    /// Resident memory now.
    pub(crate) fn resident_mib(self) -> Result<f64, String> {
        self.status("VmRSS:")
    }

    /// The most resident memory so far.
    pub(crate) fn peak_mib(self) -> Result<f64, String> {
        self.status("VmHWM:")
    }

    fn status(self, key: &str) -> Result<f64, String> {
        let path = match self {
            Process::Own => "/proc/self/status".to_owned(),
            Process::Other(pid) => format!("/proc/{pid}/status"),
        };
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let line = text.lines().find(|line| line.starts_with(key));
        let kib = line
            .and_then(|line| line.split_whitespace().nth(1))
            .and_then(|word| word.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0)
            .ok_or_else(|| format!("{path}: no {key}"))
    }
}

/// Numbers that look random and are the same in each run.
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (u128::from(self.0) * u128::from(bound) >> 64) as u64
    }
}
