//! Every crash state of `steadfast::atomic_replace` (DFSCQ §7: the experiment
//! "enumerating crash states" on `crash_safe_update`).
//!
//! The steps come from the library's own [`steadfast::protocol`], so the exploration runs the
//! same steps as programs do. They are carried out on `fs` over the simulated device, by
//! themselves and with a commit of the volume between any two of them. The power is cut at every
//! write; every subset and order of the unflushed writes is a disk, and each disk is recovered
//! and checked. The file must have its old content or the new one, and the new one after the
//! call has returned.
//!
//! `weakest` judges the same steps on the least that file systems promise. There, and partly
//! on our own, a [`Variant`] that leaves out or reorders a step must be detected.

mod weakest;

use crate::Contract;
use crate::record::{Mutation, Recording, Template, moment, mount_options};
use crate::scenario::{OVERWRITE_BYTES_FEW, SMALL_BYTES_FEW, Scenario};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use steadfast::protocol::{Steps, Update};
use steadfast_block::BLOCK_SIZE;
use steadfast_fs::Fs;
use steadfast_model::{Data, Op, Path, Snapshot, Step, Target, ordered};
use steadfast_sim::{CrashImage, Limits, SimDevice};
use steadfast_vfs::{FileKind, RenameMode, SetAttr, SystemClock, Time};

/// The file that is replaced.
const FILE: &str = "/file";
/// The temporary file, named as the library names it.
const TEMPORARY: &str = "/.file.1-0.steadfast";
/// Bytes of the old content.
const OLD_BYTES: u64 = 5000;
/// Most bytes of new content: `weakest` takes every subset of its blocks.
pub const BYTES_MAX: u64 = 8 * BLOCK_SIZE as u64;
/// Most violations that are reported of one exploration.
const VIOLATIONS_MAX: usize = 3;
/// Independent writes up to which a cut is listed, and not sampled.
const LISTED_WRITES: usize = 14;
/// Images of a cut with more of them.
const SAMPLED: usize = 2000;

/// Variant of the replacement: correct, or with a bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// As the library does it.
    Whole,
    /// Without making the temporary file durable before the renaming.
    NoFileSync,
    /// Without making the directory durable at the end.
    NoDirectorySync,
    /// The temporary file is renamed before it is written.
    RenameFirst,
    /// The file is truncated and written in place.
    InPlace,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 5] = [
        Variant::Whole,
        Variant::NoFileSync,
        Variant::NoDirectorySync,
        Variant::RenameFirst,
        Variant::InPlace,
    ];

    /// Description in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Variant::Whole => "temporary file, fsync, rename, fsync of the directory",
            Variant::NoFileSync => "no fsync before the rename",
            Variant::NoDirectorySync => "no fsync of the directory",
            Variant::RenameFirst => "renamed before it is written",
            Variant::InPlace => "truncated and written in place",
        }
    }
}

/// Options of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The contract of the volume.
    pub contract: Contract,
    /// Bytes of new content, up to [`BYTES_MAX`].
    pub bytes: u64,
    /// The file is there before, with other content.
    pub exists: bool,
    /// Besides the run by itself, others with commits of the volume between the steps.
    pub commits: bool,
    /// Whether sectors of one block may have different fates.
    pub tears: bool,
    /// Variant of the replacement.
    pub variant: Variant,
    /// A bug planted in the file system.
    pub mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            contract: Contract::default(),
            bytes: 3 * BLOCK_SIZE as u64,
            exists: false,
            commits: true,
            tears: false,
            variant: Variant::Whole,
            mutation: None,
        }
    }
}

/// A tree that recovery came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeFound {
    /// Content, in words.
    pub text: String,
    /// Different disks that recovery made it from.
    pub disks: u64,
}

/// Result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different disks that a crash may leave; each was recovered.
    pub disks: u64,
    /// Whether those are all of them, and none was left to chance.
    pub exhaustive: bool,
    /// Different trees that recovery made of them.
    pub trees: Vec<TreeFound>,
    /// Runs: one by itself, the others with commits between the steps.
    pub runs: u64,
    /// Disks after which the file has neither content, or not the new one though the call had
    /// returned. [`Report::examples`] has a few of them.
    pub violations: u64,
    /// Some violations, in words.
    pub examples: Vec<String>,
    /// Time it took.
    pub elapsed: Duration,
}

