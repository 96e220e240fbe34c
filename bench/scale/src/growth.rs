//! Costs that must not grow: the same short load on volumes that hold more and more.
//!
//! Each row is the median of some batches, so that a pause of the machine is no growth.

use crate::figures::{Figures, Process};
use crate::volume::{create, forget, make_quietly, open, open_with};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;
use steadfast_fs::Fs;
use steadfast_testkit::Random;
use steadfast_vfs::{AllocateMode, Caller, Errno, FileSystem as _, Ino, SetAttr, XattrMode};

/// Batches of a row.
const BATCHES: u64 = 11;
/// Steps of a batch.
const STEPS: u64 = 200;
/// Creates that are tried on a full volume after the first one: so few that not even the smallest has been looked into as a whole.
const FULL_CREATES: usize = 8;
/// Inodes known for each page that is written in [`scattered`].
const INODES_PER_PAGE: u64 = 10;
const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// Room for a million inodes and their names.
const CACHE_BYTES: u64 = GIB;

/// Takes all rows with `size` entries, inodes, pages; `image` is made again for each volume.
pub(crate) fn measure(image: &Path, size: u64, figures: &mut Figures) -> Result<(), String> {
    make_quietly(image, 16 * GIB)?;
    let inos = directory(image, size, figures)?;
    known(image, &inos, size, figures)?;
    full(image, size, figures)?;
    scattered(image, size, figures)?;
    control(size, figures)
}

