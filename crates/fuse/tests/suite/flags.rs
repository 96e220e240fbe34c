//! Flags of files, as chattr(1) sets them through the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use common::Mount;
use rustix::fs::IFlags;

/// The kernel does not know that the command changes the file, and showed the old time from its cache for a day
/// (xfstests generic/277).
#[test]
fn chattr_shows_a_new_ctime_at_once() {
    let Some(m) = Mount::new(|_| {}) else { return };
    let path = m.join("file");
    let file = File::create(&path).unwrap();
    let ctime = || {
        fs::metadata(&path)
            .map(|m| (m.ctime(), m.ctime_nsec()))
            .unwrap()
    };
    let before = ctime();
    rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).unwrap();
    assert!(ctime() > before);
}
