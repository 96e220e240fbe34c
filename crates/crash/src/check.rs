//! One crash image: fsck as the cut left it, recover, compare with the states that the contract allows,
//! cut the recovery, use the volume, fsck again.

use crate::promise::Promise;
use crate::record::{Recording, mount_options};
use std::collections::HashSet;
use std::sync::Arc;
use steadfast_block::BlockDevice;
use steadfast_fs::{Fs, FsckOptions, Outcome, TrimRange, fsck};
use steadfast_model::{Digest, Snapshot, ordered};
use steadfast_sim::{CrashImage, Image, Limits, SimDevice};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, Ino, NewNode, SetAttr, SystemClock};

/// Depth of the check of one image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// The recovery is cut as well.
    pub(crate) cut_recovery: bool,
    /// All free space is trimmed in the recovery.
    pub(crate) trim: bool,
    /// Files are made and everything is deleted afterwards.
    pub(crate) use_volume: bool,
}

/// Counts of the checks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) images: u64,
    pub(crate) recoveries: u64,
    pub(crate) used: u64,
}

pub(crate) fn clean<D: BlockDevice>(device: &Arc<D>, when: &str) -> Result<(), String> {
    let report =
        fsck(device.clone(), &FsckOptions::default()).map_err(|e| format!("fsck {when}: {e}"))?;
    if report.outcome() == Outcome::Clean {
        return Ok(());
    }
    let findings: Vec<String> = report
        .findings
        .iter()
        .take(5)
        .map(ToString::to_string)
        .collect();
    Err(format!("fsck {when}: {}", findings.join("; ")))
}

pub(crate) fn mount<D: BlockDevice>(device: &Arc<D>) -> Result<Arc<Fs>, String> {
    let options = mount_options(Arc::new(SystemClock), None);
    let (fs, _) = Fs::mount(device.clone(), &options).map_err(|e| format!("mount: {e}"))?;
    Ok(fs)
}

pub(crate) fn observe(fs: &Fs) -> Result<Snapshot, String> {
    Snapshot::of_fs(fs).map_err(|e| format!("reading the tree: {e}"))
}

/// Checks an image that a cut at `moment` left.
pub(crate) fn image(
    run: &Recording,
    image: CrashImage,
    moment: ordered::Cut,
    depth: Depth,
    seen: &mut HashSet<(u128, Digest)>,
    counts: &mut Counts,
) -> Result<(), String> {
    counts.images += 1;
    let sim = Arc::new(SimDevice::from_image(image));
    let mut recovered_at = 0;
    let (history, empty_free) = (&run.history, run.empty_free);
    let found = recovered(&sim, history, empty_free, moment, depth, counts, || {
        recovered_at = sim.trace_len();
    })?;
    if depth.cut_recovery {
        cut_recovery(&sim, recovered_at, found.digest(), seen, counts)?;
    }
    Ok(())
}

/// After each sync of one stream, the durable state alone must be the tree with the fewest operations that the
/// model allows: uncommitted operations of the others can be lost.
pub(crate) fn independent(
    run: &Recording,
    durable: Image,
    moment: ordered::Cut,
    counts: &mut Counts,
) -> Result<(), String> {
    let Some(weakest) = run.history.weakest(moment) else {
        return Ok(());
    };
    counts.images += 1;
    let device = Arc::new(SimDevice::from_image(durable));
    let fs = mount(&device)?;
    let found = observe(&fs)?;
    let weakest = Snapshot::of_tree(&weakest);
    if found.digest().content == weakest.digest().content {
        return Ok(());
    }
    let diff = weakest.diff(&found, Default::default());
    Err(format!(
        "more is durable than the synced changes and their prerequisites: {diff}"
    ))
}

/// Checks a disk that a cut at `moment` left, and the volume when it has been mounted and used;
/// `mounted` is called when the tree has been compared. Returns the tree.
pub(crate) fn recovered<D: BlockDevice>(
    disk: &Arc<D>,
    history: &Promise,
    empty_free: u64,
    moment: ordered::Cut,
    depth: Depth,
    counts: &mut Counts,
    mounted: impl FnOnce(),
) -> Result<Snapshot, String> {
    clean(disk, "as the cut left it")?;
    let fs = mount(disk)?;
    let found = observe(&fs)?;
    history.check(&found, moment)?;
    if depth.trim {
        fs.trim(&TrimRange::default(), &mut |_, _| {})
            .map_err(|e| format!("trim after recovery: {e}"))?;
    }
    mounted();
    grow_all(&fs, &found)?;
    if depth.use_volume {
        counts.used += 1;
        use_up(&fs, &found, empty_free)?;
    }
    fs.unmount()
        .map_err(|e| format!("unmount after recovery: {e}"))?;
    clean(disk, "after recovery and use")?;
    Ok(found)
}

