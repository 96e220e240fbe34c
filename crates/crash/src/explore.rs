//! The exploration: scenarios within a budget of images, on several threads, and the
//! shrinking of violations.

use crate::Contract;
use crate::check::{self, Counts, Depth};
use crate::flash::Chip;
use crate::record::{Medium, Mutation, Recording, Template, moment};
use crate::scenario::{
    Scenario, kept, large_overwrites, pair, pairs, random, side_by_side, triple,
};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use steadfast_flash::Rng;
use steadfast_model::Op;
use steadfast_sim::Limits;

/// For one image in this number, the recovery is cut, and the volume used.
const DEEP_EVERY: u64 = 8;
/// For one image in this number, chosen by content, all free space is trimmed after the recovery, as `steadfast trim`
/// does; if the image's recovery is cut, so is the trim.
const TRIM_EVERY: u128 = 128;

/// Fewest images that are checked of a pair of operations.
const PAIR_IMAGES_MIN: u64 = 8;
/// Images that are checked of a sequence of streams side by side, or of large overwrites.
const STREAM_IMAGES: u64 = 40;
/// Number of images from which on every pair of operations is run.
pub const ALL_PAIRS_IMAGES: u64 = 94_090;

/// A scenario with a budget below this is sampled instead of walked through.
const IMAGES_ORDERED_MIN: u64 = 1000;
/// Runs of a scenario on flash that is tried to be shrunk.
const SHRINK_RUNS: u64 = 200;
/// Images of one cut that sampling may reach.
const ROUNDS_MAX: usize = 64;

/// Options of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Medium of the volumes.
    pub medium: Medium,
    /// The contract of the volumes.
    pub contract: Contract,
    /// Decides the order of the pairs, the random sequences, and the samples.
    pub seed: u64,
    /// Crash images to check at least. Three fifths of them are of pairs of operations, the
    /// same number of each pair (from [`ALL_PAIRS_IMAGES`] on, all pairs are run); one of ten is
    /// of a triple, one of ten of streams side by side, one of ten of large overwrites where they go out of place, the others are
    /// of random sequences. Under `relaxed`, which has one stream, a quarter is of files that are kept, closed and synced
    /// instead of streams.
    pub images: u64,
    /// Threads.
    pub jobs: usize,
    /// A planted bug that must be found.
    pub mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            medium: Medium::default(),
            contract: Contract::default(),
            seed: 1,
            images: 10_000,
            jobs: jobs(),
            mutation: None,
        }
    }
}

impl Options {
    /// Whether large overwrites go out of place.
    fn move_overwrites(&self) -> bool {
        self.medium == Medium::Block && self.contract != Contract::MetadataPrefix
    }
}

/// One thread for each processor.
fn jobs() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Progress of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Images checked.
    pub images: u64,
    /// Images wanted.
    pub wanted: u64,
    /// Scenarios finished.
    pub scenarios: u64,
}

/// A scenario after which a cut left a state that the contract forbids.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The scenario, shrunk to the needed steps.
    pub scenario: Scenario,
    /// Description of the finding and its place.
    pub what: String,
}

/// Result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Crash images checked, each recovered, compared and checked by fsck.
    pub images: u64,
    /// Images of pairs of operations among them.
    pub pair_images: u64,
    /// Images of triples.
    pub triple_images: u64,
    /// Images of streams side by side.
    pub stream_images: u64,
    /// Images of large overwrites.
    pub overwrite_images: u64,
    /// Images of cut recoveries, each recovered again.
    pub recoveries: u64,
    /// Recovered volumes that were filled and emptied.
    pub used: u64,
    /// Pairs of operations run, of [`Report::pairs_all`].
    pub pairs: u64,
    /// Pairs of operations that there are (each way of syncing counts).
    pub pairs_all: u64,
    /// Triples of operations run.
    pub triples: u64,
    /// Random sequences run, those of streams side by side and of large overwrites among them.
    pub sequences: u64,
    /// Violations found.
    pub violations: Vec<Violation>,
    /// Time it took.
    pub elapsed: Duration,
}

/// Origin of a scenario.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Pair,
    Triple,
    Streams,
    Overwrites,
    Random,
}

/// An empty volume.
enum Stage {
    Block(Template),
    Flash(Box<Chip>),
}

impl Stage {
    fn new(options: &Options) -> Result<Stage, String> {
        Ok(match options.medium {
            Medium::Block => Stage::Block(Template::new(options.contract)?),
            Medium::Flash => Stage::Flash(Box::new(Chip::new(options.contract)?)),
        })
    }
}

