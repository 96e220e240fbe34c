//! The disk under test: its layout, images to start from, and the state after a recovery.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{
    Config, Credits, Faults, Journal, Kind, LOG_BLOCKS_MIN, META_BYTES, Region, StreamId, seal,
};
use steadfast_model::log;
use steadfast_sim::{Image, SimDevice};

pub(crate) const VOLUME: [u8; 16] = [3; 16];
pub(crate) const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: LOG_BLOCKS_MIN,
};
/// Metadata blocks that live from the beginning.
pub(crate) const META: Range<u64> = 66..70;
/// Blocks that are allocated and freed: in most histories, and in those that fill the log.
pub(crate) const POOL: Range<u64> = 70..82;
pub(crate) const LARGE_POOL: Range<u64> = 70..112;

/// Log positions at which a history may begin.
pub(crate) const STARTS: [u64; 3] = [0, 40, 60];

pub(crate) fn config(faults: Faults, read_only: bool) -> Config {
    Config::new(REGION, VOLUME)
        .without_workers()
        .with(|config| {
            config.read_only = read_only;
            config.faults = faults;
        })
}

/// A clean disk whose log begins at `STARTS[start]`.
pub(crate) fn fresh(start: usize) -> Arc<SimDevice> {
    static DISKS: OnceLock<Vec<Image>> = OnceLock::new();
    let disks = DISKS.get_or_init(|| STARTS.map(prepare).into());
    Arc::new(SimDevice::from_image(disks[start].clone()))
}

fn prepare(start: u64) -> Image {
    let sim = SimDevice::new(LARGE_POOL.end);
    Journal::format(&sim, &REGION, &VOLUME).unwrap();
    for at in META {
        let mut block = [0; BLOCK_SIZE];
        seal(&VOLUME, BlockNo(at), &mut block);
        sim.write(BlockNo(at), &[&block]).unwrap();
    }
    let sim = Arc::new(sim);
    let (journal, _) = Journal::open(sim.clone(), config(Faults::default(), false)).unwrap();
    for i in 0..start {
        let credits = Credits {
            log_bytes: 100,
            data_blocks: 0,
        };
        let mut op = journal.begin(StreamId(0), credits).unwrap();
        op.write(
            BlockNo(META.start),
            Kind::Meta,
            0,
            &[u8::from(i + 1 < start)],
        )
        .unwrap();
        let _ = op.commit();
        journal.sync_all().unwrap();
    }
    journal.close().unwrap();
    sim.image()
}

/// The specification of a fresh disk.
pub(crate) fn model() -> log::Log {
    log::Log::new(META.map(|at| (at, Arc::from([0; META_BYTES]))).collect())
}

/// Kind of a block, by the length of its life.
pub(crate) fn kind(len: usize) -> Kind {
    if len == META_BYTES {
        Kind::Meta
    } else {
        Kind::Data
    }
}

/// The blocks before `end` that a journal shows, with any content.
pub(crate) fn contents(journal: &Journal, end: u64) -> Result<log::Image, String> {
    let mut bytes = vec![0; (end - META.start) as usize * BLOCK_SIZE];
    journal
        .read_data(BlockNo(META.start), &mut bytes)
        .map_err(|e| e.to_string())?;
    let blocks = bytes.chunks_exact(BLOCK_SIZE).map(Arc::from);
    Ok((META.start..).zip(blocks).collect())
}

/// Whether a journal shows the live blocks by kind (metadata with valid seals) as they are in the model.
pub(crate) fn shows(journal: &Journal, live: &log::Image) -> Result<(), String> {
    for (at, expected) in live {
        let block = journal
            .read(BlockNo(*at), kind(expected.len()))
            .map_err(|e| format!("block {at}: {e}"))?;
        if block[..expected.len()] != **expected {
            let byte = (0..expected.len())
                .find(|i| block[*i] != expected[*i])
                .unwrap_or(0);
            return Err(format!(
                "block {at} reads {:02x?} from byte {byte} on, expected {:02x?}",
                &block[byte..(byte + 8).min(expected.len())],
                &expected[byte..(byte + 8).min(expected.len())]
            ));
        }
    }
    Ok(())
}
