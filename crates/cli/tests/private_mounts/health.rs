//! An operator's view of a volume that has failed, of an image that another process has, and of mounts in Prometheus.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::{PROGRAM, Place, said};
use rustix::process::{Pid, Signal, kill_process};

/// Starts the program and returns it with its first line.
fn started(place: &Place, args: &[&str]) -> (Child, String) {
    let mut child = Command::new(PROGRAM)
        .args(args)
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    (child, line)
}

fn end(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap();
}

/// The image lies on a file system that is too small for it. When that is full, a write of the server fails, and from
/// then on nothing is written. Once, `info` said "mounted" all the same, and counters did not change.
#[test]
fn a_volume_that_failed_says_so_wherever_it_is_looked_at() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let script = format!(
        "mkdir small; mount -t tmpfs -o size=24M tmpfs small || exit 77
         {PROGRAM} mkfs --size 64M small/img >/dev/null
         {PROGRAM} mount small/img mnt
         echo before; {PROGRAM} info --json mnt; {PROGRAM} metrics mnt
         head -c 40M /dev/urandom >mnt/big || true
         {PROGRAM} sync mnt && exit 1
         touch mnt/new 2>/dev/null && exit 1
         echo after; {PROGRAM} info mnt; {PROGRAM} info --json small/img
         {PROGRAM} stat mnt; {PROGRAM} stat --json mnt; {PROGRAM} metrics mnt
         {PROGRAM} umount mnt || true"
    );
    let output = place.command("unshare", &["-m", "sh", "-ec", &script]);
    if output.status.code() == Some(77) {
        return steadfast_testkit::skipped!("no private mounts: {}", said(&output));
    }
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let (before, after) = text.split_once("after\n").unwrap();
    for healthy in [
        "\"state\": \"mounted\"",
        "\"failed\": null",
        "\"read_only\": false",
    ] {
        assert!(before.contains(healthy), "{healthy}: {before}");
    }
    let sample = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        line.map(|line| line.rsplit(' ').next().unwrap().to_owned())
    };
    assert_eq!(
        sample(before, "steadfast_volume_failed").as_deref(),
        Some("0")
    );
    // For people: info and stat; for scripts: info and stat; for Prometheus.
    for (failed, times) in [
        ("state:    failed\n", 1),
        ("failed:   ", 1),
        ("\"state\": \"failed\"", 1),
        ("\"read_only\": true", 1),
        ("  FAILED: ", 1),
        ("No space left on device", 4),
        ("\"failed_now\": 1", 1),
    ] {
        assert_eq!(after.matches(failed).count(), times, "{failed}: {after}");
    }
    assert_eq!(
        sample(after, "steadfast_volume_failed").as_deref(),
        Some("1")
    );
    assert_eq!(
        sample(after, "steadfast_volume_read_only").as_deref(),
        Some("1")
    );
    assert_eq!(sample(after, "steadfast_mount_up").as_deref(), Some("1"));
}

#[test]
fn a_volume_mounted_read_only_is_no_failure() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("ro") else {
        return;
    };
    let shown = place.must(&["info", "--json", "mnt"]);
    assert!(
        shown.contains("\"state\": \"mounted\"") && shown.contains("\"read_only\": true"),
        "{shown}"
    );
    assert!(shown.contains("\"failed\": null"), "{shown}");
    place.end();
}

/// Once, every image in use was called mounted, even if a server or a check had it.
#[test]
#[cfg_attr(
    any(not(feature = "flash"), not(feature = "nfs")),
    ignore = "needs flash and nfs"
)]
fn an_image_in_use_is_refused_with_the_process_that_has_it() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let (server, line) = started(
        &place,
        &[
            "serve",
            "nfs",
            "--listen",
            "127.0.0.1:0",
            "--control",
            "control",
            "img",
        ],
    );
    assert!(line.contains("served"), "{line}");
    let pid = server.id();
    let shown = place.must(&["info", "--json", "img"]);
    let texts = [
        &["mkfs", "--force", "img"][..],
        &["mount", "img", "mnt"],
        &["trim", "img"],
    ]
    .map(|args| place.refused(1, args));
    let checked = place.refused(8, &["fsck", "img"]);
    end(server, Signal::TERM);
    for text in texts.iter().chain([&checked]) {
        assert!(
            text.contains("serve nfs") && text.contains(&format!("(process {pid})")),
            "{text}"
        );
        assert!(!text.contains("mounted"), "{text}");
    }
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["state"], "in-use");
    assert_eq!(shown["held_by"][0]["pid"], pid);

    place.must(&["mount", "img", "mnt"]);
    let server = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    let mounted = place.refused(1, &["mkfs", "--force", "img"]);
    assert!(
        mounted.contains("is mounted at") && mounted.contains(&format!("(process {server})")),
        "{mounted}"
    );
    place.must(&["umount", "mnt"]);

    place.must(&["ftl", "format", "--size", "16M", "disk"]);
    let (server, line) = started(&place, &["serve", "disk", "--fuse", "mnt", "disk"]);
    let text = place.refused(1, &["ftl", "info", "disk"]);
    place.must(&["umount", "mnt"]);
    let pid = server.id();
    assert!(server.wait_with_output().unwrap().status.success());
    assert!(
        text.contains(&format!("(process {pid})")) && text.contains("serve disk"),
        "{line}{text}"
    );
}

