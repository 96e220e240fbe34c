//! Mounts a file system that lives in this process, uses it through the kernel, and unmounts it.
//!
//! Run it with `cargo run -p steadfast-fuse --example mount`. It needs /dev/fuse, and root or `fusermount3`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use steadfast_fuse::{Ended, MountOptions, mount};
use steadfast_model::memfs::MemFs;
use steadfast_vfs::SystemClock;

fn main() -> Result<(), Box<dyn Error>> {
    if !Path::new("/dev/fuse").exists() {
        println!("nothing is mounted: there is no /dev/fuse here");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    // Any implementation of `steadfast_vfs::FileSystem`: a volume (`steadfast_fs::Fs`), or your own.
    let fs = Arc::new(MemFs::new(Arc::new(SystemClock)));
    // The kernel's list of mounts shows `fuse.example-fs`.
    let options = MountOptions::new("example").subtype("example-fs");
    let session = mount(fs, dir.path(), &options)?;

    let used = use_it(dir.path());

    // Unmounts. Programs that still hold files of it get five seconds to let go of them.
    let ended = session.shutdown(Duration::from_secs(5));
    let found = used?;
    println!("read back: {found}");
    assert_eq!(found, "Hello.");
    match ended {
        Ended::Clean | Ended::Abandoned => Ok(()),
        Ended::Failed(why) | Ended::Broken(why) => Err(why.into()),
    }
}

fn use_it(mount_point: &Path) -> Result<String, std::io::Error> {
    std::fs::create_dir(mount_point.join("dir"))?;
    std::fs::write(mount_point.join("dir/greeting"), "Hello.")?;
    std::fs::rename(
        mount_point.join("dir/greeting"),
        mount_point.join("greeting"),
    )?;
    std::fs::read_to_string(mount_point.join("greeting"))
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
