#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::op::{Op, OpResult, Outcome};
use steadfast_vfs::{AllocateMode, NewNode, RenameMode, SetAttr, SetTime, XattrMode};

fn t(secs: i64) -> Time {
    Time { secs, nanos: 0 }
}

fn user(uid: u32, gid: u32) -> Caller {
    Caller {
        uid,
        gid,
        ..Caller::root()
    }
}

struct Fixture {
    tree: Tree,
    now: i64,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            tree: Tree::new(t(0)),
            now: 0,
        }
    }

    fn with(lines: &[&str]) -> Fixture {
        let mut f = Fixture::new();
        for line in lines {
            f.ok(line);
        }
        f
    }

    fn run(&mut self, caller: &Caller, line: &str) -> OpResult {
        self.now += 1;
        let op: Op = line.parse().unwrap();
        let before = self.tree.digest();
        let result = self.tree.apply(&op, caller, t(self.now));
        self.tree.check().unwrap();
        if result.is_err() {
            assert_eq!(
                before,
                self.tree.digest(),
                "{line} failed and changed something"
            );
        }
        result
    }

    fn ok(&mut self, line: &str) -> Outcome {
        self.run(&Caller::root(), line)
            .unwrap_or_else(|e| panic!("{line}: {e:?}"))
    }

    fn fails(&mut self, line: &str, errno: Errno) {
        assert_eq!(self.run(&Caller::root(), line), Err(errno), "{line}");
    }

    fn refused(&mut self, caller: &Caller, line: &str, errno: Errno) {
        assert_eq!(self.run(caller, line), Err(errno), "{line}");
    }

    fn ino(&self, path: &str) -> Ino {
        let names = path.split('/').filter(|c| !c.is_empty());
        names.fold(ROOT, |dir, n| {
            self.tree
                .lookup(&Caller::root(), dir, n.as_bytes())
                .unwrap()
        })
    }

    fn attr(&self, path: &str) -> Attr {
        self.tree.getattr(self.ino(path)).unwrap()
    }

    fn gone(&self, path: &str) -> bool {
        !self.tree.snapshot().entries.contains_key(path.as_bytes())
    }
}

#[test]
fn making_a_name_that_is_taken_is_eexist_whatever_is_there() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "mkdir /d 755", "symlink /l f"]);
    for name in ["/f", "/d", "/l", "/d/.", "/d/..", "/"] {
        f.fails(&format!("mkdir {name} 755"), Errno::Exist);
        f.fails(&format!("mknod {name} file 644 0"), Errno::Exist);
        f.fails(&format!("symlink {name} x"), Errno::Exist);
        f.fails(&format!("link /f {name}"), Errno::Exist);
    }
    f.fails("mkdir /f/x 755", Errno::NotDir);
    f.fails("mkdir /l/x 755", Errno::NotDir);
    f.fails("mkdir /no/x 755", Errno::NoEnt);
}

#[test]
fn corner_33_names_are_any_bytes_up_to_255_and_targets_up_to_4095() {
    let mut f = Fixture::new();
    let long = "n".repeat(255);
    f.ok(&format!("mkdir /{long} 755"));
    f.fails(&format!("mkdir /{long}n 755"), Errno::NameTooLong);
    f.fails(&format!("unlink /{long}n"), Errno::NameTooLong);
    f.fails(
        &format!("rename /{long} /{long}n replace"),
        Errno::NameTooLong,
    );
    f.ok("mkdir /%ff%01%20 755");
    f.fails("mkdir /a%2fb 755", Errno::Inval);
    f.fails("mkdir /a%00b 755", Errno::Inval);
    f.fails("symlink /l -", Errno::NoEnt);
    f.ok(&format!("symlink /l {}", "t".repeat(4095)));
    f.fails(
        &format!("symlink /m {}", "t".repeat(4096)),
        Errno::NameTooLong,
    );
    assert_eq!(f.attr("/l").size, 4095);
}

#[test]
fn corner_33_the_link_count_has_a_limit() {
    let mut f = Fixture::with(&["mknod /a file 644 0"]);
    f.tree = f.tree.clone().limited(Limits {
        links_max: 3,
        ..Limits::default()
    });
    f.ok("link /a /b");
    f.ok("link /b /c");
    f.fails("link /a /d", Errno::MLink);
    f.ok("unlink /b");
    f.ok("link /a /d");
    assert_eq!(f.attr("/a").nlink, 3);
}

