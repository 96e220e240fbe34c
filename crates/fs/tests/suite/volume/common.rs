//! Disks in flash memory, for volumes without a log.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;
use steadfast_block::BLOCK_SIZE;
use steadfast_flash::{Geometry, Latency, MemoryStore, Nand};
use steadfast_ftl::{Disk, Options, WhenFull, geometry_for};

/// An empty disk, with little to spare. A write that overfills an epoch is refused at once.
pub(crate) fn flash_disk(blocks: u64, epoch: u64) -> Arc<Disk<MemoryStore>> {
    let like = Geometry {
        channels: 2,
        dies: 2,
        blocks: 1,
        pages: 32,
        sectors: 2,
        sector_bytes: BLOCK_SIZE as u32,
        spare_bytes: 128,
    };
    let geometry = geometry_for(like, blocks, epoch, 10).unwrap();
    let nand = Nand::new(geometry, Latency::none(), MemoryStore::new(&geometry)).unwrap();
    let options = Options {
        sectors: blocks,
        epoch,
        region: None,
        volume: 3,
    };
    Arc::new(Disk::format(nand, options, WhenFull::Wait(Duration::ZERO)).unwrap())
}
