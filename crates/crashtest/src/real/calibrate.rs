//! Compares a model with the real file system: many short sequences of calls, power cuts at many moments, and for
//! each tree the question whether the model allows it.
//!
//! Many sequences share one mount: each has a directory of its own, and all before it is synced. The power is cut
//! between its first call and the end of a sync after it. The relaxations of the model that were seen are counted,
//! too: the model could demand the order that a relaxation gives up if that relaxation was never seen.

use super::allow::{self, Answer, Moment, Relaxation, allowed};
use super::cuts::{commit, picks, prepare_commit, quiet, recover, returned};
use super::disk::{Cutter, Pick, Recording};
use super::kinds::Kind;
use super::play::Player;
use super::sequences::{Play, Sequence, base};
use super::stage::{Mounted, Stage, unable};
use super::{RealError, kernel};
use crate::effects::{Disk, Effects};
use crate::models::Model;
use crate::states::Chance;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use steadfast_model::data::FileData;

/// Sequences that share one mount.
const SESSION: usize = 40;
/// Maximum number of violations that are kept.
const VIOLATIONS_MAX: usize = 100;

/// Subject and extent of a calibration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file system.
    pub fs: Kind,
    /// Its mount options.
    pub mount: String,
    /// The model to compare.
    pub model: Model,
    /// Number of power cuts.
    pub cuts: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of threads.
    pub jobs: usize,
}

/// A tree that the model forbids.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Violation {
    /// The calls.
    pub sequence: String,
    /// Number of calls that had returned, and of all calls.
    pub returned: (usize, usize),
    /// Choice of the unflushed writes.
    pub cut: &'static str,
    /// The tree.
    pub tree: String,
    /// Differences of the nearest state that the model allows.
    pub nearest: String,
    /// Number of cuts that left such a tree after these calls.
    pub times: usize,
}

/// Result of a calibration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Calibration {
    /// The file system.
    pub fs: String,
    /// Its mount options.
    pub options: String,
    /// The model.
    pub model: String,
    /// The kernel.
    pub kernel: String,
    /// Seed.
    pub seed: u64,
    /// Number of sequences of two calls, and of longer ones.
    pub sequences: (usize, usize),
    /// Number of power cuts with different images or moments.
    pub cuts: usize,
    /// Number of different trees, by sequence.
    pub trees: usize,
    /// Number of trees that the model forbids.
    pub forbidden: usize,
    /// Number of trees that could not be decided.
    pub undecided: usize,
    /// Forbidden trees, each kind once.
    pub violations: Vec<Violation>,
    /// Relaxations that were seen, with their counts.
    pub seen: BTreeMap<String, usize>,
    /// Relaxations that the model allows and that were never seen.
    pub unseen: Vec<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Calibration {
    /// The line for a model's `calibrated`.
    #[must_use]
    pub fn line(&self) -> String {
        let outside = match self.forbidden {
            0 => "none outside the model".to_owned(),
            n => format!("{n} OUTSIDE THE MODEL"),
        };
        let unseen = match self.unseen.is_empty() {
            true => "every relaxation seen".to_owned(),
            false => format!("never seen: {}", self.unseen.join("; ")),
        };
        format!("{}, {} cuts, {outside}; {unseen}", self.kernel, self.cuts)
    }
}

#[derive(Default)]
struct Tally {
    result: Calibration,
    seen: BTreeMap<Relaxation, usize>,
    offered: BTreeSet<Relaxation>,
    known: HashMap<(String, String), usize>,
}

struct Work<'a> {
    options: &'a Options,
    sequences: &'a [Sequence],
    next: AtomicUsize,
    cuts: AtomicUsize,
    stop: &'a AtomicBool,
    tally: Mutex<Tally>,
    progress: &'a (dyn Fn(usize) + Sync),
}