#[test]
fn links_to_directories_are_eperm_and_open_inodes_without_names_cannot_be_linked() {
    let mut f = Fixture::with(&[
        "mkdir /d 755",
        "mknod /f file 644 0",
        "open /f @0",
        "unlink /f",
    ]);
    f.fails("link /d /e", Errno::Perm);
    f.fails("link @0 /e", Errno::NoEnt);
    f.fails("link /d /d", Errno::Exist);
    f.fails("link /no /e", Errno::NoEnt);
}

#[test]
fn unlink_refuses_directories_and_rmdir_refuses_the_rest() {
    let mut f = Fixture::with(&["mkdir /d 755", "mknod /f file 644 0", "mkdir /d/s 755"]);
    f.fails("unlink /d", Errno::IsDir);
    f.fails("unlink /d/.", Errno::IsDir);
    f.fails("unlink /d/..", Errno::IsDir);
    f.fails("unlink /", Errno::IsDir);
    f.fails("unlink /no", Errno::NoEnt);
    f.fails("unlink /f/x", Errno::NotDir);
    f.fails("rmdir /f", Errno::NotDir);
    f.fails("rmdir /d", Errno::NotEmpty);
    f.fails("rmdir /d/.", Errno::Inval);
    f.fails("rmdir /d/..", Errno::NotEmpty);
    f.fails("rmdir /", Errno::Busy);
    assert_eq!(f.attr("/d").nlink, 3);
    f.ok("rmdir /d/s");
    assert_eq!(f.attr("/d").nlink, 2);
    f.ok("rmdir /d");
    assert_eq!(f.attr("/").nlink, 2);
}

#[test]
fn corner_28_rename_over_an_inode_depends_on_both_kinds() {
    let setup = [
        "mkdir /d 755",
        "mkdir /e 755",
        "mkdir /full 755",
        "mknod /full/x file 644 0",
        "mknod /f file 644 0",
        "mknod /g file 600 0",
    ];
    let mut f = Fixture::with(&setup);
    f.fails("rename /f /d replace", Errno::IsDir);
    f.fails("rename /d /f replace", Errno::NotDir);
    f.fails("rename /d /full replace", Errno::NotEmpty);
    f.fails("rename /no /f replace", Errno::NoEnt);
    f.fails("rename /no /f noreplace", Errno::NoEnt);
    f.fails("rename /f /g noreplace", Errno::Exist);
    f.fails("rename /f /no exchange", Errno::NoEnt);
    f.fails("rename /f/x /g replace", Errno::NotDir);
    f.fails("rename /f /g/x replace", Errno::NotDir);
    f.ok("rename /f /g replace");
    assert_eq!(f.attr("/g").perm, 0o644);
    assert!(f.gone("/f"));
    f.ok("rename /full /e replace");
    assert_eq!(f.attr("/").nlink, 4);
    f.ok("rename /g /d/h noreplace");
    assert_eq!(f.attr("/d/h").perm, 0o644);
}

#[test]
fn corner_28_rename_onto_itself_or_another_link_of_itself_does_nothing() {
    let mut f = Fixture::with(&["mknod /a file 644 0", "link /a /b", "mkdir /d 755"]);
    let before = f.tree.snapshot();
    f.ok("rename /a /a replace");
    f.ok("rename /a /b replace");
    f.ok("rename /a /b exchange");
    f.ok("rename /d /d replace");
    assert_eq!(f.tree.snapshot(), before);
    f.fails("rename /a /b noreplace", Errno::Exist);
    f.fails("rename /a /a noreplace", Errno::Exist);
}

