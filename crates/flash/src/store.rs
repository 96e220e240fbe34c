//! Storage of durable bytes: memory, or an image file. A store knows no rules and no time.
//!
//! Image file, little endian: a header of 4096 bytes {magic `STDFLASH`, version u32, the seven
//! numbers of the geometry u32, XXH3-64 of all that}; 12 bytes for each block {pages used u32,
//! erases u32, bad u32}, rounded up to 4096; the pages with their spare bytes, block by block.
//! A block's entry is written before the page it counts, so that a process that dies between
//! the two never programs a page twice.

use crate::{Address, Geometry, Overlay};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// State of a block beside its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockState {
    /// Pages from the first on that may not be programmed before the next erase.
    pub used: u32,
    /// Erases so far.
    pub erases: u32,
    /// Programs and erases fail.
    pub bad: bool,
}

/// Durable pages and block states. A page that was not stored since its block was erased reads
/// as all ones.
pub trait Store {
    /// Reads a page with its spare bytes.
    ///
    /// # Errors
    /// The medium's.
    fn load(&self, at: Address, bytes: &mut [u8]) -> std::io::Result<()>;
    /// Writes a page with its spare bytes.
    ///
    /// # Errors
    /// The medium's.
    fn store(&mut self, at: Address, bytes: &[u8]) -> std::io::Result<()>;
    /// Makes all pages of a block read as all ones.
    ///
    /// # Errors
    /// The medium's.
    fn erase(&mut self, block: u32) -> std::io::Result<()>;
    /// A block's state, as it was last set.
    ///
    /// # Errors
    /// The medium's.
    fn state(&self, block: u32) -> std::io::Result<BlockState>;
    /// Sets a block's state.
    ///
    /// # Errors
    /// The medium's.
    fn set_state(&mut self, block: u32, state: BlockState) -> std::io::Result<()>;
    /// Makes everything durable.
    ///
    /// # Errors
    /// The medium's.
    fn sync(&mut self) -> std::io::Result<()>;
}

/// Bytes kept together, or left out where all of them are zero.
const CHUNK: usize = 64;

/// Pages in memory; runs of zeros take no room, so that large memories can be simulated.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    pages_per_block: u32,
    pages: HashMap<Address, Box<[u8]>>,
    states: HashMap<u32, BlockState>,
}

impl MemoryStore {
    /// An erased memory.
    #[must_use]
    pub fn new(geometry: &Geometry) -> MemoryStore {
        MemoryStore {
            pages_per_block: geometry.pages,
            pages: HashMap::new(),
            states: HashMap::new(),
        }
    }
}

fn pack(bytes: &[u8]) -> Box<[u8]> {
    let chunks = bytes.len().div_ceil(CHUNK);
    let mut packed = vec![0; chunks.div_ceil(8)];
    for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
        if chunk.iter().any(|&byte| byte != 0) {
            packed[index / 8] |= 1 << (index % 8);
            packed.extend_from_slice(chunk);
        }
    }
    packed.into()
}

fn unpack(packed: &[u8], bytes: &mut [u8]) {
    let chunks = bytes.len().div_ceil(CHUNK);
    let (present, mut rest) = packed.split_at(chunks.div_ceil(8));
    for (index, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
        if present[index / 8] >> (index % 8) & 1 == 1 {
            let (this, after) = rest.split_at(chunk.len());
            chunk.copy_from_slice(this);
            rest = after;
        } else {
            chunk.fill(0);
        }
    }
}

impl Store for MemoryStore {
    fn load(&self, at: Address, bytes: &mut [u8]) -> std::io::Result<()> {
        match self.pages.get(&at) {
            Some(packed) => unpack(packed, bytes),
            None => bytes.fill(0xFF),
        }
        Ok(())
    }

    fn store(&mut self, at: Address, bytes: &[u8]) -> std::io::Result<()> {
        self.pages.insert(at, pack(bytes));
        Ok(())
    }

    fn erase(&mut self, block: u32) -> std::io::Result<()> {
        for page in 0..self.pages_per_block {
            self.pages.remove(&Address { block, page });
        }
        Ok(())
    }

    fn state(&self, block: u32) -> std::io::Result<BlockState> {
        Ok(self.states.get(&block).copied().unwrap_or_default())
    }

