//! Regression tests: one for each bug found in GoNFS (`gonfs_NN`), and for each hard corner of NFS
//! (`corner_NN`).
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use nfs3_types::rpc::accept_stat_data;
use nfs3_types::xdr_codec::{Opaque, Void};
use nfsstat3::*;
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use steadfast_fs::{Fs, MountOptions};
use steadfast_vfs::Caller;

use NFS_PROGRAM as P;
const UNSTABLE: stable_how = stable_how::UNSTABLE;
const FILE_SYNC: stable_how = stable_how::FILE_SYNC;

fn guarded() -> createhow3 {
    createhow3::GUARDED(mode(0o644))
}

on_both! {
    /// Its request buffers were returned to a pool while the log still pointed into them: the data of one client became
    /// the content of another file, for unstable and stable writes.
    fn gonfs_01_the_bytes_of_a_request_belong_to_it_alone(site: &Site) {
        corner_36(site);
    }

    /// It listed directories against its lock order: three clients in one directory hung the whole server. And
    /// RENAME of d/x to d locked d twice.
    fn gonfs_03_clients_in_one_directory_do_not_hang_the_server(site: &Site) {
        let (mut c, root) = site.mounted();
        let d = c.mkdir(&root, "d").unwrap();
        c.create(&d, "x");
        assert_eq!(c.rename((&d, "x"), (&root, "d")).err(), Some(NFS3ERR_NOTEMPTY));
        c.mkdir(&d, "y").unwrap();
        assert_eq!(c.rename((&d, "y"), (&root, "d")).err(), Some(NFS3ERR_NOTEMPTY));
        std::thread::scope(|scope| {
            for n in 0..6_u32 {
                let (mut c, d, root) = (site.client(), d.clone(), root.clone());
                scope.spawn(move || {
                    for i in 0..30 {
                        let name = format!("{n}-{i}");
                        c.create(&d, &name);
                        c.readdirplus(&d, 0, cookieverf3::default(), (8192, 65536)).unwrap();
                        c.names(&root, 8192);
                        c.rename((&d, &name), (&root, &name)).unwrap();
                        c.lookup(&root, &name).unwrap();
                        c.remove(&root, &name).unwrap();
                    }
                });
            }
        });
    }

    /// A single request killed its process: a short or invalid handle, REMOVE of ".", a WRITE whose count differs from the
    /// length of its data, a READDIR cookie of another directory, SETATTR to 4 TiB followed by a READ.
    fn gonfs_04_no_single_request_ends_the_server(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        for wild in [&b""[..], b"x", &[0; 16], &[0xff; 40], &[0xff; 64]] {
            let handle = nfs_fh3 { data: Opaque::owned(wild.to_vec()) };
            assert_eq!(c.getattr(&handle).err(), Some(NFS3ERR_BADHANDLE));
        }
        assert_eq!(c.remove(&root, "."), Err(NFS3ERR_INVAL));
        for (count, data) in [(5, &b"four"[..]), (3, b"four"), (u32::MAX, b"four"), (0, b"four")] {
            let args = WRITE3args { file: f.clone(), offset: 0, count, stable: FILE_SYNC, data: Opaque::borrowed(data) };
            let res: WRITE3res = c.nfs(P::NFSPROC3_WRITE, &args);
            assert_eq!(status_of(res).err(), Some(NFS3ERR_INVAL), "{count}");
        }
        let verifier = c.readdir(&root, 0, cookieverf3::default(), 4096).unwrap().cookieverf;
        for cookie in [3, 4711, u64::MAX / 2, u64::MAX] {
            c.readdir(&root, cookie, verifier, 4096).unwrap();
        }
        status_of(c.setattr(&f, size(4 << 40), None)).unwrap();
        assert_eq!(c.read(&f, (4 << 40) - 2, 8), Ok((vec![0, 0], true)));
        status_of(c.setattr(&f, size(0), None)).unwrap();
        c.null();
    }

    /// A file that was truncated and extended again showed its old contents.
    fn gonfs_05_truncation_leaves_nothing_behind(site: &Site) {
        let (mut c, root) = site.mounted();
        for len in [10_usize, 4096, 5000, 12_288] {
            let f = c.create(&root, &format!("f{len}"));
            c.write(&f, 0, &vec![b'x'; 16_384], FILE_SYNC).unwrap();
            status_of(c.setattr(&f, size(len as u64), None)).unwrap();
            status_of(c.setattr(&f, size(16_384), None)).unwrap();
            let (data, eof) = c.read(&f, 0, 32_768).unwrap();
            assert!(eof && data.len() == 16_384);
            assert!(data[..len].iter().all(|b| *b == b'x') && data[len..].iter().all(|b| *b == 0), "{len}");
        }
    }

    /// REMOVE removed a non-empty directory, RMDIR leaked the removed directory, RENAME into the own subtree made a cycle,
    /// and did not update `..`.
    fn gonfs_07_the_tree_stays_a_tree(site: &Site) {
        let (mut c, root) = site.mounted();
        let inodes = |site: &Site| site.fs.statfs().unwrap().inodes - site.fs.statfs().unwrap().inodes_free;
        let a = c.mkdir(&root, "a").unwrap();
        let b = c.mkdir(&a, "b").unwrap();
        c.create(&b, "f");
        assert_eq!(c.remove(&root, "a"), Err(NFS3ERR_ISDIR));
        assert_eq!(c.rmdir(&root, "a"), Err(NFS3ERR_NOTEMPTY));
        assert_eq!(c.rename((&root, "a"), (&b, "a")).err(), Some(NFS3ERR_INVAL));
        assert_eq!(c.rename((&root, "a"), (&a, "a")).err(), Some(NFS3ERR_INVAL));
        c.rename((&a, "b"), (&root, "b")).unwrap();
        assert_eq!(c.lookup(&b, ".."), Ok(root.clone()));
        assert_eq!(c.getattr(&a).unwrap().nlink, 2);
        c.rmdir(&root, "a").unwrap();
        let used = inodes(site);
        for _ in 0..50 {
            c.mkdir(&root, "again").unwrap();
            c.rmdir(&root, "again").unwrap();
        }
        assert!(inodes(site) <= used + 1, "nothing leaks");
    }

    /// CREATE UNCHECKED of an existing file gave EXIST, COMMIT beyond the end INVAL, a WRITE of the advertised wtmax
    /// INVAL; a READ up to the end did not set eof; empty names and names with '/' were accepted.
    fn gonfs_10_details_of_the_protocol_are_kept(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        assert_eq!(c.create_how(&root, "f", createhow3::UNCHECKED(mode(0o644))).unwrap(), f);
        c.commit(&f, 1 << 40, 17).unwrap();
        let info: FSINFO3res = c.nfs(P::NFSPROC3_FSINFO, &root);
        let data = vec![7; info.unwrap().wtmax as usize];
        assert_eq!(c.write(&f, 0, &data, UNSTABLE).unwrap().count as usize, data.len());
        assert!(c.read(&f, data.len() as u64 - 10, 10).unwrap().1, "eof");
        for name in ["", "/", "a/b"] {
            assert_eq!(c.create_how(&root, name, guarded()), Err(NFS3ERR_INVAL));
            assert_eq!(c.mkdir(&root, name), Err(NFS3ERR_INVAL));
            assert_eq!(c.symlink(&root, name, b"x"), Err(NFS3ERR_INVAL));
            assert_eq!(c.link(&f, &root, name).err(), Some(NFS3ERR_INVAL));
            assert_eq!(c.rename((&root, "f"), (&root, name)).err(), Some(NFS3ERR_INVAL));
        }
    }

    /// A record in more than one fragment hung the connection.
    fn gonfs_11_records_in_fragments_are_assembled(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        let data: Vec<u8> = (0..200_000_u32).map(|i| i as u8).collect();
        let args = WRITE3args {
            file: f.clone(), offset: 0, count: data.len() as u32, stable: UNSTABLE, data: Opaque::borrowed(&data),
        };
        for piece in [3, 100, 4096, 70_000, 150_000] {
            let call = c.call_bytes(PROGRAM, VERSION, 7, &args);
            let last = call.len().div_ceil(piece) - 1;
            let mut stream = Vec::new();
            for (i, bytes) in call.chunks(piece).enumerate() {
                let mark = bytes.len() as u32 | u32::from(i == last) << 31;
                stream.extend_from_slice(&mark.to_be_bytes());
                stream.extend_from_slice(bytes);
                if i % 7 == 0 {
                    stream.extend_from_slice(&0_u32.to_be_bytes());
                }
            }
            // The empty fragment after the last one is part of the next record, which follows.
            c.stream.write_all(&stream).unwrap();
            let (_, res) = Client::decode::<WRITE3res>(&c.reply().unwrap());
            assert_eq!(res.unwrap().unwrap().count as usize, data.len());
        }
        assert!(c.read(&f, 0, 1 << 20).unwrap().0 == data);
    }

    /// Modes, owners, times and the guard were ignored, and ACCESS granted everything.
    fn gonfs_12_attributes_have_an_effect(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create_how(&root, "f", createhow3::GUARDED(mode(0o600))).unwrap();
        let attr = c.getattr(&f).unwrap();
        assert_eq!((attr.mode, attr.uid), (0o600, 0));
        assert!(attr.mtime.seconds > 1_000_000_000);
        let guard = nfstime3 { seconds: attr.ctime.seconds, nseconds: attr.ctime.nseconds ^ 1 };
        assert_eq!(status_of(c.setattr(&f, mode(0), Some(guard))).err(), Some(NFS3ERR_NOT_SYNC));
        c.is(5, 5, &[]);
        assert_eq!(c.access(&f, 0x3f), Ok(0));
        assert_eq!(c.read(&f, 0, 1), Err(NFS3ERR_ACCES));
        assert_eq!(status_of(c.setattr(&f, mode(0o777), None)).err(), Some(NFS3ERR_PERM));
    }

    /// Many clients write patterns of their own through buffers that are reused at once, stable and unstable, and read
    /// them back.
    fn corner_36_request_bytes_are_owned(site: &Site) {
        corner_36(site);
    }

    fn corner_37_commit_takes_any_range_and_the_verifier_stays(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        let wrote = c.write(&f, 0, b"abc", UNSTABLE).unwrap();
        assert_eq!(wrote.committed, UNSTABLE);
        for (offset, count) in [(0, 0), (1, 1), (1000, 1000), (u64::MAX, u32::MAX)] {
            let done = c.commit(&f, offset, count).unwrap();
            assert_eq!(done.verf, wrote.verf);
            assert!(done.file_wcc.before.is_some() && done.file_wcc.after.is_some());
        }
        assert_ne!(wrote.verf.0, [0; 8]);
        assert_eq!(c.write(&f, 0, b"abc", FILE_SYNC).unwrap().verf, wrote.verf);
        c.remove(&root, "f").unwrap();
        assert_eq!(c.commit(&f, 0, 0).err(), Some(NFS3ERR_STALE));
    }

    fn corner_38_forged_and_stale_handles_and_wild_lengths(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        for bit in (0..f.data.len() * 8).step_by(3) {
            let mut forged = f.data.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            let forged = nfs_fh3 { data: Opaque::owned(forged) };
            let status = c.getattr(&forged).err();
            // A handle of an unknown export cannot be distinguished from one of a removed export.
            let expected = if (32..64).contains(&bit) { NFS3ERR_STALE } else { NFS3ERR_BADHANDLE };
            assert_eq!(status, Some(expected), "{bit}");
        }
        assert!(site.counter("forged_handles") > 50);
        // The inode number is reused, the generation is not.
        let ino = c.getattr(&f).unwrap().fileid;
        c.remove(&root, "f").unwrap();
        for i in 0..40 {
            let g = c.create(&root, &format!("g{i}"));
            if c.getattr(&g).unwrap().fileid == ino {
                assert_eq!(c.getattr(&f).err(), Some(NFS3ERR_STALE));
                assert_eq!(c.write(&f, 0, b"x", FILE_SYNC).err(), Some(NFS3ERR_STALE));
                assert_eq!(c.read(&f, 0, 1).err(), Some(NFS3ERR_STALE));
                break;
            }
        }
        assert_eq!(c.getattr(&f).err(), Some(NFS3ERR_STALE));
        // Lengths beyond the message are garbage arguments; lengths beyond all limits close the connection.
        let args: Vec<u8> = [pack(&root), 0xffff_fff0_u32.to_be_bytes().to_vec()].concat();
        let call = c.call_bytes(PROGRAM, VERSION, 3, &Void);
        c.send(&[call, args].concat());
        let (_, res) = Client::decode::<LOOKUP3res>(&c.reply().unwrap());
        assert!(matches!(res, Err(Refused::Accepted(accept_stat_data::GARBAGE_ARGS))));
        c.stream.write_all(&[0x7f, 0xff, 0xff, 0xff]).unwrap();
        assert!(matches!(c.reply(), Err(Refused::Closed(_))));
    }

    fn corner_39_a_retransmitted_call_is_answered_and_not_executed_again(site: &Site) {
        let mut c = Client::connect_alone(site.address);
        let root = c.mnt("/").unwrap();
        let d = c.mkdir(&root, "d").unwrap();
        c.create(&root, "f");
        let f = c.lookup(&root, "f").unwrap();
        let calls: Vec<(u32, Vec<u8>)> = vec![
            (8, pack(&CREATE3args { where_: entry(&d, b"c"), how: guarded() })),
            (9, pack(&MKDIR3args { where_: entry(&d, b"m"), attributes: mode(0o755) })),
            (15, pack(&LINK3args { file: f.clone(), link: entry(&d, b"l") })),
            (14, pack(&RENAME3args { from: entry(&d, b"l"), to: entry(&d, b"r") })),
            (12, pack(&REMOVE3args { object: entry(&d, b"r") })),
            (13, pack(&RMDIR3args { object: entry(&d, b"m") })),
        ];
        for (procedure, args) in calls {
            let call = [c.call_bytes(PROGRAM, VERSION, procedure, &Void), args.clone()].concat();
            c.send(&call);
            let first = c.reply().unwrap();
            assert_eq!(&first[24..28], [0; 4], "procedure {procedure} succeeds");
            // Over the same connection, and over a new one from the same port.
            c.send(&call);
            assert_eq!(c.reply().unwrap(), first, "procedure {procedure} again");
            c.reconnect(site.address);
            c.send(&call);
            assert_eq!(c.reply().unwrap(), first, "procedure {procedure} over a new connection");
            // From another port the call is another program's, which must not take the change for its own.
            let mut other = site.client();
            other.send(&call);
            assert_ne!(other.reply().unwrap()[24..28], [0; 4]);
            // Another call with the same arguments is another call.
            c.xid += 1000;
            let call = [c.call_bytes(PROGRAM, VERSION, procedure, &Void), args].concat();
            c.send(&call);
            assert_ne!(c.reply().unwrap()[24..28], [0; 4]);
        }
        assert_eq!(site.counter("duplicates_answered"), 12);
    }

    /// Opposite lock orders: RENAME between two directories both ways, d/x to d, links and listings.
    fn corner_40_directories_in_opposite_orders_do_not_wait_for_each_other(site: &Site) {
        let (mut c, root) = site.mounted();
        let dirs: Vec<_> = (0..4).map(|i| c.mkdir(&root, &format!("d{i}")).unwrap()).collect();
        for (i, d) in dirs.iter().enumerate() {
            c.create(d, &format!("own{i}"));
        }
        std::thread::scope(|scope| {
            for n in 0..6_usize {
                let (mut c, dirs) = (site.client(), dirs.clone());
                scope.spawn(move || {
                    let name = format!("x{n}");
                    let f = c.create(&dirs[n % 4], &name);
                    let mut at = n % 4;
                    for i in 0..40 {
                        let to = (at + 1 + (n + i) % 3) % 4;
                        c.rename((&dirs[at], &name), (&dirs[to], &name)).unwrap();
                        c.link(&f, &dirs[at], &name).unwrap();
                        c.remove(&dirs[at], &name).unwrap();
                        at = to;
                    }
                    assert_eq!(c.getattr(&f).unwrap().nlink, 1);
                });
            }
        });
    }
}

