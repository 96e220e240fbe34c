//! Hostile clients beside a good one: the good client is served, its connections are not reset, and the memory of the server
//! stays within its limit. Attackers have other addresses than the good client; no export admits some of these addresses.
//!
//! The server is another process of this test program, so that its memory can be measured. `STEADFAST_LONG=1` attacks with
//! more connections, and `STEADFAST_LATENCY=1` also compares the good client's latency with that on an idle server
//! (`scripts/nfs-attack.sh`).
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use nfs3_types::rpc::opaque_auth;
use nfs3_types::xdr_codec::{Opaque, Void};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use steadfast_nfs::{Access, Admin, Tls};

const SERVER: &str = "STEADFAST_NFS_TEST_ATTACKED";
const BYSTANDER: &str = "STEADFAST_NFS_TEST_BYSTANDER";
const ECHO: &str = "STEADFAST_NFS_TEST_ECHO";
/// Time that a NULL may take longer than an echo, on a quiet machine.
const LONE_CALL: Duration = Duration::from_micros(15);
/// Time after which the server closes a client that makes no progress.
const PATIENCE: Duration = Duration::from_secs(2);
/// Length of the intervals of measurement.
const WINDOW: Duration = Duration::from_millis(200);
/// Memory that clients may make the server hold, and additional memory of its workers.
const MEMORY_BYTES: u64 = 32 << 20;
const THREADS: usize = 16;
const WORKERS_BYTES: u64 = THREADS as u64 * 1_300_000;
/// Addresses of the attackers: an export admits the first, none admits the second.
const ADMITTED: [u8; 4] = [127, 0, 1, 2];
const STRANGER: [u8; 4] = [127, 0, 0, 2];

fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

/// The count in the long form, or in the short form.
fn count(long_form: usize, short_form: usize) -> usize {
    if long() { long_form } else { short_form }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn more_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, limit);
}

fn certify(dir: &std::path::Path) -> Tls {
    let names = vec!["localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (cert, key) = (dir.join("crt"), dir.join("key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Tls::from_files(&cert, &key, None).unwrap()
}

/// Not a test: the bystander, which is attacked instead of the server. It handles connections in the cheapest way: it keeps
/// them as long as the server keeps silent ones, and reads nothing. It exits at the end of its input.
#[test]
fn the_bystander_that_is_attacked() {
    if std::env::var_os(BYSTANDER).is_none() {
        return;
    }
    more_descriptors();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nserving {}", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    std::thread::spawn(move || {
        let mut held = VecDeque::new();
        while let Ok((stream, _)) = listener.accept() {
            held.push_back((Instant::now(), stream));
            while held
                .front()
                .is_some_and(|(since, _)| since.elapsed() > PATIENCE)
            {
                held.pop_front();
            }
        }
    });
    let _ = std::io::stdin().read(&mut [0]);
}

/// Not a test: an echo server with one thread per connection. It exits at the end of its input.
#[test]
fn the_echo_that_is_compared_with() {
    if std::env::var_os(ECHO).is_none() {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nserving {}", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(len @ 1..) = stream.read(&mut bytes) {
                    stream.write_all(&bytes[..len]).unwrap();
                }
            });
        }
    });
    let _ = std::io::stdin().read(&mut [0]);
}

/// Not a test: the server that the tests below attack. It exits at the end of its input.
#[test]
fn the_server_that_is_attacked() {
    let Some(control) = std::env::var_os(SERVER).map(PathBuf::from) else {
        return;
    };
    more_descriptors();
    let mut options = options();
    options.threads = THREADS;
    options.memory_bytes = MEMORY_BYTES;
    options.record_time = PATIENCE;
    options.handshake_time = PATIENCE;
    options.stall_time = PATIENCE;
    options.guest_time = PATIENCE;
    options.tls = Some(certify(control.parent().unwrap()));
    let admitted = ["127.0.0.1/32", "127.0.1.0/24"];
    let export = export().with_access(Access {
        clients: admitted.map(|net| net.parse().unwrap()).to_vec(),
        ..access()
    });
    let site = Site::opt(file_system(Kind::Model), vec![export], &options);
    let _admin = Admin::start(site.server.counters(), Some(&control), None).unwrap();
    println!("\nserving {}", site.address);
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    let _ = site.server.stop();
}

