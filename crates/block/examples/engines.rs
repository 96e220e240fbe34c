//! Compares the engines of a file device on this machine.
//!
//! `cargo run --release -p steadfast-block --example engines -- [FILE] [RUNS]`
//!
//! Makes an image of 256 MiB, written for real, and measures for every engine, buffered and
//! direct, in interleaved runs: the latency of one 4 KiB write with its flush, and the time of
//! 4 and of 256 scattered 4 KiB writes, the latter with their flush as well, and of 256
//! scattered reads, one batch each. Prints medians and the range of the runs.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::{Duration, Instant};
use steadfast_block::{
    BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo, Direct, Engine, FileDevice, FileOptions,
};

const BLOCKS: u64 = 65_536;
const BATCH: usize = 256;
/// Single writes and batches in a run.
const SINGLES: u32 = 100;
const BATCHES: u32 = 8;

const MEASURES: [&str; 5] = [
    "write + flush",
    "4 scattered writes",
    "256 scattered writes",
    "same + flush",
    "256 scattered reads",
];

/// Block numbers all over the device, each once in a while.
struct Spread(u64);

impl Iterator for Spread {
    type Item = BlockNo;
    fn next(&mut self) -> Option<BlockNo> {
        // An odd step: all blocks before any comes again.
        self.0 = (self.0 + 40_503) % BLOCKS;
        Some(BlockNo(self.0))
    }
}

fn run(device: &FileDevice, spread: &mut Spread) -> Result<[Duration; 5], Box<dyn Error>> {
    let mut data = BlockBuf::zeroed(BATCH);
    data.as_bytes_mut().fill(spread.0 as u8);
    let blocks: Vec<&[u8]> = data.as_bytes().chunks(BLOCK_SIZE).collect();

    let mut one = Duration::ZERO;
    for at in spread.by_ref().take(SINGLES as usize) {
        let start = Instant::now();
        device.write(at, &blocks[..1])?;
        device.flush()?;
        one += start.elapsed();
    }

    let mut few = Duration::ZERO;
    for _ in 0..SINGLES {
        let writes: Vec<(BlockNo, &[&[u8]])> = spread.zip(blocks.chunks(1).take(4)).collect();
        let start = Instant::now();
        device.write_scattered(&writes)?;
        few += start.elapsed();
    }
    device.flush()?;

    let (mut scattered, mut flushed) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..BATCHES {
        let writes: Vec<(BlockNo, &[&[u8]])> = spread.zip(blocks.chunks(1)).collect();
        let start = Instant::now();
        device.write_scattered(&writes)?;
        scattered += start.elapsed();
        device.flush()?;
        flushed += start.elapsed();
    }

    let mut gathered = Duration::ZERO;
    let mut into = BlockBuf::zeroed(BATCH);
    for _ in 0..BATCHES {
        let mut reads: Vec<(BlockNo, &mut [u8])> = spread
            .zip(into.as_bytes_mut().chunks_mut(BLOCK_SIZE))
            .collect();
        let start = Instant::now();
        device.read_scattered(&mut reads)?;
        gathered += start.elapsed();
    }
    Ok([
        one / SINGLES,
        few / SINGLES,
        scattered / BATCHES,
        flushed / BATCHES,
        gathered / BATCHES,
    ])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "engines.img".into());
    let runs: usize = args.next().map_or(Ok(5), |n| n.parse())?;
    let device = FileDevice::create(&path, BLOCKS, false)?;
    device.prewrite(BlockNo(0)..BlockNo(BLOCKS), &mut |_| ())?;
    println!(
        "{path}: {BLOCKS} blocks, disk cache {:?}",
        device.write_cache()
    );
    drop(device);

    let mut cases = Vec::new();
    for direct in [Direct::Off, Direct::Prefer] {
        for engine in [
            Engine::Caller,
            Engine::Threads(2),
            Engine::Threads(8),
            Engine::Uring,
        ] {
            cases.push((direct, engine, [const { Vec::new() }; 5]));
        }
    }
    let mut spread = Spread(0);
    for _ in 0..runs {
        for (direct, engine, times) in &mut cases {
            let options = FileOptions {
                direct: *direct,
                engine: *engine,
                ..FileOptions::default()
            };
            let device = FileDevice::open(&path, &options)?;
            for refusal in [device.direct_refusal(), device.engine_refusal()]
                .iter()
                .flatten()
            {
                println!("{refusal}");
            }
            for (times, time) in times.iter_mut().zip(run(&device, &mut spread)?) {
                times.push(time);
            }
        }
    }
    std::fs::remove_file(&path)?;

    println!("medians of {runs} runs, microseconds (fastest to slowest)");
    print!("{:26}", "");
    MEASURES.iter().for_each(|name| print!("{name:>28}"));
    println!();
    for (direct, engine, times) in &mut cases {
        let access = if *direct == Direct::Off {
            "buffered"
        } else {
            "direct"
        };
        print!("{:26}", format!("{access}, {engine}"));
        for times in times {
            times.sort_unstable();
            let us = |time: &Duration| time.as_secs_f64() * 1e6;
            let (low, mid, high) = (us(&times[0]), us(&times[runs / 2]), us(&times[runs - 1]));
            print!("{:>28}", format!("{mid:.0} ({low:.0}-{high:.0})"));
        }
        println!();
    }
    Ok(())
}