fn corner_36(site: &Site) {
    let (_, root) = site.mounted();
    std::thread::scope(|scope| {
        for n in 0..6_u8 {
            let (mut c, root) = (site.client(), root.clone());
            scope.spawn(move || {
                for i in 0..20_usize {
                    let f = c.create(&root, &format!("{n}-{i}"));
                    let len = 100 + i * 977;
                    let byte = |k: usize| n.wrapping_mul(37) ^ i as u8 ^ k as u8;
                    let data: Vec<u8> = (0..len).map(byte).collect();
                    let stable = if i % 2 == 0 { UNSTABLE } else { FILE_SYNC };
                    c.write(&f, 0, &data, stable).unwrap();
                    if i % 4 == 0 {
                        c.commit(&f, 0, 0).unwrap();
                    }
                }
                for i in 0..20_usize {
                    let f = c.lookup(&root, &format!("{n}-{i}")).unwrap();
                    let len = 100 + i * 977;
                    let (data, _) = c.read(&f, 0, 1 << 20).unwrap();
                    assert_eq!(data.len(), len);
                    assert!(
                        data.iter()
                            .enumerate()
                            .all(|(k, b)| *b == n.wrapping_mul(37) ^ i as u8 ^ k as u8)
                    );
                }
            });
        }
    });
}

