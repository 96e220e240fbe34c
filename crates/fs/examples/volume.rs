//! A volume in memory: made, mounted, written, cut off, mounted again, checked.
//!
//! Run it with `cargo run -p steadfast-fs --example volume`.

use std::error::Error;
use std::sync::Arc;
use steadfast_fs::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_sim::SimDevice;
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

fn main() -> Result<(), Box<dyn Error>> {
    // Any block device will do; this one remembers what a power cut may leave.
    let device = Arc::new(SimDevice::new(4096));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {})?;
    let (fs, _) = Fs::mount(device.clone(), &MountOptions::default())?;
    let me = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let file = fs.mknod(&me, fs.root(), b"greeting", &node)?.ino;
    let written = fs.write(&me, file, 0, b"Hello.")?;
    assert_eq!(written, 6, "less only on a full volume");
    fs.fsync(&me, file, false)?;

    // Changes that are durable now are on every disk that a power cut may leave.
    let durable = device.explorer().cut(usize::MAX).durable().clone();
    let after = Arc::new(SimDevice::from_image(durable));
    let (again, recovery) = Fs::mount(after.clone(), &MountOptions::default())?;
    println!("{} records were replayed", recovery.records);
    let file = again.lookup(&me, again.root(), b"greeting")?;
    let mut found = vec![0; file.size as usize];
    again.read(&me, file.ino, 0, &mut found)?;
    println!("{}", String::from_utf8_lossy(&found));
    assert_eq!(found, b"Hello.");

    again.unmount()?;
    assert!(again.getattr(&me, file.ino).is_err(), "unmounted");
    let report = fsck(after, &FsckOptions::default())?;
    assert_eq!(report.outcome(), Outcome::Clean);
    fs.unmount()?;
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
