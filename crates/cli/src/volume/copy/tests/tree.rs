//! All that a copy keeps of a file system, and the states that a crash may leave of the new volume.

use super::super::{MARK, is_empty};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use steadfast_testkit::calls::root;
use steadfast_vfs::{
    Attr, DirEntry, Errno, Error, FileKind, FileSystem, Ino, InodeFlags, Seek, Time,
};

/// An inode under one of its names.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    kind: FileKind,
    perm: u16,
    owner: (u32, u32),
    links: u32,
    rdev: u32,
    /// Of access and modification.
    times: (Time, Time),
    /// Bytes of a file, target of a symbolic link.
    content: Vec<u8>,
    /// Runs of data between holes.
    data: Vec<(u64, u64)>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    flags: InodeFlags,
    /// The first name of the same inode.
    same_as: Vec<u8>,
}

/// Inodes by path; the root's is empty.
pub(super) type Tree = BTreeMap<Vec<u8>, Entry>;

/// A state that a crash of a copy leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The volume has no files.
    Empty,
    /// The mark is there.
    Marked,
    /// Everything is there.
    Complete,
    /// Everything but times of the root, and flags of it that keep names.
    ButRoot,
}

/// The flags that the root gets last.
fn keeps_names(flags: InodeFlags) -> InodeFlags {
    flags.both(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
}

/// Everything of a file system that a copy keeps.
pub(super) fn observe(fs: &dyn FileSystem) -> Result<Tree, Error> {
    let mut tree = Tree::new();
    let mut first = HashMap::new();
    let mut left = vec![(Vec::new(), fs.root())];
    while let Some((path, ino)) = left.pop() {
        let attr = fs.getattr(&root(), ino)?;
        if attr.kind == FileKind::Directory {
            let mut names = Vec::new();
            fs.readdir(&root(), ino, 0, &mut |entry: DirEntry<'_>| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.name.to_vec(), entry.ino));
                }
                true
            })?;
            names.sort();
            for (name, below) in names.into_iter().rev() {
                left.push(([&path[..], b"/", &name].concat(), below));
            }
        }
        let same_as = first.entry(ino).or_insert_with(|| path.clone()).clone();
        tree.insert(path, entry(fs, ino, &attr, same_as)?);
    }
    Ok(tree)
}

fn entry(fs: &dyn FileSystem, ino: Ino, attr: &Attr, same_as: Vec<u8>) -> Result<Entry, Error> {
    let mut entry = Entry {
        kind: attr.kind,
        perm: attr.perm,
        owner: (attr.uid, attr.gid),
        links: attr.nlink,
        rdev: attr.rdev,
        times: (attr.atime, attr.mtime),
        content: Vec::new(),
        data: Vec::new(),
        attributes: BTreeMap::new(),
        flags: InodeFlags::NONE,
        same_as,
    };
    match attr.kind {
        FileKind::Regular => {
            entry.content = vec![0; attr.size as usize];
            let read = fs.read(&root(), ino, 0, &mut entry.content)?;
            entry.content.truncate(read);
            entry.data = data(fs, ino, attr.size)?;
        }
        FileKind::Symlink => entry.content = fs.readlink(&root(), ino)?,
        _ => {}
    }
    if matches!(attr.kind, FileKind::Regular | FileKind::Directory) {
        entry.flags = fs.flags(&root(), ino)?;
    }
    for name in fs.listxattr(&root(), ino)? {
        let value = fs.getxattr(&root(), ino, &name)?;
        entry.attributes.insert(name, value);
    }
    Ok(entry)
}

/// The runs of data of a file.
fn data(fs: &dyn FileSystem, ino: Ino, size: u64) -> Result<Vec<(u64, u64)>, Error> {
    let mut runs = Vec::new();
    let mut offset = 0;
    while offset < size {
        let from = match fs.seek(&root(), ino, offset, Seek::Data) {
            Err(error) if error == Errno::NxIo => break,
            from => from?,
        };
        offset = fs.seek(&root(), ino, from, Seek::Hole)?;
        runs.push((from, offset));
    }
    Ok(runs)
}

/// The same tree, as a volume without one of the flags has it; and the number of inodes that lose the flag.
pub(super) fn without_flag(tree: &Tree, flag: InodeFlags) -> (Tree, u64) {
    let mut tree = tree.clone();
    let mut lost = BTreeSet::new();
    for entry in tree.values_mut().filter(|entry| entry.flags.has(flag)) {
        entry.flags = entry.flags.differing(flag);
        lost.insert(entry.same_as.clone());
    }
    (tree, lost.len() as u64)
}

/// The first difference of two trees, except in the times of the root and in flags of it that keep names, unless
/// `root_too`.
pub(super) fn difference(found: &Tree, wanted: &Tree, root_too: bool) -> Option<String> {
    let mut paths = found.keys().chain(wanted.keys());
    let differs = |path: &Vec<u8>| {
        let (found, wanted) = match (found.get(path), wanted.get(path)) {
            (Some(found), Some(wanted)) => (found, wanted),
            (None, _) => return Some("is missing"),
            (_, None) => return Some("is not in the source"),
        };
        let exempt = path.is_empty() && !root_too;
        let without = |flags: InodeFlags| flags.differing(keeps_names(flags));
        let flags_agree = match exempt {
            true => without(found.flags) == without(wanted.flags),
            false => found.flags == wanted.flags,
        };
        [
            ("has another kind", found.kind == wanted.kind),
            ("has other permissions", found.perm == wanted.perm),
            ("has another owner", found.owner == wanted.owner),
            ("has another number of links", found.links == wanted.links),
            ("is another device", found.rdev == wanted.rdev),
            ("has other times", exempt || found.times == wanted.times),
            ("has another content", found.content == wanted.content),
            ("has other holes", found.data == wanted.data),
            (
                "has other attributes",
                found.attributes == wanted.attributes,
            ),
            ("has other flags", flags_agree),
            ("is another inode", found.same_as == wanted.same_as),
        ]
        .into_iter()
        .find_map(|(what, agrees)| (!agrees).then_some(what))
    };
    paths.find_map(|path| {
        let what = differs(path)?;
        let shown = if path.is_empty() { b"/" } else { &path[..] };
        Some(format!("{}: {what}", shown.escape_ascii()))
    })
}

/// The state of a new volume, or what is wrong with it. `done`: the copy has returned.
pub(super) fn judge(fs: &dyn FileSystem, source: &Tree, done: bool) -> Result<State, String> {
    let fails = |error: Error| format!("it cannot be read: {error}");
    match fs.lookup(&root(), fs.root(), MARK.as_bytes()) {
        Ok(_) if done => return Err("the mark is there after the copy".to_owned()),
        Ok(_) => return Ok(State::Marked),
        Err(error) if error == Errno::NoEnt => {}
        Err(error) => return Err(fails(error)),
    }
    if !done && is_empty(fs).map_err(fails)? {
        return Ok(State::Empty);
    }
    let found = observe(fs).map_err(fails)?;
    match difference(&found, source, done) {
        Some(what) => Err(what),
        None if difference(&found, source, true).is_some() => Ok(State::ButRoot),
        None => Ok(State::Complete),
    }
}