/// A file system that counts its syncs, and fails them on demand.
struct Watched {
    inner: Arc<dyn FileSystem>,
    fail: AtomicBool,
    hold: AtomicBool,
    /// Inodes of the requested syncs.
    synced: Mutex<Vec<Ino>>,
    /// Number of group syncs.
    batches: AtomicUsize,
}

use steadfast_vfs::{FileSystem, Ino, NewNode, Result, Wanted};

impl FileSystem for Watched {
    steadfast_vfs::pass_through! { inner: all but unlink, fsync, fsync_together }
    fn unlink(&self, c: &Caller, p: Ino, n: &[u8]) -> Result<()> {
        assert_ne!(n, b"panic", "as told to");
        self.inner.unlink(c, p, n)
    }
    fn fsync(&self, c: &Caller, i: Ino, data_only: bool) -> Result<()> {
        self.synced.lock().unwrap().push(i);
        while self.hold.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fail.load(SeqCst) {
            return Err(steadfast_vfs::Errno::Io.into());
        }
        self.inner.fsync(c, i, data_only)
    }
    fn fsync_together(&self, wanted: &[Wanted]) -> Result<()> {
        self.batches.fetch_add(1, SeqCst);
        wanted.iter().try_for_each(|one| {
            let c = Caller {
                stream: one.stream,
                ..Caller::root()
            };
            self.fsync(&c, one.ino, one.data_only)
        })
    }
}

