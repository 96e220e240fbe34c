//! Volumes with something in them, to be mounted.

use crate::Result;
use crate::calls::pattern;
use std::io::Write as _;
use std::path::Path;
use steadfast_pm::{OpenOptions, Region};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, NewNode, RenameMode};

const SMALL_BYTES: usize = 16 << 10;
const PIECE_BYTES: usize = 1 << 20;
/// Files of a directory.
const DIRECTORY_FILES: u64 = 1000;
/// Files among which the space of a volume of large files is divided.
const LARGE_FILES: u64 = 8;
/// Names of one inode: below the limit of links.
const LINKS: u64 = 60_000;
/// Part of the free pages and inodes that stays free.
const RESERVE_PERCENT: u64 = 2;
/// Changes between two looks at how far a churn has come.
const CHURN_READY: u64 = 2000;

const FILE: NewNode = NewNode {
    kind: FileKind::Regular,
    perm: 0o644,
    rdev: 0,
};

/// Content of a volume.
#[derive(Default)]
struct Filled {
    files: u64,
    names: u64,
    pages: u64,
}

/// Pages that nothing is stored to take no memory of the host.
pub(crate) fn unreserved() -> OpenOptions {
    OpenOptions {
        reserve: false,
        ..OpenOptions::default()
    }
}

/// Makes a volume of `bytes` bytes and fills it with `what`; prints its content.
pub(crate) fn fill(image: &Path, bytes: u64, what: &str) -> Result<()> {
    let region = Region::create(image, bytes, true, &unreserved())?;
    mkfs(&region, &MkfsOptions::default(), &mut |_, _| {})?;
    let fs = PmFs::mount(region, &MountOptions::default(), &mut |_, _| {})?;
    let filled = match what {
        "empty" => Filled::default(),
        "small" => small(&fs, |fs, caller, file, data| {
            fs.write(caller, file, 0, data).map(|_| ())
        })?,
        "preallocated" => small(&fs, |fs, caller, file, data| {
            fs.fallocate(caller, file, AllocateMode::Allocate, 0, data.len() as u64)
        })?,
        "large" => large(&fs)?,
        "names" => names(&fs)?,
        _ => return Err(format!("unknown content '{what}'").into()),
    };
    fs.unmount()?;
    println!("files {}", filled.files);
    println!("names {}", filled.names);
    println!("pages {}", filled.pages);
    Ok(())
}

/// Files of 16 KiB until the volume is full.
fn small(
    fs: &PmFs,
    content: impl Fn(&PmFs, &Caller, Ino, &[u8]) -> steadfast_vfs::Result<()>,
) -> Result<Filled> {
    let caller = Caller::root();
    let data = pattern(SMALL_BYTES);
    let mut filled = Filled::default();
    let space = fs.statfs()?;
    let pages = SMALL_BYTES as u64 / u64::from(space.block_size);
    let files = (space.blocks_free / pages).min(space.inodes_free) * (100 - RESERVE_PERCENT) / 100;
    let mut dir = fs.root();
    for i in 0..files {
        if i % DIRECTORY_FILES == 0 {
            let name = format!("dir-{:06}", i / DIRECTORY_FILES);
            match fs.mkdir(&caller, fs.root(), name.as_bytes(), 0o755) {
                Ok(made) => dir = made.ino,
                Err(e) if e == Errno::NoSpc => break,
                Err(e) => return Err(e.into()),
            }
            filled.names += 1;
        }
        let name = format!("file-{i:08}");
        let made = match fs.mknod(&caller, dir, name.as_bytes(), &FILE) {
            Ok(made) => made.ino,
            Err(e) if e == Errno::NoSpc => break,
            Err(e) => return Err(e.into()),
        };
        filled.files += 1;
        filled.names += 1;
        match content(fs, &caller, made, &data) {
            Err(e) if e == Errno::NoSpc => break,
            other => other?,
        }
        filled.pages += pages;
    }
    Ok(filled)
}

/// A few files that take all the space.
fn large(fs: &PmFs) -> Result<Filled> {
    let caller = Caller::root();
    let data = pattern(PIECE_BYTES);
    let space = fs.statfs()?;
    let block = u64::from(space.block_size);
    let each = space.blocks_free * (100 - RESERVE_PERCENT) / 100 * block / LARGE_FILES;
    let mut filled = Filled::default();
    for i in 0..LARGE_FILES {
        let name = format!("large-{i}");
        let file = fs.mknod(&caller, fs.root(), name.as_bytes(), &FILE)?.ino;
        filled.files += 1;
        filled.names += 1;
        for _ in 0..each / PIECE_BYTES as u64 {
            let (_, written) = fs.append(&caller, file, &data)?;
            if written != data.len() {
                return Err(format!("{written} bytes of {} were written", data.len()).into());
            }
            filled.pages += PIECE_BYTES as u64 / block;
        }
    }
    Ok(filled)
}

/// Directories of 60,000 names of one empty file each, until most space is taken: names, and nothing else to speak of.
fn names(fs: &PmFs) -> Result<Filled> {
    let caller = Caller::root();
    let mut filled = Filled::default();
    let space = fs.statfs()?;
    // A slot of 64 bytes for each name.
    let most = space.blocks_free * u64::from(space.block_size) / 64 * 9 / 10;
    for d in 0..(most / LINKS).min(16) {
        let name = format!("dir-{d:06}");
        let dir = fs.mkdir(&caller, fs.root(), name.as_bytes(), 0o755)?.ino;
        let file = fs.mknod(&caller, dir, b"file", &FILE)?.ino;
        for i in 1..LINKS {
            fs.link(&caller, file, dir, format!("name-{i:08}").as_bytes())?;
        }
        filled.files += 1;
        filled.names += LINKS + 1;
    }
    Ok(filled)
}

/// Makes, fills, renames and removes files for ever, on a volume that may be full; says when it is in the middle of it.
pub(crate) fn churn(image: &Path) -> Result<()> {
    let region = Region::open(image, &unreserved())?;
    let fs = PmFs::mount(region, &MountOptions::default(), &mut |_, _| {})?;
    let caller = Caller::root();
    let data = pattern(SMALL_BYTES);
    let root = fs.root();
    // Left by a churn that was killed before this one.
    let dir = match fs.mkdir(&caller, root, b"churn", 0o755) {
        Err(e) if e == Errno::Exist => fs.lookup(&caller, root, b"churn")?,
        other => other?,
    };
    let dir = dir.ino;
    for i in 0_u64.. {
        let (old, new) = (format!("old-{}", i % 7), format!("new-{}", i % 5));
        let (old, new) = (old.as_bytes(), new.as_bytes());
        match fs.mknod(&caller, dir, old, &FILE) {
            Err(e) if e == Errno::Exist || e == Errno::NoSpc => {}
            other => {
                let file = other?.ino;
                // On a full volume less is written, or nothing.
                let _ = fs.write(&caller, file, 0, &data);
            }
        }
        for result in [
            fs.rename(&caller, (dir, old), (dir, new), RenameMode::Replace),
            fs.unlink(&caller, dir, format!("new-{}", (i + 2) % 5).as_bytes()),
        ] {
            match result {
                Err(e) if e == Errno::NoEnt || e == Errno::NoSpc => {}
                other => other?,
            }
        }
        if i == CHURN_READY {
            println!("ready");
            std::io::stdout().flush()?;
        }
    }
    Ok(())
}
