//! Mounting: from the words of a region to indexes, link counts and free space.
//!
//! # Steps of a mount for writing
//!
//! 1. It reads the superblock ([`crate::superblock`]).
//! 2. It looks at everything (`scan`). Nothing is stored yet.
//! 3. It hands the words that put right what a crash left to [`state::recover`], which stores them and
//!    fences once: renames are finished, names of inodes that were never born are cleared, pages that were prepared for a
//!    change that did not commit return to their state, pages past the end are freed, and so are pages that name a generation
//!    that was never born. Rename pointers stay: their tags make them harmless. Inodes without a name need no store.
//! 4. Only then is the free space built: everything that cannot be reached.
//! 5. It marks the volume as mounted.
//!
//! A cut in any step leaves a volume that the next mount recovers to the same tree.
//!
//! # Refusals
//!
//! Whatever a region says, a mount ends, and without a panic. Findings that are notes or minor ([`Problem`]) are no obstacle.
//! *Damage*, which no crash leaves, is: a mount for writing would build on a guess. A read-only mount leaves damaged objects
//! out, or takes them as a repair would, so that everything else can be copied; it stores nothing at all.

pub(crate) mod bitmap;
pub(crate) mod files;
pub(crate) mod look;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod scan;
pub(crate) mod slots;
pub(crate) mod tree;
pub(crate) mod workers;

use crate::error::Error;
use crate::fsck::finding::{Finding, Fix, Problem, Severity};
use crate::options::MountOptions;
use crate::state::{self, FreeSpace, Medium, Repair, Survey};
use crate::superblock::{self, Superblock};
use crate::table::Table;
use std::collections::BTreeMap;
use steadfast_pm::Region;
use workers::Workers;

/// A mounted volume, as the operations take it over.
pub struct Mount {
    /// The region.
    pub medium: Medium,
    /// Content of its superblock.
    pub superblock: Superblock,
    /// Its inodes.
    pub table: Table,
    /// Free space; `None` if it is mounted read-only.
    pub free: Option<FreeSpace>,
    /// Findings of the mount.
    pub report: MountReport,
}

/// Findings of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountReport {
    /// Nothing is stored.
    pub read_only: bool,
    /// The volume was unmounted before.
    pub clean: bool,
    /// Mounts for writing, this one included.
    pub mounts: u64,
    /// Free pages.
    pub free_pages: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Words that recovery stored, or, in a read-only mount, would have stored.
    pub recovered_words: u64,
    /// Number of findings of each kind.
    pub counts: BTreeMap<Problem, u64>,
    /// Damage: there is none unless the mount is read-only. At most 1,000 of it.
    pub damage: Vec<Finding>,
    /// The superblock or its copy is damaged: why.
    pub superblock_damage: [Option<String>; 2],
}

/// Mounts the volume in `region`. `progress` gets the parts done so far, and their number.
///
/// # Errors
/// There is no volume that this program can use, or it is damaged and not mounted read-only; [`Error::Memory`].
pub fn mount(
    region: Region,
    options: &MountOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Mount, Error> {
    if region.read_only() && !options.read_only {
        let text = "the region is open for reading only: mount it read-only";
        return Err(Error::Option(text.into()));
    }
    let found = superblock::load(&region)?;
    let medium = Medium::new(region, found.superblock.geometry)?;
    let mut workers = Workers::new(options.scan_threads, progress);
    let mut scan = scan::scan(&medium, medium.geometry(), &mut workers);
    // A page that failed reads as zeros: nothing may be concluded from that.
    Error::unless_failed(&medium, "reading the volume")?;
    let damage = scan.log.count(Severity::Damage);
    if damage > 0 && !options.read_only {
        return Err(Error::Damaged {
            count: damage,
            first: scan.log.first_damage().map(|first| Box::new(first.clone())),
        });
    }
    let mut report = MountReport {
        read_only: options.read_only,
        clean: found.hints.clean,
        mounts: found.hints.mounts,
        free_pages: scan.free_page_count(),
        free_inodes: scan.free_inode_count(),
        recovered_words: scan.log.recovery.len() as u64,
        counts: std::mem::take(&mut scan.log.counts),
        damage: std::mem::take(&mut scan.log.findings),
        superblock_damage: found.damage,
    };
    report
        .damage
        .retain(|finding| finding.severity() == Severity::Damage);
    let mut free = None;
    if options.read_only {
        scan.name_directories(|_, _| {});
    } else {
        let survey = Survey {
            pages: std::mem::take(&mut scan.free_pages),
            inodes: std::mem::take(&mut scan.free_inodes),
            next_tag: scan.next_tag,
        };
        let recovered = state::recover(&medium, &repairs(&scan.log.recovery), survey)?;
        let mounted = recovered.mounted();
        scan.name_directories(|directory, used| {
            directory.names.forget_corrections();
            for ((_, page), used) in directory.names.pages().iter().zip(used) {
                directory.slots.add_scanned(mounted, *page, !used);
            }
        });
        free = Some(FreeSpace::new(&medium, recovered));
        // A hint, under no checksum: it may hold anything.
        report.mounts = report.mounts.saturating_add(1);
        state::store_hints(&medium, false, report.mounts);
        Error::unless_failed(&medium, "recovering the volume")?;
    }
    Ok(Mount {
        medium,
        superblock: found.superblock,
        table: scan.table,
        free,
        report,
    })
}

/// Words as `state` takes them.
pub(crate) fn repairs(fixes: &[Fix]) -> Vec<Repair> {
    let repair = |(at, word): &Fix| Repair {
        at: *at,
        word: *word,
    };
    fixes.iter().map(repair).collect()
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("superblock", &self.superblock)
            .field("table", &self.table)
            .field("read_only", &self.free.is_none())
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
