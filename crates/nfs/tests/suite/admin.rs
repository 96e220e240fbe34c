//! Guarantees for administrators, such as: clients that no export admits cannot disturb admitted clients.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use steadfast_nfs::{Access, AccessLog, Export, ExportedVolume, HandleKey, Source, Target};
use steadfast_vfs::{Caller, FileSystem, Ino, XattrMode};

/// A call of REMOVE.
fn remove_call(client: &mut Client, dir: &nfs_fh3, name: &str) -> Vec<u8> {
    let args = REMOVE3args {
        object: entry(dir, name.as_bytes()),
    };
    client.call_bytes(PROGRAM, VERSION, NFS_PROGRAM::NFSPROC3_REMOVE as u32, &args)
}

fn guarded_create(client: &mut Client, dir: &nfs_fh3, name: &str) -> Vec<u8> {
    let args = CREATE3args {
        where_: entry(dir, name.as_bytes()),
        how: createhow3::GUARDED(sattr3::default()),
    };
    client.call_bytes(PROGRAM, VERSION, NFS_PROGRAM::NFSPROC3_CREATE as u32, &args)
}

/// A client from another address of this host.
fn client_from(host: [u8; 4], address: SocketAddr) -> Client {
    let mut client = Client::connect_alone(address);
    client.stream = connect_from((host, 0).into(), address);
    client
}

/// Reads and discards all replies.
fn replies(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
}

/// 40,000 REMOVEs from a host outside of every export evicted the whole cache within half a second, and a retransmitted CREATE
/// whose reply was lost was answered EXIST.
#[test]
fn calls_of_hosts_that_no_export_admits_evict_no_cached_reply() {
    let export = export().with_access(Access {
        clients: vec!["127.0.1.0/24".parse().unwrap()],
        ..access()
    });
    let site = Site::with(file_system(Kind::Model), vec![export]);
    let mut good = client_from([127, 0, 1, 1], site.address);
    let root = good.mnt("/").unwrap();
    let create = guarded_create(&mut good, &root, "f");
    good.send(&create);
    let first = good.reply().unwrap();

    // The handle is genuine: it was overheard.
    const BOGUS: usize = 40_000;
    let mut bad = client_from([127, 0, 2, 1], site.address);
    let reader = bad.stream.try_clone().unwrap();
    let mut calls = Vec::new();
    for _ in 0..BOGUS {
        calls.extend(record(&remove_call(&mut bad, &root, "f")));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| replies(reader));
        // A few of them are answered, then the connection is closed.
        let _ = bad.stream.write_all(&calls);
        let _ = bad.stream.shutdown(std::net::Shutdown::Write);
    });
    assert!((1..1000).contains(&site.counter("refused")));

    good.reconnect(site.address);
    good.send(&create);
    assert_eq!(good.reply().unwrap(), first, "answered from memory");
    assert_eq!(site.counter("duplicates_answered"), 1);
}

/// A call that was retransmitted long after its reply was answered OK, although its file had been removed since.
#[test]
fn a_call_that_is_retransmitted_too_late_is_executed() {
    for (remembered, there) in [(Duration::from_secs(120), false), (Duration::ZERO, true)] {
        let mut options = options();
        options.replies_remembered = remembered;
        let site = Site::opt(file_system(Kind::Model), vec![export()], &options);
        let (mut client, root) = site.mounted();
        let create = guarded_create(&mut client, &root, "f");
        client.send(&create);
        client.reply().unwrap();
        assert!(client.remove(&root, "f").is_ok());
        client.send(&create);
        let (_, result) = Client::decode::<CREATE3res>(&client.reply().unwrap());
        assert!(matches!(result.unwrap(), Nfs3Result::Ok(_)));
        assert_eq!(client.lookup(&root, "f").is_ok(), there, "{remembered:?}");
    }
}

