//! The offline checker. It reads the on-disk structures by itself, sharing only `layout`
//! and the superblock's decoding with the mounted code, so that a mistake there does not
//! hide itself here.
//!
//! A check writes nothing: the log is applied in memory. A *repair* first recovers the
//! volume as a mount does, closes the journal, and then works on the home blocks of the
//! quiet volume: one pass finds, plans and writes ([`plan`] says in which order), and the
//! next one must find nothing. Of a damaged journal, the readable records are applied; then it is
//! replaced by an empty one before anything else is touched, so that nothing old is ever
//! replayed over a repair.
//!
//! Cost: a pass reads every metadata block about twice, in the order of their addresses as far as
//! that is known, hundreds at a time; no file data except the targets of long symbolic links.
//! Memory: see [`check`].
//!
//! | module | job |
//! |---|---|
//! | `finding` | what can be found, how bad it is, what a repair does |
//! | `source` | reading blocks that may be damaged |
//! | `check` | the state of a pass and the order of its steps |
//! | `table` | what is known of every inode slot |
//! | `inodes`, `tree`, `files`, `dirs`, `space` | the steps |
//! | `plan` | what to write, and in which order |

mod bits;
mod check;
mod dirs;
mod files;
mod finding;
mod inodes;
mod plan;
mod source;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod xattrs;

pub use finding::{Finding, Place, Problem, Severity};
#[cfg(test)]
pub(crate) use xattrs::{block_fault, inline_fault};

use crate::error::Error;
use crate::layout::{MOUNTED_AT, Superblock};
use crate::superblock::{Refusal, Volume, begin, copy_places, decode};
use check::Check;
use finding::Log;
use source::Source;
use std::mem::offset_of;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{Error as JournalError, HeaderState, Journal, Recovery, seal, seal_holds};
use steadfast_vfs::{Clock, SystemClock};

/// Repairs that one call makes before it gives up on a volume that stays damaged.
const PASSES_MAX: usize = 8;
/// Blocks that the journal may cache beside those that its log holds.
const CACHE_BLOCKS: usize = 1024;

/// Progress of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Part of the volume that is being checked.
    pub step: &'static str,
    /// Units of it done.
    pub done: u64,
    /// Units of it in all, as far as known.
    pub total: u64,
}

/// Hears how far a check is.
pub type ProgressSink = Arc<dyn Fn(Progress) + Send + Sync>;

/// Options of a check.
#[derive(Clone)]
pub struct FsckOptions {
    /// Repair the findings; else nothing is written.
    pub repair: bool,
    /// Receives the progress of the check.
    pub progress: Option<ProgressSink>,
    /// Findings kept in the report; the others are counted.
    pub findings_max: usize,
}

impl Default for FsckOptions {
    fn default() -> FsckOptions {
        FsckOptions {
            repair: false,
            progress: None,
            findings_max: 10_000,
        }
    }
}

/// Outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing is wrong.
    Clean,
    /// Something was wrong and has been put right.
    Repaired,
    /// Something is wrong.
    DamageLeft,
}

/// Usage of the volume, as the check counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Blocks for files and metadata.
    pub blocks: u64,
    /// Blocks in use.
    pub used: u64,
    /// Regular files.
    pub files: u64,
    /// Directories, the root and the orphan directory included.
    pub directories: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct FsckReport {
    /// Findings before any repair.
    pub findings: Vec<Finding>,
    /// Findings that were left out, because there were too many.
    pub left_out: u64,
    /// Findings that only showed after the first repairs, and were repaired too.
    pub further: Vec<Finding>,
    /// Findings that are left after the repair (without a repair: empty).
    pub left: Vec<Finding>,
    /// Whether repairs were asked for.
    pub repair: bool,
    /// Report of the journal's recovery, if it could be recovered.
    pub recovery: Option<Recovery>,
    /// Usage of the volume.
    pub usage: Usage,
    /// Passes made.
    pub passes: usize,
}

impl FsckReport {
    /// Outcome of the check. Notes do not count.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let wrong = |findings: &[Finding]| findings.iter().any(|f| f.severity() > Severity::Note);
        if !wrong(&self.findings) && self.left_out == 0 {
            Outcome::Clean
        } else if self.repair && !wrong(&self.left) {
            Outcome::Repaired
        } else {
            Outcome::DamageLeft
        }
    }

    /// Whether a problem of this kind was found.
    #[must_use]
    pub fn has(&self, problem: Problem) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.problem == problem)
    }
}

