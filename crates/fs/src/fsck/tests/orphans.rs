//! Entries of the orphan directory that are no orphans: one repair handles all of them.

use super::fuzz::{Near, survive};
use super::image::{Image, mount, walk};
use crate::fsck::{Outcome, Problem};
use std::collections::BTreeMap;

/// Repairs an image, and asserts that a second check finds nothing to repair, that all reachable content is still
/// there, and that a mount leaves no orphan.
fn is_put_right(image: &Image) {
    let (before, _) = walk(&mount(image.device()));
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Repaired, "{report:#?}");
    let second = repaired.check();
    assert_eq!(second.outcome(), Outcome::Clean, "{:#?}", second.findings);
    let device = repaired.device();
    let fs = mount(device.clone());
    let (after, errors) = walk(&fs);
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(after >= before, "{after} of {before} are left");
    fs.unmount().unwrap();
    drop(fs);
    let third = Image::of(&device, BTreeMap::default()).check();
    assert!(third.findings.is_empty(), "{:#?}", third.findings);
    let near = Near {
        paths: vec!["/gone".to_owned()],
        repairable: true,
        forged: false,
    };
    survive(image, &near, 1);
}

/// A forged mode of an open orphan made it a directory without entries. The repair gave it the links of a directory, the
/// next pass took it for one that had lost its name, and no later pass took it out of the list of orphans.
#[test]
fn an_orphan_with_the_mode_of_a_directory_is_put_right_by_one_repair() {
    let mut image = Image::populated();
    image.edit_inode(image.ino("/gone"), |inode| inode.mode = 0x41a4.into());
    is_put_right(&image);
}

/// The next mount cannot cut a directory: its entry among the orphans would have stayed for ever.
#[test]
fn a_directory_with_a_name_is_taken_off_the_list_of_orphans() {
    let mut image = Image::populated();
    image.edit_inode(image.ino("/gone"), |inode| {
        (inode.mode, inode.nlink) = (0x41a4.into(), 2.into());
    });
    let before = image.check();
    assert!(before.has(Problem::Unreachable), "{:#?}", before.findings);
    assert!(before.has(Problem::OrphanEntry), "{:#?}", before.findings);
    is_put_right(&image);
}
