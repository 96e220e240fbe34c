//! A device in memory.
//!
//! Sparse: memory is spent on 64 KiB chunks that hold anything but zeros. The chunks
//! are spread over independently locked shards, so that requests of several threads
//! rarely meet. A request that spans chunks is not atomic against an overlapping one,
//! which the contract of [`BlockDevice`] allows.

use crate::{
    BLOCK_SIZE, BlockDevice, BlockNo, DeviceOp, Geometry, Result, check_count, check_range,
    check_segments,
};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of the unit of allocation.
const CHUNK_BYTES: usize = 16 * BLOCK_SIZE;
/// Number of locks that share the chunks.
const SHARDS: u64 = 64;

/// Chunks by number. The hash needs no key: numbers are addresses that the layers above choose, never an adversary.
type Shard = HashMap<u64, Box<[u8]>, FixedState>;

/// A device in memory: never fails, keeps every write that returned, starts as zeros.
pub struct MemDevice {
    blocks: u64,
    shards: Box<[RwLock<Shard>]>,
}

impl MemDevice {
    /// A device of `blocks` zeroed blocks. O(1) in memory for any size.
    #[must_use]
    pub fn new(blocks: u64) -> MemDevice {
        MemDevice {
            blocks,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    /// A device with the contents of `image`; a trailing part that is no whole block is
    /// left out. Only chunks that hold something else than zeros are copied.
    #[must_use]
    pub fn from_bytes(image: &[u8]) -> MemDevice {
        let whole = image.len() / BLOCK_SIZE * BLOCK_SIZE;
        let device = MemDevice::new((whole / BLOCK_SIZE) as u64);
        device.put(0, &image[..whole]);
        device
    }

    /// A copy of the whole contents. Writes that run at the same time are seen in part.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut image = vec![0; self.blocks as usize * BLOCK_SIZE];
        for (index, shard) in self.shards.iter().enumerate() {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            for (&chunk, bytes) in shard.iter() {
                debug_assert_eq!(chunk % SHARDS, index as u64);
                let from = chunk as usize * CHUNK_BYTES;
                let len = CHUNK_BYTES.min(image.len() - from);
                image[from..from + len].copy_from_slice(&bytes[..len]);
            }
        }
        image
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        &self.shards[(chunk % SHARDS) as usize]
    }

    fn read_shard(&self, chunk: u64) -> RwLockReadGuard<'_, Shard> {
        self.shard(chunk)
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write_shard(&self, chunk: u64) -> RwLockWriteGuard<'_, Shard> {
        self.shard(chunk)
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `data` at byte `offset`; the range has been checked.
    fn put(&self, offset: u64, data: &[u8]) {
        for piece in pieces(offset, data.len()) {
            let data = &data[piece.of_request];
            let mut shard = self.write_shard(piece.chunk);
            match shard.get_mut(&piece.chunk) {
                Some(chunk) => chunk[piece.of_chunk].copy_from_slice(data),
                None if is_zero(data) => {}
                None => {
                    let mut chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
                    chunk[piece.of_chunk].copy_from_slice(data);
                    shard.insert(piece.chunk, chunk);
                }
            }
        }
    }
}

impl BlockDevice for MemDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            volatile_cache: false,
            read_only: false,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        check_range(DeviceOp::Read, at, buf.len(), self.blocks)?;
        for piece in pieces(at.0 * BLOCK_SIZE as u64, buf.len()) {
            let buf = &mut buf[piece.of_request];
            match self.read_shard(piece.chunk).get(&piece.chunk) {
                Some(chunk) => buf.copy_from_slice(&chunk[piece.of_chunk]),
                None => buf.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        check_segments(at, segments, self.blocks)?;
        let mut offset = at.0 * BLOCK_SIZE as u64;
        for segment in segments {
            self.put(offset, segment);
            offset += segment.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        check_count(DeviceOp::Discard, at, count, self.blocks)?;
        let bytes = count as usize * BLOCK_SIZE;
        for piece in pieces(at.0 * BLOCK_SIZE as u64, bytes) {
            let mut shard = self.write_shard(piece.chunk);
            if piece.of_chunk.len() == CHUNK_BYTES {
                shard.remove(&piece.chunk);
            } else if let Some(chunk) = shard.get_mut(&piece.chunk) {
                chunk[piece.of_chunk].fill(0);
            }
        }
        Ok(())
    }
}

/// The part of a request that falls into one chunk.
struct Piece {
    chunk: u64,
    of_chunk: Range<usize>,
    of_request: Range<usize>,
}

/// Cuts a request of `len` bytes at byte `offset` into its chunks.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let from = (at % CHUNK_BYTES as u64) as usize;
        let size = (CHUNK_BYTES - from).min(len - done);
        let of_request = done..done + size;
        done += size;
        Some(Piece {
            chunk: at / CHUNK_BYTES as u64,
            of_chunk: from..from + size,
            of_request,
        })
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
    bytes
        .chunks(BLOCK_SIZE)
        .all(|part| *part == ZEROS[..part.len()])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::DeviceError;

    #[test]
    fn a_huge_device_costs_nothing_until_it_is_written() {
        let device = MemDevice::new(1 << 40);
        let last = BlockNo((1 << 40) - 1);
        device.write(last, &[&[7; BLOCK_SIZE]]).unwrap();
        device.write(BlockNo(0), &[&[0; BLOCK_SIZE]]).unwrap();
        let mut block = [0; BLOCK_SIZE];
        device.read(last, &mut block).unwrap();
        assert_eq!(block, [7; BLOCK_SIZE]);
        let chunks: usize = device.shards.iter().map(|s| s.read().unwrap().len()).sum();
        assert_eq!(chunks, 1);
    }

    #[test]
    fn an_image_goes_in_and_comes_out_without_its_trailing_part() {
        let mut image: Vec<u8> = (0..40 * BLOCK_SIZE).map(|i| (i / 100) as u8).collect();
        image[8 * BLOCK_SIZE..30 * BLOCK_SIZE].fill(0);
        let whole = image.clone();
        image.extend_from_slice(&[9; 100]);
        let device = MemDevice::from_bytes(&image);
        assert_eq!(device.geometry().blocks, 40);
        assert!(device.to_bytes() == whole);
    }

    #[test]
    fn discarded_chunks_give_their_memory_back() {
        let device = MemDevice::from_bytes(&vec![1; 3 * CHUNK_BYTES]);
        device.discard(BlockNo(8), 32).unwrap();
        let chunks: usize = device.shards.iter().map(|s| s.read().unwrap().len()).sum();
        assert_eq!(chunks, 2);
        let image = device.to_bytes();
        assert!(is_zero(&image[8 * BLOCK_SIZE..40 * BLOCK_SIZE]));
        assert!(image[..8 * BLOCK_SIZE].iter().all(|b| *b == 1));
        assert!(image[40 * BLOCK_SIZE..].iter().all(|b| *b == 1));
    }

    #[test]
    fn requests_beyond_the_device_or_not_of_whole_blocks_are_refused() {
        let device = MemDevice::new(4);
        let two = [0; 2 * BLOCK_SIZE];
        assert!(matches!(
            device.write(BlockNo(3), &[&two]),
            Err(DeviceError::OutOfRange {
                count: 2,
                blocks: 4,
                ..
            })
        ));
        assert!(matches!(
            device.write(BlockNo(u64::MAX), &[&two]),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(matches!(
            device.write(BlockNo(0), &[&two[..100], &two[..3996]]),
            Err(DeviceError::Misaligned { bytes: 100, .. })
        ));
        assert!(matches!(
            device.read(BlockNo(0), &mut [0; 5]),
            Err(DeviceError::Misaligned { bytes: 5, .. })
        ));
        assert!(matches!(
            device.discard(BlockNo(1), u64::MAX),
            Err(DeviceError::OutOfRange { .. })
        ));
    }
}
