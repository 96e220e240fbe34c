//! Volumes that are wrong: superblocks (corner 34), metadata (corner 35), devices that fail.

use super::common::*;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo, DeviceOp, MemDevice};
use steadfast_fs::{Error, Fs, FsckOptions, MkfsOptions, fsck, layout, mkfs};
use steadfast_sim::{Fault, Image, SimDevice};
use steadfast_vfs::{Caller, Errno, FileSystem, Ino, RenameMode, Result, SetAttr, XattrMode};

const BLOCKS: u64 = 4 * 256;

fn volume() -> Vec<u8> {
    let v = Volume::with_log(4, Some(64));
    v.unmount().unwrap();
    v.device.to_bytes()
}

fn block(image: &mut [u8], at: u64) -> &mut Block {
    let start = at as usize * BLOCK_SIZE;
    (&mut image[start..start + BLOCK_SIZE]).try_into().unwrap()
}

fn reseal(image: &mut [u8], at: u64) {
    let uuid = uuid(image);
    steadfast_journal::seal(&uuid, BlockNo(at), block(image, at));
}

fn uuid(image: &[u8]) -> [u8; 16] {
    let at = std::mem::offset_of!(layout::Superblock, uuid);
    image[at..at + 16].try_into().unwrap()
}

fn try_mount(image: &[u8]) -> std::result::Result<Arc<Fs>, Error> {
    Fs::mount(Arc::new(MemDevice::from_bytes(image)), &options()).map(|(fs, _)| fs)
}

fn refusal(image: &[u8]) -> Error {
    match try_mount(image) {
        Ok(_) => panic!("mounted"),
        Err(error) => error,
    }
}

fn set_u32(image: &mut [u8], field: usize, value: u32) {
    for at in [0, BLOCKS - 1] {
        block(image, at)[field..field + 4].copy_from_slice(&value.to_le_bytes());
        reseal(image, at);
    }
}

#[test]
fn corner_34_foreign_and_unusable_volumes_are_refused_with_the_reason() {
    use std::mem::offset_of;
    let good = volume();
    assert!(matches!(refusal(&vec![0; 1 << 20]), Error::NotAVolume));
    assert!(matches!(refusal(&[]), Error::NotAVolume));
    assert!(matches!(
        refusal(&good[..good.len() / 2]),
        Error::Truncated { .. }
    ));

    // Version 1 had no extended attributes in inodes; its trees had four items in their roots.
    for version in [0, 1, layout::VERSION + 1] {
        let mut other = good.clone();
        set_u32(&mut other, offset_of!(layout::Superblock, version), version);
        let error = refusal(&other);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let named = format!("format version {version},");
        assert!(error.to_string().contains(&named), "{error}");
    }
    let mut features = good.clone();
    set_u32(
        &mut features,
        offset_of!(layout::Superblock, features_incompat),
        8,
    );
    let error = refusal(&features);
    assert!(
        error
            .to_string()
            .contains("version of steadfast that made it"),
        "{error}"
    );
    let mut contract = good.clone();
    set_u32(&mut contract, offset_of!(layout::Superblock, contract), 9);
    assert!(matches!(refusal(&contract), Error::Unsupported { .. }));

    // A feature that only writers must know: the volume can be read.
    let mut readable = good.clone();
    set_u32(
        &mut readable,
        offset_of!(layout::Superblock, features_ro),
        1 << 30,
    );
    let fs = try_mount(&readable).unwrap();
    assert!(fs.is_read_only());
    fails(fs.file_by(&root(), fs.root(), "x"), Errno::RoFs);

    // Of another volume: the seals of all metadata are wrong.
    let mut other = good.clone();
    let at = offset_of!(layout::Superblock, uuid);
    for place in [0, BLOCKS - 1] {
        block(&mut other, place)[at] ^= 1;
        reseal(&mut other, place);
    }
    refusal(&other);

    // A device that grew is used as far as the volume goes.
    let mut grown = good.clone();
    grown.resize(good.len() * 2, 0);
    try_mount(&grown).unwrap();
}

#[test]
fn corner_34_the_copy_of_the_superblock_serves_when_the_first_is_lost() {
    let mut image = volume();
    block(&mut image, 0).fill(0xee);
    let fs = try_mount(&image).unwrap();
    let warnings = fs.take_warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("copy"),
        "{warnings:?}"
    );
    fs.file(fs.root(), "x");
    fs.unmount().unwrap();
    block(&mut image, BLOCKS - 1)[100] ^= 1;
    assert!(matches!(refusal(&image), Error::NotAVolume));
}

