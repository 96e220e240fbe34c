//! `steadfast serve nfs`, as its users see it.
#![cfg(feature = "nfs")]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::programs;
use programs::{PROGRAM, Running, said};

fn steadfast(dir: &Path, args: &[&str]) -> Output {
    programs::run(dir, PROGRAM, args)
}

fn must(dir: &Path, args: &[&str]) -> String {
    programs::must(dir, PROGRAM, args)
}

/// A server in a directory with a volume `img`.
struct Serving {
    child: Running,
    address: String,
    lines: Vec<String>,
}

impl Serving {
    fn start(dir: &Path, args: &[&str]) -> Serving {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "nfs", "--listen", "127.0.0.1:0"])
            .args(match args.contains(&"--control") {
                true => &[][..],
                false => &["--control", "control"],
            })
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
        // One line names the volume and its address, another one says how to mount it.
        let lines: Vec<String> = (0..2).filter_map(|_| out.next()?.ok()).collect();
        let address = lines[0].split(" at ").nth(1).unwrap();
        let address = address.split(';').next().unwrap().to_owned();
        Serving {
            child: Running(child),
            address,
            lines,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        self.child.signal(signal);
    }

    /// Sends a signal that asks for the end; returns the exit code.
    fn end(self) -> Option<i32> {
        self.child.end(rustix::process::Signal::TERM)
    }
}

/// A call without arguments or credential; returns the result.
fn call(address: &str, program: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    let words = [1, 0, 2, program, 3, procedure, 0, 0, 0, 0_u32];
    let body = [&words.map(u32::to_be_bytes).concat(), args].concat();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(&(body.len() as u32 | 1 << 31).to_be_bytes())
        .unwrap();
    stream.write_all(&body).unwrap();
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut reply = vec![0; (u32::from_be_bytes(mark) & (u32::MAX >> 1)) as usize];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[20..24], [0; 4], "accepted");
    reply.split_off(24)
}

/// MNT of `/`; returns the status.
fn mnt(address: &str) -> u32 {
    mnt_of(address, "/")
}

/// MNT of a path; returns the status.
fn mnt_of(address: &str, path: &str) -> u32 {
    let mut args = (path.len() as u32).to_be_bytes().to_vec();
    args.extend_from_slice(path.as_bytes());
    args.resize(args.len().next_multiple_of(4), 0);
    let result = call(address, 100_005, 1, &args);
    u32::from_be_bytes(result[..4].try_into().unwrap())
}

/// Waits until something holds; the limit only ends a hang.
fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    must(dir.path(), &["mkfs", "--size", "64M", "img"]);
    dir
}

