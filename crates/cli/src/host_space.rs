//! Whether a sparse image can grow to its length: its file system must have the space that the image has not yet
//! taken. When the file system is full, writes fail although the volume promised space for them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::size;

/// Interval of checks while a volume is served.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Space that an image may still take, and the free space of its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    needed: u64,
    free: u64,
}

impl Room {
    /// The room of an image file; None for a block device.
    fn of(image: &Path) -> Option<Room> {
        let file = std::fs::metadata(image).ok()?;
        if !file.is_file() {
            return None;
        }
        let host = rustix::fs::statvfs(image).ok()?;
        Some(Room {
            needed: file.len().saturating_sub(file.blocks() * 512),
            free: host.f_bavail * host.f_frsize,
        })
    }

    fn warning(self) -> Option<String> {
        (self.free < self.needed).then(|| {
            format!(
                "the image is sparse and may still need {}, but its file system has {} left: when that is used up, writes \
                 fail although the volume has free space; make room there",
                size::show(self.needed),
                size::show(self.free)
            )
        })
    }
}

/// The warning about an image, if one is due.
pub(crate) fn warning(image: &Path) -> Option<String> {
    Room::of(image).and_then(Room::warning)
}

/// Sends the warning once each time that room becomes short, until the sender of `end` is gone.
pub(crate) fn watch(image: PathBuf, tell: impl Fn(&str) + Send + 'static, end: Receiver<()>) {
    let mut short = warning(&image).is_some();
    let looking = move || {
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            let now = warning(&image);
            if let (Some(said), false) = (&now, short) {
                tell(said);
            }
            short = now.is_some();
        }
    };
    // Without the thread, only the mount has warned.
    let _ = std::thread::Builder::new()
        .name("host-space".to_owned())
        .spawn(looking);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_image_that_outgrows_its_file_system_is_warned_of() {
        let room = |needed, free| Room { needed, free }.warning();
        assert_eq!(room(0, 0), None);
        assert_eq!(room(5 << 30, 5 << 30), None);
        let said = room(5 << 30, 1 << 30).unwrap_or_default();
        assert!(said.contains('5') && said.contains("sparse"), "{said}");
        assert_eq!(warning(Path::new("/dev/null")), None);
    }
}
