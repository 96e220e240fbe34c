//! Regions in files: sizes, locks, sharing, refusals.
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File, OpenOptions as FileOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use steadfast_pm::{Durability, Eadr, Error, Instruction, OpenOptions, Region};
use tempfile::TempDir;

const BYTES: u64 = 1 << 20;

/// A directory on tmpfs.
fn tmpfs() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A directory on a file system that is not in memory, if there is one.
fn disk() -> Option<TempDir> {
    let dirs = [
        std::env::temp_dir(),
        PathBuf::from(env!("CARGO_MANIFEST_DIR")),
    ];
    let dirs = dirs.iter().filter_map(|dir| tempfile::tempdir_in(dir).ok());
    let found = dirs.into_iter().find(|dir| {
        const TMPFS: u32 = 0x0102_1994;
        rustix::fs::statfs(dir.path()).unwrap().f_type as u32 != TMPFS
    });
    if found.is_none() {
        steadfast_testkit::skipped!("no directory is on a disk");
    }
    found
}

fn read_only() -> OpenOptions {
    OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    }
}

fn created(dir: &TempDir) -> (PathBuf, Region) {
    let path = dir.path().join("region");
    let region = Region::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    (path, region)
}

fn file_of(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
}

#[test]
fn stores_are_in_the_file_and_stay_there() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    assert_eq!(region.len(), BYTES);
    assert_eq!(region.path(), Some(path.as_path()));
    region.store(8, 0x0102_0304_0506_0708);
    region.write_back(8, 8);
    region.write_data(4093, b"across a page");
    region.fence();
    let file = File::open(&path).unwrap();
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 8).unwrap();
    assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
    drop(region);
    let region = Region::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(region.load(8), 0x0102_0304_0506_0708);
    let mut data = [0; 13];
    region.read(4093, &mut data);
    assert_eq!(&data, b"across a page");
    assert!(!region.failed());
}

#[test]
fn a_new_file_has_all_its_pages_and_belongs_to_its_owner_alone() {
    let dir = tmpfs();
    let (path, _region) = created(&dir);
    let found = fs::metadata(&path).unwrap();
    assert!(found.blocks() * 512 >= BYTES);
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let options = OpenOptions {
        reserve: false,
        ..OpenOptions::default()
    };
    let sparse = dir.path().join("sparse");
    let _region = Region::create(&sparse, BYTES, false, &options).unwrap();
    assert_eq!(fs::metadata(&sparse).unwrap().blocks(), 0);
}

#[test]
fn a_sparse_file_gets_its_pages_when_it_is_opened_for_writing() {
    let dir = tmpfs();
    let path = dir.path().join("sparse");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    drop(Region::open(&path, &read_only()).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    drop(Region::open(&path, &OpenOptions::default()).unwrap());
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= BYTES);
}

#[test]
fn a_file_larger_than_its_file_system_is_refused_and_not_left() {
    let dir = tmpfs();
    let path = dir.path().join("huge");
    let shm = rustix::fs::statvfs(dir.path()).unwrap();
    let bytes = (shm.f_blocks + 1) * shm.f_frsize;
    let made = Region::create(
        &path,
        bytes.next_multiple_of(4096),
        false,
        &OpenOptions::default(),
    );
    assert!(matches!(made, Err(Error::NoRoom { .. })), "{made:?}");
    assert!(!path.exists());
}

#[test]
fn the_second_open_fails_because_the_region_is_in_use() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    for options in [OpenOptions::default(), read_only()] {
        let second = Region::open(&path, &options);
        assert!(
            matches!(&second, Err(Error::InUse { path: p }) if *p == path),
            "{second:?}"
        );
    }
    let again = Region::create(&path, BYTES, true, &OpenOptions::default());
    assert!(matches!(again, Err(Error::InUse { .. })));
    let unlocked = OpenOptions {
        lock: false,
        ..read_only()
    };
    assert!(Region::open(&path, &unlocked).is_ok());
    drop(region);
    let readers = [(); 2].map(|()| Region::open(&path, &read_only()).unwrap());
    let writer = Region::open(&path, &OpenOptions::default());
    assert!(matches!(writer, Err(Error::InUse { .. })));
    drop(readers);
    assert!(Region::open(&path, &OpenOptions::default()).is_ok());
}

#[test]
fn a_reader_needs_no_permission_to_write() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    region.store(0, 7);
    drop(region);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let region = Region::open(&path, &read_only()).unwrap();
    assert!(region.read_only());
    assert_eq!(region.load(0), 7);
}

#[test]
#[should_panic = "read-only"]
fn a_store_to_a_read_only_region_panics() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    drop(region);
    Region::open(&path, &read_only()).unwrap().store(0, 1);
}

#[test]
#[should_panic = "read-only"]
fn data_for_a_read_only_region_panics() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    drop(region);
    Region::open(&path, &read_only())
        .unwrap()
        .write_data(0, &[1; 64]);
}

#[test]
fn sizes_that_are_no_regions_are_refused() {
    let dir = tmpfs();
    let path = dir.path().join("odd");
    file_of(&path, &[0; 5000]);
    let opened = Region::open(&path, &OpenOptions::default());
    assert!(
        matches!(
            opened,
            Err(Error::UnevenSize {
                bytes: 5000,
                unit: 4096,
                ..
            })
        ),
        "{opened:?}"
    );
    for bytes in [0, 100] {
        file_of(&path, &vec![0; bytes]);
        let opened = Region::open(&path, &OpenOptions::default());
        assert!(matches!(opened, Err(Error::TooSmall { .. })), "{opened:?}");
    }
    let new = dir.path().join("new");
    let create = |bytes| Region::create(&new, bytes, false, &OpenOptions::default());
    assert!(matches!(create(0), Err(Error::TooSmall { .. })));
    assert!(matches!(create(4097), Err(Error::UnevenSize { .. })));
    assert!(create(!4095).is_err());
    assert!(!new.exists());
}

