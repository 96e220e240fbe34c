//! Volumes: making, mounting, leaving as after a crash, checking.

use crate::figures::{Figures, Process};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use steadfast_block::{BLOCK_SIZE, Direct, FileDevice, FileOptions};
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, Recovery, fsck, mkfs};
use steadfast_vfs::{Caller, FileKind, FileSystem as _, Ino, NewNode};

/// Opens an image as `steadfast mount` and `steadfast fsck` do.
fn device(image: &Path, read_only: bool) -> Result<Arc<FileDevice>, String> {
    let options = FileOptions {
        read_only,
        direct: Direct::Prefer,
        ..FileOptions::default()
    };
    FileDevice::open(image, &options)
        .map(Arc::new)
        .map_err(|e| e.to_string())
}

/// Mounts an image as `steadfast mount` does.
pub(crate) fn open(image: &Path) -> Result<(Arc<Fs>, Recovery), String> {
    Fs::mount(device(image, false)?, &MountOptions::default()).map_err(|e| e.to_string())
}

/// The same with this memory for reads.
pub(crate) fn open_with(image: &Path, cache_bytes: u64) -> Result<(Arc<Fs>, Recovery), String> {
    let mut options = MountOptions::default();
    options.cache_bytes = cache_bytes;
    Fs::mount(device(image, false)?, &options).map_err(|e| e.to_string())
}

/// Nothing of the image is in the host's page cache any more.
pub(crate) fn forget(image: &Path) -> Result<(), String> {
    let text = |e: std::io::Error| format!("{}: {e}", image.display());
    let file = std::fs::File::open(image).map_err(text)?;
    file.sync_all().map_err(text)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| format!("{}: {e}", image.display()))
}

/// A new empty file.
pub(crate) fn create(fs: &Fs, dir: Ino, name: &[u8]) -> Result<Ino, String> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let made = fs.mknod(&Caller::root(), dir, name, &node);
    made.map(|attr| attr.ino).map_err(|e| e.to_string())
}

/// Makes a sparse image anew and a volume that fills it, measuring nothing.
pub(crate) fn make_quietly(image: &Path, bytes: u64) -> Result<(), String> {
    if image.exists() {
        std::fs::remove_file(image).map_err(|e| format!("{}: {e}", image.display()))?;
    }
    let device = FileDevice::create(image, bytes / BLOCK_SIZE as u64, true);
    let device = device.map_err(|e| e.to_string())?;
    let made = mkfs(&device, &MkfsOptions::default(), &mut |_, _| {});
    made.map(drop).map_err(|e| e.to_string())
}

/// Makes a sparse image and a volume that fills it.
pub(crate) fn make(image: &Path, bytes: u64, figures: &mut Figures) -> Result<(), String> {
    let begun = Instant::now();
    let device = FileDevice::create(image, bytes / BLOCK_SIZE as u64, true);
    let device = device.map_err(|e| e.to_string())?;
    mkfs(&device, &MkfsOptions::default(), &mut |_, _| {}).map_err(|e| e.to_string())?;
    drop(device);
    figures.value("mkfs", "s", begun.elapsed().as_secs_f64())?;
    figures.value("mkfs-memory", "MiB", Process::Own.peak_mib()?)?;
    let stat = rustix::fs::stat(image).map_err(|e| format!("{}: {e}", image.display()))?;
    figures.value("mkfs-written", "MiB", stat.st_blocks as f64 / 2048.0)?;
    Ok(())
}

/// Mounts, asks for the free space twice, unmounts.
pub(crate) fn mount(image: &Path, figures: &mut Figures) -> Result<(), String> {
    forget(image)?;
    let begun = Instant::now();
    let (fs, recovery) = open(image)?;
    let name = if recovery.clean {
        "mount"
    } else {
        "mount-crashed"
    };
    figures.value(name, "s", begun.elapsed().as_secs_f64())?;
    if !recovery.clean {
        figures.value("replayed", "blocks", recovery.home_blocks as f64)?;
    }
    figures.value(
        &format!("{name}-memory"),
        "MiB",
        Process::Own.resident_mib()?,
    )?;
    for turn in ["first", "next"] {
        let begun = Instant::now();
        fs.statfs().map_err(|e| e.to_string())?;
        let micros = begun.elapsed().as_secs_f64() * 1e6;
        figures.value(&format!("{name}-statfs-{turn}"), "us", micros)?;
    }
    figures.value(
        &format!("{name}-statfs-memory"),
        "MiB",
        Process::Own.resident_mib()?,
    )?;
    let begun = Instant::now();
    fs.unmount().map_err(|e| e.to_string())?;
    figures.value(
        &format!("{name}-unmount"),
        "s",
        begun.elapsed().as_secs_f64(),
    )?;
    Ok(())
}

/// Makes files, makes them durable, and leaves everything as it is: the caller ends the process.
pub(crate) fn crash(image: &Path, count: u64) -> Result<(), String> {
    let (fs, _) = open(image)?;
    let root = fs.root();
    let dir = fs.mkdir(&Caller::root(), root, b"crashed", 0o755);
    let dir = dir.map_err(|e| e.to_string())?.ino;
    for index in 0..count {
        create(&fs, dir, format!("{index:08}").as_bytes())?;
    }
    fs.sync().map_err(|e| e.to_string())?;
    std::mem::forget(fs);
    Ok(())
}

/// Checks the volume, nothing of it in the page cache.
pub(crate) fn check(image: &Path, figures: &mut Figures) -> Result<(), String> {
    forget(image)?;
    let before = read_bytes()?;
    let steps: Arc<Mutex<Vec<(&'static str, Instant)>>> = Arc::default();
    let noted = Arc::clone(&steps);
    let options = FsckOptions {
        progress: Some(Arc::new(move |progress| {
            if let Ok(mut steps) = noted.lock()
                && steps.last().is_none_or(|(step, _)| *step != progress.step)
            {
                steps.push((progress.step, Instant::now()));
            }
        })),
        ..FsckOptions::default()
    };
    let begun = Instant::now();
    let report = fsck(device(image, true)?, &options).map_err(|e| e.to_string())?;
    let seconds = begun.elapsed().as_secs_f64();
    if report.outcome() != Outcome::Clean {
        return Err(format!("the volume is not clean: {:?}", report.findings));
    }
    let usage = report.usage;
    let inodes = (usage.files + usage.directories + usage.others) as f64;
    let mib = (read_bytes()? - before) / 1048576.0;
    figures.value("fsck", "s", seconds)?;
    let ends = steps.lock().map_err(|e| e.to_string())?;
    let next = ends
        .iter()
        .skip(1)
        .map(|(_, at)| *at)
        .chain([begun + begun.elapsed()]);
    for ((step, from), to) in ends.iter().zip(next) {
        let name = format!("fsck-step-{}", step.replace(' ', "-"));
        figures.value(&name, "s", (to - *from).as_secs_f64())?;
    }
    figures.value("fsck-inodes", "inodes", inodes)?;
    figures.value("fsck-inode-rate", "inodes/s", inodes / seconds)?;
    figures.value("fsck-read", "MiB", mib)?;
    figures.value("fsck-read-rate", "MiB/s", mib / seconds)?;
    figures.value("fsck-memory", "MiB", Process::Own.peak_mib()?)?;
    Ok(())
}

/// Bytes that this process has had fetched from disks.
fn read_bytes() -> Result<f64, String> {
    let path = "/proc/self/io";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("{path}: no read_bytes"))
}
