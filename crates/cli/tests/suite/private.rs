//! Files whose readers can read a volume around its permissions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::common::programs;
#[cfg(feature = "store")]
use crate::place;

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// `dd if=/dev/zero of=img` makes a file of mode 0644: a stranger read root's private files out of the image.
#[test]
fn an_image_that_others_made_readable_is_its_owners_alone_after_mkfs() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("img");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    set_mode(&image, 0o644);
    let made = |args: &[&str]| {
        let output = programs::run(dir.path(), programs::PROGRAM, args);
        let said = programs::said(&output);
        assert!(output.status.success(), "{args:?}: {said}");
        said
    };
    let said = made(&["mkfs", "img"]);
    assert!(said.contains("its mode was 0644"), "{said}");
    assert_eq!(mode(&image), 0o600);
    // And again, on what is there.
    set_mode(&image, 0o666);
    made(&["mkfs", "--force", "img"]);
    assert_eq!(mode(&image), 0o600);
    let said = made(&["mkfs", "--force", "img"]);
    assert!(!said.contains("its mode was"), "{said}");
}

#[cfg(feature = "flash")]
#[test]
fn so_is_a_flash_image() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("nand");
    programs::must(
        dir.path(),
        programs::PROGRAM,
        &["mkfs", "--on", "flash", "--size", "64M", "nand"],
    );
    assert_eq!(mode(&image), 0o600);
    set_mode(&image, 0o640);
    programs::must(
        dir.path(),
        programs::PROGRAM,
        &["mkfs", "--on", "flash", "--force", "nand"],
    );
    assert_eq!(mode(&image), 0o600);
}

#[test]
fn a_mount_of_an_image_that_others_may_read_says_so() {
    let Some(place) = crate::common::Place::new() else {
        return;
    };
    let said = place.must(&["mount", "img", "mnt"]);
    assert!(!said.contains("chmod 600"), "{said}");
    place.must(&["umount", "mnt"]);
    set_mode(&place.path().join("img"), 0o644);
    let said = place.must(&["mount", "img", "mnt"]);
    assert!(
        said.contains("every file of the volume: chmod 600"),
        "{said}"
    );
    place.must(&["umount", "mnt"]);
}

#[cfg(feature = "store")]
#[test]
fn a_key_file_that_others_may_read_is_named_when_it_is_used() {
    let place = place::Place::anywhere();
    fs::write(place.at("key"), [7; 32]).unwrap();
    for (mode, warned) in [(0o600, false), (0o644, true)] {
        set_mode(&place.at("key"), mode);
        let url = place.url(&format!("store{mode:o}"));
        let mkfs = [
            "mkfs",
            "--on",
            &url,
            "--size",
            "64M",
            "--encrypt",
            "--key-file",
            "key",
        ];
        let said = place.must(&mkfs);
        let line = "the key of the volume: chmod 600";
        assert_eq!(said.contains(line), warned, "{said}");
    }
}
