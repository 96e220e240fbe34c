//! Bodies of the fuzz targets `mount` and `fsck`: conditions that hold for any content of a volume. A
//! violation is a panic. Only with the feature `fuzz`; no part of the public interface.
//!
//! The fuzzer's bytes are decisions: the blocks of a valid volume that change, their changes, and
//! whether they are sealed again, so that the code after the checksums is reached; then the
//! calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::layout::{INODE_BYTES, INODE_SLOTS, META_BYTES};
use crate::{Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, mkfs};
use std::sync::{Arc, OnceLock};
use steadfast_block::{BLOCK_SIZE, Block, BlockNo, MemDevice};
use steadfast_journal::fuzz::{reseal_header, reseal_record};
use steadfast_journal::{seal, seal_holds};
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, Ino, NewNode, RenameMode, Seek, SetAttr, XattrMode,
};

const VOLUME: [u8; 16] = *b"a fuzzed volume!";
const BLOCKS: u64 = 600;
const LOG_START: u64 = 3;
const LOG_BLOCKS: u64 = 64;
/// Changes of an image and calls of one run: enough to meet, few enough to be fast.
const CHANGES_MAX: usize = 12;
const CALLS_MAX: usize = 40;

/// The fuzzer's bytes as a source of decisions; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn word(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        let mut word = [0; 8];
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    fn below(&mut self, n: usize) -> usize {
        self.word(2) as usize % n.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A valid volume, and its content.
struct Base {
    bytes: Vec<u8>,
    /// Blocks that hold structure.
    blocks: Vec<u64>,
    inos: Vec<Ino>,
}

const NAMES: [&[u8]; 8] = [
    b"dir",
    b"file",
    b"holes",
    b"short",
    b"long",
    b"fifo",
    b"new",
    b"a name of some length",
];

fn options() -> MountOptions {
    MountOptions {
        background: false,
        seed: Some(1),
        ..MountOptions::default()
    }
}

fn repair() -> FsckOptions {
    FsckOptions {
        repair: true,
        ..FsckOptions::default()
    }
}

/// A volume with something of every kind: unmounted, or with all of it in the log.
fn base(in_the_log: bool) -> &'static Base {
    static BASES: [OnceLock<Base>; 2] = [OnceLock::new(), OnceLock::new()];
    BASES[usize::from(in_the_log)].get_or_init(|| make(in_the_log))
}

fn make(in_the_log: bool) -> Base {
    let device = Arc::new(MemDevice::new(BLOCKS));
    let made = MkfsOptions {
        uuid: Some(VOLUME),
        seed: Some(1),
        log_blocks: Some(LOG_BLOCKS),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &made, &mut |_, _| {}).unwrap();
    let (fs, _) = Fs::mount(device.clone(), &options()).unwrap();
    let (me, root) = (&Caller::root(), fs.root());
    let node = |kind| NewNode {
        kind,
        perm: 0o644,
        rdev: 0,
    };
    let regular = node(FileKind::Regular);
    let dir = fs.mkdir(me, root, b"dir", 0o755).unwrap().ino;
    let file = fs.mknod(me, root, b"file", &regular).unwrap().ino;
    fs.write(me, file, 0, &[1; 10_000]).unwrap();
    fs.link(me, file, dir, b"file").unwrap();
    fs.setxattr(me, file, b"user.a", &[2; 300], XattrMode::Any)
        .unwrap();
    fs.setxattr(me, dir, b"user.a", &[2; 30], XattrMode::Any)
        .unwrap();
    fs.fallocate(me, file, AllocateMode::KeepSize, 20_000, 20_000)
        .unwrap();
    let holes = fs.mknod(me, root, b"holes", &regular).unwrap().ino;
    for n in 0..12 {
        fs.write(me, holes, n * 8192, &[3; 4096]).unwrap();
        fs.sync().unwrap();
    }
    let short = fs.symlink(me, root, b"short", b"dir/file").unwrap().ino;
    let long = fs.symlink(me, root, b"long", &[b'l'; 300]).unwrap().ino;
    let fifo = fs
        .mknod(me, root, b"fifo", &node(FileKind::Fifo))
        .unwrap()
        .ino;
    for n in 0..50 {
        fs.mknod(me, dir, format!("{n:0>100}").as_bytes(), &regular)
            .unwrap();
    }
    let open = fs.mknod(me, root, b"open", &regular).unwrap().ino;
    fs.open(me, open).unwrap();
    fs.unlink(me, root, b"open").unwrap();
    fs.sync().unwrap();
    if !in_the_log {
        fs.unmount().unwrap();
    }
    let bytes = device.to_bytes();
    let block = |at: u64| block(&bytes, at);
    let sealed = |at: &u64| seal_holds(&VOLUME, BlockNo(*at), block(*at));
    let log = LOG_START..LOG_START + LOG_BLOCKS;
    let holds = |at: &u64| match in_the_log && log.contains(at) {
        true => block(*at).iter().any(|byte| *byte != 0),
        false => matches!(at, 1 | 2) || sealed(at),
    };
    Base {
        blocks: (0..BLOCKS).filter(holds).collect(),
        inos: vec![root, dir, file, holes, short, long, fifo, open, root + 1],
        bytes,
    }
}

