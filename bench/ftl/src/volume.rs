//! Figure 7: the file system without a log on the snapshot-consistent layer, beside the same file
//! system with its log on the layer that promises nothing between flushes. Through the library, by one
//! thread that does everything, in the memory's virtual time: the host's work takes none.

use crate::{EPOCH, Error, SECTOR, paper, record};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use steadfast_block::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, check_range, check_segments,
};
use steadfast_flash::{FlashError, Latency, MemoryStore, Nand, Rng};
use steadfast_fs::{Contract, Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_ftl::{Baseline, BaselineKind, Disk, Emulated, Limits, Options, WhenFull};
use steadfast_vfs::{Caller, FileKind, FileSystem, Ino, NewNode, RenameMode};

/// The layer that promises nothing between flushes, as a disk.
struct Asynchronous {
    layer: Mutex<Baseline<MemoryStore>>,
    blocks: u64,
}

fn failed(op: DeviceOp, at: BlockNo, error: FlashError) -> DeviceError {
    let source = Arc::new(std::io::Error::other(error));
    DeviceError::Io {
        op,
        at,
        count: 1,
        source,
    }
}

impl Asynchronous {
    fn layer(&self) -> std::sync::MutexGuard<'_, Baseline<MemoryStore>> {
        self.layer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for Asynchronous {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            volatile_cache: true,
            read_only: false,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(DeviceOp::Read, at, buf.len(), self.blocks)?;
        let mut layer = self.layer();
        for (sector, bytes) in (at.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            (layer.read(sector, bytes)).map_err(|e| failed(DeviceOp::Read, at, e))?;
        }
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<(), DeviceError> {
        check_segments(at, segments, self.blocks)?;
        let mut layer = self.layer();
        let blocks = segments.iter().flat_map(|s| s.chunks_exact(BLOCK_SIZE));
        for (sector, bytes) in (at.0..).zip(blocks) {
            (layer.write(sector, bytes)).map_err(|e| failed(DeviceOp::Write, at, e))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let flushed = self.layer().flush();
        flushed.map_err(|e| failed(DeviceOp::Flush, BlockNo(0), e))
    }

    fn discard(&self, _: BlockNo, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A mounted volume, and the clock of its memory.
struct Volume {
    fs: Arc<Fs>,
    now: Box<dyn Fn() -> u64>,
}

fn volume(system: &str, contract: Contract, quick: bool) -> Result<Volume, Error> {
    let geometry = paper(if quick { 12 } else { 32 });
    let nand = Nand::new(geometry, Latency::mlc(), MemoryStore::new(&geometry))?;
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    let most = Limits::largest(&shape, EPOCH)?.sectors;
    let sectors = most.min(geometry.capacity() / SECTOR * 2 / 3);
    let (device, now): (Arc<dyn BlockDevice>, Box<dyn Fn() -> u64>) = match system {
        "steadfast" => {
            let options = Options {
                sectors,
                epoch: EPOCH,
                region: None,
                volume: 1,
            };
            let patience = WhenFull::Wait(Duration::ZERO);
            let disk = Arc::new(Disk::format(platform.into_nand(), options, patience)?);
            let clock = Arc::clone(&disk);
            let now = move || {
                let now = clock.look(|layer| layer.platform().nand().now());
                now.unwrap_or_default()
            };
            (disk, Box::new(now))
        }
        _ => {
            let limits = Limits::derive(&shape, sectors, EPOCH)?;
            let kind = BaselineKind::Asynchronous;
            let disk = Arc::new(Asynchronous {
                layer: Mutex::new(Baseline::new(platform, kind, limits)),
                blocks: sectors,
            });
            let clock = Arc::clone(&disk);
            (
                disk,
                Box::new(move || clock.layer().platform().nand().now()),
            )
        }
    };
    // A used disk: each sector has been written.
    let zeros = vec![0; 64 * BLOCK_SIZE];
    for first in (0..sectors).step_by(64) {
        let count = (sectors - first).min(64) as usize;
        device.write(BlockNo(first), &[&zeros[..count * BLOCK_SIZE]])?;
        device.flush()?;
    }
    let options = MkfsOptions {
        contract,
        without_log: system == "steadfast",
        seed: Some(1),
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options, &mut |_, _| {})?;
    let mut options = MountOptions::default();
    options.background = false;
    options.seed = Some(1);
    let (fs, _) = Fs::mount(device, &options)?;
    Ok(Volume { fs, now })
}

fn create(fs: &Fs, dir: Ino, name: &str) -> Result<Ino, Error> {
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    Ok(fs.mknod(&Caller::root(), dir, name.as_bytes(), &node)?.ino)
}

/// Files of 1 KiB are made, each with an fsync.
fn smallfiles(fs: &Fs, count: u64) -> Result<u64, Error> {
    let root = &Caller::root();
    let mut dir = fs.root();
    for n in 0..count {
        if n % 100 == 0 {
            dir = (fs.mkdir(root, fs.root(), format!("dir {n}").as_bytes(), 0o755)?).ino;
        }
        let ino = create(fs, dir, &format!("file {n}"))?;
        fs.write(root, ino, 0, &[n as u8; 1024])?;
        fs.fsync(root, ino, false)?;
    }
    Ok(count)
}

/// One file, in pieces of 64 KiB, with an fsync at the end: written, and written again. Blocks.
fn largefile(fs: &Fs, blocks: u64) -> Result<u64, Error> {
    let root = &Caller::root();
    let ino = create(fs, fs.root(), "large")?;
    for version in 0..2 {
        for first in (0..blocks).step_by(16) {
            let at = first * BLOCK_SIZE as u64;
            fs.write(root, ino, at, &vec![version + 1; 16 * BLOCK_SIZE])?;
        }
        fs.fsync(root, ino, false)?;
    }
    Ok(2 * blocks)
}

/// The calls of SQLite with a write-ahead log: each transaction appends three frames and syncs;
/// every 300 transactions the pages go to the database, which is synced, and the log begins anew.
fn sqlite(fs: &Fs, transactions: u64) -> Result<u64, Error> {
    const FRAME: u64 = 4096 + 24;
    let root = &Caller::root();
    let (database, log) = (
        create(fs, fs.root(), "db")?,
        create(fs, fs.root(), "db-wal")?,
    );
    let pages = 4096;
    for first in (0..pages).step_by(16) {
        fs.write(root, database, first * 4096, &vec![1; 16 * 4096])?;
    }
    fs.fsync(root, database, false)?;
    let (mut rng, mut waiting) = (Rng::new(5), Vec::new());
    for n in 0..transactions {
        for _ in 0..3 {
            let at = 32 + waiting.len() as u64 * FRAME;
            fs.write(root, log, at, &vec![n as u8; FRAME as usize])?;
            waiting.push(rng.below(pages));
        }
        fs.fsync(root, log, true)?;
        if n % 300 == 299 {
            for page in waiting.drain(..) {
                fs.write(root, database, page * 4096, &vec![n as u8; 4096])?;
            }
            fs.fsync(root, database, true)?;
        }
    }
    Ok(transactions)
}

/// Mail is delivered to one of 20 boxes: written and synced under a temporary name, renamed, and the
/// box synced; for every second one that comes, one is read and deleted.
fn mailbench(fs: &Fs, mails: u64) -> Result<u64, Error> {
    let root = &Caller::root();
    let spool = fs.mkdir(root, fs.root(), b"tmp", 0o755)?.ino;
    let mut boxes = Vec::new();
    for n in 0..20 {
        let ino = fs
            .mkdir(root, fs.root(), format!("box {n}").as_bytes(), 0o755)?
            .ino;
        boxes.push((ino, Vec::<String>::new()));
    }
    let mut rng = Rng::new(9);
    for n in 0..mails {
        let name = format!("mail {n}");
        let ino = create(fs, spool, &name)?;
        let bytes = 1000 + rng.below(12_000) as usize;
        fs.write(root, ino, 0, &vec![n as u8; bytes])?;
        fs.fsync(root, ino, false)?;
        let turn = rng.below(20) as usize;
        let (dir, there) = &mut boxes[turn];
        let bytes = name.as_bytes();
        fs.rename(root, (spool, bytes), (*dir, bytes), RenameMode::Replace)?;
        fs.fsync(root, *dir, false)?;
        there.push(name);
        if n % 2 == 1 {
            let (dir, there) = &mut boxes[rng.below(20) as usize];
            if let Some(name) = there.pop() {
                let ino = fs.lookup(root, *dir, name.as_bytes())?.ino;
                fs.read(root, ino, 0, &mut vec![0; 16_384])?;
                fs.unlink(root, *dir, name.as_bytes())?;
            }
        }
    }
    Ok(mails)
}

type Run = fn(&Fs, u64) -> Result<u64, Error>;

pub(crate) fn measure(quick: bool) -> Result<(), Error> {
    let loads: [(&str, &str, Run, u64); 4] = [
        ("smallfiles", "files/s", smallfiles, 5_000),
        ("largefile", "MB/s", largefile, 25_600),
        ("sqlite", "tx/s", sqlite, 3_000),
        ("mailbench", "mails/s", mailbench, 3_000),
    ];
    for contract in [Contract::Ordered, Contract::MetadataPrefix] {
        for (name, unit, run, size) in loads {
            let overwrites = name == "largefile" || name == "sqlite";
            if contract == Contract::MetadataPrefix && !overwrites {
                // Nothing is written in place: as under `ordered`.
                continue;
            }
            for system in ["steadfast", "async"] {
                let Volume { fs, now } = volume(system, contract, quick)?;
                let before = now();
                let done = run(&fs, if quick { size / 10 } else { size })?;
                fs.sync()?;
                let seconds = (now() - before) as f64 / 1e9;
                let each = if unit == "MB/s" {
                    SECTOR as f64 / 1e6
                } else {
                    1.0
                };
                let row = match contract {
                    Contract::MetadataPrefix => format!("{name}+metadata-prefix"),
                    _ => name.to_owned(),
                };
                record(&row, unit, "higher", system, done as f64 * each / seconds);
                fs.unmount()?;
            }
        }
    }
    Ok(())
}