/// Minimum cost of a look into `size` entries when they no longer fit into the processor's caches: maps of the standard
/// library, in the orders of `known-forget` and of `entries-create`.
fn control(size: u64, figures: &mut Figures) -> Result<(), String> {
    let mut map: HashMap<u64, [u64; 8]> = (0..size).map(|key| (key * 16, [key; 8])).collect();
    row(figures, "control-map-remove", size, |index| {
        let removed = map.remove(&(index * 7919 % size * 16));
        removed
            .map(drop)
            .ok_or_else(|| "an entry is missing".to_owned())
    })?;
    let mut random = Random::new(size);
    let mut tree: BTreeMap<u64, [u64; 8]> = (0..size).map(|_| (random.number(), [1; 8])).collect();
    row(figures, "control-tree-insert", size, |_| {
        tree.insert(random.number(), [1; 8]);
        Ok(())
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn name(index: u64) -> Vec<u8> {
    format!("file-{index:08}").into_bytes()
}

/// The median of some times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Keeps the microseconds of one step of a row.
fn row(
    figures: &mut Figures,
    row: &str,
    size: u64,
    mut step: impl FnMut(u64) -> Result<(), String>,
) -> Result<(), String> {
    let mut times = Vec::new();
    for batch in 0..BATCHES {
        let begun = Instant::now();
        for index in batch * STEPS..(batch + 1) * STEPS {
            step(index).map_err(|why| format!("{row}, step {index}: {why}"))?;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6 / STEPS as f64);
    }
    keep(figures, row, size, median(times))
}

fn keep(figures: &mut Figures, row: &str, size: u64, micros: f64) -> Result<(), String> {
    figures.value(&format!("growth-{row}-{size}"), "us", micros)
}

/// Changes in a directory of `size` entries. Returns the inodes.
fn directory(image: &Path, size: u64, figures: &mut Figures) -> Result<Vec<Ino>, String> {
    let caller = Caller::root();
    let (fs, _) = open(image)?;
    let dir = fs.mkdir(&caller, fs.root(), b"directory", 0o755);
    let dir = dir.map_err(text)?.ino;
    let made = (0..size).map(|index| create(&fs, dir, &name(index)));
    let inos = made.collect::<Result<Vec<Ino>, String>>()?;
    figures.value(
        &format!("growth-memory-{size}"),
        "MiB",
        Process::Own.resident_mib()?,
    )?;
    fs.unmount().map_err(text)?;
    drop(fs);
    // All of it in memory: the limits of the cache are another question.
    let (fs, _) = open_with(image, CACHE_BYTES)?;
    for index in 0..size {
        let found = fs.lookup(&caller, dir, &name(index));
        found.map_err(text)?;
    }
    let steps = BATCHES * STEPS;
    row(figures, "entries-create", size, |index| {
        create(&fs, dir, &name(size + index)).map(drop)
    })?;
    row(figures, "entries-unlink", size, |index| {
        // In another order than they were made in.
        let removed = fs.unlink(&caller, dir, &name(size + index * 7 % steps));
        removed.map_err(text)
    })?;
    row(figures, "setxattr-refused", size, |index| {
        let ino = inos[(index * 7919 % size) as usize];
        match fs.setxattr(&caller, ino, b"user.big", &[1; 60_000], XattrMode::Any) {
            Err(error) if error == Errno::NoSpc => Ok(()),
            other => Err(format!("an oversized attribute: {other:?}")),
        }
    })?;
    fs.unmount().map_err(text)?;
    Ok(inos)
}

/// `size` inodes are known to a front end, each by one open.
fn known(image: &Path, inos: &[Ino], size: u64, figures: &mut Figures) -> Result<(), String> {
    let caller = Caller::root();
    forget(image)?;
    let (fs, _) = open(image)?;
    for ino in inos {
        fs.open(&caller, *ino).map_err(text)?;
    }
    let mut random = Random::new(size);
    // The entry is in memory: a file that is opened was looked up just before.
    let some: Vec<Ino> = (0..STEPS)
        .map(|_| inos[random.below(size) as usize])
        .collect();
    for ino in &some {
        fs.getattr(&caller, *ino).map_err(text)?;
    }
    let one = |index: u64| some[(index % STEPS) as usize];
    row(figures, "known-open", size, |index| {
        fs.open(&caller, one(index)).map_err(text)
    })?;
    row(figures, "known-release", size, |index| {
        fs.release(one(index));
        Ok(())
    })?;
    row(figures, "known-forget", size, |index| {
        fs.release(inos[(index * 7919 % size) as usize]);
        Ok(())
    })?;
    let begun = Instant::now();
    fs.unmount().map_err(text)?;
    keep(
        figures,
        "known-unmount",
        size,
        begun.elapsed().as_secs_f64() * 1e6,
    )
}

/// A volume without a free block, whose inodes are not known: free slots have to be looked for.
fn full(image: &Path, size: u64, figures: &mut Figures) -> Result<(), String> {
    let caller = Caller::root();
    // Inodes, names, the log, and one group more.
    make_quietly(image, GIB + size * 512)?;
    let (fs, _) = open(image)?;
    let dir = fs.mkdir(&caller, fs.root(), b"directory", 0o755);
    let dir = dir.map_err(text)?.ino;
    for index in 0..size {
        create(&fs, dir, &name(index))?;
    }
    fill(&fs)?;
    fs.unmount().map_err(text)?;
    drop(fs);
    forget(image)?;
    let (fs, _) = open(image)?;
    let mut times = Vec::new();
    for index in 0..=FULL_CREATES {
        let begun = Instant::now();
        // Whether a slot is found or not is no matter here.
        let _ = create(&fs, dir, &name(size + index as u64));
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    keep(figures, "full-first-create", size, times.remove(0))?;
    keep(figures, "full-next-create", size, median(times))?;
    fs.unmount().map_err(text)
}

/// Gives every free block to a file.
fn fill(fs: &Fs) -> Result<(), String> {
    let caller = Caller::root();
    let file = create(fs, fs.root(), b"rest")?;
    let (mut at, mut bytes) = (0, 64 << 20);
    while bytes >= PAGE {
        match fs.fallocate(&caller, file, AllocateMode::Allocate, at, bytes) {
            Ok(()) => at += bytes,
            Err(error) if error == Errno::NoSpc => bytes /= 2,
            Err(error) => return Err(text(error)),
        }
    }
    Ok(())
}

/// Pages far apart in one file, closed and committed together.
fn scattered(image: &Path, size: u64, figures: &mut Figures) -> Result<(), String> {
    let caller = Caller::root();
    make_quietly(image, 16 * GIB)?;
    let (fs, _) = open(image)?;
    let file = create(&fs, fs.root(), b"scattered")?;
    let pages = size / INODES_PER_PAGE;
    let set = SetAttr {
        size: Some(pages * 3 * PAGE),
        ..SetAttr::default()
    };
    fs.setattr(&caller, file, &set).map_err(text)?;
    let begun = Instant::now();
    for index in 0..pages {
        // A permutation of every third page.
        let page = index * 7919 % pages * 3;
        let written = fs.write(&caller, file, page * PAGE, &[1; PAGE as usize]);
        written.map_err(text)?;
    }
    fs.fsync(&caller, file, false).map_err(text)?;
    let micros = begun.elapsed().as_secs_f64() * 1e6;
    keep(figures, "scattered-page", size, micros / pages as f64)?;
    fs.unmount().map_err(text)
}
