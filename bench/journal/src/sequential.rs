//! Large sequential data in new blocks: bytes written for each block of it.

use crate::figures::{Clocks, Figures};
use crate::volume::{Layout, contents};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, MemDevice};
use steadfast_journal::{Credits, Journal, Kind, Result, StreamId};

/// 64 MiB.
const LOG_BLOCKS: u64 = 16384;
const OPERATION_BLOCKS: u64 = 256;

/// `mib` mebibytes, one operation each, with the file's inode in every one; made durable after each operation
/// or once at the end. Everything until the journal is closed counts.
pub(crate) fn sequential(mib: u32, sync_each: bool) -> std::result::Result<Figures, String> {
    let operations = u64::from(mib);
    let layout = Layout {
        log_blocks: LOG_BLOCKS,
        meta_blocks: 1,
        data_blocks: operations * OPERATION_BLOCKS,
    };
    let device = Arc::new(MemDevice::new(layout.blocks()));
    let (journal, counting) = layout.fresh(device)?;
    let clocks = Clocks::start();
    let written = (0..operations)
        .try_for_each(|turn| {
            append(&journal, &layout, turn)?;
            if sync_each {
                journal.sync(StreamId(1), &[])?;
            }
            Ok(())
        })
        .and_then(|()| journal.sync_all());
    written.map_err(|e| e.to_string())?;
    let seconds = clocks.wall_seconds();
    journal.close().map_err(|e| e.to_string())?;
    let counts = counting.counts();
    Ok(Figures::default()
        .with(
            "blocks_per_block",
            counts.blocks as f64 / layout.data_blocks as f64,
        )
        .with("flushes_per_mib", counts.flushes as f64 / operations as f64)
        .with("mib_per_second", operations as f64 / seconds))
}

fn append(journal: &Journal, layout: &Layout, turn: u64) -> Result<()> {
    let first = turn * OPERATION_BLOCKS;
    let data: Vec<Arc<Block>> = (first..first + OPERATION_BLOCKS)
        .map(|i| Arc::new([(i % 255) as u8 + 1; BLOCK_SIZE]))
        .collect();
    let credits = Credits {
        log_bytes: 300,
        data_blocks: OPERATION_BLOCKS,
    };
    let mut op = journal.begin(StreamId(1), credits)?;
    op.write(layout.meta(0), Kind::Meta, 0, &contents(turn))?;
    op.write_around(layout.data(first), data)?;
    let _ = op.commit();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_data_block_is_written_and_its_journalling_is_counted_on_top() {
        for sync_each in [true, false] {
            let written = sequential(4, sync_each).unwrap().get("blocks_per_block");
            assert!(written > 1.0 && written < 1.1, "{written}");
        }
    }
}
