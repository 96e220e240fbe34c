//! Features that users expect of a file system beyond POSIX: the upper layer of an overlay, flags of files, access
//! control lists by their programs, a scrub beside writers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use common::{Place, User, said};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use steadfast_block::BLOCK_SIZE;

/// Runs a script in the place's directory; it must succeed.
fn sh(place: &Place, script: &str) -> String {
    let output = place.command("sh", &["-ec", script]);
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn has(program: &str) -> bool {
    let found =
        Path::new("/usr/bin").join(program).exists() || Path::new("/bin").join(program).exists();
    if !found {
        steadfast_testkit::skipped!("there is no {program} here");
    }
    found
}

/// podman's storage needs this, among others. The kernel needs whiteouts by rename, file types in listings and
/// `trusted.` attributes; without any of them it refuses the mount.
#[test]
fn an_overlay_has_its_upper_layer_on_the_mount() {
    let _alone = common::alone();
    let kinds = fs::read_to_string("/proc/filesystems").unwrap();
    if !kinds.contains("\toverlay\n") || !has("unshare") {
        steadfast_testkit::skipped!("this kernel has no overlays");
        return;
    }
    let Some(place) = Place::mounted("allow_other,suid,dev") else {
        return;
    };
    let log = sh(
        &place,
        "mkdir -p lower/dir/deep mnt/upper mnt/work merged
         echo old > lower/changed; echo old > lower/gone; echo old > lower/moved
         echo old > lower/dir/deep/file; mkdir lower/emptied; echo old > lower/emptied/x
         cp /bin/true lower/program
         cat > script <<'END'
         mount -t overlay none -o lowerdir=lower,upperdir=mnt/upper,workdir=mnt/work merged
         cd merged
         echo new > changed
         rm gone
         mv moved to
         rm -r emptied; mkdir emptied; echo new > emptied/y
         cp -a dir copied; rm -r dir; mv copied dir
         chmod 700 program; ./program
         ln changed linked
         mkfifo pipe; ln -s to symlink
         test \"$(cat changed linked to dir/deep/file emptied/y)\" = \"$(printf 'new\\nnew\\nold\\nold\\nnew')\"
         test ! -e gone; test ! -e moved; test ! -e emptied/x
         test \"$(ls | tr '\\n' ' ')\" = 'changed dir emptied linked pipe program symlink to '
         cd ..; umount merged
END
         unshare -m sh -ec '. ./script'",
    );
    println!("{log}");
    let whiteout = |name: &str| {
        let found = fs::symlink_metadata(place.mnt().join("upper").join(name)).unwrap();
        found.file_type().is_char_device() && found.rdev() == 0
    };
    assert!(whiteout("gone") && whiteout("moved"));
    place.end();
}

#[test]
fn chattr_and_lsattr_work_and_flags_hold_on_a_mount() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("allow_other") else {
        return;
    };
    let path = place.mnt().join("f");
    fs::write(&path, b"content").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(ioctl_getflags(&file), Ok(IFlags::empty()));
    ioctl_setflags(&file, IFlags::IMMUTABLE | IFlags::NODUMP).unwrap();
    let stays = place.mnt().join("stays");
    ioctl_setflags(File::create(&stays).unwrap(), IFlags::NOCOW).unwrap();
    let refused = Err(Errno::PERM.raw_os_error());
    let errno = |result: std::io::Result<()>| result.map_err(|e| e.raw_os_error().unwrap());
    assert_eq!(errno(file.write_all_at(b"x", 0)), refused);
    assert_eq!(errno(fs::remove_file(&path)), refused);
    assert_eq!(errno(fs::rename(&path, place.mnt().join("g"))), refused);
    drop(file);
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", "img"]);
    place.must(&["mount", "-o", "allow_other", "img", "mnt"]);
    let file = File::open(&path).unwrap();
    assert_eq!(
        ioctl_getflags(&file),
        Ok(IFlags::IMMUTABLE | IFlags::NODUMP)
    );
    let stays = File::open(&stays).unwrap();
    assert_eq!(ioctl_getflags(&stays), Ok(IFlags::NOCOW));
    drop(stays);
    // A flag that cannot be kept is refused.
    assert_eq!(
        ioctl_setflags(&file, IFlags::COMPRESSED),
        Err(Errno::OPNOTSUPP)
    );
    let nobody = User {
        uid: 65_534,
        gid: 65_534,
        groups: &[],
    };
    let set = nobody.run(|| ioctl_setflags(File::open(&path).unwrap(), IFlags::empty()));
    assert!(matches!(set, Err(Errno::PERM | Errno::ACCESS)), "{set:?}");
    ioctl_setflags(&file, IFlags::empty()).unwrap();
    drop(file);
    if has("chattr") && has("lsattr") {
        let shown = sh(
            &place,
            "chattr +aA mnt/f; echo more >> mnt/f; lsattr mnt/f; lsattr -d mnt",
        );
        let flags = shown.split_whitespace().next().unwrap_or_default();
        assert!(
            flags.contains('a') && flags.contains('A') && !flags.contains('i'),
            "{shown}"
        );
        sh(
            &place,
            "! (echo x > mnt/f) 2>/dev/null; ! rm -f mnt/f 2>/dev/null; chattr -aA mnt/f",
        );
        assert_eq!(fs::read(&path).unwrap(), b"contentmore\n");
    }
    fs::remove_file(&path).unwrap();
    place.end();
}

