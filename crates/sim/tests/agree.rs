//! Every device agrees with a plain array of bytes, for any requests.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use steadfast_block::{
    BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo, Direct, Engine, FileDevice, FileOptions, MemDevice,
};
use steadfast_sim::{Limits, SimDevice};

const BLOCKS: u64 = 64;

#[derive(Clone, Debug)]
enum Request {
    /// Segments of these numbers of blocks, filled from the seed; aligned in memory or not.
    Write {
        at: u64,
        segments: Vec<usize>,
        seed: u8,
        aligned: bool,
    },
    Read {
        at: u64,
        blocks: usize,
        aligned: bool,
    },
    /// Parts of one batch: the number of blocks left out, then segments of these numbers of blocks; given
    /// to the device in another order.
    Scatter {
        parts: Vec<(u64, Vec<usize>)>,
        order: usize,
        seed: u8,
        aligned: bool,
    },
    /// Parts of one batch: first block and number of blocks. They may overlap.
    Gather {
        parts: Vec<(u64, usize)>,
        aligned: bool,
    },
    Flush,
}

fn request() -> impl Strategy<Value = Request> {
    let at = 0..BLOCKS + 2;
    prop_oneof![
        4 => (at.clone(), prop::collection::vec(0..20_usize, 0..5), any::<u8>(), any::<bool>())
            .prop_map(|(at, segments, seed, aligned)| Request::Write { at, segments, seed, aligned }),
        4 => (at, 0..70_usize, any::<bool>())
            .prop_map(|(at, blocks, aligned)| Request::Read { at, blocks, aligned }),
        4 => (scattered_parts(), any::<usize>(), any::<u8>(), any::<bool>())
            .prop_map(|(parts, order, seed, aligned)| Request::Scatter { parts, order, seed, aligned }),
        4 => (prop::collection::vec((0..BLOCKS, 0..9_usize), 0..12), any::<bool>())
            .prop_map(|(parts, aligned)| Request::Gather { parts, aligned }),
        1 => Just(Request::Flush),
    ]
}

fn scattered_parts() -> impl Strategy<Value = Vec<(u64, Vec<usize>)>> {
    prop::collection::vec((0..6_u64, prop::collection::vec(0..4_usize, 0..3)), 0..14)
}

/// A buffer for some blocks at an address that is aligned to a block, or surely not.
struct Buffer {
    memory: BlockBuf,
    from: usize,
    bytes: usize,
}

