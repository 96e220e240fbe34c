//! The kernel's write-back cache: the writes that it keeps, when it sends them, and the conditions in between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use common::{Mount, Seen};
use steadfast_fuse::MountOptions;
use steadfast_vfs::FileSystem;

fn write_back(options: &mut MountOptions) {
    options.write_back = true;
}

/// Writes to a file, and closes it, as this user: the error number of close(2), which `File` passes over.
fn write_and_close(path: &Path, len: usize, user: u32) -> i32 {
    let script = "import os,sys\n\
        os.setgroups([])\n\
        os.setgid(int(sys.argv[3]))\n\
        os.setuid(int(sys.argv[3]))\n\
        f=os.open(sys.argv[1],os.O_WRONLY)\n\
        os.write(f,b'1'*int(sys.argv[2]))\n\
        try: os.close(f)\n\
        except OSError as e: sys.exit(e.errno)\n";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", script]).arg(path);
    let status = python.args([len.to_string(), user.to_string()]).status();
    status.unwrap().code().unwrap()
}

/// Writes that have arrived, each as (offset, length).
fn writes(m: &Mount) -> Vec<(u64, usize)> {
    let seen = m.fs.seen.lock().unwrap();
    let writes = seen.iter().filter_map(|seen| match seen {
        Seen::Write(at, data) => Some((*at, data.len())),
        Seen::Size(_) => None,
    });
    writes.collect()
}

/// The content that the file system has of a file.
fn arrived(m: &Mount, name: &str) -> Vec<u8> {
    let caller = steadfast_vfs::Caller::root();
    let file = m.fs.lookup(&caller, m.fs.root(), name.as_bytes()).unwrap();
    let mut content = vec![0; file.size as usize];
    let len = m.fs.read(&caller, file.ino, 0, &mut content).unwrap();
    assert_eq!(len, content.len());
    content
}

#[test]
fn written_pages_are_kept_until_the_close_and_only_if_that_was_asked_for() {
    for on in [true, false] {
        let Some(m) = Mount::new(|options| options.write_back = on) else {
            return;
        };
        assert_eq!(steadfast_fuse::writes_back(&m.path()).unwrap(), on);
        let mut file = File::create(m.join("f")).unwrap();
        for _ in 0..100 {
            file.write_all(b"ten bytes ").unwrap();
        }
        assert_eq!(fs::metadata(m.join("f")).unwrap().len(), 1000);
        assert_eq!(writes(&m).len(), if on { 0 } else { 100 });
        drop(file);
        assert_eq!(writes(&m).len(), if on { 1 } else { 100 });
        assert_eq!(arrived(&m, "f"), b"ten bytes ".repeat(100));
    }
}

#[test]
fn a_rename_after_a_close_finds_the_content_written() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    fs::write(m.join("f"), "old").unwrap();
    let mut file = File::create(m.join("new")).unwrap();
    file.write_all(&[7; 10_000]).unwrap();
    drop(file);
    let before = writes(&m).len();
    fs::rename(m.join("new"), m.join("f")).unwrap();
    assert_eq!(writes(&m).len(), before, "nothing is left for later");
    assert_eq!(arrived(&m, "f"), [7; 10_000]);
}

#[test]
fn fsync_sends_everything_and_then_syncs() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let mut file = File::create(m.join("f")).unwrap();
    file.write_all(&[1; 100_000]).unwrap();
    assert_eq!(m.fs.fsyncs.load(SeqCst), 0);
    file.sync_data().unwrap();
    assert_eq!(m.fs.fsyncs.load(SeqCst), 1);
    assert_eq!(arrived(&m, "f"), [1; 100_000]);
}

/// The kernel reads the rest of the page through the handle, which is for writing alone.
#[test]
fn a_page_is_completed_through_a_handle_that_cannot_read() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    fs::write(m.join("f"), [b'a'; 9000]).unwrap();
    fs::set_permissions(m.join("f"), fs::Permissions::from_mode(0o200)).unwrap();
    // The kernel's cached content of the file is dropped.
    let file = File::open(m.join("f")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(file);
    let file = OpenOptions::new().write(true).open(m.join("f")).unwrap();
    file.write_all_at(b"bb", 5000).unwrap();
    drop(file);
    let mut expected = vec![b'a'; 9000];
    expected[5000..5002].fill(b'b');
    assert_eq!(arrived(&m, "f"), expected);
}

