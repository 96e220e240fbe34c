//! A disk on emulated flash memory: formatted, written, flushed, cut off while more is written, mounted again.
//!
//! The flash memory is emulated here; `Platform` is the trait for another one. `Disk` makes a block device of the layer.
//!
//! Run it with `cargo run -p steadfast-ftl --example flash`.
#![allow(clippy::print_stdout)]

use std::error::Error;

use steadfast_flash::{Geometry, Latency, MemoryStore, Nand};
use steadfast_ftl::{Emulated, Ftl, Options, Tuned};

const SECTORS: u64 = 1024;
const SECTOR_BYTES: usize = 4096;

fn sector(byte: u8) -> Vec<u8> {
    vec![byte; SECTOR_BYTES]
}

fn main() -> Result<(), Box<dyn Error>> {
    let geometry = Geometry {
        channels: 2,
        dies: 2,
        blocks: 32,
        pages: 64,
        sectors: 2,
        sector_bytes: SECTOR_BYTES as u32,
        spare_bytes: 64,
    };
    let store = MemoryStore::new(&geometry);
    let platform = Emulated::new(Nand::new(geometry, Latency::mlc(), store)?);
    let shape = platform.shape();
    let options = Options {
        sectors: SECTORS,
        epoch: 64,
        region: None,
        volume: 1,
    };
    let mut disk = Ftl::format(platform, shape, Tuned::new(shape.dies), options)?;

    disk.write(1, &sector(b'a'))?;
    disk.write(2, &sector(b'b'))?;
    disk.flush()?;
    // Not flushed: a cut takes both back.
    disk.write(1, &sector(b'c'))?;
    disk.write(2, &sector(b'd'))?;

    for seed in 0..3 {
        // The power fails. The seed decides what each page that is not durable holds afterwards.
        let flash = disk.into_platform().into_nand().cut(seed)?;
        disk = Ftl::mount(Emulated::new(flash), shape, Tuned::new(shape.dies))?;
        let mut found = [sector(0), sector(0)];
        disk.read(1, &mut found[0])?;
        disk.read(2, &mut found[1])?;
        println!("after the cut: {} {}", found[0][0], found[1][0]);
        assert!(found == [sector(b'a'), sector(b'b')], "the last flush");
        // The next cut comes while these are written.
        disk.write(1, &sector(b'e'))?;
        disk.trim(2, 1)?;
    }

    disk.flush()?;
    let mut found = sector(b'x');
    disk.read(2, &mut found)?;
    assert!(found == sector(0), "a trimmed sector reads as zeros");
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
