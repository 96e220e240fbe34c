//! One mount: how long it takes, and the memory that it leaves in use.
//!
//! A process mounts once, so that the memory is that of the mount. Only anonymous memory counts: the region itself is mapped.

use crate::Result;
use crate::fill::unreserved;
use std::path::Path;
use std::time::Instant;
use steadfast_pm::Region;
use steadfast_pmfs::{MountOptions, PmFs};

/// Anonymous memory of this process in bytes.
fn anonymous_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.split_whitespace().next());
    let kib: u64 = kib.ok_or("/proc/self/status has no RssAnon")?.parse()?;
    Ok(kib << 10)
}

/// Mounts `image` with `threads` threads, and unmounts it. Prints the seconds, and the memory in use while it is mounted.
pub(crate) fn measure(image: &Path, threads: usize) -> Result<()> {
    let mut options = MountOptions::default();
    options.scan_threads = threads;
    let before = anonymous_bytes()?;
    let start = Instant::now();
    let region = Region::open(image, &unreserved())?;
    let opened = start.elapsed().as_secs_f64();
    let fs = PmFs::mount(region, &options, &mut |_, _| {})?;
    let seconds = start.elapsed().as_secs_f64();
    let after = anonymous_bytes()?;
    fs.unmount()?;
    println!("open-seconds {opened:.6}");
    println!("seconds {seconds:.6}");
    println!("anonymous-bytes {}", after.saturating_sub(before));
    Ok(())
}
