//! The kernel's requests, one by one: as few as the protocol permits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Mount;
use steadfast_fuse::MountOptions;
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

/// A mount that records its requests.
struct Traced {
    mount: Mount,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Traced {
    /// As root: the kernel need not ask the server whether root may open a file.
    fn new(change: impl FnOnce(&mut MountOptions)) -> Option<Traced> {
        if !rustix::process::geteuid().is_root() {
            steadfast_testkit::skipped!("for other users, OPEN and RELEASE are among the requests");
            return None;
        }
        // Requests are traced in the order in which this thread causes them: one queue, one server.
        let mut here = rustix::thread::CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &here).unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&lines);
        let mount = Mount::new(|options| {
            options.trace = Some(Arc::new(move |line: &str| {
                hear.lock().unwrap().push(line.to_owned());
            }));
            options.threads = 1;
            change(options);
        })?;
        Some(Traced { mount, lines })
    }

    /// A mount whose kernel has learned that it need not report opens and closes.
    fn settled() -> Option<Traced> {
        let traced = Traced::new(|_| {})?;
        fs::write(traced.join("settle"), "x").unwrap();
        fs::read(traced.join("settle")).unwrap();
        fs::read_dir(traced.mount.path()).unwrap().count();
        traced.of(|| {});
        Some(traced)
    }

    fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mount.join(name)
    }

    /// The requests that something causes, with their names. FORGET is left out: it comes when the
    /// kernel finds the time.
    fn of<T>(&self, action: impl FnOnce() -> T) -> Vec<String> {
        self.lines.lock().unwrap().clear();
        action();
        // Requests of one processor come in order: when the last one is there, so are those that no caller waits for.
        rustix::fs::statfs(self.mount.path()).unwrap();
        let is_last = |line: &String| line.contains(" STATFS ");
        let mut looks = 0;
        while !self.lines.lock().unwrap().iter().any(is_last) {
            assert!(looks < 60_000, "the last request was not traced");
            looks += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        let lines = self.lines.lock().unwrap();
        let asked = lines.iter().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            // time, kind, node, [name,] "by", thread
            match words[..] {
                [_, what, _, "by", _] => what.to_owned(),
                [_, what, _, name, "by", _] => format!("{what} {}", name.trim_matches('"')),
                _ => panic!("{line}"),
            }
        });
        asked
            .take_while(|asked| asked != "STATFS")
            .filter(|asked| asked != "FORGET")
            .collect()
    }
}

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).open(path).unwrap()
}