/// Another process of this test program. It exits when this is dropped.
struct Program {
    child: Child,
    _out: Box<dyn Iterator<Item = String> + Send + Sync>,
    address: SocketAddr,
}

impl Program {
    /// Runs one of the tests above, which prints its address.
    fn start(test: &str, variable: &str, value: &std::path::Path) -> Program {
        more_descriptors();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                &steadfast_testkit::test_name(module_path!(), test),
                "--nocapture",
            ])
            .env(variable, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Box::new(out.lines().map_while(Result::ok));
        let address = lines.find_map(|line| line.strip_prefix("serving ")?.parse().ok());
        Program {
            child,
            _out: lines,
            address: address.unwrap(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process exits at the end of its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

struct Attacked {
    program: Program,
    address: SocketAddr,
    dir: tempfile::TempDir,
    resident_before: u64,
}

impl Attacked {
    fn start() -> Attacked {
        let dir = tempfile::tempdir().unwrap();
        let control = dir.path().join("control");
        let program = Program::start("the_server_that_is_attacked", SERVER, &control);
        let mut attacked = Attacked {
            address: program.address,
            program,
            dir,
            resident_before: 0,
        };
        attacked.resident_before = attacked.resident();
        attacked
    }

    /// Resident memory of the server.
    fn resident(&self) -> u64 {
        let statm =
            std::fs::read_to_string(format!("/proc/{}/statm", self.program.child.id())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    fn counter(&self, name: &str) -> u64 {
        let state = steadfast_nfs::read_state(&self.dir.path().join("control")).unwrap();
        let mut list = state.counters.iter();
        list.find(|(n, _)| n == name).map_or(0, |(_, v)| *v)
    }

    fn attacker(&self, host: [u8; 4]) -> Client {
        attacker(host, self.address)
    }
}

/// A client with another address.
fn attacker(host: [u8; 4], to: SocketAddr) -> Client {
    Client {
        stream: connect_from((host, 0).into(), to),
        xid: 1,
        credential: user(0, 0, &[]),
    }
}

/// The good client, which must not be disturbed.
struct Good {
    client: Client,
    root: nfs_fh3,
    file: nfs_fh3,
}

impl Good {
    fn new(attacked: &Attacked) -> Good {
        let mut client = Client::connect(attacked.address);
        let root = client.mnt("/").unwrap();
        let file = client.create(&root, "good");
        Good { client, root, file }
    }

    /// Makes calls of all kinds, one at a time. Returns the 99th percentile of their latency.
    fn work(&mut self, rounds: usize) -> Duration {
        self.work_while(|round| round < rounds)
    }

    /// The same, for this time.
    fn work_for(&mut self, time: Duration) -> Duration {
        let since = Instant::now();
        self.work_while(|_| since.elapsed() < time)
    }

    fn work_while(&mut self, go_on: impl Fn(usize) -> bool) -> Duration {
        let data = vec![7; 64 << 10];
        let mut took = Vec::new();
        for round in (0..).take_while(|round| go_on(*round)) {
            let name = format!("g{}", round % 7);
            let mut timed = |call: &mut dyn FnMut(&mut Good)| {
                let since = Instant::now();
                call(self);
                took.push(since.elapsed());
            };
            timed(&mut |good| good.client.null());
            timed(&mut |good| assert!(good.client.getattr(&good.file).is_ok()));
            timed(&mut |good| {
                let (client, file) = (&mut good.client, &good.file);
                let written = client.write(file, 0, &data, stable_how::FILE_SYNC);
                assert_eq!(written.unwrap().count as usize, data.len());
            });
            timed(&mut |good| {
                let read = good.client.read(&good.file, 0, 64 << 10).unwrap();
                assert!(read.0 == data);
            });
            timed(&mut |good| drop(good.client.create(&good.root, &name)));
            timed(&mut |good| good.client.remove(&good.root, &name).unwrap());
        }
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

/// Attacks an address until it is to stop.
type Attack = fn(&Attacked, to: SocketAddr, host: [u8; 4], stop: &AtomicBool);

/// Ends the attackers.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs the good client while an address is attacked. Returns its latency in the worst interval, and the peak memory
/// of the server.
fn work_beside(
    attacked: &Attacked,
    good: &mut Good,
    attack: Attack,
    to: SocketAddr,
    hosts: &[[u8; 4]],
) -> (Duration, u64) {
    let stop = AtomicBool::new(false);
    let (mut worst, mut resident) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        // Even when the good client fails: otherwise the attackers would go on for ever, and hide the cause.
        let _ends = StopOnDrop(&stop);
        for host in hosts {
            let stop = &stop;
            scope.spawn(move || attack(attacked, to, *host, stop));
        }
        let since = Instant::now();
        let time = Duration::from_millis(count(10_000, 500) as u64);
        while since.elapsed() < time {
            worst = worst.max(good.work(count(1000, 40)));
            resident = resident.max(attacked.resident());
        }
    });
    (worst, resident.max(attacked.resident()))
}

/// Time until the good client is served as on the idle server again: the end of the first such interval, at most a minute.
fn recovery(good: &mut Good, bound: Duration) -> Duration {
    let since = Instant::now();
    while good.work_for(WINDOW) > bound && since.elapsed() < Duration::from_secs(60) {}
    since.elapsed()
}

fn held_under(name: &str, hosts: &[[u8; 4]], attack: Attack) {
    let latency = std::env::var_os("STEADFAST_LATENCY").is_some();
    let attacked = Attacked::start();
    let mut good = Good::new(&attacked);
    let rounds = count(1000, 40);
    good.work(20);
    let idle = good.work(rounds);
    // The load of the attackers alone: nobody attacks the server.
    let control = latency.then(|| {
        let test = "the_bystander_that_is_attacked";
        let bystander = Program::start(test, BYSTANDER, "".as_ref());
        work_beside(&attacked, &mut good, attack, bystander.address, hosts).0
    });
    let (under, resident) = work_beside(&attacked, &mut good, attack, attacked.address, hosts);
    let bound = 3 * idle.max(control.unwrap_or_default());
    let recovered = latency.then(|| recovery(&mut good, idle * 3));
    // The attackers are gone: the server has recovered.
    until("the attackers are gone", || {
        attacked.counter("connections_now") == 1
    });
    // A connection leaves the count a moment before its memory is given back.
    for gauge in ["arriving_bytes_now", "unsent_bytes_now"] {
        until(gauge, || attacked.counter(gauge) == 0);
    }
    let after = good.work(rounds);
    let grown = resident.saturating_sub(attacked.resident_before);
    let limit = (MEMORY_BYTES + WORKERS_BYTES) / 5 * 6;
    let beside = control.map_or(String::new(), |control| {
        format!(", beside an attack on a bystander {control:?}")
    });
    println!(
        "{name}: p99 idle {idle:?}{beside}, under attack {under:?}, after it {after:?}; memory grew by {} KiB of {} KiB; {} accepted, {} closed for room, {} for time",
        grown >> 10,
        limit >> 10,
        attacked.counter("connections_accepted"),
        attacked.counter("connections_closed_crowded"),
        attacked.counter("connections_closed_slow"),
    );
    assert!(grown <= limit, "{grown} bytes, {limit} at most");
    if let Some(recovered) = recovered {
        println!("{name}: as on the idle server {recovered:?} after the attackers had left");
        assert!(under <= bound, "{under:?} under attack, {bound:?} at most");
        assert!(recovered <= Duration::from_secs(1), "{recovered:?}");
    }
}

const BOTH: [[u8; 4]; 2] = [STRANGER, ADMITTED];

/// Keeps connections open: opens them again when the server closes them.
fn keep_open(
    (to, host): (SocketAddr, [u8; 4]),
    stop: &AtomicBool,
    connections: usize,
    mut begin: impl FnMut(&mut Client),
    mut go_on: impl FnMut(&mut Client),
) {
    let mut all: Vec<Client> = Vec::new();
    while !stop.load(SeqCst) {
        if all.len() < connections {
            let mut client = attacker(host, to);
            client.stream.set_nonblocking(true).unwrap();
            begin(&mut client);
            all.push(client);
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
        all.retain_mut(|client| {
            let gone = match client.stream.peek(&mut [0]) {
                Ok(len) => len == 0,
                Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
            };
            if !gone {
                go_on(client);
            }
            !gone
        });
    }
}

/// Sends as much as the kernel takes.
fn push(stream: &mut TcpStream, bytes: &[u8]) {
    let mut rest = bytes;
    for _ in 0..100 {
        match stream.write(rest) {
            Ok(len) => rest = &rest[len..],
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        if rest.is_empty() {
            return;
        }
    }
}

/// 256 connections sent a fragment of 1 MiB, the mark of another one and then nothing. They took all memory, which was given
/// back two minutes after they had disconnected. Meanwhile no WRITE of 64 KiB of any client was read.
#[test]
fn fragments_that_never_become_a_record_stop_no_other_client() {
    held_under("fragments", &BOTH, |_, to, host, stop| {
        let mut bytes = vec![0; 4 + (1 << 20) + 4];
        bytes[..4].copy_from_slice(&0x0010_0000_u32.to_be_bytes());
        bytes[4 + (1 << 20)..].copy_from_slice(&0x1000_u32.to_be_bytes());
        let begin = |client: &mut Client| push(&mut client.stream, &bytes);
        keep_open((to, host), stop, count(256, 64), begin, |_| {});
    });
}

/// The deadline of a record was renewed with each reservation of memory: a record that arrived slowly, byte by byte, lived for
/// ever.
#[test]
fn a_record_that_drips_ends_at_its_deadline() {
    let attacked = Attacked::start();
    let mut drip = attacked.attacker(ADMITTED);
    let mut bytes = vec![0; 4 + 20_000];
    bytes[..4].copy_from_slice(&20_000_u32.to_be_bytes());
    drip.stream.write_all(&bytes).unwrap();
    drip.stream.write_all(&[0, 0x0f, 0, 0]).unwrap();
    let mut dripped = 0;
    while drip.stream.write_all(&[0]).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
        dripped += 1;
        // Its fragment is never complete before that, and a hang ends.
        assert!(dripped < 3000, "it lives on");
    }
    assert_eq!(attacked.counter("connections_closed_slow"), 1);
    until("the memory of arriving bytes is given back", || {
        attacked.counter("arriving_bytes_now") == 0
    });
}

/// With 700 connections that took no replies, the good one was reset, and the server used 1.1 GB at a limit of 256 MiB.
#[test]
fn slow_readers_are_closed_before_the_memory_is_used_up() {
    held_under("slow readers", &[ADMITTED], |attacked, to, host, stop| {
        let mut client = attacked.attacker(host);
        let root = client.mnt("/").unwrap();
        let file = client.create(&root, &format!("large for {to}"));
        let data = vec![1; 1 << 20];
        let written = client.write(&file, 0, &data, stable_how::UNSTABLE);
        assert_eq!(written.unwrap().count, 1 << 20);
        drop(client);
        let args = READ3args {
            file,
            offset: 0,
            count: 1 << 20,
        };
        let begin = |client: &mut Client| {
            for _ in 0..16 {
                let call = client.call_bytes(PROGRAM, VERSION, 6, &args);
                push(&mut client.stream, &record(&call));
            }
        };
        keep_open((to, host), stop, count(700, 60), begin, |_| {});
    });
}

/// Silent TLS handshakes took memory that others waited for.
#[test]
fn silent_tls_handshakes_delay_no_other_client() {
    held_under("silent handshakes", &BOTH, |attacked, to, host, stop| {
        let begin = |client: &mut Client| {
            client.credential = opaque_auth::default();
            let mut call = client.call_bytes(PROGRAM, VERSION, 0, &Void);
            call[24..28].copy_from_slice(&7_u32.to_be_bytes());
            push(&mut client.stream, &record(&call));
        };
        let mut silent = 0;
        let go_on = |client: &mut Client| {
            // A hello that never ends.
            let mut reply = [0; 256];
            if client.stream.read(&mut reply).is_ok() {
                push(&mut client.stream, &[22, 3, 1, 2, 0, 1, 0, 1, 252]);
                silent += 1;
            }
        };
        keep_open((to, host), stop, count(2000, 100), begin, go_on);
        assert!(
            host == STRANGER || silent > 0 || to != attacked.address,
            "TLS was offered"
        );
    });
}

/// Connections that are opened and closed in a loop, and silent connections.
#[test]
fn many_connections_take_no_place_from_another_client() {
    held_under("connections", &BOTH, |_, to, host, stop| {
        let mut round = 0_usize;
        let begin = |client: &mut Client| {
            round += 1;
            match round % 4 {
                0 => push(&mut client.stream, &[0x80]),
                1 => push(&mut client.stream, &[0x80, 0, 1, 0, 1, 2, 3]),
                2 => drop(client.stream.shutdown(std::net::Shutdown::Both)),
                _ => {}
            }
        };
        keep_open((to, host), stop, count(3000, 200), begin, |_| {});
    });
}

/// A client that no export admits gets small records, one call at a time, and some seconds: it learns that it is refused.
#[test]
fn a_client_that_no_export_admits_learns_it_and_gets_nothing_else() {
    let attacked = Attacked::start();
    let mut stranger = attacked.attacker(STRANGER);
    stranger.null();
    assert!(stranger.mnt("/").is_err());
    // No TLS, no large record, few calls.
    let own = std::mem::take(&mut stranger.credential);
    let mut call = stranger.call_bytes(PROGRAM, VERSION, 0, &Void);
    call[24..28].copy_from_slice(&7_u32.to_be_bytes());
    stranger.credential = own;
    stranger.send(&call);
    let (_, result) = Client::decode::<Void>(&stranger.reply().unwrap());
    assert!(matches!(result, Err(Refused::Denied(_))));
    let mut large = attacked.attacker(STRANGER);
    large.stream.write_all(&[0x80, 0, 0x40, 0]).unwrap();
    assert!(matches!(large.reply(), Err(Refused::Closed(_))));
    let args = WRITE3args {
        file: nfs_fh3 {
            data: Opaque::owned(vec![0; 8]),
        },
        offset: 0,
        count: 0,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&[]),
    };
    let mut answered = 0;
    loop {
        let call = stranger.call_bytes(PROGRAM, VERSION, 7, &args);
        stranger.send(&call);
        match stranger.reply() {
            Ok(_) => answered += 1,
            Err(_) => break,
        }
    }
    assert!(answered <= 16, "{answered} calls");
    until("they are gone", || attacked.counter("connections_now") == 0);
}

/// The worker that sees a lone client's call first serves it. Measured only with `STEADFAST_LATENCY=1`.
#[test]
fn a_lone_call_takes_little_longer_than_an_echo() {
    if std::env::var_os("STEADFAST_LATENCY").is_none() {
        return;
    }
    let attacked = Attacked::start();
    let echo = Program::start("the_echo_that_is_compared_with", ECHO, "".as_ref());
    let mut clients = [attacked.address, echo.address].map(Client::connect);
    let call = record(&clients[0].call_bytes(PROGRAM, VERSION, 0, &Void));
    // A reply to NULL, without its mark, and the same bytes again.
    let replies = [28, call.len()];
    let mut medians = [const { Vec::new() }; 2];
    for run in 0..21 {
        for (which, client) in clients.iter_mut().enumerate() {
            let mut reply = vec![0; replies[which]];
            let mut took = Vec::new();
            for _ in 0..1000 {
                let since = Instant::now();
                client.stream.write_all(&call).unwrap();
                client.stream.read_exact(&mut reply).unwrap();
                took.push(since.elapsed());
            }
            took.sort_unstable();
            // The first run warms up.
            medians[which].extend((run > 0).then(|| took[took.len() / 2]));
        }
    }
    medians
        .iter_mut()
        .for_each(|medians| medians.sort_unstable());
    let [null, echoed] = medians.map(|medians| (medians[10], medians[0], medians[19]));
    println!("NULL {null:?}, echo {echoed:?}: median, least and most of 20 medians of 1000 calls");
    assert!(null.0 <= echoed.0 + LONE_CALL, "{null:?}, {echoed:?}");
}
