//! Looks for a finding on a real file system: the recorded run is repeated over the recording disk, the power is cut,
//! and each tree is compared with that of the finding and judged by the checker.
//!
//! Each repetition makes the kernel write back some files, or commit, at other moments, as it does on a machine in
//! use.

use super::allow;
use super::cuts::{commit, picks, prepare_commit, quiet, recover, returned};
use super::disk::{Cutter, Recording};
use super::kinds::Kind;
use super::play::Player;
use super::stage::{Stage, unable};
use super::{RealError, kernel};
use crate::check::{Checker, Verdict};
use crate::effects::{Disk, Run, What};
use crate::judge::kin;
use crate::states::Chance;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use steadfast_model::data::FileData;

/// Number of cuts per repetition of the run.
const CUTS_EACH: usize = 25;
/// The directory of the run on the file system.
const DIR: &str = "run";
/// Maximum number of bytes of a run and its initial tree.
const BYTES_MAX: u64 = 4 << 30;

/// Subject, place and extent of a confirmation.
pub struct Options<'a> {
    /// The file system.
    pub fs: Kind,
    /// Its mount options.
    pub mount: String,
    /// Number of power cuts.
    pub cuts: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of threads.
    pub jobs: usize,
    /// The tree of the finding.
    pub tree: Option<Disk>,
    /// The checker that judges trees.
    pub checker: Option<&'a Checker>,
    /// The first line of the checker's output that belongs to the finding.
    pub line: Option<String>,
}

/// Result of a confirmation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Confirmation {
    /// The file system.
    pub fs: String,
    /// Its mount options.
    pub options: String,
    /// The kernel.
    pub kernel: String,
    /// Number of repetitions of the run.
    pub runs: usize,
    /// Number of power cuts with different images or moments.
    pub cuts: usize,
    /// Number of cuts that left the finding's tree.
    pub same_tree: usize,
    /// Number of cuts that left a tree with the finding's line of the checker.
    pub same_line: usize,
    /// Number of cuts that left any tree that the checker refuses.
    pub refused: usize,
    /// Number of cuts after which the file system did not mount or could not be read.
    pub unreadable: usize,
    /// Lines of the checker, with their counts.
    pub lines: BTreeMap<String, usize>,
    /// One of those trees.
    pub example: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Confirmation {
    /// Number of cuts that show the finding.
    #[must_use]
    pub fn shown(&self) -> usize {
        self.same_tree.max(self.same_line)
    }

    /// The verdict in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let on = match self.options.is_empty() {
            true => self.fs.clone(),
            false => format!("{} ({})", self.fs, self.options),
        };
        match (self.shown(), self.refused) {
            (0, 0) => format!("{on}: not seen in {} cuts", self.cuts),
            (0, n) => format!(
                "{on}: not seen in {} cuts; {n} of them are refused for another reason",
                self.cuts
            ),
            (n, _) => format!("{on}: confirmed: {n} of {} cuts", self.cuts),
        }
    }
}

struct Work<'a> {
    run: &'a Run,
    acks: Vec<String>,
    /// For each number of steps: the number of acknowledgements.
    acked: Vec<usize>,
    options: &'a Options<'a>,
    blank: FileData,
    next: AtomicUsize,
    stop: &'a AtomicBool,
    progress: &'a (dyn Fn(usize) + Sync),
    result: Mutex<Confirmation>,
    /// Verdicts by tree and acknowledgements: the first line if it is refused.
    known: Mutex<HashMap<(u128, usize), Option<String>>>,
}

