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
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

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
