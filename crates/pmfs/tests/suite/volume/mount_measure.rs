//! Measurements, not checks: how long a mount takes and how much memory it needs. Run with
//! `cargo test --release -p steadfast-pmfs --test suite mount_measure -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]

use super::mount_volume::{ROOT_INODE, Volume, mounted};
use std::time::{Duration, Instant};
use steadfast_pm::Region;
use steadfast_pmfs::layout::*;
use steadfast_pmfs::mkfs::mkfs;
use steadfast_vfs::FileKind;

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE_BYTES
}

/// Time that this thread has run.
fn cpu() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split(' ').next().unwrap().parse().unwrap())
}

/// A volume of `dirs` directories with `files` files each, every file with `pages` pages in a row, or scattered.
fn volume(bytes: u64, dirs: u32, files: u64, pages: u64, scattered: bool) -> Volume {
    let region = Region::anonymous(bytes);
    let mut options = super::mount_volume::options();
    options.bytes_per_inode = 4096;
    let made = mkfs(&region, &options, &mut |_, _| {}).unwrap();
    let mut v = Volume::new(REGION_BYTES_MIN).within(region);
    v.geometry = made.geometry;
    let geometry = made.geometry;
    let all: Vec<u64> = (0..geometry.chunks())
        .flat_map(|chunk| geometry.data_pages(chunk))
        .collect();
    let (mut low, mut high) = (0, all.len());
    let mut near = || {
        low += 1;
        Page(all[low - 1])
    };
    let written = Life::settled(PageState::Written);
    let mut root = None;
    for k in 0..dirs {
        let dir = v.inode(FileKind::Directory, 0);
        if k % 64 == 0 {
            let page = near();
            v.describe_page(
                page,
                ROOT_INODE,
                u64::from(k / 64),
                PageKind::Directory,
                written,
            );
            root = Some(page);
        }
        v.name(
            Place::new(root.unwrap(), u64::from(k % 64)),
            format!("directory{k}").as_bytes(),
            dir,
        );
        let mut page = None;
        for n in 0..files {
            if n % 64 == 0 {
                page = Some(near());
                v.describe_page(page.unwrap(), dir, n / 64, PageKind::Directory, written);
            }
            let file = v.inode(FileKind::Regular, pages * PAGE_BYTES);
            v.name(
                Place::new(page.unwrap(), n % 64),
                format!("file{n}").as_bytes(),
                file,
            );
            for offset in 0..pages {
                let data = if scattered && offset % 2 == 1 {
                    high -= 1;
                    Page(all[high])
                } else {
                    near()
                };
                v.describe_page(data, file, offset, PageKind::Data, written);
            }
        }
    }
    v
}

fn measure(what: &str, v: Volume) {
    let pages = v.geometry.data_pages_total();
    let mut region = v.region;
    for (state, threads) in [
        ("first", 1),
        ("clean", 1),
        ("clean", 2),
        ("crashed", 1),
        ("crashed", 2),
    ] {
        if state == "crashed" {
            // The state after a crash: a name of an unborn inode, a page of another.
            let number = v.geometry.inodes();
            let page = Page(v.geometry.pages - 1);
            let at = v.geometry.desc_at(page);
            region.store(at + desc::OWNER, u64::from(number) << 32 | 1);
            region.store(at + desc::OFFSET, 1 << 8);
            region.store(at + desc::LIFE, Life::settled(PageState::Written).word());
        }
        let (before, start, ran) = (resident(), Instant::now(), cpu());
        let mount = mounted(region, false, threads).unwrap();
        let (took, ran) = (start.elapsed(), cpu() - ran);
        let bytes = resident().saturating_sub(before);
        let used = pages - mount.report.free_pages;
        println!(
            "{what}: {state}, {threads} threads: {took:?} ({ran:?} on the first), {} inodes, {used} pages in use, {} MiB, {} words repaired",
            mount.table.len(),
            bytes >> 20,
            mount.report.recovered_words
        );
        region = mount.medium.into_region();
        drop(mount.table);
        drop(mount.free);
    }
}

#[test]
#[ignore = "measures"]
fn many_small_files() {
    measure(
        "900 x 1000 files of 1 page",
        volume(8 << 30, 900, 1000, 1, false),
    );
}

#[test]
#[ignore = "measures"]
fn one_large_directory() {
    measure(
        "1 x 1000000 files without pages",
        volume(4 << 30, 1, 1_000_000, 0, false),
    );
}

#[test]
#[ignore = "measures"]
fn large_files() {
    measure(
        "10 x 10 files of 64 MiB",
        volume(8 << 30, 10, 10, 16384, false),
    );
    measure(
        "10 x 10 files of 64 MiB, scattered",
        volume(8 << 30, 10, 10, 16384, true),
    );
}