fn watched() -> (Arc<Watched>, Site) {
    let fs = Arc::new(Watched {
        inner: file_system(Kind::Real),
        fail: AtomicBool::new(false),
        hold: AtomicBool::new(false),
        synced: Mutex::default(),
        batches: AtomicUsize::new(0),
    });
    let site = Site::with(fs.clone(), vec![export()]);
    (fs, site)
}

/// Its write verifier was always zero: clients never learned that unstable data was lost.
#[test]
fn gonfs_06_the_write_verifier_tells_of_restarts_and_of_failed_syncs() {
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    let f = c.create(&root, "f");
    let first = c.write(&f, 0, b"abc", UNSTABLE).unwrap().verf;
    assert_ne!(first.0, [0; 8]);
    // A sync of another file fails: uncommitted data of this one may be lost, too.
    let g = c.create(&root, "g");
    c.write(&g, 0, b"abc", UNSTABLE).unwrap();
    fs.fail.store(true, SeqCst);
    assert_eq!(c.commit(&g, 0, 0).err(), Some(NFS3ERR_IO));
    assert_eq!(c.write(&g, 0, b"abc", FILE_SYNC).err(), Some(NFS3ERR_IO));
    fs.fail.store(false, SeqCst);
    let second = c.commit(&f, 0, 0).unwrap().verf;
    assert_ne!(second, first, "the client sends it again");
    assert_eq!(c.write(&f, 0, b"abc", UNSTABLE).unwrap().verf, second);
    // Nothing is lost, nothing changes.
    assert_eq!(c.commit(&g, 0, 0).unwrap().verf, second);
    drop(c);
    let _ = site.server.stop();
    let site = Site::with(fs, vec![export()]);
    let (mut c, root) = site.mounted();
    let f = c.lookup(&root, "f").unwrap();
    let third = c.commit(&f, 0, 0).unwrap().verf;
    assert!(third != first && third != second);
}