impl Buffer {
    fn new(blocks: usize, aligned: bool) -> Buffer {
        let memory = BlockBuf::zeroed(blocks + 1);
        Buffer {
            memory,
            from: if aligned { 0 } else { 8 },
            bytes: blocks * BLOCK_SIZE,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory.as_bytes()[self.from..self.from + self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_bytes_mut()[self.from..self.from + self.bytes]
    }
}

/// Buffers of these numbers of blocks, with contents that depend on `fill`.
fn filled(segments: &[usize], fill: &mut u64, aligned: bool) -> Vec<Buffer> {
    let filled = segments.iter().map(|blocks| {
        let mut buffer = Buffer::new(*blocks, aligned);
        for part in buffer.bytes_mut().chunks_mut(256) {
            *fill = fill.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            part.fill((*fill >> 56) as u8);
        }
        buffer
    });
    filled.collect()
}

/// Carries the requests out on the device and on `model` and compares the answers.
fn agrees(device: &dyn BlockDevice, model: &mut [u8], requests: &[Request]) {
    for request in requests {
        match request {
            Request::Write {
                at,
                segments,
                seed,
                aligned,
            } => {
                let buffers = filled(segments, &mut u64::from(*seed), *aligned);
                let data: Vec<&[u8]> = buffers.iter().map(Buffer::bytes).collect();
                let total: usize = segments.iter().sum();
                let fits = at + total as u64 <= BLOCKS;
                assert_eq!(device.write(BlockNo(*at), &data).is_ok(), fits);
                if fits {
                    let from = *at as usize * BLOCK_SIZE;
                    model[from..from + total * BLOCK_SIZE].copy_from_slice(&data.concat());
                }
            }
            Request::Read {
                at,
                blocks,
                aligned,
            } => {
                let mut buffer = Buffer::new(*blocks, *aligned);
                let fits = at + *blocks as u64 <= BLOCKS;
                assert_eq!(device.read(BlockNo(*at), buffer.bytes_mut()).is_ok(), fits);
                if fits {
                    let from = *at as usize * BLOCK_SIZE;
                    assert!(buffer.bytes() == &model[from..from + blocks * BLOCK_SIZE]);
                }
            }
            Request::Scatter {
                parts,
                order,
                seed,
                aligned,
            } => {
                let (mut next, mut fill) = (0, u64::from(*seed));
                let mut batch = Vec::new();
                for (gap, segments) in parts {
                    let at = next + gap;
                    next = at + segments.iter().sum::<usize>() as u64;
                    batch.push((at, filled(segments, &mut fill, *aligned)));
                }
                let fits = next <= BLOCKS;
                if !batch.is_empty() {
                    let middle = order % batch.len();
                    batch.rotate_left(middle);
                }
                let data: Vec<(BlockNo, Vec<&[u8]>)> = batch
                    .iter()
                    .map(|(at, buffers)| {
                        (BlockNo(*at), buffers.iter().map(Buffer::bytes).collect())
                    })
                    .collect();
                let writes: Vec<(BlockNo, &[&[u8]])> =
                    data.iter().map(|(at, data)| (*at, &data[..])).collect();
                assert_eq!(device.write_scattered(&writes).is_ok(), fits);
                if fits {
                    for (at, data) in &data {
                        let bytes = data.concat();
                        model[at.0 as usize * BLOCK_SIZE..][..bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
            Request::Gather { parts, aligned } => {
                let mut buffers: Vec<(u64, Buffer)> = parts
                    .iter()
                    .map(|(at, blocks)| (*at, Buffer::new(*blocks, *aligned)))
                    .collect();
                let fits = parts
                    .iter()
                    .all(|(at, blocks)| at + *blocks as u64 <= BLOCKS);
                let mut reads: Vec<(BlockNo, &mut [u8])> = buffers
                    .iter_mut()
                    .map(|(at, buffer)| (BlockNo(*at), buffer.bytes_mut()))
                    .collect();
                assert_eq!(device.read_scattered(&mut reads).is_ok(), fits);
                if fits {
                    for (at, buffer) in &buffers {
                        let expected = &model[*at as usize * BLOCK_SIZE..][..buffer.bytes().len()];
                        assert!(buffer.bytes() == expected);
                    }
                }
            }
            Request::Flush => device.flush().unwrap(),
        }
    }
}

fn all_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK_SIZE];
    device.read(BlockNo(0), &mut bytes).unwrap();
    bytes
}

fn empty() -> Vec<u8> {
    vec![0; BLOCKS as usize * BLOCK_SIZE]
}

fn file_agrees(direct: Direct, engine: Engine, requests: &[Request]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, BLOCKS, false).unwrap());
    let options = FileOptions {
        direct,
        engine,
        ..FileOptions::default()
    };
    let mut model = empty();
    let device = FileDevice::open(&path, &options).unwrap();
    agrees(&device, &mut model, requests);
    drop(device);
    let read_only = FileOptions {
        read_only: true,
        ..FileOptions::default()
    };
    assert!(all_of(&FileDevice::open(&path, &read_only).unwrap()) == model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_agrees_with_an_array(requests in prop::collection::vec(request(), 1..40)) {
        let mut model = empty();
        let device = MemDevice::new(BLOCKS);
        agrees(&device, &mut model, &requests);
        prop_assert!(device.to_bytes() == model);
        prop_assert!(all_of(&MemDevice::from_bytes(&model)) == model);
    }

    #[test]
    fn a_buffered_file_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Off, Engine::Caller, &requests);
    }

    #[test]
    fn a_direct_file_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Prefer, Engine::Caller, &requests);
    }

    #[test]
    fn a_buffered_file_with_threads_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Off, Engine::Threads(3), &requests);
    }

    #[test]
    fn a_direct_file_with_threads_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Prefer, Engine::Threads(3), &requests);
    }

    #[test]
    fn a_buffered_file_with_io_uring_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Off, Engine::Uring, &requests);
    }

    #[test]
    fn a_direct_file_with_io_uring_agrees_with_an_array(requests in prop::collection::vec(request(), 1..30)) {
        file_agrees(Direct::Prefer, Engine::Uring, &requests);
    }

    #[test]
    fn the_simulated_device_agrees_with_an_array(requests in prop::collection::vec(request(), 1..40)) {
        let mut model = empty();
        let sim = SimDevice::new(BLOCKS);
        agrees(&sim, &mut model, &requests);
        prop_assert!(sim.image().to_bytes() == model);

        // A cut that loses nothing gives the array, too, and goes on as a device.
        let survivor = sim.explorer().cut(usize::MAX).everything();
        prop_assert!(survivor.image().to_bytes() == model);
        agrees(&survivor, &mut model, &requests);
        prop_assert!(all_of(&survivor) == model);
    }

    /// An independent account of the states after a cut, sector by sector.
    #[test]
    fn no_image_holds_a_sector_that_no_cut_could_leave(
        requests in prop::collection::vec(request(), 1..25),
        seed in any::<u64>(),
    ) {
        const SECTOR: usize = 512;
        let sim = SimDevice::new(BLOCKS);
        let mut model = empty();
        // For each sector every value since the last flush, the durable one first.
        let mut history: Vec<Vec<Vec<u8>>> =
            model.chunks(SECTOR).map(|sector| vec![sector.to_vec()]).collect();
        for request in &requests {
            agrees(&sim, &mut model, std::slice::from_ref(request));
            for (values, sector) in history.iter_mut().zip(model.chunks(SECTOR)) {
                if matches!(request, Request::Flush) {
                    values.clear();
                }
                values.push(sector.to_vec());
            }
        }
        let mut explorer = sim.explorer();
        let cut = explorer.cut(usize::MAX);
        let mut fingerprints = std::collections::HashSet::new();
        for image in cut.images(&Limits { exhaustive_writes: 5, sampled: 20, tears: true, seed }) {
            prop_assert!(fingerprints.insert(image.fingerprint()));
            for (values, sector) in history.iter().zip(all_of(&image).chunks(SECTOR)) {
                prop_assert!(values.iter().any(|value| value == sector), "{}", image);
            }
        }
    }
}