struct Shared<'a> {
    options: &'a Options,
    stage: &'a Stage,
    order: Vec<usize>,
    next_pair: AtomicU64,
    next_triple: AtomicU64,
    next_streams: AtomicU64,
    next_overwrites: AtomicU64,
    next_random: AtomicU64,
    stop: AtomicBool,
    report: Mutex<Report>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

/// Explores until the budget is used up or something is found. `progress` is called after
/// each scenario, from any thread.
///
/// # Errors
/// When not even an empty volume can be made.
pub fn explore(options: &Options, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report, String> {
    let began = Instant::now();
    let stage = Stage::new(options)?;
    let shared = Shared {
        options,
        stage: &stage,
        order: shuffled(pairs(), options.seed),
        next_pair: AtomicU64::new(0),
        next_triple: AtomicU64::new(0),
        next_streams: AtomicU64::new(0),
        next_overwrites: AtomicU64::new(0),
        next_random: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        report: Mutex::new(Report {
            pairs_all: pairs() as u64,
            ..Report::default()
        }),
        progress,
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| shared.work());
        }
    });
    let mut report = shared
        .report
        .into_inner()
        .unwrap_or_else(|e| e.into_inner());
    report.elapsed = began.elapsed();
    Ok(report)
}

fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut random = Rng::new(seed);
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

impl Shared<'_> {
    fn report(&self) -> std::sync::MutexGuard<'_, Report> {
        self.report
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn work(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            let (images, of_pairs, of_triples, of_streams, of_overwrites) = {
                let report = self.report();
                let Report {
                    images,
                    pair_images,
                    triple_images,
                    stream_images,
                    overwrite_images,
                    ..
                } = *report;
                (
                    images,
                    pair_images,
                    triple_images,
                    stream_images,
                    overwrite_images,
                )
            };
            if images >= self.options.images {
                return;
            }
            let pair_number = self.next_pair.load(Ordering::Relaxed);
            let pairs_left = (pair_number as usize) < self.order.len();
            let (scenario, kind) = if pairs_left && of_pairs * 5 <= images * 3 {
                let n = self.next_pair.fetch_add(1, Ordering::Relaxed) as usize;
                let Some(index) = self.order.get(n) else {
                    continue;
                };
                (pair(*index), Made::Pair)
            } else if of_triples * 10 <= images {
                let n = self.next_triple.fetch_add(1, Ordering::Relaxed);
                (triple(self.options.seed, n), Made::Triple)
            } else if of_streams * self.streams_share() <= images {
                let n = self.next_streams.fetch_add(1, Ordering::Relaxed);
                let scenario = match self.options.contract.allows_write_back() {
                    true => kept(self.options.seed, n),
                    false => side_by_side(self.options.seed, n),
                };
                (scenario, Made::Streams)
            } else if self.options.move_overwrites() && of_overwrites * 10 <= images {
                let n = self.next_overwrites.fetch_add(1, Ordering::Relaxed);
                (large_overwrites(self.options.seed, n), Made::Overwrites)
            } else {
                let n = self.next_random.fetch_add(1, Ordering::Relaxed);
                (random(self.options.seed, n), Made::Random)
            };
            self.one(&scenario, kind);
        }
    }

    /// One image in this number is of streams side by side, or of files that are kept.
    fn streams_share(&self) -> u64 {
        match self.options.contract.allows_write_back() {
            true => 4,
            false => 10,
        }
    }

    fn one(&self, scenario: &Scenario, kind: Made) {
        let mut counts = Counts::default();
        let wanted = self.options.images;
        let budget = match kind {
            Made::Pair | Made::Triple => {
                (wanted * 3 / 5 / self.order.len() as u64).max(PAIR_IMAGES_MIN)
            }
            Made::Streams | Made::Overwrites => STREAM_IMAGES,
            Made::Random => wanted.saturating_sub(self.report().images).max(1),
        };
        let result = try_scenario(self.stage, scenario, self.options, budget, &mut counts);
        let mut report = self.report();
        report.images += counts.images;
        report.recoveries += counts.recoveries;
        report.used += counts.used;
        match kind {
            Made::Pair => {
                report.pairs += 1;
                report.pair_images += counts.images;
            }
            Made::Triple => {
                report.triples += 1;
                report.triple_images += counts.images;
            }
            Made::Streams => {
                report.sequences += 1;
                report.stream_images += counts.images;
            }
            Made::Overwrites => {
                report.sequences += 1;
                report.overwrite_images += counts.images;
            }
            Made::Random => report.sequences += 1,
        }
        let done = report.pairs + report.triples + report.sequences;
        let progress = Progress {
            images: report.images,
            wanted: self.options.images,
            scenarios: done,
        };
        drop(report);
        if let Err(what) = result
            && !self.stop.swap(true, Ordering::Relaxed)
        {
            let violation = shrink(self.stage, scenario, self.options, what);
            self.report().violations.push(violation);
        }
        (self.progress)(progress);
    }
}