#[test]
fn corner_28_a_directory_never_becomes_its_own_ancestor() {
    let mut f = Fixture::with(&["mkdir /a 755", "mkdir /a/b 755", "mkdir /a/b/c 755"]);
    f.fails("rename /a /a/x replace", Errno::Inval);
    f.fails("rename /a /a/b/x replace", Errno::Inval);
    f.fails("rename /a /a/b/c replace", Errno::Inval);
    f.fails("rename /a/b /a replace", Errno::NotEmpty);
    f.fails("rename /a/b/c /a replace", Errno::NotEmpty);
    f.fails("rename /a /a/b exchange", Errno::Inval);
    f.fails("rename /a/b/c /a exchange", Errno::Inval);
    f.fails("rename /a/. /x replace", Errno::Busy);
    f.fails("rename /a/b /a/.. replace", Errno::Busy);
    f.fails("rename /a/b /a/. noreplace", Errno::Exist);
    f.fails("rename / /x replace", Errno::Busy);
}

#[test]
fn corner_28_a_directory_that_moves_takes_its_link_and_its_dotdot_along() {
    let mut f = Fixture::with(&["mkdir /a 755", "mkdir /b 755", "mkdir /a/d 755"]);
    f.ok("rename /a/d /b/d replace");
    assert_eq!((f.attr("/a").nlink, f.attr("/b").nlink), (2, 3));
    assert_eq!(f.ino("/b/d/.."), f.ino("/b"));
    f.ok("mkdir /a/e 755");
    f.ok("rename /b/d /a/e replace");
    assert_eq!((f.attr("/a").nlink, f.attr("/b").nlink), (3, 2));
}

#[test]
fn corner_28_exchange_swaps_anything_with_anything() {
    let setup = [
        "mkdir /a 755",
        "mkdir /b 755",
        "mkdir /a/d 755",
        "mknod /a/d/x file 644 0",
        "symlink /b/l t",
    ];
    let mut f = Fixture::with(&setup);
    let (d, l) = (f.ino("/a/d"), f.ino("/b/l"));
    f.ok("rename /a/d /b/l exchange");
    assert_eq!((f.ino("/b/l"), f.ino("/a/d")), (d, l));
    assert_eq!(f.ino("/b/l/.."), f.ino("/b"));
    assert_eq!((f.attr("/a").nlink, f.attr("/b").nlink), (2, 3));
    f.ok("rename /a /b/l exchange");
    f.ok("unlink /a/x");
    f.ok("rename /b /a replace");
    assert!(f.gone("/b"));
}

#[test]
fn corner_29_an_open_inode_lives_on_without_names_until_it_is_closed() {
    let mut f = Fixture::with(&[
        "mknod /f file 644 0",
        "open /f @0",
        "open /f @1",
        "unlink /f",
    ]);
    assert_eq!(f.ok("write @0 0 =hello"), Outcome::Wrote(5));
    assert_eq!(f.ok("append @1 =!"), Outcome::At(5));
    assert_eq!(f.tree.inodes(), 2);
    assert_eq!(f.tree.closed().inodes(), 1);
    f.ok("close @0");
    assert_eq!(f.tree.inodes(), 2);
    f.ok("close @1");
    assert_eq!(f.tree.inodes(), 1);
    f.fails("close @1", Errno::BadF);
    let mut f = Fixture::with(&["mkdir /d 755", "open /d @0", "rmdir /d"]);
    let dead = f.tree.handles[&0];
    let root = Caller::root();
    assert_eq!(
        f.tree.mkdir(&root, t(9), dead, b"x", 0o755),
        Err(Errno::NoEnt)
    );
    f.ok("mkdir /e 755");
    let moved = f
        .tree
        .rename(&root, t(9), (ROOT, b"e"), (dead, b"x"), RenameMode::Replace);
    assert_eq!(moved, Err(Errno::NoEnt));
}

#[test]
fn a_write_grows_the_file_and_an_append_goes_to_its_end() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "mkdir /d 755", "symlink /l f"]);
    assert_eq!(f.ok("append /f #1*5000"), Outcome::At(0));
    assert_eq!(f.ok("append /f =x"), Outcome::At(5000));
    assert_eq!(f.ok("write /f 9999 =x"), Outcome::Wrote(1));
    assert_eq!(f.attr("/f").size, 10_000);
    let before = f.attr("/f");
    assert_eq!(f.ok("write /f 99999 =-"), Outcome::Wrote(0));
    assert_eq!(f.attr("/f"), before);
    f.fails("write /d 0 =x", Errno::IsDir);
    f.fails("write /l 0 =x", Errno::Inval);
    f.fails("append /d =x", Errno::IsDir);
    f.fails(&format!("write /f {} =xy", (1u64 << 44) - 1), Errno::FBig);
    f.fails(&format!("write /f {} =xy", u64::MAX), Errno::FBig);
}