/// Looks for a finding. `progress` is called with the number of cuts.
///
/// # Errors
/// If real file systems cannot be mounted here, or the file system refuses one of the calls.
pub fn confirm(
    run: &Run,
    options: &Options<'_>,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Confirmation, RealError> {
    if let Some(why) = unable(options.fs) {
        return Err(RealError::Unable(why));
    }
    let began = Instant::now();
    let room = bytes(run);
    if room > BYTES_MAX {
        return Err(RealError::Unable(format!(
            "the run writes {room} bytes: disks are kept in memory, {BYTES_MAX} bytes at most"
        )));
    }
    let (mut acks, mut acked) = (Vec::new(), vec![0]);
    for step in &run.steps {
        if let What::Ack { text } = &step.what {
            acks.push(text.clone());
        }
        acked.push(acks.len());
    }
    let work = Work {
        run,
        acks,
        acked,
        options,
        blank: options.fs.make(room)?,
        next: AtomicUsize::new(0),
        stop,
        progress,
        result: Mutex::default(),
        known: Mutex::default(),
    };
    let done: Vec<Result<(), RealError>> = std::thread::scope(|scope| {
        // Images of one Btrfs share one identity, and the kernel keeps one of them at a time.
        let jobs = match options.fs {
            Kind::Btrfs => 1,
            _ => options.jobs.max(1),
        };
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| work.work())).collect();
        let joined = threads.into_iter().map(|t| t.join());
        joined.map(|r| r.unwrap_or(Err(RealError::Panic))).collect()
    });
    for one in done {
        one?;
    }
    let mut result = work
        .result
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    result.fs = options.fs.name().to_owned();
    result.options.clone_from(&options.mount);
    result.kernel = kernel();
    result.seconds = began.elapsed().as_secs_f64();
    Ok(result)
}

/// Bytes that a run needs on the disk.
fn bytes(run: &Run) -> u64 {
    let mut all = 0u64;
    for seen in run.base.observe().values() {
        all = all.saturating_add(4096 + seen.data.pages() * 4096);
    }
    for step in &run.steps {
        all = all.saturating_add(match &step.what {
            What::Write { bytes, .. } => 4096 + bytes.len() as u64,
            What::Allocate { size, .. } => *size,
            _ => 256,
        });
    }
    all
}

/// Action of the kernel by itself before a step.
enum Event {
    WriteBack,
    Commit,
}

