//! `store copy` and `store promote`: volumes that move between media, and clones that outlive their parents.
#![cfg(feature = "store")]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::place;
use crate::programs;

use place::Place;

impl Place {
    /// The content of a volume, seen through a mount.
    fn tree(&self, volume: &str) -> BTreeMap<PathBuf, Shown> {
        self.must(&["mount", "-o", "ro", volume, "mnt"]);
        let mut tree = BTreeMap::new();
        show(&self.at("mnt"), Path::new(""), &mut tree);
        self.must(&["umount", "mnt"]);
        tree
    }
}

/// Everything of an inode that a copy keeps.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    rdev: u64,
    modified: (i64, i64),
    accessed: (i64, i64),
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Vec<u8>,
    /// The first name of the inode, if it has several.
    same_as: Option<PathBuf>,
}

fn show(root: &Path, path: &Path, tree: &mut BTreeMap<PathBuf, Shown>) {
    fn walk(
        root: &Path,
        path: &Path,
        seen: &mut BTreeMap<u64, PathBuf>,
        tree: &mut BTreeMap<PathBuf, Shown>,
    ) {
        let at = root.join(path);
        let meta = fs::symlink_metadata(&at).unwrap();
        let mut names = vec![0; 4096];
        let len = rustix::fs::llistxattr(&at, &mut names[..]).unwrap();
        let mut attributes = BTreeMap::new();
        for name in names[..len]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let mut value = vec![0; 4096];
            let name_c = CString::new(name).unwrap();
            let len = rustix::fs::lgetxattr(&at, name_c.as_c_str(), &mut value[..]).unwrap();
            attributes.insert(name.to_vec(), value[..len].to_vec());
        }
        let kind = meta.file_type();
        let content = if kind.is_file() {
            fs::read(&at).unwrap()
        } else if kind.is_symlink() {
            fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let several = !kind.is_dir() && meta.nlink() > 1;
        let first = several.then(|| {
            seen.entry(meta.ino())
                .or_insert_with(|| path.to_owned())
                .clone()
        });
        let shown = Shown {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            links: meta.nlink(),
            rdev: meta.rdev(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            accessed: (meta.atime(), meta.atime_nsec()),
            attributes,
            content,
            same_as: first,
        };
        tree.insert(path.to_owned(), shown);
        if kind.is_dir() {
            let mut names: Vec<_> = fs::read_dir(&at)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            for name in names {
                walk(root, &path.join(name), seen, tree);
            }
        }
    }
    walk(root, path, &mut BTreeMap::new(), tree);
}

/// One file of each kind, with attributes that a careless copy loses.
fn fill(root: &Path) {
    let shell = "set -e
        mkdir -p a/b/c empty
        echo text > a/file
        ln a/file a/b/second
        ln a/file third
        ln -s ../nowhere a/link
        mkfifo a/pipe
        mknod a/device c 1 3
        printf x > a/b/set-id; chown 5:7 a/b/set-id; chmod 6755 a/b/set-id
        truncate -s 5000001 a/sparse; printf middle | dd of=a/sparse bs=1 seek=3000000 conv=notrunc status=none
        head -c 3000000 /dev/urandom > a/b/c/large
        printf 'é\\n' > 'a/b/a name
of two lines'
        chmod 1777 empty; chown 3:4 empty
        printf y > a/b/kept; chattr +i a/b/kept
        printf z > a/b/grows; chattr +a a/b/grows
        for i in $(seq 300); do : > a/b/c/entry-$i; done
        touch -h -d 2001-02-03T04:05:06.789 a/link
        touch -d 1999-12-31T23:59:59.5 a/file
        chattr +A .
        touch -d 2010-01-01 a/b a empty .";
    // Attributes first: the times come last.
    let set = |path: &str, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(root.join(path), name, value, flags).unwrap();
    };
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("attributes"), b"long").unwrap();
    set("attributes", "user.note", &[b'v'; 200]);
    set("attributes", "trusted.other", b"");
    set("a", "user.of-a-directory", b"1");
    // A default ACL: user::rwx, user:9:r-x, group::r-x, mask::r-x, other::---.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, perm, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 5, 9),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    set("a/b", "system.posix_acl_default", &acl);
    programs::must(root, "bash", &["-c", shell]);
}

