//! Findings of a check: one [`Problem`] per kind, each with its severity, its meaning and its repair. A [`Finding`] has
//! its place. A mount for writing finishes the work of notes, passes over minor findings, and refuses damage; a read-only
//! mount leaves damaged objects out.

use crate::layout::{InodeRef, Page, Place};
use std::collections::BTreeMap;
use std::fmt;

pub use steadfast_vfs::Severity;

macro_rules! problems {
    ($($name:ident, $severity:ident, $what:literal, $consequence:literal, $repair:literal;)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        #[non_exhaustive]
        pub enum Problem { $(#[doc = $what] $name,)* }

        impl Problem {
            /// Every kind, in order.
            pub const ALL: &'static [Problem] = &[$(Problem::$name,)*];

            /// Severity of the problem.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Problem::$name => Severity::$severity,)* }
            }

            /// Description of the problem, in a few words.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Problem::$name => $what,)* }
            }

            /// Consequence of the problem, in a few words.
            #[must_use]
            pub fn consequence(self) -> &'static str {
                match self { $(Problem::$name => $consequence,)* }
            }

            /// Effect of a repair; completes "a repair …".
            #[must_use]
            pub fn repair(self) -> &'static str {
                match self { $(Problem::$name => $repair,)* }
            }

            /// A stable name for scripts.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Problem::$name => stringify!($name),)* }
            }
        }
    };
}

problems! {
    SuperblockDamaged, Minor, "the superblock is damaged",
        "its copy serves", "stores it anew from its copy";
    SuperblockCopyDamaged, Minor, "the copy of the superblock is damaged",
        "the volume is lost if the superblock is damaged, too", "stores it anew";
    SuperblocksDiffer, Minor, "superblock and copy differ: a growth was cut",
        "the superblock counts", "stores the copy anew from the superblock";
    NotUnmounted, Note, "the volume was not unmounted, or is mounted now",
        "the next mount recovers it", "marks it as unmounted";
    RenameUnfinished, Note, "a rename was cut",
        "the old name counts no more", "finishes it";
    TagOutlived, Note, "a rename was cut, and the old slot names another inode under the tag that the pointer has",
        "the pointer could have an effect later", "gives the old slot a new tag";
    NameOfUnborn, Note, "a name was made, and its inode was not",
        "the name does not count", "removes the name";
    LifeUncommitted, Note, "a page was prepared for a change that did not commit",
        "the state before the change counts", "restores that state";
    PageOfUnborn, Note, "a page was prepared for an inode that was never born",
        "the page is free", "clears its descriptor";
    PageOfRemoved, Note, "a removed directory has a page, because its removal was cut",
        "the page is free; its next content could be read as names", "clears its descriptor";
    PagePastEnd, Note, "a written page lies past the end of its file",
        "the page is free", "clears its descriptor";
    OwnerImpossible, Minor, "a page's descriptor names an inode that cannot be",
        "the page is free", "clears the descriptor";
    PointerWild, Minor, "a rename pointer leads to a place where no slot can be, or to no inode",
        "the pointer has no effect", "clears it";
    NameHash, Minor, "the hash beside a name is wrong",
        "none", "corrects it";
    TagsExhausted, Damage, "the tags of slots are used up, or one is impossibly large",
        "no name could be made before long", "clears all rename pointers and numbers all slots anew";
    RootDamaged, Damage, "the root directory's inode is no live directory",
        "the volume has no root", "makes it one again";
    NameDangling, Damage, "a name is of an inode that does not exist",
        "the name leads nowhere", "removes the name";
    NameOfRoot, Damage, "a name is of the root directory",
        "the tree would contain itself", "removes the name";
    NameMalformed, Damage, "a slot holds an invalid name",
        "the inode cannot be found by this name", "gives it a new name, 'fsck-' and the number of the slot";
    NameTwice, Damage, "a directory has a name twice",
        "only the first is found", "gives the second a new name, or removes it if both are of one inode";
    DirectoryTwice, Damage, "a directory has a second name, or contains itself",
        "the names form no tree", "removes the later name";
    DirectoryPageTwice, Damage, "two pages of a directory have one offset",
        "only the names of the first are found", "moves the second to an offset that is free";
    DirectoryPageOffset, Damage, "a directory page has an impossible offset",
        "its names are not found", "moves it to an offset that is free";
    LifeImpossible, Damage, "a page waits for a change long after the next one",
        "it is unknown whether the page belongs to its file", "takes the change as committed";
    PageState, Damage, "a page is in an impossible state",
        "it is unknown whether the page was written", "takes a directory page as written and others as unwritten: they read as zeros";
    PageKind, Damage, "a page's descriptor has an unknown kind",
        "the kind of its content is unknown", "takes the kind from the inode";
    PageMisplaced, Damage, "a page holds content that its inode cannot have",
        "the page cannot be reached", "frees the page";
    PageTwice, Damage, "two pages of a file have one offset",
        "it is unknown which counts", "keeps the one with the smaller address";
    InodeKind, Damage, "an inode's kind is unknown, or does not fit its pages",
        "its kind is unknown", "takes the kind that its pages show, or makes it a regular file";
    InodeSize, Damage, "an inode has an impossible size",
        "its end is unknown", "cuts it to a possible size";
    InodeAttributes, Damage, "an inode's extended attributes are at an impossible place",
        "they cannot be read", "takes those in pages if there are any, else drops them";
    SymlinkTarget, Damage, "a symlink's target is lost",
        "it leads nowhere", "makes it an empty regular file";
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Place of a finding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Location {
    /// The inode concerned.
    pub inode: Option<u32>,
    /// One of its names, from the root directory on, where it has one.
    pub path: Option<String>,
    /// The slot concerned.
    pub slot: Option<Place>,
    /// The page concerned.
    pub page: Option<Page>,
}

impl Location {
    /// An inode.
    pub(crate) fn inode(number: u32) -> Location {
        Location {
            inode: Some(number),
            ..Location::default()
        }
    }

    /// A slot of a directory.
    pub(crate) fn slot(directory: u32, slot: Place) -> Location {
        Location {
            inode: Some(directory),
            slot: Some(slot),
            ..Location::default()
        }
    }

    /// A page, and the inode that it belongs to.
    pub(crate) fn page(inode: Option<u32>, page: Page) -> Location {
        Location {
            inode,
            page: Some(page),
            ..Location::default()
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(number) = self.inode {
            write!(f, "inode {number}")?;
            if let Some(path) = &self.path {
                write!(f, " ({path})")?;
            }
            separator = ", ";
        }
        if let Some(slot) = self.slot {
            write!(f, "{separator}slot {}", slot.0)?;
            separator = ", ";
        }
        if let Some(page) = self.page {
            write!(f, "{separator}page {}", page.0)?;
        }
        Ok(())
    }
}

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Kind of problem.
    pub problem: Problem,
    /// Where.
    pub location: Location,
    /// The values that show it, without a full stop; may be empty.
    pub detail: String,
}

impl Finding {
    /// Severity of the finding.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.problem.severity()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = self.problem;
        let location = self.location.to_string();
        let colon = if location.is_empty() { "" } else { ": " };
        write!(
            f,
            "{}: {location}{colon}{}",
            self.severity(),
            problem.what()
        )?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(
            f,
            "; consequence: {}; a repair {} [{problem}]",
            problem.consequence(),
            problem.repair()
        )
    }
}

