//! `steadfast serve disk` with real clients: NBD's tools, qemu's, fio, and the kernel's loop device.
#![cfg(feature = "flash")]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::Signal;
use serde_json::Value;
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_ftl::{Disk, WhenFull};

use crate::programs;
use programs::{PROGRAM, Running, must, refused, run, run_when_free, said};

/// Far more than a sound run takes: only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(300);
const SIZE: u64 = 16 << 20;

/// The plugin that was built for these tests.
fn plugin() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.join("libsteadfast_nbdkit.so")
}

/// Whether the tools are installed; prints which are not.
fn tools(names: &[&str]) -> bool {
    names.iter().all(|name| {
        let found = Command::new("which")
            .arg(name)
            .stdout(Stdio::null())
            .status();
        let found = found.is_ok_and(|status| status.success());
        if !found {
            steadfast_testkit::skipped!("{name} is missing (scripts/setup.sh disk)");
        }
        found
    })
}

/// A directory with a flash image `disk`.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "ftl",
        "format",
        "--size",
        "16M",
        "--epoch",
        "1M",
        "--page-size",
        "4K",
        "disk",
    ];
    must(dir.path(), PROGRAM, &args);
    dir
}

/// A server of the disk.
struct Serving {
    child: Running,
    told: Value,
}

impl Serving {
    fn start(dir: &Path, args: &[&str]) -> Serving {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "disk", "--json"]);
        if !args.contains(&"--fuse") {
            command.arg("--plugin").arg(plugin());
        }
        let mut child = command
            .args(args)
            .arg("disk")
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        Serving {
            told: serde_json::from_str(&line).unwrap(),
            child: Running(child),
        }
    }

    fn uri(&self) -> &str {
        self.told["uri"].as_str().unwrap()
    }

    fn end(self, signal: Signal) -> Option<i32> {
        self.child.end(signal)
    }
}

/// Bytes that differ at any two places.
fn pattern(len: u64) -> Vec<u8> {
    (0..len / 8)
        .flat_map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes())
        .collect()
}