/// Checks the volume on `device`, and repairs it if asked to. The device must not be in
/// use by a mount. A repair can be cut anywhere and started again.
///
/// # Errors
/// There is no volume ([`Error::NotAVolume`]), it is cut short or of a newer format, or the
/// device fails in a way that stops the check. Damage is no error: it is reported.
pub fn fsck(device: Arc<dyn BlockDevice>, options: &FsckOptions) -> Result<FsckReport, Error> {
    begin(&*device)?;
    // Before the log is applied: enough to find the journal.
    let found = Superblocks::load(&*device, None, &mut Log::new(0))?;
    if options.repair {
        if found.read_only {
            let what =
                "features that forbid writing to this version (a check without repair is possible)";
            return Err(Error::Unsupported { what: what.into() });
        }
        if device.geometry().read_only {
            return Err(Error::Option(
                "a repair needs a device that can be written".into(),
            ));
        }
    }
    let mut log = Log::new(options.findings_max);
    let (mut source, recovery) = open_journal(&device, &found.volume, options.repair, &mut log)?;
    let mut found = Superblocks::load(&*device, Some(&mut source), &mut log)?;
    let volume = found.volume.clone();
    let mut report = FsckReport {
        repair: options.repair,
        recovery,
        ..FsckReport::default()
    };
    let silent = |_: Progress| {};
    let progress: &dyn Fn(Progress) = match &options.progress {
        Some(sink) => &**sink,
        None => &silent,
    };
    let now = SystemClock.now();
    let mut check = Check::new(volume.clone(), source, log, progress, now);
    loop {
        report.passes += 1;
        check.run();
        let clean = check.log.is_clean();
        let again = options.repair && !clean && report.passes < PASSES_MAX;
        report.usage = check.usage;
        found.name_features(check.features, check.features_ro);
        let writes = again.then(|| check.plan());
        let (findings, left_out) = check.log.finish();
        let idle = writes.as_ref().is_none_or(|writes| writes.is_empty());
        match report.passes {
            1 => (report.findings, report.left_out) = (findings, left_out),
            // A pass that writes nothing is the last one.
            _ if idle => report.left = findings,
            _ => report.further.extend(findings),
        }
        let Some(writes) = writes else { break };
        found.restore(&*device)?;
        if idle && report.passes > 1 {
            break;
        }
        writes.apply(&*device, &volume.uuid)?;
        let mut log = Log::new(options.findings_max);
        Superblocks::load(&*device, None, &mut log)?;
        let source = Source::home(device.clone(), volume.uuid);
        check = Check::new(found.volume.clone(), source, log, progress, now);
    }
    Ok(report)
}

/// Opens the journal: for a check in memory, for a repair for good. Returns the source of reads.
fn open_journal(
    device: &Arc<dyn BlockDevice>,
    volume: &Volume,
    repair: bool,
    log: &mut Log,
) -> Result<(Source, Option<Recovery>), Error> {
    let config = |read_only| {
        volume.journal().with(|config| {
            config.read_only = read_only;
            config.cache_blocks_max = CACHE_BLOCKS;
        })
    };
    let home = || Source::home(device.clone(), volume.uuid);
    let Some(region) = volume.region() else {
        // The device has the state of the last batch.
        let mut block = [0; BLOCK_SIZE];
        let read = device.read(BlockNo(0), &mut block);
        if read.is_ok() && seal_holds(&volume.uuid, BlockNo(0), &block) && block[MOUNTED_AT] != 0 {
            log.add(
                Problem::NotUnmounted,
                Place::default(),
                "the volume was not unmounted: it has the state of its last commit",
            );
        }
        return Ok((home(), Some(Recovery::without_log())));
    };
    let format = || {
        Journal::format(&**device, &region, &volume.uuid)
            .map_err(Error::journal("making an empty journal"))
    };
    let states = Journal::tail_headers(&**device, &region, &volume.uuid);
    let (journal, recovery, salvage) = match Journal::salvage(device.clone(), config(true)) {
        Ok(opened) => opened,
        Err(
            error @ (JournalError::Corrupt { .. }
            | JournalError::NotFormatted
            | JournalError::Device(_)),
        ) => {
            log.add(
                Problem::JournalDamaged,
                Place::block(volume.log_start),
                format!("the journal cannot be recovered: {error}"),
            );
            if repair {
                format()?;
            }
            return Ok((home(), None));
        }
        Err(error) => return Err(Error::journal("opening the journal")(error)),
    };
    let invalid = |state: &HeaderState| *state == HeaderState::Invalid;
    let slot = states
        .ok()
        .and_then(|states| states.iter().position(invalid));
    if let Some(slot) = slot {
        log.add(
            Problem::JournalHeader,
            Place::block(region.headers[slot].0),
            "one of the journal's two tail headers is invalid",
        );
    }
    for loss in &salvage.losses {
        log.add(
            Problem::JournalDamaged,
            Place::block(volume.log_start),
            loss,
        );
    }
    if recovery.records > 0 {
        log.add(
            Problem::LogPending,
            Place::default(),
            format!(
                "the volume was not unmounted: {} log records change {} blocks",
                recovery.records, recovery.home_blocks
            ),
        );
    }
    if !repair {
        let source = if recovery.home_blocks > 0 {
            Source::replayed(journal, volume.uuid, &salvage.rotten)
        } else {
            home()
        };
        return Ok((source, Some(recovery)));
    }
    drop(journal);
    let (journal, recovery, _) = Journal::salvage(device.clone(), config(false))
        .map_err(Error::journal("recovering the volume"))?;
    journal
        .close()
        .map_err(Error::journal("closing the recovered journal"))?;
    if slot.is_some() || !salvage.losses.is_empty() {
        // Nothing of the old log may ever be taken for a part of a new one.
        format()?;
    }
    Ok((home(), Some(recovery)))
}

