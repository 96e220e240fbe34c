//! After a shutdown, a volume writes nothing any more, and its next mount finds everything that
//! was requested to be durable.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::time::Duration;
use steadfast_fs::{
    Contract, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, Recovery, fsck, mkfs,
};
use steadfast_sim::SimDevice;
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode, SetAttr, Shutdown};

const BYTES: usize = 50_000;

fn mount(device: &Arc<SimDevice>) -> (Arc<Fs>, Recovery) {
    let mut options = MountOptions::default();
    // Threads that would commit soon by themselves.
    options.background = true;
    options.commit_interval = Duration::from_millis(200);
    Fs::mount(device.clone(), &options).unwrap()
}

fn write(fs: &Fs, name: &[u8]) -> u64 {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let root = Caller::root();
    let ino = fs.mknod(&root, fs.root(), name, &node).unwrap().ino;
    fs.write(&root, ino, 0, &[7; BYTES]).unwrap();
    ino
}

fn go_down(contract: Contract, how: Shutdown) -> (bool, Recovery) {
    let device = Arc::new(SimDevice::new(4096));
    let options = MkfsOptions {
        contract,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {}).unwrap();
    let (fs, _) = mount(&device);
    let root = Caller::root();
    let synced = write(&fs, b"synced");
    fs.sync().unwrap();
    // Under `metadata-prefix` this waits to be written in place.
    fs.write(&root, synced, 4096, &[8; 4096]).unwrap();
    let ino = write(&fs, b"written");
    fs.shutdown(how).unwrap();
    let written = device.trace_len();
    let shorter = SetAttr {
        size: Some(5000),
        ..SetAttr::default()
    };
    let refused = [
        fs.write(&root, ino, 0, b"x").map(drop),
        fs.fsync(&root, ino, false),
        fs.sync(),
        fs.unlink(&root, fs.root(), b"synced"),
        fs.setattr(&root, ino, &Default::default()).map(drop),
        fs.fsync(&root, synced, true),
        fs.setattr(&root, synced, &shorter).map(drop),
    ];
    for result in refused {
        let errno = result.unwrap_err().errno;
        assert!(matches!(errno, Errno::Io | Errno::RoFs), "{errno:?}");
    }
    std::thread::sleep(Duration::from_millis(500));
    fs.shutdown(Shutdown::Nothing).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    assert_eq!(
        device.trace_len(),
        written,
        "something was written after it went down"
    );

    let image = device.image();
    let again = Arc::new(SimDevice::from_image(image));
    let (fs, recovery) = mount(&again);
    assert!(fs.lookup(&root, fs.root(), b"synced").is_ok());
    let found = fs.lookup(&root, fs.root(), b"written").is_ok();
    fs.unmount().unwrap();
    let report = fsck(again, &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean);
    (found, recovery)
}

#[test]
fn with_everything_at_its_place_nothing_is_left_to_replay() {
    for contract in Contract::ALL {
        let (found, recovery) = go_down(contract, Shutdown::Everything);
        assert!(found, "{contract}");
        assert_eq!(recovery.records, 0, "{contract}");
    }
}

#[test]
fn with_everything_in_the_log_the_next_mount_replays_it() {
    for contract in Contract::ALL {
        let (found, recovery) = go_down(contract, Shutdown::Log);
        assert!(found, "{contract}");
        assert!(recovery.records > 0, "{contract}");
    }
}

#[test]
fn with_nothing_more_unsynced_changes_are_gone() {
    for contract in Contract::ALL {
        let (found, _) = go_down(contract, Shutdown::Nothing);
        // Under `sync`, calls that returned are durable.
        assert_eq!(found, contract == Contract::Sync, "{contract}");
    }
}