#[test]
fn truncation_needs_a_file_within_the_limit() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "mkdir /d 755", "mknod /p fifo 644 0"]);
    f.fails("setattr /d size=0", Errno::IsDir);
    f.fails("setattr /p size=0", Errno::Inval);
    f.fails(
        &format!("setattr /f size={}", (1u64 << 44) + 1),
        Errno::FBig,
    );
    f.ok(&format!("setattr /f size={}", 1u64 << 44));
    assert_eq!(f.attr("/f").blocks, 0);
}

#[test]
fn fallocate_modes_do_what_their_names_say() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "mkdir /d 755", "append /f #1*9000"]);
    f.fails("fallocate /f punch 0 0", Errno::Inval);
    f.fails("fallocate /d punch 0 1", Errno::IsDir);
    f.fails(
        &format!("fallocate /f allocate {} 9", u64::MAX),
        Errno::FBig,
    );
    f.ok("fallocate /f keep-size 0 20000");
    assert_eq!(f.attr("/f").size, 9000);
    f.ok("fallocate /f punch 8000 20000");
    assert_eq!(f.attr("/f").size, 9000);
    f.ok("fallocate /f zero-keep-size 100 50000");
    assert_eq!(f.attr("/f").size, 9000);
    f.ok("fallocate /f allocate 0 10000");
    assert_eq!(f.attr("/f").size, 10_000);
    f.ok("fallocate /f zero 50 20000");
    assert_eq!(f.attr("/f").size, 20_050);
    let mut buf = vec![1; 30_000];
    assert_eq!(f.tree.read(f.ino("/f"), 0, &mut buf), Ok(20_050));
    assert!(buf[..50].iter().all(|b| *b != 0) && buf[50..20_050].iter().all(|b| *b == 0));
}

#[test]
fn seek_finds_data_and_holes() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "write /f 20480 #1*10"]);
    let ino = f.ino("/f");
    assert_eq!(f.tree.seek(ino, 0, Seek::Data), Ok(20_480));
    assert_eq!(f.tree.seek(ino, 5, Seek::Hole), Ok(5));
    assert_eq!(f.tree.seek(ino, 20_480, Seek::Hole), Ok(20_490));
    assert_eq!(f.tree.seek(ino, 20_490, Seek::Data), Err(Errno::NxIo));
    f.ok("setattr /f size=30000");
    assert_eq!(f.tree.seek(ino, 29_000, Seek::Data), Err(Errno::NxIo));
}

#[test]
fn permissions_are_checked_by_class_unless_the_front_end_did() {
    let mut f = Fixture::with(&["mkdir /d 700", "setattr /d uid=1 gid=10"]);
    let (owner, other) = (user(1, 1), user(2, 2));
    f.run(&owner, "mkdir /d/x 755").unwrap();
    f.refused(&other, "mkdir /d/y 755", Errno::Access);
    f.refused(&other, "mkdir /d/x 755", Errno::Access);
    f.refused(&owner, "mkdir /y 755", Errno::Access);
    f.refused(&owner, "mkdir /d 755", Errno::Exist);
    f.run(
        &Caller {
            checked: true,
            ..other.clone()
        },
        "mkdir /d/y 755",
    )
    .unwrap();
    f.ok("setattr /d perm=71");
    // The owner's class decides for the owner, even where others may do more.
    f.refused(&owner, "mkdir /d/z 755", Errno::Access);
    f.run(&user(3, 10), "mkdir /d/z 755").unwrap();
    let third = Caller {
        groups: Arc::from([10]),
        ..user(4, 4)
    };
    f.run(&third, "rmdir /d/z").unwrap();
    f.refused(&other, "rmdir /d/x", Errno::Access);
    f.refused(&other, "rmdir /d/no", Errno::NoEnt);
    assert_eq!(f.tree.access(&other, f.ino("/d"), 1), Ok(()));
    assert_eq!(f.tree.access(&other, f.ino("/d"), 4), Err(Errno::Access));
    f.ok("mknod /f file 644 0");
    assert_eq!(f.tree.access(&Caller::root(), f.ino("/f"), 6), Ok(()));
    assert_eq!(
        f.tree.access(&Caller::root(), f.ino("/f"), 1),
        Err(Errno::Access)
    );
}