fn block(bytes: &[u8], at: u64) -> &Block {
    bytes[at as usize * BLOCK_SIZE..].first_chunk().unwrap()
}

/// Numbers that code trips over.
fn number(choices: &mut Choices<'_>, base: &Base) -> u64 {
    match choices.below(8) {
        0 => choices.word(1),
        1 => u64::MAX - choices.word(1),
        2 => 1 << choices.below(64),
        3 => choices.pick(&base.blocks),
        4 => choices.pick(&base.blocks) * INODE_SLOTS + choices.word(1) % INODE_SLOTS,
        5 => choices.pick(&base.inos),
        6 => choices.word(2) % BLOCKS,
        _ => choices.word(8),
    }
}

fn damage(choices: &mut Choices<'_>, base: &Base) -> Vec<u8> {
    let mut bytes = base.bytes.clone();
    for _ in 0..=choices.below(CHANGES_MAX) {
        let at = choices.pick(&base.blocks);
        let value = number(choices, base).to_le_bytes();
        let other = *block(&bytes, choices.pick(&base.blocks));
        let start = at as usize * BLOCK_SIZE;
        let target = &mut bytes[start..start + BLOCK_SIZE];
        let field = choices.word(2) as usize;
        match choices.below(7) {
            0 => target[field % META_BYTES] ^= value[0],
            1 => target[field % META_BYTES] = value[0],
            2 => target[field % 510 * 8..][..8].copy_from_slice(&value),
            3 => target[field % 1000 * 4..][..4].copy_from_slice(&value[..4]),
            // A field of an inode, an item of a node.
            4 => {
                let inode = field % 15 * INODE_BYTES + field / 15 % 32 * 8;
                target[inode..][..8].copy_from_slice(&value);
            }
            5 => target[8 + field % 504 * 8..][..8].copy_from_slice(&value),
            _ => target.copy_from_slice(&other),
        }
        let log = LOG_START..LOG_START + LOG_BLOCKS;
        match choices.below(8) {
            0 => {}
            _ if at == 1 || at == 2 => {
                reseal_header(VOLUME, bytes[start..].first_chunk_mut().unwrap());
            }
            _ if log.contains(&at) => {
                let end = log.end as usize * BLOCK_SIZE;
                if bytes[start..].starts_with(b"STDFRECD") {
                    reseal_record(VOLUME, &mut bytes[start..end]);
                }
            }
            _ => seal(
                &VOLUME,
                BlockNo(at),
                bytes[start..].first_chunk_mut().unwrap(),
            ),
        }
    }
    bytes
}