/// A change whose sync fails is not answered with success.
#[test]
fn a_change_whose_sync_failed_is_an_error() {
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    let f = c.create(&root, "f");
    c.mkdir(&root, "d").unwrap();
    fs.fail.store(true, SeqCst);
    let io = Some(NFS3ERR_IO);
    assert_eq!(c.create_how(&root, "x", guarded()).err(), io);
    assert_eq!(
        c.create_how(&root, "f", createhow3::UNCHECKED(mode(0)))
            .err(),
        io,
        "what is there may not last"
    );
    assert_eq!(
        c.create_how(&root, "e", createhow3::EXCLUSIVE(createverf3([1; 8])))
            .err(),
        io
    );
    assert_eq!(c.mkdir(&root, "y").err(), io);
    assert_eq!(c.symlink(&root, "z", b"t").err(), io);
    assert_eq!(c.mknod(&root, "p", mknoddata3::NF3FIFO(mode(0))).err(), io);
    assert_eq!(c.link(&f, &root, "g").err(), io);
    assert_eq!(c.rename((&root, "f"), (&root, "h")).err(), io);
    assert_eq!(status_of(c.setattr(&f, mode(0o600), None)).err(), io);
    assert_eq!(c.remove(&root, "h").err(), io);
    assert_eq!(c.rmdir(&root, "d").err(), io);
    assert_eq!(c.write(&f, 0, b"x", stable_how::DATA_SYNC).err(), io);
}

