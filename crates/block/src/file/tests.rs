//! Tests of [`FileDevice`] on the file system that holds the temporary directory.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::BlockBuf;
use rustix::fs::{FileType, Mode};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by tests that start processes and by those that mind: between its fork and its start,
/// a child holds everything that is open here, a partition's claim included.
static FORKS: Mutex<()> = Mutex::new(());

pub(super) fn no_other_forks() -> MutexGuard<'static, ()> {
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn image(dir: &tempfile::TempDir, blocks: u64) -> PathBuf {
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, blocks, false).unwrap());
    path
}

fn open(path: &Path, options: FileOptions) -> Result<FileDevice> {
    FileDevice::open(path, &options)
}

fn read_only() -> FileOptions {
    FileOptions {
        read_only: true,
        ..FileOptions::default()
    }
}

fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_SIZE]
}

fn is_aligned(buf: &[u8]) -> bool {
    buf.as_ptr().addr().is_multiple_of(BLOCK_SIZE)
}

fn message(error: &DeviceError) -> String {
    error.to_string()
}

#[test]
fn written_bytes_are_there_after_opening_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 300);
    let device = open(&path, FileOptions::default()).unwrap();
    let mut segments: Vec<Vec<u8>> = (0..200).map(block).collect();
    segments.insert(7, Vec::new());
    segments.insert(99, [block(200), block(201)].concat());
    let segments: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
    device.write(BlockNo(50), &segments).unwrap();
    device.flush().unwrap();
    drop(device);

    let device = open(&path, read_only()).unwrap();
    assert_eq!(
        device.geometry(),
        Geometry {
            blocks: 300,
            volatile_cache: true,
            read_only: true
        }
    );
    let mut all = vec![1; 300 * BLOCK_SIZE];
    device.read(BlockNo(0), &mut all).unwrap();
    let mut expected = vec![0; 50 * BLOCK_SIZE];
    expected.extend(segments.concat());
    expected.resize(300 * BLOCK_SIZE, 0);
    assert!(all == expected);
}

#[test]
fn corner_19_a_second_writer_is_refused_also_in_the_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let first = open(&path, FileOptions::default()).unwrap();
    for options in [FileOptions::default(), read_only()] {
        let error = open(&path, options).unwrap_err();
        assert!(matches!(&error, DeviceError::Locked { path: p } if *p == path.to_str().unwrap()));
    }
    assert!(matches!(
        FileDevice::create(&path, 4, true),
        Err(DeviceError::Locked { .. })
    ));
    drop(first);
    open(&path, FileOptions::default()).unwrap();
}

#[test]
fn corner_19_readers_share_the_device_and_keep_writers_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let (a, b) = (
        open(&path, read_only()).unwrap(),
        open(&path, read_only()).unwrap(),
    );
    assert!(matches!(
        open(&path, FileOptions::default()),
        Err(DeviceError::Locked { .. })
    ));
    drop((a, b));
    open(&path, FileOptions::default()).unwrap();
}

#[test]
fn corner_19_another_process_is_refused() {
    let _guard = no_other_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let device = open(&path, FileOptions::default()).unwrap();
    let try_lock = || {
        let mut flock = std::process::Command::new("flock");
        flock
            .args(["--nonblock", "--exclusive"])
            .arg(&path)
            .arg("true")
            .status()
    };
    // Where util-linux is missing, the in-process test above has to do.
    let Ok(status) = try_lock() else {
        return steadfast_testkit::skipped!("there is no flock");
    };
    assert!(!status.success());
    drop(device);
    assert!(try_lock().unwrap().success());
}

#[test]
fn a_device_opened_for_reading_refuses_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let device = open(&path, read_only()).unwrap();
    let write = device.write(BlockNo(0), &[&block(1)]);
    assert!(matches!(
        write,
        Err(DeviceError::ReadOnly {
            op: DeviceOp::Write
        })
    ));
    let discard = device.discard(BlockNo(0), 1);
    assert!(matches!(
        discard,
        Err(DeviceError::ReadOnly {
            op: DeviceOp::Discard
        })
    ));
    device.flush().unwrap();
}

#[test]
fn requests_beyond_the_device_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let device = open(&path, FileOptions::default()).unwrap();
    let two = [block(1), block(2)].concat();
    assert!(matches!(
        device.write(BlockNo(3), &[&two]),
        Err(DeviceError::OutOfRange {
            count: 2,
            blocks: 4,
            ..
        })
    ));
    assert!(matches!(
        device.write(BlockNo(0), &[&two[1..]]),
        Err(DeviceError::Misaligned { bytes: 8191, .. })
    ));
    assert!(matches!(
        device.discard(BlockNo(4), 1),
        Err(DeviceError::OutOfRange { .. })
    ));
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * BLOCK_SIZE as u64);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_trailing_part_of_a_block_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd");
    fs::write(&path, vec![7; 2 * BLOCK_SIZE + 100]).unwrap();
    let device = open(&path, FileOptions::default()).unwrap();
    assert_eq!(device.geometry().blocks, 2);
    device
        .write(BlockNo(0), &[&[block(1), block(1)].concat()])
        .unwrap();
    assert!(device.write(BlockNo(2), &[&block(1)]).is_err());
    assert_eq!(fs::read(&path).unwrap()[2 * BLOCK_SIZE..], [7; 100]);
}

