//! Growing a volume: its files and its space, and power cuts at every write on the way: the old
//! volume or the new one, whole, and never the old one once it has been said to be done.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, Geometry, MemDevice};
use steadfast_fs::layout::{GROUP_BLOCKS, Superblock};
use steadfast_fs::{
    Error, Fs, FsckOptions, MkfsOptions, MountOptions, Outcome, fsck, grow, info, mkfs,
};
use steadfast_journal::seal;
use steadfast_sim::{Limits, SimDevice};
use steadfast_vfs::{Caller, FileKind, FileSystem, Ino, NewNode};

/// Blocks of the log, and the first block of the first group.
const LOG: u64 = 64;
const GROUPS_START: u64 = 3 + LOG;
/// A volume whose last group is full: the copy of its superblock lies where the next group begins.
const FULL_GROUP: u64 = GROUPS_START + GROUP_BLOCKS + 1;

/// The first blocks of a device, as its past.
struct First {
    device: Arc<SimDevice>,
    blocks: u64,
}

impl BlockDevice for First {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            ..self.device.geometry()
        }
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.device.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.device.write(at, segments)
    }
    fn flush(&self) -> steadfast_block::Result<()> {
        self.device.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device.discard(at, count)
    }
}

fn mount(device: Arc<dyn BlockDevice>) -> Arc<Fs> {
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    Fs::mount(device, &options).unwrap().0
}

fn file(fs: &Fs, name: &str) -> steadfast_vfs::Result<Ino> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let made = fs.mknod(&Caller::root(), fs.root(), name.as_bytes(), &node);
    made.map(|attr| attr.ino)
}

const FILES: u8 = 12;

/// Content of every file.
fn content(number: u8) -> Vec<u8> {
    vec![number + 1; usize::from(number) * 1500 + 1]
}

/// A device of `device_blocks` with a volume of `blocks` and some files; `clean`: unmounted.
fn populated(blocks: u64, device_blocks: u64, clean: bool) -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(device_blocks));
    let first = Arc::new(First {
        device: Arc::clone(&device),
        blocks,
    });
    let options = MkfsOptions {
        log_blocks: Some(LOG),
        seed: Some(5),
        ..MkfsOptions::default()
    };
    mkfs(&*first, &options, &mut |_, _| {}).unwrap();
    let fs = mount(first);
    for number in 0..FILES {
        let ino = file(&fs, &format!("file-{number}")).unwrap();
        fs.write(&Caller::root(), ino, 0, &content(number)).unwrap();
    }
    fs.sync().unwrap();
    if clean {
        fs.unmount().unwrap();
    }
    let image = device.image();
    Arc::new(SimDevice::from_image(image))
}

fn must_be_clean(device: Arc<dyn BlockDevice>, what: &str) {
    let report = fsck(device, &FsckOptions::default()).unwrap();
    assert_eq!(
        report.outcome(),
        Outcome::Clean,
        "{what}: {:#?}",
        report.findings
    );
}

/// The volume is whole and usable; returns its size.
fn must_be_whole(device: Arc<dyn BlockDevice>, what: &str) -> u64 {
    must_be_clean(Arc::clone(&device), what);
    let told = info(Arc::clone(&device)).unwrap();
    let fs = mount(Arc::clone(&device));
    assert_eq!(fs.take_warnings(), Vec::<String>::new(), "{what}");
    let stat = fs.statfs().unwrap();
    assert_eq!(stat.blocks, told.data_blocks, "{what}");
    for number in 0..FILES {
        let name = format!("file-{number}");
        let attr = fs
            .lookup(&Caller::root(), fs.root(), name.as_bytes())
            .unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        let mut found = vec![0; attr.size as usize];
        fs.read(&Caller::root(), attr.ino, 0, &mut found).unwrap();
        assert_eq!(found, content(number), "{what}: {name}");
    }
    let ino = file(&fs, "new").unwrap();
    fs.write(&Caller::root(), ino, 0, &[7; 50_000]).unwrap();
    fs.unmount().unwrap();
    must_be_clean(device, what);
    told.map.blocks()
}

/// Blocks of the volume and of the larger device: the sizes that make a difference.
fn sizes() -> [(u64, u64); 6] {
    [
        // Inside the only group.
        (600, 900),
        // The group becomes full, and no more.
        (600, FULL_GROUP),
        // A second group, where the old copy lies.
        (FULL_GROUP, FULL_GROUP + 500),
        // The first group becomes full, and others follow.
        (600, GROUPS_START + 2 * GROUP_BLOCKS + 700),
        // Too little is left for a group of its own.
        (600, FULL_GROUP + 3),
        (FULL_GROUP, FULL_GROUP + GROUP_BLOCKS + 2),
    ]
}

