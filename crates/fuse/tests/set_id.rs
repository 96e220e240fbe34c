//! Set-id bits that a write by another user has cleared are gone for the kernel, too.
//!
//! The file system clears them (`FUSE_HANDLE_KILLPRIV_V2`), and the kernel went on executing the program with the
//! owner's privileges: it had cached the mode for a day, and a write invalidates size and times only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use common::Mount;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Gid, OFlags, StatxFlags, Uid};
use rustix::pipe::SpliceFlags;
use rustix::thread::CapabilitySet;
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

/// The tests run programs that they have written: a child that another one makes at that moment would hold the program open
/// for writing until it runs its own.
static ALONE: Mutex<()> = Mutex::new(());

/// A user who owns nothing.
const OTHER: u32 = 65534;
/// Length of the program on the mount: a whole number of pages.
const LEN: u64 = 1 << 20;

/// Runs `act` in a thread of another user's, without capabilities.
fn as_other<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (gid, uid) = (Gid::from_raw(OTHER), Uid::from_raw(OTHER));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// Makes a program that all users may write to, with these bits, and makes the kernel cache it.
fn program(path: &Path, mode: u32) {
    fs::copy("/usr/bin/id", path).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(LEN).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    drop(file);
    assert_eq!(mode_of(path), mode);
}

/// The mode alone, which the kernel answers from its cache while it trusts that.
fn mode_of(path: &Path) -> u32 {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    u32::from(found.stx_mode) & 0o7777
}

/// The effective user that the program runs with when the other user starts it.
fn runs_as(path: &Path) -> u32 {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(path);
    command.arg("-u").uid(OTHER).gid(OTHER);
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

fn open(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags.bits() as i32);
    options.open(path).unwrap()
}

/// A way to change a file's content, and its name.
type Way = (&'static str, fn(&Path));

/// All of them leave the program as it was up to its end.
const WAYS: [Way; 9] = [
    ("write", |path| {
        let file = open(path, OFlags::empty());
        file.write_all_at(b"x", LEN - 1).unwrap();
    }),
    ("O_DIRECT", |path| {
        let page = vec![0u64; 2 * 512];
        let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let start = bytes.as_ptr().align_offset(4096);
        let aligned = &bytes[start..start + 4096];
        open(path, OFlags::DIRECT)
            .write_all_at(aligned, LEN - 4096)
            .unwrap();
    }),
    ("append", |path| {
        open(path, OFlags::APPEND).write_all(b"x").unwrap();
    }),
    ("splice", |path| {
        let (out, into) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&into, b"spliced").unwrap();
        let (file, mut at) = (open(path, OFlags::empty()), LEN - 7);
        let moved = rustix::pipe::splice(&out, None, &file, Some(&mut at), 7, SpliceFlags::empty());
        assert_eq!(moved, Ok(7));
    }),
    ("copy_file_range", |path| {
        let (file, mut from, mut to) = (open(path, OFlags::empty()), 0, LEN);
        let source = File::open(path).unwrap();
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from), &file, Some(&mut to), 10);
        assert_eq!(copied, Ok(10));
    }),
    ("fallocate", |path| {
        let file = open(path, OFlags::empty());
        rustix::fs::fallocate(&file, FallocateFlags::empty(), LEN, 4096).unwrap();
    }),
    ("punch", |path| {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open(path, OFlags::empty()), how, LEN - 4096, 4096).unwrap();
    }),
    ("zero range", |path| {
        let file = open(path, OFlags::empty());
        rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, LEN - 4096, 4096).unwrap();
    }),
    ("ftruncate", |path| {
        open(path, OFlags::empty()).set_len(LEN - 1).unwrap();
    }),
];

#[test]
fn a_set_uid_program_written_to_by_another_user_loses_its_privilege_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("other users need root");
    }
    for write_back in [false, true] {
        let change = |options: &mut steadfast_fuse::MountOptions| {
            options.allow_other = true;
            options.set_id = true;
            options.write_back = write_back;
        };
        let Some(m) = Mount::new(change) else { return };
        for (name, way) in WAYS {
            // A new file for each way: some leave it to the kernel to ask for the attributes again.
            let path = m.join(name.replace(' ', "-"));
            program(&path, 0o4777);
            assert_eq!(runs_as(&path), 0, "{name}: before");
            as_other(|| way(&path));
            assert_eq!(runs_as(&path), OTHER, "{name}: still runs as root");
            assert_eq!(mode_of(&path), 0o777, "{name}");
        }
    }
}

