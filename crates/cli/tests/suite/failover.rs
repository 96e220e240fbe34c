//! `steadfast serve nfs --standby`: two servers of one volume, as programs that are killed, stopped and ended.
#![cfg(all(feature = "nfs", feature = "store"))]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use steadfast_nfs_client::Failure;
use steadfast_nfs_client::calls::{decode, entry, mode, write_args};
use steadfast_nfs_client::client::{Client, mount};
use steadfast_nfs_client::rpc::Target;

use crate::programs;
use nfs3_types::nfs3::{self as n, nfs_fh3, stable_how};
use programs::{PROGRAM, Running, must, refused};

/// Ends a test that hangs; nothing takes that long.
const LONG: Duration = Duration::from_secs(240);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A volume in a directory, and the addresses of its two servers.
struct Pair {
    dir: tempfile::TempDir,
    nfs: [SocketAddr; 2],
    heartbeats: [SocketAddr; 2],
}

/// A running server.
struct Serving {
    child: Running,
    /// Its output.
    said: Arc<Mutex<String>>,
}

impl Serving {
    fn has_said(&self, what: &str) -> bool {
        self.said.lock().unwrap().contains(what)
    }

    fn says(&self, what: &str) {
        until(&format!("it says '{what}'"), || self.has_said(what));
    }

    /// Whether all of its threads are stopped.
    fn stands(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.0.id())).unwrap();
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which ends with the last ')'.
            stat.rsplit_once(") ")
                .is_none_or(|(_, state)| state.starts_with('T'))
        })
    }

    /// Its exit code, and its whole output.
    fn ends(self) -> (Option<i32>, String) {
        let mut child = self.child;
        let mut code = None;
        until("it ends", || {
            code = child.0.try_wait().unwrap();
            code.is_some()
        });
        std::thread::sleep(Duration::from_millis(50));
        let said = self.said.lock().unwrap().clone();
        (code.and_then(|code| code.code()), said)
    }
}

fn collect(from: impl Read + Send + 'static, said: &Arc<Mutex<String>>) {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let mut said = said.lock().unwrap();
            said.push_str(&line);
            said.push('\n');
        }
    });
}