/// Old and new content.
struct Contents {
    old: Option<Vec<u8>>,
    new: Vec<u8>,
}

impl Contents {
    fn of(options: &Options) -> Contents {
        let pattern = |seed, len| Data::Pattern { seed, len }.bytes();
        Contents {
            old: options.exists.then(|| pattern(1, OLD_BYTES)),
            new: pattern(2, options.bytes),
        }
    }

    /// Fault of the file, if any.
    fn judge(&self, found: Option<&[u8]>, returned: bool) -> Result<(), String> {
        if found == Some(&self.new) {
            return Ok(());
        }
        let text = self.describe(found);
        match (found == self.old.as_deref(), returned) {
            (true, false) => Ok(()),
            (true, true) => Err(format!("the call had returned, but the file is {text}")),
            (false, _) => Err(format!("the file is {text}: neither old nor new")),
        }
    }

    fn describe(&self, found: Option<&[u8]>) -> String {
        match found {
            None => "absent".to_owned(),
            Some(found) if found == self.new => "new".to_owned(),
            Some(found) if Some(found) == self.old.as_deref() => "old".to_owned(),
            Some([]) => "empty".to_owned(),
            Some(found) => format!("{} bytes of neither content", found.len()),
        }
    }
}

/// Notes each step as operations of the model.
struct Noted<'a> {
    variant: Variant,
    exists: bool,
    offset: u64,
    ops: &'a mut Vec<Op>,
}

impl Noted<'_> {
    fn target(&self) -> Target {
        match self.variant {
            Variant::InPlace | Variant::RenameFirst => Target::from(FILE),
            _ => Target::from(TEMPORARY),
        }
    }

    fn make(&mut self, path: &str) {
        self.ops.push(Op::Mknod {
            path: Path::from(path),
            kind: FileKind::Regular,
            perm: 0o600,
            rdev: 0,
        });
    }

    fn move_over(&mut self) {
        self.ops.push(Op::Rename {
            from: Path::from(TEMPORARY),
            to: Path::from(FILE),
            mode: RenameMode::Replace,
        });
    }

    fn sync(&mut self, file: Target) {
        self.ops.push(Op::Fsync { file });
    }
}

impl Steps for Noted<'_> {
    type Error = Infallible;

    fn create(&mut self) -> Result<(), Self::Error> {
        match (self.variant, self.exists) {
            (Variant::InPlace, true) => self.ops.push(Op::SetAttr {
                file: Target::from(FILE),
                set: SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                },
            }),
            (Variant::InPlace, false) => self.make(FILE),
            (Variant::RenameFirst, _) => {
                self.make(TEMPORARY);
                self.move_over();
            }
            _ => self.make(TEMPORARY),
        }
        Ok(())
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Self::Error> {
        self.ops.push(Op::Write {
            file: self.target(),
            offset: self.offset,
            data: Data::Bytes(data.to_vec()),
        });
        self.offset += data.len() as u64;
        Ok(())
    }

    fn sync_file(&mut self) -> Result<(), Self::Error> {
        let file = self.target();
        if self.exists && self.variant != Variant::InPlace {
            // The mode of the file that is replaced.
            self.ops.push(Op::SetAttr {
                file: file.clone(),
                set: SetAttr {
                    perm: Some(0o644),
                    ..SetAttr::default()
                },
            });
        }
        if self.variant != Variant::NoFileSync {
            self.sync(file);
        }
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Self::Error> {
        if !matches!(self.variant, Variant::InPlace | Variant::RenameFirst) {
            self.move_over();
        }
        Ok(())
    }

    fn sync_directory(&mut self) -> Result<(), Self::Error> {
        if self.variant != Variant::NoDirectorySync {
            self.sync(Target::from("/"));
        }
        Ok(())
    }

    fn remove(&mut self) {}
}

