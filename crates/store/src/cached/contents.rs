//! Contents of an epoch: written blocks and discarded runs.

use bytes::Bytes;
use std::collections::BTreeMap;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};

/// Most blocks of one request to the disk.
const REQUEST_BLOCKS: usize = 2048;

/// See the module's header. Holes take effect first, then the blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) blocks: BTreeMap<u64, Bytes>,
    /// The end of each run by its first block; disjoint.
    holes: BTreeMap<u64, u64>,
}

/// The effect of an epoch on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look<'a> {
    /// The epoch wrote these bytes.
    Bytes(&'a Bytes),
    /// The epoch discarded the block: it reads as zeros.
    Hole,
    /// The epoch does not change the block.
    Untouched,
}

impl Contents {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.holes.is_empty()
    }

    /// Number of writes that count toward the limit of an epoch.
    pub(crate) fn weight(&self) -> u64 {
        (self.blocks.len() + self.holes.len()) as u64
    }

    pub(crate) fn write(&mut self, block: u64, bytes: Bytes) {
        self.blocks.insert(block, bytes);
    }

    pub(crate) fn discard(&mut self, block: u64, count: u64) {
        let (mut first, mut end) = (block, block.saturating_add(count));
        let gone: Vec<u64> = self.blocks.range(first..end).map(|(at, _)| *at).collect();
        for at in gone {
            self.blocks.remove(&at);
        }
        // Adjacent and overlapping runs are merged.
        while let Some((&from, &to)) = self.holes.range(..=end).next_back() {
            if to < first {
                break;
            }
            self.holes.remove(&from);
            (first, end) = (first.min(from), end.max(to));
        }
        self.holes.insert(first, end);
    }

    pub(crate) fn look(&self, block: u64) -> Look<'_> {
        if let Some(bytes) = self.blocks.get(&block) {
            return Look::Bytes(bytes);
        }
        match self.holes.range(..=block).next_back() {
            Some((_, end)) if block < *end => Look::Hole,
            _ => Look::Untouched,
        }
    }

    /// Holes as first block and count.
    pub(crate) fn holes(&self) -> impl Iterator<Item = (u64, u64)> {
        self.holes.iter().map(|(first, end)| (*first, end - first))
    }

    /// Runs of at most `most` blocks; none crosses a multiple of `border`.
    pub(crate) fn runs(&self, most: usize, border: u64) -> Vec<(u64, Vec<Bytes>)> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        for (block, bytes) in &self.blocks {
            match runs.last_mut() {
                Some((first, run))
                    if *first + run.len() as u64 == *block
                        && run.len() < most
                        && !block.is_multiple_of(border) =>
                {
                    run.push(bytes.clone());
                }
                _ => runs.push((*block, vec![bytes.clone()])),
            }
        }
        runs
    }

    /// Adds a later epoch, which takes effect after this one.
    pub(crate) fn append(&mut self, later: &Contents) {
        for (block, count) in later.holes() {
            self.discard(block, count);
        }
        let blocks = later.blocks.iter();
        (self.blocks).extend(blocks.map(|(block, bytes)| (*block, bytes.clone())));
    }

    /// Writes all of it to a disk.
    pub(crate) fn write_to(&self, disk: &dyn BlockDevice) -> steadfast_block::Result<()> {
        for (block, count) in self.holes() {
            disk.discard(BlockNo(block), count)?;
        }
        for (block, run) in self.runs(REQUEST_BLOCKS, u64::MAX) {
            let segments: Vec<&[u8]> = run.iter().map(|bytes| &bytes[..]).collect();
            disk.write(BlockNo(block), &segments)?;
        }
        Ok(())
    }
}

/// Fills a buffer with blocks, each from the newest epoch that changes it. Returns the runs that no epoch changes.
pub(crate) fn overlay<'a>(
    epochs: &[&'a Contents],
    first: u64,
    buf: &'a mut [u8],
) -> Vec<(u64, std::ops::Range<usize>)> {
    let mut missing: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
    for (i, part) in buf.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        let block = first + i as u64;
        let looks = epochs.iter().map(|epoch| epoch.look(block));
        match looks.into_iter().find(|look| *look != Look::Untouched) {
            Some(Look::Bytes(bytes)) => part.copy_from_slice(bytes),
            Some(_) => part.fill(0),
            None => {
                let range = i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE;
                match missing.last_mut() {
                    Some((_, last)) if last.end == range.start => last.end = range.end,
                    _ => missing.push((block, range)),
                }
            }
        }
    }
    missing
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use steadfast_block::MemDevice;

    fn block(number: u64) -> Bytes {
        let word = number.to_le_bytes();
        let bytes: Vec<u8> = word.iter().copied().cycle().take(BLOCK_SIZE).collect();
        bytes.into()
    }

    /// Compares with a disk that is written directly.
    #[test]
    fn epochs_over_one_another_read_and_add_up_as_if_each_was_written() {
        const BLOCKS: u64 = 64;
        let (disk, later) = (MemDevice::new(BLOCKS), MemDevice::new(BLOCKS));
        let mut random = 9u64;
        let mut below = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        for at in 0..BLOCKS {
            disk.write(BlockNo(at), &[&block(at + 1)]).unwrap();
            later.write(BlockNo(at), &[&block(at + 1)]).unwrap();
        }
        let mut epochs = [
            Contents::default(),
            Contents::default(),
            Contents::default(),
        ];
        for round in 0..3000u64 {
            let epoch = &mut epochs[(round / 1000) as usize];
            let at = below(BLOCKS);
            if below(3) == 0 {
                let count = below(BLOCKS - at) + 1;
                let count = count.min(BLOCKS - at);
                epoch.discard(at, count);
                (at..at + count)
                    .for_each(|at| disk.write(BlockNo(at), &[&[0; BLOCK_SIZE]]).unwrap());
            } else {
                epoch.write(at, block(1000 + round));
                disk.write(BlockNo(at), &[&block(1000 + round)]).unwrap();
            }
            let runs: Vec<(u64, u64)> = epoch.holes().collect();
            let apart = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 < pair[1].0;
            assert!(runs.windows(2).all(apart), "{runs:?}");
        }
        let mut wanted = vec![0; BLOCKS as usize * BLOCK_SIZE];
        disk.read(BlockNo(0), &mut wanted).unwrap();
        let mut found = vec![0; BLOCKS as usize * BLOCK_SIZE];
        let newest_first = [&epochs[2], &epochs[1], &epochs[0]];
        for (at, range) in overlay(&newest_first, 0, &mut found) {
            later.read(BlockNo(at), &mut found[range]).unwrap();
        }
        assert!(found == wanted);
        let mut sum = epochs[0].clone();
        sum.append(&epochs[1]);
        sum.append(&epochs[2]);
        sum.write_to(&later).unwrap();
        later.read(BlockNo(0), &mut found).unwrap();
        assert!(found == wanted);
    }
}