/// Calls of every kind; their results do not matter.
fn use_it(choices: &mut Choices<'_>, base: &Base, fs: &Fs) {
    let me = &Caller::root();
    let file = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let mut buf = vec![0; 20_000];
    for _ in 0..CALLS_MAX {
        let (a, b) = (choices.pick(&base.inos), choices.pick(&base.inos));
        let (x, y) = (choices.pick(&NAMES), choices.pick(&NAMES));
        let at = [0, 100, 4096, 30_000, 1 << 32][choices.below(5)];
        let _ = match choices.below(24) {
            0 => fs.getattr(me, a).map(drop),
            1 => fs.lookup(me, a, x).map(drop),
            2 => fs.read(me, a, at, &mut buf).map(drop),
            3 => fs.write(me, a, at, &buf[..9000]).map(drop),
            4 => fs.append(me, a, &buf[..100]).map(drop),
            5 => fs.readlink(me, a).map(drop),
            6 => fs.readdir(me, a, at, &mut |_| true),
            7 => fs.seek(me, a, at, Seek::Data).map(drop),
            8 => fs.seek(me, a, at, Seek::Hole).map(drop),
            9 => fs.listxattr(me, a).map(drop),
            10 => fs.getxattr(me, a, b"user.a").map(drop),
            11 => {
                let len = [0, 20, 200][choices.below(3)];
                fs.setxattr(me, a, b"user.b", &buf[..len], XattrMode::Any)
            }
            12 => fs.removexattr(me, a, b"user.a"),
            13 => fs.mknod(me, a, x, &file).map(drop),
            14 => fs.mkdir(me, a, x, 0o755).map(drop),
            15 => fs.link(me, a, b, x).map(drop),
            16 => fs.unlink(me, a, x),
            17 => fs.rmdir(me, a, x),
            18 => fs.rename(me, (a, x), (b, y), RenameMode::Replace),
            19 => fs.rename(me, (a, x), (b, y), RenameMode::Exchange),
            20 => fs.fallocate(me, a, AllocateMode::PunchHole, at, 9000),
            21 => fs.fallocate(me, a, AllocateMode::ZeroRange, at, 9000),
            22 => fs.fsync(me, a, false),
            _ => {
                let size = SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                };
                fs.setattr(me, a, &size).map(drop)
            }
        };
    }
    let _ = fs.statfs();
    let _ = fs.sync();
}

/// A damaged volume is mounted and used: errors, and nothing else.
pub fn mount(data: &[u8]) {
    let choices = &mut Choices(data);
    let base = base(choices.below(2) == 1);
    let device = Arc::new(MemDevice::from_bytes(&damage(choices, base)));
    let read_only = MountOptions {
        read_only: true,
        ..options()
    };
    let before = device.to_bytes();
    if let Ok((fs, _)) = Fs::mount(device.clone(), &read_only) {
        use_it(&mut Choices(data), base, &fs);
        let _ = fs.unmount();
    }
    assert!(device.to_bytes() == before, "a read-only mount wrote");
    if let Ok((fs, _)) = Fs::mount(device, &options()) {
        use_it(choices, base, &fs);
        let _ = fs.unmount();
    }
}

/// A damaged volume is checked, repaired, and whole afterwards.
pub fn check(data: &[u8]) {
    let choices = &mut Choices(data);
    let base = base(choices.below(2) == 1);
    let device = Arc::new(MemDevice::from_bytes(&damage(choices, base)));
    let before = device.to_bytes();
    let found = fsck(device.clone(), &FsckOptions::default());
    assert!(device.to_bytes() == before, "a check wrote");
    let Ok(found) = found else { return };
    if fsck(device.clone(), &repair()).is_err() {
        return; // nothing that can be written by this version
    }
    if found.outcome() == Outcome::Clean {
        let (fs, _) = Fs::mount(device.clone(), &options()).expect("what is clean mounts");
        use_it(choices, base, &fs);
        fs.unmount().expect("what is clean unmounts");
    }
    // Forged headers may hide records of the epoch that the first repair begins, and a superblock
    // that is consistent in itself is trusted: the parts that it leaves out cannot be repaired at
    // once.
    for _ in 0..4 {
        let report = fsck(device.clone(), &FsckOptions::default()).expect("a check");
        if report.outcome() == Outcome::Clean {
            let (fs, _) = Fs::mount(device.clone(), &options()).expect("a repaired volume mounts");
            use_it(choices, base, &fs);
            fs.unmount().expect("a repaired volume unmounts");
            let report = fsck(device, &FsckOptions::default()).expect("a last check");
            assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
            return;
        }
        if fsck(device.clone(), &repair()).is_err() {
            return;
        }
    }
    let report = fsck(device, &FsckOptions::default()).expect("a check");
    panic!("four repairs leave damage: {:#?}", report.findings);
}
