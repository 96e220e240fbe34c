//! The main calls through a real mount of the in-memory model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::Mount;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

macro_rules! mounted {
    () => {
        mounted!(|_| {})
    };
    ($change:expr) => {
        match Mount::new($change) {
            Some(mount) => mount,
            None => return,
        }
    };
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("must fail").raw_os_error()
}

fn code(errno: Errno) -> Option<i32> {
    Some(errno.raw_os_error())
}

#[test]
fn written_bytes_are_read_through_every_kind_of_open() {
    let m = mounted!();
    let path = m.join("file");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    file.write_all(&data).unwrap();
    assert_eq!(file.metadata().unwrap().len(), data.len() as u64);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut back = Vec::new();
    file.read_to_end(&mut back).unwrap();
    assert!(back == data);
    assert!(fs::read(&path).unwrap() == data);

    file.write_all_at(b"overwritten", 1_000_000).unwrap();
    let mut piece = [0; 11];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut piece, 1_000_000)
        .unwrap();
    assert_eq!(&piece, b"overwritten");

    let mut direct = OpenOptions::new();
    direct
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = direct.open(&path).unwrap();
    direct.write_all_at(&[9; 8192], 4096).unwrap();
    let mut page = vec![0; 8192];
    direct.read_exact_at(&mut page, 4096).unwrap();
    assert!(page.iter().all(|&b| b == 9));
    assert_eq!(fs::read(&path).unwrap()[4096..12288], page);
}

#[test]
fn truncation_by_path_by_handle_and_at_open_is_seen_at_once() {
    let m = mounted!();
    let path = m.join("file");
    fs::write(&path, vec![1u8; 10_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(5000).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5000);
    file.set_len(9000).unwrap();
    let content = fs::read(&path).unwrap();
    assert!(content[..5000].iter().all(|&b| b == 1) && content[5000..].iter().all(|&b| b == 0));

    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    File::create(&path).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), 0);
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert_eq!(after.ino(), before.ino());
}

#[test]
fn appends_of_two_handles_never_overwrite_each_other() {
    let m = mounted!();
    let path = m.join("log");
    let open = || {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap()
    };
    let (mut a, mut b) = (open(), open());
    for _ in 0..100 {
        a.write_all(b"aaaa\n").unwrap();
        b.write_all(b"bb\n").unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "aaaa\nbb\n".repeat(100));
}

