//! States of a volume that others change, served one after the other (`steadfast_vfs::Replica`): an inode's number may be
//! another file's in a later state. A reader of the old file gets ESTALE, never the new file's bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use steadfast_block::MemDevice;
use steadfast_fs::{Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, Ino, NewNode, Replica};

const BLOCKS: u64 = 4096;

/// The volume as it is now, mounted to be read.
fn state(device: &MemDevice) -> Arc<Fs> {
    let copy = MemDevice::from_bytes(&device.to_bytes());
    let mut options = MountOptions::default();
    options.read_only = true;
    Fs::mount(Arc::new(copy), &options).unwrap().0
}

fn make(fs: &Fs, name: &str, data: &[u8]) -> Ino {
    let caller = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let file = fs
        .mknod(&caller, fs.root(), name.as_bytes(), &node)
        .unwrap()
        .ino;
    fs.write(&caller, file, 0, data).unwrap();
    file
}

#[test]
fn a_number_that_is_another_files_by_now_is_stale_to_its_holder() {
    let device = Arc::new(MemDevice::new(BLOCKS));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let caller = Caller::root();
    let writer = Fs::mount(device.clone(), &MountOptions::default())
        .unwrap()
        .0;
    let kept = make(&writer, "kept", b"kept");
    let old = make(&writer, "old", b"old");
    writer.sync().unwrap();
    let replica = Replica::new(state(&device));
    let told = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&told);
    replica.on_replace(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let read = |ino| {
        let mut buf = [0; 16];
        let len = replica.read(&caller, ino, 0, &mut buf)?;
        Ok::<_, steadfast_vfs::Error>(buf[..len].to_vec())
    };
    let found = replica.lookup(&caller, replica.root(), b"old").unwrap();
    replica
        .open_generation(&caller, old, found.generation)
        .unwrap();
    replica.open(&caller, kept).unwrap();
    assert_eq!(
        (read(old).unwrap(), read(kept).unwrap()),
        (b"old".to_vec(), b"kept".to_vec())
    );
    // Removed, and the slot taken by another file.
    writer.unlink(&caller, writer.root(), b"old").unwrap();
    writer.sync().unwrap();
    let mut number = 0;
    while make(&writer, &format!("new-{number}"), b"another") != old {
        number += 1;
        assert!(number < 100, "the slot is not used again");
    }
    writer.write(&caller, kept, 0, b"KEPT").unwrap();
    writer.sync().unwrap();
    replica.replace(state(&device));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(read(kept).unwrap(), b"KEPT");
    assert_eq!(read(old).unwrap_err(), Errno::Stale);
    assert_eq!(replica.getattr(&caller, old).unwrap_err(), Errno::Stale);
    assert_eq!(
        replica
            .open_generation(&caller, old, found.generation)
            .unwrap_err(),
        Errno::Stale
    );
    // Found again by its new name, it is the new file, for as long as it is held.
    let name = format!("new-{number}");
    let another = replica
        .lookup(&caller, replica.root(), name.as_bytes())
        .unwrap();
    assert_eq!(another.ino, old);
    replica.release(old);
    replica
        .open_generation(&caller, old, another.generation)
        .unwrap();
    assert_eq!(read(old).unwrap(), b"another");
    assert_eq!(
        replica.write(&caller, old, 0, b"x").unwrap_err(),
        Errno::RoFs
    );
    // While the store may have deleted objects of the state, nothing is served.
    replica.stop();
    assert_eq!(told.load(Ordering::Relaxed), 2);
    assert_eq!(read(kept).unwrap_err(), Errno::Stale);
    assert_eq!(replica.statfs().unwrap_err(), Errno::Stale);
    assert!(replica.health().read_only);
    replica.replace(state(&device));
    assert_eq!(read(old).unwrap(), b"another");
    replica.release(old);
    replica.release(kept);
    replica.release(kept);
}