/// Every call waited for a flush of its own, in a thread of its own: ten clients were no faster than one.
#[test]
fn calls_of_many_clients_share_a_sync_and_none_is_answered_before_it() {
    const CLIENTS: usize = 10;
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    fs.hold.store(true, SeqCst);
    let before = fs.batches.load(SeqCst);
    std::thread::scope(|scope| {
        let make = |n: usize| {
            let (root, site) = (&root, &site);
            move || site.mounted().0.mkdir(root, &format!("d{n}")).unwrap()
        };
        let makers: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(make(n))).collect();
        // All changes are done and wait for the sync: the server answers others meanwhile.
        for n in 0..CLIENTS {
            while c.lookup(&root, &format!("d{n}")).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(makers.iter().all(|maker| !maker.is_finished()));
        fs.hold.store(false, SeqCst);
    });
    // One sync for the first call, one for those that gathered meanwhile; one more if a call was late.
    let batches = fs.batches.load(SeqCst) - before;
    assert!(batches <= 3, "{batches} syncs for {CLIENTS} calls");
}

/// If a call succeeds because an earlier call has made the file, the client relies on the file: it is synced, too.
#[test]
fn a_success_that_rests_on_an_earlier_call_waits_for_it() {
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    let verifier = || createhow3::EXCLUSIVE(createverf3([7; 8]));
    let f = c.create_how(&root, "f", verifier()).unwrap();
    let ino = c.getattr(&f).unwrap().fileid;
    for how in [
        verifier(),
        createhow3::UNCHECKED(mode(0o644)),
        createhow3::UNCHECKED(size(0)),
    ] {
        fs.synced.lock().unwrap().clear();
        assert_eq!(c.create_how(&root, "f", how).unwrap(), f);
        assert!(fs.synced.lock().unwrap().contains(&ino));
    }
}

