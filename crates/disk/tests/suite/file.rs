//! The disk as a file system with one file, without a mount.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;

use steadfast_block::MemDevice;
use steadfast_disk::{DISK_NAME, DiskFile, Medium, Run, ServedDisk};
use steadfast_vfs::{AllocateMode, Caller, Errno, FileKind, FileSystem, Ino, Seek, SetAttr};

const BLOCKS: u64 = 8;
const BYTES: u64 = BLOCKS * 4096;

/// A disk that holds data in its blocks 2 and 3 alone.
struct Plain(MemDevice);

impl steadfast_block::BlockDevice for Plain {
    fn geometry(&self) -> steadfast_block::Geometry {
        self.0.geometry()
    }
    fn read(&self, at: steadfast_block::BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.0.read(at, buf)
    }
    fn write(&self, at: steadfast_block::BlockNo, s: &[&[u8]]) -> steadfast_block::Result<()> {
        self.0.write(at, s)
    }
    fn flush(&self) -> steadfast_block::Result<()> {
        self.0.flush()
    }
    fn discard(&self, at: steadfast_block::BlockNo, count: u64) -> steadfast_block::Result<()> {
        let zeros = vec![0; count as usize * 4096];
        self.0.write(at, &[&zeros])
    }
}

impl Medium for Plain {
    fn epoch_blocks(&self) -> u64 {
        BLOCKS
    }
    fn run(
        &self,
        range: std::ops::Range<steadfast_block::BlockNo>,
    ) -> steadfast_block::Result<Run> {
        let (from, to) = (range.start.0, range.end.0);
        let (end, hole) = match from {
            0 | 1 => (2, true),
            2 | 3 => (4, false),
            _ => (BLOCKS, true),
        };
        let blocks = end.min(to) - from;
        Ok(Run { blocks, hole })
    }
    fn roll_back(&self) -> Result<(), steadfast_ftl::DiskError> {
        Ok(())
    }
}

fn file() -> (DiskFile, Ino, Caller) {
    let served = ServedDisk::new(Arc::new(Plain(MemDevice::new(BLOCKS))));
    let fs = DiskFile::new(Arc::new(served));
    let me = Caller::root();
    let disk = fs.lookup(&me, fs.root(), DISK_NAME.as_bytes()).unwrap();
    assert_eq!((disk.kind, disk.size), (FileKind::Regular, BYTES));
    (fs, disk.ino, me)
}

#[test]
fn there_is_one_file_of_the_disks_size_and_it_keeps_it() {
    let (fs, disk, me) = file();
    let mut names = Vec::new();
    let mut take = |entry: steadfast_vfs::DirEntry<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    fs.readdir(&me, fs.root(), 0, &mut take).unwrap();
    assert_eq!(names, [b".".to_vec(), b"..".to_vec(), b"disk".to_vec()]);
    let gone = fs.lookup(&me, fs.root(), b"other").unwrap_err();
    assert_eq!(gone, Errno::NoEnt);
    assert_eq!(fs.getattr(&me, 3).unwrap_err(), Errno::Stale);
    assert_eq!(fs.unlink(&me, fs.root(), b"disk").unwrap_err(), Errno::Perm);
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(&me, disk, &size(0)).unwrap_err(), Errno::Perm);
    fs.setattr(&me, disk, &size(BYTES)).unwrap();
    let stranger = Caller {
        uid: me.uid + 4711,
        ..me.clone()
    };
    assert_eq!(fs.access(&stranger, disk, 4).unwrap_err(), Errno::Access);
}

#[test]
fn requests_at_and_past_the_end_are_as_a_block_devices() {
    let (fs, disk, me) = file();
    let mut bytes = [9; 10];
    fs.write(&me, disk, BYTES - 3, b"end").unwrap();
    assert_eq!(fs.read(&me, disk, BYTES - 3, &mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"end");
    for past in [BYTES, BYTES + 1, u64::MAX] {
        assert_eq!(fs.read(&me, disk, past, &mut bytes).unwrap(), 0);
        assert_eq!(fs.write(&me, disk, past, b"x").unwrap_err(), Errno::NoSpc);
    }
    let whole = fs.write(&me, disk, BYTES - 3, b"past").unwrap_err();
    assert_eq!(whole, Errno::NoSpc);
    assert_eq!(fs.append(&me, disk, b"x").unwrap_err(), Errno::NoSpc);
    let root = fs.write(&me, fs.root(), 0, b"x").unwrap_err();
    assert_eq!(root, Errno::IsDir);
    let change = |mode, offset, len| fs.fallocate(&me, disk, mode, offset, len);
    change(AllocateMode::Allocate, 0, BYTES).unwrap();
    change(AllocateMode::PunchHole, BYTES + 5, 1).unwrap();
    change(AllocateMode::PunchHole, BYTES - 2, 4096).unwrap();
    for mode in [
        AllocateMode::Allocate,
        AllocateMode::KeepSize,
        AllocateMode::ZeroRange,
    ] {
        assert_eq!(change(mode, 1, BYTES).unwrap_err(), Errno::NoSpc);
    }
    let wild = change(AllocateMode::PunchHole, u64::MAX, 2).unwrap_err();
    assert_eq!(wild, Errno::FBig);
    assert_eq!(fs.read(&me, disk, BYTES - 3, &mut bytes).unwrap(), 3);
    assert_eq!(&bytes[..3], b"e\0\0");
}

#[test]
fn data_and_holes_are_found() {
    let (fs, disk, me) = file();
    let seek = |offset, whence| fs.seek(&me, disk, offset, whence).map_err(|e| e.errno);
    assert_eq!(seek(0, Seek::Hole), Ok(0));
    assert_eq!(seek(5, Seek::Data), Ok(2 * 4096));
    assert_eq!(seek(3 * 4096 + 1, Seek::Data), Ok(3 * 4096 + 1));
    assert_eq!(seek(3 * 4096, Seek::Hole), Ok(4 * 4096));
    assert_eq!(seek(4 * 4096, Seek::Data), Err(Errno::NxIo));
    assert_eq!(seek(BYTES, Seek::Hole), Err(Errno::NxIo));
}