#[test]
fn rename_replaces_refuses_or_exchanges_as_its_flags_say() {
    let m = mounted!();
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, m.join(from), CWD, m.join(to), flags)
    };
    fs::write(m.join("a"), "a").unwrap();
    fs::write(m.join("b"), "b").unwrap();
    fs::create_dir(m.join("d")).unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(m.join("a")).unwrap(), "b");
    assert_eq!(fs::read_to_string(m.join("b")).unwrap(), "a");
    rename("a", "d/a", RenameFlags::NOREPLACE).unwrap();
    assert!(!m.join("a").exists());
    fs::rename(m.join("b"), m.join("d/a")).unwrap();
    assert_eq!(fs::read_to_string(m.join("d/a")).unwrap(), "a");
    assert_eq!(
        rename("d", "d/a/x", RenameFlags::empty()),
        Err(Errno::NOTDIR)
    );
    assert_eq!(
        errno(fs::rename(m.join("d"), m.join("d/sub"))),
        code(Errno::INVAL)
    );
    fs::create_dir(m.join("e")).unwrap();
    fs::write(m.join("e/full"), "").unwrap();
    assert_eq!(
        errno(fs::rename(m.join("d"), m.join("e"))),
        code(Errno::NOTEMPTY)
    );
    rename("e", "x", RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::symlink_metadata(m.join("e")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
}

#[test]
fn link_counts_and_change_times_stay_right_in_the_kernels_cache() {
    let m = mounted!();
    let [a, b, c] = ["a", "b", "c"].map(|name| m.join(name));
    fs::write(&a, "x").unwrap();
    let stamp = |m: &fs::Metadata| (m.ctime(), m.ctime_nsec());
    let mut last = stamp(&fs::metadata(&a).unwrap());
    let mut changed = |nlink: u64| {
        let now = fs::metadata(&a).unwrap();
        assert_eq!(now.nlink(), nlink);
        assert!(stamp(&now) > last, "ctime after change to {nlink} links");
        last = stamp(&now);
        std::thread::sleep(Duration::from_millis(10));
    };
    std::thread::sleep(Duration::from_millis(10));
    fs::hard_link(&a, &b).unwrap();
    changed(2);
    fs::hard_link(&a, &c).unwrap();
    changed(3);
    fs::remove_file(&b).unwrap();
    changed(2);
    fs::write(&b, "other").unwrap();
    fs::rename(&b, &c).unwrap(); // replaces a link of `a`
    changed(1);
    let top = fs::metadata(m.path()).unwrap().nlink();
    fs::create_dir(m.join("d")).unwrap();
    fs::create_dir(m.join("d/e")).unwrap();
    assert_eq!(fs::metadata(m.path()).unwrap().nlink(), top + 1);
    assert_eq!(fs::metadata(m.join("d")).unwrap().nlink(), 3);
    fs::rename(m.join("d/e"), m.join("e")).unwrap();
    assert_eq!(fs::metadata(m.join("d")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(m.path()).unwrap().nlink(), top + 2);
    fs::remove_dir(m.join("e")).unwrap();
    assert_eq!(fs::metadata(m.path()).unwrap().nlink(), top + 1);
}

#[test]
fn a_file_removed_while_open_lives_until_it_is_closed() {
    let m = mounted!();
    let path = m.join("file");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b", and growing").unwrap();
    let mut content = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "still here, and growing");
    file.sync_all().unwrap();
    assert!(m.fs.held() > 0);
    drop(file);
    m.eventually("the removed file is released", |fs| fs.held() == 0);
}

#[test]
fn an_inode_that_a_descriptor_names_is_not_given_up_for_reuse() {
    let m = mounted!();
    fs::write(m.join("old"), "old").unwrap();
    let held = rustix::fs::open(m.join("old"), OFlags::PATH, Mode::empty()).unwrap();
    let number = rustix::fs::fstat(&held).unwrap().st_ino;
    fs::create_dir(m.join("gone")).unwrap();
    let dir = File::open(m.join("gone")).unwrap();
    fs::remove_file(m.join("old")).unwrap();
    fs::remove_dir(m.join("gone")).unwrap();
    for i in 0..50 {
        fs::write(m.join(format!("new{i}")), "secret").unwrap();
        assert_ne!(
            fs::metadata(m.join(format!("new{i}"))).unwrap().ino(),
            number
        );
    }
    let now = rustix::fs::fstat(&held).unwrap();
    assert_eq!((now.st_ino, now.st_nlink, now.st_size), (number, 0, 3));
    let reopened = fs::read_to_string(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&held)
    ));
    assert_eq!(reopened.unwrap(), "old");
    assert_eq!(dir.metadata().unwrap().nlink(), 0);
    drop((held, dir));
    for i in 0..50 {
        fs::remove_file(m.join(format!("new{i}"))).unwrap();
    }
    m.eventually("everything removed is released", |fs| fs.held() == 0);
}

