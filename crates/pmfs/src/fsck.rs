//! Checks a volume that is not mounted, and repairs it if asked to.
//!
//! A check is the look that a mount takes ([`crate::mount`]): one place decides the findings, and the right state. A check
//! stores nothing. A repair stores the fixes of a mount, fences, then stores the repairs of damage, and looks again until
//! nothing is left. It loses nothing that can be reached: an invalid name is replaced, a directory page in a wrong place is
//! moved; a name is only removed if it leads nowhere or if the inode can be reached by another. A cut in the middle leaves a
//! volume that the next repair goes on with.
//!
//! Metadata has no checksums, so a wrong value that could be right is not found.

pub mod finding;
mod paths;

pub use finding::{Finding, Location, Problem, Severity};

use crate::error::Error;
use crate::layout::{Place, Pointer, SLOTS_PER_PAGE, Tag, slot};
use crate::mount::pages::DirPage;
use crate::mount::repairs;
use crate::mount::scan::{Scan, scan};
use crate::mount::workers::Workers;
use crate::state::{self, Medium, Survey};
use crate::superblock::{self, COPIES, Found, Hints, Superblock};
use crate::table::Table;
use finding::{Fix, Log};
use std::collections::BTreeMap;
use steadfast_pm::Region;
use steadfast_vfs::FileKind;

/// Looks that a repair takes before it gives up.
const ROUNDS_MAX: usize = 8;

/// Options of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsckOptions {
    /// Repair the findings. Without it nothing is stored.
    pub repair: bool,
    /// Threads that look; one for each processor if it is 0.
    pub threads: usize,
}

/// Result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsckReport {
    /// The volume.
    pub superblock: Superblock,
    /// Hints of the last mount.
    pub hints: Hints,
    /// Findings, at most 1,000.
    pub findings: Vec<Finding>,
    /// Number of findings of each kind, those that are not listed included.
    pub counts: BTreeMap<Problem, u64>,
    /// The kinds and numbers of problems that a repair has left. Empty if no repair was requested.
    pub left: BTreeMap<Problem, u64>,
    /// Words that a repair stored.
    pub stored_words: u64,
    /// Inodes that can be reached, the root included.
    pub inodes: u64,
    /// Of these, regular files.
    pub files: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Pages in use for files and directories.
    pub pages: u64,
    /// Free pages.
    pub free_pages: u64,
}

impl FsckReport {
    /// Findings of this severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> u64 {
        count(&self.counts, severity)
    }

    /// Whether nothing was wrong. Notes are not wrong: a crash leaves them.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.count(Severity::Damage) + self.count(Severity::Minor) == 0
    }

    /// Whether a repair has left damage.
    #[must_use]
    pub fn is_repaired(&self) -> bool {
        self.left.is_empty()
    }
}

fn count(counts: &BTreeMap<Problem, u64>, severity: Severity) -> u64 {
    let of = counts.iter();
    of.filter(|(problem, _)| problem.severity() == severity)
        .map(|(_, count)| count)
        .sum()
}

fn of_kind(table: &Table, kind: FileKind) -> u64 {
    let mut count = 0;
    table.for_each(|node| count += u64::from(node.kind == kind));
    count
}

