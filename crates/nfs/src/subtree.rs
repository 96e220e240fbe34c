//! Exports of a directory instead of a whole volume, which their handles cannot leave.
//!
//! Three things confine a client:
//! * The hash of a handle covers the exported directory, so a handle of another export, or of another directory that the
//!   same path named before, is refused. Handles are given for what is found from the exported directory on.
//! * `..` of the exported directory is the directory itself, in LOOKUP and in listings, and a path that is mounted holds no `..`.
//! * A handle of a directory is taken only while the directory lies in the subtree: others may move it out, and its `..` would
//!   lead anywhere. [`Subtree::holds`] goes up its `..` entries.
//!
//! What a file is moved to is not looked at, as with an open descriptor: a file has no `..`, and a handle that names its
//! parent, as Linux's `subtree_check` makes them, becomes stale when a client renames a file that another has open.

use steadfast_vfs::{Attr, Caller, Errno, Error, FileKind, FileSystem, Ino, Result};

/// Directories between a directory and the volume's root at most; deeper ones are refused.
const DEPTH_MAX: usize = 4096;
/// Times that the way up may change while it is looked at.
const TRIES: usize = 16;

/// The directory that an export begins at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subtree {
    pub(crate) ino: Ino,
    pub(crate) generation: u64,
}

/// What looks on the server's own behalf.
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

    /// Whether a directory is the exported one, or below it.
    ///
    /// The answer "no" is given only after the way up was the same twice, so that a rename on the way makes no handle stale.
    /// A "yes" that a rename overtakes is as if the call had come before it.
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

    /// Goes up from a directory: whether the exported one was met, and the way.
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