#[test]
fn extended_attributes_answer_sizes_flags_and_absence() {
    let m = mounted!();
    let path = m.join("file");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.one", b"first", XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.one", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(
        set("user.two", b"x", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    set("user.two", b"", XattrFlags::empty()).unwrap();
    assert_eq!(rustix::fs::getxattr_query(&path, "user.one"), Ok(5));
    assert_eq!(
        rustix::fs::getxattr(&path, "user.one", &mut [0u8; 3]),
        Err(Errno::RANGE)
    );
    let mut value = [0u8; 64];
    assert_eq!(rustix::fs::getxattr(&path, "user.one", &mut value), Ok(5));
    assert_eq!(&value[..5], b"first");
    let len = rustix::fs::listxattr(&path, &mut value).unwrap();
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(len));
    let mut names: Vec<&[u8]> = value[..len]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    assert_eq!(names, [&b"user.one"[..], b"user.two"]);
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(
        rustix::fs::getxattr(&path, "user.one", &mut value),
        Err(Errno::NODATA)
    );
}

#[test]
fn a_program_on_the_mount_runs() {
    // The loader maps its file.
    let m = mounted!();
    let program = m.join("program");
    fs::copy("/bin/echo", &program).unwrap();
    let output = Command::new(&program).arg("hello").output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn stores_through_a_mapping_arrive_and_are_read_back() {
    let m = mounted!();
    let path = m.join("mapped");
    fs::write(&path, vec![b'.'; 10_000]).unwrap();
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b')\n\
        w=mmap.mmap(f.fileno(),0)\n\
        assert w[9999:10000]==b'.'\n\
        w[5000:5005]=b'store'\n\
        w.flush()\n";
    match Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(&path)
        .status()
    {
        Ok(status) => assert!(status.success()),
        Err(e) => return steadfast_testkit::skipped!("python3: {e}"),
    }
    assert_eq!(&fs::read(&path).unwrap()[4999..5006], b".store.");
    let caller = Caller::root();
    let fs: &dyn FileSystem = &*m.fs;
    let ino = fs.lookup(&caller, fs.root(), b"mapped").unwrap().ino;
    let mut buf = [0; 5];
    assert_eq!(fs.read(&caller, ino, 5000, &mut buf).unwrap(), 5);
    assert_eq!(&buf, b"store");
}

#[test]
fn a_listing_of_many_names_is_complete_and_survives_removal_on_the_way() {
    let m = mounted!();
    fs::create_dir(m.join("many")).unwrap();
    for i in 0..3000 {
        File::create(m.join(format!("many/a-name-with-some-length-{i:05}"))).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(m.join("many"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);
    for entry in fs::read_dir(m.join("many")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().ino(),
            std::os::unix::fs::DirEntryExt::ino(&entry)
        );
        fs::remove_file(entry.path()).unwrap();
    }
    assert_eq!(fs::read_dir(m.join("many")).unwrap().count(), 0);
    fs::remove_dir(m.join("many")).unwrap();
    m.eventually("everything removed is released", |fs| fs.held() == 0);
}

#[test]
fn corner_33_names_are_bytes_and_limits_are_reported() {
    let m = mounted!();
    let name = OsStr::from_bytes(b"\xff\xfe not utf-8 \n");
    fs::write(m.join(name), "x").unwrap();
    assert_eq!(
        fs::read_dir(m.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .file_name(),
        name
    );
    fs::write(m.join("n".repeat(255)), "").unwrap();
    assert_eq!(
        errno(fs::write(m.join("n".repeat(256)), "")),
        code(Errno::NAMETOOLONG)
    );
    symlink("t".repeat(4000), m.join("link")).unwrap();
    assert_eq!(
        fs::read_link(m.join("link")).unwrap().as_os_str().len(),
        4000
    );
}

#[test]
fn absent_names_are_remembered_by_the_kernel_until_they_appear() {
    let m = mounted!();
    for _ in 0..100 {
        assert!(!m.join("later").exists());
    }
    let asked = m.fs.lookups.load(SeqCst);
    assert!(asked < 10, "{asked} lookups for one absent name");
    fs::write(m.join("later"), "now").unwrap();
    assert_eq!(fs::read_to_string(m.join("later")).unwrap(), "now");
    fs::remove_file(m.join("later")).unwrap();
    assert!(!m.join("later").exists());
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(m.join("later"))
        .unwrap();
    let again = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(m.join("later"));
    assert_eq!(errno(again), code(Errno::EXIST));
}

#[test]
fn times_of_every_size_go_through_unchanged() {
    let m = mounted!();
    let path = m.join("file");
    fs::write(&path, "").unwrap();
    for (secs, nanos) in [
        (0, 0),
        (1_700_000_000, 123_456_789),
        (-2, 800_000_000),
        (1 << 33, 999_999_999),
    ] {
        let time = Timespec {
            tv_sec: secs,
            tv_nsec: nanos,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.mtime(), now.mtime_nsec()), (secs, nanos));
        assert_eq!((now.atime(), now.atime_nsec()), (secs, nanos));
    }
}

#[test]
fn special_files_keep_kind_and_device_number() {
    let m = mounted!();
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("only root makes device nodes");
    }
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, m.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
        fs::symlink_metadata(m.join(name)).unwrap()
    };
    let device = rustix::fs::makedev(259, 70_000);
    let node = make("c", rustix::fs::FileType::CharacterDevice, device);
    assert!(node.file_type().is_char_device());
    assert_eq!((node.rdev(), node.mode() & 0o7777), (device, 0o640));
    assert!(
        make("b", rustix::fs::FileType::BlockDevice, device)
            .file_type()
            .is_block_device()
    );
    assert!(
        make("p", rustix::fs::FileType::Fifo, 0)
            .file_type()
            .is_fifo()
    );
    assert!(
        make("s", rustix::fs::FileType::Socket, 0)
            .file_type()
            .is_socket()
    );
}

#[test]
fn holes_are_made_found_and_filled() {
    let m = mounted!();
    let file = File::create(m.join("sparse")).unwrap();
    file.write_all_at(b"start", 0).unwrap();
    file.write_all_at(b"end", 1 << 20).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    let hole = seek(rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert!((5..=1 << 20).contains(&hole), "{hole}");
    let data = seek(rustix::fs::SeekFrom::Data(hole)).unwrap();
    assert!(data > hole && data <= 1 << 20, "{data}");
    assert_eq!(seek(rustix::fs::SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
    let allocate = |mode, at, len| rustix::fs::fallocate(&file, mode, at, len);
    allocate(FallocateFlags::empty(), 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2 << 20);
    allocate(
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        4096,
    )
    .unwrap();
    let content = fs::read(m.join("sparse")).unwrap();
    assert_eq!(&content[..5], &[0; 5]);
    assert_eq!(&content[1 << 20..(1 << 20) + 3], b"end");
    assert_eq!(
        allocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096),
        Err(Errno::OPNOTSUPP)
    );
}

#[test]
fn every_kind_of_sync_reaches_the_file_system_exactly_once() {
    let m = mounted!();
    let file = File::create(m.join("file")).unwrap();
    let mut before = 0;
    let mut arrived = |what: &str| {
        let now = m.fs.fsyncs.load(SeqCst);
        let more = now - before;
        before = now;
        assert_eq!(more, 1, "{what}");
    };
    (&file).write_all(b"x").unwrap();
    file.sync_all().unwrap();
    arrived("fsync");
    (&file).write_all(b"x").unwrap();
    file.sync_data().unwrap();
    arrived("fdatasync");
    File::open(m.path()).unwrap().sync_all().unwrap();
    arrived("fsync of a directory");
    for flag in [OFlags::SYNC, OFlags::DSYNC] {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flag.bits() as i32);
        options
            .open(m.join("file"))
            .unwrap()
            .write_all(b"y")
            .unwrap();
        arrived("write with O_SYNC or O_DSYNC");
    }
    drop(file);
    assert_eq!(m.fs.fsyncs.load(SeqCst), before, "nothing at close");

    steadfast_fuse::sync(&m.join("file")).unwrap();
    assert_eq!(m.fs.syncs.load(SeqCst), 1);
    assert_eq!(
        steadfast_fuse::server_pid(&m.path()).unwrap(),
        std::process::id()
    );
    let script = "import fcntl,sys,os\n\
        for p in sys.argv[1:]:\n    fcntl.ioctl(os.open(p,os.O_RDONLY),0x5301)\n";
    match Command::new("python3")
        .args(["-c", script])
        .args([m.path(), m.join("file")])
        .status()
    {
        Ok(status) => {
            assert!(status.success());
            assert_eq!(m.fs.syncs.load(SeqCst), 3);
        }
        Err(e) => steadfast_testkit::skipped!("the ioctl: python3: {e}"),
    }
}

#[test]
fn waiting_fsyncs_do_not_stop_other_requests() {
    const SYNCS: u64 = 8;
    let m = mounted!();
    m.fs.hold_fsyncs.store(true, SeqCst);
    let files: Vec<File> = (0..SYNCS)
        .map(|i| File::create(m.join(format!("{i}"))).unwrap())
        .collect();
    let before = m.fs.fsyncs.load(SeqCst);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().unwrap());
        }
        // Lets the syncs go also when an assertion fails.
        let release = Release(&m.fs.hold_fsyncs);
        let begun = Instant::now();
        while m.fs.fsyncs.load(SeqCst) < before + SYNCS {
            assert!(begun.elapsed() < PATIENCE, "they do not wait side by side");
            std::thread::sleep(Duration::from_millis(1));
        }
        // All of them are held: this returns only if none of them is in its way.
        let (done, finished) = std::sync::mpsc::channel();
        let path = m.join("meanwhile");
        scope.spawn(move || done.send(fs::write(path, "x").is_ok()));
        assert_eq!(finished.recv_timeout(PATIENCE), Ok(true));
        drop(release);
    });
}