#[test]
fn a_region_shorter_than_its_content_says_so() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    assert!(region.require(BYTES).is_ok());
    let error = region.require(BYTES + 4096).unwrap_err();
    assert!(matches!(error, Error::Truncated { bytes: BYTES, .. }));
    let message = error.to_string();
    assert!(
        message.contains(path.to_str().unwrap()) && message.contains("was cut off"),
        "{message}"
    );
}

#[test]
fn a_file_on_a_disk_is_refused_unless_it_is_only_read() {
    let Some(dir) = disk() else { return };
    let path = dir.path().join("region");
    let made = Region::create(&path, BYTES, false, &OpenOptions::default());
    assert!(
        matches!(made, Err(Error::NotPersistentMemory { .. })),
        "{made:?}"
    );
    assert!(!path.exists());
    file_of(&path, &[5; 8192]);
    let opened = Region::open(&path, &OpenOptions::default()).unwrap_err();
    assert!(
        matches!(opened, Error::NotPersistentMemory { .. }),
        "{opened:?}"
    );
    for remedy in ["MAP_SYNC", "tmpfs", "dax", "read-only"] {
        assert!(opened.to_string().contains(remedy), "{opened}");
    }
    // Refused before anything is changed.
    let forced = Region::create(&path, 4096, true, &OpenOptions::default());
    assert!(matches!(forced, Err(Error::NotPersistentMemory { .. })));
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    let region = Region::open(&path, &read_only()).unwrap();
    assert_eq!(region.load(0), 0x0505_0505_0505_0505);
}

#[test]
fn other_kinds_of_files_are_refused() {
    let dir = tmpfs();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for path in [dir.path(), Path::new("/dev/null"), &fifo] {
        for options in [OpenOptions::default(), read_only()] {
            let opened = Region::open(path, &options);
            assert!(matches!(opened, Err(Error::WrongKind { .. })), "{opened:?}");
        }
    }
    let absent = Region::open(dir.path().join("absent"), &OpenOptions::default()).unwrap_err();
    assert!(
        matches!(&absent, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    );
    assert!(
        absent.to_string().starts_with("cannot open /dev/shm/"),
        "{absent}"
    );
}

#[test]
fn a_file_with_data_is_overwritten_only_by_force_and_keeps_its_bytes() {
    let dir = tmpfs();
    let path = dir.path().join("region");
    File::create(&path).unwrap().set_len(100).unwrap();
    // A hole holds no data.
    drop(
        Region::create(
            &path,
            BYTES,
            false,
            &OpenOptions {
                reserve: false,
                ..OpenOptions::default()
            },
        )
        .unwrap(),
    );
    let file = FileOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[9; 8], 4096).unwrap();
    let made = Region::create(&path, BYTES, false, &OpenOptions::default());
    assert!(matches!(made, Err(Error::Exists { .. })), "{made:?}");
    let made = Region::create(&path, 8192, true, &OpenOptions::default()).unwrap();
    assert_eq!((made.len(), made.load(4096)), (8192, 0x0909_0909_0909_0909));
}

#[test]
fn a_region_is_enlarged_and_never_shrinks() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    region.store(0, 3);
    let busy = Region::enlarge(&path, 2 * BYTES, &OpenOptions::default());
    assert!(matches!(busy, Err(Error::InUse { .. })));
    drop(region);
    let region = Region::enlarge(&path, 2 * BYTES, &OpenOptions::default()).unwrap();
    assert_eq!(
        (region.len(), region.load(0), region.load(BYTES)),
        (2 * BYTES, 3, 0)
    );
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 2 * BYTES);
    drop(region);
    let region = Region::enlarge(&path, BYTES, &OpenOptions::default()).unwrap();
    assert_eq!(region.len(), 2 * BYTES);
}

#[test]
fn an_option_decides_whether_caches_persist() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    // Memory of the machine has no such caches.
    let line = Durability::Line(Instruction::detect());
    assert_eq!(region.durability(), line);
    drop(region);
    for (eadr, durability) in [(Eadr::Assume, Durability::Eadr), (Eadr::Ignore, line)] {
        let options = OpenOptions {
            eadr,
            ..OpenOptions::default()
        };
        let region = Region::open(&path, &options).unwrap();
        assert_eq!(region.durability(), durability);
        let before = steadfast_pm::thread_counts();
        region.store(0, 1);
        region.write_back(0, 256);
        region.fence();
        let counts = steadfast_pm::thread_counts() - before;
        let lines = if durability == line { 4 } else { 0 };
        assert_eq!((counts.lines, counts.fences), (lines, 1));
    }
}

#[test]
fn a_populated_region_is_as_any_other() {
    let dir = tmpfs();
    let (path, region) = created(&dir);
    region.store(8, 8);
    drop(region);
    for read_only in [false, true] {
        let options = OpenOptions {
            read_only,
            populate: true,
            ..OpenOptions::default()
        };
        assert_eq!(Region::open(&path, &options).unwrap().load(8), 8);
    }
}