#[test]
fn a_sticky_directory_keeps_others_from_removing_and_renaming() {
    let mut f = Fixture::with(&["mkdir /t 755", "setattr /t perm=1777"]);
    let (a, b) = (user(1, 1), user(2, 2));
    f.run(&a, "mknod /t/a file 666 0").unwrap();
    f.run(&b, "mkdir /t/b 777").unwrap();
    f.refused(&b, "unlink /t/a", Errno::Perm);
    f.refused(&b, "rmdir /t/a", Errno::Perm);
    f.refused(&b, "rename /t/a /t/c replace", Errno::Perm);
    f.refused(&b, "rename /t/b /t/a exchange", Errno::Perm);
    f.refused(&a, "rename /t/a /t/b replace", Errno::Perm);
    f.run(
        &Caller {
            checked: true,
            ..b.clone()
        },
        "rename /t/a /t/c replace",
    )
    .unwrap();
    f.run(&a, "unlink /t/c").unwrap();
    f.ok("setattr /t uid=1");
    f.run(&a, "rmdir /t/b").unwrap();
}

#[test]
fn a_directory_that_is_not_writable_cannot_change_its_parent() {
    let mut f = Fixture::with(&["mkdir /p 777", "mkdir /q 777", "mkdir /p/d 555"]);
    let a = user(1, 1);
    f.refused(&a, "rename /p/d /q/d replace", Errno::Access);
    f.run(&a, "rename /p/d /p/e replace").unwrap();
    f.run(&a, "mkdir /q/f 755").unwrap();
    f.refused(&a, "rename /q/f /p/e exchange", Errno::Access);
}

#[test]
fn a_set_group_id_directory_hands_its_group_on() {
    let mut f = Fixture::with(&["mkdir /d 777", "setattr /d gid=9", "setattr /d perm=2777"]);
    let a = user(1, 1);
    f.run(&a, "mkdir /d/s 755").unwrap();
    f.run(&a, "mknod /d/f file 2755 0").unwrap();
    f.run(&a, "mknod /d/g file 2745 0").unwrap();
    let got = |p: &str| (f.attr(p).gid, f.attr(p).perm);
    assert_eq!(got("/d/s"), (9, 0o2755));
    assert_eq!(got("/d/f"), (9, 0o755));
    assert_eq!(got("/d/g"), (9, 0o2745));
    f.run(
        &Caller {
            groups: Arc::from([9]),
            ..user(2, 2)
        },
        "mknod /d/h file 2755 0",
    )
    .unwrap();
    assert_eq!(f.attr("/d/h").perm, 0o2755);
    f.ok("mkdir /e 6777");
    assert_eq!(f.attr("/e").perm, 0o777);
}

#[test]
fn only_the_superuser_gives_files_away_and_owners_choose_among_their_groups() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "setattr /f uid=1 gid=1"]);
    let a = Caller {
        groups: Arc::from([5]),
        ..user(1, 1)
    };
    f.refused(&a, "setattr /f uid=2", Errno::Perm);
    f.refused(&a, "setattr /f gid=6", Errno::Perm);
    f.run(&a, "setattr /f uid=1 gid=5").unwrap();
    f.refused(&user(2, 5), "setattr /f gid=5", Errno::Perm);
    f.refused(&user(2, 5), "setattr /f perm=777", Errno::Perm);
    f.refused(&user(2, 2), "setattr /f mtime=5.0", Errno::Perm);
    f.refused(&user(2, 2), "setattr /f mtime=now", Errno::Access);
    f.refused(&user(2, 2), "setattr /f size=0", Errno::Access);
    f.run(&user(2, 2), "setattr /f size=0 by-handle").unwrap();
    f.run(&a, "setattr /f perm=646").unwrap();
    f.run(&user(2, 2), "setattr /f mtime=now").unwrap();
    f.refused(&user(2, 2), "setattr /f mtime=5.0", Errno::Perm);
    f.ok("symlink /l f");
    f.fails("setattr /l perm=600", Errno::OpNotSupp);
}