/// A damaged directory: a run of names without inodes, longer than what is fetched at a time, made READDIRPLUS look at the same
/// names for ever.
#[test]
fn a_directory_of_names_without_inodes_is_listed_to_its_end() {
    let m = mounted!();
    let (below, caller) = (&m.fs.inner, Caller::root());
    let dir = below.mkdir(&caller, below.root(), b"d", 0o755).unwrap().ino;
    for i in 0..200 {
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let name = format!("{i:03}");
        below.mknod(&caller, dir, name.as_bytes(), &node).unwrap();
    }
    below.mkdir(&caller, dir, b"whole", 0o755).unwrap();
    m.fs.inodes_gone.store(true, SeqCst);
    let (done, finished) = std::sync::mpsc::channel();
    let path = m.join("d");
    std::thread::spawn(move || {
        let listed = fs::read_dir(path).unwrap();
        let names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
        done.send(names)
    });
    let listed = finished.recv_timeout(PATIENCE);
    assert_eq!(listed, Ok(vec!["whole".into()]), "the listing ends");
}

/// Far beyond the time of a sound run: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

struct Release<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

/// As fstrim(8) asks, and `steadfast trim`.
#[test]
fn free_space_is_trimmed_by_ioctl_and_by_attribute() {
    let m = mounted!();
    assert_eq!(steadfast_fuse::trim(&m.path()).unwrap(), 123_456);
    assert_eq!(m.fs.trims.lock().unwrap().pop(), Some((0, u64::MAX, 0)));
    let script = "import fcntl,sys,os,struct\n\
        d=os.open(sys.argv[1],os.O_RDONLY)\n\
        for start,length in ((0,2**64-1),(4096,8192)):\n\
        \x20   b=bytearray(struct.pack('QQQ',start,length,65536))\n\
        \x20   fcntl.ioctl(d,0xc0185879,b)\n\
        \x20   assert struct.unpack('QQQ',b)==(start,123456,65536),b\n";
    let mut python = Command::new("python3");
    match python.args(["-c", script]).arg(m.path()).status() {
        Ok(status) => {
            assert!(status.success());
            let expected = [(0, u64::MAX, 65536), (4096, 12288, 65536)];
            assert_eq!(*m.fs.trims.lock().unwrap(), expected);
        }
        Err(e) => steadfast_testkit::skipped!("the ioctl: python3: {e}"),
    }
}

