//! Puts this process into a stream of a mounted volume: its fsync(2) returns at once, and its sync commits its own changes
//! alone.
//!
//! A program needs the calls of this crate only. The mount is made here so that the example needs no other; it takes
//! /dev/fuse, and root or `fusermount3`.
//!
//! Run it with `cargo run -p steadfast-stream --example in_a_stream`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, MkfsOptions, mkfs};
use steadfast_fuse::{Ended, MountOptions, mount};
use steadfast_stream::{Settings, Who};

fn main() -> Result<(), Box<dyn Error>> {
    if !Path::new("/dev/fuse").exists() {
        println!("nothing is mounted: there is no /dev/fuse here");
        return Ok(());
    }
    // The contract `ordered` has streams.
    let device = Arc::new(MemDevice::new(4096));
    let options = MkfsOptions {
        contract: Contract::Ordered,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {})?;
    let (fs, _) = Fs::mount(device, &steadfast_fs::MountOptions::default())?;
    let dir = tempfile::tempdir()?;
    let session = mount(fs.clone(), dir.path(), &MountOptions::new("example"))?;

    let used = use_a_stream(dir.path());

    let ended = session.shutdown(Duration::from_secs(5));
    used?;
    fs.unmount()?;
    match ended {
        Ended::Clean | Ended::Abandoned => Ok(()),
        Ended::Failed(why) | Ended::Broken(why) => Err(why.into()),
    }
}

fn use_a_stream(volume: &Path) -> Result<(), Box<dyn Error>> {
    let settings = Settings {
        ignore_fsync: Some(true),
        ..Settings::default()
    };
    steadfast_stream::set(volume, Who::Process, "mail", &settings)?;

    let mut inbox = File::create(volume.join("inbox"))?;
    inbox.write_all(b"a message")?;
    inbox.sync_all()?; // Returns at once: the order is kept all the same.
    let own = |stats: &[steadfast_stream::Stats]| {
        let mut own = stats.iter().filter(|one| {
            let name = one.stream.name.as_ref();
            name.is_some_and(|(name, _)| name == "mail")
        });
        own.next().map(|one| (one.operations, one.uncommitted))
    };
    let (operations, uncommitted) = own(&steadfast_stream::stats(volume)?).ok_or("no stream")?;
    println!("{operations} operations, {uncommitted} of them not durable yet");
    assert!(operations > 0 && uncommitted > 0);

    steadfast_stream::sync_own(volume)?; // And now they are durable.
    let (_, uncommitted) = own(&steadfast_stream::stats(volume)?).ok_or("no stream")?;
    assert_eq!(uncommitted, 0);
    steadfast_stream::leave(volume, Who::Process)?;
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
