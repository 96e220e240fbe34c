//! Tries an update of two blocks against every disk that a power cut may leave: first without a flush between the two
//! writes, then with one.
//!
//! Run it with `cargo run -p steadfast-sim --example power_cut`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, DeviceError};
use steadfast_sim::{Limits, SimDevice};

const DATA: BlockNo = BlockNo(1);
const VALID: BlockNo = BlockNo(0);

/// Writes data, and then a block that says that the data is there.
fn update(disk: &SimDevice, flush_between: bool) -> Result<(), DeviceError> {
    disk.write(DATA, &[&[7; BLOCK_SIZE]])?;
    if flush_between {
        disk.flush()?;
    }
    disk.write(VALID, &[&[1; BLOCK_SIZE]])?;
    disk.flush()
}

/// Looks at all disks that a power cut may leave; returns how many there are, and on how many of them the mark is there
/// but not all of the data.
fn explore(flush_between: bool) -> Result<(usize, usize), DeviceError> {
    let disk = SimDevice::new(2);
    update(&disk, flush_between)?;
    let (mut disks, mut wrong) = (0, 0);
    let mut explorer = disk.explorer();
    for position in 0..=explorer.len() {
        for image in explorer.cut(position).images(&Limits::default()) {
            let (mut valid, mut data) = ([0; BLOCK_SIZE], [0; BLOCK_SIZE]);
            image.read(VALID, &mut valid)?;
            image.read(DATA, &mut data)?;
            disks += 1;
            if valid[0] == 1 && data != [7; BLOCK_SIZE] {
                wrong += 1;
            }
        }
    }
    Ok((disks, wrong))
}

fn main() -> Result<(), Box<dyn Error>> {
    for flush_between in [false, true] {
        let (disks, wrong) = explore(flush_between)?;
        let with = if flush_between { "with" } else { "without" };
        println!("{with} a flush in between: {disks} disks, {wrong} of them wrong");
        assert_eq!(wrong == 0, flush_between);
    }
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
