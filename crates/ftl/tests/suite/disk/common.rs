//! A small disk, and sectors that say which write they are of.

use steadfast_flash::{FlashError, Geometry, Latency, MemoryStore, Nand};
use steadfast_ftl::{Emulated, Ftl, FtlError, Limits, Options, Tuned};

pub(crate) type Disk = Ftl<Emulated<MemoryStore>, Tuned>;
pub(crate) type Error = FtlError<FlashError>;

pub(crate) const EPOCH: u64 = 24;
pub(crate) const SECTOR: usize = 256;

pub(crate) fn geometry() -> Geometry {
    Geometry {
        channels: 2,
        dies: 1,
        blocks: 48,
        pages: 16,
        sectors: 2,
        sector_bytes: SECTOR as u32,
        spare_bytes: 64,
    }
}

pub(crate) fn platform(geometry: Geometry) -> Emulated<MemoryStore> {
    Emulated::new(Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap())
}

/// The largest disk there is on `geometry`.
pub(crate) fn disk_on(geometry: Geometry, epoch: u64) -> Disk {
    let platform = platform(geometry);
    let shape = platform.shape();
    let sectors = Limits::largest(&shape, epoch).unwrap().sectors;
    let options = Options {
        sectors,
        epoch,
        region: None,
        volume: 7,
    };
    Ftl::format(platform, shape, Tuned::new(shape.dies), options).unwrap()
}

pub(crate) fn disk() -> Disk {
    disk_on(geometry(), EPOCH)
}

pub(crate) fn mount(nand: Nand<MemoryStore>) -> Result<Disk, Error> {
    let platform = Emulated::new(nand);
    let shape = platform.shape();
    Ftl::mount(platform, shape, Tuned::new(shape.dies))
}

/// Cuts the power and mounts.
pub(crate) fn crash(disk: Disk, seed: u64) -> Disk {
    mount(disk.into_platform().into_nand().cut(seed).unwrap()).unwrap()
}

pub(crate) fn bytes(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(SECTOR / 8)
}

pub(crate) fn write(disk: &mut Disk, sector: u64, stamp: u64) {
    disk.write(sector, &bytes(stamp)).unwrap();
}

/// Writes, and flushes first if the epoch is full.
pub(crate) fn put(disk: &mut Disk, sector: u64, stamp: u64) {
    if disk.room() == 0 {
        disk.flush().unwrap();
    }
    write(disk, sector, stamp);
}

pub(crate) fn read(disk: &mut Disk, sector: u64) -> u64 {
    let mut data = vec![1; SECTOR];
    disk.read(sector, &mut data).unwrap();
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert_eq!(data, bytes(stamp), "sector {sector} is torn");
    stamp
}