/// Cuts the recovery at each of its writes: every further one must come to the same tree.
fn cut_recovery(
    sim: &Arc<SimDevice>,
    upto: usize,
    first: Digest,
    seen: &mut HashSet<(u128, Digest)>,
    counts: &mut Counts,
) -> Result<(), String> {
    let limits = Limits {
        exhaustive_writes: 2,
        sampled: 2,
        tears: true,
        seed: 3,
    };
    let mut explorer = sim.explorer();
    for position in 0..=upto {
        for image in explorer.cut(position).images(&limits) {
            if !seen.insert((image.fingerprint(), first)) {
                continue;
            }
            counts.recoveries += 1;
            let name = format!("recovery cut at event {position}: {image}");
            let again = Arc::new(SimDevice::from_image(image));
            let fs = mount(&again).map_err(|e| format!("{name}: {e}"))?;
            let second = observe(&fs)?.digest();
            if second.content != first.content {
                return Err(format!("{name}: the second recovery comes to another tree"));
            }
            drop(fs);
        }
    }
    Ok(())
}

/// Makes a file that loses its name while it is open, and closes it.
pub(crate) fn make_orphan(fs: &Fs) -> steadfast_vfs::Result<()> {
    let root = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let file = fs.mknod(&root, fs.root(), b"orphan file", &node)?.ino;
    fs.open(&root, file)?;
    fs.unlink(&root, fs.root(), b"orphan file")?;
    fs.sync()?;
    fs.release(file);
    Ok(())
}

/// Makes every file longer: nothing but zeros may appear (corner 26).
fn grow_all(fs: &Fs, found: &Snapshot) -> Result<(), String> {
    let files = found.entries.iter();
    for (path, entry) in files.filter(|(_, entry)| entry.kind == FileKind::Regular) {
        let ino = find(fs, path);
        ino.and_then(|ino| grow(fs, ino, entry.size))
            .map_err(|e| format!("growing {}: {e}", String::from_utf8_lossy(path)))?;
    }
    Ok(())
}

/// The inode at a path.
fn find(fs: &Fs, path: &[u8]) -> steadfast_vfs::Result<Ino> {
    let root = Caller::root();
    let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
    names.try_fold(fs.root(), |dir, name| {
        fs.lookup(&root, dir, name).map(|a| a.ino)
    })
}

fn grow(fs: &Fs, ino: Ino, size: u64) -> steadfast_vfs::Result<()> {
    let root = Caller::root();
    let attr = fs.getattr(&root, ino)?;
    if attr.size != size {
        // Another name of a file that has grown already.
        return Ok(());
    }
    let set = SetAttr {
        size: Some(size + 5000),
        ..SetAttr::default()
    };
    fs.setattr(&root, ino, &set)?;
    let mut tail = [1; 5000];
    fs.read(&root, ino, size, &mut tail)?;
    if tail == [0; 5000] {
        return Ok(());
    }
    let why = "bytes past the end become visible";
    Err(steadfast_vfs::Error::new(Errno::Io, why))
}

/// A recovered volume works: something can be made in every directory, and when everything
/// is deleted, all space is back.
fn use_up(fs: &Fs, found: &Snapshot, empty_free: u64) -> Result<(), String> {
    let root = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let find = |path: &[u8]| find(fs, path);
    let fail = |what: &str, path: &[u8], e: steadfast_vfs::Error| {
        format!(
            "using the volume: {what} {}: {e}",
            String::from_utf8_lossy(path)
        )
    };
    for (path, entry) in &found.entries {
        if entry.kind == FileKind::Directory {
            let dir = find(path).map_err(|e| fail("lookup", path, e))?;
            let made = fs
                .mknod(&root, dir, b"new file", &node)
                .map_err(|e| fail("create in", path, e))?;
            let data = [0x5a; 5000];
            fs.write(&root, made.ino, 0, &data)
                .map_err(|e| fail("write in", path, e))?;
        }
    }
    make_orphan(fs).map_err(|e| fail("orphan in", b"/", e))?;
    fs.sync().map_err(|e| fail("sync", b"/", e))?;
    // Children sort after their directories: backwards, they go first.
    for (path, entry) in found.entries.iter().rev() {
        let mut above = path.rsplitn(2, |b| *b == b'/');
        let name = above.next().unwrap_or_default();
        let parent = find(above.next().unwrap_or_default()).map_err(|e| fail("lookup", path, e))?;
        if entry.kind == FileKind::Directory {
            let dir = find(path).map_err(|e| fail("lookup", path, e))?;
            fs.unlink(&root, dir, b"new file")
                .map_err(|e| fail("unlink in", path, e))?;
            if !name.is_empty() {
                fs.rmdir(&root, parent, name)
                    .map_err(|e| fail("rmdir", path, e))?;
            }
        } else {
            fs.unlink(&root, parent, name)
                .map_err(|e| fail("unlink", path, e))?;
        }
    }
    fs.sync().map_err(|e| fail("sync", b"/", e))?;
    let free = fs
        .statfs()
        .map_err(|e| fail("statfs", b"/", e))?
        .blocks_free;
    if free != empty_free {
        return Err(format!(
            "using the volume: {free} blocks are free after everything was deleted, {empty_free} were when it was made"
        ));
    }
    Ok(())
}