/// xfstests generic/451. Linux invalidates its page cache before an asynchronous direct write and not when that is
/// done: pages that a reader had fetched in between stayed, stale for as long as the inode is known.
#[test]
fn a_buffered_read_during_a_direct_write_leaves_no_stale_page() {
    let m = mounted!();
    let Some([writer, reader]) = two_processors() else {
        return steadfast_testkit::skipped!("it takes two processors");
    };
    // Over io_uring, a write that waits holds the queue of its processor up: the reader asks from another.
    run_on(writer);
    fs::write(m.join("file"), [b'a'; 8192]).unwrap();
    // io_setup and io_submit of one direct write, with memory that is aligned.
    let script = "import ctypes,mmap,os,struct,sys\n\
        libc=ctypes.CDLL(None,use_errno=True)\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_DIRECT)\n\
        ctx=ctypes.c_ulong(0)\n\
        if libc.syscall(206,1,ctypes.byref(ctx)): sys.exit(77)\n\
        b=mmap.mmap(-1,8192)\n\
        b.write(b'b'*8192)\n\
        at=ctypes.addressof(ctypes.c_char.from_buffer(b))\n\
        cb=ctypes.create_string_buffer(struct.pack('QIiHhIQQqQIi',0,0,0,1,0,f,at,8192,0,0,0,0)[:64],64)\n\
        cbs=(ctypes.c_void_p*1)(ctypes.addressof(cb))\n\
        assert libc.syscall(209,ctx,ctypes.c_long(1),cbs)==1,ctypes.get_errno()\n\
        ev=ctypes.create_string_buffer(32)\n\
        assert libc.syscall(208,ctx,ctypes.c_long(1),ctypes.c_long(1),ev,None)==1\n\
        assert struct.unpack('QQqq',ev.raw)[2]==8192\n";
    let before = m.fs.writes_begun.load(SeqCst);
    let held = m.fs.writes.lock().unwrap();
    let child = Command::new("python3")
        .args(["-c", script])
        .arg(m.join("file"))
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return steadfast_testkit::skipped!("python3: {e}"),
    };
    while m.fs.writes_begun.load(SeqCst) == before {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(77), "the writer failed");
            return steadfast_testkit::skipped!("no asynchronous I/O here");
        }
        std::thread::yield_now();
    }
    run_on(reader);
    // The write is under way: the old bytes come into the page cache.
    assert_eq!(fs::read(m.join("file")).unwrap(), [b'a'; 8192]);
    drop(held);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(m.join("file")).unwrap(), [b'b'; 8192]);
}

