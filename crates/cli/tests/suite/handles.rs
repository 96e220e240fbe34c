//! File handles of the kernel (`name_to_handle_at`, `open_by_handle_at`) on a mount: an NFS server of the kernel, a
//! backup program or a file-system watcher keeps them instead of paths.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use common::{Place, said};
use std::fs;
use std::path::Path;

/// `take FILE NAME…` writes the handles of names; `open FILE KEY=WANT…` opens them. WANT is the expected content:
/// `=TEXT` of a file, `/NAME` in a directory, or the name of an error.
const SCRIPT: &str = r#"
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

def take(name):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, name.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), name)
    return [handle.type, bytes(handle.data[:handle.bytes]).hex(), os.stat(name).st_ino]

def opened(mount, kind, data):
    raw = bytes.fromhex(data)
    handle = Handle(bytes=len(raw), type=kind)
    ctypes.memmove(handle.data, raw, len(raw))
    fd = libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd

what, book, *rest = sys.argv[1:]
if what == "take":
    json.dump({name: take(name) for name in rest}, open(book, "w"))
    sys.exit()
book = json.load(open(book))
mount = os.open("mnt", os.O_RDONLY | os.O_DIRECTORY)
for item in rest:
    name, want = item.split("=", 1)
    kind, data, ino = book[name]
    try:
        fd = opened(mount, kind, data)
    except OSError as error:
        found = errno.errorcode[error.errno]
    else:
        assert os.fstat(fd).st_ino == ino, (name, os.fstat(fd), ino)
        if want[0] == "/":
            found = want if want[1:] in os.listdir(fd) else os.listdir(fd)
        else:
            found = "=" + os.read(fd, 100).decode()
        os.close(fd)
    assert found == want, (name, found, want)
"#;

fn run(place: &Place, args: &[&str]) {
    let output = place.command("python3", &[&["-c", SCRIPT], args].concat());
    assert!(output.status.success(), "{args:?}: {}", said(&output));
}

/// Makes the kernel drop unused inodes, if that is permitted: else the remount does it.
fn forget() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
}

/// Story: the kernel asks for "." in the inode of a handle. For a file the answer was that it is no directory, so a
/// file's handle was stale as soon as the kernel had forgotten the file.
#[test]
fn a_handle_opens_its_inode_as_long_as_that_has_a_name_and_no_other() {
    use std::os::unix::fs::MetadataExt;
    let Some(place) = Place::mounted("allow_other") else {
        return;
    };
    if !Path::new("/usr/bin/python3").exists()
        && place
            .command("sh", &["-c", "command -v python3"])
            .stdout
            .is_empty()
    {
        steadfast_testkit::skipped!("there is no python3");
        place.end();
        return;
    }
    let at = |name: &str| place.mnt().join(name);
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::create_dir(at("gone-dir")).unwrap();
    for name in ["dir/file", "dir/sub/deep", "moved", "gone", "reused"] {
        fs::write(at(name), name).unwrap();
    }
    fs::hard_link(at("dir/file"), at("link")).unwrap();
    let names = [
        "mnt/dir",
        "mnt/dir/sub",
        "mnt/gone-dir",
        "mnt/dir/file",
        "mnt/link",
        "mnt/dir/sub/deep",
        "mnt/moved",
        "mnt/gone",
        "mnt/reused",
        "mnt",
    ];
    run(&place, &[&["take", "book"], &names[..]].concat());
    let alive = [
        "open",
        "book",
        "mnt=/dir",
        "mnt/dir=/sub",
        "mnt/dir/sub=/deep",
        "mnt/dir/file==dir/file",
        "mnt/link==dir/file",
        "mnt/dir/sub/deep==dir/sub/deep",
        "mnt/moved==moved",
    ];
    forget();
    let all = ["mnt/gone==gone", "mnt/reused==reused"];
    run(&place, &[&alive[..], &all].concat());

    let number = fs::metadata(at("reused")).unwrap().ino();
    fs::remove_file(at("gone")).unwrap();
    fs::remove_dir(at("gone-dir")).unwrap();
    fs::remove_file(at("reused")).unwrap();
    fs::rename(at("moved"), at("dir/elsewhere")).unwrap();
    // The other name remains.
    fs::remove_file(at("dir/file")).unwrap();
    forget();
    // The kernel sends its FORGETs when it finds the time: then the number is free.
    let again = (0..1000).any(|n| {
        fs::write(at(&format!("new{n}")), "another").unwrap();
        fs::metadata(at(&format!("new{n}"))).unwrap().ino() == number
    });
    assert!(again, "the number is not used again");
    let stale = [
        "mnt/gone=ESTALE",
        "mnt/gone-dir=ESTALE",
        "mnt/reused=ESTALE",
    ];
    run(&place, &[&alive[..], &stale].concat());
    forget();
    run(&place, &[&alive[..], &stale].concat());

    // A kernel that never saw any of them.
    place.must(&["umount", "mnt"]);
    place.must(&["mount", "-o", "allow_other", "img", "mnt"]);
    run(&place, &[&alive[..], &stale].concat());
    place.end();
}
