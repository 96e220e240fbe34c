//! Files without names, read-only mounts, going down, and a region that fails.

use super::common::*;
use steadfast_pm::{OpenOptions, Region};
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_vfs::{
    AllocateMode, Errno, FileSystem, InodeFlags, RenameMode, SetAttr, SetTime, Shutdown, Time,
    XattrMode,
};

#[test]
fn a_nameless_file_gets_a_name_or_goes() {
    let mut v = Volume::new(2);
    let r = v.root();
    let stat = v.statfs().unwrap();
    for named in [false, true] {
        let f = v.tmpfile(&user(5), r, 0o640);
        fails(f, Errno::Access);
        let open = SetAttr {
            perm: Some(0o777),
            ..SetAttr::default()
        };
        v.setattr(&root(), r, &open).unwrap();
        let f = v.tmpfile(&user(5), r, 0o640).unwrap();
        assert_eq!((f.uid, f.gid, f.perm, f.nlink), (5, 5, 0o640, 0));
        v.write(&user(5), f.ino, 0, &[1; 5000]).unwrap();
        if named {
            assert_eq!(v.link(&user(5), f.ino, r, b"named").unwrap().nlink, 1);
        }
        v.release(f.ino);
        match named {
            false => {
                fails(v.getattr(&root(), f.ino), Errno::Stale);
                assert_eq!(v.statfs().unwrap(), stat);
            }
            true => {
                v.cut();
                assert_eq!(v.content(f.ino), [1; 5000]);
                v.unlink(&root(), r, b"named").unwrap();
            }
        }
        let shut = SetAttr {
            perm: Some(0o755),
            ..SetAttr::default()
        };
        v.setattr(&root(), r, &shut).unwrap();
    }
    // A crash takes it.
    let f = v.tmpfile(&root(), r, 0o600).unwrap().ino;
    v.write(&root(), f, 0, &[1; 5000]).unwrap();
    v.cut();
    fails(v.getattr(&root(), f), Errno::Stale);
    assert_eq!(v.statfs().unwrap(), stat);
    // Named, unnamed again: now it is a removed file as any other.
    let f = v.tmpfile(&root(), r, 0o600).unwrap().ino;
    v.link(&root(), f, r, b"f").unwrap();
    v.unlink(&root(), r, b"f").unwrap();
    fails(v.link(&root(), f, r, b"f"), Errno::NoEnt);
    v.release(f);
    assert_eq!(v.statfs().unwrap(), stat);
}

#[test]
fn a_time_that_cannot_be_stored_becomes_the_nearest_that_can() {
    let mut v = Volume::new(2);
    let f = v.file(v.root(), "f");
    for (secs, stored) in [(i64::MAX, 9_223_372_036), (i64::MIN, -9_223_372_037)] {
        let set = SetAttr {
            mtime: Some(SetTime::At(Time { secs, nanos: 0 })),
            ..SetAttr::default()
        };
        assert_eq!(v.setattr(&root(), f, &set).unwrap().mtime.secs, stored);
        v.remount();
        assert_eq!(v.attr(f).mtime.secs, stored);
    }
}

