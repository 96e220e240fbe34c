//! The driver of `bench/run pm`: the file system on persistent memory as a library, and its mounts.
//!
//! ```text
//! pm latency DIR RUNS [--quick]      the time of each call beside its floor, in lines for the report
//! pm scaling DIR RUNS [--quick]      two threads beside one, likewise
//! pm fill IMAGE BYTES WHAT           makes a volume and fills it; WHAT is empty, small, preallocated, large or names
//! pm mount IMAGE THREADS             mounts it once, prints its time and memory, and unmounts it
//! pm churn IMAGE                     mounts it, says "ready" and changes it until it is killed
//! ```
//!
//! DIR is a directory in memory. The lines for the report are `ROW UNIT higher|lower SYSTEM VALUE`, separated by tabs; those of
//! `fill` and `mount` are `NAME VALUE`.

mod calls;
mod fill;
mod floor;
mod latency;
mod mount;
mod scaling;
mod volume;

use std::path::Path;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

const USAGE: &str = "usage: pm latency|scaling DIR RUNS [--quick] | fill IMAGE BYTES empty|small|preallocated|large|names | \
                     mount IMAGE THREADS | churn IMAGE";

/// One line for the report.
fn record(row: &str, unit: &str, better: &str, system: &str, value: f64) {
    println!("{row}\t{unit}\t{better}\t{system}\t{value:.6}");
}

/// The smallest: time added by other work on the machine is left out.
fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["latency", dir, runs] => latency::measure(Path::new(dir), runs.parse()?, false),
        ["latency", dir, runs, "--quick"] => latency::measure(Path::new(dir), runs.parse()?, true),
        ["scaling", dir, runs] => scaling::measure(Path::new(dir), runs.parse()?, false),
        ["scaling", dir, runs, "--quick"] => scaling::measure(Path::new(dir), runs.parse()?, true),
        ["fill", image, bytes, what] => fill::fill(Path::new(image), bytes.parse()?, what),
        ["mount", image, threads] => mount::measure(Path::new(image), threads.parse()?),
        ["churn", image] => fill::churn(Path::new(image)),
        _ => Err(USAGE.into()),
    }
}
