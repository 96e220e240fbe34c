//! The words of a model.

use std::fmt;

/// Kinds of effects, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Classes(u8);

impl Classes {
    /// Entries of directories.
    pub const ENTRY: Classes = Classes(1);
    /// Attributes, extended ones included.
    pub const ATTR: Classes = Classes(2);
    /// Sizes that were set by a call, holes that were punched.
    pub const TRUNCATE: Classes = Classes(4);
    /// Sizes that grew because something was written.
    pub const SIZE: Classes = Classes(8);
    /// Contents.
    pub const DATA: Classes = Classes(16);
    /// Effects that the file system logs as soon as the call is made.
    pub const METADATA: Classes = Classes(1 | 2 | 4);
    /// Everything.
    pub const ALL: Classes = Classes(31);

    /// The kinds of both.
    #[must_use]
    pub const fn and(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// Whether they have a kind in common.
    #[must_use]
    pub const fn meets(self, other: Classes) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub const fn has(self, other: Classes) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn word(word: &str) -> Option<Classes> {
        Some(match word {
            "entry" | "entries" => Classes::ENTRY,
            "attributes" => Classes::ATTR,
            "truncate" | "truncations" => Classes::TRUNCATE,
            "size" | "sizes" => Classes::SIZE,
            "data" => Classes::DATA,
            "metadata" => Classes::METADATA,
            "all" | "everything" => Classes::ALL,
            _ => return None,
        })
    }
}

/// Scope of a rule: what two effects must have in common for the rule to bind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Scope {
    /// Nothing.
    Fs,
    /// The directory.
    Directory,
    /// The file.
    File,
}

/// An earlier effect of `before` is durable whenever a later one of `after` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Rule {
    /// The earlier one.
    pub before: Classes,
    /// The later one.
    pub after: Classes,
    /// What they have in common.
    pub scope: Scope,
}

/// Effects that a sync makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Demand {
    /// Effects of these kinds on the synced file.
    OfFile(Classes),
    /// The names of the synced file: its latest entries.
    NamesOfFile,
    /// Names that inodes got after they had been synced, of all inodes.
    NamesOfSynced,
    /// Entries of the synced directory.
    EntriesOfDirectory,
    /// Everything of these kinds that came before.
    Earlier(Classes),
    /// Metadata up to the last change of the synced inode; all that came before if its size has to be written.
    UpToLastChange,
    /// The same if a size of the file is pending, else nothing.
    UpToLastChangeIfSize,
}

/// An order that is added for programs that forget a sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Heuristic {
    /// A rename over a file waits for the data of what it moves.
    RenameOver,
    /// It waits for its size: blocks are allocated, and may read as zeros.
    RenameOverSize,
    /// Every rename waits for the data of what it moves.
    Rename,
    /// When a file is closed that was cut to nothing, later metadata waits for its data.
    CloseAfterTruncate,
    /// It waits for its size.
    CloseAfterTruncateSize,
}

/// Order of an append's data and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Append {
    /// The size waits for the data.
    DataBeforeSize,
    /// The size waits for the data in new units, and not for what fills the old last one.
    NewUnitsBeforeSize,
    /// Each unit appears with the size that covers it.
    Together,
    /// No order.
    Any,
}

/// Content of a unit inside the size that was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Hole {
    /// Zeros.
    Zeros,
    /// Old content of the medium.
    Garbage,
}

/// Whether a rename is one effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Rename {
    /// It is.
    Atomic,
    /// The new name and the loss of the old one are two.
    Split,
}

/// Effect of a truncation on the unit in which the new size lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Truncate {
    /// Nothing is seen of it before the size shrinks.
    Atomic,
    /// The rest of the unit is filled with zeros, which may be durable before the size is.
    ZerosFirst,
}

/// Effect of space that is allocated inside the size, while writes that made it are not durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Allocate {
    /// None that is seen.
    Room,
    /// Its end becomes a size of the file, before the sizes of those writes.
    Size,
}

/// A word and what it means: the vocabulary that errors list.
pub(super) type Vocabulary<T> = &'static [(&'static str, T)];