#[test]
fn setfacl_getfacl_and_copies_keep_lists() {
    let _alone = common::alone();
    if !has("setfacl") || !has("getfacl") {
        return;
    }
    let Some(place) = Place::mounted("allow_other") else {
        return;
    };
    sh(
        &place,
        "cd mnt; umask 077
         echo x > f; setfacl -m u:65533:rw,g:65532:r f
         mkdir d; setfacl -d -m u:65533:rwx d; echo y > d/in; mkdir d/sub
         cp -a f copy; tar --acls -cf t.tar f d; mkdir out; tar --acls -xf t.tar -C out",
    );
    let of = |name: &str| sh(&place, &format!("getfacl -nc mnt/{name}"));
    let f = of("f");
    assert!(
        f.contains("user:65533:rw-") && f.contains("group:65532:r--"),
        "{f}"
    );
    for name in ["copy", "out/f"] {
        assert_eq!(of(name), f, "{name}");
    }
    let (sub, inside) = (of("d/sub"), of("d/in"));
    assert!(sub.contains("default:user:65533:rwx"), "{sub}");
    assert!(
        inside.contains("user:65533:rwx") && inside.contains("mask::rw-"),
        "{inside}"
    );
    assert_eq!(of("out/d/sub"), sub);
    let named = User {
        uid: 65_533,
        gid: 65_533,
        groups: &[],
    };
    let path = place.mnt().join("f");
    assert_eq!(named.run(|| fs::read(&path).unwrap()), b"x\n");
    sh(&place, "chmod 600 mnt/f");
    assert!(named.run(|| fs::read(&path)).is_err());
    sh(&place, "setfacl -b mnt/f; setfacl -k mnt/d");
    assert!(!of("f").contains("65533") && !of("d").contains("default"));
    place.end();
}

fn flip(place: &Place, block: u64) {
    let image = File::options()
        .read(true)
        .write(true)
        .open(place.path().join("img"))
        .unwrap();
    let (mut byte, at) = ([0], block * BLOCK_SIZE as u64 + 100);
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 1], at).unwrap();
    image.sync_all().unwrap();
}

#[test]
fn a_scrub_finds_damage_on_a_mount_and_in_an_image() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("defaults") else {
        return;
    };
    for n in 0..200 {
        fs::write(place.mnt().join(format!("f{n}")), vec![7; 9000]).unwrap();
    }
    let writing = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..200 {
                fs::write(place.mnt().join(format!("g{n}")), b"more").unwrap();
            }
        });
        let said = place.must(&["scrub", "--data", "mnt"]);
        writer.join().unwrap();
        said
    });
    assert!(writing.contains("nothing wrong"), "{writing}");
    let root = fs::metadata(place.mnt()).unwrap().ino();
    assert_eq!(root, 1, "as the kernel sees it");
    place.must(&["umount", "mnt"]);
    let said = place.must(&["scrub", "--json", "--rate", "1G", "img"]);
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["clean"], true);
    assert!(json["metadata_blocks"].as_u64() > Some(20), "{said}");
    // The leaf of a directory, which a mount reads only when somebody looks there.
    place.must(&["mount", "img", "mnt"]);
    fs::create_dir(place.mnt().join("d")).unwrap();
    fs::write(place.mnt().join("d/file"), b"x").unwrap();
    place.must(&["umount", "mnt"]);
    let dump = place.must(&["dump", "--directory", "/d", "--json", "img"]);
    let dump: serde_json::Value = serde_json::from_str(&dump).unwrap();
    let leaf = dump["leaves"][0]["block"]
        .as_u64()
        .unwrap_or_else(|| panic!("{dump}"));
    flip(&place, leaf);
    let said = place.refused(4, &["scrub", "img"]);
    assert!(
        said.contains(&format!(
            "block {leaf}: a directory leaf fails its checksum"
        )),
        "{said}"
    );
    place.must(&["mount", "img", "mnt"]);
    let said = place.refused(4, &["scrub", "mnt"]);
    assert!(
        said.contains(&format!("block {leaf}: a directory leaf")),
        "{said}"
    );
    place.must(&["umount", "mnt"]);
    flip(&place, leaf);
    place.must(&["scrub", "img"]);
    place.refused(8, &["scrub", "nowhere"]);
    place.refused(2, &["scrub", "--rate", "0", "img"]);
    place.must(&["fsck", "img"]);
}