impl Pair {
    fn new() -> Pair {
        let pair = Pair {
            dir: tempfile::tempdir().unwrap(),
            nfs: [free(), free()],
            heartbeats: [free(), free()],
        };
        let url = pair.url();
        must(
            pair.path(),
            PROGRAM,
            &["mkfs", "--size", "64M", "--on", &url],
        );
        pair
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn url(&self) -> String {
        format!("file://{}/store", self.path().display())
    }

    fn start(&self, which: usize, args: &[&str]) -> Serving {
        let (listen, heartbeat) = (self.nfs[which], self.heartbeats[which]);
        let mut child = Command::new(PROGRAM)
            .args(["serve", "nfs", "--insecure", "--squash", "none"])
            .args(["--listen", &listen.to_string()])
            .args(["--heartbeat", &heartbeat.to_string()])
            .args(["--control", &format!("control{which}")])
            .args(args)
            .arg(self.url())
            .current_dir(self.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::default();
        collect(child.stdout.take().unwrap(), &said);
        collect(child.stderr.take().unwrap(), &said);
        Serving {
            child: Running(child),
            said,
        }
    }

    /// Starts a standby of the other server.
    fn stand_by(&self, which: usize, args: &[&str]) -> Serving {
        let peer = self.heartbeats[1 - which].to_string();
        let args = [&["--standby", "--peer", &peer], args].concat();
        let serving = self.start(which, &args);
        serving.says("standing by for");
        serving
    }

    fn target(&self, which: usize) -> Target {
        Target {
            address: self.nfs[which],
            uid: 0,
            gid: 0,
            reserved_port: false,
            timeout: Duration::from_secs(60),
        }
    }

    /// A client of the first server, and the root's handle.
    fn client(&self) -> (Client, nfs_fh3) {
        let port = Some(self.nfs[0].port());
        let export = mount(&self.target(0), port, port, "/").unwrap();
        let mut client = Client::connect(&self.target(0)).unwrap();
        client.keep_port().unwrap();
        (client, export.root)
    }
}

/// Connects to a server as soon as it answers; returns how long that took.
fn moved(client: &mut Client, to: SocketAddr) -> Duration {
    let begun = Instant::now();
    until("the other server answers", || client.move_to(to).is_ok());
    begun.elapsed()
}

fn write(client: &mut Client, file: &nfs_fh3, stable: stable_how, data: &[u8]) -> [u8; 8] {
    let written = client.expect(&write_args(file, 0, stable, data), "WRITE");
    written.unwrap().verf.0
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

#[test]
fn a_standby_serves_after_the_active_was_killed_in_the_middle_of_load() {
    let pair = Pair::new();
    let active = pair.start(0, &["--lease", "1s"]);
    active.says("served as /");
    let standby = pair.stand_by(1, &["--lease", "1s", "--gone-after", "500ms"]);
    standby.says("following its log");
    let (mut client, root) = pair.client();
    let kept = client.create(&root, "kept").unwrap();
    write(&mut client, &kept, stable_how::FILE_SYNC, b"stable");
    let verifier = write(&mut client, &kept, stable_how::UNSTABLE, b"STABLE");
    let made = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let (mut client, root) = pair.client();
            let (other, made) = (pair.nfs[1], Arc::clone(&made));
            std::thread::spawn(move || {
                for name in names(&format!("w{worker}-"), 60) {
                    let how = n::createhow3::GUARDED(mode(0o600));
                    let args = n::CREATE3args {
                        where_: entry(&root, &name),
                        how,
                    };
                    client.submit(&args).unwrap();
                    let reply = loop {
                        match client.receive() {
                            Ok(reply) => break reply,
                            Err(Failure::Lost(_)) => drop(moved(&mut client, other)),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let done = decode::<n::CREATE3args<'_>>(&reply.body).unwrap();
                    made.fetch_add(1, SeqCst);
                    assert!(
                        done.is_ok(),
                        "{name}, sent again: {}: done twice",
                        reply.resent
                    );
                }
            })
        })
        .collect();
    until("they are at work", || made.load(SeqCst) > 60);
    let killed = Instant::now();
    active.child.signal(Signal::KILL);
    assert!(made.load(SeqCst) < 6 * 60, "in the middle of load");
    moved(&mut client, pair.nfs[1]);
    let handle = client.attributes(&kept).unwrap();
    println!("killed: answered after {:?}", killed.elapsed());
    assert_eq!(handle.size, 6);
    assert!(
        killed.elapsed() >= Duration::from_secs(1),
        "the lease is waited out"
    );
    for worker in workers {
        worker.join().unwrap();
    }
    let mut expected: Vec<String> = (0..6).flat_map(|w| names(&format!("w{w}-"), 60)).collect();
    expected.push("kept".to_owned());
    expected.sort();
    let mut found = client.names(&root).unwrap();
    found.sort();
    assert_eq!(found, expected);
    // Stable data is there; the client sends other data again, as the verifier demands.
    let data = client.read(&kept, 0, 100, 6).unwrap();
    assert!(data == b"stable" || data == b"STABLE");
    assert_ne!(client.commit(&kept).unwrap().0, verifier);
    let verifier = write(&mut client, &kept, stable_how::UNSTABLE, b"STABLE");
    moved(&mut client, pair.nfs[1]);
    assert_eq!(client.commit(&kept).unwrap().0, verifier, "the same term");
    standby.says("took over after");
    assert_eq!(standby.child.end(Signal::TERM), Some(0));
    must(pair.path(), PROGRAM, &["fsck", &pair.url()]);
    must(pair.path(), PROGRAM, &["store", "check", &pair.url()]);
}

/// The same call, sent to both machines: the second answers as the first did, though the file could not be removed again.
#[test]
fn a_call_that_comes_again_on_the_other_machine_gets_the_first_reply() {
    let pair = Pair::new();
    let active = pair.start(0, &["--lease", "1s"]);
    active.says("served as /");
    let _standby = pair.stand_by(1, &["--lease", "1s", "--gone-after", "500ms"]);
    let (mut client, root) = pair.client();
    client.create(&root, "file").unwrap();
    let remove = n::REMOVE3args {
        object: entry(&root, "file"),
    };
    let (first, again) = client.call_kept(&remove).unwrap();
    active.child.signal(Signal::KILL);
    moved(&mut client, pair.nfs[1]);
    let second = client.repeat(&again).unwrap();
    assert_eq!(first, second, "the reply");
    // A new call sees the file gone.
    let gone = client.call(&remove).unwrap();
    assert_eq!(gone.err(), Some(n::nfsstat3::NFS3ERR_NOENT));
}

#[test]
fn an_active_that_was_stopped_answers_nothing_when_it_wakes_up() {
    let pair = Pair::new();
    let active = pair.start(0, &["--lease", "1s"]);
    active.says("served as /");
    let standby = pair.stand_by(1, &["--lease", "1s", "--gone-after", "500ms"]);
    let (mut old, root) = pair.client();
    let (mut client, _) = pair.client();
    let file = client.create(&root, "file").unwrap();
    assert_eq!(old.attributes(&file).unwrap().size, 0);
    active.child.signal(Signal::STOP);
    // A thread may run for a moment, and answer requests that it finds: the lease still holds.
    until("all of its threads stand", || active.stands());
    // It finds these requests when it wakes up: a read, and a change.
    old.submit(&n::GETATTR3args {
        object: file.clone(),
    })
    .unwrap();
    old.submit(&write_args(&file, 0, stable_how::FILE_SYNC, b"late"))
        .unwrap();
    moved(&mut client, pair.nfs[1]);
    standby.says("took over after");
    write(&mut client, &file, stable_how::FILE_SYNC, b"successor");
    active.child.signal(Signal::CONT);
    for _ in 0..2 {
        assert!(matches!(old.receive(), Err(Failure::Lost(_))), "it answers");
    }
    let (code, said) = active.ends();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("another server took over"), "{said}");
    assert_eq!(client.read(&file, 0, 100, 9).unwrap(), b"successor");
    // It can now stand by for the other one.
    let back = pair.stand_by(0, &["--lease", "60s"]);
    assert_eq!(standby.child.end(Signal::TERM), Some(0));
    moved(&mut client, pair.nfs[0]);
    assert_eq!(client.read(&file, 0, 100, 9).unwrap(), b"successor");
    back.says("has released its volumes");
    assert_eq!(back.child.end(Signal::TERM), Some(0));
}

#[test]
fn a_planned_hand_over_waits_for_no_lease() {
    let pair = Pair::new();
    let active = pair.start(0, &["--lease", "300s"]);
    active.says("served as /");
    let standby = pair.stand_by(1, &["--lease", "300s", "--gone-after", "300s"]);
    let (mut client, root) = pair.client();
    let file = client.create(&root, "file").unwrap();
    let verifier = write(&mut client, &file, stable_how::UNSTABLE, b"to be kept");
    let ended = Instant::now();
    active.child.signal(Signal::TERM);
    moved(&mut client, pair.nfs[1]);
    assert_eq!(client.read(&file, 0, 100, 10).unwrap(), b"to be kept");
    println!("planned: answered after {:?}", ended.elapsed());
    assert!(ended.elapsed() < Duration::from_secs(120));
    assert_ne!(client.commit(&file).unwrap().0, verifier);
    assert_eq!(active.ends().0, Some(0));
    assert!(standby.has_said("has released its volumes"));
}

#[test]
fn of_two_standbys_one_serves() {
    let pair = Pair::new();
    let both = [
        pair.stand_by(0, &["--lease", "1s", "--gone-after", "1s"]),
        pair.stand_by(1, &["--lease", "1s", "--gone-after", "1s"]),
    ];
    let serves = |one: &Serving| one.has_said("served as /");
    until("one serves", || both.iter().any(serves));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(both.iter().filter(|one| serves(one)).count(), 1);
}

#[test]
fn options_that_do_not_fit_together_are_refused() {
    let pair = Pair::new();
    must(pair.path(), PROGRAM, &["mkfs", "--size", "16M", "image"]);
    let serve = |args: &[&str]| {
        let args = [&["serve", "nfs"], args].concat();
        refused(pair.path(), 2, &args)
    };
    let url = pair.url();
    assert!(serve(&["--standby", &url]).contains("--peer HOST:PORT"));
    assert!(serve(&["--peer", "h:1", &url]).contains("add --standby"));
    let both = ["--standby", "--peer", "h:1", "--take-over", &url];
    assert!(serve(&both).contains("choose one"));
    assert!(serve(&["--lease", "1h", &url]).contains("write 5s"));
    assert!(serve(&["--lease", "10ms", &url]).contains("write 5s"));
    let serve = |args: &[&str]| {
        let args = [&["serve", "nfs"], args].concat();
        refused(pair.path(), 1, &args)
    };
    assert!(serve(&["--lease", "5s", "image"]).contains("needs a volume on an object store"));
    assert!(serve(&["--take-over", "--read-only", &url]).contains("needs no fail-over"));
    // Taking over a volume in use needs --take-over, which is for cluster managers.
    let active = pair.start(0, &["--lease", "1s"]);
    active.says("served as /");
    assert!(serve(&["--lease", "1s", "--listen", "127.0.0.1:0", &url]).contains("is in use"));
    let next = pair.start(1, &["--take-over", "--lease", "1s"]);
    next.says("served as /");
    let (code, said) = active.ends();
    assert_eq!(code, Some(5), "{said}");
}
