//! Where the check reads from: the home blocks of a quiet volume, or the volume with
//! its log applied in memory. A block that cannot be used is a value, not an error:
//! the check goes on without it.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo};
use steadfast_journal::{Error as JournalError, Journal, Kind, seal_holds};

/// Blocks kept in memory; inode blocks are asked for once per inode.
const CACHE_BLOCKS: usize = 4096;

/// Why a block cannot be used.
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
}

impl Source {
    /// The blocks at home: right when the log is empty, the best there is when it is lost.
    pub(super) fn home(device: Arc<dyn BlockDevice>, volume: [u8; 16]) -> Source {
        Source {
            origin: Origin::Home(device),
            volume,
            cache: HashMap::new(),
        }
    }

    /// The blocks with the log applied; `journal` is open, and nobody changes anything.
    /// The metadata blocks `rotten` did not become what the log says.
    pub(super) fn replayed(journal: Journal, volume: [u8; 16], rotten: &[BlockNo]) -> Source {
        let rotten = rotten.iter().map(|at| at.0).collect();
        Source {
            origin: Origin::Replayed(journal, rotten),
            volume,
            cache: HashMap::new(),
        }
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
            Origin::Replayed(journal, _) => match journal.read(at, kind) {
                Ok(block) => Ok(*block),
                Err(JournalError::BadSeal { .. }) => Err(Bad::Seal),
                // The log changes it as the other kind than the tree that names it says.
                Err(JournalError::WrongKind { .. }) => Err(Bad::Seal),
                Err(error) => Err(Bad::Read(error.to_string())),
            },
        }
    }
}
