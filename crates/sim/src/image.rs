//! Disk contents as values.
//!
//! [`Image`] is a persistent radix tree of shared blocks: a clone costs one reference
//! count, a change copies the path to one block unless it is not shared. Blocks of zeros
//! take no room. [`View`] is an image with a flat overlay for contents that change often
//! and are looked up more often still.
//!
//! An image knows its content's *fingerprint*: the sum of a hash of every sector that is not
//! zeros, keyed with the sector's address. A sum can be updated by the changes, so images
//! that were reached on different ways are compared without being read.

use crate::BlockMap;
use std::sync::{Arc, LazyLock};
use steadfast_block::{BLOCK_SIZE, Block, BlockNo, SECTOR_SIZE};

/// Sectors in a block.
pub(crate) const SECTORS: usize = BLOCK_SIZE / SECTOR_SIZE;

/// Children of a tree node.
const FANOUT: usize = 16;
const FANOUT_BITS: u32 = FANOUT.trailing_zeros();

static ZERO: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK_SIZE]));

/// A shared copy of `block`.
pub(crate) fn share(block: &Block) -> Arc<Block> {
    if *block == **ZERO {
        return ZERO.clone();
    }
    // Through a slice, because that copies the bytes once and straight to their place.
    Arc::<[u8]>::from(block.as_slice())
        .try_into()
        .unwrap_or_else(|_| Arc::new(*block))
}

/// The hashes of a block's sectors, as summed up in fingerprints.
pub(crate) fn sector_hashes(at: u64, block: &Arc<Block>) -> [u128; SECTORS] {
    let mut hashes = [0; SECTORS];
    if Arc::ptr_eq(block, &ZERO) {
        return hashes;
    }
    for (i, (hash, sector)) in hashes.iter_mut().zip(block.chunks(SECTOR_SIZE)).enumerate() {
        if *sector != ZERO[..SECTOR_SIZE] {
            let address = at.wrapping_mul(SECTORS as u64).wrapping_add(i as u64);
            *hash = xxhash_rust::xxh3::xxh3_128_with_seed(sector, address);
        }
    }
    hashes
}

/// Sums hashes up, as fingerprints do.
pub(crate) fn sum(hashes: &[u128]) -> u128 {
    hashes.iter().fold(0, |sum, hash| sum.wrapping_add(*hash))
}

/// The contents of a whole disk, as a value: cheap to clone, and clones do not affect each
/// other.
#[derive(Clone)]
pub struct Image {
    root: Node,
    /// Levels below the root; 0 if the root is a leaf.
    height: u32,
    blocks: u64,
    fingerprint: u128,
}

#[derive(Clone)]
enum Node {
    /// Nothing but zeros.
    Empty,
    Inner(Arc<[Node; FANOUT]>),
    Leaf(Arc<[Option<Stored>; FANOUT]>),
}

/// A block and the sum of its [`sector_hashes`]: a block is replaced more often than it is new.
#[derive(Clone)]
struct Stored {
    block: Arc<Block>,
    hash: u128,
}

impl Image {
    /// A disk of `blocks` blocks of zeros. O(1).
    #[must_use]
    pub fn zeroed(blocks: u64) -> Image {
        let address_bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
        let height = address_bits.div_ceil(FANOUT_BITS).saturating_sub(1);
        Image {
            root: Node::Empty,
            height,
            blocks,
            fingerprint: 0,
        }
    }

    /// A disk with the given contents; a trailing part that is no whole block is left out.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Image {
        let (blocks, _) = bytes.as_chunks::<BLOCK_SIZE>();
        let mut image = Image::zeroed(blocks.len() as u64);
        for (at, block) in (0..).zip(blocks) {
            image.set(at, share(block));
        }
        image
    }

    /// A copy of the whole contents.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.blocks as usize * BLOCK_SIZE);
        for at in 0..self.blocks {
            bytes.extend_from_slice(self.block(BlockNo(at)));
        }
        bytes
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The contents of one block; zeros beyond the end. O(log blocks).
    #[must_use]
    pub fn block(&self, at: BlockNo) -> &Block {
        self.get(at.0)
    }

    /// A hash of the contents: equal for equal contents, and different for different ones
    /// except for collisions of a 128-bit hash. O(1).
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    pub(crate) fn get(&self, at: u64) -> &Arc<Block> {
        let mut node = &self.root;
        let mut height = self.height;
        if at >= self.blocks {
            return &ZERO;
        }
        loop {
            match node {
                Node::Empty => return &ZERO,
                Node::Leaf(blocks) => {
                    return blocks[slot(at, 0)]
                        .as_ref()
                        .map_or(&ZERO, |stored| &stored.block);
                }
                Node::Inner(children) => node = &children[slot(at, height)],
            }
            height -= 1;
        }
    }

    /// Replaces a block inside the image.
    pub(crate) fn set(&mut self, at: u64, block: Arc<Block>) {
        let hash = sum(&sector_hashes(at, &block));
        self.set_hashed(at, block, hash);
    }

    /// Replaces a block inside the image; the sum of its [`sector_hashes`] is known.
    pub(crate) fn set_hashed(&mut self, at: u64, block: Arc<Block>, hash: u128) {
        debug_assert!(at < self.blocks);
        let stored = (!Arc::ptr_eq(&block, &ZERO)).then_some(Stored { block, hash });
        let old = self.root.set(self.height, at, stored);
        self.fingerprint = self.fingerprint.wrapping_sub(old).wrapping_add(hash);
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "image of {} blocks, {:032x}",
            self.blocks, self.fingerprint
        )
    }
}

impl Node {
    /// Returns the hash of the old block.
    fn set(&mut self, height: u32, at: u64, block: Option<Stored>) -> u128 {
        if let Node::Empty = self {
            *self = match height {
                0 => Node::Leaf(Arc::new([const { None }; FANOUT])),
                _ => Node::Inner(Arc::new([const { Node::Empty }; FANOUT])),
            };
        }
        match self {
            Node::Empty => 0,
            Node::Leaf(blocks) => {
                let old = std::mem::replace(&mut Arc::make_mut(blocks)[slot(at, 0)], block);
                old.map_or(0, |old| old.hash)
            }
            Node::Inner(children) => {
                Arc::make_mut(children)[slot(at, height)].set(height - 1, at, block)
            }
        }
    }
}

/// The child on the way to block `at` in a node of the given height.
fn slot(at: u64, height: u32) -> usize {
    (at >> (FANOUT_BITS * height)) as usize % FANOUT
}

/// An image with an overlay of newer blocks.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) base: Image,
    pub(crate) overlay: BlockMap<Arc<Block>>,
}

impl View {
    pub(crate) fn get(&self, at: u64) -> &Arc<Block> {
        match self.overlay.get(&at) {
            Some(block) => block,
            None => self.base.get(at),
        }
    }

    /// Copies blocks from `at` on to `buf`; the range has been checked.
    pub(crate) fn read(&self, at: BlockNo, buf: &mut [u8]) {
        for (at, part) in (at.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            part.copy_from_slice(self.get(at).as_slice());
        }
    }

    /// The same contents without an overlay.
    pub(crate) fn flatten(&self) -> Image {
        let mut image = self.base.clone();
        for (at, block) in &self.overlay {
            image.set(*at, block.clone());
        }
        image
    }
}
