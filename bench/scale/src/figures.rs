//! Output of a measure, as soon as it is known: curves over the tenths of a load, single values; and the memory of
//! processes.

use std::io::Write as _;
use std::time::Instant;

/// Points of a curve.
const POINTS: u64 = 10;

/// Output of figures: standard output.
pub(crate) struct Figures;

/// One line.
fn print(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|e| format!("standard output: {e}"))
}

impl Figures {
    /// One number.
    pub(crate) fn value(&mut self, name: &str, unit: &str, value: f64) -> Result<(), String> {
        print(&format!("value\t{name}\t{unit}\t{value:.6}"))
    }

    /// Runs `step` for 0 to `total`, and notes for each tenth the microseconds per step, those of the processor that
    /// `process` took for it, and its memory afterwards.
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
            let (begun, cpu) = (Instant::now(), process.cpu_seconds()?);
            for index in from..to {
                step(index).map_err(|why| format!("{name}, step {index}: {why}"))?;
            }
            let each = 1e6 / (to - from) as f64;
            let micros = [
                begun.elapsed().as_secs_f64() * each,
                (process.cpu_seconds()? - cpu) * each,
            ];
            self.point(name, to * 100 / total, micros, process)?;
        }
        Ok(())
    }

    /// One point of a curve, timed elsewhere.
    pub(crate) fn point(
        &mut self,
        name: &str,
        share: u64,
        [wall, cpu]: [f64; 2],
        process: Process,
    ) -> Result<(), String> {
        let resident = process.resident_mib()?;
        print(&format!(
            "curve\t{name}\tus\t{share}\t{wall:.3}\t{cpu:.3}\t{resident:.1}"
        ))
    }
}

/// Process whose memory is measured.
#[derive(Clone, Copy)]
pub(crate) enum Process {
    /// This process.
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

    /// Processor time of all its threads so far, user and system.
    pub(crate) fn cpu_seconds(self) -> Result<f64, String> {
        let Process::Other(pid) = self else {
            let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            return Ok(spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9);
        };
        /// Ticks in a second, as Linux shows them to all programs.
        const TICKS: f64 = 100.0;
        let path = format!("/proc/{pid}/stat");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        // Behind the name, which may hold anything: the state, ten numbers, then user and system time.
        let behind = text.rsplit(')').next().unwrap_or_default();
        let ticks: Vec<f64> = behind
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|word| word.parse().ok())
            .collect();
        match ticks.as_slice() {
            [user, system] => Ok((user + system) / TICKS),
            _ => Err(format!("{path}: no processor times")),
        }
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