pub(super) const DEMANDS: Vocabulary<Demand> = &[
    ("data of file", Demand::OfFile(Classes::DATA)),
    (
        "data, size of file",
        Demand::OfFile(Classes::DATA.and(Classes::SIZE).and(Classes::TRUNCATE)),
    ),
    ("attributes of file", Demand::OfFile(Classes::ATTR)),
    ("names of file", Demand::NamesOfFile),
    ("new names of synced files", Demand::NamesOfSynced),
    ("entries of directory", Demand::EntriesOfDirectory),
    ("all earlier metadata", Demand::Earlier(Classes::METADATA)),
    ("metadata up to its last change", Demand::UpToLastChange),
    (
        "metadata up to its last change, if its size changed",
        Demand::UpToLastChangeIfSize,
    ),
    ("all earlier", Demand::Earlier(Classes::ALL)),
    (
        "all earlier but overwritten data",
        Demand::Earlier(Classes::METADATA.and(Classes::SIZE)),
    ),
];

pub(super) const HEURISTICS: Vocabulary<Heuristic> = &[
    ("rename over a file: its data first", Heuristic::RenameOver),
    (
        "rename over a file: its size first",
        Heuristic::RenameOverSize,
    ),
    ("rename: its data first", Heuristic::Rename),
    (
        "close after truncate to 0: data first",
        Heuristic::CloseAfterTruncate,
    ),
    (
        "close after truncate to 0: size first",
        Heuristic::CloseAfterTruncateSize,
    ),
];

pub(super) const APPENDS: Vocabulary<Append> = &[
    ("data-before-size", Append::DataBeforeSize),
    ("new-units-before-size", Append::NewUnitsBeforeSize),
    ("together", Append::Together),
    ("any", Append::Any),
];

pub(super) const HOLES: Vocabulary<Hole> = &[("zeros", Hole::Zeros), ("garbage", Hole::Garbage)];

pub(super) const RENAMES: Vocabulary<Rename> =
    &[("atomic", Rename::Atomic), ("split", Rename::Split)];

pub(super) const TRUNCATES: Vocabulary<Truncate> = &[
    ("atomic", Truncate::Atomic),
    ("zeros-first", Truncate::ZerosFirst),
];

pub(super) const ALLOCATES: Vocabulary<Allocate> =
    &[("room", Allocate::Room), ("size", Allocate::Size)];

const SCOPES: Vocabulary<Scope> = &[
    ("same fs", Scope::Fs),
    ("same directory", Scope::Directory),
    ("same file", Scope::File),
];

/// Error in a phrase: the wrong part (its offset in the phrase) and the known words.
pub(super) struct Unknown {
    pub(super) at: usize,
    pub(super) message: String,
}

fn known<T>(words: Vocabulary<T>) -> String {
    let quoted: Vec<String> = words.iter().map(|(w, _)| format!("'{w}'")).collect();
    quoted.join(", ")
}

pub(super) fn lookup<T: Copy>(words: Vocabulary<T>, phrase: &str) -> Result<T, Unknown> {
    let found = words.iter().find(|(w, _)| *w == phrase);
    found.map(|(_, t)| *t).ok_or_else(|| Unknown {
        at: 0,
        message: format!("unknown word '{phrase}'; known are {}", known(words)),
    })
}

/// `BEFORE before AFTER: SCOPE`.
pub(super) fn rule(phrase: &str) -> Result<Rule, Unknown> {
    let wrong = |at: usize, message: String| Unknown { at, message };
    let Some((pair, scope)) = phrase.split_once(": ") else {
        return Err(wrong(
            0,
            format!("'{phrase}' is not of the form 'A before B: same fs|directory|file'"),
        ));
    };
    let Some((before, after)) = pair.split_once(" before ") else {
        return Err(wrong(
            0,
            format!("'{pair}' is not of the form 'A before B'"),
        ));
    };
    let class = |word: &str, at: usize| {
        Classes::word(word).ok_or_else(|| {
            wrong(
                at,
                format!(
                    "unknown word '{word}'; known are 'data', 'size', 'entries', 'attributes', 'truncations', 'metadata', 'all'"
                ),
            )
        })
    };
    let scope_at = pair.len() + 2;
    Ok(Rule {
        before: class(before, 0)?,
        after: class(after, before.len() + 8)?,
        scope: lookup(SCOPES, scope).map_err(|u| wrong(scope_at, u.message))?,
    })
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Classes::ENTRY => "entry",
            Classes::ATTR => "attributes",
            Classes::TRUNCATE => "truncation",
            Classes::SIZE => "size",
            Classes::DATA => "data",
            Classes::METADATA => "metadata",
            _ => "data and size",
        })
    }
}