/// Bytes of a superblock that mean something.
const BYTES: usize = size_of::<Superblock>();

/// Its words of features.
const FEATURES: std::ops::Range<usize> =
    offset_of!(Superblock, features_incompat)..offset_of!(Superblock, uuid);

/// Whether a copy has the same content as the first superblock. Features come with their first use, to the copy
/// at the next mount: until then it may lack some.
fn agrees(copy: &Block, first: &Block) -> bool {
    let lacks = (copy[FEATURES].iter().zip(&first[FEATURES])).all(|(a, b)| a & !b == 0);
    let before = 0..FEATURES.start;
    let after = FEATURES.end..BYTES;
    lacks && copy[before.clone()] == first[before] && copy[after.clone()] == first[after]
}

/// The superblock that counts, and which of the two have to be written.
struct Superblocks {
    volume: Volume,
    read_only: bool,
    good: Block,
    stale: Vec<BlockNo>,
}

impl Superblocks {
    /// Loads them from their homes, or with the log applied if `source` shows that.
    fn load(
        device: &dyn BlockDevice,
        mut source: Option<&mut Source>,
        log: &mut Log,
    ) -> Result<Superblocks, Error> {
        let blocks = device.geometry().blocks;
        let mut read = |at: BlockNo| -> Result<(Block, Volume, bool), Refusal> {
            let replayed = source.as_mut().and_then(|source| source.replayed_block(at));
            let block = match replayed {
                Some(block) => block,
                None => {
                    let mut block = [0; BLOCK_SIZE];
                    device
                        .read(at, &mut block)
                        .map_err(|e| Refusal::NotOne(e.to_string()))?;
                    block
                }
            };
            decode(&block, at, blocks).map(|(volume, read_only)| (block, volume, read_only))
        };
        let first = match read(BlockNo(0)) {
            Ok(first) => first,
            Err(Refusal::Unusable(
                error @ (Error::Unsupported { .. } | Error::Truncated { .. }),
            )) => {
                return Err(error);
            }
            Err(refusal) => {
                let (why, error) = match refusal {
                    Refusal::NotOne(why) => (why, Error::NotAVolume),
                    Refusal::Unusable(error) => (error.to_string(), error),
                };
                let mut copy = None;
                for at in copy_places(blocks) {
                    match read(at) {
                        Ok(found) if found.1.blocks == at.0 + 1 => copy = copy.or(Some(found)),
                        Err(Refusal::Unusable(error @ Error::Unsupported { .. })) => {
                            return Err(error);
                        }
                        _ => {}
                    }
                }
                let Some((block, volume, read_only)) = copy else {
                    return Err(error);
                };
                log.add(
                    Problem::SuperblockDamaged,
                    Place::block(0),
                    format!("the superblock cannot be used: {why}"),
                );
                return Ok(Superblocks {
                    volume,
                    read_only,
                    good: block,
                    stale: vec![BlockNo(0)],
                });
            }
        };
        let (good, volume, read_only) = first;
        let at = BlockNo(volume.blocks - 1);
        let mut stale = vec![at];
        match read(at) {
            Ok((copy, ..)) if agrees(&copy, &good) => stale.clear(),
            Ok(_) => log.add(
                Problem::SuperblocksDiffer,
                Place::block(at.0),
                "the copy of the superblock says something else than the superblock",
            ),
            Err(refusal) => {
                let why = match refusal {
                    Refusal::NotOne(why) => why,
                    Refusal::Unusable(error) => error.to_string(),
                };
                log.add(
                    Problem::SuperblockCopyDamaged,
                    Place::block(at.0),
                    format!("the copy of the superblock cannot be used: {why}"),
                );
            }
        }
        Ok(Superblocks {
            volume,
            read_only,
            good,
            stale,
        })
    }

    /// Adds these features to the superblock.
    fn name_features(&mut self, incompat: u32, read_only: u32) {
        self.volume.features_incompat |= incompat;
        self.volume.features_ro |= read_only;
        let words = [
            (
                offset_of!(Superblock, features_incompat),
                self.volume.features_incompat,
            ),
            (offset_of!(Superblock, features_ro), self.volume.features_ro),
        ];
        for (at, word) in words {
            self.good[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Writes the superblock where it is wrong, also after a recovery that
    /// replayed something else there.
    fn restore(&self, device: &dyn BlockDevice) -> Result<(), Error> {
        for at in [BlockNo(0), BlockNo(self.volume.blocks - 1)] {
            let mut block = [0; BLOCK_SIZE];
            let read = device.read(at, &mut block);
            if read.is_ok() && block[..BYTES] == self.good[..BYTES] && !self.stale.contains(&at) {
                continue;
            }
            block.fill(0);
            block[..BYTES].copy_from_slice(&self.good[..BYTES]);
            seal(&self.volume.uuid, at, &mut block);
            device
                .write(at, &[&block])
                .map_err(Error::device("writing the superblock"))?;
            device
                .flush()
                .map_err(Error::device("flushing the superblock"))?;
        }
        Ok(())
    }
}