#[test]
fn set_id_bits_do_not_survive_a_change_of_owner_or_a_write_by_someone_else() {
    let mut f = Fixture::with(&["mknod /f file 6777 0", "setattr /f uid=1"]);
    assert_eq!(f.attr("/f").perm, 0o777);
    let (a, b) = (user(1, 1), user(2, 2));
    f.run(&a, "setattr /f perm=6777").unwrap();
    // Not a member of the file's group: no set-group-id for it.
    assert_eq!(f.attr("/f").perm, 0o4777);
    f.ok("setattr /f perm=6777");
    f.ok("write /f 0 =x");
    assert_eq!(f.attr("/f").perm, 0o6777);
    f.run(&b, "write /f 0 =x").unwrap();
    assert_eq!(f.attr("/f").perm, 0o777);
    f.ok("setattr /f perm=6767");
    f.run(&b, "setattr /f size=0").unwrap();
    assert_eq!(f.attr("/f").perm, 0o767);
    f.ok("setattr /f perm=2767");
    f.run(&user(0, 0), "setattr /f gid=3").unwrap();
    assert_eq!(f.attr("/f").perm, 0o2767);
    f.ok("mkdir /d 755");
    f.ok("setattr /d perm=6755");
    f.ok("setattr /d uid=4 gid=4");
    assert_eq!(f.attr("/d").perm, 0o6755);
}

#[test]
fn a_guard_that_does_not_hold_stops_the_whole_change() {
    let mut f = Fixture::with(&["mknod /f file 644 0"]);
    let ctime = f.attr("/f").ctime;
    f.fails(
        &format!("setattr /f perm=600 guard={}.5", ctime.secs),
        Errno::Again,
    );
    f.ok(&format!("setattr /f perm=600 guard={}.0", ctime.secs));
    assert_eq!(f.attr("/f").perm, 0o600);
}

#[test]
fn times_follow_the_changes() {
    let mut f = Fixture::with(&["mkdir /d 755", "mknod /d/f file 644 0"]);
    let times = |f: &Fixture, p: &str| (f.attr(p).mtime.secs, f.attr(p).ctime.secs);
    assert_eq!(times(&f, "/d"), (2, 2));
    f.ok("write /d/f 0 =x");
    assert_eq!((times(&f, "/d"), times(&f, "/d/f")), ((2, 2), (3, 3)));
    f.ok("setattr /d/f perm=600");
    assert_eq!(times(&f, "/d/f"), (3, 4));
    f.ok("link /d/f /g");
    assert_eq!(
        (times(&f, "/d/f"), times(&f, "/d"), times(&f, "/")),
        ((3, 5), (2, 2), (5, 5))
    );
    f.ok("rename /d/f /d/h replace");
    assert_eq!((times(&f, "/d/h"), times(&f, "/d")), ((3, 6), (6, 6)));
    f.ok("setattr /g mtime=77.5 atime=now");
    assert_eq!((times(&f, "/g"), f.attr("/g").atime.secs), ((77, 7), 7));
    f.ok("setxattr /g user.a b any");
    assert_eq!(times(&f, "/g"), (77, 8));
    f.ok("setattr /g size=1");
    assert_eq!(times(&f, "/g"), (9, 9));
    f.ok("unlink /d/h");
    assert_eq!((times(&f, "/g"), times(&f, "/d")), ((9, 10), (10, 10)));
    let set = SetAttr {
        mtime: Some(SetTime::Now),
        size: Some(3),
        ..SetAttr::default()
    };
    let ino = f.ino("/g");
    f.tree.setattr(&Caller::root(), t(50), ino, &set).unwrap();
    assert_eq!(times(&f, "/g"), (50, 50));
    let unchanged = f.attr("/g");
    f.tree
        .setattr(&Caller::root(), t(60), ino, &SetAttr::default())
        .unwrap();
    assert_eq!(f.attr("/g"), unchanged);
}

