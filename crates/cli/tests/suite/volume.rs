//! The command, end to end: make, mount, use, unmount, check; and every wrong way to ask.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::programs;

/// A directory with images and mount points; all mounts in it are removed with it.
struct Place {
    dir: tempfile::TempDir,
}

/// Time limit of any command.
const LIMIT: Duration = Duration::from_secs(300);

fn run_in(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A full pipe would block the program.
    let mut pipe = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text).map(|_| text)
    });
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("'steadfast {}' hangs", args.join(" "));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    Output {
        stdout: reader.join().unwrap().unwrap(),
        ..output
    }
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Place { dir }
    }

    /// A place with a volume in `img`.
    fn with_volume() -> Place {
        let place = Place::new();
        place.ok(&["mkfs", "--size", "64M", "--label", "test", "img"]);
        place
    }

    /// Makes the volume anew, on flash.
    fn on_flash(&self) {
        fs::remove_file(self.path("img")).unwrap();
        self.ok(&[
            "mkfs",
            "--size",
            "64M",
            "--label",
            "test",
            "--on",
            "flash:img",
        ]);
    }

    /// The same, if volumes can be mounted here.
    fn mountable() -> Option<Place> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
            return None;
        }
        Some(Place::with_volume())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        run_in(self.dir.path(), args)
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = programs::run_when_free(|| self.run(args));
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this code and one line that has all of these words.
    #[track_caller]
    fn refused(&self, args: &[&str], code: i32, words: &[&str]) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("steadfast: "), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        for word in words {
            assert!(
                said.contains(word),
                "{args:?} does not say '{word}': {said}"
            );
        }
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    fn state(&self) -> String {
        self.json(&["info", "--json", "img"])["state"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn mounted(&self, name: &str) -> bool {
        let point = self
            .path(name)
            .canonicalize()
            .unwrap_or_else(|_| self.path(name));
        steadfast_fuse::mountinfo::mount_at(&point)
            .unwrap()
            .is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for name in ["mnt", "other"] {
            let point = self.path(name);
            let _ = steadfast_fuse::unmount(&point, steadfast_fuse::Unmount::Detach);
        }
    }
}

macro_rules! mountable {
    () => {
        match Place::mountable() {
            Some(place) => place,
            None => return,
        }
    };
}

#[test]
fn a_volume_is_made_mounted_used_unmounted_and_clean() {
    let p = mountable!();
    made_mounted_used_unmounted_and_clean(&p);
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn the_same_on_flash_without_a_log() {
    let p = mountable!();
    p.on_flash();
    made_mounted_used_unmounted_and_clean(&p);
    // No option is repeated; the image names the medium.
    let dumped = p.json(&["dump", "--json", "img"]);
    assert_eq!(dumped["superblock"]["log_blocks"], 0);
    assert!(dumped["log"].is_null());
    assert!(p.ok(&["info", "img"]).contains("log:      none"));
    assert_eq!(
        p.json(&["ftl", "info", "--json", "img"])["contract"],
        "snapshot"
    );
    p.ok(&["mkfs", "--on", "flash", "--force", "img"]);
    p.ok(&[
        "mkfs",
        "--size",
        "32M",
        "--on",
        "flash",
        "--contract",
        "sync",
        "other image",
    ]);
    assert_eq!(
        p.json(&["info", "--json", "other image"])["contract"],
        "sync"
    );
    p.refused(&["mkfs", "--on", "flash", "img"], 1, &["img", "--force"]);
    p.refused(&["mkfs", "--force", "img"], 1, &["img", "--on flash"]);
    p.refused(&["mkfs", "--on", "flash:a", "b"], 2, &["twice"]);
    p.refused(&["mkfs", "--on", "flash:absent"], 1, &["absent", "--size"]);
    p.refused(&["dump", "--log", "img"], 1, &["img", "no log"]);
    p.refused(&["grow", "--size", "1G", "img"], 1, &["img", "flash"]);
    fs::write(p.path("plain"), "text").unwrap();
    p.refused(
        &["mkfs", "--size", "32M", "--on", "flash:plain"],
        1,
        &["no flash image"],
    );
    assert_eq!(fs::read(p.path("plain")).unwrap(), b"text");
}

fn made_mounted_used_unmounted_and_clean(p: &Place) {
    p.ok(&["mount", "img", "mnt"]);
    fs::write(p.path("mnt/file"), "content").unwrap();
    fs::create_dir(p.path("mnt/dir")).unwrap();
    p.ok(&["sync", "mnt"]);
    p.ok(&["sync", "mnt/file"]);
    assert_eq!(p.state(), "mounted");
    assert!(p.ok(&["info", "mnt"]).contains("label:    test"));
    p.ok(&["umount", "mnt"]);
    assert!(!p.mounted("mnt"));
    assert_eq!(p.state(), "clean");
    let checked = p.json(&["fsck", "--json", "img"]);
    assert_eq!(
        (checked["result"].as_str(), checked["files"].as_u64()),
        (Some("clean"), Some(1))
    );
    p.ok(&["mount", "img", "mnt"]);
    assert_eq!(fs::read_to_string(p.path("mnt/file")).unwrap(), "content");
    p.ok(&["umount", "mnt/"]);
}

#[test]
fn what_was_synced_survives_a_killed_server() {
    let p = mountable!();
    synced_survives_a_killed_server(&p);
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn what_was_synced_survives_a_killed_server_on_flash() {
    let p = mountable!();
    p.on_flash();
    synced_survives_a_killed_server(&p);
}

fn synced_survives_a_killed_server(p: &Place) {
    p.ok(&["mount", "-o", "commit=3600", "img", "mnt"]);
    for i in 0..20 {
        let mut file = File::create(p.path(&format!("mnt/{i}"))).unwrap();
        file.write_all(&vec![i; 10_000]).unwrap();
        file.sync_all().unwrap();
    }
    let pid = steadfast_fuse::server_pid(&p.path("mnt")).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let dead = Instant::now();
    while File::open(p.path("mnt/0")).is_ok() {
        assert!(dead.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(5));
    }
    p.refused(
        &["mount", "img", "mnt"],
        1,
        &["server is gone", "steadfast umount"],
    );
    // Undurable changes were lost with it: the unmount reports a failure.
    p.refused(
        &["umount", "mnt"],
        1,
        &[
            "its server was dead",
            "not known to be durable",
            "img",
            "the next mount recovers it",
        ],
    );
    p.refused(&["umount", "mnt"], 1, &["nothing is mounted"]);
    assert_eq!(p.state(), "needs-recovery");
    p.ok(&["fsck", "img"]);
    p.ok(&["mount", "img", "mnt"]);
    for i in 0..20 {
        assert_eq!(
            fs::read(p.path(&format!("mnt/{i}"))).unwrap(),
            vec![i; 10_000]
        );
    }
    p.ok(&["umount", "mnt"]);
    p.ok(&["fsck", "img"]);
}

/// Starts a server in the foreground and waits until the mount answers.
fn foreground(p: &Place) -> Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_steadfast"))
        .args(["mount", "--foreground", "img", "mnt"])
        .current_dir(p.dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 3];
    server
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    assert!(p.mounted("mnt"));
    server
}

fn exit_code(mut server: Child) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = server.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > LIMIT {
            let _ = server.kill();
            panic!("the server does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_unmounts_and_leaves_a_clean_volume() {
    use rustix::process::Signal;
    let p = mountable!();
    for (i, signal) in [Signal::TERM, Signal::INT, Signal::HUP]
        .into_iter()
        .enumerate()
    {
        let server = foreground(&p);
        fs::write(p.path(&format!("mnt/{i}")), "x").unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&server), signal).unwrap();
        assert_eq!(exit_code(server), Some(0));
        assert!(!p.mounted("mnt"));
        assert_eq!(p.state(), "clean");
    }
    assert_eq!(p.json(&["fsck", "--json", "img"])["files"], 3);
}

#[test]
fn a_signal_makes_everything_durable_even_while_the_mount_is_in_use() {
    let p = mountable!();
    let server = foreground(&p);
    let mut busy = File::create(p.path("mnt/busy")).unwrap();
    busy.write_all(b"not synced").unwrap();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(exit_code(server), Some(0));
    assert!(busy.write_all(b"too late").is_err());
    drop(busy);
    assert_eq!(p.state(), "clean");
    p.ok(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read_to_string(p.path("mnt/busy")).unwrap(),
        "not synced"
    );
    p.ok(&["umount", "mnt"]);
}

#[test]
fn unmounting_by_other_means_closes_the_volume_too() {
    let p = mountable!();
    let server = foreground(&p);
    fs::write(p.path("mnt/file"), "x").unwrap();
    let umount = programs::run_when_free(|| programs::run(p.dir.path(), "umount", &["mnt"]));
    assert!(umount.status.success(), "{}", programs::said(&umount));
    assert_eq!(exit_code(server), Some(0));
    assert_eq!(p.state(), "clean");
}

#[test]
fn corner_19_an_image_in_use_is_refused_by_every_command_that_would_change_it() {
    let p = mountable!();
    fs::create_dir(p.path("other")).unwrap();
    p.ok(&["mount", "img", "mnt"]);
    p.refused(&["mount", "img", "other"], 1, &["img", "in use", "umount"]);
    p.refused(&["mount", "img", "mnt"], 1, &["mnt", "in use"]);
    p.refused(&["mkfs", "--force", "img"], 1, &["in use"]);
    p.refused(&["fsck", "img"], 8, &["in use"]);
    p.refused(&["fsck", "--repair", "img"], 8, &["in use"]);
    let inside = File::create(p.path("mnt/open")).unwrap();
    p.refused(&["umount", "mnt"], 1, &["in use by", "pid"]);
    drop(inside);
    p.ok(&["umount", "mnt"]);
    p.refused(&["umount", "mnt"], 1, &["nothing is mounted"]);
    p.refused(&["sync", "mnt"], 1, &["not on a mounted Steadfast volume"]);
    p.refused(&["info", "mnt"], 1, &["not on a mounted Steadfast volume"]);
}

#[test]
fn a_mount_point_that_cannot_be_used_is_refused_before_the_image_is_touched() {
    let p = Place::with_volume();
    let before = fs::read(p.path("img")).unwrap();
    p.refused(
        &["mount", "img", "absent"],
        1,
        &["absent", "does not exist"],
    );
    fs::write(p.path("file"), "").unwrap();
    p.refused(&["mount", "img", "file"], 1, &["file", "not a directory"]);
    p.refused(&["mount", "img", "/proc"], 1, &["/proc", "in use"]);
    p.refused(
        &["mount", "-o", "ro,frobnicate", "img", "mnt"],
        2,
        &["frobnicate", "allow_other"],
    );
    p.refused(
        &["mount", "absent", "mnt"],
        1,
        &["absent", "does not exist"],
    );
    assert!(fs::read(p.path("img")).unwrap() == before);
}

#[test]
fn what_is_no_volume_is_refused_by_name_and_left_alone() {
    let p = Place::with_volume();
    fs::write(p.path("text"), "precious text\n".repeat(100_000)).unwrap();
    fs::write(p.path("empty"), "").unwrap();
    let before = fs::read(p.path("text")).unwrap();
    for name in ["text", "empty"] {
        p.refused(&["mount", name, "mnt"], 1, &[name, "no Steadfast volume"]);
        p.refused(
            &["fsck", "--repair", name],
            8,
            &[name, "no Steadfast volume"],
        );
        p.refused(&["info", name], 1, &[name, "no Steadfast volume"]);
    }
    p.refused(&["mkfs", "text"], 1, &["text", "--force"]);
    p.refused(&["mkfs", "--size", "64M", "text"], 1, &["text", "--force"]);
    assert!(fs::read(p.path("text")).unwrap() == before);

    fs::copy(p.path("img"), p.path("short")).unwrap();
    OpenOptions::new()
        .write(true)
        .open(p.path("short"))
        .unwrap()
        .set_len(10 << 20)
        .unwrap();
    p.refused(&["mount", "short", "mnt"], 1, &["cut short"]);
    p.refused(&["fsck", "short"], 8, &["cut short"]);
    p.refused(&["fsck", "absent"], 8, &["absent", "does not exist"]);
    p.refused(&["mkfs", "mnt"], 1, &["mnt"]);
}

#[test]
fn mkfs_makes_only_what_it_was_asked_for_and_overwrites_only_when_forced() {
    let p = Place::new();
    p.refused(&["mkfs", "img"], 1, &["does not exist", "--size"]);
    let args = ["mkfs", "--size", "64M", "--on", "tape", "img"];
    assert_eq!(p.run(&args).status.code(), Some(2));
    p.refused(&["mkfs", "--size", "8K", "img"], 1, &["img"]);
    assert!(!p.path("img").exists(), "nothing is left of what failed");
    let said = p.ok(&["mkfs", "--size", "64M", "--label", "one", "img"]);
    assert!(
        said.contains("64 MiB") && said.contains("ordered") && said.contains("one"),
        "{said}"
    );
    let made = p.json(&["info", "--json", "img"]);
    assert_eq!(made["volume_bytes"], 64 << 20);
    p.refused(&["mkfs", "img"], 1, &["volume 'one'", "--force"]);
    assert_eq!(p.json(&["info", "--json", "img"])["uuid"], made["uuid"]);
    for contract in ["sync", "metadata-prefix", "relaxed"] {
        p.ok(&["mkfs", "--force", "--contract", contract, "img"]);
        assert_eq!(p.json(&["info", "--json", "img"])["contract"], contract);
    }
    p.ok(&["mkfs", "--force", "--label", "two", "img"]);
    assert_eq!(p.json(&["info", "--json", "img"])["contract"], "ordered");
    assert_eq!(p.json(&["info", "--json", "img"])["label"], "two");
    p.ok(&["mkfs", "--force", "--size", "32M", "img"]);
    assert_eq!(fs::metadata(p.path("img")).unwrap().len(), 32 << 20);
    File::create(p.path("hole"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    p.ok(&["mkfs", "hole"]);
    p.ok(&["fsck", "hole"]);
}

/// A note of 500 bytes has no whole block, and data in the middle of a large file lies far from both ends: once both
/// counted as empty, and were lost without `--force`.
#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn mkfs_without_force_destroys_no_byte_that_is_not_zero() {
    use std::os::unix::fs::FileExt;
    let p = Place::new();
    for len in [1, 500, 4095] {
        fs::write(p.path("note"), vec![b'n'; len]).unwrap();
        for args in [
            &["mkfs", "--size", "64M", "note"][..],
            &["mkfs", "note"],
            &["mkfs", "--size", "64M", "--on", "flash:note"],
        ] {
            let output = p.run(args);
            assert_eq!(output.status.code(), Some(1), "{args:?}");
            assert_eq!(
                fs::read(p.path("note")).unwrap(),
                vec![b'n'; len],
                "{args:?}"
            );
        }
        p.refused(
            &["mkfs", "--size", "64M", "note"],
            1,
            &["holds a text of", "--force"],
        );
    }
    p.ok(&["mkfs", "--force", "--size", "64M", "note"]);

    let large = File::create(p.path("large")).unwrap();
    large.set_len(64 << 20).unwrap();
    large.write_all_at(b"x", 30_000_000).unwrap();
    for args in [&["mkfs", "large"][..], &["mkfs", "--size", "32M", "large"]] {
        p.refused(args, 1, &["byte 30000000", "--force"]);
    }
    // The last bytes are not a whole block.
    large.set_len(0).unwrap();
    large.set_len((64 << 20) + 100).unwrap();
    large.write_all_at(b"x", (64 << 20) + 99).unwrap();
    p.refused(&["mkfs", "large"], 1, &["byte 67108963", "--force"]);
    // Known content has a name.
    let tar = Command::new("tar")
        .args(["-cf", "a.tar", "note"])
        .current_dir(p.dir.path())
        .status();
    if tar.is_ok_and(|status| status.success()) {
        p.refused(&["mkfs", "a.tar"], 1, &["a tar archive"]);
    }
    // Zeros do not count as content, written or not.
    fs::write(p.path("zeros"), vec![0; 8 << 20]).unwrap();
    p.ok(&["mkfs", "zeros"]);
    p.ok(&["fsck", "zeros"]);

    // A disk on flash is read whole, too; 'ftl format' alone never overwrites an existing one.
    p.ok(&["mkfs", "--size", "32M", "--on", "flash:flash"]);
    p.refused(
        &["mkfs", "--on", "flash", "flash"],
        1,
        &["a Steadfast volume", "--force"],
    );
    for name in ["flash", "large", "note"] {
        p.refused(
            &["ftl", "format", "--size", "16M", name],
            1,
            &[name, "--force"],
        );
    }
    p.refused(
        &["ftl", "format", "--force", "--size", "16M", "large"],
        1,
        &["no flash image"],
    );
}

#[test]
fn corner_65_a_read_only_mount_writes_nothing() {
    let p = mountable!();
    p.ok(&["mount", "img", "mnt"]);
    fs::write(p.path("mnt/file"), "x").unwrap();
    p.ok(&["umount", "mnt"]);
    let before = fs::read(p.path("img")).unwrap();
    p.ok(&["mount", "-o", "ro", "img", "mnt"]);
    assert_eq!(fs::read_to_string(p.path("mnt/file")).unwrap(), "x");
    let refused = fs::write(p.path("mnt/new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    p.ok(&["umount", "mnt"]);
    assert!(fs::read(p.path("img")).unwrap() == before);
}

#[test]
fn damage_is_found_explained_and_repaired() {
    let p = Place::with_volume();
    let image = OpenOptions::new().write(true).open(p.path("img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0xa5; 4096], 0).unwrap();
    drop(image);
    let output = p.run(&["fsck", "img"]);
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("superblock") && said.contains("--repair"),
        "{said}"
    );
    assert_eq!(p.run(&["fsck", "--repair", "img"]).status.code(), Some(1));
    assert_eq!(p.run(&["fsck", "img"]).status.code(), Some(0));
}

#[test]
fn completions_and_help_are_printed() {
    let p = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(p.ok(&["completions", shell]).contains("steadfast"));
    }
    assert!(p.ok(&["--help"]).contains("mkfs"));
    assert_eq!(p.run(&["mount"]).status.code(), Some(2));
    assert_eq!(p.run(&["frobnicate"]).status.code(), Some(2));
}

/// Bytes that the host stores for an image.
fn kept(p: &Place, name: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(p.path(name)).unwrap().blocks() * 512
}

/// Free space becomes holes in the image, and live data stays: here the whole image was filled with rubbish before.
#[test]
fn trim_gives_free_space_back_and_nothing_else() {
    let p = Place::new();
    fs::write(p.path("img"), vec![0x5A; 64 << 20]).unwrap();
    p.ok(&["mkfs", "--force", "img"]);
    let before = kept(&p, "img");
    let info = p.json(&["info", "--json", "img"]);
    let said = p.json(&["trim", "--json", "img"]);
    let trimmed = said["trimmed_bytes"].as_u64().unwrap();
    assert!(trimmed >= info["free_bytes"].as_u64().unwrap(), "{said}");
    assert!(trimmed < 64 << 20 && said["runs"].as_u64().unwrap() > 0);
    // Some file systems of the host keep no holes.
    assert!(kept(&p, "img") <= before);
    p.ok(&["fsck", "img"]);
    assert_eq!(p.json(&["info", "--json", "img"]), info);
    let said = p.ok(&["trim", "img"]);
    assert!(said.contains("of free space given back in "), "{said}");
    p.refused(&["trim", "absent"], 1, &["absent", "does not exist"]);
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    p.refused(&["trim", "text"], 1, &["text", "no Steadfast volume"]);
    assert!(fs::read(p.path("text")).unwrap().iter().all(|&b| b == b'x'));
}

#[test]
#[cfg_attr(not(feature = "flash"), ignore = "needs flash")]
fn trim_on_flash_forgets_what_was_deleted_and_keeps_what_lives() {
    let Some(p) = Place::mountable() else { return };
    p.on_flash();
    p.ok(&["mount", "img", "mnt"]);
    let bytes = |seed: u8| -> Vec<u8> { (0..4 << 20).map(|i| (i % 251) as u8 ^ seed).collect() };
    for name in 0..8u8 {
        fs::write(p.path(&format!("mnt/{name}")), bytes(name)).unwrap();
    }
    for name in 0..4u8 {
        fs::remove_file(p.path(&format!("mnt/{name}"))).unwrap();
    }
    p.refused(&["trim", "img"], 1, &["img", "in use"]);
    p.ok(&["umount", "mnt"]);
    let said = p.json(&["trim", "--json", "img"]);
    assert!(said["trimmed_bytes"].as_u64().unwrap() > 16 << 20, "{said}");
    p.ok(&["fsck", "img"]);
    p.ok(&["mount", "img", "mnt"]);
    for name in 4..8u8 {
        let found = fs::read(p.path(&format!("mnt/{name}"))).unwrap();
        assert!(found == bytes(name), "{name}");
    }
    p.ok(&["umount", "mnt"]);
}

/// Once, a mount could not be trimmed: the image kept deleted data until the volume was unmounted.
#[test]
fn a_mount_is_trimmed_by_this_program_and_by_fstrim() {
    let Some(p) = Place::mountable() else { return };
    p.ok(&["mount", "img", "mnt"]);
    let bytes: Vec<u8> = (0..8 << 20).map(|i| (i % 251) as u8).collect();
    fs::write(p.path("mnt/stays"), &bytes).unwrap();
    fs::write(p.path("mnt/goes"), vec![7; 24 << 20]).unwrap();
    p.ok(&["sync", "mnt"]);
    fs::remove_file(p.path("mnt/goes")).unwrap();
    let full = kept(&p, "img");
    let said = p.json(&["trim", "--json", "mnt"]);
    let trimmed = said["trimmed_bytes"].as_u64().unwrap();
    assert!(trimmed > 40 << 20 && trimmed < 64 << 20, "{said}");
    assert!(kept(&p, "img") <= full);
    let fstrim = Command::new("fstrim").arg("-v").arg(p.path("mnt")).output();
    match fstrim {
        Ok(fstrim) => {
            let said = String::from_utf8_lossy(&fstrim.stdout).into_owned();
            let errors = String::from_utf8_lossy(&fstrim.stderr).into_owned();
            assert!(fstrim.status.success(), "{errors}");
            assert!(said.contains(&format!("{trimmed} bytes")), "{said}");
        }
        Err(e) => steadfast_testkit::skipped!("fstrim: {e}"),
    }
    assert!(fs::read(p.path("mnt/stays")).unwrap() == bytes);
    p.ok(&["umount", "mnt"]);
    p.ok(&["fsck", "img"]);
}

#[test]
fn a_volume_grows_with_its_image_and_says_what_it_has() {
    let p = Place::with_volume();
    let before = p.json(&["info", "--json", "img"]);
    let grown = p.json(&["grow", "--size", "300M", "--json", "img"]);
    assert_eq!(grown["bytes_before"], 64 << 20);
    assert_eq!(grown["bytes"], 300 << 20);
    assert_eq!(fs::metadata(p.path("img")).unwrap().len(), 300 << 20);
    let after = p.json(&["info", "--json", "img"]);
    assert_eq!(after["volume_bytes"], 300 << 20);
    assert_eq!(after["uuid"], before["uuid"]);
    assert_eq!(after["state"], "clean");
    p.ok(&["fsck", "img"]);
    // To the size of the image, which somebody enlarged.
    let image = OpenOptions::new().write(true).open(p.path("img")).unwrap();
    image.set_len(400 << 20).unwrap();
    let said = p.ok(&["grow", "img"]);
    assert!(said.contains("grown from 300 MiB to 400 MiB"), "{said}");
    let said = p.ok(&["grow", "img"]);
    assert!(
        said.contains("fills its image of 400 MiB already"),
        "{said}"
    );
    p.ok(&["fsck", "img"]);
}

#[test]
fn corner_34_what_cannot_grow_is_refused_and_keeps_its_size() {
    let p = Place::with_volume();
    let len = || fs::metadata(p.path("img")).unwrap().len();
    p.refused(
        &["grow", "--size", "32M", "img"],
        1,
        &["img", "32 MiB", "cannot shrink"],
    );
    let image = OpenOptions::new().write(true).open(p.path("img")).unwrap();
    image.set_len(96 << 20).unwrap();
    p.refused(
        &["grow", "--size", "80M", "img"],
        1,
        &["img", "80 MiB", "leave out --size"],
    );
    image.set_len(32 << 20).unwrap();
    p.refused(&["grow", "--size", "1G", "img"], 1, &["img", "cut short"]);
    assert_eq!(len(), 32 << 20);
    p.refused(&["grow", "absent"], 1, &["absent", "No such file"]);
    fs::write(p.path("text"), "words\n".repeat(100_000)).unwrap();
    p.refused(
        &["grow", "--size", "1G", "text"],
        1,
        &["text", "no Steadfast volume"],
    );
    assert_eq!(fs::metadata(p.path("text")).unwrap().len(), 600_000);
}

#[test]
fn corner_34_a_mounted_volume_does_not_grow() {
    let p = mountable!();
    p.ok(&["mount", "img", "mnt"]);
    p.refused(
        &["grow", "--size", "1G", "img"],
        1,
        &["img", "in use", "steadfast umount"],
    );
    p.ok(&["umount", "mnt"]);
    assert_eq!(fs::metadata(p.path("img")).unwrap().len(), 64 << 20);
    p.ok(&["grow", "--size", "1G", "img"]);
    p.ok(&["mount", "img", "mnt"]);
    let space = rustix::fs::statvfs(p.path("mnt")).unwrap();
    assert!(space.f_blocks * space.f_frsize > 1000 << 20);
    p.ok(&["umount", "mnt"]);
}

#[test]
fn progress_is_shown_only_if_it_is_asked_for() {
    let p = Place::with_volume();
    for (args, word) in [
        (&["fsck", "img"][..], "checking inodes: "),
        (&["mkfs", "--force", "img"], "writing log and bitmaps: "),
        (&["grow", "--size", "200M", "img"], "writing bitmaps: "),
    ] {
        let quiet = p.run(args);
        assert!(
            quiet.status.success() && quiet.stderr.is_empty(),
            "{args:?}"
        );
        if args[0] == "grow" {
            continue; // it has grown
        }
        let told = p.run(&[&args[..1], &["--progress"], &args[1..]].concat());
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(
            told.status.success() && said.contains(word),
            "{args:?}: {said}"
        );
    }
    let told = p.run(&["grow", "--progress", "--size", "900M", "img"]);
    let said = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(said.contains("writing bitmaps: "), "{said}");
}
