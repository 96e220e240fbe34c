//! Story: a transaction closed, `Client::close` took the delayed pages of a file out of
//! memory, and the operation with their new blocks was committed only after the inode's lock
//! was free again. A reader in between saw a hole where data had been written, the kernel cached
//! the zeros, and fsx failed on a volume whose disk was right. The client commits under its
//! locks now, and hands back the ticket as the witness.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use steadfast_block::MemDevice;
use steadfast_fs::{Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem, NewNode, SetAttr};

const BYTES: usize = 6 * 4096;

#[test]
fn a_reader_sees_delayed_data_while_its_transaction_closes() {
    let device = Arc::new(MemDevice::new(16_384));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let mut options = MountOptions::default();
    options.background = false;
    let (fs, _) = Fs::mount(device, &options).unwrap();
    let root = Caller::root();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let (newest, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = vec![0; BYTES];
                while !done.load(Ordering::Acquire) {
                    let ino = newest.load(Ordering::Acquire);
                    if ino == 0 {
                        continue;
                    }
                    let read = fs.read(&root, ino, 0, &mut buf).unwrap();
                    assert_eq!(read, BYTES);
                    let hole = buf.iter().position(|byte| *byte != 7);
                    assert_eq!(
                        hole, None,
                        "inode {ino} reads as a hole while it is committed"
                    );
                }
            });
        }
        for i in 0..400 {
            let name = format!("file {i}");
            let ino = fs
                .mknod(&root, fs.root(), name.as_bytes(), &node)
                .unwrap()
                .ino;
            fs.write(&root, ino, 0, &[7; BYTES]).unwrap();
            newest.store(ino, Ordering::Release);
            fs.fsync(&root, ino, false).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    fs.unmount().unwrap();
}

/// Memory still answered reads of a volume that was unmounted, perhaps changed by others since.
#[test]
fn an_unmounted_volume_answers_nothing() {
    let device = Arc::new(MemDevice::new(2048));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    for read_only in [false, true] {
        let mut options = MountOptions::default();
        options.read_only = read_only;
        let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap().0;
        let (me, root) = (Caller::root(), fs.root());
        fs.getattr(&me, root).unwrap();
        fs.unmount().unwrap();
        fn gone<T>(result: steadfast_vfs::Result<T>) {
            assert!(result.err().is_some_and(|error| error == Errno::Io));
        }
        let mut buf = [0; 10];
        gone(fs.lookup(&me, root, b"x"));
        gone(fs.getattr(&me, root));
        gone(fs.setattr(&me, root, &SetAttr::default()));
        gone(fs.access(&me, root, 4));
        gone(fs.mkdir(&me, root, b"x", 0o755));
        gone(fs.symlink(&me, root, b"x", b"y"));
        gone(fs.readlink(&me, root));
        gone(fs.unlink(&me, root, b"x"));
        gone(fs.open(&me, root));
        gone(fs.read(&me, root, 0, &mut buf));
        gone(fs.write(&me, root, 0, &buf));
        gone(fs.append(&me, root, &buf));
        gone(fs.fsync(&me, root, false));
        gone(fs.readdir(&me, root, 0, &mut |_| true));
        gone(fs.getxattr(&me, root, b"user.x"));
        gone(fs.listxattr(&me, root));
        gone(fs.statfs());
        gone(fs.sync());
        gone(fs.accessed(&me, root));
        gone(FileSystem::trim(&*fs, 0..u64::MAX, 0));
        fs.release(root);
        fs.unmount().unwrap();
    }
}