#[test]
fn corner_35_every_wrong_field_of_the_superblock_is_an_error_and_no_panic() {
    let good = volume();
    let fields = std::mem::offset_of!(layout::Superblock, label);
    for at in 0..fields {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut image = good.clone();
            for place in [0, BLOCKS - 1] {
                block(&mut image, place)[at] = value;
                reseal(&mut image, place);
            }
            if let Ok(fs) = try_mount(&image) {
                use_all(&fs);
            }
        }
    }
}

/// Every kind of call, on everything that can be found. Errors are fine.
fn use_all(fs: &Fs) {
    let c = root();
    let mut inos: Vec<Ino> = vec![fs.root()];
    let mut at = 0;
    while at < inos.len() && at < 200 {
        let dir = inos[at];
        at += 1;
        let mut names = Vec::new();
        let _ = fs.readdir(&c, dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 300
        });
        for name in names {
            if let Ok(attr) = fs.lookup(&c, dir, &name)
                && !inos.contains(&attr.ino)
            {
                inos.push(attr.ino);
            }
        }
    }
    let mut buf = vec![0; 20_000];
    for ino in inos {
        let _ = fs.getattr(&c, ino);
        let _ = fs.readlink(&c, ino);
        let _ = fs.read(&c, ino, 0, &mut buf);
        let _ = fs.read(&c, ino, 1 << 30, &mut buf);
        let _ = fs.seek(&c, ino, 0, steadfast_vfs::Seek::Hole);
        let _ = fs.listxattr(&c, ino);
        let _ = fs.getxattr(&c, ino, b"user.a");
        let _ = fs.setxattr(&c, ino, b"user.b", b"x", XattrMode::Any);
        let _ = fs.setxattr(&c, ino, b"user.c", &[b'x'; 60], XattrMode::Any);
        let _ = fs.removexattr(&c, ino, b"user.c");
        let _ = fs.write(&c, ino, 5000, &[1; 9000]);
        let _ = fs.file_by(&c, ino, "new");
        let _ = fs.mkdir(&c, ino, b"newdir", 0o755);
        let _ = fs.rename(
            &c,
            (ino, b"new"),
            (fs.root(), b"moved"),
            RenameMode::Replace,
        );
        let _ = fs.rename(
            &c,
            (ino, b"newdir"),
            (fs.root(), b"md"),
            RenameMode::Exchange,
        );
        let _ = fs.setattr(
            &c,
            ino,
            &SetAttr {
                size: Some(3),
                ..SetAttr::default()
            },
        );
        let _ = fs.unlink(&c, fs.root(), b"moved");
        let _ = fs.rmdir(&c, ino, b"newdir");
    }
    for name in ["d", "f", "s", "l", "big"] {
        let _ = fs.unlink(&c, fs.root(), name.as_bytes());
        let _ = fs.rmdir(&c, fs.root(), name.as_bytes());
    }
    let _ = fs.sync();
    let _ = fs.statfs();
    let _ = fs.unmount();
}

/// A small volume with something of everything.
fn rich_volume() -> Vec<u8> {
    let v = Volume::with_log(4, Some(64));
    let r = v.root();
    let d = v.dir(r, "d");
    for n in 0..60 {
        v.file(d, &format!("a long name to fill directory blocks with {n}"));
    }
    let f = v.file(r, "f");
    for n in 0..8 {
        v.write(&root(), f, n * 8192, &[1; 4096]).unwrap();
        v.sync().unwrap();
    }
    v.setxattr(&root(), f, b"user.a", &[b'v'; 100], XattrMode::Any)
        .unwrap();
    v.setxattr(&root(), d, b"user.a", b"value", XattrMode::Any)
        .unwrap();
    v.symlink(&root(), r, b"s", b"target").unwrap();
    v.symlink(&root(), r, b"l", &[b't'; 1000]).unwrap();
    v.link(&root(), f, d, b"link").unwrap();
    let open = v.file(r, "open");
    v.open(&root(), open).unwrap();
    v.unlink(&root(), r, b"open").unwrap();
    v.unmount().unwrap();
    v.device.to_bytes()
}