    fn set_state(&mut self, block: u32, state: BlockState) -> std::io::Result<()> {
        self.states.insert(block, state);
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const MAGIC: &[u8; 8] = b"STDFLASH";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 4096;
const STATE_BYTES: u64 = 12;
/// Magic, version, seven numbers.
const HASHED_BYTES: usize = 8 + 4 + 7 * 4;

/// An image file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The header does not describe a flash memory.
    #[error("{path} is no flash image: {why}")]
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// Fault of the image.
        why: String,
    },
}

/// Pages in an image file, which is open in one process at a time.
#[derive(Debug)]
pub struct ImageStore {
    file: File,
    geometry: Geometry,
    pages_start: u64,
}

impl ImageStore {
    /// Makes a new image; an existing file is refused. Only its owner may read it: it will hold other people's files.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn create(path: &Path, geometry: Geometry) -> Result<ImageStore, ImageError> {
        geometry.check().map_err(|e| not_an_image(path, e))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(locked)
            .map_err(|source| io_error(path, source))?;
        let mut header = vec![0; HEADER_BYTES as usize];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (index, number) in numbers(&geometry).into_iter().enumerate() {
            header[12 + 4 * index..16 + 4 * index].copy_from_slice(&number.to_le_bytes());
        }
        let hash = xxh3_64(&header[..HASHED_BYTES]);
        header[HASHED_BYTES..HASHED_BYTES + 8].copy_from_slice(&hash.to_le_bytes());
        let store = ImageStore::over(file, geometry);
        // The header comes last: an interrupted creation leaves no image.
        (store.file.set_len(store.file_bytes()))
            .and_then(|()| store.file.sync_all())
            .and_then(|()| store.file.write_all_at(&header, 0))
            .and_then(|()| store.file.sync_all())
            .map_err(|source| io_error(path, source))?;
        Ok(store)
    }

    /// Opens an image, alone.
    ///
    /// # Errors
    /// [`ImageError`]: also for a file that is too short for its geometry.
    pub fn open(path: &Path) -> Result<ImageStore, ImageError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        ImageStore::from_file(path, file.and_then(locked))
    }

    /// Opens an image to look at it, together with others that do the same; nothing is written.
    /// Also returns its geometry.
    ///
    /// # Errors
    /// As for [`open`](ImageStore::open).
    pub fn open_read_only(path: &Path) -> Result<(Overlay<ImageStore>, Geometry), ImageError> {
        let file = File::open(path).and_then(|file| {
            let outcome = file.try_lock_shared();
            granted(file, outcome)
        });
        let store = ImageStore::from_file(path, file)?;
        let geometry = store.geometry;
        Ok((Overlay::new(store, &geometry), geometry))
    }

    /// The same, also while another process writes, and without a lock against writers: the bytes read
    /// may be of different moments.
    ///
    /// # Errors
    /// As for [`open`](ImageStore::open).
    pub fn peek(path: &Path) -> Result<(Overlay<ImageStore>, Geometry), ImageError> {
        let store = ImageStore::from_file(path, File::open(path))?;
        let geometry = store.geometry;
        Ok((Overlay::new(store, &geometry), geometry))
    }

    /// Whether a file begins like an image. O(1).
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn is_image(path: &Path) -> std::io::Result<bool> {
        let mut magic = [0; MAGIC.len()];
        match File::open(path)?.read_exact_at(&mut magic, 0) {
            Ok(()) => Ok(magic == *MAGIC),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn from_file(path: &Path, file: std::io::Result<File>) -> Result<ImageStore, ImageError> {
        let file = file.map_err(|source| io_error(path, source))?;
        let bytes = (file.metadata())
            .map_err(|source| io_error(path, source))?
            .len();
        if bytes < HEADER_BYTES {
            return Err(not_an_image(path, "it is shorter than its header"));
        }
        let mut header = [0; HASHED_BYTES + 8];
        (file.read_exact_at(&mut header, 0)).map_err(|source| io_error(path, source))?;
        let hash = xxh3_64(&header[..HASHED_BYTES]).to_le_bytes();
        if header[..8] != *MAGIC {
            return Err(not_an_image(path, "it does not begin with its magic"));
        }
        if header[HASHED_BYTES..] != hash {
            return Err(not_an_image(path, "its header fails its checksum"));
        }
        let number = |index: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&header[8 + 4 * index..12 + 4 * index]);
            u32::from_le_bytes(bytes)
        };
        if number(0) != VERSION {
            let why = format!("its version is {}, this program reads {VERSION}", number(0));
            return Err(not_an_image(path, why));
        }
        let geometry = Geometry {
            channels: number(1),
            dies: number(2),
            blocks: number(3),
            pages: number(4),
            sectors: number(5),
            sector_bytes: number(6),
            spare_bytes: number(7),
        };
        geometry.check().map_err(|e| not_an_image(path, e))?;
        let store = ImageStore::over(file, geometry);
        if bytes < store.file_bytes() {
            let why = format!("{bytes} bytes of {} are there", store.file_bytes());
            return Err(not_an_image(path, why));
        }
        Ok(store)
    }

    /// The geometry in the header.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn over(file: File, geometry: Geometry) -> ImageStore {
        let states = u64::from(geometry.all_blocks()) * STATE_BYTES;
        ImageStore {
            file,
            geometry,
            pages_start: HEADER_BYTES + states.next_multiple_of(4096),
        }
    }

    fn file_bytes(&self) -> u64 {
        self.place(Address {
            block: self.geometry.all_blocks(),
            page: 0,
        })
    }

    fn place(&self, at: Address) -> u64 {
        let page = u64::from(at.block) * u64::from(self.geometry.pages) + u64::from(at.page);
        self.pages_start + page * self.geometry.raw_bytes() as u64
    }
}

