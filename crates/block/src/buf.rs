//! Buffers aligned to a block, as `O_DIRECT` wants them.

use crate::BLOCK_SIZE;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// One block of memory at an address that `O_DIRECT` accepts.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct AlignedBlock(pub [u8; BLOCK_SIZE]);

/// A growable buffer of whole, aligned blocks.
#[derive(Clone, Default)]
pub struct BlockBuf(Vec<AlignedBlock>);

impl BlockBuf {
    /// A buffer of `blocks` zeroed blocks.
    #[must_use]
    pub fn zeroed(blocks: usize) -> BlockBuf {
        BlockBuf(AlignedBlock::new_vec_zeroed(blocks).unwrap_or_else(|_| {
            std::alloc::handle_alloc_error(
                std::alloc::Layout::array::<AlignedBlock>(blocks)
                    .unwrap_or(std::alloc::Layout::new::<AlignedBlock>()),
            )
        }))
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.0.len()
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }

    /// The bytes, to be changed.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}
