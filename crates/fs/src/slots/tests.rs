//! Inode blocks come and go with their inodes.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::fsck::{FsckOptions, fsck};
use crate::mkfs::mkfs;
use crate::mounted::Mounted;
use crate::options::MountOptions;
use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};

struct World {
    device: Arc<MemDevice>,
    fs: Arc<Mounted>,
    free: u64,
}

impl World {
    /// A volume, and how much of it is free.
    fn new() -> World {
        let device = Arc::new(MemDevice::new(4096));
        mkfs(&*device, &crate::testing::options(), &mut |_, _| {}).unwrap();
        let options = MountOptions {
            background: false,
            ..MountOptions::default()
        };
        let (fs, _) = Mounted::mount(Arc::clone(&device) as _, &options).unwrap();
        let free = fs.op_statfs().unwrap().blocks_free;
        World { device, fs, free }
    }

    fn begin(&self) -> Work<'_> {
        let credits = Credits {
            log_bytes: 1 << 16,
            data_blocks: 0,
        };
        self.fs.store.begin(OWN_STREAM, credits).unwrap()
    }

    /// Makes inodes without names until a block of their own holds `count` of them. Returns the others, and those
    /// inside the block.
    fn fill(&self, count: usize) -> (Vec<Place>, Vec<Place>) {
        let root = self.fs.store.volume.root;
        let (mut others, mut inside) = (Vec::new(), Vec::new());
        while inside.len() < count {
            let mut work = self.begin();
            let place = allocate(&self.fs.store, &self.fs.slots, &mut work, root).unwrap();
            fill(&mut work, place, &inode()).unwrap();
            work.commit();
            if place.block == BlockNo(root / INODE_SLOTS) {
                others.push(place);
            } else {
                inside.push(place);
            }
        }
        (others, inside)
    }

    fn free(&self, place: Place) {
        let mut work = self.begin();
        free(&self.fs.store, &self.fs.slots, &mut work, place, &inode()).unwrap();
        work.commit();
    }

    /// Two operations at once: neither frees the last inode of the block.
    fn free_side_by_side(&self, inside: &[Place]) {
        let (mut one, mut other) = (self.begin(), self.begin());
        free(
            &self.fs.store,
            &self.fs.slots,
            &mut one,
            inside[0],
            &inode(),
        )
        .unwrap();
        free(
            &self.fs.store,
            &self.fs.slots,
            &mut other,
            inside[1],
            &inode(),
        )
        .unwrap();
        one.commit();
        other.commit();
    }

    fn must_be_as_before(self) {
        self.fs.store.journal.sync_all().unwrap();
        assert_eq!(self.fs.op_statfs().unwrap().blocks_free, self.free);
        self.fs.unmount().unwrap();
        let device: Arc<dyn BlockDevice> = self.device;
        let report = fsck(device, &FsckOptions::default()).unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

fn inode() -> DiskInode {
    DiskInode {
        mode: 0o100_644.into(),
        generation: 1.into(),
        ..DiskInode::new_zeroed()
    }
}

/// Ten clients of a server removed their files at once: two operations freed the last two
/// inodes of a block, neither was the last as long as the other had not ended, and the
/// block stayed, without an inode.
#[test]
fn a_block_goes_with_inodes_that_are_freed_side_by_side() {
    let world = World::new();
    let (others, inside) = world.fill(2);
    world.free_side_by_side(&inside);
    world.fs.reap();
    others.into_iter().for_each(|place| world.free(place));
    world.must_be_as_before();
}

/// The same, with a claim in between that is given up.
#[test]
fn a_block_goes_when_the_last_claim_in_it_is_given_up() {
    let world = World::new();
    let (others, inside) = world.fill(1);
    let mut given_up = world.begin();
    let place = allocate(
        &world.fs.store,
        &world.fs.slots,
        &mut given_up,
        world.fs.store.volume.root,
    )
    .unwrap();
    assert_eq!(place.block, inside[0].block);
    world.free(inside[0]);
    drop(given_up);
    world.fs.reap();
    others.into_iter().for_each(|place| world.free(place));
    world.must_be_as_before();
}

/// A crash came between the removal of the inodes and that of their block.
#[test]
fn an_empty_block_is_used_or_freed_by_the_next_mount() {
    let world = World::new();
    let (others, inside) = world.fill(2);
    world.free_side_by_side(&inside);
    for place in others {
        world.free(place);
    }
    world.fs.store.journal.checkpoint().unwrap();
    world.fs.store.journal.abandon();
    let device: Arc<dyn BlockDevice> = world.device.clone();
    let report = fsck(Arc::clone(&device), &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), crate::fsck::Outcome::Clean);
    let (fs, _) = Mounted::mount(device, &MountOptions::default()).unwrap();
    let again = World { fs, ..world };
    let place = {
        let root = again.fs.store.volume.root;
        let slots = &again.fs.slots;
        slots
            .look_ahead(&again.fs.store, root, StreamId(0))
            .unwrap();
        let mut work = again.begin();
        let place = allocate(&again.fs.store, &again.fs.slots, &mut work, root).unwrap();
        fill(&mut work, place, &inode()).unwrap();
        work.commit();
        place
    };
    again.free(place);
    again.fs.reap();
    again.must_be_as_before();
}
