//! Very many inodes in directories of a usual size.

use crate::figures::{Figures, Process};
use crate::volume::{create, open};
use std::path::Path;
use steadfast_vfs::{Caller, FileSystem as _};

/// Entries of a directory.
const FILES: u64 = 1000;
/// Directories below one of the root's.
const DIRECTORIES: u64 = 100;

/// Makes `count` inodes: directories of directories of files.
pub(crate) fn measure(image: &Path, count: u64, figures: &mut Figures) -> Result<(), String> {
    let caller = Caller::root();
    let (fs, _) = open(image)?;
    let (mut top, mut dir) = (fs.root(), fs.root());
    figures.curve("tree-create", count, Process::Own, |index| {
        if index % (FILES * DIRECTORIES) == 0 {
            let name = format!("top-{:06}", index / (FILES * DIRECTORIES));
            let made = fs.mkdir(&caller, fs.root(), name.as_bytes(), 0o755);
            top = made.map_err(|e| e.to_string())?.ino;
        }
        if index % FILES == 0 {
            let name = format!("dir-{:06}", index / FILES);
            let made = fs.mkdir(&caller, top, name.as_bytes(), 0o755);
            dir = made.map_err(|e| e.to_string())?.ino;
        }
        create(&fs, dir, format!("file-{index:08}").as_bytes()).map(drop)
    })?;
    fs.unmount().map_err(|e| e.to_string())
}