#[test]
fn a_volume_is_served_and_closed_cleanly_when_a_signal_comes() {
    let dir = place();
    let serving = Serving::start(
        dir.path(),
        &["--insecure", "--metrics", "127.0.0.1:0", "img"],
    );
    assert!(
        serving.lines[0].contains("served as / at 127.0.0.1:"),
        "{:?}",
        serving.lines
    );
    let (_, port) = serving.address.rsplit_once(':').unwrap();
    assert!(serving.lines[1].contains(&format!(
        "port={port},mountproto=tcp,mountport={port},nolock"
    )));
    assert!(call(&serving.address, 100_003, 0, &[]).is_empty());
    assert_eq!(mnt(&serving.address), 0);
    // The counters, for people and for scripts.
    let text = must(dir.path(), &["stat", "control"]);
    assert!(
        text.contains("requests null") && text.contains("volume bytes"),
        "{text}"
    );
    let json = must(dir.path(), &["stat", "--json", "control"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["requests_null"], 1);
    assert_eq!(json["mount_requests"], 1);
    assert_eq!(json["schema_version"], 1);
    let client = &json["clients"][0];
    assert_eq!(client["address"], "127.0.0.1");
    assert_eq!(
        (&client["calls"], &client["mounts"]),
        (&1.into(), &1.into())
    );
    assert!(
        text.contains("client 127.0.0.1: ") && text.contains(" 1 calls, 0 errors, "),
        "{text}"
    );
    let json = must(
        dir.path(),
        &["stat", "--json", "--watch", "1", "--count", "1", "control"],
    );
    assert!(json.contains("\"seconds\""), "{json}");
    // Other processes cannot open the image meanwhile.
    let refused = steadfast(dir.path(), &["fsck", "img"]);
    assert_eq!(refused.status.code(), Some(8), "{}", said(&refused));
    assert_eq!(serving.end(), Some(0));
    assert!(!dir.path().join("control").exists());
    must(dir.path(), &["fsck", "img"]);
    let info = must(dir.path(), &["info", "img"]);
    assert!(info.contains("clean"), "{info}");
}

/// The kernel closed the image of a killed server a moment after its end; once, the server that was started in its
/// place gave up.
#[test]
fn a_server_waits_a_moment_for_the_image_of_one_that_was_killed() {
    let dir = place();
    let mut first = Serving::start(dir.path(), &["img"]);
    std::thread::scope(|scope| {
        let second = scope
            .spawn(|| Serving::start(dir.path(), &["--insecure", "--control", "second", "img"]));
        std::thread::sleep(Duration::from_millis(500));
        assert!(!second.is_finished(), "two servers of one image");
        first.child.0.kill().unwrap();
        first.child.0.wait().unwrap();
        let second = second.join().unwrap();
        assert_eq!(mnt(&second.address), 0);
        assert_eq!(second.end(), Some(0));
    });
}

#[test]
fn clients_are_admitted_as_the_options_say() {
    let dir = place();
    // The test may run as root: this port is one that anybody may use.
    let serving = Serving::start(dir.path(), &["img"]);
    assert_eq!(
        mnt(&serving.address),
        13,
        "from a port that anybody may use"
    );
    assert_eq!(serving.end(), Some(0));
    let serving = Serving::start(
        dir.path(),
        &["--insecure", "--client", "192.0.2.0/24", "img"],
    );
    assert_eq!(mnt(&serving.address), 13, "another network");
    assert_eq!(serving.end(), Some(0));
    let config = format!(
        "[[export]]\nimage = \"{}\"\nany-port = true\n",
        dir.path().join("img").display()
    );
    fs::write(dir.path().join("config.toml"), config).unwrap();
    let serving = Serving::start(dir.path(), &["--config", "config.toml"]);
    assert_eq!(mnt(&serving.address), 0);
    assert_eq!(serving.end(), Some(0));
    // A volume that nobody may change is left as it is.
    let before = fs::read(dir.path().join("img")).unwrap();
    let serving = Serving::start(dir.path(), &["--insecure", "--read-only", "img"]);
    assert_eq!(mnt(&serving.address), 0);
    assert_eq!(serving.end(), Some(0));
    assert!(fs::read(dir.path().join("img")).unwrap() == before);
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let dir = place();
    let refused = |code: i32, args: &[&str], words: &str| {
        let output = steadfast(
            dir.path(),
            &[&["serve", "nfs", "--listen", "127.0.0.1:0"], args].concat(),
        );
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            said(&output)
        );
        assert!(said(&output).contains(words), "{args:?}: {}", said(&output));
    };
    refused(2, &[], "nothing to serve");
    refused(1, &["nothing.img"], "does not exist");
    refused(2, &["img", "img"], "IMAGE:/PATH");
    refused(2, &["img:/a/../b"], "export path");
    refused(2, &["img:/a:/none"], "the directory '/none' of its volume");
    refused(2, &["--client", "10.0.0.0/99", "img"], "is no client");
    refused(
        2,
        &["--metrics", "0.0.0.0:0", "--control", "c", "img"],
        "this host alone",
    );
    refused(
        1,
        &["--control", "/nowhere/at/all", "img"],
        "/nowhere/at/all",
    );
    let serving = Serving::start(dir.path(), &["img"]);
    refused(1, &["img"], "is in use");
    let taken = steadfast(
        dir.path(),
        &[
            "serve",
            "nfs",
            "--listen",
            &serving.address,
            "--read-only",
            "config.toml",
        ],
    );
    assert_eq!(taken.status.code(), Some(1));
    assert_eq!(serving.end(), Some(0));
    // The failed attempts have left the volume closed.
    must(dir.path(), &["fsck", "img"]);
}