/// The operations by which the protocol, or a variant of it, replaces the file.
fn operations(options: &Options, contents: &Contents) -> Vec<Op> {
    let mut ops = Vec::new();
    let steps = Noted {
        variant: options.variant,
        exists: options.exists,
        offset: 0,
        ops: &mut ops,
    };
    let done = Update::begin(steps).and_then(|mut update| {
        for block in contents.new.chunks(BLOCK_SIZE) {
            update.write(block)?;
        }
        update.commit()
    });
    match done {
        Ok(()) => ops,
        Err(never) => match never {},
    }
}

/// Durable content before the replacement.
fn setup(contents: &Contents) -> Vec<Op> {
    let Some(old) = &contents.old else {
        return Vec::new();
    };
    let make = Op::Mknod {
        path: Path::from(FILE),
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let write = Op::Write {
        file: Target::from(FILE),
        offset: 0,
        data: Data::Bytes(old.clone()),
    };
    vec![make, write]
}

/// The run by itself, one with a commit of everything at each place, and one with all of them.
fn scenarios(options: &Options, contents: &Contents) -> Vec<Scenario> {
    let ops = operations(options, contents);
    let mut places = vec![Vec::new()];
    if options.commits {
        places.extend((1..ops.len()).map(|place| vec![place]));
        places.push((1..ops.len()).collect());
    }
    let scenario = |places: Vec<usize>| {
        let mut steps = Vec::new();
        for (i, op) in ops.iter().enumerate() {
            if places.contains(&i) {
                steps.push(Op::Sync);
            }
            steps.push(op.clone());
        }
        let at = |i: usize| Time {
            secs: 2000 + i as i64,
            nanos: 0,
        };
        let steps = steps.into_iter().enumerate();
        Scenario {
            name: format!("{}, commits before {places:?}", options.variant.text()),
            setup: setup(contents),
            steps: steps.map(|(i, op)| Step::new(0, op).at(at(i))).collect(),
            small_bytes: SMALL_BYTES_FEW,
            overwrite_bytes: OVERWRITE_BYTES_FEW,
            trim_every: None,
            side_by_side: false,
        }
    };
    places.into_iter().map(scenario).collect()
}

/// Explores all crash states of a replacement.
///
/// # Errors
/// If the file system and the model differ, or a disk cannot be recovered.
pub fn explore(options: &Options) -> Result<Report, String> {
    if options.bytes > BYTES_MAX {
        return Err(format!("{} bytes: {BYTES_MAX} are the most", options.bytes));
    }
    let began = Instant::now();
    let template = Template::new(options.contract)?;
    let contents = Contents::of(options);
    let mut exploration = Exploration {
        contents: &contents,
        tears: options.tears,
        seen: HashMap::new(),
        judged: HashSet::new(),
        trees: Vec::new(),
        report: Report {
            exhaustive: true,
            ..Report::default()
        },
    };
    for scenario in scenarios(options, &contents) {
        let run = template.run(&scenario, options.mutation)?;
        exploration.report.runs += 1;
        exploration
            .cut_everywhere(&run, scenario.steps.len())
            .map_err(|what| format!("{}: {what}", scenario.name))?;
    }
    let mut report = exploration.report;
    report.disks = exploration.seen.len() as u64;
    report.trees = exploration
        .trees
        .into_iter()
        .map(|(_, tree)| tree)
        .collect();
    report.elapsed = began.elapsed();
    Ok(report)
}

/// Judges the steps of a replacement on the weakest file system: the least that POSIX promises.
///
/// # Errors
/// When there are too many bytes.
pub fn explore_weakest(options: &Options) -> Result<Report, String> {
    if options.bytes > BYTES_MAX {
        return Err(format!("{} bytes: {BYTES_MAX} are the most", options.bytes));
    }
    let began = Instant::now();
    let contents = Contents::of(options);
    let mut report = weakest::explore(&operations(options, &contents), &contents);
    report.elapsed = began.elapsed();
    Ok(report)
}

struct Exploration<'a> {
    contents: &'a Contents,
    tears: bool,
    /// The tree, by its number, that each disk came to.
    seen: HashMap<u128, usize>,
    /// Disks and moments that were judged.
    judged: HashSet<(u128, bool)>,
    /// Trees by the summary of their content.
    trees: Vec<(u128, TreeFound)>,
    report: Report,
}