#[test]
fn extended_attributes_obey_modes_and_namespaces() {
    let mut f = Fixture::with(&["mknod /f file 644 0", "symlink /l f"]);
    f.fails("setxattr /f user.a 1 replace", Errno::NoData);
    f.ok("setxattr /f user.a 1 create");
    f.fails("setxattr /f user.a 2 create", Errno::Exist);
    f.ok("setxattr /f user.a 2 replace");
    f.fails("removexattr /f user.b", Errno::NoData);
    f.fails("setxattr /f - 1 any", Errno::Range);
    f.fails("setxattr /f nonsense 1 any", Errno::OpNotSupp);
    f.fails("setxattr /f user. 1 any", Errno::Inval);
    f.fails("setxattr /l user.a 1 any", Errno::Perm);
    f.refused(&user(1, 1), "setxattr /f user.a 3 any", Errno::Access);
    f.refused(&user(1, 1), "setxattr /f trusted.a 3 any", Errno::Perm);
    f.ok("setxattr /f trusted.a 3 any");
    let ino = f.ino("/f");
    assert_eq!(f.tree.getxattr(&user(1, 1), ino, b"user.a"), Ok(&b"2"[..]));
    assert_eq!(
        f.tree.getxattr(&user(1, 1), ino, b"trusted.a"),
        Err(Errno::NoData)
    );
    assert_eq!(
        f.tree.listxattr(&user(1, 1), ino),
        Ok(vec![b"user.a".to_vec()])
    );
    assert_eq!(
        f.tree.listxattr(&Caller::root(), ino).map(|l| l.len()),
        Ok(2)
    );
    let set = f.tree.setxattr(
        &Caller::root(),
        t(9),
        ino,
        (b"user.b", &[0; 65_537]),
        XattrMode::Any,
    );
    assert_eq!(set, Err(Errno::Range));
}

#[test]
fn special_files_keep_their_device_number_and_need_the_superuser() {
    let mut f = Fixture::with(&[
        "mkdir /d 777",
        "mknod /d/c char 600 259",
        "mknod /d/p fifo 600 7",
    ]);
    assert_eq!((f.attr("/d/c").rdev, f.attr("/d/p").rdev), (259, 0));
    f.refused(&user(1, 1), "mknod /d/e block 600 1", Errno::Perm);
    f.run(&user(1, 1), "mknod /d/s socket 600 0").unwrap();
    let dir = NewNode {
        kind: FileKind::Directory,
        perm: 0o755,
        rdev: 0,
    };
    assert_eq!(
        f.tree.mknod(&Caller::root(), t(1), ROOT, b"x", &dir),
        Err(Errno::Perm)
    );
}

#[test]
fn corner_31_a_listing_goes_on_where_it_stopped_while_entries_come_and_go() {
    let mut f = Fixture::new();
    for i in 0..20 {
        f.ok(&format!("mknod /f{i:02} file 644 0"));
    }
    let first = f.tree.readdir(ROOT, 0, 7).unwrap();
    let names: Vec<&[u8]> = first.iter().map(|e| &e.name[..]).collect();
    assert_eq!(&names[..3], [&b"."[..], b"..", b"f00"]);
    for gone in ["/f04", "/f02", "/f11"] {
        f.ok(&format!("unlink {gone}"));
    }
    f.ok("mknod /a file 644 0");
    f.ok("mknod /f02 file 644 0");
    let rest = f.tree.readdir(ROOT, first[6].cookie, 100).unwrap();
    let names: Vec<String> = rest
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect();
    let old: Vec<String> = (5..20)
        .filter(|i| *i != 11)
        .map(|i| format!("f{i:02}"))
        .collect();
    assert!(
        old.iter()
            .all(|n| names.iter().filter(|m| *m == n).count() == 1),
        "{names:?}"
    );
    assert_eq!(names.len(), old.len() + 2);
}

#[test]
fn allocation_modes_cover_the_trait() {
    let all = [
        AllocateMode::Allocate,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ];
    let f = Fixture::with(&["mknod /f file 644 0", "append /f =abc"]);
    let sizes = all.map(|mode| {
        let mut tree = f.tree.clone();
        tree.fallocate(&Caller::root(), t(5), f.ino("/f"), mode, 1, 9)
            .unwrap();
        tree.getattr(f.ino("/f")).unwrap().size
    });
    assert_eq!(sizes, [10, 3, 3, 10, 3]);
}