#[test]
fn appends_of_two_handles_follow_one_another() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let append = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).open(m.join("f")).unwrap()
    };
    let (mut one, mut other) = (append(), append());
    let mut expected = Vec::new();
    for n in 0..200u8 {
        one.write_all(&[n; 33]).unwrap();
        other.write_all(&[n; 77]).unwrap();
        expected.extend([n; 110]);
    }
    assert_eq!(fs::read(m.join("f")).unwrap(), expected);
    drop((one, other));
    assert_eq!(arrived(&m, "f"), expected);
}

#[test]
fn truncating_drops_unsent_pages_and_growing_shows_zeros() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(m.join("f"))
        .unwrap();
    file.write_all_at(&[9; 20_000], 0).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(9000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 9000);
    let mut expected = vec![9; 5000];
    expected.resize(9000, 0);
    assert_eq!(fs::read(m.join("f")).unwrap(), expected);
    drop(file);
    assert_eq!(arrived(&m, "f"), expected);
    // Truncated by an open, with bytes that were not sent.
    let kept = OpenOptions::new().write(true).open(m.join("f")).unwrap();
    kept.write_all_at(&[8; 9000], 0).unwrap();
    drop(File::create(m.join("f")).unwrap());
    drop(kept);
    assert_eq!(arrived(&m, "f"), b"");
}

#[test]
fn holes_are_punched_and_ranges_allocated_among_bytes_that_were_not_sent() {
    use rustix::fs::FallocateFlags;
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let file = File::create(m.join("f")).unwrap();
    file.write_all_at(&[5; 20_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 5000, 9000).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 30_000).unwrap();
    file.write_all_at(&[6; 10], 25_000).unwrap();
    let mut expected = vec![5; 20_000];
    expected[5000..14_000].fill(0);
    expected.resize(30_000, 0);
    expected[25_000..25_010].fill(6);
    assert_eq!(fs::read(m.join("f")).unwrap(), expected);
    drop(file);
    assert_eq!(arrived(&m, "f"), expected);
}

/// A program that copies data alone, as cp(1) does, must not take data that the server does not have yet for a hole.
#[test]
fn pages_that_were_not_sent_are_data() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let file = File::create(m.join("f")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"x", 500_000).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert!(data <= 500_000, "data from {data} on");
}

#[test]
fn a_copy_of_a_file_that_was_not_sent_is_complete() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let mut source = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.join("f"))
        .unwrap();
    source.write_all(&[3; 50_000]).unwrap();
    source.seek(SeekFrom::Start(0)).unwrap();
    let copy = File::create(m.join("copy")).unwrap();
    let mut left = 50_000;
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&source, None, &copy, None, left).unwrap();
        assert!(copied > 0, "{left} bytes are missing");
        left -= copied;
    }
    drop(copy);
    assert_eq!(arrived(&m, "copy"), [3; 50_000]);
}

#[test]
fn a_write_that_failed_later_is_reported_by_fsync_and_by_close() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    m.fs.space.store(10_000, SeqCst);
    let mut file = File::create(m.join("f")).unwrap();
    file.write_all(&[1; 50_000]).unwrap();
    let told = file.sync_all().unwrap_err();
    assert_eq!(told.raw_os_error(), Some(28), "ENOSPC: {told}");
    drop(file);
    if rustix::process::geteuid().is_root() {
        assert_eq!(write_and_close(&m.join("f"), 50_000, 0), 28);
    }
}

/// The time of a file is that of the last write(2), not that at which it was sent.
#[test]
fn times_that_were_set_or_made_by_writes_survive_later_write_back() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let mut file = File::create(m.join("f")).unwrap();
    file.write_all(b"content").unwrap();
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.set_modified(long_ago).unwrap();
    drop(file);
    let caller = steadfast_vfs::Caller::root();
    let time = |name: &str| {
        let found = m.fs.lookup(&caller, m.fs.root(), name.as_bytes());
        found.unwrap().mtime
    };
    assert_eq!(time("f").secs, 1_000_000);
    let mut file = File::create(m.join("g")).unwrap();
    file.write_all(b"content").unwrap();
    let written = file.metadata().unwrap();
    drop(file);
    let sent = time("g");
    assert_eq!(
        (sent.secs, i64::from(sent.nanos)),
        (written.mtime(), written.mtime_nsec())
    );
}

