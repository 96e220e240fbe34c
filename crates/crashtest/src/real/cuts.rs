//! Shared by calibration and confirmation: a mount for calls, cuts in its log, and the result of recovery for each.

use super::RealError;
use super::disk::{Event, Pick, Recording};
use super::kinds::Kind;
use super::look::look;
use super::stage::Stage;
use crate::effects::Disk;
use crate::states::Chance;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use steadfast_model::data::FileData;

/// Time without requests after which write-back is over, and the longest wait for that.
const QUIET: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(100));

/// Prepares a Btrfs for [`commit`].
pub(super) fn prepare_commit(root: &Path, fs: Kind) -> std::io::Result<()> {
    if fs != Kind::Btrfs {
        return Ok(());
    }
    let made = Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(root.join(".empty"))
        .stdout(Stdio::null())
        .status()?;
    match made.success() {
        true => Ok(()),
        false => Err(std::io::Error::other("btrfs subvolume create failed")),
    }
}

/// Recovers an image: returns its tree, or the reason why there is none.
pub(super) fn recover(
    stage: &mut Stage,
    image: FileData,
    fs: Kind,
    options: &str,
    dir: &str,
) -> Result<Result<Disk, String>, RealError> {
    let disk = stage.disk(image, false);
    let mounted = match stage.mount(&disk, fs, options) {
        Err(error @ RealError::Mount { .. }) => {
            return Ok(Err(format!("it does not mount: {error}")));
        }
        other => other?,
    };
    let tree = look(&mounted.path().join(dir)).map_err(|(path, e)| {
        let inside = path.strip_prefix(mounted.path()).unwrap_or(&path);
        format!("{} cannot be read: {e}", inside.display())
    });
    mounted.unmount()?;
    Ok(tree)
}

/// Btrfs commits a transaction when a subvolume is snapshotted, and leaves the data of others in memory.
pub(super) fn commit(root: &Path, name: &str) -> Result<(), RealError> {
    let made = Command::new("btrfs")
        .args(["subvolume", "snapshot"])
        .args([root.join(".empty"), root.join(format!(".snapshot{name}"))])
        .stdout(Stdio::null())
        .status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(RealError::system("btrfs subvolume snapshot")(
            std::io::Error::other(status.to_string()),
        )),
        Err(e) => Err(RealError::system("btrfs")(e)),
    }
}

/// Waits until the disk is quiet.
pub(super) fn quiet(position: &dyn Fn() -> usize) {
    let until = Instant::now() + QUIET.1;
    let mut last = position();
    let mut since = Instant::now();
    while Instant::now() < until {
        std::thread::sleep(Duration::from_micros(500));
        let now = position();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() >= QUIET.0 {
            return;
        }
    }
}

pub(super) fn returned(recording: &Recording, from: usize, at: usize) -> usize {
    let events = recording.log[from.min(at)..at].iter().rev();
    let mut returned = events.filter_map(|e| match e {
        Event::Returned(n) => Some(*n),
        _ => None,
    });
    returned.next().unwrap_or(0)
}

/// Moments and choices of the cuts, in the order of the log.
pub(super) fn picks(
    recording: &Recording,
    (from, to): (usize, usize),
    share: usize,
    chance: &mut Chance,
) -> Vec<(usize, Pick)> {
    let log = &recording.log;
    let from = (from + 1).min(to);
    // Moments with much pending say most: just before a flush.
    let flushes: Vec<usize> = (from..to)
        .filter(|i| matches!(log[*i], Event::Flush))
        .collect();
    let mut all = Vec::new();
    for _ in 0..share {
        let at = match chance.below(3) {
            0 if !flushes.is_empty() => flushes[chance.below(flushes.len())],
            _ => from + chance.below(to + 1 - from),
        };
        let seed = chance.below(usize::MAX) as u64;
        all.push((at, pick(chance.below(8), seed)));
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// A way to choose, by a number below 8.
fn pick(way: usize, seed: u64) -> Pick {
    match way {
        0 => Pick::All,
        1 => Pick::None,
        2 | 3 => Pick::Subset(seed),
        4 => Pick::Without(seed),
        5 => Pick::Only(seed),
        6 => Pick::Torn(seed),
        _ => Pick::Shreds(seed),
    }
}
