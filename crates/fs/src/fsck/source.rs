//! Source of the check's reads: the home blocks of a quiet volume, or the volume with its
//! log applied in memory. A block that cannot be used is a value, not an error: the check
//! goes on without it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockBuf, BlockDevice, BlockNo};
use steadfast_journal::{Error as JournalError, Journal, Kind, seal, seal_holds};

/// Blocks kept in memory; inode blocks are asked for once per inode.
const CACHE_BLOCKS: usize = 4096;
/// Blocks that are read ahead at a time.
pub(super) const AHEAD_BLOCKS: usize = 1024;
/// Neighbours that are read by one request.
const RUN_BLOCKS: usize = 64;

/// Reason why a block cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// Its checksum does not hold.
    Seal,
    /// The device does not return it.
    Read(String),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Seal => f.write_str("fails its checksum"),
            Bad::Read(why) => write!(f, "cannot be read ({why})"),
        }
    }
}

enum Origin {
    Home(Arc<dyn BlockDevice>),
    Replayed(Journal, HashSet<u64>),
}

/// Reads blocks as the check wants them.
pub(super) struct Source {
    origin: Origin,
    volume: [u8; 16],
    cache: HashMap<u64, Result<Rc<Block>, Bad>>,
    /// Buffer of blocks that are read ahead.
    ahead: BlockBuf,
}

impl Source {
    /// The blocks at home: right when the log is empty, the best there is when it is lost.
    pub(super) fn home(device: Arc<dyn BlockDevice>, volume: [u8; 16]) -> Source {
        Source {
            origin: Origin::Home(device),
            volume,
            cache: HashMap::new(),
            ahead: BlockBuf::zeroed(0),
        }
    }

    /// The blocks with the log applied; `journal` is open, and nothing changes.
    /// The metadata blocks `rotten` did not get the content that the log gives them.
    pub(super) fn replayed(journal: Journal, volume: [u8; 16], rotten: &[BlockNo]) -> Source {
        let rotten = rotten.iter().map(|at| at.0).collect();
        Source {
            origin: Origin::Replayed(journal, rotten),
            volume,
            cache: HashMap::new(),
            ahead: BlockBuf::zeroed(0),
        }
    }

    /// A metadata block with the log applied, sealed; `None` where the log was not applied in memory,
    /// or the block is not sound.
    pub(super) fn replayed_block(&mut self, at: BlockNo) -> Option<Block> {
        let Origin::Replayed(..) = self.origin else {
            return None;
        };
        let mut block = self.load(at.0, Kind::Meta).ok()?;
        // In memory the seal is void.
        seal(&self.volume, at, &mut block);
        Some(block)
    }

    /// A metadata block whose seal holds.
    pub(super) fn meta(&mut self, at: u64) -> Result<Rc<Block>, Bad> {
        if let Some(known) = self.cache.get(&at) {
            return known.clone();
        }
        let block = self.load(at, Kind::Meta).map(Rc::new);
        if self.cache.len() >= CACHE_BLOCKS {
            self.cache.clear();
        }
        self.cache.insert(at, block.clone());
        block
    }

    /// Reads metadata blocks ahead, the first [`AHEAD_BLOCKS`] of them, in the order of their
    /// addresses and all at once. A block that cannot be read is noticed when it is needed.
    pub(super) fn read_ahead(&mut self, blocks: impl IntoIterator<Item = u64>) {
        let mut wanted: Vec<u64> = blocks
            .into_iter()
            .filter(|at| !self.cache.contains_key(at))
            .take(AHEAD_BLOCKS)
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.len() < 2 {
            return;
        }
        if self.cache.len() + wanted.len() > CACHE_BLOCKS {
            self.cache.clear();
        }
        match &self.origin {
            Origin::Home(device) => {
                // As large as it has to be: small volumes are checked by the thousand.
                if self.ahead.blocks() < wanted.len() {
                    self.ahead = BlockBuf::zeroed(wanted.len());
                }
                let mut rest = self.ahead.as_bytes_mut();
                let mut reads: Vec<(BlockNo, &mut [u8])> = Vec::new();
                let runs = wanted.chunk_by(|a, b| a + 1 == *b);
                for run in runs.flat_map(|run| run.chunks(RUN_BLOCKS)) {
                    let (bytes, behind) = rest.split_at_mut(run.len() * BLOCK_SIZE);
                    rest = behind;
                    reads.push((BlockNo(run[0]), bytes));
                }
                if device.read_scattered(&mut reads).is_err() {
                    return;
                }
                let blocks = reads.iter().flat_map(|(_, bytes)| bytes.as_chunks().0);
                for (at, block) in wanted.into_iter().zip(blocks) {
                    let sound = seal_holds(&self.volume, BlockNo(at), block);
                    let read = if sound {
                        Ok(Rc::new(*block))
                    } else {
                        Err(Bad::Seal)
                    };
                    self.cache.insert(at, read);
                }
            }
            Origin::Replayed(journal, rotten) => {
                wanted.retain(|at| !rotten.contains(at));
                let blocks: Vec<BlockNo> = wanted.iter().map(|at| BlockNo(*at)).collect();
                for (at, block) in wanted
                    .into_iter()
                    .zip(journal.read_scattered(&blocks, Kind::Meta))
                {
                    self.cache.insert(at, told(block).map(Rc::new));
                }
            }
        }
    }

    /// A block of file data.
    pub(super) fn data(&mut self, at: u64) -> Result<Block, Bad> {
        self.load(at, Kind::Data)
    }

    fn load(&self, at: u64, kind: Kind) -> Result<Block, Bad> {
        let at = BlockNo(at);
        match &self.origin {
            Origin::Home(device) => {
                let mut block = [0; BLOCK_SIZE];
                device
                    .read(at, &mut block)
                    .map_err(|e| Bad::Read(e.to_string()))?;
                if kind == Kind::Meta && !seal_holds(&self.volume, at, &block) {
                    return Err(Bad::Seal);
                }
                Ok(block)
            }
            Origin::Replayed(_, rotten) if kind == Kind::Meta && rotten.contains(&at.0) => {
                Err(Bad::Seal)
            }
            Origin::Replayed(journal, _) => told(journal.read(at, kind)),
        }
    }
}

fn told(read: Result<Arc<Block>, JournalError>) -> Result<Block, Bad> {
    match read {
        Ok(block) => Ok(*block),
        Err(JournalError::BadSeal { .. }) => Err(Bad::Seal),
        // The log changes it as the other kind than the tree that names it says.
        Err(JournalError::WrongKind { .. }) => Err(Bad::Seal),
        Err(error) => Err(Bad::Read(error.to_string())),
    }
}