/// Once, SIGHUP, which administrators send to have a configuration read again, ended the server.
#[test]
fn a_hangup_reads_the_exports_again_and_a_broken_file_changes_nothing() {
    let dir = place();
    must(dir.path(), &["mkfs", "--size", "64M", "other"]);
    let config = |exports: &[(&str, &str)]| {
        let text: String = exports
            .iter()
            .map(|(image, path)| {
                let image = dir.path().join(image);
                format!("[[export]]\nimage = {image:?}\npath = \"{path}\"\nany-port = true\n")
            })
            .collect();
        fs::write(dir.path().join("config.toml"), text).unwrap();
    };
    config(&[("img", "/a")]);
    let log = dir.path().join("log");
    let args = ["--config", "config.toml", "--access-log", "log"];
    let serving = Serving::start(dir.path(), &args);
    let address = serving.address.as_str();
    let reload = || serving.signal(rustix::process::Signal::HUP);
    assert_eq!((mnt_of(address, "/a"), mnt_of(address, "/b")), (0, 2));
    // An export is added, and the access log, which was moved away, goes on in a new file.
    until("mounts are logged", || {
        let text = fs::read_to_string(&log).unwrap();
        text.contains("MOUNT_MNT path=\"/b\" status=NOENT")
    });
    fs::rename(&log, dir.path().join("log.1")).unwrap();
    config(&[("img", "/a"), ("other", "/b")]);
    reload();
    until("/b is served", || mnt_of(address, "/b") == 0);
    assert_eq!(mnt_of(address, "/a"), 0);
    until("the new log is written", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("path=\"/b\" status=OK"))
    });
    // A broken file, a broken image: the old exports stay, and another file is read.
    fs::write(dir.path().join("config.toml"), "[[export]\n").unwrap();
    reload();
    config(&[("img", "/c"), ("none", "/d")]);
    reload();
    assert_eq!((mnt_of(address, "/a"), mnt_of(address, "/b")), (0, 0));
    assert_eq!(mnt_of(address, "/c"), 2);
    // An export is removed: its image is closed, and others may open it.
    config(&[("other", "/b")]);
    reload();
    until("/a is gone", || mnt_of(address, "/a") == 2);
    until("the image is closed", || {
        steadfast(dir.path(), &["fsck", "img"]).status.code() == Some(0)
    });
    let info = must(dir.path(), &["info", "img"]);
    assert!(info.contains("clean"), "{info}");
    assert_eq!(mnt_of(address, "/b"), 0);
    assert_eq!(serving.end(), Some(0));
    must(dir.path(), &["fsck", "other"]);
}

/// Once, these had exit code 1, which scripts take for a failure that may go away.
#[test]
#[cfg_attr(not(feature = "tls"), ignore = "needs tls")]
fn faulty_options_and_faulty_files_have_exit_code_2() {
    let dir = place();
    let faulty = |args: &[&str], words: &str| {
        let output = steadfast(dir.path(), &[&["serve", "nfs"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{args:?}: {}", said(&output));
    };
    faulty(&["--client", "10.0.0.1/8", "img"], "write 10.0.0.0/8");
    faulty(&["--listen", "nowhere", "img"], "is no address");
    faulty(&["img:a"], "write img:/a");
    faulty(&["--config", "none.toml"], "none.toml");
    fs::write(dir.path().join("bad.toml"), "\nthread = 3\n").unwrap();
    faulty(
        &["--config", "bad.toml"],
        "bad.toml: line 2: unknown field `thread`",
    );
    faulty(&["--config", "bad.toml"], "did you mean 'threads'?");
    faulty(
        &["--tls-cert", "img", "--tls-key", "img", "img"],
        "holds no certificate",
    );
}

/// The handle of the root, by MNT.
fn root_handle(address: &str) -> Vec<u8> {
    let result = call(address, 100_005, 1, &[0, 0, 0, 1, b'/', 0, 0, 0]);
    assert_eq!(
        result[..8],
        [0, 0, 0, 0, 0, 0, 0, 40],
        "a handle of 40 bytes"
    );
    result[8..48].to_vec()
}

#[test]
fn a_key_file_keeps_the_handles_of_a_read_only_volume_over_a_restart() {
    use std::os::unix::fs::PermissionsExt;
    let dir = place();
    let root = |options: &[&str]| {
        let args = [&["--read-only", "--insecure"], options, &["img"]].concat();
        let serving = Serving::start(dir.path(), &args);
        let handle = root_handle(&serving.address);
        assert_eq!(serving.end(), Some(0));
        handle
    };
    let keyed = root(&["--handle-key", "key"]);
    let mode = fs::metadata(dir.path().join("key")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o7777, 0o600);
    assert_eq!(root(&["--handle-key", "key"]), keyed);
    assert_ne!(root(&[]), keyed);

    let refused = |code: i32, words: &str, options: &[&str]| {
        let args = [
            &["serve", "nfs", "--listen", "127.0.0.1:0", "--read-only"],
            options,
        ]
        .concat();
        let output = steadfast(dir.path(), &[&args[..], &["img"]].concat());
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
    };
    refused(1, "No such file", &["--handle-key", "nowhere/key"]);
    fs::write(dir.path().join("key"), "no key").unwrap();
    refused(2, "is no handle key", &["--handle-key", "key"]);
    assert_eq!(fs::read(dir.path().join("key")).unwrap(), b"no key");
    fs::set_permissions(dir.path().join("key"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(2, "chmod 600", &["--handle-key", "key"]);
}