/// Calibrates. `progress` is called with the number of cuts.
///
/// # Errors
/// If real file systems cannot be mounted here, or the file system refuses one of the calls.
pub fn calibrate(
    options: &Options,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Calibration, RealError> {
    if let Some(why) = unable(options.fs) {
        return Err(RealError::Unable(why));
    }
    let began = Instant::now();
    // About four cuts for each sequence.
    let count = (options.cuts / 4).max(8);
    let sequences = Sequence::choose(count, options.seed, options.fs);
    let work = Work {
        options,
        sequences: &sequences,
        next: AtomicUsize::new(0),
        cuts: AtomicUsize::new(0),
        stop,
        tally: Mutex::default(),
        progress,
    };
    let done: Vec<Result<(), RealError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.jobs.max(1))
            .map(|_| scope.spawn(|| work.run()))
            .collect();
        let joined = threads.into_iter().map(|t| t.join());
        joined.map(|r| r.unwrap_or(Err(RealError::Panic))).collect()
    });
    for result in done {
        result?;
    }
    let tally = work
        .tally
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let mut result = tally.result;
    for (violation, times) in result.violations.iter_mut().filter_map(|v| {
        let key = (v.sequence.clone(), v.tree.clone());
        tally.known.get(&key).map(|n| (v, *n))
    }) {
        violation.times = times;
    }
    result.unseen = tally
        .offered
        .iter()
        .filter(|r| !tally.seen.contains_key(r))
        .map(ToString::to_string)
        .collect();
    result.seen = tally
        .seen
        .iter()
        .map(|(r, n)| (r.to_string(), *n))
        .collect();
    result.fs = options.fs.name().to_owned();
    result.options = options.mount.clone();
    result.model = options.model.name.clone();
    result.kernel = kernel();
    result.seed = options.seed;
    result.seconds = began.elapsed().as_secs_f64();
    Ok(result)
}

/// One sequence's part of a log.
struct Window<'a> {
    sequence: &'a Sequence,
    dir: String,
    from: usize,
    to: usize,
}

impl<'a> Work<'a> {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> Result<(), RealError> {
        let mut stage = Stage::new()?;
        let blank = self.options.fs.make(0)?;
        loop {
            let first = self.next.fetch_add(SESSION, Ordering::Relaxed);
            let last = (first + SESSION).min(self.sequences.len());
            if first >= last || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (recording, windows) =
                self.record(&mut stage, blank.clone(), &self.sequences[first..last])?;
            self.cut(&mut stage, &recording, &windows, first)?;
        }
    }

    /// Carries out sequences on one mount.
    fn record(
        &self,
        stage: &mut Stage,
        blank: FileData,
        sequences: &'a [Sequence],
    ) -> Result<(Recording, Vec<Window<'a>>), RealError> {
        let disk = stage.disk(blank, true);
        let fs = self.options.fs;
        let mounted = stage.mount(&disk, fs, &self.options.mount)?;
        let prepared = RealError::system(format!("preparing {}", fs.name()));
        let ready = prepare(&mounted, fs, sequences.len()).map_err(prepared)?;
        disk.take();
        let mut windows = Vec::new();
        for (i, sequence) in sequences.iter().enumerate() {
            let dir = format!("s{i}");
            let mut player = Player::new(&mounted.path().join(&dir), &sequence.run);
            let from = disk.position();
            let mut returned = 0;
            disk.returned(0);
            for play in &sequence.plays {
                match play {
                    Play::Step(n) => {
                        let step = &sequence.run.steps[*n];
                        player
                            .step(*n, &step.what)
                            .map_err(|source| RealError::Step {
                                number: step.number,
                                text: sequence.text.clone(),
                                fs: fs.name(),
                                source,
                            })?;
                        returned += 1;
                        disk.returned(returned);
                    }
                    Play::WriteBack(ino) => {
                        player
                            .write_back(*ino)
                            .map_err(RealError::system("write-back"))?;
                        quiet(&|| disk.position());
                    }
                    Play::Commit => commit(mounted.path(), &format!("{i}.{}", disk.position()))?,
                }
            }
            drop(player);
            rustix::fs::syncfs(&ready).map_err(|e| RealError::system("syncfs")(e.into()))?;
            windows.push(Window {
                sequence,
                dir,
                from,
                to: disk.position(),
            });
        }
        drop(ready);
        let recording = disk.take();
        mounted.unmount()?;
        Ok((recording, windows))
    }

