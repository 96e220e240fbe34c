//! Every procedure, and every error that applies to it, on the model and on the real file system.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use nfs3_types::mount;
use nfs3_types::rpc::{accept_stat_data, auth_flavor, auth_stat, opaque_auth, rejected_reply};
use nfs3_types::xdr_codec::{List, Opaque, Void};
use nfsstat3::*;
use std::sync::Arc;
use steadfast_nfs::{Access, Anonymous, Export, ExportedVolume, Server, Squash, this_host};
use steadfast_vfs::acl::{self, Acl, Entry, Who};
use steadfast_vfs::{Caller, XattrMode};

const LONG_NAME: &str = concat!(
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
);

/// Returns the attributes after a change; checks that those before match.
fn after(wcc: &wcc_data, before: &fattr3) -> fattr3 {
    match (&wcc.before, &wcc.after) {
        (Nfs3Option::Some(b), Nfs3Option::Some(a)) => {
            assert_eq!(
                (b.size, b.mtime, b.ctime),
                (before.size, before.mtime, before.ctime)
            );
            a.clone()
        }
        other => panic!("{other:?}"),
    }
}

on_both! {
    fn attributes_are_those_of_the_file_system(site: &Site) {
        let (mut c, root) = site.mounted();
        c.null();
        let at_root = c.getattr(&root).unwrap();
        assert_eq!(at_root.type_, ftype3::NF3DIR);
        let made = c.create_res(&root, "f", createhow3::GUARDED(mode(0o640)));
        let made = status_of(made).unwrap();
        let dir = after(&made.dir_wcc, &at_root);
        assert_eq!(dir.fileid, at_root.fileid);
        let f = made.obj.unwrap();
        let attr = c.getattr(&f).unwrap();
        assert_eq!((attr.type_, attr.mode, attr.nlink, attr.size), (ftype3::NF3REG, 0o640, 1, 0));
        assert_eq!(attr.fileid, made.obj_attributes.unwrap().fileid);
        assert_eq!(attr.fsid, at_root.fsid);
        let fs_attr = site.fs.lookup(&Caller::root(), site.fs.root(), b"f").unwrap();
        assert_eq!(attr.fileid, fs_attr.ino);
        assert_eq!(i64::from(attr.ctime.seconds), fs_attr.ctime.secs);
    }

    fn setattr_sets_all_attributes_at_once_under_its_guard(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        let before = c.getattr(&f).unwrap();
        let time = |seconds| nfstime3 { seconds, nseconds: 7 };
        let set = sattr3 {
            mode: Nfs3Option::Some(0o4751),
            uid: Nfs3Option::Some(11),
            gid: Nfs3Option::Some(12),
            size: Nfs3Option::Some(100),
            atime: set_atime::SET_TO_CLIENT_TIME(time(1000)),
            mtime: set_mtime::SET_TO_CLIENT_TIME(time(2000)),
        };
        let wrong = nfstime3 { seconds: 1, nseconds: 1 };
        match c.setattr(&f, set.clone(), Some(wrong)) {
            Nfs3Result::Err((NFS3ERR_NOT_SYNC, fail)) => {
                assert!(fail.obj_wcc.after.is_some());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(c.getattr(&f).unwrap().size, 0, "the guard held it back");
        let done = status_of(c.setattr(&f, set, Some(before.ctime))).unwrap();
        let now = after(&done.obj_wcc, &before);
        assert_eq!((now.mode & 0o777, now.uid, now.gid, now.size), (0o751, 11, 12, 100));
        assert_eq!((now.atime, now.mtime), (time(1000), time(2000)));
        // The server's time; nothing at all; sizes of inodes without size; sizes beyond all limits.
        let set = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
        status_of(c.setattr(&f, set, None)).unwrap();
        assert!(c.getattr(&f).unwrap().mtime.seconds > 2000);
        status_of(c.setattr(&f, sattr3::default(), None)).unwrap();
        assert_eq!(status_of(c.setattr(&root, size(0), None)).err(), Some(NFS3ERR_ISDIR));
        assert_eq!(status_of(c.setattr(&f, size(u64::MAX), None)).err(), Some(NFS3ERR_FBIG));
        // Other users may not.
        c.is(99, 99, &[]);
        assert_eq!(status_of(c.setattr(&f, mode(0o777), None)).err(), Some(NFS3ERR_PERM));
        assert_eq!(status_of(c.setattr(&f, size(0), None)).err(), Some(NFS3ERR_ACCES));
    }

    // A time with two thousand million nanoseconds was answered as garbage arguments: Linux's client sends such a call again,
    // then fails with EIO.
    fn an_impossible_time_is_an_invalid_argument(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        let before = c.getattr(&f).unwrap();
        let never = nfstime3 { seconds: 1, nseconds: 1_000_000_000 };
        let atime = sattr3 { atime: set_atime::SET_TO_CLIENT_TIME(never), ..mode(0o600) };
        let mtime = sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(never), ..mode(0o600) };
        for set in [atime, mtime] {
            assert_eq!(status_of(c.setattr(&f, set.clone(), None)).err(), Some(NFS3ERR_INVAL));
            for how in [createhow3::UNCHECKED(set.clone()), createhow3::GUARDED(set.clone())] {
                assert_eq!(c.create_how(&root, "g", how).err(), Some(NFS3ERR_INVAL));
            }
            let args = MKDIR3args { where_: entry(&root, b"g"), attributes: set.clone() };
            let res: MKDIR3res = c.nfs(NFS_PROGRAM::NFSPROC3_MKDIR, &args);
            assert_eq!(status_of(res).err(), Some(NFS3ERR_INVAL));
            let symlink = symlinkdata3 { symlink_attributes: set.clone(), symlink_data: b"t"[..].into() };
            let args = SYMLINK3args { where_: entry(&root, b"g"), symlink };
            let res: SYMLINK3res = c.nfs(NFS_PROGRAM::NFSPROC3_SYMLINK, &args);
            assert_eq!(status_of(res).err(), Some(NFS3ERR_INVAL));
            assert_eq!(c.mknod(&root, "g", mknoddata3::NF3FIFO(set)).err(), Some(NFS3ERR_INVAL));
        }
        let now = c.getattr(&f).unwrap();
        assert_eq!((now.mode, now.ctime), (before.mode, before.ctime));
        assert_eq!(c.lookup(&root, "g"), Err(NFS3ERR_NOENT));
    }

    fn lookup_finds_names_and_dots(site: &Site) {
        let (mut c, root) = site.mounted();
        let d = c.mkdir(&root, "d").unwrap();
        let f = c.create(&d, "f");
        let found = c.lookup_bytes(&d, b"f").unwrap();
        assert_eq!(found.object, f);
        assert_eq!(found.obj_attributes.unwrap().fileid, c.getattr(&f).unwrap().fileid);
        assert_eq!(found.dir_attributes.unwrap().fileid, c.getattr(&d).unwrap().fileid);
        assert_eq!(c.lookup(&d, "."), Ok(d.clone()));
        assert_eq!(c.lookup(&d, ".."), Ok(root.clone()));
        assert_eq!(c.lookup(&root, ".."), Ok(root.clone()));
        assert_eq!(c.lookup(&d, "g"), Err(NFS3ERR_NOENT));
        assert_eq!(c.lookup(&f, "g"), Err(NFS3ERR_NOTDIR));
        assert_eq!(c.lookup(&d, &LONG_NAME[..255]), Err(NFS3ERR_NOENT));
        assert_eq!(c.lookup(&d, &LONG_NAME[..256]), Err(NFS3ERR_NAMETOOLONG));
        for name in ["", "a/b", "/", "a\0b"] {
            assert_eq!(c.lookup(&d, name), Err(NFS3ERR_INVAL), "{name:?}");
        }
        // Names are bytes.
        let args = CREATE3args {
            where_: entry(&d, b"\xff\xfe"),
            how: createhow3::GUARDED(mode(0o644)),
        };
        let made: CREATE3res = c.nfs(NFS_PROGRAM::NFSPROC3_CREATE, &args);
        assert_eq!(c.lookup_bytes(&d, b"\xff\xfe").unwrap().object, made.unwrap().obj.unwrap());
        status_of(c.setattr(&d, mode(0o700), None)).unwrap();
        c.is(5, 5, &[]);
        assert_eq!(c.lookup(&d, "f"), Err(NFS3ERR_ACCES));
    }

    fn an_access_list_decides_for_clients_too(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        c.write(&f, 0, b"secret", stable_how::FILE_SYNC).unwrap();
        let ino = site.fs.lookup(&Caller::root(), site.fs.root(), b"f").unwrap().ino;
        let entry = |(who, perm)| Entry { who, perm };
        let list = [(Who::Owner, 6), (Who::User(7), 4), (Who::OwningGroup, 0), (Who::Group(9), 6), (Who::Mask, 6), (Who::Other, 0)];
        let list = Acl::new(list.map(entry).to_vec()).unwrap().to_xattr();
        site.fs.setxattr(&Caller::root(), ino, acl::XATTR_ACCESS, &list, XattrMode::Any).unwrap();
        assert_eq!(c.getattr(&f).unwrap().mode, 0o660);
        let all = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND;
        assert_eq!(c.is(7, 1, &[]).access(&f, all), Ok(ACCESS3_READ));
        assert_eq!(c.is(8, 1, &[9]).access(&f, all), Ok(all));
        assert_eq!(c.is(8, 1, &[]).access(&f, all), Ok(0));
        assert!(c.is(7, 1, &[]).read(&f, 0, 6).is_ok());
        assert!(c.is(8, 1, &[]).read(&f, 0, 6).is_err());
        assert!(c.is(7, 1, &[]).write(&f, 0, b"x", stable_how::FILE_SYNC).is_err());
    }

    fn access_returns_the_permissions_of_the_caller(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create_how(&root, "f", createhow3::GUARDED(mode(0o754))).unwrap();
        let d = c.mkdir(&root, "d").unwrap();
        let all = ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE | ACCESS3_EXECUTE;
        let set = sattr3 { uid: Nfs3Option::Some(7), gid: Nfs3Option::Some(8), ..sattr3::default() };
        status_of(c.setattr(&f, set, None)).unwrap();
        let write = ACCESS3_MODIFY | ACCESS3_EXTEND;
        assert_eq!(c.is(7, 1, &[]).access(&f, all), Ok(ACCESS3_READ | write | ACCESS3_EXECUTE));
        assert_eq!(c.is(1, 8, &[]).access(&f, all), Ok(ACCESS3_READ | ACCESS3_EXECUTE));
        assert_eq!(c.is(1, 1, &[8]).access(&f, all), Ok(ACCESS3_READ | ACCESS3_EXECUTE));
        assert_eq!(c.is(1, 1, &[]).access(&f, all), Ok(ACCESS3_READ));
        assert_eq!(c.is(1, 1, &[]).access(&f, ACCESS3_EXECUTE), Ok(0), "only what was asked for");
        assert_eq!(c.is(1, 1, &[]).access(&d, all), Ok(ACCESS3_READ | ACCESS3_LOOKUP));
        assert_eq!(c.is(0, 0, &[]).access(&d, all), Ok(ACCESS3_READ | ACCESS3_LOOKUP | write | ACCESS3_DELETE));
    }

    fn links_and_special_files_are_made(site: &Site) {
        let (mut c, root) = site.mounted();
        let s = c.symlink(&root, "s", b"some/where").unwrap();
        assert_eq!(c.readlink(&s), Ok(b"some/where".to_vec()));
        assert_eq!(c.getattr(&s).unwrap().type_, ftype3::NF3LNK);
        let f = c.create(&root, "f");
        assert_eq!(c.readlink(&f), Err(NFS3ERR_INVAL));
        assert_eq!(c.symlink(&root, "s", b"x"), Err(NFS3ERR_EXIST));
        assert_eq!(c.symlink(&root, "t", b""), Err(NFS3ERR_INVAL));
        assert_eq!(c.symlink(&root, "t", &[b'x'; 4096]), Err(NFS3ERR_NAMETOOLONG));
        let long = c.symlink(&root, "t", &[b'x'; 4095]).unwrap();
        assert_eq!(c.readlink(&long).unwrap().len(), 4095);
        // LINK.
        let linked = c.link(&f, &root, "g").unwrap();
        let linked_attr = linked.file_attributes.unwrap();
        assert_eq!(linked_attr.nlink, 2);
        assert_eq!(c.lookup(&root, "g"), Ok(f.clone()));
        assert_eq!(c.link(&f, &root, "g").err(), Some(NFS3ERR_EXIST));
        assert_eq!(c.link(&root, &root, "h").err(), Some(NFS3ERR_ISDIR));
        assert_eq!(c.link(&f, &s, "h").err(), Some(NFS3ERR_NOTDIR));
        // MKNOD.
        let device = |attributes, a, b| devicedata3 {
            dev_attributes: attributes,
            spec: specdata3 { specdata1: a, specdata2: b },
        };
        let n = c.mknod(&root, "c", mknoddata3::NF3CHR(device(mode(0o600), 4, 300))).unwrap();
        let attr = c.getattr(&n).unwrap();
        assert_eq!((attr.type_, attr.rdev.specdata1, attr.rdev.specdata2), (ftype3::NF3CHR, 4, 300));
        let n = c.mknod(&root, "b", mknoddata3::NF3BLK(device(mode(0o600), 8, 1))).unwrap();
        assert_eq!(c.getattr(&n).unwrap().type_, ftype3::NF3BLK);
        let n = c.mknod(&root, "p", mknoddata3::NF3FIFO(mode(0o600))).unwrap();
        assert_eq!(c.getattr(&n).unwrap().type_, ftype3::NF3FIFO);
        let n = c.mknod(&root, "k", mknoddata3::NF3SOCK(mode(0o600))).unwrap();
        assert_eq!(c.getattr(&n).unwrap().type_, ftype3::NF3SOCK);
        assert_eq!(c.read(&n, 0, 10), Err(NFS3ERR_INVAL));
        assert_eq!(c.mknod(&root, "x", mknoddata3::NF3CHR(device(mode(0o600), 1 << 12, 0))), Err(NFS3ERR_INVAL));
        for kind in [1_u32, 2, 5] {
            let args = [pack(&entry(&root, b"x")), pack(&kind)].concat();
            let res: Nfs3Result<Void, wcc_data> =
                c.raw(PROGRAM, VERSION, 11, &Packed(args)).unwrap();
            assert!(matches!(res, Nfs3Result::Err((NFS3ERR_BADTYPE, _))));
        }
        c.is(5, 5, &[]);
        assert_eq!(
            c.mknod(&root, "x", mknoddata3::NF3CHR(device(mode(0o600), 1, 1))).err().map(|e| e == NFS3ERR_PERM || e == NFS3ERR_ACCES),
            Some(true)
        );
    }

    fn content_is_read_as_it_was_written(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create(&root, "f");
        let before = c.getattr(&f).unwrap();
        let res = status_of(c.write_res(&f, 5, b"hello", stable_how::UNSTABLE)).unwrap();
        assert_eq!((res.count, res.committed), (5, stable_how::UNSTABLE));
        assert_eq!(after(&res.file_wcc, &before).size, 10);
        for (stable, committed) in [
            (stable_how::DATA_SYNC, stable_how::DATA_SYNC),
            (stable_how::FILE_SYNC, stable_how::FILE_SYNC),
        ] {
            let res = c.write(&f, 0, b"abcde", stable).unwrap();
            assert_eq!(res.committed, committed);
        }
        assert_eq!(c.read(&f, 0, 100), Ok((b"abcdehello".to_vec(), true)));
        assert_eq!(c.read(&f, 0, 10), Ok((b"abcdehello".to_vec(), true)));
        assert_eq!(c.read(&f, 0, 9), Ok((b"abcdehell".to_vec(), false)));
        assert_eq!(c.read(&f, 10, 9), Ok((vec![], true)));
        assert_eq!(c.read(&f, 1 << 40, 9), Ok((vec![], true)));
        assert_eq!(c.read(&f, 3, 0), Ok((vec![], false)));
        assert_eq!(c.read(&f, u64::MAX, 9), Err(NFS3ERR_INVAL));
        assert_eq!(c.read(&root, 0, 9), Err(NFS3ERR_ISDIR));
        assert_eq!(c.write(&root, 0, b"x", stable_how::UNSTABLE).err(), Some(NFS3ERR_ISDIR));
        assert_eq!(c.write(&f, u64::MAX - 1, b"xyz", stable_how::UNSTABLE).err(), Some(NFS3ERR_FBIG));
        assert_eq!(c.write(&f, 0, b"", stable_how::FILE_SYNC).unwrap().count, 0);
        // The largest offered size, at odd offsets.
        let fsinfo: FSINFO3res = c.nfs(NFS_PROGRAM::NFSPROC3_FSINFO, &root);
        let fsinfo = fsinfo.unwrap();
        let data: Vec<u8> = (0..fsinfo.wtmax).map(|i| (i / 3) as u8).collect();
        let res = c.write(&f, 4099, &data, stable_how::FILE_SYNC).unwrap();
        assert_eq!(res.count, fsinfo.wtmax);
        let (read, eof) = c.read(&f, 4099, fsinfo.rtmax).unwrap();
        assert!(read == data && eof);
        // A larger READ is answered in part.
        let (read, eof) = c.read(&f, 0, u32::MAX).unwrap();
        assert_eq!((read.len() as u32, eof), (fsinfo.rtmax, false));
    }

    fn a_stranger_reads_and_writes_as_the_mode_says_and_the_owner_always(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.is(5, 5, &[]).create_how(&root, "f", createhow3::GUARDED(mode(0)));
        let Ok(f) = f else {
            // Only root may use the model's root directory.
            assert_eq!(f.err(), Some(NFS3ERR_ACCES));
            return;
        };
        c.write(&f, 0, b"mine", stable_how::FILE_SYNC).unwrap();
        assert_eq!(c.read(&f, 0, 9).unwrap().0, b"mine");
        status_of(c.setattr(&f, size(2), None)).unwrap();
        c.is(6, 6, &[]);
        assert_eq!(c.read(&f, 0, 9), Err(NFS3ERR_ACCES));
        assert_eq!(c.write(&f, 0, b"x", stable_how::UNSTABLE).err(), Some(NFS3ERR_ACCES));
        assert_eq!(status_of(c.setattr(&f, size(0), None)).err(), Some(NFS3ERR_ACCES));
        // A user who may execute a file may read it.
        status_of(c.is(5, 5, &[]).setattr(&f, mode(0o001), None)).unwrap();
        assert_eq!(c.is(6, 6, &[]).read(&f, 0, 9).unwrap().0, b"mi");
        assert_eq!(c.write(&f, 0, b"x", stable_how::UNSTABLE).err(), Some(NFS3ERR_ACCES));
        // Removing another user's file from a sticky directory.
        let root_mode = c.is(0, 0, &[]).getattr(&root).unwrap().mode;
        status_of(c.setattr(&root, mode(root_mode | 0o1000), None)).unwrap();
        assert_eq!(c.is(6, 6, &[]).remove(&root, "f"), Err(NFS3ERR_PERM));
    }

    fn changing_a_program_removes_its_privileges(site: &Site) {
        let (mut c, root) = site.mounted();
        for (name, change) in [("w", 0), ("t", 1), ("o", 2)] {
            let f = c.is(0, 0, &[]).create_how(&root, name, createhow3::GUARDED(mode(0o6777))).unwrap();
            let ino = c.getattr(&f).unwrap().fileid;
            site.fs.setxattr(&Caller::root(), ino, b"security.capability", b"cap", XattrMode::Any).unwrap();
            let has = || site.fs.getxattr(&Caller::root(), ino, b"security.capability").is_ok();
            let guard = nfstime3 { seconds: 3, nseconds: 3 };
            c.is(9, 9, &[]);
            match change {
                0 => drop(c.write(&f, 0, b"evil", stable_how::FILE_SYNC).unwrap()),
                1 => {
                    assert_eq!(status_of(c.setattr(&f, size(1), Some(guard))).err(), Some(NFS3ERR_NOT_SYNC));
                    assert!(has(), "nothing was changed");
                    status_of(c.setattr(&f, size(1), None)).unwrap();
                }
                _ => {
                    let owner = |uid| sattr3 { uid: Nfs3Option::Some(uid), ..sattr3::default() };
                    assert_eq!(status_of(c.setattr(&f, owner(9), None)).err(), Some(NFS3ERR_PERM));
                    assert!(has(), "nothing was changed");
                    status_of(c.is(0, 0, &[]).setattr(&f, owner(9), None)).unwrap();
                }
            }
            assert!(!has(), "{name}");
            assert_eq!(c.getattr(&f).unwrap().mode & 0o6000, 0, "{name}");
        }
    }

    fn create_has_three_ways(site: &Site) {
        let (mut c, root) = site.mounted();
        let f = c.create_how(&root, "f", createhow3::UNCHECKED(mode(0o600))).unwrap();
        c.write(&f, 0, b"content", stable_how::FILE_SYNC).unwrap();
        // An existing file is taken, as it is or truncated.
        let same = c.create_how(&root, "f", createhow3::UNCHECKED(mode(0o777))).unwrap();
        assert_eq!(same, f);
        assert_eq!((c.getattr(&f).unwrap().mode, c.getattr(&f).unwrap().size), (0o600, 7));
        let cut = sattr3 { size: Nfs3Option::Some(0), ..mode(0o777) };
        assert_eq!(c.create_how(&root, "f", createhow3::UNCHECKED(cut)).unwrap(), f);
        assert_eq!(c.getattr(&f).unwrap().size, 0);
        assert_eq!(c.create_how(&root, "f", createhow3::GUARDED(mode(0o600))), Err(NFS3ERR_EXIST));
        c.mkdir(&root, "d").unwrap();
        assert_eq!(c.create_how(&root, "d", createhow3::UNCHECKED(mode(0o600))), Err(NFS3ERR_EXIST));
        // With all attributes.
        let set = sattr3 {
            size: Nfs3Option::Some(10),
            uid: Nfs3Option::Some(3),
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 9, nseconds: 0 }),
            ..mode(0o621)
        };
        let g = c.create_how(&root, "g", createhow3::GUARDED(set)).unwrap();
        let attr = c.getattr(&g).unwrap();
        assert_eq!((attr.mode & 0o777, attr.uid, attr.size, attr.mtime.seconds), (0o621, 3, 10, 9));
        // A size together with a mode without write permission.
        status_of(c.setattr(&root, mode(0o777), None)).unwrap();
        let set = sattr3 { size: Nfs3Option::Some(10), ..mode(0o444) };
        let made = c.is(5, 5, &[]).create_how(&root, "r", createhow3::GUARDED(set)).unwrap();
        assert_eq!(c.getattr(&made).unwrap().size, 10);
        c.is(0, 0, &[]);
        // An impossible size: nothing is left.
        assert_eq!(c.create_how(&root, "h", createhow3::GUARDED(size(u64::MAX))), Err(NFS3ERR_FBIG));
        assert_eq!(c.lookup(&root, "h"), Err(NFS3ERR_NOENT));
        // Exclusive: the same request finds the same file, another verifier is another request.
        let verifier = |n| createhow3::EXCLUSIVE(createverf3([n, 0xff, 3, 4, 0x85, 6, 7, 8]));
        let e = c.create_how(&root, "e", verifier(0xf1)).unwrap();
        assert_eq!(c.create_how(&root, "e", verifier(0xf1)).unwrap(), e);
        assert_eq!(c.create_how(&root, "e", verifier(2)), Err(NFS3ERR_EXIST));
        assert_eq!(c.create_how(&root, "f", verifier(0xf1)), Err(NFS3ERR_EXIST));
        assert_eq!(c.create_how(&root, "d", verifier(0xf1)), Err(NFS3ERR_EXIST));
        for (name, status) in [
            (".", NFS3ERR_EXIST), ("..", NFS3ERR_EXIST), ("", NFS3ERR_INVAL), ("a/b", NFS3ERR_INVAL),
            (&LONG_NAME[..256], NFS3ERR_NAMETOOLONG),
        ] {
            assert_eq!(c.create_how(&root, name, createhow3::GUARDED(mode(0o600))), Err(status), "{name:?}");
            assert_eq!(c.mkdir(&root, name), Err(status), "{name:?}");
        }
        assert_eq!(c.create_how(&f, "x", createhow3::GUARDED(mode(0o600))), Err(NFS3ERR_NOTDIR));
        assert_eq!(c.mkdir(&root, "d"), Err(NFS3ERR_EXIST));
        status_of(c.setattr(&root, mode(0o755), None)).unwrap();
        c.is(5, 5, &[]);
        assert_eq!(c.create_how(&root, "x", createhow3::GUARDED(mode(0o600))), Err(NFS3ERR_ACCES));
        assert_eq!(c.mkdir(&root, "x"), Err(NFS3ERR_ACCES));
    }

    fn names_are_removed_and_renamed(site: &Site) {
        let (mut c, root) = site.mounted();
        let (a, b) = (c.mkdir(&root, "a").unwrap(), c.mkdir(&root, "b").unwrap());
        let f = c.create(&a, "f");
        let (at_a, at_b) = (c.getattr(&a).unwrap(), c.getattr(&b).unwrap());
        let done = c.rename((&a, "f"), (&b, "g")).unwrap();
        after(&done.fromdir_wcc, &at_a);
        after(&done.todir_wcc, &at_b);
        assert_eq!(c.lookup(&b, "g"), Ok(f.clone()));
        assert_eq!(c.lookup(&a, "f"), Err(NFS3ERR_NOENT));
        assert_eq!(c.rename((&a, "f"), (&b, "g")).err(), Some(NFS3ERR_NOENT));
        // Over existing names.
        let other = c.create(&a, "other");
        c.rename((&a, "other"), (&b, "g")).unwrap();
        assert_eq!(c.lookup(&b, "g"), Ok(other));
        assert_eq!(c.getattr(&f).err(), Some(NFS3ERR_STALE));
        assert_eq!(c.rename((&root, "a"), (&b, "g")).err(), Some(NFS3ERR_NOTDIR));
        assert_eq!(c.rename((&b, "g"), (&root, "a")).err(), Some(NFS3ERR_ISDIR));
        let sub = c.mkdir(&a, "sub").unwrap();
        assert_eq!(c.rename((&root, "a"), (&sub, "x")).err(), Some(NFS3ERR_INVAL));
        c.rename((&root, "a"), (&b, "a")).unwrap();
        assert_eq!(c.lookup(&a, ".."), Ok(b.clone()));
        for (from, to, status) in [
            (".", "x", NFS3ERR_INVAL), ("..", "x", NFS3ERR_INVAL), ("g", ".", NFS3ERR_INVAL), ("g", "..", NFS3ERR_INVAL),
            ("", "x", NFS3ERR_INVAL), ("g", "", NFS3ERR_INVAL), ("g", "x/y", NFS3ERR_INVAL),
            ("g", &LONG_NAME[..256], NFS3ERR_NAMETOOLONG),
        ] {
            assert_eq!(c.rename((&b, from), (&b, to)).err(), Some(status), "{from:?} {to:?}");
        }
        // REMOVE and RMDIR.
        assert_eq!(c.remove(&b, "a"), Err(NFS3ERR_ISDIR));
        assert_eq!(c.rmdir(&b, "g"), Err(NFS3ERR_NOTDIR));
        assert_eq!(c.rmdir(&b, "a"), Err(NFS3ERR_NOTEMPTY));
        assert_eq!(c.rmdir(&b, "."), Err(NFS3ERR_INVAL));
        assert_eq!(c.rmdir(&a, ".."), Err(NFS3ERR_EXIST));
        assert_eq!(c.remove(&b, "."), Err(NFS3ERR_INVAL));
        assert_eq!(c.remove(&b, "nothing"), Err(NFS3ERR_NOENT));
        assert_eq!(c.rmdir(&b, "nothing"), Err(NFS3ERR_NOENT));
        assert_eq!(c.remove(&b, ""), Err(NFS3ERR_INVAL));
        let at_b = c.getattr(&b).unwrap();
        let done = status_of(c.remove_res(&b, "g")).unwrap();
        after(&done.dir_wcc, &at_b);
        c.rmdir(&a, "sub").unwrap();
        c.rmdir(&b, "a").unwrap();
        assert_eq!(c.getattr(&a).err(), Some(NFS3ERR_STALE));
        assert_eq!(c.create_how(&a, "x", createhow3::GUARDED(mode(0o600))), Err(NFS3ERR_STALE));
        assert_eq!(c.readdir(&a, 0, cookieverf3::default(), 4096).err(), Some(NFS3ERR_STALE));
    }

    fn listings_are_whole_in_pieces_of_any_size(site: &Site) {
        let (mut c, root) = site.mounted();
        let d = c.mkdir(&root, "d").unwrap();
        let mut expected = vec![".".to_owned(), "..".to_owned()];
        for i in 0..60 {
            let name = format!("{i}{}", &LONG_NAME[..i * 3]);
            c.create(&d, &name);
            expected.push(name);
        }
        expected.sort();
        for count in [400, 512, 1000, 4096, 1 << 20, u32::MAX] {
            let mut names = c.names(&d, count);
            names.sort();
            assert_eq!(names, expected, "{count}");
        }
        let default = cookieverf3::default;
        assert_eq!(c.readdir(&d, 0, default(), 100).err(), Some(NFS3ERR_TOOSMALL));
        assert_eq!(c.readdir(&d, 0, default(), 0).err(), Some(NFS3ERR_TOOSMALL));
        let ok = c.readdir(&d, 0, default(), 512).unwrap();
        let wrong = cookieverf3([9; 8]);
        assert_eq!(c.readdir(&d, ok.reply.entries.0[0].cookie, wrong, 512).err(), Some(NFS3ERR_BAD_COOKIE));
        let f = c.lookup(&d, "0").unwrap();
        assert_eq!(c.readdir(&f, 0, default(), 512).err(), Some(NFS3ERR_NOTDIR));
        // With attributes and handles.
        for counts in [(512, 1200), (200, 1 << 20), (1 << 20, 1 << 20), (1, 4096)] {
            let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, default());
            loop {
                let ok = c.readdirplus(&d, cookie, verifier, counts).unwrap();
                verifier = ok.cookieverf;
                for entry in &ok.reply.entries.0 {
                    cookie = entry.cookie;
                    let name = String::from_utf8_lossy(entry.name.as_ref()).into_owned();
                    let (attr, handle) = (entry.name_attributes.clone().unwrap(), entry.name_handle.clone().unwrap());
                    assert_eq!(attr.fileid, entry.fileid);
                    assert_eq!(c.lookup(&d, &name), Ok(handle));
                    names.push(name);
                }
                if ok.reply.eof {
                    break;
                }
            }
            names.sort();
            assert_eq!(names, expected, "{counts:?}");
        }
        assert_eq!(c.readdirplus(&d, 0, default(), (100, 150)).err(), Some(NFS3ERR_TOOSMALL));
        // A user without search permission gets only names; without read permission, nothing.
        status_of(c.setattr(&d, mode(0o704), None)).unwrap();
        let ok = c.is(5, 5, &[]).readdirplus(&d, 0, default(), (65536, 65536)).unwrap();
        assert_eq!(ok.reply.entries.0.len(), expected.len());
        assert!(ok.reply.entries.0.iter().filter(|e| e.name.as_ref() != b".").all(|e| e.name_handle.is_none()));
        status_of(c.is(0, 0, &[]).setattr(&d, mode(0o701), None)).unwrap();
        assert_eq!(c.is(5, 5, &[]).readdir(&d, 0, default(), 4096).err(), Some(NFS3ERR_ACCES));
    }

    fn cookies_are_stable_while_entries_are_added_and_removed(site: &Site) {
        let (mut c, root) = site.mounted();
        for i in 0..200 {
            c.create(&root, &format!("stays-{i}"));
            c.create(&root, &format!("goes-{i}"));
        }
        let (mut seen, mut cookie, mut verifier, mut round) = (Vec::new(), 0, cookieverf3::default(), 0);
        loop {
            let ok = c.readdir(&root, cookie, verifier, 600).unwrap();
            verifier = ok.cookieverf;
            for entry in &ok.reply.entries.0 {
                cookie = entry.cookie;
                seen.push(String::from_utf8_lossy(entry.name.as_ref()).into_owned());
            }
            for i in round * 10..(round * 10 + 10).min(200) {
                c.remove(&root, &format!("goes-{i}")).unwrap();
                c.create(&root, &format!("comes-{i}"));
            }
            round += 1;
            if ok.reply.eof {
                break;
            }
        }
        assert!(round > 10);
        for i in 0..200 {
            let name = format!("stays-{i}");
            assert_eq!(seen.iter().filter(|n| **n == name).count(), 1, "{name}");
        }
    }

    fn the_state_of_the_volume_is_reported(site: &Site) {
        let (mut c, root) = site.mounted();
        let res: FSSTAT3res = c.nfs(NFS_PROGRAM::NFSPROC3_FSSTAT, &root);
        let (stat, fs) = (res.unwrap(), site.fs.statfs().unwrap());
        assert_eq!(stat.tbytes, fs.blocks * 4096);
        assert_eq!((stat.fbytes, stat.ffiles), (fs.blocks_free * 4096, fs.inodes_free));
        let res: FSINFO3res = c.nfs(NFS_PROGRAM::NFSPROC3_FSINFO, &root);
        let info = res.unwrap();
        assert_eq!(info.properties, FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME);
        let res: PATHCONF3res = c.nfs(NFS_PROGRAM::NFSPROC3_PATHCONF, &root);
        let conf = res.unwrap();
        assert_eq!((conf.name_max, conf.no_trunc, conf.case_preserving), (255, true, true));
        let bad = nfs_fh3 { data: Opaque::borrowed(b"bad") };
        let res: FSSTAT3res = c.nfs(NFS_PROGRAM::NFSPROC3_FSSTAT, &bad);
        assert_eq!(status_of(res).err(), Some(NFS3ERR_BADHANDLE));
        let res: FSINFO3res = c.nfs(NFS_PROGRAM::NFSPROC3_FSINFO, &bad);
        assert_eq!(status_of(res).err(), Some(NFS3ERR_BADHANDLE));
        let res: PATHCONF3res = c.nfs(NFS_PROGRAM::NFSPROC3_PATHCONF, &bad);
        assert_eq!(status_of(res).err(), Some(NFS3ERR_BADHANDLE));
    }

    fn a_call_that_reaches_no_procedure_gets_an_rpc_error(site: &Site) {
        let (mut c, root) = site.mounted();
        let mut refused = |program, version, procedure, args: Vec<u8>| {
            match c.raw::<Void>(program, version, procedure, &Packed(args)) {
                Err(Refused::Accepted(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        use accept_stat_data as A;
        assert!(matches!(refused(100_000, 2, 0, vec![]), A::PROG_UNAVAIL));
        assert!(matches!(refused(PROGRAM, 2, 0, vec![]), A::PROG_MISMATCH { low: 3, high: 3 }));
        assert!(matches!(refused(mount::PROGRAM, 1, 0, vec![]), A::PROG_MISMATCH { low: 3, high: 3 }));
        assert!(matches!(refused(PROGRAM, 3, 22, vec![]), A::PROC_UNAVAIL));
        assert!(matches!(refused(mount::PROGRAM, 3, 6, vec![]), A::PROC_UNAVAIL));
        for procedure in 1..22 {
            assert!(matches!(refused(PROGRAM, 3, procedure, vec![]), A::GARBAGE_ARGS), "{procedure}");
            let wild = vec![0xff; 64];
            assert!(matches!(refused(PROGRAM, 3, procedure, wild), A::GARBAGE_ARGS), "{procedure}");
        }
        for procedure in [1, 3] {
            assert!(matches!(refused(mount::PROGRAM, 3, procedure, vec![0, 0]), A::GARBAGE_ARGS));
        }
        // Another RPC version; a malformed credential, or a kind that is not offered.
        let call = c.call_bytes(PROGRAM, 3, 0, &Void);
        let mut other = call.clone();
        other[11] = 3;
        c.send(&other);
        let (_, res) = Client::decode::<Void>(&c.reply().unwrap());
        assert!(matches!(res, Err(Refused::Denied(rejected_reply::RPC_MISMATCH { low: 2, high: 2 }))));
        c.credential = opaque_auth { flavor: auth_flavor::AUTH_UNIX, body: Opaque::borrowed(b"abcd") };
        let res = c.raw::<GETATTR3res>(PROGRAM, 3, 1, &root);
        assert!(matches!(res, Err(Refused::Denied(rejected_reply::AUTH_ERROR(auth_stat::AUTH_BADCRED)))));
        c.credential = opaque_auth { flavor: auth_flavor::AUTH_DES, body: Opaque::borrowed(b"") };
        let res = c.raw::<GETATTR3res>(PROGRAM, 3, 1, &root);
        assert!(matches!(res, Err(Refused::Denied(rejected_reply::AUTH_ERROR(auth_stat::AUTH_BADCRED)))));
        // AUTH_NONE suffices for GETATTR.
        c.credential = opaque_auth::default();
        assert!(c.getattr(&root).is_ok());
    }
}

/// Bytes that are already encoded.
struct Packed(Vec<u8>);

impl nfs3_types::xdr_codec::Pack for Packed {
    fn packed_size(&self) -> usize {
        self.0.len()
    }
    fn pack(&self, out: &mut impl std::io::Write) -> nfs3_types::xdr_codec::Result<usize> {
        out.write_all(&self.0)?;
        Ok(self.0.len())
    }
}

#[test]
fn squashed_callers_are_the_anonymous_user() {
    let squashed = |squash| {
        export().with_access(Access {
            squash,
            anonymous: Anonymous { uid: 77, gid: 78 },
            ..access()
        })
    };
    for (squash, uid, expected) in [
        (Squash::Root, 0, (77, 78)),
        (Squash::Root, 5, (5, 6)),
        (Squash::All, 5, (77, 78)),
        (Squash::None, 0, (0, 6)),
    ] {
        let site = Site::with(file_system(Kind::Real), vec![squashed(squash)]);
        let (mut c, root) = site.mounted();
        let gid = if uid == 0 && squash == Squash::Root {
            0
        } else {
            6
        };
        let f = c.is(uid, gid, &[]).create(&root, "f");
        let attr = c.getattr(&f).unwrap();
        assert_eq!((attr.uid, attr.gid), expected, "{squash:?} {uid}");
    }
    // AUTH_NONE is nobody.
    let site = Site::with(file_system(Kind::Real), vec![squashed(Squash::None)]);
    let (mut c, root) = site.mounted();
    c.credential = opaque_auth::default();
    let f = c.create(&root, "f");
    assert_eq!(c.getattr(&f).unwrap().uid, 77);
}

#[test]
fn exports_are_kept_apart() {
    let (one, two) = (file_system(Kind::Real), file_system(Kind::Model));
    let named = |path: &str, volume, read_only| Export {
        path: path.to_owned(),
        volume,
        access: vec![Access {
            read_only,
            ..access()
        }],
        ..export()
    };
    let nobody = Export {
        path: "/closed".to_owned(),
        access: vec![Access {
            clients: vec!["192.0.2.0/24".parse().unwrap()],
            ..access()
        }],
        ..export()
    };
    let reserved = Export {
        path: "/reserved".to_owned(),
        access: vec![Access {
            any_port: false,
            clients: this_host(),
            ..access()
        }],
        ..export()
    };
    let exports = vec![
        named("/one", 0, false),
        named("/looked-at", 0, true),
        named("/two", 1, false),
        nobody,
        reserved,
    ];
    let volumes = vec![
        ExportedVolume::new(one, "one"),
        ExportedVolume::new(two, "two"),
    ];
    let server = Server::start(volumes, exports, &options()).unwrap();
    let mut c = Client::connect(server.addresses()[0]);
    let (a, b) = (c.mnt("/one").unwrap(), c.mnt("/two").unwrap());
    let look = c.mnt("/looked-at").unwrap();
    let f = c.create(&a, "f");
    let d = c.mkdir(&a, "d").unwrap();
    // Only an export and the directories in it can be mounted.
    assert_eq!(c.mnt("/one/d").unwrap(), d);
    assert_eq!(c.mnt("/one/f").map_err(number), Err(20));
    assert_eq!(c.mnt("/one/x").map_err(number), Err(2));
    assert_eq!(c.mnt("/").map_err(number), Err(2));
    assert_eq!(c.mnt("/one/../two").map_err(number), Err(22));
    assert_eq!(c.mnt(&"/x".repeat(513)).map_err(number), Err(63));
    assert_eq!(c.mnt("/closed").map_err(number), Err(13));
    assert_eq!(
        c.mnt("/reserved").map_err(number),
        Err(13),
        "from a port that anybody may use"
    );
    // The same file through the read-only export.
    let seen = c.lookup(&look, "f").unwrap();
    assert_ne!(seen, f);
    assert_eq!(
        c.getattr(&seen).unwrap().fileid,
        c.getattr(&f).unwrap().fileid
    );
    assert_ne!(c.getattr(&seen).unwrap().fsid, c.getattr(&f).unwrap().fsid);
    let rofs = Some(NFS3ERR_ROFS);
    assert_eq!(c.write(&seen, 0, b"x", stable_how::UNSTABLE).err(), rofs);
    assert_eq!(status_of(c.setattr(&seen, mode(0), None)).err(), rofs);
    assert_eq!(
        c.create_how(&look, "x", createhow3::GUARDED(mode(0))).err(),
        rofs
    );
    assert_eq!(c.mkdir(&look, "x").err(), rofs);
    assert_eq!(c.symlink(&look, "x", b"y").err(), rofs);
    assert_eq!(
        c.mknod(&look, "x", mknoddata3::NF3FIFO(mode(0))).err(),
        rofs
    );
    assert_eq!(c.remove(&look, "f").err(), rofs);
    assert_eq!(c.rmdir(&look, "d").err(), rofs);
    assert_eq!(c.rename((&look, "f"), (&look, "g")).err(), rofs);
    assert_eq!(c.link(&seen, &look, "g").err(), rofs);
    assert_eq!(
        c.access(&seen, ACCESS3_READ | ACCESS3_MODIFY),
        Ok(ACCESS3_READ)
    );
    c.commit(&seen, 0, 0).unwrap();
    // RENAME and LINK across exports fail.
    assert_eq!(c.rename((&a, "f"), (&b, "f")).err(), Some(NFS3ERR_XDEV));
    assert_eq!(c.link(&f, &b, "f").err(), Some(NFS3ERR_XDEV));
    // The MOUNT program's lists.
    let list: mount::exports<'static, 'static> = c.raw(mount::PROGRAM, 3, 5, &Void).unwrap();
    let paths: Vec<_> = list
        .0
        .iter()
        .map(|e| String::from_utf8_lossy(&e.ex_dir.0).into_owned())
        .collect();
    assert_eq!(
        paths,
        ["/one", "/looked-at", "/two", "/closed", "/reserved"]
    );
    assert_eq!(&*list.0[0].ex_groups.0[0].0, b"*");
    assert_eq!(&*list.0[3].ex_groups.0[0].0, b"192.0.2.0/24");
    let dump = |c: &mut Client| -> Vec<String> {
        let list: List<mount::mountbody<'static, 'static>> =
            c.raw(mount::PROGRAM, 3, 2, &Void).unwrap();
        list.0
            .iter()
            .map(|m| String::from_utf8_lossy(&m.ml_directory.0).into_owned())
            .collect()
    };
    assert_eq!(dump(&mut c), ["/one", "/two", "/looked-at", "/one/d"]);
    let path = mount::dirpath(Opaque::borrowed(b"/two"));
    c.raw::<Void>(mount::PROGRAM, 3, 3, &path).unwrap();
    assert_eq!(dump(&mut c).len(), 3);
    c.raw::<Void>(mount::PROGRAM, 3, 4, &Void).unwrap();
    assert!(dump(&mut c).is_empty());
    c.raw::<Void>(mount::PROGRAM, 3, 0, &Void).unwrap();
}

fn number(status: mount::mountstat3) -> u32 {
    status as u32
}

#[test]
fn both_families_of_addresses_are_served_and_exports_on_all_volumes_found() {
    let mut options = options();
    options.listen.push("[::1]:0".parse().unwrap());
    let fs = file_system(Kind::Model);
    let served = ExportedVolume::new(Arc::clone(&fs), "test");
    let server = match Server::start(vec![served], vec![export()], &options) {
        Ok(server) => server,
        Err(e) => return steadfast_testkit::skipped!("no IPv6 here ({e})"),
    };
    for address in server.addresses() {
        let mut c = Client::connect(*address);
        let root = c.mnt("/").unwrap();
        // As the tools of libnfs request the directory of a file in it.
        assert_eq!(c.mnt("").unwrap(), root);
        c.getattr(&root).unwrap();
    }
}
