//! Replay: brings every block that an accepted chain patches up to date.
//!
//! The chain's bytes stay where the scan put them; an index of 16 bytes for each entry, sorted by
//! block, finds them. Blocks are made in address order, a window at a time, so memory is bounded
//! by the log, its index and one window.

use crate::record::{Entries, Record};
use crate::seal::{META_BYTES, checksum, place};
use crate::{Kind, Result};
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo};

/// Blocks in a window (16 MiB).
const WINDOW_BLOCKS: usize = 4096;

/// A record with the bytes that its entries point into.
pub(crate) struct Held {
    pub(crate) record: Record,
    pub(crate) blocks: u64,
    pub(crate) bytes: BlockBuf,
}

/// Place of a block's entry in the log. Sorts by block, then in log order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    block: u64,
    /// Index in the chain.
    record: u32,
    /// Start of the entry in the record.
    from: u32,
}

/// Consecutive blocks of a window, up to date and sealed.
pub(crate) struct Made<'a> {
    pub(crate) blocks: &'a [(BlockNo, Kind)],
    pub(crate) bytes: &'a [u8],
}

impl<'a> Made<'a> {
    /// Runs of neighbours: first block, and bytes.
    pub(crate) fn runs(&self) -> Vec<(BlockNo, &'a [u8])> {
        let mut rest = self.bytes;
        self.blocks
            .chunk_by(|a, b| b.0 == a.0.offset(1))
            .map(|run| {
                let (bytes, behind) = rest.split_at(run.len() * BLOCK_SIZE);
                rest = behind;
                (run[0].0, bytes)
            })
            .collect()
    }
}

/// The entries of a chain that must be replayed: for each block those after its newest revoke.
pub(crate) struct Replay<'a> {
    device: &'a dyn BlockDevice,
    volume: &'a [u8; 16],
    chain: &'a [Held],
    places: Vec<Place>,
}

impl<'a> Replay<'a> {
    /// O(n log n) in the number of entries.
    pub(crate) fn new(
        device: &'a dyn BlockDevice,
        volume: &'a [u8; 16],
        chain: &'a [Held],
    ) -> Replay<'a> {
        let entries = chain.iter().map(|held| held.record.entries).sum();
        let mut places = Vec::with_capacity(entries);
        for (record, held) in chain.iter().enumerate() {
            let mut entries = Entries::of(&held.record, held.bytes.as_bytes());
            loop {
                let from = entries.position();
                let Some(entry) = entries.next() else {
                    break;
                };
                places.push(Place {
                    block: entry.at,
                    record: record as u32,
                    from: from as u32,
                });
            }
        }
        places.sort_unstable();
        let mut replay = Replay {
            device,
            volume,
            chain,
            places,
        };
        replay.drop_revoked();
        replay
    }

    /// Drops a block's entries up to its newest revoke; the revoke covers the whole record that it is in.
    fn drop_revoked(&mut self) {
        let mut kept = Vec::with_capacity(self.places.len());
        for places in self.places.chunk_by(|a, b| a.block == b.block) {
            let revoke = places
                .iter()
                .rev()
                .find(|place| self.entry(place).is_none_or(|e| e.revoke));
            let behind = |place: &&Place| revoke.is_none_or(|revoke| place.record > revoke.record);
            kept.extend(places.iter().filter(behind));
        }
        self.places = kept;
    }

    fn entry(&self, place: &Place) -> Option<crate::record::Entry> {
        let bytes = self.chain.get(place.record as usize)?.bytes.as_bytes();
        Entries::at(bytes, place.from as usize)
    }

    /// Hands all blocks to `put`, in address order, and to `rotten` the metadata blocks that do
    /// not lead to their logged checksums; they are left without a valid seal. Returns the number
    /// of blocks.
    pub(crate) fn run(
        &self,
        rotten: &mut dyn FnMut(BlockNo) -> Result<()>,
        put: &mut dyn FnMut(Made<'_>) -> Result<()>,
    ) -> Result<u64> {
        let groups: Vec<&[Place]> = self.places.chunk_by(|a, b| a.block == b.block).collect();
        let mut window = BlockBuf::zeroed(groups.len().min(WINDOW_BLOCKS));
        for groups in groups.chunks(WINDOW_BLOCKS) {
            let bytes = &mut window.as_bytes_mut()[..groups.len() * BLOCK_SIZE];
            self.read_homes(groups, bytes)?;
            let (images, _) = bytes.as_chunks_mut::<BLOCK_SIZE>();
            let mut blocks = Vec::with_capacity(groups.len());
            for (places, image) in groups.iter().zip(images) {
                let at = BlockNo(places[0].block);
                let (mut kind, mut sum) = (Kind::Data, 0);
                for place in *places {
                    let Some(entry) = self.entry(place) else {
                        continue;
                    };
                    let record = &self.chain[place.record as usize];
                    entry.apply(record.bytes.as_bytes(), image);
                    kind = if entry.meta { Kind::Meta } else { Kind::Data };
                    sum = entry.checksum;
                }
                // Every difference since the tail is in the log, so a torn home is whole now; a
                // block that still differs from the recorded checksum has rotted, and is not
                // sealed again.
                if kind == Kind::Meta && checksum(self.volume, at, image) != sum {
                    rotten(at)?;
                    image[META_BYTES..].fill(0);
                } else if kind == Kind::Meta {
                    place(at, image, sum);
                }
                blocks.push((at, kind));
            }
            put(Made {
                blocks: &blocks,
                bytes,
            })?;
        }
        Ok(groups.len() as u64)
    }

    /// Reads the homes of blocks whose patches do not begin with zeros, runs of neighbours at
    /// once. The others' bytes are cleared by their first entry.
    fn read_homes(&self, groups: &[&[Place]], bytes: &mut [u8]) -> Result<()> {
        let wanted = |places: &[Place]| !self.entry(&places[0]).is_some_and(|entry| entry.zero);
        let mut reads: Vec<(BlockNo, &mut [u8])> = Vec::new();
        let mut rest = bytes;
        let together =
            |a: &&[Place], b: &&[Place]| b[0].block == a[0].block + 1 && wanted(a) == wanted(b);
        for run in groups.chunk_by(together) {
            let (bytes, behind) = rest.split_at_mut(run.len() * BLOCK_SIZE);
            rest = behind;
            if wanted(run[0]) {
                reads.push((BlockNo(run[0][0].block), bytes));
            }
        }
        self.device.read_scattered(&mut reads)?;
        Ok(())
    }
}