/// A maximum was called a counter, families had no help, and free space, the log's size and failures were not shown.
#[test]
fn every_family_of_metrics_has_help_and_a_type_that_is_right() {
    let site = Site::new(Kind::Real);
    let (mut client, root) = site.mounted();
    client.create(&root, "f");
    let text = site.server.counters().prometheus();
    let mut families: Vec<(&str, &str)> = Vec::new();
    let mut described = "";
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(help.len() > 4, "{line}");
                described = name;
            }
            ["#", "TYPE", name, kind] => {
                assert_eq!(name, described);
                assert!(!families.iter().any(|(known, _)| *known == name), "{line}");
                families.push((name, kind));
            }
            _ => {
                let (name, kind) = *families.last().unwrap();
                assert!(line.starts_with(name), "{line}: under {name}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            }
        }
    }
    for (name, kind) in [
        ("steadfast_volume_largest_batch", "gauge"),
        ("steadfast_volume_log_capacity_blocks", "gauge"),
        ("steadfast_volume_free_bytes", "gauge"),
        ("steadfast_volume_failed", "gauge"),
        ("steadfast_volume_commits_total", "counter"),
        ("steadfast_nfs_request_seconds", "histogram"),
    ] {
        assert!(families.contains(&(name, kind)), "{name}\n{text}");
    }
    let up = "steadfast_nfs_export_up{export=\"/\",volume=\"test\"} 1\n";
    assert!(text.contains(up), "{text}");
    // A failed volume is not reported as up.
    site.fs.shutdown(steadfast_vfs::Shutdown::Nothing).unwrap();
    let text = site.server.counters().prometheus();
    assert!(text.contains(&up.replace(" 1", " 0")), "{text}");
}

fn named(path: &str, volume: usize) -> Export {
    Export {
        path: path.to_owned(),
        volume,
        ..export()
    }
}

/// Exports could be changed only by a restart, which every client noticed.
#[test]
fn exports_change_while_clients_of_others_write() {
    let (one, two) = (file_system(Kind::Real), file_system(Kind::Real));
    let volumes = vec![
        ExportedVolume::new(one, "one"),
        ExportedVolume::new(two, "two"),
    ];
    let exports = vec![named("/one", 0), named("/two", 1)];
    let server = steadfast_nfs::Server::start(volumes, exports, &options()).unwrap();
    let (address, reloader) = (server.addresses()[0], server.reloader());
    let mut first = Client::connect(address);
    let mut second = Client::connect(address);
    let (a, b) = (first.mnt("/one").unwrap(), second.mnt("/two").unwrap());
    second.create(&b, "f");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) || count == 0 {
                let file = first.create(&a, &format!("f{count}"));
                let written = first.write_res(&file, 0, b"x", stable_how::FILE_SYNC);
                assert!(matches!(written, Nfs3Result::Ok(_)));
                count += 1;
            }
            count
        });
        let kept = |name: &str| Source::Kept(name.to_owned());
        for round in 0..20 {
            // Removes the second export, adds a third one, and restores the first state.
            let three = ExportedVolume::new(file_system(Kind::Real), "three");
            let sources = vec![kept("one"), Source::New(three)];
            let exports = vec![named("/one", 0), named("/three", 1)];
            let mut reloaded = reloader.reload(sources, exports).unwrap();
            let gone = reloaded.retired.pop().unwrap();
            assert_eq!(gone.name(), "two");
            gone.wait();
            assert_eq!(second.getattr(&b).unwrap_err(), nfsstat3::NFS3ERR_STALE);
            assert!(second.mnt("/two").is_err() && second.mnt("/three").is_ok());
            // A reload that fails changes nothing.
            let wrong = reloader.reload(vec![kept("one")], vec![named("one", 0)]);
            assert!(wrong.is_err());
            let wrong = reloader.reload(vec![kept("two")], vec![named("/two", 0)]);
            assert!(wrong.is_err());
            assert!(second.mnt("/three").is_ok());
            let two = ExportedVolume::new(file_system(Kind::Real), "two");
            let sources = vec![kept("one"), Source::New(two)];
            let exports = vec![named("/one", 0), named("/two", 1)];
            let reloaded = reloader.reload(sources, exports).unwrap();
            assert_eq!(reloaded.retired.len(), 1, "{round}");
        }
        done.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
    assert!(first.lookup(&a, "f0").is_ok(), "on the same connection");
}

