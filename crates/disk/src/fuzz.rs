//! The body of the fuzz target `flash`: a flash image with every kind of damage is opened, read, written
//! to and opened again.
//!
//! The conditions: no panic; a typed error, or a disk; and a disk whose checksums were not forged shows no
//! bytes that a block never held.

use std::path::Path;
use std::sync::OnceLock;

use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo, DeviceError};
use steadfast_flash::{Address, Geometry, ImageStore, Rng};
use steadfast_ftl::{Bytes, Disk, DiskError, Options, Page, WhenFull};

use crate::served::ServedDisk;

const BLOCKS: u64 = 48;
const EPOCH: u64 = 8;
/// The image's header: geometry and its checksum.
const HEADER: usize = 48;
/// Seal of roots, as `steadfast-ftl` lays down its format.
const ROOT_SEAL: u64 = 0x7374_6561_6466_6173;
const ROOT: u8 = 8;
const VOLUME: u64 = 9;

fn geometry() -> Geometry {
    Geometry {
        channels: 2,
        dies: 1,
        blocks: 64,
        pages: 16,
        sectors: 2,
        sector_bytes: 2048,
        spare_bytes: 96,
    }
}

/// A block's content: which, and of which write.
fn block(at: u64, stamp: u64) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; BLOCK_SIZE];
    }
    let word = (at << 32 | stamp).to_le_bytes();
    word.repeat(BLOCK_SIZE / word.len())
}

/// A sound image.
struct Image {
    bytes: Vec<u8>,
    /// Every content of each block.
    held: Vec<Vec<u64>>,
    /// Places of the pages of each kind.
    kinds: Vec<Vec<Address>>,
    raw_bytes: usize,
    pages_start: usize,
}

/// Makes an image with every kind of page, in a file of this directory.
fn make(path: &Path) -> Result<Image, DiskError> {
    let g = geometry();
    let options = Options {
        sectors: BLOCKS * 2,
        epoch: EPOCH * 2,
        region: None,
        volume: VOLUME,
    };
    let disk = Disk::create(path, g, options, WhenFull::Flush)?;
    let failed = |e: DeviceError| {
        let path = path.to_owned();
        let source = std::io::Error::other(e);
        DiskError::Image(steadfast_flash::ImageError::Io { path, source })
    };
    let mut rng = Rng::new(1);
    let mut held = vec![vec![0]; BLOCKS as usize];
    for stamp in 1..2500 {
        let at = rng.below(BLOCKS / 2);
        disk.write(BlockNo(at), &[&block(at, stamp)])
            .map_err(failed)?;
        held[at as usize].push(stamp);
        if stamp % 40 == 7 {
            disk.discard(BlockNo(at), 1).map_err(failed)?;
        }
        if stamp % 90 == 3 {
            disk.flush().map_err(failed)?;
        }
    }
    disk.flush().map_err(failed)?;
    drop(disk);
    let bytes = std::fs::read(path).map_err(|e| {
        failed(DeviceError::Open {
            path: String::new(),
            source: e.into(),
        })
    })?;
    let raw_bytes = g.raw_bytes();
    let pages_start = bytes.len() - g.all_blocks() as usize * g.pages as usize * raw_bytes;
    let mut image = Image {
        bytes,
        held,
        kinds: vec![Vec::new(); 9],
        raw_bytes,
        pages_start,
    };
    for block in 0..g.all_blocks() {
        for page in 0..g.pages {
            let at = Address { block, page };
            let tag = image
                .page(at)
                .get(g.page_bytes()..)
                .unwrap_or_default()
                .to_vec();
            if tag.get(6..8) == Some(&0x5346u16.to_le_bytes())
                && usize::from(tag[5]) < image.kinds.len()
            {
                image.kinds[usize::from(tag[5])].push(at);
            }
        }
    }
    Ok(image)
}

impl Image {
    fn place(&self, at: Address) -> usize {
        let page = at.block as usize * geometry().pages as usize + at.page as usize;
        self.pages_start + page * self.raw_bytes
    }

    /// A page with its spare bytes. In the file they are inverted.
    fn page(&self, at: Address) -> Vec<u8> {
        let place = self.place(at);
        (self.bytes[place..][..self.raw_bytes].iter())
            .map(|byte| !byte)
            .collect()
    }
}

/// The next bytes of the input; zeros when there are no more.
fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = N.min(input.len());
    bytes[..len].copy_from_slice(&input[..len]);
    *input = &input[len..];
    bytes
}

fn number(input: &mut &[u8], below: usize) -> usize {
    u32::from_le_bytes(take(input)) as usize % below.max(1)
}

