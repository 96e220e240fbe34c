//! Steps of `steadfast crash test`, to be measured.
//!
//!   crash run plain|record|stacks TRACE COMMAND…   runs a command on the server: without recording, recording, recording with stacks.
//!                                                  What it prints is printed; then `seconds`, `trace_bytes` and `memory_kib` (the most)
//!   crash states TRACE MODEL SECONDS               forms and hashes states, on one processor: states per second
//!   crash checks TRACE MODEL SECONDS CHECK         runs a check in states as an exploration does, and in a fixed directory in memory, on
//!                                                  all processors: both rates per second, and processor time of one
//!   crash load DIR CALLS MIB FILE_MIB              makes this many calls in DIR, which write MIB in all, into files of FILE_MIB in all
//!   crash syncs append|overwrite FILE COUNT PID    appends 100 bytes, or overwrites one block of 4 KiB, and calls fdatasync, COUNT
//!                                                  times: processor time of this process and of the server PID, in µs for each

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use steadfast_crashtest::check::{Checker, lay_out};
use steadfast_crashtest::effects::{Disk, Effects, Run};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::record::{self, Kept};
use steadfast_crashtest::states::{Former, Limits, State, enumerate};
use steadfast_crashtest::trace::Trace;

const USAGE: &str = "usage: crash run plain|record|stacks TRACE COMMAND… | states TRACE MODEL SECONDS | checks TRACE MODEL SECONDS CHECK | load DIR CALLS MIB FILE_MIB | syncs append|overwrite FILE COUNT PID";
/// Most states that are kept to be judged.
const KEPT_MAX: usize = 200;
/// Bytes of an append, and of the block that is overwritten.
const APPEND_BYTES: usize = 100;
const BLOCK_BYTES: usize = 4096;

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
        ["syncs", how @ ("append" | "overwrite"), file, count, server] => {
            syncs(how, file, count, server)
        }
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

/// Processor time of this process and of all that it has started and that have ended.
fn all_time() -> Result<Duration, nix::Error> {
    let mut all = Duration::ZERO;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for time in [usage.user_time(), usage.system_time()] {
            let micros = u64::try_from(time.num_microseconds()).unwrap_or(0);
            all += Duration::from_micros(micros);
        }
    }
    Ok(all)
}

/// Number of `judge` calls per second, on all processors, and milliseconds of processor time of one.
fn rate(
    limit: Duration,
    judge: &(dyn Fn(usize) -> io::Result<()> + Sync),
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (began, before) = (Instant::now(), all_time()?);
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
        false => {
            let calls = next.into_inner() as f64;
            let (seconds, time) = (began.elapsed().as_secs_f64(), all_time()? - before);
            Ok((calls / seconds, time.as_secs_f64() * 1e3 / calls))
        }
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
    for (what, (rate, time)) in [("served", served), ("fixed", fixed)] {
        println!("{what} {rate:.1}\n{what}_cpu_ms {time:.3}");
    }
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

/// Processor time of a process and all its threads, also those that have ended.
fn processor_time(pid: Pid) -> Result<Duration, nix::Error> {
    clock_getcpuclockid(pid)?.now().map(Duration::from)
}

/// Time in user mode and in the kernel. FUSE does its part of the work in the kernel as one process or the other, so the sum is what a
/// mount costs.
fn syncs(how: &str, file: &str, count: &str, server: &str) -> Done {
    let (count, server) = (count.parse::<u32>()?, Pid::from_raw(server.parse()?));
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).open(file)?;
    let size = match how {
        "append" => APPEND_BYTES,
        _ => BLOCK_BYTES,
    };
    let mut noise = Noise(1);
    let mut piece = vec![0; size];
    // The block is there before.
    file.write_all_at(&piece, 0)?;
    file.sync_all()?;
    let times = || Ok::<_, nix::Error>((processor_time(Pid::this())?, processor_time(server)?));
    let (before, began) = (times()?, Instant::now());
    for i in 0..u64::from(count) {
        noise.fill(&mut piece);
        let at = match how {
            "append" => (i + 1) * size as u64,
            _ => 0,
        };
        file.write_all_at(&piece, at)?;
        file.sync_data()?;
    }
    let (seconds, after) = (began.elapsed().as_secs_f64(), times()?);
    let (client, server) = (after.0 - before.0, after.1 - before.1);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
    println!("cpu_us {:.3}", each(client + server));
    println!("client_us {:.3}", each(client));
    println!("server_us {:.3}", each(server));
    println!("seconds {seconds:.3}");
    Ok(())
}