#[test]
fn a_grown_volume_keeps_its_files_and_has_the_new_space() {
    for (before, after) in sizes() {
        let what = format!("{before} to {after}");
        let device = populated(before, after, true);
        let old = info(Arc::clone(&device) as _).unwrap();
        let grown = grow(Arc::clone(&device) as _, &mut |_, _| {}).unwrap();
        assert_eq!(grown.blocks_before, before, "{what}");
        assert!(after - grown.blocks < 4, "{what}: {} blocks", grown.blocks);
        let new = info(Arc::clone(&device) as _).unwrap();
        let more = new.data_blocks - old.data_blocks;
        assert_eq!(new.free_blocks - old.free_blocks, more, "{what}");
        assert_eq!(
            more + 2 * (new.map.groups().1 - old.map.groups().1),
            grown.blocks - before,
            "{what}"
        );
        assert_eq!(must_be_whole(Arc::clone(&device) as _, &what), grown.blocks);
        // All of it can be used.
        let fs = mount(Arc::clone(&device) as _);
        let ino = file(&fs, "large").unwrap();
        let bytes = (fs.statfs().unwrap().blocks_free - 8) * BLOCK_SIZE as u64;
        let mode = steadfast_vfs::AllocateMode::Allocate;
        fs.fallocate(&Caller::root(), ino, mode, 0, bytes).unwrap();
        fs.unmount().unwrap();
        must_be_clean(Arc::clone(&device) as _, &what);
        // Again: there is nothing to do.
        let again = grow(device, &mut |_, _| {}).unwrap();
        assert_eq!(
            (again.blocks_before, again.blocks),
            (grown.blocks, grown.blocks)
        );
    }
}

/// Cuts a growth at every write, and looks at the result.
fn explore(before: u64, after: u64, clean: bool) {
    let device = populated(before, after, clean);
    let grown = grow(Arc::clone(&device) as _, &mut |_, _| {}).unwrap();
    device.mark(1);
    let mut explorer = device.explorer();
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for position in 0..=explorer.len() {
        let cut = explorer.cut(position);
        let limits = Limits {
            exhaustive_writes: 3,
            sampled: if std::env::var_os("STEADFAST_LONG").is_some() {
                200
            } else {
                6
            },
            tears: true,
            seed: position as u64,
        };
        for image in cut.images(&limits) {
            let what = format!("{before} to {after}: {image}");
            let left = Arc::new(SimDevice::from_image(image));
            let mut first = [0; BLOCK_SIZE];
            left.read(BlockNo(0), &mut first).unwrap();
            torn += u64::from(!steadfast_journal::seal_holds(
                &grown_uuid(&first),
                BlockNo(0),
                &first,
            ));
            let copy = Arc::new(SimDevice::from_image(left.image()));
            match must_be_whole(left, &what) {
                blocks if blocks == grown.blocks => new += 1,
                blocks => {
                    assert_eq!(blocks, before, "{what}");
                    assert!(cut.marks().is_empty(), "{what}: it was done");
                    old += 1;
                }
            }
            // Started again, it gets there.
            let again = grow(Arc::clone(&copy) as _, &mut |_, _| {});
            assert_eq!(again.unwrap().blocks, grown.blocks, "{what}");
            must_be_clean(copy, &what);
        }
    }
    println!("{before} to {after}: {old} old, {new} new, {torn} with a torn superblock");
    assert!(
        old > 3 && new > 3 && torn > 0,
        "{old} old, {new} new, {torn} torn"
    );
}

fn grown_uuid(block: &[u8; BLOCK_SIZE]) -> [u8; 16] {
    let at = std::mem::offset_of!(Superblock, uuid);
    block[at..at + 16].try_into().unwrap()
}

#[test]
fn corner_34_a_growth_cut_inside_a_group_leaves_the_old_volume_or_the_new() {
    explore(600, 900, true);
}

#[test]
fn corner_34_a_growth_cut_with_a_log_to_replay_leaves_the_old_volume_or_the_new() {
    explore(600, 900, false);
}

#[test]
fn corner_34_a_growth_cut_where_a_group_takes_the_copys_place_leaves_the_old_volume_or_the_new() {
    explore(FULL_GROUP, FULL_GROUP + 500, true);
}