#[test]
fn a_read_only_mount_shows_everything_and_changes_nothing() {
    let v = Volume::new(2);
    let r = v.root();
    let f = v.file(r, "f");
    v.write(&root(), f, 0, b"hello").unwrap();
    v.setxattr(&root(), f, b"user.a", b"1", XattrMode::Any)
        .unwrap();
    let mut read_only = options();
    read_only.read_only = true;
    let image = v.medium().content();
    let fs = mount_with(copy(&v), &read_only);
    assert_eq!(fs.content(fs.look(r, "f").unwrap().ino), b"hello");
    assert_eq!(fs.getxattr(&root(), f, b"user.a").unwrap(), b"1");
    assert_eq!(fs.statfs().unwrap(), v.statfs().unwrap());
    let c = &root();
    fails(fs.file_by(c, r, "g"), Errno::RoFs);
    fails(fs.mkdir(c, r, b"g", 0o755), Errno::RoFs);
    fails(fs.symlink(c, r, b"g", b"x"), Errno::RoFs);
    fails(fs.link(c, f, r, b"g"), Errno::RoFs);
    fails(fs.unlink(c, r, b"f"), Errno::RoFs);
    fails(fs.rmdir(c, r, b"f"), Errno::RoFs);
    fails(
        fs.rename(c, (r, b"f"), (r, b"g"), RenameMode::Replace),
        Errno::RoFs,
    );
    fails(fs.write(c, f, 0, b"x"), Errno::RoFs);
    fails(fs.append(c, f, b"x"), Errno::RoFs);
    fails(fs.setattr(c, f, &SetAttr::default()), Errno::RoFs);
    fails(
        fs.fallocate(c, f, AllocateMode::Allocate, 0, 1),
        Errno::RoFs,
    );
    fails(
        fs.setxattr(c, f, b"user.a", b"", XattrMode::Any),
        Errno::RoFs,
    );
    fails(fs.removexattr(c, f, b"user.a"), Errno::RoFs);
    fails(fs.set_flags(c, f, InodeFlags::NODUMP), Errno::RoFs);
    fails(fs.tmpfile(c, r, 0o600), Errno::RoFs);
    fails(fs.access(c, f, 2), Errno::RoFs);
    fs.accessed(c, f).unwrap();
    fs.open(c, f).unwrap();
    fs.release(f);
    fs.fsync(c, f, false).unwrap();
    fs.sync().unwrap();
    assert!(fs.health().read_only && fs.health().failed.is_none());
    assert!(fs.into_region().content() == image, "nothing was stored");
}

#[test]
fn after_going_down_nothing_changes_any_more() {
    for how in [Shutdown::Everything, Shutdown::Log, Shutdown::Nothing] {
        let region = made(2 << 20, 4096);
        let fs = mount(region);
        let (r, c) = (fs.root(), &root());
        let f = fs.file(r, "f");
        fs.write(c, f, 0, b"hello").unwrap();
        std::thread::scope(|scope| {
            for n in 0..3 {
                let fs = &fs;
                scope.spawn(move || {
                    let mut count = 0;
                    while fs.file_by(&root(), r, &format!("{n} {count}")).is_ok() {
                        fs.unlink(&root(), r, format!("{n} {count}").as_bytes())
                            .ok();
                        count += 1;
                    }
                });
            }
            fs.shutdown(how).unwrap();
            let image = fs.medium().content();
            fails(fs.write(c, f, 0, b"x"), Errno::Io);
            fails(fs.fsync(c, f, false), Errno::Io);
            fails(fs.sync(), Errno::Io);
            fails(fs.unlink(c, r, b"f"), Errno::Io);
            assert!(fs.medium().content() == image);
        });
        assert_eq!(fs.content(f), b"hello");
        assert!(fs.health().read_only);
        let again = mount(copy(&fs));
        assert_eq!(again.report().clean, how == Shutdown::Everything);
        assert_eq!(again.content(f), b"hello");
    }
}

#[test]
fn a_region_that_fails_makes_every_call_an_error_and_the_process_lives() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return steadfast_testkit::skipped!("there is no /dev/shm");
    };
    let path = dir.path().join("region");
    let region = Region::create(&path, 2 << 20, false, &OpenOptions::default()).unwrap();
    mkfs(&region, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let fs = mount(region);
    let (r, c) = (fs.root(), &root());
    let f = fs.file(r, "f");
    fs.write(c, f, 0, &[1; 100_000]).unwrap();
    fs.open(c, f).unwrap();
    assert_eq!(fs.health().failed, None);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8192).unwrap();
    fails(fs.write(c, f, 0, b"x"), Errno::Io);
    let io = Errno::Io;
    fails(fs.read(c, f, 0, &mut [0; 10]), io);
    fails(fs.lookup(c, r, b"f"), io);
    fails(fs.getattr(c, f), io);
    fails(fs.readdir(c, r, 0, &mut |_| true), io);
    fails(fs.file_by(c, r, "g"), io);
    fails(fs.unlink(c, r, b"f"), io);
    fails(fs.rename(c, (r, b"f"), (r, b"g"), RenameMode::Replace), io);
    fails(fs.setattr(c, f, &SetAttr::default()), io);
    fails(fs.fsync(c, f, false), io);
    fails(fs.sync(), io);
    fs.release(f);
    let health = fs.health();
    assert!(health.read_only && health.failed.is_some());
    let counters = fs.counters();
    assert!(counters.contains(&("failed_now", 1)) && counters.contains(&("read_only_now", 1)));
    fails(fs.unmount(), io);
}