#[test]
fn a_file_that_shrinks_while_open_gives_an_error_not_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let device = open(&path, FileOptions::default()).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5000)
        .unwrap();
    let error = device.read(BlockNo(1), &mut block(0)).unwrap_err();
    assert!(message(&error).contains("cut short"), "{error}");
}

#[test]
fn things_that_are_no_device_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let error = open(dir.path(), FileOptions::default()).unwrap_err();
    assert!(message(&error).contains("is a directory"), "{error}");
    let error = open(Path::new("/dev/null"), FileOptions::default()).unwrap_err();
    assert!(message(&error).contains("character device"), "{error}");
    let error = open(&dir.path().join("none"), FileOptions::default()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let error = open(&fifo, FileOptions::default()).unwrap_err();
    assert!(message(&error).contains("neither an image file"), "{error}");
}

#[test]
fn create_makes_and_extends_files_and_spares_those_with_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, 4, false).unwrap();
    assert_eq!(device.geometry().blocks, 4);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    drop(device);

    // Nothing was written yet: it may be given another size.
    let device = FileDevice::create(&path, 8, false).unwrap();
    assert_eq!(device.geometry().blocks, 8);
    device.write(BlockNo(2), &[&block(3)]).unwrap();
    drop(device);

    let error = FileDevice::create(&path, 16, false).unwrap_err();
    assert!(message(&error).contains("holds data"), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 8 * BLOCK_SIZE as u64);

    let device = FileDevice::create(&path, 16, true).unwrap();
    let mut kept = block(0);
    device.read(BlockNo(2), &mut kept).unwrap();
    assert_eq!((device.geometry().blocks, kept), (16, block(3)));
    drop(device);
    assert_eq!(
        FileDevice::create(&path, 2, true)
            .unwrap()
            .geometry()
            .blocks,
        2
    );

    fs::write(dir.path().join("full"), [1]).unwrap();
    assert!(FileDevice::create(dir.path().join("full"), 1, false).is_err());
}

#[test]
fn an_image_that_cannot_be_made_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for blocks in [u64::MAX, i64::MAX as u64 / BLOCK_SIZE as u64] {
        let error = FileDevice::create(&path, blocks, false).unwrap_err();
        assert!(matches!(error, DeviceError::Open { .. }), "{error}");
        assert!(!path.exists());
    }
    let error = FileDevice::create(dir.path().join("no/such/image"), 1, false).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

#[test]
fn prewrite_allocates_what_it_zeroes_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4096);
    let device = open(&path, FileOptions::default()).unwrap();
    device.write(BlockNo(1000), &[&block(9)]).unwrap();
    let mut steps = Vec::new();
    device
        .prewrite(BlockNo(600)..BlockNo(1200), &mut |done| steps.push(done))
        .unwrap();
    assert_eq!(steps, [256, 512, 600]);
    let allocated = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(
        (600 * 4096..700 * 4096).contains(&allocated),
        "{allocated} bytes"
    );
    let mut read = block(1);
    device.read(BlockNo(1000), &mut read).unwrap();
    assert_eq!(read, block(0));
    let beyond = device.prewrite(BlockNo(4000)..BlockNo(4097), &mut |_| panic!("progress"));
    assert!(matches!(beyond, Err(DeviceError::OutOfRange { .. })));
}

#[test]
fn discard_gives_space_back_to_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 256);
    let device = open(&path, FileOptions::default()).unwrap();
    device
        .prewrite(BlockNo(0)..BlockNo(256), &mut |_| ())
        .unwrap();
    device.discard(BlockNo(16), 0).unwrap();
    let before = fs::metadata(&path).unwrap().blocks();
    device.discard(BlockNo(16), 200).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), 256 * BLOCK_SIZE as u64);
    // A host that cannot punch holes ignores the hint.
    assert!(after.blocks() == before || after.blocks() <= before - 190 * 8);
}

#[test]
fn direct_access_takes_aligned_and_other_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 512);
    let device = open(
        &path,
        FileOptions {
            direct: Direct::Prefer,
            ..FileOptions::default()
        },
    );
    let device = device.unwrap();
    assert_ne!(device.is_direct(), device.direct_refusal().is_some());

    let mut aligned = BlockBuf::zeroed(150);
    aligned
        .as_bytes_mut()
        .iter_mut()
        .enumerate()
        .for_each(|(i, b)| *b = (i / 97) as u8);
    assert!(is_aligned(aligned.as_bytes()));
    let mut shifted = vec![0; aligned.as_bytes().len() + 1];
    shifted[1..].copy_from_slice(aligned.as_bytes());
    let odd = if is_aligned(&shifted[1..]) {
        &shifted[..shifted.len() - 1]
    } else {
        &shifted[1..]
    };

    device.write(BlockNo(0), &[aligned.as_bytes()]).unwrap();
    let (head, tail) = odd.split_at(3 * BLOCK_SIZE);
    device.write(BlockNo(200), &[head, &[], tail]).unwrap();
    device.flush().unwrap();

    let mut back = BlockBuf::zeroed(150);
    device.read(BlockNo(200), back.as_bytes_mut()).unwrap();
    assert!(back.as_bytes() == odd);
    let mut back = vec![0; 150 * BLOCK_SIZE + 1];
    device.read(BlockNo(0), &mut back[1..]).unwrap();
    assert!(&back[1..] == aligned.as_bytes());
    assert!(fs::read(&path).unwrap()[200 * BLOCK_SIZE..350 * BLOCK_SIZE] == *odd);
}