fn small_file(path: &Path) {
    let mut file = create(path);
    file.write_all(&[7; 100]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_small_file_costs_lookup_create_write_fsync_release_and_nothing_else() {
    let Some(t) = Traced::new(|_| {}) else { return };
    assert_eq!(
        t.of(|| small_file(&t.join("a"))),
        ["LOOKUP a", "CREATE a", "WRITE", "FSYNC", "RELEASE"]
    );
    // Once the kernel has heard that OPEN decides nothing, RELEASE goes, too.
    assert_eq!(
        t.of(|| fs::read(t.join("a"))),
        ["OPEN", "STATX", "READ", "FLUSH"]
    );
    assert_eq!(
        t.of(|| small_file(&t.join("b"))),
        ["LOOKUP b", "CREATE b", "WRITE", "FSYNC"]
    );
}

#[test]
fn with_allow_other_the_kernel_also_looks_at_the_changed_parent() {
    let Some(t) = Traced::new(|options| options.allow_other = true) else {
        return;
    };
    t.of(|| small_file(&t.join("a")));
    assert_eq!(
        t.of(|| small_file(&t.join("b"))),
        [
            "GETATTR", "LOOKUP b", "CREATE b", "WRITE", "FSYNC", "RELEASE"
        ]
    );
}

#[test]
fn a_file_is_asked_for_capabilities_once_and_not_before_each_write() {
    // FUSE_HANDLE_KILLPRIV_V2: else each cached write would begin with a GETXATTR.
    let Some(t) = Traced::settled() else { return };
    let both = |path: &Path| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap()
    };
    let file = both(&t.join("a"));
    let capability = "GETXATTR security.capability";
    assert_eq!(
        t.of(|| (0..3).for_each(|i| file.write_all_at(b"x", i).unwrap())),
        [capability, "WRITE", "WRITE", "WRITE"]
    );
    let append = || {
        let mut file = OpenOptions::new().append(true).open(t.join("a")).unwrap();
        file.write_all(b"more").unwrap();
    };
    assert_eq!(t.of(append), ["WRITE"]);
}

#[test]
fn the_kernel_does_not_ask_again_for_cached_names_and_attributes() {
    let Some(t) = Traced::settled() else { return };
    let none: [&str; 0] = [];
    small_file(&t.join("file"));
    assert_eq!(t.of(|| rustix::fs::stat(t.join("file"))), ["GETATTR"]);
    assert_eq!(t.of(|| rustix::fs::stat(t.join("file"))), none);
    assert_eq!(
        t.of(|| rustix::fs::stat(t.join("absent"))),
        ["LOOKUP absent"]
    );
    assert_eq!(t.of(|| rustix::fs::stat(t.join("absent"))), none);
    assert_eq!(t.of(|| fs::remove_file(t.join("file"))), ["UNLINK file"]);
    assert_eq!(t.of(|| rustix::fs::stat(t.join("file"))), ["LOOKUP file"]);
    assert_eq!(t.of(|| rustix::fs::stat(t.join("file"))), none);
    assert_eq!(
        t.of(|| fs::create_dir(t.join("d"))),
        ["LOOKUP d", "MKDIR d"]
    );
    assert_eq!(t.of(|| rustix::fs::lstat(t.join("d"))), none);

    symlink("target", t.join("link")).unwrap();
    assert_eq!(t.of(|| fs::read_link(t.join("link"))), ["READLINK"]);
    assert_eq!(t.of(|| fs::read_link(t.join("link"))), none);
}

/// The replies that give names and attributes have none. Programs of Rust's standard library and stat(1) ask for it.
#[test]
fn the_time_of_birth_takes_one_request_for_each_inode() {
    let Some(t) = Traced::settled() else { return };
    small_file(&t.join("file"));
    let born = || fs::metadata(t.join("file")).unwrap().created().unwrap();
    let before = born();
    small_file(&t.join("other"));
    assert_eq!(t.of(|| fs::metadata(t.join("other"))), ["STATX"]);
    let ask = t.of(|| fs::metadata(t.join("other")));
    assert_eq!(ask, [""; 0], "the kernel keeps it");
    fs::write(t.join("file"), "changed").unwrap();
    assert_eq!(born(), before);
}

#[test]
fn content_is_read_once_in_long_pieces() {
    let Some(t) = Traced::settled() else { return };
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8).collect();
    assert_eq!(
        t.of(|| create(&t.join("file")).write_all(&data)),
        ["LOOKUP file", "CREATE file", "WRITE"],
        "1 MiB in one piece"
    );
    let read = || assert!(fs::read(t.join("file")).unwrap() == data);
    let first = t.of(read);
    let reads = first.iter().filter(|asked| *asked == "READ").count();
    assert!(reads <= 16, "{first:?}");
    // The kernel believes that reading has changed the time of access.
    // The kernel may reclaim pages at any time, but not each time.
    let mut turns = (0..10).map(|_| t.of(read));
    assert!(
        turns.any(|asked| asked == ["STATX"]),
        "content stays over closes and opens"
    );
    assert_eq!(t.of(read), [""; 0]);
}

#[test]
fn a_directory_is_listed_once_with_the_attributes_of_all() {
    let Some(t) = Traced::settled() else { return };
    // Made without the kernel: it knows nothing of them.
    let (below, caller) = (&t.mount.fs, Caller::root());
    let dir = below.mkdir(&caller, below.root(), b"d", 0o755).unwrap().ino;
    let file = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    for i in 0..40 {
        below
            .mknod(&caller, dir, format!("{i}").as_bytes(), &file)
            .unwrap();
    }
    let list = || {
        for entry in fs::read_dir(t.join("d")).unwrap() {
            rustix::fs::stat(entry.unwrap().path()).unwrap();
        }
    };
    // The second one finds the end.
    assert_eq!(t.of(list), ["LOOKUP d", "READDIRPLUS", "READDIRPLUS"]);
    assert_eq!(
        t.of(list),
        ["GETATTR"],
        "of the directory, as if its time of access had changed"
    );
    assert_eq!(t.of(list), [""; 0]);
}