/// A plain generator of numbers, so that every run is the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn corner_35_wrong_metadata_with_right_checksums_is_an_error_and_no_panic() {
    let good = rich_volume();
    let id = uuid(&good);
    let sealed: Vec<u64> = (0..BLOCKS)
        .filter(|at| {
            let mut copy = good.clone();
            let block = *block(&mut copy, *at);
            *at >= 67 && steadfast_journal::seal_holds(&id, BlockNo(*at), &block)
        })
        .collect();
    assert!(sealed.len() > 8, "{sealed:?}");
    let mut numbers = Numbers(1);
    for _ in 0..300 {
        let mut image = good.clone();
        for _ in 0..=numbers.next(3) {
            let at = sealed[numbers.next(sealed.len() as u64) as usize];
            let offset = if numbers.next(2) == 0 {
                numbers.next(layout::META_BYTES as u64)
            } else {
                // Where most structure lies.
                numbers.next(600)
            };
            let value = [0, 1, 0x7f, 0xff, numbers.next(256)][numbers.next(5) as usize] as u8;
            let len = [1, 1, 2, 8][numbers.next(4) as usize];
            for byte in offset as usize..(offset as usize + len).min(layout::META_BYTES) {
                block(&mut image, at)[byte] = value;
            }
            reseal(&mut image, at);
        }
        let report = fsck(
            Arc::new(MemDevice::from_bytes(&image)),
            &FsckOptions::default(),
        );
        drop(report);
        if let Ok(fs) = try_mount(&image) {
            use_all(&fs);
        }
    }
}

#[test]
fn corner_14_after_a_failed_write_nothing_changes_and_fsync_never_succeeds() {
    for op in [DeviceOp::Write, DeviceOp::Flush] {
        let device = Arc::new(SimDevice::new(BLOCKS * 4));
        mkfs(&*device, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
        let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options()).unwrap();
        let r = fs.root();
        let f = fs.file(r, "f");
        fs.fsync(&root(), f, false).unwrap();
        fs.write(&root(), f, 0, b"data").unwrap();
        device.inject(Fault::nth(op, 0));
        fails(fs.fsync(&root(), f, false), Errno::Io);
        fails(fs.fsync(&root(), f, false), Errno::Io);
        fails(fs.sync(), Errno::Io);
        assert!(fs.is_read_only());
        fails(fs.file_by(&root(), r, "g"), Errno::RoFs);
        fails(fs.write(&root(), f, 0, b"more"), Errno::RoFs);
        assert_eq!(fs.look(r, "f").unwrap().ino, f);
        assert!(fs.unmount().is_err());
        drop(fs);
        let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options()).unwrap();
        assert_eq!(
            fs.look(r, "f").unwrap().ino,
            f,
            "what was acknowledged is there"
        );
    }
}

type Call = fn(&Fs, &Caller) -> Result<()>;

#[test]
fn a_read_that_fails_is_an_error_and_leaves_no_trace() {
    let c = root();
    let calls: [(&str, Call); 8] = [
        ("create", |fs, c| fs.file_by(c, fs.root(), "new").map(drop)),
        ("mkdir", |fs, c| {
            fs.mkdir(c, fs.root(), b"newdir", 0o755).map(drop)
        }),
        ("link", |fs, c| {
            let f = fs.lookup(c, fs.root(), b"f")?.ino;
            fs.link(c, f, fs.root(), b"link").map(drop)
        }),
        ("rename", |fs, c| {
            let d = fs.lookup(c, fs.root(), b"d")?.ino;
            fs.rename(c, (fs.root(), b"s"), (d, b"moved"), RenameMode::Replace)
        }),
        ("unlink", |fs, c| fs.unlink(c, fs.root(), b"f")),
        ("setxattr", |fs, c| {
            let d = fs.lookup(c, fs.root(), b"d")?.ino;
            fs.setxattr(c, d, b"user.z", &[b'z'; 100], XattrMode::Any)
        }),
        ("truncate", |fs, c| {
            let f = fs.lookup(c, fs.root(), b"f")?.ino;
            let set = SetAttr {
                size: Some(5000),
                ..SetAttr::default()
            };
            fs.setattr(c, f, &set).map(drop)
        }),
        ("list", |fs, c| {
            let d = fs.lookup(c, fs.root(), b"d")?.ino;
            fs.readdir(c, d, 0, &mut |_| true)
        }),
    ];
    let image = rich_volume();
    for (what, call) in calls {
        let mut failures = 0;
        for nth in 0..40 {
            let device = Arc::new(SimDevice::from_image(Image::from_bytes(&image)));
            let (fs, _) = Fs::mount(Arc::clone(&device) as _, &options()).unwrap();
            device.inject(Fault::nth(DeviceOp::Read, nth));
            if let Err(error) = call(&fs, &c) {
                assert!(error == Errno::Io, "{what}: {error}");
                failures += 1;
                device.clear_faults();
                assert!(!fs.is_read_only(), "{what}: a failed read stops nothing");
                call(&fs, &c).unwrap_or_else(|error| panic!("{what} again: {error}"));
            }
            device.clear_faults();
            fs.unmount().unwrap();
            must_be_clean(&device);
        }
        assert!(failures > 0, "{what} reads nothing");
    }
}