/// Two processors that this thread may run on.
fn two_processors() -> Option<[usize; 2]> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    Some([allowed.next()?, allowed.next()?])
}

/// From now on this thread, and what it starts, runs on one processor.
fn run_on(processor: usize) {
    let mut only = CpuSet::new();
    only.set(processor);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

/// A limit of Linux (6.18), stated in steadfast(7): bytes stored through mmap past the end of a file become visible
/// when the file grows. The kernel keeps the page while the size changes and writes it back afterwards, with the new size:
/// the server sees a write like any other. Should a kernel zero the rest of the page, it passes, too.
#[test]
fn stores_past_the_end_come_to_the_server_after_the_size() {
    let m = mounted!();
    let script = "import ctypes,os,sys\n\
        libc=ctypes.CDLL(None,use_errno=True)\n\
        libc.mmap.restype=ctypes.c_void_p\n\
        libc.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int,ctypes.c_int,ctypes.c_int,ctypes.c_long]\n\
        f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
        os.write(f,b'a'*100)\n\
        at=libc.mmap(None,4096,3,1,f,0)\n\
        ctypes.memset(at+200,0x58,1)\n\
        os.ftruncate(f,4096)\n\
        os.fsync(f)\n";
    let status = Command::new("python3")
        .args(["-c", script])
        .arg(m.join("file"))
        .status();
    match status {
        Ok(status) => assert!(status.success()),
        Err(e) => return steadfast_testkit::skipped!("python3: {e}"),
    }
    let seen = m.fs.seen.lock().unwrap();
    let grown = seen
        .iter()
        .position(|seen| *seen == common::Seen::Size(4096))
        .unwrap();
    let stored = |seen: &common::Seen| match seen {
        common::Seen::Write(0, data) => data.get(200) == Some(&0x58),
        _ => false,
    };
    assert!(
        !seen[..grown].iter().any(stored),
        "nothing past the end before the file grows"
    );
    let after = seen[grown..].iter().any(stored);
    drop(seen);
    let found = fs::read(m.join("file")).unwrap();
    assert_eq!((found.len(), found[200] == 0x58), (4096, after));
    println!("the kernel writes back the bytes past the end: {after}");
}
