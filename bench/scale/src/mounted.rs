//! One directory with very many files through a mount.

use crate::figures::{Figures, Process};
use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;
use steadfast_testkit::Random;

/// Creates, looks up, lists and removes files through the kernel; memory is the server's.
pub(crate) fn measure(
    dir: &Path,
    count: u64,
    server: u32,
    figures: &mut Figures,
) -> Result<(), String> {
    let process = Process::Other(server);
    let dir = dir.join("directory");
    fs::create_dir(&dir).map_err(|e| e.to_string())?;
    let name = |index: u64| dir.join(format!("file-{index:08}"));
    figures.curve("mounted-create", count, process, |index| {
        let made = File::create_new(name(index));
        made.map(drop).map_err(|e| e.to_string())
    })?;
    let mut random = Random::new(count);
    figures.curve("mounted-stat", count / 10, process, |_| {
        let found = fs::metadata(name(random.below(count)));
        found.map(drop).map_err(|e| e.to_string())
    })?;
    let begun = Instant::now();
    let mut seen = 0;
    for entry in fs::read_dir(&dir).map_err(|e| e.to_string())? {
        entry.map_err(|e| e.to_string())?;
        seen += 1;
    }
    if seen != count {
        return Err(format!("{seen} entries listed, {count} made"));
    }
    let each = begun.elapsed().as_secs_f64() * 1e6 / count as f64;
    figures.value("mounted-readdir", "us", each)?;
    figures.curve("mounted-remove", count, process, |index| {
        fs::remove_file(name(index)).map_err(|e| e.to_string())
    })?;
    fs::remove_dir(&dir).map_err(|e| e.to_string())?;
    figures.value("mounted-memory", "MiB", process.peak_mib()?)?;
    Ok(())
}