#[test]
fn corner_34_a_growth_cut_on_the_way_to_more_groups_leaves_the_old_volume_or_the_new() {
    explore(600, GROUPS_START + 2 * GROUP_BLOCKS + 700, false);
}

/// A volume that is about to grow in its log: its record is durable, nothing is at home yet.
#[test]
fn corner_65_a_growth_in_the_log_is_seen_read_only_and_nothing_is_written() {
    let device = populated(FULL_GROUP, FULL_GROUP + 500, true);
    let grown = grow(Arc::clone(&device) as _, &mut |_, _| {}).unwrap();
    let mut explorer = device.explorer();
    let mut seen = 0;
    for position in explorer.maximal_cuts() {
        let left = Arc::new(SimDevice::from_image(
            explorer.cut(position).durable().clone(),
        ));
        let options = |read_only| {
            let mut options = MountOptions::default();
            options.read_only = read_only;
            options.background = false;
            options
        };
        let stat = |read_only| {
            let fs = Fs::mount(Arc::clone(&left) as _, &options(read_only));
            let fs = fs.unwrap().0;
            (fs.statfs().unwrap(), fs.unmount().unwrap()).0
        };
        let before = left.trace_len();
        let read_only = stat(true);
        must_be_clean(Arc::clone(&left) as _, "read-only");
        assert_eq!(left.trace_len(), before, "nothing is written");
        let told = info(Arc::clone(&left) as _).unwrap();
        assert_eq!(read_only.blocks, told.data_blocks);
        let mut home = [0; BLOCK_SIZE];
        left.read(BlockNo(0), &mut home).unwrap();
        let at = std::mem::offset_of!(Superblock, blocks);
        let home = u64::from_le_bytes(home[at..at + 8].try_into().unwrap());
        seen += u64::from(home == FULL_GROUP && told.map.blocks() == grown.blocks);
        assert_eq!(stat(false), read_only);
    }
    assert!(seen > 0, "no cut left the growth in the log alone");
}

fn small() -> Vec<u8> {
    let device = MemDevice::new(600);
    let options = MkfsOptions {
        seed: Some(5),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    device.to_bytes()
}

/// Error of growing an image; it must have written nothing.
fn refusal(bytes: &[u8]) -> Error {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let error = grow(Arc::clone(&device) as _, &mut |_, _| {}).expect_err("a refusal");
    assert!(device.to_bytes() == bytes, "{error}: something was written");
    error
}

#[test]
fn corner_34_a_volume_that_cannot_grow_is_refused_with_the_reason_and_left_alone() {
    let good = small();
    // A device that shrank.
    let short = &good[..good.len() - 10 * BLOCK_SIZE];
    assert!(matches!(
        refusal(short),
        Error::Truncated {
            volume: 600,
            device: 590
        }
    ));
    assert!(matches!(refusal(&vec![0; good.len()]), Error::NotAVolume));
    // Other formats.
    for (field, value) in [
        (std::mem::offset_of!(Superblock, version), 1u32),
        (std::mem::offset_of!(Superblock, version), 3),
        (std::mem::offset_of!(Superblock, features_incompat), 1 << 30),
        (std::mem::offset_of!(Superblock, features_ro), 1 << 30),
    ] {
        let mut other = good.clone();
        other.resize(good.len() + 400 * BLOCK_SIZE, 0);
        let block: &mut [u8; BLOCK_SIZE] = (&mut other[..BLOCK_SIZE]).try_into().unwrap();
        block[field..field + 4].copy_from_slice(&value.to_le_bytes());
        let uuid = grown_uuid(block);
        seal(&uuid, BlockNo(0), block);
        let error = refusal(&other);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("version of steadfast that made it"),
            "{error}"
        );
    }
}

#[test]
fn corner_34_another_volumes_superblock_does_not_make_this_one_grow() {
    let mut other = small();
    other.resize(other.len() + 400 * BLOCK_SIZE, 0);
    let block: &mut [u8; BLOCK_SIZE] = (&mut other[..BLOCK_SIZE]).try_into().unwrap();
    block[std::mem::offset_of!(Superblock, uuid)] ^= 1;
    let uuid = grown_uuid(block);
    seal(&uuid, BlockNo(0), block);
    // The journal is another volume's: nothing of it can be trusted.
    let error = refusal(&other);
    assert!(matches!(error, Error::Journal { .. }), "{error}");
}