#[test]
fn root_without_the_capability_to_keep_set_id_bits_does_not_keep_them() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("other users need root");
    }
    for write_back in [false, true] {
        let change = |options: &mut steadfast_fuse::MountOptions| {
            options.allow_other = true;
            options.write_back = write_back;
        };
        let Some(m) = Mount::new(change) else { return };
        for (name, way) in &WAYS[..4] {
            let path = m.join(name);
            program(&path, 0o6777);
            thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut sets = rustix::thread::capabilities(None).unwrap();
                    sets.effective.remove(CapabilitySet::FSETID);
                    rustix::thread::set_capabilities(None, sets).unwrap();
                    way(&path);
                });
                thread.join().unwrap();
            });
            assert_eq!(mode_of(&path), 0o777, "{name}");
        }
    }
}

/// overlayfs writes to its upper layer with the identity of root, which has mounted it, whichever user writes; and the
/// kernel does not pass on a request to clear the bits if the FUSE server is said to clear them.
#[test]
fn set_id_bits_do_not_survive_a_write_through_an_overlay_either() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("other users need root");
    }
    let change = |options: &mut steadfast_fuse::MountOptions| {
        options.allow_other = true;
        options.set_id = true;
        options.upper_layer = true;
    };
    let Some(m) = Mount::new(change) else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let merged = dir.path().join("merged");
    for name in ["merged", "lower"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for name in ["upper", "work"] {
        fs::create_dir(m.join(name)).unwrap();
    }
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        dir.path().join("lower").display(),
        m.join("upper").display(),
        m.join("work").display()
    );
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "overlay", "overlay", "-o", &layers])
        .arg(&merged);
    if !mount.status().is_ok_and(|status| status.success()) {
        return steadfast_testkit::skipped!("no overlayfs over FUSE here");
    }
    let seen = std::panic::catch_unwind(|| {
        let mut seen = Vec::new();
        // Not O_DIRECT, which overlayfs does not offer here, and not the last ones, whose file is replaced.
        for (name, way) in WAYS.into_iter().filter(|(name, _)| *name != "O_DIRECT") {
            let path = merged.join(name.replace(' ', "-"));
            program(&path, 0o4777);
            as_other(|| way(&path));
            seen.push((name, runs_as(&path), mode_of(&path)));
            // Root itself keeps them.
            program(&path, 0o4777);
            way(&path);
            assert_eq!(mode_of(&path), 0o4777, "{name} by root");
        }
        seen
    });
    // A child of another test may hold a file of it for the moment before it becomes another program.
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::DETACH).unwrap();
    for (name, user, mode) in seen.unwrap() {
        assert_eq!((user, mode), (OTHER, 0o777), "{name}");
    }
}

#[test]
fn every_reply_that_tells_of_a_set_id_file_is_trusted_for_the_moment_only() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !rustix::process::geteuid().is_root() {
        return steadfast_testkit::skipped!("other users need root");
    }
    let change = |options: &mut steadfast_fuse::MountOptions| {
        options.allow_other = true;
        options.set_id = true;
    };
    let Some(m) = Mount::new(change) else { return };
    let written = |path: &Path| {
        let file = open(path, OFlags::empty());
        as_other(|| file.write_all_at(b"x", 0).unwrap());
        mode_of(path)
    };
    // Made so: by CREATE and by MKNOD.
    let created = m.join("created");
    let create = OFlags::CREATE | OFlags::RDWR;
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    drop(rustix::fs::open(&created, create, 0o6777.into()).unwrap());
    let made = m.join("made");
    let kind = rustix::fs::FileType::RegularFile;
    rustix::fs::mknodat(CWD, &made, kind, 0o6777.into(), 0).unwrap();
    rustix::process::umask(before);
    assert_eq!(written(&created), 0o777, "CREATE");
    assert_eq!(written(&made), 0o777, "MKNOD");
    // Given another name.
    let set = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o6777)).unwrap();
    let linked = m.join("linked");
    set(&made);
    fs::hard_link(&made, &linked).unwrap();
    assert_eq!(written(&linked), 0o777, "LINK");
    // Looked up, and listed with attributes: made where the kernel does not see it.
    let (fs, caller) = (&m.fs.inner, Caller::root());
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o6777,
        rdev: 0,
    };
    fs.mknod(&caller, fs.root(), b"found", &node).unwrap();
    assert_eq!(written(&m.join("found")), 0o777, "LOOKUP");
    let dir = fs.mkdir(&caller, fs.root(), b"dir", 0o755).unwrap();
    fs.mknod(&caller, dir.ino, b"listed", &node).unwrap();
    let listed = m.join("dir/listed");
    assert_eq!(fs::read_dir(m.join("dir")).unwrap().count(), 1);
    assert_eq!(written(&listed), 0o777, "READDIRPLUS");
}