#[test]
fn direct_access_is_refused_or_replaced_where_the_host_cannot_do_it() {
    // Kernel files are regular files of one page that no one can access directly.
    let path = Path::new("/sys/kernel/uevent_seqnum");
    let options = FileOptions {
        direct: Direct::Prefer,
        ..read_only()
    };
    let Ok(device) = open(path, options.clone()) else {
        return steadfast_testkit::skipped!("there is no {}", path.display());
    };
    assert!(!device.is_direct());
    assert!(device.direct_refusal().is_some());
    drop(device);
    let error = open(
        path,
        FileOptions {
            direct: Direct::Require,
            ..options
        },
    )
    .unwrap_err();
    assert!(message(&error).contains("O_DIRECT"), "{error}");
}

#[test]
fn corner_14_a_failed_flush_is_repeated_by_every_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 4);
    let device = open(&path, FileOptions::default()).unwrap();
    device.flush().unwrap();
    let failed = device.sticky_flush(Err(Errno::IO.into())).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let later = device.flush().unwrap_err();
    assert!(matches!(
        &later,
        DeviceError::Io {
            op: DeviceOp::Flush,
            ..
        }
    ));
    assert_eq!(later.raw_os_error(), Some(Errno::IO.raw_os_error()));
}

/// Attaches a loop device and detaches it again.
struct Loop(String);

impl Loop {
    /// Needs root, a free loop device, and util-linux.
    fn attach(path: &Path) -> std::result::Result<Loop, String> {
        let mut losetup = std::process::Command::new("losetup");
        let out = (losetup.args(["--find", "--show"]).arg(path).output())
            .map_err(|error| error.to_string())?;
        if out.status.success() {
            let name = String::from_utf8(out.stdout).unwrap();
            Ok(Loop(name.trim().to_owned()))
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

/// A loop device stands for a raw partition: the same code path, an `O_EXCL` open included.
#[test]
fn a_block_device_has_its_size_is_locked_and_never_resized() {
    let _guard = no_other_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 1024);
    let attached = match Loop::attach(&path) {
        Ok(attached) => attached,
        Err(why) => return steadfast_testkit::skipped!("no loop device to be had: {why}"),
    };
    for direct in [Direct::Off, Direct::Require] {
        for engine in [Engine::Caller, Engine::Threads(2), Engine::Uring] {
            let options = FileOptions {
                direct,
                engine,
                ..FileOptions::default()
            };
            let device = FileDevice::open(&attached.0, &options).unwrap();
            assert_eq!(device.geometry().blocks, 1024);
            assert_eq!(device.is_direct(), direct == Direct::Require);
            let again = FileDevice::open(&attached.0, &FileOptions::default());
            assert!(matches!(again, Err(DeviceError::Locked { .. })));
            device.write(BlockNo(1023), &[&block(5)]).unwrap();
            let (six, seven) = (block(6), block(7));
            let writes: [(BlockNo, &[&[u8]]); 2] = [(BlockNo(9), &[&six]), (BlockNo(3), &[&seven])];
            device.write_scattered(&writes).unwrap();
            device.flush().unwrap();
            let (mut a, mut b, mut c) = (block(1), block(1), block(1));
            let mut reads: [(BlockNo, &mut [u8]); 3] = [
                (BlockNo(1023), &mut a),
                (BlockNo(3), &mut b),
                (BlockNo(9), &mut c),
            ];
            device.read_scattered(&mut reads).unwrap();
            assert_eq!((a, b, c), (block(5), block(7), block(6)));
            device.discard(BlockNo(0), 1024).unwrap();
            device.read(BlockNo(1023), &mut block(1)).unwrap();
        }
    }
    assert!(FileDevice::create(&attached.0, 1024, false).is_err());
    assert!(FileDevice::create(&attached.0, 1025, true).is_err());
    let device = FileDevice::create(&attached.0, 512, true).unwrap();
    assert_eq!(device.geometry().blocks, 1024);

    // Corner 17: the kernel has a word for every block device.
    let name = attached.0.trim_start_matches("/dev/");
    let said = fs::read_to_string(format!("/sys/block/{name}/queue/write_cache"));
    let expected = match said.as_deref().map(str::trim) {
        Ok("write back") => WriteCache::WriteBack,
        Ok("write through") => WriteCache::WriteThrough,
        _ => WriteCache::Unknown,
    };
    assert_eq!(device.write_cache(), expected);
}