impl Exploration<'_> {
    /// Cuts from the first step's call to the last step's answer.
    fn cut_everywhere(&mut self, run: &Recording, steps: usize) -> Result<(), String> {
        let limits = Limits {
            exhaustive_writes: LISTED_WRITES,
            sampled: SAMPLED,
            tears: self.tears,
            seed: 1,
        };
        let mut explorer = run.sim.explorer();
        for position in 0..=explorer.len() {
            let cut = explorer.cut(position);
            let Some(mark) = cut.marks().last().copied() else {
                continue;
            };
            let moment = moment(Some(mark));
            let images = cut.images(&limits);
            self.report.exhaustive &= images.is_exhaustive();
            for image in images {
                let name = format!("cut at event {position}: {image}");
                self.image(run, image, moment, moment == ordered::Cut::after(steps))
                    .map_err(|what| format!("{name}: {what}"))?;
            }
            if moment == ordered::Cut::after(steps) {
                break;
            }
        }
        Ok(())
    }

    fn image(
        &mut self,
        run: &Recording,
        image: CrashImage,
        moment: ordered::Cut,
        returned: bool,
    ) -> Result<(), String> {
        let fingerprint = image.fingerprint();
        if !self.judged.insert((fingerprint, returned)) {
            return Ok(());
        }
        let name = format!("{image}");
        let sim = Arc::new(SimDevice::from_image(image));
        let (fs, _) = Fs::mount(sim, &mount_options(Arc::new(SystemClock), None))
            .map_err(|e| format!("mount: {e}"))?;
        let found = Snapshot::of_fs(&*fs).map_err(|e| format!("reading the tree: {e}"))?;
        let digest = found.digest();
        if !self.seen.contains_key(&fingerprint) {
            let number = self.tree(digest.content, &found);
            self.trees[number].1.disks += 1;
            self.seen.insert(fingerprint, number);
        }
        let judged = self
            .contents
            .judge(content(&found, FILE).as_deref(), returned);
        let promised = run.history.check(&found, moment);
        if let Err(what) = judged {
            self.report.violations += 1;
            let whose = match promised {
                Ok(()) => "the contract allows it",
                Err(_) => "against the contract",
            };
            if self.report.examples.len() < VIOLATIONS_MAX {
                self.report
                    .examples
                    .push(format!("{name}: {what} ({whose})"));
            }
            return Ok(());
        }
        promised
    }

    /// The number of a tree, which may be a new one.
    fn tree(&mut self, content: u128, found: &Snapshot) -> usize {
        let known = self.trees.iter().position(|(known, _)| *known == content);
        known.unwrap_or_else(|| {
            let mut text = tree_text(self.contents, |path| self::content(found, path));
            if self.trees.iter().any(|(_, tree)| tree.text == text) {
                text.push_str(", other attributes");
            }
            self.trees.push((content, TreeFound { text, disks: 0 }));
            self.trees.len() - 1
        })
    }
}

/// Content of a tree, in words.
fn tree_text(contents: &Contents, read: impl Fn(&str) -> Option<Vec<u8>>) -> String {
    let file = contents.describe(read(FILE).as_deref());
    match read(TEMPORARY) {
        None => format!("file {file}, no temporary file"),
        Some(temporary) => {
            let whole = contents.describe(Some(&temporary));
            let held = contents.new.starts_with(&temporary) && whole != "empty" && whole != "new";
            let temporary = match held {
                true => format!("holds the first {} bytes", temporary.len()),
                false => format!("is {whole}"),
            };
            format!("file {file}, temporary file {temporary}")
        }
    }
}

fn content(found: &Snapshot, path: &str) -> Option<Vec<u8>> {
    let entry = found.entries.get(path.as_bytes())?;
    let mut bytes = vec![0; entry.size as usize];
    let len = entry.data.read(0, &mut bytes);
    bytes.truncate(len);
    Some(bytes)
}

#[cfg(test)]
mod tests;