/// Each family has a help and a type once, before its samples, and its samples are together.
#[track_caller]
fn well_formed(text: &str) -> BTreeSet<String> {
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let rest = line
            .strip_prefix("# HELP ")
            .unwrap_or_else(|| panic!("no help: {line}"));
        let (name, help) = rest.split_once(' ').unwrap();
        assert!(!help.trim().is_empty(), "{name} is not explained");
        assert!(families.insert(name.to_owned()), "{name} comes twice");
        let kind = lines
            .next()
            .unwrap()
            .strip_prefix(&format!("# TYPE {name} "))
            .unwrap();
        assert!(["gauge", "counter"].contains(&kind), "{name}: {kind}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        let mut samples = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            assert!(line.starts_with(&format!("{name}{{")), "{line} in {name}");
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            samples += 1;
        }
        assert!(samples > 0, "{name} has no samples");
    }
    families
}

#[test]
fn prometheus_finds_every_mount_and_notices_one_whose_server_died() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    std::fs::write(place.mnt().join("file"), "content").unwrap();
    place.must(&["sync", "mnt"]);
    let families = well_formed(&place.must(&["metrics", "mnt"]));
    for family in [
        "steadfast_mount_up",
        "steadfast_volume_failed",
        "steadfast_volume_read_only",
        "steadfast_volume_free_bytes",
        "steadfast_volume_size_bytes",
        "steadfast_volume_log_capacity_blocks",
        "steadfast_volume_largest_batch",
        "steadfast_volume_commits_total",
        "steadfast_fuse_requests_total",
        "steadfast_fuse_written_bytes_total",
    ] {
        assert!(families.contains(family), "{family}: {families:?}");
    }

    let (exporter, line) = started(&place, &["metrics", "--listen", "127.0.0.1:0", "mnt"]);
    let address = line
        .trim()
        .rsplit_once("http://")
        .unwrap()
        .1
        .strip_suffix("/metrics")
        .unwrap()
        .to_owned();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    // A silent client does not keep others from an answer.
    let silent = TcpStream::connect(&address).unwrap();
    let all = get("/metrics");
    drop(silent);
    assert!(all.starts_with("HTTP/1.1 200 OK\r\n"), "{all}");
    well_formed(all.split_once("\r\n\r\n").unwrap().1);
    assert!(get("/").starts_with("HTTP/1.1 404"));

    let server = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    kill_process(
        Pid::from_raw(server.try_into().unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    // The kernel answers from its cache, but not for a new name.
    let begun = std::time::Instant::now();
    while std::fs::metadata(place.mnt().join("absent"))
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let down = get("/metrics");
    end(exporter, Signal::TERM);
    assert!(
        down.contains("steadfast_mount_up{") && down.trim_end().ends_with("} 0"),
        "{down}"
    );
    let refused = place.refused(2, &["metrics", "--listen", "0.0.0.0:9050"]);
    assert!(refused.contains("this host alone"), "{refused}");
}

/// A file system of another program that uses the library: nothing here asks it for anything.
#[test]
fn a_mount_of_another_program_is_none_of_ours() {
    use std::sync::Arc;
    use steadfast_fs::{Fs, MkfsOptions, mkfs};

    let _alone = common::alone();
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    let device = Arc::new(steadfast_block::MemDevice::new(4096));
    mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let (fs, _) = Fs::mount(device, &steadfast_fs::MountOptions::default()).unwrap();
    let foreign = place.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let options = steadfast_fuse::MountOptions::new("of-another").subtype("another-fs");
    let session = steadfast_fuse::mount(fs.clone(), &foreign, &options).unwrap();
    std::fs::write(foreign.join("file"), "content").unwrap();

    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let shown = format!("of-another {} fuse.another-fs ", foreign.display());
    assert!(mounts.contains(&shown), "{mounts}");
    let ours = format!("{} fuse.steadfast ", place.mnt().display());
    assert!(mounts.contains(&ours), "{mounts}");

    let all = place.must(&["metrics"]);
    let point = |dir: &str| format!("mountpoint=\"{}\"", place.path().join(dir).display());
    assert!(all.contains(&point("mnt")), "{all}");
    assert!(!all.contains(&point("foreign")), "{all}");
    for command in [
        &["metrics", "foreign"][..],
        &["stat", "foreign"],
        &["info", "foreign"],
        &["sync", "foreign/file"],
        &["shutdown", "foreign"],
    ] {
        let refused = place.refused(1, command);
        assert!(
            refused.contains("not on a mounted Steadfast volume"),
            "{refused}"
        );
    }
    let refused = place.refused(1, &["umount", "foreign"]);
    assert!(
        refused.contains("a mount of type fuse.another-fs"),
        "{refused}"
    );

    let ended = session.shutdown(std::time::Duration::from_secs(5));
    assert_eq!(ended, steadfast_fuse::Ended::Clean);
    fs.unmount().unwrap();
    place.end();
}