/// A reload also restricts handles that clients hold already.
#[test]
fn changed_rights_hold_for_handles_given_before() {
    let site = Site::new(Kind::Real);
    let (mut client, root) = site.mounted();
    let file = client.create(&root, "f");
    let reload = |access: Access| {
        let kept = vec![Source::Kept("test".to_owned())];
        let exports = vec![export().with_access(access)];
        let reloaded = site.server.reloader().reload(kept, exports).unwrap();
        assert!(reloaded.retired.is_empty());
    };
    let mut write = || match client.write_res(&file, 0, b"x", stable_how::FILE_SYNC) {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => status,
    };
    assert_eq!(write(), nfsstat3::NFS3_OK);
    reload(Access {
        read_only: true,
        ..access()
    });
    assert_eq!(write(), nfsstat3::NFS3ERR_ROFS);
    reload(Access {
        clients: vec!["192.0.2.0/24".parse().unwrap()],
        ..access()
    });
    assert_eq!(write(), nfsstat3::NFS3ERR_ACCES);
    reload(access());
    assert_eq!(write(), nfsstat3::NFS3_OK);
}

/// A client cannot leave an exported directory by `..`, by a directory that is moved away, or by a handle of another export.
#[test]
fn a_subtree_export_confines_its_clients() {
    for kind in [Kind::Model, Kind::Real] {
        let whole = named("/all", 0);
        let home = |directory: &str| Export {
            directory: directory.to_owned(),
            ..named("/home", 0)
        };
        let site = Site::with(file_system(kind), vec![whole.clone()]);
        let reload = |directory: &str| {
            let kept = vec![Source::Kept("test".to_owned())];
            let exports = vec![whole.clone(), home(directory)];
            site.server.reloader().reload(kept, exports)
        };
        let mut c = site.client();
        let all = c.mnt("/all").unwrap();
        let outer = c.mkdir(&all, "outer").unwrap();
        let outside = c.mkdir(&all, "outside").unwrap();
        c.create(&outside, "secret");
        c.mkdir(&outer, "users").unwrap();
        assert!(reload("/outer/none").is_err());
        assert!(reload("/outside/secret").is_err());
        assert!(reload("/outer/../outside").is_err());
        reload("/outer/users").unwrap();

        let top = c.mnt("/home").unwrap();
        let number = |c: &mut Client, handle: &nfs_fh3| c.getattr(handle).unwrap().fileid;
        let top_number = number(&mut c, &top);
        assert_eq!(c.lookup(&top, ".."), Ok(top.clone()));
        assert_eq!(c.lookup(&top, "."), Ok(top.clone()));
        let zero = cookieverf3([0; 8]);
        let listed = c.readdirplus(&top, 0, zero, (65536, 65536)).unwrap();
        assert_eq!(listed.reply.entries.0.len(), 2);
        for entry in &listed.reply.entries.0 {
            assert_eq!(entry.fileid, top_number, "{:?}", entry.name);
            let handle = entry.name_handle.clone().unwrap();
            assert_eq!(handle.data.as_ref(), top.data.as_ref());
        }
        assert!(c.mnt("/home/..").is_err() && c.mnt("/home/../outside").is_err());
        // Inside, everything works, and `..` leads up to the exported directory.
        let a = c.mkdir(&top, "a").unwrap();
        let b = c.mkdir(&a, "b").unwrap();
        let file = c.create(&b, "f");
        assert_eq!(c.lookup(&b, ".."), Ok(a.clone()));
        assert_eq!(c.lookup(&a, ".."), Ok(top.clone()));
        assert!(c.mnt("/home/a/b").unwrap() == b);
        // Forgeries: the number of this export in a handle of the other one; another inode in a handle of this one.
        let (mut forged, mut other) = (outside.data.to_vec(), a.data.to_vec());
        forged[4..8].copy_from_slice(&top.data[4..8]);
        other[8..24].copy_from_slice(&outside.data[8..24]);
        for forged in [forged, other] {
            let forged = nfs_fh3 {
                data: forged.into(),
            };
            assert_eq!(c.getattr(&forged).unwrap_err(), nfsstat3::NFS3ERR_BADHANDLE);
            assert_eq!(
                c.lookup(&forged, "secret"),
                Err(nfsstat3::NFS3ERR_BADHANDLE)
            );
        }
        // A permitted user moves the directory out: its handles are stale until it is moved back.
        let users = c.lookup(&outer, "users").unwrap();
        c.rename((&users, "a"), (&outside, "a")).unwrap();
        for dir in [&a, &b] {
            assert_eq!(c.lookup(dir, ".."), Err(nfsstat3::NFS3ERR_STALE));
            assert_eq!(c.getattr(dir).unwrap_err(), nfsstat3::NFS3ERR_STALE);
            assert!(c.mkdir(dir, "more").is_err());
        }
        assert!(c.getattr(&file).is_ok(), "as one that is open");
        assert!(c.rename((&a, "b"), (&top, "b")).is_err());
        c.rename((&outside, "a"), (&users, "a")).unwrap();
        assert_eq!(c.lookup(&b, ".."), Ok(a.clone()));
        // Another directory at the same path: earlier handles are invalid.
        reload("/outside").unwrap();
        let now = c.mnt("/home").unwrap();
        assert!(c.lookup(&now, "secret").is_ok());
        for handle in [&top, &a, &file] {
            assert_eq!(c.getattr(handle).unwrap_err(), nfsstat3::NFS3ERR_BADHANDLE);
        }
    }
}

