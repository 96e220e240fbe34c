//! This version opens, reads, writes and checks volumes that released versions made.
//!
//! `images/format-N.tar.xz` holds volumes of format version N, made and filled by the release that wrote that format
//! first, and never made again: `v2-ordered`, `v2-metadata-prefix` and `v2-sync` by contract, `v2-flash` without a
//! log on a flash image, `v2-log` copied while it was mounted, so that its log is to be replayed. A new format adds a
//! file; docs/formats.md has the policy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use common::{Place, said};

const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images");

/// The content that the script of that release made in each of them.
fn look(mnt: &Path) {
    assert_eq!(
        fs::read_to_string(mnt.join("small")).unwrap(),
        "a small file\n"
    );
    for i in 1..=150 {
        let file = mnt.join(format!("dir/file-with-a-name-of-some-length-{i}"));
        assert_eq!(fs::read_to_string(file).unwrap(), format!("{i}\n"));
    }
    assert_eq!(fs::read_dir(mnt.join("dir")).unwrap().count(), 153);
    let large: String = (0..12_000).map(|i| format!("{i:07}\n")).collect();
    assert!(fs::read_to_string(mnt.join("large")).unwrap() == large);
    let small = fs::metadata(mnt.join("small")).unwrap();
    assert_eq!((small.mode(), small.nlink()), (0o104_751, 2));
    assert_eq!(
        fs::metadata(mnt.join("dir/hard")).unwrap().ino(),
        small.ino()
    );
    assert_eq!(
        fs::read_link(mnt.join("dir/symbolic")).unwrap(),
        Path::new("../small")
    );
    let sparse = fs::metadata(mnt.join("sparse")).unwrap();
    assert_eq!((sparse.len(), sparse.blocks()), ((1 << 30) + 4, 8));
    assert!(
        fs::metadata(mnt.join("fifo"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    let null = fs::metadata(mnt.join("null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == rustix::fs::makedev(1, 3));
    let deep = fs::metadata(mnt.join("dir/deep")).unwrap();
    assert_eq!((deep.uid(), deep.gid()), (1000, 2000));
    let dir = fs::metadata(mnt.join("dir")).unwrap();
    assert_eq!((dir.mtime(), dir.mtime_nsec()), (981_173_106, 789_000_000));
    let attribute = |file: &str, name: &str| {
        let mut value = vec![0; 4096];
        let len = rustix::fs::getxattr(mnt.join(file), name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    assert_eq!(attribute("small", "user.small"), b"value");
    assert_eq!(attribute("large", "user.large"), vec![b'v'; 3000]);
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn volumes_of_every_released_format_are_opened_read_and_written() {
    let Some(place) = Place::new() else { return };
    let mut images = 0;
    for archive in fs::read_dir(IMAGES).unwrap() {
        let archive = archive.unwrap().path();
        let output = Command::new("tar")
            .arg("-xJf")
            .arg(&archive)
            .current_dir(place.path())
            .output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) if said(&output).contains("xz") => {
                return steadfast_testkit::skipped!("{}", said(&output));
            }
            Ok(output) => panic!("{}: {}", archive.display(), said(&output)),
            Err(e) => return steadfast_testkit::skipped!("tar: {e}"),
        }
    }
    let names = fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| name.ends_with(".img")).collect();
    for name in names {
        let (_, kind) = name.strip_suffix(".img").unwrap().split_once('-').unwrap();
        let shown = place.must(&["info", &name]);
        let state = if kind == "log" {
            "needs-recovery"
        } else {
            "clean"
        };
        assert!(
            shown.contains(&format!("state:    {state}\n")),
            "{name}: {shown}"
        );
        place.must(&["fsck", &name]);
        // First as it is, then after a write, then again.
        place.must(&["mount", "-o", "ro", &name, "mnt"]);
        look(&place.mnt());
        place.must(&["umount", "mnt"]);
        place.must(&["mount", &name, "mnt"]);
        look(&place.mnt());
        fs::write(place.mnt().join("new"), vec![b'n'; 100_000]).unwrap();
        fs::remove_file(place.mnt().join("fifo")).unwrap();
        place.must(&["umount", "mnt"]);
        place.must(&["fsck", &name]);
        place.must(&["mount", &name, "mnt"]);
        assert_eq!(
            fs::read(place.mnt().join("new")).unwrap(),
            vec![b'n'; 100_000]
        );
        assert!(!place.mnt().join("fifo").exists());
        place.must(&["umount", "mnt"]);
        images += 1;
    }
    assert!(images >= 5, "{images}");
}