/// Checks the volume in `region`, and gives the region back. `progress` gets the parts done so far, and their number; a
/// repair begins anew with each look.
///
/// # Errors
/// There is no volume that this program can use, or a repair is asked for of a region that is read-only; [`Error::Memory`].
pub fn fsck(
    region: Region,
    options: &FsckOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(FsckReport, Region), Error> {
    if region.read_only() && options.repair {
        let text = "a repair needs a region that can be written";
        return Err(Error::Option(text.into()));
    }
    let found = superblock::load(&region)?;
    let medium = Medium::new(region, found.superblock.geometry)?;
    let mut seen = look(&medium, options.threads, progress)?;
    let mut log = of_superblock(&found);
    log.append(std::mem::take(&mut seen.log));
    let used = seen.free_page_count();
    let mut report = FsckReport {
        superblock: found.superblock.clone(),
        hints: found.hints,
        findings: Vec::new(),
        counts: log.counts.clone(),
        left: BTreeMap::new(),
        stored_words: 0,
        inodes: seen.table.len(),
        files: of_kind(&seen.table, FileKind::Regular),
        directories: of_kind(&seen.table, FileKind::Directory),
        free_inodes: seen.free_inode_count(),
        pages: found.superblock.geometry.data_pages_total() - used,
        free_pages: used,
    };
    report.findings = std::mem::take(&mut log.findings);
    seen.name_directories(|_, _| {});
    paths::fill_in(&medium, &seen.table, &mut report.findings);
    if options.repair && !report.counts.is_empty() {
        let first = Round {
            recovery: log.recovery,
            repairs: log.repairs,
            renumber: report.counts.contains_key(&Problem::TagsExhausted),
        };
        repair(&medium, first, options.threads, progress, &mut report)?;
        let clean = report.left.is_empty();
        state::store_hints(&medium, clean, found.hints.mounts);
        Error::unless_failed(&medium, "repairing the volume")?;
        let region = medium.into_region();
        // The one that counts is stored last, unless it is the one that is damaged.
        let mut order = COPIES;
        if found.damage[0].is_none() {
            order.reverse();
        }
        for page in order {
            superblock::store(&region, page, &found.superblock);
        }
        return Ok((report, region));
    }
    Ok((report, medium.into_region()))
}

fn look(
    medium: &Medium,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Scan, Error> {
    let mut workers = Workers::new(threads, progress);
    let seen = scan(medium, medium.geometry(), &mut workers);
    // A page that failed reads as zeros: nothing may be concluded from that.
    Error::unless_failed(medium, "reading the volume")?;
    Ok(seen)
}

/// Findings about the superblock.
fn of_superblock(found: &Found) -> Log {
    let mut log = Log::default();
    let damage = found
        .damage
        .iter()
        .zip([Problem::SuperblockDamaged, Problem::SuperblockCopyDamaged]);
    for (why, problem) in damage {
        if let Some(why) = why {
            log.add(problem, Location::default(), format_args!("{why}"));
        }
    }
    if found.differ {
        log.add(
            Problem::SuperblocksDiffer,
            Location::default(),
            format_args!(""),
        );
    }
    if !found.hints.clean {
        let mounts = found.hints.mounts;
        log.add(
            Problem::NotUnmounted,
            Location::default(),
            format_args!("mount {mounts}"),
        );
    }
    log
}

/// Fixes that one look asks for.
struct Round {
    recovery: Vec<Fix>,
    repairs: Vec<Fix>,
    renumber: bool,
}

/// Stores and looks again, until nothing is found.
fn repair(
    medium: &Medium,
    mut round: Round,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
    report: &mut FsckReport,
) -> Result<(), Error> {
    for _ in 0..ROUNDS_MAX {
        if round.renumber && round.recovery.is_empty() && round.repairs.is_empty() {
            // Each slot has one line, and is taken as it is: no other repair is due.
            let seen = look(medium, threads, progress)?;
            let (pointers, tags) = renumbered(medium, &seen);
            store(medium, &pointers, report)?;
            store(medium, &tags, report)?;
        }
        store(medium, &round.recovery, report)?;
        store(medium, &round.repairs, report)?;
        let mut seen = look(medium, threads, progress)?;
        report.left = std::mem::take(&mut seen.log.counts);
        if report.left.is_empty() {
            return Ok(());
        }
        round = Round {
            recovery: seen.log.recovery,
            repairs: seen.log.repairs,
            renumber: report.left.contains_key(&Problem::TagsExhausted),
        };
    }
    Ok(())
}

/// Stores words and makes them durable, before anything that is stored later.
fn store(medium: &Medium, fixes: &[Fix], report: &mut FsckReport) -> Result<(), Error> {
    let _evidence = state::recover(medium, &repairs(fixes), Survey::default())?;
    report.stored_words += fixes.len() as u64;
    Ok(())
}

/// All pointers cleared; after that, all tags 0. No rename is unfinished, so no pointer has an effect; and a pointer that is
/// stored later carries a tag from 1 on.
fn renumbered(medium: &Medium, seen: &Scan) -> (Vec<Fix>, Vec<Fix>) {
    let (mut pointers, mut tags) = (Vec::new(), Vec::new());
    let reachable = |page: &&DirPage| seen.tree.names(page.number) > 0;
    for page in seen.dir_pages.iter().filter(reachable) {
        for place in (0..SLOTS_PER_PAGE).map(|index| Place::new(page.page, index)) {
            let word = |word| medium.load(place.at() + word);
            if word(slot::COMMIT) == 0 {
                continue;
            }
            if Pointer::from_words(word(slot::POINTER), word(slot::OTHER)).is_some() {
                pointers.push((place.at() + slot::POINTER, 0));
                pointers.push((place.at() + slot::OTHER, 0));
            }
            let tag = Tag::from_word(word(slot::TAG));
            tags.push((place.at() + slot::TAG, Tag { tag: 0, ..tag }.word()));
        }
    }
    (pointers, tags)
}
