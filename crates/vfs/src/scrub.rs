//! Requests and answers of a scrub: a look at everything on the medium, piece by piece.

use crate::Ino;
use std::fmt;

/// Position of a scrub; the default is the beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ScrubCursor {
    /// The inode number to look at next.
    pub ino: Ino,
    /// Key in that inode.
    pub key: u64,
}

/// Something that was found wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    /// Block of the device.
    pub block: u64,
    /// The inode that it belongs to, if it belongs to one.
    pub ino: Option<Ino>,
    /// Description of the block, and its fault.
    pub what: String,
}

/// Result of a piece of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubPiece {
    /// Start of the next piece; none at the end.
    pub next: Option<ScrubCursor>,
    /// Progress, of `total`.
    pub done: u64,
    /// See `done`.
    pub total: u64,
    /// Metadata blocks whose checksums were compared.
    pub metadata_blocks: u64,
    /// Metadata blocks that are newer in the log than at their places, and were passed over.
    pub older_blocks: u64,
    /// Blocks of file content that were read.
    pub data_blocks: u64,
    /// Findings.
    pub findings: Vec<ScrubFinding>,
}

/// Severity of a finding of a check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Severity {
    /// Nothing is wrong: a crash left it, and the next mount finishes it.
    Note,
    /// Space or a redundant copy is lost, or a value is impossible. No name, attribute or content is concerned.
    Minor,
    /// Reading or writing the volume can go wrong, or names, attributes or contents of files are concerned. No crash
    /// leaves this.
    Damage,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Minor => "minor",
            Severity::Damage => "damage",
        })
    }
}