/// A block of the image when the server has closed it; a child of another test may hold it for a moment before it
/// becomes another program.
fn block(dir: &Path, at: u64) -> Vec<u8> {
    let begun = Instant::now();
    let disk = loop {
        match Disk::open(&dir.join("disk"), WhenFull::default()) {
            Ok(disk) => break disk,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut data = vec![0; 4096];
    disk.read(BlockNo(at), &mut data).unwrap();
    data
}

#[test]
fn nbd_and_qemu_tools_copy_a_disk_both_ways() {
    if !tools(&["nbdkit", "nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let dir = place();
    let dir = dir.path();
    let serving = Serving::start(dir, &["--socket", "a socket"]);
    let uri = serving.uri().to_owned();
    assert!(uri.ends_with("/a%20socket"), "{uri}");
    assert_eq!(serving.told["bytes"], SIZE);
    assert_eq!(serving.told["epoch_bytes"], 1 << 20);

    let info: Value = serde_json::from_str(&must(dir, "nbdinfo", &["--json", &uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], SIZE);
    for can in [
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
        "can_fast_zero",
    ] {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    // Older clients do not know of block sizes.
    if let Some(minimum) = export["block_size_minimum"].as_u64() {
        assert_eq!(
            (minimum, export["block_size_preferred"].as_u64()),
            (1, Some(4096))
        );
    }
    let map = must(dir, "nbdinfo", &["--map", &uri]);
    assert_eq!(map.split_whitespace().nth(1), Some("16777216"), "{map}");
    assert!(map.contains("hole,zero"), "{map}");

    // Data with a hole in it.
    let mut bytes = pattern(SIZE);
    bytes[3 << 20..5 << 20].fill(0);
    fs::write(dir.join("source"), &bytes).unwrap();
    must(dir, "nbdcopy", &["--flush", "source", &uri]);
    must(dir, "nbdcopy", &[&uri, "copy"]);
    assert!(fs::read(dir.join("copy")).unwrap() == bytes);
    let map = must(dir, "nbdinfo", &["--map", &uri]);
    let holes: Vec<&str> = map.lines().filter(|l| l.contains("hole")).collect();
    assert_eq!(holes.len(), 1, "{map}");
    assert!(
        holes[0].contains("3145728") && holes[0].contains("2097152"),
        "{map}"
    );

    fs::rename(dir.join("copy"), dir.join("other")).unwrap();
    must(
        dir,
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &uri, "copy.qcow2"],
    );
    must(dir, "qemu-img", &["check", "copy.qcow2"]);
    must(
        dir,
        "qemu-img",
        &["compare", "-F", "raw", "copy.qcow2", &uri],
    );
    let shown: Value =
        serde_json::from_str(&must(dir, "qemu-img", &["info", "--output=json", &uri])).unwrap();
    assert_eq!(shown["virtual-size"], SIZE);
    bytes.reverse();
    fs::write(dir.join("source"), &bytes).unwrap();
    must(
        dir,
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", "source", &uri],
    );
    must(
        dir,
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", "source", &uri],
    );
    bytes[0] ^= 1;
    fs::write(dir.join("source"), &bytes).unwrap();
    let other = run(
        dir,
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", "source", &uri],
    );
    assert_eq!(other.status.code(), Some(1));

    assert_eq!(serving.end(Signal::TERM), Some(0));
    assert!(!dir.join("a socket").exists());
    bytes[0] ^= 1;
    assert!(block(dir, 0) == bytes[..4096]);
}

#[test]
fn fio_finds_what_it_wrote() {
    if !tools(&["nbdkit", "fio"]) {
        return;
    }
    let engines = Command::new("fio").arg("--enghelp").output().unwrap();
    if !said(&engines).contains("nbd") {
        steadfast_testkit::skipped!("this fio has no engine 'nbd'");
        return;
    }
    let dir = place();
    // Smaller than a block, too.
    for (full, bs) in [("flush", "4k"), ("flush", "512"), ("wait", "4k")] {
        let serving = Serving::start(dir.path(), &["--socket", "sock", "--epoch-full", full]);
        let (uri, bs) = (format!("--uri={}", serving.uri()), format!("--bs={bs}"));
        let args = [
            "--name=verified",
            "--ioengine=nbd",
            &uri,
            "--rw=randrw",
            &bs,
            "--iodepth=8",
            "--size=4M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=16",
            "--randseed=4",
        ];
        let output = run(dir.path(), "fio", &args);
        assert!(output.status.success(), "{full} {bs}: {}", said(&output));
        assert!(said(&output).contains("err= 0"), "{}", said(&output));
        assert_eq!(serving.end(Signal::TERM), Some(0));
    }
}

#[test]
fn a_server_ends_at_a_signal_though_a_client_stays_and_flushes_what_it_wrote() {
    if !tools(&["nbdkit", "qemu-io"]) {
        return;
    }
    let dir = place();
    let dir = dir.path();
    let serving = Serving::start(dir, &["--socket", "sock"]);
    let write = ["-f", "raw", "-c", "write -P 7 8192 4096", serving.uri()];
    must(dir, "qemu-io", &write);
    // A client that stays silent.
    let mut idle = UnixStream::connect(dir.join("sock")).unwrap();
    idle.read_exact(&mut [0; 18]).unwrap();
    idle.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")
        .unwrap();
    idle.read_exact(&mut [0; 10]).unwrap();
    // Returns only if it does not wait for its client.
    assert_eq!(serving.end(Signal::INT), Some(0));
    assert_eq!(block(dir, 2), [7; 4096]);
}

/// Story: a server was killed and started again at once. Its nbdkit had closed the disk but not ended yet: "another
/// server listens there".
#[test]
fn a_server_at_the_socket_that_is_about_to_end_is_waited_for() {
    if !tools(&["nbdkit"]) {
        return;
    }
    let dir = place();
    let ending = UnixListener::bind(dir.path().join("sock")).unwrap();
    let ended = std::thread::spawn(move || {
        // The first connection of the new server is accepted; the next one finds no listener.
        drop(ending.accept().unwrap());
        drop(ending);
    });
    let serving = Serving::start(dir.path(), &["--socket", "sock"]);
    ended.join().unwrap();
    assert_eq!(serving.end(Signal::TERM), Some(0));
}

#[test]
fn a_killed_server_takes_nbdkit_along_and_leaves_the_disk_at_a_flush() {
    if !tools(&["nbdkit", "qemu-io"]) {
        return;
    }
    let dir = place();
    let dir = dir.path();
    let serving = Serving::start(dir, &["--socket", "sock"]);
    let write = [
        "-f",
        "raw",
        "-c",
        "write -P 7 8192 4096",
        "-c",
        "flush",
        serving.uri(),
    ];
    must(dir, "qemu-io", &write);
    assert_eq!(serving.end(Signal::KILL), None);
    // nbdkit notices, closes the disk, and ends.
    assert_eq!(block(dir, 2), [7; 4096]);
    let begun = Instant::now();
    while UnixStream::connect(dir.join("sock")).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "nbdkit stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A leftover socket is no obstacle.
    let serving = Serving::start(dir, &["--socket", "sock", "--read-only"]);
    let output = run(
        dir,
        "qemu-io",
        &["-f", "raw", "-c", "write 0 4096", serving.uri()],
    );
    assert!(!output.status.success());
    must(
        dir,
        "qemu-io",
        &[
            "-r",
            "-f",
            "raw",
            "-c",
            "read -P 7 8192 4096",
            serving.uri(),
        ],
    );
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let beside = Serving::start(dir, &["--listen", &address, "--read-only"]);
    assert_eq!(beside.uri(), format!("nbd://{address}"));
    must(
        dir,
        "qemu-io",
        &["-r", "-f", "raw", "-c", "read -P 7 8192 4096", beside.uri()],
    );
    assert_eq!(serving.end(Signal::TERM), Some(0));
    assert_eq!(beside.end(Signal::TERM), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let dir = place();
    let dir = dir.path();
    let serve = |args: &[&str]| refused(dir, 1, &[&["serve", "disk"], args].concat());
    let said = serve(&["none"]);
    assert!(said.contains("steadfast ftl format"), "{said}");
    fs::write(dir.join("plain"), vec![0; 1 << 20]).unwrap();
    let said = serve(&["plain"]);
    assert!(
        said.contains("no flash image") && said.contains("nbdkit file"),
        "{said}"
    );
    let said = serve(&["--fuse", "plain", "disk"]);
    assert!(said.contains("not a directory"), "{said}");
    let said = serve(&["--socket", "plain", "disk"]);
    assert!(said.contains("no socket"), "{said}");
    fs::copy(dir.join("disk"), dir.join("short")).unwrap();
    let short = File::options().write(true).open(dir.join("short")).unwrap();
    short.set_len(100_000).unwrap();
    let said = serve(&["short"]);
    assert!(said.contains("are there"), "{said}");
    let held = Disk::open(&dir.join("disk"), WhenFull::default()).unwrap();
    let said = serve(&["disk"]);
    assert!(said.contains("in use"), "{said}");
    drop(held);
    let mut bare = Command::new(PROGRAM);
    bare.args(["serve", "disk", "disk"])
        .current_dir(dir)
        .env("PATH", "/nowhere");
    let output = bare.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = self::said(&output);
    assert!(text.contains("install it (the package 'nbdkit')"), "{text}");
    if tools(&["nbdkit"]) {
        let said = serve(&["--plugin", "plain", "disk"]);
        assert!(said.contains("did not start"), "{said}");
        let said = serve(&["--plugin", "nowhere", "disk"]);
        assert!(said.contains("nowhere"), "{said}");
    }
    let said = refused(dir, 2, &["serve", "disk", "--listen", "[::1]:0", "disk"]);
    assert!(said.contains("name a port"), "{said}");
    let said = refused(dir, 2, &["serve", "disk", "--epoch-full", "never", "disk"]);
    assert!(said.contains("'flush', 'wait'"), "{said}");
}

/// Whether FUSE and loop devices can be used; prints if not.
fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
    }
    can
}

#[test]
fn the_disk_is_a_file_that_is_written_flushed_and_punched() {
    if !can_mount() {
        return;
    }
    let dir = place();
    let dir = dir.path();
    fs::create_dir(dir.join("mnt")).unwrap();
    let serving = Serving::start(dir, &["--fuse", "mnt"]);
    let path = dir.join("mnt/disk");
    assert_eq!(serving.told["file"].as_str(), path.to_str());
    assert_eq!(fs::read_dir(dir.join("mnt")).unwrap().count(), 1);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    file.write_all_at(&[1; 10_000], 100).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"end", SIZE - 3).unwrap();
    let errno = |e: std::io::Error| e.raw_os_error();
    assert_eq!(
        file.write_all_at(b"past", SIZE - 3).map_err(errno),
        Err(Some(28))
    );
    assert_eq!(
        file.write_all_at(b"past", SIZE).map_err(errno),
        Err(Some(28))
    );
    assert_eq!(file.set_len(SIZE - 1).map_err(errno), Err(Some(1)));
    assert_eq!(
        File::create(dir.join("mnt/new")).map(drop).map_err(errno),
        Err(Some(1))
    );
    assert_eq!(fs::remove_file(&path).map_err(errno), Err(Some(1)));
    // Not by fallocate(1), which syncs what it has changed.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 4096, 4096).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 9000, 10).unwrap();
    let mut bytes = vec![0; 12_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let mut wanted = [vec![0; 100], vec![1; 10_000], vec![0; 1900]].concat();
    wanted[4096..8192].fill(0);
    wanted[9000..9010].fill(0);
    assert!(bytes == wanted);
    drop(file);
    // The cut returns the disk to the fsync; the mount of the killed server is left.
    assert_eq!(serving.end(Signal::KILL), None);
    assert!(
        run_when_free(|| run(dir, "umount", &["mnt"]))
            .status
            .success()
    );
    assert!(block(dir, 1) == [1; 4096]);

    let serving = Serving::start(dir, &["--fuse", "mnt"]);
    let again = refused(dir, 1, &["serve", "disk", "--fuse", "mnt", "disk"]);
    assert!(again.contains("in use"), "{again}");
    fs::write(dir.join("two"), [2; 4096]).unwrap();
    must(
        dir,
        "dd",
        &["if=two", "of=mnt/disk", "conv=notrunc", "status=none"],
    );
    // Any unmount ends the server, which flushes.
    assert!(
        run_when_free(|| run(dir, "umount", &["mnt"]))
            .status
            .success()
    );
    let mut serving = serving;
    assert_eq!(serving.child.0.wait().unwrap().code(), Some(0));
    assert!(block(dir, 0) == [2; 4096]);

    // So does a signal.
    let serving = Serving::start(dir, &["--fuse", "mnt"]);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[3; 4096], 4096).unwrap();
    drop(file);
    assert_eq!(serving.end(Signal::TERM), Some(0));
    assert!(block(dir, 1) == [3; 4096]);

    let serving = Serving::start(dir, &["--fuse", "mnt", "--read-only"]);
    let read_only = File::options().write(true).open(&path).map(drop);
    assert_eq!(read_only.map_err(errno), Err(Some(30)));
    assert_eq!(fs::read(&path).unwrap()[..4096], [2; 4096]);
    assert_eq!(serving.end(Signal::TERM), Some(0));
}