/// A word to store: address and value.
pub(crate) type Fix = (u64, u64);

/// Findings up to a bound, how many there are of each kind, and the words that put things right.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) findings: Vec<Finding>,
    pub(crate) counts: BTreeMap<Problem, u64>,
    /// Stores of a mount: for notes.
    pub(crate) recovery: Vec<Fix>,
    /// Further stores of a repair.
    pub(crate) repairs: Vec<Fix>,
}

/// Findings that are kept in full; others are counted.
pub(crate) const FINDINGS_MAX: usize = 1000;

impl Log {
    pub(crate) fn add(&mut self, problem: Problem, location: Location, detail: fmt::Arguments<'_>) {
        *self.counts.entry(problem).or_default() += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding {
                problem,
                location,
                detail: detail.to_string(),
            });
        }
    }

    /// A word that is to be stored because of `problem`.
    pub(crate) fn fix(&mut self, problem: Problem, fix: Fix) {
        match problem.severity() {
            Severity::Note => self.recovery.push(fix),
            Severity::Minor | Severity::Damage => self.repairs.push(fix),
        }
    }

    /// Adds the counts of another.
    pub(crate) fn append(&mut self, mut other: Log) {
        let room = FINDINGS_MAX - self.findings.len().min(FINDINGS_MAX);
        other.findings.truncate(room);
        self.findings.append(&mut other.findings);
        for (problem, count) in other.counts {
            *self.counts.entry(problem).or_default() += count;
        }
        self.recovery.append(&mut other.recovery);
        self.repairs.append(&mut other.repairs);
    }

    /// Number of findings of this severity.
    pub(crate) fn count(&self, severity: Severity) -> u64 {
        let all = self.counts.iter();
        all.filter(|(problem, _)| problem.severity() == severity)
            .map(|(_, count)| count)
            .sum()
    }

    /// The first finding that is damage.
    pub(crate) fn first_damage(&self) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.severity() == Severity::Damage)
    }
}

/// An inode as `inode 7 generation 3`.
pub(crate) struct Named(pub(crate) InodeRef);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "inode {} generation {}",
            self.0.number, self.0.generation
        )
    }
}
