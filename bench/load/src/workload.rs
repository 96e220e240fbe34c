//! The workloads. Each runs once, checks what the system answered, and returns the seconds of the part that counts:
//! making the file names and the data is not in it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const SMALL_FILE_BYTES: usize = 100;
const APPEND_PIECE_BYTES: usize = 1 << 20;

/// Creates `count` files in `dir`, each with 100 bytes and made durable before the next: the mail spool's habit.
pub(crate) fn smallfile(dir: &Path, count: u32) -> Result<f64, String> {
    let data = pattern(SMALL_FILE_BYTES);
    let paths: Vec<_> = (0..count)
        .map(|i| dir.join(format!("small-{i:06}")))
        .collect();
    let start = Instant::now();
    for path in &paths {
        let written = File::create_new(path).and_then(|mut file| {
            file.write_all(&data)?;
            file.sync_all()
        });
        written.map_err(|e| failed("create, write and fsync", path, &e))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Appends `mib` mebibytes to a new file in `dir`, then makes it durable.
pub(crate) fn append(dir: &Path, mib: u32) -> Result<f64, String> {
    let data = pattern(APPEND_PIECE_BYTES);
    let path = dir.join("append");
    let start = Instant::now();
    let written = File::create_new(&path).and_then(|mut file| {
        for _ in 0..mib {
            file.write_all(&data)?;
        }
        file.sync_all()
    });
    written.map_err(|e| failed("append to", &path, &e))?;
    Ok(start.elapsed().as_secs_f64())
}

/// Clones the repository at `source` into the new directory `dest`, objects copied, work tree checked out.
pub(crate) fn clone(source: &Path, dest: &Path) -> Result<f64, String> {
    let start = Instant::now();
    let status = Command::new("git")
        .args(["clone", "--quiet", "--no-hardlinks"])
        .arg(source)
        .arg(dest)
        .status()
        .map_err(|e| format!("could not start git: {e}"))?;
    let seconds = start.elapsed().as_secs_f64();
    if status.success() {
        Ok(seconds)
    } else {
        Err(format!(
            "git clone of {} into {} failed: {status}",
            source.display(),
            dest.display()
        ))
    }
}

/// Bytes that are neither zero nor repeat within a block, the same in every run.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("could not {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_workloads_leave_the_files_they_are_named_for() {
        let dir = std::env::temp_dir().join(format!("steadfast-load-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(smallfile(&dir, 3).unwrap() > 0.0);
        assert!(append(&dir, 2).unwrap() > 0.0);
        let small = std::fs::read(dir.join("small-000002")).unwrap();
        let appended = std::fs::metadata(dir.join("append")).unwrap().len();
        let again = smallfile(&dir, 3);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(small, pattern(100));
        assert_eq!(appended, 2 << 20);
        assert!(again.unwrap_err().contains("small-000000"));
    }
}