#[test]
fn a_lock_file_that_is_renamed_over_costs_one_request_a_call_and_the_kernels_own_lookups() {
    let Some(t) = Traced::settled() else { return };
    small_file(&t.join("index"));
    let update = || {
        let mut lock = create(&t.join("index.lock"));
        lock.write_all(b"new").unwrap();
        drop(lock);
        fs::rename(t.join("index.lock"), t.join("index")).unwrap();
    };
    let expected = [
        "LOOKUP index.lock",
        "CREATE index.lock",
        "WRITE",
        "LOOKUP index",
        "RENAME index.lock",
    ];
    assert_eq!(t.of(update), expected);
    assert_eq!(t.of(update), expected);
}

#[test]
fn a_direct_write_is_seen_at_once_by_readers_that_have_the_file_in_the_cache() {
    // A file that was created for writing alone is written past the page cache, which others may
    // fill meanwhile.
    let Some(m) = Mount::new(|_| {}) else { return };
    let path = m.join("file");
    let writer = create(&path);
    writer.write_all_at(&[1; 64 << 10], 0).unwrap();
    let reader = File::open(&path).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut bytes, other) = (vec![0; 64 << 10], File::open(&path).unwrap());
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                other.read_exact_at(&mut bytes, 0).unwrap();
            }
        });
        let mut bytes = [0; 5000];
        for round in 0..2000u32 {
            let at = u64::from(round * 7919 % 60_000);
            writer.write_all_at(&[round as u8; 5000], at).unwrap();
            reader.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes.iter().all(|&b| b == round as u8), "round {round}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // The cached bytes are right: the same as in the file system.
    let mut cached = Vec::new();
    (&reader).read_to_end(&mut cached).unwrap();
    let (fs, caller) = (&m.fs, Caller::root());
    let ino = fs.lookup(&caller, fs.root(), b"file").unwrap().ino;
    let mut stored = vec![0; cached.len()];
    fs.read(&caller, ino, 0, &mut stored).unwrap();
    assert!(cached == stored);
}

/// A file was created for writing alone, made a privileged program by root, and then changed through the
/// handle that was still open: it kept its capabilities, because the kernel takes them away before cached writes only.
#[test]
fn a_direct_write_takes_capabilities_away_as_a_cached_one_does() {
    let Some(m) = Mount::new(|_| {}) else { return };
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("only root can give a file capabilities");
        return;
    }
    // Version 2 of the attribute, one capability permitted.
    let mut capability = [0; 20];
    capability[3] = 2;
    capability[5] = 4;
    let flags = rustix::fs::XattrFlags::empty();
    for direct in [true, false] {
        let path = m.join(if direct { "direct" } else { "cached" });
        let file = if direct {
            create(&path)
        } else {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create_new(true);
            options.open(&path).unwrap()
        };
        file.write_all_at(b"old program", 0).unwrap();
        rustix::fs::setxattr(&path, "security.capability", &capability, flags).unwrap();
        rustix::fs::setxattr(&path, "user.kept", b"", flags).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        let mut names = [0; 256];
        let len = rustix::fs::listxattr(&path, &mut names).unwrap();
        assert_eq!(&names[..len], b"user.kept\0", "direct: {direct}");
        assert_eq!(fs::read(&path).unwrap(), b"new program");
    }
}

#[test]
fn a_direct_write_that_asks_for_it_is_durable_when_it_returns() {
    // The kernel sends no FSYNC after a direct write, with or without O_SYNC, O_DSYNC or RWF_DSYNC.
    let Some(m) = Mount::new(|_| {}) else { return };
    let fsyncs = || m.fs.fsyncs.load(std::sync::atomic::Ordering::SeqCst);
    let flags = [
        rustix::fs::OFlags::SYNC,
        rustix::fs::OFlags::DSYNC,
        rustix::fs::OFlags::empty(),
    ];
    for (i, flag) in flags.into_iter().enumerate() {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .custom_flags(flag.bits() as i32);
        let file = options.open(m.join(format!("{i}"))).unwrap();
        let before = fsyncs();
        (&file).write_all(b"x").unwrap();
        assert_eq!(fsyncs() - before, u64::from(!flag.is_empty()), "{flag:?}");
        let now = rustix::io::ReadWriteFlags::DSYNC;
        let pieces = [std::io::IoSlice::new(b"y")];
        rustix::io::pwritev2(&file, &pieces, 1, now).unwrap();
        assert_eq!(
            fsyncs() - before,
            u64::from(!flag.is_empty()) + 1,
            "{flag:?}"
        );
    }
}
