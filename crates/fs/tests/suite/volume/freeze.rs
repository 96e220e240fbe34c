//! A volume that is frozen stands still on its device, under every contract, and its content is a sound volume that holds
//! everything that was done before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_frozen_device_stands_still_and_a_copy_of_it_is_a_volume_with_all_that_was_done() {
    for contract in Contract::ALL {
        let device = Arc::new(MemDevice::new(4096));
        let options = MkfsOptions {
            contract,
            ..MkfsOptions::default()
        };
        mkfs(&*device, &options, &mut |_, _| {}).unwrap();
        let mut mount = MountOptions::default();
        mount.commit_interval = Duration::from_millis(20);
        let (fs, _) = Fs::mount(device.clone(), &mount).unwrap();
        let caller = Caller::root();
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let before = fs.mknod(&caller, fs.root(), b"before", &new).unwrap();
        fs.write(&caller, before.ino, 0, &[b'b'; 50_000]).unwrap();

        fs.freeze(LONG).unwrap();
        assert_eq!(fs.freeze(LONG).unwrap_err().errno, Errno::Busy);
        let frozen = device.to_bytes();
        let (tell, told) = channel();
        let thread = {
            let (fs, caller) = (Arc::clone(&fs), caller.clone());
            std::thread::spawn(move || {
                // New data, data over old data, and a sync of it.
                let made = fs.mknod(&caller, fs.root(), b"later", &new).unwrap();
                fs.write(&caller, made.ino, 0, &[b'l'; 50_000]).unwrap();
                fs.write(&caller, before.ino, 0, &[b'o'; 50_000]).unwrap();
                fs.fsync(&caller, made.ino, false).unwrap();
                tell.send(()).unwrap();
            })
        };
        // Many commit intervals: enough to see changes that do not wait.
        let early = told.recv_timeout(Duration::from_millis(300));
        assert_eq!(
            early,
            Err(RecvTimeoutError::Timeout),
            "{contract}: a sync returned"
        );
        let still = device.to_bytes();
        assert!(still == frozen, "{contract}: something was written");

        let copy = Arc::new(MemDevice::from_bytes(&frozen));
        assert!(fs.thaw());
        assert!(!fs.thaw());
        thread.join().unwrap();
        fs.unmount().unwrap();
        let report = fsck(copy.clone(), &FsckOptions::default()).unwrap();
        assert_eq!(
            report.outcome(),
            Outcome::Clean,
            "{contract}: {:?}",
            report.findings
        );
        let (fs, _) = Fs::mount(copy, &MountOptions::default()).unwrap();
        let found = fs.lookup(&caller, fs.root(), b"before").unwrap();
        let mut data = vec![0; 50_000];
        assert_eq!(fs.read(&caller, found.ino, 0, &mut data).unwrap(), 50_000);
        assert!(data == [b'b'; 50_000], "{contract}");
        assert!(fs.lookup(&caller, fs.root(), b"later").is_err());
        fs.unmount().unwrap();
    }
}