#[test]
#[cfg_attr(
    any(not(feature = "flash"), not(feature = "pm")),
    ignore = "needs flash and pm"
)]
fn a_volume_moves_between_all_media_and_keeps_all_but_its_numbers() {
    let Some(place) = Place::in_memory() else {
        return;
    };
    place.must(&["mkfs", "--size", "64M", "disk.img"]);
    place.must(&["mount", "-o", "acl", "disk.img", "mnt"]);
    fill(&place.at("mnt"));
    place.must(&["umount", "mnt"]);
    let first = place.tree("disk.img");
    assert!(first.len() > 315, "{}", first.len());
    let url = place.url("store");
    place.must(&["mkfs", "--size", "256M", "--on", &url]);
    place.must(&["mkfs", "--size", "128M", "--on", "flash", "disk.flash"]);
    place.must(&["mkfs", "--size", "64M", "--on", "pm", "disk.pm"]);
    place.must(&["mkfs", "--size", "64M", "--contract", "relaxed", "last.img"]);
    let media = ["disk.img", &url, "disk.flash", "disk.pm", "last.img"];
    for pair in media.windows(2) {
        let said = place.must(&["store", "copy", pair[0], pair[1]]);
        assert!(said.contains("copied from"), "{said}");
        let tree = place.tree(pair[1]);
        for (path, shown) in &first {
            let copy = tree
                .get(path)
                .unwrap_or_else(|| panic!("{} has no {path:?}", pair[1]));
            assert!(
                copy == shown,
                "{}: {path:?}: {copy:?} for {shown:?}",
                pair[1]
            );
        }
        assert_eq!(tree.len(), first.len(), "{}", pair[1]);
        place.must(&["fsck", pair[1]]);
    }
    // Flags are kept where the media know them.
    place.must(&["mount", "last.img", "mnt"]);
    let sparse = fs::metadata(place.at("mnt/a/sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "a hole was filled");
    place.must(&["umount", "mnt"]);
    place.must(&["mount", &url, "mnt"]);
    let flags = programs::must(place.dir.path(), "lsattr", &["-d", "mnt"]);
    assert!(flags.contains('A'), "of the root: {flags}");
    assert!(
        fs::write(place.at("mnt/a/b/kept"), b"new").is_err(),
        "it is immutable"
    );
    assert!(
        fs::write(place.at("mnt/a/b/grows"), b"new").is_err(),
        "it only grows"
    );
    place.must(&["umount", "mnt"]);
    // A volume with files is no target.
    let full = programs::refused(
        place.dir.path(),
        1,
        &["store", "copy", "disk.img", "last.img"],
    );
    assert!(full.contains("holds files"), "{full}");
}

#[test]
fn a_copy_that_ends_early_says_so_in_the_volume() {
    let Some(place) = Place::in_memory() else {
        return;
    };
    place.must(&["mkfs", "--size", "64M", "disk.img"]);
    place.must(&["mkfs", "--size", "16M", "small.img"]);
    place.must(&["mount", "disk.img", "mnt"]);
    let file = fs::File::create(place.at("mnt/large")).unwrap();
    for at in 0..30 {
        file.write_all_at(&vec![7; 1 << 20], at << 20).unwrap();
    }
    drop(file);
    place.must(&["umount", "mnt"]);
    let said = programs::refused(
        place.dir.path(),
        1,
        &["store", "copy", "disk.img", "small.img"],
    );
    assert!(
        said.contains("incomplete") && said.contains("/large: no space left"),
        "{said}"
    );
    place.must(&["mount", "small.img", "mnt"]);
    assert!(place.at("mnt/.steadfast-copy-incomplete").exists());
    let busy = programs::refused(
        place.dir.path(),
        1,
        &["store", "copy", "disk.img", "small.img"],
    );
    assert!(busy.contains("in use"), "{busy}");
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", "small.img"]);
    let again = programs::refused(
        place.dir.path(),
        1,
        &["store", "copy", "small.img", "disk.img"],
    );
    assert!(again.contains("holds files"), "{again}");
    place.must(&["mkfs", "--force", "disk.img"]);
    // An incomplete copy is no source.
    let half = programs::refused(
        place.dir.path(),
        1,
        &["store", "copy", "small.img", "disk.img"],
    );
    assert!(half.contains(".steadfast-copy-incomplete"), "{half}");
}

#[test]
fn a_promoted_clone_outlives_its_parent() {
    let Some(place) = Place::in_memory() else {
        return;
    };
    let (parent, clone) = (place.url("parent"), place.url("clone"));
    place.must(&["mkfs", "--size", "128M", "--on", &parent]);
    place.must(&["mount", &parent, "mnt"]);
    fs::write(place.at("mnt/file"), vec![b'p'; 3 << 20]).unwrap();
    place.must(&["umount", "mnt"]);
    place.must(&["store", "snapshot", "create", &parent, "day"]);
    place.must(&["store", "clone", &format!("{parent}@day"), &clone]);
    let whole = programs::refused(place.dir.path(), 1, &["store", "promote", &parent]);
    assert!(whole.contains("is no clone"), "{whole}");
    place.must(&["mount", &clone, "mnt"]);
    fs::write(place.at("mnt/own"), b"own").unwrap();
    place.must(&["umount", "mnt"]);
    let listed = place.must(&["store", "snapshot", "list", &parent]);
    assert!(listed.contains("clone"), "{listed}");
    let said = place.must(&["store", "promote", "--json", &clone]);
    assert!(said.contains("\"copied_bytes\""), "{said}");
    let listed = place.must(&["store", "snapshot", "list", &parent]);
    assert!(!listed.contains("clone"), "{listed}");
    fs::remove_dir_all(place.at("parent")).unwrap();
    place.must(&["store", "check", &clone]);
    place.must(&["mount", &clone, "mnt"]);
    assert_eq!(fs::read(place.at("mnt/file")).unwrap(), vec![b'p'; 3 << 20]);
    assert_eq!(fs::read(place.at("mnt/own")).unwrap(), b"own");
    place.must(&["umount", "mnt"]);
    let again = place.must(&["store", "promote", &clone]);
    assert!(again.contains(" 0 B copied"), "{again}");
}
