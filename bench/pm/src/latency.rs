//! Latency of a call, beside its floor.
//!
//! A run makes the same calls on a new volume in a file in memory, and replays their record on a region in another such file
//! with the content that the volume had. The caches hold nothing of either when it begins; the first calls are not timed. The
//! subject's counters must equal those of the floor.

use crate::calls::{Call, Work};
use crate::floor::Plan;
use crate::volume::{self, Evictor, Scratch};
use crate::{Result, best, record};
use std::path::Path;
use std::time::Instant;
use steadfast_pm::{Counts, thread_counts};

/// Calls before the clock starts.
const WARM_UP: usize = 256;
/// Turns of subject and floor in one run. The best of each is the run's figure: other work can only add to it.
const TURNS: usize = 5;

/// Record of some calls.
pub(crate) struct Recorded {
    /// The medium before them.
    pub(crate) content: Vec<u8>,
    pub(crate) warm_up: Plan,
    pub(crate) measured: Plan,
    pub(crate) buffer: Vec<u8>,
}

/// Records the calls that a [`subject`] makes.
fn recorded(call: Call, count: usize) -> Result<Recorded> {
    let as_recorded = call.recorded_as();
    let fs = volume::recorded()?;
    let mut work = Work::prepare(&fs, as_recorded, "work", WARM_UP + count)?;
    fs.medium().restart_recorder();
    let recorder = fs.medium().recorder().ok_or("the region is not recorded")?;
    let mut content = Vec::new();
    if call == as_recorded {
        content = fs.medium().content();
    }
    work.run(&fs, 0..WARM_UP + count, |i| recorder.mark(i as u64))?;
    let mut plan = Plan::of(&recorder.events(), work.data());
    if call != as_recorded {
        content = fs.medium().content();
        plan = plan.reading();
    }
    let (warm_up, measured) = plan.split(WARM_UP);
    Ok(Recorded {
        content,
        warm_up,
        measured,
        buffer: work.data().to_vec(),
    })
}

/// The calls themselves: microseconds for each, and their counts in all.
fn subject(dir: &Path, call: Call, count: usize, caches: &Evictor) -> Result<(f64, Counts)> {
    let scratch = Scratch::new(dir, "subject");
    let fs = volume::in_file(&scratch)?;
    let mut work = Work::prepare(&fs, call, "work", WARM_UP + count)?;
    caches.evict();
    work.run(&fs, 0..WARM_UP, |_| {})?;
    let before = thread_counts();
    let start = Instant::now();
    work.run(&fs, WARM_UP..WARM_UP + count, |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let did = thread_counts() - before;
    Ok((seconds * 1e6 / count as f64, did))
}

/// Their floor: microseconds for each.
fn floor(dir: &Path, recorded: &mut Recorded, caches: &Evictor) -> Result<f64> {
    let scratch = Scratch::new(dir, "floor");
    let region = volume::region_of(&scratch, &recorded.content)?;
    caches.evict();
    recorded.warm_up.replay(&region, &mut recorded.buffer);
    let start = Instant::now();
    recorded.measured.replay(&region, &mut recorded.buffer);
    let seconds = start.elapsed().as_secs_f64();
    Ok(seconds * 1e6 / recorded.measured.calls() as f64)
}

/// Stores, lines and fences must be the same. Bytes differ where a call stores a part of a word.
fn compare(call: Call, did: Counts, plan: &Plan) -> Result<()> {
    let parts = |counts: Counts| (counts.stores, counts.lines, counts.fences);
    if parts(did) == parts(plan.counts()) {
        return Ok(());
    }
    let text = format!(
        "{}: the calls did {did:?}, the record says {:?}",
        call.name(),
        plan.counts()
    );
    Err(text.into())
}

/// Measures all calls; prints the results of each run.
pub(crate) fn measure(dir: &Path, runs: usize, quick: bool) -> Result<()> {
    let count = if quick { 500 } else { 2000 };
    let caches = Evictor::new();
    for call in Call::ALL {
        let name = call.name();
        let mut recorded = recorded(call, count)?;
        for run in 0..runs {
            let (mut subjects, mut floors) = (Vec::new(), Vec::new());
            for turn in 0..TURNS {
                let floor_first = (run + turn) % 2 == 1;
                if floor_first {
                    floors.push(floor(dir, &mut recorded, &caches)?);
                }
                let (took, did) = subject(dir, call, count, &caches)?;
                compare(call, did, &recorded.measured)?;
                subjects.push(took);
                if !floor_first {
                    floors.push(floor(dir, &mut recorded, &caches)?);
                }
            }
            let (subject, floor) = (best(&subjects), best(&floors));
            record(&format!("call-{name}"), "µs", "lower", "steadfast", subject);
            record(&format!("call-{name}"), "µs", "lower", "floor", floor);
            let times = format!("call-{name}-by-floor");
            record(&times, "×", "lower", "steadfast", subject / floor);
        }
        counts(call, recorded.measured.counts(), count);
    }
    Ok(())
}

/// Average effect of a call on the medium.
fn counts(call: Call, counts: Counts, calls: usize) {
    for (what, unit, sum) in [
        ("stores", "stores", counts.stores),
        ("lines", "lines", counts.lines),
        ("fences", "fences", counts.fences),
        ("bytes", "bytes", counts.data_bytes),
    ] {
        if sum > 0 {
            let row = format!("call-{}-{what}", call.name());
            record(&row, unit, "lower", "steadfast", sum as f64 / calls as f64);
        }
    }
}
