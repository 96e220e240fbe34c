//! Steps of `steadfast crash test`, to be measured.
//!
//!   crash run plain|record|stacks TRACE COMMAND…   runs a command on the server: without recording, recording, recording with stacks.
//!                                                  What it prints is printed; then `seconds`, `trace_bytes` and `memory_kib` (the most)
//!   crash states TRACE MODEL SECONDS               forms and hashes states, on one processor: states per second
//!   crash checks TRACE MODEL SECONDS CHECK         runs a check in states as an exploration does, and in a fixed directory in memory, on
//!                                                  all processors: both rates per second
//!   crash load DIR CALLS MIB FILE_MIB              makes this many calls in DIR, which write MIB in all, into files of FILE_MIB in all

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steadfast_crashtest::check::{Checker, lay_out};
use steadfast_crashtest::effects::{Disk, Effects, Run};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::record::{self, Kept};
use steadfast_crashtest::states::{Former, Limits, State, enumerate};
use steadfast_crashtest::trace::Trace;

const USAGE: &str = "usage: crash run plain|record|stacks TRACE COMMAND… | states TRACE MODEL SECONDS | checks TRACE MODEL SECONDS CHECK | load DIR CALLS MIB FILE_MIB";
/// Most states that are kept to be judged.
const KEPT_MAX: usize = 200;

type Done = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [
            "run",
            how @ ("plain" | "record" | "stacks"),
            trace,
            command @ ..,
        ] => run(how, trace, command),
        ["states", trace, model, seconds] => states(trace, model, seconds),
        ["checks", trace, model, seconds, check] => checks(trace, model, seconds, check),
        ["load", dir, calls, mib, file_mib] => load(dir, calls, mib, file_mib),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("crash: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(how: &str, trace: &str, command: &[&str]) -> Done {
    let command = command.iter().map(Into::into).collect();
    let mut options = record::Options::new(command, trace.into());
    options.stacks = how == "stacks";
    options.output = Some(Box::new(io::stdout()));
    options.time_limit = Duration::from_secs(1800);
    if how == "plain" {
        options.kept = Kept::Nothing;
    }
    let began = Instant::now();
    let recorded = record::record(options)?;
    let seconds = began.elapsed().as_secs_f64();
    println!("seconds {seconds:.3}");
    println!("calls {}", recorded.counts.calls);
    println!("trace_bytes {}", std::fs::metadata(trace)?.len());
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|l| l.trim().strip_suffix(" kB"));
    println!("memory_kib {}", peak.unwrap_or("unknown").trim());
    Ok(())
}

fn effects_of(trace: &str, model: &Model) -> Result<Effects, Box<dyn std::error::Error>> {
    let run = Run::of_trace(&Trace::open(Path::new(trace))?)?;
    Ok(Effects::new(&run, model))
}

/// Sets of effects formed and hashed, again and again: those of which the tree was known as well.
fn states(trace: &str, model: &str, seconds: &str) -> Done {
    let model = Model::shipped(model)?;
    let effects = effects_of(trace, &model)?;
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let began = Instant::now();
    let mut formed = 0;
    let mut seed = 1;
    while began.elapsed() < limit {
        let limits = Limits {
            seed,
            ..Limits::default()
        };
        let states = enumerate(&effects, model.sync_jumps, model.tear, limits);
        formed += states.coverage.iter().map(|(_, c)| c.formed).sum::<usize>();
        seed += 1;
    }
    println!("{:.0}", formed as f64 / began.elapsed().as_secs_f64());
    Ok(())
}

/// Number of `judge` calls per second, on all processors.
fn rate(
    limit: Duration,
    judge: &(dyn Fn(usize) -> io::Result<()> + Sync),
) -> Result<f64, Box<dyn std::error::Error>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let work = || {
        while began.elapsed() < limit && !failed.load(Ordering::Relaxed) {
            if let Err(e) = judge(next.fetch_add(1, Ordering::Relaxed)) {
                eprintln!("crash: {e}");
                failed.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
    match failed.into_inner() {
        true => Err("a check could not be run".into()),
        false => Ok(next.into_inner() as f64 / began.elapsed().as_secs_f64()),
    }
}

fn checks(trace: &str, model: &str, seconds: &str, check: &str) -> Done {
    let model = Model::shipped(model)?;
    let effects = Arc::new(effects_of(trace, &model)?);
    let limit = Duration::from_secs_f64(seconds.parse()?);
    let states: Vec<State> =
        enumerate(&effects, model.sync_jumps, model.tear, Limits::default()).all;
    let former = Former::new(&effects);
    let every = states.len().div_ceil(KEPT_MAX).max(1);
    let trees: Vec<Disk> = states
        .iter()
        .step_by(every)
        .map(|s| former.disk(&s.bits, s.tear))
        .collect();
    let checker = Checker::new(None, Some(check.to_owned()))?;
    let served = rate(limit, &|i| {
        let tree = trees
            .get(i % trees.len().max(1))
            .ok_or(io::ErrorKind::NotFound)?;
        checker.judge_served(tree, &[], &[]).map(drop)
    })?;
    // The same command, isolated in the same way, in a directory that stays.
    let place = tempfile::tempdir_in(&checker.scratch)?;
    let dir = place.path().join("state");
    lay_out(&effects.disk(&effects.prefix(effects.steps())), &dir)?;
    let fixed = rate(limit, &|i| {
        let scratch = place.path().join(format!("run.{i}"));
        std::fs::create_dir(&scratch)?;
        let verdict = checker.judge_in(&scratch, &dir, &[], &[]);
        std::fs::remove_dir_all(&scratch)?;
        verdict.map(drop)
    })?;
    println!("served {served:.1}\nfixed {fixed:.1}");
    Ok(())
}

/// Bytes that no two places have in common.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let word = (self.0 ^ (self.0 >> 29)).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

fn load(dir: &str, calls: &str, mib: &str, file_mib: &str) -> Done {
    let (calls, bytes) = (calls.parse::<u64>()?, mib.parse::<u64>()? << 20);
    let file_bytes = file_mib.parse::<u64>()? << 20;
    let size = (bytes / calls.max(1)).max(1);
    let mut options = OpenOptions::new();
    let file: File = options
        .write(true)
        .create(true)
        .truncate(true)
        .open(Path::new(dir).join("data"))?;
    let mut noise = Noise(1);
    let mut piece = vec![0; size as usize];
    for i in 0..calls {
        noise.fill(&mut piece);
        file.write_all_at(&piece, i * size % file_bytes.max(size))?;
    }
    file.sync_all()?;
    Ok(())
}