/// Others than the owner may write and truncate where the mode lets them: the times that the kernel sends with it are the
/// owner's to set.
#[test]
fn a_user_with_write_permission_alone_writes_truncates_and_closes() {
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("other users need root");
    }
    let both = |options: &mut MountOptions| {
        options.write_back = true;
        options.allow_other = true;
    };
    let Some(m) = Mount::new(both) else { return };
    fs::write(m.join("f"), [1; 5000]).unwrap();
    let path = m.join("f");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(write_and_close(&path, 5001, 65534), 0);
    let truncated = std::process::Command::new("python3")
        .args([
            "-c",
            "import os,sys; os.setuid(65534); os.truncate(sys.argv[1],4000)",
        ])
        .arg(&path)
        .status();
    assert!(truncated.unwrap().success());
    assert_eq!(arrived(&m, "f"), [b'1'; 4000]);
}

/// `steadfast sync` makes the kernel send its cached pages of open files, and waits for them.
#[test]
fn a_sync_of_the_volume_includes_unsent_pages_of_open_files() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    // Fewer than there are threads: the times of files, which are sent as well, must not wait for one.
    let mut files: Vec<File> = (0..2)
        .map(|n| File::create(m.join(format!("f{n}"))).unwrap())
        .collect();
    for file in &mut files {
        file.write_all(&[4; 30_000]).unwrap();
    }
    let held = m.fs.writes.lock().unwrap();
    let path = m.path();
    thread::scope(|scope| {
        let sync = scope.spawn(move || {
            let sent = steadfast_fuse::send_kept(&path);
            (sent, steadfast_fuse::sync(&path))
        });
        m.eventually("a write", |fs| fs.writes_begun.load(SeqCst) > 0);
        // Time for a sync that does not wait to be seen.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(m.fs.syncs.load(SeqCst), 0, "synced before it was written");
        drop(held);
        let (sent, synced) = sync.join().unwrap();
        assert_eq!(sent.unwrap(), steadfast_fuse::Sent::All);
        synced.unwrap();
    });
    assert_eq!(m.fs.syncs.load(SeqCst), 1);
    for n in 0..2 {
        assert_eq!(arrived(&m, &format!("f{n}")), [4; 30_000]);
    }
}

#[test]
fn an_unmount_sends_the_remaining_pages() {
    let Some(mut m) = Mount::new(write_back) else {
        return;
    };
    fs::write(m.join("f"), [2; 40_000]).unwrap();
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b')\n\
        w=mmap.mmap(f.fileno(),0)\n\
        f.close()\n\
        w[30000:30010]=b'y'*10\n";
    let mut python = std::process::Command::new("python3");
    let status = python.arg("-c").arg(script).arg(m.join("f")).status();
    assert!(status.unwrap().success());
    let session = m.session.take().unwrap();
    let fs = Arc::clone(&m.fs);
    let _ = session.shutdown(Duration::from_secs(10));
    let caller = steadfast_vfs::Caller::root();
    let file = fs.inner.lookup(&caller, fs.inner.root(), b"f").unwrap();
    let mut content = vec![0; 40_000];
    fs.inner.read(&caller, file.ino, 0, &mut content).unwrap();
    assert_eq!(content[30_000..30_010], *b"yyyyyyyyyy");
}

/// A server that is asked to end while programs have files open.
#[test]
fn the_end_of_a_server_loses_unsent_pages_of_open_files() {
    let Some(mut m) = Mount::new(write_back) else {
        return;
    };
    let mut file = File::create(m.join("f")).unwrap();
    file.write_all(&[6; 50_000]).unwrap();
    let session = m.session.take().unwrap();
    let ended = session.shutdown(Duration::from_millis(200));
    assert_eq!(ended, steadfast_fuse::Ended::Abandoned);
    assert_eq!(arrived(&m, "f"), [6; 50_000]);
    drop(file);
}

/// O_DIRECT bypasses the cache, and the cached pages of the range are written first.
#[test]
fn direct_writes_and_cached_ones_see_each_other() {
    let Some(m) = Mount::new(write_back) else {
        return;
    };
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(m.join("f"))
        .unwrap();
    let mut cached = OpenOptions::new()
        .read(true)
        .write(true)
        .open(m.join("f"))
        .unwrap();
    cached.write_all(&[1; 12_288]).unwrap();
    let page = vec![2u8; 3 * 4096];
    let start = page.as_ptr().align_offset(4096);
    direct
        .write_all_at(&page[start..start + 4096], 4096)
        .unwrap();
    let mut expected = vec![1; 12_288];
    expected[4096..8192].fill(2);
    let mut found = Vec::new();
    cached.seek(SeekFrom::Start(0)).unwrap();
    cached.read_to_end(&mut found).unwrap();
    assert_eq!(found, expected);
    drop((direct, cached));
    assert_eq!(arrived(&m, "f"), expected);
}