/// The same call comes while the original is in progress: it is neither executed twice nor answered early, and
/// occupies no worker.
#[test]
fn corner_39_a_call_in_progress_is_not_executed_again() {
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    c.create(&root, "f");
    fs.hold.store(true, SeqCst);
    let call = c.call_bytes(
        PROGRAM,
        VERSION,
        12,
        &REMOVE3args {
            object: entry(&root, b"f"),
        },
    );
    for _ in 0..3 {
        c.send(&call);
    }
    while site.counter("duplicates_joined") < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    site.client().null();
    fs.hold.store(false, SeqCst);
    let replies: Vec<_> = (0..3).map(|_| c.reply().unwrap()).collect();
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    assert!(
        Client::decode::<REMOVE3res>(&replies[0])
            .1
            .is_ok_and(|r| status_of(r).is_ok())
    );
}

/// An exclusive CREATE that is retransmitted after a restart finds its own file; and if a crash came between its two
/// operations, the client's next attempt completes it.
#[test]
fn corner_39_an_exclusive_create_survives_a_restart() {
    let fs = real();
    let site = Site::with(fs.clone(), vec![export()]);
    let (mut c, root) = site.mounted();
    let verifier = || createhow3::EXCLUSIVE(createverf3(*b"\xff\xee\xdd\xcc12\x80\x01"));
    let f = c.create_how(&root, "f", verifier()).unwrap();
    drop(c);
    let _ = site.server.stop();
    // The state after a crash in the middle: the file was made, without its verifier.
    let interrupted = NewNode {
        kind: steadfast_vfs::FileKind::Regular,
        perm: 0o4000,
        rdev: 0,
    };
    fs.mknod(&Caller::root(), fs.root(), b"cut", &interrupted)
        .unwrap();
    let site = Site::with(fs, vec![export()]);
    let (mut c, again) = site.mounted();
    assert_eq!(again, root, "handles outlive the server");
    assert_eq!(c.create_how(&root, "f", verifier()).unwrap(), f);
    let other = || createhow3::EXCLUSIVE(createverf3([3; 8]));
    assert_eq!(c.create_how(&root, "f", other()).err(), Some(NFS3ERR_EXIST));
    assert_eq!(
        c.is(5, 5, &[]).create_how(&root, "cut", verifier()).err(),
        Some(NFS3ERR_EXIST),
        "not theirs"
    );
    let cut = c
        .is(0, 0, &[])
        .create_how(&root, "cut", verifier())
        .unwrap();
    assert_eq!(c.getattr(&cut).unwrap().mode, 0o600);
    assert_eq!(c.create_how(&root, "cut", verifier()).unwrap(), cut);
    assert_eq!(
        c.create_how(&root, "cut", other()).err(),
        Some(NFS3ERR_EXIST)
    );
    // After its first use it is an ordinary file.
    let set = sattr3 {
        mtime: set_mtime::SET_TO_SERVER_TIME,
        ..mode(0o644)
    };
    status_of(c.setattr(&cut, set, None)).unwrap();
    assert_eq!(
        c.create_how(&root, "cut", verifier()).err(),
        Some(NFS3ERR_EXIST)
    );
}