fn locked(file: File) -> std::io::Result<File> {
    let outcome = file.try_lock();
    granted(file, outcome)
}

fn granted(file: File, outcome: Result<(), std::fs::TryLockError>) -> std::io::Result<File> {
    match outcome {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(std::io::Error::new(
            std::io::ErrorKind::ResourceBusy,
            "in use by another process",
        )),
        Err(std::fs::TryLockError::Error(e)) => Err(e),
    }
}

fn numbers(geometry: &Geometry) -> [u32; 7] {
    [
        geometry.channels,
        geometry.dies,
        geometry.blocks,
        geometry.pages,
        geometry.sectors,
        geometry.sector_bytes,
        geometry.spare_bytes,
    ]
}

fn io_error(path: &Path, source: std::io::Error) -> ImageError {
    let path = path.to_owned();
    ImageError::Io { path, source }
}

fn not_an_image(path: &Path, why: impl ToString) -> ImageError {
    ImageError::NotAnImage {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// Erased pages lie in the file as they are after `set_len`: zeros, and read as ones. So bytes
/// are stored inverted, and an erased block takes no room.
fn invert(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

impl Store for ImageStore {
    fn load(&self, at: Address, bytes: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(bytes, self.place(at))?;
        invert(bytes);
        Ok(())
    }

    fn store(&mut self, at: Address, bytes: &[u8]) -> std::io::Result<()> {
        let mut inverted = bytes.to_vec();
        invert(&mut inverted);
        self.file.write_all_at(&inverted, self.place(at))
    }

    fn erase(&mut self, block: u32) -> std::io::Result<()> {
        let zeros = vec![0; self.geometry.raw_bytes()];
        for page in 0..self.geometry.pages {
            let place = self.place(Address { block, page });
            self.file.write_all_at(&zeros, place)?;
        }
        Ok(())
    }

    fn state(&self, block: u32) -> std::io::Result<BlockState> {
        let mut bytes = [0; STATE_BYTES as usize];
        let place = HEADER_BYTES + u64::from(block) * STATE_BYTES;
        self.file.read_exact_at(&mut bytes, place)?;
        let number = |from: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[from..from + 4]);
            u32::from_le_bytes(word)
        };
        Ok(BlockState {
            used: number(0),
            erases: number(4),
            bad: number(8) != 0,
        })
    }

    fn set_state(&mut self, block: u32, state: BlockState) -> std::io::Result<()> {
        let mut bytes = [0; STATE_BYTES as usize];
        for (index, number) in [state.used, state.erases, u32::from(state.bad)]
            .into_iter()
            .enumerate()
        {
            bytes[4 * index..4 * index + 4].copy_from_slice(&number.to_le_bytes());
        }
        let place = HEADER_BYTES + u64::from(block) * STATE_BYTES;
        self.file.write_all_at(&bytes, place)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}