/// An administrator could not find out which client did what.
#[test]
fn calls_and_mounts_are_logged_a_line_each_and_counted_by_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access");
    let mut options = options();
    options.access_log = Some(AccessLog::open(Target::File(path.clone())).unwrap());
    let only = export().with_access(Access {
        clients: vec!["127.0.1.0/24".parse().unwrap()],
        ..access()
    });
    let site = Site::opt(file_system(Kind::Real), vec![only], &options);
    let mut c = client_from([127, 0, 1, 1], site.address);
    let root = c.mnt("/").unwrap();
    c.is(7, 8, &[]);
    let create = guarded_create(&mut c, &root, "a \"name\"\n");
    for _ in 0..2 {
        c.send(&create);
        c.reply().unwrap();
    }
    let file = c.lookup(&root, "a \"name\"\n").unwrap();
    assert!(c.lookup(&root, "none").is_err());
    let data = [1; 1000];
    c.write_res(&file, 0, &data, stable_how::FILE_SYNC);
    c.read(&file, 0, 100).unwrap();
    // A host that no export admits is logged, but is not listed as a client.
    let mut bad = client_from([127, 0, 2, 1], site.address);
    assert!(bad.mnt("/").is_err());
    assert!(bad.getattr(&root).is_err());

    let clients = site.server.counters().clients();
    assert_eq!(clients.len(), 1, "{clients:?}");
    assert_eq!(clients[0].address.to_string(), "127.0.1.1");
    let get = |name: &str| {
        let mut counters = clients[0].counters.iter();
        counters.find(|(known, _)| known == name).unwrap().1
    };
    assert_eq!((get("connections_now"), get("mounts")), (1, 1));
    assert_eq!((get("calls"), get("errors")), (6, 1));
    assert_eq!((get("bytes_written"), get("bytes_read")), (1000, 100));

    drop((site, options));
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let has = |line: usize, parts: &[&str]| {
        for part in parts {
            assert!(lines[line].contains(part), "{part}: {}", lines[line]);
        }
    };
    assert_eq!(lines.len(), 9, "{text}");
    has(0, &["Z 127.0.1.1:", " MOUNT_MNT path=\"/\" ", " status=OK"]);
    let escaped = "name=\"a \\\"name\\\"\\n\"";
    has(
        1,
        &[
            " CREATE export=\"/\" handle=",
            escaped,
            " uid=7 gid=8 status=OK us=",
        ],
    );
    has(2, &[" CREATE ", " status=REPEATED"]);
    has(3, &[" LOOKUP ", " status=OK"]);
    has(4, &[" LOOKUP ", " name=\"none\" ", " status=NOENT"]);
    has(5, &[" WRITE ", " status=OK"]);
    has(6, &[" READ ", " status=OK"]);
    has(7, &["Z 127.0.2.1:", " MOUNT_MNT ", " status=ACCES"]);
    has(8, &["Z 127.0.2.1:", " GETATTR ", " status=ACCES"]);
}

