//! Findings of a check: one [`Problem`] per kind of damage, each with its severity and
//! its repair; [`Finding`] has the place and the fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use steadfast_block::BlockNo;
use steadfast_vfs::Ino;

pub use steadfast_vfs::Severity;

macro_rules! problems {
    ($($(#[doc = $doc:literal])+ $name:ident, $severity:ident, $repair:literal;)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        #[non_exhaustive]
        pub enum Problem { $($(#[doc = $doc])+ $name,)* }

        impl Problem {
            /// Every kind, in order.
            pub const ALL: &'static [Problem] = &[$(Problem::$name,)*];

            /// Severity of the problem.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self { $(Problem::$name => Severity::$severity,)* }
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
    /// The superblock in block 0 cannot be used.
    SuperblockDamaged, Damage, "restores it from its copy";
    /// The copy of the superblock in the last block cannot be used.
    SuperblockCopyDamaged, Minor, "writes it anew";
    /// Superblock and copy do not say the same.
    SuperblocksDiffer, Minor, "writes the copy anew from the first one";
    /// A volume without a log was not unmounted.
    NotUnmounted, Note, "the next mount goes on from there";
    /// The journal holds operations that are not yet at home.
    LogPending, Note, "replays them first, like a mount";
    /// One of the two tail headers of the journal is invalid.
    JournalHeader, Minor, "makes an empty journal when the log has been applied";
    /// The journal is damaged.
    JournalDamaged, Damage, "applies its readable records and makes an empty one: changes after the damage are lost";
    /// A group's block bitmap cannot be read or fails its checksum.
    BlockBitmapUnreadable, Damage, "writes it anew from the blocks in use";
    /// A group's inode-block bitmap cannot be read or fails its checksum.
    InodeBitmapUnreadable, Damage, "writes it anew from the inode blocks that are found";
    /// Blocks are in use but marked free: they could be handed out again.
    BlockNotMarked, Damage, "marks them used";
    /// Blocks are marked used, and nothing uses them.
    BlockLeaked, Minor, "frees them";
    /// A block belongs to two owners.
    BlockTwice, Damage, "leaves it to one owner and cuts it out of the other, which reads as zeros there";
    /// The inode-block bitmap disagrees with what the blocks are.
    InodeBlockBit, Damage, "corrects the bitmap";
    /// Bits of a bitmap beyond the end of its group are wrong.
    BitmapTail, Minor, "corrects them";
    /// An inode block cannot be read, fails its checksum, or holds no inodes.
    InodeBlockUnreadable, Damage, "gives up the inodes it held, and the block";
    /// An inode block holds no inode: a crash came between the removal of its last inodes and that of the block.
    InodeBlockEmpty, Note, "frees it";
    /// The bytes after the last inode of an inode block are not zero.
    InodeBlockTail, Minor, "zeroes them";
    /// The root directory is gone.
    RootMissing, Damage, "makes an empty one; its inodes go to /lost+found";
    /// The orphan directory is gone.
    OrphanDirectoryMissing, Damage, "makes an empty one";
    /// A free inode slot is not all zero.
    FreeSlotNotZero, Damage, "zeroes it";
    /// An inode is of no kind that exists.
    ModeInvalid, Damage, "frees the inode and removes its names";
    /// An inode's generation number is zero.
    GenerationZero, Minor, "gives it a new one";
    /// A time has a billion nanoseconds or more.
    TimeInvalid, Minor, "sets the nanoseconds to zero";
    /// A field that must be zero is not.
    ReservedNotZero, Minor, "zeroes it";
    /// An inode that is no device has a device number.
    RdevMisplaced, Minor, "zeroes it";
    /// An inode has a value in a field that its kind does not have.
    FieldMisplaced, Minor, "zeroes it";
    /// A size that cannot be.
    SizeInvalid, Damage, "sets the size to that of the file's content";
    /// An inode's count of blocks is wrong.
    BlockCount, Minor, "corrects the count";
    /// An inode's link count is not its number of names.
    LinkCount, Damage, "corrects the count";
    /// The root of a tree, in an inode's body, is malformed.
    TreeRoot, Damage, "keeps the items that are well-formed, if any";
    /// A tree node cannot be read or fails its checksum.
    TreeNodeUnreadable, Damage, "cuts it out: blocks that it named read as zeros or are found in other ways";
    /// A tree node is malformed.
    TreeNode, Damage, "keeps the items that are well-formed, if any";
    /// An item of a tree is out of order or out of its node's bounds.
    TreeItem, Damage, "removes it";
    /// A tree names a block where no block of a tree or file can be.
    TreePointer, Damage, "removes the item";
    /// An extent is malformed or overlaps the one before it.
    ExtentInvalid, Damage, "removes it: the file reads as zeros there";
    /// A file has written blocks beyond its end.
    ExtentBeyondEnd, Minor, "frees them";
    /// A directory block cannot be read or fails its checksum.
    LeafUnreadable, Damage, "cuts it out; inodes without a name go to /lost+found";
    /// A directory block that is not the directory's first has no entries.
    LeafEmpty, Minor, "removes it";
    /// A directory entry is malformed.
    EntryMalformed, Damage, "removes it, or zeroes what must be zero";
    /// A directory entry has a name that cannot be.
    EntryName, Damage, "removes it; an inode without a name goes to /lost+found";
    /// A directory entry's cookie is wrong for its name or its place: lookups do not find it.
    EntryCookie, Damage, "files the entry where it belongs";
    /// A name or a cookie is twice in a directory.
    EntryDuplicate, Damage, "keeps the first of them";
    /// A directory entry names an inode that does not exist.
    EntryDangling, Damage, "removes the entry";
    /// A directory entry says another kind than its inode.
    EntryKind, Damage, "corrects the entry";
    /// A directory has a second name, or contains itself.
    DirectoryTwice, Damage, "removes the second name";
    /// A directory's parent is not the directory that names it.
    ParentWrong, Damage, "corrects the parent";
    /// A directory's count of entries is wrong.
    EntryCount, Minor, "corrects the count";
    /// A symbolic link's target is malformed.
    SymlinkInvalid, Damage, "frees the link and removes its names";
    /// A block of extended attributes cannot be read or fails its checksum.
    XattrUnreadable, Damage, "drops the attributes that lie there";
    /// A block of extended attributes is malformed.
    XattrInvalid, Damage, "drops the attributes that lie there";
    /// The extended attributes in an inode are malformed, or it has a block of them too.
    XattrInline, Damage, "drops the attributes that lie in the inode";
    /// The permission bits of an inode differ from its access ACL.
    AclMode, Damage, "sets the permission bits from the list";
    /// The superblock does not name a feature that is in use.
    FeatureMissing, Damage, "names it";
    /// An entry of the orphan directory has the wrong form.
    OrphanEntry, Damage, "removes it";
    /// An inode without names, or an unfinished truncation, waits for the next mount.
    OrphanPending, Note, "leaves it to the next mount";
    /// An inode has no names and is not in the orphan directory either.
    OrphanUnlisted, Minor, "frees it";
    /// An inode cannot be reached from the root directory.
    Unreachable, Damage, "gives it a name in /lost+found, or frees it if it is empty";
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Place of a finding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Place {
    /// The block that is wrong, or the first one.
    pub block: Option<BlockNo>,
    /// The inode concerned.
    pub ino: Option<Ino>,
    /// One of the inode's names, from the root directory on, where it has one.
    pub path: Option<String>,
}

impl Place {
    /// A block.
    pub(super) fn block(at: u64) -> Place {
        Place {
            block: Some(BlockNo(at)),
            ..Place::default()
        }
    }

    /// An inode.
    pub(super) fn ino(ino: Ino) -> Place {
        Place {
            ino: Some(ino),
            ..Place::default()
        }
    }

    /// An inode, and one of its blocks.
    pub(super) fn both(ino: Ino, at: u64) -> Place {
        Place {
            block: Some(BlockNo(at)),
            ino: Some(ino),
            path: None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(ino) = self.ino {
            write!(f, "inode {ino}")?;
            if let Some(path) = &self.path {
                write!(f, " ({path})")?;
            }
            separator = ", ";
        }
        if let Some(block) = self.block {
            write!(f, "{separator}block {block}")?;
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
    pub place: Place,
    /// Details, in one sentence without its end.
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
        let place = self.place.to_string();
        let colon = if place.is_empty() { "" } else { ": " };
        write!(
            f,
            "{}: {place}{colon}{} ({}); a repair {}",
            self.severity(),
            self.detail,
            self.problem,
            self.problem.repair()
        )
    }
}

/// Collects findings up to a bound, and the names of the inodes they concern.
pub(super) struct Log {
    pub(super) findings: Vec<Finding>,
    /// Findings per kind, those left out included.
    pub(super) counts: BTreeMap<Problem, u64>,
    bound: usize,
    inos: BTreeSet<Ino>,
    paths: BTreeMap<Ino, String>,
}

impl Log {
    pub(super) fn new(bound: usize) -> Log {
        Log {
            findings: Vec::new(),
            counts: BTreeMap::new(),
            bound,
            inos: BTreeSet::new(),
            paths: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, problem: Problem, place: Place, detail: impl Into<String>) {
        *self.counts.entry(problem).or_default() += 1;
        if self.findings.len() < self.bound {
            self.inos.extend(place.ino);
            self.findings.push(Finding {
                problem,
                place,
                detail: detail.into(),
            });
        }
    }

    /// Whether any inode's name is worth looking for.
    pub(super) fn concerns_any(&self) -> bool {
        !self.inos.is_empty()
    }

    /// Whether a name of `ino` is worth remembering.
    pub(super) fn concerns(&self, ino: Ino) -> bool {
        self.inos.contains(&ino)
    }

    /// Remembers the first name of `ino`.
    pub(super) fn name(&mut self, ino: Ino, path: impl FnOnce() -> String) {
        self.paths.entry(ino).or_insert_with(path);
    }

    /// Whether a repair has nothing to do: it has applied the log's changes before.
    pub(super) fn is_clean(&self) -> bool {
        self.counts
            .keys()
            .all(|problem| *problem == Problem::LogPending)
    }

    /// The findings with paths filled in, and how many were left out.
    pub(super) fn finish(mut self) -> (Vec<Finding>, u64) {
        for finding in &mut self.findings {
            if finding.place.path.is_none() {
                finding.place.path = finding
                    .place
                    .ino
                    .and_then(|ino| self.paths.get(&ino))
                    .cloned();
            }
        }
        let all: u64 = self.counts.values().sum();
        let left_out = all - self.findings.len() as u64;
        (self.findings, left_out)
    }
}