    /// Cuts the power in each window, and judges what is left.
    fn cut(
        &self,
        stage: &mut Stage,
        recording: &Recording,
        windows: &[Window<'_>],
        first: usize,
    ) -> Result<(), RealError> {
        let fs = self.options.fs;
        let mut cutter = Cutter::new(recording, fs.atom());
        let all = self.sequences.len();
        for (i, window) in windows.iter().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // This sequence's share of the cuts.
            let at = |n: usize| self.options.cuts * n / all;
            let share = at(first + i + 1) - at(first + i);
            let mut chance = Chance::new(self.options.seed ^ ((first + i) as u64) << 20);
            let picks = picks(recording, (window.from, window.to), share, &mut chance);
            let effects = Effects::new(&window.sequence.run, &self.options.model);
            {
                let mut tally = self.tally();
                let offered = allow::relaxations(&effects, self.options.model.sync_jumps);
                tally.offered.extend(offered);
                match window.sequence.calls {
                    2 => tally.result.sequences.0 += 1,
                    _ => tally.result.sequences.1 += 1,
                }
            }
            let mut trees: HashMap<u128, Result<Disk, String>> = HashMap::new();
            let mut judged: BTreeSet<(u128, usize)> = BTreeSet::new();
            for (at, pick) in picks {
                cutter.advance(at);
                let returned = returned(recording, window.from, at);
                let image = cutter.image(pick);
                let digest = image.digest();
                if !judged.insert((digest, returned)) {
                    continue;
                }
                let tree = match trees.get(&digest) {
                    Some(tree) => tree.clone(),
                    None => {
                        let tree = recover(stage, image, fs, &self.options.mount, &window.dir)?;
                        trees.insert(digest, tree.clone());
                        tree
                    }
                };
                self.judge(window, &effects, returned, pick, tree);
                (self.progress)(self.cuts.fetch_add(1, Ordering::Relaxed) + 1);
            }
            let different: BTreeSet<u128> = trees.values().flatten().map(Disk::digest).collect();
            self.tally().result.trees += different.len();
        }
        Ok(())
    }

    fn judge(
        &self,
        window: &Window<'_>,
        effects: &Effects,
        returned: usize,
        pick: Pick,
        tree: Result<Disk, String>,
    ) {
        let (answer, text) = match &tree {
            Ok(tree) => {
                let moment = Moment { returned };
                let answer = allowed(effects, &self.options.model, moment, tree);
                let text = match answer {
                    Answer::Forbidden(_) => allow::describe(tree),
                    _ => String::new(),
                };
                (answer, text)
            }
            Err(why) => (Answer::Forbidden(String::new()), why.clone()),
        };
        let mut tally = self.tally();
        tally.result.cuts += 1;
        match answer {
            Answer::Allowed(relaxed) => {
                for r in relaxed {
                    *tally.seen.entry(r).or_insert(0) += 1;
                }
            }
            Answer::Undecided => tally.result.undecided += 1,
            Answer::Forbidden(nearest) => {
                tally.result.forbidden += 1;
                let key = (window.sequence.text.clone(), text.clone());
                let known = tally.known.entry(key).or_insert(0);
                *known += 1;
                if *known == 1 && tally.result.violations.len() < VIOLATIONS_MAX {
                    tally.result.violations.push(Violation {
                        sequence: window.sequence.text.clone(),
                        returned: (returned, effects.steps()),
                        cut: pick.name(),
                        tree: text,
                        nearest,
                        times: 1,
                    });
                }
            }
        }
    }
}

/// Directories for sequences, all of it durable.
fn prepare(mounted: &Mounted, fs: Kind, count: usize) -> std::io::Result<std::fs::File> {
    let tree = base();
    for i in 0..count {
        crate::check::lay_out(&tree, &mounted.path().join(format!("s{i}")))?;
    }
    prepare_commit(mounted.path(), fs)?;
    let root = std::fs::File::open(mounted.path())?;
    rustix::fs::syncfs(&root)?;
    Ok(root)
}