/// Damages the image as the input says. Whether checksums were forged.
fn damage(image: &Image, bytes: &mut Vec<u8>, input: &mut &[u8]) -> bool {
    let mut forged = false;
    let [count] = take(input);
    for _ in 0..=count % 4 {
        let [what, kind] = take(input);
        let kind = usize::from(kind) % 8 + 1;
        let pages = &image.kinds[kind];
        match what % 8 {
            // The header, with a checksum that holds or not.
            0 => {
                let field = number(input, 11) * 4;
                bytes[field..field + 4].copy_from_slice(&take::<4>(input));
                if take(input) > [100] {
                    forged = true;
                    let hash = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER - 8]);
                    bytes[HEADER - 8..HEADER].copy_from_slice(&hash.to_le_bytes());
                }
            }
            // State of the blocks.
            1 => {
                let at = 4096 + number(input, geometry().all_blocks() as usize * 3) * 4;
                bytes[at..at + 4].copy_from_slice(&take::<4>(input));
            }
            2 => bytes.truncate(number(input, bytes.len())),
            // A page of some kind, with the newest first: bytes of it, all of it, or another's.
            3..=7 if !pages.is_empty() => {
                let back = number(input, pages.len().min(1 << (what % 16)));
                let at = pages[pages.len() - 1 - back];
                let mut page = image.page(at);
                match what % 8 {
                    3 => page.fill(0xFF),
                    4 => {
                        let from = number(input, page.len());
                        let to = (from + number(input, 64)).min(page.len());
                        page[from..to]
                            .iter_mut()
                            .for_each(|b| *b ^= take::<1>(input)[0]);
                    }
                    5 => {
                        let other = number(input, pages.len());
                        page = image.page(pages[other]);
                    }
                    _ => {
                        let mut sealed = Bytes(page.into());
                        let words = image.raw_bytes as u64 / 8 - 1;
                        for _ in 0..=take::<1>(input)[0] % 3 {
                            let word = number(input, words as usize) as u64;
                            sealed.set_word(word, u64::from_le_bytes(take(input)));
                        }
                        let seal = if kind == usize::from(ROOT) {
                            ROOT_SEAL
                        } else {
                            VOLUME
                        };
                        // The layer's number of the page.
                        let pages = u64::from(geometry().pages);
                        sealed.seal(seal, u64::from(at.block) * pages + u64::from(at.page));
                        page = sealed.0.to_vec();
                        forged = true;
                    }
                }
                let place = image.place(at);
                if let Some(stored) = bytes.get_mut(place..place + page.len()) {
                    stored
                        .iter_mut()
                        .zip(page)
                        .for_each(|(to, byte)| *to = !byte);
                }
            }
            _ => {}
        }
        if bytes.len() < 4096 {
            break;
        }
    }
    forged
}

/// Reads all blocks; returns whether one has a sector with bytes that it never held.
fn strange(disk: &dyn BlockDevice, held: &[Vec<u64>]) -> Option<u64> {
    let mut data = vec![0; BLOCK_SIZE];
    (0..disk.geometry().blocks.min(BLOCKS)).find(|&at| {
        // A typed error is an answer.
        let read = disk.read(BlockNo(at), &mut data).is_ok();
        let sectors = || data.chunks(geometry().sector_bytes as usize);
        let known = |sector: &[u8]| {
            (held[at as usize].iter()).any(|&stamp| block(at, stamp).starts_with(sector))
        };
        read && !sectors().all(known)
    })
}

/// The body of the target, with files in this directory. Returns whether there still was a disk.
///
/// # Panics
/// If one of the conditions fails.
#[expect(
    clippy::panic,
    clippy::expect_used,
    reason = "that is what a fuzz target is for"
)]
pub fn open_and_use(dir: &Path, mut input: &[u8]) -> bool {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let image = IMAGE.get_or_init(|| {
        let path = dir.join("sound");
        make(&path).expect("a sound image")
    });
    let mut bytes = image.bytes.clone();
    let forged = damage(image, &mut bytes, &mut input);
    let path = dir.join("damaged");
    std::fs::write(&path, &bytes).expect("the scratch directory can be written");

    match Disk::open_read_only(&path) {
        Err(error) => drop(error.to_string()),
        Ok(disk) => {
            let found = strange(&disk, &image.held);
            assert!(
                forged || found.is_none(),
                "block {found:?} shows content that it never held"
            );
            drop(disk);
            let same = std::fs::read(&path).expect("the scratch directory can be read") == bytes;
            assert!(same, "a look changed the image");
        }
    }
    let Ok(disk) = Disk::open(&path, WhenFull::Flush) else {
        return false;
    };
    let found = strange(&disk, &image.held);
    assert!(
        forged || found.is_none(),
        "block {found:?} shows content that it never held"
    );
    // It is used, to its end or to an error; then the result is opened again.
    let served = ServedDisk::new(std::sync::Arc::new(disk));
    for _ in 0..60 {
        let [what, long] = take(&mut input);
        let offset = number(&mut input, served.bytes() as usize + 4096) as u64;
        let count = u64::from(long) * 100;
        let answer = match what % 8 {
            0 => served.flush(),
            1 => served.trim(offset, count),
            2 => served.zero(offset, count),
            3 => served.run(offset, offset + count).map(drop),
            4 => served.read(offset, &mut vec![0; count as usize]),
            _ => served.write(offset, &vec![what; count as usize]),
        };
        if let Err(refusal) = answer {
            drop((refusal.to_string(), refusal.errno()));
        }
    }
    drop(served);
    match ImageStore::open(&path).map(drop) {
        Ok(()) => Disk::open(&path, WhenFull::default()).is_ok(),
        Err(error) => panic!("the image cannot be opened any more: {error}"),
    }
}
