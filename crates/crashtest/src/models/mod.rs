//! Models of file systems as data: the states that a power cut may leave.
//!
//! A model is one TOML file: units and tearing of data, the content of an unwritten unit, which pairs of effects keep
//! their order, what each sync makes durable, and the heuristics of the file system. [`Model::shipped`] has those that
//! come with the program, [`Model::load`] reads one from a file, [`parse`] from text. `docs/crash-test.md` explains the words.

mod parse;
mod words;

#[cfg(test)]
mod tests;

pub use parse::{ModelError, parse};
pub use words::{
    Allocate, Append, Classes, Demand, Heuristic, Hole, Rename, Rule, Scope, Truncate,
};

use std::path::Path;

/// Names and texts of the shipped models, in the order in which they are listed.
const SHIPPED: &[(&str, &str)] = &[
    ("posix", include_str!("shipped/posix.toml")),
    ("ext4", include_str!("shipped/ext4.toml")),
    (
        "ext4-writeback",
        include_str!("shipped/ext4-writeback.toml"),
    ),
    ("ext4-journal", include_str!("shipped/ext4-journal.toml")),
    (
        "ext4-nodelalloc",
        include_str!("shipped/ext4-nodelalloc.toml"),
    ),
    (
        "ext4-noauto_da_alloc",
        include_str!("shipped/ext4-noauto_da_alloc.toml"),
    ),
    ("xfs", include_str!("shipped/xfs.toml")),
    ("btrfs", include_str!("shipped/btrfs.toml")),
    ("zfs", include_str!("shipped/zfs.toml")),
    ("ordered", include_str!("shipped/ordered.toml")),
    (
        "metadata-prefix",
        include_str!("shipped/metadata-prefix.toml"),
    ),
    ("sync", include_str!("shipped/sync.toml")),
    ("killed", include_str!("shipped/killed.toml")),
];

/// Guarantees of a file system over a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name for users.
    pub name: String,
    /// Version of the model's text.
    pub version: u32,
    /// Mount options that it describes.
    pub options: String,
    /// Its description in one sentence.
    pub about: String,
    /// Kernel, number of cuts and relaxations never seen; empty: not calibrated.
    pub calibrated: String,
    /// Bytes that are written to the medium at a time.
    pub unit: u64,
    /// Bytes that a power cut does not tear; equals `unit` if units are never torn.
    pub tear: u64,
    /// Order of an append's data and size.
    pub append: Append,
    /// Content of a unit inside the size that was not written.
    pub hole: Hole,
    /// Whether a rename is one effect.
    pub rename: Rename,
    /// Effects of a truncation that are seen before the size shrinks.
    pub truncate: Truncate,
    /// Effect of space that is allocated inside the size.
    pub allocate: Allocate,
    /// Whether a sync makes its effects durable without waiting for those ordered before them (a log of its own).
    pub sync_jumps: bool,
    /// Whether the disk says that data is durable when it is not: syncs order, but demand nothing.
    pub lying_disk: bool,
    /// Pairs that keep their order.
    pub order: Vec<Rule>,
    /// What each returned call makes durable.
    pub call: Vec<Demand>,
    /// What fsync(2) of a file makes durable.
    pub fsync: Vec<Demand>,
    /// What fdatasync(2) makes durable.
    pub fdatasync: Vec<Demand>,
    /// What fsync(2) of a directory makes durable.
    pub fsync_dir: Vec<Demand>,
    /// What sync(2) and syncfs(2) make durable.
    pub sync: Vec<Demand>,
    /// What sync_file_range(2) makes durable when it waits.
    pub sync_file_range: Vec<Demand>,
    /// Orders that the file system adds for programs that forget a sync.
    pub also: Vec<Heuristic>,
}

impl Model {
    /// The shipped models' names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The text of a shipped model.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        SHIPPED.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }

    /// A shipped model.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn shipped(name: &str) -> Result<Model, ModelError> {
        let Some(text) = Model::text(name) else {
            return Err(ModelError::unknown_model(name));
        };
        parse(text, name, None)
    }

    /// A model by the argument of `--fs`: a name, or a path that has a slash or ends in `.toml`.
    ///
    /// # Errors
    /// No such model or file, or the file is wrong.
    pub fn load(name: &str) -> Result<Model, ModelError> {
        if !name.contains('/') && !name.ends_with(".toml") {
            return Model::shipped(name);
        }
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).map_err(|e| ModelError::file(path, &e))?;
        parse(&text, name, Some(path))
    }

    /// Its calibration, in the words of reports.
    #[must_use]
    pub fn calibration(&self) -> &str {
        match self.calibrated.is_empty() {
            true => "not calibrated",
            false => &self.calibrated,
        }
    }
}
