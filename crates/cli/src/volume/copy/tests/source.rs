//! A volume with every kind of inode, and with attributes that a careless copy loses.

use super::tree::{Tree, observe};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use steadfast_fs::{Contract, Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_sim::{Image, SimDevice};
use steadfast_testkit::calls::{Handy, root};
use steadfast_vfs::acl::{self, Acl, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{
    Clock, FileKind, FileSystem, Ino, InodeFlags, NewNode, SetAttr, SetTime, Time, XattrMode,
};

const BLOCKS: u64 = 2048;
const LOG_BLOCKS: u64 = 128;

/// Now, for volumes: long after all times of the source, and never the same time twice.
struct Now(AtomicI64);

impl Clock for Now {
    fn now(&self) -> Time {
        Time {
            secs: self.0.fetch_add(1, Ordering::Relaxed),
            nanos: 0,
        }
    }
}

/// A new volume.
pub(super) fn empty(contract: Contract) -> Image {
    let device = SimDevice::new(BLOCKS);
    let options = MkfsOptions {
        contract,
        uuid: Some([5; 16]),
        seed: Some(5),
        log_blocks: Some(LOG_BLOCKS),
        now: Some(Time::default()),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    device.image()
}

/// Mounts a volume. All is done in the caller's thread.
pub(super) fn mount(device: &Arc<SimDevice>, read_only: bool) -> Result<Arc<Fs>, String> {
    let mut options = MountOptions::default();
    options.background = false;
    options.read_only = read_only;
    options.clock = Arc::new(Now(AtomicI64::new(2_000_000_000)));
    options.seed = Some(1);
    let mounted = Fs::mount(Arc::clone(device) as _, &options);
    mounted.map(|(fs, _)| fs).map_err(|why| why.to_string())
}

/// The volume that is copied.
pub(super) struct Source {
    pub(super) fs: Arc<Fs>,
    pub(super) tree: Tree,
}

impl Source {
    pub(super) fn new() -> Source {
        Source::with(|fs| {
            // The last piece of this file is not the first one.
            let large: Vec<u8> = (0..(1_u32 << 20) + 5000).map(|n| (n % 251) as u8).collect();
            let file = fs.file(fs.root(), "large");
            fs.write(&root(), file, 0, &large).unwrap();
        })
    }

    /// Without files that take much space.
    pub(super) fn small() -> Source {
        Source::with(|_| {})
    }

    fn with(more: impl FnOnce(&Fs)) -> Source {
        let device = Arc::new(SimDevice::from_image(empty(Contract::Ordered)));
        let fs = mount(&device, false).unwrap();
        more(&fs);
        fill(&fs);
        fs.unmount().unwrap();
        let fs = mount(&device, true).unwrap();
        let tree = observe(&*fs).unwrap();
        Source { fs, tree }
    }
}

fn list(entries: &[(Who, u8)]) -> Vec<u8> {
    let entries = entries.iter();
    let entries = entries.map(|&(who, perm)| acl::Entry { who, perm });
    Acl::new(entries.collect()).unwrap().to_xattr()
}

fn own(fs: &Fs, ino: Ino, uid: u32, gid: u32, perm: u16) {
    let owner = SetAttr {
        uid: Some(uid),
        gid: Some(gid),
        ..SetAttr::default()
    };
    fs.setattr(&root(), ino, &owner).unwrap();
    let perm = SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    };
    fs.setattr(&root(), ino, &perm).unwrap();
}

fn file(fs: &Fs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let ino = fs.file(dir, name);
    fs.write(&root(), ino, 0, content).unwrap();
    ino
}

fn sized(fs: &Fs, ino: Ino, size: u64) {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(&root(), ino, &size).unwrap();
}

fn attribute(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) {
    fs.setxattr(&root(), ino, name, value, XattrMode::Any)
        .unwrap();
}

fn fill(fs: &Fs) {
    let me = root();
    let top = fs.root();
    let flags = |ino, flags| fs.set_flags(&me, ino, flags).unwrap();
    // Flags that entries inherit, before there are any.
    let a = fs.dir(top, "a");
    flags(a, InodeFlags::NODUMP | InodeFlags::NOATIME);
    let plain = file(fs, a, "plain", b"text");
    flags(plain, InodeFlags::NONE);
    file(fs, a, "inherits", b"");
    let b = fs.dir(a, "b");
    flags(b, InodeFlags::NOCOW);
    let c = fs.dir(b, "c");
    flags(c, InodeFlags::NONE);
    // Names of one inode.
    fs.link(&me, plain, b, b"second").unwrap();
    fs.link(&me, plain, top, b"third").unwrap();
    let link = fs.symlink(&me, a, b"link", b"../nowhere").unwrap().ino;
    fs.link(&me, link, c, b"link of a link").unwrap();
    let long = fs.symlink(&me, c, b"long", &[b'x'; 3000]).unwrap().ino;
    for (ino, uid) in [(link, 11), (long, 12)] {
        let owner = SetAttr {
            uid: Some(uid),
            gid: Some(uid + 1),
            ..SetAttr::default()
        };
        fs.setattr(&me, ino, &owner).unwrap();
    }
    // Holes: at the beginning, between, at the end, and nothing else.
    let sparse = fs.file(c, "sparse");
    for at in [3, 4, 9] {
        fs.write(&me, sparse, at * 4096 + 10, &[at as u8; 500])
            .unwrap();
    }
    sized(fs, sparse, 20 * 4096 + 5);
    sized(fs, fs.file(c, "nothing"), 100_000);
    // Owners, set-id bits, a group that entries inherit.
    own(fs, file(fs, b, "set-id", b"#!"), 5, 7, 0o6755);
    own(fs, file(fs, top, "secret", &[9; 9000]), 1, 1, 0o400);
    own(fs, fs.dir(top, "empty"), 3, 4, 0o1777);
    own(fs, b, 0, 50, 0o2775);
    file(fs, b, "of the group", b"g");
    // Devices and the like.
    let devices = fs.dir(top, "devices");
    for (name, kind, rdev) in [
        ("null", FileKind::CharDevice, 0x103),
        ("disk", FileKind::BlockDevice, 0x1234_5678),
        ("whiteout", FileKind::CharDevice, 0),
        ("pipe", FileKind::Fifo, 0),
        ("socket", FileKind::Socket, 0),
    ] {
        let perm = 0o640;
        let node = NewNode { kind, perm, rdev };
        let made = fs.mknod(&me, devices, name.as_bytes(), &node).unwrap();
        own(fs, made.ino, 8, 9, 0o642);
    }
    // Attributes, in the inode and in blocks of their own.
    let noted = file(fs, top, "a name\nof \u{e9} lines", b"n");
    attribute(fs, noted, b"user.note", &[b'v'; 200]);
    attribute(fs, noted, b"user.long", &[b'w'; 2500]);
    attribute(fs, noted, b"user.longer", &[b'l'; 2600]);
    attribute(fs, noted, b"trusted.none", b"");
    attribute(
        fs,
        file(fs, c, "able", b""),
        b"security.capability",
        &[1; 20],
    );
    attribute(fs, a, b"user.of-a-directory", b"1");
    // ACLs. An entry that was there before has none, one that is made after has the inherited one.
    let access = [
        (Who::Owner, 6),
        (Who::User(9), 7),
        (Who::OwningGroup, 4),
        (Who::Mask, 5),
        (Who::Other, 1),
    ];
    attribute(fs, noted, XATTR_ACCESS, &list(&access));
    attribute(fs, c, XATTR_DEFAULT, &list(&access));
    attribute(fs, a, XATTR_DEFAULT, &list(&access));
    file(fs, c, "with the default", b"d");
    for n in 0..12 {
        file(fs, c, &format!("entry {n}"), &[n; 30]);
    }
    // Flags that forbid changes.
    let fixed = fs.dir(top, "fixed");
    let inside = file(fs, fixed, "inside", b"cannot change");
    let grows = file(fs, a, "grows", b"log");
    let in_place = file(fs, b, "in place", &[7; 5000]);
    own(fs, inside, 2, 2, 0o4711);
    own(fs, top, 21, 22, 0o751);
    attribute(fs, top, b"user.of-the-root", b"r");
    set_times(fs);
    flags(inside, InodeFlags::IMMUTABLE);
    flags(fixed, InodeFlags::IMMUTABLE | InodeFlags::NODUMP);
    flags(grows, InodeFlags::APPEND | InodeFlags::NOATIME);
    flags(
        in_place,
        InodeFlags::NOCOW | InodeFlags::NOATIME | InodeFlags::IMMUTABLE,
    );
    flags(top, InodeFlags::APPEND | InodeFlags::NOATIME);
}

/// Gives each inode times of its own, in the past.
fn set_times(fs: &Fs) {
    let mut left = vec![fs.root()];
    let mut secs = 1000;
    while let Some(dir) = left.pop() {
        for name in fs.names(dir) {
            let attr = fs.look(dir, &name).unwrap();
            if attr.kind == FileKind::Directory {
                left.push(attr.ino);
            }
            times(fs, attr.ino, &mut secs);
        }
    }
    times(fs, fs.root(), &mut secs);
}

fn times(fs: &Fs, ino: Ino, secs: &mut i64) {
    *secs += 1000;
    let time = |secs| {
        Some(SetTime::At(Time {
            secs,
            nanos: secs as u32 * 1001,
        }))
    };
    let times = SetAttr {
        atime: time(*secs + 1),
        mtime: time(*secs),
        ..SetAttr::default()
    };
    fs.setattr(&root(), ino, &times).unwrap();
}