/// Runs a scenario and checks up to `budget` of its crash images.
fn try_scenario(
    stage: &Stage,
    scenario: &Scenario,
    options: &Options,
    budget: u64,
    counts: &mut Counts,
) -> Result<(), String> {
    // A panic is a violation like any other.
    let attempt = std::panic::AssertUnwindSafe(|| match stage {
        Stage::Block(template) => {
            let run = template.run(scenario, options.mutation)?;
            if scenario.side_by_side && options.contract == Contract::Ordered {
                syncs_alone(&run, scenario, counts)?;
            }
            cut_everywhere(&run, options, budget, counts)
        }
        Stage::Flash(chip) => chip.try_scenario(scenario, options, budget, counts),
    });
    std::panic::catch_unwind(attempt).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a message")))
    })
}

/// Checks crash images of one scenario; returns how many.
#[cfg(test)]
pub(crate) fn one(options: &Options, scenario: &Scenario) -> Result<u64, String> {
    let stage = Stage::new(options)?;
    let mut counts = Counts::default();
    try_scenario(&stage, scenario, options, options.images, &mut counts)?;
    Ok(counts.images)
}

/// Checks the durable state when a sync of one stream was answered.
fn syncs_alone(run: &Recording, scenario: &Scenario, counts: &mut Counts) -> Result<(), String> {
    let mut explorer = run.sim.explorer();
    let mut seen = None;
    for position in 0..=explorer.len() {
        let cut = explorer.cut(position);
        let mark = cut.marks().last().copied();
        if mark == seen {
            continue;
        }
        seen = mark;
        let moment = moment(mark);
        // The last operation of those that were answered, if none is under way.
        let last = moment
            .acked
            .checked_sub(1)
            .filter(|_| moment.issued == moment.acked);
        let step = last.and_then(|last| scenario.steps.get(last));
        if step.is_some_and(|step| matches!(step.op, Op::Fsync { .. } | Op::Fdatasync { .. })) {
            check::independent(run, cut.durable().clone(), moment, counts)
                .map_err(|what| format!("cut at event {position}: {what}"))?;
        }
    }
    Ok(())
}

fn cut_everywhere(
    run: &Recording,
    options: &Options,
    budget: u64,
    counts: &mut Counts,
) -> Result<(), String> {
    let limits = Limits {
        exhaustive_writes: 4,
        sampled: 8,
        tears: true,
        seed: options.seed,
    };
    let (mut seen, mut recovered) = (HashSet::new(), HashSet::new());
    let mut explorer = run.sim.explorer();
    // All images of all cuts, in order, if the budget allows; else in rounds over the cuts in
    // a random order, one image more of each cut in each round.
    let rounds = if budget >= IMAGES_ORDERED_MIN {
        1
    } else {
        ROUNDS_MAX
    };
    let per_round = if rounds == 1 { usize::MAX } else { 1 };
    for round in 0..rounds {
        let positions = if rounds == 1 {
            (0..explorer.len() + 1).collect()
        } else {
            shuffled(explorer.len() + 1, options.seed.wrapping_add(counts.images))
        };
        for position in positions {
            let cut = explorer.cut(position);
            let mark = cut.marks().last().copied();
            for image in cut.images(&limits).skip(round).take(per_round) {
                if counts.images >= budget {
                    return Ok(());
                }
                if !seen.insert((image.fingerprint(), mark)) {
                    continue;
                }
                let deep = counts.images.is_multiple_of(DEEP_EVERY);
                let depth = Depth {
                    cut_recovery: deep,
                    trim: image.fingerprint().is_multiple_of(TRIM_EVERY),
                    use_volume: deep,
                };
                let name = format!("cut at event {position}: {image}");
                check::image(run, image, moment(mark), depth, &mut recovered, counts)
                    .map_err(|what| format!("{name}: {what}"))?;
            }
        }
    }
    Ok(())
}

/// Leaves out the steps that the violation does not need.
fn shrink(stage: &Stage, scenario: &Scenario, options: &Options, what: String) -> Violation {
    let mut best = Violation {
        scenario: scenario.clone(),
        what,
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut i = best.scenario.steps.len();
    while i > 0 && Instant::now() < deadline {
        i -= 1;
        let mut smaller = best.scenario.clone();
        smaller.steps.remove(i);
        let result = try_scenario(
            stage,
            &smaller,
            options,
            match stage {
                Stage::Block(_) => u64::MAX,
                Stage::Flash(_) => SHRINK_RUNS,
            },
            &mut Counts::default(),
        );
        if let Err(what) = result {
            best = Violation {
                scenario: smaller,
                what,
            };
        }
    }
    best
}