/// When space ran out, an aborted operation left freed pointers in a cache, and a block was allocated twice.
#[test]
fn gonfs_08_a_full_volume_refuses_and_stays_whole() {
    let device = Arc::new(steadfast_block::MemDevice::new(2048));
    format(&*device);
    let fs = Fs::mount(device.clone(), &MountOptions::default())
        .unwrap()
        .0;
    let site = Site::with(fs.clone(), vec![export()]);
    let (mut c, root) = site.mounted();
    let data = |n: usize| vec![n as u8 | 1; 64 << 10];
    let mut files = Vec::new();
    let full = (0..).find_map(|n| {
        let f = match c.create_how(&root, &format!("f{n}"), guarded()) {
            Ok(f) => f,
            Err(status) => return Some(status),
        };
        match c.write(&f, 0, &data(n), UNSTABLE) {
            Ok(ok) if ok.count as usize == data(n).len() => files.push((n, f)),
            // There was space for a part.
            Ok(_) => {}
            Err(status) => return Some(status),
        }
        None
    });
    assert_eq!(full, Some(NFS3ERR_NOSPC));
    for (n, f) in &files {
        c.commit(f, 0, 0).unwrap();
        assert!(c.read(f, 0, 1 << 20).unwrap().0 == data(*n), "{n}");
    }
    for (n, _) in files.iter().filter(|(n, _)| n % 2 == 0) {
        c.remove(&root, &format!("f{n}")).unwrap();
    }
    let again = c.create(&root, "again");
    c.write(&again, 0, &data(200), FILE_SYNC).unwrap();
    for (n, f) in files.iter().filter(|(n, _)| n % 2 == 1) {
        assert!(c.read(f, 0, 1 << 20).unwrap().0 == data(*n), "{n}");
    }
    let _ = site.server.stop();
    fs.unmount().unwrap();
    drop(fs);
    let report = steadfast_fs::fsck(device, &steadfast_fs::FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), steadfast_fs::Outcome::Clean);
}

/// It sorted the wrong slice before taking locks. Here all locks are taken in one order: the test of `volume` requests them in
/// every order; this test runs LINK and RENAME with the same objects in all roles.
#[test]
fn gonfs_09_objects_in_any_order_are_locked_in_one() {
    let site = Site::new(Kind::Real);
    let (mut c, root) = site.mounted();
    let dirs: Vec<_> = (0..3)
        .map(|i| c.mkdir(&root, &format!("d{i}")).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for (a, b) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
            let (mut c, dirs) = (site.client(), &dirs);
            scope.spawn(move || {
                let name = format!("{a}{b}");
                let f = c.create(&dirs[a], &name);
                for _ in 0..40 {
                    c.rename((&dirs[a], &name), (&dirs[b], &name)).unwrap();
                    c.link(&f, &dirs[a], &name).unwrap();
                    c.rename((&dirs[b], &name), (&dirs[b], "tmp")).unwrap();
                    // Another thread may have renamed its file over this one, or removed it, meanwhile.
                    let gone = c.remove(&dirs[b], "tmp");
                    assert!(matches!(gone, Ok(()) | Err(NFS3ERR_NOENT)), "{gone:?}");
                }
            });
        }
    });
}

/// A panic in a call ends the server, which commits nothing. The call was answered, and other calls ran on the failing volume:
/// their clients got EIO for operations that the next server can do. Now no reply is sent after a panic: the connections are
/// closed, and clients send again.
#[test]
fn a_panic_ends_the_server_and_says_why() {
    let (fs, site) = watched();
    let (mut c, root) = site.mounted();
    fs.hold.store(true, SeqCst);
    let synced = fs.synced.lock().unwrap().len();
    let held = std::thread::spawn({
        let (mut other, root) = site.mounted();
        move || {
            let args = MKDIR3args {
                where_: entry(&root, b"d"),
                attributes: mode(0o755),
            };
            other.raw::<MKDIR3res>(PROGRAM, VERSION, 9, &args)
        }
    });
    while fs.synced.lock().unwrap().len() == synced {
        std::thread::sleep(Duration::from_millis(1));
    }
    let res = c.raw::<Void>(
        PROGRAM,
        VERSION,
        12,
        &REMOVE3args {
            object: entry(&root, b"panic"),
        },
    );
    assert!(matches!(res, Err(Refused::Closed(_))), "{res:?}");
    site.server.wait();
    // A call that was in progress at the panic: its result is not sent.
    fs.hold.store(false, SeqCst);
    let held = held.join().unwrap();
    assert!(matches!(held, Err(Refused::Closed(_))), "{held:?}");
    match site.server.stop() {
        steadfast_nfs::Ended::Failed(said) => assert!(said.contains("as told to"), "{said}"),
        other => panic!("{other:?}"),
    }
}
