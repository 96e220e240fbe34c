//! Hostile, slow, dead or many clients harm no other client: a socket-level fuzzer, slow readers and writers, thousands of idle
//! connections, bounded memory, an orderly shutdown.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;
use common::*;
use nfs3_types::xdr_codec::Opaque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use steadfast_nfs::{Admin, Ended, Registration};
use steadfast_testkit::Random;

const FILE_SYNC: stable_how = stable_how::FILE_SYNC;

fn below(random: &mut Random, n: usize) -> usize {
    (random.number() % n as u64) as usize
}

fn long() -> bool {
    std::env::var_os("STEADFAST_LONG").is_some()
}

/// Waits, at most ten seconds.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One hostile connection.
fn attack(site: &Site, root: &nfs_fh3, f: &nfs_fh3, random: &mut Random) {
    let mut c = site.client();
    c.stream
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    for _ in 0..1 + below(random, 6) {
        let data = vec![random.number() as u8; below(random, 5000)];
        let mut call = match below(random, 6) {
            0 => c.call_bytes(PROGRAM, 3, random.number() as u32 % 24, root),
            1 => c.call_bytes(
                PROGRAM,
                3,
                7,
                &WRITE3args {
                    file: f.clone(),
                    offset: random.number() >> below(random, 64),
                    count: random.number() as u32,
                    stable: FILE_SYNC,
                    data: Opaque::borrowed(&data),
                },
            ),
            2 => c.call_bytes(
                PROGRAM,
                3,
                16 + random.number() as u32 % 2,
                &READDIRPLUS3args {
                    dir: root.clone(),
                    cookie: random.number(),
                    cookieverf: cookieverf3(random.number().to_be_bytes()),
                    dircount: random.number() as u32,
                    maxcount: random.number() as u32,
                },
            ),
            3 => c.call_bytes(
                PROGRAM,
                3,
                8,
                &CREATE3args {
                    where_: entry(root, &data[..data.len().min(300)]),
                    how: createhow3::UNCHECKED(size(random.number())),
                },
            ),
            4 => c.call_bytes(
                100_000 + random.number() as u32 % 8,
                random.number() as u32 % 5,
                random.number() as u32 % 30,
                root,
            ),
            _ => (0..below(random, 400))
                .map(|_| random.number() as u8)
                .collect(),
        };
        for _ in 0..below(random, 4) {
            if !call.is_empty() {
                let at = below(random, call.len());
                call[at] = random.number() as u8;
            }
        }
        let mut bytes = record(&call);
        match below(random, 8) {
            0 => bytes.truncate(below(random, bytes.len())),
            1 => bytes[0] = random.number() as u8,
            2 => bytes[..4].copy_from_slice(&(random.number() as u32).to_be_bytes()),
            3 => bytes.splice(4..4, [0, 0, 0, 0]).for_each(drop),
            _ => {}
        }
        if c.stream.write_all(&bytes).is_err() {
            return;
        }
        if below(random, 3) == 0 {
            let _ = c.stream.read(&mut [0; 64]);
        }
    }
    if below(random, 2) == 0 {
        let _ = c.stream.shutdown(std::net::Shutdown::Write);
    }
}

