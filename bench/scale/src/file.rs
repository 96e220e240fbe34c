//! One sparse file of a great size.

use crate::figures::{Figures, Process};
use crate::volume::{create, forget, open};
use std::path::Path;
use std::time::Instant;
use steadfast_testkit::Random;
use steadfast_vfs::{AllocateMode, Caller, FileSystem as _, SetAttr};

const PAGE: u64 = 4096;
/// Bytes of a hole that is punched.
const HOLE: u64 = 1 << 20;

/// Random writes and reads of 4 KiB, holes punched, the file cut in half, removed.
pub(crate) fn measure(
    image: &Path,
    bytes: u64,
    writes: u64,
    figures: &mut Figures,
) -> Result<(), String> {
    let caller = Caller::root();
    let (fs, _) = open(image)?;
    let file = create(&fs, fs.root(), b"file")?;
    let pages = bytes / PAGE;
    let mut random = Random::new(bytes);
    let data = [0x5f; PAGE as usize];
    figures.curve("file-write", writes, Process::Own, |_| {
        let at = random.below(pages) * PAGE;
        let written = fs.write(&caller, file, at, &data);
        written.map(drop).map_err(|e| e.to_string())
    })?;
    let begun = Instant::now();
    fs.sync().map_err(|e| e.to_string())?;
    figures.value("file-sync", "s", begun.elapsed().as_secs_f64())?;
    fs.unmount().map_err(|e| e.to_string())?;
    drop(fs);

    forget(image)?;
    let (fs, _) = open(image)?;
    let mut buffer = [0; PAGE as usize];
    let mut random = Random::new(bytes);
    let mut found = 0;
    figures.curve("file-read", writes / 4, Process::Own, |index| {
        // Every second one finds data, the others holes.
        let at = random.below(pages) * PAGE + (index % 2) * (PAGE * pages / 2);
        let read = fs.read(&caller, file, at % (pages * PAGE), &mut buffer);
        found += u64::from(buffer[0] == 0x5f);
        read.map(drop).map_err(|e| e.to_string())
    })?;
    if found < writes / 8 {
        return Err(format!("{found} pages found of {}", writes / 8));
    }
    figures.curve("file-punch", writes / 100, Process::Own, |_| {
        let at = random.below((bytes / HOLE).max(1)) * HOLE;
        let punched = fs.fallocate(&caller, file, AllocateMode::PunchHole, at, HOLE);
        punched.map_err(|e| e.to_string())
    })?;
    let begun = Instant::now();
    let set = SetAttr {
        size: Some(bytes / 2),
        ..SetAttr::default()
    };
    fs.setattr(&caller, file, &set).map_err(|e| e.to_string())?;
    figures.value("file-truncate", "s", begun.elapsed().as_secs_f64())?;
    let begun = Instant::now();
    fs.unlink(&caller, fs.root(), b"file")
        .map_err(|e| e.to_string())?;
    figures.value("file-remove", "s", begun.elapsed().as_secs_f64())?;
    figures.value("file-memory", "MiB", Process::Own.peak_mib()?)?;
    fs.unmount().map_err(|e| e.to_string())
}