/// A file system of somebody else: it has no extended attributes.
struct Foreign(Arc<dyn FileSystem>);

impl FileSystem for Foreign {
    steadfast_vfs::pass_through! { 0: all but getxattr, setxattr }

    fn getxattr(&self, _: &Caller, _: Ino, _: &[u8]) -> steadfast_vfs::Result<Vec<u8>> {
        Err(steadfast_vfs::Errno::OpNotSupp.into())
    }
    fn setxattr(
        &self,
        _: &Caller,
        _: Ino,
        _: &[u8],
        _: &[u8],
        _: XattrMode,
    ) -> steadfast_vfs::Result<()> {
        Err(steadfast_vfs::Errno::OpNotSupp.into())
    }
}

fn keyed(fs: Arc<dyn FileSystem>, key: Option<HandleKey>, read_only: bool) -> Site {
    let mut options = options();
    options.handle_key = key;
    let mut served = ExportedVolume::new(fs, "test");
    served.read_only = read_only;
    Site::serving(served, vec![export()], &options)
}

#[test]
fn servers_that_share_a_key_file_know_each_others_handles_of_a_volume_that_holds_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let inner = file_system(Kind::Model);
    let foreign = || -> Arc<dyn FileSystem> { Arc::new(Foreign(inner.clone())) };
    // Both begin at once, with the process number of each other.
    let start = || keyed(foreign(), Some(HandleKey::from_file(&path).unwrap()), false);
    let [first, second] = std::thread::scope(|scope| {
        let servers = [scope.spawn(start), scope.spawn(start)];
        servers.map(|server| server.join().unwrap())
    });
    assert!(first.server.notes().is_empty() && second.server.notes().is_empty());
    let (mut c, root) = first.mounted();
    let file = c.create(&root, "file");
    let known = second.client().getattr(&file).unwrap();
    assert_eq!(known.fileid, c.getattr(&file).unwrap().fileid);

    // Without the key, a server knows its own handles only, and says so.
    let other = keyed(foreign(), None, false);
    assert!(other.server.notes()[0].contains("given a handle key"));
    assert_eq!(
        other.client().getattr(&file).unwrap_err(),
        nfsstat3::NFS3ERR_BADHANDLE
    );
    assert!(other.client().mnt("/").is_ok());
}

#[test]
fn a_volume_that_can_hold_a_key_keeps_the_one_that_its_handles_were_made_with() {
    let fs = file_system(Kind::Model);
    let key = HandleKey::random().unwrap();
    // Read-only first: nothing may be written to it.
    let site = keyed(fs.clone(), Some(key.clone()), true);
    let (_, root) = site.mounted();
    assert!(site.server.notes().is_empty());
    let _ = site.server.stop();
    let attribute = || fs.getxattr(&Caller::root(), fs.root(), b"trusted.steadfast.nfs");
    assert!(attribute().is_err());
    let _ = keyed(fs.clone(), Some(key), false).server.stop();
    let kept = attribute().unwrap();
    // Its own key counts from now on, with another one and without.
    for given in [None, Some(HandleKey::random().unwrap())] {
        let site = keyed(fs.clone(), given, false);
        assert!(site.client().getattr(&root).is_ok());
        assert_eq!(attribute().unwrap(), kept);
        let _ = site.server.stop();
    }
}
