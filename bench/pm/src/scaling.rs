//! Two threads beside one, each with a directory of its own; the same for the floor, and for arithmetic that shares nothing.
//!
//! The last two show the machine's limit: two virtual processors may be one core, and one memory controller serves both.

use crate::calls::{Call, Work};
use crate::floor::Plan;
use crate::volume::{self, Evictor, Scratch};
use crate::{Result, best, record};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use steadfast_pmfs::PmFs;

const WARM_UP: usize = 256;
const THREADS: usize = 2;
const TURNS: usize = 9;
/// Steps of the arithmetic.
const SPINS: u64 = 20_000_000;

const CALLS: [Call; 7] = [
    Call::Create,
    Call::Mkdir,
    Call::Rename,
    Call::Unlink,
    Call::Append(1 << 10),
    Call::Append(16 << 10),
    Call::Read(16 << 10),
];

/// Runs each part on a thread of its own, after all have warmed up; the seconds from the first beginning to the last end.
fn side_by_side<W: Send>(
    parts: Vec<W>,
    warm_up: impl Fn(&mut W) -> Result<()> + Sync,
    work: impl Fn(&mut W) -> Result<()> + Sync,
) -> Result<f64> {
    let barrier = Barrier::new(parts.len());
    let (barrier, warm_up, work) = (&barrier, &warm_up, &work);
    let timed = |mut part: W| {
        let warmed = warm_up(&mut part);
        barrier.wait();
        warmed?;
        let begun = Instant::now();
        work(&mut part)?;
        Ok((begun, Instant::now()))
    };
    let timed = &timed;
    thread::scope(|scope| {
        let started: Vec<_> = parts
            .into_iter()
            .map(|part| scope.spawn(move || timed(part)))
            .collect();
        let mut times = Vec::new();
        for thread in started {
            let done: Result<(Instant, Instant)> =
                thread.join().map_err(|_| "a thread panicked")?;
            times.push(done?);
        }
        let begun = times.iter().map(|(begun, _)| *begun).min();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        let (begun, ended) = begun.zip(ended).ok_or("no threads")?;
        Ok((ended - begun).as_secs_f64())
    })
}

/// Record of each thread's calls, and the medium before them.
struct Recorded {
    content: Vec<u8>,
    plans: Vec<(Plan, Plan)>,
    buffer: Vec<u8>,
}

fn recorded(call: Call, count: usize) -> Result<Recorded> {
    let as_recorded = call.recorded_as();
    let fs = volume::recorded()?;
    let recorder = fs.medium().recorder().ok_or("the region is not recorded")?;
    let (barrier, turn) = (Barrier::new(THREADS + 1), Mutex::new(()));
    // As they will be measured: each thread prepares its own files, and free space may be shared out by thread.
    let made = |thread: usize| {
        let prepared = prepare(&fs, as_recorded, thread, count);
        barrier.wait();
        barrier.wait();
        let mut work = prepared?;
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        fs.medium().restart_recorder();
        work.run(&fs, 0..WARM_UP + count, |i| recorder.mark(i as u64))?;
        let buffer = work.data().to_vec();
        Ok((Plan::of(&recorder.events(), &buffer), buffer))
    };
    let (mut content, made) = thread::scope(|scope| -> Result<_> {
        let made = &made;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || made(thread)))
            .collect();
        barrier.wait();
        let content = fs.medium().content();
        barrier.wait();
        let mut made = Vec::new();
        for thread in threads {
            let plan: Result<(Plan, Vec<u8>)> = thread.join().map_err(|_| "a thread panicked")?;
            made.push(plan?);
        }
        Ok((content, made))
    })?;
    let (mut plans, mut buffers): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    if call != as_recorded {
        content = fs.medium().content();
        plans = plans.iter().map(Plan::reading).collect();
    }
    let split = |plan: Plan| plan.split(WARM_UP);
    Ok(Recorded {
        content,
        plans: plans.into_iter().map(split).collect(),
        buffer: buffers.swap_remove(0),
    })
}

/// The work of one thread, in a directory of its own.
fn prepare(fs: &PmFs, call: Call, thread: usize, count: usize) -> Result<Work> {
    Work::prepare(fs, call, &format!("work-{thread}"), WARM_UP + count)
}

fn subject(dir: &Path, call: Call, threads: usize, count: usize, caches: &Evictor) -> Result<f64> {
    let scratch = Scratch::new(dir, "subject");
    let fs = volume::in_file(&scratch)?;
    side_by_side(
        (0..threads).map(|thread| (thread, None)).collect(),
        |(thread, work)| {
            let work = work.insert(prepare(&fs, call, *thread, count)?);
            caches.evict();
            work.run(&fs, 0..WARM_UP, |_| {})
        },
        |(_, work)| {
            let work = work.as_mut().ok_or("it was not prepared")?;
            work.run(&fs, WARM_UP..WARM_UP + count, |_| {})
        },
    )
}

fn floor(dir: &Path, recorded: &Recorded, threads: usize, caches: &Evictor) -> Result<f64> {
    let scratch = Scratch::new(dir, "floor");
    let region = volume::region_of(&scratch, &recorded.content)?;
    let parts = recorded.plans.iter().take(threads);
    let parts = parts.map(|plans| (plans, recorded.buffer.clone()));
    caches.evict();
    side_by_side(
        parts.collect(),
        |((warm_up, _), buffer)| {
            warm_up.replay(&region, buffer);
            Ok(())
        },
        |((_, measured), buffer)| {
            measured.replay(&region, buffer);
            Ok(())
        },
    )
}

fn spin(threads: usize) -> Result<f64> {
    let work = |state: &mut u64| {
        for _ in 0..SPINS {
            *state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005) + 1);
        }
        Ok(())
    };
    side_by_side((0..threads as u64).collect(), |_| Ok(()), work)
}

/// Throughput of two threads over that of one, by the best of some turns of each.
fn scaled(mut seconds: impl FnMut(usize) -> Result<f64>) -> Result<f64> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        one.push(seconds(1)?);
        two.push(seconds(THREADS)?);
    }
    Ok(THREADS as f64 * best(&one) / best(&two))
}

/// Measures the calls; prints the results of each run.
pub(crate) fn measure(dir: &Path, runs: usize, quick: bool) -> Result<()> {
    let caches = Evictor::new();
    for _ in 0..runs {
        record(
            "scaling-arithmetic",
            "×",
            "higher",
            "machine",
            scaled(spin)?,
        );
    }
    for call in CALLS {
        let row = format!("scaling-{}", call.name());
        // Enough for a measure, and little enough for the region.
        let count = match call {
            Call::Append(16384) | Call::Read(16384) | Call::Unlink => 1000,
            _ => 8000,
        };
        let count = if quick { count / 4 } else { count };
        let recorded = recorded(call, count)?;
        for run in 0..runs {
            let subject = |threads| subject(dir, call, threads, count, &caches);
            let floor = |threads| floor(dir, &recorded, threads, &caches);
            let (first, second) = match run % 2 {
                0 => (scaled(subject)?, scaled(floor)?),
                _ => {
                    let floor = scaled(floor)?;
                    (scaled(subject)?, floor)
                }
            };
            record(&row, "×", "higher", "steadfast", first);
            record(&row, "×", "higher", "floor", second);
        }
    }
    Ok(())
}