impl Work<'_> {
    fn work(&self) -> Result<(), RealError> {
        let mut stage = Stage::new()?;
        let repeats = self.options.cuts.div_ceil(CUTS_EACH);
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= repeats || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let seed = self.options.seed ^ (i as u64) << 24;
            let mut chance = Chance::new(seed);
            let (recording, to) = self.record(&mut stage, i, &mut chance)?;
            let share = CUTS_EACH.min(self.options.cuts - i * CUTS_EACH);
            self.cut(&mut stage, &recording, to, share, &mut chance)?;
        }
    }

    /// Events before steps; the last entry comes after all of them. The first repetition has none.
    fn events(&self, repetition: usize, chance: &mut Chance) -> Vec<Vec<Event>> {
        let steps = self.run.steps.len();
        let mut events: Vec<Vec<Event>> = (0..=steps).map(|_| Vec::new()).collect();
        if repetition == 0 {
            return events;
        }
        for _ in 0..1 + chance.below(4) {
            let at = match chance.below(2) {
                0 => steps,
                _ => chance.below(steps + 1),
            };
            events[at].push(match chance.below(2) {
                0 => Event::Commit,
                _ => Event::WriteBack,
            });
        }
        events
    }

    /// Carries the run out once.
    fn record(
        &self,
        stage: &mut Stage,
        repetition: usize,
        chance: &mut Chance,
    ) -> Result<(Recording, usize), RealError> {
        let fs = self.options.fs;
        let disk = stage.disk(self.blank.clone(), true);
        let mounted = stage.mount(&disk, fs, &self.options.mount)?;
        let root = mounted.path().to_owned();
        let prepare = || -> std::io::Result<(File, File)> {
            crate::check::lay_out(&self.run.base, &root.join(DIR))?;
            prepare_commit(&root, fs)?;
            let other = OpenOptions::new()
                .create(true)
                .append(true)
                .open(root.join("other"))?;
            let top = File::open(&root)?;
            rustix::fs::syncfs(&top)?;
            Ok((top, other))
        };
        let (top, mut other) =
            prepare().map_err(RealError::system(format!("preparing {}", fs.name())))?;
        disk.take();
        let mut player = Player::new(&root.join(DIR), self.run);
        let events = self.events(repetition, chance);
        disk.returned(0);
        for (i, before) in events.iter().enumerate() {
            for event in before {
                match event {
                    Event::WriteBack => {
                        let files = player.files();
                        if !files.is_empty() {
                            let ino = files[chance.below(files.len())];
                            // A directory or a pipe has nothing to write back.
                            let _ = player.write_back(ino);
                            quiet(&|| disk.position());
                        }
                    }
                    Event::Commit if fs == Kind::Btrfs => {
                        commit(&root, &format!("{repetition}.{}", disk.position()))?;
                    }
                    Event::Commit => {
                        let done = other.write_all(b"x").and_then(|()| other.sync_all());
                        done.map_err(RealError::system("another file's fsync"))?;
                    }
                }
            }
            let Some(step) = self.run.steps.get(i) else {
                break;
            };
            player
                .step(i, &step.what)
                .map_err(|source| RealError::Step {
                    number: step.number,
                    text: step.text.clone(),
                    fs: fs.name(),
                    source,
                })?;
            disk.returned(i + 1);
        }
        drop(player);
        rustix::fs::syncfs(&top).map_err(|e| RealError::system("syncfs")(e.into()))?;
        let to = disk.position();
        drop((top, other));
        let recording = disk.take();
        mounted.unmount()?;
        self.lock().runs += 1;
        Ok((recording, to))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Confirmation> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(
        &self,
        stage: &mut Stage,
        recording: &Recording,
        to: usize,
        share: usize,
        chance: &mut Chance,
    ) -> Result<(), RealError> {
        let (fs, mount) = (self.options.fs, &self.options.mount);
        let mut cutter = Cutter::new(recording, fs.atom());
        let mut trees: HashMap<u128, Result<Disk, String>> = HashMap::new();
        let mut judged: BTreeSet<(u128, usize)> = BTreeSet::new();
        for (at, pick) in picks(recording, (0, to), share, chance) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            cutter.advance(at);
            let acked = self.acked[returned(recording, 0, at).min(self.acked.len() - 1)];
            let image = cutter.image(pick);
            let digest = image.digest();
            if !judged.insert((digest, acked)) {
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(place) = trees.entry(digest) {
                place.insert(recover(stage, image, fs, mount, DIR)?);
            }
            let cuts = match &trees[&digest] {
                Ok(tree) => self.judge(tree, acked)?,
                Err(_) => {
                    let mut result = self.lock();
                    result.unreadable += 1;
                    result.cuts += 1;
                    result.cuts
                }
            };
            (self.progress)(cuts);
        }
        Ok(())
    }

    fn judge(&self, tree: &Disk, acked: usize) -> Result<usize, RealError> {
        let same = self
            .options
            .tree
            .as_ref()
            .is_some_and(|wanted| allow::same(wanted, tree));
        let refused = match self.options.checker {
            Some(checker) => self.refused(checker, tree, acked)?,
            None => None,
        };
        let mut result = self.lock();
        // The tree may lack its verdict.
        if self.options.checker.is_some_and(Checker::is_over) {
            return Ok(result.cuts);
        }
        result.cuts += 1;
        result.same_tree += usize::from(same);
        if let Some(line) = refused {
            result.refused += 1;
            // Names and hashes differ from run to run.
            let wanted = self.options.line.as_ref();
            result.same_line += usize::from(wanted.is_none_or(|l| kin(l) == kin(&line)));
            *result.lines.entry(line).or_insert(0) += 1;
        }
        if same && result.example.is_none() {
            result.example = Some(allow::describe(tree));
        }
        Ok(result.cuts)
    }

    fn refused(
        &self,
        checker: &Checker,
        tree: &Disk,
        acked: usize,
    ) -> Result<Option<String>, RealError> {
        let key = (tree.digest(), acked);
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known.clone());
        }
        let may = (acked + 1).min(self.acks.len());
        let verdict = checker
            .judge(tree, &self.acks[..acked], &self.acks[..may])
            .map_err(RealError::system("laying out a tree"))?;
        let line = match verdict {
            Verdict::Broken { line, .. } => Some(line),
            Verdict::Error(why) => return Err(RealError::Unable(why)),
            Verdict::Fine | Verdict::None => None,
            Verdict::Unfinished => return Ok(None),
        };
        lock().insert(key, line.clone());
        Ok(line)
    }
}
