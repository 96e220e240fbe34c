//! Mounting: each rule of recovery, told as the crash that needs it.

#![allow(clippy::unwrap_used)]

mod mount_volume;

use mount_volume::{Tree, Volume, mounted, populated, tree};
use steadfast_pmfs::layout::ROOT;

#[test]
fn a_new_volume_has_an_empty_root_that_belongs_to_its_maker() {
    let volume = Volume::new(1 << 20);
    let mount = volume.mounted().unwrap();
    assert_eq!(
        tree(&mount),
        Tree::from([("/".into(), "Directory 755 0, 2 links".into())])
    );
    assert!(mount.report.clean && mount.report.counts.is_empty());
    let free = mount.free.as_ref().unwrap();
    assert_eq!(free.free_pages(), volume.geometry.data_pages_total());
    assert_eq!(
        free.free_inodes(),
        u64::from(volume.geometry.inodes() - ROOT)
    );
}

#[test]
fn everything_in_a_volume_is_found_again() {
    let volume = populated();
    let mount = volume.mounted().unwrap();
    assert_eq!(mount.report.recovered_words, 0, "{:?}", mount.report);
    let shown = tree(&mount);
    assert_eq!(shown.len(), 13);
    for threads in [2, 5] {
        let again = mounted(volume.copy().region, false, threads).unwrap();
        assert_eq!(tree(&again), shown);
        assert_eq!(again.report, mount.report);
    }
    let read_only = mounted(volume.copy().region, true, 1).unwrap();
    assert_eq!(tree(&read_only), shown);
}
