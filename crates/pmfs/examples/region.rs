//! A volume on persistent memory: made, written, and mounted again after each power cut that the write could meet.
//!
//! The region is plain memory here, which records what it is asked. `Region::open` takes a file on tmpfs or DAX, or a DAX
//! device.
//!
//! Run it with `cargo run -p steadfast-pmfs --example region`.
#![allow(clippy::print_stdout)]

use std::error::Error;

use steadfast_pm::{CrashImage, Exploration, Region};
use steadfast_pmfs::fsck::{FsckOptions, fsck};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

fn main() -> Result<(), Box<dyn Error>> {
    let region = Region::recorded(vec![0; 1 << 20]);
    mkfs(&region, &MkfsOptions::default(), &mut |_, _| {})?;
    let mount = |region| PmFs::mount(region, &MountOptions::default(), &mut |_, _| {});
    let fs = mount(region)?;
    let me = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let file = fs.mknod(&me, fs.root(), b"greeting", &node)?.ino;
    // The name is durable: each call is when it returns. From here on, the power may fail.
    fs.medium().restart_recorder();
    let written = fs.write(&me, file, 0, b"Hello.")?;
    assert_eq!(written, 6, "less only on a full volume");

    // A write is there whole, or not at all, in each state that a cut may leave.
    let (mut before, mut after) = (0, 0);
    let check = |image: &CrashImage<'_>| {
        let cut = mount(image.region()).map_err(|e| e.to_string())?;
        match content(&cut).map_err(|e| e.to_string())?.as_slice() {
            b"" => before += 1,
            b"Hello." => after += 1,
            torn => return Err(format!("{torn:?}: {image}")),
        }
        Ok(())
    };
    let recorder = fs.medium().recorder().ok_or("not recorded")?;
    let trace = recorder.trace();
    trace.explore(&Exploration::default(), |_| true, check)?;
    println!("{before} states without the write, {after} with it");
    assert!(before > 0 && after > 0);

    assert_eq!(content(&fs)?, b"Hello.");
    let options = FsckOptions::default();
    let (report, _) = fsck(fs.into_region(), &options, &mut |_, _| {})?;
    assert!(report.is_sound());
    Ok(())
}

fn content(fs: &PmFs) -> steadfast_vfs::Result<Vec<u8>> {
    let me = Caller::root();
    let file = fs.lookup(&me, fs.root(), b"greeting")?;
    let mut found = vec![0; file.size as usize];
    let len = fs.read(&me, file.ino, 0, &mut found)?;
    found.truncate(len);
    Ok(found)
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