#[test]
fn garbage_on_many_connections_harms_nobody_else() {
    let site = Site::new(Kind::Real);
    let (mut honest, root) = site.mounted();
    let dir = honest.mkdir(&root, "honest").unwrap();
    let target = honest.create(&root, "target");
    let (stop, attacks) = (AtomicBool::new(false), if long() { 20_000 } else { 300 });
    std::thread::scope(|scope| {
        for seed in 1..=2_u64 {
            let (site, root, target, stop) = (&site, &root, &target, &stop);
            scope.spawn(move || {
                let mut random = Random::from_state(seed * 0x9e37_79b9);
                for _ in 0..attacks {
                    attack(site, root, target, &mut random);
                }
                stop.store(true, SeqCst);
            });
        }
        let mut i = 0_u32;
        while !stop.load(SeqCst) || i < 20 {
            let name = format!("f{i}");
            let f = honest.create(&dir, &name);
            let data = i.to_be_bytes().repeat(100);
            honest.write(&f, 0, &data, FILE_SYNC).unwrap();
            assert_eq!(honest.read(&f, 0, 1000).unwrap(), (data, true));
            honest.remove(&dir, &name).unwrap();
            i += 1;
        }
    });
    // Truncated records wait for the rest until their clients are gone; then the server holds nothing for them.
    until("all attackers are gone", || {
        site.counter("connections_now") == 1
    });
    until("the memory of arriving bytes is given back", || {
        site.counter("arriving_bytes_now") == 0
    });
    until("the memory of unsent bytes is given back", || {
        site.counter("unsent_bytes_now") == 0
    });
    assert!(site.counter("connections_closed_garbage") > 0);
    assert!(site.counter("rejected_requests") > 0);
    assert_eq!(site.server.stop(), Ended::Stopped);
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn corner_38_thousands_of_idle_and_half_open_connections_cost_little() {
    let wanted = if long() { 10_000 } else { 1_500 };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = wanted.min((allowed.saturating_sub(200) / 2) as usize);
    let site = Site::new(Kind::Model);
    let (mut c, root) = site.mounted();
    let before = resident();
    let mut idle = Vec::new();
    for i in 0..count {
        let mut stream = TcpStream::connect(site.address).unwrap();
        match i % 4 {
            // A mark without a record; a part of a record; a part of a mark.
            1 => stream.write_all(&[0x80, 0x0f, 0, 0]).unwrap(),
            2 => stream.write_all(&[0x80, 0, 1, 0, 1, 2, 3]).unwrap(),
            3 => stream.write_all(&[0x80]).unwrap(),
            _ => {}
        }
        idle.push(stream);
        if i % 100 == 0 {
            c.getattr(&root).unwrap();
        }
    }
    until("all are accepted", || {
        site.counter("connections_now") == count as u64 + 1
    });
    let per_connection = resident().saturating_sub(before) / count as u64;
    assert!(per_connection < 16 << 10, "{per_connection} bytes each");
    let start = Instant::now();
    for _ in 0..100 {
        c.getattr(&root).unwrap();
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    drop(idle);
    until("they are gone", || site.counter("connections_now") == 1);
}

#[test]
fn a_client_that_takes_no_replies_is_not_read_and_then_closed() {
    let mut options = options();
    options.stall_time = Duration::from_secs(3);
    let site = Site::opt(file_system(Kind::Model), vec![export()], &options);
    let (mut c, root) = site.mounted();
    let f = c.create(&root, "f");
    c.write(&f, 0, &vec![1; 1 << 20], FILE_SYNC).unwrap();
    let mut lazy = site.client();
    let args = READ3args {
        file: f.clone(),
        offset: 0,
        count: 1 << 20,
    };
    lazy.stream
        .set_write_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    // The server stops reading long before all calls are sent.
    for _ in 0..2000 {
        let call = lazy.call_bytes(PROGRAM, 3, 6, &args);
        if lazy.stream.write_all(&record(&call)).is_err() {
            break;
        }
    }
    until("replies are kept", || site.counter("unsent_bytes_now") > 0);
    let unsent = site.counter("unsent_bytes_now");
    assert!(
        unsent > 0 && unsent <= 10 << 20,
        "{unsent}: at most what was in progress"
    );
    assert_eq!(c.read(&f, 0, 10).unwrap().0.len(), 10, "others are served");
    until("the lazy one is closed", || {
        site.counter("connections_closed_slow") == 1
    });
    until("the memory of unsent bytes is given back", || {
        site.counter("unsent_bytes_now") == 0
    });
    // A slow client that takes its replies gets all of them, with their bytes in order.
    let mut slow = site.client();
    for _ in 0..20 {
        let call = slow.call_bytes(PROGRAM, 3, 6, &args);
        slow.send(&call);
    }
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        let (_, res) = Client::decode::<READ3res<'static>>(&slow.reply().unwrap());
        assert!(res.unwrap().unwrap().data.iter().all(|b| *b == 1));
    }
}

#[test]
fn a_record_that_never_ends_is_given_up() {
    let mut options = options();
    options.record_time = Duration::from_millis(500);
    let site = Site::opt(file_system(Kind::Model), vec![export()], &options);
    let mut drip = site.client();
    drip.stream.write_all(&[0x80, 0, 1, 0]).unwrap();
    let start = Instant::now();
    // A byte now and then does not keep it alive, nor do empty fragments.
    while drip.stream.write_all(&[0]).is_ok() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(site.counter("connections_closed_slow"), 1);
    // A silent client may stay.
    let mut quiet = site.client();
    std::thread::sleep(Duration::from_millis(1200));
    quiet.null();
}

/// Connections that got no memory were not read until others gave some back: silent connections that held all memory
/// stopped all others. Now a connection that needs memory gets it, and the one that holds most is closed.
#[test]
fn memory_for_arriving_records_is_bounded_and_the_largest_holder_is_closed() {
    let mut options = options();
    options.memory_bytes = 4 << 20;
    let site = Site::opt(file_system(Kind::Model), vec![export()], &options);
    let (mut c, root) = site.mounted();
    let f = c.create(&root, "f");
    let data = vec![3; 1 << 20];
    let args = WRITE3args {
        file: f.clone(),
        offset: 0,
        count: 1 << 20,
        stable: FILE_SYNC,
        data: Opaque::borrowed(&data),
    };
    let mut halves = Vec::new();
    for _ in 0..12 {
        let mut c = Client::connect_alone(site.address);
        let bytes = record(&c.call_bytes(PROGRAM, 3, 7, &args));
        let _ = c.stream.write_all(&bytes[..100_000]);
        halves.push(c);
    }
    until("some have gone", || {
        site.counter("connections_closed_crowded") >= 8
    });
    assert!(site.counter("memory_bytes_now") <= 4 << 20);
    for _ in 0..3 {
        assert_eq!(c.write(&f, 0, &data, FILE_SYNC).unwrap().count, 1 << 20);
    }
    until("others have gone for it", || {
        site.counter("connections_closed_crowded") >= 10
    });
    drop(halves);
    until("they are gone", || site.counter("connections_now") == 1);
    // A connection leaves the count a moment before its memory is given back.
    until("their memory is given back", || {
        site.counter("arriving_bytes_now") == 0
    });
}

#[test]
fn with_too_many_connections_the_longest_idle_one_is_closed() {
    let mut options = options();
    options.connections_max = 8;
    let site = Site::opt(file_system(Kind::Model), vec![export()], &options);
    let mut first = site.client();
    first.null();
    let mut others: Vec<_> = (0..7).map(|_| site.client()).collect();
    others.iter_mut().for_each(Client::null);
    first.null();
    let mut more: Vec<_> = (0..4).map(|_| site.client()).collect();
    more.iter_mut().for_each(Client::null);
    first.null();
    assert_eq!(site.counter("connections_closed_crowded"), 4);
    assert!(site.counter("connections_now") <= 8);
}

#[test]
fn calls_of_one_connection_run_concurrently_and_all_are_answered() {
    let site = Site::new(Kind::Real);
    let (mut c, root) = site.mounted();
    let files: Vec<_> = (0..8).map(|i| c.create(&root, &format!("f{i}"))).collect();
    let mut sent = std::collections::HashSet::new();
    // One burst of more calls than are taken at a time.
    let mut bytes = Vec::new();
    for i in 0..200_usize {
        let data = vec![i as u8; 50 + i * 13];
        let args = WRITE3args {
            file: files[i % 8].clone(),
            offset: (i / 8 * 4096) as u64,
            count: data.len() as u32,
            stable: FILE_SYNC,
            data: Opaque::borrowed(&data),
        };
        bytes.extend(record(&c.call_bytes(PROGRAM, 3, 7, &args)));
        sent.insert(c.xid);
    }
    c.stream.write_all(&bytes).unwrap();
    while !sent.is_empty() {
        let (xid, res) = Client::decode::<WRITE3res>(&c.reply().unwrap());
        status_of(res.unwrap()).unwrap();
        assert!(sent.remove(&xid));
    }
    for i in 0..200_usize {
        let (data, _) = c
            .read(&files[i % 8], (i / 8 * 4096) as u64, 50 + i as u32 * 13)
            .unwrap();
        assert!(data.iter().all(|b| *b == i as u8), "{i}");
    }
}

#[test]
fn a_client_that_has_sent_all_still_gets_its_replies() {
    let site = Site::new(Kind::Model);
    let (mut c, root) = site.mounted();
    let mut bytes = Vec::new();
    for _ in 0..20 {
        bytes.extend(record(&c.call_bytes(PROGRAM, 3, 1, &root)));
    }
    c.stream.write_all(&bytes).unwrap();
    c.stream.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..20 {
        c.reply().unwrap();
    }
    assert!(matches!(c.reply(), Err(Refused::Closed(_))));
    until("it is gone", || site.counter("connections_now") == 0);
}

#[test]
fn the_end_finishes_what_is_in_progress_and_commits() {
    let fs = real();
    let site = Site::with(fs.clone(), vec![export()]);
    let (mut c, root) = site.mounted();
    let stopper = site.server.stopper();
    let done = std::thread::spawn(move || {
        let mut answered = 0;
        loop {
            let name = format!("f{answered}");
            let how = createhow3::GUARDED(mode(0o644));
            let args = CREATE3args {
                where_: entry(&root, name.as_bytes()),
                how,
            };
            let call = c.call_bytes(PROGRAM, 3, 8, &args);
            c.send(&call);
            match c.reply() {
                Ok(reply) => status_of(Client::decode::<CREATE3res>(&reply).1.unwrap())
                    .map(drop)
                    .unwrap(),
                Err(_) => return answered,
            }
            answered += 1;
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    stopper.stop();
    site.server.wait();
    assert_eq!(site.server.stop(), Ended::Stopped);
    let answered = done.join().unwrap();
    assert!(answered > 0);
    let root = steadfast_vfs::Caller::root();
    use steadfast_vfs::FileSystem;
    for i in 0..answered {
        fs.lookup(&root, fs.root(), format!("f{i}").as_bytes())
            .unwrap();
    }
    fs.unmount().unwrap();
}

#[test]
fn counters_are_offered_over_a_socket_and_to_prometheus() {
    let site = Site::new(Kind::Model);
    let (mut c, root) = site.mounted();
    c.getattr(&root).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let everywhere = "0.0.0.0:0".parse().unwrap();
    assert!(
        Admin::start(site.server.counters(), None, Some(everywhere)).is_err(),
        "this host alone"
    );
    let admin = Admin::start(
        site.server.counters(),
        Some(&path),
        Some("127.0.0.1:0".parse().unwrap()),
    )
    .unwrap();
    assert!(
        Admin::start(site.server.counters(), Some(&path), None).is_err(),
        "somebody serves there"
    );
    let counters = steadfast_nfs::read_state(&path).unwrap().counters;
    let get = |name: &str| counters.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((get("requests_getattr"), get("connections_now")), (1, 1));
    let http = |request: &str| {
        let mut stream = TcpStream::connect(admin.metrics().unwrap()).unwrap();
        let _ = stream.write_all(request.as_bytes());
        let mut text = String::new();
        // A client that sends too much is disconnected.
        let _ = stream.read_to_string(&mut text);
        text
    };
    let text = http("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(
        text.contains("steadfast_nfs_request_seconds_count{procedure=\"getattr\"} 1\n"),
        "{text}"
    );
    assert!(http("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(http("POST /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert_eq!(http(&"x".repeat(10_000)), "");
    drop(admin);
    assert!(!path.exists());
    // The socket of a killed server is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(Admin::start(site.server.counters(), Some(&path), None).unwrap());
}

/// An HTTP request that came byte by byte had two seconds for each byte, and the shutdown of the server waited for it:
/// SIGTERM took hours. Now a request has one deadline, and the shutdown waits for no reader of counters.
#[test]
fn a_slow_reader_of_counters_has_one_deadline_and_does_not_delay_the_shutdown() {
    // The largest allowed request: a client that reaches this was not disconnected.
    const BYTES_MAX: usize = 8 << 10;
    let site = Site::new(Kind::Model);
    let any = "127.0.0.1:0".parse().unwrap();
    let drip = |address: std::net::SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        move || {
            let bytes = (0..BYTES_MAX).take_while(|_| {
                std::thread::sleep(Duration::from_millis(1));
                stream.write_all(b"x").is_ok()
            });
            bytes.count()
        }
    };
    let admin = Admin::start(site.server.counters(), None, Some(any)).unwrap();
    let dripped = std::thread::spawn(drip(admin.metrics().unwrap()));
    assert!(dripped.join().unwrap() < BYTES_MAX, "its time is over");
    let dripped = std::thread::spawn(drip(admin.metrics().unwrap()));
    drop(admin);
    assert!(!dripped.is_finished() || dripped.join().unwrap() < BYTES_MAX);
}

/// An rpcbind that accepts everything and records it.
#[test]
fn programs_are_registered_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rpcbind");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let rpcbind = std::thread::spawn(move || {
        let mut calls = Vec::new();
        for _ in 0..12 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut mark = [0; 4];
            stream.read_exact(&mut mark).unwrap();
            let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
            stream.read_exact(&mut call).unwrap();
            let word = |at: usize| u32::from_be_bytes(call[at..at + 4].try_into().unwrap());
            assert_eq!((word(12), word(16)), (100_000, 4));
            let mut at = 48;
            let mut text = || {
                let len = word(at) as usize;
                let text = String::from_utf8(call[at + 4..at + 4 + len].to_vec()).unwrap();
                at += 4 + len.next_multiple_of(4);
                text
            };
            let (transport, address) = (text(), text());
            calls.push(format!("{} {} {transport} {address}", word(20), word(40)));
            let reply = [&call[..4], &[0, 0, 0, 1], &[0; 16], &[0, 0, 0, 1]].concat();
            stream.write_all(&record(&reply)).unwrap();
        }
        calls
    });
    let addresses = ["127.0.0.1:2049", "10.0.0.1:1", "[::1]:2050"].map(|a| a.parse().unwrap());
    drop(Registration::at(&path, &addresses, Some(20_048)).unwrap());
    assert_eq!(
        rpcbind.join().unwrap(),
        [
            "2 100003 tcp 127.0.0.1.8.1",
            "1 100003 tcp 127.0.0.1.8.1",
            "2 100005 tcp 127.0.0.1.78.80",
            "1 100005 tcp 127.0.0.1.78.80",
            "2 100003 tcp6 ::1.8.2",
            "1 100003 tcp6 ::1.8.2",
            "2 100005 tcp6 ::1.78.80",
            "1 100005 tcp6 ::1.78.80",
            "2 100003 tcp 127.0.0.1.8.1",
            "2 100005 tcp 127.0.0.1.78.80",
            "2 100003 tcp6 ::1.8.2",
            "2 100005 tcp6 ::1.78.80",
        ]
    );
    assert!(Registration::at(&dir.path().join("nobody"), &addresses, None).is_err());
}
