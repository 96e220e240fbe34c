//! Exports of a directory instead of a whole volume. Their handles cannot leave the directory.
//!
//! Three things confine a client:
//! * The hash of a handle covers the exported directory, so a handle of another export, or of another directory that the
//!   same path named before, is refused. Handles are issued only for files found below the exported directory.
//! * `..` of the exported directory is the directory itself, in LOOKUP and in listings, and a mounted path contains no `..`.
//! * A handle of a directory is accepted only while the directory is in the subtree: another user may move it out, and its `..`
//!   would then lead out. [`Subtree::holds`] follows its `..` entries.
//!
//! A handle of a file stays valid wherever the file is moved, like an open descriptor: a file has no `..`, and a handle that
//! names its parent, as with Linux's `subtree_check`, becomes stale when a client renames a file that another has open.

use steadfast_vfs::{Attr, Caller, Errno, Error, FileKind, FileSystem, Ino, Result};

/// Most directories between a directory and the volume's root; deeper ones are refused.
const DEPTH_MAX: usize = 4096;
/// Most changes of the path to the root while it is read.
const TRIES: usize = 16;

/// The root directory of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subtree {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
}

/// The caller of the server's own operations.
fn looker() -> Caller {
    Caller {
        checked: true,
        ..Caller::root()
    }
}

impl Subtree {
    /// The directory at a path of a volume; none if that is its root.
    pub(crate) fn find(fs: &dyn FileSystem, path: &str) -> Result<Option<Subtree>> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        let mut found = None;
        for part in parts {
            let dir = found.map_or_else(|| fs.root(), |attr: Attr| attr.ino);
            found = Some(fs.lookup(&looker(), dir, part.as_bytes())?);
        }
        match found {
            Some(attr) if attr.kind != FileKind::Directory => {
                Err(Error::new(Errno::NotDir, "it is no directory"))
            }
            found => Ok(found.map(|attr| Subtree::at(&attr))),
        }
    }

    fn at(attr: &Attr) -> Subtree {
        Subtree {
            ino: attr.ino,
            generation: attr.generation,
        }
    }

    /// Whether a directory is the exported one or below it.
    ///
    /// The answer is "no" only after two identical readings of the path up, so that a concurrent rename makes no handle stale.
    /// A "yes" that a rename overtakes is as if the call had come before the rename.
    pub(crate) fn holds(&self, fs: &dyn FileSystem, dir: &Attr) -> Result<bool> {
        let mut last = Vec::new();
        for _ in 0..TRIES {
            let (inside, way) = self.climb(fs, dir)?;
            if inside || way == last {
                return Ok(inside);
            }
            last = way;
        }
        Err(Error::new(
            Errno::Again,
            "directories are being moved: try again",
        ))
    }

    /// Goes up from a directory. Returns whether it met the exported one, and the path.
    fn climb(&self, fs: &dyn FileSystem, dir: &Attr) -> Result<(bool, Vec<Subtree>)> {
        let mut way = vec![Subtree::at(dir)];
        loop {
            let at = way[way.len() - 1];
            if at == *self {
                return Ok((true, way));
            }
            if at.ino == fs.root() || way.len() > DEPTH_MAX {
                return Ok((false, way));
            }
            let parent = fs.lookup(&looker(), at.ino, b"..")?;
            way.push(Subtree::at(&parent));
        }
    }
}
